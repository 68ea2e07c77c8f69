"""The only threads of the engine: one for lingering buffers and ticks, one for what takes longer.

Both do nothing but call the core at the right time; `Background.step` is the same work without
threads, for tests and for `background=False`. What fails in the background is not lost: a failed
write stays buffered and is raised by the next append or sync of that topic; a failed sync poisons
its shard.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence

from esker.engine import retention, tally
from esker.engine.attach import attach_all, commits, pending
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.context import LOG, Context
from esker.engine.removal import unlink_tree
from esker.engine.shard import Shard
from esker.errors import EskerError
from esker.format import names
from esker.format.commit import Commit
from esker.options import is_evicting
from esker.storage.files import join

RETAIN_LOOK = retention.LOOK_SECONDS
SEAL_DELAY = 0.1  # seconds between one sealing and the next
ATTACH_LOOK = 0.05  # seconds between looks for commits, where there have been any
ATTACH_LOOK_RARELY = 2.0  # and where there have not


class Background:
    """Linger, tick and seal."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lingering: deque[tuple[float, Shard, Buffer]] = deque()
        self._to_seal: deque[Shard] = deque()
        self._to_reserve: deque[Shard] = deque()
        self._to_remove: deque[str] = deque()  # directories of deleted topics
        self._wake = threading.Event()
        self._wake_sealer = threading.Event()
        self._wake_stop = threading.Event()
        self._sleeping_until = 0.0  # when the thread looks again by itself
        self._stop = False
        # shards of class disk and fsync with unsynced bytes, in the order in which they became so:
        # the same calls are to write the same bytes, also in the journal
        self._dirty: dict[Shard, None] = {}
        self._next_tick = 0.0
        self._next_age = 0.0  # when to look for logs that are too old
        self._next_retain = 0.0  # when to look at all topics with caps and ages
        self._retain_now = self.retaining = False
        self._next_attach = 0.0  # when to look for batches that other processes have committed
        self._attached: set[str] = set()  # commits that are done with
        self._not_attached = ""  # why the last look failed
        self._threads: list[threading.Thread] = []
        self._start_lock = threading.Lock()  # guards _threads

    # -- called by writers; must stay cheap --

    def linger(self, shard: Shard, buffer: Buffer) -> None:
        """Flush this buffer when its time has come, unless it is full before."""
        due = buffer.opened + self._context.options.linger_us / 1e6
        self._lingering.append((due, shard, buffer))
        self._nudge(due)

    def sync_soon(self, shard: Shard) -> None:
        """There is something on this shard to be synced."""
        if shard not in self._dirty:
            if not self._dirty:
                interval = self._context.options.sync_interval_us / 1e6
                self._next_tick = self._context.clock.monotonic() + interval
            self._dirty[shard] = None
            self._nudge(0.0 if shard.durability == "fsync" else self._next_tick)

    def age_soon(self) -> None:
        """A shard was opened whose logs are rolled by age."""
        self._next_age = 0.0
        self._nudge(0.0)

    def retain_soon(self) -> None:
        """There is a topic with caps or ages."""
        self.retaining, self._next_retain = True, 0.0
        self._nudge(0.0)

    def reserve_soon(self, shard: Shard) -> None:
        """Set the next block of offsets aside for this shard."""
        self._to_reserve.append(shard)
        self._nudge(0.0)

    def seal_soon(self, shard: Shard) -> None:
        self._to_seal.append(shard)
        if self._context.options.background:
            self._start()
            self._wake_sealer.set()

    def remove_soon(self, folder: str) -> None:
        """Unlink a directory that nobody needs any more."""
        self._to_remove.append(folder)
        if self._context.options.background:
            self._start()
            self._wake_sealer.set()

    def _nudge(self, due: float) -> None:
        if not self._context.options.background:
            return
        if not self._threads:
            self._start()
        if due < self._sleeping_until:
            self._wake.set()

    # -- the work, without threads --

    def step(self) -> float | None:
        """Do what is due now. Returns the seconds until the next thing is, None if nothing is."""
        while self._to_reserve:
            self._reserve(self._to_reserve.popleft())
        now = self._context.clock.monotonic()
        urgent: dict[Shard, None] = {}
        while self._lingering and self._lingering[0][0] <= now:
            _, shard, buffer = self._lingering.popleft()
            self._flush_buffer(shard, buffer)
            if shard.durability == "fsync":
                urgent[shard] = None
        urgent |= {shard: None for shard in list(self._dirty) if shard.durability == "fsync"}
        if urgent:
            self._sync(list(urgent))
        if now >= self._next_age:
            self._next_age = now + self._roll_aged()
        if now >= self._next_retain or not self._context.options.background:
            self._next_retain = now + RETAIN_LOOK
            self._retain_now = True
            self._wake_sealer.set()
        if now >= self._next_attach or not self._context.options.background:
            self._next_attach = now + self._attach()
        if self._dirty and now >= self._next_tick:
            self._next_tick = now + self._context.options.sync_interval_us / 1e6
            dirty = list(self._dirty)
            self._sync(dirty)
            for shard in dirty:
                tally.tell(shard)
        return self._until_next()

    def _sync(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._dirty.pop(shard, None)
        try:
            self._context.committer.make_durable(shards)
        except BaseException:
            self._dirty.update(dict.fromkeys(shards))  # interrupted, and not done
            raise

    def _roll_aged(self) -> float:
        """Roll logs past their topic's segment_age; returns seconds until the next look."""
        ages = [2**40]
        for shard in list(self._context.shards):
            if shard.writing and shard.entry.options.segment_age_us:
                ages.append(shard.entry.options.segment_age_us)
                try:
                    shard.roll_if_aged()
                except EskerError as problem:
                    shard.trouble = problem
        return min(ages) / 4e6

    def _attach(self) -> float:
        """Attach what others have committed to shards of ours; seconds until the next look."""
        context = self._context
        folder = join(context.root, names.STAGING)
        found = context.files.list(folder)
        fresh = [name for name in found if name not in self._attached and names.parse_commit(name)]
        if fresh and any(shard.writing for shard in context.shards):
            ours = {(s.entry.id, s.number): s for s in list(context.shards) if s.writing}
            try:
                batches = [each for each in commits(context) if isinstance(each, Commit)]
                attach_all(context, batches, lambda topic, number: ours.get((topic, number)))
                if not any(pending(context, batch) for batch in batches):
                    self._attached = set(found)
            except EskerError as problem:  # tried again and again, and told once
                if str(problem) != self._not_attached:
                    LOG.warning("attaching: %s", problem)
                self._not_attached = str(problem)
        return ATTACH_LOOK if found else ATTACH_LOOK_RARELY

    @staticmethod
    def _reserve(shard: Shard) -> None:
        with contextlib.suppress(EskerError):  # at the ceiling the writer tries itself, and tells
            shard.reserve(shard.next)

    def _until_next(self) -> float | None:
        if self._to_reserve:
            return 0.0
        due = [self._lingering[0][0]] if self._lingering else []
        if self._next_age < self._context.clock.monotonic() + 86_400:
            due.append(self._next_age)
        if self._dirty:
            due.append(self._next_tick)
        if any(shard.writing for shard in self._context.shards):
            due += (self._next_attach, self._next_retain)
        elif self.retaining:
            due.append(self._next_retain)
        if not due:
            return None
        return max(0.0, min(due) - self._context.clock.monotonic())

    def _flush_buffer(self, shard: Shard, buffer: Buffer) -> None:
        with shard.lock:
            if shard.buffer is not buffer or buffer is CLOSED:
                return
            try:
                shard._flush()
            except EskerError as problem:
                shard.trouble = problem  # raised by the next append or sync
                return
        if shard.synced_later:
            self.sync_soon(shard)

    def remove(self) -> None:
        """Unlink what deleted topics left; what fails is tried again by the next opening."""
        while self._to_remove:
            with contextlib.suppress(EskerError):
                unlink_tree(self._context.files, self._to_remove.popleft())

    def seal_step(self) -> bool:
        """Seal one rolled log. False when there is none."""
        self.remove()
        if self._retain_now:
            self._retain_now = False
            self._look_at_topics()
        while self._to_seal:
            shard = self._to_seal[0]
            try:
                if shard.seal_next():
                    if is_evicting(shard.entry.options):
                        with retention.failing_quietly(shard):
                            retention.retain(shard)
                    return True
            except EskerError as problem:
                if shard.counters is not None:
                    shard.counters.add("seal_errors")
                # not the error itself: its traceback holds the log open, and its room, once deleted
                shard.trouble = EskerError(str(problem))
                LOG.warning("sealing %s: %s", shard.folder, shard.trouble)
            self._to_seal.popleft()
        return False

    def _look_at_topics(self) -> None:
        """Take up what other processes have altered, and evict what is to go."""
        try:
            self._context.follow_catalog()
            if self.retaining:
                self._context.retain()
        except EskerError as problem:  # the catalog cannot be read now; it is looked at again
            LOG.warning("looking at the catalog: %s", problem)

    # -- the threads --

    def _start(self) -> None:
        with self._start_lock:
            if self._threads or self._stop:
                return
            for name, work in (("esker-commit", self._run), ("esker-seal", self._run_sealer)):
                thread = threading.Thread(target=work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self) -> None:
        while not self._stop:
            try:
                self.step()
            except BaseException as problem:
                self._fail(problem)
                raise
            self._sleeping_until = float("inf")  # from here on whoever comes sets the event
            wait = self._until_next()
            if wait is not None:
                self._sleeping_until = self._context.clock.monotonic() + wait
            self._wake.wait(wait)
            self._wake.clear()
            self._sleeping_until = 0.0

    def _run_sealer(self) -> None:
        while not self._stop:
            self._wake_stop.wait(SEAL_DELAY)  # a burst of writing is not to wait for its sealing
            if not self.seal_step():
                self._wake_sealer.wait()
                self._wake_sealer.clear()

    def _fail(self, problem: BaseException) -> None:
        """The thread cannot go on: say so to everybody who writes, rather than to nobody."""
        for shard in list(self._context.shards):
            if shard.writing:
                shard.poisoned_by(problem)

    def stop(self) -> None:
        """End the threads and wait for them."""
        self._stop = True
        self._wake_stop.set()
        self._wake.set()
        self._wake_sealer.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
        self._lingering.clear()  # what they hold would stay open; whoever closes writes it himself
        self._dirty.clear()
