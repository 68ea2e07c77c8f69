"""`archive`: sealed segments as Parquet files, which any program can read.

What is archived, how it is cut into spans, and how the manifest comes to name it, is
engine/archiving.py, which `topic.archive` uses as well: an archive may be continued by either of
the two. Here is what Spark adds: a task for each span, and for each group of files to merge, a
round of them at a time. After each round the driver puts the new files into the manifest.

A span that cannot be read (a damaged segment, say) ends its shard for this run and is named in the
result; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from pyspark.sql import SparkSession

from esker.engine.archiving import (
    DELETED,
    TARGET_BYTES,
    Archived,
    Run,
    Span,
    Wrote,
    check_options,
    confirm_deleted,
    spans_of,
    write_span,
)
from esker.engine.batch import Batch
from esker.errors import EskerError, TopicNotFound
from esker.format import names
from esker.format.archive import ArchivedFile
from esker.records import Gap
from esker.spark import plan
from esker.spark.jobs.running import Progress, Work, in_rounds
from esker.spark.local import Directory
from esker.spark.origin import DELETED_SINCE
from esker.spark.source import local_path
from esker.spark.wanted import wanted
from esker.storage.archive import Archive, damage, merge
from esker.storage.catalog import load_identity
from esker.storage.files import SYSTEM_FILES, join

__all__ = ["Archived", "archive", "archive_of", "shards_of", "store_id"]


class _Asked(msgspec.Struct, frozen=True):
    """What a task is to archive."""

    store: str
    topic: str
    id: int
    span: Span
    folder: str
    compression: str


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
    check_options(target_bytes, compression)
    path = local_path(store)
    place = archive_of(path, topic, archive)
    shards = shards_of(path, topic)
    workers = _Workers(spark, path, shards, place.folder, compression)
    with place.held(plan.reading(path)._context.note):
        run = Run(place, place.begin(store_id(path), shards.id), workers, progress)
        if verify:
            run.verify()
        spans: list[Span] = []
        for number, view in shards.views.items():
            spans += spans_of(run.manifest, number, view.view, target_bytes)
        run.archive(spans)
        if compact:
            run.compact(target_bytes)
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


# ---- the workers, as the driver sees them ----------------------------------------------------


class _Workers:
    """Work that is done by tasks, a round at a time."""

    def __init__(
        self, spark: SparkSession, path: str, shards: plan.Shards, folder: str, compression: str
    ) -> None:
        self._spark = spark
        self._path, self._shards = path, shards
        self._folder, self._compression = folder, compression

    def write(self, spans: list[Span]) -> Iterator[list[Wrote]]:
        topic, id = self._shards.topic, self._shards.id
        items = [
            _Asked(self._path, topic, id, span, self._folder, self._compression) for span in spans
        ]
        return self._wrote(items, archive_span)

    def merge(self, groups: list[list[ArchivedFile]]) -> Iterator[list[Wrote]]:
        return self._wrote(self._merges(groups), merge_files)

    def check(self, groups: list[list[ArchivedFile]]) -> Iterator[list[list[str]]]:
        for answers in self._told(self._merges(groups), check_files):
            yield [msgspec.json.decode(answer, type=list[str]) for answer in answers]

    def _merges(self, groups: list[list[ArchivedFile]]) -> list[_Merge]:
        return [_Merge(self._folder, group, self._compression) for group in groups]

    def _wrote(self, items: Sequence[msgspec.Struct], work: Work) -> Iterator[list[Wrote]]:
        for answers in self._told(items, work):
            yield [msgspec.json.decode(answer, type=Wrote) for answer in answers]

    def _told(self, items: Sequence[msgspec.Struct], work: Work) -> Iterator[list[bytes]]:
        return in_rounds(self._spark, [msgspec.json.encode(item) for item in items], work)


# ---- in the workers --------------------------------------------------------------------------


def archive_span(item: bytes) -> bytes:
    """Read a span of the log and write its files."""
    asked = msgspec.json.decode(item, type=_Asked)
    try:
        return msgspec.json.encode(_written(asked))
    except EskerError:
        plan.let_go()  # what this worker has open may be older than a repair: look again
    try:
        return msgspec.json.encode(_written(asked))
    except EskerError as problem:
        text = f"topic {asked.topic!r} shard {asked.span.shard}: {problem}"
        return msgspec.json.encode(Wrote(problem=text))


def _written(asked: _Asked) -> Wrote:
    span = plan.Span(asked.topic, asked.id, asked.span.shard, asked.span.first, asked.span.end)
    items = map(_named, Directory(asked.store).read(span))
    wrote = write_span(SYSTEM_FILES, asked.folder, asked.span, items, asked.compression)
    if any(gap.reason == DELETED for gap in wrote.gaps):
        now = shards_of(asked.store, asked.topic)
        if now.id != asked.id:
            raise TopicNotFound(
                f"topic {asked.topic!r} was deleted and made anew; archive it again"
            )
        confirm_deleted(wrote, now.views[asked.span.shard].view)
    return wrote


def _named(item: Batch | Gap) -> Batch | Gap:
    """The same, in the words of an archive."""
    if isinstance(item, Gap) and item.reason == DELETED_SINCE:
        return msgspec.structs.replace(item, reason=DELETED)
    return item


def merge_files(item: bytes) -> bytes:
    """Put files together."""
    asked = msgspec.json.decode(item, type=_Merge)
    try:
        made = merge(SYSTEM_FILES, asked.folder, asked.files, asked.compression)
    except EskerError as problem:
        return msgspec.json.encode(Wrote(problem=str(problem)))
    return msgspec.json.encode(Wrote([made]))


def check_files(item: bytes) -> bytes:
    """What is wrong with files."""
    asked = msgspec.json.decode(item, type=_Merge)
    found = (damage(SYSTEM_FILES, asked.folder, file) for file in asked.files)
    return msgspec.json.encode([wrong for wrong in found if wrong])
