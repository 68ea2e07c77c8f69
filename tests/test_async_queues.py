"""Queues on an event loop: the same verbs, awaited; who waits for a job holds no thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.aio import AsyncJob, AsyncQueue, waiting
from esker.aio import queues as aio_queues
from tests.helpers import wait_until


def test_it_has_every_verb_of_the_blocking_one() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    # `work` is for threads; the others are for the store, or plain values of `.queue`
    left_out = {"work", "backoff", "close", "findings", "let_go", "priority_of", "tend"}
    assert verbs(esker.Queue) - verbs(AsyncQueue) == left_out
    assert {"ack", "nack", "release", "extend"} <= verbs(AsyncJob)


def test_a_job_is_settled_by_its_token_and_claims_are_served_together(tmp_path: Path) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs")
            await queue.put_many([b"a", b"b", b"c"])
            assert await queue.announce(4) == 0.0
            one, two = await queue.claim_together([2, 2])
            assert ([job.value for job in one], [job.value for job in two]) == (
                [b"a", b"c"],
                [b"b"],
            )
            for job in (*one, *two):
                await queue.job(job.shard, job.offset, job.token).ack()
            assert (await queue.stats()).unfinished == 0

    asyncio.run(run())


def test_jobs_are_put_claimed_and_settled(tmp_path: Path) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs", max_deliveries=2)
            await queue.put_many([b"a", b"b", b"c", b"d"])
            await queue.put(b"late", delay="1h")
            a, b, c, d = await queue.claim(9)
            assert (a.value, a.deliveries) == (b"a", 1)
            await a.ack()
            await b.nack(reason="no")
            await c.release()
            await queue.extend([d], "1h")
            assert d.deadline > c.deadline + 1000
            again = await queue.claim(9)
            assert [(job.value, job.deliveries) for job in again] == [(b"b", 2), (b"c", 1)]
            await queue.nack(again[:1])
            assert [dead.value for dead in await queue.dead()] == [b"b"]
            assert await queue.requeue() == 1
            await queue.ack([again[1], d])
            stats = await queue.stats()
            assert (stats.ready, stats.leased, stats.delayed, stats.dead) == (1, 0, 1, 0)
            assert [record.value for record in await queue.peek()] == [b"b"]
            assert await queue.purge() == 2

    asyncio.run(run())


def test_leaving_a_block_acks_an_exception_nacks_and_a_cancelled_task_gives_back(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs")
            await queue.put_many([b"a", b"b", b"c"])
            a, b, c = await queue.claim(3)
            async with a:
                pass
            with pytest.raises(ZeroDivisionError):
                async with b:
                    raise ZeroDivisionError
            began = asyncio.Event()

            async def hold() -> None:
                async with c:
                    began.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(hold())
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (again,) = await queue.claim(9)
            assert (again.value, again.deliveries) == (b"c", 1)
            assert (await queue.stats()).delayed == 1  # b rests
            with pytest.raises(esker.StaleLease):
                await a.ack()

    asyncio.run(run())


def test_more_tasks_wait_for_jobs_than_there_are_threads(tmp_path: Path) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs")
            waiting = [asyncio.create_task(queue.claim(1, wait=30)) for _ in range(20)]
            await asyncio.sleep(0.05)
            await queue.put_many([b"%d" % n for n in range(20)])
            found = await asyncio.gather(*waiting)
            assert {job.value for (job,) in found} == {b"%d" % n for n in range(20)}
            assert await queue.claim(1, wait=0.01) == []

    asyncio.run(run())


def test_handlers_are_tasks_their_leases_are_renewed_and_what_fails_comes_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs", lease="300ms", max_deliveries=2)
            await queue.put_many([b"long", b"bad", b"good"])
            seen: list[tuple[bytes, int]] = []
            told: list[bytes] = []

            async def handle(job: AsyncJob) -> None:
                seen.append((job.value, job.deliveries))
                if job.value == b"long":
                    await asyncio.sleep(1.2)
                if job.value == b"bad" and job.deliveries == 1:
                    raise ValueError("once")

            def on_error(job: AsyncJob, problem: BaseException) -> None:
                assert isinstance(problem, ValueError)
                told.append(job.value)

            done = await queue.process(handle, workers=2, wait=3.0, on_error=on_error)
            assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1), (b"long", 1)]
            assert (done, told) == (3, [b"bad"])

    asyncio.run(run())


def test_what_a_cancelled_loop_held_is_given_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs", lease="1h")
            await queue.put(b"x")
            began = asyncio.Event()

            async def handle(_: Any) -> None:
                began.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(queue.process(handle))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (job,) = await queue.claim(1)
            assert job.deliveries == 1

    asyncio.run(run())


class Slow:
    """A claim that has happened, and whose answer has yet to come."""

    def __init__(self, claim: Any) -> None:
        self._claim = claim
        self.claimed, self.free = threading.Event(), threading.Event()

    def __call__(self, *given: Any, **how: Any) -> Any:
        found = self._claim(*given, **how)
        self.claimed.set()
        assert self.free.wait(30)
        return found


@pytest.mark.parametrize("verb", ["claim", "claim_together", "process"])
def test_what_a_cancelled_claim_got_is_given_back(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: Any) -> None:
        raise AssertionError

    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs", lease="1h")
            await queue.put_many([b"x", b"y"])
            name = "claim_together" if verb == "claim_together" else "claim"
            slow = Slow(getattr(queue.queue, name))
            with monkeypatch.context() as patched:
                patched.setattr(queue.queue, name, slow)
                begin: dict[str, Any] = {
                    "claim": lambda: queue.claim(2, wait=30),
                    "claim_together": lambda: queue.claim_together([1, 1]),
                    "process": lambda: queue.process(never, 2),
                }
                task = asyncio.create_task(begin[verb]())
                await asyncio.to_thread(slow.claimed.wait, 30)
                for _ in range(2):  # whoever is asked twice does not forget it either
                    task.cancel()
                    await asyncio.sleep(0.01)
                slow.free.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(wait_until, lambda: not queue.queue.stats().leased, "nobody")
            assert [job.deliveries for job in await queue.claim(9)] == [1, 1]

    asyncio.run(run())


def test_a_claim_that_fails_when_it_is_cancelled_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        slow.claimed.set()
        assert slow.free.wait(30)
        raise esker.TopicNotFound("gone")

    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs")
            monkeypatch.setattr(queue.queue, "claim", refused)
            task = asyncio.create_task(queue.claim())
            await asyncio.to_thread(slow.claimed.wait, 30)
            task.cancel()
            slow.free.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    slow = Slow(None)
    asyncio.run(run())


def test_who_waits_for_a_job_sleeps_and_is_woken_by_who_puts_or_gives_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            queue = await store.queue("jobs")
            claims = 0
            claim = queue.queue.claim

            def counted(*given: Any, **how: Any) -> Any:
                nonlocal claims
                claims += 1
                return claim(*given, **how)

            monkeypatch.setattr(queue.queue, "claim", counted)
            assert await queue.claim(wait=1.0) == []
            assert claims < 40
            monkeypatch.setattr(aio_queues, "LOOK_SECONDS", 60.0)  # nobody looks
            monkeypatch.setattr(waiting, "POLL_SECONDS", 60.0)
            late = asyncio.create_task(queue.claim(wait=30))
            await asyncio.sleep(0.05)
            await queue.put(b"x")
            (job,) = await late
            late = asyncio.create_task(queue.claim(wait=30))
            await asyncio.sleep(0.05)
            await job.release()
            (again,) = await late
            assert (again.value, again.deliveries) == (b"x", 1)
            assert not queue.queue._bells

    asyncio.run(run())
