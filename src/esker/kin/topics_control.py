"""What the control frames of topics say about records: how a topic is called, and what is deleted.

Their document names the eleven types of frames and what each is for, not the bytes of their bodies.
These are those of its code, version 2 of the frames. Little-endian; `text` is a length u32 and so
many bytes, `maybe` a byte that is 1 if something follows.

    TopicCreate, ConfigUpdate   name text, configuration text
    Delete                      maybe before u64; maybe operator u8 (0: equal, 1: begins with) and
                                tag text; count u32 and so many seqs u64; maybe bound u64
    EvictWatermark              evicted u64, earliest u64, expired u64

A Delete takes the seqs that it lists. If it lists none, it takes the records before `before`, those
with such a tag, or those that are both; and only such as were there: below `bound`. What is
earlier than `earliest` is gone, too. A body that is not like this says nothing.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_FOREVER: Final = (1 << 63) - 1


class Deletion(NamedTuple):
    """What a Delete frame deletes."""

    before: int = _FOREVER  # the first seq that stays
    tag: bytes | None = None
    begins: bool = False  # whether the tag need only begin so
    seqs: tuple[int, ...] = ()


class _Body:
    """Reads one field after the other; struct.error where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(value)

    def text(self) -> bytes:
        return self.bytes(self.number("I"))

    def bytes(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise struct.error("too short")
        self._at += size
        return found

    def maybe(self) -> bool:
        told = self.number("B")
        if told > 1:
            raise struct.error("neither there nor not")
        return bool(told)

    def end(self) -> None:
        if self._at < len(self._data):
            raise struct.error("too long")


def name_of(data: bytes) -> str | None:
    """The name in a TopicCreate frame; also one that is all there is."""
    body = _Body(data)
    try:
        name = body.text()
        body.text()
        body.end()
    except struct.error:
        name = data
    try:
        text = name[:256].decode()
    except UnicodeDecodeError:
        return None
    return text if _NAME.fullmatch(text) else None


def encode_name(name: str) -> bytes:
    """The body of a TopicCreate frame, without a configuration."""
    text = name.encode()
    return struct.pack("<I", len(text)) + text + bytes(4)


def deletion_of(data: bytes) -> Deletion | None:
    """What a Delete frame deletes; None if its body is not one."""
    body = _Body(data)
    tag, begins = None, False
    try:
        before = body.number("Q") if body.maybe() else _FOREVER
        chosen = before < _FOREVER
        if body.maybe():
            begins, tag = body.maybe(), body.text()
        count = body.number("I")
        seqs = struct.unpack(f"<{count}Q", body.bytes(8 * count))
        if body.maybe():
            before = min(before, body.number("Q"))
        body.end()
    except struct.error:
        return None
    if seqs or not (chosen or tag is not None):
        before = 0
    return Deletion(min(before, _FOREVER), tag, begins, seqs)


def earliest_of(data: bytes) -> int | None:
    """The first seq that an EvictWatermark frame leaves; None if its body is not one."""
    return struct.unpack("<QQQ", data)[1] if len(data) == 24 else None


class Dead:
    """The records of a topic that are deleted."""

    def __init__(self) -> None:
        self.floor = 0  # all below are
        self._seqs: set[int] = set()
        self._rules: list[Deletion] = []

    def add(self, it: Deletion) -> None:
        self._seqs.update(seq for seq in it.seqs if seq < _FOREVER)
        if it.tag is not None:
            self._rules.append(it)
        else:
            self.floor = max(self.floor, it.before)

    def living(self, seqs: Any, tags: Any) -> Any:
        """A mask: which of these records are still there."""
        alive = pc.greater_equal(seqs, min(self.floor, _FOREVER))
        if self._seqs:
            gone = pc.is_in(seqs, pa.array(sorted(self._seqs), pa.int64()))
            alive = pc.and_(alive, pc.invert(gone))
        for rule in self._rules if tags is not None else ():
            known = tags.cast(pa.binary())
            like = pc.starts_with(known, rule.tag) if rule.begins else pc.equal(known, rule.tag)
            gone = pc.and_(pc.fill_null(like, False), pc.less(seqs, rule.before))
            alive = pc.and_(alive, pc.invert(gone))
        return alive
