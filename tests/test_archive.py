"""`topic.archive` and `esker.open_archive`: what the topic gave, the archive gives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import esker
from esker.engine import archived, archiving
from esker.format import archive as fmt
from esker.format import names
from esker.storage import archive as storage
from esker.storage.archive import Archive
from esker.storage.files import SYSTEM_FILES, replace_file
from esker.storage.memory import MemoryFiles
from esker.testing import KEPT, LOST, Crash, Fault, ManualClock, SimulatedDisk
from tests.suites import slowly

T0 = 1_794_700_800_000_000  # midnight
DAY = 86_400_000_000
TOPIC = "orders:eu"
FATES = {"kept": KEPT, "lost": LOST}


def records(first: int, count: int) -> list[esker.Record]:
    """All that a record can have; a day is about 70 records, and some are of other days."""
    return [
        esker.Record(
            b"value %d" % n if n % 11 else b"", key=b"k%d" % (n % 5) if n % 4 else None,
            tag=f"tag-{n % 3}" if n % 2 else None, node="eu" if n % 7 else None,
            headers={"h": b"%d" % n, "g": b""} if n % 3 == 0 else None,
            timestamp=T0 + n * DAY // 70 - (3 * DAY if n % 19 == 0 else 0),
        )
        for n in range(first, first + count)
    ]  # fmt: skip


def fill(store: esker.Store, first: int = 0, count: int = 400, name: str = TOPIC) -> esker.Topic:
    """Two shards; full segments of 25 records are sealed, the last is being written."""
    topic = store.create(name, shards=2, segment_records=25, exist_ok=True)
    for begin in range(first, first + count, 10):
        topic.append_many(records(begin, 10))
    store.tick()
    return topic


@pytest.fixture
def store(tmp_path: Path) -> Iterator[esker.Store]:
    with esker.open(tmp_path / "data", background=False) as found:
        yield found


def logged(topic: esker.Topic, ends: dict[int, int], gaps: Any = "yield") -> list[Any]:
    """What the topic gives of what is archived."""
    return [
        item
        for shard, end in sorted(ends.items())
        for item in topic.read("earliest", end, shard=shard, gaps=gaps)
    ]


def opened(store: esker.Store, name: str = TOPIC) -> esker.ArchivedTopic:
    return esker.open_archive(f"{store.path}/archive", name)


def manifest_of(path: str, topic: str = TOPIC, files: Any = SYSTEM_FILES) -> fmt.Manifest:
    found = Archive(files, path, topic).load()
    assert found is not None
    return found


def lying(path: str, topic: str = TOPIC, files: Any = SYSTEM_FILES) -> None:
    """What lies in an archive and what its manifest names must be the same."""
    place = Archive(files, path, topic)
    manifest = manifest_of(path, topic, files)
    there = {f"{folder}/{name}" for folder, name in place._lying()}
    assert there == {file.path for file in manifest.files} | set(manifest.replaced)


# ---- the same records ------------------------------------------------------------------------


def test_an_archive_gives_what_the_topic_gave(store: esker.Store) -> None:
    topic = fill(store)
    heard: list[esker.Progress] = []
    done = topic.archive(target_bytes=1000, progress=heard.append)
    assert done.ok
    assert done.rows == done.total_rows == sum(done.ends.values())
    assert 200 < done.rows < 400, "what is not sealed waits"
    assert done.gaps == []
    assert [each.done for each in heard if each.unit == "offsets"] == sorted(
        each.done for each in heard if each.unit == "offsets"
    )
    assert f"archived {done.rows} records in {done.files} files" in str(done)
    lying(done.archive)

    found = opened(store)
    assert list(found.read()) == logged(topic, done.ends)
    assert len(found) == done.rows
    assert found.ends == done.ends
    assert (found.earliest(1), found.end(1)) == (0, done.ends[1])
    assert found.gaps == []
    assert repr(found) == f"<esker archive of topic {TOPIC!r} in {store.path}/archive>"
    tables = [topic.slice(0, end, shard=shard).to_arrow() for shard, end in done.ends.items()]
    assert found.to_arrow() == pa.concat_tables(tables)
    expected = 0
    for batch in found.batches(shard=1):
        assert batch.begin == expected
        expected = batch.next_offset
    assert expected == done.ends[1]


def test_a_compressed_log_is_cut_by_what_its_records_take(store: esker.Store) -> None:
    topic = store.create("t", segment_bytes=1 << 20, compression="zstd")
    for _ in range(48):
        topic.append_many([bytes(10_000)] * 10)
    store.tick()
    assert sum(path.stat().st_size for path in Path(store.path).rglob("*.seg")) < 200_000
    done = topic.archive(target_bytes=1 << 20, compact=False)
    sizes = [file.raw_bytes for file in manifest_of(done.archive, "t").files]
    assert sum(sizes) > 4_000_000
    assert max(sizes) < 1_500_000
    assert list(opened(store, "t").read()) == logged(topic, done.ends)


def test_records_of_which_columns_are_missing_and_of_no_day_come_back(store: esker.Store) -> None:
    topic = store.create("t", segment_records=4)
    stamps = [T0, -(1 << 60), 1 << 60, T0 + 1, 0, -1, T0 + DAY, T0 - 1]
    for stamp in stamps:
        topic.append(b"x" * (stamp % 3), timestamp=stamp, wait=True)
    topic.append(b"", wait=True)
    store.tick()
    done = topic.archive()
    assert done.ends == {0: 8}
    assert {file.day for file in manifest_of(done.archive, "t").files} == {
        fmt.NO_DAY, "1969-12-31", "1970-01-01", "2026-11-14", "2026-11-15", "2026-11-16",
    }  # fmt: skip
    found = opened(store, "t")
    assert [record.timestamp for record in found.read()] == stamps
    assert list(found.read()) == logged(topic, done.ends)


def test_pieces_and_row_groups_are_put_together_again(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(store, count=1000)
    monkeypatch.setattr(storage, "ROW_GROUP_BYTES", 700)
    done = topic.archive(compact=False)
    groups = [
        pq.ParquetFile(path).metadata.num_row_groups
        for path in Path(done.archive).rglob("*.parquet")
    ]
    assert max(groups) > 2
    expected = logged(topic, done.ends)
    for piece in (1, 300, 1_000_000):
        monkeypatch.setattr(archived, "PIECE_BYTES", piece)
        assert list(opened(store).read()) == expected


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_archived_when_any_range_reads_as_the_log_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(archived, "PIECE_BYTES", chance.choice([50, 500, 1 << 20]))
    monkeypatch.setattr(storage, "ROW_GROUP_BYTES", chance.choice([500, 1 << 20]))
    with esker.open(tmp_path / "data", background=False) as store:
        topic = store.create("t", segment_records=20)
        wide = chance.choice([0, 1, 5])
        for _ in range(12):
            for _ in range(chance.randrange(1, 6)):
                topic.append_many([
                    esker.Record(
                        bytes(chance.randrange(9)), tag=chance.choice(["a", "b", None]),
                        timestamp=T0 + chance.randrange(-wide, wide + 1) * DAY,
                    )
                    for _ in range(chance.randrange(1, 15))
                ])  # fmt: skip
            store.tick()
            if chance.random() < 0.3:
                topic.delete(tag="a", before=chance.randrange(1 + topic.end()))
            if chance.random() < 0.2:
                topic.delete(min(topic.end(), topic.earliest() + 3))
        done = topic.archive(target_bytes=chance.choice([100, 1000, 1 << 20]))
        found, end, begin = opened(store, "t"), done.ends[0], topic.earliest()
        assert done.gaps == []
        everything: list[Any] = list(topic.read("earliest", end))
        for _ in range(30):
            start = chance.choice([chance.randrange(begin, end), "earliest"])
            stop = chance.choice([chance.randrange(begin, end), end])
            assert list(found.read(start, stop)) == list(topic.read(start, stop))
        for day in range(-7, 8):
            at = datetime.fromtimestamp((T0 + day * DAY) / 1e6, UTC)
            late = [n for n, r in enumerate(everything) if r.timestamp >= T0 + day * DAY]
            assert list(found.read(at)) == (everything[late[0] :] if late else [])
        back = chance.randrange(1, len(found) + 1)
        assert list(found.read(-back)) == everything[-back:]
        assert list(found.read(-10_000)) == everything
        assert list(found.read("earliest", -back)) == everything[:-back]
        assert list(found.read("-0")) == list(found.read("latest")) == []


def test_limits_of_a_read_hold(store: esker.Store) -> None:
    topic = fill(store)
    end = topic.archive().ends[0]
    found = opened(store)
    assert [record.offset for record in found.read(7, 12, shard=0)] == [7, 8, 9, 10, 11]
    assert [record.offset for record in found.read(7, shard=1, limit=2)] == [7, 8]
    assert list(found.read(limit=0)) == []
    assert list(found.read(end, shard=0)) == list(found.read(10**9)) == []
    assert list(found.read(shard=7)) == []
    assert found.end(7) == 0
    assert {len(batch) for batch in found.batches(shard=0, max_records=10)} <= set(range(1, 11))
    assert all(len(b) == 1 or b.nbytes <= 30 for b in found.batches(shard=0, max_bytes=30))
    offsets = [n for b in found.batches(shard=0, max_bytes=30) for n in b.offsets.to_pylist()]
    assert offsets == list(range(end))
    for wrong in ({"shard": -1}, {"max_bytes": 0}, {"max_records": -1}, {"gaps": "no"}):
        with pytest.raises(esker.InvalidOption):
            found.batches(**wrong)
    with pytest.raises(esker.InvalidPosition):
        found.read("now")
    with pytest.raises(esker.InvalidOption):
        found.read(limit=-1)


def test_other_programs_read_it_without_esker(store: esker.Store) -> None:
    topic = fill(store)
    done = topic.archive()
    expected = [(r.shard, r.offset, r.value) for r in logged(topic, done.ends)]
    found = ds.dataset(done.archive, format="parquet", partitioning="hive").to_table(
        filter=pc.field("partition") >= 0
    )
    rows = zip(*(found[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    assert sorted(rows) == expected
    files = f"{done.archive}/topic=orders%3Aeu/*/*/*.parquet"
    told = duckdb.sql(
        f"""SELECT "partition", "offset", "value"
            FROM read_parquet('{files}', hive_partitioning = true) ORDER BY ALL"""
    ).fetchall()
    assert told == expected
    file = manifest_of(done.archive).files[0]
    metadata = pq.ParquetFile(Archive(SYSTEM_FILES, done.archive, TOPIC).path_of(file)).metadata
    columns = [metadata.row_group(0).column(n) for n in range(metadata.num_columns)]
    told = {column.path_in_schema: column.statistics for column in columns}
    assert (told["offset"].min, told["offset"].max) == (file.first, file.end - 1)
    assert told["timestamp"].min.timestamp() * 1_000_000 == file.min_timestamp
    assert {column.compression for column in columns} == {"ZSTD"}


# ---- again and again -------------------------------------------------------------------------


def test_a_repeat_does_nothing(store: esker.Store) -> None:
    topic = fill(store)
    topic.archive()
    topic.archive()  # removes what the first one merged
    before = {path: path.read_bytes() for path in Path(store.path, "archive").rglob("*.*")}
    again = topic.archive()
    assert (again.rows, again.files, again.merged) == (0, 0, 0)
    assert "nothing to archive" in str(again)
    after = {path: path.read_bytes() for path in Path(store.path, "archive").rglob("*.*")}
    assert after == before


def test_it_goes_on_where_it_ended_and_merges_what_is_small(store: esker.Store) -> None:
    merged = 0
    for turn in range(6):
        topic = fill(store, turn * 150, 150)
        done = topic.archive()
        merged += done.merged
        lying(done.archive)
        assert list(opened(store).read()) == logged(topic, done.ends)
    assert merged > 0
    assert done.total_rows > 800
    assert topic.archive(compact=False).merged == 0
    topic.archive(verify=True)


def test_what_is_merged_while_somebody_reads_comes_once(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived, "PIECE_BYTES", 200)
    topic = fill(store)
    done = topic.archive(target_bytes=1000, compact=False)
    expected = logged(topic, done.ends)
    reading = opened(store).read()
    found = [next(reading) for _ in range(30)]
    assert topic.archive().merged > 10
    topic.archive()  # the merged ones are gone now
    found += reading
    assert found == expected


def test_who_only_reads_the_log_may_archive_it(store: esker.Store, tmp_path: Path) -> None:
    topic = fill(store)
    with esker.open(store.path, "r") as reader:
        done = reader[TOPIC].archive(tmp_path / "elsewhere")
        assert done.archive == str(tmp_path / "elsewhere")
    assert list(esker.open_archive(tmp_path / "elsewhere", TOPIC).read()) == logged(
        topic, done.ends
    )
    assert done.rows > 200
    assert topic.archive(str(tmp_path / "elsewhere")).rows == 0
    assert not Path(store.path, "archive").exists()


def test_it_can_be_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", segment_records=10)
            await topic.append_many([b"x"] * 10)
            await topic.append_many([b"x"] * 10)
            await store._run(store._store.tick)
            done = await topic.archive(tmp_path / "to", compression="snappy")
            assert done.ends == {0: 10}

    asyncio.run(main())


# ---- gaps and deletions ----------------------------------------------------------------------


def test_what_was_deleted_by_tag_is_left_out_and_the_books_balance(store: esker.Store) -> None:
    topic = fill(store)
    gone = topic.delete(tag="tag-1")
    assert gone > 50
    done = topic.archive()
    assert done.gaps == []
    manifest = manifest_of(done.archive)
    assert done.rows + sum(each.deleted for each in manifest.shards) == sum(done.ends.values())
    assert list(opened(store).read()) == logged(topic, done.ends, gaps="raise")
    before = list(opened(store).read())
    topic.delete(tag_prefix="tag")
    assert topic.archive().rows == 0
    assert list(opened(store).read()) == before, "what is archived stays"


def test_what_was_deleted_or_evicted_between_two_runs_is_a_gap(store: esker.Store) -> None:
    topic = store.create("t", segment_records=5)
    topic.append_many([b"%d" % n for n in range(5)])
    topic.append_many([b"%d" % n for n in range(5, 10)])
    store.tick()
    topic.delete(2)
    assert topic.archive().gaps == [], "what was deleted before there was an archive is no loss"
    assert opened(store, "t").earliest() == 2
    for first in (10, 15, 20, 25):
        topic.append_many([b"%d" % n for n in range(first, first + 5)])
    store.tick()
    topic.delete(12)
    done = topic.archive()
    assert [(gap.first, gap.last) for gap in done.gaps] == [(5, 11)]
    found = opened(store, "t")
    assert found.gaps == [esker.Gap("t", 0, 5, 11, archiving.DELETED)]
    assert [r.offset for r in found.read(gaps="skip")] == [2, 3, 4, *range(12, done.ends[0])]
    with pytest.raises(esker.DataGap) as caught:
        list(found.read(3))
    assert caught.value.gap == found.gaps[0]
    kinds = [(type(item).__name__, item.offset if isinstance(item, esker.Record) else item.first)
             for item in found.read(4, 13, gaps="yield")]  # fmt: skip
    assert kinds == [("Record", 4), ("Gap", 5), ("Record", 12)]
    assert list(found.read(7, 9, gaps="yield")) == [esker.Gap("t", 0, 7, 8, archiving.DELETED)]
    assert [r.offset for r in found.read(12, 14)] == [12, 13]
    assert found.to_arrow(gaps="skip").num_rows == len(found)


def test_what_was_evicted_before_there_was_an_archive_is_named_in_it(store: esker.Store) -> None:
    topic = store.create("t", segment_records=5, cap_records=10)
    for first in range(0, 30, 5):
        topic.append_many([b"%d" % n for n in range(first, first + 5)])
    topic.delete(2)
    store.tick()
    there = topic.earliest()
    assert there > 5
    done = topic.archive()
    assert [(gap.first, gap.last) for gap in done.gaps] == [(2, there - 1)]
    assert done.gaps[0].reason == "evicted"
    found = opened(store, "t")
    assert found.gaps == [esker.Gap("t", 0, 2, there - 1, "evicted")]
    assert [r.offset for r in found.read(gaps="skip")] == list(range(there, done.ends[0]))
    with pytest.raises(esker.DataGap):
        list(found.read())


def test_records_that_a_reader_missed_are_not_called_deleted(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(store)
    with monkeypatch.context() as patched:
        patched.setattr(topic, "_whole", lambda *_: iter(()))
        with pytest.raises(esker.DataLoss, match="were not deleted; try again"):
            topic.archive()
    assert opened(store).ends == {}
    assert topic.archive().gaps == []


def test_records_that_a_power_cut_took_are_the_gap_that_the_log_has() -> None:
    disk = SimulatedDisk()
    with on(disk) as store:
        topic = store.create("t", segment_records=5)
        for first in range(0, 10, 5):
            topic.append_many([b"%d" % n for n in range(first, first + 5)])
        topic.sync()
        topic.append_many([b"lost"] * 3)
        disk = disk.crash(LOST)
        store._context.forked = True  # gone with its machine
    with on(disk) as store:
        topic = store["t"]
        for _ in range(3):
            topic.append_many([b"later"] * 5)
        store.tick()
        done = topic.archive("/archive")
        (gap,) = done.gaps
        assert (gap.first, gap.reason) == (10, "lost unsynced tail")
        found = esker.open_archive("/archive", "t", files=disk)
        assert list(found.read(gaps="yield")) == logged(topic, done.ends)
        assert list(found.read(gaps="yield"))[10] == esker.Gap("t", 0, *msgspec_tuple(gap))


def msgspec_tuple(gap: fmt.ArchivedGap) -> tuple[int, int, str]:
    return gap.first, gap.last, gap.reason


@pytest.mark.parametrize("where", ["header", "records"])
def test_a_damaged_segment_ends_its_shard_and_the_others_go_on(
    store: esker.Store, where: str
) -> None:
    topic = fill(store)
    path = Path(topic._shards[0].sealed[2].path)
    store.close()
    content = bytearray(path.read_bytes())
    content[20 if where == "header" else len(content) // 2] ^= 1
    path.write_bytes(content)
    with esker.open(store.path, background=False) as again:
        topic = again[TOPIC]
        with pytest.raises(esker.Corruption) as caught:
            topic.archive(target_bytes=100)
        assert caught.value.path == str(path)
        found = opened(again)
        assert found.ends.get(0, 0) <= 75
        assert found.ends[1] > 100
        ends = dict(found.ends)
        assert list(found.read()) == logged(topic, ends)
        with pytest.raises(esker.Corruption):
            topic.archive()
        assert found.ends == ends
        lying(f"{again.path}/archive")
    esker.repair(store.path)
    with esker.open(store.path, background=False) as again:
        done = again[TOPIC].archive()
        lost = [] if where == "header" else ["corrupt"]  # a header is made anew
        assert [gap.reason for gap in done.gaps] == lost
        assert list(opened(again).read(gaps="yield")) == logged(again[TOPIC], done.ends)


# ---- interrupted -----------------------------------------------------------------------------


def on(disk: SimulatedDisk, mode: Any = "rw") -> esker.Store:
    return esker.open("/store", mode, files=disk, clock=ManualClock(), background=False)


def of_two_days(begin: int) -> list[esker.Record]:
    return [
        msgspec.structs.replace(record, timestamp=T0 + DAY * ((begin + at) % 5 == 0))
        for at, record in enumerate(records(begin, 6))
    ]


def small(disk: SimulatedDisk) -> esker.Topic:
    """Two shards, two days, a deletion; sealed but for the last records."""
    store = on(disk)
    topic = store.create("t", shards=2, segment_records=12)
    for begin in range(0, 78, 6):
        topic.append_many(of_two_days(begin))
    topic.delete(tag="tag-1", before=20, shard=0)
    store.tick()
    store.sync()
    return topic


def go_on(disk: SimulatedDisk, expected: list[Any]) -> None:
    """Whatever is there is a beginning of each shard; the next run completes it."""
    with on(disk, "r") as store:
        with suppress(esker.NotAStore, esker.TopicNotFound):
            found = esker.open_archive("/archive", "t", files=disk)
            held = [r for r in expected if r.offset < found.ends.get(r.shard, 0)]
            assert list(found.read()) == held
        done = store["t"].archive("/archive", target_bytes=300, compact=False)
        found = esker.open_archive("/archive", "t", files=disk)
        assert list(found.read()) == expected == logged(store["t"], done.ends)
        lying("/archive", "t", disk)
        assert store["t"].archive("/archive", compact=False).rows == 0


def prepared() -> tuple[SimulatedDisk, list[Any], int]:
    """A disk with a store, what is to be archived of it, and how many calls that takes."""
    disk = SimulatedDisk()
    topic = small(disk)
    topic._store.close()
    with on(trial := disk.kill(), "r") as store:
        before = trial.changes
        ends = store["t"].archive("/archive", target_bytes=300).ends
        return disk, logged(store["t"], ends), trial.changes - before


@pytest.mark.crash
@pytest.mark.parametrize("fate", [*slowly("killed", "kept"), "lost"])
def test_a_death_at_any_change_costs_nothing(fate: str) -> None:
    disk, expected, changes = prepared()
    assert changes > 60
    for call in range(1, changes + 1, 1 if fate == "lost" else 3):
        trial = disk.kill()
        with on(trial, "r") as store:
            trial.stop_at(call)
            with pytest.raises(Crash):
                store["t"].archive("/archive", target_bytes=300)
            trial.stopped = False
        after = trial.kill() if fate == "killed" else trial.crash(FATES[fate])
        go_on(after, expected)


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["disk", *slowly("fsync"), "memory"])
def test_no_power_cut_takes_a_log_back_behind_its_archive(durability: str) -> None:
    """Whoever archives beside a writer takes what is sealed, at any moment of the sealing."""
    disk = SimulatedDisk()
    archived_at: set[int] = set()
    with on(disk) as store, on(disk, "r") as reader:
        topic = store.create("t", durability=durability, segment_records=12)
        for begin in range(0, 60, 6):
            topic.append_many(of_two_days(begin))

        def watch(call: Any, when: str) -> None:
            if when == "before" or "/topics/" not in call.path:
                return
            disk.watch = None
            end = reader["t"].archive("/archive", compact=False).ends.get(0, 0)
            archived_at.add(end)
            with on(disk.crash(LOST)) as after:
                assert after["t"].end() >= end
            disk.watch = watch

        disk.watch = watch
        store.tick()
        disk.watch = None
    assert len(archived_at) > 3
    with on(disk) as store:
        done = store["t"].archive("/archive")
        found = esker.open_archive("/archive", "t", files=disk)
        assert list(found.read()) == logged(store["t"], done.ends)


@pytest.mark.crash
@pytest.mark.parametrize(
    "kind", [*slowly("KeyboardInterrupt", "late KeyboardInterrupt"), "EIO", "ENOSPC"]
)
def test_a_call_that_fails_anywhere_leaves_nothing_half_done(kind: str) -> None:
    disk, expected, _ = prepared()
    at = 1
    while True:
        trial = disk.kill()
        with on(trial, "r") as store:
            fault = trial.fail(Fault(kind, at))
            with suppress(esker.StorageError, esker.Corruption, KeyboardInterrupt):
                store["t"].archive("/archive", target_bytes=300)
            trial.heal()
            if not fault.hits:
                break
            assert not [path for path in trial.locks if "archive" in path]
        go_on(trial, expected)
        at += 1 if "Keyboard" in kind else 3
    assert at > 40


def test_a_run_that_is_stopped_by_its_progress_goes_on_from_there(store: esker.Store) -> None:
    topic = fill(store)

    def stop(progress: esker.Progress) -> None:
        if progress.done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.archive(target_bytes=500, progress=stop)
    assert 100 < len(opened(store)) < 200
    done = topic.archive(target_bytes=500)
    assert done.rows < done.total_rows
    assert list(opened(store).read()) == logged(topic, done.ends)


def test_one_archives_at_a_time(store: esker.Store) -> None:
    topic = fill(store)
    place = Archive(SYSTEM_FILES, f"{store.path}/archive", TOPIC)
    with place.held("noon"), pytest.raises(esker.WriterBusy, match="is archiving topic"):
        topic.archive()
    assert topic.archive().rows

    def meanwhile(_: esker.Progress) -> None:
        with pytest.raises(esker.WriterBusy):
            topic.archive()

    fill(store, 400, 100)
    assert topic.archive(progress=meanwhile).rows


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["bit", "cut", "gone"])
def test_damage_to_any_file_is_told_with_its_place_and_range(store: esker.Store, harm: str) -> None:
    topic = fill(store)
    done = topic.archive(target_bytes=2000, compact=False)
    expected = logged(topic, done.ends)
    found = opened(store)
    place = Archive(SYSTEM_FILES, done.archive, TOPIC)
    for number, file in enumerate(manifest_of(done.archive).files):
        path = Path(place.path_of(file))
        content = path.read_bytes()
        if harm == "gone":
            path.unlink()
        elif harm == "cut":
            path.write_bytes(content[:-1])
        else:
            at = number * 37 % len(content)
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(esker.Corruption, match="Restore the file") as caught:
            list(found.read(shard=file.shard))
        problem = caught.value
        assert problem.path == str(path)
        assert (problem.first, problem.last) == (file.first, file.end - 1)
        behind = [r for r in expected if r.shard == file.shard and r.offset >= file.end]
        assert list(found.read(file.end, shard=file.shard)) == behind
        with pytest.raises(esker.Corruption, match="an archived file"):
            topic.archive(verify=True, compact=False)
        path.write_bytes(content)
    topic.archive(verify=True, compact=False)


def test_a_damaged_file_is_not_merged_into_another(store: esker.Store) -> None:
    topic = fill(store)
    done = topic.archive(target_bytes=2000, compact=False)
    file = fmt.merges(manifest_of(done.archive).files, 1 << 20)[0][1]
    path = Path(Archive(SYSTEM_FILES, done.archive, TOPIC).path_of(file))
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(esker.Corruption, match="checksum"):
        topic.archive()
    assert path.exists()
    content[100] ^= 1
    path.write_bytes(content)
    assert topic.archive().merged
    assert list(opened(store).read()) == logged(topic, opened(store).ends)


@pytest.mark.parametrize("harm", ["bit", "cut", "gone", "empty", "later"])
def test_a_damaged_manifest_is_told_and_nothing_is_touched(store: esker.Store, harm: str) -> None:
    topic = fill(store)
    done = topic.archive()
    path = Path(Archive(SYSTEM_FILES, done.archive, TOPIC).manifest_path)
    content = path.read_bytes()
    found = opened(store)
    if harm == "gone":
        path.unlink()
    elif harm == "later":
        later = msgspec.structs.replace(manifest_of(done.archive), version=2)
        replace_file(SYSTEM_FILES, str(path), fmt.encode(later))
    else:
        at = content.index(b'"rows"') + 8
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.write_bytes({"bit": flipped, "cut": content[:-50], "empty": b""}[harm])
    before = sorted(Path(done.archive).rglob("*"))
    for use in (found.read, topic.archive, lambda: opened(store), lambda: len(found)):
        with pytest.raises(esker.EskerError, match="othing was touched") as caught:
            use()  # type: ignore[operator]
        if harm == "later":
            assert isinstance(caught.value, esker.FormatTooNew)
        else:
            assert isinstance(caught.value, esker.Corruption)
            assert caught.value.path == str(path)
    assert sorted(Path(done.archive).rglob("*")) == before
    path.write_bytes(content)
    assert list(found.read()) == logged(topic, done.ends)


def test_a_file_that_is_not_what_its_manifest_says_is_told(store: esker.Store) -> None:
    """Forged with a right checksum: what is in it does not fit, or is no Parquet at all."""
    topic = store.create("t", segment_records=10)
    topic.append_many([b"x"] * 10)
    topic.append_many([b"x"] * 10)
    store.tick()
    done = topic.archive()
    manifest = manifest_of(done.archive, "t")
    (file,) = manifest.files
    place = Archive(SYSTEM_FILES, done.archive, "t")
    path = Path(place.path_of(file))
    short = pq.read_table(pa.BufferReader(path.read_bytes())).slice(1)
    pq.write_table(short, path)
    for told in ("another number of rows", "cannot be read"):
        content = path.read_bytes()
        forged = msgspec.structs.replace(
            file, bytes=len(content), checksum=f"{storage.checksum(content):016x}"
        )
        place.commit(msgspec.structs.replace(manifest, files=(forged,)))
        with pytest.raises(esker.Corruption, match=told):
            list(opened(store, "t").read())
        path.write_bytes(b"PAR1" + b"x" * 100 + b"PAR1")


# ---- refused ---------------------------------------------------------------------------------


def test_what_cannot_be_archived_or_is_no_place_is_refused(
    store: esker.Store, tmp_path: Path
) -> None:
    topic = fill(store)
    with pytest.raises(esker.InvalidOption, match=r"'what://there/archive' cannot be opened"):
        topic.archive("what://user:secret@there/archive")
    with pytest.raises(esker.InvalidOption, match=r"'what://there/archive' cannot be opened"):
        esker.open_archive("what://there/archive?key=secret", TOPIC)
    with pytest.raises(esker.InvalidOption, match="the store itself"):
        topic.archive(store.path)
    for wrong in (7, "", "a\0b", b"bytes"):
        with pytest.raises(esker.InvalidOption, match="not the path"):
            topic.archive(wrong)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidOption, match="which archive"):
        esker.open_archive(None, TOPIC)
    with pytest.raises(esker.InvalidOption, match="zstd, snappy, none"):
        topic.archive(compression="lzo")
    with pytest.raises(esker.InvalidOption, match="target_bytes"):
        topic.archive(target_bytes=0)
    with pytest.raises(esker.TopicNotFound):
        store["nothing"].archive()
    with pytest.raises(esker.InvalidOption, match="kept in memory"):
        store.create("gone", durability="ephemeral").archive()
    refused = pytest.raises(esker.InvalidOption, match="kept in memory")
    with esker.open("/store", files=MemoryFiles()) as other, refused:
        other.create("t").archive(tmp_path / "to")
    assert not Path(store.path, "archive").exists()
    assert not (tmp_path / "to").exists()


def test_whoever_opens_the_wrong_thing_is_told_the_right_one(
    store: esker.Store, tmp_path: Path
) -> None:
    fill(store).archive()
    place = f"{store.path}/archive"
    for mode in ("r", "rw"):
        with pytest.raises(esker.NotAStore, match=r"is an archive.*esker\.open_archive\("):
            esker.open(place, mode)  # type: ignore[arg-type]
    with pytest.raises(esker.NotAStore, match=rf"is a store.*{place}"):
        esker.open_archive(store.path, TOPIC)
    with pytest.raises(esker.TopicNotFound, match=r"did you mean 'orders:eu'"):
        esker.open_archive(place, "orders:us")
    with pytest.raises(esker.NotAStore, match="there is no archive"):
        esker.open_archive(tmp_path / "nothing", TOPIC)
    with pytest.raises(esker.InvalidName):
        esker.open_archive(place, "no such name!")
    assert not (tmp_path / "nothing").exists()


def test_an_archive_of_another_store_or_topic_is_refused(
    store: esker.Store, tmp_path: Path
) -> None:
    fill(store).archive(tmp_path / "to")
    refused = pytest.raises(esker.InvalidOption, match="of another store")
    with esker.open(tmp_path / "other", background=False) as other, refused:
        fill(other).archive(tmp_path / "to")
    store.delete(TOPIC)
    with pytest.raises(esker.InvalidOption, match="an earlier topic"):
        fill(store).archive(tmp_path / "to")


def test_a_log_that_is_older_than_its_archive_is_refused(tmp_path: Path) -> None:
    """From a backup: its next records would get offsets that the archive has."""
    disk = SimulatedDisk()
    small(disk)._store.close()
    backup = disk.kill()
    with on(backup) as store:
        for begin in range(78, 300, 6):
            store["t"].append_many(records(begin, 6))
        store.tick()
        ends = store["t"].archive("/archive").ends
        newer = [path for path in backup.contents() if path.startswith("/archive/")]
        content = backup.contents()
    for path in newer:
        storage.make_dirs(disk, path.rpartition("/")[0])
        replace_file(disk, path, content[path])
    with on(disk) as store:
        assert store["t"].end(0) < ends[0]
        with pytest.raises(esker.Corruption, match="ends before its archive does"):
            store["t"].archive("/archive")


def test_a_topic_whose_name_needs_an_escape_lies_where_hive_expects_it(
    store: esker.Store,
) -> None:
    done = fill(store).archive()
    assert Path(done.archive, names.archived_topic(TOPIC), names.MANIFEST).exists()
