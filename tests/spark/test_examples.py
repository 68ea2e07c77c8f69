"""The examples run as their first lines say, and docs/howto/spark.md as it is pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str, data: Path, sooner: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(data)],
        capture_output=True, text=True, check=False, timeout=110,
        env={**os.environ, **sooner},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_the_batch_job(tmp_path: Path, sooner: dict[str, str]) -> None:
    told = run("spark_batch.py", tmp_path / "data", sooner)
    total = {name: sum(n % 7 for n in range(30_000) if n % 3 == at)
             for at, name in enumerate(("tea", "milk", "scones"))}  # fmt: skip
    for name, turnover in total.items():
        assert f'{{"product":"{name}","turnover":{turnover}}}' in told


def test_the_streaming_job_goes_on_where_it_stopped(tmp_path: Path, sooner: dict[str, str]) -> None:
    data = tmp_path / "data"
    assert "500 errors in 5000 events" in run("spark_stream.py", data, sooner)
    assert "1000 errors in 10000 events" in run("spark_stream.py", data, sooner)


@pytest.mark.timeout(300)  # a JVM, and two queries in it
def test_the_page_for_those_who_come_with_spark(tmp_path: Path, sooner: dict[str, str]) -> None:
    page = ROOT / "docs" / "howto" / "spark.md"
    told = pages.run(page, tmp_path, env=sooner, seconds=250)
    assert "|    tea|                    29994|" in told
    assert "group 'turnover' of 'orders':" in told
    assert "10000 records copied" in told
