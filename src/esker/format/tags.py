"""The index of a sealed segment's tags: which rows carry which tag.

    file   := header:64 starts offsets tags rows        00000004-….tags, beside the sealed segment
    header    0 "ESKT"  4 u16 version  6 u16 zero  8 u64 segment  16 u64 salt of the segment
             24 u32 rows of the segment  28 u32 k tags  32 u32 m rows that have one  36 u32 zero
             40 u64 bytes of the tags  48 u64 checksum of what follows, seeded with the salt
             56 u64 checksum of bytes 0..56
    starts    u32[k+1]   the rows with tag i are rows[starts[i]:starts[i+1]], in order
    offsets   i32[k+1]   tag i is tags[offsets[i]:offsets[i+1]]
    tags      bytes      every tag once, in the order of its bytes
    rows      u32[m]

Each part is padded with zeros to a multiple of 8. Tags are sorted, so those that begin alike are
neighbours, and one search finds them all.

An index follows from its segment. One that is missing, damaged, or of another segment is made anew.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.format.checksum import checksum, checksum_parts
from esker.format.columns import binary_parts

MAGIC: Final = b"ESKT"
VERSION: Final = 1
HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct("<4sHHQQIIIIQQ")
_CHECK: Final = struct.Struct("<Q")
_UINT32: Final = pa.uint32()


def encode(tags: Any, segment: int, salt: int) -> list[Any]:
    """The index of a column of tags, some of which may be null, as buffers to write."""
    found = tags.dictionary_encode()
    order = pc.sort_indices(found.dictionary)
    codes = pc.sort_indices(order).take(found.indices)  # the place of each row's tag among all
    rows = pc.sort_indices(codes).slice(0, len(tags) - tags.null_count)  # stable, nulls last
    ends = pc.run_end_encode(codes.take(rows).cast(pa.int32())).run_ends
    starts = bytes(4) + _bytes_of(ends.cast(_UINT32), 4)
    offsets, data = binary_parts(found.dictionary.take(order))
    parts: list[Any] = []
    for part in (starts, offsets, data, _bytes_of(rows.cast(_UINT32), 4)):
        parts += [part, bytes(-len(part) & 7)]
    packed = _HEADER.pack(
        MAGIC, VERSION, 0, segment, salt, len(tags), len(order), len(rows), 0, len(data),
        checksum_parts(parts, salt),
    )  # fmt: skip
    return [packed + _CHECK.pack(checksum(packed)), *parts]


def _bytes_of(array: Any, width: int) -> Any:
    data = array.buffers()[1]
    return b"" if data is None else data.slice(array.offset * width, len(array) * width)


class TagIndex(NamedTuple):
    """An index that stands on its bytes."""

    starts: Any
    offsets: Any
    tags: Any
    rows: Any

    def equal(self, tag: bytes) -> Any:
        """The rows with this tag."""
        at = bisect_left(range(len(self.offsets) - 1), tag, key=self._tag)
        found = at < len(self.offsets) - 1 and self._tag(at) == tag
        return self.rows[self.starts[at] : self.starts[at + 1]] if found else self.rows[:0]

    def prefixed(self, prefix: bytes) -> Any:
        """The rows whose tag begins so; in order for each tag."""
        places, size = range(len(self.offsets) - 1), len(prefix)
        low = bisect_left(places, prefix, key=self._tag)
        high = bisect_right(places, prefix, lo=low, key=lambda at: self._tag(at)[:size])
        return self.rows[self.starts[low] : self.starts[high]]

    def _tag(self, at: int) -> bytes:
        return bytes(self.tags[self.offsets[at] : self.offsets[at + 1]])


def decode(data: Any, segment: int, salt: int, rows: int) -> TagIndex | None:
    """The index in `data`, if it is whole and of this segment."""
    view = memoryview(data)
    if len(view) < HEADER_SIZE or _CHECK.unpack_from(view, 56)[0] != checksum(view[:56]):
        return None
    magic, version, _, *known, tags, having, _, size, check = _HEADER.unpack_from(view)
    if (magic, version, *known) != (MAGIC, VERSION, segment, salt, rows):
        return None
    body = view[HEADER_SIZE:]
    sizes = ((tags + 1) * 4, (tags + 1) * 4, size, having * 4)
    if sum((each + 7) & -8 for each in sizes) != len(body) or checksum(body, salt) != check:
        return None
    parts, at = [], 0
    for each in sizes:
        parts.append(body[at : at + each])
        at += (each + 7) & -8
    starts, offsets, names, found = parts
    return TagIndex(starts.cast("I"), offsets.cast("i"), names, found.cast("I"))
