"""Servers that are made to be killed; see test_kills.py.

    python -m tests.server.nursery ROOT PORT ERRORS       reads lines: start

For every line it forks a process, which has everything imported already, and prints its pid. That
one serves the store on the port and prints "ready" when it takes calls, or what it died of. It
counts its requests from `LIVES` times its own number on, so that every answer tells which server
gave it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

LIVES = 1 << 32


def warm_up() -> None:
    """Import what the first calls would: pyarrow its pandas, uvicorn its protocols."""
    import pyarrow as pa
    import uvicorn.lifespan.off
    import uvicorn.protocols.websockets.websockets_sansio_impl  # noqa: F401

    pa.array([b"pandas"])
    "localhost".encode("idna")


def main() -> None:
    import uvloop

    from esker.server.run import Server
    from esker.server.settings import Settings

    warm_up()
    root, port, errors = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    for life, _ in enumerate(sys.stdin, 1):
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            server = Server(root, Settings(port=port, streams=1_000))
            server.app.requests = life * LIVES
            uvloop.run(server.run(lambda _: print("ready", flush=True)))
        except BaseException as problem:
            traceback.print_exc()
            print(repr(problem), flush=True)  # who waits for "ready" would wait for ever
        os._exit(1)
