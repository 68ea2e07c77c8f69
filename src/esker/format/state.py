"""A shard's state: the few numbers that its segments cannot tell.

    state := slot slot            each 512 bytes, at 0 and at 4096, written in turn
    slot      0 "ESKS"  4 u16 version  6 u16 flags (1: closed cleanly)  8 u64 generation
             16 u64 topic id  24 u32 shard  28 u32 epoch
             32 i64 ceiling: no record at or above it was ever written
             40 u64 active segment id  48 u64 end position  56 i64 end offset   (when clean)
             64 i64 earliest  72 i64 evicted
             80 boot id, 16 bytes  96 store id, 16 bytes
            112 zeros         504 u64 checksum of bytes 0..504

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
_SLOT: Final = struct.Struct("<4sHHQQIIqQQqqq16s16s")
_CHECK: Final = struct.Struct("<Q")


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
    evicted: int = 0
    boot: bytes = bytes(16)
    store: bytes = bytes(16)

    @property
    def clean(self) -> bool:
        return bool(self.flags & CLEAN)


def encode_slot(state: State) -> bytes:
    """The 512 bytes of a slot."""
    packed = _SLOT.pack(MAGIC, VERSION, *state).ljust(SLOT_SIZE - 8, b"\0")
    return packed + _CHECK.pack(checksum(packed))


def decode_slot(data: bytes) -> State | str:
    """The state, or why the slot is none ("" for one never written)."""
    if not any(data):
        return ""
    if len(data) < SLOT_SIZE or data[:4] != MAGIC:
        return "not a state slot"
    (check,) = _CHECK.unpack_from(data, SLOT_SIZE - 8)
    if check != checksum(data[: SLOT_SIZE - 8]):
        return "state slot does not match its checksum"
    fields = _SLOT.unpack_from(data)
    if fields[1] != VERSION:
        return f"version {fields[1]}"
    state = State(*fields[2:])
    numbers = (state.generation, state.ceiling, state.segment, state.end_offset, state.earliest)
    if not all(0 <= number < NUMBER_MAX for number in numbers) or state.end_position >= 1 << 32:
        return "state slot with numbers that nobody writes"
    return state
