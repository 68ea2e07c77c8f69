"""Tasks: what one of Spark's Python workers is told to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import InputPartition

from esker.engine import ranges
from esker.engine.batch import Batch
from esker.engine.reader import View
from esker.records import Gap
from esker.spark import history, plan
from esker.spark.history import Past
from esker.spark.rows import Task
from esker.spark.wanted import Wanted


class ArchiveTask(Task):
    """A task that reads an archive."""

    def _items(self, span: plan.Span) -> Iterator[Batch | Gap]:
        return history.read(self.path, span)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


def parts(
    asked: Wanted, found: Sequence[tuple[plan.Span, View | Past]],
    tags: tuple[str, ...] | None = None, gaps: Sequence[Gap] = (),
) -> list[InputPartition]:  # fmt: skip
    """Input partitions for spans, and one for gaps that are known already."""
    weighed = [(span, _atoms(span, seen)) for span, seen in found]
    tasks = plan.shared(weighed, asked.min_partitions, asked.max_records)
    kind = ArchiveTask if asked.archived else Task
    made = [
        Part(
            kind(
                asked.path, task, columns=asked.columns, on_loss=asked.on_loss,
                value_format=asked.value_format, bad_value=asked.bad_value, tags=tags,
                cold=asked.cold,
            )
        )
        for task in tasks or ([[]] if gaps else [])
    ]  # fmt: skip
    if gaps:
        made[0].task.gaps = tuple(gaps)
    return list(made)


def _atoms(span: plan.Span, seen: View | Past) -> list[ranges.Atom]:
    if isinstance(seen, Past):
        return seen.atoms(span.first, span.end)
    return ranges.atoms(seen, span.first, span.end)
