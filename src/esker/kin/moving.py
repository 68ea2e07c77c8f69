"""From another log into a store, and from a topic into another log.

*Import* copies in chunks. Each chunk is staged and attached as one batch of a writer named after
the source, and its number is the offset up to which the source was copied. So the store itself
knows where to go on: an import that was killed goes on there, one that was done does nothing, and
no record comes twice.

*Export* writes into a directory that is new. What a format has no place for is refused before
anything is written away silently: keys, tags, nodes and headers only with drop=True; times, where
there are none or only milliseconds, are told in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from esker.engine.batch import TIMESTAMP, Batch
from esker.engine.progress import Progress, Teller
from esker.engine.reader import Gaps
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import InvalidOption
from esker.format.checksum import fingerprint
from esker.format.columns import Columns
from esker.kin.family import Flaw, Kind, SegmentWriter, make_dirs
from esker.kin.store import KinStore
from esker.storage.files import Files

CHUNK_BYTES: Final = 64 << 20
STRETCH: Final = 4 << 20
_NAMES: Final = ("key", "tag", "node", "headers")
_CHOICES: Final = {
    "segment_bytes": (4096, 1 << 31, {"rustlog", "cursus", "comet", "topics", "aof2"}),
    "compress_above": (0, 1 << 31, {"comet"}),
}


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    topic: str
    records: int  # copied now
    known: int  # offsets that had been copied before
    gaps: int  # offsets that the source lacks
    flaws: tuple[Flaw, ...] = ()  # what is wrong with the source, a torn end for instance

    def __str__(self) -> str:
        before = f", {self.known:,} were there before" if self.known else ""
        missing = f", {self.gaps:,} are missing in the source" if self.gaps else ""
        told = f"{self.records:,} records to topic {self.topic!r}{before}{missing}"
        return "\n".join([told, *map(str, self.flaws)])


class Exported(msgspec.Struct, frozen=True):
    """What an export did, and what it could not keep."""

    kind: str
    path: str
    records: int
    files: int
    dropped: tuple[str, ...] = ()  # of timestamp, timestamp below 1 ms, key, tag, node, headers
    renumbered: bool = False  # offsets are others now, because the format counts without holes

    def __str__(self) -> str:
        lost = f"; without {', '.join(self.dropped)}" if self.dropped else ""
        other = "; with other offsets, as deleted ones are not counted" if self.renumbered else ""
        return f"{self.records:,} records to {self.files} files of {self.kind}{lost}{other}"


# ---- in --------------------------------------------------------------------------------------


def import_topic(
    source: KinStore, store: Store, topic: str, name: str, gaps: Gaps = "raise",
    progress: Callable[[Progress], None] | None = None, chunk_bytes: int = CHUNK_BYTES,
) -> Imported:  # fmt: skip
    """Copy the topic `name` of another log to a topic of a store, and go on where one stopped."""
    found = source[name]
    if topic not in store:
        store.create(topic, shards=max(found.shards, 1))
    if store[topic].shards < found.shards:
        raise InvalidOption(
            f"topic {topic!r} has {store[topic].shards} shards, the source {found.shards}"
        )
    teller = Teller(f"import {topic}", "records", progress, len(found))
    timed = "timestamp" in source._kind.carries
    records = known = missing = 0
    for shard in found._shards(None):
        mark = fingerprint(f"{source.kind} {source.path} {name} {shard}")
        writer = f"kin+{source.kind} {mark} to {topic}"
        first = found.earliest(shard)
        done = store.attached(writer)
        if done is not None and done > first:
            known += done - first
            teller.add(done - first)
            first = done
        for tables, count, end, lost in _chunks(found, shard, first, gaps, chunk_bytes, timed):
            with store.stage(topic, shard) as staged:
                for table in tables:
                    staged.append_arrow(table)
            if store.attach(writer, end, staged.tickets):
                records += count
            missing += lost
            teller.add(count)
    return Imported(topic, records, known, missing, tuple(found.flaws))


def _chunks(
    found: Any, shard: int, first: int, gaps: Gaps, chunk_bytes: int, timed: bool
) -> Iterator[tuple[list[Any], int, int, int]]:
    """What is attached at once: batches, how many records, the offset behind them, and how many
    offsets are missing among them."""
    tables: list[Any] = []
    size = count = lost = 0
    wanted: Gaps = "raise" if gaps == "raise" else "yield"
    items = found.batches(first, shard=shard, max_bytes=STRETCH, gaps=wanted)
    for item in items:
        if not isinstance(item, Batch):
            lost += item.missed
            continue
        tables.append(_table(item.columns, timed))
        size += item.nbytes
        count += len(item)
        if size >= chunk_bytes:
            yield tables, count, item.next_offset, lost
            tables, size, count, lost = [], 0, 0, 0
    if tables:
        yield tables, count, item.next_offset if isinstance(item, Batch) else item.last + 1, lost


def _table(columns: Columns, timed: bool) -> Any:
    """Columns as `append_arrow` takes them; records without a time get that of the import."""
    made: dict[str, Any] = {"value": columns.values}
    if timed:
        made["timestamp"] = columns.timestamps.view(TIMESTAMP)
    if columns.tags is not None:
        made["tag"] = columns.tags
    if columns.nodes is not None:
        made["node"] = columns.nodes
    return pa.RecordBatch.from_pydict(made)


# ---- out -------------------------------------------------------------------------------------


def export(
    topic: Topic, kind: Kind, root: str, files: Files, drop: bool = False,
    shard: int | None = None, progress: Callable[[Progress], None] | None = None, **choices: Any,
) -> Exported:  # fmt: skip
    """Write the records of a topic as another log would have."""
    _check_choices(kind, choices)
    if not topic._store._context.read_only:
        topic.flush()  # what is still buffered belongs to it
    shards = [shard] if shard is not None else list(range(topic.shards))
    if len(shards) > 1 and kind.name == "aof2":
        raise InvalidOption(
            f"AOF2 is one stream, and topic {topic.name!r} has {len(shards)} shards; "
            "export each with shard= into a directory of its own"
        )
    dropped = _check_columns(topic, kind, shards, drop)
    make_dirs(files, root)
    teller = Teller(f"export {topic.name}", "records", progress, len(topic))
    count, renumbered = 0, False
    for place, number in enumerate(shards):
        name = 0 if shard is not None else place
        writer = kind.writer(files, root, topic.name, name, shards=len(shards), **choices)
        try:
            for first, columns in _runs(topic, number):
                if writer.paths and first != writer.next and not kind.sparse:
                    first, renumbered = writer.next, True
                writer.append(columns, first)
                count += len(columns.values)
                teller.add(len(columns.values))
            renumbered |= _moved(kind, topic.earliest(number), writer)
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        teller.total = max(teller.total, count)
    return Exported(kind.name, root, count, _files_below(files, root), dropped, renumbered)


def _moved(kind: Kind, earliest: int, writer: SegmentWriter) -> bool:
    """Whether a log that counts from 0 could not begin where the topic does."""
    return kind.name in ("cursus", "aof2") and earliest > 0 and bool(writer.paths)


def _files_below(files: Files, root: str) -> int:
    count = 0
    for name in files.list(root):
        path = f"{root}/{name}"
        count += _files_below(files, path) if files.kind(path) == "dir" else 1
    return count


def _runs(topic: Topic, shard: int) -> Iterator[tuple[int, Columns]]:
    """The records of a shard; where offsets are left out, in stretches that have none."""
    for batch in topic.batches(shard=shard, max_bytes=STRETCH):
        if batch._offsets is None:
            yield batch.begin, batch.columns
            continue
        numbers = batch.offsets
        shifts = pc.subtract(numbers, pa.arange(0, len(numbers)))
        row = 0
        for run in pc.value_counts(shifts).to_pylist():
            yield numbers[row].as_py(), batch.columns.slice(row, run["counts"])
            row += run["counts"]


def _check_choices(kind: Kind, choices: dict[str, Any]) -> None:
    for name, value in choices.items():
        if name not in _CHOICES or kind.name not in _CHOICES[name][2]:
            raise InvalidOption(f"{name}: no option of an export to {kind.name}")
        least, most, _ = _CHOICES[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidOption(f"{name}={value!r}: a number from {least:,} to {most:,}")
    size = choices.get("segment_bytes", 1 << 20)
    if kind.name == "aof2" and size & (size - 1):
        raise InvalidOption(f"segment_bytes={size}: a segment of AOF2 is a power of two")


def _check_columns(topic: Topic, kind: Kind, shards: list[int], drop: bool) -> tuple[str, ...]:
    """What the format cannot carry; refused if it is more than times. Looks at all records."""
    lost, fine = set(), True
    for shard in shards:
        for batch in topic.batches(shard=shard, max_bytes=STRETCH):
            for name, column in zip(_NAMES, batch.columns[2:], strict=True):
                if column is not None and column.null_count < len(column):
                    lost.add(name)
            stamps = batch.columns.timestamps
            if fine and kind.name == "topics":
                stamps = pa.array([stamps]) if isinstance(stamps, int) else stamps
                millis = pc.multiply(pc.divide(stamps, 1000), 1000)
                fine = bool(pc.all(pc.equal(millis, stamps)).as_py())
    lost -= kind.carries
    if lost and not drop:
        names = ", ".join(sorted(lost))
        raise InvalidOption(
            f"{kind.name} has no place for {names}, which records of topic {topic.name!r} have; "
            "drop=True writes them without"
        )
    dropped: list[str] = [name for name in _NAMES if name in lost]
    if "timestamp" not in kind.carries:
        dropped.insert(0, "timestamp")
    elif not fine:
        dropped.insert(0, "timestamp below 1 ms")
    return tuple(dropped)
