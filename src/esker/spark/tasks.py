"""Tasks: what one of Spark's Python workers is told to read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from esker.records import Gap
from esker.spark import plan
from esker.spark.origin import Seen
from esker.spark.rows import Task
from esker.spark.wanted import Wanted


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task

    def __repr__(self) -> str:
        return f"Part({self.task.spans})"


def parts(
    asked: Wanted, found: Sequence[tuple[plan.Span, Seen]],
    tags: tuple[str, ...] | None = None, gaps: Sequence[Gap] = (),
) -> list[InputPartition]:  # fmt: skip
    """Input partitions for spans, and one for gaps that are known already."""
    tasks = plan.divide(found, asked.min_partitions, asked.max_records)
    made = [
        Part(
            Task(
                asked.path, task, columns=asked.columns, on_loss=asked.on_loss,
                value_format=asked.value_format, bad_value=asked.bad_value, tags=tags,
                cold=asked.cold, archived=asked.archived, access=asked.access,
            )
        )
        for task in tasks or ([[]] if gaps else [])
    ]  # fmt: skip
    if gaps:
        made[0].task.gaps = tuple(gaps)
    return list(made)
