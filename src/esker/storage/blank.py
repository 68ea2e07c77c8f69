"""A sealed segment once more, without what its deleted records held.

    held         about how many bytes of the file that is
    copy_blank   the copy beside it, written and synced; it gets no name that counts

Rows keep their numbers, so offsets stay what they are. A deleted row keeps its time, so that times
are found as before, and is otherwise blank: an empty value, no key, no tag, no node, no headers.
Header and CONFIG frame stay byte for byte. As in a segment that was merged when it was sealed,
MARK frames are left out, frames do not say MORE, each carries its own position as `synced`, and the
footer keeps the chain hash and the bytes of the frames as they were first written. So the copy is
a sealed segment like any other, and nobody who reads or checks one needs a rule for it.

Blank rows lie together in large frames, which are compressed where they outweigh what is left in
them, whatever the topic's option says: a thousand of them take some tens of bytes, and their times.

Only a segment that is whole is copied: its own hash has to be right, and no HOLE may be in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from esker.errors import Corruption, StorageError
from esker.format import columns as cols
from esker.format import frame, names
from esker.format import segment as fmt
from esker.format.checksum import Hasher
from esker.format.columns import Columns
from esker.options import FRAME_BYTES_TARGET
from esker.storage import merge, scan
from esker.storage.files import File, Files
from esker.storage.marks import Marks
from esker.storage.sealed import Inside, MappedFile, SealedSegment, file_hash_matches
from esker.storage.segment import Compress, Directory, footer_frame, pack, split, time_range

ROW_BYTES: Final = 12  # that a row takes without its value: an offset and a time
_ZSTD: Final = Compress(frame.ZSTD)


class Piece(NamedTuple):
    """The records of one frame, and which of them are deleted; None for none of them."""

    columns: Columns
    dead: Any


def held(segment: SealedSegment, marks: Marks) -> int:
    """About how many bytes of a segment's file are those of deleted records."""
    data, inside = segment.inside()
    raw = dead = 0
    for header, piece in _pieces(segment, data, inside, marks):
        raw += header.raw_size
        if piece.dead is not None:
            dead += _bytes_of(piece.columns, piece.dead)
    footer = inside.footer
    stored = footer.data_end - footer.positions[0] if raw else 0
    return dead * stored // max(raw, 1)


def copy_blank(files: Files, segment: SealedSegment, marks: Marks, how: Compress) -> int:
    """Write the copy, under `temporary(segment)`, and sync it; returns its size."""
    data, inside = segment.inside()
    begin = _config_end(segment, data, inside)
    target = temporary(segment)
    if files.kind(target):
        files.unlink(target)
    file = files.open(target, "create")
    try:
        copy = _Copy(file, inside, bytes(data[:begin]))
        waiting: list[Piece] = []
        weight = 0
        for header, piece in _pieces(segment, data, inside, marks):
            if header.first_row != copy.row + sum(each.columns.count for each in waiting):
                raise Corruption("rows are missing", path=segment.path)
            left = piece if piece.dead is None else Piece(blank(*piece), piece.dead)
            waiting.append(left)
            weight += left.columns.nbytes + ROW_BYTES * left.columns.count
            if weight >= FRAME_BYTES_TARGET:
                copy.add(waiting, how)
                waiting, weight = [], 0
        if waiting:
            copy.add(waiting, how)
        return copy.finish()
    except BaseException:
        with suppress(StorageError):
            files.unlink(target)  # the room it takes may be the last there is
        raise
    finally:
        file.close()


def temporary(segment: SealedSegment) -> str:
    """The name of the copy while it is made."""
    return segment.path + names.TEMPORARY


def blank(columns: Columns, dead: Any) -> Columns:
    """The same rows at the same times; those that are dead hold nothing else."""
    count = columns.count
    row = pc.if_else(dead, pa.scalar(count, pa.int64()), pa.arange(0, count))

    def without(column: Any, nothing: Any) -> Any:
        if column is None:
            return None
        left = pa.concat_arrays([column, pa.array([nothing], column.type)]).take(row)
        if nothing is None:
            return None if left.null_count == count else left
        return None if column is columns.headers and not len(left.flatten()) else left

    return Columns(
        without(columns.values, b""),
        columns.timestamps,
        without(columns.keys, None),
        without(columns.tags, None),
        without(columns.nodes, None),
        without(columns.headers, []),
    )


def _bytes_of(columns: Columns, dead: Any) -> int:
    """How many bytes the dead rows hold."""
    plain = (columns.values, columns.keys, columns.tags, columns.nodes)
    total = sum(cols.value_bytes(each.filter(dead)) for each in plain if each is not None)
    if columns.headers is not None:
        flat = columns.headers.filter(dead).flatten()
        total += sum(cols.value_bytes(each) for each in flat.flatten())
    return total


def _config_end(segment: SealedSegment, data: Any, inside: Inside) -> int:
    """Where the CONFIG frame ends; raises Corruption unless the file is whole."""
    if inside.rebuilt or not file_hash_matches(data):
        raise Corruption("the file does not match its hash", path=segment.path)
    end, salt = inside.footer.data_end, inside.header.salt
    seen = scan.walk(MappedFile(data), salt, fmt.HEADER_SIZE, size=end, bodies=False)
    kinds = [header.kind for _, header in seen.frames]
    if seen.flaws or kinds[:1] != [frame.CONFIG] or frame.HOLE in kinds:
        raise Corruption("records of it are lost", path=segment.path)
    position, header = seen.frames[0]
    return position + header.size


def _pieces(
    segment: SealedSegment, data: Any, inside: Inside, marks: Marks
) -> Iterator[tuple[frame.Header, Piece]]:
    view, salt, base = memoryview(data), inside.header.salt, segment.base
    for position in inside.footer.positions:
        header = frame.decode_header(view, position, position, salt)
        if isinstance(header, frame.Damage):
            raise Corruption(header.reason, path=segment.path, position=position)
        begin = position + frame.HEADER_SIZE
        body = view[begin : begin + header.body_size]
        damage = frame.body_damage(header, body, salt)
        if damage is not None:
            raise Corruption(damage.reason, path=segment.path, position=position)
        columns = merge.decode(header, body, segment.path, position)
        dead = marks.mask(base + header.first_row, header.count)
        yield header, Piece(columns, dead if dead is not None and pc.any(dead).as_py() else None)


class _Copy:
    """A sealed segment that is being written."""

    def __init__(self, file: File, inside: Inside, prefix: bytes) -> None:
        self._file = file
        self._inside = inside
        self._directory = Directory()
        self._hasher = Hasher()
        self._position = 0
        self.row = 0
        self._write([prefix])

    def _write(self, parts: list[Any]) -> None:
        for part in parts:
            self._hasher.update(part)
        self._file.write(self._position, parts)
        self._position += sum(map(len, parts))

    def add(self, pieces: list[Piece], how: Compress) -> None:
        """Frames of the records of several pieces."""
        columns = cols.concat([piece.columns for piece in pieces])
        dead = sum(pc.sum(piece.dead).as_py() for piece in pieces if piece.dead is not None)
        if dead * ROW_BYTES > columns.nbytes:
            how = _ZSTD
        salt = self._inside.header.salt
        for body in split(columns):
            at = self._position
            parts, size, _ = pack(body, at, salt, self.row, at, 0, how)
            self._write(parts)
            assert self._position == at + size
            self._directory.add(at, self.row, body.min_timestamp, body.max_timestamp)
            self.row += body.count

    def finish(self) -> int:
        """Footer and trailer, synced; returns the size of the file."""
        old, made, end = self._inside.footer, self._directory, self._position
        low, high = time_range(made)
        if (self.row, low, high) != (old.records, old.min_timestamp, old.max_timestamp):
            raise Corruption("rows or times are missing", path=self._file.path)
        footer = old._replace(
            data_end=end, positions=made.positions, first_rows=made.first_rows,
            min_timestamps=made.min_timestamps, max_timestamps=made.max_timestamps,
        )  # fmt: skip
        self._write(footer_frame(footer, end, self._inside.header.salt))
        self._write([fmt.encode_trailer(end, self._hasher.digest())])
        self._file.sync()
        return self._position
