"""Mapped sealed files, the least recently used let go first.

A mapping is made when a segment is first read, and dropped from the cache when the sum of mapped
bytes passes the bound. Dropping is safe at any time: buffers that were handed out keep their
mapping alive, and it is unmapped when the last of them is gone. Sealed files are never truncated
or written again, so a mapping can never turn into SIGBUS. One may be replaced by a smaller one that
says the same of all that is left (see engine/rewriting.py, engine/tiering.py): who has the old one
goes on with it.

Of a segment that lies in a cold store a stub is mapped, and what it stands for is kept in memory,
up to a bound of its own. It is fetched once, however many ask for it at the same time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from esker.errors import ColdUnavailable
from esker.format.place import Place
from esker.options import COLD_CACHE_BYTES
from esker.storage.cold import ColdStore, cold_store, fetch
from esker.storage.files import Files, size_if_there

TAIL = 32  # bytes at the end of a sealed file: its trailer, with the hash of the rest


class Mapping:
    """A mapped file, and the frames of it that were decoded; both go together."""

    __slots__ = ("data", "decoded", "tail")

    def __init__(self, data: Any) -> None:
        self.data = data
        self.tail = bytes(data[-TAIL:])  # tells it from what may have its name later
        self.decoded: dict[int, Any] = {}


class Fetched:
    """A bounded cache of segments from cold stores, shared by all readers of a store.

    What was fetched last stays whatever its size, or reading it would fetch it again and again.
    """

    def __init__(self, files: Files, limit_bytes: int, place: str = "") -> None:
        self.place = place  # where all of it is now, whatever stubs say; "" for where they say
        self._files = files
        self._limit = limit_bytes
        self._lock = threading.Lock()  # guards everything below
        self._stores: dict[str, ColdStore] = {}
        self._held: OrderedDict[str, Mapping] = OrderedDict()  # by key
        self._gates: dict[str, threading.Lock] = {}  # by key: held by who fetches it
        self.bytes = 0
        self.fetched = 0
        self.hits = 0

    def store(self, root: str) -> ColdStore:
        """The cold store that is to be asked for what a stub says lies at a root."""
        place = self.place or root
        with self._lock:
            found = self._stores.get(place)
            if found is None:
                found = self._stores[place] = cold_store(self._files, place)
            return found

    def get(self, place: Place) -> Mapping:
        """The whole segment that a stub stands for."""
        with self._lock:
            gate = self._gates.setdefault(place.key, threading.Lock())
            found = self._known(place.key)
        if found is not None:
            return found
        with gate:
            try:
                with self._lock:
                    found = self._known(place.key)
                return found or self._keep(place.key, self._fetch(place))
            finally:
                with self._lock:
                    self._gates.pop(place.key, None)

    def _fetch(self, place: Place) -> Any:
        """From where it is to be now, else from where it was put."""
        try:
            return fetch(self.store(place.root), place)
        except ColdUnavailable as problem:
            if not problem.missing or problem.root == place.root:
                raise
            return fetch(cold_store(self._files, place.root), place)

    def _known(self, key: str) -> Mapping | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
            self._gates.pop(key, None)
            self.hits += 1
        return found

    def _keep(self, key: str, data: Any) -> Mapping:
        made = Mapping(data)
        with self._lock:
            self.fetched += 1
            self._held[key] = made
            self.bytes += len(data)
            while self.bytes > self._limit and len(self._held) > 1:
                _, old = self._held.popitem(last=False)
                self.bytes -= len(old.data)
        return made

    def has_room_for(self, place: Place) -> bool:
        """Whether it is worth fetching ahead: it is not here, and the one being read may stay."""
        with self._lock:
            return place.key not in self._held and 2 * place.size <= self._limit

    def drop(self, key: str) -> None:
        """Let a segment go that lies here again, or is gone."""
        with self._lock:
            old = self._held.pop(key, None)
            if old is not None:
                self.bytes -= len(old.data)

    def renew(self) -> None:
        """In a forked child: whoever was in here is not in the child."""
        self._lock, self._gates = threading.Lock(), {}

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.bytes = 0


class Maps:
    """A bounded cache of mappings, shared by all readers of a store."""

    def __init__(self, files: Files, limit_bytes: int, cold: Fetched | None = None) -> None:
        self.cold = cold or Fetched(files, COLD_CACHE_BYTES)
        self._files = files
        self._limit = limit_bytes
        self._lock = threading.Lock()  # guards everything below
        self._maps: OrderedDict[str, Mapping] = OrderedDict()
        self._let_go: set[str] = set()  # files whose mappings were the least recently used
        self._drops = 0  # how often somebody said that a file is about to go
        self.bytes = 0
        self.made = 0
        self.remade = 0  # of those made: for files whose mapping had been let go
        self.dropped = 0
        self.hits = 0

    def get(self, path: str) -> Mapping:
        """The mapping of a sealed file."""
        with self._lock:
            mapped = self._maps.get(path)
            if mapped is not None:
                self._maps.move_to_end(path)
                self.hits += 1
                return mapped
            drops = self._drops
        file = self._files.open(path, "r")
        try:
            mapped = Mapping(file.map())
        finally:
            file.close()
        with self._lock:
            known = self._maps.get(path)
            if known is not None:
                return known
            if drops != self._drops:  # it may be a file that is gone: not to be kept
                return mapped
            self._maps[path] = mapped
            self.made += 1
            self.remade += path in self._let_go
            self._let_go.discard(path)
            self.bytes += len(mapped.data)
            while self.bytes > self._limit and len(self._maps) > 1:
                oldest, old = self._maps.popitem(last=False)
                self._let_go.add(oldest)
                self.bytes -= len(old.data)
                self.dropped += 1
        return mapped

    def drop(self, path: str) -> None:
        """Let one mapping go, because its file is about to be, or has been replaced."""
        with self._lock:
            self._drops += 1
            self._let_go.discard(path)
            self._pop(path)

    def drop_replaced(self, path: str) -> None:
        """Let a mapping go whose file another process has replaced, and with it the room it took.

        A file is replaced by a smaller one only, so its size tells. One that is gone, or cannot be
        looked at, is let go too: who reads it is told.
        """
        with self._lock:
            mapped = self._maps.get(path)
        if mapped is not None and size_if_there(self._files, path) != len(mapped.data):
            self.drop(path)

    def _pop(self, path: str) -> None:
        old = self._maps.pop(path, None)
        if old is not None:
            self.bytes -= len(old.data)
            self.dropped += 1

    def renew(self) -> None:
        """In a forked child: whoever was in here is not in the child."""
        self._lock = threading.Lock()
        self.cold.renew()

    def clear(self) -> None:
        self.cold.clear()
        with self._lock:
            self._maps.clear()
            self.bytes = 0
