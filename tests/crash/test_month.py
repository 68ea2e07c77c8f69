"""A month of telemetry through caps, ages, deletions, tiers and archive, and two hundred kills.

After each death every record that was acknowledged is there, deleted on request, or named in a gap,
by books that share no code with the engine: see month.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import SEED, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

DEATHS = 200


@pytest.mark.timeout(600)
def test_every_record_of_a_month_is_accounted_for(fast: str) -> None:
    deaths = scaled(DEATHS)
    run = subprocess.run(
        [sys.executable, "-m", "tests.crash.month", fast, str(SEED), str(deaths)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["kills"] >= deaths
    assert told["days"] >= 30
    if deaths >= DEATHS:  # all of it happened, and the deaths were in the midst of it
        for name in ("evicted", "deleted on request", "archived records", "erased", "forgotten"):
            assert told[name] > 20, name
        for to in ("cold", "hot"):
            assert told[f"segments moved to {to}"] > 5, to
        assert told["segments moved to keep a bound"] > 5
        assert told["trying"] > told["wrote"], "nobody died while he appended"
        assert told["erasing"] > told["erased"], "nobody died while he deleted"
