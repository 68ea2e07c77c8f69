"""Boundaries that the model test must have been at, and how often it was.

A generator that looks busy may never fill a segment to the last byte. So whatever is hit is
counted, by the rules themselves or by watching the engine at work, and a part of the suite fails
that stayed away from any boundary of the table.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from esker.engine import reader, sealing
from esker.engine.committer import Committer
from esker.engine.page import Page
from esker.engine.shard import Shard
from esker.storage.log import LogSegment
from esker.storage.marks import MarksFile
from tests.model.switches import Setting, Switches

HITS: Counter[str] = Counter()

EVERYWHERE: Final = (
    # what is appended
    "empty batch (many)", "empty batch (arrow)", "empty batch (batch)", "zero-length value",
    "record of the maximum size", "record above the maximum size", "batch too large",
    "batch over several shards", "timestamp in the past", "timestamp before 1970",
    "records deleted", "topic deleted", "deleted by tag", "deleted by prefix",
    "deleted by tag before a place", "a whole batch deleted", "rewritten without what was deleted",
    # where a segment ends
    "roll by bytes", "roll by records", "roll by age", "segment exactly full",
    "segment one word too small", "seal merging frames", "seal in place", "lingered out",
    # how things become durable
    "journal used", "checkpoint of a journal",
    # where a reader begins and ends
    "read at the floor", "read below the floor", "read at the end", "read behind the end",
    "nothing to read", "back by 0", "back beyond the start", "time of a frame's smallest",
    "time of a frame's largest", "time behind all", "time before all", "read across a gap",
    "read ended by a gap", "reader beside a writer", "second writer",
    # how a life ends
    "records lost to a kill: buffered",
    "restart", "restart with nothing new", "restart with a buffer", "restart of an empty topic",
    "kill", "crash", "two deaths in a row", "death with a journal pending",
    "death with a buffer", "death between roll and seal", "crash that lost records",
    "crash that lost nothing", "clock set back", "clock set forward", "age while asleep",
)  # fmt: skip
WITH_SMALL_LIMITS: Final = (
    "buffer full", "frame split in two", "batch of the largest single frame",
    "active log sealed by close", "writer seals for the sealer", "ceiling moved again",
    "deletions written anew",
)  # fmt: skip


def hit(event: str, count: int = 1) -> None:
    HITS[event] += count


def missing(small: bool) -> list[str]:
    """The boundaries that were not hit."""
    table = (*EVERYWHERE, *WITH_SMALL_LIMITS) if small else EVERYWHERE
    return [event for event in table if not HITS[event]]


def _roll(shard: Shard) -> Any:
    options, log = shard.entry.options, shard.active
    assert log is not None
    if options.segment_records and log.next_row >= options.segment_records:
        hit("roll by records")
    elif (
        options.segment_age_us
        and shard.context.clock.now_us() - log.header.created >= options.segment_age_us
    ):
        hit("roll by age")
    else:
        hit("roll by bytes")
    if log.end == options.segment_bytes:
        hit("segment exactly full")
    return _OLD["roll"](shard)


def _reserve(self: Page, needed: int) -> None:
    before = self.ceiling
    _OLD["reserve"](self, needed)
    if self.ceiling > before > 0:
        hit("ceiling moved again")


def _sift(columns: Any, first: int, keep: Any) -> Any:
    left = _OLD["sift"](columns, first, keep)
    if not left[0].count:
        hit("a whole batch deleted")
    return left


def _anew(self: MarksFile, *arguments: Any) -> Any:
    if self.number:
        hit("deletions written anew")
    return _OLD["_anew"](self, *arguments)


def _counting(owner: Any, name: str, event: str) -> Setting:
    before = getattr(owner, name)

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        hit(event)
        return before(self, *arguments, **named)

    return owner, name, counted


_OLD: Final[dict[str, Any]] = {
    "roll": sealing.roll, "reserve": Page.reserve, "sift": reader.sift, "_anew": MarksFile._anew,
}  # fmt: skip
WATCH: Final = Switches(
    "watched",
    (
        (sealing, "roll", _roll),
        (Page, "reserve", _reserve),
        (reader, "sift", _sift),
        (MarksFile, "_anew", _anew),
        _counting(LogSegment, "_write_merged", "seal merging frames"),
        _counting(LogSegment, "write_footer", "seal in place"),
        _counting(Committer, "_through_journal", "journal used"),
        _counting(Committer, "_checkpoint", "checkpoint of a journal"),
        _counting(sealing, "seal_active", "active log sealed by close"),
        _counting(sealing, "_seal_one", "writer seals for the sealer"),
    ),
)
