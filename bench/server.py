"""The server beside NATS JetStream and Redis Streams: one process each, load from a second one.

    python -m bench.server              some minutes
    python -m bench.server --smoke      does it work?

The server under test is a process of its own, as `esker serve` is. This process makes the load,
with requests that are encoded before the clock starts, over plain sockets: what is measured is the
server, not a client's JSON. Peers are driven by their own Python clients, as their users would:
NATS by nats-py with a window of publications under way, Redis by redis-py with pipelines, from a
redis-server if there is one on this machine. Each keeps its data on the same disk, and syncs where
Esker does: JetStream by `sync_interval`, Redis by `appendfsync`.

A line gives records a second from several connections, and the 50th and 99th percentile of one call
on one connection. Values are 110 bytes of text; what is read was written in batches of 1,000.
Subjects take turns, so that noise hits all alike; the best of the turns counts for a rate, all of
them together for a percentile. The load of the machine stands in the file: on one that is busy the
figures say little.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa

from bench.measure import RESULTS, machine

VALUE = 110
CONNECTIONS = 8
SMOKE = 0.02  # of the calls
ARROW = "application/vnd.apache.arrow.stream"
SUBJECT = "esker"


class Line(NamedTuple):
    """One operation: what each subject reached, and what was asked of Esker."""

    operation: str
    unit: str  # "records/s": more is better; "ms": less is
    figures: dict[str, float | str]
    percentiles: dict[str, dict[str, float]]  # of one call, in ms
    goal: float

    @property
    def met(self) -> bool:
        reached = self.figures[SUBJECT]
        assert isinstance(reached, float)
        return reached >= self.goal if self.unit == "records/s" else reached <= self.goal

    @property
    def ratios(self) -> dict[str, float]:
        """How many times better Esker is than each peer."""
        own = self.figures[SUBJECT]
        return {
            name: own / other if self.unit == "records/s" else other / own
            for name, other in self.figures.items()
            if name != SUBJECT and isinstance(own, float) and isinstance(other, float)
        }


class Timed(NamedTuple):
    """What one turn of one subject gave."""

    rate: float  # records a second, from all connections
    calls: list[float]  # seconds of each call on one connection


# ---- Esker -----------------------------------------------------------------------------------


def serve(folder: str) -> None:
    """The process under test."""
    import uvloop

    from esker.server.run import Server
    from esker.server.settings import Settings

    async def main() -> None:
        server = Server(
            folder, Settings(port=0, idle_seconds=3_600, streams=20_000, connections=20_000)
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.run(lambda made: print(made.url, flush=True))

    uvloop.run(main())


class Esker:
    """A server, and connections to it."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "bench.server", "--serve", str(folder / "esker")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        where = urlsplit(self._process.stdout.readline().strip())
        self._place = (where.hostname or "", where.port or 0)
        self._sockets = [self._connected() for _ in range(CONNECTIONS)]

    def _connected(self) -> socket.socket:
        made = socket.create_connection(self._place)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def call(self, request: bytes, sock: socket.socket | None = None) -> bytes:
        sock = sock or self._sockets[0]
        sock.sendall(request)
        return answer(sock)

    def timed(self, requests: Sequence[bytes], records: int, alone: int) -> Timed:
        """Some calls one by one, then all of them from all connections."""
        calls = []
        for request in requests[:alone]:
            began = time.perf_counter()
            self.call(request)
            calls.append(time.perf_counter() - began)
        rest = requests[alone:]
        began = time.perf_counter()
        for at in range(0, len(rest), CONNECTIONS):
            now = rest[at : at + CONNECTIONS]
            for sock, request in zip(self._sockets, now, strict=False):
                sock.sendall(request)
            for sock, _ in zip(self._sockets, now, strict=False):
                answer(sock)
        took = time.perf_counter() - began
        return Timed(len(rest) * records / took if rest else 0.0, calls)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._process.terminate()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


def answer(sock: socket.socket) -> bytes:
    """One answer; it must be a good one."""
    found = sock.recv(1 << 18)
    head, mark, body = found.partition(b"\r\n\r\n")
    while not mark:
        found += sock.recv(1 << 18)
        head, mark, body = found.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(found[:500].decode(errors="replace"))
    at = head.index(b"content-length: ") + 16
    size = int(head[at:].split(b"\r", 1)[0])
    pieces, have = [body], len(body)
    while have < size:
        pieces.append(sock.recv(1 << 18))
        if not pieces[-1]:
            raise RuntimeError("the server hung up")
        have += len(pieces[-1])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def post(path: str, body: bytes, media: str = "application/json", method: str = "POST") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str, accept: str = "application/json") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()


def values(count: int) -> list[str]:
    """Text of 110 bytes, all different."""
    made = random.Random(count)
    return [f"{n:010d}{made.getrandbits(400):0100x}"[:VALUE] for n in range(count)]


def json_body(some: Sequence[str]) -> bytes:
    return json.dumps({"records": [{"value": value} for value in some]}).encode()


def arrow_body(some: Sequence[str]) -> bytes:
    table = pa.table({"value": pa.array([value.encode() for value in some])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


# ---- peers -----------------------------------------------------------------------------------


class Nats:
    """NATS JetStream: one stream for each line, by its own Python client."""

    def __init__(self, folder: Path, sync: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.port = port = free_port()
        config = folder / f"nats-{sync}.conf"
        always = "always" if sync else "2m"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{folder}/nats-{sync}", sync_interval: {always} }}\n'
        )
        found = shutil.which("nats-server") or str(Path(sys.executable).parent / "nats-server")
        self._process = subprocess.Popen(
            [found, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.loop.run_until_complete(self._connect(port))

    async def _connect(self, port: int) -> None:
        import nats

        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            await asyncio.sleep(0.05)
        self._nats = await nats.connect(f"nats://127.0.0.1:{port}")
        self._stream: Any = self._nats.jetstream()
        await self._stream.add_stream(name="s", subjects=["s"])

    def append(self, some: Sequence[str], calls: int, alone: int) -> Timed:
        return self.loop.run_until_complete(self._append(some, calls, alone))

    async def _append(self, some: Sequence[str], calls: int, alone: int) -> Timed:
        payloads = [value.encode() for value in some]
        took = []
        for _ in range(alone):
            began = time.perf_counter()
            await self._publish(payloads)
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        for at in range(0, calls, CONNECTIONS):
            await self._publish(payloads * min(CONNECTIONS, calls - at))
        passed = time.perf_counter() - began
        return Timed(calls * len(payloads) / passed if calls else 0.0, took)

    async def _publish(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await self._stream.publish("s", payloads[0])
            return
        sent = [await self._stream.publish_async("s", payload) for payload in payloads]
        await asyncio.gather(*sent)

    def read(self, records: int, calls: int) -> Timed:
        return self.loop.run_until_complete(self._read(records, calls))

    async def _read(self, records: int, calls: int) -> Timed:
        from nats.js.api import AckPolicy, ConsumerConfig

        how = ConsumerConfig(ack_policy=AckPolicy.NONE)
        pull = await self._stream.pull_subscribe("s", stream="s", config=how)
        took = []
        for _ in range(calls):
            began = time.perf_counter()
            found: list[Any] = []
            while len(found) < records:
                found += await pull.fetch(records - len(found), timeout=10)
            took.append(time.perf_counter() - began)
        await pull.unsubscribe()
        return Timed(records * calls / sum(took), took)

    def consume(self, stream: str, subjects: Sequence[str]) -> None:
        """Have what comes to a stream of this name delivered to each of these, who listen."""
        self.loop.run_until_complete(self._consume(stream, subjects))

    async def _consume(self, stream: str, subjects: Sequence[str]) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        await self._stream.add_stream(name=stream, subjects=[stream])
        for subject in subjects:
            how = ConsumerConfig(
                deliver_subject=subject, ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.NEW,
            )  # fmt: skip
            await self._stream.add_consumer(stream, how)

    def forget(self, stream: str) -> None:
        """Remove a stream, with those who consume it."""
        self.loop.run_until_complete(self._stream.delete_stream(stream))

    def close(self) -> None:
        self.loop.run_until_complete(self._nats.close())
        self.loop.close()
        self._process.terminate()
        self._process.wait(30)


class Redis:
    """Redis Streams with an append-only file, by redis-py."""

    def __init__(self, folder: Path, sync: bool) -> None:
        import redis

        self.port = port = free_port()
        place = folder / f"redis-{sync}"
        place.mkdir()
        self._process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(place),
             "--save", "", "--appendonly", "yes",
             "--appendfsync", "always" if sync else "everysec"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._redis: Any = redis.Redis(port=port)
        for _ in range(200):
            with contextlib.suppress(redis.ConnectionError):
                self._redis.ping()
                break
            time.sleep(0.05)

    def append(self, some: Sequence[str], calls: int, alone: int) -> Timed:
        took = []
        for _ in range(alone):
            began = time.perf_counter()
            self._push(some)
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        for at in range(0, calls, CONNECTIONS):
            self._push(list(some) * min(CONNECTIONS, calls - at))
        passed = time.perf_counter() - began
        return Timed(calls * len(some) / passed if calls else 0.0, took)

    def _push(self, some: Sequence[str]) -> None:
        if len(some) == 1:
            self._redis.xadd("s", {"v": some[0]})
            return
        pipe = self._redis.pipeline(transaction=False)
        for value in some:
            pipe.xadd("s", {"v": value})
        pipe.execute()

    def read(self, records: int, calls: int) -> Timed:
        took, last = [], b"0"
        for _ in range(calls):
            began = time.perf_counter()
            found = self._redis.xread({"s": last}, count=records)
            took.append(time.perf_counter() - began)
            last = found[0][1][-1][0]
        return Timed(records * calls / sum(took), took)

    def close(self) -> None:
        self._redis.close()
        self._process.terminate()
        self._process.wait(30)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# ---- lines -----------------------------------------------------------------------------------

Turn = Callable[[], Timed]


class Bench:
    """The subjects, and how much of everything is done."""

    def __init__(self, folder: Path, scale: float, turns: int) -> None:
        self.scale = scale
        self.turns = turns
        self.folder = folder
        self.esker = Esker(folder)
        self.peers: dict[str, dict[bool, Any]] = {"nats": {}, "redis": {}}
        self.absent: dict[str, str] = {}
        for sync in (False, True):
            self.peers["nats"][sync] = Nats(folder, sync)
            if shutil.which("redis-server"):
                self.peers["redis"][sync] = Redis(folder, sync)
            else:
                self.absent["redis"] = "no redis-server on this machine"

    def count(self, full: int) -> int:
        return max(CONNECTIONS, int(full * self.scale))

    def compared(
        self, operation: str, goal: float, turns: dict[str, Turn], *, rate: bool = True
    ) -> Line:
        """Everybody in turn."""
        best: dict[str, float | str] = {}
        calls: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(self.turns):
            for name, turn in turns.items():
                found = turn()
                best[name] = max(float(best.get(name, 0.0)), found.rate)
                calls[name] += found.calls
        told = {name: percentiles(each) for name, each in calls.items() if each}
        if not rate:
            best = {name: each["p50"] for name, each in told.items()}
        for name, why in self.absent.items():
            best.setdefault(name, why)
        return Line(operation, "records/s" if rate else "ms", best, told, goal)

    def close(self) -> None:
        self.esker.close()
        for each in self.peers.values():
            for peer in each.values():
                peer.close()


def percentiles(calls: Sequence[float]) -> dict[str, float]:
    in_order = sorted(calls)
    return {
        name: in_order[min(len(in_order) - 1, int(len(in_order) * share))] * 1e3
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def appends(bench: Bench) -> Iterator[Line]:
    calls, alone = bench.count(1_600), bench.count(100)
    some = values(100)
    request = post("/v1/topics/json/records", json_body(some))
    turns: dict[str, Turn] = {
        SUBJECT: lambda: bench.esker.timed([request] * (calls + alone), 100, alone)
    }
    for name, peer in bench.peers.items():
        if peer:
            turns[name] = lambda peer=peer[False]: peer.append(some, calls // 4, alone)  # type: ignore[misc]
    yield bench.compared("append of 100 JSON records", 150_000, turns)

    many = post("/v1/topics/arrow/records", arrow_body(values(10_000)), ARROW)
    calls, alone = bench.count(160), bench.count(20)
    yield bench.compared(
        "append of 10,000 records as Arrow", 1_500_000,
        {SUBJECT: lambda: bench.esker.timed([many] * (calls + alone), 10_000, alone)},
    )  # fmt: skip


def lone_appends(bench: Bench) -> Iterator[Line]:
    alone = bench.count(1_000)
    one = json_body(values(1))
    sync_ms = fdatasync_ms(bench.folder, bench.count(200))
    for durability, sync, goal in (("disk", False, 0.6), ("fsync", True, 0.6 + 1.5 * sync_ms)):
        options = json.dumps({"durability": durability}).encode()
        bench.esker.call(post(f"/v1/topics/{durability}", options, method="PUT"))
        request = post(f"/v1/topics/{durability}/records", one)
        turns: dict[str, Turn] = {
            SUBJECT: lambda request=request: bench.esker.timed([request] * alone, 1, alone)  # type: ignore[misc]
        }
        for name, peer in bench.peers.items():
            if peer:
                turns[name] = lambda peer=peer[sync]: peer.append(values(1), 0, alone // 2)  # type: ignore[misc]
        yield bench.compared(f"lone append, class {durability}", goal, turns, rate=False)


def reads(bench: Bench) -> Iterator[Line]:
    some = values(20_000)
    for at in range(0, len(some), 1_000):
        body = arrow_body(some[at : at + 1_000])
        bench.esker.call(post("/v1/topics/read/records", body, ARROW))
    for peer in bench.peers.values():
        if peer:
            peer[False].append(values(1_000), 20, 0)
    calls, alone = bench.count(400), bench.count(50)
    for kind, accept, goal in (("JSON", "application/json", 400_000), ("Arrow", ARROW, 5_000_000)):
        starts = [1_000 * (n % 19) for n in range(calls + alone)]
        asked = [
            get(f"/v1/topics/read/records?start={start}&limit=1000&max_bytes=8000000", accept)
            for start in starts
        ]
        turns: dict[str, Turn] = {
            SUBJECT: lambda asked=asked: bench.esker.timed(asked, 1_000, alone)  # type: ignore[misc]
        }
        for name, peer in bench.peers.items():
            if peer:
                turns[name] = lambda peer=peer[False]: peer.read(1_000, min(20, alone))  # type: ignore[misc]
        yield bench.compared(f"read of 1,000 records as {kind}", goal, turns)


def streams(bench: Bench) -> Iterator[Line]:
    from bench.streams import LINES as lines  # which needs this module

    for measured in lines:
        yield from measured(bench)


LINES = (appends, lone_appends, reads, streams)  # what is measured, in this order


def fdatasync_ms(folder: Path, count: int) -> float:
    """What a sync of this disk costs by itself, in a file that has its room already."""
    took = []
    with open(folder / "sync", "wb", buffering=0) as file:
        file.write(bytes(count * 4_096))
        os.fsync(file.fileno())
        for n in range(count):
            os.pwrite(file.fileno(), b"x" * 200, n * 4_096)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return percentiles(took)["p50"]


# ---- the run ---------------------------------------------------------------------------------


def shown(line: Line) -> str:
    digits = 0 if line.unit == "records/s" else 3
    parts = []
    for name, figure in line.figures.items():
        if isinstance(figure, str):
            parts.append(f"{name}: {figure}")
            continue
        told = f"{name} {figure:,.{digits}f}"
        if name in line.percentiles:
            each = line.percentiles[name]
            told += f" (p50 {each['p50']:.2f} ms, p99 {each['p99']:.2f} ms)"
        parts.append(told)
    parts += [f"{ratio:.1f}x {name}" for name, ratio in line.ratios.items()]
    sign = "≥" if line.unit == "records/s" else "≤"
    goal = f"goal {sign} {line.goal:,.{digits}f} {line.unit}: {'yes' if line.met else 'NO'}"
    return f"{line.operation}: {'; '.join(parts)}; {goal}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a size at which nothing means much")
    parser.add_argument("--dir", type=Path, default=Path(), help="where to work")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    lines = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-server-", dir=options.dir) as folder:
        bench = Bench(
            Path(folder).resolve(), SMOKE if options.smoke else 1.0, 1 if options.smoke else 3
        )
        try:
            for measured in LINES:
                for line in measured(bench):
                    lines.append(line)
                    print(shown(line), flush=True)
        finally:
            bench.close()
    document = {
        "machine": machine(), "load": round(load, 1), "connections": CONNECTIONS,
        "peers": {
            "nats": "JetStream on files, nats-py",
            "redis": "Streams with an append-only file, redis-py",
            **bench.absent,
        },
        "lines": [
            {**line._asdict(), "met": line.met, "ratios": line.ratios} for line in lines
        ],
    }  # fmt: skip
    path = options.results / ("server-smoke.json" if options.smoke else "server.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
