"""From records that lie one behind the other to Arrow columns.

All five formats write a record as a header that tells its length, and the record. So where one
begins is known only when the one before it was looked at:

    hop        the beginnings of the records, by going from header to header. If all of a stretch
               have one length, four strided comparisons prove it and nobody hops
    cut        the same stretch as one Arrow array of pieces: header fields, values, checksums, each
               from one boundary to the next. Nothing is copied. `take` then gathers every second,
               third, ... piece: one column of all records, copied by Arrow in one go

The hop is the only Python per record here: read a length, remember the place, go on. What the
lengths say is checked behind it, for all of them at once. Everything that is
decoded comes from somebody else's disk: a length is believed only as far as the bytes go that there
are, so no buffer is ever larger than the file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

STRETCH: Final = 4 << 20  # bytes that are decoded at a time; Arrow counts its binary in 31 bits
WINDOW: Final = 256 << 10  # bytes that are hopped over before anything is checked
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
    hopped: list[int] = []
    add, length_at = hopped.append, _LENGTH[order]
    position, behind, last = at, at + stretch, end - header
    stop, low = min(behind, last + 1), max(least, zeros_end)
    assert most >= stretch  # so only the last of a stretch can be above it
    length, view = 0, memoryview(data)
    while position < stop:
        window = view[: min(position + WINDOW, stop) + 3]  # the end of it ends the loop
        bytes(window[position:])  # to copy is to fetch ahead: each hop would wait for memory
        try:
            while True:
                (length,) = length_at(window, position)
                add(position)
                position += extra + length
        except struct.error:
            if length < low and (length < least or not any(view[hopped[-1] :][:header])):
                break  # where nothing was written; how much of it was hopped over is found below
    starts = array("q", hopped)
    for row, said in _shorter(starts, position, extra, low):
        place = starts[row]
        if zeros_end and not said and not any(view[place : place + header]):
            return Hops(starts[:row], place)
        if said < least:
            return Hops(starts[:row], place, wrong=said)
    if starts and (position > end or length > most):  # the last claims too much
        position = starts.pop()
        return Hops(starts, position, length <= most, length if length > most else -1)
    torn = last < position < end and position < behind
    if torn and zeros_end and not any(view[position:end]):
        torn = False
    return Hops(starts, position, torn=torn)


def _shorter(starts: array[int], end: int, extra: int, low: int) -> Iterator[tuple[int, int]]:
    """The records that say a length below this one: which, and what they say."""
    if not low or not starts:
        return
    begin = _numbers(starts)
    lengths = pc.subtract(pa.concat_arrays([begin.slice(1), pa.array([end])]), begin)
    if pc.min(lengths).as_py() < extra + low:
        for row in pc.indices_nonzero(pc.less(lengths, extra + low)):
            yield row.as_py(), lengths[row.as_py()].as_py() - extra


def _numbers(starts: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(starts), [None, pa.py_buffer(starts)])


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
    assert isinstance(starts, array)
    return pc.subtract(_numbers(starts), base).cast(_INT32)


def plus(numbers: Any, more: Any) -> Any:
    """Boundaries, so many bytes further on."""
    return pc.add(numbers, pa.scalar(more, _INT32) if isinstance(more, int) else more)


def following(begin: Any, end: int) -> Any:
    """Where the record behind each of these begins; `end` is where the one behind the last does."""
    return pa.concat_arrays([begin.slice(1), pa.array([end], _INT32)])


def _pairs(boundaries: Sequence[Any], end: int) -> Any:
    """Two columns of boundaries in turns, and the end: each pair as one number of 64 bits."""
    low, high = (pa.concat_arrays([column, pa.array([end], _INT32)]) for column in boundaries)
    high = pc.shift_left(high.cast(pa.int64()), 32)
    return pc.add(low.cast(pa.int64()), high).buffers()[1]


def _woven(boundaries: Sequence[Any], end: int) -> Any:
    """Columns of boundaries in turns, and the end."""
    kinds, count = len(boundaries), len(boundaries[0])
    places = memoryview(bytearray(4 * (count * kinds + 1))).cast("i")
    for number, column in enumerate(boundaries):
        values = memoryview(column.buffers()[1]).cast("i")
        places[number : count * kinds : kinds] = values[column.offset : column.offset + count]
    places[-1] = end
    return pa.py_buffer(places)


class Pieces:
    """A stretch, cut at the boundaries that every record has."""

    def __init__(self, data: Any, base: int, end: int, boundaries: Sequence[Any]) -> None:
        """`boundaries` count from `base`; the last piece ends where the next record begins."""
        self.count = len(boundaries[0])
        self._kinds = len(boundaries)
        paired = self._kinds == 2 and _LITTLE
        self._all = pa.Array.from_buffers(
            pa.binary(), self.count * self._kinds,
            [None, (_pairs if paired else _woven)(boundaries, end - base),
             pa.py_buffer(data[base:end])],
        )  # fmt: skip

    def column(self, kind: int) -> Any:
        """The pieces behind one of the boundaries, as an array of their own."""
        return self._all.take(pa.arange(kind, self.count * self._kinds, self._kinds))

    def numbers(self, kind: int, width: int, order: str) -> Any:
        """Pieces that are unsigned numbers."""
        return numbers(self.column(kind), width, order)


class Heads:
    """The fixed parts of all records of a stretch, copied out: their fields are aligned there."""

    def __init__(self, column: Any, size: int) -> None:
        """All of the column have this size: whole words of 8 bytes."""
        assert len(content(column)) == len(column) * size
        self.count = len(column)
        self.size = size
        self._data = column.buffers()[2]

    def numbers(self, place: int, width: int) -> Any:
        """The field at this byte of each; little-endian, as this machine."""
        each = self.size // width
        fields = pa.Array.from_buffers(_TYPES[width], self.count * each, [None, self._data])
        return fields.take(pa.arange(place // width, self.count * each, each))


def byte_at(data: Any, base: int, end: int, places: Any) -> Any:
    """One byte of each record, at these places, counted from `base`."""
    everything = [None, pa.py_buffer(data[base:end])]
    return pa.Array.from_buffers(pa.uint8(), end - base, everything).take(places)


def numbers(column: Any, width: int, order: str) -> Any:
    """An array of binary, all of one width, as unsigned numbers."""
    assert len(content(column)) == len(column) * width
    return unpacked(memoryview(column.buffers()[2]).cast("B")[: len(column) * width], width, order)


def unpacked(data: Any, width: int, order: str) -> Any:
    """Bytes, one number behind the other, as unsigned numbers."""
    count = len(data) // width
    if (order == "<") != _LITTLE and width > 1:
        swapped = array(_CODES[width])
        swapped.frombytes(data)
        swapped.byteswap()
        data = swapped
    return pa.Array.from_buffers(_TYPES[width], count, [None, pa.py_buffer(data)])


def nanos(timestamps: Any, count: int) -> Any:
    """Microseconds, one for all or an array, as little-endian nanoseconds. None is 0: a header of
    zeros alone is no record in the formats that store times so."""
    if isinstance(timestamps, int):
        return max(timestamps * 1000, 1).to_bytes(8, "little") * count
    found = pc.max_element_wise(pc.multiply(timestamps, 1000), 1)
    return packed(found.view(pa.uint64()), 8, "<")


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
