"""Where claims of a queue wait, and who has what.

All who wait for jobs of a queue stand at one desk. One task serves it: a pass over the queue for
all that are there, what it finds dealt out in turn; then it sleeps until somebody puts or gives
back a job here, or a moment has passed (other processes put jobs, too, and leases run out). So a
thousand who wait cost one look, not a thousand, and no thread is held by who waits. With
`claim_jitter` a pass waits for company first, as the library does it.

Whoever stands here has a key, and a key may have so many jobs in hand and no more (in_hand.py). A
claim that finds its key's hands full is refused, at once or as soon as they are; one that is
`patient`, a stream of work, waits until there is room.

The desk knows which jobs are in the hands of streams of work (stream.py), so that a stream is told
when one of its jobs was settled by another call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from esker.errors import DataGap, EskerError
from esker.queues.job import Job
from esker.server.http.faults import Fault

if TYPE_CHECKING:
    from esker.queues.queue import Queue
    from esker.server.app import App

LOOK_SECONDS: Final = 0.025  # between looks for jobs that others put, or that are due again
LONG_AGO: Final = 1e-6  # by a clock that begins at 0, and where 0 is no time at all
PAGE_BYTES: Final = 8 << 20  # of jobs that one call gets, and one reading more
DESKS_MAX: Final = 1_024  # then those at which nobody stands are cleared away

Place = tuple[int, int, str]  # shard, offset, token
Settled = Callable[[Place, float | None], None]


class _Want(NamedTuple):
    most: int
    lease: float | str | None
    gaps: Literal["raise", "skip"]
    deadline: float  # by the loop's clock
    key: str  # who asks
    patient: bool  # waits for room, too
    got: asyncio.Future[list[Job]]


class Desk:
    """One queue's."""

    def __init__(self, app: App, queue: Queue) -> None:
        self.queue = queue
        self._app = app
        self._hands = app.rooms.hands
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
        self, most: int, lease: float | str | None, wait: float, gaps: Literal["raise", "skip"],
        key: str = "", *, patient: bool = False,
    ) -> list[Job]:  # fmt: skip
        """Jobs, as soon as there are any; none if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if self._hands.room(key) < most and not patient:
            await self._hands.look(self._app, key, loop.time())
            if self._hands.full(key):
                raise self._hands.refusal()
        want = _Want(most, lease, gaps, deadline, key, patient, loop.create_future())
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

    async def undo(self, claiming: asyncio.Future[list[Job]]) -> None:
        """Nobody takes what a claim gets, or has got."""
        claiming.cancel()
        with suppress(asyncio.CancelledError, EskerError, Fault):
            await asyncio.shield(self._give_back(await claiming))

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._bell.clear()
                await self._pass()
                self._waiting = [want for want in self._waiting if not want.got.done()]
                if self._waiting:
                    first = min(want.deadline for want in self._waiting)
                    pause = max(0.001, min(LOOK_SECONDS, first - loop.time()))
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
        queue, shares = self.queue, await self._shares(wants)
        some = [share for share in shares if share]
        hands: list[list[Job]] = []
        try:
            if some:
                most_bytes = PAGE_BYTES * len(some)
                hands = await self._app.run(
                    lambda _: queue.claim_together(some, lease, gaps=gaps, most_bytes=most_bytes)
                )
        except EskerError as problem:
            # what was lost is told once, to one; anything else is everybody's
            told = [want for want, share in zip(wants, shares, strict=True) if share]
            for want in told[:1] if isinstance(problem, DataGap) else told:
                if not want.got.done():
                    want.got.set_exception(problem)
            return
        finally:
            dealt = iter(hands)
            found = [next(dealt, []) if share else [] for share in shares]
            for want, share, jobs in zip(wants, shares, found, strict=True):
                self._hands.took(want.key, share, jobs)
        await self._hand_out(wants, shares, found)

    async def _shares(self, wants: list[_Want]) -> list[int]:
        """How many jobs each may have; who finds no room and does not wait for it is refused."""
        hands, now = self._hands, asyncio.get_running_loop().time()
        for key in {want.key for want in wants if hands.room(want.key) < want.most}:
            hurried = any(want.key == key and not want.patient for want in wants)
            if hands.stale(key, now) or (hurried and hands.full(key)):
                await hands.look(self._app, key, now)
        for want in wants:
            if not want.patient and hands.full(want.key) and not want.got.done():
                want.got.set_exception(hands.refusal())
        clock = self.queue._context.clock
        asked = [(want.key, 0 if want.got.done() else want.most) for want in wants]
        return hands.shares(asked, clock.monotonic())

    async def _hand_out(
        self, wants: list[_Want], shares: list[int], found: list[list[Job]]
    ) -> None:
        now = asyncio.get_running_loop().time()
        ending = self._app.stopping.is_set()
        for want, share, jobs in zip(wants, shares, found, strict=True):
            # who had no share, for claims that are under way, is served by the next pass
            late = want.deadline <= now and bool(share or want.patient)
            if want.got.done():  # who asked is gone
                await self._give_back(jobs)
            elif jobs or ending or late:
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

    def lost(self, place: Place) -> None:
        """A job was taken back."""
        self.settled(place, LONG_AGO)

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
