"""Producers, committer, sealer and readers in every order that chance can think of.

Two ways to bring them into an order:

* *Threads with a baton* (tests/baton.py): the engine's threads as they are, switched between any
  two lines of it by a seed. This is where a race would be: in the buffer that its owner fills
  without a lock, between a round and its waiters, between a journal and a sync beside it.
* *Actors step by step*: no thread at all, a step is a call. Small casts in every order there is,
  larger ones in seeded orders. A reader is an iterator, moved by one record at a step, so that
  rolling and sealing happen under its hands.

What must hold in each (numbers as in docs/recovery.md, and I16: a reader sees a prefix of what was
committed, and what it began to read does not change): every offset is what its thread was told, no
record is lost or there twice, a reader sees no hole and nothing that a power cut at that moment
could take from class `fsync`, and nobody waits for ever.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import esker
from esker.engine import background
from esker.testing import KEPT, LOST, Fate, Fault, ManualClock, SimulatedDisk
from tests.baton import Baton, between_the_lines
from tests.helpers import Threads, abandon, wait_until
from tests.suites import SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]

ROOT = "/store"
SWITCHES = {"write", "sync", "sync_dir", "rename", "unlink", "truncate", "allocate"}
Work = Callable[[], Any]


class Watched:
    """What was said about one topic: to those who append, and to those who read."""

    def __init__(self, name: str, durability: str) -> None:
        self.name = name
        self.durability = durability
        self.told: dict[bytes, int] = {}  # accepted, at which offset
        self.written: set[bytes] = set()  # survives the process
        self.durable: set[bytes] = set()  # survives the machine
        self.refused: set[bytes] = set()
        self.maybe: set[bytes] = set()  # an error that says that nobody knows
        self.lines: dict[str, list[bytes]] = {}  # accepted, by producer, in its order
        self.batches: list[list[bytes]] = []
        self.seen: dict[int, bytes] = {}  # by any reader

    def accepted(self, who: str, values: list[bytes], first: int) -> None:
        for offset, value in enumerate(values, first):
            assert value not in self.told
            self.told[value] = offset
        self.lines.setdefault(who, []).extend(values)

    def saw(self, record: Any) -> None:
        before = self.seen.setdefault(record.offset, record.value)
        assert before == record.value, f"{self.name}: offset {record.offset} has changed"

    def copy(self) -> Watched:
        made = Watched(self.name, self.durability)
        made.told, made.seen = dict(self.told), dict(self.seen)
        made.written, made.durable = set(self.written), set(self.durable)
        made.refused, made.maybe = set(self.refused), set(self.maybe)
        made.lines = {who: list(values) for who, values in self.lines.items()}
        made.batches = list(self.batches)
        return made

    # -- what must hold --

    def check(self, store: esker.Store, death: str) -> None:
        """Hold a store, opened again, against all that was said. `death`: none, kill, power."""
        records: dict[int, bytes] = {}
        at, lost = 0, 0
        items: Any = store[self.name].read(0, gaps="yield") if self.name in store else ()
        for item in items:
            if isinstance(item, esker.Gap):
                assert death == "power", f"{self.name}: {item}"
                assert self.durability == "disk"
                assert item.first == at
                at, lost = item.last + 1, lost + 1
            else:
                assert not lost, f"{self.name}: {item} behind a gap"
                assert item.offset == at, f"{self.name}: {item.offset} where {at} should be"
                records[item.offset] = item.value
                at += 1
        self.check_records(records, death)
        if self.seen and self.durability == "disk":
            assert at > max(self.seen), f"{self.name}: {at} was issued and seen before"

    def check_records(self, records: dict[int, bytes], death: str) -> None:
        places = {value: offset for offset, value in records.items()}
        assert len(places) == len(records), f"{self.name}: a record is there twice"
        strangers = places.keys() - self.told.keys() - self.maybe
        if death != "none":  # of a call that had not returned
            strangers = strangers & self.refused
        assert not strangers, f"{self.name}: {strangers} are there and were not accepted"
        for value, offset in places.items():
            said = self.told.get(value, offset)
            assert said == offset, f"{self.name}: {value!r} was to be at {said}, is at {offset}"
        must = {"none": set(self.told), "kill": self.written, "power": self.durable}[death]
        gone = must - places.keys()
        assert not gone, f"{self.name}: acknowledged, and gone after {death}: {sorted(gone)}"
        if death != "power" or self.durability == "fsync":
            for offset, value in self.seen.items():
                assert records.get(offset) == value, f"{self.name}: {value!r} was seen, is gone"
        for who, values in self.lines.items():
            offsets = [places[value] for value in values if value in places]
            assert offsets == sorted(offsets), f"{self.name}: {who} is out of order"
        for batch in self.batches:
            there = [places[value] for value in batch if value in places]
            whole = list(range(there[0], there[0] + len(batch))) if there else []
            assert there == whole, f"{self.name}: a part of a batch, or others in it: {there}"


class World:
    """A disk, a clock, a store, and everything that was said about its topics."""

    def __init__(self, chance: random.Random, **options: Any) -> None:
        self.chance = chance
        self.clock = ManualClock()
        self.disk = SimulatedDisk(chance.randrange(1 << 30))
        self.baton = Baton(chance, self.clock)
        self.watched: dict[str, Watched] = {}
        self.cuts: list[tuple[SimulatedDisk, dict[str, Watched], str]] = []
        self.options: dict[str, Any] = {
            "background": False, "journals": 1, "journal_bytes": 64 << 10, **options,
        }  # fmt: skip
        self.producers: list[Work] = []
        self.acks = 0  # calls that returned and thereby promised something
        self.cut_after: set[int] = set()  # the acks after which the power goes
        self.store: esker.Store

    def open(self) -> esker.Store:
        self.store = esker.open(ROOT, files=self.disk, clock=self.clock, **self.options)
        return self.store

    def topic(self, name: str, durability: str, **options: Any) -> str:
        self.store.create(name, durability=durability, **options)
        self.watched[name] = Watched(name, durability)
        return name

    # -- what threads do --

    def producer(self, who: str, topic: str, ways: str, count: int) -> Work:
        """Appends in ways drawn by chance: b_uffer, w_ait, l_imited wait, m_any, n_owait,
        f_lush, s_ync, S_ync the whole store, d_urable (wait for one)."""

        def produce() -> None:
            try:
                for n in range(count):
                    self._append(who, topic, self.chance.choice(ways), n)
            except esker.StoreClosed:
                pass  # a closer was faster; what was refused is noted

        produce.__name__ = who
        self.producers.append(produce)
        return produce

    @property
    def producing(self) -> bool:
        """Whether a producer that was started has not yet ended."""
        return any(task.work in self.producers and not task.done for task in self.baton.tasks)

    def _append(self, who: str, name: str, way: str, n: int) -> None:
        topic, watched = self.store[name], self.watched[name]
        values = [f"{who}/{n}/{k}".encode() for k in range(3 if way == "m" else 1)]
        fsync = watched.durability == "fsync"
        before, all_before = set(watched.told), {w: set(w.told) for w in self.watched.values()}
        try:
            if way == "b":
                watched.accepted(who, values, topic.append(values[0]))
            elif way == "n":
                watched.accepted(who, values, topic.append_nowait(values[0]))
            elif way in "wl":
                offset = topic.append(values[0], wait=True if way == "w" else 0.0005)
                watched.accepted(who, values, offset)
                watched.written.update(values)
                watched.durable.update(values if fsync else ())
            elif way == "m":
                wait = self.chance.random() < 0.5
                span: Any = topic.append_many(values, wait=wait)
                watched.accepted(who, values, span.first)
                watched.batches.append(values)
                watched.written.update(values)
                watched.durable.update(values if wait and fsync else ())
            elif way == "f":
                topic.flush()
                watched.written |= before
            elif way == "s":
                topic.sync()
                watched.written |= before
                watched.durable |= before
            elif way == "S":
                self.store.sync()
                for each, there in all_before.items():
                    each.written |= there
                    each.durable |= there
            elif way == "d" and before:
                value = self.chance.choice(sorted(before))
                topic.wait_durable(watched.told[value])
                watched.durable.add(value)
            if way not in "bn":
                self._acked()
        except (esker.WouldBlock, esker.StorageError, esker.StoreClosed) as problem:
            watched.refused.update(values)
            if isinstance(problem, esker.StoreClosed):
                raise
        except esker.CommitTimeout as problem:
            unknown = "not accepted" not in str(problem)
            (watched.maybe if unknown else watched.refused).update(values)
        except esker.Poisoned:
            watched.maybe.update(values)

    def _acked(self) -> None:
        """Something was promised: the worst moment for the power to go."""
        self.acks += 1
        if self.acks in self.cut_after:
            self.cut()

    def ticker(self) -> None:
        """The background, as far as it has no thread of its own."""
        while self.producing:
            self.clock.forward(0.05)
            self.store.tick()
            self.baton.switch()

    def reader(self, topic: str, rounds: int = 4, store: esker.Store | None = None) -> Work:
        """Reads from the start, again and again; each time at least as much."""

        def read() -> None:
            mine, end = store or self.store, 0
            watched = self.watched[topic]
            for _ in range(rounds):
                try:
                    handle = mine[topic]
                    least = handle.end()
                    records = list(handle.read(0))
                    if records:
                        watched.saw(handle[self.chance.randrange(len(records))])
                except esker.StoreClosed:
                    return
                assert [record.offset for record in records] == list(range(len(records)))
                assert len(records) >= max(end, least if store is None else end), (
                    f"it shrank: {len(records)} records, end was {least}, {end} before"
                )
                end = len(records)
                for record in records:
                    watched.saw(record)
                self._acked()

        return read

    def follower(self, topic: str) -> Work:
        """Follows from the start to the end of the store."""

        def follow() -> None:
            for at, record in enumerate(self.store[topic].follow(0)):
                assert record.offset == at
                self.watched[topic].saw(record)

        return follow

    def closer(self, patience: float = 2.0) -> Work:
        """Closes the store when all producers are done, and every follower has had its time."""

        def close() -> None:
            self.baton.wait(lambda: not self.producing, None, "the producers")
            for name, watched in self.watched.items():
                if self.following:
                    self._append("closer", name, "s", 0)
                    for _ in range(4):  # time may pass before one that was woken has had a turn
                        self.baton.sleep(patience)
                        missed = self.store[name].end() - len(watched.seen)
                    assert not missed, f"{name}: {missed} records, and no follower was woken"
            self.store.close()

        return close

    following = False

    # -- what is looked at --

    def cut(self) -> None:
        """Look, later, what is left when the power goes, or the process dies, here and now."""
        said = {name: watched.copy() for name, watched in self.watched.items()}
        if self.chance.random() < 0.25:
            self.cuts.append((self.disk.kill(), said, "kill"))
            return
        fate = self.chance.choice((LOST, LOST, KEPT, Fate(self.chance.randrange(1 << 30))))
        self.cuts.append((self.disk.crash(fate), said, "power"))

    def check(self) -> None:
        """After the schedule: the store as it was closed, and as each cut left it."""
        if not self.cuts or self.chance.random() < 0.4:
            self.cuts.append((self.disk.kill(), self.watched, "none"))
        for disk, watched, death in self.cuts:
            options = {**self.options, "background": False}
            store = esker.open(ROOT, files=disk, clock=self.clock, **options)
            try:
                for each in watched.values():
                    each.check(store, death)
            finally:
                abandon(store)


# ---- meetings that were once missed, one by one ----------------------------------------------

MANY = [f"t{n}" for n in range(6)]  # enough for the journal


def dirty() -> tuple[World, Any]:
    """Six topics of class fsync with a written, unsynced record each, and the first's shard."""
    world = World(random.Random(1))
    world.open()
    for name in MANY:
        world.topic(name, "fsync")
        world._append("first", name, "b", 0)
        world.store[name].flush()
    return world, world.store["t0"]._shards[0]


def test_nothing_is_acknowledged_before_the_name_of_its_log_is_durable() -> None:
    """One thread is about to sync the log's name; another comes, and finds the log synced."""
    world, _ = dirty()
    threads = Threads()

    def acknowledge() -> None:
        world._append("other", "t0", "s", 0)
        world.cuts.append((world.disk.crash(LOST), {"t0": world.watched["t0"].copy()}, "power"))

    def watch(call: Any, when: str) -> None:
        if call.name == "sync_dir" and when == "before":
            world.disk.watch = None
            threads.start(acknowledge).join(0.2)  # or it waits for us, as it should

    world.disk.watch = watch
    world._append("one", "t0", "s", 0)
    threads.join()
    assert world.cuts
    world.check()
    world.store.close()


def test_a_sync_beside_the_journal_does_not_shift_what_the_journal_is_given() -> None:
    world, shard = dirty()
    log = shard.active
    log.in_file = log.synced = 0
    upto = log.end
    world.disk.sync_dir(shard.folder)
    log.file.sync()  # of another thread, which has yet to note that it synced up to there
    world._append("second", "t0", "m", 1)
    file = log.file

    class Meanwhile:
        def read(self, position: int, size: int) -> bytes:
            data: bytes = file.read(position, size)
            log.in_file = log.synced = max(log.synced, upto)  # and now it does
            return data

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    log.file = Meanwhile()
    world._append("all", "t0", "S", 2)
    log.file = file
    world.cuts.append((world.disk.crash(LOST), world.watched, "power"))
    world.check()
    world.store.close()


def test_the_journal_does_not_vouch_for_a_log_whose_sync_has_just_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, shard = dirty()
    committer, log = world.store._context.committer, shard.active
    world.disk.reverts = True
    journal_lot = committer._journal_lot

    def meanwhile(*arguments: Any) -> None:
        world.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
        with pytest.raises(esker.StorageError):
            log.sync(log.end)  # of another thread, which has yet to poison the shard
        world.disk.heal()
        journal_lot(*arguments)

    monkeypatch.setattr(committer, "_journal_lot", meanwhile)
    with pytest.raises(esker.Poisoned):
        world.store.sync()
    for name in MANY[1:]:  # they shared the journal, not the failure
        assert world.store[name].durable() == 1
        world.watched[name].durable |= set(world.watched[name].told)
    world.cuts.append((world.disk.crash(LOST), world.watched, "power"))
    world.check()
    with pytest.raises(esker.Poisoned):
        world.store.close()


def test_the_end_does_not_fall_while_another_thread_opens_the_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its page already says what it has written when the shard itself is about to."""
    world = World(random.Random(1))
    topic = world.open().create("t")
    shard, refresh = topic._shards[0], topic._followers[0].refresh

    def meanwhile() -> int:
        monkeypatch.undo()
        topic.append_many([b"0", b"1", b"2"])
        shard.visible = 0  # the line behind the one that it has reached
        return refresh()

    monkeypatch.setattr(topic._followers[0], "refresh", meanwhile)
    end = topic.end()
    assert len(list(topic.read(0))) >= end
    shard.visible = 3
    world.store.close()


def test_a_follower_of_several_shards_leaves_nothing_behind_in_those_that_are_idle() -> None:
    with esker.open(":memory:") as store:
        topic = store.create("t", shards=2)
        keys = {topic.shard_of(f"{n}"): f"{n}" for n in range(20)}
        for key in keys.values():
            topic.append(b"first", key=key, wait=True)
        threads = Threads()
        threads.start(lambda: list(topic.follow("latest", limit=50)))
        for _ in range(50):
            wait_until(lambda: topic._shards[0].waiters, "a follower that waits")
            topic.append(b"more", key=keys[0], wait=True)
        threads.join()
        assert len(topic._shards[1].waiters) <= 1


# ---- threads with a baton --------------------------------------------------------------------


def owner_and_drainers(world: World) -> list[Work]:
    """One thread owns the buffer; others flush it, sync it, join it."""
    durability = world.chance.choice(("disk", "disk", "memory", "fsync"))
    world.topic("t", durability)
    others = [
        world.producer("drainer", "t", "fffsS", 3),
        world.producer("joiner", "t", "bbbnm", 4),
        world.ticker,
    ]
    kept = world.chance.sample(others, world.chance.choice((1, 2, 3)))
    return [world.producer("owner", "t", "bbbbbbbf", 12), *kept]


def waiters(world: World) -> list[Work]:
    """Class fsync: threads that wait share rounds; some give up, some only write."""
    world.topic("t", "fsync")
    world.topic("u", "fsync")
    works = [world.producer(f"waiter{n}", world.chance.choice("tu"), "wwwwl", 3) for n in range(3)]
    works.append(world.producer("other", "t", "bmsd", 4))
    if world.chance.random() < 0.5:
        works.append(world.ticker)
    return works


def journal_and_sync(world: World) -> list[Work]:
    """So many dirty shards that they go through the journal, while single ones are synced."""
    count = world.chance.choice((5, 6))
    for n in range(count):
        world.topic(f"t{n}", "fsync" if n % 3 else "disk")
        world._append("first", f"t{n}", "b", 0)

    def sync_all() -> None:
        for turn in range(world.chance.choice((1, 1, 3))):
            world._append("all", "t0", "S", turn)
            for n in range(count):
                world._append("all", f"t{n}", "b", turn)

    world.producers.append(sync_all)
    works = [sync_all, world.producer("one", "t1", "mms", 4), world.producer("two", "t1", "ms", 3)]
    return [*works, world.ticker] if world.chance.random() < 0.2 else works


def rolling_under_readers(world: World) -> list[Work]:
    """Small segments are rolled and sealed while they are read."""
    durability = world.chance.choice(("disk", "disk", "fsync"))
    world.topic("t", durability, segment_records=world.chance.choice((1, 2, 4)))
    return [
        world.producer("producer", "t", "bmmwfs", 9),
        world.reader("t"),
        world.reader("t", 2),
        world.ticker,
    ]


def beside_another_process(world: World) -> list[Work]:
    """A second handle on the same files, mode="r", reads what the first one writes."""
    durability = world.chance.choice(("disk", "fsync", "memory"))
    world.topic("t", durability, segment_records=world.chance.choice((2, 4)))
    world._append("first", "t", "w", 0)
    beside = esker.open(ROOT, mode="r", files=world.disk, clock=world.clock)
    return [
        world.producer("producer", "t", "bmmwfs", 8),
        world.reader("t", 4, beside),
        world.ticker,
    ]


def closing_in_between(world: World) -> list[Work]:
    """One closes while others append: what was accepted is there, the rest was refused."""
    world.topic("t", world.chance.choice(("disk", "fsync")))

    def close() -> None:
        for _ in range(world.chance.randrange(6)):
            world.baton.switch()
        world.store.close()

    return [
        close,
        world.producer("one", "t", "bbbw", 8),
        world.producer("two", "t", "bmw", 6),
        world.reader("t", 3),
    ]


def real_background(world: World) -> list[Work]:
    """The engine's own two threads, followers that sleep until they are woken, and an end."""
    world.following = True
    world.topic("t", world.chance.choice(("disk", "fsync")), segment_records=5)
    works = [world.producer(f"producer{n}", "t", "bbbmw", 4) for n in range(2)]
    return [*works, *[world.follower("t")] * world.chance.choice((1, 2)), world.closer()]


def rewriting_under_readers(world: World) -> list[Work]:
    """Records are deleted and taken off the disk while others read, also in another process.

    Mappings are let go all the time, so that files are mapped while they are being replaced. A
    reader sees what was there when it began, but for what is being deleted, and never a blank one.
    """
    chance, topic = world.chance, world.store.create("gone", segment_records=8)
    for first in range(0, 40, 4):
        numbers = range(first, first + 4)
        topic.append_many([esker.Record(b"%d" % n * 9, tag=f"{n % 4}") for n in numbers])
    topic.sync()
    world.store.tick()
    beside = esker.open(ROOT, mode="r", files=world.disk, clock=world.clock, mapped_bytes=0)
    stays = [n for n in range(40) if n % 4 == 3]
    working = [True]

    def rewrite() -> None:
        for tag in chance.sample(["0", "1", "2"], 3):
            topic.delete(tag=tag)
            topic.reclaim()
        working.clear()

    def read(store: esker.Store) -> Work:
        def look() -> None:
            handle = store["gone"]
            while working:
                found = list(handle.read(0))
                assert [r.value for r in found] == [b"%d" % r.offset * 9 for r in found]
                assert [r.offset for r in found if r.tag == "3"] == stays
                offset = chance.randrange(40)
                try:
                    assert handle[offset].value == b"%d" % offset * 9
                except esker.OffsetOutOfRange:
                    assert offset not in stays
                assert len(handle) >= len(stays)
                world.baton.switch()

        return look

    return [rewrite, read(world.store), read(beside)]


def a_sync_fails(world: World) -> list[Work]:
    """One sync fails among many: nobody who shares it is told that all is well."""
    world.topic("t", "fsync")
    world.topic("u", "disk")
    world.disk.fail(
        Fault(errno.EIO, world.chance.randrange(1, 12), calls=frozenset({"sync"}), inside="topics")
    )
    return [
        world.producer("one", "t", "wwms", 4),
        world.producer("two", "t", "wsd", 4),
        world.producer("three", "u", "msS", 4),
    ]


SCENARIOS: dict[str, tuple[Callable[[World], list[Work]], dict[str, Any]]] = {
    "owner and drainers": (owner_and_drainers, {}),
    "waiters": (waiters, {}),
    "journal and sync": (journal_and_sync, {}),
    "rolling under readers": (rolling_under_readers, {}),
    "beside another process": (beside_another_process, {}),
    "closing in between": (closing_in_between, {}),
    "rewriting under readers": (rewriting_under_readers, {"mapped_bytes": 0}),
    "real background": (real_background, {"background": True}),
    "a sync fails": (a_sync_fails, {}),
}


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time moves only by waiting here: looking for what others committed would be all it does."""
    monkeypatch.setattr(background, "ATTACH_LOOK_RARELY", 1e9)
    monkeypatch.setattr(background, "RETAIN_LOOK", 1e9)


def play(scenario: str, seed: str) -> Baton:
    """One schedule of a scenario, and all checks of it."""
    chance = random.Random(seed)
    make, options = SCENARIOS[scenario]
    world = World(chance, **options)
    try:
        with between_the_lines(), world.baton.instead_of_threads():
            world.open()
            works = make(world)
            world.disk.watch = lambda call, when: (
                world.baton.point(0.1)
                if call.name in SWITCHES and (call.name != "sync" or when == "after")
                else None
            )
            world.cut_after = {chance.randrange(1, 12), chance.randrange(1, 12)}
            if chance.random() < 0.2:
                world.baton.cut = world.cut
                world.baton.cut_at = chance.randrange(1, chance.choice((400, 4000)))
            world.baton.run(*works)
            world.disk.watch = None
            try:
                world.store.close()
            except (esker.Poisoned, esker.StorageError):
                assert scenario == "a sync fails"
            world.disk.heal()
            world.check()
    except BaseException as problem:
        turns = " ".join(f"{at}:{name}" for at, name in world.baton.turns)
        problem.add_note(f"scenario {scenario!r}, seed {seed!r}, turns {turns}")
        raise
    return world.baton


@pytest.mark.parametrize("lot", range(4))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_threads_switched_between_any_two_lines(scenario: str, lot: int, tally: Tallies) -> None:
    suite = tally("schedules", lots=62)
    schedules: set[int] = set()
    for n in range(scaled(84)):
        baton = play(scenario, f"{SEED} {scenario} {lot} {n}")
        schedules.add(hash(tuple(baton.turns)))
        suite.also["turns"] += len(baton.turns)
    suite.count = len(schedules)


# ---- actors, step by step --------------------------------------------------------------------


class Stage(World):
    """No threads: who is on stage takes a step when it is told to. What is there is known exactly.

    `lines` is what has been written, in order, and `visible` how much of it a reader may see.
    """

    def __init__(self, chance: random.Random, durability: str, **options: Any) -> None:
        super().__init__(chance)
        self.open()
        self.topic("t", durability, **options)
        self.lines: list[bytes] = []
        self.pending: list[bytes] = []
        self.serial = 0
        self.beside: esker.Store | None = None

    @property
    def visible(self) -> int:
        fsync = self.watched["t"].durability == "fsync"
        shard = self.store["t"]._shards[0]
        return min(shard.durable, len(self.lines)) if fsync else len(self.lines)

    def value(self) -> bytes:
        self.serial += 1
        return b"%d" % self.serial

    def wrote(self, values: list[bytes], first: int) -> None:
        self.lines += self.pending
        self.pending = []
        assert first == len(self.lines)
        self.lines += values

    # -- the cast; each yields after every step --

    def one_by_one(self, steps: int) -> Iterator[None]:
        for _ in range(steps):
            value = self.value()
            assert self.store["t"].append(value) == len(self.lines) + len(self.pending)
            self.pending.append(value)
            yield

    def by_batches(self, steps: int) -> Iterator[None]:
        for n in range(steps):
            values = [self.value() for _ in range(2)]
            span: Any = self.store["t"].append_many(values, wait=n % 2 == 1)
            self.wrote(values, span.first)
            yield

    def waiting(self, steps: int) -> Iterator[None]:
        for _ in range(steps):
            value = self.value()
            self.wrote([value], self.store["t"].append(value, wait=True))
            yield

    def flushing(self, steps: int) -> Iterator[None]:
        for n in range(steps):
            if n % 2:
                self.store["t"].sync()
            else:
                self.store["t"].flush()
            self.wrote([], len(self.lines) + len(self.pending))
            yield

    def ticking(self, steps: int) -> Iterator[None]:
        """Linger, background sync, checkpoint; and one log sealed at a step."""
        for _ in range(steps):
            self.clock.forward(0.3)
            self.store._context.background.step()
            self.wrote([], len(self.lines) + len(self.pending))
            yield
            self.store._context.background.seal_step()
            yield

    def reading(self, steps: int, store: esker.Store | None = None) -> Iterator[None]:
        """A read, begun at one step and moved by a record at the next: it shows what was there."""
        topic = (store or self.store)["t"]
        for _ in range(max(1, steps // 4)):
            expected = self.lines[: self.visible]
            records = topic.read(0)
            yield
            for at, value in enumerate(expected):
                record = next(records)
                assert (record.offset, record.value) == (at, value), f"{record}, not {value!r}"
                if at % 2 == 0:
                    yield
            assert next(records, None) is None, "it shows more than when it was begun"

    def reading_beside(self, steps: int) -> Iterator[None]:
        """The same by another handle on the same files, as another process would."""
        if self.beside is None:
            self.beside = esker.open(ROOT, mode="r", files=self.disk, clock=self.clock)
        yield from self.reading(steps, self.beside)

    def following(self, steps: int) -> Iterator[None]:
        tail, seen = self.store["t"].tail(0), 0
        for _ in range(steps):
            for batch in tail.take():
                for record in batch.records():
                    assert (record.offset, record.value) == (seen, self.lines[seen])
                    seen += 1
            assert seen == self.visible, f"{seen} of {self.visible} that are visible"
            yield

    def cutting(self, steps: int) -> Iterator[None]:
        """The power goes, elsewhere: what is durable here is there."""
        for _ in range(max(1, steps // 2)):
            durable = self.store["t"].durable()
            after = esker.open(ROOT, files=self.disk.crash(LOST), clock=self.clock, **self.options)
            records = list(after["t"].read(0, gaps="skip")) if "t" in after else []
            assert [record.value for record in records[:durable]] == self.lines[:durable]
            after._context.forked = True
            after.close()
            yield

    def perform(self, order: Iterator[int], cast: list[Iterator[None]]) -> None:
        """One step of one actor after the other; who has left the stage is passed over."""
        for who in order:
            next(cast[who], None)
        for actor in cast:  # all that is left, so that no assertion at an end is missed
            for _ in actor:
                pass
        self.store["t"].sync()
        self.wrote([], len(self.lines) + len(self.pending))
        self.store.close()
        again = esker.open(ROOT, files=self.disk, clock=self.clock, **self.options)
        assert again.recovery.clean, str(again.recovery)
        found = [(record.offset, record.value) for record in again["t"].read(0)]
        assert found == list(enumerate(self.lines))
        again.close()
        if self.beside is not None:
            self.beside.close()


ACTORS = (
    "one_by_one", "by_batches", "waiting", "flushing", "ticking", "reading", "reading_beside",
    "following", "cutting",
)  # fmt: skip


def step_by_step(cast: tuple[str, ...], order: Any, steps: int, seed: str) -> None:
    chance = random.Random(seed)
    durability = chance.choice(("disk", "fsync", "memory"))
    records = chance.choice((1, 2, 3, 1000))
    stage = Stage(chance, durability, segment_records=records)
    try:
        stage.wrote([b"0"], stage.store["t"].append(b"0", wait=True))
        stage.perform(order, [getattr(stage, name)(steps) for name in cast])
    except BaseException as problem:
        problem.add_note(f"{cast}, {order}, {steps} steps, {durability}, {records}, seed {seed!r}")
        raise


SMALL = [
    ("one_by_one", "flushing", "following"),
    ("by_batches", "ticking", "reading"),
    ("waiting", "ticking", "reading_beside"),
    ("by_batches", "cutting", "ticking"),
]


@pytest.mark.parametrize("cast", SMALL, ids=" and ".join)
def test_small_casts_in_every_order(cast: tuple[str, ...], tally: Tallies) -> None:
    suite = tally("schedules", lots=9)
    orders = sorted(set(itertools.permutations([0, 0, 1, 1, 1, 2, 2, 2])))
    for order in orders[:: max(1, len(orders) // scaled(len(orders)))]:
        step_by_step(cast, order, 3, f"{SEED} {order}")
        suite.count += 1


@pytest.mark.parametrize("lot", range(4))
def test_large_casts_in_seeded_orders(lot: int, tally: Tallies) -> None:
    suite = tally("schedules", lots=29)
    for n in range(scaled(180)):
        seed = f"{SEED} {lot} {n}"
        chance = random.Random(seed)
        cast = tuple(chance.choices(ACTORS, k=chance.randrange(3, 7)))
        order = tuple(chance.randrange(len(cast)) for _ in range(40))
        step_by_step(cast, order, 8, seed)
        suite.count += 1
