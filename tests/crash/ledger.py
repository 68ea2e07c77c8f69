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
"""

from __future__ import annotations

import copy
from typing import Any, Literal, NamedTuple

import esker

Death = Literal["kill", "power"]

# Crashes alone never leave what these labels stand for.
NOT_BY_A_CRASH = {
    "corrupt_frame", "corrupt_header", "corrupt_journal", "corrupt_sealed", "missing_segment",
    "damaged_catalog", "stranger", "unrecovered",
}  # fmt: skip


class Found(NamedTuple):
    """A topic as a reader from offset 0 sees it."""

    records: list[tuple[int, bytes]]
    gaps: list[tuple[int, int, str]]
    end: int


class Page:
    """What was promised about one topic."""

    def __init__(self, name: str, durability: str) -> None:
        self.name = name
        self.durability = durability
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

    def flushed(self) -> None:
        self.written += self.pending
        self.pending = []
        if self.written:
            self.reached = max(self.reached, self.written[-1][0] + 1)

    def synced(self) -> None:
        self.flushed()
        self.durable = len(self.written)


class Ledger:
    """All topics of a store."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.version = 0  # how many promises were made; tells equal ledgers from different ones

    def copy(self) -> Ledger:
        return copy.deepcopy(self)

    # -- told by the driver --

    def creating(self, name: str, durability: str) -> None:
        self.pages[name] = Page(name, durability)

    def forget(self, name: str) -> None:
        del self.pages[name]

    def created(self, name: str) -> None:
        self.pages[name].created = True
        self.version += 1

    def trying(self, name: str, values: list[bytes], *, atomic: bool = False) -> None:
        page = self.pages[name]
        page.doubt = values
        if atomic:
            page.batches.append(frozenset(values))

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

    def failed(self, problem: BaseException) -> None:
        """A call raised: its records are not there, unless it says that they may be."""
        for page in self.pages.values():
            if isinstance(problem, esker.Poisoned):
                page.maybe += page.doubt
            else:
                gone = frozenset(page.doubt)
                page.batches = [batch for batch in page.batches if batch != gone]
            page.doubt = []

    def settle(self, store: esker.Store) -> None:
        """What a store shows after it was opened is durable from then on."""
        there = [page for page in self.pages.values() if page.name in store]
        found = {p.name: read(store, p.name) for p in there if p.durability != "ephemeral"}
        for page in self.pages.values():  # nothing above has changed the ledger, should it fail
            page.pending, page.doubt, page.maybe, page.written, page.durable = [], [], [], [], 0
        for page in there:
            page.created = True
            if page.name in found:
                page.settled, page.gaps = found[page.name].records, found[page.name].gaps
        self.version += 1

    # -- the checks --

    def check(self, store: esker.Store, death: Death) -> None:
        """Compare a store, just opened after a death, with every promise."""
        bad = NOT_BY_A_CRASH.intersection(store.recovery.labels)
        assert not bad, f"a crash was taken for damage: {store.recovery}"
        for page in self.pages.values():
            if page.name not in store:
                assert not page.created, f"{page.name} is gone"
            elif page.durability != "ephemeral":  # of those only the next offset is promised
                check_page(page, read(store, page.name), death)


def read(store: esker.Store, name: str) -> Found:
    """A topic from offset 0 on; fails when the offsets do not follow each other."""
    topic = store[name]
    records: list[tuple[int, bytes]] = []
    gaps: list[tuple[int, int, str]] = []
    at = 0
    item: Any
    for item in topic.read(0, gaps="yield"):
        if isinstance(item, esker.Gap):
            assert item.first == at, f"I3 {name}: a gap from {item.first}, expected {at}"
            assert item.last >= item.first
            gaps.append((item.first, item.last, item.reason))
            at = item.last + 1
        else:
            assert item.offset == at, f"I3 {name}: offset {item.offset} where {at} should be"
            records.append((item.offset, item.value))
            at += 1
    assert at == topic.end(), f"I3 {name}: reading ended at {at}, the topic at {topic.end()}"
    return Found(records, gaps, at)


def check_page(page: Page, found: Found, death: Death) -> None:
    name, settled = page.name, page.settled
    head, rest = found.records[: len(settled)], found.records[len(settled) :]
    assert head == settled, f"I1 {name}: records that had survived before are gone or different"
    known = page.written + page.pending
    expected = [value for _, value in known] + page.maybe + page.doubt
    values = [value for _, value in rest]
    strangers = set(values) - set(expected)
    assert not strangers, f"I4 {name}: {strangers} were never submitted"
    assert values == expected[: len(values)], f"I3, I5 {name}: not a prefix of what was submitted"
    for there, promised in zip(rest, known, strict=False):
        assert there == promised, f"I1 {name}: at offset {there[0]}, promised at {promised[0]}"
    least = len(page.written) if death == "kill" else page.durable
    assert len(rest) >= least, f"I1, I2 {name}: {len(rest)} of {least} acknowledged are left"
    for batch in page.batches:
        there_of_it = batch.intersection(values)
        assert not there_of_it or there_of_it == batch, f"I7 {name}: a part of a batch"
    check_gaps(page, found, death)
    if page.durability == "disk":
        assert found.end >= page.reached, f"I6 {name}: {found.end} was issued before"


def check_gaps(page: Page, found: Found, death: Death) -> None:
    """Known gaps stay; a new one is at the end, and only where something may be lost."""
    old, new = page.gaps, found.gaps
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
        assert last + 1 == found.end, f"I3 {page.name}: records survived behind {first}..{last}"
