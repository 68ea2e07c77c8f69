"""How far the groups of a shard have come: one page that many processes have mapped.

    page      header of 128 bytes, then 512 slots of 128 bytes: no slot lies in two sectors
    header    0 "ESKOFFS\\0"  8 u64 version  16 u64 topic id  24 u64 shard  32 store id, 16 bytes
             48 u64 checksum of bytes 0..48   56 zeros
    slot      0 the group's name, 48 bytes, zeros behind it
             48 i64 base   56 u64 head        a term, that of the even generations
             64 i64 base   72 u64 head        and that of the odd ones
             80 u64 cell, four times          of generation g: the one with number g % 4
            112 u64 when it was last written, ns   120 u64 how many acks

    head     bit 0 checksum, 32 bits | 32 settled | 33 paused | 34 owner, 10 bits | 44 generation
    cell     bit 0 how far behind the base, 36 bits | 36 checksum, 28 bits

A group belongs into slot FNV-1a(name) % 512, or the next one that is free. A slot without any head
is free, whatever else is in it. All words are stored with aligned 8-byte stores, so each is there
as a whole or not at all, and the order of the stores makes the rest:

* A *term* is one ownership: the generation, who has it (the member's slot + 1, or 0), and the
  cursor it began with. The next one is written into the other term, its base before its head; until
  the head is there the old term counts. So one of the two is always whole.
* The *cursor* is base + cell. An owner moves it with one store, into the cell of its own
  generation. Who has been replaced and does not know it yet stores into a cell that nobody reads.

Every checksum covers the name, and is seeded with the store, the topic, the shard and the slot. A
turned bit is noticed: in a cell, then the cursor is the base, from which all was delivered before
and is delivered again; in a term or a name, then nobody knows where the group was, and it is said.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from esker.format.checksum import MASK64, checksum, fnv1a

MAGIC: Final = int.from_bytes(b"ESKOFFS\0", "little")
VERSION: Final = 1
SLOTS: Final = 512
SLOT_WORDS: Final = 16
HEADER_WORDS: Final = 16
PAGE_SIZE: Final = (HEADER_WORDS + SLOTS * SLOT_WORDS) * 8
NAME_BYTES_MAX: Final = 48
CURSOR_MAX: Final = 1 << 62
DELTA_MAX: Final = (1 << 36) - 1  # a cursor that has come further gets a new base
OWNERS_MAX: Final = (1 << 10) - 1
SETTLED: Final = 1  # the slot was synced when it was made
PAUSED: Final = 2

BASE, HEAD = (6, 8), (7, 9)  # words of a slot, by generation % 2
CELL: Final = 10  # and the three behind it, by generation % 4
UPDATED: Final = 14
ACKS: Final = 15
_GENERATIONS: Final = (1 << 20) - 1
_HEADER: Final = struct.Struct("<QQQQ16s")
_SEED: Final = struct.Struct("<16sQQ")
_DELTA: Final = struct.Struct("<Q")


class Owner(NamedTuple):
    """Whose page it is: the store, the topic, the shard."""

    store: bytes
    topic: int
    shard: int

    @property
    def seed(self) -> int:
        return checksum(_SEED.pack(*self))


class Term(NamedTuple):
    """One ownership of a group's cursor."""

    base: int
    generation: int
    owner: int = 0  # the member's slot + 1; 0 for nobody
    flags: int = 0


class Slot(NamedTuple):
    """What a slot says."""

    number: int
    name: str
    term: Term
    cursor: int
    updated_ns: int
    acks: int
    flaw: str = ""  # what is wrong with its cell: then the cursor is the base


def encode_header(owner: Owner) -> tuple[int, ...]:
    """The words of the header."""
    packed = _HEADER.pack(MAGIC, VERSION, owner.topic, owner.shard, owner.store)
    return (*struct.unpack("<6Q", packed), checksum(packed), *(0,) * 9)


def decode_header(words: Sequence[int], owner: Owner) -> str:
    """What is wrong with a header; "" if nothing is."""
    found = tuple(words[:HEADER_WORDS])
    if found == encode_header(owner):
        return ""
    if not found[0]:  # the magic is stored last
        return "no header"
    packed = struct.pack("<6Q", *found[:6])
    if found[0] != MAGIC:
        return "not a page of offsets"
    if found[6] != checksum(packed):
        return "the header does not match its checksum"
    if found[1] != VERSION:
        return f"version {found[1]}"
    return "the page of another shard" if not any(found[7:]) else "something behind the header"


def encode_name(name: str) -> tuple[int, ...]:
    """A name as six words."""
    return struct.unpack("<6Q", name.encode().ljust(NAME_BYTES_MAX, b"\0"))


def home_of(name: str) -> int:
    """The slot in which a group is looked for first."""
    return fnv1a(name.encode()) % SLOTS


def next_generation(generation: int) -> int:
    """The one behind it. They go round; 0 is none of them, and even and odd alternate."""
    return generation + 1 if generation < _GENERATIONS else 2


def is_newer(generation: int, other: int) -> bool:
    """Whether a generation came after another one, of the two in a slot."""
    return 0 < (generation - other) & _GENERATIONS <= _GENERATIONS >> 1


def encode_head(seed: int, number: int, name: Sequence[int], term: Term) -> int:
    """The head of a term of the group with this name, in this slot."""
    above = term.generation << 12 | term.owner << 2 | term.flags
    return above << 32 | _check(seed, number, name, term.base, above) & 0xFFFFFFFF


def decode_head(seed: int, number: int, name: Sequence[int], base: int, head: int) -> Term | None:
    """The term; None if base and head do not belong together."""
    above = head >> 32
    if head & 0xFFFFFFFF != _check(seed, number, name, base, above) & 0xFFFFFFFF:
        return None
    return Term(base, above >> 12, above >> 2 & OWNERS_MAX, above & 3)


def generation_of(head: int) -> int:
    """The generation that a head names, right or wrong."""
    return head >> 44


def cell_seed(seed: int, number: int, name: Sequence[int], term: Term) -> int:
    """What the cells of one generation are seeded with; who owns it does not matter."""
    return _check(seed, number, name, term.base, term.generation << 12)


def encode_cell(seed: int, delta: int) -> int:
    """A cell; the seed is that of its generation."""
    return delta | checksum(_DELTA.pack(delta), seed) >> 36 << 36


def decode_cell(seed: int, cell: int) -> int | None:
    """How far behind the base; None if it is not a cell of this generation."""
    delta = cell & DELTA_MAX
    return delta if encode_cell(seed, delta) == cell else None


def decode_slot(seed: int, number: int, words: Sequence[int]) -> Slot | str | None:
    """What a slot says; None for a free one; or why nobody can tell."""
    heads = [words[at] for at in HEAD]
    if not any(heads):
        return None
    name = tuple(words[:6])
    found = [
        decode_head(seed, number, name, words[base], head) if head else None
        for base, head in zip(BASE, heads, strict=True)
    ]
    whole = [term for term in found if term is not None]
    if not whole:
        return "no term matches its checksum"
    term = whole[0]
    if len(whole) == 2:
        term = whole[1] if is_newer(whole[1].generation, term.generation) else term
    else:  # the other one is older, and was about to be written; or it is newer, and damaged
        other = generation_of(heads[1 if found[0] is term else 0])
        if other and is_newer(other, term.generation):
            return f"the term of generation {other} does not match its checksum"
    text = struct.pack("<6Q", *name).rstrip(b"\0")
    cell_of = cell_seed(seed, number, name, term)
    delta = decode_cell(cell_of, words[CELL + term.generation % 4])
    try:
        return Slot(
            number, text.decode(), term, term.base + (delta or 0), words[UPDATED], words[ACKS],
            "" if delta is not None else "its cell does not match its checksum",
        )  # fmt: skip
    except UnicodeDecodeError:
        return "a name that nobody writes"


def _check(seed: int, number: int, name: Sequence[int], base: int, above: int) -> int:
    packed = struct.pack("<8Q", *name, base & MASK64, above)
    return checksum(packed, seed ^ number)
