"""A page of numbers that several processes have mapped, and the lock for what one does alone.

Between processes that is a lock of the kernel, between threads the caller's own, which is taken
first. Looking at the page needs neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from esker.storage.files import Files, Mutex, join


class SharedPage:
    """One page, and the file of its lock beside it."""

    def __init__(
        self, files: Files, folder: str, name: str, lock: str, guard: AbstractContextManager[Any]
    ) -> None:
        self.files = files
        self.folder = folder
        self.path = join(folder, name)
        self._lock_path = join(folder, lock)
        self._guard = guard
        self._mutex: Mutex | None = None
        self._maps: dict[bool, Any] = {}  # by whether it can be written

    @property
    def words(self) -> Any:
        """The page. Who maps it only to look must not take it from a thread that writes it."""
        return self._maps.get(True, self._maps.get(False))

    @words.setter
    def words(self, words: Any) -> None:
        """Take these for the page: a copy of it, for instance."""
        self._maps = {True: words}

    def is_mapped(self, writable: bool) -> bool:
        """Whether it is, so that it can be written if that is asked for."""
        return True in self._maps or (not writable and False in self._maps)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else does what must be done alone meanwhile."""
        with self._guard:
            if self._mutex is None:
                self._mutex = self.files.mutex(self._lock_path)
            self._mutex.take()
            try:
                yield
            finally:
                self._mutex.give()

    def close(self) -> None:
        """Let go of the lock's file. The page itself goes with its last user."""
        mutex, self._mutex, self._maps = self._mutex, None, {}
        if mutex is not None:
            mutex.close()
