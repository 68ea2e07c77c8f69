"""How far a long piece of work is: a bar on stderr with rate and time left, on a terminal only.

It appears after a second: what is quicker than that needs no bar.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final, Literal

from esker.clock import SYSTEM_CLOCK

PATIENCE: Final = 1.0  # seconds
Unit = Literal["records", "bytes", "files"]


class Bar:
    """with Bar("export", "records", total) as bar: … bar.add(100)"""

    def __init__(self, what: str, unit: Unit = "records", total: int | None = None) -> None:
        self._what = what
        self._unit = unit
        self._total = total or None
        self._done = 0
        self._began = SYSTEM_CLOCK.monotonic()
        self._shown: Any = None
        self._task: Any = None
        self._seen = sys.stderr.isatty()

    def add(self, count: int) -> None:
        """So many more."""
        self.at(self._done + count, self._total)

    def at(self, done: int, total: int | None = None) -> None:
        """So many by now, of so many if that is known."""
        self._done, self._total = done, total or self._total
        if not self._seen:
            return
        if self._shown is None:
            if SYSTEM_CLOCK.monotonic() - self._began < PATIENCE:
                return
            self._begin()
        self._shown.update(self._task, completed=done, total=self._total)

    def _begin(self) -> None:
        from rich import progress

        from esker.cli.shown import console

        if self._unit == "bytes":
            counts: list[Any] = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        else:
            counts = [progress.MofNCompleteColumn(), _Rate(self._unit)]
        self._shown = progress.Progress(
            progress.TextColumn("{task.description}"), progress.BarColumn(20), *counts,
            progress.TimeRemainingColumn(), console=console(error=True), transient=True,
        )  # fmt: skip
        self._task = self._shown.add_task(self._what, total=self._total)
        self._shown.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._shown is not None:
            self._shown.stop()


def _Rate(unit: str) -> Any:
    """A column with what is done in a second."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.finished_speed or task.speed or 0:,.0f} {unit}/s")

    return Rate()
