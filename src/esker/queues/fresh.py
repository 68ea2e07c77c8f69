"""Jobs that nobody has come upon yet, and of these the ones that wait for their time.

A job that is put with a delay says so in a header; the leases know of it when a claim has passed
it. Whoever counts jobs before that looks at the headers, once for each job: what was looked at is
remembered, and frames without headers cost no more than being read.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from esker.engine.batch import Batch
from esker.errors import EskerError
from esker.queues.claiming import AHEAD_BYTES, not_before
from esker.queues.lane import Lane

if TYPE_CHECKING:
    from esker.queues.queue import Queue


class Fresh:
    """What was seen of the jobs behind the cursor of a lane."""

    def __init__(self) -> None:
        self._seen: tuple[int, dict[int, int]] = (0, {})  # up to here; offsets, and when they may

    def waiting(self, lane: Lane, cursor: int, end: int, wall: int) -> int:
        """How many of the jobs [cursor, end) may not be handed out yet."""
        return sum(at > wall for at in self.times(lane, cursor, end).values())

    def times(self, lane: Lane, cursor: int, end: int) -> dict[int, int]:
        """When those of [cursor, end) may be handed out that say so."""
        seen, known = self._seen
        times = {offset: at for offset, at in known.items() if offset >= cursor}
        seen = max(seen, cursor)
        if seen < end:
            with suppress(EskerError):  # it is told to whoever claims, and looked at again here
                for batch in lane.topic._whole(seen, end, lane.number, AHEAD_BYTES):
                    if not isinstance(batch, Batch):
                        continue
                    if batch.columns.headers is not None:
                        found = ((record.offset, not_before(record)) for record in batch.records())
                        times.update((offset, at) for offset, at in found if at)
                    seen = batch.next_offset
                seen = end
        self._seen = (seen, times)
        return times


class Delayed(msgspec.Struct, frozen=True):
    """A job that waits for its time."""

    shard: int
    offset: int
    seconds_left: float


def delayed(queue: Queue) -> list[Delayed]:
    """`Queue.delayed`."""
    clock = queue._context.clock
    mono, wall = int(clock.monotonic() * 1e6), clock.now_us()
    found: list[Delayed] = []
    for lane, fresh in zip(queue._lanes, queue._fresh, strict=True):
        resting, later, cursor = queue._ask(
            lane, lambda state: (dict(state.resting), dict(state.later), state.cursor)
        )
        later |= fresh.times(lane, cursor, queue.topic.end(lane.number))
        left = {offset: at - mono for offset, at in resting.items()}
        left |= {offset: at - wall for offset, at in later.items()}
        found += [
            Delayed(lane.number, offset, waits / 1e6) for offset, waits in left.items() if waits > 0
        ]
    return sorted(found, key=lambda each: each.seconds_left)
