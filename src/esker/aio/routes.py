"""Routes, whose verbs are awaited. They run in the background as they do for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esker.groups.moves import Move
from esker.routes.route import Route
from esker.routes.status import RouteStatus

if TYPE_CHECKING:
    from esker.aio.store import AsyncStore


class AsyncRoute:
    """A route whose verbs are awaited."""

    def __init__(self, store: AsyncStore, route: Route) -> None:
        self._run = store._run
        self.route = route

    def __repr__(self) -> str:
        return f"<async {self.route!r}>"

    async def status(self) -> RouteStatus:
        """As `Route.status`."""
        return await self._run(self.route.status)

    async def run_once(self) -> int:
        """As `Route.run_once`."""
        return await self._run(self.route.run_once)

    async def pause(self) -> None:
        """As `Route.pause`."""
        await self._run(self.route.pause)

    async def resume(self) -> None:
        """As `Route.resume`."""
        await self._run(self.route.resume)

    async def seek(self, to: Any, shard: int | None = None, *, dry_run: bool = False) -> list[Move]:
        """As `Route.seek`."""
        return await self._run(lambda: self.route.seek(to, shard, dry_run=dry_run))

    async def delete(self) -> None:
        """As `Route.delete`."""
        await self._run(self.route.delete)
