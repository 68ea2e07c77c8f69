"""What the checker has: lists that were noted, and a fresh read of the store. And what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

import esker
from esker.demo import notes

Values = dict[int, bytes]  # of a shard, by offset


class Claim(msgspec.Struct):
    """Something that the demo says, and what was counted."""

    name: str
    said: str
    counted: str
    holds: bool


class Ack(NamedTuple):
    """A line of an ack list: these offsets hold these values."""

    first: int
    records: int
    hash: str


Place = tuple[str, int]  # topic and shard


def read_acks(folder: str) -> dict[Place, list[Ack]]:
    """All ack lists of all runs, by topic and shard, in order of offset."""
    found: dict[Place, list[Ack]] = {}
    for _, words in notes.all_lines(folder, "acks"):
        place = (words[0], int(words[1]))
        found.setdefault(place, []).append(Ack(int(words[2]), int(words[3]), words[4]))
    for acks in found.values():
        acks.sort()
    return found


def read_values(
    store: esker.Store, topic: str, step: Callable[[], object] = lambda: None
) -> dict[int, Values]:
    """Everything that a topic holds, by shard. What is damaged is not there."""
    found: dict[int, Values] = {}
    for shard in range(store[topic].shards if topic in store else 0):
        step()
        found[shard] = dict(_values(store[topic], shard, "earliest"))
    return found


def _values(topic: esker.Topic, shard: int, start: int | str) -> Iterator[tuple[int, bytes]]:
    while True:
        try:
            for batch in topic.batches(start, shard=shard, gaps="skip"):
                yield from zip(batch.offsets.to_pylist(), batch.values, strict=True)
            return
        except esker.Corruption as problem:
            if problem.last is None:
                return
            start = problem.last + 1
