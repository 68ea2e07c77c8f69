"""An object store behind the same door as files: an archive lies in `s3://` as it lies in a folder.

pyarrow.fs does the talking. What a file system has and an object store lacks is made up for here:

    create      an object appears when it is finished, and then as a whole; it is written from
                its beginning to its end, and `sync` finishes it
    rename      a copy, made by the store itself, and then the old one goes. It is there under the
                new name at once and as a whole, also if one was there before
    sync_dir    nothing to do: an object that was finished is durable, and so is its name
    make_dir    nothing to do: a directory is there when something is in it
    lock        an object that says who holds it, see below
    map         the bytes, fetched

**The lock** cannot be a kernel's. Who wants it writes an object with his process, the boot of his
machine and a random token, and has it if he reads back his own token. The lock of a process of this
machine that is gone is taken over. That of another machine's process stays until it is released, or
until somebody who knows that the process is gone deletes the object, whose name the error tells.
Two who ask within the same moment may both see their token; pyarrow has nothing better to offer. So
have one machine archive a topic to one place.

A path is `s3://bucket/folder/file`. Credentials are no part of it: pyarrow finds them where other
programs for that store do (environment, profile, role), or in the URL that it was opened with.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from esker.errors import InvalidOption, StorageError
from esker.storage.files import (
    SYSTEM_FILES,
    Files,
    Holder,
    Mode,
    Mutex,
    absolute,
    base_name,
    content_of,
    is_running,
    told,
)

FLAT: Final = frozenset({"s3", "gcs", "abfs"})  # those that have no directories


def is_url(text: str) -> bool:
    return "://" in text and not text.startswith("file://")


def files_at(place: str, near: Files = SYSTEM_FILES) -> tuple[Files, str]:
    """The door to a place, and the place as a path behind it: a directory, or a URL."""
    if is_url(place):
        return open_objects(place, near)
    return near, absolute(place.removeprefix("file://"))


def open_objects(url: str, near: Files = SYSTEM_FILES) -> tuple[ObjectFiles, str]:
    """The object store that a URL leads to, and the URL without what only opening it needs."""
    system, path = system_at(url)
    scheme = urlsplit(url).scheme
    return ObjectFiles(system, scheme, near), f"{scheme}://{path.strip('/')}"


def system_at(url: str) -> tuple[Any, str]:
    """pyarrow's file system for a URL, and the path in it. Asks nothing of it yet."""
    from pyarrow import fs  # it takes its time, and few need it

    try:
        system, path = fs.FileSystem.from_uri(url)
    except (OSError, ValueError, NotImplementedError) as problem:
        told_url = without_secrets(url)
        said = str(problem).replace(url, told_url)
        raise InvalidOption(f"{told_url!r} cannot be opened: {said}") from None
    return system, path


def without_secrets(url: str) -> str:
    """A URL to be told: without user, password and parameters."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class ObjectFiles:
    """As much of `Files` as an archive needs."""

    def __init__(self, system: Any, scheme: str, near: Files = SYSTEM_FILES) -> None:
        self._system = system
        self._begins = f"{scheme}://"
        self._near = near

    def _in(self, path: str) -> str:
        return path.removeprefix(self._begins)

    @contextmanager
    def _told(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise told(problem, doing, path) from problem

    def _info(self, path: str) -> Any:
        with self._told("look at", path):
            return self._system.get_file_info(self._in(path))

    def open(self, path: str, mode: Mode) -> ObjectReader | ObjectWriter:
        if mode == "r":
            with self._told("open", path):
                return ObjectReader(path, self._system.open_input_file(self._in(path)))
        if mode != "create":
            raise self._cannot("change", path)
        if self.kind(path):
            raise told(FileExistsError(errno.EEXIST, "File exists"), "create", path)
        with self._told("create", path):
            return ObjectWriter(path, self._system.open_output_stream(self._in(path)))

    def rename(self, old: str, new: str) -> None:
        with self._told("rename", old):
            self._system.move(self._in(old), self._in(new))

    def unlink(self, path: str) -> None:
        with self._told("delete", path):
            self._system.delete_file(self._in(path))

    def make_dir(self, path: str) -> None:
        if self._system.type_name not in FLAT:
            with self._told("create", path):
                self._system.create_dir(self._in(path), recursive=False)

    def sync_dir(self, path: str) -> None:
        """Nothing: what is there is durable."""

    def list(self, path: str) -> list[str]:
        from pyarrow import fs

        with self._told("list", path):
            wanted = fs.FileSelector(self._in(path), allow_not_found=True)
            return [base_name(found.path) for found in self._system.get_file_info(wanted)]

    def kind(self, path: str) -> str:
        """What lies there. Of the bucket, or the highest directory, it must be something."""
        found = self._info(path)
        if found.is_file:
            return "file"
        if found.type.name == "Directory":
            return "dir"
        if "/" not in self._in(path):
            raise told(FileNotFoundError(errno.ENOENT, "there is no such bucket"), "open", path)
        return ""

    # ---- locks ---------------------------------------------------------------------------

    def lock(self, path: str, note: str, *, wait: bool = False) -> ObjectLock | Holder:
        held = self.holder(path)
        if held is not None:
            return held
        token = self._near.random(8).hex()
        label = {
            "pid": self._near.pid(), "since": note, "boot": self._near.boot_id().hex(),
            "token": token,
        }  # fmt: skip
        with self._told("lock", path), self._system.open_output_stream(self._in(path)) as out:
            out.write(msgspec.json.encode(label))
        read = self._label(path)
        if read.get("token") != token:  # somebody else came at the same moment
            return Holder(int(read.get("pid", 0)), str(read.get("since", "")))
        return ObjectLock(self, path)

    def holder(self, path: str) -> Holder | None:
        if not self._info(path).is_file:
            return None
        label = self._label(path)
        here = bytes.fromhex(str(label.get("boot", ""))) == self._near.boot_id()
        pid = int(label.get("pid", 0))
        if here and any(self._near.boot_id()) and not is_running(pid):
            return None
        return Holder(pid, str(label.get("since", "")))

    def _label(self, path: str) -> dict[str, Any]:
        """What a lock says; nothing if it is gone, or was not written by Esker."""
        with suppress(StorageError, msgspec.MsgspecError, ValueError):
            return msgspec.json.decode(content_of(self, path), type=dict[str, Any])
        return {}

    # ---- what is asked of the machine, or cannot be ------------------------------------------

    def random(self, size: int) -> bytes:
        return self._near.random(size)

    def boot_id(self) -> bytes:
        return self._near.boot_id()

    def pid(self) -> int:
        return self._near.pid()

    def remove_dir(self, path: str) -> None:
        raise self._cannot("remove", path)

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        raise self._cannot("map", path)

    def mutex(self, path: str) -> Mutex:
        raise self._cannot("lock", path)

    @staticmethod
    def _cannot(doing: str, path: str) -> StorageError:
        return StorageError(f"cannot {doing} {path}: an object is written once", path=path)


class ObjectReader:
    """An object, to be read."""

    __slots__ = ("_file", "path")

    def __init__(self, path: str, file: Any) -> None:
        self.path = path
        self._file = file

    def read(self, position: int, size: int) -> bytes:
        try:
            return bytes(self._file.read_at(min(size, self.size() - position), position))
        except OSError as problem:
            raise told(problem, "read", self.path) from problem

    def size(self) -> int:
        return int(self._file.size())

    def map(self) -> Any:
        try:
            self._file.seek(0)
            return memoryview(self._file.read_buffer(self.size()))
        except OSError as problem:
            raise told(problem, "read", self.path) from problem

    def close(self) -> None:
        self._file.close()

    def write(self, position: int, parts: Sequence[Any]) -> None:
        raise ObjectFiles._cannot("write", self.path)

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None:
        raise ObjectFiles._cannot("cut", self.path)

    def allocate(self, size: int) -> None:
        raise ObjectFiles._cannot("write", self.path)


class ObjectWriter:
    """An object in the making, from its beginning to its end."""

    __slots__ = ("_end", "_file", "path")

    def __init__(self, path: str, file: Any) -> None:
        self.path = path
        self._file = file
        self._end = 0

    def write(self, position: int, parts: Sequence[Any]) -> None:
        if position != self._end:
            raise ObjectFiles._cannot("change", self.path)
        try:
            for part in parts:
                self._file.write(part)
                self._end += memoryview(part).nbytes
        except (OSError, ValueError) as problem:
            error = problem if isinstance(problem, OSError) else OSError(str(problem))
            raise told(error, "write", self.path) from problem

    def sync(self) -> None:
        """Finish it: from now on it is there, durably."""
        try:
            self._file.close()
        except OSError as problem:
            raise told(problem, "write", self.path) from problem

    def size(self) -> int:
        return self._end

    def close(self) -> None:
        with suppress(OSError):  # told by `sync`, or nobody wants it any more
            self._file.close()

    def read(self, position: int, size: int) -> bytes:
        raise ObjectFiles._cannot("read", self.path)

    def map(self) -> Any:
        raise ObjectFiles._cannot("read", self.path)

    def truncate(self, size: int) -> None:
        raise ObjectFiles._cannot("cut", self.path)

    def allocate(self, size: int) -> None: ...


class ObjectLock:
    """A held lock; released by deleting its object."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: ObjectFiles, path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        with suppress(StorageError):  # it is known to be that of a process that is gone, one day
            self._files.unlink(self._path)
