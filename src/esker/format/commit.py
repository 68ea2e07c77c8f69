"""The commit of a batch that was made elsewhere: which segments belong to it.

    commit (staging/HEX-N.commit)
        0 "ESKB"  4 u16 version  6 u16 zero  8 u64 sequence N  16 u32 body size  20 u32 zero
       24 store id, 16 bytes  40 u64 checksum of the body  48 u64 zero  56 u64 checksum of 0..56
       64 body: JSON

HEX is the fingerprint of the writer's name. The file is written, synced, renamed, and the directory
synced: that is the moment at which the batch is committed. What is still to be attached is what is
still called .staged in its shard's directory.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from esker.format.checksum import checksum

MAGIC: Final = b"ESKB"
VERSION: Final = 1
HEADER_SIZE: Final = 64
BODY_BYTES_MAX: Final = 256 << 20
_HEADER: Final = struct.Struct("<4sHHQII16sQQ")
_CHECK: Final = struct.Struct("<Q")
assert _HEADER.size == 56


class Ticket(msgspec.Struct, frozen=True):
    """A staged segment: where it is to go, and what it must be when it gets there."""

    topic: int
    shard: int
    file: str
    rows: int
    size: int
    footer: int  # position of the footer frame
    hash: int  # XXH3-64 of the bytes between header and trailer
    salt: int
    created: int


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch of some writer, in the order in which its segments are attached."""

    writer: str
    sequence: int
    tickets: tuple[Ticket, ...]
    once: bytes = b""  # the mark of its one segment, which is dropped if the shard knows it


def encode(commit: Commit, store: bytes) -> bytes:
    body = msgspec.json.encode(commit)
    packed = _HEADER.pack(
        MAGIC, VERSION, 0, commit.sequence, len(body), 0, store, checksum(body), 0
    )
    return packed + _CHECK.pack(checksum(packed)) + body


def decode(data: bytes, store: bytes) -> Commit | str:
    """The commit, or why it is none. A newer version is told as "version N"."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not a commit"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != checksum(data[:56]):
        return "commit header does not match its checksum"
    _, version, _, sequence, size, _, owner, body_check, _ = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    if owner != store:
        return "a commit of another store"
    body = data[HEADER_SIZE : HEADER_SIZE + size]
    if len(body) != size or len(data) != HEADER_SIZE + size or checksum(body) != body_check:
        return "commit body does not match its checksum"
    try:
        found = msgspec.json.decode(body, type=Commit)
    except msgspec.MsgspecError as problem:
        return f"commit: {problem}"
    return found if found.sequence == sequence else "commit header and body disagree"
