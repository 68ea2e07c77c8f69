"""Files of other programs as records; the other half of portable.py. Runs in Spark's workers.

A file is read in batches, and each becomes a record batch of columns that the sink takes: value,
key, timestamp, partition, headers, tag, node. Rows that cannot be records are *bad*: they are left
out and remembered with file, line and reason, and it is the caller's to fail or to go on.

What Arrow can convert as a column it does; only where that fails are rows looked at one by one.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from esker.engine.intake import timestamp_of
from esker.errors import EskerError, InvalidOption, InvalidRecord, nearest
from esker.format.columns import HEADER_TYPE
from esker.spark.jobs.portable import STAMP, TEXT
from esker.storage.given import Given

PIECE: Final = 8 << 20  # bytes of a text file that are read at once
ROWS: Final = 16_384  # of a batch
BAD_NAMED: Final = 10  # bad rows of a file that are told one by one


class How(msgspec.Struct):
    """What a row is to become."""

    format: str
    value_from: str | None = None  # column | row; None: column if there is a column `value`
    value_format: str | None = None  # json: a value in JSON lines is JSON, even if it is a text
    key_column: str | None = None
    timestamp_column: str | None = None
    tag_column: str | None = None
    partitions: bool = True  # rows that name a partition go to it
    on_bad: str = "fail"


class Bad:
    """The bad rows of a file."""

    def __init__(self, path: str, how: How) -> None:
        self.path = path
        self.how = how
        self.count = 0
        self.named: list[str] = []

    def add(self, line: int, reason: str) -> None:
        what = "line" if self.how.format in TEXT else "row"
        text = f"{self.path} {what} {line}: {reason}"
        if self.how.on_bad == "fail":
            raise InvalidRecord(f"{text}. on_bad=skip leaves such rows out and counts them")
        self.count += 1
        if len(self.named) < BAD_NAMED:
            self.named.append(text)


def records(path: str, how: How, bad: Bad) -> Iterator[Any]:
    """The records of a file, in order."""
    source = Given(path)
    try:
        for lines, batch in _KINDS[how.format](source, how, bad):
            if batch.num_rows:
                found = _Rows(batch, lines, how, bad).records()
                if found.num_rows:
                    yield found
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise InvalidRecord(f"{path} cannot be read as {how.format}: {problem}") from None
    finally:
        source.close()


Batches = Iterator[tuple[list[int] | range, Any]]
"""Batches of a file's own columns, each with the numbers of its lines or rows."""


def _parquet(source: Given, _: How, __: Bad) -> Batches:
    row = 1
    for batch in pq.ParquetFile(pa.PythonFile(source, "r")).iter_batches(ROWS):
        yield range(row, row + batch.num_rows), batch
        row += batch.num_rows


def _arrow(source: Given, _: How, __: Bad) -> Batches:
    row = 1
    for batch in _ipc(source):
        yield range(row, row + batch.num_rows), batch
        row += batch.num_rows


def _ipc(source: Given) -> Iterator[Any]:
    magic = source.read(6)
    source.seek(0)
    if magic != b"ARROW1":
        yield from ipc.open_stream(pa.PythonFile(source, "r"))
        return
    reader = ipc.open_file(pa.PythonFile(source, "r"))
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


# ---- text ------------------------------------------------------------------------------------


def _csv(source: Given, _: How, bad: Bad) -> Batches:
    """All cells as text: a type that is guessed could change from file to file."""
    refused: list[Any] = []

    def skip(row: Any) -> str:
        refused.append(row)
        return "skip"

    if not source.size:
        return
    options = {
        "read_options": pcsv.ReadOptions(use_threads=False, block_size=PIECE),
        "parse_options": pcsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
    }
    names = pcsv.open_csv(pa.PythonFile(source, "r"), **options).schema.names
    source.seek(0)
    refused.clear()
    convert = pcsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    reader = pcsv.open_csv(pa.PythonFile(source, "r"), convert_options=convert, **options)
    row = 2  # the first is the header; a row with line breaks inside counts as one
    for batch in reader:
        skipped = sorted(each.number for each in refused)
        told = {each.number: each for each in refused}
        refused.clear()
        lines: list[int] = []
        while len(lines) < batch.num_rows:
            if skipped and skipped[0] == row:
                skipped.pop(0)
            else:
                lines.append(row)
            row += 1
        row += len(skipped)
        for number in sorted(told):
            each = told[number]
            said = f"{each.actual_columns} columns, not {each.expected_columns}"
            bad.add(number, said)
        yield lines, batch
    for each in refused:
        bad.add(each.number, f"{each.actual_columns} columns, not {each.expected_columns}")


def _json_lines(source: Given, how: How, bad: Bad) -> Batches:
    """Lines of a piece as columns of what was between the colons; types come later."""
    kept: list[dict[str, msgspec.Raw]] = []
    lines: list[int] = []
    texts: list[bytes] = []
    size = 0
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    for number, line in enumerate(_lines(source), 1):
        if not line.strip():
            continue
        try:
            kept.append(decoder.decode(line))
        except msgspec.MsgspecError as problem:
            bad.add(number, f"not a JSON object ({problem})")
            continue
        lines.append(number)
        texts.append(line.strip())
        size += len(line)
        if len(lines) == ROWS or size >= PIECE:
            yield lines, _columns(kept, texts, how)
            kept, lines, texts, size = [], [], [], 0
    yield lines, _columns(kept, texts, how)


_OURS: Final = (
    "value", "value_base64", "key", "key_base64", "timestamp", "partition", "headers",
    "headers_base64", "tag", "node",
)  # fmt: skip
LINE: Final = "\0line"  # the column of a batch that holds the whole line


def _columns(kept: list[dict[str, msgspec.Raw]], texts: list[bytes], how: How) -> Any:
    """What is null is nothing; but where values are JSON, null is one."""
    columns = {}
    chosen = (how.key_column, how.timestamp_column, how.tag_column)
    there: set[str] = set().union(*kept)
    for name in sorted(there.intersection([*_OURS, *filter(None, chosen)])):
        missing = b"" if name == "value" and how.value_format == "json" else b"null"
        cells = [bytes(each.get(name, missing)) for each in kept]
        columns[name] = pa.array([None if cell == missing else cell for cell in cells], pa.binary())
    return pa.record_batch({**columns, LINE: pa.array(texts, pa.binary())})


def _lines(source: Given) -> Iterator[bytes]:
    rest: list[bytes] = []
    while data := source.read(PIECE):
        first, *more = data.split(b"\n")
        rest.append(first)
        if more:
            yield b"".join(rest)
            yield from more[:-1]
            rest = [more[-1]]
    if any(rest):
        yield b"".join(rest)


_KINDS: Final[dict[str, Callable[[Given, How, Bad], Batches]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _json_lines,
}


# ---- a batch ---------------------------------------------------------------------------------


class _Rows:
    """One batch of a file, and what becomes of it."""

    def __init__(self, batch: Any, lines: list[int] | range, how: How, bad: Bad) -> None:
        self.batch = batch
        self.lines = lines
        self.how = how
        self.bad = bad
        self.names = [name for name in batch.schema.names if name != LINE]
        self.json = how.format == "jsonl"
        self.refused: dict[int, str] = {}  # by row

    def records(self) -> Any:
        how, of_row = self.how, self._from_row()
        columns: dict[str, Any] = {"value": self.row_values() if of_row else self.values()}
        for name, chosen, get in (
            ("key", how.key_column, self.bytes),
            ("timestamp", how.timestamp_column, self.stamps),
            ("tag", how.tag_column, self.texts),
            ("node", None, self.texts),
            ("headers", None, self.headers),
            ("partition", None, self.partitions),
        ):
            if chosen is not None and chosen not in self.names and not self.json:
                raise InvalidOption(
                    f"{self.bad.path} has no column {chosen!r}; {nearest(chosen, self.names)}"
                )
            if name == "partition" and not how.partitions:
                continue
            if chosen is not None or not of_row:
                column = get(chosen or name)
                if column is not None:
                    columns[name] = column
        return self._whole(columns)

    def _from_row(self) -> bool:
        if self.how.value_from is not None:
            return self.how.value_from == "row"
        return not {"value", "value_base64"} & set(self.names)

    def _whole(self, columns: dict[str, Any]) -> Any:
        values = columns["value"]
        if values.null_count:
            for row in pc.indices_nonzero(values.is_null()).to_pylist():
                self.refused.setdefault(row, "it has no value")
        found = pa.record_batch(columns)
        if not self.refused:
            return found
        for row in sorted(self.refused):
            self.bad.add(self.lines[row], self.refused[row])
        keep = [row not in self.refused for row in range(found.num_rows)]
        return found.filter(pa.array(keep))

    def column(self, name: str) -> Any:
        return self.batch.column(name) if name in self.names else None

    def each(self, cells: Any, make: Callable[[Any], Any], kind: Any) -> Any:
        """Cells one by one; those that cannot be made are noted."""
        made = []
        for row, cell in enumerate(cells):
            try:
                made.append(None if cell is None else make(cell))
            except (ValueError, TypeError, OverflowError, EskerError, msgspec.MsgspecError) as why:
                self.refused.setdefault(row, str(why))
                made.append(None)
        return pa.array(made, kind)

    # -- values --

    def values(self) -> Any:
        if self.json and "value" in self.names and "value_base64" not in self.names:
            found = self.column("value")
            if self.how.value_format == "json":
                return found
            told = zip(found.to_pylist(), self.plain("value"), strict=True)
            cells = [text.encode() if isinstance(text, str) else cell for cell, text in told]
            return pa.array(cells, pa.binary())  # a text is the value, all else JSON as it stands
        found = self.bytes("value")
        if found is None:
            raise InvalidOption(
                f"{self.bad.path} has no column 'value'; it has {', '.join(self.names)}. "
                "value_from=row takes whole rows"
            )
        return found

    def row_values(self) -> Any:
        if self.json:
            return self.batch.column(LINE)
        return self.each(self.batch.to_pylist(), msgspec.json.encode, pa.binary())

    # -- what goes with them --

    def plain(self, name: str) -> Any:
        """A column of the file; of JSON lines, decoded."""
        found = self.column(name)
        if found is None or not self.json:
            return found
        cells = [b"null" if cell is None else cell for cell in found.to_pylist()]
        try:
            return msgspec.json.decode(b"[" + b",".join(cells) + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return [self._decoded(row, cell) for row, cell in enumerate(cells)]

    def _decoded(self, row: int, cell: Any) -> Any:
        try:
            return msgspec.json.decode(cell)
        except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
            self.refused.setdefault(row, str(problem))
            return None

    def bytes(self, name: str) -> Any:
        """A column of bytes or text; numbers become text."""
        coded = self.plain(f"{name}_base64")
        if coded is not None:
            return self.each(_cells(coded), _unbase64, pa.binary())
        found = self.plain(name)
        if found is None:
            return None
        if isinstance(found, list):
            try:
                return pa.array(found, pa.string()).cast(pa.binary())
            except (pa.ArrowException, TypeError):
                return self.each(found, _as_text, pa.string()).cast(pa.binary())
        if pa.types.is_nested(found.type):
            raise InvalidOption(f"{self.bad.path}: column {name!r} is {found.type}, not text")
        if not _is_bytes(found.type):
            found = found.cast(pa.string())
        return found.cast(pa.binary())

    def texts(self, name: str) -> Any:
        found = self.bytes(name)
        try:
            return None if found is None else found.cast(pa.string())
        except pa.ArrowInvalid:
            return self.each(found.to_pylist(), bytes.decode, pa.string())

    def stamps(self, name: str) -> Any:
        found = self.plain(name)
        if found is None:
            return None
        if isinstance(found, list):
            try:
                return pa.array(found, pa.string()).cast(STAMP)
            except (pa.ArrowException, TypeError):
                return self.each(found, _moment, pa.int64()).cast(STAMP)
        if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
            try:
                return found.cast(STAMP)  # ISO with a zone, as export writes it
            except pa.ArrowInvalid:
                return self.each(found.to_pylist(), _moment, pa.int64()).cast(STAMP)
        if pa.types.is_integer(found.type):
            return found.cast(pa.int64()).cast(STAMP)
        if pa.types.is_timestamp(found.type) or pa.types.is_date(found.type):
            return found.cast(pa.timestamp("us", getattr(found.type, "tz", None))).cast(STAMP)
        raise InvalidOption(f"{self.bad.path}: column {name!r} of {found.type} holds no times")

    def partitions(self, name: str) -> Any:
        found = self.plain(name)
        if found is None:
            return None
        if not isinstance(found, list) and pa.types.is_integer(found.type):
            return found.cast(pa.int32())
        if isinstance(found, list):
            try:
                return pa.array(found, pa.int32())
            except (pa.ArrowException, TypeError, OverflowError):
                pass  # some is none: find it
        return self.each(_cells(found), _partition, pa.int32())

    def headers(self, name: str) -> Any:
        for title, make in ((f"{name}_base64", _unbase64), (name, str.encode)):
            found = self.plain(title)
            if found is None:
                continue
            if not isinstance(found, list) and not _is_bytes(found.type):
                return found.cast(HEADER_TYPE)

            def pairs(cell: Any, make: Callable[[str], bytes] = make) -> list[dict[str, Any]]:
                told = msgspec.json.decode(cell) if isinstance(cell, str | bytes) else cell
                if isinstance(told, dict):
                    return [{"key": key, "value": make(text)} for key, text in told.items()]
                return [{"key": each["key"], "value": make(each["value"])} for each in told]

            return self.each(_cells(found), pairs, HEADER_TYPE)
        return None


def _cells(found: Any) -> list[Any]:
    return found if isinstance(found, list) else found.to_pylist()


def _is_bytes(kind: Any) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string,
            pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary_view,
            pa.types.is_null,
        )
    )  # fmt: skip


def _as_text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool | dict | list):
        raise ValueError(f"{cell!r} is no text")
    return msgspec.json.encode(cell).decode()


def _unbase64(text: Any) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"not base64 ({problem})") from None


def _moment(cell: Any) -> int | None:
    """Microseconds: from ISO 8601 (without a zone: UTC), or as they are."""
    if isinstance(cell, str):
        if cell.lstrip("-").isdecimal():
            return int(cell)
        return timestamp_of(datetime.fromisoformat(cell))
    return timestamp_of(cell)


def _partition(cell: Any) -> int:
    number = int(cell)
    if isinstance(cell, bool | float) or not 0 <= number < 1 << 31:
        raise ValueError(f"partition {cell}")
    return number
