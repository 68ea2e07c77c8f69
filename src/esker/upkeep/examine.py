"""One segment file, looked at from outside: what it holds, and what is wrong with it.

This is the second opinion. It walks a file from its first byte with code of its own: it uses the
layouts of `esker.format` and nothing of the reading path (no `scan`, no `merge`, no mapping), so
that a mistake there does not hide itself here. It reads with pread, in order, and once; bytes that
the disk refuses to give are read as zeros and remembered, so that one bad sector costs the frames
it lies in and not the rest of the file.

A walk yields *flaws*. A flaw covers bytes (from `position` to `end`) and rows (`first` to `last`,
exact because rows are contiguous: what lies between two good frames is known from both). Whether a
flaw is corruption or only a torn tail is for `verify` to say, which knows the shard around it.

    examine(files, folder, name) -> Examined
    examine_bytes(data, ...)     -> Examined, of a segment that was fetched from a cold store
    frame_flaw(header, body)     -> why a body that passed its checksum is still wrong

Of a segment that lies in a cold store the file is a stub (format/place.py): it is told by its PLACE
frame, or by a footer that speaks of a longer file. What it stands for is looked at in stubs.py.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import StorageError
from esker.format import columns as cols
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import Hasher, checksum
from esker.format.frame import Header
from esker.format.place import Place
from esker.format.segment import Footer, SegmentHeader
from esker.options import SEGMENT_BYTES_MAX
from esker.storage.files import File, Files, join

if TYPE_CHECKING:
    from esker.upkeep.stubs import ColdFlaw

PIECE: Final = 4 << 20  # bytes read at once
SECTOR: Final = 4096  # bytes read at once where the disk refuses a piece
TIME_LIMIT: Final = 1 << 62


class Flaw(NamedTuple):
    """Bytes that cannot be believed, and the rows that are lost with them."""

    position: int
    end: int
    reason: str
    first: int = 0
    last: int = -1  # below `first` when no row is concerned, or none is known to be
    zero: bool = False  # nothing but zeros up to the end of the file

    @property
    def rows(self) -> int:
        return max(0, self.last - self.first + 1)


class Directory(NamedTuple):
    """The frame directory as the frames themselves give it; see format/segment.py."""

    positions: array[int]
    first_rows: array[int]
    lows: array[int]
    highs: array[int]  # each the largest so far


class Examined:
    """What one segment file turned out to be."""

    def __init__(self, path: str, name: names.SegmentName) -> None:
        self.path = path
        self.name = name
        self.size = 0
        self.header: SegmentHeader | None = None
        self.header_flaw = ""  # why there is no header; "version N" for a newer one
        self.config: bytes | None = None  # the body of the CONFIG frame
        self.flaws: list[Flaw] = []
        self.holes: list[tuple[int, int]] = []  # rows first..last that a repair has declared lost
        self.untidy: list[int] = []  # positions of padding that is not zero
        self.directory = Directory(array("Q"), array("Q"), array("q"), array("q"))
        self.frames = 0
        self.rows = 0  # up to the end, lost ones counted
        self.readable = 0  # rows in good frames
        self.end = fmt.HEADER_SIZE  # behind the last good frame
        self.watermark = 0  # the highest position that a frame proves to have been durable
        self.chain = 0  # hash of the header checksums of the good frames
        self.raw_bytes = 0
        self.unfinished = -1  # position of the batch at the end that lacks its last frame
        self.footer: Footer | None = None
        self.footer_flaw = ""  # why a sealed file has no footer that can be used
        self.footer_position = 0  # where the footer is, or should be; 0 when nobody knows
        self.hash_matches = True
        self.file_hash = 0  # as the trailer has it
        self.stub = False  # its frames lie in a cold store
        self.place: Place | None = None  # where, if it says so
        self.place_position = 0
        self.cold: list[ColdFlaw] = []  # what is wrong there, see stubs.py
        self.whole_size = 0  # bytes that were looked at there
        self.refused: list[tuple[int, int, str]] = []  # bytes the disk did not give, and why

    @property
    def base(self) -> int:
        return self.name.base

    @property
    def next_offset(self) -> int:
        return self.name.base + self.rows

    @property
    def high(self) -> int:
        """The largest timestamp up to the end of this segment, as far as it can be known."""
        before = self.header.previous_high if self.header is not None else 0
        return max(before, self.directory.highs[-1]) if self.directory.highs else before

    @property
    def chain_hash(self) -> int:
        """What the next segment must name. Merging keeps the hash of the frames as written."""
        return self.footer.chain if self.footer is not None else self.chain

    def expect(self, rows: int) -> None:
        """So many rows it must have had, say those around it. For a file without a footer."""
        if rows <= self.rows:
            return
        if self.flaws and self.flaws[-1].end > self.end:
            self.flaws[-1] = self.flaws[-1]._replace(last=rows - 1)
        else:
            self.flaws.append(Flaw(self.end, self.end, "it ends early", self.rows, rows - 1))
        self.rows = rows

    def doubt_config(self, reason: str) -> None:
        """The CONFIG frame can be read, and says the wrong thing; or there is none."""
        size = 0 if self.config is None else frame.HEADER_SIZE + frame.padded(len(self.config))
        self.flaws.insert(0, Flaw(fmt.HEADER_SIZE, fmt.HEADER_SIZE + size, reason))

    @property
    def damage(self) -> list[Flaw]:
        """The flaws that cost something: not what is left of a footer, not unwritten space."""
        last = self.flaws[-1] if self.flaws else None
        behind = last is not None and last.end > self.end and not last.rows
        if last is not None and behind and (last.zero or self.footer_flaw):
            return self.flaws[:-1]
        return self.flaws


class Source:
    """A file's bytes. What the disk refuses reads as zeros and is noted in `refused`."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self._start = 0
        self._data: memoryview = memoryview(b"")
        self.refused: list[tuple[int, int, str]] = []

    @classmethod
    def of(cls, data: Any) -> Source:
        """Bytes that are here already."""
        return cls(cast(File, _Bytes(data)), len(data))

    def at(self, position: int, size: int) -> memoryview:
        """Bytes [position, position + size), fewer at the end."""
        size = max(0, min(size, self.size - position))
        begin = position - self._start
        if begin < 0 or begin + size > len(self._data):
            self._data = memoryview(self.read(position, max(size, PIECE)))
            self._start = position
            begin = 0
        return self._data[begin : begin + size]

    def read(self, position: int, size: int) -> bytes:
        size = min(size, self.size - position)
        try:
            return self._file.read(position, size)
        except StorageError:
            pieces = [
                self._sector(at, min(SECTOR, position + size - at))
                for at in range(position, position + size, SECTOR)
            ]
            return b"".join(pieces)

    def _sector(self, position: int, size: int) -> bytes:
        try:
            return self._file.read(position, size).ljust(size, b"\0")
        except StorageError as problem:
            self.refused.append((position, position + size, str(problem)))
            return bytes(size)

    def zeros_from(self, position: int) -> bool:
        """Whether nothing but zeros follows."""
        while position < self.size:
            piece = self.at(position, PIECE)
            if any(piece[:64]) or bytes(piece).strip(b"\0"):
                return False
            position += len(piece)
        return True

    def next_frame(self, position: int, end: int, salt: int) -> int:
        """The next position before `end` at which a frame header verifies; `end` when none does."""
        position = (position + 7) & -8
        while position < end:
            piece = bytes(self.at(position, PIECE))
            found = piece.find(frame.MAGIC)
            while found >= 0:
                place = position + found
                if place >= end:
                    return end
                if not place & 7 and isinstance(self.header(place, salt), Header):
                    return place
                found = piece.find(frame.MAGIC, found + 1)
            position = (position + max(len(piece) - 7, 8)) & -8
        return end

    def header(self, position: int, salt: int) -> Header | frame.Damage:
        return frame.decode_header(self.at(position, frame.HEADER_SIZE), 0, position, salt)


class _Bytes:
    """The read side of a File, of bytes."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])


def examine_bytes(data: Any, path: str, name: names.SegmentName) -> Examined:
    """Look at a sealed segment that was fetched from elsewhere."""
    seen = Examined(path, name)
    seen.size = len(data)
    _look(seen, Source.of(data), None, True)
    return seen


def examine(
    files: Files, folder: str, name: names.SegmentName, *, limit: int | None = None,
    rows: int | None = None, deep: bool = True,
) -> Examined:  # fmt: skip
    """Look at one segment. `limit` ends the look at a position, `rows` at a row: behind the last
    one only marks are taken in, which the segment's chain hash covers.

    Raises StorageError when the file cannot be opened at all.
    """
    path = join(folder, names.segment(name.segment, name.base, sealed=name.sealed))
    seen = Examined(path, name)
    file = files.open(path, "r")
    try:
        seen.size = file.size()
        source = Source(file, seen.size if limit is None else min(limit, seen.size))
        _look(seen, source, rows, deep)
        seen.refused = source.refused
    finally:
        file.close()
    return seen


def _look(seen: Examined, source: Source, rows: int | None, deep: bool) -> None:
    header = fmt.decode_header(bytes(source.at(0, fmt.HEADER_SIZE)))
    if isinstance(header, str):
        seen.header_flaw = header
        return
    seen.header = header
    end, elsewhere = source.size, None
    if seen.name.sealed:
        elsewhere = _look_at_footer(seen, source, header.salt)
        end = seen.footer_position or end
    _Walk(seen, source, header.salt, deep).run(end, rows)
    if seen.name.sealed:
        _settle_footer(seen, elsewhere)
    if seen.name.sealed and (deep or seen.stub):
        seen.hash_matches = _hash_matches(source)


def _settle_footer(seen: Examined, elsewhere: Footer | None) -> None:
    """A footer that speaks of a longer file is right in a stub only."""
    if elsewhere is not None and not seen.readable and elsewhere.data_end > seen.footer_position:
        seen.stub = True
    if seen.stub:
        seen.footer = elsewhere or seen.footer
        seen.flaws = [flaw._replace(first=0, last=-1) for flaw in seen.flaws]
    elif elsewhere is not None:
        seen.footer_flaw = "the footer contradicts itself"


# ---- frames ----------------------------------------------------------------------------------


def _is_mark(header: Header | frame.Damage) -> bool:
    return isinstance(header, Header) and header.kind == frame.MARK


class _Walk:
    """Goes over the frames of one file, from the first to the last."""

    def __init__(self, seen: Examined, source: Source, salt: int, deep: bool) -> None:
        self.seen = seen
        self.source = source
        self.salt = salt
        self.deep = deep
        self.row = 0  # the row that the next frame should begin with
        self.flaw: Flaw | None = None  # the one whose rows are not yet known
        self.batch = -1  # where the batch began that is not yet complete
        self.chain = Hasher()

    def run(self, end: int, rows: int | None) -> None:
        position = fmt.HEADER_SIZE
        while position < end:
            header = self.source.header(position, self.salt)
            if rows is not None and self.row >= rows and not _is_mark(header):
                break
            if isinstance(header, frame.Damage):
                following = self.source.next_frame(position + 8, end, self.salt)
                zero = header.zero and following == end and self.source.zeros_from(position)
                self.bad(position, following, header.reason, zero=zero)
                position = following
            elif header.kind == frame.FOOTER:
                if not self.seen.name.sealed:
                    self.bad(position, end, "a footer that was not finished")
                self.seen.footer_position = position
                break
            else:
                self.frame(position, header, end)
                position += header.size
        self.finish(rows)

    def frame(self, position: int, header: Header, end: int) -> None:
        seen = self.seen
        seen.watermark = max(seen.watermark, header.synced)
        if header.kind == frame.PLACE and seen.name.sealed and not seen.readable:
            seen.stub, seen.place_position = True, position
        if position + header.size > end:
            self.bad(position, end, "the file ends inside a frame", header)
            return
        body = self.source.at(position + frame.HEADER_SIZE, header.body_size)
        reason = self.unsound(header, body, position)
        if reason:
            self.bad(position, position + header.size, reason, header)
            return
        self.good(position, header)

    def unsound(self, header: Header, body: memoryview, position: int) -> str:
        held = self.deep or header.kind == frame.CONFIG
        if held and header.body_size and checksum(body, self.salt) != header.body_checksum:
            return "frame body does not match its checksum"
        if header.kind == frame.CONFIG:
            if position != fmt.HEADER_SIZE:
                return "a CONFIG frame that is not the first frame"
            self.seen.config = bytes(body)
        if header.kind == frame.PLACE:
            return self.place(position, header, body)
        if header.first_row < self.row:
            return f"rows go back: {header.first_row} after {self.row}"
        pad = self.source.at(position + frame.HEADER_SIZE + header.body_size, -header.body_size & 7)
        if any(pad):
            self.seen.untidy.append(position + frame.HEADER_SIZE + header.body_size)
        if header.kind == frame.DATA and self.deep:
            return frame_flaw(header, body)
        return ""

    def place(self, position: int, header: Header, body: memoryview) -> str:
        """Why a PLACE frame does not say where the segment lies; "" if it does."""
        seen = self.seen
        if not seen.stub or seen.holes or seen.place is not None:
            return "a PLACE frame that is in no stub"
        if not self.deep and checksum(body, self.salt) != header.body_checksum:
            return "frame body does not match its checksum"
        pad = self.source.at(position + frame.HEADER_SIZE + header.body_size, -header.body_size & 7)
        if any(pad):
            seen.untidy.append(position + frame.HEADER_SIZE + header.body_size)
        try:
            seen.place = msgspec.json.decode(body, type=Place)
        except msgspec.MsgspecError as problem:
            return f"where it lies cannot be read: {problem}"
        return ""

    def good(self, position: int, header: Header) -> None:
        seen = self.seen
        if header.first_row > self.row and header.kind != frame.CONFIG:
            if self.flaw is None:  # rows are gone, and no byte is out of place
                self.bad(position, position, "rows are missing between two frames")
            self.settle(header.first_row)
        elif self.flaw is not None:
            self.settle(self.row)
        seen.frames += 1
        seen.end = position + header.size
        if header.kind == frame.HOLE:
            if header.count:
                seen.holes.append((header.first_row, header.first_row + header.count - 1))
            self.row = header.first_row + header.count
            self.batch = -1
            return
        if header.kind == frame.PLACE:
            return
        self.chain.update(header.header_checksum.to_bytes(8, "little"))
        if header.kind == frame.DATA:
            self.data(position, header)

    def data(self, position: int, header: Header) -> None:
        seen = self.seen
        positions, first_rows, lows, highs = seen.directory
        positions.append(position)
        first_rows.append(header.first_row)
        lows.append(header.min_timestamp)
        highs.append(max(header.max_timestamp, highs[-1]) if highs else header.max_timestamp)
        seen.raw_bytes += header.raw_size
        seen.readable += header.count
        self.row = header.first_row + header.count
        if not header.flags & frame.MORE:
            self.batch = -1
        elif self.batch < 0:
            self.batch = position

    def bad(
        self, position: int, end: int, reason: str, header: Header | None = None, *,
        zero: bool = False,
    ) -> None:  # fmt: skip
        """Note a flaw; neighbours become one."""
        last = header.first_row + header.count - 1 if header is not None else self.row - 1
        if self.flaw is None:
            self.flaw = Flaw(position, end, reason, self.row, last, zero)
        else:
            self.flaw = self.flaw._replace(end=end, last=max(last, self.flaw.last), zero=False)

    def settle(self, row: int) -> None:
        """The next good frame begins with this row: now it is known what the flaw took."""
        assert self.flaw is not None
        self.seen.flaws.append(self.flaw._replace(last=row - 1))
        self.flaw = None
        self.row = row

    def finish(self, rows: int | None) -> None:
        seen, footer = self.seen, self.seen.footer
        if self.flaw is not None:
            known = max(self.row, self.flaw.last + 1, footer.records if footer is not None else 0)
            if self.flaw.zero:
                known = max(self.row, footer.records if footer is not None else 0)
            self.settle(max(known, min(rows, 1 << 32) if rows is not None else 0))
        seen.rows = self.row
        seen.chain = self.chain.digest()
        seen.unfinished = self.batch


def frame_flaw(header: Header, body: memoryview) -> str:
    """Why a DATA frame whose checksums match is still not what a writer may write; "" if it is."""
    if header.count == 0:
        return "a data frame without records"
    low, high = header.min_timestamp, header.max_timestamp
    if not -TIME_LIMIT < low <= high < TIME_LIMIT:
        return f"timestamps out of range: {low}..{high}"
    try:
        return _columns_flaw(header, _inflated(header, body))
    except (pa.ArrowException, ValueError, OSError) as problem:
        return f"columns are not valid: {problem}"


def _inflated(header: Header, body: memoryview) -> Any:
    if header.codec == frame.PLAIN:
        if header.raw_size != header.body_size:
            raise ValueError(f"raw size {header.raw_size} of a plain body of {header.body_size}")
        return pa.py_buffer(body)
    if header.raw_size > 2 * SEGMENT_BYTES_MAX or frame.zstd_size(body) != header.raw_size:
        raise ValueError(f"a raw size of {header.raw_size} bytes")
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd") as stream:
        raw = stream.read_buffer(header.raw_size + 1)
    if raw.size != header.raw_size:
        raise ValueError(f"inflates to {raw.size} bytes, not {header.raw_size}")
    return raw


class _Cutter:
    """Cuts a body into buffers, each on a multiple of 8."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.at = 0

    def take(self, size: int) -> Any:
        if size < 0 or self.at + size > self.raw.size:
            raise ValueError(f"a buffer of {size} bytes at {self.at} of {self.raw.size}")
        buffer = self.raw.slice(self.at, size)
        self.at += (size + 7) & -8
        return buffer

    def offsets(self, count: int) -> tuple[Any, int]:
        buffer = self.take(4 * (count + 1))
        return buffer, int.from_bytes(buffer[4 * count :], "little", signed=True)

    def cells(self, kind: Any, count: int, *, valid: bool = False) -> Any:
        bits = self.take((count + 7) // 8) if valid else None
        offsets, size = self.offsets(count)
        array = pa.Array.from_buffers(kind, count, [bits, offsets, self.take(size)])
        array.validate(full=True)
        return array


def _columns_flaw(header: Header, raw: Any) -> str:
    count, bits, cut = header.count, header.columns, _Cutter(raw)
    if bits >> 5:
        return f"unknown columns {bits:#x}"
    value_offsets, value_size = cut.offsets(count)
    if bits & cols.TIMESTAMPS:
        stamps = pa.Array.from_buffers(pa.int64(), count, [None, cut.take(8 * count)])
        found = pc.min_max(stamps).as_py()
        if (found["min"], found["max"]) != (header.min_timestamp, header.max_timestamp):
            return "timestamps are not those of the header"
    elif header.min_timestamp != header.max_timestamp:
        return "two timestamps in the header, and no column of them"
    if bits & cols.KEYS:
        cut.cells(pa.binary(), count, valid=True)
    for bit in (cols.TAGS, cols.NODES):
        if bits & bit:
            cut.cells(pa.string(), count, valid=True)
    if bits & cols.HEADERS:
        _, inner = cut.offsets(count)
        cut.cells(pa.string(), inner)
        cut.cells(pa.binary(), inner)
    values = pa.Array.from_buffers(pa.binary(), count, [None, value_offsets, cut.take(value_size)])
    values.validate(full=True)
    return "" if cut.at - 8 < raw.size <= cut.at else "bytes behind the last column"


# ---- footer and trailer ----------------------------------------------------------------------


def _look_at_footer(seen: Examined, source: Source, salt: int) -> Footer | None:
    """Find the footer. One that is in order but for where it says that the data ends is returned:
    whether that is right turns out when the frames are known."""
    trailer = fmt.decode_trailer(bytes(source.at(source.size - fmt.TRAILER_SIZE, fmt.TRAILER_SIZE)))
    if isinstance(trailer, str):
        seen.footer_flaw = trailer
        return None
    seen.file_hash = trailer[1]
    position = trailer[0]
    limit = source.size - fmt.TRAILER_SIZE
    if not fmt.HEADER_SIZE <= position <= limit - frame.HEADER_SIZE:
        seen.footer_flaw = f"the trailer names a footer at {position}"
        return None
    seen.footer_position = position
    header = source.header(position, salt)
    if isinstance(header, frame.Damage):
        seen.footer_flaw = f"the footer's {header.reason}"
    elif header.kind != frame.FOOTER or position + header.size != limit:
        seen.footer_flaw = "the trailer names a frame that is no footer"
    else:
        body = bytes(source.at(position + frame.HEADER_SIZE, header.body_size))
        footer = fmt.decode_footer(body)
        if checksum(body, salt) != header.body_checksum:
            seen.footer_flaw = "the footer does not match its checksum"
        elif isinstance(footer, str):
            seen.footer_flaw = footer
        elif header.first_row != footer.records:
            seen.footer_flaw = "the footer contradicts itself"
        elif footer.data_end != position:
            return footer
        else:
            seen.footer = footer
    return None


def _hash_matches(source: Source) -> bool:
    tail = bytes(source.at(source.size - fmt.TRAILER_SIZE, fmt.TRAILER_SIZE))
    trailer = fmt.decode_trailer(tail)
    if isinstance(trailer, str):
        return False
    hasher = Hasher()
    end = source.size - fmt.TRAILER_SIZE
    for position in range(0, end, PIECE):
        hasher.update(source.at(position, min(PIECE, end - position)))
    return hasher.digest() == trailer[1]


def directory_flaw(seen: Examined) -> str:
    """How the footer differs from what the frames say; "" when they agree."""
    footer, built = seen.footer, seen.directory
    if footer is None:
        return ""
    for said, found, what in (
        (footer.positions, built.positions, "positions"),
        (footer.first_rows, built.first_rows, "first rows"),
        (footer.min_timestamps, built.lows, "smallest timestamps"),
        (footer.max_timestamps, built.highs, "largest timestamps"),
    ):
        if list(said) != list(found):
            return f"{what} in the directory are not those of the frames"
    if footer.records != seen.rows:
        return f"the footer counts {footer.records} records, the frames {seen.rows}"
    low = min(built.lows, default=0)
    high = built.highs[-1] if built.highs else 0
    if (footer.min_timestamp, footer.max_timestamp) != (low, high):
        return "the footer's timestamps are not those of the frames"
    return ""
