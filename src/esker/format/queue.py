"""What a queue is: the options that make a topic one.

    settings (topics/<id>/queue/settings)
        0 "ESKQ"  4 u16 version  6 u16 zero  8 u64 topic id  16 u32 body size  20 u32 zero
       24 store id, 16 bytes  40 u64 checksum of the body  48 u64 zero  56 u64 checksum of 0..56
       64 body: JSON

A topic with such a file is a queue. The file is replaced as a whole, so it is there or it is not.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from esker.format.checksum import checksum

MAGIC: Final = b"ESKQ"
VERSION: Final = 1
HEADER_SIZE: Final = 64
BODY_BYTES_MAX: Final = 1 << 20
_HEADER: Final = struct.Struct("<4sHHQII16sQQ")
_CHECK: Final = struct.Struct("<Q")
assert _HEADER.size == 56


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of a queue are handed out. Kept with the queue, for all who open it."""

    lease_us: int = 30_000_000
    """How long a claim holds its jobs, unless it says otherwise."""
    max_deliveries: int = 0
    """A job that was handed out so often, and is not done, is given up. 0: never."""
    dead_letter: str = ""
    """The topic that jobs go to when they are given up. Without one they stay, see queue.dead."""
    ordered: bool = False
    """At most one job of a key is out at a time, and they come in the order they were put."""
    priorities: int = 1
    """How many there are; 0 is served last. Each has shards of its own."""
    leases_durable: bool = False
    """Whether claims survive power loss too. If not, all that was in flight can be claimed then."""
    claim_jitter_us: int = 0
    """How long a claim waits for others, to share with them what there is. 0: not at all."""
    history_us: int = 86_400_000_000
    """How long it can be told who held a job when."""
    history_bytes: int = 64 << 20
    """And how many bytes of a shard that may take."""


def encode(options: QueueOptions, store: bytes, topic: int) -> bytes:
    body = msgspec.json.encode(options)
    packed = _HEADER.pack(MAGIC, VERSION, 0, topic, len(body), 0, store, checksum(body), 0)
    return packed + _CHECK.pack(checksum(packed)) + body


def decode(data: bytes, store: bytes, topic: int) -> QueueOptions | str:
    """The options, or why there are none. A newer version is told as "version N"."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not the settings of a queue"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != checksum(data[:56]):
        return "the header does not match its checksum"
    _, version, _, owner, size, _, of, body_check, _ = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    if (of, owner) != (store, topic):
        return "the settings of another queue"
    body = data[HEADER_SIZE:]
    if len(body) != size or checksum(body) != body_check:
        return "the body does not match its checksum"
    try:
        return msgspec.json.decode(body, type=QueueOptions)
    except msgspec.MsgspecError as problem:
        return f"settings that nobody writes ({problem})"
