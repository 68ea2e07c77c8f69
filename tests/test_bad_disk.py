"""No permission, no room, no writing: told by name and path, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from tests.helpers import (
    FORTY,
    Refusing,
    child,
    data_of,
    forty,
    read_only_disk,
    snapshot,
)


def test_no_permission_is_told_with_the_path(path: Path) -> None:
    before = snapshot(path)
    for call in ("open", "lock", "page"):
        files = Refusing()
        files.refuse(call, errno.EACCES, "topics")
        with pytest.raises(esker.PermissionRefused, match="check who owns") as caught:
            _append_one(path, files)
        assert caught.value.errno == errno.EACCES
        assert str(path / "topics") in caught.value.path
        assert caught.value.path in str(caught.value)
    assert data_of(path) == {n: c for n, c in before.items() if n in data_of(path)}
    assert forty(path) == FORTY


def _append_one(path: Path, files: Any) -> None:
    with esker.open(path, files=files, background=False) as store:
        store["t"].append(b"x", wait=True)


UNPRIVILEGED = """
    import os, sys
    import esker
    with esker.open(":memory:") as warm:  # import everything while we may
        warm["t"].append(b"x", wait=True)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for mode in ("rw", "r"):
        try:
            esker.open(sys.argv[1], mode=mode)
        except esker.PermissionRefused as problem:
            print(problem.code, problem.path)
"""


def test_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as place:  # unlike tmp_path, others can come this far
        os.chmod(place, 0o755)
        root = Path(place) / "data"
        with esker.open(root) as store:
            store["t"].append_many(FORTY)
        before = snapshot(root)
        if os.geteuid() != 0:
            root.chmod(0)
        with child(UNPRIVILEGED, root) as other:
            said = other.end().splitlines()
        root.chmod(0o700)
        assert [line.split()[0] for line in said] == ["permission_refused"] * 2
        assert all(line.split()[1].startswith(str(root)) for line in said)
        assert snapshot(root) == before


@pytest.mark.parametrize("call", ["write", "create"])
def test_a_full_disk_loses_nothing(path: Path, call: str) -> None:
    files = Refusing()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        topic.append_many([b"before"] * 20)  # the log is full: the next record needs a new one
        before = data_of(path)
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            files.refuse(call, number, ".log")
            for attempt in (
                lambda: topic.append(b"refused", wait=True),
                lambda: topic.append_many([b"refused"] * 20),
                lambda: topic.append_arrow(pa.array([b"refused"])),
            ):
                with pytest.raises(esker.DiskFull, match=r"cannot .*(free some|limit)") as caught:
                    attempt()
                assert caught.value.errno == number
                assert ".log" in caught.value.path
            files.allow()
        assert data_of(path) == before
        assert topic.append(b"after", wait=True) == 60
        assert [record.value for record in topic.read(59)] == [b"before", b"after"]
    assert forty(path) == [*FORTY, *[b"before"] * 20, b"after"]


def test_room_that_cannot_be_taken_ahead_is_not_missed(path: Path) -> None:
    files = Refusing()
    files.refuse("allocate", errno.ENOSPC)
    with esker.open(path, files=files) as store:
        topic = store.create("f", durability="fsync")
        assert [topic.append(b"%d" % n, wait=True) for n in range(5)] == list(range(5))
        assert "allocate" in [call for call, _ in files.calls]
    with esker.open(path) as store:
        assert [record.value for record in store["f"].read()] == [b"0", b"1", b"2", b"3", b"4"]


def test_half_a_write_on_a_full_disk_is_taken_back(path: Path) -> None:
    class Half(Refusing):
        full = False

        def open(self, path: str, mode: Any) -> Any:
            file = super().open(path, mode)
            write = file.write

            def half(position: int, parts: Any) -> None:
                if self.full and path.endswith(".log"):
                    data = b"".join(bytes(part) for part in parts)
                    write(position, [data[: len(data) // 2]])
                    self.check("write", path)
                write(position, parts)

            file.write = half  # type: ignore[method-assign]
            return file

    files = Half()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        topic.append(b"before", wait=True)
        before = data_of(path)
        files.full = True
        files.refuse("write", errno.ENOSPC, ".log")
        with pytest.raises(esker.DiskFull):
            topic.append_many([b"refused"] * 100)
        files.full = False
        files.allow()
        assert data_of(path) == before, "half a frame was left behind"
        assert topic.append(b"after", wait=True) == 41
    with esker.open(path) as store:
        assert store.recovery.clean
        assert [record.value for record in store["t"].read()] == [*FORTY, b"before", b"after"]


def test_buffered_records_survive_a_full_disk(path: Path) -> None:
    files = Refusing()
    with esker.open(path, files=files, background=False) as store:
        topic = store["t"]
        assert [topic.append(b"a"), topic.append(b"b", tag="t")] == [40, 41]
        files.refuse("write", errno.ENOSPC, ".log")
        for call in (topic.flush, topic.sync, store.sync):
            with pytest.raises(esker.DiskFull):
                call()
        with pytest.raises(esker.DiskFull):
            topic.append(b"refused")
        assert topic.end() == 40
        files.allow()
        assert topic.append(b"c") == 42
        topic.sync()
        found = list(topic.read(40))
        assert [(r.value, r.tag) for r in found] == [(b"a", None), (b"b", "t"), (b"c", None)]
    assert forty(path) == [*FORTY, b"a", b"b", b"c"]


LIMITED = """
    import resource, sys
    import esker
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    with esker.open(sys.argv[1], background=False) as store:
        topic = store["t"]
        refused = 0
        for n in range(400):
            try:
                topic.append(b"%d " % n + b"x" * 1000, wait=True)
                print(n)
            except esker.DiskFull as problem:
                assert ".log" in problem.path
                refused += 1
        assert refused
        print("refused")
"""


def test_a_real_limit_of_file_size_loses_nothing(tmp_path: Path) -> None:
    with child(LIMITED, tmp_path / "data") as limited:
        *accepted, last = limited.end().split()
    assert last == "refused"
    assert [int(value.split()[0]) for value in forty(tmp_path / "data")] == list(map(int, accepted))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", place], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield place
    finally:
        subprocess.run([umount, "-l", place], check=True)


def test_a_real_full_disk_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    root = small_disk / "data"
    kept: list[bytes] = []
    with esker.open(root) as store:
        topic = store.create("t", segment_bytes="128KiB")

        def fill() -> None:
            for n in range(5000):
                value = b"%d " % n + b"x" * 1000
                topic.append(value, wait=True)
                kept.append(value)

        with pytest.raises(esker.DiskFull, match="the disk is full; free some space"):
            fill()
        assert [record.value for record in topic.read()] == kept
        ballast.unlink()
        topic.append(b"after", wait=True)
        kept.append(b"after")
    assert forty(root) == kept


def test_a_real_read_only_disk_can_be_read_and_says_so(small_disk: Path) -> None:
    root = small_disk / "data"
    with esker.open(root) as store:
        store["t"].append_many(FORTY)
    before = snapshot(root)
    mount = shutil.which("mount")
    assert mount is not None
    subprocess.run([mount, "-o", "remount,ro", small_disk], check=True)
    assert forty(root) == FORTY
    with esker.open(root) as store, pytest.raises(esker.ReadOnlyDisk, match='mode="r"'):
        store["t"].append(b"x")
    with pytest.raises(esker.ReadOnlyDisk, match=r"cannot .*new.* read-only"):
        esker.open(small_disk / "new")
    assert snapshot(root) == before


def test_a_read_only_disk_can_be_read_and_says_so(path: Path) -> None:
    before = snapshot(path)
    assert forty(path, files=read_only_disk()) == FORTY
    with esker.open(path, files=read_only_disk(), background=False) as store:
        assert [record.value for record in store["t"].read()] == FORTY
        for attempt in (
            lambda: store["t"].append(b"x"),
            lambda: store["t"].append(b"x", wait=True),
            lambda: store["t"].append_many([b"x"]),
            lambda: store.create("new"),
            lambda: store["new"].append(b"x"),
        ):
            with pytest.raises(esker.ReadOnlyDisk, match='open with mode="r" to read') as caught:
                attempt()
            assert caught.value.errno == errno.EROFS
            assert caught.value.path in str(caught.value)
    with pytest.raises(esker.ReadOnlyDisk):
        esker.open(path.parent / "new", files=read_only_disk())
    assert snapshot(path.parent) == {"data": "directory"} | {
        f"data/{name}": content for name, content in before.items()
    }


FEW_FILES = """
    import resource, sys
    import esker
    with esker.open(":memory:") as warm:
        warm["t"].append(b"x", wait=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    with esker.open(sys.argv[1], background=False) as store:
        kept = []
        for n in range(100):
            try:
                store[f"t{n}"].append(b"x", wait=True)
                kept.append(f"t{n}")
            except esker.TooManyFiles as problem:
                assert "ulimit -n" in str(problem) and problem.path, problem
                break
        else:
            raise SystemExit("never refused")
        for name in kept:
            assert [r.value for r in store[name].read()] == [b"x"]
    print(*kept)
"""


def test_too_many_open_files_are_told_and_what_is_open_goes_on(tmp_path: Path) -> None:
    with child(FEW_FILES, tmp_path / "data") as limited:
        kept = limited.end().split()
    assert kept
    with esker.open(tmp_path / "data") as store:
        for name in kept:
            assert [record.value for record in store[name].read()] == [b"x"]


def test_a_sync_that_fails_when_a_store_is_closed_is_told_by_who_closes_it(path: Path) -> None:
    """All was durable by a journal; that it is so without one cannot be said."""
    files = Refusing()
    store = esker.open(path, files=files, background=False)
    for name in "abcdefg":
        store[name].append(b"x")
    store.sync()
    files.refuse("sync", errno.EIO, ".log")
    with pytest.raises(esker.Poisoned):
        store.close()
    files.allow()
    with esker.open(path) as again:
        for name in "abcdefg":
            assert [record.value for record in again[name].read()] == [b"x"]


def test_a_failed_sync_poisons_and_a_reopened_store_goes_on(path: Path) -> None:
    files = Refusing()
    store = esker.open(path, files=files, background=False)
    topic = store["t"]
    topic.append(b"written", wait=True)
    files.refuse("sync", errno.EIO, ".log")
    with pytest.raises(esker.Poisoned, match=r"Offsets 40\.\.40 are in doubt.*open it again"):
        topic.sync()
    files.allow()
    for attempt in (
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", wait=True),
        lambda: topic.append_many([b"x"]),
        topic.sync,
    ):
        with pytest.raises(esker.Poisoned):
            attempt()
    with pytest.raises(esker.Poisoned):
        store.close()
    with esker.open(path) as again:
        assert [record.value for record in again["t"].read()] == [*FORTY, b"written"]
        assert again["t"].append(b"on", wait=True) == 41
