"""What users hand in, made into what the log stores. Bad input is refused here, before any effect.

Python objects become bytes and text record by record, because that is the API's edge; Arrow data
is only cast and checked with Arrow's own kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import InvalidRecord, RecordTooLarge
from esker.format.columns import HEADER_TYPE, Columns, Extra
from esker.options import HEADERS_MAX, KEY_BYTES_MAX, NODE_BYTES_MAX, TAG_BYTES_MAX
from esker.records import Record

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = {"value", "key", "tag", "node", "headers", "timestamp"}
_IGNORED: Final = {"offset", "shard", "partition", "topic"}


def value_of(value: Any, limit: int) -> bytes:
    """A value as bytes."""
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    elif not isinstance(value, bytes):
        raise InvalidRecord(
            f"a value is bytes or text, not {type(value).__name__}; encode it first "
            "(json.dumps(...).encode(), msgspec.json.encode(...))"
        )
    if len(value) > limit:
        raise RecordTooLarge(
            f"a record of {len(value)} bytes is above max_record_bytes={limit}; "
            "create the topic with a larger max_record_bytes, or split the record"
        )
    return value if type(value) is bytes else bytes(value)


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


def key_of(key: Any) -> bytes | None:
    if key is None:
        return None
    if isinstance(key, str):
        key = key.encode()
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise InvalidRecord(f"a key is bytes or text, not {type(key).__name__}")
    if len(key) > KEY_BYTES_MAX:
        raise RecordTooLarge(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX}")
    return bytes(key)


def _text(text: Any, what: str, limit: int) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRecord(f"a {what} is text, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRecord(f"a {what} must be valid Unicode: {text!r}") from None
    if size > limit:
        raise RecordTooLarge(f"a {what} of {size} bytes; at most {limit}")
    return text


def _headers(headers: Any) -> Mapping[str, bytes] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidRecord(f"headers are a dict of text to bytes, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise RecordTooLarge(f"{len(headers)} headers; at most {HEADERS_MAX}")
    checked = {}
    for name, cell in headers.items():
        if not isinstance(name, str):
            raise InvalidRecord(f"a header's name is text, not {type(name).__name__}")
        if isinstance(cell, str):
            cell = cell.encode()
        if not isinstance(cell, (bytes, bytearray, memoryview)):
            raise InvalidRecord(
                f"header {name!r} is bytes or text, not {type(cell).__name__}"
            )
        checked[name] = bytes(cell)
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


def many(records: Iterable[Any], limit: int) -> tuple[list[bytes], dict[int, Extra]]:
    """Values and extras of anything that `append_many` takes."""
    values: list[bytes] = []
    extras: dict[int, Extra] = {}
    for item in records:
        if isinstance(item, Record):
            extra = extra_of(item.key, item.tag, item.node, item.headers, item.timestamp)
            if extra is not None:
                extras[len(values)] = extra
            item = item.value
        values.append(value_of(item, limit))
    return values, extras


def plain_column(values: Sequence[Any], limit: int) -> Any | None:
    """An Arrow array of the values, if they are plain bytes and text; None for the careful way."""
    try:
        array = pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        return None
    if isinstance(array, pa.ChunkedArray) or array.null_count:
        return None
    check_sizes(array, limit)
    return array


def check_sizes(array: Any, limit: int) -> None:
    """Refuse a column that holds a value above the limit; free unless one could."""
    if array.nbytes <= limit:
        return
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest > limit:
        raise RecordTooLarge(
            f"a record of {longest} bytes is above max_record_bytes={limit}; "
            "create the topic with a larger max_record_bytes, or split the record"
        )


# ---- Arrow -----------------------------------------------------------------------------------


def arrow_batches(data: Any) -> list[Any]:
    """Record batches of anything that speaks Arrow."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return data.to_batches()  # type: ignore[no-any-return]
    if isinstance(data, pa.ChunkedArray):
        return [batch for chunk in data.chunks for batch in arrow_batches(chunk)]
    if isinstance(data, pa.Array):
        return [pa.record_batch([data], names=["value"])]
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all().to_batches()  # type: ignore[no-any-return]
    if hasattr(data, "__arrow_c_array__"):
        return [pa.record_batch(data)]
    raise InvalidRecord(
        f"append_arrow takes a pyarrow Table, RecordBatch or Array, or anything with "
        f"__arrow_c_stream__ (polars, pandas, duckdb), not {type(data).__name__}"
    )


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

    def column(name: str, kind: Any) -> Any:
        if name not in names:
            return None
        array = batch.column(name)
        if array.type != kind:
            try:
                array = array.cast(kind)
            except (pa.ArrowException, TypeError) as problem:
                raise InvalidRecord(
                    f"column {name!r} of type {array.type} cannot be stored as {kind}: {problem}"
                ) from None
        return None if array.null_count == len(array) and name != "value" else array

    values = column("value", pa.binary())
    if values.null_count:
        raise InvalidRecord(
            f"column 'value' has {values.null_count} nulls; a record has a value, b'' at the least"
        )
    check_sizes(values, limit)
    stamps = now_us if "timestamp" not in names else _stamps(batch.column("timestamp"), now_us)
    return Columns(
        values,
        stamps,
        column("key", pa.binary()),
        column("tag", pa.string()),
        column("node", pa.string()),
        column("headers", HEADER_TYPE),
    )


def _stamps(array: Any, now_us: int) -> Any:
    try:
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
        else:
            array = array.cast(pa.int64())
    except (pa.ArrowException, TypeError) as problem:
        raise InvalidRecord(f"column 'timestamp' cannot be stored: {problem}") from None
    if array.null_count == len(array):
        return now_us
    return pc.fill_null(array, now_us) if array.null_count else array


# ---- shards ----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits: which shard a key belongs to, the same in every language."""
    value = 0x811C9DC5
    for byte in key:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


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
