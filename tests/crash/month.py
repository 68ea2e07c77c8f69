"""A month of telemetry in the life of one store, whose process is killed again and again.

Run as a program of its own, as nursery.py is and for the same reason. The clock is moved by hand: a
life is some hours of the month, in which a forked child appends, deletes, evicts, gives back room,
moves segments to a cold store and back, and archives, and says on a pipe what it is about to do and
what was acknowledged. It is killed wherever it happens to be. Then the parent opens what is left
and accounts for every record:

    there      at its offset, with its bytes, and not deleted
    deleted    somebody asked for it: by tag, or before an offset
    in a gap   the reader is told of it, by its exact bounds, and a cap or an age allows it

The books are kept here, with plain lists and no code of the engine or of the other suites. At the
end the archive is read, and every record that was ever acknowledged is in the log, in the archive,
deleted or named in a gap; and in the cold store lies what a stub names, and nothing else.

    telemetry   ages: two days, a segment for each half, compressed when it is sealed; the two
                newest sealed ones are here, the others in the cold store
    metrics     a cap of 300 records
    frames      a cap of 64 KiB
    orders      durable one by one, with tags; deleted by tag, by the beginning of a tag, and up to
                an offset; archived; moved to the cold store and brought back by hand
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import esker
from esker.engine import tiering
from esker.testing import ManualClock
from tests.crash.nursery import Child

START_US = 1_800_000_000_000_000
DAYS = 30
STEP_SECONDS = 1800
DAY_US = 86_400_000_000
TTL_US = 2 * DAY_US
CAP_RECORDS, CAP_BYTES = 300, 64 << 10
TOPICS: dict[str, dict[str, Any]] = {
    "telemetry": {
        "ttl": "2d", "segment_age": "12h", "compression": "zstd", "compress_min_bytes": 64,
        "hot_segments": 2,
    },
    "metrics": {"cap_records": CAP_RECORDS, "segment_records": 50},
    "frames": {"cap_bytes": CAP_BYTES, "segment_bytes": "16KiB"},
    "orders": {"durability": "fsync", "segment_records": 40},
}  # fmt: skip
ARCHIVED = ("telemetry", "orders")
Tell = Callable[..., None]


def opened(root: str, clock: ManualClock) -> esker.Store:
    return esker.open(root, clock=clock, background=False, linger="1s", cold=f"{root}-cold")


# ---- the child -------------------------------------------------------------------------------


class Life:
    """Some hours of the month."""

    def __init__(self, root: str, now_us: int, serial: int, seed: int, tell: Tell) -> None:
        self.root, self.clock, self.tell = root, ManualClock(now_us), tell
        self.chance = random.Random(f"life {seed}")
        self.serial = serial
        self.store = opened(root, self.clock)

    def run(self, steps: int) -> None:
        self.tell("ready")
        for name, options in TOPICS.items():
            if name not in self.store:
                self.store.create(name, **options)
        for _ in range(steps):
            self.step()
            self.clock.forward(STEP_SECONDS)
        self.store.close()

    def step(self) -> None:
        self.append("telemetry", 6, 80)
        self.append("metrics", self.chance.choice((1, 15)), 20)
        self.append("frames", 1, self.chance.choice((500, 4000)))
        for _ in range(3):
            self.append("orders", self.chance.choice((1, 2)), 60)
        chore = self.chance.choice(("erase", "erase", "prefix", "forget", "tick", "retain",
                                    "reclaim", "archive", "move", "bring", "reopen"))  # fmt: skip
        getattr(self, chore)()

    def append(self, topic: str, count: int, size: int) -> None:
        now, records = self.clock.now_us(), []
        for _ in range(count):
            self.serial += 1
            value = f"{topic}/{self.serial}/".encode() + self.chance.randbytes(size // 2) * 2
            records.append(esker.Record(value, tag=tag_of(self.serial)))
        self.tell("trying", topic, now, [[self.serial - count + 1 + n, record.value.hex()]
                                         for n, record in enumerate(records)])  # fmt: skip
        span = self.store[topic].append_many(records, wait=topic == "orders")
        self.tell("wrote", topic, span.first)

    def erase(self) -> None:
        self._erase(tag=f"order-{self.chance.randrange(7)}")

    def prefix(self) -> None:
        self._erase(tag_prefix=self.chance.choice(("order-1", "session-")))

    def _erase(self, **match: str) -> None:
        topic = self.chance.choice(("orders", "orders", "telemetry"))
        self.tell("erasing", topic, match)
        self.store[topic].delete(**match)  # type: ignore[arg-type]
        self.tell("erased")

    def forget(self) -> None:
        before = max(0, self.store["orders"].end() - 400)
        self.tell("forgetting", "orders", before)
        self.store["orders"].delete(before)
        self.tell("forgotten")

    def tick(self) -> None:
        before = self._moved()
        self.store.tick()
        self.tell("kept", self._moved() - before)

    def _moved(self) -> int:
        """How many segments this life has moved, by hand or to keep to a bound."""
        tiers = self.store.maintenance().tiers
        return tiers.moved_segments if tiers is not None else 0

    def retain(self) -> None:
        self.store.retain()

    def reclaim(self) -> None:
        self.store[self.chance.choice(("orders", "telemetry"))].reclaim()

    def archive(self) -> None:
        self.tick()
        for topic in ARCHIVED:
            self.store[topic].archive()
            self.tell("archived")

    def move(self) -> None:
        self._tier("cold")

    def bring(self) -> None:
        self._tier("hot")

    def _tier(self, to: Any) -> None:
        end = self.store["orders"].end()
        self.tell("moving")
        done = self.store.tier("orders", to, before=self.chance.randrange(end + 1))
        self.tell("moved", to, done.segments)

    def reopen(self) -> None:
        self.store.close()
        self.store = opened(self.root, self.clock)
        self.tell("ready")


def tag_of(serial: int) -> str | None:
    """The tag of a record, which follows from its number."""
    return (f"order-{serial % 7}", f"session-{serial % 5}", f"order-1{serial % 3}", None)[
        serial % 4
    ]


# ---- the books -------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A record that was acknowledged."""

    serial: int
    value: bytes
    time_us: int


class Match(NamedTuple):
    """What somebody asked to have deleted."""

    topic: str
    tag: str | None = None
    prefix: str | None = None
    before: int = 0

    def fits(self, offset: int, entry: Entry) -> bool:
        if self.before:
            return offset < self.before
        tag = tag_of(entry.serial)
        return tag is not None and (
            tag == self.tag or bool(self.prefix and tag.startswith(self.prefix))
        )


class Book:
    """One topic: what was acknowledged, and what was asked to be deleted."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.trying: list[tuple[int, list[tuple[int, bytes]]]] = []  # of the life that just ended
        self.deleted: set[int] = set()
        self.lost: set[int] = set()  # named in a gap


class Books:
    """Every topic, and the check of a store against them."""

    def __init__(self, root: str) -> None:
        self.topics = {name: Book() for name in TOPICS}
        self.root = root
        self.asked: Match | None = None  # and not yet acknowledged
        self.told: Counter[str] = Counter()

    def replay(self, said: bytes) -> None:
        for line in said.split(b"\n")[:-1]:
            name, *arguments = json.loads(line)
            self.told[name] += 1
            getattr(self, name)(*arguments)

    def ready(self) -> None: ...

    def archived(self) -> None: ...

    def kept(self, segments: int) -> None:
        self.told["segments moved to keep a bound"] += segments

    def moving(self) -> None: ...

    def moved(self, to: str, segments: int) -> None:
        self.told[f"segments moved to {to}"] += segments

    def trying(self, topic: str, now_us: int, records: list[list[Any]]) -> None:
        batch = [(serial, bytes.fromhex(value)) for serial, value in records]
        self.topics[topic].trying.append((now_us, batch))

    def wrote(self, topic: str, first: int) -> None:
        now_us, batch = self.topics[topic].trying.pop()
        self._enter(self.topics[topic], first, now_us, batch)

    @staticmethod
    def _enter(book: Book, first: int, now_us: int, batch: list[tuple[int, bytes]]) -> None:
        for offset, (serial, value) in enumerate(batch, first):
            assert offset not in book.entries, f"offset {offset} was issued twice"
            book.entries[offset] = Entry(serial, value, now_us)

    def erasing(self, topic: str, match: dict[str, str]) -> None:
        self.asked = Match(topic, match.get("tag"), match.get("tag_prefix"))

    def forgetting(self, topic: str, before: int) -> None:
        self.asked = Match(topic, before=before)

    def erased(self) -> None:
        assert self.asked is not None
        book = self.topics[self.asked.topic]
        book.deleted |= {at for at, entry in book.entries.items() if self.asked.fits(at, entry)}
        self.asked = None

    forgotten = erased

    # -- what is there --

    def check(self, store: esker.Store, now_us: int) -> None:
        """Every record that was acknowledged is there, deleted, or named in a gap."""
        for name, book in self.topics.items():
            if name in store:
                self._check(store[name], name, book, now_us)
            else:
                assert not book.entries, f"topic {name} is gone"
            book.trying.clear()
        self.asked = None

    def _check(self, topic: esker.Topic, name: str, book: Book, now_us: int) -> None:
        there: dict[int, esker.Record] = {}
        gaps: set[int] = set()
        for found in topic.read(0, gaps="yield"):
            if isinstance(found, esker.Gap):
                assert found.reason == "evicted", found
                assert not gaps & set(range(found.first, found.last + 1)), f"told twice: {found}"
                gaps |= set(range(found.first, found.last + 1))
            else:
                there[found.offset] = found
        self._take_in_what_was_tried(book, there)
        assert not gaps & set(there), f"{name}: in a gap, and there"
        absent = set(book.entries) - set(there)
        self._deletion_on_the_way(name, book, absent - gaps, gaps)
        for offset in absent - gaps:
            assert offset in book.deleted or offset in book.lost, f"{name} {offset}: nobody knows"
        back = set(there) & (book.deleted | book.lost)
        assert not back, f"{name}: records are back: {sorted(back)}"
        for offset, record in there.items():
            assert record.value == book.entries[offset].value, f"{name} {offset}: other bytes"
        self._allowed(name, book, gaps - book.lost, now_us)
        book.lost |= gaps & set(book.entries)
        self.told["records looked at"] += len(there)

    def _take_in_what_was_tried(self, book: Book, there: dict[int, esker.Record]) -> None:
        """A batch that was not acknowledged is there as a whole, at its end, or not at all."""
        strange = sorted(set(there) - set(book.entries))
        while strange:
            first = strange[0]
            serial = int(there[first].value.split(b"/")[1])
            fitting = [each for each in book.trying if each[1][0][0] == serial]
            assert fitting, f"offset {first}: {there[first]} was never appended"
            now_us, batch = fitting[0]
            assert strange[: len(batch)] == list(range(first, first + len(batch))), "half a batch"
            self._enter(book, first, now_us, batch)
            del strange[: len(batch)]
            self.told["not acknowledged, and there"] += len(batch)

    def _deletion_on_the_way(self, name: str, book: Book, absent: set[int], gaps: set[int]) -> None:
        """One that was not acknowledged happened as a whole, or not at all."""
        asked = self.asked
        if asked is None or asked.topic != name:
            return
        gone = book.deleted | book.lost | gaps
        fits = {at for at, entry in book.entries.items() if asked.fits(at, entry)} - gone
        if fits & absent:
            assert fits <= absent, f"half a deletion: {asked}"
            book.deleted |= fits
            self.told["deleted without a word"] += 1

    def _allowed(self, name: str, book: Book, evicted: set[int], now_us: int) -> None:
        """Nothing was evicted that had to be kept."""
        known = sorted(evicted & set(book.entries))
        if not known:
            return
        kept = [entry for at, entry in book.entries.items() if at > known[-1]]
        match name:
            case "telemetry":
                youngest = max(book.entries[at].time_us for at in known)
                assert youngest < now_us - TTL_US, "evicted before its time"
            case "metrics":
                assert len(kept) >= CAP_RECORDS
            case "frames":
                assert self.bytes_of_frames() >= CAP_BYTES * 0.8  # sealing has made them smaller
            case _:
                raise AssertionError(f"{name} has neither cap nor age, and {known} are gone")
        self.told["evicted"] += len(known)

    def bytes_of_frames(self) -> int:
        """What the segments of the topic take that has a cap by bytes."""
        folder = Path(self.root, "topics", f"{list(TOPICS).index('frames') + 1:08}")
        return sum(path.stat().st_size for path in folder.rglob("*-*.*"))

    # -- the cold store --

    def check_cold(self, store: esker.Store) -> None:
        """Every object is named by a stub, once nobody is at it any more."""
        for name in ("telemetry", "orders"):
            tiering.sweep(store[name]._shards[0])
        there = sorted(path.name for path in Path(f"{self.root}-cold").rglob("*") if path.is_file())
        stubs = b"".join(path.read_bytes() for path in Path(self.root).rglob("*.seg"))
        for key in there:
            assert key.encode() in stubs, f"no stub names {key}"
        assert len(there) == stubs.count(b'"root"'), "a stub without its segment"
        self.told["cold segments at the end"] = len(there)

    # -- the archive --

    def check_archive(self, root: str, names: list[str]) -> None:
        """What was archived is in the archive, and all that is nowhere else is there."""
        for name in names:
            book, history = self.topics[name], esker.open_archive(f"{root}/archive", name)
            there = {record.offset: record for record in history.read(gaps="skip")}
            gaps = {at for gap in history.gaps for at in range(gap.first, gap.last + 1)}
            end = history.end(0)
            for offset, record in there.items():
                assert record.value == book.entries[offset].value, f"{name} {offset}: other bytes"
                assert record.tag == tag_of(book.entries[offset].serial)
            for offset in range(end):
                known = offset in there or offset in book.deleted or offset in gaps
                assert known or offset not in book.entries, f"{name} {offset}: not archived"
            assert not (set(there) & gaps)
            self.told["archived records"] += len(there)


# ---- the parent ------------------------------------------------------------------------------


def month(root: str, seed: int, deaths: int) -> Counter[str]:
    """Live through a month, and longer if it takes longer to die so often."""
    chance, books, life = random.Random(f"month {seed}"), Books(root), 0
    now_us = START_US
    span_us = DAYS * DAY_US // deaths
    steps = max(1, span_us // (STEP_SECONDS * 1_000_000))
    while books.told["kills"] < deaths or now_us < START_US + DAYS * DAY_US:
        life += 1

        def live(fd: int, life: int = life, now_us: int = now_us) -> None:
            def tell(*words: Any) -> None:
                os.write(fd, json.dumps(words).encode() + b"\n")

            Life(root, now_us, life * 10_000, seed * 100_000 + life, tell).run(steps)

        child = Child(live)
        said = child.listen(chance.choice((0.02, 0.1, 0.6)) * chance.random())
        assert child.killed or os.WEXITSTATUS(child.status) == 0, f"life {life}: {child.status}"
        books.told["kills"] += child.killed
        now_us += span_us
        try:
            books.replay(said)
            look(root, books, now_us)
            if life % 25 == 0:
                found = esker.verify(root)
                assert found.ok, str(found)
        except BaseException as problem:
            problem.add_note(f"life {life} of seed {seed}, store {root}")
            raise
    with opened(root, ManualClock(now_us)) as store:  # those who died early may have left none
        store.tick()
        archived = [name for name in ARCHIVED if name in store]
        for name in archived:
            store[name].archive()
    books.check_archive(root, archived)
    with opened(root, ManualClock(now_us)) as store:
        store.tick()
        for name in ("telemetry", "orders"):
            store[name].append(b"so that its shard is written", wait=True)
        books.check_cold(store)
    found = esker.verify(root)
    assert found.ok, str(found)
    books.told["days"] = (now_us - START_US) // DAY_US
    books.told["lives"] = life
    books.told["acknowledged"] = sum(len(book.entries) for book in books.topics.values())
    books.told["deleted on request"] = sum(len(book.deleted) for book in books.topics.values())
    books.told["named in a gap"] = sum(len(book.lost) for book in books.topics.values())
    return books.told


def look(root: str, books: Books, now_us: int) -> None:
    """Open what is left, hold it against the books, and close it."""
    if not os.path.exists(root):
        return
    with opened(root, ManualClock(now_us)) as store:
        books.check(store, now_us)


def main() -> None:
    """Arguments: a folder, a seed, and how many deaths."""
    folder, seed, deaths = sys.argv[1:]
    Path(folder, "data-cold").mkdir()
    gc.freeze()  # what a child does not touch it need not copy
    print(json.dumps(month(f"{folder}/data", int(seed), int(deaths))))


if __name__ == "__main__":
    main()
