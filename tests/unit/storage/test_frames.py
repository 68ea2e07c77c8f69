"""Bodies to frames and back: packed, compressed, split, merged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from esker.errors import Corruption
from esker.format import columns as cols
from esker.format import frame
from esker.format.columns import Columns
from esker.format.frame import HEADER_SIZE, Header
from esker.storage import merge
from esker.storage.segment import (
    Compress,
    Directory,
    frames_together,
    memoryview_of,
    pack,
    split,
    time_range,
)
from tests.unit.storage.made import NOW, body

SALT = 77
Found = tuple[int, Header, Any]


def framed(made: cols.Body, how: Compress = Compress()) -> Found:  # noqa: B008  # a constant
    parts, size, head = pack(made, 512, SALT, 0, 0, 0, how)
    data = b"".join(bytes(part) for part in parts)
    header = frame.decode_header(head, 0, 512, SALT)
    assert isinstance(header, Header)
    stored = data[HEADER_SIZE : HEADER_SIZE + header.body_size]
    assert frame.body_damage(header, stored, SALT) is None
    assert len(data.ljust(size, b"\0")) == size
    return 512, header, stored


def values(columns: Columns) -> list[bytes]:
    return columns.values.to_pylist()  # type: ignore[no-any-return]


def large(count: int) -> cols.Body:
    """As `append_arrow` makes it: several buffers that are not copied."""
    return cols.from_arrow(Columns(pa.array([b"x" * 50] * count, pa.binary()), NOW))


@pytest.mark.parametrize("made", [body(b"1"), body(b"1", b"22"), large(100)], ids=range(3))
def test_a_body_comes_out_of_its_frame_as_it_went_in(made: cols.Body) -> None:
    _, header, stored = framed(made)
    assert header.codec == frame.PLAIN
    assert merge.decode(header, stored, "/x", 512).count == made.count


@pytest.mark.parametrize(
    ("made", "least", "compressed"),
    [
        (large(100), 0, True), (large(100), 10_000, False), (body(b"1"), 0, False),
        (body(b""), 1, False),
    ],
)  # fmt: skip
def test_a_body_is_compressed_if_it_is_large_enough_and_worth_it(
    made: cols.Body, least: int, compressed: bool
) -> None:
    _, header, stored = framed(made, Compress(frame.ZSTD, least))
    assert (header.codec == frame.ZSTD) == compressed
    assert merge.decode(header, stored, "/x", 512).count == made.count


def test_a_body_that_verifies_and_cannot_be_decoded_is_corruption() -> None:
    _, header, stored = framed(large(100), Compress(frame.ZSTD, 0))
    for bad in (
        header._replace(raw_size=1 << 40), header._replace(raw_size=10),
        header._replace(codec=frame.PLAIN),
    ):  # fmt: skip
        with pytest.raises(Corruption, match="cannot be decoded") as caught:
            merge.decode(bad, stored, "/x", 512)
        assert (caught.value.path, caught.value.position) == ("/x", 512)


def test_frames_of_every_kind_are_merged_in_order() -> None:
    stamped = cols.from_lists([b"s"], {0: (b"k", None, None, None, 5)}, NOW)
    made = [body(b"1"), body(b"2", b"3", at=9), large(40), body(b""), stamped, body(b"e")]
    columns = merge.merge(map(framed, made), "/x")
    assert values(columns) == [b"1", b"2", b"3", *[b"x" * 50] * 40, b"", b"s", b"e"]
    stamps = cols.timestamp_array(columns).to_pylist()
    assert stamps == [NOW, 9, 9, *[NOW] * 40, NOW, 5, NOW]
    assert columns.keys.to_pylist()[-2:] == [b"k", None]


def test_a_merge_may_begin_and_end_with_any_kind_of_frame() -> None:
    columns = merge.merge(map(framed, [large(40), body(b"1"), large(33)]), "/x")
    assert values(columns) == [*[b"x" * 50] * 40, b"1", *[b"x" * 50] * 33]


def test_frames_of_one_time_have_one_time_when_merged() -> None:
    assert merge.merge(map(framed, [body(b"1"), body(b"2")]), "/x").timestamps == NOW
    first_and_last = [body(b"1"), body(b"2", at=9), body(b"3")]
    assert merge.merge(map(framed, first_and_last), "/x").timestamps.to_pylist() == [NOW, 9, NOW]


def test_a_batch_is_split_near_the_target_and_no_row_is() -> None:
    array = pa.array([b"x" * 100] * 50 + [b"y" * 5000] + [b"z"], pa.binary())
    columns = Columns(array.slice(1), NOW)
    assert len(split(columns, 1 << 20)) == 1
    bodies = split(columns, 1000)
    assert sum(made.count for made in bodies) == 51
    assert [made.count for made in bodies] == [11, 11, 11, 11, 6, 1]
    whole = merge.merge(map(framed, bodies), "/x")
    assert values(whole) == array.to_pylist()[1:]
    assert len(split(Columns(pa.array([b"y" * 5000], pa.binary()), NOW), 10)) == 1


def test_small_frames_are_handed_out_together_and_large_ones_alone() -> None:
    def sizes(*raw: int) -> list[Found]:
        return [(0, framed(body(b"1"))[1]._replace(raw_size=size), b"") for size in raw]

    assert frames_together(sizes(10, 10, 10)) == 3
    assert frames_together(sizes(10, 300_000, 10)) == 1
    assert frames_together(sizes(300_000, 10)) == 1
    assert frames_together(sizes(*[30_000] * 30)) == 18


def test_a_directory_remembers_the_largest_time_so_far() -> None:
    directory = Directory()
    assert time_range(directory) == (0, 0)
    for low, high in ((5, 9), (1, 3), (7, 12)):
        directory.add(0, 0, low, high)
    assert directory.max_timestamps == [9, 9, 12]
    assert time_range(directory) == (1, 12)


def test_an_array_of_times_is_seen_from_its_own_start() -> None:
    assert list(memoryview_of(pa.array([1, 2, 3, 4], pa.int64()).slice(1, 2))) == [2, 3]
