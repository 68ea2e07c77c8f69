"""What it costs to get rid of records, by tag and by whole segments; and to archive them."""

from __future__ import annotations

import os
import sqlite3
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import esker
from bench.append import telemetry
from bench.measure import Goal, Row
from bench.peers import Sqlite
from bench.setting import MB, MS, US, Setting, random_values
from bench.subject import TOPIC, VALUE_BYTES, Esker, Raw

BATCH = 100_000
MATCHES = 1_000
PATIENCE = 60.0  # seconds


def delete_by_tag(setting: Setting) -> Iterator[Row]:
    """A thousand records of ten million, spread over all of it, gone for good when it returns.

    The first deletion makes the index of tags, as the peer had to make one beforehand; it is shown
    beside the others.
    """
    count = setting.size(10_000_000, 20_000)
    tags = max(1, count // MATCHES)
    path, other = setting.fresh("tags"), setting.fresh("tags-sqlite")
    setting.say(f"  {count:,} records with {tags:,} tags, twice")
    with esker.open(path) as store:
        topic = store.create(TOPIC)
        values = pa.array(random_values(min(BATCH, count)))
        for first in range(0, count, len(values)):
            names = pa.array([f"order-{n % tags}" for n in range(first, first + len(values))])
            topic.append_arrow(pa.table({"value": values, "tag": names}))
        store.sync()
        start = time.perf_counter()
        topic.delete(tag="nobody")
        made = time.perf_counter() - start
        rounds = min(setting.size(9, 2), tags)
        ours = [_timed(topic, f"order-{number}", count // tags) for number in range(rounds)]
    peers = _sqlite(other, count, tags, rounds)
    setting.drop(path)
    setting.drop(other)
    yield Row(
        f"delete {count // tags:,} of {count:,} records by tag, durably",
        {Esker.name: min(ours) / MS, Sqlite.name: min(peers) / MS},
        (Goal.at_most(50),),
        unit="ms",
        details={
            "records": count, "median": round(statistics.median(ours) / MS, 2),
            "index_seconds": round(made, 2),
        },
    )  # fmt: skip


def _timed(topic: esker.Topic, tag: str, expected: int) -> float:
    start = time.perf_counter()
    gone = topic.delete(tag=tag)
    seconds = time.perf_counter() - start
    if gone != expected:
        raise RuntimeError(f"{gone:,} records were deleted, not {expected:,}")
    return seconds


def _sqlite(path: Path, count: int, tags: int, rounds: int) -> list[float]:
    """The same in SQLite: a table with an index on its tags, WAL, synchronous=FULL."""
    path.mkdir()
    store = sqlite3.connect(path / "data.db", isolation_level=None)
    store.execute("PRAGMA journal_mode=WAL")
    store.execute("PRAGMA synchronous=FULL")
    store.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB, tag TEXT)")
    value = bytes(VALUE_BYTES)
    store.execute("BEGIN")
    store.executemany(
        "INSERT INTO log VALUES (?, ?, ?)", ((n, value, f"order-{n % tags}") for n in range(count))
    )
    store.execute("CREATE INDEX tags ON log (tag)")
    store.execute("COMMIT")
    store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    seconds = []
    for number in range(rounds):
        start = time.perf_counter()
        store.execute("DELETE FROM log WHERE tag = ?", (f"order-{number}",))
        seconds.append(time.perf_counter() - start)
    store.close()
    return seconds


def evict(setting: Setting) -> Iterator[Row]:
    """A thousand segments at once, while somebody appends; and what those appends cost."""
    segments = setting.size(1_000, 10)
    path = setting.fresh("evict")
    with esker.open(path, background=False) as store:
        topic = store.create(TOPIC, segment_records=100)
        values = random_values(100)
        for _ in range(segments + 1):
            topic.append_many(values)
            store.tick()
    with esker.open(path) as store:
        topic = store.alter(TOPIC, segment_records=0)  # who appends meanwhile fills no segments
        writer = Writer(topic, values[0])
        time.sleep(setting.size(20, 1) / 10)
        idle = writer.taken()
        start = time.perf_counter()
        store.alter(TOPIC, cap_records=100)
        store.retain()  # or the background does, which may be at it already
        while topic.counters()["segments_deleted"] < segments:
            if time.perf_counter() - start > PATIENCE:
                raise RuntimeError(f"not all segments went: {topic.counters()}")
            time.sleep(0.001)
        seconds = time.perf_counter() - start
        busy = writer.taken()
        bare = _unlinked(setting, segments, len(values) * (VALUE_BYTES + 10))
        writer.close()
    setting.drop(path)
    yield Row(
        f"evict {segments:,} segments; raw: unlink as many files",
        {Esker.name: seconds, Raw.name: bare}, (Goal.at_most(1),), unit="s",
        details={"segments": segments},
    )  # fmt: skip
    yield Row(
        "append(wait=True), 99th of a hundred, meanwhile",
        {Esker.name: _ninety_ninth(busy) / US, "idle": _ninety_ninth(idle) / US},
        (Goal.times_slower(2, than="idle"),),
        unit="µs",
        details={"appends": len(busy)},
    )


def _unlinked(setting: Setting, count: int, size: int) -> float:
    """How long it takes to unlink files that are on the disk, beside the same writer."""
    folder = setting.fresh("files")
    folder.mkdir()
    paths = [folder / f"{number:08}" for number in range(count)]
    for path in paths:
        path.write_bytes(bytes(size))
    os.sync()
    start = time.perf_counter()
    for path in paths:
        path.unlink()
    seconds = time.perf_counter() - start
    setting.drop(folder)
    return seconds


def archive(setting: Setting) -> Iterator[Row]:
    """JSON telemetry, sealed, written as Parquet: what it costs of one core, by what was read."""
    values = telemetry(setting.size(BATCH, 1_000))
    path = setting.fresh("archive")
    with esker.open(path, background=False) as store:
        topic = store.create(TOPIC, segment_records=len(values))
        for _ in range(setting.size(15, 3)):
            topic.append_many(values)
        topic.append_many(values[:1])  # so that the last segment is full
        store.tick()
        cost = []
        for number in range(setting.size(3, 1)):
            wall, start = time.perf_counter(), time.process_time()
            done = topic.archive(path / f"archive-{number}")
            cost.append((time.process_time() - start, time.perf_counter() - wall))
    setting.drop(path)
    if done.rows < len(values):
        raise RuntimeError(f"archived {done.rows:,} records only")
    size = done.rows * sum(map(len, values)) / len(values)
    core, wall = min(each[0] for each in cost), min(each[1] for each in cost)
    yield Row(
        f"archive {size / MB:.0f} MB of JSON telemetry, time of a core",
        {Esker.name: core / MS / (size / MB)},
        (Goal.at_most(1000 / 150),),
        unit="ms/MB",
        details={
            "records": done.rows, "bytes_of_values": int(size),
            "megabytes_per_second_of_a_core": round(size / MB / core, 1),
            "megabytes_per_second": round(size / MB / wall, 1),
        },
    )  # fmt: skip


def _ninety_ninth(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


class Writer:
    """Appends one record after the other, and notes how long each took."""

    def __init__(self, topic: esker.Topic, value: bytes) -> None:
        self._topic = topic
        self._value = value
        self._seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            start = time.perf_counter()
            self._topic.append(self._value, wait=True)
            self._seconds.append(time.perf_counter() - start)

    def taken(self) -> list[float]:
        """What the appends since the last look took."""
        found, self._seconds = self._seconds, []
        return found

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
