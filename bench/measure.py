"""Measuring: time, memory, one table, one file.

Every figure here is a cost, so lower is better, and a goal is the most an operation may cost:
either a plain number or a share of what another column cost in the same run.

    goals = (Goal.at_most(100), Goal.times_faster(2, than="lmdb"))
    print(table([Row("append_many", {"esker": 79.0, "lmdb": 280.0}, goals)]))
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
from typing import Any, Generic, NamedTuple, TypeVar

COLUMNS = ("esker", "lmdb", "rocksdb", "sqlite", "raw")
SUBJECT = COLUMNS[0]
PEER_COLUMNS = COLUMNS[1:4]
NOT_INSTALLED = "not installed"
NOTHING = "–"
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


class Contender(NamedTuple, Generic[T]):
    """One column of a round robin; the three parts are those of `best_of`."""

    prepare: Callable[[], T]
    run: Callable[[T], object]
    clean: Callable[[T], object] | None = None


def round_robin(repeats: int, contenders: Mapping[str, Contender[Any]]) -> dict[str, float]:
    """Seconds of each contender's fastest run. They take turns, so that noise hits all alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(repeats):
        for name, contender in contenders.items():
            best[name] = min(best[name], best_of(1, *contender))
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
    """The most an operation may cost: `limit`, or so many times less (or more) than another."""

    limit: float | None = None
    factor: float = 1.0
    than: tuple[str, ...] = ()
    slower: bool = False

    @classmethod
    def at_most(cls, limit: float) -> Goal:
        return cls(limit=limit)

    @classmethod
    def times_faster(cls, factor: float, than: str | Sequence[str] = PEER_COLUMNS) -> Goal:
        """Compare with one column, or with the best of several: by default, of all peers.

        A factor below one is a share of the other's speed: 0.4 is at least 40 % of it.
        """
        return cls(factor=factor, than=(than,) if isinstance(than, str) else tuple(than))

    @classmethod
    def times_slower(cls, factor: float, than: str) -> Goal:
        """It may cost this many times what the other costs."""
        return cls(factor=factor, than=(than,), slower=True)

    @property
    def text(self) -> str:
        if self.limit is not None:
            return f"≤ {_shown(self.limit)}"
        sign = "≤" if self.slower else "≥"
        return f"{sign} {self.factor:g}x {' or '.join(self.than)}"

    def allowed(self, figures: Mapping[str, Figure]) -> float | None:
        """The limit in this run, or None if nothing it is compared with was measured."""
        if self.limit is not None:
            return self.limit
        rival = self._rival(figures)
        if rival is None:
            return None
        return rival * self.factor if self.slower else rival / self.factor

    def reached(self, figures: Mapping[str, Figure]) -> str:
        """What was reached, in the words of the goal: a cost, or how many times the other."""
        cost, rival = _cost(figures, SUBJECT), self._rival(figures)
        if self.limit is not None:
            return _shown(cost)
        if not cost or not rival:
            return NOTHING
        return f"{cost / rival if self.slower else rival / cost:.2f}x"

    def _rival(self, figures: Mapping[str, Figure]) -> float | None:
        costs = [cost for name in self.than if (cost := _cost(figures, name)) is not None]
        return min(costs, default=None)


def _cost(figures: Mapping[str, Figure], name: str) -> float | None:
    cost = figures.get(name)
    return cost if isinstance(cost, float | int) else None


@dataclass(frozen=True, slots=True)
class Row:
    """One operation: what it cost each column, and what it may cost us.

    `figures` may hold more than the columns, such as our own cost under other conditions: for a
    goal to compare with, and for the file.
    """

    operation: str
    figures: Mapping[str, Figure]
    goals: tuple[Goal, ...] = ()
    unit: str = "ns/record"
    details: Mapping[str, Any] = field(default_factory=dict)  # for the file only

    def margin(self, goal: Goal) -> float | None:
        """How many times over a goal is met: 1 is just met, 2 is twice as good as asked."""
        cost, allowed = _cost(self.figures, SUBJECT), goal.allowed(self.figures)
        return allowed / cost if cost is not None and cost > 0 and allowed is not None else None

    def met(self, goal: Goal) -> bool | None:
        cost, allowed = _cost(self.figures, SUBJECT), goal.allowed(self.figures)
        return cost <= allowed if cost is not None and allowed is not None else None


def table(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    """All rows as one aligned table, a line more for each further goal. Lower is better."""
    cells = [["operation", "unit", *columns, "goal", "reached", "margin", "met"]]
    for row in rows:
        figures = [_shown(row.figures.get(name)) for name in columns]
        goals = [_verdict(row, goal) for goal in row.goals] or [(NOTHING,) * 4]
        cells.append([row.operation, row.unit, *figures, *goals[0]])
        cells += [["", "", *("" for _ in columns), *goal] for goal in goals[1:]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _shown(figure: Figure) -> str:
    if figure is None:
        return NOTHING
    if isinstance(figure, str):
        return figure
    whole = abs(figure) >= 10 or figure == int(figure)
    return f"{figure:,.0f}" if whole else f"{figure:.2f}" if abs(figure) >= 1 else f"{figure:.3f}"


def _verdict(row: Row, goal: Goal) -> tuple[str, str, str, str]:
    margin = row.margin(goal)
    met = {None: NOTHING, True: "yes", False: "NO"}[row.met(goal)]
    shown = NOTHING if margin is None else f"{margin:.2f}x"
    return goal.text, goal.reached(row.figures), shown, met


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
    directory: Path = RESULTS,
    today: datetime.date | None = None,
    kind_of_run: str = "",
    **about: Any,
) -> Path:
    """Write one run as JSON and return where. A later run of that kind and day replaces it."""
    date = today or datetime.datetime.now(datetime.UTC).date()
    kind = machine()
    stem = f"{date}-{kind['system']}-{kind['architecture']}-{kind['cpus']}cpu"
    path = directory / f"{stem}{'-' if kind_of_run else ''}{kind_of_run}.json"
    document = {
        "date": str(date),
        "machine": kind,
        **about,
        "rows": [_as_json(row) for row in rows],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "operation": row.operation,
        "unit": row.unit,
        "figures": {name: _rounded(figure) for name, figure in row.figures.items()},
        "goals": [
            {
                "goal": goal.text,
                "allowed": _rounded(goal.allowed(row.figures)),
                "reached": goal.reached(row.figures),
                "margin": _rounded(row.margin(goal)),
                "met": row.met(goal),
            }
            for goal in row.goals
        ],
        **({"details": dict(row.details)} if row.details else {}),
    }


def _rounded(figure: Figure) -> Figure:
    return round(figure, 3) if isinstance(figure, float) else figure
