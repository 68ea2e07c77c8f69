"""Server-sent events: from the append to those who watch, at the far end of their sockets.

Those who watch, and those who do the same with a peer, are in `bench/crowds.py`. Their process and
the server's share the machine, so on one with few cores the figures are those of both.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.crowds import Crowd, Watchers, ask, peers
from bench.server import SUBJECT, Bench, Line, json_body, percentiles, post, values

IDLE = 10_000


@contextlib.contextmanager
def room() -> Iterator[int]:
    """As many open files as may be; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def latencies(crowd: Crowd, appends: int) -> list[float]:
    """Seconds from an append to each of those who wait for it, one append at a time."""
    took: list[float] = []
    for _ in range(appends):
        began = time.perf_counter()
        crowd.append(1)
        took += [when - began for when in crowd.heard(1)]
        crowd.settle()
    return took


def line(operation: str, unit: str, figure: float, goal: float, calls: list[float]) -> Line:
    return Line(operation, unit, {SUBJECT: figure}, {SUBJECT: percentiles(calls)}, goal)


def delivered(bench: Bench) -> Iterator[Line]:
    """Write to deliver, and what a client that reads nothing does to the others."""
    for count, goal in ((100, 2.0), (1_000, 10.0)):
        topic, many = f"sse-{count}", bench.count(count)
        bench.esker.call(post(f"/v1/topics/{topic}/records", json_body(values(1))))
        with room():
            watchers = Watchers(bench.esker, topic, many)
            crowds: dict[str, Crowd] = {SUBJECT: watchers, **peers(bench, topic, many)}
            appends = bench.count(100 if count == 100 else 20)
            calls: dict[str, list[float]] = {name: [] for name in crowds}
            for _ in range(bench.turns):
                for name, crowd in crowds.items():
                    calls[name] += latencies(crowd, appends)
            told = {name: percentiles(each) for name, each in calls.items()}
            yield Line(
                f"SSE, write to deliver, {count:,} watchers", "ms",
                {name: each["p50"] for name, each in told.items()} | bench.absent, told, goal,
            )  # fmt: skip
            if count == 100:
                yield stalled(bench, topic, watchers, bench.count(2_000))
                yield rate(bench, crowds)
            for crowd in crowds.values():
                crowd.close()


def stalled(bench: Bench, topic: str, watchers: Watchers, appends: int) -> Line:
    """The 99th percentile beside a client that takes nothing, over the one without it; in turns.

    Before both there is a flood, which fills the queue of who does not read, and then some appends
    that are not counted: until the server is calm again. Thousands of appends, for all watchers
    hear one together: of 300 the 99th percentile would be the three worst, which is chance.
    """
    without: list[float] = []
    beside: list[float] = []
    for _ in range(bench.turns):
        without += _after_flood(watchers, appends)
        lame = socket.socket()
        lame.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        lame.connect(bench.esker._place)
        lame.sendall(ask(topic))
        beside += _after_flood(watchers, appends)
        lame.close()
    ratio = percentiles(beside)["p99"] / percentiles(without)["p99"]
    return line("SSE, p99 beside a stalled client, over without", "times", ratio, 1.1, beside)


def _after_flood(watchers: Watchers, appends: int) -> list[float]:
    for _ in range(10):  # two megabytes: more than a socket and a queue take
        _whole(watchers, 2_000)
    latencies(watchers, appends)
    return latencies(watchers, appends)


def _whole(crowd: Crowd, count: int) -> float:
    """Seconds from an append of many to the last of them at the last of those who wait."""
    began = time.perf_counter()
    crowd.append(count)
    crowd.heard(count)
    took = time.perf_counter() - began
    crowd.settle()
    return took


def rate(bench: Bench, crowds: dict[str, Crowd]) -> Line:
    """Records delivered a second, from batches of 100 records; the best of the turns."""
    batches = bench.count(70)
    best: dict[str, float | str] = {**bench.absent}
    calls: dict[str, list[float]] = {name: [] for name in crowds}
    for _ in range(bench.turns):
        for name, crowd in crowds.items():
            began = time.perf_counter()
            calls[name] += [_whole(crowd, 100) for _ in range(batches)]
            took = time.perf_counter() - began
            figure = batches * 100 * len(crowd.sockets) / took
            best[name] = max(figure, float(best.get(name, 0.0)))
    told = {name: percentiles(each) for name, each in calls.items()}
    return Line("SSE, deliveries to 100 watchers", "records/s", best, told, 200_000)


def idle(bench: Bench) -> Iterator[Line]:
    """The memory of streams on which nothing happens, in MB for ten thousand."""
    bench.esker.call(post("/v1/topics/idle/records", json_body(values(1))))
    with room() as files:
        count = min(bench.count(IDLE), files - 500)
        before, began = resident(bench), time.perf_counter()
        watchers = Watchers(bench.esker, "idle", count)
        took = (time.perf_counter() - began) / count
        used = max(0.0, resident(bench) - before)
        watchers.close()
    yield line(
        f"SSE, {IDLE:,} idle streams, by {count:,} of them", "MB", used * IDLE / count, 400, [took]
    )


def resident(bench: Bench) -> float:
    """The memory of the server, in MB."""
    with open(f"/proc/{bench.esker._process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


LINES: tuple[Callable[[Any], Iterator[Line]], ...] = (delivered, idle)
