"""Whatever goes into a body comes out of it, by either way in, whatever columns there are."""

from __future__ import annotations

import struct
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.errors import InvalidRecord
from esker.format import columns as cols
from esker.format.columns import FEW, HEADER_TYPE, Body, Columns, Extra

NOW = 1_800_000_000_000_000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HEADERS = st.dictionaries(TEXT, st.binary(max_size=6), min_size=1, max_size=3)
STAMPS = st.integers(-(2**62), 2**62)
EXTRA = st.tuples(
    st.none() | st.binary(max_size=9),
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | HEADERS,
    st.none() | STAMPS,
)
Row = tuple[bytes, Extra | None]
ROWS = st.lists(st.tuples(st.binary(max_size=20), st.none() | EXTRA), min_size=1, max_size=30)


@given(st.lists(st.binary(max_size=20), max_size=40), st.lists(STAMPS, max_size=40))
def test_arrays_of_a_few_are_those_that_arrow_makes(values: list[bytes], stamps: list[int]) -> None:
    assert cols.few_values(values).equals(pa.array(values, pa.binary()))
    assert cols.few_numbers(stamps).equals(pa.array(stamps, pa.int64()))
    cols.few_values(values).validate(full=True)


def encoded(rows: list[Row]) -> Body:
    extras = {n: extra for n, (_, extra) in enumerate(rows) if extra is not None}
    return cols.from_lists([value for value, _ in rows], extras, NOW)


def stored(body: Body) -> bytes:
    data = b"".join(bytes(part) for part in body.parts)
    assert len(data) == body.size
    return data


def decoded(body: Body) -> Columns:
    return cols.decode(pa.py_buffer(stored(body)), body.bits, body.count, body.min_timestamp)


def expected(rows: list[Row]) -> list[tuple[Any, ...]]:
    found = []
    for value, extra in rows:
        key, tag, node, headers, stamp = extra or (None,) * 5
        found.append((value, NOW if stamp is None else stamp, key, tag, node, headers or None))
    return found


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    none = [None] * columns.count
    headers = none
    if columns.headers is not None:
        headers = [
            {pair["key"]: pair["value"] for pair in cell} if cell else None
            for cell in columns.headers.to_pylist()
        ]
    return list(
        zip(
            columns.values.to_pylist(),
            cols.timestamp_array(columns).to_pylist(),
            columns.keys.to_pylist() if columns.keys is not None else none,
            columns.tags.to_pylist() if columns.tags is not None else none,
            columns.nodes.to_pylist() if columns.nodes is not None else none,
            headers,
            strict=True,
        )
    )


def validated(columns: Columns) -> Columns:
    for column in columns:
        if isinstance(column, pa.Array):
            column.validate(full=True)
    return columns


@given(ROWS)
def test_records_come_out_of_a_body_as_they_went_in(rows: list[Row]) -> None:
    body = encoded(rows)
    assert rows_of(validated(decoded(body))) == expected(rows)
    stamps = [row[1] for row in expected(rows)]
    assert (body.min_timestamp, body.max_timestamp) == (min(stamps), max(stamps))


@given(ROWS)
def test_both_ways_in_give_the_same_bytes(rows: list[Row]) -> None:
    extras = {n: extra for n, (_, extra) in enumerate(rows) if extra is not None}
    values = [value for value, _ in rows]
    one = cols.from_lists(values, extras, NOW)
    other = cols.from_arrow(cols.to_columns(values, extras, NOW))
    assert stored(one) == stored(other)
    assert one[1:] == other[1:]


@given(ROWS, st.data())
def test_a_slice_is_stored_like_the_records_it_holds(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - start))
    part = decoded(encoded(rows)).slice(start, count)
    assert rows_of(part) == expected(rows)[start : start + count]
    again = cols.from_arrow(part)
    assert rows_of(validated(decoded(again))) == expected(rows)[start : start + count]


@given(ROWS, st.data())
def test_the_bytes_of_a_slice_do_not_tell_what_it_was_cut_from(
    rows: list[Row], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - start))
    sliced = decoded(encoded(rows)).slice(start, count)
    copied = Columns(
        *(
            column
            if column is None or isinstance(column, int)
            else pa.array(column.to_pylist(), column.type)
            for column in sliced
        )
    )
    assert stored(cols.from_arrow(sliced)) == stored(cols.from_arrow(copied))


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_batches_put_together_hold_the_records_of_all(lists: list[list[Row]]) -> None:
    joined = cols.concat([decoded(encoded(rows)) for rows in lists])
    assert rows_of(validated(joined)) == [row for rows in lists for row in expected(rows)]
    assert rows_of(decoded(cols.from_arrow(joined))) == rows_of(joined)


@pytest.mark.parametrize("count", [1, FEW - 1, FEW, FEW + 1, 63, 64, 65])
@pytest.mark.parametrize("present", list(product([False, True], repeat=5)))
def test_every_combination_of_columns_is_stored(count: int, present: tuple[bool, ...]) -> None:
    keyed, tagged, noded, headed, stamped = present
    rows: list[Row] = [
        (
            b"v" * (n % 11),
            (
                b"k%d" % n if keyed and n % 3 else None,
                f"t{n}" if tagged and n % 2 else None,
                f"n{n}" if noded else None,
                {"h": b"%d" % n} if headed and n % 4 == 0 else None,
                NOW + n if stamped else None,
            ),
        )
        for n in range(count)
    ]
    body = encoded(rows)
    assert rows_of(validated(decoded(body))) == expected(rows)
    assert bool(body.bits & cols.HEADERS) == headed
    assert bool(body.bits & cols.NODES) == noded
    assert bool(body.bits & cols.KEYS) == (keyed and count > 1)
    assert bool(body.bits & cols.TIMESTAMPS) == (stamped and count > 1)


def test_plain_records_carry_no_columns_at_all() -> None:
    for count in (1, FEW, FEW + 1):
        body = cols.from_lists([b"x"] * count, {}, NOW)
        assert body.bits == 0
        assert body.size == cols_size(count, count)


def cols_size(count: int, value_bytes: int) -> int:
    return ((count + 1) * 4 + 7 & -8) + (value_bytes + 7 & -8)


def test_empty_is_not_absent() -> None:
    rows: list[Row] = [
        (b"", (b"", "", "", None, None)),
        (b"", (None, None, None, None, None)),
    ]
    for padding in (0, FEW):
        more = rows + [(b"", None)] * padding
        assert [row[2:5] for row in rows_of(decoded(encoded(more)))][:2] == [
            (b"", "", ""),
            (None, None, None),
        ]


def test_an_empty_header_value_and_an_empty_header_name_are_kept() -> None:
    rows: list[Row] = [(b"v", (None, None, None, {"": b"", "a": b""}, None))]
    assert rows_of(decoded(encoded(rows)))[0][5] == {"": b"", "a": b""}


def test_every_buffer_begins_on_a_multiple_of_eight() -> None:
    rows: list[Row] = [(b"abc", (b"k", "tag", "n", {"h": b"v"}, NOW + n)) for n in range(3)]
    body = pa.py_buffer(stored(encoded(rows)))
    found = cols.decode(body, encoded(rows).bits, 3, NOW)
    for column in found:
        for buffer in column.buffers():
            if buffer is not None:
                assert (buffer.address - body.address) % 8 == 0


def test_reading_copies_nothing() -> None:
    rows: list[Row] = [(b"abc", (b"k", "tag", "n", {"h": b"v"}, NOW + n)) for n in range(20)]
    data = stored(encoded(rows))
    body = pa.py_buffer(data)
    for column in cols.decode(body, encoded(rows).bits, 20, NOW):
        for buffer in column.buffers():
            if buffer is not None:
                assert body.address <= buffer.address < body.address + len(data)


def test_padding_is_zeros() -> None:
    for rows in ([(b"\xff", (b"\xff", None, None, None, None))], [(b"\xff" * 3, None)] * 17):
        data = stored(encoded(rows))
        assert data.count(b"\xff") == sum(
            len(value) + (len(extra[0]) if extra else 0) for value, extra in rows
        )


@given(st.binary(max_size=200), st.integers(0, 31), st.integers(1, 2**31 - 2))
def test_nonsense_with_a_right_checksum_is_refused_and_allocates_nothing(
    noise: bytes, bits: int, count: int
) -> None:
    try:
        found = cols.decode(pa.py_buffer(noise), bits, count, 0)
    except (ValueError, pa.ArrowException):
        return
    assert found.count == count
    assert found.nbytes <= len(noise)


def test_a_body_whose_offsets_point_behind_its_end_is_refused() -> None:
    body = struct.pack("<ii", 0, 1 << 30) + b"12345678"
    with pytest.raises(ValueError, match="lacks"):
        cols.decode(pa.py_buffer(body), 0, 1, 0)
    with pytest.raises(ValueError, match="negative"):
        cols.decode(pa.py_buffer(struct.pack("<ii", 0, -8)), 0, 1, 0)


def test_header_columns_that_are_slices_of_others_are_stored_alone() -> None:
    pairs = [[("a", b"1")], [], [("b", b"2"), ("c", b"3")], [("d", b"4")]]
    headers = pa.array(pairs, cols.HEADER_MAP).cast(HEADER_TYPE)
    part = Columns(pa.array([b"x", b"y"], pa.binary()), NOW, headers=headers.slice(2, 2))
    found = rows_of(validated(decoded(cols.from_arrow(part))))
    assert [row[5] for row in found] == [{"b": b"2", "c": b"3"}, {"d": b"4"}]


def test_null_headers_become_no_headers() -> None:
    headers = pa.array([None, [("a", b"1")], None], cols.HEADER_MAP).cast(HEADER_TYPE)
    part = Columns(pa.array([b"x", b"y", b"z"], pa.binary()), NOW, headers=headers)
    found = rows_of(decoded(cols.from_arrow(part)))
    assert [row[5] for row in found] == [None, {"a": b"1"}, None]


@given(st.binary(max_size=40), STAMPS)
def test_a_single_record_is_stored_as_a_list_of_one(value: bytes, stamp: int) -> None:
    assert cols.one(value, stamp) == cols.from_lists([value], {}, stamp)


@given(st.binary(max_size=40), st.text(max_size=20), st.binary(max_size=40))
def test_a_single_record_with_one_header_is_stored_as_arrow_stores_it(
    value: bytes, name: str, cell: bytes
) -> None:
    made = cols.one_marked(value, name, cell, 7)
    other = cols.from_lists([value], {0: (None, None, None, {name: cell}, None)}, 7)
    assert made[1:] == other[1:]
    assert b"".join(made.parts) == b"".join(bytes(part) for part in other.parts)


def test_more_values_than_one_array_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chunked = pa.chunked_array([[b"1"], [b"2"]], pa.binary())  # as Arrow makes it beyond 2 GiB
    monkeypatch.setattr(cols.pa, "array", lambda values, kind: chunked)
    with pytest.raises(InvalidRecord, match="more than 2 GiB"):
        cols.to_columns([b"1", b"2"], {}, NOW)


def test_nothing_has_no_bytes() -> None:
    some = pa.array([b"12", b"345"], pa.binary())
    assert [cols.value_bytes(some.slice(n)) for n in range(3)] == [5, 3, 0]
    assert [bytes(part) for part in cols.binary_parts(some.slice(2))] == [bytes(4), b""]
    empty = pa.array([b"", b""], pa.binary())
    assert [bytes(part) for part in cols.binary_parts(empty)] == [bytes(12), b""]


@pytest.mark.parametrize("count", [7, 8, 9, 16])
def test_which_rows_have_a_key_is_stored_from_any_start(count: int) -> None:
    cells = [None if n % 3 == 0 else b"%d" % n for n in range(count + 3)]
    array = pa.array(cells, pa.binary()).slice(3)
    values = pa.array([b"v"] * count, pa.binary())
    back = decoded(cols.from_arrow(Columns(values, NOW, array)))
    assert back.keys.to_pylist() == cells[3:]
