"""Who answers each route: the function that the table names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from esker.server import (
    export,
    groups,
    metrics,
    otlp,
    overview,
    page,
    probes,
    ranges,
    records,
    staging,
    topics,
)
from esker.server import routes as routing
from esker.server.access import tickets
from esker.server.durable_streams import append as durable
from esker.server.http.call import Call, Reply
from esker.server.jobs import leases, queues
from esker.server.jobs import stream as work
from esker.server.live import watch, websocket
from esker.server.table import Route

Handler = Callable[[Call], Awaitable[Reply]]
ROOMS = {
    "access": tickets, "probes": probes, "topics": topics, "records": records,
    "groups": groups, "queues": queues, "work": work, "routes": routing, "stages": staging,
    "otlp": otlp, "durable": durable, "places": ranges,
    "watch": watch, "socket": websocket, "metrics": metrics,
    "page": page, "looks": overview, "export": export, "leased": leases,
}  # fmt: skip


def handlers(routes: Iterable[Route]) -> dict[Route, Handler]:
    """A handler for every route; a route without one is a server that does not start."""
    return {route: _named(route.handler) for route in routes}


def _named(name: str) -> Handler:
    room, _, function = name.partition(".")
    found: Handler = getattr(ROOMS[room], function)
    return found
