"""`esker.backup` and `esker.restore`: a copy of a store, made beside whoever writes it.

    esker.backup("data", "backups/monday")
    esker.restore("backups/monday", "restored")

**What a backup holds.** Every record that was durable when it began, and perhaps some that came
while it was made. It is a store by itself, closed cleanly, that `verify` finds in order; restoring
is copying it. It appears under its name when it is complete: until then it lies beside, as
NAME.partial, and a run that was interrupted leaves that, to be thrown away by the next.

**How.** Files are copied in an order in which nothing can speak of what the copy does not have, and
then the copy is opened once, so that recovery puts in order what was caught in the middle of a
write: to it, the copy is what a killed process leaves.

    first     what speaks of records: committed batches, routes, cursors of groups, leases of
              queues, saved keys. They are older than the records, so records may come twice to a
              group or a worker that is restored, and none is missed
    shards    the segments that there are now, sealed ones as they are, logs as far as they go. A
              log that is sealed meanwhile is copied as a sealed one; later segments are not needed
    state     read after the segments: where the shard begins, and which records were deleted. If
              somebody deleted meanwhile, the shard is looked at again
    catalog   again after all that it named was copied, until it names nothing new: topics that came
              meanwhile are copied too, those that went are left out
    identity  when all that is durable in the copy. Until then it is no store: neither `restore`
              nor anybody else takes what is there for all that there was
    recovery  the copy is opened and closed; then verified

Bytes of a journal are not copied while its owner lives, for the logs have them, in the page cache
at the least; those of the dead are, for there they may be all that is left.

**What it does not hold.** Segments in a cold store stay there, and the copy has their stubs (the
report says how many). Archives, checkpoints of Spark, what lies in quarantine and who is reading or
working right now are not part of it.

With `base`, sealed segments that an older backup has are linked instead of copied: they never
change.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Final

import msgspec

from esker.clock import SYSTEM_CLOCK
from esker.engine.identity import make_dirs
from esker.engine.store import open_store
from esker.errors import Corruption, InvalidOption, NotAStore, StorageError
from esker.format import names
from esker.format.catalog import TopicEntry
from esker.format.segment import TRAILER_SIZE
from esker.format.state import State
from esker.storage.catalog import CatalogFile, load_identity, unfinished
from esker.storage.files import (
    SYSTEM_FILES,
    Files,
    absolute,
    join,
    link_file,
    parent,
    size_if_there,
)
from esker.storage.sealed import sizes_of
from esker.storage.state import StateFile
from esker.upkeep.report import Verification, size_text
from esker.upkeep.verify import verify

PIECE: Final = 4 << 20
PASSES: Final = 50  # of a shard in which somebody goes on deleting

Progress = Callable[[int, int], None]


class BackedUp(msgspec.Struct):
    """What was copied."""

    path: str
    source: str
    topics: int = 0
    files: int = 0
    bytes: int = 0
    linked: int = 0  # of these files, taken from an older backup
    cold_segments: int = 0  # not copied: only their stubs
    records: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        linked = f", {self.linked:,} of them linked" if self.linked else ""
        cold = (
            f"\n{self.cold_segments:,} segments lie in a cold store: only their stubs were copied"
            if self.cold_segments
            else ""
        )
        return (
            f"{self.source} to {self.path}: {self.records:,} records of {self.topics:,} topics, "
            f"{self.files:,} files{linked}, {size_text(self.bytes)}, {self.seconds:.1f} s{cold}"
        )


def backup(
    path: str | PathLike[str], target: str | PathLike[str], *,
    base: str | PathLike[str] | None = None, check: bool = True, files: Files = SYSTEM_FILES,
    progress: Progress | None = None,
) -> BackedUp:  # fmt: skip
    """Copy a store, also while it is written; see this module's text.

    `target` must not be there yet. With `check` the copy is verified before it gets its name.
    """
    started = SYSTEM_CLOCK.monotonic()
    source, wanted = absolute(path), absolute(target)
    before = None if base is None else absolute(base)
    _outside(files, source, wanted)
    if files.kind(wanted):
        raise InvalidOption(f"{wanted} is there already; a backup gets a place of its own")
    identity = load_identity(files, source)
    if identity is None:
        raise NotAStore(f"there is no Esker store at {source}")
    if before is not None and load_identity(files, before) != identity:
        raise InvalidOption(f"{before} is no backup of the same store")
    partial = wanted + names.PARTIAL
    make_dirs(files, parent(partial))
    _discard(files, partial)
    work = _Backup(files, source, partial, before, progress)
    work.report.path = wanted
    work.run(identity[0])
    _recover(files, partial)
    found = verify(partial, files=files, deep=check)
    _refuse(found, partial)
    work.report.records = found.records - found.deleted
    _sync_tree(files, partial)
    files.rename(partial, wanted)
    files.sync_dir(parent(wanted))
    work.report.seconds = SYSTEM_CLOCK.monotonic() - started
    return work.report


def restore(
    source: str | PathLike[str], path: str | PathLike[str], *, check: bool = True,
    files: Files = SYSTEM_FILES, progress: Progress | None = None,
) -> BackedUp:  # fmt: skip
    """Make a store of a backup. There must be nothing at `path` yet, or an empty directory."""
    started = SYSTEM_CLOCK.monotonic()
    origin, wanted = absolute(source), absolute(path)
    _outside(files, origin, wanted)
    if load_identity(files, origin) is None:
        raise unfinished(origin) or NotAStore(f"there is no backup at {origin}")
    if files.kind(wanted) and (files.kind(wanted) != "dir" or files.list(wanted)):
        raise InvalidOption(f"{wanted} is not empty; restore to a place where nothing is")
    partial = wanted + names.PARTIAL
    make_dirs(files, parent(partial))
    _discard(files, partial)
    total = tree_size(files, origin)
    report = BackedUp(wanted, origin)
    _copy_tree(files, origin, partial, report, total, progress, but=names.IDENTITY)
    _sync_tree(files, partial)
    copy_file(files, join(origin, names.IDENTITY), join(partial, names.IDENTITY))
    report.files += 1
    found = verify(partial, files=files, deep=check)
    _refuse(found, partial)
    report.topics, report.records = found.topics, found.records - found.deleted
    _sync_tree(files, partial)
    if files.kind(wanted):
        files.remove_dir(wanted)
    files.rename(partial, wanted)
    files.sync_dir(parent(wanted))
    report.seconds = SYSTEM_CLOCK.monotonic() - started
    return report


def _discard(files: Files, partial: str) -> None:
    """Remove what a run left that was interrupted: first that which makes it a store."""
    if files.kind(join(partial, names.IDENTITY)):
        files.unlink(join(partial, names.IDENTITY))
        files.sync_dir(partial)
    remove_tree(files, partial)


def _outside(files: Files, source: str, target: str) -> None:
    if files.kind(source) in ("file", "other"):
        raise NotAStore(f"{source} is not a directory; give that of a store")
    if target == source or f"{target}/".startswith(f"{source}/"):
        raise InvalidOption(f"{target} lies in {source} itself; choose a place outside")


def _recover(files: Files, path: str) -> None:
    """Open the copy and close it, without anything that the background or a route would do."""
    open_store(path, files=files, background=False, routes=False).close()


def _refuse(found: Verification, path: str) -> None:
    unreached = {"unreached"}  # of a cold store, which is not part of a copy
    errors = [each for each in found.errors if each.kind not in unreached]
    if errors:
        raise Corruption(
            f"the copy is not in order, and is left where it is: {errors[0]}; run esker.verify on "
            "the store itself", path=path, position=0,
        )  # fmt: skip


# ---- the copy --------------------------------------------------------------------------------


class _Backup:
    """One run."""

    def __init__(
        self, files: Files, source: str, target: str, base: str | None, progress: Progress | None
    ) -> None:
        self.files = files
        self.source = source
        self.target = target
        self.base = base
        self.report = BackedUp(target, source)
        self._progress = progress
        self._total = tree_size(files, join(source, names.TOPICS)) if progress else 0

    def run(self, store: bytes) -> None:
        files = self.files
        for folder in ("", names.TOPICS, names.JOURNALS, names.STAGING):
            files.make_dir(join(self.target, folder) if folder else self.target)
        for name in files.list(join(self.source, names.STAGING)):
            if names.parse_commit(name) is not None:
                self.copy(names.STAGING, name)
        self.copy(names.ROUTES)
        done: dict[int, TopicEntry] = {}
        while True:
            there = self.catalog(store)
            fresh = [entry for number, entry in there.items() if number not in done]
            for entry in fresh:
                self.around(entry)
            for entry in fresh:
                for number in range(entry.options.shards):
                    self.shard(entry, number)
                done[entry.id] = entry
            if not fresh:
                break
        for gone in set(done) - set(there):
            remove_tree(files, join(self.target, names.TOPICS, names.topic(gone)))
        self.journals()
        _sync_tree(files, self.target)
        self.copy(names.IDENTITY)
        self.report.topics = len(there)

    def catalog(self, store: bytes) -> dict[int, TopicEntry]:
        """Copy the catalog anew; the topics that the copy names, and no others."""
        files = self.files
        for _ in range(PASSES):
            for name in _catalogs(files, self.target):
                files.unlink(join(self.target, name))
            there = _catalogs(files, self.source)
            copied = [name for name in there if self.copy(name)]
            if copied or not there:
                break  # else each of them was replaced meanwhile
        found = CatalogFile(files, self.target, store)
        found.load()
        return {entry.id: entry for entry in found.catalog.topics}

    def journals(self) -> None:
        """Those whose owners are gone: what they have may be nowhere else."""
        folder = join(self.source, names.JOURNALS)
        for name in self.files.list(folder):
            number = names.parse_journal(name)
            if number is None:
                continue
            lock = join(folder, name.removesuffix(".journal") + ".lock")
            if self.files.holder(lock) is None:
                self.copy(names.JOURNALS, name)

    def around(self, entry: TopicEntry) -> None:
        """What speaks of the records of a topic, before any of them is copied."""
        files, top = self.files, names.topic(entry.id)
        files.make_dir(join(self.target, names.TOPICS, top))
        queue = join(self.source, names.TOPICS, top, names.QUEUE)
        if files.kind(queue):
            files.make_dir(join(self.target, names.TOPICS, top, names.QUEUE))
            self.copy(names.TOPICS, top, names.QUEUE, names.SETTINGS)
        for number in range(entry.options.shards):
            each = names.shard(number)
            files.make_dir(join(self.target, names.TOPICS, top, each))
            leases = join(queue, each)
            if files.kind(leases):
                files.make_dir(join(self.target, names.TOPICS, top, names.QUEUE, each))
                for name in sorted(files.list(leases)):
                    if names.parse_leases(name) is not None:
                        self.copy(names.TOPICS, top, names.QUEUE, each, name)
            for name in (names.OFFSETS, names.ONCE):
                self.copy(names.TOPICS, top, each, name)

    def shard(self, entry: TopicEntry, number: int) -> None:
        """Segments, then the state that fits them; again, if somebody deleted meanwhile."""
        folder = (names.TOPICS, names.topic(entry.id), names.shard(number))
        here = join(self.source, *folder)
        for _ in range(PASSES):
            before = self.state(here)
            first = before.earliest if before is not None else 0
            there = _segments(self.files, here)
            last = max(there, default=0)
            kept = self.segments(folder, last)
            for name in self.files.list(here):
                if names.parse_staged(name) is not None:
                    self.copy(*folder, name)
            after = self.state(here)
            marks = (after.marks, after.marks_end) if after is not None else (0, 0)
            if before is None and after is not None:
                continue  # its first record came meanwhile: look again
            if before is not None and marks != (before.marks, before.marks_end):
                continue
            if after is None:
                return
            if marks[0] and not self.copy(*folder, names.deletions(marks[0])):
                continue
            if before is not None and before.generation != after.generation:
                # Somebody writes: it is not closed, and its end may have moved behind the copy's.
                end = min(before.end_offset, after.end_offset)
                after = after._replace(flags=0, end_offset=end)
            self.begin(folder, after, first, kept)
            return
        raise StorageError(
            f"{here}: records are being deleted all the time; try again when that is done",
            path=here,
        )

    def state(self, folder: str) -> State | None:
        """The state page of a shard; looked at again while its writer replaces a slot."""
        for _ in range(PASSES):
            page = StateFile(self.files, folder)
            found = page.load()
            if not page.damage or found is not None:
                return found
        raise Corruption(
            "the state page cannot be read", path=join(folder, names.STATE), position=0
        )

    def segments(self, folder: tuple[str, ...], last: int) -> dict[int, int]:
        """Copy the segments up to a number; the numbers that the copy has, with their bases."""
        here = join(self.source, *folder)
        seen: set[int] = set()
        for _ in range(PASSES):
            there = {n: name for n, name in _segments(self.files, here).items() if n <= last}
            todo = [name for n, name in sorted(there.items()) if n not in seen]
            for name in todo:
                if self.segment(folder, name):
                    seen.add(name.segment)
            if all(number in seen for number in there):
                break  # what is missing now was evicted
        mine = _segments(self.files, join(self.target, *folder))
        kept = {number: name.base for number, name in mine.items() if number in there}
        for number, name in mine.items():
            if number not in kept:  # evicted while it was copied
                file = names.segment(name.segment, name.base, sealed=name.sealed)
                self.files.unlink(join(self.target, *folder, file))
        return kept

    def segment(self, folder: tuple[str, ...], name: names.SegmentName) -> bool:
        """Copy one, anew if it changed; False if it has another name by now."""
        file = names.segment(name.segment, name.base, sealed=name.sealed)
        other = names.segment(name.segment, name.base, sealed=not name.sealed)
        source, target = join(self.source, *folder, file), join(self.target, *folder, file)
        if name.sealed and self.same(source, target):
            return True
        for old in (target, join(self.target, *folder, other)):
            if self.files.kind(old):
                self.files.unlink(old)
        if name.sealed and self.linked(source, folder, file):
            return True
        if not self.copy(*folder, file):
            return False
        if name.sealed:
            whole, local = sizes_of(self.files, target)
            self.report.cold_segments += whole != local
        return True

    def linked(self, source: str, folder: tuple[str, ...], file: str) -> bool:
        """Take a sealed segment from an older backup, if it is the same there."""
        if self.base is None:
            return False
        known = join(self.base, *folder, file)
        if not self.same(source, known) or not link_file(known, join(self.target, *folder, file)):
            return False
        self.report.files += 1
        self.report.linked += 1
        return True

    def same(self, one: str, other: str) -> bool:
        """Whether two sealed segments are the same file: size, header, and the hash at the end."""
        size = size_if_there(self.files, one)
        if size < TRAILER_SIZE or size != size_if_there(self.files, other):
            return False
        try:
            return _ends(self.files, one, size) == _ends(self.files, other, size)
        except StorageError:
            return False

    def begin(
        self, folder: tuple[str, ...], state: State, first: int, kept: dict[int, int]
    ) -> None:
        """Write the state of the copy, and where it begins."""
        where = join(self.target, *folder)
        numbers = sorted(kept)
        run = [n for n in numbers if all(m in kept for m in range(n, numbers[-1] + 1))]
        for number in numbers:
            if number not in run:  # before a hole: those behind it were evicted, and so is this
                name = _segments(self.files, where)[number]
                file = names.segment(name.segment, name.base, sealed=name.sealed)
                self.files.unlink(join(where, file))
        start = kept[run[0]] if run else state.earliest
        earliest = min(state.earliest, max(first, start))
        losses = tuple((low, min(high, earliest)) for low, high in state.losses if low < earliest)
        page = StateFile(self.files, where)
        if self.files.kind(join(where, names.STATE)):
            self.files.unlink(join(where, names.STATE))
        page.store(state._replace(earliest=earliest, losses=losses))
        page.close()

    def copy(self, *path: str) -> bool:
        """Copy one file as far as it goes now; False if it is not there."""
        source, target = join(self.source, *path), join(self.target, *path)
        size = copy_file(self.files, source, target)
        if size < 0:
            return False
        self.report.files += 1
        self.report.bytes += size
        if self._progress is not None:
            self._progress(self.report.bytes, max(self._total, self.report.bytes))
        return True


def _catalogs(files: Files, folder: str) -> list[str]:
    return [name for name in files.list(folder) if names.parse_catalog(name) is not None]


def _segments(files: Files, folder: str) -> dict[int, names.SegmentName]:
    """The segments of a shard by number; the sealed one, where there are two."""
    found: dict[int, names.SegmentName] = {}
    for text in files.list(folder):
        name = names.parse_segment(text)
        if name is not None and (name.segment not in found or name.sealed):
            found[name.segment] = name
    return found


def _ends(files: Files, path: str, size: int) -> bytes:
    file = files.open(path, "r")
    try:
        return file.read(0, 128) + file.read(size - TRAILER_SIZE, TRAILER_SIZE)
    finally:
        file.close()


# ---- files and trees -------------------------------------------------------------------------


def copy_file(files: Files, source: str, target: str) -> int:
    """Copy what a file has now, over what was there; how much, -1 if it is gone."""
    if files.kind(source) != "file":
        return -1
    try:
        file = files.open(source, "r")
    except StorageError:
        if files.kind(source):
            raise
        return -1
    try:
        if files.kind(target):
            files.unlink(target)
        made = files.open(target, "create")
        try:
            position, end = 0, file.size()
            while position < end:
                data = file.read(position, min(PIECE, end - position))
                if not data:
                    break
                made.write(position, [data])
                position += len(data)
            made.sync()
        finally:
            made.close()
        return position
    finally:
        file.close()


def tree_size(files: Files, path: str) -> int:
    """The bytes of all files below a directory."""
    if files.kind(path) != "dir":
        return max(0, size_if_there(files, path))
    return sum(tree_size(files, join(path, name)) for name in files.list(path))


def remove_tree(files: Files, path: str) -> None:
    """Remove a directory with all that is in it; nothing if it is not there."""
    kind = files.kind(path)
    if not kind:
        return
    if kind != "dir":
        files.unlink(path)
        return
    for name in files.list(path):
        remove_tree(files, join(path, name))
    files.remove_dir(path)


def _copy_tree(
    files: Files, source: str, target: str, report: BackedUp, total: int,
    progress: Progress | None, but: str = "",
) -> None:  # fmt: skip
    files.make_dir(target)
    for name in sorted(set(files.list(source)) - {but}):
        one, other = join(source, name), join(target, name)
        if files.kind(one) == "dir":
            _copy_tree(files, one, other, report, total, progress)
            continue
        size = copy_file(files, one, other)
        if size >= 0:
            report.files += 1
            report.bytes += size
        if progress is not None:
            progress(report.bytes, total)


def _sync_tree(files: Files, path: str) -> None:
    """Make the names below a directory durable; the files were synced as they were written."""
    for name in files.list(path):
        if files.kind(join(path, name)) == "dir":
            _sync_tree(files, join(path, name))
    files.sync_dir(path)
