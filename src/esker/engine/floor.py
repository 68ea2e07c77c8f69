"""Where a shard begins, and what became of what was before.

Two things move the beginning up. Somebody *deletes* records: those who read are not told, for it
was asked for. Or retention *evicts* them, to keep within a cap or an age: then everybody who comes
from below is told of a Gap with its exact bounds. So the state page holds one beginning,
`earliest`, and below it the offsets that were evicted, as a short list of losses.

Both go the same way. The page says where the shard begins now, synced; then readers see it; then
the segments wholly below are taken off the list; then their files go, the oldest first. A crash
between any two of these leaves files that nobody needs, and the next one to write unlinks them.

Files go at a pace where nobody waits for them to go. Each unlink gives the interpreter away and
asks for it again, so that many in a row are felt by whoever appends meanwhile: some go together,
then there is a rest in which he is alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from esker.errors import StorageError
from esker.format import names
from esker.format.state import with_loss
from esker.storage import tags
from esker.storage.files import join
from esker.storage.sealed import SealedSegment

if TYPE_CHECKING:
    from esker.engine.shard import Shard

MANY: Final = 16  # segments: one look at the directory costs less than one for each
AT_A_TIME: Final = 64  # segments whose names are made, and which are unmapped, at a time
TOGETHER: Final = 4  # segments that go between two rests
PACE: Final = 0.0008  # seconds for each, on average, if the disk is not slower than that


def begin_at(shard: Shard, offset: int, *, lost: bool = False) -> None:
    """The shard begins here from now on, durably; what is below is deleted, or lost.

    Assumes the lock.
    """
    losses = with_loss(shard.losses, shard.earliest, offset) if lost else shard.losses
    with shard.page.lock:
        try:
            shard.page.store(begin=(offset, losses))
        finally:
            known = shard.page.state
            if known is not None and known.earliest == offset:  # also if interrupted behind that
                shard.losses, shard.earliest = known.losses, offset  # in this order: see _begin


def take_forgotten(shard: Shard) -> list[SealedSegment]:
    """Take those off the list that end where the shard begins, or before; never the last.

    They are to be unlinked. Assumes the lock.
    """
    ends = [segment.base for segment in shard.segments[1:]]
    gone = [each for each, end in zip(shard.sealed, ends, strict=False) if end <= shard.earliest]
    if gone:
        shard.sealed = shard.sealed[len(gone) :]
        shard._publish_segments()
    return gone


def _indexes(shard: Shard) -> set[str] | None:
    """All indexes of tags, by one look; None if that fails: then each is looked for."""
    with suppress(StorageError):
        found = shard.files.list(shard.folder)
        return {join(shard.folder, name) for name in found if names.parse_tags(name)}
    return None


def _without_indexes(shard: Shard, gone: list[SealedSegment], there: set[str] | None) -> list[str]:
    """Unlink the indexes of their tags; returns the files of those that have none any more."""
    paths = []
    for segment in gone:
        index = tags.path_of(segment)
        try:
            if shard.files.kind(index) if there is None else index in there:
                shard.maps.drop(index)
                shard.files.unlink(index)
        except StorageError:  # both go another time
            shard._count("retention_errors")
        else:
            paths.append(segment.path)
            shard.maps.drop(segment.path)
    return paths


def _unlink_all(shard: Shard, paths: Iterable[str]) -> None:
    """Nothing but that: whatever is done between two of them, who appends may have to wait for."""
    left, unlink = iter(paths), shard.files.unlink
    while True:
        try:
            for path in left:
                unlink(path)
            return
        except StorageError:  # it is gone all the same; its file goes another time
            shard._count("retention_errors")


def unlink(shard: Shard, gone: list[SealedSegment], *, paced: bool = False) -> int:
    """Unlink what was taken off the list, the oldest first; returns the bytes. Needs no lock."""
    there = _indexes(shard) if len(gone) >= MANY else None
    clock = shard.context.clock
    due = clock.monotonic()
    for first in range(0, len(gone), AT_A_TIME):
        paths = _without_indexes(shard, gone[first : first + AT_A_TIME], there)
        for start in range(0, len(paths), TOGETHER):
            _unlink_all(shard, paths[start : start + TOGETHER])
            due += TOGETHER * PACE
            if paced and len(gone) > TOGETHER:
                shard.context.background.rest(min(due - clock.monotonic(), TOGETHER * PACE))
    reclaimed = sum(segment.size for segment in gone)
    if any(segment.local_size < segment.size for segment in gone):
        shard.orphaned = True
        shard.context.background.move_soon()
    if gone:
        shard._count("segments_deleted", len(gone))
        shard._count("bytes_reclaimed", reclaimed)
    return reclaimed
