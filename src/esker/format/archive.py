"""The manifest of an archive: which Parquet files hold a topic's history, and what they lack.

    {"format": "esker-archive", "version": 1, "generation": 7,
     "store": "0f3c…", "topic": "orders", "topic_id": 12,
     "shards": [{"shard": 0, "first": 0, "end": 81920, "deleted": 12}],
     "files": [{"shard": 0, "day": "2026-11-15", "name": "….parquet", "first": 0, "end": 81920, …}],
     "gaps": [{"shard": 0, "first": 500, "last": 599, "reason": "power loss"}],
     "replaced": ["partition=0/date=2026-11-15/….parquet"],
     "checksum": "52b5…"}

Only what a manifest names is a part of the archive. Its books balance: in each shard the rows of
all files, the offsets of all gaps and the records that had been deleted one by one before they
could be archived make up exactly [first, end), so no record can be missing or there twice without
the sum being wrong; and a checksum covers the rest. Whoever finds neither to hold does nothing with
the files.

Everything here is a value. A manifest is never changed: `with_span` and `with_merges` return the
next one, `merges` decides which files are worth putting together. What happens to files is in
storage/archive.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Final

import msgspec

from esker.format import names
from esker.format.checksum import checksum

FORMAT: Final = "esker-archive"
VERSION: Final = 1
DAY_US: Final = 86_400_000_000
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"  # what Hive calls null: a day no calendar has
_EPOCH: Final = date(1970, 1, 1)
_DAYS: Final = range((date.min - _EPOCH).days, (date.max - _EPOCH).days + 1)


class ArchivedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file: records of one shard and one day (UTC), in the order of their offsets."""

    shard: int
    day: str
    name: str
    first: int  # its first offset
    end: int  # behind its last; records between may be in the file of another day
    rows: int
    bytes: int
    raw_bytes: int  # before Parquet packed it
    min_timestamp: int
    max_timestamp: int
    checksum: str  # XXH3-64 of the file, 16 hexadecimal digits

    @property
    def path(self) -> str:
        """Below the topic's directory."""
        return f"{names.archived_shard(self.shard)}/{names.archived_day(self.day)}/{self.name}"


class ArchivedGap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets first..last that the log lacked, and why."""

    shard: int
    first: int
    last: int
    reason: str


class ArchivedShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The offsets [first, end) are archived."""

    shard: int
    first: int
    end: int
    deleted: int = 0  # of them, records that had been deleted by tag


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an archive of a topic has."""

    format: str
    version: int
    generation: int
    store: str
    topic: str
    topic_id: int
    shards: tuple[ArchivedShard, ...] = ()
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[ArchivedGap, ...] = ()
    replaced: tuple[str, ...] = ()  # no longer a part of it; there for those who still read them
    checksum: str = ""

    @property
    def ends(self) -> dict[int, int]:
        """Where each shard's archive ends."""
        return {each.shard: each.end for each in self.shards}

    def with_span(
        self, shard: int, first: int, end: int,
        files: Iterable[ArchivedFile], gaps: Iterable[ArchivedGap], deleted: int = 0,
    ) -> Manifest:  # fmt: skip
        """With the offsets [first, end) of a shard, which follow what it has."""
        known = {each.shard: each for each in self.shards}
        before = known.get(shard) or ArchivedShard(shard, first, first)
        assert before.end == first, (before, first)
        known[shard] = ArchivedShard(shard, before.first, end, before.deleted + deleted)
        made = msgspec.structs.replace(
            self,
            shards=tuple(known[number] for number in sorted(known)),
            files=_ordered([*self.files, *files]),
            gaps=tuple(sorted([*self.gaps, *gaps], key=lambda gap: (gap.shard, gap.first))),
        )
        assert not imbalance(made), imbalance(made)
        return made

    def with_merges(
        self, merged: Iterable[tuple[Sequence[ArchivedFile], ArchivedFile]]
    ) -> Manifest:
        """With one file in the place of several, as often as is given."""
        old: list[ArchivedFile] = []
        new: list[ArchivedFile] = []
        for files, file in merged:
            old += files
            new.append(file)
        gone = {file.path for file in old}
        made = msgspec.structs.replace(
            self,
            files=_ordered([*(file for file in self.files if file.path not in gone), *new]),
            replaced=tuple(sorted({*self.replaced, *gone})),
        )
        assert not imbalance(made), imbalance(made)
        return made


def _ordered(files: list[ArchivedFile]) -> tuple[ArchivedFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.shard, file.day, file.first)))


def new(store: str, topic: str, topic_id: int) -> Manifest:
    """The manifest of an archive that has nothing yet."""
    return Manifest(FORMAT, VERSION, 0, store, topic, topic_id)


def encode(manifest: Manifest) -> bytes:
    plain = msgspec.structs.replace(manifest, checksum="")
    digest = f"{checksum(msgspec.json.encode(plain)):016x}"
    whole = msgspec.json.encode(msgspec.structs.replace(plain, checksum=digest))
    return msgspec.json.format(whole, indent=1) + b"\n"


def decode(data: bytes) -> Manifest | str:
    """A manifest, or what is wrong with it; "version …" where a later Esker wrote it."""
    try:
        told = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(told["format"], type=str)
        version = msgspec.json.decode(told["version"], type=int)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as problem:
        return f"not a manifest ({problem})"
    if kind != FORMAT:
        return f"not a manifest (its format is {kind!r})"
    if version != VERSION:
        return f"version {version}"
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        return f"a damaged manifest ({problem})"
    plain = msgspec.structs.replace(manifest, checksum="")
    if manifest.checksum != f"{checksum(msgspec.json.encode(plain)):016x}":
        return "a damaged manifest (its checksum does not match)"
    return imbalance(manifest) or manifest


def imbalance(manifest: Manifest) -> str:
    """Where the files and gaps of a shard do not make up what is archived of it; "" if they do."""
    held: dict[int, int] = defaultdict(int)
    for file in manifest.files:
        held[file.shard] += file.rows
    for gap in manifest.gaps:
        held[gap.shard] += gap.last - gap.first + 1
    for shard in manifest.shards:
        if held.pop(shard.shard, 0) + shard.deleted != shard.end - shard.first:
            return f"files and gaps of shard {shard.shard} do not make up its offsets"
    if any(held.values()):
        return f"files of shard {min(held)}, which is not archived"
    last: ArchivedFile | None = None
    for file in manifest.files:
        if last and (file.shard, file.day) == (last.shard, last.day) and file.first < last.end:
            return f"{last.path} and {file.path} overlap"
        last = file
    return ""


# ---- days ------------------------------------------------------------------------------------


def day_of(timestamp: int) -> int:
    """The day, counted from 1970, of microseconds since 1970."""
    return timestamp // DAY_US


def day_text(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).isoformat() if day in _DAYS else NO_DAY


# ---- which files to put together -------------------------------------------------------------


def merges(files: Sequence[ArchivedFile], target_bytes: int) -> list[list[ArchivedFile]]:
    """Neighbours of one shard and day that become one file of at most about `target_bytes`.

    A file is put together with the one before it when that one is at most twice as large. So the
    sizes of what is left fall from file to file, there are few of them, and a record is copied a
    few times at most, however often a little is archived.
    """
    found: list[list[ArchivedFile]] = []
    groups: list[list[ArchivedFile]] = []
    for file in _ordered(list(files)):
        if groups and (groups[-1][0].shard, groups[-1][0].day) != (file.shard, file.day):
            found += groups
            groups = []
        groups.append([file])
        while len(groups) > 1:
            before, last = _size(groups[-2]), _size(groups[-1])
            if before > 2 * last or before + last > target_bytes:
                break
            taken = groups.pop()
            groups[-1] += taken
    return [group for group in [*found, *groups] if len(group) > 1]


def _size(group: list[ArchivedFile]) -> int:
    return sum(file.raw_bytes for file in group)
