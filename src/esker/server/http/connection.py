"""A connection: what comes in, within which time and size, and what goes out.

uvicorn accepts connections and httptools parses them; this protocol stands between the two and the
application, and believes nobody:

    the head of a request     at most `header_seconds`, `line_bytes`, `header_bytes`, `header_count`
    its body                  at most `body_seconds`, at least `body_rate`; chunks that carry more
                              framing than data are refused
    between two requests      at most `idle_seconds`
    an answer                 must be taken, at `body_rate` at least; `answer_bytes` of all together
    all of them               at most `connections`; the next is told so (503) and closed

What can be read in two ways is refused, so that no proxy before this server reads it in another:
both a length and chunks, any coding but chunked, folded headers, control characters. One request is
taken at a time. What follows it before it is answered is never parsed: the answer says that the
connection closes, and whoever sent it sends it again on the next one.

Every refusal has the shape of all errors of this server. Where a body is still coming in when the
answer is complete, the connection lingers for a second, or the client would see a reset instead.

There are no timers. The listener looks at all connections a few times a second (`look`), which
costs a connection nothing while it works.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from esker.server.http import faults
from esker.server.http.faults import Fault

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from esker.server.settings import Settings

LOG: Final = logging.getLogger("esker.server")
NEW, HEAD, BODY, WORK, IDLE, LINGER = range(6)
LINGERS: Final = 1.0  # seconds that a refused client has to take its answer
RATE_AFTER: Final = 5.0  # seconds of a body, or of an answer, before its rate is looked at
FRAMING: Final = 64 << 10  # bytes of chunk sizes that are granted whatever the chunks carry
HIGH_WATER: Final = 256 << 10  # of a body that nobody has read yet
COPIED: Final = 64 << 10  # bytes that are rather put together than sent in pieces
EXCESS: Final = 64  # connections above the limit that are told why; others are just closed
BAD: Final = (
    "this is not a request of HTTP/1.1; in its URL, what is not ASCII has to be percent-encoded"
)


class Wire(HttpToolsProtocol):
    """One connection."""

    cycle: Exchange | None  # type: ignore[assignment]

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        app: Any = config.app
        self.settings: Settings = app.settings
        self.stopping: asyncio.Event = app.stopping
        self.phase = NEW
        self.since = self.loop.time()
        self.deaf = False  # nothing that comes in is parsed any more
        self.head_bytes = 0  # of this request, while its head comes in
        self.wire_bytes = 0  # of its body, with the framing of chunks
        self.body_bytes = 0
        self.written = 0
        self.untaken = 0  # bytes that this client is too slow for
        self._flushed = 0  # how much of it had left, when that was looked at
        self._flushed_at = self.since
        self._problem: Fault | None = None
        self._upgrading = False
        self.url = b""
        self.headers = []
        self.cycle = None

    # ---- the connection ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        excess = len(self.connections) - self.settings.connections
        if excess > EXCESS:
            self.deaf = True
            transport.abort()
        elif excess > 0:
            self.refuse(
                Fault(
                    "too_many_connections", "the server has no room for another connection",
                    headers=(("retry-after", "1"),),
                )
            )  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.deaf = True
        if self.cycle is not None:
            self.cycle.lost()
        self.flow.resume_writing()
        self._count_untaken()
        self.parser = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.phase in (NEW, IDLE):
            self.phase, self.since, self.head_bytes = HEAD, self.loop.time(), 0
        if self.deaf:
            return
        try:
            if self.phase == HEAD:
                data = self._head(data)
            if data:
                self.wire_bytes += len(data)
                self.parser.feed_data(data)
            if self._problem is not None:
                self.refuse(self._problem)
            elif self.phase == BODY and self.wire_bytes - self.body_bytes > (
                self.body_bytes + FRAMING
            ):
                self.refuse(Fault("invalid_request", "the chunks of the body are too small"))
        except httptools.HttpParserUpgrade:
            if self._problem is not None:
                self.refuse(self._problem)
            elif self._upgrading:
                self._upgrade()
            else:
                self._overheard()  # nothing else is spoken here: it is answered as it is
        except httptools.HttpParserError:
            if not self.deaf:
                self.refuse(self._problem or Fault("invalid_request", BAD))

    def _head(self, data: bytes) -> bytes:
        """Parse of a head as much as is granted; what is left of the data belongs to the body."""
        room = self.settings.line_bytes + self.settings.header_bytes + 4 - self.head_bytes
        first = data if len(data) <= room else data[:room]
        self.head_bytes += len(first)
        self.wire_bytes = 0
        self.parser.feed_data(first)
        if self.phase == HEAD and len(data) > room and self._problem is None:
            self._problem = self._too_large()
        if self._problem is not None:
            self.refuse(self._problem)
            return b""
        return data[room:]

    def _overheard(self) -> None:
        """Whatever comes now is not listened to: this connection ends with the answer."""
        self.deaf = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _upgrade(self) -> None:
        try:
            self._check_handshake()
        except Fault as fault:
            self.refuse(fault)
        else:
            self.deaf = True
            self.handle_websocket_upgrade()

    def _check_handshake(self) -> None:
        given = dict(self.headers)
        try:
            key = base64.b64decode(given.get(b"sec-websocket-key", b""), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if self.scope["method"] != "GET" or self.scope["http_version"] != "1.1":
            raise Fault("invalid_request", "a WebSocket begins with a GET of HTTP/1.1")
        if given.get(b"sec-websocket-version") != b"13":
            raise Fault(
                "invalid_request", "Sec-WebSocket-Version must be 13",
                headers=(("sec-websocket-version", "13"),),
            )  # fmt: skip
        if len(key) != 16:
            raise Fault("invalid_request", "Sec-WebSocket-Key must be 16 bytes in base64")

    # ---- the parser ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._overheard()  # came in the same packet as the first
        if self.deaf:
            return
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._problem = None
        self._upgrading = False
        self.phase = HEAD

    def on_url(self, url: bytes) -> None:
        if not self.deaf:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.deaf or self.phase != HEAD:  # those after a body are passed over
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > self.settings.header_count:
            self._problem = self._too_large()

    def on_headers_complete(self) -> None:
        if self.deaf or self._problem is not None:
            return
        version = self.parser.get_http_version()
        method = self.parser.get_method().decode("ascii")
        path, query = b"", b""
        try:
            self._check_head(version, method)
            path, query = self._target()
        except Fault as fault:
            self._problem = fault
            return
        self.scope = {
            "type": "http", "asgi": _ASGI, "http_version": version, "method": method,
            "server": self.server, "client": self.client, "scheme": self.scheme or "http",
            "root_path": "", "path": path.decode("ascii"), "raw_path": path, "query_string": query,
            "headers": self.headers, "state": self.app_state,
        }  # fmt: skip
        self.phase, self.since = BODY, self.loop.time()
        self.wire_bytes = self.body_bytes = 0
        if self.parser.should_upgrade() and self._should_upgrade():
            self._upgrading = True
            return
        keep_alive = version == "1.1" and self.parser.should_keep_alive()
        expects = version == "1.1" and self.expect_100_continue  # 1.0 takes it for the answer
        self.cycle = Exchange(self, self.scope, keep_alive, expects)
        task = self.loop.create_task(self.cycle.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _check_head(self, version: str, method: str) -> None:
        settings = self.settings
        if version not in ("1.0", "1.1"):
            raise Fault("invalid_request", BAD)
        line = len(method) + len(self.url) + 10  # and two blanks, and HTTP/1.1
        size = sum([len(name) + len(value) + 4 for name, value in self.headers])
        if line > settings.line_bytes or size > settings.header_bytes:
            raise self._too_large()
        length = coded = False
        for name, value in self.headers:
            if name == b"content-length":
                length = True
            elif name == b"transfer-encoding":
                if coded or value.lower() != b"chunked" or version != "1.1":
                    raise Fault("invalid_request", "the only Transfer-Encoding is chunked, once")
                coded = True
        if length and coded:
            raise Fault("invalid_request", "either Content-Length or Transfer-Encoding, not both")

    def _target(self) -> tuple[bytes, bytes]:
        """Path and query of what is asked for."""
        url = self.url
        if not url.startswith(b"/"):
            scheme, mark, rest = url.partition(b"://")
            if not mark or scheme.lower() not in (b"http", b"https"):
                raise Fault("invalid_request", "the target of a request is a path")
            place, slash, rest = rest.partition(b"/")
            if place.lower() != dict(self.headers).get(b"host", b"").lower():
                raise Fault("invalid_request", "the target and the header Host differ")
            url = slash + rest or b"/"
        if not url.isascii():
            raise Fault("invalid_request", "a path is ASCII, with other bytes as %XX")
        path, _, query = url.partition(b"#")[0].partition(b"?")
        return path, query

    def _too_large(self) -> Fault:
        settings = self.settings
        told = (
            f"at most {settings.line_bytes} bytes of request line, {settings.header_bytes} bytes "
            f"of headers, {settings.header_count} headers"
        )
        return Fault("headers_too_large", told)

    def on_body(self, body: bytes) -> None:
        if self.deaf or self.cycle is None or self._upgrading:
            return
        self.body_bytes += len(body)
        self.cycle.took(body)

    def on_message_complete(self) -> None:
        if self.deaf or self.cycle is None or self._upgrading or self._problem is not None:
            return
        self.phase = WORK
        self.cycle.took(b"", last=True)

    # ---- answers -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send this."""
        self.written += len(data)
        self.transport.write(data)
        if self.flow.write_paused:
            self._count_untaken()

    def write_all(self, pieces: Sequence[Any]) -> None:
        """Send these with one call; what is long is not copied for it."""
        size = sum(map(len, pieces))
        self.written += size
        if size > COPIED:
            self.transport.writelines(pieces)
        else:
            self.transport.write(b"".join(pieces))
        if self.flow.write_paused:
            self._count_untaken()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._count_untaken()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_untaken()

    def _count_untaken(self) -> None:
        """What waits for clients is bounded for all of them together: see App._crowded."""
        app: Any = self.config.app
        waits = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        app.untaken += waits - self.untaken
        self.untaken = waits

    def refuse(self, fault: Fault) -> None:
        """Answer with an error from here, and close."""
        self.deaf = True
        self._problem = None
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.lost()
            if cycle.response_started:  # there is no place for an error in it any more
                self.transport.abort()
                return
        if not self.transport.is_closing():
            self.write(self._refusal(fault))
            self.linger()

    def _refusal(self, fault: Fault) -> bytes:
        app: Any = self.config.app
        app.requests += 1
        body = faults.encode(fault, f"{app.requests:x}")
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in fault.headers),
        ]
        return head_of(fault.status, headers) + body

    def linger(self) -> None:
        """Close when the other side has, or in a second: what it still sends is thrown away."""
        self.deaf = True
        self.phase, self.since = LINGER, self.loop.time()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def answered(self, keep_alive: bool) -> None:
        """An answer is complete."""
        self.server_state.total_requests += 1
        complete = self.phase != BODY
        self.phase, self.since = IDLE, self.loop.time()
        if self.transport.is_closing():
            return
        if not complete:
            self.linger()
        elif not keep_alive or self.deaf:
            self.transport.close()
        else:
            self.flow.resume_reading()

    @property
    def came(self) -> int:
        """How much of the body came in."""
        return max(self.wire_bytes, self.body_bytes)

    # ---- time ----------------------------------------------------------------------------

    def look(self, now: float, tick: float) -> None:
        """See whether this connection is late; every `tick` seconds."""
        phase, settings = self.phase, self.settings
        took = now - self.since
        if phase in (HEAD, NEW):
            if took > settings.header_seconds:
                if phase == NEW:
                    self.transport.close()
                else:
                    self.refuse(_late("the headers", settings.header_seconds))
        elif phase == BODY:
            if self.flow.read_paused:
                self.since += tick  # the application has not read, so nobody can send
            elif took > settings.body_seconds:
                self.refuse(_late("the body", settings.body_seconds))
            elif took > RATE_AFTER and self.came < settings.body_rate * (took - RATE_AFTER):
                self.refuse(
                    Fault("request_timeout", f"a body of under {settings.body_rate} bytes a second")
                )
        elif phase == IDLE:
            if took > settings.idle_seconds:
                self.transport.close()
        elif phase == LINGER and took > LINGERS:
            self.transport.abort()
            return
        if self.untaken:
            self._count_untaken()
        waiting = self.transport.get_write_buffer_size()
        if waiting == 0:
            self._flushed, self._flushed_at = self.written, now
        elif now - self._flushed_at > settings.body_seconds:
            flushed = self.written - waiting
            if flushed - self._flushed < settings.body_rate * (now - self._flushed_at):
                LOG.info("a client that does not take its answer is disconnected")
                self.transport.abort()
            self._flushed, self._flushed_at = flushed, now

    def shutdown(self) -> None:
        """The server is about to stop: end this as soon as what is under way is answered."""
        if self.phase in (NEW, HEAD, IDLE):
            self.deaf = True
            self.transport.close()
        elif self.cycle is not None:
            self.cycle.keep_alive = False


_ASGI: Final[Any] = {"version": "3.0", "spec_version": "2.3"}


def _late(what: str, seconds: float) -> Fault:
    return Fault("request_timeout", f"{what} did not come within {seconds:g} s")


def head_of(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Status line and headers; never more of them than there are, whatever they hold."""
    told = b"\r\n".join([b": ".join(header) for header in headers])
    head = b"%b%b\r\n\r\n" % (STATUS_LINE[status], told)
    lines = len(headers) + 2
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise ValueError("a header of an answer holds a line break")
    return head


class Exchange:
    """One request and its answer: what the application receives from and sends to."""

    __slots__ = (
        "_body", "_bytes", "_continue", "_flow", "_head", "_last", "_news", "chunked",
        "disconnected", "keep_alive", "response_complete", "response_started", "scope", "wire",
    )  # fmt: skip

    def __init__(self, wire: Wire, scope: Any, keep_alive: bool, expects: bool) -> None:
        self.wire = wire
        self._flow: FlowControl = wire.flow
        self.scope = scope
        self.keep_alive = keep_alive
        self._continue = expects
        self._body: list[bytes] = []
        self._bytes = 0
        self._last = False
        self._news: asyncio.Event | None = None
        self._head = b""
        self.chunked = False  # the answer goes out in chunks
        self.response_started = False
        self.response_complete = False
        self.disconnected = False

    # from the connection

    def took(self, piece: bytes, *, last: bool = False) -> None:
        """A piece of the body came in."""
        if self.response_complete:
            return
        if piece:
            self._body.append(piece)
            self._bytes += len(piece)
            if self._bytes > HIGH_WATER:
                self._flow.pause_reading()
        self._last = self._last or last
        if self._news is not None:
            self._news.set()

    def lost(self) -> None:
        """The client is gone, or was refused: nobody hears the rest."""
        if not self.response_complete:
            self.disconnected = True
        if self._news is not None:
            self._news.set()

    # for the application

    async def run(self, app: Any) -> None:
        """Let the application answer; whatever it does, there is an answer or an end."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._broken(
                Fault("shutting_down", "the server stops", headers=(("retry-after", "1"),))
            )
            raise
        except Exception:
            LOG.exception("a request failed")
            self._broken(Fault("internal", faults.INTERNAL))
        else:
            if not self.response_complete and not self.disconnected:
                LOG.error("a request was left without an answer")
                self._broken(Fault("internal", faults.INTERNAL))

    def _broken(self, fault: Fault) -> None:
        if not self.disconnected and not self.response_complete:
            self.wire.refuse(fault)

    async def receive(self) -> dict[str, Any]:
        """The next piece of the body; when it is complete, the end of the connection."""
        if self._continue and not self.response_started and not self.disconnected:
            self._continue = False
            self.wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            if self.disconnected or self.response_complete:
                return {"type": "http.disconnect"}
            if self._body or self._last:
                pieces, self._body, self._bytes = self._body, [], 0
                more, self._last = not self._last, False
                self._flow.resume_reading()
                body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                return {"type": "http.request", "body": body, "more_body": more}
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()

    async def send(self, message: Any) -> None:
        """A part of the answer: its head, then its body at once or in pieces."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message)
        elif not self.response_complete:
            self._piece(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError("an answer goes on after its end")

    def _start(self, message: Any) -> None:
        wire = self.wire
        status: int = message["status"]
        headers = wire.server_state.default_headers + list(message.get("headers", ()))
        bare = status in (204, 304) or self.scope["method"] == "HEAD"
        given = dict(headers)
        length = b"content-length" in given
        closes = given.get(b"connection") == b"close"
        if closes or wire.phase == BODY or wire.stopping.is_set():
            self.keep_alive = False  # whatever is left of the body is not waited for
        if not self.keep_alive and not closes:
            headers.append((b"connection", b"close"))
        # An answer of unknown length to HTTP/1.0 ends with the connection.
        self.chunked = not length and not bare and self.scope["http_version"] == "1.1"
        if self.chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        head = head_of(status, headers)
        self.response_started = True
        self._continue = False
        if length or bare:
            self._head = head  # goes out together with the body
        else:
            wire.write(head)

    def _piece(self, body: bytes | tuple[Any, ...], more: bool) -> None:
        """A part of the body, which may itself be in pieces."""
        pieces = list(body) if isinstance(body, tuple) else [body] if body else []
        if self.scope["method"] == "HEAD":
            pieces = []
        if self.chunked:
            if pieces:
                pieces = [b"%x\r\n" % sum(map(len, pieces)), *pieces, b"\r\n"]
            if not more:
                pieces.append(b"0\r\n\r\n")
        elif self._head:
            pieces.insert(0, self._head)
            self._head = b""
        if pieces:
            self.wire.write_all(pieces)
        if not more:
            self.response_complete = True
            if self._news is not None:
                self._news.set()
            self.wire.answered(self.keep_alive)
