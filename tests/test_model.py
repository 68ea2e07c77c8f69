"""A topic is a list that survives: whatever is done in whatever order, they agree."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import esker
from tests.helpers import FixedFiles, HandClock

VALUES = st.binary(max_size=60) | st.builds(lambda n: b"x" * n, st.sampled_from([500, 3000]))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
RECORDS = st.builds(
    esker.Record,
    VALUES,
    st.none() | st.binary(max_size=5),
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, st.binary(max_size=5), min_size=1, max_size=2),
    st.none() | st.integers(0, 2_000),
)
Row = tuple[Any, ...]


class TopicMachine(RuleBasedStateMachine):
    """One topic with tiny segments on a disk in memory, and the list it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FixedFiles()
        self.clock = HandClock(1_000)
        self.rows: list[Row] = []  # written: what readers must see
        self.pending: list[Row] = []  # buffered
        self.store: esker.Store | None = None

    @initialize(
        compression=st.sampled_from(["none", "zstd"]),
        durability=st.sampled_from(["disk", "fsync"]),
        records=st.sampled_from([0, 7]),
    )
    def create(self, compression: str, durability: str, records: int) -> None:
        self.open()
        self.topic = self.store.create(  # type: ignore[union-attr]
            "t", segment_bytes="24KiB", segment_records=records, durability=durability,
            compression=compression, compress_min_bytes=64,
        )  # fmt: skip

    def open(self) -> None:
        self.store = esker.open("/s", files=self.files, clock=self.clock, background=False)
        assert self.store.recovery.clean
        self.topic = self.store["t"]

    def row(self, record: esker.Record) -> Row:
        return (
            record.value, record.key, record.tag, record.node, record.headers or None,
            self.clock.us if record.timestamp is None else record.timestamp,
        )  # fmt: skip

    def written(self, records: list[esker.Record]) -> None:
        self.stamp()
        self.rows += self.pending
        self.pending = []
        self.rows += [self.row(record) for record in records]

    def stamp(self) -> None:
        """Buffered records get their time when they are written."""
        now = self.clock.us
        self.pending = [(*row[:5], now if row[5] is None else row[5]) for row in self.pending]

    @rule(record=RECORDS)
    def append(self, record: esker.Record) -> None:
        fields = {name: getattr(record, name) for name in ("key", "tag", "node", "headers")}
        offset = self.topic.append(record.value, **fields, timestamp=record.timestamp)
        assert offset == len(self.rows) + len(self.pending)
        self.pending.append((*self.row(record)[:5], record.timestamp))

    @rule(value=VALUES)
    def append_plain(self, value: bytes) -> None:
        assert self.topic.append(value) == len(self.rows) + len(self.pending)
        self.pending.append((value, None, None, None, None, None))

    @rule(record=RECORDS)
    def append_and_wait(self, record: esker.Record) -> None:
        fields = {name: getattr(record, name) for name in ("key", "tag", "node", "headers")}
        offset = self.topic.append(record.value, **fields, timestamp=record.timestamp, wait=True)
        assert offset == len(self.rows) + len(self.pending)
        self.written([record])

    @rule(records=st.lists(RECORDS, max_size=5))
    def append_many(self, records: list[esker.Record]) -> None:
        span = self.topic.append_many(records, wait=True)
        if records:
            assert span.first == len(self.rows) + len(self.pending)  # type: ignore[union-attr]
            self.written(records)

    @rule(count=st.integers(1, 60))
    def append_table(self, count: int) -> None:
        values = [b"%d" % n * (n % 9) for n in range(count)]
        self.topic.append_arrow(pa.table({"value": values}), wait=True)
        self.written([esker.Record(value) for value in values])

    @rule()
    def sync(self) -> None:
        self.topic.sync()
        self.written([])

    @rule(seconds=st.sampled_from([0.00001, 0.0001]))
    def wait(self, seconds: float) -> None:
        self.clock.forward(seconds)

    @rule()
    def seal(self) -> None:
        self.store.tick()  # type: ignore[union-attr]

    @rule()
    def reopen(self) -> None:
        assert self.store is not None
        self.store.close()
        self.written([])
        self.open()

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), most=st.sampled_from([1, 100, 5000, 1 << 20]))
    def read_some(self, data: st.DataObject, most: int) -> None:
        if self.topic.options.durability == "fsync":
            self.sync()
        start = data.draw(st.integers(0, len(self.rows)))
        stop = data.draw(st.integers(0, len(self.rows) + 1))
        batches = list(self.topic.batches(start, stop, max_bytes=most))
        assert all(len(batch) == 1 or batch.nbytes <= most for batch in batches)
        assert [self.row(r) for batch in batches for r in batch] == self.rows[start:stop]
        assert len(self.topic[start:stop]) == max(0, min(stop, len(self.rows)) - start)
        place = data.draw(st.integers(0, len(self.rows) - 1))
        assert self.row(self.topic[place]) == self.rows[place]

    @precondition(lambda self: self.rows)
    @rule(stamp=st.integers(0, 2_500))
    def find_a_time(self, stamp: int) -> None:
        if self.topic.options.durability == "fsync":
            self.sync()
        first = next((n for n, row in enumerate(self.rows) if row[5] >= stamp), len(self.rows))
        moment = f"@1970-01-01T00:00:00.{stamp:06d}"
        found = [record.offset for record in self.topic.read(moment, limit=1)]
        assert found == ([first] if first < len(self.rows) else [])

    @invariant()
    def agree(self) -> None:
        if self.store is not None:
            end = self.topic.end()
            assert end == len(self.rows) or self.topic.options.durability == "fsync"
            assert [self.row(record) for record in self.topic.read()] == self.rows[:end]

    def teardown(self) -> None:
        if self.store is None:
            return
        self.store.close()
        self.written([])
        self.open()
        self.agree()
        assert self.topic.end() == len(self.rows)
        self.store.close()
        assert esker.verify("/s", files=self.files).ok


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
