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
    boot=ID,
    store=ID,
    marks=NUMBER,
    marks_end=NUMBER,
)
BOUNDS = st.lists(NUMBER, unique=True, max_size=2 * fmt.LOSSES_MAX + 1).map(sorted)
ONE = State(flags=fmt.CLEAN, generation=3, topic=1, shard=0, epoch=1, ceiling=100)


@given(STATES, BOUNDS)
def test_a_slot_reads_back_as_it_was_written(state: State, bounds: list[int]) -> None:
    earliest = bounds.pop() if len(bounds) % 2 else (bounds[-1:] or [0])[0]
    losses = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    state = state._replace(earliest=earliest, losses=losses)
    assert state.evicted == (losses[-1][1] if losses else 0)
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
     ("end_position", 2**32), ("end_offset", -1), ("end_offset", 2**62), ("earliest", -5),
     ("marks", 2**62), ("marks_end", 2**64 - 1)],
)  # fmt: skip
def test_numbers_that_nobody_can_have_written_are_told(field: str, number: int) -> None:
    assert isinstance(fmt.decode_slot(fmt.encode_slot(ONE._replace(**{field: number}))), str)


@pytest.mark.parametrize(
    "losses",
    [((5, 4),), ((-1, 4),), ((1, 101),), ((1, 3), (2, 5)), ((1, 2),) * (fmt.LOSSES_MAX + 1)],
)
def test_losses_that_nobody_can_have_written_are_told(losses: fmt.Losses) -> None:
    state = ONE._replace(earliest=100, losses=losses)
    if len(losses) > fmt.LOSSES_MAX:
        data = bytearray(fmt.encode_slot(state._replace(losses=losses[:-1])))
        data[112:120] = struct.pack("<Q", len(losses))
        data[-8:] = struct.pack("<Q", checksum(bytes(data[:-8])))
    else:
        data = bytearray(fmt.encode_slot(state))
    found = fmt.decode_slot(bytes(data))
    assert isinstance(found, str)
    assert "nobody writes" in found


def test_losses_join_where_they_touch_and_where_there_is_no_room_for_more() -> None:
    losses = fmt.with_loss((), 0, 5)
    assert losses == ((0, 5),)
    assert fmt.with_loss(losses, 5, 9) == ((0, 9),), "nothing was deleted between"
    for n in range(1, fmt.LOSSES_MAX):
        losses = fmt.with_loss(losses, 10 * n, 10 * n + 5)
    assert len(losses) == fmt.LOSSES_MAX
    more = fmt.with_loss(losses, 240, 245)
    assert more == ((0, 15), *losses[2:], (240, 245))
    state = ONE._replace(earliest=245, losses=more)
    assert fmt.decode_slot(fmt.encode_slot(state)) == state


def test_losses_and_deletions_have_room_beside_each_other() -> None:
    losses = tuple((4 * n, 4 * n + 2) for n in range(fmt.LOSSES_MAX))
    state = ONE._replace(earliest=100, losses=losses, marks=3, marks_end=2**40)
    data = fmt.encode_slot(state)
    assert fmt.decode_slot(data) == state
    assert struct.unpack_from("<qqQQQQ", data, 456) == (*losses[-1], 3, 2**40, 0, 0)


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
