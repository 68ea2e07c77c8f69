"""Queues over HTTP: put, claim, settle by token, and what became of those that were given up.

A job in hand is (shard, offset, token). The token is good for the key that claimed, for this job of
this queue, and until the lease is lost; anything else is 409 `stale_lease`, whose detail lists the
jobs with which nothing was done. Of several jobs in one call the valid ones are settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from esker.errors import StaleLease
from esker.queues.dead import DeadJob
from esker.queues.job import Job
from esker.queues.opening import known_queue
from esker.records import Record
from esker.server.bodies import codec
from esker.server.bodies import wire_rooms as wire
from esker.server.bodies.wire import Span
from esker.server.http.call import Call, Disconnected, Reply
from esker.server.http.faults import Fault
from esker.server.records import known
from esker.server.seals import page, record_fields, record_out

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.queues.queue import Queue
    from esker.server.jobs.claiming import Desk

SECONDS = {"lease_us": "lease", "claim_jitter_us": "claim_jitter", "history_us": "history"}


async def opened(call: Call) -> Queue:
    """The queue that the path names; a topic that is none is not made one."""
    name = call.params["queue"]

    def find(store: Store) -> Queue:
        known(store, name)
        return known_queue(store, name)

    return await call.app.run(find)


# ---- the queue -------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Make a queue, or give one that is there other options."""
    name, options = call.params["queue"], call.body.given()

    def make(store: Store) -> tuple[bool, Queue]:
        there = name in store
        return not there, store.queue(name, **options)

    letter = options.get("dead_letter") or name  # which becomes a topic, too
    async with call.app.with_topic(name, letter):
        made, queue = await call.app.run(make)
    return Reply(wire.QueueMade(name, made, _shown(call, queue)), 201 if made else 200)


async def state(call: Call) -> Reply:
    """How many jobs are where."""
    queue = await opened(call)
    stats = await call.app.run(lambda _: queue.stats())
    told = msgspec.structs.asdict(stats)
    told |= {"queue": queue.name, "unfinished": stats.unfinished, "options": _shown(call, queue)}
    return Reply(wire.QueueState(**told))


def _options(queue: Queue) -> dict[str, Any]:
    """The options of a queue in the words in which they are given; times in seconds."""
    found = {}
    for name, value in msgspec.structs.asdict(queue.options).items():
        short = SECONDS.get(name)
        found[short or name] = value / 1e6 if short else value
    return found


def _shown(call: Call, queue: Queue) -> dict[str, Any]:
    """Its options, without the name of another topic that the key may not read."""
    found, letter = _options(queue), queue.options.dead_letter
    if letter and not call.principal.may("read", letter):
        del found["dead_letter"]
    return found


async def pause(call: Call) -> Reply:
    """Hand out nothing until it is resumed."""
    queue = await opened(call)
    await call.app.run(lambda _: queue.pause())
    return Reply(wire.Paused(True))


async def resume(call: Call) -> Reply:
    """Hand out jobs again."""
    queue = await opened(call)
    await call.app.run(lambda _: queue.resume())
    call.app.rooms.desks.ring(queue.name)
    return Reply(wire.Paused(False))


async def purge(call: Call) -> Reply:
    """Throw away all that waits."""
    queue = await opened(call)
    return Reply(wire.Counted(queue.name, await call.app.run(lambda _: queue.purge())))


async def history(call: Call) -> Reply:
    """What happened to a job, as far back as it is kept."""
    query: wire.HistoryQuery = call.query
    queue = await opened(call)
    found = await call.app.run(lambda _: queue.history(query.offset, query.shard))
    entries = [
        wire.HistoryEntry(
            each.when_us, each.what, int(each.token.rpartition("-")[2] or 0), each.reason
        )
        for each in found
    ]
    return Reply(wire.History(queue.name, query.shard, query.offset, entries))


# ---- putting and looking ---------------------------------------------------------------------


async def put(call: Call) -> Reply:
    """Add jobs; those of one shard as one batch, all or none."""
    body: wire.Jobs = call.body
    queue = await opened(call)
    most = call.app.settings.batch_records
    records = await call.apart(body.jobs, lambda: codec.records_in(body.jobs, most))
    began = call.app.clock.monotonic()
    spans = await call.app.run(
        lambda _: queue.put_many(records, delay=body.delay, at=body.at, priority=body.priority)
    )
    call.times["put"] = (call.app.clock.monotonic() - began) * 1e3
    call.app.rooms.desks.ring(queue.name)
    told = [Span(each.shard, each.first, each.count) for each in spans]
    return Reply(wire.JobsPut(queue.name, sum(each.count for each in told), told))


async def peek(call: Call) -> Reply:
    """The jobs that would be handed out next."""
    query: wire.PeekQuery = call.query
    queue = await opened(call)

    def found(_: Store) -> list[Record]:
        return page(queue._next(query.limit), query.limit, lambda record: record)

    some = await call.app.run(found)
    jobs = [record_out(record, query.values, query.headers) for record in some]
    return Reply(wire.Peeked(queue.name, jobs))


# ---- claiming --------------------------------------------------------------------------------


async def claim(call: Call) -> Reply:
    """Jobs under a lease; waits for the first one if asked to."""
    body: wire.Claim = call.body
    call.check_wait(body.wait)
    queue = await opened(call)
    if body.lease is not None:
        queue._lease(body.lease)  # or everybody in the same pass were told of it
    desk = call.app.rooms.desks.of(call.app, queue)
    began = call.app.clock.monotonic()
    jobs = await claimed(call, desk, body)
    call.times["claim"] = (call.app.clock.monotonic() - began) * 1e3
    told = [job_out(call, queue, job, body.values, body.headers) for job in jobs]
    return Reply(wire.Claimed(queue.name, told))


async def claimed(call: Call, desk: Desk, body: wire.Claim) -> list[Job]:
    """What a claim gets; if its client goes away meanwhile, or its key ends, it is given back."""
    gone = asyncio.ensure_future(call.gone())
    claiming = asyncio.ensure_future(
        desk.claim(body.max, body.lease, body.wait, body.gaps, call.principal.id)
    )
    try:
        await asyncio.wait((claiming, gone), return_when=asyncio.FIRST_COMPLETED)
        if not claiming.done():
            raise Disconnected
        gone.cancel()
        await asyncio.wait((gone,))
        return claiming.result()
    except BaseException:  # its end among them, also when jobs were found already
        gone.cancel()
        await desk.undo(claiming)
        raise


def job_out(call: Call, queue: Queue, job: Job, values: codec.Values, headers: bool) -> wire.JobOut:
    """A job as its holder gets it."""
    clock = queue._context.clock
    token = call.app.rooms.sealed(
        call.principal.id, queue.topic._existing().id, job.shard, job.offset, job.token
    )
    return wire.JobOut(
        **record_fields(job.record, values, headers), token=token, deliveries=job.deliveries,
        priority=job.priority, lease_seconds=max(0.0, job.deadline - clock.monotonic()),
    )  # fmt: skip


# ---- settling --------------------------------------------------------------------------------


async def ack(call: Call) -> Reply:
    """These are done, and never handed out again."""
    return await _settle(call, lambda queue, jobs: queue.ack(jobs))


async def nack(call: Call) -> Reply:
    """These failed: hand them out again, later if a delay is given."""
    body: wire.Nack = call.body
    return await _settle(call, lambda queue, jobs: queue.nack(jobs, body.delay, body.reason))


async def release(call: Call) -> Reply:
    """Give these back untried."""
    return await _settle(call, lambda queue, jobs: queue.release(jobs))


async def extend(call: Call) -> Reply:
    """Hold these for so long from now on."""
    body: wire.Extend = call.body
    return await _settle(call, lambda queue, jobs: queue.extend(jobs, body.lease), renews=True)


async def _settle(
    call: Call, verb: Callable[[Queue, list[Job]], None], *, renews: bool = False
) -> Reply:
    given: list[wire.JobToken] = call.body.jobs
    queue = await opened(call)
    topic, rooms, key = queue.topic._existing().id, call.app.rooms, call.principal.id
    jobs: list[Job] = []
    refused: list[tuple[int, int]] = []
    for each in given:
        token = rooms.opened(key, topic, each.shard, each.offset, each.token)
        if token is None:
            refused.append((each.shard, each.offset))
        else:
            jobs.append(queue.job(each.shard, each.offset, token))

    def settle(some: list[Job]) -> list[Job]:
        try:
            if some:
                verb(queue, some)
        except StaleLease as problem:
            return list(problem.jobs)
        return []

    if renews:
        lost = await _renewed(call, queue, jobs, settle)
    else:
        lost = await call.app.run(lambda _: settle(jobs))
    desk = rooms.desks.of(call.app, queue)
    for job in jobs:
        if job.settled or job.extended:
            desk.settled((job.shard, job.offset, job.token), job.extended or None)
    desk.ring()
    refused += [(job.shard, job.offset) for job in lost]
    if refused:
        told = [{"shard": shard, "offset": offset} for shard, offset in refused]
        raise Fault(
            "stale_lease", f"{len(refused)} of {len(given)} jobs are not held under these tokens; "
            "nothing was done with them, claim again",
            detail={"jobs": told, "done": len(given) - len(refused)},
        )  # fmt: skip
    return Reply(wire.Settled(queue.name, len(given)))


async def _renewed(
    call: Call, queue: Queue, jobs: list[Job], extend: Callable[[list[Job]], list[Job]]
) -> list[Job]:
    """Renew leases; those that ran out meanwhile only as far as their key has room for them."""
    hands, key = call.app.rooms.hands, call.principal.id
    if hands.room(key) < len(jobs):
        await hands.look(call.app, key, asyncio.get_running_loop().time())
    with hands.renewing(key, jobs, queue._context.clock.monotonic()) as chosen:
        lost = await call.app.run(lambda _: extend(chosen))
    if len(chosen) == len(jobs):
        return lost
    kept = {id(job) for job in chosen}
    return [*lost, *(job for job in jobs if id(job) not in kept)]


# ---- the dead --------------------------------------------------------------------------------


async def _with_dead(call: Call) -> Queue:
    """The queue, for a key that may do with its dead letters what it wants to do.

    They lie in a topic of their own, and those of other queues may lie there, too.
    """
    queue, scope = await opened(call), call.route.scope
    letter = queue.options.dead_letter
    if letter and scope is not None and not call.principal.may(scope, letter):
        raise Fault("forbidden", "the key is not for the topic of this queue's dead letters")
    return queue


async def dead(call: Call) -> Reply:
    """The first of those that were given up."""
    query: wire.PeekQuery = call.query
    queue = await _with_dead(call)

    def found(_: Store) -> tuple[int, list[DeadJob]]:
        return len(queue.dead), page(queue.dead, query.limit, lambda job: job.record)

    count, jobs = await call.app.run(found)
    told = [
        wire.DeadOut(
            **record_fields(job.record, query.values, query.headers), deliveries=job.deliveries,
            reason=job.reason,
        )
        for job in jobs
    ]  # fmt: skip
    return Reply(wire.Dead(queue.name, count, told))


async def requeue(call: Call) -> Reply:
    """Put dead jobs back into their queue, once each."""
    queue = await _with_dead(call)
    jobs, where = _chosen(call.body)
    count = await call.app.run(lambda _: queue.dead.requeue(jobs, where=where))
    call.app.rooms.desks.ring(queue.name)
    return Reply(wire.Counted(queue.name, count))


async def purge_dead(call: Call) -> Reply:
    """Throw dead jobs away."""
    queue = await _with_dead(call)
    jobs, where = _chosen(call.body)
    count = await call.app.run(lambda _: queue.dead.purge(jobs, where=where))
    return Reply(wire.Counted(queue.name, count))


def _chosen(body: wire.Chosen) -> tuple[list[DeadJob] | None, Callable[[DeadJob], bool] | None]:
    """Those that are named, all, or those that match; never all because nothing was said."""
    matching = body.tag is not None or body.key is not None or body.reason is not None
    if (body.jobs is not None) + body.all + matching != 1:
        raise Fault("invalid_request", "say which: `jobs`, or `all`, or what they are to match")
    if body.jobs is not None:
        blank = Record(b"")
        return [DeadJob(blank, each.shard, each.offset, 0, "") for each in body.jobs], None
    if body.all:
        return None, None
    key = None if body.key is None else body.key.encode()

    def where(job: DeadJob) -> bool:
        return (
            (body.tag is None or job.record.tag == body.tag)
            and (key is None or job.record.key == key)
            and (body.reason is None or body.reason in job.reason)
        )

    return None, where
