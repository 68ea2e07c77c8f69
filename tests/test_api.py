"""The store and its topics, counters and exceptions. Appending and reading have their own files."""

from __future__ import annotations

import errno
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import esker
from esker import errors
from esker.options import BUFFER_RECORDS, SMALL_RECORD_BYTES
from tests.helpers import HandClock, Refusing, snapshot

EVERY_KIND = True  # of store: see tests/conftest.py

START = 1_800_000_000_000_000  # where a HandClock begins


# ---- opening and closing ---------------------------------------------------------------------


def test_what_was_appended_is_there_after_closing_and_opening(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["orders"].append(b"one")
        store["orders"].append("two")
    with esker.open(tmp_path / "data") as store:
        assert [record.value for record in store["orders"].read()] == [b"one", b"two"]
        assert store.recovery.clean


def test_a_store_is_opened_by_path_object_and_by_text(tmp_path: Path) -> None:
    for path in (tmp_path / "data", str(tmp_path / "data")):
        with esker.open(path) as store:
            store["t"].append(b"x")
            assert store.path == str(tmp_path / "data")
    with esker.open(tmp_path / "data") as store:
        assert len(store["t"]) == 2


def test_missing_directories_are_made(tmp_path: Path) -> None:
    with esker.open(tmp_path / "a" / "b" / "data") as store:
        store["t"].append(b"x")
    assert (tmp_path / "a" / "b" / "data" / "esker.store").is_file()


def test_a_store_in_memory_does_everything_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with esker.open(":memory:") as store:
        topic = store.create("t", segment_bytes="4KiB", durability="fsync")
        for n in range(300):
            topic.append(b"%d" % n * 10, tag=f"t{n}", wait=n % 50 == 0)
        topic.sync()
        assert [record.value for record in topic.read()] == [b"%d" % n * 10 for n in range(300)]
        assert topic[-1].tag == "t299"
    assert not list(tmp_path.iterdir())


def test_each_store_in_memory_is_its_own() -> None:
    with esker.open(":memory:") as one, esker.open(":memory:") as other:
        one["t"].append(b"x")
        assert list(one) == ["t"]
        assert list(other) == []


def test_a_reader_opens_beside_a_writer_and_sees_what_it_writes(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as writer, esker.open(tmp_path / "data", mode="r") as reader:
        writer["t"].append(b"one")
        writer["t"].flush()
        assert [record.value for record in reader["t"].read()] == [b"one"]
        writer["t"].append_many([b"two", b"three"])
        assert [record.value for record in reader["t"].read(1)] == [b"two", b"three"]
        assert reader["t"].end() == 3


def test_a_reader_sees_topics_made_after_it_was_opened(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as writer, esker.open(tmp_path / "data", mode="r") as reader:
        assert list(reader) == []
        writer["late"].append(b"x", wait=True)
        assert list(reader) == ["late"]
        assert [record.value for record in reader["late"].read()] == [b"x"]


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"x"] * 100)
    before = snapshot(tmp_path)
    with esker.open(tmp_path / "data", mode="r") as reader:
        assert len(list(reader["t"].read())) == 100
        assert reader["t"].counters()["total_records"] == 100
        for change in (
            lambda: reader["t"].append(b"x"),
            lambda: reader["t"].append_many([b"x"]),
            lambda: reader["t"].append_arrow(reader["t"][:]),
            lambda: reader.create("new"),
            lambda: reader["t"].sync(),
            lambda: reader.sync(),
        ):
            with pytest.raises(esker.ReadOnlyStore, match='mode="rw"'):
                change()
    assert snapshot(tmp_path) == before


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    store = esker.open(tmp_path / "data")
    store["t"].append(b"x")
    store.close()
    store.close()


def test_a_store_that_nobody_closed_is_closed_at_exit(tmp_path: Path) -> None:
    code = "import esker, sys; esker.open(sys.argv[1])['t'].append(b'kept')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=True, timeout=60)
    with esker.open(tmp_path / "data") as store:
        assert [record.value for record in store["t"].read()] == [b"kept"]
        assert store.recovery.clean


@pytest.mark.directory("a name is told without a call")
def test_a_store_says_what_it_is(store: esker.Store) -> None:
    assert repr(store) == f"<esker store {store.path} (rw), 0 topics>"
    assert repr(store["t"]) == "<esker topic 't', not yet created>"
    store["t"].append(b"x")
    assert repr(store["t"]) == "<esker topic 't', 1 shard, disk>"


# ---- topics ----------------------------------------------------------------------------------


def test_a_topic_is_made_by_its_first_append_and_not_before(store: esker.Store) -> None:
    topic = store["orders"]
    assert "orders" not in store
    assert list(store) == []
    topic.append(b"x")
    assert "orders" in store
    assert list(store) == ["orders"]
    assert store["orders"] is topic


def test_reading_a_topic_that_is_not_there_says_what_there_is(store: esker.Store) -> None:
    store["orders"].append(b"x")
    for look in (
        lambda: store["order"].read(),
        lambda: store["order"].batches(),
        lambda: store["order"].follow(),
        lambda: store["order"][0],
        lambda: store["order"][:],
        lambda: len(store["order"]),
        lambda: store["order"].end(),
        lambda: store["order"].options,
    ):
        with pytest.raises(esker.TopicNotFound, match="did you mean 'orders'"):
            look()
    assert list(store) == ["orders"]


def test_names_come_sorted(store: esker.Store) -> None:
    for name in ("b", "a", "Z", "9", "a.b:c-d_e"):
        store.create(name)
    assert list(store) == ["9", "Z", "a", "a.b:c-d_e", "b"]
    assert len(store) == 5


def test_options_of_a_topic_are_kept(tmp_path: Path) -> None:
    given = {
        "shards": 3, "durability": "fsync", "compression": "zstd", "compress_min_bytes": 100,
        "compress_at": "commit", "compression_level": 7, "segment_bytes": "1MiB",
        "segment_records": 1000, "segment_age": "7d", "max_record_bytes": "64KiB",
    }  # fmt: skip
    with esker.open(tmp_path / "data") as store:
        made = store.create("t", **given).options
    with esker.open(tmp_path / "data") as store:
        kept = store["t"].options
    assert kept == made
    assert (kept.shards, kept.durability, kept.compression) == (3, "fsync", "zstd")
    assert (kept.segment_bytes, kept.max_record_bytes) == (1 << 20, 64 << 10)
    assert kept.segment_age_us == 7 * 86_400_000_000
    assert (kept.compress_at, kept.compression_level) == ("commit", 7)


def test_creating_a_topic_again_is_refused_unless_it_is_the_same(store: esker.Store) -> None:
    made = store.create("t", shards=2)
    with pytest.raises(esker.TopicExists, match="exists"):
        store.create("t", shards=2)
    with pytest.raises(esker.TopicExists, match="shards=2"):
        store.create("t", shards=3, exist_ok=True)
    assert store.create("t", shards=2, exist_ok=True) is made
    assert store.create("t", exist_ok=True) is made


def test_a_topic_is_deleted_if_it_is_empty_and_else_left_alone(store: esker.Store) -> None:
    for name, fill in {"full": "now", "buffered": "later", "emptied": "gone"}.items():
        topic = store.create(name, shards=2)
        if fill != "later":
            topic.append_many([esker.Record(b"x", key=b"%d" % n) for n in range(20)], wait=True)
        else:
            topic.append(b"x")
        if fill == "gone":
            topic.delete("latest")
    for name in ("full", "buffered"):
        with pytest.raises(esker.TopicNotEmpty, match="nothing was deleted"):
            store.delete(name, if_empty=True)
        assert name in store
        store.sync()
        assert list(store[name].read())
    store.delete("emptied", if_empty=True)
    store.create("bare")
    store.delete("bare", if_empty=True)
    store.delete("bare", if_empty=True, missing_ok=True)
    assert sorted(store) == ["buffered", "full"]
    store["full"].append(b"more", wait=True)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_every_class_appends_reads_and_goes_on_after_opening_again(
    tmp_path: Path, durability: str
) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability=durability)
        assert topic.append(b"a", wait=True) == 0
        assert topic.append(b"b") == 1
        assert topic.append_many([b"c", b"d"], wait=True).first == 2
        topic.sync()
        assert [record.value for record in topic.read()] == [b"a", b"b", b"c", b"d"]
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        kept = [] if durability == "ephemeral" else [b"a", b"b", b"c", b"d"]
        assert [record.value for record in topic.read()] == kept
        assert topic.append(b"e", wait=True) == 4, "an offset was issued twice"
        assert topic[4].value == b"e"


def test_an_ephemeral_topic_never_touches_the_disk(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", durability="ephemeral")
        topic.append_many([b"a secret"] * 100, wait=True)
        store.sync()
    contents = b"".join(c for c in snapshot(tmp_path).values() if isinstance(c, bytes))
    assert b"a secret" not in contents


# ---- counters and numbers --------------------------------------------------------------------


def test_counters_count(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10)
    topic.append_many([b"x" * 100] * 10)
    topic.append_many([b"y"] * 5)
    topic.sync()
    still.tick()
    counters = topic.counters()
    assert counters["total_records"] == 15
    assert counters["total_batches"] == counters["total_writes"] == 2
    assert counters["last_batch_records"] == 5
    assert counters["last_offset"] == 14
    assert counters["next_visible"] == counters["durable"] == 15
    assert counters["segments_created"] == 2
    assert counters["segments_rolled"] == counters["seals"] == 1
    assert counters["segments_current"] == 2
    assert counters["active_segment"] == 2
    assert counters["syncs"] >= 1
    assert counters["failed_writes"] == 0


def test_counters_tell_of_compression(still: esker.Store) -> None:
    topic = still.create("t", compression="zstd", compress_at="commit", compress_min_bytes=100)
    topic.append_many([b"again and again " * 20] * 100)
    topic.append(b"short", wait=True)
    counters = topic.counters()
    assert counters["compressed_records"] == 100
    assert counters["compression_skipped"] == 1
    assert 0 < counters["compressed_bytes"] * 10 < counters["total_bytes"]
    assert counters["compression_ratio_x100"] > 1000


def test_counters_tell_of_times_and_places(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t")
    for _ in range(3):
        clock.forward(1)
        topic.append(b"x", wait=True)
    topic.sync()
    counters = topic.counters()
    (log,) = Path(still.path).rglob("*.log")
    assert counters["write_ns_count"] == counters["total_writes"] == 3
    assert counters["write_ns_min"] <= counters["write_ns_max"] <= counters["write_ns_sum"]
    assert counters["last_write_ns"] == (START + 3_000_000) * 1000
    assert counters["write_position"] == counters["file_bytes"] == log.stat().st_size
    assert counters["active_segment"] == counters["last_segment"] == 1
    assert len(list(topic.read())) == 3
    assert topic.counters()["records_read"] == 3


def test_counters_tell_of_failures(tmp_path: Path) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store["t"]
        topic.append(b"x", wait=True)
        files.refuse("write", errno.ENOSPC, ".log")
        with pytest.raises(esker.DiskFull):
            topic.append(b"y", wait=True)
        files.allow()
        counters = topic.counters()
        assert counters["failed_writes"] == counters["errors"] == 1
        assert counters["last_error_ns"] > 0
        assert counters["total_records"] == 1


def test_counters_go_on_after_opening_again(tmp_path: Path) -> None:
    for n in range(3):
        with esker.open(tmp_path / "data") as store:
            store["t"].append(b"x", wait=True)
            assert store["t"].counters()["total_records"] == n + 1


@pytest.mark.directory("of a handle, not of a server")
def test_statistics_are_numbers(store: esker.Store) -> None:
    store["t"].append(b"x", wait=True)
    store.sync()
    found = store.statistics()
    assert found["topics"] == 1
    assert found["syncs"] >= 1
    assert found["unflushed_bytes"] == 0
    assert all(isinstance(number, int) for number in found.values())


# ---- exceptions and types --------------------------------------------------------------------


def _exceptions() -> list[type[Exception]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    ]


@pytest.mark.parametrize("kind", _exceptions(), ids=lambda kind: kind.__name__)
def test_every_exception_descends_from_one_and_has_a_code_and_a_name(kind: Any) -> None:
    assert issubclass(kind, esker.EskerError)
    assert kind.code
    assert kind.code == kind.code.lower()
    assert getattr(esker, kind.__name__) is kind, "it is part of the public API"
    assert kind.__doc__


def test_no_two_exceptions_share_a_code() -> None:
    codes = [kind.code for kind in _exceptions()]  # type: ignore[attr-defined]
    assert len(set(codes)) == len(codes)


def test_familiar_exceptions_catch_their_kin() -> None:
    assert issubclass(esker.TopicNotFound, KeyError)
    assert issubclass(esker.OffsetOutOfRange, IndexError)
    assert issubclass(esker.InvalidRecord, TypeError)
    assert issubclass(esker.InvalidOption, ValueError)
    assert issubclass(esker.CommitTimeout, TimeoutError)
    assert issubclass(esker.StorageError, OSError)
    assert str(esker.TopicNotFound("no topic 'x'")) == "no topic 'x'"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(esker.__file__).parent / "py.typed").is_file()


def test_small_records_are_smaller_than_the_buffer() -> None:
    assert SMALL_RECORD_BYTES * BUFFER_RECORDS <= 16 << 20


def test_the_bytes_of_segments_are_right_as_they_come_and_go(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10)

    def check() -> None:
        still.tick()
        counters = topic.counters()
        sealed = sum(path.stat().st_size for path in Path(still.path).rglob("*.seg"))
        assert counters["segments_bytes"] == sealed + counters["file_bytes"]

    for size in (10, 200, 3000):
        topic.append_many([b"x" * size] * 10)
        check()
    topic.append_many([b"y"] * 10)
    check()
    topic.delete(20)
    check()
    topic.append_many([b"z"] * 10)
    check()
    with still.stage("t", 0) as stage:
        stage.append_many([b"w"] * 5)
    still.attach("writer", 0, stage.tickets)
    topic.append_many([b"v"])
    check()
