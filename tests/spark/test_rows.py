"""Rows as they leave a worker: in batches that are worth their journey. No Spark runs here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.spark import plan, rows
from esker.spark.rows import Task


def made(count: int, width: int) -> Any:
    return pa.record_batch({"value": pa.array([b"x" * width] * count, pa.binary())})


@pytest.mark.parametrize(
    ("given", "width", "sent"),
    [
        ([5_000, 5_000], 200, [5_000, 5_000]),  # a frame of the usual kind: as it is
        ([1_000] * 9, 200, [5_000, 4_000]),  # too few rows wait for more
        ([5_000] * 20, 12, [35_000, 35_000, 30_000]),  # narrow ones for half a megabyte
        ([100_000], 0, [100_000]),
        ([40_000] * 3, 0, [80_000, 40_000]),  # though not for ever
        ([10, 10, 10], 3 << 20, [10, 10, 10]),  # few, and large enough
        ([], 1, []),
    ],
)
def test_small_batches_travel_together(given: list[int], width: int, sent: list[int]) -> None:
    batches = [made(count, width) for count in given]
    schema = made(0, 0).schema
    found = list(rows.joined(iter(batches), schema))
    assert [batch.num_rows for batch in found] == sent
    assert pa.Table.from_batches(found, schema) == pa.Table.from_batches(batches, schema)


def test_a_large_batch_is_not_copied() -> None:
    batch = made(5_000, 200)
    (found,) = rows.joined(iter([batch]), batch.schema)
    assert found.column(0).buffers()[2].address == batch.column(0).buffers()[2].address


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    with esker.open(tmp_path / "data", background=False) as store:
        for n in range(100):
            store["t"].append_many([b"%06d" % (n * 100 + m) for m in range(100)])
    yield str(tmp_path / "data")
    plan.let_go()


def test_a_task_joins_the_frames_of_its_log(data: str) -> None:
    entry = plan.reading(data)["t"]._existing()
    task = Task(
        data, [plan.Span("t", entry.id, 0, 0, 10_000)], columns=("value", "offset"),
        on_loss="fail", value_format="string", bad_value="fail", tags=None,
    )  # fmt: skip
    schema = pa.schema([("value", pa.string()), ("offset", pa.int64())])
    (batch,) = task.rows(schema)
    assert batch.column("offset").to_pylist() == list(range(10_000))
    assert batch.column("value").to_pylist() == [f"{n:06}" for n in range(10_000)]


def test_json_of_many_frames_becomes_columns_in_one_go(tmp_path: Path) -> None:
    """And is named by its offset, whether or not that is among the columns."""
    path = str(tmp_path / "json")
    with esker.open(path, background=False) as store:
        for n in range(50):
            store["t"].append_many([b'{"n": %d}' % (n * 100 + m) for m in range(100)])
        store["t"].append(b"no")
    number = plan.reading(path)["t"]._existing().id
    kind = pa.struct([("n", pa.int64())])

    def read(end: int, bad_value: str, *names: tuple[str, Any]) -> list[Any]:
        task = Task(
            path, [plan.Span("t", number, 0, 0, end)], columns=tuple(name for name, _ in names),
            on_loss="fail", value_format="json", bad_value=bad_value, tags=None,
        )  # fmt: skip
        return list(task.rows(pa.schema(names)))

    (batch,) = read(5_000, "fail", ("offset", pa.int64()), ("value", kind), ("topic", pa.string()))
    assert batch.column("value").to_pylist() == [{"n": n} for n in range(5_000)]
    assert batch.column("offset").to_pylist() == list(range(5_000))
    assert batch.schema.names == ["offset", "value", "topic"]
    (batch,) = read(5_001, "null", ("value", kind))
    assert batch.column("value")[-2:].to_pylist() == [{"n": 4_999}, None]
    with pytest.raises(esker.InvalidRecord, match="the value at offset 5000 of partition 0"):
        read(5_001, "fail", ("value", kind))
    (batch,) = read(5_001, "fail", ("offset", pa.int64()))  # values that are not asked for
    assert batch.num_rows == 5_001
    plan.let_go()
