"""Jobs under leases, whose verbs are awaited.

    queue = await store.queue("emails", lease="30s")
    await queue.put(b"...")
    for job in await queue.claim(10, wait=5):
        async with job:                     # leaving the block acks, an exception nacks
            await send(job.value)

Whoever waits for a job holds no thread. `process` runs handlers as tasks; one more renews their
leases, as `Queue.process` does with threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from esker.aio.waiting import Bell
from esker.engine.reader import check_count, check_timeout
from esker.errors import EskerError, StaleLease
from esker.queues.claiming import UNBOUNDED
from esker.queues.dead import DeadJob
from esker.queues.job import Job, give_up
from esker.queues.queue import Queue, QueueStats
from esker.queues.work import RENEWALS, Work
from esker.records import Record, Span, Value

if TYPE_CHECKING:
    from esker.aio.store import AsyncStore

T = TypeVar("T")
LOOK_SECONDS: Final = 0.005  # until the next look for what other processes give back, at first,
LOOK_SECONDS_MAX: Final = 0.05  # and when nothing has come for a while
ASK_SECONDS = 1.0  # that a server is asked to wait, so that cancelling takes no longer
PATIENCE_SECONDS: Final = 0.25  # at a stretch, so that ending does not take longer


class AsyncJob:
    """A job whose verbs are awaited; everything else is as the `Job` has it."""

    def __init__(self, queue: AsyncQueue, job: Job) -> None:
        self._queue = queue
        self.job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)

    def __repr__(self) -> str:
        return f"<async {self.job!r}>"

    async def ack(self) -> None:
        """It is done, and never handed out again."""
        await self._queue._run(self.job.ack)

    async def nack(self, delay: float | str = 0, reason: str = "") -> None:
        """It failed: hand it out again, not before `delay` has passed."""
        await self._queue._run(lambda: self.job.nack(delay, reason))

    async def release(self) -> None:
        """Give it back untried: this delivery does not count."""
        await self._queue._run(self.job.release)

    async def extend(self, lease: float | str | None = None) -> None:
        """Hold it for so long from now on."""
        await self._queue._run(lambda: self.job.extend(lease))

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        # also for a task that was cancelled, which is nobody's failure: it is given back
        await asyncio.shield(self._queue._run(lambda: self.job.__exit__(kind, problem, trace)))


class AsyncQueue:
    """A queue whose verbs are awaited."""

    def __init__(self, store: AsyncStore, queue: Queue) -> None:
        self._store = store
        self._run = store._run
        self.queue = queue
        self.name = queue.name

    def __repr__(self) -> str:
        return f"<async {self.queue!r}>"

    async def put(self, value: Value, key: bytes | str | None = None, **how: Any) -> Span:
        """As `Queue.put`."""
        return await self._run(lambda: self.queue.put(value, key, **how))

    async def put_many(self, jobs: Iterable[Value | Record], **how: Any) -> list[Span]:
        """As `Queue.put_many`."""
        return await self._run(lambda: self.queue.put_many(jobs, **how))

    async def claim(
        self, max: int = 1, lease: float | str | None = None, wait: float | None = 0, *,
        gaps: Literal["raise", "skip"] = "raise",
    ) -> list[AsyncJob]:  # fmt: skip
        """As `Queue.claim`. Waits on the loop's side, so that no thread is held by who waits."""
        loop, limit = asyncio.get_running_loop(), check_timeout(wait)
        deadline = None if limit is None else loop.time() + limit
        bell, pause, steps = Bell(), LOOK_SECONDS, None
        local = self._store._local
        bells = self.queue._bells if local else set()
        bells.add(bell)
        try:
            while True:
                bell.reset()
                found = await self._asked(max, lease, deadline, gaps)
                left = pause if deadline is None else deadline - loop.time()
                if found or left <= 0:
                    return [AsyncJob(self, job) for job in found]
                if local and steps is None:
                    steps = await self._run(lambda: self.queue.topic.tail("latest"))
                await bell.rung_or_moved(steps, min(left, pause))
                pause = min(2 * pause, LOOK_SECONDS_MAX)
        finally:
            bells.discard(bell)

    async def _asked(
        self, max: int, lease: float | str | None, deadline: float | None,
        gaps: Literal["raise", "skip"],
    ) -> list[Job]:  # fmt: skip
        """What there is; a server is asked to wait for it, for a while."""
        if self._store._local:
            return await self._had(self._run(lambda: self.queue.claim(max, lease, gaps=gaps)))
        loop = asyncio.get_running_loop()
        left = ASK_SECONDS if deadline is None else min(deadline - loop.time(), ASK_SECONDS)
        wait = left if left > 0 else 0.0
        return await self._had(
            self._store._hold(lambda: self.queue.claim(max, lease, wait, gaps=gaps))
        )

    async def _had(self, claiming: Coroutine[Any, Any, list[T]]) -> list[T]:
        """What is claimed, jobs or hands of them; given back if nobody is there to have it."""
        claim = asyncio.ensure_future(claiming)
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(claim))  # should it be cancelled again
            raise

    async def _give_back(self, claim: asyncio.Future[list[Any]]) -> None:
        with contextlib.suppress(EskerError):  # then there is none, or its lease runs out
            jobs: list[Job] = []
            for each in await claim:
                jobs += each if isinstance(each, list) else [each]
            if jobs:
                await self._run(lambda: self.queue.release(jobs))

    async def announce(self, max: int = 1) -> float:
        """As `Queue.announce`."""
        return await self._run(lambda: self.queue.announce(max))

    async def claim_together(
        self, wants: Sequence[int], lease: float | str | None = None, *,
        gaps: Literal["raise", "skip"] = "raise", most_bytes: int = UNBOUNDED,
    ) -> list[list[AsyncJob]]:  # fmt: skip
        """As `Queue.claim_together`."""
        claiming = self._run(
            lambda: self.queue.claim_together(wants, lease, gaps=gaps, most_bytes=most_bytes)
        )
        hands = await self._had(claiming)
        return [[AsyncJob(self, job) for job in hand] for hand in hands]

    def job(self, shard: int, offset: int, token: str) -> AsyncJob:
        """As `Queue.job`; nothing is waited for."""
        return AsyncJob(self, self.queue.job(shard, offset, token))

    async def ack(self, jobs: AsyncJob | Sequence[AsyncJob]) -> None:
        """As `Queue.ack`."""
        await self._run(lambda: self.queue.ack(_plain(jobs)))

    async def nack(
        self, jobs: AsyncJob | Sequence[AsyncJob], delay: float | str = 0, reason: str = ""
    ) -> None:
        """As `Queue.nack`."""
        await self._run(lambda: self.queue.nack(_plain(jobs), delay, reason))

    async def release(self, jobs: AsyncJob | Sequence[AsyncJob]) -> None:
        """As `Queue.release`."""
        await self._run(lambda: self.queue.release(_plain(jobs)))

    async def extend(
        self, jobs: AsyncJob | Sequence[AsyncJob], lease: float | str | None = None
    ) -> None:
        """As `Queue.extend`."""
        await self._run(lambda: self.queue.extend(_plain(jobs), lease))

    async def process(
        self, handler: Callable[[AsyncJob], Awaitable[Any]], workers: int = 1, *,
        lease: float | str | None = None, wait: float | None = None,
        on_error: Callable[[AsyncJob, BaseException], None] | None = None,
    ) -> int:  # fmt: skip
        """As `Queue.process`, with a handler that is awaited, in so many tasks.

        When this is cancelled so are the handlers, and what they held is given back.
        """
        check_count("workers", workers, 1)
        work = self.queue.work(workers, lease=lease, wait=wait)
        done = 0

        async def next_job() -> AsyncJob | None:
            loop, limit = asyncio.get_running_loop(), check_timeout(wait)
            deadline = None if limit is None else loop.time() + limit
            while True:
                left = PATIENCE_SECONDS if deadline is None else deadline - loop.time()
                found = await self.claim(1, lease, max(0.0, min(left, PATIENCE_SECONDS)))
                if found or (deadline is not None and loop.time() >= deadline):
                    return found[0] if found else None

        async def run() -> None:
            nonlocal done
            while (job := await next_job()) is not None:
                work.keep([job.job])
                try:
                    await handler(job)
                    if not job.settled:
                        job.check()
                        await job.ack()
                        done += 1
                except Exception as problem:
                    await self._failed(job, problem)
                    if on_error is not None:
                        on_error(job, problem)
                except BaseException:
                    if not job.settled:
                        with contextlib.suppress(EskerError):  # else its lease runs out
                            await asyncio.shield(job.release())
                    raise

        renewing = asyncio.create_task(self._renew(work))
        running = [asyncio.create_task(run()) for _ in range(workers)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in (renewing, *running):
                task.cancel()
            await asyncio.gather(renewing, *running, return_exceptions=True)
        return done

    async def _failed(self, job: AsyncJob, problem: Exception) -> None:
        if not job.settled and not isinstance(problem, StaleLease):
            await self._run(lambda: give_up(job.job, problem))

    async def _renew(self, work: Work) -> None:
        while True:
            await asyncio.sleep(work.lease / RENEWALS)
            await self._run(work.renew)

    async def pause(self) -> None:
        """As `Queue.pause`."""
        await self._run(self.queue.pause)

    async def resume(self) -> None:
        """As `Queue.resume`."""
        await self._run(self.queue.resume)

    async def purge(self) -> int:
        """As `Queue.purge`."""
        return await self._run(self.queue.purge)

    async def stats(self) -> QueueStats:
        """As `Queue.stats`."""
        return await self._run(self.queue.stats)

    async def peek(self, limit: int = 10) -> list[Record]:
        """As `Queue.peek`."""
        return await self._run(lambda: self.queue.peek(limit))

    async def delayed(self) -> list[Any]:
        """As `Queue.delayed`."""
        return await self._run(self.queue.delayed)

    async def leases(self) -> list[Any]:
        """As `Queue.leases`."""
        return await self._run(self.queue.leases)

    async def history(self, offset: int, shard: int = 0) -> list[Any]:
        """As `Queue.history`."""
        return await self._run(lambda: self.queue.history(offset, shard))

    async def dead(self, limit: int = 100) -> list[DeadJob]:
        """The oldest dead jobs; see `Queue.dead`."""
        return await self._run(lambda: self.queue.dead.peek(limit))

    async def requeue(self, *jobs: Any, **which: Any) -> int:
        """As `Queue.dead.requeue`."""
        return await self._run(lambda: self.queue.dead.requeue(*jobs, **which))

    async def purge_dead(self, *jobs: Any, **which: Any) -> int:
        """As `Queue.dead.purge`."""
        return await self._run(lambda: self.queue.dead.purge(*jobs, **which))


def _plain(jobs: AsyncJob | Sequence[AsyncJob]) -> list[Job]:
    return [jobs.job] if isinstance(jobs, AsyncJob) else [job.job for job in jobs]
