"""Runs a workload on a simulated disk, keeps the ledger, and looks at every state it can end in.

A workload is a list of steps, tuples of a name and arguments: short to write, to seed and to print
when one fails. `Driver` performs them through the public API. `explore` runs one and, around every
call that changes the disk, opens what a kill or a power cut would leave there and holds it against
the ledger.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Any

import esker
from esker.testing import (
    KEPT,
    LOST,
    NAMES_ONLY,
    UNNAMED,
    Call,
    Crash,
    Fate,
    ManualClock,
    SimulatedDisk,
)
from tests.crash.ledger import Death, Ledger

ROOT = "/store"
CORNERS = (LOST, KEPT, NAMES_ONLY, UNNAMED)
SIZES = (0, 1, 40, 200, 511, 512, 513, 900)
OPTIONS: dict[str, Any] = {
    "background": False, "journals": 1, "journal_bytes": 64 << 10, "sync_interval": "50ms",
}  # fmt: skip

Step = tuple[Any, ...]


class Driver:
    """One program on one disk: performs steps and tells the ledger."""

    def __init__(self, disk: SimulatedDisk, ledger: Ledger | None = None, seed: int = 0) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.ledger = ledger or Ledger()
        self.random = random.Random(f"driver {seed}")
        self.serial = 0
        self.store: esker.Store | None = None

    def open(self) -> esker.Store:
        self.store = esker.open(ROOT, files=self.disk, clock=self.clock, **OPTIONS)
        return self.store

    def run(self, steps: Iterable[Step]) -> None:
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def value(self, topic: str, size: int | None = None) -> bytes:
        self.serial += 1
        size = self.random.choice(SIZES) if size is None else size
        return f"{topic}/{self.serial}/".encode() + (self.random.randbytes(8) * 128)[:size]

    # -- steps --

    def create(
        self, topic: str, durability: str, segment_bytes: int = 4096, compression: str = "none"
    ) -> None:
        if topic in self._store:
            return  # made in an earlier life
        self.ledger.creating(topic, durability)
        try:
            self._store.create(
                topic, durability=durability, segment_bytes=segment_bytes,
                compression=compression, compress_min_bytes=256,
            )  # fmt: skip
        except esker.EskerError:
            self.ledger.forget(topic)  # or an append would make it, with the default options
            raise
        self.ledger.created(topic)

    def append(self, topic: str, size: int | None = None) -> None:
        value = self.value(topic, size)
        self.ledger.trying(topic, [value])
        self.ledger.buffered(topic, self._store[topic].append(value))

    def wait(self, topic: str, size: int | None = None) -> None:
        value = self.value(topic, size)
        self.ledger.trying(topic, [value])
        offset = self._store[topic].append(value, wait=True)
        self.ledger.wrote(topic, offset, durable=self._is_fsync(topic))

    def many(self, topic: str, count: int = 3, size: int | None = None, wait: bool = False) -> None:
        values = [self.value(topic, size) for _ in range(count)]
        self.ledger.trying(topic, values, atomic=True)
        span = self._store[topic].append_many(values, wait=wait)
        assert isinstance(span, esker.Span)
        self.ledger.wrote(topic, span.first, durable=wait and self._is_fsync(topic))

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
        self._store.tick()

    def reopen(self) -> None:
        self._store.close()
        self.ledger.synced()
        store = self.open()
        assert store.recovery.clean, str(store.recovery)
        self.ledger.check(store, "kill")
        self.ledger.settle(store)

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
        if self.store is not None:
            self.store._context.forked = True  # such a handle closes without touching the disk
            self.store.close()


def mixed(chance: random.Random, length: int = 25, *, wide: bool = False) -> list[Step]:
    """A seeded mix of everything, over topics of every class; a wide one uses the journal."""
    classes = {"f": "fsync", "d": "disk", "m": "memory"}
    if wide:
        classes |= {"g": "fsync", "h": "fsync", "i": "disk"}
    steps: list[Step] = [("create", name, durability) for name, durability in classes.items()]
    for _ in range(length):
        topic = chance.choice(list(classes))
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


class Violation(BaseException):
    """A promise was broken. Not an Exception: the engine at work must not take it for its own."""


class Explorer:
    """Looks at states; counts them and leaves out those that were seen already."""

    def __init__(self, seeds: int, *, thorough: int = 1, nested: int = 0) -> None:
        self.seeds = seeds  # power cuts left to chance, at each point
        self.thorough = thorough  # every n-th state is also written to, closed and opened again
        self.nested = (
            nested  # the recovery of every n-th state dies as well, at each of its changes
        )
        self.points = 0
        self.states = 0
        self.double = 0  # states of these that a death inside of a recovery left
        self._seen: set[bytes] = set()

    def explore(self, steps: list[Step], seed: int = 0) -> None:
        """Run the steps, and look at what is left around every change that they make."""
        driver = Driver(SimulatedDisk(seed), seed=seed)

        def watch(call: Call, when: str) -> None:
            try:
                self.look(driver.disk, driver.ledger, call)
            except BaseException as problem:
                problem.add_note(f"seed {seed}, {when} change {call}, steps {steps}")
                raise Violation(problem) from problem

        driver.disk.watch = watch
        driver.open()
        driver.run(steps)
        driver.close()

    def look(self, disk: SimulatedDisk, ledger: Ledger, call: Call) -> None:
        """All that a death may leave at this point."""
        self.points += 1
        chances = [Fate(call.serial * 1000 + n) for n in range(self.seeds)]
        self._look(disk.kill(), ledger, "kill")
        for fate in (*CORNERS, *chances):
            self._look(disk.crash(fate), ledger, "power")

    def _look(self, disk: SimulatedDisk, ledger: Ledger, death: Death) -> None:
        if not self._is_new(disk, ledger, death):
            return
        self.states += 1
        if self.nested and (self.states - self.double) % self.nested == 0:
            self._die_again(disk.kill(), ledger, death)
        self._judge(disk, ledger, death)

    def _is_new(self, disk: SimulatedDisk, ledger: Ledger, death: Death) -> bool:
        digest = hashlib.blake2b(f"{death} {ledger.version}".encode(), digest_size=16)
        digest.update(" ".join(sorted(disk.folders())).encode())
        for path, content in sorted(disk.contents().items()):
            if not path.endswith(("lock", "counters")):
                digest.update(path.encode())
                digest.update(content)
        new = digest.digest() not in self._seen
        self._seen.add(digest.digest())
        return new

    def live(self, seed: int, lives: int = 6) -> None:
        """One store, many deaths: each at a random change, also in the middle of a recovery."""
        chance = random.Random(f"lives {seed}")
        disk, ledger, serial = SimulatedDisk(seed), Ledger(), 0
        worst: Death = "kill"
        story: list[Any] = []
        for life in range(lives):
            driver = Driver(disk, ledger, seed=seed * 100 + life)
            driver.serial = serial
            steps = [] if life + 1 == lives else mixed(chance, wide=seed % 2 == 1)
            if steps:
                disk.stop_at(
                    chance.choice((5, 20, 60, 150, 400)), chance.choice(("before", "after"))
                )
            story.append(steps)
            try:
                store = driver.open()
                ledger.check(store, worst)
                ledger.settle(store)
                self.states += 1
                worst = "kill"
                driver.run(steps)
                driver.close()
            except Crash as crash:
                story.append(str(crash))
            except BaseException as problem:
                problem.add_note(f"seed {seed}: {story}")
                raise
            driver.abandon()
            serial = driver.serial
            if chance.random() < 0.3:
                disk = disk.kill()
            else:
                disk = disk.crash(chance.choice((*CORNERS, Fate(chance.randrange(1 << 30)))))
                worst = "power"

    def _judge(self, disk: SimulatedDisk, ledger: Ledger, death: Death) -> None:
        """Open and check; then, for every n-th state, write, close and open again."""
        driver = Driver(disk, ledger.copy(), seed=1)
        store = driver.open()
        driver.ledger.check(store, death)
        if self.states % self.thorough:
            driver.abandon()
            return
        driver.ledger.settle(store)
        if not any(page.created for page in driver.ledger.pages.values()):
            driver.create("first", "fsync")
        for page in list(driver.ledger.pages.values()):
            if page.created:
                reached = page.reached
                driver.wait(page.name)
                first = page.written[0][0]
                strict = page.durability in ("disk", "ephemeral")
                assert first >= reached or not strict, f"I6 {page.name}: {first}"
        driver.sync_all()
        driver.reopen()  # demands a clean recovery and the same data
        driver.close()

    def _die_again(self, disk: SimulatedDisk, ledger: Ledger, death: Death) -> None:
        """Recovery itself dies around each of its changes, and is done again."""

        def watch(call: Call, when: str) -> None:
            for second in ("kill", LOST, KEPT, Fate(call.serial * 7 + (when == "after"))):
                after = disk.kill() if isinstance(second, str) else disk.crash(second)
                worst: Death = death if isinstance(second, str) else "power"
                if self._is_new(after, ledger, worst):
                    self.states += 1
                    self.double += 1
                    self._judge(after, ledger, worst)

        disk.watch = watch
        driver = Driver(disk)
        driver.open()
        driver.abandon()
