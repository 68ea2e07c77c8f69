"""Sealed segments in a cold store: the same to everybody who reads, wherever they lie."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.cli.main import main
from esker.engine import tiering
from esker.format import names
from esker.testing import ManualClock


def opened(folder: Path, mode: Any = "rw", **options: Any) -> esker.Store:
    how = {"cold": str(folder / "cold"), "background": False, "clock": ManualClock()} | options
    return esker.open(folder / "store", mode, **how)


def filled(store: esker.Store, count: int = 50, name: str = "t", **options: Any) -> esker.Topic:
    """A topic of so many records, ten of them in a segment."""
    topic = store.create(name, segment_records=10, durability="disk", **options)
    for first in range(0, count, 10):
        topic.append_many(
            [esker.Record(b"%d " % n + b"v" * 200, tag=f"t{n}") for n in range(first, first + 10)]
        )
    topic.sync()
    store.tick()
    return topic


def values(topic: esker.Topic) -> list[int]:
    return [int(record.value.split()[0]) for record in topic.read("earliest")]


def cold_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cold").rglob("*") if path.is_file())


def segments(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "store").rglob("*.seg")}


@pytest.fixture
def still(tmp_path: Path) -> Iterator[esker.Store]:
    with opened(tmp_path) as store:
        yield store


ODD: dict[str, Any] = {
    "link": lambda path, aside: path.symlink_to(aside),
    "loop": lambda path, aside: path.symlink_to(path),
    "dangling": lambda path, aside: path.symlink_to(aside.with_name("nowhere")),
    "device": lambda path, aside: path.symlink_to("/dev/zero"),
    "pipe": lambda path, aside: os.mkfifo(path),
    "directory": lambda path, aside: path.mkdir(),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_in_a_cold_folder_is_neither_followed_nor_waited_for(
    still: esker.Store, tmp_path: Path, odd: str
) -> None:
    topic = filled(still)
    still.tier("t", "cold")
    moved = cold_files(tmp_path)[0]
    aside, data = tmp_path / "aside", moved.read_bytes()
    moved.rename(aside)
    ODD[odd](moved, aside)
    with pytest.raises(esker.ColdUnavailable, match="cold"):
        list(topic.read(0))
    assert aside.read_bytes() == data
    moved.rmdir() if odd == "directory" else moved.unlink()
    aside.rename(moved)
    assert values(topic) == list(range(50))


def test_what_was_moved_reads_as_before_here_and_elsewhere(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still)
    before = segments(tmp_path)
    with opened(tmp_path, "r") as beside:
        wanted = list(beside["t"].read(0))
        moved = still.tier("t", "cold")
        assert moved == esker.Tiered("t", "cold", 4, sum(before.values()))
        assert str(moved).startswith("topic 't': 4 segments of ")
        assert len(cold_files(tmp_path)) == 4
        assert sum(segments(tmp_path).values()) < sum(before.values()) / 2
        assert segments(tmp_path).keys() == before.keys()
        assert list(topic.read(0)) == wanted == list(beside["t"].read(0))
        assert topic[7] == beside["t"][7] == wanted[7]
        assert topic.earliest() == 0
        assert len(topic) == 50
        with opened(tmp_path, "r", cold="") as without:
            assert list(without["t"].read(0)) == wanted, "the stub says where the rest is"
    assert still.tier("t", "cold").segments == 0, "they are there already"


def test_what_is_brought_back_is_what_it_was(still: esker.Store, tmp_path: Path) -> None:
    topic = filled(still)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "store").rglob("*.seg")}
    still.tier("t", "cold")
    with opened(tmp_path, "r") as beside:
        assert values(beside["t"]) == list(range(50))
        back = topic.tier("hot")
        assert (back.segments, back.to) == (4, "hot")
        assert str(back).endswith("bytes brought back")
        assert cold_files(tmp_path) == []
        assert values(beside["t"]) == values(topic) == list(range(50))
    now = {path.name: path.read_bytes() for path in (tmp_path / "store").rglob("*.seg")}
    assert now == kept
    assert topic.tier("hot").segments == 0


def test_only_what_lies_wholly_before_a_position_is_moved(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still)
    assert topic.tier("cold", before=29).segments == 2
    assert topic.tier("cold", before=30).segments == 1
    assert topic.tier("hot", before=10).segments == 1
    assert values(topic) == list(range(50))
    assert [segment.place is None for segment in topic._shards[0].sealed] == [
        True, False, False, True,
    ]  # fmt: skip


def test_an_offset_needs_a_shard_where_there_are_several(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still, shards=2)
    with pytest.raises(esker.InvalidOption, match="say which with shard=N"):
        topic.tier("cold", before=10)
    first = topic.tier("cold", shard=0).segments
    assert topic.tier("cold").segments + first == len(cold_files(tmp_path)) > first


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, cold="") as store:
        topic = filled(store)
        with pytest.raises(esker.InvalidOption, match="there is no cold store"):
            topic.tier("cold")
        with pytest.raises(esker.InvalidOption, match="one of"):
            topic.tier("warm")  # type: ignore[arg-type]
    for wrong in (3, "a\0b", tmp_path / "store" / "cold", tmp_path / "store", "x" * 2000):
        with pytest.raises(esker.InvalidOption, match="cold="):
            opened(tmp_path, cold=wrong)
    with pytest.raises(esker.InvalidOption, match="in memory"):
        esker.open(":memory:", cold=str(tmp_path / "cold"))
    with opened(tmp_path, "r") as store, pytest.raises(esker.ReadOnlyStore):
        store.tier("t", "cold")


def test_a_topic_that_is_kept_in_memory_stays_there(still: esker.Store, tmp_path: Path) -> None:
    topic = still.create("m", segment_records=10, durability="ephemeral")
    topic.append_many([b"x" * 500] * 10)
    topic.append_many([b"x" * 500] * 10)
    assert topic.tier("cold").segments == 0
    assert cold_files(tmp_path) == []


def test_a_stub_that_would_not_be_smaller_is_not_made(still: esker.Store, tmp_path: Path) -> None:
    topic = still.create("t", segment_records=1)
    for _ in range(3):
        topic.append_many([b"x"])
    assert topic.tier("cold").segments == 0
    assert cold_files(tmp_path) == []


def test_it_stays_so_after_closing_and_after_a_death(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    with opened(tmp_path, cold="") as store:
        assert store.recovery.findings == []
        topic = store["t"]
        assert values(topic) == list(range(50))
        topic.append_many([b"%d" % n for n in range(50, 70)])
        store.tick()
        assert values(topic) == list(range(70))
        assert topic.tier("hot").segments == 4, "which needs no option"
    assert cold_files(tmp_path) == []


def test_where_the_option_says_counts_and_then_where_the_stub_says(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    with opened(tmp_path, "r", cold=str(tmp_path / "other")) as store:
        assert values(store["t"]) == list(range(50)), "not moved yet"
    (tmp_path / "cold").rename(tmp_path / "other")
    with opened(tmp_path, "r", cold="") as store, pytest.raises(esker.ColdUnavailable):
        values(store["t"])
    with opened(tmp_path, cold=str(tmp_path / "other")) as store:
        assert values(store["t"]) == list(range(50))
        store.tier("t", "hot", before=10)
        assert len(list((tmp_path / "other").rglob("*.seg-*"))) == 3


def test_a_cold_store_that_does_not_answer_is_told_and_costs_nothing_else(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still)
    still.tier("t", "cold", before=20)
    hidden = (tmp_path / "cold").rename(tmp_path / "elsewhere")
    with pytest.raises(esker.ColdUnavailable) as told:
        values(topic)
    said = str(told.value)
    for part in ("topic 't' shard 0", "offsets 0..9", str(tmp_path / "cold"), "try again"):
        assert part in said
    assert told.value.missing
    assert told.value.key in told.value.path
    with pytest.raises(esker.ColdUnavailable, match="topic 't' shard 0"):
        topic[3]
    assert [record.offset for record in topic.read(20)] == list(range(20, 50))
    topic.append(b"50", wait=True)
    assert topic[-1].value == b"50"
    with pytest.raises(esker.ColdUnavailable, match="write"):
        topic.tier("cold")
    with pytest.raises(esker.ColdUnavailable, match="read"):
        topic.tier("hot")
    hidden.rename(tmp_path / "cold")
    assert values(topic) == list(range(51))


@pytest.mark.parametrize("how", ["changed", "shorter", "no trailer", "another"])
def test_what_is_fetched_is_not_believed(how: str, still: esker.Store, tmp_path: Path) -> None:
    topic = filled(still)
    still.tier("t", "cold")
    path, other, *_ = cold_files(tmp_path)
    data = bytearray(path.read_bytes())
    if how == "changed":
        data[700] ^= 1
    elif how == "shorter":
        del data[-1:]
    elif how == "no trailer":
        data[-32:] = bytes(32)
    else:
        data = bytearray(other.read_bytes())
    path.write_bytes(data)
    with pytest.raises(esker.Corruption) as told:
        values(topic)
    assert (told.value.first, told.value.last) == (0, 9)
    with pytest.raises(esker.Corruption):
        topic.tier("hot")
    assert path.exists()
    assert [record.offset for record in topic.read(10)] == list(range(10, 50))


def test_it_is_read_again_before_it_counts(
    still: esker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold store that does not keep what it was given loses nothing."""
    topic = filled(still)
    before = segments(tmp_path)
    store = still._context.maps.cold.store(still._context.cold)
    real = store.put
    monkeypatch.setattr(store, "put", lambda key, data: real(key, data[:-40] + bytes(40)))
    with pytest.raises(esker.Corruption):
        topic.tier("cold")
    assert segments(tmp_path) == before
    assert values(topic) == list(range(50))
    monkeypatch.undo()
    assert topic.tier("cold").segments == 4


def test_a_damaged_segment_is_not_moved(still: esker.Store, tmp_path: Path) -> None:
    topic = filled(still)
    still.tick()
    path = min((tmp_path / "store").rglob("*.seg"))
    data = bytearray(path.read_bytes())
    data[900] ^= 1
    path.write_bytes(data)
    with pytest.raises(esker.Corruption, match="not moved"):
        topic.tier("cold")
    assert cold_files(tmp_path) == []


def test_caps_count_a_moved_segment_with_its_size_and_once(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still)
    shard = topic._shards[0]
    sizes = [segment.size for segment in shard.sealed]
    cap = sum(sizes[1:]) + shard.active.end  # type: ignore[union-attr]
    still.alter("t", cap_bytes=cap)
    plan = still.retention_plan()
    still.tier("t", "cold")
    assert [segment.size for segment in shard.sealed] == sizes
    assert still.retention_plan() == plan
    assert [(each.segments, each.bytes) for each in plan] == [(1, sizes[0])]
    with opened(tmp_path, "r") as beside:
        assert beside.retention_plan() == plan
    still.retain()
    assert still.retention_plan() == []
    assert topic.earliest() == 10
    still.tier("t", "hot")
    assert still.retention_plan() == []


def test_a_budget_counts_what_is_here(tmp_path: Path) -> None:
    with opened(tmp_path, budget_bytes="1GB") as store:
        topic = filled(store)
        before = store.maintenance().budget
        store.tier("t", "cold")
        after = store.maintenance().budget
        assert before is not None
        assert after is not None
        assert before.bytes - after.bytes > 3 * 2000
        here = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.seg"))
        assert after.bytes == here + topic._shards[0].active.end  # type: ignore[union-attr]
        with opened(tmp_path, "r", budget_bytes="1GB") as beside:
            standing = beside.maintenance().budget
            assert standing is not None
            assert standing.bytes == after.bytes
        assert topic.counters()["segments_bytes"] == after.bytes


def test_what_caps_take_of_a_cold_store_gives_a_budget_nothing_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        filled(store, name="other")
        store.tier("t", "cold")
        store.alter("t", cap_records=1)
    with opened(tmp_path, budget_bytes="6KB") as store:
        planned = store.retention_plan()
        assert {(each.topic, each.reason) for each in planned} == {
            ("t", "cap_records"), ("other", "budget_bytes"),
        }  # fmt: skip
        assert store.retain() == planned


def test_times_are_found_and_tags_deleted_in_what_was_moved(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        topic = store.create("t", segment_records=10)
        for first in range(0, 50, 10):
            topic.append_many(
                [esker.Record(b"%d " % n + b"v" * 200, tag=f"t{n}")
                 for n in range(first, first + 10)]
            )  # fmt: skip
            clock.forward(60)
        store.tier("t", "cold")
        assert next(topic.read("@-3m")).offset == 20
        assert topic.delete(tag="t13") == 1
        assert values(topic) == [n for n in range(50) if n != 13]
        assert topic.reclaim() > 0, "what it is deleted in is brought back for it"
        assert [each.place is None for each in topic._shards[0].sealed].count(True) == 1
        assert values(topic) == [n for n in range(50) if n != 13]


def test_deleting_by_tag_asks_the_cold_store_once_for_each_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    with opened(tmp_path, cold_cache_bytes=0) as store:
        topic = store["t"]
        topic.append(b"50 ", wait=True)
        assert topic.delete(tag="t7") == 1
        fetched = store.statistics()["cold_fetches"]
        assert fetched == 4
        assert topic.delete(tag="t8") == topic.delete(tag_prefix="t3") - 10 == 1
        assert store.statistics()["cold_fetches"] == fetched, "the index of its tags is here"
    (tmp_path / "cold").rename(tmp_path / "away")
    with opened(tmp_path, "rw", cold=str(tmp_path / "nowhere")) as store:
        assert store["t"].delete(tag="t9") == 1, "though nobody answers"
        for path in (tmp_path / "store").rglob("*.tags"):
            path.unlink()
        with pytest.raises(esker.ColdUnavailable):
            store["t"].delete(tag="t10")
    (tmp_path / "away").rename(tmp_path / "cold")
    with opened(tmp_path) as store:
        assert 10 in values(store["t"]), "half of a deletion is none"
        assert 9 not in values(store["t"])


def test_what_is_evicted_meanwhile_is_not_brought_back_to_life(
    still: esker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(still)
    real = tiering.fetch

    def slow(*arguments: Any) -> Any:
        topic.delete(40)
        return real(*arguments)

    monkeypatch.setattr(tiering, "fetch", slow)
    assert topic.tier("cold").segments == 0
    assert segments(tmp_path) == {}
    monkeypatch.undo()
    assert tiering.sweep(topic._shards[0]) == 1
    assert cold_files(tmp_path) == []
    assert values(topic) == list(range(40, 50))


def test_a_sweep_takes_what_no_stub_names_and_nothing_else(
    still: esker.Store, tmp_path: Path
) -> None:
    topic = filled(still)
    shard = topic._shards[0]
    still.tier("t", "cold")
    whole = cold_files(tmp_path)
    key = shard.sealed[0].place.key  # type: ignore[union-attr]
    folder = whole[0].parent
    strangers = [folder / "notes.txt", folder.parent.parent / "0000" / "x", tmp_path / "cold" / "y"]
    strangers += [folder / ("a" + whole[0].name)]
    for path in strangers:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"not ours")
    strangers += [folder / f"00000099-{7:020d}.seg-{'0' * 16}-{'0' * 16}"]  # nobody knows it
    strangers[-1].write_bytes(b"from where?")
    orphans = [
        folder / (whole[0].name[:-16] + "0" * 16),
        folder / (whole[1].name[:-16] + "0" * 16 + ".tmp"),
    ]
    for path in orphans:
        path.write_bytes(b"left")
    assert tiering.sweep(shard) == 2
    assert cold_files(tmp_path) == sorted([*whole, *strangers])
    assert names.parse_cold(key) is not None
    assert values(topic) == list(range(50))
    topic.delete(20)
    assert tiering.sweep(shard) == 2
    assert values(topic) == list(range(20, 50))


def test_a_sweep_takes_nothing_of_what_cannot_be_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    whole = cold_files(tmp_path)
    stubs = sorted((tmp_path / "store").rglob("*.seg"))
    kept = [stub.read_bytes() for stub in stubs]
    damaged = bytearray(kept[0])
    damaged[20] ^= 1  # its header
    stubs[0].write_bytes(damaged)
    at = kept[1].index(b'{"root"')
    stubs[1].write_bytes(kept[1][:at] + b"x" + kept[1][at + 1 :])
    aside = tmp_path / "store" / "quarantine"
    aside.mkdir(exist_ok=True)
    stubs[2].rename(aside / f"topics-00000001-0000-{stubs[2].name}.sealed")
    with opened(tmp_path) as store:
        shard = store["t"]._shards[0]
        store["t"].append(b"x")
        store["t"].sync()
        assert tiering.sweep(shard) == 0
        assert cold_files(tmp_path) == whole
        with pytest.raises(esker.Corruption):
            list(store["t"].read(10))


def test_a_sweep_leaves_what_may_be_the_last_of_a_segment_whose_stub_is_missing(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    whole = cold_files(tmp_path)
    stubs = sorted((tmp_path / "store").rglob("*.seg"))
    kept = stubs[1].read_bytes()
    stubs[1].unlink()
    with opened(tmp_path) as store:
        store["t"].append(b"50 ")
        assert tiering.sweep(store["t"]._shards[0]) == 0
    assert cold_files(tmp_path) == whole
    stubs[1].write_bytes(kept)  # somebody has found it again
    with opened(tmp_path) as store:
        assert values(store["t"]) == list(range(51))
        store["t"].delete(30)
        assert tiering.sweep(store["t"]._shards[0]) == 3


def test_a_damaged_footer_of_a_stub_is_taken_from_the_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)
        store.tier("t", "cold")
    stub = min((tmp_path / "store").rglob("*.seg"))
    data = bytearray(stub.read_bytes())
    data[-10] ^= 1
    stub.write_bytes(data)
    with opened(tmp_path) as store:
        assert values(store["t"]) == list(range(50))
        assert store["t"]._followers[0].segments[0].rebuilt  # type: ignore[attr-defined]


def test_the_catalog_is_found_again_in_stubs(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        topic = filled(store)
        topic.append_many([b"50"])
        store.tier("t", "cold")
    for path in (tmp_path / "store").glob("catalog-*"):
        path.write_bytes(b"rotten")
    for path in (tmp_path / "store").rglob("*.log"):
        assert path.stat().st_size
    with opened(tmp_path) as store:
        assert values(store["t"]) == list(range(51))


def test_the_asyncio_twin_moves(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        filled(store)

    async def move() -> list[int]:
        async with esker.aopen(tmp_path / "store", cold=tmp_path / "cold") as store:
            one = await store.tier("t", "cold")
            other = await store["t"].tier("hot", before=20)
            return [one.segments, other.segments]

    assert asyncio.run(move()) == [4, 2]


def test_the_command_line_tells_what_lies_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as store:
        filled(store)
        moved = store.tier("t", "cold", before=20)
    assert main(["du", "--data", str(tmp_path / "store")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (told["topic"], told["cold_segments"], told["cold_bytes"]) == ("t", 2, moved.bytes)
