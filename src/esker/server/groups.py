"""Groups over HTTP: poll, work, ack, and again.

A poll delivers from the group's cursor on: what was delivered before and not acked comes again, so
an answer that was lost on its way is no loss. Who acks late and reads on meanwhile says `ahead`,
and gets what is behind all that this member was delivered.

Every batch says its shard, the generation under which the shard is held, and the offsets `first`
up to `next`. An ack gives these back. If the shard is somebody else's by now, or was moved by a
seek, the generation is another one: 409 `fenced`, and nothing has happened with that shard.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.aio.waiting import news
from esker.errors import Fenced, GroupNotFound, MemberBusy
from esker.groups import lag as lags
from esker.groups.batch import GroupBatch
from esker.groups.describe import GroupStatus, groups_of
from esker.records import Gap
from esker.server.bodies import codec
from esker.server.bodies import wire_rooms as wire
from esker.server.bodies.codec import ARROW
from esker.server.http.call import Call, Disconnected, Reply
from esker.server.http.faults import Fault
from esker.server.members import Members, Seat, existing, has_group
from esker.server.records import known

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.groups.group import Group

_OF_A_ROUTE: Final = re.compile(r"route:\d+", re.ASCII)
LOOK_SECONDS: Final = 0.25  # between looks at who else reads, while nothing comes


# ---- the group -------------------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Make a group that begins somewhere; 200 if it is there, and then it stays where it is."""
    topic, group = _names(call)

    def make(store: Store) -> tuple[bool, wire.GroupState]:
        there = has_group(known(store, topic), group)
        store[topic].group(group, call.body.start).close()
        return not there, _state(call, store, topic, group)

    made, state = await call.app.run(make)
    return Reply(state, 201 if made else 200)


async def state(call: Call) -> Reply:
    """Where a group is, and how far behind."""
    topic, group = _names(call)
    return Reply(await call.app.run(lambda store: _state(call, store, topic, group)))


async def list_groups(call: Call) -> Reply:
    """All groups of all topics that the key may read, or of one topic."""
    wanted, principal = call.query.topic, call.principal

    def found(store: Store) -> list[wire.GroupState]:
        if wanted is not None:
            known(store, wanted)
        names = [wanted] if wanted is not None else [
            name for name in store if principal.may("read", name)
        ]  # fmt: skip
        return [_told(call, store, each) for each in groups_of([store[name] for name in names])]

    return Reply(wire.Groups(await call.app.run(found)))


async def forget(call: Call) -> Reply:
    """Forget a group for good; nobody may be reading in it."""
    topic, group = _names(call)
    try:
        await call.app.run(lambda store: known(store, topic).forget_group(group))
    except MemberBusy:  # which process that is helps nobody who is elsewhere
        raise Fault(
            "member_busy", f"group {group!r} of topic {topic!r} has members that read: let them "
            "leave, or wait until they were not heard of for their session",
        ) from None  # fmt: skip
    return Reply(wire.Forgotten(topic, group, True))


async def seek(call: Call) -> Reply:
    """Put a group somewhere else, or say what that would mean."""
    body: wire.Seek = call.body

    def move(group: Group) -> list[wire.Move]:
        moves = group.seek(body.to, body.shard, dry_run=body.dry_run)
        return [wire.Move(**msgspec.structs.asdict(each)) for each in moves]

    return Reply(wire.Moves(body.dry_run, await _with(call, move)))


async def pause(call: Call) -> Reply:
    """Deliver nothing until it is resumed; what was delivered can be acked."""
    await _with(call, lambda group: group.pause())
    return Reply(wire.Paused(True))


async def resume(call: Call) -> Reply:
    """Go on after a pause."""
    await _with(call, lambda group: group.resume())
    return Reply(wire.Paused(False))


async def _with(call: Call, work: Any) -> Any:
    """Do something with a group that is there, through a handle that reads nothing."""
    topic, name = _names(call)

    def done(store: Store) -> Any:
        with existing(known(store, topic), name).group(name) as group:
            return work(group)

    return await call.app.run(done)


def _names(call: Call) -> tuple[str, str]:
    """The topic and the group that the path names. What a route reads as is the route's."""
    topic, group = call.params["topic"], call.params["group"]
    if call.route.method != "GET" and _OF_A_ROUTE.fullmatch(group):
        raise Fault("forbidden", f"{group} is the group of a route; see /v1/routes")
    return topic, group


def _state(call: Call, store: Store, topic: str, group: str) -> wire.GroupState:
    for status in groups_of([existing(known(store, topic), group)]):
        if status.name == group:
            return _told(call, store, status)
    raise GroupNotFound(f"no group {group!r} reads topic {topic!r}")


def _told(call: Call, store: Store, status: GroupStatus) -> wire.GroupState:
    shards = [
        wire.GroupShard(
            each.shard, each.cursor, each.end, each.records, each.seconds, each.generation,
            each.acked, each.paused, bool(each.pid),
        )
        for each in status.shards
    ]  # fmt: skip
    behind = tuple(
        lags.ShardLag(each.shard, each.cursor, each.end, each.records, each.seconds)
        for each in status.shards
    )
    rates = call.app.rooms.members.rates(store, status.topic, status.name)
    lag = rates.told(
        lags.Lag(status.topic, status.name, behind), call.app.clock.monotonic()
    )  # fmt: skip
    return wire.GroupState(
        status.topic, status.name, status.records, status.seconds, lag.eta_seconds,
        len(status.pids), status.paused, shards,
    )  # fmt: skip


# ---- its members -----------------------------------------------------------------------------


async def poll(call: Call) -> Reply:
    """What there is for a member; waits for it if asked to."""
    body: wire.Poll = call.body
    media = call.accepts(*call.route.offers)
    call.check_wait(body.wait)
    topic, group = _names(call)
    name = (topic, group, body.member)
    members: Members = call.app.rooms.members
    seat = await call.app.run(lambda store: members.seat(store, name, body.session))
    if seat.polling:
        raise Fault(
            "member_busy", f"member {body.member!r} is polling already; give each its own name"
        )
    seat.polling = True
    began = call.app.clock.monotonic()
    try:
        found = await _polled(call, seat, body)
    finally:
        seat.polling = False
    call.times["poll"] = (call.app.clock.monotonic() - began) * 1e3
    return await call.app.run(lambda _: _page(topic, group, found, body, media))


async def _polled(call: Call, seat: Seat, body: wire.Poll) -> list[GroupBatch | Gap]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + body.wait
    gone = asyncio.ensure_future(call.gone())
    if not body.ahead:
        await call.app.run(lambda _: seat.group.rewind())
    try:
        while True:
            found = await call.app.run(lambda _: _take(seat, body))
            if gone.done():  # what was taken comes again with the next poll
                raise Disconnected
            left = deadline - loop.time()
            if found or left <= 0 or call.app.stopping.is_set():
                return found
            await _more(call, seat, min(left, LOOK_SECONDS), gone)
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _more(call: Call, seat: Seat, seconds: float, gone: Any) -> None:
    """Until there may be more for a seat, its client is gone or the time is up."""
    loop = asyncio.get_running_loop()
    tail = await call.app.run(lambda _: seat.group._tail())
    waiting = asyncio.ensure_future(
        news(call.app.store, tail, loop.time() + seconds) if tail.cursors else asyncio.sleep(0.05)
    )
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting


def _take(seat: Seat, body: wire.Poll) -> list[GroupBatch | Gap]:
    """Batches up to what was asked for, of one shard after the other."""
    group, left, room = seat.group, body.max_records, body.max_bytes
    seat.seen = group._context.clock.monotonic()
    found: list[GroupBatch | Gap] = []
    while left > 0 and room > 0:
        item: Any = next(group.poll(left, room), None)
        if item is None:
            break
        found.append(item)
        if isinstance(item, GroupBatch):
            left, room = left - len(item), room - item.nbytes
    return found


def _page(
    topic: str, group: str, found: list[GroupBatch | Gap], body: wire.Poll, media: str
) -> Reply:
    batches = [item for item in found if isinstance(item, GroupBatch)]
    gaps = [codec.gap_out(item) for item in found if isinstance(item, Gap)]
    told = [
        wire.GroupBatch(
            each.shard, each._held.slot.term.generation, each._first, each.next_offset, len(each)
        )
        for each in batches
    ]
    if media == ARROW:
        headers = [("esker-batches", msgspec.json.encode(told).decode())]
        if gaps:
            headers.append(("esker-gaps", msgspec.json.encode(gaps).decode()))
        return Reply(codec.arrow_out(batches), media=ARROW, headers=tuple(headers))
    records = [
        record
        for batch in batches
        for record in codec.records_out(batch, values=body.values, headers=body.headers)
    ]
    return Reply(wire.Polled(topic, group, body.member, told, records, gaps))


async def ack(call: Call) -> Reply:
    """What was delivered is done with, up to here. Shards that are lost are told; others count."""
    body: wire.Acks = call.body
    topic, group = _names(call)
    name = (topic, group, body.member)
    members: Members = call.app.rooms.members

    def acked(store: Store) -> wire.Acked:
        seat = members.known(store, name)
        lost: list[dict[str, int]] = []
        done = 0
        for each in body.acks:
            try:
                _ack(seat.group, each)
                done += 1
            except Fenced:
                lost.append({"shard": each.shard, "generation": each.generation})
        if body.sync:
            seat.group.sync()
        if lost:
            raise Fault(
                "fenced", "shards that this member does not hold any more, or that were moved: "
                "what was delivered of them comes again to whoever holds them now",
                detail={"shards": lost, "acked": done},
            )  # fmt: skip
        numbers = sorted({each.shard for each in body.acks})
        cursors = seat.group.cursors()
        return wire.Acked(topic, group, done, [wire.Cursor(n, cursors[n]) for n in numbers])

    return Reply(await call.app.run(acked))


def _ack(group: Group, ack: wire.Ack) -> None:
    with group._lock:
        held = group._held.get(ack.shard)
        if held is None or held.slot.term.generation != ack.generation:
            raise Fenced(f"shard {ack.shard} of group {group.name!r} is held under another term")
        first = held.acked if ack.first is None else ack.first
        if ack.next <= first:
            if ack.first is not None:
                raise Fault("invalid_option", f"next={ack.next}: it lies behind first={first}")
            return  # all of it is acked
        held.ack(first, ack.next)


async def leave(call: Call) -> Reply:
    """Give the shards of a member back at once."""
    topic, group = _names(call)
    members: Members = call.app.rooms.members
    name = (topic, group, call.body.member)
    return Reply(wire.Left(await call.app.run(lambda store: members.leave(store, name))))


# ---- producers -------------------------------------------------------------------------------


async def producer(call: Call) -> Reply:
    """The last number that a producer of a topic used; -1 if none."""
    topic, name = call.params["topic"], call.params["producer"]

    def last(store: Store) -> int:
        return known(store, topic).producer(name, call.query.shard).last

    return Reply(wire.ProducerState(topic, name, await call.app.run(last)))
