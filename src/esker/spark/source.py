"""`spark.read.format("esker")`: the classes that Spark calls.

    EskerSource     what a format is to Spark: its name, its rows, who reads and who writes
    EskerReader     a batch query: spans at planning, tasks, rows in the workers

Options are in wanted.py, offsets in plan.py, tasks in tasks.py, rows in rows.py, streams in
stream.py, writing in sink.py. Spark makes a source in a
Python process of its own beside the driver, asks it for its rows and for a reader, and sends the
reader to the workers; so readers hold plain values, and each process opens the store for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from esker.clock import SYSTEM_CLOCK
from esker.errors import InvalidOption, nearest
from esker.spark import history, kin, plan, worker
from esker.spark.origin import Seen
from esker.spark.remote import is_server
from esker.spark.sink import EskerStreamWriter, EskerWriter, Target
from esker.spark.stream import EskerStreamReader
from esker.spark.tasks import Part, parts
from esker.spark.wanted import COLUMNS, Wanted, place_of, schema_of, wanted, with_gap
from esker.storage.cold import cold_place
from esker.storage.files import absolute
from esker.storage.objects import is_url, without_secrets

# Where the session hands filters down, Spark asks for a reader in a worker of this name; a reader
# that takes filters where it does not is an error. There is no other way to know.
PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class EskerSource(DataSource):
    """Topics of a store as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "esker"

    def _asked(self, *, streaming: bool | None) -> Wanted:
        worker.settle()
        asked = wanted(self.options, now_us=SYSTEM_CLOCK.now_us(), streaming=streaming)
        cold = cold_place(asked.cold) if asked.cold else ""
        path = asked.path if is_url(asked.path) else local_path(asked.path)
        archived = not is_server(path) and not kin.is_kin(path) and history.is_archive(path)
        if archived and streaming:
            raise InvalidOption("an archive is read by batch queries: use spark.read")
        if streaming and kin.is_kin(path):
            kin.refuse_stream(path, group=asked.group)
        return asked._replace(path=path, cold=cold, archived=archived)

    def schema(self) -> str:
        return schema_of(self._asked(streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = narrowed(self._asked(streaming=False), schema)
        push = asked.push_filters
        if push is None:
            push = PUSHING in sys.modules
        return (PushingReader if push else EskerReader)(asked, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EskerStreamReader(narrowed(self._asked(streaming=True), schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> EskerWriter:
        return EskerWriter(self._target(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> EskerStreamWriter:
        return EskerStreamWriter(self._target(schema, overwrite))

    def _target(self, schema: StructType, overwrite: bool) -> Target:
        worker.settle()
        if overwrite:
            raise InvalidOption(
                "a log is appended to and never written over: use mode('append'), or outputMode "
                "'append' or 'update'; store.delete(topic) deletes what was there"
            )
        target = Target(target_path(self.options), self.options, schema)
        target.prepare()
        return target


def target_path(options: Mapping[str, str]) -> str:
    """Where rows are written to: a directory, or a server."""
    path = place_of(options)
    if kin.is_kin(path):
        raise InvalidOption(f"{path} is only read; esker export writes files of another log")
    return path if is_server(path) else local_path(path)


def local_path(path: str) -> str:
    """A store's directory as an absolute path, so that it means the same to every process."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    if "://" in path:
        raise InvalidOption(
            f"{without_secrets(path)!r}: jobs, tables and archives of jobs take a store's "
            'directory; spark.read.format("esker") and df.write.format("esker") take URLs as well'
        )
    return absolute(path)


def narrowed(asked: Wanted, schema: StructType) -> Wanted:
    """A schema that the user gave picks columns; they keep their types."""
    names = tuple(schema.fieldNames())
    for name in names:
        if name not in COLUMNS:
            raise InvalidOption(f"schema: there is no column {name!r}; {nearest(name, COLUMNS)}")
    return asked._replace(columns=with_gap("schema", names, asked.on_loss))


class EskerReader(DataSourceReader):
    """A batch query."""

    def __init__(self, asked: Wanted, schema: StructType) -> None:
        self.asked = asked
        self.schema = schema
        self.filters: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        found, tags = trimmed(plan.spans(self.asked), self.filters)
        return parts(self.asked, found, tags)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Part):
            return iter(())  # Spark asks for one task even where there is none
        return partition.task.rows(to_arrow_schema(self.schema, timezone="UTC"))


class PushingReader(EskerReader):
    """A batch query in a session that hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Use what narrows the read; Spark looks at every row once more: whole frames are cut."""
        self.filters = list(filters)
        return iter(filters)


# ---- filters ---------------------------------------------------------------------------------


def trimmed(
    found: Sequence[tuple[plan.Span, Seen]], filters: Sequence[Filter]
) -> tuple[list[tuple[plan.Span, Seen]], tuple[str, ...] | None]:
    """What is left to read under some filters; and the tags, of which a record must have one."""
    tags: set[str] | None = None
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        if column == "tag" and (wanted_tags := _values(each)) is not None:
            tags = wanted_tags if tags is None else tags & wanted_tags
        elif column in ("topic", "partition") and (values := _values(each)) is not None:
            found = [pair for pair in found if _of(pair[0], column) in values]
        elif column in ("offset", "timestamp"):
            found = [(_narrow(span, view, column, each), view) for span, view in found]
    left = [(span, view) for span, view in found if span.first < span.end]
    return left, None if tags is None else tuple(sorted(tags))


def _values(each: Filter) -> set[Any] | None:
    if isinstance(each, (EqualTo, EqualNullSafe)):
        return None if each.value is None else {each.value}
    if isinstance(each, In):
        return {value for value in each.value if value is not None}
    return None


def _of(span: plan.Span, column: str) -> Any:
    return span.topic if column == "topic" else span.shard


def _narrow(span: plan.Span, seen: Seen, column: str, each: Filter) -> plan.Span:
    low, high = _bounds(each, column)
    if column == "timestamp":
        if low is not None:
            low = seen.since(low)
        if high is not None:
            high = seen.last_before(high, span.end)
    first = span.first if low is None else max(span.first, low)
    end = span.end if high is None else min(span.end, high)
    return span._replace(first=first, end=max(first, end))


def _bounds(each: Filter, column: str) -> tuple[int | None, int | None]:
    """The least value that passes, and the least that is too large."""
    if isinstance(each, In):
        values = [_number(value) for value in each.value if value is not None]
        return (min(values), max(values) + 1) if values else (0, 0)
    number = _number(getattr(each, "value", None))
    if number is None:
        return None, None
    match each:
        case EqualTo() | EqualNullSafe():
            return number, number + 1
        case GreaterThanOrEqual():
            return number, None
        case GreaterThan():
            return number + 1, None
        case LessThanOrEqual():
            return None, number + 1
        case LessThan():
            return None, number
    return None, None


def _number(value: Any) -> Any:
    """An offset as it is, a time in microseconds."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.astimezone()
        delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return value if isinstance(value, int) else None
