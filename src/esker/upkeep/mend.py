"""Segment files made anew: with a hole where frames are damaged, with another header, or empty.

A sealed file is never changed in place (a reader may have it mapped): the new one is written
beside it, synced, read back, and renamed over it. Good frames keep their bytes, their rows and, but
for one case that no disk can cause, their positions. A log is not mapped by anybody, and whoever
mends it holds its writer lock; its header alone may be written again where it stands.

`Evidence` keeps what was there before. Nothing is replaced or removed before its copy is safe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from esker.errors import StorageError
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.catalog import TopicEntry, encode_config
from esker.format.checksum import Hasher, checksum
from esker.format.frame import Header
from esker.format.segment import Footer, SegmentHeader
from esker.storage.files import File, Files, join, parent
from esker.storage.hole import encode_hole
from esker.upkeep.examine import PIECE, Examined, Flaw, Source

_SALT: Final = 72  # where the salt stands in a segment's header


class Evidence:
    """The quarantine: copies and originals of all that a repair touches."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._folder = join(root, names.QUARANTINE)

    def copy(self, path: str, why: str) -> str:
        """Keep a copy; returns where it lies. The same bytes are not kept twice."""
        self._make_folder()
        source = self._files.open(path, "r")
        try:
            target, there = self._place(path, why, source)
            if not there:
                copy_file(self._files, source, target)
        finally:
            source.close()
        self._files.sync_dir(self._folder)
        return target

    def move(self, path: str, why: str) -> str:
        """Take a file or a directory away; returns where it lies."""
        self._make_folder()
        target, _ = self._place(path, why, None)
        self._files.rename(path, target)
        self._files.sync_dir(self._folder)
        self._files.sync_dir(parent(path))
        return target

    def _make_folder(self) -> None:
        self._files.make_dir(self._folder)
        self._files.sync_dir(self._root)  # or a power cut takes it, with all that was put into it

    def _place(self, path: str, why: str, source: File | None) -> tuple[str, bool]:
        inside = path[len(self._root) :].strip("/").replace("/", "-")
        plain = target = join(self._folder, f"{inside}.{why}")
        serial = 1
        while self._files.kind(target):
            if source is not None and self._same(source, target):
                return target, True
            serial += 1
            target = f"{plain}.{serial}"
        return target, False

    def _same(self, source: File, target: str) -> bool:
        if self._files.kind(target) != "file":
            return False
        other = self._files.open(target, "r")
        try:
            size = source.size()
            if other.size() != size:
                return False
            mine, theirs = Source(source, size), Source(other, size)
            return all(
                mine.read(at, PIECE) == theirs.read(at, PIECE) for at in range(0, size, PIECE)
            )
        finally:
            other.close()


def copy_file(files: Files, source: File, target: str) -> None:
    """A file's bytes under another name, synced."""
    size = source.size()
    reading = Source(source, size)
    file = files.open(target, "create")
    try:
        for position in range(0, size, PIECE):
            file.write(position, [reading.read(position, PIECE)])
        file.sync()
    finally:
        file.close()


# ---- writing a sealed segment ----------------------------------------------------------------


class SegmentWriter:
    """Writes one sealed segment from its first byte to its trailer, under a temporary name."""

    def __init__(self, files: Files, folder: str, header: SegmentHeader) -> None:
        self._files = files
        self.header = header
        self.target = join(folder, names.segment(header.segment, header.base, sealed=True))
        self._temporary = self.target + names.TEMPORARY
        if files.kind(self._temporary):
            files.unlink(self._temporary)
        self._file = files.open(self._temporary, "create")
        self.end = 0
        self.positions: list[int] = []
        self._shifted = False
        self._put(fmt.encode_header(header))

    def _put(self, data: bytes) -> None:
        self._file.write(self.end, [data])
        self.end += len(data)

    def config(self, entry: TopicEntry, blanks: int = 0) -> None:
        self._put(config_frame(entry, self.end, self.header.salt, blanks))

    def hole(self, size: int, first_row: int, rows: int) -> None:
        self._put(encode_hole(self.end, self.end + size, self.header.salt, first_row, rows))

    def frames(self, source: Source, start: int, end: int, positions: Iterable[int]) -> None:
        """Take over good frames [start, end); `positions` are those of the data frames."""
        shift = self.end - start
        self.positions += [position + shift for position in positions]
        if not shift:
            for position in range(start, end, PIECE):
                self._put(source.read(position, min(PIECE, end - position)))
            return
        position, self._shifted = start, True
        while position < end:  # never seen on a disk: rows were lost, and no byte was
            header = source.header(position, self.header.salt)
            assert isinstance(header, Header)
            self._put(_moved(header, self.end, self.header.salt))
            self._put(source.read(position + frame.HEADER_SIZE, header.size - frame.HEADER_SIZE))
            position += header.size

    def clear_padding(self, position: int) -> None:
        """Zeros up to the next multiple of 8, where there were others."""
        if not self._shifted:
            self._file.write(position, [bytes(-position & 7)])

    def finish(self, footer: Footer) -> None:
        """Footer, trailer, sync; then the file gets its name, replacing what has it."""
        try:
            body = fmt.encode_footer(footer)
            head, _ = frame.encode_header(
                kind=frame.FOOTER, position=self.end, salt=self.header.salt, body_size=len(body),
                raw_size=len(body), body_checksum=checksum(body, self.header.salt),
                first_row=footer.records, synced=self.end,
            )  # fmt: skip
            place = self.end
            self._put(head + body + bytes(-len(body) & 7))
            self._put(fmt.encode_trailer(place, self._hash()))
            self._file.sync()
        finally:
            self._file.close()
        self._files.rename(self._temporary, self.target)
        self._files.sync_dir(parent(self.target))

    def _hash(self) -> int:
        hasher = Hasher()
        for position in range(0, self.end, PIECE):
            hasher.update(self._file.read(position, min(PIECE, self.end - position)))
        return hasher.digest()


def config_frame(entry: TopicEntry, position: int, salt: int, blanks: int = 0) -> bytes:
    """The CONFIG frame that a segment begins with."""
    body = encode_config(entry) + b" " * blanks
    head, _ = frame.encode_header(
        kind=frame.CONFIG, position=position, salt=salt, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, salt),
    )  # fmt: skip
    return head + body + bytes(-len(body) & 7)


def _moved(header: Header, position: int, salt: int) -> bytes:
    encoded, _ = frame.encode_header(
        kind=header.kind, position=position, salt=salt, body_size=header.body_size,
        body_checksum=header.body_checksum, raw_size=header.raw_size, codec=header.codec,
        columns=header.columns, count=header.count, first_row=header.first_row,
        min_timestamp=header.min_timestamp, max_timestamp=header.max_timestamp,
        synced=min(header.synced, position), flags=header.flags,
    )  # fmt: skip
    return encoded


def write_anew(
    files: Files, folder: str, seen: Examined, header: SegmentHeader, entry: TopicEntry, chain: int,
    fetched: Source | None = None,
) -> str:  # fmt: skip
    """A segment written again as a sealed one: good frames as they are, holes between them.

    Its bytes are those of its file, unless they were fetched from elsewhere.
    """
    file = files.open(seen.path, "r")
    try:
        source = fetched or Source(file, seen.size)
        writer = SegmentWriter(files, folder, header)
        cursor, taken = fmt.HEADER_SIZE, 0
        positions = seen.directory.positions
        for flaw in seen.damage:
            upto = taken
            while upto < len(positions) and positions[upto] < flaw.position:
                upto += 1
            writer.frames(source, cursor, flaw.position, positions[taken:upto])
            taken = upto
            _fill(writer, flaw, entry, free=flaw.end >= seen.end or flaw.end == flaw.position)
            cursor = flaw.end
        if cursor == seen.end == fmt.HEADER_SIZE and not seen.damage:
            writer.config(entry)  # there is nothing but a header
        end = max(cursor, seen.end)
        writer.frames(source, cursor, end, positions[taken:])
        for position in seen.untidy:
            writer.clear_padding(position)
    finally:
        file.close()
    writer.finish(_footer(seen, writer, chain))
    return writer.target


def _fill(writer: SegmentWriter, flaw: Flaw, entry: TopicEntry, *, free: bool) -> None:
    """Something in the place of what is damaged; of the same size, unless the size is free."""
    size = (flaw.end - flaw.position + 7) & -8
    if flaw.position == fmt.HEADER_SIZE:
        config = len(config_frame(entry, flaw.position, 0))
        left = size - config
        if free or left >= frame.HEADER_SIZE or (left >= 0 and not flaw.rows):
            blanks = 0 if free or left >= frame.HEADER_SIZE else left  # JSON may end in them
            writer.config(entry, blanks)
            size = max(0, left - blanks)
    if size or flaw.rows:
        writer.hole(max(size, frame.HEADER_SIZE), flaw.first, flaw.rows)


def _footer(seen: Examined, writer: SegmentWriter, chain: int) -> Footer:
    built = seen.directory
    low = min(built.lows, default=0)
    high = built.highs[-1] if built.highs else 0
    size = seen.footer.value_bytes if seen.footer is not None else seen.raw_bytes
    return Footer(
        seen.rows, writer.end, size, chain, low, high, writer.positions, built.first_rows,
        built.lows, built.highs,
    )  # fmt: skip


def write_placeholder(files: Files, folder: str, header: SegmentHeader, entry: TopicEntry) -> int:
    """A sealed segment without records; returns its chain hash."""
    writer = SegmentWriter(files, folder, header)
    config = config_frame(entry, writer.end, header.salt)
    writer.config(entry)
    chain = checksum(config[56:64])
    writer.finish(Footer(0, writer.end, 0, chain, 0, 0, [], [], [], []))
    return chain


def replace_header(files: Files, seen: Examined, header: SegmentHeader) -> None:
    """The same file with another header. What is wrong with it otherwise stays as it is."""
    if not seen.name.sealed:
        write_header(files, seen.path, header)
        return
    temporary = seen.path + names.TEMPORARY
    if files.kind(temporary):
        files.unlink(temporary)
    source = files.open(seen.path, "r")
    try:
        copy_file(files, source, temporary)
    finally:
        source.close()
    write_header(files, temporary, header)
    files.rename(temporary, seen.path)
    files.sync_dir(parent(seen.path))


def write_header(files: Files, path: str, header: SegmentHeader) -> None:
    """Another header, in place: for a log, whose writer lock the caller holds, or a new file."""
    file = files.open(path, "rw")
    try:
        file.write(0, [fmt.encode_header(header)])
        file.sync()
    finally:
        file.close()


# ---- a header that cannot be read ------------------------------------------------------------


def restored_header(
    files: Files, seen: Examined, entry: TopicEntry, number: int, store: bytes,
    before: Examined | None, after: Examined | None,
) -> SegmentHeader | None:  # fmt: skip
    """The header of a segment whose own is damaged, or None when its frames cannot be read.

    A single flipped bit is found by trying. Otherwise the header is put together from the file's
    name, the catalog and the segments on both sides; only the salt cannot be guessed, and must
    verify the frames: it is taken from the damaged header itself or from the segment behind.
    """
    name = seen.name
    file = files.open(seen.path, "r")
    try:
        source = Source(file, seen.size)
        data = bytes(source.at(0, fmt.HEADER_SIZE)).ljust(fmt.HEADER_SIZE, b"\0")
        exact = one_bit_off(data)
        if exact is not None and (exact.segment, exact.base) == name[:2]:
            return exact
        salt = _salt(source, data, after)
    except StorageError:
        return None
    finally:
        file.close()
    if salt is None:
        return None
    follows = before is not None and before.name.segment == name.segment - 1
    known = before.header if before is not None and follows else None
    end = before.next_offset if known is not None and before is not None else name.base
    return SegmentHeader(
        store=store, topic=entry.id, shard=number, epoch=entry.epoch, segment=name.segment,
        base=name.base, created=entry.created, salt=salt, previous_end=end,
        previous_chain=before.chain_hash if known is not None and before is not None else 0,
        previous_salt=known.salt if known is not None else 0,
        previous_high=before.high if known is not None and before is not None else 0,
        gap=fmt.GAP_CORRUPT if name.base > end else 0,
    )  # fmt: skip


def one_bit_off(data: bytes) -> SegmentHeader | None:
    """The header that differs from these bytes in one bit."""
    for position in range(fmt.HEADER_SIZE):
        for bit in range(8):
            tried = bytearray(data)
            tried[position] ^= 1 << bit
            found = fmt.decode_header(bytes(tried))
            if isinstance(found, SegmentHeader):
                return found
    return None


def _salt(source: Source, data: bytes, after: Examined | None) -> int | None:
    there = int.from_bytes(data[_SALT : _SALT + 8], "little")
    likely = [there]
    if after is not None and after.header is not None:
        likely.insert(0, after.header.previous_salt)
    for salt in likely:
        if source.next_frame(fmt.HEADER_SIZE, source.size, salt) < source.size:
            return salt
    for bit in range(64):  # damage elsewhere in the header, and one bit of the salt
        salt = there ^ 1 << bit
        if isinstance(source.header(fmt.HEADER_SIZE, salt), Header):
            return salt
    return None
