"""Following a topic: what came since the last look, and how to wait for more.

A tail holds one cursor a shard. `take` yields what is there; `wait` blocks until there is more:
woken by a writer of this process, looking every two milliseconds for one in another. `watch` is
for callers that have their own way of waiting (asyncio).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

from esker.clock import Clock
from esker.engine.reader import Consistency, Gaps, View, end_of, read_batches, told_gap
from esker.engine.shard import Shard
from esker.engine.sieve import Sieve
from esker.records import Gap

POLL_SECONDS = 0.002  # how often a follower in another process looks


class _Tail(Protocol):
    def take(self) -> Iterator[Any]: ...
    def wait(self, seconds: float) -> None: ...


def following(
    tail: _Tail, timeout: float | None, clock: Clock, closed: Callable[[], bool] = lambda: False
) -> Iterator[Any]:
    """What a tail takes, until nothing has come for `timeout` seconds (for ever, when None)."""
    deadline = None if timeout is None else clock.monotonic() + timeout
    while not closed():
        moved = False
        for batch in tail.take():
            moved = True
            yield batch
        if moved:
            deadline = None if timeout is None else clock.monotonic() + timeout
            continue
        left = 3600.0 if deadline is None else deadline - clock.monotonic()
        if left <= 0:
            return
        tail.wait(left)


class Tail:
    """Cursors into the shards of a topic."""

    blocking = False  # with `watch`, nobody need hold a thread to wait

    def __init__(
        self, cursors: dict[int, int], shards: list[Shard], view: Callable[[int], View],
        gaps: Gaps, consistency: Consistency, sieve: Sieve, missed: dict[int, Gap] | None = None,
    ) -> None:  # fmt: skip
        self.cursors = cursors
        self._missed = missed or {}  # in a topic that had the name before, and not yet told
        self._shards = [shards[number] for number in cursors]
        self._view = view
        self._gaps = gaps
        self._consistency = consistency
        self._sieve = sieve

    def __repr__(self) -> str:
        places = ", ".join(f"{shard}: {offset}" for shard, offset in self.cursors.items())
        return f"<esker tail at {{{places}}}>"

    def _only(self, cursors: dict[int, int]) -> None:
        """From now on look at these shards, from there on, and at no other."""
        self.cursors = dict(cursors)
        self._shards = [shard for shard in self._shards if shard.number in cursors]

    def take(self) -> Iterator[Any]:
        """Batches (and gaps) from the cursors to the end as it is now; the cursors move along."""
        for number in self.cursors:
            view = self._view(number)
            if number in self._missed:
                told = told_gap(view.context, self._missed[number], self._gaps)
                del self._missed[number]  # once; but who has it raised is told until he asks else
                yield from told
            end = end_of(view, self._consistency)
            found = read_batches(
                view, self.cursors[number], end, gaps=self._gaps, sieve=self._sieve, whole=True
            )
            for item in found:
                if isinstance(item, Gap):
                    self.cursors[number] = item.last + 1
                    yield item
                    continue
                self.cursors[number] = item.next_offset
                if len(item):
                    yield item
            self.cursors[number] = max(self.cursors[number], min(view.earliest, end))

    def watch(self, waiter: Any) -> bool:
        """Have `waiter` released when there is more. False when one has to look instead."""
        if self._consistency == "strong" or not all(
            shard.writing or shard.durability == "ephemeral" for shard in self._shards
        ):
            return False
        for shard in self._shards:
            shard.add_waiter(waiter)
        if self._more():  # it came between the last look and the registration
            with suppress(RuntimeError):  # and whoever brought it has released it already
                waiter.release()
        return True

    def unwatch(self, waiter: Any) -> None:
        """Forget a waiter that has given up, so that an idle topic does not collect them."""
        for shard in self._shards:
            shard.drop_waiter(waiter)

    def _more(self) -> bool:
        return any(
            shard.context.closed or shard.gone or shard.visible > self.cursors[shard.number]
            for shard in self._shards
        )

    def wait(self, seconds: float) -> None:
        """Until there may be more, or the time is up."""
        waiter = Lock()
        waiter.acquire()
        if not self.watch(waiter):
            time.sleep(min(POLL_SECONDS, seconds))
        else:
            if not self._more():
                waiter.acquire(timeout=seconds)
            self.unwatch(waiter)  # woken by one shard, it would stay with those that are idle
