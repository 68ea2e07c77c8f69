"""Segments: what the log being written and the sealed file being mapped have in common.

    log.py        LogSegment: written by appending, read with pread up to what has been published
    sealed.py     SealedSegment: immutable, its frames are Arrow arrays standing on the mapping

    LogSegment.create -> append* -> seal -> SealedSegment

Rows are numbered from the start of the segment: offset = base + row. The directory tells where the
frames lie: in memory while the log is written, in the footer once it is sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from esker.format import columns as cols
from esker.format import frame
from esker.format import segment as fmt
from esker.format.checksum import checksum, checksum_parts
from esker.format.columns import Body, Columns
from esker.format.frame import HEADER_SIZE, Header
from esker.format.segment import Footer, SegmentHeader
from esker.options import FRAME_BYTES_TARGET, FRAME_JOIN_BELOW, TopicOptions


class Compress(NamedTuple):
    """Which codec to try on which bodies."""

    codec: int = frame.PLAIN
    min_bytes: int = 0
    level: int = 1
    late: bool = False  # not while a log is written: when it is sealed


NO_COMPRESSION: Final = Compress()


def compression_of(options: TopicOptions) -> Compress:
    """How the topic asks for its bodies to be compressed, sooner or later."""
    if options.compression == "none":
        return NO_COMPRESSION
    late = options.compress_at == "seal"
    return Compress(frame.ZSTD, options.compress_min_bytes, options.compression_level, late)


class Segment(Protocol):
    """What a reader needs of a segment, sealed or not."""

    path: str

    @property
    def header(self) -> SegmentHeader: ...
    @property
    def base(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def read(self, row: int, stop: int, max_bytes: int) -> tuple[int, Columns]: ...
    def at(self, row: int) -> tuple[Columns, int]: ...
    def find_time(self, timestamp: int, stop: int) -> int: ...


def pack(
    body: Body, position: int, salt: int, first_row: int, synced: int, flags: int, how: Compress
) -> tuple[list[Any], int, bytes]:
    """A body as a frame: buffers to write, bytes they take, and the header."""
    parts, size, codec = body.parts, body.size, frame.PLAIN
    if how.codec and size >= max(how.min_bytes, 1):
        small = pa.Codec("zstd", how.level).compress(b"".join(parts), asbytes=True)
        if len(small) * 8 < size * 7:
            parts, size, codec = [small, bytes(-len(small) & 7)], len(small), frame.ZSTD
    if codec or len(parts) == 1:
        check = checksum(parts[0], salt)
    else:
        check = checksum_parts(parts, salt)
    head = frame.data_header(
        position, salt, codec, body.bits, size, body.size, body.count, first_row,
        body.min_timestamp, body.max_timestamp, synced, flags, check,
    )  # fmt: skip
    return [head, *parts], HEADER_SIZE + ((size + 7) & -8), head


class Directory:
    """Where the data frames of a segment lie; one entry a frame, appended while writing."""

    __slots__ = ("first_rows", "max_timestamps", "min_timestamps", "positions")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.first_rows: list[int] = []
        self.min_timestamps: list[int] = []
        self.max_timestamps: list[int] = []

    def add(self, position: int, first_row: int, low: int, high: int) -> None:
        self.first_rows.append(first_row)
        self.min_timestamps.append(low)
        highs = self.max_timestamps
        highs.append(high if not highs or high > highs[-1] else highs[-1])
        self.positions.append(position)  # last: its length is what readers go by


def footer_frame(footer: Footer, position: int, salt: int) -> list[bytes]:
    body = fmt.encode_footer(footer)
    head, _ = frame.encode_header(
        kind=frame.FOOTER, position=position, salt=salt, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, salt), first_row=footer.records, synced=position,
    )  # fmt: skip
    return [head, body, bytes(-len(body) & 7)]


def time_range(directory: Directory) -> tuple[int, int]:
    if not directory.positions:
        return 0, 0
    return min(directory.min_timestamps), directory.max_timestamps[-1]


def split(columns: Columns, target: int = FRAME_BYTES_TARGET) -> list[Body]:
    """Bodies of about the target size, for a batch of any size."""
    count, size = columns.count, columns.nbytes
    if size <= target * 2 or count == 1:
        return [cols.from_arrow(columns)]
    _, offsets, _ = columns.values.buffers()
    view = memoryview(offsets).cast("i")[columns.values.offset :]
    bodies, row = [], 0
    while row < count:
        stop = bisect_right(view, view[row] + target, row + 1, count)
        bodies.append(cols.from_arrow(columns.slice(row, stop - row)))
        row = stop
    return bodies


def frames_together(found: list[tuple[int, Header, Any]]) -> int:
    """How many frames to hand out as one batch: small ones together, a large one alone."""
    total, take = 0, 0
    for _, header, _ in found:
        if take and (header.raw_size >= FRAME_JOIN_BELOW or total > FRAME_BYTES_TARGET):
            break
        take += 1
        total += header.raw_size
        if header.raw_size >= FRAME_JOIN_BELOW:
            break
    return take


def cut(columns: Columns, first: int, row: int, stop: int) -> tuple[int, Columns]:
    skip = row - first
    count = min(columns.count, stop - first) - skip
    if skip or count < columns.count:
        columns = columns.slice(skip, count)
    return row, columns


def time_row(
    segment: Segment, at: int, first_rows: Sequence[int], frames: int, timestamp: int, stop: int
) -> int:
    while at < frames and first_rows[at] < stop:
        row, limit = first_rows[at], first_rows[at + 1] if at + 1 < frames else stop
        row, columns = segment.read(row, min(limit, stop), 1)
        if isinstance(columns.timestamps, int):
            if columns.timestamps >= timestamp:
                return row
        else:
            for index, stamp in enumerate(memoryview_of(columns.timestamps)):
                if stamp >= timestamp:
                    return row + index
        at += 1
    return stop


def memoryview_of(array: Any) -> memoryview:
    """An int64 array as a memoryview."""
    data = array.buffers()[1]
    return memoryview(data).cast("q")[array.offset : array.offset + len(array)]
