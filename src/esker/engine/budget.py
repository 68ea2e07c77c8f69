"""A budget for the whole store: `esker.open(path, budget_bytes="10GB")`.

When the segments of all topics together take more, the oldest sealed segments go, whichever topic
they belong to, until they do not. It comes behind caps and ages: what those take goes first, and
only what is then above the budget goes for it. A segment is as old as its youngest record, as it is
for `ttl`; so topics that are written rarely keep what is young. Nothing else differs from a cap:
`keep_segments` stay, the shard's new beginning is durable before any file goes, and who comes from
below is told of a Gap.

    counted       sealed segments and logs of every topic, also of shards that others write
    never taken   the log that is being written, topics with discard="reject", class ephemeral
                  (which takes no disk)
    left alone    shards that another process writes: its own budget takes its part of the plan

Where not enough may go, the store stays above its budget: it is told once, in the log, and in
`store.maintenance()`. No append is ever refused for it; caps with discard="reject" are for that.

A catalog that was damaged may have brought old options back. Until the store is opened the next
time nothing goes for the budget, so that a topic that must not lose anything can say so again.

The sizes of segments are known or asked for once; headers are read of the segments that go and of
one more in each shard. How many records they hold makes no difference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from esker.engine import consumed, retention, tally
from esker.engine.context import LOG
from esker.engine.maintenance import Budget
from esker.engine.reader import View, earliest_of
from esker.engine.retention import Eviction
from esker.engine.shard import Shard
from esker.errors import Corruption, EskerError, StorageError, TopicNotFound
from esker.options import is_evicting

if TYPE_CHECKING:
    from esker.engine.store import Store

REASON = "budget_bytes"


class Candidate(NamedTuple):
    """A segment that may go, once those before it in its shard have gone."""

    age: int  # timestamp of its youngest record, or of one before it
    end: int  # offset behind it
    size: int


class Plan(NamedTuple):
    """What is to go for the budget, and what it is worth."""

    bytes: int = 0  # that there are
    before: int = 0  # bytes that caps and ages take first
    above: int = 0  # bytes that stay above the budget
    evictions: Sequence[tuple[Shard, Eviction]] = ()
    unknown: Sequence[tuple[Shard, EskerError]] = ()  # shards that cannot be weighed, and why


# ---- what is to go ---------------------------------------------------------------------------


def oldest_first(queues: Sequence[Iterator[Candidate]], excess: int) -> tuple[dict[int, int], int]:
    """Up to which offset each queue is to go, so that so many bytes go; and how many cannot."""
    heads = [(next(queue, None), number) for number, queue in enumerate(queues)]
    heap = [(head, number) for head, number in heads if head is not None]
    heapify(heap)
    ends: dict[int, int] = {}
    while heap and excess > 0:
        taken, number = heappop(heap)
        ends[number] = taken.end
        excess -= taken.size
        following = next(queues[number], None)
        if following is not None:
            heappush(heap, (following, number))
    return ends, max(0, excess)


def plan(store: Store) -> Plan:
    """What is to go now, behind what caps and ages take."""
    limit, now = store._context.options.budget_bytes, store._context.clock.now_us()
    if not limit:
        return Plan()
    shards, views, unknown = _look(store)
    total = sum(map(weight, views))
    if total <= limit:
        return Plan(total, unknown=unknown)
    gone = [_gone_anyway(view, now) for view in views]
    before = sum(map(_bytes_here, views, gone))
    excess = max(0, total - before - limit)
    if not excess or "damaged_catalog" in store.recovery.labels:
        return Plan(total, before, excess, unknown=unknown)
    queues = [_candidates(view, each) for view, each in zip(views, gone, strict=True)]
    ends, above = oldest_first(queues, excess)
    found = [(shards[at], _behind(up_to(views[at], ends[at]), gone[at])) for at in sorted(ends)]
    going = [(shard, each) for shard, each in found if each is not None]
    return Plan(total, before, above, going, unknown)


def _look(store: Store) -> tuple[list[Shard], list[View], list[tuple[Shard, EskerError]]]:
    """Every shard that takes room on the disk, how it is now; and those nobody can look at."""
    shards: list[Shard] = []
    views: list[View] = []
    unknown: list[tuple[Shard, EskerError]] = []
    on_disk = retention.shards_of(store, lambda entry: entry.options.durability != "ephemeral")
    for topic, number in on_disk:
        shard = topic._shards[number]
        try:
            views.append(topic._view(number))
            shards.append(shard)
        except TopicNotFound:
            continue  # deleted meanwhile
        except EskerError as problem:  # the others are kept within the budget all the same
            unknown.append((shard, problem.with_traceback(None)))  # which would hold files open
    return shards, views, unknown


def _gone_anyway(view: View, now_us: int) -> Eviction | None:
    """What caps and ages take of a shard; nothing, where that cannot be told."""
    with suppress(Corruption, StorageError):
        return retention.plan(view, now_us) if is_evicting(view.entry.options) else None
    return None


def _bytes_here(view: View, gone: Eviction | None) -> int:
    """What an eviction gives back on this disk: of segments that were moved, their stubs."""
    with suppress(StorageError):  # evicted just now: the next look knows
        leading = view.segments[: gone.segments] if gone is not None else ()
        return sum(retention.size_on_disk(view, segment) for segment in leading)
    return 0


def weight(view: View) -> int:
    """The bytes that a shard's segments take."""
    if isinstance(view, Shard):
        return tally.bytes_of(view).here
    total = 0
    for segment in view.segments:
        try:
            size = retention.size_on_disk(view, segment)
        except StorageError:  # sealed, or evicted, by its writer just now: the next look knows
            continue
        total += size
    return total


def _candidates(view: View, gone: Eviction | None) -> Iterator[Candidate]:
    """The segments of a shard that may go, the oldest first, behind those that go anyway."""
    options, segments = view.entry.options, view.segments
    if options.discard != "old":
        return
    first = max(earliest_of(view), view.earliest, gone.last + 1 if gone is not None else 0)
    free = _unprotected(view)
    for index in range(len(segments) - options.keep_segments):
        end = segments[index + 1].base
        if index >= free:
            return  # a group has yet to read it
        if end <= first:
            continue
        try:
            age = segments[index + 1].header.previous_high
            size = retention.size_on_disk(view, segments[index])
        except (Corruption, StorageError):
            return  # nobody knows how old it is
        yield Candidate(age, end, size)


def up_to(view: View, end: int, most: int = 1 << 62) -> Eviction | None:
    """The segments of a shard that lie before an offset, as far as they may go."""
    options, segments = view.entry.options, view.segments
    if options.discard != "old":
        return None
    count = bisect_right([segment.base for segment in segments[1:]], end)
    count = min(count, len(segments) - options.keep_segments, most)
    count = min(count, _unprotected(view))
    return retention.leading(view, segments, count, REASON)


def _unprotected(view: View) -> int:
    """How many segments, from the oldest on, no group wants to be kept."""
    now = view.context.clock.now_us()
    return retention.unprotected(view, now, consumed.readers_of(view))


def _behind(found: Eviction | None, gone: Eviction | None) -> Eviction | None:
    """What is left of an eviction behind another one of the same shard."""
    if found is None or gone is None:
        return found
    return msgspec.structs.replace(
        found, first=gone.last + 1, segments=found.segments - gone.segments,
        bytes=found.bytes - gone.bytes,
    )  # fmt: skip


# ---- doing it --------------------------------------------------------------------------------


def keep(store: Store) -> Iterator[Eviction]:
    """Evict what is above the budget; of shards that other processes write, nothing."""
    found = plan(store)
    for shard, wanted in found.evictions:
        done = _evict(shard, wanted.last + 1)
        if done is not None:
            yield done
    for _, problem in found.unknown:
        raise problem


def keep_quietly(store: Store) -> None:
    """For the background: what fails is logged, and tried again later; a pause ends it."""
    limit, background = store._context.options.budget_bytes, store._context.background
    if not limit or background.resting():
        return
    background.room = None  # until it is known
    found = plan(store)
    for shard, problem in found.unknown:
        retention.failed(shard, problem)
    left = found.bytes
    for shard, wanted in found.evictions:
        if background.resting():
            return
        with retention.failing_quietly(shard):
            done = _evict(shard, wanted.last + 1)
            left -= done.bytes if done is not None else 0
    if left <= limit:
        background.room = limit - left
    _tell(store, found.above)


def _evict(shard: Shard, end: int) -> Eviction | None:
    """Evict what lies before an offset of a shard that this process writes, or can take."""

    def begin(shard: Shard) -> Eviction | None:
        return retention.evict(shard, lambda most: up_to(shard, end, most))

    with suppress(TopicNotFound):  # deleted meanwhile
        return begin(shard) if shard.writing else retention.taken_for(shard, begin)
    return None


def _tell(store: Store, above: int) -> None:
    """Say once that the budget cannot be kept, and once again when it could be in between."""
    background, limit = store._context.background, store._context.options.budget_bytes
    if above and not background.above:
        LOG.warning(
            "%s: %d bytes are above budget_bytes=%d and nothing more may be evicted: what is left "
            "is being written, or is kept by discard='reject', keep_segments or groups that have "
            "not read it, or the catalog was damaged", store.path, above, limit,
        )  # fmt: skip
    background.above = above


def standing(store: Store) -> Budget | None:
    """The budget and what is used of it; None if there is none."""
    limit = store._context.options.budget_bytes
    if not limit:
        return None
    found = plan(store)
    to_evict = found.before + sum(each.bytes for _, each in found.evictions)
    return Budget(limit, found.bytes, to_evict, found.above, len(found.unknown))
