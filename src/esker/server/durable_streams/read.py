"""Reading a durable stream: a page, a page when there is one, or all that comes, as events.

An offset is the topic's epoch and ours, in digits that sort as text. So one of a stream that was
deleted and made anew is 410 Gone, as is one that retention took: what `Gap` says elsewhere. A gap
further on is passed, and told in the header `Esker-Gaps`, or in a control event.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from esker.engine.batch import Batch
from esker.engine.store import Store
from esker.errors import DataGap, EskerError, TopicNotFound
from esker.records import Gap
from esker.server import records
from esker.server.bodies import codec, wire
from esker.server.bodies.codec import AT_ONCE, EVENTS
from esker.server.durable_streams.state import INSTANT, Entry, Stream, load, marks_in
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault
from esker.server.records import known

PAGE_BYTES: Final = 1 << 20
PAGE_RECORDS: Final = 10_000
POLL_SECONDS: Final = 15.0
STREAM_SECONDS: Final = 60.0  # then an SSE connection ends, and its client comes back
CURSOR_US: Final = 20_000_000
CURSOR_ZERO_US: Final = 1_728_432_000_000_000  # 2024-10-09, from which the protocol counts
NUMBER: Final = re.compile(r"\d{1,16}", re.ASCII)
_OFFSET: Final = re.compile(r"(\d{10})_(\d{16})", re.ASCII)
# Whatever a stream holds, it is no page of this server.
INERT: Final = (("content-security-policy", "sandbox; default-src 'none'"),)
Headers = tuple[tuple[str, str], ...]


def offset_text(epoch: int, offset: int) -> str:
    """An offset as clients have it."""
    return f"{epoch:010d}_{offset:016d}"


# ---- how it stands ---------------------------------------------------------------------------


async def current(call: Call, entry: Entry | None = None) -> Stream:
    """The stream as it stands; refused if there is none, or its time is over."""
    app, name = call.app, call.params["topic"]
    if entry is None:
        stream = app.durable.get(name)
        if stream is not None and not _is_over(call, stream):
            held = stream
            if await app.run(lambda store: _is_fresh(held, store, name)):
                return stream
        async with app.durable.alone(name) as entry:
            return await current(call, entry)
    kept = entry.stream
    now = app.clock.now_us()
    try:
        found = await app.run(lambda store: load(known(store, name), kept, now))
    except BaseException:
        entry.stream = None
        raise
    entry.stream = found
    if found is None:
        raise Fault("not_a_stream", "this topic was not made as a stream: PUT makes one")
    if _is_over(call, found):
        if not app.settings.read_only:
            await app.store.delete(name, missing_ok=True)
            app.audit.tell("stream_expired", topic=name, request=call.request)
        entry.stream = None
        raise TopicNotFound(f"no topic {name!r}")
    return found


def _is_fresh(stream: Stream, store: Store, name: str) -> bool:
    topic = known(store, name)
    return stream.epoch == topic.epoch and stream.upto >= topic.end(0)


def _is_over(call: Call, stream: Stream) -> bool:
    now, mark = call.app.clock.now_us(), stream.mark
    if mark.ttl is not None and now >= stream.touched_us + mark.ttl * 1_000_000:
        return True
    end = None if mark.expires is None else instant_us(mark.expires)
    return end is not None and now >= end


def instant_us(text: str) -> int | None:
    """A time as in RFC 3339; None if it is none."""
    if not re.match(INSTANT, text):
        return None
    try:
        found = datetime.fromisoformat(text.upper())
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return int(found.timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None


def standing(stream: Stream, at: int) -> Headers:
    """What every answer says of a stream."""
    closed = (("stream-closed", "true"),) if stream.tail is not None else ()
    return (("stream-next-offset", offset_text(stream.epoch, at)), *closed, *INERT)


# ---- reading ---------------------------------------------------------------------------------


class Piece(msgspec.Struct):
    """What a look at a stream found."""

    values: list[bytes]
    next: int
    at_end: bool
    gaps: list[Gap]


async def read(call: Call) -> Reply:
    """Data from an offset on: what there is, what comes within a while, or all that comes."""
    query: wire.StreamQuery = call.query
    if query.live is not None and query.offset is None:
        raise Fault("invalid_request", "live needs an offset")
    stream = await current(call)
    if call.head:
        headers = standing(stream, stream.end(stream.upto))
        return Reply(b"", media=stream.mark.content_type, headers=headers + _lifetime(stream))
    stream.touched_us = call.app.clock.now_us()
    epoch, at = _position(query.offset, stream)
    if query.live == "sse":
        await _look(call, stream, epoch, at)  # what is to be refused is refused before it begins
        encoded = () if _is_text(stream) else (("stream-sse-data-encoding", "base64"),)
        headers = (("cache-control", "no-cache, no-transform"), AT_ONCE, *INERT, *encoded)
        return Reply(media=EVENTS, headers=headers, stream=_events(call, stream, at))
    piece = await _look(call, stream, epoch, at, wait=query.live is not None)
    if query.live is not None:
        stream = await current(call)  # it may have been closed meanwhile
    return _page(call, stream, piece)


def _position(text: str | None, stream: Stream) -> tuple[int, int | None]:
    """Where to read from, in a topic of which epoch; None is the beginning of what is there."""
    if text is None or text == "-1":
        return stream.epoch, None
    if text == "now":
        return stream.epoch, stream.end(stream.upto)
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise Fault("invalid_request", "an offset is -1, now, or one that came from this stream")
    return int(found[1]), int(found[2])


def _lifetime(stream: Stream) -> Headers:
    mark = stream.mark
    if mark.ttl is not None:
        return (("stream-ttl", str(mark.ttl)),)
    return (("stream-expires-at", mark.expires),) if mark.expires is not None else ()


def _is_text(stream: Stream) -> bool:
    return stream.is_json or stream.media.startswith("text/")


async def _look(
    call: Call, stream: Stream, epoch: int, at: int | None, *, wait: bool = False,
    seconds: float | None = None,
) -> Piece:  # fmt: skip
    """A page. With `wait`, one without data comes only when time is up or the stream is closed."""
    name = call.params["topic"]
    stop = None if stream.tail is None else str(stream.tail)
    query = wire.ReadQuery(
        start="earliest" if at is None else str(at), stop=stop, limit=PAGE_RECORDS,
        max_bytes=PAGE_BYTES, epoch=None if at is None else epoch,
        wait=min(seconds or POLL_SECONDS, call.app.settings.wait_seconds),
    )  # fmt: skip
    found = await call.app.run(
        lambda store: records.look(known(store, name), 0, query.start, query)
    )
    if at is not None and found.items and isinstance(found.items[0], Gap):
        raise DataGap(found.items[0], "Begin again with offset=-1.")
    piece = _piece(found, stream)
    if wait and not piece.values and not piece.gaps and stream.tail is None:
        nothing = msgspec.structs.replace(
            found, items=[]
        )  # the mark of a stream's beginning is none
        piece = _piece(await records.waited(call, nothing, query), stream)
    return piece


def _piece(found: records.Found, stream: Stream) -> Piece:
    values: list[bytes] = []
    for item in found.items:
        if isinstance(item, Batch):
            bare = {row for row, mark in marks_in(item) if mark.bare}
            some = item.values
            values += [v for n, v in enumerate(some) if n not in bare] if bare else some
    end = stream.end(found.end)
    gaps = [item for item in found.items if isinstance(item, Gap)]
    return Piece(values, min(found.next, end), found.next >= end, gaps)


def _page(call: Call, stream: Stream, piece: Piece) -> Reply:
    query: wire.StreamQuery = call.query
    headers: Headers = (("stream-next-offset", offset_text(stream.epoch, piece.next)), *INERT)
    closed = stream.tail is not None and piece.next >= stream.tail
    if piece.at_end:
        headers += (("stream-up-to-date", "true"),)
    if closed:
        headers += (("stream-closed", "true"),)
    if piece.gaps:
        told = msgspec.json.encode([codec.gap_out(gap) for gap in piece.gaps]).decode()
        headers += (("esker-gaps", told),)
    if query.live is not None:
        headers += (("stream-cursor", _cursor(call)),)
        if not piece.values:
            return Reply(b"", 204, media=stream.mark.content_type, headers=headers)
    body = _body(stream, piece.values)
    if query.offset != "now":
        since = query.offset or "-1"
        tag = f'"{stream.epoch:x}:{since}:{piece.next:x}{":c" if closed else ""}"'
        headers += (("etag", tag), ("cache-control", "private, no-cache"))
        if call.has(tag):
            return Reply(b"", 304, media=stream.mark.content_type, headers=headers)
    return Reply(body, media=stream.mark.content_type, headers=headers)


def _body(stream: Stream, values: list[bytes]) -> bytes:
    if not stream.is_json:
        return b"".join(values)
    if not codec.all_json(values):  # others may have appended what is none
        raise Fault("not_a_stream", "the topic has records that are no JSON: read it as a topic")
    return b"[" + b",".join(values) + b"]"


def _cursor(call: Call) -> str:
    """A number that grows with time, and is above what the client has: for caches on the way."""
    now = (call.app.clock.now_us() - CURSOR_ZERO_US) // CURSOR_US
    given = call.query.cursor or ""
    if NUMBER.fullmatch(given) and int(given) >= now:
        return str(int(given) + random.randint(1, 180))
    return str(now)


async def _events(call: Call, stream: Stream, at: int | None) -> AsyncIterator[bytes]:
    """What comes, as events; after a minute the client comes back, from where it is."""
    app = call.app
    until = app.clock.monotonic() + STREAM_SECONDS
    first = True
    while not app.stopping.is_set():
        try:
            left = until - app.clock.monotonic()
            stream = await current(call)
            piece = await _look(
                call, stream, stream.epoch, at, wait=not first,
                seconds=max(0.1, min(left, app.settings.heartbeat_seconds)),
            )  # fmt: skip
            stream = await current(call)
            stream.touched_us = app.clock.now_us()
            data = _event(stream, piece)
        except (EskerError, Fault):
            return  # who comes back is told
        at, first = piece.next, False
        closed = stream.tail is not None and at >= stream.tail
        control: dict[str, Any] = {"streamNextOffset": offset_text(stream.epoch, at)}
        if closed:
            control["streamClosed"] = True
        else:
            control["streamCursor"] = _cursor(call)
            if piece.at_end:
                control["upToDate"] = True
        if piece.gaps:
            control["gaps"] = [codec.gap_out(gap) for gap in piece.gaps]
        yield data + b"event: control\ndata:" + msgspec.json.encode(control) + b"\n\n"
        if closed or left <= 0:
            return


def _event(stream: Stream, piece: Piece) -> bytes:
    if not piece.values:
        return b""
    body = _body(stream, piece.values)
    if not _is_text(stream):
        body = base64.b64encode(body)
    lines = re.split(rb"\r\n|\r|\n", body)
    # of each line a client takes one space away, if there is one
    told = [(b"data: " if line[:1] == b" " else b"data:") + line + b"\n" for line in lines]
    return b"event: data\n" + b"".join(told) + b"\n"
