"""Appending: one by one, in batches, by key; what is pending, and what is too much."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine.intake import fnv1a
from esker.format.columns import FEW
from esker.options import BUFFER_RECORDS
from tests.helpers import HandClock, wait_until

EVERY_KIND = True  # of store: see tests/conftest.py

START = 1_800_000_000_000_000  # where a HandClock begins


# ---- appending -------------------------------------------------------------------------------


def test_every_field_of_a_record_comes_back(store: esker.Store) -> None:
    topic = store["orders"]
    moment = datetime(2026, 11, 15, 10, 0, 0, 123456, tzinfo=UTC)
    offset = topic.append(
        b"value",
        key=b"user-7",
        tag="order-7731",
        node="eu-1",
        headers={"h": b"v", "empty": b""},
        timestamp=moment,
    )
    topic.flush()
    (record,) = topic.read()
    assert record == esker.Record(
        value=b"value",
        key=b"user-7",
        tag="order-7731",
        node="eu-1",
        headers={"h": b"v", "empty": b""},
        timestamp=1_794_736_800_123_456,
        offset=offset,
        shard=0,
    )
    assert record.time == moment
    assert record.text == "value"


def test_a_record_reads_its_value_as_json(store: esker.Store) -> None:
    store["t"].append('{"a": [1, 2]}', wait=True)
    assert store["t"][0].json() == {"a": [1, 2]}


def test_text_keys_and_text_headers_are_stored_as_utf8(store: esker.Store) -> None:
    topic = store["t"]
    topic.append("grüße", key="schlüssel", headers={"ü": "ö"}, wait=True)
    record = topic[0]
    assert record.value == "grüße".encode()
    assert record.key == "schlüssel".encode()
    assert record.headers == {"ü": "ö".encode()}


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_kinds_of_bytes_are_copied(store: esker.Store, kind: Any) -> None:
    topic = store["t"]
    source = bytearray(b"abc")
    topic.append(kind(source), key=kind(source), headers={"h": kind(source)})
    source[:] = b"xyz"
    topic.flush()
    assert (topic[0].value, topic[0].key, topic[0].headers) == (b"abc", b"abc", {"h": b"abc"})


def test_values_may_be_empty_and_hold_any_byte(store: esker.Store) -> None:
    values = [b"", bytes(range(256)), b"\0", b"", b"\xff" * 9, b"ESKF" * 20, b""]
    topic = store["t"]
    for value in values:
        topic.append(value)
    topic.append_many(values)
    topic.append_many(values * 3)
    with topic.batch() as batch:
        for value in values:
            batch.append(value)
    topic.sync()
    assert [record.value for record in topic.read()] == values * 6


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.directory("a server takes bodies of 8 MiB")
def test_a_record_of_16_mib_fits_and_one_byte_more_does_not(store: esker.Store, wait: bool) -> None:
    topic = store["t"]
    large = bytes(range(256)) * (64 << 10)
    assert len(large) == 16 << 20
    topic.append(b"before")
    assert topic.append(large, wait=wait) == 1
    assert topic.append_many([large, b"after"]).first == 2
    for call in (
        lambda: topic.append(large + b"x", wait=wait),
        lambda: topic.append_many([b"small", large + b"x"]),
        lambda: topic.append_many([b"small"] * 20 + [large + b"x"]),
    ):
        with pytest.raises(esker.RecordTooLarge, match="max_record_bytes=16777216"):
            call()
    topic.flush()
    assert [len(record.value) for record in topic.read()] == [6, 16 << 20, 16 << 20, 5]
    assert topic[1].value == large


def test_the_limit_of_a_topic_holds_for_small_records_too(store: esker.Store) -> None:
    topic = store.create("t", max_record_bytes=10)
    for _ in range(3):  # the first append takes another way than the next ones
        topic.append(b"x" * 10)
        with pytest.raises(esker.RecordTooLarge):
            topic.append(b"x" * 11)
    topic.flush()
    assert len(topic) == 3


def test_a_record_gets_the_time_of_the_clock(still: esker.Store, clock: HandClock) -> None:
    topic = still["t"]
    topic.append(b"a", wait=True)
    clock.forward(1.5)
    topic.append_many([b"b", b"c"])
    assert [record.timestamp for record in topic.read()] == [
        START, START + 1_500_000, START + 1_500_000,
    ]  # fmt: skip


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_the_time_given_to_one_record_is_not_given_to_others(
    still: esker.Store, durability: str
) -> None:
    topic = still.create("t", durability=durability)
    topic.append(b"buffered")
    topic.append(b"old", timestamp=5, wait=True)
    topic.append(b"buffered")
    topic.append_many([esker.Record(b"old", timestamp=6)], wait=True)
    topic.sync()
    assert [record.timestamp for record in topic.read()] == [START, 5, START, 6]


def test_times_do_not_fall_for_one_who_writes_alone(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store["t"]
        for n in range(50):
            topic.append(b"buffered")
            if n % 2:
                topic.append(b"waiting", wait=True)
            else:
                topic.append_many([b"many"] * 3)
        topic.flush()
        stamps = [record.timestamp for record in topic.read()]
    assert stamps == sorted(stamps)  # type: ignore[type-var]


def test_timestamps_are_given_as_numbers_or_datetimes(store: esker.Store) -> None:
    topic = store["t"]
    naive = datetime(2026, 11, 15, 10)  # noqa: DTZ001
    east = datetime(2026, 11, 15, 12, tzinfo=timezone(timedelta(hours=2)))
    for stamp in (0, -1, 1 << 61, naive, east, datetime(1, 1, 1, tzinfo=UTC)):
        topic.append(b"x", timestamp=stamp)
    topic.flush()
    assert [record.timestamp for record in topic.read()] == [
        0, -1, 1 << 61, 1_794_736_800_000_000, 1_794_736_800_000_000, -62_135_596_800_000_000,
    ]  # fmt: skip


def test_append_many_takes_bytes_text_and_records(store: esker.Store) -> None:
    topic = store["t"]
    full = esker.Record(b"c", key=b"k", tag="t", node="n", headers={"h": b"v"}, timestamp=5)
    span = topic.append_many([b"a", "b", full])
    assert (span.shard, span.first, span.last, span.next, len(span)) == (0, 0, 2, 3, 3)
    found = list(topic.read())
    assert [record.value for record in found] == [b"a", b"b", b"c"]
    assert found[2] == esker.Record(b"c", b"k", "t", "n", {"h": b"v"}, 5, 2, 0)


@pytest.mark.parametrize("key", [None, "once"])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (3, "a value is"),
        (esker.Record(b"x", tag="t" * 300), "a tag of 300 bytes"),
        (esker.Record(b"x", timestamp=1 << 63), "timestamp"),
        (b"x" * 2_000, "a record of 2000 bytes"),
    ],
)
def test_of_a_batch_that_is_refused_the_bad_record_is_named(
    store: esker.Store, bad: Any, told: str, key: str | None
) -> None:
    topic = store.create("t", max_record_bytes=1_000)
    with pytest.raises(esker.EskerError, match=rf"^records\[20\]: {told}"):
        topic.append_many([b"good"] * 20 + [bad, b"good"], wait=True, idempotency_key=key)
    assert len(topic) == 0


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 5000])
def test_append_many_takes_any_iterable(store: esker.Store, count: int) -> None:
    topic = store["t"]
    values = [b"%d" % n for n in range(count)]
    topic.append_many(values)
    topic.append_many(tuple(values))
    topic.append_many(value for value in values)
    topic.append_many(esker.Record(value) for value in values)
    assert [record.value for record in topic.read()] == values * 4


def test_records_that_were_read_can_be_appended(store: esker.Store) -> None:
    source = [esker.Record(b"v", b"k", "t", "n", {"h": b"v"}, 7), esker.Record(b"w", timestamp=8)]
    store["a"].append_many(source)
    store["b"].append_many(store["a"].read())
    assert list(store["b"].read()) == list(store["a"].read())


def test_appending_nothing_gives_an_empty_span(store: esker.Store) -> None:
    assert len(store["t"].append_many([])) == 0
    assert list(store) == [], "appending nothing makes no topic"
    store["t"].append_many([b"x", b"y"])
    span = store["t"].append_many([])
    assert (span.first, span.count) == (2, 0)


def test_a_batch_with_one_bad_record_writes_none(store: esker.Store) -> None:
    topic = store["t"]
    topic.append(b"kept")
    for count in (2, 20):
        for bad in (3, None, ["x"], esker.Record(7)):  # type: ignore[arg-type]
            with pytest.raises(esker.InvalidRecord):
                topic.append_many([*[b"x"] * count, bad])
    topic.flush()
    assert [record.value for record in topic.read()] == [b"kept"]


def test_a_batch_keeps_its_place_behind_what_is_buffered(store: esker.Store) -> None:
    topic = store["t"]
    assert topic.append(b"0") == 0
    assert topic.append(b"1") == 1
    assert topic.append_many([b"2", b"3"]).first == 2
    assert topic.append(b"4") == 4
    assert topic.append(b"5", wait=True) == 5
    assert [record.value for record in topic.read()] == [b"%d" % n for n in range(6)]


def test_a_batch_is_one_frame_and_seen_as_a_whole(store: esker.Store) -> None:
    topic = store["t"]
    with topic.batch() as batch:
        batch.append(b"a", key=b"k")
        batch.append("b", tag="t", headers={"h": b"v"})
        assert len(batch) == 2
        assert "t" not in store
    assert isinstance(batch.span, esker.Span)
    assert (batch.span.first, batch.span.count) == (0, 2)
    (found,) = topic.batches()
    assert [record.value for record in found] == [b"a", b"b"]


def test_a_batch_whose_block_fails_is_not_written(store: esker.Store) -> None:
    topic = store["t"]

    def fill(last: Any) -> None:
        with topic.batch() as batch:
            batch.append(b"a")
            batch.append(last)
            raise InterruptedError("after the last")

    with pytest.raises(InterruptedError):
        fill(b"b")
    with pytest.raises(esker.InvalidRecord):
        fill(5)
    assert list(store) == []


def test_an_empty_batch_writes_nothing(store: esker.Store) -> None:
    with store["t"].batch() as batch:
        pass
    assert batch.span is None
    assert list(store) == []


def test_a_batch_larger_than_a_segment_is_refused_whole(store: esker.Store) -> None:
    topic = store.create("t", segment_bytes="64KiB")
    with pytest.raises(esker.BatchTooLarge, match="segment_bytes"):
        topic.append_many([b"x" * 1000] * 100)
    assert len(topic) == 0
    topic.append_many([b"x" * 1000] * 50)
    assert len(topic) == 50


def test_waiting_returns_when_the_class_is_met(store: esker.Store) -> None:
    fsync = store.create("fsync", durability="fsync")
    assert fsync.append(b"x", wait=True) == 0
    assert fsync.durable() == 1
    assert fsync.append_many([b"y"] * 30, wait=True).count == 30
    assert fsync.durable() == 31
    assert fsync.append(b"z", wait=5.0) == 31
    disk = store.create("disk", durability="disk")
    disk.append(b"x", wait=True)
    assert disk.end() == 1


def test_sync_makes_everything_durable(still: esker.Store) -> None:
    for durability in ("fsync", "disk"):
        topic = still.create(durability, durability=durability)
        for n in range(10):
            topic.append(b"%d" % n)
        topic.append_many([b"x"] * 10)
        topic.append(b"y")
        topic.sync()
        assert (topic.durable(), topic.end()) == (21, 21)


def test_sync_of_the_store_covers_all_topics(still: esker.Store) -> None:
    topics = [still.create(f"t{n}", durability=d) for n, d in enumerate(["fsync", "disk"] * 6)]
    for topic in topics:
        topic.append(b"x", key=b"k")
    still.sync()
    assert [topic.durable() for topic in topics] == [1] * 12


def test_buffered_records_are_not_seen_before_they_are_flushed(still: esker.Store) -> None:
    topic = still.create("t")
    assert [topic.append(b"a"), topic.append(b"b", tag="t")] == [0, 1]
    assert list(topic.read()) == []
    assert topic.end() == 0
    assert len(topic) == 0
    with pytest.raises(esker.OffsetOutOfRange):
        topic[0]
    topic.flush()
    assert [record.value for record in topic.read()] == [b"a", b"b"]


def test_the_linger_flushes_a_buffer(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t")
    topic.append(b"a")
    still.tick()
    assert topic.end() == 0
    clock.forward(0.019)
    still.tick()
    assert topic.end() == 0
    clock.forward(0.002)
    still.tick()
    assert topic.end() == 1


def test_the_background_flushes_by_itself(store: esker.Store) -> None:
    topic = store["t"]
    topic.append(b"a")
    wait_until(lambda: topic.end() == 1, "the linger")
    topic.append(b"b", tag="t")
    wait_until(lambda: topic.end() == 2, "the linger")
    wait_until(lambda: topic.durable() == 2, "the tick")


def test_without_a_linger_every_append_is_written(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", linger=0, background=False) as store:
        assert store["t"].append(b"a") == 0
        assert [record.value for record in store["t"].read()] == [b"a"]


def test_a_full_buffer_is_flushed(still: esker.Store) -> None:
    topic = still.create("t")
    for n in range(BUFFER_RECORDS + 1):
        topic.append(b"%d" % n)
    assert topic.end() == BUFFER_RECORDS
    large = still.create("large")
    for _ in range(100):
        large.append(b"x" * 100_000)
    assert large.end() > 80, "large records are counted by their bytes"
    headed = still.create("headed")
    for _ in range(100):
        headed.append(b"", headers={"h": b"x" * 100_000})
    assert headed.end() > 80, "headers count too"


def test_the_tick_makes_class_disk_durable(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t")
    topic.append(b"a", wait=True)
    assert (topic.end(), topic.durable()) == (1, 0)
    clock.forward(0.5)
    still.tick()
    assert topic.durable() == 1


def test_class_fsync_shows_nothing_that_is_not_durable(still: esker.Store) -> None:
    topic = still.create("t", durability="fsync")
    topic.append(b"a")
    topic.flush()
    assert list(topic.read()) == []
    topic.sync()
    assert [record.value for record in topic.read()] == [b"a"]


def test_strong_readers_stop_at_what_is_durable(still: esker.Store) -> None:
    topic = still.create("t")
    topic.append(b"a", wait=True)
    topic.sync()
    topic.append(b"b", wait=True)
    assert [record.value for record in topic.read()] == [b"a", b"b"]
    assert [record.value for record in topic.read(consistency="strong")] == [b"a"]
    (batch,) = topic.batches(consistency="strong")
    assert len(batch) == 1
    topic.sync()
    assert len(list(topic.read(consistency="strong"))) == 2


def test_an_append_that_may_not_wait_says_when_it_would(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data", max_unflushed_bytes="64KiB", background=False) as store:
        topic = store.create("t")
        assert topic.append_nowait(b"x") == 0
        topic.append_many([b"x" * 1000] * 100)
        with pytest.raises(esker.WouldBlock, match="max_unflushed_bytes=65536"):
            topic.append_nowait(b"y", tag="t")
        assert topic.append(b"z") == 101, "the waiting append makes room by syncing"
        assert topic.append_nowait(b"y", key=b"k", tag="t") == 102
        topic.flush()
        assert topic[102].tag == "t"


# ---- shards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0x811C9DC5),
        (b"a", 0xE40C292C),
        (b"b", 0xE70C2DE5),
        (b"foobar", 0xBF9CF968),
        (b"chongo was here!\n", 0xD49930D5),
        (b"\xff\x00\x00\x01", 0xC48FB86D),
    ],
)
def test_the_hash_of_a_key_is_fnv1a(key: bytes, expected: int) -> None:
    assert fnv1a(key) == expected


def test_the_hash_of_a_long_key_is_fnv1a_too() -> None:
    key = b"0123456789" * 20
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 % 2**32
    assert fnv1a(key) == value


def test_a_key_chooses_the_shard_however_the_record_is_appended(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    keys = [b"user-%d" % n for n in range(30)]
    home = {key: fnv1a(key) % 4 for key in keys}
    assert set(home.values()) == {0, 1, 2, 3}
    for key in keys:
        offset = topic.append(b"one", key=key)
        assert isinstance(offset, esker.Offset)
        assert offset.shard == home[key] == topic.shard_of(key)
    topic.append_many([esker.Record(b"many", key=key) for key in keys])
    topic.append_arrow(pa.table({"value": [b"arrow"] * len(keys), "key": keys}))
    with topic.batch() as batch:
        for key in keys:
            batch.append(b"batch", key=key.decode())
    topic.append_many([esker.Record(b"few", key=keys[0]), esker.Record(b"few", key=keys[1])])
    topic.flush()
    found = list(topic.read())
    assert len(found) == 122
    assert all(record.shard == home[record.key] for record in found if record.key)
    for key in keys[2:]:
        assert [r.value for r in found if r.key == key] == [b"one", b"many", b"arrow", b"batch"]


def test_spans_name_each_shard_that_a_batch_went_to(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    spans = topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(40)])
    assert isinstance(spans, esker.Spans)
    assert sum(len(span) for span in spans) == spans.count == 40
    assert [span.shard for span in spans] == sorted({span.shard for span in spans})
    for span in spans:
        assert topic.end(span.shard) == span.next
        found = [r.key for r in topic.read(span.first, span.next, shard=span.shard)]
        assert found == [b"%d" % n for n in range(40) if topic.shard_of(b"%d" % n) == span.shard]


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("count", [1, 100, 5_000])
def test_batches_of_any_size_go_round_the_shards(
    store: esker.Store, shards: int, count: int
) -> None:
    topic = store.create("t", shards=shards)
    spans = [topic.append_many([b"x"] * count) for _ in range(2 * shards)]
    spans += [topic.append_arrow(pa.table({"value": [b"x"] * count})) for _ in range(2 * shards)]
    assert [topic.end(number) for number in range(shards)] == [4 * count] * shards
    assert len(spans) == 4 * shards


def test_batches_without_keys_go_round_the_shards(store: esker.Store) -> None:
    topic = store.create("t", shards=3)
    spans = [topic.append_many([b"x"] * count) for count in (2, 20, 2, 20, 2, 20)]
    assert all(isinstance(span, esker.Span) for span in spans)
    shards = [span.shard for span in spans if isinstance(span, esker.Span)]
    assert shards in ([0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0], [2, 0, 1, 2, 0, 1])


def test_records_without_keys_stay_together_until_they_are_flushed(still: esker.Store) -> None:
    topic = still.create("t", shards=3)
    rounds = []
    for _ in range(6):
        shards = {getattr(topic.append(b"x"), "shard", None) for _ in range(5)}
        assert len(shards) == 1, "one batch is spread over shards"
        rounds.append(shards.pop())
        topic.flush()
    assert sorted(rounds) == [0, 0, 1, 1, 2, 2]


def test_a_batch_with_and_without_keys_is_whole(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    batch: list[Any] = [
        esker.Record(b"%d" % n, key=b"%d" % n if n % 2 else None) for n in range(30)
    ]
    topic.append_many(batch)
    found = list(topic.read())
    assert sorted(r.value for r in found) == sorted(b"%d" % n for n in range(30))
    assert len({r.shard for r in found if r.key is None}) == 1


def test_an_empty_key_is_a_key(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    offset = topic.append(b"x", key=b"")
    assert getattr(offset, "shard", None) == fnv1a(b"") % 4
    for count in (1, 2, 20):
        topic.append_many([esker.Record(b"y", key=b"")] * count)
    topic.flush()
    assert [(r.key, r.shard) for r in topic.read()] == [(b"", fnv1a(b"") % 4)] * 24


def test_one_shard_is_read_by_its_number(store: esker.Store) -> None:
    topic = store.create("t", shards=2)
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(20)])
    both = [*topic.read(shard=0), *topic.read(shard=1)]
    assert both == list(topic.read())
    assert topic.get(0, shard=1) == next(topic.read(shard=1))
    for shard in (2, -1, "0", 1.0, True):
        for call in (
            lambda shard=shard: topic.read(shard=shard),
            lambda shard=shard: topic.end(shard),
            lambda shard=shard: topic.earliest(shard),
            lambda shard=shard: topic.durable(shard),
            lambda shard=shard: topic.counters(shard),
            lambda shard=shard: topic.get(0, shard=shard),
            lambda shard=shard: topic.follow(shard=shard),
        ):
            with pytest.raises(esker.InvalidOption, match=r"shards 0\.\.1"):
                call()
