"""Every file name, built and parsed here.

Names are made of numbers, never of what a user typed, and are sorted as numbers.

    DATA/esker.store                         identity, written once
    DATA/catalog-00000007                    topics; the newest valid generation counts
    DATA/catalog.lock, DATA/recovery.lock    kernel locks
    DATA/journal/00000003.journal            redo journals, and NNN.lock beside each
    DATA/quarantine/                         what was set aside, never deleted by Esker
    DATA/spark/                              checkpoints of jobs that write here; only Spark's files
    DATA/staging/HEX-00000000000000000007.commit    batch 7 of a writer: what is to be attached
    DATA/topics/00000011.deleted/            topic 11, whose files are about to go
    DATA/topics/00000012/0003/               topic 12, shard 3
        00000005-00000000000000081920.log    segment 5 from offset 81920, being written
        00000004-00000000000000000000.seg    segment 4, sealed
        HEX.staged                           a segment made elsewhere, not yet a part of the shard
        state  counters  lock
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
QUARANTINE: Final = "quarantine"
STAGING: Final = "staging"
SPARK: Final = "spark"
STATE: Final = "state"
COUNTERS: Final = "counters"
LOCK: Final = "lock"
TEMPORARY: Final = ".tmp"
DELETED: Final = ".deleted"
STAGED: Final = ".staged"

_CATALOG = re.compile(r"catalog-(\d{8,})", re.ASCII)
_SEGMENT = re.compile(r"(\d{8,})-(\d{20})\.(log|seg)", re.ASCII)
_JOURNAL = re.compile(r"(\d{8,})\.journal", re.ASCII)
_COMMIT = re.compile(r"([0-9a-f]{32})-(\d{20})\.commit", re.ASCII)
_STAGED = re.compile(r"([0-9a-f]{16})[0-9a-f]{16}\.staged", re.ASCII)
_NUMBER = re.compile(r"\d{4,}", re.ASCII)


class SegmentName(NamedTuple):
    """What a segment's file name says. Sorts by number."""

    segment: int
    base: int
    sealed: bool


def catalog(generation: int) -> str:
    return f"catalog-{generation:08d}"


def parse_catalog(name: str) -> int | None:
    found = _CATALOG.fullmatch(name)
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


def segment(segment_id: int, base: int, *, sealed: bool) -> str:
    return f"{segment_id:08d}-{base:020d}.{'seg' if sealed else 'log'}"


@lru_cache(maxsize=1024)  # a directory is listed again and again
def parse_segment(name: str) -> SegmentName | None:
    found = _SEGMENT.fullmatch(name)
    return SegmentName(int(found[1]), int(found[2]), found[3] == "seg") if found else None


def journal(journal_id: int) -> str:
    return f"{journal_id:08d}.journal"


def parse_journal(name: str) -> int | None:
    found = _JOURNAL.fullmatch(name)
    return int(found[1]) if found else None


def staged(created_us: int, token: bytes) -> str:
    """A segment that is not yet attached: when it was begun, and 8 random bytes."""
    return f"{created_us:016x}{token.hex()}{STAGED}"


def parse_staged(name: str) -> int | None:
    """When a staged segment was begun, in microseconds."""
    found = _STAGED.fullmatch(name)
    return int(found[1], 16) if found else None


def commit(writer: str, sequence: int) -> str:
    """The commit of a batch; the writer by its fingerprint."""
    return f"{writer}-{sequence:020d}.commit"


def parse_commit(name: str) -> tuple[str, int] | None:
    """Writer and sequence of a commit."""
    found = _COMMIT.fullmatch(name)
    return (found[1], int(found[2])) if found else None
