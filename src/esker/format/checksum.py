"""XXH3-64, seeded.

The seed is a segment's own random salt, so that a block of another file, or of a file that was
deleted, never verifies here. A frame's header is seeded with its position as well: a frame that
was written to the wrong place does not verify there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128_hexdigest

MASK64 = (1 << 64) - 1


def checksum(data: Any, seed: int = 0) -> int:
    """The checksum of one buffer."""
    return xxh3_64_intdigest(data, seed)


def checksum_parts(parts: Iterable[Any], seed: int = 0) -> int:
    """The checksum of several buffers as if they were one."""
    state = xxh3_64(seed=seed)
    for part in parts:
        state.update(part)
    return state.intdigest()


def fnv1a(data: bytes) -> int:
    """FNV-1a, 32 bits: the same in every language."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def fingerprint(text: str) -> str:
    """32 hexadecimal digits that stand for a name in a file's name."""
    return xxh3_128_hexdigest(text.encode())


class Hasher:
    """The checksum of a stream, for whole-file hashes."""

    __slots__ = ("_state",)

    def __init__(self, seed: int = 0) -> None:
        self._state = xxh3_64(seed=seed)

    def update(self, data: Any) -> None:
        self._state.update(data)

    def digest(self) -> int:
        return self._state.intdigest()
