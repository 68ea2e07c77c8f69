"""Groups whose members are processes: they share, die, stall, and nobody's records are left out."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import esker
from tests.helpers import PATIENCE, Threads, child, wait_until

pytestmark = pytest.mark.crash

# Reads what it is told to: "poll" prints the offsets of what came, "ack" acks it.
MEMBER = """
    import sys
    import esker
    store = esker.open(sys.argv[1])
    group = store["t"].group("g", session=float(sys.argv[2]))
    batches = []
    print("ready")
    for line in sys.stdin:
        if line.strip() == "poll":
            batches += group.poll(wait=float(sys.argv[3]))
            print(" ".join(f"{b.shard}:{b.first}-{b.last}" for b in batches))
        elif line.strip() == "ack":
            try:
                for batch in batches:
                    batch.ack()
                print("acked")
            except esker.Fenced as problem:
                print(problem.code)
            batches.clear()
        elif line.strip() == "close":
            group.close()
            print("closed")
"""


def made(root: Path, shards: int = 1, count: int = 10, durability: str = "fsync") -> None:
    with esker.open(root) as store:
        topic = store.create("t", shards=shards, durability=durability)
        for number in range(count):
            topic.append(b"%d" % number, key=b"%d" % number)


def asked(process: Any, word: str) -> str:
    process.say(word)
    return str(process.line())


def test_an_ack_is_seen_by_other_processes_at_once_and_outlives_its_own(tmp_path: Path) -> None:
    made(tmp_path / "s")
    with esker.open(tmp_path / "s") as store, child(MEMBER, tmp_path / "s", 60, 5) as member:
        assert member.line() == "ready"
        assert asked(member, "poll") == "0:0-9"
        (status,) = store["t"].groups()
        assert (status.records, status.pids) == (10, (member.pid,))
        assert status.shards[0].pid == member.pid
        assert asked(member, "ack") == "acked"
        (status,) = store["t"].groups()
        assert (status.records, status.shards[0].cursor) == (0, 10)
        fixed = store["t"].group("g", member=(0, 1))
        with pytest.raises(esker.MemberBusy) as caught:
            list(fixed.poll())
        fixed.close()
        assert caught.value.pid == member.pid
        member.kill()
        (status,) = store["t"].groups()
        assert (status.records, status.pids, status.shards[0].pid) == (0, (), 0)


def test_what_a_killed_member_had_not_acked_comes_to_another_in_a_moment(tmp_path: Path) -> None:
    made(tmp_path / "s", shards=2, count=40)
    with child(MEMBER, tmp_path / "s", 60, 5) as first, esker.open(tmp_path / "s") as store:
        assert first.line() == "ready"
        assert asked(first, "poll")
        group = store["t"].group("g")
        assert list(group.poll()) == []
        first.kill()
        began = time.monotonic()
        seen: list[Any] = []
        while sum(map(len, seen)) < 40:
            seen += group.poll(wait=1)
            assert time.monotonic() - began < PATIENCE
        assert sorted(int(value) for batch in seen for value in batch.values) == [*range(40)]
        group.close()


def test_members_of_several_processes_divide_the_shards(tmp_path: Path) -> None:
    made(tmp_path / "s", shards=4, count=80)
    with ExitStack() as stack:
        members = [stack.enter_context(child(MEMBER, tmp_path / "s", 60, 0.1)) for _ in range(3)]
        assert [member.line() for member in members] == ["ready"] * 3
        assert asked(members[0], "poll")
        assert asked(members[0], "ack") == "acked"
        store = stack.enter_context(esker.open(tmp_path / "s"))

        def owners() -> list[int]:
            (status,) = store["t"].groups()
            return [shard.pid for shard in status.shards]

        def settled() -> bool:
            store["t"].append(b"more")  # so that nobody waits for long
            for word in ("poll", "ack"):
                for member in members:
                    member.say(word)
                for member in members:
                    member.line()
            return set(owners()) == {member.pid for member in members}

        wait_until(settled, "every member to own a shard")
        assert asked(members[0], "close") == "closed"
        assert members[0].pid not in owners()


def test_who_was_stopped_for_longer_than_its_session_is_fenced(tmp_path: Path) -> None:
    """B56: it wakes up, acks, and the ack moves nothing."""
    made(tmp_path / "s")
    with child(MEMBER, tmp_path / "s", 0.5, 5) as slow, esker.open(tmp_path / "s") as store:
        assert slow.line() == "ready"
        assert asked(slow, "poll") == "0:0-9"
        os.kill(slow.pid, signal.SIGSTOP)
        try:
            group = store["t"].group("g")
            (batch,) = group.poll(wait=PATIENCE)
        finally:
            os.kill(slow.pid, signal.SIGCONT)
        assert asked(slow, "ack") == "fenced"
        assert group.cursors() == {0: 0}
        batch.ack(upto=4, wait=True)
        assert asked(slow, "ack") == "acked"  # of nothing
        assert group.cursors() == {0: 5}
        group.close()
        slow.say("poll")
        assert slow.line() == "0:5-9"


def test_a_record_wakes_a_member_in_another_process(tmp_path: Path) -> None:
    made(tmp_path / "s", count=0)
    with child(MEMBER, tmp_path / "s", 60, 5) as member, esker.open(tmp_path / "s") as store:
        assert member.line() == "ready"
        member.say("poll")
        time.sleep(0.1)
        store["t"].append(b"x", wait=True)
        assert member.line() == "0:0-0"


def test_a_forked_child_has_no_group_and_leaves_that_of_its_parent_alone(tmp_path: Path) -> None:
    made(tmp_path / "s")
    with esker.open(tmp_path / "s") as store:
        group = store["t"].group("g")
        (batch,) = group.poll()
        pid = os.fork()
        if not pid:
            failed = 0
            for use in (group.poll, batch.ack, group.cursors):
                try:
                    use()
                except esker.EskerError:
                    failed += 1
            os._exit(failed)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert group.cursors() == {0: 0}
        batch.ack()
        assert group.cursors() == {0: 10}
        assert store["t"].groups()[0].pids == (os.getpid(),)


WORKER = """
    import os, random, sys, time
    import esker
    log = os.open(sys.argv[2], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    dice = random.Random(int(sys.argv[3]))
    with esker.open(sys.argv[1]) as store, store["t"].group("g", session=5) as group:
        print("ready", flush=True)
        while True:
            came = False
            for batch in group.poll(max_records=dice.randrange(1, 40), wait=0.2):
                came = True
                # done first, then said, then acked: what is acked was done
                os.write(log, b"did %d %d %d\\n" % (batch.shard, batch.first, batch.last))
                if dice.random() < 0.9:
                    try:
                        batch.ack(wait=dice.random() < 0.05)
                    except esker.Fenced:
                        pass
            if not came:
                group.rewind()  # what was not acked comes again
"""


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_members_that_are_killed_at_random_leave_nothing_out(
    tmp_path: Path, durability: str
) -> None:
    """I13: the cursor never goes back, never passes what was done, and nothing is left out."""
    seconds = 8.0
    dice = random.Random(5)
    root, shards, log = tmp_path / "s", 4, tmp_path / "log"
    made(root, shards, 0, durability)
    log.touch()
    threads = Threads()
    with esker.open(root) as store, ExitStack() as stack:
        topic = store["t"]
        topic.group("g").close()
        members = [stack.enter_context(child(WORKER, root, log, seed)) for seed in range(4)]
        stop = time.monotonic() + seconds
        cursors: dict[int, int] = defaultdict(int)
        written = 0

        def write() -> None:
            nonlocal written
            while time.monotonic() < stop:
                topic.append_many([(b"%d" % n) for n in range(50)], wait=True)
                written += 50
                time.sleep(0.005)

        def watch() -> None:
            while time.monotonic() < stop:
                for shard in topic.groups()[0].shards:
                    assert shard.cursor >= cursors[shard.shard], "a cursor went back"
                    assert not shard.flaw
                    cursors[shard.shard] = shard.cursor
                time.sleep(0.002)

        threads.start(write)
        threads.start(watch)
        kills = 0
        while time.monotonic() < stop:
            time.sleep(dice.uniform(0.2, 0.8))
            victim = members.pop(dice.randrange(len(members)))
            victim.kill()
            kills += 1
            members.append(stack.enter_context(child(WORKER, root, log, 100 + kills)))
        threads.join()
        store.sync()
        ends = [topic.end(number) for number in range(shards)]
        assert sum(ends) == written

        def caught_up() -> bool:
            return [each.cursor for each in topic.groups()[0].shards] == ends

        wait_until(caught_up, "the group to catch up")
        for member in members:
            member.kill()
        done: dict[int, set[int]] = defaultdict(set)
        for line in log.read_text().splitlines():
            word, shard, first, last = line.split()
            assert word == "did"
            done[int(shard)].update(range(int(first), int(last) + 1))
        assert [len(done[number]) for number in range(shards)] == ends  # nothing was left out
        assert kills >= 5
    assert esker.verify(root).ok
