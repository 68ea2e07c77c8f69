"""`profile`: what is in a topic, held against what was put there."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import esker
from esker.errors import InvalidOption, TopicNotFound
from esker.spark.jobs import Profiled, Progress, profile
from esker.spark.jobs.profiling import sketched, windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000_000
COUNT = 2_000


def value(number: int) -> bytes:
    if number % 10 == 9:
        return b"\xff" * (number % 7)  # not UTF-8, but where it is empty
    user = {"id": number, "name": f"user {number % 3}"} if number % 2 else None
    return json.dumps({"n": number / 2, "user": user, "tags": ["a", 1][: number % 3]}).encode()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "data"
    with esker.open(path) as store:
        topic = store.create("t", shards=4)
        topic.append_many([
            esker.Record(
                value(number),
                key=b"hot" if number % 2 else (b"k%d" % number if number % 4 else None),
                tag="x" if number % 5 == 0 else None,
                headers={"h": b"1"} if number % 8 == 0 else None,
                timestamp=T0 + number * 1_000_000,
            )
            for number in range(COUNT)
        ])  # fmt: skip
        store.create("empty")
    return path


@pytest.fixture(scope="module")
def found(spark: SparkSession, data: Path) -> Profiled:
    return profile(spark, str(data), "t", top=3)


def records(data: Path) -> dict[int, list[esker.Record]]:
    with esker.open(data, "r") as store:
        return {shard: list(store["t"].read(shard=shard)) for shard in range(4)}


def test_every_shard_is_counted_and_measured(data: Path, found: Profiled) -> None:
    by_shard = {shard: each for shard, each in records(data).items() if each}
    assert [part.shard for part in found.shards] == list(by_shard)
    for part in found.shards:
        assert part.shard is not None
        those = by_shard[part.shard]
        sizes = sorted(len(record.value) for record in those)
        stamps = [record.timestamp or 0 for record in those]
        count = len(those)
        assert (part.records, part.bytes) == (count, sum(sizes))
        assert (part.first, part.last) == (0, count - 1)
        assert part.first_time == datetime.fromtimestamp(min(stamps) / 1e6, UTC)
        assert part.last_time == datetime.fromtimestamp(max(stamps) / 1e6, UTC)
        assert part.rate == pytest.approx(count / ((max(stamps) - min(stamps)) / 1e6))
        assert (part.sizes.min, part.sizes.max) == (sizes[0], sizes[-1])
        assert part.sizes.mean == pytest.approx(sum(sizes) / count)
        for share, size in ((0.5, part.sizes.p50), (0.95, part.sizes.p95), (0.99, part.sizes.p99)):
            assert sizes[max(0, int(share * count) - 2)] <= size <= sizes[int(share * count) + 1]
        assert part.no_tag == pytest.approx(sum(r.tag is None for r in those) / count)
        assert part.no_headers == pytest.approx(sum(not r.headers for r in those) / count)
        assert part.no_key == pytest.approx(sum(r.key is None for r in those) / count)
        assert part.no_node == 1
        texts = sum(b"\xff" not in record.value for record in those)
        assert part.text == pytest.approx(texts / count)


def test_the_total_is_that_of_all_shards(data: Path, found: Profiled) -> None:
    total = found.total
    everything = [record for those in records(data).values() for record in those]
    assert (total.records, total.bytes) == (COUNT, sum(len(r.value) for r in everything))
    assert (total.shard, total.first, total.last) == (None, None, None)
    assert total.rate == pytest.approx(COUNT / (COUNT - 1))
    assert total.no_key == pytest.approx(0.25)
    assert found.largest_shard == max(part.records for part in found.shards) / COUNT


def test_hot_keys_show(found: Profiled) -> None:
    assert found.keys == pytest.approx(1 + COUNT // 4, rel=0.06)
    assert (found.top_keys[0].key, found.top_keys[0].records) == ("hot", COUNT // 2)
    assert found.top_keys[0].share == 0.5
    assert [key.records for key in found.top_keys[1:]] == [1, 1]


def test_fields_are_sketched_with_their_types_and_paths(found: Profiled) -> None:
    sketch = found.sketch
    assert (sketch.sampled, sketch.objects, sketch.not_json) == (COUNT, 1800, 200)
    fields = {field.path: field for field in sketch.fields}
    assert set(fields) == {"n", "user", "user.id", "user.name", "tags", "tags[]"}
    assert fields["n"].types == {"number": 1800}
    assert fields["user"].types == {"null": 1000, "object": 800}
    assert fields["user.id"].present == pytest.approx(800 / 1800)
    assert set(fields["user.name"].examples) <= {'"user 0"', '"user 1"', '"user 2"'}
    assert set(fields["tags[]"].types) == {"text", "integer"}
    assert fields["tags"].present == 1


def test_it_prints_as_a_report_and_as_json(found: Profiled) -> None:
    text = str(found)
    assert "t in " in text
    assert "2,000 records" in text
    assert "hot" in text
    assert "user.name" in text
    assert "of 2,000 values sampled: 1,800 JSON objects, 0 other JSON, 200 not JSON" in text
    told = json.loads(msgspec.json.encode(msgspec.structs.asdict(found)))
    assert told["total"]["records"] == COUNT


def test_start_and_end_and_progress(spark: SparkSession, data: Path) -> None:
    steps: list[Progress] = []
    found = profile(spark, str(data), "t", start="10", end="20", top=0, progress=steps.append)
    assert [(part.first, part.last, part.records) for part in found.shards] == [(10, 19, 10)] * 4
    assert found.top_keys == []
    assert steps[-1].done == steps[-1].total == 3


def test_an_empty_topic_has_a_profile_too(spark: SparkSession, data: Path) -> None:
    found = profile(spark, str(data), "empty")
    assert (found.total.records, found.shards, found.sketch.sampled) == (0, [], 0)
    assert "0 records" in str(found)
    with pytest.raises(TopicNotFound):
        profile(spark, str(data), "gone")
    with pytest.raises(InvalidOption, match="top=-1"):
        profile(spark, str(data), "t", top=-1)


def test_gaps_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_bytes=4096)
        for number in range(300):
            topic.append(b"record %03d " % number * 5, wait=True)
            store.tick()
    victim = sorted((tmp_path / "data").rglob("*.seg"))[2]
    content = bytearray(victim.read_bytes())
    content[700] ^= 1
    victim.write_bytes(content)
    esker.repair(tmp_path / "data")
    found = profile(spark, str(tmp_path / "data"), "t")
    (gap,) = found.gaps
    assert (gap.shard, gap.reason) == (0, "corrupt")
    assert found.total.records == 300 - gap.missed < 300
    assert (found.shards[0].first, found.shards[0].last) == (0, 299)
    assert f"gap: topic 't' shard 0: offsets {gap.first}..{gap.last}" in str(found)
    assert found.sketch.sampled == found.total.records


def test_a_sample_is_spread_and_bounded() -> None:
    found = list(windows(1000, 2000, 100))
    offsets = [offset for first, end in found for offset in range(first, end)]
    assert len(offsets) == len(set(offsets)) == 100
    assert offsets[0] == 1000
    assert offsets[-1] > 1900
    assert list(windows(5, 8, 100)) == [(5, 8)]
    assert list(windows(5, 8, 0)) == []


def test_deep_wide_and_strange_values_are_sketched_within_bounds() -> None:
    deep = b'{"a":' * 3000 + b"1" + b"}" * 3000
    wide = json.dumps({f"f{n}": "x" * 100 for n in range(3000)}).encode()
    found = sketched(iter([deep, wide, b"[1]", b"", b'{"x": "' + b"y" * 100 + b'"}']))
    assert found.sampled == 5
    assert found.other_json == 1
    assert found.more_fields
    assert len(found.fields) == 1000
    assert max(len(text) for field in found.fields for text in field.examples) == 40
