"""Putting jobs in: an append, wherever the shards are written.

A job goes to a shard of its priority: the one of its key, or the next in turn. If another process
writes that shard, one that is free is taken; if there is none, or the key leaves no choice, the
jobs are staged and attached by the process that has it (engine/attach.py). So any process may put.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from esker.engine import attach, intake
from esker.errors import AttachPending, WriterBusy
from esker.format.columns import Body, Extra
from esker.records import Record, Span

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic


class Putter:
    """Appends to chosen shards of a topic."""

    def __init__(self, store: Store, topic: Topic, shards: int) -> None:
        self._store = store
        self._topic = topic
        self._shards = shards  # of each priority
        self._turn = 0

    def put(self, records: list[Record], priority: int, wait: bool | float) -> list[Span]:
        """Append these; those of one shard as one atomic batch. All are checked before any is."""
        topic, now = self._topic, self._store._context.clock.now_us()
        values, extras = intake.many(records, topic._limit())
        parts = []
        for choices, rows in self._divided(len(values), extras, priority * self._shards):
            some = [values[row] for row in rows]
            more = {at: extras[row] for at, row in enumerate(rows) if row in extras}
            bodies = intake.encode(some, more, now)
            topic._check_fits(bodies, atomic=True)
            topic._refuse(topic._shards[choices[0]], bodies)
            parts.append((choices, rows, bodies))
        return [
            self._append([records[row] for row in rows], bodies, now, wait, choices)
            for choices, rows, bodies in parts
        ]

    def _divided(
        self, count: int, extras: dict[int, Extra], base: int
    ) -> list[tuple[list[int], list[int]]]:
        """Rows that go together, each with the shards that it may go to, the best one first."""
        if self._shards == 1:
            return [([base], list(range(count)))]
        parts: dict[int, list[int]] = {}
        keyless: list[int] = []
        for row in range(count):
            key = extras[row][0] if row in extras else None
            if key is None:
                keyless.append(row)
            else:
                parts.setdefault(base + intake.fnv1a(key) % self._shards, []).append(row)
        found = [([shard], rows) for shard, rows in sorted(parts.items())]
        if keyless:
            self._turn += 1
            turns = [base + (self._turn + step) % self._shards for step in range(self._shards)]
            found.append((turns, keyless))
        return found

    def _append(
        self, records: list[Record], bodies: list[Body], now: int, wait: bool | float,
        choices: list[int],
    ) -> Span:  # fmt: skip
        topic = self._topic
        for choice in choices:
            try:
                spans = topic._append_bodies(topic._shards[choice], bodies, wait, now, atomic=True)
            except WriterBusy:
                continue
            return spans[0]
        return self._hand_over(choices[0], records)

    def _hand_over(self, shard: int, records: list[Record]) -> Span:
        """Another process writes that shard: it attaches what is staged here.

        Committed is put: should that process take its time, the jobs come when it does.
        """
        store = self._store
        writer = f"esker put {store._context.files.random(16).hex()}"
        with store.stage(self._topic.name, shard) as stage:
            count = stage.append_many(records)
        with suppress(AttachPending):
            store.attach(writer, 1, stage.tickets)
            attach.forget(store._context, writer)
        return Span(shard, -1, count)
