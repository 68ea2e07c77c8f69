"""The simulated disk itself: what it may lose, what it may not, and that it fails as told."""

from __future__ import annotations

import errno

import pytest

import esker
from esker.storage.files import Files, Holder
from esker.testing import KEPT, LOST, NAMES_ONLY, UNNAMED, Crash, Fault, ManualClock, SimulatedDisk

SEEDS = range(200)


def written(data: bytes = b"synced", path: str = "/a") -> SimulatedDisk:
    """A disk with one durable file."""
    disk = SimulatedDisk(seed=1)
    file = disk.open(path, "create")
    file.write(0, [data])
    file.sync()
    disk.sync_dir("/")
    return disk


def after(disk: SimulatedDisk, path: str = "/a") -> set[bytes | None]:
    """All that power cuts leave of a file; None where it has no name."""
    return {disk.crash(seed).contents().get(path) for seed in SEEDS}


def test_it_is_a_file_system() -> None:
    disk: Files = SimulatedDisk()
    assert disk.kind("/") == "dir"


def test_what_was_synced_survives_and_nothing_else_must() -> None:
    disk = written()
    disk.open("/a", "rw").write(0, [b"NEWER!"])
    assert disk.crash(LOST).contents() == {"/a": b"synced"}
    assert disk.crash(KEPT).contents() == {"/a": b"NEWER!"}
    assert after(disk) == {b"synced", b"NEWER!"}


def test_a_name_is_durable_only_when_its_directory_was_synced() -> None:
    disk = SimulatedDisk()
    file = disk.open("/a", "create")
    file.write(0, [b"data"])
    file.sync()
    assert disk.crash(LOST).contents() == {}
    assert disk.crash(UNNAMED).contents() == {}
    assert after(disk) == {None, b"data"}
    disk.sync_dir("/")
    assert after(disk) == {b"data"}


def test_a_size_may_survive_without_its_data_as_zeros_as_junk_or_as_stale_bytes() -> None:
    disk = written(b"the dead" * 64, "/old")
    disk.unlink("/old")
    disk.sync_dir("/")
    file = disk.open("/a", "create")
    disk.sync_dir("/")
    file.write(0, [b"y" * 512])
    assert disk.crash(NAMES_ONLY).contents() == {"/a": bytes(512)}
    left = after(disk)
    assert {b"", bytes(512), b"y" * 512, b"the dead" * 64} <= left
    assert len(left) > 4  # and junk


def test_sectors_survive_each_by_itself_and_as_a_whole() -> None:
    disk = written(b"a" * 1536)
    disk.open("/a", "rw").write(0, [b"b" * 1536])
    left = after(disk)
    assert len(left) == 8
    assert all(data and data[n] == data[n + 511] for data in left for n in (0, 512, 1024))


def test_a_sector_is_one_that_the_cache_once_held() -> None:
    """Two writes to one sector: the second never survives without the first."""
    disk = written(b"....")
    file = disk.open("/a", "rw")
    file.write(0, [b"1"])
    file.write(1, [b"2"])
    assert after(disk) == {b"....", b"1...", b"12.."}


def test_a_renaming_happens_as_a_whole_also_between_directories() -> None:
    disk = written()
    disk.make_dir("/d")
    disk.sync_dir("/")
    disk.rename("/a", "/d/b")
    left = {frozenset(disk.crash(seed).contents()) for seed in SEEDS}
    assert left == {frozenset({"/a"}), frozenset({"/d/b"})}
    disk.sync_dir("/d")
    assert {frozenset(disk.crash(seed).contents()) for seed in SEEDS} == {frozenset({"/d/b"})}


def test_a_deleted_file_may_be_back() -> None:
    disk = written()
    disk.unlink("/a")
    assert disk.contents() == {}
    assert after(disk) == {b"synced", None}
    disk.sync_dir("/")
    assert after(disk) == {None}


def test_a_cut_may_not_have_happened() -> None:
    disk = written()
    disk.open("/a", "rw").truncate(2)
    assert {b"synced", b"sy"} <= after(disk)


def test_room_that_was_allocated_reads_as_zeros() -> None:
    disk = written()
    disk.open("/a", "rw").allocate(1024)
    assert after(disk) == {b"synced", b"synced" + bytes(1018)}


def test_a_kill_keeps_everything_and_what_was_not_synced_can_still_be_lost() -> None:
    disk = written()
    disk.open("/a", "rw").write(0, [b"NEWER!"])
    disk.open("/b", "create").write(0, [b"new"])
    killed = disk.kill()
    assert killed.contents() == {"/a": b"NEWER!", "/b": b"new"}
    assert killed.crash(LOST).contents() == {"/a": b"synced"}
    killed.sync_dir("/")
    assert killed.crash(LOST).contents() == {"/a": b"synced", "/b": b""}
    assert disk.crash(LOST).contents() == {"/a": b"synced"}, "a kill changed the disk it was of"


@pytest.mark.parametrize("reverts", [False, True])
def test_after_a_failed_sync_the_next_one_succeeds_and_means_nothing(reverts: bool) -> None:
    disk = written()
    disk.reverts = reverts
    file = disk.open("/a", "rw")
    file.write(0, [b"NEWER!"])
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"})))
    with pytest.raises(esker.StorageError):
        file.sync()
    file.sync()
    assert file.read(0, 10) == (b"synced" if reverts else b"NEWER!")
    assert disk.crash(KEPT).contents() == {"/a": b"synced"}
    file.write(0, [b"NEWER!"])
    file.sync()
    assert disk.crash(LOST).contents() == {"/a": b"NEWER!"}


def test_a_failed_write_may_have_left_some_of_it() -> None:
    disk = written(b"")
    file = disk.open("/a", "rw")
    left = set()
    for _ in range(60):
        disk.fail(Fault(errno.EIO))
        with pytest.raises(esker.StorageError):
            file.write(0, [b"ab", b"c"])
        left.add(file.read(0, 9))
        disk.heal()
        file.truncate(0)
    assert left == {b"", b"a", b"ab", b"abc"}


def test_locks_end_with_their_process_and_the_boot_id_with_the_power() -> None:
    disk = SimulatedDisk(seed=2)
    lock = disk.lock("/lock", "now")
    assert not isinstance(lock, Holder)
    assert disk.lock("/lock", "later") == Holder(disk.pid(), "now")
    killed, crashed = disk.kill(), disk.crash(1)
    assert killed.holder("/lock") is None
    assert crashed.holder("/lock") is None
    assert killed.boot_id() == disk.boot_id() != crashed.boot_id()
    assert len({disk.pid(), killed.pid(), crashed.pid()}) >= 2
    lock.release()
    assert disk.holder("/lock") is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_machine_stops_where_it_is_told_to(when: str) -> None:
    disk = written()
    file = disk.open("/a", "rw")
    disk.stop_at(2, when)  # type: ignore[arg-type]
    file.write(0, [b"1"])
    with pytest.raises(Crash):
        file.write(1, [b"2"])
    with pytest.raises(Crash):
        file.read(0, 1)
    assert disk.kill().contents() == {"/a": b"1ynced" if when == "before" else b"12nced"}


def test_every_change_is_watched_before_and_after() -> None:
    disk = SimulatedDisk()
    seen: list[tuple[str, str]] = []
    disk.watch = lambda call, when: seen.append((call.name, when))
    file = disk.open("/a", "create")
    file.write(0, [b"x"])
    file.read(0, 1)
    file.sync()
    disk.rename("/a", "/b")
    names = ("create", "write", "sync", "rename")
    assert seen == [(name, when) for name in names for when in ("before", "after")]
    assert disk.changes == 4


def test_a_fault_counts_the_calls_that_it_can_happen_to() -> None:
    disk = written()
    file = disk.open("/a", "rw")
    fault = disk.fail(Fault(errno.ENOSPC, at=2))
    file.write(0, [b"1"])
    file.sync()
    with pytest.raises(esker.DiskFull, match="free some space"):
        file.write(0, [b"2"])
    file.write(0, [b"3"])
    assert (fault.seen, fault.hits) == (3, 1)
    disk.heal()
    forever = disk.fail(Fault(errno.EIO, forever=True, inside="/a"))
    for _ in range(3):
        with pytest.raises(esker.StorageError):
            file.read(0, 1)
    disk.open("/b", "create")
    assert forever.hits == 3


def test_the_clock_moves_by_hand() -> None:
    clock = ManualClock(now_us=5, monotonic=1.0)
    clock.forward(0.5)
    assert (clock.now_us(), clock.monotonic()) == (500_005, 1.5)
    clock.set_wall(7)
    assert (clock.now_us(), clock.monotonic()) == (7, 1.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.forward(-1)
