"""Waiting for something on behalf of a client, who may go away meanwhile, or the server stop.

    async with Waiting(call) as waiting:
        while …:
            await waiting.until(news(store, tail, deadline))

Whatever is waited for ends with the waiting: also when the call is cancelled, for its key has ended
or the time of a stopping server is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

from esker.server.http.call import Call, Disconnected


class Waiting:
    """A call that waits."""

    def __init__(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        self._gone = loop.create_task(call.gone())
        self._stopping = loop.create_task(call.app.stopping.wait())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.cancel()
        self._stopping.cancel()

    @property
    def over(self) -> bool:
        """Whether the server stops: whoever waits is answered with what there is."""
        return self._stopping.done()

    async def until(self, news: Coroutine[Any, Any, object]) -> None:
        """Until this is done, the server stops, or the client is gone, which raises."""
        waited = asyncio.get_running_loop().create_task(news)
        try:
            await asyncio.wait(
                {waited, self._gone, self._stopping}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waited.cancel()
        if self._gone.done():
            raise Disconnected
