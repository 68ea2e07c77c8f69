"""Every mutant of the zoo is killed by the tests that it names.

Each has a process of its own, on a copy of the source with one edit, until the first test fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites import FLOORS, Tallies
from tests.zoo.mutants import Mutant, mutants

pytestmark = [pytest.mark.crash, pytest.mark.suite, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = mutants()
SOURCE = ROOT / "src" / "esker"


def breed(mutant: Mutant, folder: Path) -> Path:
    """A copy of the source with the bug in it."""
    shutil.copytree(SOURCE, folder / "esker", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "esker" / mutant.file
    path.write_text(mutant.of(path.read_text()))
    return folder


def run(source: Path, tests: tuple[str, ...], scratch: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "ESKER_SCALE": "0.02",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
         "-p", "no:xdist", "--timeout", "60", "--basetemp", str(scratch), *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_there_are_enough_of_them_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= FLOORS["mutants"]
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_it_is_killed(mutant: Mutant, tmp_path: Path, tally: Tallies) -> None:
    suite = tally("mutants", lots=len(MUTANTS))
    ended = run(breed(mutant, tmp_path / "source"), mutant.tests, tmp_path / "scratch")
    assert ended.returncode != 0, f"{mutant.name}: it lives; {mutant.tests} let it pass"
    assert ended.returncode == 1, f"{mutant.name}: the tests did not run\n{ended.stdout[-3000:]}"
    suite.count += 1
