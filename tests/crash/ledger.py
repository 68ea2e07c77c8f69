"""The oracle: what was promised, and whether a store that was opened again keeps it.

A `Ledger` is told about every call before it is made and after it returned. It knows nothing of
the engine: it has the values, the offsets that calls returned, and what the documentation says a
returned call is worth. `check` reads a store through the public API and compares. The numbers of
the invariants are those of docs/recovery.md:

    I1  acknowledged as durable: there, unchanged, at its offset, whatever happened
    I2  written: there after the death of the process
    I3  no hole: what is missing is a suffix, or is reported as a Gap
    I4  nothing is there that was not submitted
    I5  offsets rise, in the order of submission
    I6  class disk: no offset that was acknowledged as written is given to another record
    I7  a batch is there as a whole or not at all
    I8  what was deleted does not come back, and nothing else goes with it; a deletion that was not
        acknowledged has happened wholly or not at all, and nobody is told of a gap for it
    I9  what was evicted does not come back, is one exact Gap, and the cap is left
    I21 every loss is named: a new Gap is in the report of the recovery, and the other way round

`look_at` reads a store into an `Outcome`, which holds no store any more; one outcome can be held
against any number of ledgers. `judge` demands every promise of it. `judge_weakly` demands what is
left of them when the disk itself lies or rots: what is there is right, and what is missing between
is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import esker
from esker.format.offsets import Owner
from esker.storage.offsets import OffsetsFile

Death = Literal["kill", "power"]

# Crashes alone never leave what these labels stand for.
NOT_BY_A_CRASH = {
    "corrupt_frame", "corrupt_header", "corrupt_journal", "corrupt_sealed", "missing_segment",
    "damaged_catalog", "stranger", "unrecovered", "corrupt_commit",
}  # fmt: skip


class Found(NamedTuple):
    """A topic as a reader sees it, from the first offset that was not deleted on."""

    records: list[tuple[int, bytes]]
    gaps: list[tuple[int, int, str]]
    end: int
    first: int = 0
    erased: frozenset[int] = frozenset()  # neither there nor in a gap: deleted by tag


class Outcome(NamedTuple):
    """A store that was just opened: what it says, and what is in it."""

    labels: frozenset[str]
    report: str
    lost: frozenset[tuple[str, int, int]]  # topic, first and last offset of each `lost_tail`
    found: dict[str, Found]
    cursors: Mapping[str, int] = MappingProxyType({})  # of the group g, by topic


class Page:
    """What was promised about one topic."""

    def __init__(self, name: str, durability: str, cap: int = 0) -> None:
        self.name = name
        self.durability = durability
        self.cap = cap  # how many offsets retention has to leave; 0: it may take none
        self.gone = 0  # retention has taken what is below
        self.created = False
        self.settled: list[tuple[int, bytes]] = []  # survived the last opening: durable for good
        self.gaps: list[tuple[int, int, str]] = []  # reported by then: there for good
        self.written: list[tuple[int, bytes]] = []
        self.durable = 0  # how many of the written ones are durable
        self.pending: list[tuple[int, bytes]] = []  # buffered: an offset and no promise
        self.doubt: list[bytes] = []  # of the call that is being made
        self.maybe: list[bytes] = []  # of calls after which nobody knows
        self.batches: list[frozenset[bytes]] = []
        self.reached = 0  # behind every offset that was ever acknowledged as written
        self.floor = 0  # what is below was deleted
        self.falling = 0  # what is below is being deleted
        self.dropping = False  # the topic as a whole is being deleted
        self.erased: dict[int, bytes] = {}  # deleted by tag
        self.erasing: list[dict[int, bytes]] = []  # perhaps: each wholly or not at all
        self.grouped = False  # there is a group g, for good
        self.acked = (0, 0)  # how far it has come at the least, and at the most

    def flushed(self) -> None:
        self.written += self.pending
        self.pending = []
        if self.written:
            self.reached = max(self.reached, self.written[-1][0] + 1)

    def synced(self) -> None:
        self.flushed()
        self.durable = len(self.written)

    def forgotten(self) -> None:
        """What is below the new floor is not promised any more."""
        self.synced()
        self.floor, self.falling = self.falling, 0

    def copy(self) -> Page:
        other = Page(self.name, self.durability, self.cap)
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, (list, dict)) else value)
        return other

    def there(self) -> list[tuple[int, bytes]]:
        """What is promised, without what was deleted by tag."""
        return [item for item in self.settled + self.written if item[0] not in self.erased]

    def settle_erased(self, found: Found) -> None:
        """What was perhaps deleted is deleted, or is not; from then on it stays so."""
        for group in self.erasing:
            self.erased |= {at: value for at, value in group.items() if at in found.erased}
        self.erasing = []


class Ledger:
    """All topics of a store."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.perhaps: set[str] = set()  # topics whose creation failed
        self.together: list[list[tuple[Page, set[bytes]]]] = []  # batches over several topics
        self.version = 0  # how many promises were made
        self._strength = (-1, 0)

    def copy(self) -> Ledger:
        other = Ledger()
        other.version, other.perhaps = self.version, set(self.perhaps)
        other.pages = {name: page.copy() for name, page in self.pages.items()}
        return other

    def strength(self) -> int:
        """Equal for ledgers that promise the same."""
        if self._strength[0] != self.version:
            promises = [
                (
                    p.name,
                    p.created,
                    p.durable,
                    p.reached,
                    p.floor,
                    p.gone,
                    *p.settled,
                    *p.written,
                    *p.gaps,
                    *p.erased,
                    p.grouped,
                    p.acked,
                )
                for p in self.pages.values()
            ]
            self._strength = (self.version, hash(tuple(promises)))
        return self._strength[1]

    # -- told by the driver --

    def creating(self, name: str, durability: str, cap: int = 0) -> None:
        self.pages[name] = Page(name, durability, cap)

    def evicted(self, name: str, before: int) -> None:
        """A reader was told that what is below is gone: then it stays so."""
        page = self.pages[name]
        if before > page.gone:
            page.gone = before
            self.version += 1

    def forget(self, name: str) -> None:
        """Its creation failed, perhaps only after it was there."""
        del self.pages[name]
        self.perhaps.add(name)

    def created(self, name: str) -> None:
        self.pages[name].created = True
        self.version += 1

    def trying(self, name: str, values: list[bytes], *, atomic: bool = False) -> None:
        page = self.pages[name]
        page.doubt = values
        if atomic:
            page.batches.append(frozenset(values))

    def trying_all(self, values: dict[str, list[bytes]]) -> None:
        """A batch over several topics: in all of them, or in none."""
        for name, of_it in values.items():
            self.trying(name, of_it, atomic=True)
        self.together.append([(self.pages[name], set(of_it)) for name, of_it in values.items()])

    def buffered(self, name: str, offset: int) -> None:
        page = self.pages[name]
        page.pending += [(offset, value) for value in page.doubt]
        page.doubt = []

    def wrote(self, name: str, first: int, *, durable: bool) -> None:
        """The values in doubt were written at `first` and on, behind what was pending."""
        page = self.pages[name]
        page.flushed()
        page.written += list(enumerate(page.doubt, first))
        page.doubt = []
        page.flushed()
        if durable:
            page.synced()
        self.version += 1

    def flushed(self, name: str) -> None:
        self.pages[name].flushed()
        self.version += 1

    def synced(self, *names: str) -> None:
        for name in names or self.pages:
            if self.pages[name].created:
                self.pages[name].synced()
        self.version += 1

    def forgetting(self, name: str, before: int) -> None:
        self.pages[name].falling = before

    def forgotten(self, name: str) -> None:
        self.pages[name].forgotten()
        self.version += 1

    def erasing(self, name: str, matches: dict[int, bytes]) -> None:
        """These, each at its offset, are being deleted by tag."""
        self.pages[name].erasing.append(matches)

    def erased(self, name: str) -> None:
        """The last of these calls has returned."""
        page = self.pages[name]
        page.synced()
        page.erased |= page.erasing.pop()
        self.version += 1

    def grouped(self, name: str) -> None:
        """The group g of a topic is there."""
        self.pages[name].grouped = True
        self.version += 1

    def acking(self, name: str, end: int) -> None:
        """The group is about to have acked what is before an offset."""
        page = self.pages[name]
        page.acked = (page.acked[0], max(end, page.acked[1]))
        self.version += 1

    def acked(self, name: str, cursor: int) -> None:
        """It has, durably."""
        page = self.pages[name]
        page.acked = (cursor, cursor)
        self.version += 1

    def dropping(self, name: str) -> None:
        self.pages[name].dropping = True

    def dropped(self, name: str) -> None:
        del self.pages[name]
        self.version += 1

    def failed(self, problem: BaseException) -> None:
        """A call raised: its records are not there, unless it says that they may be."""
        for page in self.pages.values():
            if isinstance(problem, esker.Poisoned):
                page.maybe += page.doubt
            else:
                gone = frozenset(page.doubt)
                page.batches = [batch for batch in page.batches if batch != gone]
            page.doubt = []

    def settle(self, store: esker.Store, seen: Outcome | None = None) -> None:
        """What a store shows after it was opened is durable from then on.

        `seen` is what was read of it since then, should that be at hand.
        """
        self.pages = {n: p for n, p in self.pages.items() if n in store or not p.dropping}
        there = [page for page in self.pages.values() if page.name in store]
        read_already = seen.found if seen is not None else {}
        found = {
            p.name: read_already.get(p.name) or read(store, p.name)
            for p in there
            if p.durability != "ephemeral"
        }
        self.together = []
        for page in self.pages.values():  # nothing above has changed the ledger, should it fail
            page.pending, page.doubt, page.maybe, page.written, page.durable = [], [], [], [], 0
        for page in there:
            page.created, page.dropping = True, False
            cursor = cursor_of(store, page.name)
            if cursor is not None:  # recovery syncs records, and leaves cursors as they are
                page.acked = (min(page.acked[0], cursor), cursor)
            if page.name in found:
                page.gone, seen = without_evicted(page, found[page.name])
                page.settled, page.gaps = seen.records, seen.gaps
                page.floor, page.falling = found[page.name].first, 0
                page.settle_erased(seen)
        self.version += 1

    # -- the checks --

    def check(self, store: esker.Store, death: Death, reader: Reader | None = None) -> Outcome:
        """Compare a store, just opened after a death, with every promise; returns what it holds."""
        outcome = look_at(store, reader)
        self.judge(outcome, death, reported=False)  # who knows who recovered it before
        return outcome

    def judge(self, outcome: Outcome, death: Death, *, reported: bool = True) -> None:
        """Compare what a store held, just opened after a death, with every promise.

        Not `reported`: a recovery before this one has died, and nobody read what it told.
        """
        bad = NOT_BY_A_CRASH & outcome.labels
        assert not bad, f"a crash was taken for damage: {outcome.report}"
        strangers = outcome.found.keys() - self.pages.keys() - self.perhaps
        assert not strangers, f"I4: nobody made {strangers}"
        for page in self.pages.values():
            found = outcome.found.get(page.name)
            if found is None:
                assert not page.created or page.dropping, f"{page.name} is gone"
            elif page.durability != "ephemeral":  # of those only the next offset is promised
                check_page(page, found, death)
                check_cursor(page, outcome.cursors.get(page.name))
                if reported:
                    check_report(page, without_evicted(page, found)[1], outcome)
        self._check_together(outcome)

    def _check_together(self, outcome: Outcome) -> None:
        for batch in self.together:
            there = {}
            for page, values in batch:
                found = outcome.found.get(page.name)
                known = self.pages.get(page.name)
                if (
                    known is not page
                    or page.dropping
                    or page.falling
                    or page.floor
                    or page.cap
                    or found is None
                ):
                    continue  # deleted, or perhaps
                if page.erased or page.erasing:
                    continue
                there[page.name] = bool(values.intersection(value for _, value in found.records))
            assert len({*there.values()}) < 2, f"I7: a batch over topics is there in part: {there}"

    def judge_weakly(self, outcome: Outcome) -> None:
        """Compare what a store holds on a disk that lied: all of it is right, if not all there."""
        strangers = outcome.found.keys() - self.pages.keys() - self.perhaps
        assert not strangers, f"I4: nobody made {strangers}"
        for page in self.pages.values():
            name, found = page.name, outcome.found.get(page.name, Found([], [], 0))
            promised = dict(page.settled + page.written + page.pending) | page.erased
            for group in page.erasing:
                promised |= group
            open_ended = {*page.maybe, *page.doubt}
            missing = found.erased - {*page.erased}.union(*page.erasing)
            assert not missing, f"I3 {name}: {sorted(missing)} are missing in silence"
            for offset, value in found.records:
                right = promised.get(offset)
                known = value == right if right is not None else value in open_ended
                assert known, f"I4 {name}: not what was written at offset {offset}"

    def missing(self, outcome: Outcome) -> list[tuple[str, int]]:
        """What was acknowledged as durable, is not there, and is not named as lost either."""
        gone = []
        for page in self.pages.values():
            found = outcome.found.get(page.name, Found([], [], 0))
            named = {offset for first, last, _ in found.gaps for offset in range(first, last + 1)}
            there = named.union(offset for offset, _ in found.records)
            durable = page.settled + page.written[: page.durable]
            asked = {*page.erased}.union(*page.erasing)
            kept = [at for at, _ in durable if at >= page.floor and at not in asked]
            gone += [(page.name, offset) for offset in kept if offset not in there]
        return gone


Reader = Callable[[esker.Store, str], Found]


def look_at(store: esker.Store, reader: Reader | None = None) -> Outcome:
    """Read everything, topic by topic."""
    report, reader = store.recovery, reader or read
    lost = [finding for finding in report.findings if finding.label == "lost_tail"]
    return Outcome(
        frozenset(report.labels),
        str(report) if report.findings else "",
        frozenset((finding.topic, finding.first or 0, finding.last or 0) for finding in lost),
        {name: reader(store, name) for name in store},
        {name: at for name in store if (at := cursor_of(store, name)) is not None},
    )


def cursor_of(store: esker.Store, name: str) -> int | None:
    """Where the group g of a topic is, as its page says."""
    topic = store[name]
    shard, entry = topic._shards[0], topic._existing()
    owner = Owner(store._context.store, entry.id, 0)
    page = OffsetsFile(shard.files, shard.folder, owner, nullcontext())
    page.map(writable=False)
    slot = page.find("g")
    return None if slot is None else slot.cursor


def check_cursor(page: Page, cursor: int | None) -> None:
    """I13: a group is no further than it has acked, and not before what was durable of that."""
    if cursor is None:
        assert not page.grouped, f"I13 {page.name}: the group is gone"
        return
    least, most = page.acked
    if page.durability == "memory":  # what is lost there comes again, as other records
        least = 0
    assert least <= cursor <= most, f"I13 {page.name}: {cursor} is not in {least}..{most}"


def read(store: esker.Store, name: str) -> Found:
    """A topic from its first offset on; fails when the offsets do not follow each other."""
    found, problem = _read(store, name)
    if problem is not None:
        raise problem
    return found


def read_around(store: esker.Store, name: str) -> Found:
    """A topic, of which what is refused as damaged counts as a gap that was named."""
    found, problem = _read(store, name)
    first = found.first
    while problem is not None:
        if problem.last is None or problem.last < found.end:
            raise problem  # not even the end can be told: the topic is refused as a whole
        refused = (found.end, problem.last, f"corrupt: {problem}")
        gaps = [*found.gaps, refused]
        found = Found(found.records, gaps, problem.last + 1, first, found.erased)
        if found.end >= store[name].end():
            break
        more, problem = _read(store, name, found.end)
        found = Found(
            found.records + more.records, found.gaps + more.gaps, more.end, first,
            found.erased | more.erased,
        )  # fmt: skip
    return found


def _read(
    store: esker.Store, name: str, start: int | None = None
) -> tuple[Found, esker.Corruption | None]:
    """From an offset on, or from wherever a reader from offset 0 gets to."""
    topic = store[name]
    records: list[tuple[int, bytes]] = []
    gaps: list[tuple[int, int, str]] = []
    erased: set[int] = set()  # in neither; the ledger knows whether that was asked for
    at = first = start
    item: Any
    try:
        for item in topic.batches(start or 0, gaps="yield"):
            if at is None:
                at = first = min(item.first, topic.earliest())
            assert item.first >= at, f"I3 {name}: offset {item.first} where {at} should be"
            erased.update(range(at, item.first))
            if isinstance(item, esker.Gap):
                assert item.last >= item.first
                gaps.append((item.first, item.last, item.reason))
                at = item.last + 1
            else:
                offsets = item.offsets.to_pylist()
                rising = all(before < after for before, after in pairwise(offsets))
                assert rising, f"I5 {name}: offsets {offsets}"
                records += zip(offsets, item.values, strict=True)
                at = offsets[-1] + 1
                erased.update(range(item.first, at))
                erased.difference_update(offsets)
    except esker.Corruption as problem:
        return Found(records, gaps, at or 0, first or 0, frozenset(erased)), problem
    end = topic.end()
    if at is None:
        at = first = min(topic.earliest(), end)
    assert at <= end, f"I3 {name}: reading ended at {at}, the topic at {end}"
    erased.update(range(at, end))
    return Found(records, gaps, end, first or 0, frozenset(erased)), None


def without_evicted(page: Page, found: Found) -> tuple[int, Found]:
    """What retention has taken, up to where, and the rest, as if the topic began there."""
    evicted = [gap for gap in found.gaps if gap[2] == "evicted"]
    if not evicted:
        assert not page.gone, f"I9 {page.name}: what was evicted before {page.gone} is back"
        return 0, found
    ((first, last, _),) = evicted  # one gap, from the beginning on
    assert first == found.first, f"I9 {page.name}: {first}..{last} in the middle of the topic"
    assert last + 1 >= page.gone, f"I9 {page.name}: evicted before {page.gone}, now {last + 1}"
    assert page.cap, f"I9 {page.name}: {first}..{last} was taken, and nobody asked for it"
    assert found.end - last - 1 >= page.cap, f"I9 {page.name}: more was taken than the cap allows"
    rest = [gap for gap in found.gaps if gap[2] != "evicted"]
    return last + 1, Found(found.records, rest, found.end, last + 1, found.erased)


def check_erased(page: Page, found: Found) -> set[int]:
    """What is left out was deleted by tag, and what was deleted is left out; returns its offsets.

    A deletion that was never acknowledged has happened wholly, as far as its records are left, or
    not at all.
    """
    there = {offset for offset, _ in found.records}
    back = there.intersection(page.erased)
    assert not back, f"I8 {page.name}: {sorted(back)} were deleted by tag, and are back"
    gone = {*page.erased}
    for group in page.erasing:
        done, undone = found.erased.intersection(group) - gone, there.intersection(group)
        half = f"{sorted(done)} but not {sorted(undone)} deleted"
        assert not done or not undone, f"I8 {page.name}: {half}"
        if done:
            gone |= group.keys()
    missing = found.erased - gone
    assert not missing, f"I8 {page.name}: {sorted(missing)} are gone, and nobody deleted them"
    return gone


def check_page(page: Page, found: Found, death: Death) -> None:
    name, first = page.name, found.first
    assert first == page.floor or first == page.falling > 0, (
        f"I8 {name}: begins at {first}, deleted were those before {page.floor}"
    )
    _, found = without_evicted(page, found)
    first, gone = found.first, check_erased(page, found)

    def kept(promised: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        return [item for item in promised if item[0] >= first and item[0] not in gone]

    settled = kept(page.settled)
    head, rest = found.records[: len(settled)], found.records[len(settled) :]
    assert head == settled, f"I1 {name}: records that had survived before are gone or different"
    known = kept(page.written + page.pending)
    expected = [value for _, value in known] + page.maybe + page.doubt
    values = [value for _, value in rest]
    strangers = set(values) - set(expected)
    assert not strangers, f"I4 {name}: {strangers} were never submitted"
    assert values == expected[: len(values)], f"I3, I5 {name}: not a prefix of what was submitted"
    for there, promised in zip(rest, known, strict=False):
        assert there == promised, f"I1 {name}: at offset {there[0]}, promised at {promised[0]}"
    least = len(kept(page.written if death == "kill" else page.written[: page.durable]))
    assert len(rest) >= least, f"I1, I2 {name}: {len(rest)} of {least} acknowledged are left"
    deleted = {
        value for at, value in page.settled + page.written if at < first or at in gone
    }  # fmt: skip
    for batch in page.batches:
        there_of_it = batch.intersection(values)
        whole = not there_of_it or there_of_it == batch - deleted
        assert whole, f"I7 {name}: a part of a batch"
    check_gaps(page, found, death)
    if page.durability == "disk":
        assert found.end >= page.reached, f"I6 {name}: {found.end} was issued before"


def check_gaps(page: Page, found: Found, death: Death) -> None:
    """Known gaps stay; a new one is at the end, and only where something may be lost."""
    begin = found.first
    old = [(max(low, begin), high, reason) for low, high, reason in page.gaps if high >= begin]
    new = found.gaps
    if old and len(new) == len(old) and new[-1][1] > old[-1][1]:  # the last one has grown
        assert death == "power"
        assert page.durability == "disk"
        assert not found.records or found.records[-1][0] < new[-1][0]
        old, new = [*old[:-1], new[-1]], new
    assert new[: len(old)] == old, f"I3 {page.name}: known gaps have changed"
    for first, last, reason in new[len(old) :]:
        assert death == "power", f"{page.name}: only the process died, and {first}..{last} is lost"
        assert page.durability == "disk", f"{page.name}: {first}..{last} was never issued"
        assert reason == "lost unsynced tail"
        behind = {value for offset, value in found.records if offset > last}
        late = behind <= {*page.doubt, *page.maybe}  # a committed batch is attached after recovery
        assert late, f"I3 {page.name}: records survived behind {first}..{last}"


def check_report(page: Page, found: Found, outcome: Outcome) -> None:
    """A gap that is new was told by the recovery that found it, and what it told is a gap."""
    old = {max(first, found.first) for first, _, _ in page.gaps}
    named = {(first, last) for name, first, last in outcome.lost if name == page.name}
    for first, last, _ in found.gaps:
        told = any(low <= last and high == last for low, high in named)
        assert first in old or told, f"I21 {page.name}: nobody named {first}..{last}"
    for first, last in named:
        covered = any(low <= first and last <= high for low, high, _ in found.gaps)
        assert covered, f"I21 {page.name}: {first}..{last} is called lost, and there is no gap"
