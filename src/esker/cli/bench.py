"""`esker bench`: how fast this disk is, by commit class. A few seconds, in a directory of its own.

Each class is asked the same: append batches until the time is up, each timed from the call to its
ack; then read all of it back. The numbers are for this machine, now, and for nothing else.
"""

from __future__ import annotations

import os
import tempfile
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import Parameter

from esker.cli.failing import Usage
from esker.cli.progress import Bar
from esker.cli.shown import USUAL, Column, Shown, answer, number
from esker.clock import SYSTEM_CLOCK

Class = Literal["fsync", "disk", "memory"]
CLASSES: Final[tuple[Class, ...]] = ("fsync", "disk", "memory")


class Measured(msgspec.Struct):
    """One class, one size of batch."""

    durability: str
    batch: int
    size_bytes: int
    records: int
    append_per_second: float
    append_mb_per_second: float
    p50_us: float
    p99_us: float
    read_per_second: float


_ROW: Final = (
    Column("CLASS", lambda row: row.durability),
    Column("BATCH", lambda row: number(row.batch), right=True),
    Column("SIZE", lambda row: f"{row.size_bytes:,} B", right=True),
    Column("APPENDS/S", lambda row: number(row.append_per_second), right=True),
    Column("MB/S", lambda row: f"{row.append_mb_per_second:,.1f}", right=True),
    Column("P50", lambda row: f"{row.p50_us:,.0f} us", right=True),
    Column("P99", lambda row: f"{row.p99_us:,.0f} us", right=True),
    Column("READS/S", lambda row: number(row.read_per_second), right=True),
)


def bench(
    *, durability: Annotated[tuple[Class, ...], Parameter(negative="")] = CLASSES,
    batch: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 1000),
    size: int = 100,
    time: Annotated[float, Parameter(name=["--seconds"])] = 1.0,
    dir: str | None = None,
    shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Append and read by commit class: records a second, and how long a batch waits for its ack.

    It writes to a new directory, and removes it. What it says holds for this machine, now.

    Parameters
    ----------
    durability
        A commit class; may be given again.
    batch
        Records in a batch; may be given again.
    size
        Bytes of a record.
    time
        Seconds for each line.
    dir
        On which disk: a directory there. Default: the working directory.
    """
    if size < 1 or time <= 0 or min(batch) < 1:
        raise Usage("--size, --seconds and --batch are above 0")
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="esker-bench-", dir=dir or ".") as folder,
        Bar("bench", "files", len(durability) * len(batch)) as bar,
    ):
        for kind in durability:
            for many in batch:
                rows.append(_measure(folder, kind, many, size, time))
                bar.add(1)
    answer(shown, {"results": rows}, rows, _ROW)
    return 0


def _measure(folder: str, kind: Class, many: int, size: int, length: float) -> Measured:
    import esker

    clock = SYSTEM_CLOCK.monotonic
    values: Any = [os.urandom(size) for _ in range(many)]
    waits: list[float] = []
    with esker.open(os.path.join(folder, f"{kind}-{many}")) as store:
        topic = store.create("bench", durability=kind)
        topic.append_many(values, wait=True)  # the first one makes files
        began = last = clock()
        while last - began < length:
            topic.append_many(values, wait=True)
            now = clock()
            waits.append(now - last)
            last = now
        count = len(waits) * many
        next(topic.batches(), None)  # what is imported for the first read is not its speed
        reading = clock()
        read = sum(len(part) for part in topic.batches())
        read_seconds = max(clock() - reading, 1e-9)
    waits.sort()
    seconds = last - began
    return Measured(
        kind, many, size, count, count / seconds, count * size / seconds / 1e6,
        waits[len(waits) // 2] * 1e6, waits[min(len(waits) - 1, len(waits) * 99 // 100)] * 1e6,
        read / read_seconds,
    )  # fmt: skip
