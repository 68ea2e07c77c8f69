"""Members of groups that are at the other end of a wire.

A member is a name that a client gives. For each (topic, group, member) the server keeps one handle
of the library, which is what takes part in the group: a seat. Who has not been seen for his session
loses it, and with it his shards; so does who says that he leaves. The time is that of the store's
clock, as it is for members in other processes.

There are so many seats and no more. When all are taken, those whose session is over are cleared,
and if that does not help a newcomer is told to wait.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from esker.errors import EskerError, Fenced, GroupNotFound
from esker.groups.group import Group, check_name
from esker.groups.lag import Rates
from esker.groups.registry import Groups
from esker.server.http.faults import Fault, throttled
from esker.server.records import known

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

Name = tuple[str, str, str]  # topic, group, member
RATES_MAX = 1_024  # groups whose last look is remembered, for the time until they have caught up


class Seat:
    """A member, and when it was last heard of."""

    __slots__ = ("group", "polling", "seen", "session")

    def __init__(self, group: Group, session: float, now: float) -> None:
        self.group = group
        self.session = session
        self.seen = now
        self.polling = False


class Members:
    """All seats of a server. Called in the store's pool of threads.

    The store's lock guards its two tables, and not what is in them: a group is opened and closed
    without it.
    """

    def __init__(self, most: int, session: float) -> None:
        self._most = most
        self._session = session
        self._seats: dict[Name, Seat] = {}
        self._rates: dict[tuple[str, str], Rates] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def seat(self, store: Store, name: Name, session: float | None) -> Seat:
        """The seat of a member; it is made if need be, in a group that is there."""
        now = store._context.clock.monotonic()
        with store._lock:
            late = self._take_late(now)
            seat = self._seats.get(name)
            if seat is not None and (seat.group.closed or seat.group.topic._gone):
                late.append(self._seats.pop(name))
                seat = None
        _close(late)
        if seat is None:
            seat = self._sit(store, name, session or self._session, now)
        elif session is not None and session != seat.session:
            raise Fault(
                "invalid_option", f"session={session}: this member has one of {seat.session} s; "
                "leave, and come again with another",
            )  # fmt: skip
        seat.seen = now
        return seat

    def _sit(self, store: Store, name: Name, session: float, now: float) -> Seat:
        topic = existing(known(store, name[0]), name[1])
        group = topic.group(name[1], gaps="yield", session=session)
        with store._lock:
            other = self._seats.get(name)
            if other is None and len(self._seats) < self._most:
                seat = self._seats[name] = Seat(group, session, now)
                return seat
        group.close()
        if other is not None:  # two calls at once: the other one was faster
            return other
        told = f"there are {self._most} members of groups, and no more are taken"
        raise throttled("members", self._most, int(self._session), told)

    def known(self, store: Store, name: Name) -> Seat:
        """The seat of a member who has one; Fenced if he has lost it."""
        now = store._context.clock.monotonic()
        with store._lock:
            late = self._take_late(now)
            seat = self._seats.get(name)
        _close(late)
        if seat is None or seat.group.closed:
            existing(known(store, name[0]), name[1])
            raise Fenced(
                f"member {name[2]!r} of group {name[1]!r} has not been heard of for its session, "
                "or has never polled: it holds no shard. Poll again to go on"
            )
        seat.seen = now
        return seat

    def leave(self, store: Store, name: Name) -> bool:
        """Give a seat back. Whether there was one."""
        with store._lock:
            seat = self._seats.pop(name, None)
        _close([seat] if seat is not None else [])
        return seat is not None

    def _take_late(self, now: float) -> list[Seat]:
        late = [
            name for name, seat in self._seats.items()
            if now >= seat.seen + seat.session and not seat.polling
        ]  # fmt: skip
        return [self._seats.pop(name) for name in late]

    def rates(self, store: Store, topic: str, group: str) -> Rates:
        """What is remembered of the last look at a group."""
        with store._lock:
            found = self._rates.pop((topic, group), None) or Rates()
            while len(self._rates) >= RATES_MAX:
                del self._rates[next(iter(self._rates))]
            self._rates[topic, group] = found
        return found


def _close(seats: list[Seat]) -> None:
    for seat in seats:
        with suppress(EskerError):  # its acks are stored as they come; its slot is freed by others
            seat.group.close()


def existing(topic: Topic, group: str) -> Topic:
    """The topic, if it has a group of this name: polling makes none."""
    if not has_group(topic, group):
        raise GroupNotFound(f"no group {group!r} reads topic {topic.name!r}")
    return topic


def has_group(topic: Topic, group: str) -> bool:
    """Whether a topic that is there has this group."""
    check_name(group)
    topic._existing()
    page = Groups.of(topic._store._context).page(topic, 0)
    return page.map(writable=False) and page.find(group) is not None
