"""`spark.readStream.format("esker")`: every record once, in batches that can be repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
from esker.spark import plan
from esker.spark.wanted import COLUMNS, wanted
from tests.spark.places import BOTH, reached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from esker.spark.stream import EskerStreamReader


class Stream:
    """A query that is started again and again from one checkpoint, and what its batches held."""

    def __init__(self, spark: SparkSession, folder: Path, data: str) -> None:
        self.spark = spark
        self.data = data
        self.checkpoint = folder / "checkpoint"
        self.batches: list[list[tuple[str, int, int]]] = []

    def run(self, **options: Any) -> list[dict[str, Any]]:
        """All that is there now; returns how Spark saw it."""
        options = {"subscribe": "t", "startingOffsets": "earliest", **options}
        if options["subscribe"] is None:
            del options["subscribe"]
        rows = self.spark.readStream.format("esker").options(**options).load(self.data)

        def keep(frame: Any, number: int) -> None:
            found = frame.select("topic", "partition", "offset").collect()
            self.batches.append([(row.topic, row.partition, row.offset) for row in found])

        query = (
            rows.writeStream.foreachBatch(keep).trigger(availableNow=True)
            .option("checkpointLocation", str(self.checkpoint)).start()
        )  # fmt: skip
        try:
            query.awaitTermination(60)
            return [json.loads(each.json) for each in query.recentProgress]
        finally:
            query.stop()

    @property
    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.batches for row in batch)


@pytest.fixture(params=BOTH)
def stream(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    with reached(tmp_path / "data", request.param) as data:
        yield Stream(spark, tmp_path, data)
        plan.let_go()


in_a_directory = pytest.mark.parametrize("stream", ["directory"], indirect=True)


def test_every_record_comes_once_over_restarts(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        topic = store.create("t", shards=2, segment_records=500)
        for _ in range(4):
            topic.append_many([b"x"] * 500)
        topic.sync()
        stream.run(maxOffsetsPerTrigger="700")
        assert [len(batch) for batch in stream.batches] == [700, 700, 600]
        topic.append_many([b"y"] * 50, wait=True)
        progress = stream.run()
        assert [len(batch) for batch in stream.batches] == [700, 700, 600, 50]
        stream.run()
    assert len(stream.batches) == 4
    assert stream.rows == [("t", 0, n) for n in range(topic_end(stream, 0))] + [
        ("t", 1, n) for n in range(topic_end(stream, 1))
    ]
    assert offsets(progress[-1], "endOffset")["t"] == {
        "0": topic_end(stream, 0),
        "1": topic_end(stream, 1),
    }


def offsets(progress: dict[str, Any], name: str) -> dict[str, Any]:
    told = progress["sources"][0][name]
    found: dict[str, Any] = json.loads(told) if isinstance(told, str) else told
    return found


def topic_end(stream: Stream, shard: int) -> int:
    with esker.open(stream.data, mode="r") as store:
        return store["t"].end(shard)


def test_shards_share_a_batch_by_what_they_have_waiting(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        topic = store.create("t", shards=2)
        with store.stage("t", 0) as few, store.stage("t", 1) as many:
            few.append_many([b"x"] * 100)
            many.append_many([b"x"] * 900)
        store.attach("w", 1, few.tickets + many.tickets)
        assert (topic.end(0), topic.end(1)) == (100, 900)
    progress = stream.run(maxOffsetsPerTrigger="200")
    assert len(stream.batches) == 5
    behind = [offsets(each, "latestOffset")["t"] for each in progress if each["numInputRows"]]
    assert behind == [{"0": 100, "1": 900}] * 5, "Spark shows how far there was to go"
    assert offsets(progress[0], "endOffset")["t"] == {"0": 20, "1": 180}
    first = [sum(row[1] == shard for row in stream.batches[0]) for shard in (0, 1)]
    assert first == [20, 180]


def test_new_topics_are_picked_up_from_their_beginning(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t1"].append_many([b"x"] * 3, wait=True)
        stream.run(subscribe=None, subscribePattern="t.*")
        store["t2"].append_many([b"y"] * 2, wait=True)
        store["other"].append(b"z", wait=True)
        stream.run(subscribe=None, subscribePattern="t.*")
    assert stream.rows == [("t1", 0, 0), ("t1", 0, 1), ("t1", 0, 2), ("t2", 0, 0), ("t2", 0, 1)]


def test_a_limit_in_bytes(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        topic = store["t"]
        for _ in range(10):
            topic.append_many([b"x" * 1000] * 100)
        topic.sync()
        stream.run(maxBytesPerTrigger=str(250_000))
    assert len(stream.rows) == 1000
    assert 3 <= len(stream.batches) <= 6


def test_a_planned_batch_is_the_same_when_it_is_read_again(stream: Stream) -> None:
    """The driver died behind its plan: it plans no more, and reads what was planned."""
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 10, wait=True)
        stream.run()
        store["t"].append_many([b"y"] * 5, wait=True)
        stream.run()
        for commit in (stream.checkpoint / "commits").glob("*1"):
            commit.unlink()
        store["t"].append_many([b"z"] * 7, wait=True)
        stream.run()
    assert [len(batch) for batch in stream.batches] == [10, 5, 5, 7]
    assert stream.batches[1] == stream.batches[2]


def test_the_first_batch_remembers_where_latest_was(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"old"] * 10, wait=True)
        reader = reader_of(stream, startingOffsets="latest")
        start = reader.initialOffset()
        store["t"].append_many([b"new"] * 4, wait=True)
        end = reader.latestOffset(start, all_of_it())
        store["t"].append_many([b"later"] * 4, wait=True)
        again = reader_of(stream, startingOffsets="latest")
        assert again.initialOffset() != start
        parts = again.partitions(again.initialOffset(), json.loads(json.dumps(end)))
        assert [(s.first, s.end) for part in parts for s in part.task.spans] == [(10, 14)]  # type: ignore[attr-defined]


def test_records_that_are_gone_are_a_loss_and_not_a_shorter_batch(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        topic = store.create("t", segment_records=10)
        for _ in range(4):
            topic.append_many([b"x"] * 10)
        topic.sync()
        reader = reader_of(stream)
        start = reader.initialOffset()
        end = reader.latestOffset(start, all_of_it())
        topic.delete(25)
        (part,) = reader.partitions(start, end)
        with pytest.raises(esker.DataLoss, match="offsets 0 to 24 cannot be read"):
            list(reader.read(part))


@in_a_directory
def test_a_planned_batch_that_retention_overtakes_names_what_is_lost(stream: Stream) -> None:
    with esker.open(stream.data, background=False) as store:
        topic = store.create("t", segment_records=10, cap_records=20)
        topic.append_many([b"x"] * 10)
        topic.append_many([b"x"] * 10, wait=True)
        reader = reader_of(stream)
        start = reader.initialOffset()
        end = reader.latestOffset(start, all_of_it())
        for _ in range(2):
            topic.append_many([b"y"] * 10, wait=True)
            store.tick()
        assert topic.earliest() == 20
        parts = reader.partitions(start, end)
        with pytest.raises(esker.DataLoss, match="offsets 0 to 19 cannot be read: evicted"):
            _ = [rows for part in parts for rows in reader.read(part)]


def test_a_planned_batch_goes_without_what_was_deleted_by_tag(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        topic = store.create("t", segment_records=10)
        topic.append_many([esker.Record(b"x", tag="a")] * 10)
        topic.append_many([esker.Record(b"y", tag="b")] * 10, wait=True)
        reader = reader_of(stream)
        start = reader.initialOffset()
        end = reader.latestOffset(start, all_of_it())
        topic.delete(tag="a")
        found = [
            row for part in reader.partitions(start, end) for rows in reader.read(part)
            for row in rows.column("offset").to_pylist()
        ]  # fmt: skip
        assert found == list(range(10, 20))
        topic.delete(tag="b")
        parts = reader.partitions(start, end)
        assert sum(rows.num_rows for part in parts for rows in reader.read(part)) == 0


def test_a_topic_that_was_made_anew_is_told(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 5, wait=True)
        reader = reader_of(stream)
        start = reader.initialOffset()
        end = reader.latestOffset(start, all_of_it())
        del store["t"]
        store["t"].append_many([b"y"] * 9, wait=True)
        with pytest.raises(esker.DataLoss, match="recreated when the query was at offset 5"):
            reader.latestOffset(end, all_of_it())
        with pytest.raises(esker.DataLoss, match="offsets 0 to 4 cannot be read: recreated"):
            reader.partitions(start, end)


@pytest.mark.parametrize("how", ["skip", "gapRow"])
def test_a_stream_goes_on_with_a_topic_that_was_made_anew_from_its_beginning(
    stream: Stream, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 5, wait=True)
        reader = reader_of(stream, onDataLoss=how)
        first = reader.initialOffset()
        start = reader.latestOffset(first, all_of_it())
        store["t"].append_many([b"x"] * 3, wait=True)
        planned = reader.latestOffset(start, all_of_it())
        del store["t"]
        store["t"].append_many([b"y"] * 9, wait=True)
        end = reader.latestOffset(start, all_of_it())
        lost = (5, 7, "recreated")
        assert rows_of(reader, start, end) == ([lost] if how == "gapRow" else []) + [*range(9)]
        assert rows_of(reader, start, end)[-9:] == [*range(9)], "and again the same"
        assert rows_of(reader, start, planned) == ([lost] if how == "gapRow" else [])
        assert ("offsets 5..7 (3 at most) are gone (recreated)" in caplog.text) == (how == "skip")
        assert reader.latestOffset(end, all_of_it()) == end, "it is told once"
        store["t"].append(b"z", wait=True)
        assert rows_of(reader, end, reader.latestOffset(end, all_of_it())) == [9]
        del store["t"]
        gone = (5, 7, "the topic was deleted")
        assert rows_of(reader, start, planned) == ([gone] if how == "gapRow" else [])


def rows_of(reader: EskerStreamReader, start: Any, end: Any) -> list[Any]:
    """The offsets of a batch, and its gaps."""
    found = []
    for part in reader.partitions(start, end):
        for rows in reader.read(part):
            for row in rows.to_pylist():
                gap = row.get("gap")
                found.append(tuple(gap.values()) if gap else row["offset"])
    return found


@in_a_directory
def test_cold_segments_and_what_retention_takes_of_them(stream: Stream, tmp_path: Path) -> None:
    with esker.open(stream.data, background=False, cold=tmp_path / "cold") as store:
        topic = store.create("t", segment_records=10, cap_records=20)
        for _ in range(2):
            topic.append_many([b"x" * 500] * 10, wait=True)
        store.tick()
        assert store.tier("t", "cold").segments == 1
        reader = reader_of(stream)
        start = reader.initialOffset()
        end = reader.latestOffset(start, all_of_it())
        assert rows_of(reader, start, end) == [*range(20)]
        for _ in range(2):
            topic.append_many([b"y"] * 10, wait=True)
            store.tick()
        with pytest.raises(esker.DataLoss, match="offsets 0 to 19 cannot be read: evicted"):
            rows_of(reader, start, end)


def test_few_records_wait_for_more_or_for_their_time(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 5, wait=True)
        reader = reader_of(stream, minOffsetsPerTrigger="10", maxTriggerDelay="0ms")
        start = reader.initialOffset()
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) != start, "time is over"
        patient = reader_of(stream, minOffsetsPerTrigger="10")
        start = patient.initialOffset()
        assert patient.latestOffset(start, patient.getDefaultReadLimit()) == start
        store["t"].append_many([b"x"] * 5, wait=True)
        assert patient.latestOffset(start, patient.getDefaultReadLimit())["t"] == {"0": 10}


def test_a_stream_with_an_end_reads_up_to_there_and_no_further(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 10, wait=True)
        stream.run(endingOffsets="25", maxOffsetsPerTrigger="7")
        assert [len(batch) for batch in stream.batches] == [7, 3]
        store["t"].append_many([b"y"] * 30, wait=True)
        stream.run(endingOffsets="25")
        stream.run(endingOffsets="25")
        assert [len(batch) for batch in stream.batches] == [7, 3, 15]
        stream.run(endingOffsets='{"t": {"0": 30}}')
        stream.run(endingOffsets="3")  # before where the stream is
    assert stream.rows == [("t", 0, n) for n in range(30)]


def test_places_of_the_moment_are_looked_up_at_each_start(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 10, wait=True)
        for end, first, second in [("latest", 10, 15), ("-4", 6, 11)]:
            reader = reader_of(stream, endingOffsets=end)
            start = reader.initialOffset()
            told = reader.latestOffset(start, all_of_it())
            assert told["t"] == {"0": first}
            store["t"].append_many([b"y"] * 5, wait=True)
            assert reader.latestOffset(told, all_of_it()) == told, "the end does not move"
            assert reader.reportLatestOffset() == {"t": {"0": first}}
            again = reader_of(stream, endingOffsets=end)
            assert again.latestOffset(start, all_of_it())["t"] == {"0": second}
            del store["t"]
            store["t"].append_many([b"x"] * 10, wait=True)


def test_a_time_that_is_still_to_come_ends_a_stream_when_it_comes(stream: Stream) -> None:
    records = [esker.Record(b"x", timestamp=1_000_000 * n) for n in range(20)]
    with esker.open(stream.data) as store:
        store["t"].append_many(records[:5], wait=True)
        for options in ({"endingTimestamp": "8000"}, {"endingOffsets": "@1970-01-01T00:00:08"}):
            reader = reader_of(stream, **options)
            start = reader.initialOffset()
            told = reader.latestOffset(start, all_of_it())
            assert told["t"] == {"0": min(8, store["t"].end())}
        store["t"].append_many(records[5:], wait=True)
        assert reader.latestOffset(told, all_of_it())["t"] == {"0": 8}
        empty = reader_of(stream, endingOffsets="@1960-01-01")
        assert empty.latestOffset(start, all_of_it()) == start
        late = reader_of(stream, endingOffsetsByTimestamp='{"t": {"0": 3000, "1": 3000}}')
        with pytest.raises(esker.InvalidOption, match="names shard 1 of topic 't'"):
            late.latestOffset(start, all_of_it())


def test_a_topic_that_comes_later_has_its_own_end(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store["t1"].append_many([b"x"] * 3, wait=True)
        for end, later in [("latest", 0), ("4", 4)]:
            reader = reader_of(stream, subscribe="", subscribePattern="t.*", endingOffsets=end)
            told = reader.latestOffset(reader.initialOffset(), all_of_it())
            store["t2"].append_many([b"y"] * 6, wait=True)
            assert reader.latestOffset(told, all_of_it()).get("t2") == {"0": later}
            del store["t2"]


def reader_of(stream: Stream, **options: str) -> EskerStreamReader:
    from pyspark.sql.types import StructType

    from esker.spark.stream import EskerStreamReader

    given = {"path": stream.data, "subscribe": "t", "startingOffsets": "earliest", **options}
    given = {name: text for name, text in given.items() if text}
    asked = wanted(given, now_us=0, streaming=True)._replace(columns=("offset",))
    fields = [name for name in ("offset", "gap") if name == "offset" or asked.on_loss == "gapRow"]
    schema = StructType.fromDDL(", ".join(f"{name} {COLUMNS[name]}" for name in fields))
    return EskerStreamReader(asked, schema)


def all_of_it() -> Any:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return ReadAllAvailable()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


def test_a_group_shows_how_far_a_stream_is(stream: Stream) -> None:
    with esker.open(stream.data) as store:
        store.create("t", shards=2)
        store["t"].append_many([esker.Record(b"x", key=b"%d" % n) for n in range(40)])
        store.sync()

        def lag() -> int:
            (found,) = store["t"].groups()
            assert found.name == "billing"
            return found.records

        stream.run(group="billing", maxOffsetsPerTrigger=10)
        assert len(stream.rows) == 40
        assert lag() <= 10  # that the last batch is done Spark says with the next one
        store["t"].append_many([b"y"] * 7)
        stream.run(group="billing", maxOffsetsPerTrigger=1000)
        assert len(stream.rows) == 47
        assert lag() <= 7
        stream.run(group="billing")
        assert lag() == 0


@in_a_directory
def test_what_cannot_be_shown_is_told_and_the_stream_goes_on(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    from esker.spark.shown import Shown

    shown = Shown(stream.data, "billing")
    shown.show({"t": {0: 3}})  # it makes a store, as opening one does; there is no such topic
    with esker.open(stream.data) as store:
        store["t"].append_many([b"x"] * 5)
        store.sync()
        shown.show({"t": {0: 3}, "gone": {0: 1}})
        assert [each.shards[0].cursor for each in store["t"].groups()] == [3]
        shown.close()
    Path(stream.data, "esker.store").unlink()
    shown.show({"t": {0: 4}})
    assert "does not show how far the stream is" in caplog.text
    with pytest.raises(esker.InvalidOption, match="cannot name a group"):
        Shown(stream.data, "x" * 49)
