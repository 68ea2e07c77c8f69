"""What a group has had before, and leaves out: batches that are in a shard twice.

A batch that was appended under an idempotency key, or by a producer that numbers its batches, has a
mark on its first record, and copies of it have that mark as well (format/once.py). The engine
appends it once for as long as it knows the key. Behind that window, and among copies that a route
or a mirror made at least once, it may be there again. A group with `dedupe=N` leaves out what is:

    a batch is a duplicate if among the N records before it in its shard one has the same mark,
    and both batches have the same records

So it depends on nothing but the log. Whoever reads it, and however often, at whatever place he
begins, leaves out the same, and nothing has to be kept: who begins somewhere reads the marks before
it first. The same records: values, keys, and how their timestamps lie to each other. A key that was
given to something else, or a copy that a filter has thinned, makes nobody lose a record.

Marks that were never seen, which is nearly all of them, cost no Python of their own: they are held
against those that are known as sets, and added as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.engine.batch import Batch
from esker.engine.once import marks_of
from esker.engine.reader import View, earliest_of, read_batches
from esker.engine.sieve import Sieve, sift
from esker.errors import Corruption, InvalidOption
from esker.format.columns import timestamp_array
from esker.format.once import COPIED, HEADER, decode_mark
from esker.groups.registry import tell

DEDUPE_MAX: Final = 10_000_000
SCAN_BYTES: Final = 4 << 20
COMPARED: Final = 4096  # records at a time


_Place = tuple[int, int]  # the offset of a mark, and a digest of the value that it is on


class Fresh:
    """The marks of one shard, as far back as they count."""

    def __init__(self, records: int, sieve: Sieve) -> None:
        self._records = records
        self._sieve = sieve
        self.upto = -1  # all marks before this offset are known that may still count
        self._known = {HEADER: _Known(records), COPIED: _Known(records)}
        self._left_out = 0  # up to here the batch at hand is a duplicate

    def sift(self, view: View, batch: Batch) -> Batch:
        """A batch without what is a duplicate; the same object if nothing is."""
        if batch.begin != self.upto:
            self._begin(view, batch.begin)
        return self._next(view, batch)

    def passed(self, first: int, end: int) -> None:
        """There is nothing to be read from `first` up to here."""
        if first == self.upto:
            self.upto = end

    def _begin(self, view: View, at: int) -> None:
        """Learn the marks before an offset.

        A duplicate that is under way began up to N records before, and what it is a duplicate of
        up to N before that.
        """
        self._known = {name: _Known(self._records) for name in self._known}
        self._left_out = 0
        self.upto = max(at - 2 * self._records, earliest_of(view), 0)
        try:
            for batch in _read(view, self.upto, at, self._sieve):
                self._next(view, batch)
        except Corruption as problem:
            tell(
                "%s; what is before it is not known to a group that leaves out duplicates, so "
                "copies of it will be delivered", problem,
            )  # fmt: skip
        self.upto = at

    def _next(self, view: View, batch: Batch) -> Batch:
        self.upto = batch.next_offset
        out: list[tuple[int, int]] = []
        if self._left_out > batch.begin:  # it began in the batch before
            out.append((batch.begin, min(self._left_out, batch.next_offset)))
        headers = batch.columns.headers
        for name, known in self._known.items():
            marks = marks_of(headers, name)
            if marks:
                for first, count in known.add(batch, marks, view, self._sieve):
                    self._left_out = max(self._left_out, first + count)
                    out.append((first, min(first + count, batch.next_offset)))
        return _without(batch, out) if out else batch


class _Known:
    """Marks of one kind. Two tables, of which the older is dropped when the younger is full."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._young: dict[bytes, _Place] = {}
        self._old: dict[bytes, _Place] = {}
        self._since = 0

    def add(
        self, batch: Batch, marks: list[tuple[int, bytes]], view: View, sieve: Sieve
    ) -> Iterator[tuple[int, int]]:
        """Take in the marks of a batch; the duplicates among them, by offset and count."""
        rows, cells = zip(*marks, strict=True)
        offsets: Any = range(batch.begin, batch.next_offset)
        values = batch.columns.values
        if len(set(rows)) < len(batch) or len(rows) > len(batch):  # not one for each
            at = pa.array(rows)
            offsets, values = batch.offsets.take(at).to_pylist(), values.take(at)
        elif batch._offsets is not None:
            offsets = batch.offsets.to_pylist()
        places: Any = zip(offsets, map(hash, values.to_pylist()), strict=True)
        if offsets[0] - self._since > self._records:
            self._young, self._old, self._since = {}, self._young, offsets[0]
        young, old = self._young, self._old
        if (
            len(set(cells)) == len(cells)
            and young.keys().isdisjoint(cells)
            and old.keys().isdisjoint(cells)
        ):
            young.update(zip(cells, places, strict=True))
            return
        for cell, place in zip(cells, places, strict=True):
            before = young.get(cell) or old.get(cell)
            young[cell] = place
            if before is not None:
                count = self._same(cell, before, place, view, sieve)
                if count:
                    yield place[0], count

    def _same(self, cell: bytes, before: _Place, place: _Place, view: View, sieve: Sieve) -> int:
        """How many records the batch has, if it is the same as one before."""
        apart = place[0] - before[0]
        if apart > self._records or place[1] != before[1]:
            return 0
        mark = decode_mark(cell)
        if mark is None or mark.count > apart:
            return 0
        if mark.count == 1 or _equal(view, before[0], place[0], mark.count, sieve):
            return mark.count
        return 0


def _equal(view: View, one: int, other: int, count: int, sieve: Sieve) -> bool:
    """Whether the records at two places are the same, and all there."""
    begun: list[int] = []
    try:
        for at in range(0, count, COMPARED):
            few = min(COMPARED, count - at)
            ours, theirs = (_rows(view, first + at, few, sieve) for first in (one, other))
            if ours is None or theirs is None:
                return False
            begun = begun or [ours.stamps[0].as_py(), theirs.stamps[0].as_py()]
            same = (
                ours.values.equals(theirs.values)
                and ours.keys.equals(theirs.keys)
                and pc.subtract(ours.stamps, begun[0]).equals(pc.subtract(theirs.stamps, begun[1]))
            )
            if not same:
                return False
    except Corruption:
        return False  # whoever reads there is told
    return True


class _Rows(NamedTuple):
    values: Any
    keys: Any
    stamps: Any


def _rows(view: View, first: int, count: int, sieve: Sieve) -> _Rows | None:
    """So many records as they would be delivered; None if some would not."""
    found = list(_read(view, first, min(first + count, view.visible), sieve))
    if sum(map(len, found)) != count:
        return None
    columns = [batch.columns for batch in found]
    return _Rows(
        pa.chunked_array([each.values for each in columns]),
        pa.chunked_array(
            [pa.nulls(each.count, pa.binary()) if each.keys is None else each.keys
             for each in columns]
        ),
        pa.chunked_array([timestamp_array(each) for each in columns]),
    )  # fmt: skip


def _read(view: View, first: int, end: int, sieve: Sieve) -> Iterator[Batch]:
    """What a group was delivered of these, or would have been."""
    for found in read_batches(view, first, end, max_bytes=SCAN_BYTES, gaps="yield", sieve=sieve):
        if isinstance(found, Batch) and len(found):
            yield found


def _without(batch: Batch, out: list[tuple[int, int]]) -> Batch:
    """A batch without some ranges of offsets."""
    offsets = batch.offsets
    gone = pa.array([first for first, end in out if first + 1 == end], pa.int64())
    many = [pa.arange(first, end) for first, end in out if first + 1 < end]
    gone = pa.concat_arrays([gone, *many])
    keep = pc.invert(pc.is_in(offsets, value_set=gone))
    columns, _ = sift(batch.columns, 0, keep)
    return Batch(batch.shard, batch.begin, columns, offsets.filter(keep), batch.next_offset)


def check_dedupe(dedupe: Any) -> int:
    """How many records back duplicates are looked for; 0 for not at all."""
    if type(dedupe) is not int or not 0 <= dedupe <= DEDUPE_MAX:
        raise InvalidOption(
            f"dedupe={dedupe!r}: how many records back to look, 0 to {DEDUPE_MAX:,}"
        )
    return dedupe
