"""How far a long piece of work is, for whoever wants to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from esker.clock import SYSTEM_CLOCK, Clock


class Progress(NamedTuple):
    """How far a job is."""

    job: str
    done: int
    total: int  # 0: not known
    unit: str
    seconds: float

    def __str__(self) -> str:
        of = f" of {self.total:,}" if self.total else ""
        return f"{self.job}: {self.done:,}{of} {self.unit}, {self.seconds:.0f} s"


class Teller:
    """Counts what is done and tells it."""

    def __init__(
        self, job: str, unit: str, progress: Callable[[Progress], None] | None, total: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self.job = job
        self.unit = unit
        self.total = total
        self.done = 0
        self._progress = progress
        self._clock = clock
        self._began = clock.monotonic()

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    def add(self, count: int) -> None:
        self.done += count
        if self._progress is not None:
            self._progress(Progress(self.job, self.done, self.total, self.unit, self.seconds))
