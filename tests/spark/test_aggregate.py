"""`aggregate`: windows of time and their numbers; the same in a batch and as a stream."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import esker
from esker.spark import plan
from esker.spark.jobs import aggregate
from esker.spark.jobs.described import spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

T0 = 1_700_000_040_000_000  # begins a minute: 2023-11-14T22:14:00Z
MINUTE = 60_000_000

SPEC: dict[str, Any] = {
    "schema": {"product": "STRING", "price": "BIGINT", "user": "STRING"},
    "window": "1m", "group_by": ["product"], "where": "price > 0",
    "metrics": {
        "orders": "count", "turnover": "sum(price)", "mean": "avg(price)", "least": "min(price)",
        "most": "max(price)", "p50": "p50(price)", "p95": "p95(price)", "p99": "p99(price)",
        "users": "distinct(user)",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plan.let_go()


def order(at_us: int, product: str = "tea", price: int = 1, user: str = "u") -> esker.Record:
    value = json.dumps({"product": product, "price": price, "user": user}).encode()
    return esker.Record(value, timestamp=T0 + at_us)


def orders(count: int) -> list[esker.Record]:
    """One a second, hardly out of order."""
    chance = random.Random(3)
    return [
        order(
            n * 1_000_000 + chance.randrange(1_000_000), chance.choice(["tea", "milk", "scones"]),
            chance.randrange(-2, 50), f"u{chance.randrange(30)}",
        )
        for n in range(count)
    ]  # fmt: skip


def results(path: str, topic: str) -> dict[str, dict[str, Any]]:
    """By key; a window that was written twice is an error."""
    found: dict[str, dict[str, Any]] = {}
    with esker.open(path, mode="r") as store:
        for record in store[topic].read():
            key = (record.key or b"").decode()
            assert key not in found
            found[key] = record.json()
    return found


def test_a_stream_and_a_batch_agree(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    records = orders(600)
    with esker.open(data) as store:
        topic = store.create("orders", shards=2)
        topic.append_many(records[:350], wait=True)
        first = aggregate(
            spark, data, "orders", SPEC, to="live", streaming=True, batch_bytes=10_000
        )
        assert 0 < first.waiting < 20
        topic.append_many([*records[350:], order(3600 * 1_000_000)], wait=True)
        second = aggregate(spark, data, "orders", SPEC, to="live", streaming=True)
        assert (first.read, second.read, second.waiting) == (350, 251, 1)
        assert first.late + second.late == 0
    batch = aggregate(spark, data, "orders", SPEC, to="whole")
    assert batch.windows == first.windows + second.windows + 1
    live, whole = results(data, "live"), results(data, "whole")
    last = {key for key in whole if "23:14:00" in key}
    assert len(last) == 1, "the window that is still open"
    assert live == {key: value for key, value in whole.items() if key not in last}
    assert batch.matched == sum(row["orders"] for row in whole.values())

    prices = defaultdict(list)
    for record in records:
        value = record.json()
        if value["price"] > 0:
            prices[(record.timestamp or 0) // MINUTE, value["product"]].append(value["price"])
    assert len(whole) == len(prices) + 1
    key = '{"window_start":"2023-11-14T22:14:00Z","product":"tea"}'
    some = sorted(prices[T0 // MINUTE, "tea"])
    row = whole[key]
    assert (row["orders"], row["turnover"], row["least"], row["most"]) == (
        len(some), sum(some), some[0], some[-1],
    )  # fmt: skip
    assert row["p50"] == some[(len(some) - 1) // 2]
    assert (row["window_end"], row["product"]) == ("2023-11-14T22:15:00Z", "tea")

    assert aggregate(spark, data, "orders", SPEC, to="whole").repeated
    assert results(data, "whole") == whole


def test_what_comes_too_late_is_counted_and_in_no_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    spec = {"window": "1m", "lateness": "2m", "metrics": {"n": "count"}}
    with esker.open(data) as store:
        topic = store["t"]
        topic.append_many([order(n * MINUTE) for n in range(10)], wait=True)
        first = aggregate(spark, data, "t", spec, to="live", streaming=True)
        assert (first.windows, first.waiting, first.late) == (7, 3, 0)
        # the windows before minute 7 are written; two records for these, and one for an open one
        topic.append_many([order(0), order(MINUTE), order(8 * MINUTE)], wait=True)
        second = aggregate(spark, data, "t", spec, to="live", streaming=True)
        assert (second.late, second.windows) == (2, 0)
        assert "2 rows came too late" in str(second)
        topic.append(b"{}", timestamp=T0 + 60 * MINUTE, wait=True)
        third = aggregate(spark, data, "t", spec, to="live", streaming=True)
        assert third.windows == 3
    counted = [row["n"] for row in results(data, "live").values()]
    assert sorted(counted) == [1] * 9 + [2]
    batch = aggregate(spark, data, "t", spec)
    assert sum(row["n"] for row in batch.rows) == batch.read == 14, "in a batch all count"


def test_windows_that_overlap_and_a_time_in_the_value(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    spec = tmp_path / "spec.toml"
    spec.write_text("""
        window = "2m"
        slide = "1m"
        time = "at"
        time_unit = "s"
        group_by = ["tag"]
        [schema]
        at = "BIGINT"
        [metrics]
        n = "count"
    """)
    start = T0 // 1_000_000
    values = [b'{"at": %d}' % (start + n) for n in (0, 30, 60, 200)] + [b'{"at": null}', b"[oops"]
    with esker.open(data) as store:
        store["t"].append_many([esker.Record(each, tag="x") for each in values], wait=True)
    with pytest.raises(esker.InvalidRecord, match="the value at offset 5"):
        aggregate(spark, data, "t", str(spec))
    found = aggregate(spark, data, "t", str(spec), on_bad_value="skip")
    assert (found.read, found.bad, found.untimed, found.windows) == (6, 1, 1, 5)
    starts = [(row["window_start"].timestamp() - start) / 60 for row in found.rows]
    assert list(zip(starts, [row["n"] for row in found.rows], strict=True)) == [
        (-1, 2), (0, 3), (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip
    assert {row["tag"] for row in found.rows} == {"x"}
    assert "1 values are not what the schema says" in str(found)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"windw": "1m"}, "there is no 'windw'; did you mean 'window'"),
        ({"window": 5}, "Expected `str`, got `int`"),
        ({"window": "soon"}, "window='soon'"),
        ({"slide": "2m"}, "not above the window's '1m'"),
        ({"group_by": ["prodct"]}, "group_by: no field 'prodct'; did you mean 'product'"),
        ({"time": "pricee"}, "time: no field 'pricee'; did you mean 'price'"),
        ({"schema": {"product": "STRNG"}}, "schema: product: 'STRNG': did you mean 'STRING'"),
        ({"metrics": {}}, "no metrics"),
        ({"metrics": {"x": "p98(price)"}}, "metrics: x='p98\\(price\\)': did you mean 'p9"),
        ({"metrics": {"x": "sum(prise)"}}, "no field 'prise'; did you mean 'price'"),
        ({"metrics": {"x": "sum"}}, "of which field"),
        ({"metrics": {"x": "sum(user)"}}, "user is STRING, not a number"),
        ({"metrics": {"product": "count"}}, "a name of its own"),
    ],
)
def test_a_description_that_is_wrong_says_where(change: dict[str, Any], told: str) -> None:
    with pytest.raises(esker.InvalidOption, match=told):
        spec_of({**SPEC, **change})


def test_what_cannot_be_aggregated_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"{}", wait=True)
    data = str(tmp_path / "data")
    with pytest.raises(esker.InvalidOption, match="cannot be written to"):
        aggregate(spark, data, "t", SPEC, to="t")
    with pytest.raises(esker.InvalidOption, match="Give `to`"):
        aggregate(spark, data, "t", SPEC, streaming=True)
    with pytest.raises(esker.InvalidOption, match="there is no such file"):
        aggregate(spark, data, "t", str(tmp_path / "none.json"))
