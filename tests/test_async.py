"""The asyncio twin: the same verbs, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine.tail import Tail
from tests.helpers import HandClock, Refusing


def test_it_has_every_verb_of_the_blocking_one() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    not_awaited = {"append_nowait", "ready", "tail"}
    assert verbs(esker.Topic) - verbs(esker.AsyncTopic) == not_awaited
    assert verbs(esker.Store) - verbs(esker.AsyncStore) == {"tick", "stage"}


def test_append_read_and_slices_work_as_they_do_without_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["orders"]
            assert await topic.append(b"a") == 0
            assert await topic.append("b", key="k", tag="t", headers={"h": b"v"}, wait=True) == 1
            span = await topic.append_many([b"c", "d"])
            assert (span.first, span.count) == (2, 2)
            async with topic.batch() as batch:
                batch.append(b"e")
                batch.append(b"f")
            assert batch.span == esker.Span(0, 4, 2)
            values = [record.value async for record in topic.read("earliest")]
            assert values == [b"a", b"b", b"c", b"d", b"e", b"f"]
            assert [r.value async for r in topic.read(1, limit=2)] == [b"b", b"c"]
            assert (await topic.get(-1)).value == b"f"
            assert (await topic.to_arrow(1, 4)).num_rows == 3
            assert await store.topics() == ["orders"]
            await store.sync()
            assert await topic.durable() == 6

    asyncio.run(main())


def test_tasks_that_wait_share_one_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topics = [await store.create(f"t{n}", durability="fsync") for n in range(100)]
            await asyncio.gather(*(topic.append(b"0", wait=True) for topic in topics))
            before = store.statistics()["syncs"]
            offsets = await asyncio.gather(*(topic.append(b"1", wait=True) for topic in topics))
            assert set(offsets) == {1}
            assert store.statistics()["syncs"] - before <= 20

    asyncio.run(main())


def test_what_a_task_waited_for_in_class_disk_is_synced_in_time(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with esker.aopen(tmp_path / "d", clock=clock, background=False) as store:
            topic = store["t"]
            await topic.append_many([b"before"], wait=True)
            for _ in range(2):  # until nothing is left to be done
                clock.forward(1)
                store._store.tick()
            await topic.append(b"waited for", wait=True)
            assert (await topic.end(), await topic.durable()) == (2, 1)
            clock.forward(1)
            store._store.tick()
            assert await topic.durable() == 2

    asyncio.run(main())


def test_the_loop_runs_on_while_the_disk_is_slow(tmp_path: Path) -> None:
    class Stuck(Refusing):
        free = threading.Event()

        def check(self, call: str, path: str) -> None:
            if call in ("sync", "write") and path.endswith(".log"):
                assert self.free.wait(30)
            super().check(call, path)

    async def main() -> None:
        async with esker.aopen(tmp_path / "data", files=Stuck()) as store:
            await store.create("t", durability="fsync")
            waiting = [
                asyncio.create_task(store["t"].append(b"x", wait=True)),
                asyncio.create_task(store["t"].append_many([b"y"])),
                asyncio.create_task(store["t"].sync()),
            ]
            for _ in range(50):  # the loop turns while all three are stuck
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in waiting)
            Stuck.free.set()
            await asyncio.gather(*waiting)
            assert sorted([r.value async for r in store["t"].read()]) == [b"x", b"y"]

    asyncio.run(main())


def test_a_tail_is_woken_by_an_append_and_ends_after_its_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["t"]
            await topic.append(b"old", wait=True)
            started = asyncio.Event()

            async def tail() -> list[bytes]:
                started.set()
                return [record.value async for record in topic.follow("earliest", timeout=0.3)]

            task = asyncio.create_task(tail())
            await started.wait()
            await topic.append(b"new", wait=True)
            assert await task == [b"old", b"new"]

    asyncio.run(main())


def test_a_cancelled_append_is_written_all_the_same_or_not_at_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", durability="fsync")
            await topic.append(b"0", wait=True)
            task = asyncio.create_task(topic.append(b"1", wait=True))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await topic.append(b"2", wait=True) in (1, 2)
            values = [record.value async for record in topic.read()]
            assert values in ([b"0", b"1", b"2"], [b"0", b"2"])

    asyncio.run(main())


def test_errors_are_the_same_as_without_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            with pytest.raises(esker.TopicNotFound):
                await store["nowhere"].get(0)
            with pytest.raises(esker.InvalidRecord):
                await store["t"].append(5)  # type: ignore[arg-type]
            with pytest.raises(esker.InvalidOption):
                await store.create("x", shard=3)
        with pytest.raises(esker.StoreClosed):
            await store["t"].append(b"x")
        with pytest.raises(esker.NotAStore):
            await esker.aopen(tmp_path / "nothing", mode="r")

    asyncio.run(main())


def test_routes_are_made_looked_at_and_taken_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data", routes=False) as store:
            await store["a"].append_many([b"1", b"2", b"3"])
            await store["a"].sync()
            route = await store.route("a", "b", name="r")
            assert await route.run_once() == 3
            assert [record.value async for record in store["b"].read()] == [b"1", b"2", b"3"]
            await route.pause()
            (status,) = await store.routes()
            assert (status.name, status.state, status.records) == ("r", "paused", 0)
            await route.resume()
            await route.seek("latest")
            assert (await route.status()).records == 0
            await route.delete()
            assert await store.routes() == []

    asyncio.run(run())


def test_a_wider_commit_window_lets_one_round_serve_more_appends(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["orders"]
            await topic.append(b"first", wait=True)
            committer = store._store._context.committer

            async def appended(window: float | None) -> int:
                store._commit_window(window)
                before, tasks = committer.rounds, []
                for _ in range(5):
                    tasks.append(asyncio.ensure_future(topic.append(b"x", wait=True)))
                    await asyncio.sleep(0.02)
                await asyncio.gather(*tasks)
                return committer.rounds - before

            assert await appended(0.5) == 1
            assert await appended(None) > 1
            assert await topic.end() == 11

    asyncio.run(main())


def test_a_topic_that_was_deleted_by_somebody_else_can_be_had_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            await store["orders"].append(b"a", wait=True)
            store._store.delete("orders")
            assert await store["orders"].append(b"b", wait=True) == 0

    asyncio.run(main())


def test_a_task_that_follows_gets_the_first_batch_before_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    take = Tail.take

    def counted(self: Tail) -> Iterator[Any]:
        nonlocal read
        for each in take(self):
            read += 1
            yield each

    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", shards=8)
            for number in range(64):
                await topic.append(b"x", key=b"%d" % number)
            await topic.sync()
            first = [each.value async for each in topic.follow("earliest", limit=1)]
            assert (first, read) == ([b"x"], 1)
            assert len([each async for each in topic.follow("earliest", timeout=0.1)]) == 64

    monkeypatch.setattr(Tail, "take", counted)
    asyncio.run(main())


def test_a_task_that_follows_gets_what_lies_before_a_gap_that_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Tail.take

    def broken(self: Tail) -> Iterator[Any]:
        for each in take(self):
            yield each
            raise esker.DataGap(esker.Gap("t", 0, 1, 1, "corrupt"))

    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            await store["t"].append(b"0", wait=True)
            following = store["t"].follow("earliest", timeout=1)
            assert (await anext(following)).value == b"0"
            with pytest.raises(esker.DataGap):
                await anext(following)

    monkeypatch.setattr(Tail, "take", broken)
    asyncio.run(main())


def test_limits_and_timeouts_are_checked_as_without_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["t"]
            await topic.append_many([b"0", b"1", b"2"], wait=True)
            for begin in (topic.read, topic.follow):
                assert [each async for each in begin("earliest", limit=0)] == []
                with pytest.raises(esker.InvalidOption, match="limit=-1"):
                    begin("earliest", limit=-1)
            with pytest.raises(esker.InvalidOption, match="timeout=-1"):
                topic.follow(timeout=-1)
            gapped = await store.create("gapped", segment_records=2, cap_records=2)
            for _ in range(6):
                await gapped.append_many([b"x", b"y"], wait=True)
            await store.retain()
            found = [each async for each in gapped.read(0, limit=2, gaps="yield")]
            assert found == list(gapped._topic.read(0, limit=2, gaps="yield"))
            assert isinstance(found[0], esker.Gap)
            assert len(found) == 3

    asyncio.run(main())
