"""A key is pressed, or memory runs out, at every place where Python can tell the program.

CPython looks for signals at the start of a function, after a call of one that is written in C, and
where a loop goes round: not between any two lines. So `Interrupts` raises at the start of every
function of Esker's and after every C function that one of them calls; a `with` on a lock is safe
there as it is in life, and taking a lock one line before a `try` is not. Each scenario is performed
again and again, and interrupted at the first such place, at the next, and so on.

An interrupted call happened as a whole or not at all, and the program finds out which by `sync` and
reading. The store goes on; where the interrupt came between writing a batch and taking it into the
books, its shard is poisoned and says so. No lock is held, nobody waits for ever, no record is there
twice, and what is closed by half is closed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any

import pytest

import esker
from esker.engine import committer
from esker.storage import files
from esker.testing import NAMES_ONLY, Call, SimulatedDisk
from tests.crash.scenarios import (
    INTERRUPTS,
    SCENARIOS,
    cheap_collections,
    few_shards_again,
    held,
    judged,
    prepared,
)
from tests.suites import SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]


@pytest.fixture(autouse=True)
def _limit_of_the_journal() -> Iterator[None]:
    with few_shards_again():
        yield


LOTS = 2
LOTS_OF_SUITE = 10  # the rest are in test_faults.py
POINTS = 4_200  # at scale 1, of some 30,000
INSIDE = esker.__file__.removesuffix("__init__.py")
DOUBLES = INSIDE + "testing/"
BOOKS = "_took"  # in the middle of this function nobody can tell what was written


class Interrupts:
    """Raises at the `at`-th place from 1; counts them."""

    def __init__(self, at: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at = at
        self.error = error
        self.seen = 0
        self.where = ("", "", 0)  # the event, the function, the line
        self.in_books = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or not _ours(frame.f_code.co_filename):
            return
        self.seen += 1
        if self.seen == self.at:
            sys.setprofile(None)
            self.where = (event, frame.f_code.co_name, frame.f_lineno)
            above: FrameType | None = frame
            while above is not None:
                self.in_books |= above.f_code.co_name == BOOKS
                above = above.f_back
            raise self.error

    @contextmanager
    def at_work(self) -> Iterator[None]:
        told = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            sys.unraisablehook = told

    def _unraisable(self, told: Any) -> None:
        """Python itself swallows what is raised while a generator is being cleared away."""
        assert isinstance(told.exc_value, self.error)


@cache
def _ours(path: str) -> bool:
    return path.startswith(INSIDE) and not path.startswith(DOUBLES)


@cache
def places(scenario: str) -> int:
    """How many places there are in a scenario."""
    program, none = prepared(scenario), Interrupts()
    with none.at_work():
        program.attempt(SCENARIOS[scenario].steps, ())
    if program.store is not None:
        program.abandon()
    return none.seen


@cache
def points() -> list[tuple[str, int, int]]:
    """Scenario, place and turn: what this run looks at, the rarer scenarios not less."""
    chance = random.Random(f"points {SEED}")
    found: list[tuple[str, int, int]] = []
    share = -(-scaled(POINTS) // len(SCENARIOS))
    for scenario in SCENARIOS:
        count = places(scenario)
        turns, rest = divmod(share, count)
        found += [(scenario, at, turn) for turn in range(turns) for at in range(1, count + 1)]
        found += [(scenario, at, turns) for at in chance.sample(range(1, count + 1), rest)]
    return found


def interrupt(scenario: str, at: int, serial: int, error: type[BaseException]) -> None:
    interrupts = Interrupts(at, error)
    try:
        program = prepared(scenario)
        with interrupts.at_work():
            program.attempt(SCENARIOS[scenario].steps, INTERRUPTS)
        judged(program, scenario, serial, excused=interrupts.in_books or error is MemoryError)
    except BaseException as problem:
        problem.add_note(
            f"seed {SEED}, {scenario!r}, {error.__name__} at place {at}, {interrupts.where}, "
            f"judged as {serial}"
        )
        raise


@pytest.mark.parametrize("lot", range(LOTS))
def test_an_interrupted_call_happens_as_a_whole_or_not_at_all(lot: int, tally: Tallies) -> None:
    suite = tally("injected faults", lots=LOTS_OF_SUITE)
    with cheap_collections():
        for serial, (scenario, at, turn) in enumerate(points()[lot::LOTS]):
            interrupt(scenario, at, serial, INTERRUPTS[(at + turn) % 2])
            suite.count += 1
            suite.also["interrupts"] += 1


# ---- group commit: one of several threads is interrupted -------------------------------------


class Company:
    """A store of class fsync on which one thread leads a commit while others wait."""

    def __init__(self) -> None:
        self.program = prepared("append and wait, fsync")
        self.store = self.program._store
        self.committer = self.store._context.committer
        self.said: list[object] = []
        self.threads: list[threading.Thread] = []

    def append(self, value: bytes) -> None:
        try:
            self.said.append(self.store["f"].append(value, wait=True))
        except (esker.CommitTimeout, esker.Poisoned) as problem:
            self.said.append(problem)

    def begin(self, value: bytes, waiting: int) -> None:
        """Another thread appends; goes on when so many wait for the next round."""
        thread = threading.Thread(target=self.append, args=[value])
        self.threads.append(thread)
        thread.start()
        self.until(lambda: self.committer.waiting >= waiting)

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.0002)

    def hold_first_sync(self, while_held: Callable[[], None]) -> None:
        """The leader's sync lasts as long as this takes."""

        def watch(call: Call, when: str) -> None:
            if call.name == "sync" and when == "before":
                self.program.disk.watch = None
                while_held()

        self.program.disk.watch = watch

    def judge(self, interrupts: Interrupts) -> None:
        place, self.program.disk.watch = interrupts.where, None
        for thread in self.threads:
            thread.join(5)
        assert not any(thread.is_alive() for thread in self.threads), f"one waits for ever: {place}"
        assert not held(self.store), (place, held(self.store))
        if self.store["f"]._shards[0].in_doubt:
            assert interrupts.in_books, place
            with pytest.raises(esker.Poisoned):
                self.store.close()
            return
        offset = self.store["f"].append(b"goes on", wait=True)
        values = [record.value for record in self.store["f"].read(0)]
        assert values[offset] == b"goes on"
        assert len(set(values)) == len(values), f"a record is there twice: {place}"
        acked = [said for said in self.said if isinstance(said, int)]
        assert len(set(acked)) == len(acked)
        self.store.close()


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    at = 0
    while True:
        at += 1
        company, interrupts = Company(), Interrupts(at)

        def others(company: Company = company) -> None:
            company.begin(b"second", waiting=1)
            company.begin(b"third", waiting=2)

        company.hold_first_sync(others)
        with interrupts.at_work(), suppress(KeyboardInterrupt):
            company.append(b"first")
        company.judge(interrupts)
        if not interrupts.where[0]:
            break
    assert at > 40


def test_an_interrupted_waiter_leaves_nobody_waiting() -> None:
    """It may be the one that is let in to lead the next round."""
    at = 0
    while True:
        at += 1
        company, interrupts = Company(), Interrupts(at)
        inside, go, over = threading.Event(), threading.Event(), threading.Event()

        def held_up(inside: threading.Event = inside, go: threading.Event = go) -> None:
            inside.set()
            go.wait(5)

        def release(
            company: Company = company, go: threading.Event = go, over: threading.Event = over
        ) -> None:
            company.until(lambda: company.committer.waiting >= 2 or over.is_set())
            go.set()

        company.hold_first_sync(held_up)
        company.begin(b"first", waiting=0)
        inside.wait(5)
        company.begin(b"second", waiting=1)
        helper = threading.Thread(target=release)
        helper.start()
        with interrupts.at_work():
            try:
                company.append(b"third")
            except KeyboardInterrupt:
                pass
            finally:
                over.set()
        helper.join()
        company.judge(interrupts)
        if not interrupts.where[0]:
            break
    assert at > 10


# ---- one by one ------------------------------------------------------------------------------


def test_what_was_pending_before_an_interrupted_flush_is_written_by_the_next() -> None:
    program = prepared("append and flush, disk")
    program.run([("append", "d"), ("append", "d")])
    interrupts = Interrupts(3)
    with interrupts.at_work(), pytest.raises(KeyboardInterrupt):
        program._store["d"].flush()
    program.run([("sync", "d"), ("read", "d")])
    program.close()


def test_an_interrupted_close_frees_the_shards_and_takes_no_more_records() -> None:
    at = 0
    while True:
        at += 1
        program, interrupts = prepared("close"), Interrupts(at)
        topic = program._store["d"]
        topic.append(b"opens a buffer")
        with interrupts.at_work():
            try:
                program._store.close()
                break
            except KeyboardInterrupt:
                pass
        if interrupts.where[1] == "close" and interrupts.where[0] == "call" and at == 1:
            program._store.close()  # it was not even begun
        with pytest.raises(esker.StoreClosed):
            topic.append(b"into the void")
        assert not program.disk.locks, interrupts.where
    assert at > 100


def test_a_sync_that_failed_is_not_asked_again_though_an_interrupt_hid_the_failure(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = esker.open(tmp_path / "data", background=False)
    topic = store.create("t", durability="fsync")
    topic.append(b"one", wait=True)
    told = files.told

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fdatasync", refuse)
        patched.setattr(files, "told", interrupted)
        with pytest.raises(KeyboardInterrupt):
            topic.append(b"two", wait=True)
    assert files.told is told
    with pytest.raises(esker.Poisoned):
        topic.append(b"three", wait=True)
    with pytest.raises(esker.Poisoned):
        store.close()


def test_a_read_that_was_interrupted_is_done_again() -> None:
    """Of sealed segments that nobody has looked at before, and of a log."""
    at = 0
    while True:
        at += 1
        program, interrupts = prepared("read a closed store"), Interrupts(at)
        store = program.open()
        with interrupts.at_work(), suppress(KeyboardInterrupt):
            program.read("f")
        program.read("f")
        assert not held(store), interrupts.where
        store.close()
        if not interrupts.where[0]:
            break
    assert at > 100


def test_a_checkpoint_overlooks_no_log_whose_commit_was_interrupted() -> None:
    at = 0
    while True:
        at += 1
        program, interrupts = prepared("journal"), Interrupts(at)
        program.run([("append", "j0"), ("append", "j1")])
        with interrupts.at_work(), suppress(KeyboardInterrupt):
            program.sync_all()
        if not any(shard.in_doubt for shard in program._store._context.shards):
            program.run([("sync_all",), ("checkpoint",)])
            program.elsewhere(program.disk.crash(NAMES_ONLY), "power")  # the journal is gone, too
        program.abandon()
        if not interrupts.where[0]:
            break
    assert at > 100


def test_what_an_interrupted_tick_did_not_sync_the_next_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = prepared("tick")
    program.run([("many", "d")])
    with monkeypatch.context() as patched:
        patched.setattr(committer.Committer, "make_durable", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            program.tick()
    program.tick()
    assert program._store["d"].durable() == program._store["d"].end()
    program.close()


def _interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_every_reader_that_waits_is_woken_though_the_waking_was_interrupted() -> None:
    program = prepared("append and wait, disk")
    shard = program._store["d"]._shards[0]
    waiters = [threading.Lock() for _ in range(3)]
    for waiter in waiters:
        waiter.acquire()
        shard.add_waiter(waiter)
    for at in (4, 7, 1000):
        interrupts = Interrupts(at)
        with interrupts.at_work(), suppress(KeyboardInterrupt):
            shard.wake()
    assert not any(waiter.locked() for waiter in waiters)
    program.close()


@pytest.mark.parametrize("place", ["esker.storage.state.StateFile", "esker.storage.log.LogSegment"])
def test_a_shard_whose_closing_was_interrupted_is_not_locked(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for a moment, to attach a batch; memory ran out while it was given back."""
    disk = SimulatedDisk(1)
    with esker.open("/store", files=disk, background=False) as store:
        store.create("f").append_many([b"x"], wait=True)
    with esker.open("/store", files=disk, background=False) as store:
        with store.stage("f") as staged:
            staged.append_many([b"y"])

        def interrupted(_: object) -> None:
            monkeypatch.undo()
            raise MemoryError

        monkeypatch.setattr(f"{place}.close", interrupted)
        with pytest.raises(MemoryError):
            store.attach("w", 1, staged.tickets)
        store["f"].append_many([b"z"], wait=True)
        assert [record.value for record in store["f"].read(0)] == [b"x", b"y", b"z"]
