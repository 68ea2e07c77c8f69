"""Waiting for news of a log, on the side of the loop: no thread is held by who waits.

A writer of this process wakes whoever waits for it. That of another one tells nobody: the numbers
that it publishes are looked at, which takes no thread either, at first often and then fifty times
a second. Now and then whoever waits looks at the files himself, for what only they tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from esker.engine.tail import POLL_SECONDS
from esker.errors import StoreClosed

if TYPE_CHECKING:
    from esker.aio.store import AsyncStore

PAUSE_SECONDS: Final = 0.02  # between looks when nothing has come for a while


class Bell:
    """What a shard releases as it would a lock; it wakes a task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def release(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def reset(self) -> None:
        """From now on wait for the next time."""
        self._rung = False

    async def rung(self, seconds: float) -> bool:
        """Wait for it, for so long; whether it was rung. A timeout of asyncio costs a task."""
        if not self._rung:
            self._waiting = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._wake)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        return self._rung

    async def rung_or_moved(self, steps: Any, seconds: float) -> None:
        """Wait for it, or for a tail to have more, for so long; looking more and more seldom."""
        pause = POLL_SECONDS
        while seconds > 0 and not await self.rung(min(pause, seconds)):
            if steps is not None and steps.moved():
                return
            seconds -= pause
            pause = min(2 * pause, PAUSE_SECONDS)


async def news(store: AsyncStore, steps: Any, deadline: float | None) -> None:
    """Until there may be more for a tail, the time is up, or it is time to look at the files."""
    limit = 3600.0
    if deadline is not None:
        limit = max(0.0, deadline - asyncio.get_running_loop().time())
    if steps.blocking:
        with contextlib.suppress(StoreClosed):
            await store._hold(lambda: steps.wait(limit))
        return
    bell = Bell()
    try:
        if steps.watch(bell):
            await bell.rung(limit)
            return
        await bell.rung_or_moved(steps, min(limit, steps.patience))
    finally:
        steps.unwatch(bell)
