"""Appending: one by one, in batches, as Arrow, compressed. All of it to the page cache.

The sizes stay below `max_unflushed_bytes`, above which Esker makes the caller wait for the disk: it
is the software that is compared here, and the disk below.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import esker
from bench.measure import Goal, Row
from bench.peers import COMMIT_EVERY
from bench.setting import MB, NS, SEED, Setting, in_batches, per, random_values
from bench.subject import TOPIC, Esker, Raw

MANY = 1_000
ARROW_ROWS = 10_000


def one_by_one(setting: Setting) -> Iterator[Row]:
    count = setting.size(400_000, 6_000)
    values = random_values(count)
    seconds = setting.compare(lambda store: store.append_one_by_one(values), repeats=5)
    yield Row(
        f"append one by one, flushed every {COMMIT_EVERY:,}",
        per(count, seconds, NS),
        (Goal.at_most(350), Goal.times_faster(4, than="lmdb")),
        details={"records": count},
    )


def many(setting: Setting) -> Iterator[Row]:
    count = setting.size(1_000_000, 5_000)
    batches = in_batches(random_values(count), MANY)
    seconds = setting.compare(lambda store: store.append_many(batches), repeats=5)
    yield Row(
        f"append_many of {MANY:,}",
        per(count, seconds, NS),
        (Goal.at_most(100), Goal.times_faster(4, than="rocksdb")),
        details={"records": count},
    )


def once(setting: Setting) -> Iterator[Row]:
    """Batches with an idempotency key, each its own, and the same without, in turns."""
    count = setting.size(1_000_000, 5_000)
    batches = in_batches(random_values(count), MANY)

    def keyed(store: Esker) -> None:
        for number, batch in enumerate(batches):
            store.topic.append_many(batch, idempotency_key=b"batch %d" % number)

    also = {
        Esker.name: setting.contender(Esker.name, keyed, open_store=Esker),
        "none": setting.contender(
            "none", lambda store: store.append_many(batches), open_store=Esker
        ),
    }
    seconds = setting.compare(lambda store: None, repeats=5, columns=(), also=also)
    yield Row(
        f"append_many of {MANY:,} with an idempotency key",
        per(count, seconds, NS),
        (Goal.times_faster(0.7, than="none"),),
        details={"records": count},
    )


def arrow(setting: Setting) -> Iterator[Row]:
    """The bare write gets as many bytes per call as Esker makes of a batch, from other memory."""
    count = setting.size(2_000_000, 20_000)
    parts = in_batches(random_values(count), ARROW_ROWS)
    batches = [arrow_batch(part) for part in parts]
    size_bytes = _bytes_on_disk(setting, batches) // len(batches)
    padding = bytes(max(0, size_bytes - ARROW_ROWS * len(parts[0][0])))
    chunks = [b"".join(part) + padding for part in parts]

    def run(store: Esker | Raw) -> None:
        if isinstance(store, Esker):
            store.append_arrow(batches)
        else:
            store.write(chunks)

    seconds = setting.compare(run, repeats=7, columns=(Esker.name, Raw.name))
    yield Row(
        f"append_arrow of {ARROW_ROWS:,} rows; raw: a bare pwrite of them",
        per(count, seconds, NS),
        (Goal.at_most(40), Goal.times_faster(0.4, than=Raw.name)),
        details={"records": count, "bytes_per_write": size_bytes},
    )


def arrow_batch(values: Any) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def _bytes_on_disk(setting: Setting, batches: list[Any]) -> int:
    """What Esker writes for these batches, headers and checksums included."""
    path = setting.fresh("measured")
    with closing(Esker(path)) as store:
        store.append_arrow(batches)
        written = store.topic.counters()["total_bytes"]
    setting.drop(path)
    return int(written)


def compressed(setting: Setting) -> Iterator[Row]:
    """JSON telemetry with zstd and without, in turns; and what is left of each when sealed."""
    count = setting.size(1_000_000, 5_000)
    values = telemetry(count)
    batches = in_batches(values, MANY)
    topics = {Esker.name: "zstd", "none": "none"}
    also = {
        name: setting.contender(
            name, lambda store: store.append_many(batches),
            open_store=partial(Esker, compression=codec),
        )
        for name, codec in topics.items()
    }  # fmt: skip
    seconds = setting.compare(lambda store: None, repeats=5, columns=(), also=also)
    yield Row(
        f"append_many of {MANY:,} with zstd, JSON telemetry",
        per(count, seconds, NS),
        (Goal.times_faster(0.4, than="none"),),
        details={"records": count, "bytes_per_record": sum(map(len, values)) // count},
    )
    sealed = {name: _sealed(setting, batches, codec) for name, codec in topics.items()}
    yield Row(
        "the same, sealed",
        {name: size / MB for name, (size, _) in sealed.items()},
        (Goal.times_faster(5, than="none"),),
        unit="MB",
        details={f"seconds to seal, {name}": round(took, 2) for name, (_, took) in sealed.items()},
    )


def telemetry(count: int) -> list[bytes]:
    """What a thousand devices say of themselves: the same fields every time, other numbers."""
    chance = random.Random(SEED)
    return [
        json.dumps(
            {
                "device": f"sensor-{chance.randrange(1000):04}",
                "site": chance.choice(("north", "south", "harbour")),
                "at": f"2026-11-15T12:{number // 60000 % 60:02}:{number // 1000 % 60:02}"
                f".{number % 1000:03}Z",
                "temperature": round(chance.gauss(21, 3), 2),
                "humidity": round(chance.uniform(30, 60), 1),
                "battery": chance.randrange(20, 100),
                "status": "ok" if chance.random() < 0.99 else "degraded",
                "firmware": "4.12.0",
            }
        ).encode()
        for number in range(count)
    ]


def _sealed(setting: Setting, batches: list[Any], codec: str) -> tuple[int, float]:
    """The bytes of all sealed segments, which end at the same records with any codec, and how
    long sealing took."""
    path = setting.fresh(codec)
    rows = max(MANY, sum(map(len, batches)) // 20)
    with esker.open(path, background=False) as store:
        topic = store.create(TOPIC, compression=codec, segment_records=rows)
        for batch in batches:
            topic.append_many(batch)
        start = time.perf_counter()
        store.tick()
        took = time.perf_counter() - start
    sizes = [found.stat().st_size for found in Path(path).rglob("*.seg")]
    setting.drop(path)
    return sum(sizes), took
