"""Handing out jobs: what is given back first, then what is fresh.

A claim looks at one shard, holding it. It takes what is due again, gives up what was handed out too
often, reads the records, sets aside what is scheduled for later or must wait for its key, and tells
all of that in one frame. Only then does anybody get a job.

Records that are not there are told, not passed over: lost ones as a Gap, those that somebody
deleted not at all. Either way the queue is done with their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from esker.engine.batch import Batch
from esker.format import leases as fmt
from esker.format.leases import Event, runs_of
from esker.queues.job import NOT_BEFORE, key_hash
from esker.queues.lane import Lane
from esker.queues.leases import State
from esker.records import Gap, Record

AHEAD_BYTES: Final = 256 << 10  # that are read at once, should claims be small
PARKED_MAX: Final = 100_000  # jobs that wait for their keys; behind them nobody looks
SCAN_MAX: Final = 4_096  # fresh records that one claim looks at, beyond what it takes
UNBOUNDED: Final = 1 << 62


class Want(NamedTuple):
    """Who claims, how much, and how long he may have it."""

    most: int
    worker: int
    pid: int
    lease_us: int
    telling: bool = True  # lost jobs are told before any others are handed out
    most_bytes: int = UNBOUNDED  # in hand, and the job with which it is more


class Taken(NamedTuple):
    """What a claim gave."""

    number: int
    until: int
    records: list[Record]
    deliveries: list[int]
    gaps: list[Gap]
    moving: bool  # jobs were given up, and are to be copied
    more: bool  # there is more to look at: what came were jobs for later, or for their keys


NOTHING: Final = Taken(0, 0, [], [], [], False, False)


class Missing(NamedTuple):
    """Offsets [first, end) have no record."""

    first: int
    end: int
    gap: Gap | None


class Pile:
    """What a claim has come upon so far."""

    def __init__(self, state: State, ordered: bool, wall: int, most_bytes: int) -> None:
        self._state = state
        self._ordered = ordered
        self._wall = wall
        self._left = most_bytes
        self._heads: dict[int, int] = {}  # keys that this claim has taken
        self.records: list[Record] = []
        self.keys: list[int] = []
        self.delayed: list[int] = []
        self.parked: list[int] = []
        self.gone: list[tuple[int, int]] = []
        self.gaps: list[Gap] = []
        self.dead: list[int] = []

    def full(self) -> bool:
        """Whether there are bytes enough."""
        return self._left <= 0

    def add(self, found: list[Record]) -> None:
        """Records that may be handed out, if it is their time and their turn."""
        if self._left < UNBOUNDED:
            self._left -= sum(map(weight, found))
        plain = not self._ordered and not any(record.headers for record in found)
        if plain:
            self.records += found
            return
        for record in found:
            at = not_before(record)
            key = key_hash(record.key) if self._ordered else 0
            if at > self._wall:
                self.delayed += (record.offset, at)
            elif key and self._busy(key, record.offset):
                self.parked += (record.offset, key)
            else:
                self.records.append(record)
                if self._ordered:
                    self.keys.append(key)
                    if key:
                        self._heads[key] = record.offset

    def _busy(self, key: int, offset: int) -> bool:
        head = self._heads.get(key, self._state.heads.get(key, offset))
        return head != offset

    def miss(self, missing: Missing) -> None:
        self.gone.append((missing.first, missing.end))
        if missing.gap is not None:
            self.gaps.append(missing.gap)


def weight(record: Record) -> int:
    """About how many bytes a record takes."""
    headers = record.headers
    return len(record.value) + (sum(map(len, headers.values())) if headers else 0)


def not_before(record: Record) -> int:
    """When a job may be handed out; 0 for at once."""
    if not record.headers or NOT_BEFORE not in record.headers:
        return 0
    try:
        return int(record.headers[NOT_BEFORE])
    except ValueError:  # somebody else's header: it is no reason to keep the job back for ever
        return 0


def claim(lane: Lane, want: Want, attached: Callable[[], int]) -> Taken:
    """Hand out up to so many jobs of a shard. Assumes that the lane is taken.

    `attached` tells the last sequence under which jobs of this shard were copied elsewhere.
    """
    state, clock = lane.state, lane.context.clock
    if state.paused:
        return NOTHING
    mono, wall = int(clock.monotonic() * 1e6), clock.now_us()
    pile = Pile(state, lane.options.ordered, wall, want.most_bytes)
    looked: set[int] = set()
    try:
        _take_due(lane, want, pile, looked, mono, wall)
        more = _take_fresh(lane, want, pile)
        if pile.gaps and want.telling:
            pile.records, pile.keys = [], []  # whoever is told has nothing in hand
        until = mono + want.lease_us
        number = state.number + 1
        events = _events(lane, want, pile, number, until, attached)
        if not events:
            return NOTHING
        deliveries = [state.deliveries(record.offset) + 1 for record in pile.records] \
            if looked else [1] * len(pile.records)  # fmt: skip
        lane.commit(events)
    finally:
        state.put_back(looked)  # those that were not there to be read, too
    moving = bool(pile.dead and lane.options.dead_letter)
    return Taken(number, until, pile.records, deliveries, pile.gaps, moving, more)


def _take_due(lane: Lane, want: Want, pile: Pile, looked: set[int], mono: int, wall: int) -> None:
    state, limit = lane.state, lane.options.max_deliveries
    while len(pile.records) < want.most and not pile.full():
        due = state.due(mono, wall, want.most - len(pile.records), looked)
        if not due:
            return
        looked.update(due)
        if limit:
            spent = [offset for offset in due if state.deliveries(offset) >= limit]
            if spent:
                pile.dead += spent
                due = [offset for offset in due if state.deliveries(offset) < limit]
        runs = runs_of(due)
        for at in range(0, len(runs), 2):
            for found in read(lane, runs[at], runs[at] + runs[at + 1]):
                pile.miss(found) if isinstance(found, Missing) else pile.add(found)
                if pile.full():
                    return


def _take_fresh(lane: Lane, want: Want, pile: Pile) -> bool:
    """Look at what nobody had; whether there is more to be looked at."""
    at, looked = lane.state.cursor, 0
    room = PARKED_MAX - sum(map(len, lane.state.parked.values())) if lane.options.ordered else 1
    while len(pile.records) < want.most:
        if len(pile.parked) // 2 >= room:
            return False
        if pile.full():
            return not pile.records  # what was looked at is for later
        if looked >= SCAN_MAX:
            return True
        seen = at
        for found in _ahead(lane, at, want.most - len(pile.records)):
            if isinstance(found, Missing):
                pile.miss(found)
                at = found.end
            else:
                pile.add(found)
                looked += len(found)
                at = found[-1].offset + 1
                if pile.full():
                    break
        if at == seen:
            return False
    return False


def _events(
    lane: Lane, want: Want, pile: Pile, number: int, until: int, attached: Callable[[], int]
) -> list[Event]:
    events: list[Event] = []
    if pile.delayed:
        events.append(fmt.Delayed(pile.delayed))
    if pile.parked:
        events.append(fmt.Parked(pile.parked))
    if pile.gone:
        reason = pile.gaps[0].reason if pile.gaps else "deleted"
        runs = [n for first, end in sorted(pile.gone) for n in (first, end - first)]
        events.append(fmt.Gone(runs, reason))
    if pile.dead:
        events.append(given_up(lane, pile.dead, attached))
    if pile.records:
        offsets = [record.offset for record in pile.records]
        keys = pile.keys
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            order = sorted(range(len(offsets)), key=offsets.__getitem__)
            offsets = [offsets[at] for at in order]
            keys = [keys[at] for at in order] if keys else keys
        events.append(fmt.Claimed(number, want.worker, want.pid, until, runs_of(offsets), keys))
    return events


def given_up(
    lane: Lane, offsets: list[int], attached: Callable[[], int], reason: str = ""
) -> fmt.Dead | fmt.Moved:
    """Jobs that nobody is to have again: kept, or on their way to the dead letters."""
    state = lane.state
    offsets = sorted(offsets)
    reasons = [reason or state.why.get(offset, "its leases ran out") for offset in offsets]
    if not lane.options.dead_letter:
        return fmt.Dead(runs_of(offsets), reasons)
    sequence = max(state.sequence, attached()) + 1
    deliveries = [state.deliveries(offset) for offset in offsets]
    return fmt.Moved(sequence, lane.options.dead_letter, runs_of(offsets), deliveries, reasons)


# ---- reading ---------------------------------------------------------------------------------


def read(
    lane: Lane, first: int, end: int, most_bytes: int = AHEAD_BYTES
) -> Iterator[list[Record] | Missing]:
    """Records [first, end) of a shard, as far as it goes, and those that are not there."""
    at = first
    for found in lane.topic._whole(first, end, lane.number, most_bytes):
        if isinstance(found, Gap):
            if found.first > at:
                yield Missing(at, found.first, None)
            at = found.last + 1
            yield Missing(found.first, at, found)
            continue
        if found.begin > at:  # deleted on request, from the beginning of the shard on
            yield Missing(at, found.begin, None)
        yield from _split(found)
        at = found.next_offset
    earliest = lane.topic.earliest(lane.number)
    if at < min(earliest, end):
        yield Missing(at, min(earliest, end), None)


def _split(batch: Batch) -> Iterator[list[Record] | Missing]:
    records = batch.records()
    if len(records) == batch.next_offset - batch.begin:
        yield records
        return
    at = batch.begin
    runs = runs_of([record.offset for record in records])
    row = 0
    for place in range(0, len(runs), 2):
        first, count = runs[place], runs[place + 1]
        if first > at:
            yield Missing(at, first, None)
        yield records[row : row + count]
        row, at = row + count, first + count
    if at < batch.next_offset:
        yield Missing(at, batch.next_offset, None)


class Ahead(NamedTuple):
    """Records that follow each other, read before anybody has asked for them."""

    first: int
    records: list[Record]
    marks: object
    earliest: int


def _ahead(lane: Lane, first: int, most: int) -> Iterator[list[Record] | Missing]:
    """Up to `most` records from an offset on; small claims share one reading."""
    view = lane.topic._view(lane.number)
    known = lane.ahead
    if isinstance(known, Ahead) and known.marks is view.marks and known.earliest == view.earliest:
        row = first - known.first
        if 0 <= row < len(known.records):
            yield known.records[row : row + most]
            return
    lane.ahead = None
    if view.visible <= first:
        return
    left = most
    for found in read(lane, first, view.visible):
        if isinstance(found, Missing):
            yield found
            continue
        if lane.ahead is None and len(found) > left:
            lane.ahead = Ahead(found[0].offset, found, view.marks, view.earliest)
        yield found[:left]
        left -= len(found)
        if left <= 0:
            return
