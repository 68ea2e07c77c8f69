"""What users hold, and how a route is defined, moved and deleted.

A definition is made in three steps, under the lock that all processes share: an entry that says
`making`, the group that the route reads as, with the place where it starts, and the entry that says
`ready`. Deleting goes the other way. Whoever has the lock and finds a half knows that its maker is
dead, and takes it away. So a route is there as a whole or not at all, and no group is left behind
that would keep records from being evicted.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker import options as opts
from esker.engine.reader import check_count
from esker.errors import (
    GroupNotFound,
    InvalidOption,
    MemberBusy,
    RouteNotFound,
    RouteRefused,
    nearest,
)
from esker.filters import parse
from esker.format.routes import RouteEntry, Routes
from esker.groups.describe import forget_group
from esker.groups.group import Group, open_group, start_of
from esker.groups.moves import Move
from esker.routes.registry import Registry
from esker.routes.runner import LASTING, group_of
from esker.routes.status import RouteStatus, status_of

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

NAME_MAX: Final = 512
HOPS_MAX: Final = 1000
NONE: Final = -1  # for the id of a topic that has yet to be made
DELETE_SECONDS: Final = 5.0  # that deleting waits for other processes to stop
_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping


class Route:
    """A route of a store. It runs by itself, as long as some process has the store open."""

    def __init__(self, store: Store, entry: RouteEntry) -> None:
        self._store = store
        self._entry = entry
        self.id = entry.id
        self.name = entry.name
        self.source = entry.source_name
        self.destination = entry.destination_name

    def __repr__(self) -> str:
        return f"<esker route {self.name!r}, {self.source!r} to {self.destination!r}>"

    def status(self) -> RouteStatus:
        """Whether it runs, how far behind it is, what it did and what stops it."""
        return status_of(self._store, self._current())

    def run_once(self) -> int:
        """Forward what is there now, up to a few megabytes; how many records were read.

        The background does so by itself. This is for background=False, and does not wait until a
        route that stands still is to be tried again.
        """
        self._store._context.require_writable()
        self._current()
        registry = Registry.of(self._store)
        registry.reload()
        runner = registry.runner(self.id)
        return 0 if runner is None else runner.step(now=True)

    def pause(self) -> None:
        """Forward nothing until `resume`, in no process, also after a restart."""
        with self._group() as group:
            group.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        with self._group() as group:
            group.resume()

    def seek(self, to: Any, shard: int | None = None, *, dry_run: bool = False) -> list[Move]:
        """Go on from another place of the source, as `Group.seek`; what is before it is left out.

        Back means again: what was forwarded from there on is appended once more, also with
        exactly_once, which from here on counts anew.
        """
        self._store._context.require_writable()
        if dry_run:
            with self._group() as group:
                return group.seek(to, shard, dry_run=True)
        registry = Registry.of(self._store)
        with registry.file.alone() as routes:
            entry = _found(routes, self.id, self.name)
            with self._group() as group:
                group.seek(to, shard, dry_run=True)  # a place that is none changes nothing
                entry = msgspec.structs.replace(entry, epoch=entry.epoch + 1)
                registry.replace(routes, entry)
                return group.seek(to, shard)

    def delete(self) -> None:
        """Forget the route, for good. What it forwarded stays."""
        context = self._store._context
        context.require_writable()
        registry = Registry.of(self._store)
        with registry.file.alone() as routes:
            entry = _found(routes, self.id, self.name)
            registry.replace(routes, msgspec.structs.replace(entry, state="deleting"))
        registry.reload()
        registry.part()
        deadline = context.clock.monotonic() + DELETE_SECONDS
        while True:
            with registry.file.alone() as routes:
                routes = registry.swept(routes)
                if all(each.id != self.id for each in routes.routes):
                    return
            if context.clock.monotonic() >= deadline or not context.options.background:
                raise MemberBusy(
                    f"route {self.name!r} runs in another process, which has not stopped yet; it "
                    "is deleted, and its group will be with the next change of a route"
                )
            _PAUSE.wait(0.05)

    def _current(self) -> RouteEntry:
        routes = Registry.of(self._store).file.load()
        return _found(routes, self.id, self.name)

    def _group(self) -> Group:
        """The group as which it reads: only to look at, and to move."""
        entry = self._current()
        return open_group(_source(self._store, entry), group_of(entry.id))


def _found(routes: Routes, number: int, name: str) -> RouteEntry:
    for entry in routes.routes:
        if entry.id == number and entry.state == "ready":
            return entry
    raise RouteNotFound(f"route {name!r} was deleted; store.route(...) makes another one")


def _source(store: Store, entry: RouteEntry) -> Topic:
    known = store._catalog.by_id(entry.source)
    topic = store[known.name if known is not None else entry.source_name]
    if topic._existing().id != entry.source:
        raise RouteNotFound(
            f"the source of route {entry.name!r}, topic {entry.source_name!r}, was deleted"
        )
    return topic


# ---- defining --------------------------------------------------------------------------------


def open_route(
    store: Store, source: str, destination: str, *, where: str, name: str | None, start: Any,
    exactly_once: bool, merge: bool, allow_cycles: bool, hops: int,
) -> Route:  # fmt: skip
    """`Store.route`."""
    store._context.require_writable()
    if not source and not destination and name is not None:
        return _known(store, name)
    opts.topic_name(source)
    opts.topic_name(destination)
    if where:
        parse(where)
    check_count("hops", hops, 1)
    if hops > HOPS_MAX:
        raise InvalidOption(f"hops={hops}: at most {HOPS_MAX}")
    for what, value in (
        ("exactly_once", exactly_once), ("merge", merge), ("allow_cycles", allow_cycles),
    ):  # fmt: skip
        if not isinstance(value, bool):
            raise InvalidOption(f"{what}={value!r}: True or False")
    called = f"{source}->{destination}" if name is None else name
    if not isinstance(called, str) or not called or len(called) > NAME_MAX:
        raise InvalidOption(f"name={name!r}: text, of up to {NAME_MAX} characters")
    origin = store._known(source)
    registry = Registry.of(store)
    if exactly_once:
        _check_lasting([origin, *([store[destination]] if destination in store else [])])
    with registry.file.alone() as routes:
        known = store._lookup(destination)
        routes = registry.swept(routes)
        wanted = RouteEntry(
            id=routes.next_id, name=called, source=origin._existing().id, source_name=source,
            destination=known.id if known else NONE, destination_name=destination,
            created=store._context.clock.now_us(), where=where, exactly_once=exactly_once,
            merge=merge, allow_cycles=allow_cycles, hops=hops,
        )  # fmt: skip
        entry = _same(routes, wanted)
        if entry is None:
            start_of(origin, start)  # what is refused up to here makes no topic
            target = store[destination]
            wanted = msgspec.structs.replace(wanted, destination=target._created().id)
            entry = _make(registry, routes, wanted, origin, target, start)
    registry.reload()
    return Route(store, entry)


def _check_lasting(topics: list[Topic]) -> None:
    """Marks are of offsets that stay, and stay as long as the records that they are on."""
    for topic in topics:
        if topic.options.durability not in LASTING:
            raise InvalidOption(
                f"exactly_once=True: topic {topic.name!r} is of class "
                f"{topic.options.durability}, which may lose what it has shown; both topics have "
                "to be of class fsync or disk"
            )


def _known(store: Store, name: str) -> Route:
    routes = Registry.of(store).file.load().routes
    ready = {entry.name: entry for entry in routes if entry.state == "ready"}
    if name not in ready:
        raise RouteNotFound(f"no route {name!r}; {nearest(name, ready)}")
    return Route(store, ready[name])


def _same(routes: Routes, wanted: RouteEntry) -> RouteEntry | None:
    """A route of that name that is the same; or nothing is in the way of a new one."""
    ready = [entry for entry in routes.routes if entry.state == "ready"]
    for entry in ready:
        if entry.name == wanted.name:
            again = msgspec.structs.replace(
                wanted, id=entry.id, created=entry.created, epoch=entry.epoch, since=entry.since,
                reason=entry.reason,
            )  # fmt: skip
            if again == entry:
                return entry
            raise RouteRefused(
                f"a route {wanted.name!r} is there already, and is another one ({_told(entry)}); "
                "delete it, or give this one a name of its own"
            )
    others = [e for e in ready if e.destination == wanted.destination and e.source != wanted.source]
    if others and not (wanted.merge and all(entry.merge for entry in others)):
        raise RouteRefused(
            f"topic {wanted.destination_name!r} is the destination of route {others[0].name!r} "
            "already; a destination has one source, unless all its routes say merge=True"
        )
    circle = _circle(ready, wanted)
    if circle and not wanted.allow_cycles:
        raise RouteRefused(
            f"this would go in a circle: {' -> '.join(circle)}; allow_cycles=True allows it, and "
            "ends it after so many hops", circle=circle,
        )  # fmt: skip
    return None


def _told(entry: RouteEntry) -> str:
    where = f", where {entry.where}" if entry.where else ""
    return f"from {entry.source_name!r} to {entry.destination_name!r}{where}"


def _circle(ready: list[RouteEntry], wanted: RouteEntry) -> list[str]:
    """The names of the topics that a circle would go through; none if there would be none."""
    came: dict[int, list[str]] = {wanted.destination: [wanted.source_name, wanted.destination_name]}
    left = [wanted.destination]
    while left:
        at = left.pop()
        if at == wanted.source:
            return came[at]
        for entry in ready:
            if entry.source == at and entry.destination not in came:
                came[entry.destination] = [*came[at], entry.destination_name]
                left.append(entry.destination)
    return []


def _make(
    registry: Registry, routes: Routes, wanted: RouteEntry, source: Topic, target: Topic, start: Any
) -> RouteEntry:
    since = tuple(target.end(number) for number in range(target.shards))
    entry = msgspec.structs.replace(wanted, since=since, state="making")
    made = Routes(routes.next_id + 1, (*routes.routes, entry))
    registry.file.store(made)
    group = group_of(entry.id)
    try:
        with suppress(GroupNotFound):  # of a definition that a power cut took back
            forget_group(source, group)
        open_group(source, group, start).close()
    except BaseException:
        with suppress(Exception):
            registry.swept(made)
        raise
    entry = msgspec.structs.replace(entry, state="ready")
    registry.replace(made, entry)
    return entry
