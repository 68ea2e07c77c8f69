"""What recovery may find, in words: the table of cases, a finding, the report of an opening.

The labels are API: docs/recovery.md explains each to the operator who meets it, and
tests/test_recovery.py has a test for each.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

CASES: Final[dict[str, str]] = {
    "torn_tail": "a log ends inside a batch: cut at the last whole one",
    "torn_journal": "a journal ends inside an entry: entries before it are replayed",
    "redone": "a segment lacked bytes that the journal had: written again",
    "corrupt_frame": "damage below what was durable: left in place, readers are refused",
    "corrupt_header": "a log whose header cannot be read: moved to quarantine",
    "corrupt_journal": "a journal is damaged below what was durable: the rest is replayed",
    "corrupt_sealed": "a sealed segment cannot be read but its log is there: the log is used",
    "missing_segment": "a segment is missing between others: readers are refused there",
    "lost_tail": "offsets were issued whose records the machine lost: a gap, never issued again",
    "later_log_set_aside": "a log behind a lost tail: moved to quarantine, so that no hole remains",
    "unfinished_seal": "a crash during sealing: finished, or done again",
    "unfinished_roll": "a crash before a new log was first synced: removed, or set aside",
    "unfinished_checkpoint": "a journal whose entries are all in their segments: dropped",
    "unfinished_attach": "a committed batch was not a part of all its shards yet: attached",
    "corrupt_commit": "a batch was committed and cannot be attached: what it names stays staged",
    "damaged_state": "a shard's state page cannot be read: rebuilt from its segments",
    "damaged_keys": "idempotency keys, as they were saved, cannot be read: found again in the log",
    "damaged_counters": "a counters page cannot be read: counts from zero",
    "cursor_beyond_end": "a group had acked records that the machine lost: it goes on at the end",
    "damaged_catalog": "a catalog generation cannot be read: the one before it, or the segments",
    "torn_leases": "the log of a queue's leases ends inside an entry: it goes on in a new file",
    "damaged_leases": "leases of a queue cannot be read: jobs may come again, none is left out",
    "stranger": "a file that is not ours: moved to quarantine",
    "unrecovered": "left for the next writer: another process holds it, or the store is read-only",
}  # fmt: skip


class Finding(msgspec.Struct, frozen=True):
    """One thing that recovery saw and did."""

    label: str
    path: str
    reason: str
    topic: str = ""
    shard: int = 0
    position: int = 0
    first: int | None = None  # offsets concerned, where there are any
    last: int | None = None

    def __str__(self) -> str:
        where = f"{self.path} at byte {self.position}" if self.position else self.path
        offsets = f", offsets {self.first}..{self.last}" if self.first is not None else ""
        owner = f"topic {self.topic!r} shard {self.shard}: " if self.topic else ""
        return f"{self.label}: {owner}{self.reason}; {CASES[self.label]} ({where}{offsets})"


class Recovery(msgspec.Struct):
    """What was found when the store was opened, in order. Empty after a clean close."""

    findings: list[Finding] = []
    shards: int = 0  # how many had to be recovered
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether there was nothing to recover."""
        return not self.findings

    @property
    def labels(self) -> list[str]:
        """The labels of the findings, in order; docs/recovery.md explains each."""
        return [finding.label for finding in self.findings]

    def __str__(self) -> str:
        if self.clean:
            return "clean: nothing to recover"
        head = f"{len(self.findings)} findings in {self.shards} shards, {self.seconds:.3f} s"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])


class Say(Protocol):
    """Adds a finding about the shard at hand."""

    def __call__(
        self, label: str, path: str, reason: str, position: int = 0,
        first: int | None = None, last: int | None = None,
    ) -> None: ...  # fmt: skip
