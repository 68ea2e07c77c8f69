"""What `verify` and `repair` report: plain values, and how they read to a person.

Every kind of problem has a name, a severity and an advice, in the one table `KINDS`. *Errors* are
damage: something that was written is not there, or is not what was written. *Warnings* cost
nothing: a crash has left them, opening the store sets them right, or they are only untidy. What
could not be looked at (`unreadable`, `unreached`) is an error too: nobody knows that it is well.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from esker.records import Gap

Severity = Literal["error", "warning"]

_REPAIR: Final = "run esker.repair(path); it keeps what it replaces in quarantine/"
_OPEN: Final = "open the store; recovery sets this right and reports what it did"

KINDS: Final[dict[str, tuple[Severity, str]]] = {
    "identity": ("error", "restore esker.store from a backup, or " + _REPAIR),
    "catalog": ("error", "open the store; names and options are read back from the segments"),
    "orphan_topic": ("error", _REPAIR),
    "missing_shard": ("error", _REPAIR + ". What the shard held is lost unless a backup has it"),
    "state": ("error", _OPEN),
    "counters": ("warning", "nothing to do: only counts are concerned, and they begin again at 0"),
    "cursors": ("error", "restore the page from a backup (an older one costs records that come "
                "twice), or " + _REPAIR + ". The groups concerned then begin anew"),
    "keys": ("error", "nothing has to be done: they are found again in the log when the first one "
             "is given, but for those of records that are gone; or " + _REPAIR),
    "header": ("error", _REPAIR),
    "foreign": ("error", _REPAIR),
    "misnamed": ("error", _REPAIR),
    "config": ("error", _REPAIR),
    "frame": ("error", _REPAIR + ". Restore the segment from a backup to lose nothing"),
    "truncated": ("error", _REPAIR + ". Restore the segment from a backup to lose nothing"),
    "missing_segment": ("error", "put the file back, or " + _REPAIR),
    "chain": ("error", _REPAIR),
    "timestamps": ("error", _REPAIR),
    "footer": ("error", _REPAIR),
    "directory": ("error", _REPAIR),
    "file_hash": ("error", _REPAIR),
    "padding": ("warning", _REPAIR),
    "trailing": ("warning", _REPAIR),
    "deletions": ("error", "restore the file from a backup, or " + _REPAIR + ". Until then nobody "
                  "can read the shard, for what was deleted is not known"),
    "leases": ("error", "open the queue: all that can be read counts, jobs that were done may come "
               "again, none is left out; or " + _REPAIR),
    "torn_leases": ("warning", "nothing to do: whoever uses the queue next goes on in a new log"),
    "settings": ("error", "restore the file from a backup, or " + _REPAIR + ", and give "
                 "store.queue(...) its options again"),
    "torn_tail": ("warning", _OPEN),
    "unclean": ("warning", _OPEN),
    "leftover": ("warning", _OPEN),
    "journal": ("error", "open the store; what can be read is replayed, the file is set aside"),
    "torn_journal": ("warning", _OPEN),
    "pending_journal": ("warning", _OPEN),
    "commit": ("error", "restore the file from a backup; without it the batch cannot be attached"),
    "routes": ("error", "restore the file from a backup, or " + _REPAIR + ". The routes are then "
               "to be defined again"),
    "pending_attach": ("warning", _OPEN),
    "stranger": ("warning", "take it away, or " + _REPAIR),
    "place": ("error", _REPAIR + ". The stub is made anew from the segment in the cold store"),
    "object": ("error", "put the object back from a backup, or " + _REPAIR),
    "missing_object": ("error", "put the object back, say with cold= where it is now, or "
                       + _REPAIR),
    "unreached": ("error", "no damage is known: see what the cold store says, say with cold= where "
                  "it is now, and check again when it answers"),
    "unreadable": ("error", "see what the system says; copy the disk before it gets worse"),
    "newer": ("error", "install the Esker that wrote it; an older one must not touch it"),
}  # fmt: skip


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    kind: str
    severity: Severity
    path: str
    reason: str
    topic: str = ""
    shard: int = 0
    position: int | None = None
    first: int | None = None  # offsets concerned, where there are any
    last: int | None = None

    @property
    def advice(self) -> str:
        """What to do about it."""
        return KINDS[self.kind][1]

    def __str__(self) -> str:
        owner = f"topic {self.topic!r} shard {self.shard}: " if self.topic else ""
        return f"{self.severity}: {self.kind}: {owner}{self.reason} ({_where(self)})"


class Verification(msgspec.Struct):
    """What a check of a whole store found."""

    path: str
    deep: bool = True
    problems: list[Problem] = []
    gaps: list[Gap] = []  # losses that are on record: readers get them as a Gap
    writers: list[int] = []  # processes that were writing meanwhile
    topics: int = 0
    shards: int = 0
    files: int = 0
    bytes: int = 0
    segments: int = 0
    frames: int = 0
    records: int = 0
    seconds: float = 0.0
    deleted: int = 0  # of these records: marked as deleted, one by one

    @property
    def ok(self) -> bool:
        """No error. Warnings do not count: nothing is lost through them."""
        return not self.errors

    @property
    def errors(self) -> list[Problem]:
        """What readers cannot be given, or not as it was written."""
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        """What should not be, and costs nobody a record."""
        return [problem for problem in self.problems if problem.severity == "warning"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all problems, in order, each once."""
        return list(dict.fromkeys(problem.kind for problem in self.problems))

    def __str__(self) -> str:
        lines = [f"{self.path}: {_verdict(self)}", f"  {_totals(self)}"]
        lines += [f"  {problem}" for problem in self.problems]
        lines += [f"  on record: {gap}" for gap in self.gaps]
        advice = dict.fromkeys((problem.kind, problem.advice) for problem in self.problems)
        if advice:
            lines += ["what to do:", *(f"  {kind}: {text}" for kind, text in advice)]
        return "\n".join(lines)


class Action(msgspec.Struct, frozen=True):
    """One thing that a repair did, or would do."""

    what: str  # one of ACTIONS
    path: str
    reason: str
    kept: str = ""  # where the bytes from before now lie
    topic: str = ""
    shard: int = 0
    position: int | None = None
    first: int | None = None  # offsets that are lost by it
    last: int | None = None

    def __str__(self) -> str:
        owner = f"topic {self.topic!r} shard {self.shard}: " if self.topic else ""
        kept = f"; before: {self.kept}" if self.kept else ""
        return f"{self.what}: {owner}{self.reason} ({_where(self)}{kept})"


ACTIONS: Final[dict[str, str]] = {
    "identity": "the store's id was found in its segments and written to esker.store",
    "recovered": "the store was opened, and recovery did what it always does",
    "saved": "a file that recovery would cut was copied first",
    "header": "a segment's header was made again from what its surroundings know",
    "renamed": "a segment was given back the name that its header names",
    "cursors": "a page of group cursors was set right; groups whose slot was damaged begin anew",
    "hole": "damaged frames were replaced by a hole: readers get a Gap",
    "footer": "the directory of a sealed segment was built again from its frames",
    "linked": "a segment's header now names the segment before it, and the gap between",
    "stub": "a stub was made anew from the segment in the cold store that it stands for",
    "brought_back": "a segment was brought back from a cold store, because it had to change",
    "placeholder": "an empty segment stands where one is missing, so that the chain goes on",
    "catalog": "topics that no catalog listed were added",
    "trimmed": "bytes behind the end of a file were cut off",
    "directory": "the missing directory of a shard was made",
    "state": "the state page was written again",
    "deletions": "the file of deletions was written again from what can be read of it",
    "set_aside": "a file was moved to quarantine/",
}


class Repaired(msgspec.Struct):
    """What a repair did, and what is left to say about the store."""

    path: str
    dry_run: bool = False
    actions: list[Action] = []
    before: Verification | None = None
    after: Verification | None = None  # None for a dry run

    @property
    def ok(self) -> bool:
        """Whether the store is whole now."""
        found = self.after if self.after is not None else self.before
        return found is not None and found.ok

    @property
    def lost(self) -> int:
        """How many records at the most are declared lost by this repair."""
        return sum(
            action.last - action.first + 1
            for action in self.actions
            if action.first is not None and action.last is not None
        )

    def __str__(self) -> str:
        done = "would do" if self.dry_run else "did"
        if not self.actions:
            head = f"{self.path}: nothing to repair"
        else:
            count = len(self.actions)
            head = f"{self.path}: repair {done} {count} thing{'s' if count > 1 else ''}"
            if self.lost:
                head += f"; at most {self.lost} records are lost, readers get a Gap for them"
        lines = [head, *(f"  {action}" for action in self.actions)]
        if self.after is not None:
            lines.append(str(self.after))
        return "\n".join(lines)


def _where(item: Problem | Action) -> str:
    where = item.path
    if item.position is not None:
        where += f" at byte {item.position}"
    if item.first is not None and item.last is not None:
        where += f", offsets {item.first}..{item.last}"
    elif item.first is not None:
        where += f", offsets from {item.first} on"
    return where


def _verdict(found: Verification) -> str:
    if not found.problems:
        return "ok"
    errors, warnings = len(found.errors), len(found.warnings)
    parts = []
    if errors:
        parts.append(f"{errors} error{'s' if errors > 1 else ''}")
    if warnings:
        parts.append(f"{warnings} warning{'s' if warnings > 1 else ''}")
    return ("" if errors else "ok, ") + ", ".join(parts)


def _totals(found: Verification) -> str:
    how = "checked" if found.deep else "looked over (headers only)"
    text = (
        f"{found.records:,} records in {found.frames:,} frames, {found.segments:,} segments and "
        f"{found.files:,} files ({size_text(found.bytes)}) {how} in {found.seconds:.2f} s"
    )
    if found.deleted:
        text += f", {found.deleted:,} of the records are deleted"
    if found.writers:
        text += f", beside process {', '.join(map(str, found.writers))}"
    return text


def size_text(size: int) -> str:
    """Bytes for people."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
