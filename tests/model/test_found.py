"""What the state machine has found, each as short as it can be shown."""

from __future__ import annotations

import errno

import pytest

import esker
from esker.testing import Fault, ManualClock, SimulatedDisk
from tests.model.sides import OPTIONS, ROOT


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
