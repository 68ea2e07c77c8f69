"""How a durable stream stands: its type, its end, who has written to it. The log is the truth.

A stream is a topic of one shard. Its first record, and the first of each batch that append.py
appends, has a header `esker-stream`: a `Mark` with everything that is to be known of the stream,
and with who sent the batch. So data and state are one append, whole or not at all, and nothing
about a stream lies anywhere else. Records that hold nothing but a mark (of the beginning, of the
end) are no data.

Whoever may append can append a mark, and a route forwards those of its source. What a mark says of
the stream's end by itself (ttl, expires) deletes a topic, so it counts only under a seal that this
server made for this very topic; a mark without one changes nothing about it.

A mark has all but the other producers; every so often, one has those as well. Whoever does not know
a stream reads backwards until such a one, and then on from where he looked last: also what others
have appended meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated, Any, Final

import msgspec
import pyarrow.compute as pc
from msgspec import Meta

from esker.engine.batch import Batch
from esker.engine.topic import Topic
from esker.records import Gap
from esker.server.http.faults import Fault

HEADER: Final = "esker-stream"
WINDOW: Final = 1_024  # records that are looked at first, from the end
SNAPSHOT: Final = 256  # batches between two marks with all producers, at the least
PRODUCERS: Final = 500  # of one stream
FORGET_SECONDS: Final = 7 * 86_400  # a producer that was idle for so long makes room for another

Sender = tuple[str, int, int]  # a producer, its epoch, the number of its batch


# What a mark says comes back in headers, whoever wrote it.
TYPE: Final = r"^[A-Za-z0-9_!#$&^.+-]+/[A-Za-z0-9_!#$&^.+*-]+[ -~]*\Z"
ContentType = Annotated[str, Meta(pattern=TYPE, max_length=256)]
INSTANT: Final = r"^[0-9TZtz:+. -]{1,64}\Z"
Instant = Annotated[str, Meta(pattern=INSTANT)]


class Mark(msgspec.Struct, omit_defaults=True, rename={"content_type": "type"}):
    """What a batch says of its stream."""

    content_type: ContentType
    ttl: Annotated[int, Meta(ge=0)] | None = None
    expires: Instant | None = None
    seq: str | None = None
    sender: Sender | None = None
    bare: bool = False  # the record has a mark and no data
    closed: bool = False
    producers: dict[str, tuple[int, int, int]] | None = None  # all: epoch, number, seconds
    seal: str = ""  # of ttl and expires

    def life(self) -> tuple[int | None, str | None]:
        """When the stream ends by itself."""
        return self.ttl, self.expires


def seal_of(topic: Topic, mark: Mark) -> str:
    """What vouches for when a stream ends by itself; nothing if it does not."""
    if mark.life() == (None, None):
        return ""
    key = blake2b(topic._store._context.store, digest_size=32, person=b"esker.stream").digest()
    told = msgspec.json.encode([topic._existing().id, *mark.life()])
    return blake2b(told, digest_size=16, key=key).hexdigest()


class Stream:
    """What is known of a stream, and up to where."""

    def __init__(self, epoch: int, mark: Mark, now_us: int) -> None:
        self.epoch = epoch
        self.upto = 0  # everything before is known
        self.mark = mark
        self.tail: int | None = None  # where it was closed
        self.closer: Sender | None = None
        self.producers: dict[str, tuple[int, int, int]] = {}
        self.batches = 0  # since the last mark with all producers
        self.touched_us = now_us

    @property
    def media(self) -> str:
        """The content type without its parameters."""
        return plain(self.mark.content_type)

    @property
    def is_json(self) -> bool:
        return self.media == "application/json"

    def end(self, visible: int) -> int:
        """The offset behind the last data."""
        return visible if self.tail is None else self.tail

    def apply(self, offset: int, mark: Mark, seconds: int) -> None:
        """A mark that stands in the log at an offset."""
        if self.tail is not None:
            return  # what comes behind the end is not the stream's
        if not mark.seal:
            mark.ttl, mark.expires, mark.seal = *self.mark.life(), self.mark.seal
        self.mark = mark
        self.batches = 0 if mark.producers is not None else self.batches + 1
        if mark.producers is not None:
            self.producers = dict(mark.producers)
        if mark.sender is not None:
            name, epoch, number = mark.sender
            self.producers[name] = (epoch, number, seconds)
        if mark.closed:
            self.tail, self.closer = offset, mark.sender

    def next_mark(self, sender: Sender | None, seq: str | None) -> Mark:
        """The mark of the batch that comes next."""
        every = max(SNAPSHOT, 2 * len(self.producers))
        return Mark(
            self.mark.content_type, self.mark.ttl, self.mark.expires, seq or self.mark.seq, sender,
            producers=dict(self.producers) if self.batches >= every else None,
            seal=self.mark.seal,
        )  # fmt: skip

    def is_repeated(self, sender: Sender, seconds: int) -> bool:
        """Whether a batch was appended before; raises if it must not be appended now."""
        name, epoch, number = sender
        known = self.producers.get(name)
        if known is None:
            if number:
                raise sequence_gap(0, number)
            self._make_room(seconds)
            return False
        current, last, _ = known
        if epoch < current:
            raise Fault(
                "stale_producer", f"the producer is at epoch {current} by now",
                headers=(("producer-epoch", str(current)),),
            )  # fmt: skip
        if epoch > current:
            if number:
                raise Fault("invalid_request", "a new epoch begins with Producer-Seq: 0")
            return False
        if number > last + 1:
            raise sequence_gap(last + 1, number)
        return number <= last

    def _make_room(self, seconds: int) -> None:
        if len(self.producers) < PRODUCERS:
            return
        oldest = min(self.producers, key=lambda name: self.producers[name][2])
        if self.producers[oldest][2] > seconds - FORGET_SECONDS:
            raise Fault(
                "producers_full", f"the stream knows {PRODUCERS} producers, all of the last days"
            )
        del self.producers[oldest]


def sequence_gap(expected: int, received: int) -> Fault:
    return Fault(
        "sequence_gap", f"Producer-Seq: {expected} is expected, not {received}",
        detail={"expected": expected},
        headers=(
            ("producer-expected-seq", str(expected)), ("producer-received-seq", str(received)),
        ),
    )  # fmt: skip


def plain(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


# ---- in the log ------------------------------------------------------------------------------


def marks_in(batch: Batch) -> Iterator[tuple[int, Mark]]:
    """The rows of a batch that have a mark. One look at its headers, however many rows it has."""
    headers = batch.columns.headers
    if headers is None:
        return
    flat = pc.list_flatten(headers)
    wanted = pc.equal(pc.struct_field(flat, "key"), HEADER)
    rows = pc.list_parent_indices(headers).filter(wanted).to_pylist()
    found = pc.struct_field(flat, "value").filter(wanted).to_pylist()
    for row, data in zip(rows, found, strict=True):
        try:
            yield row, msgspec.json.decode(data, type=Mark)
        except msgspec.MsgspecError:
            continue  # somebody else's header of this name


def look(topic: Topic, first: int, end: int) -> list[tuple[int, Mark, int]]:
    """All marks between two offsets: where, what, and when in seconds."""
    found = []
    for batch in topic.batches(first, end, shard=0, gaps="yield"):
        if isinstance(batch, Gap):
            continue  # a reader of the data is told; what its marks said, the next ones say again
        offsets = None
        for row, mark in marks_in(batch):
            if offsets is None:
                offsets = batch.offsets
            if not compare_digest(mark.seal.encode(), seal_of(topic, mark).encode()):
                mark.ttl = mark.expires = None
                mark.seal = ""
            stamps: Any = batch.columns.timestamps
            at = stamps if isinstance(stamps, int) else stamps[row].as_py()
            found.append((offsets[row].as_py(), mark, at // 1_000_000))
    return found


def load(topic: Topic, known: Stream | None, now_us: int) -> Stream | None:
    """The stream of a topic as it stands now; nothing if the topic is none."""
    if topic.shards != 1:
        return None
    epoch, end = topic.epoch, topic.end(0)
    stream = known if known is not None and known.epoch == epoch else None
    if stream is not None:
        for offset, mark, seconds in look(topic, stream.upto, end) if stream.upto < end else ():
            stream.apply(offset, mark, seconds)
    else:
        marks = _backwards(topic, end)
        if not marks:
            return None
        stream = Stream(epoch, marks[0][1], now_us)
        for offset, mark, seconds in marks:
            stream.apply(offset, mark, seconds)
    stream.upto = max(stream.upto, end)
    return stream


def _backwards(topic: Topic, end: int) -> list[tuple[int, Mark, int]]:
    """Marks from one that has all producers, or from the earliest, to the end."""
    earliest, span = topic.earliest(0), WINDOW
    while True:
        first = max(earliest, end - span)
        marks = look(topic, first, end)
        whole = [n for n, (_, mark, _) in enumerate(marks) if mark.producers is not None]
        if whole:
            return marks[whole[-1] :]
        if first <= earliest:
            return marks
        span *= 8


# ---- one at a time ---------------------------------------------------------------------------


class Entry:
    """A stream, and who is at it."""

    __slots__ = ("lock", "stream", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stream: Stream | None = None
        self.users = 0


class Streams:
    """What is known of the streams of a store; whoever changes one is alone with it."""

    def __init__(self, most: int) -> None:
        self._entries: dict[str, Entry] = {}
        self._most = most

    def get(self, name: str) -> Stream | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.stream

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[Entry]:
        """With the entry of a stream, when nobody else is at it."""
        entry = self._entries.setdefault(name, Entry())
        entry.users += 1
        try:
            async with entry.lock:
                yield entry
        finally:
            entry.users -= 1
            if not entry.users and entry.stream is None:
                self._entries.pop(name, None)
            if len(self._entries) > self._most:
                idle = (each for each, found in self._entries.items() if not found.users)
                self._entries.pop(next(idle, ""), None)
