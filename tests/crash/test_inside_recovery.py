"""Recovery that dies: around each of its own changes, and is done again.

States that workloads leave are opened on a disk that is watched. Around every change that the
recovery makes stand the states that a second death would leave there; each is recovered once more
and held against the ledger. Every fiftieth of these dies a third time.
"""

from __future__ import annotations

import random

import pytest

from esker.engine import committer
from tests.crash.driver import mixed
from tests.crash.explorer import Explorer
from tests.suites import SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

LOTS = 4
TARGET = 5_250


@pytest.mark.parametrize("lot", range(LOTS))
def test_a_recovery_may_die_anywhere_and_is_done_again(
    lot: int, tally: Tallies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)
    suite = tally("crashes inside recovery", lots=LOTS)
    explorer = Explorer(most=2, chances=1, nested=4)
    chance = random.Random(f"inside recovery {SEED} {lot}")
    explorer.enough = scaled(TARGET)
    while explorer.double < explorer.enough:
        explorer.explore(mixed(chance, 25, deleting=True), seed=chance.randrange(1 << 30))
    suite.count = explorer.double
    suite.also.update(explorer.also)
    suite.also["first deaths"] = explorer.states
