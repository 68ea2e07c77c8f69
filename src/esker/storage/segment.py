"""One file of frames: the log being written, and the sealed file being mapped.

A `LogSegment` is written by appending and read with pread up to what has been published. Its
directory is in memory. A `SealedSegment` is immutable; its directory is the footer, loaded when it
is first needed, and its frames are Arrow arrays standing on the mapping.

    LogSegment.create -> append* -> seal -> SealedSegment

Sealing: when frames are large the footer is appended to the log and the file renamed; when they
are small a merged copy is written beside it, synced, renamed, and the log deleted. Either way the
file called .seg is complete at the moment it has that name.

Rows are numbered from the start of the segment: offset = base + row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from esker.errors import Corruption, DiskFull, FormatTooNew, StorageError
from esker.format import columns as cols
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import Hasher, checksum, checksum_parts
from esker.format.columns import Body, Columns
from esker.format.frame import HEADER_SIZE, Header
from esker.format.segment import Footer, SegmentHeader
from esker.options import FRAME_BYTES_TARGET, FRAME_MERGE_BELOW
from esker.storage import merge, scan
from esker.storage.files import File, Files, join, parent
from esker.storage.maps import Maps

_READ_PIECE: Final = 1 << 20
ALLOCATE_MIN: Final = 64 << 10
ALLOCATE_MAX: Final = 8 << 20
DECODED_MAX: Final = 1024  # decoded frames kept a mapping; they hold pointers, not data


class Compress(NamedTuple):
    """Which codec to try on which bodies."""

    codec: int = frame.PLAIN
    min_bytes: int = 0


NO_COMPRESSION: Final = Compress()


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
        small = pa.compress(b"".join(parts), "zstd", asbytes=True)
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


class _Directory:
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


class LogSegment:
    """A segment that is (or was, before a crash) being written."""

    header: SegmentHeader

    def __init__(self, header: SegmentHeader, file: File) -> None:
        self.header = header
        self.file = file
        self.path = file.path
        self.salt = header.salt
        self.directory = _Directory()
        self.end = fmt.HEADER_SIZE  # position behind the last frame
        self.next_row = 0
        self.frames = 0
        self.synced = 0  # durable up to here, in the file or through the journal
        self.in_file = 0  # durable up to here in the file itself
        self.value_bytes = 0
        self.damaged = False
        self.allocated = 0  # room taken ahead of the end, zeros; 0 when none is
        self._sync_failed = False
        self._decoded: tuple[int, Any] = (-1, None)  # the frame last looked into
        self._chain = Hasher()

    # -- writing --

    @classmethod
    def create(cls, files: Files, folder: str, header: SegmentHeader, config: bytes) -> LogSegment:
        """A new log with its header and CONFIG frame written, not yet synced."""
        path = join(folder, names.segment(header.segment, header.base, sealed=False))
        file = files.open(path, "create")
        log = cls(header, file)
        head, _ = frame.encode_header(
            kind=frame.CONFIG, position=log.end, salt=header.salt, body_size=len(config),
            raw_size=len(config), body_checksum=checksum(config, header.salt),
        )  # fmt: skip
        pad = bytes(-len(config) & 7)
        try:
            file.write(0, [fmt.encode_header(header), head, config, pad])
        except BaseException:
            file.close()
            files.unlink(path)
            raise
        log._chain.update(head[56:])
        log.end += HEADER_SIZE + frame.padded(len(config))
        log.frames = 1
        return log

    @property
    def base(self) -> int:
        return self.header.base

    @property
    def number(self) -> int:
        return self.header.segment

    @property
    def rows(self) -> int:
        return self.next_row

    @property
    def chain(self) -> int:
        return self._chain.digest()

    def append(self, bodies: Sequence[Body], how: Compress = NO_COMPRESSION) -> None:
        """Write bodies as frames, all of them or none. Nothing changes when this raises."""
        if len(bodies) == 1:
            body = bodies[0]
            parts, size, head = pack(
                body, self.end, self.salt, self.next_row, self.synced, 0, how
            )
            self.file.write(self.end, [b"".join(parts)] if size <= 8192 else parts)
            self._took(body, size, head)
            return
        position, row = self.end, self.next_row
        buffers: list[Any] = []
        took: list[tuple[Body, int, bytes]] = []
        for index, body in enumerate(bodies):
            flags = frame.MORE if index + 1 < len(bodies) else 0
            parts, size, head = pack(body, position, self.salt, row, self.synced, flags, how)
            buffers += parts
            took.append((body, size, head))
            position += size
            row += body.count
        self.file.write(self.end, buffers)
        for item in took:
            self._took(*item)

    def _took(self, body: Body, size: int, head: bytes) -> None:
        self._chain.update(head[56:])
        self.directory.add(self.end, self.next_row, body.min_timestamp, body.max_timestamp)
        self.value_bytes += body.size
        self.frames += 1
        self.end += size
        self.next_row += body.count

    def allocate_ahead(self, size: int, limit: int) -> None:
        """Take room in growing steps, so that a sync need not write a new file size each time."""
        if self.end + size > self.allocated:
            step = min(max(self.end, ALLOCATE_MIN), ALLOCATE_MAX)
            self.allocated = max(min(self.end + step, limit), self.end + size)
            try:
                self.file.allocate(self.allocated)
            except DiskFull:
                self.allocated = self.end + size  # there may still be room for this one

    def trim(self) -> None:
        """Give back the room that was taken ahead."""
        if self.allocated:
            self.allocated = 0
            if self.file.size() > self.end:
                self.file.truncate(self.end)

    def mark(self) -> None:
        """A frame without records that says: all before it is durable. Written by a clean close."""
        head, _ = frame.encode_header(
            kind=frame.MARK, position=self.end, salt=self.salt, first_row=self.next_row,
            synced=self.synced,
        )  # fmt: skip
        self.file.write(self.end, [head])
        self._chain.update(head[56:])
        self.frames += 1
        self.end += HEADER_SIZE

    def undo(self) -> None:
        """Remove what a failed write may have left behind the end, durably."""
        if self.file.size() > self.end:
            self.file.truncate(self.end)
        self.allocated = 0
        self._sync()  # not a commit: the log's name, and logs before it, may still wait for theirs

    def sync(self, upto: int) -> None:
        """fdatasync; `upto` is the end as it was when the caller decided to sync."""
        self._sync()
        self.in_file = max(self.in_file, upto)
        self.synced = max(self.synced, upto)

    def _sync(self) -> None:
        if self._sync_failed:
            raise StorageError(f"an earlier sync of {self.path} failed", path=self.path)
        try:
            self.file.sync()
        except Exception:
            self._sync_failed = True  # for good: a second one would succeed and mean nothing
            raise

    def adopt(self, kept: scan.Verdict) -> None:
        """Take over what a walk over the file has found."""
        for position, header in kept.frames:
            self._chain.update(header.header_checksum.to_bytes(8, "little"))
            self.frames += 1
            if header.kind == frame.DATA:
                self.directory.add(
                    position, header.first_row, header.min_timestamp, header.max_timestamp
                )
                self.value_bytes += header.raw_size
        self.end = kept.end
        self.next_row = kept.rows
        self.damaged = bool(kept.corrupt)

    def extend(self, position: int) -> None:
        """Take in frames that another process has written up to `position`."""
        if position <= self.end:
            return
        seen = scan.walk(self.file, self.salt, self.end, size=position, bodies=False)
        if seen.flaws:
            raise self._corrupt(seen.flaws[0].position, seen.flaws[0].reason)
        self.adopt(scan.Verdict(seen.frames, position, self.next_row, [], None, 0))
        for _, header in seen.frames:
            self.next_row = max(self.next_row, header.first_row + header.count)

    # -- reading --

    def read(self, row: int, stop: int, max_bytes: int) -> tuple[int, Columns]:
        """Records from `row` on: at least one, of as many frames as fit in max_bytes."""
        directory = self.directory
        frames = len(directory.positions)
        first = bisect_right(directory.first_rows, row, 0, frames) - 1
        if first < 0:
            raise self._missing(row, stop)
        last = first + 1
        begin = directory.positions[first]
        limit = min(max_bytes, FRAME_BYTES_TARGET)
        while (  # small frames are read together, a large one alone
            last < frames
            and directory.first_rows[last] < stop
            and directory.positions[last] - begin < limit
            and directory.positions[last] - directory.positions[last - 1] < FRAME_MERGE_BELOW
        ):
            last += 1
        end = directory.positions[last] if last < frames else self.end
        data = memoryview(self.file.read(begin, end - begin))
        found = list(self._frames(data, begin))
        if not found or row >= found[0][1].first_row + found[0][1].count:
            after = found[1][1].first_row if len(found) > 1 else stop
            raise self._missing(row, after)
        take = _run(found)
        if take == 1:
            columns = merge.decode(found[0][1], found[0][2], self.path, found[0][0])
        else:
            columns = merge.merge(found[:take], self.path)
        return _cut(columns, found[0][1].first_row, row, stop)

    def _frames(self, data: memoryview, begin: int) -> Iterator[tuple[int, Header, Any]]:
        at, row = 0, -1
        while at < len(data):
            header = frame.decode_header(data, at, begin + at, self.salt)
            if isinstance(header, frame.Damage):
                if row >= 0:
                    return  # readable so far; the next read begins here and says what is wrong
                raise self._corrupt(begin + at, header.reason)
            body = data[at + HEADER_SIZE : at + HEADER_SIZE + header.body_size]
            if header.kind == frame.DATA:
                if row >= 0 and header.first_row != row:
                    return
                damage = frame.body_damage(header, body, self.salt)
                if damage is not None:
                    if row >= 0:
                        return
                    raise self._corrupt(begin + at, damage.reason, header)
                yield begin + at, header, body
                row = header.first_row + header.count
            at += header.size

    def _missing(self, row: int, stop: int) -> Corruption:
        base = self.header.base
        return Corruption(
            "records are damaged on disk", path=self.path, position=0,
            first=base + row, last=base + max(row, stop - 1), reason="corrupt",
        )  # fmt: skip

    def _corrupt(self, position: int, reason: str, header: Header | None = None) -> Corruption:
        at = bisect_right(self.directory.positions, position) - 1
        first = self.directory.first_rows[at] if at >= 0 else 0
        if header is not None:
            last = header.first_row + header.count
        else:
            rows = self.directory.first_rows
            last = rows[at + 1] if at + 1 < len(rows) else self.next_row
        base = self.header.base
        return Corruption(
            reason, path=self.path, position=position, first=base + first, last=base + last - 1
        )

    def at(self, row: int) -> tuple[Columns, int]:
        """The decoded frame that holds a row, and the row's place in it; for single look-ups."""
        frame_at = bisect_right(self.directory.first_rows, row) - 1
        first, columns = self._decoded
        if first != frame_at:
            row_of_frame = self.directory.first_rows[frame_at]
            _, columns = self.read(row_of_frame, self.next_row, 1)
            self._decoded = (frame_at, columns)
        place = row - self.directory.first_rows[frame_at]
        if place >= columns.count:
            self.read(row, row + 1, 1)  # damaged on disk: raises, and says where
        return columns, place

    def find_time(self, timestamp: int, stop: int) -> int:
        """The first row at or after a time; `stop` when there is none."""
        frames = len(self.directory.positions)
        at = bisect_left(self.directory.max_timestamps, timestamp, 0, frames)
        return _time_row(self, at, self.directory.first_rows, frames, timestamp, stop)

    # -- sealing --

    @property
    def high(self) -> int:
        """The largest timestamp up to the end of this segment."""
        highs = self.directory.max_timestamps
        return max(highs[-1], self.header.previous_high) if highs else self.header.previous_high

    def seal(
        self, files: Files, how: Compress = NO_COMPRESSION, *, merging: bool = True
    ) -> SealedSegment:
        """Make the sealed file. The log is synced first; the directory last."""
        self.trim()
        self.sync(self.end)
        folder = parent(self.path)
        target = join(
            folder, names.segment(self.header.segment, self.header.base, sealed=True)
        )
        small = self.end < FRAME_MERGE_BELOW * self.frames
        if merging and not self.damaged and self.frames > 2 and small:
            self._write_merged(files, target, how)
        else:
            self._write_footer()
            if files.kind(self.path):  # it has its new name when only the sync below had failed
                files.rename(self.path, target)
        files.sync_dir(folder)
        if files.kind(self.path):
            files.unlink(self.path)
        return SealedSegment.known(self.header, target)

    def _write_footer(self) -> None:
        directory = self.directory
        low, high = _times(directory)
        footer = Footer(
            self.next_row, self.end, self.value_bytes, self.chain, low, high,
            directory.positions, directory.first_rows,
            directory.min_timestamps, directory.max_timestamps,
        )  # fmt: skip
        parts = _footer_frame(footer, self.end, self.salt)
        hasher = Hasher()
        for position in range(0, self.end, _READ_PIECE):
            hasher.update(self.file.read(position, min(_READ_PIECE, self.end - position)))
        for part in parts:
            hasher.update(part)
        self.file.write(self.end, [*parts, fmt.encode_trailer(self.end, hasher.digest())])
        size = self.end + sum(map(len, parts)) + fmt.TRAILER_SIZE
        if self.file.size() > size:
            self.file.truncate(size)
        self.file.sync()

    def _write_merged(self, files: Files, target: str, how: Compress) -> None:
        temporary = target + names.TEMPORARY
        if files.kind(temporary):
            files.unlink(temporary)
        file = files.open(temporary, "create")
        try:
            begin = self.directory.positions[0] if self.directory.positions else self.end
            prefix = self.file.read(0, begin)  # header and CONFIG frame stay as they are
            hasher = Hasher()
            hasher.update(prefix)
            file.write(0, [prefix])
            merged, position, row = _Directory(), begin, 0
            while row < self.next_row:
                first, columns = self.read(row, self.next_row, FRAME_BYTES_TARGET)
                if first != row:
                    raise self._missing(row, first)
                for body in split(columns):
                    parts, size, _ = pack(body, position, self.salt, row, position, 0, how)
                    for part in parts:
                        hasher.update(part)
                    file.write(position, parts)
                    merged.add(position, row, body.min_timestamp, body.max_timestamp)
                    position += size
                    row += body.count
            low, high = _times(merged)
            footer = Footer(
                row, position, self.value_bytes, self.chain, low, high, merged.positions,
                merged.first_rows, merged.min_timestamps, merged.max_timestamps,
            )  # fmt: skip
            tail = _footer_frame(footer, position, self.salt)
            for part in tail:
                hasher.update(part)
            file.write(position, [*tail, fmt.encode_trailer(position, hasher.digest())])
            file.sync()
        finally:
            file.close()
        files.rename(temporary, target)

    def close(self) -> None:
        self.file.close()


def _footer_frame(footer: Footer, position: int, salt: int) -> list[bytes]:
    body = fmt.encode_footer(footer)
    head, _ = frame.encode_header(
        kind=frame.FOOTER, position=position, salt=salt, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, salt), first_row=footer.records, synced=position,
    )  # fmt: skip
    return [head, body, bytes(-len(body) & 7)]


def _times(directory: _Directory) -> tuple[int, int]:
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


def _run(found: list[tuple[int, Header, Any]]) -> int:
    """How many frames to hand out as one batch: small ones together, a large one alone."""
    total, take = 0, 0
    for _, header, _ in found:
        if take and (header.raw_size >= FRAME_MERGE_BELOW or total > FRAME_BYTES_TARGET):
            break
        take += 1
        total += header.raw_size
        if header.raw_size >= FRAME_MERGE_BELOW:
            break
    return take


def _cut(columns: Columns, first: int, row: int, stop: int) -> tuple[int, Columns]:
    skip = row - first
    count = min(columns.count, stop - first) - skip
    if skip or count < columns.count:
        columns = columns.slice(skip, count)
    return row, columns


def _time_row(
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


class SealedSegment:
    """An immutable segment. Nothing is read before it is asked for."""

    def __init__(self, path: str, name: names.SegmentName) -> None:
        self.path = path
        self.name = name
        self._header: SegmentHeader | None = None
        self._footer: Footer | None = None
        self._verified: bytearray = bytearray()
        self._maps: Maps | None = None

    @classmethod
    def known(cls, header: SegmentHeader, path: str) -> SealedSegment:
        segment = cls(path, names.SegmentName(header.segment, header.base, True))
        segment._header = header
        return segment

    def attach(self, maps: Maps) -> SealedSegment:
        """Tell the segment which cache holds its mapping."""
        self._maps = maps
        return self

    @property
    def header(self) -> SegmentHeader:
        if self._header is None:
            self._load()
        assert self._header is not None
        return self._header

    @property
    def footer(self) -> Footer:
        if self._footer is None:
            self._load()
        assert self._footer is not None
        return self._footer

    @property
    def base(self) -> int:
        return self.name.base

    @property
    def number(self) -> int:
        return self.name.segment

    @property
    def rows(self) -> int:
        return self.footer.records

    def data(self) -> Any:
        assert self._maps is not None, "a sealed segment is read through a map cache"
        return self._maps.get(self.path).data

    def _load(self) -> None:
        data = self.data()
        header = fmt.decode_header(bytes(data[: fmt.HEADER_SIZE]))
        if isinstance(header, str):
            if header.startswith("version"):
                raise FormatTooNew(f"{self.path} was written by a later Esker ({header})")
            raise Corruption(header, path=self.path, position=0)
        if (header.segment, header.base) != self.name[:2]:
            raise Corruption("a segment under another segment's name", path=self.path, position=0)
        footer = read_footer(data, header.salt)
        if isinstance(footer, str):
            footer = self._rebuild(data, header, footer)
        self._header, self._footer = header, footer
        self._verified = bytearray(len(footer.positions))

    def _rebuild(self, data: Any, header: SegmentHeader, reason: str) -> Footer:
        """A damaged footer costs a walk over the frames, not the data."""
        seen = scan.walk(_MappedFile(self.path, data), header.salt, fmt.HEADER_SIZE, bodies=False)
        directory, rows = _Directory(), 0
        for position, head in seen.frames:
            if head.kind != frame.DATA:
                continue
            if head.first_row != rows:
                raise Corruption(
                    f"{reason}, and frames are missing too", path=self.path, position=position,
                    first=header.base + rows, last=header.base + head.first_row - 1,
                )  # fmt: skip
            directory.add(position, rows, head.min_timestamp, head.max_timestamp)
            rows += head.count
        if not directory.positions or seen.frames[-1][1].flags & frame.MORE:
            raise Corruption(f"{reason}, and no frames can be found", path=self.path)
        low, high = _times(directory)
        self.rebuilt = reason
        return Footer(
            rows, seen.end, 0, 0, low, high, directory.positions, directory.first_rows,
            directory.min_timestamps, directory.max_timestamps,
        )  # fmt: skip

    rebuilt: str = ""  # why the directory had to be rebuilt, if it had

    def read(self, row: int, stop: int, max_bytes: int) -> tuple[int, Columns]:
        """Records from `row` on, standing on the mapping."""
        footer = self.footer
        at = bisect_right(footer.first_rows, row) - 1
        if at < 0:
            raise self._corrupt_before(footer, row)
        data = memoryview(self.data())
        take: list[tuple[int, Header, Any]] = []
        total = 0
        while at < len(footer.positions) and footer.first_rows[at] < stop:
            position = footer.positions[at]
            try:
                item = self._frame(data, at, position, footer)
            except Corruption:
                if not take:
                    raise
                break  # readable so far; the next read begins here and says what is wrong
            if take and (
                item[1].raw_size >= FRAME_MERGE_BELOW
                or item[1].first_row != take[-1][1].first_row + take[-1][1].count
            ):
                break
            take.append(item)
            total += item[1].raw_size
            if item[1].raw_size >= FRAME_MERGE_BELOW or total >= max_bytes:
                break
            at += 1
        if not take:
            raise Corruption(
                "a row beyond the segment's end", path=self.path, first=self.header.base + row,
                last=self.header.base + row,
            )  # fmt: skip
        first = take[0][1].first_row
        if row >= first + take[0][1].count:
            after = footer.first_rows[at] if at < len(footer.positions) else stop
            raise Corruption(
                "records are damaged on disk", path=self.path, position=take[0][0],
                first=self.header.base + row, last=self.header.base + max(row, after - 1),
            )  # fmt: skip
        if len(take) == 1:
            columns = merge.decode(take[0][1], take[0][2], self.path, take[0][0])
        else:
            columns = merge.merge(take, self.path)
        return _cut(columns, first, row, stop)

    def _frame(
        self, data: memoryview, at: int, position: int, footer: Footer
    ) -> tuple[int, Header, Any]:
        salt = self.header.salt
        header = frame.decode_header(data, position, position, salt)
        if isinstance(header, frame.Damage):
            raise self._corrupt(at, position, header.reason, footer)
        begin = position + HEADER_SIZE
        body = data[begin : begin + header.body_size]
        if not self._verified[at]:
            damage = frame.body_damage(header, body, salt)
            if damage is not None:
                raise self._corrupt(at, position, damage.reason, footer)
            if header.first_row != footer.first_rows[at]:
                raise self._corrupt(at, position, "frame and directory disagree", footer)
            self._verified[at] = 1
        return position, header, body

    def _corrupt(self, at: int, position: int, reason: str, footer: Footer) -> Corruption:
        rows, base = footer.first_rows, self.header.base
        last = rows[at + 1] if at + 1 < len(rows) else footer.records
        return Corruption(
            reason, path=self.path, position=position, first=base + rows[at], last=base + last - 1
        )

    def _corrupt_before(self, footer: Footer, row: int) -> Corruption:
        """The first frames of the segment are damaged, and the row is one of theirs."""
        base, first = self.header.base, footer.first_rows[0] if footer.first_rows else footer.records
        return Corruption(
            "records are damaged on disk", path=self.path, position=fmt.HEADER_SIZE,
            first=base + row, last=base + max(row, first - 1),
        )  # fmt: skip

    def at(self, row: int) -> tuple[Columns, int]:
        """The decoded frame that holds a row, and the row's place in it; for single look-ups."""
        assert self._maps is not None
        mapping = self._maps.get(self.path)
        footer = self.footer
        at = bisect_right(footer.first_rows, row) - 1
        if at < 0:
            raise self._corrupt_before(footer, row)
        columns = mapping.decoded.get(at)
        if columns is None:
            item = self._frame(memoryview(mapping.data), at, footer.positions[at], footer)
            columns = merge.decode(item[1], item[2], self.path, item[0])
            if len(mapping.decoded) >= DECODED_MAX:
                mapping.decoded.clear()
            mapping.decoded[at] = columns
        place = row - footer.first_rows[at]
        if place >= columns.count:
            self.read(row, row + 1, 1)  # damaged on disk: raises, and says where
        return columns, place

    def find_time(self, timestamp: int, stop: int) -> int:
        footer = self.footer
        frames = len(footer.positions)
        at = bisect_left(footer.max_timestamps, timestamp)
        return _time_row(self, at, footer.first_rows, frames, timestamp, stop)


class _MappedFile:
    """Mapped bytes behind the read side of a File, so that one walker serves both."""

    __slots__ = ("_data", "path")

    def __init__(self, path: str, data: Any) -> None:
        self.path = path
        self._data = memoryview(data)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])

    def size(self) -> int:
        return len(self._data)

    def write(self, position: int, parts: Sequence[Any]) -> None:
        raise TypeError("a mapped file is never written")

    def sync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def allocate(self, size: int) -> None: ...
    def map(self) -> Any:
        return self._data

    def close(self) -> None: ...


def read_footer(data: Any, salt: int) -> Footer | str:
    """The footer of a sealed file, or why there is none."""
    view = memoryview(data)
    trailer = fmt.decode_trailer(bytes(view[-fmt.TRAILER_SIZE :]))
    if isinstance(trailer, str):
        return trailer
    position = trailer[0]
    if position + HEADER_SIZE > len(view):
        return "the trailer points behind the file"
    header = frame.decode_header(view, position, position, salt)
    if isinstance(header, frame.Damage) or header.kind != frame.FOOTER:
        return "the footer frame is damaged"
    body = bytes(view[position + HEADER_SIZE : position + HEADER_SIZE + header.body_size])
    if frame.body_damage(header, body, salt) is not None:
        return "the footer does not match its checksum"
    return fmt.decode_footer(body)


def file_hash_matches(data: Any) -> bool:
    """The whole-file hash in the trailer, held against the file."""
    view = memoryview(data)
    trailer = fmt.decode_trailer(bytes(view[-fmt.TRAILER_SIZE :]))
    return not isinstance(trailer, str) and checksum(view[: -fmt.TRAILER_SIZE]) == trailer[1]


def open_log(files: Files, path: str, mode: Any = "rw") -> tuple[File, SegmentHeader | str]:
    """Open a log file and read its header."""
    file = files.open(path, mode)
    header = fmt.decode_header(file.read(0, fmt.HEADER_SIZE))
    return file, header
