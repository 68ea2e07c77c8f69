"""Redo journals: many small commits, one sync.

When many shards are dirty at once, syncing each segment would cost one fdatasync a shard. Their
new bytes are copied to a journal instead, and the journal is synced, once. Nobody reads a journal
except recovery. When it is full, the segments it speaks of are synced themselves and the journal
is replaced by an empty one: a checkpoint.

A journal belongs to one process, by a kernel lock beside it. One whose lock is free was left by a
process that died: its entries are replayed, by whoever comes first, under the recovery lock. Lock
files are never deleted: who deletes a lock file may take it from under somebody who just took it.

A journal whose sync failed is never written to again: what lies behind the doubtful part would be
synced, and recovery, which stops at the first entry that it cannot believe, would not see it. Such
a journal is set aside, with its lock, and so is one that some poisoned shard still needs: the next
opening of the store replays both.

Before a journal is deleted its header is marked as dropped, and synced. Its blocks will belong to
another file one day, to the next journal perhaps, and after a power cut may still hold what they
held: an old journal, or parts of one, under the name of a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from esker.errors import FormatTooNew, StorageError
from esker.format import journal as fmt
from esker.format import names
from esker.format.checksum import checksum
from esker.format.frame import padded
from esker.format.journal import Entry, JournalHeader
from esker.options import JOURNAL_BYTES_MIN
from esker.storage.files import File, Files, Holder, Lock, content_of, join

_PAGE = bytes(4096)


class Redo(NamedTuple):
    """Bytes of a segment that are to be made durable through the journal."""

    topic: int
    shard: int
    segment: int
    position: int
    next_offset: int
    data: bytes


class Journal:
    """One journal file after the other, owned by this process."""

    def __init__(self, files: Files, folder: str, store: bytes, limit: int, note: str) -> None:
        self._files = files
        self._folder = folder
        self._store = store
        self._limit = limit
        self._note = note
        self._file: File | None = None
        self._lock: Lock | None = None
        self._aside: list[Lock] = []  # of journals that only a recovery will look at again
        self._end = 0
        self._synced = 0
        self._salt = 0
        self.id = 0

    def room(self, redos: Sequence[Redo]) -> bool:
        """Whether these entries fit, into this journal or into one that has yet to be made."""
        size = sum(fmt.ENTRY_SIZE + padded(len(redo.data)) for redo in redos)
        end = self._end if self._file is not None else fmt.HEADER_SIZE
        return end + size <= self._limit

    def append(self, redos: Sequence[Redo], created: int) -> None:
        """Write entries, not yet synced. Nothing has changed when this raises."""
        if self._file is None:
            self._create(created)
        assert self._file is not None
        parts: list[Any] = []
        at = self._end
        for redo in redos:
            head = fmt.encode_entry(
                redo.data, topic=redo.topic, shard=redo.shard, synced=self._synced,
                segment=redo.segment, position=redo.position, next_offset=redo.next_offset,
                at=at, salt=self._salt,
            )  # fmt: skip
            parts += [head, redo.data, bytes(-len(redo.data) & 7)]
            at += fmt.ENTRY_SIZE + padded(len(redo.data))
        self._file.write(self._end, parts)
        self._end = at

    def sync(self) -> None:
        assert self._file is not None
        try:
            self._file.sync()
        except BaseException:
            self.set_aside()
            raise
        self._synced = self._end

    def _create(self, created: int) -> None:
        while True:  # another process may take the same number
            used = [names.parse_journal(name) or 0 for name in self._files.list(self._folder)]
            number = max([0, *used]) + 1
            lock = self._files.lock(join(self._folder, _lock_name(number)), self._note)
            if isinstance(lock, Holder):
                continue
            path = join(self._folder, names.journal(number))
            if not self._files.kind(path):
                break
            lock.release()
        salt = int.from_bytes(self._files.random(8), "little")
        header = JournalHeader(self._store, number, salt, created)
        try:
            file = self._files.open(path, "create")
            try:
                file.allocate(self._limit)
                file.write(0, [fmt.encode_header(header)])
                self._files.sync_dir(self._folder)
            except BaseException:
                file.close()
                self._files.unlink(path)
                raise
        except BaseException:
            lock.release()
            raise
        self._file, self._lock, self._salt, self.id = file, lock, salt, number
        self._end = fmt.HEADER_SIZE
        self._synced = 0

    def drop(self) -> None:
        """Forget all entries: every segment they speak of has been synced."""
        file = self._file
        if file is None:
            return
        try:
            _mark_dropped(file)
            file.close()
            self._file = None
            self._files.unlink(file.path)
        except StorageError:
            self.set_aside()  # it says nothing that is not so; the next opening removes it
            return
        assert self._lock is not None
        self._lock.release()
        self._lock = None

    def set_aside(self) -> None:
        """Never touch this journal again; keep its lock, so that nobody takes it for dead."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._aside.append(self._lock)
            self._lock = None

    def close(self) -> None:
        """Leave whatever is there to the next opening of the store."""
        self.set_aside()
        for lock in self._aside:
            lock.release()
        self._aside.clear()

    def let_go(self) -> None:
        """In a forked child: close our copies of the locks; the parent keeps its own."""
        self.close()

    @property
    def open(self) -> bool:
        return self._file is not None


def _mark_dropped(file: File) -> None:
    """Best effort: a disk that fails here costs no record, and the journal goes all the same."""
    with suppress(StorageError):
        file.write(fmt.MARK_AT, [fmt.DROPPED])
        file.sync()


def _lock_name(number: int) -> str:
    return f"{number:08d}.lock"


class DeadJournal(NamedTuple):
    """A journal whose process is gone."""

    path: str
    entries: list[tuple[Entry, bytes]]
    torn: tuple[int, str] | None  # where and why reading ended, when not at a clean end
    corrupt: list[tuple[int, str]]  # damage below what was durable


def dead_journals(files: Files, folder: str, store: bytes) -> list[DeadJournal]:
    """Every journal that no living process owns, with what can be read of it."""
    return [_read(files, path, store) for path in dead_paths(files, folder)]


def dead_paths(files: Files, folder: str) -> list[str]:
    """The journals that no living process owns, by number."""
    numbers = (names.parse_journal(name) for name in files.list(folder))
    return [
        join(folder, names.journal(number))
        for number in sorted(number for number in numbers if number is not None)
        if files.holder(join(folder, _lock_name(number))) is None
    ]


def _read(files: Files, path: str, store: bytes) -> DeadJournal:
    data = content_of(files, path)
    header = fmt.decode_header(data[: fmt.HEADER_SIZE])
    if isinstance(header, str):
        if header.startswith("version"):
            raise FormatTooNew(f"{path} was written by a later Esker ({header})")
        entries, torn, damage = _entries(data, fmt.salt_of(data))
        if entries:  # it was there with the first of them, and something has happened to it since
            return DeadJournal(path, entries, torn, [(0, header), *damage])
        # The header is synced together with the first entries: without it none was acknowledged.
        return DeadJournal(path, [], (0, header), [])
    if header.store != store:
        return DeadJournal(path, [], None, [(0, "a journal of another store")])
    if header.mark == fmt.DROPPED:
        return DeadJournal(path, [], None, [])
    entries, torn, damage = _entries(data, header.salt)
    if len(data) < JOURNAL_BYTES_MIN:  # its size is set before its header is written
        damage.append((len(data), "the journal is shorter than any is made"))
    return DeadJournal(path, entries, torn, damage)


def _entries(
    data: bytes, salt: int
) -> tuple[list[tuple[Entry, bytes]], tuple[int, str] | None, list[tuple[int, str]]]:
    """What can be believed; where the torn end begins; what is damaged below it."""
    entries: list[tuple[int, Entry, bytes]] = []
    damage: list[tuple[int, str]] = []
    at, durable, written = fmt.HEADER_SIZE, 0, _written(data)
    while at + fmt.ENTRY_SIZE <= len(data):
        found = _entry(data, at, salt)
        if isinstance(found, tuple):
            entries.append((at, *found))
            durable = max(durable, found[0].synced)
            at += fmt.ENTRY_SIZE + padded(found[0].size)
            continue
        following = _find_entry(data, at + 8, salt)
        if found or at < written:  # zeros are the end, unless something follows
            damage.append((at, found or "zeros where an entry should be"))
        if following is None:
            break
        at = following
    torn = next((flaw for flaw in damage if flaw[0] >= durable), None)
    kept = [(entry, body) for place, entry, body in entries if torn is None or place < torn[0]]
    return kept, torn, [flaw for flaw in damage if flaw[0] < durable]


def _written(data: bytes) -> int:
    """Where the zeros at the end begin. Most of a journal is zeros: whole pages are compared."""
    end = len(data)
    while end >= len(_PAGE) and data.endswith(_PAGE, 0, end):
        end -= len(_PAGE)
    return len(data[:end].rstrip(b"\0"))


def _entry(data: bytes, at: int, salt: int) -> tuple[Entry, bytes] | str:
    entry = fmt.decode_entry(data[at : at + fmt.ENTRY_SIZE], at, salt)
    if isinstance(entry, str):
        return entry
    body = data[at + fmt.ENTRY_SIZE : at + fmt.ENTRY_SIZE + entry.size]
    if len(body) < entry.size:
        return "the journal ends inside an entry"
    if checksum(body, salt) != entry.body_checksum:
        return "an entry does not match its checksum"
    return entry, body


def _find_entry(data: bytes, start: int, salt: int) -> int | None:
    at = data.find(fmt.ENTRY_MAGIC, start)
    while at >= 0:
        if at % 8 == 0 and isinstance(_entry(data, at, salt), tuple):
            return at
        at = data.find(fmt.ENTRY_MAGIC, at + 1)
    return None


def forget(files: Files, dead: DeadJournal) -> None:
    """Delete a journal whose entries have all been replayed and synced."""
    file = files.open(dead.path, "rw")
    try:
        header = fmt.decode_header(file.read(0, fmt.HEADER_SIZE))
        if not isinstance(header, str) and header.mark != fmt.DROPPED:
            _mark_dropped(file)
    finally:
        file.close()
    files.unlink(dead.path)
