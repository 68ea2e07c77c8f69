"""What is done once in each of Spark's Python workers."""

from __future__ import annotations

import gc
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import esker
from esker.spark import worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_settled", False)
    before = gc.get_freeze_count()
    yield
    if not before:
        gc.unfreeze()


def test_a_program_of_somebodys_keeps_its_collector_as_it_is(unsettled: None) -> None:
    before = gc.get_freeze_count()
    worker.settle()
    assert gc.get_freeze_count() == before


def test_a_worker_has_its_modules_passed_over_once(
    unsettled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    held = [[n] for n in range(1_000)]
    worker.settle()
    count = gc.get_freeze_count()
    assert count > len(held)
    held += [[n] for n in range(1_000)]
    worker.settle()
    assert gc.get_freeze_count() <= count, "what came later is looked at as ever"


def test_the_workers_that_read_are_settled(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.datasource import DataSourceReader, InputPartition

    from esker.spark.source import EskerReader, EskerSource

    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"x"] * 10)

    class Counter(EskerReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            rows = sum(batch.num_rows for batch in super().read(partition))
            kept = [rows, gc.get_freeze_count()]
            yield pa.record_batch({"offset": pa.array(kept, pa.int64())})

    class Counted(EskerSource):
        @classmethod
        def name(cls) -> str:
            return "counted"

        def reader(self, schema: Any) -> DataSourceReader:
            return Counter(self._asked(streaming=False)._replace(columns=("offset",)), schema)

    made = spark.newSession()
    made.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    made.dataSource.register(Counted)
    options = {"subscribe": "t", "columns": "offset"}
    found = made.read.format("counted").options(**options).load(str(tmp_path / "data")).collect()
    rows, frozen = [row.offset for row in found]
    assert rows == 10
    assert frozen > 10_000, "PySpark and Arrow alone are more than that"
