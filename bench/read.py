"""Reading from the first record to the last, from files that are in the page cache.

Every run opens its store anew, outside the clock: no frame is verified before it starts, no file is
mapped. Esker compares every checksum; LMDB has none, RocksDB verifies its blocks, SQLite nothing.
The peers hand out Python bytes, their only form, so their cost is the same in each of these rows.

What a batch costs is paid per frame, so it matters how the records were written: as the buffer of
`append` writes them, or as batches of 1,000, which are too large for sealing to merge and are
handed out one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.append import MANY
from bench.measure import Contender, Figure, Goal, Row
from bench.peers import Tally
from bench.setting import NS, Setting, expect, in_batches, per, random_values
from bench.subject import STORES, Esker, available

SEGMENTS = 2  # sealed ones, of nearly the default size


def read(setting: Setting) -> Iterator[Row]:
    active = setting.size(500_000, 4_000)  # fits in one segment: all of it stays in the log
    count = active * SEGMENTS
    values = random_values(count)
    peers = [name for name in STORES if name != Esker.name]
    filled = {name: _filled(setting, name, values) for name in peers if available(name)}
    sealed_at = _sealed(setting, Esker.append_one_by_one, values)
    batches_at = _sealed(setting, Esker.append_many, in_batches(values, MANY))
    active_at = setting.fresh("read-active")
    with closing(Esker(active_at)) as store:
        store.append_one_by_one(values[:active])

    def esker(how: Callable[[Esker], Tally], path: Path, records: int) -> Contender[Any]:
        return setting.contender(Esker.name, lambda s: expect(how(s), records), filled=path)

    seconds = setting.compare(
        lambda store: expect(store.read_all(), count),
        repeats=5,
        columns=peers,
        filled=filled,
        also={
            "sealed": esker(Esker.read_arrow, sealed_at, count + 1),
            "active": esker(Esker.read_arrow, active_at, active),
            "batches": esker(Esker.read_arrow, batches_at, count + 1),
            "bytes": esker(Esker.read_all, sealed_at, count + 1),
            "records": esker(Esker.read_records, sealed_at, count + 1),
        },
    )
    for path in (*filled.values(), sealed_at, batches_at, active_at):
        setting.drop(path)
    costs = per(count, seconds, NS) | {"active": per(active, seconds, NS)["active"]}
    yield from _rows(costs, count)


def _rows(costs: dict[str, Figure], count: int) -> Iterator[Row]:
    goals = (Goal.at_most(30), Goal.times_faster(10, than="lmdb"))
    for form, figure, wanted in (
        ("Arrow: sealed segments", "sealed", goals),
        ("Arrow: active segment", "active", goals),
        (f"Arrow: sealed, written by {MANY:,}", "batches", goals),
        ("Python bytes", "bytes", (Goal.at_most(80),)),
        ("Record objects", "records", ()),
    ):
        figures = {name: costs.get(name) for name in STORES} | {Esker.name: costs[figure]}
        records = count // SEGMENTS if figure == "active" else count
        yield Row(f"read, verified, to {form}", figures, wanted, details={"records": records})


def _filled(setting: Setting, name: str, values: Sequence[bytes]) -> Path:
    """A closed store of a peer."""
    path = setting.fresh(f"read-{name}")
    with closing(STORES[name](path)) as store:
        store.append_many(in_batches(values, MANY))
        store.settle()
    return path


def _sealed(setting: Setting, append: Callable[[Esker, Any], None], values: Sequence[Any]) -> Path:
    """A closed store of sealed segments, and a last record in an active one: it made them roll."""
    path = setting.fresh("read-sealed")
    records = sum(map(len, values)) if isinstance(values[0], list) else len(values)
    with closing(Esker(path, segment_records=records // SEGMENTS)) as store:
        append(store, values)
        store.append_committed(random_values(1))
    return path
