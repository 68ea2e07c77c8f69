"""Workers and producers that are made to be killed, and what they said before; see
tests/test_queues_processes.py.

    python -m tests.queue_crew          reads lines: producer|worker ROOT LEDGER ERRORS SEED

For every line it forks a process, which has everything imported already, and prints its pid. That
one appends a line to its ledger behind everything that was done, in one write: what stands there
has happened, whatever became of the process. A worker handles some jobs slowly, so that their
leases run out, nacks some, of which every tenth is never done, extends some, and acks the others,
one by one and in batches.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import esker
from esker.queues import lane as lanes

LEASE = 0.4
OPTIONS: dict[str, Any] = {
    "lease": LEASE, "shards": 2, "max_deliveries": 3, "dead_letter": "jobs.dead",
    "history_bytes": "1GiB", "segment_bytes": "64KiB",
}  # fmt: skip


def ledger(path: str) -> Callable[[str], None]:
    """Appends a line, at once."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(line: str) -> None:
        os.write(fd, f"{line}\n".encode())

    return write


def produce(store: esker.Store, write: Callable[[str], None], dice: random.Random) -> None:
    queue, serial = store.queue("jobs", **OPTIONS), 0
    while True:
        names = [f"{os.getpid()}-{serial + n}" for n in range(dice.randint(1, 20))]
        serial += len(names)
        write(f"try {' '.join(names)}")
        queue.put_many([name.encode() for name in names], delay=dice.choice((0, 0, 0, 0.1)))
        write(f"put {' '.join(names)}")
        time.sleep(dice.uniform(0, 0.02))


def work(store: esker.Store, write: Callable[[str], None], dice: random.Random) -> None:
    queue = store.queue("jobs", **OPTIONS)
    while True:
        jobs = queue.claim(dice.randint(1, 12), wait=0.05)
        for job in jobs:
            write(f"had {job.text} {job.token} {job.shard} {job.offset} {job.deliveries}")
        poison = [job for job in jobs if job.text.endswith("3")]
        said(write, "nacked", poison, lambda some: queue.nack(some, reason="poison"))
        jobs = [job for job in jobs if job not in poison]
        chance = dice.random()
        if chance < 0.05:
            time.sleep(LEASE * 1.2)  # too slow: most of these are lost
        elif chance < 0.15 and jobs:
            said(write, "extended", jobs[:1], queue.extend)
        if chance > 0.9:
            said(write, "nacked", jobs[:1], lambda some: queue.nack(some, dice.choice((0, 0.1))))
            jobs = jobs[1:]
        if chance > 0.5:
            for job in jobs:
                said(write, "acked", [job], queue.ack)
        else:
            said(write, "acked", jobs, queue.ack)


def said(
    write: Callable[[str], None], what: str, jobs: list[esker.Job],
    verb: Callable[[list[esker.Job]], None],
) -> None:  # fmt: skip
    """Do it, and write down with which of them it was done."""
    if not jobs:
        return
    lost: list[esker.Job] = []
    try:
        verb(jobs)
    except esker.StaleLease as problem:
        lost = problem.jobs
    for job in jobs:
        word = "stale" if job in lost else what
        write(f"{word} {job.text} {job.token} {job.shard} {job.offset}")


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the dead
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        role, root, path, errors, seed = line.split()
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        try:
            live(role, root, path, seed)
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def live(role: str, root: str, path: str, seed: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lanes.ROLL_BYTES = 32 << 10  # type: ignore[misc]  # logs go on in new files again and again
    dice = random.Random(seed)
    write = ledger(path)
    with esker.open(root) as store:
        write(f"open {os.getpid()}")
        (produce if role == "producer" else work)(store, write, dice)


if __name__ == "__main__":
    main()
