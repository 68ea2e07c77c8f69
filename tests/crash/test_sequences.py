"""Every short program, and long ones by chance: all the states in which a death can leave them.

All sequences of up to three operations over an alphabet of what the engine does, from an empty
store and from one with two segments in each topic. Most bugs of crash recovery that were ever found
take no more than that. The states around every change of the last operation are looked at; those of
the operations before it are the last ones of shorter sequences. What an operation needs to be there
first (its topic, say) is made on the way; in sequences of three that is not looked at again, for it
is an operation of its own. Then seeded long mixes of all commit classes, until the lot has looked
at its share: they find as much, and cost less a state.

Two dirty topics are enough for the journal here, so that stores can be small.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest

from esker.engine import committer
from tests.crash.driver import Step, mixed
from tests.crash.explorer import Explorer
from tests.suites import SCALE, SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

F: Step = ("create", "f", "fsync")
D: Step = ("create", "d", "disk")
M: Step = ("create", "m", "memory")
E: Step = ("create", "e", "disk", 4096, "none", 3)  # keeps three records

ALPHABET: dict[str, list[Step]] = {
    "create": [("create", "n", "disk")],
    "append f": [F, ("wait", "f", 200)],
    "append d": [D, ("wait", "d", 200)],
    "append m": [M, ("wait", "m", 200)],
    "buffer d": [D, ("append", "d", 40), ("append", "d", 513), ("flush", "d")],
    "batch f": [F, ("many", "f", 3, 300)],
    "batch d": [D, ("many", "d", 3, 300)],
    "roll f": [F, ("many", "f", 4, 900)],
    "roll d": [D, ("many", "d", 4, 900)],
    "seal": [("tick",)],
    "sync d": [D, ("sync", "d")],
    "sync all": [F, D, ("append", "f", 100), ("append", "d", 100), ("sync_all",)],
    "checkpoint": [("checkpoint",)],
    "reopen": [("reopen",)],
    "forget d": [D, ("forget", "d", 1)],
    "erase d": [D, ("erase", "d", "x-")],  # about every second record carries such a tag
    "drop f": [F, ("drop", "f")],
    "attach": [F, D, ("attach", ("f", "d"), 2, 300)],
    "evict": [E, ("many", "e", 4, 900), ("many", "e", 4, 900), ("tick",)],
}
NEEDED = {"create": 0, "evict": 3, "sync all": 4}  # steps an operation needs; else: what it creates
EMPTY: list[Step] = []
TWO_SEGMENTS: list[Step] = [  # the second of several small frames, which sealing merges
    F, D, ("many", "f", 4, 900), ("many", "d", 4, 900), ("wait", "f", 400), ("wait", "d", 400),
    ("tick",), ("wait", "f", 200), ("wait", "d", 200), ("reopen",),
]  # fmt: skip

STARTS = {"empty": EMPTY, "two segments": TWO_SEGMENTS}
LOTS = len(STARTS) * len(ALPHABET)
TARGET = 4_000  # states in each lot: its part of the floor, and a little on top
MOST = {1: 64, 2: 16, 3: 1}  # how many states to look at around a change, by length
CHANCES = {1: 1, 2: 1, 3: 0}  # and how many left to chance


class Program(NamedTuple):
    """A sequence of operations, as steps; those before the last operation were looked at before."""

    steps: list[Step]
    before: int
    length: int


def needed(operation: str) -> int:
    """How many steps of an operation make what it needs."""
    creates = sum(step[0] == "create" for step in ALPHABET[operation])
    return NEEDED.get(operation, creates)


def programs(start: str, first: str) -> list[Program]:
    """All that begin with an operation; at a smaller scale some of them, chosen by the seed."""
    found = []
    for length in range(3):
        for more in itertools.product(ALPHABET, repeat=length):
            *before, last = (first, *more)
            prefix = [*STARTS[start], *(step for name in before for step in ALPHABET[name])]
            skip = len(prefix) + (needed(last) if length == 2 else 0)
            found.append(Program([*prefix, *ALPHABET[last]], skip, length + 1))
    if SCALE < 1:
        found = random.Random(f"some {SEED} {start} {first}").sample(found, scaled(len(found)))
    return found


@pytest.mark.parametrize("first", ALPHABET)
@pytest.mark.parametrize("start", STARTS)
def test_a_death_in_any_program_breaks_no_promise(
    start: str, first: str, tally: Tallies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "JOURNAL_DIRTY_SHARDS", 1)
    suite = tally("crash images", lots=LOTS)
    explorer = Explorer(thorough=24)
    more = max(1, round(SCALE))
    for number, program in enumerate(programs(start, first)):
        explorer.most = MOST[program.length] * more
        explorer.chances = CHANCES[program.length] + more - 1
        explorer.salt = number
        explorer.explore(program.steps, seed=SEED, skip=program.before)
        suite.also["short programs"] += 1
    explorer.most, explorer.chances, explorer.enough = 12, 2, scaled(TARGET)
    chance = random.Random(f"long programs {SEED} {start} {first}")
    while explorer.states < explorer.enough:
        wide = chance.random() < 0.1
        steps = mixed(chance, chance.randrange(20, 40), wide=wide, deleting=True)
        explorer.explore(steps, seed=chance.randrange(1 << 30))
        suite.also["long programs"] += 1
    suite.count = explorer.states
    suite.also["points"] = explorer.points
    suite.also.update(explorer.also)
