"""CRC-64/NVME, the checksum of AOF2: of one string, and of many at once.

    polynomial 0x9A6C9329AC4BC9B5 (reflected), register begins as all ones, result inverted

Nothing that Esker depends on has it. A table of 256 entries and a loop over bytes does a few MB/s
in Python, so `many` does all strings of a batch together, eight bytes of each at a step, with
Arrow's kernels: xor with the register, four look-ups of 16 bits each, xor.

    whole words   zeros in front leave a register of zeros as it is. So each string is filled up in
                  front to whole words, and before it comes the word that turns zeros into ones:
                  the register that a CRC begins with. An empty string is one word, too
    many lengths  the strings are sorted by length, the longest first. A step takes those that go
                  on, which is a slice from the front; those that have ended keep what they have
    long strings  are cut into lanes of 64 words, counted from their end. The registers of a
                  string's lanes are then its words, with tables of what a register becomes while
                  a lane of zeros passes: the same again, one level up
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

POLYNOMIAL: Final = 0x9A6C9329AC4BC9B5
ONES: Final = (1 << 64) - 1
LANE: Final = 64  # words
FEW: Final = 512  # bytes for each step: below, a loop over them is faster
CHUNK: Final = 16 << 20  # bytes of one string at a time; Arrow counts its binary in 31 bits


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_BYTES: Final = _table()
_BACK: Final = {value >> 56: byte for byte, value in enumerate(_BYTES)}
_U64: Final = pa.uint64()
_SHIFTS: Final = [pa.scalar(bits, _U64) for bits in (16, 32, 48)]
_MASK: Final = pa.scalar(0xFFFF, _U64)
_NOTHING: Final = pa.scalar(b"", pa.binary())


def one(data: Any, value: int = ONES) -> int:
    """The CRC of one string of bytes, byte by byte."""
    for byte in data:
        value = _BYTES[(value ^ byte) & 255] ^ value >> 8
    return value ^ ONES


def of(data: Any, value: int = 0) -> int:
    """The CRC of one string of bytes, however long; `value` is that of what comes before it."""
    register, view = value ^ ONES, memoryview(data)
    for at in range(0, len(view), CHUNK):
        part = view[at : at + CHUNK]
        places = pa.array([0, len(part)], pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), 1, [None, places, pa.py_buffer(part)])
        register = many(value, register)[0].as_py() ^ ONES
    return register ^ ONES


def fold(value: int) -> int:
    """A CRC in 32 bits: the upper half over the lower."""
    return (value >> 32 ^ value) & 0xFFFFFFFF


def many(values: Any, begin: int = ONES) -> Any:
    """The CRC of each value of an Arrow array, as an array of uint64."""
    lengths = pc.binary_length(values)
    steps = (pc.max(lengths).as_py() or 0) // 8 + 1
    if (pc.sum(lengths).as_py() or 0) < FEW * min(steps, LANE):
        return pa.array([one(value, begin) for value in values.to_pylist()], _U64)
    word = _before(begin).to_bytes(8, "little")
    fronts = pa.array([bytes(count) + word for count in range(8)], pa.binary())
    fronts = fronts.take(pc.bit_wise_and(pc.negate(lengths), 7))
    padded = pc.binary_join_element_wise(fronts, values, _NOTHING)
    places = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, padded.buffers()[1]])
    places = pc.shift_right(places, 3)
    words = pa.Array.from_buffers(_U64, places[-1].as_py(), [None, padded.buffers()[2]])
    return pc.bit_wise_not(_registers(words, places, 0))


def _before(register: int) -> int:
    """The eight bytes that turn a register of zeros into this one."""
    for _ in range(8):
        byte = _BACK[register >> 56]
        register = (register ^ _BYTES[byte]) << 8 & ONES | byte
    return register


def _registers(words: Any, places: Any, level: int) -> Any:
    """The registers, begun as zeros, behind the strings of words between these places."""
    count = len(places) - 1
    starts = places.slice(0, count)
    sizes = pc.subtract(places.slice(1), starts)
    if pc.max(sizes).as_py() <= LANE:
        return _passed(words, starts, sizes, level)
    lanes = pc.divide(pc.add(sizes, LANE - 1), LANE)
    firsts = pc.subtract(sizes, pc.multiply(pc.subtract(lanes, 1), LANE))
    ends = _sums(lanes)
    total = ends[-1].as_py()
    is_first = pc.is_in(pa.arange(0, total).cast(pa.int32()), ends.slice(0, count))
    full = pa.repeat(pa.scalar(LANE, pa.int32()), total)
    parts = pc.replace_with_mask(full, is_first, firsts.cast(pa.int32()))
    begins = _sums(parts).slice(0, total)
    return _registers(_passed(words, begins, parts, level), ends, level + 1)


def _sums(numbers: Any) -> Any:
    """Zero, and how much it is after each."""
    sums = pc.cumulative_sum(numbers).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), sums])


def _passed(words: Any, starts: Any, sizes: Any, level: int) -> Any:
    """The registers behind strings that begin at these words and have so many of them.

    A word of bytes passes through the register; one that is the register of a lane has done so.
    """
    tables = _tables(level)
    order = pc.array_sort_indices(sizes, order="descending")
    starts = starts.take(order)
    left, step = len(starts), 0
    register: Any = None
    done = []
    for group in reversed(pc.value_counts(sizes.take(order)).to_pylist()):  # the shortest first
        while step < group["values"]:
            word = _look(words.slice(step), starts)
            if level and register is not None:
                register = _next(register, tables)
            register = word if register is None else pc.bit_wise_xor(register, word)
            if not level:
                register = _next(register, tables)
            step += 1
        left -= group["counts"]
        done.append(register.slice(left))
        register, starts = register.slice(0, left), starts.slice(0, left)
    return _bare(pa.concat_arrays(done[::-1]).take(pc.array_sort_indices(order)))


def _next(register: Any, tables: list[Any]) -> Any:
    """What registers become: each 16 bits of them by the table for their place."""
    low, second, third, high = tables
    up, upper, highest = (pc.shift_right(register, bits) for bits in _SHIFTS)
    return pc.bit_wise_xor(
        pc.bit_wise_xor(_look(low, pc.bit_wise_and(register, _MASK)),
                        _look(second, pc.bit_wise_and(up, _MASK))),
        pc.bit_wise_xor(_look(third, pc.bit_wise_and(upper, _MASK)), _look(high, highest)),
    )  # fmt: skip


def _look(table: Any, places: Any) -> Any:
    return pc.array_take(table, places, boundscheck=False)


def _bare(numbers: Any) -> Any:
    """The same without a bitmap of what is null: with one, a look-up costs twice as much."""
    return pa.Array.from_buffers(_U64, len(numbers), [None, numbers.buffers()[1]])


_known: list[tuple[list[int], list[Any]]] = []  # by level: what single bits become, and the tables


def _tables(level: int) -> list[Any]:
    """What each 16 bits of a register become while zeros pass: a word, a lane, 64 lanes, ..."""
    while len(_known) <= level:
        if not _known:
            bits = [one(bytes(8), 1 << bit) ^ ONES for bit in range(64)]
        else:
            bits = _known[-1][0]
            for _ in range(LANE.bit_length() - 1):  # twice as far, six times
                bits = [_times(bits, value) for value in bits]
        tables = []
        for at in range(0, 64, 16):
            table = pa.array([0], _U64)
            for value in bits[at : at + 16]:
                more = pc.bit_wise_xor(table, pa.scalar(value, _U64))
                table = pa.concat_arrays([table, more])
            tables.append(_bare(table))
        _known.append((bits, tables))
    return _known[level][1]


def _times(bits: list[int], value: int) -> int:
    """What a register becomes, if this is what its bits become."""
    made = 0
    while value:
        low = value & -value
        made ^= bits[low.bit_length() - 1]
        value ^= low
    return made
