"""Routes over HTTP: from topic to topic, defined once, run by the server.

A key needs to be allowed both topics of a route, whatever it does with it. A route of topics that a
key is not for is not there: its name says nothing about what others have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.errors import RouteNotFound, RouteRefused
from esker.routes.route import Route
from esker.routes.runner import group_of
from esker.routes.status import RouteStatus
from esker.server.bodies import wire_rooms as wire
from esker.server.http.call import Call, Reply

if TYPE_CHECKING:
    from esker.engine.store import Store


REFUSED: Final = (
    "a route of this name is there and is another one, or the destination has another source, or "
    "this would go in a circle"
)


async def define(call: Call) -> Reply:
    """Define a route; the same definition again changes nothing."""
    body: wire.RouteIn = call.body
    name = call.params["route"]
    how = {
        field: value
        for field, value in msgspec.structs.asdict(body).items()
        if field not in ("source", "destination")
    }

    def make(store: Store) -> tuple[bool, RouteStatus]:
        known = any(each.name == name for each in store.routes())
        route = store.route(body.source, body.destination, name=name, **how)
        return not known, route.status()

    try:
        async with call.app.with_topic(body.destination):
            made, status = await call.app.run(make)
    except RouteRefused:
        if call.principal.everywhere:
            raise
        raise RouteRefused(REFUSED) from None  # the reason may name what others have
    return Reply(_told(status, call.app.store.path), 201 if made else 200)


async def state(call: Call) -> Reply:
    """Whether it runs, how far behind it is, and what stops it."""
    status = await call.app.run(lambda store: _found(call, store).status())
    return Reply(_told(status, call.app.store.path))


async def list_routes(call: Call) -> Reply:
    """All routes of topics that the key may read."""
    found = [each for each in await call.app.store.routes() if _may(call, each)]
    return Reply(wire.Routes([_told(each, call.app.store.path) for each in found]))


async def delete(call: Call) -> Reply:
    """Forget a route. What it forwarded stays."""
    await call.app.run(lambda store: _found(call, store).delete())
    return Reply(wire.RouteDeleted(call.params["route"], True))


async def pause(call: Call) -> Reply:
    """Forward nothing until it is resumed."""
    await call.app.run(lambda store: _found(call, store).pause())
    return Reply(wire.Paused(True))


async def resume(call: Call) -> Reply:
    """Go on after a pause."""
    await call.app.run(lambda store: _found(call, store).resume())
    return Reply(wire.Paused(False))


async def seek(call: Call) -> Reply:
    """Go on from another place; back means that it is forwarded again."""
    body: wire.Seek = call.body

    def move(store: Store) -> Any:
        return _found(call, store).seek(body.to, body.shard, dry_run=body.dry_run)

    moves = [wire.Move(**msgspec.structs.asdict(each)) for each in await call.app.run(move)]
    return Reply(wire.Moves(body.dry_run, moves))


def _found(call: Call, store: Store) -> Route:
    """The route that the path names, if the key may know of it."""
    name = call.params["route"]
    try:
        route = store.route(name=name)
    except RouteNotFound:
        raise _unknown(name) from None
    if not _may(call, route):
        raise _unknown(name)
    return route


def _unknown(name: str) -> RouteNotFound:
    return RouteNotFound(f"no route {name[:80]!r}")


def _may(call: Call, route: Route | RouteStatus) -> bool:
    scope = call.route.scope
    assert scope is not None
    may = call.principal.may
    return may(scope, route.source) and may(scope, route.destination)


def _told(status: RouteStatus, root: str = "") -> wire.RouteState:
    """As clients have it; where the store lies (`root`) is not told."""
    told = msgspec.structs.asdict(status)
    if root:
        told["reason"] = told["reason"].replace(root, ".")
    told |= {"route": told.pop("name"), "group": group_of(status.id)}
    del told["id"], told["pids"]
    return wire.RouteState(**told)
