"""A file system in memory: the same door, nothing behind it.

`esker.open(":memory:")` runs the whole engine on it, and class `ephemeral` keeps its segments in
one. It is not a mock: there is one engine, and this is a disk without a disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from esker.errors import UnsafePath
from esker.storage.files import Holder, Mode, told


class MemoryFile:
    """An open file in memory. Several handles may share one content."""

    __slots__ = ("data", "path")

    def __init__(self, path: str, data: bytearray) -> None:
        self.path = path
        self.data = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self.data)[position : position + size])

    def write(self, position: int, parts: Sequence[Any]) -> None:
        data = self.data
        if position > len(data):
            data.extend(bytes(position - len(data)))
        for part in parts:
            end = position + len(part)
            data[position:end] = part
            position = end

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return len(self.data)

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def allocate(self, size: int) -> None:
        if size > len(self.data):
            self.truncate(size)

    def map(self) -> Any:
        return bytes(self.data)

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock inside one process."""

    __slots__ = ("_held", "_path")

    def __init__(self, held: dict[str, Holder], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.pop(self._path, None)


class MemoryMutex:
    """A lock for moments. There is one process, and its threads have locks of their own."""

    __slots__ = ("_held", "path")

    def __init__(self, held: dict[str, Holder], path: str) -> None:
        self._held = held
        self.path = path

    def take(self) -> None:
        assert self.path not in self._held, f"{self.path} is taken, and nobody else would give it"
        self._held[self.path] = Holder(os.getpid(), "")

    def give(self) -> None:
        self._held.pop(self.path, None)

    def close(self) -> None:
        pass


class MemoryFiles:
    """A file system that forgets everything with the last reference to it."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.dirs: set[str] = {"/"}
        self.pages: dict[str, Any] = {}
        self.held: dict[str, Holder] = {}

    def open(self, path: str, mode: Mode) -> MemoryFile:
        if mode == "create":
            if path in self.files or path in self.dirs:
                raise told(OSError(errno.EEXIST, "File exists"), "create", path)
            self.files[path] = bytearray()
        elif path in self.pages:
            return MemoryFile(path, self.pages[path].obj)
        elif path not in self.files:
            raise told(FileNotFoundError(errno.ENOENT, "No such file"), "open", path)
        return MemoryFile(path, self.files[path])

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        if path not in self.pages:
            if not writable:
                raise told(FileNotFoundError(errno.ENOENT, "No such file"), "map", path)
            self.pages[path] = memoryview(bytearray(size)).cast("Q")
        return self.pages[path]

    def rename(self, old: str, new: str) -> None:
        if old in self.files:
            self.files[new] = self.files.pop(old)
            return
        if old not in self.dirs:
            raise told(FileNotFoundError(errno.ENOENT, "No such file"), "rename", old)
        inside = old + "/"
        for known in [name for name in self.files if name.startswith(inside)]:
            self.files[new + known[len(old) :]] = self.files.pop(known)
        for known in [name for name in self.pages if name.startswith(inside)]:
            self.pages[new + known[len(old) :]] = self.pages.pop(known)
        for known in [name for name in self.dirs if name == old or name.startswith(inside)]:
            self.dirs.discard(known)
            self.dirs.add(new + known[len(old) :])

    def unlink(self, path: str) -> None:
        if self.files.pop(path, None) is None:
            raise told(FileNotFoundError(errno.ENOENT, "No such file"), "delete", path)

    def make_dir(self, path: str) -> None:
        if path in self.files:
            raise UnsafePath(f"cannot use {path}: it is not a directory", path=path)
        self.dirs.add(path)

    def remove_dir(self, path: str) -> None:
        if path not in self.dirs:
            raise told(FileNotFoundError(errno.ENOENT, "No such directory"), "delete", path)
        if self.list(path):
            raise told(OSError(errno.ENOTEMPTY, "Directory not empty"), "delete", path)
        self.dirs.discard(path)
        for known in [name for name in self.pages if name.startswith(path + "/")]:
            del self.pages[known]

    def sync_dir(self, path: str) -> None:
        pass

    def list(self, path: str) -> list[str]:
        inside = path.rstrip("/") + "/"
        names = [*self.files, *self.dirs]
        return sorted(
            {name[len(inside) :].split("/")[0] for name in names if name.startswith(inside)} - {""}
        )

    def kind(self, path: str) -> str:
        if path in self.files or path in self.pages:
            return "file"
        return "dir" if path in self.dirs else ""

    def lock(self, path: str, note: str, *, wait: bool = False) -> MemoryLock | Holder:
        if path in self.held:
            return self.held[path]
        self.held[path] = Holder(self.pid(), note)
        return MemoryLock(self.held, path)

    def holder(self, path: str) -> Holder | None:
        return self.held.get(path)

    def mutex(self, path: str) -> MemoryMutex:
        return MemoryMutex(self.held, path)

    def random(self, size: int) -> bytes:
        return os.urandom(size)

    def boot_id(self) -> bytes:
        return bytes(16)

    def pid(self) -> int:
        return os.getpid()
