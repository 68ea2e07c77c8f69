"""What a recovery, a repair or a deletion has put in order stays so, whatever a power cut takes.

Each of them ends by saying that all is well, and whoever comes next relies on it. So all that it
leaves must be durable when it ends: a power cut that takes whatever it can must leave every file as
it is, and bring back none but those whose deletion does not matter.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import esker
from esker.engine import committer
from esker.testing import LOST, Call, Crash, SimulatedDisk
from tests.crash.driver import OPTIONS, ROOT, Driver, Step, mixed
from tests.crash.explorer import IDLE
from tests.crash.ledger import Ledger
from tests.damage import small_store
from tests.test_verify import DAMAGE

pytestmark = pytest.mark.crash

# Locks and counters are not for the disk. Others may come back: recovery knows them for what they
# are, and deletes them another time.
PASSING = re.compile(r"\.lock$|\.tmp$|/catalog-\d+$|\.journal$")


def files_of(disk: SimulatedDisk) -> dict[str, bytes]:
    contents = disk.contents().items()
    return {path: data for path, data in contents if path.rpartition("/")[2] not in IDLE}


def holds(disk: SimulatedDisk) -> None:
    """A power cut that takes whatever it can leaves the same files."""
    before, after = files_of(disk), files_of(disk.crash(LOST))
    gone = [path for path in before if path not in after]
    changed = [path for path in before if path in after and before[path] != after[path]]
    back = [path for path in after if path not in before and not PASSING.search(path)]
    assert not gone
    assert not changed
    assert not back


def recovered(disk: SimulatedDisk, ledger: Ledger) -> SimulatedDisk:
    """Opened, so that recovery does its work, and left at once."""
    driver = Driver(disk, ledger)
    ledger.check(driver.open(), "power")
    driver.abandon()
    return disk


# ---- recovery --------------------------------------------------------------------------------


@pytest.mark.parametrize("death", ["kill", "power"])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_recovery_leaves_is_durable(seed: int, death: str) -> None:
    chance = random.Random(f"settled {seed}")
    driver = Driver(SimulatedDisk(seed), seed=seed)
    driver.open()
    driver.disk.stop_at(chance.randrange(40, 160))
    steps = [step for step in mixed(chance, 40, wide=True) if step != ("reopen",)]
    try:
        driver.run(steps)  # without a close: one that is all but done needs no recovery
    except Crash as crash:
        driver.ledger.failed(crash)
    driver.abandon()
    disk = driver.disk.kill() if death == "kill" else driver.disk.crash(seed)
    holds(recovered(disk, driver.ledger))


def test_what_the_journal_brought_back_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two logs of each shard: the journal has the end of one, and all of the next."""
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)
    driver = Driver(SimulatedDisk(seed=2))
    driver.open()
    steps: list[Step] = [("many", name, 2, 900) for name in "fg"] * 2
    driver.run([("create", "f", "fsync"), ("create", "g", "fsync"), *steps, ("sync_all",)])
    driver.abandon()
    disk = driver.disk.crash(LOST)
    assert any(path.endswith(".journal") for path in disk.contents())
    holds(recovered(disk, driver.ledger))


def dying_everywhere(disk: SimulatedDisk, ledger: Ledger) -> None:
    """Recovery is cut short by another power cut, at each of its changes, and done again."""
    died: list[int] = []

    def watch(call: Call, when: str) -> None:
        recovered(disk.crash(LOST), ledger.copy())
        died.append(call.serial)

    disk.watch = watch
    recovered(disk, ledger.copy())
    disk.watch = None
    assert died


@pytest.mark.parametrize("times", [1, 2])
def test_a_gap_is_durable_before_the_shard_is_called_clean(times: int) -> None:
    """The second time the log behind the gap is empty, and makes way for another."""
    driver = Driver(SimulatedDisk(seed=6))
    driver.open()
    driver.run([("create", "d", "disk"), ("wait", "d"), ("reopen",), ("wait", "d")])
    for _ in range(times):
        driver.abandon()
        disk = driver.disk.crash(LOST)
        dying_everywhere(driver.disk.crash(LOST), driver.ledger)
        holds(recovered(disk, driver.ledger))
        driver = Driver(disk, driver.ledger)
        driver.ledger.settle(driver.open())
        disk.stop_at(3)  # offsets are set aside, and the record is about to be written
        with pytest.raises(Crash) as stop:
            driver.wait("d")
        driver.ledger.failed(stop.value)
    driver.abandon()


@pytest.mark.parametrize("name", ["topics/00000001/0000/notes.txt", "journal/00000007.journal"])
def test_what_is_set_aside_is_kept_and_does_not_come_back(name: str) -> None:
    driver = Driver(SimulatedDisk(seed=3))
    driver.open()
    driver.run([("create", "f", "fsync"), ("wait", "f")])
    driver.abandon()
    disk, path = driver.disk.kill(), f"{ROOT}/{name}"
    file = disk.open(path, "create")
    file.write(0, [b"mine"])
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])
    with esker.open(ROOT, files=disk, **OPTIONS) as store:
        store._context.forked = True  # so that nothing is done by closing it
    assert path not in disk.contents()
    assert b"mine" in disk.contents().values()
    holds(disk)


# ---- what died half-way ----------------------------------------------------------------------


def stopped_after(driver: Driver, name: str, steps: list[Step], inside: str = "") -> SimulatedDisk:
    """The process dies right behind a call; the machine goes on."""

    def watch(call: Call, when: str) -> None:
        if call.name == name and when == "after" and inside in str(call):
            driver.disk.stop_at(0, "after")

    driver.disk.watch = watch
    try:
        if driver.store is None:
            driver.open()
        driver.run(steps)
        raise AssertionError("it lived")
    except Crash:
        pass
    driver.disk.watch = None
    driver.abandon()
    return driver.disk.kill()


def test_a_topic_whose_deletion_was_interrupted_stays_deleted() -> None:
    driver = Driver(SimulatedDisk(seed=4))
    driver.open()
    driver.run([("create", "f", "fsync"), ("create", "g", "fsync"), ("wait", "f"), ("wait", "g")])
    disk = stopped_after(driver, "rename", [("drop", "f")], inside="deleted")
    with_it = esker.open(ROOT, files=disk, **OPTIONS)
    assert list(with_it) == ["g"]
    with_it._context.forked = True
    with_it.close()
    after = disk.crash(LOST)
    with esker.open(ROOT, files=after, **OPTIONS) as store:
        assert list(store) == ["g"]
        store.tick()
    assert not any("/00000001/" in path for path in after.contents())


def test_a_store_whose_maker_died_is_durable_before_a_record_in_it_is() -> None:
    """He made its directory, and did not live to sync the name."""
    ledger = Ledger()
    disk = stopped_after(Driver(SimulatedDisk(seed=5), ledger), "make_dir", [])
    driver = Driver(disk, ledger)
    driver.open()
    driver.run([("create", "f", "fsync"), ("wait", "f")])
    driver.abandon()
    recovered(driver.disk.crash(LOST), ledger)


def test_a_deletion_outlives_a_state_page_whose_maker_died() -> None:
    """He closed the shard for the first time, and did not live to sync the name of the page."""
    driver = Driver(SimulatedDisk(seed=7))
    driver.open()
    driver.run([("create", "f", "fsync"), *[("wait", "f")] * 4])
    disk = stopped_after(driver, "sync", [("close",)], inside="/state")
    after = Driver(disk, driver.ledger)
    driver.ledger.settle(after.open())
    after.run([("forget", "f")])
    after.abandon()
    recovered(disk.crash(LOST), driver.ledger)


# ---- repair ----------------------------------------------------------------------------------


def loaded(data: Path) -> SimulatedDisk:
    """A disk with all that is in a directory, durable."""
    disk = SimulatedDisk(seed=1)
    disk.make_dir(ROOT)
    for path in sorted(data.rglob("*")):
        inside = f"{ROOT}/{path.relative_to(data)}"
        if path.is_dir():
            disk.make_dir(inside)
            continue
        file = disk.open(inside, "create")
        file.write(0, [path.read_bytes()])
        file.sync()
        file.close()
    for folder in ("/", *disk.folders()):
        disk.sync_dir(folder)
    return disk


@pytest.mark.damages
@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "link"])
def test_what_a_repair_leaves_is_durable(damage: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    small_store(data)
    DAMAGE[damage][0](data)
    disk = loaded(data)
    holds(disk)
    assert esker.repair(ROOT, files=disk).ok
    holds(disk)
    assert set(disk.folders()) <= set(disk.crash(LOST).folders())
