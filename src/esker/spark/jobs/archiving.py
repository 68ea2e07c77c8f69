"""`archive`: sealed segments as Parquet files, which any program can read.

The driver looks how far the archive is and how far segments are sealed, and divides what lies
between into spans of about `target_bytes`. A task reads one span, checksums verified, and writes
one file for each day in it. After each round the driver puts the new files into the manifest:
from then on they count, and before it they do not. Files that became many are merged in the same
way. Layout, manifest and what is removed when are storage/archive.py, which knows nothing of Spark.

A span that cannot be read (a damaged segment, say) ends its shard for this run and is named in the
result; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql import SparkSession

from esker.clock import SYSTEM_CLOCK
from esker.engine import ranges
from esker.engine.reader import View
from esker.errors import DataLoss, EskerError, InvalidOption, TopicNotFound
from esker.format import archive as fmt
from esker.format import names
from esker.format.archive import ArchivedFile, ArchivedGap, Manifest
from esker.records import Gap
from esker.spark import plan
from esker.spark.jobs.running import Progress, Teller, in_rounds
from esker.spark.rows import Task, _whole
from esker.spark.source import local_path
from esker.spark.wanted import wanted
from esker.storage.archive import COMPRESSIONS, SCHEMA, Archive, damage, merge, write_days
from esker.storage.catalog import load_identity
from esker.storage.files import SYSTEM_FILES, join
from esker.storage.sealed import SealedSegment

TARGET_BYTES: Final = 128 << 20
FILES_TO_CHECK: Final = 16  # by one task
DELETED: Final = "deleted before it was archived"


class Archived(msgspec.Struct, frozen=True):
    """What `archive` did, and what there is now."""

    topic: str
    archive: str
    rows: int  # of this run, as are the next four
    files: int
    bytes: int
    merged: int  # files that were put together
    gaps: list[ArchivedGap]
    ends: dict[int, int]  # where the archive of each shard ends
    total_files: int
    total_rows: int
    problems: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        there = f"{self.total_rows:,} records in {self.total_files:,} files in {self.archive}"
        if not self.rows and not self.merged and not self.gaps:
            said = f"{self.topic}: nothing to archive; {there}"
        else:
            said = (
                f"{self.topic}: archived {self.rows:,} records in {self.files:,} files "
                f"({self.bytes / 1e6:,.1f} MB), merged {self.merged:,} files, "
                f"{self.seconds:.1f} s; there are {there}"
            )
        lines = [said]
        lines += [
            f"  gap: shard {gap.shard}, offsets {gap.first} to {gap.last}: {gap.reason}"
            for gap in self.gaps
        ]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)


class _Span(msgspec.Struct, frozen=True):
    """What a task is to archive."""

    store: str
    topic: str
    id: int
    shard: int
    first: int
    end: int
    folder: str
    compression: str


class _Wrote(msgspec.Struct, frozen=True):
    """What became of a span."""

    files: list[ArchivedFile] = []
    gaps: list[ArchivedGap] = []
    deleted: int = 0  # records left out that had been deleted by tag
    problem: str = ""


class _Merge(msgspec.Struct, frozen=True):
    folder: str
    files: list[ArchivedFile]
    compression: str = "zstd"


def archive(
    spark: SparkSession, store: str, topic: str, *, archive: str | None = None,
    target_bytes: int = TARGET_BYTES, compact: bool = True, compression: str = "zstd",
    verify: bool = False, progress: Callable[[Progress], None] | None = None,
) -> Archived:  # fmt: skip
    """Write the sealed segments of a topic as Parquet files that any program can read.

        store          the store's directory
        topic          the topic
        archive        where to; the directory `archive` in the store if not given
        target_bytes   how much of the log goes into one file
        compact        merge small files of one shard and day, as they come of frequent runs
        compression    of the files: zstd, snappy or none
        verify         look at all files of the archive first: sizes and checksums

    What is archived already is left as it is. Records in the log that is being written wait until
    it is sealed; `esker.spark.table` reads both together.
    """
    if compression not in COMPRESSIONS:
        raise InvalidOption(f"compression={compression!r}: one of {', '.join(COMPRESSIONS)}")
    if target_bytes < 1:
        raise InvalidOption(f"target_bytes={target_bytes}: 1 or more")
    path = local_path(store)
    place = archive_of(path, topic, archive)
    shards = shards_of(path, topic)
    with place.held(plan.reading(path)._context.note):
        run = _Run(spark, place, place.begin(store_id(path), shards.id), compression)
        if verify:
            run.verify(Teller("archive", "files checked", progress))
        run.archive(_spans(run.manifest, path, shards, target_bytes, place, compression), progress)
        if compact:
            run.compact(target_bytes, Teller("archive", "files merged", progress))
        return run.result()


# ---- what there is ---------------------------------------------------------------------------


def archive_of(path: str, topic: str, archive: str | None) -> Archive:
    """The archive of a topic, beside its store or where it was asked for."""
    root = join(path, names.ARCHIVE) if archive is None else local_path(archive)
    return Archive(SYSTEM_FILES, root, topic)


def shards_of(path: str, topic: str) -> plan.Shards:
    """A fresh look at all shards of a topic."""
    options = {"path": path, "subscribe": topic}
    (found,) = plan.find_topics(wanted(options, now_us=0, streaming=False))
    return found


def store_id(path: str) -> str:
    """What tells a store from all others."""
    identity = load_identity(SYSTEM_FILES, path)
    assert identity is not None, "the store was opened a moment ago"
    return identity[0].hex()


def sealed_end(view: View, first: int) -> int:
    """Behind the last record that lies in a sealed segment, with no log before it."""
    end = first
    for segment in view.segments:
        if not isinstance(segment, SealedSegment):
            break
        end = max(end, min(segment.base + segment.rows, view.visible))
    return end


def _spans(
    manifest: Manifest, path: str, shards: plan.Shards, target_bytes: int, place: Archive,
    compression: str,
) -> list[_Span]:  # fmt: skip
    """What is to be archived, cut where frames begin, in the order of shards and offsets."""
    found = []
    for shard, view in shards.views.items():
        first = manifest.ends.get(shard, plan._deleted_before(view))
        for begin, end in _cut(ranges.atoms(view, first, sealed_end(view, first)), target_bytes):
            found.append(
                _Span(path, shards.topic, shards.id, shard, begin, end, place.folder, compression)
            )
    return found


def _cut(atoms: Sequence[ranges.Atom], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Atoms put together to spans of about so many bytes, all of about the same."""
    total = sum(atom.weight for atom in atoms)
    share = total / max(1, round(total / target_bytes)) if atoms else 0
    first, weight = atoms[0].first if atoms else 0, 0
    for index, atom in enumerate(atoms):
        weight += atom.weight
        if weight >= share * 0.99 or index + 1 == len(atoms):
            yield first, atom.end
            first, weight = atom.end, 0


# ---- a run -----------------------------------------------------------------------------------


class _Run:
    """One run of the job, from manifest to manifest. Holds the archive's lock throughout."""

    def __init__(
        self, spark: SparkSession, place: Archive, manifest: Manifest, compression: str
    ) -> None:
        self.spark = spark
        self.place = place
        self.manifest = manifest
        self.compression = compression
        self.rows = self.files = self.bytes = self.merged = 0
        self.gaps: list[ArchivedGap] = []
        self.problems: list[str] = []
        self._began = SYSTEM_CLOCK.monotonic()

    def archive(self, spans: list[_Span], progress: Callable[[Progress], None] | None) -> None:
        total = sum(span.end - span.first for span in spans)
        teller = Teller("archive", "offsets", progress, total)
        stuck: set[int] = set()
        left = iter(spans)
        items = [msgspec.json.encode(span) for span in spans]
        for answers in in_rounds(self.spark, items, archive_span):
            manifest = self.manifest
            for answer in answers:
                span, wrote = next(left), msgspec.json.decode(answer, type=_Wrote)
                if wrote.problem:
                    self.problems.append(wrote.problem)
                    stuck.add(span.shard)
                if span.shard in stuck:
                    continue  # what a later span wrote waits for this one: swept, done again
                manifest = manifest.with_span(
                    span.shard, span.first, span.end, wrote.files, wrote.gaps, wrote.deleted
                )
                self.rows += sum(file.rows for file in wrote.files)
                self.files += len(wrote.files)
                self.bytes += sum(file.bytes for file in wrote.files)
                self.gaps += wrote.gaps
                teller.done += span.end - span.first
            if manifest is not self.manifest:
                self.manifest = self.place.commit(manifest)
            teller.add(0)
        self.place.sweep(self.manifest)

    def compact(self, target_bytes: int, teller: Teller) -> None:
        groups = fmt.merges(self.manifest.files, target_bytes)
        teller.total = sum(map(len, groups))
        items = [
            msgspec.json.encode(_Merge(self.place.folder, group, self.compression))
            for group in groups
        ]
        left = iter(groups)
        for answers in in_rounds(self.spark, items, merge_files):
            done: list[tuple[Sequence[ArchivedFile], ArchivedFile]] = []
            for answer in answers:
                group, wrote = next(left), msgspec.json.decode(answer, type=_Wrote)
                if wrote.problem:
                    self.problems.append(wrote.problem)
                    continue
                done.append((group, wrote.files[0]))
                self.merged += len(group)
            if done:
                self.manifest = self.place.commit(self.manifest.with_merges(done))
            teller.add(sum(len(group) for group, _ in done))

    def verify(self, teller: Teller) -> None:
        files = list(self.manifest.files)
        teller.total = len(files)
        groups = [files[at : at + FILES_TO_CHECK] for at in range(0, len(files), FILES_TO_CHECK)]
        items = [msgspec.json.encode(_Merge(self.place.folder, group)) for group in groups]
        for answers in in_rounds(self.spark, items, check_files):
            for answer in answers:
                self.problems += msgspec.json.decode(answer, type=list[str])
            teller.add(min(len(answers) * FILES_TO_CHECK, teller.total - teller.done))

    def result(self) -> Archived:
        files = self.manifest.files
        return Archived(
            topic=self.place.topic, archive=self.place.root, rows=self.rows, files=self.files,
            bytes=self.bytes, merged=self.merged, gaps=self.gaps, ends=self.manifest.ends,
            total_files=len(files), total_rows=sum(file.rows for file in files),
            problems=self.problems, seconds=SYSTEM_CLOCK.monotonic() - self._began,
        )  # fmt: skip


# ---- in the workers --------------------------------------------------------------------------


def archive_span(item: bytes) -> bytes:
    """Read a span of the log and write its files."""
    asked = msgspec.json.decode(item, type=_Span)
    try:
        return msgspec.json.encode(_written(asked))
    except EskerError:
        plan.let_go()  # what this worker has open may be older than a repair: look again
    try:
        return msgspec.json.encode(_written(asked))
    except EskerError as problem:
        text = f"topic {asked.topic!r} shard {asked.shard}: {problem}"
        return msgspec.json.encode(_Wrote(problem=text))


def _written(asked: _Span) -> _Wrote:
    span = plan.Span(asked.topic, asked.id, asked.shard, asked.first, asked.end)
    gaps: list[ArchivedGap] = []
    batches = _batches(asked.store, span, gaps)
    files = write_days(SYSTEM_FILES, asked.folder, asked.shard, batches, asked.compression)
    _require_deleted(asked, gaps)
    there = sum(file.rows for file in files) + sum(gap.last - gap.first + 1 for gap in gaps)
    return _Wrote(files, gaps, span.end - span.first - there)


def _batches(path: str, span: plan.Span, gaps: list[ArchivedGap]) -> Iterator[Any]:
    task = Task(
        path, [span], columns=tuple(SCHEMA.names), on_loss="skip", value_format="binary",
        bad_value="fail", tags=None,
    )  # fmt: skip
    for item in _whole(path, span):
        if isinstance(item, Gap):
            reason = DELETED if item.reason.startswith("deleted since") else item.reason
            gaps.append(ArchivedGap(item.shard, item.first, item.last, reason))
        else:
            yield task._table(span, item, SCHEMA)


def _require_deleted(asked: _Span, gaps: list[ArchivedGap]) -> None:
    """What is called deleted was deleted: an archive must not say so of records that are there."""
    last = max((gap.last for gap in gaps if gap.reason == DELETED), default=-1)
    if last < 0:
        return
    now = shards_of(asked.store, asked.topic)
    if now.id != asked.id:
        raise TopicNotFound(f"topic {asked.topic!r} was deleted and made anew; archive it again")
    if last >= plan._deleted_before(now.views[asked.shard]):
        raise DataLoss(f"offsets up to {last} could not be read, and were not deleted; try again")


def merge_files(item: bytes) -> bytes:
    """Put files together."""
    asked = msgspec.json.decode(item, type=_Merge)
    try:
        made = merge(SYSTEM_FILES, asked.folder, asked.files, asked.compression)
    except EskerError as problem:
        return msgspec.json.encode(_Wrote(problem=str(problem)))
    return msgspec.json.encode(_Wrote([made]))


def check_files(item: bytes) -> bytes:
    """What is wrong with files."""
    asked = msgspec.json.decode(item, type=_Merge)
    found = (damage(SYSTEM_FILES, asked.folder, file) for file in asked.files)
    return msgspec.json.encode([wrong for wrong in found if wrong])
