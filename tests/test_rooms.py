"""Groups, queues, routes and staged batches as any kind of store has them: one body for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import esker
from tests.helpers import Threads, wait_until

EVERY_KIND = True  # of store: see tests/conftest.py


def filled(store: Any, count: int = 10, name: str = "t", **options: Any) -> Any:
    topic = store.create(name, **options)
    topic.append_many([b"%d" % number for number in range(count)])
    return topic


def values(group: Any, **how: Any) -> list[bytes]:
    return [value for batch in group.poll(**how) for value in batch.values]


# ---- groups ----------------------------------------------------------------------------------


def test_what_was_acked_is_not_delivered_again_and_what_was_not_is(store: Any) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        (batch,) = group.poll()
        assert batch.values == [b"%d" % n for n in range(10)]
        assert (batch.topic, batch.shard, batch.first, batch.last) == ("t", 0, 0, 9)
        batch.ack(4)
        assert values(group) == [], "a poll goes on behind what it handed out"
        group.rewind()
        assert values(group) == [b"5", b"6", b"7", b"8", b"9"]
    with topic.group("g", start="latest") as group:
        (batch,) = group.poll()
        assert batch.first == 5, "a group that is there goes on where it is"
        batch.ack(wait=True)
        assert batch.acked
        assert group.cursors() == {0: 10}


def test_a_group_begins_where_it_is_told(store: Any) -> None:
    topic = filled(store)
    for start, expected in (("earliest", 10), ("latest", 0), (-3, 3), (7, 3)):
        with topic.group(f"from {start}", start) as group:
            assert len(values(group)) == expected
    with pytest.raises(esker.InvalidPosition):
        topic.group("odd", "sometimes")
    with pytest.raises(esker.TopicNotFound):
        store["nowhere"].group("g")


def test_batches_are_as_large_as_was_asked_and_come_up_to_the_end(store: Any) -> None:
    topic = filled(store, 100)
    with topic.group("g") as group:
        sizes = [len(batch) for batch in group.poll(max_records=30)]
        assert sum(sizes) == 100
        assert max(sizes) <= 30


def test_a_poll_waits_for_records(store: Any) -> None:
    topic = filled(store, 1)
    with topic.group("g", "latest") as group:
        assert values(group, wait=0.01) == []
        threads = Threads()
        began = threading.Event()
        found: list[bytes] = []

        def poll() -> None:
            began.set()
            found.extend(values(group, wait=20))

        threads.start(poll)
        assert began.wait(10)
        topic.append(b"late", wait=True)
        threads.join()
        assert found == [b"late"]


def test_members_share_the_shards_and_each_record_goes_to_one_of_them(store: Any) -> None:
    topic = store.create("t", shards=4)
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(200)])
    with topic.group("g") as one, topic.group("g") as other:
        found: list[bytes] = []
        ones: set[int] = set()
        others: set[int] = set()

        def step() -> bool:
            for group, shards in ((one, ones), (other, others)):
                for batch in group.poll():
                    shards.add(batch.shard)
                    found.extend(batch.values)
                    batch.ack()
            return one.lag().records == 0

        wait_until(step, "all records to come")
        assert sorted(found) == sorted(b"%d" % n for n in range(200))
        ones.clear()
        others.clear()
        for _ in range(3):  # by now each knows of the other
            topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(200)])
            wait_until(step, "all records to come")
        assert len(ones) == len(others) == 2
        assert ones | others == {0, 1, 2, 3}


def test_a_seek_moves_a_group_and_says_what_that_means(store: Any) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        for batch in group.poll():
            batch.ack()
        group.sync()
        (plan,) = group.seek(4, dry_run=True)
        assert (plan.before, plan.after, plan.records) == (10, 4, 6)
        assert group.cursors() == {0: 10}
        group.seek(4)
        wait_until(lambda: values(group) == [b"%d" % n for n in range(4, 10)], "them to come again")


def test_an_ack_of_a_group_that_was_moved_meanwhile_is_fenced(store: Any) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        (batch,) = group.poll()
        with topic.group("g") as mover:
            mover.seek(2)
        with pytest.raises(esker.Fenced):
            batch.ack()
        assert group.cursors() == {0: 2}


def test_a_paused_group_gets_nothing(store: Any) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        assert not group.paused
        group.pause()
        assert group.paused
        assert values(group) == []
        assert group.describe().paused
        group.resume()
        assert len(values(group)) == 10


def test_lag_and_status_are_told(store: Any) -> None:
    topic = filled(store)
    filled(store, 3, "other")
    with topic.group("g") as group, store["other"].group("h"):
        assert (group.lag().records, group.lag().topic, group.lag().group) == (10, "t", "g")
        (batch,) = group.poll(max_records=10)
        batch.ack(6)
        group.sync()
        assert [each.cursor for each in group.lag().shards] == [7]
        (status,) = topic.groups()
        assert (status.name, status.records) == ("g", 3)
        assert status.shards[0].pid
        assert {(each.topic, each.name) for each in store.groups()} == {("t", "g"), ("other", "h")}
    assert topic.groups()[0].shards[0].pid == 0


def test_a_group_can_be_forgotten_when_nobody_reads(store: Any) -> None:
    topic = filled(store)
    with topic.group("g") as group:
        values(group)
        with pytest.raises(esker.MemberBusy):
            topic.forget_group("g")
    topic.forget_group("g")
    assert topic.groups() == []
    with pytest.raises(esker.GroupNotFound):
        topic.forget_group("g")


def test_a_topic_that_is_not_there_has_no_groups(store: Any) -> None:
    assert store["t"].groups() == []


def test_a_handler_gets_every_record_and_a_failed_one_is_tried_again(store: Any) -> None:
    topic = filled(store, 30)
    seen: list[bytes] = []
    failed: list[int] = []

    def handle(batch: Any) -> None:
        if not failed:
            failed.append(batch.first)
            raise ValueError("once")
        seen.extend(batch.values)

    with topic.group("g") as group:
        assert group.process(handle, delay=0.0, idle=0.0, max_records=10) == 30
    assert seen == [b"%d" % n for n in range(30)]
    assert topic.groups()[0].records == 0


def test_what_was_evicted_before_it_was_read_is_told_to_a_group(store: Any) -> None:
    topic = store.create("t", segment_records=10, cap_records=10, protect_unconsumed=False)
    topic.append_many([b"x"] * 10)
    with topic.group("skips", gaps="skip") as skipping, topic.group("g") as group:
        for n in range(5):
            topic.append_many([b"%d" % n] * 10)
        wait_until(lambda: topic.earliest() > 0, "the oldest to go")
        first = topic.earliest()
        with pytest.raises(esker.DataGap) as caught:
            values(group)
        assert (caught.value.gap.first, caught.value.gap.last) == (0, first - 1)
        assert len(values(group)) == topic.end() - first
        assert len(values(skipping)) == topic.end() - first
        assert skipping.skipped == first


def test_a_closed_group_is_closed(store: Any) -> None:
    topic = filled(store)
    group = topic.group("g")
    group.close()
    group.close()
    with pytest.raises(esker.StoreClosed):
        group.poll()


# ---- queues ----------------------------------------------------------------------------------


def test_a_job_is_put_claimed_and_acked_and_never_comes_again(store: Any) -> None:
    queue = store.queue("jobs", lease="30s")
    span = queue.put(b"\xffhello", key=b"k", tag="t", headers={"a": b"\x01"})
    (job,) = queue.claim()
    assert (job.value, job.key, job.tag) == (b"\xffhello", b"k", "t")
    assert dict(job.headers) == {"a": b"\x01"}
    assert (job.offset, job.shard, job.deliveries, job.priority) == (span.first, 0, 1, 0)
    assert job.token
    assert queue.claim() == []
    job.ack()
    assert job.settled
    assert queue.stats().unfinished == 0
    with pytest.raises(esker.StaleLease) as caught:
        queue.nack(job)
    assert caught.value.jobs == [job]
    assert job.lost


def test_jobs_come_in_order_and_only_once(store: Any) -> None:
    queue = store.queue("jobs")
    queue.put_many([b"%d" % n for n in range(100)])
    assert [record.value for record in queue.peek(2)] == [b"0", b"1"]
    found = []
    while jobs := queue.claim(7):
        found += [job.value for job in jobs]
        queue.ack(jobs)
    assert found == [b"%d" % n for n in range(100)]


def test_what_is_nacked_comes_again_and_what_is_released_was_not_tried(store: Any) -> None:
    queue = store.queue("jobs")
    queue.put(b"x")
    (job,) = queue.claim()
    job.release()
    (job,) = queue.claim()
    assert job.deliveries == 1
    job.nack()
    (job,) = queue.claim()
    assert job.deliveries == 2
    job.nack(delay="1h", reason="later")
    assert queue.claim() == []
    assert queue.stats().delayed == 1
    assert queue.history(job.offset)[-1].reason == "later"


def test_a_lease_that_ran_out_is_somebody_elses(store: Any) -> None:
    queue = store.queue("jobs", lease="50ms")
    queue.put(b"x")
    (job,) = queue.claim()
    job.extend(0.1)
    found: list[Any] = []
    wait_until(lambda: found.extend(queue.claim(lease=30)) or found, "the lease to run out")
    with pytest.raises(esker.StaleLease):
        job.ack()
    assert found[0].deliveries == 2
    assert found[0].token != job.token
    found[0].ack()


def test_a_claim_waits_for_a_job(store: Any) -> None:
    queue = store.queue("jobs")
    assert queue.claim(wait=0.01) == []
    threads = Threads()
    found: list[Any] = []
    threads.start(lambda: found.extend(queue.claim(wait=20)))
    queue.put(b"x")
    threads.join()
    assert [job.value for job in found] == [b"x"]


def test_who_claims_behind_lost_jobs_is_told_to_claim_again(store: Any) -> None:
    queue = store.queue("jobs", segment_records=2, cap_records=4)
    for _ in range(8):
        queue.put_many([b"x"] * 2)
    wait_until(lambda: queue.topic.earliest() > 0, "the oldest to go")
    with pytest.raises(esker.DataGap, match="Claim again to go on behind it"):
        queue.claim(5)
    assert queue.claim(1)


@pytest.mark.parametrize("key", [b"k1", None])
def test_no_job_is_put_if_one_of_them_is_refused(store: Any, key: bytes | None) -> None:
    queue = store.queue("jobs", shards=3)
    good = [esker.Record(b"%d" % n, key=b"k%d" % n) for n in range(12)]
    bad = esker.Record(b"x", key=key, tag="t" * 300)
    with pytest.raises(esker.RecordTooLarge, match=r"^records\[12\]: a tag of 300 bytes"):
        queue.put_many([*good, bad, *good])
    assert queue.stats().ready == 0
    assert sum(span.count for span in queue.put_many([*good, b"no key"])) == 13
    assert sorted(job.value for job in queue.claim(20)) == sorted(
        [*(record.value for record in good), b"no key"]
    )


def test_no_job_is_put_if_a_shard_has_no_room_for_its_part(store: Any) -> None:
    queue = store.queue("jobs", shards=2, cap_records=2, discard="reject")
    one, *_ = [n for n in range(9) if queue.topic.shard_of(b"k%d" % n) == 0]
    other, *_ = [n for n in range(9) if queue.topic.shard_of(b"k%d" % n) == 1]
    jobs = [esker.Record(b"x", key=b"k%d" % n) for n in (one, other, other, other)]
    with pytest.raises(esker.TopicFull):
        queue.put_many(jobs)
    assert queue.stats().ready == 0


def test_priorities_and_delays_are_kept(store: Any) -> None:
    queue = store.queue("jobs", priorities=2)
    queue.put(b"low")
    queue.put(b"high", priority=1)
    queue.put(b"later", delay="1h")
    assert [(job.value, job.priority) for job in queue.claim(5)] == [(b"high", 1), (b"low", 0)]
    with pytest.raises(esker.InvalidOption, match="priority"):
        queue.put(b"x", priority=2)
    with pytest.raises(esker.InvalidOption, match="exclude each other"):
        queue.put(b"x", delay=1, at=1)


def test_jobs_that_wait_for_their_time_are_listed_the_next_one_first(store: Any) -> None:
    queue = store.queue("jobs", shards=2)
    assert queue.delayed() == []
    queue.put(b"now")
    queue.put(b"in a day", delay="1d")
    queue.put(b"in an hour", delay="1h")
    failed = queue.claim(1)[0]
    failed.nack(delay="2h")
    hours = [each.seconds_left / 3600 for each in queue.delayed()]
    assert hours == pytest.approx([1, 2, 24], abs=0.02)
    found = [queue.topic.get(each.offset, each.shard).value for each in queue.delayed()]
    assert found == [b"in an hour", b"now", b"in a day"]
    assert queue.stats().delayed == 3


def test_jobs_that_are_held_are_listed_and_can_be_taken_back(store: Any) -> None:
    queue = store.queue("jobs", shards=2, lease="1h")
    assert queue.leases() == []
    for number in range(3):
        queue.put(b"%d" % number)
    claimed = queue.claim(2)
    held = queue.leases()
    places = sorted((job.shard, job.offset) for job in claimed)
    assert [(each.shard, each.offset) for each in held] == places
    assert all(each.deliveries == 1 and 3_000 < each.seconds_left <= 3_600 for each in held)
    first, second = (queue.job(each.shard, each.offset, each.token) for each in held)
    queue.release(first)
    queue.nack([second], reason="it hung")
    assert first.settled
    assert queue.leases() == []
    assert (queue.stats().ready, queue.stats().leased) == (3, 0)
    assert queue.history(second.offset, second.shard)[-1].reason == "it hung"
    with pytest.raises(esker.StaleLease) as caught:
        queue.release([first])
    assert caught.value.jobs == [first]
    with pytest.raises(esker.StaleLease):
        queue.ack(claimed)


def test_a_job_can_be_settled_by_who_has_its_token(store: Any) -> None:
    queue = store.queue("jobs")
    queue.put(b"x")
    (job,) = queue.claim()
    queue.job(job.shard, job.offset, job.token).ack()
    assert queue.stats().unfinished == 0
    with pytest.raises(esker.StaleLease):
        job.ack()


def test_jobs_that_were_given_up_can_be_put_back_or_thrown_away(store: Any) -> None:
    queue = store.queue("jobs", max_deliveries=1)
    queue.put_many([b"a", b"b", b"c"])
    queue.nack(queue.claim(3), reason="no")
    assert len(queue.dead) == 3
    a, b, c = queue.dead.peek()
    assert (a.value, a.deliveries, a.reason) == (b"a", 1, "no")
    assert queue.dead.requeue(a) == 1
    assert queue.dead.purge(where=lambda job: job.value == b"b") == 1
    assert [job.value for job in queue.dead] == [b"c"]
    assert [job.value for job in queue.claim(5)] == [b"a"]
    assert queue.dead.purge() == 1
    assert (b.value, c.value) == (b"b", b"c")


def test_a_paused_queue_hands_out_nothing(store: Any) -> None:
    queue = store.queue("jobs")
    queue.put_many([b"a", b"b"])
    queue.pause()
    assert queue.claim() == []
    assert queue.stats().paused
    queue.resume()
    assert queue.purge() == 2
    assert queue.claim() == []


def test_workers_do_every_job_once_and_a_failed_one_is_nacked(store: Any) -> None:
    queue = store.queue("jobs")
    queue.put_many([b"%d" % n for n in range(20)])
    done: list[bytes] = []

    def handle(job: Any) -> None:
        if job.value == b"7" and job.deliveries == 1:
            raise ValueError("once")
        done.append(job.value)

    queue.backoff = lambda deliveries: 0.0
    assert queue.process(handle, workers=2, wait=0.5) == 20
    assert sorted(done) == sorted(b"%d" % n for n in range(20))
    queue.put(b"by hand")
    for job in queue.work(wait=0.1):
        with job:
            assert job.value == b"by hand"
    assert queue.stats().unfinished == 0


def test_options_of_a_queue_are_kept(store: Any) -> None:
    made = store.queue("jobs", lease="5s", max_deliveries=3, ordered=True).options
    assert store.queue("jobs").options == made
    assert (made.lease_us, made.max_deliveries, made.ordered) == (5_000_000, 3, True)
    assert "jobs" in store


# ---- routes ----------------------------------------------------------------------------------


def test_a_route_forwards_what_matches(store: Any) -> None:
    orders = store["orders"]
    orders.append_many([b'{"amount": %d}' % n for n in range(0, 200, 50)])
    route = store.route("orders", "large", where="json.amount > 90", name="r")
    assert (route.name, route.source, route.destination) == ("r", "orders", "large")
    orders.append(b'{"amount": 500}')

    def forwarded() -> list[Any]:
        return [record.json()["amount"] for record in store["large"].read()]

    wait_until(lambda: "large" in store and forwarded() == [100, 150, 500], "the route to run")
    assert store.route(name="r").status().source == "orders"
    assert [each.name for each in store.routes()] == ["r"]
    route.pause()
    assert route.status().state == "paused"
    route.resume()
    (move,) = route.seek(0, dry_run=True)
    assert move.after == 0
    route.delete()
    assert store.routes() == []
    with pytest.raises(esker.RouteNotFound):
        store.route(name="r")


def test_a_route_in_a_circle_is_refused(store: Any) -> None:
    store["a"].append(b"x", wait=True)
    store.route("a", "b")
    store["b"].append(b"y", wait=True)
    with pytest.raises(esker.RouteRefused):
        store.route("b", "a")
    with pytest.raises(esker.InvalidFilter):
        store.route("a", "c", where="tag ==")


# ---- batches made elsewhere ------------------------------------------------------------------

STAGING: list[Callable[[Any], Any]] = [
    lambda stage: stage.append_many([b"a", esker.Record(b"b", key=b"k", tag="t")]),
    lambda stage: stage.append_arrow(pa.table({"value": [b"a", b"b"], "tag": [None, "t"]})),
]


@pytest.mark.parametrize("fill", STAGING)
def test_a_staged_batch_is_attached_once(store: Any, fill: Callable[[Any], Any]) -> None:
    store.create("t", shards=2)
    with store.stage("t", 1) as stage:
        assert fill(stage) == 2
    assert len(store["t"]) == 0
    assert store.attached("w") is None
    assert store.attach("w", 7, stage.tickets) is True
    assert store.attach("w", 7, stage.tickets) is False
    assert store.attached("w") == 7
    assert [(r.value, r.tag, r.shard) for r in store["t"].read()] == [
        (b"a", None, 1), (b"b", "t", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e9, 0])
def test_a_batch_is_attached_however_long_one_would_wait(store: Any, timeout: Any) -> None:
    with store.stage("t") as stage:
        stage.append_many([b"a"])
    assert store.attach("w", 1, stage.tickets, timeout=timeout) is True
    assert [record.value for record in store["t"].read()] == [b"a"]


@pytest.mark.parametrize(
    "given",
    [("w", 1, -1), ("w", 1, "1s"), ("w", 1, float("nan")), (b"w", 1, 1), ("", 1, 1), ("w", "1", 1)],
)
def test_what_no_batch_can_be_attached_with_is_refused(store: Any, given: Any) -> None:
    writer, sequence, timeout = given
    with pytest.raises(esker.InvalidOption):
        store.attach(writer, sequence, [], timeout=timeout)


def test_what_was_staged_and_given_up_leaves_nothing(store: Any) -> None:
    store.create("t")
    stage = store.stage("t")

    def fail() -> None:
        with stage:
            stage.append_many([b"x"] * 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stage.tickets == []
    assert len(store["t"]) == 0
