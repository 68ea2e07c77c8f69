"""AOF2: one `.seg` file after the other, each with a header, a fixed size and a footer at its end.

    header (64)    magic "AOF2" u32, version u16, header length u16, segment index u32, records
                   before it u64, bytes before it u64, max size u32, created i64 (ns), first
                   timestamp u64
    record         length u32 (of the payload), checksum u32, timestamp u64 (ns), payload
    footer (64)    magic "FOOT" u32, version u32, segment index u32, records before it u64, records
                   u64, durable bytes u64, last record id u64, last timestamp u64, sealed i64,
                   checksum u32; in the last 64 bytes of max size

    <root>/segments/{id:020}_{base offset:020}_{created:020}.seg, archive/{id:020}_{sealed:020}.seg

Little-endian, without padding. The checksum of a record is the CRC-64/NVME of its payload, folded
to 32 bits; that of the footer is the same over the payloads of all records. A file is as large as
max size from the start, and zeros follow the last record. The id of a record is not stored: it is
the segment's index and the place in the file, 32 bits each. The offset here is how many records
there are before it, as the header tells.

A footer that agrees with the records makes the segment final: damage before its end is damage. A
segment without one ends where its records end; of a newest segment that is the tail, torn or not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.format.columns import Columns
from esker.kin import crc64, hops
from esker.kin.family import (
    LONE,
    Flaw,
    Kind,
    Part,
    Piece,
    SegmentWriter,
    Shards,
    check_sizes,
    make_dirs,
    must_be_new,
)
from esker.storage.files import Files, join

MAGIC: Final = 0x414F4632
FOOT: Final = 0x464F4F54
VERSION: Final = 1
HEADER: Final = 64
FOOTER: Final = 64
RECORD: Final = 16
SEGMENT_BYTES: Final = 64 << 20
STRETCH: Final = 16 << 20  # more than of others: the more strings, the cheaper is a CRC of each
_HEADER: Final = struct.Struct("<IHHIQQIqQ16x")
_FOOTER: Final = struct.Struct("<IIIQQQQQqI")
_RECORD: Final = struct.Struct("<IIQ")
_NAME: Final = re.compile(r"(\d{20})_(\d{20})_(\d{20})\.seg")
_ARCHIVED: Final = re.compile(r"(\d{20})_(\d{20})\.seg")


class Header(NamedTuple):
    segment: int
    records_before: int
    bytes_before: int
    max_size: int
    created: int
    first_timestamp: int


class Footer(NamedTuple):
    segment: int
    records_before: int
    records: int
    durable: int  # bytes, from the beginning of all segments
    last_id: int
    last_timestamp: int
    sealed: int
    checksum: int


# ---- bytes -----------------------------------------------------------------------------------


def record_id(segment: int, position: int) -> int:
    """The id of a record: its segment, and where in the file it is."""
    return segment << 32 | position


def parts_of(number: int) -> tuple[int, int]:
    """Segment and place of a record id."""
    return number >> 32, number & 0xFFFFFFFF


def segment_name(number: int, bytes_before: int, created: int) -> str:
    return f"{number:020}_{bytes_before:020}_{created:020}.seg"


def archive_name(number: int, sealed: int) -> str:
    return f"{number:020}_{sealed:020}.seg"


def encode_header(header: Header) -> bytes:
    return _HEADER.pack(MAGIC, VERSION, HEADER, *header)


def decode_header(data: Any) -> Header | str:
    """The header, or what is wrong with it."""
    if len(data) < HEADER:
        return "shorter than a header"
    magic, version, length, *rest = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return f"it begins with {magic:#x}, not with {MAGIC:#x}"
    if version != VERSION or length != HEADER:
        return f"a header of version {version} and {length} bytes"
    header = Header(*rest)
    if header.max_size < HEADER + FOOTER:
        return f"a segment of {header.max_size} bytes"
    if header.records_before >= 1 << 62:
        return f"{header.records_before} records before it"
    return header


def encode_footer(footer: Footer) -> bytes:
    return _FOOTER.pack(FOOT, VERSION, *footer)


def decode_footer(data: Any, header: Header) -> Footer | None:
    """The footer, from its place at the end of max size; None if there is none, or not this one."""
    at = header.max_size - FOOTER
    if at < HEADER or at + FOOTER > len(data):
        return None
    magic, version, *rest = _FOOTER.unpack_from(data, at)
    footer = Footer(*rest)
    if (magic, version) != (FOOT, VERSION) or footer[:2] != header[:2]:
        return None
    if footer.records > header.max_size:
        return None
    size = footer.durable - header.bytes_before
    return footer if HEADER <= size <= at else None


def record(payload: bytes, timestamp: int) -> bytes:
    """One record; the timestamp is in nanoseconds."""
    return _RECORD.pack(len(payload), crc64.fold(crc64.one(payload)), timestamp) + payload


def _folded(sums: Any) -> Any:
    upper = pc.shift_right(sums, pa.scalar(32, pa.uint64()))
    low = pc.bit_wise_and(pc.bit_wise_xor(sums, upper), pa.scalar(0xFFFFFFFF, pa.uint64()))
    return low.cast(pa.uint32())


def encode(values: Any, timestamps: Any) -> memoryview:
    """Records, one behind the other; timestamps are in microseconds, one for all or an array."""
    count = len(values)
    return hops.joined(
        [
            hops.fixed(hops.packed(hops.lengths(values), 4, "<"), 4, count),
            hops.fixed(hops.packed(_folded(crc64.many(values)), 4, "<"), 4, count),
            hops.fixed(hops.nanos(timestamps, count), 8, count),
            values,
        ]
    )


def decode(
    data: memoryview, at: int = HEADER, first: int = 0, end: int | None = None
) -> tuple[Piece | None, str, int]:
    """The records of a stretch: what there is, what ended it, and where that is.

    What ends it is "" if more may follow, "end" at zeros or at the end, "torn", or what is wrong.
    """
    end = len(data) if end is None else end
    found = hops.hop(data, at, end, "<", RECORD, RECORD, stretch=STRETCH, zeros_end=True)
    starts, behind = found.starts, found.end
    problem = "torn" if found.torn else ""
    if not problem and (behind + RECORD > end or not any(data[behind : behind + RECORD])):
        problem = "end"
    if not starts:
        return None, problem, behind
    begin = hops.integers(starts, at)
    values_at = hops.plus(begin, RECORD)
    pieces = hops.Pieces(data, at, behind, [begin, values_at])
    values, heads = pieces.column(1), hops.Heads(pieces.column(0), RECORD)
    sizes, sums, nanos = (heads.numbers(place, width) for place, width in ((0, 4), (4, 4), (8, 8)))
    sizes = sizes.view(pa.int32())
    if behind - at < crc64.FEW * crc64.LANE:
        made = crc64.many(values)
    else:  # the words of which each ends with a value, and begins in the header before it
        words_at = pc.subtract(values_at, crc64.spare(sizes))
        words = hops.Pieces(data, at, behind, [begin, words_at]).column(1)
        made = crc64.ended(words, sizes)
    fine = pc.and_(pc.equal(sums, _folded(made)), pc.less_equal(nanos, hops.TOP))
    wrong = pc.index(fine, False).as_py()
    if wrong >= 0:
        problem, behind = "a record whose checksum is wrong", starts[wrong]
        if not wrong:
            return None, problem, behind
        values, nanos = values.slice(0, wrong), nanos.slice(0, wrong)
    stamps = pc.divide(nanos.view(pa.int64()), 1000)
    return Piece(Columns(values, stamps), first, behind), problem, behind


class Scan(NamedTuple):
    """What a look at the records of a segment finds, without its footer."""

    records: int
    end: int  # behind the last whole record
    last_id: int
    last_timestamp: int
    problem: str  # "" where zeros follow


def scan(data: memoryview, header: Header) -> Scan:
    """What a recovery keeps of a segment that has no footer."""
    at, count, last, stamp = HEADER, 0, HEADER, 0
    limit = min(len(data), header.max_size - FOOTER)
    while True:
        piece, problem, behind = decode(data, at, 0, limit)
        if piece is not None:
            count += len(piece.columns.values)
            last = behind - RECORD - len(piece.columns.values[-1].as_py())
            stamp = _RECORD.unpack_from(data, last)[2]
        if problem:
            told = "" if problem == "end" else problem
            return Scan(count, behind, record_id(header.segment, last), stamp, told)
        at = behind


# ---- files -----------------------------------------------------------------------------------


class Aof2(Kind):
    """The root of an AOF2: one stream."""

    name = "aof2"
    carries = frozenset({"timestamp"})
    named = False
    begin = HEADER
    max_record = SEGMENT_BYTES - HEADER - FOOTER - RECORD

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        found: dict[int, str] = {}
        for folder, pattern in (("archive", _ARCHIVED), ("segments", _NAME)):
            for name in sorted(files.list(join(root, folder))):
                if match := pattern.fullmatch(name):
                    found[int(match[1])] = join(root, folder, name)
        parts = []
        for number, path in sorted(found.items()):
            header = decode_header(_head(files, path))
            first = -1 if isinstance(header, str) else header.records_before
            parts.append(Part(path, first, number == max(found), number))
        if parts and parts[0].first < 0:
            parts[0] = parts[0]._replace(first=0)
        if not parts and not {"segments", "archive"} & {*files.list(root)}:
            return {}
        return {LONE: {0: parts}}

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        header = decode_header(data)
        if isinstance(header, str):
            if not any(data[:HEADER]) and part.last:
                return  # made in advance; the header is written with the first record
            yield Flaw("corrupt", part.path, 0, header)
            return
        footer = decode_footer(data, header)
        limit = min(len(data), header.max_size - FOOTER)
        if footer is not None:
            limit = footer.durable - header.bytes_before
        begun = at == HEADER
        count = 0
        while at < limit:
            piece, problem, at = decode(data, at, first, limit)
            if piece is not None:
                yield piece
                first = piece.end
                count += len(piece.columns.values)
            if problem == "end" and (footer is None or at >= limit):
                break
            if problem:
                told = "zeros instead of records" if problem == "end" else problem
                yield _flaw(part, at, told, footer)
                return
        if footer is not None and begun and count != footer.records:
            text = f"{count} records, where the footer says {footer.records}"
            yield Flaw("corrupt", part.path, header.max_size - FOOTER, text)

    def end(self, files: Files, part: Part, data: memoryview, first: int) -> int:
        header = decode_header(data)
        if isinstance(header, str):
            return first
        footer = decode_footer(data, header)
        if footer is not None:  # trusted, as a recovery does
            return first + footer.records
        return first + scan(data, header).records

    def beside(self, files: Files, part: Part, data: memoryview) -> Iterator[Flaw]:
        header = decode_header(data)
        if isinstance(header, str):
            return
        if header.segment != part.extra & 0xFFFFFFFF:
            text = f"it says that it is segment {header.segment}"
            yield Flaw("corrupt", part.path, 8, text)
        footer = decode_footer(data, header)
        at = header.max_size - FOOTER
        if footer is None:
            if not part.last:
                yield Flaw("state", part.path, at, "there is no footer, and other segments follow")
            return
        size = footer.durable - header.bytes_before
        if _sum_of(data, size) != footer.checksum:
            yield Flaw("state", part.path, at, "the checksum of the footer is wrong")

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        for folder, pattern in (("archive", _ARCHIVED), ("segments", _NAME)):
            for name in sorted(files.list(join(root, folder))):
                if not pattern.fullmatch(name):
                    yield Flaw("name", join(root, folder, name), 0, "no segment")

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        folder = join(root, "segments")
        must_be_new(files, folder)
        make_dirs(files, join(root, "archive"))
        size = options.get("segment_bytes", SEGMENT_BYTES)
        return _Writer(files, folder, size, size - HEADER - FOOTER - RECORD)


def _sum_of(data: memoryview, end: int) -> int:
    """The checksum of a footer: that of all payloads up to a byte, one behind the other."""
    at, value, problem = HEADER, 0, ""
    while at < end and not problem:
        piece, problem, at = decode(data, at, 0, end)
        if piece is not None:
            value = crc64.of(hops.content(piece.columns.values), value)
    return crc64.fold(value)


def _head(files: Files, path: str) -> bytes:
    file = files.open(path, "r")
    try:
        return file.read(0, HEADER)
    finally:
        file.close()


def _flaw(part: Part, position: int, problem: str, footer: Footer | None) -> Flaw:
    if footer is None and part.last:
        text = "the last record is not whole" if problem == "torn" else f"{problem}, and no footer"
        return Flaw("torn", part.path, position, text)
    text = "a record is not whole" if problem == "torn" else problem
    return Flaw("corrupt", part.path, position, text)


class _Writer(SegmentWriter):
    overhead = RECORD

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._records = 0
        self._bytes = 0
        self._head: Header | None = None
        self._last = (HEADER, 0)  # the last record: its place, and its time
        self._sum = 0  # of the payloads of the open file, but for
        self._unsummed: list[memoryview] = []  # these: a sum of much at once costs less
        self._waiting = 0  # bytes of them

    def reserve(self) -> int:
        return FOOTER

    def file_name(self, first: int, columns: Columns) -> str:
        stamp = columns.time_range()[0] * 1000
        self._head = Header(len(self.paths), self._records, self._bytes, self._limit, stamp, stamp)
        return segment_name(len(self.paths), self._bytes, max(stamp, 0))

    def header(self, first: int, columns: Columns) -> bytes:
        return encode_header(self._head) if self._head else bytes(HEADER)

    def encode(self, columns: Columns, first: int) -> memoryview:
        check_sizes(columns, self._max_record, f"a segment of {self._limit} bytes of AOF2")
        data = encode(columns.values, columns.timestamps)
        last = self.size + len(data) - RECORD - len(columns.values[-1].as_buffer() or b"")
        self._last = (last, _RECORD.unpack_from(data, last - self.size)[2])
        self._unsummed.append(hops.content(columns.values))
        self._waiting += len(self._unsummed[-1])
        if self._waiting >= crc64.CHUNK:
            self._add_up()
        return data

    def _add_up(self) -> None:
        self._sum = crc64.of(b"".join(self._unsummed), self._sum)
        self._unsummed, self._waiting = [], 0

    def finish_file(self) -> None:
        """Seal it: the footer, in its place."""
        assert self._head is not None
        self._add_up()
        segment, before = self._head[:2]
        last, stamp = self._last
        footer = Footer(
            segment, before, self.rows, self._bytes + self.size, record_id(segment, last), stamp,
            stamp, crc64.fold(self._sum),
        )  # fmt: skip
        self._file.write(self._limit - FOOTER, [encode_footer(footer)])
        self._records += self.rows
        self._bytes += self._limit
        self._sum = 0
        self._head = None
