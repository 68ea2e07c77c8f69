"""Groups that leave out what came before: which records those are, and that no other is one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker.format.columns import HEADER_TYPE
from esker.format.once import Keyed, encode_mark
from esker.groups import fresh
from esker.testing import ManualClock, SimulatedDisk

ROOT = "/store"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> Iterator[esker.Store]:
    with esker.open(ROOT, files=disk, clock=ManualClock(), background=False) as made:
        yield made


def forgetful(store: esker.Store, name: str = "t", **options: Any) -> esker.Topic:
    """A topic that knows a key until the next record: what is retried later is there twice."""
    return store.create(name, dedupe_records=1, **options)


def values(group: Any, **how: Any) -> list[bytes]:
    return [value for batch in group.poll(**how) for value in batch.values]


def test_a_retry_behind_the_window_of_the_topic_is_delivered_once(store: esker.Store) -> None:
    topic = forgetful(store)
    for key in ("a", "b", "a", "c", "b", "a"):
        topic.append(key.encode(), idempotency_key=key)
    assert len(topic) == 6
    with topic.group("g", dedupe=100) as group:
        assert values(group, max_records=2) == [b"a", b"b", b"c"]
        assert group.duplicates == 3
        assert group.lag().records == 6, "nothing is acked by being left out before what is not"
        group.ack(0, 0, 5)
        assert group.lag().records == 0
    with topic.group("all") as group:
        assert len(values(group)) == 6
        assert group.duplicates == 0


def test_batches_and_numbers_of_producers_are_left_out_as_a_whole(store: esker.Store) -> None:
    topic = forgetful(store)
    producer = topic.producer("p")
    batch = [esker.Record(b"%d" % n, key=b"k%d" % n) for n in range(10)]
    for _ in range(2):
        topic.append_many(batch, idempotency_key="batch")
        topic.append_many([b"between"])
    producer.append_many([b"x", b"y"], sequence=0)
    once = [r.value for r in batch]
    expected = [*once, b"between", b"between", b"x", b"y"]
    for size in (1, 3, 4, 100):
        with topic.group(f"g{size}", dedupe=30) as group:
            assert values(group, max_records=size) == expected
            assert group.duplicates == 10


def test_what_has_the_same_key_and_is_something_else_is_delivered(store: esker.Store) -> None:
    topic = forgetful(store)
    for batch in ([b"1", b"2"], [b"1", b"3"], [b"4", b"2"], [b"1"], [b"1", b"2", b"3"]):
        topic.append_many(batch, idempotency_key="k")
        topic.append_many([b"-"])
    topic.append_many([esker.Record(b"1", key=b"k"), b"2"], idempotency_key="k")
    with topic.group("g", dedupe=100) as group:
        assert len(values(group)) == 17
        assert group.duplicates == 0


def test_how_timestamps_lie_to_each_other_is_a_part_of_a_batch(store: esker.Store) -> None:
    topic = forgetful(store)
    for first, second in ((10, 20), (110, 120), (210, 225)):
        batch = [esker.Record(b"1", timestamp=first), esker.Record(b"2", timestamp=second)]
        topic.append_many(batch, idempotency_key="k")
        topic.append_many([b"-"])
    with topic.group("g", dedupe=100) as group:
        assert values(group) == [b"1", b"2", b"-", b"-", b"1", b"2", b"-"]


def test_a_long_batch_is_compared_piece_by_piece(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh, "COMPARED", 3)
    topic = forgetful(store)
    batch = [b"%d" % n for n in range(8)]
    for last in (b"x", b"x", b"y"):
        topic.append_many([*batch, last], idempotency_key="k")
        topic.append_many([b"-"])
    with topic.group("g", dedupe=100) as group:
        assert values(group) == [*batch, b"x", b"-", b"-", *batch, b"y", b"-"]


@pytest.mark.parametrize("distance", [5, 6])
def test_the_window_is_so_many_records(store: esker.Store, distance: int) -> None:
    topic = forgetful(store)
    topic.append(b"a", idempotency_key="a")
    for number in range(distance - 1):
        topic.append(b"-", idempotency_key=f"{number}")
    topic.append(b"a", idempotency_key="a")
    with topic.group("g", dedupe=5) as group:
        assert values(group, max_records=2).count(b"a") == (1 if distance == 5 else 2)


def test_wherever_a_member_begins_it_leaves_out_the_same(store: esker.Store) -> None:
    """Duplicates depend on the log alone: not on who read what, nor on how it was cut."""
    dice = random.Random(7)
    topic = forgetful(store, segment_bytes="8KiB")
    for _ in range(150):
        name = dice.randrange(30)
        batch = [b"%d.%d" % (name, n) for n in range(name % 4 + 1)]
        topic.append_many(batch, idempotency_key=f"{name}")
    records, window = list(topic.read()), 40
    expected, seen, end = [], dict[str, int](), 0
    for record in records:
        name, part = record.text.split(".")
        if part == "0":
            before = seen.get(name)
            seen[name] = record.offset
            if before is not None and record.offset - before <= window:
                end = record.offset + int(name) % 4 + 1
        if record.offset >= end:
            expected.append(record.offset)
    assert 50 < len(expected) < len(records) - 50
    for number in range(40):
        group = topic.group("g", dedupe=window)
        at = dice.randrange(len(records))
        group.seek(at)
        found = []
        for _ in range(3):  # what was not acked comes again, and is the same
            group.rewind()
            batches = list(group.poll(max_records=dice.randint(1, 20)))
            found.append([offset for batch in batches for offset in batch.offsets.to_pylist()])
        assert found == [[offset for offset in expected if offset >= at]] * 3, number
        group.close()


def test_what_was_not_delivered_is_no_reason_to_leave_out_another(store: esker.Store) -> None:
    topic = forgetful(store)
    topic.append(b"a", idempotency_key="a", node="ours")
    topic.append(b"b", idempotency_key="b", tag="old")
    topic.append_many([b"c", esker.Record(b"d", tag="old")], idempotency_key="c")
    topic.delete(tag="old")
    topic.append(b"a", idempotency_key="a", node="theirs")
    topic.append(b"b", idempotency_key="b", tag="new")
    topic.append_many([b"c", esker.Record(b"d", tag="new")], idempotency_key="c")
    with topic.group("g", dedupe=100, skip_node="ours") as group:
        assert values(group) == [b"c", b"a", b"b", b"c", b"d"]
        group.seek(2)  # who begins there leaves out the same
        assert values(group) == [b"c", b"a", b"b", b"c", b"d"]


def test_a_gap_is_told_and_what_is_behind_it_is_delivered(store: esker.Store) -> None:
    topic = forgetful(store, segment_bytes="8KiB", cap_records=200, protect_unconsumed=False)
    for _ in range(3):
        for number in range(150):
            topic.append(b"%d" % number + b"x" * 100, idempotency_key=f"{number}")
    store.retain()
    with topic.group("g", start=0, gaps="yield", dedupe=150) as group:
        found = list(group.poll())
        assert isinstance(found[0], esker.Gap)
        delivered = [offset for batch in found[1:] for offset in batch.offsets.to_pylist()]
        assert delivered == list(range(topic.earliest(), topic.earliest() + 150))


def test_damage_before_the_cursor_costs_duplicates_and_is_told(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = forgetful(store)
    for key in ("a", "b", "a"):
        topic.append(key.encode(), idempotency_key=key)
    real = fresh.read_batches

    def damaged(view: Any, first: int, *rest: Any, **how: Any) -> Any:
        if first < 1:
            raise esker.Corruption("damaged", path="p", first=0, last=0, reason="test")
        return real(view, first, *rest, **how)

    monkeypatch.setattr(fresh, "read_batches", damaged)
    with topic.group("g", dedupe=100) as group:
        group.seek(1)
        assert values(group) == [b"b", b"a"]
    assert "duplicates" in caplog.text
    topic.append_many([b"1", b"2"], idempotency_key="k")
    monkeypatch.setattr(fresh, "_rows", lambda *_: next(damaged(None, 0)))
    topic.append_many([b"-"])
    topic.append_many([b"1", b"2"], idempotency_key="k")
    with topic.group("g", dedupe=100) as group:
        group.seek(3)
        assert values(group) == [b"1", b"2", b"-", b"1", b"2"]


def test_copies_that_routes_and_mirrors_made_twice_are_delivered_once(
    store: esker.Store, disk: SimulatedDisk
) -> None:
    topic = forgetful(store)
    topic.append(b"a", idempotency_key="a")
    topic.append_many([b"b", b"c"], idempotency_key="b")
    topic.append_many([b"no key"])
    store.sync()
    store.route("t", "copies", name="one", merge=True)
    store.route("t", "copies", name="two", merge=True)
    store.tick()
    with store["copies"].group("g", dedupe=100) as group:
        assert values(group) == [b"a", b"b", b"c", b"no key", b"no key"]
        assert group.duplicates == 3
    with esker.open("/mirror", files=disk, clock=ManualClock(), background=False) as mirror:
        for _ in range(2):
            mirror["t"].append_many(list(topic.read()))
            for batch in topic.batches():
                mirror["t"].append_arrow(batch)
        with mirror.group("g", "*", dedupe=100) as many:
            assert values(many) == [b"a", b"b", b"c", *[b"no key"] * 4]
            assert many.duplicates == 9


def test_a_record_that_is_appended_again_on_purpose_is_delivered(store: esker.Store) -> None:
    topic = store.create("t")
    topic.append(b"a", idempotency_key="a")
    topic.append_many(list(topic.read()))
    with topic.group("g", dedupe=100) as group:
        assert values(group) == [b"a", b"a"]


def test_asyncio_leaves_out_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with await esker.aopen(tmp_path / "data") as store:
            topic = await store.create("t", dedupe_records=1)
            for key in ("a", "b", "a"):
                await topic.append(key.encode(), idempotency_key=key)
            async with await topic.group("g", dedupe=10) as group:
                found = [value async for batch in group.poll() for value in batch.values]
                assert (found, group.duplicates) == ([b"a", b"b"], 1)

    asyncio.run(main())


@pytest.mark.parametrize("dedupe", [-1, 1.5, True, "9", None, fresh.DEDUPE_MAX + 1])
def test_a_window_that_is_none_is_refused(store: esker.Store, dedupe: Any) -> None:
    with pytest.raises(esker.InvalidOption, match="dedupe="):
        forgetful(store).group("g", dedupe=dedupe)


def test_a_record_may_have_been_copied_by_several(store: esker.Store) -> None:
    topic = store.create("t")
    pairs = [("esker-copied", encode_mark(Keyed(b"%d" % n, 1))) for n in range(2)]
    cells = pa.array([[{"key": key, "value": value} for key, value in pairs]], HEADER_TYPE)
    for _ in range(2):
        topic.append_arrow(pa.table({"value": [b"a"], "headers": cells}))
    topic.append_many([esker.Record(b"a", headers=dict(pairs[:1]))])
    with topic.group("g", dedupe=100) as group:
        assert values(group) == [b"a"]
        assert group.duplicates == 2


def test_what_is_no_mark_makes_no_duplicate(store: esker.Store) -> None:
    topic = store.create("t")
    for _ in range(2):
        topic.append_many([esker.Record(b"a", headers={"esker-copied": b"forged"})])
    with topic.group("g", dedupe=100) as group:
        assert values(group) == [b"a", b"a"]
