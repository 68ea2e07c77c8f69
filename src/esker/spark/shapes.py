"""JSON objects of one shape, as columns: what most logs hold, read without a parser.

A program that writes JSON writes the same names in the same order, and only what stands between
them differs:

    {"id": 17, "user": "ann", "amount": 3.25}
    {"id": 18, "user": "bob", "amount": 0.5}

So the first record of a batch is taken apart into what repeats, the runs, and what does not, the
slots: `{"id": `, number, `, "user": "`, text, `", "amount": `, number, `}`. Then all records at
once, by NumPy and Arrow: where the quotation marks are, whether every byte of every run is the
same, whether every slot of a number is one, and what is in the slots that are asked for.

Nothing is guessed. A record is run, slot, run, ..., run from its first byte to its last; texts have
no quotation mark, no backslash and no control character in them, so what stands there is what is
meant; numbers have the form that JSON wants. A batch of which one record is otherwise has no shape,
`columns` says so, and Arrow's parser, which knows all of JSON and takes three times as long, has
it (values.py). Where both know an answer it is the same: tests/spark/test_shapes.py.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

RECORDS_MIN: Final = 64  # for fewer the dozens of calls here take longer than parsing
RECORD_MIN: Final = 8  # bytes, so that a word of them can be looked at
QUOTE, BACKSLASH, MINUS, POINT, ZERO, SPACE = b'"\\-.0 '

_NUMBER: Final = rb"-?[0-9.]+"
_OPEN: Final = re.compile(rb" *\{ *")
_COLON: Final = re.compile(rb" *: *")
_NEXT: Final = re.compile(rb" *(,|\}) *")
_NUMBERED: Final = re.compile(rb"( *: *)(" + _NUMBER + rb")( *(,|\}) *)")

_IN_NUMBERS: Final = np.zeros(256, np.bool_)
_IN_NUMBERS[list(b"0123456789.-")] = True


class Slot(NamedTuple):
    """A value that differs from record to record."""

    name: str
    is_text: bool


class Shape(NamedTuple):
    """What all records of a batch look like: runs, with a slot behind each but the last."""

    runs: list[bytes]
    slots: list[Slot]

    @property
    def marks(self) -> int:
        """Quotation marks of a record."""
        return sum(run.count(b'"') for run in self.runs)


def columns(values: Any, kind: Any, known: Shape | None = None) -> tuple[Any, Shape | None]:
    """Values that are JSON objects of one shape as an array of structs; None if they are not.

    And their shape, which the next ones most likely have: give it as `known`.
    """
    shape = known
    if shape is None and (shape := shape_of(values[0].as_py())) is None:
        return None, None
    found = _columns(values, kind, shape)
    if found is None and known is not None:
        return columns(values, kind)
    return found, None if found is None else shape


def _columns(values: Any, kind: Any, shape: Shape) -> Any:
    count = len(values)
    fields = [kind.field(at) for at in range(kind.num_fields)]
    wanted = {field.name: field.type for field in fields}
    if count < RECORDS_MIN or len(wanted) != len(fields):
        return None
    _, bounds, data = values.buffers()
    ends = np.frombuffer(bounds, np.int32, count + 1, values.offset * 4)
    data = data.slice(int(ends[0]), int(ends[-1] - ends[0]))
    ends = ends - ends[0]
    text = np.frombuffer(data, np.uint8)
    if np.diff(ends).min() < RECORD_MIN or text.min() < SPACE or (text == BACKSLASH).any():
        return None
    marks: Any = np.flatnonzero(text == QUOTE)
    if len(marks) != count * shape.marks:
        return None
    marks = marks.reshape(count, shape.marks)
    if (marks[:, 0] < ends[:-1]).any() or (marks[:, -1] >= ends[1:]).any():
        return None
    begins = _begins(shape, marks, ends)
    if not _fits(shape, begins, text, ends):
        return None
    try:
        found = _slots(shape, begins, data, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # a number that is too large, or not of the type that is wanted
    if found is None:
        return None
    arrays = [
        found[field.name] if field.name in found else pa.nulls(count, field.type)
        for field in fields
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def shape_of(record: bytes) -> Shape | None:
    """The shape of an object of numbers and texts, in which no two have one name."""
    pieces = record.split(b'"')  # outside, inside, outside, ..., outside
    if len(pieces) < 3 or not len(pieces) % 2 or not _OPEN.fullmatch(pieces[0]):
        return None
    runs, slots = [], []
    run, at, more = pieces[0], 1, True
    while at < len(pieces) and more:
        try:
            name = pieces[at].decode()
        except UnicodeDecodeError:
            return None
        run += b'"' + pieces[at] + b'"'
        behind = pieces[at + 1]
        if (numbered := _NUMBERED.fullmatch(behind)) is not None:
            runs.append(run + numbered[1])
            run, mark, at = numbered[3], numbered[4], at + 2
            slots.append(Slot(name, is_text=False))
        elif _COLON.fullmatch(behind) and at + 3 < len(pieces):
            runs.append(run + behind + b'"')
            closed = _NEXT.fullmatch(pieces[at + 3])
            if closed is None:
                return None
            run, mark, at = b'"' + pieces[at + 3], closed[1], at + 4
            slots.append(Slot(name, is_text=True))
        else:
            return None
        more = mark == b","
    if more or at != len(pieces) or len({slot.name for slot in slots}) != len(slots):
        return None
    return Shape([*runs, run], slots)


def _begins(shape: Shape, marks: Any, ends: Any) -> list[Any]:
    """Where each run begins in each record, if the record has this shape."""
    found, passed = [ends[:-1]], shape.runs[0].count(b'"')
    for run in shape.runs[1:]:
        here = run.find(b'"')
        if here < 0:  # the last one, behind a number
            found.append(ends[1:] - len(run))
        else:
            found.append(marks[:, passed] - here)
        passed += run.count(b'"')
    return found


def _fits(shape: Shape, begins: list[Any], text: Any, ends: Any) -> bool:
    """Whether every record is runs and slots, from its first byte to its last."""
    words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
    for number, run in enumerate(shape.runs):
        begin, size = begins[number], len(run)
        behind = begins[number + 1] if number + 1 < len(begins) else ends[1:]
        room = behind - (begin + size)
        least = 0 if number == len(shape.slots) or shape.slots[number].is_text else 1
        if room.min() < least or (number == len(shape.slots) and room.max()):
            return False
        if number == 0:
            places = [*range(0, size - 8, 8), max(0, size - 8)]
        else:  # a short one ends the word, so that none begins before the first record
            places = [*range(0, size - 8, 8), size - 8]
        for place in places:
            there = words[begin + place]
            piece = run[max(place, 0) : place + 8]
            if len(piece) < 8:
                shift = np.uint64(8 * (8 - len(piece)))
                there = there << shift if number == 0 else there >> shift
                piece = piece.rjust(8, b"\0") if number == 0 else piece.ljust(8, b"\0")
            if (there != np.uint64(int.from_bytes(piece, "little"))).any():
                return False
    return True


def _slots(
    shape: Shape, begins: list[Any], data: Any, wanted: dict[str, Any]
) -> dict[str, Any] | None:
    """What is in the slots: those that are asked for, and all numbers, to see that they are."""
    found: dict[str, Any] = {}
    for number, slot in enumerate(shape.slots):
        kind = wanted.get(slot.name)
        if slot.is_text:
            if kind is None:
                continue
            if kind != pa.string():
                return None
        elif kind is not None and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        piece = _cut(data, begins[number] + len(shape.runs[number]), begins[number + 1])
        if slot.is_text:
            found[slot.name] = piece
        elif not _numbers(piece):
            return None
        else:
            made = piece.cast(kind or pa.float64())
            if kind is not None:
                found[slot.name] = made
    return found


def _cut(data: Any, begin: Any, end: Any) -> Any:
    """The texts from `begin` to `end`, one for each record."""
    count = len(begin)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = begin
    bounds[1::2] = end
    bounds[-1] = bounds[-2]
    both = pa.StringArray.from_buffers(2 * count, pa.py_buffer(bounds), data)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))


def _numbers(texts: Any) -> bool:
    """Whether all are numbers as JSON writes them; those with an exponent are left to others.

    That there is one point at most, and no other sign, is found out by who makes numbers of them.
    """
    _, bounds, data = texts.buffers()
    ends = np.frombuffer(bounds, np.int32, len(texts) + 1, texts.offset * 4)
    begin, end = ends[:-1], ends[1:]
    text = np.frombuffer(data, np.uint8)[: ends[-1]]
    if not _IN_NUMBERS[text[ends[0] :]].all():
        return False
    negative = text[begin] == MINUS
    begin = begin + negative
    if (begin >= end).any():
        return False
    if (text[begin] == POINT).any() or (text[end - 1] == POINT).any():
        return False
    longer = begin + 1 < end
    second = text[np.minimum(begin + 1, len(text) - 1)]
    return not (longer & (text[begin] == ZERO) & (second != POINT)).any()
