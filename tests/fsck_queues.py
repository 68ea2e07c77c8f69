"""The part of the second opinion that reads queues, from docs/format.md §21 and from nothing else.

See tests/fsck.py, which uses it. Events are decoded by a MessagePack reader of its own.
"""

from __future__ import annotations

import json
from struct import unpack_from
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest as xxh3

SNAPSHOT, ENDED = 18, 17
LEASES = 8
# how many fields each kind of event has
FIELDS = {1: 6, 2: 3, 3: 5, 4: 3, 5: 4, 6: 1, 7: 1, 8: 1, 9: 1, 10: 2, 11: 2, 12: 5, 13: 1, 14: 1,
          15: 1, 16: 1, 17: 1, 18: 16}  # fmt: skip
RUNS = {1: 5, 2: 3, 3: 3, 4: 3, 5: 4, 10: 1, 11: 1, 12: 3, 14: 1, 15: 1}  # which field


class Leases(NamedTuple):
    """What a log of leases says."""

    number: int
    topic: int
    shard: int
    store: bytes
    events: list[list[Any]]  # of whole frames, each with its kind first
    flaws: list[tuple[int, str]]
    torn: bool  # the last flaw is at the end of the file

    @property
    def begins(self) -> bool:
        return bool(self.events) and self.events[0][0] == SNAPSHOT

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1][0] == ENDED


def leases(data: bytes) -> Leases | str:
    """A log of leases, or why it is none."""
    if len(data) < 64 or data[:4] != b"ESKL":
        return "not a log of leases"
    if unpack_from("<Q", data, 56)[0] != xxh3(data[:56]):
        return "header checksum"
    version, zero, number, topic, shard, zeros, store, salt = unpack_from("<HHQQII16sQ", data, 4)
    if (version, zero, zeros) != (1, 0, 0):
        return "header"
    events: list[list[Any]] = []
    flaws: list[tuple[int, str]] = []
    at, torn = 64, False
    while at < len(data):
        found = _frame(data, at, salt)
        torn = isinstance(found, str)
        if isinstance(found, str):
            flaws.append((at, found))
            at = _next(data, at, salt)
            continue
        said, at = found
        for event in said:
            wrong = _wrong(event)
            if wrong:
                flaws.append((at, wrong))
        events += said
    return Leases(number, topic, shard, store, events, flaws, torn)


Say = tuple[str, int, str]


def judge(
    store: bytes, logs: dict[tuple[int, int, int, str], bytes], told: dict[tuple[int, str], bytes]
) -> tuple[list[Say], list[Say], dict[tuple[int, int], list[list[Any]]]]:
    """What no crash explains, what one may leave, and the events that count, by topic and shard.

    Only the newest log of a shard counts; a crash may tear it. Those before are history.
    """
    problems: list[Say] = []
    torn: list[Say] = []
    events: dict[tuple[int, int], list[list[Any]]] = {}
    for (topic, path), data in told.items():
        found = settings(data)
        if isinstance(found, str) or found[:2] != (topic, store):
            problems.append((path, 0, found if isinstance(found, str) else "of another queue"))
    newest = {(topic, shard): number for topic, shard, number, _ in sorted(logs)}
    for (topic, shard, number, path), data in sorted(logs.items()):
        log = leases(data)
        if isinstance(log, str):
            problems.append((path, 0, log))
            continue
        if (log.store, log.topic, log.shard, log.number) != (store, topic, shard, number):
            problems.append((path, 8, "the leases of another shard"))
        if number != newest[topic, shard]:
            continue  # its end may be missing: the next one was durable before it was
        if not log.begins:
            problems.append((path, 64, "a log of leases that begins without a snapshot"))
        events[topic, shard] = log.events
        if log.ended:
            torn.append((path, 64, "the next log of leases is not there"))
        for position, what in log.flaws:
            last = log.torn and position == log.flaws[-1][0]
            (torn if last else problems).append((path, position, what))
    return problems, torn, events


def _frame(data: bytes, at: int, salt: int) -> tuple[list[Any], int] | str:
    if len(data) < at + 64 or data[at : at + 4] != b"ESKF":
        return "no frame"
    if unpack_from("<Q", data, at + 56)[0] != xxh3(data[at : at + 56], (salt + at) % 2**64):
        return "frame header checksum"
    version, kind, codec, columns, size, raw, count, row, low, high = unpack_from(
        "<BBBBIIIIqq", data, at + 4
    )
    if (version, kind, codec, columns, row) != (1, LEASES, 0, 0, 0) or raw != size or low != high:
        return "a frame of another kind"
    end = at + 64 + size + -size % 8
    body = data[at + 64 : at + 64 + size]
    if end > len(data) or xxh3(body, salt) != unpack_from("<Q", data, at + 48)[0]:
        return "frame body checksum"
    said, used = unpacked(body, 0)
    if used != size or not isinstance(said, list) or len(said) != count or not said:
        return "a frame with other events than it counts"
    return said, end


def _next(data: bytes, at: int, salt: int) -> int:
    at = data.find(b"ESKF", at + 1)
    while at >= 0 and (at % 8 or isinstance(_frame(data, at, salt), str)):
        at = data.find(b"ESKF", at + 1)
    return at if at >= 0 else len(data)


def _wrong(event: Any) -> str:
    if not isinstance(event, list) or not event or event[0] not in FIELDS:
        return f"an event of no known kind: {event!r}"
    if len(event) - 1 != FIELDS[event[0]]:
        return f"an event with {len(event) - 1} fields: {event!r}"
    runs = event[RUNS[event[0]]] if event[0] in RUNS else []
    ends = [first + count for first, count in zip(runs[::2], runs[1::2], strict=False)]
    if len(runs) % 2 or any(count < 1 for count in runs[1::2]):
        return f"runs that are none: {runs!r}"
    if any(first < end for first, end in zip(runs[2::2], ends, strict=False)):
        return f"runs that are not in order: {runs!r}"
    return ""


def unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """One MessagePack value, and where it ends."""
    kind = data[at]
    if kind < 0x80:
        return kind, at + 1
    if kind >= 0xE0:
        return kind - 256, at + 1
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at + 1
    if kind in range(0xCC, 0xD4):
        code = ">" + "BHIQbhiq"[kind - 0xCC]
        (number,) = unpack_from(code, data, at + 1)
        return number, at + 1 + (1, 2, 4, 8)[(kind - 0xCC) % 4]
    if 0xA0 <= kind < 0xC0 or kind in (0xD9, 0xDA, 0xDB):
        size, at = _length(data, at, kind, 0xA0, 0xD9, 31)
        return data[at : at + size].decode(), at + size
    if kind in (0xC4, 0xC5, 0xC6):
        size, at = _length(data, at, kind, 0x100, 0xC4, 0)
        return data[at : at + size], at + size
    if 0x90 <= kind < 0xA0 or kind in (0xDC, 0xDD):
        size, at = _length(data, at, kind, 0x90, 0xDB, 15)
        found = []
        for _ in range(size):
            one, at = unpacked(data, at)
            found.append(one)
        return found, at
    raise ValueError(f"MessagePack type {kind:#x}")


def _length(data: bytes, at: int, kind: int, small: int, first: int, mask: int) -> tuple[int, int]:
    if small <= kind <= small + mask:
        return kind & mask, at + 1
    width = 1 << (kind - first)
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


def settings(data: bytes) -> tuple[int, bytes, dict[str, Any]] | str:
    """The settings of a queue: topic, store, options; or why there are none."""
    if len(data) < 64 or data[:4] != b"ESKQ":
        return "not the settings of a queue"
    if unpack_from("<Q", data, 56)[0] != xxh3(data[:56]):
        return "settings header checksum"
    version, zero, topic, size, zeros, store, check, more = unpack_from("<HHQII16sQQ", data, 4)
    if (version, zero, zeros, more) != (1, 0, 0, 0):
        return "settings header"
    if len(data) != 64 + size or check != xxh3(data[64:]):
        return "settings body"
    return topic, store, json.loads(data[64:])
