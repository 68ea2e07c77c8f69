"""Mapped sealed files, the least recently used let go first.

A mapping is made when a segment is first read, and dropped from the cache when the sum of mapped
bytes passes the bound. Dropping is safe at any time: buffers that were handed out keep their
mapping alive, and it is unmapped when the last of them is gone. Sealed files are never truncated
or written again, so a mapping can never turn into SIGBUS. One may be replaced by a smaller one that
says the same of all that is left (see engine/rewriting.py): who has the old one goes on with it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from esker.storage.files import Files, size_if_there


class Mapping:
    """A mapped file, and the frames of it that were decoded; both go together."""

    __slots__ = ("data", "decoded")

    def __init__(self, data: Any) -> None:
        self.data = data
        self.decoded: dict[int, Any] = {}


class Maps:
    """A bounded cache of mappings, shared by all readers of a store."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self._files = files
        self._limit = limit_bytes
        self._lock = threading.Lock()  # guards everything below
        self._maps: OrderedDict[str, Mapping] = OrderedDict()
        self._drops = 0  # how often somebody said that a file is about to go
        self.bytes = 0
        self.made = 0
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
            self.bytes += len(mapped.data)
            while self.bytes > self._limit and len(self._maps) > 1:
                _, old = self._maps.popitem(last=False)
                self.bytes -= len(old.data)
                self.dropped += 1
        return mapped

    def drop(self, path: str) -> None:
        """Let one mapping go, because its file is about to be, or has been replaced."""
        with self._lock:
            self._drops += 1
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

    def clear(self) -> None:
        with self._lock:
            self._maps.clear()
            self.bytes = 0
