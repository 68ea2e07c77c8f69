"""Queues: claiming and acking jobs, in batches and one by one, and with very many of them waiting.

Beside it, in the same run and in turns, those of queue_peers.py: libraries that stand on SQLite, a
bare table in SQLite, and Redis Streams. The column sqlite has the best of the first four. Libraries
hand out one job at a time, so that is what they have in both lines; the bare table takes part one
by one as well, and what it can do in batches is in the file.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import esker
from bench.measure import Figure, Goal, Row, residency_growth
from bench.queue_peers import ON_SQLITE, QueuePeer, Redis, Table, absent
from bench.setting import US, Setting, random_values
from bench.subject import TOPIC, Esker

BATCH = 100


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
    """Esker and the others in turns, the best of each."""
    sizes = {BATCH: setting.size(100_000, 400), 1: setting.size(10_000, 50)}
    values = random_values(sizes[BATCH] + BATCH)
    mine = dict.fromkeys(sizes, float("inf"))
    theirs: dict[tuple[str, int], float] = {}
    for _ in range(setting.size(3, 1)):
        for size, jobs in sizes.items():
            path = setting.fresh("queue")
            with esker.open(path) as store:
                queue = store.queue(TOPIC)
                queue.put_many(values)
                took = _per_job(lambda count, queue=queue: _step(queue, count), jobs, size)
                mine[size] = min(mine[size], took)
            setting.drop(path)
        for peer in (*ON_SQLITE, Redis):
            if absent(peer):
                continue
            for size in (1, BATCH) if peer in (Table, Redis) else (1,):
                few = setting.size(20_000 if size > 1 else 3_000, 30 * size)
                took = _peer(setting, peer, values[:few], size)
                theirs[peer.name, size] = min(theirs.get((peer.name, size), float("inf")), took)
    for peer in (*ON_SQLITE, Redis):
        setting.say(f"{peer.name}: {absent(peer) or _told(theirs, peer.name)}")
    names = [peer.name for peer in ON_SQLITE if not absent(peer)]
    for size, limit in ((BATCH, 10), (1, 50)):
        how = "one by one" if size == 1 else f"in batches of {size}"
        peers: dict[str, Figure] = {name: theirs[name, 1] / US for name in names}
        best = min(theirs[name, 1] for name in names) / US
        there = theirs.get((Redis.name, size))
        redis: Figure = absent(Redis) if there is None else there / US
        yield Row(
            f"claim and ack jobs, {how}",
            {Esker.name: mine[size] / US, **peers, "sqlite": best, "bare table": peers["sqlite"],
             Redis.name: redis},
            (Goal.at_most(limit),) if size == 1
            else (Goal.at_most(limit), Goal.times_faster(10, than="sqlite")),
            unit="µs/job",
            details={
                "jobs": sizes[size], "jobs_per_second": round(1 / mine[size]),
                "bare_table_in_batches_us": theirs[Table.name, BATCH] / US,
            },
        )  # fmt: skip


def _peer(setting: Setting, peer: type[QueuePeer], values: Sequence[bytes], size: int) -> float:
    path = setting.fresh("peer")
    path.mkdir(parents=True)
    made = peer(path, values)
    try:
        return _per_job(made.step, len(values), size)
    finally:
        made.close()
        setting.drop(path)


def _told(theirs: dict[tuple[str, int], float], name: str) -> str:
    return ", ".join(
        f"{took / US:.1f} µs a job, {size} at a time"
        for (who, size), took in theirs.items()
        if who == name
    )


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
