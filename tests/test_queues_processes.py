"""Queues among real processes that die: each job is done at least once, none is lost, every second
delivery is explained, and no stale token ever acts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import esker
from tests import fsck_queues
from tests.helpers import Child, child, wait_until
from tests.queue_crew import LEASE, OPTIONS
from tests.suites import SCALE, SEED, Tallies

OPEN = """
    import sys, os, time
    import esker
    store = esker.open(sys.argv[1])
    queue = store.queue("jobs")
    def told(jobs):
        print(*[job.text for job in jobs], flush=True)
"""


def test_a_job_is_put_here_and_claimed_and_acked_there(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs")
        with child(OPEN + """
    jobs = queue.claim(2, wait=30)
    told(jobs)
    queue.ack(jobs)
    print("acked", queue.stats().unfinished, flush=True)
    sys.stdin.readline()
    store.close()
    """, tmp_path / "data") as other:  # fmt: skip
            queue.put_many([b"a", b"b", b"c"])
            assert other.line() == "a b"
            assert other.line() == "acked 1"
            assert [job.value for job in queue.claim(9)] == [b"c"]
            other.say()
            other.end()


def test_a_put_reaches_a_claim_that_waits_in_another_process_within_ten_milliseconds(
    tmp_path: Path,
) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs")
        with child(OPEN + """
    print("ready", flush=True)
    for _ in range(20):
        (job,) = queue.claim(1, wait=30)
        print(time.monotonic() - float(job.text), flush=True)
        job.ack()
    """, tmp_path / "data") as other:  # fmt: skip
            assert other.line() == "ready"
            took = []
            for _ in range(20):
                time.sleep(0.02)
                queue.put(str(time.monotonic()))
                took.append(float(other.line()))
            assert sorted(took)[10] < 0.01, took


def test_the_jobs_of_a_killed_worker_can_be_claimed_at_once(tmp_path: Path) -> None:
    """B43: they do not wait until the lease of the dead has run out."""
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs", lease="1h")
        queue.put_many([b"a", b"b"])
        with child(OPEN + """
    told(queue.claim(2))
    time.sleep(600)
    """, tmp_path / "data") as worker:  # fmt: skip
            assert worker.line() == "a b"
            assert queue.claim(2) == []
            worker.kill()
        began = time.monotonic()
        jobs = wait_until(lambda: queue.claim(2), "they come")
        assert time.monotonic() - began < 5
        assert [(job.value, job.deliveries) for job in jobs] == [(b"a", 2), (b"b", 2)]
        assert [entry.what for entry in queue.history(0)] == ["claimed", "died", "claimed"]


def test_a_worker_that_was_stopped_too_long_wakes_up_to_a_stale_lease(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs", lease=0.3)
        queue.put(b"a")
        with child(OPEN + """
    (job,) = queue.claim()
    print("claimed", flush=True)
    sys.stdin.readline()
    for verb in (job.ack, job.extend, job.nack, job.release):
        try:
            verb()
            print("done", flush=True)
        except esker.StaleLease as problem:
            print(problem.code, flush=True)
    store.close()
    """, tmp_path / "data") as slow:  # fmt: skip
            assert slow.line() == "claimed"
            os.kill(slow.pid, signal.SIGSTOP)
            (job,) = wait_until(lambda: queue.claim(1, lease=60), "its lease runs out")
            os.kill(slow.pid, signal.SIGCONT)
            slow.say()
            assert [slow.line() for _ in range(4)] == ["stale_lease"] * 4
            slow.end()
        job.ack()
        assert queue.stats().unfinished == 0


def test_a_process_that_writes_no_shard_of_it_can_put_and_give_up(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs", max_deliveries=1, dead_letter="dead")
        queue.put(b"mine")
        store["dead"].append(b"so that this process writes it", wait=True)
        with child(OPEN + """
    span = queue.put(b"theirs")
    print(span.first, flush=True)
    queue.put_many([b"more", b"and more"])
    (job,) = queue.claim()
    job.nack(reason="no good")
    print("nacked", flush=True)
    sys.stdin.readline()
    store.close()
    """, tmp_path / "data") as other:  # fmt: skip
            assert other.line() == "-1", "who writes the shard knows its offset"
            assert other.line() == "nacked"
            wait_until(lambda: len(store["dead"]) == 2, "the dead letter comes")
            assert [job.value for job in queue.claim(9)] == [b"theirs", b"more", b"and more"]
            other.say()
            other.end()
        assert [record.value for record in store["dead"].read()][1:] == [b"mine"]
        assert queue.dead.peek()[-1].reason == "no good"


def test_settings_and_a_pause_hold_in_every_process(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs", lease="7s", max_deliveries=3)
        queue.put(b"a")
        with child(OPEN + """
    print(queue.options.lease_us, queue.options.max_deliveries, flush=True)
    queue.pause()
    print("paused", flush=True)
    sys.stdin.readline()
    queue.resume()
    print("resumed", flush=True)
    sys.stdin.readline()
    store.close()
    """, tmp_path / "data") as other:  # fmt: skip
            assert other.line() == "7000000 3"
            assert other.line() == "paused"
            assert queue.claim() == []
            other.say()
            assert other.line() == "resumed"
            assert [job.value for job in queue.claim()] == [b"a"]
            other.say()
            other.end()


def test_a_forked_child_must_open_the_store_itself(tmp_path: Path) -> None:
    with child(OPEN + """
    queue.put_many([b"a", b"b"])
    (job,) = queue.claim()
    if os.fork() == 0:
        for verb in (queue.claim, job.ack, lambda: queue.put(b"c")):
            try:
                verb()
            except esker.StoreForked as problem:
                print(problem.code, flush=True)
        os._exit(0)
    os.wait()
    job.ack()
    told(queue.claim())
    store.close()
    """, tmp_path / "data") as forking:  # fmt: skip
        assert [forking.line() for _ in range(4)] == ["store_forked"] * 3 + ["b"]
        forking.end()


# ---- a crew that is killed at random ---------------------------------------------------------


class Crew:
    """Processes, and who of them was killed."""

    def __init__(self, folder: Path, seed: int, nursery: Child) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.nursery = nursery
        self.alive: list[tuple[str, int]] = []
        self.killed: set[int] = set()
        self.stopped: dict[int, float] = {}
        self.serial = 0

    def start(self, role: str) -> None:
        self.serial += 1
        at = self.folder / f"{role}-{self.serial}"
        self.nursery.say(f"{role} {self.folder}/data {at}.ledger {at}.errors {self.dice.random()}")
        self.alive.append((role, int(self.nursery.line())))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_problem: object) -> None:
        """Nobody outlives the test, or it would wait for them for ever."""
        for _, pid in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def signal(self, pid: int, number: int) -> None:
        """Who has ended by himself has a reason, which is the test's finding."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise AssertionError(f"{pid} ended by itself\n{self.errors()}") from None

    def errors(self) -> str:
        return "\n".join(filter(None, [path.read_text() for path in self.folder.glob("*.errors")]))

    def kill(self, pid: int) -> None:
        self.signal(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it dies")
        self.killed.add(pid)

    def kill_one(self) -> None:
        role, victim = self.alive.pop(self.dice.randrange(len(self.alive)))
        self.kill(victim)
        self.stopped.pop(victim, None)
        self.start(role)

    def stop_one(self, now: float) -> None:
        role, victim = self.dice.choice(self.alive)
        if role == "worker" and victim not in self.stopped:
            self.signal(victim, signal.SIGSTOP)
            self.stopped[victim] = now + LEASE * 2

    def go_on(self, now: float) -> None:
        for victim, until in list(self.stopped.items()):
            if now >= until:
                self.signal(victim, signal.SIGCONT)
                del self.stopped[victim]

    def end(self) -> None:
        for _, pid in self.alive:
            self.kill(pid)
        self.alive.clear()
        assert "Traceback" not in (said := self.errors()), said

    def lines(self) -> list[list[str]]:
        """All that was written down; the last line of who was killed may be half of one."""
        found = []
        for path in sorted(self.folder.glob("*.ledger")):
            found += [line.split() for line in path.read_text().split("\n")[:-1]]
        return found


@pytest.mark.crash
@pytest.mark.suite
@pytest.mark.timeout(900)
def test_whoever_is_killed_each_job_is_done_and_no_stale_token_acts(
    tmp_path: Path, tally: Tallies
) -> None:
    suite = tally("queue kills")
    seconds = max(4.0, min(120.0, 24.0 * SCALE))
    with (
        child("from tests.queue_crew import main; main()") as nursery,
        Crew(tmp_path, SEED, nursery) as crew,
    ):
        for role in ["worker"] * 8 + ["producer"] * 2:
            crew.start(role)
        wait_until(lambda: any(line[0] == "put" for line in crew.lines()), "the first job is put")
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds or suite.count < suite.floor:
            time.sleep(crew.dice.uniform(0.05, 0.4))
            crew.go_on(now)
            if crew.dice.random() < 0.15:
                crew.stop_one(now)
            else:
                crew.kill_one()
                suite.count += 1
        crew.go_on(float("inf"))
        crew.end()
    with esker.open(tmp_path / "data") as store:
        queue = store.queue("jobs", **OPTIONS)  # made here if nobody lived long enough
        assert queue.findings == []
        drained = drain(queue)
        letters = Counter(record.text for record in store["jobs.dead"].read())
        assert store.queue("jobs").stats().unfinished == 0
    found = checked(tmp_path, crew, drained, letters)
    suite.also.update(found)
    assert found["letters"], "some are never done"
    assert esker.verify(tmp_path / "data").ok


def drain(queue: Any) -> list[str]:
    """Do what is left, as a last worker would."""
    done: list[str] = []
    deadline = time.monotonic() + 60
    while queue.stats().unfinished or queue.stats().moving:
        assert time.monotonic() < deadline, queue.stats()
        jobs = queue.claim(100, wait=0.2)
        queue.ack(jobs)
        done += [job.text for job in jobs]
    return done


def checked(folder: Path, crew: Crew, drained: list[str], letters: Counter[str]) -> dict[str, int]:
    """Hold the log of leases against what the processes had written down. Invariant I14."""
    acked_by, had, put, tried = Counter[str](), Counter[str](), set[str](), set[str]()
    acts: dict[str, set[tuple[str, int, int]]] = {"acked": set(), "stale": set()}
    for what, *rest in crew.lines():
        if what == "put":
            put.update(rest)
        elif what == "try":
            tried.update(rest)
        elif what == "had":
            had[rest[0]] += 1
        elif what in acts:
            acts[what].add((rest[1], int(rest[2]), int(rest[3])))
            if what == "acked":
                acked_by[rest[0]] += 1
    had.update(drained)
    acked_by.update(drained)
    stories = [story_of(folder, shard, crew.killed) for shard in range(2)]
    done = {(shard, offset) for shard, story in enumerate(stories) for offset in story.done}
    # every job that was put was handed out and done, or is a dead letter; no other was made up
    assert put - set(had) - set(letters) == set(), "jobs that nobody ever had"
    assert set(had) | set(letters) <= tried
    assert set(letters.values()) <= {1}, "a dead letter that came twice"
    assert not set(letters) & set(acked_by), "done, and a dead letter"
    # who was told that he had acked, had; who was told that he was late, had not
    for token, shard, offset in acts["acked"]:
        assert stories[shard].acked.get(offset) == token
    for token, shard, offset in acts["stale"]:
        assert stories[shard].acked.get(offset) != token
    assert set(acked_by.values()) <= {1}, "two were told that they had done the same job"
    return {
        "jobs": len(put), "deliveries": sum(had.values()),
        "again": sum(n - 1 for n in had.values()), "stale": len(acts["stale"]),
        "letters": len(letters), "done": len(done),
    }  # fmt: skip


class Story:
    """What the log of a shard's leases tells, read by the second opinion."""

    def __init__(self) -> None:
        self.holder: dict[int, tuple[str, int, int]] = {}  # token, worker, until
        self.acked: dict[int, str] = {}
        self.done: set[int] = set()
        self.pids: dict[int, int] = {}
        self.waiting: set[int] = set()  # nacked, released, or of a worker that died


def story_of(folder: Path, shard: int, killed: set[int]) -> Story:
    story = Story()
    logs = sorted((folder / "data/topics/00000001/queue" / f"{shard:04d}").glob("leases-*"))
    assert logs[0].name == "leases-00000001", "all of the history is there"
    for path in logs:
        read = fsck_queues.leases(path.read_bytes())
        assert not isinstance(read, str)
        for event in read.events:
            follow(story, event, killed)
    return story


def follow(story: Story, event: list[Any], killed: set[int]) -> None:
    kind, *rest = event
    name = {1: "claimed", 2: "acked", 3: "nacked", 4: "released", 5: "extended"}.get(kind, "")
    if name:
        number, worker = rest[0], rest[1]
        token = f"{worker:016x}-{number}"
        runs = rest[fsck_queues.RUNS[kind] - 1]
    if name == "claimed":
        story.pids[worker] = rest[2]
        now = rest[3] - round(LEASE * 1e6)
        for offset in offsets(runs):
            assert offset not in story.done, "a job that was done was handed out again"
            before = story.holder.get(offset)
            if before is not None and offset not in story.waiting:
                assert now >= before[2], "handed out while somebody held it"
            story.waiting.discard(offset)
            story.holder[offset] = (token, worker, rest[3])
        return
    for offset in offsets(runs) if name else ():
        assert story.holder[offset][0] == token, f"{name} under a stale token"
        assert offset not in story.waiting, f"{name} by who does not hold it"
        if name == "acked":
            assert offset not in story.done, "acked twice"
            story.done.add(offset)
            story.acked[offset] = token
        elif name == "extended":
            story.holder[offset] = (token, worker, rest[2])
        else:
            story.waiting.add(offset)
    if kind == 6:
        assert story.pids[rest[0]] in killed, "a worker that lives was called dead"
        story.waiting.update(o for o, held in story.holder.items() if held[1] == rest[0])
    if kind in (12, 15):
        story.done.update(offsets(rest[2] if kind == 12 else rest[0]))


def offsets(runs: list[int]) -> list[int]:
    return [
        offset
        for first, count in zip(runs[::2], runs[1::2], strict=True)
        for offset in range(first, first + count)
    ]
