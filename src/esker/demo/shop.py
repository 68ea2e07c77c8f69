"""The shop: producers that write as fast as they can, and note what they were told is safe.

    python -m esker.demo.shop DATA NOTES RUN

Six threads of one process, which is the writer of all it writes to, and is meant to be killed:

    0 1 2   `orders`, durable, one by one                3   `orders`, durable, in batches
    4       `clicks`, in batches, at a steady rate       5   jobs in `emails`, in batches

Whenever an append returns, and only then, the thread adds a line to its own list.
"""

from __future__ import annotations

import sys
from functools import partial
from threading import Event
from typing import Final

import esker
from esker.clock import SYSTEM_CLOCK
from esker.demo import child, goods
from esker.demo.goods import CLICKS, EMAILS, ORDERS
from esker.demo.notes import Notes

SINGLES: Final = (0, 1, 2)
BATCHES, CLICKING, MAILING = 3, 4, 5
BATCH, CLICKS_BATCH, MAILS = 20, 500, 10  # records in a batch
CLICKS_PAUSE, MAILS_PAUSE = 0.04, 0.05  # seconds between two batches


class Acks:
    """What one thread was told is safe."""

    def __init__(self, folder: str, run: int, thread: int) -> None:
        self._notes = Notes(folder, run, "acks", f"{thread:02d}")

    def add(
        self, topic: str, shard: int, first: int, values: list[bytes], seconds: float = 0.0
    ) -> None:
        self._notes.add(
            topic, shard, first, len(values), goods.digest(values), round(seconds * 1e6)
        )


class Shop:
    """All threads of one run."""

    def __init__(self, store: esker.Store, notes: str, run: int, stop: Event) -> None:
        self._store = store
        self._notes = notes
        self._run = run
        self._stop = stop
        self._orders = store[ORDERS]

    def open(self) -> None:
        """Sell until told to stop."""
        child.together(
            [partial(self.singles, thread, Acks(self._notes, self._run, thread))
             for thread in SINGLES]
            + [partial(self.batches, BATCHES, Acks(self._notes, self._run, BATCHES)),
               partial(self.clicks, CLICKING, Acks(self._notes, self._run, CLICKING)),
               partial(self.mails, MAILING,
                       Notes(self._notes, self._run, "puts", f"{MAILING:02d}"))]
        )  # fmt: skip

    def singles(self, thread: int, acks: Acks) -> None:
        """Durable appends, one by one."""
        number = 0
        while not self._stop.is_set():
            value = goods.order(self._run, thread, number)
            began = SYSTEM_CLOCK.monotonic()
            offset = self._orders.append(value, key=goods.customer(number), wait=True)
            took = SYSTEM_CLOCK.monotonic() - began
            acks.add(ORDERS, getattr(offset, "shard", 0), int(offset), [value], took)
            number += 1

    def batches(self, thread: int, acks: Acks) -> None:
        """Durable batches, whose keys spread them over the shards."""
        number = 0
        while not self._stop.is_set():
            records = [
                esker.Record(goods.order(self._run, thread, n), key=goods.customer(n))
                for n in range(number, number + BATCH)
            ]
            by_shard: dict[int, list[bytes]] = {}
            for record in records:
                shard = self._orders.shard_of(record.key or b"")
                by_shard.setdefault(shard, []).append(record.value)
            began = SYSTEM_CLOCK.monotonic()
            result = self._orders.append_many(records, wait=True)
            took = SYSTEM_CLOCK.monotonic() - began
            for span in [result] if isinstance(result, esker.Span) else result:
                acks.add(ORDERS, span.shard, span.first, by_shard[span.shard], took)
            number += BATCH

    def clicks(self, thread: int, acks: Acks) -> None:
        """Batches that are safe from a kill as soon as the kernel has them."""
        topic, number = self._store[CLICKS], 0
        while not self._stop.wait(CLICKS_PAUSE):
            numbers = range(number, number + CLICKS_BATCH)
            values = [goods.click(self._run, thread, n) for n in numbers]
            began = SYSTEM_CLOCK.monotonic()
            span = topic.append_many(values, wait=True)
            took = SYSTEM_CLOCK.monotonic() - began
            assert isinstance(span, esker.Span)
            acks.add(CLICKS, span.shard, span.first, values, took)
            number += CLICKS_BATCH

    def mails(self, thread: int, puts: Notes) -> None:
        """Jobs for the workers."""
        queue, number = self._store.queue(EMAILS), 0
        while not self._stop.wait(MAILS_PAUSE):
            numbers = range(number, number + MAILS)
            queue.put_many([goods.email(self._run, thread, n) for n in numbers])
            puts.add(*(f"{self._run}-{thread}-{n}" for n in numbers))
            number += MAILS


def main() -> None:
    data, notes, run = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def work(stop: Event) -> None:
        open_store = esker.open  # imported before the clock starts
        began = SYSTEM_CLOCK.monotonic()
        with open_store(data, routes=False) as store:
            seconds, found = SYSTEM_CLOCK.monotonic() - began, store.recovery
            Notes(notes, run, "open").add(f"{seconds:.4f}", found.shards, len(found.findings))
            Shop(store, notes, run, stop).open()

    child.live(work)


if __name__ == "__main__":
    main()
