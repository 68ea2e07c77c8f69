"""A slot of a shard's state page."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import state as fmt
from esker.format.checksum import checksum
from esker.format.state import State

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.integers(0, fmt.NUMBER_MAX - 1)
ID = st.binary(min_size=16, max_size=16)
STATES = st.builds(
    State,
    flags=st.integers(0, 2**16 - 1),
    generation=NUMBER,
    topic=U64,
    shard=U32,
    epoch=U32,
    ceiling=NUMBER,
    segment=NUMBER,
    end_position=U32,
    end_offset=NUMBER,
    earliest=NUMBER,
    evicted=I64,
    boot=ID,
    store=ID,
)
ONE = State(flags=fmt.CLEAN, generation=3, topic=1, shard=0, epoch=1, ceiling=100)


@given(STATES)
def test_a_slot_reads_back_as_it_was_written(state: State) -> None:
    data = fmt.encode_slot(state)
    assert len(data) == fmt.SLOT_SIZE
    assert fmt.decode_slot(data) == state


def test_any_flipped_bit_of_a_slot_is_told_and_never_reads_as_unwritten() -> None:
    data = fmt.encode_slot(ONE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = fmt.decode_slot(bytes(flipped))
        assert isinstance(found, str), f"bit {bit} was believed"
        assert found, f"bit {bit} reads as a slot never written"
        assert not found.startswith("version")


@pytest.mark.parametrize(
    ("field", "number"),
    [("generation", 2**64 - 1), ("ceiling", 2**63 - 1), ("ceiling", -1), ("segment", 2**62),
     ("end_position", 2**32), ("end_offset", -1), ("end_offset", 2**62), ("earliest", -5)],
)  # fmt: skip
def test_numbers_that_nobody_can_have_written_are_told(field: str, number: int) -> None:
    assert isinstance(fmt.decode_slot(fmt.encode_slot(ONE._replace(**{field: number}))), str)


def test_a_slot_that_was_never_written_is_told_apart_from_a_damaged_one() -> None:
    assert fmt.decode_slot(bytes(fmt.SLOT_SIZE)) == ""
    for kept in (1, 100, fmt.SLOT_SIZE - 1):
        assert fmt.decode_slot(fmt.encode_slot(ONE)[:kept]) != ""


def test_a_slot_of_a_later_version_is_told_apart_from_damage() -> None:
    data = bytearray(fmt.encode_slot(ONE))
    data[4:6] = struct.pack("<H", fmt.VERSION + 1)
    data[-8:] = struct.pack("<Q", checksum(bytes(data[:-8])))
    assert fmt.decode_slot(bytes(data)) == f"version {fmt.VERSION + 1}"


def test_slots_lie_in_different_sectors() -> None:
    first, second = fmt.SLOT_POSITIONS
    assert second - first >= 4096
    assert second + fmt.SLOT_SIZE == fmt.FILE_SIZE


def test_clean_is_one_flag_among_others() -> None:
    assert ONE.clean
    assert not ONE._replace(flags=0).clean
    assert ONE._replace(flags=fmt.CLEAN | 8).clean
