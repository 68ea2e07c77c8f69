"""The examples run as their first lines say; those of Spark are in tests/spark/test_examples.py."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import esker

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))


def run(name: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, words)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_it_is_run(program: Path) -> None:
    text = program.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert f"python examples/{program.name}" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.slow
def test_telemetry_arrives_although_the_collector_fails(tmp_path: Path) -> None:
    told = run("telemetry.py", tmp_path / "data")
    assert "HTTP Error 503" in told
    assert "left to ship: 0" in told
    assert "collector: 4000 readings in " in told
    assert "collector: 4000 readings in " in run("telemetry.py", tmp_path / "data")


@pytest.mark.slow
@pytest.mark.crash
def test_work_is_done_although_a_worker_is_killed(tmp_path: Path) -> None:
    told = run("workers.py", tmp_path / "data")
    assert "a worker is holding photo-0.jpg, and is killed" in told
    assert "39 of 40 done, 1 of them at a second try, 0 left" in told
    assert "dead: [('photo-13.jpg', 'ValueError: not a picture')]" in told


def test_a_browser_that_was_away_gets_what_it_missed(tmp_path: Path) -> None:
    told = run("event_log.py", tmp_path / "data", "--try")
    assert """first connection: ['{"product":"tea"}']""" in told
    assert """and when it is back: ['{"product":"milk"}', '{"product":"scones"}']""" in told
    with esker.open(tmp_path / "data", mode="r") as store:
        assert len(store["orders"]) == 3
