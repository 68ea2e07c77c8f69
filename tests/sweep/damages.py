"""What can happen to a file: one bit, a cut, a sector, a name.

A `Damage` is a small value that says what to do and prints as such, so that a failure names
everything that is needed to see it again. `all_damages` lists them for one shape: every byte and
every place where a file can end, all eight bits where a bit may matter to more than one record
(headers, footers, trailers, pages), every sector, every file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from esker.format import frame, journal, marks
from esker.format import segment as segment_format
from esker.format import state as state_format
from tests.sweep.shapes import ROOT, Platter, Shape, shape

SECTOR: Final = 512
PAGE: Final = 4096
SPARSE: Final = 97  # in room that was taken ahead, zeros, every so-manieth byte is enough

_ELSEWHERE: Final = {"closed": "sealed", "sealed": "closed", "killed": "committed",
                     "committed": "killed", "rich": "closed", "deleted": "erased",
                     "erased": "deleted", "moved": "closed"}  # fmt: skip
"""Which other store a file may have come from."""


class Damage(NamedTuple):
    """One thing done to one file, or to two."""

    kind: str
    path: str
    at: int = 0
    more: int = 0
    other: str = ""

    def __str__(self) -> str:
        numbers = f" {self.at} {self.more}" if self.at or self.more else ""
        return f"{self.kind}{numbers} {self.path}" + (f" {self.other}" if self.other else "")

    def do(self, disk: Platter, of: Shape) -> None:
        getattr(self, "_" + self.kind)(disk, of)

    # -- bytes --

    def _flip(self, disk: Platter, of: Shape) -> None:
        disk.files[self.path][self.at] ^= 1 << self.more

    def _cut(self, disk: Platter, of: Shape) -> None:
        del disk.files[self.path][self.at :]

    def _zeros_behind(self, disk: Platter, of: Shape) -> None:
        disk.files[self.path].extend(bytes(self.at))

    def _junk_behind(self, disk: Platter, of: Shape) -> None:
        disk.files[self.path].extend(self._junk(self.at))

    def _zero(self, disk: Platter, of: Shape) -> None:
        self._put(disk, bytes(self.more))

    def _noise(self, disk: Platter, of: Shape) -> None:
        self._put(disk, self._junk(self.more))

    def _stale(self, disk: Platter, of: Shape) -> None:
        """The sector as it was some time before."""
        old = of.older.files.get(self.path, b"")
        self._put(disk, bytes(old[self.at : self.at + self.more]).ljust(self.more, b"\0"))

    def _misdirected(self, disk: Platter, of: Shape) -> None:
        """A sector of another place, or of another file."""
        source = of.disk.files[self.other or self.path]
        begin = self.at if self.other else (self.at + self.more) % max(len(source), 1)
        self._put(disk, bytes(source[begin : begin + self.more]))

    def _exchange(self, disk: Platter, of: Shape) -> None:
        """Two sectors of a file change places."""
        data = disk.files[self.path]
        first, second = slice(self.at, self.at + SECTOR), slice(self.more, self.more + SECTOR)
        data[first], data[second] = data[second], data[first]

    def _put(self, disk: Platter, content: bytes) -> None:
        data = disk.files[self.path]
        end = min(self.at + len(content), len(data))
        data[self.at : end] = content[: end - self.at]

    def _junk(self, size: int) -> bytes:
        return random.Random(str(self)).randbytes(size)

    # -- names --

    def _delete(self, disk: Platter, of: Shape) -> None:
        del disk.files[self.path]

    def _empty(self, disk: Platter, of: Shape) -> None:
        disk.files[self.path].clear()

    def _older(self, disk: Platter, of: Shape) -> None:
        """The whole file as it was some time before, as from a backup."""
        disk.files[self.path] = bytearray(of.older.files[self.path])

    def _foreign(self, disk: Platter, of: Shape) -> None:
        """A file of the same kind, of another store."""
        disk.files[self.path] = bytearray(shape(_ELSEWHERE[of.name]).disk.files[self.other])

    def _swap(self, disk: Platter, of: Shape) -> None:
        files = disk.files
        files[self.path], files[self.other] = files[self.other], files[self.path]

    def _copy(self, disk: Platter, of: Shape) -> None:
        """There a second time, under another name."""
        disk.files[self.other] = bytearray(disk.files[self.path])

    def _rename(self, disk: Platter, of: Shape) -> None:
        disk.files[self.other] = disk.files.pop(self.path)

    def _folder(self, disk: Platter, of: Shape) -> None:
        """A directory stands where the file was."""
        del disk.files[self.path]
        disk.dirs.add(self.path)

    def _remove_folder(self, disk: Platter, of: Shape) -> None:
        inside = self.path + "/"
        for name in [name for name in disk.files if name.startswith(inside)]:
            del disk.files[name]
        disk.dirs = {n for n in disk.dirs if n != self.path and not n.startswith(inside)}


def all_damages(of: Shape, paths: list[str] | None = None) -> Iterator[Damage]:
    """Every damage of a shape, in order; `paths` leaves out other files."""
    for path in sorted(of.disk.files) if paths is None else paths:
        yield from _bits(of, path)
        yield from _ends(of, path)
        yield from _sectors(of, path)
        yield from _files(of, path)
    if paths is None:
        for folder in sorted(of.disk.dirs - {"/", ROOT}):
            yield Damage("remove_folder", folder)


def _used(data: bytearray) -> int:
    """Where a file ends, without the room that was taken ahead."""
    return len(data.rstrip(b"\0"))


def _places(of: Shape, path: str) -> Iterator[int]:
    """Every byte of a file; few of those that hold nothing, and of files that nobody reads."""
    data = of.disk.files[path]
    used, empty = _used(data), _kind(path) == "state"
    for at in range(len(data)):
        dense = at < used and "/quarantine/" not in path
        if empty and SECTOR <= at < PAGE:  # between the slots
            dense = False
        if dense or at % SPARSE == 0:
            yield at


def _bits(of: Shape, path: str) -> Iterator[Damage]:
    thick = important(of, path)
    for at in _places(of, path):
        for bit in range(8) if at in thick else (at * 5 % 8,):
            yield Damage("flip", path, at, bit)


def _ends(of: Shape, path: str) -> Iterator[Damage]:
    for at in _places(of, path):
        yield Damage("cut", path, at)
    for size in (1, 7, 8, 64, SECTOR, PAGE):
        yield Damage("zeros_behind", path, size)
        yield Damage("junk_behind", path, size)


def _sectors(of: Shape, path: str) -> Iterator[Damage]:
    data, others = of.disk.files[path], _kin(of, path)
    used = _used(data)
    for size in (SECTOR, PAGE):
        for at in range(0, used, size):
            for kind in ("zero", "noise", "stale", "misdirected"):
                yield Damage(kind, path, at, size)
            for other in others:
                yield Damage("misdirected", path, at, size, other)
    for at in range(0, used, 64):  # a write that was lost in part: not only at sectors
        yield Damage("zero", path, at, 64)
        yield Damage("noise", path, at, 64)
        yield Damage("stale", path, at, 64)
    for first in range(0, used, SECTOR):
        for second in range(first + SECTOR, used, SECTOR):
            yield Damage("exchange", path, first, second)


def _files(of: Shape, path: str) -> Iterator[Damage]:
    yield Damage("delete", path)
    yield Damage("empty", path)
    yield Damage("folder", path)
    if path in of.older.files and of.older.files[path] != of.disk.files[path]:
        yield Damage("older", path)
    elsewhere = shape(_ELSEWHERE[of.name]) if of.name in _ELSEWHERE else None
    for other in sorted(elsewhere.disk.files) if elsewhere else ():
        if _kind(other) == _kind(path):
            yield Damage("foreign", path, other=other)
    for other in _kin(of, path):
        yield Damage("swap", path, other=other)
        yield Damage("copy", path, other=other)
    for other in _other_names(path):
        if other not in of.disk.files:
            yield Damage("rename", path, other=other)
            yield Damage("copy", path, other=other)


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    if ".seg-" in name:
        return "object"
    kind, dash, _ = name.partition("-")
    return kind if dash and kind in ("catalog", "deletions") else name.rpartition(".")[2]


def _kin(of: Shape, path: str) -> list[str]:
    """Files of the same kind in the same store."""
    kinds = {"log": "segment", "seg": "segment"}
    mine = kinds.get(_kind(path), _kind(path))
    return [
        other
        for other in sorted(of.disk.files)
        if other != path and kinds.get(_kind(other), _kind(other)) == mine
    ]


def _other_names(path: str) -> list[str]:
    """Names that a hand may give to a file: of a neighbour, of nobody."""
    folder, _, name = path.rpartition("/")
    found = [f"{folder}/{name}.old", f"{folder}/copy of {name}", f"{folder}/{name}.tmp"]
    if name.endswith((".log", ".seg")):
        number, rest = int(name[:8]), name[8:]
        found += [f"{folder}/{number + 1:08d}{rest}", f"{folder}/{number + 7:08d}{rest}"]
        found.append(path[:-3] + ("seg" if name.endswith("log") else "log"))
        found.append(f"{folder}/{name[:8]}-{int(name[9:29]) + 3:020d}{name[29:]}")
    elif name.startswith("catalog-"):
        found += [f"{folder}/catalog-{int(name[8:]) + 1:08d}", f"{folder}/catalog-99999999"]
    elif name.startswith("deletions-"):
        found += [f"{folder}/deletions-{int(name[10:]) + more:08d}" for more in (-1, 1)]
    elif name.endswith(".journal"):
        found.append(f"{folder}/00000009.journal")
    return found


def important(of: Shape, path: str) -> set[int]:
    """The bytes of a file that are nobody's record: all of their bits are tried."""
    data = bytes(of.disk.files[path])
    kind, size = _kind(path), _used(of.disk.files[path])
    if of.name == "moved":  # how else a segment may be wrong is seen in other shapes
        return _important_in_stub(data)
    if kind in ("log", "seg"):
        return _important_in_segment(data)
    if kind == "journal":
        return _important_in_journal(data)
    if kind == "deletions":
        return _important_in_deletions(data) if of.name == "deleted" else set()
    if kind == "state" and of.deleted:  # how else a page may be wrong is seen in other shapes
        return {at + marks for at in state_format.SLOT_POSITIONS for marks in range(472, 488)}
    if kind == "state":
        slots = (range(at, at + state_format.SLOT_SIZE) for at in state_format.SLOT_POSITIONS)
        return {at for slot in slots for at in slot if at % 512 < 136 or at % 512 >= 504}
    if kind == "counters":  # what is believed after a crash: magic and version, and two lines
        return {*range(64), *range(13 * 64, 15 * 64)}
    return set(range(size))


def _important_in_segment(data: bytes) -> set[int]:
    found = set(range(segment_format.HEADER_SIZE))
    header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
    if isinstance(header, str):
        return found
    at = segment_format.HEADER_SIZE
    while isinstance(head := frame.decode_header(data, at, at, header.salt), frame.Header):
        found.update(range(at, at + frame.HEADER_SIZE))
        if head.kind in (frame.FOOTER, frame.HOLE):
            found.update(range(at, at + head.size))
        at += head.size
    return found | set(range(at, _used(bytearray(data))))  # the trailer


def _important_in_stub(data: bytes) -> set[int]:
    """The frame that says where the segment lies; nothing in the segment itself."""
    begin = data.find(b'{"root"')
    return set(range(begin - frame.HEADER_SIZE, begin)) if begin > 0 else set()


def _important_in_deletions(data: bytes) -> set[int]:
    header = marks.decode_header(data[: marks.HEADER_SIZE])
    assert not isinstance(header, str)
    found, at = set(range(marks.HEADER_SIZE)), marks.HEADER_SIZE
    while isinstance(head := frame.decode_header(data, at, at, header.salt), frame.Header):
        found.update(range(at, at + frame.HEADER_SIZE))
        at += head.size
    return found


def _important_in_journal(data: bytes) -> set[int]:
    found = set(range(journal.HEADER_SIZE))
    header = journal.decode_header(data[: journal.HEADER_SIZE])
    assert not isinstance(header, str)
    at = journal.HEADER_SIZE
    while not isinstance(entry := journal.decode_entry(data[at : at + 64], at, header.salt), str):
        found.update(range(at, at + journal.ENTRY_SIZE))
        at += journal.ENTRY_SIZE + frame.padded(entry.size)
    return found
