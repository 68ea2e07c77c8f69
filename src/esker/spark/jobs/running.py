"""What all jobs share: telling how far they are, and work that is dealt out in rounds.

Most of what a job does is independent: a segment to check, a span of offsets to turn into a file.
`in_rounds` gives each such item a task of its own and hands back what the tasks told, a round of a
few tasks for each core at a time. Between two rounds the driver writes down what is done, so that a
job that is stopped goes on from there, and says how far it is.

Items and answers travel as bytes (JSON, mostly), so that this works through Spark Connect as well,
where a driver has no more than DataFrames. An error of Esker's in a task is the same error on the
driver, not a worker's traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from esker import errors
from esker.engine.progress import Progress, Teller
from esker.errors import EskerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE: Final = 4  # of a round: enough that the cores seldom wait for its last task

Work = Callable[[bytes], bytes]

__all__ = ["Progress", "Teller", "Work", "cores", "in_rounds"]


class _Told(msgspec.Struct):
    """What a task sends back: an answer, or the error that ended it."""

    answer: bytes = b""
    code: str = ""
    message: str = ""


def in_rounds(
    spark: SparkSession, items: Sequence[bytes], work: Work, tasks: int = 0
) -> Iterator[list[bytes]]:
    """What `work` makes of each item, in the workers; a list, in order, after each round."""
    size = tasks or TASKS_PER_CORE * cores(spark)
    for first in range(0, len(items), size):
        batch = list(items[first : first + size])
        frame = spark.range(0, len(batch), 1, len(batch)).mapInArrow(
            _one_each(batch, work), "at BIGINT, told BINARY"
        )
        rows = sorted((row["at"], bytes(row["told"])) for row in frame.collect())
        told = [msgspec.json.decode(text, type=_Told) for _, text in rows]
        for each in told:
            if each.code:
                raise _error(each)
        yield [each.answer for each in told]


def cores(spark: SparkSession) -> int:
    """How many tasks run at once. Through Connect a driver cannot ask."""
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return os.cpu_count() or 1


def _one_each(items: list[bytes], work: Work) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            told = [msgspec.json.encode(_done(items[number], work)) for number in numbers]
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(told, pa.binary())], ["at", "told"]
            )

    return run


def _done(item: bytes, work: Work) -> _Told:
    try:
        return _Told(work(item))
    except EskerError as problem:
        return _Told(code=problem.code, message=str(problem))


def _error(told: _Told) -> EskerError:
    """The error of a task again; one whose class needs more than a message as its root."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, EskerError) and kind.code == told.code:
            try:
                return kind(told.message)
            except TypeError:
                break
    return EskerError(told.message)
