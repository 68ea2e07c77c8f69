"""Waiting for records: what it costs while nothing comes, and that what comes is not waited for.

A writer of this process wakes whoever waits. Of one in another process only numbers in a mapped
page tell; the files are looked at a few times a second, however many wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import tail as tails
from esker.engine.follower import Follower
from esker.groups.group import Group
from tests.helpers import Threads, wait_until

Looks = Callable[[], int]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """How often the files of a shard were looked at since this was last asked."""
    count = 0
    refresh = Follower.refresh

    def counted(self: Follower) -> int:
        nonlocal count
        count += 1
        return refresh(self)

    def since() -> int:
        nonlocal count
        found, count = count, 0
        return found

    monkeypatch.setattr(Follower, "refresh", counted)
    return since


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store that was written and closed: whoever opens it has not written yet."""
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"0", b"1"])
        store.create("empty")
    return tmp_path / "data"


def test_a_follower_beside_a_topic_that_nobody_writes_hardly_looks(
    data: Path, looks: Looks
) -> None:
    with esker.open(data) as store:
        topic = store["t"]
        looks()
        assert list(topic.follow("latest", timeout=0.6)) == []
        assert looks() < 10
        assert list(store["empty"].follow("latest", timeout=0.6)) == []
        assert looks() < 40, "nobody has written to it, so there are no numbers to look at"


def test_so_does_a_task_that_follows(data: Path, looks: Looks) -> None:
    async def main() -> None:
        async with esker.aopen(data) as store:
            looks()
            assert [each async for each in store["t"].follow("latest", timeout=0.6)] == []
            assert looks() < 10

    asyncio.run(main())


@pytest.mark.parametrize("name", ["t", "empty"])
def test_the_first_record_of_this_process_wakes_who_waits(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "POLL_SECONDS", 60.0)  # nobody looks
    monkeypatch.setattr(tails, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(tails, "BLIND_SECONDS", 60.0)
    seen: list[bytes] = []
    with esker.open(data) as store:
        topic = store[name]
        threads = Threads()
        threads.start(
            lambda: seen.extend(each.value for each in topic.follow("latest", limit=1, timeout=30))
        )
        wait_until(lambda: topic._shards and topic._shards[0].waiters, "somebody to wait")
        topic.append(b"new", wait=True)
        threads.join()
        assert seen == [b"new"]
        assert topic._shards[0].waiters == []


@pytest.mark.parametrize("name", ["t", "empty"])
@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_what_another_handle_writes_is_seen(name: str, consistency: Any, data: Path) -> None:
    seen: list[bytes] = []
    with esker.open(data) as writer, esker.open(data, "r") as reader:
        following = reader[name].follow("latest", limit=3, timeout=30, consistency=consistency)
        threads = Threads()
        threads.start(lambda: seen.extend(each.value for each in following))
        for value in (b"a", b"b", b"c"):
            before = len(seen)
            writer[name].append(value, wait=True)
            writer[name].sync()
            wait_until(lambda: len(seen) > before, "it to be seen")  # noqa: B023
        threads.join()
    assert seen == [b"a", b"b", b"c"]


@pytest.mark.parametrize("name", ["t", "empty"])
def test_a_task_sees_what_another_handle_writes(name: str, data: Path) -> None:
    async def main() -> None:
        with esker.open(data) as writer:
            async with esker.aopen(data, mode="r") as store:
                following = store[name].follow("latest", timeout=30)
                first = asyncio.create_task(anext(following))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(writer[name].append, b"a", wait=True)
                assert (await first).value == b"a"

    asyncio.run(main())


def test_who_follows_a_topic_that_another_handle_deletes_is_told(data: Path) -> None:
    problems: list[BaseException] = []

    def follow() -> None:
        try:
            list(reader["t"].follow("latest", timeout=30))
        except esker.TopicNotFound as problem:
            problems.append(problem)

    with esker.open(data) as writer, esker.open(data, "r") as reader:
        threads = Threads()
        threads.start(follow)
        wait_until(lambda: reader["t"]._shards and reader["t"]._shards[0].waiters, "him to wait")
        writer.delete("t")
        threads.join()
    assert len(problems) == 1


# ---- groups ----------------------------------------------------------------------------------


def settled(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Each time a group looks what is its own."""
    found: list[Group] = []
    settle = Group._settle

    def counted(self: Group) -> list[int]:
        found.append(self)
        return settle(self)

    monkeypatch.setattr(Group, "_settle", counted)
    return found


def test_a_task_that_polls_a_group_sleeps_until_there_is_news(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with esker.aopen(data) as store:
            for topic in (store["t"], await store.create("written")):
                if topic.name == "written":
                    await topic.append(b"x", wait=True)
                group = await topic.group("g", "latest")
                times.clear()
                assert [each async for each in group.poll(wait=1.0)] == []
                assert len(times) < 10
                late = asyncio.create_task(anext(group.poll(wait=30)))
                await asyncio.sleep(0.1)
                await topic.append(b"new", wait=True)
                assert (await late).values == [b"new"]
                await group.close()

    times = settled(monkeypatch)
    asyncio.run(main())


def test_a_poll_of_a_group_that_is_paused_sleeps(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = settled(monkeypatch)
    with esker.open(data) as store:
        store["t"].append(b"2", wait=True)
        with store["t"].group("g") as group:
            next(iter(group.poll(max_records=1)))
            group.pause()
            times.clear()
            assert list(group.poll(wait=0.4)) == []
            assert len(times) < 40
            group.resume()
            assert [value for each in group.poll() for value in each.values] == [b"1", b"2"]
