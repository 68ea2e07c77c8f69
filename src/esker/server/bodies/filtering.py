"""Which records of a batch a reader wants: by tag, by a filter (esker.filters), or by any mask."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow.compute as pc

from esker.engine.batch import Batch
from esker.engine.reader import NO_OFFSETS
from esker.filters import Filter, parse
from esker.format.columns import Columns


class Wanted(NamedTuple):
    """What a record has to have: all of what is given."""

    tag: str | None
    tag_prefix: str | None
    filter: Filter | None


def wanted_of(tag: str | None, tag_prefix: str | None, where: str | None) -> Wanted | None:
    """What a client asked for; None for every record."""
    if tag is None and tag_prefix is None and where is None:
        return None
    return Wanted(tag, tag_prefix, filter_of(where))


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


def masked(batch: Batch, keep: Any) -> Batch:
    """The records that a mask without nulls keeps; a batch that stays whole is not copied."""
    return batch if pc.all(keep).as_py() else kept(batch, keep)


def matching(batch: Batch, wanted: Wanted | None) -> Batch:
    """The records that somebody wants."""
    if wanted is None or not len(batch):
        return batch
    batch = _tagged(batch, wanted)
    if wanted.filter is None or not len(batch):  # values are parsed of those with the tag alone
        return batch
    keep = wanted.filter.keep(batch.columns, batch.offsets, batch.shard)
    return batch if keep is None else kept(batch, keep)


def first(batch: Batch, count: int) -> Batch:
    """So many records of a batch that has more; it goes on at the next of them."""
    columns, offsets = batch.columns.slice(0, count), batch.offsets.slice(0, count)
    return Batch(batch.shard, batch.begin, columns, offsets, batch.offsets[count].as_py())


def _tagged(batch: Batch, wanted: Wanted) -> Batch:
    tags, keep = batch.columns.tags, None
    for text, how in ((wanted.tag, pc.equal), (wanted.tag_prefix, pc.starts_with)):
        if text is None:
            continue
        if tags is None:
            none = batch.columns.slice(0, 0)
            return Batch(batch.shard, batch.begin, none, NO_OFFSETS, batch.next_offset)
        mask = pc.fill_null(how(tags, text), False)
        keep = mask if keep is None else pc.and_(keep, mask)
    return batch if keep is None else masked(batch, keep)
