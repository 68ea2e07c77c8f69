"""The store's identity and its list of topics.

    identity (esker.store)     0 "ESKERSTO"  8 u16 version  10 u16 zero  12 u32 zero
                              16 store id, 16 bytes  32 i64 created  40 u64 checksum of 0..40

    catalog (catalog-N)        0 "ESKC"  4 u16 version  6 u16 zero  8 u64 generation N
                              16 u32 body size  20 u32 zero  24 store id, 16 bytes
                              40 u64 checksum of the body  48 u64 zero  56 u64 checksum of 0..56
                              64 body: JSON

A catalog is replaced as a whole: written beside the old one, synced, renamed, the directory
synced. The generation before it is kept. Should both be damaged, names and options are read back
from the CONFIG frame that every segment begins with.

It also knows where the last topics ended that were deleted: who comes back with a place in one of
them, and finds another of that name, is told what he missed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from esker.errors import InvalidName, InvalidOption
from esker.format.checksum import checksum
from esker.options import TopicOptions, is_evicting, topic_name, topic_options

IDENTITY_MAGIC: Final = b"ESKERSTO"
CATALOG_MAGIC: Final = b"ESKC"
VERSION: Final = 1
IDENTITY_SIZE: Final = 48
CATALOG_HEADER_SIZE: Final = 64
CATALOG_BYTES_MAX: Final = 256 << 20
NUMBER_MAX: Final = 1 << 62
FORMER_MAX: Final = 256  # so many deleted topics are remembered
LATER: Final = (
    "cap_records", "cap_bytes", "ttl_us", "keep_segments", "discard", "compress_at",
    "compression_level", "hot_segments", "hot_bytes", "consumed", "protect_unconsumed",
    "force_after_us", "dedupe_records", "dedupe_window_us",
)  # fmt: skip
FOREIGN: Final = "catalog of another store"
_IDENTITY: Final = struct.Struct("<8sHHI16sq")
_CATALOG: Final = struct.Struct("<4sHHQII16sQQ")
_CHECK: Final = struct.Struct("<Q")
assert _IDENTITY.size == 40
assert _CATALOG.size == 56


class TopicEntry(msgspec.Struct, frozen=True):
    """A topic as the catalog knows it; also the body of a CONFIG frame."""

    id: int
    name: str
    epoch: int
    created: int
    options: TopicOptions


class Former(msgspec.Struct, frozen=True):
    """A topic that was deleted, and where its shards ended; no ends: nobody knows."""

    id: int
    name: str
    ends: tuple[int, ...] = ()


class Catalog(msgspec.Struct, frozen=True):
    """All topics, the next id to give out, and the last ones that were deleted."""

    next_id: int = 1
    topics: tuple[TopicEntry, ...] = ()
    former: tuple[Former, ...] = ()

    def without(self, ends: Mapping[int, tuple[int, ...]]) -> Catalog:
        """The same when these topics, by their ids, are deleted. Ids are never used again."""
        gone = (Former(e.id, e.name, ends[e.id]) for e in self.topics if e.id in ends)
        former = (*self.former, *gone)[-FORMER_MAX:]
        kept = tuple(entry for entry in self.topics if entry.id not in ends)
        return Catalog(self.next_id, kept, former)


def encode_identity(store: bytes, created: int) -> bytes:
    packed = _IDENTITY.pack(IDENTITY_MAGIC, VERSION, 0, 0, store, created)
    return packed + _CHECK.pack(checksum(packed))


def decode_identity(data: bytes) -> tuple[bytes, int] | str:
    """Store id and creation time, or why there is none. A newer version is "version N"."""
    if len(data) < IDENTITY_SIZE or data[:8] != IDENTITY_MAGIC:
        return "not an Esker identity file"
    (check,) = _CHECK.unpack_from(data, 40)
    if check != checksum(data[:40]):
        return "identity file does not match its checksum"
    _, version, _, _, store, created = _IDENTITY.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    return store, created


def encode_catalog(catalog: Catalog, generation: int, store: bytes) -> bytes:
    entries = [_written(entry) for entry in catalog.topics]
    told = {"next_id": catalog.next_id, "topics": entries}
    if catalog.former:  # else a store has the bytes that it always had
        told["former"] = catalog.former
    body = msgspec.json.encode(told)
    packed = _CATALOG.pack(
        CATALOG_MAGIC, VERSION, 0, generation, len(body), 0, store, checksum(body), 0
    )
    return packed + _CHECK.pack(checksum(packed)) + body


def decode_catalog(data: bytes, store: bytes) -> tuple[Catalog, int] | str:
    """Catalog and generation, or why there is none."""
    if len(data) < CATALOG_HEADER_SIZE or data[:4] != CATALOG_MAGIC:
        return "not a catalog"
    (check,) = _CHECK.unpack_from(data, 56)
    if check != checksum(data[:56]):
        return "catalog header does not match its checksum"
    _, version, _, generation, size, _, owner, body_check, _ = _CATALOG.unpack_from(data)
    if version != VERSION:
        return f"version {version}"
    if owner != store:
        return FOREIGN
    body = data[64 : 64 + size]
    if len(body) < size or checksum(body) != body_check:
        return "catalog body does not match its checksum"
    try:
        catalog = msgspec.json.decode(body, type=Catalog)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return f"catalog body cannot be read: {problem}"
    flaw = _flaw(catalog.topics)
    if not flaw and not max((entry.id for entry in catalog.topics), default=0) < catalog.next_id:
        flaw = f"next id {catalog.next_id}"
    if not flaw and any(each.id >= catalog.next_id for each in catalog.former):
        flaw = f"a topic was deleted whose id is not below {catalog.next_id}"
    return f"catalog body cannot be read: {flaw}" if flaw else (catalog, generation)


@lru_cache(maxsize=256)  # every segment that is made begins with it
def encode_config(entry: TopicEntry) -> bytes:
    """The body of the CONFIG frame that every segment begins with."""
    return msgspec.json.encode(_written(entry))


def _written(entry: TopicEntry) -> Any:
    """An entry without the options that came later and have their default.

    So a store that does not use them has the bytes that it always had.
    """
    made = msgspec.to_builtins(entry)
    options, usual = made["options"], TopicOptions()
    for name in LATER:
        if options[name] == getattr(usual, name):
            del options[name]
    return made


def decode_config(body: bytes) -> TopicEntry | str:
    try:
        entry = msgspec.json.decode(body, type=TopicEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return f"config frame cannot be read: {problem}"
    flaw = _flaw((entry,))
    return f"config frame cannot be read: {flaw}" if flaw else entry


def keeping_all(entry: TopicEntry) -> TopicEntry:
    """The same topic with nothing to be evicted, where its options may not be the last ones.

    They may have been altered since, and damaged metadata never deletes data.
    """
    if not is_evicting(entry.options):
        return entry
    refuses = entry.options.discard == "reject"  # then caps take nothing
    caps = {} if refuses else {"cap_records": 0, "cap_bytes": 0}
    options = msgspec.structs.replace(entry.options, ttl_us=0, consumed=False, **caps)
    return msgspec.structs.replace(entry, options=options)


@lru_cache(maxsize=64)  # most topics of a store have the same
def _wrong(options: TopicOptions) -> str:
    """What is wrong with options that were read."""
    try:
        topic_options(**msgspec.structs.asdict(options))
    except InvalidOption as problem:
        return str(problem)
    return ""


def _flaw(entries: tuple[TopicEntry, ...]) -> str:
    """What no Esker can have written: the number of shards alone decides how much is opened."""
    for entry in entries:
        if not (0 < entry.id < NUMBER_MAX and 0 <= entry.epoch < 1 << 32):
            return f"topic {entry.id}, epoch {entry.epoch}"
        try:
            topic_name(entry.name)
        except InvalidName as problem:
            return str(problem)
        wrong = _wrong(entry.options)
        if wrong:
            return wrong
    for kind, known in (("id", [e.id for e in entries]), ("name", [e.name for e in entries])):
        if len(set(known)) < len(known):
            return f"two topics of one {kind}"
    return ""
