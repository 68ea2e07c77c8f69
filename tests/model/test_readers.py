"""Groups and routes are cursors over a list: whatever is done in whatever order, nothing is left
out.

A Hypothesis state machine beside that of test_model.py, which knows what a topic holds. Here the
topic is what it is, and the model is what its readers were given and gave back: of each group, what
each shard has delivered, what was acked, and where its cursor may be. It checks I13 after every
step (a cursor is never behind a hole, never beyond what is durable, never back by itself), that
nothing behind a cursor is passed over, and that routes bring everything to their destinations, one
of them exactly once, and nothing that the source has lost.

Members come and go, in two handles of one store; processes are killed, machines lose power.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import esker
from esker.groups.registry import Groups
from esker.testing import ManualClock, SimulatedDisk
from tests.helpers import abandon
from tests.model.sides import ROOT
from tests.model.test_model import _seed_alone as seed_alone
from tests.suites import SEED, Tallies, scaled

pytestmark = [pytest.mark.crash, pytest.mark.suite, pytest.mark.timeout(900)]

LOTS: Final = 4
EXAMPLES: Final = 40  # of a lot, at scale 1
STEPS: Final = 50
LOST: Final = b"lost"  # in the place of a record that a power cut has taken
LIFE_MIN: Final = 12  # steps, at the least
GROUPS: Final = ("g0", "g1")
EVENTS: Final = (
    "acked", "acked in part", "acked late", "fenced", "rewound", "moved", "two members", "paused",
    "killed", "lost power", "forwarded",
)  # fmt: skip
INDEX = st.integers(0, 255)


class Reading:
    """What one group was given and gave back in one shard."""

    def __init__(self, begin: int) -> None:
        self.begin = begin  # all before it is done with
        self.cursor = begin  # as last seen
        self.sure = begin  # survives power loss
        self.had: set[int] = set()
        self.acked: set[int] = set()

    def most(self, earliest: int, log: list[bytes]) -> int:
        """As far as the cursor may be."""
        at = max(self.begin, earliest)
        while at in self.acked or (at < len(log) and log[at] is LOST):
            at += 1
        return at


class Readers(RuleBasedStateMachine):
    def __init__(self, count: Callable[[str], None]) -> None:
        super().__init__()
        self._count = count
        self.steps = 0  # of this life
        self.clock = ManualClock(1_000_000_000)
        self.disk = SimulatedDisk(3)
        self.serial = 0
        self.log: list[list[bytes]] = []  # of each shard, by offset
        self.lost: set[bytes] = set()
        self.groups: dict[str, list[Reading]] = {}
        self.handles: dict[str, list[esker.Group]] = {}
        self.out: dict[str, list[Any]] = {}  # batches that did not come back

    @initialize(durability=st.sampled_from(["fsync", "disk"]), shards=st.sampled_from([1, 2, 3]))
    def begin(self, durability: str, shards: int) -> None:
        self.open()
        topic = self.store.create("t", durability=durability, shards=shards, segment_bytes=4096)
        self.log = [[] for _ in range(shards)]
        self.store.route("t", "all")
        self.store.route("t", "once", exactly_once=True, where='tag == "x"')
        for name in GROUPS:
            topic.group(name).close()
            self.groups[name] = [Reading(0) for _ in range(shards)]
            self.handles[name], self.out[name] = [], []
        for key in range(4):
            self.append(4, key, True)

    def count(self, event: str) -> None:
        self._count(event)
        self.steps += 1

    def open(self) -> None:
        self.store = esker.open(
            ROOT, files=self.disk, clock=self.clock, background=False, sync_interval=0.05
        )

    @property
    def topic(self) -> esker.Topic:
        return self.store["t"]

    def shards(self) -> range:
        return range(len(self.log))

    # ---- the topic -----------------------------------------------------------------------

    @rule(many=st.integers(1, 6), key=INDEX, wait=st.booleans())
    def append(self, many: int, key: int, wait: bool) -> None:
        rows = []
        for _ in range(many):
            self.serial += 1
            tag = "x" if self.serial % 3 else None
            rows.append(esker.Record(b"%d" % self.serial, key=b"%d" % (key % 5), tag=tag))
        told = self.topic.append_many(rows, wait=wait)
        (span,) = told if isinstance(told, list) else [told]  # one key, one shard
        self.log[span.shard] += [row.value for row in rows]
        self.count("step")

    @rule(seconds=st.sampled_from([0.0, 0.1, 2.0]))
    def tick(self, seconds: float) -> None:
        self.clock.forward(seconds)
        self.store.tick()
        self.count("forwarded" if len(self.store["all"]) else "step")

    @rule(shard=INDEX, share=st.integers(0, 3))
    def delete(self, shard: int, share: int) -> None:
        number = shard % len(self.log)
        self.topic.delete(len(self.log[number]) * share // 8, shard=number)
        self.count("step")

    # ---- groups --------------------------------------------------------------------------

    @rule(group=st.sampled_from(GROUPS))
    def join(self, group: str) -> None:
        if len(self.handles[group]) < 2:
            self.handles[group].append(self.topic.group(group, session=1.0, gaps="skip"))
            self.count("two members" if len(self.handles[group]) == 2 else "step")

    @rule(group=st.sampled_from(GROUPS), index=INDEX, most=st.integers(1, 5))
    def poll(self, group: str, index: int, most: int) -> None:
        if not self.handles[group]:
            self.join(group)
        for handle in self.some(group, index):
            for batch in handle.poll(max_records=most):
                reading, shard = self.groups[group][batch.shard], batch.shard
                offsets = batch.offsets.to_pylist()
                assert batch.values == [self.log[shard][offset] for offset in offsets]
                begin = max(self.cursor(group, shard), self.topic.earliest(shard))
                passed = {
                    offset
                    for offset in range(begin, offsets[0])
                    if self.log[shard][offset] is not LOST
                }
                passed -= reading.had | reading.acked
                assert not passed, f"{group}, shard {shard}: {sorted(passed)} were passed over"
                reading.had.update(offsets)
                self.out[group].append(batch)
            self.count("step")

    @rule(group=st.sampled_from(GROUPS), index=INDEX, part=st.sampled_from([0, 0, 1, 2]))
    def ack(self, group: str, index: int, part: int) -> None:
        out = self.out[group]
        if not out:
            self.poll(group, index, 1 + index % 4)
        if not out:
            return
        batch = out.pop(index % len(out) if part else 0)
        offsets = batch.offsets.to_pylist()
        upto = offsets[len(offsets) // 2] if part == 2 else offsets[-1]
        try:
            batch.ack(upto=upto)
        except esker.Fenced:
            self.count("fenced")
            return
        covered = range(batch._first, batch.next_offset if part != 2 else upto + 1)
        self.groups[group][batch.shard].acked.update(covered)
        self.count({0: "acked", 1: "acked late", 2: "acked in part"}[part])

    @rule(group=st.sampled_from(GROUPS), index=INDEX,
          how=st.sampled_from(["rewind", "sync", "leave", "leave", "pause", "resume"]))  # fmt: skip
    def other(self, group: str, index: int, how: str) -> None:
        for handle in self.some(group, index):
            if how == "rewind":
                handle.rewind()
                self.count("rewound")
            elif how == "pause":
                handle.pause()
                assert list(handle.poll()) == []
                handle.resume()
                self.count("paused")
            elif how == "sync":
                handle.sync(timeout=5)
                self.sure(group)
            elif how == "leave":
                handle.close()
                self.handles[group].remove(handle)
            self.count("step")

    @rule(group=st.sampled_from(GROUPS), index=INDEX, back=st.integers(0, 9))
    def seek(self, group: str, index: int, back: int) -> None:
        for handle in self.some(group, index):
            shard = index % len(self.log)
            place = max(0, self.topic.end(shard) - back)
            (move,) = handle.seek(place, shard)
            self.groups[group][shard] = Reading(move.after)
            self.count("moved")

    def some(self, group: str, index: int) -> list[esker.Group]:
        handles = self.handles[group]
        return [handles[index % len(handles)]] if handles else []

    def cursor(self, group: str, shard: int) -> int:
        """As the page says, which is what everybody sees."""
        page = Groups.of(self.store._context).page(self.topic, shard)
        page.map(writable=False)
        slot = page.find(group)
        assert slot is not None, f"group {group} is gone"
        return slot.cursor

    def sure(self, group: str) -> None:
        for shard, reading in enumerate(self.groups[group]):
            reading.sure = max(reading.sure, min(self.cursor(group, shard), reading.cursor))

    @invariant()
    def cursors_are_where_they_may_be(self) -> None:
        """I13."""
        for group, readings in self.groups.items():
            for shard, reading in enumerate(readings):
                cursor = self.cursor(group, shard)
                most = reading.most(self.topic.earliest(shard), self.log[shard])
                assert reading.cursor <= cursor, f"{group}/{shard}: back to {cursor}"
                assert cursor <= most, f"{group}/{shard}: {cursor}, and acked is up to {most}"
                durable = max(self.topic.durable(shard), self.topic.earliest(shard))
                assert cursor <= max(durable, reading.begin), f"{cursor} is beyond what is durable"
                reading.cursor = cursor

    # ---- the end of a life ---------------------------------------------------------------

    @precondition(lambda self: self.steps >= LIFE_MIN)
    @rule(fate=st.none() | st.integers(0, 1 << 20))
    def die(self, fate: int | None) -> None:
        self.cursors_are_where_they_may_be()
        abandon(self.store)
        self.disk = self.disk.kill() if fate is None else self.disk.crash(fate)
        self.open()
        self.count("killed" if fate is None else "lost power")
        self.settle(powerless=fate is not None)

    @precondition(lambda self: self.steps >= LIFE_MIN)
    @rule()
    def restart(self) -> None:
        self.store.close()
        self.open()
        self.count("step")
        self.settle(powerless=False)

    def settle(self, *, powerless: bool) -> None:
        """What is there now is what the next life begins with."""
        self.steps = 0
        for shard in self.shards():
            end = self.topic.end(shard)
            known = self.log[shard]
            self.lost.update(known[end:])
            known[end:] = [LOST] * (end - len(known))
            there = {record.offset for record in self.topic.read(0, shard=shard, gaps="skip")}
            for offset in range(self.topic.earliest(shard), end):
                if offset not in there:
                    self.lost.add(known[offset])
                    known[offset] = LOST
            for name, readings in self.groups.items():
                reading, cursor = readings[shard], self.cursor(name, shard)
                least = reading.sure if powerless else reading.cursor
                most = max(
                    reading.most(self.topic.earliest(shard), self.log[shard]), reading.cursor
                )
                assert least <= cursor <= most, f"{name}/{shard}: {cursor}, not {least}..{most}"
                readings[shard] = Reading(cursor)
        for name in GROUPS:
            self.handles[name], self.out[name] = [], []

    def teardown(self) -> None:
        if not self.groups:
            return
        self.store.close()
        self.open()
        self.store.sync()
        for _ in range(4):
            self.clock.forward(2)
            self.store.tick()
        there = [
            (record.value, record.tag)
            for shard in self.shards()
            for record in self.topic.read(0, shard=shard, gaps="skip")
        ]
        for name, wanted in (
            ("all", {value for value, _ in there}),
            ("once", {value for value, tag in there if tag}),
        ):
            found = [record.value for record in self.store[name].read(gaps="skip")]
            assert wanted <= set(found), f"{name}: {wanted - set(found)} were not forwarded"
            assert not self.lost & set(found), f"{name} has what the source has lost"
            assert name == "all" or len(found) == len(set(found)), "exactly once, and twice there"
        for name, readings in self.groups.items():
            with self.topic.group(name, gaps="skip") as group:
                ends = [self.topic.end(shard) for shard in self.shards()]
                while batches := list(group.poll()):
                    for batch in batches:
                        readings[batch.shard].had.update(batch.offsets.to_pylist())
                        batch.ack()
                assert list(group.cursors().values()) == ends, "all of it was read and acked"
        self.store.close()
        with suppress(esker.EskerError):
            assert esker.verify(ROOT, files=self.disk).ok


@pytest.mark.parametrize("lot", range(LOTS))
def test_whatever_happens_readers_leave_nothing_out(lot: int, tally: Tallies) -> None:
    suite = tally("reader steps", lots=LOTS)
    seen: set[str] = set()

    def count(event: str) -> None:
        suite.count += 1
        seen.add(event)
        if event != "step":
            suite.also[event] += 1

    with seed_alone():
        run_state_machine_as_test(
            seed(SEED * 1000 + lot)(lambda: Readers(count)),
            settings=settings(
                max_examples=scaled(EXAMPLES, 5), stateful_step_count=STEPS, deadline=None,
                database=None, suppress_health_check=list(HealthCheck),
                phases=(Phase.generate, Phase.shrink),
            ),
        )  # fmt: skip
    if scaled(EXAMPLES) >= EXAMPLES:
        assert len(set(EVENTS) - seen) <= 3, "too little happened"
