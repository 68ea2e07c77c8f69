"""A sync fails: nothing more is acknowledged, and nothing that was acknowledged is lost.

After a failed fsync the kernel may have dropped the pages and calls them clean; what it then shows
is new or old, by the file system. So every sync of every scenario fails once, on a disk that goes
on showing what was written and on one that shows what was there before. Then the power goes, or the
process dies, or the program goes on and closes the store.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import cache
from typing import Literal

import pytest

import esker
from esker.testing import KEPT, LOST, Fate, Fault
from tests.crash.ledger import Death, read
from tests.crash.scenarios import (
    SCENARIOS,
    Program,
    few_shards_again,
    nothing_is_left,
    prepared,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _limit_of_the_journal() -> Iterator[None]:
    with few_shards_again():
        yield


SYNCS = frozenset({"sync", "sync_dir"})
WRITING = [
    name
    for name, scenario in SCENARIOS.items()
    if scenario.left == "open" and name not in ("shards", "arrow over segments")
]
After = Literal["power cut", "restart", "going on"]


@cache
def syncs(scenario: str) -> int:
    program = prepared(scenario)
    fault = program.disk.fail(Fault(errno.EIO, 1 << 30, calls=SYNCS))
    program.attempt(SCENARIOS[scenario].steps, ())
    program.disk.heal()
    program.abandon()
    return fault.seen


def failed(scenario: str, at: int, *, reverts: bool) -> tuple[Program, Fault]:
    """A program whose at-th sync has failed."""
    program = prepared(scenario)
    program.disk.reverts = reverts
    fault = program.disk.fail(Fault(errno.EIO, at, calls=SYNCS))
    program.attempt(SCENARIOS[scenario].steps, ())
    program.disk.heal()
    return program, fault


def doubted(program: Program) -> set[str]:
    """The topics that are poisoned."""
    if program.closed:
        return set()
    return {shard.entry.name for shard in program._store._context.shards if shard.in_doubt}


@pytest.mark.parametrize("reverts", [False, True], ids=["shows new", "shows old"])
@pytest.mark.parametrize("scenario", WRITING)
def test_what_was_acknowledged_outlives_a_failed_sync(scenario: str, reverts: bool) -> None:
    afters: tuple[After, ...] = ("power cut", "restart", "going on")
    for at in range(1, syncs(scenario) + 1):
        for after in afters:
            program, fault = failed(scenario, at, reverts=reverts)
            try:
                ends(program, after, reverts=reverts, at=at)
            except BaseException as problem:
                problem.add_note(f"sync {at} of {scenario!r}, then {after}: {fault.struck}")
                raise


def ends(program: Program, after: After, *, reverts: bool, at: int) -> None:
    death: Death = "power" if reverts or after == "power cut" else "kill"
    poisoned = doubted(program)
    if after == "power cut":
        for fate in (LOST, KEPT, Fate(at)):
            program.elsewhere(program.disk.crash(fate), death)
        program.abandon()
        return
    if after == "restart":
        program.abandon()
        program.disk = program.disk.kill()
    else:
        refuses(program, poisoned)
    program.store = None
    program.check(program.open(), death, settles=True)
    ledger = program.ledger.copy()
    proven = Program(program.disk.crash(LOST), ledger)  # what is there now was written once more
    proven.check(proven.open(), "power")
    proven.abandon()
    for page in program.ledger.pages.values():
        reached = page.reached
        program.resume(page)
        if page.durability == "disk":  # in class fsync nobody has seen what was not durable
            assert page.written[0][0] >= reached, f"I6: {reached} was issued before"
    program.close()
    nothing_is_left(program.disk)


def refuses(program: Program, poisoned: set[str]) -> None:
    """A poisoned topic takes nothing, what was visible stays readable, the others go on."""
    if program.closed:
        return
    for page in program.ledger.pages.values():
        if not page.created or page.dropping or page.durability == "ephemeral":
            continue
        if page.name not in poisoned:
            if program.unsure is not None:  # a part of it may be there: behind that it goes on
                program._store[page.name].sync()
                page.synced()
                program.look(page, program._store)
            program.wait(page.name)
            continue
        topic = program._store[page.name]
        before = topic.end()
        for call in (
            lambda topic=topic: topic.append(b"refused", wait=True),
            lambda topic=topic: topic.append_many([b"refused"]),
            topic.sync,
        ):
            with pytest.raises(esker.Poisoned, match="in doubt"):
                call()
        assert topic.end() == before
        if not program.disk.reverts:
            assert b"refused" not in [value for _, value in read(program._store, page.name).records]
    program.still_unsure()
    if poisoned:
        with pytest.raises(esker.Poisoned):
            program.close()
    else:
        program.close()


def test_a_sync_of_a_log_or_of_its_name_poisons_and_that_of_other_files_does_not() -> None:
    seen: set[tuple[str, bool]] = set()
    for scenario in ("append and wait, fsync", "first append", "journal", "create", "sync"):
        for at in range(1, syncs(scenario) + 1):
            program, fault = failed(scenario, at, reverts=False)
            call, path = fault.struck
            kind = path.rpartition(".")[2] if call == "sync" else call
            seen.add((kind if kind in ("log", "journal", "sync_dir") else "other",
                      bool(doubted(program))))  # fmt: skip
            program.abandon()
    assert ("log", True) in seen
    assert ("journal", True) in seen
    assert ("log", False) not in seen
    assert ("other", True) not in seen
