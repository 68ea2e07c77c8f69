"""The checker's part that looks at what Spark made: revenue by windows, and an archive.

Both are made again, from the orders, in plain Python: sums in a dictionary, and Parquet files as
pyarrow reads them, which has never heard of Esker.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pyarrow.parquet as pq

import esker
from esker.demo import goods, notes
from esker.demo.evidence import Claim, Values
from esker.demo.goods import ORDERS, REVENUE
from esker.demo.pipeline import WINDOW
from esker.storage.files import SYSTEM_FILES, content_of, join

Key = tuple[int, str]  # of a window, in seconds since 1970, and a region
Sums = dict[Key, tuple[int, int]]  # orders and cents


def check(store: esker.Store, data: str, folder: str, orders: dict[int, Values]) -> list[Claim]:
    """A claim for each job that ran; none for one that did not."""
    steps = [words for _, words in notes.all_lines(folder, "spark")]
    ran = {words[0] for words in steps}
    claims = []
    if "revenue" in ran:
        ends = [words[1:] for words in steps if words[0] == "upto"][-1]
        claims.append(revenue(store, [int(end) for end in ends]))
    if "archive" in ran:
        rows = sum(int(words[1]) for words in steps if words[0] == "archive")
        claims.append(archived(join(data, "archive", f"topic={ORDERS}"), orders, rows))
    return claims


# ---- revenue ---------------------------------------------------------------------------------


def summed(store: esker.Store, ends: list[int]) -> Sums:
    """The orders before these offsets, by window and region."""
    found: Sums = {}
    for shard, end in enumerate(ends):
        for batch in store[ORDERS].batches("earliest", end, shard=shard, gaps="skip"):
            for record in batch.records():
                order = goods.order_of(record.value)
                if order is None:
                    continue
                window = (record.timestamp or 0) // 1_000_000 // WINDOW * WINDOW
                count, cents = found.get((window, order.region), (0, 0))
                found[window, order.region] = (count + 1, cents + order.cents)
    return found


def told(store: esker.Store) -> Sums:
    """What the topic says; the newest record of a key counts."""
    found: Sums = {}
    if REVENUE in store:
        for record in store[REVENUE].read("earliest", gaps="skip"):
            row: dict[str, Any] = msgspec.json.decode(record.value)
            start = int(datetime.fromisoformat(row["window_start"]).timestamp())
            found[start, row["region"]] = (row["orders"], row["cents"])
    return found


def revenue(store: esker.Store, ends: list[int]) -> Claim:
    """Spark's sums are the orders' sums."""
    counted, said = summed(store, ends), told(store)
    wrong = sum(said.get(key) != sums for key, sums in counted.items())
    wrong += len(said.keys() - counted.keys())
    cents = sum(cents for _, cents in counted.values())
    return Claim(
        "revenue by Spark",
        "the orders, added up",
        f"{len(counted):,} sums of {cents / 100:,.2f} in all, {wrong:,} of them not the same",
        not wrong and bool(counted),
    )


# ---- the archive -----------------------------------------------------------------------------


def parquet_files(folder: str) -> list[tuple[int, str]]:
    """The Parquet files of a topic's archive that count, each with its shard.

    Files that were merged into others stay for a while, for those who still read them. The manifest
    is JSON, and says which are which.
    """
    manifest = msgspec.json.decode(content_of(SYSTEM_FILES, join(folder, "_manifest.json")))
    return [
        (each["shard"],
         join(folder, f"partition={each['shard']}", f"date={each['day']}", each["name"]))
        for each in manifest["files"]
    ]  # fmt: skip


def archived(folder: str, orders: dict[int, Values], said: int) -> Claim:
    """Every order of the archive is in the log, the same, and there once."""
    rows = differ = 0
    seen: set[tuple[int, int]] = set()
    files = parquet_files(folder) if SYSTEM_FILES.kind(folder) else []
    for shard, path in files:
        table = pq.ParquetFile(path).read(columns=["offset", "value"])
        pairs = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        values = orders.get(shard, {})
        for offset, value in pairs:
            rows += 1
            differ += values.get(offset) != value
            seen.add((shard, offset))
    return Claim(
        "archive by Spark",
        f"{said:,} orders as Parquet",
        f"{rows:,} rows in {len(files)} files: {differ:,} differ from the log, "
        f"{rows - len(seen):,} are there twice",
        rows == said and not differ and rows == len(seen),
    )
