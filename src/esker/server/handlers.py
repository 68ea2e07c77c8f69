"""Who answers each route: the function that the table names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from esker.server import (
    access,
    durable,
    export,
    groups,
    leased,
    looks,
    metrics,
    otlp,
    page,
    places,
    probes,
    queues,
    records,
    socket,
    stages,
    topics,
    watch,
    work,
)
from esker.server import routes as routing
from esker.server.call import Call, Reply
from esker.server.table import Route

Handler = Callable[[Call], Awaitable[Reply]]
ROOMS = {
    "access": access, "probes": probes, "topics": topics, "records": records,
    "groups": groups, "queues": queues, "work": work, "routes": routing, "stages": stages,
    "otlp": otlp, "durable": durable, "places": places,
    "watch": watch, "socket": socket, "metrics": metrics,
    "page": page, "looks": looks, "export": export, "leased": leased,
}  # fmt: skip


def handlers(routes: Iterable[Route]) -> dict[Route, Handler]:
    """A handler for every route; a route without one is a server that does not start."""
    return {route: _named(route.handler) for route in routes}


def _named(name: str) -> Handler:
    room, _, function = name.partition(".")
    found: Handler = getattr(ROOMS[room], function)
    return found
