"""Reads mutants.diff, the list of bugs that tests must notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("mutants.diff")


class Edit(NamedTuple):
    """In a file below src/esker, some lines are replaced by others."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A bug: what it is, which tests must fail, and the edits that make it."""

    name: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]

    def sources(self, folder: Path) -> dict[str, str]:
        """The files that differ from those in the folder, with the bug in them."""
        made: dict[str, str] = {}
        for file, old, new in self.edits:
            whole = f"\n{made.get(file) or (folder / file).read_text()}\n"
            assert whole.count(old) == 1, f"{self.name}: the code has changed; edit the mutant"
            made[file] = whole.replace(old, new)[1:-1]
        return made


def _edit(hunk: str) -> Edit:
    file, *lines = hunk.rstrip("\n").split("\n")
    old = "\n".join(line[2:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[2:] for line in lines if not line.startswith("-"))
    return Edit(file, f"\n{old}\n", f"\n{new}\n")


def mutants() -> list[Mutant]:
    """All of them, in the order of the list."""
    found = []
    for block in LIST.read_text().split("\n== ")[1:]:
        above, *hunks = block.split("\n@@ ")
        name, *tests = above.split("\n")
        found.append(Mutant(name, tuple(tests), tuple(map(_edit, hunks))))
    return found
