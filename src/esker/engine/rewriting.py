"""Giving back the room of deleted records: sealed segments are rewritten without what they held.

Deleting by tag hides records at once and leaves their bytes where they are (see erasing.py). When
at least half of a sealed segment's records are deleted, and that is worth it, a copy is made in
which they are blank (storage/blank.py), and it takes the segment's place:

    say       the state page is written once more: with the one that told of the deletion, both of
              its slots now say so, and no damage to one of them brings back a record that is blank
    copy      beside the segment, under a temporary name, synced
    replace   the index of tags goes, for it tells of tags that the copy lacks; the copy is renamed
              over the segment; the directory is synced

The copy has the same rows at the same offsets, so both files are right at any moment, and a crash
anywhere leaves one of them. What was deleted stays marked as deleted for as long as its segment is
there: who reads a blank row finds that it is one to be left out.

Readers need no lock and are not disturbed. Who has mapped the old file goes on with it, and takes
its directory from it (storage/sealed.py). Who maps the new one, in whatever process, looks what is
deleted after he has mapped it: a record is blank only after the page has said that it is gone.

What is damaged, or has a hole, is left alone; and so is everything where the file of deletions
cannot be read. A copy that is not smaller than its segment is thrown away: readers tell the two by
their sizes.

One segment at a time, in the thread that seals. A look takes at most LOOK_BYTES_MAX, so that what
is written for this stays below 32 MiB a second. `reclaim` does the same by hand, at once, for every
segment in which a deleted record still takes room, and seals the log if there is one in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from esker.engine import once, sealing, tiering
from esker.engine.context import LOG
from esker.errors import Corruption, EskerError
from esker.storage.blank import copy_blank, held, temporary
from esker.storage.marks import Marks, UnknownMarks
from esker.storage.sealed import SealedSegment
from esker.storage.tags import drop_index

if TYPE_CHECKING:
    from esker.engine.shard import Shard

DEAD_SHARE = 0.5  # of a segment's records, at least, before it is rewritten in the background
GAIN_BYTES_MIN = 64 << 10  # to be given back by one
LOOK_BYTES_MAX = 160 << 20  # of segments, in one look; there is one every five seconds


def rewrite_some(shards: Iterable[Shard]) -> int:
    """For the background: what is worth it, up to a bound; returns the bytes given back.

    What fails is logged and counted, and tried again by the next look.
    """
    left, gained = LOOK_BYTES_MAX, 0
    for shard in list(shards):
        if not shard.marks or isinstance(shard.marks, UnknownMarks):
            continue
        background = shard.context.background
        try:
            for segment in due(shard):
                if left <= 0 or background.resting():
                    return gained
                left -= segment.size
                with background.diary.at("rewriting", shard):
                    gained += rewrite(shard, segment, GAIN_BYTES_MIN)
        except EskerError as problem:
            shard._count("retention_errors")
            background.diary.failed("rewriting", problem, shard)
            # not the error itself: its traceback holds the old file open, and its room
            LOG.warning("rewriting segments of %s: %s", shard.folder, str(problem))
    return gained


def due(shard: Shard) -> list[SealedSegment]:
    """The sealed segments of which enough is deleted. Looks at names and marks only."""
    sealed, marks, found = shard.sealed, shard.marks, []
    if not shard.writing or shard.poison is not None:
        return []
    ends = [segment.base for segment in shard.segments[1:]] + [shard.next]
    for segment, end in zip(sealed, ends, strict=False):
        dead = marks.count(segment.base, end)
        enough = dead and dead >= (end - segment.base) * DEAD_SHARE
        here = segment.local_size == segment.size  # one that was moved is left where it is
        if enough and here and dead != segment.weighed and segment.size >= GAIN_BYTES_MIN:
            found.append(segment)
    return found


def reclaim(shard: Shard) -> int:
    """Take all deleted records of a shard off the disk, as far as that makes its files smaller.

    Returns the bytes that this gave back.
    """
    with shard.lock:
        shard.open_for_writing()
        shard.require_sound()
        log, marks = shard.active, shard.marks
        if not marks.blocks:  # raises if nobody knows what is deleted
            return 0
        if log is not None and not log.damaged and marks.count(log.base, log.base + log.next_row):
            sealing.roll(shard)
    while sealing.seal_next(shard):
        pass
    for segment in list(shard.sealed):
        if segment.local_size < segment.size and shard.marks.count(
            segment.base, segment.base + segment.rows
        ):
            tiering.bring_back(shard, segment)
    return sum(rewrite(shard, segment, 1) for segment in list(shard.sealed))


def rewrite(shard: Shard, segment: SealedSegment, least: int) -> int:
    """Rewrite a segment in which deleted records take at least so many bytes.

    Returns how much smaller it is: 0 if nothing was done.
    """
    once.keep(shard)
    with shard._sealing:
        with shard.lock:
            if not sealing.is_ours(shard, segment):
                return 0
            marks = shard.marks
        try:
            dead = marks.count(segment.base, segment.base + segment.rows)
            segment.weighed = dead  # also if it is left as it is: nothing changes until more go
            if not dead or held(segment, marks) < least:
                return 0
            _say_again(shard)
            return _replace(shard, segment, marks)
        except Corruption as problem:  # left alone: who reads it is told, and so is who verifies
            LOG.warning("not rewritten: %s", str(problem))
            return 0
        except BaseException:
            segment.weighed = 0
            raise


def _say_again(shard: Shard) -> None:
    """Both slots of the state page have what is deleted: one had it, and is not written now."""
    if shard.durability != "ephemeral":
        shard.page.say_again()


def _replace(shard: Shard, segment: SealedSegment, marks: Marks) -> int:
    size, copy = segment.size, temporary(segment)
    made = copy_blank(shard.files, segment, marks, shard._compress)
    try:
        if made >= size:
            return 0
        drop_index(shard.files, shard.maps, segment)
        if not sealing.replace(shard, segment, copy, made):
            return 0
        shard._count("bytes_reclaimed", size - made)
        shard.files.sync_dir(shard.folder)
        return size - made
    finally:
        sealing.drop(shard, copy)
