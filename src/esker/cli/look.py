"""How things stand, in the words of the HTTP API: the same structs, from a directory or a server.

`--json` has the fields of HTTP because it is made of the server's own structs. Over a URL the
answer of the server is taken as it is; of a directory it is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from esker.client.pool import part
from esker.client.store import RemoteStore
from esker.errors import GroupNotFound, NotAQueue, TopicNotFound, nearest
from esker.groups.describe import GroupStatus
from esker.queues.opening import known_queue
from esker.routes.runner import group_of
from esker.server.bodies import wire
from esker.server.bodies import wire_rooms as rooms
from esker.server.jobs.queues import _options as queue_options
from esker.server.routes import _told as route_told
from esker.server.topics import _state as local_state

if TYPE_CHECKING:
    from esker.engine.store import Store


def is_remote(store: Any) -> bool:
    """Whether it is a store on a server."""
    return isinstance(store, RemoteStore)


def _get(store: Any, path: str, query: dict[str, Any] | None = None) -> Any:
    return store._pool.call("GET", path, query, again=True).json()


# ---- topics ----------------------------------------------------------------------------------


def topic_state(store: Store, name: str) -> wire.TopicState:
    """A topic: shards, offsets, options."""
    topic: Any = store[name]
    if is_remote(store):
        return msgspec.convert(msgspec.to_builtins(topic._state()), wire.TopicState)
    topic._existing()
    return local_state(topic)


def counters(store: Store, name: str, shards: int) -> dict[str, int]:
    """The counters of a topic's shards, added up. They tell; damage to them costs metrics only."""
    total: dict[str, int] = {}
    for number in range(shards):
        for word, count in store[name].counters(number).items():
            total[word] = total.get(word, 0) + count
    return total


class TopicRow(msgspec.Struct):
    """A topic in a list."""

    topic: str
    records: int
    shards: int
    durability: str
    bytes: int
    segments: int
    queue: bool


def topic_row(store: Store, name: str) -> TopicRow:
    """A topic, for a list."""
    state = topic_state(store, name)
    found = counters(store, name, len(state.shards))
    return TopicRow(
        name, state.count, len(state.shards), state.options["durability"],
        found.get("segments_bytes", 0), found.get("segments_current", 0), is_queue(store, name),
    )  # fmt: skip


# ---- groups ----------------------------------------------------------------------------------


def group_states(store: Store, topic: str | None = None) -> list[rooms.GroupState]:
    """All groups, or those of one topic."""
    if is_remote(store):
        query = {} if topic is None else {"topic": topic}
        told = _get(store, "/v1/groups", query)["groups"]
        return [msgspec.convert(each, rooms.GroupState) for each in told]
    if topic is None:
        return [_group(each) for each in store.groups()]
    store[topic]._existing()
    return [_group(each) for each in store[topic].groups()]


def _group(status: GroupStatus) -> rooms.GroupState:
    shards = [
        rooms.GroupShard(
            each.shard, each.cursor, each.end, each.records, each.seconds, each.generation,
            each.acked, each.paused, bool(each.pid),
        )
        for each in status.shards
    ]  # fmt: skip
    return rooms.GroupState(
        status.topic, status.name, status.records, status.seconds, None, len(status.pids),
        status.paused, shards,
    )  # fmt: skip


def routes_by_group(store: Store, groups: Iterable[rooms.GroupState]) -> dict[str, str]:
    """The names of routes by those of the groups as which they read; asked for if there are any."""
    if not any(each.group.startswith("route:") for each in groups):
        return {}
    return {group_of(each.id): each.name for each in store.routes()}


def group_state(store: Store, topic: str, name: str) -> rooms.GroupState:
    """One group of a topic."""
    found = group_states(store, topic)
    for each in found:
        if each.group == name:
            return each
    known = nearest(name, [each.group for each in found])
    raise GroupNotFound(f"no group {name!r} reads topic {topic!r}; {known}")


# ---- queues ----------------------------------------------------------------------------------


def is_queue(store: Store, name: str) -> bool:
    """Whether a topic is a queue."""
    try:
        queue_of(store, name)
    except (NotAQueue, TopicNotFound):
        return False
    return True


def queue_of(store: Store, name: str) -> Any:
    """The queue of that name. A topic that is none is not made one."""
    try:
        if is_remote(store):
            _get(store, f"/v1/queues/{part(name)}")
            return store.queue(name)
        return known_queue(store, name)
    except NotAQueue:
        raise NotAQueue(
            f"topic {name!r} is not a queue; `esker queue create {name}` makes it one"
        ) from None
    except TopicNotFound:
        known = nearest(name, [each for each in store if is_queue(store, each)])
        raise TopicNotFound(
            f"no queue {name!r}, `esker queue create {name}` makes one; {known}"
        ) from None


def queue_state(store: Store, name: str) -> rooms.QueueState:
    """How many jobs of a queue are where."""
    queue = queue_of(store, name)
    if is_remote(store):
        return msgspec.convert(_get(store, f"/v1/queues/{part(name)}"), rooms.QueueState)
    stats = queue.stats()
    told = msgspec.structs.asdict(stats)
    told |= {"queue": name, "unfinished": stats.unfinished, "options": queue_options(queue)}
    return rooms.QueueState(**told)


def queue_states(store: Store) -> list[rooms.QueueState]:
    """All queues."""
    return [queue_state(store, name) for name in store if is_queue(store, name)]


# ---- routes ----------------------------------------------------------------------------------


def route_states(store: Store) -> list[rooms.RouteState]:
    """All routes."""
    return [route_told(each) for each in store.routes()]
