"""Reading: where it begins and ends, what a batch holds, and following what comes."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.storage.files import RealFiles
from tests.helpers import HandClock, Threads, wait_until

EVERY_KIND = True  # of store: see tests/conftest.py

START = 1_800_000_000_000_000  # where a HandClock begins


# ---- positions -------------------------------------------------------------------------------


@pytest.fixture
def hourly(still: esker.Store, clock: HandClock) -> esker.Topic:
    """Ten records, one an hour, the last one now; in several segments."""
    topic = still.create("hourly", segment_records=3)
    for n in range(10):
        if n:
            clock.forward(3600)
        topic.append(b"%d" % n, wait=True)
    return topic


def offsets(topic: esker.Topic, start: Any, stop: Any = None) -> list[int]:
    found = [record.offset for record in topic.read(start, stop)]
    assert found == [r.offset for batch in topic.batches(start, stop) for r in batch]
    assert found == [record.offset for record in topic[start:stop]]
    return found


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 63, 1 << 70, 10**39])
def test_a_number_beyond_all_offsets_is_a_position_too(store: esker.Store, number: int) -> None:
    topic = store["t"]
    topic.append_many([b"a", b"b"], wait=True)
    assert list(topic.read(number)) == []
    assert len(list(topic.read(stop=number))) == len(list(topic[0:number])) == 2
    assert len(list(topic.read(-number))) == 2
    with pytest.raises(esker.OffsetOutOfRange):
        topic.get(number)
    assert topic.delete(number) == 2


@pytest.mark.parametrize(
    ("position", "first"),
    [
        ("earliest", 0),
        (None, 0),
        ("latest", 10),
        (0, 0),
        ("0", 0),
        (7, 7),
        ("7", 7),
        (9, 9),
        (10, 10),
        (11, 10),
        (10**18, 10),
        (-1, 9),
        ("-1", 9),
        (-10, 0),
        (-11, 0),
        ("-99999", 0),
        ("@-0s", 9),
        ("@-15m", 9),
        ("@-60m", 8),
        ("@-1h", 8),
        ("@-3600.5s", 8),
        ("@-0.5d", 0),
        ("@-90m", 8),
        ("@-3600000ms", 8),
        ("@-3600000001us", 8),
        ("@-1w", 0),
        ("@-99999999999999999999w", 0),
        (" earliest ", 0),
    ],
)
def test_a_position_is_where_reading_begins(hourly: esker.Topic, position: Any, first: int) -> None:
    assert offsets(hourly, position) == list(range(first, 10))
    followed = [r.offset for r in hourly.follow(position, timeout=0)]
    assert followed == list(range(first, 10)) or first == 10


def iso(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat()


def test_a_time_is_where_reading_begins(hourly: esker.Topic) -> None:
    hour = 3_600_000_000
    assert offsets(hourly, "@" + iso(START)) == list(range(10))
    assert offsets(hourly, "@" + iso(START + 1)) == list(range(1, 10))
    assert offsets(hourly, "@" + iso(START + 4 * hour)) == list(range(4, 10))
    assert offsets(hourly, "@" + iso(START + 4 * hour + 1)) == list(range(5, 10))
    assert offsets(hourly, "@" + iso(START + 9 * hour + 1)) == []
    assert offsets(hourly, "@1970-01-01") == list(range(10))
    assert offsets(hourly, "@2027-01-15T08:00:00+00:00") == list(range(10))
    assert offsets(hourly, "@2027-01-15T10:00:00") == list(range(2, 10)), "naive times are UTC"
    assert offsets(hourly, "@2027-01-15T12:00:00+02:00") == list(range(2, 10))
    assert offsets(hourly, datetime.fromtimestamp((START + 2 * hour) / 1e6, UTC)) == [*range(2, 10)]


def test_a_position_is_where_reading_ends(hourly: esker.Topic) -> None:
    assert offsets(hourly, 2, 5) == [2, 3, 4]
    assert offsets(hourly, "earliest", "-7") == [0, 1, 2]
    assert offsets(hourly, -4, -2) == [6, 7]
    assert offsets(hourly, "@-3h", "@-1h") == [6, 7]
    assert offsets(hourly, 5, 2) == []
    assert offsets(hourly, 8, 99) == [8, 9]
    assert offsets(hourly, 3, "latest") == list(range(3, 10))


def test_times_out_of_order_are_found(still: esker.Store) -> None:
    topic = still.create("t", segment_records=2)
    for stamp in (50, 10, 40, 20, 30, 90, 15, 60):
        topic.append(b"x", timestamp=stamp, wait=True)
    for stamp, first in ((0, 0), (50, 0), (51, 5), (90, 5), (91, 8)):
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=stamp)
        assert [r.offset for r in topic.read(at)] == list(range(first, 8)), stamp


@pytest.mark.parametrize(
    "position",
    ["", "first", "now", "+5", "1.5", "--3", "@", "@yesterday", "@-15", "@15m", "@-m", "@-1x",
     "@2026-13-01", "12345678901234567890", "٣", 1.5, True, b"latest", [], (0,), object()],
)  # fmt: skip
def test_what_is_not_a_position_is_refused_with_the_grammar(
    hourly: esker.Topic, position: Any
) -> None:
    for call in (
        lambda: hourly.read(position),
        lambda: hourly.read("earliest", position),
        lambda: hourly.batches(position),
        lambda: hourly.follow(position),
        lambda: hourly[position:],
        lambda: hourly[:position],
    ):
        with pytest.raises(esker.InvalidPosition, match=r"earliest, latest, N, -N, @2026.*, @-15m"):
            call()


# ---- reading ---------------------------------------------------------------------------------


def test_a_batch_never_holds_more_bytes_than_asked_for(still: esker.Store) -> None:
    topic = still["t"]
    values = [b"x" * (n * 37 % 200) for n in range(500)]
    topic.append_many(values[:300])
    for value in values[300:400]:
        topic.append(value, wait=True)
    topic.append_many(values[400:])
    for most in (1, 199, 200, 1000, 10_000, 1 << 20):
        batches = list(topic.batches(max_bytes=most))
        assert [value for batch in batches for value in batch.values] == values
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            assert batch.nbytes <= most or len(batch) == 1
            assert batch.nbytes == sum(map(len, batch.values))
            assert following is None or following.first == batch.next_offset == batch.last + 1


def test_a_batch_of_one_frame_is_cut_exactly(still: esker.Store) -> None:
    topic = still["t"]
    topic.append_many([b"x" * 100] * 1000)
    sizes = [len(batch) for batch in topic.batches(max_bytes=1050)]
    assert sizes == [10] * 100
    assert [len(batch) for batch in topic.batches(max_bytes=1000)] == [10] * 100
    assert [len(batch) for batch in topic.batches(max_bytes=999)] == [9] * 111 + [1]


def test_a_batch_never_holds_more_records_than_asked_for(still: esker.Store) -> None:
    topic = still["t"]
    topic.append_many([b"x"] * 25)
    topic.append_many([b"y"] * 5)
    for most in (1, 7, 25, 30, 1000):
        batches = list(topic.batches(max_records=most))
        assert max(map(len, batches)) <= most
        assert sum(map(len, batches)) == 30


def test_reading_stops_after_the_limit(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many([b"%d" % n for n in range(100)])
    assert [r.offset for r in topic.read(10, limit=3)] == [10, 11, 12]
    assert list(topic.read(limit=0)) == []
    assert len(list(topic.read(limit=1000))) == 100
    assert [r.offset for r in topic.follow(98, limit=2)] == [98, 99]
    assert list(topic.follow(0, limit=0)) == []


def test_reading_sees_the_end_as_it_was_when_asked(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many([b"a", b"b"])
    found = topic.read()
    topic.append_many([b"c"])
    assert [record.value for record in found] == [b"a", b"b"]


def test_a_record_is_found_by_its_offset(still: esker.Store) -> None:
    topic = still.create("t", segment_bytes="4KiB")
    for n in range(400):
        topic.append(b"%d" % n, tag=f"t{n}" if n % 3 else None, wait=n % 7 == 0)
    still.sync()
    still.tick()
    for n in (0, 1, 7, 199, 200, 398, 399):
        assert topic[n].value == b"%d" % n
        assert topic[n].offset == n
        assert topic[n].tag == (f"t{n}" if n % 3 else None)
        assert topic[n - 400].value == b"%d" % n
        assert topic.get(n) == topic[n]
    for n in (400, 401, 10**18, -401, -(10**18)):
        with pytest.raises(esker.OffsetOutOfRange, match=r"offsets 0\.\.399"):
            topic[n]


def test_len_earliest_and_end_agree(store: esker.Store) -> None:
    topic = store.create("t", shards=3)
    assert (len(topic), topic.earliest(), topic.end()) == (0, 0, 0)
    topic.append_many([esker.Record(b"x", key=b"%d" % n) for n in range(50)])
    assert len(topic) == 50
    assert sum(topic.end(shard) - topic.earliest(shard) for shard in range(3)) == 50


def test_a_slice_is_lazy_and_settles_when_first_read(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many([b"0", b"1"])
    part = topic[1:]
    topic.append_many([b"2"])
    assert [record.value for record in part] == [b"1", b"2"]
    topic.append_many([b"3"])
    assert [record.value for record in part] == [b"1", b"2"], "read again, it is the same"
    assert len(part) == 2
    assert part.values == [b"1", b"2"]
    assert [record.value for record in topic[1:]] == [b"1", b"2", b"3"]


def test_the_length_of_a_slice_is_what_it_yields(still: esker.Store) -> None:
    topic = still.create("t", segment_bytes="4KiB")
    for n in range(200):
        topic.append(b"x" * 50, wait=n % 5 == 0)
    topic.flush()
    still.tick()
    for start, stop in ((0, 200), (0, 0), (5, 6), (17, 133), (-20, None), (190, 500), (50, 20)):
        assert len(topic[start:stop]) == len([*iter(topic[start:stop])])


def test_a_slice_has_no_step(store: esker.Store) -> None:
    store["t"].append_many([b"x"] * 5)
    with pytest.raises(esker.InvalidOption, match="step"):
        store["t"][::2]


def test_everything_can_be_read_across_many_segments_sealed_and_not(tmp_path: Path) -> None:
    values = [b"%d" % n * (n % 40) for n in range(3000)]
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_bytes="8KiB")
        for value in values[:1000]:
            topic.append(value)
        for at in range(1000, 2000, 40):
            topic.append_many(values[at : at + 40])
        assert topic.counters()["segments_rolled"] > 5
        topic.flush()
        assert [record.value for record in topic.read()] == values[:2000]
        wait_until(lambda: topic.counters()["seals"] > 3, "the sealer")
        assert [record.value for record in topic.read()] == values[:2000]
    with esker.open(tmp_path / "data") as store:
        topic = store["t"]
        assert [record.value for record in topic.read()] == values[:2000]
        for value in values[2000:]:
            topic.append(value)
        topic.flush()
        assert [record.value for record in topic.read()] == values
        assert [record.value for record in topic.read(1500, 2500)] == values[1500:2500]


def closed_log(path: Path) -> Path:
    """A store of ten batches in one log, closed; where the log is."""
    with esker.open(path, background=False) as store:
        topic = store.create("t")
        for n in range(10):
            topic.append_many([b"%d-%03d" % (n, row) * 10 for row in range(1000)])
    (log,) = path.rglob("*.log")
    return log


def test_a_log_that_was_closed_is_read_once_by_who_reads_it(tmp_path: Path) -> None:
    log = closed_log(tmp_path / "s")
    files = Counting()
    with esker.open(tmp_path / "s", mode="r", files=files) as store:
        assert sum(len(batch) for batch in store["t"].batches()) == 10_000
    assert log.stat().st_size < files.bytes < 1.3 * log.stat().st_size


@pytest.mark.damages
def test_a_damaged_body_in_a_log_that_was_closed_is_told_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    log = closed_log(tmp_path / "s")
    data = bytearray(log.read_bytes())
    data[data.index(b"4-500") + 2] ^= 1
    log.write_bytes(data)
    with esker.open(tmp_path / "s", mode="r") as store:
        topic = store["t"]
        assert len(list(topic.read(stop=4000))) == 4000
        with pytest.raises(esker.Corruption) as told:
            list(topic.read(4000))
        assert (told.value.first, told.value.last) == (4000, 4999)
        assert [record.offset for record in topic.read(5000)] == [*range(5000, 10_000)]


class Counting(RealFiles):
    """The real file system, counting the bytes of logs that are read from it."""

    def __init__(self) -> None:
        self.bytes = 0

    def open(self, path: str, mode: Any) -> Any:
        file = super().open(path, mode)
        return CountingFile(file, self) if path.endswith(".log") else file


class CountingFile:
    def __init__(self, file: Any, files: Counting) -> None:
        self._file = file
        self._files = files

    def read(self, position: int, size: int) -> bytes:
        data: bytes = self._file.read(position, size)
        self._files.bytes += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_compressed_records_read_back_and_take_less_room(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("none", "zstd"):
        with esker.open(tmp_path / compression) as store:
            topic = store.create("t", compression=compression, compress_at="commit")
            topic.append_many([b"the same again and again" * 10] * 1000)
            topic.append_many([b"x"])
            assert len(list(topic.read())) == 1001
            assert topic[500].value == b"the same again and again" * 10
        sizes[compression] = sum(
            path.stat().st_size for path in (tmp_path / compression).rglob("*.log")
        )
    assert sizes["zstd"] * 10 < sizes["none"]


def test_a_log_is_compressed_when_it_is_sealed(tmp_path: Path) -> None:
    same, noise = [b"the same again and again" * 10] * 1000, [os.urandom(240)]
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", compression="zstd", segment_records=1000)
        topic.append_many(same)  # one large frame: nothing else would write it again
        (log,) = (tmp_path / "data").rglob("*.log")
        assert log.stat().st_size > 240_000
        topic.append_many(noise)
        store.tick()
        (sealed,) = (tmp_path / "data").rglob("*.seg")
        assert sealed.stat().st_size < 24_000
        assert [record.value for record in topic.read()] == same + noise
        counters = topic.counters()
        assert counters["compressed_records"] == 1000
        assert counters["compressed_bytes"] == sealed.stat().st_size
        assert counters["compression_ratio_x100"] > 1000
    assert esker.verify(tmp_path / "data").problems == []


def test_what_does_not_shrink_is_stored_as_it_is(tmp_path: Path) -> None:
    values = [os.urandom(240) for _ in range(1000)]
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", compression="zstd", segment_records=1000)
        topic.append_many(values)
        topic.append(b"next", wait=True)
        store.tick()
        (sealed,) = (tmp_path / "data").rglob("*.seg")
        assert sum(map(len, values)) < sealed.stat().st_size
        with sealed.open("rb") as file:
            assert values[500] in file.read()
        assert topic.counters()["compression_skipped"] == 1000
        assert [record.value for record in topic.read(0, 1000)] == values


def test_a_higher_level_takes_less_room(tmp_path: Path) -> None:
    words = [b"alpha", b"beta", b"gamma", b"delta", b"epsilon", b"zeta", b"eta", b"theta"]
    values = [b" ".join(words[(n * k) % 8] for k in range(1, 40)) + b"%d" % n for n in range(2000)]
    sizes = []
    for level in (1, 19):
        with esker.open(tmp_path / str(level), background=False) as store:
            topic = store.create(
                "t", compression="zstd", compress_at="commit", compression_level=level
            )
            topic.append_many(values)
        (log,) = (tmp_path / str(level)).rglob("*.log")
        sizes.append(log.stat().st_size)
    assert sizes[1] < sizes[0] * 0.9


# ---- following -------------------------------------------------------------------------------


@pytest.mark.directory("looks at who waits")
def test_a_follower_is_woken_by_each_append(store: esker.Store) -> None:
    topic = store["t"]
    topic.append(b"before", wait=True)
    seen: list[bytes] = []
    threads = Threads()

    def follow() -> None:
        for record in topic.follow("latest", limit=3):
            seen.append(record.value)
            answered.set()

    answered = threading.Event()
    threads.start(follow)
    for value in (b"a", b"b", b"c"):
        wait_until(lambda: store._context.shards[0].waiters, "the follower to wait")
        answered.clear()
        topic.append(value, wait=True)
        assert answered.wait(60)
    threads.join()
    assert seen == [b"a", b"b", b"c"]


def test_a_follower_reads_what_is_there_and_then_what_comes(store: esker.Store) -> None:
    topic = store["t"]
    topic.append_many([b"0", b"1"])
    seen = topic.follow("earliest", timeout=60)
    assert [next(seen).value, next(seen).value] == [b"0", b"1"]
    threads = Threads()
    threads.start(lambda: topic.append(b"2", wait=True))
    assert next(seen).value == b"2"
    threads.join()


def test_following_ends_when_nothing_comes(store: esker.Store) -> None:
    store["t"].append(b"x", wait=True)
    assert list(store["t"].follow("latest", timeout=0)) == []
    assert [r.value for r in store["t"].follow(0, timeout=0.01)] == [b"x"]
    assert [len(batch) for batch in store["t"].follow_batches(0, timeout=0.01)] == [1]


@pytest.mark.directory("looks at who waits")
def test_those_who_gave_up_waiting_are_forgotten(store: esker.Store) -> None:
    topics = [store.create("one"), store.create("four", shards=4)]
    for topic in topics:
        for _ in range(topic.shards):
            topic.append_many([b"x"])
        for _ in range(20):
            assert list(topic.follow("latest", timeout=0.001)) == []
    assert [shard.waiters for shard in store._context.shards] == [[]] * 5


def test_following_several_shards_sees_all_of_them(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    topic.append(b"first", key=b"a", wait=True)
    threads = Threads()
    seen: list[bytes] = []

    def follow() -> None:
        seen.extend(record.value for record in topic.follow("earliest", timeout=60, limit=41))

    threads.start(follow)
    for n in range(40):
        topic.append(b"%d" % n, key=b"%d" % n, wait=n % 8 == 0)
    topic.flush()
    threads.join()
    assert sorted(seen) == sorted([b"first", *(b"%d" % n for n in range(40))])


def test_following_one_shard_leaves_the_others_alone(store: esker.Store) -> None:
    topic = store.create("t", shards=4)
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(40)])
    home = topic.shard_of(b"7")
    found = [record.key for record in topic.follow(0, shard=home, timeout=0)]
    assert found == [b"%d" % n for n in range(40) if topic.shard_of(b"%d" % n) == home]


def test_a_strong_follower_waits_for_the_sync(still: esker.Store) -> None:
    topic = still.create("t")
    topic.append(b"a", wait=True)
    assert list(topic.follow(0, timeout=0, consistency="strong")) == []
    topic.sync()
    found = [r.value for r in topic.follow(0, timeout=0, consistency="strong")]
    assert found == [b"a"]


def test_closing_the_store_ends_those_who_follow(tmp_path: Path) -> None:
    store = esker.open(tmp_path / "data")
    topics = [store.create("one"), store.create("four", shards=4)]
    threads = Threads()
    ended: list[str] = []

    def follow(topic: esker.Topic) -> None:
        assert [record.value for record in topic.follow("latest")] == []
        ended.append(topic.name)

    for topic in topics:
        for _ in range(topic.shards):
            topic.append_many([b"x"])
        threads.start(follow, topic)
    wait_until(lambda: all(t._shards[0].waiters for t in topics), "the followers to wait")
    store.close()
    threads.join()
    assert sorted(ended) == ["four", "one"]
