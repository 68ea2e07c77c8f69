"""What can be derived is derived again: an index from frames, a log from any set of journals."""

from __future__ import annotations

import pytest

import esker
from esker.testing import LOST, ManualClock, SimulatedDisk
from tests.damage import ROOT

TOPICS = [f"t{number}" for number in range(12)]  # more than are synced one by one


def opened(disk: SimulatedDisk, journals: int = 1) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=ManualClock(), background=False, journals=journals)


@pytest.mark.parametrize("back", [1, 20, 60, 120], ids="{} bytes before the end".format)
def test_a_sealed_segment_whose_index_is_damaged_is_read_all_the_same(back: int) -> None:
    disk = SimulatedDisk(seed=1)
    with opened(disk) as store:
        topic = store.create("t", segment_records=20)
        for number in range(45):
            topic.append(b"record %d" % number, wait=True)
        store.tick()
    for path, data in disk.contents().items():
        if path.endswith(".seg"):
            disk.poke(path, len(data) - back, bytes([data[-back] ^ 1]))
    with opened(disk) as store:
        assert [record.value for record in store["t"].read()] == [
            b"record %d" % number for number in range(45)
        ]
        assert store["t"][7].value == b"record 7"
        assert store["t"].append(b"behind", wait=True) == 45


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 8)])
def test_recovery_does_not_care_how_many_journals_there_were(before: int, after: int) -> None:
    disk = SimulatedDisk(seed=1)
    store = opened(disk, before)
    for name in TOPICS:
        store.create(name, durability="fsync").append(name)
    store.sync()
    journals = [path for path in disk.contents() if path.endswith(".journal")]
    assert len(journals) == before
    store._context.forked = True  # the process is gone, and nothing is closed
    store.close()
    disk = disk.kill().crash(LOST)
    with opened(disk, after) as store:
        assert "redone" in store.recovery.labels
        assert [store[name][0].text for name in TOPICS] == TOPICS
    assert not [path for path in disk.contents() if path.endswith(".journal")]
