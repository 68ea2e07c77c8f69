"""Filters: what they take, held against an evaluator that looks at one record at a time."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import esker
from esker.engine.batch import Batch
from esker.errors import InvalidFilter
from esker.filters import parse
from esker.format.columns import HEADER_TYPE, Columns, to_columns

EXAMPLES = [
    esker.Record(b'{"amount": 50, "who": {"name": "ann"}}', tag="eu", key=b"k1", offset=0),
    esker.Record(b'{"amount": 150.5, "paid": true}', tag="eu", headers={"kind": b"paid"}, offset=1),
    esker.Record(b'{"amount": "200"}', tag="us", node="n1", headers={"kind": b"open"}, offset=2),
    esker.Record(b"no json", key=b"\xff\x00", offset=3),
    esker.Record(b'{"who": {"name": null}, "unit price": 3}', tag="eu-west", offset=4),
    esker.Record(b"[1, 2]", tag="", headers={"kind": b"", "x.y": b"1"}, offset=5),
]


def columns_of(records: list[esker.Record]) -> Columns:
    extras = {
        row: (record.key, record.tag, record.node, record.headers, record.timestamp)
        for row, record in enumerate(records)
    }
    return to_columns([record.value for record in records], extras, 1_000_000)  # type: ignore[arg-type]


def taken(text: str, records: list[esker.Record] = EXAMPLES, shard: int = 0) -> list[int]:
    """The rows that a filter takes."""
    mask = parse(text).mask(columns_of(records), pa.arange(0, len(records)), shard)
    assert mask.null_count == 0
    return [row for row, took in enumerate(mask.to_pylist()) if took]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('tag == "eu"', [0, 1]),
        ("tag != 'eu'", [2, 4, 5]),
        ("tag is null", [3]),
        ("tag is not null", [0, 1, 2, 4, 5]),
        ('tag in ("us", "eu")', [0, 1, 2]),
        ('tag not in ("us", "eu")', [4, 5]),
        ('tag starts with "eu"', [0, 1, 4]),
        ('tag not starts with "eu"', [2, 5]),
        ('not tag == "eu"', [2, 4, 5]),
        ('key == "k1"', [0]),
        ('key starts with "k"', [0]),
        ("key is not null and offset > 0", [3]),
        ('node == "n1"', [2]),
        ('header.kind == "paid"', [1]),
        ('header.kind == ""', [5]),
        ("header.kind is null", [0, 3, 4]),
        ('header."x.y" == "1"', [5]),
        ("json.amount > 100", [1]),
        ("json.amount >= 50", [0, 1]),
        ("json.amount == '200'", [2]),
        ("json.amount != 50", [1]),
        ("json.amount is null", [3, 4, 5]),
        ("json.amount in (50, 150.5)", [0, 1]),
        ("json.paid == true", [1]),
        ("json.paid != true", []),
        ('json.who.name == "ann"', [0]),
        ('json.who.name starts with "an"', [0]),
        ("json.who is not null", [0, 4]),
        ("json.who.name is null and json.who is not null", [4]),
        ('json."unit price" == 3', [4]),
        ('json."unit price" == 3 and tag starts with "eu-"', [4]),
        ("offset in (1, 3, 5)", [1, 3, 5]),
        ("offset >= 4 or offset < 1", [0, 4, 5]),
        ('not (tag == "eu" or offset > 3)', [2]),
        ('tag == "eu" and header.kind == "paid" and json.amount > 100', [1]),
        ("shard == 0", [0, 1, 2, 3, 4, 5]),
        ("shard != 0", []),
        ('timestamp == "1970-01-01T00:00:01"', [0, 1, 2, 3, 4, 5]),
        ('timestamp >= "1970-01-01T01:00:01+01:00" and timestamp < 1_000_001', [0, 1, 2, 3, 4, 5]),
        ('timestamp > "2026-11-15"', []),
        ('tag == "eu" AND NOT header.kind IS NULL', [1]),
        ('tag == "e\\u0075"', [0, 1]),
        ("offset == -1", []),
    ],
)
def test_a_filter_takes_the_records_for_which_it_is_true(text: str, rows: list[int]) -> None:
    assert taken(text) == rows


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        ("", 0, "nothing to compare"),
        ("tags == 'eu'", 0, "did you mean 'tag'"),
        ("tag = 'eu'", 4, "two of them"),
        ("tag == eu", 7, 'in quotes: == "eu"'),
        ("tag == null", 7, "is null"),
        ("tag == 5", 7, "text, in quotes"),
        ("tag == 'eu", 7, "not closed"),
        ("tag == 'e\\q'", 9, "backslash"),
        ("tag == 'e\\u00'", 9, "hexadecimal"),
        ("tag == '\\ud800'", 8, "hexadecimal"),
        ("(tag == 'eu'", 12, "not closed"),
        ("tag == 'eu')", 11, "too much"),
        ("tag == 'eu' offset > 1", 12, "and or or"),
        ("tag", 3, "comparison is missing"),
        ("tag not == 'x'", 8, "in, starts with"),
        ("tag is 'x'", 7, "null is missing"),
        ("tag starts 'x'", 11, "with is missing"),
        ("tag starts with 5", 16, "in quotes"),
        ("offset starts with 'x'", 19, "starts with nothing"),
        ("tag in 'x'", 7, "parentheses"),
        ("tag in ('x'", 11, "not closed"),
        ("json.a in (1, 'x')", 14, "one kind"),
        ("json.a > true", 9, "no order"),
        ("json == 1", 0, "json.NAME"),
        ("tag.x == 1", 0, "no fields"),
        ("header.a.b == 'x'", 0, 'header."a.b"'),
        ("json. == 1", 5, "name is missing"),
        ("'eu' == tag", 0, "field comes first"),
        ("and", 0, "a field is missing"),
        ("offset > 1.5", 9, "whole number"),
        ("offset > 99999999999999999999", 9, "64 bits"),
        ("json.a > 1e999", 9, "not a number"),
        ("json.a > 1x", 9, "not a number"),
        ("timestamp > 'noon'", 12, "a time is such as"),
        ("timestamp > 1.5", 12, "a time is such as"),
        ("tag == 'a' && tag == 'b'", 11, "write and, or"),
        ("tag ~ 'a'", 4, "does not belong"),
        ("tag == ", 7, "a value is missing"),
        ("(" * 33 + "tag == 'a'" + ")" * 33, 32, "more than 32"),
        ("not " * 33 + "tag == 'a'", 128, "more than 32"),
        (" or ".join(["offset == 1"] * 257), 256 * 15 + 7, "more than 256"),
        ("tag == '" + "a" * 5000 + "'", 0, "at most 4096"),
        (5, 0, "a filter is text"),
    ],
)
def test_what_is_no_filter_is_told_with_its_place(text: Any, at: int, told: str) -> None:
    with pytest.raises(InvalidFilter, match="where") as caught:
        parse(text)
    assert told in str(caught.value)
    assert caught.value.at == at
    lines = str(caught.value).split("\n")
    if len(lines) > 1:
        shown = lines[1][len(lines[2]) - 1 :]
        assert text[at : at + 1].isspace() or shown[:1] == text[at : at + 1]


def test_a_filter_tells_its_text_and_whether_it_reads_values() -> None:
    made = parse('tag == "eu"')
    assert str(made) == 'tag == "eu"'
    assert 'tag == "eu"' in repr(made)
    assert not made.reads_values
    assert parse("not (tag == 'a' or json.x == 1) and offset > 1").reads_values


def test_all_that_match_need_no_mask() -> None:
    columns = columns_of(EXAMPLES)
    assert parse("offset >= 0").keep(columns, pa.arange(0, 6), 0) is None
    assert parse("offset > 0").keep(columns, pa.arange(0, 6), 0).to_pylist() == [False] + [True] * 5


def test_values_are_read_only_where_the_rest_leaves_it_open(monkeypatch: Any) -> None:
    read: list[int] = []
    from esker.filters import tree

    plain = tree._decoded
    monkeypatch.setattr(
        tree, "_decoded", lambda values, names: read.append(len(values)) or plain(values, names)
    )
    assert taken('json.amount > 100 and tag == "eu" and json.paid == true') == [1]
    assert read == [3], "tag eu, and the one without a tag; once for both fields"
    read.clear()
    assert taken('json.amount > 100 and tag == "nowhere" and offset < 3') == []
    assert read == []


# ---- against one record at a time ------------------------------------------------------------

Tree = tuple[Any, ...]
TEXTS = ["", "a", "ab", "b", "eu", "\N{SNOWMAN}", 'qu"ote', "back\\slash"]
NUMBERS = [0, 1, -1, 2, 2.5, 1e20, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
texts = st.sampled_from(TEXTS)
numbers = st.sampled_from(NUMBERS)
whole = st.integers(-3, 10)
leaves = st.one_of(texts, numbers, st.booleans(), st.none(), st.lists(whole, max_size=2))
values = st.one_of(
    st.dictionaries(
        st.sampled_from(["x", "y z", "deep"]),
        st.one_of(leaves, st.dictionaries(st.sampled_from(["x", "q"]), leaves, max_size=2)),
        max_size=3,
    ).map(lambda found: json.dumps(found).encode()),
    st.sampled_from([b"", b"{", b'{"x": 1} {"x": 2}', b"5", b"null", b'{"x": \xff}', b'"x"']),
)
records = st.builds(
    esker.Record,
    values,
    st.none() | texts.map(str.encode),
    st.none() | texts,
    st.none() | texts,
    st.none() | st.dictionaries(st.sampled_from(["h", "other"]), texts.map(str.encode), max_size=2),
    st.integers(0, 5),
)
paths = st.sampled_from(
    [("tag",), ("key",), ("node",), ("header", "h"), ("offset",), ("shard",), ("timestamp",),
     ("json", "x"), ("json", "y z"), ("json", "deep", "x"), ("json", "deep")]
)  # fmt: skip


@st.composite
def comparisons(draw: Any) -> Tree:
    path = draw(paths)
    how = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "starts with", "is null"]))
    if path[0] in ("offset", "shard", "timestamp"):
        kind = whole
    elif path[0] == "json":
        kind = draw(st.sampled_from([texts, numbers, st.booleans()]))
    else:
        kind = texts
    if how == "is null":
        return (how, path)
    if how == "in":
        return (how, path, tuple(draw(st.lists(kind, min_size=1, max_size=3))))
    value = draw(kind)
    if how == "starts with" and not isinstance(value, str):
        how = "=="
    if isinstance(value, bool) and how != "!=":
        how = "=="
    return (how, path, value)


trees = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def written(tree: Tree) -> str:
    match tree:
        case ("not", inner):
            return f"not ({written(inner)})"
        case ("and" | "or" as how, terms):
            return "(" + f" {how} ".join(map(written, terms)) + ")"
        case ("is null", path):
            return f"{_name(path)} is null"
        case ("in", path, many):
            return f"{_name(path)} in ({', '.join(map(_literal, many))})"
    return f"{_name(tree[1])} {tree[0]} {_literal(tree[2])}"


def _name(path: tuple[str, ...]) -> str:
    return ".".join(f'"{name}"' if " " in name else name for name in path)


def _literal(value: Any) -> str:
    return json.dumps(value)


def plainly(tree: Tree, record: esker.Record) -> bool | None:
    """What a filter says of one record: true, false or not known."""
    match tree:
        case ("not", inner):
            said = plainly(inner, record)
            return None if said is None else not said
        case ("and" | "or" as how, terms):
            all_said = [plainly(term, record) for term in terms]
            if (how == "or") in all_said:
                return how == "or"
            return None if None in all_said else how == "and"
        case ("is null", path):
            return _field(path, record) is None
    how, path, value = tree
    found = _field(path, record)
    if isinstance(found, bytes):
        value = tuple(v.encode() for v in value) if how == "in" else value.encode()
    example = value[0] if how == "in" else value
    if _sort(found) != _sort(example):
        return None
    return {
        "==": lambda: found == value, "!=": lambda: found != value, "<": lambda: found < value,
        "<=": lambda: found <= value, ">": lambda: found > value, ">=": lambda: found >= value,
        "in": lambda: found in value, "starts with": lambda: found.startswith(value),
    }[how]()  # type: ignore[no-any-return]  # fmt: skip


def _sort(value: Any) -> Any:
    return "number" if type(value) in (int, float) else type(value)


def _field(path: tuple[str, ...], record: esker.Record) -> Any:
    if path[0] == "header":
        return (record.headers or {}).get(path[1])
    if path[0] != "json":
        return getattr(record, path[0])
    try:
        found = msgspec.json.decode(record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    for name in path[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found


@settings(deadline=None)
@given(st.lists(records, min_size=1, max_size=8), trees, st.integers(0, 2), st.integers(0, 3))
def test_a_filter_says_of_a_batch_what_it_says_of_each_record(
    given_records: list[esker.Record], tree: Tree, shard: int, cut: int
) -> None:
    every = [
        msgspec.structs.replace(record, offset=n, shard=shard)
        for n, record in enumerate(given_records)
    ]
    begin = min(cut, len(every) - 1)  # a slice of Arrow arrays is not at their beginning
    columns = columns_of(every).slice(begin, len(every) - begin)
    batch = Batch(shard, begin, columns)
    mask = parse(written(tree)).mask(columns, batch.offsets, shard)
    assert mask.to_pylist() == [plainly(tree, record) is True for record in every[begin:]]


@settings(deadline=None)
@given(st.text(alphabet="tagjson.hedrkin()'\"=!<>,0123456789 \\u-\n\ud800", max_size=60))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        parse(text).mask(columns_of(EXAMPLES), pa.arange(0, 6), 0)
    except InvalidFilter as problem:
        at = problem.at
    else:
        at = 0
    assert 0 <= at <= len(text)


def test_of_two_headers_of_one_name_the_last_one_counts() -> None:
    pairs = [[("h", b"1"), ("h", b"2")], None, [("h", b"1")]]
    headers = pa.array(pairs, HEADER_TYPE)
    columns = Columns(pa.array([b"", b"", b""], pa.binary()), 0, headers=headers)
    assert parse('header.h == "2"').mask(columns, pa.arange(0, 3), 0).to_pylist() == [
        True, False, False,
    ]  # fmt: skip
