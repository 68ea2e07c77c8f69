"""The body of a data frame: Arrow buffers, one behind the other.

    value offsets      i32[n+1]
    timestamps         i64[n]                    when bit TIMESTAMPS is set; else all equal the
                                                 header's min_timestamp
    key, tag, node     validity u8[ceil(n/8)]    each when its bit is set
                       offsets i32[n+1]
                       bytes
    headers            list offsets i32[n+1]     when bit HEADERS is set
                       key offsets i32[m+1], key bytes, value offsets i32[m+1], value bytes
    value bytes

Every buffer begins on a multiple of 8 from the start of the body and is padded with zeros. No
length is stored: each follows from `count` and from the offsets before it. So a body that lies
in a mapped file *is* the Arrow arrays, and reading it copies nothing.

Two ways in. `from_lists` takes Python lists, as the buffered append collects them; `from_arrow`
takes Arrow arrays and does no Python per record. Few records are packed in plain Python, because
below a few dozen a call into Arrow costs more than the records do.
"""

from __future__ import annotations

import array as arrays
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import InvalidRecord

TIMESTAMPS: Final = 1
KEYS: Final = 2
TAGS: Final = 4
NODES: Final = 8
HEADERS: Final = 16

FEW: Final = 32
_NO_MORE: Final = (None, None, None, None)

_PAD: Final = [b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0"]
_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_INT32: Final = pa.int32()
_INT64: Final = pa.int64()
HEADER_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Extra = tuple[bytes | None, str | None, str | None, Mapping[str, bytes] | None, int | None]
"""key, tag, node, headers, timestamp of one record."""


class Columns(NamedTuple):
    """Records as Arrow arrays. `timestamps` is one number when all records share it."""

    values: Any
    timestamps: Any  # int, or an int64 array
    keys: Any = None
    tags: Any = None
    nodes: Any = None
    headers: Any = None

    @property
    def count(self) -> int:  # type: ignore[override]  # rows, not a search in the tuple
        return len(self.values)

    @property
    def bits(self) -> int:
        return (
            (0 if isinstance(self.timestamps, int) else TIMESTAMPS)
            | (KEYS if self.keys is not None else 0)
            | (TAGS if self.tags is not None else 0)
            | (NODES if self.nodes is not None else 0)
            | (HEADERS if self.headers is not None else 0)
        )

    def slice(self, start: int, count: int) -> Columns:
        """Rows [start, start + count); copies nothing."""
        return Columns(
            *(
                column if column is None or isinstance(column, int) else column.slice(start, count)
                for column in self
            )
        )

    def time_range(self) -> tuple[int, int]:
        """The smallest and the largest timestamp."""
        if isinstance(self.timestamps, int):
            return self.timestamps, self.timestamps
        found = pc.min_max(self.timestamps)
        return found["min"].as_py(), found["max"].as_py()

    @property
    def nbytes(self) -> int:
        """Bytes of the values alone."""
        return value_bytes(self.values)


class Body(NamedTuple):
    """An encoded body, ready to be written: its buffers, padded, and what the header must say."""

    parts: list[Any]
    size: int
    bits: int
    count: int  # type: ignore[assignment]  # rows, not a search in the tuple
    min_timestamp: int
    max_timestamp: int


def one(value: bytes, now_us: int) -> Body:
    """The body of a single plain record, as `from_lists([value], {}, now_us)` makes it."""
    size = len(value)
    body = b"".join((_ONE.pack(0, size), value, _PAD[size & 7]))
    return Body([body], len(body), 0, 1, now_us, now_us)


def one_marked(value: bytes, name: str, cell: bytes, now_us: int) -> Body:
    """The body of a single record with one header, as `from_arrow` makes it."""
    size, label = len(value), name.encode()
    body = b"".join(
        (
            _ONE.pack(0, size), _ONE.pack(0, 1),
            _ONE.pack(0, len(label)), label, _PAD[len(label) & 7],
            _ONE.pack(0, len(cell)), cell, _PAD[len(cell) & 7],
            value, _PAD[size & 7],
        )
    )  # fmt: skip
    return Body([body], len(body), HEADERS, 1, now_us, now_us)


_ONE: Final = struct.Struct("<ii")


# ---- Python lists in ---------------------------------------------------------------------


def from_lists(values: Sequence[bytes], extras: Mapping[int, Extra], now_us: int) -> Body:
    """Encode records collected one by one; `extras` holds what some of them carry besides."""
    count = len(values)
    if count > FEW or (extras and any(extra[3] for extra in extras.values())):
        return from_arrow(to_columns(values, extras, now_us))
    low = high = now_us
    bits = 0
    parts: list[bytes] = [_offsets(list(map(len, values)))]
    if extras:
        stamps = [now_us] * count
        for row, extra in extras.items():
            if extra[4] is not None:
                stamps[row] = extra[4]
        low, high = min(stamps), max(stamps)
        if low != high:
            bits |= TIMESTAMPS
            parts.append(struct.pack(f"<{count}q", *stamps))
        for which, bit in ((0, KEYS), (1, TAGS), (2, NODES)):
            column: list[bytes | None] = [None] * count
            for row, extra in extras.items():
                cell: Any = extra[which]
                if cell is not None:
                    column[row] = cell.encode() if which else cell
                    bits |= bit
            if bits & bit:
                parts.extend(_few_optional(column))
    parts.extend(values)
    tail = sum(map(len, values)) & 7
    parts.append(_PAD[tail])
    body = b"".join(parts)
    return Body([body], len(body), bits, count, low, high)


def _offsets(lengths: list[int]) -> bytes:
    count = len(lengths) + 1
    packed = struct.pack(f"<{count}i", *accumulate(lengths, initial=0))
    return packed if not count & 1 else packed + b"\0\0\0\0"


def _few_optional(column: list[bytes | None]) -> list[bytes]:
    valid = sum(1 << row for row, cell in enumerate(column) if cell is not None)
    cells = [cell or b"" for cell in column]
    data = b"".join(cells)
    return [
        valid.to_bytes(8 * ((len(column) + 63) // 64), "little"),
        _offsets(list(map(len, cells))),
        data,
        _PAD[len(data) & 7],
    ]


def few_values(values: Sequence[bytes]) -> Any:
    """A binary array of a few values.

    `pa.array` does the same. It takes twice as long for a handful, and the first time it imports
    pandas where there is one, which takes longer than opening and reading a small store.
    """
    ends = pa.py_buffer(arrays.array("i", accumulate(map(len, values), initial=0)))
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(_BINARY, len(values), [None, ends, data])


def few_numbers(numbers: Sequence[int]) -> Any:
    """The same for 64-bit integers."""
    data = pa.py_buffer(arrays.array("q", numbers))
    return pa.Array.from_buffers(_INT64, len(numbers), [None, data])


def to_columns(values: Sequence[bytes], extras: Mapping[int, Extra], now_us: int) -> Columns:
    """Arrow arrays of records collected one by one."""
    array = pa.array(values, _BINARY)
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB of values
        raise InvalidRecord("more than 2 GiB of values in one batch; append them in parts")
    if not extras:
        return Columns(array, now_us)
    count = len(values)
    columns: list[list[Any]] = [[None] * count for _ in range(4)]
    stamps = [now_us] * count
    stamped = False
    for row, extra in extras.items():
        for which in range(4):
            columns[which][row] = extra[which]
        if extra[4] is not None:
            stamps[row] = extra[4]
            stamped = True
    keys, tags, nodes, headers = columns
    return Columns(
        array,
        pa.array(stamps, _INT64) if stamped else now_us,
        pa.array(keys, _BINARY) if any(k is not None for k in keys) else None,
        pa.array(tags, _STRING) if any(t is not None for t in tags) else None,
        pa.array(nodes, _STRING) if any(n is not None for n in nodes) else None,
        pa.array([list(h.items()) if h else [] for h in headers], HEADER_MAP).cast(HEADER_TYPE)
        if any(headers)
        else None,
    )


HEADER_MAP: Final = pa.map_(pa.string(), pa.binary())


# ---- Arrow in ----------------------------------------------------------------------------


def from_arrow(columns: Columns) -> Body:
    """Encode Arrow arrays. The big buffers are passed on, not copied."""
    if columns[2:] == _NO_MORE and isinstance(columns.timestamps, int):
        return _plain(columns.values, columns.timestamps)
    low, high = columns.time_range()
    if low == high and not isinstance(columns.timestamps, int):
        columns = columns._replace(timestamps=low)
    count = columns.count
    value_offsets, value_data = binary_parts(columns.values)
    parts: list[Any] = []
    size = _add(parts, value_offsets, 0)
    if not isinstance(columns.timestamps, int):
        stamps = columns.timestamps
        data = stamps.buffers()[1].slice(stamps.offset * 8, count * 8)
        size = _add(parts, data, size)
    for column in (columns.keys, columns.tags, columns.nodes):
        if column is not None:
            offsets, data = binary_parts(column)
            size = _add(parts, validity(column), size)
            size = _add(parts, offsets, size)
            size = _add(parts, data, size)
    if columns.headers is not None:
        for part in header_parts(columns.headers):
            size = _add(parts, part, size)
    size = _add(parts, value_data, size)
    return Body(parts, size, columns.bits, count, low, high)


def _plain(values: Any, stamp: int) -> Body:
    """Values alone, all of one time: the commonest body there is."""
    count = len(values)
    offsets, data = binary_parts(values)
    size = (count + 1) * 4
    parts = [offsets]
    if size & 7:
        parts.append(_PAD[4])
        size += 4
    length = len(data)
    if length:
        parts.append(data)
        size += length
        if length & 7:
            parts.append(_PAD[length & 7])
            size += 8 - (length & 7)
    return Body(parts, size, 0, count, stamp, stamp)


def _add(parts: list[Any], data: Any, size: int) -> int:
    length = len(data)
    if length:
        parts.append(data)
        if length & 7:
            parts.append(_PAD[length & 7])
            length = (length + 7) & -8
    return size + length


def binary_parts(array: Any) -> tuple[Any, Any]:
    """Offsets (from 0) and bytes of a binary or string array, without copying the bytes."""
    count = len(array)
    _, offsets, data = array.buffers()
    if offsets is None or count == 0:
        return bytes(4), b""
    offsets = offsets.slice(array.offset * 4, (count + 1) * 4)
    view = memoryview(offsets).cast("i")
    first, last = view[0], view[count]
    if first:
        offsets = _from_zero(offsets, first, count)
    if data is None or first == last:
        return offsets, b""
    return offsets, data.slice(first, last - first)


def _from_zero(offsets: Any, first: int, count: int) -> Any:
    """Offsets that begin at `first`, made to begin at 0."""
    numbers = pa.Array.from_buffers(_INT32, count + 1, [None, offsets])
    return pc.subtract(numbers, pa.scalar(first, _INT32)).buffers()[1].slice(0, (count + 1) * 4)


def value_bytes(array: Any) -> int:
    """How many bytes the values of a binary array hold together."""
    count = len(array)
    offsets = array.buffers()[1]
    if offsets is None or count == 0:
        return 0
    begin, end = array.offset * 4, (array.offset + count) * 4
    return _LAST.unpack_from(offsets, end)[0] - _LAST.unpack_from(offsets, begin)[0]  # type: ignore[no-any-return]


def validity(array: Any) -> Any:
    """Which cells of an array are not null: a bit each, and none behind the last."""
    count = len(array)
    size = (count + 7) // 8
    if array.null_count == 0:
        full = b"\xff" * (count // 8)
        return full + bytes([(1 << (count & 7)) - 1]) if count & 7 else full
    if array.offset == 0:
        bitmap = array.buffers()[0].slice(0, size)
        if count & 7:  # bits behind the end are ours to clear: bytes on disk are a function of data
            last = bitmap[size - 1] & ((1 << (count & 7)) - 1)
            return bytes(bitmap[: size - 1]) + bytes([last])
        return bitmap
    bools = pa.concat_arrays([pc.is_valid(array), pa.array([], pa.bool_())])  # offset becomes 0
    bitmap = bytearray(bools.buffers()[1][:size])
    if count & 7:
        bitmap[size - 1] &= (1 << (count & 7)) - 1
    return bytes(bitmap)


def header_parts(headers: Any) -> list[Any]:
    """Of a column of headers: its offsets, then offsets and bytes of names, and of values."""
    if headers.null_count:
        headers = pa.array([cell or [] for cell in headers.to_pylist()], HEADER_TYPE)
    count = len(headers)
    offsets = headers.buffers()[1].slice(headers.offset * 4, (count + 1) * 4)
    first = memoryview(offsets).cast("i")[0]
    if first:
        offsets = _from_zero(offsets, first, count)
    flat = headers.flatten()
    keys, cells = flat.field("key"), flat.field("value")
    if flat.offset:
        keys, cells = flat.flatten()
    key_offsets, key_data = binary_parts(keys)
    cell_offsets, cell_data = binary_parts(cells)
    return [offsets, key_offsets, key_data, cell_offsets, cell_data]


# ---- bytes out ---------------------------------------------------------------------------


def decode(body: Any, bits: int, count: int, min_timestamp: int) -> Columns:
    """The Arrow arrays that stand on `body` (a pyarrow Buffer). Copies nothing.

    The body has passed its checksum, so its offsets are those that were written; they are held
    against the body's size all the same, and a mismatch raises ValueError.
    """
    if not bits:
        begin, size = (count * 4 + 11) & -8, len(body)
        last = _LAST.unpack_from(body, count * 4)[0] if begin <= size else -1
        if last >= 0 and begin + ((last + 7) & -8) == size:  # else the long way says what is wrong
            parts = [None, body.slice(0, count * 4 + 4), body.slice(begin, last)]
            return Columns(pa.Array.from_buffers(_BINARY, count, parts, 0), min_timestamp)
    cursor = _Cursor(body)
    value_offsets = cursor.take((count + 1) * 4)
    stamps: Any = min_timestamp
    if bits & TIMESTAMPS:
        stamps = pa.Array.from_buffers(_INT64, count, [None, cursor.take(count * 8)])
    keys = cursor.optional(count, _BINARY) if bits & KEYS else None
    tags = cursor.optional(count, _STRING) if bits & TAGS else None
    nodes = cursor.optional(count, _STRING) if bits & NODES else None
    headers = cursor.headers(count) if bits & HEADERS else None
    data = cursor.take(_last(value_offsets, count))
    if cursor.at != cursor.size:  # a count that is not the body's would be read as other offsets
        raise ValueError(f"a frame body of {cursor.size} bytes, of which {cursor.at} are used")
    values = pa.Array.from_buffers(_BINARY, count, [None, value_offsets, data], 0)
    return Columns(values, stamps, keys, tags, nodes, headers)


_LAST: Final = struct.Struct("<i")


def _last(offsets: Any, count: int) -> int:
    size = memoryview(offsets).cast("i")[count]
    if size < 0:
        raise ValueError("negative offset in a frame body")
    return int(size)


class _Cursor:
    """Cuts a body into its buffers, one after the other."""

    __slots__ = ("at", "body", "size")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.size = len(body)
        self.at = 0

    def take(self, size: int) -> Any:
        at = self.at
        if at + size > self.size:
            raise ValueError(f"a frame body of {self.size} bytes lacks {at + size - self.size}")
        self.at = at + ((size + 7) & -8)
        return self.body.slice(at, size)

    def optional(self, count: int, kind: Any) -> Any:
        valid = self.take((count + 7) // 8)
        offsets = self.take((count + 1) * 4)
        data = self.take(_last(offsets, count))
        return pa.Array.from_buffers(kind, count, [valid, offsets, data])

    def headers(self, count: int) -> Any:
        offsets = self.take((count + 1) * 4)
        inner = _last(offsets, count)
        key_offsets = self.take((inner + 1) * 4)
        keys = self.take(_last(key_offsets, inner))
        cell_offsets = self.take((inner + 1) * 4)
        cells = self.take(_last(cell_offsets, inner))
        flat = pa.StructArray.from_arrays(
            [
                pa.Array.from_buffers(_STRING, inner, [None, key_offsets, keys], 0),
                pa.Array.from_buffers(_BINARY, inner, [None, cell_offsets, cells], 0),
            ],
            fields=list(HEADER_TYPE.value_type),
        )
        return pa.Array.from_buffers(HEADER_TYPE, count, [None, offsets], 0, 0, [flat])


def concat(chunks: Sequence[Columns]) -> Columns:
    """Several batches as one; copies."""
    if len(chunks) == 1:
        return chunks[0]
    first = chunks[0].timestamps
    same = isinstance(first, int) and all(chunk.timestamps == first for chunk in chunks
                                          if isinstance(chunk.timestamps, int)) \
        and all(isinstance(chunk.timestamps, int) for chunk in chunks)  # fmt: skip
    stamps = first if same else pa.concat_arrays([timestamp_array(chunk) for chunk in chunks])
    return Columns(
        pa.concat_arrays([chunk.values for chunk in chunks]),
        stamps,
        *(
            _concat_optional([(chunk[which], chunk.count) for chunk in chunks], kind)
            for which, kind in ((2, _BINARY), (3, _STRING), (4, _STRING), (5, HEADER_TYPE))
        ),
    )


def _concat_optional(pieces: list[tuple[Any, int]], kind: Any) -> Any:
    if all(array is None for array, _ in pieces):
        return None
    return pa.concat_arrays([_empty(count, kind) if array is None else array
                             for array, count in pieces])  # fmt: skip


def _empty(count: int, kind: Any) -> Any:
    if kind == HEADER_TYPE:
        inner = pa.array([], HEADER_TYPE.value_type)
        return pa.Array.from_buffers(
            HEADER_TYPE, count, [None, pa.py_buffer(bytes((count + 1) * 4))], 0, 0, [inner]
        )
    return pa.nulls(count, kind)


def timestamp_array(columns: Columns) -> Any:
    """The timestamps as an int64 array, also when they are all the same."""
    if isinstance(columns.timestamps, int):
        count = columns.count
        data = struct.pack("<q", columns.timestamps) * count
        return pa.Array.from_buffers(_INT64, count, [None, pa.py_buffer(data)], 0)
    return columns.timestamps
