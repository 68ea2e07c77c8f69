"""Moving where something goes wrong: nothing is lost, nothing is there twice, orphans go.

Store and cold store lie on one simulated disk, and every call of moving out, bringing back,
evicting and sweeping is one at which the process dies, the power goes, or the call fails.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import esker
from esker.engine import tiering
from esker.format import names
from esker.testing import KEPT, LOST, Fault, ManualClock, Monitor, SimulatedDisk
from tests.helpers import abandon
from tests.suites import slowly

ROOT, COLD = "/store", "/cold"
ALL = list(range(35))


def opened(disk: Any, mode: Any = "rw", **options: Any) -> esker.Store:
    how = {"cold": COLD, "background": False, "clock": ManualClock()} | options
    return esker.open(ROOT, mode, files=disk, **how)


def filled(disk: Any, **options: Any) -> esker.Store:
    """A store with three sealed segments of ten records, and a log."""
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_records=10, **options)
    for first in range(0, 35, 10):
        values = [b"%d " % n + b"v" * 150 for n in range(first, min(first + 10, 35))]
        topic.append_many(values, wait=True)
    topic.sync()
    while store._context.background.seal_step():
        pass
    return store


def values(store: esker.Store) -> list[int]:
    return [int(record.value.split()[0]) for record in store["t"].read("earliest")]


def keys(disk: SimulatedDisk) -> set[str]:
    return {path.removeprefix(COLD + "/") for path in disk.contents() if path.startswith(COLD)}


def named(store: esker.Store) -> list[str]:
    """The keys that stubs name."""
    shard = store["t"]._shards[0]
    return [segment.place.key for segment in shard.sealed if segment.place is not None]


def judge(
    disk: SimulatedDisk, allowed: list[list[int]], where: object, *, rolling: bool = False
) -> None:
    """All is there, once, for who reads and for who writes; the next sweep takes all orphans.

    Who reads before a recovery is refused where a log was being begun.
    """
    with opened(disk, "r", cold="") as reader:
        seen = None if rolling else values(reader)
    with opened(disk) as store:
        seen = values(store) if seen is None else seen
        assert seen in allowed, where
        assert not {finding.label for finding in store.recovery.findings} & LOSSES, where
        assert values(store) == seen, where
        store["t"].append(b"99", wait=True)
        store.tick()
        assert values(store) == [*seen, 99], where
        stubs = named(store)
        assert keys(disk) == set(stubs), (where, "orphans, or a stub without its segment")
        assert len(stubs) == len(set(stubs)), where
        assert not [path for path in disk.contents() if path.endswith(".seg.tmp")], where
        store.tier("t", "hot")
        assert values(store) == [*seen, 99], where
        assert keys(disk) == set(), where


LOSSES = {
    "corrupt_sealed", "corrupt_frame", "corrupt_header", "missing_segment", "stranger", "lost_tail",
}  # fmt: skip


def explore(
    act: Callable[[esker.Store], None], allowed: list[list[int]], **how: Any
) -> Counter[str]:
    """Look at every state that a death or a power cut can leave while this is done."""
    disk = SimulatedDisk()
    store = filled(disk)
    before = how.get("before")
    if before is not None:
        before(store)
    found: Counter[str] = Counter()
    seen: set[bytes] = set()

    def watch(call: Any, when: str) -> None:
        if when == "before":
            found[call.name] += 1
        disk.watch = None
        states = [disk.kill(), *disk.crashes(most=how.get("most", 10), chances=2, seen=seen)]
        for state in states:
            image = state.image()
            if image not in seen or state is not states[0]:
                seen.add(image)
                found["states"] += 1
                judge(state, allowed, (call, when), rolling="rolling" in how)
        disk.watch = watch

    disk.watch = watch
    act(store)
    disk.watch = None
    assert values(store) == allowed[-1]
    abandon(store)
    judge(disk.crash(LOST), allowed[-1:], "at the end")
    return found


def test_a_death_while_segments_are_moved_out_leaves_them_here_or_there() -> None:
    found = explore(lambda store: store.tier("t", "cold") and None, [ALL])
    assert found["rename"] == 6, "three into the cold store, three stubs"
    assert found["states"] > 100


def test_a_death_while_they_are_brought_back_leaves_them_here_or_there() -> None:
    found = explore(
        lambda store: store.tier("t", "hot") and None, [ALL],
        before=lambda store: store.tier("t", "cold"),
    )  # fmt: skip
    assert found["rename"] == found["unlink"] == 3
    assert found["states"] > 40


def test_a_death_while_a_bound_is_kept_leaves_them_here_or_there() -> None:
    def bounded(store: esker.Store) -> None:
        store.alter("t", hot_segments=1)
        store.tick()
        store["t"].append_many([b"35"] * 1)
        store["t"].sync()
        store.alter("t", hot_segments=0, hot_bytes=1)
        store.tick()

    longer = [*ALL, 35]
    found = explore(bounded, [ALL, longer], most=6, rolling=True)
    assert found["rename"] >= 6


def test_a_death_while_they_are_evicted_and_swept_leaves_no_stub_alone() -> None:
    def evict(store: esker.Store) -> None:
        store["t"].delete(20)
        store.tick()

    found = explore(evict, [ALL, ALL[20:]], before=lambda store: store.tier("t", "cold"))
    assert found["unlink"] >= 4, "two stubs, two segments"


def test_a_death_while_a_deleted_record_is_reclaimed_from_a_moved_segment() -> None:
    disk = SimulatedDisk()
    with opened(disk) as store:
        topic = store.create("t", segment_records=10, durability="fsync")
        for first in range(0, 30, 10):
            topic.append_many(
                [esker.Record(b"%d " % n + b"v" * 150, tag="x" if n % 3 == 0 else None)
                 for n in range(first, first + 10)]
            )  # fmt: skip
        store.tier("t", "cold")
        assert topic.delete(tag="x") == 10
        left = [n for n in range(30) if n % 3]
        seen: set[bytes] = set()

        def watch(call: Any, when: str) -> None:
            disk.watch = None
            for state in disk.crashes(most=5, chances=1, seen=seen):
                judge(state, [left], (call, when), rolling=True)
            disk.watch = watch

        disk.watch = watch
        assert topic.reclaim() > 0
        disk.watch = None
        assert values(store) == left


def test_the_segment_is_durable_in_the_cold_store_before_its_stub_has_its_name() -> None:
    disk = SimulatedDisk()
    store = filled(disk)
    calls = disk.record()
    store.tier("t", "cold", before=10)
    changes = [
        (call.name, COLD if call.path.startswith(COLD) else "here")
        for call in calls
        if call.name in ("create", "write", "sync", "rename", "sync_dir", "open", "read")
    ]
    first = changes[changes.index(("create", COLD)) :]
    assert first[:4] == [(name, COLD) for name in ("create", "write", "sync", "rename")]
    assert first[4] == ("sync_dir", COLD)
    again = first.index(("read", COLD))
    assert again < first.index(("create", "here")), "it is read again first"
    tail = [name for name, place in first if place == "here" and name not in ("open", "read")]
    assert tail == ["create", "write", "sync", "rename", "sync_dir"]
    abandon(store)


ACTS: dict[str, Callable[[esker.Store], Any]] = {
    "out": lambda store: store.tier("t", "cold"),
    "back": lambda store: store.tier("t", "hot"),
    "sweep": lambda store: tiering.sweep(store["t"]._shards[0]),
    "bound": lambda store: store.tick(),
}
KINDS = [
    "EIO",
    "ENOSPC",
    "ESTALE",
    *slowly("KeyboardInterrupt", "late KeyboardInterrupt"),
    "late MemoryError",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ACTS)
def test_whatever_call_fails_nothing_is_lost_and_it_works_when_tried_again(
    what: str, kind: str
) -> None:
    struck = at = 0
    while True:
        at += 1
        disk = SimulatedDisk(seed=at)
        store = filled(disk)
        topic = store["t"]
        if what in ("back", "sweep"):
            store.tier("t", "cold")
        wanted = ALL
        if what == "sweep":
            topic.delete(10)
            wanted = ALL[10:]
        if what == "bound":
            store.alter("t", hot_segments=1)
        act = partial(ACTS[what], store)
        fault = disk.fail(Fault(kind, at))
        with suppress(esker.EskerError, MemoryError, KeyboardInterrupt):
            act()
        disk.heal()
        if not fault.hits:
            abandon(store)
            break
        struck += 1
        for state in (disk.kill(), disk.crash(LOST), disk.crash(KEPT)):
            judge(state, [wanted], (what, kind, at))
        assert values(store) == wanted, (kind, at)
        assert not store["t"]._shards[0].in_doubt or kind.startswith("late"), (kind, at)
        act()
        store.tick()
        assert values(store) == wanted, (kind, at)
        doubtful = topic._shards[0].doubtful
        assert doubtful or keys(disk) == set(named(store)), (kind, at)
        abandon(store)
        judge(disk.crash(LOST), [wanted], (what, kind, at, "again"))
    least = {"out": 10, "back": 8, "sweep": 0 if kind == "ENOSPC" else 1, "bound": 8}
    assert struck >= least[what], struck


def test_where_bringing_back_may_not_be_durable_nothing_is_swept() -> None:
    """The directory could not be synced: a power cut brings back the stub."""
    disk = SimulatedDisk()
    store = filled(disk)
    store.tier("t", "cold")
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync_dir"}), inside=ROOT))
    with pytest.raises(esker.StorageError):
        store.tier("t", "hot")
    disk.heal()
    assert values(store) == ALL
    assert len(keys(disk)) == 3
    store.tick()
    assert tiering.sweep(store["t"]._shards[0]) == 0
    assert len(keys(disk)) == 3
    abandon(store)
    judge(disk.crash(LOST), [ALL], "the stub")
    judge(disk.crash(KEPT), [ALL], "the segment")


def test_a_move_in_the_right_order_trips_nothing() -> None:
    monitor = Monitor(SimulatedDisk())
    store = filled(monitor)
    store.tier("t", "cold")
    store["t"].delete(10)
    store.tick()
    store.tier("t", "hot")
    store.tier("t", "cold")
    store.close()
    monitor.check()


@pytest.mark.parametrize(
    "how", ["not at all", "not synced", "no name", "other bytes", "gone", "early"]
)
def test_a_move_in_the_wrong_order_trips_the_monitor(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(SimulatedDisk())
    store = filled(monitor)
    cold = store._context.maps.cold.store(COLD)
    real_put, files = cold.put, monitor

    def put(key: str, data: Any) -> None:
        if how == "other bytes":
            real_put(key, bytes(len(data)))
        elif how in ("not synced", "no name"):
            folder = f"{COLD}/{key.rpartition('/')[0]}"
            real_put(f"{key.rpartition('/')[0]}/other", b"")
            file = files.open(f"{COLD}/{key}", "create")
            file.write(0, [data])
            if how == "no name":
                file.sync()
            file.close()
            assert files.kind(folder) == "dir"

    monkeypatch.setattr(tiering, "fetch", lambda store, place: b"")
    if how in ("gone", "early"):
        store.tier("t", "cold", before=10)
        if how == "early":
            monkeypatch.setattr(tiering, "_settle", lambda shard, stub: None)
            store.tier("t", "hot", before=10)
        else:
            cold.delete(store["t"]._shards[0].sealed[0].place.key)  # type: ignore[union-attr]
    else:
        monkeypatch.setattr(cold, "put", put)
        store.tier("t", "cold", before=10)
    assert [each.split(":")[0] for each in monitor.violations] == ["moved"]
    abandon(store)


def test_a_late_deletion_takes_nothing_but_what_it_was_meant_for() -> None:
    """One who is gone had begun to delete; the segment was moved again since."""
    disk = SimulatedDisk()
    with filled(disk) as store:
        store.tier("t", "cold", before=10)
        (old,) = keys(disk)
        store.tier("t", "hot", before=10)
        store.tier("t", "cold", before=10)
        store._context.maps.cold.store(COLD).delete(old)
        assert values(store) == ALL
        assert len(keys(disk)) == 1
        told = names.parse_cold(old)
        assert told is not None
        assert told.segment == (1, 0, True)
