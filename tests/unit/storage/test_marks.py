"""Deleted records: as a set of offsets, and as a file that counts as far as a page says."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format import marks as fmt
from esker.format import names
from esker.format.checksum import checksum
from esker.format.marks import BLOCK, MarksHeader
from esker.storage import marks
from esker.storage.files import SYSTEM_FILES
from esker.storage.marks import (
    Marks,
    MarksFile,
    UnknownMarks,
    blocks_of,
    newest,
    read_marks,
)
from esker.storage.memory import MemoryFiles
from tests.helpers import Refusing
from tests.unit.storage.made import FOLDER, STORE, disk

OWNER = (7, 0, STORE)
EDGES = [n for edge in range(0, 5 * BLOCK, BLOCK) for n in (edge, edge + 1, edge + BLOCK - 1)]
FAR = 1 << 40
OFFSETS = st.sampled_from([*EDGES, FAR, FAR + 5]) | st.integers(0, 5 * BLOCK)
SETS = st.sets(OFFSETS, max_size=40)
BOUND = OFFSETS | st.sampled_from([FAR - 1, FAR + 10 * BLOCK])


def marked(*offsets: int) -> Marks:
    made = Marks()
    made.add(blocks_of(offsets))
    return made


def offsets_of(found: Marks) -> set[int]:
    """All that is deleted."""
    return {
        number * BLOCK + bit
        for number, bitmap in found.blocks.items()
        for bit in range(BLOCK)
        if bitmap[bit // 8] >> bit % 8 & 1
    }


# ---- in memory -------------------------------------------------------------------------------


class AgainstASet(RuleBasedStateMachine):
    """Whatever is done to it, it says what a set of the same offsets says."""

    def __init__(self) -> None:
        super().__init__()
        self.marks, self.model = Marks(), set[int]()

    @rule(offsets=SETS)
    def add(self, offsets: set[int]) -> None:
        self.marks.add(blocks_of(offsets))
        self.model |= offsets

    @rule(before=BOUND, offsets=SETS)
    def joined(self, before: int, offsets: set[int]) -> None:
        """Whole blocks below an offset go; what else is below it may stay, and nothing above."""
        old, known = self.marks, set(self.model)
        self.marks = old.joined(blocks_of(offsets), before)
        assert offsets_of(old) == known, "who holds it sees what he saw"
        left = offsets_of(self.marks) - offsets
        assert {n for n in known - offsets if n >= before} <= left <= known
        assert all(offset // BLOCK >= before // BLOCK for offset in left)
        self.model = left | offsets

    @rule(first=BOUND, end=BOUND)
    def count(self, first: int, end: int) -> None:
        inside = [offset for offset in self.model if first <= offset < end]
        assert self.marks.count(first, end) == len(inside)

    @rule(first=BOUND, count=st.sampled_from([0, 1, 7, 8, 9, BLOCK, 2 * BLOCK + 3]))
    def mask(self, first: int, count: int) -> None:
        mask = self.marks.mask(first, count)
        inside = [offset in self.model for offset in range(first, first + count)]
        assert (mask.to_pylist() if mask is not None else [False] * count) == inside

    @rule(offset=OFFSETS)
    def contains(self, offset: int) -> None:
        assert (offset in self.marks) == (offset in self.model)

    @invariant()
    def is_true_if_there_are_any(self) -> None:
        assert bool(self.marks) == bool(self.model)


TestAgainstASet = AgainstASet.TestCase
TestAgainstASet.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@given(SETS)
def test_bitmaps_have_the_bits_of_their_offsets(offsets: set[int]) -> None:
    found = marked(*offsets)
    assert offsets_of(found) == offsets
    assert set(found.blocks) == {offset // BLOCK for offset in offsets}


def test_a_reader_that_holds_blocks_keeps_them_while_more_is_deleted() -> None:
    found = marked(3)
    held = found.blocks[0]
    found.add(blocks_of([4]))
    assert held == blocks_of([3])[0]


def test_what_is_far_from_every_mark_costs_nothing() -> None:
    assert Marks().mask(0, 10) is None
    found = marked(5)
    assert found.mask(BLOCK, BLOCK) is None
    assert found.mask(0, 4).to_pylist() == [False] * 4, "the block has marks, these offsets none"


# ---- the file --------------------------------------------------------------------------------


class Writer:
    """A shard's writer, with a page that says which file counts and how long it is."""

    def __init__(self, files: Any, page: tuple[int, int] = (0, 0)) -> None:
        self.files, self.page, self.salt = files, page, 0
        self.file = MarksFile(files, FOLDER, STORE, 7, 0)
        self.marks = self.file.load(*page)

    def write(self, *offsets: int) -> tuple[int, int]:
        """A deletion of which no page tells yet."""
        self.salt += 1
        blocks = blocks_of(offsets)
        return self.file.append(blocks, self.marks.joined(blocks), self.salt)

    def delete(self, *offsets: int) -> None:
        self.page = self.write(*offsets)
        (self.file.number, self.file.end), self.file.spent = self.page, False
        self.marks = self.marks.joined(blocks_of(offsets))

    def again(self) -> Writer:
        self.file.close()
        later = Writer(self.files, self.page)
        later.salt = self.salt + 100
        return later


def path(number: int) -> str:
    return f"{FOLDER}/{names.deletions(number)}"


def there(files: Any) -> list[int]:
    return marks.numbers(files, FOLDER)


def test_a_shard_in_which_nothing_was_deleted_has_no_file() -> None:
    files = disk()
    writer = Writer(files)
    assert not writer.marks
    assert there(files) == []
    assert read_marks(files, FOLDER, 0, 0, OWNER)[1].number == 0


def test_deletions_are_appended_to_one_file_and_read_back() -> None:
    files = disk()
    writer = Writer(files)
    for offset in (1, 2, 9000):
        writer.delete(offset)
    assert writer.page == (1, len(files.files[path(1)]))
    assert offsets_of(writer.again().marks) == {1, 2, 9000}


def test_the_next_process_appends_to_the_same_file() -> None:
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    first = writer.page
    writer = writer.again()
    writer.delete(2)
    writer.delete(3)
    assert writer.page[0] == first[0] == 1
    assert writer.page[1] > first[1]
    assert offsets_of(writer.again().marks) == {1, 2, 3}


@given(st.lists(SETS.filter(bool), min_size=1, max_size=5), st.lists(st.booleans(), max_size=5))
def test_whatever_is_deleted_is_read_back(deletions: list[set[int]], again: list[bool]) -> None:
    writer = Writer(disk())
    for number, offsets in enumerate(deletions):
        writer.delete(*offsets)
        if again[number : number + 1] == [True]:
            writer = writer.again()
    assert offsets_of(writer.again().marks) == set().union(*deletions)


def test_what_was_written_does_not_count_until_the_page_says_so() -> None:
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    writer.write(2)  # and dies before the page is written
    assert len(files.files[path(1)]) > writer.page[1]
    writer = writer.again()
    assert offsets_of(writer.marks) == {1}
    writer.delete(3)  # in its place
    assert offsets_of(writer.again().marks) == {1, 3}


def test_after_trouble_the_next_deletion_makes_a_new_file_with_everything() -> None:
    """Trouble with the page included: the file may be longer than any page says."""
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    writer.write(2)  # the page could not be written
    before = bytes(files.files[path(1)])
    writer.delete(3)
    assert writer.page[0] == 2
    assert bytes(files.files[path(1)]) == before, "no page that may count is made wrong"
    assert offsets_of(writer.again().marks) == {1, 3}
    writer.file.sweep()
    assert there(files) == [2]


def test_a_file_is_not_written_to_beside_a_newer_one() -> None:
    """The newest must have all that was deleted: it is what counts if the page is lost."""
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    writer.write(2)  # the page could not be written; nor could it for the next, a new file
    assert writer.write(3)[0] == 2
    writer = writer.again()  # and then the process died
    assert offsets_of(writer.marks) == {1}
    writer.delete(4)
    assert newest(files, FOLDER) == writer.page
    assert offsets_of(writer.again().marks) == {1, 4}


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_file_on_which_a_write_or_a_sync_failed_is_not_written_to_again(call: str) -> None:
    files = disk()
    refusing = Refusing(files)
    writer = Writer(refusing)
    writer.delete(1)
    refusing.refuse(call, errno.EIO)
    with pytest.raises(StorageError):
        writer.write(2)
    refusing.allow()
    before = bytes(files.files[path(1)])
    writer.delete(3)
    assert (writer.page[0], bytes(files.files[path(1)])) == (2, before)
    assert offsets_of(writer.again().marks) == {1, 3}


@pytest.mark.parametrize("call", ["create", "write", "sync", "sync_dir"])
def test_a_new_file_that_could_not_be_made_is_passed_over(call: str) -> None:
    files = disk()
    refusing = Refusing(files)
    writer = Writer(refusing)
    refusing.refuse(call, errno.EIO)
    with pytest.raises(StorageError):
        writer.delete(1)
    refusing.allow()
    left = there(files)
    writer.delete(2)
    assert writer.page[0] == max(left, default=0) + 1
    assert offsets_of(writer.again().marks) == {2}


def test_a_new_file_is_synced_and_so_is_its_name() -> None:
    class Noting(Refusing):
        def check(self, call: str, path: str) -> None:
            calls.append(call)

    calls: list[str] = []
    writer = Writer(Noting(disk()))
    writer.delete(1)
    assert calls == ["create", "write", "sync", "sync_dir"]
    calls.clear()
    writer.delete(2)
    assert calls == ["write", "sync"]


def test_a_file_that_has_grown_out_of_proportion_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "REWRITE_BYTES", 2000)
    writer = Writer(disk())
    sizes = []
    for offset in range(30):  # each a frame, all of them in one block
        writer.delete(offset)
        sizes.append(writer.page)
    assert writer.page[0] > 3
    assert max(size for _, size in sizes) < 2000 + 600 + 4 * 512
    assert offsets_of(writer.again().marks) == set(range(30))


def test_a_file_that_is_long_because_much_was_deleted_is_not_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "REWRITE_BYTES", 1000)
    writer = Writer(disk())
    for number in range(10):
        writer.delete(number * BLOCK)
    assert writer.page[0] == 1
    assert writer.page[1] > 1000


def test_sweeping_leaves_the_file_that_counts_and_what_is_no_file_of_deletions() -> None:
    files = disk()
    writer = Writer(files)
    for number in (1, 3, 12):
        files.files[path(number)] = bytearray(b"left over")
    files.files[f"{FOLDER}/state"] = bytearray(8)
    writer.delete(1)
    assert writer.page[0] == 13, "no number is used twice"
    writer.file.sweep()
    assert there(files) == [13]
    assert f"{FOLDER}/state" in files.files


# ---- damage ----------------------------------------------------------------------------------


def two_deletions() -> tuple[MemoryFiles, tuple[int, int], int]:
    """Files, what the page says, and where the second deletion begins."""
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    begin = writer.page[1]
    writer.delete(*range(2, 3 * BLOCK, 100))
    writer.file.close()
    return files, writer.page, begin


def refused(files: Any, page: tuple[int, int]) -> Corruption:
    """Loading it is refused; says why."""
    with pytest.raises(Corruption) as caught:
        MarksFile(files, FOLDER, STORE, 7, 0).load(*page)
    assert caught.value.path == path(page[0])
    return caught.value


def test_a_file_that_is_missing_is_corruption() -> None:
    files, page, _ = two_deletions()
    files.unlink(path(1))
    assert "missing" in refused(files, page).reason


def test_a_file_that_is_shorter_than_the_page_says_is_corruption_wherever_it_ends() -> None:
    files, page, _ = two_deletions()
    whole = bytes(files.files[path(1)])
    for size in range(page[1]):
        files.files[path(1)] = bytearray(whole[:size])
        found = refused(files, page)
        assert ("missing" in found.reason, found.position) == (
            (True, size) if size >= 64 else (False, 0)
        )


def test_every_damaged_byte_below_the_length_that_the_page_gives_is_corruption() -> None:
    files, page, begin = two_deletions()
    data = files.files[path(1)]
    padding = fmt.frame.decode_header(data, begin, begin, 1)
    assert isinstance(padding, fmt.frame.Header)
    for at in range(begin + 64 + padding.body_size):
        data[at] ^= 0x10
        found = refused(files, page)
        assert found.position == (0 if at < 64 else 64 if at < begin else begin)
        data[at] ^= 0x10
    Writer(files, page).file.close()


def test_a_length_that_ends_inside_a_frame_is_corruption() -> None:
    files, page, begin = two_deletions()
    assert refused(files, (1, page[1] - 8)).position == begin
    assert refused(files, (1, 10)).position == 0


def test_a_length_that_no_memory_holds_is_corruption_and_no_failed_allocation(
    tmp_path: Path,
) -> None:
    data = bytes(two_deletions()[0].files[path(1)])
    (tmp_path / names.deletions(1)).write_bytes(data)
    with pytest.raises(Corruption, match="bytes of it are missing"):
        MarksFile(SYSTEM_FILES, str(tmp_path), STORE, 7, 0).load(1, (1 << 62) - 1)


@pytest.mark.parametrize(
    "other",
    [MarksHeader(2, *OWNER, 1), MarksHeader(1, 8, 0, STORE, 1), MarksHeader(1, 7, 1, STORE, 1),
     MarksHeader(1, 7, 0, bytes(16), 1)],
    ids=["number", "topic", "shard", "store"],
)  # fmt: skip
def test_the_file_of_another_shard_is_corruption(other: MarksHeader) -> None:
    files, page, _ = two_deletions()
    files.files[path(1)][:64] = fmt.encode_header(other)
    assert "another shard" in refused(files, page).reason


def later_version(files: MemoryFiles) -> None:
    data = files.files[path(1)]
    data[4:6] = struct.pack("<H", fmt.VERSION + 1)
    data[56:64] = struct.pack("<Q", checksum(bytes(data[:56])))


@pytest.mark.parametrize(
    "read",
    [lambda files: MarksFile(files, FOLDER, STORE, 7, 0).load(1, 100),
     lambda files: read_marks(files, FOLDER, *newest(files, FOLDER), OWNER)],
    ids=["load", "newest"],
)  # fmt: skip
def test_a_file_of_a_later_version_is_refused_and_not_passed_over(
    read: Callable[[MemoryFiles], Any],
) -> None:
    files, _, _ = two_deletions()
    later_version(files)
    with pytest.raises(FormatTooNew):
        read(files)


def test_a_file_that_could_not_be_loaded_is_not_written_to() -> None:
    files, page, begin = two_deletions()
    files.files[path(1)][begin + 70] ^= 1
    file = MarksFile(files, FOLDER, STORE, 7, 0)
    with pytest.raises(Corruption) as caught:
        file.load(*page)
    assert (file.number, file.end) == page, "the page goes on naming it"
    with pytest.raises(Corruption):
        file.append(blocks_of([5]), UnknownMarks(caught.value), 9)
    assert there(files) == [1]


UNKNOWN: list[Callable[[Marks], Any]] = [
    lambda unknown: 5 in unknown,
    lambda unknown: unknown.mask(0, 10),
    lambda unknown: unknown.count(0, 10),
    lambda unknown: unknown.add(blocks_of([1])),
    lambda unknown: unknown.joined({}),
    lambda unknown: unknown.blocks,
]


@pytest.mark.parametrize("ask", UNKNOWN)
def test_who_asks_what_nobody_knows_is_told_why(ask: Callable[[Marks], Any]) -> None:
    unknown = UnknownMarks(Corruption("it is missing", path="/shard/deletions-1", position=12))
    assert unknown, "so that nobody skips it"
    with pytest.raises(Corruption, match="it is missing: which records were deleted") as caught:
        ask(unknown)
    assert (caught.value.path, caught.value.position) == ("/shard/deletions-1", 12)
    assert caught.value.reason == "deletions"


# ---- without a page --------------------------------------------------------------------------


def test_a_shard_without_a_page_and_without_a_file_has_no_deletions() -> None:
    assert newest(disk(), FOLDER) == (0, 0)


def test_without_a_page_the_newest_file_counts_and_what_is_not_whole_is_told() -> None:
    files, page, begin = two_deletions()
    files.files[path(2)] = files.files.pop(path(1))
    assert newest(files, FOLDER) == (2, page[1])
    files.files[path(1)] = files.files.pop(path(2))
    whole = bytes(files.files[path(1)])
    for size in range(len(whole)):
        if size == begin:
            continue  # nobody can tell that there was more
        files.files[path(1)] = bytearray(whole[:size])
        number, end = newest(files, FOLDER)
        assert (number, end) == (1, size)
        with pytest.raises(Corruption):
            read_marks(files, FOLDER, number, end, OWNER)


def test_half_of_a_deletion_of_several_frames_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "BLOCKS_MAX", 1)
    files = disk()
    writer = Writer(files)
    writer.delete(1)
    writer.delete(2, BLOCK, 2 * BLOCK)
    number, end = writer.page
    assert newest(files, FOLDER) == writer.page
    size = fmt.HEADER_SIZE + 4 * ((end - fmt.HEADER_SIZE) // 4)
    assert size == end, "four frames of one size"
    del files.files[path(1)][-((end - fmt.HEADER_SIZE) // 4) :]
    with pytest.raises(Corruption, match="ends inside a deletion"):
        read_marks(files, FOLDER, *newest(files, FOLDER), OWNER)
    assert number == 1


# ---- after a recovery ------------------------------------------------------------------------


def test_what_the_page_does_not_tell_of_goes_after_a_recovery() -> None:
    files, page, begin = two_deletions()
    marks.tidy(files, FOLDER, *page, OWNER)
    files.files[path(2)] = bytearray(b"being made")
    marks.tidy(files, FOLDER, *page, OWNER)
    assert there(files) == [1]
    assert len(files.files[path(1)]) == page[1]
    marks.tidy(files, FOLDER, 1, begin, OWNER)
    assert len(files.files[path(1)]) == begin, "behind what counts"
    assert offsets_of(Writer(files, (1, begin)).marks) == {1}
    marks.tidy(files, FOLDER, 0, 0, OWNER)
    assert there(files) == []


def test_a_file_that_is_missing_is_left_for_those_who_read() -> None:
    files, page, _ = two_deletions()
    del files.files[path(1)]
    marks.tidy(files, FOLDER, *page, OWNER)
    assert there(files) == []


def test_beside_a_damaged_file_the_others_stay_for_a_repair() -> None:
    files, page, _ = two_deletions()
    files.files[path(2)] = bytearray(b"being made")
    files.files[path(1)][100] ^= 1
    marks.tidy(files, FOLDER, *page, OWNER)
    assert there(files) == [1, 2]


def test_a_removal_is_durable_before_the_older_file_is_written_on(tmp_path: Path) -> None:
    """Or a power cut brings it back, and with a lost page it would stand for the other."""
    files = Refusing()
    folder = str(tmp_path)
    writer = MarksFile(files, folder, STORE, 7, 0)
    writer.load(0, 0)
    page = writer.append(blocks_of([1]), marked(1), 5)
    writer.close()
    Path(folder, names.deletions(2)).write_bytes(b"being made")
    files.calls.clear()
    marks.tidy(files, folder, *page, OWNER)
    changes = [call for call, _ in files.calls if call in ("unlink", "sync_dir")]
    assert changes == ["unlink", "sync_dir"]
