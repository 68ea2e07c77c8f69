"""Queues beside ours: litequeue, huey and persist-queue, which stand on SQLite, a bare table in
SQLite, and Redis Streams where a `redis-server` is found.

Each has jobs in it when it is made, and `step(count)` claims and acks that many. What a library
cannot do in batches it does one by one: litequeue, huey and persist-queue hand out one job at a
time. Huey has no ack, a job that was handed out is gone; that is the less work. Nobody waits for
the disk: WAL where it can be had, synchronous=NORMAL or less, Redis with an append-only file that
is synced every second. Like class `disk`, a crash of the process loses nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from bench.measure import NOT_INSTALLED

NO_SERVER = "no redis-server found"


class QueuePeer(Protocol):
    """A queue with jobs in it, in one directory."""

    name: ClassVar[str]
    library: ClassVar[str]  # what must be importable

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None: ...
    def step(self, count: int) -> int:
        """Claim and ack so many; returns how many there were."""

    def close(self) -> None: ...


class Table:
    """A queue as one makes it by hand: an index on the state, UPDATE ... RETURNING to claim."""

    name: ClassVar[str] = "sqlite"
    library: ClassVar[str] = "sqlite3"

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None:
        self._base = sqlite3.connect(directory / "jobs", isolation_level=None)
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


class LiteQueue:
    name: ClassVar[str] = "litequeue"
    library: ClassVar[str] = "litequeue"

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None:
        made: Any = importlib.import_module("litequeue")
        self._queue = made.LiteQueue(str(directory / "jobs"))
        with self._queue.transaction():
            for value in values:
                self._queue.put(value.hex()[: len(value)])  # it takes text

    def step(self, count: int) -> int:
        for done in range(count):
            job = self._queue.pop()
            if job is None:
                return done
            self._queue.done(job.message_id)
        return count

    def close(self) -> None:
        self._queue.close()


class Huey:
    name: ClassVar[str] = "huey"
    library: ClassVar[str] = "huey"

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None:
        made: Any = importlib.import_module("huey.storage")
        self._queue = made.SqliteStorage("jobs", str(directory / "jobs"), fsync=False)
        for value in values:
            self._queue.enqueue(value)

    def step(self, count: int) -> int:
        for done in range(count):
            if self._queue.dequeue() is None:
                return done
        return count

    def close(self) -> None:
        self._queue.close()


class PersistQueue:
    name: ClassVar[str] = "persist-queue"
    library: ClassVar[str] = "persistqueue"

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None:
        made: Any = importlib.import_module("persistqueue")
        self._empty = made.Empty
        self._queue = made.SQLiteAckQueue(str(directory))
        for each in (self._queue._getter, self._queue._putter):
            each.execute("pragma synchronous=normal")
        for value in values:
            self._queue.put(value)

    def step(self, count: int) -> int:
        for done in range(count):
            try:
                job = self._queue.get(block=False, raw=True)
            except self._empty:
                return done
            self._queue.ack(id=job["pqid"])
        return count

    def close(self) -> None:
        self._queue.close()


class Redis:
    """A stream with a group of consumers, in a server of its own behind a Unix socket."""

    name: ClassVar[str] = "redis streams"
    library: ClassVar[str] = "redis"

    def __init__(self, directory: Path, values: Sequence[bytes]) -> None:
        made: Any = importlib.import_module("redis")
        server = shutil.which("redis-server")
        if server is None:
            raise RuntimeError(NO_SERVER)
        self._place = Path(tempfile.mkdtemp(prefix="esker-"))  # a socket's path must be short
        socket = self._place / "socket"
        self._server = subprocess.Popen(
            [server, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory),
             "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._client = made.Redis(unix_socket_path=str(socket))
        try:
            self._fill(socket, values)
        except BaseException:
            self.close()
            raise

    def _fill(self, socket: Path, values: Sequence[bytes]) -> None:
        deadline = time.monotonic() + 10
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        pipe = self._client.pipeline(transaction=False)
        for value in values:
            pipe.xadd("jobs", {"v": value})
        pipe.execute()
        self._client.xgroup_create("jobs", "workers", id="0")

    def step(self, count: int) -> int:
        found = self._client.xreadgroup("workers", "one", {"jobs": ">"}, count=count)
        jobs = [job for _, stream in found for job, _ in stream]
        if jobs:
            self._client.xack("jobs", "workers", *jobs)
        return len(jobs)

    def close(self) -> None:
        self._client.close()
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self._place)


ON_SQLITE: tuple[type[QueuePeer], ...] = (Table, LiteQueue, Huey, PersistQueue)


def absent(peer: type[QueuePeer]) -> str:
    """Why a peer cannot be measured here; nothing if it can."""
    if importlib.util.find_spec(peer.library) is None:
        return NOT_INSTALLED
    if peer is Redis and shutil.which("redis-server") is None:
        return NO_SERVER
    return ""
