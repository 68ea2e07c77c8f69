"""A wire that can be cut: it passes on what it is given, or loses it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Relay:
    """Between a client and a server. Behind `spare` of them, `lose` answers are not passed on."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        where = urlsplit(url)
        self._tls = tls
        self._to = (where.hostname, where.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}" if tls is None else f"https://localhost:{port}"
        self.spare = self.lose = 0
        self.requests: list[bytes] = []
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.connections += 1
                if self._tls is not None:
                    try:
                        near = self._tls.wrap_socket(near, server_side=True)
                    except OSError:
                        near.close()
                        continue
                far = socket.create_connection(self._to)  # type: ignore[arg-type]
                self._open += [near, far]
                asked = threading.Event()
                self._start(self._pass, near, far, asked, True)
                self._start(self._pass, far, near, asked, False)

    def _pass(
        self, source: socket.socket, sink: socket.socket, asked: threading.Event, asking: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if asking:
                    self.requests.append(data)
                    asked.set()
                elif asked.is_set():  # the answer begins
                    asked.clear()
                    if self.spare > 0:
                        self.spare -= 1
                    elif self.lose > 0:
                        self.lose -= 1
                        break
                sink.sendall(data)
        self._shut(source, sink)

    def _shut(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections that there are."""
        self._shut(*self._open)

    def close(self) -> None:
        self._shut(self._listening, *self._open)
        for each in (self._listening, *self._open):
            each.close()
        for thread in self._threads:
            thread.join(10)


@contextlib.contextmanager
def relaying(url: str, tls: ssl.SSLContext | None = None) -> Iterator[Relay]:
    relay = Relay(url, tls)
    try:
        yield relay
    finally:
        relay.close()


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that always says the same; its URL, and what it was asked."""
    asked: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                with near:
                    asked.append(near.recv(1 << 16))
                    near.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
