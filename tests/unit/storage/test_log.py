"""The log being written: a batch or nothing, read while it grows, sealed in one of two ways."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from esker.errors import Corruption, DiskFull, StorageError
from esker.format import frame
from esker.format import segment as fmt
from esker.format.columns import from_lists
from esker.options import topic_options
from esker.storage import scan
from esker.storage.files import told
from esker.storage.log import ALLOCATE_FROM, ALLOCATE_MIN, LogSegment, open_log
from esker.storage.memory import MemoryFile, MemoryFiles
from esker.storage.segment import Compress, compression_of
from esker.testing import SimulatedDisk
from tests.unit.storage.made import (
    CONFIG,
    FOLDER,
    NOW,
    body,
    disk,
    filled,
    flip,
    log_on,
    numbers,
    sealed_on,
)


class Stubborn(MemoryFiles):
    """Refuses one kind of call."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call
        self.make_dir(FOLDER)

    def open(self, path: str, mode: Any) -> MemoryFile:
        return _Refusing(super().open(path, mode), self)


class _Refusing(MemoryFile):
    __slots__ = ("files",)

    def __init__(self, file: MemoryFile, files: Stubborn) -> None:
        super().__init__(file.path, file.data)
        self.files = files

    def _ask(self, call: str) -> None:
        if self.files.call == call:
            raise told(OSError(errno.ENOSPC, "No space left on device"), call, self.path)

    def write(self, position: int, parts: Any) -> None:
        self._ask("write")
        super().write(position, parts)

    def sync(self) -> None:
        self._ask("sync")

    def allocate(self, size: int) -> None:
        self._ask("allocate")
        super().allocate(size)


def test_a_log_that_cannot_be_begun_leaves_no_file() -> None:
    files = Stubborn("write")
    with pytest.raises(DiskFull):
        log_on(files)
    assert files.list(FOLDER) == []


def test_what_a_failed_beginning_left_makes_way_and_a_log_with_records_does_not() -> None:
    files = disk()
    log_on(files).close()  # of a creation that failed, and could not be undone either
    log = log_on(files)
    log.append([body(b"1")])
    with pytest.raises(StorageError, match="File exists"):
        log_on(files)


def test_rows_are_read_from_any_row_to_any_other() -> None:
    log = filled(disk())
    assert (log.base, log.number, log.rows, log.frames) == (100, 1, 8, 5)
    for first in range(8):
        for stop in range(first + 1, 9):
            row, columns = log.read(first, stop, 1 << 20)
            assert (row, numbers(columns)) == (first, list(range(first, stop)))


def test_few_bytes_at_a_time_is_one_frame_at_a_time() -> None:
    assert numbers(filled(disk()).read(3, 8, 1)[1]) == [3]
    assert numbers(filled(disk()).read(2, 8, 1)[1]) == [2, 3]


def test_a_large_frame_is_read_alone() -> None:
    log = filled(disk(), frames=3, size=200_000)
    assert numbers(log.read(0, 6, 1 << 20)[1]) == [0, 1]


def test_a_batch_of_several_frames_says_so_in_all_but_the_last() -> None:
    files = disk()
    log = log_on(files)
    log.append([body(b"1"), body(b"2", b"3"), body(b"4")])
    seen = scan.walk(log.file, log.salt, fmt.HEADER_SIZE)
    flags = [header.flags for _, header in seen.frames if header.kind == frame.DATA]
    assert flags == [frame.MORE, frame.MORE, 0]
    assert numbers(log.read(0, 4, 1 << 20)[1]) == [1, 2, 3, 4]


def test_a_mark_between_records_is_read_over() -> None:
    log = filled(disk(), frames=2)
    log.mark()
    log.append([body(b"4")])
    assert numbers(log.read(0, 5, 1 << 20)[1]) == [0, 1, 2, 3, 4]


def test_frames_whose_rows_do_not_follow_are_not_put_together() -> None:
    log = filled(disk(), frames=2)
    log.next_row += 3
    log.append([body(b"7")])
    assert numbers(log.read(0, 8, 1 << 20)[1]) == [0, 1, 2, 3]
    assert numbers(log.read(7, 8, 1 << 20)[1]) == [7]


def test_a_single_row_is_found_and_its_frame_kept_for_the_next() -> None:
    log = filled(disk())
    for row in (5, 4, 0, 7):
        columns, place = log.at(row)
        assert numbers(columns)[place] == row
    assert log.at(6)[0] is log.at(7)[0]


def test_a_time_is_found_among_frames_and_inside_of_one() -> None:
    log = filled(disk())
    assert [log.find_time(NOW + n * 500_000, 8) for n in range(-1, 8)] == [
        0,
        0,
        2,
        2,
        4,
        4,
        6,
        6,
        8,
    ]
    assert log.find_time(NOW + 3_000_000, 6) == 6  # not to be looked at that far
    stamped = log_on(disk())
    extras = {0: (None, None, None, None, 5), 1: (None, None, None, None, 9)}
    stamped.append([from_lists([b"1", b"2", b"3"], extras, 20)])
    assert stamped.find_time(9, 1) == 1  # the row that has it is not to be looked at
    assert [stamped.find_time(time, 3) for time in (4, 5, 6, 9, 10, 20, 21)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
    ]


def test_the_largest_time_is_that_of_all_logs_so_far() -> None:
    empty = log_on(disk())
    assert empty.high == 0
    log = filled(disk())
    assert log.high == NOW + 3_000_000
    older = LogSegment(log.header._replace(previous_high=NOW * 2), log.file)
    older.adopt(scan.verdict(scan.walk(log.file, log.salt, fmt.HEADER_SIZE), 0))
    assert older.high == NOW * 2


def test_room_is_taken_ahead_in_steps_and_given_back() -> None:
    log = log_on(disk())
    log.allocate_ahead(100, 1 << 20, True)
    assert log.file.size() == log.allocated == log.end + ALLOCATE_MIN
    log.allocate_ahead(100, 1 << 20, True)
    assert log.allocated == log.end + ALLOCATE_MIN
    log.append([body(b"1")])
    log.trim()
    assert log.file.size() == log.end
    log.trim()
    log.allocated = log.end  # exactly as much as is used: nothing to give back
    log.trim()
    assert log.file.size() == log.end


def test_a_log_whose_syncs_nobody_waits_for_takes_room_ahead_when_it_is_long() -> None:
    log = log_on(disk())
    log.append([body(bytes(ALLOCATE_FROM - 4096))])
    log.allocate_ahead(100, 1 << 24, False)
    assert (log.allocated, log.file.size()) == (0, log.end)
    log.append([body(bytes(4096))])
    log.allocate_ahead(100, 1 << 24, False)
    assert log.file.size() == log.allocated == 2 * log.end


def test_no_room_ahead_is_no_reason_to_refuse_a_record_that_fits() -> None:
    files = Stubborn("allocate")
    log = log_on(files)
    log.allocate_ahead(100, 1 << 20, True)
    assert log.allocated == log.end + 100
    log.append([body(b"1")])
    assert numbers(log.read(0, 1, 100)[1]) == [1]


def test_what_a_failed_write_left_is_cut_and_a_clean_end_is_not() -> None:
    log = filled(disk())
    log.file.write(log.end, [b"half a frame"])
    log.undo()
    assert log.file.size() == log.end
    log.undo()
    assert log.file.size() == log.end


def test_a_failed_sync_is_final() -> None:
    files = Stubborn("")
    log = log_on(files)
    files.call = "sync"
    with pytest.raises(DiskFull):
        log.sync(log.end)
    files.call = ""
    with pytest.raises(StorageError, match=r"an earlier sync of .* failed"):
        log.sync(log.end)
    assert (log.synced, log.in_file) == (0, 0)


def test_an_interrupt_says_nothing_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: MemoryFile) -> None:
        raise KeyboardInterrupt

    log = filled(disk())
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.sync(log.end)
    log.sync(log.end)
    assert log.synced == log.end


def test_a_follower_takes_in_what_was_written_behind_its_back() -> None:
    files = disk()
    writer = filled(files, frames=2)
    file, header = open_log(files, writer.path, "r")
    assert isinstance(header, fmt.SegmentHeader)
    reader = LogSegment(header, file)
    reader.extend(writer.end)
    assert (reader.end, reader.rows) == (writer.end, 4)
    writer.append([body(b"4", b"5")])
    reader.extend(writer.end)
    reader.extend(100)  # it is further already
    assert numbers(reader.read(0, 6, 1 << 20)[1]) == [0, 1, 2, 3, 4, 5]
    writer.append([body(b"6")])
    flip(files, writer.path, reader.end + 20)
    with pytest.raises(Corruption) as caught:
        reader.extend(writer.end)
    assert caught.value.position == reader.end


# ---- damage ----------------------------------------------------------------------------------


def frame_at(log: LogSegment, number: int) -> int:
    return log.directory.positions[number]


@pytest.mark.parametrize("where", ["header", "body"])
def test_damage_costs_its_frame_and_is_told_with_its_offsets(where: str) -> None:
    files = disk()
    log = filled(files)
    flip(files, log.path, frame_at(log, 1) + (20 if where == "header" else frame.HEADER_SIZE + 9))
    assert numbers(log.read(0, 8, 1 << 20)[1]) == [0, 1], "readable up to the damage"
    with pytest.raises(Corruption) as caught:
        log.read(2, 8, 1 << 20)
    assert (caught.value.first, caught.value.last) == (102, 103)
    assert caught.value.position == frame_at(log, 1)
    assert caught.value.path == log.path
    assert numbers(log.read(4, 8, 1 << 20)[1]) == [4, 5, 6, 7]


def test_damage_before_what_is_missing_is_not_told_instead_of_it() -> None:
    files = disk()
    log = filled(files)
    flip(files, log.path, frame_at(log, 1) + frame.HEADER_SIZE + 9)
    del log.directory.positions[2:], log.directory.first_rows[2:]  # headers that were damaged, too
    log.end = frame_at(log, 1) + 64
    with pytest.raises(Corruption) as caught:
        log.read(5, 8, 1 << 20)
    assert (caught.value.first, caught.value.last) == (105, 107)


def test_damage_of_the_last_frame_reaches_to_the_end() -> None:
    files = disk()
    log = filled(files)
    flip(files, log.path, frame_at(log, 3) + 20)
    with pytest.raises(Corruption) as caught:
        log.read(6, 8, 1 << 20)
    assert (caught.value.first, caught.value.last) == (106, 107)


def test_a_follower_tells_of_damage_before_the_first_record() -> None:
    files = disk()
    log = filled(files)
    file, header = open_log(files, log.path, "r")
    assert isinstance(header, fmt.SegmentHeader)
    flip(files, log.path, fmt.HEADER_SIZE + 20)
    with pytest.raises(Corruption) as caught:
        LogSegment(header, file).extend(log.end)
    assert (caught.value.position, caught.value.first) == (fmt.HEADER_SIZE, 100)


def adopted(files: MemoryFiles, log: LogSegment) -> LogSegment:
    """The log as a recovery takes it over: damaged frames are not in its directory."""
    file, header = open_log(files, log.path)
    assert isinstance(header, fmt.SegmentHeader)
    again = LogSegment(header, file)
    again.adopt(scan.verdict(scan.walk(file, header.salt, fmt.HEADER_SIZE), log.end))
    assert again.damaged
    return again


def test_rows_of_a_frame_that_recovery_found_damaged_are_missing() -> None:
    files = disk()
    log = filled(files)
    flip(files, log.path, frame_at(log, 0) + frame.HEADER_SIZE)
    flip(files, log.path, frame_at(log, 2) + frame.HEADER_SIZE)
    log = adopted(files, log)
    with pytest.raises(Corruption) as first:
        log.read(0, 8, 1 << 20)
    assert (first.value.first, first.value.last) == (100, 101), "what can be read is not named"
    with pytest.raises(Corruption) as middle:
        log.read(4, 8, 1 << 20)
    assert (middle.value.first, middle.value.last) == (104, 105)
    with pytest.raises(Corruption) as single:
        log.at(5)
    assert (single.value.first, single.value.last) == (105, 105)
    assert numbers(log.read(2, 8, 1 << 20)[1]) == [2, 3], "frames that do not follow are not merged"


def test_a_log_without_records_has_none_to_read() -> None:
    with pytest.raises(Corruption, match="records are damaged on disk"):
        log_on(disk()).read(0, 1, 100)


def test_a_log_that_was_cut_beneath_its_reader_has_damage_and_no_end() -> None:
    log = filled(disk())
    log.file.truncate(frame_at(log, 2))
    assert numbers(log.read(0, 8, 1 << 20)[1]) == [0, 1, 2, 3]
    with pytest.raises(Corruption) as caught:
        log.read(4, 8, 1 << 20)
    assert (caught.value.first, caught.value.last) == (104, 105)


# ---- sealing ---------------------------------------------------------------------------------


def test_small_frames_are_merged_into_a_copy_and_the_log_is_gone() -> None:
    files = disk()
    log = filled(files)
    chain = log.chain
    segment = sealed_on(files, log)
    assert files.list(FOLDER) == [segment.path.rpartition("/")[2]]
    assert len(segment.footer.positions) == 1
    assert (segment.rows, segment.footer.chain) == (8, chain)
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8))


@pytest.mark.parametrize("why", ["asked", "large", "few"])
def test_a_log_is_sealed_where_it_stands_if_merging_would_bring_nothing(why: str) -> None:
    files = disk()
    frames, size = {"asked": (4, 10), "large": (4, 40_000), "few": (1, 10)}[why]
    log = filled(files, frames, size)
    positions = list(log.directory.positions)
    segment = sealed_on(files, log, merging=why != "asked")
    assert list(segment.footer.positions) == positions
    assert numbers(segment.read(0, 2, 1)[1]) == [0, 1]


def test_a_log_without_records_is_sealed_too() -> None:
    for frames_more in (0, 2):
        files = disk()
        log = log_on(files)
        for _ in range(frames_more):
            log.mark()
        segment = sealed_on(files, log)
        assert (segment.rows, list(segment.footer.positions)) == (0, [])


def test_what_lies_behind_the_footer_is_cut_off() -> None:
    files = disk()
    log = filled(files, frames=1)
    log.file.truncate(log.end + 5000)
    segment = sealed_on(files, log)
    assert len(files.files[segment.path]) < 5000
    assert segment.rows == 2


def test_half_a_merge_of_an_earlier_attempt_is_replaced() -> None:
    files = disk()
    log = filled(files)
    left = log.path.replace(".log", ".seg") + ".tmp"
    files.open(left, "create").write(0, [b"half"])
    segment = sealed_on(files, log, how=Compress(frame.ZSTD, 8))
    assert not files.kind(left)
    assert numbers(segment.read(0, 8, 1 << 20)[1]) == list(range(8))


def test_sealing_is_done_again_when_only_its_last_sync_had_failed() -> None:
    files = disk()
    log = filled(files, frames=1)
    log.seal(files)  # the file has its new name; say that sync_dir failed, and the caller retries
    segment = sealed_on(files, log)
    assert segment.rows == 2


def test_a_merge_that_meets_damage_gives_up_and_keeps_the_log() -> None:
    files = disk()
    log = filled(files)
    flip(files, log.path, frame_at(log, 2) + frame.HEADER_SIZE)
    with pytest.raises(Corruption):
        log.seal(files)
    assert files.kind(log.path) == "file"


def test_a_merge_never_leaves_a_row_out(monkeypatch: pytest.MonkeyPatch) -> None:
    files = disk()
    log = filled(files)
    read = LogSegment.read

    def skipping(self: LogSegment, row: int, stop: int, most: int) -> Any:
        return read(self, row + 2 if row == 2 else row, stop, 1)

    monkeypatch.setattr(LogSegment, "read", skipping)
    with pytest.raises(Corruption, match="records are damaged on disk"):
        log.seal(files)
    assert files.kind(log.path) == "file"


def test_a_merge_that_finds_no_room_leaves_no_half_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: MemoryFile) -> None:
        if self.path.endswith(".tmp"):
            raise told(OSError(errno.ENOSPC, "No space left on device"), "sync", self.path)

    files = disk()
    log = filled(files)
    monkeypatch.setattr(MemoryFile, "sync", full)
    with pytest.raises(DiskFull):
        log.seal(files)
    assert files.list(FOLDER) == [log.path.rpartition("/")[2]]


def test_the_config_frame_is_kept_by_sealing() -> None:
    files = disk()
    segment = sealed_on(files, filled(files))
    assert CONFIG in bytes(segment.data())


# ---- what a power cut may not undo -----------------------------------------------------------


def test_what_was_undone_does_not_come_back_with_a_power_cut() -> None:
    for seed in range(20):  # what a disk keeps of what was not synced is left to chance
        files = SimulatedDisk(seed)
        files.make_dir(FOLDER)
        files.sync_dir("/")
        log = filled(files)
        log.sync(log.end)
        files.sync_dir(FOLDER)
        log.file.write(log.end, [b"refused" * 100])
        log.undo()
        after = files.crash(seed).contents()[log.path]
        assert not after[log.end :].strip(b"\0")
        log.close()


def test_a_sync_that_fails_while_sealing_is_final_too() -> None:
    files = Stubborn("")
    log = filled(files)
    files.call = "sync"
    with pytest.raises(DiskFull):
        log.seal(files, merging=False)
    assert log.sync_failed, "a second try would call the records durable"


@pytest.mark.parametrize(("when", "late"), [("seal", True), ("commit", False)])
def test_a_topic_says_when_and_how_to_compress(when: str, late: bool) -> None:
    asked = topic_options(compression="zstd", compress_at=when, compression_level=5)
    assert compression_of(asked) == Compress(frame.ZSTD, 4096, 5, late)
    assert compression_of(topic_options(compress_at=when)) == Compress()
