"""Groups where something goes wrong: death, power cuts and faults at every call and every store.

A script makes a group, reads, acks, syncs, hands over, seeks and closes. Around every call that
changes the disk, and behind every single store into the page of offsets, the process dies or the
power goes; what is left is opened and held against what had been promised by then (I13):

    kill     the cursor is where the last ack, or the one that was under way, has put it
    power    it is no further than what was acked, and no less far than what was synced
    both     what is behind it is delivered again, all of it, and in order
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import esker
from esker.format import offsets as fmt
from esker.testing import Fault, ManualClock, SimulatedDisk
from tests import fsck
from tests.crash.explorer import Explorer
from tests.helpers import abandon
from tests.suites import slowly

ROOT = "/store"
COUNT = 12


class Stores:
    """The words of a page; somebody looks behind every store."""

    def __init__(self, words: Any, looked: Callable[[], None]) -> None:
        self._words = words
        self._looked = looked

    def __getitem__(self, place: Any) -> Any:
        return self._words[place]

    def __setitem__(self, place: int, value: int) -> None:
        changed = self._words[place] != value
        self._words[place] = value
        if changed:
            self._looked()

    def __len__(self) -> int:
        return len(self._words)


class WatchedDisk(SimulatedDisk):
    """A disk on which every store into a page of offsets is a moment to die at."""

    look: Callable[[], None] | None = None

    def page(self, path: str, size: int, *, writable: bool) -> Any:
        words = super().page(path, size, writable=writable)
        if not writable or not path.endswith("/offsets"):
            return words
        return Stores(words, lambda: self.look() if self.look is not None else None)


class Ledger:
    """What was promised so far: bounds for the cursor of group g."""

    def __init__(self) -> None:
        self.made = False  # group() has returned
        self.gone = False  # forget_group was begun
        self.acked = self.asked = self.synced = 0  # done; under way; done and synced
        self.back: int | None = None  # a seek is under way, to here

    def ack(self, end: int) -> None:
        self.asked = end

    def check(self, found: dict[str, int], *, power: bool) -> None:
        if "g" not in found:
            assert not self.made or self.gone, "the group is lost"
            return
        cursor = found["g"]
        low = self.synced if power else self.acked
        allowed = range(low, max(self.asked, self.acked) + 1)
        assert cursor in allowed or cursor == self.back, (cursor, allowed, self.back, power)


def opened(disk: SimulatedDisk) -> esker.Store:
    return esker.open(ROOT, files=disk, clock=ManualClock(), background=False)


def script(disk: SimulatedDisk, ledger: Ledger, start: Any, durability: str) -> None:
    store = opened(disk)
    topic = store.create("t", durability=durability)
    topic.append_many([b"%d" % number for number in range(COUNT)])
    topic.sync()
    first = 0 if start == "earliest" else COUNT
    ledger.acked = ledger.asked = ledger.synced = first
    group = topic.group("g", start)
    ledger.made = True
    if start == "latest":
        topic.append_many([b"%d" % number for number in range(COUNT, 2 * COUNT)])
        topic.sync()
    for number, batch in enumerate(group.poll(max_records=3)):
        ledger.ack(batch.next_offset)
        batch.ack(wait=number == 2)
        ledger.acked = batch.next_offset
        if number == 2:
            ledger.synced = batch.next_offset
        if number == 3:
            break
    group.rewind()
    other = topic.group("g")
    other.close()
    store.tick()  # syncs
    ledger.synced = ledger.acked
    ledger.back = first + 4
    group.seek(first + 4)
    ledger.acked = ledger.asked = ledger.synced = first + 4
    ledger.back = None
    for batch in group.poll(max_records=2):
        ledger.ack(batch.next_offset)
        batch.ack()
        ledger.acked = batch.next_offset
        break
    group.close()
    ledger.synced = ledger.acked
    with topic.group("g") as group:
        for batch in group.poll():
            ledger.ack(batch.next_offset)
            batch.ack()
            ledger.acked = batch.next_offset
    ledger.synced = ledger.acked
    if durability == "disk":
        with topic.group("g") as group:
            topic.append_many([b"%d" % topic.end()])
            for batch in group.poll():
                batch.ack()  # the cursor stays: the record is not durable
            ledger.ack(ledger.acked + 1)
            store.sync()
            group.sync()
            ledger.acked = ledger.synced = ledger.asked
    ledger.gone = True
    topic.forget_group("g")
    abandon(store)


def looked_at(after: SimulatedDisk, ledger: Ledger, *, power: bool) -> None:
    """Open what is left."""
    judged = fsck.judge(after, pages=False)
    assert not [p for p in judged.problems if "offsets" in p.path], judged.problems
    ledger.check({name: at for (*_, name), at in judged.cursors.items()}, power=power)
    if not judged.cursors:
        return
    with opened(after) as store:
        group = store["t"].group("g", "latest", gaps="skip")
        cursor = group.cursors()[0]
        ledger.check({"g": cursor}, power=power)
        assert cursor <= ledger.asked or power
        read = [value for batch in group.poll() for value in batch.values]
        there = [record.value for record in store["t"].read(cursor, gaps="skip")]
        assert read == there
        assert there[:1] in ([], [b"%d" % cursor])  # no gap: nothing was acked that is lost


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["fsync", *slowly("disk")])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_death_at_every_call_and_every_store_leaves_a_group_where_it_may_be(
    start: str, durability: str
) -> None:
    """B48: the start of a group, too, is there for ever once it is known."""
    disk, ledger = WatchedDisk(), Ledger()
    seen: dict[bytes, set[tuple[Any, ...]]] = {}
    looking = False
    states = kills = 0

    def look(*_: Any) -> None:
        nonlocal looking, states, kills
        if looking or not any(path.endswith("/offsets") for path in disk.contents()):
            return
        looking = True
        told = (ledger.made, ledger.gone, ledger.acked, ledger.asked, ledger.synced, ledger.back)
        try:
            after = disk.kill()
            if told not in seen.setdefault(after.image(), set()):
                seen[after.image()].add(told)
                kills += 1
                looked_at(plain(after), ledger, power=False)
            for after in disk.crashes(most=12, chances=1):
                if (*told, "power") not in seen.setdefault(after.image(), set()):
                    seen[after.image()].add((*told, "power"))
                    states += 1
                    looked_at(plain(after), ledger, power=True)
        finally:
            looking = False

    disk.watch = look
    disk.look = look
    script(disk, ledger, start, durability)
    assert kills >= 40
    assert states >= 40


def plain(disk: SimulatedDisk) -> SimulatedDisk:
    """The same, where nobody looks."""
    return disk.kill()


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["fsync", *slowly("disk", "memory")])
def test_a_death_anywhere_leaves_records_and_cursors_that_belong_together(durability: str) -> None:
    """Also where the log rolls, is sealed and closed, and inside of a recovery."""
    explorer = Explorer(most=16, nested=8, thorough=9)
    steps: list[Any] = [
        ("create", "t", durability), ("many", "t", 3, 900), ("consume", "t"), ("many", "t", 3, 900),
        ("consume", "t", 9), ("tick",), ("erase", "t"), ("wait", "t", 100), ("consume", "t", 1),
        ("reopen",), ("consume", "t", 9), ("many", "t", 4, 900), ("consume", "t"),
    ]  # fmt: skip
    explorer.explore(steps, seed=4)
    assert explorer.states >= 100


@pytest.mark.parametrize("closed", [False, True])
def test_what_comes_in_the_place_of_what_was_lost_is_delivered(closed: bool) -> None:
    """Class memory gives offsets again that were lost; a group that had acked them goes back."""
    disk = SimulatedDisk()
    store = opened(disk)
    topic = store.create("t", durability="memory")
    if closed:  # then the state page says that all is well
        topic.append_many([b"kept"])
        store.close()
        store = opened(disk)
        topic = store["t"]
    topic.append_many([b"lost"] * 4)
    for batch in topic.group("g").poll():
        batch.ack(wait=True)
    abandon(store)
    for after in disk.crashes():
        with opened(after) as store:
            topic = store["t"]
            end = topic.end()
            topic.append_many([b"new"] * 9)
            read = [
                value for batch in topic.group("g", gaps="skip").poll() for value in batch.values
            ]
            assert read.count(b"new") == 9, end


# ---- faults ----------------------------------------------------------------------------------

STEPS = ("make", "read", "ack", "sync", "seek", "pause", "close", "again", "forget")


def do(step: str, store: esker.Store, group: Any) -> Any:
    topic = store["t"]
    match step:
        case "make" | "again":
            return topic.group("g")
        case "read":
            list(group.poll(max_records=4))
        case "ack":
            group.ack(0, 0, 3)
        case "sync":
            group.sync()
        case "seek":
            group.seek(2)
        case "pause":
            group.pause()
            group.resume()
        case "close":
            group.close()
        case "forget":
            topic.forget_group("g")
    return group


@pytest.mark.crash
@pytest.mark.parametrize("kind", [errno.EIO, errno.ENOSPC, "KeyboardInterrupt"])
@pytest.mark.parametrize("failing", STEPS)
def test_a_step_that_fails_is_done_or_not_and_nothing_is_left_out(failing: str, kind: Any) -> None:
    for at in range(1, 60):
        disk = SimulatedDisk()
        store = opened(disk)
        topic = store.create("t", durability="fsync")
        topic.append_many([b"%d" % number for number in range(COUNT)])
        topic.sync()
        group: Any = None
        for step in STEPS[: STEPS.index(failing)]:
            group = do(step, store, group)
        before = group.cursors()[0] if group is not None and not group.closed else 0
        fault = disk.fail(Fault(kind, at))
        with suppress(esker.EskerError, KeyboardInterrupt):
            do(failing, store, group)
        disk.heal()
        if not fault.hits:
            assert at > 1 or failing == "ack" or kind == errno.ENOSPC
            abandon(store)
            break
        abandon(store)
        after = disk.kill()
        with opened(after) as store:
            known = {status.name: status for status in store["t"].groups()}
            if "g" not in known:
                assert failing in ("make", "forget")
                continue
            cursor = known["g"].shards[0].cursor
            if failing in ("make", "read"):
                assert cursor == 0
            elif failing == "seek":
                assert cursor in (before, 2)
            elif failing in ("ack", "sync"):
                assert cursor in (0, 4)
            elif failing == "pause":
                assert cursor == 2
                store["t"].group("g").resume()
            read = [value for batch in store["t"].group("g").poll() for value in batch.values]
            assert read == [b"%d" % number for number in range(cursor, COUNT)]
    else:
        raise AssertionError("it never ended")


@pytest.mark.parametrize("reverts", [False, True])
def test_an_ack_whose_sync_failed_is_synced_by_the_next_one(reverts: bool) -> None:
    """The kernel may have dropped it: the second sync must not be the first to tell of success."""
    disk = SimulatedDisk()
    disk.reverts = reverts
    store = opened(disk)
    topic = store.create("t", durability="fsync")
    topic.append_many([b"%d" % number for number in range(COUNT)])
    topic.sync()
    group = topic.group("g")
    (batch,) = group.poll()
    disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside="/offsets"))
    with pytest.raises(esker.EskerError):
        batch.ack(wait=True)
    disk.heal()
    group.sync()
    abandon(store)
    for after in disk.crashes():
        with opened(after) as store:
            assert [value for each in store["t"].group("g").poll() for value in each.values] == []


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.parametrize("seek", [False, True])
def test_no_turned_bit_of_a_page_leaves_out_a_record_in_silence(
    seek: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk()
    store = opened(disk)
    topic = store.create("t", durability="fsync")
    topic.append_many([b"%d" % number for number in range(COUNT)])
    topic.sync()
    group = topic.group("g")
    for batch in group.poll(max_records=8):
        batch.ack()
        break
    if seek:
        group.seek(3)
    true = group.cursors()[0]
    abandon(store)
    path = next(path for path in disk.contents() if path.endswith("/offsets"))
    place = 128 + 128 * fmt.home_of("g")
    refused = older = 0
    for bit in (*range(0, 1024, 7), *range(place * 8, place * 8 + 1024, 3 if seek else 1)):
        after = disk.kill()
        byte = disk.contents()[path][bit // 8] ^ 1 << bit % 8
        after.poke(path, bit // 8, bytes([byte]))
        with opened(after) as store:
            try:
                group = store["t"].group("g", "latest")
                read = [value for batch in group.poll() for value in batch.values]
            except esker.Corruption as problem:
                refused += path in str(problem)
                continue
            assert read[-(COUNT - true) :] == [b"%d" % number for number in range(true, COUNT)], bit
            older += len(read) > COUNT - true
    assert refused >= (100 if seek else 300)
    if not seek:
        assert older
    assert "header was made anew" in caplog.text
