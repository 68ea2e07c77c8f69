"""Journals: written by one process, replayed by another, never written to after a doubtful sync."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from esker.errors import DiskFull, FormatTooNew, StorageError
from esker.format import journal as fmt
from esker.format.checksum import checksum
from esker.storage.files import Holder
from esker.storage.journal import Journal, Redo, _written, dead_journals, forget
from esker.testing import LOST, Fault, SimulatedDisk

FOLDER = "/journal"
STORE = bytes(range(16))
LIMIT = 64 << 10


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    made.make_dir(FOLDER)
    made.sync_dir("/")
    return made


def journal_on(disk: SimulatedDisk) -> Journal:
    return Journal(disk, FOLDER, STORE, LIMIT, "noon")


def redo(number: int, data: bytes = b"some bytes") -> Redo:
    return Redo(topic=1, shard=number, segment=3, position=128, next_offset=7, data=data)


def left(disk: SimulatedDisk, *rounds: int) -> str:
    """A journal of a dead process: so many entries a round, a sync behind each round."""
    journal = journal_on(disk)
    number = 0
    for count in rounds:
        journal.append([redo(number + n, b"bytes of %03d" % (number + n)) for n in range(count)], 5)
        journal.sync()
        number += count
    journal.close()
    return f"{FOLDER}/00000001.journal"


def entry_at(number: int) -> int:
    return fmt.HEADER_SIZE + number * (fmt.ENTRY_SIZE + 16)


def bodies(disk: SimulatedDisk) -> list[bytes]:
    (dead,) = dead_journals(disk, FOLDER, STORE)
    return [data for _, data in dead.entries]


# ---- its owner -------------------------------------------------------------------------------


def test_entries_are_found_again_by_the_next_process(disk: SimulatedDisk) -> None:
    left(disk, 2, 1)
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert [entry.shard for entry, _ in dead.entries] == [0, 1, 2]
    assert (dead.torn, dead.corrupt) == (None, [])
    assert bodies(disk) == [b"bytes of 000", b"bytes of 001", b"bytes of 002"]
    forget(disk, dead)
    assert dead_journals(disk, FOLDER, STORE) == []


def test_the_journal_of_a_living_process_is_left_alone(disk: SimulatedDisk) -> None:
    journal = journal_on(disk)
    assert not journal.open
    journal.append([redo(0)], 5)
    journal.sync()
    assert journal.open
    assert dead_journals(disk, FOLDER, STORE) == []
    journal.let_go()
    assert len(dead_journals(disk, FOLDER, STORE)) == 1


def test_there_is_room_up_to_the_last_byte(disk: SimulatedDisk) -> None:
    journal = journal_on(disk)
    most = LIMIT - fmt.HEADER_SIZE - fmt.ENTRY_SIZE
    assert journal.room([redo(0, bytes(most))])
    assert not journal.room([redo(0, bytes(most + 1))])
    journal.append([redo(0, bytes(most))], 5)
    assert not journal.room([redo(0, b"")])
    journal.drop()
    assert journal.room([redo(0)])
    journal.drop()  # nothing there
    assert disk.list(FOLDER) == ["00000001.lock"]


def test_a_number_is_taken_by_one_process_only(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes make a journal at the same moment: the second goes on to the next number."""
    first, second = journal_on(disk), journal_on(disk)
    lock = disk.lock
    asked: list[str] = []

    def busy(path: str, note: str, *, wait: bool = False) -> Any:
        asked.append(path)
        if len(asked) == 1:  # somebody has the lock, and not yet the file
            return Holder(1, "")
        if len(asked) == 2:  # he made the file, and let go of the lock
            first.append([redo(0)], 5)
            first.close()
        return lock(path, note, wait=wait)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "lock", busy)
        second.append([redo(1)], 5)
    assert (first.id, second.id) == (1, 2)
    second.close()


@pytest.mark.parametrize("call", ["create", "allocate", "write", "sync_dir"])
def test_a_journal_that_cannot_be_made_leaves_nothing(disk: SimulatedDisk, call: str) -> None:
    journal = journal_on(disk)
    disk.fail(Fault(errno.ENOSPC, calls=frozenset({call}), inside=FOLDER))
    with pytest.raises(DiskFull):
        journal.append([redo(0)], 5)
    assert not journal.open
    assert disk.list(FOLDER) == ["00000001.lock"]
    assert disk.holder(f"{FOLDER}/00000001.lock") is None
    journal.append([redo(0)], 5)
    assert journal.id == 1
    journal.drop()


def test_a_journal_whose_sync_failed_is_never_written_again(disk: SimulatedDisk) -> None:
    journal = journal_on(disk)
    journal.append([redo(0)], 5)
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"})))
    with pytest.raises(StorageError):
        journal.sync()
    assert not journal.open
    journal.append([redo(1)], 5)
    assert journal.id == 2
    assert dead_journals(disk, FOLDER, STORE) == [], "both still have their owner"
    journal.close()
    assert len(dead_journals(disk, FOLDER, STORE)) == 2


def test_a_journal_that_cannot_be_deleted_is_set_aside(disk: SimulatedDisk) -> None:
    journal = journal_on(disk)
    journal.append([redo(0)], 5)
    disk.fail(Fault(errno.EIO, calls=frozenset({"unlink"})))
    journal.drop()
    assert not journal.open
    assert disk.holder(f"{FOLDER}/00000001.lock") is not None
    journal.close()
    assert disk.holder(f"{FOLDER}/00000001.lock") is None


def test_a_journal_says_that_it_was_dropped_before_it_is_deleted(disk: SimulatedDisk) -> None:
    """Its bytes may be there again, under the name of the next one."""
    journal = journal_on(disk)
    journal.append([redo(0)], 5)
    journal.sync()
    disk.fail(Fault(errno.EIO, calls=frozenset({"unlink"})))
    journal.drop()
    journal.close()
    after = disk.crash(LOST)
    (dead,) = dead_journals(after, FOLDER, STORE)
    assert dead[1:] == ([], None, []), "nothing to replay, and nothing wrong"
    forget(after, dead)
    assert dead_journals(after, FOLDER, STORE) == []


def test_a_replayed_journal_says_so_before_it_is_deleted(disk: SimulatedDisk) -> None:
    path = left(disk, 1)
    (dead,) = dead_journals(disk, FOLDER, STORE)
    disk.fail(Fault(errno.EIO, calls=frozenset({"unlink"})))
    with pytest.raises(StorageError):
        forget(disk, dead)
    assert disk.crash(LOST).contents()[path][12:16] == fmt.DROPPED


def test_a_journal_without_a_header_is_deleted_as_it_is(disk: SimulatedDisk) -> None:
    path = left(disk, 1)
    disk.poke(path, 0, bytes(LIMIT))
    (dead,) = dead_journals(disk, FOLDER, STORE)
    forget(disk, dead)
    assert path not in disk.contents()


def test_zeros_end_the_entries_unless_something_follows(disk: SimulatedDisk) -> None:
    path = left(disk, 2)
    disk.poke(path, entry_at(1), bytes(fmt.ENTRY_SIZE))
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert len(dead.entries) == 1
    assert dead.torn == (entry_at(1), "zeros where an entry should be")


# ---- who reads it ----------------------------------------------------------------------------


@pytest.mark.parametrize("zeros", [0, 1, 4095, 4096, 4097, 8192, 12_289])
@pytest.mark.parametrize("text", [0, 1, 4096, 4097])
def test_where_the_zeros_at_the_end_begin(text: int, zeros: int) -> None:
    assert _written(bytes(max(text - 1, 0)) + b"x" * (text > 0) + bytes(zeros)) == text


def test_a_journal_cut_inside_its_last_round_ends_there(disk: SimulatedDisk) -> None:
    path = left(disk, 2, 2)
    for place in (30, fmt.ENTRY_SIZE + 3):
        after = disk.kill()
        after.poke(path, entry_at(3) + place, b"\xff\xff")
        (dead,) = dead_journals(after, FOLDER, STORE)
        assert dead.torn is not None
        assert dead.torn[0] == entry_at(3)
        assert (len(dead.entries), dead.corrupt) == (3, [])


def test_a_file_that_ends_inside_an_entry_is_torn(disk: SimulatedDisk) -> None:
    path = left(disk, 2)
    file = disk.open(path, "rw")
    file.truncate(entry_at(1) + fmt.ENTRY_SIZE + 3)
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert dead.torn == (entry_at(1), "the journal ends inside an entry")
    assert len(dead.entries) == 1
    file.truncate(entry_at(1) + 3)  # not even an entry's header
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert (len(dead.entries), dead.torn) == (1, None)


@pytest.mark.parametrize("how", ["damaged", "zeros"])
def test_damage_below_what_was_durable_is_corruption_and_the_rest_is_replayed(
    disk: SimulatedDisk, how: str
) -> None:
    path = left(disk, 2, 2, 1)
    size = fmt.ENTRY_SIZE + 16
    disk.poke(path, entry_at(1), bytes(size) if how == "zeros" else b"\xff" * 20)
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert [entry.shard for entry, _ in dead.entries] == [0, 2, 3, 4]
    assert [position for position, _ in dead.corrupt] == [entry_at(1)]
    assert dead.torn is None


def test_what_looks_like_an_entry_is_none_unless_it_verifies(disk: SimulatedDisk) -> None:
    journal = journal_on(disk)
    journal.append([redo(0, b"1234" + fmt.ENTRY_MAGIC + bytes(4) + fmt.ENTRY_MAGIC + bytes(90))], 5)
    journal.sync()
    journal.append([redo(1)], 5)
    journal.sync()
    journal.close()
    disk.poke(f"{FOLDER}/00000001.journal", entry_at(0) + 10, b"\xff")
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert [entry.shard for entry, _ in dead.entries] == [1]
    assert len(dead.corrupt) == 1


def test_a_journal_without_a_header_was_never_acknowledged(disk: SimulatedDisk) -> None:
    path = left(disk, 1)
    disk.poke(path, 0, bytes(LIMIT))
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert (dead.entries, dead.torn) == ([], (0, "not a journal: wrong magic"))


def test_a_header_that_was_damaged_later_costs_no_entry(disk: SimulatedDisk) -> None:
    path = left(disk, 1, 1)
    disk.poke(path, 0, b"?")
    (dead,) = dead_journals(disk, FOLDER, STORE)
    assert len(dead.entries) == 2
    assert dead.corrupt == [(0, "not a journal: wrong magic")]


def test_a_journal_of_another_store_or_version_is_not_replayed(disk: SimulatedDisk) -> None:
    path = left(disk, 1)
    (dead,) = dead_journals(disk, FOLDER, bytes(16))
    assert (dead.entries, dead.corrupt) == ([], [(0, "a journal of another store")])
    head = bytearray(disk.contents()[path][:56])
    head[8] = 9
    disk.poke(path, 0, bytes(head) + checksum(bytes(head)).to_bytes(8, "little"))
    with pytest.raises(FormatTooNew, match="version 9"):
        dead_journals(disk, FOLDER, STORE)
