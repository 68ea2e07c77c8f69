"""From records that lie one behind the other to Arrow columns.

All five formats write a record as a header that tells its length, and the record. So where one
begins is known only when the one before it was looked at:

    hop        the beginnings of the records, by going from header to header. If all of a stretch
               have one length, four strided comparisons prove it and nobody hops
    cut        the same stretch as one Arrow array of pieces: header fields, values, checksums, each
               from one boundary to the next. Nothing is copied. `take` then gathers every second,
               third, ... piece: one column of all records, copied by Arrow in one go

The hop is the only Python per record here, and it is a few hundred instructions. Everything that is
decoded comes from somebody else's disk: a length is believed only as far as the bytes go that there
are, so no buffer is ever larger than the file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

STRETCH: Final = 4 << 20  # bytes that are decoded at a time; Arrow counts its binary in 31 bits
FEW: Final = 8  # below, a proof that all have one length costs more than to hop
ENDLESS: Final = 1 << 40
_INT32: Final = pa.int32()
_LITTLE: Final = sys.byteorder == "little"
_LENGTH: Final = {">": struct.Struct(">I").unpack_from, "<": struct.Struct("<I").unpack_from}
TOP: Final = pa.scalar((1 << 63) - 1, pa.uint64())  # what a signed number can be
_TYPES: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Hops(NamedTuple):
    """Where the records of a stretch begin, and why there are no more of them."""

    starts: Sequence[int]
    end: int  # behind the last whole record
    torn: bool = False  # the next one goes on behind the end of the data
    wrong: int = -1  # the next one says this length, which none can have


def hop(
    data: Any, at: int, end: int, order: str, extra: int, header: int, most: int = ENDLESS,
    least: int = 0, stretch: int = STRETCH, zeros_end: bool = False,
) -> Hops:  # fmt: skip
    """The records of `data` from `at` on, about `stretch` bytes of them.

    A record begins with its length, 32 bits in the byte order `order`; it takes `extra` bytes more
    than that, `header` of them before anything that the length counts. No length is above `most` or
    below `least`. With `zeros_end` a header of nothing but zeros is the end: the file was made
    larger in advance.
    """
    if (found := _even(data, at, end, order, extra, most, least, stretch)) is not None:
        return found
    starts: list[int] = []
    add, length_at = starts.append, _LENGTH[order]
    position, behind, last = at, at + stretch, end - header
    stop, low = min(behind, last + 1), max(least, zeros_end)
    assert most >= stretch  # so only the last of a stretch can be above it
    length = 0
    while position < stop:
        (length,) = length_at(data, position)
        if length < low:
            if zeros_end and not length and not any(data[position : position + header]):
                return Hops(starts, position)
            if length < least:
                return Hops(starts, position, wrong=length)
        add(position)
        position += extra + length
    if starts and (position > end or length > most):  # the last claims too much
        position = starts.pop()
        return Hops(starts, position, length <= most, length if length > most else -1)
    torn = last < position < end and position < behind
    if torn and zeros_end and not any(data[position:end]):
        torn = False
    return Hops(starts, position, torn=torn)


def _even(
    data: Any, at: int, end: int, order: str, extra: int, most: int, least: int, stretch: int
) -> Hops | None:
    """The records of a stretch, if all of them have one length; else None."""
    if end - at < 8:
        return None
    (length,) = _LENGTH[order](data, at)
    size = extra + length
    count = min(end - at, max(stretch, size)) // size if size else 0
    if count < FEW or not max(least, 1) <= length <= most:
        return None
    behind = at + count * size
    for place in (3, 2, 1, 0) if order == ">" else (0, 1, 2, 3):  # what differs, differs low down
        said = data[at + place : behind : size]
        if said != bytes((said[0],)) * count:
            return None
    return Hops(range(at, behind, size), behind)


def integers(starts: Sequence[int], base: int) -> Any:
    """The beginnings as an Arrow array, from `base`."""
    if isinstance(starts, range):
        return pc.subtract(pa.arange(starts.start, starts.stop, starts.step), base).cast(_INT32)
    if base:
        return pc.subtract(pa.array(starts, pa.int64()), base).cast(_INT32)
    return pa.array(starts, _INT32)


def plus(numbers: Any, more: Any) -> Any:
    """Boundaries, so many bytes further on."""
    return pc.add(numbers, pa.scalar(more, _INT32) if isinstance(more, int) else more)


class Pieces:
    """A stretch, cut at the boundaries that every record has."""

    def __init__(self, data: Any, base: int, end: int, boundaries: Sequence[Any]) -> None:
        """`boundaries` count from `base`; the last piece ends where the next record begins."""
        self.count = len(boundaries[0])
        self._kinds = len(boundaries)
        places = memoryview(bytearray(4 * (self.count * self._kinds + 1))).cast("i")
        for number, column in enumerate(boundaries):
            values = memoryview(column.buffers()[1]).cast("i")
            places[number : self.count * self._kinds : self._kinds] = values[
                column.offset : column.offset + self.count
            ]
        places[-1] = end - base
        self._all = pa.Array.from_buffers(
            pa.binary(), self.count * self._kinds,
            [None, pa.py_buffer(places), pa.py_buffer(data[base:end])],
        )  # fmt: skip

    def column(self, kind: int) -> Any:
        """The pieces behind one of the boundaries, as an array of their own."""
        return self._all.take(pa.arange(kind, self.count * self._kinds, self._kinds))

    def numbers(self, kind: int, width: int, order: str) -> Any:
        """Pieces that are unsigned numbers."""
        return numbers(self.column(kind), width, order)


def numbers(column: Any, width: int, order: str) -> Any:
    """An array of binary, all of one width, as unsigned numbers."""
    data = column.buffers()[2]
    assert len(content(column)) == len(column) * width
    if (order == "<") != _LITTLE and width > 1:
        swapped = array(_CODES[width])
        swapped.frombytes(memoryview(data).cast("B")[: len(column) * width])
        swapped.byteswap()
        data = pa.py_buffer(swapped)
    return pa.Array.from_buffers(_TYPES[width], len(column), [None, data])


def packed(values: Any, width: int, order: str) -> Any:
    """The other way: unsigned numbers (an Arrow array of that width) as bytes, one behind the
    other."""
    begin, end = values.offset * width, (values.offset + len(values)) * width
    data = memoryview(values.buffers()[1]).cast("B")[begin:end]
    if (order == "<") == _LITTLE or width == 1:
        return data
    swapped = array(_CODES[width])
    swapped.frombytes(data)
    swapped.byteswap()
    return memoryview(swapped).cast("B")


def fixed(data: Any, width: int, count: int) -> Any:
    """Bytes as an array of binary of one width."""
    places = pc.multiply(pa.arange(0, count + 1), width).cast(_INT32)
    return pa.Array.from_buffers(
        pa.binary(), count, [None, places.buffers()[1], pa.py_buffer(data)]
    )


def joined(columns: Sequence[Any]) -> memoryview:
    """Records, written: the pieces of each of them one behind the other, as one buffer."""
    empty = pa.scalar(b"", pa.binary())
    return content(pc.binary_join_element_wise(*columns, empty))


def content(column: Any) -> memoryview:
    """The bytes of all values, one behind the other, as they lie there."""
    places = memoryview(column.buffers()[1]).cast("i")
    begin, end = places[column.offset], places[column.offset + len(column)]
    return memoryview(column.buffers()[2]).cast("B")[begin:end] if end > begin else memoryview(b"")


def lengths(column: Any) -> Any:
    """How long each value is, as 32-bit numbers."""
    return pc.binary_length(column).cast(pa.uint32())


def is_rising(values: Any) -> int:
    """The first row that is not above the one before it; -1 if all are."""
    if len(values) < 2:
        return -1
    falls = pc.less_equal(values.slice(1), values.slice(0, len(values) - 1))
    row = pc.index(falls, True).as_py()
    return -1 if row < 0 else row + 1
