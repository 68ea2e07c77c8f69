"""Starting a demo, and looking at what it has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PATIENCE = 110.0  # seconds for a fast run on a machine that has better things to do


class Shown(NamedTuple):
    """A demo that was run: where, and what it printed."""

    folder: Path
    text: str
    error: str


def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run `esker demo` with these arguments and wait for it."""
    return subprocess.run(
        [sys.executable, "-m", "esker", "demo", *map(str, arguments)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "esker", "demo", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def children(pid: int) -> set[int]:
    """All processes that this one has started, and those that these have."""
    found: set[int] = set()
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        told = " ".join((task / "children").read_text() for task in tasks)
    except OSError:
        return found
    for each in map(int, told.split()):
        found |= {each} | children(each)
    return found


def alive(pid: int) -> bool:
    """Whether it runs; one that waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
