"""Records: append, read, delete."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from xxhash import xxh3_64

from esker import positions
from esker.aio.waiting import news
from esker.engine.batch import Batch
from esker.engine.epochs import RECREATED
from esker.engine.once import key_of
from esker.engine.ranges import DELETED, without_holes
from esker.engine.reader import earliest_of, end_of
from esker.engine.sieve import check_node
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import DataGap, InvalidOption, TopicNotFound, nearest
from esker.options import topic_name
from esker.records import Gap, Record, Spans
from esker.server.appending import appended
from esker.server.bodies import cloudevents, codec, sheet, wire
from esker.server.bodies.arrow_in import arrow_in
from esker.server.bodies.codec import ARROW, BYTES, CSV, JSON, NDJSON
from esker.server.bodies.filtering import first, matching, wanted_of
from esker.server.bodies.nesting import check_depth
from esker.server.http.call import Call, Reply, decoded
from esker.server.http.faults import Fault
from esker.server.http.waiting import Waiting
from esker.server.live.latency import took
from esker.server.producers import either, producing
from esker.server.settings import Settings
from esker.server.table import CLOUD_EVENT, CLOUD_EVENTS
from esker.storage.sealed import SealedSegment

# A page of sealed records is the same for ever, or until they are deleted.
STRONG_SECONDS: Final = 0.01  # between looks whether what is there is durable, too
CACHED: Final = "private, max-age=86400, immutable"
LOOKS: Final = 200_000  # records that one call looks at for those that are wanted
STEP: Final = 1_000  # of them at once, however few are asked for

# ---- appending -------------------------------------------------------------------------------


async def append(call: Call) -> Reply:
    """Append what the body holds: all of it, or nothing."""
    query: wire.AppendQuery = call.query
    name, media, data = call.params["topic"], call.media, await call.whole()
    key = _one(call.headers.get("idempotency-key"), query.idempotency_key)
    if key is not None:
        key_of(key)  # is refused before anything is made
    create, settings = query.create, call.app.settings
    producer = producing(call)
    records: Any
    event = cloudevents.is_event(call)
    if (event or media != BYTES) and not _OF_BYTES.isdisjoint(call.headers):
        raise Fault(
            "invalid_request",
            f"Esker-Key, Esker-Tag and Esker-Node are for a body of {BYTES}; in others they stand "
            "in each record",
        )
    if event:
        records = [cloudevents.binary_in(call.headers, data)]
    elif media in (CLOUD_EVENT, CLOUD_EVENTS):
        records = await call.apart(data, lambda: _events_in(data, media, settings))
    elif media == JSON:
        body, records = await call.apart(data, lambda: json_in(data, settings))
        key, create = _one(key, body.idempotency_key), create and body.create
        producer = either(producer, body)
    elif media == NDJSON:
        records = await call.apart(data, lambda: _lines_in(data, settings))
    elif media == ARROW:
        records = await call.app.run(lambda _: arrow_in(data, settings.body_bytes))
        if query.atomic or key is not None or producer is not None:
            table = records
            records = await call.app.run(lambda _: codec.records_of(table))
    elif media == BYTES:
        records = [_raw(call, data)]
    else:
        raise Fault("unsupported_media_type", f"{media} is not taken here")
    if key is not None and producer is not None:
        raise Fault("invalid_request", "give an idempotency key, or a producer and its sequence")
    took(call, "parse", call.app.clock.monotonic() - call.began)
    numbered = producer and (producer.producer, query.shard, producer.sequence)
    span = await appended(
        call, name, records, wait=query.wait, key=key, create=create, numbered=numbered
    )
    spans = list(span) if isinstance(span, Spans) else [span]
    told = [wire.Span(each.shard, each.first, each.count) for each in spans if each.count]
    count = sum(each.count for each in told)
    return Reply(wire.Appended(name, count, told if query.returns == "offsets" else []))


def _one(first: str | None, second: str | None) -> str | None:
    if first is not None and second is not None and first != second:
        raise Fault("invalid_request", "two different idempotency keys are given")
    return first if first is not None else second


class _Texts(wire.Append):
    """A body whose records are texts and what stands beside them: it has no more than three levels.

    So it need not be measured before, and is decoded in one go.
    """

    records: list[codec.TextIn]  # type: ignore[assignment]


_TEXTS: Final = msgspec.json.Decoder(_Texts)
_LEVELS: Final = 3  # the body, the list, a record


def json_in(data: bytes, settings: Settings) -> tuple[wire.Append, list[Any]]:
    """A body of JSON, and its records as `append_many` takes them."""
    limit, depth = settings.batch_records, settings.json_depth
    if data.count(b"{") <= limit + 1 and depth >= _LEVELS:
        try:
            texts = _TEXTS.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            pass  # it holds something else, or is wrong: what follows tells what
        else:
            return texts, codec.texts_in(texts.records)
    check_depth(data, depth)
    body: wire.Append = decoded(data, wire.Append)
    return body, codec.records_in(body.records, limit)


def _lines_in(data: bytes, settings: Settings) -> list[Any]:
    check_depth(data, settings.json_depth)
    return codec.lines_in(data, settings.batch_records)


def _events_in(data: bytes, media: str, settings: Settings) -> list[Any]:
    check_depth(data, settings.json_depth)
    return cloudevents.events_in(data, media, settings.batch_records)


_OF_BYTES: Final = frozenset({"esker-key", "esker-tag", "esker-node"})
_HEADERS: Final = _OF_BYTES | {"esker-producer", "esker-sequence"}


def _spelt(name: str) -> None:
    """Refuse a header that is misspelt: the record would be kept without what it says."""
    if name not in _HEADERS:
        told = nearest(name, (*_HEADERS, "esker-header-<name>"))
        raise Fault("invalid_request", f"there is no header {name[:80]!r}; {told}")


def _raw(call: Call, data: bytes) -> Record:
    """The body is the value; what else a record has stands in headers."""
    headers = call.headers
    named = {
        name.removeprefix("esker-header-"): value.encode("latin-1")
        for name, value in headers.items()
        if name.startswith("esker-header-")
    }
    for name in headers:
        if name.startswith("esker-") and not name.startswith("esker-header-"):
            _spelt(name)
    key = headers.get("esker-key")
    return Record(
        data, None if key is None else key.encode("latin-1"), _text(headers.get("esker-tag")),
        _text(headers.get("esker-node")), named or None,
    )  # fmt: skip


def _text(value: str | None) -> str | None:
    """A header as the UTF-8 text that clients mean by it."""
    if value is None:
        return None
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise Fault("invalid_record", "a tag or node in a header is not UTF-8") from None


# ---- reading ---------------------------------------------------------------------------------


class Found(msgspec.Struct):
    """What a look at a shard found."""

    shard: int
    items: list[Batch | Gap]
    next: int
    seen: int  # what lies below was looked at, or is not wanted; what comes behind it is news
    end: int
    earliest: int
    epoch: int
    sealed: bool  # the same look finds the same records for as long as they are there


def look(topic: Topic, shard: int, start: Any, query: wire.ReadQuery) -> Found:
    """Records from a position on, up to what was asked for; how the shard stands."""
    items: list[Batch | Gap] = []
    left, bytes_left, looks = query.limit, query.max_bytes, LOOKS
    wanted = wanted_of(query.tag, query.tag_prefix, query.where)
    epoch = topic.epoch
    now = topic._store._context.clock.now_us()
    begin, missed = topic._begin(positions.parse(start, now), shard, query.epoch)
    finish = None if query.stop is None else positions.parse(query.stop, now)
    seen = end_of(topic._view(shard), query.consistency)
    ranges = topic._ranges(begin, finish, shard, query.consistency)
    place, until = ranges[0].first, ranges[0].end
    step = min(left, 10_000) if wanted is None else min(max(left, STEP), LOOKS)
    # whole: what is left out, by its node or because it was deleted, was looked at as well
    stepping: Any = topic._batches(
        ranges, bytes_left, step, "yield", check_node(query.skip_node), whole=True,
        missed=missed,
    )  # fmt: skip
    if query.gaps == "all":
        stepping = without_holes(stepping, topic.name, shard, place, until, DELETED)
    for item in stepping:
        if isinstance(item, Gap):
            if query.gaps == "raise":
                anew = item.reason == RECREATED  # and its offsets are those of another topic
                behind = "earliest and no epoch" if anew else item.last + 1
                raise DataGap(item, f"Go on with start={behind}, or read with gaps=tell.")
            items.append(item)
            if item.reason != RECREATED:  # whose offsets are those of another topic
                place = max(place, item.last + 1)
            continue
        if items and (item.nbytes > bytes_left or (wanted is None and len(item) > left)):
            break
        kept = matching(item, wanted)
        if len(kept) > left:
            kept = first(kept, left)
        if len(kept):
            items.append(kept)
        left, bytes_left, place = left - len(kept), bytes_left - item.nbytes, kept.next_offset
        looks -= 0 if wanted is None else len(item)
        if left <= 0 or bytes_left <= 0 or looks <= 0:
            break
    else:
        place = max(place, until)
    view = topic._view(shard)
    end = end_of(view, query.consistency)
    sealed = bool(items) and place < end and place <= _sealed_end(view)
    seen = place if place < until else max(place, seen)
    return Found(shard, items, place, seen, end, earliest_of(view), epoch, sealed)


async def read(call: Call) -> Reply:
    """Records of one shard. With `wait`, an answer without records comes only when time is up."""
    query: wire.ReadQuery = call.query
    media = call.accepts(*call.route.offers)
    name = call.params["topic"]
    if query.columns is not None and media != ARROW:
        raise Fault("invalid_request", f"columns are chosen of Arrow: accept {ARROW}")
    call.check_wait(query.wait)
    began = call.app.clock.monotonic()

    def work(store: Store) -> Found | Reply:
        """All of it at once: to change threads costs as much as to read a page."""
        topic = known(store, name)
        found = look(topic, chosen_shard(topic, query.shard), query.start, query)
        waits = query.wait and not found.items and not _over(found, query)
        return found if waits else _page(call, found, media)

    at_hand = _at_hand(call, query) if media == ARROW else None
    if at_hand is not None:  # as JSON a page takes many times as long, which others would wait for
        reply: Found | Reply = _page(call, at_hand, media)
    else:
        reply = await call.app.run(work)
    if isinstance(reply, Found):
        found = await waited(call, reply, query)
        reply = await call.app.run(lambda _: _page(call, found, media))
    call.times["read"] = (call.app.clock.monotonic() - began) * 1e3
    return reply


def _at_hand(call: Call, query: wire.ReadQuery) -> Found | None:
    """A plain page from an offset on, if no other thread need be asked for it."""
    known = call.app.store._topics.get(call.params["topic"])
    if known is None or not known._topic.ready or not query.start.isdecimal():
        return None
    topic, number = known._topic, query.shard
    if number is None and topic.shards == 1:
        number = 0
    if number is None or number >= topic.shards or not _plain(query):
        return None
    batch = topic._at_hand(number, int(query.start), query.limit, query.max_bytes)
    if batch is None:
        return None
    view, behind = topic._shards[number], batch.next_offset
    end = view.visible
    return Found(number, [batch], behind, end, end, earliest_of(view), topic.epoch, False)


def _plain(query: wire.ReadQuery) -> bool:
    """Whether nothing but where and how much is asked for."""
    return (
        query.stop is None and query.skip_node is None and query.epoch is None
        and query.tag is None and query.tag_prefix is None and query.where is None
        and query.consistency == "eventual"
    )  # fmt: skip


def _over(found: Found, query: wire.ReadQuery) -> bool:
    """Whether nothing can come any more: it is at the offset before which it is to stop."""
    stop = query.stop or ""
    return stop.isdecimal() and found.next >= int(stop)


async def waited(call: Call, found: Found, query: wire.ReadQuery) -> Found:
    """Wait until there is a record, the time is up, the server stops or the client is gone."""
    name, start, shard = call.params["topic"], found.next, found.shard

    def again(store: Store) -> Found:
        return look(store[name], shard, found.next, query)

    steps = await call.app.run(lambda store: store[name].tail(start, shard=shard, gaps="yield"))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + query.wait
    async with Waiting(call) as patience:
        while loop.time() < deadline and not (found.items or _over(found, query) or patience.over):
            steps.cursors[shard] = found.seen
            await patience.until(news(call.app.store, steps, deadline))
            if query.consistency == "strong":  # what is visible may take a while to be durable
                await patience.until(asyncio.sleep(STRONG_SECONDS))
            found = await call.app.run(again)
    return found


def known(store: Store, name: str) -> Topic:
    """A topic that is there. Asking for one that is not leaves nothing behind; store[name] does."""
    if name not in store._topics and name not in store:
        topic_name(name)
        raise TopicNotFound(f"no topic {name!r}")
    return store[name]


def chosen_shard(topic: Topic, asked: int | None) -> int:
    if asked is None and topic.shards > 1:
        raise InvalidOption(
            f"topic {topic.name!r} has {topic.shards} shards, each with offsets of its own; say "
            "which with shard=N"
        )
    if asked is not None and asked >= topic.shards:
        raise InvalidOption(f"shard={asked}: topic {topic.name!r} has shards 0..{topic.shards - 1}")
    return asked or 0


def _sealed_end(view: Any) -> int:
    """The offset behind the last record of a sealed segment before which all are sealed."""
    end: int = view.visible
    for segment in reversed(view.segments):
        if isinstance(segment, SealedSegment):
            break
        end = segment.base
    return end


def _page(call: Call, found: Found, media: str) -> Reply:
    query: wire.ReadQuery = call.query
    batches = [item for item in found.items if isinstance(item, Batch)]
    gaps = [codec.gap_out(item) for item in found.items if isinstance(item, Gap)]
    headers: tuple[tuple[str, str], ...] = (
        ("esker-next", str(found.next)), ("esker-end", str(found.end)),
        ("esker-earliest", str(found.earliest)), ("esker-epoch", str(found.epoch)),
    )  # fmt: skip
    if gaps:
        headers += (("esker-gaps", msgspec.json.encode(gaps).decode()),)
    if media == ARROW:
        records: Any = codec.arrow_out(batches, query.columns)
    elif media == CSV:
        records = sheet.sheet(found.items, headers=query.headers)
    elif media == CLOUD_EVENTS:
        everything = (each for batch in batches for each in batch.records())
        records = cloudevents.events_out(call.params["topic"], everything)
    else:
        made = [
            record
            for batch in batches
            for record in codec.records_out(batch, values=query.values, headers=query.headers)
        ]
        records = codec.lines_out(made) if media == NDJSON else msgspec.json.encode(made)
    if found.sealed and not gaps and _fixed(query):
        tag = f'"{found.epoch:x}-{found.next:x}-{_digest(records)}"'
        headers += (("etag", tag), ("cache-control", CACHED), ("vary", "accept"))
        if call.has(tag):
            return Reply(b"", 304, media=media, headers=headers)
    if media != JSON:
        return Reply(records, media=media, headers=headers)
    encoded: Any = msgspec.Raw(records)
    page = wire.Page(
        call.params["topic"], found.shard, encoded, gaps, found.next, found.end, found.earliest,
        found.epoch, found.next >= found.end,
    )  # fmt: skip
    return Reply(msgspec.json.encode(page), headers=headers)


def _fixed(query: wire.ReadQuery) -> bool:
    """Whether the query means the same range for ever, however the log grows."""
    return query.start.isdecimal() and (query.stop is None or query.stop.isdecimal())


def _digest(records: Any) -> str:
    """The hash of a page, which may be in pieces."""
    hashed = xxh3_64()
    for piece in records if isinstance(records, tuple) else (records,):
        hashed.update(piece)
    return hashed.hexdigest()


# ---- deleting --------------------------------------------------------------------------------


async def delete(call: Call) -> Reply:
    """Delete records for good: before a position, by tag, or both."""
    query: wire.DeleteQuery = call.query
    name = call.params["topic"]
    if query.before is None and query.tag is None and query.tag_prefix is None:
        raise Fault("invalid_request", "say what to delete: before, tag or tag_prefix")

    def remove(store: Any) -> int:
        if name not in store:
            raise TopicNotFound(f"no topic {name!r}")
        return store[name].delete(  # type: ignore[no-any-return]
            query.before, query.shard, tag=query.tag, tag_prefix=query.tag_prefix
        )

    return Reply(wire.Deleted(name, await call.app.run(remove)))
