"""A worker: takes jobs from `emails`, sends them, and notes what it did.

    python -m esker.demo.worker DATA NOTES RUN NUMBER [hold]

A job is noted as claimed when it has it, as done when the ack has returned, as failed when the nack
has. With `hold` it claims a handful, and then takes its time: until it is killed.
"""

from __future__ import annotations

import sys
from threading import Event
from typing import Final

import msgspec

import esker
from esker.demo import child
from esker.demo.goods import EMAILS, Email
from esker.demo.notes import Notes

HELD: Final = 12  # jobs in the hands of the one that is killed
CLAIMED: Final = 10
SENDING: Final = 0.001  # seconds that a mail takes
AGAIN: Final = 0.05  # seconds until one that failed is tried again
WAIT: Final = 0.2


def claim(queue: esker.Queue, most: int, notes: Notes) -> list[tuple[esker.Job, Email]]:
    """Jobs, each with what is in it; noted."""
    jobs = []
    for job in queue.claim(most, wait=WAIT):
        try:
            mail = msgspec.json.decode(job.value, type=Email)
        except msgspec.DecodeError:  # put by somebody else, by way of the console
            job.ack()
            continue
        notes.add("claim", mail.email, job.deliveries)
        jobs.append((job, mail))
    return jobs


def work(queue: esker.Queue, notes: Notes, stop: Event) -> None:
    """Send what there is."""
    while not stop.is_set():
        for job, mail in claim(queue, CLAIMED, notes):
            stop.wait(SENDING)
            if mail.poison:
                job.nack(delay=AGAIN, reason="there is no such address")
                notes.add("fail", mail.email, job.deliveries)
            else:
                job.ack()
                notes.add("done", mail.email, job.deliveries)


def hold(queue: esker.Queue, notes: Notes, stop: Event) -> None:
    """Claim a handful, and do nothing with it."""
    held = 0
    while held < HELD and not stop.is_set():
        held += len(claim(queue, HELD - held, notes))
    stop.wait()


def main() -> None:
    data, notes, run, number = sys.argv[1:5]

    def body(stop: Event) -> None:
        with esker.open(data, routes=False) as store:
            act = hold if "hold" in sys.argv[5:] else work
            act(store.queue(EMAILS), Notes(notes, int(run), "work", f"w{number}"), stop)

    child.live(body)


if __name__ == "__main__":
    main()
