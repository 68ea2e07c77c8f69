"""The index of tags finds what a look at every tag finds; what is damaged is no index."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import tags as fmt

SOME = st.sampled_from(
    [None, "", "a", "ab", "ab-1", "ab-10", "b", "é", "éa", "\U0010ffff", "z" * 99]
)
COLUMNS = st.lists(SOME, max_size=60)


def packed(column: list[str | None], segment: int = 3, salt: int = 99) -> bytes:
    return b"".join(fmt.encode(pa.array(column, pa.string()), segment, salt))


@given(COLUMNS, SOME, st.integers(0, 5))
def test_what_is_found_is_what_is_there(
    column: list[str | None], tag: str | None, cut: int
) -> None:
    asked = tag or "a"
    found = fmt.decode(packed(column), 3, 99, len(column))
    assert found is not None
    there = [row for row, each in enumerate(column) if each == asked]
    assert list(found.equal(asked.encode())) == there
    prefix = asked[:cut]
    alike = [row for row, each in enumerate(column) if each is not None and each.startswith(prefix)]
    assert sorted(found.prefixed(prefix.encode())) == alike


def test_a_slice_of_a_column_is_indexed_as_what_it_is() -> None:
    column = pa.array(["x", None, "b", "a", "b", "y"], pa.string()).slice(1, 4)
    data = b"".join(fmt.encode(column, 3, 99))
    assert data == packed([None, "b", "a", "b"])


@pytest.mark.parametrize(
    "other", [(4, 99, 3), (3, 98, 3), (3, 99, 4)], ids=["segment", "salt", "rows"]
)
def test_the_index_of_another_segment_is_none(other: tuple[int, int, int]) -> None:
    data = packed(["a", "b", None])
    assert fmt.decode(data, 3, 99, 3) is not None
    assert fmt.decode(data, *other) is None


def test_one_flipped_bit_or_one_byte_less_or_more_is_no_index() -> None:
    data = packed(["a", "bb", None, "a"])
    for at in range(len(data)):
        for bit in (1, 128):
            changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            assert fmt.decode(changed, 3, 99, 4) is None
        assert fmt.decode(data[:at], 3, 99, 4) is None
    assert fmt.decode(data + bytes(8), 3, 99, 4) is None
