"""The asyncio twin of a store on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.server.run import Server
from tests.helpers import wait_until


async def waiting_for(store: esker.AsyncStore, count: int) -> None:
    """Until so many wait for records."""
    pool: Any = store._store._pool  # type: ignore[attr-defined]
    await asyncio.to_thread(wait_until, lambda: len(pool._waiting) == count, "all to wait")


def test_the_same_verbs_work_over_http(server: Server) -> None:
    async def main() -> None:
        async with esker.aopen(server.url) as store:
            topic = store["orders"]
            assert await topic.append(b"a") == 0
            assert await topic.append("b", key="k", tag="t", headers={"h": b"v"}, wait=True) == 1
            assert (await topic.append_many([b"c", "d"])).count == 2
            async with topic.batch(idempotency_key="once") as batch:
                batch.append(b"e")
                batch.append(b"f")
            assert batch.span == esker.Span(0, 4, 2)
            values = [record.value async for record in topic.read("earliest")]
            assert values == [b"a", b"b", b"c", b"d", b"e", b"f"]
            assert (await topic.get(-1)).value == b"f"
            assert (await topic.to_arrow(1, 4)).num_rows == 3
            assert await topic.producer("p").append(b"g") == 6
            assert await store.topics() == ["orders"]
            await store.sync()
            assert await topic.durable() == 7
            assert await topic.count() == 7
            await store.delete("orders")
            assert await store.topics() == []

    asyncio.run(main())


def test_more_tasks_follow_than_the_pool_has_threads_and_nobody_is_held_up(server: Server) -> None:
    async def main() -> None:
        async with esker.aopen(server.url) as store:
            topic = store["t"]
            await topic.append(b"first")

            async def one(n: int) -> list[bytes]:
                return [r.value async for r in topic.follow("latest", limit=2)]

            tasks = [asyncio.create_task(one(n)) for n in range(40)]
            await waiting_for(store, 40)
            assert await topic.append(b"a") == 1
            assert await topic.append(b"b") == 2
            assert await asyncio.gather(*tasks) == [[b"a", b"b"]] * 40

    asyncio.run(main())


def test_closing_ends_tasks_that_follow(server: Server) -> None:
    async def main() -> None:
        store = await esker.aopen(server.url)
        await store["t"].append(b"first")

        async def follow() -> list[bytes]:
            return [record.value async for record in store["t"].follow(0)]

        task = asyncio.create_task(follow())
        await waiting_for(store, 1)
        await store.close()
        assert await task == [b"first"]

    asyncio.run(main())


def test_groups_queues_and_routes_have_their_twins_over_http(server: Server) -> None:
    async def main() -> None:
        async with esker.aopen(server.url) as store:
            await store["t"].append_many([b"a", b"b", b"c"])
            group = await store["t"].group("g")
            seen: list[bytes] = []

            async def handle(batch: esker.GroupBatch) -> None:
                seen.extend(batch.values)

            assert await group.process(handle, idle=0.1) == 3
            assert seen == [b"a", b"b", b"c"]
            await group.sync()
            assert (await group.lag()).records == 0  # type: ignore[union-attr]
            late = asyncio.create_task(anext(group.poll(wait=20)))
            await store["t"].append(b"d")
            batch = await late
            assert batch.values == [b"d"]
            await group.ack_batch(batch)
            await group.close()

            queue = await store.queue("jobs")
            waiting = asyncio.create_task(queue.claim(wait=20))
            await queue.put(b"x")
            (job,) = await waiting
            await job.ack()
            held: list[bytes] = []

            async def work(job: Any) -> None:
                held.append(job.value)

            await queue.put_many([b"1", b"2"])
            assert await queue.process(work, workers=2, wait=0.2) == 2
            assert sorted(held) == [b"1", b"2"]

            idle = asyncio.create_task(queue.claim(wait=None))
            await waiting_for(store, 1)
            idle.cancel()
            await queue.put(b"y")
            with pytest.raises(asyncio.CancelledError):
                await idle
            (job,) = await queue.claim(wait=20)
            assert (job.value, job.deliveries) == (b"y", 1), "nobody had it, and it was given back"

            route = await store.route("t", "copy")
            assert (await route.status()).source == "t"
            await route.delete()

    asyncio.run(main())


def test_a_poll_that_is_left_early_loses_nothing(server: Server, tmp_path: Path) -> None:
    async def main(place: Any) -> None:
        async with esker.aopen(place) as store:
            topic = await store.create("t", shards=3)
            for number in range(30):
                await topic.append(f"{number}", key=f"k{number}", wait=True)
            group = await topic.group("g")
            seen: list[bytes] = []
            for _ in range(5):
                async for batch in group.poll(wait=0.2):
                    seen += batch.values
                    await group.ack_batch(batch)
                    break
            assert len(seen) == len(set(seen)) == 30
            await group.sync()
            assert (await group.lag()).records == 0  # type: ignore[union-attr]

    asyncio.run(main(tmp_path / "here"))
    asyncio.run(main(server.url))


@pytest.mark.parametrize("where", ["here", "server"])
def test_stop_is_heard_between_tries_and_between_polls(
    where: str, server: Server, tmp_path: Path
) -> None:
    async def main(place: Any) -> None:
        async with esker.aopen(place) as store:
            await store["t"].append(b"a", wait=True)
            group = await store["t"].group("g")
            tried = asyncio.Event()

            async def fail(_: esker.GroupBatch) -> None:
                tried.set()
                raise ValueError

            working = asyncio.create_task(group.process(fail, delay=60))
            await tried.wait()
            group.stop()
            assert await asyncio.wait_for(working, 20) == 0
            await group.close()

            group = await store["t"].group("g", "latest")
            seen: list[bytes] = []

            async def handle(batch: esker.GroupBatch) -> None:
                seen.extend(batch.values)
                tried.set()

            tried.clear()
            working = asyncio.create_task(group.process(handle, idle=60))
            await tried.wait()
            await asyncio.sleep(0.3)
            group.stop()
            assert await asyncio.wait_for(working, 20) == 1
            assert seen == [b"a"], "it was not acked before"
            await group.close()

    asyncio.run(main(server.url if where == "server" else tmp_path / "here"))


def test_what_a_loop_around_a_group_is_told_is_checked(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "here") as store:
            await store["t"].append(b"a", wait=True)
            async with await store["t"].group("g") as group:
                for wrong in ({"retries": -1}, {"delay": -1}, {"idle": "soon"}):
                    with pytest.raises(esker.InvalidOption):
                        await group.process(nothing, **wrong)  # type: ignore[arg-type]

    async def nothing(_: esker.GroupBatch) -> None: ...

    asyncio.run(main())


def test_what_comes_for_a_poll_that_was_cancelled_is_for_the_next(place: Any) -> None:
    async def first(group: Any, **how: Any) -> list[bytes]:
        async for batch in group.poll(**how):
            return list(batch.values)
        return []

    async def main() -> None:
        async with esker.aopen(place) as store:
            topic = store["t"]
            await topic.append(b"0", wait=True)
            group = await topic.group("g")
            assert await first(group) == [b"0"]
            for number in range(1, 4):
                idle = asyncio.create_task(first(group, wait=None))
                await asyncio.sleep(0.05)
                for _ in range(2):  # who takes it over may be cancelled, too
                    idle.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await idle
                    idle = asyncio.create_task(first(group, wait=20))
                    await asyncio.sleep(0.01)
                await topic.append(b"%d" % number, wait=True)
                assert await idle == [b"%d" % number]
            idle = asyncio.create_task(first(group, wait=None))
            await asyncio.sleep(0.05)
            idle.cancel()
            with pytest.raises(asyncio.CancelledError):
                await idle
            assert await first(group, wait=0.05) == [], "whose time is up is not held up"

    asyncio.run(main())


@pytest.fixture(params=["directory", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "directory":
        yield tmp_path / "data"
    else:
        yield request.getfixturevalue("server").url
