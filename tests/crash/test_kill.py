"""Real processes, real kills, a real kernel: what was written is there.

A child says on a pipe what it is about to do and what was acknowledged, and is killed: at every
call of a short workload to the operating system, at calls and at moments left to chance in the
life of one store, also while it recovers what the last death left. Each time the store is opened
and held against what the child had said. tests/crash/nursery.py has the children. What a kill
cannot show, the loss of the page cache, is what test_power_loss.py is for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import SCALE, SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

LOTS = 12


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lot", range(LOTS))
def test_what_a_killed_process_had_acknowledged_is_there(
    lot: int, fast: str, tmp_path: Path, tally: Tallies
) -> None:
    suite = tally("real kills", lots=LOTS)
    amounts = [scaled(part) for part in (190, 36, 46, 14)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.crash.nursery", fast, str(tmp_path), str(lot), str(SEED),
         *map(str, amounts)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    suite.count = told.pop("kills")
    assert told["acks"] or SCALE < 1, "no group ever acked"
    suite.also.update(told)
