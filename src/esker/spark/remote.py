"""A store on a server, as a query reads it and writes to it.

Each process opens a client of its own and keeps it, for workers live for many tasks. Pages are
Arrow and carry only the columns that are asked for. A call that was not answered is sent again for
a while, so that a server may be started anew while a query runs: what Spark asks for is the same
when it is asked for twice (reads, staging, and commits, which have numbers).
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, Final

from esker.client.address import SCHEMES
from esker.client.dividing import Divided, divided, whole
from esker.client.store import RemoteStore, open_url
from esker.client.topic import RemoteTopic
from esker.engine.batch import Batch
from esker.engine.ranges import Atom
from esker.errors import InvalidOption
from esker.positions import EARLIEST, LATEST, Position
from esker.records import Gap
from esker.spark.local import checked
from esker.spark.origin import DELETED_SINCE, Access, Shards, Span

PIECES: Final = 4_096  # of a shard; more tasks than that nobody has
# What records of Esker's are made of, by what a row has. The rest is not asked for.
_STORED: Final = {"value", "timestamp", "key", "tag", "node", "headers"}

_open: dict[tuple[str, Access, bool], RemoteStore] = {}


def is_server(path: str) -> bool:
    """Whether a path is the URL of a server."""
    return path.partition("://")[0] in SCHEMES and "://" in path


def store_at(url: str, access: Access, *, writing: bool = False) -> RemoteStore:
    """A store on a server, once in a process."""
    store = _open.get((url, access, writing))
    if store is None:
        store = _open[url, access, writing] = open_store_at(url, access, writing=writing)
    return store


def open_store_at(url: str, access: Access, *, writing: bool = False) -> RemoteStore:
    """A store on a server, for somebody who closes it."""
    return open_url(
        url, "rw" if writing else "r", key=access.key, timeout=access.timeout,
        retries=access.retries, tls=_tls(url, access),
    )  # fmt: skip


def let_go() -> None:
    """Close the connections of this process."""
    while _open:
        _open.popitem()[1].close()


def _tls(url: str, access: Access) -> Any:
    """What a server is to prove, and to be proven; the system's authorities if nothing is said."""
    if not (access.tls_ca or access.tls_cert):
        return None
    if not url.startswith("https:"):
        raise InvalidOption("tlsCa and tlsCert are for https")
    try:
        context = ssl.create_default_context(cafile=access.tls_ca or None)
        if access.tls_cert:
            context.load_cert_chain(access.tls_cert, access.tls_key or None)
    except (OSError, ssl.SSLError) as problem:
        files = ", ".join(filter(None, (access.tls_ca, access.tls_cert, access.tls_key)))
        raise InvalidOption(f"TLS cannot be set up with {files}: {problem}") from problem
    return context


class AtServer:
    """A shard of a topic on a server, as it stood when it was looked at."""

    def __init__(self, topic: RemoteTopic, told: dict[str, int]) -> None:
        self._topic = topic
        self._number = told["shard"]
        self.visible = told["end"]
        self.earliest = told["earliest"]

    def _divided(self, first: int, end: int, **asked: int) -> Divided:
        return divided(self._topic, self._number, first=first, end=end, most=PIECES, **asked)

    @property
    def begin(self) -> int:
        return self._divided(self.visible, self.visible).begin

    def resolve(self, position: Position) -> int:
        match position.kind:
            case "offset":
                return position.number
            case "back":
                return self._topic._settled(-position.number, None, self._number).each[0].first
            case kind if kind == EARLIEST:
                return self.earliest
            case kind if kind == LATEST:
                return self.visible
        return self.since(position.number)

    def since(self, time_us: int) -> int:
        found = self._divided(self.visible, self.visible, since=time_us).since
        return self.visible if found is None else min(found, self.visible)

    def last_before(self, time_us: int, end: int) -> int:
        found = self._divided(end, end, before=time_us).before
        return end if found is None else min(found, end)

    def atoms(self, first: int, end: int) -> list[Atom]:
        return self._divided(first, end).atoms(first, end) if first < end else []


class Server:
    """The topics of a server."""

    def __init__(self, url: str, access: Access) -> None:
        self.shown = url
        self._access = access

    @property
    def _store(self) -> RemoteStore:
        return store_at(self.shown, self._access)

    def names(self) -> list[str]:
        return list(self._store)

    def look(self, name: str, shards: tuple[int, ...]) -> Shards:
        topic = self._store[name]
        state = topic._state()
        there = {told["shard"]: told for told in state.shards}
        chosen = checked(name, shards, sorted(there))
        return Shards(name, state.epoch, {n: AtServer(topic, there[n]) for n in chosen})

    def missed(self, topic: str, epoch: int, offset: int, shard: int) -> Gap:
        return self._store[topic]._settled(offset, None, shard, epoch=epoch).gaps[shard]

    def read(
        self, span: Span, columns: tuple[str, ...] = (), *, lenient: bool = False
    ) -> Iterator[Batch | Gap]:
        wanted = ",".join(sorted(_STORED & set(columns))) if columns else None
        return whole(
            self._store[span.topic], span.shard, span.first, span.end, span.id, DELETED_SINCE,
            "offset" if wanted == "" else wanted,
        )  # fmt: skip
