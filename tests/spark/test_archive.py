"""`archive` and `table` in a real Spark: the same records, whatever happens in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
import esker.spark
from esker.errors import DataLoss, InvalidOption, StorageError, TopicNotFound, WriterBusy
from esker.format import names
from esker.spark import jobs, plan
from esker.spark.jobs import running
from esker.storage.archive import Archive
from esker.storage.files import SYSTEM_FILES
from tests.helpers import Threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = 1_700_000_000_000_000
DAY = 86_400_000_000
TOPIC = "orders:eu"
RICH = ["key", "value", "topic", "partition", "offset", "timestamp", "headers", "tag", "node"]


def records(first: int, count: int) -> list[esker.Record]:
    """All that a record can have; a day is about 700 records, and some are of other days."""
    return [
        esker.Record(
            b"value %d" % n, key=b"k%d" % (n % 5) if n % 4 else None,
            tag=f"tag-{n % 3}" if n % 2 else None, node="eu" if n % 7 else None,
            headers={"h": b"%d" % n} if n % 3 == 0 else None,
            timestamp=T0 + n * DAY // 700 - (3 * DAY if n % 97 == 0 else 0),
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def fill(path: Path, first: int = 0, count: int = 2000, *, topic: str = TOPIC) -> None:
    """Two shards; full segments of 250 records are sealed, the last is being written."""
    with esker.open(path, background=False) as store:
        found = store.create(topic, shards=2, segment_records=250, exist_ok=True)
        for begin in range(first, first + count, 100):
            found.append_many(records(begin, 100))
        store.tick()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


@pytest.fixture
def data(tmp_path: Path) -> str:
    fill(tmp_path / "data")
    return str(tmp_path / "data")


def told(rows: DataFrame) -> Any:
    """How many rows, and a hash over all that is in them."""
    parts = ["to_json(headers)" if name == "headers" else name for name in RICH]
    made = f"bit_xor(xxhash64({', '.join(parts)})) AS hash"
    return rows.selectExpr("count(*) AS n", made).collect()[0]


def log(spark: SparkSession, data: str, topic: str = TOPIC, **options: str) -> Any:
    switches = {"includeHeaders": "true", "includeTag": "true", "includeNode": "true"}
    reader = spark.read.format("esker").options(subscribe=topic, **switches, **options)
    return told(reader.load(data))


def table(spark: SparkSession, data: str, topic: str = TOPIC, **options: Any) -> DataFrame:
    return esker.spark.table(spark, data, topic, headers=True, tag=True, node=True, **options)


def lying(data: str, topic: str = TOPIC) -> set[str]:
    """What lies in an archive and what its manifest names must be the same."""
    archive = Archive(SYSTEM_FILES, f"{data}/archive", topic)
    manifest = archive.load()
    assert manifest is not None
    there = {f"{folder}/{name}" for folder, name in archive._lying()}
    assert there == {file.path for file in manifest.files} | set(manifest.replaced)
    return there


def test_the_archive_holds_what_the_log_holds(spark: SparkSession, data: str) -> None:
    expected = log(spark, data)
    assert expected.n == 2000
    heard: list[Any] = []
    done = jobs.archive(spark, data, TOPIC, target_bytes=20_000, progress=heard.append)
    assert done.ok
    assert done.rows == done.total_rows == sum(done.ends.values())
    assert 1000 <= done.rows < 2000, "what is not sealed waits"
    assert done.files > 10, "several days in one span are several files"
    assert heard[-1].done == heard[-1].total
    assert f"{TOPIC}: archived {done.rows:,} records in {done.files} files" in str(done)

    both = table(spark, data)
    assert told(both) == expected
    assert both.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>,"
        "tag:string,node:string>"
    )
    assert both.select("timestampType").distinct().collect() == [(0,)]

    again = jobs.archive(spark, data, TOPIC, target_bytes=20_000)
    assert (again.rows, again.files, again.ends) == (0, 0, done.ends)
    assert "nothing to archive" in str(again)

    native = spark.read.parquet(f"{data}/archive")
    ends = f'{{"{TOPIC}": {{"0": {done.ends[0]}, "1": {done.ends[1]}}}}}'
    assert told(native) == log(spark, data, endingOffsets=ends)
    with_utc = spark.newSession()
    with_utc.conf.set("spark.sql.session.timeZone", "UTC")
    wrong = with_utc.read.parquet(f"{data}/archive").filter("date != to_date(timestamp)")
    assert wrong.count() == 0
    before = lying(data)
    plan.let_go()
    assert esker.verify(data).problems == []
    esker.repair(data)
    assert lying(data) == before, "a repair takes an archive for a stranger"


def test_what_was_deleted_by_tag_is_not_archived_and_the_books_balance(
    spark: SparkSession, data: str
) -> None:
    with esker.open(data) as store:
        gone = store[TOPIC].delete(tag="tag-1")
        assert gone > 300
        store[TOPIC].delete(tag_prefix="tag", before=300, shard=1)
    expected = log(spark, data)
    done = jobs.archive(spark, data, TOPIC)
    assert done.ok
    assert done.rows < sum(done.ends.values()) - 100
    assert not done.gaps
    assert told(table(spark, data)) == expected
    manifest = Archive(SYSTEM_FILES, f"{data}/archive", TOPIC).load()
    assert manifest is not None
    assert done.rows + sum(each.deleted for each in manifest.shards) == sum(done.ends.values())
    fill(Path(data), 2000, 1000)
    again = jobs.archive(spark, data, TOPIC, verify=True)
    assert again.ok
    assert told(table(spark, data)) == log(spark, data)


def test_runs_and_merges_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path, data = tmp_path / "data", str(tmp_path / "data")
    merged = 0
    for turn in range(4):
        fill(path, turn * 1000, 1000)
        done = jobs.archive(spark, data, TOPIC)
        merged += done.merged
        expected = log(spark, data)
        assert expected.n == (turn + 1) * 1000
        assert told(table(spark, data)) == expected
        lying(data)
    assert merged > 0
    jobs.archive(spark, data, TOPIC, verify=True)
    files = lying(data)
    assert not any(path.endswith(".tmp") for path in files)
    assert told(spark.read.parquet(f"{data}/archive")).n == done.total_rows
    plain = jobs.archive(spark, data, TOPIC, compact=False)
    assert plain.merged == 0


@pytest.mark.parametrize("begins", ["library", "job"])
def test_the_job_and_the_library_continue_each_others_archive(
    spark: SparkSession, tmp_path: Path, begins: str
) -> None:
    path, data = tmp_path / "data", str(tmp_path / "data")
    library = begins == "library"
    merged = 0
    for turn in range(4):
        fill(path, turn * 1000, 1000)
        with esker.open(path, mode="r") as store:
            if library:
                done = store[TOPIC].archive(target_bytes=20_000)
            else:
                done = jobs.archive(spark, data, TOPIC, target_bytes=20_000)
            assert done.ok
            assert done.rows > 500
            merged += done.merged
            assert told(table(spark, data)) == log(spark, data)
            archived = list(esker.open_archive(f"{data}/archive", TOPIC).read())
            assert archived == [
                record
                for shard, end in done.ends.items()
                for record in store[TOPIC].read(0, end, shard=shard)
            ]
        plan.let_go()
        lying(data)
        library = not library
    assert merged > 0
    assert jobs.archive(spark, data, TOPIC, verify=True).rows == 0
    with esker.open(path, mode="r") as store:
        assert store[TOPIC].archive(verify=True).rows == 0


def test_filters_reach_both_halves(spark: SparkSession, data: str) -> None:
    done = jobs.archive(spark, data, TOPIC)
    both = esker.spark.table(spark, data, TOPIC)
    end = done.ends[1]
    some = both.filter(f"partition = 1 AND offset BETWEEN {end - 5} AND {end + 4}")
    assert [row.offset for row in some.orderBy("offset").collect()] == [*range(end - 5, end + 5)]
    explained = some._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(partition" in explained
    assert f"GreaterThanOrEqual(offset,{end - 5})" in explained
    optimized = some._jdf.queryExecution().optimizedPlan().toString()
    assert optimized.startswith("Union")
    assert optimized.count("Filter ") == 2, "above each half, and not above both"
    # the log alone is narrowed as well: nothing of it is left, and the rest is not read
    early = both.filter(f"offset < {end - 5} AND partition = 1")
    assert early.count() == end - 5
    in_session = spark.newSession()
    in_session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert esker.spark.table(in_session, data, TOPIC).filter("offset = 3").count() == 2


def test_without_an_archive_it_is_the_log(spark: SparkSession, data: str) -> None:
    assert told(table(spark, data)) == log(spark, data)
    with pytest.raises(TopicNotFound, match="no topic 'other'"):
        esker.spark.table(spark, data, "other")
    with pytest.raises(InvalidOption, match="fail or skip"):
        esker.spark.table(spark, data, TOPIC, on_data_loss="gapRow")


def test_an_archive_may_be_elsewhere(spark: SparkSession, data: str, tmp_path: Path) -> None:
    place = str(tmp_path / "far {a,b} [1]*" / "away")
    done = jobs.archive(spark, data, TOPIC, archive=place, compression="snappy")
    assert done.archive == place
    assert not (tmp_path / "data" / "archive").exists()
    assert told(table(spark, data, archive=place)) == log(spark, data)
    with pytest.raises(InvalidOption, match="one of zstd, snappy, none"):
        jobs.archive(spark, data, TOPIC, compression="lzo")


class Killed(BaseException):
    """The driver is gone."""


@pytest.mark.crash
@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_a_driver_that_dies_goes_on_from_there(
    spark: SparkSession, data: str, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    expected = log(spark, data)
    monkeypatch.setattr(running, "TASKS_PER_CORE", 2)
    original = Archive.commit
    calls = 0

    def commit(self: Archive, manifest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call + 1 and call % 2:
            raise Killed  # before: the files are there, no manifest names them
        made = original(self, manifest)
        if calls == call + 1:
            raise Killed
        return made

    monkeypatch.setattr(Archive, "commit", commit)
    with pytest.raises(Killed):
        jobs.archive(spark, data, TOPIC, target_bytes=8_000)
    monkeypatch.undo()
    if call:
        assert told(table(spark, data)) == expected
    done = jobs.archive(spark, data, TOPIC, target_bytes=8_000)
    assert done.total_rows == sum(done.ends.values())
    assert told(table(spark, data)) == expected
    lying(data)


def test_one_archiver_at_a_time(spark: SparkSession, data: str) -> None:
    archive = Archive(SYSTEM_FILES, f"{data}/archive", TOPIC)
    with archive.held("noon"), pytest.raises(WriterBusy) as caught:
        jobs.archive(spark, data, TOPIC)
    assert f"process {os.getpid()} is archiving topic 'orders:eu'" in str(caught.value)
    assert jobs.archive(spark, data, TOPIC).rows


def test_a_topic_that_was_made_anew_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path, data = tmp_path / "data", str(tmp_path / "data")
    fill(path, topic="t")
    done = jobs.archive(spark, data, "t")
    with esker.open(path) as store:
        store.delete("t")
    fill(path, topic="t")
    with pytest.raises(InvalidOption, match=r"an earlier topic 't'.*archive=\.\.\."):
        jobs.archive(spark, data, "t")
    with pytest.raises(InvalidOption, match="an earlier topic 't'"):
        esker.spark.table(spark, data, "t")
    assert spark.read.parquet(f"{data}/archive").count() == done.rows
    new = str(tmp_path / "new")
    assert jobs.archive(spark, data, "t", archive=new).rows == done.rows


def test_a_gap_is_named_and_refused_or_skipped(spark: SparkSession, tmp_path: Path) -> None:
    path, data = tmp_path / "data", str(tmp_path / "data")
    with esker.open(path, background=False) as store:
        topic = store.create("t", segment_records=9)
        for number in range(8):
            topic.append_many([b"%02d" % (3 * number + n) for n in range(3)])
        topic.sync()
        store.tick()
    sealed = sorted(path.rglob("*.seg"))[1]
    content = bytearray(sealed.read_bytes())
    content[content.index(b"091011")] ^= 1
    sealed.write_bytes(content)

    stuck = jobs.archive(spark, data, "t", target_bytes=1)
    assert not stuck.ok
    assert (stuck.rows, stuck.ends) == (9, {0: 9})
    assert "PROBLEM: topic 't' shard 0: " in str(stuck)
    assert "offsets 9..17" in str(stuck)

    plan.let_go()
    esker.repair(path)
    done = jobs.archive(spark, data, "t")
    assert done.ok
    assert [(gap.first, gap.last, gap.reason) for gap in done.gaps] == [(9, 17, "corrupt")]
    assert done.total_rows + 9 == done.ends[0]
    assert "gap: shard 0, offsets 9 to 17: corrupt" in str(done)
    with pytest.raises(DataLoss, match=r"offsets 9 to 17 cannot be read: corrupt.*skip"):
        esker.spark.table(spark, data, "t")
    rows = esker.spark.table(spark, data, "t", on_data_loss="skip").orderBy("offset").collect()
    assert [row.offset for row in rows] == [*range(9), *range(18, 24)]


def test_what_was_deleted_before_it_was_archived_is_a_gap(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, data = tmp_path / "data", str(tmp_path / "data")
    fill(path, topic="t")
    with esker.open(path) as store:
        store["t"].delete(100, shard=0)
    first = jobs.archive(spark, data, "t")
    assert first.gaps == [], "what was deleted before there was an archive is no loss"
    end = first.ends[0]
    stale = esker.spark.table(spark, data, "t")
    fill(path, 2000, 2000, topic="t")
    with esker.open(path) as store:
        store["t"].delete(end + 100, shard=0)
    named = rf"offsets {end} to {end + 99} cannot be read: deleted"
    with pytest.raises(DataLoss, match=named):
        esker.spark.table(spark, data, "t")
    with pytest.raises(Exception, match=named):  # made before, and read after
        stale.count()
    second = jobs.archive(spark, data, "t")
    assert [(gap.first, gap.last) for gap in second.gaps] == [(end, end + 99)]
    with pytest.raises(DataLoss, match=named):
        esker.spark.table(spark, data, "t")
    rest = esker.spark.table(spark, data, "t", on_data_loss="skip")
    assert rest.count() == 4000 - 100 - 100


def test_a_damaged_or_missing_file_is_named(spark: SparkSession, data: str) -> None:
    jobs.archive(spark, data, TOPIC, target_bytes=20_000, compact=False)
    first, second = sorted(Path(data, "archive").rglob("*.parquet"))[:2]
    content = bytearray(first.read_bytes())
    content[200] ^= 1
    first.write_bytes(content)
    found = jobs.archive(spark, data, TOPIC, verify=True, compact=False)
    assert not found.ok
    assert found.problems == [f"{first} is not what was archived: its checksum does not match"]
    second.unlink()
    with pytest.raises(StorageError, match=r"is damaged: .*is missing\. Restore the file"):
        esker.spark.table(spark, data, TOPIC)
    assert len(jobs.archive(spark, data, TOPIC, verify=True, compact=False).problems) == 2


def test_a_shard_that_cannot_be_archived_does_not_hold_up_the_others(
    spark: SparkSession, data: str
) -> None:
    folder = Path(data, "archive", names.archived_topic(TOPIC))
    folder.mkdir(parents=True)
    (folder / "partition=1").write_text("in the way")
    found = jobs.archive(spark, data, TOPIC)
    assert not found.ok
    assert list(found.ends) == [0]
    assert "not a directory" in found.problems[0] or "a file stands" in found.problems[0]
    (folder / "partition=1").unlink()
    assert list(jobs.archive(spark, data, TOPIC).ends) == [0, 1]
    assert told(table(spark, data)) == log(spark, data)


def test_a_table_is_the_same_prefix_while_all_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer appends, the archive grows and is merged: a table is the log up to some end."""
    path, data = tmp_path / "data", str(tmp_path / "data")
    fill(path)
    with esker.open(path, mode="r") as store:
        ends = [store[TOPIC].end(0), store[TOPIC].end(1)]
    begun = f"(partition = 0 AND offset < {ends[0]} OR partition = 1 AND offset < {ends[1]})"
    parts = ", ".join("to_json(headers)" if name == "headers" else name for name in RICH)
    looking = [
        f"count_if({begun}) AS n", f"bit_xor(xxhash64({parts})) FILTER (WHERE {begun}) AS hash",
        "count(*) AS rows", "max(offset) FILTER (WHERE partition = 0) AS last0",
        "max(offset) FILTER (WHERE partition = 1) AS last1",
    ]  # fmt: skip
    expected = log(spark, data)
    stop = False

    def write() -> None:
        with esker.open(path) as store:
            first = 2000
            while not stop:
                store[TOPIC].append_many(records(first, 50))
                first += 50
                time.sleep(0.05)

    monkeypatch.setattr(running, "TASKS_PER_CORE", 2)
    threads = Threads()
    threads.start(write)
    looks: list[Any] = []

    def look(_: Any) -> None:
        (found,) = table(spark, data).selectExpr(*looking).collect()
        assert found.rows == found.last0 + found.last1 + 2, "one row for each offset"
        looks.append(found)

    try:
        for _ in range(2):
            jobs.archive(spark, data, TOPIC, target_bytes=20_000, progress=look)
    finally:
        stop = True
        threads.join()
    assert len(looks) > 3
    assert {(found.n, found.hash) for found in looks} == {(expected.n, expected.hash)}
    counts = [found.rows for found in looks]
    assert counts == sorted(counts)
    assert counts[-1] > 2000
    assert told(table(spark, data)) == log(spark, data)
