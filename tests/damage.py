"""Small stores to damage, and what must come out of them afterwards."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import esker
from esker.storage.files import SYSTEM_FILES
from esker.storage.memory import MemoryFiles

ROOT = "/store"
Expected = dict[tuple[str, int], dict[int, esker.Record]]


def fill(store: esker.Store) -> None:
    """Two topics: keyed records one by one, and compressed batches with all columns."""
    orders = store.create("orders", shards=2, durability="fsync", segment_bytes=4096)
    for number in range(90):
        orders.append(b"order %03d " % number * 3, key=b"user-%d" % (number % 7), wait=True)
        store.tick()
    events = store.create("events", compression="zstd", compress_at="commit",
                          compress_min_bytes=256, segment_bytes=4096)  # fmt: skip
    for batch in range(14):
        records = [
            esker.Record(
                b"event %d.%d" % (batch, row),
                tag=f"tag-{row}" if row % 3 else None,
                node="eu-1",
                headers={"h": b"%d" % row} if row % 5 == 0 else None,
                timestamp=1_700_000_000_000_000 + batch * 100 + row,
            )
            for row in range(20)
        ]
        events.append_many(records)
        store.tick()


def contents(store: esker.Store) -> Expected:
    """Every record by topic, shard and offset."""
    found: Expected = {}
    for name in store:
        for shard in range(store[name].shards):
            records = store[name].read(shard=shard)
            found[name, shard] = {record.offset: record for record in records}
    return found


@cache
def prepared() -> tuple[MemoryFiles, Expected]:
    """A closed store of some 30 KB: sealed segments, logs, two catalogs; and what it holds.

    Made once. Take a `clone` before you damage it.
    """
    files = MemoryFiles()
    with esker.open(ROOT, files=files, background=False) as store:
        fill(store)
        return files, contents(store)


def small_store(path: Path) -> Expected:
    """The prepared store, put on a real disk."""
    files, expected = prepared()
    for name in sorted(files.dirs):
        if name.startswith(ROOT):
            (path / name[len(ROOT) :].lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, data in {**files.files, **files.pages}.items():
        (path / name[len(ROOT) :].lstrip("/")).write_bytes(bytes(data))
    return dict(expected)


def clone(files: MemoryFiles) -> MemoryFiles:
    """The same disk, without its locks: as after the death of whoever used it."""
    copy = MemoryFiles()
    copy.files = {name: bytearray(data) for name, data in files.files.items()}
    copy.dirs = set(files.dirs)
    return copy


def read_all(
    path: str | Path, expected: Expected, files: MemoryFiles | None = None, mode: str = "r"
) -> tuple[list[esker.EskerError], list[esker.Gap], int]:
    """Read everything there is. Wrong data fails at once; the rest is errors, gaps, a count.

    Whoever gets neither an error, nor a gap, nor a recovery report must have got everything.
    """
    errors: list[esker.EskerError] = []
    gaps: list[esker.Gap] = []
    count = 0
    try:
        store = esker.open(path, mode, files=files, background=False)
    except esker.EskerError as problem:
        return [problem], gaps, count
    with store:
        for (name, shard), records in expected.items():
            try:
                for item in store[name].read(shard=shard, gaps="yield"):
                    if isinstance(item, esker.Gap):
                        gaps.append(item)
                        continue
                    assert item == records[item.offset], "a record that nobody wrote"
                    count += 1
            except esker.EskerError as problem:
                errors.append(problem)
        told = bool(errors or gaps or store.recovery.findings)
        if not told and count < sum(map(len, expected.values())):
            # readers begin at the first record that is there; a loss before it is on record
            told = bool(esker.verify(path, files=files or SYSTEM_FILES).gaps)
        assert told or count == sum(map(len, expected.values())), "records are lost in silence"
    return errors, gaps, count
