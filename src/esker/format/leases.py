"""Leases: who holds which job of a queue, as a log of what happened.

    file   := header:64 frame*             leases-00000003, one log for each shard of a queue
    header    0 "ESKL"  4 u16 version  6 u16 zero  8 u64 number of the file
             16 u64 topic id  24 u32 shard  28 u32 zero  32 store id, 16 bytes
             48 u64 salt  56 u64 checksum of bytes 0..56
    frame  := as in a log (frame.py), of kind LEASES, with the salt of this file
    body   := MessagePack: an array of events, each an array whose first element says its kind

A frame is one operation: all of its events happened, or none. Its two timestamps are the wall clock
when it was written, for people who ask who held a job when; nothing is decided by them. The first
event of a file is a SNAPSHOT, so a file needs no other one; the last event of a file that was
followed by the next is ENDED.

Offsets are told as runs: first, count, first, count and so on, in order. Deadlines are microseconds
of the monotonic clock of one boot, and mean nothing in another; `at` of a scheduled job is the wall
clock. A worker is 63 random bits; with the number of its claim they are the token.

    1 CLAIMED    number worker pid until runs keys        keys: a hash for each job, or none at all
    2 ACKED      number worker runs
    3 NACKED     number worker runs ready reason           ready: monotonic, 0 at once
    4 RELEASED   number worker runs
    5 EXTENDED   number worker until runs
    6 DIED       worker                                    all its leases are void
    7 BOOTED     boot                                      all leases are void
    8 DELAYED    pairs                                     offset, at, offset, at ...
    9 PARKED     pairs                                     offset, hash of its key ...
    10 GONE      runs reason                               lost or deleted before anybody had them
    11 DEAD      runs reasons                              given up, and kept
    12 MOVED     sequence to runs deliveries reasons       to be copied to another topic, once
    13 SETTLED   sequence                                  that copy is there
    14 REQUEUED  runs                                      dead ones are ready again
    15 PURGED    runs
    16 PAUSED    paused                                    true or false
    17 ENDED     next                                      the next file goes on
    18 SNAPSHOT  everything
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from esker.format import frame
from esker.format.checksum import checksum

MAGIC: Final = b"ESKL"
VERSION: Final = 1
HEADER_SIZE: Final = 64
_HEADER: Final = struct.Struct("<4sHHQQII16sQ")
_CHECK: Final = struct.Struct("<Q")

Runs = list[int]  # first, count, first, count ...


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Jobs were handed out under one token."""

    number: int
    worker: int
    pid: int
    until: int
    runs: Runs
    keys: list[int] = []


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Jobs are done."""

    number: int
    worker: int
    runs: Runs


class Nacked(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Jobs failed, and are ready again later."""

    number: int
    worker: int
    runs: Runs
    ready: int = 0
    reason: str = ""


class Released(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Jobs were given back untried."""

    number: int
    worker: int
    runs: Runs


class Extended(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The holder needs more time."""

    number: int
    worker: int
    until: int
    runs: Runs


class Died(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A worker is gone: its leases are void."""

    worker: int


class Booted(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The machine was started again: all leases are void."""

    boot: bytes


class Delayed(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Jobs whose time has not come."""

    pairs: list[int]


class Parked(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Jobs that wait for one before them with the same key."""

    pairs: list[int]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Offsets without a record."""

    runs: Runs
    reason: str = ""


class Dead(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Jobs were given up, and are kept."""

    runs: Runs
    reasons: list[str] = []


class Moved(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Jobs belong to another topic from here on; the copy is made once."""

    sequence: int
    to: str
    runs: Runs
    deliveries: list[int] = []
    reasons: list[str] = []


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The copy is there."""

    sequence: int


class Requeued(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Dead jobs are ready again."""

    runs: Runs


class Purged(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Jobs were thrown away on request."""

    runs: Runs


class Paused(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Nothing is handed out, or it is again."""

    paused: bool


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The log goes on in the next file."""

    next: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Everything that counts, so that what was before may go."""

    cursor: int = 0
    number: int = 0
    sequence: int = 0
    paused: bool = False
    boot: bytes = b""
    held: list[tuple[int, int, int, int, Runs]] = []  # number, worker, pid, until, runs
    again: list[int] = []  # offset, deliveries ...
    loose: Runs = []
    resting: list[int] = []  # offset, ready ...
    later: list[int] = []  # offset, at ...
    dead: list[tuple[int, str]] = []
    moving: list[tuple[int, str, Runs, list[int], list[str]]] = []
    keys: list[int] = []  # offset, hash ... of those that are not parked
    parked: list[int] = []  # offset, hash ... in order
    why: list[tuple[int, str]] = []
    gone: int = 0


Event = (
    Claimed | Acked | Nacked | Released | Extended | Died | Booted | Delayed | Parked | Gone | Dead
    | Moved | Settled | Requeued | Purged | Paused | Ended | Snapshot
)  # fmt: skip

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Event])


class LeasesHeader(NamedTuple):
    """Whose leases a file holds."""

    number: int
    topic: int
    shard: int
    store: bytes
    salt: int


def encode_header(header: LeasesHeader) -> bytes:
    number, topic, shard, store, salt = header
    packed = _HEADER.pack(MAGIC, VERSION, 0, number, topic, shard, 0, store, salt)
    return packed + _CHECK.pack(checksum(packed))


def decode_header(data: bytes) -> LeasesHeader | str:
    """The header, or why there is none. A newer version is told as "version N"."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not a log of leases"
    if _CHECK.unpack_from(data, 56)[0] != checksum(data[:56]):
        return "the header does not match its checksum"
    _, version, _, number, topic, shard, _, store, salt = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    return LeasesHeader(number, topic, shard, store, salt)


def encode_frame(
    events: Sequence[Event], position: int, salt: int, now_us: int, synced: int = 0
) -> bytes:
    """One operation, as it is written at `position`."""
    body = _encoder.encode(events)
    size = len(body)
    head = frame.lease_header(
        position, salt, size, len(events), now_us, synced & 0xFFFFFFFF, checksum(body, salt)
    )
    return head + body + bytes(-size & 7)


class Flaw(NamedTuple):
    """Where a log of leases cannot be read, and why."""

    position: int
    reason: str


class Told(NamedTuple):
    """One operation, where it ends, and when it was."""

    end: int
    when: int
    events: list[Event]


def decode_frames(data: Any, start: int, position: int, salt: int) -> Iterator[Told | Flaw]:
    """The operations in data[start:], which lies at `position` of its file; a flaw ends it."""
    at = start
    while at < len(data):
        place = position + at - start
        header = frame.decode_header(data, at, place, salt)
        if isinstance(header, frame.Damage):
            yield Flaw(place, header.reason)
            return
        begin = at + frame.HEADER_SIZE
        body = data[begin : begin + header.body_size]
        damage = frame.body_damage(header, body, salt)
        found = _events(header, body) if damage is None else damage.reason
        at += header.size
        if at > len(data):  # be it in the padding: the next one begins behind
            found = "the file ends inside a frame"
        if isinstance(found, str):
            yield Flaw(place, found)
            return
        yield Told(place + header.size, header.min_timestamp, found)


def _events(header: frame.Header, body: bytes) -> list[Event] | str:
    if header.kind != frame.LEASES:
        return "a frame that tells of no lease"
    try:
        found = _decoder.decode(body)
    except msgspec.MsgspecError as problem:
        return f"events that nobody writes ({problem})"
    return found or "a frame that tells of nothing"


def next_frame(data: bytes, position: int, salt: int) -> int | None:
    """Where behind a flaw the next whole frame of a file begins; None if there is none."""
    at = data.find(frame.MAGIC, position + 1)
    while at >= 0:
        if at % frame.ALIGN == 0:
            header = frame.decode_header(data, at, at, salt)
            if not isinstance(header, frame.Damage):
                return at
        at = data.find(frame.MAGIC, at + 1)
    return None


# ---- runs ------------------------------------------------------------------------------------


def runs_of(offsets: Sequence[int]) -> Runs:
    """Ascending offsets as runs."""
    if not offsets:
        return []
    first = offsets[0]
    if offsets[-1] - first == len(offsets) - 1:
        return [first, len(offsets)]
    runs: Runs = []
    end = first
    for offset in offsets:
        if offset != end:
            runs += (first, end - first)
            first = offset
        end = offset + 1
    return [*runs, first, end - first]


def offsets_of(runs: Runs) -> Sequence[int]:
    """The offsets of runs, ascending."""
    if len(runs) == 2:
        return range(runs[0], runs[0] + runs[1])
    found: list[int] = []
    for at in range(0, len(runs), 2):
        found += range(runs[at], runs[at] + runs[at + 1])
    return found


def count_of(runs: Runs) -> int:
    """How many offsets there are in runs."""
    return sum(runs[1::2])
