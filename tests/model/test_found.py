"""What the state machine has found, each as short as it can be shown."""

from __future__ import annotations

import errno

import pytest

import esker
from esker.testing import Fault, ManualClock, SimulatedDisk
from tests.model import events
from tests.model.machine import Machine
from tests.model.sides import OPTIONS, ROOT
from tests.model.switches import ALL_OFF, SMALL, SMALL_PLAIN_READS, Switches


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def open_on(disk: SimulatedDisk, clock: ManualClock) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=clock, **OPTIONS)


def later(store: esker.Store, clock: ManualClock) -> None:
    clock.forward(1.0)
    store.tick()


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_a_record_of_an_earlier_life_is_durable_and_need_not_be_waited_for(
    disk: SimulatedDisk, clock: ManualClock, durability: str
) -> None:
    with open_on(disk, clock) as store:
        store.create("t", durability=durability).append(b"old")
    with open_on(disk, clock) as store:
        store["t"].wait_durable(0)
        with pytest.raises(esker.OffsetOutOfRange):
            store["t"].wait_durable(1)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_what_a_refused_call_has_written_is_synced_by_the_background(
    disk: SimulatedDisk, clock: ManualClock, durability: str
) -> None:
    """Such calls write what is buffered before they fail."""
    with open_on(disk, clock) as store:
        topic = store.create("t", durability=durability)
        topic.append(b"buffered")
        with pytest.raises(esker.OffsetOutOfRange):
            topic.wait_durable(5)
        later(store, clock)
        assert topic.durable() == 1

        topic.append(b"buffered")
        disk.fail(Fault(errno.ENOSPC, at=2, calls=frozenset({"write"}), inside=".log"))
        with pytest.raises(esker.DiskFull):
            topic.append_many([b"one", b"two"])
        later(store, clock)
        assert topic.durable() == topic.end() == 2

        disk.heal()
        topic.append(b"buffered")
        disk.fail(Fault(errno.ENOSPC, at=2, calls=frozenset({"write"}), inside=".log"))
        with pytest.raises(esker.DiskFull):
            topic.append(b"waited for", wait=True)
        later(store, clock)
        assert topic.durable() == topic.end() == 3
        disk.heal()


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_a_shard_that_cannot_be_written_does_not_keep_the_others_from_being_synced(
    disk: SimulatedDisk, clock: ManualClock, durability: str
) -> None:
    with open_on(disk, clock) as store:
        topic = store.create("t", durability=durability, shards=2)
        keys = sorted((b"0", b"1", b"2", b"3"), key=topic.shard_of)
        topic.append(b"of shard 0", key=keys[0])
        topic.append(b"of shard 1", key=keys[-1])
        disk.fail(Fault(errno.ENOSPC, forever=True, calls=frozenset({"write"}), inside="/0001/"))
        with pytest.raises(esker.DiskFull):
            topic.sync()
        disk.heal()
        assert [topic.durable(0), topic.durable(1)] == [1, 0]


def test_records_of_class_ephemeral_that_a_restart_took_are_a_gap(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    """Deleted records are passed over; these were lost."""
    with open_on(disk, clock) as store:
        topic = store.create("t", durability="ephemeral")
        topic.append_many([b"0", b"1", b"2"])
        assert topic.delete(1) == 1
        assert [record.value for record in topic.read(0)] == [b"1", b"2"]
    with open_on(disk, clock) as store:
        topic = store["t"]
        for _ in range(2):  # before the first append of this life, and after it
            with pytest.raises(esker.DataGap) as caught:
                list(topic.read(0))
            gap = caught.value.gap
            assert (gap.first, gap.last, gap.reason) == (1, 2, "evicted")
            assert topic.earliest() == 3
            topic.append(b"3", wait=True)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_time_is_not_found_among_deleted_records(
    disk: SimulatedDisk, clock: ManualClock, sealed: bool
) -> None:
    with open_on(disk, clock) as store:
        topic = store.create("t", segment_records=4)
        stamps = (100, 5, 6, 50, 7, 60)
        for stamp in stamps:
            topic.append(b"", timestamp=stamp, wait=True)
        if sealed:
            store.tick()
        topic.delete(1)
        for time in range(0, 110, 5):
            expected = next((n for n in range(1, 6) if stamps[n] >= time), 6)
            found = [record.offset for record in topic.read(f"@1970-01-01T00:00:00.{time:06d}")]
            assert found == list(range(expected, 6)), f"at or after {time}"


def test_the_length_of_a_slice_does_not_count_deleted_records(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    with open_on(disk, clock) as store:
        topic = store.create("t")
        topic.append_many([b"0", b"1", b"2"])
        topic.delete(2)
        assert len(topic[0:]) == len(list(topic[0:])) == len(topic) == 1


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_another_process_finds_the_new_topic_of_a_name_that_was_deleted(
    disk: SimulatedDisk, clock: ManualClock, durability: str
) -> None:
    with open_on(disk, clock) as store:
        store.create("t", durability=durability).append(b"old", wait=True)
        with esker.open(ROOT, "r", files=disk, clock=clock, background=False) as other:
            held = other["t"]
            assert len(list(held.read())) == (durability == "disk")
            store.delete("t")
            store.create("t").append(b"new", wait=True)
            for _ in range(2):
                with pytest.raises(esker.TopicNotFound):
                    list(held.read())
            assert [record.value for record in other["t"].read()] == [b"new"]


def test_a_gap_behind_what_was_deleted_is_deleted_too() -> None:
    """All that was there had been deleted, and the first log of that life was the first again."""
    options = {
        "durability": "disk", "shards": 1, "segment_bytes": 4096, "segment_records": 0,
        "segment_age": 0, "compression": "none", "compress_at": "seal",
    }  # fmt: skip
    with Switches("small limits", SMALL), events.WATCH:
        machine = Machine([SMALL_PLAIN_READS, ALL_OFF], lambda: None)
        machine.begin(other=1, options=options, tour="shards", ending="kill", fate="lost")
        machine.create(options=options)
        machine.delete(before=("latest", 0), index=0, topic=1)
        machine.die(again="", fate="lost", how="crash", last="", topic=0)
        machine.delete(before=("latest", 0), index=0, topic=1)
        machine.restart(thorough=False, twice=False)
        machine.teardown()
