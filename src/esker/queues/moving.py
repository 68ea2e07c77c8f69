"""Jobs that go to another topic, exactly once: dead letters, and dead letters that are put back.

    MOVED in the log of leases, synced      the truth: from here on they belong to the other topic
    a batch is staged and attached          by writer and sequence, so a second try is dropped
    SETTLED in the log of leases            nothing is left to do

Moves that wait for their copies are copied together, under the sequence of the last of them: each
copy costs syncs and a segment, whether it is of one job or of thousands. Who commits says which
sequence he had seen before; should another process have copied some of them meanwhile, he has seen
too little, his batch is dropped, and he looks again.

Whoever dies between leaves a move that is not settled, and the next claim, in whatever process,
takes it up. A copy that cannot be made now (no room, or the process that writes the other topic
does not answer) is tried again; the jobs wait in the log, where they were, and are not lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from esker.engine.attach import abandon
from esker.engine.context import LOG
from esker.engine.delivery import deliver
from esker.engine.retention import refuse_batch
from esker.errors import AttachPending, EskerError, TopicFull
from esker.format.commit import Commit, Ticket
from esker.format.leases import Settled, count_of, offsets_of
from esker.options import HEADERS_MAX
from esker.queues.claiming import Missing, read
from esker.queues.job import DEAD, NOT_BEFORE
from esker.queues.lane import Lane
from esker.queues.leases import Move
from esker.records import Record

if TYPE_CHECKING:
    from esker.engine.store import Store

ATTACH_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0  # between tries at a copy that cannot be made
JOBS_MAX: Final = 10_000  # that are copied together

Numbered = tuple[int, Move]


class Origin(msgspec.Struct, frozen=True):
    """Where a dead letter comes from."""

    queue: str
    shard: int
    offset: int
    deliveries: int
    reason: str


def origin_of(record: Record) -> Origin | None:
    """Where a dead letter comes from; None if it is none."""
    cell = record.headers.get(DEAD) if record.headers else None
    try:
        return None if cell is None else msgspec.json.decode(cell, type=Origin)
    except msgspec.MsgspecError:
        return None


def writer_of(lane: Lane) -> str:
    """The name under which batches of this shard are attached elsewhere."""
    return f"esker queue {lane.topic._existing().id} shard {lane.number}"


def _together(moves: list[Numbered]) -> list[Numbered]:
    """The first of these, and those behind it that may go with it."""
    found: list[Numbered] = []
    jobs = 0
    for number, move in moves:
        jobs += count_of(move.runs)
        if found and (move.to != found[0][1].to or jobs > JOBS_MAX):
            break
        found.append((number, move))
    return found


class Mover:
    """Makes the copies."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._not_before = 0.0

    def attached(self, lane: Lane) -> int:
        """The last sequence that was attached."""
        return self._store.attached(writer_of(lane)) or 0

    def run(self, lane: Lane, *, now: bool = False) -> bool:
        """Make every copy that is to be made. Whether nothing is left to do."""
        if not lane.state.moving:
            return True
        clock = self._store._context.clock
        if not now and clock.monotonic() < self._not_before:
            return False
        try:
            moves = sorted(lane.state.moving.items())
            lane.settle()  # or a power cut could use these sequences for others
            while moves:
                self._copy(lane, _together(moves), ATTACH_SECONDS if now else 0.0)
                there = lane.state.moving
                moves = [each for each in moves if each[0] in there]
        except EskerError as problem:
            if now and not isinstance(problem, AttachPending):
                raise
            self._not_before = clock.monotonic() + AGAIN_SECONDS
            LOG.warning("jobs of queue %r wait to be moved: %s", self._name, problem)
            return False
        return True

    def _copy(self, lane: Lane, moves: list[Numbered], patience: float) -> None:
        """Copy these as one batch, or see to it that one is attached that was only committed.

        They are settled if they are there then; if somebody else was faster, those that are.
        """
        store, writer = self._store, writer_of(lane)
        last, sequence = self.attached(lane), moves[-1][0]
        fresh = [each for each in moves if each[0] > last]
        if len(fresh) == len(moves):
            tickets = self._stage(lane, moves)
            if tickets:
                batch = Commit(writer, sequence, tuple(tickets))
                try:
                    refuse_batch(store, batch)
                    deliver(store, batch, patience, after=last)
                except EskerError as problem:
                    abandon(store._context, tickets)  # or every try would leave some
                    if not isinstance(problem, TopicFull) or len(moves) == 1:
                        raise
                    self._copy(lane, moves[:1], patience)  # there may be room for some
                    return
                last = self.attached(lane)
            else:
                last = sequence  # all of them are gone
        else:
            store.attach(writer, last, [], timeout=patience)
        with lane:
            there = lane.state.moving
            done = [Settled(each) for each, _ in moves if each <= last and each in there]
            if done:
                lane.commit([*done])

    def _stage(self, lane: Lane, moves: list[Numbered]) -> list[Ticket]:
        target = self._store[moves[0][1].to]
        stages: dict[int, list[Record]] = {}
        for _, move in moves:
            for record in self._records(lane, move):
                shard, made = self._letter(lane, move, record, target.shards)
                stages.setdefault(shard, []).append(made)
        tickets: list[Ticket] = []
        for shard, letters in sorted(stages.items()):
            with self._store.stage(target.name, shard) as stage:
                stage.append_many(letters)
            tickets += stage.tickets
        return tickets

    def _records(self, lane: Lane, move: Move) -> list[Record]:
        found: list[Record] = []
        for at in range(0, len(move.runs), 2):
            first, end = move.runs[at], move.runs[at] + move.runs[at + 1]
            for each in read(lane, first, end):
                if isinstance(each, Missing):
                    LOG.warning(
                        "queue %r: jobs %d..%d of shard %d are gone, and cannot be moved to %r",
                        self._name, each.first, each.end - 1, lane.number, move.to,
                    )  # fmt: skip
                else:
                    found += each
        return found

    def _letter(self, lane: Lane, move: Move, record: Record, shards: int) -> tuple[int, Record]:
        """What a job becomes elsewhere, and in which shard."""
        headers: dict[str, bytes] = dict(record.headers or {})
        headers.pop(NOT_BEFORE, None)
        before = origin_of(record)
        headers.pop(DEAD, None)
        shard = lane.number
        if before is not None and before.queue == move.to:
            shard = before.shard  # it goes home
        elif len(headers) < HEADERS_MAX:
            at = offsets_of(move.runs).index(record.offset)
            said = Origin(
                self._name, lane.number, record.offset, move.deliveries[at], move.reasons[at]
            )
            headers[DEAD] = msgspec.json.encode(said)
        made = msgspec.structs.replace(record, headers=headers or None)
        return shard % shards, made
