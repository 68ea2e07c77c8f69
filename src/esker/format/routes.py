"""The routes of a store, and the mark that a route leaves in its destination.

    routes       0 "ESKR"  4 u16 version  6 u16 zero  8 u64 generation
                16 u32 body size  20 u32 zero  24 store id, 16 bytes
                40 u64 checksum of the body  48 u64 zero  56 u64 checksum of 0..56
                64 body: JSON

    mark         0 the first 8 bytes of the store id  8 u64 route  16 u32 epoch  20 u32 source shard
                24 u64 offset of the record in the source

The file is replaced as a whole, under a kernel lock. A mark is the value of the header
`esker-route` on the last record of a batch that was forwarded exactly once: all records of that
source shard up to that offset which belong here are here.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from esker.format.checksum import checksum

MAGIC: Final = b"ESKR"
VERSION: Final = 1
HEADER_SIZE: Final = 64
BYTES_MAX: Final = 64 << 20
MARK_SIZE: Final = 32
MARK_HEADER: Final = "esker-route"
ROUTED: Final = "esker-routed"  # a mark that somebody else appended: it says nothing of a route
HOPS_HEADER: Final = "esker-hops"
FOREIGN: Final = "routes of another store"
_HEADER: Final = struct.Struct("<4sHHQII16sQQ")
_CHECK: Final = struct.Struct("<Q")
_MARK: Final = struct.Struct("<8sQII")
assert _HEADER.size == 56
assert _MARK.size + _CHECK.size == MARK_SIZE


class RouteEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A route as the file knows it."""

    id: int
    name: str
    source: int  # ids of topics, and what they were called
    source_name: str
    destination: int
    destination_name: str
    created: int
    where: str = ""
    exactly_once: bool = False
    merge: bool = False
    allow_cycles: bool = False
    hops: int = 8
    epoch: int = 0  # raised by every seek: older marks do not count
    since: tuple[int, ...] = ()  # ends of the destination's shards when the route was made
    state: str = "ready"  # making: not one yet; deleting: none any more
    reason: str = ""  # why it stands still


class Routes(msgspec.Struct, frozen=True):
    """All routes, and the next id to give out."""

    next_id: int = 1
    routes: tuple[RouteEntry, ...] = ()


def encode(routes: Routes, generation: int, store: bytes) -> bytes:
    body = msgspec.json.encode(routes)
    packed = _HEADER.pack(MAGIC, VERSION, 0, generation, len(body), 0, store, checksum(body), 0)
    return packed + _CHECK.pack(checksum(packed)) + body


def decode(data: bytes, store: bytes) -> tuple[Routes, int] | str:
    """Routes and generation, or why there are none. A newer version is "version N"."""
    if len(data) < HEADER_SIZE or data[:4] != MAGIC:
        return "not a file of routes"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != checksum(data[:56]):
        return "header of the routes does not match its checksum"
    _, version, _, generation, size, _, owner, body_check, _ = _HEADER.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    if owner != store:
        return FOREIGN
    body = data[HEADER_SIZE : HEADER_SIZE + size]
    if len(body) < size or checksum(body) != body_check:
        return "routes do not match their checksum"
    try:
        routes = msgspec.json.decode(body, type=Routes)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return f"routes cannot be read: {problem}"
    ids = [entry.id for entry in routes.routes]
    if len(set(ids)) < len(ids) or not 0 <= min(ids, default=0) <= max(ids, default=0) < (
        routes.next_id
    ):
        return f"routes cannot be read: ids {ids}, next id {routes.next_id}"
    return routes, generation


def mark_prefix(store: bytes, route: int, epoch: int, shard: int) -> bytes:
    """What all marks of a route begin with that are of one source shard."""
    return _MARK.pack(store[:8], route, epoch, shard)


def encode_mark(prefix: bytes, offset: int) -> bytes:
    return prefix + _CHECK.pack(offset)


def decode_mark(mark: bytes) -> int:
    """The offset in a mark; -1 if it is none."""
    return int(_CHECK.unpack_from(mark, _MARK.size)[0]) if len(mark) == MARK_SIZE else -1
