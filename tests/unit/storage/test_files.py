"""Three doors to a file system, one table: what holds for the machine's holds for its doubles."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from esker.errors import DiskFull, PermissionRefused, StorageError, UnsafePath
from esker.storage import files as door_module
from esker.storage.files import (
    Files,
    Holder,
    RealFiles,
    absolute,
    base_name,
    forget_pages,
    join,
    modified_ns,
    on_fork,
    others_may_read,
    parent,
    real_path,
    replace_file,
    require_dir,
    sync_file,
    told,
    world_writable,
)
from esker.storage.memory import MemoryFiles
from esker.testing import SimulatedDisk


class Door(NamedTuple):
    files: Files
    root: str

    def path(self, *names: str) -> str:
        return join(self.root, *names)


@pytest.fixture(params=["real", "memory", "simulated"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Door:
    if request.param == "real":
        return Door(RealFiles(), str(tmp_path))
    files: Any = MemoryFiles() if request.param == "memory" else SimulatedDisk()
    files.make_dir("/top")
    return Door(files, "/top")


@pytest.fixture
def real(tmp_path: Path) -> Door:
    return Door(RealFiles(), str(tmp_path))


def put(door: Door, name: str, data: bytes = b"") -> str:
    file = door.files.open(door.path(name), "create")
    file.write(0, [data])
    file.close()
    return file.path


def content(door: Door, name: str) -> bytes:
    file = door.files.open(door.path(name), "r")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


# ---- what all three promise ------------------------------------------------------------------


def test_what_is_written_in_parts_anywhere_is_read_back(door: Door) -> None:
    file = door.files.open(door.path("a"), "create")
    file.write(0, [b"hello ", b"", b"world"])
    file.write(6, [b"there"])
    file.write(15, [b"end"])
    assert file.read(0, 100) == b"hello there\0\0\0\0end"
    assert file.read(6, 5) == b"there"
    assert file.read(100, 5) == b""
    file.sync()
    file.close()
    again = door.files.open(door.path("a"), "rw")
    assert again.size() == 18
    again.close()


def test_a_file_is_cut_and_grows_with_zeros(door: Door) -> None:
    file = door.files.open(door.path("a"), "create")
    file.write(0, [b"12345678"])
    file.truncate(3)
    assert file.read(0, 10) == b"123"
    file.truncate(5)
    assert file.read(0, 10) == b"123\0\0"
    file.allocate(8)
    assert file.read(0, 10) == b"123\0\0\0\0\0"
    file.allocate(4)  # it has more than that
    assert file.size() == 8
    file.close()


def test_a_mapping_shows_the_whole_file_and_outlives_its_handle(door: Door) -> None:
    file = door.files.open(put(door, "a", b"mapped"), "r")
    mapped = file.map()
    file.close()
    assert bytes(mapped[:]) == b"mapped"
    forget_pages(mapped)
    assert bytes(mapped[:]) == b"mapped"


def test_a_name_is_taken_once_and_must_be_there_to_be_opened(door: Door) -> None:
    put(door, "a")
    with pytest.raises(StorageError, match="cannot create"):
        door.files.open(door.path("a"), "create")
    with pytest.raises(StorageError, match="cannot open") as caught:
        door.files.open(door.path("b"), "r")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.path == door.path("b")


def test_a_file_is_renamed_over_another_and_deleted(door: Door) -> None:
    put(door, "a", b"new")
    put(door, "b", b"old")
    door.files.rename(door.path("a"), door.path("b"))
    door.files.sync_dir(door.root)
    assert content(door, "b") == b"new"
    assert door.files.kind(door.path("a")) == ""
    door.files.unlink(door.path("b"))
    assert door.files.list(door.root) == []


@pytest.mark.parametrize("call", ["unlink", "rename"])
def test_what_is_not_there_can_be_neither_renamed_nor_deleted(door: Door, call: str) -> None:
    arguments = [door.path("a")] if call == "unlink" else [door.path("a"), door.path("b")]
    with pytest.raises(StorageError) as caught:
        getattr(door.files, call)(*arguments)
    assert caught.value.errno == errno.ENOENT


def test_a_directory_is_renamed_with_all_that_is_in_it(door: Door) -> None:
    door.files.make_dir(door.path("d"))
    door.files.make_dir(door.path("d", "inner"))
    door.files.make_dir(door.path("dd"))
    put(door, "d/inner/x", b"1")
    put(door, "d/y", b"2")
    door.files.rename(door.path("d"), door.path("e"))
    assert content(door, "e/inner/x") == b"1"
    assert content(door, "e/y") == b"2"
    assert sorted(door.files.list(door.root)) == ["dd", "e"]
    assert door.files.kind(door.path("e", "inner")) == "dir"


def test_a_directory_is_made_once_and_never_over_a_file(door: Door) -> None:
    door.files.make_dir(door.path("d"))
    door.files.make_dir(door.path("d"))
    put(door, "f")
    with pytest.raises(UnsafePath, match="it is not a directory"):
        door.files.make_dir(door.path("f"))


def test_only_an_empty_directory_is_removed(door: Door) -> None:
    door.files.make_dir(door.path("d"))
    put(door, "d/x")
    with pytest.raises(StorageError) as caught:
        door.files.remove_dir(door.path("d"))
    assert caught.value.errno == errno.ENOTEMPTY
    door.files.unlink(door.path("d", "x"))
    door.files.remove_dir(door.path("d"))
    assert door.files.kind(door.path("d")) == ""
    with pytest.raises(StorageError) as missing:
        door.files.remove_dir(door.path("d"))
    assert missing.value.errno == errno.ENOENT


def test_a_directory_lists_one_level_and_none_that_is_missing(door: Door) -> None:
    door.files.make_dir(door.path("d"))
    put(door, "d/x")
    put(door, "f")
    assert sorted(door.files.list(door.root)) == ["d", "f"]
    assert door.files.list(door.path("nowhere")) == []
    kinds = [door.files.kind(door.path(name)) for name in ("d", "f", "d/x", "nowhere", "f/x")]
    assert kinds == ["dir", "file", "file", "", ""]


def test_a_page_begins_as_zeros_and_is_shared(door: Door) -> None:
    path = door.path("page")
    with pytest.raises(StorageError, match="cannot map"):
        door.files.page(path, 64, writable=False)
    page = door.files.page(path, 64, writable=True)
    assert list(page) == [0] * 8
    page[3] = 2**64 - 1
    assert door.files.page(path, 64, writable=False)[3] == 2**64 - 1
    assert door.files.page(path, 64, writable=True)[3] == 2**64 - 1


def test_a_lock_has_one_holder_who_is_named_until_he_lets_go(door: Door) -> None:
    path = door.path("lock")
    assert door.files.holder(path) is None
    lock = door.files.lock(path, "noon")
    assert not isinstance(lock, Holder)
    expected = Holder(door.files.pid(), "noon")
    assert door.files.lock(path, "later") == expected
    assert door.files.holder(path) == expected
    lock.release()
    lock.release()
    assert door.files.holder(path) is None
    second = door.files.lock(path, "evening", wait=True)
    assert door.files.holder(path) == Holder(door.files.pid(), "evening")
    assert not isinstance(second, Holder)
    second.release()


def test_a_page_is_synced_by_its_name(door: Door) -> None:
    page = door.files.page(door.path("page"), 64, writable=True)
    page[1] = 7
    sync_file(door.files, door.path("page"))
    assert door.files.page(door.path("page"), 64, writable=False)[1] == 7


def test_a_mutex_is_taken_and_given_again_and_again(door: Door) -> None:
    mutex = door.files.mutex(door.path("mutex"))
    for _ in range(3):
        mutex.take()
        mutex.give()
    again = door.files.mutex(door.path("mutex"))
    again.take()
    again.give()
    mutex.close()
    again.close()


@pytest.mark.parametrize("kernel", ["with OFD locks", "without"])
def test_a_mutex_keeps_processes_apart_and_ends_with_its_holder(
    real: Door, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "without":
        monkeypatch.setattr(door_module, "_OFD", False)
    path = real.path("mutex")
    mutex = real.files.mutex(path)
    began, ends = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        own = real.files.mutex(path)
        own.take()
        os.write(began[1], b"x")
        os.read(ends[0], 1)
        os._exit(0)  # without giving it back
    os.read(began[0], 1)
    threading.Timer(0.2, os.write, (ends[1], b"x")).start()
    at = time.monotonic()
    mutex.take()
    assert time.monotonic() - at > 0.1
    mutex.give()
    os.waitpid(child, 0)
    for end in (*began, *ends):
        os.close(end)
    os.close(mutex._file._fd)  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="cannot lock"):
        mutex.take()
    with pytest.raises(StorageError, match="cannot unlock"):
        mutex.give()
    mutex._file._fd = -1  # type: ignore[attr-defined]
    mutex.close()


def test_chance_and_identity_have_their_sizes(door: Door) -> None:
    assert len(door.files.random(9)) == 9
    assert door.files.random(16) != door.files.random(16)
    assert len(door.files.boot_id()) == 16
    assert door.files.pid() > 0


def test_a_file_is_replaced_as_a_whole_also_after_half_an_attempt(door: Door) -> None:
    put(door, "a", b"old")
    put(door, "a.tmp", b"half of somethi")
    replace_file(door.files, door.path("a"), b"new")
    assert content(door, "a") == b"new"
    assert door.files.list(door.root) == ["a"]


# ---- the machine's own -----------------------------------------------------------------------


def test_every_refusal_of_the_system_is_told_with_its_path(real: Door) -> None:
    file: Any = real.files.open(put(real, "a", b"1"), "rw")
    file.close()
    file.close()
    file._fd = 1 << 20  # which nobody has open
    calls: list[Callable[[], Any]] = [
        lambda: file.read(0, 1), lambda: file.write(0, [b"1"]), file.sync,
        lambda: file.truncate(0), lambda: file.allocate(9), file.map,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StorageError) as caught:
            call()
        assert (caught.value.path, caught.value.errno) == (file.path, errno.EBADF)
    file._fd = -1


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EACCES, PermissionRefused), (errno.EIO, StorageError)],
)
def test_an_error_number_has_a_class_and_advice(number: int, kind: type[StorageError]) -> None:
    problem = told(OSError(number, "said the disk"), "write to", "/x")
    assert type(problem) is kind
    assert str(problem).startswith("cannot write to /x: said the disk")
    assert ("(" in str(problem)) == (kind is not StorageError)


def test_an_error_without_a_number_is_told_in_its_own_words() -> None:
    assert str(told(OSError("no idea"), "map", "/x")) == "cannot map /x: no idea"


def test_a_short_write_goes_on_where_it_stopped(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(map(bytes, parts))[:4], at)
    )
    file = real.files.open(real.path("a"), "create")
    file.write(0, [b"0123456789"])
    file.write(10, [b"ab", b"", b"cdefg", b"hi"])
    assert file.read(0, 100) == b"0123456789abcdefghi"
    monkeypatch.setattr(os, "pwritev", pwritev)
    file.close()


def test_more_buffers_than_one_call_takes_are_written_in_several(real: Door) -> None:
    parts = [b"%04d" % n for n in range(door_module.IOV_MAX * 2 + 1)]
    file = real.files.open(real.path("a"), "create")
    file.write(0, parts)
    assert file.read(0, file.size()) == b"".join(parts)
    file.close()


def test_a_disk_that_takes_nothing_is_an_error_and_no_endless_loop(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    file = real.files.open(real.path("a"), "create")
    with pytest.raises(StorageError, match="the disk took no bytes"):
        file.write(0, [b"1"])
    file.close()


def test_a_short_read_goes_on_where_it_stopped(real: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    file = real.files.open(put(real, "a", b"0123456789"), "r")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 4), at))
    assert file.read(1, 8) == b"12345678"
    assert file.read(5, 100) == b"56789"
    file.close()


def test_a_read_that_ends_before_the_file_does_is_an_error(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = real.files.open(put(real, "a", b"0123456789"), "r")
    pread, asked = os.pread, [0]

    def empty(times: int) -> Callable[[int, int, int], bytes]:
        def read(fd: int, size: int, at: int) -> bytes:
            asked[0] += 1
            return b"" if asked[0] <= times else pread(fd, size, at)

        asked[0] = 0
        return read

    monkeypatch.setattr(os, "pread", empty(3))  # as if the file had just grown
    assert file.read(0, 10) == b"0123456789"
    monkeypatch.setattr(os, "pread", empty(100))
    with pytest.raises(StorageError, match="the read ended before the file"):
        file.read(0, 10)
    file.close()


def test_a_size_or_a_lock_that_cannot_be_asked_for_is_told(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = real.files.open(put(real, "a", b"1"), "r")
    real.files.lock(real.path("lock"), "").release()  # type: ignore[union-attr]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", refuse)
        with pytest.raises(StorageError, match="cannot look at"):
            file.size()
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_label", staticmethod(refuse))
        with pytest.raises(StorageError, match="cannot look at"):
            real.files.holder(real.path("lock"))
    file.close()


def test_a_page_that_the_disk_has_no_room_for_is_told(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(DiskFull, match="cannot write to"):
            real.files.page(real.path("page"), 64, writable=True)


def test_pages_in_memory_go_with_their_directory() -> None:
    files = MemoryFiles()
    files.make_dir("/d")
    files.page("/d/page", 64, writable=True)[0] = 7
    files.rename("/d", "/e")
    assert files.page("/e/page", 64, writable=False)[0] == 7
    files.remove_dir("/e")
    with pytest.raises(StorageError):
        files.page("/e/page", 64, writable=False)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENOSPC])
def test_room_ahead_is_a_wish_but_a_full_disk_is_an_error(
    real: Door, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = real.files.open(real.path("a"), "create")
    if number == errno.ENOSPC:
        with pytest.raises(DiskFull):
            file.allocate(100)
    else:
        file.allocate(100)
    assert file.size() == 0
    file.close()


def test_an_empty_file_cannot_be_mapped(real: Door) -> None:
    file = real.files.open(put(real, "a"), "r")
    with pytest.raises(StorageError, match="cannot map"):
        file.map()
    file.close()


def test_files_are_for_their_owner_only(real: Door) -> None:
    put(real, "a")
    real.files.make_dir(real.path("d"))
    assert os.stat(real.path("a")).st_mode & 0o777 == 0o600
    assert os.stat(real.path("d")).st_mode & 0o777 == 0o700


def test_what_is_no_file_is_refused_in_the_place_of_one(real: Door) -> None:
    os.mkfifo(real.path("pipe"))
    os.mkdir(real.path("dir"))
    os.symlink(put(real, "target"), real.path("link"))
    for name in ("pipe", "dir", "link"):
        with pytest.raises(UnsafePath):
            real.files.open(real.path(name), "r")
    kinds = [real.files.kind(real.path(name)) for name in ("pipe", "dir", "link")]
    assert kinds == ["other", "dir", "link"]
    with pytest.raises(UnsafePath):
        real.files.make_dir(real.path("link"))
    with pytest.raises(UnsafePath):
        real.files.page(real.path("link"), 64, writable=True)
    with pytest.raises(UnsafePath):
        real.files.lock(real.path("link"), "")


def test_a_page_that_is_too_short_is_not_shown_to_a_reader(real: Door) -> None:
    put(real, "page", b"12345678")
    with pytest.raises(StorageError, match="the page is too short"):
        real.files.page(real.path("page"), 64, writable=False)
    assert len(real.files.page(real.path("page"), 64, writable=True)) == 8


def test_directories_that_cannot_be_used_are_errors(real: Door) -> None:
    put(real, "f")
    with pytest.raises(StorageError, match="cannot create"):
        real.files.make_dir(real.path("nowhere", "d"))
    with pytest.raises(StorageError, match="cannot sync directory"):
        real.files.sync_dir(real.path("nowhere"))
    with pytest.raises(UnsafePath, match="cannot list"):
        real.files.list(real.path("f"))
    with pytest.raises(StorageError, match="cannot look at"):
        real.files.kind(real.path("x" * 300))
    with pytest.raises(StorageError, match="cannot lock"):
        real.files.lock(real.path("nowhere", "lock"), "")


def test_a_lock_whose_taking_was_interrupted_is_free_at_once(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = RealFiles._take

    def interrupted(fd: int, wait: bool) -> None:
        take(fd, wait)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RealFiles, "_take", staticmethod(interrupted))
        with pytest.raises(KeyboardInterrupt) as kept:
            real.files.lock(real.path("lock"), "noon")
    lock = real.files.lock(real.path("lock"), "later")
    assert not isinstance(lock, Holder), f"frames of {kept.value!r} hold it"
    lock.release()


@pytest.mark.parametrize("kernel", ["with OFD locks", "without"])
def test_a_lock_holds_with_either_kind_of_kernel_lock(
    real: Door, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "without":
        monkeypatch.setattr(door_module, "_OFD", False)
    path = real.path("lock")
    lock = real.files.lock(path, "noon")
    expected = Holder(os.getpid(), "noon")
    assert real.files.lock(path, "later") == expected
    assert real.files.holder(path) == expected
    assert not isinstance(lock, Holder)
    lock.release()
    again = real.files.lock(path, "")
    assert not isinstance(again, Holder)
    again.release()


def test_without_kernel_help_a_holder_is_alive_if_its_process_is(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "_OFD", False)
    put(real, "lock", b'{"pid":999999999,"since":"long ago"}')
    assert real.files.holder(real.path("lock")) is None


def test_a_copy_of_a_lock_in_a_child_is_closed_and_not_unlocked(real: Door) -> None:
    path = real.path("lock")
    lock = real.files.lock(path, "parent")
    copy = door_module.RealLock(os.dup(lock._fd))  # type: ignore[union-attr]
    copy._pid = -1  # as after a fork
    copy.release()
    assert real.files.holder(path) == Holder(os.getpid(), "parent")
    lock.release()  # type: ignore[union-attr]
    assert real.files.holder(path) is None


def test_a_kernel_that_has_no_locks_is_an_error(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_take", staticmethod(refuse))
        with pytest.raises(StorageError, match="No locks available"):
            real.files.lock(real.path("lock"), "")
    assert real.files.holder(real.path("lock")) is None


def test_a_full_disk_costs_a_lock_its_label_only(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        lock = real.files.lock(real.path("lock"), "noon")
    assert real.files.lock(real.path("lock"), "") == Holder(0, "")
    lock.release()  # type: ignore[union-attr]


def test_a_machine_without_a_boot_id_says_zeros(
    real: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(door_module, "open", refuse, raising=False)
    assert real.files.boot_id() == bytes(16)


def test_a_child_is_told_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **how: asked.append(how))
    on_fork(test_a_child_is_told_that_it_is_one)  # type: ignore[arg-type]
    assert asked == [{"after_in_child": test_a_child_is_told_that_it_is_one}]


def test_paths_are_put_together_and_taken_apart(tmp_path: Path) -> None:
    assert absolute(tmp_path / "a" / ".." / "b") == str(tmp_path / "b")
    assert parent("/a/b") == "/a"
    assert base_name("/a/b") == "b"


def test_a_directory_is_unsafe_when_anybody_may_exchange_what_is_in_it(tmp_path: Path) -> None:
    assert not world_writable(str(tmp_path / "nowhere"))
    for mode, unsafe in ((0o700, False), (0o777, True), (0o1777, False)):
        tmp_path.chmod(mode)
        assert world_writable(str(tmp_path)) == unsafe
    tmp_path.chmod(0o700)


def test_a_file_is_private_when_nobody_but_its_owner_may_read_or_change_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    for mode, open_to_others in ((0o600, False), (0o400, False), (0o640, True), (0o602, True)):
        path.chmod(mode)
        assert others_may_read(str(path)) == open_to_others
    with pytest.raises(StorageError, match="cannot look at"):
        others_may_read(str(tmp_path / "nowhere"))


def test_a_path_of_the_operator_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert real_path(tmp_path / "link") == str(tmp_path / "target")


def test_the_time_of_the_last_change_is_that_of_the_file_system(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    os.utime(path, ns=(5, 1_700_000_000_123_456_789))
    assert modified_ns(str(path)) == 1_700_000_000_123_456_789
    with pytest.raises(StorageError, match="cannot look at"):
        modified_ns(str(tmp_path / "nowhere"))


def test_pages_of_a_mapping_are_let_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        forget_pages(mapped)
        assert mapped[4999] == ord("x")


def test_the_room_that_is_left_is_known_where_there_is_a_disk(tmp_path: Path) -> None:
    left = door_module.free_bytes(str(tmp_path))
    assert left is not None
    assert left > 0
    assert door_module.free_bytes(str(tmp_path / "nowhere")) is None


def test_a_file_gets_a_second_name_or_it_is_said_that_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    assert door_module.link_file(str(tmp_path / "one"), str(tmp_path / "two"))
    assert (tmp_path / "two").samefile(tmp_path / "one")
    assert not door_module.link_file(str(tmp_path / "one"), str(tmp_path / "two"))


def test_a_file_with_a_second_name_is_read_but_not_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    os.link(tmp_path / "a", tmp_path / "b")
    file = RealFiles().open(str(tmp_path / "b"), "r")
    assert file.read(0, 3) == b"abc"
    file.close()
    with pytest.raises(UnsafePath, match=r"hard link.*put a copy in its place"):
        RealFiles().open(str(tmp_path / "b"), "w")
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_what_stands_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    files = RealFiles()
    require_dir(files, str(tmp_path))
    require_dir(files, str(tmp_path / "nothing yet"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(UnsafePath, match=f"cannot use .*{name}: .*put the directory there"):
            require_dir(files, str(tmp_path / name))
