"""Records that a reader leaves out: those of its own node. What stays has its own offset."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import esker
from esker.engine.batch import Batch
from esker.engine.reader import read_batches
from esker.engine.sieve import Sieve
from esker.engine.tail import Tail

NODES = ("eu-1", "us-1", None, "eu-1", "eu-10", "eu-1", "us-1")


def filled(store: esker.Store, rounds: int = 30, **options: Any) -> Any:
    """A topic with frames of many sizes, in a few segments and a log."""
    topic = store.create("t", segment_records=50, **options)
    for number in range(rounds):
        size = number % 7 + 1
        topic.append_many(
            [
                esker.Record(b"%d/%d" % (number, row), node=NODES[(number + row) % len(NODES)])
                for row in range(size)
            ]
        )
        topic.flush()
    return topic


def expected(topic: Any, node: str) -> list[tuple[int, bytes, str | None]]:
    return [(r.offset, r.value, r.node) for r in topic.read() if r.node != node]


@pytest.mark.parametrize("node", ["eu-1", "us-1", "eu-10", "nobody"])
@pytest.mark.parametrize("most", [0, 1, 3, 1000])
def test_nobody_gets_its_own_records_back(node: str, most: int) -> None:
    with esker.open(":memory:") as store:
        topic = filled(store)
        wanted = expected(topic, node)
        assert [(r.offset, r.value, r.node) for r in topic.read(skip_node=node)] == wanted
        batches = list(topic.batches(skip_node=node, max_records=most))
        assert all(0 < len(batch) <= (most or 10**6) for batch in batches)
        assert [(r.offset, r.value, r.node) for b in batches for r in b] == wanted
        assert [o for b in batches for o in b.offsets.to_pylist()] == [o for o, _, _ in wanted]
        for batch in batches:
            numbers = batch.arrow.column("offset").to_pylist()
            assert (batch.first, batch.last) == (numbers[0], numbers[-1])
            assert batch.begin <= batch.first <= batch.last < batch.next_offset
            assert numbers == [record.offset for record in batch]
            assert str(batch) == f"Batch(shard=0, offsets={numbers[0]}..{numbers[-1]})"
        assert all(a.next_offset <= b.begin for a, b in pairwise(batches))


def test_a_record_without_a_node_comes_from_nobody() -> None:
    with esker.open(":memory:") as store:
        topic = store.create("t")
        topic.append_many([b"plain", b"too"], wait=True)
        topic.append(b"mine", node="a", wait=True)
        assert [r.value for r in topic.read(skip_node="a")] == [b"plain", b"too"]


def test_what_nothing_is_left_out_of_is_not_copied() -> None:
    with esker.open(":memory:") as store:
        topic = store.create("t")
        topic.append_many([esker.Record(b"x" * 100, node="a")] * 1000, wait=True)
        (plain,) = topic.batches()
        (sifted,) = topic.batches(skip_node="b")
        assert sifted._offsets is None
        assert sifted.arrow.equals(plain.arrow)


def test_a_limit_counts_what_is_handed_out() -> None:
    with esker.open(":memory:") as store:
        topic = filled(store)
        wanted = [offset for offset, _, _ in expected(topic, "eu-1")]
        assert [r.offset for r in topic.read(skip_node="eu-1", limit=9)] == wanted[:9]


def test_everything_left_out_is_nothing_and_no_gap() -> None:
    with esker.open(":memory:") as store:
        topic = store.create("t")
        topic.append_many([esker.Record(b"x", node="a")] * 100, wait=True)
        assert list(topic.batches(skip_node="a", gaps="yield")) == []
        assert list(topic.read(skip_node="a", gaps="yield")) == []


@pytest.mark.parametrize("bad", ["", 7, b"a", True])
def test_a_node_that_is_none_is_refused(bad: Any) -> None:
    with esker.open(":memory:") as store:
        topic = filled(store, 2)
        for call in (topic.batches, topic.read, topic.follow, topic.follow_batches, topic.tail):
            with pytest.raises(esker.InvalidOption, match="skip_node"):
                call(skip_node=bad)


def test_a_follower_goes_on_behind_what_it_left_out() -> None:
    with esker.open(":memory:") as store:
        topic = store.create("t")
        tail = topic.tail("earliest", skip_node="a")
        topic.append_many([esker.Record(b"mine", node="a")] * 10, wait=True)
        assert list(tail.take()) == []
        assert tail.cursors == {0: 10}, "or it would look at them again and again"
        topic.append(b"theirs", node="b", wait=True)
        (batch,) = tail.take()
        assert [(r.offset, r.value) for r in batch] == [(10, b"theirs")]
        found = topic.follow("earliest", timeout=0.01, skip_node="a")
        assert [r.value for r in found] == [b"theirs"]


def test_two_nodes_that_copy_from_each_other_come_to_rest() -> None:
    """What the filter is for: without it each would send back for ever what came from the other."""
    with esker.open(":memory:") as here, esker.open(":memory:") as there:
        a, b = here.create("t"), there.create("t")
        a.append(b"made here", node="here", wait=True)
        b.append(b"made there", node="there", wait=True)
        to_b = a.tail("earliest", skip_node="there")
        to_a = b.tail("earliest", skip_node="here")
        for _ in range(3):
            for batch in to_b.take():
                b.append_many(batch.records(), wait=True)
            for batch in to_a.take():
                a.append_many(batch.records(), wait=True)
        assert sorted(r.value for r in a.read()) == [b"made here", b"made there"]
        assert sorted(r.value for r in b.read()) == [b"made here", b"made there"]


def test_async_readers_leave_out_the_same() -> None:
    async def run() -> list[Any]:
        async with esker.aopen(":memory:") as store:
            topic = await store.create("t")
            await topic.append_many([esker.Record(b"mine", node="a")] * 3)
            await topic.append_many([esker.Record(b"theirs", node="b")] * 2)
            await topic.sync()
            read = [r.offset async for r in topic.read(skip_node="a")]
            tailed = topic.follow("earliest", timeout=0.01, skip_node="a")
            return [read, [r.offset async for r in tailed]]

    assert asyncio.run(run()) == [[3, 4], [3, 4]]


def test_read_as_a_whole_there_is_no_hole_between_batches() -> None:
    """Also where a gap is skipped: what readers that keep count go by."""
    with esker.open(":memory:") as store:
        topic = filled(store, 40, cap_records=60)
        store.retain()
        assert topic.earliest() > 0, "nothing was evicted: no gap to skip"
        view = topic._view(0)
        upto = 0
        for item in read_batches(
            view, 0, view.visible, gaps="skip", sieve=Sieve("eu-1"), whole=True
        ):
            assert isinstance(item, Batch)
            assert item.begin == upto
            upto = item.next_offset
        assert upto == view.visible


def test_a_tail_that_skips_gaps_does_not_skip_what_it_cannot_see_yet() -> None:
    """The end was published, the segments behind it not yet looked up: they come the next time."""
    with esker.open(":memory:") as store:
        topic = filled(store, 10)
        real = topic._view(0)
        assert len(real.segments) > 1 or real.visible < 50
        older = SimpleNamespace(
            context=real.context, entry=real.entry, number=0, settled=False, earliest=0, losses=(),
            segments=(), visible=0, durable=0, marks=real.marks,
        )  # fmt: skip
        newer = real
        views = [older, newer]
        first = real.segments[0]
        older.segments = (first,)
        older.visible = first.base + first.rows + 5  # more than the list shows
        tail = Tail({0: 0}, topic._shards, lambda _: views.pop(0), [], "skip", "eventual", Sieve())
        seen = [r.offset for batch in tail.take() for r in batch]
        assert seen == list(range(first.rows))
        assert tail.cursors[0] == first.base + first.rows
