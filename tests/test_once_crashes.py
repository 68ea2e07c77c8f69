"""Keys where the power goes, or the process: the batch and its key are both there, or neither.

Every call that changes the disk is looked at, before and after it, in every way that a power cut
may end. What an append had acknowledged in class fsync must be known; of everything else only one
thing is asked: whether a key is known and whether its batch is there are the same question.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

import esker
from esker.engine import once
from esker.format.once import HEADER
from esker.testing import Crash, Fault, ManualClock, SimulatedDisk
from tests import fsck

pytestmark = pytest.mark.crash

ROOT = "/store"
IDLE = frozenset({"lock", "counters", "catalog.lock", "recovery.lock", "0000.lock"})

Acked = dict[bytes, int]  # key or sequence, and the offset that it was told


def opened(disk: SimulatedDisk) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=ManualClock(), background=False)


def workload(store: esker.Store, durability: str, acked: Acked, seen: set[int]) -> None:
    """Keys and producers, sealing, deletion, eviction, a close and another opening."""
    topic = store.create(
        "t", durability=durability, segment_records=6, segment_bytes="64KiB", dedupe_records=40
    )

    def keyed(name: bytes, count: int = 2) -> None:
        span = topic.append_many([name] * count, wait=True, idempotency_key=name)
        seen.add(span.first)
        acked[name] = span.first

    def numbered(sequence: int) -> None:
        offset = topic.producer("p").append(b"p%d" % sequence, sequence=sequence, wait=True)
        seen.add(offset)
        acked[b"p%d" % sequence] = offset

    keyed(b"a")
    numbered(0)
    topic.append_many([b"plain"] * 2)
    keyed(b"b")
    numbered(1)
    keyed(b"f")
    keyed(b"a")
    store.tick()
    topic.sync()
    topic.delete(3)
    keyed(b"c", 7)
    store.alter("t", cap_records=4)
    keyed(b"d")
    store.tick()
    numbered(2)


def look(disk: SimulatedDisk, acked: Acked, durable: bool) -> None:
    """Hold what is known against what is there."""
    store = opened(disk)
    if "t" not in store:
        store.close()
        assert not acked
        return
    topic = store["t"]
    earliest, there = topic.earliest(), {}
    for record in topic.read("earliest", gaps="skip"):
        if HEADER in (record.headers or {}):
            there[record.value] = record.offset
    before = topic.end()
    for name in (b"a", b"b", b"c", b"d", b"e", b"f"):
        count = 7 if name == b"c" else 2
        span = topic.append_many([name] * count, idempotency_key=name, wait=True)
        known = span.first < before
        if name in there:
            assert span.first == there[name], f"{name!r} is there, and is not known"
        elif known:
            assert span.first < earliest, f"{name!r} is known at {span.first}, and is not there"
        if durable and name in acked:
            assert span.first == acked[name], f"{name!r} was acknowledged, and is not known"
    last = topic.producer("p").last
    told = [n for n in range(3) if b"p%d" % n in acked]
    if durable and told:
        assert last >= told[-1], "a number that was acknowledged is forgotten"
    for n in range(3):
        if b"p%d" % n in there:
            assert last >= n
            assert topic.producer("p").append(b"p%d" % n, sequence=n) == there[b"p%d" % n]
    assert last <= max([-1, *told]) + 1, "a number is known that nobody had used"
    lost = [n for n in told if b"p%d" % n not in there and acked[b"p%d" % n] >= earliest]
    assert last < min([9, *lost]), "a number is known, and its record was lost"
    assert "damaged_keys" not in store.recovery.labels
    store.close()
    fsck.judge_clean(disk)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_power_cut_anywhere_leaves_a_batch_with_its_key_or_neither(durability: str) -> None:
    disk = SimulatedDisk(seed=3)
    acked: Acked = {}
    seen: set[bytes] = set()
    looked = 0
    logging.getLogger("esker").setLevel(logging.CRITICAL)

    def watch(call: Any, when: str) -> None:
        nonlocal looked
        for after in disk.crashes(most=6, chances=2, seed=looked, ignore=IDLE, seen=seen):
            look(after, dict(acked), durability == "fsync")
            looked += 1

    try:
        store = opened(disk)
        disk.watch = watch
        workload(store, durability, acked, set())
        store.close()
        disk.watch = None
    finally:
        logging.getLogger("esker").setLevel(logging.NOTSET)
    assert looked > 100
    look(disk, acked, True)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_kill_anywhere_leaves_every_key_that_was_told(durability: str) -> None:
    disk = SimulatedDisk(seed=4)
    acked: Acked = {}
    looked = 0

    def watch(call: Any, when: str) -> None:
        nonlocal looked
        looked += 1
        if when == "after":
            look(disk.kill(), dict(acked), True)

    store = opened(disk)
    disk.watch = watch
    workload(store, durability, acked, set())
    store.close()
    disk.watch = None
    assert looked > 100


def test_saving_dies_at_every_call_and_what_was_saved_before_counts() -> None:
    for stop in range(1, 12):
        disk = SimulatedDisk(seed=5)
        store = opened(disk)
        topic = store.create("t", durability="fsync")
        topic.append(b"a", idempotency_key="a", wait=True)
        once.keep(topic._shards[0])
        topic.append(b"b", idempotency_key="b", wait=True)
        disk.stop_at(stop)
        try:
            once.keep(topic._shards[0])
            done = True
        except Crash:
            done = False
        store._context.forked = True
        store.close()
        for after in disk.crashes(most=8):
            with opened(after) as again:
                topic = again["t"]
                assert topic.append(b"a", idempotency_key="a", wait=True) == 0
                assert topic.append(b"b", idempotency_key="b", wait=True) == 1
                assert "damaged_keys" not in again.recovery.labels
            fsck.judge_clean(after)
        if done:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("call", ["write", "sync", "rename", "create", "sync_dir"])
def test_what_cannot_be_saved_is_not_evicted(call: str) -> None:
    disk = SimulatedDisk(seed=6)
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_records=4)
    for n in range(12):
        topic.append(b"%d" % n, idempotency_key=b"%d" % n, wait=True)
    topic.append_many([b"x"] * 5, wait=True)
    store.tick()
    topic.append(b"last", idempotency_key=b"last", wait=True)
    disk.fail(Fault("EIO", calls=frozenset({call}), inside="once" if call != "sync_dir" else ""))
    with pytest.raises(esker.EskerError):
        topic.delete(8)
    disk.heal()
    assert topic.earliest() == 0
    assert topic.append(b"0", idempotency_key=b"0", wait=True) == 0
    assert topic.delete(8) == 8
    store._context.forked = True
    store.close()
    with opened(disk.kill()) as store:
        assert store["t"].append(b"0", idempotency_key=b"0", wait=True) == 0
        assert store["t"].append(b"last", idempotency_key=b"last", wait=True) == 17


def test_no_damage_to_the_saved_table_makes_a_second_batch_in_silence() -> None:
    """Every byte of it is changed, and the file is cut at every length."""
    disk = SimulatedDisk(seed=7)
    with opened(disk) as store:
        topic = store.create("t", durability="fsync")
        topic.append_many([b"a", b"b"], idempotency_key="k", wait=True)
        for n in range(3):
            topic.producer("p").append(b"%d" % n, wait=True)
    (path,) = (each for each in disk.contents() if each.endswith("/once"))
    whole = disk.contents()[path]
    damages = [whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :] for at in range(len(whole))]
    damages += [whole[:size] for size in range(len(whole))]
    logging.getLogger("esker").setLevel(logging.CRITICAL)
    try:
        for damaged in damages:
            after = disk.kill()
            after.open(path, "rw").truncate(len(damaged))
            if damaged:
                after.poke(path, 0, damaged)
            with opened(after) as store:
                topic = store["t"]
                retry = topic.append_many([b"a", b"b"], idempotency_key="k")
                assert retry == esker.Span(0, 0, 2)
                assert store.recovery.labels == ["damaged_keys"]
                assert topic.producer("p").append(b"1", sequence=1) == 3
                assert topic.end() == 5
    finally:
        logging.getLogger("esker").setLevel(logging.NOTSET)
