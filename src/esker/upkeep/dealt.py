"""A deep check whose segments are examined elsewhere, by many at once.

    pieces(files, root)         every segment that a check of the store would examine now
    examined(piece)             what one turned out to be, as bytes that travel
    check(files, root, known)   `verify`, which takes what is known already and does the rest itself

The report is made by the code of `verify`, from the files as they are when `check` runs. What was
found before is only a shortcut: it counts if the file is still the one that was examined. So a
shard that was written, sealed or trimmed meanwhile costs time and never an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import Any

import msgspec

from esker.clock import SYSTEM_CLOCK
from esker.errors import StorageError
from esker.format import names
from esker.format import segment as fmt
from esker.format.place import Place
from esker.storage.files import Files, join, size_if_there
from esker.upkeep.examine import Directory, Examined, Flaw, examine
from esker.upkeep.report import Verification
from esker.upkeep.stubs import Cold, ColdFlaw, look_at_object
from esker.upkeep.verify import Check


class Piece(msgspec.Struct, frozen=True):
    """A segment to be examined: where it is, and how far."""

    folder: str
    segment: int
    base: int
    sealed: bool
    size: int  # of the file when it was listed
    limit: int | None = None  # see `examine`
    rows: int | None = None

    @property
    def name(self) -> names.SegmentName:
        return names.SegmentName(self.segment, self.base, self.sealed)

    @property
    def path(self) -> str:
        return join(self.folder, names.segment(self.segment, self.base, sealed=self.sealed))


class Known(msgspec.Struct, frozen=True):
    """What became of a piece: all that a check asks of an `Examined`."""

    piece: Piece
    size: int
    header: bytes  # encoded, as in the file; empty: there is none
    header_flaw: str
    config: bytes | None
    flaws: list[Flaw]
    holes: list[tuple[int, int]]
    untidy: list[int]
    directory: list[bytes]
    numbers: list[int]
    footer: bytes
    footer_flaw: str
    hash_matches: bool
    refused: list[tuple[int, int, str]]
    stub: bool
    place: Place | None  # of a stub: where the segment lies,
    cold: list[ColdFlaw]  # and what is wrong there


_NUMBERS = (
    "frames", "rows", "readable", "end", "watermark", "chain", "raw_bytes", "unfinished",
    "footer_position", "file_hash", "place_position", "whole_size",
)  # fmt: skip


def pieces(files: Files, root: str, only: Collection[str] = ()) -> tuple[list[Piece], set[str]]:
    """What a check would examine now, and the topics there are. Raises as `verify` does."""
    found: dict[str, Piece] = {}

    def note(folder: str, name: names.SegmentName, limit: int | None, rows: int | None) -> None:
        path = join(folder, names.segment(name.segment, name.base, sealed=name.sealed))
        found[path] = Piece(folder, *name, size_if_there(files, path), limit, rows)

    looked = Check(files, root, True, None, look=note, only=only)
    looked.identity()
    looked.catalogs()
    looked.topics()
    topics = {entry.name for entry in (*looked.catalog.topics, *looked.orphans)}
    return list(found.values()), topics


def examined(files: Files, piece: Piece, cold: str = "") -> Known | None:
    """Examine a piece, and what it stands for if it is a stub.

    None where the system does not let us: the check itself will tell why.
    """
    try:
        seen = examine(files, piece.folder, piece.name, limit=piece.limit, rows=piece.rows)
    except StorageError:
        return None
    if seen.stub:
        look_at_object(seen, Cold(files, cold), deep=True)
    columns: list[Any] = list(seen.directory)
    if seen.footer is None:  # then nothing is held against it, and only its end is asked for
        columns = [column[-1:] for column in columns]
    return Known(
        piece,
        seen.size,
        b"" if seen.header is None else fmt.encode_header(seen.header),
        seen.header_flaw,
        seen.config,
        seen.flaws,
        seen.holes,
        seen.untidy,
        [column.tobytes() for column in columns],
        [getattr(seen, name) for name in _NUMBERS],
        b"" if seen.footer is None else fmt.encode_footer(seen.footer),
        seen.footer_flaw,
        seen.hash_matches,
        seen.refused,
        seen.stub,
        seen.place,
        seen.cold,
    )


def _restored(known: Known) -> Examined:
    seen = Examined(known.piece.path, known.piece.name)
    seen.size = known.size
    header = fmt.decode_header(known.header) if known.header else None
    assert not isinstance(header, str)
    seen.header, seen.header_flaw, seen.config = header, known.header_flaw, known.config
    seen.flaws, seen.holes, seen.untidy = list(known.flaws), list(known.holes), list(known.untidy)
    seen.directory = Directory(
        *(array(kind, data) for kind, data in zip("QQqq", known.directory, strict=True))
    )
    for name, number in zip(_NUMBERS, known.numbers, strict=True):
        setattr(seen, name, number)
    footer = fmt.decode_footer(known.footer) if known.footer else None
    assert not isinstance(footer, str)
    seen.footer, seen.footer_flaw = footer, known.footer_flaw
    seen.hash_matches, seen.refused = known.hash_matches, list(known.refused)
    seen.stub, seen.place, seen.cold = known.stub, known.place, list(known.cold)
    return seen


def check(
    files: Files, root: str, known: dict[str, Known], only: Collection[str] = (), cold: str = ""
) -> Verification:
    """`verify(root)`, with what is known of its segments, by path."""
    started = SYSTEM_CLOCK.monotonic()

    def look(folder: str, name: names.SegmentName, limit: int | None, rows: int | None) -> Examined:
        path = join(folder, names.segment(name.segment, name.base, sealed=name.sealed))
        found = known.get(path)
        if found is not None and _same(files, found, path, limit, rows):
            return _restored(found)
        seen = examine(files, folder, name, limit=limit, rows=rows)
        if seen.stub:
            look_at_object(seen, asked, deep=True)
        return seen

    asked = Cold(files, cold)
    done = Check(files, root, True, None, look=look, only=only, cold=asked)
    done.run()
    done.report.seconds = SYSTEM_CLOCK.monotonic() - started
    return done.report


def _same(files: Files, known: Known, path: str, limit: int | None, rows: int | None) -> bool:
    """Whether what was examined is what the check asks for."""
    piece = known.piece
    if piece.rows != rows:
        return False
    if piece.limit is None or limit is None:
        return piece.limit == limit and known.size == size_if_there(files, path)
    return piece.limit <= limit  # a living writer has gone on: what was published then was checked
