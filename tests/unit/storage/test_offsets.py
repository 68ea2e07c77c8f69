"""The pages of groups on disk: cursors, which must be right; members, which may go."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from esker.errors import Corruption, FormatTooNew, GroupsFull
from esker.format import members as members_format
from esker.format import offsets as fmt
from esker.format.members import Member
from esker.format.offsets import Owner, Slot
from esker.storage.files import Files, Lock
from esker.storage.members import MembersFile
from esker.storage.memory import MemoryFiles
from esker.storage.offsets import OffsetsFile, place_of
from esker.testing import LOST, SimulatedDisk

FOLDER = "/shard"
OWNER = Owner(b"s" * 16, 3, 1)


@pytest.fixture(params=["memory", "disk"])
def files(request: pytest.FixtureRequest) -> Any:
    made: Any = MemoryFiles() if request.param == "memory" else SimulatedDisk()
    made.make_dir(FOLDER)
    return made


def page_of(files: Files, *, writable: bool = True) -> OffsetsFile:
    page = OffsetsFile(files, FOLDER, OWNER, threading.Lock())
    page.map(writable=writable)
    return page


def cursor_of(page: OffsetsFile, name: str = "a") -> int:
    found = page.find(name)
    assert found is not None
    return found.cursor


def acked(page: OffsetsFile, slot: Slot, cursor: int) -> None:
    """What the owner of a term does."""
    name = fmt.encode_name(slot.name)
    seed = fmt.cell_seed(page.seed, slot.number, name, slot.term)
    cell = place_of(slot.number) + fmt.CELL + slot.term.generation % 4
    page.words[cell] = fmt.encode_cell(seed, cursor - slot.term.base)


def test_who_maps_a_page_to_look_does_not_take_it_from_who_writes(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_of(files).close()
    page = OffsetsFile(files, FOLDER, OWNER, threading.Lock())
    real = files.page

    def meanwhile(path: str, size: int, *, writable: bool) -> Any:
        made = real(path, size, writable=writable)
        if not writable:
            page.map(writable=True)  # by another thread
        return made

    monkeypatch.setattr(files, "page", meanwhile)
    assert page.map(writable=False)
    assert page.is_mapped(writable=True)
    with page.alone():
        assert page.make("a", 5).cursor == 5


def test_there_is_no_page_before_the_first_group(files: Files) -> None:
    page = OffsetsFile(files, FOLDER, OWNER, nullcontext())
    assert not page.map(writable=False)
    assert list(page.slots()) == []
    assert page.find("a") is None
    with page.alone():
        assert page.map(writable=True)
        assert page.map(writable=True)
        page.make("a", 5)
    with page.alone():
        page.sync()
    assert page.is_left()
    assert not OffsetsFile(files, "/gone", OWNER, nullcontext()).is_left()
    other = page_of(files, writable=False)
    assert [found.name for found in other.slots() if isinstance(found, Slot)] == ["a"]
    page.close()
    page.close()


def test_a_new_group_is_durable_before_anybody_relies_on_it() -> None:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    disk.sync_dir("/")
    slot = page_of(disk).make("a", 5)
    assert slot.term.flags == fmt.SETTLED
    after = page_of(disk.crash(LOST))
    found = after.find("a")
    assert found is not None
    assert found.cursor == 5
    assert found.term.flags == 0  # that it is durable was said behind the sync
    assert after.settle(found).term.flags == fmt.SETTLED
    assert after.settle(after.settle(found)) == after.find("a")


def test_groups_whose_names_meet_lie_side_by_side(files: Files) -> None:
    page = page_of(files)
    home = fmt.home_of("a")
    same = next(name for name in map(str, range(99999)) if fmt.home_of(name) == home)
    assert page.make("a", 1).number == home
    assert page.make(same, 2).number == (home + 1) % fmt.SLOTS
    page.clear(home)
    assert page.find("a") is None
    assert cursor_of(page, same) == 2
    assert page.make("b" + same, 0).number == fmt.home_of("b" + same)


def test_a_full_page_says_so_and_takes_another_group_when_one_is_forgotten(files: Files) -> None:
    page = page_of(files)
    for number in range(fmt.SLOTS):
        page.settle = lambda slot: slot  # type: ignore[method-assign]
        page.make(f"group {number}", number)
    with pytest.raises(GroupsFull, match="512 groups"):
        page.make("one more", 0)
    page.clear(page.find("group 77").number)  # type: ignore[union-attr]
    page.make("one more", 3)
    assert cursor_of(page, "one more") == 3
    assert cursor_of(page, "group 511") == 511


def test_a_term_follows_another_and_none_goes_back(files: Files) -> None:
    page = page_of(files)
    slot = page.make("a", 5)
    for turn in range(9):
        slot = page.take(slot, turn + 1)
        assert (slot.term.owner, slot.cursor) == (turn + 1, 5 + turn)
        acked(page, slot, 6 + turn)
        found = page.find("a")
        assert found is not None
        slot = found
    assert page.find("a") == slot
    assert slot.cursor == 14


def test_an_owner_that_was_replaced_stores_where_nobody_reads(files: Files) -> None:
    page = page_of(files)
    first = page.take(page.make("a", 5), 1)
    second = page.take(first, 2)
    acked(page, first, 90)
    assert cursor_of(page) == 5
    acked(page, second, 7)
    acked(page, first, 91)
    assert cursor_of(page) == 7


def test_what_an_owner_stores_while_it_is_replaced_is_not_forgotten(files: Files) -> None:
    page = page_of(files)
    seen = page.take(page.make("a", 5), 1)
    acked(page, seen, 9)  # behind the look of who replaces it
    assert page.take(seen, 2).cursor == 9
    assert cursor_of(page) == 9


def test_where_a_group_was_put_stands_in_both_terms(files: Files) -> None:
    page = page_of(files)
    slot = page.take(page.make("a", 50), 1)
    acked(page, slot, 60)
    slot = page.take(page.find("a"), 3, 10)  # type: ignore[arg-type]
    assert (slot.cursor, slot.term.owner) == (10, 3)
    page.words[place_of(slot.number) + fmt.HEAD[slot.term.generation % 2]] = 0
    assert cursor_of(page) == 10


def test_a_term_that_went_back_with_its_page_is_written_again_unless_it_has_a_successor(
    files: Files,
) -> None:
    page = page_of(files)
    before = page.make("a", 5)
    place = place_of(before.number)
    kept = bytes(page.words[place : place + fmt.SLOT_WORDS])
    mine = page.take(before, 1)
    assert page.renew(mine)
    for word, at in enumerate(range(0, len(kept), 8)):
        page.words[place + word] = int.from_bytes(kept[at : at + 8], "little")
    assert page.find("a") == before
    assert page.renew(mine)
    assert page.find("a") == mine
    page.take(mine, 2)
    assert not page.renew(mine)
    page.clear(before.number)
    assert not page.renew(mine)


def test_flags_change_and_the_owner_does_not(files: Files) -> None:
    page = page_of(files)
    slot = page.take(page.make("a", 5), 1)
    page.flag(slot, fmt.PAUSED)
    found = page.find("a")
    assert found is not None
    assert found.term == slot.term._replace(flags=fmt.PAUSED)
    assert page.take(found, 2).term.flags == fmt.PAUSED


@pytest.mark.parametrize("turns", [1, 2])
def test_a_group_that_is_half_forgotten_is_where_it_was_or_before(files: Files, turns: int) -> None:
    page = page_of(files)
    slot = page.make("a", 5)
    for turn in range(turns):
        slot = page.take(slot, 1, 6 + turn)
    at = place_of(slot.number)
    seen = []

    class Watched:
        def __getitem__(self, key: Any) -> Any:
            return words[key]

        def __setitem__(self, key: int, value: int) -> None:
            words[key] = value
            found = fmt.decode_slot(page.seed, slot.number, words[at : at + fmt.SLOT_WORDS])
            seen.append(found.cursor if isinstance(found, Slot) else found)

    words, page.words = page.words, Watched()
    page.clear(slot.number)
    assert seen == [5 + turns, None]


def test_a_damaged_slot_may_be_any_group_that_is_not_found(files: Files) -> None:
    page = page_of(files)
    slot, other = page.make("a", 5), page.make("b", 6)
    page.words[place_of(slot.number)] ^= 1
    assert cursor_of(page, "b") == other.cursor
    with pytest.raises(Corruption, match=r"may be that of group 'a'.*repair") as caught:
        page.find("a")
    assert caught.value.position == place_of(slot.number) * 8
    assert (slot.number, "no term matches its checksum") in list(page.slots())
    page.clear(slot.number)
    assert page.find("a") is None


def test_a_header_is_made_anew_since_every_slot_vouches_for_itself(files: Files) -> None:
    page = page_of(files)
    page.make("a", 5)
    page.words[0] ^= 1
    reader = page_of(files, writable=False)
    assert cursor_of(reader) == 5
    again = page_of(files)
    assert again.flaw == "not a page of offsets"
    assert cursor_of(again) == 5
    assert page_of(files).flaw == ""


def test_a_page_of_another_shard_or_of_later_times_is_refused(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = OffsetsFile(files, FOLDER, OWNER._replace(shard=9), nullcontext())
    page.map(writable=True)
    with pytest.raises(Corruption, match="another shard"):
        page_of(files)
    monkeypatch.setattr(fmt, "VERSION", 2)
    for at, word in enumerate(fmt.encode_header(OWNER)):
        page.words[at] = word
    monkeypatch.undo()
    with pytest.raises(FormatTooNew, match="version 2"):
        page_of(files, writable=False)


def test_groups_behind_the_end_are_put_back_to_it_durably() -> None:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    disk.sync_dir("/")
    assert OffsetsFile(disk, FOLDER, OWNER, nullcontext()).cut(0) == []
    page = page_of(disk)
    page.make("a", 5)
    page.make("b", 9)
    page.take(page.make("c", 8), 3)
    reader = page_of(disk, writable=False)
    assert reader.cut(9) == []
    assert {slot.name: slot.cursor for slot in reader.cut(7)} == {"b": 9, "c": 8}
    after = page_of(disk.crash(LOST))
    assert [cursor_of(after, name) for name in "abc"] == [5, 7, 7]


@pytest.mark.parametrize("data", [b"", bytes(4096)])
def test_a_page_that_was_being_made_is_none(data: bytes) -> None:
    files = MemoryFiles()
    files.make_dir(FOLDER)
    files.open(f"{FOLDER}/offsets", "create").write(0, [data])
    page = OffsetsFile(files, FOLDER, OWNER, nullcontext())
    assert not page.map(writable=False)


def test_a_page_that_was_cut_is_not_made_anew() -> None:
    files = MemoryFiles()
    files.make_dir(FOLDER)
    files.open(f"{FOLDER}/offsets", "create").write(0, [b"something"])
    with pytest.raises(Corruption, match="cut short"):
        page_of(files)


# ---- members ---------------------------------------------------------------------------------


def member(group: str = "g", token: int = 1) -> Member:
    return Member(0, group, token, 4711, 10, 10, 50)


def members_of(files: Files) -> MembersFile:
    page = MembersFile(files, FOLDER, threading.Lock())
    page.map(writable=True)
    return page


def joined(page: MembersFile, group: str, token: int) -> tuple[Member, Lock]:
    with page.alone():
        return page.join(member(group, token), "")


def test_who_maps_members_to_look_does_not_take_the_page_from_who_writes(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    members_of(files).close()
    page, mapped = MembersFile(files, FOLDER, threading.Lock()), files.page

    def slowly(path: str, size: int, *, writable: bool) -> Any:
        found = memoryview(mapped(path, size, writable=writable))
        if writable:
            return found
        monkeypatch.setattr(files, "page", mapped)
        page.map(writable=True)  # another thread comes between
        return found.toreadonly()

    monkeypatch.setattr(files, "page", slowly)
    assert page.map(writable=False)
    assert joined(page, "g", 1)[0].slot == 0


def test_members_come_and_go_and_everybody_sees_it(files: Files) -> None:
    assert not MembersFile(files, FOLDER, nullcontext()).map(writable=False)
    page = members_of(files)
    assert page.map(writable=True)
    assert members_of(files).generation == page.generation
    before = page.generation
    (one, lock), (two, other), third = (
        joined(page, *who) for who in (("g", 1), ("g", 2), ("h", 3))
    )
    reader = MembersFile(files, FOLDER, nullcontext())
    assert reader.map(writable=False)
    assert [each.slot for each in reader.of("g")] == [0, 1]
    assert page.at(2) == third[0]
    assert page.generation == before + 3
    page.leave(one)
    assert page.of("g") == [two]
    assert page.generation == before + 4
    page.leave(one)
    assert page.generation == before + 4
    lock.release()
    assert joined(page, "g", 4)[0].slot == 0
    other.release()
    page.close()
    page.close()


def test_a_dead_member_is_seen_by_its_lock_and_its_slot_is_free(files: Files) -> None:
    page = members_of(files)
    one, lock = joined(page, "g", 1)
    assert page.lives(one.slot)
    lock.release()
    assert not page.lives(one.slot)
    two, _lock = joined(page, "g", 2)
    assert two.slot == one.slot
    assert not page.seen(one, 99)
    page.leave(one)
    assert page.of("g") == [two]
    assert page.seen(two, 99)
    assert page.of("g")[0].seen_us == 99


def test_the_slot_of_one_that_was_given_up_and_lives_is_left_alone(files: Files) -> None:
    page = members_of(files)
    one, _lock = joined(page, "g", 1)
    page.leave(one)
    assert joined(page, "g", 2)[0].slot == 1


def test_more_members_than_there_is_room_for_are_told(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = members_of(files)
    monkeypatch.setattr(members_format, "SLOTS", 2)
    locks = [joined(page, "g", token + 1) for token in range(2)]
    with pytest.raises(GroupsFull, match="members"):
        joined(page, "g", 3)
    assert len(locks) == 2


def test_a_page_of_another_boot_is_begun_anew() -> None:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    page = members_of(disk)
    joined(page, "g", 1)
    disk.sync_dir("/")
    disk.sync_dir(FOLDER)
    page_file = disk.open(f"{FOLDER}/members", "rw")
    page_file.sync()
    after = disk.crash(LOST)
    assert not MembersFile(after, FOLDER, nullcontext()).map(writable=False)
    assert members_of(after).of("g") == []
    page.words[members_format.GENERATION] = (1 << 64) - 1
    page.moved()
    assert page.generation == 0
