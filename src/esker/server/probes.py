"""Is it there, is it ready, and what can be asked of it."""

from __future__ import annotations

from typing import Final

from esker.engine.store import Store
from esker.server.bodies import wire
from esker.server.http.call import Call, Reply
from esker.server.openapi import document
from esker.storage.files import free_bytes
from esker.version import VERSION

SHORT: Final = 16 << 20  # bytes of disk that are all but none


async def health(call: Call) -> Reply:
    """The process runs and answers."""
    app = call.app
    return Reply(wire.Health("ok", VERSION, app.clock.monotonic() - app.began))


async def ready(call: Call) -> Reply:
    """The store is open, and calls are taken."""
    app = call.app
    count, warnings = await app.run(_looked)
    if app.gate.warning:
        warnings.append(app.gate.warning)
    return Reply(wire.Ready("ready", count, warnings))


def _looked(store: Store) -> tuple[int, list[str]]:
    """How many topics there are, and what everybody may know of a disk that is in trouble."""
    warnings = []
    topics = list(store._topics.values())
    if any(shard.poison is not None for topic in topics for shard in topic._shards):
        warnings.append(
            "a sync failed, and what it was for takes no more records until the server is started "
            "again: /v1/store and the log say which"
        )
    free = free_bytes(store.path)
    if free is not None and free < SHORT:
        warnings.append(
            f"the disk is full, or all but: {free >> 10} KiB are left; retention or a larger one "
            "makes room, and appends are refused where there is none"
        )
    return len(store), warnings


async def openapi(call: Call) -> Reply:
    """The table of routes as OpenAPI 3.1."""
    return Reply(document(call.app.table.routes))
