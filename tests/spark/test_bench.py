"""The benchmark's own parts, at a size where only correctness can be seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import esker
from bench import spark_scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.bench


def test_scans_are_of_as_many_segments_and_shards_as_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for segments, shards in ((1, 1), (7, 1), (7, 7)):
        place = tmp_path / f"{segments}-{shards}"
        spark_scale._fill(place, 700, segments, shards)
        with esker.open(place, mode="r") as store:
            assert len(store["t"]) == 700
            assert store["t"].shards == shards
        files = list(place.rglob("*.seg")) + list(place.rglob("*.log"))
        assert len(files) == segments
    monkeypatch.setattr(spark_scale, "SEGMENTS", (1, 3))
    monkeypatch.setattr(spark_scale, "SHARDS", (2,))
    monkeypatch.setattr(spark_scale, "REPEATS", 1)
    found = spark_scale.scans(spark, tmp_path, 600)
    assert [scan.layout for scan in found] == ["1 segments", "3 segments", "2 shards"]
    plan = spark_scale.planning(tmp_path, 30)
    assert 0 < plan.before_mb <= plan.peak_mb
    assert "planning 30 segments" in spark_scale.table(found, plan)
