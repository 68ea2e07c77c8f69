"""Deleted records: which offsets of a shard are gone, as bitmaps.

    file   := header:64 frame*             deletions-00000003, one for each shard that needs it
    header    0 "ESKD"  4 u16 version  6 u16 zero  8 u64 number of the file
             16 u64 topic id  24 u32 shard  28 u32 zero  32 store id, 16 bytes
             48 u64 salt  56 u64 checksum of bytes 0..56
    frame  := as in a log (frame.py), of kind DELETION, with the salt of this file
    body   := i64[n] blocks, ascending     n = raw_size / 520
              u8[n][512] bitmaps           bit o & 4095 of block o >> 12 is set: offset o is deleted

Every deletion is one frame, or several of which all but the last say MORE. A record that was
deleted stays deleted, so frames are joined by OR and their order means nothing. The state page says
which file counts and how long it is; what lies behind that was never acknowledged.

A block that is all but empty costs little on disk, for bodies of more than one are compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from esker.format import frame
from esker.format.checksum import checksum

MAGIC: Final = b"ESKD"
VERSION: Final = 1
HEADER_SIZE: Final = 64
BLOCK: Final = 4096  # offsets in a block
BITMAP: Final = BLOCK // 8
BLOCKS_MAX: Final = 1 << 15  # in one frame: 134 million offsets, 16 MiB of bitmaps
_HEADER: Final = struct.Struct("<4sHHQQII16sQ")
_CHECK: Final = struct.Struct("<Q")
_OFFSET_MAX: Final = 1 << 62

Blocks = Mapping[int, bytes]


class MarksHeader(NamedTuple):
    """Whose deletions a file holds."""

    number: int
    topic: int
    shard: int
    store: bytes
    salt: int


def encode_header(header: MarksHeader) -> bytes:
    number, topic, shard, store, salt = header
    packed = _HEADER.pack(MAGIC, VERSION, 0, number, topic, shard, 0, store, salt)
    return packed + _CHECK.pack(checksum(packed))


def decode_header(data: bytes) -> MarksHeader | str:
    """The header, or why there is none."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not a file of deletions"
    if _CHECK.unpack_from(data, 56)[0] != checksum(data[:56]):
        return "the header does not match its checksum"
    _, version, _, number, topic, shard, _, store, salt = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    return MarksHeader(number, topic, shard, store, salt)


def encode_frames(blocks: Blocks, position: int, salt: int) -> list[bytes]:
    """The frames that say these are deleted; more than one only if there are very many."""
    numbers = sorted(blocks)
    parts: list[bytes] = []
    for at in range(0, len(numbers), BLOCKS_MAX):
        some = numbers[at : at + BLOCKS_MAX]
        raw = struct.pack(f"<{len(some)}q", *some) + b"".join(blocks[number] for number in some)
        body, codec = raw, frame.PLAIN
        if len(some) > 1:
            small = pa.compress(raw, "zstd", asbytes=True)
            body, codec = (small, frame.ZSTD) if len(small) < len(raw) else (raw, frame.PLAIN)
        head, _ = frame.encode_header(
            kind=frame.DELETION, position=position, salt=salt, codec=codec, body_size=len(body),
            raw_size=len(raw), body_checksum=checksum(body, salt), count=len(some),
            flags=frame.MORE if at + BLOCKS_MAX < len(numbers) else 0,
        )  # fmt: skip
        parts += [head, body, bytes(-len(body) & 7)]
        position += frame.HEADER_SIZE + frame.padded(len(body))
    return parts


class Flaw(NamedTuple):
    """Where a file of deletions is damaged, and how."""

    position: int
    reason: str


class Deletion(NamedTuple):
    """What a frame says, and where it ends."""

    end: int
    blocks: dict[int, bytes]
    more: bool  # the next frame is a part of the same deletion


def decode_frames(data: bytes, position: int, salt: int) -> Iterator[Deletion | Flaw]:
    """What the frames of a file say, from `position` on; a flaw ends it."""
    while position < len(data):
        header = frame.decode_header(data, position, position, salt)
        if isinstance(header, frame.Damage):
            yield Flaw(position, header.reason)
            return
        begin = position + frame.HEADER_SIZE
        body = data[begin : begin + header.body_size]
        damage = frame.body_damage(header, body, salt)
        found = _blocks(header, body) if damage is None else damage.reason
        if position + header.size > len(data):  # be it in the padding: the next one begins behind
            found = "the file ends inside a frame"
        if isinstance(found, str):
            yield Flaw(position, found)
            return
        position += header.size
        yield Deletion(position, found, bool(header.flags & frame.MORE))


def _blocks(header: frame.Header, body: bytes) -> dict[int, bytes] | str:
    count, raw = header.count, header.raw_size
    if header.kind != frame.DELETION or count > BLOCKS_MAX or raw != count * (8 + BITMAP):
        return "a frame that is no deletion"
    if header.codec == frame.ZSTD:
        if frame.zstd_size(body) != raw:
            return "a body that is not as long as its header says"
        try:
            body = pa.decompress(body, raw, "zstd", asbytes=True)
        except (pa.ArrowException, OSError) as problem:
            return f"a body that cannot be decompressed ({problem})"
    elif len(body) != raw:
        return "a body that is not as long as its header says"
    numbers = struct.unpack_from(f"<{count}q", body)
    bounds = (-1, *numbers, _OFFSET_MAX // BLOCK)
    if any(before >= after for before, after in pairwise(bounds)):
        return "blocks of offsets that nobody writes"
    begin = count * 8
    return {
        number: body[begin + at * BITMAP : begin + (at + 1) * BITMAP]
        for at, number in enumerate(numbers)
    }
