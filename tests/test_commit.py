"""Group commit: who waits for what, how few syncs that takes, and what a failed one does."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import committer as committer_module
from esker.engine.background import Background
from esker.format import frame, segment
from esker.storage.files import told
from esker.testing import ManualClock
from tests.helpers import HandClock, Refusing

THREADS = 16


def syncs(files: Refusing) -> int:
    """How many times a file (not a directory) was synced."""
    return sum(1 for call, _ in files.calls if call == "sync")


class SlowSync(Refusing):
    """A disk whose syncs take as long as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()

    def check(self, call: str, path: str) -> None:
        if call == "sync" and path.endswith(".log"):
            self.syncing.set()
            assert self.may_sync.wait(30)
        super().check(call, path)


@pytest.mark.slow
def test_a_thousand_topics_become_durable_with_a_handful_of_syncs(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topics = [store.create(f"t{n}", durability="fsync") for n in range(1_000)]
        for topic in topics:
            topic.append(b"first")
        store.sync()
        before = syncs(files)
        for number, topic in enumerate(topics):
            topic.append(b"%d" % number)
        store.sync()
        assert syncs(files) - before <= 20
        assert all(topic.durable() == 2 for topic in topics)
    with esker.open(tmp_path / "data", mode="r") as store:
        assert all(store[f"t{n}"][1].value == b"%d" % n for n in range(0, 1_000, 7))


@pytest.fixture
def by_hand(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[esker.Store, Refusing]]:
    """A store that believes in its threads, which are not there: `tick` does their work."""
    monkeypatch.setattr(Background, "_start", lambda background: None)
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, clock=clock, journals=1) as store:
        yield store, files


def test_what_lingers_on_many_topics_is_synced_together(
    by_hand: tuple[esker.Store, Refusing], clock: HandClock
) -> None:
    store, files = by_hand
    topics = [store.create(f"t{n}", durability="fsync") for n in range(20)]
    before = len(files.calls)
    for topic in topics:
        topic.append(b"one")
        clock.forward(0.002)  # so that each is due at a time of its own
    for _ in range(75):
        store.tick()
        clock.forward(0.002)
    assert [topic.durable() for topic in topics] == [1] * 20
    made = [call for call in files.calls[before:] if call[0] in ("sync", "sync_dir")]
    assert len(made) <= 4, "a journal's name, and at most two rounds"


def test_what_lingers_alone_is_synced_at_once(
    by_hand: tuple[esker.Store, Refusing], clock: HandClock
) -> None:
    store, _ = by_hand
    hot, quiet = store.create("hot"), store.create("quiet", durability="fsync")
    quiet.append(b"one")
    clock.forward(0.01)
    for _ in range(20):
        hot.append(b"of class disk, and flushed: not what a sync of class fsync waits for")
        hot.flush()
    clock.forward(0.01)
    store.tick()
    assert quiet.durable() == 1


def test_nobody_waits_for_others_when_all_were_synced_meanwhile(
    by_hand: tuple[esker.Store, Refusing], clock: HandClock
) -> None:
    store, _ = by_hand
    topics = [store.create(f"t{n}", durability="fsync") for n in range(20)]
    store.create("d").append(b"one", wait=True)  # to be synced in 0.2 s, and all that is there then
    clock.forward(0.15)
    for topic in topics:
        topic.append(b"one")
    clock.forward(0.02)
    store.tick()
    assert [topic.durable() for topic in topics] == [0] * 20, "they wait for others"
    clock.forward(0.04)
    store.tick()
    assert [topic.durable() for topic in topics] == [1] * 20
    clock.forward(1.0)
    store.tick()
    wait = store._context.background.step()
    assert wait is not None
    assert wait > 0, "the thread would never sleep"


def test_a_full_journal_is_checkpointed_and_the_log_goes_on(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(
        tmp_path / "data", files=files, background=False, journal_bytes=64 << 10, journals=2
    ) as store:
        topics = [store.create(f"t{n}", durability="fsync") for n in range(8)]
        for turn in range(30):
            for topic in topics:
                topic.append(b"%d" % turn + bytes(2_000))
            store.sync()
        assert sum(topic.counters()["checkpoints"] for topic in topics) > 0
        journals = [name for name in files.list(f"{store.path}/journal") if "journal" in name]
        assert len(journals) <= 2
    assert not [n for n in files.list(str(tmp_path / "data/journal")) if n.endswith(".journal")]
    with esker.open(tmp_path / "data") as store:
        assert store.recovery.clean
        for n in range(8):
            values = [record.value for record in store[f"t{n}"].read()]
            assert values == [b"%d" % turn + bytes(2_000) for turn in range(30)]


def test_threads_that_wait_share_rounds_and_each_gets_its_own_offset(tmp_path: Path) -> None:
    each = 25
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="fsync")
        got: list[dict[int, bytes]] = [{} for _ in range(THREADS)]

        def work(number: int) -> None:
            for turn in range(each):
                value = b"%d-%d" % (number, turn)
                got[number][topic.append(value, wait=True)] = value

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = {offset: value for one in got for offset, value in one.items()}
        assert sorted(whole) == list(range(THREADS * each))
        assert {record.offset: record.value for record in topic.read()} == whole
        assert topic.durable() == THREADS * each
        assert store.statistics()["commit_rounds"] < THREADS * each


def test_a_round_takes_in_everybody_who_came_while_the_last_one_synced(tmp_path: Path) -> None:
    files = SlowSync()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append(b"warm", wait=True)
        rounds = store.statistics()["commit_rounds"]
        files.may_sync.clear()
        files.syncing.clear()
        first = threading.Thread(target=lambda: topic.append(b"x", wait=True))
        first.start()
        assert files.syncing.wait(30)
        others = [
            threading.Thread(target=lambda: topic.append(b"y", wait=True)) for _ in range(THREADS)
        ]
        for thread in others:
            thread.start()
        while store._context.committer.waiting < THREADS:
            time.sleep(0.001)
        assert topic.end() == 1, "nothing is visible before it is durable"
        files.may_sync.set()
        for thread in [first, *others]:
            thread.join()
        assert store.statistics()["commit_rounds"] - rounds == 2
        assert topic.end() == 2 + THREADS


def test_a_round_begins_when_all_threads_of_the_last_one_are_through(tmp_path: Path) -> None:
    """So that those who come back at once are in it, and half as many syncs do."""
    files = SlowSync()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append(b"warm", wait=True)
        committer = store._context.committer
        rounds, come_through = committer.rounds, committer._come_through
        held, let_go = threading.Event(), threading.Event()

        def dawdle(mine: Any, ticket: Any) -> None:
            if mine.done:
                held.set()
                assert let_go.wait(30)
            come_through(mine, ticket)

        committer._come_through = dawdle  # type: ignore[method-assign]
        files.may_sync.clear()
        files.syncing.clear()
        threads = [threading.Thread(target=lambda: topic.append(b"x", wait=True)) for _ in range(4)]
        threads[0].start()
        assert files.syncing.wait(30)
        for number, thread in enumerate(threads[1:3], 1):
            thread.start()
            while committer.waiting < number:
                time.sleep(0.001)
        files.may_sync.set()
        assert held.wait(30)  # the second round is done, and one of its threads is still there
        threads[3].start()
        while not committer.waiting:
            time.sleep(0.001)
        time.sleep(0.05)
        assert (committer.rounds - rounds, committer.waiting) == (2, 1)
        let_go.set()
        for thread in threads:
            thread.join(30)
        assert (committer.rounds - rounds, topic.end()) == (3, 5)


def test_who_gave_up_is_not_waited_for(tmp_path: Path) -> None:
    class Turns(Refusing):
        """A disk that syncs a log once for each turn that it is given."""

        turns = threading.Semaphore(1)

        def check(self, call: str, path: str) -> None:
            if call == "sync" and path.endswith(".log"):
                assert self.turns.acquire(timeout=30)
            super().check(call, path)

    files = Turns()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append(b"warm", wait=True)
        committer = store._context.committer
        errors = []

        def append(wait: bool | float) -> None:
            try:
                topic.append(b"x", wait=wait)
            except esker.CommitTimeout as problem:
                errors.append(str(problem))

        threads = [threading.Thread(target=append, args=(wait,)) for wait in (True, True, 0.2)]
        threads[0].start()
        while not committer._leading or committer.waiting:
            time.sleep(0.001)
        for number, thread in enumerate(threads[1:], 1):
            thread.start()
            while committer.waiting < number:
                time.sleep(0.001)
        files.turns.release()  # the first round is done; the second syncs until time is up
        threads[2].join(30)
        files.turns.release(10)
        for thread in threads:
            thread.join(30)
        assert errors in ([], ["not durable within 0.2 s; it is written and may become durable"])
        assert topic.append(b"after", wait=30) == 4
        assert not committer._leading


def test_a_wait_with_a_limit_ends_and_says_whether_the_record_was_accepted(tmp_path: Path) -> None:
    files = SlowSync()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        topic.append(b"warm", wait=True)
        files.may_sync.clear()
        files.syncing.clear()
        first = threading.Thread(target=lambda: topic.append(b"x", wait=True))
        first.start()
        assert files.syncing.wait(30)
        with pytest.raises(esker.CommitTimeout, match="not accepted"):
            topic.append(b"never", wait=0.05)
        files.may_sync.set()
        first.join()
        assert topic.append(b"after", wait=5) == 2
        assert [record.value for record in topic.read()] == [b"warm", b"x", b"after"]


def test_a_failed_sync_poisons_the_shard_and_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    files = Refusing()
    store = esker.open(tmp_path / "data", files=files, background=False)
    topic = store.create("t", durability="fsync")
    other = store.create("other", durability="fsync")
    assert topic.append(b"safe", wait=True) == 0
    files.refuse("sync", errno.EIO, "/00000001/0000/")
    with pytest.raises(esker.Poisoned, match=r"in doubt.*open it again"):
        topic.append(b"doubtful", wait=True)
    files.allow()
    for attempt in (
        lambda: topic.append(b"x", wait=True),
        lambda: topic.append_many([b"x"]),
        topic.sync,
    ):
        with pytest.raises(esker.Poisoned):
            attempt()
    assert topic.end() == 1, "what is in doubt is not shown"
    assert other.append(b"fine", wait=True) == 0, "other topics go on"
    with pytest.raises(esker.Poisoned):  # closing says it once more: it may be the first to know
        store.close()
    with esker.open(tmp_path / "data") as again:
        topic = again["t"]
        assert topic[0].value == b"safe"
        assert topic.append(b"on", wait=True) in (1, 2)


def test_a_full_disk_loses_nothing_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store["t"]
        topic.append_many([b"a", b"b"])
        assert topic.append(b"pending") == 2
        files.refuse("write", errno.ENOSPC, ".log")
        with pytest.raises(esker.DiskFull, match="free some space"):
            topic.sync()
        with pytest.raises(esker.DiskFull):
            topic.append(b"refused", wait=True)
        with pytest.raises(esker.DiskFull):
            topic.append_many([b"refused too"])
        files.allow()
        topic.sync()
        assert topic.append(b"after", wait=True) == 3
        assert [r.value for r in topic.read()] == [b"a", b"b", b"pending", b"after"]


def test_too_much_unsynced_data_makes_append_wait_and_append_nowait_refuse(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(
        tmp_path / "data", files=files, background=False, max_unflushed_bytes="64KiB"
    ) as store:
        topic = store["t"]
        topic.append_many([bytes(50_000), bytes(50_000)])
        with pytest.raises(esker.WouldBlock, match="max_unflushed_bytes"):
            topic.append_nowait(b"x")
        before = syncs(files)
        assert topic.append(b"x") == 2
        assert syncs(files) > before, "the waiting call made room itself"
        assert topic.append_nowait(b"y") == 3


def test_the_background_syncs_class_disk_on_its_tick(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", sync_interval="5ms") as store:
        topic = store["t"]
        topic.append(b"x", wait=True)
        deadline = time.monotonic() + 30
        while topic.durable() < 1:
            assert time.monotonic() < deadline
            time.sleep(0.002)


def test_sync_makes_weak_classes_durable_too(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        for durability in ("disk", "memory", "fsync"):
            topic = store.create(durability, durability=durability)
            topic.append(b"x")
            assert topic.durable() == 0
            topic.sync()
            assert topic.durable() == 1


def test_ephemeral_records_are_gone_after_a_restart_and_their_offsets_are_not_reused(
    tmp_path: Path,
) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="ephemeral")
        topic.append_many([b"a", b"b", b"c"])
        assert [record.value for record in topic.read()] == [b"a", b"b", b"c"]
    sizes: list[Any] = [p.name for p in (tmp_path / "data/topics").rglob("*.log")]
    assert not sizes, "class ephemeral writes no segment"
    with esker.open(tmp_path / "data") as store:
        assert list(store["t"].read()) == []
        assert store["t"].append(b"d", wait=True) == 3


def test_a_log_is_rolled_when_it_is_too_old_also_when_nobody_writes(tmp_path: Path) -> None:
    from tests.helpers import HandClock

    clock = HandClock()
    with esker.open(tmp_path / "data", clock=clock, background=False) as store:
        topic = store.create("t", segment_age="1h")
        topic.append_many([b"x"])
        clock.forward(1_800)
        store.tick()
        assert topic.counters()["segments_rolled"] == 0
        clock.forward(1_801)
        store.tick()
        assert topic.counters()["segments_rolled"] == 1
        assert topic.append(b"y", wait=True) == 1
        assert [record.value for record in topic.read()] == [b"x", b"y"]


def test_two_syncs_of_one_log_cannot_turn_a_failure_into_an_acknowledgement(tmp_path: Path) -> None:
    """The kernel reports a failed write-back once: a sync beside the failing one returns 0."""

    class FailsOnce(Refusing):
        def __init__(self) -> None:
            super().__init__()
            self.armed = False
            self.first = threading.Event()
            self.go = threading.Event()

        def check(self, call: str, path: str) -> None:
            if self.armed and call == "sync" and path.endswith(".log"):
                if not self.first.is_set():
                    self.first.set()
                    assert self.go.wait(30)
                    raise told(OSError(errno.EIO, "Input/output error"), "sync", path)
                self.go.set()
            super().check(call, path)

    files = FailsOnce()
    store = esker.open(tmp_path / "data", files=files, background=False)
    topic = store["t"]
    topic.append_many([b"a"])
    topic.sync()
    topic.append_many([b"lost"])
    files.armed = True
    problems: list[BaseException] = []

    def sync() -> None:
        try:
            topic.sync()
        except esker.Poisoned as problem:
            problems.append(problem)

    threads = [threading.Thread(target=sync) for _ in range(2)]
    threads[0].start()
    assert files.first.wait(30)
    threads[1].start()
    time.sleep(0.05)
    files.go.set()
    for thread in threads:
        thread.join()
    assert len(problems) == 2, "nobody is told that it is durable"
    assert topic.durable() == 1
    with pytest.raises(esker.Poisoned):
        store.close()


def test_bytes_that_wait_for_the_disk_are_counted_down_to_nothing(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        plain = store.create("t", segment_bytes="64KiB")
        packed = store.create("z", segment_bytes="64KiB", compression="zstd")
        for _ in range(40):
            plain.append_many([bytes(5_000)])
            packed.append_many([bytes(5_000)])
            store.tick()
        store.sync()
        assert store.statistics()["unflushed_bytes"] == 0


def test_readers_are_not_disturbed_while_the_log_rolls(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_bytes="4KiB")
        done = threading.Event()
        problems: list[BaseException] = []

        def read() -> None:
            try:
                while not done.is_set():
                    offsets = [record.offset for record in topic.read("-200")]
                    assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
            except BaseException as problem:
                problems.append(problem)

        topic.append_many([b"x" * 100])
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(1_500):
            topic.append_many([b"x" * 500])
        done.set()
        reader.join()
        assert not problems


def test_times_do_not_fall_when_a_batch_overtakes_the_buffer(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store["t"]
        for _ in range(50):
            topic.append(b"buffered")
            topic.append_many([b"batch"] * 40)
        stamps = [record.timestamp for record in topic.read()]
        assert stamps == sorted(stamps)


def test_one_can_wait_for_a_single_record_to_become_durable(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store["t"]
        offset = topic.append(b"x")
        assert topic.durable() == 0
        topic.wait_durable(offset)
        assert topic.durable() == 1
        with pytest.raises(esker.OffsetOutOfRange, match="was not appended"):
            topic.wait_durable(5)


def test_the_counters_tell_what_was_done(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_bytes="8KiB", compression="zstd", compress_at="commit")
        for _ in range(30):
            topic.append_many([bytes(100)] * 60)
            topic.append_many([bytes(range(256)) * 4])
        topic.sync()
        store.tick()
        list(topic.read())
        told_of = topic.counters()
        for name in (
            "total_records", "total_bytes", "total_writes", "last_write_ns", "write_ns_sum",
            "write_ns_count", "write_ns_min", "write_ns_max", "sync_ns_max", "syncs", "seals",
            "seal_ns", "roll_ns", "segments_created", "segments_rolled", "segments_current",
            "compressed_records", "compression_ratio_x100", "compression_skipped", "file_bytes",
            "last_segment", "last_index_update_ns", "directory_frames", "records_read",
            "readers_total", "maps", "mapped_bytes", "writer_pid", "next_issued", "last_read_ns",
            "segments_bytes",
        ):  # fmt: skip
            assert told_of[name] > 0, name
        assert told_of["total_records"] == told_of["records_read"] == 30 * 61
        assert told_of["readers_active"] == 0


def test_what_is_written_while_a_round_syncs_is_not_shown_by_that_round(tmp_path: Path) -> None:
    files = SlowSync()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", durability="fsync")
        files.may_sync.clear()
        first = threading.Thread(target=lambda: topic.append(b"durable", wait=True))
        first.start()
        assert files.syncing.wait(30)
        topic.append_many([b"written"], wait=False)
        files.may_sync.set()
        first.join()
        assert (topic.end(), topic.durable()) == (1, 1)
        topic.sync()
        assert (topic.end(), topic.durable()) == (2, 2)


@pytest.mark.parametrize("journal_from", [0, 100], ids=["journal", "directly"])
def test_a_poisoned_shard_is_never_called_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal_from: int
) -> None:
    """Here its log was synced well, and the name of the log was not."""
    monkeypatch.setattr("esker.engine.committer.JOURNAL_DIRTY_SHARDS", journal_from)
    files = Refusing()
    store = esker.open(tmp_path / "data", files=files, background=False)
    topic = store.create("t", durability="fsync")
    topic.append_many([b"doubtful"], wait=False)
    shard = topic._shards[0]
    shard.poisoned_by(esker.StorageError("the name of its log could not be synced"))
    with pytest.raises(esker.Poisoned):
        topic.sync()
    shard.became_durable(1)  # by a round that had begun before
    assert (shard.durable, topic.end()) == (0, 0)
    with pytest.raises(esker.Poisoned):
        store.close()


def test_a_sync_that_fails_in_the_sealer_poisons_its_shard(tmp_path: Path) -> None:
    files = Refusing()
    store = esker.open(tmp_path / "data", files=files, background=False)
    topic = store.create("t", durability="memory", segment_records=1)
    topic.append_many([b"0"])
    topic.append_many([b"1"])
    files.refuse("sync", errno.EIO, ".log")
    store.tick()
    files.allow()
    with pytest.raises(esker.Poisoned):
        topic.append_many([b"2"])
    with pytest.raises(esker.Poisoned):
        store.close()


def test_a_clean_close_ends_with_a_mark_that_calls_all_before_it_durable(tmp_path: Path) -> None:
    """So that damage is told from a torn tail also where the state page is lost."""
    with esker.open(tmp_path / "data", background=False) as store:
        store["t"].append_many([b"0", b"1"])
    (log,) = (tmp_path / "data").rglob("*.log")
    data = log.read_bytes()
    header = segment.decode_header(data[: segment.HEADER_SIZE])
    assert isinstance(header, segment.SegmentHeader)
    place = len(data) - frame.HEADER_SIZE
    mark = frame.decode_header(data, place, place, header.salt)
    assert isinstance(mark, frame.Header)
    assert (mark.kind, mark.synced) == (frame.MARK, place)


@pytest.mark.parametrize(("window", "slices"), [(None, 1), (0.0035, 4)])
def test_a_leader_waits_for_company_no_longer_than_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: float | None, slices: int
) -> None:
    clock = ManualClock()
    with esker.open(tmp_path / "data", clock=clock, background=False) as store:
        committer = store._context.committer
        committer.window, committer._company = window, 100.0
        mine = committer_module.Round()
        slept = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock.forward(0.001)
            mine.tickets.append(None)  # type: ignore[arg-type]

        monkeypatch.setattr(committer_module.time, "sleep", sleep)
        committer._gather(mine)
        monkeypatch.undo()
        assert len(slept) == slices
