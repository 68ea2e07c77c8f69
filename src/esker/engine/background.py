"""The only threads of the engine: one for lingering buffers and ticks, one for what takes longer,
and one for what may take any time, if there is a cold store.

They do nothing but call the core at the right time; `Background.step` is the same work without
threads, for tests and for `background=False`. What fails in the background is not lost: a failed
write stays buffered and is raised by the next append or sync of that topic; a failed sync poisons
its shard; and whatever failed is in `store.maintenance()` and in the log.

What takes longer (see maintenance.py) is done piece by piece: one log, one shard, one directory,
one batch. Between two sealings the thread rests for a tenth of a second, whatever waits; a shard
that rolls faster than that seals by itself, in the time of its writer. Between any two pieces a
pause, or closing, can come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from esker.engine import once, retention, rewriting, sealing, tally
from esker.engine.attach import attach_all, commits, pending
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.context import LOG, Context
from esker.engine.maintenance import Budget, Diary, Maintenance, MaintenanceState, Waiting
from esker.engine.mover import Mover
from esker.engine.removal import unlink_tree
from esker.engine.shard import Shard
from esker.errors import EskerError, StorageError
from esker.format import names
from esker.format.commit import Commit
from esker.options import JOURNAL_DIRTY_SHARDS, is_evicting
from esker.storage.files import join

RETAIN_LOOK = retention.LOOK_SECONDS
SEAL_DELAY = 0.1  # seconds between one sealing and the next
ATTACH_LOOK = 0.05  # seconds between looks for commits, where there have been any
ATTACH_LOOK_RARELY = 2.0  # and where there have not
GATHER = 0.1  # seconds in which many shards of class fsync come together for one sync
MOVER_SECONDS = 0.2  # that closing waits for who asks a cold store, which may never answer
ATTEMPTS = 10  # at counting commits, which other processes replace meanwhile


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
        self._wake_mover = threading.Event()
        self._wake_stop = threading.Event()
        self._sleeping_until = 0.0  # when the thread looks again by itself
        self._stop = False
        self.paused = False
        self._stepping = threading.Lock()  # held by who does what is due
        self._heavy = threading.Lock()  # held while a piece is sealed, looked at, evicted, removed
        self._attaching = threading.Lock()  # held while batches are attached
        self.diary = Diary(context.clock)
        self.mover = Mover(context)
        # shards of class disk and fsync with unsynced bytes, in the order in which they became so:
        # the same calls are to write the same bytes, also in the journal
        self._dirty: dict[Shard, None] = {}
        self._next_tick = 0.0
        self._gathered = 0.0  # when those that wait for others are synced; 0 when none do
        self._next_age = 0.0  # when to look for logs that are too old
        self._next_retain = 0.0  # when to look at all topics with caps and ages
        self._retain_now = self.retaining = False
        self.room: int | None = None  # bytes that may be sealed before the budget is looked at
        self.above = 0  # bytes above the budget that cannot be helped, at the last look
        self._next_tending = 0.0  # when guests do what is due
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

    def tend_soon(self) -> None:
        """A guest has come."""
        self._next_tending = 0.0
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

    # -- a pause --

    def resting(self) -> bool:
        """Whether no other piece may be begun."""
        return self.paused or self._stop

    def rest(self, seconds: float) -> None:
        """Let others run for a moment, in the midst of a piece; not if somebody waits for its end.

        Nor without threads: who does everything by hand has nobody beside him.
        """
        if seconds > 0 and self._context.options.background and not self.resting():
            time.sleep(seconds)  # an event would cost those others more

    def pause(self) -> None:
        """Begin no other piece; returns when those that were begun are done."""
        self.paused = True
        with self._heavy, self._attaching:
            pass
        self._wait_for_exchanges()

    def resume(self) -> None:
        """Go on with what has waited."""
        self.paused, self._next_attach = False, 0.0
        self._wake.set()
        self._wake_sealer.set()
        self._wake_mover.set()

    def _wait_for_exchanges(self) -> None:
        """Until no segment is exchanged with its stub; who asks a cold store is not waited for."""
        for shard in list(self._context.shards):
            with shard._sealing:
                pass

    def move_soon(self) -> None:
        """There may be a segment to be moved, or something to be swept."""
        self._wake_mover.set()

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
        with self._stepping:
            self._step()
            return self._until_next()

    def _step(self) -> None:
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
        if not self._gathers(len(urgent), now) and urgent:
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
        if self._context.guests and (
            now >= self._next_tending or not self._context.options.background
        ):
            self._next_tending = now + self._context.options.sync_interval_us / 1e6
            self._tend()

    def _tend(self) -> None:
        for guest in list(self._context.guests):
            try:
                guest.tend()
            except EskerError as problem:
                LOG.warning("%r: %s", guest, problem)
                self.diary.failed(f"tending {guest!r}", problem)

    def _gathers(self, urgent: int, now: float) -> bool:
        """Whether shards of class fsync wait for others, so that one journal takes all of them.

        Nobody waits for these: who waits for a commit leads it himself, see committer.py. Few are
        synced at once, if no others linger; without threads all that is due is done at once.
        """
        shards = urgent
        if 0 < shards <= JOURNAL_DIRTY_SHARDS:
            shards += sum(
                shard.durability == "fsync" and shard.buffer is buffer
                for _, shard, buffer in list(self._lingering)
            )
        many = shards > JOURNAL_DIRTY_SHARDS and self._context.options.background
        if many and not self._gathered:
            self._gathered = now + GATHER
        if many and now < self._gathered:
            return True
        self._gathered = 0.0
        return False

    def _sync(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self._dirty.pop(shard, None)
        try:
            problems = self._context.committer.make_durable(shards)
        except BaseException:
            self._dirty.update(dict.fromkeys(shards))  # interrupted, and not done
            raise
        for shard in shards if problems else ():
            if id(shard) in problems and not shard.gone:
                self.diary.failed("syncing", problems[id(shard)], shard)

    def _roll_aged(self) -> float:
        """Roll logs past their topic's segment_age; returns seconds until the next look."""
        ages = [2**40]
        for shard in list(self._context.shards):
            if shard.writing and shard.entry.options.segment_age_us:
                ages.append(shard.entry.options.segment_age_us)
                try:
                    sealing.roll_if_aged(shard)
                except EskerError as problem:
                    shard.trouble = problem
                    self.diary.failed("rolling", problem, shard)
        return min(ages) / 4e6

    def _attach(self) -> float:
        """Attach what others have committed to shards of ours; seconds until the next look."""
        context = self._context
        try:
            found = context.files.list(join(context.root, names.STAGING))
            fresh = any(names.parse_commit(name) for name in found if name not in self._attached)
            if fresh and not self.resting() and any(shard.writing for shard in context.shards):
                with self._attaching:
                    if self._attach_some():
                        self._attached = set(found)
        except EskerError as problem:  # tried again and again, and told once
            if str(problem) != self._not_attached:
                LOG.warning("attaching: %s", problem)
                self.diary.failed("attaching", problem)
            self._not_attached = str(problem)
            return ATTACH_LOOK
        self._not_attached = ""
        return ATTACH_LOOK if found else ATTACH_LOOK_RARELY

    def _attach_some(self) -> bool:
        """Attach what can be, batch by batch. Whether no batch waits any more."""
        context, left = self._context, False
        ours = {(s.entry.id, s.number): s for s in list(context.shards) if s.writing}
        batches = [each for each in commits(context) if isinstance(each, Commit)]
        for batch in [each for each in batches if pending(context, each)]:
            if self.resting():
                return False
            with self.diary.at("attaching"):
                attach_all(context, [batch], lambda topic, number: ours.get((topic, number)))
            if pending(context, batch):
                left = True
            else:
                self.diary.did("attached")
        return not left

    def _reserve(self, shard: Shard) -> None:
        try:
            shard.page.reserve(shard.next)
        except EskerError as problem:  # at the ceiling the writer tries itself, and tells
            self.diary.failed("setting offsets aside for", problem, shard)

    def _until_next(self) -> float | None:
        if self._to_reserve:
            return 0.0
        due = [self._lingering[0][0]] if self._lingering else []
        if self._next_age < self._context.clock.monotonic() + 86_400:
            due.append(self._next_age)
        if self._dirty:
            due.append(self._next_tick)
        if self._gathered:
            due.append(self._gathered)
        if self._context.guests:
            due.append(self._next_tending)
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
                self.diary.failed("writing", problem, shard)
                return
        if shard.synced_later:
            self.sync_soon(shard)

    def remove(self) -> None:
        """Unlink what deleted topics left; what fails is tried again by the next opening."""
        with self._heavy:
            self._remove()

    def _remove(self) -> None:
        while self._to_remove and not self.paused:
            folder = self._to_remove.popleft()
            with self.diary.at(f"removing {folder}"):
                try:
                    unlink_tree(self._context.files, folder)
                    if self._context.files.kind(folder):
                        raise StorageError(f"{folder} is not empty: a file in it cannot be removed")
                    self.diary.did("removed")
                except EskerError as problem:
                    self.diary.failed("removing", problem)

    def seal_step(self) -> bool:
        """Seal one rolled log, and do first what is short. False when there is none, or a pause."""
        with self._heavy:
            self._remove()
            if self._retain_now and not self.resting():
                self._retain_now = False
                self._look_at_topics()
                self._retain_now |= self.resting()  # it may have stopped half-way
            while self._to_seal and not self.resting():
                if self._seal(self._to_seal[0]):
                    return True
                self._to_seal.popleft()
            return False

    def _seal(self, shard: Shard) -> bool:
        """Seal the oldest rolled log of a shard, if it has one that can be sealed."""
        try:
            with self.diary.at("sealing", shard):
                if not sealing.seal_next(shard):
                    return False
        except EskerError as problem:
            if shard.counters is not None:
                shard.counters.add("seal_errors")
            # not the error itself: its traceback holds the log open, and its room, once deleted
            shard.trouble = EskerError(str(problem))
            LOG.warning("sealing %s: %s", shard.folder, shard.trouble)
            self.diary.failed("sealing", problem, shard)
            return False
        self.diary.did("sealed")
        once.sealed(shard)
        self.move_soon()
        if is_evicting(shard.entry.options):
            with retention.failing_quietly(shard):
                retention.retain(shard)
        if self.room is not None and shard.sealed:
            self.room -= shard.sealed[-1].size
            self._retain_now |= self.room < 0
        return True

    def _look_at_topics(self) -> None:
        """Take up what other processes have altered, and evict what is to go."""
        try:
            with self.diary.at("looking at topics"):
                self._context.follow_catalog()
                if self.retaining:
                    self._context.retain()
            rewriting.rewrite_some(self._context.shards)
        except EskerError as problem:  # the catalog cannot be read now; it is looked at again
            LOG.warning("looking at the catalog: %s", problem)
            self.diary.failed("looking at the catalog", problem)

    # -- what there is to say about it --

    def report(self, retained: int, budget: Budget | None, bounded: int) -> Maintenance:
        """How things stand, in a store with so many topics that retention is to look at, and so
        many that are to be moved in part."""
        context, now = self._context, self._context.clock.monotonic()
        state = self._state()
        busy = self.retaining or any(shard.writing for shard in context.shards)
        timed = state == "running" and bool(self._threads) and busy
        doing, done, failure = self.diary.read()
        due = self._retain_now or not context.options.background or now >= self._next_retain
        waiting = Waiting(
            logs=sum(len(shard.rolled) for shard in list(context.shards) if shard.writing),
            topics=retained if due and self.retaining else 0,
            directories=len(self._to_remove),
            batches=self._batches(),
            shards=len(self._to_reserve),
        )
        look = max(0.0, self._next_retain - now) if timed else None
        tiers = self.mover.report(bounded)
        return Maintenance(state, doing, waiting, look, done, failure, budget, tiers)

    def _state(self) -> MaintenanceState:
        context = self._context
        if context.read_only or context.forked:
            return "off"
        if self.paused:
            return "paused"
        with self._start_lock:
            dead = any(not thread.is_alive() for thread in self._threads)
        if dead and not self._stop:
            return "failed"
        return "running" if context.options.background else "off"

    def _batches(self) -> int:
        """How many batches are committed and not yet attached everywhere."""
        for attempt in range(ATTEMPTS):
            try:
                found = [each for each in commits(self._context) if isinstance(each, Commit)]
                return sum(bool(pending(self._context, batch)) for batch in found)
            except StorageError:  # the next batch of a writer takes the place of the one before
                if attempt + 1 == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def let_go(self) -> None:
        """In a forked child: whoever was at work is not in the child."""
        self.diary = Diary(self._context.clock)

    # -- the threads --

    def _start(self) -> None:
        with self._start_lock:
            if self._threads or self._stop:
                return
            works = [("esker-commit", self._run), ("esker-seal", self._run_sealer)]
            if self._context.cold:
                works.append(("esker-tier", self._run_mover))
            for name, work in works:
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
            with self._stepping:
                wait = self._until_next()
            if wait is not None:
                self._sleeping_until = self._context.clock.monotonic() + wait
            self._wake.wait(wait)
            self._wake.clear()
            self._sleeping_until = 0.0

    def _run_sealer(self) -> None:
        while not self._stop:
            self._wake_stop.wait(SEAL_DELAY)  # a burst of writing is not to wait for its sealing
            try:
                more = self.seal_step()
            except BaseException as problem:
                self.diary.failed("sealing, which ends with this", problem)
                raise
            if not more:
                self._wake_sealer.wait()
                self._wake_sealer.clear()

    def _run_mover(self) -> None:
        while not self._stop:
            try:
                wait = self.mover.step()
            except BaseException as problem:
                self.diary.failed("moving, which ends with this", problem)
                raise
            self._wake_mover.wait(wait)
            self._wake_mover.clear()

    def _fail(self, problem: BaseException) -> None:
        """The thread cannot go on: say so to everybody who writes, rather than to nobody."""
        self.diary.failed("writing and syncing, which ends with this", problem)
        for shard in list(self._context.shards):
            if shard.writing:
                shard.poisoned_by(problem)

    def stop(self) -> None:
        """End the threads and wait for them; not for a cold store that does not answer."""
        self._stop = True
        self._wake_mover.set()
        self._wake_stop.set()
        self._wake.set()
        self._wake_sealer.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(MOVER_SECONDS if thread.name == "esker-tier" else None)
        self._wait_for_exchanges()
        self._threads.clear()
        self._lingering.clear()  # what they hold would stay open; whoever closes writes it himself
        self._dirty.clear()
