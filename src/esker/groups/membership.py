"""Coming, going, and who of the others lives.

A member is a handle that polls; one that only looks is none. What the page of members says decides
who *should* read a shard. Who *may* is decided by the shard's own page, one generation at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esker.format.members import Member
from esker.groups.assignment import assigned, shards_of
from esker.groups.registry import Groups
from esker.storage.files import Lock

if TYPE_CHECKING:
    from esker.engine.topic import Topic

SWEEP_SECONDS = 0.25  # between looks whether the others live


class Membership:
    """One member of one group, and what it knows of the others."""

    def __init__(
        self, topic: Topic, group: str, registry: Groups, static: tuple[int, int] | None,
        session_us: int,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._group = group
        self._context = topic._store._context
        self._page = registry.members(topic)
        self.static = static
        self._session_us = session_us
        self._lock: Lock | None = None
        self._generation = -1
        self._sweep = 0.0
        self._mine: list[int] = []
        self.me: Member | None = None
        self.joined = 0  # how often

    @property
    def owner(self) -> int:
        """What stands in a term of ours."""
        return 0 if self.me is None else self.me.slot + 1

    def wanted(self) -> list[int]:
        """The shards that are this member's, as things are now. Joins if need be."""
        now = self._context.clock.monotonic()
        now_us = int(now * 1e6)
        if self.me is None or not self._page.seen(self.me, now_us):
            self.leave()
            self._join(now_us)
        if self._generation != self._page.generation or now >= self._sweep:
            self._sweep = now + SWEEP_SECONDS
            self._clear_dead(now_us)
            self._mine = self._assigned()
        return self._mine

    def steady(self) -> bool:
        """Say that this member is at work. Whether nobody came or went since it last looked."""
        seen = self.me is not None and self._page.seen(
            self.me, int(self._context.clock.monotonic() * 1e6)
        )
        return seen and self._page.generation == self._generation

    def _assigned(self) -> list[int]:
        entry = self._topic._existing()
        self._generation = self._page.generation
        if self.static is not None:
            return shards_of(entry.id, entry.options.shards, *self.static)
        assert self.me is not None
        slots = [member.slot for member in self._page.of(self._group) if member.static is None]
        return assigned(entry.id, entry.options.shards, self.me.slot, slots)

    def _join(self, now_us: int) -> None:
        files, page = self._context.files, self._page
        page.map(writable=True)
        token = int.from_bytes(files.random(8), "little") or 1
        member = Member(
            0, self._group, token, files.pid(), now_us, now_us, self._session_us, self.static
        )
        with page.alone():
            self.me, self._lock = page.join(member, self._context.note)
        self._generation = -1
        self.joined += 1

    def _clear_dead(self, now_us: int) -> None:
        """Take those off the list that are dead, or were not seen for their session."""
        page, me = self._page, self.me
        assert me is not None
        others = [other for other in page.of(self._group) if other.slot != me.slot]
        gone = [m for m in others if m.is_late(now_us) or not page.lives(m.slot)]
        if not gone:
            return
        with page.alone():
            for member in gone:
                known = page.at(member.slot)
                if known is not None and known.token == member.token and (
                    known.is_late(now_us) or not page.lives(member.slot)
                ):  # fmt: skip
                    page.leave(member)

    def alive(self, owner: int) -> Member | None:
        """The member that stands in a term, if it is one of this group and lives."""
        if not owner or not self._page.map(writable=False):
            return None
        member = self._page.at(owner - 1)
        now_us = int(self._context.clock.monotonic() * 1e6)
        if member is None or member.group != self._group or member.is_late(now_us):
            return None
        return member if self._page.lives(member.slot) else None

    def members(self) -> list[Member]:
        """All members of the group that live."""
        if not self._page.map(writable=False):
            return []
        return [m for m in self._page.of(self._group) if self.alive(m.slot + 1) is not None]

    def leave(self) -> None:
        """Free the slot, and let go of its lock."""
        me, lock, self.me, self._lock = self.me, self._lock, None, None
        if me is not None:
            with self._page.alone():
                self._page.leave(me)
        if lock is not None:
            lock.release()

    def let_go(self) -> None:
        """Let go of the lock, and change nothing."""
        lock, self.me, self._lock = self._lock, None, None
        if lock is not None:
            lock.release()
