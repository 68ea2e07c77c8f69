"""Records as they go down a stream; made once for all who look at them in the same way.

As server-sent events:

    event: record
    data: {"topic": "orders", "shard": 0, "records": [...], "next": 8, "end": 8}
    id: <cursor>

As messages of a WebSocket: `{"op": "record", ..., "cursor": "..."}` as text, or in binary (see
`binary`). JSON has no line breaks within strings; those between the parts of a value that is
embedded as JSON are taken out by bodies/codec.py, so that no value can end an event and begin
another one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow.compute as pc

from esker.engine.batch import Batch
from esker.engine.reader import Consistency, end_of, read_batches
from esker.engine.topic import Topic
from esker.records import Gap
from esker.server.bodies import codec
from esker.server.bodies.codec import RecordOut, Values
from esker.server.bodies.filtering import masked, matching, wanted_of
from esker.server.live import cursor

Form = Literal["sse", "json", "arrow"]
FRAME_RECORDS: Final = 256
FRAME_BYTES: Final = 256 << 10
MESSAGE_BYTES: Final = 512 << 10  # most clients of a WebSocket take messages of up to 1 MiB
STEP_RECORDS: Final = 1_024
STEP_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct("<I")


class Lens(NamedTuple):
    """How somebody looks at records. Frames are made once for each lens, whoever has it."""

    form: Form = "sse"
    values: Values = "text"
    headers: bool = True
    skip_node: str | None = None
    tag: str | None = None
    tag_prefix: str | None = None
    where: str | None = None
    strong: bool = False  # only what is durable

    def seen(self, batch: Batch) -> Batch:
        """The batch without the records that are not asked for."""
        nodes = batch.columns.nodes
        if self.skip_node is not None and nodes is not None:
            batch = masked(batch, pc.fill_null(pc.not_equal(nodes, self.skip_node), True))
        return matching(batch, wanted_of(self.tag, self.tag_prefix, self.where))


class Frame(NamedTuple):
    """Something to send; a client that has it is at `next`."""

    begin: int
    next: int
    body: bytes  # without its cursor
    whole: bytes  # with the cursor of a stream that has this shard alone
    piece: str  # which is this
    final: bool = False  # what is before it can not be read again


class Made(NamedTuple):
    """What a step found, as seen through a lens: frames, and all of them in one piece."""

    frames: list[Frame]
    chunk: bytes
    records: int


class Step(NamedTuple):
    """A shard, read from one place to another."""

    items: list[Batch | Gap]
    next: int
    end: int
    records: int


class Shown(msgspec.Struct):
    topic: str
    shard: int
    records: list[RecordOut]
    next: int
    end: int


class Message(msgspec.Struct):
    op: str
    topic: str
    shard: int
    records: list[RecordOut]
    next: int
    end: int
    cursor: str


def read_on(
    topic: Topic, shard: int, at: int, stop: int | None = None,
    consistency: Consistency = "eventual",
) -> Step:  # fmt: skip
    """What is there from `at` on, up to `stop` and to what one step holds. Touches the disk."""
    view = topic._view(shard)
    end = end_of(view, consistency)
    last = end if stop is None else min(stop, end)
    items: list[Batch | Gap] = []
    records = size = 0
    for item in read_batches(
        view, at, last, max_bytes=FRAME_BYTES, max_records=FRAME_RECORDS, gaps="yield", whole=True
    ):
        if isinstance(item, Gap):
            at = item.last + 1
            items.append(item)
            continue
        at = item.next_offset
        if len(item):
            items.append(item)
            records, size = records + len(item), size + item.nbytes
            if records >= STEP_RECORDS or size >= STEP_BYTES:
                break
    else:
        at = max(at, min(view.earliest, last))
    return Step(items, at, end, records)


class Maker:
    """Makes frames for one shard of one topic."""

    __slots__ = ("epoch", "hash", "name", "shard")

    def __init__(self, name: str, epoch: int, shard: int) -> None:
        self.name = name
        self.epoch = epoch
        self.shard = shard
        self.hash = cursor.hash_of(name)

    def piece(self, at: int) -> str:
        """The cursor of this shard at an offset."""
        return cursor.piece(self.hash, self.shard, self.epoch, at)

    def made(self, step: Step, lens: Lens, begin: int) -> Made:
        """The frames of a step: an event for each batch; of messages, as few as there can be."""
        made: list[Frame] = []
        records = size = 0
        pending: list[Batch] = []

        def show() -> None:
            nonlocal begin, size
            size = 0
            if pending:
                made.append(self._record(pending, lens, begin, step.end))
                begin = pending[-1].next_offset
                pending.clear()

        for item in step.items:
            if isinstance(item, Gap):
                show()
                made.append(self.gap(item, lens.form, begin))
                begin = item.last + 1
                continue
            seen = lens.seen(item)
            if len(seen):
                records += len(seen)
                if lens.form == "sse" or size + seen.nbytes > MESSAGE_BYTES:
                    show()
                size += seen.nbytes
                pending.append(seen)
        show()
        blob = b"".join(frame.whole for frame in made) if lens.form == "sse" else b""
        return Made(made, chunked(blob) if blob else b"", records)

    def _record(self, batches: list[Batch], lens: Lens, begin: int, end: int) -> Frame:
        at = batches[-1].next_offset
        piece = self.piece(at)
        if lens.form == "arrow":
            head = {"op": "record", "topic": self.name, "shard": self.shard, "next": at,
                    "end": end, "cursor": piece}  # fmt: skip
            told: bytes = binary(head, b"".join(codec.arrow_out(batches)))
            return Frame(begin, at, told, told, piece)
        records = [
            record
            for batch in batches
            for record in codec.records_out(batch, values=lens.values, headers=lens.headers)
        ]
        if lens.form == "json":
            told = msgspec.json.encode(
                Message("record", self.name, self.shard, records, at, end, piece)
            )
            return Frame(begin, at, told, told, piece)
        data = msgspec.json.encode(Shown(self.name, self.shard, records, at, end))
        return self._event(b"record", data, begin, at)

    def _event(self, event: bytes, data: bytes, begin: int, at: int) -> Frame:
        body, piece = b"event: " + event + b"\ndata: " + data + b"\n", self.piece(at)
        return Frame(begin, at, body, with_cursor(body, (piece,)), piece)

    def gap(self, gap: Gap, form: Form, begin: int, at: int | None = None) -> Frame:
        """What is not there any more, and why. `at` is where it goes on, if not behind the gap."""
        return self._told(
            "gap", codec.gap_out(gap), form, begin, gap.last + 1 if at is None else at
        )

    def caught_up(self, at: int, form: Form) -> Frame:
        """From here on records come as they are appended."""
        told = {"topic": self.name, "shard": self.shard, "next": at}
        return self._told("caught-up", told, form, at, at)

    def deleted(self, at: int, form: Form) -> Frame:
        """The topic is no more."""
        told = {"topic": self.name, "shard": self.shard, "next": at}
        return self._told("topic-deleted", told, form, at, at)._replace(final=True)

    def _told(self, event: str, told: dict[str, Any], form: Form, begin: int, at: int) -> Frame:
        if form == "sse":
            return self._event(event.encode(), msgspec.json.encode(told), begin, at)
        piece = self.piece(at)
        data = msgspec.json.encode({"op": event.replace("-", "_"), **told, "cursor": piece})
        return Frame(begin, at, data, data, piece)


def event(name: str, told: Any, form: Form) -> bytes:
    """An event that moves no cursor."""
    if form == "sse":
        return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"
    return msgspec.json.encode({"op": name.replace("-", "_"), **told})


def with_cursor(body: bytes, pieces: Iterable[str]) -> bytes:
    """An event with the cursor of a stream that has many shards."""
    return b"".join((body, b"id: ", "".join(pieces).encode(), b"\n\n"))


def chunked(data: bytes) -> bytes:
    """A piece of a body whose length nobody knows yet, as HTTP/1.1 has it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Binary(bytes):
    """A message of a WebSocket that is no text."""

    __slots__ = ()


def binary(head: dict[str, Any], body: bytes) -> Binary:
    """A binary message: the length of its head (four bytes, the lowest first), the head, a body."""
    told = msgspec.json.encode(head)
    return Binary(b"".join((_LENGTH.pack(len(told)), told, body)))


def unbinary(data: bytes) -> tuple[bytes, bytes]:
    """The head and the body of a binary message."""
    if len(data) < _LENGTH.size:
        raise ValueError("a binary message begins with the length of its head")
    (size,) = _LENGTH.unpack_from(data)
    behind = _LENGTH.size + size
    if behind > len(data):
        raise ValueError("the head of a binary message is longer than the message")
    return data[_LENGTH.size : behind], data[behind:]
