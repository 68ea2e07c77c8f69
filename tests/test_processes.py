"""Several processes on one store: one writer a shard, any number of readers, and who is dead."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import identity
from esker.engine.intake import fnv1a
from esker.format.counters import WORD
from esker.options import RESERVE_OFFSETS
from esker.testing import LOST, ManualClock, SimulatedDisk
from tests.helpers import PATIENCE, Threads, child, snapshot, wait_until

pytestmark = pytest.mark.crash

WRITER = """
    import sys
    import esker
    store = esker.open(sys.argv[1])
    topic = store["t"]
    topic.append(b"first", wait=True)
    print("writing")
    for line in sys.stdin:
        print(topic.append(line.strip().encode(), wait=True))
    store.close()
"""


def values(topic: esker.Topic) -> list[bytes]:
    return [record.value for record in topic.read()]


# ---- writers ---------------------------------------------------------------------------------


def test_a_writer_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    with child(WRITER, tmp_path / "data") as first:
        assert first.line() == "writing"
        first.say("second")
        assert first.line() == "1"
        with esker.open(tmp_path / "data") as second:
            with pytest.raises(esker.WriterBusy) as caught:
                second["t"].append(b"refused", wait=True)
            assert caught.value.pid == first.pid
            assert f"by process {first.pid} since" in str(caught.value)
            assert "open the store with handover=True" in str(caught.value)
            first.kill()
            assert second["t"].append(b"third", wait=True) == 2
            assert values(second["t"]) == [b"first", b"second", b"third"]
    with esker.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert values(store["t"]) == [b"first", b"second", b"third"]


def test_what_a_killed_writer_had_acknowledged_is_there(tmp_path: Path) -> None:
    with child(WRITER, tmp_path / "data") as writer:
        assert writer.line() == "writing"
        for n in range(1, 200):
            writer.say(f"record {n}")
            assert writer.line() == str(n)
        writer.kill()
    with esker.open(tmp_path / "data") as store:
        found = [record.value for record in store["t"].read()]
    assert found == [b"first", *(b"record %d" % n for n in range(1, 200))]


BUFFERING = """
    import os, signal, sys
    import esker
    store = esker.open(sys.argv[1], linger=3600)
    topic = store["t"]
    topic.append(b"kept", wait=True)
    for n in range(100):
        topic.append(b"pending")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_only_buffered_when_the_writer_died_is_gone(tmp_path: Path) -> None:
    with child(BUFFERING, tmp_path / "data") as writer:
        assert writer.process.wait(PATIENCE) == -signal.SIGKILL
    with esker.open(tmp_path / "data") as store:
        assert [record.value for record in store["t"].read()] == [b"kept"]
        following = store["t"].append(b"next", wait=True)
        assert following == 1
        assert values(store["t"]) == [b"kept", b"next"]


def test_processes_share_a_store_by_shards(tmp_path: Path) -> None:
    code = """
        import sys
        import esker
        with esker.open(sys.argv[1]) as store:
            topic = store["t"]
            for n in range(50):
                topic.append(b"%d" % n, key=sys.argv[2], wait=True)
            print("done")
            sys.stdin.readline()
    """
    with esker.open(tmp_path / "data") as store:
        store.create("t", shards=2)
    keys = {fnv1a(key.encode()) % 2: key for key in ("a", "b")}
    assert set(keys) == {0, 1}
    root = tmp_path / "data"
    with child(code, root, keys[0]) as one, child(code, root, keys[1]) as two:
        assert [one.line(), two.line()] == ["done", "done"]
        with esker.open(tmp_path / "data") as store:
            for shard in (0, 1):
                found = [record.value for record in store["t"].read(shard=shard)]
                assert found == [b"%d" % n for n in range(50)]
        for process in (one, two):
            process.say()
            process.end()
    with esker.open(tmp_path / "data") as store:
        assert len(store["t"]) == 100


def test_processes_that_make_topics_at_once_lose_none(tmp_path: Path) -> None:
    code = """
        import sys
        import esker
        with esker.open(sys.argv[1]) as store:
            print("ready")
            sys.stdin.readline()
            for n in range(20):
                store.create(f"{sys.argv[2]}-{n}")
                store[f"shared-{n}"].options if f"shared-{n}" in store else None
                store.create(f"shared-{n}", exist_ok=True)
    """
    esker.open(tmp_path / "data").close()
    with child(code, tmp_path / "data", "one") as one, child(code, tmp_path / "data", "two") as two:
        assert [one.line(), two.line()] == ["ready", "ready"]
        one.say()
        two.say()
        one.end()
        two.end()
    with esker.open(tmp_path / "data") as store:
        names = [f"{who}-{n}" for who in ("one", "two", "shared") for n in range(20)]
        assert list(store) == sorted(names)
        folders = {store[name]._shards[0].folder for name in names}
        assert len(folders) == 60, "two topics share a directory"


def test_processes_that_open_a_new_store_at_once_open_the_same(tmp_path: Path) -> None:
    code = """
        import sys
        import esker
        print("ready")
        sys.stdin.readline()
        with esker.open(sys.argv[1]) as store:
            store[sys.argv[2]].append(b"x", wait=True)
    """
    for attempt in range(3):
        root = tmp_path / f"data{attempt}"
        with child(code, root, "one") as one, child(code, root, "two") as two:
            assert [one.line(), two.line()] == ["ready", "ready"]
            one.say()
            two.say()
            one.end()
            two.end()
        with esker.open(root) as store:
            assert store.recovery.clean
            assert list(store) == ["one", "two"]
            assert [store[name][0].value for name in store] == [b"x", b"x"]


def test_a_store_that_another_process_has_made_since_one_looked_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"x")
    looks: list[str] = []

    def late(files: Any, root: str) -> Any:
        looks.append(root)
        return None if len(looks) == 1 else original(files, root)

    original = identity.storage.load_identity
    monkeypatch.setattr(identity.storage, "load_identity", late)
    with esker.open(tmp_path / "data") as store:
        assert [record.value for record in store["t"].read()] == [b"x"]


# ---- readers ---------------------------------------------------------------------------------

READER = """
    import sys
    import esker
    with esker.open(sys.argv[1], mode="r") as store:
        print("reading")
        for record in store["t"].follow("earliest", timeout=60):
            print(record.offset, record.value.decode())
            if record.value == b"last":
                break
"""


def test_a_reader_in_another_process_follows_live(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        topic.append(b"0", wait=True)
        with child(READER, tmp_path / "data") as reader:
            assert reader.line() == "reading"
            assert reader.line() == "0 0"
            for n in range(1, 50):
                topic.append(b"%d" % n, wait=True)
                assert reader.line() == f"{n} {n}", "it comes before the next one is written"
            topic.append(b"last")  # buffered; the linger brings it out
            assert reader.line() == "50 last"
            reader.end()


def test_a_reader_outlives_its_writer_and_sees_the_next_one(tmp_path: Path) -> None:
    with child(WRITER, tmp_path / "data") as first:
        assert first.line() == "writing"
        with esker.open(tmp_path / "data", mode="r") as reader:
            following = reader["t"].follow("earliest", timeout=PATIENCE)
            assert next(following).value == b"first"
            first.say("second")
            assert first.line() == "1"
            assert next(following).value == b"second"
            first.kill()
            assert [record.value for record in reader["t"].read()] == [b"first", b"second"]
            with child(WRITER, tmp_path / "data") as second:
                assert second.line() == "writing"
                assert next(following).value == b"first"
                second.say("fourth")
                assert second.line() == "3"
                assert next(following).value == b"fourth"
            following.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"", bytes(100), bytes(128)], ids=["empty", "100", "128"])
def test_a_log_that_is_only_being_made_does_not_disturb_readers(
    tmp_path: Path, content: bytes
) -> None:
    with child(WRITER, tmp_path / "data") as writer:
        assert writer.line() == "writing"
        (log,) = tmp_path.rglob("*.log")
        made = log.with_name("00000002-00000000000000000001.log")
        made.write_bytes(content)  # as a roll leaves it for a moment
        with esker.open(tmp_path / "data", mode="r") as beside:
            assert values(beside["t"]) == [b"first"]
        writer.kill()
        before = snapshot(tmp_path)
        with esker.open(tmp_path / "data", mode="r") as after:
            assert values(after["t"]) == [b"first"]
        assert snapshot(tmp_path) == before
    with esker.open(tmp_path / "data") as store:
        assert "unfinished_roll" in store.recovery.labels
        assert values(store["t"]) == [b"first"]


def test_a_writer_that_stops_while_it_publishes_does_not_disturb_readers(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as writer, esker.open(tmp_path / "data", mode="r") as reader:
        writer["t"].append(b"one", wait=True)
        assert values(reader["t"]) == [b"one"]
        page = writer["t"]._shards[0].counters
        assert page is not None
        held = reader["t"]._followers[0].segments
        page.words[WORD["sequence"]] += 1  # as in the middle of a publication
        assert values(reader["t"]) == [b"one"]
        assert reader["t"]._followers[0].segments is held, "other threads may be reading them"
        with esker.open(tmp_path / "data", mode="r") as fresh:
            assert values(fresh["t"]) == [b"one"]
        writer["t"].append(b"two", wait=True)
        assert values(reader["t"]) == [b"one", b"two"]


def test_a_page_from_before_the_machine_stopped_is_not_believed(tmp_path: Path) -> None:
    """A writer holds the lock, and has yet to say on the page that it is the new one."""
    with esker.open(tmp_path / "data") as writer:
        writer["t"].append(b"one", wait=True)
        page, log = writer["t"]._shards[0].counters, writer["t"]._shards[0].active
        assert page is not None
        assert log is not None
        boot, page.words[WORD["boot_low"]] = page.words[WORD["boot_low"]], 1
        page.publish(99, 1, log.end, 0)  # records that were never synced, and are gone
        with esker.open(tmp_path / "data", mode="r") as reader:
            assert reader["t"].end() == 1
            assert values(reader["t"]) == [b"one"]
        page.words[WORD["boot_low"]] = boot


ROLLING = """
    import sys
    import esker
    with esker.open(sys.argv[1], linger="1ms") as store:
        topic = store.create("t", segment_bytes="8KiB")
        topic.append(b"0", wait=True)
        print("writing")
        n = 1
        while n < 12_000:
            if n % 7 == 0:
                topic.append_many([b"%d" % m for m in range(n, n + 20)])
                n += 20
            else:
                topic.append(b"%d" % n, wait=n % 11 == 0)
                n += 1
        topic.flush()
        print(n)
        sys.stdin.readline()
"""


def test_readers_see_a_gapless_prefix_while_segments_roll_and_are_sealed(tmp_path: Path) -> None:
    threads = Threads()
    done = threading.Event()
    looks: list[int] = []
    with child(ROLLING, tmp_path / "data") as writer:
        assert writer.line() == "writing"
        with esker.open(tmp_path / "data", mode="r") as store:

            def read_all() -> None:
                while not done.is_set():
                    found = [int(record.value) for record in store["t"].read()]
                    assert found == list(range(len(found)))
                    looks.append(len(found))

            def read_last() -> None:
                before = 0
                while not done.is_set():
                    end = store["t"].end()
                    assert end >= before, "what was visible is gone"
                    assert int(store["t"][end - 1].value) == end - 1
                    before = end

            def follow() -> None:
                following = store["t"].follow("earliest", limit=12_000, timeout=PATIENCE)
                followed = [(record.offset, int(record.value)) for record in following]
                assert followed == [(n, n) for n in range(12_000)]
                done.set()

            for work in (read_all, read_last, follow):
                threads.start(work)
            written = int(writer.line())
            wait_until(lambda: done.is_set() or threads.problems, "the follower")
            done.set()
            threads.join()
            assert len(store["t"]) == written >= 12_000
            assert store["t"].counters()["segments_rolled"] > 10
            writer.say()
            writer.end()
            assert [int(record.value) for record in store["t"].read()] == list(range(written))
    assert len(looks) > 1


def test_counters_are_read_from_another_process(tmp_path: Path) -> None:
    code = """
        import json, sys
        import esker
        with esker.open(sys.argv[1], mode="r") as store:
            print(json.dumps(store["t"].counters()))
    """
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_records=10)
        topic.append_many([b"x"] * 10)
        topic.append_many([b"y"] * 5, wait=True)
        topic.sync()
        wait_until(lambda: topic.counters()["seals"] == 1, "the sealer")
        with child(code, tmp_path / "data") as reader:
            (said,) = reader.end().splitlines()
        told = json.loads(said)
        assert set(told) == set(WORD)
        assert told == topic.counters()
        assert (told["total_records"], told["last_offset"]) == (15, 14)
        assert (told["writer_pid"], told["durable"]) == (os.getpid(), 15)


# ---- fork ------------------------------------------------------------------------------------


def in_fork(work: Any) -> str:
    """What a forked child says about itself: the result of the work, or its exception."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            try:
                said = str(work())
            except BaseException as problem:
                said = f"{type(problem).__name__}: {problem}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # that a process with threads forks
def test_a_forked_child_may_not_write_and_its_parent_is_unharmed(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        topic.append(b"written", wait=True)
        topic.append(b"buffered")
        before = {n: c for n, c in snapshot(tmp_path).items() if n.endswith((".log", "lock"))}
        for work in (
            lambda: topic.append(b"child"),
            lambda: topic.append(b"child", wait=True),
            lambda: topic.append_many([b"child"]),
            lambda: topic.sync(),
            lambda: topic.flush(),
            lambda: store.sync(),
            lambda: store.create("child"),
            lambda: store["child"].append(b"child"),
        ):
            assert in_fork(work).startswith("StoreForked: this process was forked after")
        assert in_fork(store.close) == "None"
        now = {n: c for n, c in snapshot(tmp_path).items() if n.endswith((".log", "lock"))}
        assert now.keys() == before.keys()
        assert topic.append(b"parent", wait=True) == 2
        assert [record.value for record in topic.read()] == [b"written", b"buffered", b"parent"]
        with pytest.raises(esker.WriterBusy), esker.open(tmp_path / "data") as other:
            other["t"].append(b"x", wait=True)
    with esker.open(tmp_path / "data") as store:
        assert store.recovery.clean
        assert values(store["t"]) == [b"written", b"buffered", b"parent"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    store = esker.open(tmp_path / "data")
    store["t"].append(b"parent", wait=True)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # lives until the parent is done
        os._exit(0)
    try:
        os.close(reading)
        store.close()
        with esker.open(tmp_path / "data") as again:
            assert again["t"].append(b"again", wait=True) == 1
    finally:
        os.close(writing)
        os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_may_open_the_store_for_itself(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"parent", wait=True)

        def read() -> list[bytes]:
            with esker.open(tmp_path / "data", mode="r") as mine:
                return [record.value for record in mine["t"].read()]

        def write() -> list[bytes]:
            with esker.open(tmp_path / "data") as mine:
                mine["child"].append(b"child", wait=True)
                return [record.value for record in mine["child"].read()]

        assert in_fork(read) == "[b'parent']"
        assert in_fork(write) == "[b'child']"
        assert list(store) == ["child", "t"]
        assert store["child"][0].value == b"child"


def test_offsets_set_aside_too_late_leave_the_page_to_the_next_writer() -> None:
    """The background comes to it only when the shard was handed over and is written by another."""
    disk, clock = SimulatedDisk(seed=3), ManualClock()

    def opened(on: SimulatedDisk) -> esker.Store:
        return esker.open("/store", files=on, clock=clock, background=False)

    one, other = opened(disk), opened(disk)
    for count in (1, RESERVE_OFFSETS // 2 + 1):  # the second asks for another block
        one["t"].append_many([b"x"] * count)
    one.sync()
    one["t"]._shards[0].hand_back()
    seen = other["t"].append_many([b"y"] * 5)
    pages = {path: page for path, page in disk.contents().items() if path.endswith("/state")}
    one.tick()
    assert pages
    assert pages.items() <= disk.contents().items()
    with opened(disk.crash(LOST)) as store:
        assert store["t"].append(b"z", wait=True) > seen.last
    for store in (one, other):
        store.close()
