"""Readers that share a topic, whose verbs are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from esker.aio.waiting import PAUSE_SECONDS, news
from esker.engine.reader import check_count, check_timeout
from esker.errors import Fenced, InvalidOption, StopProcessing
from esker.groups.batch import GroupBatch
from esker.groups.describe import GroupStatus
from esker.groups.group import POLL_RECORDS, Group
from esker.groups.lag import Lag
from esker.groups.moves import Move
from esker.groups.pattern import PatternGroup
from esker.groups.process import STEP_SECONDS, OnError, rests, verdict_of

if TYPE_CHECKING:
    from esker.aio.store import AsyncStore

LOOK_SECONDS: Final = 0.25  # between looks at who else reads, while nothing comes
END: Any = object()  # of a poll


def _heard(step: asyncio.Future[Any]) -> None:
    """Its error is told by the next poll; if there is none, nobody asks for it."""
    if not step.cancelled():
        step.exception()


class AsyncGroup:
    """A group whose verbs are awaited.

    `batch.ack()` is not: it is one store, and waits for nothing. `await group.sync()` has it on the
    disk. Of a group on a server it is a call, and `await group.ack_batch(batch)` makes it off the
    loop.
    """

    def __init__(self, store: AsyncStore, group: Group | PatternGroup) -> None:
        self._store = store
        self._group = group
        self.name = group.name
        self._left: asyncio.Future[Any] | None = None  # a step of a poll that was cancelled

    def __repr__(self) -> str:
        return f"<async {self._group!r}>"

    @property
    def duplicates(self) -> int:
        """As `Group.duplicates`."""
        return self._group.duplicates

    async def poll(
        self, max_records: int = POLL_RECORDS, max_bytes: int = 1 << 20, wait: float | None = 0
    ) -> AsyncIterator[GroupBatch]:
        """As `Group.poll`. Waits on the loop's side, so that no thread is held by who waits."""
        if not self._store._local:  # the server waits, and a thread for its answer
            asked = self._steps(lambda: self._group.poll(max_records, max_bytes, wait), wait)
            async for each in asked:
                yield each
            return
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        while True:
            found = False
            batches = self._steps(lambda: self._group.poll(max_records, max_bytes), None)
            batch: Any  # with gaps="yield" also a Gap
            async for batch in batches:
                found = True
                yield batch
            left = 1.0 if deadline is None else deadline - loop.time()
            if found or left <= 0 or self._group._stop:
                return
            await self._more(min(left, LOOK_SECONDS))

    async def _more(self, seconds: float) -> None:
        """Until there may be more for this member; not for long: members come and go meanwhile."""
        group, loop = self._group, asyncio.get_running_loop()
        if isinstance(group, Group):
            tail = await self._store._run(group._tail)
            if tail.cursors:
                await news(self._store, tail, loop.time() + seconds)
                return
        await asyncio.sleep(min(seconds, PAUSE_SECONDS))

    async def _steps(
        self, make: Callable[[], Iterator[Any]], patience: float | None
    ) -> AsyncIterator[Any]:
        """A poll, stepped in threads.

        A thread can not be cancelled. What one brings whose poll was cancelled meanwhile is for the
        poll that comes next, which waits for it up to `patience` seconds.
        """
        store, mine = self._store, make()
        while True:
            left = self._left
            if left is not None:
                await asyncio.wait({left}, timeout=patience)
                if not left.done():
                    return
                if self._left is not left:  # another poll has it
                    continue
                self._left = None
            run = store._run if store._local else store._hold  # or it may take long
            step = left or asyncio.ensure_future(run(lambda: next(mine, END)))
            try:
                item = await asyncio.shield(step)
            except asyncio.CancelledError:
                if not step.cancelled():
                    self._left = step
                    step.add_done_callback(_heard)
                raise
            if item is not END:
                yield item
            elif step is not left:
                return

    async def process(
        self, handler: Callable[[GroupBatch], Awaitable[Any]], *, retries: int = 3,
        delay: float = 1.0, on_error: OnError | None = None, auto_ack: bool = True,
        max_records: int = POLL_RECORDS, max_bytes: int = 1 << 20, idle: float | None = None,
    ) -> int:  # fmt: skip
        """As `Group.process`, with a handler that is awaited."""
        check_count("retries", retries, 0)
        check_timeout(delay)
        patience = check_timeout(idle)
        handled = 0
        waited = 0.0
        while not self._group._stop:
            came = False
            batch: Any
            async for batch in self.poll(max_records, max_bytes, STEP_SECONDS):
                came = True
                if not isinstance(batch, GroupBatch):
                    continue
                verdict = await self._handle(batch, handler, retries, delay, on_error)
                if verdict == "stop":
                    return handled
                if auto_ack or verdict != "done":
                    with contextlib.suppress(Fenced):  # at least once: it comes again elsewhere
                        if self._store._local:
                            batch.ack()
                        else:
                            await self.ack_batch(batch)
                handled += len(batch) if verdict != "skip" else 0
                if verdict == "last" or self._group._stop:
                    return handled
            waited = 0.0 if came else waited + STEP_SECONDS
            if patience is not None and waited >= patience:
                break
        return handled

    async def _handle(
        self, batch: GroupBatch, handler: Callable[[GroupBatch], Awaitable[Any]], retries: int,
        delay: float, on_error: OnError | None,
    ) -> str:  # fmt: skip
        failed = 0
        while True:
            try:
                await handler(batch)
                return "done"
            except StopProcessing:
                return "last"
            except Exception as problem:
                failed += 1
                verdict = verdict_of(batch, problem, failed, retries, on_error)
                if verdict != "retry":
                    return verdict
                failed = 0 if failed > retries else failed
            for step in rests(self._group, delay):
                await asyncio.sleep(step)
            if self._group._stop:
                return "stop"

    async def ack_batch(self, batch: GroupBatch, upto: int | None = None) -> None:
        """As `batch.ack`, off the loop."""
        await self._store._run(lambda: batch.ack(upto))

    async def cursors(self) -> dict[int, int]:
        """As `Group.cursors`; a group of many topics has them in `describe`."""
        if isinstance(self._group, PatternGroup):
            raise InvalidOption(f"{self._group!r} reads many topics; see describe() of each")
        return await self._store._run(self._group.cursors)

    def stop(self) -> None:
        """End `process` behind the batch at hand."""
        self._group.stop()

    async def describe(self) -> GroupStatus | list[GroupStatus]:
        """As `Group.describe`."""
        return await self._store._run(self._group.describe)

    async def lag(self) -> Lag | list[Lag]:
        """As `Group.lag`."""
        return await self._store._run(self._group.lag)

    async def seek(self, to: Any, *, dry_run: bool = False, **where: Any) -> list[Move]:
        """As `Group.seek`."""
        return await self._store._run(lambda: self._group.seek(to, dry_run=dry_run, **where))

    async def rewind(self) -> None:
        """As `Group.rewind`."""
        await self._store._run(self._group.rewind)

    async def pause(self) -> None:
        """As `Group.pause`."""
        await self._store._run(self._group.pause)

    async def resume(self) -> None:
        """As `Group.resume`."""
        await self._store._run(self._group.resume)

    async def sync(self, timeout: float | None = 30.0) -> None:
        """As `Group.sync`."""
        await self._store._run(lambda: self._group.sync(timeout))

    async def close(self) -> None:
        """As `Group.close`."""
        await self._store._run(self._group.close)

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.close()
