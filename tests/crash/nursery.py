"""Processes to kill: forked from one that is warm, so that thousands of deaths are affordable.

Run as a program of its own, because a process that forks should have no threads. It has imported
everything, forks a child for each death, listens to what the child says on a pipe, lets it die,
opens what it left and holds that against the ledger. The child performs steps of tests/crash/
driver.py on the real file system; its ledger is one that *tells*: every call is written to the pipe
before the child goes on, so that the parent knows what was acknowledged, also by a child that could
not finish its sentence.

A child dies in one of these ways:

    call     SIGKILL by its own hand, before the n-th call of the engine to the operating system
    inside   the same in the middle of a write: a part of it is there
    time     SIGKILL by the parent, after a moment left to chance, wherever that is

A killed process loses nothing that was written (I2): the page cache is the kernel's.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import esker
from esker.storage.files import SYSTEM_FILES
from tests.crash.driver import OPTIONS, Driver, Step, mixed
from tests.crash.ledger import Ledger

PIPE_BYTES = 1 << 20
TOLD = (
    "creating", "forget", "created", "trying", "buffered", "wrote", "flushed", "synced", "failed",
    "forgetting", "forgotten", "erasing", "erased", "dropping", "dropped", "grouped", "acking",
    "acked", "reopened", "ready",
)  # fmt: skip
DOORS = (
    "open", "page", "rename", "unlink", "make_dir", "sync_dir", "list", "kind", "lock", "holder",
    "mutex",
)  # fmt: skip
FILE_DOORS = ("read", "write", "sync", "size", "truncate", "allocate", "map", "close")
Now = Callable[[], None]


class Telling(Ledger):
    """A ledger whose every entry is also written to a pipe."""

    def __init__(self, fd: int, ledger: Ledger) -> None:
        super().__init__()
        self.pages, self.perhaps = ledger.pages, ledger.perhaps
        self._fd = fd

    def __getattribute__(self, name: str) -> Any:
        known = super().__getattribute__(name)
        if name not in TOLD:
            return known

        def tell(*arguments: Any, **named: Any) -> None:
            said = pickle.dumps((name, arguments, named))
            os.write(self._fd, len(said).to_bytes(4, "little") + said)
            known(*arguments, **named)

        return tell

    def ready(self) -> None:
        """The store is open: from here on a moment left to chance finds it at work."""

    def reopened(self) -> None:
        """Closed and opened again: what is there is what was there, and settled."""
        settle(self)


def settle(ledger: Ledger) -> None:
    """As `Ledger.settle`, without a store to look at: after a clean close nothing is missing."""
    for page in ledger.pages.values():
        kept = [item for item in page.there() if item[0] >= page.floor]
        page.settled = kept
        page.pending, page.doubt, page.maybe, page.written, page.durable = [], [], [], [], 0


def replay(ledger: Ledger, said: bytes) -> Counter[str]:
    """Do to a ledger what a child did to its own; returns how often it did what."""
    at = 0
    done: Counter[str] = Counter()
    while at + 4 <= len(said):
        size = int.from_bytes(said[at : at + 4], "little")
        if at + 4 + size > len(said):
            break
        name, arguments, named = pickle.loads(said[at + 4 : at + 4 + size])
        at += 4 + size
        done[name] += 1
        if name == "reopened":
            settle(ledger)
        elif name != "ready":
            getattr(ledger, name)(*arguments, **named)
    return done


class RealDriver(Driver):
    """A driver of the real file system."""

    def __init__(self, root: str, files: Any, ledger: Ledger, seed: int) -> None:
        super().__init__(files, ledger, seed)
        self.root = root
        self.threads = False

    def open(self) -> esker.Store:
        options = {**OPTIONS, "background": self.threads, "linger": "1ms"}
        if not self.threads:
            options["clock"] = self.clock
        self.store = esker.open(self.root, files=self.disk, **options)  # type: ignore[arg-type]
        return self.store

    def reopen(self) -> None:
        self._store.close()
        self.ledger.synced()
        store = self.open()
        assert store.recovery.clean, str(store.recovery)
        if isinstance(self.ledger, Telling):
            self.ledger.reopened()
        else:
            self.ledger.settle(store, self.ledger.check(store, "kill"))


# ---- dying by its own hand -------------------------------------------------------------------


class Counting:
    """The real file system; the process dies at the n-th call to it."""

    def __init__(self, at: int, inside: float | None = None) -> None:
        self.calls = 0
        self.writes = 0
        self.at = at
        self.inside = inside  # then only writes count, and so much of the last one is done

    def step(self, *, write: bool = False) -> bool:
        """Count a call. True when this is the one."""
        self.calls += 1
        self.writes += write
        return self.at == (self.calls if self.inside is None else write and self.writes)

    def __getattr__(self, name: str) -> Any:
        made = getattr(SYSTEM_FILES, name)
        if name not in DOORS:
            return made

        def call(*arguments: Any, **named: Any) -> Any:
            if self.step():
                die()
            result = made(*arguments, **named)
            return CountingFile(self, result) if name == "open" else result

        return call


class CountingFile:
    def __init__(self, files: Counting, file: Any) -> None:
        self.files = files
        self.file = file
        self.path = file.path

    def write(self, position: int, parts: Any) -> None:
        if self.files.step(write=True):
            if self.files.inside is not None:
                data = b"".join(parts)
                self.file.write(position, [data[: int(len(data) * self.files.inside)]])
            die()
        self.file.write(position, parts)

    def __getattr__(self, name: str) -> Any:
        made = getattr(self.file, name)
        if name not in FILE_DOORS or name in ("size", "close"):
            return made

        def call(*arguments: Any) -> Any:
            if self.files.step():
                die()
            return made(*arguments)

        return call


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


# ---- a life and a death ----------------------------------------------------------------------


class Child:
    """A forked process that lives through some steps."""

    def __init__(self, live: Callable[[int], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reading)
                live(writing)
                os._exit(0)
            except BaseException as problem:
                import traceback

                traceback.print_exception(problem)
                os._exit(1)
        os.close(writing)
        self.pipe = reading

    def listen(self, seconds: float | None = None, *, at_work: bool = True) -> bytes:
        """All that it says until it ends; so many seconds after its first word it is killed."""
        said = b""
        if seconds is not None and at_work:
            select.select([self.pipe], [], [])
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self.pipe], [], [], left)[0]:
                os.kill(self.pid, signal.SIGKILL)
                deadline = None
                continue
            more = os.read(self.pipe, PIPE_BYTES)
            if not more:
                break
            said += more
        os.close(self.pipe)
        _, self.status = os.waitpid(self.pid, 0)
        return said

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL


class Nursery:
    """Kills children at work on one store, and looks at what each leaves."""

    def __init__(self, folder: str, lot: int, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(f"kills {seed} {lot}")
        self.told: Counter[str] = Counter()
        self.lot = lot
        self.seed = seed
        self.store = 0  # stores made so far
        self.root = ""
        self.ledger = Ledger()
        self.serial = 0
        self.new_store()

    def new_store(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.store += 1
        self.root = os.path.join(self.folder, f"store{self.store}")
        self.ledger = Ledger()

    def kill(self, steps: list[Step], *, at: int = 0, inside: float | None = None,
             after: float | None = None, threads: bool = False,
             seed: int | None = None) -> bool:  # fmt: skip
        """One life, one death, one look. False when the child came through."""
        seed = self.chance.randrange(1 << 30) if seed is None else seed
        self.serial += 1000

        def live(fd: int) -> None:
            files = Counting(at, inside) if at else SYSTEM_FILES
            driver = RealDriver(self.root, files, Telling(fd, self.ledger), seed)
            driver.serial, driver.threads = self.serial, threads
            driver.open()
            driver.ledger.ready()  # type: ignore[attr-defined]
            driver.run(steps)
            driver.close()
            if after is not None:
                time.sleep(60)

        child = Child(live)
        said = child.listen(after, at_work=seed % 5 > 0)
        self.told["acks"] += replay(self.ledger, said)["acked"]
        try:
            assert child.killed or os.WEXITSTATUS(child.status) == 0, f"status {child.status}"
            self.look(steps)
        except BaseException as problem:
            problem.add_note(
                f"lot {self.lot}, seed {self.seed}, store {self.root}, at {at}, inside {inside}, "
                f"after {after}, threads {threads}, workload {seed}, steps {steps}"
            )
            raise
        self.told["kills"] += child.killed
        return child.killed

    def look(self, steps: list[Step]) -> None:
        """Open what is left, and hold it against the ledger; sometimes go on with it."""
        driver = RealDriver(self.root, SYSTEM_FILES, self.ledger, self.told["looks"])
        self.serial += 1000
        driver.serial = self.serial
        store = driver.open()
        self.ledger.settle(store, self.ledger.check(store, "kill"))
        self.told["looks"] += 1
        self.told["records"] += sum(len(page.settled) for page in self.ledger.pages.values())
        self.told["findings"] += len(store.recovery.findings)
        if self.told["looks"] % 5 == 0:
            for page in list(self.ledger.pages.values()):
                if page.created:
                    driver.wait(page.name)
            driver.reopen()  # demands a clean recovery and the same data
            self.told["thorough"] += 1
        driver.close()

    # ---- what is killed where ----------------------------------------------------------------

    def every_call(self, limit: int) -> None:
        """A fresh store for each death: before the first call, before the second, and so on.

        Two lots share a workload: one takes the odd calls, one the even ones. Every fourth death
        is inside of a write.
        """
        chance = random.Random(f"workload {self.seed} {self.lot // 2}")
        enough = self.told["kills"] + limit
        while self.told["kills"] < enough:
            steps = read_too(
                chance, chance.choice((4, 8, 12)), wide=chance.random() < 0.3,
                deleting=chance.random() < 0.3,
            )  # fmt: skip
            calls, writes = self.calls_of(steps)
            for number, at in enumerate(range(1 + self.lot % 2, calls + 1, 2)):
                self.new_store()
                self.kill(steps, at=at, seed=0)
                if number % 4 == 3:
                    self.new_store()
                    at = 1 + at * writes // (calls + 1)
                    self.kill(steps, at=at, inside=self.chance.random(), seed=0)
                if self.told["kills"] >= enough:
                    return

    def calls_of(self, steps: list[Step]) -> tuple[int, int]:
        """How many calls a workload makes, and how many writes, when nobody kills it."""
        self.new_store()
        files, nobody = Counting(0), os.open(os.devnull, os.O_WRONLY)
        driver = RealDriver(self.root, files, Telling(nobody, Ledger()), 0)
        driver.open()
        driver.run(steps)
        driver.close()
        os.close(nobody)
        return files.calls, files.writes

    def many_lives(self, lives: int, *, timed: bool) -> None:
        """One store, many deaths, also in the middle of a recovery."""
        self.new_store()
        for life in range(lives):
            if life % 12 == 11:
                self.new_store()
            steps = read_too(self.chance, 30, wide=life % 2 == 1, deleting=life % 3 == 0)
            if timed:
                after = self.chance.uniform(0.0, 0.005)
                self.kill(steps * 4, after=after, threads=self.chance.random() < 0.5)
            else:
                self.kill(steps, at=self.chance.choice((3, 10, 30, 80, 200)))


def read_too(chance: random.Random, length: int, **how: Any) -> list[Step]:
    """A mix in which groups read, more than in others: an ack is a store into a mapped page, and
    only a real kill shows that it outlives its process."""
    steps = mixed(chance, length, **how)
    made = sum(step[0] == "create" for step in steps[:8])
    places = [at for at in range(made, len(steps) + 1) if steps[at - 1][0] != "drop"]
    for at in sorted(chance.sample(places, max(1, length // 6)), reverse=True):
        steps.insert(at, ("consume", chance.choice("fd"), chance.randrange(1, 4)))
    return steps


def main() -> None:
    """Arguments: a fast folder, one on a disk, lot, seed, and deaths: at calls, in one store, by
    time, on the disk."""
    fast, disk, *numbers = sys.argv[1:]
    lot, seed, calls, lives, timed, on_disk = map(int, numbers)
    nursery = Nursery(fast, lot, seed)
    nursery.calls_of(mixed(random.Random(1)))  # imports all that children would have to import
    gc.collect()
    gc.freeze()  # what a child does not touch it need not copy
    nursery.every_call(calls)
    nursery.many_lives(lives, timed=False)
    nursery.many_lives(timed, timed=True)
    nursery.new_store()
    before, nursery.folder = nursery.told["kills"], disk
    nursery.many_lives(on_disk // 2, timed=False)
    nursery.many_lives(on_disk - on_disk // 2, timed=True)
    nursery.told["on a disk"] = nursery.told["kills"] - before
    nursery.new_store()
    print(json.dumps(nursery.told))


if __name__ == "__main__":
    main()
