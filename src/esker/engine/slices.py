"""`topic[100:200]`, `topic["@-1h":]`: a part of a topic, read when it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from esker.engine.batch import SCHEMA, Batch
from esker.records import Gap, Record


class Slice:
    """A lazy part of a topic. Iterate it for records; hand it to polars, pandas or duckdb.

    Both ends are settled when it is first read, and it can be read any number of times.
    """

    def __init__(self, read: Callable[[], Iterator[Batch | Gap]], text: str) -> None:
        self._read = read
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def batches(self) -> Iterator[Batch]:
        """The records as batches."""
        for batch in self._read():
            if isinstance(batch, Batch):
                yield batch

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            yield from batch.records()

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches())

    def reader(self) -> Any:
        """A pyarrow.RecordBatchReader over the slice."""
        return pa.RecordBatchReader.from_batches(SCHEMA, (batch.arrow for batch in self.batches()))

    def to_arrow(self) -> Any:
        """The slice as a pyarrow.Table."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    @property
    def values(self) -> list[bytes]:
        """All values as Python bytes."""
        return [value for batch in self.batches() for value in batch.values]
