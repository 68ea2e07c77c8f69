"""Watch topics: one stream of server-sent events over many of them.

    GET /v1/watch?topics=orders,payments&start=-10

    const events = new EventSource("/v1/watch?topics=orders")
    events.addEventListener("record", (e) => JSON.parse(e.data).records.forEach(show))

Events:

    record          {"topic", "shard", "records", "next", "end"}
    gap             {"topic", "shard", "first", "last", "reason", "missed"}: what is not there any
                    more; `recreated` if the topic was deleted and made anew
    caught-up       {"topic", "shard", "next"}: from here on records come as they are appended
    topic-deleted   {"topic", "shard", "next"}; if there is a topic of this name again it is
                    watched from its beginning
    lagging         {"frames"}: the client did not take what came; nothing is lost, it goes on
                    from where it was, by reading
    error           {"code", "message"}: the stream ends
    bye             {"reason"}: the server stops; come back

Each of the first four has an `id`: the cursor of the whole stream (cursor.py). Who comes back with
it as `Last-Event-ID`, as an EventSource does by itself, gets what comes behind it: nothing is left
out and nothing comes twice. A comment every 15 seconds keeps the connection alive.

For more topics than fit into a URL: `POST /v1/watch` with `{"topics": {"orders": {"start":
"earliest"}, ...}}` gives an id, and `GET /v1/watch/{id}` is the stream. The id is for whoever made
it, and is forgotten five minutes after nobody uses it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from esker.options import topic_name
from esker.server import cursor, wire_live
from esker.server.call import Call, Receive, Reply, Send
from esker.server.codec import EVENTS
from esker.server.faults import Fault
from esker.server.feed import Spot
from esker.server.frames import Lens
from esker.server.hub import SHARDS_MAX, Hub
from esker.server.stream import EventStream
from esker.server.wire_live import TOPICS_MAX, WatchTopic

RETRY: Final = b"retry: 2000\n\n"
TTL_SECONDS: Final = 300.0
SESSIONS_MAX: Final = 10_000
SESSIONS_OF_ONE: Final = 1_000  # of one key; who needs none is one
_HEADERS: Final = (("x-accel-buffering", "no"), ("cache-control", "no-store, no-transform"))


class Session(NamedTuple):
    """What somebody wants to watch."""

    owner: str
    topics: Mapping[str, WatchTopic]
    lens: Lens
    lenient: bool


class Sessions:
    """What was asked for by POST, until nobody wants it any more."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Session, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, session: Session, now: float) -> str:
        """Remember it; a name for it that nobody guesses."""
        for name in [name for name, (_, until) in self._known.items() if until < now]:
            del self._known[name]
        mine = sum(each.owner == session.owner for each, _ in self._known.values())
        if len(self._known) >= SESSIONS_MAX or mine >= SESSIONS_OF_ONE:
            raise Fault(
                "throttled", "too many watches are waiting to be used",
                headers=(("retry-after", "1"),),
            )  # fmt: skip
        name = secrets.token_urlsafe(16)
        self._known[name] = (session, now + TTL_SECONDS)
        return name

    def find(self, name: str, owner: str, now: float) -> Session:
        """What was meant by that name; it is kept for another while."""
        session, until = self._known.get(name, (None, 0.0))
        if session is None or session.owner != owner or until < now:
            raise Fault("not_found", "there is no such watch; POST /v1/watch makes one")
        self._known[name] = (session, now + TTL_SECONDS)
        return session


async def watch(call: Call) -> Reply:
    """A stream of what is appended to some topics."""
    query: wire_live.WatchQuery = call.query
    names = query.names
    if len(names) > TOPICS_MAX:
        raise Fault("invalid_request", f"{len(names)} topics; at most {TOPICS_MAX} in one stream")
    wanted = {name: WatchTopic(start=query.start, shard=query.shard) for name in names}
    session = Session(call.principal.id, wanted, query.lens("sse"), query.lenient)
    return await _stream(call, session, query.cursor)


async def make(call: Call) -> Reply:
    """Say what is to be watched; the answer is where."""
    body: wire_live.Watch = call.body
    session = Session(call.principal.id, body.topics, body.lens("sse"), body.lenient)
    for name in session.topics:  # those that are not there are told now, not later
        topic_name(name)  # and what can never be there is not kept
        if not session.lenient:
            await call.app.run(lambda store, name=name: store[name].shards)  # type: ignore[misc]
    made = call.app.sessions.add(session, call.app.clock.monotonic())
    return Reply(wire_live.Watching(made, f"/v1/watch/{made}", TTL_SECONDS), 201)


async def attach(call: Call) -> Reply:
    """The stream of a watch that was made."""
    app, principal = call.app, call.principal
    session = app.sessions.find(call.params["id"], principal.id, app.clock.monotonic())
    for name in session.topics:
        if not principal.may("read", name):
            raise Fault("forbidden", "the key is not for topics of this name")
    return await _stream(call, session, call.query.cursor)


async def _stream(call: Call, session: Session, given: str | None) -> Reply:
    call.accepts(EVENTS)
    last = call.headers.get("last-event-id") or given or ""
    places = cursor.places(last)
    hub = call.app.hub
    room(hub)
    spots: list[Spot] = []  # before the head of the answer: a topic that is not there is a 404
    for name, how in session.topics.items():
        spots += await hub.find(
            name, how.start, places=places, lenient=session.lenient, shard=how.shard
        )
        if len(spots) > SHARDS_MAX:
            raise Fault("invalid_request", f"a stream has at most {SHARDS_MAX} shards")

    async def serve(receive: Receive, send: Send) -> None:
        stream = EventStream(call.principal, send)
        hub.join(stream)
        try:
            await stream.put(RETRY)
            hub.watch(stream, spots, session.lens)
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            hub.leave(stream)

    return Reply(media=EVENTS, headers=_HEADERS, serve=serve)


def room(hub: Hub) -> None:
    """Refuse a stream if there are too many."""
    limit = hub.app.settings.streams
    if len(hub.streams) >= limit:
        raise Fault(
            "throttled", f"{limit} streams are open, and no more are taken",
            detail={"limit": "streams", "max": limit}, headers=(("retry-after", "1"),),
        )  # fmt: skip
