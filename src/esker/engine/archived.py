"""Reading an archive: the same records, with the same offsets, as the topic had.

A shard's records lie in files by the day, so that files of different days may interleave. They are
put in order again by whole pieces. Each file that has come into reach is read on piece by piece;
the piece that ends first says how far all of them are complete:

    file of one day      10 11 12    15 16 |        its piece ends at 16
    file of the next        .  . 13 14  .  | 17 18  its piece goes on: up to here it is known
                         -----------------
                         10 11 12 13 14 15 16       one batch

What the manifest calls a gap comes as a Gap. Offsets that are in no file and no gap had been
deleted by tag, and are passed over as they are in a log.

Nothing is held open between two calls. A file is verified as a whole when it is opened and stays
readable from then on. Should it be gone by then, because somebody merged it with others, what
the manifest now names instead is read from there on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker import positions
from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine.archiving import place_of
from esker.engine.batch import Batch
from esker.engine.reader import (
    BATCH_BYTES,
    Gaps,
    Range,
    _pieces,
    check_count,
    check_gaps,
)
from esker.engine.reading import Still
from esker.errors import DataGap, EskerError, InvalidOption, NotAStore, TopicNotFound, nearest
from esker.format import names
from esker.format.archive import ArchivedFile, ArchivedGap, Manifest
from esker.format.columns import Columns
from esker.options import topic_name
from esker.positions import EARLIEST, LATEST, Position
from esker.records import Gap
from esker.storage import archive as storage
from esker.storage.archive import Archive, damaged, open_parquet
from esker.storage.files import SYSTEM_FILES, Files, join

PIECE_BYTES: Final = 4 << 20  # of a file, in memory at a time
_ALL: Final = storage.SCHEMA.names
_INT64: Final = pa.int64()


def open_archive(
    path: object, topic: str, *, files: Files = SYSTEM_FILES, clock: Clock = SYSTEM_CLOCK
) -> ArchivedTopic:
    """The archive of a topic, to be read. `files` and `clock` are for tests."""
    topic_name(topic)
    files, root = place_of(path, "", files)
    if not root:
        raise InvalidOption("which archive? Give its directory, as in data/archive, or its URL")
    found = ArchivedTopic(Archive(files, root, topic), files, clock)
    found._load()
    return found


class ArchivedTopic(Still):
    """The archive of a topic. Get one with `esker.open_archive(path, topic)`; it needs no closing.

    Every call looks at the archive as it is then.
    """

    def __init__(self, place: Archive, files: Files, clock: Clock) -> None:
        self.name = place.topic
        self.path = place.root
        self._place = place
        self._files = files
        self._clock = clock

    def __repr__(self) -> str:
        return f"<esker archive of topic {self.name!r} in {self.path}>"

    def __bool__(self) -> bool:
        return True  # also while it is empty

    def _load(self) -> Manifest:
        manifest = self._place.load()
        if manifest is None:
            raise _nothing(self._files, self.path, self.name)
        return manifest

    # ---- what there is --------------------------------------------------------------------

    @property
    def ends(self) -> dict[int, int]:
        """Where the archive of each shard ends; a shard of which it has nothing is left out."""
        return self._load().ends

    @property
    def gaps(self) -> list[Gap]:
        """Offsets that the log lacked when they were to be archived."""
        return [_told(self.name, gap) for gap in self._load().gaps]

    def earliest(self, shard: int = 0) -> int:
        """The first offset that is archived."""
        return self._shards(self._load(), shard)[0].first

    def end(self, shard: int = 0) -> int:
        """The offset behind the last one that is archived."""
        return self._shards(self._load(), shard)[0].end

    def __len__(self) -> int:
        """How many records are archived, over all shards."""
        return sum(file.rows for file in self._load().files)

    def _shards(self, manifest: Manifest, shard: int | None) -> list[Range]:
        known = [Range(each.shard, each.first, each.end) for each in manifest.shards]
        if shard is None:
            return known
        if isinstance(shard, bool) or not isinstance(shard, int) or shard < 0:
            raise InvalidOption(f"shard={shard}: the number of a shard")
        return [each for each in known if each.shard == shard] or [Range(shard, 0, 0)]

    # ---- reading --------------------------------------------------------------------------

    def batches(
        self, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        max_bytes: int = BATCH_BYTES, max_records: int = 0, gaps: Gaps = "raise",
    ) -> Iterator[Batch]:  # fmt: skip
        """The records from `start` to `stop` (or to the end), as Arrow batches.

        As `Topic.batches`: each shard in turn, a position is taken in each shard by itself.
        """
        now = self._clock.now_us()
        begin = positions.parse(start, now)
        finish = None if stop is None else positions.parse(stop, now)
        check_gaps(gaps)
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        manifest = self._load()
        while True:
            try:
                ranges = [
                    self._range(manifest, whole, begin, finish)
                    for whole in self._shards(manifest, shard)
                ]
                return self._batches(manifest, ranges, max_bytes, max_records, gaps)
            except Gone as gone:
                manifest = self._newer(manifest, gone)

    def _range(
        self, manifest: Manifest, whole: Range, begin: Position, finish: Position | None
    ) -> Range:
        number, first, end = whole
        if finish is not None:
            end = min(end, self._resolve(manifest, whole, finish))
        return Range(number, max(first, self._resolve(manifest, whole, begin)), end)

    def _batches(
        self, manifest: Manifest, ranges: list[Range], max_bytes: int, max_records: int, gaps: Gaps
    ) -> Iterator[Any]:
        for number, first, end in ranges:
            for item in self._whole(manifest, number, first, end):
                if isinstance(item, Batch):
                    yield from _cut(item, max_bytes, max_records)
                elif gaps == "raise":
                    raise DataGap(item)
                elif gaps == "yield":
                    yield item

    def _whole(self, manifest: Manifest, shard: int, first: int, end: int) -> Iterator[Batch | Gap]:
        """Offsets [first, end) of a shard; what lies in neither batch nor gap was deleted."""
        while first < end:
            try:
                for item in self._merged(manifest, shard, first, end):
                    yield item
                    first = item.next_offset if isinstance(item, Batch) else item.last + 1
                return
            except Gone as gone:
                manifest = self._newer(manifest, gone)

    def _newer(self, manifest: Manifest, gone: Gone) -> Manifest:
        """The manifest that names another file, into which a file was merged while we read."""
        again = self._load()
        if again.generation == manifest.generation:
            raise damaged(self._place.folder, gone.file, "is missing") from None
        return again

    def _merged(self, manifest: Manifest, shard: int, at: int, end: int) -> Iterator[Batch | Gap]:
        files = [file for file in manifest.files if file.shard == shard and file.end > at]
        waiting = deque(sorted(files, key=lambda file: file.first))
        gaps = deque(gap for gap in manifest.gaps if gap.shard == shard and gap.last >= at)
        sources: list[_Source] = []
        while at < end:
            while waiting and waiting[0].first <= at:
                sources.append(self._source(waiting.popleft(), at))
            sources = [source for source in sources if source.reach(at)]
            limit = min([end, *(source.end for source in sources)])
            if waiting:
                limit = min(limit, waiting[0].first)
            rows = _in_order([source.take(limit) for source in sources])
            yield from self._between(shard, at, limit, rows, gaps)
            at = limit

    def _between(
        self, shard: int, at: int, limit: int, rows: Any, gaps: deque[ArchivedGap]
    ) -> Iterator[Batch | Gap]:
        """The records of [at, limit), and its gaps in their places. No gap reaches over its end,
        but where the reader's own range ends."""
        while gaps and gaps[0].first < limit:
            gap = gaps.popleft()
            begin, behind = max(at, gap.first), min(gap.last + 1, limit)
            if rows is not None:
                row = _row_of(rows, begin)
                yield from _batch(shard, at, begin, rows.slice(0, row))
                rows = rows.slice(row)
            yield Gap(self.name, shard, begin, behind - 1, gap.reason)
            at = behind
        if rows is not None:
            yield from _batch(shard, at, limit, rows)

    # ---- files ----------------------------------------------------------------------------

    def _source(
        self, file: ArchivedFile, first: int, columns: Sequence[str] = tuple(_ALL)
    ) -> _Source:
        return _Source(self._files, self._place.folder, file, first, columns)

    def _resolve(self, manifest: Manifest, whole: Range, position: Position) -> int:
        """The offset that a position means for a shard."""
        match position.kind:
            case "offset":
                return position.number
            case kind if kind == EARLIEST:
                return whole.first
            case kind if kind == LATEST:
                return whole.end
        files = [file for file in manifest.files if file.shard == whole.shard]
        if position.kind == "time":
            return self._find_time(files, position.number, whole.end)
        return self._find_back(files, position.number, whole)

    def _find_time(self, files: list[ArchivedFile], timestamp: int, end: int) -> int:
        """The first offset whose record is at or after a time."""
        for file in sorted(files, key=lambda file: file.first):
            if file.first >= end or file.max_timestamp < timestamp:
                continue
            for batch in self._columns(file, ("offset", "timestamp")):
                late = pc.greater_equal(batch.column(1).view(_INT64), timestamp)
                row = pc.index(late, True).as_py()
                if row >= 0:
                    end = min(end, batch.column(0)[row].as_py())
                    break
        return end

    def _find_back(self, files: list[ArchivedFile], records: int, whole: Range) -> int:
        """The offset so many records before the end."""
        if not records:
            return whole.end
        last: Any = []  # the largest offsets so far, at most so many
        for file in sorted(files, key=lambda file: file.end, reverse=True):
            if len(last) == records and file.end <= last[-1].as_py():
                break
            found = [batch.column(0) for batch in self._columns(file, ("offset",))]
            last = pa.concat_arrays([*found, *([last] if last else [])]).sort("descending")
            last = last[:records]
        return last[-1].as_py() if len(last) == records else whole.first

    def _columns(self, file: ArchivedFile, columns: Sequence[str]) -> Iterator[Any]:
        """Some columns of a file, piece by piece."""
        source = self._source(file, 0, columns)
        while (piece := source.next()) is not None:
            yield piece


class Gone(Exception):
    """A file is not where the manifest had it."""

    def __init__(self, file: ArchivedFile) -> None:
        self.file = file


class _Source:
    """An archived file, read from an offset on, a piece at a time."""

    def __init__(
        self, files: Files, folder: str, file: ArchivedFile, first: int, columns: Sequence[str]
    ) -> None:
        self._folder, self._file = folder, file
        self._rows: Any = None  # the piece, without what was taken of it
        self.end = 0  # behind the last offset of the piece
        size = max(1, min(file.rows, PIECE_BYTES * file.rows // max(1, file.raw_bytes)))
        try:
            parquet = open_parquet(files, folder, file)
            if parquet is None:
                raise Gone(file)
            if parquet.metadata.num_rows != file.rows:
                raise damaged(folder, file, "has another number of rows than the manifest says")
            self._pieces: Iterator[Any] = parquet.iter_batches(
                size, _groups_from(parquet.metadata, first), list(columns), use_threads=False
            )
        except EskerError:
            raise
        except (pa.ArrowException, OSError) as problem:
            raise self._unreadable(problem) from problem

    def next(self) -> Any:
        """The next piece; None behind the last."""
        try:
            return next(self._pieces, None)
        except (pa.ArrowException, OSError) as problem:
            raise self._unreadable(problem) from problem

    def _unreadable(self, problem: Exception) -> Exception:
        return damaged(self._folder, self._file, f"cannot be read ({problem})")

    def reach(self, offset: int) -> bool:
        """Whether it has a record from this offset on; its piece then begins there."""
        while self.end <= offset:
            self._rows = self.next()
            if self._rows is None:
                return False
            self.end = self._rows.column("offset")[-1].as_py() + 1
            self._rows = self._rows.slice(_row_of(self._rows, offset))
        return True

    def take(self, limit: int) -> Any:
        """The records of the piece that lie before an offset."""
        row = _row_of(self._rows, limit)
        taken, self._rows = self._rows.slice(0, row), self._rows.slice(row)
        return taken


def _groups_from(metadata: Any, first: int) -> list[int]:
    """The row groups that have something at or behind an offset."""
    count, at = metadata.num_row_groups, metadata.schema.names.index("offset")
    found = [metadata.row_group(number).column(at).statistics for number in range(count)]
    return [number for number, told in enumerate(found) if told is None or told.max >= first]


def _row_of(rows: Any, offset: int) -> int:
    """The first row of a piece at or behind an offset."""
    offsets = rows.column("offset")
    begin: int = offsets.offset
    numbers = memoryview(offsets.buffers()[1]).cast("q")
    return bisect_left(numbers, offset, begin, begin + len(offsets)) - begin


def _in_order(pieces: list[Any]) -> Any:
    """Records of several files as one batch, in the order of their offsets; None: no records."""
    pieces = [piece for piece in pieces if piece.num_rows]
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    rows = pa.concat_batches(pieces)
    return rows.take(pc.sort_indices(rows.column("offset")))


def _batch(shard: int, begin: int, end: int, rows: Any) -> Iterator[Batch]:
    if rows.num_rows:
        columns = Columns(
            rows.column("value"), rows.column("timestamp").view(_INT64), rows.column("key"),
            rows.column("tag"), rows.column("node"), rows.column("headers"),
        )  # fmt: skip
        yield Batch(shard, begin, columns, rows.column("offset"), end)


def _cut(batch: Batch, max_bytes: int, max_records: int) -> Iterator[Batch]:
    """A batch within the reader's limits; each part goes up to where the next one begins."""
    begin, row, count = batch.begin, 0, len(batch)
    for piece in _pieces(batch.columns, max_bytes, max_records):
        numbers = batch.offsets.slice(row, piece.count)
        row += piece.count
        end = batch.offsets[row].as_py() if row < count else batch.next_offset
        yield Batch(batch.shard, begin, piece, numbers, end)
        begin = end


def _told(topic: str, gap: ArchivedGap) -> Gap:
    return Gap(topic, gap.shard, gap.first, gap.last, gap.reason)


def topics_at(path: object, *, files: Files = SYSTEM_FILES) -> list[str]:
    """The topics of which there is an archive at a place; none if it is no archive."""
    return _known(*place_of(path, "", files))


def _known(files: Files, root: str) -> list[str]:
    return [
        name.removeprefix("topic=").replace("%3A", ":")
        for name in _listed(files, root)
        if name.startswith("topic=") and files.kind(join(root, name, names.MANIFEST))
    ]


def _listed(files: Files, root: str) -> list[str]:
    return sorted(files.list(root)) if files.kind(root) in ("dir", "link") else []


def _nothing(files: Files, root: str, topic: str) -> Exception:
    """What to say where no such archive is."""
    listed, known = _listed(files, root), _known(files, root)
    if known:
        return TopicNotFound(f"no topic {topic!r} in the archive {root}; {nearest(topic, known)}")
    if names.IDENTITY in listed:
        return NotAStore(
            f"{root} is a store, not an archive; topic.archive() archives to "
            f"{join(root, names.ARCHIVE)}"
        )
    return NotAStore(f"there is no archive at {root}; topic.archive({root!r}) makes one")
