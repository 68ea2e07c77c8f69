"""One client of a stream: what it is sent, and how much of it may wait.

Most clients keep up. Then a frame is written to the connection the moment it is made, and nothing
waits anywhere. When the connection does not take more, frames are queued, up to a bound; what is
beyond it is not kept for the client. It is *lagging*: its queue is dropped, it is told so by an
event when it reads again, and goes on from its cursor by reading the log, as somebody who has just
come. It misses nothing, and costs the others nothing but the bound.

A `Stream` knows one connection, an `Interest` one shard that it wants. Both are small: there may be
ten thousand of them, most of them idle, so an idle one has neither task nor queue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from esker.server.http.call import Send
from esker.server.http.connection import Exchange
from esker.server.live import frames
from esker.server.live.frames import Binary, Form, Frame, Lens

if TYPE_CHECKING:
    from esker.server.live.feed import Feed

SSE_FRAMES: Final = 1_024
SOCKET_MESSAGES: Final = 4
QUEUE_BYTES: Final = 1 << 20
FAREWELL_SECONDS: Final = 0.5
SHARDS_MAX: Final = 512  # of one stream: the cursor of them all must fit into a header
KEY_ENDED: Final = {"code": "unauthorized", "message": "the key is no longer valid"}


class Interest:
    """A shard of a topic that a stream wants."""

    __slots__ = (
        "asked", "at", "caught", "feed", "gap", "lens", "live", "name", "piece", "shard", "stream",
    )  # fmt: skip

    def __init__(
        self, stream: Stream, name: str, shard: int, at: int, lens: Lens, gap: Any = None,
        asked: int | None = None,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.name = name
        self.shard = shard
        self.asked = asked  # the shard that is wanted of the topic; None: all that it has
        self.at = at  # what is before it was sent, or is queued
        self.lens = lens
        self.gap = gap  # to be told first
        self.feed: Feed | None = None  # None: the topic is not there
        self.live = False  # gets what is drained
        self.caught = False  # was told that it is at the end
        self.piece = ""  # of the cursor, as of what was sent; in a stream that has several


class Stream:
    """A client."""

    __slots__ = (
        "closed", "dropped", "interests", "principal", "queue", "queued", "room", "seen", "sent",
        "since", "task", "waits",
    )  # fmt: skip
    form: Form = "sse"

    def __init__(self, principal: Any, room: int) -> None:
        self.principal = principal
        self.room = room  # frames that may wait
        self.interests: list[Interest] = []
        self.queue: deque[tuple[Interest, Frame]] | None = None
        self.queued = 0  # bytes in it
        self.task: asyncio.Task[None] | None = None  # writes what waits, reads what was missed
        self.dropped = 0  # frames, of which it is yet to be told
        self.closed = False
        self.waits = False  # for the client to take more
        self.sent = 0  # how often something was put
        self.seen: int | None = None  # how it was stuck when it was last looked at
        self.since = 0.0  # since when it was so

    # ---- what each kind does in its own way ---------------------------------------------

    @property
    def open(self) -> bool:
        """Whether something can be written at once."""
        return False

    @property
    def gone(self) -> bool:
        """Whether the client has gone away."""
        return self.closed

    @property
    def stuck(self) -> int | None:
        """None if it takes what comes; else a number that is another one when it took something."""
        return self.sent if self.waits else None

    def write(self, data: bytes) -> None:
        """Write now. Only if it is `open`."""
        raise NotImplementedError

    async def put(self, data: bytes) -> None:
        """Write as soon as there is room for it."""
        raise NotImplementedError

    async def finish(self, last: bytes) -> None:
        """Say this, and end."""
        raise NotImplementedError

    def abort(self) -> None:
        """End without saying anything."""
        raise NotImplementedError

    # ---- the queue -----------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self.queue is not None and (
            len(self.queue) >= self.room or self.queued >= QUEUE_BYTES
        )

    def offer(self, interest: Interest, given: Iterable[Frame]) -> bool:
        """Send frames, or queue them. False: there is no room; `interest.at` is how far it came."""
        for frame in given:
            if self.full:
                return False
            if self.task is None and self.open and not self.queue:  # nothing overtakes what waits
                self.write(self.composed(interest, frame))
            else:
                self.enqueue(interest, frame)
            interest.at = frame.next
        return True

    async def put_frame(self, interest: Interest, frame: Frame) -> None:
        """Send a frame as soon as there is room for it."""
        await self.put_event(self.composed(interest, frame))

    async def put_event(self, data: bytes) -> None:
        """Send something that the client has to take, or it is sent away."""
        self.waits = True
        try:
            await self.put(data)
        finally:
            self.waits = False
        self.sent += 1

    def composed(self, interest: Interest, frame: Frame) -> bytes:
        """A frame with the cursor of this stream, as of when it is written."""
        return frame.whole

    def enqueue(self, interest: Interest, frame: Frame) -> None:
        """Have it sent when what is before it has been."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append((interest, frame))
        self.queued += len(frame.body)

    def drop(self) -> int:
        """Forget the records that wait; every interest is where it was before. How many frames.

        Those of a topic that is no more stay: nobody can read them again.
        """
        if self.queue is None:
            return 0
        kept: deque[tuple[Interest, Frame]] = deque()
        over: set[Interest] = set()
        dropped = 0
        for interest, frame in reversed(self.queue):
            if frame.final:
                over.add(interest)
            if frame.begin == frame.next or interest in over:  # said once, or never
                kept.appendleft((interest, frame))
                continue
            interest.at = frame.begin
            dropped += 1
        self.queue = kept or None
        self.queued = sum(len(frame.body) for _, frame in kept)
        return dropped


class EventStream(Stream):
    """Server-sent events, written straight to the connection.

    `send` writes to the connection after a few checks, and is a coroutine. For a frame that goes to
    a thousand clients that is a thousand coroutines; here it is a thousand writes. The connection
    says when it has enough (`flow.write_paused`). HTTP/1.0 has no chunks: it gets the same bytes as
    they are. Where the connection is not ours, it is `send`.
    """

    __slots__ = ("_exchange", "_send", "_wire", "chunked")

    def __init__(self, principal: Any, send: Send, room: int = SSE_FRAMES) -> None:
        super().__init__(principal, room)
        self._send = send
        exchange: Any = getattr(send, "__self__", None)
        known = isinstance(exchange, Exchange)
        self._exchange: Any = exchange
        self._wire: Any = exchange.wire if known else None  # None: by the front door
        self.chunked: bool = known and exchange.chunked

    @property
    def open(self) -> bool:
        return (
            self._wire is not None
            and not self._wire.flow.write_paused
            and not self.closed
            and not self._wire.transport.is_closing()
        )

    @property
    def gone(self) -> bool:
        if self._wire is None:
            return self.closed
        return self.closed or self._exchange.disconnected or self._wire.transport.is_closing()

    @property
    def stuck(self) -> int | None:
        if self._wire is None or not self._wire.flow.write_paused:
            return super().stuck
        size: int = self._wire.transport.get_write_buffer_size()
        return size  # it only shrinks, as long as nothing more is written

    def write(self, data: bytes) -> None:
        self._wire.write(frames.chunked(data) if self.chunked else data)

    def write_chunk(self, chunk: bytes) -> None:
        """As `write`, of something that is a chunk already; for those who take chunks."""
        self._wire.write(chunk)

    async def put(self, data: bytes) -> None:
        if self._wire is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        if self._wire.flow.write_paused:
            await self._wire.flow.drain()
        if not self.gone:
            self.write(data)

    async def finish(self, last: bytes) -> None:
        if self.closed or (self._wire is not None and self._exchange.response_complete):
            return
        self.closed = True
        if self._wire is not None and self._wire.flow.write_paused:
            self.abort()  # it takes nothing, not even that it is over
            return
        await self._send({"type": "http.response.body", "body": last})

    def abort(self) -> None:
        self.closed = True
        if self._wire is not None:
            self._wire.transport.abort()
            self._exchange.lost()

    def composed(self, interest: Interest, frame: Frame) -> bytes:
        if len(self.interests) == 1:
            return frame.whole
        interest.piece = frame.piece
        return frames.with_cursor(frame.body, (each.piece for each in self.interests))


async def last_word(send: Send, told: bool) -> None:
    """End an answer of events, whose key has ended; with `told`, an event says so.

    Who takes nothing is not waited for: what he was not to have any more would wait for him, too.
    """
    last = frames.event("error", KEY_ENDED, "sse") if told else b""
    await EventStream(None, send).finish(last)


class SocketStream(Stream):
    """Messages of a WebSocket. Every interest has a lens of its own."""

    __slots__ = ("_abort", "_send")
    form: Form = "json"

    def __init__(
        self, principal: Any, send: Send, abort: Callable[[], None], room: int = SOCKET_MESSAGES
    ) -> None:
        super().__init__(principal, room)
        self._send = send
        self._abort = abort

    async def put(self, data: bytes) -> None:
        if self.closed:
            return
        kind, message = ("bytes", data) if isinstance(data, Binary) else ("text", data.decode())
        try:
            await self._send({"type": "websocket.send", kind: message})
        except RuntimeError:  # its client has said good-bye while this was made
            self.closed = True

    async def finish(self, last: bytes) -> None:
        if self.closed:
            return
        await self.say(last)
        self.abort()

    async def say(self, last: bytes) -> None:
        """The last word; who takes nothing, not even that it is over, does not hear it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.put(last), FAREWELL_SECONDS)

    def abort(self) -> None:
        self.closed = True
        self._abort()
