"""A file system that watches the order in which things are made durable.

`Monitor(files)` stands around any other file system (the machine's, one in memory, a simulated
disk) and passes every call on. It remembers what was written and what was synced, and holds each
call against the rules below. What breaks one is kept in `violations`; `check` raises for it.

    rule        a violation is
    rename      a file gets the name of one that counts before its content was synced
    seal        a log is deleted before its sealed segment, or none is needed, is durable by name
    checkpoint  a journal is deleted before the logs that it vouches for are durable themselves
    catalog     a catalog is deleted before a newer one is durable by name
    immutable   a sealed or mapped file is written or cut
    floor       a sealed segment is deleted before it is durable that its records are: the shard
                begins behind them, or its topic's directory has the name of a deleted one
    state       a state page says "closed" of a log that is not durable up to there, or its second
                slot is written before the first was synced
    deletions   a state page names a file of deletions that is not durable up to there, or one is
                changed below what a page may say, or deleted while a page may name it
    ceiling     a record of class `disk` is written at or above the ceiling that is durable
    watermark   a frame says that more of its log is durable than is (also: journals)
    ack         `durable` is published in the counters page, which every answer follows, for
                records that are neither in a synced part of their log nor in a synced journal,
                or whose log nobody would find, because its name was not synced
    moved       a stub takes the place of its segment before that is durable, and right, in the cold
                store; or it is deleted there while a stub names it, or may after a power cut
    retry       a sync that failed is tried again on the same open file; what it covered does not
                count until it has been written and synced once more

Durable means: the call returned. A sync covers what was written when it began. A name is durable
when its directory was synced, and so was that directory's name. What was there before the monitor
is taken to be durable; all is forgotten when a store is opened while nothing is open, because in
between anybody may have changed the files.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from esker.errors import StorageError
from esker.format import catalog as catalog_format
from esker.format import frame, names
from esker.format import journal as journal_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.counters import WORD
from esker.storage.files import File, Files, Holder, Lock, Mode, Mutex, base_name, join, parent
from esker.testing import looks

_DURABLE: Final = WORD["durable"]
_NOWHERE: Final = 1 << 62  # behind the end of every file
_Vouched = list[tuple[int, int, int, int, bytes]]  # topic, shard, segment, position, bytes


class Node:
    """What is known of a file."""

    def __init__(self, path: str, *, new: bool = False) -> None:
        self.path = path
        self.named = not new  # whether a power cut leaves it under this or its former name
        self.settled = not new  # whether it leaves it under this one
        self.dirty = [(_NOWHERE, 0)]  # range written since each sync began, the newest last
        self.resized = [False]  # whether it was cut since then
        self.doubt = (_NOWHERE, 0)  # what a failed sync covered and was not written again
        self.failures = 0
        self.mapped = False
        self.header: segment_format.SegmentHeader | None = None
        self.durability = ""  # of the topic that a log belongs to
        self.frames: list[tuple[int, int]] = []  # row and position behind each, since it is known
        self.vouched = 0  # durable up to here through a journal
        self.seen = new  # from its first byte on
        self.entries: _Vouched = []  # of a journal, written and not yet synced
        self.vouches: _Vouched = []  # and synced
        self.slot = -1  # of a state page: where one was written that is not yet synced
        self.limits = (0, 0, (0, 0))  # the ceiling, the floor and the deletions in it

    @property
    def in_file(self) -> int:
        """Durable up to here by itself."""
        return min(self.doubt[0], *(low for low, _ in self.dirty))

    @property
    def durable(self) -> int:
        """Durable up to here, whatever the reason."""
        return max(self.in_file, self.vouched)

    def wrote(self, start: int, end: int) -> None:
        low, high = self.dirty[-1]
        self.dirty[-1] = (min(low, start), max(high, end))
        low, high = self.doubt
        if start <= low < end:
            self.doubt = (end, high) if end < high else (_NOWHERE, 0)

    def cut(self, size: int) -> None:
        self.resized[-1] = True
        self.frames = [item for item in self.frames if item[1] <= size]
        self.vouched = min(self.vouched, size)
        self.dirty = [(low, high) if low < size else (_NOWHERE, 0) for low, high in self.dirty]
        if self.doubt[0] >= size:
            self.doubt = (_NOWHERE, 0)

    def syncing(self) -> int:
        """A sync begins; returns how many ranges it covers."""
        self.dirty.append((_NOWHERE, 0))
        self.resized.append(False)
        return len(self.dirty) - 1

    def covered(self, ranges: int, *, failed: bool = False) -> None:
        """A sync has ended. Those that run side by side may end in any order."""
        ranges = min(ranges, len(self.dirty) - 1)
        if failed:
            self.failures += 1
            lows, highs = zip(*self.dirty[:ranges], self.doubt, strict=True)
            self.doubt = (min(lows), max(highs))
        for index in range(ranges):
            self.dirty[index], self.resized[index] = (_NOWHERE, 0), False
        while len(self.dirty) > 1 and self.dirty[0][0] == _NOWHERE and not self.resized[0]:
            del self.dirty[0], self.resized[0]


class Monitor:
    """Passes calls on to another file system, and knows what must not happen."""

    def __init__(self, files: Files) -> None:
        self.inner = files
        self.violations: list[str] = []
        self._nodes: dict[str, dict[str, Node]] = {}  # by directory and name
        self._folders: dict[str, bool] = {}  # whether the name of one that was made is durable
        self._ceilings: dict[str, int] = {}  # by shard, durable
        self._floors: dict[str, int] = {}  # by shard, durable: the first offset that is not deleted
        self._marks: dict[str, list[tuple[int, int]]] = {}  # by shard: what a page may name
        self._told: dict[str, int] = {}  # by shard: `durable` as it was last published
        self._open = 0
        self.recoveries = 0  # at work: they write frames again that were made before
        self._owner = files.pid()
        self.guard = threading.RLock()  # guards all of it; not held while a file is written

    def check(self) -> None:
        """Raise AssertionError if a rule was broken."""
        assert not self.violations, "monitor:\n" + "\n".join(self.violations)

    def broken(self, rule: str, path: str, what: str) -> None:
        self.violations.append(f"{rule}: {path}: {what}")

    def watches(self) -> bool:
        """Not in a forked child: it must not write, and its copy of the lock may be held."""
        return self.inner.pid() == self._owner

    # ---- Files ---------------------------------------------------------------------------

    def open(self, path: str, mode: Mode) -> File:
        if base_name(path) == names.IDENTITY and self._open == 0:
            self._forget()
        file = self.inner.open(path, mode)
        if not self.watches():
            return file
        with self.guard:
            self._open += 1
            node = self._node(path, new=mode == "create")
            if mode == "rw" and node.header is None and path.endswith(".log"):
                self._learn(node)
            elif base_name(path) == names.STATE and parent(path) not in self._ceilings:
                self._found(parent(path), looks.limits(self._content(path)))
            return MonitoredFile(self, file, node)

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        words = self.inner.page(path, size, writable=writable)
        told = writable and self.watches() and base_name(path) == names.COUNTERS
        return Page(self, words, parent(path)) if told else words

    def rename(self, old: str, new: str) -> None:
        with self.guard:
            node = self._known(old)
            aside = f"/{names.QUARANTINE}/" in new
            if new.endswith(".seg") and not aside:
                self._exchanged(old, new)
            if node and not aside and (node.in_file < _NOWHERE or any(node.resized)):
                self.broken("rename", old, "its content was not synced")
            self.inner.rename(old, new)
            if node is None:
                self._folders[new] = False
            for folder in [name for name in self._nodes if f"{name}/".startswith(f"{old}/")]:
                self._nodes[new + folder[len(old) :]] = self._nodes.pop(folder)
            if node:
                del self._nodes[parent(old)][base_name(old)]
                node.path, node.settled = new, False
                self._nodes.setdefault(parent(new), {})[base_name(new)] = node
            if base_name(new) == names.STATE:
                self._found(parent(new), looks.limits(self._content(new)))

    def unlink(self, path: str) -> None:
        with self.guard:
            self._may_go(path)
            self.inner.unlink(path)
            self._nodes.get(parent(path), {}).pop(base_name(path), None)

    def make_dir(self, path: str) -> None:
        with self.guard:
            with _unhindered(self.inner):
                new = not self.inner.kind(path)
            self.inner.make_dir(path)
            if new:
                self._folders[path] = False

    def remove_dir(self, path: str) -> None:
        self.inner.remove_dir(path)
        with self.guard:
            self._folders.pop(path, None)
            self._nodes.pop(path, None)

    def sync_dir(self, path: str) -> None:
        with self.guard:
            inside = [node for node in self._nodes.get(path, {}).values() if not node.settled]
            folders = [name for name in self._folders if parent(name) == path]
        self.inner.sync_dir(path)
        with self.guard:
            for node in inside:
                if parent(node.path) == path:
                    node.named = node.settled = True
            for name in folders:
                self._folders[name] = True

    def list(self, path: str) -> list[str]:
        return self.inner.list(path)

    def kind(self, path: str) -> str:
        return self.inner.kind(path)

    def lock(self, path: str, note: str, *, wait: bool = False) -> Lock | Holder:
        lock = self.inner.lock(path, note, wait=wait)
        if isinstance(lock, Holder) or base_name(path) != names.RECOVERY_LOCK:
            return lock
        return RecoveryLock(self, lock)

    def holder(self, path: str) -> Holder | None:
        return self.inner.holder(path)

    def mutex(self, path: str) -> Mutex:
        return self.inner.mutex(path)

    def random(self, size: int) -> bytes:
        return self.inner.random(size)

    def boot_id(self) -> bytes:
        return self.inner.boot_id()

    def pid(self) -> int:
        return self.inner.pid()

    # ---- what is known -------------------------------------------------------------------

    def _known(self, path: str) -> Node | None:
        return self._nodes.get(parent(path), {}).get(base_name(path))

    def _node(self, path: str, *, new: bool = False) -> Node:
        inside = self._nodes.setdefault(parent(path), {})
        if new or base_name(path) not in inside:
            inside[base_name(path)] = Node(path, new=new)
        return inside[base_name(path)]

    def _forget(self) -> None:
        for known in (
            self._nodes, self._folders, self._ceilings, self._floors, self._marks, self._told,
        ):  # fmt: skip
            known.clear()

    def _found(self, folder: str, limits: tuple[int, int, tuple[int, int]]) -> None:
        """What the state page of a shard says, durably."""
        self._ceilings[folder], self._floors[folder], marks = limits
        self._marks[folder] = [marks]

    def closed(self) -> None:
        with self.guard:
            self._open -= 1

    def _learn(self, node: Node) -> None:
        """Who a log is that was there before."""
        data = self._content(node.path)
        header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
        if isinstance(header, str):
            return
        node.header = header
        head = frame.decode_header(data, 128, 128, header.salt) if len(data) > 192 else None
        if isinstance(head, frame.Header) and head.kind == frame.CONFIG:
            self._config(node, data[192 : 192 + head.body_size])

    def _config(self, node: Node, body: bytes) -> None:
        found = catalog_format.decode_config(body)
        node.durability = "" if isinstance(found, str) else found.options.durability

    def _findable(self, folder: str) -> bool:
        """Whether a power cut leaves the directory."""
        while self._folders.get(folder, True):
            if folder == parent(folder):
                return True
            folder = parent(folder)
        return False

    def _complete(self, path: str) -> bool:
        """Whether a file is there, content and name, after a power cut."""
        with _unhindered(self.inner):
            if not self.inner.kind(path):
                return False
        node = self._node(path)
        return node.in_file == _NOWHERE and node.settled and self._findable(parent(path))

    def _content(self, path: str) -> bytes:
        with _unhindered(self.inner):
            file = self.inner.open(path, "r")
            try:
                return file.read(0, file.size())
            finally:
                file.close()

    # ---- deleting ------------------------------------------------------------------------

    def _may_go(self, path: str) -> None:
        name = base_name(path)
        with suppress(StorageError):
            if names.parse_segment(name) is not None:
                self._segment_may_go(path)
            elif names.parse_journal(name) is not None:
                self._journal_may_go(path)
            elif names.parse_catalog(name) is not None:
                self._catalog_may_go(path)
            elif names.parse_deletions(name) is not None:
                self.unchanged(path, -1, "deleted")
            elif names.parse_cold("/".join(path.split("/")[-4:])) is not None:
                self._moved_may_go(path)

    def _exchanged(self, old: str, new: str) -> None:
        place = looks.place_of(self._content(old))
        if place is None or "://" in place.root:
            return
        path = join(place.root, place.key)
        if not self._complete(path) or not looks.is_moved(self._content(path), place):
            self.broken("moved", new, f"its stub has its name before {path} is durable")

    def _moved_may_go(self, path: str) -> None:
        key = "/".join(path.split("/")[-4:])
        told = names.parse_cold(key)
        assert told is not None
        shard = join(names.TOPICS, names.topic(told.topic), names.shard(told.shard))
        file = names.segment(*told.segment[:2], sealed=True)
        for folder in [each for each in self._nodes if each.endswith("/" + shard)]:
            here = join(folder, file)
            with _unhindered(self.inner):
                if not self.inner.kind(here):
                    continue
            data = self._content(here)
            if data[16:32].hex() != told.store:
                continue
            place = looks.place_of(data)
            if place is not None and place.key == key:
                self.broken("moved", path, f"deleted while {here} names it")
            elif not self._node(here).settled:
                self.broken("moved", path, f"deleted before {here} is durable")

    def _segment_may_go(self, path: str) -> None:
        topic = parent(parent(path))
        if topic.endswith(names.DELETED):
            if not self._folders.get(topic, True):
                self.broken("floor", path, "deleted before its topic was, durably")
        elif path.endswith(".seg"):
            floor, end = self._floors.get(parent(path), 0), looks.end_of(self._content(path))
            if end > floor:
                self.broken("floor", path, f"has offsets up to {end}, the shard begins at {floor}")
        elif not self._complete(path[:-3] + "seg") and looks.holds_records(self._content(path)):
            self.broken("seal", path, "deleted before its sealed segment was durable")

    def _journal_may_go(self, path: str) -> None:
        journal = self._known(path)
        if journal is not None and journal.seen:
            entries = journal.vouches
        else:  # left by a process that is gone: all that is whole in it counts
            entries = [
                (entry.topic, entry.shard, entry.segment, entry.position, body)
                for entry, body in looks.entries_of(self._content(path))
            ]
        for topic, shard, segment, position, body in entries:
            node = self._log(parent(parent(path)), topic, shard, segment)
            if node is None or self._complete(node.path[:-3] + "seg"):
                continue  # as it was before, sealed, or set aside
            there = self._content(node.path)
            if not looks.speaks_of(there, position, body):
                continue  # of another log that had its number
            end = position + len(body)
            if there[position:end] != body or node.in_file < end or not node.named:
                self.broken("checkpoint", path, f"deleted before {node.path} was durable to {end}")

    def _log(self, root: str, topic: int, shard: int, segment: int) -> Node | None:
        """A log, or the segment that it became, if it was touched."""
        folder = join(root, names.TOPICS, names.topic(topic), names.shard(shard))
        for name, node in self._nodes.get(folder, {}).items():
            found = names.parse_segment(name)
            if found is not None and found.segment == segment:
                return node
        return None

    def _catalog_may_go(self, path: str) -> None:
        mine, folder = names.parse_catalog(base_name(path)) or 0, parent(path)
        with _unhindered(self.inner):
            others = [(names.parse_catalog(name) or 0, name) for name in self.inner.list(folder)]
        if not any(number > mine and self._complete(join(folder, name)) for number, name in others):
            self.broken("catalog", path, "deleted before a newer one was durable")

    # ---- writing -------------------------------------------------------------------------

    def writing(self, node: Node, position: int, parts: Sequence[Any]) -> None:
        """Before bytes are written: whether they may be, and what they say."""
        name = base_name(node.path)
        if node.mapped or name.endswith(".seg"):
            self.broken("immutable", node.path, f"written at {position}")
        if name.endswith(".log"):
            self._writing_log(node, position, parts)
        elif name == names.STATE:
            self._writing_state(node, position, parts)
        elif name.endswith(".journal"):
            self._writing_journal(node, position, parts)
        elif names.parse_deletions(name) is not None:
            self.unchanged(node.path, position, f"written at {position}")

    def unchanged(self, path: str, position: int, what: str) -> None:
        """A file of deletions must not change below a length that a state page may give."""
        for number, end in self._marks.get(parent(path), []):
            if number == names.parse_deletions(base_name(path)) and position < end:
                self.broken("deletions", path, f"{what}, a page says that {end} bytes of it count")

    def _writing_log(self, node: Node, position: int, parts: Sequence[Any]) -> None:
        for part in parts:
            if position == 0 and len(part) >= segment_format.HEADER_SIZE:
                header = segment_format.decode_header(bytes(part[: segment_format.HEADER_SIZE]))
                node.header = header if not isinstance(header, str) else None
            elif node.header is not None and not node.durability and part[:1] == b"{":
                self._config(node, bytes(part))
            elif node.header is not None and len(part) >= frame.HEADER_SIZE:
                self._writing_frame(node, node.header, position, part)
            position += len(part)

    def _writing_frame(
        self, node: Node, header: segment_format.SegmentHeader, position: int, part: Any
    ) -> None:
        head = frame.decode_header(part, 0, position, header.salt)
        if isinstance(head, frame.Damage) or self.recoveries:
            return
        if head.synced > node.durable:
            said = f"{head.synced} bytes are called durable, {node.durable} are"
            self.broken("watermark", node.path, f"at {position} {said}")
        if head.kind != frame.DATA:
            return
        node.frames.append((head.first_row + head.count, position + head.size))
        end, ceiling = header.base + node.frames[-1][0], self._ceilings.get(parent(node.path), 0)
        if node.durability == "disk" and end > ceiling:
            self.broken("ceiling", node.path, f"{end} is above the ceiling {ceiling}")

    def _writing_state(self, node: Node, position: int, parts: Sequence[Any]) -> None:
        found = state_format.decode_slot(b"".join(parts))
        if isinstance(found, str):
            return
        if node.slot not in (-1, position):
            self.broken("state", node.path, "a slot was written before the other was synced")
        marks = (found.marks, found.marks_end)
        node.slot, node.limits = position, (found.ceiling, found.earliest, marks)
        self._marks.setdefault(parent(node.path), []).append(marks)
        file = self._known(join(parent(node.path), names.deletions(found.marks)))
        if file is not None and (file.in_file < found.marks_end or not file.settled):
            said = f"{found.marks_end} bytes of it are said to count, durable are {file.in_file}"
            self.broken("deletions", file.path, said if file.settled else "its name is not durable")
        if not found.clean or not found.segment:
            return
        for name, log in self._nodes[parent(node.path)].items():
            this = names.parse_segment(name)
            if this is None or this.sealed or this.segment != found.segment:
                continue
            end = found.end_position
            if log.in_file < end or any(log.resized) or not log.named:
                said = f"called closed at {end}, durable up to {log.in_file}"
                self.broken("state", log.path, said)

    def _writing_journal(self, node: Node, position: int, parts: Sequence[Any]) -> None:
        for index, part in enumerate(parts):
            if len(part) == journal_format.ENTRY_SIZE and part[:4] == journal_format.ENTRY_MAGIC:
                topic, shard, synced, segment, at = _PLACE.unpack_from(part)
                node.entries.append((topic, shard, segment, at, bytes(parts[index + 1])))
                if synced > node.in_file:
                    said = f"{synced} bytes are called durable, {node.in_file} are"
                    self.broken("watermark", node.path, f"at {position} {said}")
            position += len(part)

    def synced(self, node: Node, entries: int) -> None:
        """After a sync: what it made durable besides the file itself."""
        if node.slot >= 0:
            node.slot = -1
            self._found(parent(node.path), node.limits)
        if entries and node.named:
            root = parent(parent(node.path))
            node.vouches += node.entries[:entries]
            for topic, shard, segment, position, body in node.entries[:entries]:
                log = self._log(root, topic, shard, segment)
                if log is not None and position <= log.durable:
                    log.vouched = max(log.vouched, position + len(body))
        del node.entries[:entries]

    # ---- answering -----------------------------------------------------------------------

    def published(self, folder: str, durable: int) -> None:
        """The counters page says that all below `durable` is."""
        with self.guard:
            if durable == self._told.get(folder):
                return
            self._told[folder] = durable
            for node in self._nodes.get(folder, {}).values():
                if node.header is not None and node.frames:
                    self._answered(node, durable - node.header.base, durable)

    def _answered(self, node: Node, rows: int, durable: int) -> None:
        taken = 0
        for row, end in node.frames:
            if row > rows:
                break
            taken += 1
            if end > node.durable:
                said = f"{durable} is called durable; that needs {end} bytes, {node.durable} are"
                self.broken("ack", node.path, said)
                break
        if taken and not node.vouched and not (node.named and self._findable(parent(node.path))):
            self.broken("ack", node.path, f"{durable} is called durable, the log's name is not")
        del node.frames[:taken]


class MonitoredFile:
    """An open file of a `Monitor`."""

    __slots__ = ("_failures", "_file", "_monitor", "_node", "path")

    def __init__(self, monitor: Monitor, file: File, node: Node) -> None:
        self._monitor: Monitor | None = monitor
        self._file = file
        self._node = node
        self._failures = node.failures
        self.path = file.path

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def write(self, position: int, parts: Sequence[Any]) -> None:
        monitor, node = self._watching(), self._node
        if monitor is not None:
            with monitor.guard:
                before, waiting = len(node.frames), len(node.entries)
                monitor.writing(node, position, parts)
                node.wrote(position, position + sum(map(len, parts)))
        try:
            self._file.write(position, parts)
        except BaseException:
            if monitor is not None:
                del node.frames[before:], node.entries[waiting:]
            raise

    def sync(self) -> None:
        monitor, node = self._watching(), self._node
        if monitor is None:
            self._file.sync()
            return
        with monitor.guard:
            again = node.failures > self._failures and node.doubt[0] < _NOWHERE
            if again and not node.path.endswith(names.STATE):  # where a slot proves itself
                monitor.broken("retry", node.path, "synced again after a sync that failed")
            ranges, entries = node.syncing(), len(node.entries)
        try:
            self._file.sync()
        except BaseException:
            with monitor.guard:
                node.covered(ranges, failed=True)
            raise
        with monitor.guard:
            node.covered(ranges)
            monitor.synced(node, entries)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        monitor, node = self._watching(), self._node
        if monitor is not None:
            with monitor.guard:
                if node.mapped or node.path.endswith(".seg"):
                    monitor.broken("immutable", node.path, f"cut to {size}")
                if names.parse_deletions(base_name(node.path)) is not None:
                    monitor.unchanged(node.path, size, f"cut to {size}")
                node.cut(size)
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def map(self) -> Any:
        self._node.mapped = True
        return self._file.map()

    def close(self) -> None:
        self._file.close()
        monitor, self._monitor = self._monitor, None
        if monitor is not None and monitor.watches():
            monitor.closed()

    def __del__(self) -> None:
        self.close()

    def _watching(self) -> Monitor | None:
        monitor = self._monitor
        return monitor if monitor is not None and monitor.watches() else None


class RecoveryLock:
    """Held while a store is recovered."""

    __slots__ = ("_lock", "_monitor")

    def __init__(self, monitor: Monitor, lock: Lock) -> None:
        self._monitor: Monitor | None = monitor
        self._lock = lock
        monitor.recoveries += 1

    def release(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.recoveries -= 1
        self._lock.release()


class Page:
    """The words of a counters page; tells the monitor when `durable` is published."""

    __slots__ = ("_folder", "_monitor", "_words")

    def __init__(self, monitor: Monitor, words: Any, folder: str) -> None:
        self._monitor = monitor
        self._words = words
        self._folder = folder

    def __getitem__(self, index: Any) -> Any:
        return self._words[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if index == _DURABLE:
            self._monitor.published(self._folder, value)
        self._words[index] = value

    def __len__(self) -> int:
        return len(self._words)


# ---- bytes -----------------------------------------------------------------------------------


_PLACE: Final = struct.Struct("<8xQIIQQ")  # of a journal's entry


@contextmanager
def _unhindered(files: Any) -> Iterator[None]:
    """What the monitor looks at for itself does not fail, and does not count as a call."""
    faults = getattr(files, "faults", None)
    if faults is None:
        yield
        return
    files.faults = []
    try:
        yield
    finally:
        files.faults = faults
