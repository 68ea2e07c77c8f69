"""The Durable Streams protocol, for its clients: a topic of one shard as a stream at /ds/{topic}.

    PUT      make a stream of a content type, closed or with a first content if asked for
    POST     append; `Stream-Closed: true` ends it for good; Producer-Id, -Epoch and -Seq: once
    GET      read on from an offset; `live=long-poll` waits for more, `live=sse` sends what comes
    HEAD     where it ends, without its data
    DELETE   with all that is in it

A stream of `application/json` is one of messages: each is a record, and a page is an array of them.
Any other is one of bytes, which are cut into records as they come. How a stream stands is told by
its records (state.py). An offset is the topic's epoch and ours, in digits that sort as
text: so one of a stream that was deleted and made anew is 410 Gone, as is one that retention took.

Not here: forks and subscriptions, which the protocol leaves to the server.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from esker.engine.store import Store
from esker.errors import TopicNotFound
from esker.options import TopicOptions
from esker.records import Record, Span
from esker.server.appending import appended
from esker.server.bodies.codec import BYTES, SOMETHINGS
from esker.server.durable_streams.read import (
    INERT,
    NUMBER,
    PAGE_BYTES,
    current,
    instant_us,
    read,
    standing,
)
from esker.server.durable_streams.state import (
    HEADER,
    TYPE,
    Entry,
    Mark,
    Sender,
    Stream,
    load,
    plain,
    seal_of,
)
from esker.server.gauges import is_queue
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault
from esker.server.records import known

__all__ = ["append", "create", "delete", "read"]

SAFE: Final = 2**53 - 1
_TTL: Final = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COMMA: Final = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_ELEMENT: Final = json.JSONDecoder(parse_int=len, parse_float=len, strict=False).raw_decode
_FORMS: Final = {"application/x-www-form-urlencoded", "multipart/form-data"}


# ---- making, and its end ---------------------------------------------------------------------


async def create(call: Call) -> Reply:
    """Make a stream; one that is there already, and is as it was asked for, is left as it is."""
    name, app = call.params["topic"], call.app
    mark, closed = _asked(call), _is_closing(call)
    data = await call.read()
    async with app.durable.alone(name) as entry:
        try:
            stream = await current(call, entry)
        except TopicNotFound:
            pass
        except Fault as fault:
            if fault.code != "not_a_stream" or not await app.run(lambda s: _is_bare(s, name)):
                raise Fault("stream_conflict", "there is a topic that is no stream") from None
            if mark.life() != (None, None) and not call.principal.may("delete", name):
                raise Fault(
                    "forbidden", "the topic is there: that it ends by itself takes the scope "
                    "'delete'",
                ) from None  # fmt: skip
        else:
            was = stream.mark
            same = plain(was.content_type) == plain(mark.content_type)
            if not same or (was.ttl, was.expires) != (mark.ttl, mark.expires):
                raise Fault("stream_conflict", "the stream is there, and is another one")
            if closed != (stream.tail is not None):
                raise Fault("stream_conflict", "the stream is there; one of both is closed")
            return Reply(
                b"", media=was.content_type, headers=standing(stream, stream.end(stream.upto))
            )
        values = await _values(call, mark.content_type, data, first=True)
        async with app.room(name):
            topic = await app.run(lambda store: store.create(name, exist_ok=True))
            mark.seal = await app.run(lambda _: seal_of(topic, mark))
            stream = Stream(topic.epoch, mark, app.clock.now_us())
            stream = await _put(call, entry, stream, values, None, None, closed, begins=True)
    scheme = "https" if app.settings.tls_cert else "http"
    place = f"{scheme}://{call.headers.get('host', '')}/ds/{name}"
    return Reply(
        b"", 201, media=mark.content_type,
        headers=(("location", place), *standing(stream, stream.end(stream.upto))),
    )  # fmt: skip


def _asked(call: Call) -> Mark:
    """What a new stream is to be."""
    headers = call.headers
    for name in ("stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset"):
        if name in headers:
            raise Fault("invalid_request", "this server makes no forks of streams")
    media = headers.get("content-type", "").strip() or BYTES
    if len(media) > 256 or not re.match(TYPE, media):
        raise Fault("invalid_request", "the Content-Type is none")
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise Fault("invalid_request", "give Stream-TTL or Stream-Expires-At, not both")
    if ttl is not None and not _TTL.fullmatch(ttl):
        raise Fault("invalid_request", "Stream-TTL: a whole number of seconds")
    if expires is not None and instant_us(expires) is None:
        raise Fault("invalid_request", "Stream-Expires-At: a time as in RFC 3339")
    return Mark(media, None if ttl is None else int(ttl), expires, bare=True)


def _is_bare(store: Store, name: str) -> bool:
    """A topic of one shard without a record, and no queue: it may become a stream."""
    topic = known(store, name)
    return topic.shards == 1 and topic.earliest(0) == topic.end(0) and not is_queue(topic)


async def delete(call: Call) -> Reply:
    """Delete a stream, as any topic: for good."""
    name = call.params["topic"]
    async with call.app.durable.alone(name) as entry:
        await current(call, entry)
        await call.app.store.delete(name)
        entry.stream = None
    return Reply(b"", 204, headers=INERT)


# ---- appending -------------------------------------------------------------------------------


async def append(call: Call) -> Reply:
    """Append, close, or both at once."""
    _check_page(call)
    sender, closing, seq = _sender(call), _is_closing(call), call.headers.get("stream-seq")
    if seq is not None and len(seq) > 1_024:
        raise Fault("invalid_request", "Stream-Seq: at most 1024 letters")
    data = await call.read()
    app, name = call.app, call.params["topic"]
    if not data and not closing:
        raise Fault("invalid_request", "there is nothing to append")
    if data and not call.media:
        raise Fault("invalid_request", "a Content-Type is needed")
    async with app.durable.alone(name) as entry:
        stream = await current(call, entry)
        seconds = app.clock.now_us() // 1_000_000
        if stream.tail is not None:
            if (data and sender is None) or (sender is not None and sender != stream.closer):
                raise _closed(stream)
            return _done(stream, sender, 204)
        if data and call.media != stream.media:
            raise Fault("stream_conflict", f"the stream is of {stream.media}")
        values = await _values(call, stream.mark.content_type, data) if data else []
        if sender is not None and stream.is_repeated(sender, seconds):
            return _done(stream, sender, 204)
        if seq is not None and stream.mark.seq is not None and seq <= stream.mark.seq:
            raise Fault("stream_conflict", "Stream-Seq is not above the last one")
        stream = await _put(call, entry, stream, values, sender, seq, closing)
        stream.touched_us = app.clock.now_us()
        return _done(stream, sender, 200 if sender is not None and data else 204)


def _check_page(call: Call) -> None:
    """Plain text is taken, which a page may send to anybody unasked: then it must say whose it is.

    What it says is checked as for every route. A browser so old that it does not is sent away.
    """
    headers = call.headers
    if call.media in _FORMS:
        raise Fault("unsupported_media_type", "a form is not taken here")
    page = headers.get("user-agent", "").startswith("Mozilla/")
    told = "origin" in headers or "sec-fetch-site" in headers
    if call.media in ("text/plain", "") and page and not told:
        raise Fault("forbidden", "a page has to say of which origin it is")


def _done(stream: Stream, sender: Sender | None, status: int) -> Reply:
    headers = standing(stream, stream.end(stream.upto))
    if sender is not None:
        last = stream.producers.get(sender[0], sender[1:])[1]
        headers += (("producer-epoch", str(sender[1])), ("producer-seq", str(last)))
    return Reply(b"", status, media=stream.mark.content_type, headers=headers)


def _closed(stream: Stream) -> Fault:
    return Fault(
        "stream_closed", "the stream is closed", headers=standing(stream, stream.end(stream.upto))
    )


async def _put(
    call: Call, entry: Entry, stream: Stream, values: list[bytes], sender: Sender | None,
    seq: str | None, closing: bool, *, begins: bool = False,
) -> Stream:  # fmt: skip
    """Append values and what they do to the stream, as one batch."""
    name, app = call.params["topic"], call.app
    made: list[Any] = []
    mark = stream.mark if begins else stream.next_mark(sender, seq)
    if begins:
        mark.producers = {}
        made.append(_marked(b"", mark))
    if values:
        made += values if begins else [_marked(values[0], mark), *values[1:]]
    end = msgspec.structs.replace(mark, bare=True, closed=True, producers=None)
    if closing:
        made.append(_marked(b"", end))
    entry.stream = None  # until it is known what became of it
    span = await appended(call, name, made, create=False)
    now = app.clock.now_us()
    if begins or not isinstance(span, Span) or span.first != stream.upto:  # others were there, too
        given = None if begins else stream
        found = await app.run(lambda store: load(known(store, name), given, now))
        assert found is not None
        stream = found
    else:
        stream.upto = span.next
        if values:
            stream.apply(span.first, mark, now // 1_000_000)
        if closing:
            stream.apply(span.last, end, now // 1_000_000)
    entry.stream = stream
    return stream


def _marked(value: bytes, mark: Mark) -> Record:
    return Record(value, headers={HEADER: msgspec.json.encode(mark)})


async def _values(
    call: Call, content_type: str, data: bytes, *, first: bool = False
) -> list[bytes]:
    """A body as records: messages of JSON, or bytes in pieces that a record can hold."""
    name, most = call.params["topic"], call.app.settings.batch_records

    def cut(store: Store) -> list[bytes]:  # which may take a while
        limit = _limit(store, name)
        if plain(content_type) != "application/json":
            return _pieces(data, min(limit, PAGE_BYTES))
        if first and not data:
            return []
        several = _messages(data, most)
        if not several and not first:
            raise Fault("invalid_request", "an array without messages")
        values = [bytes(each).strip() for each in several]
        if any(len(each) > limit for each in values):
            raise Fault("payload_too_large", f"a message of more than {limit} bytes")
        return values

    return await call.app.run(cut)


def _messages(data: bytes, most: int) -> list[msgspec.Raw]:
    """JSON as messages; not more than `most` of them, which is known before they are made."""
    try:
        text = data.decode()
        if data.lstrip()[:1] != b"[":
            return [msgspec.json.decode(data, type=msgspec.Raw)]
        if data.count(b",") >= most and _are_more(data, text, most):
            raise Fault("batch_too_large", f"more than {most} messages in one call")
        return msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Fault("invalid_request", "the body is not JSON") from None


def _are_more(data: bytes, text: str, most: int) -> bool:
    """Whether an array has more elements than that, of which none is kept."""
    try:
        return len(SOMETHINGS.decode(data)) > most
    except msgspec.ValidationError:  # not all of them are objects
        pass
    at, count = _SPACE.match(text, text.index("[") + 1).end(), 0  # type: ignore[union-attr]
    while count <= most:
        at, count = _ELEMENT(text, at)[1], count + 1
        comma = _COMMA.match(text, at)
        if comma is None:
            break
        at = comma.end()
    return count > most


def _limit(store: Store, name: str) -> int:
    options = known(store, name).options if name in store else TopicOptions()
    return options.max_record_bytes


def _pieces(data: bytes, limit: int) -> list[bytes]:
    """Cut where no letter of UTF-8 is, so that each piece of a text is a text."""
    found, at = [], 0
    while at < len(data):
        end = min(at + limit, len(data))
        back = end
        while end < len(data) and back > max(at, end - 4) and data[back] & 0xC0 == 0x80:
            back -= 1
        end = back if back > at else end
        found.append(data[at:end])
        at = end
    return found


def _is_closing(call: Call) -> bool:
    return call.headers.get("stream-closed", "").strip().lower() == "true"


def _sender(call: Call) -> Sender | None:
    name, *numbers = (call.headers.get(f"producer-{each}") for each in ("id", "epoch", "seq"))
    epoch, number = numbers
    if name is None and epoch is None and number is None:
        return None
    if not name or epoch is None or number is None:
        raise Fault("invalid_request", "Producer-Id, Producer-Epoch and Producer-Seq go together")
    if len(name) > 128:
        raise Fault("invalid_request", "Producer-Id: at most 128 letters")
    for each in (epoch, number):
        if not NUMBER.fullmatch(each) or int(each) > SAFE:
            raise Fault("invalid_request", f"epoch and number of a producer: 0 to {SAFE}")
    return name, int(epoch), int(number)
