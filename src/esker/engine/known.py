"""Which batches of a shard are known: by their idempotency key, by producer and sequence. Pure.

A key is known for as long as its batch is among the last `dedupe_records` records of the shard and
was appended within `dedupe_window`. The time is that of the monotonic clock, which no adjustment
moves; opening a shard begins it anew. So a key may be known for longer than the window, and never
for less: what is doubtful is taken for a retry.

Of a producer the last batch is known for ever, and the ones before it for as long as a key would
be. Its numbers begin with 0 and leave none out. A shard knows PRODUCERS_MAX of them. When that many
are known, one whose last batch is no longer kept makes room for a new one, the one that has not
appended for longest; if all of them are kept, the new one is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from esker.errors import KeyReused, ProducersFull, SequenceExpired, SequenceGap
from esker.format.once import Keyed, Mark, Numbered, Place, Saved
from esker.options import PRODUCERS_MAX

Name = bytes | tuple[str, int]


class Window(NamedTuple):
    """From which offset on, and since when, a key is known."""

    least: int
    since: float  # monotonic


class _Entry(NamedTuple):
    offset: int
    count: int  # type: ignore[assignment]  # records, not a search in the tuple
    since: float


class Known:
    """The table of one shard."""

    def __init__(self) -> None:
        self._batches: dict[Name, _Entry] = {}  # by offset, ascending
        self._last: dict[str, tuple[int, Place]] = {}  # who appended longest ago first

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def producers(self) -> int:
        return len(self._last)

    @property
    def oldest(self) -> int:
        """The first offset of a batch that is known."""
        return next((entry.offset for entry in self._batches.values()), 1 << 62)

    def last(self, producer: str) -> int:
        """The last number of a producer; -1 if it has none."""
        known = self._last.get(producer)
        return known[0] if known is not None else -1

    def find(self, mark: Mark, window: Window) -> Place | None:
        """Where the batch lies that this is a retry of; None for a new one."""
        self._expire(window)
        name = _name(mark)
        entry = self._batches.get(name)
        found = Place(entry.offset, entry.count) if entry is not None else None
        if isinstance(mark, Numbered):
            found = self._numbered(mark, found)
        if found is not None and found.count != mark.count:
            raise KeyReused(
                f"{_words(mark)} was given to a batch of {found.count} records, at offsets "
                f"{found.offset}..{found.end - 1}, and this one has {mark.count}: a retry appends "
                "the same records again. Give another batch another one"
            )
        return found

    def _numbered(self, mark: Numbered, found: Place | None) -> Place | None:
        last, place = self._last.get(mark.producer, (-1, None))
        if mark.sequence > last + 1:
            raise SequenceGap(
                f"producer {mark.producer!r} gave sequence {mark.sequence}, and its last here is "
                + (f"{last}" if last >= 0 else "not known: a new producer begins with 0")
                + f"; go on with {last + 1}",
                expected=last + 1,
            )
        if mark.sequence == last:
            return place
        if mark.sequence < last and found is None:
            raise SequenceExpired(
                f"sequence {mark.sequence} of producer {mark.producer!r} was appended before (its "
                f"last is {last}), so long ago that the offsets are not kept any more. It was not "
                "appended again"
            )
        return found

    def make_room(self, mark: Mark, earliest: int) -> None:
        """Refuse a producer that there is no room for, or forget one that nothing is kept of."""
        if isinstance(mark, Keyed) or mark.producer in self._last:
            return
        if len(self._last) < PRODUCERS_MAX:
            return
        oldest = next(iter(self._last))
        if self._last[oldest][1].end > earliest:
            raise ProducersFull(
                f"producer {mark.producer!r} would be one more than the {PRODUCERS_MAX} that a "
                "shard knows, and records of all of them are kept. Use fewer names, and the same "
                "ones in every run"
            )
        del self._last[oldest]

    def add(self, mark: Mark, offset: int, now: float) -> None:
        """A batch was appended. The first one under a name counts."""
        name = _name(mark)
        if name not in self._batches:
            self._batches[name] = _Entry(offset, mark.count, now)
        if isinstance(mark, Numbered) and mark.sequence > self.last(mark.producer):
            self._last.pop(mark.producer, None)
            self._last[mark.producer] = (mark.sequence, Place(offset, mark.count))

    def _expire(self, window: Window) -> None:
        gone = []
        for name, entry in self._batches.items():
            if entry.offset >= window.least and entry.since >= window.since:
                break
            gone.append(name)
        for name in gone:
            del self._batches[name]

    def saved(self, upto: int) -> Saved:
        """All of it, to be saved."""
        numbers = {
            name: Place(entry.offset, entry.count)
            for name, entry in self._batches.items()
            if isinstance(name, tuple)
        }
        numbers.update(((who, last), place) for who, (last, place) in self._last.items())
        keys = {
            name: Place(entry.offset, entry.count)
            for name, entry in self._batches.items()
            if isinstance(name, bytes)
        }
        return Saved(upto, keys, dict(sorted(numbers.items(), key=lambda item: item[1])))

    def restore(self, saved: Saved, now: float) -> None:
        """Take up what was saved, as if it had been appended now."""
        marks: list[tuple[Place, Mark]] = [
            (place, Keyed(key, place.count)) for key, place in saved.keys.items()
        ]
        marks += [(at, Numbered(*name, at.count)) for name, at in saved.numbers.items()]
        for place, mark in sorted(marks, key=lambda item: item[0]):
            self.add(mark, place.offset, now)


def _name(mark: Mark) -> Name:
    return mark.key if isinstance(mark, Keyed) else (mark.producer, mark.sequence)


def _words(mark: Mark) -> str:
    if isinstance(mark, Keyed):
        return f"idempotency_key={mark.key[:80]!r}"
    return f"sequence {mark.sequence} of producer {mark.producer!r}"
