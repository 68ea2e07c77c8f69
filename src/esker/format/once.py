"""What makes a retry harmless: the mark on a batch, and the table of marks that is saved.

    header    esker-once, on the first record of a batch; msgpack, one of
              ["k", key, count]                      an idempotency key
              ["p", producer, sequence, count]       a producer and its number for the batch
              esker-copied, on a copy of that record: the same, and it means nothing to the log

    saved  := header:64 body               once, beside the state page
    header    0 "ESKO"  4 u16 version  6 u16 zero  8 u64 upto: marks below this offset are in it
             16 u64 topic id  24 u32 shard  28 u32 body size  32 store id, 16 bytes
             48 u64 checksum of the body  56 u64 checksum of bytes 0..56
    body   := msgpack [[[key, offset, count]*], [[producer, sequence, offset, count]*]]
              keys, and batches of producers, with the last one of each; both by offset, ascending

The mark is a part of the first record, so it is exactly as durable, and as atomic, as its batch.
`count` says how many records the batch has in this shard. The saved table is never newer than the
log: what it tells of was durable before it was written.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from esker.format.checksum import checksum

HEADER: Final = "esker-once"
COPIED: Final = "esker-copied"
MARK_BYTES_MAX: Final = 1100  # a key, or a name, of at most 1,024 bytes, and numbers
MAGIC: Final = b"ESKO"
VERSION: Final = 1
HEADER_SIZE: Final = 64
BODY_BYTES_MAX: Final = 1 << 31
_HEADER: Final = struct.Struct("<4sHHQQII16sQ")
_CHECK: Final = struct.Struct("<Q")
assert _HEADER.size == 56

Owner = tuple[bytes, int, int]  # store, topic, shard


class Keyed(msgspec.Struct, frozen=True, array_like=True, tag="k", forbid_unknown_fields=True):
    """A batch that was appended under an idempotency key."""

    key: bytes
    count: int


class Numbered(msgspec.Struct, frozen=True, array_like=True, tag="p", forbid_unknown_fields=True):
    """A batch to which its producer gave a number."""

    producer: str
    sequence: int
    count: int


Mark = Keyed | Numbered


class Place(NamedTuple):
    """Where a batch lies."""

    offset: int
    count: int  # type: ignore[assignment]  # records, not a search in the tuple

    @property
    def end(self) -> int:
        return self.offset + self.count


class Saved(NamedTuple):
    """A table as it was saved."""

    upto: int
    keys: dict[bytes, Place]
    numbers: dict[tuple[str, int], Place]


_MARKS: Final = msgspec.msgpack.Decoder(Mark)
_BODY: Final = msgspec.msgpack.Decoder(
    tuple[list[tuple[bytes, int, int]], list[tuple[str, int, int, int]]]
)


def encode_mark(mark: Mark) -> bytes:
    return msgspec.msgpack.encode(mark)


def decode_mark(data: bytes) -> Mark | None:
    """What a header says; None if it is not one that Esker writes."""
    try:
        mark = _MARKS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return mark if mark.count > 0 else None


def encode_saved(saved: Saved, owner: Owner) -> bytes:
    store, topic, shard = owner
    body = msgspec.msgpack.encode(
        (
            [(key, *place) for key, place in saved.keys.items()],
            [(*number, *place) for number, place in saved.numbers.items()],
        )
    )
    packed = _HEADER.pack(
        MAGIC, VERSION, 0, saved.upto, topic, shard, len(body), store, checksum(body)
    )
    return packed + _CHECK.pack(checksum(packed)) + body


def decode_saved(data: bytes, owner: Owner) -> Saved | str:
    """The table, or why there is none. A newer version is told as "version N"."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not a table of keys"
    if _CHECK.unpack_from(data, 56)[0] != checksum(data[:56]):
        return "the header does not match its checksum"
    _, version, _, upto, topic, shard, size, store, check = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    if (store, topic, shard) != owner:
        return "the keys of another shard"
    body = data[HEADER_SIZE:]
    if len(body) != size or checksum(body) != check:
        return "the body does not match its checksum"
    try:
        keys, numbers = _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return f"the body cannot be read: {problem}"
    saved = Saved(
        upto,
        {key: Place(offset, count) for key, offset, count in keys},
        {(name, sequence): Place(offset, count) for name, sequence, offset, count in numbers},
    )
    places = (*saved.keys.values(), *saved.numbers.values())
    if any(not 0 <= place.offset < place.end <= upto for place in places):
        return "keys of records that nobody has written"
    return saved
