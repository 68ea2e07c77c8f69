"""Which records of a shard were deleted one by one: in memory, and in its file of deletions.

A deletion is a frame behind the others, synced; it counts when the state page says that the file
is that long. A file on which anything went wrong is not written to again: the next deletion makes a
new one, with all that is deleted, under the next number, and the page names that one instead. The
same is done when a file has grown to a multiple of what it has to say.

So a file that a page may name is never changed below the length that page may give.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from esker.errors import Corruption, FormatTooNew
from esker.format import marks as fmt
from esker.format import names
from esker.format.marks import BITMAP, BLOCK, Blocks, Flaw, MarksHeader
from esker.storage.files import File, Files, content_of, join

REWRITE_BYTES: Final = 1 << 20  # a file below this is never too long
_EMPTY: Final = bytes(BITMAP)


class Marks:
    """Deleted offsets. A deletion makes another one of it, so that readers need no lock."""

    __slots__ = ("_counts", "blocks")

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self._counts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def __contains__(self, offset: int) -> bool:
        block = self.blocks.get(offset // BLOCK)
        return block is not None and bool(block[offset % BLOCK >> 3] >> (offset & 7) & 1)

    def add(self, blocks: Blocks) -> None:
        """These are deleted too."""
        for number, bitmap in blocks.items():
            bits = int.from_bytes(bitmap, "little")
            known = self.blocks.get(number)
            if known is not None:
                bits |= int.from_bytes(known, "little")
            self._counts[number] = bits.bit_count()
            self.blocks[number] = bits.to_bytes(BITMAP, "little")

    def joined(self, blocks: Blocks, earliest: int = 0) -> Marks:
        """These from `earliest` on, and others with them."""
        both = Marks()
        low = earliest // BLOCK
        both.blocks.update((n, block) for n, block in self.blocks.items() if n >= low)
        both._counts.update((n, count) for n, count in self._counts.items() if n >= low)
        both.add(blocks)
        return both

    def mask(self, first: int, count: int) -> Any:
        """Which of `count` offsets are deleted, as a boolean array; None for none of them."""
        low, high = first // BLOCK, (first + count - 1) // BLOCK
        known = self.blocks
        if not known or not any(number in known for number in range(low, high + 1)):
            return None
        data = b"".join(known.get(number, _EMPTY) for number in range(low, high + 1))
        return pa.Array.from_buffers(
            pa.bool_(), count, [None, pa.py_buffer(data)], 0, first - low * BLOCK
        )

    def count(self, first: int, end: int) -> int:
        """How many offsets in [first, end) are deleted."""
        if first >= end or not self.blocks:
            return 0
        low, high = first // BLOCK, (end - 1) // BLOCK
        inside: Iterable[int] = range(low, high + 1)
        if high - low > len(self.blocks):
            inside = [number for number in tuple(self.blocks) if low <= number <= high]
        total = 0
        for number in inside:
            block = self.blocks.get(number)
            if block is None:
                continue
            begin, stop = first - number * BLOCK, end - number * BLOCK
            if begin <= 0 and stop >= BLOCK:
                total += self._counts[number]
            else:
                bits = int.from_bytes(block, "little") & (1 << min(stop, BLOCK)) - 1
                total += (bits >> max(begin, 0)).bit_count()
        return total


def blocks_of(offsets: Iterable[int]) -> dict[int, bytes]:
    """Bitmaps with these offsets set."""
    blocks: dict[int, bytearray] = {}
    for offset in offsets:
        block = blocks.get(offset // BLOCK)
        if block is None:
            block = blocks[offset // BLOCK] = bytearray(BITMAP)
        block[offset % BLOCK >> 3] |= 1 << (offset & 7)
    return {number: bytes(block) for number, block in blocks.items()}


def numbers(files: Files, folder: str) -> list[int]:
    """The files of deletions of a shard."""
    found = (names.parse_deletions(name) for name in files.list(folder))
    return sorted(number for number in found if number is not None)


class MarksFile:
    """The file of deletions of one shard, as its writer has it."""

    def __init__(self, files: Files, folder: str, store: bytes, topic: int, shard: int) -> None:
        self._files = files
        self._folder = folder
        self._owner = (topic, shard, store)
        self._file: File | None = None
        self._salt = 0
        self.spent = True  # must not be written to: there is none, or something went wrong
        self.number = 0
        self.end = 0

    def load(self, number: int, end: int) -> Marks:
        """What the page says is there. Raises Corruption when it is not, or not whole.

        A newer file than the one that counts is what a crash left; so that the newest has all that
        was deleted, should the page be lost, an older one is not written to again.
        """
        self.number, self.end, self.spent = number, end, True
        marks, header = read_marks(self._files, self._folder, number, end, self._owner)
        self._salt, self.spent = header.salt, not number or number < max(self._numbers())
        return marks

    def append(self, blocks: Blocks, marks: Marks, salt: int) -> tuple[int, int]:
        """Write a deletion, synced; returns which file is how long, for the page to say so.

        `marks` is all that is deleted with it. Until the page says so, what was written does not
        count, and the file is spent. Then older files may go.
        """
        if self.spent or self.end > max(REWRITE_BYTES, 4 * len(marks.blocks) * BITMAP):
            return self._anew(marks, salt)
        if self._file is None:
            self._file = self._files.open(join(self._folder, names.deletions(self.number)), "rw")
        self.spent = True
        parts = fmt.encode_frames(blocks, self.end, self._salt)
        self._file.write(self.end, parts)
        self._file.sync()
        return self.number, self.end + sum(map(len, parts))

    def _anew(self, marks: Marks, salt: int) -> tuple[int, int]:
        self.close()
        self.spent = True
        number = max([self.number, *self._numbers()]) + 1
        topic, shard, store = self._owner
        head = fmt.encode_header(MarksHeader(number, topic, shard, store, salt))
        parts = [head, *fmt.encode_frames(marks.blocks, len(head), salt)]
        self._file = self._files.open(join(self._folder, names.deletions(number)), "create")
        self._file.write(0, parts)
        self._file.sync()
        self._files.sync_dir(self._folder)
        self._salt = salt
        return number, sum(map(len, parts))

    def sweep(self) -> None:
        """Unlink the files that no page names any more."""
        for number in self._numbers():
            if number != self.number:
                self._files.unlink(join(self._folder, names.deletions(number)))

    def _numbers(self) -> list[int]:
        return numbers(self._files, self._folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class UnknownMarks(Marks):
    """Nobody knows what was deleted: whoever would be shown a record is told so instead."""

    __slots__ = ("_problem",)

    def __init__(self, problem: Corruption) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        found = self._problem
        raise Corruption(
            f"{found.reason}: which records were deleted is not known", path=found.path,
            position=found.position, first=found.first, last=found.last, reason="deletions",
        )  # fmt: skip

    def __bool__(self) -> bool:
        return True


def newest(files: Files, folder: str) -> tuple[int, int]:
    """The newest file of deletions, all of it, for a shard that lost its page.

    Nobody can say any more how much of it counts. What is not whole is not passed over: then it is
    for a repair to say that deleted records may be back.
    """
    number = max(numbers(files, folder), default=0)
    return (number, _size(files, folder, number)) if number else (0, 0)


def _size(files: Files, folder: str, number: int) -> int:
    file = files.open(join(folder, names.deletions(number)), "r")
    try:
        return file.size()
    finally:
        file.close()


def tidy(files: Files, folder: str, number: int, end: int, owner: tuple[int, int, bytes]) -> None:
    """Behind a page that was just synced: what it does not tell of goes, if it is whole itself."""
    others = [each for each in numbers(files, folder) if each != number]
    path = join(folder, names.deletions(number))
    longer = bool(number) and bool(files.kind(path)) and _size(files, folder, number) > end
    if not others and not longer:
        return
    try:
        read_marks(files, folder, number, end, owner)
    except Corruption:
        return  # a repair may find in the others what this one lacks
    for each in others:
        files.unlink(join(folder, names.deletions(each)))
    if any(each > number for each in others):
        files.sync_dir(folder)  # or it is back one day, newer than one that was written on
    if longer:
        file = files.open(path, "rw")
        try:
            file.truncate(end)
        finally:
            file.close()


def read_marks(
    files: Files, folder: str, number: int, end: int, owner: tuple[int, int, bytes]
) -> tuple[Marks, MarksHeader]:
    """A file of deletions, up to the length that the page gives."""
    if not number:
        return Marks(), MarksHeader(0, *owner, 0)
    path = join(folder, names.deletions(number))
    if not files.kind(path):
        raise Corruption("the file of deletions is missing", path=path)
    data, header = _read(files, path, end)
    if isinstance(header, str):
        raise Corruption(header, path=path, position=0)
    if header != (number, *owner, header.salt):
        raise Corruption("the deletions of another shard", path=path, position=0)
    if len(data) < end:
        raise Corruption(
            f"{end - len(data)} bytes of it are missing", path=path, position=len(data)
        )
    marks, more = Marks(), False
    for found in fmt.decode_frames(data, fmt.HEADER_SIZE, header.salt):
        if isinstance(found, Flaw):
            raise Corruption(found.reason, path=path, position=found.position)
        marks.add(found.blocks)
        more = found.more
    if more or not marks:  # nobody makes an empty one
        reason = "it ends inside a deletion" if more else "no deletion is in it"
        raise Corruption(reason, path=path, position=end)
    return marks, header


def _read(files: Files, path: str, end: int = 1 << 62) -> tuple[bytes, MarksHeader | str]:
    """The bytes of a file below `end`, and its header, or why it has none."""
    data = content_of(files, path, end)
    header = fmt.decode_header(data[: fmt.HEADER_SIZE])
    if isinstance(header, str) and header.startswith("version"):
        raise FormatTooNew(f"{path} was written by a later Esker ({header})")
    return data, header
