"""Many processes that append to one store.

    slots       every handle that appends to shared topics holds the lock of a slot, for as long as
                it is open. The kernel drops it when the process dies, so a slot is never held by
                somebody who is gone, and a process id that is used again means nothing
    shards      a record without a key goes to a shard that this process writes or can get. Alone,
                a process takes all of them in turn. Beside others it keeps to those it has, takes a
                free one if it has none, and gives back what is beyond its share
    handover    a record with a key belongs to one shard. If another process writes that, the batch
                is refused, and the error names the process; or, with handover=True, it is staged
                and committed (attach.py), and the writer of the shard makes it a part of the log

A batch is handed over exactly once: its commit is atomic, and it is attached once. One with an
idempotency key is dropped by the writer if it knows the key (once.py).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from esker.engine import attach, delivery, once, retention
from esker.engine.shard import Shard
from esker.errors import AttachPending, StorageError, WriterBusy
from esker.format import names
from esker.format.columns import Body
from esker.format.commit import Commit, Ticket
from esker.format.once import Mark, Place, encode_mark
from esker.storage.files import Holder, Lock, join

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.writing import Writing

LOOK_SECONDS: Final = 0.5  # between looks who else is there
PAUSE_SECONDS: Final = 0.02
LOOKS: Final = 300  # for a shard that is given back: the background does so every five seconds
HANDOVER_SECONDS: Final = 30.0  # that a batch may take, unless the caller says otherwise
SLOTS_MAX: Final = 10_000
_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping
WRITER: Final = "esker handover"  # and the slot: whose batches these are


class Slots:
    """The slot of one handle, and who else has one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards everything here but _sequence
        self._delivering = threading.Lock()  # held while a batch is handed over; guards _sequence
        self._held: Lock | None = None
        self._number = -1
        self._sequence = -1
        self._others: list[int] = []
        self._looked = float("-inf")

    def number(self) -> int:
        """The slot of this handle; the lowest free one is taken when it is first asked for."""
        with self._lock:
            return self._take()

    def _take(self) -> int:
        if self._held is None:
            context = self._store._context
            context.require_writable()
            folder = join(context.root, names.PROCESSES)
            if not context.files.kind(folder):
                context.files.make_dir(folder)
            for number in range(SLOTS_MAX):
                found = context.files.lock(join(folder, names.slot(number)), context.note)
                if not isinstance(found, Holder):
                    self._held, self._number = found, number
                    break
            else:
                raise StorageError(f"more than {SLOTS_MAX} handles write {context.root}")
        return self._number

    def holders(self) -> dict[int, int]:
        """Every slot that is held now, and the process that holds it."""
        context = self._store._context
        folder = join(context.root, names.PROCESSES)
        numbers = (names.parse_slot(name) for name in context.files.list(folder))
        held = {
            number: context.files.holder(join(folder, names.slot(number)))
            for number in sorted(number for number in numbers if number is not None)
        }
        return {number: holder.pid for number, holder in held.items() if holder is not None}

    @property
    def held(self) -> bool:
        return self._held is not None

    def share(self, looking: bool = True) -> tuple[int, int]:
        """Which of how many this handle is among those that append, as of the last look."""
        if looking:
            with self._lock:
                mine, now = self._take(), self._store._context.clock.monotonic()
                if now - self._looked >= LOOK_SECONDS:
                    self._others = [number for number in self.holders() if number != mine]
                    self._looked = now
        others = self._others
        return sum(number < self._number for number in others), len(others) + 1

    def release(self) -> None:
        """Let somebody else have the slot."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def let_go(self) -> None:
        """In a forked child: close our copy of the lock; the parent keeps it."""
        self._lock = threading.Lock()
        self.release()

    def _writer(self) -> str:
        return f"{WRITER} {self.number():04d}"

    def committed(self, tickets: list[Ticket]) -> bool:
        """Whether the last batch of this slot is that of these segments."""
        before = attach.committed_before(self._store._context, self._writer())
        return any(ticket in batch.tickets for batch in before for ticket in tickets)

    def deliver(self, tickets: list[Ticket], mark: bytes, limit: float) -> None:
        """Commit staged segments as the next batch of this slot, and wait until it is attached."""
        with self._delivering:
            store, writer = self._store, self._writer()
            if self._sequence < 0:
                self._sequence = store.attached(writer) or 0
            batch = Commit(writer, self._sequence + 1, tuple(tickets), mark)
            retention.refuse_batch(store, batch)
            self._sequence += 1
            delivery.deliver(store, batch, limit)


# ---- which shard -----------------------------------------------------------------------------


def next_shard(topic: Writing, looking: bool = True) -> Shard:
    """A shard for records without a key: the next one that this process writes, or can get.

    Without `looking` no file is touched, and nobody is waited for.
    """
    shards, slots = topic._shards, topic._store._slots
    rank, handles = slots.share(looking)
    if looking and handles > 1:
        give_back(topic)
    ours = [shard for shard in shards if shard.writing]
    if ours and (handles > 1 or not looking):
        topic._turn += 1
        return ours[topic._turn % len(ours)]
    topic._turn += 1 if ours else rank  # a process that comes later begins with another one
    for _ in range(LOOKS if looking and 1 < handles <= len(shards) else 1):
        for step in range(len(shards)):
            shard = shards[(topic._turn + step) % len(shards)]
            if shard.writing or shard.poison is not None or (looking and _taken(shard)):
                topic._turn += step
                return shard
        if handles > 1:
            _PAUSE.wait(PAUSE_SECONDS)  # whoever has more than his share gives one back
    return shards[topic._turn % len(shards)]  # all of them have a writer: who appends is told


def have_another(topic: Writing) -> bool:
    """Whether a record without a key can go elsewhere: its shard was given back just now."""
    return any(shard.writing for shard in topic._shards)


def _taken(shard: Shard) -> bool:
    try:
        with shard.lock:
            shard.open_for_writing()
    except WriterBusy:
        return False
    return True


def give_back(topic: Writing) -> None:
    """Let others have the shards of a topic that are beyond our share."""
    shards = topic._shards
    rank, handles = topic._store._slots.share(looking=False)
    ours = [shard for shard in shards if shard.writing]
    spare = [each for each in ours if each.number % handles != rank and each.poison is None]
    beyond = len(ours) + len(shards) // -handles  # our share is rounded up
    for shard in spare[-beyond:] if beyond > 0 else ():
        with shard.lock:
            shard._flush()
        committer = shard.context.committer
        for problem in committer.make_durable([shard]).values():
            raise problem
        committer.checkpoint()  # who takes it must not find it in a journal of ours
        shard.hand_back()
        shard.wake()  # who waits here for records of ours has to look for those of others


def give_back_all(store: Store) -> None:
    """The same for every topic, where nobody appends: for the background."""
    if store._slots.held and store._slots.share()[1] > 1:
        for topic in list(store._topics.values()):
            if len(topic._shards) > 1:
                give_back(topic)


# ---- handing over ----------------------------------------------------------------------------


def append_elsewhere(
    topic: Writing, shard: Shard, mark: Mark, bodies: once.Bodies, wait: bool | float,
    busy: WriterBusy,
) -> Place:  # fmt: skip
    """A batch with a mark, for a shard that another process writes: known there, or handed over."""
    found, mark = once.known_elsewhere(topic, shard, mark)
    if found is None:
        made = bodies(mark)
        topic._check_fits(made, True)
        found = hand_over(topic, shard, made, wait, busy, encode_mark(mark))
    if found is None:  # it was known to the writer, and dropped
        found, _ = once.known_elsewhere(topic, shard, mark)
    return found or _vanished(topic, shard)


def handed_over(
    topic: Writing, shard: Shard, bodies: list[Body], wait: bool | float, busy: WriterBusy
) -> int:
    """A batch without a mark: hand it over; returns its first offset."""
    return (hand_over(topic, shard, bodies, wait, busy) or _vanished(topic, shard)).offset


def _vanished(topic: Writing, shard: Shard) -> Place:
    raise StorageError(
        f"a batch was handed to the process that writes topic {topic.name!r} shard {shard.number} "
        "and is a part of its log, but evicted before its offsets could be told",
        path=shard.folder,
    )


def hand_over(
    topic: Writing, shard: Shard, bodies: list[Body], wait: bool | float, busy: WriterBusy,
    mark: bytes = b"",
) -> Place | None:  # fmt: skip
    """Give a batch to the process that writes its shard, and wait until it is there.

    Returns where it is; None for one with a mark that was there before. Without handover=True it
    is refused.
    """
    store = topic._store
    if not store._context.options.handover or shard.durability == "ephemeral":
        raise busy
    stage = store.stage(topic.name, shard.number)
    with stage:
        stage.append_bodies(bodies)
    tickets = stage.tickets
    limit = HANDOVER_SECONDS if isinstance(wait, bool) else float(wait)
    try:
        store._slots.deliver(tickets, mark, limit)
    except BaseException as problem:
        attach.abandon(store._context, tickets)  # unless it was committed
        if isinstance(problem, AttachPending) and not store._slots.committed(tickets):
            raise busy from problem  # one before it still waits: this one was not accepted
        raise
    return _found(topic, shard.number, tickets)


def _found(topic: Writing, number: int, tickets: list[Ticket]) -> Place | None:
    """Where the staged segments are now. A segment keeps its salt, whatever becomes of it."""
    bases = {}
    for segment in reversed(topic._view(number).segments):
        bases[segment.header.salt] = segment.base
        if all(ticket.salt in bases for ticket in tickets):
            return Place(bases[tickets[0].salt], sum(ticket.rows for ticket in tickets))
    return None
