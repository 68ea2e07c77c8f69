"""What users hand in, made into what the log stores. Bad input is refused here, before any effect.

Python objects become bytes and text record by record, because that is the API's edge; Arrow data
is only cast and checked with Arrow's own kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import InvalidOption, InvalidRecord, RecordTooLarge
from esker.format import checksum
from esker.format import columns as cols
from esker.format.columns import HEADER_TYPE, Body, Columns, Extra
from esker.format.once import COPIED, MARK_BYTES_MAX
from esker.format.once import HEADER as ONCE
from esker.format.routes import MARK_HEADER, ROUTED
from esker.options import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    NODE_BYTES_MAX,
    TAG_BYTES_MAX,
    WAIT_SECONDS_MAX,
)
from esker.records import Record
from esker.storage.segment import split

if TYPE_CHECKING:
    from esker.engine.store import Store

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = {"value", "key", "tag", "node", "headers", "timestamp"}
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_NEXT: Final[dict[type, str]] = {  # what was probably meant
    list: "use append_many for several records, or json.dumps(...) for a list of JSON",
    tuple: "use append_many for several records; a record with a key is Record(value, key=...)",
    type(None): "give b'' for an empty value, or encode it first",
}
_IGNORED: Final = {"offset", "shard", "partition", "topic"}


def value_of(value: Any, limit: int) -> bytes:
    """A value as bytes; a dict as JSON."""
    if isinstance(value, str):
        value = _utf8(value, "value")
    elif isinstance(value, dict):
        value = _json(value)
    elif isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    elif not isinstance(value, bytes):
        raise InvalidRecord(
            f"a value is bytes, text, or a dict (stored as JSON), not {type(value).__name__}; "
            f"{_NEXT.get(type(value), 'encode it first, as with msgspec.json.encode(...)')}"
        )
    if len(value) > limit:
        raise RecordTooLarge(
            f"a record of {len(value)} bytes is above max_record_bytes={limit}; "
            "create the topic with a larger max_record_bytes, or split the record"
        )
    return value if type(value) is bytes else bytes(value)


def _json(value: dict[Any, Any]) -> bytes:
    """A dict as compact JSON. What JSON does not have is refused, not made into something else."""
    try:
        return _utf8(_ENCODER.encode(value), "value")
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidRecord(
            f"a dict is stored as JSON, and this one cannot be: {problem}; make its values text, "
            "numbers, lists or dicts, or encode it yourself"
        ) from None


def extra_of(key: Any, tag: Any, node: Any, headers: Any, timestamp: Any) -> Extra | None:
    """What a record carries besides its value, checked; None when nothing."""
    if key is None and tag is None and node is None and headers is None and timestamp is None:
        return None
    return (
        key_of(key),
        _text(tag, "tag", TAG_BYTES_MAX),
        _text(node, "node", NODE_BYTES_MAX),
        _headers(headers),
        timestamp_of(timestamp),
    )


def size_of(extra: Extra) -> int:
    """About how many bytes a record carries besides its value."""
    key, tag, node, headers, _ = extra
    size = len(key or b"") + len(tag or "") + len(node or "")
    return size + sum(map(len, headers)) + sum(map(len, headers.values())) if headers else size


def key_of(key: Any) -> bytes | None:
    """A key as bytes."""
    if key is None:
        return None
    if isinstance(key, str):
        key = _utf8(key, "key")
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise InvalidRecord(f"a key is bytes or text, not {type(key).__name__}")
    checked = bytes(key)
    if len(checked) > KEY_BYTES_MAX:
        raise RecordTooLarge(f"a key of {len(checked)} bytes; at most {KEY_BYTES_MAX}")
    return checked


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord(
            f"a {what} of text must be valid Unicode, not {text[:80]!r}; give it as bytes"
        ) from None


def _text(text: Any, what: str, limit: int) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRecord(f"a {what} is text, not {type(text).__name__}")
    size = len(_utf8(text, what))
    if size > limit:
        raise RecordTooLarge(f"a {what} of {size} bytes; at most {limit}")
    return text if type(text) is str else str(text)


def _headers(headers: Any) -> Mapping[str, bytes] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidRecord(f"headers are a dict of text to bytes, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX and len(headers.keys() - {ONCE, COPIED}) > HEADERS_MAX:
        raise RecordTooLarge(f"{len(headers)} headers; at most {HEADERS_MAX}")
    checked = {}
    size = 0
    for name, cell in headers.items():
        if name == ONCE:  # of the batch that it was read from
            if COPIED in headers:
                continue  # it was a copy there
            name = COPIED
        elif name == MARK_HEADER:
            name = ROUTED
        if not isinstance(name, str):
            raise InvalidRecord(f"a header's name is text, not {type(name).__name__}")
        if isinstance(cell, str):
            cell = _utf8(cell, "header")
        if not isinstance(cell, (bytes, bytearray, memoryview)):
            raise InvalidRecord(f"header {name!r} is bytes or text, not {type(cell).__name__}")
        checked[str(name)] = data = bytes(cell)
        if name != COPIED or len(data) > MARK_BYTES_MAX:  # what was stored can be copied
            size += len(_utf8(name, "header's name")) + len(data)
    if size > HEADERS_BYTES_MAX:
        raise RecordTooLarge(f"{size} bytes of headers; at most {HEADERS_BYTES_MAX} a record")
    return checked


def timestamp_of(timestamp: Any) -> int | None:
    """Microseconds since 1970 from an int or a datetime (naive ones are UTC)."""
    if timestamp is None:
        return None
    if isinstance(timestamp, datetime):
        moment = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        delta = moment - _EPOCH
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if isinstance(timestamp, bool) or not isinstance(timestamp, int):
        raise InvalidRecord(
            f"a timestamp is microseconds since 1970 or a datetime, not {type(timestamp).__name__}"
        )
    if not -(1 << 62) < timestamp < 1 << 62:
        raise InvalidRecord(f"timestamp {timestamp} is out of range; it counts microseconds")
    return timestamp


def batch_of(records: Any) -> list[Any]:
    """What `append_many` was given, as a list; a lone value is not taken for a batch of letters."""
    if isinstance(records, list):
        return records
    if isinstance(records, (str, bytes, bytearray, memoryview, Record, Mapping)) or not isinstance(
        records, Iterable
    ):
        raise InvalidRecord(
            f"append_many takes a list of records, not {type(records).__name__}; "
            "use append for one record"
        )
    return list(records)


def wait_of(wait: Any) -> bool | float:
    """How long to wait for a commit: not at all, until it is done, or so many seconds."""
    if isinstance(wait, bool):
        return wait
    if not isinstance(wait, (int, float)) or not wait >= 0:
        raise InvalidOption(f"wait={wait!r}: True, False, or a number of seconds")
    return min(float(wait), WAIT_SECONDS_MAX)


def many(records: Iterable[Any], limit: int) -> tuple[list[bytes], dict[int, Extra]]:
    """Values and extras of anything that `append_many` takes; a bad one is named by its row."""
    values: list[bytes] = []
    extras: dict[int, Extra] = {}
    try:
        for item in records:
            if isinstance(item, Record):
                extra = extra_of(item.key, item.tag, item.node, item.headers, item.timestamp)
                if extra is not None:
                    extras[len(values)] = extra
                item = item.value
            values.append(value_of(item, limit))
    except (InvalidRecord, RecordTooLarge) as problem:
        if isinstance(records, list) and len(records) == 1:
            raise  # there is no other that it could be
        raise type(problem)(f"records[{len(values)}]: {problem}") from None
    return values, extras


def checking(name: str, records: Any) -> Callable[[Store], None]:
    """Refuses records that could not be appended: a list, or Arrow. For who would make a topic."""

    def check(store: Store) -> None:
        limit = store._limit_of(name)
        if isinstance(records, list):
            many(records, limit)
        else:
            check_arrow(records, limit)

    return check


def plain_column(values: Sequence[Any], limit: int) -> Any | None:
    """An Arrow array of the values, if they are plain bytes and text; None for the careful way."""
    try:
        array = pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        return None
    if isinstance(array, pa.ChunkedArray) or array.null_count:
        return None
    try:
        check_sizes(array, limit)
    except RecordTooLarge:
        return None  # the careful way says which
    return array


def check_sizes(array: Any, limit: int, what: str = "record") -> None:
    """Refuse a column that holds a cell above the limit; free unless one could."""
    data = array.buffers()[2]
    if data is None or data.size <= limit:
        return
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest > limit and what == "record":
        raise RecordTooLarge(
            f"a record of {longest} bytes is above max_record_bytes={limit}; "
            "create the topic with a larger max_record_bytes, or split the record"
        )
    if longest > limit:
        raise RecordTooLarge(f"a {what} of {longest} bytes; at most {limit}")


# ---- Arrow -----------------------------------------------------------------------------------


def arrow_batches(data: Any) -> list[Any]:
    """Record batches of anything that speaks Arrow."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return data.to_batches()  # type: ignore[no-any-return]
    if isinstance(data, pa.ChunkedArray):
        return [batch for chunk in data.chunks for batch in arrow_batches(chunk)]
    if isinstance(data, pa.StructArray) and not data.null_count:
        return [pa.RecordBatch.from_struct_array(data)]
    if isinstance(data, pa.Array):
        return [pa.record_batch([data], names=["value"])]
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return _streamed(data)
        if hasattr(data, "__arrow_c_array__"):
            return arrow_batches(pa.array(data))
    except (pa.ArrowException, TypeError, ValueError) as problem:
        raise InvalidRecord(
            f"the Arrow data of {type(data).__name__} cannot be read: {problem}"
        ) from problem
    raise InvalidRecord(
        f"append_arrow takes a pyarrow Table, RecordBatch or Array, or anything with "
        f"__arrow_c_stream__ (polars, pandas, duckdb), not {type(data).__name__}"
    )


def check_arrow(data: Any, limit: int) -> None:
    """Refuse Arrow data that could not be appended."""
    for batch in arrow_batches(data):
        if batch.num_rows:
            arrow_columns(batch, limit, 0)


def _streamed(data: Any) -> list[Any]:
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except pa.ArrowInvalid:  # a stream of plain arrays, such as a polars Series
        return arrow_batches(pa.chunked_array(data))
    return [batch for batch in reader if batch.num_rows]


def arrow_columns(batch: Any, limit: int, now_us: int) -> Columns:
    """The columns of a record batch, cast to what is stored."""
    names = batch.schema.names
    if "value" not in names:
        raise InvalidRecord(
            f"the batch has no column 'value'; it has {', '.join(names) or 'no columns'}"
        )
    unknown = set(names) - _COLUMNS - _IGNORED
    if unknown:
        raise InvalidRecord(
            f"unknown column {sorted(unknown)[0]!r}; a batch has value and, if you like, "
            "key, tag, node, headers, timestamp"
        )

    if len(set(names)) < len(names):
        raise InvalidRecord(f"the batch has two columns of one name: {', '.join(names)}")

    def column(name: str, kind: Any, most: int = 0) -> Any:
        if name not in names:
            return None
        array = batch.column(name)
        if array.type != kind:
            array = _cast(array, name, kind)
        if name != "value" and array.null_count == len(array):
            return None
        if most:
            check_sizes(array, most, name)
        return array

    values = column("value", pa.binary())
    if values.null_count:
        raise InvalidRecord(
            f"column 'value' has {values.null_count} nulls; a record has a value, b'' at the least"
        )
    check_sizes(values, limit)
    headers = column("headers", HEADER_TYPE)
    if headers is not None:
        _check_headers(headers)
        headers = as_copies(headers)
    stamps = now_us if "timestamp" not in names else _stamps(batch.column("timestamp"), now_us)
    return Columns(
        values,
        stamps,
        column("key", pa.binary(), KEY_BYTES_MAX),
        column("tag", pa.string(), TAG_BYTES_MAX),
        column("node", pa.string(), NODE_BYTES_MAX),
        headers,
    )


def _cast(array: Any, name: str, kind: Any) -> Any:
    given = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    try:
        if kind == HEADER_TYPE or any(test(given) for test in _TEXT_OR_BYTES):
            return array.cast(kind)
        problem = "it is neither bytes nor text; encode it first"
    except (pa.ArrowException, TypeError) as told:
        problem = str(told)
    raise InvalidRecord(
        f"column {name!r} of type {array.type} cannot be stored as {kind}: {problem}"
    )


_TEXT_OR_BYTES: Final = (
    pa.types.is_null, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
    pa.types.is_fixed_size_binary, pa.types.is_string, pa.types.is_large_string,
    pa.types.is_string_view,
)  # fmt: skip


def _check_headers(headers: Any) -> None:
    most = pc.max(pc.list_value_length(headers)).as_py() or 0
    if most > HEADERS_MAX:
        raise RecordTooLarge(f"{most} headers; at most {HEADERS_MAX}")
    pairs = headers.flatten()
    if pairs.null_count or any(part.null_count for part in pairs.flatten()):
        raise InvalidRecord("column 'headers' has a null name or value; leave that header out")
    for part in pairs.flatten():
        check_sizes(part, HEADERS_BYTES_MAX, "header")


def as_copies(headers: Any) -> Any:
    """Headers in which marks are those of the batches that they were read from.

    Of batches with an idempotency key (once.py), and of routes, which go on behind their last mark:
    one that was copied, or made up, would have them leave out records or forward them again.
    """
    pairs = headers.flatten()
    names = renamed = pairs.field("key")
    for mark, copied in ((ONCE, COPIED), (MARK_HEADER, ROUTED)):
        renamed = pc.if_else(pc.equal(names, mark), copied, renamed)
    if renamed.equals(names):
        return headers
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(headers), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    flat = pa.StructArray.from_arrays(
        [renamed, pairs.field("value")], fields=list(HEADER_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(offsets, flat, type=HEADER_TYPE)


def _stamps(array: Any, now_us: int) -> Any:
    kind = array.type
    try:
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            if getattr(kind, "unit", "us") == "ns":
                array = pc.floor_temporal(array, unit="microsecond")
            array = array.cast(pa.timestamp("us", getattr(kind, "tz", None))).cast(pa.int64())
        elif pa.types.is_integer(kind) or pa.types.is_null(kind):
            array = array.cast(pa.int64())
        else:
            raise InvalidRecord(
                f"column 'timestamp' of type {kind}: Arrow timestamps, dates, or microseconds "
                "since 1970 as integers"
            )
    except pa.ArrowException as problem:
        raise InvalidRecord(f"column 'timestamp' cannot be stored: {problem}") from None
    if array.null_count == len(array):
        return now_us
    return pc.fill_null(array, now_us) if array.null_count else array


# ---- shards ----------------------------------------------------------------------------------


def check_shard(name: str, shard: Any, count: int) -> int:
    """The number of a shard that a topic has."""
    if type(shard) is not int or not 0 <= shard < count:
        raise InvalidOption(f"shard={shard!r}: topic {name!r} has shards 0..{count - 1}")
    return shard


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: which shard a key belongs to, the same in every language."""
    return _fnv1a_known(key) if len(key) <= 64 else checksum.fnv1a(key)


_fnv1a_known: Final = lru_cache(maxsize=1 << 16)(checksum.fnv1a)


def by_shard(columns: Columns, shards: int, turn: int) -> list[tuple[int, Columns]]:
    """Cut a batch by the shards of its keys; records without a key go to shard `turn`."""
    if shards == 1 or columns.keys is None:
        return [(turn % shards, columns)]
    encoded = columns.keys.dictionary_encode()
    home = [fnv1a(key) % shards for key in encoded.dictionary.to_pylist()]
    where = pa.array([*home, turn % shards], pa.int32()).take(
        pc.fill_null(encoded.indices, len(home))
    )
    parts = []
    for shard in sorted({*home, *([turn % shards] if columns.keys.null_count else [])}):
        rows = pc.indices_nonzero(pc.equal(where, pa.scalar(shard, pa.int32())))
        if len(rows):
            parts.append((shard, Columns(*(
                column if column is None or isinstance(column, int) else column.take(rows)
                for column in columns
            ))))  # fmt: skip
    return parts


# ---- bodies ----------------------------------------------------------------------------------


def encode(values: list[bytes], extras: dict[int, Any], now_us: int) -> list[Body]:
    """Bodies of good size for records collected one by one."""
    if len(values) <= cols.FEW:
        return [cols.from_lists(values, extras, now_us)]
    return split(cols.to_columns(values, extras, now_us))


def encode_arrow(columns: Columns) -> list[Body]:
    return split(columns)
