"""What all jobs share: work in rounds, and what is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from esker.errors import TopicNotFound
from esker.spark.jobs.running import Progress, Teller, in_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rounds_hand_back_in_order_what_tasks_made(spark: SparkSession) -> None:
    def shouted(item: bytes) -> bytes:
        return item.upper()

    items = [b"%c" % letter for letter in b"abcdefg"]
    assert list(in_rounds(spark, items, shouted, tasks=3)) == [
        [b"A", b"B", b"C"], [b"D", b"E", b"F"], [b"G"],
    ]  # fmt: skip
    assert list(in_rounds(spark, [], shouted)) == []


def test_an_error_in_a_task_is_the_same_error_on_the_driver(spark: SparkSession) -> None:
    def failing(item: bytes) -> bytes:
        if item == b"c":
            raise TopicNotFound("there is no topic 'c'")
        return item

    rounds = in_rounds(spark, [b"a", b"b", b"c", b"d"], failing, tasks=2)
    assert next(rounds) == [b"a", b"b"]
    with pytest.raises(TopicNotFound, match="no topic 'c'"):
        next(rounds)


def test_progress_adds_up() -> None:
    told: list[Progress] = []
    teller = Teller("scrub", "segments", told.append, total=5)
    teller.add(2)
    teller.add(3)
    assert [(each.done, each.total) for each in told] == [(2, 5), (5, 5)]
    assert str(told[1]).startswith("scrub: 5 of 5 segments, ")
    Teller("scrub", "segments", None).add(1)
