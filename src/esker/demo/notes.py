"""Lists of what a process was told is safe, done or gone.

A list is a file of its own with a line for each fact, and each line is one write to the kernel: it
outlives the process, and says neither more nor less than what the process knew. A last line without
an end was never finished, and counts for nothing.

    001-00.acks     topic shard first-offset count hash microseconds    an append returned
    001-05.puts     id …                                                jobs were put
    001-w1.work     claim | done | fail, id, which delivery             what a worker did
    001-b1.bills    shard first-offset count cents                      a batch was billed
    001.gap         slept | gap | woke, …                               of the reader that slept
    001.open        seconds shards findings                             a writer opened the store
    001.kills       who pid list                                        whom the demo has killed
    001.house       address                                             of the server
    001.spark       a step, and what came of it                         of the pipeline

The first three digits are the run: each start of the shop has a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from esker.storage.files import SYSTEM_FILES, File, content_of, join

READ_BYTES: Final = 1 << 20  # of a list at a time


def name_of(run: int, what: str, actor: str = "") -> str:
    """The name of a list."""
    return f"{run:03d}-{actor}.{what}" if actor else f"{run:03d}.{what}"


class Notes:
    """A list that this process writes."""

    def __init__(self, folder: str, run: int, what: str, actor: str = "") -> None:
        path = join(folder, name_of(run, what, actor))
        self._file: File = SYSTEM_FILES.open(path, "create")
        self._end = 0

    def add(self, *words: object) -> None:
        """Add a line."""
        line = (" ".join(map(str, words)) + "\n").encode()
        self._file.write(self._end, [line])
        self._end += len(line)

    def close(self) -> None:
        self._file.close()


def lists(folder: str, what: str) -> list[str]:
    """The names of all lists of a kind, in order."""
    return sorted(name for name in SYSTEM_FILES.list(folder) if name.endswith(f".{what}"))


def lines(folder: str, name: str) -> list[list[str]]:
    """The whole lines of one list, as words."""
    whole, _, _ = content_of(SYSTEM_FILES, join(folder, name)).rpartition(b"\n")
    return [line.split(" ") for line in whole.decode().split("\n") if line]


def all_lines(folder: str, what: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of all lists of a kind, each with the name of its list."""
    for name in lists(folder, what):
        for words in lines(folder, name):
            yield name, words


def runs(folder: str) -> list[int]:
    """The numbers of all runs that left lists, in order."""
    return sorted({int(name[:3]) for name in SYSTEM_FILES.list(folder) if name[:3].isdigit()})


class Tail:
    """Lists that others write, read as they grow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._places: dict[str, int] = {}  # up to where each was read
        self._files: dict[str, File] = {}

    def new(self, what: str) -> Iterator[tuple[str, list[str]]]:
        """The lines that were added since the last look."""
        for name in lists(self._folder, what):
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = SYSTEM_FILES.open(join(self._folder, name), "r")
            at = self._places.get(name, 0)
            while (size := file.size()) > at:
                data = file.read(at, min(size - at, READ_BYTES))
                whole, end, _ = data.rpartition(b"\n")
                if not end:
                    break
                at += len(whole) + 1
                for line in whole.decode().split("\n"):
                    yield name, line.split(" ")
            self._places[name] = at

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
