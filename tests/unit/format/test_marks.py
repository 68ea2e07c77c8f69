"""A file of deletions is believed only as far as every bit of it is the one that was written."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.format import frame
from esker.format import marks as fmt
from esker.format.checksum import checksum
from esker.format.marks import BITMAP, Deletion, Flaw, MarksHeader

SALT = 0x0123456789ABCDEF
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
HEADERS = st.builds(
    MarksHeader,
    number=U64,
    topic=U64,
    shard=U32,
    store=st.binary(min_size=16, max_size=16),
    salt=U64,
)
NUMBER = st.integers(0, (1 << 62) // fmt.BLOCK - 1)
SPARSE = st.integers(0, 8 * BITMAP - 1).map(lambda bit: (1 << bit).to_bytes(BITMAP, "little"))
BITMAPS = SPARSE | st.binary(min_size=BITMAP, max_size=BITMAP)
BLOCKS = st.dictionaries(NUMBER, BITMAPS, min_size=1, max_size=5)
ONE = {7: b"\1" + bytes(BITMAP - 1)}
THREE = {number: bytes([number]) + bytes(BITMAP - 1) for number in (1, 2, 9)}


def written(*deletions: fmt.Blocks, salt: int = SALT) -> bytes:
    """The frames of a file, from behind its header on."""
    data = bytes(fmt.HEADER_SIZE)
    for blocks in deletions:
        data += b"".join(fmt.encode_frames(blocks, len(data), salt))
    return data


def found(data: bytes, salt: int = SALT) -> list[Deletion | Flaw]:
    return list(fmt.decode_frames(data, fmt.HEADER_SIZE, salt))


def flaw(data: bytes) -> Flaw:
    """What ends a file that holds nothing else."""
    (only,) = found(data)
    assert isinstance(only, Flaw)
    return only


# ---- the header ------------------------------------------------------------------------------


@given(HEADERS)
def test_a_header_reads_back_as_it_was_written(header: MarksHeader) -> None:
    data = fmt.encode_header(header)
    assert len(data) == fmt.HEADER_SIZE
    assert fmt.decode_header(data) == header


def test_any_flipped_bit_of_a_header_is_told_and_is_no_later_version() -> None:
    data = fmt.encode_header(MarksHeader(3, 7, 0, bytes(range(16)), SALT))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        told = fmt.decode_header(bytes(flipped))
        assert isinstance(told, str), f"bit {bit} was believed"
        assert not told.startswith("version")


def test_a_header_that_is_cut_off_is_none() -> None:
    data = fmt.encode_header(MarksHeader(3, 7, 0, bytes(16), SALT))
    for size in range(fmt.HEADER_SIZE):
        assert fmt.decode_header(data[:size]) == "not a file of deletions"


def test_a_header_of_a_later_version_is_told_apart_from_damage() -> None:
    data = bytearray(fmt.encode_header(MarksHeader(3, 7, 0, bytes(16), SALT)))
    data[4:6] = struct.pack("<H", fmt.VERSION + 1)
    data[-8:] = struct.pack("<Q", checksum(bytes(data[:-8])))
    assert fmt.decode_header(bytes(data)) == f"version {fmt.VERSION + 1}"


# ---- frames ----------------------------------------------------------------------------------


@given(st.lists(BLOCKS, max_size=4), U64)
def test_deletions_read_back_in_the_order_in_which_they_were_written(
    deletions: list[dict[int, bytes]], salt: int
) -> None:
    data = written(*deletions, salt=salt)
    assert len(data) % frame.ALIGN == 0
    read = found(data, salt)
    assert all(isinstance(item, Deletion) and not item.more for item in read)
    assert [item.blocks for item in read if isinstance(item, Deletion)] == deletions
    ends = [item.end for item in read if isinstance(item, Deletion)]
    assert [len(written(*deletions[: n + 1], salt=salt)) for n in range(len(deletions))] == ends


def test_no_deletion_has_no_frame() -> None:
    assert fmt.encode_frames({}, 64, SALT) == []


def test_only_bodies_of_more_than_one_block_that_get_smaller_are_compressed() -> None:
    noise = {  # nothing in it repeats
        n: b"".join(checksum(b"%d %d" % (n, m)).to_bytes(8, "little") for m in range(64))
        for n in range(2)
    }
    for blocks, codec in ((ONE, frame.PLAIN), (THREE, frame.ZSTD), (noise, frame.PLAIN)):
        data = written(blocks)
        header = frame.decode_header(data, 64, 64, SALT)
        assert isinstance(header, frame.Header)
        assert (header.kind, header.codec, header.count) == (frame.DELETION, codec, len(blocks))
        assert header.raw_size == len(blocks) * (8 + BITMAP)
        assert [item.blocks for item in found(data) if isinstance(item, Deletion)] == [blocks]


def test_a_deletion_of_very_many_blocks_is_several_frames_that_belong_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fmt, "BLOCKS_MAX", 2)
    for size in range(1, 6):
        blocks = {number: bytes([number]) * BITMAP for number in range(size)}
        read = found(written(blocks))
        assert len(read) == -(-size // 2)
        together: dict[int, bytes] = {}
        for item in read:
            assert isinstance(item, Deletion)
            assert item.more == (item is not read[-1])
            together |= item.blocks
        assert together == blocks


@pytest.mark.parametrize("blocks", [ONE, THREE], ids=["plain", "zstd"])
def test_any_flipped_bit_of_a_frame_is_a_flaw(blocks: fmt.Blocks) -> None:
    """Of its header and of its body; what only fills it up to a multiple of 8 means nothing."""
    data = written(blocks)
    header = frame.decode_header(data, 64, 64, SALT)
    assert isinstance(header, frame.Header)
    for bit in range(64 * 8, (128 + header.body_size) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert flaw(bytes(flipped)).position == 64, f"bit {bit} was believed"


@pytest.mark.parametrize("last", [ONE, THREE], ids=["plain", "zstd"])
def test_a_file_that_is_cut_anywhere_holds_the_deletions_before(last: fmt.Blocks) -> None:
    begin, data = len(written(ONE)), written(ONE, last)
    for size in range(begin + 1, len(data)):
        first, end = found(data[:size])
        assert isinstance(first, Deletion)
        assert isinstance(end, Flaw), f"{size} of {len(data)} bytes were believed"
        assert end.position == begin
    assert len(found(data[:begin])) == 1
    assert found(data[: fmt.HEADER_SIZE]) == []


def test_a_frame_of_another_place_or_another_file_is_a_flaw() -> None:
    data = written(ONE, THREE)
    second = data[len(written(ONE)) :]
    assert "checksum" in flaw(data[:64] + second).reason
    assert "checksum" in found(data, SALT + 1)[0].reason  # type: ignore[union-attr]


def test_nothing_is_read_behind_a_flaw() -> None:
    data = bytearray(written(ONE, THREE, ONE))
    data[len(written(ONE)) + 70] ^= 1
    assert [type(item) for item in found(bytes(data))] == [Deletion, Flaw]


# ---- numbers that verify and cannot be right -------------------------------------------------


def forged(body: bytes, salt: int = SALT, **fields: Any) -> bytes:
    """A frame whose checksums are right, whatever it says."""
    told = {"kind": frame.DELETION, "raw_size": len(body), "count": 1, **fields}
    head, _ = frame.encode_header(
        position=64, salt=salt, body_size=len(body), body_checksum=checksum(body, salt), **told
    )
    return bytes(64) + head + body + bytes(-len(body) & 7)


def raw(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers) + bytes(len(numbers) * BITMAP)


def test_a_frame_made_by_hand_is_believed_if_it_is_right() -> None:
    (read,) = found(forged(raw(7)))
    assert isinstance(read, Deletion)
    assert read.blocks == {7: bytes(BITMAP)}
    assert isinstance(found(forged(b"", count=0))[0], Deletion)


PACKED = pa.compress(raw(1, 2), "zstd", asbytes=True)
FORGED: list[tuple[str, bytes]] = [
    ("no deletion", forged(raw(7), kind=frame.DATA)),
    ("no deletion", forged(raw(7), count=2)),
    ("no deletion", forged(raw(7), raw_size=521)),
    ("no deletion", forged(b"", count=fmt.BLOCKS_MAX + 1, raw_size=520 * (fmt.BLOCKS_MAX + 1))),
    ("as long as its header", forged(raw(7)[:-8], raw_size=520)),
    ("as long as its header", forged(PACKED, codec=frame.ZSTD, count=3, raw_size=3 * 520)),
    ("as long as its header", forged(b"", codec=frame.ZSTD, count=0)),
    ("decompressed", forged(PACKED[:-3] + b"???", codec=frame.ZSTD, count=2, raw_size=1040)),
    ("nobody writes", forged(raw(-1))),
    ("nobody writes", forged(raw((1 << 62) // fmt.BLOCK))),
    ("nobody writes", forged(raw(2, 1), count=2)),
    ("nobody writes", forged(raw(2, 2), count=2)),
]


@pytest.mark.parametrize(("what", "data"), FORGED, ids=[what for what, _ in FORGED])
def test_what_nobody_writes_is_a_flaw_though_it_verifies(what: str, data: bytes) -> None:
    assert what in flaw(data).reason
