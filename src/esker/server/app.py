"""A call, from top to bottom.

    is this the server that was meant (Host), and may a page of that origin ask (Origin)
    is there such a route, and such a method
    who asks, may they, with the topics that path and query name
    is there room for one more
    is the body of a kind that is taken, not too long, and as the table says; may they, with the
      topics that it names
    do it
    say it, and how long it took

Every answer passes through `_answer`, so that each has the number of its request and the headers
that browsers need to be careful. An exception of the library is told as what it is; one that nobody
foresaw is logged in full and tells the client nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from os import urandom
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from esker.aio.store import AsyncStore
from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine.progress import Progress
from esker.engine.store import Store
from esker.errors import EskerError
from esker.options import topic_name
from esker.server.access.audit import Audit
from esker.server.access.gate import Ended, Gate, Visit, claimed, ticket_in
from esker.server.access.keys import Principal, Scope
from esker.server.bodies.codec import EVENTS, JSON
from esker.server.durable_streams.state import Streams
from esker.server.handlers import handlers
from esker.server.http import faults
from esker.server.http.call import Call, Disconnected, Receive, Reply, Send, decoded, hinted
from esker.server.http.exposure import check_place, for_pages
from esker.server.http.faults import Fault, throttled
from esker.server.live import websocket
from esker.server.live.hub import Hub
from esker.server.live.stream import last_word
from esker.server.live.watch import Sessions
from esker.server.seals import Rooms
from esker.server.settings import Settings
from esker.server.table import CLOUD_EVENT, RAW, Place, Route, Table, names_in, params

T = TypeVar("T")
LOG: Final = logging.getLogger("esker.server")
QUERY_FIELDS: Final = 64  # in one query, at the most
SMALL_BYTES: Final = 64 << 10  # of an answer that is always given
KNOWN: Final = 1_024  # paths whose routes are remembered
KNOWN_BYTES: Final = 512  # of such a path, at the most
ACCESS: Final = logging.getLogger("esker.access")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class App:
    """The ASGI application over one store."""

    def __init__(
        self, store: AsyncStore | None, settings: Settings | None = None, *,
        table: Table | None = None, clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self._store = store
        self.settings = settings or Settings()
        self.table = table or Table()
        self.handlers = handlers(self.table.routes)
        self._found = lru_cache(maxsize=KNOWN)(self._find)
        self.clock = clock
        self.audit = Audit(self.settings.audit, clock)
        self.gate = Gate(self.settings, clock, self.audit)
        self._making = asyncio.Lock()
        self.began = clock.monotonic()
        self.rooms = Rooms(self.settings, urandom(32))
        self.stopping = asyncio.Event()
        self.requests = 0
        self.failures = 0
        self.under_way = 0
        self.untaken = 0  # bytes of answers that wait for clients
        self.hub = Hub(self)
        self.sessions = Sessions(clock)
        self.durable = Streams(self.settings.topics)
        self.replayed: dict[str, Any] = {"replay_progress": 0.0}  # while the store is opened

    def open(self, store: AsyncStore | None) -> None:
        """From now on calls are for this store; with None, for none."""
        self._store = store
        if store is not None:
            self.audit.tell_damage(store.recovery.findings)
            self.hub.start()

    def recovering(self, told: Progress) -> None:
        """How far the store is; from the thread that opens it."""
        self.replayed = {
            "replay_progress": told.done / max(1, told.total), told.unit: told.done,
            "of": told.total,
        }  # fmt: skip

    @property
    def opened(self) -> bool:
        """Whether there is a store yet."""
        return self._store is not None

    @property
    def store(self) -> AsyncStore:
        """The store; a refusal while it is not open yet."""
        if self._store is None:
            raise Fault(
                "not_ready", "the store is being opened", detail=self.replayed, headers=_LATER
            )
        return self._store

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _http(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        began = self.clock.monotonic()
        self.requests += 1
        request = f"{self.requests:x}"
        self.under_way += 1
        times: dict[str, float] = {}
        reply: Reply | None = None
        head = scope["method"] == "HEAD"
        try:
            with self.gate.visit() as visit:
                reply = await self._told(scope, receive, request, times, visit)
                if self.settings.origins:
                    reply.headers += for_pages(_loose(scope), self.settings)
                times["total"] = (self.clock.monotonic() - began) * 1e3
                if b"performance=true" in scope["query_string"].split(b"&"):
                    _perform(reply, times)
                if self.untaken and self._crowded(scope, reply):
                    reply = _refusal(self._waits(), request, self._rate(scope))
                await _answer(reply, request, times, receive, send, head=head)
        except Disconnected:
            pass
        except Ended:
            if reply is not None:
                if reply.media != EVENTS:
                    raise asyncio.CancelledError from None  # cut off, for it must not seem whole
                if reply.stream is not None or reply.serve is not None:
                    await last_word(send, scope["esker"].route.streams)
            else:
                fault = Fault("unauthorized", "this key has just ended; what it did may stand")
                self._audited(scope, request, fault)
                refusal = _refusal(fault, request)
                await _answer(refusal, request, times, receive, send, head=head)
        finally:
            self.under_way -= 1
            if self.settings.access_log:
                self._logged(scope, request, reply, self.clock.monotonic() - began)

    def _crowded(self, scope: dict[str, Any], reply: Reply) -> bool:
        """Whether an answer that can be asked for again would be too much beside those that wait.

        Who takes his answer has it at once. Of those who are slow each holds his in our memory.
        """
        size = reply.sized()
        whole = self.untaken + size > self.settings.answer_bytes
        return whole and size > SMALL_BYTES and scope["method"] == "GET"

    def _waits(self) -> Fault:
        most = self.settings.answer_bytes
        return Fault(
            "throttled", f"clients are slow to take {most} bytes of answers",
            detail={"limit": "answer_bytes", "max": most}, headers=_LATER,
        )  # fmt: skip

    def _logged(
        self, scope: dict[str, Any], request: str, reply: Reply | None, seconds: float
    ) -> None:
        """A line for a call. Of its path it has what the table has, and no query."""
        call: Call | None = scope.get("esker")
        fields = {
            "request": request, "method": scope["method"], "path": call.route.path if call else "-",
            "status": reply.status if reply else "-",
            "key": (call.principal.id if call else "") or "-", "ms": round(seconds * 1e3, 3),
        }  # fmt: skip
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        ACCESS.info("%s", said, extra={"fields": fields})

    async def _told(
        self, scope: dict[str, Any], receive: Receive, request: str, times: dict[str, float],
        visit: Visit,
    ) -> Reply:  # fmt: skip
        """The answer to a call, whatever becomes of it."""
        try:
            reply = await self._reply(scope, receive, request, times, visit)
            self._audited(scope, request, None)
            return reply
        except Disconnected:
            raise
        except Fault as refused:
            fault = refused
        except EskerError as problem:
            fault = faults.fault_of(problem)
            if fault.status >= 500:
                self.failures += 1
                LOG.warning("request %s: %s: %s", request, problem.code, problem)
        except Exception:
            self.failures += 1
            LOG.exception("request %s failed", request)
            fault = Fault("internal", faults.INTERNAL)
        self._audited(scope, request, fault)
        return _refusal(fault, request, self._rate(scope))

    async def _websocket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """A handshake is a call as any other; what follows it is not."""
        began = self.clock.monotonic()
        self.requests += 1
        request = f"{self.requests:x}"
        try:
            with self.gate.visit() as visit:
                try:
                    call = self.enter(scope, receive, request, visit, ("read", "write"))
                    if call.route.handler != websocket.ROUTE:
                        raise Fault("not_found", "there is no WebSocket at this path")
                    _ = self.store  # a refusal while there is none
                except Fault as fault:
                    self._audited(scope, request, fault)
                    refusal = _refusal(fault, request)
                    times = {"total": (self.clock.monotonic() - began) * 1e3}
                    await websocket.refuse(refusal, _head(refusal, request, times), receive, send)
                    return
                refused = partial(self._audited, scope, request)
                await websocket.serve(call, receive, send, refused)
        except Ended:  # the socket was closed on its way out
            pass

    async def _reply(
        self, scope: dict[str, Any], receive: Receive, request: str, times: dict[str, float],
        visit: Visit,
    ) -> Reply:  # fmt: skip
        if scope["method"] == "OPTIONS" and self.settings.origins:
            return self._preflight(scope)
        call = self.enter(scope, receive, request, visit)
        call.times = times
        route = call.route
        if route.body is not None:
            self._check_body(call)
        elif route.method == "POST" and call.media in _SIMPLE:
            raise Fault("unsupported_media_type", "a form is not taken here")
        if "topic" in call.params and route.scope == "read":
            self.hub.consumed(call.params["topic"])
        if route.appends:  # refused before its body is read
            with self.hub.admitted(not getattr(call.query, "disable_backpressure", False)):
                reply = await self._handled(call)
        else:
            reply = await self._handled(call)
        reply.headers += self._rate(scope)
        return reply

    async def _handled(self, call: Call) -> Reply:
        """The body, if it is not the handler's to read, and the handler."""
        body = call.route.body
        if body is not None and body is not RAW:
            data = await call.read()
            call.body = await call.apart(data, lambda: decoded(data, body))
            self._check(call, ("body",))
        return await self.handlers[call.route](call)

    def enter(
        self, scope: dict[str, Any], receive: Receive, request: str, visit: Visit,
        either: tuple[Scope, ...] = (),
    ) -> Call:  # fmt: skip
        """Everything that is known before a body is read, for HTTP and for WebSocket.

        The key must have the scope of the route, or one of `either`. Who asks is counted in, and
        out again when `visit` is over. If the key ends before that, the task is cancelled, and
        leaving the visit raises `Ended`.
        """
        headers = _headers(scope)
        self._check_place(headers, page=_raw_path(scope) == b"/")
        route, given = self._route(scope)
        query, ticket = scope["query_string"], None
        stream = route.is_stream(query)
        if stream:
            ticket, query = ticket_in(query)
        principal = self._principal(headers, route, ticket)
        safe = stream or route.method == "GET"
        call = Call(self, route, given, headers, principal, request, receive)
        call.head = scope.get("method") == "HEAD"
        scope["esker"] = call
        visit.enter(principal, stream=stream, safe=safe)
        if self.under_way > self.settings.connections:
            most = self.settings.connections
            raise throttled("connections", most, 1, "too many calls are under way")
        self._check_scope(call, either)
        call.query = _query(route, query)
        self._check(call, ("path", "query", "header"))
        if self.stopping.is_set():
            raise Fault("shutting_down", "the server is about to stop", headers=_LATER)
        return call

    def _preflight(self, scope: dict[str, Any]) -> Reply:
        """A browser asks whether a page of an allowed origin may call at all."""
        headers = _headers(scope)
        self._check_place(headers)
        self._route({**scope, "method": headers.get("access-control-request-method", "")})
        return Reply(b"", 204)

    def _rate(self, scope: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        call = scope.get("esker")
        return () if call is None else self.gate.rate_headers(call.principal)

    @asynccontextmanager
    async def with_topic(
        self, *names: str, check: Callable[[Store], None] | None = None
    ) -> AsyncIterator[None]:
        """For what makes topics if they are not there."""
        if await self.run(lambda store: all(name in store for name in names)):
            yield
        else:
            async with self.room(*names, check=check):
                yield

    @asynccontextmanager
    async def room(
        self, *names: str, check: Callable[[Store], None] | None = None
    ) -> AsyncIterator[bool]:
        """For the making of topics: one call at a time, and no more topics than there may be.

        Gives whether they are there already. Without it, two calls at once would both find room
        for one more. What `check` refuses makes none, and leaves no handle of their names.
        """
        async with self._making:
            known, count = await self.run(
                lambda store: (sum(name in store for name in {*names}), len(store))
            )
            limit, new = self.settings.topics, len({*names}) - known
            if new and count + new > limit:
                told = f"there are {count} topics of {limit}, and no room for {new} more"
                raise throttled("topics", limit, 60, told)
            if new and check is not None:
                await self.run(check)
            yield not new

    def _audited(
        self, scope: dict[str, Any], request: str, fault: Fault | None,
        more: Mapping[str, str] = _NOTHING,
    ) -> None:  # fmt: skip
        """Tell the audit log of what was refused, and of what was changed."""
        call: Call | None = scope.get("esker")
        if fault is not None:
            event = fault.code if fault.code in _REFUSED else ""
        else:
            event = call.route.handler if call and _changes(call.route) else ""
        if not event:
            return
        client = scope.get("client")
        told: dict[str, Any] = {
            "request": request, "client": client[0] if client else "",
            "method": scope.get("method", "WebSocket"),
        }  # fmt: skip
        if call is None:
            told |= {"path": scope["path"], "claimed": claimed(_loose(scope))}
        else:
            told |= {"path": call.route.path, "key": call.principal.id, **call.params, **more}
            if fault is None:
                told |= {"query": _given(call.query), "body": _given(call.body)}
        self.audit.tell(event, **told)

    async def run(self, work: Callable[[Store], T]) -> T:
        """Do something with the store in its pool of threads, off the loop."""
        return await self.store._run(lambda: work(self.store._store))

    # ---- what is refused before a body is read -------------------------------------------

    def _route(self, scope: dict[str, Any]) -> tuple[Route, dict[str, str]]:
        raw = _raw_path(scope)
        found = self._found if len(raw) <= KNOWN_BYTES else self._find
        routes, given = found(raw)
        if not routes:
            raise Fault("not_found", "there is no such path; /openapi.json lists those there are")
        method = scope.get("method", "GET")  # a WebSocket has none
        route = routes.get("GET" if method == "HEAD" else method)
        if method == "HEAD" and route is not None and route.streams:
            route = None  # there is no end of it to be left out
        if route is None:
            head = ["HEAD"] if "GET" in routes and not routes["GET"].streams else []
            allowed = ", ".join(sorted([*routes, *head]))
            raise Fault(
                "method_not_allowed", f"this path takes {allowed}", headers=(("allow", allowed),)
            )
        return route, params(route, given)

    def _find(self, raw: bytes) -> tuple[dict[str, Route], tuple[str, ...]]:
        segments = _segments(raw)
        return self.table.find(segments) if segments is not None else ({}, ())

    def _check_place(self, headers: Mapping[str, str], *, page: bool = False) -> None:
        """A web page must not reach a server of this machine under a name of its own."""
        check_place(headers, self.settings, page=page)

    def _principal(
        self, headers: Mapping[str, str], route: Route | None = None, ticket: str | None = None
    ) -> Principal:
        """Who asks; of what anybody may ask, it is not asked."""
        probe = self.settings.probe_auth and route is not None and route.path in _PROBES
        if route is not None and route.scope is None and not probe:
            return self.gate.anybody
        who = self.gate.who(headers, ticket)
        return who.narrowed(("read",)) if self.settings.read_only else who

    def _check_scope(self, call: Call, either: tuple[Scope, ...]) -> None:
        scope = call.route.scope
        if scope is not None and not any(map(call.principal.may, either or (scope,))):
            if self.settings.read_only and scope != "read":
                raise Fault("read_only", "this server changes nothing: it is read-only")
            raise Fault("forbidden", f"the key lacks the scope {scope!r}")

    def _check(self, call: Call, where: tuple[str, ...]) -> None:
        """Refuse what the key may not do, with the names that stand in these places."""
        route = call.route
        if route.scope is None:
            return
        for place in route.names:
            if place.where in where:
                for name in _names(call, place):
                    if not call.principal.may(place.scope or route.scope, name):
                        raise Fault("forbidden", "the key is not for topics of this name")
                    if place.where == "path":
                        topic_name(name)  # InvalidName, also where nothing would be made of it

    def _check_body(self, call: Call) -> None:
        route, headers = call.route, call.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Fault("unsupported_media_type", "send the body as it is, not compressed")
        event = CLOUD_EVENT in route.media and "ce-specversion" in headers  # of any content type
        if "*/*" not in route.media and call.media not in route.media and not event:
            told = ", ".join(route.media)
            raise Fault("unsupported_media_type", f"the Content-Type must be one of {told}")
        length = headers.get("content-length", "")
        limit: int = getattr(self.settings, route.limit)
        if length.isdigit() and int(length) > limit:
            raise Fault("payload_too_large", f"a body of more than {limit} bytes ({route.limit})")


_LATER: Final = (("retry-after", "1"),)
# What a page may send to anybody without being asked first.
_SIMPLE: Final = {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"}
_PROBES: Final = {"/healthz", "/readyz"}
_REFUSED: Final = {"unauthorized", "forbidden", "misdirected", *faults.DAMAGE}
_TOLD: Final = {"delete", "admin"}  # scopes whose calls change what is there for others


def _changes(route: Route) -> bool:
    """Whether it changes or takes away what is there for others."""
    return route.method == "DELETE" or (route.method != "GET" and route.scope in _TOLD)


def _given(value: Any) -> str:
    """What was asked for, as far as something was."""
    if not isinstance(value, msgspec.Struct):
        return ""
    found = {k: v for k, v in msgspec.structs.asdict(value).items() if v is not None}
    return msgspec.json.encode(found)[:1_024].decode(errors="replace") if found else ""


def _names(call: Call, place: Place) -> list[str]:
    if place.where == "path":
        return [call.params[place.field]]
    if place.where == "header":
        found = call.headers.get(place.field)
        return [found] if found else []
    return list(names_in(call.query if place.where == "query" else call.body, place.field))


def _headers(scope: dict[str, Any]) -> dict[str, str]:
    """Header names are in lower case; of those that may come once, a second one is refused."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key in found:
            if key in _ONCE:
                raise Fault("invalid_request", f"the header {key} comes twice")
            text = f"{found[key]}, {text}"
        found[key] = text
    return found


def _loose(scope: dict[str, Any]) -> dict[str, str]:
    """The headers of a call that was refused, perhaps for its headers."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


_ONCE: Final = {
    "host", "origin", "authorization", "content-type", "content-length", "content-encoding",
    "idempotency-key", "last-event-id", "producer-id", "producer-epoch", "producer-seq",
    "stream-seq", "stream-closed", "stream-ttl", "stream-expires-at",
}  # fmt: skip


def _segments(raw: bytes) -> list[str] | None:
    """The segments of a path, each decoded once; None if one of them is no text."""
    try:
        if b"%" not in raw:
            found = raw.decode().split("/")
        else:
            found = [unquote_to_bytes(part).decode() for part in raw.split(b"/")]
    except UnicodeDecodeError:
        return None
    return found[1:] if found and not found[0] else None


def _raw_path(scope: dict[str, Any]) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0]


def _query(route: Route, text: bytes) -> Any:
    """The query as the table says it is; a name that comes twice is refused."""
    try:
        pairs = _pairs(text.decode("ascii"))
        found: dict[str, str] = dict(pairs)
    except (ValueError, UnicodeError):
        raise Fault(
            "invalid_request",
            "the query is not made of name=value, in UTF-8 and percent-encoded",
        ) from None  # fmt: skip
    if len(found) != len(pairs):
        raise Fault("invalid_request", "the query has a name twice")
    if found.pop("performance", "false") not in ("true", "false"):
        raise Fault("invalid_request", "query: performance is true or false")
    try:
        made = msgspec.convert(found, route.query, strict=False)
    except msgspec.ValidationError as problem:
        raise Fault("invalid_request", f"query: {hinted(problem, route.query)}") from None
    for name in found:
        if getattr(made, name, "") is None:  # msgspec takes the word for it
            raise Fault("invalid_request", f"query: {name}=null: leave it out")
    return made


def _pairs(text: str) -> list[Any]:
    """Names and values of a query; a ValueError if it is made of something else."""
    if not text:
        return []
    if "%" in text or "+" in text or text.count("&") >= QUERY_FIELDS:
        return parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict",
            max_num_fields=QUERY_FIELDS,
        )  # fmt: skip
    return [part.split("=", 1) for part in text.split("&")]  # without "=" it makes no pair


def _perform(reply: Reply, times: dict[str, float]) -> None:
    """What took how long, in the body as well; in milliseconds, as Server-Timing has it."""
    if reply.stream is not None or reply.serve is not None or reply.media != JSON:
        return
    body = reply.body
    text = bytes(body) if isinstance(body, bytes) else msgspec.json.encode(body)
    if text.endswith(b"}"):
        comma = b"" if text == b"{}" else b","
        told = msgspec.json.encode({name: round(took, 3) for name, took in times.items()})
        reply.body = text[:-1] + comma + b'"performance":' + told + b"}"


def _refusal(fault: Fault, request: str, more: tuple[tuple[str, str], ...] = ()) -> Reply:
    return Reply(faults.encode(fault, request), fault.status, headers=fault.headers + more)


def _head(reply: Reply, request: str, times: dict[str, float]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer, but for its length."""
    timing = ", ".join([f"{name};dur={took:.3f}" for name, took in times.items()])
    headers = [
        (b"content-type", reply.media.encode()),
        (b"esker-request", request.encode()),
        (b"server-timing", timing.encode()),
        *_ALWAYS,
        *[(name.encode(), value.encode("latin-1")) for name, value in reply.headers],
    ]
    if "cache-control" not in dict(reply.headers):
        headers.append((b"cache-control", b"no-store"))
    return headers


async def _answer(
    reply: Reply, request: str, times: dict[str, float], receive: Receive, send: Send, *,
    head: bool,
) -> None:  # fmt: skip
    size, streams = reply.sized(), reply.stream is not None or reply.serve is not None
    body = reply.body
    headers = _head(reply, request, times)
    if not streams and reply.status != 304:  # whose length would be that of the page
        headers.append((b"content-length", b"%d" % size))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if reply.serve is not None and not head:
        await reply.serve(receive, send)
        return
    if reply.stream is None or head:
        await send({"type": "http.response.body", "body": b"" if head or streams else body})
        return
    await _pour(reply.stream, receive, send)
    await send({"type": "http.response.body", "body": b""})


async def _pour(stream: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    """Send what comes, while there is somebody who takes it; then the stream ends, where it is."""

    async def pouring() -> None:
        try:
            async for piece in stream:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    both = (asyncio.ensure_future(pouring()), asyncio.ensure_future(gone()))
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if both[0].done():
            both[0].result()
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)
