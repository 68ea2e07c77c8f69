"""Aggregate: numbers for each window of time, from a short description.

    aggregate(spark, "data", "orders", "turnover.toml", to="turnover")

The description (described.py) says what a value holds, how long a window is, by what it is grouped
and what is computed. The records of the result have the window and the group as their key and all
of it as JSON:

    {"window_start":"2026-11-15T10:00:00Z","product":"tea"}
    {"window_start":"2026-11-15T10:00:00Z","window_end":"…","product":"tea","orders":7,"turnover":21.5}

In a batch every record counts, in whatever order they come: it is one answer about a range, as of
one moment. It is committed as a whole; asked again as of the same moment, it does nothing.

As a stream (`streaming`) a run takes what has come since the last one. A window is written once,
when the time of the records has passed its end by `lateness`, and never again; a record that comes
for a window which was written is late, and counted. What is still open waits in the checkpoint for
the next run. Where nothing is late, both ways give the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import expr, window

from esker.engine.store import open_store
from esker.errors import InvalidOption
from esker.options import topic_name
from esker.spark.jobs import streams
from esker.spark.jobs.described import Spec, spec_of
from esker.spark.jobs.running import Progress, Teller
from esker.spark.jobs.streams import Losses
from esker.spark.sink import application
from esker.spark.source import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX: Final = 1_000  # of a result that goes to no topic
BATCH_BYTES: Final = 256 << 20
_RECORD: Final = ("key", "tag", "node", "partition", "timestamp")
_MOMENT: Final = "esker_moment"


class Aggregated(msgspec.Struct, frozen=True):
    """What an aggregation did, and its rows if they went to no topic."""

    source: str
    target: str
    read: int
    matched: int
    bad: int  # values that are not what the schema says
    untimed: int  # records without a time: in no window
    windows: int  # rows of the result
    late: int  # as Spark counts them: rows of a batch, put together by window and group
    waiting: int  # windows and groups that wait for their end
    losses: Losses
    rows: list[dict[str, Any]]
    repeated: bool  # was done before: nothing was written
    checkpoint: str
    seconds: float

    def __str__(self) -> str:
        goes = f" to {self.target}" if self.target else ""
        if self.repeated:
            return f"{self.source}{goes}: was done before, nothing was written"
        told = (
            f"{self.source}{goes}: {self.read:,} records read, {self.matched:,} matched, "
            f"{self.windows:,} windows, {self.seconds:.1f} s"
        )
        for count, what in (
            (self.waiting, "windows are still open"),
            (self.late, "rows came too late"),
            (self.bad, "values are not what the schema says"),
            (self.untimed, "records have no time"),
        ):
            if count:
                told += f"\n{count:,} {what}"
        if self.losses.gaps:
            told += f"\n{self.losses}"
        for row in self.rows:
            told += "\n" + msgspec.json.encode(row).decode()
        if not self.target and len(self.rows) < self.windows:
            told += f"\n... and {self.windows - len(self.rows):,} more: give a topic to write to"
        return told


def aggregate(
    spark: SparkSession,
    store: str,
    topic: str,
    spec: str | Mapping[str, Any],
    *,
    to: str | None = None,
    to_store: str | None = None,
    streaming: bool = False,
    start: str | None = None,
    end: str | None = None,
    on_bad_value: str = "fail",
    on_loss: str = "fail",
    batch_bytes: int = BATCH_BYTES,
    checkpoint: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Aggregated:
    """Compute numbers for each window of time and each group, from a short description.

        store         the store's directory
        topic         the topic that is read
        spec          what to compute: the path of a JSON or TOML file, or in Python a dict
        to            the topic that is written (default: the rows are told, at most 1,000)
        to_store      the directory of another store to write to
        streaming     take what has come since the last run; windows are written when they end
        start         where to begin: earliest, 100, -100, @2026-11-15T10:00, @-15m
            (default: earliest)
        end           where to end, in the same words (default: at what is there now)
        on_bad_value  a value that is not what the schema says: fail, or skip and tell how many
        on_loss       records that should be there and are not: fail, or skip and tell of them
        batch_bytes   streaming: about how much goes in one step
        checkpoint    streaming: where it is remembered how far this is (default: in the store that
            is written to)

    A batch is written as a whole; a stream goes on where it was stopped.
    """
    streams.one_of("on_loss", on_loss, ("fail", "skip"))
    streams.one_of("on_bad_value", on_bad_value, ("fail", "skip"))
    asked = spec_of(spec)
    source, target = local_path(store), local_path(store if to_store is None else to_store)
    if to is None and (streaming or to_store is not None):
        raise InvalidOption("which topic is written to? Give `to`; only a batch can do without")
    if to is not None and (source, topic) == (target, topic_name(to)):
        raise InvalidOption(f"topic {topic!r} is read and cannot be written to: name another one")
    model = streams.source_of(source, topic)
    made = 0
    if to is not None:
        with open_store(target, routes=False) as writable:
            if to not in writable:
                writable.create(to, exist_ok=True)
            made = writable[to]._existing().id
    job = _Job(spark, asked, source, topic, on_bad_value, on_loss)
    what = (source, topic, model.id, to, made, msgspec.to_builtins(asked), on_bad_value)
    teller = Teller("aggregate", "records", progress)
    with streams.as_ours():
        if streaming:
            assert to is not None
            at = checkpoint or streams.checkpoint_in(target, "aggregate", *what, start, end)
            found = _streamed(job, start, end, batch_bytes, target, to, at, teller)
        else:
            found = _batch(job, start, end, target, to, what, teller)
    where = "" if to is None else to if source == target else f"{to} in {target}"
    return Aggregated(source=topic, target=where, seconds=round(teller.seconds, 3), **found)


class _Job:
    """A description, and what it is applied to."""

    def __init__(
        self, spark: SparkSession, spec: Spec, path: str, topic: str, on_bad_value: str,
        on_loss: str,
    ) -> None:  # fmt: skip
        self.spark = spark
        self.spec = spec
        self.path = path
        self.topic = topic
        columns = [*_RECORD, *(["value"] if spec.schema else [])]
        self.options = {
            "subscribe": topic, "onBadValue": "fail" if on_bad_value == "fail" else "null",
            "onDataLoss": "fail" if on_loss == "fail" else "gapRow",
        }  # fmt: skip
        self.skips = on_loss == "skip"
        if self.skips:
            columns.append("gap")
        self.options["columns"] = ",".join(columns)
        if spec.schema:
            self.options |= {"valueFormat": "json", "valueSchema": spec.value_schema}

    def windows(self, rows: DataFrame, read: Any, matched: Any) -> DataFrame:
        """The result, a row for each window and group. `read` and `matched` count."""
        spec = self.spec
        there = "gap IS NULL" if self.skips else "true"
        bad = f"{there} AND value IS NULL" if spec.schema else "false"
        counters = [expr(f"count_if({there}) AS records"), expr(f"count_if({bad}) AS bad")]
        rows = rows.observe(read, *counters, *(streams.loss_columns() if self.skips else []))
        rows = rows.where(f"{there} AND NOT ({bad})")
        fields = [f"value.`{name}` AS `{name}`" for name in spec.schema]
        record = {name: f"`{name}`" for name in _RECORD} | {"key": "CAST(key AS STRING) AS key"}
        flat = rows.selectExpr(
            *fields, *(text for name, text in record.items() if name not in spec.schema)
        )
        timed = streams.conditional(flat, spec.where).withColumn(_MOMENT, expr(spec.moment))
        timed = timed.observe(
            matched, expr("count(1) AS records"), expr(f"count_if(`{_MOMENT}` IS NULL) AS untimed")
        )
        length, slide = f"{spec.window_us} microseconds", f"{spec.slide_us} microseconds"
        found = (
            timed.withWatermark(_MOMENT, f"{spec.lateness_us} microseconds")
            .groupBy(window(f"`{_MOMENT}`", length, slide).alias("window"), *spec.group_by)
            .agg(*(expr(f"{sql} AS `{name}`") for name, sql in spec.computed.items()))
        )
        groups = [f"`{name}`" for name in spec.group_by]
        return found.selectExpr(
            "window.start AS window_start", "window.end AS window_end", *groups,
            *(f"`{name}`" for name in spec.metrics),
        )  # fmt: skip

    def records(self, windows: DataFrame, made: Any) -> DataFrame:
        """The result as records of a topic."""
        spec = self.spec
        whole = not (spec.window_us % 1_000_000 or spec.slide_us % 1_000_000)
        fraction = "" if whole and "TIMESTAMP" not in spec.schema.values() else ".SSSSSS"
        how = (
            f"map('timeZone', 'UTC', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss{fraction}XXX\", "
            "'ignoreNullFields', 'false')"
        )
        key = ", ".join(f"`{name}`" for name in ("window_start", *spec.group_by))
        told = windows.selectExpr(
            f"to_json(struct({key}), {how}) AS key", f"to_json(struct(*), {how}) AS value",
            "window_start AS timestamp",
        )  # fmt: skip
        return told.observe(made, expr("count(1) AS records"))


def _batch(
    job: _Job, start: str | None, end: str | None, target: str, to: str | None,
    what: tuple[Any, ...], teller: Teller,
) -> dict[str, Any]:  # fmt: skip
    begins, ends = streams.bounds(job.path, job.topic, start, end)
    name = f"aggregate {streams.fingerprint(*what, begins, ends)}"
    if to is not None:
        with open_store(target, mode="r") as readable:
            if readable.attached(application(name)) is not None:
                return _told({}, {}, 0, repeated=True)
    teller.total = sum(max(0, ends[number] - begins[number]) for number in ends)
    options = {
        **job.options, "startingOffsets": streams.places(job.topic, begins),
        "endingOffsets": streams.places(job.topic, ends),
    }  # fmt: skip
    rows = job.spark.read.format("esker").options(**options).load(job.path)
    read, matched, made = Observation("read"), Observation("matched"), Observation("made")
    windows = job.windows(rows, read, matched)
    table: list[dict[str, Any]] = []
    if to is not None:
        job.records(windows, made).write.format("esker").mode("append").options(
            path=target, topic=to, txnAppId=name, txnVersion="1"
        ).save()
    else:
        counted = windows.observe(made, expr("count(1) AS records"))
        by = ("window_start", *job.spec.group_by)
        found = counted.orderBy(*(f"`{name}`" for name in by)).limit(ROWS_MAX).toArrow()
        table = found.to_pylist()
    teller.add(read.get["records"])
    return _told(read.get, matched.get, made.get["records"], rows=table)


def _streamed(
    job: _Job, start: str | None, end: str | None, batch_bytes: int, target: str, to: str, at: str,
    teller: Teller,
) -> dict[str, Any]:  # fmt: skip
    options = {
        **job.options, "startingOffsets": "earliest" if start is None else str(start),
        "maxBytesPerTrigger": str(batch_bytes),
    }  # fmt: skip
    if end is not None:
        options["endingOffsets"] = str(end)
    rows = job.spark.readStream.format("esker").options(**options).load(job.path)
    frame = job.records(job.windows(rows, "read", "matched"), "made")
    ran = streams.run(frame, at, {"path": target, "topic": to}, teller)
    states = [each.get("stateOperators") or [{}] for each in ran.progress]
    found = _told(
        _sum(ran.observed("read")), _sum(ran.observed("matched")),
        _sum(ran.observed("made")).get("records", 0),
        late=sum(state[0].get("numRowsDroppedByWatermark", 0) for state in states),
        waiting=states[-1][0].get("numRowsTotal", 0) if states else 0, checkpoint=at,
    )  # fmt: skip
    losses = Losses()
    for each in ran.observed("read"):
        losses = losses.and_then(each) if "gaps" in each else losses
    return {**found, "losses": losses}


def _sum(counted: list[dict[str, Any]]) -> dict[str, Any]:
    names = {name for each in counted for name, value in each.items() if isinstance(value, int)}
    return {name: sum(each.get(name) or 0 for each in counted) for name in names}


def _told(
    read: dict[str, Any], matched: dict[str, Any], windows: int, *, late: int = 0, waiting: int = 0,
    rows: list[dict[str, Any]] | None = None, repeated: bool = False, checkpoint: str = "",
) -> dict[str, Any]:  # fmt: skip
    return {
        "read": read.get("records", 0), "matched": matched.get("records", 0),
        "bad": read.get("bad", 0), "untimed": matched.get("untimed", 0), "windows": windows,
        "late": late, "waiting": waiting, "rows": rows or [], "repeated": repeated,
        "checkpoint": checkpoint,
        "losses": Losses().and_then(read) if "first" in read else Losses(),
    }  # fmt: skip
