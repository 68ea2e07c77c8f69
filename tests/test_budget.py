"""A budget for the whole store: the oldest go first, whichever topic they belong to."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

import esker
from esker.engine import budget
from esker.engine.budget import Candidate, oldest_first
from esker.testing import CORNERS, Crash, Fate, Fault, ManualClock, SimulatedDisk
from tests.crash import explorer
from tests.crash.driver import OPTIONS, Driver
from tests.helpers import HandClock, Refusing, abandon, wait_until
from tests.suites import slowly

TEN = [b"%d" % n * 20 for n in range(10)]


def fill(store: esker.Store, name: str, segments: int = 1) -> None:
    """Segments of ten records each, the last one not sealed."""
    for _ in range(segments):
        store[name].append_many(TEN)


def gaps(topic: esker.Topic) -> list[tuple[int, int, str]]:
    items: Iterator[Any] = topic.read(0, gaps="yield")
    return [(each.first, each.last, each.reason) for each in items if isinstance(each, esker.Gap)]


def used(store: esker.Store) -> int:
    found = store.maintenance().budget
    assert found is not None
    return found.bytes


def hold(store: esker.Store) -> None:
    """Be the writer of every topic; one that is taken for a moment grows by the mark of a close."""
    for name in store:
        shard = store[name]._shards[0]
        with shard.lock:
            shard.open_for_writing()


def on_disk(store: esker.Store) -> int:
    """What the sealed segments of a store take, as the disk has it."""
    return sum(path.stat().st_size for path in Path(store.path).rglob("*.seg"))


@pytest.fixture
def opened(tmp_path: Path, clock: HandClock) -> Any:
    """Opens a store with a budget; nothing happens in it by itself."""

    def opening(limit: Any, mode: Any = "rw", **options: Any) -> esker.Store:
        options = {"clock": clock, "background": False, **options}
        return esker.open(tmp_path / "data", mode, budget_bytes=limit, **options)

    return opening


@pytest.fixture
def filled(opened: Any, clock: HandClock) -> Any:
    """A closed store: topics a, b, c take turns, a second apart, with three segments and a log."""

    def filling(**options: dict[str, Any]) -> int:
        with opened(0) as store:
            for name in "abc":
                store.create(name, segment_records=10)
            for _ in range(4):
                for name in "abc":
                    clock.forward(1)
                    fill(store, name)
            store.tick()
            for name, altered in options.items():
                store.alter(name, **altered)
        with opened(1 << 40, "r") as store:
            return used(store)

    return filling


# ---- deciding --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "excess", "ends", "left"),
    [
        ([[(1, 10, 100)]], 0, {}, 0),
        ([[(1, 10, 100), (4, 20, 100)], [(2, 7, 50), (3, 9, 50)]], 1, {0: 10}, 0),
        ([[(1, 10, 100), (4, 20, 100)], [(2, 7, 50), (3, 9, 50)]], 101, {0: 10, 1: 7}, 0),
        ([[(1, 10, 100), (4, 20, 100)], [(2, 7, 50), (3, 9, 50)]], 200, {0: 10, 1: 9}, 0),
        ([[(1, 10, 100), (4, 20, 100)], [(2, 7, 50), (3, 9, 50)]], 201, {0: 20, 1: 9}, 0),
        ([[(1, 10, 100)], [], [(2, 7, 50)]], 160, {0: 10, 2: 7}, 10),
        ([], 5, {}, 5),
    ],
)
def test_the_oldest_go_first_and_no_more_than_need_be(
    queues: list[list[tuple[int, int, int]]], excess: int, ends: dict[int, int], left: int
) -> None:
    candidates = [iter([Candidate(*each) for each in queue]) for queue in queues]
    assert oldest_first(candidates, excess) == (ends, left)


@pytest.mark.parametrize(
    ("many", "beginnings"),
    [(0, (0, 0, 0)), (1, (10, 0, 0)), (2, (10, 10, 0)), (4, (20, 10, 10)), (9, (30, 30, 30))],
)
def test_whichever_topic_they_belong_to(
    opened: Any, filled: Any, tmp_path: Path, many: int, beginnings: tuple[int, ...]
) -> None:
    total = filled()
    sizes = [each.stat().st_size for each in tmp_path.rglob("*.seg")]
    assert len(sizes) == 9
    (size,) = set(sizes)
    with opened(total - many * size) as store:
        hold(store)
        store.tick()
        assert tuple(store[name].earliest() for name in "abc") == beginnings
        assert used(store) == total - many * size
        assert store.maintenance().budget.above == 0


def test_one_byte_too_many_costs_a_segment(opened: Any, filled: Any) -> None:
    total = filled()
    with opened(total) as store:
        assert store.retain() == []
    with opened(total - 1) as store:
        hold(store)
        (done,) = store.retain()
        assert (done.topic, done.first, done.last, done.segments) == ("a", 0, 9, 1)
        assert done.reason == "budget_bytes"
        assert used(store) == total - done.bytes


def test_a_segment_is_as_old_as_its_youngest_record(opened: Any, clock: HandClock) -> None:
    """Not as old as its file: what was brought in later may be older."""
    now = clock.now_us()
    with opened(0) as store:
        for name, age in (("young", 10), ("old", 1000)):
            store.create(name, segment_records=10)
            for _ in range(3):
                clock.forward(1)
                stamp = now - age * 1_000_000
                store[name].append_many([esker.Record(b"x" * 100, timestamp=stamp)] * 10)
        store.tick()
    with opened(1 << 40, "r") as store:
        total = used(store)
    with opened(total - 1) as store:
        assert [each.topic for each in store.retain()] == ["old"]


def test_the_store_stays_within_its_budget_while_it_is_written(opened: Any) -> None:
    with opened("16KiB") as store:
        for name in "abc":
            store.create(name, segment_records=10)
        for n in range(60):
            fill(store, "aab"[n % 3])
            store.tick()
            assert used(store) <= 16 << 10
            assert on_disk(store) <= 16 << 10
        assert used(store) > 12 << 10, "and no more goes than need be"
        found = store.maintenance()
        reclaimed = sum(store[name].counters()["bytes_reclaimed"] for name in "ab")
        assert found.done.evicted_bytes == reclaimed > 0
        assert found.waiting.topics == 3, "each is counted, whatever its options"


# ---- who is told, and what stays -------------------------------------------------------------


def test_whoever_comes_from_below_is_told_and_what_went_stays_gone(
    opened: Any, filled: Any
) -> None:
    total = filled()
    with opened(total // 2) as store:
        store.tick()
        with opened(0, "r") as reader:
            for name in "abc":
                earliest = store[name].earliest()
                assert earliest > 0
                assert gaps(store[name]) == gaps(reader[name]) == [(0, earliest - 1, "evicted")]
        beginnings = [store[name].earliest() for name in "abc"]
    with opened(0) as store:
        assert [store[name].earliest() for name in "abc"] == beginnings
        assert [gaps(store[name])[0][1] + 1 for name in "abc"] == beginnings
    assert esker.verify(store.path).ok


def test_segments_that_are_to_be_kept_are_kept_and_topics_that_refuse_lose_nothing(
    opened: Any, filled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    filled(a={"keep_segments": 3}, b={"discard": "reject", "cap_records": 1000})
    with opened(1) as store:
        planned = store.retention_plan()
        assert {each.topic: each.last for each in planned} == {"a": 9, "c": 29}
        hold(store)
        there = store.maintenance().budget
        assert there.to_evict == sum(each.bytes for each in planned)
        assert there.above == there.bytes - there.to_evict - 1
        for _ in range(3):
            store.tick()
        assert [store[name].earliest() for name in "abc"] == [10, 0, 30]
        after = store.maintenance().budget
        assert (after.bytes, after.to_evict) == (there.above + 1, 0)
        assert after.above == there.above
        assert "stay above it" in str(store.maintenance())
        assert caplog.text.count("above budget_bytes=1") == 1, "it is told once"
        for name in "abc":
            store[name].append(b"taken all the same", wait=True)


def test_it_is_told_again_when_it_could_be_kept_in_between(
    opened: Any, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened("8KiB") as store:
        topic = store.create("t", discard="reject", cap_records=1000, segment_records=10)
        for _ in range(2):
            fill(store, "t", 40)
            store.tick()
            store.tick()
            topic.delete("latest")
            fill(store, "t", 1)  # so that the last log is a small one
            store.tick()
            assert store.maintenance().budget.above == 0
        assert caplog.text.count("above budget_bytes=8192") == 2


def test_caps_and_ages_go_before_the_budget(opened: Any, filled: Any) -> None:
    """Segment by segment: c keeps one for its cap, and the rest of the excess is the oldest."""
    total = filled(c={"cap_records": 10})
    with opened(1 << 40, "r") as store:
        (capped,) = store.retention_plan()
        assert (capped.topic, capped.segments, capped.reason) == ("c", 3, "cap_records")
    with opened(total - capped.bytes) as store:
        assert store.retention_plan() == [capped], "that is enough"
    with opened(total - capped.bytes - 1) as store:
        planned = store.retention_plan()
        assert [(each.topic, each.reason) for each in planned] == [
            ("c", "cap_records"), ("a", "budget_bytes"),
        ]  # fmt: skip
        assert store.retain() == planned


def test_a_shard_may_lose_to_its_cap_and_to_the_budget(opened: Any, filled: Any) -> None:
    total = filled(a={"cap_records": 20})  # two of its three segments
    with opened(total) as store:
        (capped,) = store.retention_plan()
        assert capped.segments == 2
    with opened(total - capped.bytes - 1) as store:
        (first, second) = store.retention_plan()
        assert first == capped
        assert (second.topic, second.first, second.last) == ("b", 0, 9)
    with opened(total - capped.bytes - 6 * second.bytes) as store:
        hold(store)
        planned = [each for each in store.retention_plan() if each.topic == "a"]
        assert [(each.first, each.last, each.segments) for each in planned] == [
            (0, 19, 2), (20, 29, 1),
        ]  # fmt: skip
        assert planned[1].bytes == second.bytes
        store.retain()
        assert store["a"].earliest() == 30
        assert used(store) == store._context.options.budget_bytes


def test_a_plan_changes_nothing_and_is_what_retain_does(opened: Any, filled: Any) -> None:
    total = filled()
    with opened(total // 2, "r") as reader:
        planned = reader.retention_plan()
        assert planned
        assert reader.retention_plan() == planned
    with opened(total // 2) as store:
        assert store.retention_plan() == planned
        assert store.retain() == planned
        assert store.retain() == store.retention_plan() == []
        assert not any(store[name]._shards[0].writing for name in "abc"), "taken for a moment"


def test_what_is_still_to_be_sealed_goes_too(opened: Any, clock: HandClock) -> None:
    with opened(1) as store:
        store.create("t", segment_records=10)
        fill(store, "t", 4)
        assert store.maintenance().waiting.logs == 3
        store.tick()
        assert (store["t"].earliest(), store["t"].end()) == (30, 40)


def test_class_ephemeral_takes_no_disk(opened: Any) -> None:
    with opened(1) as store:
        store.create("e", durability="ephemeral", segment_records=10)
        fill(store, "e", 4)
        store.tick()
        assert used(store) == 0
        assert len(store["e"]) == 40


# ---- other processes -------------------------------------------------------------------------


def test_what_others_write_is_counted_and_left_to_them(opened: Any, clock: HandClock) -> None:
    with opened(0) as writer, opened(1) as other:
        writer.create("theirs", segment_records=10)
        fill(writer, "theirs", 4)
        writer.tick()
        clock.forward(1)
        other.create("ours", segment_records=10)
        fill(other, "ours", 4)
        other.tick()
        clock.forward(1)
        assert (writer["theirs"].earliest(), other["ours"].earliest()) == (0, 30)
        assert [each.topic for each in other.retention_plan()] == ["theirs"]
        assert other.retain() == []
        standing = other.maintenance().budget
        assert standing.to_evict == other.retention_plan()[0].bytes, "it says what others keep"


def test_the_young_do_not_go_in_place_of_what_others_keep(opened: Any, clock: HandClock) -> None:
    with opened(0) as writer:
        writer.create("theirs", segment_records=10)
        fill(writer, "theirs", 3)
        writer.tick()
        with opened(0) as store:
            clock.forward(1)
            store.create("ours", segment_records=10)
            fill(store, "ours", 3)
            store.tick()
        with opened(1 << 40, "r") as reader:
            total = used(reader)
        with opened(total - 1) as store:
            assert store.retain() == []
            assert store["ours"].earliest() == 0
            assert [each.topic for each in store.retention_plan()] == ["theirs"]


def test_a_look_opens_no_segment_twice(tmp_path: Path, opened: Any, clock: HandClock) -> None:
    """Sizes are asked for once, also of what others write; bodies are never read."""
    with opened(0) as writer:
        writer.create("t", segment_records=10)
        fill(writer, "t", 20)
        writer.tick()
        files = Refusing()
        with opened(1 << 40, files=files) as store:
            total = used(store)
            assert total > 0
            files.calls.clear()
            assert used(store) == total
            assert [path for call, path in files.calls if path.endswith(".seg")] == []


# ---- by itself, and when something fails -----------------------------------------------------


def test_what_is_sealed_between_two_looks_is_added_up(opened: Any) -> None:
    with opened("8KiB") as store:
        background = store._context.background
        store.create("t", segment_records=10)
        store.tick()
        assert background.room == 8 << 10
        for _ in range(30):
            fill(store, "t")
            while background.seal_step():
                pass
        assert 6 << 10 < used(store) <= 8 << 10


def test_the_background_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esker.engine.background.SEAL_DELAY", 0.001)
    with esker.open(tmp_path / "data", budget_bytes="64KiB") as store:
        for name in "ab":
            store.create(name, segment_bytes="8KiB")
        wait_until(lambda: store._context.background.room is not None, "the first look")
        monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 1e9)
        store._context.background._next_retain = 1e18
        for n in range(100):
            store["ab"[n % 2]].append_many([b"x" * 1000] * 6)
        wait_until(lambda: store.maintenance().waiting.logs == 0, "sealing")
        wait_until(lambda: used(store) <= 64 << 10, "the budget")
        assert store.maintenance().done.errors == 0
        assert used(store) > 48 << 10


def test_one_that_only_opens_the_store_keeps_it_too(opened: Any, filled: Any) -> None:
    total = filled()
    with opened(total // 2, background=True) as store:
        wait_until(lambda: used(store) <= total // 2, "the budget")


def test_a_failed_eviction_keeps_the_others_from_nothing_and_is_done_later(
    opened: Any, filled: Any
) -> None:
    total, files = filled(), Refusing()
    with opened(total // 2, files=files) as store:
        files.refuse("write", errno.EIO, "00000001/0000/state")
        store.tick()
        assert [store[name].earliest() > 0 for name in "abc"] == [False, True, True]
        error = store.maintenance().last_error
        assert (error.what, error.topic, error.shard) == ("evicting", "a", 0)
        files.allow()
        store.tick()
        store.tick()  # the first has taken a shard for a moment, which costs a few bytes
        assert store["a"].earliest() > 0
        assert used(store) <= total // 2


@pytest.mark.damages
def test_a_shard_that_nobody_can_look_at_keeps_no_other_from_going(
    opened: Any, filled: Any
) -> None:
    total = filled()
    with opened(total // 4) as store:
        folder = Path(store.path) / "topics" / "00000002" / "0000"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        store.tick()
        found = store.maintenance()
        assert found.budget.unknown == 1
        assert "1 shards cannot be read" in str(found)
        assert found.last_error.topic == "b"
        assert store["a"].earliest() > 0
        with pytest.raises(esker.Corruption):
            store.retain()


def test_a_damaged_catalog_takes_nothing_for_the_budget(
    opened: Any, filled: Any, tmp_path: Path
) -> None:
    """It may have said that a topic must not lose anything."""
    total = filled()
    with opened(0) as store:
        store.alter("a", discard="reject")
    for path in (tmp_path / "data").glob("catalog-*"):
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with opened(total // 2) as store:
        assert "damaged_catalog" in store.recovery.labels
        store.tick()
        assert store.retain() == store.retention_plan() == []
        assert [store[name].earliest() for name in "abc"] == [0, 0, 0]
        assert store.maintenance().budget.above == total - total // 2
        store.alter("a", discard="reject")
    with opened(1) as store:
        store.tick()
        assert [store[name].earliest() for name in "abc"] == [0, 30, 30]


def test_a_topic_that_took_the_place_of_another_loses_nothing_for_it(
    opened: Any, filled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between deciding and doing a topic was deleted, and one of its name was made."""
    total, real = filled(), budget.plan
    with opened(total // 2) as store:

        def meanwhile(store: esker.Store) -> Any:
            found = real(store)
            assert found.evictions[0][1].topic == "a"
            store.delete("a")
            store.create("a", segment_records=10)
            fill(store, "a", 4)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(budget, "plan", meanwhile)
            budget.keep_quietly(store)
        assert (store["a"].earliest(), len(store["a"])) == (0, 40)


def test_what_a_batch_deletes_meanwhile_is_not_taken_twice(opened: Any, filled: Any) -> None:
    """A plan names offsets: what is already gone by then costs nobody another segment."""
    total = filled()
    with opened(total - 1) as store:
        ((shard, wanted),) = budget.plan(store).evictions
        store["a"].delete(10)
        assert budget._evict(shard, wanted.last + 1) is None
        assert store["a"].earliest() == 10
        assert gaps(store["a"]) == []


@pytest.mark.parametrize("given", [-1, "much", 1.5])
def test_a_budget_is_a_size(tmp_path: Path, given: Any) -> None:
    with pytest.raises(esker.InvalidOption, match="budget_bytes"):
        esker.open(tmp_path / "data", budget_bytes=given)
    with esker.open(tmp_path / "data", budget_bytes="10GB") as store:
        assert store._context.options.budget_bytes == 10**10


# ---- deaths ----------------------------------------------------------------------------------


class Spending(Driver):
    """A driver whose topics share a budget."""

    beginnings: ClassVar[list[dict[str, int]]] = []  # after each tick of the workload

    def spend(self, topic: str, durability: str) -> None:
        """Create a topic that may lose segments, of which one record has to be left."""
        self.ledger.creating(topic, durability, 1)
        self._store.create(topic, durability=durability, segment_bytes=4096)
        self.ledger.created(topic)

    def guard(self, topic: str, durability: str) -> None:
        """Create a topic that may lose nothing."""
        self.ledger.creating(topic, durability, 0)
        self._store.create(topic, durability=durability, segment_bytes=4096, discard="reject")
        self.ledger.created(topic)

    def tick(self, seconds: float = 1.0) -> None:
        super().tick(seconds)
        self.beginnings.append({name: self._store[name].earliest() for name in self._store})


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("durability", ["disk", *slowly("fsync")])
def test_a_death_anywhere_keeps_every_promise(
    durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two topics share a budget, beside one that must lose nothing; recovery dies, too."""
    monkeypatch.setattr(explorer, "Driver", Spending)
    monkeypatch.setattr(Spending, "beginnings", [])
    monkeypatch.setitem(OPTIONS, "budget_bytes", 16_000)
    looking = explorer.Explorer(most=6, nested=60)
    steps: list[Any] = [
        ("spend", "a", durability), ("spend", "b", durability), ("guard", "safe", durability),
        ("many", "safe", 3, 900), ("many", "safe", 3, 900), ("many", "a", 3, 900),
        ("many", "a", 3, 900), ("many", "b", 3, 900), ("many", "b", 3, 900), ("sync_all",),
        ("tick",), ("many", "a", 3, 900), ("many", "b", 3, 900), ("tick",),
    ]  # fmt: skip
    looking.explore(steps, seed=5, skip=10)
    assert looking.states >= 100
    assert looking.double >= 100
    before, after = Spending.beginnings
    assert 0 == after["safe"] <= before["a"] < after["a"], "it went on while it was looked at"
    assert after["b"] > 0


def one_life(disk: SimulatedDisk, seen: dict[str, int]) -> None:
    """Writes to two topics within a budget; notes every beginning that a reader was shown."""
    store = esker.open(
        "/store", files=disk, clock=ManualClock(), background=False, budget_bytes=4000
    )
    try:
        for name in "ab":
            store.create(name, segment_records=4, durability="fsync")
        for n in range(8):
            store["ab"[n % 2]].append_many([b"x" * 100] * 4, wait=True)
            store.tick()
            seen.update({name: store[name].earliest() for name in "ab"})
    except Crash:
        store._context.forked = True  # it is dead, and closes without touching the disk
        raise
    finally:
        store.close()
    assert min(seen.values()) > 0


@pytest.mark.crash
@pytest.mark.slow
def test_a_death_anywhere_leaves_floors_that_never_fall_and_losses_that_are_exact() -> None:
    looks = 0
    for fate in (None, *CORNERS, Fate(7)):
        at = 0
        while True:
            at += 1
            disk, seen = SimulatedDisk(at), dict.fromkeys("ab", 0)
            disk.stop_at(at, "after")
            try:
                one_life(disk, seen)
                break
            except Crash:
                pass
            after = disk.kill() if fate is None else disk.crash(fate)
            store = esker.open("/store", files=after, clock=ManualClock(), background=False)
            for name in store:
                topic = store[name]
                earliest, end = topic.earliest(), topic.end()
                assert earliest >= seen[name], f"call {at}, {fate}: the floor fell"
                assert gaps(topic) == ([(0, earliest - 1, "evicted")] if earliest else [])
                offsets = [record.offset for record in topic.read(earliest)]
                assert offsets == list(range(earliest, end))
                looks += 1
            abandon(store)
    assert looks > 300


@pytest.mark.crash
def test_any_call_that_fails_costs_no_record_and_is_made_good_later() -> None:
    """Also a sync of a log: then the shard is poisoned, and goes on when it is opened again."""
    for number in range(1, 200):
        disk = SimulatedDisk(number)
        store = spending(disk)
        fault = Fault("EIO", number)
        disk.fail(fault)
        store.tick()
        disk.heal()
        if not fault.hits:
            break
        check(store)
        with suppress(esker.EskerError):
            store.close()
        with esker.open("/store", files=disk.kill(), background=False, budget_bytes=4000) as store:
            check(store)
            for _ in range(3):
                store.tick()
            check(store)
            assert used(store) <= 4000
            assert store.maintenance().last_error is None
    store.close()
    assert number > 30


def spending(disk: SimulatedDisk) -> esker.Store:
    """A store that a tick brings back within its budget."""
    store = esker.open(
        "/store", files=disk, clock=ManualClock(), background=False, budget_bytes=4000
    )
    for name in "ab":
        store.create(name, segment_records=4, durability="fsync")
    for n in range(10):
        store["ab"[n % 2]].append_many([b"x" * 100] * 4, wait=True)
    return store


def check(store: esker.Store) -> None:
    """What is not there was evicted, and all of that is told."""
    for name in "ab":
        earliest = store[name].earliest()
        offsets = [record.offset for record in store[name].read(earliest)]
        assert offsets == list(range(earliest, 20))
        assert gaps(store[name]) == ([(0, earliest - 1, "evicted")] if earliest else [])


def test_no_file_goes_before_the_page_says_so(opened: Any, filled: Any) -> None:
    total, files = filled(), Refusing()
    with opened(total // 2, files=files) as store:
        files.calls.clear()
        store.tick()
        seen = [f"{call} {path}" for call, path in files.calls]
        for number in (1, 2, 3):
            first = next(n for n, each in enumerate(seen)
                         if re.search(rf"unlink .*0{number}/0000/.*\.seg", each))  # fmt: skip
            assert any(re.search(rf"sync .*0{number}/0000/state", each) for each in seen[:first]), (
                f"topic {number}: nothing was synced before a file went"
            )
