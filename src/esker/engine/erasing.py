"""Deleting single records: those that carry a tag, or a tag that begins like this.

    find      the records that match, up to where the shard ended when the call was made: by the
              index of their tags in sealed segments (storage/tags.py), in the log by looking
    write     their offsets as bitmaps into the shard's file of deletions, synced
    say       the state page tells how long that file is now, synced: from here on they are deleted;
              then in its other slot too, so that damage to one of them costs nothing
    show      readers of this process leave them out; those of others look at the page again

A deletion that is cut short before the page says so has not happened. The page is what counts, so
half a deletion is never seen, and a file of deletions that is shorter than the page says, or
damaged below that, is an error to whoever reads: deleted records do not come back by accident.

The records stay where they are, at their offsets. Readers leave them out by whole batches (see
sieve.py), and nobody is told of a gap, for it was asked for. Their bytes go later: rewriting.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from esker.engine.batch import Batch
from esker.engine.reader import read_batches
from esker.engine.sieve import Sieve, is_text
from esker.errors import Corruption, InvalidOption, StorageError
from esker.storage.marks import UnknownMarks, blocks_of
from esker.storage.sealed import SealedSegment
from esker.storage.tags import index_of, known_index

if TYPE_CHECKING:
    from esker.engine.shard import Shard
    from esker.format.state import State

EVERYTHING = Sieve(deleted=False)
SCAN_BYTES = 4 << 20
INDEX_ROWS_MIN = 4_096  # a smaller segment is looked at as a whole, if it is here


class Match(NamedTuple):
    """Which records: with this tag, or with one that begins like this."""

    tag: str | None = None
    prefix: str | None = None

    def mask(self, tags: Any) -> Any:
        if self.tag is not None:
            return pc.equal(tags, self.tag)
        return pc.starts_with(tags, pattern=self.prefix)


def check_match(tag: Any, prefix: Any) -> Match | None:
    """What `tag` and `tag_prefix` ask for; None for neither."""
    for name, value in (("tag", tag), ("tag_prefix", prefix)):
        if value is not None and not is_text(value):
            raise InvalidOption(f"{name}={value!r}: text of at least one character")
    if tag is not None and prefix is not None:
        raise InvalidOption("tag and tag_prefix exclude each other: give one of them")
    return None if tag is None and prefix is None else Match(tag, prefix)


def load(shard: Shard, state: State | None) -> None:
    """What was deleted before this process took the shard. Assumes the lock."""
    number, end = (state.marks, state.marks_end) if state is not None else (0, 0)
    try:
        shard.marks = shard._marks.load(number, end)
    except Corruption as problem:
        shard.marks = UnknownMarks(problem)


def erase(shard: Shard, match: Match, before: int) -> int:
    """Delete the durable records below an offset that match; returns how many they were."""
    with shard.lock:
        shard.open_for_writing()
        shard.require_sound()
        _ = shard.marks.blocks  # raises if nobody knows what is deleted already
        end = min(before, shard.durable)
    found = list(_found(shard, match, end))
    if not found:
        return 0
    blocks = blocks_of(found)
    with shard.lock:
        shard.open_for_writing()
        shard.require_sound()
        gone = len(found) - sum(1 for offset in found if offset in shard.marks)
        if gone:
            _mark(shard, blocks)
            shard._count("records_deleted", gone)
            shard._publish_segments()
            _sweep(shard)
    return gone


def _found(shard: Shard, match: Match, end: int) -> Iterator[int]:
    """The offsets of the records that match and are there."""
    for segment in shard.segments:
        if segment.base >= end:
            return
        if isinstance(segment, SealedSegment):
            rows = _indexed(shard, segment, match)
            if rows is not None:
                first, base, known = shard.earliest, segment.base, shard.marks
                yield from (
                    base + row for row in rows
                    if first <= base + row < end and base + row not in known
                )  # fmt: skip
                continue
        found = _scanned(shard, match, segment.base, min(segment.base + segment.rows, end))
        yield from (offset for offset in found if offset not in shard.marks)


def _indexed(shard: Shard, segment: SealedSegment, match: Match) -> Any:
    """The rows of a sealed segment that match, by its index; None where one has to look at all."""
    try:
        elsewhere = segment.place is not None
        if segment.rows < INDEX_ROWS_MIN and not elsewhere:
            return None
        with shard._sealing:  # nobody rewrites it: an index tells nothing that its segment lacks
            index = known_index(shard.files, shard.maps, segment)
        if index is None:
            if elsewhere:
                segment.inside()  # fetched before the lock is taken, that sealing needs, too
            with shard._sealing:
                index = index_of(shard.files, shard.maps, segment)
    except (Corruption, StorageError):  # whoever looks is told what is wrong, or that it is gone
        return None
    if match.tag is not None:
        return index.equal(match.tag.encode())
    assert match.prefix is not None
    return index.prefixed(match.prefix.encode())


def _scanned(shard: Shard, match: Match, first: int, end: int) -> Iterator[int]:
    first = max(first, shard.earliest)
    for batch in read_batches(
        shard, first, end, max_bytes=SCAN_BYTES, gaps="yield", sieve=EVERYTHING
    ):
        if not isinstance(batch, Batch) or batch.columns.tags is None:
            continue
        rows = pc.indices_nonzero(match.mask(batch.columns.tags))
        if len(rows):
            yield from batch.offsets.take(rows).to_pylist()


def _mark(shard: Shard, blocks: dict[int, bytes]) -> None:
    # Down to where the files begin: whoever comes upon a record that is blank on disk has to find
    # here that it is deleted, see rewriting.py.
    files_from = shard.segments[0].base if shard.segments else shard.earliest
    after = shard.marks.joined(blocks, min(shard.earliest, files_from))
    if shard.durability == "ephemeral":  # nothing of it is on disk, nor are its deletions
        shard.marks = after
        return
    file, salt = shard._marks, int.from_bytes(shard.context.files.random(8), "little")
    page = shard.page
    with page.lock:  # a crash finds a file being written, or a page, and never both
        if page.state is None:  # no page, no deletions: so there is one before the file
            page.store()
        place = file.append(blocks, after, salt)
        try:
            page.store(marked=place)
        finally:
            known = page.state
            if known is not None and (known.marks, known.marks_end) == place:  # also if interrupted
                (file.number, file.end), file.spent, shard.marks = place, False, after  # no calls
        with suppress(StorageError):  # it counts already
            page.store()


def _sweep(shard: Shard) -> None:
    """Files of deletions that no page names any more."""
    try:
        shard._marks.sweep()
    except StorageError:  # it is in nobody's way, and goes with the next one
        shard._count("retention_errors")
