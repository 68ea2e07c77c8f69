"""A route of a server: from topic to topic, run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from esker import options as opts
from esker.client.pool import Answer, part
from esker.client.texts import position
from esker.errors import InvalidOption, RouteNotFound, nearest
from esker.filters.parser import parse
from esker.groups.moves import Move
from esker.routes.status import RouteStatus

if TYPE_CHECKING:
    from esker.client.store import RemoteStore


class RemoteRoute:
    """What is appended to one topic is appended to another one, by the server."""

    def __init__(self, store: RemoteStore, told: dict[str, Any]) -> None:
        self._store = store
        self.name: str = told["route"]
        self.source: str = told["source"]
        self.destination: str = told["destination"]
        self.where: str = told["where"]
        self._path = f"/v1/routes/{part(self.name)}"

    def __repr__(self) -> str:
        return f"<esker route {self.name!r} from {self.source!r} to {self.destination!r}>"

    def __getattr__(self, name: str) -> Any:
        raise self._store._not_remote("Route", name)

    def _call(self, method: str, path: str, body: Any = None, **how: Any) -> Answer:
        self._store.require_open()
        return self._store._pool.call(method, self._path + path, None, body, **how)

    def status(self) -> RouteStatus:
        """Whether it runs, how far behind it is, what it did, what stops it."""
        return status_of(self._call("GET", "", again=True).json())

    def pause(self) -> None:
        """Forward nothing until `resume`."""
        self._store._require_writable()
        self._call("POST", "/pause", {}, again=True)

    def resume(self) -> None:
        """Go on after a pause."""
        self._store._require_writable()
        self._call("POST", "/resume", {}, again=True)

    def seek(self, to: Any, shard: int | None = None, *, dry_run: bool = False) -> list[Move]:
        """Go on from another place; see `Route.seek`."""
        self._store._require_writable()
        body = {"to": position(to), "shard": shard, "dry_run": dry_run}
        moves = self._call("POST", "/seek", body, again=dry_run).json()["moves"]
        return [msgspec.convert(each, Move) for each in moves]

    def delete(self) -> None:
        """Forget it. What it forwarded stays."""
        self._store._require_writable()
        self._call("DELETE", "")


def status_of(told: dict[str, Any]) -> RouteStatus:
    """A route, from what a server says of it. Which processes run it is not told."""
    number = int(told["group"].rpartition(":")[2])
    given = {**told, "name": told["route"], "id": number, "pids": ()}
    return RouteStatus(**{name: given[name] for name in RouteStatus.__struct_fields__})


def open_route(
    store: RemoteStore, source: str, destination: str, *, name: str | None, where: str, start: Any,
    **how: Any,
) -> RemoteRoute:  # fmt: skip
    """`Store.route`."""
    store._require_writable()
    if not source and not destination and name is not None:
        try:
            answer = store._pool.call("GET", f"/v1/routes/{part(name)}", again=True)
        except RouteNotFound:
            known = [each.name for each in routes_of(store)]
            raise RouteNotFound(f"no route {name!r}; {nearest(name, known)}") from None
        return RemoteRoute(store, answer.json())
    opts.topic_name(source)
    opts.topic_name(destination)
    if where:
        parse(where)
    called = f"{source}->{destination}" if name is None else name
    if not isinstance(called, str) or not called:
        raise InvalidOption(f"name={name!r}: text")
    body = {
        "source": source, "destination": destination, "where": where, "start": position(start),
        **how,
    }  # fmt: skip
    path = f"/v1/routes/{part(called)}"
    return RemoteRoute(store, store._pool.call("PUT", path, None, body, again=True).json())


def routes_of(store: RemoteStore) -> list[RouteStatus]:
    """`Store.routes`."""
    store.require_open()
    told = store._pool.call("GET", "/v1/routes", again=True).json()["routes"]
    return [status_of(each) for each in told]
