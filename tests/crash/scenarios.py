"""What a program does while the disk fails, and how it is judged afterwards.

A scenario is a store in some state and a few steps. `Program` is a driver that knows more steps
(reading, batches, other handles, verify, repair) and, after the fault was lifted, finds out what is
left: every topic goes on or is poisoned, nothing that was acknowledged is lost, no record that was
refused is there, no lock is held, no file is left open.

Two kinds of failure are told apart. An exception of Esker's says that the call did not happen, or,
`Poisoned`, that nobody knows. `MemoryError` and `KeyboardInterrupt` say nothing: an interrupted
call happened as a whole or not at all, and the program finds out which by `sync` and reading.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NamedTuple

import pyarrow as pa

import esker
from esker.engine import committer
from esker.engine.attach import commit
from esker.engine.context import LOG
from esker.options import JOURNAL_DIRTY_SHARDS as DIRTY_SHARDS
from esker.storage import marks
from esker.testing import KEPT, LOST, Fate, ManualClock, SimulatedDisk
from tests.crash.driver import ROOT, Driver, Step
from tests.crash.ledger import NOT_BY_A_CRASH, Death, Found, Ledger, Page, check_page, read

MANY = ("j0", "j1")  # many enough for the journal, see `prepared`
REWRITE_BYTES = marks.REWRITE_BYTES
BIG = 900  # bytes; five of these fill a segment
SHARDS = 3

# All that a caller may see of a failing disk.
SAID = (esker.StorageError, esker.Poisoned)
# What a failed call may leave for the next opening to clear away. It costs nothing.
LEFTOVERS = {
    "unfinished_roll", "unfinished_seal", "torn_journal", "unfinished_checkpoint",
    "unfinished_attach",
}  # fmt: skip
INTERRUPTS = (MemoryError, KeyboardInterrupt)

Left = Literal["open", "closed", "killed", "without power", "nothing"]


class Scenario(NamedTuple):
    """A store, how it is left, and what is then tried while calls fail."""

    topics: dict[str, str]  # name to class
    steps: list[Step]
    before: list[Step] = []  # noqa: RUF012 - never changed
    left: Left = "open"


F, D, M = {"f": "fsync"}, {"d": "disk"}, {"m": "memory"}
E_ = {"e": "ephemeral"}
JOURNALED = dict.fromkeys(MANY, "fsync")
ROLLED: list[Step] = [("many", "f", 3, BIG)] * 3
LIVED: list[Step] = [
    ("many", "f", 3, BIG), ("many", "f", 3, BIG), ("wait", "f"), ("append", "f"),
    ("many", "d", 3, BIG), ("sync", "d"), ("many", "d", 3, BIG), ("append", "d"),
]  # fmt: skip
TO_JOURNAL: list[Step] = [*[("append", topic) for topic in MANY], ("sync_all",)]
SCENARIOS: dict[str, Scenario] = {
    # writing, class by class
    "append and flush, fsync": Scenario(F, [("append", "f"), ("append", "f"), ("flush", "f")]),
    "append and flush, disk": Scenario(D, [("append", "d"), ("append", "d"), ("flush", "d")]),
    "append and flush, memory": Scenario(M, [("append", "m"), ("flush", "m")]),
    "append and flush, ephemeral": Scenario(E_, [("append", "e"), ("flush", "e"), ("wait", "e")]),
    "append and wait, fsync": Scenario(F, [("wait", "f"), ("append", "f"), ("wait", "f")]),
    "append and wait, disk": Scenario(D, [("wait", "d"), ("append", "d"), ("wait", "d")]),
    "append and wait, memory": Scenario(M, [("wait", "m"), ("append", "m"), ("wait", "m")]),
    "first append": Scenario(
        F | D, [("append", "d"), ("wait", "f"), ("flush", "d")], left="closed"
    ),
    "batch": Scenario(F | D, [("many", "f"), ("batch", "d", 4), ("many", "f", 2, 100, True)]),
    "arrow": Scenario(F | D, [("arrow", "f", 3), ("arrow", "d", 3), ("arrow", "f", 2, True)]),
    "arrow over segments": Scenario(D, [("pieces", "d", 12)]),
    "shards": Scenario(
        {"s": "disk"}, [("spread", "s", 6), ("spread", "s", 6), ("sync", "s")],
        [("spread", "s", 6)],
    ),
    "compressed": Scenario(
        {"z": "disk"}, [("many", "z", 3, BIG), ("many", "z", 3, BIG), ("sync", "z")]
    ),
    # durability
    "sync": Scenario(F | D, [("append", "f"), ("sync", "f"), ("many", "d"), ("sync", "d")]),
    "sync of all": Scenario(
        F | D | M, [("append", "f"), ("many", "d"), ("many", "m"), ("sync_all",)]
    ),
    "journal": Scenario(JOURNALED, [*TO_JOURNAL, ("wait", "j1")]),
    "checkpoint": Scenario(
        JOURNALED, [*TO_JOURNAL, ("checkpoint",)], TO_JOURNAL,
    ),
    "tick": Scenario(F | D, [("append", "f"), ("append", "d"), ("tick",), ("tick",)]),
    "offsets set aside": Scenario(D, [("aside", "d"), ("wait", "d"), ("tick",)]),
    # segments
    "roll, fsync": Scenario(F, [("many", "f", 3, BIG)] * 2),
    "roll, disk": Scenario(D, [("many", "d", 3, BIG)] * 2),
    "roll by age": Scenario({"o": "disk"}, [("tick", 10.0), ("wait", "o")], [("many", "o")]),
    "seal": Scenario(F, [("tick",), ("wait", "f")], ROLLED),
    "seal and merge": Scenario(F, [("tick",), ("wait", "f")], [("wait", "f", 300)] * 14),
    "seal by the writer": Scenario(D, [("many", "d", 3, BIG)], [("many", "d", 3, BIG)] * 9),
    # batches made elsewhere
    "attach": Scenario(
        F | D, [("attach", ("f", "d"), 6, BIG)], [("attach", ("d",)), ("append", "d")]
    ),
    "attach to what nobody writes": Scenario(
        F | D | M, [("open",), ("attach", ("f", "d", "m"))], left="closed"
    ),
    "attach what was left": Scenario(
        F | D, [("open",)], [("many", "d"), ("sync_all",), ("committed", ("f", "d"))], "killed"
    ),
    # the store
    "create": Scenario(F, [("create", "n", "disk"), ("wait", "n"), ("create", "k", "fsync")]),
    "delete a topic": Scenario(F | {"x": "disk"}, [("drop", "x"), ("tick",)]),
    "evict": Scenario({"c": "disk"}, [("tick",)], [("many", "c", 3, BIG)] * 3),
    "delete records": Scenario(F, [("forget", "f"), ("tick",)], [*ROLLED, ("tick",)]),
    "delete by tag": Scenario(
        F | D, [("erase", "f"), ("erase", "f", "x-b"), ("erase", "d", "x-"), ("tick",)],
        [("many", "f", 4), ("many", "d", 4)],
    ),
    "delete by tag, into a new file": Scenario(
        D, [("erase", "d"), ("erase", "d", "x-b")],
        [*[("many", "d", 4), ("erase", "d")] * 3, ("many", "d", 4)],
    ),
    "rewrite": Scenario(
        F, [("tick",), ("wait", "f"), ("tick",)], [*ROLLED, ("tick",), ("erase", "f", "x-")]
    ),
    "rewrite by hand": Scenario(
        D, [("reclaim", "d"), ("erase", "d", "x-b"), ("reclaim", "d")],
        [("many", "d", 6, 100), ("erase", "d")],
    ),
    "close": Scenario(F | D, [("append", "f"), ("append", "d"), ("close",)]),
    "close with a journal": Scenario(
        JOURNALED, [("append", "j0"), ("close",)], TO_JOURNAL,
    ),
    "close after rolling": Scenario(F, [("close",)], ROLLED),
    "new store": Scenario({}, [("open",), ("create", "n", "fsync"), ("wait", "n")], left="nothing"),
    "open, clean": Scenario(F | D, [("open",), ("wait", "d")], left="closed"),
    "open after a kill": Scenario(F | D, [("open",)], LIVED, "killed"),
    "open after a power cut": Scenario(F | D, [("open",)], LIVED, "without power"),
    "open after a deletion by tag": Scenario(
        F | D, [("open",)], [*LIVED, ("erase", "f"), ("erase", "d", "x-"), ("many", "d", 4)],
        "without power",
    ),
    "replay a journal": Scenario(JOURNALED, [("open",)], TO_JOURNAL, "without power"),
    "open to set aside": Scenario(F | D, [("open",)], [*ROLLED, ("stranger", "f")], "killed"),
    # reading
    "read": Scenario(F | D, [("read", "f"), ("read", "d")], [*ROLLED, ("tick",), ("sync_all",)]),
    "follow": Scenario(F, [("follow", "f"), ("wait", "f"), ("follow", "f")], [*ROLLED, ("tick",)]),
    "read what is left": Scenario(
        F, [("read", "f"), ("beside", "f")],
        [*ROLLED, ("tick",), ("append", "f"), ("erase", "f", "x-")],
    ),
    "look up": Scenario(F, [("look_up", "f")], [*ROLLED, ("tick",), ("sync_all",)]),
    "beside a writer": Scenario(
        F | D, [("beside", "f"), ("beside", "d")], [*ROLLED, ("sync_all",)]
    ),
    "group": Scenario(
        F | D, [("consume", "f"), ("consume", "d"), ("wait", "f"), ("consume", "f", 9)],
        [("many", "f", 4), ("many", "d", 4), ("sync_all",)],
    ),
    "group that was left": Scenario(
        F | D, [("open",), ("consume", "f"), ("consume", "d", 9)],
        [("many", "f", 4), ("many", "d", 4), ("sync_all",), ("consume", "f"), ("consume", "d")],
        "killed",
    ),
    "second writer": Scenario(D, [("second", "d")], [("sync_all",)]),
    "read a closed store": Scenario(F, [("beside", "f")], [*ROLLED, ("tick",)], "closed"),
    "verify": Scenario(F, [("verify",)], [*ROLLED, ("tick",), ("sync_all",)]),
    "repair": Scenario(
        F, [("repair",)], [*ROLLED, ("tick",), ("sync_all",), ("rot", "f")], "closed"
    ),
}  # fmt: skip
READING = {"read", "read what is left", "look up", "beside a writer", "second writer", "verify"}
IN_USE: dict[str, list[Step]] = {
    "fsync": [("wait", "{}")], "disk": [("many", "{}")], "memory": [("many", "{}")],
    "ephemeral": [("many", "{}")],
}  # fmt: skip
EXTRAS: dict[str, dict[str, Any]] = {
    "s": {"shards": SHARDS}, "z": {"compression": "zstd"}, "o": {"segment_age": "5s"},
    "c": {"cap_records": 4},
}  # fmt: skip


class Unsure(NamedTuple):
    """A batch that was made elsewhere, and whose attachment did not come to its end."""

    sequence: int
    tickets: list[Any]
    values: dict[str, list[bytes]]
    committed: bool


class Program(Driver):
    """A driver that knows more steps, and can be judged."""

    def __init__(self, disk: SimulatedDisk, ledger: Ledger | None = None, seed: int = 0) -> None:
        super().__init__(disk, ledger, seed)
        self.parts: list[tuple[list[bytes], bool]] = []  # of topic s: batches, and if acknowledged
        self.rotten: set[bytes] = set()  # values that bit rot has taken
        self.interrupted = False
        self.unsure: Unsure | None = None

    # -- steps: writing --

    def make(self, topic: str, durability: str) -> None:
        """Create a topic, with what its name stands for."""
        if topic not in EXTRAS:
            self.create(topic, durability)
            return
        self.ledger.creating(topic, durability, EXTRAS[topic].get("cap_records", 0))
        self._store.create(topic, durability=durability, segment_bytes=4096, **EXTRAS[topic])
        self.ledger.created(topic)

    def batch(self, topic: str, count: int) -> None:
        values = [self.value(topic) for _ in range(count)]
        self.ledger.trying(topic, values, atomic=True)
        with self._store[topic].batch(wait=True) as batch:
            for value in values:
                batch.append(value)
        assert isinstance(batch.span, esker.Span)
        self.ledger.wrote(topic, batch.span.first, durable=self._is_fsync(topic))

    def arrow(self, topic: str, count: int, wait: bool = False) -> None:
        values = [self.value(topic) for _ in range(count)]
        self.ledger.trying(topic, values, atomic=True)
        data = pa.record_batch([pa.array(values, pa.binary())], names=["value"])
        span = self._store[topic].append_arrow(data, wait=wait)
        assert isinstance(span, esker.Span)
        self.ledger.wrote(topic, span.first, durable=wait and self._is_fsync(topic))

    def pieces(self, topic: str, count: int) -> None:
        """An Arrow table that takes several segments: whatever fails, a beginning of it stays."""
        page = self.ledger.pages[topic]
        batches = [
            pa.record_batch([pa.array([self.value(topic, BIG)], pa.binary())], names=["value"])
            for _ in range(count)
        ]
        values = [batch.column(0)[0].as_py() for batch in batches]
        self.ledger.trying(topic, values)
        try:
            span = self._store[topic].append_arrow(pa.Table.from_batches(batches))
        except BaseException:
            page.maybe += page.doubt  # the parts before the one that failed stay
            page.doubt = []
            self.interrupted = True
            raise
        assert isinstance(span, esker.Span)
        self.ledger.wrote(topic, span.first, durable=False)

    def spread(self, topic: str, count: int) -> None:
        """A batch whose keys belong to several shards: each shard's part is atomic by itself."""
        handle = self._store[topic]
        records = [esker.Record(self.value(topic), key=f"k{n}".encode()) for n in range(count)]
        first = len(self.parts)
        for number in range(SHARDS):
            mine = [r.value for r in records if r.key and handle.shard_of(r.key) == number]
            self.parts.append((mine, False))
        handle.append_many(records)
        self.parts[first:] = [(part, True) for part, _ in self.parts[first:]]

    def attach(self, topics: tuple[str, ...], count: int = 2, size: int | None = None) -> None:
        """As the driver does, but for what is known when it fails: the batch may be there."""
        batch = self._staged(topics, count, size)
        try:
            assert self._store.attach("program", batch.sequence, batch.tickets, timeout=0)
            batch = batch._replace(committed=True)
            first = {topic: self._store[topic].end() - count for topic in topics}
        except BaseException:
            self._remember(batch)
            raise
        for topic in topics:
            self.ledger.wrote(topic, first[topic], durable=True)

    def committed(self, topics: tuple[str, ...]) -> None:
        """A batch is committed, and whoever did it dies before he attaches it."""
        batch = self._staged(topics, 2, None)
        assert commit(self._store._context, "program", batch.sequence, batch.tickets)
        self._remember(batch._replace(committed=True))

    def _staged(self, topics: tuple[str, ...], count: int, size: int | None) -> Unsure:
        values = {topic: [self.value(topic, size) for _ in range(count)] for topic in topics}
        tickets = []
        for topic in topics:
            with self._store.stage(topic) as staged:
                staged.append_many(values[topic])
            tickets += staged.tickets
        self.ledger.trying_all(values)
        return Unsure(self.serial, tickets, values, False)

    def _remember(self, batch: Unsure) -> None:
        self.unsure = batch
        for topic, values in batch.values.items():
            page = self.ledger.pages[topic]
            page.maybe += values
            page.doubt = []

    def attach_again(self) -> None:
        """With the same number: now it is there, in all its topics, and nowhere twice."""
        batch, self.unsure = self.unsure, None
        if batch is not None:
            try:
                self._store.attach("program", batch.sequence, batch.tickets, timeout=0)
            except (esker.Poisoned, esker.AttachPending):  # an interrupt may take a lock with it
                self.unsure = batch
                return
            self.check_batch(batch._replace(committed=True), self._store)

    def check_batch(self, batch: Unsure, store: esker.Store) -> None:
        """All of it is there, once; or nothing of it, if it was not committed."""
        there = {
            topic: [value for _, value in read(store, topic).records if value in values]
            for topic, values in batch.values.items()
        }
        whole = there == batch.values
        assert whole or (not batch.committed and not any(there.values())), f"in part: {there}"

    def aside(self, topic: str) -> None:
        """As if almost all offsets that were set aside had been used."""
        shard = self._store[topic]._shards[0]
        shard.page._block, shard.page.enough = 2, shard.next
        self._store._context.background.reserve_soon(shard)

    def open(self) -> esker.Store:
        """Unless it is open; whoever could not open it has no store."""
        if self.store is None or self.store._context.closed:
            self.store = None
            self.store = super().open()
        return self.store

    # -- steps: reading --

    def read(self, topic: str) -> None:
        self._exactly(topic, self._store)

    def _exactly(self, topic: str, store: esker.Store) -> None:
        expected = self.ledger.pages[topic].there()
        assert read(store, topic).records == expected, f"{topic} is not what was written"

    def follow(self, topic: str) -> None:
        self._store[topic].sync()
        self.ledger.synced(topic)
        page = self.ledger.pages[topic]
        seen = [(r.offset, r.value) for r in self._store[topic].follow(0, timeout=0)]
        assert seen == page.there(), f"{topic}: a follower saw something else"

    def look_up(self, topic: str) -> None:
        page, handle = self.ledger.pages[topic], self._store[topic]
        expected = page.settled + page.written
        for offset, value in expected:
            assert handle[offset].value == value
        assert handle[-1].value == expected[-1][1]
        assert len(handle[2:]) == len(expected) - 2
        assert next(handle.read("@2000-01-01")).offset == 0

    def beside(self, topic: str) -> None:
        """Another process reads."""
        with closed_for_sure(esker.open(ROOT, "r", files=self.disk, clock=self.clock)) as store:
            self._exactly(topic, store)

    def second(self, topic: str) -> None:
        """Another handle wants to write, and may not; closing it takes nothing from the first."""
        other = esker.open(ROOT, files=self.disk, clock=self.clock, background=False)
        with closed_for_sure(other) as store:
            try:
                store[topic].append(b"never", wait=True)
            except esker.WriterBusy:
                return
            raise AssertionError("two writers")

    def verify(self) -> None:
        found = esker.verify(ROOT, files=self.disk)
        if any(problem.kind == "unreadable" for problem in found.problems):
            return  # it says so, and goes on: that is its task
        assert found.ok, str(found)

    def repair(self) -> None:
        esker.repair(ROOT, files=self.disk)

    # -- what happens to a disk --

    def stranger(self, topic: str) -> None:
        """Something that recovery has to move to quarantine, and some that it has to delete."""
        shard = self._store[topic]._shards[0]
        folder, log = shard.folder, shard.active
        assert log is not None
        for path in (f"{folder}/notes", log.path.removesuffix(".log") + ".seg.tmp"):
            self.disk.open(path, "create").close()
        self.disk.sync_dir(folder)

    def rot(self, topic: str) -> None:
        """A bit of a sealed segment flips."""
        page = self.ledger.pages[topic]
        sealed = [p for p in self.disk.contents() if p.endswith(".seg")]
        content = self.disk.contents()[sealed[0]]
        _, value = page.settled[0]
        at = content.index(value)
        self.rotten = {v for _, v in (page.settled + page.written) if v in content}
        self.disk.poke(sealed[0], at, bytes([content[at] ^ 1]))

    # -- running --

    def attempt(self, steps: list[Step], excused: tuple[type[BaseException], ...]) -> None:
        """Perform steps; each may fail. After one that was interrupted, no other is tried."""
        for step in steps:
            topic = step[1] if len(step) > 1 and isinstance(step[1], str) else ""
            if step[0] != "create" and topic and topic not in self.ledger.pages:
                continue
            if step[0] not in ("open", "beside", "verify", "repair") and self.store is None:
                continue
            if step[0] == "close" or not self.closed or step[0] in ("open", "beside", "repair"):
                told: esker.EskerError | None = None
                try:
                    self.run([step])
                except SAID as problem:
                    told = problem
                    self.ledger.failed(problem)
                except excused:
                    self.ledger.failed(esker.Poisoned("in doubt"))
                    self.interrupted = True
                    return
                says_enough(told)

    @property
    def closed(self) -> bool:
        return self.store is None or self.store._context.closed

    # -- judging --

    def goes_on(self) -> set[str]:
        """The fault is lifted: every topic works, or is poisoned. Returns which are."""
        store, poisoned = self._store, set()
        assert not held(store), f"locks are held: {held(store)}"
        self.attach_again()
        for page in list(self.ledger.pages.values()):
            if page.dropping:
                store.delete(page.name, missing_ok=True)  # it may be gone, or be deleted again
                self.ledger.dropped(page.name)
                shards = [shard for shard in store._context.shards if shard.entry.name == page.name]
                poisoned |= {page.name for shard in shards if shard.in_doubt and not shard.gone}
                continue
            if not page.created and page.name not in store:
                continue
            try:
                store[page.name].sync()
            except esker.Poisoned:
                poisoned.add(page.name)
                continue
            page.synced()
            self.look(page, store)
            page.created = True
            self.resume(page)
        self.still_unsure()
        return poisoned

    def still_unsure(self) -> None:
        """What is not attached yet may be attached by the next opening, behind what is there."""
        for name, values in self.unsure.values.items() if self.unsure is not None else ():
            page = self.ledger.pages[name]
            known = {value for _, value in page.settled}.union(page.maybe)
            page.maybe += [value for value in values if value not in known]

    def look(self, page: Page, store: esker.Store) -> None:
        """Compare what a reader of this store sees now, and take it for good."""
        if page.name == "s":
            self.check_shards(store, "kill")
        elif page.durability == "ephemeral":
            there = [(record.offset, record.value) for record in store[page.name].read()]
            known = page.settled + page.written
            assert there[: len(known)] == known
            assert {value for _, value in there[len(known) :]} <= set(page.maybe)
            settle(page, Found(there, [], 0))
        else:
            found = read(store, page.name)
            check_page(page, found, "kill")
            settle(page, found)

    def resume(self, page: Page) -> None:
        """One more record, which a reader sees at once where it belongs."""
        if page.name == "s":
            self.spread("s", 4)
            self.check_shards(self._store, "kill")
            return
        self.wait(page.name)
        offset, value = page.written[-1]
        assert self._store[page.name][offset].value == value

    def check_shards(self, store: esker.Store, death: Death) -> None:
        """Topic s: parts that were acknowledged are there, others as a whole or not, in order."""
        there: list[bytes] = []
        for number in range(SHARDS):
            found: list[Any] = list(store["s"].read(0, shard=number, gaps="yield"))
            assert death == "power" or not any(isinstance(item, esker.Gap) for item in found)
            found = [item for item in found if isinstance(item, esker.Record)]
            assert [record.offset for record in found] == list(range(len(found)))
            there += [record.value for record in found]
        assert len(set(there)) == len(there), "a record is there twice"
        tried = {value for part, _ in self.parts for value in part}
        assert set(there) <= tried, "I4: never submitted"
        for part, acknowledged in self.parts:
            left = [value for value in there if value in part]
            assert left in ([], part), "I7: a part of a batch"
            assert left or not part or not acknowledged or death == "power", "I2: lost"

    def check(self, store: esker.Store, death: Death, *, settles: bool = False) -> None:
        """Hold a store that was just opened against every promise.

        If it settles, all that is there is promised from now on.
        """
        labels = {found.label for found in store.recovery.findings if "/notes" not in found.path}
        assert not NOT_BY_A_CRASH & labels, f"a fault was taken for damage: {store.recovery}"
        strangers = {*store} - self.ledger.pages.keys() - self.ledger.perhaps
        assert not strangers, f"I4: nobody made {strangers}"
        for page in list(self.ledger.pages.values()):
            if page.name not in store:
                assert not page.created or page.dropping, f"{page.name} is gone"
                if settles and page.dropping:
                    self.ledger.dropped(page.name)
                continue
            page.created |= settles
            page.dropping &= not settles
            if page.name == "s":
                self.check_shards(store, death)
            elif page.durability != "ephemeral":
                found = read(store, page.name)
                check_page(page, found, death)
                if settles:
                    settle(page, found)
            elif settles:
                settle(page, Found([], [], 0))
        if self.unsure is not None:
            self.check_batch(self.unsure, store)

    def elsewhere(self, disk: SimulatedDisk, death: Death) -> None:
        """What is left of it on another disk."""
        after = Program(disk, self.ledger)
        after.parts, after.rotten, after.unsure = self.parts, self.rotten, self.unsure
        after.check(after.open(), death)
        after.abandon()


def says_enough(problem: esker.EskerError | None) -> None:
    """An error has a code, and a path where a file is concerned, or the offsets in doubt."""
    if problem is not None:
        assert problem.code != "error"
        path = getattr(problem, "path", "") if isinstance(problem, esker.StorageError) else ""
        assert path or "in doubt" in str(problem), repr(problem)


@contextmanager
def closed_for_sure(store: esker.Store) -> Iterator[esker.Store]:
    """Closes a store, and again should the call itself have been interrupted."""
    try:
        yield store
        store.close()
    except BaseException:
        store.close()
        raise


def settle(page: Page, found: Found) -> None:
    """What was found is promised from now on."""
    page.settled, page.gaps = found.records, found.gaps
    page.pending, page.doubt, page.maybe, page.written, page.durable = [], [], [], [], 0
    page.floor, page.falling = found.first, 0
    page.settle_erased(found)
    page.reached = max([page.reached, *(offset + 1 for offset, _ in found.records[-1:])])


def held(store: esker.Store) -> list[str]:
    """Locks inside of a store that somebody holds."""
    context, committer = store._context, store._context.committer
    found: dict[str, Any] = {
        "Store._lock": store._lock, "Committer._mutex": committer._mutex,
        "Committer._journal_lock": committer._journal_lock, "Gauge._lock": context.gauge._lock,
        "Maps._lock": context.maps._lock, "Background._start_lock": context.background._start_lock,
    }  # fmt: skip
    for topic in store._topics.values():
        found[f"{topic.name}._lock"] = topic._lock
        for follower in topic._followers:
            found[f"{topic.name} Follower._lock"] = follower._lock
    for shard in context.shards:
        for name in ("lock", "_sealing", "_syncing", "_waiters_lock"):
            found[f"{shard.entry.name} Shard.{name}"] = getattr(shard, name)
        found[f"{shard.entry.name} Page.lock"] = shard.page.lock
        found[f"{shard.entry.name} shard Maps._lock"] = shard.maps._lock
    leading = ["Committer._leading"] if committer._leading else []
    return leading + [name for name, lock in found.items() if _is_held(lock)]


def _is_held(lock: Any) -> bool:
    return lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked()


def nothing_is_left(disk: SimulatedDisk) -> None:
    """No lock, no open file."""
    if disk.locks or disk.handles:
        gc.collect()  # what only a cycle holds, such as a caught exception, is not a leak
    assert not disk.locks, f"still locked: {disk.locks}"
    assert not disk.handles, f"{disk.handles} files are still open"


# ---- stores to begin with --------------------------------------------------------------------


@cache
def image(name: str) -> Program:
    """The store that a scenario begins with, as its last program left it."""
    scenario = SCENARIOS[name]
    made = Program(SimulatedDisk(seed=9), seed=9)
    if scenario.left == "nothing":
        return made
    made.open()
    for topic, durability in scenario.topics.items():
        made.make(topic, durability)
        made.run(in_use(topic, durability))
    made.close()
    made.check(made.open(), "kill", settles=True)
    if scenario.left == "open":
        made.close()
        return made
    made.run([step for step in scenario.before if step[0] != "rot"])
    if scenario.left != "closed":
        made.abandon()
        return made
    made.close()
    made.check(made.open(), "kill", settles=True)
    made.close()
    made.run([step for step in scenario.before if step[0] == "rot"])
    return made


def in_use(topic: str, durability: str) -> list[Step]:
    if topic == "s":
        return [("spread", "s", 6)]
    return [(name, topic) for name, _ in IN_USE[durability]]


def prepared(name: str, seed: int = 0) -> Program:
    """A program that is about to perform a scenario, on a disk of its own.

    It makes the same calls every time; the seed says what failed writes leave. Where the journal
    is wanted two shards are made enough for it, and a file of deletions is soon too long: who calls
    this undoes that afterwards.
    """
    scenario = SCENARIOS[name]
    committer.JOURNAL_DIRTY_SHARDS = 1 if "j0" in scenario.topics else DIRTY_SHARDS
    marks.REWRITE_BYTES = 0  # type: ignore[misc]
    made, left = image(name), scenario.left
    disk = made.disk.crash(Fate(3)) if left == "without power" else made.disk.kill()
    disk._draws = seed << 20  # what it leaves of failed writes; its identity stays
    program = Program(disk, made.ledger.copy(), seed=10)
    program.serial, program.parts, program.rotten = made.serial, list(made.parts), made.rotten
    program.unsure = made.unsure
    program.clock = ManualClock()
    if left == "open":
        program.open()
        for topic, durability in scenario.topics.items():
            program.run(in_use(topic, durability))
        program.run(scenario.before)
    elif name in ("first append",):
        program.open()
    return program


def judged(program: Program, name: str, chance: int, *, excused: bool) -> None:
    """All that must hold once the fault is lifted; `excused` says whether poison is one way on."""
    scenario, disk = SCENARIOS[name], program.disk
    death: Death = "power" if scenario.left == "without power" else "kill"
    if name == "repair":
        repaired(program)
        return
    if chance % 8 == 0 and scenario.left != "nothing":
        program.elsewhere(disk.crash((LOST, KEPT, Fate(chance))[chance // 8 % 3]), "power")
    elif chance % 8 == 4:
        program.elsewhere(disk.kill(), death)
    if name in READING:
        program.run(scenario.steps)  # now it works, and tells the same as ever
        if chance % 3 and program.store is not None:
            assert not held(program._store), f"locks are held: {held(program._store)}"
            program.abandon()
            return
    opened = False
    if program.closed:
        program.store = None
        nothing_is_left(disk)
        program.open()
        opened = True
    if opened or scenario.left in ("killed", "without power"):
        program.check(program._store, death, settles=True)
        if scenario.left in ("killed", "without power") and chance % 3:
            assert not held(program._store), f"locks are held: {held(program._store)}"
            program.abandon()
            return
    poisoned = program.goes_on()
    assert excused or not poisoned, f"{poisoned} need not have been poisoned"
    try:
        program._store.close()
        assert not poisoned, "close says nothing of what is in doubt"
    except esker.Poisoned:
        assert poisoned, "everything worked, and then it could not be closed"
    nothing_is_left(disk)
    if not poisoned and not opened and chance % 3:
        return  # it was looked at when it had been synced
    program.check(program.open(), "kill", settles=True)
    assert poisoned or LEFTOVERS.issuperset(program._store.recovery.labels), program._store.recovery
    if chance % 5:
        program.abandon()
        return
    for page in program.ledger.pages.values():
        program.resume(page)
    program._store.close()
    nothing_is_left(disk)
    assert esker.verify(ROOT, files=disk).ok


def repaired(program: Program) -> None:
    """Repairing is done again; then all is there but what the damage took."""
    nothing_is_left(program.disk)
    esker.repair(ROOT, files=program.disk)
    assert esker.verify(ROOT, files=program.disk).ok
    store = program.open()
    page = program.ledger.pages["f"]
    values = {r.value for r in store["f"].read(0, gaps="skip")}
    known = {value for _, value in page.settled + page.written}
    kept = b"".join(data for path, data in program.disk.contents().items() if "quarantine" in path)
    lost = {value for value in known - program.rotten - values if value not in kept}
    assert not lost, f"{lost} are lost without a trace"
    assert values <= known
    store["f"].append(b"goes on", wait=True)
    store.close()
    nothing_is_left(program.disk)


@contextmanager
def few_shards_again() -> Iterator[None]:
    """Undoes what `prepared` did to limits; and nobody keeps what is logged."""
    LOG.disabled = True
    try:
        yield
    finally:
        LOG.disabled = False
        committer.JOURNAL_DIRTY_SHARDS = DIRTY_SHARDS
        marks.REWRITE_BYTES = REWRITE_BYTES  # type: ignore[misc]


@contextmanager
def cheap_collections() -> Iterator[None]:
    """A collection looks at what was made since, and at nothing else: it is done often here."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
