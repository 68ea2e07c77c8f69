"""The benchmark runs from end to end, at sizes where its figures mean nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import run
from bench.measure import COLUMNS

pytestmark = [pytest.mark.bench, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]

# Every operation, as a pattern for the numbers in it, with its unit and how many goals it has.
EXPECTED = [
    ("append one by one, flushed every 4,000", "ns/record", 2),
    ("append_many of 1,000", "ns/record", 2),
    ("append_many of 1,000 with an idempotency key", "ns/record", 1),
    ("append_arrow of 10,000 rows; raw: .*", "ns/record", 2),
    ("read, verified, to Arrow: sealed segments", "ns/record", 2),
    ("read, verified, to Arrow: active segment", "ns/record", 2),
    ("read, verified, to Arrow: sealed, written by 1,000", "ns/record", 2),
    ("read, verified, to Python bytes", "ns/record", 1),
    ("read, verified, to Record objects", "ns/record", 0),
    (r"append\(wait=True\), class disk", "µs", 1),
    (r"append\(wait=True\), class fsync; raw: .*", "µs", 1),
    (r"durable append, \d+ threads", "µs", 1),
    (r"[\d,]+ topics, 1 durable append each, first round", "syncs", 1),
    (r"[\d,]+ topics, 1 durable append each, later round", "syncs", 1),
    (r"recovery of [\d,]+ records after kill -9", "s", 1),
    (r"random lookup in [\d,]+ records, warm", "µs", 1),
    (r"open of [\d,]+ segments, first and last record read", "ms", 1),
    ("append one by one, with 1 segment behind it", "ns/record", 0),
    ("append one by one, with 10 segments behind it", "ns/record", 1),
    (r"[\d.]+ GB read end to end: resident growth", "MB", 1),
    ("append_many of 1,000 with zstd, JSON telemetry", "ns/record", 1),
    ("the same, sealed", "MB", 1),
    (r"delete [\d,]+ of [\d,]+ records by tag, durably", "ms", 1),
    (r"evict [\d,]+ segments; raw: .*", "s", 1),
    (r"append\(wait=True\), 99th of a hundred, meanwhile", "µs", 1),
    (r"archive [\d,]+ MB of JSON telemetry, time of a core", "ms/MB", 1),
    (r"append\(wait=True\), 99th of a hundred, cold store answers in 2 s", "µs", 1),
    (r"read a cold segment of \d+ MiB from a directory; raw: .*", "ms", 1),
    (r"read a cold segment of \d+ MiB from S3 on this machine; raw: .*", "ms", 1),
    ("group: poll and ack in batches of 1,000", "ns/record", 1),
    ("group: ack of a batch", "µs", 1),
    ("claim and ack jobs, in batches of 100", "µs/job", 2),
    ("claim and ack jobs, one by one", "µs/job", 1),
    (r"claim and ack 100 jobs, [\d,]+ ready and [\d,]+ leased; raw: .*", "µs", 1),
    (r"[\d,]+ jobs ready and [\d,]+ leased: resident", "MB", 1),
    ("route: all", "ns/record", 1),
    ("route: by tag", "ns/record", 1),
    ("route: by a JSON field", "ns/record", 0),
    ("route: all, exactly once", "ns/record", 1),
    ("route: p99 of an append to a source of 100 routes", "µs", 1),
    *(
        (f"kin: read {kind}, records of {lengths}", "ms/MB", 1)
        for lengths in ("one length", "many lengths")
        for kind in ("rustlog", "cursus", "comet", "topics", "aof2")
    ),
    *(
        (f"kin: import 1 GB of {kind}", "s/GB", 1)
        for kind in ("rustlog", "cursus", "comet", "topics", "aof2")
    ),
]


def bench(*arguments, folder):
    command = [sys.executable, "-W", "error", "-m", "bench.run", "--smoke", *arguments]
    places = ["--dir", folder / "work", "--results", folder / "results"]
    # what this process can import, that one can, too, wherever it was installed
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [*command, *places], cwd=ROOT, env=paths, capture_output=True, text=True, check=False
    )


def test_a_smoke_run_prints_and_writes_every_operation(tmp_path):
    done = bench(folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr  # such as a file that nobody closed
    [written] = (tmp_path / "results").iterdir()
    assert written.name.endswith("-smoke.json")
    rows = json.loads(written.read_text(encoding="utf-8"))["rows"]
    found = [(row["operation"], row["unit"], len(row["goals"])) for row in rows]
    assert len(found) == len(EXPECTED)
    for (operation, unit, goals), (pattern, *rest) in zip(found, EXPECTED, strict=True):
        assert re.fullmatch(pattern, operation)
        assert [unit, goals] == rest
        assert any(line.startswith(operation) for line in done.stdout.splitlines())
    for row in rows:
        assert isinstance(row["figures"]["esker"], float | int), row
        assert all(goal["met"] in (True, False) for goal in row["goals"]), row


def test_progress_goes_to_standard_error_and_nothing_is_left_behind(tmp_path):
    done = bench("--only", "disk", "growth", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "disk (1 of 2)" in done.stderr
    assert "of 2)" not in done.stdout
    assert list((tmp_path / "work").iterdir()) == []


def test_an_unknown_operation_is_refused_with_the_known_ones(tmp_path):
    done = bench("--only", "sing", folder=tmp_path)
    assert done.returncode == 2
    assert "append_arrow" in done.stderr


def test_an_operation_that_fails_costs_only_its_own_figures(tmp_path, monkeypatch, capsys):
    def broken(setting):
        raise RuntimeError("no such luck")

    monkeypatch.setitem(run.OPERATIONS, "append", broken)
    places = ["--dir", str(tmp_path), "--results", str(tmp_path / "results")]
    assert run.main(["--smoke", "--only", "append", "disk", *places]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"^append .*failed", out, re.MULTILINE)
    assert "class disk" in out
    assert "no such luck" in err
    [written] = (tmp_path / "results").iterdir()
    assert "no such luck" not in written.read_text(encoding="utf-8")  # it may name a directory


def test_the_columns_of_the_table_are_those_of_the_stores():
    assert tuple(run.STORES) == COLUMNS
