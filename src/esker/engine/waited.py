"""Threads that wait for records of a shard."""

from __future__ import annotations

import contextlib
import threading
from typing import Any


class Waited:
    """Something that others wait for: each with a lock of its own, which is released."""

    waiters: list[Any]  # to be released at the next publication
    _waiters_lock: threading.Lock  # guards waiters

    def expect_waiters(self) -> None:
        """There are none, yet."""
        self.waiters, self._waiters_lock = [], threading.Lock()

    def wake(self) -> None:
        """Wake every thread that waits for records."""
        with self._waiters_lock:
            while self.waiters:  # released before it is forgotten, should an interrupt come between
                with contextlib.suppress(RuntimeError):  # another shard has woken it already
                    self.waiters[-1].release()
                self.waiters.pop()

    def add_waiter(self, waiter: Any) -> None:
        """Have this lock released at the next publication."""
        with self._waiters_lock:
            self.waiters.append(waiter)

    def drop_waiter(self, waiter: Any) -> None:
        """Forget a waiter, if it is still there."""
        with self._waiters_lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
