"""What delivery looks at now and then, for nobody says when it is so.

Ten times a second: how hard pressed the server is, and whether a watched topic is gone. Five times:
whether one that is waited for has come. Once: who has left, may not stay or takes nothing, and a
sign of life for the others. And shards of which no writer of this process tells are looked at all
the time. Each of these is done by itself: what fails in one of them keeps none from being done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from esker.aio.store import THREADS
from esker.errors import EskerError, TopicNotFound
from esker.scheduler.governor import RETRY_SECONDS, SAMPLE_SECONDS
from esker.server.http.faults import Fault
from esker.server.live.feed import Feed, has_more
from esker.server.live.stream import KEY_ENDED, Stream

if TYPE_CHECKING:
    from esker.server.live.hub import Hub

LOG: Final = logging.getLogger("esker.server")
POLL_SECONDS: Final = 0.02  # how often a shard is looked at that another process may write


class Beats:
    """The looks at all feeds and all streams of a server."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._app = hub.app

    async def tick(self) -> None:
        """Ten times a second: the governor looks. Once a second: who may not stay is sent away."""
        clock = self._app.clock
        beats, due = 0, clock.monotonic()
        while True:
            late = max(0.0, clock.monotonic() - due)
            if late > 0.001:
                self._hub.governor.waited(late)  # the loop itself was not there in time
            due = clock.monotonic() + SAMPLE_SECONDS
            with self._guarded():
                self._sample()
            with self._guarded():
                self._find_gone()
            if beats % 2 == 0 and self._hub.missing:
                with self._guarded():
                    await self._hub.missing.look()
            if beats % 10 == 0:
                with self._guarded():
                    await self._look_after(beats // 10)
            beats += 1
            with contextlib.suppress(TimeoutError):
                left = max(0.001, due - clock.monotonic())
                await asyncio.wait_for(self._app.stopping.wait(), left)
            if self._app.stopping.is_set():
                self._hub.spawn(self._hub.close())
                return

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """What fails in here is logged, and keeps nothing else from being done."""
        try:
            yield
        except Exception:
            if not self._app.stopping.is_set():
                LOG.exception("delivery failed")

    def _sample(self) -> None:
        busy = 0.0
        with contextlib.suppress(Fault):
            busy = self._app.store.under_way / THREADS
        self._hub.governor.sample(len(self._hub.ready), busy)
        self._hub.pressed()
        self._hub.stir()  # also those that rested, or have risen meanwhile

    def _find_gone(self) -> None:
        for shards in list(self._hub.feeds.values()):
            for feed in list(shards.values()):
                if feed.gone:
                    self._hub.failed(feed, TopicNotFound("it was deleted"))

    async def _look_after(self, second: int) -> None:
        settings, now = self._app.settings, self._app.clock.monotonic()
        rhythm = max(1, round(settings.heartbeat_seconds))
        beat = f": hb {self._app.clock.now_us() // 1000}\n\n".encode()
        sent_away: list[Stream] = []
        for stream in list(self._hub.streams):
            if stream.gone:
                stream.abort()
            elif not getattr(stream.principal, "alive", True):
                sent_away.append(stream)
            elif (stuck := stream.stuck) is None or stuck != stream.seen:
                stream.seen, stream.since = stuck, now
                due = (second + id(stream) // 64) % rhythm == 0  # not for all at once
                if due and stream.task is None and stream.open:
                    stream.write(beat)
            elif now - stream.since > settings.stall_seconds:
                stream.abort()
        if sent_away:
            await self._hub.end(sent_away, "error", KEY_ENDED)

    async def poll(self) -> None:
        """Look at shards that no writer of this process would wake."""
        clock, pause = self._app.clock, POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            feeds = [
                feed
                for shards in self._hub.feeds.values()
                for feed in shards.values()
                if feed.polled and feed.live and not feed.dirty
            ]
            if not feeds:
                pause = POLL_SECONDS
                continue
            began = clock.monotonic()
            try:
                for feed in await self._moved(feeds):
                    self._hub.mark(feed)
            except (EskerError, Fault):
                continue  # the store is about to be closed
            except Exception:
                LOG.exception("delivery failed")
                pause = RETRY_SECONDS
                continue
            pause = max(POLL_SECONDS, 10 * (clock.monotonic() - began))

    async def _moved(self, feeds: list[Feed]) -> list[Feed]:
        return await self._app.run(lambda _: [feed for feed in feeds if has_more(feed)])
