"""Queues in one process: what is promised to whoever puts, claims and acks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import esker
from esker.engine.delivery import deliver
from esker.errors import InvalidOption, NotAQueue, StaleLease
from esker.queues import lane as lanes
from esker.queues import moving
from esker.queues.queue import Queue
from esker.testing import LOST, Fault, ManualClock, SimulatedDisk
from tests.helpers import HandClock


@pytest.fixture
def queue(still: esker.Store) -> Queue:
    return still.queue("jobs", lease="30s")


def values(jobs: list[esker.Job]) -> list[bytes]:
    return [job.value for job in jobs]


def reopened(store: esker.Store, clock: HandClock, **options: Any) -> esker.Store:
    store.close()
    return esker.open(store.path, clock=clock, background=False, **options)


# ---- the way of a job ------------------------------------------------------------------------


def test_a_job_is_put_claimed_and_acked_and_never_comes_again(
    still: esker.Store, queue: Queue, clock: HandClock
) -> None:
    span = queue.put(b"hello", key=b"k", tag="t", headers={"a": b"1"})
    (job,) = queue.claim()
    assert (job.value, job.key, job.tag, job.headers) == (b"hello", b"k", "t", {"a": b"1"})
    assert (job.offset, job.shard, job.deliveries, job.priority) == (span.first, 0, 1, 0)
    assert job.text == "hello"
    job.ack()
    clock.forward(3600)
    assert queue.claim() == []
    with reopened(still, clock) as again:
        assert again.queue("jobs").claim() == []
        assert again.queue("jobs").stats().unfinished == 0


def test_jobs_come_in_the_order_they_were_put_and_only_once(queue: Queue) -> None:
    queue.put_many([b"%d" % n for n in range(1000)])
    queue.put(b"last")
    found = []
    while jobs := queue.claim(7):
        found += values(jobs)
    assert found == [*(b"%d" % n for n in range(1000)), b"last"]


def test_a_lease_that_ran_out_is_handed_out_again_before_what_is_fresh(
    queue: Queue, clock: HandClock
) -> None:
    queue.put_many([b"a", b"b", b"c"])
    (first,) = queue.claim(1, lease="10s")
    clock.forward(9.9)
    assert values(queue.claim(1)) == [b"b"]
    clock.forward(0.2)
    (again, fresh) = queue.claim(2)
    assert values([again, fresh]) == [b"a", b"c"]
    assert (again.deliveries, fresh.deliveries) == (2, 1)
    assert again.token != first.token


def test_a_stale_token_never_acts(queue: Queue, clock: HandClock) -> None:
    """B40: who held a job once settles no later delivery of it."""
    queue.put(b"a")
    (slow,) = queue.claim(1, lease=1)
    clock.forward(2)
    (fast,) = queue.claim(1)
    for verb in (slow.ack, slow.nack, slow.release, slow.extend):
        with pytest.raises(StaleLease, match="claim 2 of process") as caught:
            verb()
        assert caught.value.jobs == [slow]
        assert caught.value.code == "stale_lease"
    assert slow.lost
    assert queue.stats().leased == 1
    fast.ack()
    with pytest.raises(StaleLease, match="it is done"):
        fast.ack()
    assert queue.stats().unfinished == 0


def test_a_second_delivery_that_is_given_back_leaves_the_first_its_job(
    queue: Queue, clock: HandClock
) -> None:
    """B42: nobody but who holds a job can have it taken off the queue, whatever he does with it."""
    queue.put(b"a")
    (slow,) = queue.claim()
    clock.forward(31)
    (second,) = queue.claim()
    with pytest.raises(StaleLease):
        slow.ack()
    second.release()
    assert queue.stats().ready == 1, "neither the late ack nor the release has finished it"
    (third,) = queue.claim()
    for stale in (slow, second):
        with pytest.raises(StaleLease):
            queue.ack(stale)
    assert queue.stats().leased == 1
    third.ack()
    assert queue.stats().unfinished == 0


def test_who_is_late_may_still_ack_while_nobody_else_has_the_job(
    queue: Queue, clock: HandClock
) -> None:
    queue.put(b"a")
    (job,) = queue.claim(1, lease=1)
    clock.forward(100)
    assert queue.stats().ready == 1
    job.ack()
    assert queue.claim() == []


def test_of_a_batch_the_valid_ones_are_acked_and_the_stale_ones_named(
    queue: Queue, clock: HandClock
) -> None:
    queue.put_many([b"a", b"b", b"c"])
    jobs = queue.claim(3, lease=1)
    queue.extend(jobs[:1], lease=100)
    clock.forward(2)
    (other,) = queue.claim(1)
    assert other.value == b"b"
    with pytest.raises(StaleLease) as caught:
        queue.ack(jobs)
    assert caught.value.jobs == [jobs[1]]
    assert [held.offset for held in queue.leases()] == [1]


def test_a_nacked_job_rests_for_as_long_as_was_said(queue: Queue, clock: HandClock) -> None:
    queue.put_many([b"a", b"b"])
    first, second = queue.claim(2)
    first.nack(delay="5s", reason="no")
    second.nack()
    assert values(queue.claim(2)) == [b"b"]
    assert queue.stats().delayed == 1
    clock.forward(5)
    (job,) = queue.claim(2)
    assert (job.value, job.deliveries) == (b"a", 2)


def test_a_released_job_is_ready_at_once_and_the_delivery_does_not_count(queue: Queue) -> None:
    """B43: nobody waits for the end of a lease that was given back."""
    queue.put(b"a")
    (job,) = queue.claim()
    job.release()
    (job,) = queue.claim()
    assert job.deliveries == 1


def test_a_jump_of_the_wall_clock_neither_expires_nor_revives_a_lease(
    queue: Queue, clock: HandClock
) -> None:
    """B44: leases go by a clock that nobody sets."""
    queue.put_many([b"a", b"b"])
    held, rests = queue.claim(2, lease=60)
    rests.nack(delay=60)
    clock.us += 10**12
    assert queue.claim() == []
    clock.us -= 2 * 10**12
    assert queue.claim() == []
    clock.seconds += 61
    assert values(queue.claim(2)) == [b"a", b"b"]
    assert not held.settled


def test_a_job_for_later_comes_when_its_time_has_come(
    still: esker.Store, queue: Queue, clock: HandClock
) -> None:
    queue.put(b"later", delay="10s")
    queue.put(b"at", at=datetime.fromtimestamp(clock.us / 1e6 + 20, UTC))
    queue.put_many([b"now", b"many"], delay=0)
    queue.put_many([b"batch"], delay=30)
    assert values(queue.claim(9)) == [b"now", b"many"]
    assert queue.stats().delayed == 3
    clock.forward(10)
    assert values(queue.claim(9)) == [b"later"]
    with reopened(still, clock) as again:
        jobs = again.queue("jobs")
        clock.forward(11)
        assert b"at" in values(jobs.claim(9))
        clock.forward(11)
        assert b"batch" in values(jobs.claim(9))


def test_a_look_that_failed_does_not_count_jobs_that_wait_as_ready_for_ever(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(b"later", delay="10s")
    fresh, lane = queue._fresh[0], queue._lanes[0]

    def failing(*_: Any) -> Any:
        raise esker.StorageError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(esker.Topic, "_whole", failing)
        assert fresh.times(lane, 0, 1) == {}
    assert (queue.stats().ready, queue.stats().delayed) == (0, 1)


def test_jobs_that_wait_are_counted_so_before_anybody_has_claimed(
    still: esker.Store, queue: Queue, clock: HandClock
) -> None:
    def found(of: Queue) -> tuple[int, int]:
        return of.stats().ready, of.stats().delayed

    queue.put_many([b"a", b"b"])
    queue.put(b"later", delay="10s")
    queue.put(b"plain", headers={"other": b"1"})
    assert found(queue) == (3, 1)
    queue.put_many([b"c", b"d"], delay="20s")
    assert found(queue) == (3, 3)
    clock.forward(10)
    assert found(queue) == (4, 2)
    assert len(queue.claim(3)) == 3  # the cursor stands among them
    assert found(queue) == (1, 2)
    with reopened(still, clock) as again:
        assert found(again.queue("jobs")) == (1, 2)
    with esker.open(still.path, "r", clock=clock) as look:
        assert found(look.queue("jobs")) == (1, 2)


def test_delay_and_at_exclude_each_other(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="exclude"):
        queue.put(b"a", delay=1, at=datetime.now(UTC))


def test_a_foreign_header_does_not_keep_a_job_back(queue: Queue) -> None:
    queue.put(b"a", headers={"esker-not-before": b"soon"})
    assert values(queue.claim()) == [b"a"]


def test_higher_priorities_are_handed_out_first(still: esker.Store) -> None:
    queue = still.queue("jobs", priorities=3, shards=2)
    assert queue.topic.shards == 6
    for n in range(6):
        queue.put(b"low %d" % n)
        queue.put(b"high %d" % n, priority=2)
    queue.put(b"mid", priority=1, key=b"k")
    found = queue.claim(20)
    assert [job.priority for job in found] == [2] * 6 + [1] + [0] * 6
    with pytest.raises(InvalidOption, match=r"has 0\.\.2"):
        queue.put(b"a", priority=3)


def test_ordered_jobs_of_one_key_are_out_one_at_a_time(still: esker.Store) -> None:
    queue = still.queue("jobs", ordered=True)
    for n in range(3):
        queue.put(b"a%d" % n, key=b"a")
        queue.put(b"b%d" % n, key=b"b")
    queue.put(b"free")
    jobs = queue.claim(10)
    assert values(jobs) == [b"a0", b"b0", b"free"]
    assert queue.claim(10) == []
    assert queue.stats().parked == 4
    jobs[0].nack()
    (again,) = queue.claim(10)
    assert again.value == b"a0", "a1 does not overtake it"
    again.ack()
    (second,) = queue.claim(10)
    assert second.value == b"a1"
    queue.put(b"a3", key=b"a")
    assert queue.claim(10) == []
    second.ack()
    (third,) = queue.claim(10)
    third.ack()
    assert values(queue.claim(10)) == [b"a3"]


def test_who_looks_for_free_keys_does_not_look_for_ever(
    still: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esker.queues import claiming

    monkeypatch.setattr(claiming, "PARKED_MAX", 10)
    queue = still.queue("jobs", ordered=True)
    queue.put_many([esker.Record(b"%d" % n, key=b"a") for n in range(500)])
    queue.put(b"free", key=b"b")
    (job,) = queue.claim(5)
    assert queue.claim(5) == []
    assert queue.stats().parked < 300
    for n in range(1, 500):
        job.ack()
        (job,) = [found for found in queue.claim(1) if found.key == b"a"] or queue.claim(1)
        assert job.value in (b"%d" % n, b"free")
        if job.value == b"free":
            break


# ---- giving up -------------------------------------------------------------------------------


@pytest.fixture(params=["kept", "letters"])
def frail(request: pytest.FixtureRequest, still: esker.Store) -> Iterator[Queue]:
    """A queue that gives jobs up after two deliveries, with and without dead letters."""
    more = {"dead_letter": "jobs.dead"} if request.param == "letters" else {}
    return still.queue("jobs", max_deliveries=2, **more)


def test_a_job_that_failed_too_often_is_given_up(frail: Queue, clock: HandClock) -> None:
    frail.put_many([b"nacked", b"expired"])
    for _ in range(2):
        nacked, _expired = frail.claim(2, lease=1)
        nacked.nack(reason="it hurts")
        clock.forward(2)
    assert frail.claim(2) == []
    found = {job.value: job for job in frail.dead}
    assert {value: (job.deliveries, job.reason) for value, job in found.items()} == {
        b"nacked": (2, "it hurts"), b"expired": (2, "its leases ran out"),
    }  # fmt: skip
    assert (len(frail.dead), frail.stats().dead, frail.stats().unfinished) == (2, 2, 0)
    assert frail.dead.peek(1)[0].value in found


def test_dead_jobs_are_put_back_one_or_matching_or_all(frail: Queue, clock: HandClock) -> None:
    frail.put_many([b"%d" % n for n in range(6)])
    for _ in range(2):
        frail.claim(6, lease=1)
        clock.forward(2)
    assert frail.claim(6) == []
    by_value = {job.value: job for job in frail.dead}
    assert frail.dead.requeue(by_value[b"3"]) == 1
    assert frail.dead.requeue(by_value[b"3"]) == 0, "it is not there any more"
    elsewhere = msgspec.structs.replace(by_value[b"2"], shard=7)
    assert frail.dead.purge(elsewhere) == 0, "there is no such shard"
    assert frail.dead.requeue(where=lambda job: job.value in (b"1", b"2")) == 2
    again = frail.claim(6)
    assert sorted(values(again)) == [b"1", b"2", b"3"]
    assert {job.deliveries for job in again} == {1}
    assert {job.headers for job in again} == {None}
    frail.ack(again)
    assert frail.dead.purge([by_value[b"0"]]) == 1
    assert frail.dead.requeue() == 2
    assert sorted(values(frail.claim(6))) == [b"4", b"5"]
    assert frail.dead.purge() == 0


def test_dead_letters_are_copied_once_and_say_where_they_come_from(
    still: esker.Store, clock: HandClock
) -> None:
    queue = still.queue("jobs", max_deliveries=1, dead_letter="jobs.dead")
    queue.put(b"a", key=b"k", tag="t", headers={"h": b"1"})
    (job,) = queue.claim()
    stamp = job.timestamp
    job.nack(reason="no")
    (letter,) = still["jobs.dead"].read()
    assert (letter.value, letter.key, letter.tag, letter.timestamp) == (b"a", b"k", "t", stamp)
    assert letter.headers is not None
    assert letter.headers["h"] == b"1"
    assert b'"queue":"jobs"' in letter.headers["esker-dead"]
    assert b'"reason":"no"' in letter.headers["esker-dead"]
    with reopened(still, clock) as again:
        assert again.queue("jobs").claim() == []
        assert len(again["jobs.dead"]) == 1
        assert values(again.queue("jobs.dead").claim()) == [b"a"], "dead letters are a queue too"


def test_a_dead_letter_that_could_not_be_copied_is_copied_later(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B46: a job whose copy failed is neither lost nor stuck."""
    queue = still.queue("jobs", max_deliveries=1, dead_letter="jobs.dead")
    queue.put(b"a")
    (job,) = queue.claim()
    monkeypatch.setattr(moving, "deliver", _fails)
    job.nack()
    assert job.settled
    assert queue.claim() == []
    assert (queue.stats().moving, queue.stats().dead, len(still["jobs.dead"])) == (1, 0, 0)
    with reopened(still, clock) as again:
        queue = again.queue("jobs")
        assert queue.claim() == [], "tried again, in vain"
        monkeypatch.setattr(moving, "deliver", deliver)
        clock.forward(2)
        again.tick()
        assert (queue.stats().moving, len(again["jobs.dead"])) == (0, 1)


def _fails(*_: object, **__: object) -> bool:
    raise esker.DiskFull("no room", path="/")


def test_a_copy_that_was_made_by_one_who_died_is_not_made_again(
    still: esker.Store, clock: HandClock
) -> None:
    queue = still.queue("jobs", max_deliveries=1, dead_letter="jobs.dead")
    queue.put_many([b"a", b"b"])
    jobs = queue.claim(2)
    lane = queue._lanes[0]
    real = lane.commit

    def dies(events: list[Any]) -> None:
        if type(events[0]).__name__ == "Settled":
            raise KeyboardInterrupt
        real(events)

    lane.commit = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        jobs[0].nack()
    lane.commit = real  # type: ignore[method-assign]
    with reopened(still, clock) as again:
        queue = again.queue("jobs")
        assert queue.stats().moving == 1
        again.tick()
        assert queue.stats().moving == 0
        assert [letter.value for letter in again["jobs.dead"].read()] == [b"a"]


def given_up_in_vain(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch, count: int, **options: Any
) -> esker.Queue:
    """A queue with so many moves, each of one job, that all wait for their copies."""
    store.create("dead", **options)
    queue = store.queue("jobs", max_deliveries=1, dead_letter="dead")
    queue.put_many([b"%d" % number for number in range(count)])
    with monkeypatch.context() as patch:
        patch.setattr(moving, "deliver", _fails)
        for job in queue.claim(count):
            job.nack()
    assert queue.stats().moving == len(queue._lanes[0].state.moving) == count
    return queue


def test_moves_that_wait_are_copied_together(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = given_up_in_vain(still, monkeypatch, 50)
    clock.forward(2)
    still.tick()
    assert queue.stats().moving == 0
    assert [record.value for record in still["dead"].read()] == [b"%d" % n for n in range(50)]
    assert sum(segment.rows > 0 for segment in still["dead"]._shards[0].segments) == 1


def test_who_copies_what_another_has_copied_meanwhile_has_his_copy_dropped(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = given_up_in_vain(still, monkeypatch, 3)
    lane = queue._lanes[0]
    first = sorted(lane.state.moving.items())[:2]
    real, mover = deliver, moving.Mover(still, "jobs")

    def late(*args: Any, **how: Any) -> bool:
        monkeypatch.setattr(moving, "deliver", real)
        mover._copy(lane, first, 0.0)  # another one, who knows of two only, is faster
        return real(*args, **how)

    monkeypatch.setattr(moving, "deliver", late)
    clock.forward(2)
    still.tick()
    assert queue.stats().moving == 0
    assert [record.value for record in still["dead"].read()] == [b"0", b"1", b"2"]


def test_moves_that_have_no_room_together_go_as_far_as_there_is_room(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = given_up_in_vain(still, monkeypatch, 3, cap_records=2, discard="reject")
    clock.forward(2)
    still.tick()
    assert queue.stats().moving == 1
    assert [record.value for record in still["dead"].read()] == [b"0", b"1"]
    folder = Path(still.path) / "topics"
    assert not list(folder.glob("*/*/*.staged")), "what was refused leaves nothing behind"


def test_a_copy_that_waits_for_another_writer_is_there_when_that_one_is_gone(
    still: esker.Store, clock: HandClock
) -> None:
    queue = still.queue("jobs", max_deliveries=1, dead_letter="dead")
    queue.put_many([b"a", b"b"])
    with esker.open(still.path, clock=clock, background=False) as other:  # it attaches nothing
        other["dead"].append(b"theirs", wait=True)
        for job in queue.claim(2):
            job.nack()
        assert (queue.stats().moving, queue.stats().unfinished) == (2, 0)
        assert queue.claim() == []
    clock.forward(2)
    still.tick()
    assert queue.stats().moving == 0
    assert [record.value for record in still["dead"].read()] == [b"theirs", b"a", b"b"]


# ---- power ------------------------------------------------------------------------------------


def powered(disk: SimulatedDisk) -> esker.Store:
    return esker.open("/store", files=disk, clock=ManualClock(), background=False)


def left(disk: SimulatedDisk, store: esker.Store) -> esker.Store:
    """The power goes, and all that was not synced with it; the machine is started again."""
    after = disk.crash(LOST)
    store._context.forked = True
    store.close()
    return powered(after)


def test_an_ack_of_class_fsync_is_durable_when_it_returns() -> None:
    disk = SimulatedDisk(seed=1)
    store = powered(disk)
    queue = store.queue("jobs", durability="fsync")
    queue.put_many([b"acked", b"held"])
    job, _held = queue.claim(2, lease="1h")
    job.ack()
    with left(disk, store) as again:
        assert values(again.queue("jobs").claim(9)) == [b"held"], "at once: no lease outlives it"


def test_durable_leases_outlive_a_power_cut_as_a_count_of_deliveries() -> None:
    found = {}
    for durable in (True, False):
        disk = SimulatedDisk(seed=1)
        store = powered(disk)
        queue = store.queue("jobs", durability="fsync", leases_durable=durable)
        queue.put(b"a")
        queue.claim()
        with left(disk, store) as again:
            found[durable] = again.queue("jobs").claim()[0].deliveries
    assert found == {True: 2, False: 1}


def test_a_job_that_was_moved_is_in_one_place_after_a_power_cut() -> None:
    disk = SimulatedDisk(seed=1)
    store = powered(disk)
    queue = store.queue("jobs", durability="disk", max_deliveries=1, dead_letter="dead")
    queue.put(b"a")
    store.sync()
    queue.claim()[0].nack()
    with left(disk, store) as again:
        found = again.queue("jobs")
        waiting = values(found.claim(9, gaps="skip"))
        assert waiting + [job.value for job in found.dead] == [b"a"]


def test_a_failed_sync_of_the_leases_is_not_tried_again() -> None:
    disk = SimulatedDisk(seed=1)
    store = powered(disk)
    queue = store.queue("jobs", durability="fsync")
    queue.put_many([b"a", b"b"])
    jobs = queue.claim(2)
    disk.fail(Fault("EIO", calls=frozenset(["sync"]), inside="leases-"))
    with pytest.raises(esker.Poisoned, match="close the store and open it"):
        jobs[0].ack()
    disk.heal()
    for verb in (jobs[1].ack, queue.claim, queue.stats):
        with pytest.raises(esker.Poisoned):
            verb()
    store.tick()
    store.close()
    with powered(disk) as again:
        assert again.queue("jobs").claim(9)


# ---- the whole queue -------------------------------------------------------------------------


def test_a_paused_queue_hands_out_nothing_and_takes_acks(
    still: esker.Store, queue: Queue, clock: HandClock
) -> None:
    queue.put_many([b"a", b"b"])
    (job,) = queue.claim()
    queue.pause()
    assert queue.claim() == []
    job.ack()
    assert queue.stats().paused
    with reopened(still, clock) as again:
        queue = again.queue("jobs")
        assert queue.claim() == [], "also after a restart"
        queue.resume()
        assert values(queue.claim()) == [b"b"]


def test_purge_throws_away_what_waits_and_leaves_what_is_held(
    queue: Queue, clock: HandClock
) -> None:
    queue.put_many([b"%d" % n for n in range(5)])
    queue.put(b"later", delay=5)
    held, nacked = queue.claim(2)
    nacked.nack(delay=1)
    assert queue.purge() == 5
    clock.forward(10)
    assert queue.claim() == []
    held.ack()
    queue.put(b"new")
    assert values(queue.claim()) == [b"new"]


def test_stats_tell_where_every_job_is(queue: Queue, clock: HandClock) -> None:
    assert queue.stats().oldest_seconds is None
    queue.put_many([b"%d" % n for n in range(10)])
    clock.forward(4)
    jobs = queue.claim(4, lease=5)
    jobs[0].ack()
    jobs[1].nack(delay=60)
    jobs[2].release()
    found = queue.stats()
    assert (found.ready, found.leased, found.delayed, found.dead) == (7, 1, 1, 0)
    assert found.unfinished == 9
    assert found.oldest_seconds == 4.0
    clock.forward(6)
    assert (queue.stats().ready, queue.stats().leased) == (8, 0)


def test_peek_shows_what_would_come_and_takes_nothing(queue: Queue, clock: HandClock) -> None:
    queue.put_many([b"%d" % n for n in range(5)])
    queue.put(b"later", delay=9)
    queue.claim(1, lease=1)
    clock.forward(2)
    assert [record.value for record in queue.peek(3)] == [b"0", b"1", b"2"]
    assert len(queue.peek(100)) == 5
    assert values(queue.claim(5)) == [b"%d" % n for n in range(5)]


def test_history_tells_who_held_a_job_when(queue: Queue, clock: HandClock) -> None:
    queue.put_many([b"a", b"b"])
    (job, other) = queue.claim(2)
    clock.forward(1)
    job.extend(60)
    clock.forward(1)
    job.nack(reason="no")
    clock.forward(1)
    (job,) = queue.claim()
    job.ack()
    found = queue.history(0)
    assert [entry.what for entry in found] == ["claimed", "extended", "nacked", "claimed", "acked"]
    assert found[1].when_us - found[0].when_us == 1_000_000
    assert {entry.pid for entry in found} == {queue._crew.pid}
    assert found[0].token == other.token != found[3].token == job.token
    assert "nacked by process" in str(found[2])
    assert str(found[2]).endswith("(no)")
    assert [entry.what for entry in queue.history(1)] == ["claimed"]
    with pytest.raises(InvalidOption, match="shard=7"):
        queue.history(0, shard=7)


def test_leases_tell_who_holds_what_and_for_how_long(queue: Queue, clock: HandClock) -> None:
    queue.put_many([b"a", b"b"])
    jobs = queue.claim(2, lease=10)
    clock.forward(4)
    jobs[1].extend(20)
    assert [(held.offset, held.seconds_left, held.token) for held in queue.leases()] == [
        (0, 6.0, jobs[0].token), (1, 20.0, jobs[1].token),
    ]  # fmt: skip
    assert jobs[1].deadline == clock.seconds + 20


def test_the_log_of_leases_begins_anew_and_forgets_nothing_that_counts(
    still: esker.Store, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "ROLL_BYTES", 2_000)
    queue = still.queue("jobs", history_bytes=20_000)
    queue.put_many([b"%d" % n for n in range(300)])
    kept = queue.claim(3, lease="1h")
    done = 0
    while jobs := queue.claim(2):
        queue.ack(jobs)
        done += len(jobs)
        clock.forward(1)
    assert done == 297
    assert queue._lanes[0].log.number > 5
    folder = Path(still.path) / "topics" / "00000001" / "queue" / "0000"
    held = sum(file.stat().st_size for file in folder.glob("leases-*"))
    assert held < 25_000 + 4_000
    with reopened(still, clock) as again:
        queue = again.queue("jobs")
        assert sorted(values(queue.claim(10))) == sorted(values(kept)), "its worker is gone"


def test_done_segments_are_dropped_by_the_process_that_writes(
    still: esker.Store, clock: HandClock
) -> None:
    queue = still.queue("jobs", segment_bytes="4KiB")
    for n in range(20):
        queue.put_many([bytes(500)] * 4)
        assert queue.topic.end() == 4 * (n + 1)
    topic = still["jobs"]
    jobs = queue.claim(60)
    queue.ack(jobs[:30] + jobs[31:])
    clock.forward(2)
    still.tick()
    still.tick()
    assert topic.earliest() == 30, "job 30 is not done"
    jobs[30].ack()
    clock.forward(2)
    still.tick()
    assert topic.earliest() == 60
    assert len(queue.claim(100)) == 20


# ---- what is not there -----------------------------------------------------------------------


def test_jobs_that_were_evicted_are_told_as_a_gap_once(still: esker.Store) -> None:
    queue = still.queue("jobs", segment_bytes="4KiB", cap_records=8)
    for _ in range(8):
        queue.put_many([bytes(900)] * 2)
    still.tick()
    still.retain()
    first = still["jobs"].earliest()
    assert first > 0
    with pytest.raises(esker.DataGap, match="Claim again") as caught:
        queue.claim(5)
    assert (caught.value.gap.first, caught.value.gap.last) == (0, first - 1)
    jobs = queue.claim(100)
    assert [job.offset for job in jobs] == list(range(first, 16))
    assert queue.stats().gone == first


def test_with_skip_lost_jobs_are_only_counted(still: esker.Store) -> None:
    queue = still.queue("jobs", segment_bytes="4KiB", cap_records=8)
    for _ in range(8):
        queue.put_many([bytes(900)] * 2)
    still.retain()
    first = still["jobs"].earliest()
    assert queue.claim(1, gaps="skip")[0].offset == first
    assert queue.stats().gone == first


def test_a_job_that_was_evicted_while_it_was_held_is_a_gap_too(
    still: esker.Store, clock: HandClock
) -> None:
    queue = still.queue("jobs", segment_bytes="4KiB", cap_records=8)
    queue.put_many([bytes(900)] * 2)
    queue.claim(2, lease=1)
    for _ in range(8):
        queue.put_many([bytes(900)] * 2)
    still.retain()
    clock.forward(2)
    with pytest.raises(esker.DataGap):
        queue.claim(1)
    assert queue.claim(1)[0].offset == still["jobs"].earliest()


def test_a_job_that_somebody_deleted_is_done_and_nobody_is_told(still: esker.Store) -> None:
    queue = still.queue("jobs")
    for n in range(10):
        queue.put(b"%d" % n, tag="odd" if n % 2 else "even")
    assert values(queue.claim(1)) == [b"0"]
    still["jobs"].delete(tag="odd")
    assert values(queue.claim(3)) == [b"2", b"4", b"6"]
    still["jobs"].delete(before=9, shard=0)
    assert queue.claim(9) == []
    assert queue.stats().unfinished == 4, "those that are held"


# ---- opening ---------------------------------------------------------------------------------


def test_options_are_kept_with_the_queue(still: esker.Store, clock: HandClock) -> None:
    still.queue("jobs", lease="5s", max_deliveries=7, dead_letter="dead", history="2d")
    assert still.queue("jobs") is still.queue("jobs")
    with reopened(still, clock) as again:
        found = again.queue("jobs").options
        assert (found.lease_us, found.max_deliveries, found.dead_letter) == (5_000_000, 7, "dead")
        assert found.history_us == 2 * 86_400_000_000
        assert again.queue("jobs", max_deliveries=8) is again.queue("jobs")
        assert again.queue("jobs").options.max_deliveries == 8
    with esker.open(still.path, mode="r") as reader:
        assert reader.queue("jobs").options.max_deliveries == 8


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"leese": 1}, "did you mean 'lease'"),
        ({"lease": 0}, "must lie in"),
        ({"ordered": 1}, "True or False"),
        ({"dead_letter": "jobs"}, "cannot be its own"),
        ({"dead_letter": None}, "the name of a topic"),
        ({"priorities": 0}, "must lie in"),
        ({"durability": "memory"}, 'use "disk" or "fsync"'),
        ({"max_deliveries": True}, "must lie in"),
    ],
)
def test_options_that_cannot_be_are_refused(
    still: esker.Store, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        still.queue("jobs", **options)


def test_what_a_queue_was_made_with_stays(still: esker.Store) -> None:
    still.queue("jobs", priorities=2, shards=2)
    assert still.queue("jobs", shards=2, priorities=2).topic.shards == 4
    with pytest.raises(InvalidOption, match="was made with 2"):
        still.queue("jobs", priorities=4)
    with pytest.raises(InvalidOption, match="keeps them"):
        still.queue("jobs", shards=3)
    with pytest.raises(InvalidOption, match=r"store\.alter"):
        still.queue("jobs", durability="fsync")
    still.create("three", shards=3)
    with pytest.raises(InvalidOption, match="cannot be divided"):
        still.queue("three", priorities=2)
    still.create("class", durability="ephemeral")
    with pytest.raises(InvalidOption, match="ephemeral"):
        still.queue("class")


def test_a_topic_that_was_there_becomes_a_queue_with_all_its_records(still: esker.Store) -> None:
    still.create("jobs", shards=2).append_many([b"a", b"b"])
    still["jobs"].append(b"c", wait=True)
    assert sorted(values(still.queue("jobs").claim(9))) == [b"a", b"b", b"c"]


def test_a_reader_looks_and_changes_nothing(
    still: esker.Store, queue: Queue, clock: HandClock
) -> None:
    queue.put_many([b"a", b"b", b"c"])
    (job,) = queue.claim()
    still.create("plain")
    before = {p: p.read_bytes() for p in Path(still.path).rglob("leases-*")}
    with esker.open(still.path, mode="r", clock=clock) as reader:
        seen = reader.queue("jobs")
        assert (seen.stats().ready, seen.stats().leased) == (2, 1)
        assert [record.value for record in seen.peek()] == [b"b", b"c"]
        assert seen.leases()[0].token == job.token
        assert [entry.what for entry in seen.history(0)] == ["claimed"]
        for verb in (seen.claim, seen.pause, seen.purge, seen.dead.purge):
            with pytest.raises(esker.ReadOnlyStore):
                verb()  # type: ignore[operator]
        with pytest.raises(NotAQueue):
            reader.queue("plain")
        with pytest.raises(esker.TopicNotFound):
            reader.queue("nothing")
    assert {p: p.read_bytes() for p in Path(still.path).rglob("leases-*")} == before


def test_a_queue_in_memory_works_too() -> None:
    with esker.open(":memory:") as store:
        queue = store.queue("jobs", max_deliveries=1, dead_letter="dead")
        queue.put_many([b"a", b"b"])
        first, second = queue.claim(2)
        first.ack()
        second.nack()
        assert queue.stats().dead == 1
        assert queue.dead.requeue() == 1
        assert values(queue.claim()) == [b"b"]


def test_a_closed_or_deleted_queue_says_so(still: esker.Store) -> None:
    queue = still.queue("jobs")
    queue.put(b"a")
    (job,) = queue.claim()
    still.delete("jobs")
    for verb in (queue.claim, queue.stats, job.ack, lambda: queue.put(b"b")):
        with pytest.raises(esker.TopicNotFound, match="was deleted"):
            verb()
    still.tick()
    again = still.queue("jobs")
    assert again is not queue
    assert again.claim() == []
    still.close()
    with pytest.raises(esker.StoreClosed):
        again.claim()
    with pytest.raises(esker.StoreClosed):
        job.ack()


def test_bad_calls_are_refused_before_anything_happens(queue: Queue, still: esker.Store) -> None:
    queue.put(b"a")
    for bad in (0, -1, True, 10**9, "1"):
        with pytest.raises(InvalidOption, match="max="):
            queue.claim(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="gaps="):
        queue.claim(gaps="yield")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="millisecond"):
        queue.claim(lease=0.0001)
    (job,) = queue.claim()
    with pytest.raises(InvalidOption, match="not a job of queue 'other'"):
        still.queue("other").ack(job)
    assert repr(job).startswith("<esker job 0 of 'jobs' shard 0")
    assert repr(queue) == "<esker queue 'jobs', 1 shard>"
    assert queue.put_many([]) == []


# ---- many threads ----------------------------------------------------------------------------


def test_threads_share_a_queue_and_no_two_have_the_same_job(store: esker.Store) -> None:
    queue = store.queue("jobs", shards=2)
    queue.put_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(2_000)])
    found: list[bytes] = []

    def run() -> None:
        while jobs := queue.claim(5):
            found.extend(values(jobs))
            queue.ack(jobs)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=int) == [b"%d" % n for n in range(2_000)]


def test_a_claim_that_waits_is_woken_by_a_put(store: esker.Store) -> None:
    queue = store.queue("jobs")
    got: list[list[esker.Job]] = []
    thread = threading.Thread(target=lambda: got.append(queue.claim(1, wait=30)))
    thread.start()
    queue.put(b"a")
    thread.join(10)
    assert values(got[0]) == [b"a"]
    assert queue.claim(1, wait=0.01) == []
