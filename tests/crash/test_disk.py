"""The simulated disk itself: what it may lose, what it may not, and that it fails as told."""

from __future__ import annotations

import errno

import pytest

import esker
from esker.errors import StorageError
from esker.storage.files import Files, Holder, sync_file
from esker.testing import (
    BTRFS_EIO,
    EXT4_ORDERED,
    KEPT,
    LOST,
    LYING,
    NAMES_ONLY,
    SECTORS_4K,
    STRICT,
    UNNAMED,
    Crash,
    Fate,
    Fault,
    ManualClock,
    Profile,
    SimulatedDisk,
)

SEEDS = range(200)


def written(data: bytes = b"synced", path: str = "/a", profile: Profile = STRICT) -> SimulatedDisk:
    """A disk with one durable file."""
    disk = SimulatedDisk(1, profile)
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


def test_a_page_that_was_synced_is_old_new_or_torn_between_sectors() -> None:
    disk = SimulatedDisk()
    page = disk.page("/page", 1024, writable=True)
    disk.sync_dir("/")
    page[0] = page[100] = 1
    assert {disk_.contents()["/page"] for disk_ in disk.crashes()} == {
        b"", bytes(1024), bytes(page),
    }  # fmt: skip
    old = bytes(page)
    sync_file(disk, "/page")
    page[0] = page[100] = 2
    new = bytes(page)
    left = {after.contents()["/page"] for after in disk.crashes()}
    assert left == {old, new[:512] + old[512:], new}


@pytest.mark.parametrize("reverts", [False, True])
def test_a_page_whose_sync_failed_is_not_on_the_platter(reverts: bool) -> None:
    disk = SimulatedDisk(profile=STRICT._replace(reverts=reverts))
    page = disk.page("/page", 512, writable=True)
    disk.sync_dir("/")
    page[0] = 1
    sync_file(disk, "/page")
    page[0] = 2
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"})))
    with pytest.raises(StorageError):
        sync_file(disk, "/page")
    assert page[0] == (1 if reverts else 2)
    assert disk.crash(LOST).contents()["/page"][0] == 1


def test_a_mutex_is_one_of_the_locks_and_ends_with_its_process() -> None:
    disk = SimulatedDisk()
    mutex = disk.mutex("/mutex")
    mutex.take()
    assert disk.locks == ["/mutex"]
    with pytest.raises(AssertionError, match="for ever"):
        disk.mutex("/mutex").take()
    assert disk.kill().locks == []
    mutex.close()
    assert disk.locks == []
    disk.fail(Fault("KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        mutex.take()
    assert disk.locks == []


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


# ---- power cuts, one by one ------------------------------------------------------------------


def all_of(disk: SimulatedDisk, path: str = "/a") -> list[bytes | None]:
    """What the listed power cuts leave of a file."""
    return [after.contents().get(path) for after in disk.crashes(most=1000)]


def test_every_state_of_a_power_cut_is_listed_once() -> None:
    disk = written(b"a" * 1024)
    disk.open("/a", "rw").write(0, [b"b" * 1024])
    left = all_of(disk)
    assert len(left) == 4
    assert set(left) == {x + y for x in (b"a" * 512, b"b" * 512) for y in (b"a" * 512, b"b" * 512)}


def test_a_lost_sector_is_listed_with_each_filling() -> None:
    disk = written(b"the dead" * 64, "/old")
    disk.unlink("/old")
    disk.sync_dir("/")
    file = disk.open("/a", "create")
    disk.sync_dir("/")
    file.write(0, [b"y" * 512])
    left = all_of(disk)
    assert len(left) == 5
    assert {b"", bytes(512), b"y" * 512, b"the dead" * 64} < set(left)  # and junk


def test_stale_bytes_come_from_the_file_of_the_same_kind_that_was_deleted_last() -> None:
    disk = SimulatedDisk()
    for path in ("/1.log", "/2.log", "/3.other"):
        disk.open(path, "create").write(0, [path.encode() * 100])
        disk.unlink(path)
    disk.open("/4.log", "create").write(0, [b"y" * 512])
    assert (b"/2.log" * 100)[:512] in {
        after.contents().get("/4.log") for after in disk.crashes(most=1 << 12)
    }


def test_names_survive_in_any_combination_also_the_later_without_the_earlier() -> None:
    disk = SimulatedDisk()
    disk.open("/a", "create")
    disk.open("/b", "create")
    left = {frozenset(after.contents()) for after in disk.crashes()}
    assert left == {frozenset(), frozenset({"/a"}), frozenset({"/b"}), frozenset({"/a", "/b"})}


def test_where_there_are_too_many_states_the_telling_ones_are_listed() -> None:
    disk = written(b"")
    file = disk.open("/a", "rw")
    for sector in range(20):
        file.write(sector * 512, [bytes([65 + sector]) * 512])
    left = {after.contents()["/a"] for after in disk.crashes(most=500, chances=10)}
    whole = b"".join(bytes([65 + sector]) * 512 for sector in range(20))
    assert {whole[: 512 * count] for count in range(21)} <= left, "a moment is missing"
    lost = {sum(a != b for a, b in zip(data[::512], whole[::512], strict=False)) for data in left}
    assert {0, 1, 19} <= lost, "all but one, and one alone"
    few = list(disk.crashes(most=10, chances=2))
    assert 5 < len(few) <= 12


def test_a_fate_can_be_given_choice_by_choice_and_again() -> None:
    disk = written(b"a" * 1024)
    disk.open("/a", "rw").write(0, [b"b" * 1024])
    disk.open("/new", "create")
    kinds = [(choice.kind, choice.place, choice.outcomes) for choice in disk.cut().choices]
    assert kinds == [("name", "/new", 2), ("sector", "/a 0", 2), ("sector", "/a 1", 2)]
    after = disk.crash(Fate.exact([0, 0, 1]))
    assert after.contents() == {"/a": b"a" * 512 + b"b" * 512}
    for other in disk.crashes():
        assert other.fate is not None
        assert disk.crash(other.fate).contents() == other.contents()
        assert disk.cut().image(other.fate) == other.cut().image(KEPT)


def test_images_tell_states_apart_but_for_files_that_make_no_difference() -> None:
    disk = written()
    disk.open("/a", "rw").write(0, [b"NEWER!"])
    disk.open("/lock", "create")
    assert len(list(disk.crashes())) == 4
    assert len(list(disk.crashes(ignore=frozenset({"lock"})))) == 2
    seen: set[bytes] = set()
    assert len(list(disk.crashes(seen=seen))) == len(seen) == 4
    assert not list(disk.crashes(seen=seen))
    assert disk.image() != disk.crash(LOST).image() != disk.crash(KEPT).image()
    assert disk.image() == disk.kill().image() == disk.crash(KEPT).image()


def test_the_same_bytes_once_more_leave_nothing_undecided() -> None:
    disk = written(b"x" * 700)
    disk.open("/a", "rw").write(0, [b"x" * 700])
    assert not disk.cut().choices


# ---- other disks -----------------------------------------------------------------------------


def test_a_disk_of_large_sectors_tears_between_them_only() -> None:
    disk = written(b"a" * 8192, profile=SECTORS_4K)
    disk.open("/a", "rw").write(0, [b"b" * 8192])
    halves = (b"a" * 4096, b"b" * 4096)
    assert set(all_of(disk)) == {x + y for x in halves for y in halves}


def test_an_ordered_disk_keeps_names_and_sizes_in_order_and_data_before_its_size() -> None:
    disk = written(b"old", profile=EXT4_ORDERED)
    disk.open("/a", "rw").write(0, [b"NEW"])
    disk.open("/b", "create").write(0, [b"data"])
    disk.open("/c", "create")
    left = {tuple(sorted(after.contents().items())) for after in disk.crashes()}
    names = {tuple(path for path, _ in state) for state in left}
    assert names == {("/a",), ("/a", "/b"), ("/a", "/b", "/c")}
    assert {dict(state)["/a"] for state in left} == {b"old", b"NEW"}  # in place: not ordered
    assert {dict(state).get("/b") for state in left} == {None, b"", b"data"}  # never zeros
    assert all(dict(state)["/b"] == b"data" for state in left if "/c" in dict(state))


def test_on_an_ordered_disk_a_sync_takes_earlier_names_along() -> None:
    disk = written(profile=EXT4_ORDERED)
    disk.open("/b", "create")
    disk.open("/a", "rw").sync()
    assert set(disk.crash(LOST).contents()) == {"/a", "/b"}


def test_a_disk_that_forgets_shows_old_content_after_a_failed_sync() -> None:
    disk = written(profile=BTRFS_EIO)
    file = disk.open("/a", "rw")
    file.write(0, [b"NEWER!"])
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"})))
    with pytest.raises(esker.StorageError):
        file.sync()
    assert file.read(0, 10) == b"synced"


def test_a_disk_that_lies_has_synced_nothing() -> None:
    disk = written(profile=LYING)
    assert disk.contents() == {"/a": b"synced"}
    assert disk.crash(LOST).contents() == {}
    assert set(all_of(disk)) >= {None, b"", b"synced"}


def test_a_bit_that_turned_is_on_the_platter() -> None:
    disk = written(b"a" * 1000)
    path, position = disk.rot(3)
    turned = disk.crash(LOST).contents()[path]
    assert [at for at in range(1000) if turned[at] != ord("a")] == [position]
    assert (turned[position] ^ ord("a")).bit_count() == 1


def test_a_sector_that_went_astray_is_seen_when_the_machine_was_off() -> None:
    disk = written(b"a" * 512)
    other = disk.open("/b", "create")
    other.write(0, [b"b" * 1024])
    other.sync()
    disk.sync_dir("/")
    file = disk.open("/a", "rw")
    file.write(0, [b"A" * 512])
    file.sync()
    seen = set()
    for seed in range(40):
        astray = disk.kill()
        before = astray.contents()
        place = astray.misdirect(seed)
        assert place is not None
        path, position, to, there = place
        assert astray.contents() == before, "the cache does not know"
        after = astray.crash(LOST).contents()
        assert after[to][there : there + 512] == before[path][position : position + 512]
        seen.add((path, to))
    assert {("/a", "/b"), ("/b", "/a"), ("/b", "/b")} <= seen


def test_every_call_is_recorded_when_asked_for() -> None:
    disk = SimulatedDisk()
    disk.open("/before", "create")
    calls = disk.record()
    file = disk.open("/a", "create")
    file.write(7, [b"abc", b"d"])
    file.read(2, 5)
    file.sync()
    disk.rename("/a", "/b")
    assert [tuple(call) for call in calls] == [
        (2, "create", "/a", 0, 0, ""),
        (3, "write", "/a", 4, 7, ""),
        (3, "read", "/a", 5, 2, ""),
        (4, "sync", "/a", 0, 0, ""),
        (5, "rename", "/a", 0, 0, "/b"),
    ]
