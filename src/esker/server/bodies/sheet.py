"""Records as CSV, for spreadsheets: a page that is read, and the file that an export is.

A line for each record. Times are as a calendar has them; what is no text is in base64, in a column
of its own, as in JSON; headers are an object of JSON. A gap is a line, too: where it begins, and in
the last column what it says.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from esker.engine.batch import Batch
from esker.records import Gap
from esker.server.bodies import codec

_TEXTS: Final = ("key", "key_base64", "tag", "node", "headers", "value", "base64", "gap")
COLUMNS: Final = pa.schema(
    [
        pa.field("shard", pa.int32()), pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        *(pa.field(name, pa.string()) for name in _TEXTS),
    ]
)  # fmt: skip
_YEARS: Final = (-62_167_219_200_000_000, 253_402_300_800_000_000)  # 0 to 9999


def sheet(items: Iterable[Batch | Gap], *, headers: bool = True) -> bytes:
    """All of it, with its head."""
    return head() + b"".join(lines(item, headers=headers) for item in items)


def head() -> bytes:
    """The names of the columns."""
    return _written(COLUMNS.empty_table(), head=True)


def lines(item: Batch | Gap, *, headers: bool = True) -> bytes:
    """The lines of a batch, or that of a gap."""
    if isinstance(item, Gap):
        row = {"shard": item.shard, "offset": item.first, "gap": str(item)}
        return _written(pa.Table.from_pylist([row], COLUMNS))
    return _written(_table(item, headers)) if len(item) else b""


def _table(batch: Batch, headers: bool) -> Any:
    columns, rows = batch.columns, len(batch)
    texts: dict[str, Any] = {"tag": columns.tags, "node": columns.nodes}
    texts["value"], texts["base64"] = codec.texts_of(columns.values)
    if columns.keys is not None:
        texts["key"], texts["key_base64"] = codec.texts_of(columns.keys)
    if headers and columns.headers is not None:
        cells = map(codec.headers_out, columns.headers.to_pylist())
        texts["headers"] = [cell and msgspec.json.encode(cell).decode() for cell in cells]
    made = [
        pa.nulls(rows, pa.string())
        if (found := texts.get(name)) is None or not hasattr(found, "__len__")
        else pa.array(found, pa.string())
        for name in _TEXTS
    ]
    shards = pc.cast(batch.arrow.column("shard"), pa.int32())
    stamps = _times(batch.arrow.column("timestamp"))
    return pa.Table.from_arrays([shards, batch.offsets, stamps, *made], names=COLUMNS.names)


def _times(stamps: Any) -> Any:
    """Times as a calendar has them; what no calendar has stays the number that it is."""
    numbers = stamps.cast(pa.int64())
    strange = pc.or_(pc.less(numbers, _YEARS[0]), pc.greater_equal(numbers, _YEARS[1]))
    times = stamps.cast(COLUMNS.field("timestamp").type)
    if not pc.any(strange).as_py():
        return times
    return pc.if_else(strange, numbers.cast(pa.string()), times.cast(pa.string()))


def _written(table: Any, *, head: bool = False) -> bytes:
    sink = io.BytesIO()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=head))
    return sink.getvalue()
