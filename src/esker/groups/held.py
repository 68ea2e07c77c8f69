"""A shard that a member owns: the one place from which a cursor is moved.

Of what it hands out and what comes back it keeps four offsets, each never above the one before:

    position   where the next batch begins (below, after a rewind)
    handed     end of what was handed out
    acked      all before it came back, or needs nobody to come back
    stored     what the page says: acked, and durable

An ack is one store, into the cell of this generation. Behind it the other term of the slot is
looked at, which is where a successor announces itself. The group's lock is held by whoever calls;
it keeps threads of this process apart, and nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esker.errors import Fenced, InvalidOption
from esker.format import offsets as fmt
from esker.format.checksum import MASK64
from esker.format.offsets import Slot
from esker.groups.acks import Acks
from esker.groups.registry import Groups
from esker.storage.offsets import OffsetsFile, place_of

if TYPE_CHECKING:
    from esker.engine.topic import Topic

LOOK_SECONDS = 0.005  # between looks at how far another process has synced


class Held:
    """One shard of one group, under one generation."""

    __slots__ = (
        "_acks",
        "_base",
        "_cell",
        "_clock",
        "_counted",
        "_dirty",
        "_head",
        "_limit",
        "_look",
        "_near",
        "_registry",
        "_rival",
        "_rival_head",
        "_seed",
        "_topic",
        "_updated",
        "_words",
        "fenced",
        "group",
        "handed",
        "leaving",
        "number",
        "open_gap",
        "page",
        "position",
        "slot",
        "stored",
        "unclaimed",
    )  # fmt: skip

    def __init__(
        self, group: str, topic: Topic, number: int, page: OffsetsFile, slot: Slot,
        registry: Groups,
    ) -> None:  # fmt: skip
        self.group = group
        self.number = number
        self.page = page
        self.slot = slot
        self.position = self.handed = self.stored = self.unclaimed = slot.cursor
        self.open_gap = False  # a gap was told, and nothing behind it was handed out
        self.leaving = 0.0  # since when it is to be let go
        self.fenced = False
        self._acks = Acks(slot.cursor)
        self._topic = topic
        self._registry = registry
        self._clock = topic._store._context.clock
        self._limit = 0  # durable, as far as we know
        self._near = 0  # the same, as far as a cell reaches
        self._counted = slot.cursor
        self._dirty = registry.dirty
        self._look = 0.0
        place, term = place_of(slot.number), slot.term
        self._words = page.words
        self._base = term.base
        self._cell = place + fmt.CELL + term.generation % 4
        self._head = place + fmt.HEAD[term.generation % 2]
        self._rival = place + fmt.HEAD[(term.generation + 1) % 2]
        self._rival_head = self._words[self._rival]
        self._updated = place + fmt.UPDATED
        self._seed = fmt.cell_seed(page.seed, slot.number, fmt.encode_name(slot.name), term)

    # ---- handing out ---------------------------------------------------------------------

    @property
    def acked(self) -> int:
        """All before this is done with."""
        return self._acks.cursor

    @property
    def paused(self) -> bool:
        return bool(self._words[self._head] >> 32 & fmt.PAUSED)

    def hands(self, end: int) -> int:
        """Everything up to here is handed out; returns from where on it has to come back."""
        first, self.unclaimed, self.open_gap = self.unclaimed, end, False
        self.position = end
        self.handed = max(self.handed, end)
        return first

    def passes(self, end: int) -> None:
        """Up to here there is nothing for this group: deleted, or of a node that it leaves out.

        The cursor may move over it only if all before it has come back. A gap that was told needs
        somebody to come back from behind it.
        """
        if self.open_gap:
            self.position = end
            self.handed = max(self.handed, end)
        else:
            self.add(self.hands(end), end)

    def gap(self, end: int) -> None:
        """A gap up to here was told; it comes back with what is behind it."""
        self.position, self.open_gap = end, True
        self.handed = max(self.handed, end)

    def rewind(self) -> None:
        """Hand out again what has not come back."""
        self._acks = Acks(self.acked)
        self.position = self.unclaimed = self.acked
        self.open_gap = False

    # ---- coming back ---------------------------------------------------------------------

    def ack(self, first: int, end: int) -> None:
        """Offsets [first, end) are done with."""
        words, acks = self._words, self._acks
        if (
            first <= acks.cursor < end <= self._near
            and end <= self.handed
            and not acks.later
            and words[self._rival] == self._rival_head
        ):  # in order, durable, and ours: nothing but the store
            acks.cursor = self.stored = end
            words[self._cell] = fmt.encode_cell(self._seed, end - self._base)
            if words[self._rival] != self._rival_head:
                self.check()
            self._dirty[self.page] = None
            return
        if self.fenced or self._words[self._rival] != self._rival_head:
            if end <= self.stored:
                return  # it has counted already
            self.check()
        if end > self.handed:
            raise InvalidOption(
                f"offsets {first}..{end - 1} of shard {self.number}: group {self.group!r} has read "
                f"up to {self.handed - 1} only; what was not delivered cannot be acked"
            )
        self.add(first, end)

    def add(self, first: int, end: int) -> None:
        cursor = self._acks.add(first, end)
        if cursor > self.stored:
            if cursor > self._limit:
                self.flush()
            else:
                self._store(cursor)

    def flush(self) -> bool:
        """Store what is acked and durable by now. Whether that is all that is acked."""
        cursor = self._acks.cursor
        if cursor > self._limit:
            self._limit = max(self._limit, self._durable())
            self._near = min(self._limit, self._base + fmt.DELTA_MAX)
        reached = min(cursor, self._limit)
        if reached > self.stored:
            self._store(reached)
        return reached == cursor

    def _durable(self) -> int:
        shard = self._topic._shards[self.number]
        lasting = shard.durability in ("fsync", "disk")
        if not shard.writing and shard.durability != "ephemeral":
            now = self._clock.monotonic()
            if now < self._look:
                return self._limit
            self._look = now + LOOK_SECONDS
        view = self._topic._view(self.number)
        return min(view.durable, view.visible) if lasting else view.visible

    def _store(self, cursor: int) -> None:
        words, delta = self._words, cursor - self._base
        if delta > fmt.DELTA_MAX:
            self._rebase(cursor)
            return
        words[self._cell] = fmt.encode_cell(self._seed, delta)
        self.stored = cursor
        self._dirty[self.page] = None
        if words[self._rival] != self._rival_head:
            self.check()

    def tell(self) -> None:
        """How much was acked and when, for whoever looks; done now and then."""
        words, more = self._words, self.stored - self._counted
        if more and not self.fenced:
            self._counted = self.stored
            words[self._updated] = self._clock.now_us() * 1000 & MASK64
            words[self._updated + 1] = words[self._updated + 1] + more & MASK64

    def store_again(self) -> None:
        """The same cursor once more, so that the next sync has something to sync."""
        words = self._words
        ours = fmt.generation_of(words[self._head]) == self.slot.term.generation
        if not self.fenced and (not ours or words[self._rival] != self._rival_head):
            with self.page.alone():  # there is a successor; or the page went back, with our term
                if not self.page.renew(self.slot):
                    self.fence()
                self._rival_head = words[self._rival]
        if not self.fenced:
            self._words[self._cell] = fmt.encode_cell(self._seed, self.stored - self._base)
            self.tell()

    def _rebase(self, cursor: int) -> None:
        """Further than a cell reaches: a term of our own, that begins here."""
        with self.page.alone():
            slot = self.current()
            taken = self.page.take(slot, slot.term.owner, cursor)
        again = Held(self.group, self._topic, self.number, self.page, taken, self._registry)
        self.stored = cursor
        for name in ("slot", "_base", "_cell", "_head", "_rival", "_rival_head", "_seed"):
            setattr(self, name, getattr(again, name))
        self._near = 0
        self._dirty[self.page] = None

    # ---- whose it is ---------------------------------------------------------------------

    def fence(self) -> None:
        """It is not ours any more; nothing is stored from here on."""
        self.fenced, self._near = True, -1

    def check(self) -> None:
        """Raise Fenced if somebody else has begun another term."""
        self.current()

    def current(self) -> Slot:
        """The slot as it is now, if this is still its owner."""
        found = None if self.fenced else self.page.at(self.slot.number)
        ours = isinstance(found, Slot) and found.name == self.slot.name
        if not ours or found.term.generation != self.slot.term.generation:  # type: ignore[union-attr]
            self.fence()
            raise Fenced(
                f"shard {self.number} of group {self.group!r} was taken over, moved by a seek or "
                f"forgotten; what was acked up to {self.stored} counts, and what is behind it is "
                "delivered again to whoever owns it now. Poll again to go on."
            )
        assert isinstance(found, Slot)
        return found
