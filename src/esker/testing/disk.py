"""A disk in memory that can lose power, lose its process, or fail, at any call.

`SimulatedDisk` is one of the three implementations of `Files` (see storage/files.py); the engine
runs on it unchanged. It counts the calls that change something; a test may look at the disk around
each of them (`watch`), or have the machine stop there (`stop_at`), and then ask what is left:

    disk.kill()        the process died: all that was written is there, its locks are free
    disk.crash(seed)   the power went: one of the legal states, see inodes.py

Both return another disk and leave this one as it is, so that any number of states can be looked at
from one point. A disk that was stopped raises `Crash` from every call: whatever the dying program
still does in its `finally` blocks reaches nothing.

    disk.fail(Fault(errno.ENOSPC, at=3))     the third call that can run out of space does

Rules: no time, no real file, no randomness but the seed's. What the real door refuses is refused
here with the same exceptions.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from esker.errors import UnsafePath
from esker.storage.files import Holder, Mode, told
from esker.testing.faults import CHANGES, Fault
from esker.testing.inodes import Fate, Folder, Inode, Move, Node, Tree

GRAVES: Final = 8  # how many deleted files may come back as stale bytes
_DOING: Final = {
    "edit": "open", "write": "write to", "page": "map", "unlink": "delete",
    "make_dir": "create", "remove_dir": "delete", "sync_dir": "sync directory", "kind": "look at",
}  # fmt: skip

When = Literal["before", "after"]


class Crash(BaseException):
    """The machine stopped. Not an Exception, so that nothing recovers from it by accident."""


class Call(NamedTuple):
    """A call that changes the disk."""

    serial: int  # from 1
    name: str
    path: str


Watch = Callable[[Call, When], None]


class SimulatedDisk:
    """A file system with power switch. Everything about it follows from its seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.changes = 0  # calls so far that change the disk
        self.watch: Watch | None = None
        self.stopped = False
        self.faults: list[Fault] = []
        self.reverts = False  # whether a file shows its old content after a failed sync
        self._boot = 1
        self._pid = 1000
        self._life = 0  # how many kills and crashes made this disk what it is
        self._root = Folder()
        self._locks: dict[str, Holder] = {}
        self._graves: list[bytes] = []
        self._stop: tuple[int, When] | None = None
        self._random = random.Random(f"disk {seed}")
        self._draws = 0

    # ---- power, death, failure -----------------------------------------------------------

    def crash(self, seed: int | Fate) -> SimulatedDisk:
        """This disk after a power cut, and the machine after its restart."""
        fate = seed if isinstance(seed, Fate) else Fate(seed)
        after = self._next(fate)
        after._boot = self._boot + 1
        return after

    def kill(self) -> SimulatedDisk:
        """This disk after the death of the process alone."""
        return self._next(None)

    def _next(self, fate: Fate | None) -> SimulatedDisk:
        after = SimulatedDisk(self.seed)
        after._boot, after._pid, after._life = self._boot, self._pid + 1, self._life + 1
        after._random = random.Random(f"disk {self.seed} {after._life} {self.changes}")
        after._graves, after.reverts = list(self._graves), self.reverts
        after._root = Tree(fate, self._graves).copy(self._root)
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

    def contents(self) -> dict[str, bytes]:
        """Every file by its path, as a reader would see it now."""
        nodes = self._nodes().items()
        return {path: bytes(node.cache) for path, node in nodes if isinstance(node, Inode)}

    def folders(self) -> list[str]:
        """The path of every directory."""
        return [path for path, node in self._nodes().items() if isinstance(node, Folder)]

    def _nodes(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        waiting: list[tuple[str, Folder]] = [("", self._root)]
        while waiting:
            above, folder = waiting.pop()
            for name, node in folder.entries.items():
                found[f"{above}/{name}"] = node
                if isinstance(node, Folder):
                    waiting.append((f"{above}/{name}", node))
        return found

    def poke(self, path: str, position: int, data: bytes) -> None:
        """Change bytes on the platter itself: bit rot, not a write."""
        inode = self._inode(path, "write")
        inode.cache[position : position + len(data)] = data
        platter = bytearray(inode.durable.ljust(position + len(data), b"\0"))
        platter[position : position + len(data)] = data
        inode.durable = bytes(platter)

    # ---- around every call ---------------------------------------------------------------

    def _enter(self, call: str, path: str) -> Call | None:
        """Stop, fail or go on. Returns the call when it changes the disk."""
        if self.stopped:
            raise Crash("the machine is off")
        made = None
        if call in CHANGES:
            self.changes += 1
            made = Call(self.changes, call, path)
            if self.watch is not None:
                self.watch(made, "before")
            self._stop_here("before")
        for fault in self.faults:
            if fault.strikes(call, path):
                raise told(fault.error(), _DOING.get(call, call), path)
        return made

    def _leave(self, call: Call | None) -> None:
        if call is not None:
            if self.watch is not None:
                self.watch(call, "after")
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
            inode = Inode()
            Move((folder, name, inode))
        else:
            inode = self._inode(path, "open")
        self._leave(call)
        return SimulatedFile(self, path, inode)

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        folder, name = self._place(path, "map")
        if name in folder.entries:
            call = self._enter("open", path)
        else:
            if not writable:
                raise told(FileNotFoundError(errno.ENOENT, "No such file"), "map", path)
            call = self._enter("page", path)
            Move((folder, name, Inode()))
        inode = self._inode(path, "map")
        if len(inode.cache) < size and not writable:
            raise told(OSError(errno.EINVAL, "the page is too short"), "map", path)
        page = inode.as_page(size)
        self._leave(call)
        return page

    def rename(self, old: str, new: str) -> None:
        call = self._enter("rename", old)
        source, name = self._place(old, "rename")
        target, new_name = self._place(new, "rename")
        if name not in source.entries:
            raise told(FileNotFoundError(errno.ENOENT, "No such file"), "rename", old)
        Move((source, name, None), (target, new_name, source.entries[name]))
        self._leave(call)

    def unlink(self, path: str) -> None:
        call = self._enter("unlink", path)
        inode = self._inode(path, "delete")
        folder, name = self._place(path, "delete")
        Move((folder, name, None))
        self._graves = [*self._graves[1 - GRAVES :], bytes(inode.cache)]
        self._leave(call)

    def make_dir(self, path: str) -> None:
        folder, name = self._place(path, "create")
        if name in folder.entries:
            if self.kind(path) != "dir":
                raise UnsafePath(f"cannot use {path}: it is not a directory", path=path)
            return
        call = self._enter("make_dir", path)
        Move((folder, name, Folder()))
        self._leave(call)

    def remove_dir(self, path: str) -> None:
        call = self._enter("remove_dir", path)
        if self._folder(path, "delete").entries:
            raise told(OSError(errno.ENOTEMPTY, "Directory not empty"), "delete", path)
        folder, name = self._place(path, "delete")
        Move((folder, name, None))
        self._leave(call)

    def sync_dir(self, path: str) -> None:
        call = self._enter("sync_dir", path)
        self._folder(path, "sync directory").sync()
        self._leave(call)

    def list(self, path: str) -> list[str]:
        self._enter("list", path)
        node = self._find(path)
        if node is None:
            return []
        return [*self._folder(path, "list").entries]

    def kind(self, path: str) -> str:
        self._enter("kind", path)
        node = self._find(path)
        return "" if node is None else "dir" if isinstance(node, Folder) else "file"

    def lock(self, path: str, note: str, *, wait: bool = False) -> SimulatedLock | Holder:
        folder, name = self._place(path, "lock")
        new = name not in folder.entries
        call = self._enter("lock" if new else "open", path)
        if new:
            Move((folder, name, Inode()))
        if path in self._locks:
            if wait:
                raise AssertionError(f"nobody is left to release {path}: this would wait for ever")
            return self._locks[path]
        self._locks[path] = Holder(self._pid, note)
        self._leave(call)
        return SimulatedLock(self._locks, path)

    def holder(self, path: str) -> Holder | None:
        if self.stopped:
            raise Crash("the machine is off")
        return self._locks.get(path)

    def random(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def _drawn(self, below: int) -> int:
        """A number that follows from the seed, drawn apart from those that the engine gets."""
        self._draws += 1
        return random.Random(f"draw {self.seed} {self._life} {self._draws}").randrange(below)

    def boot_id(self) -> bytes:
        return random.Random(f"boot {self.seed} {self._boot}").randbytes(16)

    def pid(self) -> int:
        return self._pid

    # ---- names ---------------------------------------------------------------------------

    def _find(self, path: str) -> Node | None:
        node: Node = self._root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Folder) or name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def _inode(self, path: str, doing: str) -> Inode:
        node = self._find(path)
        if node is None:
            raise told(FileNotFoundError(errno.ENOENT, "No such file or directory"), doing, path)
        if isinstance(node, Folder):
            raise told(IsADirectoryError(errno.EISDIR, "Is a directory"), doing, path)
        return node

    def _folder(self, path: str, doing: str) -> Folder:
        node = self._find(path)
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

    __slots__ = ("_disk", "_inode", "path")

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def read(self, position: int, size: int) -> bytes:
        self._disk._enter("read", self.path)
        return bytes(self._inode.cache[position : position + size])

    def write(self, position: int, parts: Sequence[Any]) -> None:
        data = b"".join(parts)
        try:
            call = self._disk._enter("write", self.path)
        except OSError:  # some of it may be there all the same, or all of it
            self._inode.write(position, [data[: self._disk._drawn(len(data) + 1)]])
            raise
        self._inode.write(position, [data])
        self._disk._leave(call)

    def sync(self) -> None:
        try:
            call = self._disk._enter("sync", self.path)
        except OSError:
            self._inode.fail_sync(reverts=self._disk.reverts)
            raise
        self._inode.sync()
        self._disk._leave(call)

    def size(self) -> int:
        return len(self._inode.cache)

    def truncate(self, size: int) -> None:
        call = self._disk._enter("truncate", self.path)
        self._inode.resize(size)
        self._disk._leave(call)

    def allocate(self, size: int) -> None:
        call = self._disk._enter("allocate", self.path)
        if size > len(self._inode.cache):
            self._inode.resize(size)
        self._disk._leave(call)

    def map(self) -> Any:
        self._disk._enter("map", self.path)
        return bytes(self._inode.cache)

    def close(self) -> None:
        """Nothing to do, and no durability: closing is not syncing."""


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
