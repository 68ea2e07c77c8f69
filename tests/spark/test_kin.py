"""The files of five other logs, read by Spark with the same options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
from esker import kin
from esker.spark import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = 1_700_000_000_000_000
KINDS = list(kin.KINDS)
TIMED = {"comet", "topics", "aof2"}
COUNT = 300


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records in each format, in several files each."""
    folder = tmp_path_factory.mktemp("kin")
    with esker.open(folder / "store") as store:
        topic = store.create("orders")
        topic.append_many(
            [esker.Record(b"%d " % n * 20, timestamp=TIME + n * 1_000_000) for n in range(COUNT)]
        )
        for kind in KINDS:
            kin.export_topic(topic, folder / kind, kind, segment_bytes=8_192)
    return folder


def place(copies: Path, kind: str) -> tuple[str, str]:
    """Its URL, and the name of its topic."""
    url = f"kin+{kind}://{copies / kind}"
    with esker.open(url) as store:
        (name,) = store
    return url, name


def load(spark: SparkSession, copies: Path, kind: str, **options: Any) -> DataFrame:
    url, name = place(copies, kind)
    return spark.read.format("esker").options(**{"subscribe": name, **options}).load(url)


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_of_another_log_is_a_row(spark: SparkSession, copies: Path, kind: str) -> None:
    rows = load(spark, copies, kind, minPartitions="4")
    found = rows.orderBy("offset").collect()
    url, name = place(copies, kind)
    with esker.open(url) as store:
        expected = [(r.offset, r.value, r.timestamp) for r in store[name].read()]
    assert [(row.offset, bytes(row.value)) for row in found] == [each[:2] for each in expected]
    assert len(found) == COUNT
    assert {(row.topic, row.partition, row.key) for row in found} == {(name, 0, None)}
    stamps = [round(row.timestamp.timestamp() * 1e6) for row in found]
    assert stamps == [each[2] for each in expected]
    assert rows.rdd.getNumPartitions() >= 4, "files are shared out"
    first = expected[0][0]
    some = load(
        spark, copies, kind, startingOffsets=str(first + 100), endingOffsets=str(first + 250),
        columns="offset", pushFilters="true",
    ).where(f"offset < {first + 200}")  # fmt: skip
    assert sorted(row.offset for row in some.collect()) == [*range(first + 100, first + 200)]
    late = load(spark, copies, kind, pushFilters="true").where(
        f"timestamp >= timestamp_micros({TIME + 200 * 1_000_000})"
    )
    assert late.count() == (100 if kind in TIMED else 0)


def test_damage_fails_a_query_or_is_stepped_over(spark: SparkSession, copies: Path) -> None:
    files = sorted((copies / "aof2").rglob("*.seg"))
    assert len(files) > 2
    content = bytearray(files[0].read_bytes())
    at = content.index(b"7 7 7 7")
    content[at] ^= 1
    try:
        whole = files[0].read_bytes()
        files[0].write_bytes(content)
        with pytest.raises(Exception, match=r"Corruption|cannot be read"):
            load(spark, copies, "aof2").collect()
        left = load(spark, copies, "aof2", onDataLoss="skip").count()
        assert 0 < left < COUNT
    finally:
        files[0].write_bytes(whole)


@pytest.mark.parametrize("kind", ["comet", "cursus"])
def test_a_log_that_counts_its_records_is_not_streamed(
    spark: SparkSession, copies: Path, tmp_path: Path, kind: str
) -> None:
    url, name = place(copies, kind)
    rows = spark.readStream.format("esker").option("subscribe", name).load(url)
    with pytest.raises(Exception, match=r"cannot be streamed.*Use spark\.read"):
        rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start(
        ).awaitTermination(60)  # fmt: skip


@pytest.mark.parametrize("kind", ["rustlog", "topics", "aof2"])
def test_a_log_that_grows_is_streamed(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """What was copied grows: it is exported anew, with more."""
    seen: list[int] = []

    def grown(count: int) -> str:
        for each in (tmp_path / "log", tmp_path / "store"):
            if each.exists():
                each.rename(tmp_path / f"{each.name}-{count}")
        with esker.open(tmp_path / "store") as store:
            store["orders"].append_many(
                [esker.Record(b"%d" % n, timestamp=TIME + n) for n in range(count)]
            )
            kin.export_topic(store["orders"], tmp_path / "log", kind, segment_bytes=8_192)
        return f"kin+{kind}://{tmp_path / 'log'}"

    for count in (100, 170):
        url = grown(count)
        with esker.open(url) as store:
            (name,) = store
        rows = spark.readStream.format("esker").options(
            subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="60"
        ).load(url)  # fmt: skip
        query = (
            rows.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(
                lambda frame, _: seen.extend(int(bytes(row.value)) for row in frame.collect())
            )
            .start()
        )
        query.awaitTermination(60)
        query.stop()
        assert sorted(seen) == [*range(count)]


def test_what_cannot_be_done_with_another_log_is_told(spark: SparkSession, copies: Path) -> None:
    url, _ = place(copies, "rustlog")
    rows = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(Exception, match="is only read"):
        rows.write.format("esker").mode("append").option("topic", "t").save(url)
    with pytest.raises(Exception, match="no topic 'nobody'"):
        load(spark, copies, "rustlog", subscribe="nobody").count()
    with pytest.raises(Exception, match="there is no log of comet"):
        spark.read.format("esker").option("subscribe", "log").load(
            f"kin+comet://{copies / 'nowhere'}"
        ).count()
    with pytest.raises(Exception, match="kind='x': one of"):
        spark.read.format("esker").option("subscribe", "log").load("kin+x:///tmp").count()
