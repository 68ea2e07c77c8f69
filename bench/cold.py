"""Cold segments: what a slow cold store costs who appends, and what it costs to read from one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import esker
from bench.life import Writer, _ninety_ninth
from bench.measure import Goal, Row
from bench.setting import MS, US, Setting, random_values
from bench.subject import TOPIC, VALUE_BYTES, Esker, Raw

SLOW = 2.0  # seconds that the cold store takes for each answer
PATIENCE = 120.0


def slow_store(setting: Setting) -> Iterator[Row]:
    """Appends while segments are moved to a cold store that answers in two seconds, and without."""
    seconds = setting.size(12, 1)
    delay = SLOW if not setting.smoke else 0.1
    taken: dict[str, list[float]] = {}
    moving = asked = 0
    for name, cold in (("none", False), (Esker.name, True), ("none again", False)):
        path = setting.fresh("slow")
        place = {"cold": str(path) + "-cold"} if cold else {}
        with esker.open(path, **place) as store:
            if cold:
                slowed = _slow(store, delay)
            topic = store.create(TOPIC, segment_bytes="1MiB", hot_segments=1)
            values = random_values(4_000)
            for _ in range(10):
                topic.append_many(values)
            writer = Writer(topic, values[0])
            time.sleep(seconds)
            taken[name] = writer.taken()
            if cold:
                moving, asked = len(store.maintenance().doing), slowed()
            writer.close()
        time.sleep(2 * delay if cold else 0)  # who still asks the cold store
        setting.drop(path)
        setting.drop(Path(str(path) + "-cold"))
    if not asked:
        raise RuntimeError("the cold store was not asked")
    best = min(_ninety_ninth(taken["none"]), _ninety_ninth(taken["none again"]))
    yield Row(
        "append(wait=True), 99th of a hundred, cold store answers in 2 s",
        {Esker.name: _ninety_ninth(taken[Esker.name]) / US, "none": best / US},
        (Goal.times_slower(2, than="none"),),
        unit="µs",
        details={
            "appends": len(taken[Esker.name]), "calls_of_the_cold_store": asked,
            "at_work": moving, "slowest_us": max(taken[Esker.name]) / US,
            "slowest_without_us": max(taken["none"]) / US,
        },
    )  # fmt: skip


def _slow(store: esker.Store, delay: float) -> Any:
    """Let every answer of the cold store take so long; returns how often it was asked."""
    cold = store._context.maps.cold.store(store._context.cold)
    calls: list[str] = []

    def slowly(real: Any, *arguments: Any) -> Any:
        calls.append(real.__name__)
        time.sleep(delay)
        return real(*arguments)

    for name in ("put", "get", "list", "folders", "delete"):
        setattr(cold, name, partial(slowly, getattr(cold, name)))
    return lambda: len(calls)


def cold_read(setting: Setting) -> Iterator[Row]:
    """A cold segment of 64 MiB, every record; beside it, copying its file and reading the copy."""
    count = setting.size((64 << 20) // (VALUE_BYTES + 4), 4_000)
    path, cold = setting.fresh("cold-read"), setting.fresh("cold-place")
    values = random_values(count)
    with esker.open(path, cold=cold, background=False) as store:
        topic = store.create(TOPIC, segment_records=count, segment_bytes="256MiB")
        for first in range(0, count, 10_000):
            topic.append_many(values[first : first + 10_000])
        topic.append_many(values[:1])
        store.tick()
        moved = store.tier(TOPIC, "cold")
    [whole] = [each for each in cold.rglob("*.seg-*") if each.is_file()]
    best: dict[str, float] = {}
    for _ in range(setting.size(5, 1)):
        with esker.open(path, "r", cold=cold) as store:
            start = time.perf_counter()
            found = sum(len(batch) for batch in store[TOPIC].batches(0, count))
            best[Esker.name] = min(time.perf_counter() - start, best.get(Esker.name, PATIENCE))
        if found != count:
            raise RuntimeError(f"read {found}, expected {count}")
        target = setting.fresh("copy")
        start = time.perf_counter()
        shutil.copyfile(whole, target)
        target.read_bytes()
        best[Raw.name] = min(time.perf_counter() - start, best.get(Raw.name, PATIENCE))
        target.unlink()
    setting.drop(path)
    setting.drop(cold)
    yield Row(
        f"read a cold segment of {moved.bytes / 2**20:.0f} MiB, verified; raw: copy and read it",
        {name: seconds / MS for name, seconds in best.items()},
        (Goal.times_slower(2, than=Raw.name),),
        unit="ms",
        details={"records": count, "bytes": moved.bytes},
    )  # fmt: skip


def cold(setting: Setting) -> Iterator[Row]:
    yield from slow_store(setting)
    yield from cold_read(setting)
