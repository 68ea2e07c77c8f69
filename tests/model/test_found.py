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
