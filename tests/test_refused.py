"""What is refused makes no topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import esker

LONG = "k" * 70_000
FIELDS: dict[str, dict[str, Any]] = {
    "key": {"key": LONG}, "tag": {"tag": LONG}, "timestamp": {"timestamp": "noon"},
    "headers": {"headers": {"name": 1}}, "wait": {"wait": -1}, "value": {"value": 1},
}  # fmt: skip


@pytest.mark.parametrize("how", FIELDS.values(), ids=FIELDS)
def test_an_append_that_is_awaited(tmp_path: Path, how: dict[str, Any]) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            with pytest.raises(esker.EskerError):
                await store["new"].append(**{"value": b"a", "wait": True, **how})
            assert await store.topics() == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("shard", "sequence", "value", "problem"),
    [
        (1, 0, b"a", esker.InvalidOption), (None, 1, b"a", esker.SequenceGap),
        (None, 0, 1, esker.InvalidRecord),
    ],
)  # fmt: skip
def test_a_batch_of_a_producer(
    tmp_path: Path, shard: int | None, sequence: int, value: Any, problem: type[Exception]
) -> None:
    with esker.open(tmp_path / "data") as store:
        producer = store["new"].producer("p", shard)
        with pytest.raises(problem):
            producer.append(value, sequence=sequence)
        assert list(store) == []
        assert store["new"].producer("p").append(b"a", sequence=0) == 0


def test_a_stage_of_a_shard_that_is_not_there(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        with pytest.raises(esker.InvalidOption, match="has shards 0"):
            store.stage("new", 1)
        assert list(store) == []


def test_a_route_that_begins_nowhere_or_has_a_name_that_is_taken(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store.create("source", shards=2)
        for start in ("noon", 3):
            with pytest.raises(esker.EskerError):
                store.route("source", "new", start=start)
        store.route("source", "there", name="r")
        with pytest.raises(esker.RouteRefused):
            store.route("source", "new", name="r")
        assert list(store) == ["source", "there"]


def test_a_queue_whose_dead_letters_have_no_place(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("loose", durability="memory")
        with pytest.raises(esker.InvalidOption, match="durability"):
            store.queue("new", dead_letter="loose")
        assert list(store) == ["loose"]
