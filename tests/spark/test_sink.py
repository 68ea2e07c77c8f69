"""`df.write.format("esker")` and `writeStream`: rows become records, a batch whole and once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import esker
from esker.spark import plan
from tests.helpers import child
from tests.spark.places import BOTH, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, path: Path | str, **options: Any) -> None:
    frame.write.format("esker").mode("append").options(**options).save(str(path))


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) AS value")


def leftovers(path: Path) -> list[str]:
    return [p.name for p in path.rglob("*") if p.suffix in (".staged", ".commit", ".tmp")]


def test_rows_become_records_with_all_they_have(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    frame = spark.range(100).selectExpr(
        "concat('v', id) AS value", "cast(concat('k', id % 3) AS binary) AS key",
        "timestamp_micros(1700000000000000 + id) AS timestamp", "concat('tag', id % 2) AS tag",
        "'eu' AS node", "array(struct('h' AS key, cast('x' AS binary) AS value)) AS headers",
    )  # fmt: skip
    write(frame, place, topic="t", shards="3")
    with esker.open(place) as store:
        topic = store["t"]
        records = list(topic.read())
        assert topic.shards == 3
        assert all(record.shard == topic.shard_of(record.key or b"") for record in records)
    found = {record.value: record for record in records}
    assert set(found) == {b"v%d" % n for n in range(100)}
    record = found[b"v7"]
    assert (record.key, record.tag, record.node) == (b"k1", "tag1", "eu")
    assert (record.headers, record.timestamp) == ({"h": b"x"}, 1_700_000_000_000_007)
    assert leftovers(tmp_path) == []


@pytest.fixture(params=BOTH)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A store, by its path and by the URL of a server."""
    with reached(tmp_path / "data", request.param) as found:
        yield found


def test_topic_and_partition_may_come_with_the_row(spark: SparkSession, place: str) -> None:
    with esker.open(place) as store:
        store.create("a", shards=4)
    frame = spark.range(90).selectExpr(
        "cast(id AS string) AS value", "if(id % 3 = 0, 'a', if(id % 3 = 1, 'b', null)) AS topic",
        "if(id % 3 = 0, cast(id % 4 AS int), null) AS partition",
    )  # fmt: skip
    write(frame, place, topic="rest")
    with esker.open(place) as store:
        assert list(store) == ["a", "b", "rest"]
        assert all(int(r.value) % 4 == r.shard for r in store["a"].read())
        assert (len(store["b"]), len(store["rest"])) == (30, 30)


def test_a_batch_is_there_as_a_whole_or_not_at_all(spark: SparkSession, place: str) -> None:
    write(numbers(spark, 10), place, topic="t")
    bad = numbers(spark, 1000, 8).selectExpr("if(value = '777', raise_error('no'), value) AS value")
    with pytest.raises(Exception, match="no"):
        write(bad, place, topic="t")
    with esker.open(place) as store:
        assert len(store["t"]) == 10
    write(numbers(spark, 5), place, topic="t")
    with esker.open(place) as store:
        assert len(store["t"]) == 15


def test_an_empty_frame_writes_nothing(spark: SparkSession, place: str) -> None:
    write(numbers(spark, 0), place, topic="t")
    with esker.open(place) as store:
        assert len(store["t"]) == 0


def test_large_tasks_become_several_segments(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    with esker.open(place) as store:
        store.create("t", segment_bytes="1MiB", max_record_bytes="64KiB")
    frame = spark.range(0, 4000, 1, 2).selectExpr("repeat(cast(id AS string), 200) AS value")
    write(frame, place, topic="t")
    with esker.open(place) as store:
        values = Counter(record.value for record in store["t"].read())
        assert len(values) == sum(values.values()) == 4000
        assert len(list((tmp_path / "data").rglob("*.seg"))) >= 3


OWNER = """
import sys, esker
with esker.open(sys.argv[1]) as store:
    store["t"].append(b"mine", wait=True)
    print("ready", flush=True)
    sys.stdin.readline()
    store["t"].append(b"mine too", wait=True)
"""


def test_a_process_that_writes_the_topic_attaches_what_spark_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "data")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        write(numbers(spark, 100), tmp_path / "data", topic="t")
        with esker.open(tmp_path / "data", mode="r") as store:
            assert len(store["t"]) == 101
        owner.communicate("go on\n", timeout=60)
    assert owner.returncode == 0
    with esker.open(tmp_path / "data") as store:
        values = [record.value for record in store["t"].read()]
        assert (values[0], values[-1], len(values)) == (b"mine", b"mine too", 102)


HOLDER = """
import sys, esker
with esker.open(sys.argv[1], background=False) as store:
    store["t"].append(b"mine", wait=True)
    print("ready")
    sys.stdin.readline()
    store.tick()
"""


def test_a_batch_whose_commit_failed_behind_the_commit_is_not_thrown_away(tmp_path: Path) -> None:
    """Spark calls abort when commit raised, or died: in the log the batch may be all the same."""
    from pyspark.sql.types import StringType, StructField, StructType

    from esker.spark.sink import EskerWriter, Target

    def rows(*values: str) -> Any:
        return iter([pa.record_batch({"value": pa.array(values)})])

    data, schema = tmp_path / "data", StructType([StructField("value", StringType())])
    with child(HOLDER, data) as holder:
        assert holder.line() == "ready"
        writer = EskerWriter(Target(str(data), {"topic": "t", "attachTimeout": "0"}, schema))
        committed, failed = writer.write(rows("a", "b")), writer.write(rows("c"))
        with pytest.raises(esker.AttachPending):
            writer.commit([committed])
        writer.abort([committed, failed])
        plan.let_go()
        holder.say()
        holder.end()
    with esker.open(data, mode="r") as store:
        assert [record.value for record in store["t"].read()] == [b"mine", b"a", b"b"]
    assert list(data.rglob("*.staged")) == []


def test_a_stream_copies_a_topic_exactly_once_over_restarts(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    data = copy = place  # from one topic of it to another one
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> None:
        rows = spark.readStream.format("esker").options(
            subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="400"
        ).load(data)  # fmt: skip
        query = (
            rows.select("key", "value").writeStream.format("esker")
            .options(path=copy, topic="c", checkpointLocation=checkpoint)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    def forget(number: int) -> None:
        for commit in Path(checkpoint, "commits").glob(f"*{number}"):
            commit.unlink()

    with esker.open(data) as store:
        store["t"].append_many([b"%d" % n for n in range(1000)], wait=True)
        run()
        forget(2)  # as if the driver had died between our commit and Spark's
        run()
        store["t"].append_many([b"%d" % n for n in range(1000, 1300)], wait=True)
        run()
    with esker.open(copy) as store:
        values = Counter(record.value for record in store["c"].read())
    assert values == Counter(b"%d" % n for n in range(1300))


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (["id AS value"], {"topic": "t"}, "column 'value' is bigint, not STRING or BINARY"),
        (["id"], {"topic": "t"}, "no column 'value'"),
        (["'x' AS value", "id AS partitoin"], {"topic": "t"}, "did you mean 'partition'"),
        (["'x' AS value"], {}, "which topic"),
        (["'x' AS value"], {"topic": "t", "shard": "2"}, "did you mean 'shards'"),
        (["'x' AS value"], {"topic": "t", "shards": "many"}, "shards=many"),
        (["'x' AS value"], {"topic": "a/b"}, "a/b"),
        (["'x' AS value"], {"topic": "t", "durability": "always"}, "durability"),
        (["cast(null AS string) AS value"], {"topic": "t"}, "nulls"),
        (["'x' AS value", "9 AS partition"], {"topic": "t"}, r"topic 't' has 0\.\.0"),
        (["'x' AS value", "cast(null AS string) AS topic"], {}, "a row has no topic"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, columns: list[str], options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        write(spark.range(3).selectExpr(*columns), tmp_path / "data", **options)
    if (tmp_path / "data").exists():
        with esker.open(tmp_path / "data") as store:
            assert sum(len(store[name]) for name in store) == 0
    assert leftovers(tmp_path) == []


def test_a_log_is_not_written_over(spark: SparkSession, place: str) -> None:
    with pytest.raises(Exception, match="appended to and never written over"):
        numbers(spark, 3).write.format("esker").mode("overwrite").option("topic", "t").save(place)


def test_a_numbered_batch_write_is_done_once(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    data = place
    for version, count in [(3, 10), (3, 10), (2, 10), (4, 7), (4, 7)]:
        write(numbers(spark, count), data, topic="t", txnAppId="job", txnVersion=str(version))
    write(numbers(spark, 1), data, topic="t", txnAppId="another", txnVersion="0")
    write(numbers(spark, 1), data, topic="t", TXNappid="another", txnversion="0")
    with esker.open(data) as store:
        assert len(store["t"]) == 10 + 7 + 1
        assert store.attached("spark application job") == 4
        assert store.attached("spark application x") is None
    assert [name for name in leftovers(tmp_path / "data") if not name.endswith(".commit")] == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"txnAppId": "a"}, "txnAppId needs txnVersion beside it"),
        ({"txnVersion": "1"}, "txnVersion needs txnAppId beside it"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId is empty"),
        ({"txnAppId": "a", "txnVersion": "one"}, "txnVersion=one: a number"),
    ],
)
def test_a_number_without_a_name_is_told(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=complaint):
        write(numbers(spark, 1), tmp_path / "data", topic="t", **options)


def test_rows_become_jobs_where_the_topic_is_a_queue(spark: SparkSession, place: str) -> None:
    path = place
    with esker.open(path) as store:
        store.queue("jobs", shards=2)
        store.queue("jobs").put(b"put by hand", wait=True)
        write(numbers(spark, 50), path, topic="jobs")  # handed over to this process, which has it
        queue = store.queue("jobs")
        jobs = queue.claim(100, wait=10)
        while len(jobs) < 51:
            more = queue.claim(100, wait=10)
            assert more, f"{len(jobs)} of 51 jobs came"
            jobs += more
        assert {job.value for job in jobs} == {b"put by hand", *(b"%d" % n for n in range(50))}
        queue.ack(jobs)
        assert queue.claim(1) == []
