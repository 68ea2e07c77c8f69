"""An archive as a source: `spark.read.format("esker").load("data/archive")`, or from a URL.

What `topic.archive()` wrote, read back as the rows that the log gave: the same columns, offsets and
options. No store is needed, nor a connector of Spark's: Esker reads the Parquet files itself, each
held against its checksum, from a directory or an object store. Who wants them to be read by Spark's
own reader, and joined with what is still in the log, takes `esker.spark.table`.

    Past        a shard of an archive, where a query of a store has a view of its log
    History     the topics of an archive

Tasks are cut where files end, because a file is verified as a whole by who opens it. What the
archive calls a gap is one; what is in no file and no gap had been deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from esker.engine.archived import ArchivedTopic, Gone, open_archive, topics_at
from esker.engine.batch import Batch
from esker.engine.epochs import RECREATED
from esker.engine.ranges import Atom
from esker.engine.reader import Range
from esker.errors import InvalidOption
from esker.format import names
from esker.format.archive import ArchivedFile, Manifest
from esker.positions import Position
from esker.records import Gap
from esker.spark.origin import Shards, Span
from esker.storage.files import SYSTEM_FILES, join
from esker.storage.objects import is_url, without_secrets


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

    @property
    def visible(self) -> int:
        return self.whole.end

    @property
    def earliest(self) -> int:
        return self.whole.first

    begin = earliest

    def resolve(self, position: Position) -> int:
        """The offset that a position means here; an archive has what it has."""
        found = self._looked(lambda: self._archived._resolve(self._manifest, self.whole, position))
        return min(max(self.whole.first, found), self.whole.end)

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

    def since(self, timestamp: int) -> int:
        """The first offset whose record is at or after a time."""
        end = self.whole.end
        return self._looked(lambda: self._archived._find_time(self._files, timestamp, end))

    def last_before(self, timestamp: int, end: int) -> int:
        """An offset at and behind which every record is at or after a time."""
        ends = (file.end for file in self._files if file.min_timestamp < timestamp)
        return min(end, max(ends, default=self.whole.first))


class History:
    """The topics of an archive."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def shown(self) -> str:
        return without_secrets(self._path) if is_url(self._path) else self._path

    def names(self) -> list[str]:
        return list(topics_at(self._path))

    def look(self, name: str, shards: tuple[int, ...]) -> Shards:
        archived = open_archive(self._path, name)
        manifest = archived._load()
        there = {whole.shard: whole for whole in archived._shards(manifest, None)}
        for shard in shards:
            if shard not in there:
                raise InvalidOption(
                    f"assign: the archive of topic {name!r} has shards {sorted(there)}, not {shard}"
                )
        chosen = shards or sorted(there)
        views = {number: Past(archived, manifest, there[number]) for number in chosen}
        return Shards(name, manifest.topic_id, views)

    def missed(self, topic: str, epoch: int, offset: int, shard: int) -> Gap:
        raise AssertionError("no stream reads an archive")

    def read(
        self, span: Span, columns: tuple[str, ...] = (), *, lenient: bool = False
    ) -> Iterator[Batch | Gap]:
        archived = open_archive(self._path, span.topic)
        manifest = archived._load()
        if manifest.topic_id != span.id:
            return iter([Gap(span.topic, span.shard, span.first, span.end - 1, RECREATED)])
        return archived._whole(manifest, span.shard, span.first, span.end)
