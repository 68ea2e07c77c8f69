"""What the lists say, many times a second.

The numbers on the screen and in the plots are not what the shop says of itself in passing: they are
its lists, counted as they grow.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal, NamedTuple

import esker
from esker.clock import SYSTEM_CLOCK
from esker.demo.goods import CLICKS, ORDERS, PAYMENTS
from esker.demo.notes import Tail

RECENT: Final = 1.0  # seconds over which a rate is taken
MICROS_MAX: Final = 200_000  # latencies that are kept; then every other one is let go

Kind = Literal["kill", "act"]


class Sample(NamedTuple):
    """How much there was of everything, and when."""

    at: float  # seconds since the beginning
    orders: int  # acknowledged
    clicks: int
    put: int
    done: int
    billed: int
    paid: int  # forwarded by the route


class Mark(NamedTuple):
    """Something happened."""

    at: float
    kind: Kind
    text: str


class Meter:
    """Counts what the lists say."""

    def __init__(self, store: esker.Store, folder: str) -> None:
        self._store = store
        self._tail = Tail(folder)
        self._began = SYSTEM_CLOCK.monotonic()
        self._counts = dict.fromkeys(("orders", "clicks", "put", "done", "billed"), 0)
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self.micros: list[int] = []  # that durable appends of one order took
        self._base = self.look()  # what a former run left is not ours
        self.samples.clear()
        self.micros.clear()

    def now(self) -> float:
        """Seconds since the beginning."""
        return SYSTEM_CLOCK.monotonic() - self._began

    def mark(self, kind: Kind, text: str, at: float | None = None) -> None:
        self.marks.append(Mark(self.now() if at is None else at - self._began, kind, text))

    def look(self) -> Sample:
        """Count what has come since the last look."""
        counts = self._counts
        for _, (topic, _, _, count, _, micros) in self._tail.new("acks"):
            counts["orders" if topic == ORDERS else "clicks"] += int(count)
            if topic == ORDERS and count == "1":
                self.micros.append(int(micros))
        for _, ids in self._tail.new("puts"):
            counts["put"] += len(ids)
        for _, words in self._tail.new("work"):
            counts["done"] += words[0] == "done"
        for _, (_, _, count, _) in self._tail.new("bills"):
            counts["billed"] += int(count)
        if len(self.micros) > MICROS_MAX:
            del self.micros[::2]
        sample = Sample(self.now(), **counts, paid=self._paid())
        self.samples.append(sample)
        return sample

    def _paid(self) -> int:
        topic = self._store[PAYMENTS]
        return sum(topic.end(shard) for shard in range(topic.shards))

    def since_the_beginning(self, sample: Sample) -> Sample:
        """Without what a former run left."""
        before = self._base
        return Sample(sample.at, *(a - b for a, b in zip(sample[1:], before[1:], strict=True)))

    def rate(self) -> float:
        """Orders a second, of late."""
        if not self.samples:
            return 0.0
        last = self.samples[-1]
        first = next(each for each in self.samples if each.at >= last.at - RECENT)
        passed = last.at - first.at
        return (last.orders - first.orders) / passed if passed else 0.0

    def percentile(self, part: float) -> float:
        """Milliseconds in which this part of the durable appends was acknowledged."""
        if not self.micros:
            return 0.0
        ordered = sorted(self.micros)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] / 1e3

    def close(self) -> None:
        self._tail.close()


def rates(samples: list[Sample], topic: str, buckets: int) -> list[float]:
    """Records a second in so many equal parts of the time."""
    if len(samples) < 2 or buckets < 1:
        return [0.0] * max(0, buckets)
    at = 2 if topic == CLICKS else 1
    begin, end = samples[0].at, samples[-1].at
    width = (end - begin) / buckets
    edges = [begin + width * number for number in range(buckets + 1)]
    levels = _levels(samples, at, edges)
    return [(b - a) / width for a, b in pairwise(levels)]


def lags(samples: list[Sample], buckets: int) -> list[float]:
    """How many orders billing was behind."""
    if len(samples) < 2 or buckets < 1:
        return [0.0] * max(0, buckets)
    begin, end = samples[0].at, samples[-1].at
    step = (end - begin) / buckets
    edges = [begin + step * (number + 1) for number in range(buckets)]
    made, billed = _levels(samples, 1, edges), _levels(samples, 5, edges)
    return [max(0.0, a - b) for a, b in zip(made, billed, strict=True)]


def _levels(samples: list[Sample], field: int, edges: list[float]) -> list[float]:
    """A count at these times, on straight lines between the samples."""
    found, at = [], 0
    for edge in edges:
        while at + 2 < len(samples) and samples[at + 1].at < edge:
            at += 1
        a, b = samples[at], samples[at + 1]
        part = (edge - a.at) / (b.at - a.at) if b.at > a.at else 1.0
        found.append(a[field] + (b[field] - a[field]) * min(1.0, max(0.0, part)))
    return found
