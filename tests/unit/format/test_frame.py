"""A frame is believed only if every bit of it is the one that was written, where it was written."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import frame
from esker.format.checksum import checksum
from esker.format.frame import Damage, Header

U8 = st.integers(0, 2**8 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

FIELDS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(frame.KINDS)),
        "codec": st.sampled_from([frame.PLAIN, frame.ZSTD]),
        "columns": st.integers(0, 31),
        "body_size": U32,
        "raw_size": U32,
        "count": st.integers(0, 2**31 - 1),  # together they are a number of rows
        "first_row": st.integers(0, 2**31),
        "min_timestamp": I64,
        "max_timestamp": I64,
        "synced": U32,
        "flags": st.sampled_from([0, frame.MORE]),
        "body_checksum": U64,
    }
)


def framed(body: bytes, position: int, salt: int, **more: Any) -> bytes:
    head, _ = frame.encode_header(
        kind=frame.DATA,
        position=position,
        salt=salt,
        body_size=len(body),
        raw_size=len(body),
        body_checksum=checksum(body, salt),
        **more,
    )
    return head + body


@given(FIELDS, U32, U64)
def test_a_header_reads_back_as_it_was_written(
    fields: dict[str, int], position: int, salt: int
) -> None:
    data, check = frame.encode_header(position=position, salt=salt, **fields)
    assert len(data) == frame.HEADER_SIZE
    header = frame.decode_header(data, 0, position, salt)
    assert isinstance(header, Header)
    assert header._asdict() == {**fields, "header_checksum": check}
    assert header.size == frame.HEADER_SIZE + frame.padded(fields["body_size"])


@given(FIELDS, U32, U64)
def test_any_flipped_bit_of_a_header_is_damage_and_never_a_clean_end(
    fields: dict[str, int], position: int, salt: int
) -> None:
    data, _ = frame.encode_header(position=position, salt=salt, **fields)
    for bit in range(frame.HEADER_SIZE * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = frame.decode_header(flipped, 0, position, salt)
        assert isinstance(found, Damage), f"bit {bit} was believed"
        assert not found.zero, f"bit {bit} reads as preallocated space"


@given(st.binary(min_size=1, max_size=80), U64)
def test_any_flipped_bit_of_a_body_is_damage(body: bytes, salt: int) -> None:
    header = frame.decode_header(framed(body, 128, salt), 0, 128, salt)
    assert isinstance(header, Header)
    assert frame.body_damage(header, body, salt) is None
    for bit in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        assert frame.body_damage(header, flipped, salt) is not None, f"bit {bit} was believed"


@given(FIELDS, U32, U32, U64, U64)
def test_a_header_is_believed_only_in_its_own_file_at_its_own_position(
    fields: dict[str, int], position: int, elsewhere: int, salt: int, other: int
) -> None:
    data, _ = frame.encode_header(position=position, salt=salt, **fields)
    if (position + salt) % 2**64 != (elsewhere + salt) % 2**64:
        assert isinstance(frame.decode_header(data, 0, elsewhere, salt), Damage)
    if other != salt:
        assert isinstance(frame.decode_header(data, 0, position, other), Damage)


@given(st.binary(min_size=1, max_size=40), U64, U64)
def test_a_body_is_believed_only_in_its_own_file(body: bytes, salt: int, other: int) -> None:
    header = frame.decode_header(framed(body, 0, salt), 0, 0, salt)
    assert isinstance(header, Header)
    if other != salt:
        assert frame.body_damage(header, body, other) is not None


@given(FIELDS, st.integers(0, frame.HEADER_SIZE - 1))
def test_a_header_that_is_cut_short_is_damage(fields: dict[str, int], kept: int) -> None:
    data, _ = frame.encode_header(position=0, salt=7, **fields)
    found = frame.decode_header(data[:kept], 0, 0, 7)
    assert isinstance(found, Damage)
    assert found.zero == (kept == 0)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_body_that_is_cut_short_is_damage(body: bytes, data: st.DataObject) -> None:
    header = frame.decode_header(framed(body, 0, 7), 0, 0, 7)
    assert isinstance(header, Header)
    kept = data.draw(st.integers(0, len(body) - 1))
    assert frame.body_damage(header, body[:kept], 7) is not None


@given(U32, U64)
def test_zeros_are_the_end_and_never_a_frame(position: int, salt: int) -> None:
    found = frame.decode_header(bytes(frame.HEADER_SIZE), 0, position, salt)
    assert isinstance(found, Damage)
    assert found.zero


@given(st.binary(min_size=frame.HEADER_SIZE, max_size=frame.HEADER_SIZE), U32, U64)
def test_noise_is_never_a_frame(noise: bytes, position: int, salt: int) -> None:
    assert isinstance(frame.decode_header(noise, 0, position, salt), Damage)


def test_a_header_is_found_inside_a_larger_buffer() -> None:
    data = framed(b"abc", 200, 9, count=1)
    found = frame.decode_header(memoryview(b"x" * 200 + data), 200, 200, 9)
    assert isinstance(found, Header)
    assert found.count == 1


def test_rows_that_no_segment_has_are_damage() -> None:
    for count, first_row in ((1, 2**32 - 1), (2**32 - 1, 1), (2**32 - 1, 2**32 - 1)):
        data = framed(b"", 0, 7, count=count, first_row=first_row)
        assert isinstance(frame.decode_header(data, 0, 0, 7), Damage)


@pytest.mark.parametrize(
    ("place", "byte"),
    [(0, 0), (4, frame.VERSION + 1), (5, 0), (5, max(frame.KINDS) + 1), (6, frame.ZSTD + 1)],
    ids=["magic", "version", "kind 0", "unknown kind", "unknown codec"],
)
def test_a_header_of_a_later_version_is_not_guessed_at_even_if_its_checksum_is_right(
    place: int, byte: int
) -> None:
    data = bytearray(framed(b"", 64, 5)[: frame.HEADER_SIZE])
    data[place] = byte
    data[56:] = struct.pack("<Q", checksum(bytes(data[:56]), 5 + 64))
    found = frame.decode_header(data, 0, 64, 5)
    assert isinstance(found, Damage)
    assert "unknown kind or version" in found.reason
    assert not found.zero


@given(st.integers(0, 2**32))
def test_padding_goes_to_the_next_multiple_of_eight(size: int) -> None:
    assert frame.padded(size) % frame.ALIGN == 0
    assert 0 <= frame.padded(size) - size < frame.ALIGN
