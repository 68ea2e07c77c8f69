"""`compact`: the last record of each key, in a topic of its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import esker
from esker.spark import plan
from esker.spark.jobs import Progress, compact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


def filled(path: Path, count: int = 3_000, shards: int = 3) -> str:
    """Keys again and again, with timestamps that do not follow the offsets; some have no key."""
    chance = random.Random(5)
    with esker.open(path) as store:
        topic = store.create("t", shards=shards, segment_records=700)
        for first in range(0, count, 500):
            topic.append_many(
                [
                    esker.Record(
                        b"" if n % 11 == 0 else b"v%d" % n, tag=f"t{n % 5}", node="eu",
                        key=None if n % 50 == 0 else b"k%d" % chance.randrange(400),
                        headers={"n": b"%d" % n}, timestamp=1_700_000_000_000_000
                        + chance.randrange(10**9),
                    )
                    for n in range(first, first + 500)
                ],
                wait=True,
            )  # fmt: skip
    return str(path)


def expected(path: str, topic: str = "t") -> list[esker.Record]:
    """The last of each key, by hand; each without a key."""
    last: dict[object, esker.Record] = {}
    with esker.open(path, mode="r") as store:
        for n in range(store[topic].shards):
            for record in store[topic].read(shard=n):
                last[record.key if record.key is not None else (n, record.offset)] = record
    return sorted(last.values(), key=lambda r: (r.shard, r.offset))


def content(path: str, topic: str) -> list[esker.Record]:
    with esker.open(path, mode="r") as store:
        shards = range(store[topic].shards)
        return [record for n in shards for record in store[topic].read(shard=n)]


def without_offsets(records: list[esker.Record]) -> list[tuple[object, ...]]:
    return [(r.shard, r.key, r.value, r.tag, r.node, r.headers, r.timestamp) for r in records]


def test_the_last_of_each_key_in_its_shard_and_order(spark: SparkSession, tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    told: list[Progress] = []
    found = compact(spark, data, "t", "now", progress=told.append)
    wanted = expected(data)
    assert without_offsets(content(data, "now")) == without_offsets(wanted)
    keyless = sum(record.key is None for record in wanted)
    assert (found.read, found.keyless, found.keys) == (3000, keyless, len(wanted) - keyless)
    assert (told[-1].done, told[-1].total) == (3000, 3000)
    assert compact(spark, data, "t", "now").repeated
    assert len(content(data, "now")) == len(wanted)
    with esker.open(data) as store:
        store["t"].append(b"more", key=b"k1", wait=True)
    with pytest.raises(esker.TopicExists, match="holds records that are not of this compaction"):
        compact(spark, data, "t", "now")


def test_tombstones_and_records_without_a_key_may_go(spark: SparkSession, tmp_path: Path) -> None:
    data = filled(tmp_path / "data")
    there = str(tmp_path / "other")
    found = compact(
        spark, data, "t", "now", to_store=there, tombstones=True, keyless="drop", shards=2
    )
    keyed = [record for record in expected(data) if record.key is not None]
    alive = [record for record in keyed if record.value]
    assert (found.keys, found.deleted) == (len(alive), len(keyed) - len(alive))
    assert found.deleted
    kept = content(there, "now")
    assert sorted(r.key or b"" for r in kept) == sorted(r.key or b"" for r in alive)
    assert {r.key: r.value for r in kept} == {r.key: r.value for r in alive}
    with esker.open(there, mode="r") as store:
        assert all(store["now"].shard_of(r.key or b"") == r.shard for r in kept)
    assert "60 records without a key dropped" in str(found)


def test_a_key_in_several_shards_has_one_last_record(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")

    def record(value: bytes, timestamp: int) -> esker.Record:
        return esker.Record(value, key=b"k", timestamp=timestamp)

    with esker.open(data) as store:
        store.create("t", shards=2)
        with store.stage("t", 0) as one, store.stage("t", 1) as two:
            one.append_many([record(b"a", 9_000), record(b"b", 5_000)])  # b: the last of its shard
            two.append_many([record(b"c", 1_000), record(b"d", 6_000)])
        store.attach("w", 1, one.tickets + two.tickets)
    assert compact(spark, data, "t", "now").keys == 1
    (left,) = content(data, "now")
    assert (left.value, left.shard) == (b"d", 1)
    early = compact(spark, data, "t", "then", end="1")
    assert early.read == 2
    assert [r.value for r in content(data, "then")] == [b"a"]


def test_what_is_lost_is_told_and_what_is_wrong_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    with esker.open(data, background=False) as store:
        for number in range(3):
            store["t"].append_many(
                [esker.Record(b"<%d>" % number, key=b"k%d" % n) for n in range(3)]
            )
        store["t"].sync()
    log = next(Path(data).rglob("*.log"))
    log.write_bytes(log.read_bytes().replace(b"<1>", b"<x>"))
    esker.repair(data)
    with pytest.raises(esker.DataLoss, match="offsets 3 to 5 cannot be read"):
        compact(spark, data, "t", "now")
    found = compact(spark, data, "t", "now", on_loss="skip")
    assert (found.read, found.keys, found.losses.gaps, found.losses.missed) == (6, 3, 1, 3)
    assert "offsets 3..5 (corrupt)" in str(found)
    with pytest.raises(esker.InvalidOption, match="onto itself"):
        compact(spark, data, "t", "t")
    with pytest.raises(esker.InvalidOption, match="did you mean 'drop'"):
        compact(spark, data, "t", "u", keyless="dropp")
