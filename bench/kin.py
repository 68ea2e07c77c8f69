"""What it costs to read the formats of five other logs into Arrow, for each MB of their files.

Records of 200 bytes on average, of one length and of many: where all have one length nobody hops
from header to header. The files are in the page cache and the time is that of the processor, as
nothing here waits for anything. The goal is 300 MB/s on one core. Checksums count: XXH3 for each
record of topics, CRC-64 for those of AOF2, which nothing that Esker depends on can do.

Then a copy of 1 GB of each to a store, from files to what is durable, in time of the clock; the
goal is 20 s. The smoke run and a small disk take less and are shown for 1 GB.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import esker
import esker.kin
from bench.measure import Goal, Row
from bench.setting import Setting
from bench.subject import Esker

MB = 1_000_000
GOAL = Goal.at_most(1000 / 300)  # ms/MB
IMPORT_GOAL = Goal.at_most(20.0)  # s/GB


def kin(setting: Setting) -> Iterator[Row]:
    count = setting.size(200_000, 2_000)
    for lengths in ("one length", "many lengths"):
        path = setting.fresh("kin")
        with esker.open(path / "store") as store:
            topic = store.create("t")
            topic.append_arrow(_records(count, lengths))
            for kind in esker.kin.KINDS:
                esker.kin.export_topic(topic, path / kind, kind)
        for kind in esker.kin.KINDS:
            best = min(_read(path / kind, kind, count) for _ in range(setting.size(5, 1)))
            yield Row(
                f"kin: read {kind}, records of {lengths}", {Esker.name: best}, (GOAL,),
                unit="ms/MB", details={"records": count},
            )  # fmt: skip


def importing(setting: Setting) -> Iterator[Row]:
    count = setting.size(5_000_000, 2_000)
    path = setting.fresh("kin")
    table = _records(min(count, 250_000), "many lengths")
    for kind in esker.kin.KINDS:
        with esker.open(path / "store") as store:
            topic = store.create("t")
            for _ in range(0, count, len(table)):
                topic.append_arrow(table)
            made = esker.kin.export_topic(topic, path / kind, kind)
            store.delete("t")
            start, spent = time.perf_counter(), time.process_time()
            done = esker.kin.import_(path / kind, store, "copy", kind=kind)
            seconds, spent = time.perf_counter() - start, time.process_time() - spent
            assert done.records == made.records
            store.delete("copy")
        shutil.rmtree(path / kind)
        size = made.records * 200
        yield Row(
            f"kin: import 1 GB of {kind}", {Esker.name: seconds * 1e9 / size}, (IMPORT_GOAL,),
            unit="s/GB", details={"records": made.records, "processor": spent * 1e9 / size},
        )  # fmt: skip


def _records(count: int, lengths: str) -> pa.Table:
    chance = random.Random(7)
    noise = chance.randbytes(1 << 20)
    sizes = [200 if lengths == "one length" else chance.randrange(100, 300) for _ in range(count)]
    values = [noise[at : at + size] for at, size in zip(range(count), sizes, strict=True)]
    return pa.table({"value": pa.array(values, pa.binary())})


def _read(path: Path, kind: str, count: int) -> float:
    """Milliseconds of the processor for each MB of values."""
    with esker.kin.open_kin(path, kind) as store:
        (name,) = store
        topic = store[name]
        topic.end()  # where it ends is found once, and kept
        start = time.process_time()
        rows = size = 0
        for batch in topic.batches(max_bytes=8 << 20):
            rows += len(batch)
            size += batch.nbytes
        spent = time.process_time() - start
    assert rows == count
    return spent * 1000 / (size / MB)
