"""Which shards are whose. Everybody computes the same from the same list of members."""

from __future__ import annotations

from collections.abc import Sequence


def shards_of(topic: int, shards: int, index: int, count: int) -> list[int]:
    """The shards of a topic that belong to member `index` of `count`.

    Topics are turned against each other by their ids: the only shard of each of a hundred topics
    does not fall to the same member.
    """
    return [shard for shard in range(shards) if (shard + topic) % count == index]


def assigned(topic: int, shards: int, slot: int, slots: Sequence[int]) -> list[int]:
    """The shards of the member in a slot, among those of its group; none if it is not one."""
    ordered = sorted(slots)
    if slot not in ordered:
        return []
    return shards_of(topic, shards, ordered.index(slot), len(ordered))
