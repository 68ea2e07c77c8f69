"""Sealed segments: immutable, mapped, read without copying.

Nothing is read before it is asked for: the name tells number and base offset, the footer is loaded
with the first read, and a frame's checksum is verified when it is first touched. Should the footer
be damaged, the directory is rebuilt from the frames, and `rebuilt` says why.

A segment may be replaced by one that lacks what was deleted (see engine/rewriting.py): same rows,
same times, other positions. So a directory is used only with the bytes that it was loaded from:
whoever reads takes both at once, by `inside`. Which of the two files a directory belongs to is told
by its size and its last bytes, which have its hash. What else a footer says holds for both.

Or by a *stub*, which says where the whole file lies (format/place.py, engine/tiering.py). Header
and footer come from the stub then, and what needs frames is given the bytes of the whole file,
fetched when they are first asked for. Should a cold store not have them, the stub is looked at once
more: it may have been replaced since, by the segment itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from esker.errors import ColdUnavailable, Corruption, FormatTooNew
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.format.columns import Columns
from esker.format.frame import HEADER_SIZE, Header
from esker.format.place import Place, find_place
from esker.format.segment import Footer, SegmentHeader
from esker.options import FRAME_JOIN_BELOW
from esker.storage import merge, scan
from esker.storage.files import Files
from esker.storage.maps import Mapping, Maps
from esker.storage.segment import Directory, cut, time_range, time_row

DECODED_MAX: Final = 1024  # decoded frames kept a mapping; they hold pointers, not data
HEAD_BYTES: Final = 4096  # of a stub: header, CONFIG and PLACE are in them


class Inside(NamedTuple):
    """What a sealed file says of itself."""

    size: int  # of the file
    tail: bytes  # the last bytes of it
    header: SegmentHeader
    footer: Footer
    verified: bytearray  # one byte a frame: whether its checksum was found right
    rebuilt: str = ""  # why the directory had to be rebuilt, if it had
    place: Place | None = None  # where the whole file lies, if this is a stub


class SealedSegment:
    """An immutable segment. Nothing is read before it is asked for."""

    looked: Callable[[], None] | None = None
    """Called before records of a file are shown that was not looked into before."""

    def __init__(self, path: str, name: names.SegmentName) -> None:
        self.path = path
        self.name = name
        self.size = 0  # of the whole segment, wherever it lies; known to who sealed it
        self.local_size = 0  # of the file that is here
        self.pinned = False  # it was brought back by hand, and is to stay
        self.weighed = 0  # how many deleted rows it had when it was last looked at, or rewritten
        self._header: SegmentHeader | None = None
        self._inside: Inside | None = None
        self._shown: Inside | None = None
        self._maps: Maps | None = None
        self._owner: fmt.Owner | None = None

    @classmethod
    def known(cls, header: SegmentHeader, path: str, size: int) -> SealedSegment:
        segment = cls(path, names.SegmentName(header.segment, header.base, True))
        segment._header = header
        segment.size = segment.local_size = size
        return segment

    def attach(self, maps: Maps, owner: fmt.Owner | None = None) -> SealedSegment:
        """Tell the segment which cache holds its mapping, and whose it has to be."""
        self._maps = maps
        self._owner = owner
        return self

    @property
    def header(self) -> SegmentHeader:
        if self._header is None:
            self._header = self.local()[1].header
        return self._header

    @property
    def footer(self) -> Footer:
        known = self._inside or self.local()[1]
        return known.footer

    @property
    def rebuilt(self) -> str:
        """Why the directory had to be rebuilt, if it had."""
        return "" if self._inside is None else self._inside.rebuilt

    @property
    def base(self) -> int:
        return self.name.base

    @property
    def number(self) -> int:
        return self.name.segment

    @property
    def rows(self) -> int:
        return self.footer.records

    @property
    def cold(self) -> bool:
        """Whether it lay elsewhere when it was last looked into; False if it never was."""
        return self._inside is not None and self._inside.place is not None

    @property
    def place(self) -> Place | None:
        """Where the whole segment lies, if not here."""
        return self.local()[1].place

    def data(self) -> Any:
        """The bytes of the file that is here, a stub's if it is one."""
        assert self._maps is not None, "a sealed segment is read through a map cache"
        return self._maps.get(self.path).data

    def inside(self) -> tuple[Any, Inside]:
        """The bytes of the segment, and what they say: never those of one with the other's."""
        mapping, inside = self._look()
        return mapping.data, inside

    def local(self) -> tuple[Mapping, Inside]:
        """The file that is here, which may be a stub, and what it says."""
        assert self._maps is not None, "a sealed segment is read through a map cache"
        mapping, inside = self._maps.get(self.path), self._inside
        if inside is None or inside.size != len(mapping.data) or inside.tail != mapping.tail:
            inside = self._inside = self._load(mapping)
        return mapping, inside

    def _look(self) -> tuple[Mapping, Inside]:
        """The segment, wherever it lies."""
        while True:
            mapping, inside = self.local()
            if inside.place is None:
                return mapping, inside
            try:
                return self._fetch(inside.place), inside
            except (ColdUnavailable, Corruption) as problem:
                if not self._moved(inside):
                    raise self._told(problem, inside.footer.records) from problem

    def _fetch(self, place: Place) -> Mapping:
        assert self._maps is not None
        return self._maps.cold.get(place)

    def _moved(self, inside: Inside) -> bool:
        """Whether the file that is here is another one by now."""
        assert self._maps is not None
        self._maps.drop(self.path)
        return self.local()[1].place != inside.place

    def _told(self, problem: ColdUnavailable | Corruption, rows: int) -> Exception:
        """What a cold store did, with the offsets that it stands for."""
        first, last = self.base, self.base + rows - 1
        if isinstance(problem, Corruption):
            return Corruption(problem.reason, path=problem.path, first=first, last=last)
        return ColdUnavailable(
            f"offsets {first}..{last}: {problem}",
            root=problem.root, key=problem.key, missing=problem.missing,
        )  # fmt: skip

    def _show(self) -> tuple[Mapping, Inside]:
        """The same for who shows records: another file may lack what was deleted meanwhile."""
        mapping, inside = self._look()
        if inside is not self._shown:
            if self.looked is not None:
                self.looked()
            self._shown = inside
        return mapping, inside

    def replaced(self, local_size: int, size: int = 0) -> None:
        """The file was replaced by one that says the same of all that is there.

        `size` is that of the whole segment, where the file is but a stub.
        """
        assert self._maps is not None
        self._maps.drop(self.path)
        self.size, self.local_size = size or local_size, local_size
        self._inside = None

    def _load(self, mapping: Mapping) -> Inside:
        data = mapping.data
        header = fmt.decode_header(bytes(data[: fmt.HEADER_SIZE]))
        if isinstance(header, str):
            if header.startswith("version"):
                raise FormatTooNew(f"{self.path} was written by a later Esker ({header})")
            raise Corruption(header, path=self.path, position=0)
        wrong = fmt.misplaced(header, *self.name[:2], self._owner)
        if wrong:
            raise Corruption(wrong, path=self.path, position=0)
        place = find_place(data, header.salt)
        footer, rebuilt = read_footer(data, header.salt), ""
        if isinstance(footer, str) and place is not None:  # the whole segment has it, too
            rebuilt = footer
            data = self._fetch(place).data
            footer = read_footer(data, header.salt)
        if isinstance(footer, str):
            rebuilt, footer = footer, self._rebuild(data, header, footer)
        verified = bytearray(len(footer.positions))
        return Inside(len(mapping.data), mapping.tail, header, footer, verified, rebuilt, place)

    def _rebuild(self, data: Any, header: SegmentHeader, reason: str) -> Footer:
        """A damaged footer costs a walk over the frames, not the data."""
        seen = scan.walk(MappedFile(data), header.salt, fmt.HEADER_SIZE, bodies=False)
        directory, rows, frames = Directory(), 0, list(seen.frames)
        while frames and frames[-1][1].flags & frame.MORE:
            frames.pop()  # the rest of the batch is lost, and a batch is handed out as a whole
        for position, head in frames:
            if head.kind == frame.DATA:
                directory.add(position, head.first_row, head.min_timestamp, head.max_timestamp)
            rows = max(rows, head.first_row + head.count)  # holes, and a footer's count, too
        if not frames:
            raise Corruption(f"{reason}, and no frames can be found", path=self.path)
        low, high = time_range(directory)
        return Footer(
            rows, seen.end, 0, 0, low, high, directory.positions, directory.first_rows,
            directory.min_timestamps, directory.max_timestamps,
        )  # fmt: skip

    def read(self, row: int, stop: int, max_bytes: int) -> tuple[int, Columns]:
        """Records from `row` on, standing on the mapping."""
        mapping, inside = self._show()
        footer = inside.footer
        at = bisect_right(footer.first_rows, row) - 1
        if at < 0:
            raise self._corrupt_before(footer, row)
        data = memoryview(mapping.data)
        take: list[tuple[int, Header, Any]] = []
        total, positions = 0, footer.positions
        while at < len(positions) and footer.first_rows[at] < stop:
            position, following = positions[at], positions[min(at + 1, len(positions) - 1)]
            if take and total + following - position > max_bytes:
                break
            try:
                item = self._frame(data, at, position, inside)
            except Corruption:
                if not take:
                    raise
                break  # readable so far; the next read begins here and says what is wrong
            if take and (
                item[1].raw_size >= FRAME_JOIN_BELOW
                or item[1].first_row != take[-1][1].first_row + take[-1][1].count
            ):
                break
            take.append(item)
            total += item[1].raw_size
            if item[1].raw_size >= FRAME_JOIN_BELOW or total >= max_bytes:
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
        return cut(columns, first, row, stop)

    def _frame(
        self, data: memoryview, at: int, position: int, inside: Inside
    ) -> tuple[int, Header, Any]:
        salt, footer = inside.header.salt, inside.footer
        header = frame.decode_header(data, position, position, salt)
        if isinstance(header, frame.Damage):
            raise self._corrupt(at, position, header.reason, footer)
        begin = position + HEADER_SIZE
        body = data[begin : begin + header.body_size]
        if not inside.verified[at]:
            damage = frame.body_damage(header, body, salt)
            if damage is not None:
                raise self._corrupt(at, position, damage.reason, footer)
            if header.first_row != footer.first_rows[at]:
                raise self._corrupt(at, position, "frame and directory disagree", footer)
            inside.verified[at] = 1
        return position, header, body

    def _corrupt(self, at: int, position: int, reason: str, footer: Footer) -> Corruption:
        rows, base = footer.first_rows, self.header.base
        last = rows[at + 1] if at + 1 < len(rows) else footer.records
        return Corruption(
            reason, path=self.path, position=position, first=base + rows[at], last=base + last - 1
        )

    def _corrupt_before(self, footer: Footer, row: int) -> Corruption:
        """The first frames of the segment are damaged, and the row is one of theirs."""
        base = self.header.base
        first = footer.first_rows[0] if footer.first_rows else footer.records
        return Corruption(
            "records are damaged on disk", path=self.path, position=fmt.HEADER_SIZE,
            first=base + row, last=base + max(row, first - 1),
        )  # fmt: skip

    def at(self, row: int) -> tuple[Columns, int]:
        """The decoded frame that holds a row, and the row's place in it; for single look-ups."""
        mapping, inside = self._show()
        footer = inside.footer
        at = bisect_right(footer.first_rows, row) - 1
        if at < 0:
            raise self._corrupt_before(footer, row)
        columns = mapping.decoded.get(at)
        if columns is None:
            item = self._frame(memoryview(mapping.data), at, footer.positions[at], inside)
            columns = merge.decode(item[1], item[2], self.path, item[0])
            if len(mapping.decoded) >= DECODED_MAX:
                mapping.decoded.clear()
            mapping.decoded[at] = columns
        place = row - footer.first_rows[at]
        if place >= columns.count:
            self.read(row, row + 1, 1)  # damaged on disk: raises, and says where
        return columns, place

    def find_time(self, timestamp: int, stop: int) -> int:
        while True:
            footer = self.footer
            frames = len(footer.positions)
            at = bisect_left(footer.max_timestamps, timestamp)
            row = time_row(self, at, footer.first_rows, frames, timestamp, stop)
            if self.footer is footer:  # else frames begin at other rows now, and some were missed
                return row


def sizes_of(files: Files, path: str) -> tuple[int, int]:
    """The size of a sealed segment, and of its file here, which is another if that is a stub."""
    file = files.open(path, "r")
    try:
        local, data = file.size(), file.read(0, HEAD_BYTES)
        header = fmt.decode_header(data[: fmt.HEADER_SIZE])
        if isinstance(header, str):
            return local, local
        place = find_place(data, header.salt)
    finally:
        file.close()
    return (local if place is None else place.size), local


class MappedFile:
    """Mapped bytes behind the read side of a File, so that one walker serves both."""

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])

    def size(self) -> int:
        return len(self._data)


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
