"""What a simulated disk keeps of a file and of a directory, and what a power cut leaves of both.

A file is two things: what is on the platter (`durable`), and what the page cache shows (`cache`),
with the ordered list of changes between them. A sync turns the changes into platter. A directory
is the same with names. What a power cut may leave, each choice made by a `Fate`:

    a sector (512 bytes)     any of the contents it had since the last sync, independently of others
    the size of a file       any of the sizes it had since the last sync
    a sector within the size whose content was lost: zeros, junk, or bytes of a deleted file
    a name                   each creation, deletion or renaming since the directory was synced
                             happened or did not; a renaming as a whole

So data may survive without its size, size without data, later writes without earlier ones, a file
without a name, a name without content, and a deleted file may be back. All of it is legal on some
file system; code that holds here holds on the kinder ones.

A failed sync leaves its changes where no later sync looks: the platter never gets them, unless the
same sectors are written again. The cache goes on showing them, as on most file systems, or shows
what is on the platter, as on those that copy on write.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

SECTOR: Final = 512


# ---- choices ---------------------------------------------------------------------------------


class Fate:
    """Chooses what a power cut leaves, by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"fate {seed}")
        self._names = self._random.choice((0.15, 0.5, 0.85))
        self._newest = self._random.choice((0.1, 0.5, 0.9))
        self._filling = self._random.choice(("zeros", "junk", "stale"))

    def keeps_entry(self) -> bool:
        """Whether a change of a directory survives."""
        return self._random.random() < self._names

    def version(self, count: int) -> int:
        """Which of the contents or sizes 0 (synced) to `count` (newest) survives."""
        if self._random.random() < self._newest:
            return count
        return self._random.randrange(count + 1)

    def size_version(self, count: int) -> int:
        return self.version(count)

    def filling(self, sector: int, graves: Sequence[bytes]) -> bytes:
        """What stands in a sector whose content did not make it."""
        if self._filling == "junk":
            return self._random.randbytes(SECTOR)
        if self._filling == "stale" and graves:
            grave = self._random.choice(graves)
            stale = grave[sector * SECTOR : (sector + 1) * SECTOR]
            return stale.ljust(SECTOR, b"\0")
        return bytes(SECTOR)


class _Fixed(Fate):
    """The same choice every time: the corners that chance seldom finds."""

    def __init__(self, *, entries: bool, sizes: bool, contents: bool) -> None:
        super().__init__(0)
        self._entries, self._sizes, self._contents = entries, sizes, contents
        self._filling = "zeros"

    def keeps_entry(self) -> bool:
        return self._entries

    def version(self, count: int) -> int:
        return count if self._contents else 0

    def size_version(self, count: int) -> int:
        return count if self._sizes else 0


LOST: Final[Fate] = _Fixed(entries=False, sizes=False, contents=False)
"""Nothing survives that was not synced."""
KEPT: Final[Fate] = _Fixed(entries=True, sizes=True, contents=True)
"""Everything survives, synced or not."""
NAMES_ONLY: Final[Fate] = _Fixed(entries=True, sizes=True, contents=False)
"""Names and sizes survive, and what was not synced reads as zeros."""
UNNAMED: Final[Fate] = _Fixed(entries=False, sizes=True, contents=True)
"""All data survives, and no name that was not synced."""


# ---- files -----------------------------------------------------------------------------------


class Change(NamedTuple):
    """What one call did to a file: its size afterwards, and the sectors as they were then."""

    size: int
    sectors: dict[int, bytes]


class Inode:
    """A file, apart from its names."""

    __slots__ = ("cache", "durable", "page", "pending")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.cache = bytearray(durable)
        self.pending: list[Change] = []
        self.page: memoryview[int] | None = None  # set while mapped as a page of words

    def write(self, position: int, parts: Sequence[Any]) -> None:
        cache, begin = self.cache, position
        if position > len(cache):
            cache.extend(bytes(position - len(cache)))
        for part in parts:
            cache[position : position + len(part)] = part
            position += len(part)
        self._changed(begin, position)

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros. What is cut off is gone from the cache for good."""
        before = len(self.cache)
        if size < before:
            del self.cache[size:]
            gone = range(size // SECTOR, -(-before // SECTOR))
            self.pending.append(Change(size, {sector: self._sector(sector) for sector in gone}))
        else:
            self.cache.extend(bytes(size - before))
            self.pending.append(Change(size, {}))

    def _changed(self, begin: int, end: int) -> None:
        touched = range(begin // SECTOR, -(-end // SECTOR))
        self.pending.append(
            Change(len(self.cache), {sector: self._sector(sector) for sector in touched})
        )

    def _sector(self, sector: int) -> bytes:
        return bytes(self.cache[sector * SECTOR : (sector + 1) * SECTOR])

    def as_page(self, size: int) -> memoryview[int]:
        """The content as 64-bit words that are written without a call, as a shared mapping is."""
        if self.page is None:
            if len(self.cache) < size:
                self.resize(size)
            self.page = memoryview(self.cache).cast("Q")
        return self.page

    def sync(self) -> None:
        """Everything up to here is on the platter."""
        if self.pending:
            self.durable = _applied(self.durable, self.pending)
            self.pending = []

    def fail_sync(self, *, reverts: bool) -> None:
        """The kernel drops the changes and calls the pages clean. Only the size may come later."""
        if reverts:
            self.cache[:] = self.durable
            self.pending = []
        elif self.pending:
            self.pending = [Change(self.pending[-1].size, {})]

    def killed(self) -> Inode:
        """The file after the death of its process: the page cache is as it was."""
        after = Inode()
        after.durable = self.durable
        after.cache = bytearray(self.cache)
        after.pending = list(self.pending)
        return after

    def crashed(self, fate: Fate, graves: Sequence[bytes]) -> Inode:
        """The file after a power cut."""
        if self.page is not None:
            return Inode(self._crashed_page(fate))
        if not self.pending:
            return Inode(self.durable)
        history: dict[int, list[bytes]] = {}
        for change in self.pending:
            for sector, content in change.sectors.items():
                history.setdefault(sector, []).append(content)
        version = fate.size_version(len(self.pending))
        size = self.pending[version - 1].size if version else len(self.durable)
        after = bytearray(self.durable[:size].ljust(size, b"\0"))
        for sector, versions in sorted(history.items()):
            begin = sector * SECTOR
            version = fate.version(len(versions))
            if version:
                survives = versions[version - 1]
            elif begin < len(self.durable):
                continue
            else:
                survives = fate.filling(sector, graves)
            end = min(begin + len(survives), size)
            if begin < end:
                after[begin:end] = survives[: end - begin]
        return Inode(bytes(after))

    def _crashed_page(self, fate: Fate) -> bytes:
        """A mapped page is written whenever the kernel likes: it is new, old or not there."""
        return (self.durable, bytes(len(self.cache)), bytes(self.cache))[fate.version(2)]


def _applied(content: bytes, changes: Sequence[Change]) -> bytes:
    after = bytearray(content)
    for change in changes:
        size = change.size
        if size < len(after):
            del after[size:]
        else:
            after.extend(bytes(size - len(after)))
        for sector, data in change.sectors.items():
            begin = sector * SECTOR
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

    __slots__ = ("parts",)

    def __init__(self, *parts: tuple[Folder, str, Node | None]) -> None:
        self.parts = parts
        for folder, name, node in parts:
            _name(folder.entries, name, node)
        for folder in self.folders():
            folder.pending.append(self)

    def folders(self) -> list[Folder]:
        return list(dict.fromkeys(folder for folder, _, _ in self.parts))

    def settle(self) -> None:
        for folder, name, node in self.parts:
            _name(folder.durable, name, node)
        for folder in self.folders():
            folder.pending.remove(self)


def _name(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class Tree:
    """The names that are left of a directory tree, with copies of what they name."""

    def __init__(self, fate: Fate | None, graves: Sequence[bytes]) -> None:
        self._fate = fate  # None: only the process dies, and everything is kept
        self._graves = graves
        self._copies: dict[Node, Node] = {}
        self._kept: dict[Move, bool] = {}
        self._moves: list[tuple[Folder, Move]] = []

    def copy(self, root: Folder) -> Folder:
        """The directory after the death of the machine, or of the process."""
        after = self._folder(root)
        if self._fate is None:
            self._copy_moves()
        return after

    def _folder(self, folder: Folder) -> Folder:
        after = Folder()
        self._copies[folder] = after
        for name, node in folder.durable.items() if self._fate is None else ():
            after.durable[name] = self._node(node)
        for name, node in self._entries(folder).items():
            after.entries[name] = self._node(node)
        if self._fate is None:
            self._moves += [(folder, move) for move in folder.pending]
        else:
            after.durable = dict(after.entries)
        return after

    def _entries(self, folder: Folder) -> dict[str, Node]:
        if self._fate is None:
            return folder.entries
        left = dict(folder.durable)
        for move in folder.pending:
            if move not in self._kept:
                self._kept[move] = self._fate.keeps_entry()
            if self._kept[move]:
                for where, name, node in move.parts:
                    if where is folder:
                        _name(left, name, node)
        return left

    def _node(self, node: Node) -> Node:
        if node not in self._copies:
            if isinstance(node, Folder):
                return self._folder(node)
            fate = self._fate
            self._copies[node] = node.killed() if fate is None else node.crashed(fate, self._graves)
        return self._copies[node]

    def _copy_moves(self) -> None:
        """After a kill nothing is settled: the same changes wait for the same syncs."""
        made: dict[Move, Move] = {}
        for folder, move in self._moves:
            if move not in made:
                copied = made[move] = Move.__new__(Move)
                copied.parts = tuple(
                    (self._copied_folder(where), name, None if node is None else self._node(node))
                    for where, name, node in move.parts
                )
            self._copied_folder(folder).pending.append(made[move])

    def _copied_folder(self, folder: Folder) -> Folder:
        copied = self._node(folder)
        assert isinstance(copied, Folder)
        return copied
