"""Servers that are made to be killed; see test_kills.py.

    python -m tests.server.nursery ROOT PORT ERRORS       reads lines: start

For every line it forks a process, which has everything imported already, and prints its pid. That
one serves the store on the port and prints "ready" when it takes calls.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback


def main() -> None:
    import uvloop

    from esker.server.run import Server
    from esker.server.settings import Settings

    root, port, errors = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    for _ in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            server = Server(root, Settings(port=port, streams=1_000))
            uvloop.run(server.run(lambda _: print("ready", flush=True)))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
