"""The header, the footer and the trailer of a segment."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.segment import Footer, SegmentHeader

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.integers(0, fmt.NUMBER_MAX - 1)
HEADERS = st.builds(
    SegmentHeader,
    store=st.binary(min_size=16, max_size=16),
    topic=NUMBER,
    shard=U32,
    epoch=U32,
    segment=NUMBER,
    base=NUMBER,
    created=I64,
    salt=U64,
    previous_end=NUMBER,
    previous_chain=U64,
    previous_salt=U64,
    previous_high=I64,
    gap=st.sampled_from(sorted(fmt.GAP_REASONS)),
)


@st.composite
def footers(draw: st.DrawFn) -> Footer:
    count = draw(st.integers(0, 9))

    def many(kind: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(kind, min_size=count, max_size=count))

    return Footer(
        draw(U64),
        draw(U64),
        draw(U64),
        draw(U64),
        draw(I64),
        draw(I64),
        many(U32),
        many(U32),
        many(I64),
        many(I64),
    )


def plain(footer: Footer) -> tuple[Any, ...]:
    return (*footer[:6], *(list(array) for array in footer[6:]))


@given(HEADERS)
def test_a_segment_header_reads_back_as_it_was_written(header: SegmentHeader) -> None:
    data = fmt.encode_header(header)
    assert len(data) == fmt.HEADER_SIZE
    assert fmt.decode_header(data) == header


@given(HEADERS)
def test_any_flipped_bit_of_a_segment_header_is_told(header: SegmentHeader) -> None:
    data = fmt.encode_header(header)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_header(bytes(flipped))
        assert isinstance(found, str), f"bit {bit} was believed"
        assert not found.startswith("version"), f"bit {bit} reads as a later version"


@given(HEADERS, st.integers(0, fmt.HEADER_SIZE - 1))
def test_a_segment_header_that_is_cut_short_is_told(header: SegmentHeader, kept: int) -> None:
    assert isinstance(fmt.decode_header(fmt.encode_header(header)[:kept]), str)


@pytest.mark.parametrize("number", [-1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("field", ["base", "previous_end"])
def test_numbers_that_nobody_can_have_written_are_told(field: str, number: int) -> None:
    header = SegmentHeader(bytes(16), 1, 0, 1, 1, 0, 0, 7)._replace(**{field: number})
    assert isinstance(fmt.decode_header(fmt.encode_header(header)), str)


def test_a_later_version_is_told_apart_from_damage() -> None:
    data = bytearray(fmt.encode_header(SegmentHeader(bytes(16), 1, 0, 1, 1, 0, 0, 5)))
    data[8:10] = struct.pack("<H", fmt.VERSION + 1)
    data[120:] = struct.pack("<Q", checksum(bytes(data[:120])))
    assert fmt.decode_header(bytes(data)) == f"version {fmt.VERSION + 1}"


@given(footers())
def test_a_footer_reads_back_as_it_was_written(footer: Footer) -> None:
    found = fmt.decode_footer(fmt.encode_footer(footer))
    assert isinstance(found, Footer)
    assert plain(found) == plain(footer)


@given(footers(), st.binary(min_size=1, max_size=40))
def test_sections_that_a_later_version_adds_to_the_footer_are_passed_over(
    footer: Footer, later: bytes
) -> None:
    found = fmt.decode_footer(fmt.encode_footer(footer) + later)
    assert isinstance(found, Footer)
    assert plain(found) == plain(footer)


@given(footers(), st.data())
def test_a_footer_that_is_cut_short_is_told(footer: Footer, data: st.DataObject) -> None:
    body = fmt.encode_footer(footer)
    kept = data.draw(st.integers(0, len(body) - 1))
    assert isinstance(fmt.decode_footer(body[:kept]), str)


@pytest.mark.parametrize("count", [2**31, 2**48, 2**64 - 1])
def test_a_footer_that_claims_a_huge_directory_is_told_and_allocates_nothing(count: int) -> None:
    body = bytearray(fmt.encode_footer(Footer(1, 2, 3, 4, 5, 6, [7], [8], [9], [10])))
    body[8:16] = struct.pack("<Q", count)
    assert fmt.decode_footer(bytes(body)) == "the frame directory is too short"


@given(U64, U64)
def test_a_trailer_reads_back_and_each_of_its_bits_counts(position: int, file_hash: int) -> None:
    data = fmt.encode_trailer(position, file_hash)
    assert len(data) == fmt.TRAILER_SIZE
    assert fmt.decode_trailer(data) == (position, file_hash)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(fmt.decode_trailer(bytes(flipped)), str), f"bit {bit} was believed"


def test_a_damaged_header_is_told_from_one_that_was_never_there() -> None:
    header = SegmentHeader(bytes(16), 7, 0, 1, segment=5, base=900, created=1, salt=2)
    data = fmt.encode_header(header)
    assert fmt.was_header(data, 5, 900)
    damaged = bytearray(data)
    damaged[0] ^= 1  # one of three things may be wrong
    assert fmt.was_header(bytes(damaged), 5, 900)
    assert not fmt.was_header(bytes(damaged), 6, 900)
    assert not fmt.was_header(data, 6, 901), "of another segment"
    assert not fmt.was_header(bytes(fmt.HEADER_SIZE), 5, 900)
    assert not fmt.was_header(data[:-1], 5, 900)


def test_a_trailer_that_is_cut_short_is_told() -> None:
    data = fmt.encode_trailer(128, 9)
    for kept in range(len(data)):
        assert isinstance(fmt.decode_trailer(data[:kept]), str)
