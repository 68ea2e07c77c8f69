"""The redo journal: "these bytes belong at this position of that segment".

    journal := header:64 entry* zeros
    header      0 "ESKERJNL"  8 u16 version  10 u16 header size  12 mark  16 store id
               32 u64 journal id  40 u64 salt  48 i64 created  56 u64 checksum of bytes 0..56
    entry :=    header:64 bytes:u8[size] padding to 8
                0 "ESKJ"  4 u32 size  8 u64 topic id  16 u32 shard
               20 u32 position up to which the journal was durable when this was written
               24 u64 segment id  32 u64 position in the segment  40 i64 next offset behind it
               48 u64 checksum of the bytes, seeded with salt
               56 u64 checksum of bytes 0..56, seeded with salt + position in the journal

An entry is physical and may be replayed any number of times. An entry for a new segment covers
its header too, so a segment whose directory entry was lost can be made again from the journal.
As in segments, the durable position tells a torn end (cut: it was never acknowledged) from
corruption (reported; the entries behind it are still replayed).

"DROP" is written over the mark and synced before a journal is deleted: all that it says is in the
segments. A new file may stand where a deleted one stood, and a power cut may bring back the old
bytes in it; such a journal says by itself that there is nothing to replay. The header's checksum
takes the mark for zeros, so that a mark which is written by half changes nothing.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from esker.format.checksum import MASK64, checksum

MAGIC: Final = b"ESKERJNL"
ENTRY_MAGIC: Final = b"ESKJ"
VERSION: Final = 1
HEADER_SIZE: Final = 64
ENTRY_SIZE: Final = 64
MARK_AT: Final = 12
MARK_SIZE: Final = 4
DROPPED: Final = b"DROP"
_HEADER: Final = struct.Struct("<8sHH4s16sQQq")
_ENTRY: Final = struct.Struct("<4sIQIIQQqQ")
_CHECK: Final = struct.Struct("<Q")
assert _HEADER.size == _ENTRY.size == 56


class JournalHeader(NamedTuple):
    """Whose journal this is."""

    store: bytes
    journal: int
    salt: int
    created: int
    mark: bytes = bytes(MARK_SIZE)


class Entry(NamedTuple):
    """The place that an entry's bytes belong to."""

    topic: int
    shard: int
    synced: int
    segment: int
    position: int
    next_offset: int
    size: int
    body_checksum: int


def encode_header(header: JournalHeader) -> bytes:
    *fields, mark = header
    packed = _HEADER.pack(MAGIC, VERSION, HEADER_SIZE, mark, *fields)
    return packed + _CHECK.pack(_checksum(packed))


def _checksum(data: bytes) -> int:
    """Of a header, whatever its mark."""
    return checksum(data[:MARK_AT] + bytes(MARK_SIZE) + data[MARK_AT + MARK_SIZE : 56])


def decode_header(data: bytes) -> JournalHeader | str:
    """The header, or why it is none."""
    if len(data) < HEADER_SIZE:
        return "the file ends inside the journal header"
    if data[:8] != MAGIC:
        return "not a journal: wrong magic"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != _checksum(data):
        return "journal header does not match its checksum"
    fields = _HEADER.unpack_from(data)
    if fields[1] != VERSION:
        return f"version {fields[1]}"
    return JournalHeader._make((*fields[4:], fields[3]))


def salt_of(data: bytes) -> int:
    """The salt as a header gives it that does not match its checksum: entries may still verify."""
    return int.from_bytes(data[40:48], "little")


def encode_entry(
    data: Any, *, topic: int, shard: int, synced: int, segment: int, position: int,
    next_offset: int, at: int, salt: int,
) -> bytes:  # fmt: skip
    """The 64 bytes before `data`, for an entry at position `at` of the journal."""
    packed = _ENTRY.pack(
        ENTRY_MAGIC, len(data), topic, shard, synced, segment, position, next_offset,
        checksum(data, salt),
    )  # fmt: skip
    return packed + _CHECK.pack(checksum(packed, (salt + at) & MASK64))


def decode_entry(data: bytes, at: int, salt: int) -> Entry | str:
    """The entry header at position `at`, or why the journal ends here ("" for zeros)."""
    if len(data) < ENTRY_SIZE or not any(data):
        return "" if not any(data) else "the journal ends inside an entry header"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != checksum(data[:56], (salt + at) & MASK64):
        return "journal entry does not match its checksum"
    magic, size, *place, body = _ENTRY.unpack_from(data)
    if magic != ENTRY_MAGIC:
        return "journal entry of an unknown kind"
    return Entry._make((*place, size, body))
