"""The small pages of a shard: its state, which must be right; its counters, which may go."""

from __future__ import annotations

import pytest

from esker.errors import FormatTooNew, StorageError
from esker.format import state as state_format
from esker.format.checksum import checksum
from esker.format.counters import WORD
from esker.format.state import State
from esker.storage.counters import Counters, Published
from esker.storage.memory import MemoryFiles
from esker.storage.state import StateFile
from esker.testing import LOST, SimulatedDisk

FOLDER = "/shard"


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_dir(FOLDER)
    return made


def state(ceiling: int, flags: int = 0) -> State:
    return State(flags=flags, generation=0, topic=1, shard=2, epoch=3, ceiling=ceiling)


def loaded(files: MemoryFiles) -> tuple[StateFile, State | None]:
    page = StateFile(files, FOLDER)
    return page, page.load()


# ---- state -----------------------------------------------------------------------------------


def test_a_shard_without_a_page_has_no_state(files: MemoryFiles) -> None:
    page, found = loaded(files)
    assert found is None
    page.close()


def test_the_newest_of_the_two_slots_counts(files: MemoryFiles) -> None:
    page = StateFile(files, FOLDER)
    for ceiling in (10, 20, 30):
        page.store(state(ceiling))
        _, found = loaded(files)
        assert found is not None
        assert (found.ceiling, found.generation) == (ceiling, ceiling // 10)
    page.close()
    again, _ = loaded(files)
    again.store(state(40, state_format.CLEAN))
    again.close()
    again.close()
    _, found = loaded(files)
    assert found is not None
    assert (found.ceiling, found.generation, found.clean) == (40, 4, True)


def test_one_damaged_slot_costs_what_it_held(files: MemoryFiles) -> None:
    page = StateFile(files, FOLDER)
    page.store(state(10))
    page.store(state(20))
    page.close()
    data = files.files[f"{FOLDER}/state"]
    data[4096 + 50] ^= 1
    page, found = loaded(files)
    assert found is not None
    assert found.ceiling == 10
    assert page.damage == "state slot does not match its checksum"
    page.store(state(30))
    page.close()
    page, found = loaded(files)
    assert (found and found.ceiling, page.damage) == (30, "")


def test_two_damaged_slots_are_both_replaced(files: MemoryFiles) -> None:
    page = StateFile(files, FOLDER)
    page.store(state(10))
    page.store(state(20))
    page.close()
    data = files.files[f"{FOLDER}/state"]
    data[50] ^= 1
    data[4096 + 50] ^= 1
    page, found = loaded(files)
    assert found is None
    assert page.damage.count("checksum") == 2
    page.store(state(30))
    page.close()
    page, found = loaded(files)
    assert (found and found.ceiling, page.damage) == (30, "")


def test_a_page_that_is_too_short_is_made_longer(files: MemoryFiles) -> None:
    files.open(f"{FOLDER}/state", "create").write(0, [b"\0" * 100])
    page, found = loaded(files)
    assert found is None
    page.store(state(10))
    page.close()
    assert len(files.files[f"{FOLDER}/state"]) == state_format.FILE_SIZE


def test_a_state_of_a_later_version_is_not_touched(files: MemoryFiles) -> None:
    page = StateFile(files, FOLDER)
    page.store(state(10))
    page.close()
    data = files.files[f"{FOLDER}/state"]
    data[4] = 9
    data[504:512] = checksum(bytes(data[:504])).to_bytes(8, "little")
    with pytest.raises(FormatTooNew, match="version 9"):
        loaded(files)


# ---- counters --------------------------------------------------------------------------------


def test_there_is_no_page_before_somebody_writes(files: MemoryFiles) -> None:
    assert Counters.open(files, FOLDER, writable=False) is None
    files.page(f"{FOLDER}/counters", 1024, writable=True)  # made, and nothing said yet
    assert Counters.open(files, FOLDER, writable=False) is None


def test_a_writer_who_can_have_no_page_is_told(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StorageError("no", path="/x")

    monkeypatch.setattr(files, "page", refuse)
    with pytest.raises(StorageError):
        Counters.open(files, FOLDER, writable=True)


def test_what_is_counted_is_seen_by_others(files: MemoryFiles) -> None:
    mine = Counters.open(files, FOLDER, writable=True)
    theirs = Counters.open(files, FOLDER, writable=False)
    assert mine is not None
    assert theirs is not None
    assert not mine.damaged
    mine.add("total_records", 5)
    mine.add("total_records")
    mine.add("readers_active", -1)
    mine.set("durable", -1)
    told = theirs.as_dict()
    assert told["total_records"] == 6
    assert told["readers_active"] == told["durable"] == 2**64 - 1
    assert set(told) == set(WORD)


def test_a_damaged_page_begins_again(files: MemoryFiles) -> None:
    first = Counters.open(files, FOLDER, writable=True)
    assert first is not None
    first.add("total_records", 5)
    first.words[WORD["magic"]] = 1
    assert Counters.open(files, FOLDER, writable=False) is None
    again = Counters.open(files, FOLDER, writable=True)
    assert again is not None
    assert again.damaged
    assert again.as_dict()["total_records"] == 0
    known = Counters.open(files, FOLDER, writable=True)
    assert known is not None
    assert not known.damaged


def test_what_is_published_is_read_whole_or_not_at_all(files: MemoryFiles) -> None:
    page = Counters.open(files, FOLDER, writable=True)
    assert page is not None
    page.publish(10, 2, 300, 8)
    assert page.published() == Published(10, 2, 300, 8, 0)
    assert page.visible == 10
    page.words[WORD["sequence"]] += 1  # its writer is at it, and dies there
    assert page.published() is None
    page.publish(11, 2, 400, 9)
    assert page.published() == Published(11, 2, 400, 9, 0)


# ---- after a power cut -----------------------------------------------------------------------


def test_damage_that_was_replaced_does_not_come_back() -> None:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    disk.sync_dir("/")
    file = disk.open(f"{FOLDER}/state", "create")
    file.write(0, [b"x" * state_format.FILE_SIZE])
    file.sync()
    disk.sync_dir(FOLDER)
    page = StateFile(disk, FOLDER)
    assert page.load() is None
    page.store(state(10))
    page.close()
    page = StateFile(disk.crash(LOST), FOLDER)
    found = page.load()
    assert (found and found.ceiling, page.damage) == (10, "")
