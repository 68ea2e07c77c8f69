"""Topics: create, alter, look at, list, delete."""

from __future__ import annotations

from typing import Any

import msgspec

from esker.engine.topic import Topic
from esker.errors import TopicNotFound
from esker.server.bodies import wire
from esker.server.http.call import Call, Reply
from esker.server.records import known


def _options(topic: Topic) -> dict[str, Any]:
    return msgspec.structs.asdict(topic.options)


def _state(topic: Topic) -> wire.TopicState:
    shards = [
        wire.ShardState(number, topic.earliest(number), topic.end(number), topic.durable(number))
        for number in range(topic.shards)
    ]
    return wire.TopicState(topic.name, topic.epoch, len(topic), shards, _options(topic))


def _ranked(call: Call, told: wire.TopicState) -> wire.TopicState:
    """With what the scheduler thinks of it."""
    hub = call.app.hub
    told.priority, told.effective_priority = hub.priority(told.topic), hub.ready.worth(told.topic)
    return told


async def create(call: Call) -> Reply:
    """Create a topic; 200 if it is there already, with the same options."""
    name, options = call.params["topic"], call.body.given()
    async with call.app.room(name) as known:
        topic = await call.app.run(lambda store: store.create(name, exist_ok=True, **options))
    made = not known
    told = wire.Created(name, made, topic.epoch, _options(topic))
    return Reply(told, 201 if made else 200)


async def alter(call: Call) -> Reply:
    """Change options of a topic."""
    name, options = call.params["topic"], call.body.given()
    told = await call.app.run(lambda store: _state(store.alter(name, **options)))
    return Reply(_ranked(call, told))


async def state(call: Call) -> Reply:
    """How a topic is now. Never creates it."""
    name = call.params["topic"]
    return Reply(_ranked(call, await call.app.run(lambda store: _state(known(store, name)))))


async def list_topics(call: Call) -> Reply:
    """The topics that the key may read, by name, from the cursor on."""
    query: wire.ListQuery = call.query
    found = [
        name
        for name in await call.app.store.topics()
        if name.startswith(query.prefix)
        and name > query.cursor
        and call.principal.may("read", name)
    ]
    page = found[: query.limit]
    return Reply(wire.Topics(page, page[-1] if len(found) > len(page) else None))


async def delete(call: Call) -> Reply:
    """Delete a topic for good; with `if_empty`, only if there is nothing in it."""
    name, query, known = call.params["topic"], call.query, True
    try:
        await call.app.store.delete(name, if_empty=query.if_empty)
    except TopicNotFound:
        if not query.missing_ok:
            raise
        known = False
    return Reply(wire.TopicDeleted(name, known))
