"""Acks in any order, and how far they leave no hole. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class Acks:
    """What of a shard is acked: all below `cursor`, and some ranges behind it."""

    __slots__ = ("cursor", "later")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        self.later: list[tuple[int, int]] = []
        """What is acked behind a hole: [first, end), in order; none touches another."""

    def add(self, first: int, end: int) -> int:
        """Offsets [first, end) are done with; returns the cursor."""
        if first > self.cursor:
            self._keep(first, end)
            return self.cursor
        if end > self.cursor:
            self.cursor = end
            if self.later:
                self._absorb()
        return self.cursor

    def _keep(self, first: int, end: int) -> None:
        later = self.later
        low = bisect_left(later, first, key=_end)
        high = bisect_right(later, end, key=_first)
        for known in later[low:high]:
            first, end = min(first, known[0]), max(end, known[1])
        del later[low:high]
        if first < end:
            insort(later, (first, end))

    def _absorb(self) -> None:
        gone = bisect_right(self.later, self.cursor, key=_first)
        self.cursor = max([self.cursor, *(end for _, end in self.later[:gone])])
        del self.later[:gone]


def _first(known: tuple[int, int]) -> int:
    return known[0]


def _end(known: tuple[int, int]) -> int:
    return known[1]
