"""A topic as a file: NDJSON, CSV or an Arrow stream, from one position to another.

What two positions mean is settled when the export begins, so it has an end, however fast others
append. Shards follow each other. It is made piece by piece as the client takes it, a batch at a
time, so its size is nobody's worry; and it is a stream to the table, so a browser can download it
with a ticket, without a key in a URL.

What is missing in between is told where it is missing: in NDJSON as a line `{"gap": ...}`, in CSV
in a column `gap`, in Arrow as an empty batch whose metadata `esker.gap` says it. What cannot be
read at all, and a key that ends, cut the transfer off before its end, which a client of HTTP/1.1
notices. When the client goes away, nothing more is read for it.
"""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from esker import positions
from esker.engine.batch import SCHEMA, Batch
from esker.engine.store import Store
from esker.errors import EskerError
from esker.records import Gap
from esker.server import codec
from esker.server import wire_looks as wire
from esker.server.call import Call, Reply
from esker.server.codec import ARROW, NDJSON
from esker.server.records import _shard, known
from esker.server.sifting import Wanted, matching, wanted_of

LOG: Final = logging.getLogger("esker.server")
CSV: Final = "text/csv"
MEDIA: Final = {"ndjson": NDJSON, "csv": CSV, "arrow": ARROW}
STEP_BYTES: Final = 1 << 20
STEP_RECORDS: Final = 10_000
_TEXTS: Final = ("key", "key_base64", "tag", "node", "headers", "value", "base64", "gap")
COLUMNS: Final = pa.schema(
    [
        pa.field("shard", pa.int32()), pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        *(pa.field(name, pa.string()) for name in _TEXTS),
    ]
)  # fmt: skip


async def export(call: Call) -> Reply:
    """The records between two positions, as a file."""
    query: wire.ExportQuery = call.query
    name = call.params["topic"]
    wanted = wanted_of(query.tag, query.tag_prefix, query.where)
    steps = await call.app.run(lambda store: _steps(store, name, query))
    pieces = _FORMATS[query.format](steps, wanted)
    first = await call.app.run(lambda _: next(pieces, None))  # what is wrong is told in a status
    suffix = "" if query.shard is None else f"-{query.shard}"
    file = f"{name.replace(':', '_')}{suffix}.{query.format}"
    headers = (("content-disposition", f'attachment; filename="{file}"'),)
    media = MEDIA[query.format]
    return Reply(media=media, headers=headers, stream=_told(call, first, pieces))


async def _told(call: Call, first: bytes | None, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    piece = first
    try:
        while piece is not None:
            if piece:
                yield piece
            piece = await call.app.run(lambda _: next(pieces, None))
    except EskerError as problem:
        LOG.warning("request %s: an export ends early: %s", call.request, problem)
        raise


def _steps(store: Store, name: str, query: wire.ExportQuery) -> Iterator[Batch | Gap]:
    topic = known(store, name)
    shard = None if query.shard is None else _shard(topic, query.shard)
    now = store._context.clock.now_us()
    begin = positions.parse(query.start, now)
    finish = None if query.stop is None else positions.parse(query.stop, now)
    ranges = topic._ranges(begin, finish, shard)
    return topic._batches(ranges, STEP_BYTES, STEP_RECORDS, "yield")


# ---- formats ---------------------------------------------------------------------------------


def _lines(steps: Iterator[Batch | Gap], wanted: Wanted | None) -> Iterator[bytes]:
    for item in steps:
        if isinstance(item, Gap):
            yield msgspec.json.encode({"gap": codec.gap_out(item)}) + b"\n"
        else:
            yield codec.lines_out(codec.records_out(matching(item, wanted)))


def _rows(steps: Iterator[Batch | Gap], wanted: Wanted | None) -> Iterator[bytes]:
    yield _csv(COLUMNS.empty_table(), header=True)
    for item in steps:
        if isinstance(item, Gap):
            row = {"shard": item.shard, "offset": item.first, "gap": str(item)}
            yield _csv(pa.Table.from_pylist([row], COLUMNS))
        elif len(seen := matching(item, wanted)):
            yield _csv(_table(seen))


def _table(batch: Batch) -> Any:
    """A batch as text. What is no text is in base64, in a column of its own, as in JSON."""
    columns, rows = batch.columns, len(batch)
    texts: dict[str, Any] = {"tag": columns.tags, "node": columns.nodes}
    texts["value"], texts["base64"] = codec._texts(columns.values)
    if columns.keys is not None:
        texts["key"], texts["key_base64"] = codec._texts(columns.keys)
    if columns.headers is not None:
        cells = map(codec._headers_out, columns.headers.to_pylist())
        texts["headers"] = [cell and msgspec.json.encode(cell).decode() for cell in cells]
    made = [
        pa.nulls(rows, pa.string())
        if (found := texts.get(name)) is None or not hasattr(found, "__len__")
        else pa.array(found, pa.string())
        for name in _TEXTS
    ]
    stamps = batch.arrow.column("timestamp").cast(COLUMNS.field("timestamp").type)
    shards = pc.cast(batch.arrow.column("shard"), pa.int32())
    return pa.Table.from_arrays([shards, batch.offsets, stamps, *made], schema=COLUMNS)


def _csv(table: Any, *, header: bool = False) -> bytes:
    sink = io.BytesIO()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=header))
    return sink.getvalue()


def _arrow(steps: Iterator[Batch | Gap], wanted: Wanted | None) -> Iterator[bytes]:
    sink = io.BytesIO()

    def taken() -> bytes:
        piece = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return piece

    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for item in steps:
            if isinstance(item, Gap):
                told = {"esker.gap": msgspec.json.encode(codec.gap_out(item))}
                empty = pa.RecordBatch.from_pylist([], SCHEMA)
                writer.write_batch(empty, custom_metadata=told)
            else:
                writer.write_batch(matching(item, wanted).arrow)
            yield taken()
    yield taken()


_FORMATS: Final = {"ndjson": _lines, "csv": _rows, "arrow": _arrow}
