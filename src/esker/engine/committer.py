"""Group commit: one round, one sync, many acks.

A *round* takes what waits on any number of shards, writes it, makes it durable and answers
everybody. `make_durable` decides how: few dirty logs are synced one by one; many are copied to a
journal, which is synced once.

Who runs a round: the first thread that waits leads it, in its own time, so a lone writer pays for
no hand-over. Threads that come while it syncs queue up; when it is done it wakes those it
answered and hands the lead to the first that still waits. Rounds thereby grow with the load by
themselves. When recent rounds had company, the leader also waits a moment for it (never longer
than `commit_window`), because threads woken together come back together.

A failed write is an error of its own batch only. A failed sync poisons the shards it covered:
nobody is acknowledged, nothing is retried.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from esker.engine.context import Context
from esker.engine.shard import Shard, encode
from esker.errors import CommitTimeout
from esker.format import names
from esker.format.checksum import checksum
from esker.format.columns import Extra
from esker.options import JOURNAL_DIRTY_SHARDS, JOURNAL_ENTRY_BYTES_MAX
from esker.storage.files import join
from esker.storage.journal import Journal, Redo
from esker.storage.segment import LogSegment

_SLICE = 0.00005  # seconds a leader sleeps at a time while it waits for company


class Ticket:
    """A batch that waits for a round, and the thread behind it."""

    __slots__ = ("count", "done", "error", "extras", "first", "lead", "lock", "shard", "values")

    def __init__(self, shard: Shard, values: list[bytes], extras: dict[int, Extra]) -> None:
        self.shard = shard
        self.values = values
        self.extras = extras
        self.count = len(values)
        self.first = -1
        self.done = False
        self.lead = False
        self.error: BaseException | None = None
        self.lock = threading.Lock()  # held until the ticket is answered or asked to lead
        self.lock.acquire()


class Committer:
    """The store's group commit, and its journals."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mutex = threading.Lock()  # guards _waiting, _leading and Ticket.lead
        self._waiting: deque[Ticket] = deque()
        self._leading = False
        self._company = 1.0  # how many tickets recent rounds had
        folder = join(context.root, names.JOURNALS)
        self._journal_lock = threading.Lock()  # guards _journals and _journaled
        self._journals = [
            Journal(context.files, folder, context.store, context.options.journal_bytes,
                    context.note)
            for _ in range(context.options.journals)
        ]  # fmt: skip
        self._journaled: dict[int, tuple[Shard, LogSegment]] = {}
        self.syncs = 0
        self.rounds = 0

    # -- waiting for a class fsync commit --

    def append(
        self, shard: Shard, values: list[bytes], extras: dict[int, Extra], timeout: float | None
    ) -> int:
        """Write records and wait until they are durable; returns the first offset."""
        ticket = Ticket(shard, values, extras)
        with self._mutex:
            self._waiting.append(ticket)
            lead = not self._leading
            if lead:
                self._leading = True
        if not lead:
            lead = self._wait(ticket, timeout)
        if lead:
            self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        return ticket.first

    def _wait(self, ticket: Ticket, timeout: float | None) -> bool:
        """Wait to be answered; True when asked to lead instead."""
        if not ticket.lock.acquire(timeout=-1 if timeout is None else timeout):
            with self._mutex:
                if not ticket.lead and not ticket.done:
                    if ticket in self._waiting:
                        self._waiting.remove(ticket)
                        raise CommitTimeout(
                            f"not written within {timeout} s; the record was not accepted"
                        )
                    raise CommitTimeout(
                        f"not durable within {timeout} s; it is written and may become durable"
                    )
        return ticket.lead and not ticket.done

    def _lead(self, own: Ticket) -> None:
        """Run one round, then hand the lead on."""
        tickets: list[Ticket] = []
        try:
            self._gather()
            with self._mutex:
                tickets = list(self._waiting)
                self._waiting.clear()
            self._company = 0.5 * self._company + 0.5 * len(tickets)
            self.run_round(tickets)
        finally:
            for ticket in tickets:
                if not ticket.done:  # the round itself was interrupted
                    ticket.error = ticket.error or InterruptedError("the commit was interrupted")
                    ticket.done = True
                if ticket is not own:
                    ticket.lock.release()
            with self._mutex:
                if not own.done and own in self._waiting:  # interrupted before the round began
                    self._waiting.remove(own)
                self._leading = bool(self._waiting)
                if self._leading:
                    self._waiting[0].lead = True
                    self._waiting[0].lock.release()

    def _gather(self) -> None:
        """Wait a moment for company, if there has lately been any."""
        expected = self._company
        if expected < 1.5:
            return
        deadline = self._context.clock.monotonic() + self._context.options.commit_window_us / 1e6
        seen = -1
        while len(self._waiting) < expected * 0.9 and len(self._waiting) != seen:
            seen = len(self._waiting)
            time.sleep(_SLICE)
            if self._context.clock.monotonic() >= deadline:
                return

    def run_round(self, tickets: Sequence[Ticket]) -> None:
        """Write, sync and answer. Deterministic; also what the asyncio twin calls."""
        by_shard: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            by_shard.setdefault(id(ticket.shard), []).append(ticket)
        written: list[Shard] = []
        for group in by_shard.values():
            if self._write_group(group):
                written.append(group[0].shard)
        self.rounds += 1
        durable = [shard for shard in written if shard.durability == "fsync"]
        problems = self.make_durable(durable)
        for ticket in tickets:
            problem = problems.get(id(ticket.shard))
            if problem is not None and ticket.error is None:
                ticket.error = problem
            ticket.done = True

    def _write_group(self, group: list[Ticket]) -> bool:
        shard = group[0].shard
        values: list[bytes] = []
        extras: dict[int, Extra] = {}
        for ticket in group:
            for row, extra in ticket.extras.items():
                extras[len(values) + row] = extra
            values += ticket.values
        try:
            with shard.lock:
                shard._flush()
                first = shard._write(encode(values, extras, self._context.clock.now_us()))
        except BaseException as problem:
            for ticket in group:
                ticket.error = problem
            if not isinstance(problem, Exception):
                raise
            return False
        for ticket in group:
            ticket.first = first
            first += ticket.count
        return True

    # -- making shards durable --

    def make_durable(self, shards: Iterable[Shard]) -> dict[int, BaseException]:
        """Make all that is written on these shards durable. Returns what failed, by id(shard)."""
        work: list[tuple[Shard, LogSegment, int]] = []
        upto: list[tuple[Shard, int]] = []
        problems: dict[int, BaseException] = {}
        for shard in shards:
            with shard.lock:
                if shard.poison is not None:
                    problems[id(shard)] = shard._poisoned()
                    continue
                work += [(shard, log, end) for log, end in shard.unsynced()]
                upto.append((shard, shard.next))
        before = [log.synced for _, log, _ in work]
        if len(work) > JOURNAL_DIRTY_SHARDS:
            self._through_journal(work, problems)
        else:
            self._directly(work, problems)
        for shard, next_offset in upto:
            if id(shard) not in problems:
                shard.settled(next_offset)
        freed = sum(end - start for (_, _, end), start in zip(work, before, strict=True))
        self._context.gauge.add(-freed)
        return problems

    def _directly(
        self, work: Sequence[tuple[Shard, LogSegment, int]], problems: dict[int, BaseException]
    ) -> None:
        for shard, log, end in work:
            if id(shard) in problems:
                continue
            try:
                self.syncs += 1
                started = self._context.clock.monotonic()
                shard.sync_directly(log, end)
                self._count_sync(shard, started)
            except Exception as problem:
                shard.poisoned_by(problem)
                problems[id(shard)] = shard._poisoned()

    def _count_sync(self, shard: Shard, started: float) -> None:
        if shard.counters is None:
            return
        took = int((self._context.clock.monotonic() - started) * 1e9)
        shard.counters.add("syncs")
        shard.counters.set("sync_ns_last", took)
        shard.counters.add("sync_ns_sum", took)

    def _through_journal(
        self, work: Sequence[tuple[Shard, LogSegment, int]], problems: dict[int, BaseException]
    ) -> None:
        large = [item for item in work if item[2] - item[1].synced > JOURNAL_ENTRY_BYTES_MAX]
        small = [item for item in work if item[2] - item[1].synced <= JOURNAL_ENTRY_BYTES_MAX]
        self._directly(large, problems)
        with self._journal_lock:
            lots: list[list[tuple[Shard, LogSegment, int]]] = [[] for _ in self._journals]
            for item in small:
                if item[0].durability == "ephemeral" or id(item[0]) in problems:
                    continue
                where = checksum(item[0].entry.id.to_bytes(8, "little")) % len(lots)
                lots[where].append(item)
            for journal, lot in zip(self._journals, lots, strict=True):
                if lot:
                    self._journal_lot(journal, lot, problems)

    def _journal_lot(
        self, journal: Journal, lot: list[tuple[Shard, LogSegment, int]],
        problems: dict[int, BaseException],
    ) -> None:  # fmt: skip
        try:
            redos: list[Redo] = [shard.redo(log, end) for shard, log, end in lot]
            if not journal.room(redos):
                self._checkpoint(journal)
            if not journal.room(redos):  # more than a whole journal: sync the segments instead
                self._directly(lot, problems)
                return
            journal.append(redos, self._context.clock.now_us())
            self.syncs += 1
            journal.sync()
        except Exception as problem:
            for shard, _, _ in lot:
                shard.poisoned_by(problem)
                problems[id(shard)] = shard._poisoned()
            return
        for shard, log, end in lot:
            log.synced = max(log.synced, end)
            self._journaled[id(log)] = (shard, log)

    def _checkpoint(self, journal: Journal) -> None:
        """Sync every segment that journals vouch for, then drop the journals."""
        for shard, log in list(self._journaled.values()):
            if log.in_file < log.synced:
                self.syncs += 1
                shard.sync_directly(log, log.synced)
            if shard.counters is not None:
                shard.counters.add("checkpoints")
        self._journaled.clear()
        for other in self._journals:
            other.drop()

    def checkpoint(self) -> None:
        """As when a journal is full: after it no journal is needed."""
        with self._journal_lock:
            if any(journal.open for journal in self._journals):
                self._checkpoint(self._journals[0])

    def pending(self) -> Any:
        """How many threads wait for a commit right now."""
        return len(self._waiting)
