"""An archive as a source of Spark: the rows that the log gave, without a store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
from esker.spark import plan
from esker.spark.source import trimmed
from esker.spark.tasks import parts
from esker.spark.wanted import wanted
from tests.objects import SECRET, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_US = 86_400_000_000
START_US = 1_800_000_000_000_000
COUNT = 120
RICH = {"includeTag": "true", "includeNode": "true", "includeHeaders": "true"}


def record(number: int) -> esker.Record:
    """Ten records an hour, so that they are of several days; every seventh comes a day late."""
    late = DAY_US if number % 7 == 0 else 0
    return esker.Record(
        b"%d" % number, key=b"k%d" % (number % 5), tag=f"t{number % 3}", node="eu",
        headers={"h": b"%d" % number}, timestamp=START_US + number * DAY_US // 40 - late,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    """A topic with two shards, archived in two runs; some of it was deleted between them."""
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", shards=2, segment_records=10)
        for first in range(0, COUNT, 10):
            topic.append_many([record(n) for n in range(first, first + 10)])
            if first == 60:
                store.tick()
                topic.archive(compact=False)
                topic.delete(tag="t1")
        store.tick()
        topic.archive(compact=False)
    yield str(tmp_path / "data")
    plan.let_go()


def load(spark: SparkSession, where: str, **options: str) -> DataFrame:
    options.setdefault("subscribe", "t")
    return spark.read.format("esker").options(**options).load(where)


def rows(frame: DataFrame) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[3], row[4]))


def archived(data: str, shard: int | None = None) -> list[esker.Record]:
    return list(esker.open_archive(f"{data}/archive", "t").read(shard=shard))


def test_an_archive_gives_the_rows_that_the_log_gave_without_a_store(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    ends = esker.open_archive(f"{data}/archive", "t").ends
    before = [row for row in rows(load(spark, data, **RICH)) if row[4] < ends[row[3]]]
    shutil.copytree(f"{data}/archive", tmp_path / "kept")
    shutil.rmtree(data)
    where = str(tmp_path / "kept")
    found = rows(load(spark, where, **RICH))
    kept = [row for row in found if row[-2] != "t1"]  # what was archived stays in the archive
    assert kept == [row for row in before if row[-2] != "t1"]
    assert len(found) > len(before)
    for options in ({"minPartitions": "7"}, {"maxRecordsPerPartition": "9"}):
        assert rows(load(spark, where, **RICH, **options)) == found
    by_pattern = spark.read.format("esker").option("subscribePattern", "t.*").load(where)
    assert rows(by_pattern) == [row[:7] for row in found]
    with pytest.raises(Exception, match="no topic 'tt' in the archive"):
        load(spark, where, subscribe="tt").count()
    with pytest.raises(Exception, match="an archive is read by batch queries"):
        spark.readStream.format("esker").option("subscribe", "t").load(where).writeStream.format(
            "noop"
        ).option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(30)


def test_from_where_to_where_and_which(spark: SparkSession, data: str) -> None:
    where = f"{data}/archive"
    every = archived(data, 0)
    for options, expected in (
        ({"startingOffsets": '{"t":{"0":7}}', "endingOffsets": '{"t":{"0":31}}'},
         [each.offset for each in every if 7 <= each.offset < 31]),
        ({"startingOffsets": "-5"}, [each.offset for each in every][-5:]),
        ({"startingOffsets": "7"}, [each.offset for each in every if each.offset >= 7]),
    ):  # fmt: skip
        frame = spark.read.format("esker").options(assign='{"t":[0]}', **options).load(where)
        assert sorted(row.offset for row in frame.collect()) == expected
    with pytest.raises(Exception, match=r"has shards \[0, 1\], not 2"):
        spark.read.format("esker").option("assign", '{"t":[2]}').load(where).count()
    with pytest.raises(Exception, match="has no record at or after that time"):
        load(spark, where, startingTimestamp="9000000000000").count()


def test_filters_change_what_is_read_and_never_the_result(spark: SparkSession, data: str) -> None:
    where = f"{data}/archive"
    every = rows(load(spark, where, includeTag="true"))
    times = sorted(row[5] for row in every)
    low, high = times[20], times[60]
    for condition in (
        f"timestamp >= TIMESTAMP '{low}' AND timestamp < TIMESTAMP '{high}'",
        "offset BETWEEN 5 AND 20", "partition = 1", "tag = 't2'", "topic = 'u'",
    ):  # fmt: skip
        plain = rows(load(spark, where, includeTag="true", pushFilters="false").where(condition))
        assert rows(load(spark, where, includeTag="true").where(condition)) == plain
        assert bool(plain) == ("'u'" not in condition)


def test_filters_narrow_what_is_planned(data: str) -> None:
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    asked = wanted({"path": f"{data}/archive", "subscribe": "t"}, now_us=0, streaming=False)
    asked = asked._replace(archived=True)
    whole = plan.spans(asked)
    assert {(span.shard, span.first) for span, _ in whole} == {(0, 0), (1, 0)}
    moment = datetime.fromtimestamp((START_US + DAY_US) / 1e6, UTC)
    late, _ = trimmed(whole, [GreaterThanOrEqual(("timestamp",), moment)])
    early, _ = trimmed(whole, [LessThan(("timestamp",), moment)])
    total = sum(span.end - span.first for span, _ in whole)
    for part in (late, early):
        assert 0 < sum(span.end - span.first for span, _ in part) < total
    made = parts(asked._replace(min_partitions=4), whole)
    assert len(made) >= 4
    read = [row for part in made for row in offsets(part.task)]  # type: ignore[attr-defined]
    assert len(read) == len(set(read)) == len(archived(data))


def offsets(task: Any) -> list[tuple[int, int]]:
    import pyarrow as pa

    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
    return [tuple(row.values()) for batch in task.rows(schema) for row in batch.to_pylist()]


def test_what_the_log_lacked_is_a_loss_here_too(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=10, cap_records=20)
        for _ in range(6):
            topic.append_many([b"x"] * 10)
            store.tick()
        topic.archive(tmp_path / "kept")
    where = str(tmp_path / "kept")
    with pytest.raises(Exception, match="offsets 0 to 39 cannot be read: evicted"):
        load(spark, where).count()
    there = len(list(esker.open_archive(where, "t").read(gaps="skip")))
    assert load(spark, where, onDataLoss="skip").count() == there
    told = load(spark, where, onDataLoss="gapRow").where("gap IS NOT NULL").collect()
    assert [row.gap.asDict() for row in told] == [{"first": 0, "last": 39, "reason": "evicted"}]


def test_files_that_are_merged_after_planning_are_found_where_they_went(data: str) -> None:
    asked = wanted({"path": f"{data}/archive", "subscribe": "t"}, now_us=0, streaming=False)
    asked = asked._replace(archived=True)
    planned = plan.spans(asked)
    expected = archived(data)
    with esker.open(data) as store:
        for _ in range(2):  # the second run removes what the first has merged
            store["t"].archive()
    moment = START_US + DAY_US
    assert all(seen.since(moment) <= span.end for span, seen in planned)
    found = [row for part in parts(asked, planned) for row in offsets(part.task)]  # type: ignore[attr-defined]
    assert found == [(each.shard, each.offset) for each in expected]
    other = [(span._replace(id=span.id + 1), seen) for span, seen in planned]
    (task, *_) = parts(asked, other)
    with pytest.raises(esker.DataLoss, match="recreated"):
        offsets(task.task)  # type: ignore[attr-defined]


def test_an_archive_in_an_object_store_is_read_and_no_secret_is_told(
    spark: SparkSession, data: str
) -> None:
    with serving() as server:
        where = server.url("bucket/history")
        with esker.open(data) as store:
            store["t"].archive(where)
            history = esker.open_archive(where, "t")
            expected = sorted((each.shard, each.offset) for each in history.read())
        found = load(spark, where).select("partition", "offset").collect()
        assert sorted((row.partition, row.offset) for row in found) == expected
        with pytest.raises(Exception, match="no topic 'tt' in the archive") as problem:
            load(spark, where, subscribe="tt").count()
        assert SECRET not in str(problem.value)
