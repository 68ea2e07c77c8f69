"""A stream of work: jobs as they come, so many in hand at most, given back when the worker goes.

    GET /v1/queues/emails/work?max=4&lease=30s        Accept: text/event-stream

    event: job          a job, as a claim gives it; settle it with its token by another call
    event: lost         its lease ran out before it was settled, or it was taken back; it is not
                        this worker's any more
    event: error        a gap, a failure of the queue, or the end of the key; then the stream ends
    event: bye          the server stops; come back
    : heartbeat         every 15 seconds in which nothing else came (`heartbeat_seconds`), so that a
                        connection that is dead is found out, and no proxy ends one that is not

A job counts as in hand until it is acked, nacked or released, or its lease is lost. While its key
has as many jobs in hand as it may (in_hand.py), a stream gets no further one. The stream does not
renew leases: a worker that needs longer extends them. When the connection ends, for whatever
reason, what is in hand is released at once: it is ready again, and its delivery does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.errors import EskerError
from esker.queues.job import Job
from esker.server.bodies import wire_rooms as wire
from esker.server.bodies.codec import EVENTS, UNBUFFERED
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault, fault_of
from esker.server.jobs.queues import job_out, opened
from esker.server.live.frames import event

if TYPE_CHECKING:
    from esker.queues.queue import Queue
    from esker.server.jobs.claiming import Place

PATIENCE_SECONDS: Final = 5.0  # at a stretch, at the desk


async def work(call: Call) -> Reply:
    """A stream of jobs."""
    call.accepts(EVENTS)
    query: wire.WorkQuery = call.query
    queue = await opened(call)
    lease = _lease(query.lease)
    if lease is not None:
        queue._lease(lease)
    stream = Stream(call, queue, lease).run()
    return Reply(media=EVENTS, headers=UNBUFFERED, stream=stream)


def _lease(text: str | None) -> float | str | None:
    """A number is seconds, as everywhere."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


class Stream:
    """One worker at the other end of a connection."""

    def __init__(self, call: Call, queue: Queue, lease: float | str | None) -> None:
        self._call = call
        self._queue = queue
        self._lease = lease
        self._clock = queue._context.clock
        self._loop = asyncio.get_running_loop()
        self._rhythm = call.app.settings.heartbeat_seconds
        self._beat_at = 0.0  # when the next sign of life is due
        self._desk = call.app.rooms.desks.of(call.app, queue)
        self._held: dict[Place, Job] = {}
        self._changed = asyncio.Event()

    async def run(self) -> AsyncIterator[bytes]:
        """Its bytes, until the client goes or the server stops."""
        call = self._call
        stopping = asyncio.ensure_future(call.app.stopping.wait())
        claiming: asyncio.Future[list[Job]] | None = None
        try:
            yield b": esker work\n\n"
            self._beat_at = self._loop.time() + self._rhythm
            while not stopping.done():
                for lost in self._late():
                    yield event("lost", lost, "sse")
                room = call.query.max - len(self._held)
                if claiming is None and room > 0:
                    claiming = asyncio.ensure_future(self._claim(room))
                changed = asyncio.ensure_future(self._changed.wait())
                waiting: list[asyncio.Future[Any]] = [stopping, changed]
                if claiming is not None:
                    waiting.append(claiming)
                try:
                    await asyncio.wait(
                        waiting, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    changed.cancel()
                self._changed.clear()
                if claiming is not None and claiming.done():
                    try:
                        jobs = claiming.result()
                    except EskerError as problem:
                        yield _error(problem)
                        return
                    finally:
                        claiming = None
                    self._take(jobs)
                    for job in jobs:
                        yield event("job", self._told(job), "sse")
                        job.record = msgspec.structs.replace(job.record, value=b"", headers=None)
                if self._loop.time() >= self._beat_at:
                    self._beat_at = self._loop.time() + self._rhythm
                    yield b": heartbeat\n\n"
            yield event("bye", {"reason": "the server stops"}, "sse")
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end(stopping, claiming)))

    async def _claim(self, room: int) -> list[Job]:
        """The next jobs; while its key has as many in hand as it may, there are none."""
        key = self._call.principal.id
        return await self._desk.claim(
            room, self._lease, PATIENCE_SECONDS, "raise", key, patient=True
        )

    async def _end(self, stopping: Any, claiming: Any) -> None:
        """Give everything back."""
        stopping.cancel()
        if claiming is not None:
            claiming.cancel()
            with suppress(asyncio.CancelledError, EskerError, Fault):
                self._take(await claiming)
        jobs = list(self._held.values())
        for place in list(self._held):
            self._drop(place)
        if jobs:
            with suppress(EskerError, Fault):  # those that were lost are not ours to give
                await self._call.app.run(lambda _: self._queue.release(jobs))
            self._desk.ring()

    def _take(self, jobs: list[Job]) -> None:
        for job in jobs:
            place = (job.shard, job.offset, job.token)
            self._held[place] = job
            self._desk.watch(place, self._settled)

    def _told(self, job: Job) -> wire.JobOut:
        query: wire.WorkQuery = self._call.query
        return job_out(self._call, self._queue, job, query.values, query.headers)

    def _settled(self, place: Place, until: float | None) -> None:
        """Another call has settled or extended a job that is in hand here."""
        if until is not None:
            self._held[place].extended = until
        else:
            self._drop(place)
        self._changed.set()

    def _drop(self, place: Place) -> None:
        self._held.pop(place, None)
        self._desk.forget(place)

    def _late(self) -> list[dict[str, int]]:
        """Those whose lease has run out: they are not in hand any more."""
        now = self._clock.monotonic()
        late = [place for place, job in self._held.items() if job.deadline <= now]
        for place in late:
            self._drop(place)
        return [{"shard": shard, "offset": offset} for shard, offset, _ in late]

    def _patience(self) -> float:
        """How long there is nothing to do if nobody does anything."""
        now, beat = self._clock.monotonic(), self._beat_at - self._loop.time()
        first = min((job.deadline - now for job in self._held.values()), default=beat)
        return max(0.001, min(beat, first + 0.001))


def _error(problem: EskerError) -> bytes:
    fault = fault_of(problem)
    told = {"code": fault.code, "message": fault.message}
    return event("error", told | ({"detail": fault.detail} if fault.detail else {}), "sse")
