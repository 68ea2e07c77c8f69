"""What a simulated disk keeps of a file and of a directory.

A file is two things: what is on the platter (`durable`), and what the page cache shows (`cache`),
with the ordered list of changes between them. A sync turns the changes into platter. A directory
is the same with names. What a power cut may leave of both is decided in cuts.py.

A failed sync leaves its changes where no later sync looks: the platter never gets them, unless the
same sectors are written again. The cache goes on showing them, as on most file systems, or shows
what is on the platter, as on those that copy on write.

Bytes are shared between a disk and its copies until one of them writes: `cache` is a `bytes` until
then, and a `bytearray` from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128_digest

_time: Final = itertools.count(1)  # orders all changes, of files and of names, among each other


# ---- files -----------------------------------------------------------------------------------


class Change(NamedTuple):
    """What one call did to a file: its size afterwards, and the sectors as they were then."""

    time: int
    size: int
    sectors: dict[int, bytes]


class Inode:
    """A file, apart from its names."""

    __slots__ = ("_digest", "apart", "cache", "durable", "page", "pending", "replaced", "sector")

    def __init__(self, durable: bytes = b"", sector: int = 512) -> None:
        self.durable = durable
        self.cache: bytes | bytearray = durable
        self.pending: list[Change] = []
        self.page: memoryview[int] | None = None  # set while mapped as a page of words
        self.sector = sector  # bytes that the platter takes as a whole
        self.replaced = durable  # what the last sync replaced on the platter
        self.apart = False  # whether the platter lacks what the cache shows and no sync will bring
        self._digest: tuple[bytes, bytes] | None = None

    def _own(self) -> bytearray:
        """The cache, to be written to."""
        cache = self.cache
        if isinstance(cache, bytes):
            cache = self.cache = bytearray(cache)
        return cache

    def write(self, position: int, parts: Sequence[Any]) -> None:
        cache, begin = self._own(), position
        if position > len(cache):
            cache.extend(bytes(position - len(cache)))
        for part in parts:
            cache[position : position + len(part)] = part
            position += len(part)
        self._changed(range(begin // self.sector, -(-position // self.sector)))

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros. What is cut off is gone from the cache for good."""
        cache = self._own()
        before = len(cache)
        if size < before:
            del cache[size:]
            self._changed(range(size // self.sector, -(-before // self.sector)))
        else:
            cache.extend(bytes(size - before))
            self._changed(range(0))

    def _changed(self, touched: range) -> None:
        cache, sector = self.cache, self.sector
        sectors = {at: bytes(cache[at * sector : (at + 1) * sector]) for at in touched}
        self.pending.append(Change(next(_time), len(cache), sectors))

    def as_page(self, size: int) -> memoryview[int]:
        """The content as 64-bit words that are written without a call, as a shared mapping is."""
        if self.page is None:
            if len(self.cache) < size:
                self.resize(size)
            self.page = memoryview(self._own()).cast("Q")
        return self.page

    def sync(self) -> None:
        """Everything up to here is on the platter."""
        if self.page is not None:  # stores to a mapping are no calls, and a sync takes them along
            self.replaced, self.durable, self.pending = self.durable, bytes(self.cache), []
        elif self.pending:
            self.replaced = self.durable
            if self.apart:
                self.durable = _applied(self.durable, self.pending, self.sector)
            else:
                self.durable = bytes(self.cache)
            self.pending = []

    def fail_sync(self, *, reverts: bool) -> None:
        """The kernel drops the changes and calls the pages clean. Only the size may come later."""
        if reverts and self.page is not None:
            self._own()[:] = self.durable.ljust(len(self.cache), b"\0")[: len(self.cache)]
        elif reverts:
            self._own()[:] = self.durable
            self.pending = []
        elif self.pending:
            self.apart = True
            self.pending = [Change(next(_time), self.pending[-1].size, {})]

    def killed(self) -> Inode:
        """The file after the death of its process: the page cache is as it was."""
        after = Inode(self.durable, self.sector)
        cache = self.cache
        if isinstance(cache, bytearray):
            cache = self.durable if not self.pending and cache == self.durable else bytes(cache)
        after.cache = cache
        after.pending = list(self.pending)
        after.replaced = self.replaced
        after.apart = self.apart or self.page is not None  # stores to a mapping were no changes
        after._digest = self._digest
        return after

    def digest(self) -> bytes:
        """Tells the content on the platter from others; remembered while it stays the same."""
        known = self._digest
        if known is None or known[0] is not self.durable:
            known = self._digest = (self.durable, content_digest(self.durable))
        return known[1]


def content_digest(content: bytes | bytearray) -> bytes:
    return xxh3_128_digest(content)


def _applied(content: bytes, changes: Sequence[Change], sector: int) -> bytes:
    after = bytearray(content)
    for change in changes:
        size = change.size
        if size < len(after):
            del after[size:]
        else:
            after.extend(bytes(size - len(after)))
        for at, data in change.sectors.items():
            begin = at * sector
            end = min(begin + len(data), size)
            if begin < end:
                after[begin:end] = data[: end - begin]
    return bytes(after)


# ---- directories -----------------------------------------------------------------------------


class Folder:
    """A directory, apart from its own name."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.entries: dict[str, Node] = {}
        self.pending: list[Move] = []

    def sync(self) -> None:
        """Every change of this directory is on the platter, in the order of the changes."""
        for move in list(self.pending):
            move.settle()


Node = Inode | Folder


class Move:
    """A change of names that happens as a whole: (directory, name, what it names from now on)."""

    __slots__ = ("parts", "time")

    def __init__(self, *parts: tuple[Folder, str, Node | None]) -> None:
        self.parts = parts
        self.time = next(_time)
        for folder, name, node in parts:
            put(folder.entries, name, node)
        for folder in self.folders():
            folder.pending.append(self)

    def folders(self) -> list[Folder]:
        return list(dict.fromkeys(folder for folder, _, _ in self.parts))

    def settle(self) -> None:
        for folder, name, node in self.parts:
            put(folder.durable, name, node)
        for folder in self.folders():
            folder.pending.remove(self)


def put(entries: dict[str, Node], name: str, node: Node | None) -> None:
    """Let a name stand for something else, or for nothing any more."""
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def killed(root: Folder) -> Folder:
    """A directory tree after the death of a process: nothing is lost, and nothing is settled."""
    copies: dict[Node, Node] = {}
    pending: list[tuple[Folder, Move]] = []

    def folder_copy(folder: Folder) -> Folder:
        known = copies.get(folder)
        if known is not None:
            assert isinstance(known, Folder)
            return known
        after = copies[folder] = Folder()
        for name, node in folder.durable.items():
            after.durable[name] = copy(node)
        for name, node in folder.entries.items():
            after.entries[name] = copy(node)
        pending.extend((folder, move) for move in folder.pending)
        return after

    def copy(node: Node) -> Node:
        if isinstance(node, Folder):
            return folder_copy(node)
        if node not in copies:
            copies[node] = node.killed()
        return copies[node]

    after = folder_copy(root)
    made: dict[Move, Move] = {}
    for folder, move in pending:  # grows while directories turn up that only a move still names
        if move not in made:
            copied = made[move] = Move.__new__(Move)
            copied.time = move.time
            copied.parts = tuple(
                (folder_copy(where), name, None if node is None else copy(node))
                for where, name, node in move.parts
            )
        folder_copy(folder).pending.append(made[move])
    return after
