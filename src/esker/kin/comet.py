"""Comet: `log-*.comet` files in a directory for each shard, an index, counters, consumers.

    entry      length u32 (of the data), timestamp u64 (ns), data; little-endian; no checksum
    data       raw, or one zstd frame, which only its first four bytes 28 B5 2F FD tell

    <root>/shard-0000/log-0000000000000000.comet, index.bin, comet.state, offsets.state

The index says which entry a file begins with, and how far the log is synced: what lies behind that
is not shown, as Comet does not show it. Without an index, or with a damaged one, all files are
scanned and entries are counted from 0.

Raw data may begin like a zstd frame. So an entry is taken for one only if all of it is one;
everything else is what was written. When entries are written here, data that begins so is always
compressed: then every reader gets it right, Comet's too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from esker.format.columns import Columns
from esker.kin import comet_state as state
from esker.kin import hops
from esker.kin.comet_state import FileInfo, Index, Node
from esker.kin.family import (
    LONE,
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
from esker.storage.files import Files, base_name, join, replace_file, size_if_there

HEADER: Final = 12
MAX_ENTRY: Final = 128 << 20
COMPRESS_ABOVE: Final = 4096
FILE_BYTES: Final = 256 << 20
EVERY: Final = 100  # entries to a node of the index
MAGIC: Final = b"\x28\xb5\x2f\xfd"
TIMES: Final = 64  # so many times its size an entry may claim to be, and be believed at once
_ENTRY: Final = struct.Struct("<IQ")
_DATA: Final = re.compile(r"log-(\d{16})\.comet")
_SHARD: Final = re.compile(r"shard-(\d{4})")
_ZSTD: Final = "zstd"


# ---- bytes -----------------------------------------------------------------------------------


def entry(data: bytes, timestamp: int) -> bytes:
    """One entry, as it is."""
    return _ENTRY.pack(len(data), timestamp) + data


def compress(data: bytes) -> bytes:
    """Data as a zstd frame that tells its size."""
    return pa.Codec(_ZSTD).compress(data, asbytes=True)  # type: ignore[no-any-return]


def decompress(data: bytes) -> bytes | None:
    """What a zstd frame holds; None if this is none, or one that no entry could be."""
    size = _claimed(data)
    try:
        if 0 <= size <= TIMES * len(data) + 1024:
            return pa.Codec(_ZSTD).decompress(data, size, asbytes=True)  # type: ignore[no-any-return]
        # It claims much, or nothing at all. What it really holds says the stream, bit by bit.
        with pa.CompressedInputStream(pa.BufferReader(data), _ZSTD) as stream:
            parts, total = [], 0
            while part := stream.read(1 << 20):
                parts.append(part)
                total += len(part)
                if total > MAX_ENTRY:
                    return None
        return b"".join(parts) if size in (-1, total) else None
    except (pa.ArrowException, OSError):
        return None


def _claimed(data: bytes) -> int:
    """The size that the header of a zstd frame tells; -1 if it tells none."""
    if len(data) < 6:
        return -2
    told, single = data[4] >> 6, data[4] & 0x20
    if not told and not single:
        return -1
    width = (1, 2, 4, 8)[told]
    at = 5 + (0 if single else 1) + (0, 1, 2, 4)[data[4] & 3]
    if at + width > len(data):
        return -2
    return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)


def unpacked(values: Any) -> Any:
    """Entries as they were appended: zstd frames are opened, everything else stays."""
    marked = pc.starts_with(values, MAGIC)
    if not pc.any(marked).as_py():
        return values
    found = values.to_pylist()
    for row in pc.indices_nonzero(marked).to_pylist():
        plain = decompress(found[row])
        if plain is not None:
            found[row] = plain
    return pa.array(found, pa.binary())


def _packed(values: Any, above: int) -> Any:
    """Entries as they are stored: what is large is compressed, and what looks so already."""
    marked = pc.starts_with(values, MAGIC)
    large = pc.greater(pc.binary_length(values), above)
    if not pc.any(pc.or_(marked, large)).as_py():
        return values
    found, must = values.to_pylist(), marked.to_pylist()
    for row in pc.indices_nonzero(pc.or_(marked, large)).to_pylist():
        small = compress(found[row])
        if must[row] or len(small) < len(found[row]):
            found[row] = small
    return pa.array(found, pa.binary())


def encode(values: Any, timestamps: Any, above: int = COMPRESS_ABOVE) -> memoryview:
    """Entries, one behind the other; timestamps are in microseconds, one for all or an array."""
    return _encode(_packed(values, above), timestamps)


def _encode(values: Any, timestamps: Any) -> memoryview:
    count = len(values)
    return hops.joined(
        [
            hops.fixed(hops.packed(hops.lengths(values), 4, "<"), 4, count),
            hops.fixed(hops.nanos(timestamps, count), 8, count),
            values,
        ]
    )


def decode(
    data: memoryview, at: int = 0, first: int = 0, end: int | None = None
) -> tuple[Piece | None, str, int]:
    """The entries of a stretch: what there is, what ended it too early, and where that is."""
    end = len(data) if end is None else end
    found = hops.hop(data, at, end, "<", HEADER, HEADER, MAX_ENTRY, zeros_end=True)
    problem = "torn" if found.torn else ""
    if found.wrong >= 0:
        problem = f"an entry of {found.wrong} bytes, where {MAX_ENTRY} are the most"
    elif not problem and found.end < end and (not found.starts or not _goes_on(data, found.end)):
        problem = "zeros"
    starts, behind = found.starts, found.end
    if not starts:
        return None, problem, behind
    begin = hops.integers(starts, at)
    pieces = hops.Pieces(data, at, behind, [begin, hops.plus(begin, 4), hops.plus(begin, HEADER)])
    values, nanos = pieces.column(2), pieces.numbers(1, 8, "<")
    wrong = pc.index(pc.greater(nanos, hops.TOP), True).as_py()
    if wrong >= 0:
        problem, behind = "an entry of a time beyond the year 2262", starts[wrong]
        if not wrong:
            return None, problem, behind
        values, nanos = values.slice(0, wrong), nanos.slice(0, wrong)
    stamps = pc.divide(nanos.view(pa.int64()), 1000)
    return Piece(Columns(unpacked(values), stamps), first, behind), problem, behind


def _goes_on(data: memoryview, at: int) -> bool:
    return any(data[at : at + HEADER])


# ---- files -----------------------------------------------------------------------------------


class Comet(Kind):
    """A data directory of Comet: one stream, in shards."""

    name = "comet"
    carries = frozenset({"timestamp"})
    named = False
    max_record = MAX_ENTRY

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        shards: dict[int, list[Part]] = {}
        for folder in sorted(files.list(root)):
            if match := _SHARD.fullmatch(folder):
                shards[int(match[1])] = self._parts(files, join(root, folder))
        return {LONE: shards} if shards else {}

    def _parts(self, files: Files, folder: str) -> list[Part]:
        names = sorted(filter(_DATA.fullmatch, files.list(folder)))
        index = decoded(read_if_there(files, join(folder, "index.bin")))
        known = {base_name(file.path): file for file in index.files} if index else {}
        if index and [name for name in names if name in known] != [*known]:
            known, index = {}, None  # of other files than there are: scanned, as without one
        parts = []
        for number, name in enumerate(names):
            info = known.get(name)
            if index is not None and info is None:
                continue  # made since the index was written: nothing in it is synced
            last = name == (names[-1] if index is None else [*known][-1])
            first = info.start_entry if info else (-1 if number else 0)
            limit = None
            if info is not None and index is not None:
                limit = index.write_offset if last else info.end_offset
            parts.append(Part(join(folder, name), first, last, limit))
        return parts

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        end = len(data) if part.extra is None else min(len(data), part.extra)
        while at < end:
            piece, problem, at = decode(data, at, first, end)
            if piece is not None:
                yield piece
                first = piece.end
            if problem:
                yield _flaw(part, at, problem)
                return
        if part.extra is not None and len(data) < part.extra:
            text = f"the index says that it has {part.extra} bytes, and it ends before"
            yield Flaw("corrupt", part.path, len(data), text)

    def seek(
        self, files: Files, part: Part, data: memoryview, first: int, offset: int
    ) -> tuple[int, int]:
        folder, name = part.path.rpartition("/")[::2]
        index = decoded(read_if_there(files, join(folder, "index.bin")))
        if index is None or part.extra is None:
            return 0, first
        places = [number for number, file in enumerate(index.files) if base_name(file.path) == name]
        best = (0, first)
        for node in index.nodes:
            inside = node.position < min(len(data), part.extra)
            if inside and node.file in places and best[1] <= node.entry <= offset:
                best = (node.position, node.entry)
        return best

    def beside(self, files: Files, part: Part, data: memoryview) -> Iterator[Flaw]:
        if part.extra is not None and part.last and len(data) > part.extra:
            text = f"{len(data) - part.extra} bytes behind what the index says is synced"
            yield Flaw("torn", part.path, part.extra, text)

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        for folder in sorted(filter(_SHARD.fullmatch, files.list(root))):
            place = join(root, folder)
            yield from _index_flaws(files, place)
            for name, decoder in _PAGES:
                page = read_if_there(files, join(place, name))
                if page is not None and isinstance(said := decoder(page), str):
                    yield Flaw("state", join(place, name), 0, said)

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        folder = join(root, f"shard-{shard:04}")
        must_be_new(files, folder)
        writer = _Writer(files, folder, options.get("segment_bytes", FILE_BYTES), MAX_ENTRY)
        writer.above = options.get("compress_above", COMPRESS_ABOVE)
        return writer


_PAGES: Final[Any] = (("comet.state", state.decode_state), ("offsets.state", state.decode_offsets))


def decoded(data: bytes | None) -> Index | None:
    """An index, if it is one."""
    found = state.decode_index(data) if data is not None else ""
    return None if isinstance(found, str) else found


def rebuild_index(files: Files, folder: str) -> Index:
    """The index of a shard, made from its data files, as Comet does when it is missing."""
    nodes: list[Node] = []
    infos: list[FileInfo] = []
    entries = end = 0
    names = sorted(filter(_DATA.fullmatch, files.list(folder)))
    for number, name in enumerate(names):
        path = join(folder, name)
        data = memoryview(read_if_there(files, path) or b"")
        first, at, times = entries, 0, [0, 0]
        while at < len(data):
            found = hops.hop(data, at, len(data), "<", HEADER, HEADER, MAX_ENTRY, zeros_end=True)
            rows = range(-(entries - first) % EVERY, len(found.starts), EVERY)
            nodes += [Node(entries + row, number, found.starts[row]) for row in rows]
            if found.starts:
                ends = [_ENTRY.unpack_from(data, found.starts[row])[1] for row in (0, -1)]
                times = [times[0] if entries > first else ends[0], ends[1]]
            entries += len(found.starts)
            if found.end == at:
                break
            at = found.end
        end = at
        infos.append(FileInfo(path, 0, end, first, entries - first, *times))
    offsets = state.decode_offsets(read_if_there(files, join(folder, "offsets.state")) or b"")
    groups = {} if isinstance(offsets, str) else {name: c.offset for name, c in offsets.items()}
    return Index(entries, end, nodes, infos, groups)


def _index_flaws(files: Files, folder: str) -> Iterator[Flaw]:
    path = join(folder, "index.bin")
    data = read_if_there(files, path)
    found = state.decode_index(data) if data is not None else "there is no index"
    if isinstance(found, str):
        yield Flaw("index", path, 0, f"{found}; all files are scanned")
        return
    there = {name: size_if_there(files, join(folder, name)) for name in files.list(folder)}
    for file in found.files:
        if there.get(base_name(file.path), -1) < 0:
            yield Flaw("index", path, 0, f"it names {base_name(file.path)}, which is not there")
    for number, node in enumerate(found.nodes):
        known = found.files[node.file] if node.file < len(found.files) else None
        size = there.get(base_name(known.path), 0) if known else 0
        if known is None or node.position >= max(size, 1) or node.entry < known.start_entry:
            yield Flaw("index", path, number * state.NODE_BYTES, f"a node to nowhere: {node}")
            return


def _flaw(part: Part, position: int, problem: str) -> Flaw:
    if problem in ("torn", "zeros") and part.last and part.extra is None:
        text = "the last entry is not whole" if problem == "torn" else "zeros up to the end"
        return Flaw("torn", part.path, position, text)
    known = {"torn": "an entry is not whole", "zeros": "zeros instead of entries"}
    return Flaw("corrupt", part.path, position, known.get(problem, problem))


class _Writer(SegmentWriter):
    overhead = HEADER
    above = COMPRESS_ABOVE

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._nodes: list[Node] = []
        self._infos: list[FileInfo] = []
        self._start = 0
        self._times = (0, 0)
        self._bytes = 0

    def file_name(self, first: int, columns: Columns) -> str:
        self._start = first
        self._times = (columns.time_range()[0], 0)
        return f"log-{len(self.paths):016}.comet"

    def encode(self, columns: Columns, first: int) -> memoryview:
        check_sizes(columns, MAX_ENTRY, "Comet")
        values = _packed(columns.values, self.above)
        places = memoryview(values.buffers()[1]).cast("i")[values.offset :]
        for row in range(-self.rows % EVERY, len(values), EVERY):
            at = self.size + places[row] - places[0] + row * HEADER
            self._nodes.append(Node(first + row, len(self.paths) - 1, at))
        self._times = (self._times[0], columns.time_range()[1])
        self._bytes += columns.nbytes
        return _encode(values, columns.timestamps)

    def finish_file(self) -> None:
        begin, end = (time * 1000 for time in self._times)
        self._infos.append(FileInfo(self.path, 0, self.size, self._start, self.rows, begin, end))

    def finish(self) -> None:
        index = Index(self.next, self.size, self._nodes, self._infos)
        entries = sum(file.entries for file in self._infos)
        counters = {
            "WriteOffset": self.size, "LastEntryNumber": max(self.next - 1, 0),
            "ActiveFileIndex": max(len(self._infos) - 1, 0), "FileSize": self.size,
            "LastFileSequence": max(len(self._infos) - 1, 0), "TotalEntries": entries,
            "TotalBytes": self._bytes, "FilesCreated": len(self._infos),
            "CurrentFiles": len(self._infos), "BinaryIndexNodes": len(self._nodes),
        }  # fmt: skip
        replace_file(self._files, join(self.folder, "index.bin"), state.encode_index(index))
        replace_file(self._files, join(self.folder, "comet.state"), state.encode_state(counters))
        replace_file(self._files, join(self.folder, "offsets.state"), state.encode_offsets({}))
