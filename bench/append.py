"""Appending: one by one, in batches, as Arrow. All of it to the page cache.

The sizes stay below `max_unflushed_bytes`, above which Esker makes the caller wait for the disk: it
is the software that is compared here, and the disk below.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from bench.measure import Goal, Row
from bench.peers import COMMIT_EVERY
from bench.setting import NS, Setting, in_batches, per, random_values
from bench.subject import Esker, Raw

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
