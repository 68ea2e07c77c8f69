"""`df.write.format("esker")` and `df.writeStream`: rows become records, each batch exactly once.

    a task      writes its rows as staged segments, syncs them, hands their tickets to the driver
    the driver  commits all tickets of a batch at once, under the query's id and the batch's number

What a task stages nobody sees. So tasks may die, be tried again or run twice: only the tickets of
those that Spark counts as done are committed. A batch that is done again after the driver died has
its number; if it was committed before, it is dropped. See engine/attach.py, which does the work.
A batch write has no number of its own. Given one (txnAppId, txnVersion, as Delta Lake calls them)
it is dropped likewise when it comes again.

A DataFrame needs a column `value` (text or bytes). It may have key, topic, partition, timestamp,
headers, tag and node. Without a partition a key chooses the shard, as everywhere in Esker; rows
without either go to one shard for each task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from esker.clock import SYSTEM_CLOCK
from esker.engine import intake
from esker.errors import EskerError, InvalidOption, InvalidRecord, nearest
from esker.options import topic_name, topic_options
from esker.spark import worker
from esker.spark.wanted import ACCESS, access_of, of_brokers
from esker.spark.yard import yard

_TEXT: Final = (StringType, BinaryType)
_COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": (_TEXT, "STRING or BINARY"),
    "key": (_TEXT, "STRING or BINARY"),
    "topic": ((StringType,), "STRING"),
    "partition": ((IntegerType,), "INT"),
    "timestamp": ((TimestampType,), "TIMESTAMP"),
    "headers": ((ArrayType,), "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    "tag": ((StringType,), "STRING"),
    "node": ((StringType,), "STRING"),
}
_MADE_WITH: Final = ("shards", "durability", "compression")  # of a topic that is not there yet
_TRANSACTION: Final = ("txnAppId", "txnVersion")
_KNOWN: Final = (
    "path", "url", *ACCESS, "topic", "attachTimeout", "checkpointLocation", "queryName",
    *_TRANSACTION, *_MADE_WITH,
)  # fmt: skip
_STORED: Final = ("value", "key", "timestamp", "headers", "tag", "node")
ATTACH_SECONDS: Final = 60.0


class Target:
    """Where rows go. Travels from the driver to the workers."""

    cold = ""
    archived = False

    def __init__(self, path: str, options: Mapping[str, str], schema: StructType) -> None:
        given = _by_name(options)
        self.path = path
        self.access = access_of(given, path)
        self.topic = given.get("topic", "")
        self.timeout = _seconds(given)
        self.transaction = _transaction(given)
        self.done = False  # this very batch was committed before
        self.made_with: dict[str, Any] = {name: given[name] for name in _MADE_WITH if name in given}
        if "shards" in self.made_with:
            self.made_with["shards"] = _whole("shards", self.made_with["shards"])
        topic_options(**self.made_with)
        check_schema(schema, self.topic)
        if self.topic:
            topic_name(self.topic)

    def prepare(self) -> None:
        """Make the topic, if it is known and not there: a wrong path is told before any task."""
        there = yard(self)
        there.prepare(self.topic, self.made_with)
        if self.transaction is not None:
            name, version = self.transaction
            last = there.attached(application(name))
            self.done = last is not None and last >= version


def application(name: str) -> str:
    """The writer whose batches are numbered by txnVersion."""
    return f"spark application {name}"


class Tickets(WriterCommitMessage):
    """What one task has staged."""

    def __init__(self, tickets: list[Any], query: str) -> None:
        self.tickets = tickets
        self.query = query


# ---- in the workers --------------------------------------------------------------------------


def stage(target: Target, batches: Iterator[Any]) -> Tickets:
    """Write the rows of one task beside the log."""
    worker.settle()
    context = TaskContext.get()
    turn = context.partitionId() if context is not None else 0
    query = (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""
    stages: dict[tuple[str, int], Any] = {}
    shapes: dict[str, tuple[int, int]] = {}
    try:
        for batch in batches:
            if target.done:
                continue
            for topic, rows in _by_topic(target, batch):
                _stage_rows(target, topic, rows, turn, stages, shapes)
        return Tickets([ticket for each in stages.values() for ticket in each.finish()], query)
    except BaseException:
        for each in stages.values():
            with suppress(EskerError):
                each.discard()
        raise


def _by_topic(target: Target, batch: Any) -> Iterator[tuple[str, Any]]:
    if "topic" not in batch.schema.names:
        yield target.topic, batch
        return
    names = batch.column("topic")
    if target.topic:
        names = pc.fill_null(names, target.topic)
    for name in pc.unique(names).to_pylist():
        if name is None:
            raise InvalidRecord(
                'a row has no topic: fill the column, or name one with option("topic", "orders")'
            )
        yield name, batch.filter(pc.equal(names, name))


def _stage_rows(
    target: Target, topic: str, rows: Any, turn: int, stages: dict[tuple[str, int], Any],
    shapes: dict[str, tuple[int, int]],
) -> None:  # fmt: skip
    there = yard(target)
    if topic not in shapes:
        shapes[topic] = there.shape(topic, target.made_with)
    shards, limit = shapes[topic]
    for shard, part in _by_partition(topic, rows, shards):
        columns = intake.arrow_columns(
            part.select([name for name in _STORED if name in part.schema.names]),
            limit,
            SYSTEM_CLOCK.now_us(),
        )
        homes = [(shard, columns)] if shard >= 0 else intake.by_shard(columns, shards, turn)
        for number, of_it in homes:
            at = stages.get((topic, number))
            if at is None:
                at = stages[topic, number] = there.stage(topic, number)
            at.append_columns(of_it)


def _by_partition(topic: str, rows: Any, shards: int) -> Iterator[tuple[int, Any]]:
    """Rows by the shard that they name; -1 for those that name none."""
    if "partition" not in rows.schema.names:
        yield -1, rows
        return
    numbers = pc.fill_null(rows.column("partition"), -1)
    for number in pc.unique(numbers).to_pylist():
        if not -1 <= number < shards:
            raise InvalidRecord(f"partition {number}: topic {topic!r} has 0..{shards - 1}")
        yield number, rows.filter(pc.equal(numbers, pa.scalar(number, pa.int32())))


# ---- on the driver ---------------------------------------------------------------------------


def _all(messages: list[Any]) -> list[Any]:
    return [ticket for each in messages if isinstance(each, Tickets) for ticket in each.tickets]


def commit(target: Target, writer: str, sequence: int, messages: list[Any], *, once: bool) -> None:
    """Make a batch a part of the log. `once`: this writer will not come again."""
    worker.settle()
    tickets = _all(messages)
    if not tickets:
        return
    yard(target).commit(writer, sequence, tickets, target.timeout, once=once)


def abort(target: Target, messages: list[Any]) -> None:
    """Throw away what was staged for a batch that failed; Spark also comes here if a commit did."""
    yard(target).abandon(_all(messages))


class EskerWriter(DataSourceArrowWriter):
    """A batch write: all of it, or nothing."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name = f"spark batch {uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.target.transaction is None:
            commit(self.target, self.name, 0, messages, once=True)
        else:
            name, version = self.target.transaction
            commit(self.target, application(name), version, messages, once=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self.target, messages)


class EskerStreamWriter(DataSourceStreamArrowWriter):
    """A stream: each of its batches exactly once."""

    def __init__(self, target: Target) -> None:
        if target.transaction is not None:
            raise InvalidOption("txnAppId is for batch writes: a stream's batches have numbers")
        self.target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {each.query for each in messages if isinstance(each, Tickets)}
        if len(queries) > 1 or "" in queries:
            # another query's batch of the same number would be taken for this one, and dropped
            raise InvalidOption("Spark did not say which query this batch belongs to: not written")
        if queries:
            commit(self.target, f"spark query {queries.pop()}", batchId, messages, once=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(self.target, messages)


# ---- what may be written ---------------------------------------------------------------------


def check_schema(schema: StructType, topic: str) -> None:
    """Refuse a DataFrame that cannot be written, before anything runs."""
    there = {field.name: field.dataType for field in schema.fields}
    if "value" not in there:
        raise InvalidOption(
            f"the DataFrame has no column 'value'; it has {', '.join(there) or 'none'}. "
            'As in df.selectExpr("to_json(struct(*)) AS value")'
        )
    if "topic" not in there and not topic:
        raise InvalidOption(
            'which topic? option("topic", "orders"), or a column topic with a name in each row'
        )
    for name, kind in there.items():
        if name not in _COLUMNS:
            raise InvalidOption(
                f"column {name!r} cannot be written; {nearest(name, _COLUMNS)}. "
                "Put it into the value, or drop it"
            )
        kinds, text = _COLUMNS[name]
        if not isinstance(kind, kinds):
            raise InvalidOption(f"column {name!r} is {kind.simpleString()}, not {text}: cast it")


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    proper = {name.lower(): name for name in _KNOWN}
    found = {}
    for name, value in options.items():
        known = proper.get(name.lower())
        if known is None and of_brokers(name):
            raise InvalidOption(f"{name}: there is no broker to set up; leave it out")
        if known is None:
            raise InvalidOption(f"unknown option {name!r} of format esker; {nearest(name, _KNOWN)}")
        found[known] = str(value)
    return found


def _seconds(given: dict[str, str]) -> float:
    text = given.get("attachTimeout", str(ATTACH_SECONDS)).removesuffix("s")
    try:
        return float(text)
    except ValueError:
        raise InvalidOption(f"attachTimeout={given['attachTimeout']}: seconds, as in 60") from None


def _transaction(given: dict[str, str]) -> tuple[str, int] | None:
    """The number of a batch write, and who counts; None if it has none."""
    there = [name for name in _TRANSACTION if name in given]
    if len(there) == 1:
        raise InvalidOption(f"{there[0]} needs {(set(_TRANSACTION) - set(there)).pop()} beside it")
    if not there:
        return None
    if not given["txnAppId"]:
        raise InvalidOption("txnAppId is empty: a name, the same in every run")
    return given["txnAppId"], _whole("txnVersion", given["txnVersion"])


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidOption(f"{name}={text}: a number")
    return int(text)
