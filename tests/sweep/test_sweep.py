"""Everything that can happen to a file, on every kind of file: nothing is ever lost in silence.

Each store of shapes.py gets every damage of damages.py, one at a time, and a share of two or three
at once; judge.py says what may come out. Every damage is opened in one of the two modes (each byte
is damaged in several ways, so both see it), those that are no matter of single bytes in both.

Of each so many damages one is also held against verify, which must name it; one is repaired, which
must make the store whole and keep the evidence; and one is written to, which must not make it
worse.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import cache
from typing import Any, Final

import pytest

import esker
from esker.format.state import SLOT_POSITIONS, State, decode_slot
from tests.suites import SCALE, SEED, Suite, Tallies, scaled
from tests.sweep.damages import Damage, all_damages
from tests.sweep.judge import (
    changes,
    changes_of,
    check_evidence,
    deletions_forgotten,
    look,
    may_be_lost,
    page_of,
    read,
    watchdog,
)
from tests.sweep.shapes import MAKERS, ROOT, Platter, Shape, opened, shape

pytestmark = [pytest.mark.crash, pytest.mark.suite]

LOTS: Final = 30
BY_JOURNAL: Final = ("journalled", "redone")  # other files are swept where opening costs less
SEVERAL: Final = 650  # of several damages at once, in each lot
VERIFIED, REPAIRED, WRITTEN = 41, 331, 67  # one of so many is also held against these
NEW: Final = b"written after the damage"
UNSAID: Final = ("cut", "identical")
SILENT: Final = ("counters", "lock")  # what verify says nothing of, see docs/repair.md


@cache
def _singles() -> list[tuple[str, Damage]]:
    """Every damage of every shape."""
    found: list[tuple[str, Damage]] = []
    for name in MAKERS:
        of, paths = shape(name), None
        if name in BY_JOURNAL:
            paths = [path for path in of.disk.files if path.endswith(".journal")]
        elif name == "moved":
            paths = [p for p in sorted(of.disk.files) if "/00000002-" in p]  # a stub, its segment
        elif of.deleted:
            paths = [p for p in sorted(of.disk.files) if p.endswith("/state") or "/deletions-" in p]
        found += ((name, damage) for damage in all_damages(of, paths))
    return found


def _lot(lot: int, chance: random.Random) -> Iterator[tuple[Shape, list[Damage]]]:
    """A share of the single damages, and some that come together."""
    share = _singles()[lot::LOTS]
    for name, damage in share if SCALE >= 1 else chance.sample(share, scaled(len(share))):
        yield shape(name), [damage]
    several = SEVERAL if SCALE <= 1 else SEVERAL + len(share) - round(len(share) / SCALE)
    for _ in range(scaled(several)):
        name, first = chance.choice(share)
        more = [damage for other, damage in chance.choices(share, k=12) if other == name]
        yield shape(name), [first, *more[:2]]


@pytest.mark.parametrize("lot", range(LOTS))
def test_no_damage_is_silent(lot: int, tally: Tallies) -> None:
    suite = tally("corruptions", lots=LOTS)
    chance, dice = (random.Random(f"{what} {SEED} {lot}") for what in ("sweep", "dice"))
    with watchdog():
        for number, (of, damages) in enumerate(_lot(lot, chance)):
            try:
                _judge(of, damages, number, suite, dice)
            except BaseException as problem:
                told = "; ".join(map(str, damages))
                problem.add_note(f"shape {of.name!r}, damage: {told} (seed {SEED}, lot {lot})")
                raise
            suite.count += 1


def _judge(
    of: Shape, damages: list[Damage], number: int, suite: Suite, dice: random.Random
) -> None:
    after = _damaged(of, damages)
    bytewise = len(damages) > 1 or damages[0].kind in ("flip", "cut")
    modes = ("rw", "r")[number % 2 :][:1] if bytewise else ("rw", "r")
    for mode in ("rw",) if of.name in BY_JOURNAL else modes:
        suite.also[look(of, after.copy(), mode)] += 1
    # What was never proven to be durable can go without a trace, and so can half of a record
    # behind the last whole one: a crash may have taken it.
    torn = of.unclosed and all(
        each.kind == "cut" and each.path.endswith(".log") for each in damages
    )
    if dice.randrange(VERIFIED) == 0 and not (torn and look(of, after.copy(), "r") in UNSAID):
        _is_named(of, after.copy(), suite)
    if dice.randrange(REPAIRED) == 0:
        _can_be_repaired(of, after.copy(), suite)
    if dice.randrange(WRITTEN) == 0:
        _can_be_written_to(of, after.copy(), suite)


def _damaged(of: Shape, damages: list[Damage]) -> Platter:
    disk = of.disk.copy()
    for damage in damages:
        try:
            damage.do(disk, of)
        except (KeyError, IndexError):  # what it would damage is gone already
            continue
    return disk


# ---- verify, repair, write -------------------------------------------------------------------


def _is_named(of: Shape, disk: Platter, suite: Suite) -> None:
    changed = [p for p in changes(of, disk) if not p.endswith(SILENT) and "/quarantine/" not in p]
    changed = [path for path in changed if not _leaves_no_trace(of, disk, path)]
    found = esker.verify(ROOT, files=disk)
    suite.also["verified"] += 1
    before = _known_problems(of.name)
    new = [p for p in found.problems if (p.kind, p.path, p.position) not in before]
    if changed and any(_matters(of, disk, path) for path in changed):
        assert new or not found.ok, f"verify says nothing: {found}"


def _leaves_no_trace(of: Shape, disk: Platter, path: str) -> bool:
    """A journal that is gone, or as it was before: nothing else is synced together with it. And a
    catalog that a newer one has replaced."""
    if path.endswith(".journal"):
        now, before = disk.files.get(path), of.older.files.get(path, b"")
        return now is None or bytes(now).rstrip(b"\0") == bytes(before).rstrip(b"\0")
    catalogs = sorted(p for p in of.disk.files if "/catalog-" in p)
    return path in catalogs[:-1] and path not in disk.files and catalogs[-1] in disk.files


@cache
def _known_problems(name: str) -> set[Any]:
    """What verify has to say of a shape without any damage: that it was not closed, say."""
    found = esker.verify(ROOT, files=shape(name).disk.copy())
    return {(p.kind, p.path, p.position) for p in found.problems}


def _matters(of: Shape, disk: Platter, path: str) -> bool:
    """Whether something of a file is gone or different, beyond zeros at its end.

    An empty state page in a shard without segments is also what a death before its first sync
    leaves, so nobody can tell the one from the other.
    """
    if path.endswith("/state") and _same_slots(of, disk, path):
        return False
    folder = path.removesuffix("state")
    if path.endswith("/state") and not any(disk.files.get(path, b"")):
        return any(p.startswith(folder) and p.endswith((".log", ".seg")) for p in of.disk.files)
    before, after = of.disk.files.get(path, b""), disk.files.get(path, b"")
    if "/deletions-" in path and before and of.pending:  # what is behind it counts for nobody
        page = page_of(of, of.disk.files, next(iter(of.truth)))
        assert page is not None
        before, after = before[: page.marks_end], after[: page.marks_end]
    return bytes(before).rstrip(b"\0") != bytes(after).rstrip(b"\0")


def _same_slots(of: Shape, disk: Platter, path: str) -> bool:
    """Whether a state page is as good as before: the slot is gone that was written last, but the
    other one says the same; or the two have changed places."""
    page = bytes(disk.files.get(path, b""))
    slots = [decode_slot(page[at : at + 512]) for at in SLOT_POSITIONS]
    shards = [shard for shard in of.truth if path.startswith(of.folders()[shard] + "/")]
    if any(page[512:4096]) or len(page) > 4608 or not shards:
        return False
    turns = [slot.generation for slot in slots if isinstance(slot, State)]
    now, before = (page_of(of, each.files, shards[0]) for each in (disk, of.disk))
    same = now is not None and before is not None and now[2:] == before[2:]
    return same and len(turns) == 2 and abs(turns[0] - turns[1]) == 1


def _can_be_repaired(of: Shape, disk: Platter, suite: Suite) -> None:
    """A repair makes the store whole, once and for all, and what was whole before stays on disk."""
    before = {path: bytes(data) for path, data in disk.files.items()}
    suite.also["repaired"] += 1
    try:
        done = esker.repair(ROOT, files=disk)
    except (esker.NotAStore, esker.UnsafePath):
        return
    assert done.after is not None
    left = [problem for problem in done.after.problems if problem.kind != "counters"]
    assert left == [], f"not whole after a repair: {done}"
    assert esker.repair(ROOT, files=disk).actions == [], "a second repair finds more to do"
    check_evidence(of, before, disk)
    with opened(disk) as store:
        for shard in of.truth:
            got = read(of, store, shard)
            assert not got.blind or isinstance(got.blind[0], esker.TopicNotFound), got.blind
            told = any("may be back" in action.reason for action in done.actions)
            assert not got.back or told or deletions_forgotten(of, before, shard), got.back


def _can_be_written_to(of: Shape, disk: Platter, suite: Suite) -> None:
    """Whoever writes on gets an offset that nobody had, and what could be read still can be."""
    before = {path: bytes(data) for path, data in disk.files.items()}
    suite.also["written to"] += 1
    wrote: dict[Any, int] = {}
    could: dict[Any, set[int]] = {}
    refused = False  # to readers, because what was deleted is not known
    try:
        with opened(disk) as store:
            for shard, records in of.truth.items():
                if not records:
                    continue
                got = read(of, store, shard)
                if got.blind and isinstance(got.blind[0], esker.TopicNotFound):
                    continue  # nothing names it any more; another one of that name is new
                could[shard] = got.lost
                refused = refused or (bool(got.blind) and bool(of.deleted))
                with suppress(esker.EskerError):
                    wrote[shard] = int(store[shard[0]].append(NEW, wait=True))
    except esker.EskerError:
        pass  # told; see `look`
    if refused and wrote:
        esker.repair(ROOT, files=disk)
    with opened(disk, "r") if wrote else nullcontext() as store:
        for shard, offset in wrote.items():
            cut = may_be_lost(of, before, changes_of(of, before), shard)[1]
            again = offset in of.truth[shard] and (cut is None or offset < cut)
            assert not again, f"{shard}: {offset} was issued before"
            record = store[shard[0]][offset]
            assert record.value == NEW
            truth = {**of.truth, shard: {**of.truth[shard], offset: record}}
            got = read(of._replace(truth=truth), store, shard)
            assert got.lost <= could[shard], f"{shard}: writing has cost {got.lost - could[shard]}"
