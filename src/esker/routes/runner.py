"""One route at work: poll, filter, append, sync, ack.

A step takes some megabytes of the source, appends what matches, syncs the destination once, and
acks all of it. What goes wrong in between is undone by not acking: the next step is given the same
again. Of a batch that went to several shards of the destination, what is already there is known, in
memory, and left out; over a restart only the marks of exactly once know it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from esker.engine.batch import Batch
from esker.engine.intake import check_sizes, encode_arrow
from esker.engine.reader import end_of, read_batches
from esker.engine.sieve import Sieve
from esker.errors import (
    BatchTooLarge,
    EskerError,
    Fenced,
    StoreClosed,
    StoreForked,
    TopicNotFound,
    WriterBusy,
)
from esker.filters import Filter, parse
from esker.format import names
from esker.format.routes import RouteEntry, decode_mark, encode_mark, mark_prefix
from esker.groups.batch import GroupBatch
from esker.groups.group import Group, open_group
from esker.groups.registry import tell
from esker.records import Gap
from esker.routes.forward import Part, as_copied, hopped, last_mark, marked, matching, parts
from esker.storage.files import join

if TYPE_CHECKING:
    from esker.engine.topic import Topic
    from esker.groups.held import Held
    from esker.routes.registry import Registry

STEP_BYTES: Final = 8 << 20  # of values, between two syncs of the destination
BATCH_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 1.0  # between tries of a route that stands still
LOOK_SECONDS: Final = 0.25  # between looks at a source that seems to have nothing new
MARK_WINDOW: Final = 1 << 16  # records that are looked through at a time, from the end
LASTING: Final = ("fsync", "disk")


def group_of(route: int) -> str:
    """The name of the group as which a route reads."""
    return f"route:{route}"


class Runner:
    """One route in one process."""

    def __init__(self, registry: Registry, entry: RouteEntry) -> None:
        self.entry = entry
        self.lock = threading.RLock()  # held by who makes a step
        self.reason = entry.reason
        self.code = ""
        self.forwarded = self.filtered = self.missed = self.looped = 0
        self._registry = registry
        self._store = registry.store
        self._clock = registry.store._context.clock
        self._rests = registry.store._context.options.background  # who ticks by hand wants it now
        self._where: Filter | None = None
        self._group: Group | None = None
        self._held: dict[int, Held] = {}
        self._sent: dict[tuple[int, int], int] = {}  # source shard, ours: the last offset there
        self._retry = self._look = 0.0
        self.rests_since: float | None = None  # put off by whoever runs it

    # ---- a step --------------------------------------------------------------------------

    def step(self, *, now: bool = False) -> int:
        """Forward what is there, up to a few megabytes; how many records were read.

        A route that stands still is tried again once a second; `now` does not wait for that.
        """
        with self.lock:
            moment = self._clock.monotonic()
            if not now and moment < self._retry:
                return 0
            try:
                if not now and self._rests and not self._is_due(moment):
                    return 0
                self._look = moment + LOOK_SECONDS
                done = self._step()
            except (StoreClosed, StoreForked):
                raise
            except EskerError as problem:
                self._stands(problem)
                return 0
            except Exception as problem:  # a mistake of ours; the others go on, and this one tells
                self._stands(EskerError(f"{type(problem).__name__}: {problem}"))
                return 0
            self._goes()
            return done

    def _is_due(self, moment: float) -> bool:
        """Whether there may be something to do. Nearly always asked in vain: it must be cheap."""
        group = self._group
        if group is None or moment >= self._look:
            return True
        topic = group.topic
        return any(
            end_of(topic._view(number), group._consistency) > held.position
            for number, held in list(group._held.items())
        )

    def _step(self) -> int:
        if self.entry.where and self._where is None:
            self._where = parse(self.entry.where)
        source, destination = self._topics()
        group = self._joined(source, destination)
        limit = min(BATCH_BYTES, max(1, destination.options.segment_bytes // 4))
        batches: list[GroupBatch] = []
        read = size = wrote = 0
        problem: EskerError | None = None
        try:
            for item in group.poll(0, limit):
                if isinstance(item, Gap):
                    self._misses(item)
                    continue
                wrote += self._forward(item, destination)
                batches.append(item)
                read += len(item)
                size += item.nbytes
                if size >= STEP_BYTES:
                    break
        except EskerError as found:
            problem = found
        if wrote and destination.options.durability in LASTING:
            destination.sync()
        for batch in batches:
            try:
                batch.ack()
            except Fenced:
                self._held.pop(batch.shard, None)  # another owner, or a seek: it comes again
        if problem is not None:
            group.rewind()
            raise problem
        return read

    def _forward(self, batch: GroupBatch, destination: Topic) -> int:
        """Append what is wanted of a batch; how many records that were."""
        if self._held.get(batch.shard) is not batch._held:
            self._take_over(batch, destination)
        whole = Part(batch.shard, batch.columns, batch.offsets)
        wanted = as_copied(matching(self._where, whole, batch.shard))
        filtered = len(batch) - len(wanted.offsets)
        looped = wrote = 0
        if self.entry.allow_cycles:
            wanted, looped = hopped(wanted, self.entry.hops)
        for part in parts(wanted, destination.shards):
            there = self._sent.get((batch.shard, part.shard), -1)
            fresh = part.behind(there)
            if len(fresh.offsets):
                self._append(fresh, batch.shard, destination)
                wrote += len(fresh.offsets)
        self.forwarded += wrote
        self.filtered += filtered
        self.looped += looped
        return wrote

    def _append(self, part: Part, source: int, destination: Topic) -> None:
        """As one batch, with its mark; in halves, each with one, where that is too large."""
        once, columns = self.entry.exactly_once, part.columns
        check_sizes(columns.values, destination._limit())
        if once:
            prefix = self._prefix(source)
            columns = marked(columns, encode_mark(prefix, part.last))
        shard, now = destination._shards[part.shard], self._clock.now_us()
        try:
            destination._append_bodies(shard, encode_arrow(columns), False, now, once)
        except BatchTooLarge:
            half = len(part.offsets) // 2
            if not half:
                raise
            self._append(part.slice(0, half), source, destination)
            self._append(part.slice(half, len(part.offsets) - half), source, destination)
        self._sent[source, part.shard] = part.last

    # ---- where it is ---------------------------------------------------------------------

    def _topics(self) -> tuple[Topic, Topic]:
        entry = self.entry
        return (
            self._topic(entry.source, entry.source_name, "source"),
            self._topic(entry.destination, entry.destination_name, "destination"),
        )

    def _topic(self, number: int, name: str, what: str) -> Topic:
        """A topic by its number; another one of the same name is another one."""
        known = self._store._catalog.by_id(number)
        if known is not None:
            topic = self._store[known.name]
            if topic._existing().id == number:
                return topic
        raise TopicNotFound(f"the {what}, topic {name!r}, was deleted; delete the route too")

    def _joined(self, source: Topic, destination: Topic) -> Group:
        """The group, once nobody else writes the destination: whoever does runs the route."""
        if self._group is not None:
            return self._group
        self._require_free(destination)
        consistency: Any = "strong" if source.options.durability in LASTING else "eventual"
        self._group = open_group(
            source, group_of(self.entry.id), gaps="yield", consistency=consistency
        )
        return self._group

    def _require_free(self, destination: Topic) -> None:
        files = self._store._context.files
        for shard in destination._shards:
            if shard.writing or shard.durability == "ephemeral":
                continue
            holder = files.holder(join(shard.folder, names.LOCK))
            if holder is not None:
                raise WriterBusy(
                    f"the destination, topic {destination.name!r}, is written by process "
                    f"{holder.pid}, which is the one that can run the route", pid=holder.pid,
                )  # fmt: skip

    def _take_over(self, batch: GroupBatch, destination: Topic) -> None:
        """A shard of the source is ours from here on: find out what of it is there already."""
        self._registry.reload()
        self.entry = self._registry.entry(self.entry.id) or self.entry
        for number in range(destination.shards):
            self._sent.pop((batch.shard, number), None)
        self._take_all(destination)
        if self.entry.exactly_once:
            for number in range(destination.shards):
                found = self._mark_in(destination, number, self._prefix(batch.shard))
                if found >= 0:
                    self._sent[batch.shard, number] = found
        self._held[batch.shard] = batch._held

    def _take_all(self, destination: Topic) -> None:
        """Become the writer of the destination: of all of it, from its first shard on, or of none.

        From here on nobody appends behind our back; and two processes that each have a half, and
        wait for the other's, there cannot be.
        """
        with ExitStack() as handing_back:
            for shard in destination._shards:
                with shard.lock:
                    fresh = not shard.writing
                    shard.open_for_writing()
                if fresh:
                    handing_back.callback(shard.hand_back)
            handing_back.pop_all()

    def _prefix(self, source: int) -> bytes:
        entry = self.entry
        return mark_prefix(self._store._context.store, entry.id, entry.epoch, source)

    def _mark_in(self, destination: Topic, number: int, prefix: bytes) -> int:
        """The offset in the last mark of ours, in one shard of the destination; -1 for none."""
        view = destination._view(number)
        since = self.entry.since[number] if number < len(self.entry.since) else 0
        floor, high = max(since, view.earliest), view.visible
        while high > floor:
            low, found = max(floor, high - MARK_WINDOW), None
            for batch in read_batches(view, low, high, gaps="skip", sieve=Sieve(deleted=False)):
                if isinstance(batch, Batch):
                    found = last_mark(batch.columns, prefix) or found
            if found is not None:
                return decode_mark(found)
            high = low
        return -1

    # ---- standing still, and going on ----------------------------------------------------

    def _misses(self, gap: Gap) -> None:
        self.missed += gap.last + 1 - gap.first
        tell("route %r: %s was lost before it was forwarded", self.entry.name, gap)

    def _stands(self, problem: EskerError) -> None:
        """Say why, and let others try: what this process cannot do another one may."""
        self._retry = self._clock.monotonic() + RETRY_SECONDS
        self.leave()
        if self.code != problem.code:
            tell("route %r stands still: %s", self.entry.name, str(problem))
            self.code, self.reason = problem.code, str(problem)
            if not isinstance(problem, WriterBusy):  # then it runs elsewhere
                self._registry.note(self.entry.id, self.reason)
        self.reason = str(problem)

    def _goes(self) -> None:
        self._retry = 0.0
        if self.code or (self.reason and self._held):
            self.code = self.reason = ""
            self._registry.note(self.entry.id, "")

    def leave(self) -> None:
        """Leave the group; another process may go on."""
        group, self._group = self._group, None
        self._held.clear()
        if group is not None:
            try:
                group.close()
            except EskerError as problem:
                tell("route %r: leaving its group: %s", self.entry.name, str(problem))

    def let_go(self) -> None:
        """In a forked child: nothing of it is ours."""
        self._group, self._held = None, {}
        self.lock = threading.RLock()
