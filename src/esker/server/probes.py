"""Is it there, is it ready, and what can be asked of it."""

from __future__ import annotations

from esker.server import wire
from esker.server.call import Call, Reply
from esker.server.openapi import document
from esker.version import VERSION


async def health(call: Call) -> Reply:
    """The process runs and answers."""
    app = call.app
    return Reply(wire.Health("ok", VERSION, app.clock.monotonic() - app.began))


async def ready(call: Call) -> Reply:
    """The store is open, and calls are taken."""
    app = call.app
    warnings = [app.gate.warning] if app.gate.warning else []
    return Reply(wire.Ready("ready", len(await app.store.topics()), warnings))


async def openapi(call: Call) -> Reply:
    """The table of routes as OpenAPI 3.1."""
    return Reply(document(call.app.table.routes))
