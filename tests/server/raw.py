"""Bytes to a server as they are, and whatever comes back."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from esker.server.run import Server
from tests.server.conftest import Client

HOST = b"Host: localhost\r\n"
# What an error must never show: a path, a module, a trace, an address of an object.
SECRETS = re.compile(
    rb"/tmp|/home|/usr|/proc|/dev/shm|\.py\b|Traceback|site-packages|esker\.(server|engine|storage)"
    rb"|uvicorn|httptools|msgspec|pyarrow|object at 0x|\bline \d+, in\b|Error\("
)


class Heard(NamedTuple):
    """An answer on a raw socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(msgspec.json.decode(self.body)["error"]["code"])


def connected(server: Server, timeout: float = 10) -> socket.socket:
    where = urlsplit(server.url)
    made = socket.create_connection((where.hostname, where.port or 0), timeout=timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def answers(data: bytes, method: bytes = b"GET") -> list[Heard]:
    """Everything that stands in a stream of answers; a part of one is an error of the server."""
    found = []
    while data:
        head, mark, data = data.partition(b"\r\n\r\n")
        assert mark, f"an answer without an end: {head[:200]!r}"
        first, *lines = head.split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1", first
        headers = {}
        for line in lines:
            name, colon, value = line.decode("latin-1").partition(": ")
            assert colon, line
            assert name not in headers, f"{name} comes twice"
            headers[name] = value
        if status == b"100":
            continue
        if headers.get("transfer-encoding") == "chunked":
            body, data = _unchunked(data)
        else:
            size = 0 if method == b"HEAD" else int(headers["content-length"])
            body, data = data[:size], data[size:]
            assert len(body) == size, "an answer that is cut off"
        found.append(Heard(int(status), headers, body))
    return found


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return body, data[2:]
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]


def listen(sock: socket.socket, most: float = 10.0, quiet: float | None = None) -> bytes:
    """What comes until the other side closes, or until nothing came for `quiet` seconds."""
    found = b""
    deadline = time.monotonic() + most
    while True:
        left = deadline - time.monotonic()
        assert left > 0, f"no end within {most} s: {found[:200]!r}"
        sock.settimeout(left if quiet is None else min(left, quiet))
        try:
            piece = sock.recv(1 << 16)
        except TimeoutError:
            if quiet is None:
                continue
            return found
        except (ConnectionResetError, ssl.SSLError):
            return found
        if not piece:
            return found
        found += piece


def told(server: Server, data: bytes, *, wait: float = 0.03, answered: bool = False) -> list[Heard]:
    """Send it, wait a little for an answer, say that no more comes, and hear the end.

    If it is sure to be `answered`, the beginning of the answer is waited for as long as it takes.
    """
    with connected(server) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        found = b""
        if answered:
            sock.settimeout(10)
            found = sock.recv(1 << 16)
        found += listen(sock, quiet=wait) if wait else b""
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        found += listen(sock)
    return answers(found, data[:4].strip())


def judged(answer: Heard) -> str:
    """What is wrong with an answer that is an error, if something is."""
    if SECRETS.search(answer.body):
        return f"tells too much: {answer.body!r}"
    if answer.headers.get("content-type") != "application/json":
        return f"is {answer.headers.get('content-type')}"
    error: Any = msgspec.json.decode(answer.body).get("error", {})
    if not (error.get("code") and error.get("message") and error.get("request")):
        return f"has not the shape of an error: {answer.body!r}"
    return ""


def alive(client: Client) -> None:
    answer = client.get("/healthz")
    assert answer.status == 200, answer.body
