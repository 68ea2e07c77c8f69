"""The routes of one store: the file, the runners, the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from esker.engine.context import LOG
from esker.errors import (
    EskerError,
    GroupNotFound,
    MemberBusy,
    StorageError,
    StoreClosed,
    StoreForked,
    TopicNotFound,
)
from esker.format.routes import RouteEntry, Routes
from esker.groups.describe import forget_group
from esker.groups.registry import Groups
from esker.routes.runner import Runner, group_of
from esker.storage.routes import RoutesFile

if TYPE_CHECKING:
    from esker.engine.store import Store

IDLE_SECONDS: Final = 0.01  # between rounds in which there was nothing to do
PUT_OFF_SECONDS: Final = 10.0  # the longest that a route is put off at a stretch
FILE_SECONDS: Final = 0.5  # between looks for routes that other processes made, moved or deleted


class Registry:
    """The routes of one store, as a guest of it (see engine/guests.py)."""

    def __init__(self, store: Store) -> None:
        context = store._context
        self.store = store
        self.file = RoutesFile(context.files, context.root, context.store, threading.RLock())
        self._lock = threading.RLock()  # guards the runners, and the start of the thread
        self._runners: dict[int, Runner] = {}
        self._gone: list[Runner] = []  # of routes that were deleted: they have yet to leave
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stop = False
        self._look = 0.0
        self._flaw = ""
        # by a server under pressure, of the name of a destination; from the thread of the routes
        self.puts_off: Callable[[str], bool] | None = None

    def __repr__(self) -> str:
        return f"the routes of {self.store.path}"

    @classmethod
    def of(cls, store: Store) -> Registry:
        """Those of a store; made when they are first needed."""
        context = store._context
        with store._lock:
            for known in context.guests:
                if isinstance(known, cls):
                    return known
            made = cls(store)
            context.guests.insert(0, made)  # closed before the groups that it reads as
            context.at_rest.append(made.rest)
        Groups.of(context)
        context.background.tend_soon()
        return made

    # ---- the file ------------------------------------------------------------------------

    def reload(self) -> Routes:
        """What the file says now; runners come and go with it."""
        routes = self.file.load()
        with self._lock:
            ready = {entry.id: entry for entry in routes.routes if entry.state == "ready"}
            for gone in self._runners.keys() - ready.keys():
                self._gone.append(self._runners.pop(gone))
            for number, entry in ready.items():
                if number not in self._runners:
                    self._runners[number] = Runner(self, entry)
                    self._wake.set()
            self._look = self.store._context.clock.monotonic() + FILE_SECONDS
        return routes

    def entry(self, number: int) -> RouteEntry | None:
        """A route as it was at the last look."""
        found = self.file.routes.routes
        return next((e for e in found if e.id == number and e.state == "ready"), None)

    def runner(self, number: int) -> Runner | None:
        with self._lock:
            return self._runners.get(number)

    def note(self, number: int, reason: str) -> None:
        """Keep why a route stands still, for those who look from elsewhere."""
        with suppress(StorageError), self.file.alone() as routes:
            entry = next((each for each in routes.routes if each.id == number), None)
            if entry is not None and entry.reason != reason:
                self.replace(routes, msgspec.structs.replace(entry, reason=reason))

    def replace(self, routes: Routes, entry: RouteEntry) -> Routes:
        """Write an entry in the place of the one with its id. The caller is alone."""
        rest = tuple(entry if each.id == entry.id else each for each in routes.routes)
        made = msgspec.structs.replace(routes, routes=rest)
        self.file.store(made)
        return made

    def swept(self, routes: Routes) -> Routes:
        """Without what was half made or half deleted by somebody who died. The caller is alone."""
        left = tuple(
            entry for entry in routes.routes if entry.state == "ready" or not self._forget(entry)
        )
        if left != routes.routes:
            routes = msgspec.structs.replace(routes, routes=left)
            self.file.store(routes)
        return routes

    def _forget(self, entry: RouteEntry) -> bool:
        """Forget the group of a route. False if somebody still reads in it."""
        known = self.store._catalog.by_id(entry.source)
        if known is None:
            return True
        try:
            with suppress(GroupNotFound, TopicNotFound):
                forget_group(self.store[known.name], group_of(entry.id))
        except MemberBusy:
            return False
        return True

    # ---- at work -------------------------------------------------------------------------

    def runners(self) -> list[Runner]:
        """All that are to run here; looks at the file when it is time to."""
        self.part()
        if self.store._context.clock.monotonic() >= self._look:
            self.store._catalog.refresh()
            self.reload()
            self.part()
        with self._lock:
            return list(self._runners.values())

    def part(self) -> None:
        """Let runners of deleted routes leave their groups."""
        while self._gone:
            runner = self._gone.pop()
            with runner.lock:
                runner.leave()

    def round(self) -> int:
        """One step of each; how many records were read."""
        if not self.store._context.options.routes:
            return 0
        return sum(runner.step() for runner in self.runners() if not self._put_off(runner))

    def _put_off(self, runner: Runner) -> bool:
        """Whether a route rests for now, because others are worth more; never for long."""
        known = self.store._catalog.by_id(runner.entry.destination)
        if self.puts_off is None or known is None or not self.puts_off(known.name):
            runner.rests_since = None
            return False
        now = self.store._context.clock.monotonic()
        if runner.rests_since is None:
            runner.rests_since = now
        if now - runner.rests_since < PUT_OFF_SECONDS:
            return True
        runner.rests_since = None  # one step, and another rest
        return False

    def _run(self) -> None:
        while not self._stop:
            try:
                done = self.round()
                self._flaw = ""
            except (StoreClosed, StoreForked):
                return
            except EskerError as problem:  # the file cannot be read: told once
                done = 0
                self._look = self.store._context.clock.monotonic() + FILE_SECONDS
                if str(problem) != self._flaw:
                    self._flaw = str(problem)
                    LOG.warning("routes: %s", problem)
            if not done:
                self._wake.wait(IDLE_SECONDS if self._runners else FILE_SECONDS)
                self._wake.clear()

    # ---- a guest of the store ------------------------------------------------------------

    def tend(self) -> None:
        """Forward what is there; where there is a thread for it, see that it lives."""
        context = self.store._context
        if not context.options.background:
            self.round()
            return
        with self._lock:
            if self._thread is None and not self._stop and context.options.routes:
                self._thread = threading.Thread(target=self._run, name="esker-route", daemon=True)
                self._thread.start()

    def rest(self) -> None:
        """Make no step any more; the one that is under way is finished, up to its acks."""
        with self._lock:  # not while one is being started
            self._stop = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        self.rest()
        for runner in [*self._runners.values(), *self._gone]:
            runner.leave()
        self.let_go()

    def let_go(self) -> None:
        self._stop = True
        self._lock = threading.RLock()
        for runner in self._runners.values():
            runner.let_go()
        self._runners = {}
        self.file.close()


def run_routes(store: Store) -> None:
    """Take part in running the routes that a store has."""
    Registry.of(store)
