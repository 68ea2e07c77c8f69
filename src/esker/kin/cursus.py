"""cursus: `partition_{id}_segment_{n}.log`, and nothing beside it. Big-endian.

    message    length u32, payload
    segment    1 MB (1,048,576 bytes) at most; a larger message has one for itself

    <root>/<topic>/partition_0_segment_0.log

There is no offset, no time and no checksum. The number of a message is how many there are before
it, here in the whole partition (cursus counts inside of one segment). So all headers before a
message must be looked at to know its number, and behind damage nothing can be numbered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from esker.format.columns import Columns
from esker.kin import hops
from esker.kin.family import Flaw, Kind, Part, Piece, SegmentWriter, Shards, must_be_new
from esker.storage.files import Files, join

HEADER: Final = 4
SEGMENT_BYTES: Final = 1_048_576
_NAME: Final = re.compile(r"partition_(0|[1-9]\d{0,8})_segment_(0|[1-9]\d{0,17})\.log")


def message(payload: bytes) -> bytes:
    """One message."""
    return len(payload).to_bytes(4, "big") + payload


def encode(values: Any) -> memoryview:
    """Messages, one behind the other."""
    return hops.joined(
        [hops.fixed(hops.packed(hops.lengths(values), 4, ">"), 4, len(values)), values]
    )


def decode(data: memoryview, at: int = 0, first: int = 0) -> tuple[Piece | None, bool, int]:
    """The messages of a stretch, whether one that is not whole ended it, and where."""
    found = hops.hop(data, at, len(data), ">", HEADER, HEADER)
    if not found.starts:
        return None, found.torn, found.end
    begin = hops.integers(found.starts, at)
    values = hops.Pieces(data, at, found.end, [begin, hops.plus(begin, HEADER)]).column(1)
    return Piece(Columns(values, 0), first, found.end), found.torn, found.end


def read_messages(data: memoryview, offset: int, most: int) -> list[bytes]:
    """As cursus reads: so many messages of a segment, behind the first `offset` of them."""
    found: list[bytes] = []
    at = 0
    while at < len(data) and len(found) < most:
        piece, torn, at = decode(data, at)
        if piece is not None:
            values = piece.columns.values
            found += values.slice(min(offset, len(values)), most - len(found)).to_pylist()
            offset = max(0, offset - len(values))
        if torn:
            break
    return found


class Cursus(Kind):
    """A log directory of cursus."""

    name = "cursus"
    max_record = (1 << 31) - 64

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        found: dict[str, Shards] = {}
        for topic in sorted(files.list(root)):
            folder = join(root, topic)
            if files.kind(folder) != "dir":
                continue
            numbers: dict[int, list[int]] = {}
            for name in files.list(folder):
                if match := _NAME.fullmatch(name):
                    numbers.setdefault(int(match[1]), []).append(int(match[2]))
            if numbers:
                found[topic] = {
                    shard: _parts(folder, shard, sorted(numbers[shard]))
                    for shard in sorted(numbers)
                }
        return found

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        if part.extra:
            yield Flaw("corrupt", part.path, 0, part.extra)
            return
        while at < len(data):
            piece, torn, at = decode(data, at, first)
            if piece is not None:
                yield piece
                first = piece.end
            if torn:
                if part.last:
                    yield Flaw("torn", part.path, at, "the last message is not whole")
                else:
                    text = "a message is not whole, and other segments follow"
                    yield Flaw("corrupt", part.path, at, text)
                return

    def end(self, files: Files, part: Part, data: memoryview, first: int) -> int:
        at, size = 0, len(data)
        while at < size and not part.extra:
            found = hops.hop(data, at, size, ">", HEADER, HEADER)
            first += len(found.starts)
            if found.torn:
                break
            at = found.end
        return first

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        for topic in self.survey(files, root):
            for name in sorted(files.list(join(root, topic))):
                if not _NAME.fullmatch(name):
                    yield Flaw("name", join(root, topic, name), 0, "no segment")

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        folder = join(root, topic)
        if not shard:
            must_be_new(files, folder)
        writer = _Writer(
            files, folder, options.get("segment_bytes", SEGMENT_BYTES), self.max_record
        )
        writer.shard = shard
        return writer


class _Writer(SegmentWriter):
    overhead = HEADER
    shard = 0

    def file_name(self, first: int, columns: Columns) -> str:
        return f"partition_{self.shard}_segment_{len(self.paths)}.log"

    def encode(self, columns: Columns, first: int) -> memoryview:
        return encode(columns.values)


def _parts(folder: str, shard: int, numbers: list[int]) -> list[Part]:
    parts = []
    for at, number in enumerate(numbers):
        before = numbers[at - 1] if at else -1
        missing = "" if number == before + 1 else f"segment {before + 1} is missing before it"
        path = join(folder, f"partition_{shard}_segment_{number}.log")
        parts.append(Part(path, -1 if at else 0, at + 1 == len(numbers), missing))
    return parts
