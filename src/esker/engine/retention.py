"""How much of a topic is kept: caps, ages, and what happens when they are reached.

    cap_records, cap_bytes    each shard keeps at least so much, and less than a segment more
    ttl                       records older than this need not be kept
    consumed                  what every group has acked need not be kept
    protect_unconsumed        what a group has not acked stays, until it is as old as force_after
    keep_segments             so many stay, whatever the others say
    discard="old"             at a cap the oldest segments are evicted
    discard="reject"          at a cap an append is refused (TopicFull), before it has an offset

Whole sealed segments go, the oldest first, and never rewrite anything; so the cost is that of a few
unlinks, whatever they held. As long as a shard would have less than its cap without its oldest
segment, that one stays. A segment is as old as its youngest record. An idle log whose records have
all expired is ended and sealed, so that it can go too.

What is evicted is lost to whoever has not read it, and he is told: floor.py. What would go now,
`plan` says; it looks at names, sizes and headers only. Above all topics there may be a budget for
the whole store: budget.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from esker.engine import consumed, floor, once, sealing, tally
from esker.engine.attach import committed_before
from esker.engine.consumed import Readers
from esker.engine.context import LOG
from esker.engine.reader import View, earliest_of, find_back
from esker.engine.shard import Shard
from esker.errors import Corruption, EskerError, StorageError, TopicFull, TopicNotFound, WriterBusy
from esker.format.catalog import TopicEntry
from esker.format.commit import Commit
from esker.options import is_evicting
from esker.storage.log import LogSegment
from esker.storage.sealed import SealedSegment, sizes_of
from esker.storage.segment import Segment

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

FRAME_BYTES: Final = 512  # for what stands around records that are not written yet
LOOK_SECONDS: Final = 5.0  # between looks at topics that nobody writes


class Eviction(msgspec.Struct, frozen=True):
    """Segments at the beginning of a shard that retention takes, or took."""

    topic: str
    shard: int
    first: int  # offset
    last: int
    segments: int
    bytes: int
    reason: str  # the option that asked for it

    @property
    def records(self) -> int:
        """How many at the most: offsets that were lost before are counted."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} shard {self.shard}: offsets {self.first}..{self.last}, "
            f"{self.segments} segments of {self.bytes} bytes ({self.reason})"
        )


# ---- what is to go ---------------------------------------------------------------------------


def plan(view: View, now_us: int, most: int = 1 << 62) -> Eviction | None:
    """What of a shard is to go now, `most` segments of it."""
    options, segments = view.entry.options, view.segments
    readers = consumed.readers_of(view)
    ways = {"ttl": _expired(segments, now_us - options.ttl_us) if options.ttl_us else 0}
    if options.consumed and readers is not None:
        bases = [segment.base for segment in segments]
        ways["consumed"] = consumed.acked_segments(bases, readers.lowest)
    if options.discard == "old":
        if options.cap_records:
            bases = [segment.base for segment in segments]
            kept = view.visible - options.cap_records
            if view.marks:  # some of these are deleted, and more of the older ones can stay
                kept = find_back(view, options.cap_records)
            ways["cap_records"] = bisect_right(bases, kept) - 1
        if options.cap_bytes:
            ways["cap_bytes"] = _beyond(view, options.cap_bytes)
    reason = max(ways, key=lambda way: ways[way])
    count = ways[reason]
    # behind a log that has expired there will be an empty one, which stays
    there = len(segments) + (count == len(segments))
    count = min(count, there - options.keep_segments, most)
    count = min(count, unprotected(view, now_us, readers))
    return leading(view, segments, count, reason)


def unprotected(view: View, now_us: int, readers: Readers | None) -> int:
    """How many segments, from the oldest on, no group wants to be kept."""
    options, segments = view.entry.options, view.segments
    if readers is None or not options.protect_unconsumed:
        return len(segments)
    if readers.lowest >= view.visible:
        return len(segments)
    acked = consumed.acked_segments([segment.base for segment in segments], readers.lowest)
    forced = options.force_after_us
    return max(acked, _expired(segments, now_us - forced) if forced else 0)


def leading(view: View, segments: tuple[Segment, ...], count: int, reason: str) -> Eviction | None:
    """The eviction of so many segments at the beginning of a shard; None if that takes nothing."""
    if count <= 0:
        return None
    end = segments[count].base if count < len(segments) else view.visible
    first = max(earliest_of(view), view.earliest)
    if end <= first:
        return None
    size = sum(whole_size(view, segment) for segment in segments[:count])
    return Eviction(view.entry.name, view.number, first, end - 1, count, size, reason)


def _expired(segments: tuple[Segment, ...], before: int) -> int:
    """How many segments, from the oldest on, hold nothing that is as young as that."""
    for index, segment in enumerate(segments):
        try:
            if index + 1 < len(segments):
                high = segments[index + 1].header.previous_high
            elif isinstance(segment, LogSegment):
                high = segment.high if segment.next_row else before
            else:
                assert isinstance(segment, SealedSegment)
                high = max(segment.header.previous_high, segment.footer.max_timestamp)
        except (Corruption, StorageError):
            return index  # nobody knows how old it is
        if high >= before:
            return index
    return len(segments)


def _beyond(view: View, cap: int) -> int:
    """How many segments, from the oldest on, can go and leave as many bytes as the cap."""
    sizes = [whole_size(view, segment) for segment in view.segments]
    left = sum(sizes)
    for count, size in enumerate(sizes):
        left -= size
        if left < cap:
            return count
    return 0


def whole_size(view: View, segment: Segment) -> int:
    """The bytes of a segment, wherever it lies, without the room that a log has taken ahead."""
    return _sizes(view, segment)[0]


def size_on_disk(view: View, segment: Segment) -> int:
    """The bytes that it takes here: of one that lies in a cold store, those of its stub."""
    return _sizes(view, segment)[1]


def _sizes(view: View, segment: Segment) -> tuple[int, int]:
    if isinstance(segment, LogSegment):
        return segment.end, segment.end
    if not isinstance(segment, SealedSegment):
        return sizes_of(view.context.files, segment.path)
    if not segment.size:
        segment.size, segment.local_size = sizes_of(view.context.files, segment.path)
    return segment.size, segment.local_size


# ---- doing it --------------------------------------------------------------------------------


def retain(shard: Shard) -> Eviction | None:
    """Evict what caps and age ask for of a shard that this process writes."""
    now = shard.context.clock.now_us()
    _end_expired(shard, now)
    consumed.tell(shard)
    if shard.counters is not None:
        kept = len(shard.segments) - unprotected(shard, now, consumed.readers_of(shard))
        shard.counters.set("protected_by_groups", kept)
    return evict(shard, lambda most: plan(shard, now, most))


def evict(shard: Shard, planned: Callable[[int], Eviction | None]) -> Eviction | None:
    """Evict what a plan says, which is asked again when nobody can change the shard any more.

    It is told how many segments may go at the most.
    """
    found = planned(1 << 62)
    if found is None or shard.poison is not None:
        return None
    diary = shard.context.background.diary
    with diary.at("evicting", shard):
        done = _evict(shard, found, planned)
    if done is not None:
        diary.did("evicted_segments", done.segments)
        diary.did("evicted_bytes", done.bytes)
    return done


def _evict(
    shard: Shard, found: Eviction | None, planned: Callable[[int], Eviction | None]
) -> Eviction | None:
    clock = shard.context.clock
    started, now = clock.monotonic(), clock.now_us()
    while found is not None and found.segments > len(shard.sealed) and sealing.seal_next(shard):
        shard.context.background.diary.did("sealed")
    for problem in shard.context.committer.make_durable([shard]).values():
        raise problem  # no crash may take the log back to before its beginning
    once.keep(shard)
    with shard.lock:
        found = planned(len(shard.sealed))  # what cannot be sealed goes another time
        if found is None or not shard.writing or shard.poison is not None:
            return None
        consumed.settle(shard)
        floor.begin_at(shard, found.last + 1, lost=True)
        shard._publish_segments()
        gone = floor.take_forgotten(shard)
        shard._count("records_deleted", found.records)
        shard._count("retention_runs")
    floor.unlink(shard, gone, paced=True)
    if shard.counters is not None:
        shard.counters.set("last_retention_ns", now * 1000)
        shard.counters.add("retention_ns", int((clock.monotonic() - started) * 1e9))
    return found


def _end_expired(shard: Shard, now: int) -> None:
    """End an active log of which every record has expired; it can be evicted once it is sealed."""
    ttl = shard.entry.options.ttl_us
    with shard.lock:
        log = shard.active
        if not ttl or not shard.writing or shard.poison is not None or log is None:
            return
        if log.next_row and log.high < now - ttl and not log.damaged:
            sealing.roll(shard)


# ---- all topics of a store -------------------------------------------------------------------


def plans(store: Store) -> Iterator[Eviction]:
    """What is to go now, of every shard of every topic."""
    now = store._context.clock.now_us()
    for topic, number in _retained(store):
        found = plan(topic._view(number), now)
        if found is not None:
            yield found


def retain_all(store: Store) -> Iterator[Eviction]:
    """Evict what is to go, also of shards that nobody writes; those are taken for a moment."""
    for topic, number in _retained(store):
        found = _retain(topic, number)
        if found is not None:
            yield found


def retain_quietly(store: Store) -> None:
    """For the background: what fails is logged, and tried again later; a pause ends it."""
    for topic, number in _retained(store):
        if store._context.background.resting():
            return
        with failing_quietly(topic._shards[number]):
            _retain(topic, number)


@contextmanager
def failing_quietly(shard: Shard) -> Iterator[None]:
    """Nobody waits for it: an error is logged and counted, and keeps nobody from writing."""
    try:
        yield
    except EskerError as problem:
        failed(shard, problem)


def failed(shard: Shard, problem: EskerError) -> None:
    """Say that a shard could not be looked at, or nothing evicted of it."""
    shard._count("retention_errors")
    LOG.warning("retention of %s: %s", shard.folder, problem)
    shard.context.background.diary.failed("evicting", problem, shard)


def _retained(store: Store) -> Iterator[tuple[Topic, int]]:
    return shards_of(store, lambda entry: is_evicting(entry.options))


def shards_of(store: Store, wanted: Callable[[TopicEntry], bool]) -> Iterator[tuple[Topic, int]]:
    """Every shard of the topics that are wanted."""
    for entry in store._entries():
        if wanted(entry):
            topic = store[entry.name]
            with suppress(TopicNotFound):  # deleted meanwhile
                for number in range(topic._existing().options.shards):
                    yield topic, number


def _retain(topic: Topic, number: int) -> Eviction | None:
    shard = topic._shards[number]
    if shard.writing:
        return retain(shard)
    now = shard.context.clock.now_us()
    if shard.durability == "ephemeral" or plan(topic._view(number), now) is None:
        return None
    return taken_for(shard, retain)


def taken_for(shard: Shard, act: Callable[[Shard], Eviction | None]) -> Eviction | None:
    """Do this to a shard that nobody writes, which is taken for a moment; None if somebody does."""
    try:
        with shard.lock:
            shard.open_for_writing()
    except WriterBusy:
        return None  # whoever writes it does this too
    try:
        return act(shard)
    finally:
        shard.hand_back()


# ---- refusing --------------------------------------------------------------------------------


def refuse(shard: Shard, count: int, size: int) -> None:
    """Raise TopicFull if a shard that refuses has no room for so many more. Assumes the lock."""
    options = shard.entry.options
    shard.open_for_writing()
    waiting = len(shard.buffer)
    held = shard.next + waiting - shard.earliest
    if shard.marks:
        held -= shard.marks.count(shard.earliest, shard.next)
    if options.cap_records and held + count > options.cap_records:
        never = count > options.cap_records
        raise full(shard, held, f"cap_records={options.cap_records}", never=never)
    if options.cap_bytes:
        there = tally.bytes_of(shard).all + shard.buffer.bytes
        if there + size + FRAME_BYTES > options.cap_bytes:
            never = size + FRAME_BYTES > options.cap_bytes
            raise full(shard, there, f"cap_bytes={options.cap_bytes}", never=never)


def full(shard: Shard, held: int, cap: str, *, never: bool) -> TopicFull:
    """The error that says which cap is reached, and what to do; never: it would not fit alone."""
    advice = "Delete what is not needed (topic.delete), or wait until ttl has taken it."
    if never:
        advice = "It is more than fits at all: append it in parts, or raise the cap."
    return TopicFull(
        f"topic {shard.entry.name!r} shard {shard.number} holds {held} and has {cap}: nothing was "
        f"appended. {advice}"
    )


def refuse_batch(store: Store, batch: Commit) -> None:
    """The same for segments made elsewhere, before they are committed: then they have to go in."""
    before = committed_before(store._context, batch.writer)
    if any(batch.sequence <= done.sequence for done in before):
        return  # it will be dropped
    rows: Counter[tuple[int, int]] = Counter()
    for ticket in batch.tickets:
        rows[ticket.topic, ticket.shard] += ticket.rows
    for (topic, number), count in rows.items():
        shard = store._shard(topic, number)
        cap = shard.entry.options.cap_records if shard is not None else 0
        if shard is not None and cap and shard.entry.options.discard == "reject":
            view = store[shard.entry.name]._view(number)
            held = view.visible - view.earliest - view.marks.count(view.earliest, view.visible)
            if held + count > cap:
                raise full(shard, held, f"cap_records={cap}", never=count > cap)
