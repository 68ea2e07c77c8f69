"""Watch topics: one stream of server-sent events over many of them.

    GET /v1/watch?topics=orders,payments&start=-10

    const events = new EventSource("/v1/watch?topics=orders")
    events.addEventListener("record", (e) => JSON.parse(e.data).records.forEach(show))

Events:

    record          {"topic", "shard", "records", "next", "end"}
    gap             {"topic", "shard", "first", "last", "reason", "missed"}: what is not there any
                    more; `recreated` if the topic was deleted and made anew
    caught-up       {"topic", "shard", "next"}: from here on records come as they are appended
    topic-deleted   {"topic", "shard", "next"}, now or while nobody watched; if there is a topic of
                    this name again it is watched from its beginning
    lagging         {"frames"}: the client did not take what came; nothing is lost, it goes on
                    from where it was, by reading
    error           {"code", "message"}: the stream ends
    bye             {"reason"}: the server stops; come back

Each of the first four has an `id`: the cursor of the whole stream (cursor.py). Who comes back with
it as `Last-Event-ID`, as an EventSource does by itself, gets what comes behind it: nothing is left
out and nothing comes twice. A comment every 15 seconds keeps the connection alive.

For more topics than fit into a URL: `POST /v1/watch` with `{"topics": {"orders": {"start":
"earliest"}, ...}}` gives an id, and `GET /v1/watch/{id}` is the stream. The id is for whoever made
it, and is forgotten when no stream of it was open for five minutes, and when the server ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from esker.clock import Clock
from esker.options import topic_name
from esker.server.bodies import wire_live
from esker.server.bodies.codec import EVENTS, UNBUFFERED
from esker.server.bodies.wire_live import TOPICS_MAX, WatchTopic
from esker.server.http.call import Call, Receive, Reply, Send
from esker.server.http.faults import Fault, throttled
from esker.server.live import cursor
from esker.server.live.feed import Spot
from esker.server.live.frames import Lens
from esker.server.live.stream import SHARDS_MAX, EventStream

RETRY: Final = b"retry: 2000\n\n"
TTL_SECONDS: Final = 300.0
SESSIONS_MAX: Final = 10_000
SESSIONS_OF_ONE: Final = 1_000  # of one key; who needs none is one


class Session(NamedTuple):
    """What somebody wants to watch."""

    owner: str
    topics: Mapping[str, WatchTopic]
    lens: Lens
    lenient: bool
    cursor: str | None = None


class _Kept:
    """A session, how many streams of it are open, and how long it is kept when there are none."""

    __slots__ = ("session", "streams", "until")

    def __init__(self, session: Session, until: float) -> None:
        self.session = session
        self.streams = 0
        self.until = until

    def over(self, now: float) -> bool:
        return not self.streams and self.until < now


class Sessions:
    """What was asked for by POST, until nobody wants it any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._known)

    def add(self, session: Session) -> str:
        """Remember it; a name for it that nobody guesses."""
        now = self._clock.monotonic()
        for name in [name for name, kept in self._known.items() if kept.over(now)]:
            del self._known[name]
        mine = sum(kept.session.owner == session.owner for kept in self._known.values())
        for count, most in ((mine, SESSIONS_OF_ONE), (len(self._known), SESSIONS_MAX)):
            if count >= most:
                raise throttled("watches", most, 1, f"{most} watches are waiting to be used")
        name = secrets.token_urlsafe(16)
        self._known[name] = _Kept(session, now + TTL_SECONDS)
        return name

    def find(self, name: str, owner: str) -> Session:
        """What was meant by that name; it is kept for another while."""
        now = self._clock.monotonic()
        kept = self._known.get(name)
        if kept is None or kept.session.owner != owner or kept.over(now):
            raise Fault(
                "not_found",
                "there is no such watch; POST /v1/watch makes one, and takes the last id of the "
                "former one as cursor",
            )
        kept.until = now + TTL_SECONDS
        return kept.session

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        """While a stream of it is open; from its end on it is kept for who comes back."""
        kept = self._known.get(name)
        if kept is None:  # it is a watch that was said in a query
            yield
            return
        kept.streams += 1
        try:
            yield
        finally:
            kept.streams -= 1
            kept.until = self._clock.monotonic() + TTL_SECONDS


async def watch(call: Call) -> Reply:
    """A stream of what is appended to some topics."""
    query: wire_live.WatchQuery = call.query
    names = query.names
    if len(names) > TOPICS_MAX:
        raise Fault("invalid_request", f"{len(names)} topics; at most {TOPICS_MAX} in one stream")
    wanted = {topic_name(name): WatchTopic(start=query.start, shard=query.shard) for name in names}
    session = Session(call.principal.id, wanted, query.lens("sse"), query.lenient, query.cursor)
    return await _stream(call, session)


async def make(call: Call) -> Reply:
    """Say what is to be watched; the answer is where."""
    body: wire_live.Watch = call.body
    session = Session(call.principal.id, body.topics, body.lens("sse"), body.lenient, body.cursor)
    for name in session.topics:
        topic_name(name)  # what can never be there is not kept
    await _spots(call, session, body.cursor or "")  # what its stream would refuse is told now
    made = call.app.sessions.add(session)
    return Reply(wire_live.Watching(made, f"/v1/watch/{made}", TTL_SECONDS), 201)


async def attach(call: Call) -> Reply:
    """The stream of a watch that was made."""
    app, principal = call.app, call.principal
    session = app.sessions.find(call.params["id"], principal.id)
    for name in session.topics:
        if not principal.may("read", name):
            raise Fault("forbidden", "the key is not for topics of this name")
    return await _stream(call, session, call.query.cursor)


async def _spots(call: Call, session: Session, last: str) -> list[Spot]:
    """Where each shard is to be watched from: behind the last event, or where it was asked for."""
    places = cursor.places(last)
    spots: list[Spot] = []
    for name, how in session.topics.items():
        spots += await call.app.hub.find(
            name, how.start, places=places, lenient=session.lenient, shard=how.shard
        )
        if len(spots) > SHARDS_MAX:
            raise Fault("invalid_request", f"a stream has at most {SHARDS_MAX} shards")
    return spots


async def _stream(call: Call, session: Session, given: str | None = None) -> Reply:
    call.accepts(EVENTS)
    last = call.headers.get("last-event-id") or given or session.cursor or ""
    hub = call.app.hub
    spots = await _spots(call, session, last)  # before the head: a topic that is missing is a 404

    async def serve(receive: Receive, send: Send) -> None:
        stream = EventStream(call.principal, send)
        hub.join(stream)
        try:
            with call.app.sessions.open(call.params.get("id", "")):
                await stream.put(RETRY)
                hub.watch(stream, spots, session.lens)
                while (await receive())["type"] != "http.disconnect":
                    pass
        finally:
            hub.leave(stream)

    return Reply(media=EVENTS, headers=UNBUFFERED, serve=serve)
