"""Records in files that other programs read: what export writes and import reads back.

    jsonl     a JSON object on each line           .jsonl .json .ndjson
    csv       with a header; null is an empty cell, an empty text is ""         .csv
    parquet   columns as they are                  .parquet
    arrow     Arrow IPC files, columns as they are .arrow .feather

The columns are partition, offset, timestamp, key, value, headers, tag and node. Parquet and Arrow
hold bytes; text formats cannot. There, bytes are text (`string`), and what is not UTF-8 is an error
that names its offset; or `base64`, under a name that says so (value_base64), so that nobody takes
one for the other; or, for values alone, `json`: part of the line, as it is. A timestamp is text of
ISO 8601, UTC, with microseconds. Headers are pairs of key and value in all formats; CSV has them as
JSON in one cell.

All bytes go through the files of storage/files.py; pyarrow sees file objects.
"""

from __future__ import annotations

import os
from base64 import b64encode
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from esker.errors import InvalidOption, InvalidRecord, nearest
from esker.format.columns import HEADER_TYPE
from esker.storage.files import SYSTEM_FILES, File

SUFFIXES: Final = {
    "jsonl": "jsonl", "json": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet",
    "arrow": "arrow", "feather": "arrow",
}  # fmt: skip
FORMATS: Final = ("jsonl", "csv", "parquet", "arrow")
TEXT: Final = ("jsonl", "csv")  # formats that cannot hold bytes
VALUE_FORMATS: Final = ("string", "base64", "json")
MARKER: Final = "_SUCCESS"  # Spark's name: all that reads directories passes over it
STAMP: Final = pa.timestamp("us", "UTC")
COLUMNS: Final = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": STAMP,
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADER_TYPE,
    "tag": pa.string(),
    "node": pa.string(),
}
GAP: Final = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("reason", pa.string())])
ISO: Final = "%Y-%m-%dT%H:%M:%SZ"
_BYTES: Final = ("key", "value", "headers")
_GROUP_BYTES: Final = 64 << 20  # of a row group of Parquet


class Marker(msgspec.Struct):
    """What a finished export says of itself, in the file that is written last."""

    topic: str
    format: str
    value_format: str
    shards: int
    rows: int
    files: int
    ranges: dict[str, dict[str, int]]  # by shard: first and last offset read, rows written
    gaps: list[dict[str, Any]]


def format_of(path: str, given: str | None) -> str | None:
    """The format that somebody named, or that a suffix tells."""
    word = given if given is not None else os.path.splitext(path.rstrip("/"))[1].removeprefix(".")
    found = SUFFIXES.get(word.lower())
    if given is not None and found is None:
        raise InvalidOption(f"format={given}: {nearest(given, FORMATS)}")
    return found


# ---- file objects ----------------------------------------------------------------------------


class Out:
    """A new file that pyarrow writes to."""

    closed = False

    def __init__(self, path: str) -> None:
        self._file: File = SYSTEM_FILES.open(path, "create")
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view):
            self._file.write(self.size, [view])
            self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """pyarrow closes what it was given; `finish` does it."""

    def finish(self, *, sync: bool) -> None:
        try:
            if sync:
                self._file.sync()
        finally:
            self._file.close()


# ---- writing ---------------------------------------------------------------------------------


class Writer(Protocol):
    """Writes batches of records, all with the same columns."""

    def write(self, batch: Any) -> None: ...
    def close(self) -> None: ...


def writer(format: str, out: Out, names: tuple[str, ...], value_format: str) -> Writer:
    """Who writes a file of a format."""
    if format == "jsonl":
        return JsonLines(out, names, value_format)
    if format == "csv":
        return Csv(out, names, value_format)
    schema = pa.schema([(name, COLUMNS[name]) for name in names])
    return Parquet(out, schema) if format == "parquet" else Arrow(out, schema)


class Arrow:
    """An Arrow IPC file."""

    def __init__(self, out: Out, schema: Any) -> None:
        self._names = schema.names
        options = ipc.IpcWriteOptions(compression="zstd")
        self._writer = ipc.new_file(pa.PythonFile(out, "w"), schema, options=options)

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch.select(self._names))

    def close(self) -> None:
        self._writer.close()


class Parquet:
    """A Parquet file, in row groups of a good size."""

    def __init__(self, out: Out, schema: Any) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(pa.PythonFile(out, "w"), schema, compression="zstd")
        self._waiting: list[Any] = []
        self._size = 0

    def write(self, batch: Any) -> None:
        self._waiting.append(batch.select(self._schema.names))
        self._size += batch.nbytes
        if self._size >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        if len(table):
            self._writer.write_table(table, row_group_size=len(table))
        self._waiting, self._size = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class JsonLines:
    """A JSON object on each line; what is null is left out."""

    def __init__(self, out: Out, names: tuple[str, ...], value_format: str) -> None:
        self._out = out
        self._names = names
        self._value_format = value_format
        titles = [title(name, value_format) for name in names]
        self._line: Any = msgspec.defstruct(
            "Line", [(name, Any, None) for name in titles], omit_defaults=True
        )
        self._encoder = msgspec.json.Encoder()

    def write(self, batch: Any) -> None:
        columns = [self._cells(name, batch) for name in self._names]
        self._out.write(self._encoder.encode_lines(list(map(self._line, *columns))))

    def _cells(self, name: str, batch: Any) -> list[Any]:
        if name == "value" and self._value_format == "json":
            return _json_values(batch)
        return cells(name, batch, self._value_format)

    def close(self) -> None:
        pass


class Csv:
    """Text with commas. Everything but null is quoted, so that an empty text is not null."""

    def __init__(self, out: Out, names: tuple[str, ...], value_format: str) -> None:
        self._names = names
        self._value_format = value_format
        numbers = {"partition": pa.int32(), "offset": pa.int64()}
        self._schema = pa.schema(
            [(title(name, value_format), numbers.get(name, pa.string())) for name in names]
        )
        self._writer = pcsv.CSVWriter(pa.PythonFile(out, "w"), self._schema)

    def write(self, batch: Any) -> None:
        arrays = [
            self._array(name, field.type, batch)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _array(self, name: str, kind: Any, batch: Any) -> Any:
        if name == "headers":
            pairs = cells(name, batch, self._value_format)
            texts = [None if each is None else msgspec.json.encode(each).decode() for each in pairs]
            return pa.array(texts, kind)
        if name == "value" and self._value_format == "json":
            _json_values(batch)  # refuses what is none
        if name in _BYTES and self._value_format == "base64":
            return pa.array(cells(name, batch, self._value_format), kind)
        return _texts(name, batch) if name in _BYTES or name == "timestamp" else batch.column(name)

    def close(self) -> None:
        self._writer.close()


def title(name: str, value_format: str) -> str:
    """A column's name in a text format."""
    return f"{name}_base64" if value_format == "base64" and name in _BYTES else name


def cells(name: str, batch: Any, value_format: str) -> list[Any]:
    """A column as what JSON can hold."""
    if name == "headers":
        return _header_cells(batch, value_format)
    if name in _BYTES and value_format == "base64":
        return [None if cell is None else _base64(cell) for cell in batch.column(name).to_pylist()]
    if name in _BYTES or name == "timestamp":
        return _texts(name, batch).to_pylist()  # type: ignore[no-any-return]
    return batch.column(name).to_pylist()  # type: ignore[no-any-return]


def _texts(name: str, batch: Any) -> Any:
    column = batch.column(name)
    if name == "timestamp":
        return pc.strftime(column, format=ISO)
    try:
        found = column.view(pa.string())
        found.validate(full=True)
    except pa.ArrowInvalid:
        for row, cell in enumerate(column.to_pylist()):
            _text(cell, name, batch, row)
        raise
    return found


def _text(cell: bytes | None, name: str, batch: Any, row: int) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError as problem:
        raise _refused(batch, row, f"the {name}", f"is not UTF-8 ({problem.reason})") from None


def _header_cells(batch: Any, value_format: str) -> list[Any]:
    column = batch.column("headers")
    if column.null_count == len(column):
        return [None] * len(column)
    found = [pairs or None for pairs in column.to_pylist()]
    for row, pairs in enumerate(found):
        for pair in pairs or ():
            data = pair["value"]
            pair["value"] = (
                _base64(data) if value_format == "base64" else _text(data, "header", batch, row)
            )
    return found


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


_raw: Final = msgspec.json.Decoder(msgspec.Raw)


def _json_values(batch: Any) -> list[Any]:
    """Values as parts of a line: each one JSON text, without line breaks."""
    _texts("value", batch)
    found = []
    for row, value in enumerate(batch.column("value").to_pylist()):
        try:
            _raw.decode(value)
        except msgspec.DecodeError as problem:
            raise _refused(batch, row, "the value", f"is not JSON ({problem})") from None
        if b"\n" in value or b"\r" in value:
            value = msgspec.json.format(value, indent=-1)
        found.append(msgspec.Raw(value))
    return found


def _refused(batch: Any, row: int, what: str, why: str) -> InvalidRecord:
    shard, offset = batch.column("partition")[row].as_py(), batch.column("offset")[row].as_py()
    return InvalidRecord(
        f"{what} at offset {offset} of shard {shard} {why}; "
        "value_format=base64 exports any bytes, and so do Parquet and Arrow"
    )
