"""A sealed segment: found by its footer, or by walking; damage costs its frame."""

from __future__ import annotations

from typing import Any

import pytest

from esker.errors import Corruption, FormatTooNew
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.storage import sealed as sealed_module
from esker.storage.blank import copy_blank, temporary
from esker.storage.hole import encode_hole, end_of_hole
from esker.storage.maps import Maps
from esker.storage.marks import Marks, blocks_of
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment, file_hash_matches, read_footer
from esker.storage.segment import NO_COMPRESSION
from tests.unit.storage.made import NOW, body, disk, filled, flip, log_on, numbers, sealed_on


@pytest.fixture
def files() -> MemoryFiles:
    return disk()


@pytest.fixture
def segment(files: MemoryFiles) -> SealedSegment:
    """Four frames of two rows, as they were written."""
    return sealed_on(files, filled(files), merging=False)


def again(files: MemoryFiles, segment: SealedSegment) -> SealedSegment:
    """The same file, seen for the first time."""
    return SealedSegment(segment.path, segment.name).attach(Maps(files, 1 << 30))


def test_a_segment_says_who_it_is_and_what_it_holds(segment: SealedSegment) -> None:
    assert (segment.base, segment.number, segment.rows) == (100, 1, 8)
    assert segment.header.salt
    assert segment.footer.max_timestamp == NOW + 3_000_000
    assert not segment.rebuilt


def test_rows_are_read_from_any_row_to_any_other(segment: SealedSegment) -> None:
    for first in range(8):
        for stop in range(first + 1, 9):
            row, columns = segment.read(first, stop, 1 << 20)
            assert (row, numbers(columns)) == (first, list(range(first, stop)))
    assert numbers(segment.read(2, 8, 1)[1]) == [2, 3]
    assert numbers(segment.read(2, 8, 100)[1]) == [2, 3], "the next one would be too much"


def test_large_frames_are_read_one_by_one(files: MemoryFiles) -> None:
    log = filled(files, frames=2)
    log.append([body(b"%0200000d" % 4, b"%0200000d" % 5)])
    segment = sealed_on(files, log, merging=False)
    assert numbers(segment.read(0, 6, 1 << 20)[1]) == [0, 1, 2, 3]
    assert numbers(segment.read(4, 6, 1 << 20)[1]) == [4, 5]


def test_a_row_beyond_the_end_is_an_error(segment: SealedSegment) -> None:
    with pytest.raises(Corruption, match="a row beyond the segment's end"):
        segment.read(6, 6, 100)


def test_a_single_row_is_found_and_some_frames_are_kept(
    segment: SealedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_module, "DECODED_MAX", 2)
    for row in (5, 4, 0, 7, 3, 5):
        columns, place = segment.at(row)
        assert numbers(columns)[place] == row
    assert segment.at(4)[0] is segment.at(5)[0]


def test_a_time_is_found(segment: SealedSegment) -> None:
    found = [segment.find_time(NOW + n * 500_000, 8) for n in range(-1, 8)]
    assert found == [0, 0, 2, 2, 4, 4, 6, 6, 8]


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["header", "body"])
def test_damage_costs_its_frame_and_is_told_with_its_offsets(
    files: MemoryFiles, segment: SealedSegment, where: str
) -> None:
    at = segment.footer.positions[1]
    flip(files, segment.path, at + (20 if where == "header" else frame.HEADER_SIZE + 3))
    segment = again(files, segment)
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == [0, 1]
    for look in (lambda: segment.read(2, 8, 100), lambda: segment.at(3)):
        with pytest.raises(Corruption) as caught:
            look()
        assert (caught.value.first, caught.value.last) == (102, 103)
        assert (caught.value.path, caught.value.position) == (segment.path, at)
    assert numbers(segment.read(4, 8, 1 << 20)[1]) == [4, 5, 6, 7]


def test_damage_of_the_last_frame_reaches_to_the_end(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    flip(files, segment.path, segment.footer.positions[3] + 20)
    with pytest.raises(Corruption) as caught:
        again(files, segment).read(6, 8, 100)
    assert (caught.value.first, caught.value.last) == (106, 107)


def test_a_damaged_header_and_a_foreign_name_are_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    other = names.SegmentName(2, 100, True)
    with pytest.raises(Corruption, match="under another segment's name"):
        _ = SealedSegment(segment.path, other).attach(Maps(files, 1 << 30)).header
    flip(files, segment.path, 50)
    with pytest.raises(Corruption, match="does not match its checksum"):
        _ = again(files, segment).header


def test_a_segment_of_a_later_version_is_not_touched(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    data = files.files[segment.path]
    data[8] = 9
    data[120:128] = checksum(bytes(data[:120])).to_bytes(8, "little")
    with pytest.raises(FormatTooNew, match="later Esker"):
        _ = again(files, segment).rows


def tail_of(segment: SealedSegment) -> int:
    return segment.footer.data_end


DAMAGED_ENDS = {
    "no trailer at the end of a sealed segment": lambda data, end: data.__setitem__(-32, 0),
    "trailer does not match its checksum": lambda data, end: data.__setitem__(-20, 0xFF),
    "the footer frame is damaged": lambda data, end: data.__setitem__(end + 9, 0xFF),
    "the footer does not match its checksum": lambda data, end: data.__setitem__(end + 70, 0xFF),
}


@pytest.mark.parametrize("reason", DAMAGED_ENDS)
def test_a_damaged_footer_costs_a_walk_and_no_data(
    files: MemoryFiles, segment: SealedSegment, reason: str
) -> None:
    DAMAGED_ENDS[reason](files.files[segment.path], tail_of(segment))
    segment = again(files, segment)
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8))
    assert segment.rebuilt == reason
    assert not file_hash_matches(segment.data())


def trailer_to(files: MemoryFiles, segment: SealedSegment, position: int) -> None:
    files.files[segment.path][-fmt.TRAILER_SIZE :] = fmt.encode_trailer(position, 0)


def test_a_trailer_may_point_anywhere(files: MemoryFiles, segment: SealedSegment) -> None:
    first = segment.footer.positions[0]
    for position, reason in (
        (1 << 40, "the trailer points behind the file"), (first, "the footer frame is damaged"),
    ):  # fmt: skip
        trailer_to(files, segment, position)
        segment = again(files, segment)
        assert segment.rows == 8
        assert segment.rebuilt == reason


def test_a_short_footer_is_none(segment: SealedSegment) -> None:
    assert read_footer(b"", 0) == "no trailer at the end of a sealed segment"
    assert fmt.decode_footer(b"") == "the footer is too short"


def test_footer_and_frame_damaged_together_are_told(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    flip(files, segment.path, segment.footer.positions[1] + 20)
    flip(files, segment.path, tail_of(segment) + 9)
    found = again(files, segment)
    assert found.rows == 8
    assert found.rebuilt
    with pytest.raises(Corruption, match="damaged on disk") as caught:
        found.read(2, 8, 1 << 20)
    assert (caught.value.first, caught.value.last) == (102, 103)


def test_a_segment_of_which_nothing_is_left_is_told(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    data, first = files.files[segment.path], segment.footer.positions[0]
    data[first:] = bytes(len(data) - first)
    found = again(files, segment)
    assert found.rows == 0  # and the next segment, or the state page, knows how many there were
    assert found.rebuilt
    data[fmt.HEADER_SIZE :] = bytes(len(data) - fmt.HEADER_SIZE)
    with pytest.raises(Corruption, match="no frames can be found"):
        _ = again(files, segment).rows


def test_an_unfinished_batch_at_the_end_is_not_a_whole_segment(files: MemoryFiles) -> None:
    log = log_on(files)
    log.append([body(b"1"), body(b"2")])
    second = log.directory.positions[1]
    segment = sealed_on(files, log, merging=False)
    data = files.files[segment.path]
    data[second:] = bytes(len(data) - second)
    assert again(files, segment).rows == 0


def test_a_frame_that_is_not_the_directory_s_is_refused(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    inside = segment.inside()[1]
    footer = inside.footer._replace(first_rows=[0, 3, 4, 6])
    segment._inside = inside._replace(footer=footer)
    with pytest.raises(Corruption, match="frame and directory disagree"):
        segment.read(3, 8, 100)


def without(segment: SealedSegment, *gone: int) -> None:
    """As after a recovery that sealed around damage: frames are missing in the directory."""
    inside = segment.inside()[1]
    footer = inside.footer
    keep = [n for n in range(len(footer.positions)) if n not in gone]
    arrays = ([list(array)[n] for n in keep] for array in footer[6:])
    segment._inside = inside._replace(
        footer=type(footer)(*footer[:6], *arrays), verified=bytearray(len(keep))
    )


def test_rows_that_no_frame_holds_are_told_and_read_around(segment: SealedSegment) -> None:
    without(segment, 0, 2)
    for look in (lambda: segment.read(0, 8, 100), lambda: segment.at(0)):
        with pytest.raises(Corruption) as first:
            look()
        assert (first.value.first, first.value.last) == (100, 101)
    assert numbers(segment.read(2, 8, 1 << 20)[1]) == [2, 3]
    with pytest.raises(Corruption) as middle:
        segment.read(4, 8, 100)
    assert (middle.value.first, middle.value.last) == (104, 105)
    with pytest.raises(Corruption) as single:
        segment.at(5)
    assert (single.value.first, single.value.last) == (105, 105)
    without(segment, 1)
    with pytest.raises(Corruption) as end:
        segment.read(7, 8, 100)
    assert (end.value.first, end.value.last) == (107, 107)


def test_a_segment_whose_frames_are_all_lost_tells_so(segment: SealedSegment) -> None:
    without(segment, 0, 1, 2, 3)
    with pytest.raises(Corruption) as caught:
        segment.read(0, 8, 100)
    assert (caught.value.first, caught.value.last) == (100, 107)


def test_a_time_is_found_behind_frames_that_are_lost(files: MemoryFiles) -> None:
    """The directory knows the largest time so far, and that may have been one of a lost frame."""
    log = log_on(files)
    for n, seconds in enumerate((0, 5, 1, 9)):
        log.append([body(b"%d" % n, at=NOW + seconds * 1_000_000)])
    segment = sealed_on(files, log, merging=False)
    assert segment.find_time(NOW + 3_000_000, 4) == 1
    without(segment, 1)
    assert segment.find_time(NOW + 3_000_000, 4) == 3
    assert segment.find_time(NOW + 3_000_000, 3) == 3


def test_a_time_is_found_in_a_file_that_is_replaced_meanwhile(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frames begin at other rows; a search that began with the others begins again."""
    made = []
    for merging in (False, True):
        log = log_on(files)
        for n in range(8):
            log.append([body(b"%d" % n, at=NOW + n * 1_000_000)])
        made.append(sealed_on(files, log, merging=merging))
        frames = len(made[-1].footer.positions)
        assert (frames == 8) == (not merging)
        if not merging:
            small_frames = files.files.pop(made[0].path)
    segment, real = made[1], sealed_module.time_row

    def overtaken(*arguments: Any) -> int:
        files.files[segment.path] = small_frames
        assert segment._maps is not None
        segment._maps.drop(segment.path)
        return real(*arguments)

    monkeypatch.setattr(sealed_module, "time_row", overtaken)
    assert segment.find_time(NOW + 6_500_000, 8) == 7


# ---- a file in another's place ---------------------------------------------------------------


@pytest.fixture
def smaller(files: MemoryFiles, segment: SealedSegment) -> bytearray:
    """The same segment without what rows 0 to 2 held."""
    marks = Marks()
    marks.add(blocks_of(range(100, 103)))
    copy_blank(files, segment, marks, NO_COMPRESSION)
    made = files.files.pop(temporary(segment))
    assert len(made) < len(files.files[segment.path])
    return made


def held_by(segment: SealedSegment) -> list[bytes]:
    return [segment.at(row)[0].values[segment.at(row)[1]].as_py() for row in range(8)]


WHOLE = [b"%010d" % row for row in range(8)]
LEFT = [b""] * 3 + WHOLE[3:]


def test_a_segment_that_was_replaced_is_seen_anew(
    files: MemoryFiles, segment: SealedSegment, smaller: bytearray
) -> None:
    assert held_by(segment) == WHOLE
    old_data, old = segment.inside()
    files.files[segment.path] = smaller
    segment.replaced(len(smaller))
    assert segment.size == len(smaller)
    assert segment.footer.data_end < old.footer.data_end
    assert held_by(segment) == LEFT, "nor is a frame kept that was decoded before"
    data, inside = segment.inside()
    assert (bytes(data), inside.size) == (bytes(smaller), len(smaller))
    assert len(inside.verified) == len(inside.footer.positions) == 1
    assert (len(old_data), len(old.footer.positions)) == (old.size, 4), "who has it goes on with it"
    assert segment.read(0, 8, 1 << 20)[1].values.to_pylist() == LEFT


def test_a_directory_is_used_with_the_bytes_it_belongs_to_only(
    files: MemoryFiles, segment: SealedSegment, smaller: bytearray
) -> None:
    """Another process replaces the file; this one's mapping goes when it happens to."""
    larger, maps = files.files[segment.path], segment._maps
    assert maps is not None
    assert held_by(segment) == WHOLE
    files.files[segment.path] = smaller
    assert held_by(segment) == WHOLE, "it is still mapped"
    assert segment.inside()[1].size == len(larger)
    maps.drop(segment.path)
    assert held_by(segment) == LEFT
    assert segment.inside()[1].size == len(smaller)
    assert segment.inside()[1] is segment.inside()[1], "it is not loaded again and again"


def test_who_shows_records_of_another_file_looks_first_what_is_deleted(
    files: MemoryFiles, segment: SealedSegment, smaller: bytearray
) -> None:
    looks: list[int] = []
    segment.looked = lambda: looks.append(segment.inside()[1].size)
    assert segment.rows == 8
    assert segment.footer.records == 8
    assert looks == [], "nothing was shown"
    larger = len(segment.data())
    segment.read(0, 8, 100)
    segment.at(5)
    segment.find_time(NOW, 8)
    assert looks == [larger]
    files.files[segment.path] = smaller
    segment.read(0, 8, 100)
    assert looks == [larger], "it is still the file that was looked into"
    segment.replaced(len(smaller))
    assert looks == [larger]
    segment.at(5)
    segment.read(0, 8, 100)
    assert looks == [larger, len(smaller)]


def test_a_look_that_fails_is_made_again(segment: SealedSegment) -> None:
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 1:
            raise KeyboardInterrupt

    segment.looked = look
    with pytest.raises(KeyboardInterrupt):
        segment.at(0)
    assert held_by(segment) == WHOLE
    assert len(looks) == 2


# ---- holes -----------------------------------------------------------------------------------


def holed(files: MemoryFiles, segment: SealedSegment, number: int) -> SealedSegment:
    """A frame replaced by a hole, as a repair does it."""
    positions = [*segment.footer.positions, segment.footer.data_end]
    at, end = positions[number], positions[number + 1]
    hole = encode_hole(at, end, segment.header.salt, 2 * number, 2)
    files.files[segment.path][at:end] = hole
    segment = again(files, segment)
    without(segment, number)
    return segment


@pytest.mark.parametrize("number", range(4))
def test_a_hole_says_which_rows_are_lost_for_good(
    files: MemoryFiles, segment: SealedSegment, number: int
) -> None:
    segment = holed(files, segment, number)
    for row in range(8):
        expected = 2 * number + 2 if row // 2 == number else None
        if row // 2 == number or row == 0:
            assert end_of_hole(segment, row) == expected
    rest = [row for row in range(8) if row // 2 != number]
    for row in rest:
        columns, place = segment.at(row)
        assert numbers(columns)[place] == row


def test_what_is_damaged_and_not_repaired_is_no_hole(
    files: MemoryFiles, segment: SealedSegment
) -> None:
    assert end_of_hole(segment, 3) is None
    assert end_of_hole(segment, 50) is None
    flip(files, segment.path, segment.footer.positions[1] + 20)
    assert end_of_hole(again(files, segment), 3) is None
    log: Any = log_on(files, segment=2)
    assert end_of_hole(log, 0) is None
