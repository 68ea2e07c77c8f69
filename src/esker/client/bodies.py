"""Records as the bodies of calls, and bodies as batches.

A batch travels as an Arrow stream, and stands on the bytes that came in: nothing is copied, and
nothing is done record by record. A lone record is the body itself, or JSON if it has more than a
value: for one record Arrow's own bookkeeping would be most of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from esker.client.pool import ARROW, BYTES, JSON, Answer
from esker.client.texts import record_in
from esker.engine import intake
from esker.engine.batch import Batch
from esker.errors import ServerFault
from esker.format.columns import FEW, HEADER_TYPE, Columns, Extra, timestamp_array
from esker.options import SEGMENT_BYTES_MAX
from esker.records import Gap, Span, Spans

PART_BYTES: Final = 4 << 20  # of a large table in one call; a server takes 8 MiB unless it is told
NO_LIMIT: Final = SEGMENT_BYTES_MAX  # the server knows the topic's

_SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("tag", pa.string()),
        pa.field("node", pa.string()),
        pa.field("headers", HEADER_TYPE),
        pa.field("timestamp", pa.int64()),
    ]
)
VALUES: Final = pa.schema([pa.field("value", pa.binary())])


# ---- appending -------------------------------------------------------------------------------


def lone(value: bytes, extra: Extra | None) -> tuple[str, Any]:
    """One record, as media type and body."""
    if extra is None:
        return BYTES, value
    return JSON, {"records": [record_in(value, extra)]}


def batch(records: list[Any]) -> tuple[str, Any]:
    """What `append_many` takes, checked, as media type and body."""
    made = rows(records)
    return ARROW, stream(made.schema, [made])


def rows(records: list[Any]) -> Any:
    """What `append_many` takes, checked, as a record batch."""
    if len(records) > FEW:
        array = intake.plain_column(records, NO_LIMIT)
        if array is not None:
            return pa.RecordBatch.from_arrays([array], schema=VALUES)
    values, extras = intake.many(records, NO_LIMIT)
    if not extras:
        return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=VALUES)
    nothing: Extra = (None, None, None, None, None)
    each = [extras.get(row, nothing) for row in range(len(values))]
    keys, tags, nodes, headers, stamps = zip(*each, strict=True)
    cells = [
        None if cell is None else [{"key": name, "value": data} for name, data in cell.items()]
        for cell in headers
    ]
    arrays = [
        pa.array(column, field.type)
        for column, field in zip((values, keys, tags, nodes, cells, stamps), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def of_columns(columns: Columns) -> Any:
    """Records that were checked before, as a record batch."""
    cells = (
        columns.values, columns.keys, columns.tags, columns.nodes, columns.headers,
        timestamp_array(columns),
    )  # fmt: skip
    there = [(cell, field) for cell, field in zip(cells, _SCHEMA, strict=True) if cell is not None]
    return pa.RecordBatch.from_arrays(
        [cell for cell, _ in there], schema=pa.schema([field for _, field in there])
    )


def cut(given: Any, size: int) -> Iterator[Any]:
    """A record batch in pieces of about so many bytes; at least one row each."""
    step = max(1, given.num_rows * size // max(given.nbytes, 1))
    for row in range(0, given.num_rows, step):
        yield given.slice(row, step)


def tables(batches: Sequence[Any]) -> Iterator[Any]:
    """Record batches as bodies of Arrow, each not much larger than a part."""
    for each in batches:
        for piece in cut(each, PART_BYTES):
            yield stream(piece.schema, [piece])


def stream(schema: Any, batches: Sequence[Any]) -> Any:
    """Record batches of one schema as a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return memoryview(sink.getvalue())


def spans(answers: Sequence[Answer]) -> list[Span]:
    """What a batch got: a span a shard, unless others came between."""
    found: dict[int, list[Span]] = {}
    for answer in answers:
        for told in answer.json()["spans"]:
            span = Span(told["shard"], told["first"], told["count"])
            known = found.setdefault(span.shard, [])
            if known and known[-1].next == span.first:
                span = Span(span.shard, known[-1].first, known.pop().count + span.count)
            known.append(span)
    return [span for _, known in sorted(found.items()) for span in known]


def told(found: list[Span]) -> Span | Spans:
    return found[0] if len(found) == 1 else Spans(found)


# ---- reading ---------------------------------------------------------------------------------


class Page:
    """Records of one shard, as a server gave them: batches, and gaps where they belong."""

    __slots__ = ("earliest", "end", "epoch", "items", "next")

    def __init__(self, answer: Answer, shard: int) -> None:
        headers = answer.headers
        try:
            self.next = int(headers["esker-next"])
            self.end = int(headers["esker-end"])
            self.earliest = int(headers["esker-earliest"])
            self.epoch = int(headers["esker-epoch"])
            gaps = [gap_of(each) for each in msgspec.json.decode(headers.get("esker-gaps", "[]"))]
            with pa.ipc.open_stream(pa.py_buffer(answer.body)) as reader:
                batches = [batch_of(each, shard) for each in reader if each.num_rows]
        except (KeyError, ValueError, msgspec.MsgspecError, pa.ArrowException, OSError) as problem:
            raise ServerFault(
                f"an answer that is no page of records: {problem}", status=answer.status
            ) from problem
        self.items: list[Batch | Gap] = sorted([*batches, *gaps], key=_place)


def _place(item: Batch | Gap) -> int:
    return item.first


def gap_of(given: dict[str, Any]) -> Gap:
    """A gap, from what a server says of it."""
    return msgspec.convert({name: given[name] for name in Gap.__struct_fields__}, Gap)


def batch_of(given: Any, shard: int) -> Batch:
    """A batch, standing on the record batch of an answer; what was not asked for is not there."""
    there = given.schema.names
    columns = Columns(
        given.column("value") if "value" in there else pa.nulls(given.num_rows, pa.binary()),
        given.column("timestamp").view(pa.int64()) if "timestamp" in there else 0,
        *(
            _some(given.column(name)) if name in there else None
            for name in ("key", "tag", "node", "headers")
        ),
    )
    offsets = given.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    follow = last - first + 1 == len(offsets)
    return Batch(shard, first, columns, None if follow else offsets, last + 1)


def _some(column: Any) -> Any:
    return None if column.null_count == len(column) else column
