"""One engine and the list that it should be, doing the same steps.

A `Side` is a store on a simulated disk, with some of its optimisations switched off, and a
`PlainTopic` for each of its topics. Each method is one step: done through the public API, then on
the model, then compared. It returns what a caller would have got, for another side to be compared
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import esker
from esker.engine import shard as shard_module
from esker.engine import writing
from esker.storage import segment
from esker.testing import Fate, ManualClock, SimulatedDisk
from tests.crash.ledger import NOT_BY_A_CRASH
from tests.helpers import abandon
from tests.model.events import hit
from tests.model.plain import (
    Item,
    Limits,
    Missing,
    PlainShard,
    PlainTopic,
    Row,
    item_of,
    row_of,
)
from tests.model.switches import Switches

ROOT = "/store"
SYNC_INTERVAL = 0.05
OPTIONS: dict[str, Any] = {
    "background": False, "journals": 1, "journal_bytes": 64 << 10, "sync_interval": SYNC_INTERVAL,
}  # fmt: skip
RAISED = "raised"
KEYS = [b"%d" % number for number in range(100)]  # some for every shard
HEADERS = pa.map_(pa.string(), pa.binary())


class Place(NamedTuple):
    """A position: as it is given, and what it means."""

    text: Any
    kind: str  # earliest, latest, offset, back, time
    number: int = 0

    def __repr__(self) -> str:
        return repr(self.text)


def resolve(shard: PlainShard, place: Place) -> int:
    match place.kind:
        case "earliest":
            return shard.earliest
        case "latest":
            return shard.visible
        case "back":
            return shard.back(place.number)
        case "time":
            return shard.since(place.number)
    return place.number


def taken(found: Iterable[Any]) -> list[Any]:
    """All that an iterator gives, gaps among it, and whether it ended by raising one."""
    items: list[Any] = []
    try:
        for item in found:
            items.append(item_of(item))  # noqa: PERF401  # what came before the error counts
    except esker.DataGap as problem:
        items += [item_of(problem.gap), RAISED]
    return items


def wanted(items: list[Item], gaps: str) -> list[Any]:
    """The same as `taken` should find it."""
    if gaps == "skip":
        return [item for item in items if not isinstance(item, Missing)]
    if gaps == "raise":
        for index, item in enumerate(items):
            if isinstance(item, Missing):
                return [*items[: index + 1], RAISED]
    return list(items)


class Side:
    """One engine beside one model."""

    def __init__(self, switches: Switches, clock: ManualClock, seed: int) -> None:
        self.switches = switches
        self.clock = clock
        self.disk = SimulatedDisk(seed)
        self.topics: dict[str, PlainTopic] = {}
        self.reader: esker.Store | None = None
        self.tails: dict[str, tuple[Any, list[int]]] = {}
        self.labels: list[str] = []  # what the last recovery found
        with switches:
            self.store = self._open()

    def _open(self, mode: Any = "rw") -> esker.Store:
        options = OPTIONS | self.switches.options
        return esker.open(ROOT, mode, files=self.disk, clock=self.clock, **options)

    @property
    def now(self) -> tuple[int, float]:
        return self.clock.now_us(), self.clock.monotonic()

    # -- writing --

    def create(self, name: str, options: dict[str, Any]) -> None:
        topic = self.store.create(name, **options)
        linger = self.switches.options.get("linger", 0.02)
        limits = Limits(
            shard_module.BUFFER_RECORDS, writing.BUFFER_BYTES, writing.SMALL_RECORD_BYTES, linger
        )
        self.topics[name] = PlainTopic(name, topic.options, limits)

    def append(self, name: str, row: Row, wait: bool = False) -> int:
        plain = self.topics[name]
        offset = self.store[name].append(**fields(row), wait=wait)
        number = getattr(offset, "shard", 0)
        assert plain.home(row.key) in (None, number), f"{row.key!r} went to shard {number}"
        shard = plain.shards[number]
        if wait:
            expected = shard.write([kept(row)], *self.now)
            if plain.options.durability == "fsync":
                shard.became_durable(shard.next)
        else:
            if shard.limits.linger and shard.pending and shard.is_full_for(kept(row)):
                hit("buffer full")
            expected = shard.buffer(kept(row), *self.now)
        assert offset == expected, f"offset {offset}, not {expected}"
        return offset

    def append_many(self, name: str, rows: list[Row], wait: bool, how: str) -> Any:
        """A batch, by one of the three ways to give one."""
        topic, plain = self.store[name], self.topics[name]
        try:
            span = GIVEN[how](topic, rows, wait)
        except esker.BatchTooLarge:
            assert how != "arrow"
            assert _size(rows) * 2 > plain.options.segment_bytes - 4096
            hit("batch too large")
            return "too large"
        if not rows:
            assert span is None or (span.first, span.count) == (plain.shards[0].visible, 0)
            hit(f"empty batch ({how})")
            return "nothing"
        spans = [span] if isinstance(span, esker.Span) else list(span)
        fits = _size(rows) * 2 < plain.options.segment_bytes - 4096
        one_frame = sum(len(row.value) for row in rows) <= 2 * segment.split.__defaults__[0]  # type: ignore[index]
        whole = fits or (how != "arrow" and one_frame)
        for number, mine in plain.spread([kept(row) for row in rows], spans).items():
            shard = plain.shards[number]
            first = shard.write(mine, *self.now, whole=whole)
            assert first == next(span.first for span in spans if span.shard == number)
            if wait and plain.options.durability == "fsync":
                shard.became_durable(shard.next)
        return [(span.shard, span.first, span.count) for span in spans]

    def refuse(self, name: str, row: Row) -> None:
        """A record above the limit: nothing happens."""
        with pytest.raises(esker.RecordTooLarge):
            self.store[name].append(**fields(row))
        with pytest.raises(esker.RecordTooLarge):
            self.store[name].append_many([esker.Record(b"first"), esker.Record(row.value)])

    def flush(self, name: str) -> None:
        self.store[name].flush()
        for shard in self.topics[name].shards:
            shard.flush(*self.now)

    def sync(self, name: str) -> None:
        self.store[name].sync()
        self._synced(self.topics[name])

    def sync_all(self) -> None:
        self.store.sync()
        for plain in self.topics.values():
            self._synced(plain)

    def _synced(self, plain: PlainTopic) -> None:
        for shard in plain.shards:
            shard.flush(*self.now)
            shard.became_durable(shard.next)

    def wait_durable(self, name: str, number: int, offset: int) -> None:
        """Wait for one offset; all before it is durable then as well."""
        shard = self.topics[name].shards[number]
        issued = shard.next + len(shard.pending)
        if offset >= issued and offset >= shard.durable:
            with pytest.raises(esker.OffsetOutOfRange):
                self.store[name].wait_durable(offset, number)
            shard.flush(*self.now)
            return
        before = shard.durable
        self.store[name].wait_durable(offset, number)
        if offset >= before:
            shard.flush(*self.now)
            shard.became_durable(shard.next)

    def tick(self) -> None:
        self.store.tick()
        now_us, monotonic = self.now
        for shard in self._shards():
            if shard.pending and shard.opened + shard.limits.linger <= monotonic:
                hit("lingered out")
                shard.flush(now_us, monotonic)
            late = shard.durability == "disk" and monotonic >= shard.written + SYNC_INTERVAL
            if shard.durability == "fsync" or late:
                shard.became_durable(shard.next)

    def delete(self, name: str, before: Place, shard: int | None) -> int:
        """Records before a position, durably; all that was appended is then durable, too."""
        shards = self.topics[name].shards
        gone = self.store[name].delete(before.text, shard)
        self._synced(self.topics[name])
        expected = 0
        for each in shards if shard is None else [shards[shard]]:
            expected += each.delete_before(resolve(each, before))
        assert gone == expected, f"{name}: deleted {gone} before {before}, not {expected}"
        if gone:
            hit("records deleted")
        return gone

    def erase(self, name: str, how: str, text: str, before: Place | None, shard: int | None) -> int:
        """Records with a tag, or with one that begins like this; all, or those before a place."""
        shards = self.topics[name].shards
        given: dict[str, Any] = {how: text}
        gone = self.store[name].delete(None if before is None else before.text, shard, **given)
        self._synced(self.topics[name])
        expected = 0
        for each in shards if shard is None else [shards[shard]]:
            end = each.visible if before is None else resolve(each, before)
            matches = text.__eq__ if how == "tag" else lambda tag: tag.startswith(text)
            expected += each.erase(matches, end)
        assert gone == expected, f"{name}: deleted {gone} with {given} before {before}"
        if gone:
            hit("deleted by tag" if how == "tag" else "deleted by prefix")
            if before is not None:
                hit("deleted by tag before a place")
        return gone

    def reclaim(self, name: str) -> None:
        """What was deleted leaves the disk; all that was appended is then durable."""
        if self.store[name].reclaim():
            hit("rewritten without what was deleted")
        self._synced(self.topics[name])

    def drop(self, name: str) -> None:
        """A topic with all that is in it."""
        self.store.delete(name)
        del self.topics[name]
        self.tails.pop(name, None)
        assert name not in self.store
        if self.reader is not None:
            with pytest.raises(esker.TopicNotFound):
                list(self.reader[name].read())

    def _shards(self) -> list[PlainShard]:
        return [shard for plain in self.topics.values() for shard in plain.shards]

    # -- reading --

    def read(
        self, name: str, start: Place, stop: Place | None, *, shard: int | None, gaps: Any,
        how: str, strong: bool = False, limit: int | None = None, store: esker.Store | None = None,
    ) -> list[Any]:  # fmt: skip
        """By one of the ways to read a range; all give the same."""
        topic = (store or self.store)[name]
        expected = self._expected(name, start, stop, shard, gaps, strong=strong)
        bound = None if stop is None else stop.text
        given: dict[str, Any] = {"shard": shard, "gaps": gaps}
        if how == "slice":
            part = topic.slice(start.text, bound, **given)
            rows = self._expected(name, start, stop, shard, "skip")
            assert len(part) == len(rows), f"{part} has {len(part)} records, not {len(rows)}"
            found = taken(part)
            if RAISED not in found:
                assert part.values == [item[1].value for item in rows]
                assert part.to_arrow()["offset"].to_pylist() == [item[0] for item in rows]
        elif how == "follow":
            found = taken(topic.follow(start.text, timeout=0, **given))
        else:
            given["consistency"] = "strong" if strong else "eventual"
            found = taken(topic.read(start.text, bound, limit=limit, **given))
            expected = _limited(expected, limit)
        assert found == expected, _difference(f"{name} {how} {start}:{stop}", found, expected)
        if RAISED in found:
            hit("read ended by a gap")
        elif any(isinstance(item, Missing) for item in found[:-1]):
            hit("read across a gap")
        return found

    def _expected(
        self, name: str, start: Place, stop: Place | None, shard: int | None, gaps: str,
        strong: bool = False,
    ) -> list[Any]:  # fmt: skip
        shards = self.topics[name].shards
        items: list[Any] = []
        for each in shards if shard is None else [shards[shard]]:
            end = min(each.visible, each.durable) if strong else each.visible
            end = end if stop is None else min(end, resolve(each, stop))
            items += wanted(each.items(resolve(each, start), end), gaps)
            if items and items[-1] == RAISED:
                break
        return items

    def batches(self, name: str, start: Place, stop: Place | None, most: int, count: int) -> Any:
        """By batches of limited size; their Arrow columns say what their records say."""
        found: list[Any] = []
        for batch in self.store[name].batches(
            start.text, stop and stop.text, max_bytes=most, max_records=count, gaps="yield"
        ):
            if isinstance(batch, esker.Gap):
                found.append(item_of(batch))
                continue
            assert len(batch) == 1 or batch.nbytes <= most
            assert len(batch) <= (count or len(batch))
            records = batch.records()
            found += map(item_of, records)
            table = batch.arrow
            assert table["value"].to_pylist() == batch.values == [r.value for r in records]
            offsets = table["offset"].to_pylist()
            assert offsets == batch.offsets.to_pylist() == [record.offset for record in records]
            assert (batch.first, batch.last) == (offsets[0], offsets[-1])
            assert table["key"].to_pylist() == [record.key for record in records]
            stamps = table["timestamp"].cast(pa.int64()).to_pylist()
            assert stamps == [record.timestamp for record in records]
        expected = self._expected(name, start, stop, None, "yield")
        assert found == expected, _difference(f"{name} batches {start}:{stop}", found, expected)
        return found

    def get(self, name: str, number: int, offset: int) -> Any:
        shard = self.topics[name].shards[number]
        seen = shard.seen
        expected: Any
        if offset < 0:
            expected = seen[offset] if -offset <= len(seen) else esker.OffsetOutOfRange
        elif not shard.earliest <= offset < shard.visible:
            expected = esker.OffsetOutOfRange
        else:
            expected = (shard.items(offset, offset + 1) or [esker.OffsetOutOfRange])[0]
        if isinstance(expected, Missing):
            expected = esker.DataGap
        try:
            record = self.store[name].get(offset, number)
            found: Any = record.offset, row_of(record)
        except esker.EskerError as problem:
            found = type(problem)
        assert found == expected, f"{name}[{offset}] of shard {number}: {found}, not {expected}"
        return found

    def follow(self, name: str, start: Place | None) -> list[Any] | None:
        """A tail that is kept: takes what came since it was last asked; its lag is then 0."""
        topic, plain = self.store[name], self.topics[name]
        if name not in self.tails or start is not None:
            place = start or Place("latest", "latest")
            cursors = [resolve(shard, place) for shard in plain.shards]
            self.tails[name] = topic.tail(place.text, gaps="yield"), cursors
        tail, cursors = self.tails[name]
        found = []
        for batch in tail.take():
            found += taken([batch] if isinstance(batch, esker.Gap) else batch)
        expected: list[Any] = []
        for number, shard in enumerate(plain.shards):
            lag = max(0, shard.visible - cursors[number])
            expected += shard.items(cursors[number], shard.visible)
            cursors[number] += lag
        assert found == expected, _difference(f"{name} tail", found, expected)
        assert list(tail.cursors.values()) == cursors
        return found if start is not None else None  # a kept tail knows what was seen before

    def through_reader(self, name: str, start: Place, how: str) -> Any:
        """By a second handle that only reads, opened at some time and kept."""
        if self.reader is None:
            self.reader = self._open("r")
            assert self.reader.recovery.clean, str(self.reader.recovery)
        if self.topics[name].options.durability == "ephemeral":
            assert list(self.reader[name].read()) == []
            return None
        return self.read(name, start, None, shard=None, gaps="yield", how=how, store=self.reader)

    def last_look(self) -> None:
        """Whoever reads beside a writer sees all of it up to the end of its life."""
        for name in self.topics if self.reader is not None else ():
            self.through_reader(name, Place(0, "offset"), "read")

    def second_writer(self, name: str) -> None:
        """Another handle may not write what this one writes."""
        held = [shard.number for shard in self.store[name]._shards if shard.writing]
        if not held:
            return
        hit("second writer")
        key = next(key for key in KEYS if self.topics[name].home(key) in held)
        other = self._open()
        assert other.recovery.clean, str(other.recovery)
        with pytest.raises(esker.WriterBusy):
            other[name].append(b"mine?", key, wait=True)
        other.close()

    def numbers(self) -> Any:
        """Ends, counts and counters of everything."""
        assert list(self.store) == sorted(self.topics)
        told = []
        for name, plain in self.topics.items():
            topic = self.store[name]
            told.append(self.ends(name))
            assert len(topic) == plain.count, f"{name} has {len(topic)}, not {plain.count}"
            for number, shard in enumerate(plain.shards):
                assert topic.earliest(number) == shard.earliest
                if topic._shards[number].writing:
                    page = topic.counters(number)
                    ends = (page["next_visible"], page["durable"], page["next_issued"])
                    expected = shard.visible, shard.durable, shard.next + len(shard.pending)
                    assert ends == expected, f"{name} shard {number}: {ends}, not {expected}"
        return told

    def ends(self, name: str, turn: int | None = None) -> list[tuple[int, int]]:
        """After every step, of all shards or of two in turn.

        What is durable is learnt here: it may be more than was promised.
        """
        topic, shards, told = self.store[name], self.topics[name].shards, []
        count = len(shards)
        for number in range(count) if turn is None else {turn % count, (turn + 1) % count}:
            shard = shards[number]
            durable = topic.durable(number)
            assert shard.durable <= durable <= shard.next, (
                f"{name} shard {number}: durable is {durable}, between {shard.durable} and"
                f" {shard.next} was promised"
            )
            shard.became_durable(durable)
            end = topic.end(number)
            assert end == shard.visible, f"{name} shard {number}: {end}, not {shard.visible}"
            told.append((end, durable))
        return told

    def everything(self, gaps: str = "yield", how: str = "read") -> None:
        for name in self.topics:
            self.read(name, Place(0, "offset"), None, shard=None, gaps=gaps, how=how)

    # -- the end of a life, and the next one --

    def close(self) -> None:
        self._drop_reader()
        self.store.close()
        for shard in self._shards():
            shard.closed(*self.now)

    def verify(self) -> None:
        report = esker.verify(ROOT, files=self.disk)
        assert report.ok, str(report)

    def reopen(self) -> str:
        self.store = self._open()
        assert self.store.recovery.clean, str(self.store.recovery)
        self.everything()
        return str(self.store.recovery)

    def die(self, fate: int | Fate | None) -> None:
        """The process dies, or the machine (a fate says what its disk keeps)."""
        self._drop_reader()
        abandon(self.store)
        self.disk = self.disk.kill() if fate is None else self.disk.crash(fate)
        self.store = self._open()
        labels = self.store.recovery.labels
        assert not NOT_BY_A_CRASH.intersection(labels), str(self.store.recovery)
        self.labels = sorted(labels)
        assert list(self.store) == sorted(self.topics), "what was deleted stays so"
        for name, plain in self.topics.items():
            assert name in self.store, f"{name} is gone"
            topic = self.store[name]
            for number, shard in enumerate(plain.shards):
                items = taken(topic.read(0, shard=number, gaps="yield"))
                death = "kill" if fate is None else "power"
                shard.settle(f"{name}/{number}", items, topic.end(number), death)  # type: ignore[arg-type]

    def _drop_reader(self) -> None:
        self.tails.clear()
        if self.reader is not None:
            abandon(self.reader)
            self.reader = None


# ---- rows in and out -------------------------------------------------------------------------


def fields(row: Row) -> dict[str, Any]:
    given = row._asdict()
    given["headers"] = None if row.headers is None else dict(row.headers)
    return given


def kept(row: Row) -> Row:
    return row._replace(headers=row.headers or None)


def _by_list(topic: Any, rows: list[Row], wait: bool) -> Any:
    plain = all(row[1:] == (None,) * 5 for row in rows)
    return topic.append_many(
        [row.value if plain else esker.Record(**fields(row)) for row in rows], wait=wait
    )


def _by_block(topic: Any, rows: list[Row], wait: bool) -> Any:
    with topic.batch(wait=wait) as batch:
        for row in rows:
            batch.append(**fields(row))
    return batch.span


def _by_arrow(topic: Any, rows: list[Row], wait: bool) -> Any:
    columns: dict[str, Any] = {"value": pa.array([row.value for row in rows], pa.binary())}
    kinds = {"key": pa.binary(), "tag": pa.string(), "node": pa.string(), "timestamp": pa.int64()}
    for name, kind in kinds.items():
        cells = [getattr(row, name) for row in rows]
        if any(cell is not None for cell in cells):
            columns[name] = pa.array(cells, kind)
    if any(row.headers for row in rows):
        cells = [list(row.headers) if row.headers is not None else None for row in rows]
        columns["headers"] = pa.array(cells, HEADERS)
    table = pa.table(columns)
    if len(rows) > 2:  # as it comes from elsewhere: several chunks, not beginning at their start
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    return topic.append_arrow(table, wait=wait)


GIVEN: dict[str, Callable[[Any, list[Row], bool], Any]] = {
    "many": _by_list, "batch": _by_block, "arrow": _by_arrow,
}  # fmt: skip


def _size(rows: list[Row]) -> int:
    """About how many bytes a batch takes on the disk."""
    return sum(len(row.value) + row.extra_bytes + 64 for row in rows)


def _limited(items: list[Any], limit: int | None) -> list[Any]:
    if limit is None:
        return items
    count = 0
    for index, item in enumerate(items):
        if count == limit:
            return items[:index]
        count += not isinstance(item, (Missing, str))
    return items


def _difference(what: str, found: list[Any], expected: list[Any]) -> str:
    at = next(
        (n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]),
        min(len(found), len(expected)),
    )
    return (
        f"{what}: {len(found)} items, not {len(expected)}; the first that differs is number {at}:"
        f" {found[at : at + 1]}, not {expected[at : at + 1]}"
    )
