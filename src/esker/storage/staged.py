"""Staged segments: made by any process, outside of the log, and made a part of it later.

    StagedSegment.create -> append* -> finish -> Ticket        by whoever has records
    adopt(files, folder, ticket, header) -> SealedSegment      by the shard's writer

A staged file lies in its shard's directory under a name of its own and is a complete sealed
segment, but for its header: number, base offset and predecessor are not known yet. Rows are
numbered from the start of their segment and checksums are salted with its own salt, so nothing else
depends on them. Adopting it is: see that it is what its ticket says, write header and trailer,
sync, rename, sync the directory. Whatever stops that half-way, it is done again from the start: the
ticket vouches for every byte between header and trailer.

Nobody reads a staged file, and who leaves one behind has lost nothing but its room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from esker.errors import Corruption
from esker.format import names
from esker.format import segment as fmt
from esker.format.checksum import Hasher
from esker.format.columns import Body
from esker.format.commit import Ticket
from esker.format.segment import SegmentHeader
from esker.storage.files import File, Files, join
from esker.storage.log import LogSegment
from esker.storage.sealed import SealedSegment
from esker.storage.segment import NO_COMPRESSION, Compress

_PIECE: Final = 1 << 20
TOKEN_BYTES: Final = 8


class StagedSegment:
    """A segment that is being made outside of the log."""

    def __init__(self, files: Files, log: LogSegment, name: str) -> None:
        self._files = files
        self._log = log
        self.name = name

    @classmethod
    def create(
        cls, files: Files, folder: str, header: SegmentHeader, config: bytes
    ) -> StagedSegment:
        """A new one. The header names store, topic, shard, salt and time; the rest comes later."""
        name = names.staged(header.created, files.random(TOKEN_BYTES))
        return cls(files, LogSegment.create_at(files, join(folder, name), header, config), name)

    @property
    def rows(self) -> int:
        return self._log.next_row

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._log.end

    def append(self, bodies: Sequence[Body], how: Compress = NO_COMPRESSION) -> None:
        """Add frames. There is no batch here: the segment is attached as a whole."""
        for body in bodies:
            self._log.append([body], how)

    def finish(self) -> Ticket:
        """Write the footer and make the file durable, but for its name."""
        log = self._log
        try:
            size = log.write_footer()
            digest = _hash(log.file, size)
        finally:
            log.close()
        header = log.header
        return Ticket(
            topic=header.topic, shard=header.shard, file=self.name, rows=log.next_row, size=size,
            footer=log.end, hash=digest, salt=header.salt, created=header.created,
        )  # fmt: skip

    def discard(self) -> None:
        """Forget it. Room is all that it has taken."""
        self._log.close()
        self._files.unlink(self._log.path)


def adopt(files: Files, folder: str, ticket: Ticket, header: SegmentHeader) -> SealedSegment:
    """Make a staged file the segment that `header` describes."""
    path = join(folder, ticket.file)
    target = join(folder, names.segment(header.segment, header.base, sealed=True))
    head, end = fmt.encode_header(header), ticket.size - fmt.TRAILER_SIZE
    file = files.open(path, "rw")
    try:
        whole, body = Hasher(), Hasher()
        whole.update(head)
        for position in range(fmt.HEADER_SIZE, end, _PIECE):
            piece = file.read(position, min(_PIECE, end - position))
            whole.update(piece)
            body.update(piece)
        if file.size() != ticket.size or body.digest() != ticket.hash:
            raise Corruption("a staged segment is not what was committed", path=path, position=0)
        file.write(0, [head])
        file.write(end, [fmt.encode_trailer(ticket.footer, whole.digest())])
        file.sync()
    finally:
        file.close()
    files.rename(path, target)
    files.sync_dir(folder)
    return SealedSegment.known(header, target, ticket.size)


def _hash(file: File, size: int) -> int:
    """Of the bytes between header and trailer."""
    hasher, end = Hasher(), size - fmt.TRAILER_SIZE
    for position in range(fmt.HEADER_SIZE, end, _PIECE):
        hasher.update(file.read(position, min(_PIECE, end - position)))
    return hasher.digest()
