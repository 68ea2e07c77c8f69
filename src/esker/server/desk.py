"""Where claims of a queue wait, and who has what.

All who wait for jobs of a queue stand at one desk. One task serves it: a pass over the queue for
all that are there, what it finds dealt out in turn; then it sleeps until somebody puts or gives
back a job here, or a moment has passed (other processes put jobs, too, and leases run out). So a
thousand who wait cost one look, not a thousand, and no thread is held by who waits. With
`claim_jitter` a pass waits for company first, as the library does it.

The desk knows which jobs are in the hands of streams of work (work.py), so that a stream is told
when one of its jobs was settled by another call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from esker.errors import DataGap, EskerError
from esker.queues.job import Job

if TYPE_CHECKING:
    from esker.queues.queue import Queue
    from esker.server.app import App

LOOK_SECONDS: Final = 0.025  # between looks for jobs that others put, or that are due again
DESKS_MAX: Final = 1_024  # then those at which nobody stands are cleared away

Place = tuple[int, int, str]  # shard, offset, token
Settled = Callable[[Place, float | None], None]


class _Want(NamedTuple):
    most: int
    lease: float | str | None
    gaps: Literal["raise", "skip"]
    deadline: float  # by the loop's clock
    got: asyncio.Future[list[Job]]


class Desk:
    """One queue's."""

    def __init__(self, app: App, queue: Queue) -> None:
        self.queue = queue
        self._app = app
        self._waiting: list[_Want] = []
        self._bell = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._streams: dict[Place, Settled] = {}

    @property
    def idle(self) -> bool:
        """Whether nobody would miss it."""
        return self._serving is None and not self._streams

    def ring(self) -> None:
        """There may be something to be claimed."""
        self._bell.set()

    async def claim(
        self, most: int, lease: float | str | None, wait: float, gaps: Literal["raise", "skip"]
    ) -> list[Job]:
        """Jobs, as soon as there are any; none if that takes too long."""
        loop = asyncio.get_running_loop()
        want = _Want(most, lease, gaps, loop.time() + wait, loop.create_future())
        self._waiting.append(want)
        if self._serving is None:
            self._serving = loop.create_task(self._serve())
        self._bell.set()
        try:
            return await want.got
        except asyncio.CancelledError:
            got = want.got
            if got.done() and not got.cancelled() and got.exception() is None:
                await asyncio.shield(self._give_back(got.result()))
            raise

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._bell.clear()
                await self._pass()
                self._waiting = [want for want in self._waiting if not want.got.done()]
                if self._waiting:
                    first = min(want.deadline for want in self._waiting)
                    pause = max(0.0, min(LOOK_SECONDS, first - loop.time()))
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._bell.wait(), pause)
        except Exception as problem:
            for want in self._waiting:
                if not want.got.done():
                    want.got.set_exception(problem)
            self._waiting = []
        finally:
            self._serving = None

    async def _pass(self) -> None:
        """Serve all that wait, those of one kind of claim together."""
        queue, most = self.queue, sum(want.most for want in self._waiting)
        if queue.options.claim_jitter_us:
            await asyncio.sleep(await self._app.run(lambda _: queue.announce(most)))
        kinds: dict[Any, list[_Want]] = {}
        for want in self._waiting:
            if not want.got.done():
                kinds.setdefault((want.lease, want.gaps), []).append(want)
        for (lease, gaps), wants in kinds.items():
            await self._deal(wants, lease, gaps)

    async def _deal(self, wants: list[_Want], lease: Any, gaps: Any) -> None:
        queue, most = self.queue, [want.most for want in wants]
        try:
            hands = await self._app.run(lambda _: queue.claim_together(most, lease, gaps=gaps))
        except EskerError as problem:
            # what was lost is told once, to one; anything else is everybody's
            for want in wants[:1] if isinstance(problem, DataGap) else wants:
                if not want.got.done():
                    want.got.set_exception(problem)
            return
        now = asyncio.get_running_loop().time()
        ending = self._app.stopping.is_set()
        for want, jobs in zip(wants, hands, strict=True):
            if want.got.done():  # who asked is gone
                await self._give_back(jobs)
            elif jobs or ending or want.deadline <= now:
                want.got.set_result(jobs)

    async def _give_back(self, jobs: list[Job]) -> None:
        if jobs:
            with suppress(EskerError):  # else their leases run out
                await self._app.run(lambda _: self.queue.release(jobs))
            self.ring()

    # ---- streams of work -----------------------------------------------------------------

    def watch(self, place: Place, settled: Settled) -> None:
        """Have a stream told when this job is settled, or held for longer."""
        self._streams[place] = settled

    def forget(self, place: Place) -> None:
        self._streams.pop(place, None)

    def settled(self, place: Place, until: float | None = None) -> None:
        """A job was acked, nacked or released; or, with `until`, extended."""
        told = self._streams.get(place)
        if told is not None:
            told(place, until)


class Desks:
    """The desks of all queues, made when they are needed."""

    def __init__(self) -> None:
        self._desks: dict[str, Desk] = {}

    def of(self, app: App, queue: Queue) -> Desk:
        known = self._desks.get(queue.name)
        if known is None or known.queue is not queue:
            if len(self._desks) >= DESKS_MAX:
                self._desks = {name: desk for name, desk in self._desks.items() if not desk.idle}
            known = self._desks[queue.name] = Desk(app, queue)
        return known

    def ring(self, name: str) -> None:
        """Something was appended to a topic of this name, or given back."""
        known = self._desks.get(name)
        if known is not None:
            known.ring()
