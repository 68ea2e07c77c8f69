"""Jobs that were given up: look at them, put them back, throw them away.

With `dead_letter` they lie in a topic of their own, which is a queue too: what was put back, or
thrown away, is done there. Without it they stay in the log of their queue, which then cannot give
back the room of anything behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from esker.format import leases as fmt
from esker.format.leases import runs_of
from esker.queues.claiming import Missing, read
from esker.queues.lane import Lane
from esker.queues.leases import State
from esker.queues.moving import origin_of
from esker.records import Record

if TYPE_CHECKING:
    from esker.queues.queue import Queue


class DeadJob(msgspec.Struct, frozen=True):
    """A job that was given up."""

    record: Record
    shard: int  # where it lies now
    offset: int
    deliveries: int
    reason: str

    @property
    def value(self) -> bytes:
        """The job's value."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """The job's key."""
        return self.record.key


Where = Callable[[DeadJob], bool]


class DeadLetters:
    """The dead of a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<esker dead letters of queue {self._queue.name!r}>"

    def _home(self) -> Queue:
        """The queue in whose log they lie."""
        letter = self._queue.options.dead_letter
        return self._queue._store.queue(letter) if letter else self._queue

    def _elsewhere(self) -> int:
        """How many lie in the dead letter topic."""
        home = self._home()
        return 0 if home is self._queue else sum(1 for _ in self._offsets(home))

    def _offsets(self, home: Queue) -> Iterator[tuple[Lane, int]]:
        for lane in home._lanes:
            for offset in home._ask(lane, partial(self._of, home, lane)):
                yield lane, offset

    def _of(self, home: Queue, lane: Lane, state: State) -> list[int]:
        """Those of a shard that nobody has put back, thrown away, or holds."""
        if home is self._queue:
            return sorted(state.dead)
        end = max(state.cursor, home.topic.end(lane.number))
        waiting = {*state.loose, *state.resting, *state.later, *state.dead}
        return [*sorted(waiting), *range(state.cursor, end)]

    def __len__(self) -> int:
        return sum(1 for _ in self._offsets(self._home()))

    def __iter__(self) -> Iterator[DeadJob]:
        home = self._home()
        for lane in home._lanes:

            def asked(state: State, lane: Lane = lane) -> dict[int, tuple[int, str]]:
                return {
                    offset: (state.deliveries(offset), state.dead.get(offset, ""))
                    for offset in self._of(home, lane, state)
                }

            known = home._ask(lane, asked)
            runs = runs_of(list(known))
            for at in range(0, len(runs), 2):
                for found in read(lane, runs[at], runs[at] + runs[at + 1]):
                    if not isinstance(found, Missing):
                        yield from (_dead(record, *known[record.offset]) for record in found)

    def peek(self, limit: int = 100) -> list[DeadJob]:
        """The first of them."""
        return [job for job, _ in zip(self, range(limit), strict=False)]

    def requeue(
        self, jobs: DeadJob | Sequence[DeadJob] | None = None, *, where: Where | None = None
    ) -> int:
        """Put these back into the queue, or all, or those for which `where` is true.

        Each goes back once, whatever happens meanwhile, and its deliveries count from 0 again.
        Returns how many went.
        """
        return self._settle(jobs, where, back=True)

    def purge(
        self, jobs: DeadJob | Sequence[DeadJob] | None = None, *, where: Where | None = None
    ) -> int:
        """Throw these away, or all, or those for which `where` is true. Returns how many."""
        return self._settle(jobs, where, back=False)

    def _settle(
        self, jobs: DeadJob | Sequence[DeadJob] | None, where: Where | None, *, back: bool
    ) -> int:
        self._queue._context.require_writable()
        home, total = self._home(), 0
        chosen: dict[int, list[int]] = {}
        for job in self._chosen(jobs, where):
            if 0 <= job.shard < len(home._lanes):  # else it is no more there than any other
                chosen.setdefault(job.shard, []).append(job.offset)
        for shard, offsets in chosen.items():
            lane = home._lanes[shard]
            with lane as state:
                there = set(self._of(home, lane, state))
                mine = sorted(there.intersection(offsets))
                if mine:
                    lane.commit([self._event(home, lane, mine, back)])
            lane.settle()
            total += len(mine)
            if lane.state.moving:
                home._mover.run(lane, now=True)
        self._queue._ring()
        return total

    def _chosen(
        self, jobs: DeadJob | Sequence[DeadJob] | None, where: Where | None
    ) -> Iterable[DeadJob]:
        if isinstance(jobs, DeadJob):
            jobs = [jobs]
        found: Iterable[DeadJob] = self if jobs is None else jobs
        return [job for job in found if where is None or where(job)]

    def _event(
        self, home: Queue, lane: Lane, offsets: list[int], back: bool
    ) -> fmt.Purged | fmt.Requeued | fmt.Moved:
        runs = runs_of(offsets)
        if not back:
            return fmt.Purged(runs)
        if home is self._queue:
            return fmt.Requeued(runs)
        sequence = max(lane.state.sequence, home._mover.attached(lane)) + 1
        count = len(offsets)
        return fmt.Moved(sequence, self._queue.name, runs, [0] * count, [""] * count)


def _dead(record: Record, deliveries: int, reason: str) -> DeadJob:
    origin = origin_of(record)
    if origin is not None:
        deliveries, reason = origin.deliveries, origin.reason
    return DeadJob(record, record.shard, record.offset, deliveries, reason)
