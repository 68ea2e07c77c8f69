"""Marks on batches, and the table of them that is saved: believed whole, or not at all."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import once as fmt
from esker.format.checksum import checksum
from esker.format.once import Keyed, Mark, Numbered, Place, Saved

STORE = bytes(range(16))
OWNER = (STORE, 7, 3)
COUNT = st.integers(1, 1 << 31)
MARKS = st.builds(Keyed, st.binary(max_size=20), COUNT) | st.builds(
    Numbered, st.text(max_size=9), st.integers(0, 1 << 62), COUNT
)
PLACES = st.builds(Place, st.integers(0, 1 << 40), st.integers(1, 1 << 20))
SAVED = Saved(
    9, {b"a": Place(0, 2), b"b": Place(4, 1)}, {("p", 0): Place(2, 1), ("p", 1): Place(8, 1)}
)


def forged(body: Any, version: int = 1, upto: int = 9) -> bytes:
    """A table with a body of one's own choice, and the right checksums."""
    raw = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    head = struct.pack(
        "<4sHHQQII16sQ", b"ESKO", version, 0, upto, 7, 3, len(raw), STORE, checksum(raw)
    )
    return head + struct.pack("<Q", checksum(head)) + raw


@given(MARKS)
def test_a_mark_reads_back_as_it_was_written(mark: Mark) -> None:
    assert fmt.decode_mark(fmt.encode_mark(mark)) == mark


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"text", msgspec.msgpack.encode(["k", b"a"]),
        msgspec.msgpack.encode(["x", b"a", 1]), msgspec.msgpack.encode(["k", b"a", 1, 2]),
        msgspec.msgpack.encode(["k", b"a", 0]), msgspec.msgpack.encode(["p", "a", 0, -1]),
        b"\x94\xa1p\xa1\xff\x00\x01",
    ],
)  # fmt: skip
def test_what_nobody_writes_is_no_mark(data: bytes) -> None:
    assert fmt.decode_mark(data) is None


@given(
    st.dictionaries(st.binary(max_size=9), PLACES, max_size=5),
    st.dictionaries(st.tuples(st.text(max_size=9), st.integers(0, 1 << 62)), PLACES, max_size=5),
)
def test_a_table_reads_back_as_it_was_saved(
    keys: dict[bytes, Place], numbers: dict[tuple[str, int], Place]
) -> None:
    upto = max([0, *(place.end for place in (*keys.values(), *numbers.values()))])
    saved = Saved(upto, keys, numbers)
    assert fmt.decode_saved(fmt.encode_saved(saved, OWNER), OWNER) == saved


def test_every_bit_of_a_table_counts() -> None:
    data = fmt.encode_saved(SAVED, OWNER)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(fmt.decode_saved(bytes(flipped), OWNER), str), f"bit {bit} was believed"


def test_a_part_of_a_table_or_more_than_it_is_none() -> None:
    data = fmt.encode_saved(SAVED, OWNER)
    for size in range(len(data)):
        assert isinstance(fmt.decode_saved(data[:size], OWNER), str), f"{size} bytes were believed"
    assert isinstance(fmt.decode_saved(data + b"\0", OWNER), str)


@pytest.mark.parametrize("owner", [(bytes(16), 7, 3), (STORE, 8, 3), (STORE, 7, 2)])
def test_a_table_is_of_one_shard(owner: tuple[bytes, int, int]) -> None:
    data = fmt.encode_saved(SAVED, OWNER)
    assert fmt.decode_saved(data, owner) == "the keys of another shard"


def test_a_later_version_is_told() -> None:
    assert fmt.decode_saved(forged([[], []], version=2), OWNER) == "version 2"


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1", ["a"], [[[b"a", 0]], []], b"\x92\x90\x91\x94",
        b"\x92\x90\x91\x94\xa1\xff\x00\x00\x01",  # text that is not UTF-8
    ],
)  # fmt: skip
def test_a_body_that_nobody_writes_is_refused(body: Any) -> None:
    assert "cannot be read" in str(fmt.decode_saved(forged(body), OWNER))


@pytest.mark.parametrize("row", [[b"k", 8, 2], [b"k", -1, 1], [b"k", 3, 0]])
def test_keys_of_records_that_nobody_has_written_are_refused(row: list[Any]) -> None:
    assert "nobody has written" in str(fmt.decode_saved(forged([[row], []]), OWNER))
    numbered = ["p", 0, *row[1:]]
    assert "nobody has written" in str(fmt.decode_saved(forged([[], [numbered]]), OWNER))
