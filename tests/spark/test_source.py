"""`spark.read.format("esker")` in a real Spark: rows, columns, filters, losses, and words."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
from esker.format import catalog
from esker.format.checksum import checksum
from tests.spark.places import BOTH, both, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Topic t: two shards, sealed segments and a log, everything that a record can have."""
    path = tmp_path_factory.mktemp("source") / "data"
    with esker.open(path, background=False) as store:
        topic = store.create("t", shards=2, segment_records=2000)
        for number in range(20):
            topic.append_many(
                [
                    esker.Record(
                        b'{"n": %d}' % n, key=b"k%d" % (n % 5), tag=f"tag-{n % 3}", node="eu",
                        headers={"h": b"%d" % n}, timestamp=T0 + n * 1_000_000,
                    )
                    for n in range(number * 500, number * 500 + 500)
                ]
            )  # fmt: skip
        store["plain"].append_many([b"a", b"b", b"c"])
        store.tick()
    return str(path)


@pytest.fixture(scope="module", params=BOTH)
def place(data: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The same, by its path and by the URL of a server."""
    with reached(data, request.param) as found:
        yield found


def load(spark: SparkSession, data: str, **options: Any) -> DataFrame:
    options.setdefault("subscribe", "t")
    if options["subscribe"] is None:
        del options["subscribe"]
    return spark.read.format("esker").options(**options).load(data)


def test_the_schema_is_that_of_kafka(spark: SparkSession, data: str) -> None:
    assert load(spark, data).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    rich = load(spark, data, includeHeaders="true", includeTag="true", includeNode="true")
    assert rich.schema.simpleString().endswith(
        "headers:array<struct<key:string,value:binary>>,tag:string,node:string>"
    )


def test_every_record_is_a_row(spark: SparkSession, place: str) -> None:
    rich = load(spark, place, includeHeaders="true", includeTag="true", includeNode="true")
    rows = rich.collect()
    assert len(rows) == 10_000
    with esker.open(place, mode="r") as store:
        records = {(r.shard, r.offset): r for r in store["t"].read()}
    assert len(records) == 10_000
    for row in rows:
        record = records[row.partition, row.offset]
        assert bytes(row.value) == record.value
        assert bytes(row.key) == record.key
        assert (row.topic, row.timestampType) == ("t", 0)
        assert (row.tag, row.node) == (record.tag, record.node)
        assert [(h.key, bytes(h.value)) for h in row.headers] == list(
            (record.headers or {}).items()
        )
        stamp = row.timestamp.astimezone(UTC)
        assert stamp == datetime.fromtimestamp(record.timestamp / 1e6, UTC)


def test_what_a_record_lacks_is_null(spark: SparkSession, place: str) -> None:
    wide = load(spark, place, subscribe="plain", includeHeaders="true", includeTag="true")
    rows = wide.orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"a", b"b", b"c"]
    assert {(row.key, row.headers, row.tag) for row in rows} == {(None, None, None)}


def test_several_topics_a_pattern_and_an_assignment(spark: SparkSession, place: str) -> None:
    def counted(**options: Any) -> dict[tuple[str, int], int]:
        found = load(spark, place, **options).groupBy("topic", "partition").count().collect()
        return {(row.topic, row.partition): row["count"] for row in found}

    both = counted(subscribe="t,plain")
    assert both["plain", 0] == 3
    assert both["t", 0] + both["t", 1] == 10_000
    assert counted(subscribe=None, subscribePattern="pl.*") == {("plain", 0): 3}
    assert counted(subscribe=None, assign='{"t": [1]}') == {("t", 1): both["t", 1]}
    assert counted(subscribe=None, subscribePattern="nothing.*") == {}


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"startingOffsets": "1"}, [b"b", b"c"]),
        ({"startingOffsets": "-1"}, [b"c"]),
        ({"endingOffsets": "2"}, [b"a", b"b"]),
        ({"endingOffsets": "-1"}, [b"a", b"b"]),
        ({"startingOffsets": '{"plain": {"0": 1}}', "endingOffsets": '{"plain": {"0": 2}}'},
         [b"b"]),
        ({"startingOffsets": '{"plain": {"0": -2}}', "endingOffsets": '{"plain": {"0": -1}}'},
         [b"a", b"b", b"c"]),
        ({"startingOffsets": "@2020-01-01", "endingOffsets": "latest"}, [b"a", b"b", b"c"]),
        ({"startingTimestamp": "0", "endingTimestamp": "1000"}, []),
    ],
)  # fmt: skip
def test_from_where_to_where(
    spark: SparkSession, place: str, options: dict[str, str], values: list[bytes]
) -> None:
    found = load(spark, place, subscribe="plain", **options).orderBy("offset").collect()
    assert [bytes(row.value) for row in found] == values


def test_times_are_found_in_each_shard(spark: SparkSession, place: str) -> None:
    found = load(
        spark, place, startingTimestamp=str((T0 + 100_000_000) // 1000),
        endingTimestamp=str((T0 + 200_000_000) // 1000),
    )  # fmt: skip
    values = {bytes(row.value) for row in found.collect()}
    assert {b'{"n": %d}' % n for n in range(100, 200)} <= values


def test_columns_are_picked_by_option_or_by_schema(spark: SparkSession, place: str) -> None:
    assert load(spark, place, columns="offset,timestamp").columns == ["offset", "timestamp"]
    picked = spark.read.format("esker").schema("offset BIGINT").option("subscribe", "t").load(place)
    assert picked.agg({"offset": "count"}).collect()[0][0] == 10_000


def test_values_as_text_and_as_json(spark: SparkSession, place: str) -> None:
    text = load(spark, place, valueFormat="string")
    assert text.filter("value = '{\"n\": 17}'").count() == 1
    json = load(spark, place, valueFormat="json", valueSchema="n BIGINT, missing STRING")
    total, missing = json.selectExpr("sum(value.n)", "count(value.missing)").collect()[0]
    assert (total, missing) == (sum(range(10_000)), 0)


def test_values_that_are_no_json_are_named_or_null(spark: SparkSession, data: str) -> None:
    options = {"subscribe": "plain", "valueFormat": "json", "valueSchema": "n BIGINT"}
    with pytest.raises(
        Exception, match=r"the value at offset 0 of partition 0 is .*onBadValue=null"
    ):
        load(spark, data, **options).collect()
    rows = load(spark, data, **options, onBadValue="null").collect()
    assert [row.value for row in rows] == [None] * 3


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("offset >= 3990", None), ("offset < 10", 20), ("offset = 7", 2), ("offset IN (1, 3)", 4),
        ("partition = 1", None), ("topic = 't'", 10_000), ("topic = 'x'", 0),
        ("tag = 'tag-1'", 3333),
        ("tag IN ('tag-0', 'tag-2')", 6667), ("tag = 'tag-1' AND tag = 'tag-2'", 0),
        ("timestamp >= timestamp_micros(1700000100000000)", 9900),
        ("timestamp < timestamp_micros(1700000100000000)", 100),
        ("timestamp = timestamp_micros(1700000100000000)", 1),
        ("timestamp > timestamp_micros(1700000100000000) AND partition = 0", None),
        ("offset >= 10 OR tag = 'tag-1'", None), ("key = 'k1'", 2000), ("tag IS NULL", 0),
    ],
)  # fmt: skip
def test_filters_change_what_is_read_and_never_the_result(
    spark: SparkSession, place: str, condition: str, count: int | None
) -> None:
    def counted(**options: str) -> int:
        return load(spark, place, includeTag="true", **options).filter(condition).count()

    pushed, plain = (
        counted(pushFilters="true"),
        counted(pushFilters="false") if count is None else count,
    )
    assert pushed == plain


def test_filters_are_used(data: str) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

    from esker.spark import plan
    from esker.spark.source import trimmed
    from esker.spark.wanted import wanted

    found = plan.spans(wanted({"path": data, "subscribe": "t"}, now_us=0, streaming=False))
    try:
        narrow = [EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 3500)]
        ((span, _),) = trimmed(found, narrow)[0]
        assert (span.shard, span.first) == (1, 3500)
        late = datetime.fromtimestamp((T0 + 9_900 * 1_000_000) / 1e6, UTC)
        left, _ = trimmed(found, [GreaterThanOrEqual(("timestamp",), late)])
        assert sum(s.end - s.first for s, _ in left) <= 200
        left, _ = trimmed(found, [LessThan(("timestamp",), datetime(2023, 1, 1, tzinfo=UTC))])
        assert left == []
        assert trimmed(found, [EqualTo(("tag",), "x")])[1] == ("x",)
    finally:
        plan.let_go()


def test_a_read_is_divided_as_asked(spark: SparkSession, place: str) -> None:
    assert load(spark, place, minPartitions="7").rdd.getNumPartitions() >= 7
    assert load(spark, place, maxRecordsPerPartition="1000").rdd.getNumPartitions() >= 10
    assert load(spark, place).rdd.getNumPartitions() == 1, "so little is one task"


@both
def test_a_query_reads_a_snapshot_beside_a_writer(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    def found() -> DataFrame:
        return load(spark, place)

    with reached(tmp_path / "data", kind) as place, esker.open(place) as store:
        store["t"].append_many([b"x"] * 1000, wait=True)
        first = found()
        assert first.count() == 1000
        store["t"].append_many([b"y"] * 10, wait=True)
        assert first.count() == 1000, "what was read once stays as it was"
        assert found().count() == 1010
        with store.stage("t") as staged:
            staged.append_many([b"z"] * 5)
        assert found().count() == 1010, "staged is not there"
        store.attach("w", 1, staged.tickets)
        assert found().count() == 1015


@pytest.fixture
def gapped(tmp_path: Path) -> str:
    """Records 0..2 survived, 3..5 a repair has declared lost, 6..8 are there."""
    path = tmp_path / "data"
    with esker.open(path, background=False) as store:
        topic = store.create("t")
        for number in range(3):
            topic.append_many([b"%d" % (3 * number + n) for n in range(3)])
        topic.sync()
    log = next(path.rglob("*.log"))
    content = bytearray(log.read_bytes())
    at = content.rindex(b"345")  # the first may be in the time at which the topic was made
    content[at] ^= 1
    log.write_bytes(content)
    esker.repair(path)
    return str(path)


@both
def test_a_loss_fails_is_skipped_or_is_a_row(spark: SparkSession, gapped: str, kind: str) -> None:
    with reached(gapped, kind) as place:
        _check_loss(spark, place)


def _check_loss(spark: SparkSession, gapped: str) -> None:
    with pytest.raises(Exception, match=r"offsets 3 to 5 cannot be read: corrupt.*onDataLoss=skip"):
        load(spark, gapped).collect()
    kept = load(spark, gapped, failOnDataLoss="false").orderBy("offset").collect()
    assert [bytes(row.value) for row in kept] == [b"0", b"1", b"2", b"6", b"7", b"8"]
    rows = load(spark, gapped, onDataLoss="gapRow").orderBy("offset").collect()
    assert len(rows) == 7
    assert rows[3].value is None
    assert rows[3].gap.asDict() == {"first": 3, "last": 5, "reason": "corrupt"}
    assert {row.gap for row in rows if row.value is not None} == {None}


@both
def test_what_retention_took_is_told_with_its_bounds(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=10, cap_records=20)
        for _ in range(6):
            topic.append_many([b"x"] * 10)
            store.tick()
    with reached(tmp_path / "data", kind) as place:
        _check_evicted(spark, place)


def _check_evicted(spark: SparkSession, data: str) -> None:
    assert load(spark, data).count() == 20, "who wants the earliest is not told of what was before"
    from_five: dict[str, str] = {"startingOffsets": '{"t":{"0":5}}'}
    with pytest.raises(Exception, match="offsets 5 to 39 cannot be read: evicted"):
        load(spark, data, **from_five).count()
    assert load(spark, data, onDataLoss="skip", **from_five).count() == 20
    rows = load(spark, data, onDataLoss="gapRow", **from_five).orderBy("offset").collect()
    assert rows[0].gap.asDict() == {"first": 5, "last": 39, "reason": "evicted"}
    assert [row.offset for row in rows[1:]] == list(range(40, 60))


@both
def test_what_was_deleted_by_tag_is_left_out_and_nobody_is_told(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with reached(tmp_path / "data", kind) as data, esker.open(data) as store:
        topic = store.create("t", segment_records=10)
        for first in range(0, 60, 10):
            topic.append_many(
                [esker.Record(b"%d" % n, tag=f"t{n % 3}") for n in range(first, first + 10)]
            )
        topic.delete(tag="t1")
        topic.delete(tag_prefix="t", before=20)
        kept = [record.offset for record in topic.read()]
        for options in ({}, {"startingOffsets": '{"t":{"0":5}}'}, {"minPartitions": "5"}):
            rows = load(spark, data, **options).orderBy("offset").collect()
            assert [row.offset for row in rows] == kept
            assert [bytes(row.value) for row in rows] == [b"%d" % n for n in kept]
        assert load(spark, data, includeTag="true").where("tag = 't1'").count() == 0
        topic.delete(tag="t2")
        assert load(spark, data).count() == len(topic)


def test_segments_in_a_cold_store_are_read_and_may_lie_elsewhere_by_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    with esker.open(data, background=False, cold=tmp_path / "cold") as store:
        topic = store.create("t", segment_records=10)
        for first in range(0, 60, 10):
            numbers = range(first, first + 10)
            topic.append_many([esker.Record(b"%500d" % n, tag=f"t{n % 3}") for n in numbers])
            store.tick()
        assert store.tier("t", "cold", before=40).segments == 4
        topic.delete(tag="t1")
        topic.delete(15)
        expected = [(record.offset, record.value) for record in topic.read()]
    (tmp_path / "cold").rename(tmp_path / "moved")
    with pytest.raises(Exception, match=r"topic 't' shard 0.*cold store.*cold"):
        load(spark, data).collect()
    assert found(load(spark, data, cold=str(tmp_path / "moved"))) == expected
    (tmp_path / "moved").rename(tmp_path / "cold")
    assert found(load(spark, data)) == expected
    late = load(spark, data, startingOffsets='{"t":{"0":32}}', pushFilters="true")
    assert found(late.where("offset < 50")) == [e for e in expected if 32 <= e[0] < 50]


def found(rows: Any) -> list[tuple[int, bytes]]:
    return [(row.offset, bytes(row.value)) for row in rows.orderBy("offset").collect()]


def test_what_spark_wrote_is_evicted_and_moved_like_the_rest(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    with esker.open(data, background=False, cold=tmp_path / "cold") as store:
        store.create("t", cap_records=20, hot_segments=1)
        store.create("full", cap_records=15, discard="reject")
    for batch in range(4):
        rows = spark.range(10).selectExpr(f"LPAD({batch} * 10 + id, 500, '0') AS value")
        rows.coalesce(1).write.format("esker").mode("append").option("topic", "t").save(data)
    with esker.open(data, background=False, cold=tmp_path / "cold") as store:
        store["t"].append(b"last", wait=True)
        [gone] = store.retain()
        assert (gone.first, gone.last, gone.reason) == (0, 19, "cap_records")
        store.tick()
        assert store.maintenance().tiers.moved_segments == 1
        assert next(store["t"].read(5, gaps="yield")) == esker.Gap("t", 0, 5, 19, "evicted")
    assert [int(row[1]) for row in found(load(spark, data))[:-1]] == [*range(20, 40)]
    rows = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="cap_records"):
        rows.write.format("esker").mode("append").option("topic", "full").save(data)
    with esker.open(data, mode="r") as store:
        assert len(store["full"]) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "tt"}, "no topic 'tt' in"),
        ({"startingOffset": "1"}, "did you mean 'startingOffsets'"),
        ({"assign": "x"}, "exactly one of subscribe"),
        ({"startingOffsets": "999999"}, "there is no offset 999999"),
        ({"maxOffsetsPerTrigger": "1"}, "use spark.readStream"),
        ({"kafka.bootstrap.servers": "x"}, "there is no broker"),
    ],
)
def test_mistakes_are_told_on_the_driver(
    spark: SparkSession, place: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        load(spark, place, **options).count()


def test_what_is_no_store_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception, match="there is no Esker store at"):
        load(spark, str(tmp_path / "missing")).count()
    with pytest.raises(Exception, match="file"):
        load(spark, str(tmp_path / "file")).count()
    with pytest.raises(Exception, match="'ftp://host/data' cannot be opened"):
        load(spark, "ftp://user:word@host/data").count()


@pytest.mark.damages
def test_a_store_of_a_later_version_is_told_and_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"x")
    identity = tmp_path / "data" / "esker.store"
    content = bytearray(identity.read_bytes())
    content[8:10] = struct.pack("<H", catalog.VERSION + 1)
    content[40:48] = struct.pack("<Q", checksum(bytes(content[:40])))
    identity.write_bytes(content)
    told = "was written by a later Esker.*Install a newer esker"
    with pytest.raises(Exception, match=told):
        load(spark, str(tmp_path / "data")).count()
    with pytest.raises(Exception, match=told):
        spark.range(1).selectExpr("'x' AS value").write.format("esker").mode("append").option(
            "topic", "t"
        ).save(str(tmp_path / "data"))
    assert identity.read_bytes() == content
