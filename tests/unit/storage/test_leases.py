"""The log of leases on disk: appended by many, never cut, told where it cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from esker.errors import Corruption, FormatTooNew
from esker.format import leases as fmt
from esker.format import queue as queue_format
from esker.format.checksum import checksum
from esker.format.leases import Acked, Ended, Event, Snapshot, Told
from esker.format.queue import QueueOptions
from esker.storage.leases import (
    LeaseLog,
    Owner,
    load_settings,
    numbers,
    salvage,
    save_settings,
)
from esker.storage.memory import MemoryFiles

FOLDER = "/queue/0000"
STORE = bytes(range(16))
OWNER = Owner(STORE, 12, 0)


def fresh() -> tuple[MemoryFiles, LeaseLog]:
    files = MemoryFiles()
    files.make_dir("/queue")
    files.make_dir(FOLDER)
    log = LeaseLog(files, FOLDER, OWNER)
    assert log.load() == ([], [])
    log.begin(Snapshot(cursor=5), 77, 1)
    return files, log


def path(number: int) -> str:
    return f"{FOLDER}/leases-{number:08d}"


def events(told: Sequence[Told] | None) -> list[Event]:
    assert told is not None
    return [event for one in told for event in one.events]


def ack(number: int) -> Acked:
    return Acked(number, 1, [number, 1])


def test_what_one_appends_the_other_reads() -> None:
    files, log = fresh()
    other = LeaseLog(files, FOLDER, OWNER)
    assert other.more() is None
    assert events(other.load()[0]) == [Snapshot(cursor=5)]
    log.append([ack(1)], 2)
    assert events(other.more()) == [ack(1)]
    assert other.more() == []
    other.append([ack(2)], 3)
    assert events(log.more()) == [ack(2)]


def test_the_next_file_needs_none_before_it() -> None:
    files, log = fresh()
    other = LeaseLog(files, FOLDER, OWNER)
    other.load()
    log.append([ack(1)], 2)
    log.begin(Snapshot(cursor=9), 78, 3)
    assert log.number == 2
    assert log.path == path(2)
    assert other.more() is None
    told, troubles = other.load()
    assert (events(told), troubles) == ([Snapshot(cursor=9)], [])
    assert [event for one in log.history() for event in one.events] == [
        Snapshot(cursor=5), ack(1), Ended(2), Snapshot(cursor=9),
    ]  # fmt: skip


def test_a_log_that_ended_and_was_not_followed_goes_on_in_the_next_file_and_tells_so() -> None:
    files, log = fresh()
    log.append([ack(1), Ended(2)], 2)
    other = LeaseLog(files, FOLDER, OWNER)
    told, troubles = other.load()
    assert events(told) == [Snapshot(cursor=5), ack(1), Ended(2)]
    assert [each.torn for each in troubles] == [True]
    assert other.ended
    other.begin(Snapshot(cursor=6), 79, 3)
    assert numbers(files, FOLDER) == [1, 2]
    assert log.more() is None


def test_a_torn_end_is_told_and_the_log_goes_on_in_a_new_file() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    end = log.end
    log.append([ack(2)], 3)
    del files.files[path(1)][end + 70 :]
    other = LeaseLog(files, FOLDER, OWNER)
    told, (trouble,) = other.load()
    assert events(told) == [Snapshot(cursor=5), ack(1)]
    assert (trouble.path, trouble.position, trouble.torn) == (path(1), end, True)
    assert other.ended
    other.begin(Snapshot(cursor=6), 79, 4)
    assert log.more() is None
    assert events(log.load()[0]) == [Snapshot(cursor=6)]


def test_behind_damage_all_that_can_be_read_counts() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    place = log.end
    for number in (2, 3, 4):
        log.append([ack(number)], 3)
    files.files[path(1)][place + 65] ^= 1
    other = LeaseLog(files, FOLDER, OWNER)
    told, (trouble,) = other.load()
    assert events(told) == [Snapshot(cursor=5), ack(1), ack(3), ack(4)]
    assert (trouble.position, trouble.torn) == (place, False)
    assert other.ended
    other.begin(Snapshot(cursor=6), 79, 4)
    # who was writing the damaged file is told where it ends for him
    assert log.more() is None


def test_a_file_whose_header_is_damaged_is_left_by_those_who_have_it_open() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    files.files[path(1)][20] ^= 1
    other = LeaseLog(files, FOLDER, OWNER)
    told, troubles = other.load()
    assert told == []
    assert [each.torn for each in troubles] == [False, False]
    other.begin(Snapshot(cursor=6), 79, 4)
    assert log.more() is None


def test_without_its_snapshot_a_file_is_read_with_the_one_before() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    log.begin(Snapshot(cursor=9), 78, 3)
    log.append([ack(2)], 4)
    files.files[path(2)][64 + 66] ^= 1
    other = LeaseLog(files, FOLDER, OWNER)
    told, (trouble,) = other.load()
    assert events(told) == [Snapshot(cursor=5), ack(1), Ended(2), ack(2)]
    assert (trouble.path, trouble.torn) == (path(2), False)


def test_a_file_without_a_frame_is_no_file_to_go_on_with() -> None:
    files, log = fresh()
    log.begin(Snapshot(cursor=9), 78, 3)
    del files.files[path(2)][64:]
    other = LeaseLog(files, FOLDER, OWNER)
    told, (trouble,) = other.load()
    assert events(told) == [Snapshot(cursor=5), Ended(2)]
    assert trouble.reason == "a file without a snapshot"
    assert other.ended


def test_a_file_that_begins_with_another_event_is_read_with_the_one_before() -> None:
    files, log = fresh()
    log.begin(Snapshot(cursor=9), 78, 3)
    head = bytes(files.files[path(2)][:64])
    files.files[path(2)][64:] = fmt.encode_frame([ack(3)], len(head), 78, 4)
    other = LeaseLog(files, FOLDER, OWNER)
    told, (trouble,) = other.load()
    assert events(told) == [Snapshot(cursor=5), Ended(2), ack(3)]
    assert (trouble.reason, trouble.torn) == ("a file without a snapshot", False)
    assert other.ended


def test_a_log_of_another_shard_is_not_believed() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    other = LeaseLog(files, FOLDER, Owner(STORE, 12, 1))
    told, troubles = other.load()
    assert told == []
    assert troubles[0].reason == "the leases of another shard"


def test_a_file_of_a_later_version_is_not_touched() -> None:
    files, log = fresh()
    data = files.files[path(1)]
    data[4] = 9
    data[56:64] = struct.pack("<Q", checksum(bytes(data[:56])))
    with pytest.raises(FormatTooNew, match="version 9"):
        log.load()


class Counting(MemoryFiles):
    """A file system that counts syncs."""

    syncs = 0

    def open(self, path: str, mode: Any) -> Any:
        file = super().open(path, mode)
        return _Counted(file, self)


class _Counted:
    def __init__(self, file: Any, files: Counting) -> None:
        self._file, self._files = file, files

    def sync(self) -> None:
        self._files.syncs += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_sync_covers_what_was_written_and_is_not_done_twice() -> None:
    files = Counting()
    log = LeaseLog(files, FOLDER, OWNER)
    log.sync()
    assert files.syncs == 0
    log.begin(Snapshot(), 77, 1)
    before = files.syncs
    log.sync()
    assert files.syncs == before, "a new file is durable"
    log.append([ack(1)], 2)
    log.sync()
    log.sync()
    assert (files.syncs, log.synced) == (before + 1, log.end)


def test_a_sync_during_which_the_log_went_on_elsewhere_says_nothing_about_that() -> None:
    files = Counting()
    log = LeaseLog(files, FOLDER, OWNER)
    log.begin(Snapshot(), 77, 1)
    log.append([ack(1)], 2)

    class Elsewhere:
        def sync(self) -> None:
            log.number += 1

    log._file, before = Elsewhere(), log.synced  # type: ignore[assignment]
    log.sync()
    assert log.synced == before


def test_history_goes_when_it_is_too_old_or_too_much() -> None:
    files, log = fresh()
    for number in range(2, 6):
        log.begin(Snapshot(cursor=number), 77 + number, 10 * number)
    assert numbers(files, FOLDER) == [1, 2, 3, 4, 5]
    log.trim(before_us=25, most_bytes=1 << 20)
    assert numbers(files, FOLDER) == [2, 3, 4, 5], "the first one ended at 20"
    size = len(files.files[path(4)])
    log.trim(before_us=0, most_bytes=size)
    assert numbers(files, FOLDER) == [4, 5]
    files.files[path(4)][3] ^= 1
    log.trim(before_us=1, most_bytes=1 << 20)
    assert numbers(files, FOLDER) == [5], "nobody knows how old it is"
    del files.files[path(5)][64:]
    log.number = 6
    log.trim(before_us=1, most_bytes=1 << 20)
    assert numbers(files, FOLDER) == []


def test_a_reader_opens_nothing_for_writing() -> None:
    files, _ = fresh()
    modes = []
    real = files.open
    files.open = lambda path, mode: (modes.append(mode), real(path, mode))[1]  # type: ignore[method-assign,func-returns-value]
    reader = LeaseLog(files, FOLDER, OWNER, writable=False)
    reader.load()
    reader.close()
    reader.close()
    assert set(modes) == {"r"}


def test_salvage_of_whole_frames_finds_no_flaw() -> None:
    files, log = fresh()
    log.append([ack(1)], 2)
    told, flaws = salvage(bytes(files.files[path(1)]), 77)
    assert (len(told), flaws) == (2, [])


def test_settings_are_there_or_not_or_damaged_and_that_is_told() -> None:
    files = MemoryFiles()
    files.make_dir("/queue")
    assert load_settings(files, "/queue", STORE, 12) is None
    save_settings(files, "/queue", STORE, 12, QueueOptions(max_deliveries=4))
    assert load_settings(files, "/queue", STORE, 12) == QueueOptions(max_deliveries=4)
    data = files.files["/queue/settings"]
    data[70] ^= 1
    with pytest.raises(Corruption, match="Restore the file from a backup") as caught:
        load_settings(files, "/queue", STORE, 12)
    assert caught.value.path == "/queue/settings"
    data[4] = 3
    data[56:64] = struct.pack("<Q", checksum(bytes(data[:56])))
    with pytest.raises(FormatTooNew, match="version 3"):
        load_settings(files, "/queue", STORE, 12)


def test_the_sizes_of_headers_are_what_the_format_says() -> None:
    assert (fmt.HEADER_SIZE, queue_format.HEADER_SIZE) == (64, 64)
