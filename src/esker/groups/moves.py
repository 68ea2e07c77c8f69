"""Seek: where a group would be put, and putting it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from esker import positions
from esker.engine.reader import View, count_records, resolve
from esker.errors import InvalidOption

if TYPE_CHECKING:
    from esker.engine.topic import Topic


class Move(msgspec.Struct, frozen=True):
    """A cursor that was moved by a seek, or would be."""

    topic: str
    shard: int
    before: int
    after: int
    records: int  # that are delivered again (above 0), or not at all (below 0)

    def __str__(self) -> str:
        what = f"{self.records} again" if self.records >= 0 else f"{-self.records} left out"
        return f"topic {self.topic!r} shard {self.shard}: {self.before} -> {self.after}, {what}"


def targets(topic: Topic, to: Any, shard: int | None) -> list[tuple[View, int]]:
    """Where a position lies in each shard, never behind its end."""
    position = positions.parse(to, topic._store._context.clock.now_us())
    if position.kind == "offset" and shard is None and topic.shards > 1:
        raise InvalidOption(
            f"to={to!r}: topic {topic.name!r} has {topic.shards} shards, each with offsets of its "
            "own; say which with shard=N, or give a time, -N, earliest or latest"
        )
    return [(view, min(resolve(view, position), view.visible)) for view in topic._views(shard)]


def move_of(topic: Topic, view: View, before: int, after: int) -> Move:
    """What a seek would do to a shard."""
    records = count_records(view, min(before, after), max(before, after))
    return Move(topic.name, view.number, before, after, records if after < before else -records)
