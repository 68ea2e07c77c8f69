"""Spark finds the source by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import esker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_name_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"one", b"two", b"three"])
    found = spark.read.format("esker").option("subscribe", "t").load(str(tmp_path / "data"))
    assert sorted(bytes(row.value) for row in found.collect()) == [b"one", b"three", b"two"]


def test_the_module_holds_the_class_that_spark_looks_for() -> None:
    from pyspark.sql.datasource import DataSource

    import pyspark_esker

    assert issubclass(pyspark_esker.DefaultSource, DataSource)
    assert pyspark_esker.DefaultSource.name() == "esker"
