"""Sealed segments that lie elsewhere: moved to a cold store, and brought back.

A segment that is cold is still there: a *stub* has its name (format/place.py), with its header and
its footer, and says where the frames are. So listing, recovery, retention and searching by time go
on as before, in every process; only who reads records of it goes to the cold store (sealed.py).

    move out     the file is held against its own hash, put into the cold store, fetched again and
                 compared; then the stub is written beside it, synced, and renamed over it
    bring back   the segment is fetched and compared, written beside the stub, synced, and renamed
                 over it; then it is deleted in the cold store
    sweep        what lies in the cold store for this shard, and no stub names, is deleted

A crash anywhere leaves the segment or its stub, and with the stub the whole segment where it says.
What else it leaves are *orphans*: objects that no stub names, put there by a move that was not
finished, or forgotten by an eviction. The next sweep takes them. A key is never used twice, so a
deletion that arrives late takes nothing but the orphan it was meant for.

The cold store may be slow, or not answer. While it is asked, `Shard.tiering` is held, which nobody
needs who writes or reads; `Shard._sealing` is taken for the exchange of the files alone. Who closes
the store waits for an exchange, and for nothing else: a move that comes back later finds the store
closed and leaves an orphan.

A sweep goes by the files, and where they leave a doubt it takes nothing: of a segment that cannot
be read, that lies in quarantine, whose bringing back may not be durable, or whose file is missing
although nothing says that it was evicted or deleted: what is there may be all that is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from esker.engine import sealing
from esker.engine.context import LOG, Context
from esker.engine.layout import list_segments
from esker.errors import Corruption, EskerError, InvalidOption, StorageError
from esker.format import names
from esker.format import segment as fmt
from esker.format.catalog import TopicEntry
from esker.format.place import Place, stub_of
from esker.options import is_bounded
from esker.storage.blank import temporary
from esker.storage.cold import ColdStore, fetch
from esker.storage.files import join
from esker.storage.sealed import SealedSegment, file_hash_matches

if TYPE_CHECKING:
    from esker.engine.shard import Shard

Tier = Literal["cold", "hot"]


class Tiered(msgspec.Struct, frozen=True):
    """What a move by hand has done."""

    topic: str
    to: Tier
    segments: int
    bytes: int

    def __str__(self) -> str:
        way = "moved to the cold store" if self.to == "cold" else "brought back"
        return f"topic {self.topic!r}: {self.segments} segments of {self.bytes} bytes {way}"


# ---- by hand ---------------------------------------------------------------------------------


def tier(shard: Shard, to: Tier, before: int) -> tuple[int, int]:
    """Move the sealed segments of a shard that lie before an offset; segments and bytes."""
    with shard.lock:
        shard.open_for_writing()
        shard.require_sound()
    while to == "cold" and sealing.seal_next(shard):
        pass
    count = size = 0
    ends = [segment.base for segment in shard.segments[1:]] + [shard.next]
    for segment, end in zip(list(shard.sealed), ends, strict=False):
        if end > before:
            break
        segment.pinned = to == "hot"
        moved = move_out(shard, segment) if to == "cold" else bring_back(shard, segment)
        count, size = count + bool(moved), size + moved
    return count, size


def check_tier(to: Any, cold: str) -> Tier:
    """Whether it can be done at all."""
    if to not in ("cold", "hot"):
        raise InvalidOption(f'to={to!r}: one of "cold", "hot"')
    if to == "cold" and not cold:
        raise InvalidOption(
            "there is no cold store to move segments to: open the store with "
            'cold="directory", or with a URL such as cold="s3://bucket/folder"'
        )
    return to  # type: ignore[no-any-return]


def tell_bounds(context: Context, entries: Iterable[TopicEntry]) -> None:
    """Say, once, that bounds have no effect without a cold store."""
    if context.cold or context.read_only or context.told_bounds:
        return
    bounded = [entry.name for entry in entries if is_bounded(entry.options)]
    if bounded:
        context.told_bounds = True
        LOG.warning(
            "topic %r has hot_segments or hot_bytes, and %s was opened without cold=...: "
            "everything stays here", bounded[0], context.root,
        )  # fmt: skip


# ---- one segment -----------------------------------------------------------------------------


def never() -> bool:
    """What is asked for by hand is done to its end."""
    return False


def move_out(shard: Shard, segment: SealedSegment, resting: Callable[[], bool] = never) -> int:
    """Move a segment to the cold store; returns its bytes, 0 if it was left where it is.

    It is left, too, if a pause has come when it is to be exchanged.
    """
    if shard.durability == "ephemeral":
        return 0
    with shard.tiering:
        if not _is_ours(shard, segment):
            return 0
        mapping, inside = segment.local()
        if inside.place is not None:
            return 0
        data = mapping.data
        trailer = fmt.decode_trailer(mapping.tail)
        if inside.rebuilt or isinstance(trailer, str) or not file_hash_matches(data):
            raise Corruption("not moved: the file does not match its hash", path=segment.path)
        store = shard.maps.cold.store(shard.context.cold)
        place = Place(store.root, _new_key(shard, segment, trailer[1]), len(data), trailer[1])
        stub = stub_of(data, place)
        if len(stub) >= len(data):
            segment.pinned = True
            return 0
        done = False
        try:
            store.put(place.key, data)
            fetch(store, place)  # from here on it is there, and is what it is to be
            done = _exchange(shard, segment, mapping.tail, stub, len(data), resting)
        finally:
            shard.orphaned |= not done
    return _done(shard, "moved", len(data)) if done else 0


def bring_back(shard: Shard, segment: SealedSegment) -> int:
    """Bring a segment back from the cold store; returns its bytes, 0 if it was here."""
    with shard.tiering:
        if not _is_ours(shard, segment):
            return 0
        mapping, inside = segment.local()
        place = inside.place
        if place is None:
            return 0
        data, _ = segment.inside()
        if not _exchange(shard, segment, mapping.tail, data, len(data), never):
            return 0
        shard.maps.cold.drop(place.key)
        try:
            shard.maps.cold.store(place.root).delete(place.key)
        except StorageError:  # a sweep takes it
            shard.orphaned = True
    return _done(shard, "brought", len(data))


def _done(shard: Shard, what: str, size: int) -> int:
    shard.context.background.diary.did(f"{what}_segments")
    shard.context.background.diary.did(f"{what}_bytes", size)
    return size


def _new_key(shard: Shard, segment: SealedSegment, file_hash: int) -> str:
    prefix = names.cold_prefix(shard.context.store, shard.entry.id, shard.number)
    file = names.segment(segment.number, segment.base, sealed=True)
    return names.cold(prefix, file, file_hash, shard.context.files.random(8))


def _is_ours(shard: Shard, segment: SealedSegment) -> bool:
    return not shard.context.closing and sealing.is_ours(shard, segment)


def _exchange(
    shard: Shard, segment: SealedSegment, tail: bytes, content: Any, size: int,
    resting: Callable[[], bool],
) -> bool:  # fmt: skip
    """Put a stub in the place of its segment, or the segment in that of its stub.

    False if the file is another by now: rewritten, evicted, or the store is being closed.
    """
    copy = temporary(segment)
    with shard._sealing:
        if resting() or not _is_ours(shard, segment) or segment.local()[0].tail != tail:
            return False
        try:
            _write(shard, copy, content)
            if not sealing.replace(shard, segment, copy, len(content), size):
                return False
            _settle(shard, stub=len(content) < size)
            return True
        finally:
            sealing.drop(shard, copy)


def _write(shard: Shard, path: str, content: Any) -> None:
    if shard.files.kind(path):
        shard.files.unlink(path)
    file = shard.files.open(path, "create")
    try:
        file.write(0, [content])
        file.sync()
    finally:
        file.close()


def _settle(shard: Shard, *, stub: bool) -> None:
    """Make the new name durable. Where that fails for a segment that was brought back, its stub may
    be what a power cut leaves: nothing is swept then until the store is opened again."""
    try:
        shard.files.sync_dir(shard.folder)
    except BaseException:
        shard.doubtful |= not stub
        raise


# ---- orphans ---------------------------------------------------------------------------------


def sweep(shard: Shard) -> int:
    """Delete what lies in the cold store for this shard and is not needed; returns how many."""
    store = shard.maps.cold.store(shard.context.cold)
    with shard.tiering:
        if not shard.writing or shard.context.closing or shard.doubtful:
            return 0
        shard.orphaned = False
        try:
            return _sweep(shard, store)
        except BaseException:
            shard.orphaned = True
            raise


def _sweep(shard: Shard, store: ColdStore) -> int:
    found = store.list(names.cold_prefix(shard.context.store, shard.entry.id, shard.number))
    if not found:
        return 0
    shard.files.sync_dir(shard.folder)  # what the files say now is what a power cut leaves
    orphans = _orphans(shard, found)
    for key in orphans:
        store.delete(key)
        shard.context.background.diary.did("swept")
    return len(orphans)


def _orphans(shard: Shard, keys: Sequence[str]) -> list[str]:
    there = list_segments(shard.files, shard.folder)
    aside = "\n".join(shard.context.files.list(join(shard.context.root, names.QUARANTINE)))
    place = f"{names.TOPICS}-{names.topic(shard.entry.id)}-{names.shard(shard.number)}-"
    named: dict[names.SegmentName, set[str] | None] = {}
    orphans = []
    for key in keys:
        told = names.parse_cold(key)
        if told is None or key.rpartition("/")[0] + "/" != names.cold_prefix(
            shard.context.store, shard.entry.id, shard.number
        ):
            continue  # not one of ours
        file = names.segment(*told.segment[:2], sealed=True)
        if place + file in aside:
            continue
        if told.segment not in named:
            if told.segment in there:
                named[told.segment] = _needed(shard, told.segment, file)
            else:
                named[told.segment] = set() if _is_gone(shard, told.segment, there) else None
        needed = named[told.segment]
        if needed is not None and key not in needed:
            orphans.append(key)
    return orphans


def _is_gone(shard: Shard, name: names.SegmentName, there: Sequence[names.SegmentName]) -> bool:
    """Whether a segment that is not there lay below the beginning of the shard: before one that
    begins there, or below."""
    later = [each.base for each in there if each.segment > name.segment]
    return bool(later) and min(later) <= shard.earliest


def _needed(shard: Shard, name: names.SegmentName, file: str) -> set[str] | None:
    """The key that a segment's file names, none if it is whole; None if that cannot be told."""
    segment = SealedSegment(join(shard.folder, file), name).attach(shard.maps)
    try:
        mapping, inside = segment.local()
    except EskerError as problem:
        LOG.warning("not swept: %s", str(problem))
        return None
    if inside.place is not None:
        return {inside.place.key}
    whole = fmt.decode_trailer(mapping.tail)
    if inside.rebuilt or isinstance(whole, str) or whole[0] != inside.footer.data_end:
        return None  # a stub, perhaps, whose place is damaged
    return set()
