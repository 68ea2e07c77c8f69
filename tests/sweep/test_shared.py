"""Damage to what readers and workers share: pages of cursors, members, routes, logs of leases.

The sweep of records (test_sweep.py) asks whether a record is lost. None of these files holds one,
so here other things must not happen, whatever is done to them:

    a record changes, or is not there              they are no business of readers
    a cursor is further than it was                records would be left out
    a cursor is further back, and nobody says so   unless the page is one that was there before
    a job that nobody has done is not handed out
    a route leaves something out
    an error that does not say where it is

Each file gets the damages of damages.py, sampled where a page is mostly empty, on a store that was
closed and on one whose process was killed. One of so many is also held against verify, and
repaired, which must make the store whole.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, NamedTuple

import pytest

import esker
from esker.testing import SimulatedDisk
from tests.helpers import abandon
from tests.suites import SEED, Suite, Tallies, scaled
from tests.sweep.damages import Damage
from tests.sweep.damages import _files as names
from tests.sweep.damages import _sectors as sectors
from tests.sweep.judge import watchdog
from tests.sweep.shapes import ROOT, Platter, Shape, contents, opened
from tests.sweep.shapes import _on_platter as on_platter

pytestmark = [pytest.mark.crash, pytest.mark.suite]

KINDS: Final = ("offsets", "members", "routes", "leases-", "settings")
SHAPES: Final = ("closed", "killed")
EACH: Final = 130  # damages of a kind of file, in a shape
VERIFIED: Final = 9  # one of so many is also held against verify, and repaired
UNTOLD: Final = ("delete", "empty", "older", "stale", "rename", "zero", "cut", "folder")
"""After these a page may be one that was there some time before, or was just being made."""


class Shared(NamedTuple):
    """A store that is read and worked on, and the truth about it."""

    shape: Shape
    cursors: dict[tuple[str, str], dict[int, int]]  # topic, group: by shard
    undone: frozenset[bytes]  # jobs that nobody has acked
    jobs: frozenset[bytes]


@cache
def shared(name: str) -> Shared:
    disk = SimulatedDisk(11)
    store = opened(disk)
    store.create("a", durability="fsync", shards=2)
    for number in range(12):
        store["a"].append(b"%d" % number, key=b"k%d" % (number % 5), wait=True)
    groups = [store["a"].group("one"), store["a"].group("two", start=-2)]
    queue = store.queue("jobs", lease="1h", durability="fsync", max_deliveries=2)
    queue.put_many([b"job %d" % number for number in range(8)])
    store.route("a", "b")
    store.route("a", "c", exactly_once=True, where='key != "k0"')
    _acked(groups[0], 2)
    store.tick()
    store.sync()
    before = disk.kill()
    done = queue.claim(3)
    queue.ack(done[:2])
    _acked(groups[0], 1)
    _acked(groups[1], 1)
    store["a"].append_many([b"more", b"and more"], wait=True)
    store.tick()
    store.sync()
    for group in groups:
        group.sync()
    truth, gaps = contents(store)
    cursors = {("a", group.name): group.cursors() for group in groups}
    if name == "closed":
        store.close()
    else:
        abandon(store)
    jobs = frozenset(record.value for record in truth["jobs", 0].values())
    shape = Shape(
        name, on_platter(disk.kill()), on_platter(before), truth, gaps, {}, {}, frozenset(),
        name == "killed", {}, frozenset(),
    )  # fmt: skip
    return Shared(shape, cursors, jobs - {job.value for job in done[:2]}, jobs)


def _acked(group: esker.Group, count: int) -> None:
    """Ack some of what is there, and leave the rest."""
    for batch in group.poll(max_records=count):
        batch.ack()
        break
    group.rewind()


def paths_of(of: Shared, kind: str) -> list[str]:
    """The files of a kind."""
    files = sorted(of.shape.disk.files)
    return [p for p in files if p.rpartition("/")[2].rstrip("0123456789") == kind]


def damages_of(of: Shared, kind: str, chance: random.Random) -> list[Damage]:
    """A share of all damages, mostly where a file is not empty."""
    files: list[Damage] = []
    bits: list[Damage] = []
    for path in paths_of(of, kind):
        data = of.shape.disk.files[path]
        files += [*sectors(of.shape, path), *names(of.shape, path)]
        files += [Damage(how, path, 8) for how in ("zeros_behind", "junk_behind")]
        lines = [at for at in range(0, len(data), 64) if any(data[at : at + 64])]
        for at in (at for line in lines for at in range(line, min(line + 64, len(data)))):
            bits += Damage("flip", path, at, at * 5 % 8), Damage("cut", path, at)
    some = chance.sample(files, min(len(files), scaled(EACH) // 3))
    return some + chance.choices(bits, k=scaled(EACH) - len(some))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_damage_to_what_is_shared_leaves_nothing_out(name: str, kind: str, tally: Tallies) -> None:
    suite = tally("shared damages", lots=len(KINDS) * len(SHAPES))
    of, chance = shared(name), random.Random(f"shared {SEED} {name} {kind}")
    assert paths_of(of, kind), "no such file"
    with watchdog():
        for number, damage in enumerate(damages_of(of, kind, chance)):
            disk = of.shape.disk.copy()
            damage.do(disk, of.shape)
            try:
                judge(of, disk.copy(), damage, suite)
                if number % VERIFIED == 0:
                    repaired(of, disk, damage, suite)
            except BaseException as problem:
                problem.add_note(f"shape {name!r}, damage: {damage} (seed {SEED})")
                raise
            suite.count += 1


def test_without_damage_all_is_as_it_was() -> None:
    for name in SHAPES:
        of = shared(name)
        with said() as told, opened(of.shape.disk.copy()) as store:
            assert contents(store)[0] == of.shape.truth
            for (topic, group), cursors in of.cursors.items():
                assert store[topic].group(group).cursors() == cursors
            assert {status.state for status in store.routes()} <= {"running", "waiting"}
        assert [line for line in told if "damaged" in line] == []


# ---- judging ---------------------------------------------------------------------------------


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def said() -> Iterator[list[str]]:
    """What Esker logs meanwhile."""
    handler, log = Heard(), logging.getLogger("esker")
    before = log.disabled, log.propagate
    log.disabled, log.propagate = False, False  # thousands of lines, for nobody else
    log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)
        log.disabled, log.propagate = before


def says_where(problem: esker.EskerError, damage: Damage) -> None:
    assert damage.path in str(problem), f"does not say where: {problem}"


def judge(of: Shared, disk: Platter, damage: Damage, suite: Suite) -> None:
    with said() as told:
        try:
            store = opened(disk)
        except esker.EskerError as problem:
            says_where(problem, damage)
            suite.also["refused"] += 1
            return
        with store:
            found, gaps = contents(store)
            assert (found, gaps) == (of.shape.truth, of.shape.gaps)
            for (topic, name), cursors in of.cursors.items():
                judge_group(of, store, topic, name, cursors, damage, told, suite)
            judge_routes(of, store, damage, suite)
            judge_queue(of, store, damage, suite)


def judge_group(
    of: Shared, store: esker.Store, topic: str, name: str, cursors: dict[int, int],
    damage: Damage, told: list[str], suite: Suite,
) -> None:  # fmt: skip
    try:
        with store[topic].group(name) as group:
            now = group.cursors()
            came: dict[int, list[int]] = {shard: [] for shard in cursors}
            for batch in group.poll():
                came[batch.shard] += batch.offsets.to_pylist()
            for shard, cursor in cursors.items():
                assert now[shard] <= cursor, f"{name}: the cursor of shard {shard} went ahead"
                offsets = [o for o in of.shape.truth[topic, shard] if o >= now[shard]]
                assert came[shard] == offsets, f"{name}: not all of shard {shard} came"
                if now[shard] < cursor:
                    suite.also["fell back"] += 1
                    assert damage.kind in UNTOLD or any(damage.path in line for line in told), (
                        f"{name}: {now[shard]} instead of {cursor} in shard {shard}, in silence"
                    )
    except (esker.Corruption, esker.StorageError, esker.GroupNotFound) as problem:
        says_where(problem, damage)
        suite.also["told"] += 1


def judge_routes(of: Shared, store: esker.Store, damage: Damage, suite: Suite) -> None:
    try:
        known = {status.destination: status for status in store.routes()}
        for _ in range(4):
            store.tick()
        after = {status.destination: status for status in store.routes()}
    except esker.EskerError as problem:
        says_where(problem, damage)
        suite.also["told"] += 1
        return
    source = {r.value for shard in range(2) for r in of.shape.truth["a", shard].values()}
    lost = damage.kind in ("delete", "rename", "folder", "empty") and "routes" in damage.path
    assert lost or known.keys() == {"b", "c"}, "a route is gone, and nobody says so"
    for name, status in after.items():
        if status.state == "stopped":
            assert damage.path in status.reason, f"does not say where: {status.reason}"
            suite.also["stopped"] += 1
            continue
        there = [record.value for record in store[name].read()]
        wanted = source if name == "b" else {
            r.value for shard in range(2) for r in of.shape.truth["a", shard].values()
            if r.key not in (None, b"k0")
        }  # fmt: skip
        assert set(there) == wanted, f"{name} has not what it should have"
        if name == "c":
            assert len(there) == len(wanted), "exactly once, and something is there twice"


def judge_queue(of: Shared, store: esker.Store, damage: Damage, suite: Suite) -> None:
    try:
        queue = store.queue("jobs")
        store._context.clock.forward(7200)  # type: ignore[attr-defined]  # leases run out
        found: set[bytes] = set()
        while jobs := queue.claim(20):
            found |= {job.value for job in jobs}
            queue.ack(jobs)
        found |= {job.value for job in queue.dead.peek(20)}
    except esker.EskerError as problem:
        says_where(problem, damage)
        suite.also["told"] += 1
        return
    assert of.undone <= found <= of.jobs, f"{of.undone - found} are never handed out"


def repaired(of: Shared, disk: Platter, damage: Damage, suite: Suite) -> None:
    """Whatever it is, verify and repair can be run, and afterwards nothing is wrong."""
    esker.verify(ROOT, files=disk.copy())
    done = esker.repair(ROOT, files=disk)
    if damage.kind == "folder":  # what stands in the way goes first, then the rest is seen
        done = esker.repair(ROOT, files=disk)
    suite.also["repaired"] += 1
    assert done.after is not None
    left = [problem for problem in done.after.problems if problem.severity != "warning"]
    assert left == [], f"not whole after a repair: {done}"
    judge(of, disk, damage._replace(kind="delete"), suite)
