"""Reads mutants.diff, the list of bugs that tests must notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("mutants.diff")


class Mutant(NamedTuple):
    """A bug: in which file, what is replaced by what, and which tests must fail."""

    name: str
    tests: tuple[str, ...]
    file: str  # below src/esker
    old: str
    new: str

    def of(self, source: str) -> str:
        """The source with the bug in it."""
        whole = f"\n{source}\n"
        assert whole.count(self.old) == 1, f"{self.name}: the code has changed; edit the mutant"
        return whole.replace(self.old, self.new)[1:-1]


def _parse(block: str) -> Mutant:
    above, _, below = block.partition("\n@@ ")
    name, *tests = above.split("\n")
    file, *lines = below.rstrip("\n").split("\n")
    old = "\n".join(line[2:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[2:] for line in lines if not line.startswith("-"))
    return Mutant(name, tuple(tests), file, f"\n{old}\n", f"\n{new}\n")


def mutants() -> list[Mutant]:
    """All of them, in the order of the list."""
    return [_parse(block) for block in LIST.read_text().split("\n== ")[1:]]
