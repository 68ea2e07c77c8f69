"""Columns in, columns out: which records go where, with which headers. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.engine.intake import as_copies, fnv1a
from esker.filters import Filter
from esker.format.columns import HEADER_TYPE, Columns
from esker.format.routes import HOPS_HEADER, MARK_HEADER


class Part(NamedTuple):
    """Records for one shard of the destination, and their offsets in the source."""

    shard: int
    columns: Columns
    offsets: Any

    @property
    def last(self) -> int:
        return int(self.offsets[-1].as_py())

    def rows(self, keep: Any) -> Part:
        """The same without some rows; `keep` is a mask."""
        return Part(self.shard, _each(self.columns, "filter", keep), self.offsets.filter(keep))

    def slice(self, start: int, count: int) -> Part:
        return Part(self.shard, self.columns.slice(start, count), self.offsets.slice(start, count))

    def behind(self, offset: int) -> Part:
        """Those whose offset in the source is above this one."""
        if not len(self.offsets) or self.offsets[0].as_py() > offset:
            return self
        return self.rows(pc.greater(self.offsets, offset))


def matching(wanted: Filter | None, whole: Part, shard: int) -> Part:
    """What a filter leaves of records that are from `shard` of the source."""
    if wanted is None or not len(whole.offsets):
        return whole
    keep = wanted.keep(whole.columns, whole.offsets, shard)
    return whole if keep is None else whole.rows(keep)


def as_copied(whole: Part) -> Part:
    """With keys of idempotency as those of copies: in the destination nobody gave them."""
    headers = whole.columns.headers
    if headers is None or not len(whole.offsets):
        return whole
    return whole._replace(columns=whole.columns._replace(headers=as_copies(headers)))


def parts(whole: Part, shards: int) -> list[Part]:
    """Cut by the shards that keys belong to. Without a key, a source shard has one of its own."""
    if not len(whole.offsets):
        return []
    keys, alone = whole.columns.keys, whole.shard % shards
    if shards == 1 or keys is None:
        return [whole._replace(shard=alone)]
    encoded = keys.dictionary_encode()
    home = [fnv1a(key) % shards for key in encoded.dictionary.to_pylist()]
    where = pa.array([*home, alone], pa.int32()).take(pc.fill_null(encoded.indices, len(home)))
    return [
        whole.rows(pc.equal(where, pa.scalar(shard, pa.int32())))._replace(shard=shard)
        for shard in sorted(pc.unique(where).to_pylist())
    ]


def marked(columns: Columns, mark: bytes) -> Columns:
    """With a mark on the last record."""
    rest, headers = columns.count - 1, columns.headers
    cell = headers[rest].as_py() if headers is not None else None
    pairs = [pair for pair in cell or [] if pair["key"] != MARK_HEADER]
    pairs.append({"key": MARK_HEADER, "value": mark})
    before = pa.nulls(rest, HEADER_TYPE) if headers is None else headers.slice(0, rest)
    return columns._replace(headers=pa.concat_arrays([before, pa.array([pairs], HEADER_TYPE)]))


def hopped(whole: Part, most: int) -> tuple[Part, int]:
    """With one hop more on every record; and how many were left out, for they had `most`."""
    count = whole.columns.count
    if not count:
        return whole, 0
    hops = hops_of(whole.columns)
    left = pc.less(hops, most)
    if not pc.all(left).as_py():
        whole, hops = whole.rows(left), hops.filter(left)
    if not len(hops):
        return whole, count
    told = pc.add(hops, 1).cast(pa.string()).cast(pa.binary())
    columns = whole.columns._replace(headers=_with_header(whole.columns.headers, told))
    return whole._replace(columns=columns), count - len(hops)


def hops_of(columns: Columns) -> Any:
    """How often each record was forwarded by a route that counts; 0 where nothing tells."""
    count = columns.count
    none = pa.repeat(pa.scalar(0, pa.int64()), count)
    if columns.headers is None:
        return none
    pairs = columns.headers.flatten()
    hits = pc.indices_nonzero(pc.equal(pairs.field("key"), HOPS_HEADER))
    if not len(hits):
        return none
    rows = pc.list_parent_indices(columns.headers).take(hits)
    at = pc.index_in(pa.arange(0, count), value_set=rows)
    text = pairs.field("value").take(hits).take(at).cast(pa.string())
    digits = pc.and_(pc.utf8_is_digit(text), pc.less(pc.utf8_length(text), 10))
    number = pc.if_else(pc.fill_null(digits, False), text, pa.scalar("0"))
    return number.cast(pa.int64())


def _with_header(headers: Any, values: Any) -> Any:
    """Every record gets the header of hops anew, behind its others."""
    count = len(values)
    rows, names = pa.arange(0, count), pa.repeat(pa.scalar(HOPS_HEADER), count)
    if headers is not None:
        pairs = headers.flatten()
        keep = pc.not_equal(pairs.field("key"), HOPS_HEADER)
        parents = pc.list_parent_indices(headers).cast(pa.int64()).filter(keep)
        rows = pa.concat_arrays([parents, rows])
        names = pa.concat_arrays([pairs.field("key").filter(keep), names])
        values = pa.concat_arrays([pairs.field("value").filter(keep), values])
    table = pa.table({"row": rows, "turn": pa.arange(0, len(rows))})
    order = pc.sort_indices(table, [("row", "ascending"), ("turn", "ascending")])
    flat = pa.StructArray.from_arrays(
        [names.take(order), values.take(order)], fields=list(HEADER_TYPE.value_type)
    )
    counted = pc.value_counts(rows.take(order))  # in order of appearance: each row has one at least
    ends = pc.cumulative_sum(counted.field("counts")).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, flat, type=HEADER_TYPE)


def last_mark(columns: Columns, prefix: bytes) -> bytes | None:
    """The last mark among these records that begins so."""
    if columns.headers is None:
        return None
    pairs = columns.headers.flatten()
    names, values = pairs.field("key"), pairs.field("value")
    hits = pc.and_(pc.equal(names, MARK_HEADER), pc.starts_with(values, prefix))
    found = values.filter(hits)
    return found[-1].as_py() if len(found) else None


def _each(columns: Columns, verb: str, argument: Any) -> Columns:
    return Columns(
        *(
            column if column is None or isinstance(column, int) else getattr(column, verb)(argument)
            for column in columns
        )
    )
