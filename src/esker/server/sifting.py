"""Which records of a batch a reader wants: by a filter (esker.filters), or by any mask."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from esker.engine.batch import Batch
from esker.filters import Filter, parse
from esker.format.columns import Columns


def filter_of(text: str | None) -> Filter | None:
    """The filter that a client wrote; what is wrong with it is told with its place."""
    return None if text is None else _parsed(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Filter:
    return parse(text)


def kept(batch: Batch, keep: Any) -> Batch:
    """The records that a mask keeps. The batch goes on to where it went."""
    left = Columns(
        *(
            column if column is None or isinstance(column, int) else column.filter(keep)
            for column in batch.columns
        )
    )
    return Batch(batch.shard, batch.begin, left, batch.offsets.filter(keep), batch.next_offset)


def matching(batch: Batch, wanted: Filter | None) -> Batch:
    """The records that a filter wants."""
    if wanted is None or not len(batch):
        return batch
    keep = wanted.keep(batch.columns, batch.offsets, batch.shard)
    return batch if keep is None else kept(batch, keep)
