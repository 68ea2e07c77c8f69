"""Points at which a copy dies. Python imports this at the start of every process that finds it.

Only tests/spark/copying.py puts this directory on a path: the one of a driver and, by inheritance,
of Spark's workers. Two variables say what to do:

    ESKER_TEST_DEATH    "window count folder": at the count-th time that any process of the driver
                        comes to the window, all of them die at once. The folder has a file for
                        each time, and `window.died` if it came so far
    ESKER_TEST_PACE     seconds to sleep after each piece that a task has staged, so that chance
                        has something to hit

A window is before or after a call. Functions are wrapped as their modules are imported, before
anybody else can have taken a reference: nothing in the product knows of it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Window(NamedTuple):
    module: str
    call: str
    before: bool = False
    counts: Callable[[tuple[Any, ...], Any], bool] = lambda args, result: True


WINDOWS = {
    "batch planned, not written down": Window(
        "esker.spark.stream", "EskerStreamReader.latestOffset"
    ),
    "tasks planned": Window("esker.spark.stream", "EskerStreamReader.partitions"),
    "a task stages": Window("esker.engine.attach", "Stage.append_columns"),
    "tickets collected": Window("esker.spark.sink", "EskerStreamWriter.commit", before=True),
    "commit written, not renamed": Window(
        "esker.storage.files", "RealFiles.rename", before=True,
        counts=lambda args, result: args[1].endswith(".commit.tmp"),
    ),
    "committed, nothing attached": Window(
        "esker.engine.attach", "commit", counts=lambda args, result: result is True
    ),
    "between two attaches": Window("esker.engine.attach", "attach"),
    "a segment filled in, not renamed": Window(
        "esker.storage.files", "RealFiles.rename", before=True,
        counts=lambda args, result: args[1].endswith(".staged"),
    ),
    "all attached": Window(
        "esker.engine.store", "Store.attach", counts=lambda args, result: result is True
    ),
    "commit returned": Window("esker.spark.sink", "EskerStreamWriter.commit"),
    "a batch done again is dropped": Window(
        "esker.engine.attach", "commit", counts=lambda args, result: result is False
    ),
    # over HTTP
    "a task has staged at the server": Window("esker.client.stage", "RemoteStage._post"),
    "commit sent, not answered": Window(
        "esker.client.pool", "_Connection.ask",
        counts=lambda args, result: args[1:3] == ("POST", "/v1/attach"),
    ),
    "the server has dropped a batch done again": Window(
        "esker.client.stage", "attach", counts=lambda args, result: result is False
    ),
}  # fmt: skip


def main() -> None:
    wrapped: list[tuple[Window, Callable[[], None]]] = []
    death = os.environ.get("ESKER_TEST_DEATH", "")
    if death:
        window, count, folder = death.split("|")
        wrapped.append((WINDOWS[window], lambda: come_to(Path(folder), window, int(count))))
    pace = float(os.environ.get("ESKER_TEST_PACE", "0"))
    if pace:
        for module, call in (
            ("esker.engine.attach", "Stage.append_columns"),
            ("esker.client.stage", "RemoteStage.append_columns"),
        ):
            wrapped.append((Window(module, call), lambda: time.sleep(pace)))
    if wrapped:
        sys.meta_path.insert(0, Wrapping(wrapped))


class Wrapping(importlib.abc.MetaPathFinder):
    """Finds modules as ever, and changes some when they have been executed."""

    def __init__(self, wrapped: list[tuple[Window, Callable[[], None]]]) -> None:
        self._wrapped = wrapped

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        of_it = [(window, act) for window, act in self._wrapped if window.module == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path) if of_it else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def then_wrap(module: ModuleType) -> None:
            execute(module)
            for window, act in of_it:
                wrap(module, window, act)

        spec.loader.exec_module = then_wrap  # type: ignore[method-assign]
        return spec


def wrap(module: ModuleType, window: Window, act: Callable[[], None]) -> None:
    *owners, name = window.call.split(".")
    owner: Any = functools.reduce(getattr, owners, module)
    call = getattr(owner, name)

    @functools.wraps(call)
    def wrapping(*args: Any, **kwargs: Any) -> Any:
        if window.before and window.counts(args, None):
            act()
        result = call(*args, **kwargs)
        if not window.before and window.counts(args, result):
            act()
        return result

    setattr(owner, name, wrapping)


def come_to(folder: Path, window: str, count: int) -> None:
    for number in range(1, count + 1):
        try:
            (folder / f"{window}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if number == count:
            (folder / f"{window}.died").touch()
            die()
        return


def die() -> None:
    """End every process of the driver's session, Java and ourselves included, at one moment."""
    me, session = os.getpid(), os.getsid(0)
    assert b"tests.spark.copying" in Path(f"/proc/{session}/cmdline").read_bytes()
    others = [pid for pid in of_session(session) if pid != me]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in others:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
    os.kill(me, signal.SIGKILL)


def of_session(session: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and os.getsid(int(entry)) == session:
                found.append(int(entry))
        except ProcessLookupError:
            continue
    return found


main()
