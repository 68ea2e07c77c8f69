"""Server-sent events: from the append to those who watch, at the far end of their sockets.

One thread watches all streams by epoll, so that the load costs little of the machine; a delivery
counts when its bytes are read. The watchers' process and the server's share the machine, so on one
with few cores the figures are those of both.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.server import SUBJECT, Bench, Line, json_body, percentiles, post, values

IDLE = 10_000
QUIET_SECONDS = 120.0


def _ask(topic: str) -> bytes:
    return f"GET /v1/watch?topics={topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Watchers:
    """Many streams of one topic."""

    def __init__(self, bench: Bench, topic: str, count: int) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        ask = _ask(topic)
        for _ in range(count):
            made = bench.esker._connected()
            made.sendall(ask)
            self.sockets[made.fileno()] = made
        for made in self.sockets.values():
            heard = b""
            while b"event: caught-up" not in heard:
                piece = made.recv(1 << 16)
                if not piece or heard.startswith(b"HTTP/1.1 4"):
                    raise RuntimeError(heard[:500].decode(errors="replace"))
                heard += piece
            self._poll.register(made, select.EPOLLIN)

    def heard(self, each: int, what: bytes) -> list[float]:
        """Read until all have heard this so often; when each time was."""
        left, when = each * len(self.sockets), []
        ends = dict.fromkeys(self.sockets, b"")  # it may come in two pieces
        deadline = time.monotonic() + QUIET_SECONDS
        while left > 0:
            for number, _ in self._poll.poll(QUIET_SECONDS):
                data = ends[number] + self.sockets[number].recv(1 << 18)
                ends[number] = data[1 - len(what) :]
                found = data.count(what)
                left -= found
                when += [time.perf_counter()] * found
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} events did not come")
        return when

    def close(self) -> None:
        self._poll.close()
        for each in self.sockets.values():
            each.close()


def latencies(bench: Bench, topic: str, watchers: Watchers, appends: int) -> list[float]:
    """Seconds from an append to each of those who watch, one append at a time."""
    request = post(f"/v1/topics/{topic}/records", json_body(values(1)))
    took: list[float] = []
    for _ in range(appends):
        began = time.perf_counter()
        sock = bench.esker._sockets[0]
        sock.sendall(request)
        took += [when - began for when in watchers.heard(1, b"event: record")]
        sock.recv(1 << 16)  # the answer, which came meanwhile
    return took


def line(operation: str, unit: str, figure: float, goal: float, calls: list[float]) -> Line:
    return Line(operation, unit, {SUBJECT: figure}, {SUBJECT: percentiles(calls)}, goal)


def delivered(bench: Bench) -> Iterator[Line]:
    """Write to deliver, and what a client that reads nothing does to the others."""
    for count, goal in ((100, 2.0), (1_000, 10.0)):
        topic, many = f"sse-{count}", bench.count(count)
        bench.esker.call(post(f"/v1/topics/{topic}/records", json_body(values(1))))
        watchers = Watchers(bench, topic, many)
        appends = bench.count(300 if count == 100 else 60)
        took = latencies(bench, topic, watchers, appends)
        p50 = percentiles(took)["p50"]
        yield line(f"SSE, write to deliver, {count:,} watchers", "ms", p50, goal, took)
        if count == 100:
            yield stalled(bench, topic, watchers, bench.count(2_000))
            yield rate(bench, topic, watchers)
        watchers.close()


def stalled(bench: Bench, topic: str, watchers: Watchers, appends: int) -> Line:
    """The 99th percentile beside a client that takes nothing, over the one without it; in turns.

    Before both there is a flood, which fills the queue of who does not read, and then some appends
    that are not counted: until the server is calm again. Thousands of appends, for all watchers
    hear one together: of 300 the 99th percentile would be the three worst, which is chance.
    """
    without: list[float] = []
    beside: list[float] = []
    for _ in range(bench.turns):
        without += _after_flood(bench, topic, watchers, appends)
        lame = socket.socket()
        lame.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        lame.connect(bench.esker._place)
        lame.sendall(_ask(topic))
        beside += _after_flood(bench, topic, watchers, appends)
        lame.close()
    ratio = percentiles(beside)["p99"] / percentiles(without)["p99"]
    return line("SSE, p99 beside a stalled client, over without", "times", ratio, 1.1, beside)


def _after_flood(bench: Bench, topic: str, watchers: Watchers, appends: int) -> list[float]:
    flood = post(f"/v1/topics/{topic}/records", json_body(values(2_000)))
    for _ in range(10):  # two megabytes: more than a socket and a queue take
        bench.esker.call(flood)
        watchers.heard(2_000, b'"offset":')
    latencies(bench, topic, watchers, appends)
    return latencies(bench, topic, watchers, appends)


def rate(bench: Bench, topic: str, watchers: Watchers) -> Line:
    """Records delivered a second, from batches of 100 records."""
    request = post(f"/v1/topics/{topic}/records", json_body(values(100)))
    batches = bench.count(200)
    calls: list[float] = []
    began = time.perf_counter()
    for _ in range(batches):
        sent = time.perf_counter()
        bench.esker.call(request)
        watchers.heard(100, b'"offset":')
        calls.append(time.perf_counter() - sent)
    took = time.perf_counter() - began
    figure = batches * 100 * len(watchers.sockets) / took
    return line("SSE, deliveries to 100 watchers", "records/s", figure, 200_000, calls)


def idle(bench: Bench) -> Iterator[Line]:
    """The memory of streams on which nothing happens, in MB for ten thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(bench.count(IDLE), hard - 500)
    bench.esker.call(post("/v1/topics/idle/records", json_body(values(1))))
    before, began = resident(bench), time.perf_counter()
    watchers = Watchers(bench, "idle", count)
    took = (time.perf_counter() - began) / count
    used = max(0.0, resident(bench) - before)
    watchers.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield line(
        f"SSE, {IDLE:,} idle streams, by {count:,} of them", "MB", used * IDLE / count, 400, [took]
    )


def resident(bench: Bench) -> float:
    """The memory of the server, in MB."""
    with open(f"/proc/{bench.esker._process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


LINES: tuple[Callable[[Any], Iterator[Line]], ...] = (delivered, idle)
