"""The real door when the operating system does less than it was asked for, or nothing.

A write may be short, a read too, any call may be interrupted: `RealFiles` goes on until all of it
is done, or raises one of Esker's exceptions with the path. Here the calls of `os` are replaced by
ones that do so; what such a failure does to a store is in the other files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.storage import files
from esker.storage.files import Holder, RealFile, RealFiles

PARTS = [b"one", b"", b"two and more", b"!" * 1000, b"end"]
WHOLE = b"".join(PARTS)
NUMBERS = [
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EINTR, errno.ESTALE,
    errno.EACCES,
]  # fmt: skip
Patch = pytest.MonkeyPatch


@pytest.fixture
def file(tmp_path: Path) -> Any:
    made = RealFiles().open(str(tmp_path / "file"), "create")
    yield made
    made.close()


def short_writes(patch: Patch, least: int) -> list[int]:
    """Writes take a few bytes at a time, `least` of them; returns how much each call took."""
    pwrite, took = os.pwrite, []

    def few(fd: int, data: Any, position: int) -> int:
        took.append(pwrite(fd, bytes(data)[:least], position))
        return took[-1]

    patch.setattr(os, "pwrite", few)
    patch.setattr(os, "pwritev", lambda fd, parts, at: few(fd, b"".join(map(bytes, parts)), at))
    return took


@pytest.mark.parametrize("least", [1, 7, 500])
def test_a_short_write_is_continued(file: RealFile, monkeypatch: Patch, least: int) -> None:
    with monkeypatch.context() as patch:
        took = short_writes(patch, least)
        file.write(5, PARTS)
        file.write(5 + len(WHOLE), [WHOLE])
    assert sum(took) == 2 * len(WHOLE)
    assert len(took) >= 2 * len(WHOLE) // least
    assert file.read(0, 10_000) == bytes(5) + WHOLE + WHOLE


def test_a_write_of_more_buffers_than_one_call_takes_is_continued(file: RealFile) -> None:
    parts = [b"%d," % n for n in range(3 * files.IOV_MAX)]
    file.write(0, parts)
    assert file.read(0, file.size()) == b"".join(parts)


@pytest.mark.parametrize("parts", [PARTS, [WHOLE]], ids=["many buffers", "one buffer"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_write_that_takes_nothing_is_an_error_and_no_endless_loop(
    file: RealFile, monkeypatch: Patch, parts: list[bytes], after: int
) -> None:
    calls: list[int] = []

    def stops(_fd: int, data: Any, _at: int) -> int:
        calls.append(1)
        return 10 if len(calls) <= after else 0

    monkeypatch.setattr(os, "pwrite", stops)
    monkeypatch.setattr(os, "pwritev", stops)
    with pytest.raises(esker.StorageError, match="took no bytes") as problem:
        file.write(0, parts)
    assert problem.value.path == file.path
    assert len(calls) == after + 1


@pytest.mark.parametrize("least", [1, 7, 500])
def test_a_short_read_is_continued(file: RealFile, monkeypatch: Patch, least: int) -> None:
    file.write(0, [WHOLE])
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, least), at))
    assert file.read(3, 700) == WHOLE[3:703]
    assert file.read(3, 100_000) == WHOLE[3:]  # fewer at the end of the file
    assert file.read(100_000, 10) == b""


def test_a_read_that_ends_before_the_file_is_an_error_and_not_the_end_of_a_log(
    file: RealFile, monkeypatch: Patch
) -> None:
    file.write(0, [WHOLE])
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda fd, size, at: pread(fd, max(0, min(size, 100 - at)), at)
    )
    assert file.read(0, 100) == WHOLE[:100]
    with pytest.raises(esker.StorageError, match="ended before the file") as problem:
        file.read(0, 101)
    assert problem.value.path == file.path


def test_a_file_that_grows_while_it_is_read_is_read_to_its_new_end(
    file: RealFile, monkeypatch: Patch
) -> None:
    file.write(0, [b"short"])
    pread, grown = os.pread, []

    def grows(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        if not data and not grown:
            grown.append(os.pwrite(fd, b" and more", 5))
        return data

    monkeypatch.setattr(os, "pread", grows)
    assert file.read(0, 100) == b"short and more"


CALLS: dict[str, tuple[str, Callable[[RealFiles, str], object]]] = {
    "open": ("open", lambda door, root: door.open(f"{root}/file", "rw")),
    "create": ("open", lambda door, root: door.open(f"{root}/new", "create")),
    "stat": ("fstat", lambda door, root: door.open(f"{root}/file", "r")),
    "size": ("fstat", lambda door, root: _opened(door, root).size()),
    "read": ("pread", lambda door, root: _opened(door, root).read(0, 10)),
    "write": ("pwrite", lambda door, root: _opened(door, root).write(0, [b"x"])),
    "writev": ("pwritev", lambda door, root: _opened(door, root).write(0, [b"x", b"y"])),
    "sync": ("fdatasync", lambda door, root: _opened(door, root).sync()),
    "truncate": ("ftruncate", lambda door, root: _opened(door, root).truncate(1)),
    "allocate": ("posix_fallocate", lambda door, root: _opened(door, root).allocate(100)),
    "page": ("pwrite", lambda door, root: door.page(f"{root}/page", 4096, writable=True)),
    "rename": ("rename", lambda door, root: door.rename(f"{root}/file", f"{root}/other")),
    "unlink": ("unlink", lambda door, root: door.unlink(f"{root}/file")),
    "make_dir": ("mkdir", lambda door, root: door.make_dir(f"{root}/folder")),
    "sync_dir": ("fsync", lambda door, root: door.sync_dir(root)),
    "list": ("listdir", lambda door, root: door.list(root)),
    "kind": ("lstat", lambda door, root: door.kind(f"{root}/file")),
    "lock": ("open", lambda door, root: door.lock(f"{root}/lock", "now")),
}
_held: list[RealFile] = []  # opened before the call that is made to fail


def _opened(_door: RealFiles, _root: str) -> RealFile:
    return _held[-1]


@pytest.mark.parametrize("number", NUMBERS, ids=[errno.errorcode[n] for n in NUMBERS])
@pytest.mark.parametrize("call", CALLS)
def test_every_refusal_comes_out_as_an_exception_of_esker_with_its_path(
    tmp_path: Path, monkeypatch: Patch, call: str, number: int
) -> None:
    door, root = RealFiles(), str(tmp_path)
    _held[:] = [door.open(f"{root}/file", "create")]
    name, perform = CALLS[call]

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(esker.StorageError) as problem:
            perform(door, root)
    assert problem.value.path.startswith(root)
    assert problem.value.errno == number
    assert problem.value.code
    _held.pop().close()


def test_what_close_says_is_not_worth_an_exception(file: RealFile, monkeypatch: Patch) -> None:
    close = os.close

    def refuse(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", refuse)
        file.close()
    file.close()


@pytest.mark.parametrize("wait", [False, True])
def test_an_interrupt_while_a_lock_is_taken_leaves_it_free_and_nothing_open(
    tmp_path: Path, monkeypatch: Patch, wait: bool
) -> None:
    door, path, take = RealFiles(), str(tmp_path / "lock"), RealFiles._take

    def interrupted(fd: int, wait: bool) -> None:
        take(fd, wait)
        raise KeyboardInterrupt

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_take", staticmethod(interrupted))
        with pytest.raises(KeyboardInterrupt):
            door.lock(path, "now", wait=wait)
    assert len(os.listdir("/proc/self/fd")) == before
    lock = door.lock(path, "later")
    assert not isinstance(lock, Holder)
    lock.release()


def test_a_store_on_a_disk_that_does_everything_in_small_pieces(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    values = [b"%d" % n * n for n in range(200)]
    pread = os.pread
    with monkeypatch.context() as patch:
        short_writes(patch, 100)
        patch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 50), at))
        with esker.open(tmp_path / "data", background=False) as store:
            topic = store.create("t", segment_bytes=8192)
            for value in values:
                topic.append(value)
            topic.sync()
            store.tick()
            assert [record.value for record in topic.read()] == values
    with esker.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert [record.value for record in store["t"].read()] == values
    assert esker.verify(tmp_path / "data").ok
