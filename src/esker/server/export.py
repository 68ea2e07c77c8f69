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
from typing import Final

import msgspec
import pyarrow as pa

from esker import positions
from esker.engine.batch import SCHEMA, Batch
from esker.engine.store import Store
from esker.errors import EskerError
from esker.records import Gap
from esker.server.bodies import codec, sheet
from esker.server.bodies import wire_overview as wire
from esker.server.bodies.codec import ARROW, CSV, NDJSON
from esker.server.bodies.filtering import Wanted, matching, wanted_of
from esker.server.http.call import Call, Reply
from esker.server.records import chosen_shard, known

LOG: Final = logging.getLogger("esker.server")
MEDIA: Final = {"ndjson": NDJSON, "csv": CSV, "arrow": ARROW}
STEP_BYTES: Final = 1 << 20
STEP_RECORDS: Final = 10_000


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
    shard = None if query.shard is None else chosen_shard(topic, query.shard)
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
    yield sheet.head()
    for item in steps:
        yield sheet.lines(item if isinstance(item, Gap) else matching(item, wanted))


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
