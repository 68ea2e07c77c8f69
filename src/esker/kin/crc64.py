"""CRC-64/NVME, the checksum of AOF2: of one string, and of many at once.

    polynomial 0x9A6C9329AC4BC9B5 (reflected), register begins as all ones, result inverted

Nothing that Esker depends on has it. A table of 256 entries and a loop over bytes does a few MB/s
in Python, so `many` does all records of a batch together, eight bytes of each at a step, with
Arrow's kernels: xor with the register, four look-ups of 16 bits each, xor. For this all records of
a group must have the same number of words. They are padded with zeros *in front*, which leaves a
register of zeros as it is; that the register begins as ones is put into the first eight bytes, with
which it would be xored anyway. Records of a similar length make a group.

`of` does one long string so: it is cut into lanes of 1 KB, their registers are made at once, and
put together in order. A register that passes 1 KB of zeros changes as a matrix says; that is a
table.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

POLYNOMIAL: Final = 0x9A6C9329AC4BC9B5
ONES: Final = (1 << 64) - 1
LANE: Final = 1024
GROUP: Final = 24  # records: below, a loop over their bytes is faster


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_BYTES: Final = _table()
_U64: Final = pa.uint64()
_SIXTEEN: Final = pa.scalar(16, _U64)
_MASK: Final = pa.scalar(0xFFFF, _U64)
_wide: list[Any] = []


def one(data: Any, value: int = ONES) -> int:
    """The CRC of one string of bytes, byte by byte."""
    for byte in data:
        value = _BYTES[(value ^ byte) & 255] ^ value >> 8
    return value ^ ONES


def of(data: Any) -> int:
    """The CRC of one string of bytes, however long."""
    count = len(data) // LANE
    if count < 2 * GROUP:
        return one(data)
    begin = len(data) - count * LANE
    register = one(memoryview(data)[:begin]) ^ ONES
    words = pa.Array.from_buffers(_U64, count * LANE // 8, [None, pa.py_buffer(data[begin:])])
    a, b, c, d, e, f, g, h = _passing()
    for lane in _registers(words, count, LANE // 8).to_pylist():
        register = (
            a[register & 255] ^ b[register >> 8 & 255] ^ c[register >> 16 & 255]
            ^ d[register >> 24 & 255] ^ e[register >> 32 & 255] ^ f[register >> 40 & 255]
            ^ g[register >> 48 & 255] ^ h[register >> 56] ^ lane
        )  # fmt: skip
    return register ^ ONES


_passed: list[list[int]] = []


def _passing() -> list[list[int]]:
    """What each byte of a register becomes when a lane of zeros has passed; made once."""
    if not _passed:
        zeros = bytes(LANE)
        bits = [one(zeros, 1 << bit) ^ ONES for bit in range(64)]
        for at in range(0, 64, 8):
            table = [0]
            for bit in bits[at : at + 8]:
                table += [value ^ bit for value in table]
            _passed.append(table)
    return _passed


def fold(value: int) -> int:
    """A CRC in 32 bits: the upper half over the lower."""
    return (value >> 32 ^ value) & 0xFFFFFFFF


def many(values: Any) -> Any:
    """The CRC of each value of an Arrow array, as an array of uint64."""
    lengths = pc.binary_length(values)
    if len(values) < GROUP:
        return pa.array(map(of, values.to_pylist()), _U64)
    # a quarter of an octave to a group, so that a quarter is padding at the most
    words = pc.divide(pc.add(lengths, 7), 8)
    sizes = {width: _rounded(width) for width in pc.unique(words).to_pylist()}
    group = pc.if_else(pc.less(lengths, 8), 0, _mapped(words, sizes))
    found = pc.unique(group).to_pylist()
    if len(found) == 1:
        return _group(values, found[0])
    parts, rows = [], []
    for width in found:
        at = pc.indices_nonzero(pc.equal(group, width))
        rows.append(at)
        parts.append(_group(values.take(at), width))
    return pa.concat_arrays(parts).take(pc.sort_indices(pa.concat_arrays(rows)))


def _rounded(words: int) -> int:
    step = 1 << max(0, words.bit_length() - 3)
    return -(-words // step) * step


def _mapped(words: Any, sizes: dict[int, int]) -> Any:
    keys = pa.array(list(sizes), words.type)
    return pa.array(list(sizes.values()), pa.int32()).take(pc.index_in(words, keys))


def _group(values: Any, words: int) -> Any:
    """The CRCs of values that have between 8 bytes and so many words."""
    if not words or len(values) < GROUP:
        return pa.array(map(of, values.to_pylist()), _U64)
    count, size = len(values), words * 8
    pads = pc.subtract(size, pc.binary_length(values))
    heads = _inverted(pc.binary_slice(values, 0, 8))
    zeros = _zeros(pads, size)
    rest = pc.binary_slice(values, 8, size)
    padded = pc.binary_join_element_wise(zeros, heads, rest, pa.scalar(b"", pa.binary()))
    data = pa.Array.from_buffers(_U64, count * words, [None, padded.buffers()[2]])
    return pc.bit_wise_not(_registers(data, count, words))


def _registers(data: Any, count: int, words: int) -> Any:
    """The registers, begun as zeros, behind `count` strings of so many words each."""
    low, second, third, high = _tables()
    register: Any = None
    for column in range(words):
        word = data.take(pa.arange(column, count * words, words))
        register = word if register is None else pc.bit_wise_xor(register, word)
        up = pc.shift_right(register, _SIXTEEN)
        upper = pc.shift_right(up, _SIXTEEN)
        highest = pc.shift_right(upper, _SIXTEEN)
        register = pc.bit_wise_xor(
            pc.bit_wise_xor(_look(low, pc.bit_wise_and(register, _MASK)),
                            _look(second, pc.bit_wise_and(up, _MASK))),
            pc.bit_wise_xor(_look(third, pc.bit_wise_and(upper, _MASK)), _look(high, highest)),
        )  # fmt: skip
    return register


def _look(table: Any, places: Any) -> Any:
    return pc.array_take(table, places, boundscheck=False)


def _inverted(heads: Any) -> Any:
    """The first eight bytes of each, as the register of ones would meet them."""
    count = len(heads)
    words = pa.Array.from_buffers(_U64, count, [None, heads.buffers()[2]])
    places = pc.multiply(pa.arange(0, count + 1), 8).cast(pa.int32())
    data = pc.bit_wise_not(words).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [None, places.buffers()[1], data])


def _zeros(sizes: Any, most: int) -> Any:
    """So many zeros each."""
    ends = pc.cumulative_sum(sizes.cast(pa.int64()))
    places = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    data = pa.py_buffer(bytes(places[-1].as_py()))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, places.buffers()[1], data])


def _tables() -> list[Any]:
    """For each 16 bits of a word: what they become after eight bytes. Made when first used."""
    if not _wide:
        table = pa.array(_BYTES, _U64)
        every = pa.arange(0, 65536).cast(_U64)
        byte, eight = pa.scalar(255, _U64), pa.scalar(8, _U64)
        for part in range(4):
            value = pc.shift_left(every, pa.scalar(16 * part, _U64))
            for _ in range(8):
                value = pc.bit_wise_xor(
                    table.take(pc.bit_wise_and(value, byte)), pc.shift_right(value, eight)
                )
            _wide.append(value)
    return _wide
