"""The only door to the operating system.

Every file call of Esker goes through a `Files` object. There are three: `RealFiles` here,
`MemoryFiles` beside it, and the simulated disks of `esker.testing`, which can crash at each call.
Whoever adds a call here adds it there.

Rules of this door:

* `write` writes all of it or raises; short writes are continued, EINTR is Python's business.
* `read` gives less than was asked for at the end of the file only; elsewhere it raises.
* `sync` is fdatasync. If it fails it is never tried again: after a failed sync the kernel may
  have dropped the pages, and a second one would report success for data that is gone.
* A name is durable only after `sync_dir` of its directory.
* Files are 0600, directories 0700, symbolic links are refused.
* A file that has a second name (a hard link) is read, and not opened for writing: what is written
  here would change what lies there. Backups share sealed segments that way, which never change.
* A file that a reader may have mapped is never truncated and never written again.
* What the OS says is turned into Esker's exceptions here, with the path and what to do.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from esker.errors import (
    DiskFull,
    PermissionRefused,
    ReadOnlyDisk,
    StorageError,
    TooManyFiles,
    UnsafePath,
)

Mode = Literal["r", "rw", "create"]
IOV_MAX: Final = 1024


class Holder(NamedTuple):
    """Who holds a lock, as far as the lock file tells."""

    pid: int
    since: str


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    path: str

    def read(self, position: int, size: int) -> bytes: ...
    def write(self, position: int, parts: Sequence[Any]) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None: ...
    def map(self) -> Any: ...
    def close(self) -> None: ...


class Lock(Protocol):
    """A held kernel lock."""

    def release(self) -> None: ...


class Mutex(Protocol):
    """A kernel lock that is taken for moments, again and again, by many processes.

    It keeps processes apart, not threads: whoever shares one between threads has a lock of his own
    around it. When its holder dies, the next one gets it, and what was guarded is as he left it.
    """

    def take(self) -> None: ...
    def give(self) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, mode: Mode) -> File: ...
    def page(self, path: str, size: int, *, writable: bool) -> Any: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def make_dir(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...
    def list(self, path: str) -> list[str]: ...
    def kind(self, path: str) -> str: ...
    def lock(self, path: str, note: str, *, wait: bool = False) -> Lock | Holder: ...
    def holder(self, path: str) -> Holder | None: ...
    def mutex(self, path: str) -> Mutex: ...
    def random(self, size: int) -> bytes: ...
    def boot_id(self) -> bytes: ...
    def pid(self) -> int: ...


# ---- what the OS says, in our words ----------------------------------------------------------

_MEANING: Final[dict[int, tuple[type[StorageError], str]]] = {
    errno.ENOSPC: (DiskFull, "the disk is full; free some space and try again, nothing is lost"),
    errno.EDQUOT: (DiskFull, "the disk quota is used up; free some space and try again"),
    errno.EFBIG: (DiskFull, "the file size limit of this process or disk is reached"),
    errno.EROFS: (ReadOnlyDisk, 'the disk is read-only; open with mode="r" to read'),
    errno.EACCES: (PermissionRefused, "no permission; check who owns the store"),
    errno.EPERM: (PermissionRefused, "not permitted; check who owns the store"),
    errno.EMFILE: (TooManyFiles, "this process has too many open files; raise `ulimit -n`"),
    errno.ENFILE: (TooManyFiles, "the machine has too many open files"),
    errno.ELOOP: (UnsafePath, "a symbolic link stands where a file of the store should be"),
    errno.EISDIR: (UnsafePath, "a directory stands where a file of the store should be"),
    errno.ENOTDIR: (UnsafePath, "a file stands where a directory of the store should be"),
}


def told(problem: OSError, doing: str, path: str) -> StorageError:
    """The StorageError for what the OS said while doing something to path."""
    kind, advice = _MEANING.get(problem.errno or 0, (StorageError, ""))
    said = problem.strerror or str(problem)
    text = f"cannot {doing} {path}: {said}" + (f" ({advice})" if advice else "")
    return kind(text, path=path, cause=problem)


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, size, position)
            empty = 0
            while len(data) < size:  # a short read, or the end
                more = os.pread(self._fd, size - len(data), position + len(data))
                data += more
                if not more:
                    if os.fstat(self._fd).st_size <= position + len(data):
                        break
                    empty += 1  # it has just grown, or this is not its end at all
                    if empty > 3:
                        raise OSError(errno.EIO, "the read ended before the file")
        except OSError as problem:
            raise told(problem, "read", self.path) from problem
        return data

    def write(self, position: int, parts: Sequence[Any]) -> None:
        try:
            if len(parts) == 1:
                size = len(parts[0])
                done = os.pwrite(self._fd, parts[0], position)
            else:
                size = sum(map(len, parts))
                done = os.pwritev(self._fd, parts[:IOV_MAX], position)
            if done != size:  # a short write, or more buffers than one call takes
                self._write_rest(position, parts, done)
        except OSError as problem:
            raise told(problem, "write to", self.path) from problem

    def _write_rest(self, position: int, parts: Sequence[Any], done: int) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        while True:
            if done == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            position += done
            while views and done >= len(views[0]):
                done -= len(views[0])
                del views[0]
            if not views:
                return
            views[0] = views[0][done:]
            done = os.pwritev(self._fd, views[:IOV_MAX], position)

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as problem:
            raise told(problem, "sync", self.path) from problem

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as problem:
            raise told(problem, "look at", self.path) from problem

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as problem:
            raise told(problem, "truncate", self.path) from problem

    def allocate(self, size: int) -> None:
        """Reserve room; the new part reads as zeros. Quietly nothing where unsupported."""
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as problem:
            if problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise told(problem, "allocate", self.path) from problem

    def map(self) -> Any:
        """The whole file, read-only. Unmapped when the last buffer on it is gone."""
        try:
            return mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as problem:
            cause = problem if isinstance(problem, OSError) else OSError(errno.EINVAL, str(problem))
            raise told(cause, "map", self.path) from problem

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # it is closed all the same, and what counts was synced
                os.close(fd)

    def __del__(self) -> None:
        self.close()


# struct flock of Linux: type, whence, start, length, pid
_FLOCK: Final = struct.Struct("@hhqqi4x")
_OFD: Final = hasattr(fcntl, "F_OFD_SETLK")


class RealLock:
    """An exclusive lock that the kernel drops when its holder dies.

    Whoever took it gives it back explicitly: a child that is being forked has a copy of the
    descriptor for a moment, and closing ours would not be enough. A child only closes its copy.
    """

    __slots__ = ("_fd", "_pid")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._pid == os.getpid():
            _unlock(fd)
        os.close(fd)

    def __del__(self) -> None:
        self.release()


_TAKE: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_GIVE: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)


class RealMutex:
    """A lock file that stays open, so that taking it is one call and giving it back another."""

    __slots__ = ("_file", "path")

    def __init__(self, file: RealFile) -> None:
        self.path = file.path
        self._file = file

    def take(self) -> None:
        """Wait for it, and have it."""
        try:
            if _OFD:
                fcntl.fcntl(self._file._fd, fcntl.F_OFD_SETLKW, _TAKE)
            else:
                fcntl.flock(self._file._fd, fcntl.LOCK_EX)
        except OSError as problem:
            raise told(problem, "lock", self.path) from problem

    def give(self) -> None:
        try:
            if _OFD:
                fcntl.fcntl(self._file._fd, fcntl.F_OFD_SETLK, _GIVE)
            else:
                fcntl.flock(self._file._fd, fcntl.LOCK_UN)
        except OSError as problem:
            raise told(problem, "unlock", self.path) from problem

    def close(self) -> None:
        self._file.close()


def _unlock(fd: int) -> None:
    if _OFD:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _GIVE)
    else:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _regular(path: str, flags: int, doing: str) -> RealFile:
    """Open a file and nothing else: no link is followed, no pipe is waited for."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = RealFile(path, os.open(path, flags, 0o600))  # from here on it closes itself
        found = os.fstat(file._fd)
    except OSError as problem:
        raise told(problem, doing, path) from problem
    if not stat.S_ISREG(found.st_mode):
        wrong = "something that is not a file stands in its place"
    elif found.st_nlink > 1 and flags & os.O_RDWR:
        wrong = (
            "it has another name elsewhere (a hard link), and what is written here would change "
            "that, too; put a copy in its place"
        )
    else:
        return file
    file.close()
    raise UnsafePath(f"cannot {doing} {path}: {wrong}", path=path)


class RealFiles:
    """The machine's own file system."""

    __slots__ = ()

    def open(self, path: str, mode: Mode) -> RealFile:
        if mode == "create":
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        else:
            flags = os.O_RDONLY if mode == "r" else os.O_RDWR
        return _regular(path, flags, "create" if mode == "create" else "open")

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        """A small file mapped as 64-bit words, shared between processes."""
        file = _regular(path, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY, "map")
        try:
            try:
                if os.fstat(file._fd).st_size < size:
                    if not writable:
                        raise OSError(errno.EINVAL, "the page is too short")
                    file.write(0, [bytes(size)])  # real blocks: a store to a hole may SIGBUS
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                mapped = mmap.mmap(file._fd, size, access=access)
            finally:
                file.close()
        except StorageError:
            raise
        except OSError as problem:
            raise told(problem, "map", path) from problem
        return memoryview(mapped).cast("Q")

    def rename(self, old: str, new: str) -> None:
        self._do(lambda: os.rename(old, new), "rename", old)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as problem:
            raise told(problem, "delete", path) from problem

    def make_dir(self, path: str) -> None:
        """Make a directory; no complaint when it is there."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if self.kind(path) != "dir":
                raise UnsafePath(f"cannot use {path}: it is not a directory", path=path) from None
        except OSError as problem:
            raise told(problem, "create", path) from problem

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        self._do(lambda: os.rmdir(path), "delete", path)

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as problem:
            raise told(problem, "sync directory", path) from problem

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise told(problem, "list", path) from problem

    def kind(self, path: str) -> str:
        """One of: file, dir, link, other, and "" for nothing there."""
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as problem:
            raise told(problem, "look at", path) from problem
        if stat.S_ISREG(mode):
            return "file"
        if stat.S_ISDIR(mode):
            return "dir"
        return "link" if stat.S_ISLNK(mode) else "other"

    def lock(self, path: str, note: str, *, wait: bool = False) -> RealLock | Holder:
        """Take an exclusive lock, or say who has it."""
        file = _regular(path, os.O_RDWR | os.O_CREAT, "lock")
        fd, file._fd = file._fd, -1  # never two owners: closing twice closes somebody else's
        lock = RealLock(fd)
        try:
            self._take(lock._fd, wait)
        except (BlockingIOError, PermissionError):
            lock.release()
            return self.holder(path) or Holder(0, "")
        except OSError as problem:
            lock.release()
            raise told(problem, "lock", path) from problem
        except BaseException:  # at once: who catches it may keep its frames, and our lock in them
            lock.release()
            raise
        with suppress(OSError):  # a full disk: the lock holds, only its label is missing
            text = msgspec.json.encode({"pid": os.getpid(), "since": note})
            os.ftruncate(lock._fd, 0)
            os.pwrite(lock._fd, text, 0)
        return lock

    @staticmethod
    def _take(fd: int, wait: bool) -> None:
        if _OFD:
            order = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            fcntl.fcntl(fd, order, _TAKE)
        else:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def holder(self, path: str) -> Holder | None:
        """Who holds the lock now; None when nobody does. Never takes it, not even for a moment."""
        try:
            file = _regular(path, os.O_RDONLY, "open")
        except StorageError:
            return None
        try:
            label = self._label(file._fd)
            if _OFD:
                said = fcntl.fcntl(file._fd, fcntl.F_OFD_GETLK, _TAKE)
                return label if _FLOCK.unpack(said)[0] != fcntl.F_UNLCK else None
            return label if label.pid and os.path.exists(f"/proc/{label.pid}") else None
        except OSError as problem:
            raise told(problem, "look at", path) from problem
        finally:
            file.close()

    def mutex(self, path: str) -> RealMutex:
        """A lock for moments; the file is made if need be."""
        return RealMutex(_regular(path, os.O_RDWR | os.O_CREAT, "lock"))

    @staticmethod
    def _label(fd: int) -> Holder:
        try:
            found = msgspec.json.decode(os.pread(fd, 256, 0), type=dict[str, int | str])
            return Holder(int(found.get("pid", 0)), str(found.get("since", "")))
        except (msgspec.MsgspecError, ValueError, OSError):
            return Holder(0, "")

    def random(self, size: int) -> bytes:
        return os.urandom(size)

    def boot_id(self) -> bytes:
        """Changes with every start of the machine: tells a dead process from a power cut."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return bytes.fromhex(file.read().strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)  # unknown: every crash is then treated as a power cut

    def pid(self) -> int:
        return os.getpid()

    @staticmethod
    def _do(call: Callable[[], None], doing: str, path: str) -> None:
        try:
            call()
        except OSError as problem:
            raise told(problem, doing, path) from problem


def on_fork(callback: Callable[[], None]) -> None:
    """Call back in every child that this process forks."""
    os.register_at_fork(after_in_child=callback)


def forget_pages(mapped: Any) -> None:
    """Let the pages of a mapping leave this process's resident set; they stay in the page cache."""
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)


def absolute(path: str | os.PathLike[str]) -> str:
    """An absolute path as text."""
    return os.path.abspath(os.fspath(path))


def join(folder: str, *names: str) -> str:
    """A path below a folder; the names are ours and have no slash."""
    return "/".join((folder.rstrip("/"), *names))


def parent(path: str) -> str:
    return os.path.dirname(path)


def base_name(path: str) -> str:
    return os.path.basename(path)


def modified_ns(path: str) -> int:
    """When a file was last written, as its file system tells it."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError as problem:
        raise told(problem, "look at", path) from problem


def world_writable(path: str) -> bool:
    """True for a directory in which anybody may exchange our files."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def others_may_read(path: str) -> bool:
    """True for a file that anybody but its owner may read or change."""
    try:
        return bool(os.stat(path).st_mode & 0o077)
    except OSError as problem:
        raise told(problem, "look at", path) from problem


def real_path(path: str | os.PathLike[str]) -> str:
    """Where a path of the operator's leads, whatever links there are on the way."""
    return os.path.realpath(path)


def free_bytes(path: str) -> int | None:
    """The room that is left on the disk of a path; None if there is no disk to ask."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def is_running(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except OSError as problem:
        return problem.errno != errno.ESRCH  # else it is there, and somebody else's
    return pid > 0


def require_dir(files: Files, path: str) -> None:
    """Refuse what stands in the place of a directory: through a link, other files would change."""
    if files.kind(path) not in ("dir", ""):
        raise UnsafePath(
            f"cannot use {path}: a link, or something else, stands where a directory of the store "
            "should be; put the directory there",
            path=path,
        )


def size_of(files: Files, path: str) -> int:
    """The size of a file in bytes."""
    file = files.open(path, "r")
    try:
        return file.size()
    finally:
        file.close()


def size_if_there(files: Files, path: str) -> int:
    """The size of a file; -1 if it is gone, or cannot be looked at."""
    try:
        return size_of(files, path)
    except StorageError:
        return -1


def content_of(files: Files, path: str, most: int = 1 << 62) -> bytes:
    """The bytes of a file, or so many of them."""
    file = files.open(path, "r")
    try:
        return file.read(0, min(file.size(), most))
    finally:
        file.close()


def link_file(old: str, new: str) -> bool:
    """Give a file that never changes a second name; False where that cannot be done."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        return False
    return True


def sync_file(files: Files, path: str) -> None:
    """Make the bytes of a file durable, also those that were stored through a mapped page."""
    page = files.open(path, "rw")
    try:
        page.sync()
    finally:
        page.close()


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Make `path` hold `data`, atomically and durably: tmp, sync, rename, sync the directory."""
    temporary = path + ".tmp"
    if files.kind(temporary):
        files.unlink(temporary)
    file = files.open(temporary, "create")
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(parent(path))


SYSTEM_FILES: Final = RealFiles()
