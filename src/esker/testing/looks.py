"""What the bytes of a file say, as far as the monitor has to know."""

from __future__ import annotations

from esker.format import frame
from esker.format import journal as journal_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.checksum import checksum
from esker.format.place import Place, find_place


def limits(page: bytes) -> tuple[int, int, tuple[int, int]]:
    """The ceiling, the floor and the file of deletions that a state page gives."""
    slots = (
        state_format.decode_slot(page[at : at + state_format.SLOT_SIZE])
        for at in state_format.SLOT_POSITIONS
    )
    whole = [
        (slot.generation, slot.ceiling, slot.earliest, (slot.marks, slot.marks_end))
        for slot in slots
        if not isinstance(slot, str)
    ]
    return max(whole, default=(0, 0, 0, (0, 0)))[1:]


def end_of(data: bytes) -> int:
    """The offset behind a sealed segment; 0 if it cannot be read."""
    header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
    trailer = segment_format.decode_trailer(data[-segment_format.TRAILER_SIZE :])
    if isinstance(header, str) or isinstance(trailer, str):
        return 0
    footer = segment_format.decode_footer(data[trailer[0] + frame.HEADER_SIZE :])
    return 0 if isinstance(footer, str) else header.base + footer.records


def holds_records(log: bytes) -> bool:
    header = segment_format.decode_header(log[: segment_format.HEADER_SIZE])
    at = segment_format.HEADER_SIZE
    while not isinstance(header, str):
        head = frame.decode_header(log, at, at, header.salt)
        if isinstance(head, frame.Damage) or head.kind == frame.FOOTER:
            return False
        if head.kind == frame.DATA:
            return True
        at += head.size
    return False


def entries_of(data: bytes) -> list[tuple[journal_format.Entry, bytes]]:
    """The entries of a journal up to the first that is not whole."""
    header = journal_format.decode_header(data[: journal_format.HEADER_SIZE])
    found: list[tuple[journal_format.Entry, bytes]] = []
    at = journal_format.HEADER_SIZE
    while not isinstance(header, str):
        entry = journal_format.decode_entry(data[at : at + 64], at, header.salt)
        if isinstance(entry, str):
            break
        body = data[at + 64 : at + 64 + entry.size]
        if checksum(body, header.salt) != entry.body_checksum:
            break
        found.append((entry, body))
        at += 64 + frame.padded(entry.size)
    return found


def speaks_of(log: bytes, position: int, data: bytes) -> bool:
    """Whether an entry of a journal belongs to this log, and not to one that had its number."""
    header = segment_format.decode_header(log[: segment_format.HEADER_SIZE])
    if isinstance(header, str):
        return False
    if position == 0:
        return data[: segment_format.HEADER_SIZE] == log[: segment_format.HEADER_SIZE]
    return isinstance(frame.decode_header(data, 0, position, header.salt), frame.Header)


def place_of(data: bytes) -> Place | None:
    """Where the whole segment lies, if this is a stub."""
    header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
    return None if isinstance(header, str) else find_place(data, header.salt)


def is_moved(data: bytes, place: Place) -> bool:
    """Whether these bytes are the segment that a stub speaks of."""
    return len(data) == place.size and checksum(data[:-32]) == place.hash
