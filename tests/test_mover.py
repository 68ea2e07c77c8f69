"""Segments beyond a topic's bounds are moved by themselves, and a cold store holds nobody up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.clock import SYSTEM_CLOCK
from esker.engine import mover, tiering
from esker.engine.mover import beyond
from esker.options import topic_options
from esker.testing import ManualClock
from tests.test_tiering import cold_files, filled, opened, segments, values

pytestmark = pytest.mark.damages  # to tests/fsck.py a stub is damage, as long as it knows none


def here(topic: esker.Topic) -> list[bool]:
    """Of each sealed segment, whether it is here."""
    return [segment.local_size == segment.size for segment in topic._shards[0].sealed]


def until(true: Callable[[], Any]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


class Slow:
    """A cold store that answers when it is let."""

    def __init__(self, store: esker.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        inner = store._context.maps.cold.store(store._context.cold)
        for name in ("put", "get", "list", "delete"):
            monkeypatch.setattr(inner, name, self._slow(getattr(inner, name)))

    def _slow(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            self.asked.set()
            self.let.wait(8)  # not for ever, should somebody wait for it who must not
            return real(*arguments)

        return slow


@pytest.mark.parametrize(
    ("sizes", "bounds", "wanted"),
    [
        ([5, 5, 5, 5], {}, 0),
        ([5, 5, 5, 5], {"hot_segments": 4}, 0),
        ([5, 5, 5, 5], {"hot_segments": 1}, 3),
        ([5, 5, 5, 5], {"hot_bytes": 10}, 2),
        ([5, 5, 5, 5], {"hot_bytes": 14}, 2),
        ([5, 5, 5, 5], {"hot_bytes": 1}, 4),
        ([5, 5, 5, 5], {"hot_bytes": 10, "hot_segments": 3}, 2),
        ([5, 5, 5, 5], {"hot_bytes": 15, "hot_segments": 2}, 2),
        ([1, 99, 1, 1], {"hot_bytes": 10}, 2),
        ([], {"hot_segments": 1}, 0),
    ],
)
def test_what_is_beyond_the_stricter_bound_need_not_be_here(
    sizes: list[int], bounds: dict[str, int], wanted: int
) -> None:
    assert beyond(sizes, topic_options(**bounds)) == wanted


def test_segments_beyond_a_bound_are_moved(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store, hot_segments=1)
        assert here(topic) == [False, False, False, True]
        found = store.maintenance().tiers
        assert found is not None
        assert (found.moved_segments, found.waiting, found.topics) == (3, 0, 1)
        assert found.moved_bytes == sum(path.stat().st_size for path in cold_files(tmp_path))
        assert "3 of" in str(store.maintenance())
        topic.append_many([b"%d" % n + b" " * 200 for n in range(50, 60)])
        topic.append_many([b"%d" % n for n in range(60, 65)])
        store.tick()
        assert here(topic) == [False] * 5 + [True]
        store.alter("t", hot_segments=0, hot_bytes=1)
        store.tick()
        assert here(topic) == [False] * 6
        store.alter("t", hot_bytes="1GB")
        store.tick()
        assert here(topic) == [False] * 6, "what is moved stays until somebody brings it back"
        assert values(topic) == list(range(65))


def test_what_was_brought_back_by_hand_stays_while_the_store_is_open(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store, hot_segments=1)
        assert topic.tier("hot", before=20).segments == 2
        store.tick()
        assert here(topic) == [True, True, False, True]
        found = store.maintenance().tiers
        assert found is not None
        assert (found.brought_segments, found.waiting) == (2, 0)
    with opened(tmp_path) as store:
        topic = store["t"]
        topic.append(b"50", wait=True)
        store.tick()
        assert here(topic) == [False, False, False, False, True]


def test_bounds_without_a_cold_store_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "esker"), opened(tmp_path, cold="") as store:
        assert store.maintenance().tiers is None
        topic = filled(store, hot_segments=1)
        filled(store, name="u", hot_bytes=1)
        store.alter("t", hot_segments=2)
        assert here(topic) == [True] * 4
        found = store.maintenance().tiers
        assert found is not None
        assert (found.cold, found.topics, found.moved_segments) == ("", 2, 0)
        assert "no cold store, so 2 topics" in str(found)
    assert [m for m in caplog.messages if "hot_segments" in m and "'t'" in m] == caplog.messages
    caplog.clear()
    with opened(tmp_path, cold="") as store, opened(tmp_path, "r", cold=""):
        assert len(caplog.messages) == 1


def test_orphans_go_when_somebody_evicts_deletes_or_opens(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store, hot_segments=1)
        other = filled(store, name="u", hot_segments=1)
        assert len(cold_files(tmp_path)) == 6
        topic.delete(20)
        store.tick()
        assert len(cold_files(tmp_path)) == 4
        left = cold_files(tmp_path)[0]
        orphan = left.with_name(left.name[:-16] + "0" * 16)
        orphan.write_bytes(b"left by somebody who died")
        store.tick()
        assert orphan.exists(), "nobody has a reason to look"
        number = other._existing().id
        store.delete("u")
        store.tick()
        assert not [path for path in cold_files(tmp_path) if f"/{number:08d}/" in str(path)]
        assert len(cold_files(tmp_path)) == 2
        swept = store.maintenance().tiers
        assert swept is not None
        assert swept.swept == 5
    orphan.parent.mkdir(exist_ok=True, parents=True)
    orphan = min(cold_files(tmp_path)).with_name(orphan.name)
    orphan.write_bytes(b"left by somebody who died")
    with opened(tmp_path) as store:
        store["t"].append(b"50", wait=True)
        store.tick()
        assert not orphan.exists()
        assert values(store["t"]) == list(range(20, 51))


def test_of_other_stores_and_topics_that_nobody_knows_nothing_is_swept(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store, hot_segments=1)
        sample = cold_files(tmp_path)[0]
        strange = [
            tmp_path / "cold" / ("0" * 32) / "00000009" / "0000" / sample.name,
            sample.parent.parent.parent / "00000099" / "0000" / sample.name,  # not yet made
            sample.parent.parent.parent / "notes" / "x",
        ]
        for path in strange:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"somebody's")
        store.create("gone")
        store.delete("gone")
        store.tick()
        assert all(path.exists() for path in strange)


def test_a_topic_whose_directory_is_there_is_not_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store, hot_segments=1)
        number = topic._existing().id
        assert not store._is_gone(number)
        store.delete("t")
        assert store._is_gone(number)
        assert not store._is_gone(number + 1)
        (tmp_path / "store" / "topics" / f"{number:08d}").mkdir()
        assert not store._is_gone(number), "damaged catalogs delete nothing"
        (tmp_path / "store" / "topics" / f"{number:08d}").rmdir()


def test_a_failure_is_told_and_tried_again_later_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        context = store._context
        hidden = (tmp_path / "cold").rename(tmp_path / "hidden")
        with caplog.at_level(logging.WARNING, "esker"):
            topic = filled(store, hot_segments=1)
        moving = context.background.mover
        waits = []
        for _ in range(8):
            moving._not_before = 0.0
            waits.append(moving.step())
        assert waits == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
        found = store.maintenance()
        assert found.tiers is not None
        assert (found.tiers.failures, found.tiers.waiting) == (9, 3)
        assert "failed 9 times, next try in 60 s" in str(found)
        assert found.last_error is not None
        assert "moving topic 't' shard 0" in str(found.last_error)
        assert len([m for m in caplog.messages if "cold store" in m]) == 1, "told once"
        topic.append(b"50", wait=True)
        hidden.rename(tmp_path / "cold")
        store.tick()
        found = store.maintenance()
        assert found.tiers is not None
        assert (found.tiers.failures, found.tiers.reason, found.tiers.waiting) == (0, "", 0)
        assert here(topic) == [False, False, False, False, True]


def test_a_damaged_segment_stays_and_the_others_are_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        path = min((tmp_path / "store").rglob("*.seg"))
        data = bytearray(path.read_bytes())
        data[900] ^= 1
        path.write_bytes(data)
        with caplog.at_level(logging.WARNING, "esker"):
            store.alter("t", hot_segments=1)
            store.tick()
            store.tick()
        assert here(topic) == [True, False, False, True]
        assert len([m for m in caplog.messages if "not moved" in m]) == 1


def test_the_thread_moves_and_ends_with_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path, background=True, clock=SYSTEM_CLOCK)
    with store:
        topic = filled(store, hot_segments=1)
        until(lambda: here(topic) == [False, False, False, True])
        assert "esker-tier" in {thread.name for thread in threading.enumerate()}
    assert "esker-tier" not in {thread.name for thread in threading.enumerate()}


def test_without_a_cold_store_there_is_no_thread_for_it(tmp_path: Path) -> None:
    with opened(tmp_path, background=True, cold="") as store:
        store["t"].append(b"x", wait=True)
        assert "esker-tier" not in {thread.name for thread in threading.enumerate()}


def test_while_a_cold_store_is_slow_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, tails, sealing, eviction, deletion, a pause, and closing."""
    store = opened(tmp_path, background=True, clock=SYSTEM_CLOCK)
    slow = Slow(store, monkeypatch)
    topic = filled(store, hot_segments=1)
    assert slow.asked.wait(30)
    tail = topic.follow("latest")
    topic.append(b"50", wait=True)
    assert next(tail).value == b"50"
    topic.append_many([b"x"] * 10)
    topic.append_many([b"x"] * 10)
    topic.append(b"x")
    topic.sync()
    until(lambda: len(topic._shards[0].sealed) >= 6)
    assert topic.delete(tag="t3") == 1
    assert topic.reclaim() > 0
    store.alter("t", cap_records=30)
    store.retain()
    assert topic.earliest() > 0
    store.pause_maintenance()
    store.resume_maintenance()
    assert store.maintenance().doing
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 5
    slow.let.set()
    until(lambda: "esker-tier" not in {thread.name for thread in threading.enumerate()})
    assert not list((tmp_path / "store").rglob("*.tmp"))
    with opened(tmp_path) as store:
        assert store.recovery.clean
        assert (
            [segment.place for segment in store["t"]._view(0).segments[:-1]]
            == [None]
            * len(  # type: ignore[attr-defined]
                store["t"]._view(0).segments[:-1]
            )
        )
        store["t"].append(b"x", wait=True)
        store.tick()
        stubs = [each for each in store["t"]._shards[0].sealed if each.place is not None]
        assert len(cold_files(tmp_path)) == len(stubs), "the orphan is gone"


def test_a_move_that_a_pause_overtakes_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        real = tiering.fetch

        def paused(*arguments: Any) -> Any:
            store.pause_maintenance()
            return real(*arguments)

        monkeypatch.setattr(tiering, "fetch", paused)
        store.alter("t", hot_segments=1)
        before = segments(tmp_path)
        store.tick()
        assert segments(tmp_path) == before
        assert len(cold_files(tmp_path)) == 1
        monkeypatch.undo()
        store.tick()
        assert segments(tmp_path) == before
        topic.tier("cold", before=10)
        assert here(topic) == [False, True, True, True], "by hand it is done all the same"
        store.resume_maintenance()
        store.tick()
        assert here(topic) == [False, False, False, True]
        assert len(cold_files(tmp_path)) == 3, "and the orphan is gone"


def test_two_who_move_the_same_segment_move_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, background=True, clock=SYSTEM_CLOCK)
    with store:
        slow = Slow(store, monkeypatch)
        topic = filled(store, hot_segments=3)
        assert slow.asked.wait(30)
        got: list[esker.Tiered] = []
        other = threading.Thread(target=lambda: got.append(topic.tier("cold", before=10)))
        other.start()
        slow.let.set()
        other.join()
        until(lambda: here(topic) == [False, True, True, True])
        assert len(cold_files(tmp_path)) == 1
        assert values(topic) == list(range(50))


def test_the_look_of_the_mover_is_short_where_there_is_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, cold="") as store:
        assert store._context.background.mover.step() == mover.LOOK_SECONDS


# ---- reading ahead -----------------------------------------------------------------------------


def test_who_reads_on_finds_the_next_segment_fetched(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    with opened(tmp_path, "r", background=True) as store:
        topic, cold = store["t"], store._context.maps.cold
        first = topic.batches(0, max_records=2)
        next(first)
        assert cold.fetched == 1, "who wants no more gets no more"
        for _ in range(5):  # the first of the second segment is the last of them
            next(first)
        until(lambda: cold.fetched == 3)
        assert sum(len(batch) for batch in first) == 50 - 12
        assert cold.fetched == 4
        assert store.statistics()["cold_fetches"] == 4
        assert store.statistics()["cold_bytes"] == cold.bytes > 0
        assert store.statistics()["cold_hits"] > 0
    until(lambda: "esker-ahead" not in {thread.name for thread in threading.enumerate()})


def test_nothing_is_fetched_ahead_where_both_do_not_fit_or_without_threads(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        store.tier("t", "cold")
        assert values(topic) == list(range(50))
        assert "esker-ahead" not in {thread.name for thread in threading.enumerate()}
    with opened(tmp_path, "r", background=True, cold_cache_bytes=5000) as store:
        assert values(store["t"]) == list(range(50))
        assert "esker-ahead" not in {thread.name for thread in threading.enumerate()}


def test_what_fails_ahead_is_told_to_who_comes_to_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    second = cold_files(tmp_path)[1]
    hidden = second.rename(tmp_path / "hidden")
    with opened(tmp_path, "r", background=True) as store:
        read = store["t"].read(0)
        assert [next(read).offset for _ in range(10)] == list(range(10))
        with pytest.raises(esker.ColdUnavailable):
            next(read)
        hidden.rename(second)
        assert len(list(store["t"].read(0))) == 50


def test_closing_does_not_wait_for_what_is_fetched_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    store = opened(tmp_path, "r", background=True)
    topic, cold = store["t"], store._context.maps.cold
    batches = topic.batches(0, max_records=2)
    next(batches)
    cold.get(topic._view(0).segments[1].place)  # type: ignore[attr-defined]
    slow = Slow(store, monkeypatch)
    for _ in range(5):
        next(batches)
    assert slow.asked.wait(30)
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < 5
    slow.let.set()
    until(lambda: "esker-ahead" not in {thread.name for thread in threading.enumerate()})
    assert cold.fetched == 3
