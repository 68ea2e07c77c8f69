"""Records as rows of a query. Runs in Spark's Python workers.

A batch of Esker's is Arrow already, and stands on the mapped file where its segment is sealed. What
is asked for is put together from it without touching a record: constants (topic, shard) are made
once and lent out in slices, small batches are joined before they travel.

A task reads all of its spans or says what it lacks. An origin (origin.py) knows which offset must
come next; what is missing is a loss with exact bounds, whatever the reason: a gap, records that
were deleted since the query was planned, a topic that is another one by now. What is skipped on
request is logged, where the task runs: Spark has no place for the numbers of a Python source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.engine.batch import TIMESTAMP, Batch
from esker.engine.context import LOG
from esker.errors import DataLoss
from esker.format.columns import timestamp_array
from esker.records import Gap
from esker.spark import origins, worker
from esker.spark.local import BATCH_BYTES
from esker.spark.origin import NOBODY, Access, Span
from esker.spark.values import Objects, texts

ROWS_MIN: Final = 4_096  # fewer rows cost more to hand over than they are worth
NARROW_BYTES: Final = 512 << 10  # rows of a few bytes travel by the
NARROW_ROWS: Final = 65_536  # tens of thousands
TOGETHER_BYTES: Final = 4 << 20  # of JSON that becomes columns in one go
AT: Final = " offset"  # a column beside those that are asked for, to name a bad value by


class Task:
    """What one task reads, and how its rows look. Travels from the driver to a worker."""

    def __init__(
        self, path: str, spans: list[Span], *, columns: tuple[str, ...], on_loss: str,
        value_format: str, bad_value: str, tags: tuple[str, ...] | None, cold: str = "",
        archived: bool = False, access: Access = NOBODY,
    ) -> None:  # fmt: skip
        self.path = path
        self.cold = cold
        self.archived = archived
        self.access = access
        self.spans = spans
        self.columns = columns
        self.on_loss = on_loss
        self.value_format = value_format
        self.bad_value = bad_value
        self.tags = tags  # of which one must match; None: all records
        self.gaps: tuple[Gap, ...] = ()  # known when it was planned, and to be told here

    def rows(self, schema: Any) -> Iterator[Any]:
        """The rows as record batches of an Arrow schema."""
        worker.settle()
        for gap in self.gaps:
            yield from self._lost(gap, schema)
        at = schema.get_field_index("value") if self.value_format == "json" else -1
        for span in self.spans:
            if at < 0:
                yield from joined(self._batches(span, schema), schema)
            else:
                yield from self._parsed(span, schema, at)

    def _parsed(self, span: Span, schema: Any, at: int) -> Iterator[Any]:
        """Rows with JSON: frames are joined as they are, and then their values become columns."""
        raw = schema.set(at, pa.field("value", pa.binary())).append(pa.field(AT, pa.int64()))
        objects = Objects(schema.field(at).type, self.bad_value)
        for batch in joined(self._batches(span, raw), raw, TOGETHER_BYTES):
            *columns, offsets = batch.columns
            columns[at] = objects.of(columns[at], offsets, span.shard)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _batches(self, span: Span, schema: Any) -> Iterator[Any]:
        for item in self._items(span):
            if isinstance(item, Gap):
                yield from self._lost(item, schema)
            elif self.tags is None:
                yield self._table(span, item, schema)
            else:
                yield from self._tagged(span, item, schema)

    def _items(self, span: Span) -> Iterator[Batch | Gap]:
        columns = self.columns if self.tags is None else (*self.columns, "tag")
        return origins.at(self).read(span, columns, lenient=self.on_loss == "skip")

    def _lost(self, gap: Gap, schema: Any) -> Iterator[Any]:
        if self.on_loss == "fail":
            raise lost(origins.at(self).shown, gap)
        if self.on_loss == "gapRow":
            yield _gap_row(gap, schema)
        else:
            LOG.warning("onDataLoss=skip, %s", gap)

    def _tagged(self, span: Span, batch: Batch, schema: Any) -> Iterator[Any]:
        tags = batch.columns.tags
        if tags is None:
            return
        keep = pc.is_in(tags, value_set=pa.array(self.tags, pa.string()))
        if pc.any(keep).as_py():
            yield self._table(span, batch, schema).filter(keep)

    def _table(self, span: Span, batch: Batch, schema: Any) -> Any:
        arrays = [self._column(field.name, span, batch, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, name: str, span: Span, batch: Batch, kind: Any) -> Any:
        columns, count = batch.columns, batch.columns.count
        match name:
            case "value":
                if self.value_format == "string":
                    return texts(batch, self.bad_value)
                return columns.values  # JSON is made of it later: _parsed
            case "offset" | " offset":
                return batch.offsets
            case "timestamp":
                return timestamp_array(columns).view(TIMESTAMP)
            case "topic":
                return constant(span.topic, pa.string(), count)
            case "partition":
                return constant(span.shard, pa.int32(), count)
            case "timestampType":
                return constant(0, pa.int32(), count)
            case "gap":
                return constant(None, kind, count)
            case "key":
                found = columns.keys
            case "tag":
                found = columns.tags
            case "node":
                found = columns.nodes
            case _:
                found = columns.headers
        if found is None:
            return constant(None, kind, count)
        return found if found.type == kind else found.cast(kind)


# ---- nothing is missing ----------------------------------------------------------------------


def lost(path: str, gap: Gap) -> DataLoss:
    """What a user is told whose query cannot read all that it should."""
    what = f"offsets {gap.first} to {gap.last} cannot be read: {gap.reason}"
    if not gap.missed:  # the topic is another one, and all of the old one had been read
        what = f"{gap.reason} when the query was at offset {gap.first}, which was its end"
    return DataLoss(
        f"topic {gap.topic!r} partition {gap.shard} of {path}: {what}. "
        "To go on without them set onDataLoss=skip (failOnDataLoss=false); "
        "to get a row that names them set onDataLoss=gapRow."
    )


def _gap_row(gap: Gap, schema: Any) -> Any:
    """One row for a gap: where it begins, how far it goes, and why."""
    told = {
        "topic": gap.topic, "partition": gap.shard, "offset": gap.first, "timestampType": 0,
        "gap": {"first": gap.first, "last": gap.last, "reason": gap.reason},
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [pa.array([told.get(field.name)], field.type) for field in schema], schema=schema
    )


# ---- putting together ------------------------------------------------------------------------

_constants: dict[tuple[Any, Any], Any] = {}


def constant(value: Any, kind: Any, count: int) -> Any:
    """The same value over and over: made once, lent out in slices."""
    known = _constants.get((value, kind))
    if known is None or len(known) < count:
        if len(_constants) > 256:
            _constants.clear()
        size = max(count, 8_192)
        known = pa.nulls(size, kind) if value is None else pa.repeat(pa.scalar(value, kind), size)
        _constants[value, kind] = known
    return known.slice(0, count)


def joined(batches: Iterator[Any], schema: Any, enough: int = NARROW_BYTES) -> Iterator[Any]:
    """Small batches put together, large ones as they are."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if size >= (enough if rows >= ROWS_MIN else BATCH_BYTES) or rows >= NARROW_ROWS:
            yield _together(waiting, schema)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _together(waiting, schema)


def _together(batches: list[Any], schema: Any) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else schema.empty_table()
