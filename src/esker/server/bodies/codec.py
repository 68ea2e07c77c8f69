"""Records as JSON, as NDJSON and as Arrow.

JSON has no bytes. A value, a key or a header is a string where it is UTF-8, and else stands under
another name, in base64:

    {"offset": 7, "shard": 0, "timestamp": 1763424000000000, "value": "hello", "key": "user-7"}
    {"offset": 8, "shard": 0, "timestamp": 1763424000000000, "base64": "/wA="}

Whoever appends says it in the same words. A `value` that is no string (an object, a number) is
stored as its JSON text, as it came. With `values=json` a reader gets values that are JSON as JSON.

Whole columns are turned at once, by Arrow and msgspec; record by record only where a column holds
something that is no text, or where records carry headers.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from esker.engine.batch import SCHEMA, Batch
from esker.engine.intake import arrow_columns
from esker.errors import InvalidOption, InvalidRecord, RecordTooLarge, nearest
from esker.options import HEADERS_BYTES_MAX, HEADERS_MAX, SEGMENT_BYTES_MAX
from esker.records import Gap, Record
from esker.server.bodies.arrow_out import ALL, message
from esker.server.http.faults import Fault

Values = Literal["text", "json"]

_ANY: Final = msgspec.json.Decoder(Raw)
_NO_BREAKS: Final = bytes(0x20 if byte in (0x0A, 0x0D) else byte for byte in range(256))

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
BYTES: Final = "application/octet-stream"
EVENTS: Final = "text/event-stream"
CSV: Final = "text/csv"
# Headers of a stream of events: no proxy in front is to collect them, keep or change them.
AT_ONCE: Final = ("x-accel-buffering", "no")
UNBUFFERED: Final = (AT_ONCE, ("cache-control", "no-store, no-transform"))


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: str


class RecordOut(msgspec.Struct, omit_defaults=True):
    """A record, as it is read."""

    offset: int
    shard: int
    timestamp: int
    value: str | Raw | UnsetType = UNSET
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    headers: dict[str, str | Base64] | None = None
    base64: str | None = None
    key_base64: str | None = None


class TextIn(msgspec.Struct, forbid_unknown_fields=True):
    """A record to append, whose value is text: the usual case, and the fast one."""

    value: str
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    timestamp: int | None = None


class RecordIn(msgspec.Struct, forbid_unknown_fields=True):
    """A record to append."""

    value: Raw | UnsetType = UNSET
    base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    node: str | None = None
    headers: dict[str, str | Base64] | None = None
    timestamp: int | None = None


class Undecoded(RecordIn):
    """A record to append, whose headers are yet to be decoded: they may be more than fit."""

    headers: Raw | UnsetType = UNSET  # type: ignore[assignment]


# ---- reading ---------------------------------------------------------------------------------


def records_out(batch: Batch, *, values: Values = "text", headers: bool = True) -> list[RecordOut]:
    """The records of a batch as what msgspec encodes."""
    columns = batch.columns
    nothing: Any = repeat(None)
    stamps: Any = columns.timestamps
    texts, coded = texts_of(columns.values, values, UNSET)
    keys, coded_keys = texts_of(columns.keys) if columns.keys is not None else (nothing, nothing)
    cells: Any = nothing
    if headers and columns.headers is not None:
        cells = [headers_out(cell) for cell in columns.headers.to_pylist()]
    return list(
        map(
            RecordOut,
            batch.offsets.to_pylist(),
            repeat(batch.shard),
            repeat(stamps) if isinstance(stamps, int) else stamps.to_pylist(),
            texts,
            keys,
            columns.tags.to_pylist() if columns.tags is not None else nothing,
            columns.nodes.to_pylist() if columns.nodes is not None else nothing,
            cells,
            coded,
            coded_keys,
        )
    )


def texts_of(column: Any, values: Values = "text", absent: Any = None) -> tuple[Any, Any]:
    """A column of bytes as text, and in base64 what is none; `absent` stands for it then."""
    if values == "json":
        found = _as_json(column)
        if found is not None:
            return found, repeat(None)
    else:
        try:
            return column.cast(pa.string()).to_pylist(), repeat(None)
        except pa.ArrowInvalid:
            pass
    texts: list[Any] = []
    coded: list[str | None] = []
    for cell in column.to_pylist():
        text = text_of(cell, values)
        texts.append(absent if text is None else text)
        bare = cell is None or text is not None
        coded.append(None if bare else base64.b64encode(cell).decode())
    return texts, coded


def _as_json(column: Any) -> list[Raw] | None:
    """A column of values that are all JSON; None if one of them is not."""
    cells = column.to_pylist()
    try:
        column.cast(pa.string())  # Raw is not looked into, so this must be
    except pa.ArrowInvalid:
        return None
    return list(map(_unbroken, cells)) if all_json(cells) else None


def all_json(cells: Iterable[bytes]) -> bool:
    """Whether each is JSON by itself: several that are none can be as many values together."""
    try:
        for cell in cells:
            _ANY.decode(cell)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _unbroken(cell: bytes) -> Raw:
    """JSON on one line, so that it ends no line of NDJSON and no event; it has none in strings."""
    return Raw(cell.translate(_NO_BREAKS) if b"\n" in cell or b"\r" in cell else cell)


def text_of(cell: bytes | None, values: Values) -> Any:
    if cell is None:
        return None
    try:
        text = cell.decode()
    except UnicodeDecodeError:
        return None
    return _unbroken(cell) if values == "json" and all_json((cell,)) else text


def headers_out(cell: list[dict[str, Any]] | None) -> dict[str, str | Base64] | None:
    if not cell:
        return None
    return {pair["key"]: header_out(pair["value"]) for pair in cell}


def header_out(cell: bytes) -> str | Base64:
    text = text_of(cell, "text")
    return Base64(base64.b64encode(cell).decode()) if text is None else str(text)


def gap_out(gap: Gap) -> dict[str, Any]:
    """A gap as JSON has it."""
    return {
        "topic": gap.topic, "shard": gap.shard, "first": gap.first, "last": gap.last,
        "reason": gap.reason, "missed": gap.missed,
    }  # fmt: skip


def lines_out(records: Sequence[Any]) -> bytes:
    """A JSON object in each line."""
    return msgspec.json.Encoder().encode_lines(records)


def arrow_out(batches: Iterable[Batch], columns: str | None = None) -> tuple[Any, ...]:
    """Batches as one Arrow stream, with the columns of `esker.SCHEMA`, or those that are named.

    It comes in pieces, the messages that a stream writer would write: nobody has to copy them.
    """
    names = ALL if columns is None else chosen(columns)
    return (_head(names), *[piece for each in batches for piece in message(each, names)], _END)


@lru_cache(maxsize=256)
def _head(names: tuple[str, ...]) -> memoryview:
    """The message that a stream begins with."""
    return memoryview(pa.schema([SCHEMA.field(name) for name in names]).serialize())


_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # and what it ends with


def chosen(columns: str) -> tuple[str, ...]:
    """The columns that somebody names, and the offset, in the order of `esker.SCHEMA`."""
    given = {"offset", *columns.split(",")}
    for name in given - set(SCHEMA.names):
        raise InvalidOption(f"columns: there is no {name!r}; {nearest(name, SCHEMA.names)}")
    return tuple(name for name in ALL if name in given)


# ---- appending -------------------------------------------------------------------------------

_TEXTS: Final = msgspec.json.Decoder(list[TextIn])
_RECORDS: Final = msgspec.json.Decoder(list[Undecoded])
_HEADERS: Final = msgspec.json.Decoder(dict[str, str | Base64] | None)
# What headers of one record take as JSON at the most, were every byte of them escaped.
_HEADERS_TEXT: Final = 6 * HEADERS_BYTES_MAX + 32 * HEADERS_MAX


class Something(msgspec.Struct, gc=False):
    """An object of which only matters that it is one."""


SOMETHINGS: Final = msgspec.json.Decoder(list[Something])
_SOMETHING: Final = msgspec.json.Decoder(Something)
_LINE: Final = msgspec.json.Decoder(Undecoded)
_AT_BYTE: Final = re.compile(r"JSON is malformed: .*\(byte (\d{1,9})\)")


def records_in(data: bytes | Raw, limit: int) -> list[Any]:
    """A JSON array of records, as `append_many` takes them; not more than `limit` of them.

    Records that are decoded take many times the room of `{}`, so they are counted before.
    """
    if bytes(data).count(b"{") > limit:
        check_count(len(_decoded(SOMETHINGS, data)), limit)
    try:
        texts = _TEXTS.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _all_in(_decoded(_RECORDS, data))
    return texts_in(texts)


def texts_in(texts: list[TextIn]) -> list[Any]:
    """Records whose values are texts, as `append_many` takes them."""
    bare = [
        each.value
        for each in texts
        if each.key is None and each.tag is None and each.node is None and each.timestamp is None
    ]
    if len(bare) == len(texts):
        return bare
    return [
        Record(each.value.encode(), _bytes(each.key), each.tag, each.node, None, each.timestamp)
        for each in texts
    ]


def check_count(count: int, limit: int) -> None:
    """Refuse a batch of too many records."""
    if count > limit:
        raise Fault("batch_too_large", f"{count} records in one call; at most {limit}")


def lines_in(data: bytes, limit: int) -> list[Any]:
    """A record in each line; not more than `limit` of them, however they are laid out."""
    if data.count(b"{") > limit:
        check_count(len(_lines(_SOMETHING, data)), limit)
    return _all_in(_lines(_LINE, data))


def _all_in(records: list[Any]) -> list[Any]:
    """Each as `append_many` takes it; one that makes no sense is named as msgspec names it."""
    found: list[Any] = []
    try:
        found.extend(map(_record_in, records))  # one by one, so that their number tells which
    except Fault as fault:
        told = f"{fault.message.partition(' - at ')[0]} - at `$[{len(found)}]`"
        raise Fault(fault.code, told, detail=fault.detail) from None
    return found


def _lines(decoder: Any, data: bytes) -> list[Any]:
    try:
        return decoder.decode_lines(data)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        told = str(problem)
        at = _AT_BYTE.fullmatch(told)  # else the number of the record stands there
        line = f"line {data.count(10, 0, int(at[1])) + 1}: " if at else ""
        raise Fault("invalid_request", f"the body is not NDJSON of records: {line}{told}") from None


def records_of(table: Any) -> list[Any]:
    """A table as what `append_many` takes: it is one batch then, and may have a key."""
    if table.column_names == ["value"] and not table.column("value").null_count:
        return table.column("value").to_pylist()  # type: ignore[no-any-return]
    found: list[Any] = []
    for batch in table.to_batches():
        if not batch.num_rows:
            continue
        columns = arrow_columns(batch, SEGMENT_BYTES_MAX, 0)
        given = "timestamp" in batch.schema.names
        stamps = batch.column("timestamp") if given else None
        rows = Batch(0, 0, columns).records()
        if stamps is None or stamps.null_count:
            absent = repeat(True) if stamps is None else stamps.is_null().to_pylist()
            rows = [
                msgspec.structs.replace(row, timestamp=None) if none else row
                for row, none in zip(rows, absent, strict=False)
            ]
        found += rows
    return found


def _decoded(decoder: Any, data: bytes | Raw) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as problem:
        raise Fault("invalid_request", f"records: {problem}") from None
    except RecursionError:
        raise Fault("invalid_request", "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise Fault("invalid_request", "the body is not UTF-8") from None


def _record_in(given: Undecoded) -> Record:
    if (given.value is UNSET) == (given.base64 is None):
        raise Fault("invalid_record", "a record has either `value` or `base64`")
    if given.key is not None and given.key_base64 is not None:
        raise Fault("invalid_record", "a record has either `key` or `key_base64`")
    value = _value_in(bytes(given.value)) if given.base64 is None else _from64(given.base64)  # type: ignore[arg-type]
    key = _bytes(given.key) if given.key_base64 is None else _from64(given.key_base64)
    headers = None if given.headers is UNSET else _headers_in(bytes(given.headers))
    return Record(value, key, given.tag, given.node, headers, given.timestamp)


def _headers_in(raw: bytes) -> dict[str, bytes] | None:
    """Headers, which are not decoded if they are more text than a record may have."""
    if len(raw) > _HEADERS_TEXT:
        raise RecordTooLarge(f"{len(raw)} bytes of headers; at most {HEADERS_BYTES_MAX} a record")
    cells: dict[str, str | Base64] | None = _decoded(_HEADERS, raw)
    if cells is None:
        return None
    return {
        name: _from64(cell.base64) if isinstance(cell, Base64) else _utf8(cell)
        for name, cell in cells.items()
    }


def _value_in(raw: bytes) -> bytes:
    """A string is its text; anything else is the JSON that it came as."""
    try:
        if not raw.startswith(b'"'):
            raw.decode()
            return raw
        return _utf8(msgspec.json.decode(raw, type=str))
    except UnicodeDecodeError:
        raise Fault("invalid_request", "the body is not UTF-8") from None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("text must be valid Unicode; give other bytes as base64") from None


def _from64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("invalid_record", f"{text[:40]!r} is not base64") from None
