"""Compact: the last record of each key, into a new topic.

    compact(spark, "data", "accounts", "accounts-now")

The last one is the one with the highest offset of the shard that its key lives in. A key chooses
its shard, so that is one shard; where records were put into several ones by hand, the last of each
are compared by timestamp, then by offset, then by shard. So the answer does not depend on who
computes it, or on how many tasks.

What is left keeps its order, its shard, its timestamp and all else that it has. Where the new topic
is to have another number of shards, keys choose them.

A log has no null values, so a deletion has to be agreed on: with `tombstones` a record with an
empty value says that its key is gone, and goes itself. Without, an empty value is a value.

A new topic holds one compaction, as of one moment, committed as a whole. Done again as of the same
moment it does nothing. When the topic has grown there is no second set of records beside the first:
a topic that holds anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import expr

from esker.engine.store import open_store
from esker.errors import InvalidOption, TopicExists
from esker.options import topic_name
from esker.spark.jobs import streams
from esker.spark.jobs.running import Progress, Teller, cores
from esker.spark.jobs.streams import Losses
from esker.spark.sink import application
from esker.spark.source import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STORED: Final = ("value", "headers", "tag", "node", "timestamp", "offset", "partition")
_TASKS_PER_CORE: Final = 2


class Compacted(msgspec.Struct, frozen=True):
    """What a compaction did."""

    source: str
    target: str
    read: int
    keys: int  # records with a key that were written: one for each
    keyless: int  # records without a key
    keyless_kept: bool
    deleted: int  # keys that a tombstone ended
    losses: Losses
    repeated: bool  # was done before: nothing was written
    seconds: float

    def __str__(self) -> str:
        if self.repeated:
            return f"{self.source} to {self.target}: was done before, nothing was written"
        told = f"{self.source} to {self.target}: {self.read:,} records read, {self.keys:,} keys"
        if self.deleted:
            told += f", {self.deleted:,} more deleted"
        if self.keyless:
            done = "kept" if self.keyless_kept else "dropped"
            told += f", {self.keyless:,} records without a key {done}"
        return f"{told}, {self.seconds:.1f} s" + (f"\n{self.losses}" if self.losses.gaps else "")


def compact(
    spark: SparkSession,
    store: str,
    topic: str,
    to: str,
    *,
    to_store: str | None = None,
    end: str | None = None,
    tombstones: bool = False,
    keyless: str = "keep",
    shards: int | None = None,
    on_loss: str = "fail",
    progress: Callable[[Progress], None] | None = None,
) -> Compacted:
    """Write the last record of each key of a topic into a new topic.

        store       the store's directory
        topic       the topic that is read
        to          the topic that is written; made like the other one
        to_store    the directory of another store to write to
        end         where to end: latest, 100, -100, @2026-11-15T10:00, @-15m (default: latest)
        tombstones  a record with an empty value says that its key is gone; neither is written
        keyless     records without a key: keep, or drop
        shards      how many shards the new topic has (default: as many as the other)
        on_loss     records that should be there and are not: fail, or skip and tell of them

    The new topic is written as a whole; done again it does nothing.
    """
    streams.one_of("on_loss", on_loss, ("fail", "skip"))
    streams.one_of("keyless", keyless, ("keep", "drop"))
    source, target = local_path(store), local_path(store if to_store is None else to_store)
    if (source, topic) == (target, topic_name(to)):
        raise InvalidOption(f"a compaction of topic {topic!r} onto itself: name another topic")
    model = streams.source_of(source, topic)
    _, ends = streams.bounds(source, topic, None, end)
    name = f"compact {streams.fingerprint(source, topic, model.id, to, ends, tombstones, keyless)}"
    with open_store(target, routes=False) as writable:
        made = streams.make_like(writable, to, model, shards)
        repeated = _check_new(writable[to], writable.attached(application(name)))
    teller = Teller("compact", "records", progress, total=sum(ends.values()))
    seen, left = Observation("read"), Observation("left")
    with streams.as_ours():
        if not repeated:
            rows = _rows(spark, source, topic, ends, on_loss)
            last = _last(_counted(rows, on_loss, seen), keyless)
            same = made.options.shards == model.options.shards
            _marked(_ordered(last, spark, same=same), tombstones, left).write.format("esker").mode(
                "append"
            ).options(path=target, topic=to, txnAppId=name, txnVersion="1").save()
    read: dict[str, Any] = {} if repeated else seen.get
    kept: dict[str, Any] = {} if repeated else left.get
    teller.add(read.get("records", 0))
    losses = Losses()
    if "gaps" in read:
        losses = losses.and_then(read)
    return Compacted(
        source=topic,
        target=to if source == target else f"{to} in {target}",
        read=read.get("records", 0),
        keys=kept.get("keys", 0),
        keyless=read.get("keyless", 0),
        keyless_kept=keyless == "keep",
        deleted=kept.get("deleted", 0),
        losses=losses,
        repeated=repeated,
        seconds=round(teller.seconds, 3),
    )


def _check_new(topic: Any, last: int | None) -> bool:
    """Whether this very compaction was made before. Anything else in the topic is in its way."""
    if last is not None:
        return True
    if any(topic.end(number) for number in range(topic.shards)):
        raise TopicExists(
            f"topic {topic.name!r} holds records that are not of this compaction, as of this "
            "moment: choose another topic, or delete it first"
        )
    return False


def _rows(
    spark: SparkSession, path: str, topic: str, ends: dict[int, int], on_loss: str
) -> DataFrame:
    options = {
        "subscribe": topic, "endingOffsets": streams.places(topic, ends),
        "includeHeaders": "true", "includeTag": "true", "includeNode": "true",
        "onDataLoss": "fail" if on_loss == "fail" else "gapRow",
    }  # fmt: skip
    return spark.read.format("esker").options(**options).load(path)


def _counted(rows: DataFrame, on_loss: str, seen: Any) -> DataFrame:
    if on_loss == "fail":
        return rows.observe(
            seen, expr("count(1) AS records"), expr("count_if(key IS NULL) AS keyless")
        )
    counted = rows.observe(
        seen, expr("count_if(gap IS NULL) AS records"),
        expr("count_if(gap IS NULL AND key IS NULL) AS keyless"), *streams.loss_columns(),
    )  # fmt: skip
    return counted.where("gap IS NULL").drop("gap")


def _last(rows: DataFrame, keyless: str) -> DataFrame:
    """The last record of each key; those without one each by itself, or none of them."""
    if keyless == "drop":
        rows = rows.where("key IS NOT NULL")
    alone = rows.withColumn("alone", expr("if(key IS NULL, struct(partition, offset), NULL)"))
    whole = expr(f"max_by(struct({', '.join(_STORED)}), offset) AS last")
    of_shards = alone.groupBy("key", "alone", "partition").agg(whole)
    latest = expr("max_by(last, struct(last.timestamp, last.offset, last.partition)) AS last")
    return of_shards.groupBy("key", "alone").agg(latest).select("key", "last.*")


def _marked(last: DataFrame, tombstones: bool, left: Any) -> DataFrame:
    """Without the keys that are gone; and counted.

    Comes after `_ordered`, for which Spark takes samples: what is counted before is counted twice.
    """
    gone = "(key IS NOT NULL AND length(value) = 0)" if tombstones else "false"
    counted = last.observe(
        left, expr(f"count_if(key IS NOT NULL AND NOT {gone}) AS keys"),
        expr(f"count_if({gone}) AS deleted"),
    )  # fmt: skip
    return counted.where(f"NOT {gone}")


def _ordered(last: DataFrame, spark: SparkSession, *, same: bool) -> DataFrame:
    """As the records lay in their topic: tasks are attached in their order, each in its own."""
    tasks = _TASKS_PER_CORE * cores(spark)
    by = ("partition", "offset") if same else ("timestamp", "partition", "offset")
    ordered = last.repartitionByRange(tasks, *by).sortWithinPartitions(*by)
    return ordered.drop("offset") if same else ordered.drop("offset", "partition")
