"""Calls of the application itself, without a socket; requests made from the table of routes.

Thousands of cases of who-may-do-what take seconds this way. `Request` is a request for a route that
is as whole as the table can tell: every name in its place, every field that must be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import inspect

from esker.aio.store import aopen
from esker.clock import SYSTEM_CLOCK, Clock
from esker.server.access.keyfile import KeyFile
from esker.server.access.keys import Key, Scope, new_secret
from esker.server.app import App
from esker.server.settings import Settings
from esker.server.table import RAW, Place, Route, Table

HOST = "localhost"


class Got:
    """A status, headers and a body; of a stream what came before we left."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    @property
    def code(self) -> str:
        """The code of an error; nothing if it is none."""
        if self.status < 400:
            return ""
        return str(msgspec.json.decode(self.body)["error"]["code"])


def scope_of(
    method: str, path: str, headers: dict[str, str] | None = None, query: str = ""
) -> dict[str, Any]:
    """An ASGI scope; the path is as it stands on the wire."""
    given = {"host": HOST, **{name.lower(): value for name, value in (headers or {}).items()}}
    return {
        "type": "http", "method": method, "path": path, "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"), "client": ("127.0.0.1", 1),
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()
        ],
    }  # fmt: skip


async def call(
    app: App, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None,
    query: str = "", *, stream: bool = False, seconds: float = 20.0,
) -> Got:  # fmt: skip
    """One call. With `stream`, the client leaves when the answer has begun."""
    given = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        body = msgspec.json.encode(body)
        given = {"content-type": "application/json", **given}
    got, began, sent = Got(), asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(3600)
        sent = True
        return {"type": "http.request", "body": body or b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            got.status = message["status"]
            got.headers = {n.decode(): v.decode("latin-1") for n, v in message["headers"]}
            began.set()
        else:
            body = message.get("body", b"")
            got.body += b"".join(body) if isinstance(body, tuple) else body

    scope = scope_of(method, path, given, query)
    running = asyncio.ensure_future(app(scope, receive, send))
    try:
        if stream:
            starting = asyncio.ensure_future(began.wait())
            await asyncio.wait(
                [running, starting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            starting.cancel()
            if got.status >= 400:
                await running
            return got
        await asyncio.wait_for(asyncio.shield(running), seconds)
        return got
    finally:
        running.cancel()
        await asyncio.wait([running])


class Socket:
    """A WebSocket, from the handshake on. `said` is what the application sends."""

    def __init__(
        self, app: App, path: str, headers: dict[str, str] | None = None, query: str = ""
    ) -> None:
        scope = {**scope_of("GET", path, headers, query), "type": "websocket", "subprotocols": []}
        del scope["method"]
        self.said: list[dict[str, Any]] = []
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.heard.put_nowait({"type": "websocket.connect"})
        self._told = asyncio.Event()
        self.running = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        message = await self.heard.get()
        if message["type"] == "websocket.disconnect":
            self.heard.put_nowait(message)  # it stays so
        return message

    async def _send(self, message: dict[str, Any]) -> None:
        self.said.append(message)
        self._told.set()

    async def opens(self) -> bool:
        """Whether the handshake succeeds."""
        await asyncio.wait_for(self._told.wait(), 20.0)
        return self.said[0]["type"] == "websocket.accept"

    async def leave(self) -> None:
        self.heard.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait([self.running], timeout=20.0)
        assert self.running.done()


@asynccontextmanager
async def application(
    settings: Settings | None = None, path: str | Path = ":memory:", *,
    table: Table | None = None, clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[App]:  # fmt: skip
    """An application over a store of its own."""
    async with aopen(path) as store:
        app = App(store, settings or Settings(), table=table, clock=clock)
        try:
            yield app
        finally:
            await app.audit.close()


class Keys:
    """A file of keys, and the keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: list[Key] = []

    def make(self, scopes: Iterable[Scope], prefixes: Iterable[str] = ("*",), **more: Any) -> str:
        """A key; the file is written by `save`."""
        id, text, hashed = new_secret()
        given = {"created": 1, **more}
        self._keys.append(
            Key(id=id, sha256=hashed, scopes=tuple(scopes), prefixes=tuple(prefixes), **given)
        )
        return text

    def save(self) -> str:
        self.path.write_bytes(msgspec.json.encode(KeyFile(1, self._keys)))
        self.path.chmod(0o600)
        return str(self.path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


# ---- requests, made from the table -----------------------------------------------------------


def places(route: Route) -> list[Place]:
    """Where names stand that are looked at before the handler has the call."""
    return [
        place for place in route.names if place.where != "body" or route.body not in (None, RAW)
    ]


class Request:
    """A request for a route, with a name in each of its places."""

    def __init__(self, route: Route, name: str, wrong: dict[Place, str] | None = None) -> None:
        """`wrong` has other names for some places; in a list they stand behind the right one."""
        self.route = route
        chosen = {place: (wrong or {}).get(place, name) for place in places(route)}
        in_path = {place.field: text for place, text in chosen.items() if place.where == "path"}
        self.path = "/" + "/".join(
            quote(in_path.get(part[1:-1], "x1"), safe="") if part.startswith("{") else part
            for part in route.parts
        )
        query = minimal(inspect.type_info(route.query))
        self.headers: dict[str, str] = {}
        self.body: Any = None
        if route.body is RAW:
            self.body = b'{"records": [{"value": "x"}]}'
            self.headers["content-type"] = route.media[0]
        elif route.body is not None:
            self.body = minimal(inspect.type_info(route.body))
        for place, text in chosen.items():
            if place.where == "query":
                field = place.field.rstrip("[]{}")
                field = field if field in route.query.__struct_fields__ else "topics"
                query[field] = text if text == name else f"{name},{text}"
            elif place.where == "header":
                self.headers[place.field] = text
            elif place.where == "body":
                plant(self.body, place.field, inspect.type_info(route.body), name, text)
        self.query = urlencode(query)

    async def send(self, app: App, headers: dict[str, str], query: str = "") -> Got:
        whole = "&".join(part for part in (self.query, query) if part)
        return await call(
            app, self.route.method, self.path, self.body, {**self.headers, **headers}, whole,
            stream=self.route.streams,
        )  # fmt: skip


def minimal(kind: Any) -> Any:
    """The least that is of a kind, as JSON has it."""
    match kind:
        case inspect.StructType():
            return {f.encode_name: minimal(f.type) for f in kind.fields if f.required}
        case inspect.UnionType():
            return minimal(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
        case inspect.StrType():
            return "a" * max(1, kind.min_length or 0)
        case inspect.IntType():
            return max(1, kind.ge or 0)
        case inspect.FloatType():
            return 1.0
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.ListType() | inspect.VarTupleType():
            return [minimal(kind.item_type)] * (kind.min_length or 0)
        case inspect.DictType():
            return {}
        case inspect.Metadata():
            return minimal(kind.type)
    return {}


def plant(body: Any, field: str, kind: Any, right: str, name: str) -> None:
    """Put a name where a place of a body says; in a list or an object, behind a right one."""
    head, _, rest = field.partition(".")
    key = head.rstrip("[]{}")
    found = next(f for f in kind.fields if f.encode_name == key)
    inner = found.type
    if isinstance(inner, inspect.UnionType):
        inner = next(t for t in inner.types if not isinstance(t, inspect.NoneType))
    names = [right, name] if name != right else [right]
    if head.endswith("[]"):
        if rest:
            items = [minimal(inner.item_type) for _ in names]
            for item, each in zip(items, names, strict=True):
                plant(item, rest, inner.item_type, each, each)
            body[key] = items
        else:
            body[key] = names
    elif head.endswith("{}"):
        body[key] = {each: minimal(inner.value_type) for each in names}
    elif rest:
        body.setdefault(key, minimal(inner))
        plant(body[key], rest, inner, name, name)
    else:
        body[key] = name
