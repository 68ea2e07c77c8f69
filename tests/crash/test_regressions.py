"""States that once broke a promise, replayed before anything else is explored.

A file of tests/regressions is what a `Violation` prints (see explorer.py), with a word on what was
wrong: the steps, and for each death, the first while the steps were done and others while the store
was recovered, the change around which it came and what it left (nothing: it was a kill). A file
stays when its bug is fixed. As the engine changes, the same numbers lead to a neighbouring state,
which is a legal one too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esker.engine import committer
from esker.testing import PROFILES, Call, Crash, Fate, SimulatedDisk
from tests.crash.driver import Driver
from tests.crash.explorer import Explorer

FILES = sorted((Path(__file__).parents[1] / "regressions").glob("*.json"))

pytestmark = [pytest.mark.crash]


def stopped(driver: Driver, steps: list[Any], place: dict[str, Any]) -> SimulatedDisk:
    """What is left of a driver's disk after it died at a place."""
    disk = driver.disk

    def watch(call: Call, when: str) -> None:
        if call.serial == place["call"] and when == place["when"]:
            disk.stop_at(0, when)  # type: ignore[arg-type]

    disk.watch = watch
    try:
        driver.open()
        driver.run(steps)
    except Crash:
        pass
    finally:
        disk.watch = None
        driver.abandon()
    fate = place["fate"]
    if fate is None:
        return disk.kill()
    return disk.crash(Fate.exact(fate["outcomes"], fate["filling"]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_once_went_wrong_does_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = json.loads(path.read_text())
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", story.get("journal_from", 1))
    explorer = Explorer(profile=PROFILES[story["profile"]])
    driver = Driver(SimulatedDisk(story["seed"], explorer.profile), seed=story["seed"])
    steps = [tuple(step) for step in story["steps"]]
    first, *later = story["deaths"]
    disk = stopped(driver, steps, first)
    for place in later:
        disk = stopped(Driver(disk), [], place)
    power = any(place["fate"] is not None for place in story["deaths"])
    explorer.judge(
        disk, driver.ledger, "power" if power else "kill", thorough=True, reported=not later
    )
