"""Large stores: what reading one keeps in memory, and what appending to one costs."""

from __future__ import annotations

import math
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import esker
from bench.append import ARROW_ROWS, arrow_batch
from bench.measure import Goal, Row, residency_growth
from bench.peers import COMMIT_EVERY
from bench.setting import NS, Setting, in_batches, random_values
from bench.subject import TOPIC, VALUE_BYTES, Esker

GB = 10**9
FREE_NEEDED = 25 * GB  # twice the store, and something to breathe
MARKS = (1, 10, 100)  # segments behind the one that is being filled


def memory(setting: Setting) -> Iterator[Row]:
    """Resident growth at its highest, mapped pages included, in a process that only reads."""
    wanted = setting.size(10 * GB, 20_000_000)
    free = shutil.disk_usage(setting.directory).free
    size = wanted if setting.smoke or free >= FREE_NEEDED else int(free * 0.4)
    rounds = max(1, size // (VALUE_BYTES * ARROW_ROWS))
    records = rounds * ARROW_ROWS
    if size < wanted:
        setting.say(f"  only {free / GB:.0f} GB are free: a store of {size / GB:.1f} GB instead")
    path = setting.fresh("large")
    distinct = setting.size(32, 2)
    batches = [arrow_batch(v) for v in in_batches(random_values(distinct * ARROW_ROWS), ARROW_ROWS)]
    start = time.perf_counter()
    with closing(Esker(path)) as store:
        for at in range(rounds):
            store.append_arrow([batches[at % distinct]])
            if (at + 1) % 2_000 == 0:
                setting.say(f"  written {(at + 1) * ARROW_ROWS * VALUE_BYTES / GB:.1f} GB")
    written = time.perf_counter() - start
    stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    setting.say(f"  reading {stored / GB:.1f} GB in a process of its own")
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_read_it_all, args=(path, there))
    child.start()
    there.close()
    found, grown, seconds = here.recv()
    child.join()
    setting.drop(path)
    if found != records:
        raise RuntimeError(f"read {found:,} records of {records:,}")
    yield Row(
        f"{stored / GB:.2g} GB read end to end: resident growth",
        {Esker.name: None if grown is None else grown["peak_bytes"] / 1e6},
        (Goal.at_most(150),),
        unit="MB",
        details={
            "records": records, "scaled_down": size < wanted,
            "write_seconds": round(written, 2), "read_seconds": round(seconds, 2),
            **(grown or {}),
        },
    )  # fmt: skip


def _read_it_all(path: Path, answer: Connection) -> None:
    """In a fresh process, where nothing else moves the figure."""

    def run() -> int:
        with esker.open(path) as store:
            return sum(batch.arrow.num_rows for batch in store[TOPIC].batches("earliest"))

    start = time.perf_counter()
    found, grown = residency_growth(run)
    seconds = time.perf_counter() - start
    kept = None if grown is None else {
        "peak_bytes": grown.peak_bytes, "anonymous_bytes": grown.anonymous_bytes,
        "file_bytes": grown.file_bytes,
    }  # fmt: skip
    answer.send((found, kept, seconds))
    answer.close()


def growth(setting: Setting) -> Iterator[Row]:
    """One topic is filled one by one; the clock runs while it fills single segments on its way.

    A segment is rolled and sealed as often inside the clock as outside of it, so each figure has
    its share of that. Small segments, or it would take an hour.
    """
    marks = [mark for mark in MARKS if mark <= setting.size(100, 10)]
    commits = setting.size(10, 1)
    values = random_values(commits * COMMIT_EVERY)
    best = dict.fromkeys(marks, math.inf)
    for _ in range(setting.size(5, 2)):
        path = setting.fresh("growth")
        with closing(Esker(path, segment_records=len(values))) as store:
            for segment in range(max(marks) + 1):
                start = time.perf_counter()
                store.append_one_by_one(values)
                if segment in best:
                    best[segment] = min(best[segment], time.perf_counter() - start)
        setting.drop(path)
    costs = {mark: seconds / len(values) / NS for mark, seconds in best.items()}
    base = f"{marks[0]} segment"
    for mark, cost in costs.items():
        yield Row(
            f"append one by one, with {mark} segment{'s' * (mark > 1)} behind it",
            {Esker.name: cost, **({base: costs[marks[0]]} if mark > 1 else {})},
            (Goal.times_slower(1.25, than=base),) if mark == marks[-1] else (),
            details={"records": len(values)},
        )
