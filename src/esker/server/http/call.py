"""What a handler is given, and what it gives back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw

from esker.errors import nearest
from esker.server.bodies.codec import JSON
from esker.server.bodies.nesting import check_depth
from esker.server.http.faults import Fault
from esker.server.http.preferences import is_known, preferred

if TYPE_CHECKING:
    from esker.server.access.keys import Principal
    from esker.server.app import App
    from esker.server.table import Route

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")

AT_ONCE: Final = 256 << 10  # bytes of a body that the loop decodes itself


class Reply:
    """An answer: a status, headers, and a body that is there or that comes in pieces.

    A `stream` is closed where it is when the client goes away; it need not look after that itself.
    With `serve` the body is somebody else's business: it is called when the head has been sent, and
    returns when the client is gone or the body is complete.
    """

    __slots__ = ("body", "headers", "media", "serve", "status", "stream")

    def __init__(
        self, body: Any = None, status: int = 200, *, media: str = JSON,
        headers: tuple[tuple[str, str], ...] = (), stream: AsyncIterator[bytes] | None = None,
        serve: Callable[[Receive, Send], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        self.body = body  # bytes, or a tuple of pieces, as they are; anything else becomes JSON
        self.status = status
        self.media = media
        self.headers = headers
        self.stream = stream
        self.serve = serve

    def sized(self) -> int:
        """How long the body is, which is encoded by then; 0 of one that comes in pieces."""
        body = self.body
        if isinstance(body, tuple):
            return sum(map(len, body))
        if not isinstance(body, bytes):
            if self.stream is not None or self.serve is not None:
                return 0
            body = self.body = b"" if body is None else msgspec.json.encode(body)
        return len(body)


class Call:
    """One request, when it is known who asks and that they may."""

    __slots__ = (
        "_receive", "app", "began", "body", "head", "headers", "params", "principal", "query",
        "request", "route", "times",
    )  # fmt: skip

    def __init__(
        self, app: App, route: Route, params: dict[str, str], headers: Mapping[str, str],
        principal: Principal, request: str, receive: Receive,
    ) -> None:  # fmt: skip
        self.app = app
        self.route = route
        self.params = params
        self.headers = headers
        self.principal = principal
        self.request = request
        self.query: Any = None
        self.body: Any = None
        self.head = False  # only the head of the answer is wanted
        self.times: dict[str, float] = {}  # milliseconds, by what took them
        self.began = app.clock.monotonic()
        self._receive = receive

    @property
    def media(self) -> str:
        """The content type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def accepts(self, *offered: str) -> str:
        """That of the offered types which the client would rather have."""
        found = preferred(self.headers.get("accept", ""), offered)
        if found is not None:
            return found
        raise Fault("not_acceptable", f"this can be had as {', '.join(offered)}")

    def has(self, tag: str) -> bool:
        """Whether the client says that it has what is under this ETag."""
        return is_known(self.headers.get("if-none-match"), tag)

    async def read(self) -> bytes:
        """The whole body; of JSON it is known how deeply it is nested."""
        data = await self.whole()
        if "json" in self.media:
            await self.apart(data, lambda: check_depth(data, self.app.settings.json_depth))
        return data

    async def whole(self) -> bytes:
        """The whole body; counted while it comes, so that a length that lies does no harm."""
        pieces = [piece async for piece in self.pieces()]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def apart(self, data: bytes | Raw, decode: Callable[[], T]) -> T:
        """Decode a body; a long one in the pool of threads, where others get their turn between."""
        if len(data) <= AT_ONCE:
            return decode()
        return await self.app.run(lambda _: decode())

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, for those who need not have all of it at once."""
        limit: int = getattr(self.app.settings, self.route.limit)
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise Fault(
                    "payload_too_large", f"a body of more than {limit} bytes ({self.route.limit})"
                )
            yield piece
            if not message.get("more_body", False):
                return

    def check_wait(self, seconds: float) -> None:
        """Refuse a call that would wait longer than any may."""
        most = self.app.settings.wait_seconds
        if seconds > most:
            raise Fault("invalid_request", f"wait={seconds}: at most {most}")

    async def gone(self) -> None:
        """Returns when the client has gone away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Disconnected(Exception):
    """The client went away before its request was complete; there is nobody to answer."""


def decoded(data: bytes, kind: Any) -> Any:
    """A body of JSON as what the table says it is."""
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.MsgspecError as problem:
        raise Fault("invalid_request", f"body: {hinted(problem, kind)}") from None
    except RecursionError:
        raise Fault("invalid_request", "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise Fault("invalid_request", "the body is not UTF-8") from None


_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]{1,64})`")
_CHOICE: Final = re.compile(r"Invalid enum value '([^']{0,64})' - at `\$\.([a-z_]+)`")


def hinted(problem: Exception, kind: type[msgspec.Struct]) -> str:
    """What is wrong with a body or a query; of what is misspelt the nearest, or what there is."""
    told = str(problem)
    choice = _CHOICE.fullmatch(told)
    if choice is not None:
        fields = msgspec.structs.fields(kind)
        words = _words(next((each.type for each in fields if each.encode_name == choice[2]), None))
        return f"{told}; {nearest(choice[1], words)}" if words else told
    unknown = _UNKNOWN.fullmatch(told)  # in what is not nested: there it is another kind's
    if unknown is None:
        return told
    known = sorted(field.encode_name for field in msgspec.structs.fields(kind))
    return f"{told}; {nearest(unknown[1], known)}" if known else told


def _words(kind: Any) -> list[str]:
    """What a field may be that takes certain words."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [word for part in get_args(kind) for word in _words(part)]
