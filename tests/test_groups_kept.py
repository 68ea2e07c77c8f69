"""What is kept for groups, and what goes when all of them have it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import esker
from esker.engine.consumed import acked_segments
from esker.testing import LOST, ManualClock, SimulatedDisk

ROOT = "/store"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> Iterator[esker.Store]:
    with opened(disk, clock) as made:
        yield made


def opened(disk: SimulatedDisk, clock: ManualClock, **options: Any) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=clock, background=False, **options)


def filled(store: esker.Store, count: int = 40, **options: Any) -> esker.Topic:
    topic = store.create("t", durability="fsync", segment_records=10, **options)
    append(topic, count)
    return topic


def append(topic: esker.Topic, count: int) -> None:
    for _ in range(count):
        topic.append(b"%d" % topic.end(), wait=True)


def acked(group: Any, upto: int) -> None:
    for batch in group.poll(max_records=1):
        batch.ack()
        if batch.last == upto:
            return


def test_segments_that_lie_below_an_offset_are_counted_and_never_the_last() -> None:
    assert acked_segments([0, 10, 20], 0) == 0
    assert acked_segments([0, 10, 20], 9) == 0
    assert acked_segments([0, 10, 20], 10) == 1
    assert acked_segments([0, 10, 20], 99) == 2
    assert acked_segments([], 5) == 0


def test_what_every_group_has_acked_goes_and_nothing_else(store: esker.Store) -> None:
    topic = filled(store, consumed=True)
    store.tick()
    assert store.retain() == []  # without a group nothing is consumed
    one, two = topic.group("one"), topic.group("two")
    acked(one, 34)
    assert store.retain() == []
    acked(two, 19)
    (plan,) = store.retention_plan()
    assert (plan.first, plan.last, plan.reason) == (0, 19, "consumed")
    assert store.retain() == [plan]
    assert topic.earliest() == 20
    assert next(two.poll()).first == 20
    two.close()
    topic.forget_group("two")
    (done,) = store.retain()
    assert done.last == 29


def test_the_log_that_is_written_and_so_many_segments_stay(store: esker.Store) -> None:
    topic = filled(store, consumed=True, keep_segments=3)
    acked(topic.group("g"), 39)
    (done,) = store.retain()
    assert topic.earliest() == done.last + 1 == 10


@pytest.mark.parametrize("how", [{"cap_records": 10}, {"cap_bytes": 100}, {"ttl": "10s"}])
def test_what_a_group_has_not_acked_stays_whatever_caps_say(
    store: esker.Store, clock: ManualClock, how: dict[str, Any]
) -> None:
    topic = filled(store, **how)
    group = topic.group("g")
    clock.forward(60)
    append(topic, 1)
    assert store.retain() == []
    assert topic.counters()["protected_by_groups"] == 5
    acked(group, 24)
    (done,) = store.retain()
    assert done.last == 19
    counters = topic.counters()
    assert (counters["groups"], counters["max_reader_lag"]) == (1, 41 - 25)
    assert counters["protected_by_groups"] == 3
    group.sync()
    assert topic.counters()["records_acked"] == 25


def test_a_group_that_nobody_reads_holds_nothing_for_longer_than_force_after(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = filled(store, cap_records=10, force_after="1h")
    group = topic.group("g")
    assert store.retain() == []
    clock.forward(3601)
    (done,) = store.retain()
    assert (done.last, done.reason) == (29, "cap_records")
    with pytest.raises(esker.DataGap) as caught:
        list(group.poll())
    assert (caught.value.gap.first, caught.value.gap.last) == (0, 29)


def test_protection_can_be_turned_off_and_on(store: esker.Store) -> None:
    topic = filled(store, cap_records=10)
    topic.group("g")
    assert store.retain() == []
    store.alter("t", protect_unconsumed=False)
    assert [done.last for done in store.retain()] == [29]
    with pytest.raises(esker.InvalidOption, match="True or False"):
        store.alter("t", consumed=1)


def test_the_budget_of_the_store_takes_nothing_that_a_group_has_not_acked(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    with opened(disk, clock, budget_bytes=1000) as store:
        topic = filled(store)
        group = topic.group("g")
        assert store.retain() == []
        assert store.maintenance().budget.above > 0  # type: ignore[union-attr]
        acked(group, 24)
        assert max(done.last for done in store.retain()) == 19


def test_a_damaged_slot_protects_everything(disk: SimulatedDisk, clock: ManualClock) -> None:
    with opened(disk, clock) as store:
        topic = filled(store, consumed=True)
        acked(topic.group("a"), 39)
        acked(topic.group("b"), 39)
    from esker.format.offsets import home_of

    path = next(path for path in disk.contents() if path.endswith("/offsets"))
    for poke in (lambda d: d.poke(path, 128 + 128 * home_of("a"), b"?"), truncated(path)):
        after = disk.kill()
        poke(after)
        with opened(after, clock) as store:
            assert store.retain() == []
    with opened(disk.kill(), clock) as store:
        assert [done.last for done in store.retain()] == [29]


def truncated(path: str) -> Any:
    def cut(disk: SimulatedDisk) -> None:
        file = disk.open(path, "rw")
        file.truncate(1000)
        file.close()

    return cut


def test_no_power_cut_makes_a_gap_of_what_was_acked(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    """The cursors are durable before anything goes that relies on them."""
    store = opened(disk, clock)
    topic = filled(store, consumed=True)
    acked(topic.group("g"), 34)
    assert [done.last for done in store.retain()] == [29]
    store._context.forked = True
    store.close()
    with opened(disk.crash(LOST), clock) as store:
        group = store["t"].group("g")
        assert next(group.poll()).first >= 30


def test_who_retains_needs_not_to_be_who_reads(disk: SimulatedDisk, clock: ManualClock) -> None:
    with opened(disk, clock) as store:
        filled(store, consumed=True)
    with opened(disk, clock) as reader:
        acked(reader["t"].group("g"), 34)
        with opened(disk, clock) as other:
            assert [done.last for done in other.retain()] == [29]
