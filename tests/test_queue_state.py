"""The state of a queue's shard, without a disk: against a model that does everything the slow way.

The model keeps one word for each offset and looks at all of them. The state machine claims, acks,
nacks, lets time pass, puts the wall clock back, kills workers and restarts the machine; after each
step both must agree, and so must a state that was made anew from the events, from a snapshot, and
from a log of which some events are missing (then: none of the jobs is left out).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from esker.format import leases as fmt
from esker.format.leases import Event, runs_of
from esker.queues.leases import State

JOBS = 30  # offsets there are
SECOND = 1_000_000


class Slow:
    """What is known of one job."""

    def __init__(self) -> None:
        self.where = "fresh"
        self.lease: tuple[int, int] = (0, 0)
        self.until = 0
        self.deliveries = 0
        self.ready = 0


class Model(RuleBasedStateMachine):
    """A queue of thirty jobs and three workers."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.jobs = [Slow() for _ in range(JOBS)]
        self.mono = 1_000 * SECOND
        self.wall = 5_000_000 * SECOND
        self.log: list[Event] = []
        self.acked: set[int] = set()
        self.number = 0

    def tell(self, event: Event) -> None:
        self.log.append(event)
        self.state.apply([event])

    def is_due(self, job: Slow) -> bool:
        return (
            job.where == "loose"
            or (job.where == "held" and job.until <= self.mono)
            or (job.where == "resting" and job.ready <= self.mono)
            or (job.where == "later" and job.ready <= self.wall)
        )

    @rule(most=st.integers(1, 6), worker=st.integers(1, 3), lease=st.integers(1, 20))
    def claim(self, most: int, worker: int, lease: int) -> None:
        due = self.state.due(self.mono, self.wall, most)
        expected = [o for o, job in enumerate(self.jobs) if self.is_due(job)][:most]
        assert due == expected, "given back first, the oldest first"
        fresh = list(range(self.state.cursor, min(JOBS, self.state.cursor + most - len(due))))
        if not due + fresh:
            return
        self.number += 1
        until = self.mono + lease * SECOND
        self.tell(fmt.Claimed(self.number, worker, 100 + worker, until, runs_of(due + fresh)))
        for offset in due + fresh:
            job = self.jobs[offset]
            assert offset not in self.acked, "an acked job came again"
            job.where, job.lease, job.until = "held", (worker, self.number), until
            job.deliveries += 1

    @rule(most=st.integers(1, 4))
    def nobody_takes_what_was_due(self, most: int) -> None:
        self.state.put_back(self.state.due(self.mono, self.wall, most))

    def held(self) -> dict[tuple[int, int], list[int]]:
        found: dict[tuple[int, int], list[int]] = {}
        for offset, job in enumerate(self.jobs):
            if job.where == "held":
                found.setdefault(job.lease, []).append(offset)
        return found

    @precondition(lambda self: self.held())
    @rule(
        data=st.data(), what=st.sampled_from(("ack", "nack", "rest", "release", "extend", "dead"))
    )
    def settle(self, data: Any, what: str) -> None:
        (worker, number), offsets = data.draw(st.sampled_from(sorted(self.held().items())))
        some = sorted(data.draw(st.sets(st.sampled_from(offsets), min_size=1)))
        runs = runs_of(some)
        assert all(self.state.holds(offset, worker, number) for offset in some)
        until = self.mono + 7 * SECOND
        made: dict[str, Event] = {
            "ack": fmt.Acked(number, worker, runs),
            "nack": fmt.Nacked(number, worker, runs, 0, "no"),
            "rest": fmt.Nacked(number, worker, runs, until),
            "release": fmt.Released(number, worker, runs),
            "extend": fmt.Extended(number, worker, until, runs),
            "dead": fmt.Dead(runs, ["no"] * len(some)),
        }
        self.tell(made[what])
        for offset in some:
            job = self.jobs[offset]
            if what == "ack":
                self.acked.add(offset)
            if what == "release":
                job.deliveries -= 1
            if what == "extend":
                job.until = until
            else:
                words = {"ack": "done", "rest": "resting", "dead": "dead"}
                job.where, job.ready = words.get(what, "loose"), until

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.mono += seconds * SECOND
        self.wall += seconds * SECOND

    @rule(seconds=st.integers(-10_000, 10_000))
    def somebody_sets_the_clock(self, seconds: int) -> None:
        leased = [o for o, job in enumerate(self.jobs) if job.where == "held"]
        before = [self.is_due(self.jobs[o]) for o in leased]
        self.wall += seconds * SECOND
        assert [self.is_due(self.jobs[o]) for o in leased] == before

    @rule(worker=st.integers(1, 3))
    def a_worker_dies(self, worker: int) -> None:
        self.tell(fmt.Died(worker))
        for job in self.jobs:
            if job.where == "held" and job.lease[0] == worker:
                job.where = "loose"

    @rule()
    def the_machine_starts_again(self) -> None:
        self.mono = 3 * SECOND
        self.tell(fmt.Booted(b"%d" % len(self.log)))
        for job in self.jobs:
            if job.where in ("held", "resting"):
                job.where = "loose"

    @precondition(lambda self: self.state.cursor < JOBS)
    @rule(count=st.integers(1, 4), seconds=st.integers(1, 30))
    def fresh_ones_are_for_later(self, count: int, seconds: int) -> None:
        first = self.state.cursor
        at = self.wall + seconds * SECOND
        offsets = range(first, min(JOBS, first + count))
        self.tell(fmt.Delayed([n for offset in offsets for n in (offset, at)]))
        for offset in offsets:
            self.jobs[offset].where, self.jobs[offset].ready = "later", at

    @precondition(lambda self: any(job.where == "dead" for job in self.jobs))
    @rule(data=st.data(), back=st.booleans())
    def the_dead_are_looked_after(self, data: Any, back: bool) -> None:
        dead = [o for o, job in enumerate(self.jobs) if job.where == "dead"]
        some = sorted(data.draw(st.sets(st.sampled_from(dead), min_size=1)))
        self.tell(fmt.Requeued(runs_of(some)) if back else fmt.Purged(runs_of(some)))
        for offset in some:
            job = self.jobs[offset]
            job.where, job.deliveries = ("loose", 0) if back else ("done", job.deliveries)

    @rule()
    def it_is_read_anew_from_a_snapshot(self) -> None:
        snapshot = self.state.snapshot()
        assert fmt._decoder.decode(fmt._encoder.encode([snapshot])) == [snapshot]
        self.state = State()
        self.state.apply([snapshot])
        assert self.state.snapshot() == snapshot
        self.log = [snapshot]

    @rule(data=st.data())
    def some_events_are_damaged_and_no_job_is_left_out(self, data: Any) -> None:
        if not self.log:
            return
        lost = data.draw(st.sets(st.integers(0, len(self.log) - 1), min_size=1, max_size=3))
        left = [e for at, e in enumerate(self.log) if at not in lost or type(e) is fmt.Snapshot]
        other = State()
        other.apply(left)
        for offset in range(other.cursor):
            known = self.jobs[offset].where
            gone = other.whereabouts(offset) == "it is done"
            assert not gone or known == "done", f"job {offset} is {known}, and was lost"

    @invariant()
    def they_agree(self) -> None:
        mono, wall = self.mono, self.wall
        counts = self.state.counts(mono, wall)
        below = self.jobs[: self.state.cursor]
        assert counts["ready"] == sum(map(self.is_due, below))
        assert counts["dead"] == sum(job.where == "dead" for job in below)
        words = ("held", "resting", "later")
        waiting = sum(job.where in words and not self.is_due(job) for job in below)
        assert counts["leased"] + counts["delayed"] == waiting
        pending = [o for o, job in enumerate(self.jobs) if job.where not in ("done", "fresh")]
        assert self.state.floor() == min([*pending, self.state.cursor])
        for offset, job in enumerate(self.jobs):
            if job.where not in ("done", "fresh"):
                assert self.state.deliveries(offset) == job.deliveries
            if job.where == "held":
                assert self.state.holds(offset, *job.lease)
        assert sorted(self.state.workers()) == sorted(
            {job.lease[0] for job in self.jobs if job.where == "held"}
        )

    def teardown(self) -> None:
        again = State()
        again.apply(self.log)
        assert again.snapshot() == self.state.snapshot(), "who reads the log has the same state"


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


def claimed(*offsets: int, number: int = 1, worker: int = 1, until: int = 10) -> fmt.Claimed:
    return fmt.Claimed(number, worker, 100 + worker, until, runs_of(sorted(offsets)))


def test_a_stale_token_is_told_from_the_valid_one_by_worker_and_number() -> None:
    state = State()
    state.apply([claimed(0, 1, number=1, worker=1)])
    state.apply([claimed(0, number=2, worker=2, until=20)])
    assert not state.holds(0, 1, 1)
    assert state.holds(0, 2, 2)
    assert state.holds(1, 1, 1)
    assert "process 102" in state.whereabouts(0)


def test_what_became_of_a_job_is_said_in_words() -> None:
    state = State()
    state.apply([claimed(0, 1, 2, 3, 4, 5)])
    state.apply([
        fmt.Acked(1, 1, [0, 1]), fmt.Nacked(1, 1, [1, 1]), fmt.Nacked(1, 1, [2, 1], 99),
        fmt.Dead([3, 1], ["x"]), fmt.Moved(1, "dead", [4, 1], [1], [""]), fmt.Parked([6, 9]),
    ])  # fmt: skip
    said = [state.whereabouts(offset) for offset in range(8)]
    assert said[0] == "it is done"
    assert said[1] == said[2] == "it was given back, and is to be claimed again"
    assert said[3] == said[4] == "it was given up as dead"
    assert said[5] == "claim 1 of process 101 has it now"
    assert said[6] == "it waits for another job with its key"
    assert said[7] == "nobody ever had it"


def test_an_event_that_speaks_of_fresh_jobs_makes_those_before_it_ready() -> None:
    """They were claimed by an event that is not there any more."""
    told: list[Event] = [claimed(5, 6), fmt.Acked(1, 1, [5, 1]), fmt.Delayed([5, 9]),
                         fmt.Gone([5, 1]), fmt.Purged([5, 1]), fmt.Parked([5, 3])]  # fmt: skip
    for event in told:
        state = State()
        state.apply([event])
        assert state.due(0, 0, 99) == [0, 1, 2, 3, 4]
        assert state.cursor == (7 if event is told[0] else 6)


def test_a_moved_job_holds_the_floor_until_its_copy_is_there() -> None:
    state = State()
    state.apply([claimed(0, 1), fmt.Moved(4, "dead", [0, 1], [1], [""]), fmt.Acked(1, 1, [1, 1])])
    assert (state.floor(), state.sequence) == (0, 4)
    assert state.counts(0, 0)["moving"] == 1
    state.apply([fmt.Settled(4)])
    assert (state.floor(), state.moving) == (2, {})


def test_jobs_of_one_key_go_one_after_the_other() -> None:
    state = State()
    state.apply([fmt.Claimed(1, 1, 1, 10, [0, 1], [7]), fmt.Parked([1, 7, 2, 7])])
    assert state.due(0, 0, 9) == []
    again = State()
    again.apply([state.snapshot()])
    for known in (state, again):
        known.apply([fmt.Nacked(1, 1, [0, 1])])
        assert known.due(0, 0, 9) == [0], "the first one has not had its turn"
        known.apply([fmt.Claimed(2, 1, 1, 10, [0, 1], [7]), fmt.Acked(2, 1, [0, 1])])
        assert known.due(0, 0, 9) == [1]
        known.apply([fmt.Purged([2, 1])])
        known.apply([fmt.Claimed(3, 1, 1, 10, [1, 1], [7]), fmt.Acked(3, 1, [1, 1])])
        assert (known.keys, known.heads, known.parked) == ({}, {}, {})
        assert known.floor() == 3


def test_leases_that_were_acked_leave_nothing_behind() -> None:
    state = State()
    for number in range(20_000):
        state.apply([claimed(number, number=number), fmt.Acked(number, 1, [number, 1])])
    assert len(state._deadlines) < 2_000
    assert (state.held, state.again, state.crew) == ({}, {}, {})


def test_a_clock_that_was_put_back_keeps_a_scheduled_job_back() -> None:
    state = State()
    state.apply([fmt.Delayed([0, 100])])
    assert state.due(0, 100, 1) == [0]
    state.put_back([0])
    assert state.due(0, 50, 1) == []
    assert state.next_due() == (None, 100)
    assert state.due(0, 100, 1) == [0]


def test_when_something_is_due_next_is_known() -> None:
    state = State()
    assert state.next_due() == (None, None)
    state.apply([claimed(0, 1, until=70), fmt.Nacked(1, 1, [0, 1], 60)])
    assert state.next_due() == (60, None)


def test_an_extension_of_a_lost_lease_does_nothing() -> None:
    state = State()
    state.apply([claimed(0), claimed(0, number=2, worker=2), fmt.Extended(1, 1, 99, [0, 1])])
    assert state.held[0].until == 10


def test_a_pause_is_a_part_of_the_state() -> None:
    state = State()
    state.apply([fmt.Paused(True)])
    assert state.snapshot().paused
    state.apply([fmt.Paused(False), fmt.Ended(2)])
    assert not state.snapshot().paused
