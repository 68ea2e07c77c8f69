"""Jobs that somebody holds: who looks after a queue sees them, and can take them back. And those
that wait for their time.

A worker that hangs holds its jobs until their leases end. Whoever has the scope `admin` need not
wait: a job that is taken back is ready at once (`release`), or counts as failed (`nack`). Its
holder's token is worth nothing from then on (409 `stale_lease`), as if the lease had run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from esker.errors import DataGap, OffsetOutOfRange, StaleLease
from esker.queues.fresh import Delayed
from esker.queues.job import Job
from esker.queues.queue import Held, Queue
from esker.records import Record
from esker.server.bodies import wire_overview as wire
from esker.server.bodies.wire_rooms import Settled
from esker.server.http.call import Call, Reply
from esker.server.jobs.queues import opened
from esker.server.seals import page, record_fields

if TYPE_CHECKING:
    from esker.engine.store import Store


T = TypeVar("T", Held, Delayed)


async def leases(call: Call) -> Reply:
    """The first of the jobs that are held, those whose lease ends soonest."""
    query: wire.LeasesQuery = call.query
    queue = await opened(call)

    def look(_: Store) -> tuple[int, list[tuple[Held, Record | None]]]:
        held = sorted(queue.leases(), key=lambda each: each.seconds_left)
        return len(held), _first(queue, held, query.limit)

    count, found = await call.app.run(look)
    jobs = [
        wire.LeaseOut(
            **record_fields(record, query.values, query.headers), deliveries=each.deliveries,
            seconds_left=max(0.0, each.seconds_left), pid=each.pid,
        )
        for each, record in found
        if record is not None
    ]  # fmt: skip
    return Reply(wire.Leases(queue.name, count, jobs))


async def delayed(call: Call) -> Reply:
    """The first of the jobs that wait for their time, those whose time comes soonest."""
    query: wire.LeasesQuery = call.query
    queue = await opened(call)

    def look(_: Store) -> tuple[int, list[tuple[Delayed, Record | None]]]:
        waiting = queue.delayed()
        return len(waiting), _first(queue, waiting, query.limit)

    count, found = await call.app.run(look)
    jobs = [
        wire.DelayedOut(
            **record_fields(record, query.values, query.headers), seconds_left=each.seconds_left
        )
        for each, record in found
        if record is not None
    ]
    return Reply(wire.DelayedJobs(queue.name, count, jobs))


def _first(queue: Queue, some: Iterable[T], limit: int) -> list[tuple[T, Record | None]]:
    return page(((each, _record(queue, each)) for each in some), limit, lambda pair: pair[1])


def _record(queue: Queue, which: Held | Delayed) -> Record | None:
    """What it is about; None if that was lost meanwhile."""
    try:
        return queue.topic.get(which.offset, which.shard)
    except (DataGap, OffsetOutOfRange):
        return None


async def release(call: Call) -> Reply:
    """Take jobs from whoever holds them; they are ready at once, and the delivery is forgotten."""
    return await _taken(call, lambda queue, jobs: queue.release(jobs))


async def nack(call: Call) -> Reply:
    """Take jobs from whoever holds them; they have failed."""
    body: wire.TakeBackFailed = call.body
    return await _taken(call, lambda queue, jobs: queue.nack(jobs, body.delay, body.reason))


async def _taken(call: Call, verb: Callable[[Queue, list[Job]], None]) -> Reply:
    queue = await opened(call)
    wanted = {(each.shard, each.offset) for each in call.body.jobs}

    def take(_: Store) -> list[Job]:
        jobs = [
            queue.job(each.shard, each.offset, each.token)
            for each in queue.leases()
            if (each.shard, each.offset) in wanted
        ]
        with suppress(StaleLease):  # some were settled meanwhile
            if jobs:
                verb(queue, jobs)
        return [job for job in jobs if not job.lost]

    done = await call.app.run(take)
    desk = call.app.rooms.desks.of(call.app, queue)
    for job in done:
        desk.lost((job.shard, job.offset, job.token))
    desk.ring()
    return Reply(Settled(queue.name, len(done)))
