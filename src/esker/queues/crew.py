"""Workers: who they are, and whether they live.

A worker is one process with one queue open. It has a number of 63 random bits, which is part of
its tokens, and holds a file of that name locked for as long as it lives. The kernel lets go of the
lock when the process dies, however it dies; so the jobs of a dead worker can be claimed at once,
and need not wait for their leases to run out. A worker that is stopped, or too busy, keeps its lock
and loses its jobs by the clock.

Files of the dead are unlinked by whoever comes by. Locks are made and unlinked under the mutex of
the queue: nobody unlinks a file between its making and its locking.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from esker.engine.context import Context
from esker.errors import StorageError
from esker.format import names
from esker.storage.files import Holder, Lock, join

LOOK_US: Final = 500_000  # between looks whether the others live, while there is work to do


class Crew:
    """The workers of a queue, as one of them sees them."""

    def __init__(self, context: Context, folder: str) -> None:
        self._context = context
        self._folder = join(folder, names.WORKERS)
        self._mutex_path = join(folder, names.LOCK)
        self._lock: Lock | None = None
        self._joining = threading.Lock()  # guards _lock
        self.me = 0
        self.pid = context.files.pid()

    def join(self) -> int:
        """Our number; the lock is taken when it is first asked for."""
        if self._lock is not None:
            return self.me
        with self._joining:
            if self.me:
                return self.me
            files = self._context.files
            token = int.from_bytes(files.random(8), "little") >> 1 or 1
            mutex = files.mutex(self._mutex_path)
            try:
                mutex.take()
                try:
                    files.make_dir(self._folder)  # a copy of a store may lack what is empty
                    taken = files.lock(join(self._folder, names.worker(token)), self._context.note)
                finally:
                    mutex.give()
            finally:
                mutex.close()
            assert not isinstance(taken, Holder), "63 random bits were drawn twice"
            self.me, self._lock = token, taken
            return token

    def dead(self, workers: list[int]) -> list[int]:
        """Those of them who are gone."""
        holder, me = self._context.files.holder, self.me
        return [
            worker for worker in workers
            if worker != me and holder(join(self._folder, names.worker(worker))) is None
        ]  # fmt: skip

    def sweep(self) -> None:
        """Unlink the locks of those who are gone."""
        files = self._context.files
        found = [names.parse_worker(name) for name in files.list(self._folder)]
        gone = self.dead([worker for worker in found if worker is not None])
        if not gone:
            return
        mutex = files.mutex(self._mutex_path)
        try:
            mutex.take()
            try:
                for worker in self.dead(gone):
                    with suppress(StorageError):
                        files.unlink(join(self._folder, names.worker(worker)))
            finally:
                mutex.give()
        finally:
            mutex.close()

    def let_go(self) -> None:
        """Give the lock back; a forked child only closes its copy."""
        self._joining = threading.Lock()
        if self._lock is not None:
            self._lock.release()
        self._lock, self.me = None, 0

    def leave(self) -> None:
        """Our jobs may be claimed by others from now on."""
        with self._joining:
            if self._lock is not None:
                self._lock.release()
                self._lock, self.me = None, 0
                with suppress(StorageError):
                    self.sweep()
