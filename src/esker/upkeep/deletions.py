"""A shard's file of deletions, looked at from outside, and written anew where it is damaged.

    look(files, folder, number, end, owner)   what a file says, and what is wrong with it
    count(blocks, segments)                   how many of the records that are there it deletes
    mend_deletions(...)                       a new file, from all that can be read of the old one

Frames are joined by OR, so each counts for itself: those behind a damaged one are found by their
checksums, which hold the salt of the file and their position. What a damaged frame said is gone,
and with it the knowledge of what was deleted; a repair says so, and that such records may be back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from esker.errors import StorageError
from esker.format import frame, names
from esker.format import marks as fmt
from esker.format import state as state_format
from esker.format.marks import BITMAP, BLOCK, Deletion, MarksHeader
from esker.format.state import State
from esker.storage.files import Files, join, replace_file
from esker.storage.marks import numbers
from esker.upkeep.examine import Examined, Source
from esker.upkeep.mend import Evidence
from esker.upkeep.report import Action

if TYPE_CHECKING:
    from esker.upkeep.inspection import Inspection

Owner = tuple[int, int, bytes]  # topic, shard, store
_SALT: Final = 48  # where the salt stands in the header


class Deletions:
    """What one file of deletions turned out to be."""

    def __init__(self, path: str, number: int) -> None:
        self.path = path
        self.number = number
        self.size = 0
        self.blocks: dict[int, int] = {}  # all that can be read of it, bitmaps as numbers
        self.flaws: list[tuple[int, str]] = []  # positions, and what is wrong there
        self.untidy: list[int] = []  # positions of padding that is not zero
        self.newer = ""  # "version N" of a later one
        self.foreign = False  # of another shard: nothing in it is believed
        self.refused: list[tuple[int, int, str]] = []  # bytes the disk did not give, and why

    def join(self, blocks: Iterable[tuple[int, int]]) -> None:
        for number, bits in blocks:
            self.blocks[number] = self.blocks.get(number, 0) | bits


def look(files: Files, folder: str, number: int, end: int | None, owner: Owner) -> Deletions:
    """Look at a file as far as it counts; all of it, if `end` is None.

    Raises StorageError when the file cannot be opened at all.
    """
    path = join(folder, names.deletions(number))
    seen = Deletions(path, number)
    file = files.open(path, "r")
    try:
        seen.size = file.size()
        source = Source(file, min(seen.size, end) if end is not None else seen.size)
        data = source.read(0, source.size)
        seen.refused = source.refused
    finally:
        file.close()
    header = fmt.decode_header(data[: fmt.HEADER_SIZE])
    if isinstance(header, str) and header.startswith("version"):
        seen.newer = header
        return seen
    if isinstance(header, str):
        seen.flaws.append((0, header))
    elif (header.topic, header.shard, header.store) != owner:
        seen.flaws.append((8, "the deletions of another shard"))
        seen.foreign = True
        return seen
    elif header.number != number:
        seen.flaws.append((8, f"it is number {header.number} by its own account"))
    _walk(seen, data, _salt(data) if isinstance(header, str) else header.salt)
    if not seen.blocks and not seen.flaws:
        seen.flaws.append((fmt.HEADER_SIZE, "no deletion is in it"))
    if end is not None and seen.size < end:
        seen.flaws.append((seen.size, f"{end - seen.size} bytes of it are missing"))
    return seen


def _walk(seen: Deletions, data: bytes, salt: int) -> None:
    position = fmt.HEADER_SIZE
    while position < len(data):
        for found in fmt.decode_frames(data, position, salt):
            if not isinstance(found, Deletion):
                seen.flaws.append((found.position, found.reason))
                position = _next_frame(data, found.position + 8, salt)
                break
            seen.join((n, int.from_bytes(bits, "little")) for n, bits in found.blocks.items())
            head = frame.decode_header(data, position, position, salt)
            assert isinstance(head, frame.Header)
            end = position + frame.HEADER_SIZE + head.body_size
            if any(data[end : found.end]):
                seen.untidy.append(end)
            position = found.end


def _next_frame(data: bytes, position: int, salt: int) -> int:
    """Where the next header verifies; the end of the file when none does."""
    at = data.find(frame.MAGIC, position)
    while at >= 0:
        if not at & 7 and isinstance(frame.decode_header(data, at, at, salt), frame.Header):
            return at
        at = data.find(frame.MAGIC, at + 1)
    return len(data)


def _salt(data: bytes) -> int:
    """The salt of a header that is damaged: as it stands there, or with one bit turned back."""
    there = int.from_bytes(data[_SALT : _SALT + 8], "little")
    for salt in (there, *(there ^ 1 << bit for bit in range(64))):
        if _next_frame(data, fmt.HEADER_SIZE, salt) < len(data):
            return salt
    return there


def count(blocks: dict[int, int], segments: Iterable[Examined]) -> int:
    """How many of the records in these segments are marked as deleted."""
    total = 0
    for seen in segments:
        low, high = seen.base // BLOCK, (seen.next_offset - 1) // BLOCK
        inside: Iterable[int] = range(low, high + 1)
        if high - low > len(blocks):  # as a number that lies would have it
            inside = [number for number in blocks if low <= number <= high]
        for number in inside:
            bits, begin = blocks.get(number, 0), number * BLOCK
            behind = bits >> min(seen.next_offset - begin, BLOCK)
            total += (bits >> max(0, seen.base - begin)).bit_count() - behind.bit_count()
    return total


# ---- writing it anew -------------------------------------------------------------------------


def mend_deletions(
    files: Files, found: Inspection, store: bytes, evidence: Evidence,
    act: Callable[[Action], None], *, dry_run: bool,
) -> None:  # fmt: skip
    """A file of deletions that is whole, or none, and a state page that names it.

    The caller holds the writer lock of the shard. The new file is durable before the page names
    it, and the old one is taken away behind that; so a repair that dies is simply done again.
    """
    number, _ = found.marked
    path = join(found.folder, names.deletions(number))
    wrong = [problem for problem in found.problems if problem.path == path]
    if not number or not any(p.kind in ("deletions", "padding", "trailing") for p in wrong):
        return
    lossy = any(problem.kind == "deletions" for problem in wrong)
    owner = (found.entry.id, found.number, store)
    blocks = dict(found.deletions.blocks) if found.deletions is not None else {}
    if lossy:  # what lies under another name may be the very file, renamed by somebody
        for other in _others(files, found.folder, number, owner):
            for block, bits in other.blocks.items():
                blocks[block] = blocks.get(block, 0) | bits
    reason = f"{wrong[0].reason}; {count(blocks, found.segments)} records are known to be deleted"
    if lossy:
        reason += ", others that had been deleted may be back"
    kept, marked = "", (0, 0)
    if not dry_run:
        if blocks:
            marked = _write(files, found.folder, max(number, *numbers(files, found.folder), 0) + 1,
                            owner, blocks)  # fmt: skip
        if found.state is not None:
            found.state = write_state(
                files, found.folder, found.state._replace(marks=marked[0], marks_end=marked[1])
            )
        if files.kind(path):
            kept = evidence.move(path, "deletions")
        found.marked = marked
    act(Action("deletions", path, reason, kept, found.entry.name, found.number, wrong[0].position))


def _others(files: Files, folder: str, number: int, owner: Owner) -> Iterator[Deletions]:
    for other in numbers(files, folder):
        if other != number:
            try:
                yield look(files, folder, other, None, owner)
            except StorageError:
                continue


def _write(
    files: Files, folder: str, number: int, owner: Owner, blocks: dict[int, int]
) -> tuple[int, int]:
    """A new file; returns its number and its length."""
    salt = int.from_bytes(files.random(8), "little")
    head = fmt.encode_header(MarksHeader(number, *owner, salt))
    bitmaps = {block: bits.to_bytes(BITMAP, "little") for block, bits in blocks.items()}
    parts = [head, *fmt.encode_frames(bitmaps, len(head), salt)]
    file = files.open(join(folder, names.deletions(number)), "create")
    try:
        file.write(0, parts)
        file.sync()
    finally:
        file.close()
    files.sync_dir(folder)
    return number, sum(map(len, parts))


def write_state(files: Files, folder: str, state: State) -> State:
    """Another state page: the next two generations, one like the other, so that both slots count.

    A single slot would be lost with a single sector, and what was deleted with it.
    """
    slots = [state._replace(generation=state.generation + turn) for turn in (1, 2)]
    first, second = map(state_format.encode_slot, slots)
    data = first.ljust(state_format.SLOT_POSITIONS[1], b"\0") + second
    replace_file(files, join(folder, names.STATE), data)
    return slots[1]
