"""esker.verify: every kind of damage is named, with its place; and nothing else is touched."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.format import marks
from esker.format.checksum import checksum
from esker.storage.files import SYSTEM_FILES
from esker.storage.memory import MemoryFiles
from esker.testing import ManualClock, SimulatedDisk
from esker.upkeep import inspection
from esker.upkeep.report import KINDS
from tests.damage import ROOT, clone, fill, prepared, read_all, small_store
from tests.helpers import Child, Refusing, child, snapshot
from tests.suites import SCALE

ORDERS = "topics/00000001/0000"
EVENTS = "topics/00000002/0000"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    small_store(tmp_path / "data")
    return tmp_path / "data"


def segment(data: Path, shard: str, which: int) -> Path:
    return sorted((data / shard).glob("*-*.*"))[which]


def flip(path: Path, position: int, count: int = 1) -> None:
    content = bytearray(path.read_bytes())
    for at in range(position, position + count):
        content[at] ^= 0x10
    path.write_bytes(content)


def only(found: esker.Verification) -> esker.Problem:
    assert len(found.problems) == 1, found
    return found.problems[0]


# --- a store that is whole ----------------------------------------------------------------------


def test_a_whole_store_is_ok_and_counted(data: Path) -> None:
    before = snapshot(data)
    found = esker.verify(data)
    assert found.ok
    assert found.problems == []
    assert (found.topics, found.shards, found.records) == (2, 3, 370)
    identity, catalogs, states = 1, 2, 3
    segments = sum(1 for _ in data.rglob("*-*.*"))
    assert found.files == identity + catalogs + states + segments
    assert "370 records" in str(found)
    assert snapshot(data) == before, "verify has changed something"


def test_an_empty_store_is_ok(tmp_path: Path) -> None:
    esker.open(tmp_path / "data").close()
    assert esker.verify(tmp_path / "data").ok


def test_progress_ends_at_the_total(data: Path) -> None:
    seen: list[tuple[int, int]] = []
    esker.verify(data, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_a_shallow_look_reads_no_bodies_and_still_finds_what_is_missing(data: Path) -> None:
    flip(segment(data, EVENTS, 0), 600)
    assert esker.verify(data, deep=False).ok
    assert not esker.verify(data).ok
    segment(data, ORDERS, 0).unlink()
    assert esker.verify(data, deep=False).kinds == ["missing_segment"]


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(esker.NotAStore, match="no Esker store"):
        esker.verify(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(esker.NotAStore):
        esker.verify(tmp_path / "file")
    with pytest.raises(esker.NotAStore, match=re.escape("esker.store")):
        esker.verify(tmp_path)


def test_a_store_of_a_later_esker_is_refused(data: Path) -> None:
    identity = bytearray((data / "esker.store").read_bytes()[:40])
    identity[8] = 2
    (data / "esker.store").write_bytes(identity + checksum(bytes(identity)).to_bytes(8, "little"))
    with pytest.raises(esker.FormatTooNew):
        esker.verify(data)


# --- each kind of damage, named with its place --------------------------------------------------


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "identity damaged": (lambda d: flip(d / "esker.store", 20), "identity", "esker.store"),
    "identity gone": (lambda d: (d / "esker.store").unlink(), "identity", "esker.store"),
    "old catalog": (lambda d: flip(d / "catalog-00000001", 70), "catalog", "catalog-00000001"),
    "new catalog": (lambda d: flip(d / "catalog-00000002", 70), "catalog", "catalog-00000002"),
    "catalogs gone": (
        lambda d: [path.unlink() for path in d.glob("catalog-*")],
        "orphan_topic",
        "topics/00000001",
    ),
    "shard gone": (
        lambda d: (d / EVENTS).rename(d.parent / "elsewhere"),
        "missing_shard",
        EVENTS,
    ),
    "state slot": (lambda d: flip(d / EVENTS / "state", 20), "state", "/state"),
    "state padding": (lambda d: flip(d / EVENTS / "state", 700), "state", "/state"),
    "counters": (lambda d: flip(d / EVENTS / "counters", 56), "counters", "/counters"),
    "counters a directory": (
        lambda d: ((d / EVENTS / "counters").unlink(), (d / EVENTS / "counters").mkdir()),
        "unreadable",
        "/counters",
    ),
    "segment header": (lambda d: flip(segment(d, ORDERS, 0), 60), "header", ".seg"),
    "log header": (lambda d: flip(segment(d, ORDERS, -1), 60), "header", ".log"),
    "sealed frame": (lambda d: flip(segment(d, ORDERS, 0), 700), "frame", ".seg"),
    "frame of a log": (lambda d: flip(segment(d, ORDERS, -1), 700), "frame", ".log"),
    "config frame": (lambda d: flip(segment(d, ORDERS, 0), 140), "frame", ".seg"),
    "trailer": (lambda d: flip(segment(d, ORDERS, 0), -10), "footer", ".seg"),
    "footer": (lambda d: flip(segment(d, ORDERS, 0), -60), "footer", ".seg"),
    "log cut": (lambda d: cut(segment(d, ORDERS, -1), 1000), "frame", ".log"),
    "log gone": (lambda d: segment(d, ORDERS, -1).unlink(), "missing_segment", ORDERS),
    "first segment gone": (lambda d: segment(d, ORDERS, 0).unlink(), "missing_segment", ORDERS),
    "segment emptied": (lambda d: cut(segment(d, ORDERS, 0), 0), "header", ".seg"),
    "segment swapped": (
        lambda d: swap(segment(d, ORDERS, 0), segment(d, "topics/00000001/0001", 0)),
        "foreign",
        ".seg",
    ),
    "stranger": (lambda d: (d / ORDERS / "note.txt").write_text("x"), "stranger", "note.txt"),
    "stranger above": (lambda d: (d / "note.txt").write_text("x"), "stranger", "note.txt"),
    "half-made file": (lambda d: (d / ORDERS / "x.tmp").write_text("x"), "leftover", "x.tmp"),
    "dead journal": (
        lambda d: (d / "journal" / "00000001.journal").write_bytes(b"ESKERJNL" * 20),
        "journal",
        "00000001.journal",
    ),
    "link": (
        lambda d: (segment(d, ORDERS, 0).rename(d.parent / "x"),
                   segment(d, ORDERS, 0).parent.joinpath(
                       "00000001-00000000000000000000.seg").symlink_to(d.parent / "x")),
        "unreadable",
        ".seg",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_kind_and_its_place(data: Path, damage: str) -> None:
    act, kind, place = DAMAGE[damage]
    act(data)
    found = esker.verify(data)
    problem = next(problem for problem in found.problems if problem.kind == kind)
    assert place in problem.path
    assert problem.severity == KINDS[kind][0] or problem.kind in ("state", "catalog")
    assert problem.reason in str(found)
    assert problem.advice in str(found)


def test_a_damaged_frame_is_named_with_position_and_offsets(data: Path) -> None:
    path = segment(data, ORDERS, 0)
    flip(path, 700)
    problem = only(esker.verify(data))
    assert (problem.kind, problem.topic, problem.shard) == ("frame", "orders", 0)
    assert problem.path == str(path)
    assert problem.position is not None
    assert problem.position < 700
    with esker.open(data, "r") as store, pytest.raises(esker.Corruption) as refused:
        list(store["orders"].read(shard=0))
    assert (problem.first, problem.last) == (refused.value.first, refused.value.last)


def test_a_segment_that_was_deleted_in_the_middle_is_named_with_its_offsets(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=10)
        for _ in range(5):
            topic.append_many([b"x"] * 10)
            store.tick()
    segment(tmp_path / "data", "topics/00000001/0000", 2).unlink()
    problem = only(esker.verify(tmp_path / "data"))
    assert (problem.kind, problem.first, problem.last) == ("missing_segment", 20, 29)


def test_a_last_sealed_segment_that_is_gone_is_missed(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=10)
        for _ in range(3):
            topic.append_many([b"x"] * 10)
            store.tick()
    for path in (tmp_path / "data" / "topics/00000001/0000").glob("00000003-*"):
        path.unlink()
    found = esker.verify(tmp_path / "data")
    assert any((p.kind, p.first, p.last) == ("missing_segment", 20, 29) for p in found.errors)


def test_a_torn_tail_is_a_warning_and_corruption_below_it_an_error(tmp_path: Path) -> None:
    files = MemoryFiles()
    store = esker.open(ROOT, files=files, background=False)
    topic = store.create("t", durability="memory")
    for number in range(5):
        topic.append_many([b"%d" % number] * 3)
    dead = clone(files)
    (name,) = [name for name in dead.files if name.endswith(".log")]
    del dead.files[name][-20:]
    found = esker.verify(ROOT, files=dead)
    assert found.ok
    assert found.kinds == ["torn_tail", "unclean"]
    assert (found.problems[0].first, found.problems[0].last) == (12, 14)
    store.close()
    whole = clone(files)
    whole.files[name][500] ^= 1
    assert esker.verify(ROOT, files=whole).kinds == ["frame"]


def test_bytes_that_the_disk_refuses_cost_their_frames_and_are_named(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        for _ in range(10):
            store["t"].append_many([b"x" * 200] * 10)
    files = _BadSectors(".log", 9000, 9001)
    found = esker.verify(tmp_path / "data", files=files)
    assert found.kinds == ["unreadable", "frame"]
    assert found.problems[0].position == 8192
    assert 70 <= found.records < 100


class _BadSectors(Refusing):
    """A disk that cannot read some bytes of one file."""

    def __init__(self, name: str, start: int, end: int, files: Any = SYSTEM_FILES) -> None:
        super().__init__(files)
        self._bad = (name, start, end)

    def open(self, path, mode):
        file = super().open(path, mode)
        name, start, end = self._bad
        if path.endswith(name):
            read = file._file.read

            def refuse(position, size):
                if position < end and position + size > start:
                    file._files.check("read", path)
                return read(position, size)

            self.refuse("read", errno.EIO)
            file.read = refuse
        return file


# --- deletions ----------------------------------------------------------------------------------

ERASED = f"{ROOT}/topics/00000001/0000/deletions-00000001"
PAGE = f"{ROOT}/topics/00000001/0000/state"


def with_deletions() -> MemoryFiles:
    """A closed store with one topic of 12 records; of each four the first two were deleted."""
    files = MemoryFiles()
    with esker.open(ROOT, files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        for number in range(12):
            topic.append(b"%d" % number, tag="abcc"[number % 4], wait=True)
        for tag in "ab":
            assert topic.delete(tag=tag) == 3
    return files


def forge_version(files: MemoryFiles, path: str) -> None:
    head = files.files[path]
    head[4] = 9
    head[56:64] = checksum(bytes(head[:56])).to_bytes(8, "little")


def of_another(files: MemoryFiles, path: str, **fields: object) -> None:
    """The same file, but for who it says that it belongs to."""
    data = files.files[path]
    header = marks.decode_header(bytes(data[:64]))
    assert isinstance(header, marks.MarksHeader)
    data[:64] = marks.encode_header(header._replace(**fields))  # type: ignore[arg-type]


def flip_in(files: MemoryFiles, path: str, position: int) -> None:
    files.files[path][position] ^= 1


MARKS: dict[str, tuple[Callable[[MemoryFiles], object], list[tuple[str, int | None]]]] = {
    "missing": (lambda f: f.files.pop(ERASED), [("deletions", None)]),
    "empty": (lambda f: f.files[ERASED].clear(), [("deletions", 0), ("deletions", 0)]),
    "short": (lambda f: f.files[ERASED].__delitem__(slice(-8, None)),
              [("deletions", 648), ("deletions", 1224)]),
    "short by a frame": (lambda f: f.files[ERASED].__delitem__(slice(648, None)),
                         [("deletions", 648)]),
    "header": (lambda f: flip_in(f, ERASED, 20), [("deletions", 0)]),
    "first frame": (lambda f: flip_in(f, ERASED, 200), [("deletions", 64)]),
    "first header": (lambda f: flip_in(f, ERASED, 80), [("deletions", 64)]),
    "last frame": (lambda f: flip_in(f, ERASED, 800), [("deletions", 648)]),
    "of another topic": (lambda f: of_another(f, ERASED, topic=2), [("deletions", 8)]),
    "of another shard": (lambda f: of_another(f, ERASED, shard=1), [("deletions", 8)]),
    "of another store": (lambda f: of_another(f, ERASED, store=b"x" * 16), [("deletions", 8)]),
    "of another number": (lambda f: of_another(f, ERASED, number=4), [("deletions", 8)]),
    "longer": (lambda f: f.files[ERASED].extend(b"behind"), [("trailing", 1232)]),
    "another": (lambda f: f.files.update({f"{ERASED[:-1]}7": bytearray(b"x")}),
                [("leftover", None)]),
    "renamed": (lambda f: f.files.update({f"{ERASED[:-1]}7": f.files.pop(ERASED)}),
                [("deletions", None), ("leftover", None)]),
    "later version": (lambda f: forge_version(f, ERASED), [("newer", 4)]),
}  # fmt: skip


@pytest.mark.parametrize("damage", MARKS)
def test_what_is_wrong_with_a_file_of_deletions_is_named(damage: str) -> None:
    files = with_deletions()
    act, expected = MARKS[damage]
    act(files)
    found = esker.verify(ROOT, files=files)
    assert [(problem.kind, problem.position) for problem in found.problems] == expected
    assert found.ok == (expected[0][0] in ("leftover", "trailing"))
    assert all("deletions-" in problem.path for problem in found.problems)
    assert {(p.topic, p.shard) for p in found.problems} == {("t", 0)}


def test_deleted_records_are_stored_records_and_counted_as_deleted() -> None:
    found = esker.verify(ROOT, files=with_deletions())
    assert found.problems == []
    assert (found.records, found.deleted) == (12, 6)
    assert "6 of the records are deleted" in str(found)


def test_a_file_of_deletions_that_no_page_names_and_a_later_esker_wrote_is_newer() -> None:
    files = with_deletions()
    files.files[f"{ERASED[:-1]}7"] = bytearray(files.files[ERASED])
    forge_version(files, f"{ERASED[:-1]}7")
    assert esker.verify(ROOT, files=files).kinds == ["newer"]


def test_without_a_state_page_the_newest_file_of_deletions_counts() -> None:
    files = with_deletions()
    del files.files[PAGE]
    assert esker.verify(ROOT, files=files).kinds == ["state"]
    flip_in(files, ERASED, 800)
    assert esker.verify(ROOT, files=files).kinds == ["deletions", "state"]


def test_deletions_of_a_topic_that_keeps_none_and_of_an_unused_shard_are_in_the_way() -> None:
    files = with_deletions()
    with esker.open(ROOT, files=files, background=False) as store:
        store.create("e", durability="ephemeral")
        store.create("unused")
    data = files.files[ERASED]
    for topic, kind in ((2, "stranger"), (3, "leftover")):
        path = f"{ROOT}/topics/{topic:08d}/0000/deletions-00000001"
        files.files[path] = bytearray(data)
        assert esker.verify(ROOT, files=files).kinds == [kind]
        del files.files[path]


def test_deletions_that_the_disk_refuses_are_unreadable() -> None:
    files = with_deletions()
    bad = _BadSectors("deletions-00000001", 100, 101, files)
    assert esker.verify(ROOT, files=bad).kinds[:2] == ["unreadable", "deletions"]
    locked = Refusing(files)
    locked.refuse("open", errno.EACCES, "deletions-00000001")
    problem = only(esker.verify(ROOT, files=locked))
    assert (problem.kind, problem.position) == ("unreadable", None)


def test_a_slot_of_the_state_page_that_is_gone_or_out_of_turn_is_named() -> None:
    for change in (bytes(512), None):
        files = with_deletions()
        page = files.files[PAGE]
        newest = max((0, 4096), key=lambda at: page[at + 8 : at + 16][::-1])
        other = 4096 - newest
        page[other : other + 512] = page[newest : newest + 512] if change is None else change
        problem = only(esker.verify(ROOT, files=files))
        assert (problem.kind, problem.severity) == ("state", "warning")


DELETER = """
    import sys, esker
    store = esker.open(sys.argv[1])
    topic = store.create("t", exist_ok=True)
    from esker.storage import marks
    marks.REWRITE_BYTES = 3000
    number = 0
    while True:
        topic.append(b"x", tag=str(number), wait=True)
        assert topic.delete(tag=str(number)) == 1
        number += 1
        if number == 5:
            print("ready")
"""


def test_a_store_is_verified_while_records_are_deleted(tmp_path: Path) -> None:
    with child(DELETER, tmp_path / "data") as writer:
        _ready(writer)
        for _ in range(60):
            found = esker.verify(tmp_path / "data")
            assert found.problems == [], found
            assert found.deleted
    assert esker.verify(tmp_path / "data").ok


# --- beside a living writer ---------------------------------------------------------------------

WRITER = """
    import sys, esker
    store = esker.open(sys.argv[1])
    topic = store.create("t", exist_ok=True, segment_bytes=16384)
    number = 0
    while True:
        topic.append_many([b"%d" % n for n in range(number, number + 50)])
        number += 50
        if number == 50:
            print("ready")
"""


def test_a_store_is_verified_while_it_is_written(tmp_path: Path) -> None:
    with child(WRITER, tmp_path / "data") as writer:
        _ready(writer)
        for _ in range(10):
            found = esker.verify(tmp_path / "data")
            assert found.problems == [], found
            assert found.writers == [writer.pid]
            assert found.records % 50 == 0
    assert esker.verify(tmp_path / "data").ok  # killed: at most warnings


def test_a_rolled_log_that_ends_with_the_mark_of_a_close_is_whole(tmp_path: Path) -> None:
    """The mark is in the chain hash that the next log names, and has no row of its own."""
    with esker.open(tmp_path / "data") as store:
        store.create("t", segment_bytes=4096).append_many([b"x" * 1500, b"x" * 1500])
    with esker.open(tmp_path / "data", background=False) as store:
        store["t"].append_many([b"y" * 1500])  # rolls; nobody seals yet
        store["t"].sync()
        assert len(list((tmp_path / "data" / ORDERS).glob("*.log"))) == 2
        found = esker.verify(tmp_path / "data")
        assert (found.problems, found.writers) == ([], [os.getpid()])


def test_a_file_that_vanishes_costs_a_second_look_at_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_bytes=4096)
        for _ in range(8):
            topic.append_many([b"x" * 1500, b"x" * 1500])
    looked: Counter[str] = Counter()
    real = inspection.examine

    def examine(files: Any, folder: str, name: Any, **limits: Any) -> Any:
        looked[str(name)] += 1
        if len(looked) == 6 and looked[str(name)] < 4:
            raise esker.StorageError("gone", cause=OSError(errno.ENOENT, "gone"))
        return real(files, folder, name, **limits)

    monkeypatch.setattr(inspection, "examine", examine)
    found = esker.verify(tmp_path / "data")
    assert found.ok
    assert found.records == 16
    assert len(looked) >= 8
    assert sorted(looked.values())[-2:] == [1, 4]


def _ready(writer: Child) -> None:
    assert writer.line() == "ready"


# --- the sweep: a flipped bit is found, or it cannot matter ---------------------------------------

STEP = 7


def unprotected(name: str, position: int) -> bool:
    """Bytes that no checksum covers, because nothing depends on them.

    Lock files hold a label for people; in memory there are none. The counters page is not a file
    here. So nothing is left: padding and unused parts of the state page are checked for zeros.
    """
    return name.endswith((".lock", "/lock"))


@pytest.fixture(scope="module")
def disk():
    return prepared()


PARTS = ["esker.store", "catalog-", "state", "00000001/0000/", "00000001/0001/", "00000002/0000/"]


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_bit_is_reported_and_never_read_as_data(disk, part: str) -> None:
    files, expected = disk
    flips = 0
    for name in sorted(files.files):
        if part not in name or (part != "state" and name.endswith("/state")):
            continue
        topic = {"/00000001/": "orders", "/00000002/": "events"}
        mine = next((topic[key] for key in topic if key in name), "")
        concerned = {key: cells for key, cells in expected.items() if mine in ("", key[0])}
        size = len(files.files[name])
        step = STEP if SCALE >= 1 else max(STEP, size // 20)
        places = range(flips % step, size, step)
        if part == "state":
            slots = [*range(0, 512, 3 * step), *range(4096, size, 3 * step)]
            places = [*slots, *range(512, 4096, 101)]
        for position in places:
            damaged = clone(files)
            damaged.files[name][position] ^= 1 << (position % 8)
            found = esker.verify(ROOT, files=damaged)
            assert found.problems or unprotected(name, position), f"{name} at byte {position}"
            assert all(problem.path.startswith(ROOT) for problem in found.problems)
            read_all(ROOT, concerned, damaged)
            flips += 1
    assert flips > 5


def test_a_flipped_bit_in_what_a_crash_left_is_never_read_as_data() -> None:
    files = MemoryFiles()
    store = esker.open(ROOT, files=files, background=False, journals=1, journal_bytes=65536)
    topics = [store.create(f"t{number}", durability="fsync") for number in range(6)]
    for number in range(3):
        for topic in topics:
            topic.append_many([b"%d" % number] * 2)
        store.sync()  # six dirty shards: through the journal
    expected = {(t.name, 0): {r.offset: r for r in t.read()} for t in topics}
    dead = clone(files)
    (journal,) = [name for name in dead.files if name.endswith(".journal")]
    assert esker.verify(ROOT, files=dead).kinds == ["unclean", "pending_journal"]
    used = len(bytes(dead.files[journal]).rstrip(b"\0"))
    for position in range(0, used, 53):
        damaged = clone(dead)
        damaged.files[journal][position] ^= 1 << (position % 8)
        found = esker.verify(ROOT, files=damaged)
        assert {"journal", "torn_journal", "padding"} & set(found.kinds), position
        read_all(ROOT, expected, damaged, mode="rw")
    store.close()
    fill_again = esker.open(ROOT, files=files, background=False)
    fill(fill_again)
    fill_again.close()
    assert esker.verify(ROOT, files=files).problems == []


def test_a_log_that_is_gone_is_missed_where_no_state_page_tells_of_it() -> None:
    """The counters page knows that records were durable."""
    disk = SimulatedDisk(1)
    store = esker.open(ROOT, files=disk, clock=ManualClock(), background=False)
    store.create("t", durability="fsync").append_many([b"durable"] * 3, wait=True)
    after = disk.kill()
    store._context.forked = True
    after.unlink(f"{ROOT}/{ORDERS}/00000001-00000000000000000000.log")
    if after.kind(f"{ROOT}/{ORDERS}/state"):
        after.unlink(f"{ROOT}/{ORDERS}/state")
    found = esker.verify(ROOT, files=after)
    assert [(p.kind, p.first, p.last) for p in found.problems if p.severity == "error"] == [
        ("missing_segment", 0, 2)
    ]
    done = esker.repair(ROOT, files=after)
    assert done.after is not None
    assert done.after.problems == []
    with esker.open(ROOT, files=after, clock=ManualClock(), background=False) as again:
        assert list(again["t"].read(0, gaps="yield")) == [esker.Gap("t", 0, 0, 2, "corrupt")]
        assert again["t"].append(b"new", wait=True) == 3


def test_a_journal_that_was_cut_is_named() -> None:
    disk = SimulatedDisk(2)
    store = esker.open(ROOT, files=disk, clock=ManualClock(), background=False, journals=1)
    for number in range(6):
        store.create(f"t{number}", durability="fsync").append(b"x")
    store.sync()
    after = disk.kill()
    store._context.forked = True
    (name,) = [path for path in after.contents() if path.endswith(".journal")]
    file = after.open(name, "edit")
    file.truncate(672)
    file.sync()
    file.close()
    found = esker.verify(ROOT, files=after)
    assert [(p.kind, p.path, p.position) for p in found.problems if p.severity == "error"] == [
        ("journal", name, 672)
    ]
