"""`replay`: a part of a topic goes to another one, exactly once, however often it is begun."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import esker
from esker.spark import plan
from esker.spark.jobs import Progress, replay
from esker.spark.jobs.streams import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000_000


def records(count: int, first: int = 0) -> list[esker.Record]:
    return [
        esker.Record(
            b"v%d\xff" % n, key=b"k%d" % (n % 7), tag=f"t{n % 2}", node="eu",
            headers={"h": b"\x00%d" % n}, timestamp=T0 + n * 1_000_000,
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def content(path: str | Path, topic: str) -> list[tuple[object, ...]]:
    with esker.open(path, mode="r") as store:
        return sorted(
            (r.timestamp, r.value, r.key, r.tag, r.node, dict(r.headers or {}), r.shard)
            for r in store[topic].read()
        )


@pytest.fixture
def data(tmp_path: Path) -> str:
    with esker.open(tmp_path / "data") as store:
        store.create("t", shards=3, compression="zstd").append_many(records(100), wait=True)
    return str(tmp_path / "data")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


def test_a_copy_has_all_that_a_record_has_and_is_made_once(spark: SparkSession, data: str) -> None:
    found = replay(spark, data, "t", "copy")
    assert (found.read, found.written, found.losses.gaps) == (100, 100, 0)
    assert content(data, "copy") == content(data, "t")
    with esker.open(data) as store:
        assert store["copy"]._existing().options == store["t"]._existing().options
        store["t"].append_many(records(20, 100), wait=True)
    again = replay(spark, data, "t", "copy")
    assert (again.read, again.written) == (20, 20), "its end was open: what has come since"
    assert content(data, "copy") == content(data, "t")
    assert str(replay(spark, data, "t", "copy")) == "t to copy: nothing new to replay"
    assert content(data, "copy") == content(data, "t")
    assert esker.verify(data).ok, "its checkpoint is no stranger in the store"


def test_a_range_of_time_and_a_condition_into_another_store(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    there = str(tmp_path / "other")
    for _ in range(2):
        found = replay(
            spark, data, "t", "some", to_store=there, start="@2023-11-14T22:13:40",
            end="@2023-11-14T22:14:20", where="tag = 't1' AND value LIKE 'v3%'", text=True,
            keep_timestamps=False, shards=1,
        )  # fmt: skip
    assert (found.read, found.written) == (0, 0)
    with esker.open(there, mode="r") as store:
        copied = list(store["some"].read())
    # 22:13:20 is T0: seconds 20 to 59, odd, beginning with 3; bytes that are no text stay
    assert sorted(r.value for r in copied) == [b"v%d\xff" % n for n in range(31, 40, 2)]
    assert min(r.timestamp or 0 for r in copied) > T0 + 10**12
    assert not (Path(data) / "spark").exists()


def test_shards_are_kept_on_request(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with esker.open(data) as store:
        store.create("t", shards=2)
        with store.stage("t", 1) as stage:  # where no key would have put them all
            stage.append_many([esker.Record(b"%d" % n, key=b"k%d" % n) for n in range(20)])
        store.attach("w", 1, stage.tickets)
    replay(spark, data, "t", "kept", keep_partitions=True)
    replay(spark, data, "t", "spread")
    with esker.open(data, mode="r") as store:
        assert [store["kept"].end(n) for n in (0, 1)] == [0, 20]
        assert 0 < store["spread"].end(0) < 20
        assert [r.value for r in store["kept"].read()] == [b"%d" % n for n in range(20)]


class Stopped(Exception):
    pass


def test_one_that_was_stopped_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with esker.open(data) as store:
        for n in range(8):
            store["t"].append_many([b"%d " % n + b"x" * 1000] * 100, wait=True)
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        told.append(progress)
        raise Stopped

    with pytest.raises(Stopped):
        replay(spark, data, "t", "copy", batch_bytes=110_000, progress=stop)
    assert told[0].total == 800
    assert 0 < told[0].done < 800
    (checkpoint,) = (Path(data) / "spark").iterdir()
    committed = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    committed[-1].unlink()  # as if the driver had died before it wrote down that a batch is done
    told.clear()
    rest = replay(spark, data, "t", "copy", batch_bytes=110_000, progress=told.append)
    assert 0 < rest.batches < 9
    assert told[-1].done == told[-1].total <= 800
    assert {each.total for each in told} <= {0, told[-1].total}, "0: not known yet"
    with esker.open(data, mode="r") as store:
        counted = Counter(r.value[:2] for r in store["copy"].read())
    assert counted == {b"%d " % n: 100 for n in range(8)}


def test_one_that_was_stopped_at_its_last_batch_tells_how_much_there_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    with esker.open(data) as store:
        for _ in range(2):
            store["t"].append_many([b"x" * 1000] * 100, wait=True)
    told: list[Progress] = []

    def stop(progress: Progress) -> None:
        if progress.done == 200:
            raise Stopped

    with pytest.raises(Stopped):
        replay(spark, data, "t", "copy", batch_bytes=110_000, progress=stop)
    (checkpoint,) = (Path(data) / "spark").iterdir()
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    rest = replay(spark, data, "t", "copy", batch_bytes=110_000, progress=told.append)
    assert rest.batches == 1
    assert told[-1].done == told[-1].total == 100
    with esker.open(data, mode="r") as store:
        assert len(store["copy"]) == 200


def test_what_is_lost_is_told(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with esker.open(data, background=False) as store:
        for number in range(3):
            store["t"].append_many([b"%d" % (3 * number + n) for n in range(3)])
        store["t"].sync()
    log = next(Path(data).rglob("*.log"))
    log.write_bytes(log.read_bytes().replace(b"345", b"3x5"))
    esker.repair(data)
    with pytest.raises(esker.DataLoss, match="offsets 3 to 5 cannot be read"):
        replay(spark, data, "t", "copy")
    found = replay(spark, data, "t", "copy", on_loss="skip")
    assert (found.read, found.written, found.losses.gaps, found.losses.missed) == (6, 6, 1, 3)
    assert "a gap of at most 3 records: shard 0: offsets 3..5 (corrupt)" in str(found)


def test_what_cannot_be_replayed_is_refused(spark: SparkSession, data: str) -> None:
    with pytest.raises(esker.InvalidOption, match="onto itself"):
        replay(spark, data, "t", "t")
    with pytest.raises(esker.TopicNotFound, match="no topic 'tt' in"):
        replay(spark, data, "tt", "copy")
    with pytest.raises(esker.InvalidOption, match="did you mean 'skip'"):
        replay(spark, data, "t", "copy", on_loss="ski")
    with pytest.raises(esker.InvalidOption, match="is not a position"):
        replay(spark, data, "t", "copy", start="@yesterday")
    with pytest.raises(esker.InvalidOption, match=r"where='taag = 1'.*`tag`"):
        replay(spark, data, "t", "copy", where="taag = 1")
    with pytest.raises(esker.InvalidOption, match=r"where='tag ='.*[Ss]yntax error"):
        replay(spark, data, "t", "copy", where="tag =", text=True)


def test_what_was_counted_is_the_same_through_connect() -> None:
    fields = [{"name": "records", "type": "long"}, {"name": "bad", "type": "long"}]
    connect = {"values": [7, 0], "schema": {"type": "struct", "fields": fields}}
    ran = Run(progress=[
        {"observedMetrics": {"read": connect}}, {"observedMetrics": {}},
        {"observedMetrics": {"read": {"records": 5, "bad": 1}}},
    ])  # fmt: skip
    assert ran.observed("read") == [{"records": 7, "bad": 0}, {"records": 5, "bad": 1}]
