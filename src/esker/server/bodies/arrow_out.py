"""A batch as a message of an Arrow stream, in pieces: nobody copies its values.

pyarrow writes a message into one piece of memory, values and all, and needs a RecordBatch of eight
columns for it: as much work as reading the batch was. Of a slice it also writes what lies behind
the slice, up to the next 64 bytes. Here a message is its head and the buffers as they are, the
values in the memory into which they were read, columns of nulls out of zeros that all share.

A head says how many rows and nulls each column has, where each buffer begins and how long it is; in
a schema that never changes, these numbers always stand in the same place. So one head that pyarrow
wrote is the form, and the numbers are filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from esker.engine.batch import SCHEMA, Batch
from esker.format.columns import Columns, binary_parts, header_parts, validity
from esker.server.bodies.arrow_in import place_of, table_of

_NUMBER: Final = struct.Struct("<q")
_PREFIX: Final = 8  # bytes before the head: a mark, and how long the head is
_PAD: Final = [b"\0" * (-size & 7) for size in range(8)]
ALL: Final = tuple(SCHEMA.names)

Rows = list[tuple[int, int]]  # of a column and those inside it: how many rows, how many are null


def message(batch: Batch, names: tuple[str, ...] = ALL) -> tuple[Any, ...]:
    """The message that holds these columns of a batch: bytes, or what looks like them."""
    count = len(batch)
    if not count:
        return (memoryview(batch.arrow.select(names).serialize()),)
    if names is ALL and batch.columns[2:] == _NONE:  # by far the most
        return _plain(batch, count)
    rows: Rows = []
    buffers: list[Any] = []
    for name in names:
        more, found = _column(batch, name, count)
        rows += more
        buffers += found
    pieces: list[Any] = [_head(names, count, rows, [len(each) for each in buffers])]
    for each in buffers:
        pieces += (each, _PAD[len(each) & 7])
    return tuple(pieces)


# ---- values and times, and nothing else ------------------------------------------------------

_NONE: Final = (None, None, None, None)


def _plain(batch: Batch, count: int) -> tuple[Any, ...]:
    ends, data = binary_parts(batch.columns.values)
    head, before, gap, rest, last = _around(count, len(data))
    return (
        head, _longs(batch.offsets), _times(batch, count), before, ends, gap, data, rest,
        _shards(batch.shard, count), last,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _around(count: int, size: int) -> tuple[bytes, memoryview, memoryview, memoryview, memoryview]:
    """What stands around the buffers: the head, and zeros.

    Those between times and ends, between ends and values, between values and shards, and behind
    the shards.
    """
    valid, ends = (count + 7) // 8, 4 * count + 4
    column = [valid, ends, 0]
    sizes = [
        0, 8 * count, 0, 8 * count, *column, 0, ends, size, *column, *column,
        valid, ends, 0, 0, 4, 0, 0, 4, 0, 0, 4 * count,
    ]  # fmt: skip
    full, null = (count, 0), (count, count)
    rows = [full, full, null, full, null, null, null, *[(0, 0)] * 3, full]
    nulls = sum(map(_whole, column))
    rest = _whole(size) - size + 3 * nulls + 16
    zeros = _zeros(_power(rest))
    head = _head(ALL, count, rows, sizes)
    return head, zeros[:nulls], zeros[: -ends & 7], zeros[:rest], zeros[: -4 * count & 7]


# ---- any columns -----------------------------------------------------------------------------


def _column(batch: Batch, name: str, count: int) -> tuple[Rows, tuple[Any, ...]]:
    """A column and its buffers; an empty one is for nulls that there are none of."""
    columns = batch.columns
    if name == "headers":
        return _headers(columns.headers, count)
    if name == "offset":
        return [(count, 0)], (b"", _longs(batch.offsets))
    if name == "timestamp":
        return [(count, 0)], (b"", _times(batch, count))
    if name == "shard":
        return [(count, 0)], (b"", _shards(batch.shard, count))
    cells = columns[_CELLS[name]]
    if cells is None:
        return [(count, count)], (*_nothing(count), b"")
    nulls = cells.null_count
    return [(count, nulls)], (validity(cells) if nulls else b"", *binary_parts(cells))


_CELLS: Final = {"value": 0, "key": 2, "tag": 3, "node": 4}


def _headers(headers: Any, count: int) -> tuple[Rows, tuple[Any, ...]]:
    if headers is None:
        told = (*_nothing(count), b"", b"", bytes(4), b"", b"", bytes(4), b"")
        return [(count, count), *[(0, 0)] * 3], told
    nulls = headers.null_count
    ends, names, names_data, cells, cells_data = header_parts(headers)
    inner = (len(names) // 4 - 1, 0)
    valid = validity(headers) if nulls else b""
    told = (valid, ends, b"", b"", names, names_data, b"", cells, cells_data)
    return [(count, nulls), *[inner] * 3], told


def _nothing(count: int) -> tuple[Any, Any]:
    """Nulls and ends of a column of nulls."""
    zeros = _zeros(_power(4 * count + 4))
    return zeros[: (count + 7) // 8], zeros[: 4 * count + 4]


# ---- the head --------------------------------------------------------------------------------


def _head(names: tuple[str, ...], count: int, rows: Rows, sizes: Sequence[int]) -> bytes:
    """The head of a message of these columns, whose buffers have these sizes."""
    numbers, at = [], 0
    for size in sizes:
        numbers += [at, size]
        at += _whole(size)
    form = _form(names)
    head = bytearray(form.head)
    _NUMBER.pack_into(head, form.size, at)
    _NUMBER.pack_into(head, form.length, count)
    _pack(head, form.rows, [number for each in rows for number in each])
    _pack(head, form.places, numbers)
    return bytes(head)


def _pack(head: bytearray, at: int, numbers: list[int]) -> None:
    struct.pack_into(f"<{len(numbers)}q", head, at, *numbers)


class _Form(NamedTuple):
    """A head, and where in it the numbers stand."""

    head: bytes
    size: int  # of all buffers together
    length: int
    rows: int
    places: int


@lru_cache(maxsize=256)
def _form(names: tuple[str, ...]) -> _Form:
    one = Batch(0, 0, Columns(pa.array([b"x"]), 0)).arrow.select(names)
    written = one.serialize().to_pybytes()
    head = written[: _PREFIX + int.from_bytes(written[4:_PREFIX], "little")]
    below = head[_PREFIX:]
    root = int.from_bytes(below[:4], "little")
    batch = table_of(below, root, 2)
    numbers = (place_of(below, root, 3), place_of(below, batch, 0))
    lists = (_list(below, batch, 1), _list(below, batch, 2))
    return _Form(head, *(_PREFIX + at for at in (*numbers, *lists)))


def _list(data: bytes, table: int, number: int) -> int:
    """Where the first element of a list stands that a field refers to."""
    return table_of(data, table, number) + 4


# ---- buffers ---------------------------------------------------------------------------------


def _times(batch: Batch, count: int) -> Any:
    stamps = batch.columns.timestamps
    return _NUMBER.pack(stamps) * count if isinstance(stamps, int) else _longs(stamps)


def _shards(shard: int, count: int) -> memoryview:
    return _same(shard, _power(count))[: 4 * count]


def _whole(size: int) -> int:
    """A size with what fills it up: each buffer begins on a multiple of 8."""
    return (size + 7) & -8


def _longs(numbers: Any) -> Any:
    """The bytes of an array of 64-bit numbers."""
    begin = numbers.offset * 8
    return memoryview(numbers.buffers()[1])[begin : begin + 8 * len(numbers)]


def _power(size: int) -> int:
    """The next power of two: so few of them are ever made."""
    return max(1 << 13, 1 << (size - 1).bit_length())


@lru_cache(maxsize=4)
def _zeros(size: int) -> memoryview:
    return memoryview(bytes(size))


@lru_cache(maxsize=64)
def _same(shard: int, count: int) -> memoryview:
    return memoryview(shard.to_bytes(4, "little") * count)
