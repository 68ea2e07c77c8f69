"""RustLog: `{base:020}.log`, and a sparse `{base:020}.index` beside it. Big-endian.

    record     length u32 (of the payload), offset u64, payload; 10 MB at most
    index      offset u64, position u64, for every 100th record; it is a hint

    <root>/topics/<topic>/partition-<n>/00000000000000000000.log

A record has a value and an offset, no time and no checksum: what is damaged shows only where the
offsets no longer rise or a length cannot be. Offsets may leave holes, as compaction leaves them.
The name of a file is the offset that it begins with, so a missing file shows as a gap.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.format.columns import Columns
from esker.kin import hops
from esker.kin.family import (
    Flaw,
    Kind,
    Part,
    Piece,
    SegmentWriter,
    Shards,
    check_sizes,
    must_be_new,
    read_if_there,
)
from esker.storage.files import Files, join, replace_file

HEADER: Final = 12
MAX_RECORD: Final = 10 << 20
EVERY: Final = 100  # records to an entry of the index
ENTRY: Final = struct.Struct(">QQ")
_RECORD: Final = struct.Struct(">IQ")
_LOG: Final = re.compile(r"(\d{20})\.log")
_PARTITION: Final = re.compile(r"partition-(0|[1-9]\d{0,8})")
SEGMENT_BYTES: Final = 1 << 30


# ---- bytes -----------------------------------------------------------------------------------


def record(offset: int, payload: bytes) -> bytes:
    """One record."""
    return _RECORD.pack(len(payload), offset) + payload


def encode(values: Any, first: int, offsets: Any = None) -> memoryview:
    """Records, one behind the other; their offsets follow each other from `first` on."""
    count = len(values)
    numbers = pa.arange(first, first + count) if offsets is None else offsets
    return hops.joined(
        [
            hops.fixed(hops.packed(hops.lengths(values), 4, ">"), 4, count),
            hops.fixed(hops.packed(numbers.view(pa.uint64()), 8, ">"), 8, count),
            values,
        ]
    )


def decode(data: memoryview, at: int = 0, expected: int = 0) -> tuple[Piece | None, str, int]:
    """The records of a stretch: what there is, what ended it too early, and where that is.

    No offset is below `expected`. What ends it is "torn", or says what is wrong, or is "".
    """
    end = len(data)
    found = hops.hop(data, at, end, ">", HEADER, HEADER, MAX_RECORD)
    problem = "torn" if found.torn else ""
    if found.wrong >= 0:
        problem = f"a record of {found.wrong} bytes, where {MAX_RECORD} are the most"
    starts, behind = found.starts, found.end
    if not starts:
        return None, problem, behind
    begin = hops.integers(starts, at)
    pieces = hops.Pieces(data, at, behind, [begin, hops.plus(begin, 4), hops.plus(begin, HEADER)])
    values, stored = pieces.column(2), pieces.numbers(1, 8, ">")
    row = _first_wrong(stored, expected)
    if row >= 0:
        behind = starts[row]
        problem = f"a record of offset {stored[row].as_py()}, which does not rise"
        if not row:
            return None, problem, behind
        values, stored = values.slice(0, row), stored.slice(0, row)
    numbers = stored.view(pa.int64())
    first = numbers[0].as_py()
    if numbers[-1].as_py() - first == len(numbers) - 1:
        numbers = None  # they rise, so they follow each other
    return Piece(Columns(values, 0), first, behind, numbers), problem, behind


def _first_wrong(stored: Any, expected: int) -> int:
    """The first offset that no record can have behind the one before it; -1: none."""
    if stored[0].as_py() < expected:
        return 0
    rows = (hops.is_rising(stored), pc.index(pc.greater(stored, hops.TOP), True).as_py())
    return min((row for row in rows if row >= 0), default=-1)


def recovered(data: memoryview) -> int:
    """How much of a file a recovery keeps: up to a record that is not whole."""
    at = 0
    while at < len(data):
        piece, _, at = decode(data, at)
        if piece is None:
            break
    return at


def build_index(data: memoryview) -> bytes:
    """The index of a log, made anew."""
    entries, at, row, base = [], 0, 0, len(data)
    while at < base:
        found = hops.hop(data, at, base, ">", HEADER, HEADER, MAX_RECORD)
        for number in range(-row % EVERY, len(found.starts), EVERY):
            start = found.starts[number]
            entries.append(ENTRY.pack(_RECORD.unpack_from(data, start)[1], start))
        row += len(found.starts)
        if found.end == at:
            break
        at = found.end
    return b"".join(entries)


def index_entries(index: bytes) -> list[tuple[int, int]]:
    """The entries of an index: offset and position. Half of one at the end is left out."""
    whole = len(index) - len(index) % ENTRY.size
    return list(ENTRY.iter_unpack(memoryview(index)[:whole]))


def lookup(index: bytes, offset: int) -> int | None:
    """Where to begin to look for an offset; None if all entries lie behind it."""
    entries = range(len(index) // ENTRY.size)
    at = bisect_right(entries, offset, key=lambda n: ENTRY.unpack_from(index, n * ENTRY.size)[0])
    return ENTRY.unpack_from(index, (at - 1) * ENTRY.size)[1] if at else None


# ---- files -----------------------------------------------------------------------------------


class RustLog(Kind):
    """A directory of RustLog."""

    name = "rustlog"
    max_record = MAX_RECORD
    sparse = True

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        root = _topics(files, root)
        found: dict[str, Shards] = {}
        for topic in sorted(files.list(root)):
            shards = {}
            for folder in files.list(join(root, topic)) if _is_dir(files, root, topic) else []:
                if number := _PARTITION.fullmatch(folder):
                    names = sorted(filter(_LOG.fullmatch, files.list(join(root, topic, folder))))
                    shards[int(number[1])] = [
                        Part(join(root, topic, folder, name), int(name[:20]), name == names[-1])
                        for name in names
                    ]
            if shards:
                found[topic] = dict(sorted(shards.items()))
        return found

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        while at < len(data):
            piece, problem, behind = decode(data, at, first)
            if piece is not None:
                yield piece
                first = piece.end
            if problem:
                yield _flaw(part, behind, problem)
                return
            at = behind

    def seek(
        self, files: Files, part: Part, data: memoryview, first: int, offset: int
    ) -> tuple[int, int]:
        index = read_if_there(files, index_path(part.path)) or b""
        at = lookup(index, offset)
        if at is None or at + HEADER > len(data):
            return 0, first
        found = _RECORD.unpack_from(data, at)[1]
        # it is a hint: believed where a record of about that offset is
        return (at, found) if first <= found <= offset else (0, first)

    def beside(self, files: Files, part: Part, data: memoryview) -> Iterator[Flaw]:
        path = index_path(part.path)
        index = read_if_there(files, path)
        if index is None:
            if data:
                yield Flaw("index", path, 0, "there is no index; it can be made from the log")
            return
        if len(index) % ENTRY.size:
            yield Flaw("index", path, len(index) // ENTRY.size * ENTRY.size, "half an entry")
        known = dict(index_entries(build_index(data)))
        for number, (offset, position) in enumerate(index_entries(index)):
            true = position + HEADER <= len(data) and _RECORD.unpack_from(data, position)[1]
            if true is False or true != offset or known.get(offset, position) != position:
                text = f"offset {offset} is not at byte {position} of the log"
                yield Flaw("index", path, number * ENTRY.size, text)
                return

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        for shards in self.survey(files, root).values():
            for parts in shards.values():
                folder = parts[0].path.rpartition("/")[0] if parts else ""
                for name in sorted(files.list(folder)) if folder else []:
                    if not re.fullmatch(r"\d{20}\.(log|index)", name):
                        yield Flaw("name", join(folder, name), 0, "no log and no index")

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        folder = join(root, "topics", topic, f"partition-{shard}")
        must_be_new(files, folder)
        return _Writer(files, folder, options.get("segment_bytes", SEGMENT_BYTES), MAX_RECORD)


class _Writer(SegmentWriter):
    overhead = HEADER

    def file_name(self, first: int, columns: Columns) -> str:
        self._entries: list[bytes] = []
        return f"{first:020}.log"

    def encode(self, columns: Columns, first: int) -> memoryview:
        check_sizes(columns, MAX_RECORD, "RustLog")
        values = columns.values
        places = memoryview(values.buffers()[1]).cast("i")[values.offset :]
        for row in range(-self.rows % EVERY, len(values), EVERY):
            at = self.size + places[row] - places[0] + row * HEADER
            self._entries.append(ENTRY.pack(first + row, at))
        return encode(values, first)

    def finish_file(self) -> None:
        replace_file(self._files, index_path(self.path), b"".join(self._entries))


def index_path(path: str) -> str:
    """The index of a log."""
    return path.removesuffix(".log") + ".index"


def _flaw(part: Part, position: int, problem: str) -> Flaw:
    if problem == "torn" and part.last:
        return Flaw("torn", part.path, position, "the last record is not whole")
    text = "a record is not whole, and other files follow" if problem == "torn" else problem
    return Flaw("corrupt", part.path, position, text)


def _topics(files: Files, root: str) -> str:
    return join(root, "topics") if files.kind(join(root, "topics")) == "dir" else root


def _is_dir(files: Files, root: str, name: str) -> bool:
    return files.kind(join(root, name)) == "dir"
