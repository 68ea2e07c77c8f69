"""The suites that explore: how much each must look at, and what it looked at.

Most tests check one thing. A suite looks at as many states of one kind as it can make, and is worth
what it looked at: a change that quietly makes it look at fewer is a regression. So each suite has a
floor, stands in parts (`lots`, which workers share), counts, and fails where a part stays below its
share. The counts of all parts are added up and printed at the end of the run, a line per suite.

    def test_every_crash(lot: int, tally: Tallies) -> None:
        suite = tally("crash images", lots=12)
        ...
        suite.count += 1                # a state that was judged
        suite.also["points"] += 1       # whatever else is worth a number

Two numbers from the environment steer all suites:

    ESKER_SCALE   how much to do: 1 is what `make test` does, `test-fast` 3 %, `torture` 20 times
    ESKER_SEED    where chance begins; the same seed does the same things
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

FLOORS: Final = {
    "crash images": 150_000,
    "crashes inside recovery": 20_000,
    "injected faults": 20_000,
    "corruptions": 200_000,
    "real kills": 3_000,
    "model steps": 50_000,
    "reader steps": 3_000,
    "queue kills": 60,
    "server kills": 200,
    "durable stream kills": 40,
    "queue crashes": 2_000,
    "queue faults": 400,
    "queue damages": 2_000,
    "shared damages": 1_000,
    "schedules": 5_000,
    "raw requests": 400,
    "requests by the document": 10_000,
    "damaged files of kin": 340_000,
    "mutants": 130,
    "spark worker kills": 60,
    "spark driver kills": 8,
    "spark over http kills": 10,
}
SCALE: Final = float(os.environ.get("ESKER_SCALE", "1"))
SEED: Final = int(os.environ.get("ESKER_SEED", "1"))


def scaled(amount: int, least: int = 1) -> int:
    """An amount of work, as much of it as this run is to do."""
    return max(least, round(amount * SCALE))


def slowly(*cases: str) -> list[Any]:
    """Cases of a test that take more than a few seconds: `test-fast` leaves them out."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


class Suite:
    """What one part of a suite looked at."""

    def __init__(self, name: str, lots: int = 1) -> None:
        self.name = name
        self.floor = int(FLOORS[name] * min(SCALE, 1) / lots)  # some have no more than twice it
        self.count = 0
        self.also: Counter[str] = Counter()
        self._began = time.monotonic()

    def told(self) -> dict[str, Any]:
        seconds = time.monotonic() - self._began
        return {
            "name": self.name, "count": self.count, "also": dict(self.also), "seconds": seconds,
        }  # fmt: skip

    def finish(self) -> None:
        assert self.count >= self.floor, (
            f"{self.name}: looked at {self.count:,}, the floor of this part is {self.floor:,}"
        )


Tallies = Callable[..., Suite]


def summary(parts: list[dict[str, Any]]) -> list[str]:
    """A line for each suite, from what its parts told."""
    lines = []
    for name, floor in FLOORS.items():
        of_it = [part for part in parts if part["name"] == name]
        if not of_it:
            continue
        also: Counter[str] = Counter()
        for part in of_it:
            also.update(part["also"])
        more = "".join(f", {count:,} {what}" for what, count in also.items())
        lines.append(
            f"SUITE {name}: {sum(part['count'] for part in of_it):,}{more};"
            f" floor {int(floor * min(SCALE, 1)):,}, seed {SEED},"
            f" {sum(part['seconds'] for part in of_it):.0f} s"
        )
    return lines
