"""Every option and every limit, with its unit, its default and what follows from it.

Store options are given to `esker.open` and live for that handle. Topic options are given to
`store.create` and live in the catalog. Sizes and times may be written for people ("64MiB",
"20ms"); they are kept as bytes and microseconds.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any, Final, Literal, get_args

import msgspec

from esker.errors import InvalidName, InvalidOption, nearest
from esker.positions import UNIT_US

# ---- limits: fixed by the format or by good sense ------------------------------------------

SEGMENT_BYTES_MIN: Final = 4 << 10  # small segments are for tests
SEGMENT_BYTES_MAX: Final = 1 << 30  # positions inside a segment are 32 bits wide, with room
FRAME_BYTES_TARGET: Final = 512 << 10  # a frame this big is cheap to scan and to look up in
FRAME_MERGE_BELOW: Final = 32 << 10  # frames smaller than this on average are merged at seal
FRAME_JOIN_BELOW: Final = 64 << 10  # smaller ones are copied together when they are read
FRAMES_PER_CLEAN_LOG: Final = 4_096  # a log with more frames is sealed by close: opening stays fast
RECORD_BYTES_DEFAULT: Final = 16 << 20
SMALL_RECORD_BYTES: Final = 4_096  # larger ones are counted against the buffer one by one
BUFFER_RECORDS: Final = 4_096
BUFFER_BYTES: Final = 1 << 20
SHARDS_MAX: Final = 1_024
NAME_MAX: Final = 255
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
KEY_BYTES_MAX: Final = 64 << 10
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 256 << 10  # names and values of one record's headers together
IDEMPOTENCY_KEY_BYTES_MAX: Final = 1_024
PRODUCER_BYTES_MAX: Final = 256
PRODUCERS_MAX: Final = 10_000  # a shard
DEDUPE_RECORDS: Final = 100_000
DEDUPE_RECORDS_MAX: Final = 10_000_000  # a key takes some 250 bytes of memory
DEDUPE_WINDOW_US: Final = 600_000_000
TIME_US_MAX: Final = 100 * 365 * 86_400_000_000  # a hundred years
WAIT_SECONDS_MAX: Final = 100 * 365 * 86_400.0  # a longer wait means for ever; the OS takes no more
RESERVE_OFFSETS: Final = 1 << 16  # offsets set aside on disk at a time, at the least
RESERVE_OFFSETS_MAX: Final = 1 << 24  # and at the most; a fast writer takes a second's worth
COLD_CACHE_BYTES: Final = 256 << 20  # of segments from cold stores, in memory
JOURNAL_BYTES_MIN: Final = 64 << 10  # a journal that is shorter has been cut
JOURNAL_DIRTY_SHARDS: Final = 4  # up to this many dirty shards are synced one by one
JOURNAL_ENTRY_BYTES_MAX: Final = 1 << 20  # a shard with more to sync is synced on its own

Durability = Literal["fsync", "disk", "memory", "ephemeral"]
Compression = Literal["none", "zstd"]
CompressAt = Literal["seal", "commit"]
Discard = Literal["old", "reject"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|KB|MB|GB)?", re.ASCII)
_SIZE_UNIT = {
    None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
    "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3,
}  # fmt: skip
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)?", re.ASCII)


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one handle of a store behaves. Nothing here is written to disk."""

    linger_us: int = 20_000
    """A buffered record is written at the latest after this long. 0: every append is written."""
    sync_interval_us: int = 200_000
    """Class `disk`: how often the background syncs. The loss window of a power cut."""
    commit_window_us: int = 1_000
    """Class `fsync` under load: how long a commit waits for company. A lone writer never waits."""
    max_unflushed_bytes: int = 256 << 20
    """Written or buffered, but not yet durable. Above it appends wait, or raise WouldBlock."""
    journals: int = min(os.cpu_count() or 1, 8)
    """How many redo journals share the load. Recovery does not care how many there were."""
    journal_bytes: int = 16 << 20
    """Size of one journal file; preallocated. A full one is checkpointed and replaced."""
    mapped_bytes: int = 8 << 30
    """Address space for mapped sealed segments; the least recently used are let go."""
    budget_bytes: int = 0
    """All topics together keep no more; the oldest segments are evicted for it. 0: no budget."""
    cold: str = ""
    """Where sealed segments may be moved to: a directory, or a URL such as s3://bucket/folder."""
    cold_cache_bytes: int = COLD_CACHE_BYTES
    """Memory for segments that were fetched from a cold store; the last one stays in any case."""
    handover: bool = False
    """Appends to a shard that another process writes are handed to it; else they are refused."""
    background: bool = True
    """False: no threads. Call `store.tick()` yourself. For tests and for embedding."""
    routes: bool = True
    """False: this handle does not run the routes of the store; others do."""


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic is. Kept in the catalog and in each of its segments."""

    shards: int = 1
    durability: Durability = "disk"
    compression: Compression = "none"
    compress_min_bytes: int = 4_096
    compress_at: CompressAt = "seal"  # when a log is sealed, or when each frame is written
    compression_level: int = 1
    segment_bytes: int = 64 << 20
    segment_records: int = 0  # 0: no limit
    segment_age_us: int = 0  # 0: no limit
    max_record_bytes: int = RECORD_BYTES_DEFAULT
    # how much is kept of each shard; 0: all of it
    cap_records: int = 0
    cap_bytes: int = 0
    ttl_us: int = 0
    keep_segments: int = 1  # so many are kept whatever caps and ttl say, the written one included
    # how much of each shard stays here, once it is sealed, if there is a cold store; 0: all of it
    hot_segments: int = 0
    hot_bytes: int = 0
    # what groups have to do with it: consumed takes what all of them have acked; what one of them
    # has not is kept, whatever caps and ttl say, until it is as old as force_after; 0: for ever
    consumed: bool = False
    protect_unconsumed: bool = True
    force_after_us: int = 0
    # how long a retry is known again, see engine/once.py; whichever ends first; 0: no keys at all
    dedupe_records: int = DEDUPE_RECORDS
    dedupe_window_us: int = DEDUPE_WINDOW_US
    discard: Discard = "old"  # what happens at a cap: the oldest goes, or the newest is refused


_SIZES = {
    "segment_bytes", "max_record_bytes", "compress_min_bytes", "cap_bytes",
    "max_unflushed_bytes", "journal_bytes", "mapped_bytes", "budget_bytes",
    "cold_cache_bytes", "hot_bytes",
}  # fmt: skip
_TIMES = {
    "linger": "linger_us", "sync_interval": "sync_interval_us", "ttl": "ttl_us",
    "commit_window": "commit_window_us", "segment_age": "segment_age_us",
    "force_after": "force_after_us",
    "dedupe_window": "dedupe_window_us",
}  # fmt: skip
_CHOICES: dict[str, Any] = {
    "durability": Durability, "compression": Compression, "compress_at": CompressAt,
    "discard": Discard,
}  # fmt: skip
_SWITCHES = {"background", "consumed", "handover", "protect_unconsumed", "routes"}
_RANGES = {
    "shards": (1, SHARDS_MAX),
    "segment_bytes": (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
    "max_record_bytes": (1, SEGMENT_BYTES_MAX // 2),
    "journals": (1, 64),
    "journal_bytes": (JOURNAL_BYTES_MIN, 1 << 30),
    "max_unflushed_bytes": (64 << 10, 1 << 40),
    "mapped_bytes": (0, 1 << 50),
    "linger_us": (0, TIME_US_MAX),
    "sync_interval_us": (0, TIME_US_MAX),
    "commit_window_us": (0, TIME_US_MAX),
    "segment_age_us": (0, TIME_US_MAX),
    "ttl_us": (0, TIME_US_MAX),
    "force_after_us": (0, TIME_US_MAX),
    "keep_segments": (1, 1 << 32),
    "dedupe_records": (0, DEDUPE_RECORDS_MAX),
    "dedupe_window_us": (0, TIME_US_MAX),
    "compression_level": (1, 22),
}


def store_options(**given: Any) -> StoreOptions:
    """Check and complete the options of `esker.open`."""
    return StoreOptions(**_checked(given, StoreOptions))


def topic_options(base: TopicOptions | None = None, **given: Any) -> TopicOptions:
    """Check and complete the options of `store.create`."""
    checked = _checked(given, TopicOptions)
    if base is not None:
        checked = {**msgspec.structs.asdict(base), **checked}
    options = TopicOptions(**checked)
    if options.max_record_bytes > options.segment_bytes // 2:
        if "max_record_bytes" in checked:
            raise InvalidOption(
                f"max_record_bytes={options.max_record_bytes} must be at most half of "
                f"segment_bytes={options.segment_bytes}: raise segment_bytes or lower it"
            )
        options = msgspec.structs.replace(options, max_record_bytes=options.segment_bytes // 2)
    return options


def is_evicting(options: TopicOptions) -> bool:
    """Whether anything of a topic may ever be evicted."""
    capped = options.discard == "old" and (options.cap_records or options.cap_bytes)
    return bool(capped or options.ttl_us or options.consumed)


def is_bounded(options: TopicOptions) -> bool:
    """Whether some of a topic is to be moved to a cold store."""
    return bool(options.hot_segments or options.hot_bytes) and options.durability != "ephemeral"


@cache
def _accepted(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names that its options are given by."""
    known = set(kind.__struct_fields__)
    return frozenset(known | {name for name, field in _TIMES.items() if field in known})


def _checked(given: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    accepted = _accepted(kind)
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in accepted:
            raise InvalidOption(f"unknown option {name!r}; {nearest(name, accepted)}")
        if name in _TIMES:
            if _TIMES[name] in given:
                raise InvalidOption(f"{name} and {_TIMES[name]} are one option: give one of them")
            checked[_TIMES[name]] = duration_us(value, name)
        elif name in _SIZES:
            checked[name] = size_bytes(value, name)
        elif name == "cold" and isinstance(value, os.PathLike):
            checked[name] = os.fspath(value)
        else:
            checked[name] = value
    for name, value in checked.items():
        _check_one(name, value)
    return checked


def _check_one(name: str, value: Any) -> None:
    if name in _CHOICES:
        allowed = get_args(_CHOICES[name])
        if value not in allowed:
            raise InvalidOption(f"{name}={value!r}: one of {', '.join(allowed)}")
        return
    if name == "cold":
        if not isinstance(value, str):
            raise InvalidOption(f"cold={value!r}: a directory, or a URL such as s3://bucket/folder")
        return
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise InvalidOption(f"{name}={value!r}: True or False")
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(f"{name}={value!r}: a whole number is needed")
    low, high = _RANGES.get(name, (0, 1 << 62))
    if not low <= value <= high:
        raise InvalidOption(f"{name}={value}: must lie in {low}..{high}")


def size_bytes(value: int | str, name: str = "size") -> int:
    """Bytes from a number or from text such as 64MiB."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if not found:
            raise InvalidOption(f'{name}={value!r}: a size such as 4096, "64KiB", "1GiB"')
        return _whole(float(found[1]) * _SIZE_UNIT[found[2]], name, value)
    return value


def _whole(amount: float, name: str, given: object) -> int:
    if not amount < 1 << 62:  # infinity and "not a number" too
        raise InvalidOption(f"{name}={given!r}: too large")
    return int(amount)


def duration_us(value: float | str, name: str = "duration") -> int:
    """Microseconds from seconds or from text such as 20ms."""
    if isinstance(value, str):
        found = _TIME.fullmatch(value.strip())
        if not found:
            raise InvalidOption(f'{name}={value!r}: a duration such as 0.02, "20ms", "7d"')
        return _whole(float(found[1]) * UNIT_US[found[2] or "s"], name, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise InvalidOption(f'{name}={value!r}: seconds, or text such as "20ms"')
    return _whole(value * 1_000_000, name, value)


def topic_name(name: object) -> str:
    """A topic name that may be used; it never becomes part of a path."""
    if not isinstance(name, str):
        raise InvalidName(f"a topic name is text, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r:.300} cannot name a topic: 1 to {NAME_MAX} of A-Z a-z 0-9 . _ : - "
            "beginning with a letter or a digit"
        )
    return name
