"""A batch of records as a reader gets it: Arrow underneath, Python objects when asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from esker.format.columns import HEADER_TYPE, Columns
from esker.records import Record

TIMESTAMP: Final = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("tag", pa.string()),
        pa.field("node", pa.string()),
        pa.field("headers", HEADER_TYPE),
        pa.field("shard", pa.int32(), nullable=False),
    ]
)


class Batch:
    """The records of one shard from `begin` up to `next_offset`, without those left out.

    Standing on the mapped file where that is sealed. Unless something is left out (see sieve.py)
    the offsets follow each other, and are numbers only when they are asked for.
    """

    __slots__ = ("_arrow", "_offsets", "begin", "columns", "next_offset", "shard")

    def __init__(
        self, shard: int, begin: int, columns: Columns, offsets: Any = None, end: int = 0
    ) -> None:
        self.shard = shard
        self.begin = begin
        self.columns = columns
        self.next_offset = begin + len(columns[0]) if offsets is None else end
        self._offsets = offsets
        self._arrow: Any = None

    def __len__(self) -> int:
        return self.columns.count

    def __repr__(self) -> str:
        return f"Batch(shard={self.shard}, offsets={self.first}..{self.last})"

    def _repr_html_(self) -> str:
        from esker.engine.notebook import batch_html  # for who looks at it in a notebook

        return batch_html(self)

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.begin if not self._offsets else self._offsets[0].as_py()

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.next_offset - 1 if not self._offsets else self._offsets[-1].as_py()

    @property
    def offsets(self) -> Any:
        """The offsets of the records, as an Arrow array."""
        return pa.arange(self.begin, self.next_offset) if self._offsets is None else self._offsets

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.columns.nbytes

    @property
    def values(self) -> list[bytes]:
        """The values as Python bytes."""
        return self.columns.values.to_pylist()  # type: ignore[no-any-return]

    @property
    def arrow(self) -> Any:
        """The batch as a pyarrow.RecordBatch with the columns of `esker.SCHEMA`."""
        if self._arrow is None:
            values, stamps, keys, tags, nodes, headers = self.columns
            no_keys, no_tags, no_nodes, no_headers, shards = _lent(self.shard, len(values))
            self._arrow = pa.RecordBatch.from_arrays(
                [
                    self.offsets,
                    _timestamps(stamps, len(values)),
                    no_keys if keys is None else keys,
                    values,
                    no_tags if tags is None else tags,
                    no_nodes if nodes is None else nodes,
                    no_headers if headers is None else headers,
                    shards,
                ],
                schema=SCHEMA,
            )
        return self._arrow

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.arrow.__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(SCHEMA, [self.arrow])
        return reader.__arrow_c_stream__(requested_schema)

    def records(self) -> list[Record]:
        """The batch as Record objects, made in one go."""
        columns = self.columns
        nothing: Any = repeat(None)
        stamps: Any = columns.timestamps
        headers: Any = nothing
        if columns.headers is not None:
            headers = [
                {pair["key"]: pair["value"] for pair in cell} if cell else None
                for cell in columns.headers.to_pylist()
            ]
        return list(
            map(
                Record,
                columns.values.to_pylist(),
                columns.keys.to_pylist() if columns.keys is not None else nothing,
                columns.tags.to_pylist() if columns.tags is not None else nothing,
                columns.nodes.to_pylist() if columns.nodes is not None else nothing,
                headers,
                repeat(stamps) if isinstance(stamps, int) else stamps.to_pylist(),
                range(self.begin, self.next_offset)
                if self._offsets is None
                else self._offsets.to_pylist(),
                repeat(self.shard),
            )
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())


def record_at(columns: Columns, row: int, offset: int, shard: int) -> Record:
    """One row as a Record."""
    values, stamps, keys, tags, nodes, headers = columns
    cell = headers[row].as_py() if headers is not None else None
    return Record(
        values[row].as_py(),
        keys[row].as_py() if keys is not None else None,
        tags[row].as_py() if tags is not None else None,
        nodes[row].as_py() if nodes is not None else None,
        {pair["key"]: pair["value"] for pair in cell} if cell else None,
        stamps if isinstance(stamps, int) else stamps[row].as_py(),
        offset,
        shard,
    )


def _timestamps(stamps: Any, count: int) -> Any:
    if isinstance(stamps, int):
        data = pa.py_buffer(_STAMP.pack(stamps) * count)
        return pa.Array.from_buffers(TIMESTAMP, count, [None, data], 0)
    return stamps.view(TIMESTAMP)


_STAMP: Final = struct.Struct("<q")
_KINDS: Final = (pa.binary(), pa.string(), pa.string(), HEADER_TYPE)
_nulls: list[Any] = [pa.nulls(0, kind) for kind in _KINDS]
_shards: dict[int, Any] = {}
_last_lent: tuple[int, int, tuple[Any, ...]] = (-1, -1, ())


def _lent(shard: int, count: int) -> tuple[Any, ...]:
    """Columns of nulls for key, tag, node and headers, and the shard's number over and over.

    A long one of each is made once and lent out in slices. Batches are often of one length, so
    the last slices are kept, too.
    """
    global _last_lent
    known_shard, known_count, lent = _last_lent
    if known_shard != shard or known_count != count:
        lent = (*(_nothing(kind, count) for kind in range(4)), _same(shard, count))
        _last_lent = (shard, count, lent)
    return lent


def _nothing(kind: int, count: int) -> Any:
    known = _nulls[kind]
    if len(known) < count:
        known = _nulls[kind] = _made(_KINDS[kind], max(count, 8192))
    return known.slice(0, count)


def _made(kind: Any, count: int) -> Any:
    """Nulls of a kind. Those that pyarrow makes of a list have 64 KiB below them, in any slice."""
    if kind != HEADER_TYPE:
        return pa.nulls(count, kind)
    parts = [pa.py_buffer(bytes((count + 7) // 8)), pa.py_buffer(bytes(4 * (count + 1)))]
    below = pa.array([], kind.value_type)
    return pa.Array.from_buffers(kind, count, parts, count, children=[below])


def _same(number: int, count: int) -> Any:
    known = _shards.get(number)
    if known is None or len(known) < count:
        size = max(count, 8192)
        data = pa.py_buffer(number.to_bytes(4, "little") * size)
        known = _shards[number] = pa.Array.from_buffers(pa.int32(), size, [None, data], 0)
    return known.slice(0, count)
