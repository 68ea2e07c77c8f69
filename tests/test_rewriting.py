"""Giving back the room of deleted records: what is there stays, to the last bit, for everybody."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.engine import budget, erasing, rewriting
from esker.engine.ranges import atoms, last_before
from esker.engine.reader import find_time
from esker.format.columns import Columns
from esker.format.counters import WORD
from esker.storage import blank
from esker.storage.sealed import file_hash_matches
from tests import fsck
from tests.helpers import HandClock, Refusing, child

VALUE = b"v" * 90
KEYS = 40


def record(number: int, gone: bool, now: int) -> esker.Record:
    """Everything that a record can carry; the tag says whether it is to go."""
    plain = number % 3 == 0
    return esker.Record(
        b"" if number % 11 == 5 else b"%06d" % number + VALUE,
        key=None if plain else b"key %d" % (number % KEYS),
        tag="gone" if gone else None if plain else "stays",
        node="node" if number % 5 == 0 else None,
        headers={"number": b"%d" % number, "h": b""} if number % 4 == 0 else None,
        timestamp=now + number * 1_000 - (500_000 if number % 50 == 7 else 0),
    )


def fill(topic: Any, clock: HandClock, count: int, gone: Any) -> None:
    """Batches of a few records, among them some that `gone` picks by number."""
    for first in range(0, count, 20):
        numbers = range(first, min(first + 20, count))
        topic.append_many([record(n, gone(n), clock.now_us()) for n in numbers])
    topic.sync()


def most(number: int) -> bool:
    """Most records go, in short runs and long ones; all of the fourth hundred."""
    return number % 10 < 7 or 300 <= number < 400


def everything(topic: Any) -> dict[str, Any]:
    """What all kinds of readers see of a topic."""
    views = [topic._view(number) for number in range(len(topic._shards))]
    records = list(topic.read(0))
    start = records[0].timestamp if records else 0
    return {
        "records": records,
        "arrow": topic[:].to_arrow().to_pylist(),
        "small": [r for batch in topic.batches(max_bytes=300) for r in batch.records()],
        "follow": list(topic.follow("earliest", timeout=0)),
        "one by one": [topic.get(r.offset) for r in records[::3]],
        "back": [[r.offset for r in topic.read(-n)] for n in (1, 17, 200)],
        "times": [
            find_time(view, start + ms) for view in views for ms in range(0, 1_200_000, 9_999)
        ],
        "lengths": (len(topic), len(topic[100:350]), topic.earliest(), topic.end()),
        "last before": [last_before(view, start + 400_000, view.visible) for view in views],
    }


def sealed_bytes(store: esker.Store) -> int:
    return sum(each.stat().st_size for each in Path(store.path).rglob("*.seg"))


def counted(shard: Any, name: str) -> int:
    return int(shard.counters.words[WORD[name]])


def segments_of(store: esker.Store) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(Path(store.path).rglob("*.seg"))}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a small segment is worth it."""
    monkeypatch.setattr(rewriting, "GAIN_BYTES_MIN", 1_000)
    monkeypatch.setattr(erasing, "INDEX_ROWS_MIN", 50)


@pytest.fixture(params=["disk", "fsync", "memory", "ephemeral", "zstd", "one frame"])
def topic(request: pytest.FixtureRequest, still: esker.Store, clock: HandClock) -> Any:
    kind = request.param
    durability = kind if kind in ("disk", "fsync", "memory", "ephemeral") else "disk"
    made = still.create(
        "t", durability=durability, segment_records=200,
        compression="zstd" if kind == "zstd" else "none", compress_min_bytes=256,
    )  # fmt: skip
    if kind == "one frame":  # large ones: sealing leaves them where they are
        records = [record(n, most(n), clock.now_us()) for n in range(900)]
        for first in range(0, 900, 200):
            made.append_many(records[first : first + 200])
        made.sync()
    else:
        fill(made, clock, 900, most)
    still.tick()
    return made


# ---- what is there stays ---------------------------------------------------------------------


def test_all_readers_see_the_same_before_and_after(topic: Any, still: esker.Store) -> None:
    gone = topic.delete(tag="gone")
    before = everything(topic)
    assert gone + len(before["records"]) == 900
    assert topic.reclaim() > 0
    assert everything(topic) == before
    assert topic.delete(tag="gone") == 0, "they are still deleted"
    assert topic.reclaim() == 0, "there is nothing more to gain"
    if topic._shards[0].durability == "ephemeral":
        return
    still.close()
    assert esker.verify(still.path).ok
    assert not fsck.judge(still.path).problems
    for mode in ("r", "rw"):
        with esker.open(still.path, mode=mode) as store:
            assert everything(store["t"]) == before
            assert store.recovery.clean


def test_the_bytes_are_gone_from_the_disk(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=200, compression="none")
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    before = sealed_bytes(still)
    assert any(b"gone" in data and b"000301" in data for data in segments_of(still).values())
    gained = topic.reclaim()
    assert not any(b"gone" in data or b"000301" in data for data in segments_of(still).values())
    assert not list(Path(still.path).rglob("*.tags"))
    assert not list(Path(still.path).rglob("*.log")) or topic._shards[0].active.next_row == 0
    assert sealed_bytes(still) + gained >= before  # the log was sealed, too
    assert sealed_bytes(still) < before / 2


def test_a_segment_that_is_wholly_deleted_takes_next_to_nothing(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=20_000)
    value = b"x" * 100
    for _ in range(21):
        clock.forward(1)
        topic.append_many([esker.Record(value, tag="gone", key=b"k")] * 1_000)
    topic.sync()
    still.tick()
    topic.delete(tag="gone")
    topic.reclaim()
    (first, *_) = segments_of(still).values()
    assert len(first) < 2_000, "20,000 records of one time a thousand"
    assert list(topic.read()) == []


def test_counters_and_sizes_are_exact_at_once(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    shard = topic._shards[0]
    topic.delete(tag="gone")
    reclaimed = counted(shard, "bytes_reclaimed")
    gained = topic.reclaim()
    assert counted(shard, "bytes_reclaimed") - reclaimed == gained
    on_disk = sum(e.stat().st_size for e in Path(shard.folder).iterdir() if e.suffix == ".seg")
    assert counted(shard, "segments_bytes") == on_disk + shard.active.end
    assert [each.size for each in shard.sealed] == [
        Path(each.path).stat().st_size for each in shard.sealed
    ]


def test_what_is_added_up_meanwhile_does_not_outlive_a_rewriting(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that tells the counters takes no lock."""
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 500, most)
    still.tick()
    topic.delete(tag="gone")
    shard = topic._shards[0]
    stale = shard.weighed
    real = shard._publish_segments

    def late() -> None:
        shard.weighed = stale  # of who had begun to add up before
        real()

    monkeypatch.setattr(shard, "_publish_segments", late)
    rewriting.rewrite(shard, shard.sealed[1], 1)
    on_disk = sum(Path(each.path).stat().st_size for each in shard.sealed)
    assert counted(shard, "segments_bytes") == on_disk + shard.active.end


def test_a_cap_by_bytes_counts_what_is_left(still: esker.Store, clock: HandClock) -> None:
    topic = still.create(
        "t", segment_records=200, cap_bytes="64KiB", discard="reject", compression="none"
    )
    with pytest.raises(esker.TopicFull):
        fill(topic, clock, 900, lambda n: True)
    still.tick()
    topic.delete(tag="gone")
    with pytest.raises(esker.TopicFull):
        topic.append(VALUE * 90, wait=True)
    topic.reclaim()
    topic.append(VALUE * 90, wait=True)


def test_deleting_and_rewriting_again_and_again(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=300)
    for first in range(0, 900, 20):
        numbers = range(first, first + 20)
        topic.append_many([esker.Record(b"%d" % n + VALUE, tag=f"tag {n % 7}") for n in numbers])
    topic.sync()
    still.tick()
    wanted = list(topic.read())
    sizes = [sealed_bytes(still)]
    for round_ in range(7):
        assert topic.delete(tag=f"tag {round_}") == sum(n % 7 == round_ for n in range(900))
        wanted = [r for r in wanted if r.tag != f"tag {round_}"]
        assert list(topic.read()) == wanted
        assert topic.reclaim() > 0
        assert list(topic.read()) == wanted
        sizes.append(sealed_bytes(still))
        assert not fsck.judge(still.path).problems
    assert sizes[-1] < sizes[1] / 20
    assert sizes[1:] == sorted(sizes[1:], reverse=True)
    assert topic.append(b"next", wait=True) == 900


def test_what_was_not_rewritten_is_untouched(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, lambda n: 200 <= n < 400)
    still.tick()
    before = segments_of(still)
    topic.delete(tag="gone")
    topic.reclaim()
    after = segments_of(still)
    assert [name for name in before if after[name] != before[name]] == [list(before)[1]]


def test_header_config_and_chain_are_as_they_were(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    shard = topic._shards[0]
    before = [(s.header, s.footer[:1], s.footer[2:6], bytes(s.data()[:128])) for s in shard.sealed]
    topic.delete(tag="gone")
    topic.reclaim()
    for segment, was in zip(shard.sealed, before, strict=False):
        now = segment.footer
        assert (segment.inside()[1].header, now[:1], now[2:6], bytes(segment.data()[:128])) == was
        assert file_hash_matches(segment.data())


def test_a_log_without_deleted_records_is_not_ended(still: esker.Store) -> None:
    topic = still.create("t")
    topic.append(b"here", tag="stays", wait=True)
    number = topic._shards[0].active.number
    assert topic.reclaim() == 0
    topic.delete(tag="other")
    assert topic.reclaim() == 0
    assert topic._shards[0].active.number == number


def test_every_shard_or_the_one_that_is_named(still: esker.Store) -> None:
    topic = still.create("t", shards=2)
    for n in range(100):
        topic.append(VALUE, key=b"%d" % n, tag="gone" if n < 80 else None)
    topic.delete(tag="gone")
    one, other = topic.reclaim(1), topic.reclaim()
    assert one > 0
    assert other > 0
    assert len(list(topic.read())) == 20


def test_the_asyncio_twin_reclaims(tmp_path: Path) -> None:
    async def run() -> int:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t")
            for _ in range(50):
                await topic.append(VALUE, tag="gone")
            await topic.delete(tag="gone")
            return int(await topic.reclaim())

    assert asyncio.run(run()) > 3_000


# ---- when ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "least", "expected"), [(0.6, 1_000, True), (0.4, 1_000, False), (0.6, 1 << 20, False)]
)
def test_the_background_rewrites_what_is_worth_it(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch, share: float,
    least: int, expected: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(rewriting, "GAIN_BYTES_MIN", least)
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 500, lambda n: n % 100 < share * 100)
    still.tick()
    topic.delete(tag="gone")
    before, records = sealed_bytes(still), list(topic.read())
    still.tick()
    assert (sealed_bytes(still) < before) == expected
    assert list(topic.read()) == records
    after = segments_of(still)
    still.tick()
    assert segments_of(still) == after


def test_the_threads_do_so_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esker.engine.background.RETAIN_LOOK", 0.05)
    with esker.open(tmp_path / "data") as store:
        topic = store.create("t", segment_records=100)
        for _ in range(5):
            topic.append_many([esker.Record(VALUE, tag="gone")] * 99 + [b"stays"])
        topic.delete(tag="gone")
        shard, patience = topic._shards[0], threading.Event()
        for _ in range(600):
            if shard.rewritten >= 4:
                break
            patience.wait(0.1)
        assert shard.rewritten >= 4
        assert [r.value for r in topic.read()] == [b"stays"] * 5


def test_a_look_takes_no_more_than_it_may(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t", segment_records=100)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    shard = topic._shards[0]
    monkeypatch.setattr(rewriting, "LOOK_BYTES_MAX", max(s.size for s in shard.sealed) + 1)
    done = []
    for _ in range(5):
        still.tick()
        done.append(shard.rewritten)
    assert done == [2, 4, 6, 8, 8]


def test_a_pause_comes_between_two_segments(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    still.pause_maintenance()
    still.tick()
    shard, real = topic._shards[0], rewriting.copy_blank
    assert shard.rewritten == 0
    still.resume_maintenance()

    def and_pause(*arguments: Any) -> int:
        assert [work.what for work in still.maintenance().doing] == ["rewriting"]
        still._context.background.paused = True
        return real(*arguments)

    monkeypatch.setattr(rewriting, "copy_blank", and_pause)
    still.tick()
    assert shard.rewritten == 1
    monkeypatch.setattr(rewriting, "copy_blank", real)
    still.resume_maintenance()
    still.tick()
    assert shard.rewritten == 4


def test_after_a_restart_nothing_is_written_for_nothing(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    topic.reclaim()
    still.close()
    files = Refusing()
    with esker.open(still.path, files=files, background=False) as store:
        store["t"].append(b"next", wait=True)
        store.tick()
        assert not [path for call, path in files.calls if call == "create" and ".seg" in path]
        assert store["t"].reclaim() == 0


# ---- what goes wrong -------------------------------------------------------------------------


@pytest.mark.damages
@pytest.mark.parametrize("where", ["frame", "config", "trailer"])
def test_a_damaged_segment_is_left_alone(still: esker.Store, clock: HandClock, where: str) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 600, most)
    still.tick()
    topic.delete(tag="gone")
    first, second = topic._shards[0].sealed[:2]
    path = Path(first.path)
    data = bytearray(path.read_bytes())
    frame = first.footer.positions[0]
    at = {"frame": frame + 200, "config": frame - 40, "trailer": len(data) - 12}[where]
    still.close()
    data[at] ^= 1
    path.write_bytes(data)
    with esker.open(still.path, background=False) as store:
        store["t"].append(b"next", wait=True)
        size = second.size
        assert store["t"].reclaim() > 0
        store.tick()
        assert path.read_bytes() == data
        assert Path(second.path).stat().st_size < size
        assert not list(Path(store.path).rglob("*.tmp"))


def test_a_segment_with_a_hole_is_left_alone(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "INDEX_ROWS_MIN", 1 << 30)
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 300, most)
    topic.append_many([b"x" * 1_000] * 600)
    still.tick()
    topic.delete(tag="gone")
    shard = topic._shards[0]
    path, at = Path(shard.sealed[0].path), shard.sealed[0].footer.positions[0] + 200
    still.close()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    esker.repair(still.path)
    before = path.read_bytes()
    with esker.open(still.path, background=False) as store:
        store["t"].append(b"next", wait=True)
        gaps = list(store["t"].read(0, gaps="yield"))
        store["t"].reclaim()
        assert path.read_bytes() == before
        assert list(store["t"].read(0, gaps="yield")) == gaps


@pytest.mark.damages
def test_nothing_is_rewritten_where_nobody_knows_what_is_deleted(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 600, most)
    still.tick()
    topic.delete(tag="gone")
    (marks,) = Path(still.path).rglob("deletions-*")
    still.close()
    data = bytearray(marks.read_bytes())
    data[200] ^= 1
    marks.write_bytes(data)
    before = segments_of(still)
    with esker.open(still.path, background=False) as store:
        store["t"].append(b"next", wait=True)
        store.tick()
        with pytest.raises(esker.Corruption, match="deletions"):
            store["t"].reclaim()
    assert segments_of(still).items() >= before.items()


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename", "sync_dir"])
def test_a_failed_rewriting_costs_nothing_and_is_tried_again(
    tmp_path: Path, clock: HandClock, call: str
) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, clock=clock, background=False) as store:
        topic = store.create("t", segment_records=200)
        fill(topic, clock, 600, most)
        store.tick()
        topic.delete(tag="gone")
        before = list(topic.read())
        files.refuse(call, errno.ENOSPC, "" if call == "sync_dir" else ".seg.tmp")
        store.tick()
        assert counted(topic._shards[0], "retention_errors") > 0
        assert not list(tmp_path.rglob("*.tmp"))
        assert list(topic.read()) == before
        files.allow()
        topic.append(b"goes on", wait=True)
        store.tick()
        assert list(topic.read())[:-1] == before
        assert topic._shards[0].rewritten >= 2


def test_a_segment_that_is_evicted_meanwhile_does_not_come_back(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 600, most)
    still.tick()
    topic.delete(tag="gone")
    shard = topic._shards[0]
    first, real = shard.sealed[0], rewriting.copy_blank

    def slow(*arguments: Any) -> int:
        made = real(*arguments)
        topic.delete(250)
        return made

    monkeypatch.setattr(rewriting, "copy_blank", slow)
    assert rewriting.rewrite(shard, first, 1) == 0
    assert not Path(first.path).exists()
    assert not list(Path(still.path).rglob("*.tmp"))
    assert next(topic.read()).offset >= 250


# ---- readers beside it -----------------------------------------------------------------------


def test_who_has_the_old_file_goes_on_with_it(still: esker.Store, clock: HandClock) -> None:
    """Batches that were handed out stand on the old file; so does a loop that is half-way."""
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    wanted = list(topic.read())
    with esker.open(still.path, mode="r") as beside:
        loops = [each.batches(max_records=5) for each in (topic, beside["t"])]
        first = [next(loop) for loop in loops]
        topic.reclaim()
        for begun, loop in zip(first, loops, strict=True):
            rest = [begun, *loop]
            assert [r for batch in rest for r in batch.records()] == wanted


def test_a_directory_is_never_used_with_the_bytes_of_the_other_file(
    still: esker.Store, clock: HandClock
) -> None:
    """A mapping may be let go at any time, and the next one is of the file that is there then."""
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    with esker.open(still.path, mode="r") as beside:
        view = beside["t"]._view(0)
        before = everything(beside["t"])
        old = [segment.footer for segment in view.segments[:4]]
        topic.reclaim()
        beside._context.maps.clear()
        for segment, footer in zip(view.segments, old, strict=False):
            segment.read(150, 200, 1 << 20)
            assert segment.footer is not footer
        assert everything(beside["t"]) == before
        assert [a.end for a in atoms(view, 0, view.visible)][-1] == view.visible


def test_a_reader_that_has_not_heard_of_the_deletion_sees_no_blank_record(
    still: esker.Store, clock: HandClock
) -> None:
    """It looked at the shard before the deletion, and maps the segment after the rewriting."""
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    whole = list(topic.read())
    with esker.open(still.path, mode="r") as beside:
        loop = beside["t"].batches(max_records=1)
        stays, goes = next(r for r in whole if r.tag != "gone"), whole[220]
        assert goes.tag == "gone"
        view = beside["t"]._view(0)
        next(loop)
        single = beside["t"]
        single._known_view = lambda shard, offset: view  # its look was before, too
        topic.delete(tag="gone")
        topic.reclaim()
        wanted = list(topic.read())
        seen = [r for batch in loop for r in batch.records()]
        assert all(r in whole for r in seen)
        assert seen[-len(wanted) + 60 :] == wanted[-len(wanted) + 60 :]
        assert single.get(stays.offset) == stays
        with pytest.raises(esker.OffsetOutOfRange, match="deleted"):
            single.get(goes.offset)


def test_a_single_look_up_that_was_overtaken_finds_no_blank_record(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    with esker.open(still.path, mode="r") as beside:
        reader = beside["t"]
        view = reader._view(0)
        reader._known_view = lambda shard, offset: view
        topic.delete(tag="gone")
        topic.reclaim()
        assert not view.marks, "it has not looked since"
        with pytest.raises(esker.OffsetOutOfRange, match="deleted"):
            reader.get(301)


def test_the_room_of_the_old_file_is_free_when_readers_have_looked_again(
    still: esker.Store, clock: HandClock
) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    with esker.open(still.path, mode="r") as beside:
        list(beside["t"].read())
        mapped = beside._context.maps.bytes
        budget.weight(beside["t"]._view(0))
        topic.reclaim()
        view = beside["t"]._view(0)
        assert beside._context.maps.bytes == 0
        assert budget.weight(view) == sealed_bytes(still)
        list(beside["t"].read())
        assert 0 < beside._context.maps.bytes < mapped
        assert topic._shards[0].maps.bytes <= beside._context.maps.bytes


def test_another_process_reads_through_rewritings(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    wanted = [r.offset for r in topic.read()]
    code = f"""
        import sys, esker
        store = esker.open({still.path!r}, mode="r")
        for turn in range(3):
            found = [r.offset for r in store["t"].read()]
            assert all(r.value or r.offset % 11 == 5 for r in store["t"].read())
            print(found, flush=True)
            sys.stdin.readline()
    """
    with child(code) as other:
        assert eval(other.line()) == wanted
        topic.reclaim()
        other.say()
        assert eval(other.line()) == wanted
        topic.delete(tag="stays")
        topic.reclaim()
        wanted = [r.offset for r in topic.read()]
        other.say()
        assert eval(other.line()) == wanted


def test_marks_stay_for_as_long_as_the_segment_does(still: esker.Store, clock: HandClock) -> None:
    """Also below the beginning of the shard: a reader may come upon a blank row there."""
    topic = still.create("t", segment_records=10_000)
    topic.append_many([esker.Record(VALUE, tag="gone")] * 9_000 + [esker.Record(b"b", tag="b")] * 9)
    topic.append_many([b"more"] * 2_000)
    topic.sync()
    still.tick()
    topic.delete(tag="gone", before=5_000)
    topic.reclaim()
    topic.delete(8_500)
    topic.delete(tag="b")
    assert 4_000 in topic._shards[0].marks
    assert len(topic) == 500 + 2_000


def test_a_task_planned_before_a_rewriting_reads_all_of_its_span(
    still: esker.Store, clock: HandClock
) -> None:
    plan = pytest.importorskip("esker.spark.plan")
    local = pytest.importorskip("esker.spark.local")
    topic = still.create("t", segment_records=200)
    fill(topic, clock, 900, most)
    still.tick()
    topic.delete(tag="gone")
    wanted = [r.offset for r in topic.read()]
    try:
        place = local.Directory(still.path)
        seen = place.look("t", ())
        span = plan.Span("t", seen.id, 0, 0, 900)
        tasks = plan.divide([(span, seen.views[0])], parts=5)
        topic.reclaim()
        found = []
        for task in tasks:
            for each in task:
                for item in place.read(each):
                    assert not isinstance(item, esker.Gap), item
                    found += item.offsets.to_pylist()
        assert found == wanted
    finally:
        local.let_go()


# ---- the copy --------------------------------------------------------------------------------


def test_blank_rows_keep_their_time_and_nothing_else() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = Columns(
        pa.array([b"a", b"bb", b"", b"dddd"]), pa.array([4, 1, 3, 2]),
        pa.array([b"k", None, b"", b"l"], pa.binary()), pa.array(["t", "u", None, "w"]),
        pa.array([None, "n", None, None], pa.string()),
        pa.array([[], [{"key": "h", "value": b"v"}], [], [{"key": "i", "value": b""}]], kind),
    )  # fmt: skip
    left = blank.blank(columns, pa.array([False, True, False, True]))
    assert left.values.to_pylist() == [b"a", b"", b"", b""]
    assert left.timestamps.to_pylist() == [4, 1, 3, 2]
    assert left.keys.to_pylist() == [b"k", None, b"", None]
    assert left.tags.to_pylist() == ["t", None, None, None]
    assert left.nodes is None
    assert left.headers is None
    some = blank.blank(columns.slice(1, 3), pa.array([False, True, False]))
    assert some.headers.to_pylist() == [
        [{"key": "h", "value": b"v"}], [], [{"key": "i", "value": b""}]
    ]  # fmt: skip
    assert some.nodes.to_pylist() == ["n", None, None]
