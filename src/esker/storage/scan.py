"""Walking frames: where they are, and how the walk ended.

A walk hops from header to header. Where a header cannot be believed it looks for the next place
at which one can (headers are salted with segment and position, so nothing else verifies), so that
damage in the middle costs the damaged frame and not the rest of the log.

What the damage *means* is decided by `verdict`, with the one rule of the format: below the highest
position that is known to have been durable, damage is corruption; above it, it is a torn tail.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from esker.format import frame
from esker.format.frame import Damage, Header

_WINDOW: Final = 1 << 20
_GLANCE: Final = 4 << 10
_STEP: Final = 8


class Readable(Protocol):
    """What a walk needs of a file."""

    def read(self, position: int, size: int) -> bytes: ...
    def size(self) -> int: ...


class Flaw(NamedTuple):
    """A place where the walk could not believe the bytes."""

    position: int
    end: int  # where believable frames go on; the file's end when they do not
    reason: str
    header: Header | None = None  # when only the body is damaged
    zero: bool = False  # nothing but zeros from here to the end


class Walk(NamedTuple):
    """All believable frames of a file, and all flaws, in order of position."""

    frames: list[tuple[int, Header]]
    flaws: list[Flaw]
    end: int  # behind the last believable frame
    size: int  # of the file
    watermark: int  # the highest synced position that any frame proves


class Verdict(NamedTuple):
    """What to keep of a log."""

    frames: list[tuple[int, Header]]  # what stays, corrupt frames left out
    end: int  # position at which the log ends
    rows: int  # rows up to the end, those of corrupt frames counted
    corrupt: list[Flaw]  # flaws below the watermark: kept in place, reported, refused to readers
    torn: Flaw | None  # the flaw at which the tail is cut
    dropped: int  # rows above the cut that had been readable


class Window:
    """Reads a file in pieces and hands out smaller ones.

    Pieces grow while they are asked for one behind the other, and are small again after a leap: so
    small frames are read in bulk, and of large ones whose bodies nobody wants only the headers.

    The file may become shorter meanwhile: its writer gives back, before it seals a log, the room
    that it had taken ahead. From then on `size` is what is left.
    """

    __slots__ = ("_data", "_file", "_piece", "_start", "size")

    def __init__(self, file: Readable, size: int) -> None:
        self._file = file
        self._start = 0
        self._data: Any = b""
        self._piece = _GLANCE
        self.size = size

    def at(self, position: int, size: int) -> Any:
        """Bytes [position, position + size), fewer at the end of the file."""
        size = max(0, min(size, self.size - position))
        begin = position - self._start
        if size and (begin < 0 or begin + size > len(self._data)):
            follows = 0 <= begin <= len(self._data)
            self._piece = min(self._piece * 4, _WINDOW) if follows else _GLANCE
            wanted = min(max(size, self._piece), self.size - position)
            self._data = memoryview(self._file.read(position, wanted))
            self._start = position
            begin = 0
            if len(self._data) < wanted:
                self.size = position + len(self._data)
        return self._data[begin : begin + size]


def walk(
    file: Readable, salt: int, start: int, *, size: int | None = None, bodies: bool = True
) -> Walk:
    """Hop over all frames from `start`; with `bodies`, verify each body too."""
    window = Window(file, file.size() if size is None else size)
    frames: list[tuple[int, Header]] = []
    flaws: list[Flaw] = []
    position = end = start
    watermark = 0
    while position < window.size:
        header = frame.decode_header(window.at(position, frame.HEADER_SIZE), 0, position, salt)
        if isinstance(header, Damage):
            following = find_frame(window, salt, position + _STEP)
            zero = header.zero and following is None and _zeros(window, position)
            flaws.append(Flaw(position, following or window.size, header.reason, None, zero))
            if following is None:
                break
            position = following
            continue
        watermark = max(watermark, header.synced)
        damage = None
        if bodies and position + header.size <= window.size:
            body = window.at(position + frame.HEADER_SIZE, header.body_size)
            damage = frame.body_damage(header, body, salt)
        if position + header.size > window.size:
            damage = Damage("the file ends inside a frame")
        if damage is not None:
            behind = min(position + header.size, window.size)
            flaws.append(Flaw(position, behind, damage.reason, header))
        else:
            frames.append((position, header))
            end = position + header.size
        position += header.size
    return Walk(frames, flaws, end, window.size, watermark)


def find_frame(window: Window, salt: int, start: int) -> int | None:
    """The next position, from `start`, at which a frame header verifies."""
    position = (start + _STEP - 1) & -_STEP
    while position < window.size:
        piece = bytes(window.at(position, _WINDOW))
        found = piece.find(frame.MAGIC)
        while found >= 0:
            at = position + found
            if at % _STEP == 0:
                header = frame.decode_header(window.at(at, frame.HEADER_SIZE), 0, at, salt)
                if isinstance(header, Header):
                    return at
            found = piece.find(frame.MAGIC, found + 1)
        if position + len(piece) >= window.size:
            return None
        position += len(piece) - _STEP + 1
        position &= -_STEP
    return None


def _zeros(window: Window, position: int) -> bool:
    while position < window.size:
        piece = bytes(window.at(position, _WINDOW))
        if piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def verdict(seen: Walk, proven: int) -> Verdict:
    """Tell corruption from a torn tail. `proven` is durable for reasons outside of the file."""
    watermark = max(seen.watermark, proven)
    corrupt = [flaw for flaw in seen.flaws if flaw.position < watermark]
    torn = next((flaw for flaw in seen.flaws if flaw.position >= watermark), None)
    limit = seen.size if torn is None else torn.position
    kept = [item for item in seen.frames if item[0] < limit]
    whole = len(kept)
    while whole and kept[whole - 1][1].flags & frame.MORE:
        whole -= 1
    if whole < len(kept) and kept[whole][0] >= watermark:  # an unfinished batch goes as a whole
        limit = kept[whole][0]
        torn = Flaw(limit, seen.size, "a batch whose last frame is missing")
        kept = kept[:whole]
    end = limit if torn is not None else max(seen.end, min(watermark, frame.padded(seen.size)))
    believed = [header for _, header in kept]
    believed += [flaw.header for flaw in corrupt if flaw.header is not None]
    rows = max((header.first_row + header.count for header in believed), default=0)
    cut = [header for position, header in seen.frames if position >= limit]
    cut += [flaw.header for flaw in seen.flaws if flaw.header and flaw.position >= limit]
    if corrupt and cut:  # a frame that is cut off still tells how many rows there were before it
        rows = max(rows, min(header.first_row for header in cut))
    dropped = max((header.first_row + header.count for header in cut), default=rows) - rows
    if torn is not None and torn.zero and not dropped:
        torn = None  # preallocated space: a clean end
    return Verdict(kept, end, rows, corrupt, torn, dropped)
