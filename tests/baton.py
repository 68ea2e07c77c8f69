"""Threads that take turns by a seed: races found once are found again.

The engine's own code runs on real threads, but only the thread that holds the *baton* runs. It
hands the baton over at statements of the engine drawn from a seed, at every lock that it must wait
for, and around changes of the simulated disk. So a schedule is a function of its seed, and one that
breaks a promise can be run again under a debugger.

    baton = Baton(random.Random(7), clock)
    with between_the_lines(), baton.instead_of_threads():   # the engine's locks are ours
        store = esker.open(...)
        baton.run(produce, produce, flush)                  # to the end; raises what one raised

Time is the clock's, and it moves only by waiting: a wait with a limit ends early when nobody else
can run (or, now and then, although somebody could), and the clock is then at its limit. So a lost
wake-up shows as hours that passed, and a wait for ever that nobody ends as a `Deadlock`.
"""

from __future__ import annotations

import ast
import importlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from esker.testing import ManualClock

# Where a thread may lose the baton between any two statements.
LINES = (
    "esker.engine.writing", "esker.engine.shard", "esker.engine.page", "esker.engine.sealing",
    "esker.engine.waited", "esker.engine.committer", "esker.engine.tail",
    "esker.engine.background", "esker.engine.follower", "esker.engine.reader",
    "esker.engine.reading", "esker.engine.handle", "esker.engine.context", "esker.storage.log",
    "esker.storage.journal", "esker.storage.counters", "esker.storage.maps",
    "esker.storage.segment", "esker.engine.store", "esker.engine.erasing",
    "esker.engine.rewriting", "esker.storage.sealed",
)  # fmt: skip
# Functions in which what another thread does in between matters most: there the baton goes often.
HOT = frozenset(
    {
        "append", "_append_late", "_share", "_fresh_buffer", "_drain", "_put_back", "_flush",
        "redo", "unsynced", "sync_directly", "sync", "became_durable", "_publish", "wake",
        "make_durable", "_directly", "_journal_lot", "_checkpoint", "_wait", "_give_up", "_lead",
        "_gone", "_finish", "_come_through",
        "sync_soon", "_nudge", "_run", "_run_sealer", "step", "_until_next", "stop", "watch",
        "wait",
        "_took", "publish", "published", "_take", "_complete", "_seal_one", "seal_next", "enter",
        "_publish_segments", "close", "_close_shards", "reserve", "get",
    }
)  # fmt: skip
THREADED = (
    "esker.engine.shard", "esker.engine.page", "esker.engine.waited",
    "esker.engine.committer", "esker.engine.background",
    "esker.engine.follower", "esker.engine.store", "esker.engine.context", "esker.storage.maps",
)  # fmt: skip
LONE_LOCKS = ("esker.engine.handle", "esker.engine.tail")
SLEEPERS = ("esker.engine.committer",)
EVENTS_MAX = 400_000  # a schedule that is longer than this does not end


class Deadlock(BaseException):
    """Nobody can run any more. Not an Exception, so that the engine does not answer it."""


class Task:
    """One thread of a schedule."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.work = work
        self.gate = threading.Lock()
        self.gate.acquire()
        self.ready: Callable[[], bool] | None = None  # what it waits for, None when it can run
        self.until: float | None = None  # and how long at the most
        self.where = ""
        self.done = False
        self.thread = threading.Thread(target=self._run, name=f"baton {name}", daemon=True)
        self.baton: Baton

    def _run(self) -> None:
        self.gate.acquire()
        self.baton._perform(self)

    @property
    def can_run(self) -> bool:
        return not self.done and (self.ready is None or self.ready())


class Baton:
    """A schedule: who runs when, from a seed."""

    def __init__(self, chance: random.Random, clock: ManualClock) -> None:
        self.clock = clock
        self.events = 0  # lines run so far
        self.turns: list[tuple[int, str]] = []  # when who was given the baton: the schedule
        self.tasks: list[Task] = []
        self.problems: list[BaseException] = []
        self.cut: Callable[[], None] | None = None  # what a test wants done once,
        self.cut_at = 0  # and at which event
        self._chance = chance
        self._pace = chance.choice((10, 40, 150, 600))  # lines between one turn and the next
        self.heat = chance.choice((0.0, 0.05, 0.2))  # how likely the baton goes at a hot point
        self._next = self.alarm = self._gap()
        self._task: Task | None = None
        self._finished = threading.Lock()
        self._finished.acquire()
        self._over = False

    # ---- running -------------------------------------------------------------------------

    def run(self, *works: Callable[[], Any]) -> None:
        """Run the works, each on a thread of its own, until all have ended."""
        with _on_one_processor():
            self._run(*works)

    def _run(self, *works: Callable[[], Any]) -> None:
        for number, work in enumerate(works):
            self.spawn(getattr(work, "__name__", "work") + f"-{number}", work)
        global _baton
        _baton = self
        self._task = self._pick()
        self._task.gate.release()
        self._finished.acquire()
        for task in self.tasks:
            task.thread.join()
        _baton = self._task = None
        if self.problems:
            raise self.problems[0]

    def spawn(self, name: str, work: Callable[[], Any]) -> Task:
        task = Task(name, work)
        task.baton = self
        self.tasks.append(task)
        task.thread.start()
        return task

    def _perform(self, task: Task) -> None:
        try:
            if not self._over:
                task.work()
        except BaseException as problem:
            problem.add_note(f"in {task.name}")
            self.problems.append(problem)
        finally:
            task.done = True
        self._leave()

    def _leave(self) -> None:
        """A task has ended: the next one, please, or the end."""
        following = self._pick()
        if following is None:
            self._finished.release()
        else:
            self._give(following)

    def _pick(self, *, but: Task | None = None) -> Any:
        """Who runs next; None when all have ended."""
        able = [task for task in self.tasks if task is not but and task.can_run]
        timed = [task for task in self.tasks if not task.done and task.until is not None]
        if but is not None:
            return self._chance.choice(able) if able else None
        if timed and (not able or self._chance.random() < 0.05):
            first = min(timed, key=lambda task: task.until or 0.0)
            if not first.can_run:
                self._pass_time(first.until or 0.0)
                first.ready = None
                return first
        if able:
            return self._chance.choice(able)
        left = [task for task in self.tasks if not task.done]
        if not left:
            return None
        if not self._over:
            self._over = True
            waits = ", ".join(f"{task.name} for {task.where}" for task in left)
            self.problems.append(Deadlock(f"nobody can run: {waits}"))
        return left[0]  # it finds that all is over, and unwinds

    def _pass_time(self, until: float) -> None:
        self.clock.forward(max(0.0, until - self.clock.monotonic()) + 1e-6)

    def _give(self, task: Task) -> None:
        self.turns.append((self.events, task.name))
        self._task = task
        task.gate.release()

    # ---- giving the baton away -----------------------------------------------------------

    def switch(self) -> None:
        """Let somebody else run, if anybody can."""
        me = self._task
        if me is None or self._over:
            return
        other = self._pick(but=me)
        if other is not None:
            self._give(other)
            me.gate.acquire()
            self._check()

    def point(self, likely: float = 0.05) -> None:
        """A place where the baton may go."""
        if self._task is not None and self._chance.random() < likely:
            self.switch()

    def wait(self, ready: Callable[[], bool], seconds: float | None, where: str) -> bool:
        """Until it is ready. False when the time was up before."""
        me = self._task
        assert me is not None, f"a wait for {where} outside of any thread would be for ever"
        if self._over:
            raise Deadlock("over")
        me.ready, me.where = ready, where
        me.until = None if seconds is None else self.clock.monotonic() + seconds
        following = self._pick()
        if following is not me:
            self._give(following)
            me.gate.acquire()
        me.ready, me.until = None, None
        self._check()
        return ready()

    def _check(self) -> None:
        if self._over:
            raise Deadlock("over")

    def _gap(self) -> int:
        return self.events + 1 + int(self._chance.expovariate(1.0 / self._pace))

    # ---- lines ---------------------------------------------------------------------------

    def _due(self) -> None:
        """So many lines have run that something is to happen."""
        if self.events >= self.cut_at and self.cut is not None:
            cut, self.cut = self.cut, None
            cut()
        if self.events >= self._next:
            self._next = self._gap()
            self.switch()
        if self.events > EVENTS_MAX and not self._over:
            self._over = True
            self.problems.append(Deadlock(f"no end after {EVENTS_MAX} lines"))
            raise Deadlock("over")
        self.alarm = min(self._next, self.cut_at if self.cut is not None else self._next)

    # ---- what the engine gets instead of `threading` -------------------------------------

    @contextmanager
    def instead_of_threads(self) -> Iterator[None]:
        """The engine's locks, events, threads and pauses are this baton's."""
        stand_in = SimpleNamespace(
            Lock=lambda: Lock(self), RLock=lambda: RLock(self), Event=lambda: Event(self),
            Thread=lambda **how: Thread(self, **how), get_ident=threading.get_ident,
            current_thread=threading.current_thread,
        )  # fmt: skip
        kept: list[tuple[Any, str, Any]] = []

        def put(module: str, name: str, value: Any) -> None:
            holder = importlib.import_module(module)
            kept.append((holder, name, getattr(holder, name)))
            setattr(holder, name, value)

        for module in THREADED:
            put(module, "threading", stand_in)
        for module in LONE_LOCKS:
            put(module, "Lock", stand_in.Lock)
        for module in SLEEPERS:
            put(module, "time", SimpleNamespace(sleep=self.sleep))
        put("esker.engine.follower", "_PAUSE", Event(self))
        try:
            yield
        finally:
            for holder, name, value in kept:
                setattr(holder, name, value)

    def sleep(self, seconds: float) -> None:
        if self._task is not None:
            self.wait(lambda: False, seconds, "sleep")


@contextmanager
def _on_one_processor() -> Iterator[None]:
    """Threads that take turns, and those that they start, wake each other faster on one.

    On a machine whose processors are all busy, twice as fast: the one that wakes another gives way.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(allowed)[worker % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


# ---- points between the lines ----------------------------------------------------------------

_baton: Baton | None = None  # whose schedule is running


def _point() -> None:
    """Stands before every statement of the engine while a schedule runs."""
    baton = _baton
    if baton is not None and baton._task is not None:
        baton.events += 1
        if baton.events >= baton.alarm:
            baton._due()


def _hot_point() -> None:
    """The same in the functions of HOT."""
    baton = _baton
    if baton is not None and baton._task is not None:
        baton.events += 1
        if baton.events >= baton.alarm:
            baton._due()
        elif baton.heat and baton._chance.random() < baton.heat:
            baton.switch()


class _Pointed(ast.NodeTransformer):
    """The same functions with a call of `_point` before every statement."""

    point = "_point"

    def _with_points(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            if not isinstance(statement, ast.Nonlocal | ast.Global):
                call = ast.Call(ast.Name(self.point, ast.Load()), [], [])
                made.append(ast.copy_location(ast.Expr(call), statement))
            made.append(self.inside(statement))
        return made

    def inside(self, node: Any) -> Any:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, self._with_points(getattr(node, name)))
        for handler in getattr(node, "handlers", []):
            handler.body = self._with_points(handler.body)
        for case in getattr(node, "cases", []):
            case.body = self._with_points(case.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.point = "_hot_point" if node.name in HOT else "_point"
        document = ast.get_docstring(node) is not None
        node.body = [*node.body[:document], *self._with_points(node.body[document:])]
        return node


@cache
def _exchanges() -> list[tuple[Any, CodeType, CodeType]]:
    """Every function of the modules in LINES, its code, and its code with points."""
    found = []
    for name in LINES:
        module = importlib.import_module(name)
        path = str(module.__file__)
        with open(path, encoding="utf-8") as file:
            tree = _Pointed().visit(ast.parse(file.read()))
        pointed = dict(_codes(compile(ast.fix_missing_locations(tree), path, "exec")))
        for function in _functions(module):
            code = function.__code__
            found.append((function, code, pointed[code.co_qualname, code.co_firstlineno]))
    assert len(found) > 200, "the modules have changed their shape"
    return found


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield (inner.co_qualname, inner.co_firstlineno), inner
            yield from _codes(inner)


def _functions(module: ModuleType) -> Iterator[Any]:
    """The functions of a module and the methods of its classes."""
    holders = [module, *(thing for thing in vars(module).values() if isinstance(thing, type))]
    for holder in holders:
        for thing in list(vars(holder).values()):
            for part in (thing, *(getattr(thing, name, None) for name in ("fget", "__func__"))):
                if isinstance(part, FunctionType) and part.__code__.co_filename == module.__file__:
                    yield part


@contextmanager
def between_the_lines() -> Iterator[None]:
    """Inside, every statement of the engine is a place where the baton may go."""
    for name in LINES:
        vars(importlib.import_module(name)).update(_point=_point, _hot_point=_hot_point)
    for function, _, pointed in _exchanges():
        function.__code__ = pointed
    try:
        yield
    finally:
        for function, code, _ in _exchanges():
            function.__code__ = code


class Lock:
    """A lock whose waiting threads pass the baton on."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        baton = self._baton
        baton.point()
        while self._held:
            if not blocking:
                return False
            limit = None if timeout < 0 else timeout
            if not baton.wait(lambda: not self._held, limit, "a lock"):
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        self._baton.point(0.03)

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *problem: object) -> None:
        self.release()


class RLock(Lock):
    """One that its holder may take again."""

    def __init__(self, baton: Baton) -> None:
        super().__init__(baton)
        self._owner = 0
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._owner != me:
            if not super().acquire(blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = 0
            super().release()


class Event:
    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._set = False

    def set(self) -> None:
        self._set = True
        self._baton.point()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self._set or self._baton._task is None:
            return self._set
        return self._baton.wait(self.is_set, timeout, "an event")


class Thread:
    """A thread that the engine starts: one more task."""

    def __init__(
        self, baton: Baton, *, target: Callable[[], Any], name: str, daemon: bool = True
    ) -> None:
        self._baton = baton
        self._target = target
        self.name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._baton.spawn(self.name, self._target)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None and not task.done:
            self._baton.wait(lambda: task.done, timeout, f"the end of {self.name}")
