"""The WebSocket: watch and append over one connection.

    {"op": "subscribe", "topic": "orders", "start": "-10", "request_id": 1}
    {"op": "unsubscribe", "topic": "orders", "request_id": 2}
    {"op": "publish", "topic": "orders", "records": [{"value": "hello"}], "request_id": 3}
    {"op": "ping", "request_id": 4}

Every message is answered: `subscribed`, `unsubscribed`, `ack` (with the spans, once the records are
as durable as their topic says), `pong`, or `error` with a code and a message; each has the
`request_id` that it answers. For the rate of its key a message is a call. In between come `record`,
`gap`, `caught_up`, `topic_deleted`, `lagging` and, at the end, `bye`: what watch.py says of events
goes for them. `record` has a `cursor`; who comes back subscribes with `"cursors": [...]`, the last
one of each topic and shard.

Binary messages are for Arrow. One begins with four bytes, the length of its head, the lowest first;
then the head, which is JSON as above; then an Arrow stream. So a client publishes
`{"op": "publish", "topic": "orders"}` with a batch behind it, and who subscribes with
`"format": "arrow"` gets `{"op": "record", "topic", "shard", "next", "end", "cursor"}` with the
records behind it, in the columns of `esker.SCHEMA`.

At most four messages wait for a client. Messages are taken one after the other: who publishes
faster than the log takes it is not read from until it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from esker.engine.once import key_of
from esker.errors import EskerError
from esker.options import topic_name
from esker.records import Spans
from esker.server.appending import appended
from esker.server.bodies import codec, wire, wire_live
from esker.server.bodies.arrow_in import arrow_in
from esker.server.bodies.nesting import check_depth
from esker.server.bodies.wire_live import Answer, Ping, Publish, Subscribe, Unsubscribe
from esker.server.http import faults
from esker.server.http.call import Call, Receive, Reply, Send
from esker.server.http.faults import Fault
from esker.server.live import cursor, frames
from esker.server.live.feed import Spot
from esker.server.live.latency import took
from esker.server.live.stream import KEY_ENDED, SHARDS_MAX, SocketStream

LOG: Final = logging.getLogger("esker.server")
ROUTE: Final = "socket.plain"
_OPS: Final = "ping, publish, subscribe, unsubscribe"
_MESSAGE: Final[Any] = msgspec.json.Decoder(wire_live.Message)
_GOING_AWAY: Final = 1012  # come back
_NO_LONGER: Final = 1008  # do not: the key is no good any more
Refused = Callable[[Fault, dict[str, Any]], None]


async def plain(call: Call) -> Reply:
    """Without the handshake of a WebSocket there is nothing to see here."""
    raise Fault(
        "invalid_request", "this path speaks WebSocket: send `Upgrade: websocket`",
        headers=(("upgrade", "websocket"),),
    )  # fmt: skip


async def refuse(
    reply: Reply, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send
) -> None:
    """No WebSocket, but an answer of HTTP that says why."""
    await receive()
    await send(
        {"type": "websocket.http.response.start", "status": reply.status, "headers": headers}
    )
    await send({"type": "websocket.http.response.body", "body": reply.body})
    await receive()  # that it is over,
    await receive()  # and that the connection is closed: then the server holds nothing of it


async def serve(call: Call, receive: Receive, send: Send, refused: Refused) -> None:
    """A connection, from handshake to end. `refused` is told of messages that may not be."""
    hub = call.app.hub
    await receive()
    await send({"type": "websocket.accept"})
    task = asyncio.current_task()
    assert task is not None
    ended = False

    def abort() -> None:
        nonlocal ended
        if not ended:
            ended = True
            task.cancel()

    stream = SocketStream(call.principal, send, abort)
    talk = Talk(call, stream, refused)
    hub.join(stream)
    try:
        while (message := await receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            await talk.take(message["text"].encode() if data is None else data, data is not None)
    except asyncio.CancelledError:
        if not ended:
            if not call.principal.alive:
                await stream.say(frames.event("error", KEY_ENDED, stream.form))
            raise
        task.uncancel()
    finally:
        ended = True
        hub.leave(stream)
        with contextlib.suppress(RuntimeError, OSError):  # it has been closed already
            code = _GOING_AWAY if call.principal.alive else _NO_LONGER
            await send({"type": "websocket.close", "code": code})


class Talk:
    """What a client says, and what it is answered."""

    def __init__(self, call: Call, stream: SocketStream, refused: Refused) -> None:
        self._call = call
        self._refused = refused
        self._hub = call.app.hub
        self._stream = stream
        self._began = 0.0  # when the message that is looked at was here

    async def take(self, data: bytes, binary: bool) -> None:
        """One message."""
        self._began = self._call.app.clock.monotonic()
        request: str | int | None = None
        head, body, message = b"", None, None
        try:
            head, body = frames.unbinary(data) if binary else (data, None)
            most = self._call.app.settings.json_depth
            await self._call.apart(head, lambda: check_depth(head, most))
            message = _MESSAGE.decode(head)
            request = message.request_id
            answer = await self._do(message, body)
        except Fault as fault:
            answer = self._error(fault, message)
        except EskerError as problem:
            answer = self._error(faults.fault_of(problem), message)
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                request = msgspec.json.decode(head, type=wire_live.Asked).request_id
            wrong = f"message: {problem}"
            if wrong.endswith("at `$.op`"):
                wrong += f"; there is: {_OPS}"
            answer = Answer("error", code="invalid_request", message=wrong)
        except Exception:
            self._call.app.failures += 1
            LOG.exception("a message of request %s failed", self._call.request)
            answer = Answer("error", code="internal", message=faults.INTERNAL)
        if answer is not None:
            answer.request_id = request
            await self._stream.put(msgspec.json.encode(answer))

    def _error(self, fault: Fault, message: Any) -> Answer:
        asked = {"op": type(message).__struct_config__.tag} if message is not None else {}
        names = getattr(message, "names", None) or [getattr(message, "topic", None) or ""]
        self._refused(fault, {**asked, "topic": ",".join(names)})
        return Answer("error", code=fault.code, message=fault.message, detail=fault.detail)

    async def _do(self, message: Any, body: bytes | None) -> Answer | None:
        if not getattr(self._call.principal, "alive", True):
            raise Fault(KEY_ENDED["code"], KEY_ENDED["message"])
        self._call.app.gate.charge(self._call.principal.account)
        if isinstance(message, Ping):
            return Answer("pong")
        if isinstance(message, Publish):
            return await self._publish(message, body)
        if body is not None:
            raise Fault("invalid_request", "a binary message is for publish")
        if isinstance(message, Subscribe):
            return await self._subscribe(message)
        assert isinstance(message, Unsubscribe)
        return self._unsubscribe(message)

    async def _subscribe(self, message: Subscribe) -> Answer | None:
        names = message.names
        if not names:
            raise Fault("invalid_request", "say which: topic or topics")
        self._allow("read", names)
        lens = message.lens()  # what is wrong with it is told in place of the answer
        known = {each.name for each in self._stream.interests}
        for name in names:
            topic_name(name)  # what can never be there is not waited for
            if name in known:
                raise Fault("invalid_request", f"{name!r} is subscribed already")
        places = cursor.places(message.cursors)
        spots: list[Spot] = []
        for name in names:
            spots += await self._hub.find(
                name, message.start, places=places, lenient=message.lenient, shard=message.shard
            )
        if len(self._stream.interests) + len(spots) > SHARDS_MAX:
            raise Fault("invalid_request", f"a connection has at most {SHARDS_MAX} shards")
        answer = Answer("subscribed", message.request_id, topics=names)
        await self._stream.put(msgspec.json.encode(answer))  # before any record
        self._hub.watch(self._stream, spots, lens)
        return None

    def _unsubscribe(self, message: Unsubscribe) -> Answer:
        names = set(message.names)
        gone = [each for each in self._stream.interests if each.name in names]
        for interest in gone:
            self._hub.unwatch(interest)
        return Answer("unsubscribed", topics=sorted({each.name for each in gone}))

    async def _publish(self, message: Publish, body: bytes | None) -> Answer:
        self._allow("write", [message.topic])
        app, name = self._call.app, message.topic
        if (body is None) == (not bytes(message.records)):
            raise Fault("invalid_request", "records come as JSON, or as Arrow behind the head")
        with self._hub.admitted(not message.disable_backpressure):
            records = await self._records(message, body)
            took(self._call, "parse", app.clock.monotonic() - self._began)
            span = await appended(
                self._call, name, records, wait=message.wait, key=message.idempotency_key,
                create=message.create,
            )  # fmt: skip
        spans = list(span) if isinstance(span, Spans) else [span]
        told = [wire.Span(each.shard, each.first, each.count) for each in spans if each.count]
        return Answer("ack", topic=name, count=sum(each.count for each in told), spans=told)

    async def _records(self, message: Publish, body: bytes | None) -> Any:
        """What is to be appended: records, or an Arrow table."""
        app, settings, key = self._call.app, self._call.app.settings, message.idempotency_key
        if key is not None:
            key_of(key)
        if body is not None:
            table = await app.run(lambda _: arrow_in(body, settings.body_bytes))
            if key is None:
                return table
            records = await app.run(lambda _: codec.records_of(table))
        else:
            given, most = message.records, settings.batch_records
            records = await self._call.apart(given, lambda: codec.records_in(given, most))
        return records

    def _allow(self, scope: Any, names: list[str]) -> None:
        principal = self._call.principal
        if not principal.may(scope):
            raise Fault("forbidden", f"the key lacks the scope {scope!r}")
        if not all(principal.may(scope, name) for name in names):
            raise Fault("forbidden", "the key is not for topics of this name")
