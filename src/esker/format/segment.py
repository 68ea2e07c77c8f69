"""Segments: a file of frames, with a header, and when sealed a footer and a trailer.

    segment (log, being written) := header:128 frame*
    segment (sealed, immutable)  := header:128 frame* footer-frame trailer:32

    header                                            trailer, the last 32 bytes of the file
      0  "ESKERSEG"                                     0  "ESKEREND"
      8  u16 version   10 u16 header size               8  u64 position of the footer frame
     12  u32 reason of the gap before it, 0 = none     16  u64 hash of every byte before the trailer
     16  store id, 16 bytes                            24  u64 checksum of bytes 0..24
     32  u64 topic id
     40  u32 shard     44 u32 epoch
     48  u64 segment id
     56  i64 base offset
     64  i64 created, microseconds
     72  u64 salt
     80  i64 previous end: the first offset behind the previous segment
     88  u64 previous chain: its chain hash, 0 for the first
     96  u64 previous salt: its identity, 0 for the first
    104  i64 previous high: the largest timestamp in all segments before
    112  u64 zero
    120  u64 checksum of bytes 0..120

The chain: each header names the segment before it by salt, by end and by chain hash (the hash of
the header checksums of its frames, which cover their bodies). A missing or exchanged middle
segment is therefore an error and never a shorter log. When small frames are merged at sealing the
footer keeps the chain hash of the frames as they were first written.

When `base offset` > `previous end` the offsets between were lost, and the header says why.

`max timestamp` in the directory is the largest up to and including that frame, so that it never
falls and a time is found by binary search even where callers stamp records out of order.

The footer's body: a summary, the frame directory as arrays, then sections that a later version
may add and an earlier one skips.
"""

from __future__ import annotations

import struct
from typing import Any, Final, Literal, NamedTuple

from esker.format.checksum import checksum
from esker.format.frame import padded

MAGIC: Final = b"ESKERSEG"
VERSION: Final = 1
HEADER_SIZE: Final = 128
NUMBER_MAX: Final = 1 << 62
_HEADER: Final = struct.Struct("<8sHHI16sQIIQqqQqQQqQ")
_CHECK: Final = struct.Struct("<Q")
assert _HEADER.size + _CHECK.size == HEADER_SIZE

TRAILER_MAGIC: Final = b"ESKEREND"
TRAILER_SIZE: Final = 32
_TRAILER: Final = struct.Struct("<8sQQ")

_SUMMARY: Final = struct.Struct("<QQQQqqQQ")

GAP_REASONS: Final = {0: "", 1: "lost unsynced tail", 2: "corrupt", 3: "state lost"}
GAP_LOST_TAIL: Final = 1
GAP_CORRUPT: Final = 2
GAP_STATE_LOST: Final = 3


Owner = tuple[bytes, int, int]
"""Store, topic and shard: whose segment it is."""


class SegmentHeader(NamedTuple):
    """Who a segment is, and what it follows."""

    store: bytes
    topic: int
    shard: int
    epoch: int
    segment: int
    base: int
    created: int
    salt: int
    previous_end: int = 0
    previous_chain: int = 0
    previous_salt: int = 0
    previous_high: int = 0
    gap: int = 0


class Footer(NamedTuple):
    """What a sealed segment holds. The arrays are the index: one entry a data frame."""

    records: int
    data_end: int
    value_bytes: int
    chain: int
    min_timestamp: int
    max_timestamp: int
    positions: Any  # u32[]
    first_rows: Any  # u32[]
    min_timestamps: Any  # i64[]
    max_timestamps: Any  # i64[], each the largest so far


def encode_header(header: SegmentHeader) -> bytes:
    """The 128 bytes a segment begins with."""
    packed = _HEADER.pack(
        MAGIC, VERSION, HEADER_SIZE, header.gap, header.store, header.topic, header.shard,
        header.epoch, header.segment, header.base, header.created, header.salt,
        header.previous_end, header.previous_chain, header.previous_salt, header.previous_high, 0,
    )  # fmt: skip
    return packed + _CHECK.pack(checksum(packed))


def decode_header(data: bytes) -> SegmentHeader | str:
    """The header, or why it is none. A newer version is told as "version N"."""
    if len(data) < HEADER_SIZE:
        return "the file ends inside the segment header"
    if data[:8] != MAGIC:
        return "not a segment: wrong magic"
    (check,) = _CHECK.unpack_from(data, 120)
    if check != checksum(data[:120]):
        return "segment header does not match its checksum"
    fields = _HEADER.unpack_from(data)
    if fields[1] != VERSION:
        return f"version {fields[1]}"
    header = SegmentHeader._make((*fields[4:16], fields[3]))
    numbers = (header.topic, header.segment, header.base, header.previous_end)
    if not all(0 <= number < NUMBER_MAX for number in numbers):
        return "segment header with numbers that nobody writes"
    return header


def misplaced(header: SegmentHeader, segment: int, base: int, owner: Owner | None) -> str:
    """Why a good header is not that of the segment which the file's name and place speak of."""
    if owner is not None and (header.store, header.topic, header.shard) != owner:
        return "a segment of another store, topic or shard"
    if (header.segment, header.base) != (segment, base):
        return "a segment under another segment's name"
    return ""


def was_header(data: bytes, segment: int, base: int) -> bool:
    """Whether bytes that do not verify were once this segment's header, and not never written.

    A header lies in one sector, which a power cut leaves as a whole or not at all. Where two of
    three things are right that must be in it, it was there and was damaged later.
    """
    if len(data) < HEADER_SIZE:
        return False
    fields = _HEADER.unpack_from(data)
    return bool((fields[0] == MAGIC) + (fields[8] == segment) + (fields[9] == base) >= 2)


def encode_footer(footer: Footer) -> bytes:
    """The body of the footer frame."""
    count = len(footer.positions)
    summary = _SUMMARY.pack(
        footer.records, count, footer.data_end, footer.value_bytes,
        footer.min_timestamp, footer.max_timestamp, footer.chain, 0,
    )  # fmt: skip
    narrow = struct.Struct(f"<{count}I")
    wide = struct.Struct(f"<{count}q")
    pad = bytes(padded(narrow.size) - narrow.size)
    return b"".join(
        (
            summary,
            narrow.pack(*footer.positions), pad,
            narrow.pack(*footer.first_rows), pad,
            wide.pack(*footer.min_timestamps),
            wide.pack(*footer.max_timestamps),
        )
    )  # fmt: skip


def decode_footer(body: bytes) -> Footer | str:
    """The footer, or why it is none."""
    if len(body) < _SUMMARY.size:
        return "the footer is too short"
    records, count, end, size, low, high, chain, _sections = _SUMMARY.unpack_from(body)
    narrow, at = padded(count * 4), _SUMMARY.size
    if at + 2 * narrow + 16 * count > len(body):
        return "the frame directory is too short"
    view = memoryview(body)

    def array(kind: Literal["I", "q"], start: int, width: int) -> Any:
        return view[start : start + count * width].cast(kind)

    return Footer(
        records, end, size, chain, low, high,
        array("I", at, 4),
        array("I", at + narrow, 4),
        array("q", at + 2 * narrow, 8),
        array("q", at + 2 * narrow + 8 * count, 8),
    )  # fmt: skip


def encode_trailer(footer_position: int, file_hash: int) -> bytes:
    """The last 32 bytes of a sealed segment."""
    packed = _TRAILER.pack(TRAILER_MAGIC, footer_position, file_hash)
    return packed + _CHECK.pack(checksum(packed))


def decode_trailer(data: bytes) -> tuple[int, int] | str:
    """Footer position and file hash, or why there are none."""
    if len(data) < TRAILER_SIZE or data[:8] != TRAILER_MAGIC:
        return "no trailer at the end of a sealed segment"
    (check,) = _CHECK.unpack_from(data, 24)
    if check != checksum(data[:24]):
        return "trailer does not match its checksum"
    _, position, file_hash = _TRAILER.unpack_from(data)
    return position, file_hash
