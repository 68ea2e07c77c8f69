"""Options of a topic that are changed while it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import background
from esker.testing import CORNERS, Crash, ManualClock, SimulatedDisk
from tests.helpers import child, wait_until

TEN = [b"%d" % n for n in range(10)]


def test_a_topic_goes_by_its_new_options_at_once_and_after_opening(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=10)
        for _ in range(5):
            topic.append_many(TEN)
        store.tick()
        assert len(topic) == 50
        assert store.alter("t", cap_records=20) is topic
        assert topic.options.cap_records == 20
        assert topic.options.segment_records == 10, "what is not named stays"
        store.tick()
        assert topic.earliest() == 30
        store.alter("t", segment_records=25, cap_records=0)
        for _ in range(6):
            topic.append_many(TEN)
        store.tick()
        assert topic.earliest() == 30
        assert [segment.base for segment in topic._shards[0].segments] == [30, 40, 70, 100]
    with esker.open(root) as store:
        assert store["t"].options.segment_records == 25
        assert store.recovery.clean
    assert esker.verify(root).ok


def test_a_buffer_that_was_opened_before_does_not_pass_a_new_cap(still: esker.Store) -> None:
    topic = still.create("t")
    for n in range(3):
        topic.append(b"%d" % n)  # this thread may append without a lock
    still.alter("t", cap_records=5, discard="reject")
    assert [topic.append(b"x"), topic.append(b"x")] == [3, 4]
    with pytest.raises(esker.TopicFull):
        topic.append(b"no")
    still.alter("t", max_record_bytes=4)
    with pytest.raises(esker.RecordTooLarge):
        topic.append(b"12345")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shards": 2}, "records of a key would go elsewhere"),
        ({"durability": "fsync"}, "what acknowledgements were worth"),
        ({"ttll": "1s"}, "did you mean 'ttl'"),
        ({"segment_bytes": "1KiB"}, "segment_bytes=1024: must lie in"),
        ({}, "say which options"),
    ],
)
def test_what_cannot_be_altered_is_told_and_changes_nothing(
    still: esker.Store, options: dict[str, Any], told: str
) -> None:
    before = still.create("t").options
    with pytest.raises(esker.InvalidOption, match=told):
        still.alter("t", **options)
    assert still["t"].options == before


def test_a_topic_that_is_not_there_is_told(still: esker.Store) -> None:
    still.create("orders")
    with pytest.raises(esker.TopicNotFound, match="did you mean 'orders'"):
        still.alter("order", ttl="1s")
    assert list(still) == ["orders"]


def test_who_only_reads_may_not(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("t")
    with (
        esker.open(tmp_path / "data", mode="r") as store,
        pytest.raises(esker.ReadOnlyStore),
    ):
        store.alter("t", ttl="1s")


WRITER = """
    import sys, esker
    from esker.engine import background
    background.RETAIN_LOOK = 0.05
    store = esker.open(sys.argv[1])
    topic = store.create("t", segment_records=10)
    for _ in range(5):
        topic.append_many([b"x"] * 10)
    print("written", flush=True)
    sys.stdin.readline()
    store.close()
"""


def test_a_writer_in_another_process_follows(tmp_path: Path) -> None:
    with child(WRITER, tmp_path / "data") as writer:
        assert writer.line() == "written"
        with esker.open(tmp_path / "data", background=False) as store:
            store.alter("t", cap_records=20)
            wait_until(lambda: store["t"].earliest() == 30, "the other's eviction")
        writer.say()
        writer.end()


def test_a_death_leaves_the_old_options_or_the_new_ones() -> None:
    seen = set()
    for fate in (None, *CORNERS):
        for at in range(1, 100):
            disk = SimulatedDisk(at)
            store = esker.open("/store", files=disk, clock=ManualClock(), background=False)
            store.create("t", durability="fsync").append(b"x", wait=True)
            disk.stop_at(at, "after")
            done = False
            try:
                store.alter("t", ttl="5s")
                done = True
                store.close()
                break
            except Crash:
                store._context.forked = True
                store.close()
            after = disk.kill() if fate is None else disk.crash(fate)
            with esker.open("/store", files=after, clock=ManualClock(), background=False) as again:
                found = again["t"].options.ttl_us
                assert found == 5_000_000 or not done, "it had returned"
                assert found in (0, 5_000_000)
                assert [record.value for record in again["t"].read()] == [b"x"]
                seen.add(found)
    assert seen == {0, 5_000_000}


def test_a_catalog_that_cannot_be_read_for_a_moment_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "RETAIN_LOOK", 0.01)
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_records=10, cap_records=20)

        def fails() -> None:
            raise esker.StorageError("no")

        monkeypatch.setattr(store._context, "follow_catalog", fails)
        for _ in range(3):
            topic.append_many(TEN)
        wait_until(lambda: "looking at the catalog" in caplog.text, "the warning")
        monkeypatch.undo()
        wait_until(lambda: topic.earliest() == 10, "the eviction")


def test_a_damaged_catalog_brings_no_old_cap_back(tmp_path: Path) -> None:
    """A cap was raised; whoever went by the catalog before would evict what is to be kept."""
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=10, cap_records=10, ttl="1h")
        store.create("full", cap_records=10, discard="reject")
        store.alter("t", cap_records=1000)
        for _ in range(5):
            topic.append_many(TEN)
            store.tick()
    newest = max(root.glob("catalog-*"))
    newest.write_bytes(b"rotten")
    with esker.open(root, background=False) as store:
        told = [finding for finding in store.recovery.findings if "store.alter('t'" in str(finding)]
        assert [finding.label for finding in told] == ["damaged_catalog"]
        store["t"].append_many(TEN)
        store.tick()
        assert len(store["t"]) == 60
        assert store["t"].options.ttl_us == store["t"].options.cap_records == 0
        assert store["full"].options.cap_records == 10, "that one takes nothing"
        store.alter("t", cap_records=20)
        store.tick()
        assert store["t"].earliest() == 40
    with esker.open(root, background=False) as store:
        assert store.recovery.clean
        assert store["t"].options.cap_records == 20
