"""Group commit: one round, one sync, many acks.

A *round* takes what waits on any number of shards, writes it, makes it durable and answers
everybody. `make_durable` decides how: few dirty logs are synced one by one; many are copied to a
journal, which is synced once.

Who runs a round: the first thread that waits leads it, in its own time, so a lone writer pays for
no hand-over. Threads that come while it syncs wait at the gate of the next round (see `Round`).
When it is done its threads go, one after the other, and the last one lets somebody in to lead the
next round: by then those who were let go have come back, if they do so at once, and are in it.
Rounds thereby grow with the load by themselves. Were the next one begun while they go, its leader
would fight with them for the interpreter, and half of them would miss it. When recent rounds had
much company, the leader also waits a moment for it (never longer than `commit_window`).

A failed write is an error of its own batch only. A failed sync poisons the shards it covered:
nobody is acknowledged, nothing is retried.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from esker.engine import tally
from esker.engine.buffer import CLOSED
from esker.engine.context import Context
from esker.engine.intake import encode
from esker.engine.retention import refuse
from esker.engine.shard import Shard
from esker.errors import CommitTimeout, EskerError
from esker.format import names
from esker.format.checksum import checksum
from esker.format.columns import Extra
from esker.options import JOURNAL_DIRTY_SHARDS, JOURNAL_ENTRY_BYTES_MAX
from esker.storage.files import join
from esker.storage.journal import Journal, Redo
from esker.storage.log import LogSegment

_SLICE = 0.00005  # seconds a leader sleeps at a time while it waits for company


class Ticket:
    """A batch that waits to be made durable."""

    __slots__ = ("count", "done", "error", "extras", "first", "gone", "shard", "values")

    def __init__(self, shard: Shard, values: list[bytes], extras: dict[int, Extra]) -> None:
        self.shard = shard
        self.values = values
        self.extras = extras
        self.count = len(values)
        self.first = -1
        self.done = False
        self.gone = False  # nobody waits for it any more: through the gate, or given up
        self.error: BaseException | None = None


class Round:
    """Tickets that are made durable together, and the gate at which their threads wait.

    The gate is opened once to let one thread in, which finds the round not done and leads it; and
    opened again when the round is done: then each thread that comes through lets the next one in,
    and the last one lets the next round begin. One after the other they come through faster than
    all at once, when they would only fight for the interpreter.
    """

    __slots__ = ("done", "followed", "gate", "left", "opened", "tickets")

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.done = False
        self.left = 0  # once it is done: how many threads have yet to come through
        self.followed = False  # the next round was let begin
        self.opened = False  # from then on the gate is passed on by those who come through
        self.gate = threading.Lock()
        self.gate.acquire()


class Waits(threading.local):
    """How long this thread was made to wait, in seconds; who wants to know begins at 0."""

    held = 0.0  # because too much waits for the disk
    synced = 0.0  # until what it had written was durable


class Committer:
    """The store's group commit, and its journals."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._mutex = threading.Lock()  # guards _collecting, _leading and what rounds say
        self._collecting = Round()
        self._leading = False  # a round is led, its threads go, or one is let in to lead the next
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
        self.sync_times = tally.Times()
        self.rounds = 0
        self.waits = Waits()
        self.window: float | None = None  # seconds; if none is set, what the options say

    # -- waiting for a class fsync commit --

    def append(
        self, shard: Shard, values: list[bytes], extras: dict[int, Extra], timeout: float | None
    ) -> int:
        """Write records and wait until they are durable; returns the first offset."""
        ticket = Ticket(shard, values, extras)
        mine, lead = self._collecting, False
        try:
            with self._mutex:
                mine = self._collecting
                mine.tickets.append(ticket)
                lead, self._leading = not self._leading, True
            if lead:
                self._lead(mine, ticket)
            else:
                self._wait(mine, ticket, timeout)
        except BaseException as problem:
            ticket.error = None  # or it would hold on to itself, and to all its frames
            if self._give_up(mine, ticket, lead) and isinstance(problem, CommitTimeout):
                raise CommitTimeout(
                    f"not durable within {timeout} s; it is written and may become durable"
                ) from None
            raise
        error, ticket.error = ticket.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return ticket.first

    def _wait(self, mine: Round, ticket: Ticket, timeout: float | None) -> None:
        """Wait at the gate until the round is done, or lead it when let in before that.

        Whoever comes through opens the gate for the next one when he leaves.
        """
        if timeout is None:
            with mine.gate:  # no interrupt comes between taking it and giving it back
                self._come_through(mine, ticket)
            return
        if not mine.gate.acquire(timeout=timeout):
            raise CommitTimeout(f"not written within {timeout} s; it was not accepted")
        try:
            self._come_through(mine, ticket)
        finally:
            mine.gate.release()

    def _come_through(self, mine: Round, ticket: Ticket) -> None:
        if not mine.done:
            self._lead(mine, ticket)
            return
        with self._mutex:
            self._gone(mine, ticket)

    def _gone(self, mine: Round, ticket: Ticket) -> None:
        """Nobody waits for this ticket any more; after the last one the next round may begin.

        Assumes the mutex. May be done twice, by a thread that was interrupted.
        """
        if not ticket.gone:
            ticket.gone = True
            mine.left -= 1
        if mine.done and mine.left <= 0 and not mine.followed:
            mine.followed = True
            following = self._collecting
            if following.tickets:
                following.opened = True
                following.gate.release()
            else:
                self._leading = False

    def _give_up(self, mine: Round, ticket: Ticket, lead: bool) -> bool:
        """A wait ended early: withdraw the ticket. True when its round has begun, so it stays."""
        with self._mutex:
            if mine is not self._collecting:
                if ticket in mine.tickets:
                    self._gone(mine, ticket)
                return True
            if ticket in mine.tickets:
                mine.tickets.remove(ticket)
            if not mine.tickets and (
                lead or mine.opened
            ):  # it was to lead, and nobody else is there
                self._collecting, self._leading = Round(), False
            elif lead and not mine.opened:
                mine.opened = True
                mine.gate.release()
        return False

    def _lead(self, mine: Round, ticket: Ticket) -> None:
        """Run one round, then let its threads go; the next one begins behind them."""
        try:
            self._gather(mine)
            with self._mutex:
                self._collecting = Round()
            self._company = 0.5 * self._company + 0.5 * len(mine.tickets)
            self.run_round(mine.tickets)
            self._finish(mine, ticket)
        except BaseException:
            if mine is not self._collecting:  # else it has not begun: somebody else may lead it
                self._finish(mine, ticket)
            raise

    def _finish(self, mine: Round, own: Ticket) -> None:
        """A round is over, by whatever end; may be done twice, should it be interrupted.

        No interrupt comes between setting a flag and opening the gate that it stands for: Python
        looks for one after a call.
        """
        with self._mutex:
            for ticket in mine.tickets:
                if not ticket.done:
                    ticket.error = ticket.error or CommitTimeout(
                        "the commit was interrupted; the record may still become durable"
                    )
                    ticket.done = True
            if not mine.done:
                left = sum(not ticket.gone for ticket in mine.tickets)
                mine.left, mine.done = left, True
            self._gone(mine, own)
            if not mine.opened:
                mine.opened = True
                mine.gate.release()

    def _gather(self, mine: Round) -> None:
        """Wait a moment for company, if there has lately been much of it.

        While one round syncs the next one fills by itself; this is only for the threads that the
        last round let go and that are about to come back.
        """
        expected = self._company * 0.25
        if expected < 1.0:
            return
        window = self.window
        if window is None:
            window = self._context.options.commit_window_us / 1e6
        deadline = self._context.clock.monotonic() + window
        seen = -1
        while seen < len(mine.tickets) < expected:
            seen = len(mine.tickets)
            time.sleep(_SLICE)
            if self._context.clock.monotonic() >= deadline:
                return

    def run_round(self, tickets: Sequence[Ticket]) -> float:
        """Write, sync and answer; how many seconds of it were the syncs.

        Deterministic; also what the asyncio twin calls.
        """
        by_shard: dict[Shard, list[Ticket]] = {}
        for ticket in tickets:
            by_shard.setdefault(ticket.shard, []).append(ticket)
        self.rounds += 1
        written = [shard for shard, group in by_shard.items() if self._write_group(group)]
        for shard in by_shard:  # one that failed, too: what was buffered may be written
            if shard.durability == "disk":
                self._context.background.sync_soon(shard)
        waiting = [shard for shard in written if shard.durability == "fsync"]
        began = self._context.clock.monotonic() if waiting else 0.0
        problems = self.make_durable(waiting)
        synced = self._context.clock.monotonic() - began if waiting else 0.0
        for ticket in tickets:
            if problems and ticket.error is None:
                ticket.error = problems.get(id(ticket.shard))
            ticket.done = True
        return synced

    def _write_group(self, group: list[Ticket]) -> bool:
        shard = group[0].shard
        if len(group) > 1 and shard.refusing:  # some may be refused
            written = [self._write_group([ticket]) for ticket in group]
            return any(written)
        values: list[bytes] = []
        extras: dict[int, Extra] = {}
        for ticket in group:
            if ticket.extras:
                for row, extra in ticket.extras.items():
                    extras[len(values) + row] = extra
            values += ticket.values
        try:
            now = self._context.clock.now_us()
            bodies = encode(values, extras, now)
            with shard.lock:
                if shard.buffer is not CLOSED:
                    shard._flush(now)
                if shard.refusing:
                    refuse(shard, len(values), sum(body.size for body in bodies))
                first = shard._write(bodies)
        except Exception as problem:  # an interrupt is the leader's alone
            for ticket in group:
                ticket.error = problem
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
        if len(work) > JOURNAL_DIRTY_SHARDS:
            self._through_journal(work, problems)
        else:
            self._directly(work, problems)
        for shard, next_offset in upto:
            if id(shard) not in problems:
                shard.became_durable(next_offset)
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
                self.sync_times.took(self._context.clock.monotonic() - started)
                self._count_sync(shard, started)
            except Exception as problem:
                shard.poisoned_by(problem)
                problems[id(shard)] = shard._poisoned()

    def _count_sync(self, shard: Shard, started: float) -> None:
        if shard.counters is None:
            return
        tally.synced(shard.counters, self._context.clock.monotonic() - started)

    def _through_journal(
        self, work: Sequence[tuple[Shard, LogSegment, int]], problems: dict[int, BaseException]
    ) -> None:
        small: list[tuple[Shard, LogSegment, int]] = []
        rest: list[tuple[Shard, LogSegment, int]] = []
        # The logs of a shard become durable in order: one that does not fit takes all with it.
        large = {
            id(shard)
            for shard, log, end in work
            if end - log.synced > JOURNAL_ENTRY_BYTES_MAX or shard.durability == "ephemeral"
        }
        for item in work:
            (rest if id(item[0]) in large else small).append(item)
        self._directly(rest, problems)
        with self._journal_lock:
            lots: list[list[tuple[Shard, LogSegment, int]]] = [[] for _ in self._journals]
            for item in small:
                if id(item[0]) in problems:
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
                self._checkpoint()
            fits = journal.room(redos)  # else it is more than a whole journal
            if fits:
                journal.append(redos, self._context.clock.now_us())
        except EskerError:
            fits = False  # the journal is a short cut, and not to be had: go the long way
        if not fits:
            self._directly(lot, problems)
            return
        try:
            self.syncs += 1
            started = self._context.clock.monotonic()
            journal.sync()
            self.sync_times.took(self._context.clock.monotonic() - started)
        except Exception as problem:
            for shard, _, _ in lot:
                shard.poisoned_by(problem)
                problems[id(shard)] = shard._poisoned()
            return
        for shard, log, end in lot:
            self._count_sync(shard, started)
            self._journaled[id(log)] = (shard, log)  # first: no checkpoint may overlook it
            shard.freed(end - log.synced)
            log.synced = max(log.synced, end)

    def _checkpoint(self) -> None:
        """Sync every segment that journals vouch for, then drop the journals.

        What a poisoned shard has in a journal may be nowhere else, and no sync can tell any more:
        then the journals stay for the next recovery, and new ones are begun.
        """
        started = self._context.clock.monotonic()
        for key, (shard, log) in list(self._journaled.items()):
            if shard.gone:
                self._journaled.pop(key, None)
                continue
            if shard.poison is not None:
                continue
            try:
                if log.in_file < log.synced:
                    self.syncs += 1
                    began = self._context.clock.monotonic()
                    shard.sync_directly(log, log.synced)
                    self.sync_times.took(self._context.clock.monotonic() - began)
            except Exception as problem:
                shard.poisoned_by(problem)
                continue
            self._journaled.pop(key, None)
            if shard.counters is not None:
                shard.counters.add("checkpoints")
                shard.counters.set("last_checkpoint_ns", self._context.clock.now_us() * 1000)
                took = self._context.clock.monotonic() - started
                shard.counters.add("checkpoint_ns", int(took * 1e9))
        for journal in self._journals:
            if self._journaled:
                journal.set_aside()
            else:
                journal.drop()

    def sealed(self, log: LogSegment) -> None:
        """A log is a segment now, which is synced: no journal needs its file any more.

        Without the lock: who seals may hold that of a shard, which comes behind it.
        """
        self._journaled.pop(id(log), None)

    def deleted(self, shard: Shard) -> None:
        """What journals have of a shard that is gone is needed by nobody."""
        for key, (other, _) in list(self._journaled.items()):
            if other is shard:
                self._journaled.pop(key, None)

    def checkpoint(self) -> None:
        """As when a journal is full: after it no journal is needed."""
        with self._journal_lock:
            if any(journal.open for journal in self._journals):
                self._checkpoint()

    def close(self) -> None:
        """Let go of the journals. Those that are still needed wait for the next opening."""
        with self._journal_lock:
            for journal in self._journals:
                journal.close()

    def let_go(self) -> None:
        """In a forked child: close the journals' locks without taking them from the parent."""
        for journal in self._journals:
            journal.let_go()

    @property
    def waiting(self) -> int:
        """How many batches wait for the next round."""
        return len(self._collecting.tickets)
