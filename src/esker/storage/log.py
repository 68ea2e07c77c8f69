"""The log: a segment that is being written.

It is appended to, frame by frame, and read with pread up to what has been published; it is never
mapped, so it may be cut. Its directory is in memory. When it has its size it is sealed:

* frames that are large stay where they are: the footer is appended and the file renamed;
* small ones are merged into a copy beside it, which is synced and renamed, and the log deleted.

Either way the file called .seg is complete at the moment it has that name.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from esker.errors import Corruption, DiskFull, StorageError
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import Hasher, checksum
from esker.format.columns import Body, Columns
from esker.format.frame import HEADER_SIZE, Header
from esker.format.segment import Footer, SegmentHeader
from esker.options import FRAME_BYTES_TARGET, FRAME_JOIN_BELOW, FRAME_MERGE_BELOW
from esker.storage import merge, scan
from esker.storage.files import File, Files, join, parent, size_of
from esker.storage.pieces import Pieces
from esker.storage.sealed import SealedSegment
from esker.storage.segment import (
    NO_COMPRESSION,
    Compress,
    Directory,
    cut,
    footer_frame,
    frames_together,
    pack,
    split,
    time_range,
    time_row,
)

_READ_PIECE: Final = 1 << 20
ALLOCATE_FROM: Final = 1 << 20  # a log that is as long will be longer
ALLOCATE_MIN: Final = 64 << 10
ALLOCATE_MAX: Final = 8 << 20


class LogSegment:
    """A segment that is (or was, before a crash) being written."""

    header: SegmentHeader

    def __init__(self, header: SegmentHeader, file: File) -> None:
        self.header = header
        self.file = file
        self.path = file.path
        self.salt = header.salt
        self.named = True  # whether its name is durable
        self.directory = Directory()
        self.end = fmt.HEADER_SIZE  # position behind the last frame
        self.next_row = 0
        self.frames = 0
        self.synced = 0  # durable up to here, in the file or through the journal
        self.in_file = 0  # durable up to here in the file itself
        self.value_bytes = 0
        self.damaged = False
        self.allocated = 0  # room taken ahead of the end, zeros; 0 when none is
        self.sync_failed = False  # then nothing of it may be called durable any more
        self._decoded: tuple[int, Any] = (-1, None)  # the frame last looked into
        self._chain = Hasher()

    # -- writing --

    @classmethod
    def create(cls, files: Files, folder: str, header: SegmentHeader, config: bytes) -> LogSegment:
        """A new log with its header and CONFIG frame written, not yet synced."""
        path = join(folder, names.segment(header.segment, header.base, sealed=False))
        least = fmt.HEADER_SIZE + HEADER_SIZE + frame.padded(len(config))
        if files.kind(path) and size_of(files, path) <= least:
            files.unlink(path)  # of a creation that failed, and could not be undone either
        return cls.create_at(files, path, header, config)

    @classmethod
    def create_at(cls, files: Files, path: str, header: SegmentHeader, config: bytes) -> LogSegment:
        """The same under a name of the caller's choice."""
        file = files.open(path, "create")
        log = cls(header, file)
        log.named = False
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
            parts, size, head = pack(body, self.end, self.salt, self.next_row, self.synced, 0, how)
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
        position = self.end
        self.end = position + size  # first: who sees it knows that the books were opened
        self._chain.update(head[56:])
        self.directory.add(position, self.next_row, body.min_timestamp, body.max_timestamp)
        self.value_bytes += body.size
        self.frames += 1
        self.next_row += body.count

    def allocate_ahead(self, size: int, limit: int, early: bool) -> None:
        """Take room in growing steps: then a sync need not write a new file size each time, and a
        write need not look for blocks. For the latter alone only where a log is long already."""
        if self.end + size > self.allocated and (early or self.end >= ALLOCATE_FROM):
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
        if self.sync_failed:
            raise StorageError(f"an earlier sync of {self.path} failed", path=self.path)
        try:
            self.file.sync()
        except BaseException as problem:
            # For good: a second one would succeed and mean nothing. An interrupt says nothing of
            # the disk, unless it came while a failure was being told.
            if isinstance(problem, Exception) or problem.__context__ is not None:
                self.sync_failed = True
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
        last = first + 1  # the first frame behind the row
        behind = directory.first_rows[last] if last < frames else stop
        if first < 0:
            raise self._missing(row, behind)
        begin = directory.positions[first]
        limit = min(max_bytes, FRAME_BYTES_TARGET)
        while (  # small frames are read together, a large one alone
            last < frames
            and directory.first_rows[last] < stop
            and directory.positions[last] - begin < limit
            and directory.positions[last] - directory.positions[last - 1] < FRAME_JOIN_BELOW
        ):
            last += 1
        end = directory.positions[last] if last < frames else self.end
        data = memoryview(self.file.read(begin, end - begin))
        try:
            found = list(self._frames(data, begin))
        except Corruption as problem:
            if problem.last is None or problem.last >= self.base + row:
                raise
            raise self._missing(row, behind) from problem  # and so is what lies before it
        if not found or row >= found[0][1].first_row + found[0][1].count:
            raise self._missing(row, behind)
        take = frames_together(found)
        if take == 1:
            columns = merge.decode(found[0][1], found[0][2], self.path, found[0][0])
        else:
            columns = merge.merge(found[:take], self.path)
        return cut(columns, found[0][1].first_row, row, stop)

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
        return time_row(self, at, self.directory.first_rows, frames, timestamp, stop)

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
        if self.in_file < self.end:  # else it may be a second try, after a sync that failed
            self.sync(self.end)
        folder = parent(self.path)
        target = join(folder, names.segment(self.header.segment, self.header.base, sealed=True))
        small = self.frames > 2 and self.end < FRAME_MERGE_BELOW * self.frames
        if merging and not self.damaged and (small or (how.late and self.next_row)):
            size = self._write_merged(files, target, how)
        elif files.kind(self.path):
            size = self.write_footer()
            files.rename(self.path, target)
        else:  # it has its new name already, and is not written again: only the sync below failed
            size = self.file.size()
        files.sync_dir(folder)
        if files.kind(self.path):
            files.unlink(self.path)
        return SealedSegment.known(self.header, target, size)

    def write_footer(self) -> int:
        """Footer and trailer behind the frames, synced; returns the size of the file."""
        directory = self.directory
        low, high = time_range(directory)
        footer = Footer(
            self.next_row, self.end, self.value_bytes, self.chain, low, high,
            directory.positions, directory.first_rows,
            directory.min_timestamps, directory.max_timestamps,
        )  # fmt: skip
        parts = footer_frame(footer, self.end, self.salt)
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
        return size

    def _write_merged(self, files: Files, target: str, how: Compress) -> int:
        temporary = target + names.TEMPORARY
        if files.kind(temporary):
            files.unlink(temporary)
        file = files.open(temporary, "create")
        try:
            begin = self.directory.positions[0] if self.directory.positions else self.end
            pieces = Pieces(file)
            pieces.add([self.file.read(0, begin)])  # header and CONFIG frame stay as they are
            merged, position, row = Directory(), begin, 0
            while row < self.next_row:
                first, columns = self.read(row, self.next_row, FRAME_BYTES_TARGET)
                if first != row:
                    raise self._missing(row, first)
                for body in split(columns):
                    parts, size, _ = pack(body, position, self.salt, row, position, 0, how)
                    pieces.add(parts)
                    merged.add(position, row, body.min_timestamp, body.max_timestamp)
                    position += size
                    row += body.count
            low, high = time_range(merged)
            footer = Footer(
                row, position, self.value_bytes, self.chain, low, high, merged.positions,
                merged.first_rows, merged.min_timestamps, merged.max_timestamps,
            )  # fmt: skip
            pieces.add(footer_frame(footer, position, self.salt))
            pieces.add([fmt.encode_trailer(position, pieces.hasher.digest())])
            pieces.flush()
            file.sync()
        except StorageError:
            with suppress(StorageError):
                files.unlink(temporary)  # the room it takes may be the last there is
            raise
        finally:
            file.close()
        files.rename(temporary, target)
        return pieces.end

    def close(self) -> None:
        self.file.close()


def open_log(files: Files, path: str, mode: Any = "rw") -> tuple[File, SegmentHeader | str]:
    """Open a log file and read its header."""
    file = files.open(path, mode)
    header = fmt.decode_header(file.read(0, fmt.HEADER_SIZE))
    return file, header
