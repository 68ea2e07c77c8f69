"""Staged segments: complete but for their header, and adopted only as what they were."""

from __future__ import annotations

import pytest

from esker.errors import Corruption
from esker.format import names
from esker.format import segment as fmt
from esker.format.commit import Ticket
from esker.format.segment import SegmentHeader
from esker.storage.maps import Maps
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment, file_hash_matches
from esker.storage.staged import StagedSegment, adopt
from tests.unit.storage.made import CONFIG, FOLDER, NOW, STORE, body, disk, flip, numbers

BLANK = SegmentHeader(STORE, 7, 0, 1, 0, 0, NOW, salt=77)
WANTED = BLANK._replace(segment=4, base=100, previous_end=100, previous_salt=5)


@pytest.fixture
def files() -> MemoryFiles:
    return disk()


def staged(files: MemoryFiles, size: int = 10) -> Ticket:
    """Two frames of two rows."""
    segment = StagedSegment.create(files, FOLDER, BLANK, CONFIG)
    assert segment.rows == 0
    before = segment.size
    segment.append([body(b"%0*d" % (size, 0), b"%0*d" % (size, 1))])
    segment.append([body(b"%0*d" % (size, 2), b"%0*d" % (size, 3))])
    assert segment.rows == 4
    assert segment.size > before
    return segment.finish()


def test_a_ticket_says_what_was_staged(files: MemoryFiles) -> None:
    ticket = staged(files)
    data = files.files[f"{FOLDER}/{ticket.file}"]
    assert names.parse_staged(ticket.file) == NOW
    assert (ticket.topic, ticket.shard, ticket.rows, ticket.size) == (7, 0, 4, len(data))
    assert (ticket.salt, ticket.created) == (77, NOW)
    assert data[ticket.footer : ticket.footer + 4] == b"ESKF"


@pytest.mark.parametrize("size", [10, 900_000])
def test_an_adopted_segment_is_like_any_other(files: MemoryFiles, size: int) -> None:
    ticket = staged(files, size)
    made = adopt(files, FOLDER, ticket, WANTED).attach(Maps(files, 1 << 30))
    assert list(files.files) == [made.path] == [f"{FOLDER}/{names.segment(4, 100, sealed=True)}"]
    found = SealedSegment(made.path, made.name).attach(Maps(files, 1 << 30), (STORE, 7, 0))
    assert found.header == WANTED
    assert (found.rows, found.rebuilt) == (4, "")
    assert numbers(found.read(0, 2, 1 << 22)[1]) + numbers(found.read(2, 4, 1 << 22)[1]) == [
        0, 1, 2, 3
    ]  # fmt: skip
    assert file_hash_matches(found.data())


def test_adopting_can_be_stopped_and_done_again(files: MemoryFiles) -> None:
    ticket = staged(files)
    data = files.files[f"{FOLDER}/{ticket.file}"]
    data[: fmt.HEADER_SIZE] = bytes(fmt.HEADER_SIZE)  # as when a write of the header is torn
    data[-fmt.TRAILER_SIZE :] = bytes(fmt.TRAILER_SIZE)
    assert file_hash_matches(adopt(files, FOLDER, ticket, WANTED).attach(Maps(files, 1)).data())


@pytest.mark.parametrize("position", [fmt.HEADER_SIZE, 300, -fmt.TRAILER_SIZE - 1])
def test_a_byte_that_changed_is_noticed_and_nothing_is_touched(
    files: MemoryFiles, position: int
) -> None:
    ticket = staged(files)
    path = f"{FOLDER}/{ticket.file}"
    flip(files, path, position)
    before = bytes(files.files[path])
    with pytest.raises(Corruption, match="not what was committed"):
        adopt(files, FOLDER, ticket, WANTED)
    assert {name: bytes(data) for name, data in files.files.items()} == {path: before}


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_not_adopted(files: MemoryFiles, change: int) -> None:
    ticket = staged(files)
    data = files.files[f"{FOLDER}/{ticket.file}"]
    data[:] = data[:change] if change < 0 else data + b"\0"
    with pytest.raises(Corruption, match="not what was committed"):
        adopt(files, FOLDER, ticket, WANTED)


def test_what_is_discarded_is_gone(files: MemoryFiles) -> None:
    segment = StagedSegment.create(files, FOLDER, BLANK, CONFIG)
    segment.append([body(b"1")])
    segment.discard()
    assert files.files == {}
