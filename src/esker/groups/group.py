"""What users hold: a group of readers, as one member of it sees it.

A handle joins its group with the first poll; until then it only looks. Poll goes on behind what it
handed out, whether that has come back or not; what never comes back is delivered again to the next
owner, after a restart, or after `rewind`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from esker.engine.batch import Batch
from esker.engine.reader import (
    BATCH_BYTES,
    Consistency,
    Gaps,
    check_consistency,
    check_count,
    check_gaps,
    check_timeout,
    end_of,
    read_batches,
    resolve,
)
from esker.engine.sieve import check_node
from esker.engine.tail import Tail
from esker.engine.topic import Topic
from esker.errors import (
    CommitTimeout,
    DataGap,
    Fenced,
    GroupNotFound,
    InvalidOption,
    MemberBusy,
    StoreClosed,
    TopicNotFound,
)
from esker.format import offsets as fmt
from esker.format.offsets import Slot
from esker.groups import lag as lags
from esker.groups.batch import GroupBatch
from esker.groups.describe import GroupStatus, groups_of
from esker.groups.fresh import Fresh, check_dedupe
from esker.groups.held import Held
from esker.groups.lag import Lag
from esker.groups.membership import Membership
from esker.groups.moves import Move, move_of, targets
from esker.groups.process import OnError, process
from esker.groups.registry import Groups, tell
from esker.options import duration_us
from esker.positions import Position, parse
from esker.records import Gap
from esker.storage.offsets import OffsetsFile

WAIT_SECONDS: Final = 0.02  # at a stretch, for records: members come and go meanwhile
PAUSE_SECONDS: Final = 0.002  # between looks whether others have synced
CLOSE_SECONDS: Final = 1.0  # that closing waits for acked records to become durable elsewhere
POLL_RECORDS: Final = 1000


class Group:
    """A group that reads one topic. Use it as a context manager, or close it."""

    def __init__(
        self, topic: Topic, name: str, membership: Membership, gaps: Gaps,
        consistency: Consistency, skip_node: str | None, session_us: int, dedupe: int,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.name = name
        self.skipped = 0
        """Records that were lost before this member read them, with gaps="skip"."""
        self.duplicates = 0
        """Records that this member left out because they had come before, with dedupe=N."""
        self._context = topic._store._context
        self._registry = Groups.of(self._context)
        self._membership = membership
        self._gaps = gaps
        self._consistency = consistency
        self._sieve = check_node(skip_node)
        self._session = session_us / 1e6
        self._lock = threading.RLock()  # guards everything below, and every Held
        self._held: dict[int, Held] = {}
        self._dedupe = dedupe
        self._fresh: dict[int, Fresh] = {}  # of the shards that are held
        self._joined = 0
        self._turn = 0
        self._rates = lags.Rates()
        self._stop = False
        self.closed = False

    def __repr__(self) -> str:
        shards = ", ".join(map(str, sorted(self._held))) or "none"
        return f"<esker group {self.name!r} of {self.topic.name!r}, shards held: {shards}>"

    # ---- reading -------------------------------------------------------------------------

    def poll(
        self, max_records: int = POLL_RECORDS, max_bytes: int = BATCH_BYTES, wait: float | None = 0,
    ) -> Iterator[GroupBatch]:  # fmt: skip
        """The batches that are there for this member, up to the end as it is now.

        Waits up to `wait` seconds for the first one (None: for ever). `max_records` and `max_bytes`
        are of one batch. With gaps="yield" a Gap comes in its place; with "raise" a DataGap is
        raised once for each, and the next poll goes on behind it.
        """
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        self._require_open()
        return self._poll(max_records, max_bytes, check_timeout(wait))

    def _poll(self, max_records: int, max_bytes: int, wait: float | None) -> Iterator[Any]:
        clock = self._context.clock
        deadline = None if wait is None else clock.monotonic() + wait
        while True:
            with self.topic._told_if_deleted():
                numbers = self._settle()
            for number in numbers:
                found = False
                for item in self._read(number, max_records, max_bytes):
                    found = True
                    yield item
                if found:
                    deadline = 0.0
            left = 1.0 if deadline is None else deadline - clock.monotonic()
            if left <= 0 or self._stop:
                return
            self._wait(min(left, WAIT_SECONDS))

    def _read(self, number: int, max_records: int, max_bytes: int) -> Iterator[Any]:
        """What is there of one shard. The lock is not held while somebody else has the batch."""
        held = self._held.get(number)
        if held is None or held.leaving or held.paused:
            return
        view = self.topic._view(number)
        end = end_of(view, self._consistency)
        at = held.position
        found = read_batches(
            view, at, end, max_bytes=max_bytes, max_records=max_records, gaps="yield",
            sieve=self._sieve, whole=True,
        )  # fmt: skip
        for item in found:
            with self._lock:
                if self._held.get(number) is not held or held.paused or held.position != at:
                    return  # not ours any more; or it was rewound, or another thread read on
                if not self._membership.steady():
                    return  # somebody came or went: the next poll looks who reads what
                made = self._hand(held, item)
                at = held.position
            if isinstance(made, DataGap):
                raise made
            if made is not None:
                yield made
        with self._lock:  # deleted on request up to the end: nothing comes, and nothing is missing
            if self._held.get(number) is held and held.position == at < min(view.earliest, end):
                held.passes(min(view.earliest, end))

    def _hand(self, held: Held, item: Batch | Gap) -> GroupBatch | Gap | DataGap | None:
        if self._dedupe:
            item = self._sift(held, item)
        if isinstance(item, Gap):
            if self._gaps == "skip":
                self.skipped += item.last + 1 - item.first
                held.passes(item.last + 1)
                return None
            held.gap(item.last + 1)
            return item if self._gaps == "yield" else DataGap(item)
        if not len(item):
            held.passes(item.next_offset)
            return None
        return GroupBatch(self, held, item, held.hands(item.next_offset))

    def _sift(self, held: Held, item: Batch | Gap) -> Batch | Gap:
        """Without what came before, see fresh.py."""
        fresh = self._fresh.get(held.number)
        if fresh is None:
            fresh = self._fresh[held.number] = Fresh(self._dedupe, self._sieve)
        if isinstance(item, Gap) or not len(item):
            first, end = (
                (item.first, item.last + 1)
                if isinstance(item, Gap)
                else (item.begin, item.next_offset)
            )
            fresh.passed(first, end)
            return item
        left = fresh.sift(self.topic._view(held.number), item)
        self.duplicates += len(item) - len(left)
        return left

    def _wait(self, seconds: float) -> None:
        self._tail().wait(seconds)

    def _tail(self) -> Tail:
        """What tells whether there is more of what this member holds."""
        with self._lock:
            cursors = {
                number: held.position
                for number, held in self._held.items()
                if not held.leaving and not held.paused  # of these nothing is delivered
            }
        topic = self.topic
        return Tail(
            cursors, topic._shards, topic._view, topic._followers, "yield", self._consistency,
            self._sieve,
        )  # fmt: skip

    # ---- which shards --------------------------------------------------------------------

    def _settle(self) -> list[int]:
        """Let go of what is not ours any more, take what is; the shards to read, in turn."""
        with self._lock:
            self._require_open()
            wanted = self._membership.wanted()
            if self._joined != self._membership.joined:
                self._joined = self._membership.joined
                self._begin()
            for number, held in list(self._held.items()):
                if self._is_lost(held):
                    del self._held[number]
                elif number not in wanted:
                    self._part_with(held)
                else:
                    held.leaving = 0.0
            for number in wanted:
                if number not in self._held:
                    self._take(number)
            for number in self._fresh.keys() - self._held.keys():
                del self._fresh[number]
            order = sorted(self._held)
            self._turn += 1
            at = self._turn % (len(order) or 1)
            return order[at:] + order[:at]

    def _begin(self) -> None:
        """A member of this slot that is dead may have left terms in its name: they are nobody's."""
        owner = self._membership.owner
        for held in self._held.values():  # those of the member that we were until now
            with suppress(Fenced):
                self._release(held)
        self._held.clear()
        for number in range(self.topic.shards):
            page = self._registry.page(self.topic, number)
            slot = self._slot(page)
            if slot.term.owner == owner:
                with page.alone():
                    slot = self._slot(page)
                    if slot.term.owner == owner:
                        self._next_term(page, slot, 0)

    def _is_lost(self, held: Held) -> bool:
        try:
            held.check()
            held.flush()
        except Fenced:
            return True
        return False

    def _part_with(self, held: Held) -> None:
        """It is to be somebody else's: as soon as what was read of it has come back."""
        now = self._context.clock.monotonic()
        held.leaving = held.leaving or now
        drained = held.acked >= held.handed and held.flush()
        if drained or now >= held.leaving + self._session:
            with suppress(Fenced):
                self._release(held)
            self._held.pop(held.number, None)

    def _release(self, held: Held) -> None:
        with held.page.alone():
            slot = held.current()
            held.tell()
            held.page.take(slot, 0)
            held.fence()
            self._registry.touched(held.page)

    def _take(self, number: int) -> None:
        """Begin a term of ours, if nobody who lives has one."""
        page = self._registry.page(self.topic, number)
        owner = self._membership.owner
        if not page.map(writable=True):
            raise AssertionError(page.path)
        slot = self._slot(page)
        if slot.term.owner not in (0, owner) and self._busy(slot) is not None:
            return
        with page.alone():
            slot = self._slot(page)
            if slot.term.owner not in (0, owner) and self._busy(slot) is not None:
                return
            slot = self._next_term(page, slot, owner)
        self._registry.touched(page)
        self._held[number] = Held(self.name, self.topic, number, page, slot, self._registry)

    def _next_term(self, page: OffsetsFile, slot: Slot, owner: int) -> Slot:
        if slot.flaw:
            tell(
                "%s slot %d: %s; group %r goes on from %d, and gets again what it had acked "
                "behind that", page.path, slot.number, slot.flaw, self.name, slot.cursor,
            )  # fmt: skip
        return page.take(slot, owner)

    def _busy(self, slot: Slot) -> int | None:
        """The process that has a shard; None if nobody who lives has it."""
        member = self._membership.alive(slot.term.owner)
        if member is None:
            return None
        if self._membership.static is not None:
            raise MemberBusy(
                f"a shard of group {self.name!r} of topic {self.topic.name!r} that is to be member "
                f"{self._membership.static}'s is held by process {member.pid}, which lives; close "
                "it there, or give each member a number of its own", pid=member.pid,
            )  # fmt: skip
        return member.pid

    def _slot(self, page: OffsetsFile) -> Slot:
        """This group's slot in a page."""
        page.map(writable=False)
        found = page.find(self.name)
        if found is None:
            raise self._forgotten()
        return found

    def _forgotten(self) -> GroupNotFound:
        return GroupNotFound(
            f"group {self.name!r} of topic {self.topic.name!r} was forgotten; "
            "topic.group(name) makes a new one"
        )

    # ---- acks ----------------------------------------------------------------------------

    def ack(self, shard: int, first: int, last: int) -> None:
        """Say that offsets first..last of a shard are done with, in any order.

        The cursor moves to the end of what leaves no hole. Only what this member was delivered can
        be acked; of a shard that it does not hold, nothing (Fenced).
        """
        check_count("first", first, 0)
        check_count("last", last, first)
        with self._lock:
            self._require_open()
            held = self._held.get(shard)
            if held is None:
                raise Fenced(
                    f"shard {shard!r} of group {self.name!r} is not held by this member; "
                    f"it holds {sorted(self._held)}"
                )
            held.ack(first, last + 1)

    def rewind(self) -> None:
        """Deliver again what was delivered to this member and not acked."""
        with self._lock:
            for held in self._held.values():
                held.rewind()

    def sync(self, timeout: float | None = 30.0) -> None:
        """When this returns, all acks so far survive power loss.

        Where the records themselves do not yet, they are waited for; not for longer than `timeout`
        (CommitTimeout).
        """
        limit = check_timeout(timeout)
        self._require_open()
        if not self._drain(limit):
            raise CommitTimeout(
                f"group {self.name!r} of topic {self.topic.name!r}: records that were acked are "
                "not durable yet, so neither are their acks"
            )
        with self._lock:
            pages = [held.page for held in self._held.values()]
        self._registry.sync(pages)

    def _drain(self, limit: float | None) -> bool:
        """Wait until all that is acked is stored. Whether it is.

        The records are made durable where this process writes them; those of others are waited for,
        by the pauses that were made: a clock that stands still is not to hold anybody.
        """
        waited = 0.0
        while not self._flush():
            if limit is not None and waited >= limit:
                return False
            with self._lock:
                ours = [self.topic._shards[number] for number in self._held]
            writing = [shard for shard in ours if shard.writing]
            for shard in writing:
                with shard.lock:
                    shard._flush()
            for problem in self._context.committer.make_durable(writing).values():
                raise problem
            if not self._flush():
                _PAUSE.wait(PAUSE_SECONDS)
                waited += PAUSE_SECONDS
        return True

    def _flush(self) -> bool:
        """Store what is acked and durable by now. Whether that is all."""
        done = True
        with self._lock:
            for held in self._held.values():
                with suppress(Fenced):
                    done &= held.fenced or held.flush()
        return done

    def _store_again(self, page: OffsetsFile) -> None:
        with self._lock:
            for held in self._held.values():
                if held.page is page:
                    held.store_again()

    # ---- where it is ---------------------------------------------------------------------

    def cursors(self) -> dict[int, int]:
        """The cursor of every shard: all before it is done with, whoever did it."""
        with self._lock:
            self._require_open()
            found = {}
            for number in range(self.topic.shards):
                held = self._held.get(number)
                slot = self._slot(self._registry.page(self.topic, number))
                found[number] = slot.cursor
                if held is not None and slot.term.generation == held.slot.term.generation:
                    found[number] = max(slot.cursor, held.acked)
            return found

    def describe(self) -> GroupStatus:
        """The group as anybody sees it: cursors, lag, and the processes that read."""
        self._require_open()
        found = [status for status in groups_of([self.topic]) if status.name == self.name]
        if not found:
            raise self._forgotten()
        return found[0]

    def lag(self) -> Lag:
        """How far behind the group is: records, seconds, and seconds until it has caught up."""
        found = lags.lag(self.topic, self.name, self.cursors())
        return self._rates.told(found, self._context.clock.monotonic())

    def seek(self, to: Any, shard: int | None = None, *, dry_run: bool = False) -> list[Move]:
        """Put the group somewhere else, durably: "earliest", an offset, -N, "@-15m", …

        Whoever reads in it goes on from there; what was delivered before cannot be acked any more
        (Fenced). With `dry_run` nothing is moved, and this says what would be.
        """
        self._require_open()
        self._context.require_writable()
        where = targets(self.topic, to, shard)
        now = self.cursors()
        moves = [move_of(self.topic, view, now[view.number], after) for view, after in where]
        if dry_run:
            return moves
        with self._lock:
            for move in moves:
                self._put(move.shard, move.after)
        return moves

    def _put(self, number: int, cursor: int) -> None:
        page = self._registry.page(self.topic, number)
        page.map(writable=True)
        held = self._held.pop(number, None)
        with page.alone():
            slot = self._slot(page)
            mine = held is not None and slot.term.generation == held.slot.term.generation
            slot = page.take(slot, self._membership.owner if mine else 0, cursor)
            page.sync()
        if held is not None:
            held.fence()
        if mine:
            self._held[number] = Held(self.name, self.topic, number, page, slot, self._registry)

    # ---- pausing -------------------------------------------------------------------------

    def pause(self) -> None:
        """Deliver nothing to any member until `resume`; what was delivered can be acked."""
        self._set(fmt.PAUSED)

    def resume(self) -> None:
        """Go on after a pause."""
        self._set(0)

    @property
    def paused(self) -> bool:
        """Whether the group is paused, by whomever."""
        pages = [self._registry.page(self.topic, n) for n in range(self.topic.shards)]
        return any(self._slot(page).term.flags & fmt.PAUSED for page in pages)

    def _set(self, paused: int) -> None:
        self._require_open()
        self._context.require_writable()
        for number in range(self.topic.shards):
            page = self._registry.page(self.topic, number)
            page.map(writable=True)
            with page.alone():
                slot = self._slot(page)
                page.flag(slot, slot.term.flags & ~fmt.PAUSED | paused)
                page.sync()

    # ---- a loop --------------------------------------------------------------------------

    def process(
        self, handler: Callable[[GroupBatch], Any], *, retries: int = 3, delay: float = 1.0,
        on_error: OnError | None = None, auto_ack: bool = True,
        max_records: int = POLL_RECORDS, max_bytes: int = BATCH_BYTES, idle: float | None = None,
    ) -> int:  # fmt: skip
        """Call `handler` with every batch until `stop`; returns how many records were handled.

        A handler that returns has done its batch, and with `auto_ack` it is acked. One that raises
        is called again, `retries` times, `delay` seconds apart; then `on_error(batch, problem)`
        says what is to be done: "skip" acks the batch, "retry" begins again, "stop" ends with the
        batch not acked. Without `on_error` the error is raised. Raise `StopProcessing` in the
        handler to have the batch acked and the loop end. With `idle`, it ends when nothing came for
        so many seconds.
        """
        return process(
            self, handler, retries=retries, delay=delay, on_error=on_error, auto_ack=auto_ack,
            max_records=max_records, max_bytes=max_bytes, idle=idle,
        )  # fmt: skip

    def stop(self) -> None:
        """End `process` behind the batch at hand; from any thread, or a signal handler."""
        self._stop = True

    # ---- closing -------------------------------------------------------------------------

    def close(self) -> None:
        """Store and sync all acks, let go of the shards, leave the group. The group stays."""
        with self._lock:
            if self.closed:
                return
        try:
            if not all(held.page.is_left() for held in self._held.values()):
                return  # the topic was deleted, and the group with it
            with suppress(TopicNotFound), self.topic._told_if_deleted():  # just now
                self._drain(CLOSE_SECONDS)
                with self._lock:
                    pages = [held.page for held in self._held.values()]
                    for held in self._held.values():
                        with suppress(Fenced):
                            self._release(held)
                    self._held.clear()
                self._registry.sync(pages)
                self._membership.leave()
        finally:
            self._let_go()
            self._registry.went(self)

    def _let_go(self) -> None:
        self.closed = self._stop = True
        for held in self._held.values():
            held.fence()
        self._held = {}
        self._lock = threading.RLock()  # a child of this process may have a copy that is held
        self._membership.let_go()

    def _require_open(self) -> None:
        self._context.require_open()
        if self.closed:
            raise StoreClosed(f"this handle of group {self.name!r} is closed; make another one")

    def __enter__(self) -> Group:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping


# ---- making one ------------------------------------------------------------------------------


def open_group(
    topic: Topic, name: str, start: Any = "earliest", *, member: Any = None, gaps: Gaps = "raise",
    consistency: Consistency = "eventual", skip_node: str | None = None, session: Any = 60.0,
    dedupe: int = 0,
) -> Group:  # fmt: skip
    """`Topic.group`."""
    context = topic._store._context
    context.require_writable()
    check_name(name)
    check_gaps(gaps)
    check_consistency(consistency)
    check_dedupe(dedupe)
    position = start_of(topic, start)
    registry = Groups.of(context)
    for number in range(topic.shards):
        page = registry.page(topic, number)
        with page.alone():
            page.map(writable=True)
            if page.flaw:
                tell("%s: %s; its header was made anew", page.path, page.flaw)
                page.flaw = ""
            slot = page.find(name)
            if slot is not None:
                page.settle(slot)
                continue
            view = topic._view(number)
            page.make(name, min(resolve(view, position), view.visible))
    session_us = max(1, duration_us(session, "session"))
    membership = Membership(topic, name, registry, check_member(member), session_us)
    group = Group(topic, name, membership, gaps, consistency, skip_node, session_us, dedupe)
    registry.came(group)
    return group


def start_of(topic: Topic, start: Any) -> Position:
    """Where a group of this topic may begin."""
    position = parse(start, topic._store._context.clock.now_us())
    if position.kind == "offset" and topic.shards > 1 and position.number:
        raise InvalidOption(
            f"start={start!r}: topic {topic.name!r} has {topic.shards} shards, each with offsets "
            "of its own; begin at earliest, latest, a time or -N, and seek in one shard"
        )
    topic._existing()
    return position


def check_name(name: object) -> str:
    """A name that a group may have."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidOption(f"{name!r} cannot name a group: text without NUL, and not empty")
    if len(name.encode(errors="surrogatepass")) > fmt.NAME_BYTES_MAX:
        raise InvalidOption(f"{name!r} cannot name a group: at most {fmt.NAME_BYTES_MAX} bytes")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{name!r} cannot name a group: it is not UTF-8") from None
    return name


def check_member(member: Any) -> tuple[int, int] | None:
    if member is None:
        return None
    match member:
        case (int() as index, int() as count) if 0 <= index < count and count < 1 << 31:
            return index, count
    raise InvalidOption(f"member={member!r}: (i, n) for member i of n, with 0 <= i < n")


__all__ = ["Group", "check_name", "open_group", "start_of"]
