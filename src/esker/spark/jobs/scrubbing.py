"""`esker spark scrub`: every checksum of a store, verified by all cores.

A store that nobody reads rots unseen. This is `esker.verify` for large ones: the same questions,
the same answers in the same order. What takes time, reading each segment from its first byte to its
last, is dealt out to tasks, small segments together; what concerns the store as a whole (identity,
catalog, journals, states, whether segments follow each other) the driver checks at the end, with
what the tasks found. See upkeep/dealt.py.

It changes nothing, takes no lock and works beside living writers, as verify does. Nothing is kept
from one run to the next: a scrub that was stopped begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from esker.errors import InvalidOption, TopicNotFound, nearest
from esker.records import Gap
from esker.spark.jobs.running import Progress, Teller, in_rounds
from esker.spark.source import local_path
from esker.storage.files import SYSTEM_FILES
from esker.upkeep import dealt
from esker.upkeep.dealt import Known, Piece
from esker.upkeep.report import Problem, Verification, size_text

ITEM_BYTES: Final = 64 << 20  # of small segments that one task takes


class Scrubbed(msgspec.Struct, frozen=True):
    """What a scrub found; the fields of a `Verification`, and how fast it went."""

    path: str
    ok: bool  # no error; warnings are what a crash leaves and opening sets right
    problems: list[Problem]
    gaps: list[Gap]  # losses that are on record: readers get them as a Gap
    writers: list[int]  # processes that were writing meanwhile
    topics: int
    shards: int
    files: int
    bytes: int
    segments: int
    frames: int
    records: int
    seconds: float
    tasks: int
    deleted: int = 0  # of these records: marked as deleted, one by one

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        fields = {name: getattr(self, name) for name in Verification.__struct_fields__ if
                  name != "deep"}  # fmt: skip
        told, *rest = str(Verification(**fields)).split("\n", 2)
        speed = f"{rest[0]}, {self.tasks} tasks, {size_text(int(self.rate))}/s"
        return "\n".join([told, speed, *rest[1:]])


def scrub(
    spark: SparkSession,
    store: str,
    *,
    topics: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Scrubbed:
    """Verify every checksum of a store, in parallel; finds what `esker verify` finds.

        store    the store's directory
        topics   names with commas; without them, all topics

    Changes nothing, and works beside living writers.
    """
    root, only = local_path(store), _names(topics)
    found, there = dealt.pieces(SYSTEM_FILES, root, only)
    for name in only:
        if name not in there:
            raise TopicNotFound(f"no topic {name!r} in {root}; {nearest(name, there)}")
    items = _items(found)
    teller = Teller("scrub", "bytes", progress, total=sum(map(_weight, found)))
    known: dict[str, Known] = {}
    for answers in in_rounds(spark, [msgspec.json.encode(item) for item in items], _examined):
        done = [each for answer in answers for each in _decoder.decode(answer)]
        known.update((each.piece.path, each) for each in done)
        teller.add(sum(_weight(each.piece) for each in done))
    report = dealt.check(SYSTEM_FILES, root, known, only)
    if report.problems and report.writers:  # one of them may have sealed or rolled meanwhile
        report = dealt.check(SYSTEM_FILES, root, {}, only)
    return Scrubbed(
        path=root, ok=report.ok, problems=report.problems, gaps=report.gaps,
        writers=report.writers, topics=report.topics, shards=report.shards, files=report.files,
        bytes=report.bytes, segments=report.segments, frames=report.frames,
        records=report.records, seconds=teller.seconds, tasks=len(items), deleted=report.deleted,
    )  # fmt: skip


def _names(topics: str | None) -> list[str]:
    if topics is None:
        return []
    found = [name.strip() for name in topics.split(",") if name.strip()]
    if not found:
        raise InvalidOption(f"topics={topics!r} names no topic; as in orders,payments")
    return found


def _weight(piece: Piece) -> int:
    return max(0, piece.size if piece.limit is None else min(piece.size, piece.limit))


def _items(found: Sequence[Piece]) -> list[list[Piece]]:
    """Segments for each task: a large one alone, small ones together."""
    items: list[list[Piece]] = []
    room = 0
    for piece in found:
        if not items or room < _weight(piece):
            items.append([])
            room = ITEM_BYTES
        items[-1].append(piece)
        room -= _weight(piece)
    return items


# ---- in the workers --------------------------------------------------------------------------

_decoder = msgspec.json.Decoder(list[Known])


def _examined(item: bytes) -> bytes:
    seen = (dealt.examined(SYSTEM_FILES, each) for each in _pieces.decode(item))
    return msgspec.json.encode([each for each in seen if each is not None])


_pieces = msgspec.json.Decoder(list[Piece])
