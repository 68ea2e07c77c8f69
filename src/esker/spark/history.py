"""An archive as a source: `spark.read.format("esker").load("data/archive")`, or from a URL.

What `topic.archive()` wrote, read back as the rows that the log gave: the same columns, offsets and
options. No store is needed, nor a connector of Spark's: Esker reads the Parquet files itself, each
held against its checksum, from a directory or an object store. Who wants them to be read by Spark's
own reader, and joined with what is still in the log, takes `esker.spark.table`.

    Past        a shard of an archive, where a query of a store has a view of its log

Tasks are cut where files end, because a file is verified as a whole by who opens it. What the
archive calls a gap is one; what is in no file and no gap had been deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from esker.engine.archived import ArchivedTopic, Gone, open_archive, topics_at
from esker.engine.batch import Batch
from esker.engine.epochs import RECREATED
from esker.engine.ranges import Atom
from esker.engine.reader import Range
from esker.errors import InvalidOption, OffsetOutOfRange
from esker.format import names
from esker.format.archive import ArchivedFile, Manifest
from esker.records import Gap
from esker.spark import plan
from esker.spark.wanted import Place, Wanted
from esker.storage.files import SYSTEM_FILES, join
from esker.storage.objects import is_url


def is_archive(path: str) -> bool:
    """Whether a source's path is that of an archive: any URL, or a directory that has one."""
    if is_url(path):
        return True
    return not SYSTEM_FILES.kind(join(path, names.IDENTITY)) and bool(topics_at(path))


class Past:
    """A shard of an archive, as it was when the query was planned."""

    def __init__(self, archived: ArchivedTopic, manifest: Manifest, whole: Range) -> None:
        self._archived = archived
        self._manifest = manifest
        self.whole = whole

    @property
    def _files(self) -> list[ArchivedFile]:
        return [file for file in self._manifest.files if file.shard == self.whole.shard]

    def _looked(self, look: Callable[[], int]) -> int:
        """What a look into files gives; some may be merged into others meanwhile."""
        while True:
            try:
                return look()
            except Gone as gone:
                self._manifest = self._archived._newer(self._manifest, gone)

    def offset(self, place: Place, topic: str) -> int:
        """The offset that a place means here."""
        number, first, end = self.whole
        position = place.everywhere or place.each[topic][number]
        found = self._looked(lambda: self._archived._resolve(self._manifest, self.whole, position))
        if position.kind == "time" and place.strict and found >= end and "Times" in place.option:
            raise OffsetOutOfRange(
                f"{place.option}: the archive of topic {topic!r} shard {number} has no record at "
                "or after that time"
            )
        return max(first, found)

    def atoms(self, first: int, end: int) -> list[Atom]:
        """The range [first, end), cut where files end, with about their bytes."""
        found: list[Atom] = []
        for file in sorted(self._files, key=lambda file: file.end):
            if file.end > first and file.first < end:
                found.append(Atom(first, min(file.end, end), file.raw_bytes))
                first = found[-1].end
        if first < end:
            found.append(Atom(first, end, 0))
        return found

    def find_time(self, timestamp: int) -> int:
        """The first offset whose record is at or after a time."""
        end = self.whole.end
        return self._looked(lambda: self._archived._find_time(self._files, timestamp, end))

    def last_before(self, timestamp: int, end: int) -> int:
        """An offset at and behind which every record is at or after a time."""
        ends = (file.end for file in self._files if file.min_timestamp < timestamp)
        return min(end, max(ends, default=self.whole.first))


def spans(asked: Wanted) -> list[tuple[plan.Span, Past]]:
    """What a query reads of an archive."""
    found = []
    topics = [_look(asked, name, shards) for name, shards in _names(asked).items()]
    plan.checked(asked.starting, topics)
    plan.checked(asked.ending, topics)
    for each in topics:
        for number, past in each.views.items():
            first = past.offset(asked.starting, each.topic)
            end = min(past.whole.end, past.offset(asked.ending, each.topic))
            if first < end:
                found.append((plan.Span(each.topic, each.id, number, first, end), past))
    return found


def _names(asked: Wanted) -> dict[str, tuple[int, ...]]:
    if not asked.pattern:
        return asked.topics
    matching = re.compile(asked.pattern)
    return {name: () for name in topics_at(asked.path) if matching.fullmatch(name)}


def _look(asked: Wanted, name: str, shards: tuple[int, ...]) -> Any:
    archived = open_archive(asked.path, name)
    manifest = archived._load()
    there = {whole.shard: whole for whole in archived._shards(manifest, None)}
    for shard in shards:
        if shard not in there:
            raise InvalidOption(
                f"assign: the archive of topic {name!r} has shards {sorted(there)}, not {shard}"
            )
    chosen = shards or sorted(there)
    views = {number: Past(archived, manifest, there[number]) for number in chosen}
    return plan.Shards(name, manifest.topic_id, views)  # type: ignore[arg-type]


def read(path: str, span: plan.Span) -> Iterator[Batch | Gap]:
    """All of a span: its batches, and its gaps."""
    archived = open_archive(path, span.topic)
    manifest = archived._load()
    if manifest.topic_id != span.id:
        return iter([Gap(span.topic, span.shard, span.first, span.end - 1, RECREATED)])
    return archived._whole(manifest, span.shard, span.first, span.end)
