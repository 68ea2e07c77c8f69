"""One shard, as its writer sees it.

A shard is a list of sealed segments, perhaps some rolled logs that wait to be sealed, and one
active log (sealing.py); a buffer (buffer.py); and a page that says what was promised (page.py).
Offsets move through it in this order, each never above the one before:

    next        first offset not yet written
    visible     end of what readers may see: `next`, or `durable` for class fsync
    durable     end of what survives power loss

One lock guards all of it. Public methods take the lock; those with an underscore assume it. The
lock is held while a frame is encoded and written (so a failed write can be undone exactly, and no
later offset has been given out). It is not held while a commit syncs; only where the writer itself
has to wait anyway: for offsets to be set aside, to undo a failed write, to close.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from esker.engine import erasing, floor, layout, refusals, sealing, tally
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.context import LOG, Context
from esker.engine.intake import encode
from esker.engine.layout import is_clean, list_segments, load_log, shard_folder
from esker.engine.page import Page
from esker.engine.waited import Waited
from esker.errors import EskerError, StorageError, deleted
from esker.format import catalog as catalog_format
from esker.format import frame, names
from esker.format.catalog import TopicEntry
from esker.format.columns import Body
from esker.format.counters import WORD
from esker.format.segment import GAP_CORRUPT
from esker.format.state import Losses, State
from esker.options import BUFFER_RECORDS, FRAMES_PER_CLEAN_LOG
from esker.storage.counters import Counters
from esker.storage.files import Files, Holder, Lock, join
from esker.storage.journal import Redo
from esker.storage.log import LogSegment
from esker.storage.maps import Maps
from esker.storage.marks import Marks, MarksFile
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment
from esker.storage.segment import NO_COMPRESSION, Segment, compression_of


class Shard(Waited):
    """The writer of one shard. Made when a topic is opened, opened for writing at first use."""

    settled = True  # `segments` is replaced before `visible` moves

    def __init__(self, context: Context, entry: TopicEntry, number: int) -> None:
        self.context = context
        self.entry = entry
        self.number = number
        self.folder = shard_folder(context.root, entry.id, number)
        self.durability = entry.options.durability
        self.synced_later = self.durability in ("disk", "fsync")
        self.lock = threading.Lock()  # guards everything below
        self.files: Files = context.files
        self.maps: Maps = context.maps
        if self.durability == "ephemeral":
            self.files = MemoryFiles()
            self.files.make_dir(self.folder)
            self.maps = Maps(self.files, context.options.mapped_bytes)
        self.writing = False
        self._looked = False
        self.buffer = CLOSED
        self.sealed: list[SealedSegment] = []
        self.weighed: tally.Weighed = (None, 0, tally.Weight(0, 0), 0)
        self.rewritten = 0  # how often a sealed file was replaced, see rewriting.py, tiering.py
        self.rolled: list[LogSegment] = []
        self.active: LogSegment | None = None
        self.segments: tuple[Segment, ...] = ()  # replaced as a whole; readers take it unlocked
        self.next = self.visible = self.durable = self.earliest = 0
        self.losses: Losses = ()  # what was evicted, all below `earliest`
        self.marks = Marks()  # what was deleted one by one, see erasing.py
        self.gap = 0
        self.tiering = threading.Lock()  # held by who moves segments to or from a cold store
        self.orphaned = True  # whether something may lie in a cold store that nobody needs
        self.doubtful = False  # whether one that was brought back may not be durable: no sweeping
        self._sealing = threading.Lock()  # held by who seals; taken before `lock`
        self._syncing = threading.Lock()  # held by who syncs; never while waiting for `lock`
        self.poison: EskerError | None = None
        self.gone = False  # the topic was deleted
        self.once: Any = None  # which batches are known by a key, see once.py
        self.trouble: EskerError | None = None  # the last failed background write, until one works
        self.counters: Counters | None = None
        self.door: Any = None  # the topic, whose `_buffer` is the owner's way in
        self.expect_waiters()
        self.page = Page(self)  # which offsets may be given out, where the shard begins
        self._marks = MarksFile(self.files, self.folder, context.store, entry.id, number)
        self._writer_lock: Lock | None = None
        self.take_options(entry)

    def take_options(self, entry: TopicEntry) -> None:
        """Go by these options from now on. Assumes the lock."""
        self.entry = entry
        self.refusing = entry.options.discard == "reject"  # at a cap, see retention.py
        self._compress = how = compression_of(entry.options)
        self._at_commit = NO_COMPRESSION if how.late else how
        self._config = catalog_format.encode_config(entry)

    # -- opening for writing --

    def open_for_writing(self) -> None:
        """Take the kernel lock and the state. Assumes the lock."""
        if self.writing:
            return
        context = self.context
        context.require_writable()
        self._take_writer_lock()
        try:
            state = self.page.load()
            if not self._clean(state):
                self._release_writer_lock()
                context.recover_again()
                self._take_writer_lock()
                state = self.page.load()
                if not self._clean(state):
                    raise StorageError(f"{self.folder} cannot be recovered", path=self.folder)
            self._load(state)
            self.counters = Counters.open(context.files, self.folder, writable=True)
            assert self.counters is not None
            words = self.counters.belongs_to(self.entry.id, self.number)
            words[WORD["writer_pid"]] = context.files.pid()
            words[WORD["boot_high"]] = int.from_bytes(context.boot[:8], "big")
            words[WORD["boot_low"]] = int.from_bytes(context.boot[8:], "big")
            self._publish_segments()
            self._publish()
            floor.unlink(self, floor.take_forgotten(self))
            self.page.open(self.next)
        except BaseException:
            try:
                self.page.close()
            finally:
                self._release_writer_lock()
            raise
        self.writing = True
        if self.entry.options.segment_age_us:
            self.context.background.age_soon()

    def _take_writer_lock(self) -> None:
        path = join(self.folder, names.LOCK)
        if not self.context.files.kind(self.folder):
            raise self.context.vanished(self.entry, self.folder)
        lock = self.context.files.lock(path, self.context.note)
        if isinstance(lock, Holder):
            raise refusals.busy(self.entry.name, self.number, lock, self.context.files.pid())
        self._writer_lock = lock

    def _release_writer_lock(self) -> None:
        if self._writer_lock is not None:
            self._writer_lock.release()
            self._writer_lock = None

    def look(self) -> None:
        """Class ephemeral, not yet written by this handle: where the last one left off."""
        with self.lock:
            if not self.writing and not self.context.files.kind(self.folder):
                raise self.context.vanished(self.entry, self.folder)
            state = None if self.writing or self._looked else self.page.load()
            self._looked = True
            if state is not None:
                self.next = (
                    state.end_offset if state.clean else max(state.ceiling, state.end_offset)
                )
                self.visible = self.durable = self.next
                self._begin(state.earliest, state.losses)

    def let_go(self) -> None:
        """In a forked child: close our copy of the kernel lock; the parent keeps it."""
        self._release_writer_lock()
        self.lock, self.page = threading.Lock(), Page(self)
        self.expect_waiters()

    def _clean(self, state: State | None) -> bool:
        return is_clean(self.files, self.folder, state, ephemeral=self.durability == "ephemeral")

    def _load(self, state: State | None) -> None:
        """Take over a shard that was closed (or recovered) cleanly."""
        found = list_segments(self.files, self.folder)
        owner = (self.context.store, self.entry.id, self.number)
        self.sealed = layout.load_sealed(self.files, self.folder, found, self.maps, owner)
        self.next = state.end_offset if state is not None else 0
        layout.cut_cursors(self.files, self.folder, owner, self.next)
        self._begin(*((state.earliest, state.losses) if state is not None else (0, ())))
        erasing.load(self, state)
        logs = [name for name in found if not name.sealed]
        end = self.next
        if logs:
            self.active = load_log(self.files, self.folder, logs[-1], owner)
            end = self.active.base + self.active.next_row
            self.active.damaged |= end < self.next
        elif self.sealed:
            end = self.sealed[-1].base + self.sealed[-1].footer.records
        if end < self.next:  # fewer than were there when it was closed: a gap, and a new log
            self.gap = GAP_CORRUPT
        self.next = max(self.next, end)
        self.visible = self.durable = self.next

    # -- writing --

    def _write(self, bodies: Sequence[Body]) -> int:
        """Append bodies as one atomic batch; returns the offset of the first record."""
        if self.poison is not None:
            raise self._poisoned()
        if not self.writing:
            self.open_for_writing()
        count = size = 0
        for body in bodies:
            count += body.count
            size += body.size + frame.HEADER_SIZE
        if self.next + count > self.page.enough:
            self.page.need(self.next + count)
        log = self._room_for(size)
        before = log.end
        if self.synced_later:
            log.allocate_ahead(size, self.entry.options.segment_bytes, self.durability == "fsync")
        started = self.context.clock.monotonic()
        first = self.next
        try:
            log.append(bodies, self._at_commit)
            self.next = first + count
            took = self.context.clock.monotonic() - started
            assert self.counters is not None
            tally.wrote(
                self.counters, count, size, log.end, self.next, bodies[-1].max_timestamp, took
            )
            if self._at_commit.codec:
                stored = log.end - before - frame.HEADER_SIZE * len(bodies)
                tally.compressed(self.counters, bodies, stored)
            if self.synced_later:
                self.context.gauge.add(log.end - before)
            if self.durability != "fsync":
                self._publish()
        except BaseException as problem:
            self._cut_short(log, before, first + count, problem)
            raise
        return first

    def _cut_short(
        self, log: LogSegment, before: int, following: int, problem: BaseException
    ) -> None:
        """A write did not come to its end: it is undone, or had happened, or nobody can tell."""
        if log.end == before:
            self._undo(log, problem)
            if self.in_doubt and isinstance(problem, EskerError):
                raise self._poisoned() from problem  # it may be there: say so
        elif self.next == following:  # interrupted behind it: readers are to see it
            if self.durability != "fsync":
                self._publish()
        else:
            self._refuse(refusals.half_way(log.path, problem, self.next))

    def _undo(self, log: LogSegment, problem: BaseException) -> None:
        """Leave no trace of a failed write, or refuse to go on."""
        try:
            if self.counters is not None:
                self.counters.add("failed_writes")
                self.counters.add("errors")
                if log.file.size() > log.end:
                    self.counters.add("partial_writes")
                self.counters.set("last_error_ns", self.context.clock.now_us() * 1000)
            log.undo()
        except BaseException as worse:
            self._refuse(refusals.not_undone(log.path, problem, worse, self.next))

    def _room_for(self, size: int) -> LogSegment:
        log, options = self.active, self.entry.options
        if log is None:
            return sealing.make(self)
        if (
            (log.end + size > options.segment_bytes and log.next_row)
            or (options.segment_records and log.next_row >= options.segment_records)
            or log.damaged
            or (
                options.segment_age_us
                and log.next_row
                and self.context.clock.now_us() - log.header.created >= options.segment_age_us
            )
        ):
            return sealing.roll(self)
        return log

    def _begin(self, earliest: int, losses: Losses) -> None:
        self.losses = losses  # first: who finds himself before the beginning looks there why
        self.earliest = earliest

    def _count(self, name: str, amount: int = 1) -> None:
        if self.counters is not None:
            self.counters.add(name, amount)

    # -- the buffer --

    def _open_buffer(self, owner: int) -> Buffer:
        """A fresh buffer behind what is written. Assumes the old one was drained."""
        buffer = Buffer(self.next, owner, BUFFER_RECORDS)
        buffer.opened = self.context.clock.monotonic()
        self.buffer = buffer
        return buffer

    def _drain(self) -> tuple[list[bytes], dict[int, Any]]:
        """Take the buffered records; the owner's way in is closed first (see buffer.py)."""
        buffer = self.buffer
        if self.door is not None and self.door._buffer is buffer:
            self.door._buffer = CLOSED
        self.buffer = CLOSED
        taken = len(buffer)
        values = buffer[:taken]
        buffer.taken = taken
        return values, buffer.extras

    def _put_back(self, old: Buffer) -> None:
        """After a failed write: the records are pending again, at the same offsets."""
        if old.taken < 0:  # interrupted before it was drained
            self.buffer = old
            self._drain()
        buffer = self._open_buffer(0)
        buffer.extend(old[: old.taken])
        buffer.extras = old.extras
        buffer.bytes = sum(map(len, buffer))
        self.context.background.linger(self, buffer)

    def _flush(self, now_us: int | None = None) -> bool:
        """Write what is buffered. Nothing is lost when this raises. True if there was something.

        Whoever writes a batch behind it passes the batch's time, so that times do not fall.
        """
        buffer = self.buffer
        if buffer is CLOSED:
            return False
        try:
            values, extras = self._drain()
            if not values:
                return False
            now = self.context.clock.now_us() if now_us is None else now_us
            self._write(encode(values, extras, now))
        except BaseException as problem:
            if self.next == buffer.base:  # else it was written, and interrupted after that
                self._put_back(buffer)
            if isinstance(problem, EskerError):
                self.trouble = problem
            raise
        self.trouble = None
        return True

    # -- durability --

    def unsynced(self) -> list[tuple[LogSegment, int]]:
        """Logs with bytes that are not durable, oldest first, and their ends as of now."""
        logs = [*self.rolled, self.active] if self.active is not None else self.rolled
        return [(log, log.end) for log in logs if log.synced < log.end]

    def sync_directly(self, log: LogSegment, end: int) -> None:
        """fdatasync one log, and its name if it is new.

        One at a time: the kernel reports a failed write-back once, to one sync. A second one,
        running beside it, would return 0 and acknowledge what is lost.
        """
        with self._syncing:
            if self.poison is not None:
                raise self._poisoned()
            if not log.named:  # first: others go by `synced`, and a name must not lack
                self.files.sync_dir(self.folder)
                log.named = True
            before = log.synced
            if log.in_file < end:
                log.sync(end)
            self.freed(log.synced - before)

    def freed(self, size: int) -> None:
        """So many bytes wait no longer for the disk."""
        if size > 0 and self.synced_later:
            self.context.gauge.add(-size)

    def redo(self, log: LogSegment, end: int) -> Redo:
        """What the journal needs to make these bytes durable."""
        with self._syncing:  # a sync moves `synced`, and one that fails may drop the bytes
            if log.sync_failed:
                raise StorageError(f"an earlier sync of {log.path} failed", path=log.path)
            begin = log.synced
            data = log.file.read(begin, max(0, end - begin))
        return Redo(self.entry.id, self.number, log.header.segment, begin, self.next, data)

    def became_durable(self, next_offset: int) -> None:
        """All up to next_offset is durable: say so, and let readers of class fsync see it."""
        with self.lock:
            if next_offset >= self.durable and self.poison is None:
                self.durable = next_offset
                self._publish()  # also what is known: who found out may have been interrupted

    def _publish(self) -> None:
        """Move `visible`, tell readers in other processes, wake those who wait."""
        log = self.active
        visible = self.durable if self.durability == "fsync" else self.next
        position = log.end if log is not None else 0
        segment = log.header.segment if log is not None else 0
        if self.counters is not None:
            self.counters.publish(visible, segment, position, self.durable)
        self.visible = visible
        if self.waiters:
            self.wake()

    def _publish_segments(self) -> None:
        logs: list[Segment] = [*self.rolled]
        if self.active is not None and self.active not in self.rolled:
            logs.append(self.active)
        self.segments = (*self.sealed, *logs)
        if self.counters is not None:
            self.counters.add("segments_generation")
            self.counters.set("segments_current", len(self.segments))
            self.counters.set("last_index_update_ns", self.context.clock.now_us() * 1000)
            tally.tell(self)

    def poisoned_by(self, problem: BaseException) -> None:
        """A sync failed. Nothing that was not durable may be acknowledged any more."""
        with self.lock:
            self._poison(problem)

    def _poison(self, problem: BaseException) -> None:
        if self.poison is None:
            name, number, first = self.entry.name, self.number, self.durable
            self._refuse(refusals.sync_failed(name, number, problem, first, self.next))

    def _refuse(self, why: EskerError) -> None:
        self.poison = why
        LOG.error("%s", why)

    @property
    def in_doubt(self) -> bool:
        """Whether the shard is poisoned."""
        return self.poison is not None

    @property
    def concerned(self) -> bool:
        """Whether a sync has something to do here, or to say."""
        return self.writing or (self.poison is not None and not self.gone)

    def _poisoned(self) -> EskerError:
        assert self.poison is not None
        return type(self.poison)(*self.poison.args)

    def require_sound(self) -> None:
        """Refuse to go on with a shard that is poisoned, or whose topic was deleted."""
        if self.poison is not None:
            raise self._poisoned()

    # -- closing --

    def close(self) -> None:
        """Write, sync and mark everything; then let another process have the shard."""
        with self.lock:
            if not self.writing:
                return
            try:
                if self.poison is None:
                    self._flush()
                    self._close_cleanly()
            finally:
                self._leave()

    def hand_back(self) -> None:
        """Close a shard that was taken for a moment; it may be taken again."""
        try:
            with self._sealing:  # nobody exchanges a file who believes that the shard is ours
                self.close()
        finally:
            with self.lock:
                if not self.writing:
                    self.page.close()
                    self._release_writer_lock()  # if `close` was interrupted when it did
                    self.rolled, self.active, self.gap = [], None, 0

    def leave(self) -> None:
        """Let go of files and kernel lock, where an interrupted `close` has not done so."""
        with self.lock:
            self._leave()

    def _leave(self) -> None:
        try:
            for log in (*self.segments, *self.rolled, self.active):  # the first may be behind
                if isinstance(log, LogSegment):
                    log.close()
        finally:
            self._end()

    def _end(self) -> None:
        self.writing, self.trouble = False, None
        try:
            if self.door is not None:
                self.door._buffer = CLOSED
            self.page.close()
            self._marks.close()
            if self.counters is not None:
                self.counters.set("writer_pid", 0)
                self.counters = None
        finally:
            self._release_writer_lock()

    def _vanish(self) -> None:
        """The topic was deleted: nothing is written any more. Readers finish what they hold."""
        self._drain()
        self.freed(sum(end - log.synced for log, end in self.unsynced()))
        self.gone, self.poison = True, deleted(self.entry.name)
        self.rolled, self.active = [], None
        self.context.committer.deleted(self)
        self._end()

    def _close_cleanly(self) -> None:
        if self.durability == "ephemeral":
            self.active = None
            self.page.settle()
            return
        waiting = [rolled for rolled in self.rolled if not rolled.damaged]
        while waiting:  # one by one: the room of a log is free when nobody holds it any more
            sealing.enter(self, waiting[0], sealing.seal(self, waiting[0]))
            del waiting[0]
        log = self.active
        if log is not None and log.frames > FRAMES_PER_CLEAN_LOG and not log.damaged:
            sealing.seal_active(self, log)
        elif log is not None:
            self.sync_directly(log, log.end)
            log.mark()
            log.trim()
            self.sync_directly(log, log.end)
        self.durable = self.next
        self._publish()
        tally.tell(self)
        self.page.settle()
