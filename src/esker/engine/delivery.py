"""A batch made elsewhere, from its commit until everybody sees it.

attach.py knows how one segment becomes a part of one shard. Here it is done for the whole batch:
what this process can attach it attaches; for the shards that other processes write it waits, and
says for whom if that takes too long. What a dead process had committed and not attached is found
when a store is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from esker.engine.attach import attach_all, collect, commit, commits, committed_before, pending
from esker.engine.findings import Finding
from esker.engine.layout import list_segments, shard_folder
from esker.engine.shard import Shard
from esker.errors import AttachPending, Corruption, WriterBusy
from esker.format import names
from esker.format.commit import Commit, Ticket
from esker.storage.files import join

if TYPE_CHECKING:
    from esker.engine.store import Store

LOOK_SECONDS: Final = 0.01  # between looks whether another process has attached a segment

_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping


def deliver(store: Store, batch: Commit, limit: float | None, *, after: int | None = None) -> bool:
    """Commit a batch and wait until it is attached. False if it was committed before.

    With `after` it is committed only if that is the number of the writer's last batch (0: there
    was none); else it is dropped as well.
    """
    context = store._context
    _settle_before(store, batch)
    committed = commit(context, batch.writer, batch.sequence, batch.tickets, batch.once, after)
    for folder in {shard_folder(store.path, each.topic, each.shard) for each in batch.tickets}:
        collect(context, folder)
    mine = [batch] if committed else committed_before(context, batch.writer)
    deadline = context.clock.monotonic() + (limit or 0.0)
    elsewhere: set[tuple[int, int]] = set()
    while left := _attach(store, mine):
        elsewhere.update((ticket.topic, ticket.shard) for ticket in left)
        if limit is not None and context.clock.monotonic() >= deadline:
            raise _still_pending(store, batch, left)
        _PAUSE.wait(LOOK_SECONDS)
    while not all(_shows(store, *place) for place in elsewhere):
        if limit is not None and context.clock.monotonic() >= deadline:
            break  # they are attached; who did it has yet to say so
        _PAUSE.wait(LOOK_SECONDS)
    return committed


def _settle_before(store: Store, batch: Commit) -> None:
    """What this process has appended before a batch is durable before it is."""
    context = store._context
    places = {(ticket.topic, ticket.shard) for ticket in batch.tickets}
    ours = [s for s in context.shards if s.writing and (s.entry.id, s.number) in places]
    for shard in ours:
        with shard.lock:
            shard._flush()
    for problem in context.committer.make_durable(ours).values():
        raise problem


def _attach(store: Store, batches: Iterable[Commit]) -> list[Ticket]:
    """Attach what this process can; what it took for that it lets go again."""

    def shard_of(topic: int, number: int) -> Shard | None:
        shard = store._shard(topic, number)
        if shard is not None and not shard.writing:
            try:
                with shard.lock:
                    shard.open_for_writing()
            except WriterBusy:
                return None
            handing_back.callback(shard.hand_back)
        return shard

    with ExitStack() as handing_back:
        return attach_all(store._context, batches, shard_of)


def _shows(store: Store, topic: int, number: int) -> bool:
    """Whether readers see what another process has attached; it says so a moment later."""
    shard = store._shard(topic, number)
    if shard is None:
        return True  # deleted
    sealed = [n.base for n in list_segments(shard.files, shard.folder) if n.sealed]
    return not sealed or store[shard.entry.name].end(number) > sealed[-1]


def _still_pending(store: Store, batch: Commit, left: list[Ticket]) -> AttachPending:
    shard = shard_folder(store.path, left[0].topic, left[0].shard)
    holder = store._context.files.holder(join(shard, names.LOCK))
    who = f"process {holder.pid}" if holder is not None else "another process"
    return AttachPending(
        f"batch {batch.sequence} of {batch.writer!r} is committed, but {len(left)} of its "
        f"segments wait for {who}, which holds {shard} and has not attached them. It does so "
        "while its store is open with background=True and not paused, or when it calls "
        "store.tick(); "
        "else they are attached when the store is next opened for writing"
    )


def attach_left(store: Store) -> None:
    """Batches that were committed by somebody who died before they were attached."""
    context, findings = store._context, store.recovery.findings
    batches: list[Commit] = []
    for found in commits(context):
        if isinstance(found, Corruption):
            where = (found.path or store.path, found.reason)
            findings.append(Finding("corrupt_commit", *where))
        elif pending(context, found):
            batches.append(found)
    for batch in batches:
        many = len(pending(context, batch))
        folder = join(store.path, names.STAGING)
        about = f"batch {batch.sequence} of {batch.writer!r}, {many} segments"
        try:
            left = [*batch.tickets] if context.read_only else _attach(store, [batch])
        except Corruption as problem:
            findings.append(Finding("corrupt_commit", folder, f"{about}: {problem}"))
            continue
        label = "unrecovered" if left else "unfinished_attach"
        findings.append(Finding(label, folder, about))
