"""What a route costs: records a second to one destination, and what its source notices of many.

The source is filled first and then forwarded, by the same steps that the thread makes: read as a
group, filtered, appended, synced, acked. Three filters stand side by side: none, one that looks at
tags, and one that reads every value as JSON. Exactly once has a mark on every batch besides.

What appending to the source takes is measured record by record, with and without a hundred routes
that wait for it, in one process and in turns; the ratio of the 99th percentiles is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

import esker
from bench.measure import Goal, Row
from bench.setting import NS, US, Setting
from bench.subject import Esker

WAYS = {
    "all": {},
    "by tag": {"where": 'tag == "eu"'},
    "by a JSON field": {"where": "json.amount >= 0"},
    "all, exactly once": {"exactly_once": True},
}
BATCH = 10_000
NO_ROUTES = "one without"


def routes(setting: Setting) -> Iterator[Row]:
    count = setting.size(1_000_000, 2_000)
    for name, how in WAYS.items():
        best = min(_forward(setting, count, how) for _ in range(setting.size(3, 1)))
        goal = (Goal.at_most(2_000),) if "JSON" not in name else ()  # half a million a second
        yield Row(
            f"route: {name}", {Esker.name: best / count / NS}, goal, details={"records": count}
        )
    rounds, alone, many = setting.size(5, 1), [], []
    for _ in range(rounds):
        alone.append(_p99(setting, 0))
        many.append(_p99(setting, setting.size(100, 3)))
    yield Row(
        "route: p99 of an append to a source of 100 routes",
        {Esker.name: min(many) / US, NO_ROUTES: min(alone) / US},
        (Goal.times_slower(1.25, than=NO_ROUTES),),
        unit="µs",
    )


def _forward(setting: Setting, count: int, how: dict[str, object]) -> float:
    path = setting.fresh("routes")
    with esker.open(path, background=False) as store:
        topic = store.create("orders")
        values = [b'{"amount": %d, "note": "%s"}' % (n, b"x" * 60) for n in range(BATCH)]
        table = pa.table({"value": values, "tag": ["eu"] * BATCH})
        for first in range(0, count, BATCH):
            topic.append_arrow(table.slice(0, min(BATCH, count - first)))
        store.sync()
        route = store.route("orders", "copies", **how)  # type: ignore[arg-type]
        start = time.perf_counter()
        while route.run_once():
            pass
        seconds = time.perf_counter() - start
        found = store["copies"].end()
        if found != count:
            raise RuntimeError(f"{found:,} records came, not {count:,}")
    setting.drop(path)
    return seconds


def _p99(setting: Setting, routes: int) -> float:
    """Seconds that 99 of 100 appends to the source took at most."""
    path = setting.fresh("routes-source")
    count = setting.size(50_000, 500)
    with esker.open(path) as store:
        topic = store.create("orders")
        for number in range(routes):
            store.route("orders", f"copies-{number}", where='tag == "nobody"')
        took = []
        for _ in range(count):
            start = time.perf_counter()
            topic.append(b"x" * 100)
            took.append(time.perf_counter() - start)
    setting.drop(path)
    return sorted(took)[int(count * 0.99)]
