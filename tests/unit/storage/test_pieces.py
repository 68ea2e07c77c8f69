"""A new file, written in large pieces."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from esker.format.checksum import checksum
from esker.storage.memory import MemoryFiles
from esker.storage.pieces import PIECE_BYTES, Pieces


class Watched:
    """A file that remembers where writes began and how long they were."""

    def __init__(self) -> None:
        self.file = MemoryFiles().open("/watched", "create")
        self.writes: list[tuple[int, int]] = []

    def write(self, position: int, parts: list[memoryview]) -> None:
        self.writes.append((position, sum(map(len, parts))))
        self.file.write(position, parts)


@pytest.mark.parametrize("longest", [64, 700_000, 3 * PIECE_BYTES])
def test_every_write_ends_on_a_multiple_of_the_piece_but_the_last(longest: int) -> None:
    chance, watched = random.Random(longest), Watched()
    pieces = Pieces(watched)  # type: ignore[arg-type]
    source = random.Random(7).randbytes(longest)
    expected = bytearray()
    for _ in range(40_000 if longest == 64 else 12):
        part = source[: chance.randrange(longest + 1)] * (100 if longest == 64 else 1)
        pieces.add([part[: len(part) // 2], pa.py_buffer(part[len(part) // 2 :])])
        expected += part
    expected += bytes(PIECE_BYTES - len(expected) % PIECE_BYTES)  # ends where a piece ends
    pieces.add([expected[pieces.end :], b""])
    pieces.add([b"tail"])
    pieces.flush()
    pieces.flush()
    expected += b"tail"
    assert pieces.end == len(expected)
    assert watched.file.read(0, len(expected) + 1) == expected
    assert pieces.hasher.digest() == checksum(bytes(expected))
    assert all((begin + size) % PIECE_BYTES == 0 for begin, size in watched.writes[:-1])
    assert watched.writes[-1] == (len(expected) - 4, 4)
