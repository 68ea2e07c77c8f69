"""CRC-64/NVME, the checksum of AOF2: of one string, and of many at once.

    polynomial 0x9A6C9329AC4BC9B5 (reflected), register begins as all ones, result inverted

Nothing that Esker depends on has it. A table of 256 entries and a loop over bytes does a few MB/s
in Python, so `many` does all strings of a batch together, eight bytes of each at a step, with
Arrow's kernels: xor with the register, five look-ups of 13 bits each, xor. Tables of 16
bits would be four, and 2 MB, which the fast memory of a processor does not hold.

    whole words   each string is filled up in front to whole words, an empty one to one word. What
                  stands there does not matter: it is masked out of the first word, and replaced by
                  the zeros' worth of register with which a CRC of the string alone begins
    many lengths  the strings are sorted by length, the longest first. A step takes those that go
                  on, which is a slice from the front; those that have ended keep what they have
    long strings  are cut into lanes of 64 words, counted from their end. The registers of a
                  string's lanes are then its words, with tables of what a register becomes while
                  a lane of zeros passes: the same again, one level up
    xor           of two arrays of numbers costs Arrow twice as much as of the same bits as booleans
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
_BITS: Final = pa.bool_()
WIDTH: Final = 13  # bits of a look-up
_SHIFTS: Final = [pa.scalar(bits, _U64) for bits in range(0, 64, WIDTH)]
_MASK: Final = pa.scalar((1 << WIDTH) - 1, _U64)
_NOTHING: Final = pa.scalar(b"", pa.binary())
_SPARE: Final = pa.array([bytes(count) for count in range(9)], pa.binary())
_KEEP: Final = pa.array([ONES << 8 * count & ONES for count in range(9)], _U64)
_XOR: Final = pc.get_function("xor").call
_AND: Final = pc.get_function("bit_wise_and").call
_SHIFT: Final = pc.get_function("shift_right").call
_TAKE: Final = pc.get_function("array_take").call
_UNCHECKED: Final = pc.TakeOptions(boundscheck=False)


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
    return ended(
        pc.binary_join_element_wise(_SPARE.take(spare(lengths)), values, _NOTHING), lengths, begin
    )


def spare(lengths: Any) -> Any:
    """How many bytes go before strings of these lengths, so that they are whole words."""
    kind = lengths.type
    filled = pc.bit_wise_and(pc.negate(lengths), pa.scalar(7, kind))
    return pc.add(filled, pc.multiply(pc.equal(lengths, 0).cast(kind), pa.scalar(8, kind)))


def ended(words: Any, lengths: Any, begin: int = ONES) -> Any:
    """The CRC of strings with which the values of an array end.

    The values are whole words: each has as many bytes before the string as `spare` says, whichever.
    """
    places = pa.Array.from_buffers(
        pa.int32(), len(words) + 1, [None, words.buffers()[1]], offset=words.offset
    )
    places = pc.shift_right(places, 3)
    numbers = pa.Array.from_buffers(_U64, places[-1].as_py(), [None, words.buffers()[2]])
    before = spare(lengths)
    firsts = (_KEEP.take(before), pa.array(_begins(begin), _U64).take(before))
    return pc.bit_wise_not(_registers(numbers, places, 0, firsts))


def _begins(register: int) -> list[int]:
    """What becomes this register while 0, 1, ... 8 bytes of zeros pass."""
    found = [register]
    for _ in range(8):
        byte = _BACK[register >> 56]
        register = (register ^ _BYTES[byte]) << 8 & ONES | byte
        found.append(register)
    return found


def _registers(words: Any, places: Any, level: int, firsts: Any = None) -> Any:
    """The registers behind the strings of words between these places.

    They begin as zeros. `firsts` is what is kept of each string's first word, and xored with it.
    """
    count = len(places) - 1
    starts = places.slice(0, count)
    sizes = pc.subtract(places.slice(1), starts)
    if pc.max(sizes).as_py() <= LANE:
        return _passed(words, starts, sizes, level, firsts)
    lanes = pc.divide(pc.add(sizes, LANE - 1), LANE)
    shorts = pc.subtract(sizes, pc.multiply(pc.subtract(lanes, 1), LANE))
    ends = _sums(lanes)
    total = ends[-1].as_py()
    is_first = pc.is_in(pa.arange(0, total).cast(pa.int32()), ends.slice(0, count))

    def spread(values: Any, other: Any) -> Any:
        """The values for the first lanes of the strings, another one for all that follow."""
        return pc.replace_with_mask(pa.repeat(other, total), is_first, values)

    if firsts is not None:
        keep, give = firsts
        firsts = (spread(keep, pa.scalar(ONES, _U64)), spread(give, pa.scalar(0, _U64)))
    parts = spread(shorts.cast(pa.int32()), pa.scalar(LANE, pa.int32()))
    begins = _sums(parts).slice(0, total)
    return _registers(_passed(words, begins, parts, level, firsts), ends, level + 1)


def _sums(numbers: Any) -> Any:
    """Zero, and how much it is after each."""
    sums = pc.cumulative_sum(numbers).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), sums])


def _passed(words: Any, starts: Any, sizes: Any, level: int, firsts: Any) -> Any:
    """The registers behind strings that begin at these words and have so many of them.

    A word of bytes passes through the register; one that is the register of a lane has done so.
    """
    tables = _tables(level)
    order = pc.array_sort_indices(sizes, order="descending")
    starts = starts.take(order)
    left, step = len(starts), 0
    register: Any = None  # as bits
    done = []
    for group in reversed(pc.value_counts(sizes.take(order)).to_pylist()):  # the shortest first
        while step < group["values"]:
            word = _look(words.slice(step), starts)
            if register is None and firsts is not None:
                keep, give = (each.take(order) for each in firsts)
                word = pc.bit_wise_xor(pc.bit_wise_and(word, keep), give)
            if level and register is not None:
                register = _next(register, tables)
            register = _bits(word) if register is None else _XOR([register, _bits(word)])
            if not level:
                register = _next(register, tables)
            step += 1
        left -= group["counts"]
        done.append(_numbers(register).slice(left))
        register, starts = register.slice(0, 64 * left), starts.slice(0, left)
    back = pc.inverse_permutation(order.view(pa.int64()))
    return _bare(pa.concat_arrays(done[::-1]).take(back))


def _next(register: Any, tables: list[Any]) -> Any:
    """What registers become: each few bits of them by the table for their place."""
    numbers = _numbers(register)
    made = _bits(_look(tables[0], _AND([numbers, _MASK])))
    for shift, table in zip(_SHIFTS[1:-1], tables[1:-1], strict=True):
        made = _XOR([made, _bits(_look(table, _AND([_SHIFT([numbers, shift]), _MASK])))])
    return _XOR([made, _bits(_look(tables[-1], _SHIFT([numbers, _SHIFTS[-1]])))])


def _look(table: Any, places: Any) -> Any:
    return _TAKE([table, places], _UNCHECKED)


def _bits(numbers: Any) -> Any:
    """Numbers, from the beginning of their buffer, as the bits that they are."""
    return pa.Array.from_buffers(_BITS, 64 * len(numbers), [None, numbers.buffers()[1]])


def _numbers(bits: Any) -> Any:
    return pa.Array.from_buffers(_U64, len(bits) // 64, [None, bits.buffers()[1]])


def _bare(numbers: Any) -> Any:
    """The same without a bitmap of what is null: with one, a look-up costs twice as much."""
    return pa.Array.from_buffers(_U64, len(numbers), [None, numbers.buffers()[1]])


_known: list[tuple[list[int], list[Any]]] = []  # by level: what single bits become, and the tables


def _tables(level: int) -> list[Any]:
    """What each few bits of a register become while zeros pass: a word, a lane, 64 lanes, ..."""
    while len(_known) <= level:
        if not _known:
            bits = [one(bytes(8), 1 << bit) ^ ONES for bit in range(64)]
        else:
            bits = _known[-1][0]
            for _ in range(LANE.bit_length() - 1):  # twice as far, six times
                bits = [_times(bits, value) for value in bits]
        tables = []
        for at in range(0, 64, WIDTH):
            table = pa.array([0], _U64)
            for value in bits[at : at + WIDTH]:
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
