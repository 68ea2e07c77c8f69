"""Deleting single records, by their tags: at once, for good, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import erasing
from esker.storage import marks
from tests.helpers import HandClock, Refusing

TAGS = ("order-1", "order-10", "order-2", None, "ordre", "örder-1", "order-1/a")


def fill(topic: Any, count: int = 70, begin: int = 0) -> None:
    """Records whose tags take turns, in batches of a few."""
    for first in range(begin, begin + count, 7):
        topic.append_many(
            [esker.Record(b"%d" % n, tag=TAGS[n % len(TAGS)]) for n in range(first, first + 7)]
        )


def there(topic: Any, **how: Any) -> list[tuple[int, bytes, str | None]]:
    return [(record.offset, record.value, record.tag) for record in topic.read(**how)]


def left(matching: Any, count: int = 70) -> list[tuple[int, bytes, str | None]]:
    whole = [(n, b"%d" % n, TAGS[n % len(TAGS)]) for n in range(count)]
    return [record for record in whole if not matching(record)]


def files_of(path: Any) -> list[str]:
    return sorted(each.name for each in Path(path).rglob("deletions-*"))


@pytest.fixture(autouse=True, params=[0, 1 << 30], ids=["indexed", "scanned"])
def index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Everything holds with an index of tags and without one."""
    monkeypatch.setattr(erasing, "INDEX_ROWS_MIN", request.param)
    return not request.param


@pytest.fixture(params=["disk", "fsync", "memory", "ephemeral"])
def topic(request: pytest.FixtureRequest, still: esker.Store) -> Any:
    made = still.create("t", durability=request.param, segment_records=20)
    fill(made)
    made.sync()
    still.tick()
    return made


CASES = [
    ({"tag": "order-1"}, lambda r: r[2] == "order-1"),
    ({"tag": "order-1", "before": 30}, lambda r: r[2] == "order-1" and r[0] < 30),
    ({"tag": "order"}, lambda r: False),
    ({"tag": "örder-1"}, lambda r: r[2] == "örder-1"),
    ({"tag_prefix": "order-"}, lambda r: bool(r[2]) and r[2].startswith("order-")),
    ({"tag_prefix": "ö"}, lambda r: bool(r[2]) and r[2].startswith("ö")),
    ({"tag_prefix": "order-1", "before": 41},
     lambda r: bool(r[2]) and r[2].startswith("order-1") and r[0] < 41),
    ({"tag_prefix": "o", "before": "latest"}, lambda r: bool(r[2]) and r[2][0] == "o"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "matching"), CASES, ids=[str(how) for how, _ in CASES])
def test_what_matches_is_gone_and_nothing_else(topic: Any, how: Any, matching: Any) -> None:
    wanted = left(matching)
    assert topic.delete(**how) == 70 - len(wanted)
    assert topic.delete(**how) == 0, "it is done"
    assert there(topic) == wanted
    assert there(topic, gaps="raise") == wanted
    assert len(topic) == len(topic[:]) == len(wanted)
    assert [r.offset for r in topic.follow("earliest", timeout=0)] == [r[0] for r in wanted]
    offsets = [r[0] for r in wanted]
    for back in (1, 5, len(wanted) // 2, len(wanted)):
        assert [r.offset for r in topic.read(-back)] == offsets[-back:]
        assert topic[-back].offset == offsets[-back]
    for offset in range(70):
        if offset in offsets:
            assert topic[offset].offset == offset
        else:
            with pytest.raises(esker.OffsetOutOfRange, match=f"offset {offset} .* was deleted"):
                topic[offset]
    assert len(topic[10:50]) == sum(10 <= offset < 50 for offset in offsets)
    assert topic[10:50].to_arrow()["offset"].to_pylist() == [n for n in offsets if 10 <= n < 50]


@pytest.mark.parametrize("topic", ["disk", "fsync", "memory"], indirect=True)
def test_it_stays_so_for_other_processes_and_after_closing(topic: Any, still: esker.Store) -> None:
    wanted = left(lambda r: r[2] in ("order-1", "order-2"))
    with esker.open(still.path, mode="r") as beside:
        assert len(there(beside["t"])) == 70
        topic.delete(tag="order-1")
        topic.delete(tag="order-2")
        assert there(beside["t"]) == wanted
        assert len(beside["t"]) == len(wanted)
    still.close()
    for mode in ("r", "rw", "rw"):
        with esker.open(still.path, mode=mode) as store:
            assert there(store["t"]) == wanted
            assert store.recovery.clean
    with esker.open(still.path) as store:
        assert store["t"].append(b"next", tag="order-1", wait=True) == 70
        assert len(store["t"]) == len(wanted) + 1
    assert esker.verify(still.path).ok


def test_what_comes_later_is_not_concerned(still: esker.Store) -> None:
    """A deletion is of a point in time: also records still in the buffer, no later ones."""
    topic = still.create("t")
    topic.append(b"buffered", tag="a")
    assert topic.delete(tag="a") == 1
    topic.append(b"later", tag="a", wait=True)
    assert [record.value for record in topic.read()] == [b"later"]


def test_a_deletion_is_bounded_by_the_end_as_it_was(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that come while the matching ones are looked for stay."""
    topic = still.create("t")
    topic.append_many([esker.Record(b"early", tag="a")] * 3, wait=True)
    real = erasing._found

    def slow(*arguments: Any) -> Any:
        topic.append_many([esker.Record(b"meanwhile", tag="a")] * 2, wait=True)
        return real(*arguments)

    monkeypatch.setattr(erasing, "_found", slow)
    assert topic.delete(tag="a") == 3
    assert [record.value for record in topic.read()] == [b"meanwhile"] * 2


def test_every_shard_is_looked_at_or_the_one_that_is_named(still: esker.Store) -> None:
    topic = still.create("t", shards=3)
    for n in range(60):
        topic.append(b"%d" % n, key=b"%d" % n, tag="even" if n % 2 == 0 else "odd")
    topic.sync()
    of_one = sum(1 for record in topic.read(shard=1) if record.tag == "odd")
    assert topic.delete(tag="odd", shard=1) == of_one
    assert topic.delete(tag="odd") == 30 - of_one
    assert sorted(int(record.value) for record in topic.read()) == list(range(0, 60, 2))
    with pytest.raises(esker.InvalidOption, match="shard"):
        topic.delete(5, tag="even")


def test_a_reader_on_its_way_is_spared_what_it_has_not_read(still: esker.Store) -> None:
    topic = still.create("t", segment_records=7)
    fill(topic)
    batches = topic.batches(max_records=7)
    first = next(batches)
    topic.delete(tag_prefix="o")
    rest = [record.tag for batch in batches for record in batch]
    assert len(first) == 7
    assert set(rest) == {None, "örder-1"}


def test_a_follower_is_not_told_and_does_not_stop(still: esker.Store) -> None:
    topic = still.create("t")
    tail = topic.tail("earliest")
    topic.append_many([esker.Record(b"x", tag="a")] * 5, wait=True)
    topic.delete(tag="a")
    assert list(tail.take()) == []
    assert tail.cursors == {0: 5}
    topic.append(b"y", wait=True)
    assert [record.value for batch in tail.take() for record in batch] == [b"y"]


def test_deletions_and_floors_go_together(still: esker.Store) -> None:
    topic = still.create("t", segment_records=7)
    fill(topic)
    still.tick()
    assert topic.delete(tag="order-1") == 10
    assert topic.delete(35) == 30, "five of those before were deleted already"
    assert topic.delete(tag="order-1") == 0
    wanted = left(lambda r: r[0] < 35 or r[2] == "order-1")
    assert there(topic) == wanted
    still.close()
    with esker.open(still.path) as store:
        assert there(store["t"]) == wanted
        assert len(store["t"]) == len(wanted)


def test_times_are_found_among_what_is_left(still: esker.Store, clock: HandClock) -> None:
    topic = still.create("t")
    for n in range(6):
        topic.append(b"%d" % n, tag="a" if n in (2, 3) else "b", wait=True)
        clock.forward(1)
    topic.delete(tag="a")
    assert [r.offset for r in topic.read("@-4s")] == [4, 5]


# ---- caps --------------------------------------------------------------------------------------


def test_a_cap_counts_what_is_there(still: esker.Store) -> None:
    topic = still.create("t", segment_records=10, cap_records=25)
    for begin in range(0, 30, 10):
        topic.append_many(
            [esker.Record(b"%d" % n, tag="even" if n % 2 == 0 else "odd")
             for n in range(begin, begin + 10)]
        )  # fmt: skip
        still.tick()
    topic.delete(tag="odd")
    topic.append_many([b"more"] * 10)
    still.tick()
    assert len(topic) == 25
    assert topic.earliest() == 0, "fifteen and ten are within the cap"
    topic.append_many([b"more"] * 10)
    still.tick()
    assert topic.earliest() == 20, "five of the third ten, and twenty"
    assert len(topic) == 25


def test_a_full_topic_has_room_for_as_many_as_were_deleted(still: esker.Store) -> None:
    topic = still.create("t", cap_records=10, discard="reject")
    topic.append_many([esker.Record(b"x", tag="a")] * 4 + [esker.Record(b"y", tag="b")] * 6)
    with pytest.raises(esker.TopicFull):
        topic.append(b"no room")
    assert topic.delete(tag="a") == 4
    topic.append_many([b"z"] * 4)
    with pytest.raises(esker.TopicFull):
        topic.append(b"no room")
    assert len(topic) == 10


# ---- the file --------------------------------------------------------------------------------


def test_the_first_makes_a_file_and_the_next_go_behind_it(still: esker.Store) -> None:
    topic = still.create("t")
    fill(topic)
    assert files_of(still.path) == []
    topic.delete(tag="nobody")
    assert files_of(still.path) == [], "nothing was deleted"
    for tag in ("order-1", "order-10", "order-2"):
        topic.delete(tag=tag)
        assert files_of(still.path) == ["deletions-00000001"]
    assert topic.counters()["records_deleted"] == 30


def test_a_file_that_grew_too_long_is_written_anew(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "REWRITE_BYTES", 3000)
    topic = still.create("t")
    seen = set()
    for n in range(40):
        topic.append(b"%d" % n, tag=f"{n}")
        assert topic.delete(tag=f"{n}") == 1
        (name,) = files_of(still.path)
        seen.add(name)
    assert len(seen) > 3
    assert list(topic.read()) == []
    still.close()
    with esker.open(still.path) as store:
        assert list(store["t"].read()) == []
        assert len(store["t"]) == 0


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("path", ["deletions", "state"])
def test_a_disk_that_refuses_is_told_and_the_next_try_works(
    tmp_path: Path, call: str, path: str
) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t")
        fill(topic)
        topic.delete(tag="order-1")
        files.refuse(call, errno.EIO, path)
        with pytest.raises(esker.StorageError):
            topic.delete(tag="order-10")
        assert there(topic) == left(lambda r: r[2] == "order-1")
        files.allow()
        assert topic.delete(tag="order-2") == 10
        assert there(topic) == left(lambda r: r[2] in ("order-1", "order-2"))
        assert topic.delete(tag="order-10") == 10
    with esker.open(tmp_path / "data") as store:
        assert there(store["t"]) == left(lambda r: r[2] in ("order-1", "order-10", "order-2"))
    assert len(files_of(tmp_path)) == 1


def damaged(path: Path, how: str) -> None:
    (file,) = path.rglob("deletions-*")
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "short":
        file.write_bytes(data[:-8])
    elif how == "empty":
        file.write_bytes(b"")
    else:
        data[int(how)] ^= 4
        file.write_bytes(data)


@pytest.mark.damages
@pytest.mark.parametrize("how", ["missing", "short", "empty", "3", "20", "70", "200"])
def test_deleted_records_do_not_come_back_because_a_file_is_damaged(
    tmp_path: Path, how: str
) -> None:
    with esker.open(tmp_path / "data") as store:
        fill(store.create("t"))
        store["t"].delete(tag="order-1")
    damaged(tmp_path, how)
    for mode in ("r", "rw"):
        with esker.open(tmp_path / "data", mode=mode) as store:
            topic = store["t"]
            for call in (
                lambda topic=topic: list(topic.read()),
                lambda topic=topic: len(topic),
                lambda topic=topic: topic[0],
                lambda topic=topic: list(topic.follow("earliest", timeout=0)),
            ):
                with pytest.raises(esker.Corruption, match="deletions-00000001"):
                    call()
            if mode == "rw":
                assert topic.append(b"appending goes on", wait=True) == 70
                with pytest.raises(esker.Corruption, match="which records were deleted"):
                    topic.delete(tag="order-2")


def test_what_was_deleted_stays_deleted_without_a_state_page(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        fill(store.create("t"))
        store["t"].delete(tag="order-1")
        store["t"].delete(tag="order-2")
    (page,) = tmp_path.rglob("state")
    page.write_bytes(b"\xff" * page.stat().st_size)
    with esker.open(tmp_path / "data") as store:
        assert "damaged_state" in store.recovery.labels
        found = there(store["t"], gaps="skip")
        assert found == left(lambda r: r[2] in ("order-1", "order-2"))


def test_a_deletion_that_the_page_does_not_tell_of_did_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(**_: Any) -> None:
        raise KeyboardInterrupt

    with esker.open(tmp_path / "data") as store:
        topic = store.create("t")
        fill(topic)
        topic.delete(tag="order-1")
        with monkeypatch.context() as patch:
            patch.setattr(topic._shards[0].page, "store", die)
            with pytest.raises(KeyboardInterrupt):
                topic.delete(tag="order-2")
        assert there(topic) == left(lambda r: r[2] == "order-1")
    with esker.open(tmp_path / "data") as store:
        assert there(store["t"]) == left(lambda r: r[2] == "order-1")
        assert store["t"].delete(tag="order-2") == 10


# ---- the index -------------------------------------------------------------------------------


def indexes(path: Any) -> list[Path]:
    return sorted(Path(path).rglob("*.tags"))


def test_an_index_is_made_by_the_first_deletion_and_goes_with_its_segment(
    still: esker.Store, index: bool
) -> None:
    topic = still.create("t", segment_records=7)
    fill(topic)
    still.tick()
    assert indexes(still.path) == []
    topic.delete(tag="nobody")
    sealed = sorted(Path(still.path).rglob("*.seg"))
    assert len(sealed) > 5
    made = [path.with_suffix(".seg") for path in indexes(still.path)]
    assert made == (sealed if index else [])
    topic.delete(35)
    left = sorted(Path(still.path).rglob("*.seg"))
    assert [path.with_suffix(".seg") for path in indexes(still.path)] == (left if index else [])
    assert len(left) < len(sealed)


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "exchanged", "a directory"])
@pytest.mark.parametrize("index", [0], indirect=True, ids=["indexed"])
def test_an_index_that_is_not_whole_is_made_anew(still: esker.Store, index: bool, how: str) -> None:
    topic = still.create("t", segment_records=35)
    fill(topic, 105)
    still.tick()
    topic.delete(tag="nobody")
    first, second = indexes(still.path)[:2]
    whole = first.read_bytes()
    for at in range(0, len(whole), 5 if how in ("flip", "cut") else len(whole)):
        still._context.maps.clear()
        if how == "flip":
            first.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        elif how == "cut":
            first.write_bytes(whole[:at])
        elif how == "empty":
            first.write_bytes(b"")
        elif how == "exchanged":
            first.write_bytes(second.read_bytes())
        else:
            first.unlink()
            first.mkdir()
        found = list(erasing._found(topic._shards[0], erasing.Match(tag="order-2"), 105))
        assert found == list(range(2, 105, 7))
        if how == "a directory":
            first.rmdir()
        else:
            assert first.read_bytes() == whole
            first.unlink()
    assert topic.delete(tag="order-2") == 15


def test_an_index_that_nobody_has_room_for_is_done_without(tmp_path: Path, index: bool) -> None:
    files = Refusing()
    with esker.open(tmp_path / "data", files=files, background=False) as store:
        topic = store.create("t", segment_records=35)
        fill(topic)
        store.tick()
        files.refuse("create", errno.ENOSPC, ".tags")
        assert topic.delete(tag="order-2") == 10
        assert indexes(tmp_path) == []
        files.allow()
        assert topic.delete(tag="order-1") == 10
        assert bool(indexes(tmp_path)) == index


def test_an_index_without_its_segment_goes_with_the_next_recovery(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        fill(store.create("t"))
    (folder,) = (tmp_path / "data" / "topics").glob("*/0000")
    stale = folder / "00000099-00000000000000000700.tags"
    stale.write_bytes(b"of a segment that is gone")
    half = folder / "00000001-00000000000000000000.tags.tmp"
    half.write_bytes(b"half an index")
    (page,) = tmp_path.rglob("state")
    page.write_bytes(b"\xff" * page.stat().st_size)  # so that there is something to recover
    with esker.open(tmp_path / "data") as store:
        assert not stale.exists()
        assert not half.exists()
        assert set(store.recovery.labels) == {"damaged_state", "lost_tail"}


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "delete what"),
        ({"tag": ""}, "tag=''"),
        ({"tag": b"order-1"}, "tag=b'order-1'"),
        ({"tag_prefix": 7}, "tag_prefix=7"),
        ({"tag": "a", "tag_prefix": "b"}, "exclude each other"),
        ({"tag": "a", "before": "yesterday"}, "yesterday"),
        ({"tag": "a", "shard": 9}, "shard=9"),
    ],
)
def test_what_makes_no_sense_is_refused_and_deletes_nothing(
    still: esker.Store, how: Any, says: str
) -> None:
    topic = still.create("t")
    fill(topic)
    with pytest.raises((esker.InvalidOption, ValueError), match=says):
        topic.delete(**how)
    assert len(there(topic)) == 70


def test_a_store_opened_for_reading_deletes_nothing(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        fill(store.create("t"))
    with esker.open(tmp_path / "data", mode="r") as store, pytest.raises(esker.ReadOnlyStore):
        store["t"].delete(tag="order-1")


# ---- at the same time ------------------------------------------------------------------------


def test_two_who_delete_the_same_count_each_record_once(still: esker.Store) -> None:
    topic = still.create("t")
    fill(topic, 700)
    gone: list[int] = []
    threads = [
        threading.Thread(target=lambda: gone.append(topic.delete(tag_prefix="order-")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(gone) == 400
    assert len(topic) == 300


def test_async_deletes_too(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t")
            await topic.append_many([esker.Record(b"x", tag="a-1")] * 3 + [b"y"])
            gone = [await topic.delete(tag="a-1"), await topic.delete(tag_prefix="a")]
            return [*gone, *[record.offset async for record in topic.read()]]

    assert asyncio.run(run()) == [3, 0, 3]
