"""A durable work queue: several worker processes, one of which is killed in the middle of a job.

    python examples/workers.py [directory]

Each worker opens the same directory; there is no broker. A job is held under a lease that is
renewed while its handler runs. When a worker dies, its jobs are free at once and go to another. One
job always fails: after three tries it lies among the dead letters.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import esker

JOBS = 40


def jobs(store: esker.Store) -> esker.Queue:
    return store.queue("thumbnails", lease="30s", max_deliveries=3, dead_letter="thumbnails.dead")


def work(data: str, slow: bool) -> None:
    """What a worker process does: until there has been nothing to do for two seconds."""
    with esker.open(data) as store:
        for job in jobs(store).work(wait=2.0):
            try:
                with job:  # leaving the block acks; an exception has it tried again, later
                    if slow:
                        print("holding", job.text, flush=True)
                        time.sleep(600)  # the lease is renewed all the while
                    if job.text == "photo-13.jpg":
                        raise ValueError("not a picture")
                    print("done", job.text, "try", job.deliveries, flush=True)
            except ValueError as problem:
                print("failed", job.text, "try", job.deliveries, problem, flush=True)


def worker(data: str, how: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, data, how]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def main(data: str) -> None:
    with esker.open(data) as store:
        jobs(store).put_many([f"photo-{number}.jpg" for number in range(JOBS)])

    victim = worker(data, "slow")
    assert victim.stdout is not None
    print(f"a worker is {victim.stdout.readline().strip()}, and is killed")
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()

    crew = [worker(data, "work") for _ in range(3)]
    told = [line for each in crew for line in each.communicate()[0].splitlines()]
    done = {line.split()[1] for line in told if line.startswith("done")}
    again = sum(line.startswith("done") and not line.endswith("try 1") for line in told)
    with esker.open(data) as store:
        dead = [(job.value.decode(), job.reason) for job in jobs(store).dead]
        left = jobs(store).stats().ready
    print(f"{len(done)} of {JOBS} done, {again} of them at a second try, {left} left, dead: {dead}")


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else "data"
    if len(sys.argv) > 2:
        work(place, sys.argv[2] == "slow")
    else:
        main(place)
