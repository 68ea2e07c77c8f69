"""Start a server, and stop it.

The socket is open before the store is: who asks while it recovers is told so (503, `not_ready`)
instead of being refused a connection. `stop()` ends it in order: no new calls, streams end, calls
that are under way have `grace` seconds, then the store is closed; nothing that was acknowledged is
lost.

`serving` runs one in a thread of this process, on a port of its own: for tests, and for programs
that are a server among other things. `main` is what `esker serve` does: SIGTERM and SIGINT stop it
in order, a second one at once; SIGHUP reads keys and certificates again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, Final

import uvicorn

from esker.aio.store import aopen
from esker.errors import EskerError
from esker.server.app import App
from esker.server.http.connection import Wire
from esker.server.http.exposure import check_settings
from esker.server.http.listen import Listener
from esker.server.http.upgrade import Upgraded
from esker.server.settings import Settings

LOG: Final = logging.getLogger("esker.server")
FILES: Final = 1 << 16  # that may be open, if the system lets us
FILES_OF_STORE: Final = 512  # at the least, beside connections


class Server:
    """One server: `await run()`, and `stop()` from the same loop."""

    def __init__(
        self, path: str | PathLike[str], settings: Settings | None = None, **options: Any
    ) -> None:
        self.settings = settings or Settings()
        check_settings(self.settings)
        self.app = App(None, self.settings)
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._path = path
        self._options = {**self.settings.of_store(), "progress": self.app.recovering, **options}
        self._reloading: asyncio.Future[None] | None = None  # kept, or it might be collected
        self._uvicorn = Listener(self._config(), self.settings)

    def _config(self) -> uvicorn.Config:
        settings = self.settings
        return uvicorn.Config(
            self.app,
            http=Wire,
            ws=Upgraded,
            ws_max_size=settings.body_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=settings.heartbeat_seconds,
            ws_ping_timeout=settings.stall_seconds,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )

    async def run(self, started: Callable[[Server], None] | None = None) -> None:
        """Serve until `stop`. `started` is called when calls are taken."""
        self.loop = asyncio.get_running_loop()
        listening = asyncio.ensure_future(self._uvicorn.serve())
        watching = asyncio.ensure_future(self.app.gate.watch())
        try:
            while not self._uvicorn.started:
                await asyncio.sleep(0.001)
                if listening.done():
                    await listening
                    raise EskerError(f"cannot listen on {self.settings.host}:{self.settings.port}")
            self.url = self._address()
            async with aopen(self._path, **self._options) as store:
                self.app.open(store)
                if started is not None:
                    started(self)
                try:
                    await asyncio.shield(listening)
                finally:
                    self.stop()
                    await listening
                    await self.app.hub.close()
                    self.app.open(None)
        finally:
            self.stop()
            await listening
            watching.cancel()
            await asyncio.wait([watching])
            await self.app.audit.close()

    def _address(self) -> str:
        if self.settings.unix:
            return f"http+unix://{self.settings.unix}"
        scheme = "https" if self.settings.tls_cert else "http"
        host, port = self._uvicorn.address()
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def renew(self) -> None:
        """Take new certificates for TLS; from the server's own loop."""
        await self._uvicorn.renew()

    def stop(self) -> None:
        """End it in order; from the server's own loop."""
        self.app.stopping.set()
        self._uvicorn.should_exit = True

    def signalled(self) -> None:
        """End it in order; if it was told before, at once."""
        if self.app.stopping.is_set():
            LOG.warning("told again to stop: calls that are under way are cut off")
            self._uvicorn.force_exit = True
        self.stop()

    def reload(self) -> None:
        """Read keys and certificates again; from the server's own loop."""
        self._reloading = asyncio.ensure_future(self._reload())

    async def _reload(self) -> None:
        await self.app.gate.reload()
        try:
            await self._uvicorn.renew()
        except EskerError as problem:
            LOG.warning("the certificates stay as they were: %s", problem)


def make_room(settings: Settings) -> None:
    """Have the store's files and the keys not compete for room with connections of strangers.

    Who has no key can open as many as there may be, and many systems begin with 1,024 files.
    """
    wanted = max(FILES, 2 * settings.connections + FILES_OF_STORE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if there > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
    if there < settings.connections + FILES_OF_STORE:
        LOG.warning(
            "%d connections (the setting `connections`) can take all %d files that this process "
            "may have open: raise its hard limit, as by `ulimit -Hn`", settings.connections, there,
        )  # fmt: skip


def main(path: str | PathLike[str], settings: Settings, started: Callable[[Server], None]) -> None:
    """Serve until a signal says stop."""
    import uvloop

    make_room(settings)

    async def body() -> None:
        server = Server(path, settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.signalled)
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        await server.run(started)

    uvloop.run(body())


@contextlib.contextmanager
def serving(
    path: str | PathLike[str], settings: Settings | None = None, **options: Any
) -> Iterator[Server]:
    """A server in a thread of this process, which is stopped at the end of the block."""
    import uvloop

    ready = threading.Event()
    problems: list[BaseException] = []
    servers: list[Server] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        server = Server(path, settings, **options)
        servers.append(server)
        loops.append(asyncio.get_running_loop())
        await server.run(lambda _: ready.set())

    def body() -> None:
        try:
            uvloop.run(main())
        except BaseException as problem:
            problems.append(problem)
        finally:
            ready.set()

    thread = threading.Thread(target=body, name="esker-server")
    thread.start()
    ready.wait()
    try:
        if problems:
            raise problems[0]
        yield servers[0]
    finally:
        if servers and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loops[0].call_soon_threadsafe(servers[0].stop)
        thread.join()
    if problems:
        raise problems[0]
