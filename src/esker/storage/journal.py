"""Redo journals: many small commits, one sync.

When many shards are dirty at once, syncing each segment would cost one fdatasync a shard. Their
new bytes are copied to a journal instead, and the journal is synced, once. Nobody reads a journal
except recovery. When it is full, the segments it speaks of are synced themselves and the journal
is replaced by an empty one: a checkpoint.

A journal belongs to one process, by a kernel lock beside it. One whose lock is free was left by a
process that died: its entries are replayed, by whoever comes first, under the recovery lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from esker.format import journal as fmt
from esker.format import names
from esker.format.frame import padded
from esker.format.journal import Entry, JournalHeader
from esker.storage.files import File, Files, Holder, Lock, join


class Redo(NamedTuple):
    """Bytes of a segment that are to be made durable through the journal."""

    topic: int
    shard: int
    segment: int
    position: int
    next_offset: int
    data: bytes


class Journal:
    """One journal file, owned by this process."""

    def __init__(self, files: Files, folder: str, store: bytes, limit: int, note: str) -> None:
        self._files = files
        self._folder = folder
        self._store = store
        self._limit = limit
        self._note = note
        self._file: File | None = None
        self._lock: Lock | None = None
        self._end = 0
        self._synced = 0
        self._salt = 0
        self.id = 0

    def room(self, redos: Sequence[Redo]) -> bool:
        """Whether these entries still fit, or the journal has yet to be made."""
        size = sum(fmt.ENTRY_SIZE + padded(len(redo.data)) for redo in redos)
        return self._file is None or self._end + size <= self._limit

    def append(self, redos: Sequence[Redo], created: int) -> None:
        """Write entries, not yet synced."""
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
        end = self._end
        self._file.sync()
        self._synced = end

    def _create(self, created: int) -> None:
        while True:  # another process may take the same number
            used = [names.parse_journal(name) or 0 for name in self._files.list(self._folder)]
            number = max([0, *used]) + 1
            lock = self._files.lock(self._lock_path(number), self._note)
            if isinstance(lock, Holder):
                continue
            path = join(self._folder, names.journal(number))
            if not self._files.kind(path):
                break
            lock.release()
        file = self._files.open(path, "create")
        self._salt = int.from_bytes(self._files.random(8), "little")
        header = JournalHeader(self._store, number, self._salt, created)
        file.allocate(self._limit)
        file.write(0, [fmt.encode_header(header)])
        self._files.sync_dir(self._folder)
        self._file, self._lock, self.id = file, lock, number
        self._end = fmt.HEADER_SIZE
        self._synced = 0

    def drop(self) -> None:
        """Forget all entries: every segment they speak of has been synced."""
        if self._file is None:
            return
        path = self._file.path
        self._file.close()
        self._file = None
        self._files.unlink(path)
        if self._files.kind(self._lock_path(self.id)):
            self._files.unlink(self._lock_path(self.id))
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _lock_path(self, number: int) -> str:
        return join(self._folder, f"{number:08d}.lock")

    @property
    def open(self) -> bool:
        return self._file is not None


class DeadJournal(NamedTuple):
    """A journal whose process is gone."""

    path: str
    entries: list[tuple[Entry, bytes]]
    torn: tuple[int, str] | None  # where and why reading ended, when not at a clean end
    corrupt: list[tuple[int, str]]  # damage below what was durable


def dead_journals(files: Files, folder: str, store: bytes) -> list[DeadJournal]:
    """Every journal that no living process owns, with what can be read of it."""
    found = []
    numbers = (names.parse_journal(name) for name in files.list(folder))
    for number in sorted(number for number in numbers if number is not None):
        if files.holder(join(folder, f"{number:08d}.lock")) is not None:
            continue
        found.append(_read(files, join(folder, names.journal(number)), store))
    return found


def _read(files: Files, path: str, store: bytes) -> DeadJournal:
    file = files.open(path, "r")
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    header = fmt.decode_header(data[: fmt.HEADER_SIZE])
    if isinstance(header, str):
        # The header is written before the first entry and synced with it: without one, no entry
        # was ever acknowledged, unless the header itself was damaged later.
        return DeadJournal(path, [], (0, header), [])
    if header.store != store:
        return DeadJournal(path, [], None, [(0, "a journal of another store")])
    entries: list[tuple[Entry, bytes]] = []
    places: list[int] = []
    damage: list[tuple[int, str]] = []
    at, durable = fmt.HEADER_SIZE, 0
    while at + fmt.ENTRY_SIZE <= len(data):
        found = _entry(data, at, header.salt)
        if isinstance(found, tuple):
            entries.append(found)
            places.append(at)
            durable = max(durable, found[0].synced)
            at += fmt.ENTRY_SIZE + padded(found[0].size)
            continue
        if not found:  # zeros: the end, unless entries follow
            found = "zeros where an entry should be"
        following = _find_entry(data, at + 8, header.salt)
        if following is None:
            if found != "zeros where an entry should be":
                damage.append((at, found))
            break
        damage.append((at, found))
        at = following
    corrupt = [flaw for flaw in damage if flaw[0] < durable]
    torn = next((flaw for flaw in damage if flaw[0] >= durable), None)
    if torn is not None:
        entries = [item for item, at in zip(entries, places, strict=True) if at < torn[0]]
    return DeadJournal(path, entries, torn, corrupt)


def _entry(data: bytes, at: int, salt: int) -> tuple[Entry, bytes] | str:
    entry = fmt.decode_entry(data[at : at + fmt.ENTRY_SIZE], at, salt)
    if isinstance(entry, str):
        return entry
    body = data[at + fmt.ENTRY_SIZE : at + fmt.ENTRY_SIZE + entry.size]
    if len(body) < entry.size:
        return "the journal ends inside an entry"
    if fmt.checksum(body, salt) != entry.body_checksum:
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
    files.unlink(dead.path)
    lock = dead.path[: -len(".journal")] + ".lock"
    if files.kind(lock):
        files.unlink(lock)
