"""Redo entries are believed only whole, in their own journal, at their own place."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from esker.format import journal as fmt
from esker.format.checksum import checksum
from esker.format.journal import Entry, JournalHeader

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
MARKS = st.binary(min_size=4, max_size=4)
HEADERS = st.builds(JournalHeader, st.binary(min_size=16, max_size=16), U64, U64, I64, MARKS)
PLACES = st.fixed_dictionaries(
    {"topic": U64, "shard": U32, "synced": U32, "segment": U64, "position": U64, "next_offset": I64}
)


@given(HEADERS)
def test_a_journal_header_reads_back_and_each_of_its_bits_counts(header: JournalHeader) -> None:
    data = fmt.encode_header(header)
    assert len(data) == fmt.HEADER_SIZE
    assert fmt.decode_header(data) == header
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_header(bytes(flipped))
        if fmt.MARK_AT <= bit // 8 < fmt.MARK_AT + fmt.MARK_SIZE:
            assert found == header._replace(mark=bytes(flipped[12:16])), "a mark changes nothing"
            continue
        assert isinstance(found, str), f"bit {bit} was believed"
        assert not found.startswith("version")


def test_a_journal_of_a_later_version_is_told_apart_from_damage() -> None:
    data = bytearray(fmt.encode_header(JournalHeader(bytes(16), 1, 2, 3)))
    data[8:10] = struct.pack("<H", fmt.VERSION + 1)
    data[56:] = struct.pack("<Q", checksum(bytes(data[:56])))
    assert fmt.decode_header(bytes(data)) == f"version {fmt.VERSION + 1}"


@given(st.binary(max_size=50), PLACES, U32, U64)
def test_an_entry_reads_back_as_it_was_written(
    data: bytes, place: dict[str, int], at: int, salt: int
) -> None:
    head = fmt.encode_entry(data, **place, at=at, salt=salt)
    assert len(head) == fmt.ENTRY_SIZE
    found = fmt.decode_entry(head, at, salt)
    assert found == Entry(**place, size=len(data), body_checksum=checksum(data, salt))


@given(st.binary(max_size=50), PLACES, U32, U64)
def test_any_flipped_bit_of_an_entry_is_told_and_never_a_clean_end(
    data: bytes, place: dict[str, int], at: int, salt: int
) -> None:
    head = fmt.encode_entry(data, **place, at=at, salt=salt)
    for bit in range(len(head) * 8):
        flipped = bytearray(head)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_entry(bytes(flipped), at, salt)
        assert isinstance(found, str), f"bit {bit} was believed"
        assert found, f"bit {bit} reads as the end of the journal"


@given(PLACES, U32, U32, U64, U64)
def test_an_entry_is_believed_only_at_its_own_place(
    place: dict[str, int], at: int, elsewhere: int, salt: int, other: int
) -> None:
    head = fmt.encode_entry(b"x", **place, at=at, salt=salt)
    if elsewhere != at:
        assert isinstance(fmt.decode_entry(head, elsewhere, salt), str)
    if other != salt:
        assert isinstance(fmt.decode_entry(head, at, other), str)


def test_zeros_are_the_end_of_a_journal_and_half_an_entry_is_not() -> None:
    place = {"topic": 1, "shard": 0, "synced": 0, "segment": 1, "position": 0, "next_offset": 1}
    head = fmt.encode_entry(b"x", **place, at=64, salt=3)
    assert fmt.decode_entry(bytes(fmt.ENTRY_SIZE), 64, 3) == ""
    for kept in range(1, fmt.ENTRY_SIZE):
        assert fmt.decode_entry(head[:kept], 64, 3) != ""
        assert fmt.decode_entry(head[:kept].ljust(fmt.ENTRY_SIZE, b"\0"), 64, 3) != ""


def test_a_header_that_is_cut_short_and_an_entry_of_another_kind_are_told() -> None:
    assert fmt.decode_header(b"ESKERJNL") == "the file ends inside the journal header"
    entry = bytearray(fmt.ENTRY_SIZE)
    entry[:4] = b"ESKX"
    entry[56:] = struct.pack("<Q", checksum(bytes(entry[:56]), 64 + 3))
    assert fmt.decode_entry(bytes(entry), 64, 3) == "journal entry of an unknown kind"
