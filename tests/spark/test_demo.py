"""The demo with Spark: what it adds up and archives is counted like everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import esker
from esker.demo.crew import Crew
from esker.demo.goods import ORDERS, REVENUE, order
from tests.demo.running import alive, children
from tests.helpers import wait_until

PATIENCE = 560.0
CODE = "import sys, esker.demo; sys.exit(esker.demo.run(sys.argv[1], fast=True, spark=True))"


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_spark_made_of_the_shop_is_what_the_shop_sold(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "demo")],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ revenue by Spark: the orders, added up" in done.stdout
    assert "✓ archive by Spark: " in done.stdout
    assert done.stdout.rstrip().endswith("acknowledged lost: 0")
    with esker.open(tmp_path / "demo" / "data", "r") as store:
        assert store[REVENUE].end() > 0
    assert list((tmp_path / "demo" / "data" / "archive").rglob("*.parquet"))


@pytest.mark.crash
def test_nothing_of_spark_is_left_when_the_demo_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with esker.open(tmp_path / "data") as store:
        store[ORDERS].append(order(1, 0, 0), wait=True)
    with Crew() as crew:  # whatever ends the block
        spark = crew.start("Spark", "pipeline", tmp_path / "data", tmp_path / "notes", 1)
        steps = tmp_path / "notes" / "001.spark"
        wait_until(lambda: steps.exists() and "upto" in steps.read_text(), "a session")
        started = {spark.pid} | children(spark.pid)
        assert len(started) > 1  # a JVM
    wait_until(lambda: not any(map(alive, started)), "the end of Spark")
