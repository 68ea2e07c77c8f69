"""This disk, by commit class and size of batch: what each kind of promise costs here.

One thread appends for a moment in each way, into a store of its own, which is removed. It is a
glance, not a benchmark: `make bench` is one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final, NamedTuple

import esker
from esker.clock import SYSTEM_CLOCK
from esker.storage.files import SYSTEM_FILES, join

CLASSES: Final = ("fsync", "disk", "memory")
BATCHES: Final = (1, 100, 1_000)
SIZE: Final = 110  # bytes of a value
SYNCS: Final = 20  # bare ones


class Cell(NamedTuple):
    """One way to append."""

    durability: str
    batch: int
    records: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0


def measure(folder: str, seconds: float, tell: Callable[[str], None]) -> list[Cell]:
    """All ways, each for so many seconds."""
    cells = []
    try:
        with esker.open(folder) as store:
            for durability in CLASSES:
                topic = store.create(durability, durability=durability)
                for batch in BATCHES:
                    tell(f"class {durability}, {batch:,} at a time")
                    cells.append(_measure(topic, durability, batch, seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return cells


def _measure(topic: esker.Topic, durability: str, batch: int, seconds: float) -> Cell:
    values = [b"x" * SIZE] * batch
    records = 0
    began = SYSTEM_CLOCK.monotonic()
    while (passed := SYSTEM_CLOCK.monotonic() - began) < seconds:
        if batch == 1:
            topic.append(values[0], wait=True)
        else:
            topic.append_many(values, wait=True)
        records += batch
    return Cell(durability, batch, records, passed)


def bare_sync(folder: str) -> float:
    """Milliseconds that the disk needs for a small write and a sync, without Esker; the middle of
    a few."""
    path = join(folder, "sync")
    file = SYSTEM_FILES.open(path, "create")
    took = []
    try:
        for number in range(SYNCS):
            began = SYSTEM_CLOCK.monotonic()
            file.write(number * SIZE, [b"x" * SIZE])
            file.sync()
            took.append(SYSTEM_CLOCK.monotonic() - began)
    finally:
        file.close()
        SYSTEM_FILES.unlink(path)
    return sorted(took)[SYNCS // 2] * 1e3
