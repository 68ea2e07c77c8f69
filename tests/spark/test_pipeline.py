"""The declarative pipeline of examples/pipeline, run by Spark's own command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import esker
import esker.spark

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "pipeline"

LEAN = (  # no more tasks than this little data needs
    "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false",
)  # fmt: skip


def run(folder: Path, data: Path, sooner: dict[str, str]) -> None:
    """`spark-pipelines run`, with all that it leaves behind in `folder`."""
    command = Path(sys.executable).with_name("spark-pipelines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", sooner["XDG_CACHE_HOME"])
        variables = {**os.environ, **esker.spark.environment(), **sooner, "ESKER_DATA": str(data)}
    ended = subprocess.run(
        [str(command), *LEAN, "--conf", "spark.sql.catalogImplementation=hive",
         "run", "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=220,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]


def append(data: Path, first: int, count: int) -> None:
    with esker.open(data) as store:
        store["orders"].append_many(
            [
                b'{"product": "p%d", "price": %d}' % (n % 3, n % 50)
                for n in range(first, first + count)
            ],
            wait=True,
        )


def expensive(data: Path) -> Counter[int]:
    with esker.open(data, mode="r") as store:
        return Counter(json.loads(record.value)["offset"] for record in store["expensive"].read())


@pytest.mark.slow
@pytest.mark.timeout(480)  # two starts of Spark, of a server each
def test_each_run_takes_what_is_new_exactly_once(tmp_path: Path, sooner: dict[str, str]) -> None:
    folder, data = tmp_path / "project", tmp_path / "data"
    shutil.copytree(PROJECT, folder)
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/esker-pipeline" in text
    spec.write_text(text.replace("file:///tmp/esker-pipeline", f"file://{tmp_path}/storage"))
    append(data, 0, 1000)
    run(folder, data, sooner)
    assert expensive(data) == {n: 1 for n in range(1000) if n % 50 >= 40}
    append(data, 1000, 300)
    run(folder, data, sooner)
    assert expensive(data) == {n: 1 for n in range(1300) if n % 50 >= 40}
    with esker.open(data, mode="r") as store:
        record = store["expensive"][0]
        assert (record.key, record.timestamp) == (
            b"p%d" % (40 % 3), store["orders"][40].timestamp,
        )  # fmt: skip
