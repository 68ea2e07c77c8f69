"""What more segments and more shards cost a query in Spark, and what a large store costs a driver.

The same million records of 200 bytes lie in 1, 10, 100 and 1,000 segments, and in 1, 10 and 100
shards; each is read as a whole. Then a process of its own plans a read over 100,000 segments, and
tells how long that took and how much memory. These are in memory (/dev/shm) where there is one:
making so many files is not what is measured.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import esker

REPEATS = 3
SEGMENTS = (1, 10, 100, 1_000)
SHARDS = (10, 100)
SHM = Path("/dev/shm")
PLANS = """
import re, sys, time
from esker.clock import SYSTEM_CLOCK
from esker.spark import plan
from esker.spark.wanted import wanted

def used():  # not ru_maxrss, which knows what the parent had when it forked
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

before, begun = used(), time.perf_counter()
asked = wanted(
    {"path": sys.argv[1], "subscribe": "t"}, now_us=SYSTEM_CLOCK.now_us(), streaming=False
)
found = plan.divide(plan.spans(asked))
print(time.perf_counter() - begun, before, used(), len(found))
"""


class Scan(NamedTuple):
    """The same records, laid out in one way."""

    layout: str
    seconds: float
    ratio: float  # to one segment of one shard


class Plan(NamedTuple):
    """What it takes to plan a read over many segments."""

    segments: int
    seconds: float
    before_mb: int
    peak_mb: int


def scans(spark: Any, folder: Path, records: int) -> list[Scan]:
    """Seconds of a full scan, by how many segments and shards the records lie in."""
    layouts = {f"{count:,} segments": (count, 1) for count in SEGMENTS}
    layouts |= {f"{count:,} shards": (count, count) for count in SHARDS}
    found: list[Scan] = []
    for name, (segments, shards) in layouts.items():
        place = folder / f"scale-{segments}-{shards}"
        _fill(place, records, segments, shards)
        seconds = _scan(spark, place)
        found.append(Scan(name, seconds, seconds / found[0].seconds if found else 1.0))
        shutil.rmtree(place)
    return found


def _fill(place: Path, records: int, segments: int, shards: int) -> None:
    each = max(1, records // segments)
    values = pa.array([b"x" * 200] * each)
    with esker.open(place) as store:
        topic = store.create(
            "t", shards=shards, segment_bytes="1GiB", segment_records=max(1, records // segments)
        )
        for _ in range(segments):  # batches without keys go from shard to shard
            topic.append_arrow(pa.table({"value": values}))


def _scan(spark: Any, place: Path) -> float:
    taken = []
    for turn in range(REPEATS + 1):
        begun = time.perf_counter()
        rows = spark.read.format("esker").options(
            subscribe="t", columns="value", valueFormat="string"
        )
        rows.load(str(place)).selectExpr("sum(crc32(value))").collect()
        if turn:
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def planning(folder: Path, segments: int) -> Plan:
    """Plan a read over so many segments, in a process of its own."""
    place = Path(tempfile.mkdtemp(prefix="esker-bench-", dir=SHM if SHM.is_dir() else folder))
    try:
        with esker.open(place / "data", background=False) as store:
            topic = store.create("t", durability="memory", segment_records=1)
            for number in range(segments):
                topic.append_many([b"x" * 100])
                if number % 1_000 == 999:
                    store.tick()
        done = subprocess.run(
            [sys.executable, "-c", PLANS, str(place / "data")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        shutil.rmtree(place)
    seconds, before, peak, _ = done.stdout.split()
    return Plan(segments, float(seconds), int(before), int(peak))


def table(found: list[Scan], plan: Plan) -> str:
    rows = [f"{'one million records in':<40}{'seconds':>9}{'of one':>8}", "-" * 57]
    rows += [f"{scan.layout:<40}{scan.seconds:>9.2f}{scan.ratio:>7.2f}x" for scan in found]
    met = "yes" if plan.peak_mb <= 500 else "NO"
    rows.append(
        f"planning {plan.segments:,} segments: {plan.seconds:.1f} s, {plan.peak_mb} MB "
        f"({plan.before_mb} before it); goal ≤ 500 MB: {met}"
    )
    return "\n".join(rows)
