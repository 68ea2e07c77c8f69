"""Jobs by their tokens, from handles that did not claim them; claims that are made together."""

from __future__ import annotations

from pathlib import Path

import pytest

import esker
from esker.errors import InvalidOption, NotAQueue, StaleLease, TopicNotFound
from esker.queues.opening import known_queue
from esker.queues.queue import Queue


@pytest.fixture
def queue(still: esker.Store) -> Queue:
    return still.queue("jobs", lease="30s")


def test_a_job_is_settled_by_its_token_through_another_handle(tmp_path: Path) -> None:
    with esker.open(tmp_path / "d") as one, esker.open(tmp_path / "d") as two:
        mine, theirs = one.queue("jobs"), two.queue("jobs")
        mine.put_many([b"a", b"b", b"c", b"d"])
        acked, nacked, kept, freed = mine.claim(4)
        theirs.ack(theirs.job(acked.shard, acked.offset, acked.token))
        theirs.nack([theirs.job(nacked.shard, nacked.offset, nacked.token)], reason="no")
        theirs.extend(theirs.job(kept.shard, kept.offset, kept.token), "1h")
        theirs.job(freed.shard, freed.offset, freed.token).release()
        assert [(each.offset, each.seconds_left > 3000) for each in mine.leases()] == [(2, True)]
        assert [(job.value, job.deliveries) for job in mine.claim(4)] == [(b"b", 2), (b"d", 1)]
        with pytest.raises(StaleLease):
            acked.ack()
        kept.ack()


def test_jobs_of_one_claim_are_settled_in_one_frame_whoever_names_them(queue: Queue) -> None:
    queue.put_many([b"%d" % n for n in range(100)])
    jobs = queue.claim(100)
    before = len(list(queue._lanes[0].log.history()))
    queue.ack([queue.job(job.shard, job.offset, job.token) for job in jobs])
    assert len(list(queue._lanes[0].log.history())) == before + 1


def test_a_token_that_is_stale_guessed_or_of_another_queue_does_nothing(
    still: esker.Store, queue: Queue
) -> None:
    other = still.queue("others")
    for each in (queue, other):
        each.put(b"x")
    (old,) = queue.claim()
    old.release()
    (job,), (foreign,) = queue.claim(), other.claim()
    worker, number = job.token.split("-")
    guesses = [f"{int(worker, 16) ^ 1:016x}-{number}", f"{worker}-{int(number) + 1}"]
    for token in (old.token, foreign.token, *guesses):
        with pytest.raises(StaleLease) as problem:
            queue.ack([queue.job(job.shard, job.offset, token)])
        assert [each.offset for each in problem.value.jobs] == [0]
    job.ack()
    for token in ("", "x", "0-1", f"{worker}-", f"{worker}-1-2", 7):
        with pytest.raises(InvalidOption, match="not the token"):
            queue.job(0, 0, token)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="shard=1"):
        queue.job(1, 0, job.token)


def test_claims_that_were_collected_are_dealt_out_in_turn(queue: Queue) -> None:
    queue.put_many([b"%d" % n for n in range(6)])
    hands = queue.claim_together([4, 1, 4, 4])
    assert [len(hand) for hand in hands] == [2, 1, 2, 1]
    assert sorted(job.offset for hand in hands for job in hand) == list(range(6))
    assert queue.claim_together([1, 1]) == [[], []]
    assert queue.announce(5) == 0.0
    with pytest.raises(InvalidOption):
        queue.claim_together([1, 0])


def test_who_collects_claims_leaves_their_share_to_others_who_wait(tmp_path: Path) -> None:
    with esker.open(tmp_path / "d") as one, esker.open(tmp_path / "d") as two:
        mine = one.queue("jobs", claim_jitter="200ms")
        theirs = two.queue("jobs")
        mine.put_many([b"%d" % n for n in range(10)])
        assert theirs.announce(10) == 0.2
        mine.announce(10)
        (hand,) = mine.claim_together([10])
        assert len(hand) == 5, "of ten jobs two who want ten each get five"
        (rest,) = theirs.claim_together([10])
        assert len(rest) == 5


def test_only_what_is_a_queue_is_opened_as_one(tmp_path: Path) -> None:
    with esker.open(tmp_path / "d") as store:
        store.create("plain")
        with pytest.raises(NotAQueue):
            known_queue(store, "plain")
        with pytest.raises(TopicNotFound):
            known_queue(store, "nothing")
        made = store.queue("jobs")
        assert known_queue(store, "jobs") is made
        assert list(store) == ["jobs", "plain"]
    with esker.open(tmp_path / "d") as store:
        assert known_queue(store, "jobs").name == "jobs"
