"""Helpers for workers: leases that are renewed, work that stops when one is lost, fair division."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import esker
from esker.queues.cohort import dealt
from esker.queues.queue import Queue
from tests.helpers import Threads, child, wait_until


def queue_of(store: esker.Store, *values: bytes, **options: object) -> Queue:
    queue = store.queue("jobs", **options)
    queue.put_many(values)
    return queue


def test_leaving_the_block_acks_an_exception_nacks_and_an_interrupt_releases(
    store: esker.Store,
) -> None:
    queue = queue_of(store, b"a", b"b", b"c")
    first, second, third = queue.claim(3)
    with first:
        pass
    with pytest.raises(ZeroDivisionError), second:
        raise ZeroDivisionError("no")
    with pytest.raises(KeyboardInterrupt), third:
        raise KeyboardInterrupt
    assert (first.settled, second.settled, third.settled) == (True, True, True)
    assert [entry.what for entry in queue.history(0)] == ["claimed", "acked"]
    assert queue.history(1)[-1].reason == "ZeroDivisionError: no"
    assert queue.stats().delayed == 1, "with back-off"
    assert [(job.value, job.deliveries) for job in queue.claim(9)] == [(b"c", 1)]


def test_what_was_settled_by_hand_is_not_settled_again(store: esker.Store) -> None:
    queue = queue_of(store, b"a", b"b")
    for job in queue.claim(2):
        with job:
            job.nack(delay="1h")
    assert queue.stats().delayed == 2


def test_a_job_that_was_lost_meanwhile_is_not_acked_but_told(store: esker.Store) -> None:
    queue = queue_of(store, b"a")
    (job,) = queue.claim(1, lease=0.01)
    time.sleep(0.02)
    (other,) = queue.claim(1, lease=60)
    with pytest.raises(esker.StaleLease), job:
        pass
    job.lost = True
    with pytest.raises(esker.StaleLease, match="not renewed in time"):
        job.check()
    other.ack()


def test_back_off_doubles_and_has_an_end() -> None:
    assert [Queue.backoff(n) for n in (1, 2, 3, 20, 10**6)] == [1.0, 2.0, 4.0, 300.0, 300.0]


def test_a_loop_hands_out_every_job_and_coming_for_the_next_acks_the_last(
    store: esker.Store,
) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(20)])
    seen = [job.value for job in queue.work(concurrency=3, wait=0.05)]
    assert seen == [b"%d" % n for n in range(20)]
    assert queue.stats().unfinished == 0


def test_a_loop_that_is_left_gives_back_what_it_had(store: esker.Store) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(9)])
    for job in queue.work(concurrency=4):
        with job:
            if job.value == b"1":
                break
    found = queue.stats()
    assert (found.ready, found.leased, found.delayed) == (7, 0, 0)
    for job in queue.work(concurrency=2):
        assert job.value == b"2"
        break  # with it in hand, and not a word about it
    assert (queue.stats().ready, queue.stats().leased, queue.stats().delayed) == (6, 0, 1)


def test_leases_are_renewed_for_as_long_as_a_handler_runs(store: esker.Store) -> None:
    queue = queue_of(store, b"slow")
    with queue.work(lease=0.3) as work:
        for job in work:
            with job:
                deadline = time.monotonic() + 1.2
                while time.monotonic() < deadline:
                    assert queue.claim() == [], "nobody else gets it"
                    time.sleep(0.05)
                job.check()
                work.stop()
    assert "extended" in [entry.what for entry in queue.history(0)]
    assert queue.stats().unfinished == 0


def test_a_renewal_that_fails_stops_the_work(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B41: a handler whose lease cannot be renewed does not go on as if it were."""
    queue = queue_of(store, b"a")

    def fails(*_: object) -> None:
        raise esker.DiskFull("no room", path="/")

    with queue.work(lease=0.2) as work:
        for job in work:
            monkeypatch.setattr(queue, "extend", fails)
            wait_until(lambda job=job: job.lost, "it is told that its lease is lost")
            with pytest.raises(esker.StaleLease):
                job.check()
            work.stop()
    monkeypatch.undo()
    assert len(wait_until(queue.claim, "it comes again")) == 1


def test_a_renewal_finds_out_that_somebody_else_has_the_job(store: esker.Store) -> None:
    queue = queue_of(store, b"a", b"b")
    with queue.work(concurrency=2, lease="1h") as work:
        for job in work:
            if job.value == b"a":
                continue
            queue._lanes[0].state.held[job.offset].until = 0  # as if it had run out
            queue._lanes[0].state._expect(queue._lanes[0].state.held[job.offset])
            (other,) = queue.claim()
            assert work.renew()
            assert job.lost
            other.ack()
            work.stop()
    assert queue.stats().unfinished == 0


def test_process_runs_handlers_in_threads_and_gives_up_what_fails(store: esker.Store) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(40)], max_deliveries=1, dead_letter="dead")
    seen: Counter[str] = Counter()
    failed: list[tuple[bytes, str]] = []

    def handler(job: esker.Job) -> None:
        seen[threading.current_thread().name] += 1
        time.sleep(0.005)
        if job.value in (b"7", b"8"):
            raise ValueError("unlucky")

    done = queue.process(
        handler, workers=4, wait=0.1,
        on_error=lambda job, problem: failed.append((job.value, str(problem))),
    )  # fmt: skip
    assert done == 38
    assert len(seen) > 1
    assert sorted(failed) == [(b"7", "unlucky"), (b"8", "unlucky")]
    assert sorted(job.value for job in queue.dead) == [b"7", b"8"]
    assert queue.stats().unfinished == 0


def test_process_tells_of_a_job_that_was_lost_and_does_not_count_it(store: esker.Store) -> None:
    queue = queue_of(store, b"a")
    told: list[str] = []

    def handler(job: esker.Job) -> None:
        job.lost = True

    def on_error(job: esker.Job, problem: BaseException) -> None:
        told.append(type(problem).__name__)
        queue._lanes[0].state.held.clear()

    assert queue.process(handler, wait=0.05, on_error=on_error) == 0
    assert told == ["StaleLease"]


def test_an_error_in_the_queue_itself_ends_process(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(store, b"a")

    def fails(*_: object, **__: object) -> list[esker.Job]:
        raise esker.DiskFull("no room", path="/")

    monkeypatch.setattr(queue, "claim", fails)
    with pytest.raises(esker.DiskFull):
        queue.process(lambda job: None, workers=2)


def test_work_ends_when_the_store_is_closed(tmp_path: Path) -> None:
    store = esker.open(tmp_path / "data")
    queue = queue_of(store)
    threads = Threads()
    threads.start(lambda: list(queue.work()))
    time.sleep(0.05)
    store.close()
    threads.join()


def test_an_interrupted_process_gives_back_what_nobody_has_begun(tmp_path: Path) -> None:
    with child("""
    import sys, time, signal, esker
    store = esker.open(sys.argv[1])
    queue = store.queue("jobs", lease="1h")
    queue.put_many([b"%d" % n for n in range(9)])
    def handler(job):
        sys.stdout.write("began\\n")
        time.sleep(3)
    try:
        queue.process(handler, workers=2)
    except KeyboardInterrupt:
        print("interrupted", queue.stats().leased, queue.stats().unfinished, flush=True)
    store.close()
    """, tmp_path / "data") as other:  # fmt: skip
        assert [other.line(), other.line()] == ["began", "began"]
        other.process.send_signal(2)
        assert other.line() == "interrupted 0 7"
        other.end()


# ---- fair division ---------------------------------------------------------------------------


def test_jobs_are_dealt_in_turn() -> None:
    hands = dealt(list(range(7)), [1, 10, 3, 0])  # type: ignore[arg-type]
    assert hands == [[0], [1, 3, 5], [2, 4, 6], []]
    assert dealt(list(range(3)), [1, 1]) == [[0], [1]]  # type: ignore[arg-type]


def test_claims_that_come_together_share_what_there_is(store: esker.Store) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(12)], claim_jitter="200ms")
    got: list[int] = []
    threads = Threads()
    for _ in range(4):
        threads.start(lambda: got.append(len(queue.claim(10))))
    threads.join()
    assert sorted(got) == [3, 3, 3, 3]
    assert len({held.token for held in queue.leases()}) == 1, "in one pass"


def test_claims_of_other_kinds_do_not_wait_for_each_other(store: esker.Store) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(12)], claim_jitter="100ms")
    got: list[int] = []
    threads = Threads()
    for lease in (10, 20):
        threads.start(lambda lease=lease: got.append(len(queue.claim(10, lease=lease))))
    threads.join()
    assert sum(got) == 12


def test_who_claims_in_another_process_is_left_his_share(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = queue_of(store, *[b"%d" % n for n in range(12)], claim_jitter="300ms")
        with child("""
    import sys, esker
    store = esker.open(sys.argv[1])
    queue = store.queue("jobs")
    queue.stats()
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(queue.claim(12)), flush=True)
    sys.stdin.readline()
    store.close()
    """, tmp_path / "data") as other:  # fmt: skip
            assert other.line() == "ready"
            other.say()
            mine = len(queue.claim(12))
            theirs = int(other.line())
            assert mine + theirs <= 12
            assert min(mine, theirs) >= 3, (mine, theirs)
            other.say()
            other.end()


def test_a_claim_that_fails_leaves_those_who_joined_it_on_their_own(
    store: esker.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_of(store, *[b"%d" % n for n in range(4)], claim_jitter="100ms")
    real, fails = queue._claim, [True]

    def claim(want: object) -> list[esker.Job]:
        if fails.pop() if fails else False:
            raise esker.DiskFull("no room", path="/")
        return real(want)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "_claim", claim)
    got: list[object] = []

    def run() -> None:
        try:
            got.append(len(queue.claim(2)))
        except esker.DiskFull:
            got.append("full")

    threads = Threads()
    for _ in range(2):
        threads.start(run)
    threads.join()
    assert sorted(map(str, got)) == ["2", "full"]
