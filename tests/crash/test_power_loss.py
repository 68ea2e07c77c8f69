"""Power cuts and kills, before and after every call that changes the disk: chosen workloads.

Each workload runs once, and explorer.py looks at what a death could leave around each of its
changes; ledger.py has the invariants. The floors at the end of each test are there so that coverage
cannot shrink in silence. test_sequences.py does the same with workloads that nobody chose.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

import esker
from esker.engine import committer
from esker.format import frame
from esker.storage import log, segment
from esker.testing import KEPT, LOST, Call, Crash, Fate, ManualClock, SimulatedDisk
from tests.crash import driver as driver_module
from tests.crash.driver import OPTIONS, ROOT, Driver, Step, mixed
from tests.crash.explorer import Explorer, Violation
from tests.crash.ledger import Ledger, read

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MANY = tuple(f"j{n}" for n in range(6))  # more than are synced one by one: the journal is used


def each(name: str, *arguments: object) -> list[Step]:
    return [(name, topic, *arguments) for topic in MANY]


class Case(NamedTuple):
    """A workload, how thoroughly to look at it, and how many states must come of that."""

    steps: list[Step]
    most: int
    thorough: int
    nested: int
    states: int
    double: int


CASES = {
    "class fsync": Case([
        ("create", "f", "fsync"), ("wait", "f"), ("many", "f"), ("append", "f"), ("wait", "f"),
        ("many", "f", 4, 900), ("sync", "f"), ("many", "f", 3, 900), ("tick",),
        ("many", "f", 3, 900), ("wait", "f"), ("reopen",), ("wait", "f"), ("append", "f"),
        ("many", "f", 2, 100, True), ("append", "f"),
    ], 4, 4, 15, 150, 150),
    "class disk": Case([
        ("create", "d", "disk"), ("wait", "d"), ("many", "d"), ("append", "d"), ("sync", "d"),
        ("many", "d", 4, 900), ("many", "d", 3, 900), ("tick",), ("many", "d", 3, 900),
        ("reopen",), ("wait", "d"), ("append", "d"), ("flush", "d"), ("many", "d", 2),
        ("many", "d", 4, 900), ("tick",),
    ], 4, 4, 15, 150, 150),
    "class memory": Case([
        ("create", "m", "memory"), ("wait", "m"), ("many", "m"), ("append", "m"), ("sync", "m"),
        ("many", "m", 4, 900), ("many", "m", 3, 900), ("tick",), ("many", "m", 3, 900),
        ("reopen",), ("wait", "m"), ("many", "m", 2),
    ], 4, 4, 15, 200, 150),
    "deletion by tag": Case([
        ("create", "f", "fsync"), ("create", "d", "disk"), ("many", "d", 4), ("many", "f", 4),
        ("erase", "d"), ("erase", "f"), ("many", "d", 4, 900), ("tick",), ("append", "d"),
        ("erase", "d", "x-"), ("wait", "f"), ("many", "f", 4, 900), ("reopen",),
        ("erase", "f", "x-b"), ("forget", "d", 2), ("many", "d", 3), ("erase", "d"), ("tick",),
    ], 6, 4, 15, 150, 150),
    "class ephemeral, beside compression": Case([
        ("create", "z", "fsync", 8192, "zstd"), ("create", "e", "ephemeral"), ("many", "e", 2),
        ("wait", "z"), ("many", "e", 4, 900), ("many", "z", 4, 900), ("many", "z", 7, 900),
        ("tick",), ("reopen",), ("many", "e", 2), ("wait", "z"), ("many", "z", 2, 900),
    ], 16, 2, 15, 90, 30),
    "rolling faster than sealing": Case([
        ("create", "f", "fsync"), ("create", "d", "disk"),
        *[("many", topic, 3, 900) for _ in range(6) for topic in ("f", "d")],
        ("sync", "f"), ("tick",), ("many", "d", 1),
    ], 1, 15, 250, 400, 150),
    "journals, and a roll": Case([
        *each("create", "fsync"), *each("append"), ("sync_all",), *each("many", 2, 600),
        ("sync_all",), *each("many", 4, 800), ("tick",), ("sync_all",), ("wait", "j1"),
        ("append", "j2"), ("reopen",), *each("append"), ("sync_all",),
    ], 1, 15, 500, 600, 60),
    "a journal that is full": Case([
        *[("create", topic, "fsync" if topic < "j4" else "disk", 16384) for topic in MANY],
        *[step for _ in range(5) for step in (*each("many", 3, 900), ("sync_all",))],
        *each("append"),
    ], 1, 15, 300, 350, 50),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_death_at_any_change_breaks_no_promise(name: str) -> None:
    case = CASES[name]
    explorer = Explorer(most=case.most, thorough=case.thorough, nested=case.nested)
    explorer.explore(case.steps, seed=1)
    assert explorer.states >= case.states
    assert explorer.double >= case.double


@pytest.mark.parametrize("seed", range(4))
def test_a_death_in_any_mix_breaks_no_promise(seed: int) -> None:
    explorer = Explorer(most=3, chances=1, thorough=6, nested=100)
    explorer.explore(mixed(random.Random(f"mix {seed}"), 20), seed=seed)
    assert explorer.states >= 150


def test_a_death_while_a_store_is_made_leaves_one_that_can_be_used_or_none() -> None:
    explorer = Explorer(most=500, thorough=2, nested=1)
    explorer.explore([("create", "f", "fsync"), ("create", "d", "disk")], seed=12)
    assert explorer.states + explorer.double >= 40


def test_many_deaths_of_one_store_break_no_promise() -> None:
    explorer = Explorer()
    for seed in range(100):
        explorer.live(seed, lives=7)
    assert explorer.states >= 450


@pytest.mark.parametrize("name", ["class disk", "rolling faster than sealing"])
def test_a_death_breaks_no_promise_where_class_disk_takes_room_ahead(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a log of more than a megabyte does; these are shorter."""
    taken: list[int] = []
    allocate = log.LogSegment.allocate_ahead

    def counting(segment: log.LogSegment, size: int, limit: int, early: bool) -> None:
        before = segment.allocated
        allocate(segment, size, limit, early)
        taken.extend([size] if segment.allocated > before and not early else ())

    monkeypatch.setattr(log, "ALLOCATE_FROM", 1000)
    monkeypatch.setattr(log.LogSegment, "allocate_ahead", counting)
    case = CASES[name]
    explorer = Explorer(most=case.most, thorough=case.thorough)
    explorer.explore(case.steps, seed=7)
    assert len(taken) >= 2, "no room was taken"
    assert explorer.states >= case.states


def test_a_batch_of_several_frames_is_there_as_a_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []  # positions of frames that belong together with the next one
    pack = log.pack

    def counting(*given: Any) -> Any:
        joined.extend(given[1:2] if given[5] & frame.MORE else ())
        return pack(*given)

    monkeypatch.setattr(segment.split, "__defaults__", (1024,))  # frames of 1 KiB
    monkeypatch.setattr(log, "pack", counting)
    steps: list[Step] = [
        ("create", "f", "fsync", 16384), ("create", "d", "disk", 16384),
        ("many", "f", 40, 120), ("many", "d", 40, 150), ("sync", "f"), ("many", "d", 36, 200),
        ("tick",), ("many", "f", 33, 200),
    ]  # fmt: skip
    explorer = Explorer(most=6, thorough=12)
    explorer.explore(steps, seed=3)
    assert len(joined) >= 8, "the batches were not cut into frames"
    assert explorer.states >= 200


ALIKE: list[Step] = [  # logs whose frames fill the same sectors; each is sealed, and so deleted
    ("create", "d", "disk"), ("create", "m", "memory"), *[("wait", "m", 1)] * 9,
    *[("wait", "d", 520), ("tick",), *[("wait", "d", 432)] * 5] * 3,
]  # fmt: skip


@pytest.fixture
def frames_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without tags, or frames would differ by these."""
    monkeypatch.setattr(driver_module, "tag_of", lambda value: None)


@pytest.mark.usefixtures("frames_alike")
def test_frames_of_a_deleted_file_are_not_taken_for_those_of_a_new_one() -> None:
    """They verify, but for the salt: it is what the next test takes away."""
    explorer = Explorer(most=16, chances=2, thorough=20)
    explorer.explore(ALIKE, seed=1, skip=11)
    assert explorer.states >= 300


@pytest.mark.usefixtures("frames_alike")
def test_the_explorer_finds_out_an_engine_without_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "random", lambda disk, size: bytes(size - 1) + b"7")
    with pytest.raises(Violation, match=r"I[1-7]|taken for damage"):
        Explorer(most=16).explore(ALIKE, seed=1, skip=11)


@pytest.mark.parametrize("fate", [LOST, KEPT], ids=["nothing survives", "everything survives"])
def test_what_a_program_does_while_it_dies_reaches_nothing(fate: object) -> None:
    disk = SimulatedDisk(seed=4)
    driver = Driver(disk, seed=4)
    store = driver.open()
    driver.run([("create", "f", "fsync"), ("wait", "f"), ("append", "f")])
    disk.stop_at(1)
    with pytest.raises(Crash):
        driver.wait("f")
    before = {path: data for path, data in disk.contents().items() if "counters" not in path}
    with suppress(Crash, esker.EskerError):
        store.close()
    assert before.items() <= disk.contents().items()
    driver.abandon()
    again = Driver(disk.crash(fate), driver.ledger)  # type: ignore[arg-type]
    driver.ledger.check(again.open(), "power")
    again.close()


def test_offsets_set_aside_before_a_kill_are_not_forgotten_by_the_power_cut_after_it() -> None:
    """A recovery after a kill leaves a clean state; what is issued then must be set aside anew."""
    driver = Driver(SimulatedDisk(seed=5))
    driver.open()
    driver.run([("create", "d", "disk"), ("wait", "d")])
    driver.abandon()
    second = Driver(driver.disk.kill(), driver.ledger)
    driver.ledger.settle(second.open())
    second.run([("wait", "d"), ("wait", "d")])
    second.abandon()
    third = Driver(second.disk.crash(LOST), driver.ledger)
    third.ledger.check(third.open(), "power")
    third.wait("d")
    assert third.ledger.pages["d"].written[-1][0] >= third.ledger.pages["d"].reached - 1
    third.close()


def test_what_a_recovery_gives_up_does_not_outlive_what_it_was_given_up_for() -> None:
    """A kill leaves a sealed segment whose name is not synced; recovery deletes the log of it."""
    disk, ledger = SimulatedDisk(seed=8), Ledger()
    driver = Driver(disk, ledger)
    driver.open()
    driver.run([("create", "f", "fsync"), *[("wait", "f", 900)] * 5])

    def watch(call: Call, when: str) -> None:
        if call.name == "rename" and when == "after":
            disk.stop_at(0, "after")

    disk.watch = watch
    with pytest.raises(Crash):
        driver.tick()
    driver.abandon()
    recovering = disk.kill()
    looked: list[int] = []

    def watch_again(call: Call, when: str) -> None:
        for seed in range(30) if call.name == "unlink" and when == "after" else ():
            after = Driver(recovering.crash(seed), ledger)
            ledger.check(after.open(), "power")
            after.abandon()
            looked.append(seed)

    recovering.watch = watch_again
    driver = Driver(recovering, ledger)
    assert "unfinished_seal" in driver.open().recovery.labels
    driver.abandon()
    assert looked


def test_a_topic_whose_maker_died_is_durable_before_a_record_in_it_is() -> None:
    """It is seen as soon as the catalog is renamed; its maker did not live to sync the name."""
    disk, ledger = SimulatedDisk(seed=11), Ledger()
    driver = Driver(disk, ledger)
    driver.open()

    def watch(call: Call, when: str) -> None:
        if call.name == "rename" and when == "after":
            disk.stop_at(0, "after")

    disk.watch = watch
    with pytest.raises(Crash):
        driver.create("f", "fsync")
    driver.abandon()
    driver = Driver(disk.kill(), ledger)
    assert list(driver.open()) == ["f"]
    ledger.settle(driver._store)
    driver.wait("f")
    driver.abandon()
    after = Driver(driver.disk.crash(LOST), ledger)
    ledger.check(after.open(), "power")
    after.close()


def test_two_power_cuts_with_nothing_written_between_make_one_gap() -> None:
    disk, ledger = SimulatedDisk(seed=6), Ledger()
    driver = Driver(disk, ledger)
    driver.open()
    driver.run([("create", "d", "disk"), ("wait", "d")])
    for _ in range(3):
        driver.abandon()
        disk = disk.crash(LOST)
        driver = Driver(disk, ledger)
        ledger.check(driver.open(), "power")
        ledger.settle(driver._store)
        disk.stop_at(3)  # the state is written and synced, and the record is about to be
        with pytest.raises(Crash) as stop:
            driver.wait("d")
        ledger.failed(stop.value)
    driver.abandon()
    with esker.open(ROOT, files=disk.crash(LOST), clock=ManualClock(), **OPTIONS) as store:
        assert [gap[2] for gap in read(store, "d").gaps] == ["lost unsynced tail"]


def test_a_disk_is_the_same_every_time_for_the_same_seeds() -> None:
    def image(seed: int) -> dict[str, bytes]:
        driver = Driver(SimulatedDisk(seed), seed=seed)
        driver.open()
        driver.run(mixed(random.Random("same"), 12))
        driver.abandon()
        return driver.disk.crash(seed).contents()

    assert image(7) == image(7)
    assert image(7) != image(8)


@pytest.mark.parametrize("closed", [False, True], ids=["died", "closed"])
def test_a_hole_among_segments_that_were_deleted_is_no_damage(closed: bool) -> None:
    """Deletions of files that nobody synced: a power cut may undo the first and keep the second."""
    driver = Driver(SimulatedDisk(seed=14))
    driver.open()
    steps: list[Step] = [*[("many", "f", 4, 900), ("tick",)] * 4, ("forget", "f", 1)]
    driver.run([("create", "f", "fsync"), *steps])
    if closed:
        driver.close()
    choices = driver.disk.cut().choices
    back = [choice.place.endswith("01-00000000000000000000.seg gone") for choice in choices]
    assert sum(back) == 1
    driver.abandon()
    disk = driver.disk.crash(Fate.exact([not first for first in back]))
    assert any(path.endswith("01-00000000000000000000.seg") for path in disk.contents())
    assert esker.verify(ROOT, files=disk.kill()).ok
    actions = esker.repair(ROOT, files=disk.kill(), dry_run=True).actions
    assert {action.what for action in actions} <= {"recovered"}
    after = Driver(disk, driver.ledger)
    driver.ledger.check(after.open(), "power")
    driver.ledger.settle(after._store)
    after.run([("wait", "f"), ("reopen",), ("close",)])
    assert not any(path.endswith("01-00000000000000000000.seg") for path in disk.contents())


def test_a_journal_that_is_back_does_not_make_a_deleted_segment_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last round began in a segment that was deleted since, and went on in the next."""
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)
    driver = Driver(SimulatedDisk(seed=15))
    driver.open()
    driver.run([("create", "d", "disk"), ("create", "f", "fsync"), ("append", "f")])
    driver.run([("many", "d", 4, 900), ("many", "d", 2, 900), ("sync_all",), ("tick",)])
    driver.run([("checkpoint",), ("forget", "d", 1)])
    undone = [choice.place.endswith(".journal gone") for choice in driver.disk.cut().choices]
    assert sum(undone) == 1
    disk = driver.disk.crash(Fate.exact([not back for back in undone]))
    driver.abandon()
    after = Driver(disk, driver.ledger)
    store = after.open()
    driver.ledger.check(store, "power")
    assert "redone" not in store.recovery.labels
    after.close()


def test_the_logs_of_a_shard_become_durable_in_order_also_beside_a_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two is small enough for the journal, and the second is not."""
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)
    monkeypatch.setattr(committer, "JOURNAL_ENTRY_BYTES_MAX", 2000)
    driver = Driver(SimulatedDisk(seed=16))
    driver.open()
    driver.run([("create", "m", "memory"), ("wait", "m", 900), ("many", "m", 4, 900)])
    first, second = (log.path for log, _ in driver._store["m"]._shards[0].unsynced())
    seen: list[tuple[bool, bool]] = []  # whether each has something that a power cut leaves

    def watch(call: Call, when: str) -> None:
        after = driver.disk.crash(LOST).contents()
        redo = any(path.endswith(".journal") and data.strip(b"\0") for path, data in after.items())
        seen.append((bool(after.get(first)) or redo, bool(after.get(second))))

    driver.disk.watch = watch
    driver.sync_all()
    driver.disk.watch = None
    assert seen[-1] == (True, True)
    assert (False, True) not in seen
    driver.close()
