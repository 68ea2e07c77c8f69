"""Comet's files beside the data: the index, the counters, the offsets of consumers. Little-endian.

    index.bin      magic "COMT" u32, version u32, current entry u64, write offset u64, counts of
                   consumers, nodes and files u32 each; then
                   consumers: name length u8, name, offset u64
                   nodes (20 bytes): entry u64, file u32, position u64
                   files: path length u16, path, and six u64: start and end offset, start entry,
                   entries, start and end time (ns)
    comet.state    1 KB of counters, u64 each, a cache line to a subject
    offsets.state  version u32, magic u32, 56 bytes; then 512 slots of 128 bytes: name (48, ends
                   with NUL), offset, time (ns), acks, 56 bytes. A name lies in the slot of its
                   FNV-1a hash or behind it

The index is what readers of Comet go by: entries from `current entry` on are not synced. The other
two hold nothing that a record depends on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

INDEX_MAGIC: Final = 0x434F4D54
INDEX_VERSION: Final = 1
_HEAD: Final = struct.Struct("<IIQQIII")
_NODE: Final = struct.Struct("<QIQ")
_INFO: Final = struct.Struct("<6Q")
NODE_BYTES: Final = _NODE.size

STATE_BYTES: Final = 1024
STATE_VERSION: Final = 1
_LINES: Final[dict[int, str]] = {
    0: "Version WriteOffset LastEntryNumber LastIndexUpdate ActiveFileIndex FileSize "
    "LastFileSequence",
    64: "TotalEntries TotalBytes TotalWrites LastWriteNanos CurrentBatchSize TotalBatches "
    "FailedWrites",
    128: "TotalCompressed CompressedEntries SkippedCompression CompressionRatio CompressionTime",
    192: "WriteLatencySum WriteLatencyCount MinWriteLatency MaxWriteLatency SyncLatencyNanos",
    256: "FilesCreated FilesDeleted FileRotations RotationTime CurrentFiles TotalFileBytes "
    "FailedRotations SyncCount",
    320: "CheckpointCount LastCheckpoint CheckpointTime IndexPersistCount IndexPersistErrors "
    "IndexSizeBytes BinaryIndexNodes",
    384: "ActiveReaders TotalReaders MaxConsumerLag TotalEntriesRead ConsumerGroups AckedEntries "
    "ReaderCacheHits",
    448: "ErrorCount LastErrorNanos CorruptionDetected RecoveryAttempts RecoverySuccesses "
    "PartialWrites ReadErrors",
    512: "RetentionRuns LastRetention RetentionTime EntriesDeleted BytesReclaimed OldestEntry "
    "RetentionErrors ProtectedByConsumers",
    768: "ReaderFileMaps ReaderFileUnmaps ReaderCacheBytes ReaderMappedFiles ReaderFileRemaps "
    "ReaderCacheEvicts",
}
STATE_PLACES: Final[dict[str, int]] = {
    name: line + 8 * number
    for line, names in _LINES.items()
    for number, name in enumerate(names.split())
}
_CACHE_LINE, _CACHE_LINE_IN_CODE = 768, 640  # the document and the code do not agree

OFFSETS_MAGIC: Final = 0xC0FE0FF5
OFFSETS_VERSION: Final = 1
SLOTS: Final = 512
SLOT_BYTES: Final = 128
OFFSETS_BYTES: Final = 64 + SLOTS * SLOT_BYTES
NAME_BYTES: Final = 48
_SLOT: Final = struct.Struct("<48sqqQ56x")


class Node(NamedTuple):
    entry: int
    file: int
    position: int


class FileInfo(NamedTuple):
    """What the index knows of a data file."""

    path: str
    start_offset: int
    end_offset: int
    start_entry: int
    entries: int
    start_time: int
    end_time: int


class Index(NamedTuple):
    current_entry: int
    write_offset: int
    nodes: Sequence[Node] = ()
    files: Sequence[FileInfo] = ()
    consumers: Mapping[str, int] = {}


def encode_index(index: Index) -> bytes:
    parts = [
        _HEAD.pack(
            INDEX_MAGIC, INDEX_VERSION, index.current_entry, index.write_offset,
            len(index.consumers), len(index.nodes), len(index.files),
        )
    ]  # fmt: skip
    for group, offset in index.consumers.items():
        name = group.encode()
        parts += [bytes((len(name),)), name, offset.to_bytes(8, "little")]
    parts += [_NODE.pack(*node) for node in index.nodes]
    for file in index.files:
        path = file.path.encode()
        parts += [len(path).to_bytes(2, "little"), path, _INFO.pack(*file[1:])]
    return b"".join(parts)


def decode_index(data: bytes) -> Index | str:
    """The index, or what is wrong with it."""
    if len(data) < _HEAD.size:
        return "the index is shorter than its header"
    magic, version, current, written, consumers, nodes, files = _HEAD.unpack_from(data)
    if magic != INDEX_MAGIC:
        return f"the index begins with {magic:#x}, not with {INDEX_MAGIC:#x}"
    if version != INDEX_VERSION:
        return f"the index is of version {version}"
    try:
        at, groups = _HEAD.size, {}
        for _ in range(consumers):
            size = data[at]
            name = data[at + 1 : at + 1 + size].decode()
            (groups[name],) = struct.unpack_from("<Q", data, at + 1 + size)
            at += 9 + size
        behind = at + nodes * NODE_BYTES
        if behind > len(data):
            return "the index ends among its nodes"
        found = [Node(*node) for node in _NODE.iter_unpack(memoryview(data)[at:behind])]
        at, infos = behind, []
        for _ in range(files):
            size = int.from_bytes(data[at : at + 2], "little")
            path = data[at + 2 : at + 2 + size].decode()
            infos.append(FileInfo(path, *_INFO.unpack_from(data, at + 2 + size)))
            at += 2 + size + _INFO.size
    except (IndexError, struct.error, UnicodeDecodeError):
        return "the index ends too early, or a name in it is no text"
    return Index(current, written, found, infos, groups)


def encode_state(values: Mapping[str, int]) -> bytes:
    """The counters; those that are not given are 0, but for the version."""
    page = bytearray(STATE_BYTES)
    for name, value in {"Version": STATE_VERSION, **values}.items():
        struct.pack_into("<Q", page, STATE_PLACES[name], value)
    return bytes(page)


def decode_state(data: bytes) -> dict[str, int] | str:
    """The counters by their names, or what is wrong with them."""
    if len(data) != STATE_BYTES:
        return f"{len(data)} bytes instead of {STATE_BYTES}"
    words = struct.unpack("<128Q", data)
    if words[0] != STATE_VERSION:
        return f"counters of version {words[0]}"
    shift = 0
    if not any(words[_CACHE_LINE // 8 : _CACHE_LINE // 8 + 6]):
        shift = _CACHE_LINE - _CACHE_LINE_IN_CODE
    return {
        name: words[(place - (shift if place >= _CACHE_LINE else 0)) // 8]
        for name, place in STATE_PLACES.items()
    }


class Consumer(NamedTuple):
    """How far a group has come."""

    offset: int
    updated: int = 0  # ns
    acks: int = 0


def fnv1a(name: bytes) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in name:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def encode_offsets(groups: Mapping[str, Consumer]) -> bytes:
    """The page of consumers. A name is cut to 47 bytes, as Comet does."""
    page = bytearray(OFFSETS_BYTES)
    struct.pack_into("<II", page, 0, OFFSETS_VERSION, OFFSETS_MAGIC)
    for group, consumer in groups.items():
        name = group.encode()
        start = fnv1a(name) % SLOTS
        for step in range(SLOTS):
            at = 64 + (start + step) % SLOTS * SLOT_BYTES
            if not page[at]:
                _SLOT.pack_into(page, at, name[: NAME_BYTES - 1], *consumer)
                break
        else:
            raise ValueError(f"a page holds {SLOTS} groups")
    return bytes(page)


def decode_offsets(data: bytes) -> dict[str, Consumer] | str:
    """The groups that have a slot, or what is wrong with the page."""
    if len(data) != OFFSETS_BYTES:
        return f"{len(data)} bytes instead of {OFFSETS_BYTES}"
    version, magic = struct.unpack_from("<II", data)
    if magic != OFFSETS_MAGIC:
        return f"the page begins with {magic:#x}, not with {OFFSETS_MAGIC:#x}"
    if version != OFFSETS_VERSION:
        return f"a page of version {version}"
    found = {}
    for at in range(64, OFFSETS_BYTES, SLOT_BYTES):
        if data[at]:
            name, offset, updated, acks = _SLOT.unpack_from(data, at)
            text = name.split(b"\0", 1)[0].decode("utf-8", "replace")
            found[text] = Consumer(offset, updated, acks)
    return found


def slot_of(data: bytes, group: str) -> int | None:
    """In which slot a group lies: the one of its hash, or the next that is its own."""
    name = group.encode()
    start = fnv1a(name) % SLOTS
    for step in range(SLOTS):
        slot = (start + step) % SLOTS
        at = 64 + slot * SLOT_BYTES
        if not data[at]:
            return None
        if bytes(data[at : at + NAME_BYTES]).split(b"\0", 1)[0] == name[: NAME_BYTES - 1]:
            return slot
    return None


def decode_old_offsets(data: bytes) -> dict[str, int]:
    """offsets.bin, which came before the page: version u8, count u32, then names and offsets."""
    found: dict[str, int] = {}
    if len(data) < 5 or data[0] != 1:
        return found
    at = 5
    for _ in range(int.from_bytes(data[1:5], "little")):
        size = data[at] if at < len(data) else 0
        if at + 1 + size + 8 > len(data):
            break
        name = data[at + 1 : at + 1 + size].decode("utf-8", "replace")
        found[name] = int.from_bytes(data[at + 1 + size : at + 9 + size], "little", signed=True)
        at += 9 + size
    return found
