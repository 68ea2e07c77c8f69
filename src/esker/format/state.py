"""A shard's state: the few numbers that its segments cannot tell.

    state := slot slot            each 512 bytes, at 0 and at 4096, written in turn
    slot      0 "ESKS"  4 u16 version  6 u16 flags (1: closed cleanly)  8 u64 generation
             16 u64 topic id  24 u32 shard  28 u32 epoch
             32 i64 ceiling: no record at or above it was ever written
             40 u64 active segment id  48 u64 end position  56 i64 end offset   (when clean)
             64 i64 earliest: the shard begins here  72 i64 evicted: end of the last loss below that
             80 boot id, 16 bytes  96 store id, 16 bytes
            112 u64 losses, at most 22   120 for each: i64 first, i64 end; zeros behind
            472 u64 file of deletions, 0 for none   480 u64 how long it is   488 zeros
            504 u64 checksum of bytes 0..504

What lies below `earliest` is gone: deleted, if nothing else is said; or evicted by retention, if a
loss names it. Losses are in order and do not touch; a page that has no room for another one joins
the two oldest, with what was deleted between them.

Single records are deleted by a file beside it (marks.py); the page says which one counts, and how
far.

The valid slot with the larger generation counts. A slot is synced before the other one is
written again, so one of the two is always whole.

The ceiling is why an offset is never issued twice: classes that do not sync before they answer
set offsets aside in blocks, durably, before using them. After a crash of the *machine* (another
boot id) the log goes on at the ceiling and the offsets between are a named gap. After a crash of
the process alone the page cache is intact, and the log goes on where it ended.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from esker.format.checksum import checksum

MAGIC: Final = b"ESKS"
VERSION: Final = 1
SLOT_SIZE: Final = 512
SLOT_POSITIONS: Final = (0, 4096)
FILE_SIZE: Final = 4096 + SLOT_SIZE
CLEAN: Final = 1
NUMBER_MAX: Final = 1 << 62
LOSSES_MAX: Final = 22
_SLOT: Final = struct.Struct("<4sHHQQIIqQQqqq16s16s")
_LOSSES_AT: Final = 112
_MARKS_AT: Final = 472
_MARKS: Final = struct.Struct("<QQ")
_CHECK: Final = struct.Struct("<Q")

Losses = tuple[tuple[int, int], ...]  # offsets [first, end)


class State(NamedTuple):
    """One generation of a shard's state."""

    flags: int
    generation: int
    topic: int
    shard: int
    epoch: int
    ceiling: int
    segment: int = 0
    end_position: int = 0
    end_offset: int = 0
    earliest: int = 0
    boot: bytes = bytes(16)
    store: bytes = bytes(16)
    losses: Losses = ()
    marks: int = 0  # the file of deletions that counts
    marks_end: int = 0

    @property
    def evicted(self) -> int:
        """The end of the last loss; 0 without any."""
        return self.losses[-1][1] if self.losses else 0

    @property
    def clean(self) -> bool:
        return bool(self.flags & CLEAN)


def encode_slot(state: State) -> bytes:
    """The 512 bytes of a slot."""
    losses = [number for loss in state.losses for number in loss]
    lost = struct.pack(f"<Q{len(losses)}q", len(state.losses), *losses)
    numbers = (*state[:10], state.evicted, state.boot, state.store)
    packed = (_SLOT.pack(MAGIC, VERSION, *numbers) + lost).ljust(_MARKS_AT, b"\0")
    packed = (packed + _MARKS.pack(state.marks, state.marks_end)).ljust(SLOT_SIZE - 8, b"\0")
    return packed + _CHECK.pack(checksum(packed))


def decode_slot(data: bytes) -> State | str:
    """The state, or why the slot is none ("" for one never written)."""
    if data.count(0) == len(data):
        return ""
    if len(data) < SLOT_SIZE or data[:4] != MAGIC:
        return "not a state slot"
    (check,) = _CHECK.unpack_from(data, SLOT_SIZE - 8)
    if check != checksum(data[: SLOT_SIZE - 8]):
        return "state slot does not match its checksum"
    fields = _SLOT.unpack_from(data)
    if fields[1] != VERSION:
        return f"version {fields[1]}"
    *first, evicted, boot, store = fields[2:]
    _, generation, _, _, _, ceiling, segment, end_position, end_offset, earliest = first
    marks = _MARKS.unpack_from(data, _MARKS_AT)
    numbers = (generation, ceiling, segment, end_offset, earliest, *marks)
    (count,) = _CHECK.unpack_from(data, _LOSSES_AT)
    if (
        min(numbers) < 0
        or max(numbers) >= NUMBER_MAX
        or end_position >= 1 << 32
        or count > LOSSES_MAX
    ):
        return "state slot with numbers that nobody writes"
    flat = struct.unpack_from(f"<{2 * count}q", data, _LOSSES_AT + 8)
    bounds = [0, *flat, earliest]
    if bounds != sorted(bounds) or evicted != (flat[-1] if flat else 0):
        return "state slot with losses that nobody writes"
    losses = tuple(zip(flat[::2], flat[1::2], strict=True))
    return State._make((*first, boot, store, losses, *marks))


def with_loss(losses: Losses, first: int, end: int) -> Losses:
    """Losses, and another one behind them."""
    if losses and losses[-1][1] == first:
        return (*losses[:-1], (losses[-1][0], end))
    if len(losses) == LOSSES_MAX:
        losses = ((losses[0][0], losses[1][1]), *losses[2:])
    return (*losses, (first, end))
