"""A queue on a simulated disk: the process dies, the power goes, a call fails, bits turn.

One shift of work is performed again and again: jobs are put, claimed, acked, nacked, extended,
released, given up, put back; the log of leases goes on in new files all the time. Around every call
that changes the disk the process is killed, and the power cut in as many ways as are worth looking
at; every call that can fail does so once; every byte of a log of leases is damaged. Each time the
store is opened again, and all that is there is claimed:

    a job that was put, and not acked, comes once, or lies among the dead letters once
    a job that was acked does not come again
    damage may bring back what was done; it is told, and it hides nothing

In class `disk` a power cut may take what was not synced: jobs, and acks. Nothing comes twice, then
either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import esker
from esker.queues import lane as lanes
from esker.testing import Call, Fault, ManualClock, SimulatedDisk
from tests import fsck
from tests.suites import SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

ROOT = "/store"
LOTS = 8
FAULTS = ("EIO", "ENOSPC", "short write", "KeyboardInterrupt", "late KeyboardInterrupt")


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "ROLL_BYTES", 1_500)


def opened(disk: SimulatedDisk, clock: ManualClock) -> esker.Store:
    return esker.open(
        ROOT, files=disk, clock=clock, background=False, journals=1, journal_bytes="64KiB"
    )


class Shift:
    """Some work on a queue, and what is known of each job."""

    def __init__(self, disk: SimulatedDisk, durability: str) -> None:
        self.disk, self.durability, self.clock = disk, durability, ManualClock()
        self.put: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.doubt: set[bytes] = set()  # of these it is not known whether they were put, or acked
        self.store: esker.Store | None = None
        self.step = 0

    @contextmanager
    def doing(self, known: set[bytes] | None, *values: bytes) -> Iterator[None]:
        """What is being done with these is in doubt until it is done."""
        self.doubt.update(values)
        yield
        if known is not None:
            known.update(values)
        self.doubt.difference_update(values)

    def add(self, queue: esker.Queue, *values: bytes, **how: Any) -> None:
        with self.doing(self.put, *values):
            queue.put_many(values, **how)

    def ack(self, queue: esker.Queue, jobs: list[esker.Job]) -> None:
        with self.doing(self.acked, *[job.value for job in jobs]):
            queue.ack(jobs)

    def open(self) -> esker.Queue:
        self.store = opened(self.disk, self.clock)
        return self.store.queue(
            "jobs", lease="30s", max_deliveries=2, dead_letter="dead", durability=self.durability,
            segment_bytes="4KiB", history_bytes=3_000,
        )  # fmt: skip

    def work(self, attempt: Callable[[Callable[[], Any]], Any]) -> None:
        """All of it, a step at a time; `attempt` performs a step."""
        for step in (self.morning, self.noon, self.evening, self.night):
            attempt(step)

    def morning(self) -> None:
        queue = self.open()
        self.add(queue, *[b"%d" % n for n in range(6)])
        self.add(queue, b"later", delay=5)
        one, two, three = queue.claim(3)
        self.ack(queue, [one])
        two.nack(reason="no")
        three.release()
        (again,) = queue.claim(1)
        again.nack(reason="no again")  # for the second time: it is given up
        queue.pause()
        queue.resume()
        some = queue.claim(2)
        queue.extend(some, lease=60)
        self.ack(queue, some)

    def noon(self) -> None:
        assert self.store is not None
        queue = self.store.queue("jobs")
        queue.dead.requeue()
        self.clock.forward(6)
        jobs = queue.claim(9)
        self.ack(queue, jobs[:2])
        queue.nack(jobs[2:3], delay=3)
        self.add(queue, b"8", bytes(1_900), b"9")
        self.clock.forward(40)
        jobs = queue.claim(3)
        self.ack(queue, jobs[1:])
        self.store.tick()

    def evening(self) -> None:
        assert self.store is not None
        self.store.close()
        queue = self.open()
        for _ in range(2):
            for job in queue.claim(2, lease=1):
                job.nack()
        self.ack(queue, queue.claim(1))
        self.add(queue, b"10")
        self.store.tick()

    def night(self) -> None:
        assert self.store is not None
        self.store.close()
        self.store = None

    def judge(self, disk: SimulatedDisk, *, powerless: bool, damaged: bool = False) -> None:
        """Open what is left and hold it against what is known."""
        clock = ManualClock(self.clock.now_us() + 10**9, self.clock.monotonic())
        with opened(disk, clock) as store:
            came, told = self.drain(store, clock)
            if damaged:
                return self.hold_damaged(came, told, store)
        strict = not powerless or self.durability == "fsync"
        for value in self.put | self.doubt:
            times, acked = came[value], value in self.acked
            assert times <= 1, f"{value[:9]!r} came {times} times"
            if strict and acked and value not in self.doubt:
                assert not times, f"{value[:9]!r} was acked, and came again"
            if strict and not acked and value not in self.doubt:
                assert times, f"{value[:9]!r} was put, not acked, and is lost"
        assert set(came) <= self.put | self.doubt
        found = esker.verify(ROOT, files=disk)
        assert found.ok, str(found)
        fsck.judge_clean(disk.contents(), pages=False)
        return None

    def drain(self, store: esker.Store, clock: ManualClock) -> tuple[Counter[bytes], list[str]]:
        came: Counter[bytes] = Counter()
        if "jobs" in store:
            queue = store.queue("jobs")
            if queue.stats().paused:
                queue.resume()
            store.tick()  # copies that were under way are made
            for _ in range(2):
                while jobs := queue.claim(5, gaps="skip"):
                    came.update(job.value for job in jobs)
                    queue.ack(jobs)
                assert not queue.stats().leased, "who is dead holds nothing"
                clock.forward(100)  # what was nacked with a delay
            assert queue.stats().unfinished == queue.stats().moving == 0
            if queue.options.dead_letter:
                came.update(job.value for job in queue.dead)
        return came, store.recovery.labels

    def hold_damaged(self, came: Counter[bytes], told: list[str], store: esker.Store) -> None:
        lost = [value for value in self.put - self.acked if not came[value]]
        assert lost == []
        again = [value for value in self.acked if came[value]]
        assert not again or "damaged_leases" in told or "torn_leases" in told, "in silence"


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("lot", range(LOTS))
@pytest.mark.timeout(900)
def test_wherever_it_dies_no_job_is_lost_and_none_comes_twice(
    lot: int, durability: str, tally: Tallies
) -> None:
    suite = tally("queue crashes", lots=2 * LOTS)
    disk = SimulatedDisk(seed=SEED)
    shift = Shift(disk, durability)
    seen: set[bytes] = set()
    stride = max(1, round(1 / min(1.0, scaled(1000) / 1000)))

    def watch(call: Call, when: str) -> None:
        if when != "after" or call.serial % LOTS != lot or call.serial // LOTS % stride:
            return
        shift.judge(disk.kill(), powerless=False)
        suite.count += 1
        for after in disk.crashes(most=scaled(5, 3), chances=2, seed=call.serial, seen=seen):
            shift.judge(after, powerless=True)
            suite.count += 1

    disk.watch = watch
    shift.work(lambda step: step())
    disk.watch = None
    suite.also["calls"] = disk.changes
    shift.judge(disk.kill(), powerless=False)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.timeout(900)
def test_whatever_call_fails_no_job_is_lost_and_none_comes_twice(kind: str, tally: Tallies) -> None:
    suite = tally("queue faults", lots=len(FAULTS))
    disk = SimulatedDisk(seed=SEED)
    probe = disk.fail(Fault(kind, 1 << 30))
    Shift(disk, "fsync").work(lambda step: step())
    stride = max(1, round(probe.seen / scaled(110)))
    for at in range(1 + SEED % stride, probe.seen + 1, stride):
        disk = SimulatedDisk(seed=SEED)
        shift = Shift(disk, "fsync")
        fault = disk.fail(Fault(kind, at))

        def attempt(step: Callable[[], Any], disk: SimulatedDisk = disk) -> None:
            with suppress(esker.EskerError, KeyboardInterrupt, AssertionError):
                step()

        attempt(shift.morning)
        if fault.hits:  # whoever is told that it failed goes on, or opens it again
            disk.heal()
            if shift.store is not None:
                attempt(shift.store.close)
            with suppress(esker.EskerError, AssertionError):
                queue = shift.open()
                shift.ack(queue, queue.claim(2))
        else:
            for step in (shift.noon, shift.evening, shift.night):
                attempt(step)
        disk.heal()
        store = shift.store
        if store is not None:
            attempt(store.close)
        shift.judge(disk.kill(), powerless=False)
        suite.count += 1


@pytest.mark.parametrize("what", ["flip", "cut", "zeros"])
@pytest.mark.timeout(900)
def test_damage_to_a_log_of_leases_is_told_and_hides_no_job(what: str, tally: Tallies) -> None:
    suite = tally("queue damages", lots=3)
    disk = SimulatedDisk(seed=SEED)
    shift = Shift(disk, "fsync")
    shift.morning()
    shift.noon()
    left = disk.kill()
    logs = [path for path in left.contents() if "/00000001/" in path and "leases-" in path]
    places = [(path, at) for path in logs for at in range(len(left.contents()[path]))]
    stride = max(1, len(places) // scaled(700))
    for path, at in places[SEED % stride :: stride]:
        patient = left.kill()
        data = bytearray(patient.contents()[path])
        if what == "cut":
            patient.open(path, "rw").truncate(at)
        elif what == "zeros":
            patient.poke(path, at, bytes(min(64, len(data) - at)))
        else:
            patient.poke(path, at, bytes([data[at] ^ 1 << at % 8]))
        ends_whole = what == "cut" and at in frame_ends(bytes(data))
        if not ends_whole:  # a log that lacks whole frames at its end is as a power cut leaves it
            shift.judge(patient, powerless=False, damaged=True)
        suite.count += 1


def frame_ends(data: bytes) -> set[int]:
    """Where a log may be cut, and nobody can tell."""
    ends, at = {64}, 64
    while at + 64 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        at += 64 + size + -size % 8
        ends.add(at)
    return ends - {64}
