"""The tree of a filter, and what it makes of a batch: a mask, by Arrow.

A mask is a boolean array with nulls, and `and`, `or` and `not` are Kleene's: null is what is not
known. Nothing is done per record in Python, but where a value is read as JSON: there msgspec makes
Python objects of the fields that are asked for, and skips the others. That costs more than all the
rest, so what else is asked of a record is asked first, and only those are read that may still
match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from esker.format.columns import Columns, timestamp_array

Path = tuple[str, ...]
Value = str | int | float | bool

_BOOL: Final = pa.bool_()
_ARROW: Final[dict[str, Callable[..., Any]]] = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater,
    ">=": pc.greater_equal,
}  # fmt: skip
_PYTHON: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "starts with": str.startswith, "in": lambda value, many: value in many,
}  # fmt: skip


class Rows:
    """A batch, as a filter looks at it."""

    def __init__(self, columns: Columns, offsets: Any, shard: int) -> None:
        self.columns = columns
        self.offsets = offsets
        self.shard = shard
        self._read: dict[tuple[str, ...], list[Any]] = {}

    def __len__(self) -> int:
        return len(self.columns.values)

    def filter(self, keep: Any) -> Rows:
        columns = Columns(
            *(
                column if column is None or isinstance(column, int) else column.filter(keep)
                for column in self.columns
            )
        )
        return Rows(columns, self.offsets.filter(keep), self.shard)

    def column(self, path: Path) -> Any:
        """What all records have of a field; None if none of them has it."""
        match path[0]:
            case "tag":
                return self.columns.tags
            case "key":
                return self.columns.keys
            case "node":
                return self.columns.nodes
            case "offset":
                return self.offsets
            case "timestamp":
                return timestamp_array(self.columns)
            case "shard":
                return pa.repeat(pa.scalar(self.shard, pa.int64()), len(self))
        return self._header(path[1])

    def _header(self, name: str) -> Any:
        headers = self.columns.headers
        if headers is None:
            return None
        pairs = headers.flatten()
        hits = pc.indices_nonzero(pc.equal(pairs.field("key"), name))
        if not len(hits):
            return None
        hits = hits.take(pa.arange(len(hits) - 1, -1, -1))  # of two of a name the last one counts
        rows = pc.list_parent_indices(headers).take(hits)
        every = pa.arange(0, len(headers))
        return pairs.field("value").take(hits).take(pc.index_in(every, value_set=rows))

    def json(self, path: Path, wanted: Sequence[str]) -> list[Any]:
        """A field of every value, None where there is none. `wanted`: all that will be asked."""
        names = tuple(wanted)
        if names not in self._read:
            self._read[names] = _decoded(self.columns.values.to_pylist(), names)
        place = f"f{names.index(path[1])}"
        found = [getattr(each, place, None) for each in self._read[names]]
        for name in path[2:]:
            found = [each.get(name) if type(each) is dict else None for each in found]
        return found


def _decoded(values: list[bytes], names: Sequence[str]) -> list[Any]:
    """Of each value the fields of these names, as f0, f1, ...; None for what is no JSON object."""
    places = {f"f{number}": name for number, name in enumerate(names)}
    shape = msgspec.defstruct(
        "Wanted", [(place, Any, None) for place in places], rename=places, gc=False
    )
    decode = msgspec.json.Decoder(shape).decode

    def read(value: bytes) -> Any:
        try:
            return decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    return list(map(read, values))


# ---- the tree --------------------------------------------------------------------------------


class Compare(NamedTuple):
    """A field, compared with a value; with several for `in`."""

    path: Path
    how: str
    value: Any
    wanted: tuple[str, ...] = ()  # all fields of the JSON object that the filter asks for

    @property
    def costly(self) -> bool:
        return self.path[0] == "json"

    def mask(self, rows: Rows) -> Any:
        if self.costly:
            return self._json(rows.json(self.path, self.wanted))
        column = rows.column(self.path)
        if column is None:
            return pa.nulls(len(rows), _BOOL)
        if self.how == "in":
            found = pc.is_in(column, value_set=pa.array(self.value, column.type))
            return pc.if_else(pc.is_valid(column), found, pa.scalar(None, _BOOL))
        if self.how == "starts with":
            return pc.starts_with(column, self.value)
        return _ARROW[self.how](column, pa.scalar(self.value, column.type))

    def _json(self, found: list[Any]) -> Any:
        compare, value = _PYTHON[self.how], self.value
        example = value[0] if self.how == "in" else value
        kinds = (int, float) if type(example) in (int, float) else (type(example),)
        made = [compare(each, value) if type(each) in kinds else None for each in found]
        return pa.array(made, _BOOL)


class IsNull(NamedTuple):
    """Whether a record lacks a field."""

    path: Path
    wanted: tuple[str, ...] = ()

    @property
    def costly(self) -> bool:
        return self.path[0] == "json"

    def mask(self, rows: Rows) -> Any:
        if self.costly:
            return pa.array([each is None for each in rows.json(self.path, self.wanted)], _BOOL)
        column = rows.column(self.path)
        if column is None:
            return pa.repeat(pa.scalar(True), len(rows))
        return pc.is_null(column)


class Not(NamedTuple):
    """The contrary, where anything is known."""

    term: Any

    @property
    def costly(self) -> bool:
        return bool(self.term.costly)

    def mask(self, rows: Rows) -> Any:
        return pc.invert(self.term.mask(rows))


class Any_(NamedTuple):
    """One of the terms, or more."""

    terms: tuple[Any, ...]

    @property
    def costly(self) -> bool:
        return any(term.costly for term in self.terms)

    def mask(self, rows: Rows) -> Any:
        made = self.terms[0].mask(rows)
        for term in self.terms[1:]:
            made = pc.or_kleene(made, term.mask(rows))
        return made


class All(NamedTuple):
    """Every one of the terms; those that cost nothing come first."""

    terms: tuple[Any, ...]

    @property
    def costly(self) -> bool:
        return any(term.costly for term in self.terms)

    def mask(self, rows: Rows) -> Any:
        made: Any = None
        for term in self.terms:
            if not term.costly:
                said = term.mask(rows)
                made = said if made is None else pc.and_kleene(made, said)
        if not self.costly:
            return made
        if made is None:
            return self._costly(rows, None)
        open_ = pc.fill_null(made, True)
        left = pc.sum(open_).as_py() or 0
        if not left:
            return made
        if left == len(rows):
            return self._costly(rows, made)
        told = self._costly(rows.filter(open_), made.filter(open_))
        return pc.replace_with_mask(made, open_, told)

    def _costly(self, rows: Rows, made: Any) -> Any:
        for term in self.terms:
            if term.costly:
                said = term.mask(rows)
                made = said if made is None else pc.and_kleene(made, said)
        return made
