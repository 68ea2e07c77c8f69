"""Records on stdout, or in a file: batch by batch, in every form. Gaps are told in each of them.

    table     a line for each record, cut to the width of the terminal
    ndjson    as HTTP has it: {"offset", "shard", "timestamp", "value", …}; a gap is {"gap": {…}}
    json      {"topic", "records": […], "gaps": […]}
    csv       the same columns; what is no text stands in `base64`, `key_base64`
    raw       the values, each with a line end behind it
    arrow     an Arrow stream with the columns of `esker.SCHEMA`
    parquet   the same columns in a Parquet file
    format    a template: '{offset} {key} {value}', also {value.field} of a JSON value

Where a form has no place for a gap it is told on stderr. Whole columns are turned at once, by Arrow
and msgspec; a table and a template go record by record, for they are for people.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol

import msgspec
import pyarrow as pa

from esker.cli.failing import Usage, say
from esker.cli.shown import moment, safe
from esker.engine.batch import SCHEMA, Batch
from esker.filters.parser import Filter
from esker.format.columns import Columns
from esker.records import Gap
from esker.server.bodies.codec import RecordOut, gap_out, lines_out, records_out

RecordForm = Literal["table", "json", "ndjson", "csv", "raw", "arrow", "parquet"]
Values = Literal["text", "json"]
BINARY: Final = ("arrow", "parquet")
_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(RecordOut))
PLAIN_WIDTH: Final = 100  # of a table that goes to no terminal


class Out(Protocol):
    """Where bytes go."""

    def write(self, data: Any, /) -> Any: ...
    def flush(self) -> Any: ...


class Printer:
    """Prints batches and gaps. `close` writes what belongs behind them."""

    def __init__(self, out: Out) -> None:
        self.out = out
        self.count = 0
        self.gaps = 0

    def put(self, item: Batch | Gap) -> None:
        """One of what a reader yields."""
        if isinstance(item, Gap):
            self.gaps += 1
            self.gap(item)
        elif len(item):
            self.count += len(item)
            self.batch(item)

    def batch(self, batch: Batch) -> None:
        raise NotImplementedError

    def gap(self, gap: Gap) -> None:
        """A form without a place for it."""
        say(f"gap: {gap}")

    def close(self) -> None:
        self.out.flush()


class Lines(Printer):
    """NDJSON."""

    def __init__(self, out: Out, values: Values) -> None:
        super().__init__(out)
        self.values: Values = values

    def batch(self, batch: Batch) -> None:
        self.out.write(lines_out(records_out(batch, values=self.values)))

    def gap(self, gap: Gap) -> None:
        self.out.write(msgspec.json.encode({"gap": gap_out(gap)}) + b"\n")


class Document(Printer):
    """One JSON document, written as it comes."""

    def __init__(self, out: Out, topic: str, values: Values) -> None:
        super().__init__(out)
        self.values: Values = values
        self._told: list[dict[str, Any]] = []
        self._begun = False
        out.write(b'{"topic":' + msgspec.json.encode(topic) + b',"records":[')

    def batch(self, batch: Batch) -> None:
        text = msgspec.json.encode(records_out(batch, values=self.values))
        self.out.write((b"," if self._begun else b"") + text[1:-1])
        self._begun = True

    def gap(self, gap: Gap) -> None:
        self._told.append(gap_out(gap))

    def close(self) -> None:
        self.out.write(b'],"gaps":' + msgspec.json.encode(self._told) + b"}\n")
        super().close()


class Raw(Printer):
    """Values, one behind the other."""

    def batch(self, batch: Batch) -> None:
        self.out.write(b"\n".join([*batch.values, b""]))


class Csv(Printer):
    """Comma-separated values, with the names of JSON."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self._heading = True

    def batch(self, batch: Batch) -> None:
        from pyarrow import csv

        rows = msgspec.to_builtins(records_out(batch))
        for row in rows:
            if "headers" in row:
                row["headers"] = msgspec.json.encode(row["headers"]).decode()
        columns = {
            name: pa.array([row.get(name) for row in rows], _csv_kind(name)) for name in _FIELDS
        }
        options = csv.WriteOptions(include_header=self._heading)
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.table(columns), sink, options)
        self.out.write(sink.getvalue().to_pybytes())
        self._heading = False


def _csv_kind(name: str) -> Any:
    return pa.int64() if name in ("offset", "shard", "timestamp") else pa.string()


class Arrow(Printer):
    """An Arrow stream; a record batch for each batch."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self._sink = pa.PythonFile(_Sized(out), mode="w")
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def batch(self, batch: Batch) -> None:
        self._writer.write_batch(batch.arrow)

    def close(self) -> None:
        self._writer.close()
        self._sink.close()
        super().close()


class Parquet(Printer):
    """A Parquet file, which is complete when it is closed."""

    def __init__(self, out: Out) -> None:
        from pyarrow import parquet

        super().__init__(out)
        self._sink = pa.PythonFile(_Sized(out), mode="w")
        self._writer = parquet.ParquetWriter(self._sink, SCHEMA, compression="zstd")

    def batch(self, batch: Batch) -> None:
        self._writer.write_batch(batch.arrow)

    def close(self) -> None:
        self._writer.close()
        self._sink.close()
        super().close()


class _Sized:
    """A stream that knows how far it is: what Arrow asks of a file, and a pipe does not tell."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._out.write(data)
        self._size += size
        return size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class Table(Printer):
    """A line for each record, as wide as the terminal."""

    def __init__(self, out: Out, *, shards: bool) -> None:
        super().__init__(out)
        self._shards = shards
        self._layout: tuple[bool, bool] | None = None  # whether there are keys, and tags
        self._width = _width()

    def batch(self, batch: Batch) -> None:
        layout = (batch.columns.keys is not None, batch.columns.tags is not None)
        if layout != self._layout:
            self._layout = layout
            self._line(self._row("SHARD", "OFFSET", "TIME", "KEY", "TAG", "VALUE"))
        for each in records_out(batch):
            key = each.key if each.key_base64 is None else f"base64:{each.key_base64}"
            value = each.value if each.base64 is None else f"base64:{each.base64}"
            self._line(
                self._row(
                    str(each.shard),
                    str(each.offset),
                    moment(each.timestamp),
                    key or "",
                    each.tag or "",
                    str(value),
                )
            )

    def _row(self, shard: str, offset: str, time: str, key: str, tag: str, value: str) -> str:
        keys, tags = self._layout or (False, False)
        cells = [f"{shard:>5}"] if self._shards else []
        cells += [f"{offset:>9}", f"{time:<23}"]
        cells += [_fit(key, 14)] if keys else []
        cells += [_fit(tag, 10)] if tags else []
        return " ".join([*cells, safe(value)])

    def _line(self, text: str) -> None:
        text = text.rstrip()
        if len(text) > self._width:
            text = text[: self._width - 1] + "…"
        self.out.write(text.encode("utf-8", "replace") + b"\n")

    def gap(self, gap: Gap) -> None:
        self._line(f"-- gap: {gap}")


def _fit(text: str, width: int) -> str:
    text = safe(text)
    return f"{text:<{width}}" if len(text) <= width else text[: width - 1] + "…"


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if sys.stdout.isatty() else 1 << 30


class Template(Printer):
    """A line for each record, as the user wrote it."""

    def __init__(self, out: Out, text: str) -> None:
        super().__init__(out)
        self._parts = template(text)

    def batch(self, batch: Batch) -> None:
        lines = [self._line(each) for each in records_out(batch)]
        self.out.write("".join(lines).encode("utf-8", "surrogateescape"))

    def _line(self, record: RecordOut) -> str:
        return "".join([text + _cell(record, field) for text, field in self._parts]) + "\n"


_TEMPLATE: Final = ("offset", "shard", "timestamp", "time", "key", "tag", "node", "value")


def template(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """A template as texts, each with the field that follows it."""
    found = []
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as problem:
        raise Usage(f"--format {text!r}: {problem}") from None
    for literal, field, spec, conversion in parsed:
        if spec or conversion:
            raise Usage(f"--format {text!r}: a field is {{name}} and nothing more")
        path = tuple((field or "").split(".")) if field is not None else ()
        fits = (
            not path or (path[0] in _TEMPLATE and len(path) == 1) or path[0] in ("value", "header")
        )
        if not fits:
            raise Usage(
                f"--format {text!r}: no field {field!r}; there is {', '.join(_TEMPLATE)}, "
                "value.FIELD and header.NAME"
            )
        found.append((literal.replace("\\t", "\t").replace("\\n", "\n"), path))
    return found


def _cell(record: RecordOut, path: tuple[str, ...]) -> str:
    if not path:
        return ""
    if path[0] == "header":
        return str((record.headers or {}).get(".".join(path[1:]), ""))
    if path[0] == "time":
        return moment(record.timestamp)
    if len(path) > 1:
        return _within(record, path[1:])
    if path[0] == "value" and record.base64 is not None:
        return record.base64
    if path[0] == "key" and record.key_base64 is not None:
        return record.key_base64
    found = getattr(record, path[0])
    return "" if found is None else str(found)


def _within(record: RecordOut, path: tuple[str, ...]) -> str:
    """A field of a JSON value; nothing if it has none."""
    try:
        found = msgspec.json.decode(record.value if isinstance(record.value, str) else b"")
    except msgspec.DecodeError:
        return ""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return ""
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


# ---- which, and how many ---------------------------------------------------------------------


def printer(
    form: str, out: Out, topic: str, *, values: Values = "text", text: str | None = None,
    shards: bool = False,
) -> Printer:  # fmt: skip
    """Who prints records in this form."""
    if text is not None:
        return Template(out, text)
    if form == "table":
        return Table(out, shards=shards)
    if form == "json":
        return Document(out, topic, values)
    if form == "ndjson":
        return Lines(out, values)
    made: dict[str, Any] = {"csv": Csv, "raw": Raw, "arrow": Arrow, "parquet": Parquet}
    return made[form](out)  # type: ignore[no-any-return]


def wanted(items: Iterable[Any], where: Filter | None, limit: int | None) -> Iterable[Any]:
    """The batches without what does not match, up to so many records; gaps as they are."""
    left = limit
    if left == 0:
        return
    for item in items:
        if isinstance(item, Gap):
            yield item
            continue
        batch = matching(item, where) if where is not None else item
        if left is not None:
            batch = head(batch, left)
            left -= len(batch)
        yield batch
        if left == 0:
            return


def matching(batch: Batch, where: Filter) -> Batch:
    """The records of a batch that a filter takes."""
    keep = where.keep(batch.columns, batch.offsets, batch.shard)
    return batch if keep is None else _chosen(batch, lambda column: column.filter(keep))


def head(batch: Batch, count: int) -> Batch:
    """The first records of a batch."""
    return batch if len(batch) <= count else _chosen(batch, lambda column: column.slice(0, count))


def last(batch: Batch, count: int) -> Batch:
    """The last records of a batch."""
    skip = len(batch) - count
    return batch if skip <= 0 else _chosen(batch, lambda column: column.slice(skip))


def _chosen(batch: Batch, of: Any) -> Batch:
    columns = Columns(
        *(each if each is None or isinstance(each, int) else of(each) for each in batch.columns)
    )
    return Batch(batch.shard, batch.begin, columns, of(batch.offsets), batch.next_offset)
