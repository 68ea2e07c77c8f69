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
        """Append these; those of one shard as one atomic batch."""
        base, count = priority * self._shards, self._shards
        if count == 1:
            return [self._append(base, records, wait, [base])]
        parts: dict[int, list[Record]] = {}
        keyless: list[Record] = []
        for record in records:
            key = intake.key_of(record.key)
            if key is None:
                keyless.append(record)
            else:
                parts.setdefault(base + intake.fnv1a(key) % count, []).append(record)
        spans = [self._append(shard, some, wait, [shard]) for shard, some in sorted(parts.items())]
        if keyless:
            self._turn += 1
            turns = [base + (self._turn + step) % count for step in range(count)]
            spans.append(self._append(turns[0], keyless, wait, turns))
        return spans

    def _append(
        self, shard: int, records: list[Record], wait: bool | float, choices: list[int]
    ) -> Span:
        topic, now = self._topic, self._store._context.clock.now_us()
        values, extras = intake.many(records, topic._limit())
        bodies = intake.encode(values, extras, now)
        for choice in choices:
            try:
                spans = topic._append_bodies(topic._shards[choice], bodies, wait, now, atomic=True)
            except WriterBusy:
                continue
            return spans[0]
        return self._hand_over(shard, records)

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
