"""Many processes that append to one store: who has which shard, and what becomes of the rest."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine import processes
from esker.engine.intake import fnv1a
from esker.format import names
from esker.testing import LOST, ManualClock, SimulatedDisk
from tests.helpers import PATIENCE, HandClock, Threads, child, wait_until

pytestmark = pytest.mark.crash

HANDS_OVER = """
    import json, sys
    import esker
    store = esker.open(sys.argv[1], handover=True)
    topic = store["t"]
    print("ready")
    for line in sys.stdin:
        given = json.loads(line)
        try:
            if "producer" in given:
                found = topic.producer(given["producer"]).append(b"v", sequence=given["sequence"])
                print(json.dumps([0, int(found)]))
            else:
                found = topic.append_many([v.encode() for v in given.pop("values")], **given)
                print(json.dumps([found.shard, found.first]))
        except esker.EskerError as problem:
            print(json.dumps([problem.code, str(problem)]))
    store.close()
"""


def values(topic: esker.Topic, **where: Any) -> list[bytes]:
    return [bytes(record.value) for record in topic.read("earliest", gaps="skip", **where)]


def key_of(shard: int, shards: int) -> str:
    """A key that belongs to a shard."""
    return next(str(n) for n in range(999) if fnv1a(str(n).encode()) % shards == shard)


# ---- slots -----------------------------------------------------------------------------------


SLOT = """
    import sys
    import esker
    store = esker.open(sys.argv[1])
    print(store.process_slot)
    sys.stdin.readline()
    store.close()
"""


def test_the_slot_of_a_dead_process_is_free_at_once(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        assert store.processes() == {}
        assert store.process_slot == store.process_slot == 0
        with child(SLOT, root) as one, child(SLOT, root) as two:
            held = {int(each.line()): each for each in (one, two)}
            assert set(held) == {1, 2}
            assert store.processes() == {0: os.getpid(), 1: held[1].pid, 2: held[2].pid}
            held[1].kill()
            assert store.processes() == {0: os.getpid(), 2: held[2].pid}
            with child(SLOT, root) as three:
                assert three.line() == "1"
                assert store.processes()[1] == three.pid
    with esker.open(root, mode="r") as reader:
        assert reader.processes() == {}
        with pytest.raises(esker.ReadOnlyStore):
            _ = reader.process_slot


def test_a_process_id_that_is_used_again_means_nothing(tmp_path: Path) -> None:
    """The label of a dead process's slot names a process that lives: this one."""
    with esker.open(tmp_path / "data") as store:
        folder = Path(store.path) / names.PROCESSES
        folder.mkdir()
        note = {"pid": os.getpid(), "since": "2026-11-18T00:00:00+00:00"}
        (folder / names.slot(0)).write_text(json.dumps(note))
        assert store.processes() == {}
        assert store.process_slot == 0


FORKS = """
    import os, sys, time
    import esker
    store = esker.open(sys.argv[1])
    assert store.process_slot == 0
    if not os.fork():
        print(os.getpid())  # from there: before it runs, it holds what its parent held
    time.sleep(60)
"""


def test_a_forked_child_does_not_hold_on_to_the_slot(tmp_path: Path) -> None:
    with child(FORKS, tmp_path / "data") as parent:
        grandchild = int(parent.line())
        try:
            parent.process.kill()
            parent.process.wait(PATIENCE)
            with esker.open(tmp_path / "data") as store:
                assert store.process_slot == 0
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_there_are_only_so_many_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SLOTS_MAX", 1)
    with esker.open(tmp_path / "data") as one, esker.open(tmp_path / "data") as two:
        assert one.process_slot == 0
        with pytest.raises(esker.StorageError, match="more than 1"):
            _ = two.process_slot


# ---- which shard -----------------------------------------------------------------------------


def test_a_record_without_a_key_goes_to_a_shard_that_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOKS", 2)
    root = tmp_path / "data"
    with esker.open(root) as one, esker.open(root) as two:
        one.create("t", shards=2).append(b"one", key=key_of(0, 2), wait=True)
        for n in range(4):
            assert two["t"].append(b"%d" % n, wait=True).shard == 1  # type: ignore[attr-defined]
            assert two["t"].append_many([b"%d" % n]).shard == 1
        with pytest.raises(esker.WriterBusy) as busy:
            two["t"].append(b"keyed", key=key_of(0, 2), wait=True)
        assert busy.value.pid == os.getpid()
        assert f"by another handle of this process ({os.getpid()}) since" in str(busy.value)
        with esker.open(root) as three, pytest.raises(esker.WriterBusy):
            three["t"].append(b"none is free, and there are more processes than shards", wait=True)


@pytest.mark.parametrize("many", [False, True], ids=["records", "arrow"])
def test_a_batch_of_keys_takes_the_shards_of_its_keys_and_no_other(
    tmp_path: Path, many: bool
) -> None:
    root = tmp_path / "data"
    with esker.open(root) as one, esker.open(root) as two:
        one.create("t", shards=3).append(b"one", key=key_of(0, 3), wait=True)
        key = key_of(2, 3)
        for _ in range(3):
            if many:
                table = pa.table({"value": [b"a", b"b"], "key": [key.encode()] * 2})
                found = two["t"].append_arrow(table)
            else:
                found = two["t"].append_many(
                    [esker.Record(b"a", key=key), esker.Record(b"b", key=key)]
                )
            assert found.shard == 2
        assert [shard.writing for shard in two["t"]._shards] == [False, False, True]
        one["t"].append(b"nobody has it", key=key_of(1, 3), wait=True)


def test_a_process_that_is_alone_takes_all_shards_in_turn(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", shards=3)
        assert {topic.append_many([b"v"]).shard for _ in range(6)} == {0, 1, 2}


def test_what_is_beyond_its_share_a_process_gives_back(tmp_path: Path, clock: HandClock) -> None:
    root = tmp_path / "data"
    with esker.open(root, clock=clock) as one:
        topic = one.create("t", shards=4)
        for n in range(8):
            topic.append_many([b"one %d" % n])
        assert [shard.writing for shard in topic._shards] == [True] * 4
        with esker.open(root, clock=clock) as two:
            assert two.process_slot == 1
            clock.forward(processes.LOOK_SECONDS)
            topic.append_many([b"one again"])
            assert [shard.writing for shard in topic._shards] == [True, False, True, False]
            for n in range(8):
                assert two["t"].append_many([b"two %d" % n]).shard in (1, 3)
        assert len(topic) == 17


def test_who_does_not_append_gives_back_in_the_background(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as one:
        topic = one.create("t", shards=2)
        for _ in range(4):
            topic.append_many([b"v"])
        with esker.open(tmp_path / "data") as two:
            threads, got = Threads(), []
            one._slots._looked = float("-inf")
            threads.start(lambda: got.append(two["t"].append_many([b"two"])))
            wait_until(lambda: two._slots.held, "a slot of the second handle")
            one._slots._looked = float("-inf")
            one.tick()
            threads.join()
            assert [span.shard for span in got] == [1]
        assert sum(shard.writing for shard in topic._shards) == 1


def test_a_reader_is_woken_when_its_shard_goes_to_another_process(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as one, esker.open(root) as two:
        topic = one.create("t", shards=2)
        for _ in range(2):
            topic.append_many([b"v"])
        threads, got = Threads(), []

        def follow() -> None:
            got.extend(topic.follow("latest", limit=1, timeout=PATIENCE))

        threads.start(follow)
        wait_until(lambda: any(shard.waiters for shard in topic._shards), "a waiting reader")
        assert two.process_slot >= 0
        one._slots._looked = float("-inf")
        one._slots.share()
        processes.give_back_all(one)
        two["t"].append(b"from the other", key=key_of(1, 2), wait=True)
        threads.join()
        assert [record.value for record in got] == [b"from the other"]


@pytest.mark.parametrize("how", ["append", "append and wait", "append_many", "a large batch"])
def test_a_record_whose_shard_was_given_back_just_now_goes_to_another(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been chosen, and another process was faster."""
    root = tmp_path / "data"
    with esker.open(root) as one, esker.open(root) as two:
        one.create("t", shards=2).append(b"one", key=key_of(0, 2), wait=True)
        topic = two["t"]
        topic.append(b"two", key=key_of(1, 2), wait=True)
        real, chosen = topic._shard_for, [topic._shards[0]]
        monkeypatch.setattr(
            topic, "_shard_for", lambda key, **how: chosen.pop() if chosen else real(key, **how)
        )
        if how.startswith("append_many") or how == "a large batch":
            span = topic.append_many([b"v"] * (2 if how == "append_many" else 500))
            assert (span.shard, span.first) == (1, 1)
        else:
            offset = topic.append(b"v", wait=how == "append and wait")
            assert (offset, offset.shard) == (1, 1)  # type: ignore[attr-defined]
        assert not chosen


PREFORK = """
    import sys
    import esker
    with esker.open(sys.argv[1]) as store:
        topic = store["t"]
        print("ready")
        sys.stdin.readline()
        for n in range(400):
            topic.append(f"{sys.argv[2]} {n}", wait=n % 10 == 9)
        topic.sync()
        print("done")
        sys.stdin.readline()
"""


def test_prefork_writers_share_a_topic_by_its_shards(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        store.create("t", shards=4)
    with child(PREFORK, root, 0) as a, child(PREFORK, root, 1) as b, child(PREFORK, root, 2) as c:
        workers = (a, b, c)
        for worker in workers:
            assert worker.line() == "ready"
        for worker in workers:
            worker.say()
        for worker in workers:
            assert worker.line() == "done"
        with esker.open(root, mode="r") as reader:
            found = values(reader["t"])
            assert sorted(found) == sorted(b"%d %d" % (w, n) for w in range(3) for n in range(400))
            for shard in range(4):
                for who in range(3):
                    mine = [
                        int(value.split()[1])
                        for value in values(reader["t"], shard=shard)
                        if value.startswith(b"%d " % who)
                    ]
                    assert mine == sorted(mine), "a process's records keep their order"
            assert len(set(reader.processes().values())) == 3


KILLED = """
    import itertools, sys
    import esker
    store = esker.open(sys.argv[1])
    topic = store["t"]
    for n in itertools.count():
        offset = topic.append(f"{sys.argv[2]} {n}", wait=True)
        print(n, flush=True)
"""


@pytest.mark.slow
def test_what_killed_writers_had_acknowledged_is_there_and_their_shards_are_free(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        store.create("t", shards=3)
    told: dict[str, int] = {}
    for generation in range(3):
        names_of = [f"{generation}.{n}" for n in range(3)]
        workers = [child(KILLED, root, name) for name in names_of]
        entered = [worker.__enter__() for worker in workers]
        try:
            for name, worker in zip(names_of, entered, strict=True):
                for _ in range(20):
                    told[name] = int(worker.line())
                os.kill(worker.pid, signal.SIGKILL)
        finally:
            for worker in workers:
                worker.__exit__(None, None, None)
    with esker.open(root) as store:
        assert store.processes() == {}
        found = set(values(store["t"]))
        for name, last in told.items():
            assert {f"{name} {n}".encode() for n in range(last + 1)} <= found
        assert store.process_slot == 0
        for shard in range(3):
            store["t"].append(b"mine", key=key_of(shard, 3), wait=True)


# ---- handing over ----------------------------------------------------------------------------


def test_a_keyed_append_is_refused_with_the_pid_or_handed_over(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as owner:
        topic = owner.create("t", shards=2)
        key = key_of(1, 2)
        topic.append(b"first", key=key, wait=True)
        with esker.open(root) as other:
            with pytest.raises(esker.WriterBusy) as busy:
                other["t"].append(b"refused", key=key)
            assert busy.value.pid == os.getpid()
            with pytest.raises(esker.WriterBusy):
                other["t"].append(b"refused", key=key, idempotency_key="k")
        with esker.open(root, handover=True) as other:
            offset = other["t"].append(b"handed", key=key)
            assert (offset, offset.shard) == (1, 1)  # type: ignore[attr-defined]
            spans = other["t"].append_many(
                [esker.Record(b"a", key=key), esker.Record(b"b", key=key)]
            )
            assert spans == esker.Span(1, 2, 2)
            again = other["t"].append(b"waited", key=key, wait=5.0)
            assert again == 4
            assert other["t"].durable(1) == 5
        assert values(topic, shard=1) == [b"first", b"handed", b"a", b"b", b"waited"]
        assert topic.append(b"mine", key=key, wait=True) == 5


def test_a_key_is_handed_over_exactly_once_whoever_retries(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as owner:
        topic = owner["t"]
        topic.append(b"first", wait=True)
        with child(HANDS_OVER, root) as one, child(HANDS_OVER, root) as two:
            both = (one, two)
            assert [each.line() for each in both] == ["ready", "ready"]
            for each in both:
                each.say(json.dumps({"values": ["a", "b"], "idempotency_key": "k"}))
            assert [json.loads(each.line()) for each in both] == [[0, 1], [0, 1]]
            assert topic.append_many([b"a", b"b"], idempotency_key="k") == esker.Span(0, 1, 2)
            mine = topic.append(b"c", idempotency_key="mine")
            for each in both:
                each.say(json.dumps({"values": ["c"], "idempotency_key": "mine"}))
                assert json.loads(each.line()) == [0, mine]
            one.say(json.dumps({"producer": "p", "sequence": 0}))
            assert json.loads(one.line()) == [0, 4]
            two.say(json.dumps({"producer": "p", "sequence": 0}))
            assert json.loads(two.line()) == [0, 4]
            two.say(json.dumps({"producer": "p", "sequence": 2}))
            assert json.loads(two.line())[0] == "sequence_gap"
            two.say(json.dumps({"producer": "p", "sequence": 1}))
            assert json.loads(two.line()) == [0, 5]
            assert topic.producer("p").last == 1
            one.say(json.dumps({"values": ["x"], "idempotency_key": "k"}))
            assert json.loads(one.line())[0] == "key_reused"
        assert values(topic) == [b"first", b"a", b"b", b"c", b"v", b"v"]
    with esker.open(root) as store:
        assert store["t"].append_many([b"a", b"b"], idempotency_key="k") == esker.Span(0, 1, 2)
        assert store["t"].producer("p").last == 1
        assert len(store["t"]) == 6


def test_two_that_hand_over_one_key_at_the_same_time_get_one_batch(tmp_path: Path) -> None:
    """Neither knows of the other: the writer of the shard drops the second."""
    root = tmp_path / "data"
    with (
        esker.open(root, background=False) as owner,
        esker.open(root, handover=True) as one,
        esker.open(root, handover=True) as two,
    ):
        owner["t"].append(b"first", wait=True)
        got: list[Any] = []
        threads = Threads()
        for store in (one, two):
            threads.start(
                lambda store=store: got.append(store["t"].append(b"a", idempotency_key="k"))
            )
        commits = Path(root) / names.STAGING
        wait_until(lambda: len(list(commits.glob("*.commit"))) == 2, "both commits")
        while len(got) < 2:
            owner.tick()
            time.sleep(0.005)
        threads.join()
        assert got == [1, 1]
        assert values(owner["t"]) == [b"first", b"a"]
        assert not list(Path(root).rglob("*.staged"))


def test_an_owner_that_dies_leaves_what_was_handed_over_to_the_next(tmp_path: Path) -> None:
    root = tmp_path / "data"
    code = """
        import sys
        import esker
        store = esker.open(sys.argv[1], background=False)
        store["t"].append(b"first", wait=True)
        print("writing")
        sys.stdin.readline()
    """
    with child(code, root) as owner:
        assert owner.line() == "writing"
        with esker.open(root, handover=True) as other:
            threads, got = Threads(), []
            threads.start(lambda: got.append(other["t"].append(b"a", idempotency_key="k")))
            commits = Path(root) / names.STAGING
            wait_until(lambda: list(commits.glob("*.commit")), "the commit")
            owner.kill()
            threads.join()
            assert got == [1]
            assert other["t"].append(b"a", idempotency_key="k") == 1
            assert values(other["t"]) == [b"first", b"a"]


def test_who_hands_over_and_dies_has_appended_once_or_not_at_all(tmp_path: Path) -> None:
    root = tmp_path / "data"
    code = """
        import itertools, sys
        import esker
        store = esker.open(sys.argv[1], handover=True)
        for n in itertools.count():
            store["t"].append(b"%d" % n, idempotency_key=b"%d" % n)
            print(n)
    """
    with esker.open(root) as owner:
        topic = owner["t"]
        topic.append(b"first", wait=True)
        told = -1
        for _ in range(3):
            with child(code, root) as other:
                while told < 3:
                    told = int(other.line())
                other.kill()
            last, told = told, -1
        wait_until(lambda: not owner.maintenance().waiting.batches, "all to be attached")
        found = values(topic)
        assert len(found) == len(set(found)), "none of them twice"
        assert {b"%d" % n for n in range(last + 1)} <= set(found)
        for n in range(last + 1):
            topic.append(b"%d" % n, idempotency_key=b"%d" % n)
        assert values(topic) == found


def test_a_batch_that_nobody_attaches_in_time_is_told_to_be_pending(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as owner:
        owner["t"].append(b"first", wait=True)
        with esker.open(root, handover=True) as other:
            with pytest.raises(esker.AttachPending, match=str(os.getpid())):
                other["t"].append(b"a", idempotency_key="k", wait=0.05)
            with pytest.raises(esker.WriterBusy):  # one of a slot at a time
                other["t"].append(b"b", idempotency_key="l", wait=0.05)
            assert len(list(root.rglob("*.staged"))) == 1
            owner.tick()
            assert other["t"].append(b"a", idempotency_key="k", wait=1.0) == 1
        assert values(owner["t"]) == [b"first", b"a"]


def test_what_is_refused_at_a_cap_is_not_left_behind(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as owner, esker.open(root, handover=True) as other:
        owner.create("t", cap_records=1, discard="reject").append(b"first", wait=True)
        with pytest.raises(esker.TopicFull):
            other["t"].append(b"a", idempotency_key="k")
        assert not list(Path(root).rglob("*.staged"))
        owner.create("e", durability="ephemeral").append(b"v", wait=True)
        with pytest.raises(esker.WriterBusy):
            other["e"].append(b"in memory there is nothing to hand over to", key="k")


def test_handing_over_works_for_asyncio(tmp_path: Path) -> None:
    import asyncio

    async def main() -> None:
        async with esker.aopen(tmp_path / "data", handover=True) as store:
            topic = store["t"]
            assert await topic.append(b"waits", wait=True) == 1
            assert await topic.append(b"does not") == 2
            assert await topic.append(b"k", idempotency_key="k") == 3
            assert await topic.append(b"k", idempotency_key="k") == 3
            assert await store.process_slot() in (await store.processes())

    with esker.open(tmp_path / "data") as owner:
        owner["t"].append(b"first", wait=True)
        asyncio.run(main())
        assert values(owner["t"]) == [b"first", b"waits", b"does not", b"k"]


FOLLOWS = """
    import sys, time
    import esker
    with esker.open(sys.argv[1], mode="r") as store:
        print("ready")
        for record in store["t"].follow("latest", timeout=60):
            print(time.monotonic(), record.text)
"""


def test_a_follower_in_another_process_sees_what_was_handed_over_within_10_ms(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    with esker.open(root) as owner, esker.open(root, handover=True) as other:
        owner["t"].append(b"first", wait=True)
        late = []
        with child(FOLLOWS, root) as follower:
            assert follower.line() == "ready"
            for n in range(12):
                other["t"].append(b"%d" % n, idempotency_key=b"%d" % n)
                returned = time.monotonic()
                moment, text = follower.line().split()
                assert text == str(n)
                late.append(float(moment) - returned)
        late.sort()
        assert late[len(late) // 2] <= 0.010, late


def test_a_power_cut_while_a_batch_is_attached_leaves_it_once() -> None:
    """The writer of the shard and the one who hands over are two handles on one disk."""
    disk, clock = SimulatedDisk(seed=8), ManualClock()

    def opened(on: SimulatedDisk, **options: Any) -> esker.Store:
        return esker.open(
            "/store", files=on, clock=clock, background=False, journals=1, **options
        )  # fmt: skip

    owner, other = opened(disk), opened(disk, handover=True)
    owner.create("t", durability="fsync").append(b"first", wait=True)
    acked = [False]
    looked = 0

    def watch(call: Any, when: str) -> None:
        nonlocal looked
        disk.watch = None
        for after in disk.crashes(most=6, chances=1, seed=looked):
            looked += 1
            with opened(after) as store:
                offset = store["t"].append(b"a", idempotency_key="k", wait=True)
                assert store["t"].append(b"a", idempotency_key="k", wait=True) == offset
                assert values(store["t"]) == [b"first", b"a"]
        disk.watch = watch

    threads, got = Threads(), []
    threads.start(lambda: got.append(other["t"].append(b"a", idempotency_key="k")))
    wait_until(lambda: any(path.endswith(".commit") for path in disk.contents()), "the commit")
    disk.watch = watch
    owner.tick()
    disk.watch = None
    threads.join()
    assert (got, acked, looked > 10) == ([1], [False], True)
    for store in (other, owner):
        store.close()
    with opened(disk.crash(LOST)) as store:
        assert values(store["t"]) == [b"first", b"a"]
