"""Holes: where records were, and are no more.

A damaged frame in a sealed segment stays where it is until somebody repairs the store: whoever
reads there gets an error. A repair writes the file anew and puts a HOLE frame in the place of the
damage. It has exactly the size of what it replaces, so every other frame keeps its position, its
row and its bytes; its `count` says how many rows are lost. From then on the loss is on record, and
readers get a Gap instead of an error.
"""

from __future__ import annotations

from bisect import bisect_right

from esker.format import frame
from esker.format import segment as fmt
from esker.format.checksum import checksum
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment


def encode_hole(position: int, end: int, salt: int, first_row: int, rows: int) -> bytes:
    """A HOLE frame that fills [position, end) and stands for `rows` lost rows."""
    body = bytes(end - position - frame.HEADER_SIZE)
    head, _ = frame.encode_header(
        kind=frame.HOLE, position=position, salt=salt, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, salt) if body else 0, count=rows, first_row=first_row,
        synced=position,
    )  # fmt: skip
    return head + body


def end_of_hole(segment: Segment, row: int) -> int | None:
    """The first row behind the hole that `row` lies in; None when no repair declared one there."""
    if not isinstance(segment, SealedSegment):
        return None
    mapped, inside = segment.inside()
    footer, salt, data = inside.footer, inside.header.salt, memoryview(mapped)
    at = bisect_right(footer.first_rows, row) - 1
    position = footer.positions[at] if at >= 0 else fmt.HEADER_SIZE
    while position < footer.data_end:
        header = frame.decode_header(data, position, position, salt)
        if isinstance(header, frame.Damage):
            return None
        if header.kind == frame.HOLE and 0 <= row - header.first_row < header.count:
            return header.first_row + header.count
        if header.first_row > row:
            return None
        position += header.size
    return None
