"""All groups of a topic, for whoever only looks; and forgetting one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from esker.errors import GroupNotFound, MemberBusy, TopicNotFound, nearest
from esker.format.offsets import PAUSED, Slot
from esker.groups.lag import shard_lag
from esker.groups.membership import Membership
from esker.groups.registry import Groups

if TYPE_CHECKING:
    from esker.engine.topic import Topic


class GroupShard(msgspec.Struct, frozen=True):
    """A group in one shard."""

    shard: int
    cursor: int
    end: int
    records: int  # behind
    seconds: float  # behind
    pid: int  # of the process that reads it; 0 for nobody
    updated_us: int  # when its cursor last moved, microseconds since 1970; 0 for never
    acked: int  # records, since the group was made
    generation: int
    paused: bool
    flaw: str  # what is wrong with its place in the page


class GroupStatus(msgspec.Struct, frozen=True):
    """A group of a topic, as it is now."""

    topic: str
    name: str
    shards: tuple[GroupShard, ...]
    pids: tuple[int, ...]  # of its members, one for each

    @property
    def records(self) -> int:
        """How many records it is behind."""
        return sum(each.records for each in self.shards)

    @property
    def seconds(self) -> float:
        """How long the oldest record that is not done with has been there."""
        return max((each.seconds for each in self.shards), default=0.0)

    @property
    def paused(self) -> bool:
        """Whether one of its shards is."""
        return any(each.paused for each in self.shards)

    def __str__(self) -> str:
        state = ", paused" if self.paused else ""
        return (
            f"group {self.name!r} of {self.topic!r}: {self.records} records behind, "
            f"{len(self.pids)} members{state}"
        )


def groups_of(topics: Iterable[Topic]) -> list[GroupStatus]:
    """`Topic.groups`, and `Store.groups`."""
    found = []
    for topic in topics:
        with suppress(TopicNotFound), topic._told_if_deleted():  # deleted meanwhile
            found += _groups_of(topic)
    return found


def _groups_of(topic: Topic) -> list[GroupStatus]:
    context = topic._store._context
    topic._existing()
    registry, now = Groups.of(context), context.clock.now_us()
    slots: dict[str, list[tuple[int, Slot]]] = {}
    for number in range(topic.shards):
        page = registry.page(topic, number)
        page.map(writable=False)
        for slot in page.slots():
            if isinstance(slot, Slot):
                slots.setdefault(slot.name, []).append((number, slot))
    made = []
    for name in sorted(slots):
        membership = Membership(topic, name, registry, None, 0)
        shards = []
        for number, slot in slots[name]:
            lag = shard_lag(topic._view(number), slot.cursor, now)
            owner = membership.alive(slot.term.owner)
            shards.append(
                GroupShard(
                    number, slot.cursor, lag.end, lag.records, lag.seconds,
                    owner.pid if owner is not None else 0, slot.updated_ns // 1000, slot.acks,
                    slot.term.generation, bool(slot.term.flags & PAUSED), slot.flaw,
                )
            )  # fmt: skip
        pids = tuple(member.pid for member in membership.members())
        made.append(GroupStatus(topic.name, name, tuple(shards), pids))
    return made


def forget_group(topic: Topic, name: str) -> None:
    """`Topic.forget_group`."""
    context = topic._store._context
    context.require_writable()
    topic._existing()
    registry = Groups.of(context)
    members = Membership(topic, name, registry, None, 0).members()
    if members:
        raise MemberBusy(
            f"group {name!r} of topic {topic.name!r} is being read by process {members[0].pid}; "
            "close it there first", pid=members[0].pid,
        )  # fmt: skip
    gone = 0
    for number in range(topic.shards):
        page = registry.page(topic, number)
        if not page.map(writable=False):
            continue
        with page.alone():
            page.map(writable=True)
            slot = page.find(name)
            if slot is not None:
                page.clear(slot.number)
                page.sync()
                gone += 1
    if not gone:
        known = {status.name for status in groups_of([topic])}
        raise GroupNotFound(f"no group {name!r} reads topic {topic.name!r}; {nearest(name, known)}")
