"""Connections: taken, given back, found dead, tried again.

A connection is used by one thread at a time. Those that are idle are kept for a while, shorter than
a server keeps them, and looked at before they are used again: one that the other side has closed is
readable. What still goes wrong is judged by how far it came:

    the request was not sent whole     the server has not done it: sent again
    sent whole, and not answered       perhaps it has: sent again if doing it twice is once
    answered in part                   the same

A redirect is not followed: a key goes where the URL says and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from os import getpid
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from esker.client import faults
from esker.client.address import KEY_VARIABLE, Address, ClientOptions
from esker.clock import SYSTEM_CLOCK
from esker.errors import (
    EskerError,
    InvalidOption,
    StoreClosed,
    Throttled,
    Unauthorized,
    Unavailable,
)
from esker.version import VERSION

IDLE_SECONDS: Final = 10.0  # a server keeps an idle connection for 15 s
IDLE_MAX: Final = 16
TOGETHER_BYTES: Final = 64 << 10  # of a body that is sent with its headers
CONNECT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.05  # before the first retry; each one waits twice as long
PAUSE_SECONDS_MAX: Final = 2.0
JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
BYTES: Final = "application/octet-stream"
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class Answer(NamedTuple):
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class _Connection(http.client.HTTPConnection):
    """A connection that knows how much of its request went out."""

    def __init__(self, address: Address, context: ssl.SSLContext | None) -> None:
        super().__init__(address.host, address.port, timeout=CONNECT_SECONDS)
        self._address = address
        self._context = context
        self.whole = False  # the request went out whole
        self._together: list[bytes] | None = None
        self.idle_since = 0.0

    def connect(self) -> None:
        if self._address.unix:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(CONNECT_SECONDS)
            self.sock.connect(self._address.unix)
            return
        super().connect()
        # Where nobody listens on this machine, the kernel may give us that very port to call from.
        if self.sock.getsockname() == self.sock.getpeername():
            self.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self._address.host)

    def send(self, data: Any) -> None:
        if self._together is None:
            super().send(data)
        else:
            self._together.append(data)

    def ask(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a request; a small one in one piece, so that the other side wakes up once."""
        if body is not None and len(body) <= TOGETHER_BYTES:
            self._together = []
        try:
            self.request(method, target, body, headers)
            given = self._together
        finally:
            self._together = None
        if given is not None:
            super().send(b"".join(given))

    def is_usable(self, now: float) -> bool:
        """Whether an idle connection is still there: the other side has said nothing since."""
        if self.sock is None or now - self.idle_since > IDLE_SECONDS:
            return False
        looking = select.poll()
        looking.register(self.sock, select.POLLIN)
        return not looking.poll(0)

    def wake(self) -> None:
        """Whoever waits for an answer on it stops waiting."""
        sock = self.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # it is gone already
                sock.shutdown(socket.SHUT_RDWR)


class Pool:
    """Connections to one server, and calls over them."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self.address = address
        self.options = options
        self.closed = False
        self.answered = False  # ever
        self._context = (options.tls or ssl.create_default_context()) if address.secure else None
        self._headers = {"User-Agent": f"esker/{VERSION}"}
        if options.key:
            self._headers["Authorization"] = f"Bearer {options.key}"
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[_Connection] = []
        self._waiting: set[_Connection] = set()
        self._pid = getpid()
        self._ended = threading.Event()

    # ---- calls ---------------------------------------------------------------------------

    def call(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None, *,
        media: str = JSON, accept: str = JSON, again: bool = False, wait: float = 0.0,
        headers: Mapping[str, str] | None = None, timeout: float | None = None,
    ) -> Answer:  # fmt: skip
        """Ask for something; an answer that is an error is raised.

        `again`: doing it twice is doing it once. `wait`: so many seconds pass before an answer must
        be expected, and whoever closes the pool need not wait for it.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            if body is not None and media == JSON:
                body = msgspec.json.encode(body)
            target = f"{path}?{urlencode(given)}" if given else path
        except (TypeError, ValueError) as refused:  # an object, text that is not Unicode
            raise InvalidOption(f"what is given cannot be sent: {refused}") from None
        sent = {**self._headers, "Accept": accept, **(headers or {})}
        if body is not None:
            sent["Content-Type"] = media
        limit = (self.options.timeout if timeout is None else timeout) + wait
        left, pause, renewed = self.options.retries, PAUSE_SECONDS, False
        while True:
            fresh, connection = self._take(renewed)
            later = 0.0
            try:
                answer = self._exchange(connection, method, target, body, sent, limit, bool(wait))
                if answer.status < 300 and "esker-request" in answer.headers:
                    return answer
                problem: Exception = self._told(answer)
                harmless = isinstance(problem, (Throttled, Unavailable))
                if isinstance(problem, Throttled):
                    later = min(problem.retry_after, PAUSE_SECONDS_MAX)
            except (OSError, http.client.HTTPException) as failed:
                connection.close()
                self._require_open()
                harmless = again or not connection.whole
                if isinstance(failed, TimeoutError) and connection.whole:
                    harmless = False  # it was waited for long enough
                if harmless and not fresh and not renewed:
                    renewed = True  # that one was dead since a while: there are others
                    continue
                problem = self._lost(failed, connection.whole, limit)
                problem.__cause__ = failed
            finally:
                with self._lock:
                    self._waiting.discard(connection)
            if not harmless or not left:
                raise problem
            left -= 1
            self._rest(max(pause, later))
            pause = min(pause * 2, PAUSE_SECONDS_MAX)

    def _told(self, answer: Answer) -> EskerError:
        url = self.address.url
        problem = faults.exception(answer.status, answer.headers, answer.body, url)
        if isinstance(problem, Unauthorized) and not self.options.key:
            return Unauthorized(f"{url}: send a key: give key=..., or set {KEY_VARIABLE}")
        return problem

    def _exchange(
        self, connection: _Connection, method: str, target: str, body: Any,
        headers: Mapping[str, str], limit: float, waiting: bool,
    ) -> Answer:  # fmt: skip
        connection.whole = False
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(limit)
        if waiting:
            with self._lock:
                self._waiting.add(connection)
        try:
            connection.ask(method, target, body, headers)
            connection.whole = True
        except (BrokenPipeError, ConnectionResetError):
            # perhaps it refused while the body was on its way, and its answer is there
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self._answer(connection)
            raise
        return self._answer(connection)

    def _answer(self, connection: _Connection) -> Answer:
        found = connection.getresponse()
        self.answered = True
        body = found.read()
        named = {name.lower(): value for name, value in found.getheaders()}
        if found.will_close or not connection.whole:
            connection.close()
        else:
            self._give_back(connection)
        return Answer(found.status, named, body)

    def _lost(self, problem: BaseException, whole: bool, limit: float) -> EskerError:
        url = self.address.url
        if not whole:
            advice = _advice(problem)
            return Unavailable(f"{url} cannot be reached: {problem}; {advice}", done=False)
        if isinstance(problem, TimeoutError):
            return Unavailable(
                f"{url} did not answer within {limit:g} s; what was asked may have been done",
                done=None,
            )
        told = f"{url} went away before it answered; what was asked may have been done"
        if not self.answered and not self.address.secure and not self.address.unix:
            told += "; if it speaks TLS, its URL begins with https://"
        return Unavailable(told, done=None)

    # ---- connections ---------------------------------------------------------------------

    def _take(self, fresh: bool) -> tuple[bool, _Connection]:
        """A connection, and whether it is a new one; all idle ones are dropped if it is to be."""
        self._require_open()
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            if self._pid != getpid():  # a child: these are the parent's, who goes on using them
                self._pid, fresh = getpid(), True
            if fresh:
                dropped, self._idle = self._idle, []
                for connection in dropped:
                    connection.close()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_usable(now):
                    return False, connection
                connection.close()
        return True, _Connection(self.address, self._context)

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = SYSTEM_CLOCK.monotonic()
        with self._lock:
            if not self.closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _rest(self, seconds: float) -> None:
        if seconds:
            self._ended.wait(seconds)
        self._require_open()

    def _require_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"the store {self.address.url} is closed; open it again to use it")

    def close(self) -> None:
        """Let go of all connections. Who waits for records to come stops waiting."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            waiting = list(self._waiting)
        self._ended.set()
        for connection in idle:
            connection.close()
        for connection in waiting:
            connection.wake()


def part(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def _advice(problem: BaseException) -> str:
    """What to do about a server that cannot be reached."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            "its certificate is not one that this machine trusts: give tls=..., or name the file "
            "of its authority in SSL_CERT_FILE"
        )
    if isinstance(problem, ssl.SSLError) and problem.reason in _NO_TLS:
        return "it does not speak TLS: its URL begins with http://"
    return "is `esker serve` running there?"
