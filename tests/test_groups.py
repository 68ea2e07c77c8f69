"""Groups in one process: what is delivered, what is acked, and where a group is afterwards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.groups.acks import Acks
from esker.groups.assignment import assigned, shards_of
from esker.groups.group import Group
from esker.testing import ManualClock, SimulatedDisk

ROOT = "/store"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk, clock: ManualClock) -> Iterator[esker.Store]:
    with opened(disk, clock) as made:
        yield made


def opened(disk: SimulatedDisk, clock: ManualClock | None = None, mode: Any = "rw") -> esker.Store:
    return esker.open(ROOT, mode, files=disk, clock=clock or ManualClock(), background=False)


def filled(store: esker.Store, count: int = 10, name: str = "t", **options: Any) -> esker.Topic:
    topic = store.create(name, **{"durability": "fsync", **options})
    if count:
        topic.append_many([b"%d" % number for number in range(count)])
        topic.sync()
    return topic


def values(group: Any, **how: Any) -> list[bytes]:
    return [value for batch in group.poll(**how) for value in batch.values]


# ---- pure ------------------------------------------------------------------------------------


def test_every_shard_is_one_members_and_topics_are_turned_against_each_other() -> None:
    for topic in range(5):
        for count in range(1, 6):
            dealt = [shards_of(topic, 12, index, count) for index in range(count)]
            assert sorted(shard for part in dealt for shard in part) == list(range(12))
            assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert {shards_of(topic, 1, 0, 2) == [0] for topic in range(2)} == {True, False}
    assert assigned(0, 4, 7, [9, 7, 3]) == shards_of(0, 4, 1, 3)
    assert assigned(0, 4, 8, [9, 7, 3]) == []


def test_acks_in_any_order_move_the_cursor_to_the_end_of_what_has_no_hole() -> None:
    acks = Acks(10)
    assert acks.add(20, 30) == 10
    assert acks.add(40, 50) == 10
    assert acks.add(30, 40) == 10
    assert acks.later == [(20, 50)]
    assert acks.add(60, 60) == 10
    assert acks.later == [(20, 50)]
    assert acks.add(5, 15) == 15
    assert acks.add(12, 14) == 15
    assert acks.add(15, 20) == 50
    assert acks.later == []
    assert acks.add(52, 55) == 50
    assert acks.add(50, 60) == 60
    assert acks.later == []


# ---- delivering ------------------------------------------------------------------------------


def test_what_was_acked_is_not_delivered_again_and_what_was_not_is(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    with opened(disk, clock) as store:
        topic = filled(store)
        with topic.group("g") as group:
            first, second = group.poll(max_records=5)
            assert (first.topic, first.shard, len(first), first.last) == ("t", 0, 5, 4)
            assert values(group) == []  # it goes on behind what it has delivered
            first.ack()
            assert first.acked
            assert not second.acked
    with opened(disk, clock) as store, store["t"].group("g", start="latest") as group:
        assert values(group) == [b"5", b"6", b"7", b"8", b"9"]


def test_a_new_group_begins_where_it_says_and_an_old_one_goes_on(store: esker.Store) -> None:
    topic = filled(store)
    late, middle = topic.group("late", "latest"), topic.group("middle", -3)
    all_of_it = topic.group("all")
    topic.append(b"new", wait=True)
    assert values(late) == [b"new"]
    assert values(middle) == [b"7", b"8", b"9", b"new"]
    assert len(values(all_of_it)) == 11
    assert values(topic.group("at", 4))[0] == b"4"


def test_a_group_of_a_topic_that_is_not_there_or_a_bad_name_is_refused(store: esker.Store) -> None:
    with pytest.raises(esker.TopicNotFound):
        store["nothing"].group("g")
    topic = filled(store, shards=2)
    for name in ("", "a\0b", "x" * 49, "\ud800", 7):
        with pytest.raises(esker.InvalidOption):
            topic.group(name)  # type: ignore[arg-type]
    for how in (
        {"member": (2, 2)}, {"member": 1}, {"gaps": "no"}, {"consistency": "no"}, {"start": 5},
        {"skip_node": ""}, {"session": -1},
    ):  # fmt: skip
        with pytest.raises(esker.InvalidOption):
            topic.group("g", **how)
    with pytest.raises(esker.InvalidPosition):
        topic.group("g", "yesterday")
    assert len("ü" * 24) == 24
    assert topic.group("ü" * 24).name == "ü" * 24


def test_only_who_may_write_has_groups_and_everybody_may_look(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    with opened(disk, clock) as store:
        topic = filled(store, shards=2)
        group = topic.group("g")
        for batch in group.poll():
            batch.ack()
        group.sync()
        with opened(disk, clock, "r") as reader:
            (status,) = reader["t"].groups()
            assert (status.name, status.records, status.topic) == ("g", 0, "t")
            assert status.pids == (disk.pid(),)
            assert sum(shard.acked for shard in status.shards) == 10
            assert {shard.pid for shard in status.shards} == {disk.pid()}
            assert reader.groups() == [status]
            assert "0 records behind" in str(status)
            with pytest.raises(esker.ReadOnlyStore):
                reader["t"].group("g")
            with pytest.raises(esker.ReadOnlyStore):
                reader["t"].forget_group("g")
        group.close()
        assert topic.groups()[0].pids == ()


def test_a_batch_may_be_acked_in_part_and_offsets_in_any_order(store: esker.Store) -> None:
    group = filled(store, 20).group("g")
    (batch,) = group.poll()
    batch.ack(upto=4)
    assert group.cursors() == {0: 5}
    group.ack(0, 10, 14)
    group.ack(0, 17, 18)
    assert group.cursors() == {0: 5}
    group.ack(0, 5, 9)
    assert group.cursors() == {0: 15}
    batch.ack()
    assert group.cursors() == {0: 20}
    batch.ack(upto=3)  # never backwards
    assert group.cursors() == {0: 20}
    for wrong in (20, -1, True, "3"):
        with pytest.raises(esker.InvalidOption, match="upto"):
            batch.ack(upto=wrong)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidOption, match="not delivered"):
        group.ack(0, 18, 20)
    with pytest.raises(esker.Fenced):
        group.ack(1, 0, 0)
    with pytest.raises(esker.InvalidOption):
        group.ack(0, 3, 2)


def test_what_does_not_come_back_is_delivered_again_after_a_rewind(store: esker.Store) -> None:
    group = filled(store).group("g")
    batches = list(group.poll(max_records=2))
    batches[0].ack()
    batches[2].ack()
    group.rewind()
    assert values(group) == [b"%d" % number for number in range(2, 10)]
    batches[4].ack()  # delivered once is delivered
    batches[1].ack()
    assert group.cursors() == {0: 4}


def test_two_polls_at_once_share_what_is_there_and_a_rewind_ends_them(store: esker.Store) -> None:
    group = filled(store).group("g")
    one, two = group.poll(max_records=2), group.poll(max_records=3)
    seen = [next(one).values, next(two).values]
    assert list(one) == []  # the other one has read on
    seen += [batch.values for batch in two]
    assert [value for part in seen for value in part] == [b"%d" % number for number in range(10)]
    group.rewind()
    batches = group.poll(max_records=4)
    next(batches)
    group.rewind()
    assert list(batches) == []
    assert len(values(group)) == 10


def test_batches_are_as_small_as_they_are_asked_for(store: esker.Store) -> None:
    group = filled(store, 100).group("g")
    assert [len(batch) for batch in group.poll(max_records=30)] == [30, 30, 30, 10]
    group.rewind()
    assert max(batch.nbytes for batch in group.poll(max_bytes=20)) <= 20
    for wrong in ({"max_records": -1}, {"max_bytes": 0}, {"wait": -1}):
        with pytest.raises(esker.InvalidOption):
            group.poll(**wrong)  # type: ignore[arg-type]


def test_a_poll_ends_at_what_was_there_and_shards_take_turns(store: esker.Store) -> None:
    topic = store.create("t", shards=3, durability="fsync")
    for number in range(30):
        topic.append(b"%d" % number, key=b"%d" % number)
    topic.sync()
    group = topic.group("g")
    firsts = set()
    for _ in range(3):
        group.rewind()
        batches = list(group.poll())
        firsts.add(batches[0].shard)
        assert sorted(int(value) for batch in batches for value in batch.values) == [*range(30)]
    assert len(firsts) == 3


def test_a_poll_waits_for_records_of_its_own_process(tmp_path: Path) -> None:
    with esker.open(tmp_path / "s") as store:
        topic = filled(store, 0)
        group = topic.group("g")
        timer = threading.Timer(0.1, lambda: topic.append(b"late", wait=True))
        timer.start()
        assert values(group, wait=5) == [b"late"]
        timer.join()
        assert values(group, wait=0.02) == []


def test_the_filter_of_a_node_and_deleted_records_move_the_cursor_when_nothing_is_before_them(
    store: esker.Store,
) -> None:
    """B47: a cursor that has passed what was left out must not have passed anything else."""
    topic = store.create("t", durability="fsync")
    for number in range(6):
        topic.append(b"%d" % number, node="me" if number >= 3 else "you", wait=True)
    group = topic.group("g", skip_node="me")
    (batch,) = group.poll()
    assert batch.values == [b"0", b"1", b"2"]
    assert values(group) == []
    assert group.cursors() == {0: 0}
    batch.ack()
    assert group.cursors() == {0: 6}
    for number in range(6, 9):
        topic.append(b"%d" % number, node="me", wait=True)
    assert values(group) == []
    assert group.cursors() == {0: 9}
    topic.append(b"9", node="you", wait=True)
    (batch,) = group.poll()
    topic.append(b"10", node="me", wait=True)
    assert values(group) == []  # and the cursor stays before what has not come back
    assert group.cursors() == {0: 9}
    batch.ack()
    assert group.cursors() == {0: 11}
    other = topic.group("other")
    topic.delete(11)
    assert values(other) == []
    assert other.cursors() == {0: 11}


def test_records_deleted_before_they_were_read_are_no_gap_and_stay_covered(
    store: esker.Store,
) -> None:
    topic = filled(store)
    group = topic.group("g")
    topic.delete(4)
    (batch,) = group.poll()
    assert batch.values[0] == b"4"
    batch.ack()
    assert group.cursors() == {0: 10}


# ---- gaps ------------------------------------------------------------------------------------


def evicted(store: esker.Store, **how: Any) -> esker.Topic:
    """A topic of which the first 30 of 40 records are evicted; protection is off."""
    topic = store.create(
        "t", durability="fsync", segment_records=10, cap_records=10, protect_unconsumed=False
    )
    topic.group("g", **how).close()
    for number in range(40):
        topic.append(b"%d" % number, wait=True)
    store.tick()
    assert topic.earliest() == 30
    return topic


def test_a_group_below_the_floor_gets_the_exact_gap(store: esker.Store) -> None:
    group = evicted(store).group("g")
    with pytest.raises(esker.DataGap) as caught:
        list(group.poll())
    gap = caught.value.gap
    assert (gap.first, gap.last, gap.reason) == (0, 29, "evicted")
    (batch,) = group.poll()  # once
    assert batch.first == 30
    group.close()
    group = store["t"].group("g", gaps="yield")  # nothing behind it was acked: told again
    told, batch = group.poll()
    assert told == gap
    batch.ack()
    assert group.cursors() == {0: 40}
    group.close()
    assert values(store["t"].group("g")) == []


def test_gaps_that_are_skipped_are_counted(store: esker.Store) -> None:
    group = evicted(store).group("g", gaps="skip")
    (batch,) = group.poll()
    assert batch.first == 30
    assert group.skipped == 30
    assert group.cursors() == {0: 30}


# ---- durable ---------------------------------------------------------------------------------


def test_a_cursor_never_passes_what_is_durable(store: esker.Store, clock: ManualClock) -> None:
    topic = store.create("t", durability="disk")
    topic.append_many([b"a", b"b"])
    topic.flush()
    group = topic.group("g")
    (batch,) = group.poll()
    batch.ack()
    assert batch.acked
    assert group.cursors() == {0: 2}  # for this handle, which remembers it
    assert topic.groups()[0].shards[0].cursor == topic.durable() == 0
    clock.forward(1)
    store.tick()
    assert topic.durable() == 2
    store.tick()
    clock.forward(1)
    store.tick()
    assert topic.groups()[0].shards[0].cursor == 2
    topic.append(b"c")
    topic.flush()
    (batch,) = group.poll()
    batch.ack(wait=True)  # syncs the records first: this process writes them
    assert topic.groups()[0].shards[0].cursor == 3 == topic.durable()


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_where_nothing_is_durable_a_cursor_moves_over_what_is_visible(
    store: esker.Store, durability: str
) -> None:
    topic = store.create("t", durability=durability)
    topic.append_many([b"a", b"b"])
    topic.flush()
    group = topic.group("g")
    for batch in group.poll():
        batch.ack()
    assert topic.groups()[0].shards[0].cursor == 2


def test_acks_beyond_durable_of_another_process_time_out_and_are_not_lost(
    disk: SimulatedDisk, tmp_path: Path
) -> None:
    with esker.open(tmp_path / "s", background=False) as store:
        topic = store.create("t", durability="disk")
        topic.append(b"a")
        topic.flush()
        with esker.open(tmp_path / "s", background=False) as other:
            group = other["t"].group("g")
            (batch,) = group.poll()
            batch.ack()
            with pytest.raises(esker.CommitTimeout, match="not durable"):
                group.sync(timeout=0.01)
            topic.sync()
            group.sync(timeout=5)
            assert topic.groups()[0].shards[0].cursor == 1


def test_closing_does_not_wait_for_ever_for_what_another_process_never_syncs(
    disk: SimulatedDisk, clock: ManualClock, store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own pauses: the clock of this store stands still."""
    monkeypatch.setattr("esker.groups.group.CLOSE_SECONDS", 0.01)
    topic = store.create("t", durability="disk")
    topic.append(b"a")
    topic.flush()
    with opened(disk, clock) as other:
        with other["t"].group("g") as group:
            (batch,) = group.poll()
            batch.ack()
        assert len(values(other["t"].group("g"))) == 1  # it was not stored, and comes again


# ---- seek, pause, forget ---------------------------------------------------------------------


def test_seek_says_what_it_moves_and_a_dry_run_moves_nothing(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = store.create("t", durability="fsync")
    for number in range(10):
        topic.append(b"%d" % number, wait=True)
        clock.forward(60)
    group = topic.group("g")
    for batch in group.poll():
        batch.ack()
    (move,) = group.seek(4, dry_run=True)
    assert (move.topic, move.shard, move.before, move.after, move.records) == ("t", 0, 10, 4, 6)
    assert "6 again" in str(move)
    assert group.cursors() == {0: 10}
    for to, first in ((4, b"4"), (-2, b"8"), ("@-3m", b"7"), ("earliest", b"0")):
        group.seek(to)
        assert values(group)[0] == first
    (move,) = group.seek("latest")
    assert move.records == -10
    assert "10 left out" in str(move)
    assert values(group) == []
    assert group.seek(99)[0].after == 10
    with pytest.raises(esker.InvalidPosition):
        group.seek("nowhere")
    with pytest.raises(esker.InvalidOption):
        group.seek(3, shard=7)


def test_an_offset_is_sought_in_one_shard_only(store: esker.Store) -> None:
    topic = filled(store, shards=2)
    group = topic.group("g")
    with pytest.raises(esker.InvalidOption, match="shard=N"):
        group.seek(3)
    assert len(group.seek(0, shard=1)) == 1
    assert len(group.seek("latest")) == 2


def test_what_was_delivered_before_a_seek_cannot_be_acked_after_it(
    disk: SimulatedDisk, clock: ManualClock, store: esker.Store
) -> None:
    topic = filled(store)
    group = topic.group("g")
    (batch,) = group.poll()
    group.seek(7)
    with pytest.raises(esker.Fenced):
        batch.ack()
    assert group.cursors() == {0: 7}
    (batch,) = group.poll()
    with opened(disk, clock) as other:  # somebody who only looks, and moves it
        other["t"].group("g").seek(2)
    with pytest.raises(esker.Fenced):
        batch.ack()
    with pytest.raises(esker.Fenced, match="Poll again"):
        batch.ack()
    assert values(group)[0] == b"2"


def test_a_paused_group_gets_nothing_and_acks_all_the_same(
    disk: SimulatedDisk, clock: ManualClock, store: esker.Store
) -> None:
    group = filled(store, shards=2).group("g")
    batch = next(group.poll(max_records=1))
    with opened(disk, clock) as other:
        other["t"].group("g").pause()
    assert group.paused
    assert store["t"].groups()[0].paused
    assert "paused" in str(store["t"].groups()[0])
    assert values(group) == []
    batch.ack()
    group.resume()
    assert not group.paused
    assert len(values(group)) == 9
    assert sum(group.cursors().values()) == 1


def test_a_pause_ends_a_poll_that_is_under_way(store: esker.Store) -> None:
    group = filled(store).group("g")
    batches = group.poll(max_records=1)
    next(batches)
    group.pause()
    assert list(batches) == []


def test_a_group_is_forgotten_only_when_nobody_reads_it(store: esker.Store) -> None:
    topic = filled(store, shards=2)
    group = topic.group("g")
    list(group.poll())
    with pytest.raises(esker.MemberBusy, match="close it there") as caught:
        topic.forget_group("g")
    assert caught.value.pid == store._context.files.pid()
    group.close()
    topic.forget_group("g")
    assert topic.groups() == []
    with pytest.raises(esker.GroupNotFound):
        topic.forget_group("g")
    looking = topic.group("h")
    assert looking.describe().name == "h"
    topic.forget_group("h")
    for look in (looking.cursors, looking.describe):
        with pytest.raises(esker.GroupNotFound, match="forgotten"):
            look()


def test_a_closed_handle_says_so_and_the_group_stays(store: esker.Store) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        (batch,) = group.poll()
    group.close()
    for use in (group.poll, group.cursors, group.lag, group.__enter__, group.sync, group.pause):
        with pytest.raises(esker.StoreClosed, match="closed"):
            use()
    with pytest.raises(esker.Fenced):
        batch.ack()
    assert [status.name for status in topic.groups()] == ["g"]
    assert "none" in repr(group)


def test_a_group_goes_with_its_topic(store: esker.Store) -> None:
    topic = filled(store)
    group = topic.group("g")
    (batch,) = group.poll()
    store.delete("t")
    with pytest.raises(esker.TopicNotFound):
        list(group.poll())
    with suppress(esker.EskerError):
        batch.ack()
    group.close()
    again = filled(store)
    assert again.groups() == []
    assert len(values(again.group("g"))) == 10


# ---- members ---------------------------------------------------------------------------------


def test_members_divide_the_shards_and_hand_over_what_is_done(store: esker.Store) -> None:
    topic = store.create("t", shards=4, durability="fsync")
    for number in range(40):
        topic.append(b"%d" % number, key=b"%d" % number, wait=True)
    one = topic.group("g")
    batches = list(one.poll())
    assert sorted(one._held) == [0, 1, 2, 3]
    two = topic.group("g")
    assert list(two.poll()) == []  # the first one still has all of it
    batches[0].ack()
    batches[1].ack()
    done = {batch.shard for batch in batches[:2]}
    list(one.poll())
    list(two.poll())
    assert set(two._held) <= done
    for batch in batches:
        batch.ack()
    list(one.poll())
    list(two.poll())
    assert len(one._held) == len(two._held) == 2
    assert {*one._held, *two._held} == {0, 1, 2, 3}
    two.close()
    list(one.poll())
    assert sorted(one._held) == [0, 1, 2, 3]
    assert one.lag().records == 0


def test_who_only_looks_takes_nothing_from_those_who_read(store: esker.Store) -> None:
    topic = filled(store, shards=2)
    one = topic.group("g")
    list(one.poll())
    looking = topic.group("g")
    assert looking.lag().records == 10
    assert len(looking.cursors()) == 2
    list(one.poll())
    assert len(one._held) == 2


def test_fixed_members_read_their_own_shards_and_meet_nobody(store: esker.Store) -> None:
    topic = filled(store, shards=3)
    first, second = topic.group("g", member=(0, 2)), topic.group("g", member=(1, 2))
    seen = [*first.poll(), *second.poll()]
    assert sum(map(len, seen)) == 10
    assert {*first._held}.isdisjoint(second._held)
    assert {*first._held, *second._held} == {0, 1, 2}
    again = topic.group("g", member=(0, 2))
    with pytest.raises(esker.MemberBusy, match="held by process") as caught:
        list(again.poll())
    assert caught.value.pid > 0


def test_who_was_not_seen_for_its_session_has_lost_its_shards(
    store: esker.Store, clock: ManualClock
) -> None:
    """B56: its late ack does not count, though nobody has acked anything since."""
    topic = filled(store)
    slow, other = topic.group("g", session=30), topic.group("g", session=30)
    (batch,) = slow.poll()
    clock.forward(29)
    assert list(other.poll()) == []
    clock.set_wall(clock.now_us() + 10**15)  # nothing is ever judged by this clock
    assert list(other.poll()) == []
    clock.forward(2)
    (again,) = other.poll()
    assert again.values == batch.values
    with pytest.raises(esker.Fenced):
        batch.ack()
    assert other.cursors() == {0: 0}
    again.ack()
    assert list(slow.poll()) == []
    assert slow.cursors() == other.cursors() == {0: 10}


def test_who_works_through_a_long_poll_is_not_given_up(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = filled(store)
    slow, other = topic.group("g", session=30), topic.group("g", session=30)
    for batch in slow.poll(max_records=1):
        clock.forward(20)
        batch.ack()
        if batch.first == 8:
            assert list(other.poll()) == []
    assert slow.cursors() == {0: 9}  # the last one waits: somebody has come
    assert slow.cursors() == other.cursors()


def test_a_poll_ends_when_somebody_comes_so_that_shards_can_be_handed_over(
    store: esker.Store,
) -> None:
    topic = filled(store, 0, shards=2)
    for number in range(40):
        topic.append(b"%d" % number, key=b"%d" % number, wait=True)
    one, two = topic.group("g"), topic.group("g")
    seen = 0
    for batch in one.poll(max_records=1):
        seen += 1
        batch.ack()
        if seen == 5:
            assert list(two.poll()) == []
    assert seen == 5
    for batch in one.poll(max_records=1):
        batch.ack()
    assert len(values(two)) > 0
    assert len(one._held) == len(two._held) == 1


def test_a_member_that_was_given_up_comes_back_under_a_new_name(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = filled(store, shards=2)
    slow, other = topic.group("g", session=1), topic.group("g", session=1)
    list(slow.poll())
    clock.forward(2)
    for batch in other.poll():
        batch.ack()
    assert len(other._held) == 2
    list(slow.poll())
    list(other.poll())
    list(slow.poll())
    assert len(slow._held) == len(other._held) == 1


def test_what_a_leaving_owner_never_acks_is_let_go_after_its_session(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = filled(store, 0, shards=2)
    for number in range(20):
        topic.append(b"%d" % number, key=b"%d" % number, wait=True)
    one = topic.group("g", session=10)
    list(one.poll())
    two = topic.group("g", session=10)
    list(two.poll())
    for _ in range(6):
        clock.forward(2)
        list(one.poll())
        list(two.poll())
    assert len(one._held) == len(two._held) == 1


def test_the_slot_of_a_dead_member_is_taken_with_what_it_owned(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    store = opened(disk, clock)
    topic = filled(store, shards=2)
    list(topic.group("g").poll())
    after = disk.kill()
    store._context.forked = True
    store.close()
    with opened(after, clock) as store:
        one, two = store["t"].group("g"), store["t"].group("g")
        list(one.poll())
        list(two.poll())
        one.rewind()
        list(one.poll())
        list(two.poll())
        assert {*one._held, *two._held} == {0, 1}


# ---- lag -------------------------------------------------------------------------------------


def test_lag_is_told_in_records_in_seconds_and_until_when(
    store: esker.Store, clock: ManualClock
) -> None:
    topic = store.create("t", durability="fsync")
    for number in range(100):
        topic.append(b"%d" % number, wait=True)
        clock.forward(1)
    group = topic.group("g")
    lag = group.lag()
    assert (lag.records, lag.seconds, lag.eta_seconds) == (100, 100.0, None)
    for batch in group.poll(max_records=20):
        batch.ack()
        break
    clock.forward(10)
    lag = group.lag()
    assert (lag.records, lag.seconds) == (80, 90.0)
    assert lag.eta_seconds == pytest.approx(40.0)  # 20 in 10 seconds
    assert "80 records, 90.0 s behind, caught up in: 40 s" in str(lag)
    clock.forward(10)
    assert group.lag().eta_seconds is None  # it does not gain
    assert "unknown" in str(group.lag())
    group.seek("latest")
    lag = group.lag()
    assert (lag.records, lag.seconds, lag.eta_seconds) == (0, 0.0, 0.0)
    assert lag.shards[0].end == 100


# ---- process ---------------------------------------------------------------------------------


def test_process_acks_what_its_handler_has_done_and_ends_when_idle(store: esker.Store) -> None:
    group = filled(store).group("g")
    seen: list[bytes] = []
    real = Quick(group)
    assert real.process(lambda batch: seen.extend(batch.values), idle=0.2) == 10
    assert len(seen) == 10
    assert group.cursors() == {0: 10}


class Quick:
    """A group whose polls do not wait: the clock of the store stands still."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._stop = False

    def poll(self, max_records: int = 0, max_bytes: int = 1 << 20, wait: Any = 0) -> Any:
        self._stop |= self._group._stop
        return self._group.poll(max_records, max_bytes)

    def process(self, handler: Any, **how: Any) -> int:
        from esker.groups.process import process

        usual = {
            "retries": 3, "delay": 0.0, "on_error": None, "auto_ack": True, "max_records": 1000,
            "max_bytes": 1 << 20, "idle": 0.1,
        }  # fmt: skip
        return process(self, handler, **{**usual, **how})


def test_a_handler_that_fails_is_tried_again_and_then_the_error_is_raised(
    store: esker.Store,
) -> None:
    group = filled(store).group("g")
    tries: list[int] = []

    def fail(batch: Any) -> None:
        tries.append(len(batch))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Quick(group).process(fail, retries=2)
    assert tries == [10, 10, 10]
    assert group.cursors() == {0: 0}
    group.rewind()

    def fail_once(batch: Any) -> None:
        if len(tries) < 4:
            fail(batch)

    assert Quick(group).process(fail_once) == 10


@pytest.mark.parametrize(("verdict", "cursor"), [("skip", 10), ("stop", 0), ("retry", 10)])
def test_only_what_on_error_says_is_left_out(store: esker.Store, verdict: Any, cursor: int) -> None:
    group = filled(store).group("g")
    failures: list[str] = []

    def handler(batch: Any) -> None:
        if len(failures) < (2 if verdict == "retry" else 9):
            raise ValueError("no")

    def on_error(batch: Any, problem: Exception) -> Any:
        failures.append(str(problem))
        return verdict

    handled = Quick(group).process(handler, retries=0, on_error=on_error)
    assert handled == (10 if verdict == "retry" else 0)
    assert failures == ["no"] * (2 if verdict == "retry" else 1)
    assert group.cursors() == {0: cursor}


def test_a_verdict_that_is_none_is_refused(store: esker.Store) -> None:
    group = filled(store).group("g")
    with pytest.raises(esker.InvalidOption, match="on_error returned None"):
        Quick(group).process(lambda b: 1 / 0, retries=0, on_error=lambda b, p: None)
    with pytest.raises(esker.InvalidOption, match="retries"):
        group.process(print, retries=-1)
    assert group.cursors() == {0: 0}


def test_a_loop_is_ended_from_inside_and_from_outside_with_what_is_done_acked(
    store: esker.Store,
) -> None:
    group = filled(store).group("g")

    def stop_at_once(batch: Any) -> None:
        raise esker.StopProcessing

    assert Quick(group).process(stop_at_once, max_records=4) == 4
    assert group.cursors() == {0: 4}
    group.rewind()

    def stop_from_outside(batch: Any) -> None:
        group.stop()

    quick = Quick(group)
    assert quick.process(lambda batch: setattr(quick, "_stop", True), max_records=2) == 2
    assert group.cursors() == {0: 6}
    stop_from_outside(None)
    assert group.process(print) == 0


def test_without_auto_ack_the_handler_acks(store: esker.Store) -> None:
    group = filled(store).group("g")
    Quick(group).process(lambda batch: None, auto_ack=False)
    assert group.cursors() == {0: 0}
    group.rewind()
    Quick(group).process(lambda batch: batch.ack(upto=2), auto_ack=False)
    assert group.cursors() == {0: 3}


# ---- pages that are damaged ------------------------------------------------------------------


def page_of(disk: SimulatedDisk) -> str:
    return next(path for path in disk.contents() if path.endswith("/offsets"))


def test_a_damaged_cell_costs_what_comes_twice_and_is_told(
    disk: SimulatedDisk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(disk, clock) as store:
        topic = filled(store)
        group = topic.group("g")
        for batch in group.poll(max_records=5):
            batch.ack()
        shard = group._held[0]
        cell = shard._cell * 8
        after = disk.kill()
    after.poke(page_of(after), cell, b"\x55")
    report = esker.verify(ROOT, files=after)
    assert report.ok
    assert [p.kind for p in report.problems if p.kind == "cursors"] == ["cursors"]
    with opened(after, clock) as store:
        assert store["t"].groups()[0].shards[0].flaw
        with caplog.at_level(logging.WARNING, "esker"):
            assert len(values(store["t"].group("g"))) == 10
        assert "goes on from 0" in caplog.text


def test_a_damaged_slot_is_an_error_until_it_is_repaired(
    disk: SimulatedDisk, clock: ManualClock
) -> None:
    with opened(disk, clock) as store:
        topic = filled(store)
        for name in ("g", "h"):
            for batch in topic.group(name).poll():
                batch.ack()
    from esker.format.offsets import home_of

    after = disk.kill()
    after.poke(page_of(after), 128 + 128 * home_of("g"), b"\x00")
    with opened(after, clock) as store:
        assert values(store["t"].group("h")) == []
        with pytest.raises(esker.Corruption, match="may be that of group 'g'"):
            store["t"].group("g", "latest")
        assert [status.name for status in store["t"].groups()] == ["h"]
    assert not esker.verify(ROOT, files=after).ok
    done = esker.repair(ROOT, files=after)
    assert [action.what for action in done.actions] == ["cursors"]
    assert done.after is not None
    assert done.after.ok
    assert done.actions[0].kept in after.contents()
    with opened(after, clock) as store:
        assert values(store["t"].group("h")) == []
        assert len(values(store["t"].group("g"))) == 10


@pytest.mark.parametrize("size", [100, 65_663, 65_665])
def test_a_page_of_another_size_is_damage(
    disk: SimulatedDisk, clock: ManualClock, size: int
) -> None:
    with opened(disk, clock) as store:
        filled(store).group("g").close()
    after = disk.kill()
    file = after.open(page_of(after), "rw")
    file.truncate(size)
    file.close()
    if size < 65_664:
        with opened(after, clock) as store, pytest.raises(esker.Corruption, match="cut short"):
            store["t"].group("g")
    assert [p.kind for p in esker.verify(ROOT, files=after).problems] == ["cursors"]
    done = esker.repair(ROOT, files=after)
    assert done.after is not None
    assert done.after.problems == []
    with opened(after, clock) as store:
        store["t"].group("g")


def test_a_damaged_header_is_made_anew_and_told(
    disk: SimulatedDisk, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(disk, clock) as store:
        for batch in filled(store).group("g").poll():
            batch.ack()
    after = disk.kill()
    after.poke(page_of(after), 50, b"\x77")
    assert not esker.verify(ROOT, files=after).ok
    with caplog.at_level(logging.WARNING, "esker"), opened(after, clock) as store:
        assert values(store["t"].group("g")) == []
    assert "header was made anew" in caplog.text
    assert esker.verify(ROOT, files=after).ok
