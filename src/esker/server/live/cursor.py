"""Where a stream over many topics is, in one word that a client keeps and gives back.

A browser's EventSource remembers the `id` of the last event and sends it as `Last-Event-ID` when it
comes back. So every event of a stream carries the places of all its topics, and the stream goes on
exactly behind that event.

A cursor is base64url of one piece for each shard: a hash of the topic's name, its epoch, the
shard's number and the next offset. Pieces are whole multiples of three bytes, so that the cursor
of a stream is its pieces written one behind the other: when one topic moves, one piece is encoded.
The names themselves are not in it: a header has room for thousands of bytes, and names may be long.

Nobody vouches for a cursor. It says no more than an offset in a query would.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from esker.server.http.faults import Fault

HASH_BYTES: Final = 6
_NUMBER_MAX: Final = (1 << 63) - 1


class Place(NamedTuple):
    """An offset, and of which topic of that name it is one; epoch 0: of none that was there."""

    epoch: int
    offset: int


Places = dict[tuple[bytes, int], Place]


def hash_of(topic: str) -> bytes:
    """What stands in a cursor for a topic's name."""
    return hashlib.blake2b(topic.encode(), digest_size=HASH_BYTES).digest()


def piece(name: bytes, shard: int, epoch: int, offset: int) -> str:
    """The place in one shard of the topic whose name has this hash."""
    body = name + _number(epoch) + _number(shard) + _number(offset)
    size = -(-(len(body) + 1) // 3) * 3
    return base64.urlsafe_b64encode(bytes((size,)) + body.ljust(size - 1, b"\0")).decode()


def places(pieces: str | Iterable[str]) -> Places:
    """What a cursor says, by hash of name and shard."""
    text = pieces if isinstance(pieces, str) else "".join(pieces)
    try:
        data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid() from None
    found: Places = {}
    at = 0
    while at < len(data):
        size = data[at]
        part = data[at + 1 : at + size]
        if size % 3 or len(part) != size - 1 or size <= HASH_BYTES + 3:
            raise _invalid()
        name, rest = part[:HASH_BYTES], part[HASH_BYTES:]
        epoch, rest = _take(rest)
        shard, rest = _take(rest)
        offset, rest = _take(rest)
        if rest.strip(b"\0"):
            raise _invalid()
        found[name, shard] = Place(epoch, offset)
        at += size
    return found


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the last byte has no high bit."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _take(data: bytes) -> tuple[int, bytes]:
    value = 0
    for at, byte in enumerate(data[:9]):
        value |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            if value > _NUMBER_MAX:
                raise _invalid()
            return value, data[at + 1 :]
    raise _invalid()


def _invalid() -> Fault:
    return Fault("invalid_request", "this is not a cursor that a stream gave out")
