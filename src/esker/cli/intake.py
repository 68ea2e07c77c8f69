"""From bytes to batches: lines, NDJSON, CSV, Arrow, Parquet as what `append_arrow` takes.

Text is split where it comes in: a chunk of what could be read is one batch, and what is left of its
last line waits for the next. JSON is decoded by msgspec, columns are made by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from esker.engine.intake import arrow_columns
from esker.errors import InvalidRecord
from esker.format.columns import HEADER_TYPE, Columns
from esker.records import Record, Spans
from esker.server.bodies.codec import lines_in
from esker.server.http.faults import Fault

CHUNK: Final = 4 << 20
ROWS: Final = 1 << 16  # of a Parquet file, at once
_NAMES: Final = {"offset", "shard", "timestamp", "value", "key", "tag", "node", "headers",
                 "base64", "key_base64"}  # fmt: skip


class Made(NamedTuple):
    """What is put on every record."""

    key: bytes | None = None
    key_field: str | None = None
    tag: str | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def extras(key: str | None, key_field: str | None, tag: str | None, headers: Iterable[str]) -> Made:
    """The same, checked."""
    if key is not None and key_field is not None:
        raise InvalidRecord("--key and --key-field exclude each other: give one of them")
    pairs = []
    for each in headers:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidRecord(f"--header {each}: as in --header source=shop")
        pairs.append((name, value.encode("utf-8", "surrogateescape")))
    coded = None if key is None else key.encode("utf-8", "surrogateescape")
    return Made(coded, key_field, tag, tuple(pairs))


class Stream:
    """Bytes from a pipe: what is there, without waiting for more."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self._read = getattr(file, "read1", file.read)

    def chunks(self) -> Iterator[bytes]:
        """What could be read at once, until the end."""
        while data := self._read(CHUNK):
            yield data

    def all(self) -> bytes:
        return b"".join(self.chunks())


def batches(source: Stream, form: str, made: Made) -> Iterator[Any]:
    """What comes in, as tables."""
    if form == "raw":
        return iter([table([source.all()], made)])
    if form == "lines":
        return (table(part.split(b"\n"), made) for part in _lines(source))
    if form == "ndjson":
        return (_records(part, made) for part in _lines(source))
    if form == "csv":
        return _csv(source, made)
    return _arrow(source, made) if form == "arrow" else _parquet(source, made)


def _lines(source: Stream) -> Iterator[bytes]:
    """Whole lines, as many as came at once, without the last line end."""
    rest: list[bytes] = []
    for chunk in source.chunks():
        whole, found, after = chunk.rpartition(b"\n")
        if not found:
            rest.append(chunk)
            continue
        yield b"".join([*rest, whole])
        rest = [after] if after else []
    if rest:
        yield b"".join(rest)


# ---- columns ---------------------------------------------------------------------------------


def table(values: list[bytes], made: Made) -> Any:
    """Values and what is put on them, as a table."""
    return _dressed({"value": pa.array(values, pa.binary())}, len(values), made, values)


def _dressed(columns: dict[str, Any], count: int, made: Made, values: list[bytes]) -> Any:
    if made.key is not None:
        columns["key"] = pa.repeat(pa.scalar(made.key, pa.binary()), count)
    elif made.key_field is not None:
        columns["key"] = _keys(values, made.key_field)
    if made.tag is not None:
        columns["tag"] = pa.repeat(pa.scalar(made.tag), count)
    if made.headers:
        cell = [{"key": name, "value": value} for name, value in made.headers]
        columns["headers"] = pa.array([cell] * count, HEADER_TYPE)
    return pa.table(columns)


def _keys(values: list[bytes], field: str) -> Any:
    """A field of each JSON value, as its key. Numbers as they are written; none is no key."""
    kind = msgspec.defstruct(
        "Keyed", [("key", str | int | float | None, None)], rename={"key": field}
    )
    try:
        found = msgspec.json.decode(b"[" + b",".join(values) + b"]", type=list[kind])  # type: ignore[valid-type]
    except msgspec.MsgspecError as problem:
        raise InvalidRecord(
            f"--key-field {field}: values are to be JSON objects: {problem}"
        ) from None
    keys = [each.key for each in found]  # type: ignore[attr-defined]
    return pa.array([None if key is None else str(key).encode() for key in keys], pa.binary())


def _records(data: bytes, made: Made) -> Any:
    """Lines of NDJSON, as `read` writes and HTTP takes them; what only a reader has is left out."""
    try:
        found = lines_in(_cleaned(data), 1 << 62)
    except Fault as problem:
        raise InvalidRecord(f"{problem.message}; for lines that are values, say -i lines") from None
    rows = _of_records(found)
    columns = {name: rows.column(name) for name in rows.column_names}
    return _dressed(columns, len(found), made, [each.value for each in found])


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of NDJSON; gaps and places of a reader may stand in it, and are passed over."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    tag: str | None = None
    node: str | None = None
    headers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    timestamp: int | None = None
    gap: dict[str, Any] | None = None


_LINES: Final = msgspec.json.Decoder(_Line)


def _cleaned(data: bytes) -> bytes:
    """The same lines without what a reader has put there: offsets, shards, gaps."""
    if b'"offset"' not in data and b'"gap"' not in data and b'"shard"' not in data:
        return data
    try:
        found = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return data  # lines_in says what is wrong with it
    return msgspec.json.Encoder().encode_lines([each for each in found if each.gap is None])


def _csv(source: Stream, made: Made) -> Iterator[Any]:
    from pyarrow import csv

    kinds = {name: pa.string() for name in _NAMES - {"timestamp", "offset", "shard"}}
    kinds["timestamp"] = pa.int64()
    convert = csv.ConvertOptions(column_types=kinds, strings_can_be_null=True, null_values=[""],
                                 quoted_strings_can_be_null=False)  # fmt: skip
    try:
        reader = csv.open_csv(pa.PythonFile(source.file, mode="r"), convert_options=convert)
        for batch in reader:
            yield _from_csv(pa.Table.from_batches([batch]), made)
    except pa.ArrowInvalid as problem:
        raise InvalidRecord(f"stdin is no CSV: {problem}") from None


def _from_csv(rows: Any, made: Made) -> Any:
    """A table of text as one of records: base64 is decoded, headers are JSON."""
    import base64

    names = set(rows.column_names)
    if not names & {"value", "base64"}:
        raise InvalidRecord(
            f"a CSV of records has a column `value`; this one has {', '.join(sorted(names))}"
        )
    count = rows.num_rows
    columns: dict[str, Any] = {}
    for plain, coded in (("value", "base64"), ("key", "key_base64")):
        texts = (
            rows.column(plain).cast(pa.binary()).to_pylist() if plain in names else [None] * count
        )
        other = rows.column(coded).to_pylist() if coded in names else [None] * count
        cells = [
            text if code is None else base64.b64decode(code)
            for text, code in zip(texts, other, strict=True)
        ]
        if plain == "value":
            cells = [cell or b"" for cell in cells]
        columns[plain] = pa.array(cells, pa.binary())
    for name in ("tag", "node"):
        if name in names:
            columns[name] = rows.column(name)
    if "timestamp" in names:
        columns["timestamp"] = rows.column("timestamp").cast(pa.timestamp("us", "UTC"))
    if "headers" in names:
        columns["headers"] = pa.array(
            [_header_cells(cell) for cell in rows.column("headers").to_pylist()], HEADER_TYPE
        )
    return _dressed(columns, count, made, columns["value"].to_pylist())


def _header_cells(text: str | None) -> list[dict[str, Any]] | None:
    import base64

    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, str | dict[str, str]])
    except msgspec.MsgspecError as problem:
        raise InvalidRecord(f"headers of a CSV are a JSON object: {problem}") from None
    return [
        {"key": name, "value": cell.encode() if isinstance(cell, str)
         else base64.b64decode(cell["base64"])}
        for name, cell in found.items()
    ]  # fmt: skip


def _arrow(source: Stream, made: Made) -> Iterator[Any]:
    try:
        with pa.ipc.open_stream(pa.PythonFile(source.file, mode="r")) as reader:
            for batch in reader:
                yield _known(pa.Table.from_batches([batch]), made)
    except pa.ArrowInvalid as problem:
        raise InvalidRecord(f"stdin is no Arrow stream: {problem}") from None


def _parquet(source: Stream, made: Made) -> Iterator[Any]:
    from pyarrow import parquet

    whole = source.file
    if not (hasattr(whole, "seekable") and whole.seekable()):
        whole = pa.BufferReader(source.all())  # its directory is at its end
    else:
        whole = pa.PythonFile(whole, mode="r")
    try:
        file = parquet.ParquetFile(whole)
    except pa.ArrowInvalid as problem:
        raise InvalidRecord(f"this is no Parquet file: {problem}") from None
    for batch in file.iter_batches(ROWS):
        yield _known(pa.Table.from_batches([batch]), made)


def _known(rows: Any, made: Made) -> Any:
    """The columns that a record has; others are refused by `append_arrow`, with their names."""
    kept = [name for name in rows.column_names if name not in ("offset", "shard")]
    columns = {name: rows.column(name) for name in kept}
    values = rows.column("value").to_pylist() if made.key_field and "value" in kept else []
    return _dressed(columns, rows.num_rows, made, values) if any(made) else pa.table(columns)


# ---- appending -------------------------------------------------------------------------------


def append_all(
    topic: Any, tables: Iterable[Any], told: Callable[[int], None] | None = None
) -> tuple[list[dict[str, int]], int]:
    """Append tables as they come; where they went, and how many records that were."""
    spans: dict[int, list[list[int]]] = {}
    count = 0
    try:
        for each in tables:
            if not each.num_rows:
                continue
            made = topic.append_arrow(each)
            for span in made if isinstance(made, Spans) else (made,):
                known = spans.setdefault(span.shard, [])
                if known and sum(known[-1]) == span.first:  # nobody else came between
                    known[-1][1] += span.count
                else:
                    known.append([span.first, span.count])
            count += each.num_rows
            if told is not None:
                told(each.num_rows)
    finally:  # also when interrupted: what was taken is kept
        if count:
            topic.sync()
    return [
        {"shard": shard, "first": first, "count": many}
        for shard, known in sorted(spans.items())
        for first, many in known
    ], count


def columns_of(records: list[Record]) -> Columns:
    """Records that came one by one, as columns; for filters."""
    return arrow_columns(_of_records(records).to_batches()[0], 1 << 62, 0)


def _of_records(found: list[Any]) -> Any:
    return pa.table({
        "value": pa.array([each.value for each in found], pa.binary()),
        "key": pa.array([each.key for each in found], pa.binary()),
        "tag": pa.array([each.tag for each in found], pa.string()),
        "node": pa.array([each.node for each in found], pa.string()),
        "timestamp": pa.array([each.timestamp for each in found], pa.timestamp("us", "UTC")),
        "headers": pa.array(
            [
                [{"key": name, "value": cell} for name, cell in each.headers.items()]
                if each.headers else None
                for each in found
            ], HEADER_TYPE,
        ),
    })  # fmt: skip
