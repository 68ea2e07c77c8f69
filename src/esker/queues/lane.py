"""One shard of a queue: its leases as this process knows them, its log, and who may touch both.

    with lane:                      the lock of our threads, then the kernel's mutex
        (others have appended)      is read first, so what we decide, we decide on the truth
        lane.commit(events)         one frame; then the state changes
                                    the mutex is given back
    lane.settle()                   waits until the frame is durable, where that is promised

The mutex is held for tens of microseconds. Nobody syncs while he has it: an ack waits for the disk
behind it, and those who wait at the same time share one sync.

What cannot be read is told in `store.recovery` and in the log "esker", and costs deliveries, never
jobs; see storage/leases.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from esker.engine.context import LOG, Context
from esker.engine.findings import Finding
from esker.engine.quarantine import quarantine
from esker.errors import Poisoned, StorageError, deleted
from esker.format import names
from esker.format.leases import Booted, Event, Told
from esker.format.queue import QueueOptions
from esker.queues.leases import State
from esker.storage.files import Mutex, join
from esker.storage.leases import LeaseLog, Owner, Trouble

if TYPE_CHECKING:
    from esker.engine.topic import Topic

ROLL_BYTES: Final = 16 << 20  # a log that is longer begins anew, with a snapshot
FORGOTTEN: Final = 1 << 20  # numbers of claims that damage may have taken away are not used again


class Lane:
    """The leases of one shard."""

    def __init__(
        self, context: Context, topic: Topic, number: int, folder: str, options: QueueOptions,
        report: Callable[[Finding], None],
    ) -> None:  # fmt: skip
        self.context = context
        self.topic = topic
        self.number = number
        self.options = options
        self.state = State()
        self.findings: list[Finding] = []
        self.poison: Poisoned | None = None
        self.report = report
        self.made = True  # False while the queue is being made: there is no log yet
        self._folder = folder
        owner = Owner(context.store, topic._existing().id, number)
        self.log = LeaseLog(context.files, folder, owner, writable=not context.read_only)
        self._mutex: Mutex | None = None
        self._lock = threading.Lock()  # guards all of it
        self._syncing = threading.Lock()  # held while the log is synced, or exchanged
        self._known = False  # the state is what the log tells, up to its end
        self._roll_at = ROLL_BYTES
        self.ahead: object = None  # what was read of the jobs to come, see claiming.py

    # ---- taking it -----------------------------------------------------------------------

    def __enter__(self) -> State:
        self._lock.acquire()
        try:
            if self.poison is not None:
                raise self.poison
            if self.topic._gone:
                raise deleted(self.topic.name)
            if self._mutex is None:
                self._mutex = self.context.files.mutex(join(self._folder, names.LOCK))
            self._mutex.take()
            try:
                more = self.log.more() if self._known else None
                if more is None:
                    self._load()
                elif more:
                    self._hear(more)
            except BaseException:
                self._known = False
                self._mutex.give()
                raise
        except BaseException:
            self._lock.release()
            raise
        return self.state

    def __exit__(self, *_: object) -> None:
        assert self._mutex is not None
        try:
            self._mutex.give()
        finally:
            self._lock.release()

    def _hear(self, told: list[Told]) -> None:
        self._known = False
        for one in told:
            self.state.apply(one.events)
        self._known = True

    def _load(self) -> None:
        """Read the log from its newest snapshot on; go on in a new file where that is needed."""
        self._known = False
        with self._syncing:
            told, troubles = self.log.load()
        self.state = State()
        if not self.log.number:
            self.state.cursor = self.topic.earliest(self.number)
            if self.made:
                reason = "no log of leases is there: jobs that were done may come again"
                troubles.append(Trouble(self._folder, 0, reason, torn=True))
        self._hear(told)
        self.ahead = None
        for trouble in troubles:
            self._tell(trouble, damaged=not trouble.torn or not self.log.number)
        if troubles:
            self.state.number += FORGOTTEN
        if not self.log.number or self.log.ended:
            self._begin()
        for path in dict.fromkeys(each.path for each in troubles if not each.torn):
            with suppress(StorageError):  # nobody reads it any more
                quarantine(self.context, path, "leases")
        boot = self.context.boot
        if self.state.boot != boot:
            self.commit([Booted(boot)])
        self._known = True

    def look(self) -> State:
        """The state for who may not write: without the mutex, so it may be a moment old."""
        with self._lock:
            told, _ = self.log.load()
            self.log.close()
            state = State()
            if not told:
                state.cursor = self.topic.earliest(self.number)
            for one in told:
                state.apply(one.events)
            return state

    def _tell(self, trouble: Trouble, *, damaged: bool) -> None:
        label = "damaged_leases" if damaged else "torn_leases"
        finding = Finding(
            label, trouble.path, trouble.reason, self.topic.name, self.number, trouble.position
        )
        LOG.warning("%s", finding)
        self.findings.append(finding)
        self.report(finding)

    # ---- changing it ---------------------------------------------------------------------

    def commit(self, events: list[Event]) -> None:
        """These things happen, now, for everybody. Assumes that the lane is taken."""
        self._known = False  # should anything come between, the log is read again
        self.log.append(events, self.context.clock.now_us())
        self.state.apply(events)
        self._known = True
        if self.log.end > self._roll_at:
            self._roll()

    def _roll(self) -> None:
        try:
            self._begin()
            self.log.trim(
                self.context.clock.now_us() - self.options.history_us, self.options.history_bytes
            )
        except StorageError as problem:  # what was asked for has happened; this is tried again
            self._known = not self.log.ended
            self._roll_at = self.log.end + ROLL_BYTES
            LOG.warning("the log of leases %s grows on: %s", self.log.path, problem)

    def _begin(self) -> None:
        salt = int.from_bytes(self.context.files.random(8), "little")
        with self._syncing:
            self.log.begin(self.state.snapshot(), salt, self.context.clock.now_us())
        self._roll_at = max(ROLL_BYTES, 4 * self.log.end)

    # ---- durability ----------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all that this process has appended is durable."""
        log = self.log
        end, number = log.end, log.number
        with self._syncing:
            if self.poison is not None:
                raise self.poison
            if log.number != number or log.synced >= end:
                return  # somebody else's sync, or a new file, has done it
            try:
                log.sync()
            except StorageError as problem:
                self.poison = Poisoned(
                    f"{log.path}: a sync failed ({problem}). Whether the last acks survive a power "
                    "cut is not known, and it is not tried again; close the store and open it"
                )
                raise self.poison from problem

    @property
    def dirty(self) -> bool:
        """Whether something is not durable yet."""
        return self.poison is None and self.log.synced < self.log.end

    def let_go(self) -> None:
        """Close what is open, and change nothing; whoever was in here may be in another process."""
        self._lock, self._syncing = threading.Lock(), threading.Lock()
        self.close()

    def close(self) -> None:
        with self._lock, self._syncing:
            self._known = False
            self.log.close()
            if self._mutex is not None:
                self._mutex.close()
                self._mutex = None
