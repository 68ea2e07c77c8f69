"""What the background does, has to do and has done: it is told truly, and can be held back."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import attach as engine
from esker.engine import sealing
from esker.engine.background import Background
from tests.helpers import HandClock, Refusing, Threads, wait_until

TEN = [b"%d" % n for n in range(10)]


def roll(store: esker.Store, name: str, logs: int) -> esker.Topic:
    """So many logs that are full, and one behind them with ten records."""
    for _ in range(logs + 1):
        store[name].append_many(TEN)
    return store[name]


def sealed(store: esker.Store) -> int:
    return len(list(Path(store.path).rglob("*.seg")))


def commit_only(store: esker.Store, topic: str, sequence: int) -> None:
    """A batch whose writer died behind the commit."""
    with store.stage(topic) as staged:
        staged.append_many(TEN)
    assert engine.commit(store._context, "w", sequence, staged.tickets)


class Gate(Refusing):
    """A file system that stops at some calls until it is told to go on."""

    def __init__(self, call: str, paths: str) -> None:
        super().__init__()
        self._stops = (call, paths)
        self.came, self.free = threading.Event(), threading.Event()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()  # also when a test has failed, or its store could not be closed

    def check(self, call: str, path: str) -> None:
        if call == self._stops[0] and self._stops[1] in path:
            self.came.set()
            assert self.free.wait(30)
        super().check(call, path)


# ---- what is told ----------------------------------------------------------------------------


def test_a_store_that_has_nothing_to_do_says_so(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        found = store.maintenance()
        assert (found.state, found.doing, found.last_error) == ("running", (), None)
        assert found.next_look is None, "nobody has written, and no thread was started"
        assert found.budget is None
        assert not any(getattr(found.waiting, name) for name in found.waiting.__struct_fields__)
        assert not any(getattr(found.done, name) for name in found.done.__struct_fields__)
        store["t"].append(b"x", wait=True)
        with esker.open(tmp_path / "data", mode="r") as reader:
            assert reader.maintenance().state == "off"
            for call in (reader.pause_maintenance, reader.resume_maintenance):
                with pytest.raises(esker.ReadOnlyStore):
                    call()
    with pytest.raises(esker.StoreClosed):
        store.maintenance()
    with esker.open(tmp_path / "data", background=False) as store:
        assert store.maintenance().state == "off"


def test_what_waits_is_what_there_is_to_do_and_what_was_done_adds_up(
    still: esker.Store, clock: HandClock
) -> None:
    still.pause_maintenance()
    still.create("t", segment_records=10)
    still.create("aged", segment_records=10, ttl="10s")
    roll(still, "t", 3)
    roll(still, "aged", 2)
    commit_only(still, "t", 1)
    still["gone"].append(b"x", wait=True)
    still.delete("gone")
    still._context.background.reserve_soon(still["t"]._shards[0])
    found = still.maintenance()
    assert found.state == "paused"
    assert (found.waiting.logs, found.waiting.directories, found.waiting.batches) == (5, 1, 1)
    assert (found.waiting.topics, found.waiting.shards) == (1, 1)
    roll(still, "t", 1)  # with what was there before: two more
    assert still.maintenance().waiting.logs == 7, "it grows"
    clock.forward(60)
    still.tick()
    assert still.maintenance().waiting.logs == 7, "a tick does what the background would"
    assert still.maintenance().waiting.shards == 0, "offsets are set aside all the same"
    assert sealed(still) == 0
    planned = still.retention_plan()
    assert sum(each.segments for each in planned) == 3

    still.resume_maintenance()
    still.tick()
    found = still.maintenance()
    assert found.state == "off"
    waiting = found.waiting
    assert (waiting.logs, waiting.directories, waiting.batches, waiting.shards) == (0, 0, 0, 0)
    assert waiting.topics == 1, "without threads the next tick looks at it again"
    assert (found.done.removed, found.done.attached) == (1, 1)
    assert found.done.errors == 0, str(found)
    assert found.done.evicted_segments == 3
    assert found.done.evicted_bytes == still["aged"].counters()["bytes_reclaimed"] > 0
    assert still["aged"].earliest() == 30
    assert found.done.sealed == 3, "for the eviction; the batch has sealed those before it"
    assert len(still["t"]) == 60 + 10


def test_only_what_the_background_sealed_is_counted_as_its_own(still: esker.Store) -> None:
    still.create("t", segment_records=10)
    roll(still, "t", 3)
    still.tick()
    assert still.maintenance().done.sealed == 3 == sealed(still)
    roll(still, "t", 0)
    commit_only(still, "t", 1)
    still.tick()  # to attach a batch is to seal what is before it
    assert still.maintenance().done.attached == 1
    assert still.maintenance().waiting.logs == 0
    assert still.maintenance().done.sealed == 3


def test_the_time_of_the_next_look_is_told(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("t", ttl="1h")
        store["t"].append(b"x", wait=True)
        first = wait_until(lambda: store.maintenance().next_look, "a look")
        assert 0 < first <= 5
        later = wait_until(lambda: (store.maintenance().next_look or 9) < first, "its coming")
        assert later
        wait_until(lambda: store.maintenance().waiting.topics == 0, "the look")
        store.pause_maintenance()
        assert store.maintenance().next_look is None


def test_it_reads_well(still: esker.Store, clock: HandClock) -> None:
    still.create("t", segment_records=10)
    roll(still, "t", 2)
    text = str(still.maintenance())
    assert text.startswith("off\n  doing: nothing\n  waiting: 2 logs to seal, 0 topics to look at")
    assert "done: 0 logs sealed" in text
    assert text.endswith("last error: none")


# ---- a pause ---------------------------------------------------------------------------------


def test_a_pause_holds_back_what_takes_longer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.engine.background.SEAL_DELAY", 0.001)
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.01)
    monkeypatch.setattr("esker.engine.background.ATTACH_LOOK_RARELY", 0.01)
    root = tmp_path / "data"
    with esker.open(root, linger="1ms", sync_interval="5ms") as store:
        store.create("t", segment_records=10, cap_records=10)
        store["gone"].append(b"x", wait=True)
        store.pause_maintenance()
        roll(store, "t", 5)
        store.delete("gone")
        commit_only(store, "t", 1)
        store["t"].append(b"lingers")
        wait_until(lambda: store["t"].end() == 61, "a buffer that lingered")
        wait_until(lambda: store["t"].durable() == 61, "a sync in the background")
        background = store._context.background
        for _ in range(3):  # its threads look, and leave it
            background._wake_sealer.set()
            wait_until(lambda: not background._wake_sealer.is_set(), "a look")
        found = store.maintenance()
        assert found.state == "paused"
        assert (found.waiting.logs, found.waiting.directories, found.waiting.batches) == (6, 1, 1)
        assert found.waiting.topics == 1
        assert (sealed(store), store["t"].earliest()) == (0, 0)
        assert list(root.rglob("*.deleted"))
        assert not any(getattr(found.done, name) for name in found.done.__struct_fields__)

        store.resume_maintenance()
        wait_until(lambda: store["t"].end() == 71, "the batch")
        wait_until(lambda: store["t"].earliest() >= 50, "the cap")
        wait_until(lambda: not list(root.rglob("*.deleted")), "the directory")
        wait_until(lambda: store.maintenance().waiting.logs == 0, "the logs")
        assert store.maintenance().state == "running"


def test_a_writer_that_rolls_and_rolls_in_a_pause_seals_by_itself(still: esker.Store) -> None:
    """So that logs, which are open files, do not add up without end."""
    still.pause_maintenance()
    still.create("t", segment_records=10)
    roll(still, "t", 30)
    assert still.maintenance().waiting.logs <= 9
    assert sealed(still) >= 21
    assert still.maintenance().done.sealed == 0


def test_a_store_is_closed_cleanly_in_a_pause_and_nothing_is_removed_for_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        store.create("t", segment_records=10, cap_records=10)
        store["gone"].append(b"x", wait=True)
        store.pause_maintenance()
        store.delete("gone")
        roll(store, "t", 3)
    assert list(root.rglob("*.deleted")), "the next opening goes on with it"
    assert esker.verify(root).ok
    with esker.open(root, background=False) as store:
        assert store.recovery.clean
        assert store.maintenance().state == "off", "a pause is of one handle"
        assert (store["t"].earliest(), len(store["t"])) == (0, 40)
        store.tick()
        assert store["t"].earliest() == 30
        assert not list(root.rglob("*.deleted"))


def test_to_pause_waits_for_the_piece_at_work_and_for_no_other(tmp_path: Path) -> None:
    gate = Gate("rename", ".log")
    threads, paused = Threads(), threading.Event()
    with esker.open(tmp_path / "data", files=gate) as store, gate:
        store.create("t", segment_records=10)
        roll(store, "t", 3)
        assert gate.came.wait(30)
        (work,) = store.maintenance().doing
        assert (work.what, work.topic, work.shard) == ("sealing", "t", 0)
        assert abs(work.since_us - store._context.clock.now_us()) < 60_000_000
        assert "sealing topic 't' shard 0 since 20" in str(store.maintenance())

        def pause() -> None:
            store.pause_maintenance()
            paused.set()

        threads.start(pause)
        wait_until(lambda: store.maintenance().state == "paused", "the wish")
        assert not paused.wait(0.05), "it is being sealed"
        gate.free.set()
        threads.join()
        assert store.maintenance().doing == ()
        assert store.maintenance().waiting.logs == 2
        assert store.maintenance().done.sealed == 1
        assert sealed(store) == 1


def test_to_pause_waits_for_a_removal_which_no_shard_knows_of(tmp_path: Path) -> None:
    gate, threads, paused = Gate("unlink", ".deleted"), Threads(), threading.Event()
    with esker.open(tmp_path / "data", files=gate) as store, gate:
        store["t"].append(b"x", wait=True)
        store.delete("t")
        assert gate.came.wait(30)

        def pause() -> None:
            store.pause_maintenance()
            paused.set()

        threads.start(pause)
        wait_until(lambda: store.maintenance().state == "paused", "the wish")
        assert not paused.wait(0.5), "it is being removed"
        gate.free.set()
        threads.join()
        assert store.maintenance().doing == ()


def test_closing_waits_for_the_piece_at_work_and_for_no_other(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Many topics have expired, and the background is at the first."""
    root = tmp_path / "data"
    with esker.open(root, clock=clock, background=False) as store:
        for n in range(5):
            store.create(f"t{n}", segment_records=10, ttl="10s")
            roll(store, f"t{n}", 2)
    clock.forward(60)
    gate, threads = Gate("unlink", ".seg"), Threads()
    store = esker.open(root, files=gate, clock=clock)
    assert gate.came.wait(30)
    assert [work.what for work in store.maintenance().doing] == ["looking at topics", "evicting"]
    threads.start(store.close)
    wait_until(store._context.background.resting, "closing")
    gate.free.set()
    threads.join()
    assert caplog.text == "", "it has not tried the others, in a store that is being closed"
    with esker.open(root, clock=clock, background=False) as store:
        assert store.recovery.clean
        assert sorted(store[name].earliest() for name in store) == [0, 0, 0, 0, 30]


def test_closing_waits_for_who_seals_when_the_background_has_stopped(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that erases, say, goes from log to log; the store is closed between two."""
    root, gate, threads = tmp_path / "data", Gate("rename", ".log"), Threads()
    store = esker.open(root, files=gate, clock=clock, background=False)
    store.create("t", segment_records=10)
    (shard,) = roll(store, "t", 2)._shards
    stop = store._context.background.stop

    def stopped() -> None:
        stop()
        threads.start(sealing.seal_next, shard)
        assert gate.came.wait(30)

    monkeypatch.setattr(store._context.background, "stop", stopped)
    closing = threads.start(store.close)
    closing.join(0.5)
    assert closing.is_alive()
    gate.free.set()
    threads.join()
    assert not sealing.seal_next(shard), "what was closed is left alone"
    shard.page.say_again()
    with esker.open(root, clock=clock, background=False) as store:
        assert store.recovery.clean
        assert [record.value for record in store["t"].read()] == TEN * 3


def test_a_look_that_a_pause_ended_is_taken_up_again(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        still.create(f"t{n}", segment_records=10, ttl="10s")
        roll(still, f"t{n}", 1)
    still.tick()
    clock.forward(60)
    background, real = still._context.background, Background.resting
    asked: list[int] = []

    def resting(self: Background) -> bool:
        asked.append(1)
        self.paused |= len(asked) == 3  # between the first topic and the second
        return real(self)

    monkeypatch.setattr(Background, "resting", resting)
    background.step()
    assert not background.seal_step()
    assert sorted(still[name].earliest() for name in still) == [0, 0, 20]
    assert still.maintenance().waiting.topics == 3
    still.resume_maintenance()
    assert not background.seal_step()
    assert [still[name].earliest() for name in still] == [20, 20, 20]


def test_batches_of_others_wait_as_long_as_the_writer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.engine.background.ATTACH_LOOK_RARELY", 0.005)
    with (
        esker.open(tmp_path / "data") as writer,
        esker.open(tmp_path / "data", background=False) as other,
    ):
        writer["t"].append(b"mine", wait=True)
        writer.pause_maintenance()
        with other.stage("t") as staged:
            staged.append_many(TEN)
        with pytest.raises(esker.AttachPending, match="and not paused"):
            other.attach("w", 1, staged.tickets, timeout=0.1)
        assert writer.maintenance().waiting.batches == other.maintenance().waiting.batches == 1
        writer.resume_maintenance()
        assert not other.attach("w", 1, staged.tickets)
        assert other["t"].end() == 11
        wait_until(lambda: writer.maintenance().done.attached == 1, "its end")
        assert other.maintenance().waiting.batches == 0


# ---- nothing fails in silence ----------------------------------------------------------------


@contextmanager
def failing(tmp_path: Path, clock: HandClock) -> Iterator[tuple[esker.Store, Refusing]]:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, clock=clock, background=False) as store:
        yield store, files
        files.allow()


def test_a_failed_sealing_is_told_with_topic_and_time(tmp_path: Path, clock: HandClock) -> None:
    with failing(tmp_path, clock) as (store, files):
        store.create("t", segment_records=10)
        roll(store, "t", 1)
        clock.forward(7)
        files.refuse("rename", errno.ENOSPC, ".log")
        store.tick()
        found = store.maintenance()
        error = found.last_error
        assert error is not None
        assert (error.what, error.topic, error.shard) == ("sealing", "t", 0)
        assert error.when_us == clock.now_us()
        assert "disk is full" in error.reason
        assert "2027-01-15 08:00:07+00:00, sealing topic 't' shard 0: cannot" in str(error)
        assert (found.done.errors, found.done.sealed, found.waiting.logs) == (1, 0, 1)
        files.allow()
        roll(store, "t", 0)
        store.tick()
        found = store.maintenance()
        assert found.waiting.logs == 0
        assert found.last_error == error, "it stays until there is another"


def test_a_failed_eviction_is_told(tmp_path: Path, clock: HandClock) -> None:
    with failing(tmp_path, clock) as (store, files):
        store.create("t", segment_records=10, cap_records=10)
        roll(store, "t", 2)
        files.refuse("write", errno.EIO, "state")
        store.tick()
        error = store.maintenance().last_error
        assert error is not None
        assert (error.what, error.topic) == ("evicting", "t")
        assert store.maintenance().done.evicted_segments == 0


def test_a_directory_that_cannot_be_removed_is_told(tmp_path: Path, clock: HandClock) -> None:
    with failing(tmp_path, clock) as (store, files):
        store["gone"].append(b"x", wait=True)
        store.delete("gone")
        files.refuse("unlink", errno.EACCES, ".log")
        store.tick()
        found = store.maintenance()
        assert found.last_error is not None
        assert (found.last_error.what, found.done.removed) == ("removing", 0)
        assert ".deleted is not empty" in found.last_error.reason


def test_a_failed_write_and_a_failed_sync_are_told(tmp_path: Path, clock: HandClock) -> None:
    with failing(tmp_path, clock) as (store, files):
        store["t"].append(b"x", wait=True)
        store["t"].append(b"y")
        clock.forward(1)
        files.refuse("write", errno.ENOSPC, ".log")
        store.tick()
        error = store.maintenance().last_error
        assert error is not None
        assert (error.what, error.topic) == ("writing", "t")
        files.allow()
        store["t"].flush()
    files = Refusing()
    store = esker.open(tmp_path / "data", files=files, clock=clock, background=False)
    store["t"].append(b"z")
    store["t"].flush()
    clock.forward(1)
    files.refuse("sync", errno.EIO, ".log")
    store.tick()
    error = store.maintenance().last_error
    assert error is not None
    assert (error.what, error.topic) == ("syncing", "t")
    with pytest.raises(esker.Poisoned):
        store.close()


def test_a_batch_that_cannot_be_attached_is_told_once(still: esker.Store) -> None:
    still["t"].append(b"x", wait=True)
    commit_only(still, "t", 1)
    (staged,) = Path(still.path).rglob("*.staged")
    whole = staged.read_bytes()
    staged.write_bytes(whole[:-1])
    for _ in range(3):
        still.tick()
    found = still.maintenance()
    assert found.last_error is not None
    assert (found.last_error.what, found.done.errors, found.done.attached) == ("attaching", 1, 0)
    assert found.waiting.batches == 1
    staged.write_bytes(whole)
    still.tick()
    assert still.maintenance().done.attached == 1


def test_batches_that_cannot_be_looked_for_keep_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files were open for a moment: the thread ended, and every topic was poisoned."""
    monkeypatch.setattr("esker.engine.background.ATTACH_LOOK_RARELY", 0.001)
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"x", wait=True)
        real = store._context.files.list

        def refused(path: str) -> list[str]:
            if path.endswith("staging"):
                raise esker.TooManyFiles(f"cannot list {path}")
            return real(path)

        monkeypatch.setattr(store._context.files, "list", refused)
        error = wait_until(lambda: store._context.background.diary.read()[2], "a failed look")
        assert error.what == "attaching"
        monkeypatch.setattr(store._context.files, "list", real)
        store["t"].append(b"y", wait=True)
        commit_only(store, "t", 1)
        wait_until(lambda: store.maintenance().done.attached == 1, "the batch")
        assert store.maintenance().state == "running"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ended_is_not_called_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> bool:
        raise ZeroDivisionError("a mistake of ours")

    with esker.open(tmp_path / "data") as store:
        store.create("t", segment_records=10)
        monkeypatch.setattr(Background, "_seal", broken)
        roll(store, "t", 1)
        wait_until(lambda: store.maintenance().state == "failed", "the end of the thread")
        error = store.maintenance().last_error
        assert error is not None
        assert error.reason == "a mistake of ours"


@pytest.mark.crash
def test_a_forked_child_has_no_background(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        store["t"].append(b"x", wait=True)
        child = os.fork()
        if not child:
            os._exit(0 if store.maintenance().state == "off" else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_asyncio_twin_pauses_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", segment_records=10)
            await store.pause_maintenance()
            for _ in range(4):
                await topic.append_many(TEN)
            found = await store.maintenance()
            assert isinstance(found, esker.Maintenance)
            assert (found.state, found.waiting.logs) == ("paused", 3)
            await store.resume_maintenance()
            assert (await store.maintenance()).state == "running"

    asyncio.run(main())


def test_two_that_tick_at_once_do_not_take_the_same_buffer(
    still: esker.Store, clock: HandClock
) -> None:
    """One looked at the first buffer, the other one took it, and the first found none."""
    threads = Threads()

    class Interrupted(deque[Any]):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            if not threads._threads:
                threads.start(still.tick).join(0.2)
            return found

    still["t"].append(b"x")
    background = still._context.background
    background._lingering = Interrupted(background._lingering)
    clock.forward(1)
    still.tick()
    threads.join()
    assert [record.value for record in still["t"].read()] == [b"x"]


def test_pauses_reports_and_writers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pauses finds nothing at work, whatever others do; nothing is lost for it."""
    monkeypatch.setattr("esker.engine.background.SEAL_DELAY", 0.001)
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.005)
    threads, stop = Threads(), threading.Event()
    with esker.open(tmp_path / "data", budget_bytes="64KiB", linger="1ms") as store:
        for n in range(3):
            store.create(f"t{n}", segment_records=10, cap_records=200 if n else 0)

        def write(name: str) -> None:
            for _ in range(150):
                store[name].append_many(TEN)

        def report() -> None:
            while not stop.is_set():
                assert str(store.maintenance())
                store["short"].append(b"x", wait=True)
                store.delete("short")

        writers = [threads.start(write, f"t{n}") for n in range(3)]
        threads.start(report)
        for _ in range(50):
            store.pause_maintenance()
            before = store.maintenance()
            assert before.doing == ()
            after = store.maintenance()
            assert after.done == before.done, "nothing was done meanwhile"
            store.resume_maintenance()
        for writer in writers:
            writer.join(60)
        stop.set()
        threads.join()
        wait_until(lambda: store.maintenance().waiting.logs == 0, "sealing")
        found = store.maintenance()
        assert found.last_error is None, str(found)
        assert [store[f"t{n}"].end() for n in range(3)] == [1500] * 3
        assert store["t1"].earliest() >= 1500 - 200 - 100
