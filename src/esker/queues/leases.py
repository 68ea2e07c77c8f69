"""The state of one shard of a queue: who holds what, what is ready, what is to come. Pure.

Every offset is in exactly one of these places:

    fresh      at or above `cursor`: nobody ever had it. Ten million of them cost nothing
    held       handed out under a token; past its deadline it may be handed out again
    loose      given back, nacked or orphaned: ready, and served before what is fresh
    resting    nacked with a delay, by the monotonic clock
    later      scheduled, by the wall clock
    parked     waits for a job before it with the same key
    dead       given up, and kept
    moving     given up, to be copied to another topic
    done       everything else below `cursor`; it needs no memory

State changes by `apply` alone, with the events of the log (format/leases.py). So whoever reads the
log has the state of whoever wrote it. Time changes nothing: that a lease has expired, or that a
delay is over, is seen when somebody looks (`due`), and counts only once a claim says so. Therefore
the holder of an expired lease may still ack, as long as nobody else has the job.

Events that damage has taken away must not lose a job. An event that speaks of fresh offsets makes
all before them loose: they were claimed by an event that is not there any more. A job that was done
may then come again; none is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from esker.format import leases as fmt
from esker.format.leases import Event, Runs, Snapshot, offsets_of, runs_of


class Lease:
    """What one claim holds, or a part of it that was extended."""

    __slots__ = ("number", "offsets", "pid", "until", "worker")

    def __init__(
        self, number: int, worker: int, pid: int, until: int, offsets: Sequence[int]
    ) -> None:
        self.number = number
        self.worker = worker
        self.pid = pid
        self.until = until
        self.offsets = offsets


class Move:
    """Jobs on their way to another topic."""

    __slots__ = ("deliveries", "reasons", "runs", "to")

    def __init__(self, to: str, runs: Runs, deliveries: list[int], reasons: list[str]) -> None:
        self.to = to
        self.runs = runs
        self.deliveries = deliveries
        self.reasons = reasons


class State:
    """One shard of a queue."""

    cursor: int  # the first offset that nobody ever had
    number: int  # of the last claim
    sequence: int  # of the last move
    paused: bool
    boot: bytes  # in which the deadlines mean something
    gone: int  # jobs that were lost before anybody had them
    held: dict[int, Lease]
    crew: dict[int, int]  # how many jobs each worker holds
    again: dict[int, int]  # deliveries of those that came more than once, or were given back
    loose: set[int]
    resting: dict[int, int]
    later: dict[int, int]
    dead: dict[int, str]
    why: dict[int, str]  # they were nacked
    moving: dict[int, Move]
    keys: dict[int, int]  # of all jobs that are claimed in the order of keys
    heads: dict[int, int]  # whose turn it is, for each key
    parked: dict[int, deque[int]]

    def __init__(self) -> None:
        self._load(Snapshot())

    # ---- questions -----------------------------------------------------------------------

    def deliveries(self, offset: int) -> int:
        """How often a job was handed out."""
        return self.again.get(offset, 1 if offset in self.held else 0)

    def holds(self, offset: int, worker: int, number: int) -> bool:
        """Whether this is the valid token of a job."""
        lease = self.held.get(offset)
        return lease is not None and lease.number == number and lease.worker == worker

    def whereabouts(self, offset: int) -> str:
        """What became of a job, in words."""
        lease = self.held.get(offset)
        if lease is not None:
            return f"claim {lease.number} of process {lease.pid} has it now"
        if offset in self.loose or offset in self.resting or offset in self.later:
            return "it was given back, and is to be claimed again"
        if offset in self.dead or any(offset in offsets_of(m.runs) for m in self.moving.values()):
            return "it was given up as dead"
        if offset in self.keys:
            return "it waits for another job with its key"
        return "nobody ever had it" if offset >= self.cursor else "it is done"

    def due(self, mono: int, wall: int, most: int, but: Container[int] = ()) -> list[int]:
        """Up to `most` jobs that may be handed out again, the oldest first; none of `but`.

        They are taken off the list; whoever does not claim them puts them back (`put_back`).
        """
        ready, seen = self._ready, set[int]()
        heap: list[Any] = self._deadlines
        while heap and heap[0][0] <= mono:
            lease = heappop(heap)[2]
            for offset in lease.offsets:
                if self.held.get(offset) is lease:
                    heappush(ready, offset)
        for heap in (self._rests, self._schedule):
            now = mono if heap is self._rests else wall
            while heap and heap[0][0] <= now:
                heappush(ready, heappop(heap)[1])
        while ready and len(seen) < most:
            offset = heappop(ready)
            if offset not in seen and offset not in but and self._may_go(offset, mono, wall):
                seen.add(offset)
        return sorted(seen)

    def _may_go(self, offset: int, mono: int, wall: int) -> bool:
        if offset in self.loose:
            return True
        if offset in self.resting:
            return self.resting[offset] <= mono
        if offset in self.later:
            if self.later[offset] <= wall:
                return True
            heappush(self._schedule, (self.later[offset], offset))  # the clock was put back
            return False
        lease = self.held.get(offset)
        return lease is not None and lease.until <= mono

    def put_back(self, offsets: Iterable[int]) -> None:
        """These were due, and nobody took them."""
        for offset in offsets:
            heappush(self._ready, offset)

    def next_due(self) -> tuple[int | None, int | None]:
        """When something may become ready by itself: by the monotonic and by the wall clock."""
        times = [heap[0][0] for heap in (self._deadlines, self._rests) if heap]
        return min(times, default=None), self._schedule[0][0] if self._schedule else None

    def workers(self) -> list[int]:
        """Those who hold something."""
        return [worker for worker, jobs in self.crew.items() if jobs]

    def floor(self) -> int:
        """The first offset that is not done."""
        lowest = self.cursor
        places: tuple[Iterable[int], ...] = (
            self.held, self.loose, self.resting, self.later, self.dead, self.keys,
            (move.runs[0] for move in self.moving.values()),
        )  # fmt: skip
        for place in places:
            lowest = min(lowest, min(place, default=lowest))
        return lowest

    def counts(self, mono: int, wall: int) -> dict[str, int]:
        """How many jobs below the cursor are in each place, as time goes."""
        expired = sum(lease.until <= mono for lease in self.held.values())
        rested = sum(ready <= mono for ready in self.resting.values())
        due = sum(at <= wall for at in self.later.values())
        return {
            "ready": len(self.loose) + expired + rested + due,
            "leased": len(self.held) - expired,
            "delayed": len(self.resting) - rested + len(self.later) - due,
            "parked": sum(map(len, self.parked.values())),
            "dead": len(self.dead),
            "moving": sum(fmt.count_of(move.runs) for move in self.moving.values()),
        }

    # ---- changes -------------------------------------------------------------------------

    def apply(self, events: Iterable[Event]) -> None:
        """What happened."""
        for event in events:
            _HOW[type(event)](self, event)

    def _reach(self, offset: int) -> None:
        """An event speaks of this offset: all before it that are fresh were claimed by somebody."""
        if offset > self.cursor:
            self._loosen(range(self.cursor, offset))
            self.cursor = offset

    def _loosen(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.loose.add(offset)
            heappush(self._ready, offset)

    def _take(self, offset: int) -> None:
        """Out of wherever it is; its deliveries, key and reason stay."""
        if offset >= self.cursor:
            self._reach(offset)
            self.cursor = offset + 1
            return
        lease = self.held.pop(offset, None)
        if lease is not None:
            self._left(lease.worker)
            return
        self.loose.discard(offset)
        self.resting.pop(offset, None)
        self.later.pop(offset, None)
        self.dead.pop(offset, None)

    def _left(self, worker: int) -> None:
        self.crew[worker] -= 1
        if not self.crew[worker]:
            del self.crew[worker]

    def _finish(self, offset: int) -> None:
        """Nobody will have it again; the next one with its key may go."""
        self._take(offset)
        if self.again:
            self.again.pop(offset, None)
        if self.why:
            self.why.pop(offset, None)
        if self.keys:
            self._pass_on(offset)

    def _pass_on(self, offset: int) -> None:
        key = self.keys.pop(offset, None)
        if key is None:
            return
        waiting = self.parked.get(key)
        if self.heads.get(key) != offset:
            if waiting is not None and offset in waiting:
                waiting.remove(offset)
                if not waiting:
                    del self.parked[key]
            return
        del self.heads[key]
        if waiting:
            following = waiting.popleft()
            if not waiting:
                del self.parked[key]
            self.heads[key] = following
            self._loosen([following])

    def _claimed(self, event: fmt.Claimed) -> None:
        offsets = offsets_of(event.runs)
        lease = Lease(event.number, event.worker, event.pid, event.until, offsets)
        self.number = max(self.number, event.number)
        old = [offset for offset in offsets if offset < self.cursor] \
            if event.runs[0] < self.cursor else []  # fmt: skip
        for offset in old:
            self.again[offset] = self.deliveries(offset) + 1
            self._take(offset)
        if len(old) < len(offsets):
            for at in range(0, len(event.runs), 2):
                first, end = event.runs[at], event.runs[at] + event.runs[at + 1]
                if end > self.cursor:
                    self._reach(first)
                    self.cursor = end
        self.held.update(dict.fromkeys(offsets, lease))
        self.crew[event.worker] = self.crew.get(event.worker, 0) + len(offsets)
        for offset, key in zip(offsets, event.keys, strict=False):
            if key:
                self.keys[offset] = key
                self.heads[key] = offset
        self._expect(lease)

    def _expect(self, lease: Lease) -> None:
        heap = self._deadlines
        if len(heap) > 4 * len(self.held) + 1000:  # most of them were acked long ago
            alive = {id(each): each for each in self.held.values()}
            heap[:] = [(each.until, next(self._serial), each) for each in alive.values()]
            heapify(heap)
        else:
            heappush(heap, (lease.until, next(self._serial), lease))

    def _acked(self, event: fmt.Acked) -> None:
        for offset in offsets_of(event.runs):
            self._finish(offset)

    def _cleared(self, event: fmt.Gone | fmt.Purged) -> None:
        """Nobody is to have these; a power cut may take millions of them at once."""
        for first, many in _pairs(event.runs):
            for offset in range(first, min(first + many, self.cursor)):
                self._finish(offset)
            if first + many > self.cursor:
                self._reach(first)
                self.cursor = first + many
        if isinstance(event, fmt.Gone):
            self.gone += fmt.count_of(event.runs)

    def _nacked(self, event: fmt.Nacked) -> None:
        for offset in offsets_of(event.runs):
            deliveries = self.deliveries(offset)
            self._take(offset)
            self.again[offset] = deliveries
            if event.reason:
                self.why[offset] = event.reason
            if event.ready:
                self.resting[offset] = event.ready
                heappush(self._rests, (event.ready, offset))
            else:
                self._loosen([offset])

    def _released(self, event: fmt.Released) -> None:
        for offset in offsets_of(event.runs):
            deliveries = self.deliveries(offset) - 1  # it was not tried
            self._take(offset)
            if deliveries > 0:
                self.again[offset] = deliveries
            else:
                self.again.pop(offset, None)
            self._loosen([offset])

    def _extended(self, event: fmt.Extended) -> None:
        offsets = [o for o in offsets_of(event.runs)
                   if self.holds(o, event.worker, event.number)]  # fmt: skip
        if offsets:
            pid = self.held[offsets[0]].pid
            lease = Lease(event.number, event.worker, pid, event.until, offsets)
            self.held.update(dict.fromkeys(offsets, lease))
            self._expect(lease)

    def _void(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            deliveries = self.deliveries(offset)
            self._take(offset)
            self.again[offset] = deliveries
            self._loosen([offset])

    def _died(self, event: fmt.Died) -> None:
        self._void([o for o, lease in self.held.items() if lease.worker == event.worker])

    def _booted(self, event: fmt.Booted) -> None:
        self.boot = event.boot
        self._void(list(self.held))
        self._loosen(self.resting)
        self.resting.clear()

    def _delayed(self, event: fmt.Delayed) -> None:
        for offset, at in _pairs(event.pairs):
            self._take(offset)
            self.later[offset] = at
            heappush(self._schedule, (at, offset))

    def _parked(self, event: fmt.Parked) -> None:
        for offset, key in _pairs(event.pairs):
            self._take(offset)
            self.keys[offset] = key
            self.parked.setdefault(key, deque()).append(offset)

    def _dead(self, event: fmt.Dead) -> None:
        reasons = iter(event.reasons)
        for offset in offsets_of(event.runs):
            deliveries = self.deliveries(offset)
            self._finish(offset)
            self.dead[offset] = next(reasons, "")
            self.again[offset] = deliveries

    def _moved(self, event: fmt.Moved) -> None:
        for offset in offsets_of(event.runs):
            self._finish(offset)
        self.sequence = max(self.sequence, event.sequence)
        self.moving[event.sequence] = Move(event.to, event.runs, event.deliveries, event.reasons)

    def _settled(self, event: fmt.Settled) -> None:
        self.moving.pop(event.sequence, None)

    def _requeued(self, event: fmt.Requeued) -> None:
        for offset in offsets_of(event.runs):
            self._finish(offset)
            self._loosen([offset])

    def _paused(self, event: fmt.Paused) -> None:
        self.paused = event.paused

    def _ended(self, event: fmt.Ended) -> None:
        """The next file begins with all that this one told."""

    # ---- snapshots -----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything, in an order of its own: equal states give equal snapshots."""
        leases: dict[tuple[int, int, int, int], list[int]] = {}
        for offset, lease in self.held.items():
            key = (lease.number, lease.worker, lease.pid, lease.until)
            leases.setdefault(key, []).append(offset)
        waiting = {offset for line in self.parked.values() for offset in line}
        return Snapshot(
            cursor=self.cursor, number=self.number, sequence=self.sequence, paused=self.paused,
            boot=self.boot, gone=self.gone,
            held=[(*key, runs_of(sorted(offsets))) for key, offsets in sorted(leases.items())],
            again=_flat(self.again), loose=runs_of(sorted(self.loose)),
            resting=_flat(self.resting), later=_flat(self.later), dead=sorted(self.dead.items()),
            moving=[(sequence, move.to, move.runs, move.deliveries, move.reasons)
                    for sequence, move in sorted(self.moving.items())],
            keys=_flat({o: key for o, key in self.keys.items() if o not in waiting}),
            parked=[n for key, line in sorted(self.parked.items()) for o in line for n in (o, key)],
            why=sorted(self.why.items()),
        )  # fmt: skip

    def _load(self, told: Snapshot) -> None:
        self.cursor, self.number, self.sequence = told.cursor, told.number, told.sequence
        self.paused, self.boot, self.gone = told.paused, told.boot, told.gone
        self.held = {}
        self.crew = {}
        self.again = dict(_pairs(told.again))
        self.loose = set(offsets_of(told.loose))
        self.resting, self.later = dict(_pairs(told.resting)), dict(_pairs(told.later))
        self.dead, self.why = dict(told.dead), dict(told.why)
        self.moving = {each[0]: Move(*each[1:]) for each in told.moving}
        self.keys = dict(_pairs(told.keys))
        self.heads = {key: offset for offset, key in self.keys.items()}
        self.parked = {}
        self._ready = sorted(self.loose)  # offsets that may be due; may hold others, and some twice
        self._rests = sorted((ready, offset) for offset, ready in self.resting.items())
        self._schedule = sorted((at, offset) for offset, at in self.later.items())
        self._deadlines: list[tuple[int, int, Lease]] = []
        self._serial = count()
        for offset, key in _pairs(told.parked):
            self.keys[offset] = key
            self.parked.setdefault(key, deque()).append(offset)
        for number, worker, pid, until, runs in told.held:
            offsets = offsets_of(runs)
            lease = Lease(number, worker, pid, until, offsets)
            self.held.update(dict.fromkeys(offsets, lease))
            self.crew[worker] = self.crew.get(worker, 0) + len(offsets)
            self._expect(lease)


def _pairs(flat: list[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _flat(pairs: dict[int, int]) -> list[int]:
    return [number for pair in sorted(pairs.items()) for number in pair]


_HOW: dict[type, Any] = {
    fmt.Claimed: State._claimed,
    fmt.Acked: State._acked,
    fmt.Nacked: State._nacked,
    fmt.Released: State._released,
    fmt.Extended: State._extended,
    fmt.Died: State._died,
    fmt.Booted: State._booted,
    fmt.Delayed: State._delayed,
    fmt.Parked: State._parked,
    fmt.Gone: State._cleared,
    fmt.Dead: State._dead,
    fmt.Moved: State._moved,
    fmt.Settled: State._settled,
    fmt.Requeued: State._requeued,
    fmt.Purged: State._cleared,
    fmt.Paused: State._paused,
    fmt.Ended: State._ended,
    fmt.Snapshot: State._load,
}
