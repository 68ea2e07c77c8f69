"""esker.repair: afterwards the store is whole, what was not damaged is there, evidence is kept."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import esker
from esker.errors import StorageError
from esker.storage.memory import MemoryFiles
from tests.damage import ROOT, Expected, clone, prepared, read_all, small_store
from tests.helpers import Refusing, child, snapshot
from tests.test_verify import (
    DAMAGE,
    ERASED,
    EVENTS,
    MARKS,
    ORDERS,
    PAGE,
    flip,
    segment,
    with_deletions,
)

# What is damaged in the table of test_verify and cannot be made undone without loss.
LOSSY = {
    "sealed frame", "frame of a log", "log cut", "log gone", "first segment gone",
    "segment emptied", "segment swapped", "link", "shard gone", "config frame",
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def whole_again(data: Path, expected: Expected) -> tuple[list[esker.Gap], int]:
    """The store is ok, reads, and takes new records."""
    found = esker.verify(data)
    assert found.ok, found
    assert set(found.kinds) <= {"counters"}
    errors, gaps, count = read_all(data, expected, mode="rw")
    assert errors == []
    with esker.open(data) as store:
        assert store.recovery.clean
        for name in store:
            offset = store[name].append(b"new", wait=True)
            shard = getattr(offset, "shard", 0)
            assert store[name].get(offset, shard).value == b"new"
    assert esker.verify(data).ok
    return gaps, count


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_repaired_store_is_whole_reads_and_takes_records(data: Path, damage: str) -> None:
    expected = small_store(data)
    DAMAGE[damage][0](data)
    if damage == "shard gone":  # nothing on disk can tell what it held
        del expected["events", 0]
    done = esker.repair(data)
    assert done.ok, done
    again = esker.repair(data)
    assert again.actions == [], "a second repair found something to do"
    gaps, count = whole_again(data, expected)
    total = sum(map(len, expected.values()))
    if damage in LOSSY:
        assert count > total / 2
        assert count + sum(gap.missed for gap in gaps) >= total
    else:
        assert (count, gaps) == (total, [])


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_dry_run_changes_nothing_and_says_what_would_be_done(data: Path, damage: str) -> None:
    small_store(data)
    DAMAGE[damage][0](data)
    before = snapshot(data)
    done = esker.repair(data, dry_run=True)
    assert snapshot(data) == before
    assert done.dry_run
    assert done.actions or damage == "counters"
    assert all(not action.kept for action in done.actions)


def test_a_whole_store_needs_no_repair(data: Path) -> None:
    small_store(data)
    before = snapshot(data)
    done = esker.repair(data)
    assert done.ok
    assert done.actions == []
    assert snapshot(data) == before
    assert "nothing to repair" in str(done)


def test_damaged_frames_become_a_hole_and_all_else_keeps_its_bytes(data: Path) -> None:
    with esker.open(data, background=False) as store:
        topic = store.create("t", segment_records=40)
        for number in range(8):
            topic.append_many([b"%d" % number * 9000] * 10)
            store.tick()
    path = segment(data, "topics/00000001/0000", 0)
    assert path.suffix == ".seg"
    original = path.read_bytes()
    damaged = original.find(b"1" * 100) + 50
    flip(path, damaged)
    wrong = path.read_bytes()
    done = esker.repair(data)
    (hole,) = [action for action in done.actions if action.what == "hole"]
    assert (hole.first, hole.last) == (10, 19)
    assert done.lost == 10
    assert Path(hole.kept).read_bytes() == wrong, "the evidence is the file as it was"
    mended = path.read_bytes()
    assert hole.position is not None
    after = mended.find(b"ESKF", hole.position + 64)  # the frame behind the hole
    assert mended[: hole.position] == original[: hole.position]
    assert mended[after : after + 90_000] == original[after : after + 90_000]
    with esker.open(data) as store:
        topic = store["t"]
        *_, gap = (item for item in topic.read(gaps="yield") if isinstance(item, esker.Gap))
        assert (gap.first, gap.last, gap.reason) == (10, 19, "corrupt")
        assert [len(list(topic.read(gaps="skip"))), len(list(topic.read(5, 10)))] == [70, 5]
        with pytest.raises(esker.DataGap):
            list(topic.read())
        with pytest.raises(esker.DataGap):
            topic.get(15)
        assert topic.get(20).value == b"2" * 9000
        assert [r.offset for r in topic.read(18, 22, gaps="skip")] == [20, 21]


def test_a_missing_middle_segment_becomes_a_gap(data: Path) -> None:
    with esker.open(data, background=False) as store:
        topic = store.create("t", segment_records=10)
        for number in range(6):
            topic.append_many([b"%d" % number] * 10)
            store.tick()
    for which in (2, 1):
        segment(data, "topics/00000001/0000", which).unlink()
    done = esker.repair(data)
    assert [action.what for action in done.actions] == ["placeholder", "placeholder", "linked"]
    assert done.lost == 20
    with esker.open(data) as store:
        items = list(store["t"].read(gaps="yield"))
        (gap,) = [item for item in items if isinstance(item, esker.Gap)]
        assert (gap.first, gap.last, gap.reason) == (10, 29, "corrupt")
        assert len(items) == 41


def test_a_header_with_one_wrong_bit_is_restored_exactly(data: Path) -> None:
    small_store(data)
    path = segment(data, ORDERS, 0)
    original = path.read_bytes()
    flip(path, 77)
    assert [action.what for action in esker.repair(data).actions] == ["header"]
    assert path.read_bytes() == original


def test_a_header_that_is_gone_is_put_together_from_its_surroundings(data: Path) -> None:
    expected = small_store(data)
    path = segment(data, ORDERS, 0)
    flip(path, 0, 128)
    done = esker.repair(data)
    assert done.lost == 0
    gaps, count = whole_again(data, expected)
    assert (gaps, count) == ([], sum(map(len, expected.values())))


def test_the_identity_is_found_again(data: Path) -> None:
    expected = small_store(data)
    original = (data / "esker.store").read_bytes()
    flip(data / "esker.store", 30)
    esker.repair(data)
    assert (data / "esker.store").read_bytes() == original, "one bit: exactly as it was"
    flip(data / "esker.store", 0, 48)
    done = esker.repair(data)
    assert [action.what for action in done.actions] == ["identity"]
    assert (data / "esker.store").read_bytes()[16:32] == original[16:32]
    whole_again(data, expected)


def test_nothing_is_repaired_under_a_living_writer(data: Path) -> None:
    small_store(data)
    flip(segment(data, EVENTS, 0), 700)
    (data / "note.txt").write_text("a stranger elsewhere")
    code = """
        import sys, esker
        store = esker.open(sys.argv[1])
        store["events"].append(b"x", wait=True)
        print("ready")
        sys.stdin.readline()
    """
    with child(code, data) as writer:
        assert writer.line() == "ready"
        with pytest.raises(esker.WriterBusy) as refused:
            esker.repair(data)
        assert refused.value.pid == writer.pid
        assert (data / "note.txt").exists()
        writer.say()
        writer.end()
    assert esker.repair(data).ok


def test_a_store_of_a_later_esker_is_not_touched(data: Path) -> None:
    from esker.format.checksum import checksum

    small_store(data)
    path = segment(data, EVENTS, 0)
    content = bytearray(path.read_bytes())
    content[8] = 9
    content[120:128] = checksum(bytes(content[:120])).to_bytes(8, "little")
    path.write_bytes(content)
    flip(data / "esker.store", 20)
    before = snapshot(data)
    with pytest.raises(esker.FormatTooNew):
        esker.repair(data)
    assert snapshot(data) == before


def test_what_cannot_be_read_is_not_replaced(data: Path) -> None:
    small_store(data)
    path = segment(data, EVENTS, 0)
    files = _Locked(path.name)
    before = snapshot(data)
    with pytest.raises(StorageError, match="nothing was touched"):
        esker.repair(data, files=files)
    assert snapshot(data) == before


class _Locked:
    """A disk on which one file may not be opened."""

    def __init__(self, name: str) -> None:
        from esker.storage.files import SYSTEM_FILES

        self._files = SYSTEM_FILES
        self._name = name

    def open(self, path, mode):
        if path.endswith(self._name):
            raise esker.PermissionRefused(f"cannot open {path}", path=path)
        return self._files.open(path, mode)

    def __getattr__(self, name):
        return getattr(self._files, name)


# --- deletions ----------------------------------------------------------------------------------

WHOLE = {"longer", "another", "renamed", "of another number"}  # nothing is lost by these
FIRST, SECOND = {0, 4, 8}, {1, 5, 9}  # what the two frames of the file delete
BACK = {  # what of it is back behind a repair
    "missing": FIRST | SECOND, "empty": FIRST | SECOND, "short": SECOND, "short by a frame": SECOND,
    "header": set(), "first frame": FIRST, "first header": FIRST, "last frame": SECOND,
    "of another topic": FIRST | SECOND, "of another shard": FIRST | SECOND,
    "of another store": FIRST | SECOND, **{name: set() for name in WHOLE},
}  # fmt: skip


def offsets(files: MemoryFiles) -> set[int]:
    """Those that are there; in both modes the same."""
    found = []
    for mode in ("r", "rw"):
        with esker.open(ROOT, mode, files=files, background=False) as store:
            found.append({record.offset for record in store["t"].read()})
            assert len(found[0]) == len(store["t"])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("damage", [name for name in MARKS if name != "later version"])
def test_what_can_be_read_of_a_file_of_deletions_stays_deleted(damage: str) -> None:
    files = with_deletions()
    MARKS[damage][0](files)
    before = {path: bytes(data) for path, data in files.files.items() if "deletions" in path}
    done = esker.repair(ROOT, files=files)
    assert done.after is not None
    assert done.after.problems == [], done
    assert done.lost == 0
    assert esker.repair(ROOT, files=files).actions == [], "a second repair found something to do"
    back = BACK[damage]
    assert offsets(files) == set(range(12)) - FIRST - SECOND | back
    aside = {bytes(data) for path, data in files.files.items() if "/quarantine/" in path}
    assert before.get(ERASED, b"") in aside | {b""} or damage == "another"
    for action in (action for action in done.actions if action.what == "deletions"):
        told = f"{6 - len(back)} records are known to be deleted"
        assert told in action.reason
        assert ("may be back" in action.reason) == (damage != "longer")
    assert back <= FIRST | SECOND if damage in WHOLE else "may be back" in str(done)
    left = [path for path in files.files if "deletions" in path and "quarantine" not in path]
    assert len(left) == (back != FIRST | SECOND)
    with esker.open(ROOT, files=files, background=False) as store:
        assert store["t"].delete(tag="c") == 6  # and it goes on
        assert {record.offset for record in store["t"].read()} == back
    assert esker.verify(ROOT, files=files).problems == []


@pytest.mark.parametrize("damage", MARKS)
def test_a_dry_run_tells_of_deletions_and_changes_nothing(damage: str) -> None:
    files = with_deletions()
    MARKS[damage][0](files)
    before = {path: bytes(data) for path, data in files.files.items()}
    if damage == "later version":
        with pytest.raises(esker.FormatTooNew):
            esker.repair(ROOT, files=files)
    else:
        assert esker.repair(ROOT, files=files, dry_run=True).actions
    assert {path: bytes(data) for path, data in files.files.items()} == before


def test_what_was_deleted_stays_deleted_when_the_state_page_is_lost() -> None:
    files = with_deletions()
    del files.files[PAGE]
    done = esker.repair(ROOT, files=files)
    assert [action.what for action in done.actions] == ["recovered"] * len(done.actions)
    assert offsets(files) == {2, 3, 6, 7, 10, 11}


def test_without_page_and_with_half_a_file_the_other_half_stays_deleted() -> None:
    files = with_deletions()
    del files.files[PAGE]
    files.files[ERASED][200] ^= 1
    done = esker.repair(ROOT, files=files)
    assert done.ok
    assert offsets(files) == {2, 3, 6, 7, 10, 11} | FIRST


def test_a_repair_of_segments_keeps_what_was_deleted() -> None:
    files = with_deletions()
    (log,) = [path for path in files.files if path.endswith(".log")]
    files.files[log][700] ^= 1
    done = esker.repair(ROOT, files=files)
    assert done.ok
    assert "hole" in [action.what for action in done.actions]
    assert "state" in [action.what for action in done.actions], "the page was written again"
    with esker.open(ROOT, files=files, background=False) as store:
        shard = store["t"]._shards[0]
        shard.open_for_writing()
        assert sorted(FIRST | SECOND) == [o for o in range(12) if o in shard.marks]


def test_a_directory_where_the_file_of_deletions_was_is_set_aside() -> None:
    files = with_deletions()
    del files.files[ERASED]
    files.make_dir(ERASED)
    done = esker.repair(ROOT, files=files)
    assert done.ok, done
    assert offsets(files) == set(range(12))
    assert "may be back" in str(done)


def test_a_file_of_deletions_that_cannot_be_read_is_left_alone() -> None:
    files = with_deletions()
    (segment,) = [path for path in files.files if path.endswith(".log")]
    files.files[segment][-30] ^= 1
    before = {path: bytes(data) for path, data in files.files.items()}
    locked = Refusing(files)
    locked.refuse("open", errno.EACCES, "deletions-00000001")
    with pytest.raises(StorageError, match="nothing was touched"):
        esker.repair(ROOT, files=locked)
    assert {path: bytes(data) for path, data in files.files.items()} == before


# --- sweeps on a disk in memory -----------------------------------------------------------------


@pytest.fixture(scope="module")
def disk():
    return prepared()


def test_after_any_flipped_bit_a_repair_makes_the_store_whole(disk) -> None:
    files, expected = disk
    total = sum(map(len, expected.values()))
    for name in sorted(files.files):
        for position in range(3, len(files.files[name]), 331):
            damaged = clone(files)
            damaged.files[name][position] ^= 1 << (position % 8)
            done = esker.repair(ROOT, files=damaged)
            assert done.after is not None
            assert done.after.problems == [], f"{name} at byte {position}"
            assert esker.repair(ROOT, files=damaged).actions == []
            errors, gaps, count = read_all(ROOT, expected, damaged, mode="rw")
            assert errors == []
            if not name.endswith("/state"):  # without its state a log jumps ahead: a gap, no loss
                assert count + sum(gap.missed for gap in gaps) == total


def _damage_at_random(files: MemoryFiles, chance: random.Random) -> None:
    """One to five faults of any kind, in any files."""
    for _ in range(chance.choice([1, 1, 2, 3, 5])):
        name = chance.choice(sorted(files.files))
        data = files.files[name]
        at = chance.randrange(len(data) or 1)
        match chance.choice(["flip", "zero", "junk", "cut", "extend", "delete"]):
            case "flip" if data:
                data[at] ^= 1 << chance.randrange(8)
            case "zero":
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            case "junk":
                data[at : at + 99] = chance.randbytes(len(data[at : at + 99]))
            case "cut":
                del data[at:]
            case "extend":
                data.extend(chance.choice([bytes(100), chance.randbytes(64)]))
            case "delete":
                del files.files[name]


@pytest.mark.parametrize("seed", range(120))
def test_several_faults_at_once_are_repaired_and_never_read_as_data(disk, seed: int) -> None:
    files, expected = disk
    damaged = clone(files)
    _damage_at_random(damaged, random.Random(seed))
    try:
        found = esker.verify(ROOT, files=damaged)
        errors, _, before = read_all(ROOT, expected, clone(damaged))
        assert found.problems or (before == sum(map(len, expected.values())) and not errors)
        done = esker.repair(ROOT, files=damaged)
    except esker.NotAStore:
        return  # nothing in it tells that it was one
    assert done.after is not None
    assert done.after.problems == []
    assert esker.repair(ROOT, files=damaged).actions == []
    for (name, shard), records in expected.items():
        with esker.open(ROOT, files=damaged, background=False) as store:
            if name in store:
                for record in store[name].read(shard=shard, gaps="skip"):
                    assert record == records[record.offset]


class _Dying:
    """A disk whose process dies at the n-th change."""

    CHANGES = ("rename", "unlink", "make_dir", "sync_dir")

    def __init__(self, files: MemoryFiles, lives: int) -> None:
        self._files = files
        self.lives = lives

    def step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise SystemExit("the process dies here")

    def open(self, path, mode):
        if mode == "create":
            self.step()
        return _DyingFile(self, self._files.open(path, mode))

    def __getattr__(self, name):
        found = getattr(self._files, name)
        if name not in self.CHANGES:
            return found

        def change(*args):
            self.step()
            return found(*args)

        return change


class _DyingFile:
    def __init__(self, disk: _Dying, file) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    def write(self, position, parts):
        self._disk.step()
        self._file.write(position, parts)

    def __getattr__(self, name):
        return getattr(self._file, name)


def _break_frame(files: MemoryFiles) -> None:
    files.files[f"{ROOT}/{EVENTS}/00000001-00000000000000000000.seg"][700] ^= 4


def _break_middle(files: MemoryFiles) -> None:
    del files.files[f"{ROOT}/{ORDERS}/00000001-00000000000000000000.seg"]


def _break_log(files: MemoryFiles) -> None:
    (log,) = [n for n in files.files if n.startswith(f"{ROOT}/{ORDERS}") and n.endswith(".log")]
    files.files[log][700] ^= 4


def _break_header(files: MemoryFiles) -> None:
    files.files[f"{ROOT}/{EVENTS}/00000001-00000000000000000000.seg"][40:44] = b"xxxx"


@pytest.mark.parametrize("damage", [name for name in MARKS if name != "later version"])
def test_a_repair_of_deletions_that_dies_anywhere_can_be_run_again(damage: str) -> None:
    broken = with_deletions()
    MARKS[damage][0](broken)
    for lives in range(200):
        dying = clone(broken)
        try:
            esker.repair(ROOT, files=_Dying(dying, lives))
        except SystemExit:
            dead = clone(dying)
            done = esker.repair(ROOT, files=dead)
            assert done.after is not None
            assert done.after.problems == [], f"after {lives} changes"
            there = set(range(12)) - FIRST - SECOND | BACK[damage]
            assert offsets(dead) == there, f"after {lives} changes"
            continue
        assert lives > 3
        return
    raise AssertionError("the repair never ended")


@pytest.mark.parametrize("act", [_break_frame, _break_middle, _break_log, _break_header])
def test_a_repair_that_dies_anywhere_can_be_run_again(
    disk, act: Callable[[MemoryFiles], None]
) -> None:
    files, expected = disk
    broken = clone(files)
    act(broken)
    wanted = clone(broken)
    esker.repair(ROOT, files=wanted)
    _, _, readable = read_all(ROOT, expected, wanted)
    for lives in range(200):
        dying = clone(broken)
        try:
            esker.repair(ROOT, files=_Dying(dying, lives))
        except SystemExit:
            dead = clone(dying)
            assert esker.repair(ROOT, files=dead).ok, f"after {lives} changes"
            errors, _, count = read_all(ROOT, expected, dead, mode="rw")
            assert (errors, count) == ([], readable), f"after {lives} changes"
            continue
        assert lives > 3
        return
    raise AssertionError("the repair never ended")
