"""A topic that was deleted and made anew is another one; who was in the old one is told."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine.epochs import OFFSET_MAX
from esker.format.catalog import FORMER_MAX
from esker.testing import LOST, Call, Crash, SimulatedDisk


def told(found: Any) -> list[Any]:
    return [each if isinstance(each, esker.Gap) else each.value for each in found]


def made_anew(store: esker.Store) -> tuple[esker.Topic, int]:
    """A topic of ten records that was deleted and made anew, with three; the epoch of the first."""
    store["t"].append_many([b"old"] * 10, wait=True)
    epoch = store["t"].epoch
    store.delete("t")
    store["t"].append_many([b"new"] * 3, wait=True)
    return store["t"], epoch


def missed(first: int, last: int = 9, shard: int = 0) -> esker.Gap:
    return esker.Gap("t", shard, first, last, "recreated")


def test_every_way_to_read_tells_once_and_exactly_and_goes_on_from_the_beginning(
    still: esker.Store,
) -> None:
    topic, epoch = made_anew(still)
    expected = [missed(4), b"new", b"new", b"new"]
    how: dict[str, Any] = {"epoch": epoch, "gaps": "yield"}
    assert told(topic.read(4, **how)) == expected
    assert told(topic.follow(4, timeout=0, **how)) == expected
    gap, batch = topic.batches(4, **how)
    assert (gap, batch.values) == (missed(4), [b"new"] * 3)
    gap, batch = topic.follow_batches(4, timeout=0, **how)
    assert (gap, batch.first) == (missed(4), 0)
    part = topic.slice(4, **how)
    assert told(part) == expected
    assert len(part) == 3
    assert told(topic.read(4, 2, **how)) == expected[:3], "up to an offset of the new topic"


def test_it_is_raised_unless_somebody_asks_for_less_and_counted_if_it_is_skipped(
    still: esker.Store,
) -> None:
    topic, epoch = made_anew(still)
    with pytest.raises(esker.DataGap, match=r"offsets 4\.\.9 .*recreated") as problem:
        list(topic.read(4, epoch=epoch))
    assert problem.value.gap == missed(4)
    assert 'Begin the new topic, with start="earliest"' in str(problem.value)  # not behind 9
    with pytest.raises(esker.DataGap):
        list(topic.follow(4, timeout=0, epoch=epoch))
    before = still.statistics()["gaps_met"]
    assert told(topic.read(4, epoch=epoch, gaps="skip")) == [b"new"] * 3
    assert told(topic.follow(4, timeout=0, epoch=epoch, gaps="skip")) == [b"new"] * 3
    assert still.statistics()["gaps_met"] == before + 2


def test_a_tail_raises_it_until_somebody_asks_for_less(still: esker.Store) -> None:
    topic, epoch = made_anew(still)
    tail = topic.tail(4, epoch=epoch)
    for _ in range(2):
        with pytest.raises(esker.DataGap):
            list(tail.take())
    tail = topic.tail(4, epoch=epoch, gaps="yield")
    found = tail.take()
    assert next(found) == missed(4)
    found.close()
    assert [len(batch) for batch in tail.take()] == [3], "told once"
    assert tail.cursors == {0: 3}


def test_who_had_read_everything_missed_nothing_and_is_told_that(still: esker.Store) -> None:
    topic, epoch = made_anew(still)
    gap, *records = told(topic.read(10, epoch=epoch, gaps="yield"))
    assert (gap, gap.missed) == (missed(10), 0)
    assert records == [b"new"] * 3


def test_an_offset_of_the_topic_that_is_there_is_read_as_always(still: esker.Store) -> None:
    topic, epoch = made_anew(still)
    assert topic.epoch > epoch
    assert told(topic.read(1, epoch=topic.epoch)) == [b"new"] * 2
    assert told(topic.read(1)) == [b"new"] * 2


def test_each_shard_has_its_own_end(still: esker.Store) -> None:
    old = still.create("t", shards=2)
    keys = {old.shard_of(b"%d" % number): b"%d" % number for number in range(20)}
    old.append_many([esker.Record(b"a", key=keys[0])] * 5)
    old.append_many([esker.Record(b"b", key=keys[1])] * 8)
    epoch = old.epoch
    still.delete("t")
    new = still.create("t", shards=3)
    found = [*new.read(2, epoch=epoch, gaps="yield")]
    assert found == [missed(2, 4), missed(2, 7, 1), missed(2, OFFSET_MAX, 2)], "had no shard 2"
    assert told(new.read(2, epoch=epoch, gaps="yield", shard=1)) == [missed(2, 7, 1)]


def test_it_is_known_after_closing_and_to_other_processes(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        _, epoch = made_anew(store)
        store.alter("t", ttl="1d")  # other changes of the catalog keep it
        store.create("other")
        with esker.open(tmp_path / "data", mode="r") as other:
            assert told(other["t"].read(7, epoch=epoch, gaps="yield"))[0] == missed(7)
    with esker.open(tmp_path / "data") as store:
        assert told(store["t"].read(7, epoch=epoch, gaps="yield"))[0] == missed(7)
        store.delete("t")
        store["t"].append(b"third", wait=True)
        found = told(store["t"].read(7, epoch=epoch, gaps="yield"))
        assert found == [missed(7), b"third"], "of the topic that it was an offset of"


def test_what_is_no_epoch_of_this_topic_is_refused(still: esker.Store) -> None:
    topic, epoch = made_anew(still)
    for wrong in (0, -1, True, "1", topic.epoch + 1):
        with pytest.raises(esker.InvalidOption, match="epoch"):
            topic.read(4, epoch=wrong)  # type: ignore[arg-type]
    for place in ("earliest", "latest", -1, "@-15m"):
        with pytest.raises(esker.InvalidOption, match="goes with an offset"):
            topic.follow(place, epoch=epoch)


def test_where_nobody_knows_how_far_the_old_topic_went_the_gap_is_as_long_as_it_can_be(
    still: esker.Store,
) -> None:
    topic, epoch = made_anew(still)
    for number in range(FORMER_MAX):
        assert told(topic.read(4, epoch=epoch, gaps="yield"))[0] == missed(4)
        still.create(f"short-{number}")
        still.delete(f"short-{number}")
    assert told(topic.read(4, epoch=epoch, gaps="yield"))[0] == missed(4, OFFSET_MAX)


@pytest.mark.crash
def test_a_crash_in_the_midst_of_a_deletion_leaves_a_gap_that_has_all_of_it() -> None:
    exact = 0
    for at in range(60):
        disk = SimulatedDisk(at)
        store = esker.open("/data", files=disk, background=False)
        store.create("t", durability="fsync").append_many([b"old"] * 10, wait=True)
        epoch, left = store["t"].epoch, at

        def watch(call: Call, when: str, disk: SimulatedDisk = disk) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                disk.stop_at(0, "after")

        disk.watch = watch
        with suppress(Crash):
            store.delete("t")
        disk.watch = None
        store._context.forked = True
        store.close()
        with esker.open("/data", files=disk.crash(LOST), background=False) as found:
            if "t" in found:
                assert found["t"].epoch == epoch
                continue
            found["t"].append(b"new", wait=True)
            gap, record = found["t"].read(4, epoch=epoch, gaps="yield")
            assert (gap.first, gap.reason, record.value) == (4, "recreated", b"new")
            assert gap.last in (9, OFFSET_MAX)
            exact += gap.last == 9
    assert exact


def test_the_asyncio_twin_tells_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["t"]
            await topic.append(b"old", wait=True)
            epoch = await topic.epoch()
            await store.delete("t")
            await store["t"].append(b"new", wait=True)
            how: dict[str, Any] = {"epoch": epoch, "gaps": "yield"}
            for found in (store["t"].read(0, **how), store["t"].follow(0, timeout=0, **how)):
                assert told([each async for each in found]) == [missed(0, 0), b"new"]

    asyncio.run(main())
