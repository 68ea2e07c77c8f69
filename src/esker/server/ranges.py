"""What positions mean in each shard, how it can be divided; waiting for several shards; sync."""

from __future__ import annotations

import asyncio
from typing import Any

from esker import positions
from esker.aio.waiting import news
from esker.engine import ranges as dividing
from esker.engine.reader import count_records, earliest_of, find_time
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import InvalidOption
from esker.server.bodies import codec, wire
from esker.server.http.call import Call, Reply
from esker.server.http.waiting import Waiting
from esker.server.records import known


def _existing(store: Store, name: str) -> Topic:
    topic = known(store, name)
    topic._existing()
    return topic


async def ranges(call: Call) -> Reply:
    """What two positions mean in each shard as things are now, and how many records are between."""
    query: wire.RangesQuery = call.query
    name = call.params["topic"]

    def settle(topic: Topic) -> wire.Ranges:
        now = topic._store._context.clock.now_us()
        begin = positions.parse(query.start, now)
        finish = None if query.stop is None else positions.parse(query.stop, now)
        begin, missed = topic._begin(begin, query.shard, query.epoch)
        found = [
            wire.Range(number, first, end, count_records(topic._view(number), first, end))
            for number, first, end in topic._ranges(begin, finish, query.shard, query.consistency)
        ]
        return wire.Ranges(
            name, topic.epoch, found, [codec.gap_out(gap) for gap in missed.values()]
        )

    return Reply(await call.app.run(lambda store: settle(_existing(store, name))))


async def pieces(call: Call) -> Reply:
    """How a shard stands, and a range of it in pieces of whole frames, with about their bytes."""
    query: wire.PiecesQuery = call.query
    name, shard = call.params["topic"], call.query.shard

    def divide(topic: Topic) -> wire.Pieces:
        if shard >= topic.shards:
            raise InvalidOption(f"shard={shard}: topic {name!r} has 0..{topic.shards - 1}")
        view = topic._view(shard)
        visible = view.visible
        end = visible if query.end is None else min(query.end, visible)
        atoms = dividing.fewer(dividing.atoms(view, query.first, end), query.most)
        return wire.Pieces(
            name, topic.epoch, shard, dividing.deleted_before(view), earliest_of(view), visible,
            [wire.Piece(atom.end, atom.weight) for atom in atoms],
            None if query.since is None else find_time(view, query.since),
            None if query.before is None else dividing.last_before(view, query.before, end),
        )  # fmt: skip

    return Reply(await call.app.run(lambda store: divide(_existing(store, name))))


async def tail(call: Call) -> Reply:
    """Answer when one of the shards goes beyond its cursor, or when the time is up."""
    body: wire.Tail = call.body
    name = call.params["topic"]
    call.check_wait(body.wait)
    cursors = body.cursors

    def ends(topic: Topic) -> dict[int, int]:
        return {shard: topic.end(shard) for shard in cursors}

    def steps(topic: Topic) -> Any:
        found = topic.tail("latest", gaps="yield")
        if set(cursors) - set(found.cursors):
            raise InvalidOption(f"topic {name!r} has shards 0..{topic.shards - 1}")
        found._only(cursors)
        return found

    waiting = await call.app.run(lambda store: steps(_existing(store, name)))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + body.wait
    async with Waiting(call) as patience:
        while True:
            found = await call.app.run(lambda store: ends(_existing(store, name)))
            moved = any(found[shard] > cursors[shard] for shard in cursors)
            if moved or loop.time() >= deadline or patience.over:
                return Reply(wire.Ends(name, {str(shard): end for shard, end in found.items()}))
            await patience.until(news(call.app.store, waiting, deadline))


async def sync(call: Call) -> Reply:
    """Write what is buffered for a topic, and make it durable unless only that is wanted."""
    name, durable = call.params["topic"], call.query.durable

    def settle(topic: Topic) -> None:
        if durable:
            topic.sync()
        else:
            topic.flush()

    await call.app.run(lambda store: settle(_existing(store, name)))
    return Reply(wire.Synced(name, durable))


async def counters(call: Call) -> Reply:
    """Every counter of a shard's page."""
    name, shard = call.params["topic"], call.query.shard
    found = await call.app.run(lambda store: _existing(store, name).counters(shard))
    return Reply(wire.Counters(name, shard, found))
