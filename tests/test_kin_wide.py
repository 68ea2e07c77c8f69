"""Many records at once, as only large stretches have them: every shortcut gives what hopping from
record to record and summing byte by byte gives."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from esker.format.columns import Columns
from esker.kin import aof2, crc64, hops, topics

BASE = 1_700_000_000_000_000


def many(count: int, most: int, chance: random.Random) -> list[bytes]:
    made = [chance.randbytes(chance.randrange(most)) for _ in range(count)]
    return [*made, b"", chance.randbytes(9_000), b"", b"x" * 512]


@pytest.mark.parametrize("begin", [crc64.ONES, 0, 12_345_678_901_234_567_890])
@pytest.mark.parametrize("most", [1, 2, 9, 40, 700, 2_000])
def test_the_crc_of_many_is_that_of_each(most: int, begin: int) -> None:
    values = many(3_000 if most < 100 else 300, most, random.Random(most))
    wanted = [crc64.one(value, begin) for value in values]
    array = pa.array(values, pa.binary())
    assert crc64.many(array, begin).to_pylist() == wanted
    assert crc64.many(array.slice(3), begin).to_pylist() == wanted[3:]
    lengths = pa.array([len(value) for value in values], pa.int32())
    before = crc64.spare(lengths).to_pylist()
    noise = [b"\xa5" * count + value for count, value in zip(before, values, strict=True)]
    assert all(len(each) % 8 == 0 < len(each) for each in noise)
    assert crc64.ended(pa.array(noise, pa.binary()), lengths, begin).to_pylist() == wanted


def test_aof2_reads_many_records_and_finds_the_one_that_is_damaged() -> None:
    chance = random.Random(3)
    values = many(4_000, 700, chance)
    stamps = [BASE + row for row in range(len(values))]
    array, times = pa.array(values, pa.binary()), pa.array(stamps, pa.int64())
    data = bytearray(bytes(64) + bytes(aof2.encode(array, times)))
    assert len(data) > 2 * crc64.FEW * crc64.LANE  # the way of large stretches
    piece, problem, end = aof2.decode(memoryview(bytes(data)))
    assert piece is not None
    assert (problem, end) == ("end", len(data))
    assert piece.columns.values.to_pylist() == values
    assert piece.columns.timestamps.to_pylist() == stamps
    starts = list(hops.hop(bytes(data), 64, len(data), "<", 16, 16).starts)
    assert len(starts) == len(values)
    for _ in range(40):
        row = chance.choice([row for row, value in enumerate(values) if value])
        at = starts[row] + 16 + chance.randrange(len(values[row]))
        bad = bytearray(data)
        bad[at] ^= 1 << chance.randrange(8)
        piece, problem, end = aof2.decode(memoryview(bytes(bad)))
        assert (problem, end) == ("a record whose checksum is wrong", starts[row])
        assert (piece.columns.values.to_pylist() if piece else []) == values[:row]


def test_topics_reads_many_frames_and_finds_the_one_that_is_damaged() -> None:
    chance = random.Random(4)
    values = many(4_000, 700, chance)
    stamps = [BASE + 1_000 * row for row in range(len(values))]
    tags = [chance.choice([None, "a", "tag"]) for _ in values]
    columns = Columns(
        pa.array(values, pa.binary()), pa.array(stamps, pa.int64()), None, pa.array(tags)
    )
    data = bytes(topics.encode(columns, 7)[0])
    found = topics.decode(memoryview(data))
    assert found is not None
    assert (found.problem, found.end) == ("", len(data))
    assert found.columns.values.to_pylist() == values
    assert found.columns.timestamps.to_pylist() == stamps
    assert found.columns.tags is not None
    assert found.columns.tags.to_pylist() == tags
    assert found.seqs.to_pylist() == list(range(8, 8 + len(values)))
    starts = list(hops.hop(data, 0, len(data), "<", 4, 4).starts)
    for _ in range(40):
        row = chance.randrange(len(values))
        bad = bytearray(data)
        bad[starts[row] + 5 + chance.randrange(16)] ^= 1 << chance.randrange(8)  # seq or ts
        found = topics.decode(memoryview(bytes(bad)))
        assert found is not None
        assert (found.problem, found.end) == ("a checksum that is wrong", starts[row])
        assert found.columns.values.to_pylist() == values[:row]


def hopped(data: bytes, end: int, extra: int, header: int, least: int) -> hops.Hops:
    """As a reader does it that looks at one header after the other."""
    starts, at = [], 0
    while at + header <= end:
        (length,) = struct.unpack_from("<I", data, at)
        if not any(data[at : at + header]):
            return hops.Hops(starts, at)
        if length < least:
            return hops.Hops(starts, at, wrong=length)
        if at + extra + length > end:
            return hops.Hops(starts, at, torn=True)
        starts.append(at)
        at += extra + length
    return hops.Hops(starts, at, torn=at < end and any(data[at:end]))


@pytest.mark.parametrize(("extra", "header", "least"), [(16, 16, 0), (4, 4, 33), (12, 12, 0)])
def test_hops_are_those_of_one_step_after_the_other(extra: int, header: int, least: int) -> None:
    chance = random.Random(extra)
    for turn in range(60):
        made = bytearray()
        for _ in range(chance.choice([3, 200, 3_000])):  # above and below what is one window
            length = chance.choice([least, least + 1, least + chance.randrange(300)])
            made += struct.pack("<I", length) + chance.randbytes(extra - 4 + length)
        if turn % 3 == 1:
            made += bytes(chance.choice([1, header, 5_000, 600_000]))
        elif turn % 3 == 2:
            del made[-chance.randrange(1, 200) :]
        if turn % 5 == 4:
            at = chance.randrange(len(made) - 8)
            made[at : at + 4] = struct.pack("<I", chance.choice([0, 1, 32, 1 << 31]))
        data = bytes(made)
        found = hops.hop(data, 0, len(data), "<", extra, header, least=least, zeros_end=True)
        wanted = hopped(data, len(data), extra, header, least)
        assert (list(found.starts), found[1:]) == (wanted.starts, wanted[1:])
