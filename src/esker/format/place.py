"""Stubs: what stays in a shard of a sealed segment whose frames lie in a cold store.

    stub := header:128 config-frame place-frame footer-frame trailer:32

A stub has the name of its segment and says all that can be said without the records: header and
CONFIG frame are those of the segment, byte for byte, and so is the body of the FOOTER frame. The
directory in it tells of positions in the *whole* file. The trailer is that of the stub itself.

The PLACE frame says where the whole file lies, how large it is and which hash its trailer has; so
whoever fetches it knows whether it is what was moved. It is what tells a stub from a segment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from esker.format import frame
from esker.format import segment as fmt
from esker.format.checksum import checksum


class Place(msgspec.Struct, frozen=True):
    """Where a whole segment lies, and how it is known."""

    root: str  # of the cold store: a directory or a URL
    key: str
    size: int  # bytes of the whole file
    hash: int  # as its trailer has it


def encode_place(place: Place, position: int, salt: int) -> bytes:
    """The PLACE frame."""
    body = msgspec.json.encode(place)
    return _frame(frame.PLACE, body, position, salt, 0)


def _frame(kind: int, body: bytes, position: int, salt: int, rows: int) -> bytes:
    head, _ = frame.encode_header(
        kind=kind, position=position, salt=salt, body_size=len(body), raw_size=len(body),
        body_checksum=checksum(body, salt), first_row=rows, synced=position,
    )  # fmt: skip
    return head + body + bytes(-len(body) & 7)


def stub_of(data: Any, place: Place) -> bytes:
    """The stub of a whole segment, which must be in order."""
    view = memoryview(data)
    header = fmt.decode_header(bytes(view[: fmt.HEADER_SIZE]))
    trailer = fmt.decode_trailer(bytes(view[-fmt.TRAILER_SIZE :]))
    assert not isinstance(header, str)
    assert not isinstance(trailer, str)
    salt, begin = header.salt, fmt.HEADER_SIZE
    first = frame.decode_header(view, begin, begin, salt)
    if isinstance(first, frame.Header) and first.kind == frame.CONFIG:
        begin += first.size
    footer = frame.decode_header(view, trailer[0], trailer[0], salt)
    assert isinstance(footer, frame.Header)
    body_at = trailer[0] + frame.HEADER_SIZE
    body = bytes(view[body_at : body_at + footer.body_size])
    made = bytes(view[:begin]) + encode_place(place, begin, salt)
    position = len(made)
    made += _frame(frame.FOOTER, body, position, salt, footer.first_row)
    return made + fmt.encode_trailer(position, checksum(made))


def find_place(data: Any, salt: int) -> Place | None:
    """The place that a stub names, from its first bytes; None if it is a whole segment.

    Also None where the frame is damaged: whoever needs it finds no records either, and says so.
    """
    view, position = memoryview(data), fmt.HEADER_SIZE
    found = frame.decode_header(view, position, position, salt)
    if isinstance(found, frame.Header) and found.kind == frame.CONFIG:
        position += found.size
        found = frame.decode_header(view, position, position, salt)
    if isinstance(found, frame.Damage) or found.kind != frame.PLACE:
        return None
    begin = position + frame.HEADER_SIZE
    body = bytes(view[begin : begin + found.body_size])
    if frame.body_damage(found, body, salt) is not None:
        return None
    try:
        return msgspec.json.decode(body, type=Place)
    except msgspec.MsgspecError:
        return None
