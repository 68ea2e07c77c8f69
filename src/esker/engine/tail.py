"""Following a topic: what came since the last look, and how to wait for more.

A tail holds one cursor a shard. `take` yields what is there; `wait` blocks until there is more:
woken by a writer of this process, looking every two milliseconds for one in another. Such a look is
at the numbers that the other one publishes (`moved`); the files are looked at now and then, for
what they alone tell: that a writer died, that the topic was deleted. `watch` and `moved` are for
callers that have their own way of waiting (asyncio).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

from esker.clock import Clock
from esker.engine.follower import Follower
from esker.engine.reader import Consistency, Gaps, View, end_of, read_batches, told_gap
from esker.engine.shard import Shard
from esker.engine.sieve import Sieve
from esker.format.counters import WORD
from esker.records import Gap

POLL_SECONDS = 0.002  # how often a follower in another process looks
LOOK_SECONDS = 0.5  # and how often at the files, where no number tells of anything
BLIND_SECONDS = 0.05  # the same where there are no numbers: nobody has written to the shard yet
_TOLD = tuple(
    WORD[name]
    for name in ("next_visible", "durable", "sequence", "segments_generation", "writer_pid")
)


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
        followers: Sequence[Follower], gaps: Gaps, consistency: Consistency, sieve: Sieve,
        missed: dict[int, Gap] | None = None,
    ) -> None:  # fmt: skip
        self.cursors = cursors
        self._missed = missed or {}  # in a topic that had the name before, and not yet told
        self._shards = [shards[number] for number in cursors]
        self._view = view
        self._followers = followers
        self._told: dict[int, tuple[int, ...]] | None = None  # when `moved` was last asked
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
        """Have `waiter` released when there is more. False when one has to look as well."""
        for shard in self._shards:
            shard.add_waiter(waiter)
        if self._consistency == "strong" or not all(map(_is_ours, self._shards)):
            return False
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

    def moved(self) -> bool:
        """Whether there may be more than when this was last asked.

        It costs a few reads of memory, so that a loop may ask, and often.
        """
        told = {shard.number: self._told_by(shard) for shard in self._shards}
        before, self._told = self._told, told
        if before is not None:
            return told != before
        return any(
            shard.context.closed or shard.gone or told[shard.number][0] > self.cursors[shard.number]
            for shard in self._shards
        )

    @property
    def patience(self) -> float:
        """For how long `moved` may be asked before one looks all the same."""
        blind = (
            self._followers[shard.number]._counters is None
            for shard in self._shards
            if not _is_ours(shard)
        )
        return BLIND_SECONDS if any(blind) else LOOK_SECONDS

    def _told_by(self, shard: Shard) -> tuple[int, ...]:
        """The end of a shard, and what else changes when something happens to it."""
        strong, over = self._consistency == "strong", shard.context.closed or shard.gone
        if _is_ours(shard):
            return min(shard.visible, shard.durable) if strong else shard.visible, over
        page = self._followers[shard.number]._counters
        if page is None:  # nobody has written to it yet, or we have not looked
            return 0, over
        told = [page.words[word] for word in _TOLD]
        return min(told[0], told[1]) if strong else told[0], *told, over

    def wait(self, seconds: float) -> None:
        """Until there may be more, or the time is up."""
        waiter = Lock()
        waiter.acquire()
        try:
            if self.watch(waiter):
                if not self._more():
                    waiter.acquire(timeout=seconds)
                return
            left = min(seconds, self.patience)
            while left > 0:
                if waiter.acquire(timeout=min(POLL_SECONDS, left)) or self.moved():
                    return
                left -= POLL_SECONDS
        finally:
            self.unwatch(waiter)  # woken by one shard, it would stay with those that are idle


def _is_ours(shard: Shard) -> bool:
    """Whether whoever adds to it is in this process, and tells."""
    return shard.writing or shard.durability == "ephemeral"
