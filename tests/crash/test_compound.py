"""Everything at once: a store that lives through failing calls, kills and power cuts.

Each life opens the store (perhaps while calls fail), checks it against the ledger, works on it
(while others fail), and ends by being closed, by a kill or by a power cut, perhaps in the middle of
a recovery or of a close. The disks of every fifth seed show old content after a failed sync.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Any

import pytest

import esker
from esker.testing import CORNERS, Crash, Fate, Fault, SimulatedDisk
from tests.crash.driver import Driver, mixed
from tests.crash.ledger import Death, Ledger

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ERRORS = (errno.EIO, errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)
LIVES = 7


class Saga:
    """One store and all its lives."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"saga {seed}")
        self.seed = seed
        self.disk = SimulatedDisk(seed)
        self.disk.reverts = seed % 5 == 0
        self.ledger = Ledger()
        self.serial = 0
        self.worst: Death = "kill"  # since the ledger was last settled
        self.states = 0
        self.story: list[Any] = []

    def run(self) -> int:
        for life in range(LIVES):
            try:
                self.live(life, last=life + 1 == LIVES)
            except BaseException as problem:
                problem.add_note(f"seed {self.seed}: {self.story}")
                raise
        return self.states

    def live(self, life: int, *, last: bool) -> None:
        chance, disk = self.chance, self.disk
        driver = Driver(disk, self.ledger, seed=self.seed * 100 + life)
        driver.serial = self.serial
        if not last and chance.random() < 0.6:
            disk.stop_at(chance.choice((20, 60, 150, 400)), chance.choice(("before", "after")))
        try:
            if not last and chance.random() < 0.2:
                self.fail(forever=0.3)
                with suppress(esker.EskerError):
                    driver.open()
                driver.abandon()
                self.disk = disk = driver.disk = disk.kill()
            self.open(driver)
            if not last:
                self.work(driver)
            with suppress(esker.EskerError):
                driver.close()
        except Crash as crash:
            self.story.append(str(crash))
        driver.abandon()
        self.serial = driver.serial
        disk.heal()
        if disk.reverts:
            self.worst = "power"  # a failed sync may have cost as much
        if chance.random() < 0.4:
            self.disk = disk.kill()
        else:
            fates = (*CORNERS, Fate(chance.randrange(1 << 30)))
            self.disk, self.worst = disk.crash(chance.choice(fates)), "power"

    def open(self, driver: Driver) -> None:
        self.disk.heal()
        store = driver.open()
        self.ledger.settle(store, self.ledger.check(store, self.worst))
        self.worst = "kill"
        self.states += 1

    def fail(self, forever: float) -> None:
        chance = self.chance
        fault = Fault(
            chance.choice(ERRORS), chance.randrange(1, 80), forever=chance.random() < forever
        )
        self.disk.fail(fault)
        self.story.append((fault.number, fault.at, fault.forever))

    def work(self, driver: Driver) -> None:
        for _ in range(self.chance.randrange(3)):
            self.fail(forever=0.15)
        for step in mixed(self.chance, 20, wide=self.seed % 2 == 1):
            self.story.append(step)
            if step[0] not in ("create",) and len(step) > 1 and step[1] not in self.ledger.pages:
                continue  # it could not be made
            if step[0] == "reopen":
                with suppress(esker.EskerError):
                    driver.close()
                self.worst = "power" if self.disk.reverts else "kill"
                self.open(driver)
                continue
            try:
                driver.run([step])
            except esker.EskerError as problem:
                self.ledger.failed(problem)
                self.story.append(type(problem).__name__)


@pytest.mark.parametrize("lot", range(4))
def test_no_promise_is_broken_by_faults_and_deaths_together(lot: int) -> None:
    states = sum(Saga(seed).run() for seed in range(lot * 25, lot * 25 + 25))
    assert states >= 120
