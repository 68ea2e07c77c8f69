"""An append, by whichever door it comes in: HTTP, a WebSocket, logs, a durable stream.

Its topic is made by its first record, if that may be. A topic that is deleted under our hands is
made anew: these are the first records of the next one. What is refused makes none. Who waits at the
desk of a queue of that name is told, and how long it took goes to the answer and to the metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from esker.engine.intake import checking
from esker.engine.once import check_first
from esker.errors import TopicNotFound
from esker.records import Record, Span, Spans
from esker.server.live.latency import note_waits, timed, took

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.server.http.call import Call

TRIES: Final = 4  # at a topic that is deleted again and again

Numbered = tuple[str, int | None, int]  # a producer, its shard if one is asked for, its sequence


async def appended(
    call: Call, name: str, records: Any, *, wait: bool = True, key: str | None = None,
    create: bool = True, numbered: Numbered | None = None,
) -> Span | Spans:  # fmt: skip
    """Append a list of records, or a table of Arrow."""
    began = call.app.clock.monotonic()
    for left in range(TRIES)[::-1]:
        try:
            span = await _once(call, name, records, wait, key, create, numbered)
            break
        except TopicNotFound:
            if not left or not create:
                raise
    call.app.rooms.desks.ring(name)
    took(call, "append", call.app.clock.monotonic() - began)
    return span


async def _once(
    call: Call, name: str, records: Any, wait: bool, key: str | None, create: bool,
    numbered: Numbered | None,
) -> Span | Spans:  # fmt: skip
    app = call.app
    open_already = app.store._open_already(name)  # or asking would leave a handle behind
    ready = open_already is not None and open_already._topic.ready
    if ready or await app.run(lambda store: name in store):
        return await _put(call, name, records, wait, key, numbered)
    if not create:
        raise TopicNotFound(f"no topic {name!r}")

    def check(store: Store) -> None:
        if numbered is not None:
            check_first(store, name, numbered, records)
        else:
            checking(name, records)(store)

    async with app.room(name, check=check):  # its first record makes it
        return await _put(call, name, records, wait, key, numbered)


async def _put(
    call: Call, name: str, records: Any, wait: bool, key: str | None, numbered: Numbered | None
) -> Span | Spans:
    if numbered is not None:
        producer, shard, sequence = numbered

        def produce(store: Store) -> Span:
            made = store[name].producer(producer, shard)
            return made.append_many(records, sequence=sequence, wait=wait)

        return await timed(call, produce)
    topic = call.app.store._open_already(name) or await call.app.store._topic(name)
    log = topic._topic
    if not isinstance(records, list):
        return await timed(call, lambda _: log.append_arrow(records, wait))
    if len(records) == 1 and key is None and wait:  # those of all who wait share a commit
        one = records[0] if isinstance(records[0], Record) else Record(records[0])
        headers = None if one.headers is None else dict(one.headers)
        fields = (one.key, one.tag, one.node, headers, one.timestamp)
        offset, held, synced = await topic._append_timed(one.value, fields, True)
        note_waits(call, held, synced)
        return Span(getattr(offset, "shard", 0), int(offset), 1)
    return await timed(call, lambda _: log.append_many(records, wait, key))
