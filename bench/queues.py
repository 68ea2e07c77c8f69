"""Queues: claiming and acking jobs, in batches and one by one, and with very many of them waiting.

Beside it, a queue in SQLite, made the way libraries do it that stand on SQLite (litequeue,
persist-queue): a table of jobs with an index on their state, a claim by one UPDATE that returns
what it took, an ack by another. WAL and synchronous=NORMAL: like class `disk`, nobody waits for the
disk, and a crash of the process loses nothing. Those libraries hand out one job at a time, so that
is what the column has in both lines; what SQLite can do in batches is in the file. They add Python
of their own, and are not measured themselves, because they are not a part of the environment.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import esker
from bench.measure import Goal, Row, residency_growth
from bench.setting import US, Setting, random_values
from bench.subject import TOPIC, Esker

BATCH = 100


class Table:
    """A queue in SQLite."""

    def __init__(self, path: Path, values: Sequence[bytes]) -> None:
        self._base = sqlite3.connect(path, isolation_level=None)
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("pragma synchronous=normal")
        self._base.execute(
            "create table jobs (id integer primary key, value blob, state integer default 0, "
            "until real default 0, deliveries integer default 0)"
        )
        self._base.execute("create index waiting on jobs (state, id)")
        self._base.execute("begin")
        self._base.executemany("insert into jobs (value) values (?)", ((v,) for v in values))
        self._base.execute("commit")

    def step(self, count: int) -> int:
        """Claim and ack so many."""
        jobs = self._base.execute(
            "update jobs set state=1, until=?, deliveries=deliveries+1 where id in "
            "(select id from jobs where state=0 order by id limit ?) returning id, value",
            (time.time() + 30, count),
        ).fetchall()
        if len(jobs) == 1:
            self._base.execute("update jobs set state=2 where id=? and state=1", jobs[0][:1])
        else:
            self._base.execute("begin")
            self._base.executemany(
                "update jobs set state=2 where id=? and state=1", [job[:1] for job in jobs]
            )
            self._base.execute("commit")
        return len(jobs)

    def close(self) -> None:
        self._base.close()


def _step(queue: esker.Queue, count: int) -> int:
    jobs = queue.claim(count)
    queue.ack(jobs)
    return len(jobs)


def _per_job(step: Any, jobs: int, size: int) -> float:
    """Seconds for each of so many jobs."""
    done, start = 0, time.perf_counter()
    while done < jobs:
        done += step(size)
    return (time.perf_counter() - start) / done


def throughput(setting: Setting) -> Iterator[Row]:
    """Esker and SQLite in turns, the best of each."""
    sizes = {BATCH: setting.size(100_000, 400), 1: setting.size(10_000, 50)}
    mine = dict.fromkeys(sizes, float("inf"))
    theirs = dict.fromkeys(sizes, float("inf"))
    values = random_values(sizes[BATCH] + BATCH)
    for _ in range(setting.size(3, 1)):
        for size, jobs in sizes.items():
            path = setting.fresh("queue")
            with esker.open(path) as store:
                queue = store.queue(TOPIC)
                queue.put_many(values)
                took = _per_job(lambda count, queue=queue: _step(queue, count), jobs, size)
                mine[size] = min(mine[size], took)
            setting.drop(path)
            path = setting.fresh("table")
            path.mkdir(parents=True)
            table = Table(path / "jobs", values)
            theirs[size] = min(theirs[size], _per_job(table.step, jobs, size))
            table.close()
            setting.drop(path)
    for size, limit in ((BATCH, 10), (1, 50)):
        how = "one by one" if size == 1 else f"in batches of {size}"
        goal = Goal.at_most(limit)
        yield Row(
            f"claim and ack jobs, {how}",
            {Esker.name: mine[size] / US, "sqlite": theirs[1] / US},
            (goal,) if size == 1 else (goal, Goal.times_faster(10, than="sqlite")),
            unit="µs/job",
            details={
                "jobs": sizes[size], "jobs_per_second": round(1 / mine[size]),
                "sqlite_in_batches_us": theirs[BATCH] / US,
            },
        )  # fmt: skip


def depth(setting: Setting) -> Iterator[Row]:
    """Claims with ten million jobs waiting and a hundred thousand held, and with few; memory."""
    ready, leased = setting.size(10_000_000, 20_000), setting.size(100_000, 500)
    path, few = setting.fresh("deep"), setting.fresh("few")
    values = random_values(100_000 if not setting.smoke else 1_000)
    for place, jobs in ((path, ready), (few, len(values))):
        with esker.open(place) as store:
            queue = store.queue(TOPIC, lease="1d")
            for _ in range(0, jobs, len(values)):
                queue.put_many(values)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_deep, args=(path, few, leased, setting.size(400, 5), there))
    child.start()
    there.close()
    deep, shallow, peak = here.recv()
    child.join()
    setting.drop(path)
    setting.drop(few)
    yield Row(
        f"claim and ack {BATCH} jobs, {ready:,} ready and {leased:,} leased; raw: few of both",
        {Esker.name: deep / US, "raw": shallow / US},
        (Goal.times_slower(1.25, than="raw"),),
        unit="µs",
        details={"ready": ready, "leased": leased},
    )
    yield Row(
        f"{ready:,} jobs ready and {leased:,} leased: resident",
        {Esker.name: None if peak is None else peak / 1e6},
        (Goal.at_most(200),),
        unit="MB",
    )


def _deep(path: Path, few: Path, leased: int, rounds: int, answer: Connection) -> None:
    """In a fresh process, where nothing else takes memory."""

    def run() -> tuple[float, float]:
        with esker.open(path) as store, esker.open(few) as other:
            queue, shallow = store.queue(TOPIC), other.queue(TOPIC)
            for _ in range(0, leased, BATCH):
                queue.claim(BATCH)
            taken: dict[str, list[float]] = {"deep": [], "few": []}
            for _ in range(rounds):  # in turns: whatever else the machine does, it does to both
                for name, each in (("deep", queue), ("few", shallow)):
                    start = time.perf_counter()
                    _step(each, BATCH)
                    taken[name].append(time.perf_counter() - start)
            return statistics.median(taken["deep"]), statistics.median(taken["few"])

    (deep, shallow), _ = residency_growth(run)
    answer.send((deep, shallow, _peak_bytes()))
    answer.close()


def _peak_bytes() -> int | None:
    """The most that this process ever had resident."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), None)


def queues(setting: Setting) -> Iterator[Row]:
    yield from throughput(setting)
    yield from depth(setting)
