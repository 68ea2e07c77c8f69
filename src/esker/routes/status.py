"""All routes, for whoever only looks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import msgspec

from esker.errors import TopicNotFound
from esker.format.routes import RouteEntry
from esker.groups.describe import GroupStatus, groups_of
from esker.routes.registry import Registry
from esker.routes.runner import Runner, group_of
from esker.storage.routes import RoutesFile

if TYPE_CHECKING:
    from esker.engine.store import Store

State = Literal["running", "waiting", "paused", "stopped"]


class RouteStatus(msgspec.Struct, frozen=True):
    """A route, as it is now."""

    id: int
    name: str
    source: str
    destination: str
    where: str
    exactly_once: bool
    state: State  # waiting: nobody runs it; stopped: for a reason, and it is tried again
    reason: str
    records: int  # behind
    seconds: float  # behind
    pids: tuple[int, ...]  # of the processes that run it
    forwarded: int  # by this process, since it opened the store
    filtered: int  # and did not match
    missed: int  # and were lost in the source before they were forwarded
    looped: int  # and had made all their hops

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return (
            f"route {self.name!r}: {self.state}{reason}, {self.records} records behind, "
            f"{self.forwarded} forwarded"
        )


def routes_of(store: Store) -> list[RouteStatus]:
    """`Store.routes`."""
    context = store._context
    context.require_open()
    if context.read_only:
        file = RoutesFile(context.files, context.root, context.store, nullcontext())
        routes = file.load()
    else:
        registry = Registry.of(store)
        routes = registry.reload()
    store._catalog.refresh()
    ready = [entry for entry in routes.routes if entry.state == "ready"]
    return [status_of(store, entry) for entry in ready]


def status_of(store: Store, entry: RouteEntry) -> RouteStatus:
    runner: Runner | None = None
    for guest in store._context.guests:
        if isinstance(guest, Registry):
            runner = guest.runner(entry.id)
    reason = runner.reason if runner is not None and runner.code else entry.reason
    gone = _gone(store, entry)
    group = _group(store, entry)
    pids = group.pids if group is not None else ()
    state: State = "waiting"
    if gone:
        state, reason = "stopped", gone
    elif group is not None and group.paused:
        state = "paused"
    elif runner is not None and runner.code == "writer_busy" and pids:
        state, reason = "running", ""  # in the process that writes the destination
    elif reason:
        state = "stopped"
    elif pids:
        state = "running"
    return RouteStatus(
        entry.id, entry.name, entry.source_name, entry.destination_name, entry.where,
        entry.exactly_once, state, reason, group.records if group is not None else 0,
        group.seconds if group is not None else 0.0, pids,
        *(
            (runner.forwarded, runner.filtered, runner.missed, runner.looped)
            if runner is not None
            else (0, 0, 0, 0)
        ),
    )  # fmt: skip


def _gone(store: Store, entry: RouteEntry) -> str:
    """Which of its topics was deleted."""
    for what, number, name in (
        ("source", entry.source, entry.source_name),
        ("destination", entry.destination, entry.destination_name),
    ):
        if store._catalog.by_id(number) is None:
            return f"the {what}, topic {name!r}, was deleted; delete the route too"
    return ""


def _group(store: Store, entry: RouteEntry) -> GroupStatus | None:
    known = store._catalog.by_id(entry.source)
    if known is None:
        return None
    topic = store[known.name]
    try:
        found = groups_of([topic]) if topic._existing().id == entry.source else []
    except TopicNotFound:
        return None
    name = group_of(entry.id)
    return next((group for group in found if group.name == name), None)
