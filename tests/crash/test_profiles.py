"""Other disks: kinder ones, ones that forget after an error, ones that lie, rot or write astray.

On a disk that does what it says, every promise holds, whatever its profile. On one that lies about
syncs anything may be missing after a power cut, but what is there is right, and nothing is missing
between in silence. The same is asked where a bit turned or a sector landed in a wrong place; and
after a clean close, when the store knows what it should have, nothing of that goes unnoticed.
"""

from __future__ import annotations

import errno
import random

import pytest

import esker
from esker.engine import committer
from esker.testing import (
    BTRFS_EIO,
    EXT4_ORDERED,
    LOST,
    LYING,
    SECTORS_4K,
    STRICT,
    Fate,
    Fault,
    Profile,
    SimulatedDisk,
)
from tests.crash.driver import Driver, Step, mixed
from tests.crash.explorer import COMES_BACK, Explorer
from tests.crash.ledger import Ledger, Outcome, look_at, read_around
from tests.suites import SEED, scaled

pytestmark = [pytest.mark.crash, pytest.mark.slow]

STEPS: list[Step] = [
    ("create", "f", "fsync"), ("create", "d", "disk"), ("wait", "f", 200), ("many", "d", 3, 300),
    ("many", "f", 4, 900), ("append", "f", 100), ("append", "d", 100), ("sync_all",),
    ("many", "d", 4, 900), ("wait", "f", 600), ("tick",), ("wait", "d", 40), ("sync", "d"),
    ("checkpoint",), ("wait", "f", 100), ("reopen",), ("many", "f", 2, 400, True), ("wait", "d"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def two_dirty_topics_use_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)


@pytest.mark.parametrize("profile", [EXT4_ORDERED, SECTORS_4K], ids=lambda profile: profile.name)
def test_a_disk_of_another_kind_breaks_no_promise(profile: Profile) -> None:
    explorer = Explorer(most=16, thorough=12, nested=60, profile=profile)
    explorer.explore(STEPS, seed=SEED)
    explorer.explore(mixed(random.Random(f"{profile.name} {SEED}"), 15), seed=SEED)
    assert explorer.states >= 300


@pytest.mark.parametrize("profile", [STRICT, BTRFS_EIO], ids=lambda profile: profile.name)
def test_a_sync_that_fails_once_breaks_no_promise_in_what_a_death_then_leaves(
    profile: Profile,
) -> None:
    explorer = Explorer(most=2, chances=1, thorough=40, profile=profile)
    failed = 0
    for at in range(1, scaled(60, least=20)):
        fault = Fault(errno.EIO, at, calls=frozenset({"sync", "sync_dir"}))
        explorer.explore(STEPS, seed=SEED, skip=2, fault=fault)
        failed += fault.hits
    assert failed >= 15
    assert explorer.states >= 100


def test_a_disk_that_lies_may_lose_anything_and_makes_nothing_up() -> None:
    explorer = Explorer(most=12, chances=12, profile=LYING)
    explorer.explore(STEPS, seed=SEED)
    for number in range(scaled(3)):
        chance = random.Random(f"lying {SEED} {number}")
        explorer.explore(mixed(chance, 15), seed=number)
    assert explorer.states >= 500


def opened(disk: SimulatedDisk, ledger: Ledger) -> Outcome | esker.EskerError:
    """What a damaged store shows, or how it refuses."""
    driver = Driver(disk)
    try:
        outcome = look_at(driver.open(), read_around)
    except (esker.Corruption, esker.NotAStore, esker.FormatTooNew) as problem:
        return problem
    finally:
        driver.abandon()
    ledger.judge_weakly(outcome)
    return outcome


def ran(seed: int, *, closed: bool) -> Driver:
    driver = Driver(SimulatedDisk(seed), seed=seed)
    driver.open()
    driver.run(mixed(random.Random(f"damage {seed}"), 12))
    if closed:
        driver.close()
    return driver


@pytest.mark.parametrize("how", ["misdirect", "rot"])
def test_damage_to_a_store_that_was_closed_is_never_silent_and_never_data(how: str) -> None:
    noticed = 0
    for number in range(scaled(40)):
        driver = ran(number, closed=True)
        for seed in range(8):
            disk = driver.disk.kill()
            where = disk.misdirect(seed) if how == "misdirect" else disk.rot(seed)
            story = f"store {number}, {how}({seed}): {where}"
            try:
                outcome = opened(disk.crash(LOST), driver.ledger)
                if isinstance(outcome, Outcome):
                    gone = driver.ledger.missing(outcome)
                    told = outcome.labels - COMES_BACK
                    assert not gone or told, f"{gone} are missing in silence"
                    noticed += bool(told or any(found.gaps for found in outcome.found.values()))
                else:
                    noticed += 1
            except BaseException as problem:
                problem.add_note(story)
                raise
    assert noticed >= scaled(100), "the damage was too kind"


@pytest.mark.parametrize("how", ["misdirect", "rot"])
def test_damage_beside_a_crash_is_never_data(how: str) -> None:
    for number in range(scaled(40)):
        driver = ran(number, closed=False)
        driver.abandon()
        for seed in range(8):
            disk = driver.disk.kill()
            if how == "misdirect":
                where = disk.misdirect(seed)
                disk = disk.crash(Fate(seed))
            else:
                disk = disk.crash(Fate(seed))
                where = disk.rot(seed)  # type: ignore[assignment]
            try:
                opened(disk, driver.ledger)
            except BaseException as problem:
                problem.add_note(f"store {number}, {how}({seed}): {where}")
                raise
