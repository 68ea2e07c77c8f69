"""Where rows are staged and committed: beside a log in a directory, or on a server.

    prepare     the topic is there when this returns; wrong paths and keys are told before any task
    attached    the last batch of a writer
    shape       how many shards a topic has, and how large a record may be; makes it if need be
    stage       records of one shard beside the log, where nobody sees them
    commit      all tickets of a batch at once
    abandon     what was staged for a batch that failed

A task opens its yard by itself. What it stages is synced when its tickets are handed over, on a
server as in a directory, and becomes a part of the log by the driver's commit alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from esker.client import stage as remote_stage
from esker.client.store import RemoteStore
from esker.engine import attach
from esker.engine.attach import Stage
from esker.engine.store import open_store
from esker.errors import EskerError, Forbidden
from esker.spark.local import reading
from esker.spark.origin import Where
from esker.spark.remote import is_server, store_at


class Yard(Protocol):
    """Where a write goes."""

    def prepare(self, topic: str, made_with: dict[str, Any]) -> None: ...
    def attached(self, writer: str) -> int | None: ...
    def shape(self, topic: str, made_with: dict[str, Any]) -> tuple[int, int]: ...
    def stage(self, topic: str, shard: int) -> Any: ...
    def commit(
        self, writer: str, sequence: int, tickets: Sequence[Any], timeout: float, *, once: bool
    ) -> None: ...
    def abandon(self, tickets: Sequence[Any]) -> None: ...


def yard(where: Where) -> Yard:
    if is_server(where.path):
        return ServerYard(where)
    return DirectoryYard(where.path)


class DirectoryYard:
    """Beside a log in a directory."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _writing(self) -> Any:
        return open_store(self._path, routes=False)

    def prepare(self, topic: str, made_with: dict[str, Any]) -> None:
        with self._writing() as store:
            if topic and topic not in store:
                store.create(topic, exist_ok=True, **made_with)

    def attached(self, writer: str) -> int | None:
        found: int | None = reading(self._path).attached(writer)
        return found

    def shape(self, topic: str, made_with: dict[str, Any]) -> tuple[int, int]:
        store = reading(self._path)
        if topic not in store:
            with self._writing() as writable:
                writable.create(topic, exist_ok=True, **made_with)
        options = store[topic]._existing().options
        return options.shards, options.max_record_bytes

    def stage(self, topic: str, shard: int) -> Stage:
        store = reading(self._path)
        return Stage(store._context, store[topic]._existing(), shard)

    def commit(
        self, writer: str, sequence: int, tickets: Sequence[Any], timeout: float, *, once: bool
    ) -> None:
        with self._writing() as store:
            store.attach(writer, sequence, tickets, timeout=timeout)
            if once:
                attach.forget(store._context, writer)

    def abandon(self, tickets: Sequence[Any]) -> None:
        attach.abandon(reading(self._path)._context, tickets)


class ServerYard:
    """On a server."""

    def __init__(self, where: Where) -> None:
        self._where = where

    @property
    def _store(self) -> RemoteStore:
        return store_at(self._where.path, self._where.access, writing=True)

    def prepare(self, topic: str, made_with: dict[str, Any]) -> None:
        self.attached("spark")  # whether the key may write at all
        if topic:
            self.shape(topic, made_with)
            with self._store.stage(topic) as staged:  # and this topic: a stage without records
                staged.probe()

    def attached(self, writer: str) -> int | None:
        return self._store.attached(writer)

    def shape(self, topic: str, made_with: dict[str, Any]) -> tuple[int, int]:
        store = self._store
        if topic not in store:
            try:
                store.create(topic, exist_ok=True, **made_with)
            except Forbidden as problem:
                raise Forbidden(
                    f"topic {topic!r} is not there, and to create it {problem}: create it with a "
                    "key that has the scope 'admin'"
                ) from problem
        options = store[topic].options
        return options.shards, options.max_record_bytes

    def stage(self, topic: str, shard: int) -> remote_stage.RemoteStage:
        return self._store.stage(topic, shard)

    def commit(
        self, writer: str, sequence: int, tickets: Sequence[Any], timeout: float, *, once: bool
    ) -> None:
        store = self._store
        store.attach(writer, sequence, tickets, timeout=timeout)
        if once:
            with suppress(EskerError):  # it is done; a name too many is no failure
                remote_stage.forget(store, writer)

    def abandon(self, tickets: Sequence[Any]) -> None:
        remote_stage.abandon(self._store, tickets)
