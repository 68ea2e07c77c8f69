"""Caps and ages: what is evicted, what is refused, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import floor, reader
from esker.engine.committer import Ticket
from esker.storage.files import RealFiles
from esker.testing import CORNERS, Crash, Fate, Fault, ManualClock, SimulatedDisk
from tests.helpers import HandClock, Threads, wait_until

TEN = [b"%d" % n for n in range(10)]


def fill(store: esker.Store, name: str, segments: int) -> esker.Topic:
    """Segments of ten records each, the last one not sealed."""
    for _ in range(segments):
        store[name].append_many(TEN)
        store.tick()
    return store[name]


def gaps(topic: esker.Topic, start: Any = 0, **how: Any) -> list[tuple[int, int, str]]:
    items: Iterator[Any] = topic.read(start, gaps="yield", **how)
    return [(each.first, each.last, each.reason) for each in items if isinstance(each, esker.Gap)]


# ---- what goes, and what stays ---------------------------------------------------------------


def test_a_cap_by_records_keeps_as_many_and_less_than_a_segment_more(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_records=25)
    for n in range(1, 12):
        fill(still, "t", 1)
        assert min(10 * n, 25) <= len(topic) < 25 + 10
    assert (topic.earliest(), topic.end()) == (80, 110)
    assert [record.offset for record in topic.read()] == list(range(80, 110))


def test_a_cap_by_bytes_keeps_as_many_and_less_than_a_segment_more(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_bytes="4KiB")
    fill(still, "t", 30)
    counters = topic.counters()
    assert 4096 <= counters["segments_bytes"] < 4096 + 1024
    files = sum(path.stat().st_size for path in Path(still.path).rglob("*.seg"))
    assert files < 4096 + 1024
    assert counters["bytes_reclaimed"] > 4096
    assert counters["retention_runs"] > 3


def test_an_age_takes_what_is_older_also_of_a_topic_that_nobody_writes(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=10, ttl="10s")
    fill(still, "t", 3)
    clock.forward(9)
    fill(still, "t", 1)
    assert len(topic) == 40
    clock.forward(2)
    still.tick()
    assert (topic.earliest(), topic.end()) == (30, 40)
    clock.forward(20)
    still.tick()
    assert (topic.earliest(), topic.end(), len(topic)) == (40, 40, 0)
    assert topic.append(b"again") == 40
    topic.flush()
    assert [record.value for record in topic.read()] == [b"again"]
    assert gaps(topic) == [(0, 39, "evicted")]


def test_a_segment_is_as_old_as_its_youngest_record(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=3, ttl="10s")
    now = clock.now_us()
    for age in (100, 5, 100):  # the last one is younger than one before it
        topic.append_many([esker.Record(b"x", timestamp=now - age * 1_000_000)] * 3)
    topic.append(b"now")
    still.tick()
    assert topic.earliest() == 3, "the second segment is young, and the third lies behind it"


def test_so_many_segments_are_kept_whatever_caps_and_ages_say(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=10, cap_records=1, ttl="1s", keep_segments=3)
    fill(still, "t", 8)
    assert topic.earliest() == 50
    clock.forward(100)
    still.tick()
    assert topic.earliest() == 60, "the last one was ended, and an empty one counts"
    assert len(topic) == 20


def test_without_a_policy_nothing_ever_goes(still: esker.Store, clock: HandClock) -> None:
    still.create("t", segment_records=10)
    fill(still, "t", 5)
    clock.forward(10**8)
    still.tick()
    assert still.retain() == still.retention_plan() == []
    assert len(still["t"]) == 50


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_every_class_is_capped(still: esker.Store, durability: Any) -> None:
    topic = still.create("t", segment_records=10, cap_records=20, durability=durability)
    for _ in range(6):
        topic.append_many(TEN, wait=True)
        still.tick()
    assert (topic.earliest(), topic.end()) == (40, 60)
    assert gaps(topic, 5) == [(5, 39, "evicted")]


def test_each_shard_is_capped_by_itself(still: esker.Store) -> None:
    topic = still.create("t", shards=2, segment_records=10, cap_records=20)
    keys = [
        next(k for k in (b"%d" % n for n in range(99)) if topic.shard_of(k) == s) for s in (0, 1)
    ]
    for n in range(6):
        topic.append_many([esker.Record(b"x", key=keys[0])] * 10)
        if n < 2:
            topic.append_many([esker.Record(b"y", key=keys[1])] * 10)
        still.tick()
    assert [topic.earliest(0), topic.earliest(1)] == [40, 0]


# ---- who is told -----------------------------------------------------------------------------


def test_whoever_comes_from_below_is_told_once_and_exactly(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_records=20)
    tail = topic.tail(0, gaps="yield")
    fill(still, "t", 6)
    for start in (0, 3, 39):
        with pytest.raises(esker.DataGap) as told:
            list(topic.read(start))
        assert told.value.gap == esker.Gap("t", 0, start, 39, "evicted")
        assert told.value.gap.missed == 40 - start
        assert gaps(topic, start) == [(start, 39, "evicted")]
        assert [each.offset for each in topic.read(start, gaps="skip")] == list(range(40, 60))
        assert isinstance(next(iter(topic.batches(start, gaps="yield"))), esker.Gap)
        with pytest.raises(esker.DataGap):
            topic[start:].to_arrow()
        followed: Any = next(iter(topic.follow(start, timeout=0, gaps="yield")))
        assert followed == told.value.gap
    assert still.statistics()["gaps_met"] >= 3
    first, *rest = tail.take()
    assert (first.first, first.last) == (0, 39)
    assert rest[0].first == 40
    assert not list(tail.take()), "and not again"
    assert gaps(topic, 40) == gaps(topic, "earliest") == []
    assert gaps(topic, 10, stop=30) == [(10, 29, "evicted")]
    with pytest.raises(esker.OffsetOutOfRange, match=r"offsets 40\.\.59"):
        topic[5]


def test_deleting_is_silent_and_eviction_is_told_whatever_came_first(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_records=20)
    fill(still, "t", 4)
    assert topic.delete(25) == 5
    fill(still, "t", 4)  # evicts from where the deletion ended
    assert topic.earliest() == 60
    assert gaps(topic) == [(0, 19, "evicted"), (25, 59, "evicted")]
    assert gaps(topic, 21) == [(25, 59, "evicted")]
    topic.delete("latest")
    assert gaps(topic) == [(0, 19, "evicted"), (25, 59, "evicted")], "still lost, not deleted"
    assert gaps(topic, 60) == []


def test_what_was_lost_is_known_after_closing_and_to_other_processes(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=10, cap_records=20)
        with esker.open(root, mode="r") as reader:
            fill(store, "t", 3)
            assert gaps(reader["t"]) == [(0, 9, "evicted")]
            fill(store, "t", 3)
            assert gaps(reader["t"]) == gaps(topic) == [(0, 39, "evicted")]
    for mode in ("r", "rw"):
        with esker.open(root, mode=mode) as store:  # type: ignore[arg-type]
            assert store.recovery.clean
            assert gaps(store["t"], 7) == [(7, 39, "evicted")]
    (root / next(root.rglob("state")).relative_to(root)).with_name("counters").unlink()
    assert esker.repair(root) is not None
    assert esker.verify(root).ok
    with esker.open(root, mode="r") as store:
        assert gaps(store["t"]) == [(0, 39, "evicted")]


def test_a_reader_that_is_overtaken_is_told_where_it_stands(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_records=20)
    fill(still, "t", 2)
    reading: Iterator[Any] = topic.batches(0, 100, gaps="yield", max_records=5)
    assert next(reading).first == 0
    fill(still, "t", 4)
    rest = list(topic.batches(5, gaps="yield"))
    assert (rest[0].first, rest[0].last) == (5, 39)


def test_a_follower_whose_file_is_unlinked_while_it_reads_is_told(tmp_path: Path) -> None:
    """With no mapping kept, every batch opens the file anew, and one day it is not there."""
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        store.create("t", segment_records=10, cap_records=20)
        fill(store, "t", 2)
        with esker.open(root, mode="r", mapped_bytes=0) as reader:
            reading: Iterator[Any] = reader["t"].batches(0, gaps="yield", max_records=4)
            first = next(reading)
            fill(store, "t", 4)
            seen = [first, *reading]
            ends = [each.last + 1 for each in seen]
            assert [each.first for each in seen] == [0, *ends[:-1]]


# ---- by hand ---------------------------------------------------------------------------------


def test_a_plan_says_what_would_go_and_changes_nothing(tmp_path: Path, clock: HandClock) -> None:
    root = tmp_path / "data"
    with esker.open(root, clock=clock, background=False) as store:
        topic = store.create("t", segment_records=10, ttl="10s")
        fill(store, "t", 4)
        clock.forward(60)
        (planned,) = store.retention_plan()
        assert (planned.first, planned.last, planned.segments, planned.reason) == (0, 39, 4, "ttl")
        assert planned.records == 40
        assert "offsets 0..39" in str(planned)
        assert planned.bytes == topic.counters()["segments_bytes"]
        assert len(topic) == 40
        with esker.open(root, mode="r", clock=clock) as reader:
            assert reader.retention_plan() == [planned]
            with pytest.raises(esker.ReadOnlyStore):
                reader.retain()
    with esker.open(root, clock=clock, background=False) as store:
        assert not store["t"]._shards[0].writing
        (done,) = store.retain()
        assert (done.first, done.last) == (0, 39)
        assert not store["t"]._shards[0].writing, "it was taken for a moment"
        assert store.retain() == []
        assert len(store["t"]) == 0


def test_a_shard_that_another_process_writes_is_left_to_it(
    tmp_path: Path, clock: HandClock
) -> None:
    root = tmp_path / "data"
    with (
        esker.open(root, clock=clock, background=False) as store,
        esker.open(root, clock=clock, background=False) as other,
    ):
        store.create("t", segment_records=10, ttl="10s")
        fill(store, "t", 3)
        clock.forward(60)
        assert other.retention_plan()
        assert other.retain() == []
        assert [each.last for each in store.retain()] == [29]


def test_the_background_does_it_by_itself(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.05)
    monkeypatch.setattr("esker.engine.background.SEAL_DELAY", 0.001)
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_records=10, ttl="300ms", cap_records=50)
        for _ in range(20):
            topic.append_many(TEN)
        wait_until(lambda: topic.earliest() >= 140, "the cap")
        wait_until(lambda: topic.earliest() == 200, "the age")
        wait_until(lambda: not list(Path(store.path).rglob("*.seg")), "the files")
    with esker.open(tmp_path / "data") as store:
        assert store["t"].end() == 200


def test_one_that_only_opens_the_store_does_it_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.05)
    with esker.open(tmp_path / "data", background=False) as store:
        fill(store, store.create("t", segment_records=10, ttl="200ms").name, 3)
    with esker.open(tmp_path / "data") as store:
        wait_until(lambda: store["t"].earliest() == 30, "the age")


def test_a_cap_that_is_altered_holds_at_once_and_not_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 3600.0)
    with esker.open(tmp_path / "data", background=False) as store:
        fill(store, store.create("t", segment_records=10).name, 5)
    with esker.open(tmp_path / "data") as store:
        store["t"].append(b"x", wait=True)
        wait_until(lambda: store._context.background._next_retain > 0, "the look at its opening")
        store.alter("t", cap_records=20)
        wait_until(lambda: store["t"].earliest() == 30, "the cap")


class Order(RealFiles):
    """Notes which segments are unlinked, and when there is a rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str | float] = []
        monkeypatch.setattr("esker.engine.background.time.sleep", self.notes.append)

    def unlink(self, path: str) -> None:
        if path.endswith(".seg"):
            self.notes.append(path)
        super().unlink(path)

    @property
    def paths(self) -> list[str]:
        return [note for note in self.notes if isinstance(note, str)]

    @property
    def rests(self) -> list[float]:
        return [note for note in self.notes if isinstance(note, float)]


def forty_segments(root: Path, clock: HandClock) -> None:
    with esker.open(root, background=False, clock=clock) as store:
        fill(store, store.create("t", segment_records=10).name, 41)


def test_files_go_the_oldest_first_a_few_at_a_time_and_with_rests_between(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who appends meanwhile is to be alone for most of the time."""
    forty_segments(tmp_path / "data", clock)
    files = Order(monkeypatch)
    with esker.open(tmp_path / "data", files=files, clock=clock) as store:
        store.pause_maintenance()  # which leaves it to us
        store.alter("t", cap_records=10)
        store._context.background.paused = False
        store.retain()
        assert len(files.paths) == 40
        assert files.paths == sorted(files.paths)
        run = 0
        for note in files.notes:
            run = run + 1 if isinstance(note, str) else 0
            assert run <= floor.TOGETHER
        assert sum(files.rests) == pytest.approx(40 * floor.PACE, rel=0.3)
        assert 1000 * floor.PACE < 1, "a thousand segments in a second"


def test_nobody_rests_who_works_by_hand_or_is_waited_for(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, background in (("by-hand", False), ("paused", True)):
        forty_segments(tmp_path / name, clock)
        files = Order(monkeypatch)
        with esker.open(tmp_path / name, files=files, clock=clock, background=background) as store:
            store.pause_maintenance()
            store.alter("t", cap_records=10)
            store.retain()
            assert len(files.paths) == 40
            assert files.rests == []


def test_a_file_that_cannot_be_unlinked_keeps_no_other_from_going(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    with esker.open("/store", files=disk, background=False) as store:
        topic = fill(store, store.create("t", segment_records=10).name, 41)
        store.alter("t", cap_records=10)
        disk.fail(Fault("EIO", calls=frozenset({"unlink"}), inside=".seg"))
        [gone] = store.retain()
        assert (gone.segments, topic.earliest()) == (40, 400)
        assert topic.counters()["retention_errors"] == 1
        folder = store._context.shards[0].folder
        assert sum(name.endswith(".seg") for name in disk.list(folder)) == 1
    with esker.open("/store", files=disk, background=False) as store:
        store["t"].append(b"x", wait=True)
        assert not [name for name in disk.list(folder) if name.endswith(".seg")]
        assert store["t"].earliest() == 400


@pytest.mark.parametrize("blind", [False, True])
def test_indexes_of_tags_go_with_their_segments_however_many_go(
    still: esker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blind: bool
) -> None:
    monkeypatch.setattr("esker.engine.erasing.INDEX_ROWS_MIN", 1)
    topic = still.create("t", segment_records=2)
    for _ in range(40):
        topic.append_many([esker.Record(b"x", tag="a"), b"y"])
    still.tick()
    topic.delete(tag="nobody")
    assert len(list(tmp_path.rglob("*.tags"))) == 39
    if blind:
        monkeypatch.setattr(floor, "_indexes", lambda shard: None)  # the look has failed
    still.alter("t", cap_records=10)
    [gone] = still.retain()
    assert gone.segments >= floor.MANY
    left = {path.stem for path in tmp_path.rglob("*.seg")}
    assert {path.stem for path in tmp_path.rglob("*.tags")} == left


def test_a_failed_eviction_is_told_keeps_nobody_from_writing_and_is_done_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedDisk(1)
    store = esker.open("/store", files=disk, background=False)
    topic = store.create("t", segment_records=10, cap_records=20)
    topic.append_many(TEN)
    disk.fail(Fault("EIO", calls=frozenset({"write"}), inside="state", forever=True))
    fill(store, "t", 4)
    assert "retention of" in caplog.text
    assert topic.earliest() == 0
    assert len(topic) == 50
    disk.heal()
    store.tick()
    assert topic.earliest() == 30
    store.close()


# ---- refusing --------------------------------------------------------------------------------


def test_a_full_topic_refuses_before_an_offset_is_given(still: esker.Store) -> None:
    topic = still.create("t", cap_records=12, discard="reject", segment_records=5)
    for n in range(10):
        assert topic.append(b"%d" % n) == n
    with pytest.raises(esker.TopicFull, match="holds 10 and has cap_records=12") as told:
        topic.append_many([b"x"] * 3)
    assert told.value.code == "topic_full"
    assert topic.append(b"10") == 10
    assert topic.append(b"11", wait=True) == 11
    for append in (topic.append, topic.append_nowait):
        with pytest.raises(esker.TopicFull):
            append(b"no")
    with pytest.raises(esker.TopicFull):
        topic.append(b"no", wait=True)
    still.tick()
    assert [record.value for record in topic.read()] == [b"%d" % n for n in range(12)]
    topic.delete(7)
    assert topic.append_many([b"x"] * 7).first == 12  # type: ignore[union-attr]
    with pytest.raises(esker.TopicFull):
        topic.append(b"no")
    assert gaps(topic) == []


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": "16KiB"}])
def test_who_appends_more_than_fits_at_all_is_not_told_to_wait(
    still: esker.Store, cap: dict[str, Any]
) -> None:
    topic = still.create("t", discard="reject", **cap)
    with pytest.raises(esker.TopicFull, match="more than fits at all: append it in parts"):
        topic.append_many([b"x" * 10_000] * 3)
    assert len(topic.append_many([b"x" * 6_000] * 2)) == 2
    with pytest.raises(esker.TopicFull, match=r"Delete what is not needed"):
        topic.append_many([b"x" * 6_000] * 2)


def test_what_is_buffered_counts(still: esker.Store) -> None:
    topic = still.create("t", cap_records=5, discard="reject")
    for n in range(5):
        assert topic.append(b"%d" % n) == n
    with pytest.raises(esker.TopicFull):
        topic.append(b"no")
    assert topic.end() == 0, "nothing was written for it"


def test_a_cap_by_bytes_refuses_too(still: esker.Store) -> None:
    topic = still.create("t", cap_bytes="16KiB", discard="reject")

    def some() -> Iterator[int]:
        while topic.append(b"x" * 100) < 1000:
            yield 1

    taken: list[int] = []
    with pytest.raises(esker.TopicFull, match="cap_bytes=16384"):
        taken.extend(some())
    accepted = topic.append(b"")
    assert 120 < accepted < 164
    topic.flush()
    assert topic.counters()["segments_bytes"] <= 16384
    assert len(topic) == accepted + 1


def test_a_refused_record_in_a_round_is_refused_alone(still: esker.Store) -> None:
    topic = still.create("t", durability="fsync", cap_records=4, discard="reject")
    (shard,) = topic._shards
    tickets = [Ticket(shard, [b"x"] * count, {}) for count in (1, 4, 3)]
    still._context.committer.run_round(tickets)
    assert [type(ticket.error) for ticket in tickets] == [type(None), esker.TopicFull, type(None)]
    assert [tickets[0].first, tickets[2].first, topic.durable()] == [0, 1, 4]


def test_threads_are_refused_one_by_one(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="fsync", cap_records=40, discard="reject")
        refused: list[int] = []
        threads = Threads()

        def produce(who: int) -> None:
            for n in range(20):
                try:
                    topic.append(b"%d/%d" % (who, n), wait=True)
                except esker.TopicFull:
                    refused.append(who)

        for who in range(4):
            threads.start(produce, who)
        threads.join()
        assert len(topic) == 40
        assert len(refused) == 40


def test_a_batch_over_several_shards_is_refused_as_a_whole(still: esker.Store) -> None:
    topic = still.create("t", shards=2, cap_records=5, discard="reject")
    keys = [
        next(k for k in (b"%d" % n for n in range(99)) if topic.shard_of(k) == s) for s in (0, 1)
    ]
    with pytest.raises(esker.TopicFull, match="shard 1"):
        topic.append_many([esker.Record(b"x", key=keys[s]) for s in (0, 1, 1, 1, 1, 1, 1)])
    assert (topic.end(0), topic.end(1)) == (0, 0)


def test_a_batch_made_elsewhere_is_refused_before_it_is_committed(still: esker.Store) -> None:
    topic = still.create("t", cap_records=12, discard="reject")
    topic.append_many(TEN)
    with still.stage("t") as staged:
        staged.append_many(TEN)
    with pytest.raises(esker.TopicFull):
        still.attach("w", 1, staged.tickets)
    assert still.attached("w") is None
    topic.delete("latest")
    assert still.attach("w", 1, staged.tickets)
    assert not still.attach("w", 1, staged.tickets), "done once, and not refused the second time"
    assert len(topic) == 10


def test_what_a_batch_brought_is_evicted_like_the_rest(still: esker.Store) -> None:
    topic = still.create("t", cap_records=15)
    for number in range(4):
        with still.stage("t") as staged:
            staged.append_many(TEN)
        still.attach("w", number, staged.tickets)
    still.tick()
    assert (topic.earliest(), topic.end()) == (20, 40)


# ---- deaths ----------------------------------------------------------------------------------


def one_life(disk: SimulatedDisk, seen: list[int]) -> None:
    """Writes, evicts and deletes; notes every beginning that a reader was shown."""
    clock = ManualClock()
    store = esker.open("/store", files=disk, clock=clock, background=False)
    if "t" not in store:
        store.create("t", segment_records=4, cap_records=8, durability="fsync")
    topic = store["t"]
    try:
        for n in range(5):
            topic.append_many([b"x"] * 4, wait=True)
            store.tick()
            seen.append(topic.earliest())
            if n == 3:
                topic.delete(topic.end() - 5)
                seen.append(topic.earliest())
    except Crash:
        store._context.forked = True  # it is dead, and closes without touching the disk
        raise
    finally:
        store.close()


def test_a_death_anywhere_leaves_floors_that_never_fall_and_losses_that_are_exact() -> None:
    looks = 0
    for fate in (None, *CORNERS, Fate(7)):
        at = 0
        while True:
            at += 1
            disk, seen = SimulatedDisk(at), [0]
            disk.stop_at(at, "after")
            try:
                one_life(disk, seen)
                break
            except Crash:
                pass
            after = disk.kill() if fate is None else disk.crash(fate)
            store = esker.open("/store", files=after, clock=ManualClock(), background=False)
            if "t" in store:
                topic = store["t"]
                earliest, end = topic.earliest(), topic.end()
                assert earliest >= seen[-1], f"call {at}, {fate}: the floor fell"
                lost = {n for first, last, _ in gaps(topic) for n in range(first, last + 1)}
                silent = set(range(earliest)) - lost
                assert silent == ({8, 9, 10} if earliest > 8 else set()), "those it deleted"
                offsets = [record.offset for record in topic.read(earliest)]
                assert offsets == list(range(earliest, end))
                looks += 1
            store._context.forked = True
            store.close()
    assert looks > 300


def test_eviction_and_readers_at_once(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", mapped_bytes=0) as store:
        topic = store.create("t", segment_records=50, cap_records=200)
        threads, stop = Threads(), threading.Event()

        def read() -> None:
            at = 0
            while not stop.wait(0.0005):  # else whoever has read all takes the time of the others
                item: Any
                for item in topic.batches(at, gaps="yield"):
                    assert item.first == at
                    at = item.last + 1

        for _ in range(2):
            threads.start(read)
        for n in range(200):
            topic.append_many([b"%d" % n] * 50)
            if n % 5 == 0:
                store.retain()
        stop.set()
        threads.join()
        assert topic.earliest() >= 200 * 50 - 200 - 50 * 9


def test_a_shard_whose_handing_back_was_interrupted_can_be_taken_again(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ran out when its lock was to be released; the shard stayed locked."""
    still.create("t", segment_records=10, ttl="10s")
    fill(still, "t", 3)
    path = still.path
    still.close()
    clock.forward(60)
    with esker.open(path, clock=clock, background=False) as store:
        shard = store["t"]._shards[0] if store["t"]._existing() else None
        assert shard is not None
        real = shard._release_writer_lock
        calls = []

        def interrupted() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise MemoryError
            real()

        monkeypatch.setattr(shard, "_release_writer_lock", interrupted)
        with pytest.raises(MemoryError):
            store.retain()
        store["t"].append(b"goes on", wait=True)
        assert [record.value for record in store["t"].read("earliest")] == [b"goes on"]


class Racing:
    """A shard of which the older half is evicted in the moment after somebody looks at it."""

    def __init__(self, store: esker.Store, looks: int) -> None:
        self._store, self._shard, self._looks = store, store["t"]._view(0), looks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._shard, name)
        self._looks -= name == "segments"
        if name == "segments" and not self._looks:
            self._store.alter("t", cap_records=5)
            self._store.retain()
            assert self._shard.earliest > 0
        return found


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize(
    "look",
    [
        lambda view: reader.count_records(view, 0, 20) == 5,
        lambda view: reader.find_back(view, 20) == 15,
        lambda view: reader.find_time(view, 3) == 15,
        lambda view: (reader.read_one(view, 2) is None) == (view._looks <= 0),
        lambda view: (
            [(gap.first, gap.last) for gap in reader.read_batches(view, 0, 3, gaps="yield")]
            == [(0, 2)]
        ),
    ],
    ids=["count", "back", "time", "one", "read"],
)
def test_what_is_evicted_while_it_is_looked_at_is_no_error(
    tmp_path: Path, look: Callable[[Any], bool], looks: int
) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=5)
        for number in range(20):
            topic.append(b"%d" % number, timestamp=number, wait=True)
        store.tick()
    with esker.open(tmp_path / "data", background=False, mapped_bytes=0) as store:
        store["t"].append(b"20", wait=True)
        assert look(Racing(store, looks))
