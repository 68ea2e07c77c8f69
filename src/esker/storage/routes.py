"""The file of routes: one for the store, replaced as a whole, by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from esker.errors import Corruption, FormatTooNew
from esker.format import names
from esker.format import routes as fmt
from esker.format.routes import Routes
from esker.storage.files import Files, Mutex, content_of, join, replace_file

ADVICE = (
    "No route runs until it is restored from a backup, or removed: then define the routes again. "
    "The records of all topics are untouched."
)


class RoutesFile:
    """The routes of a store, as they are on the disk."""

    def __init__(
        self, files: Files, root: str, store: bytes, guard: AbstractContextManager[Any]
    ) -> None:
        self._files = files
        self._root = root
        self._store = store
        self._guard = guard  # keeps threads apart, as the mutex does processes
        self._mutex: Mutex | None = None
        self.path = join(root, names.ROUTES)
        self.generation = 0
        self.routes = Routes()

    def load(self) -> Routes:
        """What the file says now. No file: no routes."""
        if not self._files.kind(self.path):
            self.routes, self.generation = Routes(), 0
            return self.routes
        found = fmt.decode(content_of(self._files, self.path, fmt.BYTES_MAX), self._store)
        if isinstance(found, str):
            if found.startswith("version"):
                raise FormatTooNew(f"{self.path} was written by a later Esker ({found})")
            raise Corruption(found, path=self.path, advice=ADVICE)
        self.routes, self.generation = found
        return self.routes

    @contextmanager
    def alone(self) -> Iterator[Routes]:
        """Nobody else changes the routes meanwhile; hands out what they are."""
        with self._guard:
            if self._mutex is None:
                self._mutex = self._files.mutex(join(self._root, names.ROUTES_LOCK))
            self._mutex.take()
            try:
                yield self.load()
            finally:
                self._mutex.give()

    def store(self, routes: Routes) -> None:
        """Replace the file, durably. The caller is alone."""
        generation = self.generation + 1
        replace_file(self._files, self.path, fmt.encode(routes, generation, self._store))
        self.routes, self.generation = routes, generation

    def close(self) -> None:
        """Let go of the lock's file."""
        mutex, self._mutex = self._mutex, None
        if mutex is not None:
            mutex.close()
