"""Values as text and as JSON: what `valueFormat=string` and `valueFormat=json` make of bytes.

JSON objects become columns where they are read: those of one shape by shapes.py, all others by
Arrow's parser. It is given a batch at once, a value a line, and tells objects, not values; so a
batch counts only if every value begins and ends as an object does and there are as many of either.
A line ends every text in JSON, and no object ends where another one begins: then each value is one
object. In a batch that does not count half of it is looked at, and half of that: a bad value among
thousands costs about as much as parsing them once more.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from esker.engine.batch import Batch
from esker.errors import EskerError, InvalidRecord
from esker.spark import shapes

TRIES: Final = 3  # batches of no shape, after which a task looks for none any more
NOT_ONE: Final = "not exactly one JSON object"


def texts(batch: Batch, bad_value: str) -> Any:
    """Values as text."""
    found = batch.columns.values.view(pa.string())
    if is_utf8(found):
        return found
    made: list[str | None] = []
    for row, value in enumerate(batch.values):
        try:
            made.append(value.decode())
        except UnicodeDecodeError as problem:
            if bad_value == "fail":
                offset = batch.offsets[row].as_py()
                raise bad(offset, batch.shard, f"not UTF-8 ({problem})") from None
            made.append(None)
    return pa.array(made, pa.string())


class Objects:
    """Values that are JSON objects, as arrays of structs."""

    def __init__(self, kind: Any, bad_value: str) -> None:
        self._kind = kind
        self._bad_value = bad_value
        self._shape: shapes.Shape | None = None  # of the last batch, and most likely of the next
        self._shapeless = 0

    def of(self, values: Any, offsets: Any, shard: int) -> Any:
        """One struct for each value. Offsets and shard are what a bad one is named by."""
        if values.null_count:  # rows that stand for a gap
            there = values.is_valid()
            found = self.of(values.filter(there), offsets.filter(there), shard)
            places = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
            return found.take(pc.if_else(there, places, pa.scalar(None, pa.int64())))
        if not len(values):
            return pa.array([], self._kind)
        if self._shapeless < TRIES and is_utf8(values.view(pa.string())):
            found, self._shape = shapes.columns(values, self._kind, self._shape)
            self._shapeless = self._shapeless + 1 if found is None else 0
            if found is not None:
                return found
        pieces: list[Any] = []
        self._parse(values, offsets, shard, pieces)
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    def _parse(self, values: Any, offsets: Any, shard: int, pieces: list[Any]) -> None:
        try:
            pieces.append(parsed(values, self._kind))
            return
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
            reason = str(problem)
        if len(values) > 1:
            half = len(values) // 2
            for part in (slice(None, half), slice(half, None)):
                self._parse(values[part], offsets[part], shard, pieces)
        elif self._bad_value == "fail":
            raise bad(offsets[0].as_py(), shard, reason)
        else:
            pieces.append(pa.nulls(1, self._kind))


def parsed(values: Any, kind: Any) -> Any:
    """Values of which each is an object, by Arrow's parser. Raises ArrowInvalid if one is not."""
    text = values.view(pa.string())
    text.validate(full=True)
    text = pc.ascii_trim_whitespace(text)
    whole = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    if not pc.all(whole).as_py():
        raise pa.ArrowInvalid(NOT_ONE)
    lines = pc.binary_join_element_wise(text, "", "\n").buffers()[2]
    fields = [kind.field(at) for at in range(kind.num_fields)]
    found = pj.open_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 16),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(fields),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    ).read_next_batch()  # one block is one batch
    if found.num_rows != len(values):
        raise pa.ArrowInvalid(NOT_ONE)
    arrays = [found.column(field.name) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def is_utf8(text: Any) -> bool:
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def bad(offset: int, shard: int, reason: str) -> EskerError:
    """What a user is told of a value that is not what it should be."""
    return InvalidRecord(
        f"the value at offset {offset} of partition {shard} is {reason}; "
        "onBadValue=null makes it null"
    )
