"""The demo with Spark: what it adds up and archives is counted like everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import esker
from esker.demo.goods import REVENUE

PATIENCE = 280.0
CODE = "import sys, esker.demo; sys.exit(esker.demo.run(sys.argv[1], fast=True, spark=True))"


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_spark_made_of_the_shop_is_what_the_shop_sold(
    tmp_path: Path, sooner: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "demo")],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False, text=True,
        env=sooner,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ revenue by Spark: the orders, added up" in done.stdout
    assert "✓ archive by Spark: " in done.stdout
    assert done.stdout.rstrip().endswith("acknowledged lost: 0")
    with esker.open(tmp_path / "demo" / "data", "r") as store:
        assert store[REVENUE].end() > 0
    assert list((tmp_path / "demo" / "data" / "archive").rglob("*.parquet"))
