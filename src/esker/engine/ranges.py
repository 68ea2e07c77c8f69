"""A shard's offsets, divided: for readers that share the work, or take a part of it at a time.

Whoever cuts a range where a frame begins reads no frame twice and verifies none twice. So a range
is a row of atoms, each of whole frames, with an offset and a weight in bytes; `atoms` gives them
from directories alone, without touching a record. Where there are very many segments an atom is a
whole segment, and not even its directory is looked at.

Whoever was given a range has to account for all of it: `without_holes` names what is missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from esker.engine.batch import Batch
from esker.engine.reader import View, earliest_of
from esker.records import Gap
from esker.storage.log import LogSegment
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment

MANY_SEGMENTS: Final = 256  # of a range: more are not looked into
DELETED: Final = "deleted"  # on request, where somebody has to account for every offset


class Atom(NamedTuple):
    """Offsets [first, end) that are read together, and about how many bytes they take."""

    first: int
    end: int
    weight: int


def atoms(view: View, first: int, end: int) -> list[Atom]:
    """The pieces of a range, in order, without holes: gaps belong to the atom before them."""
    if first >= end:
        return []
    segments = view.segments
    at = max(0, bisect_right(segments, first, key=_base) - 1)
    stop = bisect_left(segments, end, key=_base)
    inside = segments[at:stop]
    if not inside:
        return [Atom(first, end, 0)]
    weigh = _whole(view, inside) if len(inside) > MANY_SEGMENTS else _frames(inside)
    starts = [(max(offset, first), weight) for offset, weight in weigh]
    starts[0] = (first, starts[0][1])
    found: list[Atom] = []
    for index, (begin, weight) in enumerate(starts):
        behind = starts[index + 1][0] if index + 1 < len(starts) else end
        behind = min(behind, end)
        if begin < behind:
            found.append(Atom(begin, behind, weight))
    return found


def _whole(view: View, segments: tuple[Segment, ...]) -> list[tuple[int, int]]:
    """One piece a segment, all of about the same weight."""
    usual = view.entry.options.segment_bytes
    return [(segment.base, usual) for segment in segments]


def _frames(segments: tuple[Segment, ...]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for segment in segments:
        positions, rows, behind = _directory(segment)
        if not len(positions):
            found.append((segment.base, 0))
            continue
        ends = [*positions[1:], behind]
        for row, position, end in zip(rows, positions, ends, strict=True):
            found.append((segment.base + row, end - position))
    return found


def _directory(segment: Segment) -> tuple[Any, Any, int]:
    """Positions and first rows of a segment's frames, and where the last one ends."""
    if isinstance(segment, SealedSegment):
        footer = segment.footer
        return footer.positions, footer.first_rows, footer.data_end
    if isinstance(segment, LogSegment):
        directory = segment.directory
        count = len(directory.positions)  # it may grow while we look
        return directory.positions[:count], directory.first_rows[:count], segment.end
    return [], [], 0  # cannot be read: whoever reads it is told


def fewer(given: list[Atom], most: int) -> list[Atom]:
    """The same range in about so many atoms at the most, of about the same weight."""
    if len(given) <= most:
        return given
    share = max(1, sum(atom.weight for atom in given) // most + 1)
    found: list[Atom] = []
    first, taken = given[0].first, 0
    for atom in given:
        taken += atom.weight
        if taken >= share or atom is given[-1]:
            found.append(Atom(first, atom.end, taken))
            first, taken = atom.end, 0
    return found


def last_before(view: View, timestamp: int, end: int) -> int:
    """An offset at and behind which every record is at or after a time; as low as directories tell.

    Records may be stamped out of order, so this is not where the first such record is: it is where
    the last frame ends that may have an earlier one.
    """
    for segment in reversed(view.segments[: bisect_left(view.segments, end, key=_base)]):
        if isinstance(segment, SealedSegment):
            footer = segment.footer
            rows, lows = footer.first_rows, footer.min_timestamps
        elif isinstance(segment, LogSegment):
            _, rows, _ = _directory(segment)
            lows = segment.directory.min_timestamps
        else:
            return end
        for at in range(len(rows) - 1, -1, -1):
            if lows[at] < timestamp:
                behind = segment.base + rows[at + 1] if at + 1 < len(rows) else end
                return min(end, behind)
            end = min(end, segment.base + rows[at])
    return end


# ---- nothing is missing ----------------------------------------------------------------------


def deleted_before(view: View) -> int:
    """Where a shard begins because somebody deleted what was before: that is not a loss."""
    return min(view.earliest, earliest_of(view))


def without_holes(
    items: Iterable[Batch | Gap], topic: str, shard: int, first: int, end: int, why: str
) -> Iterator[Batch | Gap]:
    """What `Reading._whole` gives of [first, end), and a Gap with reason `why` for what it lacks.

    A batch without records is not handed on. What it reaches over was left out, and is not missing.
    """
    for item in items:
        begin = item.first if isinstance(item, Gap) else item.begin
        if begin > first:
            yield Gap(topic, shard, first, begin - 1, why)
        if isinstance(item, Gap):
            yield item
            first = item.last + 1
        else:
            if len(item):
                yield item
            first = item.next_offset
    if first < end:
        yield Gap(topic, shard, first, end - 1, why)


def _base(segment: Segment) -> int:
    return segment.base
