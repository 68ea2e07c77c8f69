"""From log to sealed segment: the files of a shard, one after the other.

    make    a log is created behind what is there; its header says what it follows
    roll    it has its size, its records or its age: the next one is made, and it waits in `rolled`
    seal    synced, it becomes a segment (storage/log.py) and takes its place in `sealed`

Only the first two happen on the way of a writer. Sealing is the background's, which holds
`Shard._sealing` throughout and the shard's lock only to look and to enter what it made. A writer
that finds more than a few logs waiting seals the oldest himself, so that they cannot pile up.

    replace a sealed file gives way to one that says the same: rewritten, or a stub (tiering.py)

    Rule 1  Readers find every offset in `segments` at any moment: a log is in `rolled` before the
            next is shown, and leaves it in the same step in which its segment enters `sealed`.
    Rule 2  Logs are sealed in order, the oldest first. A damaged one stops the line: repair is for
            whoever looks at it.
    Rule 3  A log whose sync failed poisons its shard, whoever was sealing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from esker.engine import tally
from esker.engine.layout import follows
from esker.errors import DiskFull, StorageError
from esker.format.segment import SegmentHeader
from esker.storage.log import LogSegment

if TYPE_CHECKING:
    from esker.engine.shard import Shard
    from esker.storage.sealed import SealedSegment

ROLLED_MAX: Final = 8  # more logs than this waiting for the sealer: the writer seals one itself


def make(shard: Shard) -> LogSegment:
    """Begin a log behind everything there is. Assumes the lock."""
    before = shard.active or (shard.sealed[-1] if shard.sealed else None)
    header = SegmentHeader(
        store=shard.context.store, topic=shard.entry.id, shard=shard.number,
        epoch=shard.entry.epoch, base=shard.next, created=shard.context.clock.now_us(),
        salt=int.from_bytes(shard.context.files.random(8), "little"),
        **follows(before, shard.next, shard.gap),
    )  # fmt: skip
    log = LogSegment.create(shard.files, shard.folder, header, shard._config)
    listed = (*shard.segments, log)
    shard.active, shard.segments = log, listed  # together, or an interrupt parts them
    shard._publish_segments()
    shard._count("segments_created")
    if shard.counters is not None:
        shard.counters.set("active_segment", log.number)
    return log


def roll(shard: Shard) -> LogSegment:
    """End the active log and begin the next; the sealer does the rest. Assumes the lock."""
    old = shard.active
    assert old is not None
    if len(shard.rolled) >= ROLLED_MAX:
        with contextlib.suppress(DiskFull):  # a record needs less room than a sealed copy
            _seal_one(shard)
        shard.require_sound()
    started = shard.context.clock.monotonic()
    shard.rolled.append(old)  # before the new one is shown: readers never see neither
    try:
        log = make(shard)
    except BaseException:
        if shard.active is old:
            shard.rolled.remove(old)
            shard._count("failed_rolls")
        else:  # interrupted when it was done
            shard.context.background.seal_soon(shard)
        raise
    shard._count("segments_rolled")
    shard._count("roll_ns", int((shard.context.clock.monotonic() - started) * 1e9))
    shard.context.background.seal_soon(shard)
    return log


def roll_if_aged(shard: Shard) -> None:
    """End an active log that is older than the topic's segment_age, also when nobody writes."""
    age = shard.entry.options.segment_age_us
    with shard.lock:
        log = shard.active
        if not shard.writing or not age or log is None or not log.next_row:
            return
        if shard.context.clock.now_us() - log.header.created >= age and shard.poison is None:
            roll(shard)


def _seal_one(shard: Shard) -> None:
    """Seal the oldest rolled log. Assumes the lock; used when the sealer lags behind.

    Should the sealer begin meanwhile, it waits for the lock before it looks which is next.
    """
    if shard.rolled and not shard.rolled[0].damaged and not shard._sealing.locked():
        seal_here(shard, shard.rolled[0])  # else the sealer is at it already


def seal_here(shard: Shard, log: LogSegment) -> None:
    """Seal the oldest rolled log, while everybody waits. Assumes the lock."""
    try:
        enter(shard, log, seal(shard, log))
    except BaseException as problem:
        if log.sync_failed:
            shard._poison(problem)
        raise


def seal_next(shard: Shard) -> bool:
    """Seal the oldest rolled log without holding the lock while writing. False if none."""
    with shard._sealing:
        with shard.lock:
            if not shard.rolled or shard.rolled[0].damaged or shard.poison is not None:
                return False
            if not shard.writing:  # it was closed while we waited
                return False
            log = shard.rolled[0]
        try:
            made = seal(shard, log)
        except BaseException as problem:
            if log.sync_failed:
                shard.poisoned_by(problem)
            raise
        with shard.lock:
            enter(shard, log, made)
    return True


def seal(shard: Shard, log: LogSegment) -> SealedSegment:
    """Make the segment. Nobody sees it yet."""
    started = shard.context.clock.monotonic()
    shard.sync_directly(log, log.end)
    made = log.seal(shard.files, shard._compress)
    if shard._compress.late and shard.counters is not None:
        tally.packed(shard.counters, log.next_row, log.end, made.size)
    shard._count("seal_ns", int((shard.context.clock.monotonic() - started) * 1e9))
    return made


def enter(shard: Shard, log: LogSegment, made: SealedSegment) -> None:
    """The segment takes the place of its log. Assumes the lock."""
    sealed = [*shard.sealed, made.attach(shard.maps)]
    rolled = [other for other in shard.rolled if other is not log]
    shard.sealed, shard.rolled = sealed, rolled  # together, or an interrupt parts them
    shard.context.committer.sealed(log)
    shard._publish_segments()
    shard._count("seals")


def is_ours(shard: Shard, segment: SealedSegment) -> bool:
    """Whether a segment is still one of the shard's, and may be touched."""
    return shard.writing and shard.poison is None and segment in shard.sealed


def replace(
    shard: Shard, segment: SealedSegment, copy: str, local_size: int, size: int = 0
) -> bool:
    """A copy takes the place of a sealed file; it says the same of all that is still there.

    Assumes `_sealing`. False if the segment was evicted meanwhile: its name is not to come back.
    """
    with shard.lock:
        if not is_ours(shard, segment):
            return False
        renamed = False
        try:
            shard.files.rename(copy, segment.path)
            renamed = True
        finally:
            if renamed or not shard.files.kind(copy):  # also if interrupted between the two
                segment.replaced(local_size, size)
                shard.rewritten += 1  # behind the size, see tally.py
                shard._count("segments_replaced")
                shard._publish_segments()
    return True


def drop(shard: Shard, copy: str) -> None:
    """Unlink a copy, unless it has taken its place."""
    with contextlib.suppress(StorageError):
        if shard.files.kind(copy):
            shard.files.unlink(copy)


def seal_active(shard: Shard, log: LogSegment) -> None:
    """The same with the log being written, when its shard is closed. Assumes the lock."""
    made = log.seal(shard.files, shard._compress)
    shard.sealed.append(made.attach(shard.maps))
    shard.active = None
    shard._publish_segments()
