"""Which offsets a query reads, and how they are divided among tasks. Runs on the driver.

    find_topics     the topics and shards that the options name
    resolve         what a place (earliest, 23, @-15m, ...) means in each of them, now
    divide          spans into about as many parts as are to run at once

A query reads what was there when it was planned: its spans have an end, and a task that finds less
than its span says so. Parts are cut where frames begin, so that no two tasks read the same bytes,
and small spans travel together, so that a thousand small topics do not become a thousand tasks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

from esker.engine.ranges import Atom
from esker.errors import InvalidOption, OffsetOutOfRange, TopicNotFound
from esker.spark import origins
from esker.spark.local import reading
from esker.spark.origin import Origin, Seen, Shards, Span
from esker.spark.origins import let_go
from esker.spark.wanted import Place, Wanted

__all__ = [
    "Shards", "Span", "checked", "divide", "find_topics", "let_go", "reading", "resolve", "shared",
    "spans",
]  # fmt: skip

PART_BYTES_MIN: Final = 4 << 20  # less is not worth a task; what Spark says of files, too
TASKS_PER_CORE: Final = 2


# ---- what is there ---------------------------------------------------------------------------


def find_topics(asked: Wanted, *, missing_ok: bool = False) -> list[Shards]:
    """The topics that are asked for, each with a fresh look at its shards."""
    origin = origins.at(asked)
    wanted = asked.topics
    if asked.pattern:
        matching = re.compile(asked.pattern)
        wanted = {name: () for name in origin.names() if matching.fullmatch(name)}
        missing_ok = True  # deleted since they were listed
    found = (_look(origin, name, shards, missing_ok) for name, shards in wanted.items())
    return [each for each in found if each is not None]


def _look(origin: Origin, name: str, shards: tuple[int, ...], missing_ok: bool) -> Shards | None:
    try:
        return origin.look(name, shards)
    except TopicNotFound:
        if not missing_ok:
            raise
        return None


# ---- from where to where ---------------------------------------------------------------------


def resolve(place: Place, topics: Iterable[Shards]) -> dict[str, dict[int, int]]:
    """The offset that a place means in each shard."""
    return {
        each.topic: {
            number: _offset(place, each.topic, number, view) for number, view in each.views.items()
        }
        for each in checked(place, list(topics))
    }


def checked(place: Place, topics: list[Shards]) -> list[Shards]:
    """Where a place is given for each shard, it is given for exactly those that are read."""
    if place.everywhere is not None:
        return topics
    wanted = {(each.topic, number) for each in topics for number in each.views}
    given = {(topic, number) for topic, shards in place.each.items() for number in shards}
    if wanted != given:
        lacking, extra = sorted(wanted - given), sorted(given - wanted)
        which, (topic, number) = ("lacks", lacking[0]) if lacking else ("names", extra[0])
        why = "every shard that is read needs one" if lacking else "which is not read"
        raise InvalidOption(f"{place.option} {which} shard {number} of topic {topic!r}: {why}")
    return topics


def _offset(place: Place, topic: str, number: int, seen: Seen) -> int:
    position = place.everywhere or place.each[topic][number]
    offset = seen.resolve(position)
    if position.kind == "time" and place.strict:
        if offset >= seen.visible and "Timestamp" in place.option:
            raise OffsetOutOfRange(
                f"{place.option}: topic {topic!r} shard {number} has no record at or after that "
                "time; startingOffsetsByTimestampStrategy=latest begins at its end instead"
            )
        return offset
    if position.kind == "offset" and offset > seen.visible:
        raise OffsetOutOfRange(
            f"{place.option}: topic {topic!r} shard {number} ends at {seen.visible}, "
            f"there is no offset {offset}"
        )
    return offset


def spans(asked: Wanted) -> list[tuple[Span, Seen]]:
    """What a batch query reads: a snapshot, taken now."""
    topics = find_topics(asked)
    begins, ends = resolve(asked.starting, topics), resolve(asked.ending, topics)
    found = []
    for each in topics:
        for number, view in each.views.items():
            first = begins[each.topic][number]
            if not asked.starting.each:  # who names an offset of a shard is to get it, or be told
                first = max(first, view.begin)
            end = min(ends[each.topic][number], view.visible)
            if first < end:
                found.append((Span(each.topic, each.id, number, first, end), view))
    return found


# ---- tasks -----------------------------------------------------------------------------------


def divide(
    found: Sequence[tuple[Span, Seen]], parts: int = 0, max_records: int = 0
) -> list[list[Span]]:
    """Spans for each task: of about the same weight, cut where frames begin."""
    weighed = [(span, seen.atoms(span.first, span.end)) for span, seen in found]
    return shared(weighed, parts, max_records)


def shared(
    weighed: Sequence[tuple[Span, list[Atom]]], parts: int = 0, max_records: int = 0
) -> list[list[Span]]:
    """Spans for each task, cut between atoms."""
    total = sum(atom.weight for _, atoms in weighed for atom in atoms)
    share = total / parts if parts else _share(total)
    tasks: list[list[Span]] = []
    task: list[Span] = []
    taken, bound, slack = 0, share, share * 0.05  # so that no crumb is left for one task more
    for span, atoms in weighed:
        first = span.first
        for index, atom in enumerate(atoms):
            taken += atom.weight
            full = taken >= bound - slack and total - taken > slack
            if not full and index + 1 < len(atoms):
                continue
            task.append(span._replace(first=first, end=atom.end))
            first = atom.end
            if full:
                tasks.append(task)
                task = []
                bound = (taken + slack) // share * share + share
    if task:
        tasks.append(task)
    offsets = sum(span.end - span.first for span, _ in weighed)
    if parts and len(tasks) < parts:  # fewer frames than tasks are wanted
        max_records = min(max_records or offsets, -(-offsets // parts))
    return _shorter(tasks, max_records) if max_records else tasks


def _share(total: int) -> float:
    """Bytes of a task, when nobody said how many tasks there should be."""
    return max(total / (TASKS_PER_CORE * (os.cpu_count() or 1)), PART_BYTES_MIN)


def _shorter(tasks: list[list[Span]], limit: int) -> list[list[Span]]:
    """No task with more than so many offsets."""
    found: list[list[Span]] = []
    for task in tasks:
        left: list[Span] = []
        room = limit
        for span in task:
            first = span.first
            while first < span.end:
                end = min(span.end, first + room)
                left.append(span._replace(first=first, end=end))
                room -= end - first
                first = end
                if not room:
                    found.append(left)
                    left, room = [], limit
        if left:
            found.append(left)
    return found
