"""Ctrl-C, heard at a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bell:
    """Rung by Ctrl-C, SIGTERM, or a terminal that is gone.

    The first time it only remembers. Whoever waits looks at it many times a second: an exception
    that comes out of nowhere would come in the middle of the engine, too, and leave its locks
    taken. The second time it does come.
    """

    def __init__(self) -> None:
        self._rung = False
        self._sleep = threading.Event()  # never set: only to wait on

    def ring(self, number: int = 0, frame: Any = None) -> None:
        if self._rung:
            raise KeyboardInterrupt
        self._rung = True

    def check(self) -> None:
        """Raise if it was rung."""
        if self._rung:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> None:
        self._sleep.wait(seconds)
        self.check()


@contextmanager
def hearing() -> Iterator[Bell]:
    """A bell that is rung by signals, as far as this thread gets any."""
    bell = Bell()
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, bell.ring) for number in numbers}
    try:
        yield bell
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
