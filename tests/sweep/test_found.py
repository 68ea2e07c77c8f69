"""What the sweep has found, one by one: each of these was lost, invented or hung once."""

from __future__ import annotations

from typing import Any

import pytest

import esker
from esker.testing import SimulatedDisk
from tests.helpers import abandon
from tests.sweep.damages import Damage
from tests.sweep.judge import look, read, watchdog
from tests.sweep.shapes import ROOT, Platter, opened, shape

SHARD = f"{ROOT}/topics/00000001/0000"
ONE = f"{SHARD}/00000001-00000000000000000000"

FOUND: dict[str, tuple[str, list[Damage]]] = {
    "a segment of another topic under the right name is not read as if it were ours":
        ("closed", [Damage("foreign", f"{ONE}.seg", other=f"{ONE}.seg")]),
    "a log of another store is not read as if it were ours":
        ("committed", [Damage("foreign", f"{ONE}.log",
                              other=f"{SHARD}/00000002-00000000000000000008.log")]),
    "a segment with a hole and without a footer is still read":
        ("sealed", [Damage("flip", f"{ONE}.seg", 1735, 0)]),
    "the identity of another store does not set every file aside":
        ("closed", [Damage("foreign", f"{ROOT}/esker.store", other=f"{ROOT}/esker.store")]),
    "a topic that only the lost catalog listed is found again":
        ("rich", [Damage("delete", f"{ROOT}/catalog-00000002")]),
    "a topic without segments that only the lost catalog listed is missed":
        ("committed", [Damage("delete", f"{ROOT}/catalog-00000002")]),
    "a shard whose directory is gone is not an empty one":
        ("closed", [Damage("remove_folder", SHARD)]),
    "a log that somebody has given the name of a temporary file is kept":
        ("closed", [Damage("rename", f"{SHARD}/00000002-00000000000000000024.log",
                           other=f"{SHARD}/00000002-00000000000000000024.log.tmp")]),
    "acknowledged records are missed when a log that nobody closed is cut between two frames":
        ("committed", [Damage("cut", f"{ONE}.log", 2264)]),
    "acknowledged records are missed when a log that nobody closed is gone":
        ("committed", [Damage("delete", f"{ONE}.log")]),
    "rows between damage and a torn frame are not given to others":
        ("committed", [Damage("exchange", f"{ONE}.log", 2560, 3584)]),
    "junk behind a rolled log does not hide the next one from readers":
        ("killed", [Damage("junk_behind", f"{SHARD}/00000002-00000000000000000008.log", 1)]),
    "a segment that ends early, before one that cannot be read, is named with its offsets":
        ("sealed", [Damage("cut", f"{ONE}.seg", 554),
                    Damage("cut", f"{SHARD}/00000002-00000000000000000012.seg", 298)]),
    "a journal cut between two entries is told":
        ("redone", [Damage("cut", f"{ROOT}/journal/00000001.journal", 1320)]),
    "the identity of another store is told from a damaged catalog":
        ("sealed", [Damage("flip", f"{ROOT}/catalog-00000001", 19, 4),
                    Damage("foreign", f"{ROOT}/esker.store", other=f"{ROOT}/esker.store")]),
    "zeros in a journal end it only where nothing follows":
        ("redone", [Damage("stale", f"{ROOT}/journal/00000001.journal", 1728, 64),
                    Damage("flip", f"{ROOT}/journal/00000001.journal", 2005, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("why", FOUND)
def test_found_once_and_never_again(why: str) -> None:
    of, damages = shape(FOUND[why][0]), FOUND[why][1]
    for mode in ("rw",) if of.name == "redone" else ("r", "rw"):
        with watchdog():
            look(of, _damaged(of, damages), mode)


def test_errors_lead_around_whatever_cannot_be_read() -> None:
    of, (_, damages) = shape("sealed"), FOUND[next(why for why in FOUND if "ends early" in why)]
    store = opened(_damaged(of, damages), "r")
    got = read(of, store, ("t", 0))
    assert got.blind == []
    assert got.end == 32
    abandon(store)


def _damaged(of: Any, damages: list[Damage]) -> Platter:
    disk = of.disk.copy()
    for damage in damages:
        damage.do(disk, of)
    return disk


def test_only_the_records_of_the_damaged_frame_are_refused() -> None:
    """A damaged first frame of a log once cost the reader all that came behind it."""
    of = shape("committed")
    first = next(frame for frame in of.frames["t", 0] if frame.path.endswith(".log"))
    at = first.position + 40  # in its header
    store = opened(_damaged(of, [Damage("flip", f"{ONE}.log", at, 1)]), "r")
    with pytest.raises(esker.Corruption) as caught:
        list(store["t"].read(0))
    assert (caught.value.first, caught.value.last) == (0, 3)
    assert [record.offset for record in store["t"].read(4)] == list(range(4, 36))
    abandon(store)


def test_a_segment_whose_header_is_damaged_is_named_with_its_offsets() -> None:
    of = shape("closed")
    store = opened(_damaged(of, [Damage("flip", f"{ONE}.seg", 60, 1)]), "r")
    with pytest.raises(esker.Corruption) as caught:
        list(store["t"].read(0))
    assert (caught.value.first, caught.value.last) == (0, 23)
    assert caught.value.path == f"{ONE}.seg"
    abandon(store)


def test_a_log_whose_header_is_damaged_does_not_keep_readers_from_the_others() -> None:
    of = shape("closed")
    log = f"{SHARD}/00000002-00000000000000000024.log"
    store = opened(_damaged(of, [Damage("flip", log, 60, 1)]), "r")
    assert len(list(store["t"].read(0, 24))) == 24
    with pytest.raises(esker.Corruption) as caught:
        list(store["t"].read(24))
    assert (caught.value.path, caught.value.first) == (log, 24)
    abandon(store)


def test_a_repair_makes_no_segments_for_a_topic_that_keeps_none() -> None:
    of = shape("committed")
    state = f"{ROOT}/topics/00000002/0000/state"
    disk = _damaged(of, [Damage("zeros_behind", state, 7)])
    done = esker.repair(ROOT, files=disk)
    assert done.after is not None
    assert done.after.problems == []
    assert not [path for path in disk.files if "/00000002/0000/0" in path]
    with opened(disk) as store:
        assert store["e"].append(b"still only in memory", wait=True) > 0


def test_what_only_a_dead_journal_has_is_said_to_be_unrecovered() -> None:
    """After a power cut a reader saw none of it, and nothing to recover either."""
    of = shape("redone")
    store = opened(of.disk.copy(), "r")
    assert "unrecovered" in store.recovery.labels
    assert any("/journal/" in finding.path for finding in store.recovery.findings)
    abandon(store)


def test_any_number_in_a_counters_page_can_be_counted_on_from() -> None:
    of = shape("committed")
    for at in range(0, 1024, 8):
        disk = of.disk.copy()
        disk.files[f"{SHARD}/counters"][at : at + 8] = b"\xff" * 8
        look(of, disk, "rw")


# ---- deletions -------------------------------------------------------------------------------


def _two_deletions() -> SimulatedDisk:
    """Killed behind the second one."""
    disk = SimulatedDisk(7)
    store = opened(disk)
    topic = store.create("t", durability="fsync")
    for tag in ("a", "b", "c"):
        topic.append(tag.encode(), tag=tag, wait=True)
    for tag in ("a", "b"):
        assert topic.delete(tag=tag) == 1
    after = disk.kill()
    abandon(store)
    return after


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("slot", [0, 4096])
def test_a_lost_slot_of_the_state_page_brings_nothing_back(slot: int, mode: str) -> None:
    """The other slot was from before the last deletion."""
    disk = _two_deletions()
    disk.poke(f"{SHARD}/state", slot, bytes(512))
    store = opened(disk, mode)
    assert [record.value for record in store["t"].read(gaps="skip")] == [b"c"]
    abandon(store)


def test_a_reader_without_a_state_page_leaves_out_what_was_deleted() -> None:
    disk = _two_deletions()
    disk.unlink(f"{SHARD}/state")
    store = opened(disk, "r")
    assert [record.value for record in store["t"].read(gaps="skip")] == [b"c"]
    abandon(store)


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_without_a_state_page_a_damaged_file_of_deletions_is_told(mode: str) -> None:
    """It was taken for shorter than it had been."""
    disk = _two_deletions()
    disk.unlink(f"{SHARD}/state")
    path = f"{SHARD}/deletions-00000001"
    disk.poke(path, len(disk.contents()[path]) - 1, b"\x01")
    store = opened(disk, mode)
    with pytest.raises(esker.Corruption, match="which records were deleted is not known"):
        list(store["t"].read(gaps="skip"))
    abandon(store)


def test_a_reader_beside_a_writer_looks_for_deletions_whatever_the_counters_say() -> None:
    disk = _two_deletions()
    disk.unlink(f"{SHARD}/counters")  # so that its counts begin at 0 again
    with opened(disk) as store:
        store["t"].append(b"d", wait=True)
        reader = opened(disk, "r")
        assert [record.value for record in reader["t"].read()] == [b"c", b"d"]
        abandon(reader)


def test_a_log_that_is_not_there_was_not_evicted() -> None:
    """A reader was told of an eviction, where a log is gone, or a recovery has yet to write it."""
    disk = SimulatedDisk(8)
    store = opened(disk)
    store.create("t", durability="fsync").append_many([b"durable"] * 3, wait=True)
    after = disk.kill()
    abandon(store)
    after.unlink(f"{ONE}.log")
    reader = opened(after, "r")
    for start in (0, "earliest"):
        with pytest.raises(esker.Corruption, match="the log is missing") as told:
            list(reader["t"].read(start, gaps="yield"))
        assert (told.value.first, told.value.last) == (0, 2)
    abandon(reader)
