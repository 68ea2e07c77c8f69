"""What a group costs: polling and acking in batches of 1,000, and an ack by itself.

An ack is one store into a mapped page, so its cost is that of the Python around it. SQLite has the
nearest thing that people build: a table of cursors beside the log, moved in the transaction that
ends a batch. It stands here with synchronous=OFF, where like an ack of ours it survives the death
of the process and not of the machine. Redis Streams have groups of their own; they take part where
a `redis-server` is found.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import esker
from bench.measure import Figure, Goal, Row
from bench.peers import Sqlite
from bench.queue_peers import Redis, absent
from bench.setting import NS, US, Setting, in_batches, random_values
from bench.subject import TOPIC, Esker

BATCH = 1_000


def groups(setting: Setting) -> Iterator[Row]:
    count = setting.size(2_000_000, 4_000)
    values = random_values(min(count, 100_000))
    path, other = setting.fresh("groups"), setting.fresh("groups-sqlite")
    with esker.open(path) as store:
        topic = store.create(TOPIC)
        for _ in range(0, count, len(values)):
            for batch in in_batches(values, BATCH):
                topic.append_many(batch)
        store.sync()
        rounds = setting.size(5, 2)
        read = [_read(topic, f"read {number}", count) for number in range(rounds)]
        acks = [_ack(topic, f"ack {number}") for number in range(rounds)]
    peer = min(_sqlite(other, count) for _ in range(setting.size(3, 1)))
    setting.drop(path)
    setting.drop(other)
    missing = absent(Redis)
    if missing:
        setting.say(f"{Redis.name}: {missing}")
    redis: Figure = missing or _redis(setting, values) / NS
    yield Row(
        f"group: poll and ack in batches of {BATCH:,}",
        {Esker.name: min(read) / count / NS, Sqlite.name: peer / count / NS, Redis.name: redis},
        (Goal.at_most(500),),  # two million a second
        details={"records": count},
    )
    yield Row("group: ack of a batch", {Esker.name: min(acks) / US}, (Goal.at_most(2),), unit="µs")


def _read(topic: esker.Topic, name: str, count: int) -> float:
    with topic.group(name) as group:
        found = 0
        start = time.perf_counter()
        for batch in group.poll(max_records=BATCH):
            found += len(batch)
            batch.ack()
        seconds = time.perf_counter() - start
        if found != count or group.lag().records:
            raise RuntimeError(f"{found:,} records came, not {count:,}")
    return seconds


def _redis(setting: Setting, values: Sequence[bytes]) -> float:
    """Seconds for each record."""
    path = setting.fresh("groups-redis")
    path.mkdir(parents=True)
    stream = Redis(path, values)
    start, found = time.perf_counter(), 0
    try:
        while found < len(values):
            found += stream.step(BATCH)
        return (time.perf_counter() - start) / found
    finally:
        stream.close()
        setting.drop(path)


def _ack(topic: esker.Topic, name: str) -> float:
    """Seconds for one."""
    with topic.group(name) as group:
        batches = list(group.poll(max_records=BATCH))
        start = time.perf_counter()
        for batch in batches:
            batch.ack()
        return (time.perf_counter() - start) / len(batches)


def _sqlite(path: Path, count: int) -> float:
    """A table as a log, and a table of cursors."""
    path.mkdir(exist_ok=True)
    file = path / "data.db"
    file.unlink(missing_ok=True)
    store = sqlite3.connect(file, isolation_level=None)
    store.execute("PRAGMA journal_mode=WAL")
    store.execute("PRAGMA synchronous=OFF")
    store.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
    store.execute("CREATE TABLE cursors (name TEXT PRIMARY KEY, cursor INTEGER)")
    store.execute("INSERT INTO cursors VALUES ('g', 0)")
    values = random_values(BATCH)
    for first in range(0, count, BATCH):
        rows = zip(range(first, first + BATCH), values, strict=True)
        store.execute("BEGIN")
        store.executemany("INSERT INTO log VALUES (?, ?)", rows)
        store.execute("COMMIT")
    start = time.perf_counter()
    cursor = 0
    while True:
        found = store.execute(
            "SELECT offset, value FROM log WHERE offset >= ? ORDER BY offset LIMIT ?",
            (cursor, BATCH),
        ).fetchall()
        if not found:
            break
        cursor = found[-1][0] + 1
        store.execute("UPDATE cursors SET cursor = ? WHERE name = 'g'", (cursor,))
    seconds = time.perf_counter() - start
    store.close()
    if cursor != count:
        raise RuntimeError(f"{cursor:,} records came, not {count:,}")
    return seconds
