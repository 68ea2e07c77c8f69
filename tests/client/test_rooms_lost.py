"""Groups, queues and staged batches when answers are lost."""

from __future__ import annotations

from typing import Any

import pytest

import esker
from tests.client.relay import Relay


def values(group: Any) -> list[bytes]:
    return [value for batch in group.poll() for value in batch.values]


def test_a_poll_whose_answer_was_lost_is_delivered_again(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store["t"].append_many([b"a", b"b"])
        with store["t"].group("g") as group:
            assert values(group) == [b"a", b"b"]
            for batch in group.poll():
                batch.ack()
            store["t"].append_many([b"c"])
            relay.lose = 1
            with pytest.raises(esker.Unavailable):
                values(group)
            assert b"c" in values(group)


def test_an_ack_whose_answer_was_lost_counts(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store["t"].append_many([b"a", b"b"])
        with store["t"].group("g") as group:
            (batch,) = group.poll()
            relay.lose = 1
            with pytest.raises(esker.Unavailable) as caught:
                batch.ack(wait=True)
            assert caught.value.done is None
            assert group.cursors() == {0: 2}


def test_a_batch_that_is_attached_twice_is_there_once(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store.create("t")
        with store.stage("t") as stage:
            stage.append_many([b"a", b"b"])
        relay.lose = 1
        store.attach("w", 1, stage.tickets)
        assert [record.value for record in store["t"].read()] == [b"a", b"b"]
        with pytest.raises(esker.InvalidOption, match="stage them here"):
            store.attach("w", 2, [object()])  # type: ignore[list-item]


def test_a_large_stage_is_sent_in_parts_and_attached_as_one(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.client.stage.SEND_BYTES", 10_000)
    with esker.open(relay.url) as store:
        store.create("t")
        with store.stage("t") as stage:
            for n in range(5):
                stage.append_many([b"%d" % n * 50] * 200)
        assert len(stage.tickets) > 1
        assert len(store["t"]) == 0
        assert store.attach("w", 1, stage.tickets)
        assert len(store["t"]) == 1_000


def test_a_job_of_another_holder_is_told_by_name(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b", b"c"])
        jobs = queue.claim(3)
        queue.ack(jobs[1])
        with pytest.raises(esker.StaleLease) as caught:
            queue.ack(jobs)
        assert caught.value.jobs == [jobs[1]]
        assert [job.settled for job in jobs] == [True, True, True]
        assert [job.lost for job in jobs] == [False, True, False]
