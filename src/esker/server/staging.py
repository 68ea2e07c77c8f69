"""Batches that are made elsewhere, over HTTP: staged by many, attached once by one.

    POST /v1/topics/orders/stages?shard=2     an Arrow stream    ->  tickets
    POST /v1/attach {"writer": "nightly", "sequence": 7, "tickets": [...]}

The stream may be longer than memory: it is cut into its messages as they come in, and each goes
into the staged segment before the next is read. No message may be longer than a body of any other
call; who sends smaller record batches sends as many as he likes, up to `stage_bytes`.

A writer is a name, and belongs to whoever may write all that its last batch went to: a key that may
not is told so, and cannot make a batch of somebody else's count as done.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from esker.engine import attach as attaching
from esker.engine.intake import check_shard, checking
from esker.errors import AttachPending
from esker.format.commit import Ticket
from esker.server.bodies import wire_rooms as wire
from esker.server.bodies.arrow_in import RECORDS, SCHEMA, head_of, table_in, wrong
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault
from esker.server.seals import opened_ticket, sealed_ticket

if TYPE_CHECKING:
    from esker.engine.attach import Stage
    from esker.engine.store import Store

PIECE_BYTES: Final = 4 << 20  # that are staged at a time
WRITTEN_MAX: Final = 64 << 20  # of a piece, when what stands for many bytes is written out
LOOK_SECONDS: Final = 0.01  # between looks whether another process has attached its part
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Message(NamedTuple):
    """One message of an Arrow stream, whole."""

    kind: int
    data: bytes


class Messages:
    """Cuts a stream of bytes into the messages of an Arrow stream."""

    def __init__(self, most: int) -> None:
        self._most = most  # bytes of one message
        self._data = bytearray()
        self._coming: tuple[int, int] | None = None  # kind and size of a message that is not whole
        self.ended = False

    def feed(self, piece: bytes) -> list[Message]:
        """What is whole by now."""
        self._data += piece
        found = []
        while not self.ended:
            message = self._next()
            if message is None:
                break
            found.append(message)
        if self.ended and self._data:
            raise wrong("there is something behind its end")
        return found

    def _next(self) -> Message | None:
        data = self._data
        if self._coming is None:
            self._coming = self._begun()
        if self._coming is None or len(data) < self._coming[1]:
            return None
        kind, whole = self._coming
        self._coming = None
        message = Message(kind, bytes(data[:whole]))
        del data[:whole]
        return message

    def _begun(self) -> tuple[int, int] | None:
        """The kind and the size of the next message, as soon as its head is whole; or the end."""
        data = self._data
        if len(data) < 8:
            return None
        mark, size = struct.unpack_from("<Ii", data)
        if mark != 0xFFFFFFFF:
            raise wrong("a message does not begin as one")
        if size == 0:
            del data[:8]
            self.ended = True
            return None
        if size < 0 or size > self._most:
            raise wrong(f"a message whose head has {size} bytes")
        if len(data) < 8 + size:
            return None
        kind, body = head_of(bytes(data[8 : 8 + size]))
        whole = 8 + size + body
        if whole > self._most:
            raise Fault(
                "payload_too_large", f"a record batch of {whole} bytes; send them in batches of at "
                f"most {self._most} bytes each",
            )  # fmt: skip
        return kind, whole


# ---- staging ---------------------------------------------------------------------------------


async def stage(call: Call) -> Reply:
    """Write records beside the log; the tickets make them a part of it later."""
    topic, shard = call.params["topic"], call.query.shard
    began = call.app.clock.monotonic()
    staged: Stage | None = None
    rows = 0

    async def begun(table: Any) -> Stage:
        """With the first piece: if that is refused, it makes no topic."""

        def check(store: Store) -> None:
            check_shard(topic, shard, store._shards_of(topic))
            checking(topic, table)(store)

        async with call.app.with_topic(topic, check=check):
            return await call.app.run(lambda store: store.stage(topic, shard))

    try:
        async for piece in _pieces(call):
            table = await call.app.run(lambda _, piece=piece: _table(piece))  # type: ignore[misc]
            stage = staged = staged or await begun(table)
            rows += await call.app.run(lambda _, s=stage, t=table: s.append_arrow(t))  # type: ignore[misc]
        stage = staged = staged or await begun([])
        tickets = await call.app.run(lambda _: stage.finish())
    except BaseException:
        if staged is not None:
            await call.app.run(lambda _: staged.discard())
        raise
    call.times["stage"] = (call.app.clock.monotonic() - began) * 1e3
    return Reply(
        await call.app.run(
            lambda store: wire.Staged(
                topic, rows, [_ticket_out(store, topic, each) for each in tickets]
            )
        ),
        201,
    )


async def _pieces(call: Call) -> AsyncIterator[bytes]:
    """Arrow streams of a few megabytes, each of them whole, that are together what comes in."""
    limit = call.app.settings.body_bytes
    messages = Messages(limit)
    before: list[bytes] = []  # the schema and the dictionaries, which all that follows needs
    batch: list[bytes] = []
    held = size = 0  # bytes of them; counted as they come, for there may be very many
    async for data in call.pieces():
        for message in messages.feed(data):
            if (message.kind == SCHEMA) != (not before):
                raise wrong("a stream begins with its schema, and has one")
            if message.kind == RECORDS:
                batch.append(message.data)
                size += len(message.data)
                if size >= PIECE_BYTES:
                    yield b"".join([*before, *batch, _END])
                    batch, size = [], 0
                continue
            if batch:  # a dictionary may replace one that came before
                yield b"".join([*before, *batch, _END])
                batch, size = [], 0
            before.append(message.data)
            held += len(message.data)
            if held > limit:
                raise Fault("payload_too_large", f"dictionaries of more than {limit} bytes")
    if not before or messages._data:
        raise wrong("it ends too early")
    if batch:
        yield b"".join([*before, *batch, _END])


def _table(piece: bytes) -> Any:
    """The records of a piece, looked at."""
    table, size = table_in(piece)
    if size > WRITTEN_MAX:
        raise Fault(
            "payload_too_large", f"{size} bytes of a record batch when written out; at most "
            f"{WRITTEN_MAX}: send smaller ones",
        )  # fmt: skip
    return table


def _ticket_out(store: Store, topic: str, ticket: Ticket) -> wire.Ticket:
    return wire.Ticket(
        topic=topic, shard=ticket.shard, rows=ticket.rows, bytes=ticket.size,
        seal=sealed_ticket(store, ticket),
    )  # fmt: skip


def _tickets(store: Store, given: list[wire.Ticket]) -> list[Ticket]:
    """What clients give back, as it was; a ticket that says another topic is no ticket."""
    found = []
    for each in given:
        ticket = opened_ticket(store, each.seal)
        entry = store._catalog.by_id(ticket.topic)
        if entry is not None and entry.name != each.topic:
            raise Fault("invalid_option", f"the ticket is not one of topic {each.topic!r}")
        if entry is None and store._lookup(each.topic) is not None:
            raise Fault("invalid_option", f"the ticket is of an earlier topic {each.topic!r}")
        found.append(ticket)
    return found


# ---- attaching -------------------------------------------------------------------------------


async def attach(call: Call) -> Reply:
    """Make staged segments a part of the log: all of them, durably, and once."""
    body: wire.Attach = call.body

    def commit(store: Store) -> bool:
        return store.attach(body.writer, body.sequence, _tickets(store, body.tickets), timeout=0)

    def check(store: Store) -> int | None:
        _check_writer(call, store, body.writer)
        if not body.tickets and not call.principal.everywhere:
            raise Fault("invalid_option", "a batch without tickets is for keys without prefixes")
        return store.attached(body.writer)

    began = call.app.clock.monotonic()
    before = await call.app.run(check)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + body.timeout
    while True:
        try:
            await call.app.run(commit)
            break
        except AttachPending:  # another process writes the shard: nobody's thread waits for it
            if loop.time() >= deadline or call.app.stopping.is_set():
                raise
        await asyncio.sleep(LOOK_SECONDS)
    committed = before is None or before < body.sequence
    call.times["attach"] = (call.app.clock.monotonic() - began) * 1e3
    for name in {each.topic for each in body.tickets}:
        call.app.rooms.desks.ring(name)
    return Reply(wire.Attached(body.writer, body.sequence, committed))


async def attached(call: Call) -> Reply:
    """The number of the last batch that a writer committed."""
    writer = call.params["writer"]

    def last(store: Store) -> int | None:
        _check_writer(call, store, writer)
        return store.attached(writer)

    return Reply(wire.LastAttached(writer, await call.app.run(last)))


async def forget(call: Call) -> Reply:
    """Forget a writer that will not come back. One of whose batch a part must wait is kept."""
    writer = call.params["writer"]

    def remove(store: Store) -> int | None:
        _check_writer(call, store, writer)
        last = store.attached(writer)
        attaching.forget(store._context, writer)
        return last

    return Reply(wire.LastAttached(writer, await call.app.run(remove)))


async def discard(call: Call) -> Reply:
    """Throw away what was staged and will not be attached; what is committed stays."""

    def remove(store: Store) -> int:
        tickets = _tickets(store, call.body.tickets)
        attaching.abandon(store._context, tickets)
        return len(tickets)

    return Reply(wire.Discarded(await call.app.run(remove)))


def _check_writer(call: Call, store: Store, writer: str) -> None:
    """A writer is for those who may write what it wrote last."""
    attaching.check(writer, 0, ())
    known: Any = attaching.committed_before(store._context, writer)
    for topic in {ticket.topic for batch in known for ticket in batch.tickets}:
        entry = store._catalog.by_id(topic)
        if entry is not None and not call.principal.may("write", entry.name):
            raise Fault("forbidden", "the key is not for this writer")
