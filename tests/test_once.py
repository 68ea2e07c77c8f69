"""Batches that happen once: a retry gets the first offsets, whatever happened in between."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine import known, once
from esker.engine.intake import fnv1a
from esker.errors import KeyReused, ProducersFull, SequenceExpired, SequenceGap
from esker.format.checksum import checksum
from esker.format.once import COPIED, HEADER, Keyed, Numbered, Place, Saved
from esker.options import HEADERS_BYTES_MAX, HEADERS_MAX
from esker.testing import LOST, ManualClock, SimulatedDisk
from tests.helpers import HandClock, Refusing, Threads, only

ROOT = "/store"
SCHEMA_OF_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LONG = "the last record of a segment " * 40


def values(topic: esker.Topic, **where: Any) -> list[bytes]:
    return [bytes(record.value) for record in topic.read("earliest", **where)]


def opened(disk: Any, clock: Any = None, **options: Any) -> esker.Store:
    return esker.open(
        ROOT, files=disk, clock=clock or ManualClock(), background=False, **options
    )  # fmt: skip


def die(disk: SimulatedDisk, store: esker.Store) -> SimulatedDisk:
    """The process is gone, and nothing is closed."""
    store._context.forked = True
    store.close()
    return disk.kill()


# ---- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
@pytest.mark.parametrize("wait", [False, True, 5.0])
def test_a_retry_returns_the_first_offset_and_appends_nothing(
    store: esker.Store, durability: str, wait: Any
) -> None:
    topic = store.create("t", durability=durability)
    topic.append(b"before")
    assert topic.append(b"a", idempotency_key="k", wait=wait) == 1
    assert topic.append(b"between") == 2
    assert topic.append(b"a", idempotency_key=b"k", wait=wait) == 1
    assert topic.append(b"b", idempotency_key="other", wait=wait) == 3
    topic.sync()
    assert values(topic) == [b"before", b"a", b"between", b"b"]


@pytest.mark.parametrize("count", [1, 2, 32, 33, 500])
@pytest.mark.parametrize("records", ["plain", "with columns"])
def test_a_batch_is_there_once_as_it_was_given(
    store: esker.Store, count: int, records: str
) -> None:
    topic = store["t"]
    given: list[Any] = [b"%d" % n for n in range(count)]
    if records == "with columns":
        given = [
            esker.Record(b"%d" % n, key=b"%d" % n, tag="t", node="n", timestamp=n,
                         headers={"h": b"%d" % n} if n % 2 == 0 else None)
            for n in range(count)
        ]  # fmt: skip
    first = topic.append_many(given, idempotency_key=b"k")
    assert first == esker.Span(0, 0, count)
    assert topic.append_many(given, idempotency_key=b"k") == first
    found = list(topic.read(0))
    assert [record.value for record in found] == [b"%d" % n for n in range(count)]
    marked = [n for n, record in enumerate(found) if HEADER in (record.headers or {})]
    assert marked == [0], "only the first record carries the mark"
    if records == "with columns":
        assert [(r.key, r.tag, r.node, r.timestamp) for r in found] == [
            (b"%d" % n, "t", "n", n) for n in range(count)
        ]
        assert (found[0].headers or {})["h"] == b"0"


def test_a_batch_of_lines_is_one_batch_and_once(store: esker.Store) -> None:
    spans = []
    for _ in range(2):
        with store["t"].batch(idempotency_key="day 7") as batch:
            batch.append(b"a", key="x")
            batch.append(b"b")
        spans.append(batch.span)
    assert spans == [esker.Span(0, 0, 2)] * 2
    assert store["t"].append_many([], idempotency_key="day 8") == esker.Span(0, 2, 0)
    assert values(store["t"]) == [b"a", b"b"]


def test_the_idempotency_key_chooses_the_shard_where_no_key_does(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    for name in (b"a", b"b", b"c", b"d", b"e"):
        offset = topic.append(b"v", idempotency_key=name)
        assert isinstance(offset, esker.Offset)
        assert offset.shard == fnv1a(name) % 4
        assert topic.append(b"v", idempotency_key=name) == offset
    keyed = topic.append(b"v", key="user", idempotency_key="f")
    assert isinstance(keyed, esker.Offset)
    assert keyed.shard == topic.shard_of("user")
    assert len(topic) == 6


@pytest.mark.parametrize("count", [12, 200])
def test_a_batch_over_several_shards_is_completed_by_a_retry(
    store: esker.Store, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create("t", shards=3)
    records = [
        esker.Record(b"%d" % n, key=b"user %d" % (n % 5) if n % 3 else None) for n in range(count)
    ]
    real, calls = once._find_or_write, []

    def dies(*arguments: Any) -> Place:
        calls.append(arguments)
        if len(calls) == 2:
            raise esker.StorageError("the disk is gone")
        return real(*arguments)

    monkeypatch.setattr(once, "_find_or_write", dies)
    with pytest.raises(esker.StorageError):
        topic.append_many(records, idempotency_key="k")
    assert 0 < len(topic) < count
    first = topic.append_many(records, idempotency_key="k")
    assert topic.append_many(records, idempotency_key="k") == first
    assert sorted(map(int, values(topic))) == list(range(count))


def test_a_key_stands_for_batches_of_one_size(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many([b"a", b"b"], idempotency_key="k")
    with pytest.raises(
        KeyReused, match=r"2 records, at offsets 0\.\.1, and this one has 1"
    ) as told:
        topic.append(b"c", idempotency_key="k")
    assert told.value.code == "key_reused"
    assert values(topic) == [b"a", b"b"]


@pytest.mark.parametrize("bad", [b"", "", b"x" * 1025])
def test_a_key_that_cannot_be_one_is_refused(store: esker.Store, bad: Any) -> None:
    for call in (
        lambda: store["t"].append(b"v", idempotency_key=bad),
        lambda: store["t"].append_many([b"v"], idempotency_key=bad),
        lambda: store["t"].batch(idempotency_key=bad),
    ):
        with pytest.raises(esker.InvalidOption):
            call()
    with pytest.raises(esker.InvalidRecord):
        store["t"].append(b"v", idempotency_key=7)  # type: ignore[arg-type]
    assert "t" not in store


@pytest.mark.parametrize("off", [{"dedupe_records": 0}, {"dedupe_window": 0}])
def test_a_topic_that_knows_no_keys_takes_none(store: esker.Store, off: dict[str, int]) -> None:
    topic = store.create("t", **off)
    with pytest.raises(esker.InvalidOption, match="it knows no keys"):
        topic.append(b"v", idempotency_key="k")
    with pytest.raises(esker.InvalidOption):
        topic.producer("p").append(b"v")
    assert len(topic) == 0
    topic = store.alter("t", dedupe_records=9, dedupe_window=9)
    assert topic.append(b"v", idempotency_key="k") == topic.append(b"v", idempotency_key="k") == 0


def test_a_record_that_is_copied_takes_its_mark_along_as_one_that_means_nothing_there(
    store: esker.Store,
) -> None:
    source, copy = store["source"], store["copy"]
    source.append(b"v", headers={"h": b"1"}, idempotency_key="k")
    record = source[0]
    assert set(record.headers or {}) == {"h", HEADER}
    for _ in range(2):
        copy.append_many([record])
    copy.append_arrow(source[:].to_arrow())
    mark = (record.headers or {})[HEADER]
    assert [r.headers for r in copy.read(0)] == [{"h": b"1", COPIED: mark}] * 3
    assert copy.append(b"v", idempotency_key="k") == 3
    copy.append_many([copy[2]], idempotency_key="another")
    assert (copy[4].headers or {})[COPIED] == mark, "where it came from first"
    source.append_many([b"w", copy[4]])
    assert set(source[2].headers or {}) == {"h", COPIED}
    source.append_arrow(source[:2].to_arrow())
    assert [set(r.headers or {}) for r in source.read(3)] == [{"h", COPIED}, set()]
    plain = pa.array([[{"key": "a", "value": b"1"}]], SCHEMA_OF_HEADERS)
    copy.append_arrow(pa.table({"value": [b"x"], "headers": plain}))
    assert copy[5].headers == {"a": b"1"}


def test_a_record_with_as_many_headers_as_there_may_be_can_be_copied(store: esker.Store) -> None:
    copy = store["copy"]
    many = {f"h{n:02}": b"" for n in range(HEADERS_MAX)}
    for number, headers in enumerate((many, {"h": b"x" * (HEADERS_BYTES_MAX - 1)})):
        source = store[f"source-{number}"]
        source.append(b"v", headers=headers, idempotency_key="k" * 1024)
        copy.append_many([source[0]])
        copy.append_many([copy[2 * number]])  # a copy of a copy
        assert len(copy[2 * number + 1].headers or {}) == len(headers) + 1
    with pytest.raises(esker.RecordTooLarge):
        copy.append(b"v", headers={**many, "one more": b"", COPIED: b""})
    with pytest.raises(esker.RecordTooLarge):
        copy.append(b"v", headers={COPIED: b"x" * (HEADERS_BYTES_MAX + 1)})


def test_a_batch_that_does_not_fit_or_is_refused_is_not_remembered(store: esker.Store) -> None:
    small = store.create("small", segment_bytes=8192)
    with pytest.raises(esker.BatchTooLarge):
        small.append_many([bytes(3000)] * 4, idempotency_key="k")
    assert small.append_many([b"v"] * 4, idempotency_key="k").count == 4
    full = store.create("full", cap_records=2, discard="reject")
    with pytest.raises(esker.TopicFull):
        full.append_many([b"v"] * 3, idempotency_key="k")
    first = full.append_many([b"v"] * 2, idempotency_key="k")
    assert full.append_many([b"v"] * 2, idempotency_key="k") == first, "a retry needs no room"


# ---- the window ------------------------------------------------------------------------------


def test_a_key_is_known_for_so_many_records(still: esker.Store) -> None:
    topic = still.create("t", dedupe_records=10)
    assert topic.append(b"a", idempotency_key="k") == 0
    topic.append_many([b"x"] * 9)
    assert topic.append(b"a", idempotency_key="k") == 0
    topic.append(b"x", wait=True)
    assert topic.append(b"a", idempotency_key="k") == 11, "the key is a new one now"
    assert topic.append(b"a", idempotency_key="k") == 11


def test_a_key_is_known_for_so_long_whatever_the_wall_clock_does(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", dedupe_window="10s")
    assert topic.append(b"a", idempotency_key="k") == 0
    clock.us += 3_600_000_000  # somebody sets the clock
    assert topic.append(b"a", idempotency_key="k") == 0
    clock.us -= 7_200_000_000
    clock.forward(10.0)
    assert topic.append(b"a", idempotency_key="k") == 0
    clock.forward(0.001)
    assert topic.append(b"a", idempotency_key="k") == 1


def test_the_window_in_time_begins_anew_with_each_opening(clock: HandClock) -> None:
    disk = SimulatedDisk()
    with opened(disk, clock) as store:
        topic = store.create("t", dedupe_window="10s", dedupe_records=3)
        topic.append(b"a", idempotency_key="k")
    clock.forward(3600)
    with opened(disk, clock) as store:
        assert store["t"].append(b"a", idempotency_key="k") == 0
        store["t"].append_many([b"x"] * 3)
    with opened(disk, clock) as store:
        assert store["t"].append(b"a", idempotency_key="k") == 4, "the one in records does not"


def test_a_gap_is_not_made_of_records() -> None:
    """After a power cut tens of thousands of offsets are passed over; no record came meanwhile."""
    disk = SimulatedDisk()
    store = opened(disk)
    topic = store.create("t", durability="disk", dedupe_records=10)
    topic.append(b"a", idempotency_key="k")
    topic.sync()
    topic.append_many([b"lost"] * 3)
    store._context.forked = True
    store.close()
    with opened(disk.crash(LOST)) as store:
        topic = store["t"]
        assert topic.append(b"new", wait=True) > 10_000
        assert topic.append(b"a", idempotency_key="k") == 0
        topic.append_many([b"x"] * 8)
        assert topic.append(b"a", idempotency_key="k") == 0
        topic.append(b"x", wait=True)
        assert topic.append(b"a", idempotency_key="k") > 10_000


# ---- after the end of a process --------------------------------------------------------------


@pytest.mark.parametrize("end", ["closed", "killed", "killed, nothing saved", "power lost"])
def test_a_retry_is_known_after_a_restart(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    topic = store.create("t", durability="fsync", segment_records=50)
    one = topic.append(b"a", idempotency_key="one", wait=True)
    many = topic.append_many([b"x"] * 120, idempotency_key="many", wait=True)
    producer = topic.producer("p")
    numbered = [producer.append(b"%d" % n, wait=True) for n in range(3)]
    if end == "closed":
        store.close()
    elif end == "power lost":
        store._context.forked = True
        store.close()
        disk = disk.crash(LOST)
    else:
        if end == "killed":
            store.tick()  # which seals, and saves
        disk = die(disk, store)
    with opened(disk) as store:
        topic = store["t"]
        assert topic.append(b"a", idempotency_key="one", wait=True) == one
        assert topic.append_many([b"x"] * 120, idempotency_key="many") == many
        producer = topic.producer("p")
        assert producer.last == 2
        assert [producer.append(b"%d" % n, sequence=n) for n in range(3)] == numbered
        assert producer.append(b"new", wait=True) == numbered[-1] + 1
        assert len(topic) == 125
        assert "damaged_keys" not in store.recovery.labels


def test_what_was_buffered_before_it_is_written_before_it(store: esker.Store) -> None:
    topic = store["t"]
    assert [topic.append(b"%d" % n) for n in range(3)] == [0, 1, 2]
    assert topic.append(b"k", idempotency_key="k") == 3
    assert values(topic) == [b"0", b"1", b"2", b"k"]


@pytest.mark.parametrize("way", ["evicted", "deleted", "deleted by tag", "rewritten"])
@pytest.mark.parametrize("end", ["goes on", "closed", "killed"])
def test_a_key_is_known_when_its_record_is_gone(way: str, end: str) -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    topic = store.create("t", segment_records=10, segment_bytes="64KiB")
    topic.append_many([b"a", b"b"], idempotency_key="k")
    topic.producer("p").append(b"c", tag="x")
    topic.append(b"d", tag="x", idempotency_key="tagged")
    topic.append_many([esker.Record(LONG, tag="x")] * 6)
    for _ in range(3):
        topic.append_many([esker.Record(LONG)] * 10)
    topic.sync()
    if way == "evicted":
        store.alter("t", cap_records=5)
        assert store.retain()
    elif way == "deleted":
        assert topic.delete(20) == 20
    else:
        assert topic.delete(tag="x") == 8
        if way == "rewritten":
            assert topic.reclaim() > 0
    assert topic.append(b"after", idempotency_key="after") == 40
    if end == "closed":
        store.close()
    elif end == "killed":
        disk = die(disk, store)
    if end != "goes on":
        store = opened(disk)
    topic = store["t"]
    assert topic.append_many([b"a", b"b"], idempotency_key="k") == esker.Span(0, 0, 2)
    assert topic.append(b"d", idempotency_key="tagged") == 3
    assert topic.producer("p").last == 0
    assert topic.producer("p").append(b"c", sequence=0) == 2
    assert topic.append(b"after", idempotency_key="after") == 40
    assert topic.end() == 41
    assert not [each for each in store.recovery.labels if each == "damaged_keys"]
    store.close()


def test_a_mark_outlives_sealing_and_merging_and_compression(still: esker.Store) -> None:
    topic = still.create("t", segment_records=100, compression="zstd", compress_min_bytes=10)
    spans = [topic.append_many([b"v" * 50], idempotency_key=b"%d" % n) for n in range(250)]
    still.tick()
    shard = topic._shards[0]
    assert len(shard.sealed) == 2
    shard.once = None  # and forget all that was known
    (only(Path(still.path), "once")).unlink()
    assert [topic.append_many([b"v" * 50], idempotency_key=b"%d" % n) for n in range(250)] == spans
    assert "damaged_keys" in still.recovery.labels


def test_attached_segments_and_marks_know_of_each_other(still: esker.Store) -> None:
    topic = still["t"]
    first = topic.append(b"a", idempotency_key="k")
    with still.stage("t") as staged:
        staged.append_many([b"x", esker.Record(b"y", headers={HEADER: b"forged"})])
    assert still.attach("w", 1, staged.tickets)
    assert topic.append(b"a", idempotency_key="k") == first
    assert topic.append(b"b", idempotency_key="l") == 3
    assert topic[2].headers == {COPIED: b"forged"}


def test_no_file_is_made_where_nobody_gives_a_key(tmp_path: Path, store: esker.Store) -> None:
    topic = store.create("t", segment_records=10, cap_records=10)
    for _ in range(5):
        topic.append_many([b"v"] * 10)
    store.tick()
    store.retain()
    topic.delete("latest")
    assert not list(tmp_path.rglob("once"))
    assert all(shard.once is None or not len(shard.once.known) for shard in topic._shards)


def test_what_is_saved_is_little_and_there_before_the_first_mark(still: esker.Store) -> None:
    topic = still["t"]
    topic.append_many([b"v"] * 1000)
    seen: list[bool] = []
    real = topic._write_behind

    def looks(*arguments: Any) -> int:
        seen.append(bool(list(Path(still.path).rglob("once"))))
        return real(*arguments)

    topic._write_behind = looks  # type: ignore[method-assign]
    topic.append(b"k", idempotency_key="k")
    assert seen == [True]
    assert only(Path(still.path), "once").stat().st_size < 100


def test_no_mark_is_written_while_the_file_cannot_be(tmp_path: Path) -> None:
    import errno

    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        store["t"].append(b"plain", wait=True)
        files.refuse("rename", errno.ENOSPC, "once")
        for _ in range(2):
            with pytest.raises(esker.DiskFull):
                store["t"].append(b"a", idempotency_key="k")
        files.allow()
        assert store["t"].append(b"a", idempotency_key="k") == 1


def test_a_full_disk_at_close_costs_nothing_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import errno

    files = Refusing()
    store = esker.open(tmp_path / "data", files=files, background=False)
    store["t"].append(b"a", idempotency_key="k", wait=True)
    files.refuse("rename", errno.ENOSPC, "once")
    with caplog.at_level(logging.WARNING, "esker"):
        store.close()
    assert "saving the keys of" in caplog.text
    with esker.open(tmp_path / "data") as store:
        assert store["t"].append(b"a", idempotency_key="k") == 0
        assert store.recovery.clean


def test_damaged_records_refuse_keys_until_they_are_repaired(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root, background=False) as store:
        topic = store.create("t", segment_records=10)
        for n in range(20):
            topic.append(b"%d" % n, idempotency_key=b"%d" % n, wait=True)
    only(root, "once").unlink()
    sealed = only(root, "00000001-*.seg")
    data = bytearray(sealed.read_bytes())
    data[data.index(HEADER.encode())] ^= 1
    sealed.write_bytes(data)
    with esker.open(root) as store:
        with pytest.raises(esker.Corruption):
            store["t"].append(b"20", idempotency_key=b"20")
        assert store["t"].append(b"plain", wait=True) == 20
    esker.repair(root)
    with esker.open(root) as store:
        assert store["t"].append(b"12", idempotency_key=b"12") == 12
        told = [each for each in store.recovery.findings if each.label == "damaged_keys"]
        assert any("are lost, with their keys" in each.reason for each in told)


def test_damaged_keys_are_told_by_verify_and_set_aside_by_repair(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with esker.open(root) as store:
        store["t"].append_many([b"a", b"b"], idempotency_key="k")
    saved = only(root, "once")
    data = bytearray(saved.read_bytes())
    assert esker.verify(root).kinds == []
    data[66] ^= 1
    saved.write_bytes(data)
    found = esker.verify(root)
    assert (found.ok, found.kinds, found.problems[0].path) == (False, ["keys"], str(saved))
    assert esker.repair(root).ok
    assert (root / "quarantine").exists()
    assert esker.verify(root).ok
    with esker.open(root) as store:
        assert store["t"].append_many([b"a", b"b"], idempotency_key="k") == esker.Span(0, 0, 2)
        assert store.recovery.labels == ["damaged_keys"]
    data[66] ^= 1
    data[4] = 2
    data[56:64] = checksum(bytes(data[:56])).to_bytes(8, "little")
    saved.write_bytes(data)
    assert esker.verify(root).kinds == ["newer"]
    with esker.open(root) as store, pytest.raises(esker.FormatTooNew):
        store["t"].append(b"v", idempotency_key="k")
    saved.unlink()
    saved.mkdir()
    assert esker.verify(root).kinds == ["unreadable"]
    saved.rmdir()


# ---- threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_retries_at_the_same_time_are_one_batch(store: esker.Store, durability: str) -> None:
    topic = store.create("t", durability=durability, shards=2)
    got: dict[int, set[Any]] = {n: set() for n in range(30)}

    def work(seed: int) -> None:
        for n in range(30):
            number = (n * 7 + seed) % 30
            span = topic.append_many(
                [b"%d" % number] * 2, idempotency_key=b"%d" % number, wait=True
            )
            got[number].add((span.shard, span.first))
            topic.append(b"plain")

    threads = Threads()
    for seed in range(8):
        threads.start(work, seed)
    threads.join()
    topic.sync()
    assert [len(places) for places in got.values()] == [1] * 30
    found = values(topic)
    assert sorted(found) == sorted([b"%d" % n for n in range(30)] * 2 + [b"plain"] * 240)


def test_a_retry_waits_for_the_first_try_that_is_under_way(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    topic = store.create("t", durability="fsync")
    topic.append(b"first", idempotency_key="zero", wait=True)
    shard = topic._shards[0]
    writing, go = threading.Event(), threading.Event()
    real = shard._write

    def slow(bodies: Any) -> int:
        writing.set()
        assert go.wait(30)
        return real(bodies)

    monkeypatch.setattr(shard, "_write", slow)
    threads, got = Threads(), []
    threads.start(lambda: got.append(topic.append(b"a", idempotency_key="k", wait=True)))
    assert writing.wait(30)
    threads.start(lambda: got.append(topic.append(b"a", idempotency_key="k", wait=True)))
    go.set()
    threads.join()
    assert got == [1, 1]
    assert values(topic) == [b"first", b"a"]


def test_nobody_comes_between_looking_and_writing(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B45: to look for a key and to append under it are one step."""
    import threading

    topic = store["t"]
    topic.append(b"first", idempotency_key="zero")
    real = known.Known.find

    def slow(self: known.Known, mark: Any, window: Any) -> Place | None:
        found = real(self, mark, window)
        if found is None:  # wait for the other one, who must not get here
            threading.Event().wait(0.2)
        return found

    monkeypatch.setattr(known.Known, "find", slow)
    threads, got = Threads(), []
    for _ in range(2):
        threads.start(lambda: got.append(topic.append(b"a", idempotency_key="k")))
    threads.join()
    assert (got, values(topic)) == ([1, 1], [b"first", b"a"])


def test_an_interrupt_between_writing_and_remembering_makes_no_second_batch(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for durability in ("disk", "fsync"):
        topic = store.create(durability, durability=durability)
        topic.append(b"first", idempotency_key="zero", wait=True)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(once, "_remember", interrupted)
            with pytest.raises(KeyboardInterrupt):
                topic.append(b"a", idempotency_key="k")
        assert topic.append(b"a", idempotency_key="k", wait=True) == 1
        assert values(topic) == [b"first", b"a"]


def test_a_shard_that_was_handed_back_is_looked_at_again(tmp_path: Path) -> None:
    """Somebody else had it in between, and appended under the same key."""
    with esker.open(tmp_path / "data") as one, esker.open(tmp_path / "data") as two:
        assert one["t"].append(b"zero", idempotency_key="zero") == 0
        one["t"]._shards[0].hand_back()
        assert two["t"].append(b"a", idempotency_key="k") == 1
        two["t"]._shards[0].hand_back()
        assert one["t"].append(b"a", idempotency_key="k") == 1
        assert one["t"].append(b"b", idempotency_key="l") == 2


def test_a_poisoned_shard_answers_nobody(tmp_path: Path) -> None:
    store = esker.open(tmp_path / "data")
    topic = store.create("t", durability="fsync")
    topic.append(b"a", idempotency_key="k")
    topic._shards[0].poisoned_by(OSError("a sync failed"))
    with pytest.raises(esker.Poisoned):
        topic.append(b"a", idempotency_key="k", wait=True)
    with pytest.raises(esker.Poisoned):
        topic.append(b"b", idempotency_key="l", wait=True)
    with pytest.raises(esker.Poisoned):
        store.close()


# ---- producers -------------------------------------------------------------------------------


def test_a_producer_numbers_its_batches_and_leaves_none_out(store: esker.Store) -> None:
    topic = store["t"]
    producer = topic.producer("importer-7")
    assert (producer.last, "t" in store) == (-1, False)
    with pytest.raises(SequenceGap) as gap:
        producer.append(b"x", sequence=1)
    assert (gap.value.expected, gap.value.code) == (0, "sequence_gap")
    assert producer.append(b"0", sequence=0) == 0
    assert producer.append_many([b"1", b"1"]) == esker.Span(0, 1, 2)
    assert producer.append(b"2", key="k", tag="t", wait=True) == 3
    assert producer.last == 2
    assert producer.append_many([b"1", b"1"], sequence=1) == esker.Span(0, 1, 2)
    assert producer.append(b"0", sequence=0) == 0
    with pytest.raises(SequenceGap, match="go on with 3") as gap:
        producer.append(b"x", sequence=4)
    assert gap.value.expected == 3
    with pytest.raises(KeyReused):
        producer.append(b"1", sequence=1)
    other = topic.producer("importer-8")
    assert (other.last, other.append(b"o"), other.last) == (-1, 4, 0)
    assert values(topic) == [b"0", b"1", b"1", b"2", b"o"]
    assert repr(producer) == "<esker producer 'importer-7' of topic 't'>"


def test_a_key_and_a_producer_of_the_same_name_are_two(store: esker.Store) -> None:
    topic = store["t"]
    assert topic.append(b"a", idempotency_key="x") == 0
    assert topic.producer("x").append(b"b") == 1
    assert topic.append(b"a", idempotency_key="x") == 0


def test_sequences_have_no_window_and_old_offsets_have(still: esker.Store) -> None:
    topic = still.create("t", dedupe_records=10)
    producer = topic.producer("p")
    for n in range(5):
        producer.append(b"%d" % n)
    topic.append_many([b"x"] * 100)
    assert producer.last == 4
    assert producer.append(b"4", sequence=4) == 4, "of the last batch they are kept"
    for n in range(4):
        with pytest.raises(SequenceExpired, match="not appended again"):
            producer.append(b"%d" % n, sequence=n)
    still.close()
    with esker.open(still.path) as store:
        producer = store["t"].producer("p")
        store["t"].append_many([b"x"] * 100)
        assert (producer.last, producer.append(b"4", sequence=4)) == (4, 4)
        with pytest.raises(SequenceExpired):
            producer.append(b"3", sequence=3)
        assert producer.append(b"5", sequence=5) == 205


def test_all_that_a_producer_appends_goes_to_one_shard(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    home = fnv1a(b"p") % 4
    producer = topic.producer("p")
    for n in range(5):
        offset = producer.append(b"%d" % n)
        assert isinstance(offset, esker.Offset)
        assert (offset.shard, int(offset)) == (home, n)
    key = next(b"%d" % n for n in range(99) if fnv1a(b"%d" % n) % 4 == home)
    assert producer.append(b"keyed", key=key) == 5
    foreign = next(b"%d" % n for n in range(99) if fnv1a(b"%d" % n) % 4 != home)
    there = topic.shard_of(foreign)
    with pytest.raises(esker.InvalidOption, match=f"shard={there}"):
        producer.append(b"keyed", key=foreign)
    other = topic.producer("p", shard=there)
    assert (other.last, other.append(b"keyed", key=foreign), producer.last) == (-1, 0, 5)


@pytest.mark.parametrize("bad", ["", "x" * 257, b"bytes", None])
def test_a_name_that_cannot_be_a_producers_is_refused(store: esker.Store, bad: Any) -> None:
    with pytest.raises(esker.InvalidOption):
        store["t"].producer(bad)


def test_what_a_producer_cannot_append_is_refused(store: esker.Store) -> None:
    producer = store["t"].producer("p")
    for sequence in (-1, True, "1", 1 << 62):
        with pytest.raises(esker.InvalidOption):
            producer.append(b"v", sequence=sequence)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidOption):
        producer.append_many([])
    store["t"].append(b"v", wait=True)
    for shard in (1, -1, True):
        with pytest.raises(esker.InvalidOption):
            store["t"].producer("p", shard=shard).append(b"v")
    assert values(store["t"]) == [b"v"]


def test_where_a_producer_is_can_be_asked_by_who_only_reads(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        producer = store["t"].producer("p")
        producer.append(b"0")
        with esker.open(tmp_path / "data", mode="r") as reader:
            assert reader["t"].producer("p").last == 0
            producer.append(b"1")
            assert reader["t"].producer("p").last == 1
            with pytest.raises(esker.ReadOnlyStore):
                reader["t"].producer("p").append(b"2")
        with esker.open(tmp_path / "data", mode="r") as reader:
            assert reader["t"].producer("nobody").last == -1


def test_there_is_room_for_so_many_producers(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "PRODUCERS_MAX", 3)
    topic = still.create("t", segment_records=2)
    for name in ("a", "b", "c"):
        topic.producer(name).append(b"v")
    topic.producer("a").append(b"v")
    with pytest.raises(ProducersFull) as full:
        topic.producer("d").append(b"v")
    assert full.value.code == "producers_full"
    topic.append_many([b"x"] * 4)
    topic.delete(2)  # nothing is kept of b, who has been silent for longest
    assert topic.producer("d").append(b"v") == 8
    assert [topic.producer(name).last for name in "abcd"] == [1, -1, 0, 0]
    assert topic.append(b"v", idempotency_key="keys are not counted") == 9


# ---- asyncio ---------------------------------------------------------------------------------


def test_it_is_the_same_for_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", durability="fsync", shards=2)
            tries = [topic.append(b"a", idempotency_key="k", wait=True) for _ in range(20)]
            assert len({(int(o), o.shard) for o in await asyncio.gather(*tries)}) == 1  # type: ignore[attr-defined]
            many = await topic.append_many([b"b", b"b"], idempotency_key="l")
            assert await topic.append_many([b"b", b"b"], idempotency_key="l") == many
            for _ in range(2):
                async with topic.batch(idempotency_key="m") as batch:
                    batch.append(b"c")
            producer = topic.producer("p")
            assert await producer.last() == -1
            assert await producer.append(b"d", sequence=0) == await producer.append(
                b"d", sequence=0
            )
            assert (await producer.append_many([b"e"])).count == 1
            assert await producer.last() == 1
            with pytest.raises(SequenceGap):
                await producer.append(b"x", sequence=7)
            await topic.sync()
            assert repr(producer) == "<async <esker producer 'p' of topic 't'>>"
            found = [record.value async for record in topic.read("earliest")]
            assert sorted(found) == [b"a", b"b", b"b", b"c", b"d", b"e"]

    asyncio.run(main())


# ---- the table by itself ---------------------------------------------------------------------


def test_a_table_is_restored_as_it_was_saved() -> None:
    table = known.Known()
    for n in range(3):
        table.add(Keyed(b"%d" % n, 1), n, 0.0)
        table.add(Numbered("p", n, 2), 10 + 2 * n, 0.0)
    table.add(Keyed(b"0", 1), 99, 0.0)  # the first counts
    table.add(Numbered("p", 1, 2), 99, 0.0)
    saved = table.saved(100)
    assert saved.keys == {b"%d" % n: Place(n, 1) for n in range(3)}
    again = known.Known()
    again.restore(saved, 0.0)
    assert again.saved(100) == saved
    assert (len(again), again.producers, again.last("p"), again.last("q")) == (6, 1, 2, -1)
    assert known.Known().saved(7) == Saved(7, {}, {})
