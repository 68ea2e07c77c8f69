"""A store in a directory, as a query reads it: its files are looked at by each process itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from esker.engine import epochs, ranges
from esker.engine.batch import Batch
from esker.engine.epochs import RECREATED
from esker.engine.ranges import Atom, without_holes
from esker.engine.reader import View, earliest_of, find_time
from esker.engine.reader import resolve as offset_of
from esker.engine.store import Store, open_store
from esker.errors import InvalidOption, TopicNotFound, nearest
from esker.positions import Position
from esker.records import Gap
from esker.spark.origin import DELETED_SINCE, Shards, Span

BATCH_BYTES = 4 << 20

_open: dict[tuple[str, str], Store] = {}


def reading(path: str, cold: str = "") -> Store:
    """The store at a path, opened to be read, once in a process: workers live for many tasks.

    `cold` says where its cold segments are now, if not where they were moved to.
    """
    store = _open.get((path, cold))
    if store is None:
        store = _open[path, cold] = open_store(path, mode="r", cold=cold)
    return store


def let_go() -> None:
    """Close the stores that this process reads."""
    while _open:
        _open.popitem()[1].close()


class InLog:
    """A shard of a log, as its view has it."""

    def __init__(self, view: View) -> None:
        self.view = view

    @property
    def visible(self) -> int:
        return self.view.visible

    @property
    def earliest(self) -> int:
        return earliest_of(self.view)

    @property
    def begin(self) -> int:
        return ranges.deleted_before(self.view)

    def resolve(self, position: Position) -> int:
        return offset_of(self.view, position)

    def since(self, time_us: int) -> int:
        return find_time(self.view, time_us)

    def last_before(self, time_us: int, end: int) -> int:
        return ranges.last_before(self.view, time_us, end)

    def atoms(self, first: int, end: int) -> list[Atom]:
        return ranges.atoms(self.view, first, end)


class Directory:
    """The topics of a store in a directory."""

    def __init__(self, path: str, cold: str = "") -> None:
        self._path = path
        self._cold = cold

    @property
    def shown(self) -> str:
        return self._path

    @property
    def _store(self) -> Store:
        return reading(self._path, self._cold)

    def names(self) -> list[str]:
        return list(self._store)

    def look(self, name: str, shards: tuple[int, ...]) -> Shards:
        store = self._store
        try:
            return _views(store, name, shards)
        except TopicNotFound:  # deleted since we last looked; there may be another one of that name
            if name in store:
                return _views(store, name, shards)
        raise TopicNotFound(
            f"no topic {name!r} in {store.path}; {nearest(name, list(store))}. "
            "A topic is there once somebody has created it or appended to it."
        )

    def missed(self, topic: str, epoch: int, offset: int, shard: int) -> Gap:
        catalog = self._store._catalog.catalog
        return epochs.missed(catalog, topic, epoch, offset, [shard])[shard]

    def read(
        self, span: Span, columns: tuple[str, ...] = (), *, lenient: bool = False
    ) -> Iterator[Batch | Gap]:
        return without_holes(
            self._found(span), span.topic, span.shard, span.first, span.end, DELETED_SINCE
        )

    def _found(self, span: Span) -> Iterator[Any]:
        store, at = self._store, span.first
        with suppress(TopicNotFound):  # deleted: whatever has not been read by now is missing
            if store[span.topic]._existing().id != span.id:
                self.look(span.topic, ())  # ours may be the one that had this name before
            topic = store[span.topic]
            if topic._existing().id == span.id:
                for item in topic._whole(span.first, span.end, span.shard, BATCH_BYTES):
                    yield item
                    at = item.last + 1 if isinstance(item, Gap) else item.next_offset
                return
        with suppress(TopicNotFound):
            if at < span.end and self.look(span.topic, ()).id != span.id:
                yield Gap(span.topic, span.shard, at, span.end - 1, RECREATED)


def _views(store: Store, name: str, shards: tuple[int, ...]) -> Shards:
    topic = store[name]
    entry = topic._existing()
    chosen = checked(name, shards, list(range(entry.options.shards)))
    return Shards(name, entry.id, {number: InLog(topic._view(number)) for number in chosen})


def checked(name: str, shards: tuple[int, ...], there: list[int]) -> list[int]:
    """The shards to read, all of which must be there; all that are, if none is named."""
    for shard in shards:
        if shard not in there:
            known = f"{there[0]}..{there[-1]}" if there else "none"
            raise InvalidOption(f"assign: topic {name!r} has shards {known}, not {shard}")
    return list(shards) or there
