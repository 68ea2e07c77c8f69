"""The life of a child: it hangs on its stdin.

The parent writes nothing there. When it closes the pipe, the child ends its work in order; when the
parent dies, however it dies, the kernel closes the pipe and the same happens. So no child outlives
the demo. A child that does not come to an end within GRACE is ended as it stands, and so is one
whose work fails: it says why on stderr, which the parent shows.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

GRACE: Final = 20.0  # seconds from the end of stdin to the end
FAILED: Final = 3
_LOOK: Final = 0.1  # seconds between looks whether the work is done

Work = Callable[[threading.Event], None]


def live(work: Work, grace: float = GRACE) -> NoReturn:
    """Do this work, which ends when its event is set, until it is done or stdin ends."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def body() -> None:
        try:
            work(stop)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=body, name="work", daemon=True)
    thread.start()
    while thread.is_alive() and not select.select([sys.stdin], [], [], _LOOK)[0]:
        pass
    stop.set()
    thread.join(grace)
    if failed:
        sys.stderr.write("".join(traceback.format_exception(failed[0])))
    elif thread.is_alive():
        sys.stderr.write(f"did not end within {grace:.0f} s\n")
    sys.stderr.flush()
    os._exit(FAILED if failed or thread.is_alive() else 0)


def together(parts: Sequence[Callable[[], None]]) -> None:
    """Run these in threads of their own until all have ended; raises what one of them raised."""
    problems: list[BaseException] = []
    ended = threading.Semaphore(0)

    def body(part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as problem:
            problems.append(problem)
        ended.release()

    for part in parts:
        threading.Thread(target=body, args=(part,), daemon=True).start()
    for _ in parts:
        ended.acquire()
        if problems:
            raise problems[0]
