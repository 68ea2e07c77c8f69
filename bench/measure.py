"""Measuring: time, memory, one table, one file.

Every figure here is a cost, so lower is better, and a goal is the most an operation may cost:
either a plain number or a share of what another column cost in the same run.

    row = Row("append_many", {"esker": 79.0, "lmdb": 280.0}, Goal.times_faster(2, than="lmdb"))
    print(table([row], unit="ns/record"))
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

COLUMNS = ("esker", "lmdb", "rocksdb", "sqlite", "raw")
SUBJECT = COLUMNS[0]
PEER_COLUMNS = COLUMNS[1:4]
NOT_INSTALLED = "not installed"
RESULTS = Path(__file__).parent / "results"

T = TypeVar("T")
Figure = float | str | None  # a cost, why there is none, or "does not apply"


def best_of(
    repeats: int,
    prepare: Callable[[], T],
    run: Callable[[T], object],
    clean: Callable[[T], object] | None = None,
) -> float:
    """Seconds of the fastest `run(prepare())`. Only `run` is timed; `clean` always follows it.

    The best and not the mean: other programs can only ever make a run slower.
    """
    best = float("inf")
    for _ in range(repeats):
        subject = prepare()
        try:
            gc.collect()  # pay for the garbage of the previous run before the clock starts
            start = time.perf_counter()
            run(subject)
            best = min(best, time.perf_counter() - start)
        finally:
            if clean is not None:
                clean(subject)
    return best


def ns_per_record(seconds: float, count: int) -> float:
    return seconds * 1e9 / count


@dataclass(frozen=True, slots=True)
class Residency:
    """Memory of this process, in bytes.

    The parts are kept apart because they mean different things: anonymous memory is ours until we
    free it, file memory is page cache that happens to be mapped and is given back under pressure.
    """

    total_bytes: int
    anonymous_bytes: int
    file_bytes: int
    peak_bytes: int

    def __sub__(self, other: Residency) -> Residency:
        return Residency(
            self.total_bytes - other.total_bytes,
            self.anonymous_bytes - other.anonymous_bytes,
            self.file_bytes - other.file_bytes,
            self.peak_bytes - other.total_bytes,  # how far above the start it ever went
        )


def residency() -> Residency | None:
    """What is resident now, or None where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    kib = (int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "RssFile", "VmHWM"))
    return Residency(*(size << 10 for size in kib))


def residency_growth(run: Callable[[], T]) -> tuple[T, Residency | None]:
    """Call `run` and return its result and how much more is resident while the result is held."""
    gc.collect()
    _reset_peak()
    before = residency()
    result = run()
    after = residency()
    return result, after - before if after is not None and before is not None else None


def _reset_peak() -> None:
    """Make the kernel forget the highest residency so far; it may refuse, then peaks are older."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


@dataclass(frozen=True, slots=True)
class Goal:
    """The most an operation may cost: `limit`, or what `than` cost divided by `factor`."""

    limit: float | None = None
    factor: float = 1.0
    than: tuple[str, ...] = ()

    @classmethod
    def at_most(cls, limit: float) -> Goal:
        return cls(limit=limit)

    @classmethod
    def times_faster(cls, factor: float, than: str | Sequence[str] = PEER_COLUMNS) -> Goal:
        """Compare with one column, or with the best of several: by default, of all peers."""
        return cls(factor=factor, than=(than,) if isinstance(than, str) else tuple(than))

    def allowed(self, figures: Mapping[str, Figure]) -> float | None:
        """The limit in this run, or None if nothing it is compared with was measured."""
        if self.limit is not None:
            return self.limit
        rivals = [cost for name in self.than if isinstance(cost := figures.get(name), float | int)]
        return min(rivals) / self.factor if rivals else None


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: what it cost each column, and what it may cost us."""

    operation: str
    figures: Mapping[str, Figure]
    goal: Goal | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # for the file only

    @property
    def allowed(self) -> float | None:
        return None if self.goal is None else self.goal.allowed(self.figures)

    @property
    def ratio(self) -> float | None:
        """How many times over the goal is met: 1 is just met, 2 is twice as good as asked."""
        cost = self.figures.get(SUBJECT)
        if self.allowed is None or not isinstance(cost, float | int) or cost <= 0:
            return None
        return self.allowed / cost

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.ratio >= 1


def table(rows: Sequence[Row], unit: str = "ns/record", columns: Sequence[str] = COLUMNS) -> str:
    """All rows as one aligned table: lower is better, and the goal is on the right."""
    cells = [[unit, *columns, "goal", "ratio", "met"]]
    cells += [
        [row.operation, *(_shown(row.figures.get(name)) for name in columns), *_verdict(row)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([name, *figures])


def _shown(figure: Figure) -> str:
    if figure is None:
        return "–"
    if isinstance(figure, str):
        return figure
    return f"{figure:,.0f}" if abs(figure) >= 10 else f"{figure:.2f}"


def _verdict(row: Row) -> tuple[str, str, str]:
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}x"
    met = {None: "–", True: "yes", False: "NO"}[row.met]
    return ("–" if row.allowed is None else f"≤ {_shown(row.allowed)}"), ratio, met


def machine() -> dict[str, str | int]:
    """What kind of machine this is, and deliberately not which one."""
    return {
        "system": platform.system().lower(),
        "architecture": platform.machine(),
        "cpus": os.cpu_count() or 1,
        "python": platform.python_version(),
    }


def write_results(
    rows: Sequence[Row],
    unit: str = "ns/record",
    directory: Path = RESULTS,
    today: datetime.date | None = None,
    **about: Any,
) -> Path:
    """Write one run as JSON and return where. A later run of the same day replaces it."""
    date = today or datetime.datetime.now(datetime.UTC).date()
    kind = machine()
    path = directory / f"{date}-{kind['system']}-{kind['architecture']}-{kind['cpus']}cpu.json"
    document = {
        "date": str(date),
        "machine": kind,
        "unit": unit,
        **about,
        "rows": [_as_json(row) for row in rows],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "operation": row.operation,
        "figures": {name: _rounded(figure) for name, figure in row.figures.items()},
        "goal": _rounded(row.allowed),
        "ratio": _rounded(row.ratio),
        "met": row.met,
        **({"details": dict(row.details)} if row.details else {}),
    }


def _rounded(figure: Figure) -> Figure:
    return round(figure, 3) if isinstance(figure, float) else figure
