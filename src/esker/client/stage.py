"""Batches that are made here and become part of a log on a server: all of them, once.

    with store.stage("orders", shard=2) as staged:
        staged.append_arrow(table)
    store.attach("nightly import", 20261116, staged.tickets)

What is appended goes to the server in parts while it comes, and lies beside the log there. A ticket
names such a part; it can be sent to another process, and only the server can read its seal.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker.client import bodies
from esker.client.pool import ARROW, part
from esker.engine import intake
from esker.engine.attach import Staging, check
from esker.engine.reader import check_timeout
from esker.errors import EskerError, InvalidOption
from esker.format.columns import Columns

if TYPE_CHECKING:
    from esker.client.store import RemoteStore
    from esker.client.topic import RemoteTopic

SEND_BYTES: Final = 16 << 20  # are collected before they are sent, and become one segment
ATTACH_SECONDS: Final = 300.0  # a server waits for another process no longer in one call


class RemoteTicket(msgspec.Struct, frozen=True):
    """A staged part of a batch."""

    topic: str
    shard: int
    rows: int
    bytes: int
    seal: str


class RemoteStage(Staging):
    """Records for one shard, beside the log. Not for two threads at once."""

    def __init__(self, topic: RemoteTopic, shard: int) -> None:
        self._topic = topic
        self._shard = shard
        self._waiting: list[Any] = []
        self._size = 0
        self._done: list[RemoteTicket] = []

    def __repr__(self) -> str:
        topic = self._topic
        return f"<esker stage for {topic.name!r} shard {self._shard} at {topic._store.path}>"

    def append_many(self, records: Any) -> int:
        """Add records as `topic.append_many` takes them; returns how many."""
        given = intake.batch_of(records)
        if given:
            self._add(bodies.rows(given))
        return len(given)

    def append_arrow(self, data: Any) -> int:
        """Add Arrow data as `topic.append_arrow` takes it; returns how many rows."""
        rows = 0
        for batch in intake.arrow_batches(data):
            if batch.num_rows:
                intake.arrow_columns(batch, bodies.NO_LIMIT, 0)  # refused before it is sent
                self._add(batch)
                rows += batch.num_rows
        return rows

    def append_columns(self, columns: Columns) -> None:
        """Add records that were checked before."""
        self._add(bodies.of_columns(columns))

    def _add(self, batch: Any) -> None:
        if self._waiting and batch.schema != self._waiting[0].schema:
            self._send()
        for piece in bodies.cut(batch, bodies.PART_BYTES):
            self._waiting.append(piece)
            self._size += piece.nbytes
            if self._size >= SEND_BYTES:
                self._send()

    def probe(self) -> None:
        """Ask whether records may be staged here, with none; the topic is made if need be."""
        self._post(bodies.stream(bodies.VALUES, []))

    def _send(self) -> None:
        if not self._waiting:
            return
        body = bodies.stream(self._waiting[0].schema, self._waiting)
        self._waiting, self._size = [], 0
        self._post(body)

    def _post(self, body: Any) -> None:
        # again: what is staged twice is attached once, for there is one ticket
        answer = self._topic._call(
            "POST", "/stages", {"shard": self._shard}, body, media=ARROW, again=True
        )
        self._done += [msgspec.convert(each, RemoteTicket) for each in answer.json()["tickets"]]

    def finish(self) -> list[RemoteTicket]:
        """Send what is left; returns what a commit needs to name all of it."""
        self._send()
        return list(self._done)

    @property
    def tickets(self) -> list[RemoteTicket]:
        """What is staged and durable."""
        return list(self._done)

    def discard(self) -> None:
        """Forget what was staged here; what cannot be reached now the server clears by itself."""
        self._waiting, self._size = [], 0
        done, self._done = self._done, []
        with suppress(EskerError):
            abandon(self._topic._store, done)


def abandon(store: RemoteStore, tickets: Iterable[RemoteTicket]) -> None:
    """Throw away what was staged and will not be attached; what is committed stays."""
    if given := list(tickets):
        store._pool.call("DELETE", "/v1/stages", None, {"tickets": given}, again=True)


def attach(
    store: RemoteStore, writer: str, sequence: int, tickets: Iterable[Any], timeout: float
) -> bool:
    """`Store.attach`."""
    store._require_writable()
    given = list(tickets)
    if not all(isinstance(each, RemoteTicket) for each in given):
        raise InvalidOption("these tickets were not made by this kind of store: stage them here")
    check(writer, sequence, ())
    limit = check_timeout(timeout)
    wait = ATTACH_SECONDS if limit is None else min(limit, ATTACH_SECONDS)
    body = {"writer": writer, "sequence": sequence, "tickets": given, "timeout": wait}
    # a batch happens once, whatever was lost on the way: it has a number
    answer = store._pool.call("POST", "/v1/attach", None, body, again=True, wait=wait)
    return bool(answer.json()["committed"])


def forget(store: RemoteStore, writer: str) -> None:
    """Have the server forget a writer that will not come back."""
    store._pool.call("DELETE", f"/v1/attached/{part(writer)}", again=True)


def attached(store: RemoteStore, writer: str) -> int | None:
    """`Store.attached`."""
    store.require_open()
    answer = store._pool.call("GET", f"/v1/attached/{part(writer)}", again=True)
    found: int | None = answer.json()["sequence"]
    return found
