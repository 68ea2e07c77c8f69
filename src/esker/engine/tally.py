"""Keeping the counters page: who did how much, as any process may read it.

The page has one writer, the process that writes the shard. Numbers that change with every commit
are stored as they happen; those that are kept elsewhere anyway (maps, directory, buffer) are copied
by `tell` now and then. Lost updates between threads cost a count, never data.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from esker.engine.buffer import CLOSED
from esker.format.checksum import MASK64
from esker.format.columns import Body
from esker.format.counters import WORD
from esker.storage.counters import Counters

if TYPE_CHECKING:
    from esker.engine.shard import Shard
    from esker.storage.sealed import SealedSegment

_RECORDS, _BYTES, _WRITES = WORD["total_records"], WORD["total_bytes"], WORD["total_writes"]
_BATCH, _BATCHES = WORD["last_batch_records"], WORD["total_batches"]
_POSITION, _LAST, _WHEN = WORD["write_position"], WORD["last_offset"], WORD["last_write_ns"]
_NS_SUM, _NS_COUNT = WORD["write_ns_sum"], WORD["write_ns_count"]
_READERS, _READERS_EVER = WORD["readers_active"], WORD["readers_total"]
_READ, _LAST_READ = WORD["records_read"], WORD["last_read_ns"]
_NS_MIN, _NS_MAX = WORD["write_ns_min"], WORD["write_ns_max"]


class Weight(NamedTuple):
    """The bytes of a shard's segments, without the room taken ahead."""

    all: int  # wherever they lie
    here: int  # of those that lie in a cold store, only their stubs


SYNC_BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class Times:
    """How long something took: counts between bounds, in seconds, and their sum."""

    def __init__(self, bounds: Sequence[float] = SYNC_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """One of them is over. Of two at the same moment one may not be counted."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


Weighed = tuple["SealedSegment | None", int, Weight, int]
"""The first of some sealed segments, how many they are, what they weigh, and as of when."""


def wrote(
    counters: Counters, count: int, size: int, position: int, next_offset: int, now_us: int,
    seconds: float,
) -> None:  # fmt: skip
    """A batch was written: this many records and bytes, in this time."""
    words, took = counters.words, int(seconds * 1e9)
    words[_RECORDS] += count
    words[_BYTES] += size
    words[_WRITES] += 1
    words[_BATCHES] += 1
    words[_BATCH] = count
    words[_POSITION] = position
    words[_LAST] = next_offset - 1
    words[_WHEN] = now_us * 1000 & MASK64
    words[_NS_SUM] += took
    words[_NS_COUNT] += 1
    if took > words[_NS_MAX]:
        words[_NS_MAX] = took
    if took < words[_NS_MIN] or words[_NS_COUNT] == 1:
        words[_NS_MIN] = took


def compressed(counters: Counters, bodies: Sequence[Body], stored: int) -> None:
    """What compression was tried on, and what it brought."""
    packed(counters, sum(body.count for body in bodies), sum(body.size for body in bodies), stored)


def packed(counters: Counters, count: int, raw: int, stored: int) -> None:
    """So many records took `raw` bytes and take `stored` ones now."""
    if stored < raw:
        counters.add("compressed_bytes", stored)
        counters.add("compressed_records", count)
        counters.set("compression_ratio_x100", raw * 100 // max(stored, 1))
    else:
        counters.add("compression_skipped", count)


def synced(counters: Counters, seconds: float) -> None:
    """The shard took part in a sync that took so long."""
    took = int(seconds * 1e9)
    counters.add("syncs")
    counters.set("sync_ns_last", took)
    counters.add("sync_ns_sum", took)
    if took > counters.words[WORD["sync_ns_max"]]:
        counters.set("sync_ns_max", took)


def reader(counters: Counters | None, change: int) -> None:
    """A reader of this process came (1) or went (-1)."""
    if counters is not None:
        words = counters.words
        words[_READERS] = (words[_READERS] + change) & MASK64
        if change > 0:
            words[_READERS_EVER] = (words[_READERS_EVER] + 1) & MASK64


def read(counters: Counters | None, records: int, now_us: int) -> None:
    """A reader of this process took so many records."""
    if counters is not None:
        words = counters.words
        words[_READ] = (words[_READ] + records) & MASK64
        words[_LAST_READ] = now_us * 1000 & MASK64


def damage(counters: Counters | None, now_us: int) -> None:
    """A reader of this process met damage."""
    if counters is not None:
        for name in ("errors", "corruptions", "read_errors"):
            counters.add(name)
        counters.set("last_error_ns", now_us * 1000)


def tell(shard: Shard) -> None:
    """Copy what is kept elsewhere. Cheap; done now and then."""
    counters, log, maps, buffer = shard.counters, shard.active, shard.maps, shard.buffer
    if counters is None:
        return
    counters.set("next_issued", shard.next if buffer is CLOSED else buffer.base + len(buffer))
    first = shard.segments[0].base if shard.segments else shard.next
    counters.set("oldest_offset", max(first, shard.earliest))
    if log is not None:
        counters.set("file_bytes", log.end)
        counters.set("last_segment", log.number)
        counters.set("directory_frames", log.frames)
        counters.set("directory_bytes", 24 * len(log.directory.positions))
    counters.set("segments_bytes", bytes_of(shard).here)
    counters.set("maps", maps.made)
    counters.set("unmaps", maps.dropped)
    counters.set("map_evictions", maps.dropped)
    counters.set("mapped_bytes", maps.bytes)
    counters.set("remaps", maps.remade)
    counters.set("mapped_files", maps.made - maps.dropped)
    counters.set("reader_cache_hits", maps.hits)


def bytes_of(shard: Shard) -> Weight:
    """The bytes of a shard's segments."""
    log = shard.active
    logs = [*shard.rolled, *([log] if log is not None and log not in shard.rolled else [])]
    sealed, written = _sealed_bytes(shard), sum(each.end for each in logs)
    return Weight(sealed.all + written, sealed.here + written)


def _sealed_bytes(shard: Shard) -> Weight:
    """Sealed segments come at the end and go at the front: what was added up once stays so.

    Unless one was replaced; how often that was is asked before their sizes are.
    """
    turn, sealed, (first, count, total, known) = shard.rewritten, shard.sealed, shard.weighed
    if not sealed or sealed[0] is not first or count > len(sealed) or known != turn:
        count, total = 0, Weight(0, 0)
    total = Weight(
        total.all + sum(segment.size for segment in sealed[count:]),
        total.here + sum(segment.local_size for segment in sealed[count:]),
    )
    shard.weighed = (sealed[0] if sealed else None, len(sealed), total, turn)
    return total
