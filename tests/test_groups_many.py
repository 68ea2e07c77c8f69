"""Groups over many topics, and groups of asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.testing import ManualClock, SimulatedDisk
from tests.helpers import PATIENCE

ROOT = "/store"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> Iterator[esker.Store]:
    with opened(disk, clock) as made:
        yield made


def opened(disk: SimulatedDisk, clock: ManualClock) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=clock, background=False)


def add(store: esker.Store, *names: str) -> None:
    for name in names:
        store.create(name, durability="fsync", exist_ok=True).append(name.encode(), wait=True)


def came(group: Any) -> list[str]:
    """What comes, acked; each value is the name of its topic."""
    found = []
    for batch in group.poll():
        assert {value.decode() for value in batch.values} == {batch.topic}
        found += [batch.topic] * len(batch)
        batch.ack()
    return sorted(found)


def test_all_topics_of_a_pattern_are_read_and_those_that_come(store: esker.Store) -> None:
    add(store, "events:a", "events:b", "other")
    with store.group("audit", "events:*") as group:
        assert group.topics == ["events:a", "events:b"]
        assert came(group) == ["events:a", "events:b"]
        add(store, "events:c", "events:a")
        assert came(group) == ["events:a", "events:c"]  # at once: this process has made it
        assert came(group) == []
        assert "events:c" in repr(group)
        assert [lag.records for lag in group.lag()] == [0, 0, 0]
        assert [status.name for status in group.describe()] == ["audit"] * 3
    several = store.group("more", ["events:a", "oth*"])
    assert came(several) == ["events:a", "events:a", "other"]


def test_topics_of_other_processes_are_found_within_a_second(
    store: esker.Store, disk: SimulatedDisk, clock: ManualClock
) -> None:
    group = store.group("audit", "events:*")
    with opened(disk, clock) as other:
        add(other, "events:a")
    clock.forward(0.5)
    assert came(group) == []
    clock.forward(0.6)
    assert came(group) == ["events:a"]


def test_a_topic_that_came_while_nobody_looked_is_read_from_its_beginning(
    store: esker.Store,
) -> None:
    add(store, "events:old")
    with store.group("audit", "events:*", "latest") as group:
        assert came(group) == []
    add(store, "events:new", "events:old")
    with store.group("audit", "events:*", "latest") as group:
        assert came(group) == ["events:new", "events:old"]


def test_a_topic_that_is_deleted_and_made_again_is_another_one(store: esker.Store) -> None:
    add(store, "events:a", "events:b")
    group = store.group("audit", "events:*")
    assert came(group) == ["events:a", "events:b"]
    store.delete("events:a")
    assert came(group) == []
    assert group.topics == ["events:b"]
    add(store, "events:a")
    assert came(group) == ["events:a"]


def test_many_topics_are_moved_paused_and_closed_as_one(store: esker.Store) -> None:
    add(store, "events:a", "events:b")
    group = store.group("audit", "events:*")
    assert len(came(group)) == 2
    assert [move.records for move in group.seek("earliest", dry_run=True)] == [1, 1]
    group.seek("earliest")
    group.pause()
    assert came(group) == []
    group.resume()
    batches = list(group.poll())
    group.rewind()
    assert [batch.topic for batch in group.poll()] != []
    for batch in batches:
        batch.ack()
    group.sync()
    seen: list[str] = []
    group.seek("earliest")
    group.stop()
    assert group.process(lambda batch: seen.append(batch.topic)) == 0
    group.close()
    with pytest.raises(esker.StoreClosed):
        group.poll()
    assert all(status.pids == () for status in store.groups())


def test_what_is_no_pattern_is_refused(store: esker.Store) -> None:
    for pattern in ("", [], ["a", ""], [7]):
        with pytest.raises(esker.InvalidOption):
            store.group("g", pattern)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidOption, match="offsets are of one topic"):
        store.group("g", "a*", 5)
    group = store.group("g", "a*")
    with pytest.raises(esker.InvalidOption):
        group.poll(wait=-1)


# ---- asyncio ---------------------------------------------------------------------------------


def test_the_asyncio_group_has_every_verb_of_the_blocking_one() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    looked_at = {"ack", "paused"}  # of the group itself: `batch.ack` needs no loop
    assert verbs(esker.Group) - verbs(esker.AsyncGroup) == looked_at
    assert verbs(esker.PatternGroup) - verbs(esker.AsyncGroup) == {"discover", "topics"}


def test_a_group_is_read_without_holding_up_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "s") as store:
            topic = store["orders"]
            await topic.append_many([b"a", b"b"])
            async with await topic.group("g") as group:
                async for batch in group.poll(max_records=1):
                    batch.ack()
                await group.sync()
                assert (await group.lag()).records == 0  # type: ignore[union-attr]
                assert (await group.describe()).records == 0  # type: ignore[union-attr]
                waiting = asyncio.create_task(_first(group))
                await asyncio.sleep(0.05)
                await topic.append(b"c", wait=True)
                assert await asyncio.wait_for(waiting, PATIENCE) == [b"c"]
                assert [move.after for move in await group.seek("earliest")] == [0]
                await group.pause()
                assert [batch async for batch in group.poll(wait=0.01)] == []
                await group.resume()
                assert [len(batch) async for batch in group.poll()] == [3]
                await group.rewind()
                assert (await topic.groups())[0].records == 3
                assert len(await store.groups()) == 1
            await topic.forget_group("g")
            many = await store.group("m", "ord*")
            assert [len(batch) async for batch in many.poll()] == [3]
            await many.close()

    async def _first(group: Any) -> list[bytes]:
        async for batch in group.poll(wait=None):
            return list(batch.values)
        return []

    asyncio.run(main())


def test_handlers_of_asyncio_are_tried_again_skipped_and_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "s") as store:
            await store["t"].append_many([b"%d" % n for n in range(10)], wait=True)
            group = await store["t"].group("g")
            calls: list[int] = []

            async def handler(batch: Any) -> None:
                calls.append(batch.first)
                if batch.first == 0 and len(calls) < 3:
                    raise ValueError("not yet")
                if batch.first == 2:
                    raise KeyError("never")
                if batch.first == 6:
                    raise esker.StopProcessing

            def on_error(batch: Any, problem: Exception) -> Any:
                return "skip" if isinstance(problem, KeyError) else "stop"

            done = await group.process(
                handler, retries=2, delay=0, on_error=on_error, max_records=2, idle=0.05
            )
            assert calls == [0, 0, 0, 2, 2, 2, 4, 6]
            assert done == 6
            await group.sync()
            assert (await group.lag()).records == 2  # type: ignore[union-attr]
            assert await group.process(_nothing, idle=0.05) == 2
            await group.seek(-1)
            assert await group.process(_failing, retries=0, on_error=lambda b, p: "stop") == 0
            await group.rewind()
            with pytest.raises(ZeroDivisionError):
                await group.process(_failing, retries=0)
            group.stop()
            assert await group.process(_nothing) == 0

    async def _nothing(batch: Any) -> None:
        return None

    async def _failing(batch: Any) -> None:
        raise ZeroDivisionError

    asyncio.run(main())
