"""A store on a server: its topics, and what concerns it as a whole."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from esker import options as opts
from esker.client.address import options, parse
from esker.client.group import status_of
from esker.client.pool import Pool, part
from esker.client.queue import RemoteQueue
from esker.client.route import RemoteRoute, open_route, routes_of
from esker.client.stage import RemoteStage, attach, attached
from esker.client.tail import RemoteTail
from esker.client.topic import RemoteTopic
from esker.clock import SYSTEM_CLOCK
from esker.engine.tail import following
from esker.errors import (
    InvalidName,
    InvalidOption,
    NotRemote,
    ReadOnlyStore,
    StoreClosed,
    TopicExists,
    TopicNotFound,
    nearest,
)
from esker.groups.describe import GroupStatus
from esker.options import TopicOptions
from esker.routes.status import RouteStatus

LIST_PAGE: Final = 1_000

# Verbs of a directory that its server's machine is the place for; docs/client.md says why.
NOT_REMOTE: Final = {
    "Store": {
        "tick", "recovery", "maintenance", "pause_maintenance", "resume_maintenance", "tier",
        "retention_plan", "retain", "statistics", "process_slot", "processes", "group",
    },
    "Topic": {"archive", "tier", "reclaim", "append_nowait"},
    "Queue": {"announce", "claim_together", "findings"},
    "Route": {"run_once"},
}  # fmt: skip


class RemoteStore:
    """The topics of a server. Use it as a context manager, as a store in a directory."""

    def __init__(self, pool: Pool, *, read_only: bool = False) -> None:
        self._pool = pool
        self._read_only = read_only
        self._topics: dict[str, RemoteTopic] = {}
        self._lock = threading.Lock()  # guards _topics

    @property
    def path(self) -> str:
        """The server's URL."""
        return self._pool.address.url

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._pool.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else "r" if self._read_only else "rw"
        return f"<esker store {self.path} ({state})>"

    def __getattr__(self, name: str) -> Any:
        raise self._not_remote("Store", name)

    def _not_remote(self, kind: str, name: str) -> AttributeError:
        if name in NOT_REMOTE[kind]:
            return NotRemote(
                f"{name} is done where the store is; {self.path} is a server. See docs/client.md"
            )
        return AttributeError(f"a {kind.lower()} has no {name!r}")

    def require_open(self) -> None:
        """Refuse to go on with a store that was closed."""
        if self._pool.closed:
            raise StoreClosed(f"the store {self.path} is closed; open it again to use it")

    def _require_writable(self) -> None:
        self.require_open()
        if self._read_only:
            raise ReadOnlyStore(
                f'the store {self.path} was opened with mode="r"; open it with mode="rw" to write'
            )

    # ---- topics --------------------------------------------------------------------------

    def __getitem__(self, name: str) -> RemoteTopic:
        """The topic of that name; it is created by its first append if need be."""
        self.require_open()
        opts.topic_name(name)
        with self._lock:
            topic = self._topics.get(name)
            if topic is None or topic._gone:
                topic = self._topics[name] = RemoteTopic(self, name)
            return topic

    def create(self, name: str, *, exist_ok: bool = False, **options: Any) -> RemoteTopic:
        """Create a topic. See `esker.options.TopicOptions` for what can be set."""
        self._require_writable()
        opts.topic_name(name)
        opts.topic_options(**options)
        path = f"/v1/topics/{part(name)}"
        answer = self._pool.call("PUT", path, None, options, again=exist_ok)
        if not exist_ok and not answer.json()["created"]:
            raise TopicExists(
                f"topic {name!r} exists, with these options; use store[name], or exist_ok=True"
            )
        return self[name]

    def alter(self, name: str, **options: Any) -> RemoteTopic:
        """Change options of a topic that is there; all but `shards` and `durability`."""
        self._require_writable()
        opts.topic_name(name)
        opts._checked(options, TopicOptions)
        self[name]._call("PATCH", "", None, options, again=True)
        return self[name]

    def delete(self, name: str, *, missing_ok: bool = False, if_empty: bool = False) -> None:
        """Delete a topic and everything in it, for good; with if_empty only if that is nothing."""
        self._require_writable()
        opts.topic_name(name)
        asked = {"missing_ok": "true" if missing_ok else "false"}
        if if_empty:
            asked["if_empty"] = "true"
        try:
            self._pool.call("DELETE", f"/v1/topics/{part(name)}", asked, again=missing_ok)
        except TopicNotFound:
            known = nearest(name, list(self))
            raise TopicNotFound(f"no topic {name!r} in {self.path}; {known}") from None
        with self._lock:
            topic = self._topics.pop(name, None)
            if topic is not None:
                topic._gone = True

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __iter__(self) -> Iterator[str]:
        """The names of the topics, sorted; of those that the key may read."""
        return iter(self._names())

    def _names(self) -> list[str]:
        self.require_open()
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            asked = {"limit": LIST_PAGE, "cursor": cursor}
            page = self._pool.call("GET", "/v1/topics", asked, again=True).json()
            found += page["topics"]
            cursor = page.get("next")
        return found

    def __contains__(self, name: object) -> bool:
        self.require_open()
        try:
            path = f"/v1/topics/{part(opts.topic_name(name))}"
            self._pool.call("GET", path, again=True)
        except (InvalidName, TopicNotFound):
            return False
        return True

    def __len__(self) -> int:
        return len(self._names())

    def __bool__(self) -> bool:
        return True  # and no call for it

    def _repr_html_(self) -> str:
        from esker.engine.notebook import store_html  # for who looks at it in a notebook

        return store_html(self)

    # ---- groups, queues, routes, batches made elsewhere ----------------------------------

    def groups(self) -> list[GroupStatus]:
        """All groups of all topics that the key may read."""
        self.require_open()
        found = self._pool.call("GET", "/v1/groups", again=True).json()["groups"]
        return [status_of(each) for each in found]

    def queue(self, name: str, **options: Any) -> RemoteQueue:
        """The queue of that name; see `Store.queue`."""
        self.require_open()
        opts.topic_name(name)
        return RemoteQueue(self, name, options)

    def route(
        self, source: str = "", destination: str = "", *, where: str = "", name: str | None = None,
        start: Any = "earliest", exactly_once: bool = False, merge: bool = False,
        allow_cycles: bool = False, hops: int = 8,
    ) -> RemoteRoute:  # fmt: skip
        """Have the server forward from one topic to another one; see `Store.route`."""
        return open_route(
            self, source, destination, where=where, name=name, start=start,
            exactly_once=exactly_once, merge=merge, allow_cycles=allow_cycles, hops=hops,
        )  # fmt: skip

    def routes(self) -> list[RouteStatus]:
        """All routes of topics that the key may read."""
        return routes_of(self)

    def stage(self, topic: str, shard: int = 0) -> RemoteStage:
        """Write records beside the log; `attach` makes them part of it. See `Store.stage`."""
        self._require_writable()
        if type(shard) is not int or shard < 0:
            raise InvalidOption(f"shard={shard!r}: the number of a shard")
        return RemoteStage(self[topic], shard)

    def attach(
        self, writer: str, sequence: int, tickets: Iterable[Any], *, timeout: float = 30.0
    ) -> bool:
        """Commit a batch of staged parts: all of it, durably, and once. See `Store.attach`."""
        return attach(self, writer, sequence, tickets, timeout)

    def attached(self, writer: str) -> int | None:
        """The number of the last batch that a writer committed; None if there was none."""
        return attached(self, writer)

    # ---- the whole store -----------------------------------------------------------------

    def flush(self) -> None:
        """Have the server write what it holds in buffers, of the topics that were used here."""
        self._require_writable()
        for topic in list(self._topics.values()):
            topic.flush()

    def sync(self) -> None:
        """Make everything that was appended here durable."""
        self._require_writable()
        for topic in list(self._topics.values()):
            topic.sync()

    def _follow(self, tail: RemoteTail, timeout: float | None) -> Iterator[Any]:
        with suppress(StoreClosed):
            yield from following(tail, timeout, SYSTEM_CLOCK)

    def close(self) -> None:
        """Let go of all connections. What was appended is with the server; nothing waits here."""
        self._pool.close()

    def __enter__(self) -> RemoteStore:
        self.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def open_url(url: str, mode: str = "rw", **given: Any) -> RemoteStore:
    """A store on a server. Nothing is sent yet, but for the question whether it is there."""
    pool = Pool(parse(url), options(given))
    try:
        pool.call("GET", "/v1/topics", {"limit": 1}, again=True)
    except BaseException:
        pool.close()
        raise
    return RemoteStore(pool, read_only=mode == "r")
