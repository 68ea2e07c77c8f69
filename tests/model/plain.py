"""The model: a topic is a list.

A `PlainTopic` has a `PlainShard` for each shard: a list of rows with their offsets, the offsets
that are known to be lost, what is buffered, and three ends. It knows the documentation and nothing
of the engine: no segment, no frame, no file. What it is asked, it answers by looking at every row.

Where the documentation leaves room (when the background syncs, what a power cut takes, to which
shard a record without a key goes) the model is told what happened, checks that it was allowed,
and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import esker
from esker.options import TopicOptions
from tests.crash.ledger import Death, Found, Page, check_page


class Row(NamedTuple):
    """A record without its place. The time is None while it is buffered and was given none."""

    value: bytes
    key: bytes | None = None
    tag: str | None = None
    node: str | None = None
    headers: tuple[tuple[str, bytes], ...] | None = None
    timestamp: int | None = None

    @property
    def extra_bytes(self) -> int:
        pairs = self.headers or ()
        texts = (self.key or b"", self.tag or "", self.node or "", *(x for p in pairs for x in p))
        return sum(map(len, texts))


class Missing(NamedTuple):
    """Offsets first..last were lost."""

    first: int
    last: int
    reason: str


Item = tuple[int, Row] | Missing
"""What a reader gets: an offset and its row, or a gap."""


def row_of(record: esker.Record) -> Row:
    headers = tuple(record.headers.items()) if record.headers else None
    return Row(record.value, record.key, record.tag, record.node, headers, record.timestamp)


def item_of(found: Any) -> Item:
    if isinstance(found, esker.Gap):
        return Missing(found.first, found.last, found.reason)
    return found.offset, row_of(found)


class Limits(NamedTuple):
    """When a buffer is full; and whether there is one."""

    records: int
    large_bytes: int  # of records above `small_bytes`, and of what they carry
    small_bytes: int
    linger: float


class PlainShard:
    """One shard."""

    def __init__(self, durability: str, limits: Limits) -> None:
        self.durability = durability
        self.limits = limits
        self.rows: list[tuple[int, Row]] = []
        self.lost: list[Missing] = []
        self.floor = 0  # what was before is deleted
        self.next = 0
        self.durable = 0
        self.pending: list[Row] = []
        self.opened = 0.0  # when the first of them came
        self.written = 0.0  # when rows were last written
        self.batches: list[tuple[int, int]] = []  # atomic, and not yet durable
        self.erased: dict[int, Row] = {}  # deleted by tag: not there, and yet at their places

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, PlainShard)
        mine = (self.rows, self.lost, self.floor, self.next, self.durable, self.pending)
        theirs = (other.rows, other.lost, other.floor, other.next, other.durable, other.pending)
        return mine == theirs and self.erased == other.erased

    __hash__ = None  # type: ignore[assignment]

    # -- writing --

    @property
    def buffered_bytes(self) -> int:
        return sum(map(self._large, self.pending))

    def _large(self, row: Row) -> int:
        own = len(row.value) if len(row.value) > self.limits.small_bytes else 0
        return own + row.extra_bytes

    def is_full_for(self, row: Row) -> bool:
        full = len(self.pending) >= self.limits.records
        return full or self.buffered_bytes + self._large(row) > self.limits.large_bytes

    def buffer(self, row: Row, now_us: int, monotonic: float) -> int:
        """A lone append; returns the offset it gets."""
        if not self.limits.linger:
            self.write([row], now_us, monotonic)
            return self.next - 1
        if self.pending and self.is_full_for(row):
            self.flush(now_us, monotonic)
        if not self.pending:
            self.opened = monotonic
        self.pending.append(row)
        return self.next + len(self.pending) - 1

    def flush(self, now_us: int, monotonic: float) -> None:
        pending, self.pending = self.pending, []
        if pending:
            self._take(pending, now_us, monotonic)

    def write(self, rows: list[Row], now_us: int, monotonic: float, *, whole: bool = True) -> int:
        """A batch, behind what is buffered; returns its first offset."""
        self.flush(now_us, monotonic)
        first = self.next
        self._take(rows, now_us, monotonic)
        if whole and len(rows) > 1:
            self.batches.append((first, self.next))
        return first

    def _take(self, rows: list[Row], now_us: int, monotonic: float) -> None:
        stamped = [row if row.timestamp is not None else row._replace(timestamp=now_us)
                   for row in rows]  # fmt: skip
        self.rows += list(enumerate(stamped, self.next))
        self.next += len(rows)
        self.written = monotonic

    def became_durable(self, upto: int) -> None:
        self.durable = max(self.durable, upto)
        self.batches = [batch for batch in self.batches if batch[1] > self.durable]

    def delete_before(self, offset: int) -> int:
        """Delete durable rows; returns how many they were."""
        offset = min(offset, self.durable)
        if offset <= self.earliest:
            return 0
        before = len(self.rows)
        self.floor = offset
        self.rows = [item for item in self.rows if item[0] >= offset]
        self.erased = {at: row for at, row in self.erased.items() if at >= offset}
        self.lost = [
            gap._replace(first=max(gap.first, offset)) for gap in self.lost if gap.last >= offset
        ]
        return before - len(self.rows)

    def erase(self, matches: Callable[[str], bool], before: int) -> int:
        """Delete the durable rows before an offset whose tag matches; returns how many."""
        gone = {
            at: row
            for at, row in self.rows
            if at < min(before, self.durable) and row.tag is not None and matches(row.tag)
        }
        self.rows = [item for item in self.rows if item[0] not in gone]
        self.erased |= gone
        return len(gone)

    # -- reading --

    @property
    def visible(self) -> int:
        return self.durable if self.durability == "fsync" else self.next

    @property
    def earliest(self) -> int:
        """The first offset that is there; one that was lost is not, unless others were before."""
        begins = self.durability == "ephemeral" or not self.floor
        if begins and self.lost and self.lost[0].first == self.floor:
            return self.lost[0].last + 1
        return self.floor

    @property
    def seen(self) -> list[tuple[int, Row]]:
        """The rows that readers may see."""
        return [(offset, row) for offset, row in self.rows if offset < self.visible]

    @property
    def places(self) -> list[tuple[int, Row]]:
        """What was once seen and lies above the floor, also what was deleted by tag since."""
        return sorted([*self.seen, *self.erased.items()], key=lambda item: item[0])

    def back(self, count: int) -> int:
        """The offset so many records before the end; all that ever was there if there are fewer."""
        seen, places = self.seen, self.places
        if count <= 0 or not places:
            return self.visible
        return max(seen[-count][0] if count <= len(seen) else places[0][0], self.earliest)

    def since(self, time_us: int) -> int:
        """The first offset at or after a time: no deletion by tag makes it another one."""
        return next(
            (offset for offset, row in self.places if row.timestamp >= time_us),  # type: ignore[operator]
            self.visible,
        )

    def items(self, first: int, stop: int) -> list[Item]:
        """What a reader of [first, stop) gets."""
        rows: list[Any] = [item for item in self.rows if first <= item[0] < stop]
        gaps: list[Any] = [
            Missing(max(gap.first, first), min(gap.last, stop - 1), gap.reason)
            for gap in self.lost
            if first < stop and gap.first < stop and gap.last >= first
        ]
        return sorted(rows + gaps, key=lambda item: item[0])

    # -- the end of a life --

    def closed(self, now_us: int, monotonic: float) -> None:
        """A clean close: all is written and durable; or gone, in class ephemeral."""
        self.flush(now_us, monotonic)
        self.became_durable(self.next)
        if self.durability == "ephemeral":
            self._begin_at(self.next)

    def _begin_at(self, offset: int) -> None:
        self.rows, self.pending, self.batches, self.erased = [], [], [], {}
        self.next = self.durable = offset
        self.lost = [Missing(self.floor, offset - 1, "evicted")] if offset > self.floor else []

    def settle(self, name: str, items: list[Item], end: int, death: Death) -> None:
        """After a death: is what is there a legal rest? Then go on from it."""
        if self.durability == "ephemeral":
            assert end >= self.next, f"{name}: goes on at {end}, {self.next} was issued before"
            self._begin_at(end)
            assert items == self.items(0, end), f"{name}: class ephemeral has {items}"
            return
        rows: list[Any] = [item for item in items if not isinstance(item, Missing)]
        gaps = [item for item in items if isinstance(item, Missing)]
        check_page(self._page(name), Found(_unique(rows), gaps, end), death)  # type: ignore[arg-type]
        if death == "kill" and self.durability != "memory":
            assert end == self.next, f"{name}: goes on at {end} after a kill, not at {self.next}"
        self.rows, self.lost, self.next, self.durable = rows, gaps, end, end
        self.pending, self.batches = [], []

    def _page(self, name: str) -> Page:
        """The promises as the ledger of the crash suites keeps them."""
        page = Page(name, self.durability)
        page.gaps = list(self.lost)
        page.written = _unique(self.rows)
        page.durable = sum(offset < self.durable for offset, _ in self.rows)
        page.batches = [
            frozenset(value for offset, value in page.written if first <= offset < end)
            for first, end in self.batches
        ]
        page.reached = self.visible
        return page


def _unique(rows: list[tuple[int, Row]]) -> list[tuple[int, Any]]:
    """Rows that no other row equals: the ledger tells records apart by their values."""
    return [(offset, (offset, row)) for offset, row in rows]


class PlainTopic:
    """All shards of a topic."""

    def __init__(self, name: str, options: TopicOptions, limits: Limits) -> None:
        self.name = name
        self.options = options
        self.shards = [PlainShard(options.durability, limits) for _ in range(options.shards)]

    def home(self, key: bytes | None) -> int | None:
        """The shard that a key belongs to (FNV-1a, 32 bits); None: any may take it."""
        if len(self.shards) == 1:
            return 0
        if key is None:
            return None
        value = 2166136261
        for byte in key:
            value = (value ^ byte) * 16777619 % (1 << 32)
        return value % len(self.shards)

    def spread(self, rows: list[Row], spans: list[esker.Span]) -> dict[int, list[Row]]:
        """Which rows went to which shard, from their keys and from how many went where."""
        homes = [self.home(row.key) for row in rows]
        told = {span.shard: span.count for span in spans}
        assert len(told) == len(spans), f"two spans of one shard: {spans}"
        assert sum(told.values()) == len(rows), f"{len(rows)} records became {spans}"
        keyed = {shard: homes.count(shard) for shard in told}
        others = [shard for shard, count in told.items() if count != keyed[shard]]
        assert len(others) <= 1, f"records without a key went to several shards: {spans}"
        placed: dict[int, list[Row]] = {}
        for row, home in zip(rows, homes, strict=True):
            placed.setdefault(others[0] if home is None else home, []).append(row)
        assert {shard: len(mine) for shard, mine in placed.items()} == told, f"keys ignored: {told}"
        return placed

    @property
    def count(self) -> int:
        return sum(len(shard.seen) for shard in self.shards)
