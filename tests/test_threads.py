"""Threads share a topic: every offset is given once, and holds what its thread appended."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine.buffer import Buffer
from tests.helpers import Threads, wait_until

COUNT = 800


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Dawdling(Buffer):
    """A buffer at whose every step another thread may come in between."""

    def append(self, value: bytes) -> None:
        if len(value) % 3 == 0:
            time.sleep(0)
        super().append(value)
        time.sleep(0)

    def __len__(self) -> int:
        count = super().__len__()
        time.sleep(0)
        return count


@pytest.fixture
def dawdling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers give the processor away wherever the protocol could break."""
    monkeypatch.setattr("esker.engine.shard.Buffer", Dawdling)


# ---- the ways in which an append and a drain can meet, one by one (see engine/buffer.py) -----


def elsewhere(work: Any) -> None:
    """Do it on another thread, and wait."""
    threads = Threads()
    threads.start(work)
    threads.join()


def test_a_buffer_drained_before_the_record_went_in_takes_it_again(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still["t"]
    topic.append(b"0")

    class Drained(Buffer):
        def append(self, value: bytes) -> None:
            if value == b"2" and self.owner and not drained:
                drained.append(value)
                elsewhere(topic.flush)
            super().append(value)

    drained: list[bytes] = []
    topic.flush()
    monkeypatch.setattr("esker.engine.shard.Buffer", Drained)
    assert [topic.append(b"1"), topic.append(b"2"), topic.append(b"3")] == [1, 2, 3]
    topic.flush()
    assert [record.value for record in topic.read()] == [b"0", b"1", b"2", b"3"]


def test_a_buffer_drained_after_the_record_went_in_has_it_already(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t")

    class Drained(Buffer):
        def append(self, value: bytes) -> None:
            super().append(value)
            if value == b"1" and self.owner:
                elsewhere(topic.flush)

    monkeypatch.setattr("esker.engine.shard.Buffer", Drained)
    assert [topic.append(b"0"), topic.append(b"1"), topic.append(b"2")] == [0, 1, 2]
    topic.flush()
    assert [record.value for record in topic.read()] == [b"0", b"1", b"2"]


def test_a_record_that_comes_while_the_buffer_is_counted_is_not_lost(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t")
    owner = threading.get_ident()
    counting, appending, appended = (threading.Event() for _ in range(3))

    class Counted(Buffer):
        def __len__(self) -> int:
            count = super().__len__()
            if threading.get_ident() != owner and not counting.is_set():
                counting.set()
                wait_until(lambda: appending.is_set() or appended.is_set(), "the owner")
            return count

    monkeypatch.setattr("esker.engine.shard.Buffer", Counted)
    assert topic.append(b"0") == 0
    threads = Threads()
    threads.start(topic.flush)
    assert counting.wait(60)
    careful = topic._append

    def careful_way(*record: Any) -> int:
        appending.set()  # the owner found the buffer closed, and will wait for the lock
        return careful(*record)

    monkeypatch.setattr(topic, "_append", careful_way)
    assert topic.append(b"1") == 1
    appended.set()
    threads.join()
    topic.flush()
    assert [record.value for record in topic.read()] == [b"0", b"1"]


def test_an_append_that_meets_the_end_of_a_close_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = esker.open(tmp_path / "data", background=False)
    topic = store["t"]
    topic.append(b"accepted")
    close_shards = store._close_shards
    met: list[str] = []

    def late(problems: Any) -> None:
        close_shards(problems)
        for call in (
            lambda: topic.append(b"late"),
            lambda: topic.append(b"late", wait=True),
            lambda: topic.append_many([b"late"]),
            lambda: store.create("late"),
        ):
            with pytest.raises(esker.StoreClosed):
                call()
            met.append("refused")

    monkeypatch.setattr(store, "_close_shards", late)
    store.close()
    assert len(met) == 4
    with esker.open(tmp_path / "data", mode="r") as again:
        assert [record.value for record in again["t"].read()] == [b"accepted"]
        assert again.recovery.clean


# ---- all at once -----------------------------------------------------------------------------


class Appended:
    """What each thread appended, and the offset it was told."""

    def __init__(self) -> None:
        self.told: dict[bytes, int] = {}

    def check(self, topic: esker.Topic, total: int) -> None:
        found = list(topic.read())
        assert len(self.told) == total
        assert [record.offset for record in found] == list(range(total)), "not dense"
        for record in found:
            assert self.told[record.value] == record.offset, record


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("writers", [1, 2, 8])
def test_every_offset_is_what_its_thread_was_told(store: esker.Store, writers: int) -> None:
    topic = store["t"]
    appended = Appended()
    threads = Threads()
    each = 12_000 // writers

    def write(number: int) -> None:
        told = {}
        for n in range(each):
            value = b"%d/%d" % (number, n)
            told[value] = topic.append(value)
        appended.told.update(told)

    for number in range(writers):
        threads.start(write, number)
    threads.join()
    topic.flush()
    appended.check(topic, each * writers)


@pytest.mark.usefixtures("restless", "dawdling")
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_every_offset_is_right_while_others_flush_and_sync(tmp_path: Path, durability: str) -> None:
    """The owner of a buffer appends without a lock; here it is drained under it all the time."""
    with esker.open(tmp_path / "data", linger="100us") as store:
        topic = store.create("t", durability=durability, segment_bytes="64KiB")
        appended = Appended()
        threads = Threads()
        done = threading.Event()
        drained = [0, 0]

        def drain(number: int, call: Any) -> None:
            while not done.is_set():
                call()
                drained[number] += 1

        def write() -> None:
            for n in range(COUNT):
                value = b"%d" % n
                appended.told[value] = topic.append(value)

        threads.start(drain, 0, topic.flush)
        threads.start(drain, 1, topic.sync)
        writer = threads.start(write)
        writer.join(100)
        done.set()
        threads.join()
        assert min(drained) > 0
        topic.sync()
        appended.check(topic, COUNT)


@pytest.mark.usefixtures("restless")
def test_every_way_to_append_can_be_used_at_once(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", linger="200us") as store:
        topic = store.create("t", segment_bytes="64KiB")
        appended = Appended()
        threads = Threads()
        done = threading.Event()

        def keep(values: list[bytes], first: int) -> None:
            appended.told.update({value: first + n for n, value in enumerate(values)})

        def plain() -> None:
            for n in range(4000):
                keep([b"plain %d" % n], topic.append(b"plain %d" % n))

        def tagged() -> None:
            for n in range(1500):
                keep([b"tagged %d" % n], topic.append(b"tagged %d" % n, tag=f"tag {n}"))

        def waiting() -> None:
            for n in range(300):
                keep([b"waiting %d" % n], topic.append(b"waiting %d" % n, wait=True))

        def many() -> None:
            for n in range(100):
                values = [b"many %d/%d" % (n, m) for m in range(n % 20 + 1)]
                keep(values, topic.append_many(values).first)  # type: ignore[union-attr]

        def batches() -> None:
            for n in range(100):
                values = [b"batch %d/%d" % (n, m) for m in range(n % 5 + 1)]
                with topic.batch() as batch:
                    for value in values:
                        batch.append(value)
                assert isinstance(batch.span, esker.Span)
                keep(values, batch.span.first)

        def large() -> None:
            for n in range(60):
                value = b"large %d " % n + b"x" * 6000
                keep([value], topic.append(value))

        def drain() -> None:
            while not done.is_set():
                store.sync()
                store.flush()

        def read() -> None:
            while not done.is_set():
                seen = [record.offset for record in topic.read()]
                assert seen == list(range(len(seen)))

        topic.append(b"first")
        keep([b"first"], 0)
        helpers = [threads.start(work) for work in (drain, read)]
        writers = [threads.start(w) for w in (plain, tagged, waiting, many, batches, large)]
        for writer in writers:
            writer.join(100)
        done.set()
        for helper in helpers:
            helper.join(100)
        threads.join()
        topic.flush()
        appended.check(topic, len(appended.told))
        for record in topic.read():
            kind, _, number = record.text.partition(" ")
            assert record.tag == (f"tag {number}" if kind == "tagged" else None)


@pytest.mark.usefixtures("restless")
def test_threads_share_a_topic_of_several_shards(store: esker.Store) -> None:
    topic = store.create("t", shards=3)
    told: dict[bytes, tuple[int, int]] = {}
    threads = Threads()

    def write(number: int) -> None:
        for n in range(1500):
            value = b"%d/%d" % (number, n)
            key = None if n % 3 else value
            offset = topic.append(value, key=key)
            assert isinstance(offset, esker.Offset)
            assert key is None or offset.shard == topic.shard_of(key)
            told[value] = (offset.shard, int(offset))

    for number in range(4):
        threads.start(write, number)
    threads.join()
    topic.flush()
    found = list(topic.read())
    assert len(found) == 6000
    assert {r.value: (r.shard, r.offset) for r in found} == told
    for shard in range(3):
        assert [r.offset for r in found if r.shard == shard] == list(range(topic.end(shard)))


@pytest.mark.usefixtures("restless")
def test_what_was_accepted_before_a_close_is_there_after_it(tmp_path: Path) -> None:
    """Threads append until they are told that the store is closed: nothing falls between."""
    told: list[dict[bytes, int]] = []
    for attempt in range(8):
        store = esker.open(tmp_path / f"data{attempt}")
        topic = store["t"]
        started = threading.Event()
        threads = Threads()

        def write(
            number: int, topic: esker.Topic = topic, started: threading.Event = started
        ) -> None:
            mine: dict[bytes, int] = {}
            told.append(mine)
            for n in itertools.count():
                value = b"%d/%d" % (number, n)
                try:
                    mine[value] = topic.append(value, tag="t" if n % 100 == 0 else None)
                except esker.StoreClosed:
                    return
                if n == 100:
                    started.set()

        told.clear()
        for number in range(1 + attempt % 3):
            threads.start(write, number)
        assert started.wait(60)
        store.close()
        threads.join()
        accepted = {value: offset for mine in told for value, offset in mine.items()}
        with esker.open(tmp_path / f"data{attempt}", mode="r") as again:
            assert {r.value: r.offset for r in again["t"].read()} == accepted


@pytest.mark.usefixtures("restless")
def test_durable_appends_of_many_threads_share_syncs(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topics = [store.create(f"t{n}", durability="fsync") for n in range(3)]
        threads = Threads()
        told: list[dict[bytes, int]] = [{}, {}, {}]

        def write(number: int) -> None:
            for n in range(40):
                value = b"%d/%d" % (number, n)
                which = (number + n) % 3
                offset = topics[which].append(value, wait=True)
                assert topics[which].durable() > offset, "acknowledged before it was durable"
                told[which][value] = offset

        for number in range(16):
            threads.start(write, number)
        threads.join()
        for topic, mine in zip(topics, told, strict=True):
            found = list(topic.read())
            assert {r.value: r.offset for r in found} == mine
            assert [r.offset for r in found] == list(range(len(mine)))
        assert sum(map(len, told)) == 640
        assert store.statistics()["commit_rounds"] < 640


@pytest.mark.usefixtures("restless")
def test_a_wait_that_times_out_is_either_written_once_or_not_at_all(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="fsync")
        threads = Threads()
        told: dict[bytes, int] = {}
        refused: set[bytes] = set()

        def write(number: int) -> None:
            for n in range(60):
                value = b"%d/%d" % (number, n)
                try:
                    told[value] = topic.append(value, wait=(n % 4) * 0.0002)
                except esker.CommitTimeout as problem:
                    if "not accepted" in str(problem):
                        refused.add(value)

        for number in range(12):
            threads.start(write, number)
        threads.join()
        topic.sync()
        found = list(topic.read())
        written = {r.value: r.offset for r in found}
        assert len(written) == len(found), "written twice"
        assert [r.offset for r in found] == list(range(len(found)))
        assert told.items() <= written.items()
        assert not refused & written.keys()


@pytest.mark.usefixtures("restless")
def test_followers_on_many_threads_see_every_record_once_and_in_order(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", linger="1ms") as store:
        topic = store.create("t", segment_bytes="16KiB")
        topic.append(b"0", wait=True)
        threads = Threads()
        seen: list[list[int]] = [[], [], []]

        def follow(mine: list[int]) -> None:
            mine.extend(int(r.value) for r in topic.follow("earliest", timeout=60, limit=3000))

        for mine in seen:
            threads.start(follow, mine)
        for n in range(1, 3000):
            topic.append(b"%d" % n)
        topic.flush()
        threads.join()
        assert seen == [list(range(3000))] * 3


def test_two_threads_that_make_the_same_topic_make_one(store: esker.Store) -> None:
    threads = Threads()
    barrier = threading.Barrier(8)
    told: list[int] = []

    def write() -> None:
        barrier.wait(60)
        told.append(store["t"].append(b"x"))

    for _ in range(8):
        threads.start(write)
    threads.join()
    assert sorted(told) == list(range(8))
    assert list(store) == ["t"]
    wait_until(lambda: len(store["t"]) == 8, "the linger")


def test_a_record_that_comes_while_the_buffer_is_copied_is_told_that_it_was_not_taken(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t")

    class Copied(Buffer):
        def __getitem__(self, rows: Any) -> Any:
            values = super().__getitem__(rows)
            if self.owner and values == [b"0"]:
                super().append(b"late")  # of its owner, who had found it open
            return values

    monkeypatch.setattr("esker.engine.shard.Buffer", Copied)
    topic.append(b"0")
    buffer = topic._buffer
    elsewhere(topic.flush)
    assert list(buffer) == [b"0", b"late"]
    assert buffer.taken == 1, "its owner would take it for written"
