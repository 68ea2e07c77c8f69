"""Every call fails once, and from some call on every call fails.

The method is SQLite's. A scenario is performed again and again; the k-th call that can fail in some
way fails, for every k, for every way (see `esker.testing.KINDS`), once and for ever. Whatever
happened: nothing but Esker's own exceptions comes out, with the path; and when the fault is lifted
the store goes on, or says why not and goes on when it is opened again. Nothing that was
acknowledged is lost, neither by closing and opening nor by a power cut or a kill at that very
moment, nothing that was refused ever appears, no lock is held and no file is left open.

Which cases there are is found out by performing each scenario once without a fault. A run looks at
all that fail once and at a part of those that fail for ever; another seed takes others, and a
larger scale takes all of them, and then again with other parts of writes arriving.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import pytest

import esker
from esker.testing import KEPT, KINDS, LOST, Fate, Fault, SimulatedDisk
from tests.crash.driver import ROOT, Driver, Step
from tests.crash.ledger import Ledger, read
from tests.crash.scenarios import (
    INTERRUPTS,
    SCENARIOS,
    cheap_collections,
    few_shards_again,
    judged,
    prepared,
)
from tests.suites import SCALE, SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite]


@pytest.fixture(autouse=True)
def _limit_of_the_journal() -> Iterator[None]:
    with few_shards_again():
        yield


LOTS = 8
LOTS_OF_SUITE = 10  # the rest are in test_faults_interrupts.py
FOR_EVER = 0.1  # of the faults that stay, so many at scale 1
FATAL = ("sync", "sync_dir", "truncate")  # a failure of these may poison, that of others may not


class Case(NamedTuple):
    """One fault in one scenario."""

    scenario: str
    kind: str
    at: int
    forever: bool
    turn: int  # how often everything else has been the same


@cache
def calls(scenario: str) -> dict[str, int]:
    """How many calls of a scenario can fail, for each kind of fault."""
    program = prepared(scenario)
    faults = {kind: program.disk.fail(Fault(kind, 1 << 30)) for kind in KINDS}
    program.attempt(SCENARIOS[scenario].steps, ())
    if program.store is not None:
        program.abandon()
    return {kind: fault.seen for kind, fault in faults.items()}


def cases(scenario: str) -> list[Case]:
    """The cases of a scenario that this run may look at."""
    found: list[Case] = []
    for turn in range(scaled(1)):
        for forever in (False, True):
            more = [
                Case(scenario, kind, at, forever, turn)
                for kind, count in calls(scenario).items()
                for at in range(1, count + 1)
            ]
            share = FOR_EVER if forever and SCALE <= 1 else 1.0
            chance = random.Random(f"{SEED} {scenario} {forever} {turn}")
            found += chance.sample(more, round(share * len(more)))
    return found


@cache
def deck() -> list[Case]:
    """What this run looks at."""
    found = [case for scenario in SCENARIOS for case in cases(scenario)]
    few = scaled(len(found)) if SCALE < 1 else len(found)
    return random.Random(f"deck {SEED}").sample(found, few)


def inject(case: Case, serial: int) -> None:
    """Perform the scenario with the fault, lift it, and see what is left."""
    fault = Fault(case.kind, case.at, forever=case.forever)
    interrupts = INTERRUPTS if not isinstance(fault.kind.error(), OSError) else ()
    try:
        program = prepared(case.scenario, seed=SEED * 1000 + case.turn)
        program.disk.fail(fault)
        program.attempt(SCENARIOS[case.scenario].steps, interrupts)
        program.disk.heal()
        assert fault.hits, "the scenario does not come to this call"
        judged(program, case.scenario, serial, excused=case.forever or fault.struck[0] in FATAL)
    except BaseException as problem:
        problem.add_note(f"seed {SEED}, {case}, judged as {serial}, it struck {fault.struck}")
        raise


@pytest.mark.parametrize("lot", range(LOTS))
def test_a_fault_costs_nothing_acknowledged(lot: int, tally: Tallies) -> None:
    suite = tally("injected faults", lots=LOTS_OF_SUITE)
    with cheap_collections():
        for serial, case in enumerate(deck()[lot::LOTS]):
            inject(case, serial)
            suite.count += 1
            suite.also["for ever"] += case.forever


def test_there_are_scenarios_enough_and_each_can_fail() -> None:
    assert len(SCENARIOS) >= 25
    assert all(calls(name)["EIO"] for name in SCENARIOS if "ephemeral" not in name)
    for kind in KINDS:
        assert sum(calls(name)[kind] for name in SCENARIOS) > 50, f"{kind} hardly ever happens"


# ---- what is promised in so many words -------------------------------------------------------

MANY = tuple(f"j{n}" for n in range(5))
FEW: list[Step] = [("create", "f", "fsync"), ("create", "d", "disk"), ("create", "m", "memory")]
IN_USE: list[Step] = [("wait", "f"), ("many", "d"), ("many", "m")]


@cache
def image(many: bool) -> Driver:
    """A store with a few topics, or with enough for the journal, closed."""
    driver = Driver(SimulatedDisk(seed=9), seed=9)
    driver.open()
    driver.run(FEW)
    driver.run([("create", topic, "fsync") for topic in MANY] if many else [])
    driver.run(IN_USE)
    driver.close()
    return driver


def in_use(*, many: bool = False) -> Driver:
    """A program with a store in use. Its ledger knows what is in it."""
    made = image(many)
    driver = Driver(made.disk.kill(), made.ledger.copy(), seed=10)
    driver.serial = made.serial
    driver.ledger.settle(driver.open())
    driver.run(IN_USE)
    return driver


def survives(driver: Driver, fates: Sequence[Fate] = (LOST, KEPT)) -> None:
    """Nothing acknowledged is lost: not by a power cut now, not by opening again."""
    for fate in fates:
        after = Driver(driver.disk.crash(fate), driver.ledger)
        after.ledger.check(after.open(), "power")
        after.abandon()
    found = driver.ledger.check(driver.open(), "kill")  # on the same disk: its locks must be free
    driver.ledger.settle(driver._store, found)
    for name, page in driver.ledger.pages.items():
        if page.created:
            driver.wait(name)
    driver.close()


@pytest.mark.parametrize("topic", ["f", "d", "m"])
def test_a_full_disk_keeps_the_records_pending_and_a_later_sync_writes_them(topic: str) -> None:
    driver = in_use()
    driver.run([("append", topic), ("append", topic)])
    driver.disk.fail(Fault(errno.ENOSPC, forever=True))
    for call in (driver._store[topic].flush, driver._store[topic].sync, driver._store.sync):
        with pytest.raises(esker.DiskFull):
            call()
    driver.disk.heal()
    driver.run([("sync", topic)])
    assert len(driver.ledger.pages[topic].pending) == 0
    driver.close()
    with driver.open() as store:
        driver.ledger.check(store, "kill")


def test_a_batch_that_found_no_room_leaves_no_trace_and_its_offsets_are_used_again() -> None:
    driver = in_use()
    topic = driver._store["d"]
    before = topic.end()
    driver.disk.fail(Fault(errno.ENOSPC, forever=True))
    with pytest.raises(esker.DiskFull):
        topic.append_many([b"lost one", b"lost two"])
    driver.disk.heal()
    assert topic.end() == before
    span = topic.append_many([b"kept"])
    assert isinstance(span, esker.Span)
    assert span.first == before
    assert [record.value for record in topic.read(before)] == [b"kept"]
    driver.close()


@pytest.mark.parametrize("at", [1, 2])
def test_after_a_failed_sync_nothing_is_acknowledged_until_the_store_is_opened_again(
    at: int,
) -> None:
    driver = in_use()
    driver.disk.fail(Fault(errno.EIO, at, calls=frozenset({"sync"}), inside=".log"))
    problems = []
    for _ in range(at + 3):
        try:
            driver.wait("f")
        except esker.EskerError as problem:
            problems.append(problem)
            driver.ledger.failed(problem)
    assert len(problems) == 4
    assert all(isinstance(problem, esker.Poisoned) for problem in problems)
    assert "in doubt" in str(problems[0])
    driver.wait("d")  # another shard goes on
    with pytest.raises(esker.Poisoned):
        driver.close()
    survives(driver)


@pytest.mark.parametrize("topic", ["f", "d", "m", "j0"])
def test_what_is_there_after_a_failed_sync_and_an_opening_is_durable(topic: str) -> None:
    """The cache shows records that the disk never got: recovery must write them again."""
    driver = in_use(many=True)
    driver.run([("append", name) for name in MANY])
    driver.run([("sync_all",), ("many", topic)])  # the journal has some of it, and nobody the rest
    driver.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
    with pytest.raises(esker.Poisoned):
        driver.sync(topic)
    with pytest.raises(esker.Poisoned):
        driver.close()
    driver.ledger.check(driver.open(), "kill")
    driver.ledger.settle(driver._store)  # from here on all that is there is promised
    driver.abandon()
    after = Driver(driver.disk.crash(LOST), driver.ledger)
    driver.ledger.check(after.open(), "power")
    after.close()


@pytest.mark.parametrize("topic", ["f", "d", "j0"])
def test_a_disk_that_drops_what_it_could_not_sync_takes_nothing_acknowledged_as_durable(
    topic: str,
) -> None:
    driver = in_use(many=True)
    driver.disk.reverts = True
    driver.run([("sync_all",), ("many", topic), ("many", topic, 3, 900)])
    driver.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
    with pytest.raises(esker.Poisoned):
        driver.sync(topic)
    with pytest.raises(esker.Poisoned):
        driver.close()
    page = driver.ledger.pages[topic]
    driver.ledger.check(driver.open(), "power")  # no power was lost, but as much may be gone
    if topic == "d":
        assert read(driver._store, "d").gaps[-1][1] == page.reached - 1  # exactly what readers saw
    driver.ledger.settle(driver._store)
    reached = page.reached
    driver.wait(topic)
    assert page.written[0][0] >= reached or topic != "d"
    driver.reopen()
    driver.close()


def test_a_failed_sync_of_a_rolled_log_is_not_asked_again() -> None:
    """The sealer syncs the log first. If that fails, no later sync may take its word for it."""
    driver = in_use()
    driver.run([("many", "f", 3, 900), ("many", "f", 3, 900)])
    driver.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
    driver.clock.forward(0)
    while driver._store._context.background.seal_step():  # only the sealer, no tick
        pass
    with pytest.raises(esker.Poisoned):
        driver.wait("f")
    driver.ledger.failed(esker.Poisoned("in doubt"))
    with pytest.raises(esker.EskerError):
        driver.close()
    survives(driver)


def test_a_failed_sync_of_the_journal_leaves_no_later_entry_behind_the_damage() -> None:
    driver = in_use(many=True)
    driver.run([*[("append", topic) for topic in MANY], ("sync_all",)])
    driver.run([("append", topic) for topic in MANY])
    driver.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".journal"))
    with pytest.raises(esker.Poisoned):
        driver.sync_all()
    more = [f"k{n}" for n in range(6)]
    driver.run([("create", topic, "fsync") for topic in more])
    driver.run([("append", topic) for topic in more])
    for topic in more:
        driver._store[topic].flush()
    problems = driver._store._context.committer.make_durable(
        shard for topic in more for shard in driver._store[topic]._shards
    )
    assert not problems
    driver.ledger.synced(*more)
    survives_power_cut(driver)


def test_a_checkpoint_does_not_drop_what_a_poisoned_shard_has_in_the_journal_only() -> None:
    driver = in_use(many=True)
    driver.run([*[("append", topic) for topic in MANY], ("sync_all",)])
    driver.disk.fail(Fault(errno.EIO, calls=frozenset({"sync"}), inside=".log"))
    with pytest.raises(esker.Poisoned):
        driver.wait("j0")
    driver.ledger.failed(esker.Poisoned("in doubt"))
    driver.disk.heal()
    driver._store._context.committer.checkpoint()
    survives_power_cut(driver)


def survives_power_cut(driver: Driver) -> None:
    """Also before the store is closed, for closing may do what the power cut prevents."""
    for fate in (LOST, KEPT):
        after = Driver(driver.disk.crash(fate), driver.ledger)
        after.ledger.check(after.open(), "power")
        after.abandon()
    with pytest.raises(esker.Poisoned):
        driver.close()
    survives(driver)


def test_a_write_that_was_undone_does_not_make_the_name_of_its_log_durable() -> None:
    driver = in_use()
    driver.run([("create", "n", "fsync"), ("many", "n")])
    driver.disk.fail(Fault(errno.ENOSPC, calls=frozenset({"write"}), inside=".log"))
    with pytest.raises(esker.DiskFull) as problem:
        driver.run([("many", "n")])
    driver.ledger.failed(problem.value)
    driver.disk.heal()
    driver.run([("sync", "n")])
    after = Driver(driver.disk.crash(LOST), driver.ledger)
    after.ledger.check(after.open(), "power")
    after.abandon()
    driver.close()


def test_a_record_that_was_refused_is_not_there_after_a_restart_either() -> None:
    driver = in_use()
    for _ in range(150):  # each time the disk keeps another part of it, now and then all
        driver.disk.fail(Fault(errno.EIO, calls=frozenset({"write"}), inside=".log"))
        with pytest.raises(esker.StorageError):
            driver._store["d"].append(b"refused", wait=True)
        driver.disk.heal()
        after = Driver(driver.disk.kill(), Ledger())
        assert b"refused" not in [value for _, value in read(after.open(), "d").records]
        after.abandon()
    driver.close()


@pytest.mark.parametrize("kind", ["EACCES", "short read"])
def test_repair_declares_nothing_lost_that_it_could_not_read_for_a_moment(kind: str) -> None:
    for at in range(1, calls("repair")[kind] + 1):
        program = prepared("repair")
        program.disk.fail(Fault(kind, at))
        program.attempt([("repair",)], ())
        program.disk.heal()
        esker.repair(ROOT, files=program.disk)
        store = program.open()
        there = {record.value for record in store["f"].read(0, gaps="skip")}
        known = {value for _, value in program.ledger.pages["f"].settled}
        assert known - there <= program.rotten, f"{kind} at call {at}"
        store.close()
