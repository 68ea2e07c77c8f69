"""Every file name, built and parsed here.

Names are made of numbers, never of what a user typed (but in an archive), and are sorted as
numbers.

    DATA/esker.store                         identity, written once
    DATA/catalog-00000007                    topics; the newest valid generation counts
    DATA/catalog.lock, DATA/recovery.lock    kernel locks
    DATA/routes, DATA/routes.lock            what goes from topic to topic; a kernel lock
    DATA/journal/00000003.journal            redo journals, and NNN.lock beside each
    DATA/quarantine/                         what was set aside, never deleted by Esker
    DATA/spark/                              checkpoints of jobs that write here; only Spark's files
    DATA/staging/HEX-00000000000000000007.commit    batch 7 of a writer: what is to be attached
    DATA/topics/00000011.deleted/            topic 11, whose files are about to go
    DATA/topics/00000012/0003/               topic 12, shard 3
        00000005-00000000000000081920.log    segment 5 from offset 81920, being written
        00000004-00000000000000000000.seg    segment 4, sealed
        00000004-00000000000000000000.tags   which rows of segment 4 carry which tag
        deletions-00000002                   which records were deleted, as bitmaps
        HEX.staged                           a segment made elsewhere, not yet a part of the shard
        once                                 keys of batches and last numbers of producers, saved
        offsets  offsets.lock                how far groups have come; a kernel lock
        state  counters  lock
    DATA/topics/00000012/members             who takes part in its groups, members.lock beside it
    DATA/topics/00000012/members.d/0007      held for life by the member in slot 7
    DATA/topics/00000012/queue/              if topic 12 is a queue
        settings  lock  demand               what kind of queue; a kernel lock; who is waiting
        workers/HEX                          kernel locks: who has it, lives
        0003/leases-00000002  0003/lock      who holds which job of shard 3; a kernel lock
    DATA/processes/0003.lock                 held by the process that has slot 3
    DATA/archive/                            Parquet files, unless another place was named
        topic=orders/                        what a user typed, escaped as Hive does it
            _manifest.json  _lock            which files count; a kernel lock
            partition=0/date=2026-11-15/     records of shard 0 and of that day
                00000000000000000000-00000000000000081920-HEX.parquet
                _HEX.parquet.tmp             one that is being made

    COLD/STORE/00000012/0003/                segments of topic 12, shard 3, that were moved; STORE
                                             is the id of their store, COLD a directory or URL
        00000004-00000000000000000000.seg-HASH-HEX     with the hash of its bytes, and at random

The names in an archive are for other programs to read, who take what begins with _ as hidden.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

IDENTITY: Final = "esker.store"
CATALOG_LOCK: Final = "catalog.lock"
RECOVERY_LOCK: Final = "recovery.lock"
JOURNALS: Final = "journal"
TOPICS: Final = "topics"
ROUTES: Final = "routes"
ROUTES_LOCK: Final = "routes.lock"
QUARANTINE: Final = "quarantine"
STAGING: Final = "staging"
SPARK: Final = "spark"
STATE: Final = "state"
COUNTERS: Final = "counters"
ONCE: Final = "once"
PROCESSES: Final = "processes"
LOCK: Final = "lock"
OFFSETS: Final = "offsets"
OFFSETS_LOCK: Final = "offsets.lock"
MEMBERS: Final = "members"
MEMBERS_LOCK: Final = "members.lock"
MEMBER_LOCKS: Final = "members.d"
QUEUE: Final = "queue"
SETTINGS: Final = "settings"
WORKERS: Final = "workers"
DEMAND: Final = "demand"
TEMPORARY: Final = ".tmp"
DELETED: Final = ".deleted"
PARTIAL: Final = ".partial"  # behind the name of a directory: a backup that is being made
STAGED: Final = ".staged"
ARCHIVE: Final = "archive"
MANIFEST: Final = "_manifest.json"
ARCHIVE_LOCK: Final = "_lock"
NAME_BYTES_MAX: Final = 255  # of a file, on every file system that matters

_CATALOG = re.compile(r"catalog-(\d{8,})", re.ASCII)
_SEGMENT = re.compile(r"(\d{8,})-(\d{20})\.(log|seg)", re.ASCII)
_DELETIONS = re.compile(r"deletions-(\d{8,})", re.ASCII)
_LEASES = re.compile(r"leases-(\d{8,})", re.ASCII)
_WORKER = re.compile(r"[0-9a-f]{16}", re.ASCII)
_TAGS = re.compile(r"(\d{8,})-(\d{20})\.tags", re.ASCII)
_JOURNAL = re.compile(r"(\d{8,})\.journal", re.ASCII)
_COMMIT = re.compile(r"([0-9a-f]{32})-(\d{20})\.commit", re.ASCII)
_STAGED = re.compile(r"([0-9a-f]{16})[0-9a-f]{16}\.staged", re.ASCII)
_ARCHIVED = re.compile(r"(\d{20,})-(\d{20,})-[0-9a-f]{16}\.parquet", re.ASCII)
_ARCHIVING = re.compile(r"_[0-9a-f]{16}\.parquet\.tmp", re.ASCII)
_COLD = re.compile(
    r"([0-9a-f]{32})/(\d{8,})/(\d{4,})/((\d{8,})-(\d{20})\.seg)-[0-9a-f]{16}-[0-9a-f]{16}(\.tmp)?",
    re.ASCII,
)
_SLOT = re.compile(r"(\d{4})\.lock", re.ASCII)
_NUMBER = re.compile(r"\d{4,}", re.ASCII)


class SegmentName(NamedTuple):
    """What a segment's file name says. Sorts by number."""

    segment: int
    base: int
    sealed: bool


def catalog(generation: int) -> str:
    return f"catalog-{generation:08d}"


def parse_catalog(name: str) -> int | None:
    found = name.startswith("catalog-") and _CATALOG.fullmatch(name)
    return int(found[1]) if found else None


def topic(topic_id: int) -> str:
    return f"{topic_id:08d}"


def shard(number: int) -> str:
    return f"{number:04d}"


def parse_number(name: str) -> int | None:
    """The number of a topic's or a shard's directory."""
    return int(name) if _NUMBER.fullmatch(name) else None


def parse_deleted(name: str) -> int | None:
    """The number of a topic that was deleted, from what is left of its directory."""
    return parse_number(name[: -len(DELETED)]) if name.endswith(DELETED) else None


def member(slot: int) -> str:
    """The lock of the member in a slot."""
    return f"{slot:04d}"


def segment(segment_id: int, base: int, *, sealed: bool) -> str:
    return f"{segment_id:08d}-{base:020d}.{'seg' if sealed else 'log'}"


@lru_cache(maxsize=1024)  # a directory is listed again and again
def parse_segment(name: str) -> SegmentName | None:
    found = _SEGMENT.fullmatch(name)
    return SegmentName(int(found[1]), int(found[2]), found[3] == "seg") if found else None


def tags(segment_id: int, base: int) -> str:
    """The index of a segment's tags."""
    return f"{segment_id:08d}-{base:020d}.tags"


def parse_tags(name: str) -> SegmentName | None:
    """The sealed segment that an index is of."""
    found = name.endswith(".tags") and _TAGS.fullmatch(name)
    return SegmentName(int(found[1]), int(found[2]), True) if found else None


class ColdName(NamedTuple):
    """What the key of a segment in a cold store says."""

    store: str  # its id, as hex
    topic: int
    shard: int
    segment: SegmentName


def cold_prefix(store: bytes, topic: int | None = None, number: int = 0) -> str:
    """What the keys of a store begin with, or those of a shard."""
    if topic is None:
        return f"{store.hex()}/"
    return f"{store.hex()}/{topic:08d}/{shard(number)}/"


def cold(prefix: str, file: str, file_hash: int, token: bytes) -> str:
    """The key of a segment in a cold store; 8 random bytes, so that none is ever used twice."""
    return f"{prefix}{file}-{file_hash:016x}-{token.hex()}"


def parse_cold(key: str) -> ColdName | None:
    """What a key says, also of one that is being written."""
    found = _COLD.fullmatch(key)
    if found is None:
        return None
    segment_name = SegmentName(int(found[5]), int(found[6]), True)
    return ColdName(found[1], int(found[2]), int(found[3]), segment_name)


def deletions(number: int) -> str:
    return f"deletions-{number:08d}"


def parse_deletions(name: str) -> int | None:
    found = name.startswith("deletions-") and _DELETIONS.fullmatch(name)
    return int(found[1]) if found else None


def leases(number: int) -> str:
    return f"leases-{number:08d}"


def parse_leases(name: str) -> int | None:
    found = _LEASES.fullmatch(name)
    return int(found[1]) if found else None


def worker(token: int) -> str:
    """The lock that a worker of a queue holds for life."""
    return f"{token:016x}"


def parse_worker(name: str) -> int | None:
    return int(name, 16) if _WORKER.fullmatch(name) else None


def slot(number: int) -> str:
    """The lock of the process that has this slot."""
    return f"{number:04d}.lock"


def parse_slot(name: str) -> int | None:
    found = _SLOT.fullmatch(name)
    return int(found[1]) if found else None


def journal(journal_id: int) -> str:
    return f"{journal_id:08d}.journal"


def parse_journal(name: str) -> int | None:
    found = name.endswith(".journal") and _JOURNAL.fullmatch(name)
    return int(found[1]) if found else None


def staged(created_us: int, token: bytes) -> str:
    """A segment that is not yet attached: when it was begun, and 8 random bytes."""
    return f"{created_us:016x}{token.hex()}{STAGED}"


def parse_staged(name: str) -> int | None:
    """When a staged segment was begun, in microseconds."""
    found = name.endswith(STAGED) and _STAGED.fullmatch(name)
    return int(found[1], 16) if found else None


def commit(writer: str, sequence: int) -> str:
    """The commit of a batch; the writer by its fingerprint."""
    return f"{writer}-{sequence:020d}.commit"


def parse_commit(name: str) -> tuple[str, int] | None:
    """Writer and sequence of a commit."""
    found = _COMMIT.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def archived_topic(name: str) -> str:
    """A topic's directory in an archive. Of what names may have, Hive escapes the colon only."""
    return "topic=" + name.replace(":", "%3A")


def archived_shard(number: int) -> str:
    return f"partition={number}"


def archived_day(day: str) -> str:
    return f"date={day}"


def archived(first: int, end: int, token: bytes) -> str:
    """A Parquet file by its offsets; 8 random bytes, so that no two are ever the same."""
    return f"{first:020d}-{end:020d}-{token.hex()}.parquet"


def archiving(token: bytes) -> str:
    """A Parquet file that is being made."""
    return f"_{token.hex()}.parquet{TEMPORARY}"


def is_archived(name: str) -> bool:
    """Whether a name is of a Parquet file, whole or being made, that Esker wrote."""
    return bool(_ARCHIVED.fullmatch(name) or _ARCHIVING.fullmatch(name))
