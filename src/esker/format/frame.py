"""Frames: the only container there is.

    frame := header:64 body:u8[body_size] padding to 8                     little-endian

     0        4     5     6     7     8          12         16        20
    +--------+-----+-----+-----+-----+----------+----------+---------+-----------+
    | "ESKF" | ver | kind|codec| cols| body_size| raw_size | count   | first_row |
    +--------+-----+-----+-----+-----+----------+----------+---------+-----------+
    24               32               40         44         48              56            64
    +----------------+----------------+----------+----------+---------------+-------------+
    | min_timestamp  | max_timestamp  | synced   | flags    | body_checksum | header_chk  |
    +----------------+----------------+----------+----------+---------------+-------------+

* `header_chk` covers bytes 0..56, seeded with (salt + position); `body_checksum` covers the stored
  body, seeded with salt. A damaged length fails the header's own test, before it is believed.
* `synced` is the position up to which this segment was durable when the frame was made. A later
  valid frame thereby proves that everything below was once on the disk: damage there is
  corruption, damage above is a torn tail. This is what tells the two apart.
* Rows are counted from the start of the segment; only the segment's header knows the offset.
* A frame with the flag MORE belongs together with the next one: a batch larger than one frame
  stays atomic, because a log ends at the last frame that does not say MORE.
* A zero header is never valid, so preallocated space reads as the end.

Rule 1: everything that knows this layout lives in this file.
Rule 2: no I/O here. Given bytes, say what they are; what to do about it is the caller's.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from esker.format.checksum import MASK64, checksum

MAGIC: Final = b"ESKF"
VERSION: Final = 1
HEADER_SIZE: Final = 64
ALIGN: Final = 8
ROWS_MAX: Final = (1 << 32) - 1

# kinds
DATA: Final = 1  # records, as columns
CONFIG: Final = 2  # JSON: the topic's name and options, first frame of every segment
MARK: Final = 3  # no body: carries a synced position, written by a clean close
FOOTER: Final = 4  # the frame directory, last frame of a sealed segment
HOLE: Final = 5  # zeros: records were damaged here, and a repair has declared them lost
DELETION: Final = 6  # bitmaps of deleted records; in a file of its own, see marks.py
PLACE: Final = 7  # JSON: where the rest of a sealed segment lies, see place.py
LEASES: Final = 8  # MessagePack: what happened to leases; in a file of its own, see leases.py
KINDS: Final = frozenset((DATA, CONFIG, MARK, FOOTER, HOLE, DELETION, PLACE, LEASES))

# codecs
PLAIN: Final = 0
ZSTD: Final = 1

# flags
MORE: Final = 1

_PREFIX: Final = struct.Struct("<4sBBBBIIIIqqIIQ")
_CHECK: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct(_PREFIX.format + "Q")
_ZERO: Final = bytes(HEADER_SIZE)
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
assert _PREFIX.size + _CHECK.size == HEADER_SIZE


class Header(NamedTuple):
    """A frame header that has passed its checksum."""

    kind: int
    codec: int
    columns: int
    body_size: int
    raw_size: int
    count: int  # type: ignore[assignment]  # rows, not a search in the tuple
    first_row: int
    min_timestamp: int
    max_timestamp: int
    synced: int
    flags: int
    body_checksum: int
    header_checksum: int

    @property
    def size(self) -> int:
        """Bytes from this frame to the next."""
        return HEADER_SIZE + padded(self.body_size)


class Damage(NamedTuple):
    """Why a header cannot be believed. `torn` when a crash alone could have left this."""

    reason: str
    zero: bool = False


def padded(size: int) -> int:
    """Rounded up to the alignment of frames and buffers."""
    return (size + 7) & -8


def encode_header(
    *,
    kind: int,
    position: int,
    salt: int,
    body_size: int = 0,
    body_checksum: int = 0,
    raw_size: int = 0,
    codec: int = PLAIN,
    columns: int = 0,
    count: int = 0,
    first_row: int = 0,
    min_timestamp: int = 0,
    max_timestamp: int = 0,
    synced: int = 0,
    flags: int = 0,
) -> tuple[bytes, int]:
    """The 64 bytes of a header, and its checksum."""
    prefix = _PREFIX.pack(
        MAGIC, VERSION, kind, codec, columns, body_size, raw_size, count, first_row,
        min_timestamp, max_timestamp, synced, flags, body_checksum,
    )  # fmt: skip
    check = checksum(prefix, (salt + position) & MASK64)
    return prefix + _CHECK.pack(check), check


def data_header(
    position: int, salt: int, codec: int, columns: int, body_size: int, raw_size: int, count: int,
    first_row: int, low: int, high: int, synced: int, flags: int, body_checksum: int,
) -> bytes:  # fmt: skip
    """`encode_header` for a data frame, by position: the one that is made for every commit."""
    prefix = _PREFIX.pack(
        MAGIC, VERSION, DATA, codec, columns, body_size, raw_size, count, first_row,
        low, high, synced, flags, body_checksum,
    )  # fmt: skip
    return prefix + _CHECK.pack(checksum(prefix, (salt + position) & MASK64))


def lease_header(
    position: int, salt: int, size: int, count: int, now: int, synced: int, body_checksum: int
) -> bytes:
    """`encode_header` for leases, by position: one is made for every claim and every ack."""
    prefix = _PREFIX.pack(
        MAGIC, VERSION, LEASES, PLAIN, 0, size, size, count, 0, now, now, synced, 0, body_checksum
    )
    seed = (salt + position) & MASK64
    return prefix + _CHECK.pack(checksum(prefix, seed))


def decode_header(data: Any, at: int, position: int, salt: int) -> Header | Damage:
    """The header at data[at:at+64], which lies at `position` of its file."""
    if len(data) - at < HEADER_SIZE:
        return Damage("the file ends inside a frame header", zero=not any(data[at:]))
    fields = _HEADER.unpack_from(data, at)
    if fields[14] != checksum(data[at : at + 56], (salt + position) & MASK64):
        if data[at : at + HEADER_SIZE] == _ZERO:
            return Damage("zeros where a frame should be", zero=True)
        return Damage("frame header does not match its checksum")
    if fields[0] != MAGIC or fields[1] != VERSION or fields[2] not in KINDS or fields[3] > ZSTD:
        return Damage("frame header of an unknown kind or version")
    if fields[7] + fields[8] > ROWS_MAX:
        return Damage("frame header with rows that no segment has")
    return Header._make(fields[2:])


def zstd_size(body: Any) -> int | None:
    """What a zstd body says it inflates to, before anything is allocated for it."""
    if len(body) < 6 or bytes(body[:4]) != _ZSTD_MAGIC:
        return None
    descriptor = body[4]
    width = (1 if descriptor & 32 else 0, 2, 4, 8)[descriptor >> 6]
    at = 5 + (not descriptor & 32) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(body) < at + width:
        return None
    return int.from_bytes(body[at : at + width], "little") + (256 if width == 2 else 0)


def body_damage(header: Header, body: Any, salt: int) -> Damage | None:
    """None when the stored body is the one that was written."""
    if len(body) < header.body_size:
        return Damage("the file ends inside a frame")
    if header.body_size and checksum(body, salt) != header.body_checksum:
        return Damage("frame body does not match its checksum")
    return None
