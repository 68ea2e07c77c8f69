"""`topic[100:200]`, `topic["@-1h":]`: a part of a topic, read when it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, overload

import pyarrow as pa

from esker.engine.batch import SCHEMA, Batch
from esker.engine.reader import Range
from esker.errors import InvalidOption
from esker.records import Gap, Record


class _Cut(Protocol):
    def get(self, offset: int) -> Record: ...
    def slice(self, start: Any = None, stop: Any = None) -> Slice: ...


class Sliced:
    """A topic's brackets, wherever it lies: what has `get` and `slice` has these, too."""

    @overload
    def __getitem__(self: _Cut, place: int) -> Record: ...
    @overload
    def __getitem__(self: _Cut, place: slice) -> Slice: ...
    def __getitem__(self: _Cut, place: int | slice) -> Record | Slice:
        """topic[n]: one record (negative from the end). topic[a:b]: a lazy slice."""
        if isinstance(place, slice):
            if place.step is not None:
                raise InvalidOption("a slice of a topic has no step")
            return self.slice(place.start, place.stop)
        return self.get(place)


class Slice:
    """A lazy part of a topic. Iterate it for records; hand it to polars, pandas or duckdb.

    Both ends are settled when it is first read, and it can be read any number of times.
    """

    def __init__(
        self,
        settle: Callable[[], list[Range]],
        read: Callable[[list[Range]], Iterator[Batch | Gap]],
        count: Callable[[list[Range]], int],
        text: str,
    ) -> None:
        self._settle = settle
        self._read = read
        self._count = count
        self._text = text
        self._ranges: list[Range] | None = None

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        from esker.engine.notebook import slice_html  # for who looks at it in a notebook

        return slice_html(self)

    @property
    def ranges(self) -> list[Range]:
        """The offsets that the slice stands for, one range a shard; settles them."""
        if self._ranges is None:
            self._ranges = self._settle()
        return self._ranges

    def batches(self) -> Iterator[Any]:
        """The records as batches; with gaps="yield" a Gap where records were lost."""
        return self._read(self.ranges)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches():
            if isinstance(batch, Batch):
                yield from batch.records()
            else:
                yield batch

    def __len__(self) -> int:
        """How many records the slice has. No record is read for it."""
        return self._count(self.ranges)

    def reader(self) -> Any:
        """A pyarrow.RecordBatchReader over the slice."""
        found = (batch.arrow for batch in self.batches() if isinstance(batch, Batch))
        return pa.RecordBatchReader.from_batches(SCHEMA, found)

    def to_arrow(self) -> Any:
        """The slice as a pyarrow.Table."""
        return self.reader().read_all()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    @property
    def values(self) -> list[bytes]:
        """All values as Python bytes."""
        found = (batch for batch in self.batches() if isinstance(batch, Batch))
        return [value for batch in found for value in batch.values]
