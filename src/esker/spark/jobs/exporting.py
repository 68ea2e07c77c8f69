"""`esker spark export`: a topic as a directory of files.

Each task reads offsets of its own, by whole frames, and writes one file. All are made in a
directory beside the target, synced, and the last one says that nothing is missing: `_SUCCESS`, with
counts, the range of each shard and the gaps. Then the directory gets its name. So there is either a
whole export under that name or none; one that was killed leaves a directory called
`.NAME.exporting-…`, which nobody reads and anybody may delete.

An export holds what was there when it began. Files are in order: of each shard the lower offsets
come first, in a file and from file to file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from esker.clock import SYSTEM_CLOCK
from esker.errors import EskerError, InvalidOption, StorageError, nearest
from esker.records import Gap
from esker.spark import plan
from esker.spark.jobs import portable
from esker.spark.jobs.running import (
    Progress,
    Teller,
    _done,
    _error,
    _Told,
    cores,
    in_rounds,
)
from esker.spark.origin import Seen, Span, weight
from esker.spark.rows import Task
from esker.spark.source import local_path
from esker.spark.wanted import wanted
from esker.storage.files import SYSTEM_FILES, absolute, base_name, join, parent
from esker.upkeep.report import size_text

FILE_BYTES: Final = 256 << 20  # of a topic that one file takes at most, about
_SCHEMA: Final = pa.schema([*portable.COLUMNS.items(), ("gap", portable.GAP)])
_DDL: Final = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, tag STRING, node STRING, "
    "gap STRUCT<first: BIGINT, last: BIGINT, reason: STRING>"
)


class Range(msgspec.Struct):
    """What was read of a shard, and how many records of it were written."""

    shard: int
    first: int
    last: int
    rows: int = 0


class Exported(msgspec.Struct, frozen=True):
    """What an export did."""

    topic: str
    to: str
    format: str
    rows: int
    files: int
    bytes: int
    ranges: list[Range]
    gaps: list[Gap]  # records that could not be read: they are not in the files
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"{self.topic}: {self.rows:,} records as {self.format} in {self.files} files "
            f"({size_text(self.bytes)}) in {self.to}, {self.seconds:.1f} s"
        ]
        lines += [f"  shard {r.shard}: offsets {r.first}..{r.last}, {r.rows:,} records"
                  for r in self.ranges]  # fmt: skip
        lines += [f"  missing: {gap}" for gap in self.gaps]
        return "\n".join(lines)


class _How(msgspec.Struct):
    """What each task is told."""

    store: str
    folder: str
    format: str
    columns: tuple[str, ...]
    value_format: str


class _Item(msgspec.Struct):
    """One file: what is read for it."""

    number: int
    spans: list[Span]


class _Wrote(msgspec.Struct):
    """What a task tells. No name: nothing was left to write."""

    name: str = ""
    rows: dict[int, int] = {}
    bytes: int = 0
    gaps: list[Gap] = []


def export(
    spark: SparkSession,
    store: str,
    topic: str,
    to: str,
    *,
    format: str | None = None,
    start: str | None = None,
    end: str | None = None,
    where: str | None = None,
    columns: str | None = None,
    value_format: str | None = None,
    files: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Exported:
    """Write a topic to files: JSON lines, CSV, Parquet or Arrow.

        store          the store's directory
        topic          the topic
        to             the directory to be made; its suffix is the format: orders.parquet
        format         jsonl, csv, parquet or arrow, if the suffix does not tell
        start          where to begin: earliest, 100, -100, @2026-11-15T10:00, @-15m
        end            where to end, likewise (default: latest)
        where          which records, as a condition of Spark SQL: "tag = 'eu' AND offset > 10"
        columns        which of partition,offset,timestamp,key,value,headers,tag,node
                       (default: all)
        value_format   string (default), base64 or json: how jsonl and csv hold bytes
        files          how many files, about

    The directory is there when it is whole, and not before.
    """
    path, target = local_path(store), absolute(to)
    how = _How(path, _beside(target), _format(to, format), _columns(columns), _values(value_format))
    if how.format not in portable.TEXT and value_format is not None:
        raise InvalidOption(f"value_format is for jsonl and csv: {how.format} holds bytes as is")
    if SYSTEM_FILES.kind(target):
        raise InvalidOption(f"{target} is there already: take it away, or name another directory")
    condition = _condition(spark, where)
    found, items, shards = _planned(path, topic, start, end, files)
    teller = Teller("export", "files", progress, total=len(items))
    SYSTEM_FILES.make_dir(how.folder)
    try:
        wrote = []
        for told in _written(spark, items, how, condition):
            wrote += told
            teller.add(len(told))
        done = _summed(topic, to, how, found, wrote)
        _finish(target, how, wrote, done, shards)
    except BaseException:
        _discard(how.folder)
        raise
    return msgspec.structs.replace(done, to=target, seconds=teller.seconds)


# ---- what is asked for -----------------------------------------------------------------------


def _format(to: str, given: str | None) -> str:
    found = portable.format_of(to, given)
    if found is None:
        raise InvalidOption(
            f"which format? Name it (jsonl, csv, parquet, arrow), or end {to!r} with .parquet"
        )
    return found


def _columns(given: str | None) -> tuple[str, ...]:
    if given is None:
        return tuple(portable.COLUMNS)
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for name in names:
        if name not in portable.COLUMNS:
            raise InvalidOption(f"columns: no {name!r}; {nearest(name, portable.COLUMNS)}")
    return names


def _values(given: str | None) -> str:
    if given is not None and given not in portable.VALUE_FORMATS:
        raise InvalidOption(f"value_format={given}: {nearest(given, portable.VALUE_FORMATS)}")
    return given or "string"


def _planned(
    path: str, topic: str, start: str | None, end: str | None, files: int | None
) -> tuple[list[Span], list[_Item], int]:
    """What is to be read, as a whole and by tasks; and how many shards the topic has."""
    if files is not None and files < 1:
        raise InvalidOption(f"files={files}: a number of 1 or more")
    given = {"path": path, "subscribe": topic}
    given |= {"startingOffsets": start} if start is not None else {}
    given |= {"endingOffsets": end} if end is not None else {}
    try:
        found = plan.spans(wanted(given, now_us=SYSTEM_CLOCK.now_us(), streaming=False))
        tasks = plan.divide(found, files or _parts(found))
        shards = plan.reading(path)[topic]._existing().options.shards
    finally:
        plan.let_go()
    items = [_Item(number, spans) for number, spans in enumerate(tasks)]
    return [span for span, _ in found], items, shards


def _parts(found: list[tuple[Span, Seen]]) -> int:
    """How many files, when nobody said so; 0: as few as tasks are worth it."""
    size = sum(weight(seen, span.first, span.end) for span, seen in found)
    return 0 if size <= len(plan.divide(found)) * FILE_BYTES else -(-size // FILE_BYTES)


def _condition(spark: SparkSession, where: str | None) -> str | None:
    if where is None:
        return None
    from pyspark.errors import AnalysisException, ParseException

    try:
        spark.createDataFrame([], _DDL).where(where).schema  # noqa: B018  # resolves the names
    except (AnalysisException, ParseException) as problem:
        text = str(problem).split("\n")[0]
        raise InvalidOption(
            f"where={where!r}: {text}. Columns: {', '.join(portable.COLUMNS)}"
        ) from None
    return f"gap IS NOT NULL OR ({where})"


# ---- in the workers --------------------------------------------------------------------------


def _written(
    spark: SparkSession, items: list[_Item], how: _How, condition: str | None
) -> Iterator[list[_Wrote]]:
    """What the tasks of each round wrote."""
    if condition is None:

        def work(item: bytes) -> bytes:
            one = msgspec.json.decode(item, type=_Item)
            return msgspec.json.encode(_write(how, one.number, _read(how, one)))

        for answers in in_rounds(spark, [msgspec.json.encode(each) for each in items], work):
            yield [msgspec.json.decode(answer, type=_Wrote) for answer in answers]
        return
    size = 4 * cores(spark)
    for first in range(0, len(items), size):
        yield _filtered(spark, items[first : first + size], how, condition)


def _filtered(spark: SparkSession, items: list[_Item], how: _How, condition: str) -> list[_Wrote]:
    """One round: read in Python, choose in Spark, write in Python, each task for itself."""
    coded = [msgspec.json.encode(item) for item in items]

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield from _read(how, msgspec.json.decode(coded[number], type=_Item))
                except EskerError as problem:  # travels to the writer, which tells it
                    yield _failed(problem)

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = msgspec.json.decode(coded[context.partitionId()], type=_Item).number
        done = _done(b"", lambda _: msgspec.json.encode(_write(how, number, batches)))
        told = msgspec.json.encode(done)
        yield pa.RecordBatch.from_arrays(
            [pa.array([number]), pa.array([told], pa.binary())], ["number", "told"]
        )

    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(read, _DDL).where(condition)
    rows = sorted(frame.mapInArrow(write, "number BIGINT, told BINARY").collect())
    told = [msgspec.json.decode(bytes(row["told"]), type=_Told) for row in rows]
    for each in told:
        if each.code:
            raise _error(each)
    return [msgspec.json.decode(each.answer, type=_Wrote) for each in told]


_FAILED: Final = -1  # where the gap begins that is an error on its way


def _failed(problem: EskerError) -> Any:
    """An error as a row: a gap passes every condition."""
    told = _Told(code=problem.code, message=str(problem))
    gap = {"first": _FAILED, "last": _FAILED, "reason": msgspec.json.encode(told).decode()}
    return pa.RecordBatch.from_pylist([{"gap": gap}], schema=_SCHEMA)


def _read(how: _How, item: _Item) -> Iterator[Any]:
    task = Task(
        how.store, item.spans, columns=tuple(_SCHEMA.names), on_loss="gapRow",
        value_format="binary", bad_value="fail", tags=None,
    )  # fmt: skip
    return task.rows(_SCHEMA)


def _write(how: _How, number: int, batches: Iterator[Any]) -> _Wrote:
    """Write one file. A task that is tried again writes another, and only one of them counts."""
    done = _Wrote()
    out: portable.Out | None = None
    try:
        for batch in batches:
            records = _records(batch, done)
            if not len(records):
                continue
            if out is None:
                done.name = f"{number:05d}-{SYSTEM_FILES.random(8).hex()}"
                out = portable.Out(join(how.folder, done.name))
                writer = portable.writer(how.format, out, how.columns, how.value_format)
            writer.write(records)
            for count in records.column("partition").value_counts().to_pylist():
                shard = count["values"]
                done.rows[shard] = done.rows.get(shard, 0) + count["counts"]
        if out is not None:
            writer.close()
            out.finish(sync=True)
            done.bytes = out.size
    except BaseException:
        if out is not None:
            out.finish(sync=False)
        raise
    return done


def _records(batch: Any, done: _Wrote) -> Any:
    """The records of a batch, with our types; gaps are noted."""
    gaps = batch.column("gap")
    if gaps.null_count < len(gaps):
        there = gaps.is_valid()
        for shard, gap in zip(
            batch.column("partition").filter(there).to_pylist(),
            gaps.filter(there).to_pylist(),
            strict=True,
        ):
            if gap["first"] == _FAILED:
                raise _error(msgspec.json.decode(gap["reason"], type=_Told))
            done.gaps.append(Gap("", shard, gap["first"], gap["last"], gap["reason"]))
        batch = batch.filter(gaps.is_null())
    arrays = [
        column if (column := batch.column(name)).type == kind else column.cast(kind)
        for name, kind in portable.COLUMNS.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(portable.COLUMNS))


# ---- the directory ---------------------------------------------------------------------------


def _beside(target: str) -> str:
    name = f".{base_name(target)}.exporting-{SYSTEM_FILES.random(4).hex()}"
    return join(parent(target), name)


def _summed(topic: str, to: str, how: _How, spans: list[Span], wrote: list[_Wrote]) -> Exported:
    found = {span.shard: Range(span.shard, span.first, span.end - 1) for span in spans}
    for each in wrote:
        for shard, count in each.rows.items():
            found[shard].rows += count
    return Exported(
        topic=topic, to=to, format=how.format, rows=sum(each.rows for each in found.values()),
        files=sum(1 for each in wrote if each.name), bytes=sum(each.bytes for each in wrote),
        ranges=list(found.values()),
        gaps=[Gap(topic, g.shard, g.first, g.last, g.reason) for each in wrote for g in each.gaps],
        seconds=0.0,
    )  # fmt: skip


def _finish(target: str, how: _How, wrote: list[_Wrote], done: Exported, shards: int) -> None:
    """Give the files their names, write the marker, and give the directory its own."""
    files, folder = SYSTEM_FILES, how.folder
    named = [each.name for each in wrote if each.name]
    for name in set(files.list(folder)) - set(named):
        files.unlink(join(folder, name))  # of a task that was tried again
    for number, name in enumerate(named):
        files.rename(join(folder, name), join(folder, f"part-{number:05d}.{how.format}"))
    marker = portable.Marker(
        topic=done.topic, format=how.format, value_format=how.value_format, shards=shards,
        rows=done.rows, files=done.files,
        ranges={str(r.shard): {"first": r.first, "last": r.last, "rows": r.rows}
                for r in done.ranges},
        gaps=[msgspec.structs.asdict(gap) for gap in done.gaps],
    )  # fmt: skip
    out = portable.Out(join(folder, portable.MARKER))
    out.write(msgspec.json.format(msgspec.json.encode(marker), indent=2))
    out.finish(sync=True)
    files.sync_dir(folder)
    if files.kind(target):
        raise InvalidOption(f"{target} was made by somebody else meanwhile; name another directory")
    files.rename(folder, target)
    files.sync_dir(parent(target))


def _discard(folder: str) -> None:
    """Take away what was made; a task that still runs may leave something."""
    with suppress(StorageError):
        for name in SYSTEM_FILES.list(folder):
            SYSTEM_FILES.unlink(join(folder, name))
        SYSTEM_FILES.remove_dir(folder)
