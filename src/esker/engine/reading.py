"""Reading a topic: batches, records, tails, slices, single look-ups.

All of it ends in `reader.read_batches` or `read_one`; here positions are parsed, shards chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import pyarrow as pa

from esker import positions
from esker.engine import epochs, tally
from esker.engine.batch import SCHEMA, Batch
from esker.engine.handle import Handle
from esker.engine.reader import (
    ALL,
    BATCH_BYTES,
    Consistency,
    Gaps,
    Range,
    check_consistency,
    check_count,
    check_gaps,
    check_limit,
    check_timeout,
    count_records,
    earliest_of,
    end_of,
    find_back,
    read_batches,
    read_one,
    resolve,
    told_gap,
)
from esker.engine.shard import Shard
from esker.engine.sieve import Sieve, check_node
from esker.engine.slices import Slice, Sliced
from esker.engine.tail import Tail, following
from esker.errors import Corruption, EskerError, InvalidOption, OffsetOutOfRange
from esker.format.counters import WORD
from esker.records import Gap, Record

HAND_LOG: Final = 16 << 20  # bytes of a log that is sure to be in memory
HAND_NS: Final = 60 * 10**9  # if it was written to within this time
HAND_BYTES: Final = 256 << 10  # of what is read on the spot
_LAST_WRITE: Final = WORD["last_write_ns"]
NOTHING: Final[Mapping[int, Gap]] = MappingProxyType({})


class Reading(Handle, Sliced):
    """Everything that reads."""

    def batches(
        self,
        start: Any = "earliest",
        stop: Any = None,
        *,
        shard: int | None = None,
        max_bytes: int = BATCH_BYTES,
        max_records: int = 0,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
        skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """The records from `start` to `stop` (or to the end as it is now), as Arrow batches.

        Each shard is read in turn; a position is taken in each shard by itself. Records that came
        from the node `skip_node` are left out: who copies from node to node gets none of its own
        back. If `start` is an offset of a topic of another `epoch`, the topic was deleted and made
        anew: a Gap says what was missed, and the new one comes from its beginning.
        """
        self._existing()
        now = self._store._context.clock.now_us()
        begin = positions.parse(start, now)
        finish = None if stop is None else positions.parse(stop, now)
        check_gaps(gaps)
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        begin, missed = self._begin(begin, shard, epoch)
        ranges = self._ranges(begin, finish, shard, consistency)
        return self._batches(
            ranges, max_bytes, max_records, gaps, check_node(skip_node), missed=missed
        )

    def _begin(
        self, begin: positions.Position, shard: int | None, epoch: int | None
    ) -> tuple[positions.Position, dict[int, Gap]]:
        """Where to begin, and what was missed if that was said of a topic that is no more."""
        entry = self._existing()
        if not epochs.is_another(entry, epoch, begin):
            return begin, {}
        assert epoch is not None
        shards = [view.number for view in self._views(shard)]
        catalog = self._store._catalog.catalog
        return epochs.BEGINNING, epochs.missed(catalog, self.name, epoch, begin.number, shards)

    def _ranges(
        self, begin: positions.Position, finish: positions.Position | None, shard: int | None,
        consistency: Consistency = "eventual",
    ) -> list[Range]:  # fmt: skip
        """What two positions mean in each shard, as things are now: shard, first offset, end."""
        check_consistency(consistency)
        ranges = []
        for view in self._views(shard):
            end = end_of(view, consistency)
            if finish is not None:
                end = min(end, resolve(view, finish))
            ranges.append(Range(view.number, resolve(view, begin), end))
        return ranges

    def _batches(
        self, ranges: list[Range], max_bytes: int, max_records: int, gaps: Gaps,
        sieve: Sieve = ALL, whole: bool = False, missed: Mapping[int, Gap] = NOTHING,
    ) -> Iterator[Any]:  # fmt: skip
        for number, first, end in ranges:
            view = self._view(number)
            if number in missed:
                yield from told_gap(view.context, missed[number], gaps)
            found = read_batches(
                view, first, end, max_bytes=max_bytes, max_records=max_records, gaps=gaps,
                sieve=sieve, whole=whole,
            )  # fmt: skip
            with self._told_if_deleted():
                yield from _counted(view, found) if isinstance(view, Shard) else found

    def _at_hand(self, number: int, start: int, limit: int, max_bytes: int) -> Batch | None:
        """The records that `batches` would begin with, if they can be had without ever waiting.

        So it is in a log that this process writes, if that is short and was written to just now:
        then it is in memory. A loop that must not wait reads such a page in less time than it takes
        to ask a thread. None: ask `_batches`, which takes its time, and tells what is wrong.
        """
        shard = self._shards[number]
        log, counters, visible = shard.active, shard.counters, shard.visible
        if not shard.writing or log is None or counters is None or shard.marks:
            return None
        if log.end > HAND_LOG or not max(log.base, shard.earliest) <= start < visible:
            return None
        now = shard.context.clock.now_us()
        each = log.end // max(1, visible - log.base)
        if now * 1000 - counters.words[_LAST_WRITE] > HAND_NS or limit * each > HAND_BYTES:
            return None
        stop = min(start + limit, visible)
        try:
            _, columns = log.read(start - log.base, stop - log.base, max_bytes)
        except EskerError:
            return None
        if columns.count < stop - start or columns.nbytes > max_bytes:
            return None
        tally.reader(counters, 1)
        tally.read(counters, columns.count, now)
        tally.reader(counters, -1)
        return Batch(number, start, columns)

    def _whole(self, first: int, end: int, shard: int, max_bytes: int) -> Iterator[Batch | Gap]:
        """Offsets [first, end) of a shard, as far as it goes, for whoever has to account for each.

        As `batches` with gaps="yield"; what was deleted by tag lies between `batch.begin` and
        `batch.next_offset`, also as a batch without records. So what is in neither batch nor gap is
        missing.
        """
        self._existing()
        (view,) = self._views(shard)
        ranges = [Range(shard, first, min(end, view.visible))]
        return self._batches(ranges, max_bytes, 0, "yield", whole=True)

    def read(
        self,
        start: Any = "earliest",
        stop: Any = None,
        *,
        shard: int | None = None,
        limit: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
        skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Record]:
        """The records from `start` to the end as it is now, one by one."""
        check_limit(limit)
        return _records(
            self.batches(
                start,
                stop,
                shard=shard,
                gaps=gaps,
                consistency=consistency,
                skip_node=skip_node,
                epoch=epoch,
            ),
            limit,
        )

    def follow(
        self,
        start: Any = "latest",
        *,
        timeout: float | None = None,
        shard: int | None = None,
        limit: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
        skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Record]:
        """The records from `start` on, and then those to come, as they come.

        Ends when nothing came for `timeout` seconds (never, when None), after `limit` records,
        or when the store is closed.
        """
        check_limit(limit)
        return _records(
            self.follow_batches(
                start,
                timeout=timeout,
                shard=shard,
                gaps=gaps,
                consistency=consistency,
                skip_node=skip_node,
                epoch=epoch,
            ),
            limit,
        )

    def follow_batches(
        self,
        start: Any = "latest",
        *,
        timeout: float | None = None,
        shard: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
        skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """As `follow`, by batches."""
        self._existing()
        timeout = check_timeout(timeout)
        tail = self.tail(
            start, shard=shard, gaps=gaps, consistency=consistency, skip_node=skip_node, epoch=epoch
        )
        context = self._store._context
        return following(tail, timeout, context.clock, lambda: context.closed)

    def tail(
        self, start: Any = "latest", *, shard: int | None = None, gaps: Gaps = "raise",
        consistency: Consistency = "eventual", skip_node: str | None = None,
        epoch: int | None = None,
    ) -> Tail:  # fmt: skip
        """Cursors from `start` on, to be stepped by hand: `follow` without the waiting."""
        self._existing()
        begin = positions.parse(start, self._store._context.clock.now_us())
        check_gaps(gaps)
        check_consistency(consistency)
        begin, missed = self._begin(begin, shard, epoch)
        cursors = {view.number: resolve(view, begin) for view in self._views(shard)}
        return Tail(
            cursors, self._shards, self._view, self._followers, gaps, consistency,
            check_node(skip_node), missed,
        )  # fmt: skip

    def slice(self, start: Any = None, stop: Any = None, *, shard: int | None = None,
              gaps: Gaps = "raise", epoch: int | None = None) -> Slice:  # fmt: skip
        """A lazy part of the topic, for iterating and for polars, pandas, duckdb and pyarrow."""
        self._existing()
        check_gaps(gaps)
        context = self._store._context
        now = context.clock.now_us()
        _, missed = self._begin(positions.parse(start, now), shard, epoch)
        positions.parse(stop, now)

        def settle() -> list[Range]:
            context.require_open()
            now = context.clock.now_us()
            finish = None if stop is None else positions.parse(stop, now)
            begin = epochs.BEGINNING if missed else positions.parse(start, now)
            return self._ranges(begin, finish, shard)

        def read(ranges: list[Range]) -> Iterator[Batch | Gap]:
            return self._batches(ranges, BATCH_BYTES, 0, gaps, missed=missed)

        def count(ranges: list[Range]) -> int:
            return sum(count_records(self._view(number), a, b) for number, a, b in ranges)

        return Slice(settle, read, count, f"<slice {start!r}:{stop!r} of {self!r}>")

    def get(self, offset: int, shard: int = 0) -> Record:
        """The record with this offset; negative offsets count from the end."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidOption(f"an offset is a whole number, not {offset!r}")
        view = self._known_view(shard, offset)
        place = offset if offset >= 0 else find_back(view, -offset)
        known = earliest_of(view) <= place < view.visible
        if not known or (offset < 0 and count_records(view, place, view.visible) < -offset):
            raise OffsetOutOfRange(
                f"topic {self.name!r} shard {shard} has offsets {earliest_of(view)}.."
                f"{view.visible - 1}, not {offset}"
            )
        record = read_one(view, place)
        # once more: it may have been deleted, and blanked on disk, before it was looked at
        if record is not None and not (view.marks and place in view.marks):
            return record
        for batch in read_batches(view, place, place + 1, max_records=1):
            if isinstance(batch, Batch):
                return batch.records()[0]
        raise OffsetOutOfRange(f"the record at offset {place} of topic {self.name!r} was deleted")


def _counted(shard: Shard, batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches, and the shard's counters know of them."""
    tally.reader(shard.counters, 1)
    try:
        for batch in batches:
            if isinstance(batch, Batch):
                tally.read(shard.counters, len(batch), shard.context.clock.now_us())
            yield batch
    except Corruption:
        tally.damage(shard.counters, shard.context.clock.now_us())
        raise
    finally:
        tally.reader(shard.counters, -1)


class _Batched(Protocol):
    def batches(self, start: Any, stop: Any, *, shard: int | None, gaps: Gaps) -> Iterator[Any]: ...


class Still:
    """Reading records where nothing is appended any more: in an archive, in files of other logs.

    What has `batches` has these, too.
    """

    def read(
        self: _Batched, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        limit: int | None = None, gaps: Gaps = "raise",
    ) -> Iterator[Record]:  # fmt: skip
        """The records from `start` to `stop` (or to the end), one by one."""
        check_limit(limit)
        return _records(self.batches(start, stop, shard=shard, gaps=gaps), limit)

    def to_arrow(
        self: _Batched, start: Any = "earliest", stop: Any = None, *, shard: int | None = None,
        gaps: Gaps = "raise",
    ) -> Any:  # fmt: skip
        """The records as a pyarrow.Table with the columns of `esker.SCHEMA`."""
        found = self.batches(start, stop, shard=shard, gaps=gaps)
        return pa.Table.from_batches((b.arrow for b in found if isinstance(b, Batch)), SCHEMA)


def _records(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        records, left = wanted_of(batch, left)
        yield from records
        if left == 0:
            return


def wanted_of(item: Batch | Gap, left: int | None) -> tuple[list[Any], int | None]:
    """What of a batch is wanted where so many records are, and how many are wanted behind it."""
    if isinstance(item, Gap):
        return [item], left  # no record
    records = item.records() if left is None else item.records()[:left]
    return records, None if left is None else left - len(records)
