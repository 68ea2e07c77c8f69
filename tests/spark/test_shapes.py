"""JSON objects of one shape are read without a parser: with its results, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from esker.spark import shapes
from esker.spark.values import parsed

KIND = pa.struct(
    [("id", pa.int64()), ("user", pa.string()), ("amount", pa.float64()), ("lacking", pa.string())]
)
FEW = 70  # records of a batch; fewer than RECORDS_MIN have no shape


def plain(n: int) -> str:
    return f'{{"id": {n}, "user": "user-{n % 7}", "amount": {n}.25, "pad": "{"x" * (n % 40)}"}}'


def binary(values: list[Any]) -> Any:
    return pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())


def by_the_parser(values: Any, kind: Any) -> Any:
    try:
        return parsed(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        return str(problem)


def both(values: Any, kind: Any = KIND) -> Any:
    """What shapes.py finds, which is what the parser finds, or nothing."""
    found, shape = shapes.columns(values, kind)
    assert (shape is None) == (found is None)
    if found is not None:
        other = by_the_parser(values, kind)
        assert not isinstance(other, str), f"read what the parser refuses: {other}"
        assert str(found.to_pylist()) == str(other.to_pylist())  # as text: -0.0 is not 0.0
        assert found.type == other.type
        found.validate(full=True)
    return found


@pytest.mark.parametrize(
    "shape",
    [
        plain,
        lambda n: f'{{"id":{n},"user":"u","amount":-{n}.5}}',
        lambda n: f' {{ "id" : {n} , "user" : "u{n}" , "amount" : 0.{n:03} }} ',
        lambda n: f'{{"amount": {n}, "id": -{n}}}',
        lambda n: f'{{"a": {n}, "b": "{"é" * n}", "a name of length": "{"{}:,"[n % 4]}", "id": 0}}',
        lambda n: f'{{"":{n},"user":""}}',
        lambda n: f'{{"user": "{"a" * (n + 3)}"}}',
        lambda n: f'{{"": {n + 10}}}',
    ],
)  # fmt: skip
def test_what_programs_write_has_a_shape(shape: Callable[[int], str]) -> None:
    assert both(binary([shape(n) for n in range(FEW)])) is not None


def test_a_piece_of_a_batch_is_read_where_it_lies() -> None:
    values = binary([plain(n) for n in range(500)])
    found = both(values.slice(100, 200))
    assert found.field("id").to_pylist() == list(range(100, 300))
    assert both(values.slice(499 - FEW)).field("id")[-1].as_py() == 499


@pytest.mark.parametrize(
    "number",
    ["01", "-01", "00", "-", "--1", "1-", "1-2", "", " ", "1.", ".5", "-.5", "1.2.3", "+1", "0x10",
     "1e5", "1E5", "NaN", "Infinity", "null", "true", "1 2", "1,", "{}", "[]", "9" * 40,
     "9223372036854775808", "-9223372036854775809", "1.5"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["id", "other"])
def test_a_number_of_another_form_is_left_to_the_parser(number: str, name: str) -> None:
    rest = ', "user": "u", "amount": 1.5}'
    values = [f'{{"{name}": {n}{rest}' for n in range(FEW)]
    values[40] = f'{{"{name}": {number}{rest}'
    found = both(binary(values))
    fine = ("9" * 40, "9223372036854775808", "-9223372036854775809", "1.5")  # where no BIGINT is
    assert (found is not None) == (name == "other" and number in fine)


@pytest.mark.parametrize("number", ["0", "-0", "0.0", "-0.0", "0.10", "100", "1" + "0" * 300])
def test_numbers_are_those_of_the_parser(number: str) -> None:
    values = [f'{{"amount": {number}, "n": {n}}}' for n in range(FEW)]
    assert both(binary(values)) is not None


@pytest.mark.parametrize(
    "odd",
    [
        '{"id": 1, "user": "a\\"b", "amount": 1.5, "pad": ""}',
        '{"id": 1, "user": "a\\u0041", "amount": 1.5, "pad": ""}',
        '{"id": 1, "user": "a\tb", "amount": 1.5, "pad": ""}',
        '{"id": 1, "user": null, "amount": 1.5, "pad": ""}',
        '{"id": 1, "user": "u", "amount": 1.5}',
        '{"id": 1, "amount": 1.5, "user": "u", "pad": ""}',
        '{"id": 1, "User": "u", "amount": 1.5, "pad": ""}',
        '{"id": 1, "user": "u", "amount": 1.5, "pad": ""} ',
        '{"id": 1, "user": "u", "amount": 1.5, "pad": ""}}',
        '{"id": 1, "user": "u", "amount": 1.5, "pad": "",}',
        '{"id": 1, "user": "u", "amount": 1.5; "pad": ""}',
        '{"id": 1, "user" "u", "amount": 1.5, "pad": ""}',
        '["id": 1, "user": "u", "amount": 1.5, "pad": ""]',
        '"id": 1, "user": "u", "amount": 1.5, "pad": ""',
        '{"id": {}, "user": "u", "amount": 1.5, "pad": ""}',
        "", " ", "{}", "x", b"\xff" * 20,
    ],
)  # fmt: skip
def test_one_record_of_another_kind_and_there_is_no_shape(odd: str | bytes) -> None:
    for place in (0, 30, FEW - 1):
        values: list[str | bytes] = [plain(n) for n in range(FEW)]
        values[place] = odd
        assert both(binary(values)) is None


def test_a_quotation_mark_is_not_made_up_for_by_the_next_record() -> None:
    """The number of marks in a batch is right, and which record has them is not."""
    values = [plain(n) for n in range(FEW)]
    values[20] += '"'
    values[21] = values[21].replace('"', "", 1)
    assert both(binary(values)) is None
    one, other = '{"id": 1, "user": "', 'u", "amount": 1.5, "pad": ""}'
    assert both(binary([*values[:19], one, other, *values[22:], plain(1)])) is None


def test_names_come_once_and_types_are_those_that_are_wanted() -> None:
    assert both(binary(['{"id": 1, "id": 2}'] * FEW)) is None
    assert both(binary(['{"user": 12345}'] * FEW)) is None  # a number where a text is wanted
    assert both(binary(['{"id": "12345"}'] * FEW)) is None
    small = pa.struct([("id", pa.int32()), ("amount", pa.float32())])
    assert both(binary(['{"id": 12345, "amount": 0.1}'] * FEW), small) is not None
    assert both(binary(['{"id": 3000000000}'] * FEW), small) is None
    when = pa.struct([("user", pa.timestamp("us", "UTC"))])
    assert both(binary(['{"user": "2026-11-15T10:00:00Z"}'] * FEW), when) is None
    assert both(binary([plain(1)] * (shapes.RECORDS_MIN - 1))) is None


def test_the_shape_of_the_last_batch_is_tried_first_and_then_that_of_this_one() -> None:
    short = binary(['{"id": 12345}'] * FEW)
    long = binary([plain(n) for n in range(FEW)])
    found, shape = shapes.columns(long, KIND)
    for known, values in ((shape, long), (shape, short), (None, short)):
        again, other = shapes.columns(values, KIND, known)
        assert again.equals(both(values))
        assert (other == shape) == (values is long)
    assert found.equals(both(long))
    odd = binary([plain(n) + "x" for n in range(FEW)])
    assert shapes.columns(odd, KIND, shape) == (None, None)


LETTERS = '"""{}[]:,, \\-.0123456789eEnulx\t\n\0é'


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_to_a_batch_nothing_is_read_that_the_parser_reads_otherwise(
    seed: int,
) -> None:
    chance = random.Random(seed)
    read = refused = 0
    for _ in range(150):
        values = [plain(n) for n in range(FEW)]
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(FEW)
            text = values[at]
            begin = chance.randrange(len(text) + 1)
            end = min(len(text), begin + chance.choice((0, 0, 1, 1, 2, 5)))
            new = "".join(chance.choices(LETTERS, k=chance.choice((0, 1, 1, 1, 2, 3))))
            values[at] = text[:begin] + new + text[end:]
            if chance.random() < 0.2:  # what one record loses the next one gets
                values[(at + 1) % FEW] = text[begin:end] + values[(at + 1) % FEW]
        if both(binary(values)) is None:
            refused += 1
        else:
            read += 1
    assert read > 10, "changes within texts and numbers leave the shape as it is"
    assert refused > 50
