"""Where a server listens: an address or a socket in the file system, in the clear or by TLS.

uvicorn's server without its signals, its way to open sockets and its way to stop. The sockets are
opened here, before anything else, so that an address that is taken is an error and not an exit.

TLS is 1.2 at least. With `tls_ca` a client must show a certificate of that authority. New
certificates are taken without a pause (`renew`): the socket stays, and listens with a new context;
connections that are open go on with what they have.

A unix socket is for its owner alone (0600). One that a dead server left behind is replaced; one
that somebody answers on is not.

Stopping, in order: nobody new comes in, idle connections are closed, calls under way have `grace`
seconds. Then what is left is cancelled and told so, and cut off a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from typing import Any, Final

import uvicorn

from esker.errors import InvalidOption
from esker.server.http.connection import Wire
from esker.server.http.upgrade import Upgraded
from esker.server.settings import Settings

TICK: Final = 0.1  # seconds; uvicorn's main loop turns this often
SLOW: Final = 5  # ticks from one look at all connections to the next
LAST_WORDS: Final = 0.5  # seconds for a cancelled call to say so


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What TLS needs; None without `tls_cert`."""
    if not settings.tls_cert:
        if settings.tls_key or settings.tls_ca:
            raise InvalidOption("tls_key and tls_ca go with tls_cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for name in ("tls_cert", "tls_key", "tls_ca"):
        path = getattr(settings, name)
        if path and not os.access(path, os.R_OK):
            raise InvalidOption(f"{name}={path!r}: there is no such file, or it cannot be read")
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ssl.SSLError) as problem:
        raise InvalidOption(
            f"tls_cert={settings.tls_cert!r} and tls_key={settings.tls_key!r} are no certificate "
            f"and its key, in PEM: {problem}"
        ) from None
    if settings.tls_ca:
        try:
            context.load_verify_locations(settings.tls_ca)
        except (OSError, ssl.SSLError) as problem:
            told = f"tls_ca={settings.tls_ca!r} has no certificates in PEM: {problem}"
            raise InvalidOption(told) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class CannotListen(OSError):
    """The place is taken, or there is no such place."""


def bound(settings: Settings) -> list[socket.socket]:
    """Sockets that are bound to where the settings say; a name may have several addresses."""
    try:
        return [_unix(settings.unix)] if settings.unix else _bound(settings)
    except OSError as problem:
        where, other = settings.unix or f"{settings.host}:{settings.port}", "another place"
        if not settings.unix:
            other = "another one with --port, or 0 for any that is free"
        what = f"cannot listen on {where}: {problem.strerror or problem}; choose {other}"
        raise CannotListen(problem.errno, what) from problem


def _bound(settings: Settings) -> list[socket.socket]:
    found = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except OSError:
        for each in made:
            each.close()
        raise
    return made


def _unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise InvalidOption(f"unix={path!r}: there is a file of this name")
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                    asking.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)  # of a server that is dead
            else:
                raise InvalidOption(f"unix={path!r}: another server listens there")
        os.fchmod(made.fileno(), 0o600)
        made.bind(path)
    except BaseException:
        made.close()
        raise
    return made


class Listener(uvicorn.Server):
    """uvicorn's server on sockets of ours."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self.settings = settings
        self.servers: list[asyncio.base_events.Server] = []
        self._sockets: list[socket.socket] = []
        self._inode: tuple[int, int] | None = None
        shortest = min(settings.header_seconds, settings.body_seconds, settings.idle_seconds)
        self._every = SLOW if shortest >= SLOW * TICK * 4 else 1
        self._ticks = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        context = tls_context(self.settings)
        self._sockets = bound(self.settings)
        if self.settings.unix:
            found = os.lstat(self.settings.unix)
            self._inode = (found.st_dev, found.st_ino)
        self.servers = await self._listening(context)
        self.started = True

    async def _listening(self, context: ssl.SSLContext | None) -> list[Any]:
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {}
        if context is not None:
            more = {"ssl": context, "ssl_handshake_timeout": self.settings.header_seconds}
        return [
            await loop.create_server(self._wire, sock=each.dup(), backlog=1_024, **more)
            if each.family != socket.AF_UNIX
            else await loop.create_unix_server(
                self._wire, sock=each.dup(), backlog=1_024, **more
            )
            for each in self._sockets
        ]  # fmt: skip

    def _wire(self) -> Wire:
        return Wire(self.config, self.server_state, {})

    async def renew(self) -> None:
        """Take the certificates as they are now; if they are no good, keep those of before."""
        context = tls_context(self.settings)
        if context is not None and self.started:
            before, self.servers = self.servers, await self._listening(context)
            for server in before:
                server.close()

    def address(self) -> tuple[str, int]:
        """Host and port of the first socket."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    async def on_tick(self, counter: int) -> bool:
        self._look()
        return await super().on_tick(counter)

    def _look(self) -> None:
        self._ticks += 1
        if self._ticks % self._every:
            return
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Wire):
                connection.look(now, self._every * TICK)
            elif isinstance(connection, Upgraded):
                connection.look(now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        self._unbind()
        for connection in list(state.connections):
            connection.shutdown()
        await self._emptied(self.settings.grace)
        for task in list(state.tasks):
            task.cancel()
        await self._emptied(LAST_WORDS)
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # in which the loop tells them

    async def _emptied(self, seconds: float) -> None:
        """Wait until everybody is gone, the time is up, or we are told again to stop."""
        state, now = self.server_state, asyncio.get_running_loop().time
        deadline = now() + seconds
        while (state.connections or state.tasks) and not self.force_exit and now() < deadline:
            await asyncio.sleep(TICK)
            self._look()

    def _unbind(self) -> None:
        for each in self._sockets:
            each.close()
        if self._inode is not None:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(self.settings.unix)
                if (found.st_dev, found.st_ino) == self._inode:  # or another took its place
                    os.unlink(self.settings.unix)
