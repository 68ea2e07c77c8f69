"""A disk in memory that can lose power, lose its process, or fail, at any call.

`SimulatedDisk` is one of the three implementations of `Files` (see storage/files.py); the engine
runs on it unchanged. It counts the calls that change something; a test may look at the disk around
each of them (`watch`), or have the machine stop there (`stop_at`), and then ask what is left:

    disk.kill()        the process died: all that was written is there, its locks are free
    disk.crash(seed)   the power went: one of the legal states, see cuts.py
    disk.crashes()     the power went: all of them, or where these are many, the telling ones

All return other disks and leave this one as it is, so that any number of states can be looked at
from one point. A disk that was stopped raises `Crash` from every call: whatever the dying program
still does in its `finally` blocks reaches nothing.

    disk.fail(Fault(errno.ENOSPC, at=3))     the third call that can run out of space does
    disk.rot(seed)                           a bit on the platter turns
    disk.misdirect(seed)                     a sector that was synced lies elsewhere
    calls = disk.record()                    every call from now on, as it was made

Rules: no time, no real file, no randomness but the seed's. What the real door refuses is refused
here with the same exceptions.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

from esker.errors import UnsafePath
from esker.storage.files import Holder, Mode, told
from esker.testing.cuts import Cut, Fate, Grave
from esker.testing.faults import CHANGES, Fault
from esker.testing.inodes import Folder, Inode, Move, Node, content_digest, killed
from esker.testing.profiles import STRICT, Profile

GRAVES: Final = 8  # how many deleted files may come back as stale bytes
_DOING: Final = {
    "edit": "open", "write": "write to", "page": "map", "unlink": "delete",
    "make_dir": "create", "remove_dir": "delete", "sync_dir": "sync directory", "kind": "look at",
    "size": "look at",
}  # fmt: skip

When = Literal["before", "after"]


class Crash(BaseException):
    """The machine stopped. Not an Exception, so that nothing recovers from it by accident."""


class Call(NamedTuple):
    """A call of the door; see storage/files.py and `faults.CALLS` for the names."""

    serial: int  # of calls that change the disk, from 1; others have that of the one before
    name: str
    path: str
    size: int = 0  # bytes to be read or written; the size to be cut or extended to
    position: int = 0  # where in the file
    to: str = ""  # the new path of a renaming


Watch = Callable[[Call, When], None]


class SimulatedDisk:
    """A file system with power switch. Everything about it follows from its seed."""

    def __init__(self, seed: int = 0, profile: Profile = STRICT) -> None:
        self.seed = seed
        self.profile = profile
        self.changes = 0  # calls so far that change the disk
        self.watch: Watch | None = None
        self.trace: list[Call] | None = None  # see `record`
        self.stopped = False
        self.faults: list[Fault] = []
        self.reverts = profile.reverts  # a file shows its old content after a failed sync
        self.lies = profile.lies  # a sync that succeeds does nothing
        self.fate: Fate | None = None  # the one that made this disk what it is
        self.handles = 0  # files that are open
        self._boot = 1
        self._pid = 1000
        self._life = 0  # how many kills and crashes made this disk what it is
        self._root = Folder()
        self._locks: dict[str, Holder] = {}
        self._graves: list[Grave] = []
        self._paths: dict[str, Node] = {}  # those looked up since names last changed
        self._stop: tuple[int, When] | None = None
        self._struck: Fault | None = None  # by which the call that is being made fails
        self._dice = f"disk {seed}"
        self._random: random.Random | None = None  # made from _dice when it is first needed
        self._boot_id = b""
        self._draws = 0

    # ---- power, death, failure -----------------------------------------------------------

    def crash(self, fate: int | Fate, cut: Cut | None = None) -> SimulatedDisk:
        """This disk after a power cut, and the machine after its restart.

        `cut` is what `self.cut()` has returned since the last change, should it be at hand.
        """
        fate = fate if isinstance(fate, Fate) else Fate(fate)
        root, after_paths = (cut or self.cut()).tree(fate)
        after = self._next(root)
        after._boot = self._boot + 1
        after._paths = after_paths
        after.fate = fate
        return after

    def crashes(
        self, *, most: int = 64, chances: int = 4, seed: int = 0,
        ignore: frozenset[str] = frozenset(), seen: set[bytes] | None = None,
    ) -> Iterator[SimulatedDisk]:  # fmt: skip
        """This disk after power cuts that end differently, each way once; see `Cut.fates`.

        `seen` takes the images of those that were returned, and keeps them from being returned
        again at another moment.
        """
        cut = self.cut(ignore)
        seen = set() if seen is None else seen
        for fate, image in cut.fates(most=most, chances=chances, seed=seed):
            if image not in seen:
                seen.add(image)
                yield self.crash(fate, cut)

    def cut(self, ignore: frozenset[str] = frozenset()) -> Cut:
        """The power going now: what that would decide. Good until the disk changes."""
        return Cut(self._root, self._graves, ordered=self.profile.ordered, ignore=ignore)

    def kill(self) -> SimulatedDisk:
        """This disk after the death of the process alone."""
        return self._next(killed(self._root))

    def _next(self, root: Folder) -> SimulatedDisk:
        after = SimulatedDisk(self.seed, self.profile)
        after._boot, after._pid, after._life = self._boot, self._pid + 1, self._life + 1
        after._dice = f"disk {self.seed} {after._life} {self.changes}"
        after._graves, after.reverts, after.lies = list(self._graves), self.reverts, self.lies
        after._root = root
        return after

    def stop_at(self, call: int, when: When = "before") -> None:
        """Raise Crash around the `call`-th change from now on (from 1)."""
        self._stop = (self.changes + call, when)

    def fail(self, fault: Fault) -> Fault:
        """Let calls fail as the fault says, until `heal`."""
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """No call fails any more."""
        self.faults.clear()

    def record(self) -> list[Call]:
        """Every call from now on, in the order in which they are made; the list grows."""
        self.trace = []
        return self.trace

    @property
    def locks(self) -> list[str]:
        """The paths of the locks that are held."""
        return sorted(self._locks)

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as a reader would see it now."""
        nodes = self._nodes().items()
        return {path: bytes(node.cache) for path, node in nodes if isinstance(node, Inode)}

    def folders(self) -> list[str]:
        """The path of every directory."""
        return [path for path, node in self._nodes().items() if isinstance(node, Folder)]

    def image(self, ignore: frozenset[str] = frozenset(), below: str = "") -> bytes:
        """Tells what a reader would see now, below a directory, from what others would."""
        parts: list[bytes] = []
        for path, node in sorted(self._nodes(below).items()):
            if path.rpartition("/")[2] in ignore:
                continue
            parts.append(path.encode())
            if isinstance(node, Inode):
                whole = node.cache is node.durable
                parts.append(node.digest() if whole else content_digest(node.cache))
        return content_digest(b"\n".join(parts))

    def _nodes(self, below: str = "") -> dict[str, Node]:
        found: dict[str, Node] = {}
        waiting: list[tuple[str, Folder]] = [(below, self._folder(below, "list"))]
        while waiting:
            above, folder = waiting.pop()
            for name, node in folder.entries.items():
                found[f"{above}/{name}"] = node
                if isinstance(node, Folder):
                    waiting.append((f"{above}/{name}", node))
        return found

    def poke(self, path: str, position: int, data: bytes) -> None:
        """Change bytes on the platter itself: bit rot, not a write. Readers see it at once."""
        inode = self._inode(path, "write")
        inode._own()[position : position + len(data)] = data
        inode.durable = _poked(inode.durable, position, data)

    def rot(self, seed: int, inside: str = "") -> tuple[str, int]:
        """Turn one bit of a file whose path contains a text; returns the path and the position."""
        chance = random.Random(f"rot {self.seed} {seed}")
        contents = {path: data for path, data in self.contents().items() if data and inside in path}
        path = chance.choice(sorted(contents))
        position = chance.randrange(len(contents[path]))
        self.poke(path, position, bytes([contents[path][position] ^ 1 << chance.randrange(8)]))
        return path, position

    def misdirect(self, seed: int) -> tuple[str, int, str, int] | None:
        """One sector that a sync wrote lies on the platter in a wrong place, of any file.

        The cache of the machine knows nothing of it: it is seen after the next power cut. Returns
        the path and position where the sector belongs and those where it is, or None if no file
        has been synced.
        """
        chance = random.Random(f"misdirect {self.seed} {seed}")
        files = {p: n for p, n in sorted(self._nodes().items()) if isinstance(n, Inode)}
        size = self.profile.sector
        written = [
            (path, at)
            for path, node in files.items()
            for at in range(0, len(node.durable), size)
            if node.durable[at : at + size] != node.replaced[at : at + size]
        ]
        if not written:
            return None
        path, at = chance.choice(written)
        inode = files[path]
        data, before = inode.durable[at : at + size], inode.replaced[at : at + size]
        inode.durable = _poked(inode.durable, at, before.ljust(len(data), b"\0")[: len(data)])
        to = chance.choice([p for p, node in files.items() if node.durable])
        there = files[to]
        position = size * chance.randrange(-(-len(there.durable) // size))
        there.durable = _poked(there.durable, position, data[: len(there.durable) - position])
        inode.apart = there.apart = True
        return path, at, to, position

    # ---- around every call ---------------------------------------------------------------

    def _enter(
        self, call: str, path: str, size: int = 0, position: int = 0, to: str = ""
    ) -> Call | None:
        """Stop, fail or go on. Returns the call when it changes the disk."""
        if self.stopped:
            raise Crash("the machine is off")
        made = None
        if call in CHANGES:
            self.changes += 1
            made = Call(self.changes, call, path, size, position, to)
            if self.trace is not None:
                self.trace.append(made)
            if self.watch is not None:
                self.watch(made, "before")
            if self._stop is not None:
                self._stop_here("before")
        elif self.trace is not None:
            self.trace.append(Call(self.changes, call, path, size, position, to))
        self._struck = None
        for fault in self.faults:
            if fault.strikes(call, path):
                self._struck = fault
                if not fault.kind.late:
                    raise self._failure(fault, _DOING.get(call, call), path)
        return made

    @staticmethod
    def _failure(fault: Fault, doing: str, path: str) -> BaseException:
        error = fault.kind.error()
        return told(error, doing, path) if isinstance(error, OSError) else error

    def _arrived(self, data: bytes) -> bytes:
        """The part of a write that is there although it failed."""
        arrives = self._struck.kind.arrives if self._struck is not None else "any"
        if arrives == "some" and len(data) > 1:
            return data[: 1 + self._drawn(len(data) - 1)]
        return data[: self._drawn(len(data) + 1)] if arrives == "any" else b""

    def _leave(self, call: Call | None) -> None:
        if self._struck is not None:  # late: all is done, and the caller does not hear of it
            raise self._struck.kind.error()
        if call is not None:
            if self.watch is not None:
                self.watch(call, "after")
            if self._stop is not None:
                self._stop_here("after")

    def _stop_here(self, when: When) -> None:
        if self._stop == (self.changes, when):
            self.stopped = True
            raise Crash(f"{when} change {self.changes}")

    # ---- Files ---------------------------------------------------------------------------

    def open(self, path: str, mode: Mode) -> SimulatedFile:
        call = self._enter("edit" if mode == "rw" else "open" if mode == "r" else mode, path)
        if mode == "create":
            folder, name = self._place(path, "create")
            if name in folder.entries:
                raise told(FileExistsError(errno.EEXIST, "File exists"), "create", path)
            inode = self._new()
            self._move((folder, name, inode))
        else:
            inode = self._inode(path, "open")
        file = SimulatedFile(self, path, inode)
        self._leave(call)
        return file

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        folder, name = self._place(path, "map")
        if name in folder.entries:
            call = self._enter("open", path)
        else:
            if not writable:
                raise told(FileNotFoundError(errno.ENOENT, "No such file"), "map", path)
            call = self._enter("page", path)
            self._move((folder, name, self._new()))
        inode = self._inode(path, "map")
        if len(inode.cache) < size and not writable:
            raise told(OSError(errno.EINVAL, "the page is too short"), "map", path)
        page = inode.as_page(size)
        self._leave(call)
        return page

    def rename(self, old: str, new: str) -> None:
        call = self._enter("rename", old, to=new)
        source, name = self._place(old, "rename")
        target, new_name = self._place(new, "rename")
        if name not in source.entries:
            raise told(FileNotFoundError(errno.ENOENT, "No such file"), "rename", old)
        self._move((source, name, None), (target, new_name, source.entries[name]))
        self._leave(call)

    def unlink(self, path: str) -> None:
        call = self._enter("unlink", path)
        inode = self._inode(path, "delete")
        folder, name = self._place(path, "delete")
        self._move((folder, name, None))
        self._graves = [*self._graves[1 - GRAVES :], Grave(path, bytes(inode.cache))]
        self._leave(call)

    def make_dir(self, path: str) -> None:
        folder, name = self._place(path, "create")
        if name in folder.entries:
            if self.kind(path) != "dir":
                raise UnsafePath(f"cannot use {path}: it is not a directory", path=path)
            return
        call = self._enter("make_dir", path)
        self._move((folder, name, Folder()))
        self._leave(call)

    def remove_dir(self, path: str) -> None:
        call = self._enter("remove_dir", path)
        if self._folder(path, "delete").entries:
            raise told(OSError(errno.ENOTEMPTY, "Directory not empty"), "delete", path)
        folder, name = self._place(path, "delete")
        self._move((folder, name, None))
        self._leave(call)

    def sync_dir(self, path: str) -> None:
        call = self._enter("sync_dir", path)
        folder = self._folder(path, "sync directory")
        if not self.lies:
            folder.sync()
            self._synced()
        self._leave(call)

    def list(self, path: str) -> list[str]:
        self._enter("list", path)
        node = self._find(path)
        if node is None:
            return []
        return [*(node if isinstance(node, Folder) else self._folder(path, "list")).entries]

    def kind(self, path: str) -> str:
        self._enter("kind", path)
        node = self._paths.get(path) or self._find(path)
        return "" if node is None else "dir" if isinstance(node, Folder) else "file"

    def lock(self, path: str, note: str, *, wait: bool = False) -> SimulatedLock | Holder:
        folder, name = self._place(path, "lock")
        new = name not in folder.entries
        call = self._enter("lock" if new else "open", path)
        if new:
            self._move((folder, name, self._new()))
        if path in self._locks:
            if wait:
                raise AssertionError(f"nobody is left to release {path}: this would wait for ever")
            return self._locks[path]
        self._locks[path] = Holder(self._pid, note)
        lock = SimulatedLock(self._locks, path)
        try:
            self._leave(call)
        except BaseException:
            lock.release()
            raise
        return lock

    def holder(self, path: str) -> Holder | None:
        if self.stopped:
            raise Crash("the machine is off")
        return self._locks.get(path)

    def mutex(self, path: str) -> SimulatedMutex:
        """A lock for moments. It is one of the `locks` while it is held."""
        folder, name = self._place(path, "lock")
        new = name not in folder.entries
        call = self._enter("lock" if new else "open", path)
        if new:
            self._move((folder, name, self._new()))
        self._leave(call)
        return SimulatedMutex(self, path)

    def random(self, size: int) -> bytes:
        if self._random is None:
            self._random = random.Random(self._dice)
        return self._random.randbytes(size)

    def _drawn(self, below: int) -> int:
        """A number that follows from the seed, drawn apart from those that the engine gets."""
        self._draws += 1
        return random.Random(f"draw {self.seed} {self._life} {self._draws}").randrange(below)

    def boot_id(self) -> bytes:
        if not self._boot_id:
            words = f"boot {self.seed} {self._boot}".encode()
            self._boot_id = blake2b(words, digest_size=16).digest()
        return self._boot_id

    def pid(self) -> int:
        return self._pid

    # ---- names ---------------------------------------------------------------------------

    def _new(self) -> Inode:
        return Inode(sector=self.profile.sector)

    def _move(self, *parts: tuple[Folder, str, Node | None]) -> None:
        if any(node is None or name in folder.entries for folder, name, node in parts):
            self._paths.clear()
        Move(*parts)

    def _synced(self) -> None:
        """Where names keep their order, a sync of one thing takes all earlier names along."""
        if self.profile.ordered:
            for node in [self._root, *self._nodes().values()]:
                if isinstance(node, Folder):
                    node.sync()

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._paths.get(path)
        if node is None:
            above, _, name = path.rpartition("/")
            if above and name not in ("", "."):  # most often its folder is known
                folder = self._find(above)
                node = folder.entries.get(name) if isinstance(folder, Folder) else None
            else:
                node = self._resolve(path)
            if node is not None:
                self._paths[path] = node
        return node

    def _resolve(self, path: str) -> Node | None:
        node: Node = self._root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Folder) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _inode(self, path: str, doing: str) -> Inode:
        node = self._paths.get(path) or self._find(path)
        if node is None:
            raise told(FileNotFoundError(errno.ENOENT, "No such file or directory"), doing, path)
        if isinstance(node, Folder):
            raise told(IsADirectoryError(errno.EISDIR, "Is a directory"), doing, path)
        return node

    def _folder(self, path: str, doing: str) -> Folder:
        node = self._paths.get(path) or self._find(path)
        if node is None:
            raise told(FileNotFoundError(errno.ENOENT, "No such file or directory"), doing, path)
        if isinstance(node, Inode):
            raise told(NotADirectoryError(errno.ENOTDIR, "Not a directory"), doing, path)
        return node

    def _place(self, path: str, doing: str) -> tuple[Folder, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        return self._folder(above, doing), name


class SimulatedFile:
    """An open file. Deleting it takes its name; the handle goes on working."""

    __slots__ = ("_disk", "_inode", "_open", "path")

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._open = True
        disk.handles += 1

    def _require_open(self, doing: str) -> None:
        """As of a real disk: nothing goes to a file that was closed, and nothing comes of it."""
        if not self._open:
            raise told(OSError(errno.EBADF, "Bad file descriptor"), doing, self.path)

    def read(self, position: int, size: int) -> bytes:
        self._require_open("read")
        self._disk._enter("read", self.path, size, position)
        return bytes(self._inode.cache[position : position + size])

    def write(self, position: int, parts: Sequence[Any]) -> None:
        self._require_open("write")
        data = b"".join(parts)
        try:
            call = self._disk._enter("write", self.path, len(data), position)
        except (OSError, MemoryError, KeyboardInterrupt):
            self._inode.write(position, [self._disk._arrived(data)])  # perhaps all of it
            raise
        self._inode.write(position, [data])
        self._disk._leave(call)

    def sync(self) -> None:
        self._require_open("sync")
        try:
            call = self._disk._enter("sync", self.path)
        except OSError:
            self._inode.fail_sync(reverts=self._disk.reverts)
            raise
        if not self._disk.lies:
            self._inode.sync()
            self._disk._synced()
        self._disk._leave(call)

    def size(self) -> int:
        self._require_open("size")
        self._disk._enter("size", self.path)
        return len(self._inode.cache)

    def truncate(self, size: int) -> None:
        self._require_open("truncate")
        call = self._disk._enter("truncate", self.path, size)
        self._inode.resize(size)
        self._disk._leave(call)

    def allocate(self, size: int) -> None:
        self._require_open("allocate")
        call = self._disk._enter("allocate", self.path, size)
        if size > len(self._inode.cache):
            self._inode.resize(size)
        self._disk._leave(call)

    def map(self) -> Any:
        self._require_open("map")
        self._disk._enter("map", self.path)
        return bytes(self._inode.cache)

    def close(self) -> None:
        """Nothing but one open file less, and no durability: closing is not syncing."""
        self._disk.handles -= self._open
        self._open = False

    def __del__(self) -> None:
        self._disk.handles -= self._open


class SimulatedLock:
    """A held lock. As with a kernel lock, letting go of the last reference releases it."""

    __slots__ = ("_locks", "_path")

    def __init__(self, locks: dict[str, Holder], path: str) -> None:
        self._locks: dict[str, Holder] | None = locks
        self._path = path

    def release(self) -> None:
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.pop(self._path, None)

    def __del__(self) -> None:
        self.release()


class SimulatedMutex:
    """A lock that is taken for moments. Taking it can fail; it changes nothing on the disk."""

    __slots__ = ("_disk", "path")

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self.path = path

    def take(self) -> None:
        self._disk._enter("open", self.path)
        locks = self._disk._locks
        if self.path in locks:
            raise AssertionError(f"nobody is left to release {self.path}: this would wait for ever")
        locks[self.path] = Holder(self._disk._pid, "")
        try:
            self._disk._leave(None)
        except BaseException:
            self.give()
            raise

    def give(self) -> None:
        self._disk._locks.pop(self.path, None)

    def close(self) -> None:
        self.give()


def _poked(content: bytes, position: int, data: bytes) -> bytes:
    end = position + len(data)
    return content[:position].ljust(position, b"\0") + data + content[end:]
