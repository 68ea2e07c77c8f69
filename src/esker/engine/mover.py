"""What moves by itself: sealed segments beyond a topic's bounds go to the cold store.

    hot_segments, hot_bytes    so many of the newest sealed segments of each shard, or so many bytes
                               of them, stay here; the stricter of the two counts

`due` decides, from sizes alone; `Mover.step` does it, one segment after the other, the oldest
first, for the shards that this handle writes, and sweeps what nobody needs any more (tiering.py).
It runs in a thread of its own, or in `store.tick()` where there are none, so that a cold store that
is slow or gone keeps nobody from sealing. After a failure it waits, each time longer, up to a
minute.

What was brought back by hand stays as long as the store is open. A damaged segment is left where it
is. Topics that were deleted leave their objects behind: whoever writes to the store deletes them,
once when it is opened, and after each deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from esker.engine.context import LOG, Context
from esker.engine.maintenance import Tiers
from esker.engine.tiering import move_out, sweep
from esker.errors import Corruption, EskerError
from esker.format import names
from esker.options import TopicOptions
from esker.storage.sealed import SealedSegment

if TYPE_CHECKING:
    from esker.engine.shard import Shard

LOOK_SECONDS = 5.0  # between looks, where nothing wakes it
WAIT_SECONDS_MAX = 60.0  # after many failures


def beyond(sizes: Sequence[int], options: TopicOptions) -> int:
    """How many sealed segments of these sizes, from the oldest on, need not be here."""
    count = total = 0
    for size in reversed(sizes):
        total += size
        if options.hot_segments and count >= options.hot_segments:
            break
        if options.hot_bytes and total > options.hot_bytes:
            break
        count += 1
    return len(sizes) - count


def due(shard: Shard) -> list[SealedSegment]:
    """The segments of a shard that are to be moved, the oldest first."""
    if not shard.writing or shard.poison is not None or shard.durability == "ephemeral":
        return []
    sealed = list(shard.sealed)
    many = beyond([segment.size for segment in sealed], shard.entry.options)
    return [each for each in sealed[:many] if each.local_size == each.size and not each.pinned]


class Mover:
    """Moves and sweeps, for all shards that this handle writes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failures = 0  # one after the other
        self._not_before = 0.0  # when to ask the cold store again
        self._said = ""  # why it failed the last time
        self.gone_soon = True  # topics may have been deleted since somebody looked

    def step(self) -> float:
        """Do what is due; returns the seconds until the next look."""
        context = self._context
        if not context.cold:
            return LOOK_SECONDS
        wait = self._not_before - context.clock.monotonic()
        if wait > 0 and context.options.background:
            return wait
        for shard in list(context.shards):
            if not self._tend(shard):
                return self._not_before - context.clock.monotonic()
        if self.gone_soon and not self._at("sweeping", self._sweep_gone):
            return self._not_before - context.clock.monotonic()
        self._failures, self._said = 0, ""
        return LOOK_SECONDS

    def _tend(self, shard: Shard) -> bool:
        """Move and sweep what is due of a shard; False if that is to wait."""
        for segment in due(shard):
            if self._context.background.resting():
                return True
            if not self._at("moving", partial(self._move, shard, segment), shard):
                return False
        if shard.orphaned and shard.writing and not self._context.background.resting():
            return self._at("sweeping", partial(sweep, shard), shard)
        return True

    def _move(self, shard: Shard, segment: SealedSegment) -> None:
        try:
            move_out(shard, segment, self._context.background.resting)
        except Corruption as problem:  # of the segment, or of what the cold store made of it
            segment.pinned = True
            LOG.warning("%s", str(problem))
            self._context.background.diary.failed("moving", problem, shard)

    def _sweep_gone(self) -> None:
        """Delete what topics have left that were deleted."""
        context, self.gone_soon = self._context, False
        try:
            store = context.maps.cold.store(context.cold)
            prefix = names.cold_prefix(context.store)
            for name in store.folders(prefix):
                topic = names.parse_number(name)
                if topic is None or not context.is_gone(topic):
                    continue
                for key in store.list(f"{prefix}{name}/"):
                    if context.background.resting():
                        self.gone_soon = True
                        return
                    if names.parse_cold(key) is not None:
                        store.delete(key)
                        context.background.diary.did("swept")
        except BaseException:
            self.gone_soon = True
            raise

    def _at(self, what: str, act: Callable[[], object], shard: Shard | None = None) -> bool:
        """Do it. What fails is told, and the cold store is left alone for a while."""
        background, clock = self._context.background, self._context.clock
        try:
            with background.diary.at(what, shard):
                act()
        except EskerError as problem:
            self._failures += 1
            wait = min(2.0 ** min(self._failures, 10), WAIT_SECONDS_MAX)
            self._not_before = clock.monotonic() + wait
            background.diary.failed(what, problem, shard)
            if str(problem) != self._said:  # told once, and again when it is another
                LOG.warning("%s segments: %s", what, str(problem))
            self._said = str(problem)
            return False
        return True

    def report(self, bounded: int) -> Tiers | None:
        """How things stand, in a store with so many topics that have bounds."""
        context = self._context
        done = context.background.diary.count
        if not context.cold and not bounded and not done("brought_segments"):
            return None
        wait = max(0.0, self._not_before - context.clock.monotonic()) if self._failures else 0.0
        return Tiers(
            cold=context.cold,
            topics=bounded,
            waiting=sum(len(due(shard)) for shard in list(context.shards)),
            moved_segments=done("moved_segments"),
            moved_bytes=done("moved_bytes"),
            brought_segments=done("brought_segments"),
            brought_bytes=done("brought_bytes"),
            swept=done("swept"),
            failures=self._failures,
            next_try=wait,
            reason=self._said,
        )
