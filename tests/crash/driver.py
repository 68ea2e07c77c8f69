"""Runs a workload on a simulated disk and keeps the ledger.

A workload is a list of steps, tuples of a name and arguments: short to write, to seed and to print
when one fails. `Driver` performs them through the public API; explorer.py looks at the states in
which they can end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import esker
from esker.engine import rewriting
from esker.testing import ManualClock, SimulatedDisk
from tests.crash.ledger import Ledger, Reader
from tests.helpers import abandon

ROOT = "/store"
SIZES = (0, 1, 40, 200, 511, 512, 513, 900)
OPTIONS: dict[str, Any] = {
    "background": False, "journals": 1, "journal_bytes": 64 << 10, "sync_interval": "50ms",
}  # fmt: skip

Step = tuple[Any, ...]


def tag_of(value: bytes) -> str | None:
    """The tag that a record of a driver carries, which follows from its number: one or none."""
    return ("x-a", "x-b", None, None)[int(value.split(b"/", 2)[1]) % 4]


@contextmanager
def little_is_enough() -> Iterator[None]:
    """A segment is rewritten as soon as a fifth of it is deleted, however small it is."""
    before = rewriting.DEAD_SHARE, rewriting.GAIN_BYTES_MIN
    rewriting.DEAD_SHARE, rewriting.GAIN_BYTES_MIN = 0.2, 1
    try:
        yield
    finally:
        rewriting.DEAD_SHARE, rewriting.GAIN_BYTES_MIN = before


class Driver:
    """One program on one disk: performs steps and tells the ledger."""

    def __init__(
        self, disk: SimulatedDisk, ledger: Ledger | None = None, seed: int = 0, mark: str = ""
    ) -> None:
        self.disk = disk
        self.mark = mark  # in all values, so that no other driver makes the same ones
        self.clock = ManualClock()
        self.ledger = ledger or Ledger()
        self.seed = seed
        self.serial = 0
        self.store: esker.Store | None = None
        self.reader: Reader | None = None  # how to read a topic, if not anew each time

    @cached_property
    def random(self) -> random.Random:
        """Not made before it is needed: most drivers only open a store."""
        return random.Random(f"driver {self.seed}")

    def open(self) -> esker.Store:
        self.store = esker.open(ROOT, files=self.disk, clock=self.clock, **OPTIONS)
        return self.store

    def run(self, steps: Iterable[Step]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def value(self, topic: str, size: int | None = None) -> bytes:
        self.serial += 1
        size = self.random.choice(SIZES) if size is None else size
        head = f"{self.mark}{topic}/{self.serial}/".encode()
        return head + (self.random.randbytes(8) * 128)[:size]

    def given(self, values: list[bytes]) -> list[Any]:
        """As they are appended: some with a tag."""
        return [esker.Record(value, tag=tag_of(value)) if tag_of(value) else value
                for value in values]  # fmt: skip

    # -- steps --

    def create(
        self, topic: str, durability: str, segment_bytes: int = 4096, compression: str = "none",
        cap_records: int = 0,
    ) -> None:  # fmt: skip
        if topic in self._store:
            return  # made in an earlier life
        self.ledger.creating(topic, durability, cap_records)
        try:
            self._store.create(
                topic, durability=durability, segment_bytes=segment_bytes,
                compression=compression, compress_min_bytes=256, cap_records=cap_records,
            )  # fmt: skip
        except esker.EskerError:
            self.ledger.forget(topic)  # or an append would make it, with the default options
            raise
        self.ledger.created(topic)

    def append(self, topic: str, size: int | None = None) -> None:
        value = self.value(topic, size)
        self.ledger.trying(topic, [value])
        self.ledger.buffered(topic, self._store[topic].append(value, tag=tag_of(value)))

    def wait(self, topic: str, size: int | None = None) -> None:
        value = self.value(topic, size)
        self.ledger.trying(topic, [value])
        offset = self._store[topic].append(value, tag=tag_of(value), wait=True)
        self.ledger.wrote(topic, offset, durable=self._is_fsync(topic))

    def many(self, topic: str, count: int = 3, size: int | None = None, wait: bool = False) -> None:
        values = [self.value(topic, size) for _ in range(count)]
        self.ledger.trying(topic, values, atomic=True)
        span = self._store[topic].append_many(self.given(values), wait=wait)
        assert isinstance(span, esker.Span)
        self.ledger.wrote(topic, span.first, durable=wait and self._is_fsync(topic))

    def attach(self, topics: tuple[str, ...], count: int = 2, size: int | None = None) -> None:
        """A batch over several topics, made beside the log and attached to it."""
        values = {topic: [self.value(topic, size) for _ in range(count)] for topic in topics}
        tickets = []
        for topic in topics:
            with self._store.stage(topic) as staged:
                staged.append_many(self.given(values[topic]))
            tickets += staged.tickets
        self.ledger.trying_all(values)
        assert self._store.attach(f"driver {self.mark}", self.serial, tickets, timeout=0)
        for topic in topics:
            self.ledger.wrote(topic, self._store[topic].end() - count, durable=True)

    def flush(self, topic: str) -> None:
        self._store[topic].flush()
        self.ledger.flushed(topic)

    def sync(self, topic: str) -> None:
        self._store[topic].sync()
        self.ledger.synced(topic)

    def sync_all(self) -> None:
        self._store.sync()
        self.ledger.synced()

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.forward(seconds)
        with little_is_enough():
            self._store.tick()
        for name, page in self.ledger.pages.items():
            if page.cap and page.created:
                self.ledger.evicted(name, self._store[name].earliest())

    def forget(self, topic: str, keep: int = 1) -> None:
        """Delete all records but the last few."""
        page = self.ledger.pages[topic]
        known = [offset for offset, _ in page.settled + page.written + page.pending]
        if len(known) <= keep or known[-keep] <= page.floor:
            return
        self.ledger.forgetting(topic, known[-keep])
        self._store[topic].delete(known[-keep])
        self.ledger.forgotten(topic)

    def erase(self, topic: str, tag: str = "x-a") -> None:
        """Delete the records with a tag; or, if it ends with a dash, with one that begins so."""
        page = self.ledger.pages[topic]
        known = [item for item in page.there() + page.pending if item[0] >= page.floor]
        matches = {
            offset: value
            for offset, value in known
            if offset >= page.gone and (tag_of(value) or "").startswith(tag)
        }
        self.ledger.erasing(topic, matches)
        by = {"tag_prefix" if tag.endswith("-") else "tag": tag}
        gone = self._store[topic].delete(**by)  # type: ignore[arg-type]
        right = gone == len(matches) or bool(page.cap or page.maybe)  # else it is known exactly
        assert right, f"I8 {topic}: {gone} deleted, not {len(matches)}"
        self.ledger.erased(topic)

    def reclaim(self, topic: str) -> None:
        """Take what was deleted off the disk."""
        self._store[topic].reclaim()
        self.ledger.synced(topic)

    def consume(self, topic: str, most: int = 2) -> None:
        """A group reads on from where it is, acks a batch, and goes."""
        # deleted ones are left out, too; and a group that is made begins behind them
        self.ledger.acking(topic, self._store[topic].end())
        with self._store[topic].group("g", gaps="skip") as group:
            self.ledger.grouped(topic)
            for batch in group.poll(max_records=most):
                batch.ack()
                break
            cursor = group.cursors()[0]
        self.ledger.acked(topic, cursor)

    def drop(self, topic: str) -> None:
        """Delete the topic."""
        self.ledger.dropping(topic)
        self._store.delete(topic)
        self.ledger.dropped(topic)

    def checkpoint(self) -> None:
        """As when a journal is full: after it no journal is needed."""
        self._store._context.committer.checkpoint()

    def reopen(self) -> None:
        self._store.close()
        self.ledger.synced()
        store = self.open()
        assert store.recovery.clean, str(store.recovery)
        self.ledger.settle(store, self.ledger.check(store, "kill", self.reader))

    def close(self) -> None:
        self._store.close()
        self.ledger.synced()

    # --

    @property
    def _store(self) -> esker.Store:
        assert self.store is not None
        return self.store

    def _is_fsync(self, topic: str) -> bool:
        return self.ledger.pages[topic].durability == "fsync"

    def abandon(self) -> None:
        """Forget a store whose machine is off, so that nothing tries to close it."""
        store, self.store = self.store, None
        if store is not None:
            abandon(store)


def mixed(
    chance: random.Random, length: int = 25, *, wide: bool = False, deleting: bool = False
) -> list[Step]:
    """A seeded mix of everything, over topics of every class; a wide one uses the journal."""
    classes = {"f": "fsync", "d": "disk", "m": "memory"}
    if wide:
        classes |= {"g": "fsync", "h": "fsync", "i": "disk"}
    steps: list[Step] = [("create", name, durability) for name, durability in classes.items()]
    capped = [("create", "e", "disk", 4096, "none", 3)] if deleting else []
    steps += capped
    for _ in range(length):
        topic = chance.choice([*classes, *("e" for _ in capped)])
        if deleting and topic != "e" and chance.random() < 0.2:
            if chance.random() < 0.2:
                steps.append(("consume", topic, chance.randrange(1, 4)))
            elif chance.random() < 0.3:
                topics = tuple(chance.sample(list(classes), chance.randrange(1, 3)))
                steps.append(("attach", topics, chance.randrange(1, 4)))
            elif chance.random() < 0.4:
                steps.append(("erase", topic, chance.choice(("x-a", "x-b", "x-"))))
                if chance.random() < 0.3:
                    steps.append(("reclaim", topic))
            elif chance.random() < 0.7:
                steps.append(("forget", topic, chance.randrange(1, 4)))
            else:
                steps += [("drop", topic), ("create", topic, classes[topic])]
            continue
        step: Step = chance.choice(
            (
                ("append", topic), ("append", topic), ("wait", topic), ("wait", topic),
                ("many", topic, chance.randrange(1, 5)), ("many", topic, 3, 900),
                ("many", topic, 2, 500, True), ("flush", topic), ("sync", topic), ("sync_all",),
                ("tick",), ("tick",), ("reopen",),
            )
        )  # fmt: skip
        steps.append(step)
    return steps
