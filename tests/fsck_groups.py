"""The part of the second opinion that reads groups, from docs/format.md §20 and from nothing else.

See tests/fsck.py, which uses it.
"""

from __future__ import annotations

from struct import pack, unpack

from xxhash import xxh3_64_intdigest as xxh3

EMPTY = bytes(128)  # of 512 slots most are


def offsets(
    data: bytes, store: bytes, topic: int, shard: int
) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """§20: the cursors of groups by their names, and what is wrong with the page."""
    if not any(data):
        return {}, []
    if len(data) != 65_664:
        return {}, [(0, "page of offsets does not have 65,664 bytes")]
    found: dict[str, int] = {}
    flaws = []
    head = pack("<8sQQQ16s", b"ESKOFFS\0", 1, topic, shard, store)
    if any(data[:8]) and data[:128] != (head + pack("<Q", xxh3(head))).ljust(128, b"\0"):
        flaws.append((0, "header of a page of offsets"))
    seed = xxh3(pack("<16sQQ", store, topic, shard))
    for number in range(512):
        slot = data[128 * number + 128 : 128 * number + 256]
        if slot == EMPTY:
            continue
        name, terms = slot[:48], []
        words = unpack("<10Q", slot[48:])
        if not words[1] and not words[3]:
            continue
        for base, head_word in (words[:2], words[2:4]):
            check = xxh3(name + pack("<QQ", base, head_word >> 32), seed ^ number)
            if head_word and head_word & 0xFFFFFFFF == check & 0xFFFFFFFF:
                terms.append((head_word >> 44, base))
        if not terms:
            flaws.append((128 * number + 128, "a slot without a whole term"))
            continue
        generation, base = max(terms)  # in tests they never go round
        check = xxh3(name + pack("<QQ", base, generation << 12), seed ^ number)
        cell = words[4 + generation % 4]
        delta = cell & (1 << 36) - 1
        if cell >> 36 != xxh3(pack("<Q", delta), check) >> 36:
            flaws.append((128 * number + 128, "a cell that does not match its checksum"))
        found[name.rstrip(b"\0").decode()] = base + delta
    return found, flaws
