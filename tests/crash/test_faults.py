"""Every call fails once, and from some call on every call fails.

A scenario is a few steps on a store that is in use. It is run again and again; the k-th call that
can give an error gives it, for k = 1, 2, 3 and so on, until the scenario comes through untouched.
Whatever happened: nothing but Esker's own exceptions comes out, and when the fault is lifted the
store goes on, or says why not and goes on when it is opened again. Nothing that was acknowledged is
lost, neither by closing and opening nor by a power cut at that very moment.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

import esker
from esker.testing import KEPT, LOST, Fate, Fault, SimulatedDisk
from tests.crash.driver import Driver, Step
from tests.crash.ledger import Ledger, read

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MANY = tuple(f"j{n}" for n in range(5))
FEW: list[Step] = [("create", "f", "fsync"), ("create", "d", "disk"), ("create", "m", "memory")]
IN_USE: list[Step] = [("wait", "f"), ("many", "d"), ("many", "m")]
SCENARIOS: dict[str, list[Step]] = {
    "append": [("append", "f"), ("flush", "f"), ("append", "d"), ("flush", "d"), ("tick",)],
    "append_many": [("many", "f"), ("many", "d"), ("many", "m"), ("many", "f", 2, 100, True)],
    "wait": [("wait", "f"), ("append", "f"), ("wait", "f"), ("wait", "d")],
    "sync": [("append", "f"), ("many", "d"), ("sync", "d"), ("many", "m"), ("sync_all",)],
    "roll": [("many", topic, 3, 900) for topic in ("f", "d", "f", "d")],
    "seal": [("many", "f", 3, 900), ("many", "f", 3, 900), ("many", "f", 3, 900), ("tick",),
             ("wait", "f")],
    "journal": [*[("append", topic) for topic in MANY], ("sync_all",),
                *[("many", topic) for topic in MANY], ("sync_all",), ("wait", "j1")],
    "create": [("create", "n", "disk"), ("wait", "n"), ("create", "k", "fsync"), ("wait", "k")],
    "close": [("many", "f"), ("append", "d"), ("append", "f"), ("close",)],
}  # fmt: skip
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EMFILE": errno.EMFILE}

# After the fault is lifted an append may still be refused, by one of these and no other.
EXCUSES = (esker.Poisoned, esker.StorageError)


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


def prepared(*, many: bool = False) -> Driver:
    """A program with a store in use. Its ledger knows what is in it."""
    made = image(many)
    driver = Driver(made.disk.kill(), made.ledger.copy(), seed=10)
    driver.serial = made.serial
    driver.ledger.settle(driver.open())
    driver.run(IN_USE)
    return driver


def attempt(driver: Driver, steps: list[Step]) -> None:
    """Perform steps; each may fail, by an exception of Esker's, and the next is tried anyway."""
    for step in steps:
        name = step[1] if len(step) > 1 else ""
        if step[0] != "create" and name and name not in driver.ledger.pages:
            continue
        try:
            driver.run([step])
        except esker.EskerError as problem:
            driver.ledger.failed(problem)


def goes_on(driver: Driver) -> None:
    """The fault is lifted: every topic takes records again, or says why not."""
    store = driver.store
    assert store is not None
    if store._context.closed:
        return
    refused = False
    for name, page in driver.ledger.pages.items():
        if not page.created:
            continue
        try:
            driver.wait(name)
        except EXCUSES as problem:
            driver.ledger.failed(problem)
            refused = True
    if not refused:
        driver.sync_all()  # nothing is wrong any more, so nothing may stay unwritten
    try:
        driver.close()
    except EXCUSES:
        assert refused, "everything worked, and then it could not be closed"


def survives(driver: Driver, fates: Sequence[Fate] = (LOST, KEPT)) -> None:
    """Nothing acknowledged is lost: not by a power cut now, not by opening again."""
    for fate in fates:
        after = Driver(driver.disk.crash(fate), driver.ledger)
        after.ledger.check(after.open(), "power")
        after.abandon()
    driver.ledger.check(driver.open(), "kill")  # on the same disk: its locks must be free
    driver.ledger.settle(driver._store)
    for name, page in driver.ledger.pages.items():
        if page.created:
            driver.wait(name)
    driver.close()


def faults(number: int, *, forever: bool, stride: int = 1, least: int = 0) -> Iterator[Fault]:
    """The fault at the first call, at the next, and so on, until one finds no call to fail."""
    for injected, at in enumerate(range(1, 2000, stride)):
        fault = Fault(number, at, forever=forever)
        yield fault
        if not fault.hits:
            assert injected >= least, f"only {injected} calls could give this error"
            return
    raise AssertionError("the scenario does not end")


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_while_writing_costs_nothing_acknowledged(
    scenario: str, error: str, forever: bool
) -> None:
    least = 3 if error == "EIO" else 0  # some errors cannot happen in some scenarios
    for fault in faults(ERRORS[error], forever=forever, least=least):
        driver = prepared(many=scenario == "journal")
        driver.disk.fail(fault)
        try:
            attempt(driver, SCENARIOS[scenario])
            driver.disk.heal()
            goes_on(driver)
            survives(driver, [LOST if fault.at % 2 else KEPT])
        except BaseException as problem:
            problem.add_note(f"call {fault.at} of those that can give {error}")
            raise


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("left", ["closed", "killed", "without power"])
def test_a_fault_while_opening_costs_nothing_acknowledged(
    left: str, error: str, forever: bool
) -> None:
    before = prepared(many=True)
    if left == "closed":
        before.close()
    else:
        before.run([*SCENARIOS["journal"], *SCENARIOS["seal"][:-2], ("append", "d")])
        before.abandon()
    stride = 3 if forever else 1
    least = {"closed": 20, "killed": 200, "without power": 200}[left] // stride
    least = least if error == "EIO" else 0
    for fault in faults(ERRORS[error], forever=forever, stride=stride, least=least):
        disk = before.disk.crash(3) if left == "without power" else before.disk.kill()
        driver = Driver(disk, before.ledger.copy())
        disk.fail(fault)
        try:
            store = driver.open()
        except esker.EskerError:
            disk.heal()
            store = driver.open()
        disk.heal()
        driver.ledger.check(store, "power" if left == "without power" else "kill")
        driver.ledger.settle(store)
        if fault.at % 5 == 0:
            goes_on(driver)
            survives(driver, [LOST])
        else:
            driver.abandon()


# ---- what is promised in so many words -------------------------------------------------------


@pytest.mark.parametrize("topic", ["f", "d", "m"])
def test_a_full_disk_keeps_the_records_pending_and_a_later_sync_writes_them(topic: str) -> None:
    driver = prepared()
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
    driver = prepared()
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
    driver = prepared()
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
    driver = prepared(many=True)
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
    driver = prepared(many=True)
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
    driver = prepared()
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
    driver = prepared(many=True)
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
    driver = prepared(many=True)
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
    driver = prepared()
    driver.run([("create", "n", "fsync"), ("many", "n")])
    driver.disk.fail(Fault(errno.ENOSPC, calls=frozenset({"write"}), inside=".log"))
    attempt(driver, [("many", "n")])
    driver.disk.heal()
    driver.run([("sync", "n")])
    after = Driver(driver.disk.crash(LOST), driver.ledger)
    after.ledger.check(after.open(), "power")
    after.abandon()
    driver.close()


def test_a_record_that_was_refused_is_not_there_after_a_restart_either() -> None:
    driver = prepared()
    for _ in range(150):  # each time the disk keeps another part of it, now and then all
        driver.disk.fail(Fault(errno.EIO, calls=frozenset({"write"}), inside=".log"))
        with pytest.raises(esker.StorageError):
            driver._store["d"].append(b"refused", wait=True)
        driver.disk.heal()
        after = Driver(driver.disk.kill(), Ledger())
        assert b"refused" not in [value for _, value in read(after.open(), "d").records]
        after.abandon()
    driver.close()
