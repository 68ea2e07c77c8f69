"""A log of leases is believed only as far as every bit of it is the one that was written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import frame
from esker.format import leases as fmt
from esker.format.checksum import checksum
from esker.format.leases import Acked, Claimed, Ended, Flaw, LeasesHeader, Snapshot, Told

SALT = 0x0123456789ABCDEF
HEADER = LeasesHeader(3, 12, 1, bytes(range(16)), SALT)
OFFSETS = st.sets(st.integers(0, 300), max_size=60).map(sorted)


def written(*frames: list[fmt.Event]) -> bytes:
    """The frames of a file, behind its header."""
    data = fmt.encode_header(HEADER)
    for events in frames:
        data += fmt.encode_frame(events, len(data), SALT, 1_000 + len(data))
    return data


def read(data: bytes) -> list[Told | Flaw]:
    return list(fmt.decode_frames(data, fmt.HEADER_SIZE, fmt.HEADER_SIZE, SALT))


EVENTS: list[fmt.Event] = [
    Claimed(7, 2**63 - 1, 4242, 10**15, [0, 100, 200, 1], [5] * 101),
    Acked(7, 9, [0, 1]),
    fmt.Nacked(7, 9, [1, 1], 5, "why"),
    fmt.Released(7, 9, [2, 1]),
    fmt.Extended(7, 9, 99, [3, 2]),
    fmt.Died(9),
    fmt.Booted(b"boot"),
    fmt.Delayed([4, 10**16]),
    fmt.Parked([5, 77]),
    fmt.Gone([6, 2], "evicted"),
    fmt.Dead([8, 1], ["no"]),
    fmt.Moved(1, "dead", [9, 1], [3], ["no"]),
    fmt.Settled(1),
    fmt.Requeued([8, 1]),
    fmt.Purged([10, 5]),
    fmt.Paused(True),
    Ended(4),
    Snapshot(cursor=5, held=[(1, 2, 3, 4, [0, 1])], dead=[(3, "x")], boot=b"b"),
]


def test_every_kind_of_event_comes_back_as_it_was_written() -> None:
    data = written(EVENTS, EVENTS[:1])
    whole, one = read(data)
    assert isinstance(whole, Told)
    assert isinstance(one, Told)
    assert whole.events == EVENTS
    assert (one.events, one.end, one.when) == (EVENTS[:1], len(data), 1_000 + whole.end)


def test_a_header_comes_back_and_one_that_is_damaged_does_not() -> None:
    data = fmt.encode_header(HEADER)
    assert fmt.decode_header(data) == HEADER
    assert fmt.decode_header(data[:63]) == "not a log of leases"
    assert fmt.decode_header(b"ESKX" + data[4:]) == "not a log of leases"
    for bit in range(32, 8 * 64):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert isinstance(fmt.decode_header(bytes(changed)), str)


def test_a_header_of_a_later_version_is_told_as_such() -> None:
    data = bytearray(fmt.encode_header(HEADER))
    data[4] = 2
    data[56:] = checksum(bytes(data[:56])).to_bytes(8, "little")
    assert fmt.decode_header(bytes(data)) == "version 2"


def test_no_bit_of_a_frame_can_turn_unnoticed() -> None:
    data = written([Acked(1, 2, [3, 4])])
    body = frame.decode_header(data, 64, 64, SALT)
    assert isinstance(body, frame.Header)
    for place in range(64, 64 + 64 + body.body_size):
        changed = bytearray(data)
        changed[place] ^= 1
        (found,) = read(bytes(changed))
        assert isinstance(found, Flaw)
        assert found.position == 64


def test_a_frame_that_was_cut_anywhere_is_a_flaw() -> None:
    data = written([Acked(1, 2, [3, 4])], [Acked(1, 2, [7, 1])])
    first = read(data)[0]
    for size in range(first.end + 1 if isinstance(first, Told) else 0, len(data)):
        kept, flaw = read(data[:size])
        assert kept == first
        assert isinstance(flaw, Flaw)


def test_a_frame_in_another_place_is_none() -> None:
    data = written([Acked(1, 2, [3, 4])])
    moved = data[:64] + bytes(64) + data[64:]
    (found,) = fmt.decode_frames(moved, 128, 128, SALT)
    assert isinstance(found, Flaw)


def test_frames_of_other_kinds_and_bodies_that_nobody_writes_are_flaws() -> None:
    for body, kind, reason in [
        (b"\x90", frame.LEASES, "a frame that tells of nothing"),
        (b"\xc1", frame.LEASES, "events that nobody writes"),
        (msgspec.msgpack.encode([[99, 1]]), frame.LEASES, "events that nobody writes"),
        (b"\x90", frame.DELETION, "a frame that tells of no lease"),
    ]:
        head, _ = frame.encode_header(
            kind=kind, position=64, salt=SALT, body_size=len(body), raw_size=len(body),
            body_checksum=checksum(body, SALT),
        )  # fmt: skip
        data = fmt.encode_header(HEADER) + head + body + bytes(-len(body) & 7)
        (found,) = read(data)
        assert isinstance(found, Flaw)
        assert found.reason.startswith(reason)


def test_behind_a_flaw_the_next_whole_frame_is_found() -> None:
    data = written([Acked(1, 2, [3, 4])], [Ended(9)], [Ended(10)])
    first, second, _ = read(data)
    assert isinstance(first, Told)
    assert isinstance(second, Told)
    assert fmt.next_frame(data, 64, SALT) == first.end
    assert fmt.next_frame(data, first.end, SALT) == second.end
    assert fmt.next_frame(data, second.end, SALT) is None
    lures = data[: first.end] + b"ESKF" + b"\0ESKF\0\0\0\0\0\0\0"  # not aligned; no header
    assert fmt.next_frame(lures, 64, SALT) is None
    aligned = data[: first.end] + b"ESKF" + bytes(100)
    assert fmt.next_frame(aligned, 64, SALT) is None


@given(OFFSETS)
def test_runs_are_another_way_to_write_offsets(offsets: list[int]) -> None:
    runs = fmt.runs_of(offsets)
    assert list(fmt.offsets_of(runs)) == offsets
    assert fmt.count_of(runs) == len(offsets)
    assert all(count > 0 for count in runs[1::2])


@pytest.mark.parametrize("offsets", [[5], [5, 6, 7], list(range(1000))])
def test_offsets_that_follow_each_other_are_one_run(offsets: list[int]) -> None:
    assert fmt.runs_of(offsets) == [offsets[0], len(offsets)]
