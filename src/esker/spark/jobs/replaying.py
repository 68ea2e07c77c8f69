"""Replay: a part of a topic, from here to there or what matches, into another topic.

    replay(spark, "data", "orders", "again", start="@2026-11-15T10:00", end="@2026-11-15T12:00")

It is a stream from Esker's source into Esker's sink that ends where it was told to, or at what is
there now. Its checkpoint makes it exactly once: stopped anywhere and begun again, it goes on; done
again when it is done, it does nothing, or takes what has come since if its end was left open.

What makes it the same replay is all that says what goes where: both topics, the range, the
condition, what is kept. Another range is another replay, and what both have in common comes twice.

Records keep their value, key, headers, tag and node to the byte, and their timestamps unless told
otherwise. A key chooses the shard, so that a replay is also a way to another number of shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from esker.engine.store import open_store
from esker.errors import InvalidOption
from esker.options import topic_name
from esker.spark.jobs import streams
from esker.spark.jobs.running import Progress, Teller
from esker.spark.jobs.streams import Losses
from esker.spark.source import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_BYTES: Final = 256 << 20  # of a batch: seconds of work, so that one hears of it
_COLUMNS: Final = ("key", "value", "headers", "tag", "node")
_RAW: Final = "value as it is"


class Replayed(msgspec.Struct, frozen=True):
    """What a replay did. A run that was begun again tells of itself only."""

    source: str
    target: str
    read: int
    written: int
    batches: int
    losses: Losses
    checkpoint: str
    seconds: float

    def __str__(self) -> str:
        lost = f"\n{self.losses}" if self.losses.gaps else ""
        if not self.batches:
            return f"{self.source} to {self.target}: nothing new to replay"
        return (
            f"{self.source} to {self.target}: {self.read:,} records read, {self.written:,} "
            f"written in {self.batches} batches, {self.seconds:.1f} s{lost}"
        )


def replay(
    spark: SparkSession,
    store: str,
    topic: str,
    to: str,
    *,
    to_store: str | None = None,
    start: str | None = None,
    end: str | None = None,
    where: str | None = None,
    text: bool = False,
    keep_timestamps: bool = True,
    keep_partitions: bool = False,
    shards: int | None = None,
    on_loss: str = "fail",
    batch_bytes: int = BATCH_BYTES,
    checkpoint: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Replayed:
    """Copy a range of a topic, or what matches of it, into another topic, exactly once.

        store            the store's directory
        topic            the topic that is read
        to               the topic that is written; made like the other one if it is not there
        to_store         the directory of another store to write to
        start            where to begin: earliest, 100, -100, @2026-11-15T10:00, @-15m
            (default: earliest)
        end              where to end, in the same words (default: at what is there now)
        where            which records: a condition of Spark SQL over key, value, topic, partition,
            offset, timestamp, headers, tag and node
        text             in the condition, `value` is text; what is written stays as it is
        keep_timestamps  records keep their timestamps, or get that of their copy
        keep_partitions  records keep their shards, instead of their keys choosing them
        shards           how many shards a topic has that is made (default: as many as the other)
        on_loss          records that should be there and are not: fail, or skip and tell of them
        batch_bytes      about how much goes in one step
        checkpoint       where it is remembered how far this is (default: in the store that is
            written to)

    Begun again it goes on where it was stopped; what is done is not done twice.
    """
    streams.one_of("on_loss", on_loss, ("fail", "skip"))
    source, target = local_path(store), local_path(store if to_store is None else to_store)
    if (source, topic) == (target, topic_name(to)):
        raise InvalidOption(f"a replay of topic {topic!r} onto itself: name another topic")
    model = streams.source_of(source, topic)
    with open_store(target, routes=False) as writable:
        made = streams.make_like(writable, to, model, shards)
    what = (
        source, topic, model.id, to, made.id, start, end, where, text,
        keep_timestamps, keep_partitions,
    )  # fmt: skip
    at = checkpoint or streams.checkpoint_in(target, "replay", *what)
    options = {
        "subscribe": topic, "startingOffsets": "earliest" if start is None else str(start),
        "includeHeaders": "true", "includeTag": "true", "includeNode": "true",
        "onDataLoss": "fail" if on_loss == "fail" else "gapRow",
        "maxBytesPerTrigger": str(batch_bytes),
    }  # fmt: skip
    if end is not None:
        options["endingOffsets"] = str(end)
    teller = Teller("replay", "records", progress)
    with streams.as_ours():
        rows = spark.readStream.format("esker").options(**options).load(source)
        kept = [
            *_COLUMNS, *(["timestamp"] if keep_timestamps else []),
            *(["partition"] if keep_partitions else []),
        ]  # fmt: skip
        frame = _matching(_counted(rows, on_loss), where, text).select(kept)
    ran = streams.run(_told(frame), at, {"path": target, "topic": to}, teller)
    losses = Losses()
    for each in ran.observed("read"):
        losses = losses.and_then({"gaps": 0, "missed": 0, "first": None, "last": None, **each})
    return Replayed(
        source=f"{topic} in {source}" if source != target else topic,
        target=f"{to} in {target}" if source != target else to,
        read=sum(each["records"] for each in ran.observed("read")),
        written=sum(each["records"] for each in ran.observed("written")),
        batches=ran.batches,
        losses=losses,
        checkpoint=at,
        seconds=round(teller.seconds, 3),
    )


def _counted(rows: DataFrame, on_loss: str) -> DataFrame:
    """Rows counted as they are read; those that stand for a gap are counted and left out."""
    if on_loss == "fail":
        return rows.observe("read", expr("count(1) AS records"))
    losses = streams.loss_columns()
    counted = rows.observe("read", expr("count_if(gap IS NULL) AS records"), *losses)
    return counted.where("gap IS NULL").drop("gap")


def _told(frame: DataFrame) -> DataFrame:
    return frame.observe("written", expr("count(1) AS records"))


def _matching(rows: DataFrame, where: str | None, text: bool) -> DataFrame:
    if where is None or not text:
        return streams.conditional(rows, where)
    names: list[Any] = [name for name in rows.columns if name != "value"]
    both = rows.withColumn(_RAW, rows["value"]).withColumn("value", rows["value"].cast("string"))
    found = streams.conditional(both, where)
    return found.drop("value").withColumnRenamed(_RAW, "value").select(*names, "value")
