"""Deleting on request: a topic, and the records before a position."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import esker
from esker.engine import removal
from esker.testing import CORNERS, KEPT, LOST, Call, Crash, Fate, Fault, ManualClock, SimulatedDisk
from tests.helpers import wait_until

EVERY_KIND = True  # of store: see tests/conftest.py

ROOT = "/store"


def small(store: esker.Store, name: str = "t", **options: object) -> esker.Topic:
    """A topic with forty records in segments of ten."""
    topic = store.create(name, segment_records=10, **options)
    for number in range(40):
        topic.append_many([b"%d" % number])
    store.tick()
    return topic


def simulated(disk: SimulatedDisk) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=ManualClock(), background=False, journals=1)


@pytest.mark.parametrize("given", [3, True, b"3", ["3"], "", "\udc80"])
@pytest.mark.parametrize("name", ["tag", "tag_prefix", "skip_node"])
def test_what_is_no_text_finds_no_records(store: Any, name: str, given: Any) -> None:
    topic = store["t"]
    topic.append_many([esker.Record(b"x", tag="3", node="3")], wait=True)
    ask: Any = topic.read if name == "skip_node" else topic.delete
    with pytest.raises(esker.InvalidOption):
        list(ask(**{name: given}))
    assert len(topic) == 1


# ---- records before a position ---------------------------------------------------------------


@pytest.mark.parametrize("before", [1, 9, 10, 11, 25, 39, 40])
def test_readers_begin_behind_what_was_deleted_and_meet_no_gap(tmp_path: Path, before: int) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = small(store)
        assert topic.delete(before) == before
        assert topic.delete(before) == 0
        assert topic.delete(before - 1) == 0

    def check(topic: esker.Topic) -> None:
        rest = [(n, b"%d" % n) for n in range(before, 40)]
        assert [(r.offset, r.value) for r in topic.read()] == rest
        assert [(r.offset, r.value) for r in topic.read(0)] == rest
        assert [(r.offset, r.value) for r in topic.read(-100)] == rest
        assert [(r.offset, r.value) for r in topic.read("@1970-01-02")] == rest
        assert [(r.offset, r.value) for r in topic.follow("earliest", timeout=0)] == rest
        assert len(topic) == len(topic[:]) == 40 - before
        assert (topic.earliest(), topic.end()) == (before, 40)
        with pytest.raises(esker.OffsetOutOfRange):
            topic.get(before - 1)

    with esker.open(tmp_path / "data", mode="r") as store:
        check(store["t"])
    with esker.open(tmp_path / "data") as store:
        check(store["t"])
        assert store["t"].append(b"next", wait=True) == 40
        assert store.recovery.clean
    assert esker.verify(tmp_path / "data").ok


def test_whole_segments_give_their_space_back_and_the_last_one_stays(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = small(store)
        folder = tmp_path / "data" / "topics" / "00000001" / "0000"
        before = len(list(folder.glob("*.seg")))
        topic.delete(25)
        assert len(list(folder.glob("*.seg"))) == before - 2
        counters = topic.counters()
        assert counters["records_deleted"] == 25
        assert counters["segments_deleted"] == 2
        assert counters["oldest_offset"] == 25
        assert counters["bytes_reclaimed"] > 0
        topic.delete("latest")
        assert list(topic.read()) == []
        assert [*folder.glob("*.seg"), *folder.glob("*.log")]
        assert topic.append(b"x", wait=True) == 40


def test_deleting_by_time_takes_each_shard_by_itself(tmp_path: Path) -> None:
    clock = ManualClock()
    with esker.open(tmp_path / "data", clock=clock, background=False) as store:
        topic = store.create("t", shards=3, durability="disk")
        for _ in range(3):
            topic.append_many([esker.Record(b"old", key=b"%d" % n) for n in range(20)])
        clock.forward(3600)
        topic.append_many([esker.Record(b"new", key=b"%d" % n) for n in range(20)])
        assert topic.delete("@-30m") == 60
        assert {r.value for r in topic.read()} == {b"new"}
        with pytest.raises(esker.InvalidOption, match="shard=N"):
            topic.delete(5)
        left = len(list(topic.read(shard=1)))
        assert topic.delete(1 << 40, shard=1) == left
        assert list(topic.read(shard=1)) == []


def test_buffered_records_can_be_deleted_too(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store["t"]
        for number in range(5):
            topic.append(b"%d" % number)
        assert topic.delete("latest") == 5
        assert list(topic.read()) == []
        assert topic.append(b"5", wait=True) == 5


def test_a_follower_that_stands_below_goes_on_behind(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = small(store)
        tail = topic.follow("earliest", timeout=0)
        assert next(tail).offset == 0
        topic.delete("latest")
        topic.append(b"new", wait=True)
        rest = [record.offset for record in tail]
        assert rest[-1] == 40
        assert [record.offset for record in topic.follow(3, timeout=0)] == [40]


def test_another_process_sees_the_deletion_while_the_writer_lives(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = small(store)
        with esker.open(tmp_path / "data", mode="r") as other:
            reader = other["t"]
            batches = reader.batches(0, max_records=1)
            assert next(batches).first == 0
            topic.delete(25)
            assert [record.offset for record in reader.read(0)] == list(range(25, 40))
            assert [batch.first for batch in batches][-15:] == list(range(25, 40))


def test_a_deletion_that_cannot_be_made_durable_has_not_happened() -> None:
    disk = SimulatedDisk(3)
    store = simulated(disk)
    topic = small(store)
    disk.fail(Fault(5, calls=frozenset({"write"}), inside="state"))
    with pytest.raises(esker.StorageError):
        topic.delete(25)
    disk.heal()
    assert len(list(topic.read())) == 40
    assert topic.delete(25) == 25
    store.close()


def crashes(disk: SimulatedDisk) -> list[SimulatedDisk]:
    return [disk.kill(), *(disk.crash(fate) for fate in (LOST, KEPT, *map(Fate, range(6))))]


@pytest.mark.crash
def test_a_crash_leaves_the_records_as_they_were_or_deleted_as_asked() -> None:
    disk = SimulatedDisk(1)
    store = simulated(disk)
    topic = small(store, durability="fsync")
    topic.sync()
    looked = 0
    floor = 0

    def watch(call: Call, when: str) -> None:
        nonlocal looked
        for after in crashes(disk):
            looked += 1
            with simulated(after) as found:
                offsets = [record.offset for record in found["t"].read()]
                assert offsets in (list(range(floor, 40)), list(range(target, 40))), (call, when)
                assert [record.offset for record in found["t"].read(0)] == offsets
                assert found["t"].append(b"more", wait=True) == 40

    for target in (5, 25, 40):
        disk.watch = watch
        topic.delete(target)
        disk.watch = None
        floor = target
        for after in crashes(disk):
            with simulated(after) as found:
                assert [record.offset for record in found["t"].read()] == list(range(target, 40))
    store.close()
    assert looked > 100


# ---- topics ----------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        old = small(store)
        small(store, "other")
        store.delete("t")
        assert list(store) == ["other"]
        assert "t" not in store
        for call in (old.append, old.get, old.delete, lambda _: list(old.read()), old.read):
            with pytest.raises(esker.TopicNotFound, match="was deleted"):
                call(b"0" if call == old.append else 0)
        with pytest.raises(esker.TopicNotFound):
            list(store["t"].read())
        new = store["t"]
        assert new.append(b"again", wait=True) == 0
        assert [record.value for record in store["t"].read()] == [b"again"]
        assert len(list(store["other"].read())) == 40
        store.tick()
        assert sorted(p.name for p in (tmp_path / "data" / "topics").iterdir()) == [
            "00000002", "00000003",
        ]  # fmt: skip
    with esker.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert [record.value for record in store["t"].read()] == [b"again"]
    assert esker.verify(tmp_path / "data").ok


def test_deleting_what_is_not_there_says_so(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("orders")
        with pytest.raises(esker.TopicNotFound, match="orders"):
            store.delete("order")
        store.delete("order", missing_ok=True)
        del store["orders"]
        assert list(store) == []
    with esker.open(tmp_path / "data", mode="r") as store, pytest.raises(esker.ReadOnlyStore):
        store.delete("orders")


def test_a_topic_that_another_process_writes_is_not_deleted(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        small(store, shards=2)
        with esker.open(tmp_path / "data") as other:
            with pytest.raises(esker.WriterBusy):
                other.delete("t")
            assert list(other) == ["t"]
            assert len(list(other["t"].read())) == 40


@pytest.mark.parametrize("kind", ["memory", "ephemeral"])
def test_topics_in_memory_are_deleted_too(kind: str) -> None:
    with esker.open(":memory:", background=False) as store:
        topic = store.create("t", durability=kind)
        topic.append_many([b"x"] * 5)
        assert topic.delete(3) == 3
        assert [record.offset for record in topic.read()] == [3, 4]
        store.delete("t")
        assert list(store) == []
        assert store["t"].append(b"y", wait=True) == 0


def test_whoever_follows_a_topic_is_told_that_it_was_deleted(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        topic.append(b"first", wait=True)
        seen: list[object] = []

        def follow() -> None:
            try:
                seen.extend(record.value for record in topic.follow("earliest"))
            except esker.TopicNotFound as problem:
                seen.append(problem.code)

        thread = threading.Thread(target=follow)
        thread.start()
        wait_until(lambda: topic._shards[0].waiters)
        store.delete("t")
        thread.join(10)
        assert not thread.is_alive()
        assert seen[-1] == "topic_not_found"


def test_readers_in_other_processes_are_told(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        small(store)
        with esker.open(tmp_path / "data", mode="r") as other:
            assert len(list(other["t"].read())) == 40
            store.delete("t")
            with pytest.raises(esker.TopicNotFound, match="deleted"):
                list(other["t"].read())
            assert list(other) == []


def test_writers_of_other_processes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with esker.open(path, background=False) as store:
        handle = store["t"]
        handle.append(b"x", wait=True)
    with esker.open(path, background=False) as one, esker.open(path, background=False) as two:
        stale = two["t"]
        assert stale.end() == 1
        one.delete("t")
        with pytest.raises(esker.TopicNotFound, match="deleted"):
            stale.append(b"y", wait=True)


def test_threads_that_append_to_a_deleted_topic_are_told_and_nothing_hangs(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="disk")
        outcomes: list[str] = []

        def work(wait: bool) -> None:
            try:
                while True:
                    topic.append(b"x" * 50, wait=wait)
            except esker.EskerError as problem:
                outcomes.append(problem.code)

        threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: topic.end() > 2000)
        store.delete("t")
        for thread in threads:
            thread.join(20)
        assert outcomes == ["topic_not_found"] * 4
        assert store.statistics()["unflushed_bytes"] == 0
        assert store["t"].append(b"new", wait=True) == 0


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_crash_leaves_a_topic_whole_or_gone(durability: str) -> None:
    disk = SimulatedDisk(2)
    store = simulated(disk)
    small(store, durability=durability).sync()
    small(store, "other", durability=durability).sync()
    looked = 0
    states: set[bool] = set()

    def watch(call: Call, when: str) -> None:
        nonlocal looked
        for after in crashes(disk):
            looked += 1
            with simulated(after) as found:
                there = "t" in found
                states.add(there)
                if there:
                    assert len(list(found["t"].read(gaps="skip"))) == 40, (call, when)
                assert len(list(found["other"].read(gaps="skip"))) == 40
                found["t"].append(b"more", wait=True)
            with simulated(after) as found:
                assert found.recovery.clean
                assert len(list(found["t"].read(gaps="skip"))) == (41 if there else 1)
                assert not [name for name in after.folders() if name.endswith(".deleted")]

    disk.watch = watch
    store.delete("t")
    store.tick()
    disk.watch = None
    for after in crashes(disk):
        with simulated(after) as found:
            assert list(found) == ["other"], "deleted is deleted, whatever happens"
    store.close()
    assert states == {True, False}
    assert looked > 100


@pytest.mark.crash
def test_a_deletion_that_fails_half_way_is_finished_by_the_next_opening() -> None:
    outcomes = set()
    for number in (28, 5):
        for at in range(1, 40):
            disk = SimulatedDisk(at)
            store = simulated(disk)
            small(store).sync()
            disk.fail(Fault(number, at, forever=True))
            try:
                store.delete("t")
                outcomes.add("deleted")
            except esker.EskerError:
                outcomes.add("failed")
            disk.heal()
            if "t" in store and not any(name.endswith(".deleted") for name in disk.folders()):
                assert len(list(store["t"].read())) == 40
                store.delete("t")
            store.close()
            with simulated(disk.kill()) as found:
                assert list(found) == []
                found.tick()
    assert outcomes == {"deleted", "failed"}


def test_a_catalog_that_was_lost_does_not_bring_a_deleted_topic_back() -> None:
    disk = SimulatedDisk(4)
    store = simulated(disk)
    small(store)
    small(store, "other")
    store.tick()

    def watch(call: Call, when: str) -> None:
        if call.name == "sync_dir" and call.path.endswith("topics") and when == "after":
            disk.stop_at(0, "after")

    disk.watch = watch
    with pytest.raises(Crash):
        store.delete("t")
    disk.watch = None
    store._context.forked = True
    store.close()
    after = disk.crash(LOST)
    for path in after.contents():
        if "/catalog-" in path:
            after.unlink(path)
    with simulated(after) as found:
        assert list(found) == ["other"]
        assert "damaged_catalog" in found.recovery.labels


def test_the_asyncio_twin_deletes_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            await store["t"].append(b"x", wait=True)
            await store["t"].append(b"y", wait=True)
            assert await store["t"].delete(1) == 1
            assert [record.value async for record in store["t"].read()] == [b"y"]
            await store.delete("t")
            assert await store.topics() == []

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_directory_that_somebody_took_away_is_damage_and_not_a_deletion(
    tmp_path: Path, mode: Literal["r", "rw"]
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        small(store)
    shutil.rmtree(tmp_path / "data" / "topics" / "00000001")
    with esker.open(tmp_path / "data", mode=mode) as store:
        with pytest.raises(esker.Corruption, match="directory of topic 't' is missing"):
            list(store["t"].read())
        if mode == "rw":
            with pytest.raises(esker.Corruption, match="directory of topic 't' is missing"):
                store["t"].append(b"x", wait=True)


def test_counting_back_from_the_end_does_not_count_what_is_deleted() -> None:
    disk = SimulatedDisk()
    with simulated(disk) as store:
        store.create("t", durability="disk").append_many([b"a", b"b", b"c"])
        store.sync()
        store["t"].delete("latest")
        store["t"].append(b"lost")
        disk = disk.crash(LOST)
    with simulated(disk) as store:
        (gap,) = store["t"].read(3, gaps="yield")
        assert isinstance(gap, esker.Gap)
        assert gap.first == 3
        assert list(store["t"].read(-1, gaps="yield")) == [], "no record is left to count"
        store["t"].append(b"next")
        store["t"].flush()
        for back in (-1, -2, -9):
            assert [record.value for record in store["t"].read(back)] == [b"next"]


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_what_a_power_cut_takes_behind_a_deletion_is_a_gap_and_no_damage(mode: Any) -> None:
    """Every segment but the last was deleted, and that one lost what it held."""
    gaps = 0
    for first, second in itertools.product((*CORNERS, Fate(1), Fate(2)), repeat=2):
        disk = SimulatedDisk(1)
        store = esker.open("/store", files=disk, background=False)
        store["t"].append_many([b"x"] * 3)
        store["t"].sync()
        for fate in (first, second):
            store["t"].append_many([b"y"] * 2)
            store.tick()
            store["t"].append_many([b"y"] * 2)
            disk = disk.crash(fate)
            store._context.forked = True  # it is dead, and closes without touching the disk
            store.close()
            store = esker.open("/store", files=disk, background=False)
            if fate is first:
                store["t"].delete("latest")
                begins = store["t"].end()
        if mode == "r":
            store.close()
            store = esker.open("/store", mode, files=disk)
        at = begins
        for item in store["t"].batches(0, gaps="yield"):
            assert item.first == at
            at = item.last + 1
            gaps += isinstance(item, esker.Gap)
        assert at == store["t"].end()
        store.close()
        assert esker.verify("/store", files=disk).ok
    assert gaps > 3


MEETING: dict[str, tuple[Callable[[esker.Topic, Any, Any], Any], str]] = {
    "a group is made": (lambda topic, _, __: topic.group("new"), "TopicNotFound"),
    "a group polls": (lambda _, group, __: list(group.poll()), "TopicNotFound"),
    "a group that has read is closed": (lambda _, __, group: group.close(), "nothing"),
    "groups are listed": (lambda topic, _, __: topic.groups(), "nothing"),
    "a producer appends": (
        lambda topic, _, __: topic.producer("p").append(b"x"), "TopicNotFound",
    ),
    "a batch with a key": (
        lambda topic, _, __: topic.append_many([b"x"], idempotency_key="k"), "TopicNotFound",
    ),
    "a queue is opened": (lambda topic, _, __: topic._store.queue("t"), "TopicNotFound"),
}  # fmt: skip


@pytest.mark.parametrize("what", MEETING)
def test_what_meets_a_deletion_is_told_that_the_topic_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its directory has lost its name, and the handle does not know of it yet."""
    act, expected = MEETING[what]
    seen: list[str] = []
    really = removal._without

    def other() -> None:
        try:
            act(topic, new, read)
            seen.append("nothing")
        except esker.EskerError as problem:
            seen.append(type(problem).__name__)

    thread = threading.Thread(target=other)

    def meanwhile(*given: Any) -> Any:
        changed = really(*given)
        thread.start()
        thread.join(0.2)  # some wait for a lock of the deletion, and meet what it left
        return changed

    with esker.open(tmp_path / "data", background=False) as store:
        topic = small(store)
        new, read = topic.group("new to it"), topic.group("has read")
        for batch in read.poll():
            batch.ack()
        monkeypatch.setattr(removal, "_without", meanwhile)
        store.delete("t")
        thread.join()
        assert seen == [expected]
        new.close()
        read.close()


def test_a_file_that_is_missing_of_a_topic_that_is_there_is_no_deletion(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic, files = small(store), store._context.files
        with pytest.raises(esker.StorageError, match="No such file"), topic._told_if_deleted():
            files.open(str(tmp_path / "data" / "missing"), "r")
        store.delete("t")
        with pytest.raises(esker.TopicNotFound), topic._told_if_deleted():
            files.open(str(tmp_path / "data" / "missing"), "r")
