"""A directory of another log, opened like a store: to be read, and nothing else.

    with esker.open("kin+comet:///var/log/edge") as store:
        for batch in store["log"].batches("earliest"):
            ...

A topic is read part by part: each file is mapped, decoded by its kind stretch by stretch, and cut
to the caller's limits. Nothing is repaired and nothing is written. A torn end is where the log
ends: it is told in `topic.flaws` and in the log of the program. Damage is raised as Corruption
where it is met, with gaps="skip" reading goes on in the next file, with gaps="yield" too, where
the format knows which offsets lie between: then a Gap says so. Another process may append
meanwhile; what a handle sees is what there was when the topic was first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow.compute as pc

from esker import positions
from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine.batch import Batch
from esker.engine.context import LOG
from esker.engine.reader import (
    BATCH_BYTES,
    Gaps,
    Range,
    _pieces,
    check_count,
    check_gaps,
)
from esker.engine.reading import Still
from esker.engine.slices import Slice, Sliced
from esker.errors import (
    Corruption,
    DataGap,
    InvalidOption,
    NotAStore,
    OffsetOutOfRange,
    ReadOnlyStore,
    StoreClosed,
    TopicNotFound,
    nearest,
)
from esker.kin.family import Flaw, Kind, Part, Piece, mapped
from esker.positions import EARLIEST, LATEST, Position
from esker.records import Gap, Record
from esker.storage.files import Files

_VERIFY = "esker.kin.verify(path, kind) lists all that is wrong"


class KinStore:
    """A directory of another log. Get one with `esker.open("kin+rustlog:///path")`."""

    def __init__(self, kind: Kind, root: str, files: Files, clock: Clock = SYSTEM_CLOCK) -> None:
        self.kind = kind.name
        self.path = root
        self._kind = kind
        self._files = files
        self._clock = clock
        self._closed = False
        self._found = kind.survey(files, root)
        if not self._found:
            raise NotAStore(f"there is no log of {kind.name} at {root}")

    def __repr__(self) -> str:
        return f"<esker kin {self.kind} {self.path}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> KinTopic:
        if self._closed:
            raise StoreClosed(f"{self!r} is closed")
        if name not in self._found:
            raise TopicNotFound(
                f"no topic {name!r} in {self.path}; {nearest(name, [*self._found])}"
            )
        return KinTopic(self, name)

    def create(self, name: str, **options: Any) -> NoReturn:
        """Refused: the files of another log are only read."""
        raise self._refusal()

    def delete(self, name: str, **options: Any) -> NoReturn:
        """Refused: the files of another log are only read."""
        raise self._refusal()

    def _refusal(self) -> ReadOnlyStore:
        return ReadOnlyStore(
            f"{self!r} is read only; esker.kin.import_ copies it to a store, "
            "esker.kin.export_topic writes a new one"
        )

    def close(self) -> None:
        """Batches that were read stay as they are."""
        self._closed = True

    def __enter__(self) -> KinStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KinTopic(Sliced, Still):
    """A topic of another log, read only."""

    def __init__(self, store: KinStore, name: str) -> None:
        self.name = name
        self.flaws: list[Flaw] = []  # what reading has met
        self._store = store
        self._kind = store._kind
        self._files = store._files
        self._parts: dict[int, list[Part]] = {}
        self._ends: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<esker kin {self._store.kind} topic {self.name!r}>"

    def append(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the files of another log are only read."""
        raise self._store._refusal()

    append_many = append_arrow = append

    def follow(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the files of another log do not tell when they grow."""
        raise InvalidOption(f"{self!r} cannot be followed; read on from where you were")

    # ---- what there is ----------------------------------------------------------------------

    @property
    def shards(self) -> int:
        """One more than the largest number of a shard."""
        return max(self._store._found[self.name], default=-1) + 1

    def earliest(self, shard: int = 0) -> int:
        """The first offset."""
        parts = self._known(shard)
        return parts[0].first if parts else 0

    def end(self, shard: int = 0) -> int:
        """The offset behind the last one."""
        parts = self._known(shard)
        if shard not in self._ends:
            end = 0
            for part in reversed(parts):
                end = self._end(part)
                if end > part.first:
                    break
            self._ends[shard] = end
        return self._ends[shard]

    def __len__(self) -> int:
        """How many offsets there are, over all shards."""
        return sum(self.end(shard) - self.earliest(shard) for shard in self._shards(None))

    def _shards(self, shard: int | None) -> list[int]:
        known = self._store._found[self.name]
        if shard is None:
            return list(known)
        if isinstance(shard, bool) or shard not in known:
            raise InvalidOption(f"shard={shard}: {self!r} has {', '.join(map(str, known))}")
        return [shard]

    def _known(self, shard: int) -> list[Part]:
        """The files of a shard, with the offset of the first record of each."""
        if self._store._closed:
            raise StoreClosed(f"{self._store!r} is closed")
        (shard,) = self._shards(shard)
        if shard not in self._parts:
            parts: list[Part] = []
            for part in self._store._found[self.name][shard]:
                if part.first < 0:
                    part = part._replace(first=self._end(parts[-1]) if parts else 0)
                parts.append(part)
            self._parts[shard] = parts
        return self._parts[shard]

    def _end(self, part: Part) -> int:
        return self._kind.end(self._files, part, mapped(self._files, part.path), part.first)

    # ---- reading ----------------------------------------------------------------------------

    def batches(
        self, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        max_bytes: int = BATCH_BYTES, max_records: int = 0, gaps: Gaps = "raise",
    ) -> Iterator[Batch]:  # fmt: skip
        """The records from `start` to `stop` (or to the end), as Arrow batches, shard by shard."""
        now = self._store._clock.now_us()
        begin = positions.parse(start, now)
        finish = None if stop is None else positions.parse(stop, now)
        check_gaps(gaps)
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        return self._batches(self._ranges(begin, finish, shard), max_bytes, max_records, gaps)

    def slice(
        self, start: Any = None, stop: Any = None, *, shard: int | None = None, gaps: Gaps = "raise"
    ) -> Slice:
        """A lazy part of the topic, for iterating and for polars, pandas, duckdb and pyarrow."""
        check_gaps(gaps)
        now = self._store._clock.now_us()
        begin = positions.parse(start, now)
        finish = None if stop is None else positions.parse(stop, now)

        def read(ranges: list[Range]) -> Iterator[Batch | Gap]:
            return self._batches(ranges, BATCH_BYTES, 0, gaps)

        def count(ranges: list[Range]) -> int:
            return sum(len(batch) for batch in read(ranges) if isinstance(batch, Batch))

        text = f"<slice {start!r}:{stop!r} of {self!r}>"
        return Slice(lambda: self._ranges(begin, finish, shard), read, count, text)

    def get(self, offset: int, shard: int = 0) -> Record:
        """The record with this offset; negative offsets count from the end."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidOption(f"an offset is a whole number, not {offset!r}")
        place = offset if offset >= 0 else self.end(shard) + offset
        if self.earliest(shard) <= place < self.end(shard):
            found = self._batches([Range(shard, place, place + 1)], BATCH_BYTES, 1, "raise")
            for batch in found:
                return batch.records()[0]  # type: ignore[no-any-return]
        raise OffsetOutOfRange(
            f"{self!r} shard {shard} has offsets {self.earliest(shard)}..{self.end(shard) - 1}, "
            f"not {offset}"
        )

    def _ranges(self, begin: Position, finish: Position | None, shard: int | None) -> list[Range]:
        ranges = []
        for number in self._shards(shard):
            first, end = self.earliest(number), self.end(number)
            if finish is not None:
                end = min(end, self._resolve(number, finish))
            ranges.append(Range(number, max(first, self._resolve(number, begin)), end))
        return ranges

    def _resolve(self, shard: int, position: Position) -> int:
        """The offset that a position means for a shard."""
        match position.kind:
            case "offset":
                return position.number
            case "back":
                return max(self.earliest(shard), self.end(shard) - position.number)
            case kind if kind == EARLIEST:
                return self.earliest(shard)
            case kind if kind == LATEST:
                return self.end(shard)
        return self._find_time(shard, position.number)

    def _find_time(self, shard: int, timestamp: int) -> int:
        """The first offset whose record is at or after a time. A format without times has none."""
        end = self.end(shard)
        if "timestamp" not in self._kind.carries:
            raise InvalidOption(f"{self._kind.name} stores no times; give an offset")
        whole = [Range(shard, self.earliest(shard), end)]
        for batch in self._batches(whole, BATCH_BYTES, 0, "skip"):
            row = pc.index(pc.greater_equal(batch.columns.timestamps, timestamp), True).as_py()
            if row >= 0:
                return int(batch.offsets[row].as_py())
        return end

    # ---- files ------------------------------------------------------------------------------

    def _batches(
        self, ranges: list[Range], max_bytes: int, max_records: int, gaps: Gaps
    ) -> Iterator[Any]:
        for shard, first, end in ranges:
            for item in self._whole(shard, first, end, gaps):
                if isinstance(item, Gap):
                    if gaps == "raise":
                        raise DataGap(item)
                    if gaps == "yield":
                        yield item
                    continue
                row, count = 0, len(item.columns.values)
                for columns in _pieces(item.columns, max_bytes, max_records):
                    if item.offsets is None:
                        yield Batch(shard, item.first + row, columns)
                    else:
                        numbers = item.offsets.slice(row, columns.count)
                        begin, last = numbers[0].as_py(), numbers[-1].as_py()
                        yield Batch(shard, begin, columns, numbers, last + 1)
                    row += columns.count
                assert row == count

    def _whole(self, shard: int, first: int, end: int, gaps: Gaps) -> Iterator[Piece | Gap]:
        """Offsets [first, end) of a shard, and gaps where a file is missing or damaged."""
        parts = self._known(shard)
        if first >= end:
            return
        to_end = end >= self.end(shard)  # then what ends the log is met, and told, too
        reason = "missing"
        for number, part in enumerate(parts):
            following = parts[number + 1].first if number + 1 < len(parts) else end
            if following <= first and number + 1 < len(parts):
                continue
            if first >= end and not to_end:
                return
            if part.first > first:
                if first < end:
                    yield Gap(self.name, shard, first, min(part.first, end) - 1, reason)
                first = part.first
            data = mapped(self._files, part.path)
            at, begin = self._kind.begin, part.first
            if first > begin:
                at, begin = self._kind.seek(self._files, part, data, begin, first)
            for item in self._kind.pieces(data, part, at, begin):
                if isinstance(item, Flaw):
                    told = number + 1 < len(parts) and parts[number + 1].first > first
                    self._meet(item, gaps == "skip" or (gaps == "yield" and told))
                    reason = "corrupt"
                    break
                piece = _within(item, first, end)
                if piece is not None:
                    yield piece
                first = max(first, min(item.end, end))  # what is deleted at its end is no gap
                if item.end >= end and not to_end:
                    return
        if first < end:
            yield Gap(self.name, shard, first, end - 1, reason)

    def _meet(self, flaw: Flaw, is_told: bool) -> None:
        """Remember a flaw. Damage is raised, unless a Gap tells of it or nobody wants to know."""
        if flaw not in self.flaws:
            self.flaws.append(flaw)
            LOG.warning("%s", flaw)
        if flaw.severity == "error" and not is_told:
            raise Corruption(flaw.text, path=flaw.path, position=flaw.position, advice=_VERIFY)


def _within(piece: Piece, first: int, end: int) -> Piece | None:
    """The records of a piece that lie in [first, end)."""
    if piece.end <= first or piece.first >= end:
        return None
    if piece.offsets is None:
        skip = max(0, first - piece.first)
        count = min(piece.end, end) - piece.first - skip
        if not skip and count == len(piece.columns.values):
            return piece
        return piece._replace(columns=piece.columns.slice(skip, count), first=piece.first + skip)
    inside = pc.and_(pc.greater_equal(piece.offsets, first), pc.less(piece.offsets, end))
    skip, count = pc.index(inside, True).as_py(), pc.sum(inside).as_py() or 0
    if not count:
        return None
    numbers = piece.offsets.slice(skip, count)
    columns = piece.columns.slice(skip, count)
    return piece._replace(columns=columns, first=numbers[0].as_py(), offsets=numbers)
