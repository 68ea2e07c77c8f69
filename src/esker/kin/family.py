"""What the five formats have in common, seen from here.

A *kind* knows one of them: which files there are (`survey`), what the bytes of one of them say
(`pieces`), where in it a record is likely to be (`seek`), what a look at all of it finds (`flaws`),
and how records are written so (`writer`). Its codec is pure: bytes in, Arrow out, and back.

    part      one file of records, of one shard of one topic
    piece     some records of a part, as columns, with their offsets
    flaw      what is wrong with a place in a file, in words of that format. A crash leaves a *torn*
              end: it is where the log ends, not damage. *corrupt* is damage: there were records
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow.compute as pc

from esker.errors import InvalidOption, RecordTooLarge, StorageError, UnsafePath
from esker.format.columns import Columns
from esker.storage.files import Files, content_of, join, parent

FlawKind = Literal["torn", "corrupt", "index", "name", "state", "unread"]
MEANING: Final[dict[str, str]] = {
    "torn": "a write was cut off; what was whole before it is read",
    "corrupt": "records are damaged",
    "index": "an index does not agree with its log; the log is read without it",
    "name": "a file has a name that the format does not know; it is left out",
    "state": "a file beside the log is damaged; no record depends on it",
    "unread": "there is something that the documents do not describe; it is left out",
}


class Flaw(msgspec.Struct, frozen=True):
    """Something that is wrong, and where."""

    kind: FlawKind
    path: str
    position: int
    text: str

    @property
    def severity(self) -> Literal["error", "warning"]:
        return "error" if self.kind == "corrupt" else "warning"

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position}: {self.text} ({self.kind})"


class Part(NamedTuple):
    """A file of records."""

    path: str
    first: int  # the offset of its first record; -1: as many as there are before it
    last: bool  # nothing comes behind it in its shard
    extra: Any = None  # what its kind wants to remember


class Piece(NamedTuple):
    """Records as columns. Their offsets follow each other from `first` on, unless given."""

    columns: Columns
    first: int
    position: int  # of the byte behind them, in their file
    offsets: Any = None
    behind: int | None = None  # the offset behind the last of them, and behind what is deleted

    @property
    def end(self) -> int:
        """The offset behind the last of them."""
        if self.behind is not None:
            return self.behind
        count = len(self.columns.values)
        return self.first + count if self.offsets is None else int(self.offsets[-1].as_py()) + 1


Shards = Mapping[int, Sequence[Part]]
FAR: Final = 1 << 62  # an offset behind all
LONE: Final = "log"  # the topic of a format that knows no names


class Kind:
    """One of the formats."""

    name: str = ""
    carries: frozenset[str] = frozenset()  # of timestamp, key, tag, node, headers
    named = True  # a directory holds topics by their names
    sparse = False  # offsets are stored, and may leave holes
    max_record: int = 1 << 31

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        """The topics below a directory, and the files of each."""
        raise NotImplementedError

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        """The records of a part from a byte on, whose offset is known. A flaw ends it."""
        raise NotImplementedError

    begin = 0  # where in a file the first record is

    def seek(
        self, files: Files, part: Part, data: memoryview, first: int, offset: int
    ) -> tuple[int, int]:
        """A place at or before a record, and the offset there; by an index if there is one."""
        return self.begin, first

    def end(self, files: Files, part: Part, data: memoryview, first: int) -> int:
        """The offset behind the last record of a part."""
        at, end = self.seek(files, part, data, first, FAR)
        for item in self.pieces(data, part, at, end):
            if isinstance(item, Piece):
                end = item.end
        return end

    def beside(self, files: Files, part: Part, data: memoryview) -> Iterator[Flaw]:
        """What is wrong with the files that belong to a part."""
        yield from ()

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        """What is wrong with everything that belongs to no part."""
        yield from ()

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        raise NotImplementedError


def mapped(files: Files, path: str) -> memoryview:
    """The bytes of a file. Nobody may cut it while they are in use."""
    file = files.open(path, "r")
    try:
        return memoryview(file.map()) if file.size() else memoryview(b"")
    finally:
        file.close()


def read_if_there(files: Files, path: str) -> bytes | None:
    """A small file beside a log; None if there is none."""
    if files.kind(path) != "file":
        return None
    try:
        return content_of(files, path)
    except StorageError:
        return None


def make_dirs(files: Files, path: str) -> None:
    """Make a directory and all above it, durably."""
    if path in ("", "/") or files.kind(path) == "dir":
        return
    make_dirs(files, parent(path))
    files.make_dir(path)
    files.sync_dir(parent(path))


def must_be_new(files: Files, folder: str) -> None:
    """An export writes where nothing is: it can be thrown away, and destroys nothing."""
    if files.kind(folder) not in ("", "dir"):
        raise UnsafePath(f"cannot write to {folder}: it is not a directory", path=folder)
    if files.list(folder):
        raise InvalidOption(f"{folder} is not empty; give a directory that is new")


class SegmentWriter:
    """Writes the files of one shard, each up to its limit, and syncs each when it is full."""

    overhead = 0  # bytes that a record takes besides its value

    def __init__(self, files: Files, folder: str, limit: int, max_record: int) -> None:
        self._files = files
        self.folder = folder
        self._limit = limit
        self._max_record = max_record
        self._file: Any = None
        self.path = ""
        self.size = 0  # of the open file
        self.rows = 0  # in the open file
        self.next = 0  # the offset that would follow
        self.paths: list[str] = []
        make_dirs(files, folder)

    # ---- what a format says -----------------------------------------------------------------

    def file_name(self, first: int, columns: Columns) -> str:
        raise NotImplementedError

    def header(self, first: int, columns: Columns) -> bytes:
        """What the file begins with."""
        return b""

    def encode(self, columns: Columns, first: int) -> Any:
        """The bytes of records."""
        raise NotImplementedError

    def finish_file(self) -> None:
        """Before a file is synced and closed."""

    def finish(self) -> None:
        """When all files are written."""

    def reserve(self) -> int:
        """Bytes at the end of a file that are not for records."""
        return 0

    rows_max = 1 << 62

    # ---- the loop ---------------------------------------------------------------------------

    def append(self, columns: Columns, first: int) -> None:
        """Add records whose offsets follow each other."""
        row, count = 0, len(columns.values)
        while row < count:
            rest = columns.slice(row, count - row)
            fits = self._fits(rest)
            if not fits:
                if self._file is not None and self.rows:
                    self._close_file()
                    continue
                fits = 1  # larger than a file: it has one for itself, if the format allows it
            part = rest.slice(0, fits)
            if self._file is None:
                self._open_file(first + row, part)
            self._write(part, first + row)
            row += fits
        self.next = first + count

    def _fits(self, columns: Columns) -> int:
        values = columns.values
        places = memoryview(values.buffers()[1]).cast("i")[values.offset :]
        count, begin = len(values), places[0]
        size = self.size if self._file is not None else len(self.header(0, columns))
        room = self._limit - self.reserve() - size
        rows = self.rows if self._file is not None else 0
        most = min(count, self.rows_max - rows)
        return bisect_right(
            range(1, most + 1), room, key=lambda n: places[n] - begin + n * self.overhead
        )

    def _open_file(self, first: int, columns: Columns) -> None:
        self.path = join(self.folder, self.file_name(first, columns))
        self._file = self._files.open(self.path, "create")
        self.paths.append(self.path)
        self.rows = 0
        head = self.header(first, columns)
        if head:
            self._file.write(0, [head])
        self.size = len(head)

    def _write(self, columns: Columns, first: int) -> None:
        data = self.encode(columns, first)
        if len(data):
            self._file.write(self.size, [data])
        self.size += len(data)
        self.rows += len(columns.values)

    def _close_file(self) -> None:
        self.finish_file()
        file, self._file = self._file, None
        try:
            file.sync()
        finally:
            file.close()

    def close(self) -> None:
        """Make all of it durable."""
        if self._file is not None:
            self._close_file()
        self.finish()
        self._files.sync_dir(self.folder)

    def abandon(self) -> None:
        """Let go of the open file after a failure."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def check_sizes(columns: Columns, most: int, kind: str) -> None:
    """Refuse what a format cannot hold, before anything of the batch is written."""
    longest = pc.max(pc.binary_length(columns.values)).as_py() or 0
    if longest > most:
        raise RecordTooLarge(f"a value of {longest} bytes: {kind} holds {most} at most")
