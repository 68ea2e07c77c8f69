"""Who takes part in the groups of a topic: one page that all of them have mapped.

    page      header of 128 bytes, then 512 slots of 128 bytes
    header    0 "ESKMEMB\\0"  8 u64 version  16 boot id, 16 bytes
             32 u64 generation: moves whenever somebody comes or goes   40 zeros
    slot      0 the group's name, 48 bytes, zeros behind it
             48 u64 token, 0 in a free slot   56 u64 pid
             64 u64 joined   72 u64 last seen   80 u64 session    microseconds, monotonic clock
             88 u64 which: i << 32 | n for member i of n, 0 for one that takes what it is given
             96 zeros

The page tells, and never decides: whose cursor it is stands in the page of offsets. It is as old as
the machine's last start; a page of another boot is begun anew, and nothing of it is ever synced.
Times are of the clock that all processes of one boot share and nobody can set.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from esker.format.offsets import NAME_BYTES_MAX

MAGIC: Final = int.from_bytes(b"ESKMEMB\0", "little")
VERSION: Final = 1
SLOTS: Final = 512
SLOT_WORDS: Final = 16
HEADER_WORDS: Final = 16
PAGE_SIZE: Final = (HEADER_WORDS + SLOTS * SLOT_WORDS) * 8
GENERATION: Final = 4  # words of the header
TOKEN: Final = 6  # words of a slot
SEEN: Final = 9
MASK: Final = (1 << 64) - 1
_HEADER: Final = struct.Struct("<QQ16s")


class Member(NamedTuple):
    """One member of a group."""

    slot: int
    group: str
    token: int
    pid: int
    joined_us: int
    seen_us: int
    session_us: int
    static: tuple[int, int] | None = None  # i of n

    def is_late(self, now_us: int) -> bool:
        """Whether it has not been seen for longer than it wants to be waited for."""
        return now_us - self.seen_us > self.session_us


def encode_header(boot: bytes, generation: int) -> tuple[int, ...]:
    packed = _HEADER.pack(MAGIC, VERSION, boot)
    return (*struct.unpack("<4Q", packed), generation, *(0,) * 11)


def is_current(words: Sequence[int], boot: bytes) -> bool:
    """Whether a page is of this boot, and of this version."""
    return tuple(words[:4]) == encode_header(boot, 0)[:4]


def encode_member(member: Member) -> tuple[int, ...]:
    """The words of a slot."""
    name = struct.unpack("<6Q", member.group.encode().ljust(NAME_BYTES_MAX, b"\0"))
    which = 0 if member.static is None else member.static[0] << 32 | member.static[1]
    return (*name, *member[2:7], which, *(0,) * 4)


def decode_member(slot: int, words: Sequence[int]) -> Member | None:
    """The member in a slot; None for a free one, or one that nobody can have written."""
    token, pid, joined, seen, session, which = words[TOKEN : TOKEN + 6]
    if not token:
        return None
    try:
        group = struct.pack("<6Q", *words[:6]).rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return None
    static = (which >> 32, which & 0xFFFFFFFF) if which else None
    return Member(slot, group, token, pid, joined, seen, session, static)
