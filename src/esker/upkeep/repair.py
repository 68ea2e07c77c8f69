"""`esker.repair`: make a damaged store whole again, keep the evidence, say what is lost.

    done = esker.repair("data", dry_run=True)     what would be done
    done = esker.repair("data")
    print(done)

Recovery, at every open, sets right what a crash can leave. Repair is for what no crash leaves, and
is a separate act because it declares records lost. It does, in this order:

    identity     an identity file that cannot be read: the store's id stands in every segment
    catalog      topics on disk that no catalog lists: added; directories of shards: made
    headers      a segment header that cannot be read: found again, see `mend.restored_header`
    stubs        a segment in a cold store whose stub is damaged or gone: a new stub
    names        a segment under another's name gets its own; one of another store is set aside
    recovery     the store is opened and closed, as always after a crash
    frames       damaged frames of a segment: replaced by a hole of the same size
    footers      a directory or a hash that does not fit: built again from the frames
    sequence     a missing segment: an empty one in its place, and a gap named behind it
    cold         a segment that is damaged in a cold store: brought back, with holes; or gone there
                 while the cold store answers: a hole
    deletions    a damaged file of deletions: a new one, with all that can be read of the old one
    leases       a damaged log of a queue's leases: set aside by opening the queue, which goes on
                 with all that can be read of it; damaged settings: set aside
    strangers    files that are not Esker's: set aside

A **hole** is a frame that says "rows a to b were lost here". Everything else in the file keeps its
position and its bytes; readers get a Gap with exactly those bounds and the reason `corrupt`. A
**gap between segments** is what every segment header can express anyway: the segment behind the
loss is given a header that names the new end of the one before it, and the same reason.

Whatever is replaced or removed is first copied or moved to quarantine/, and the report says where.
Repair holds the writer lock of what it changes, raises `WriterBusy` when it cannot have it, and may
be run again at any time, also after it crashed: what is done is found to be in order.

Nothing that may lie in a cold store is declared lost while that does not answer: such a stub is
left as it is, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from os import PathLike

from esker.clock import SYSTEM_CLOCK
from esker.engine.store import open_store
from esker.errors import FormatTooNew, NotAStore, StorageError, WriterBusy
from esker.format import catalog as catalog_format
from esker.format import names
from esker.format.catalog import Catalog, TopicEntry, keeping_all
from esker.options import is_evicting
from esker.storage.catalog import CatalogFile
from esker.storage.files import SYSTEM_FILES, Files, Holder, absolute, join, parent, replace_file
from esker.upkeep import mend
from esker.upkeep.cursors import mend_cursors
from esker.upkeep.deletions import mend_deletions
from esker.upkeep.examine import PIECE, Examined
from esker.upkeep.inspection import Inspection, inspect_shard
from esker.upkeep.mend import Evidence
from esker.upkeep.report import Action, Problem, Repaired
from esker.upkeep.sequence import mend_sequence
from esker.upkeep.stubs import Cold, mend_stubs
from esker.upkeep.verify import Check, check_store, one_bit_identity

# Problems that opening the store sets right.
_BY_RECOVERY = {
    "catalog", "state", "torn_tail", "unclean", "leftover", "journal", "torn_journal",
    "pending_journal", "leases", "torn_leases",
}  # fmt: skip
# Problems of a segment's outside, to be set right before recovery looks at it.
_OUTSIDE = {"header", "foreign", "misnamed", "unreadable"}
# Problems inside of segments and between them.
_INSIDE = {
    "frame", "truncated", "missing_segment", "chain", "timestamps", "footer", "directory",
    "file_hash", "padding", "config", "unreadable", "state", "deletions", "trailing", "object",
    "missing_object",
}  # fmt: skip
# Problems of segments that may lie whole in a cold store.
_COLD = {
    "place", "frame", "truncated", "missing_segment", "footer", "file_hash", "padding", "config",
}  # fmt: skip


# What is still there after recovery, and not needed.
_TO_SET_ASIDE = {
    "keys", "stranger", "leftover", "catalog", "journal", "torn_journal", "settings", "routes",
}  # fmt: skip


def repair(
    path: str | PathLike[str],
    *,
    files: Files = SYSTEM_FILES,
    dry_run: bool = False,
    cold: str | PathLike[str] = "",
) -> Repaired:
    """Repair a store; see this module's text. With dry_run=True nothing is changed.

    A dry run names what can be known before the first change; a shard whose headers are damaged,
    or that has to be recovered, may turn out to need more. `cold` says where segments lie that were
    moved, if they are not where they were put.
    """
    work = _Repair(files, absolute(path), dry_run, str(cold))
    work.run()
    return work.done


class _Repair:
    """One run over a store."""

    def __init__(self, files: Files, root: str, dry_run: bool, cold: str) -> None:
        self.files = files
        self.cold = Cold(files, cold)
        self.root = root
        self.dry_run = dry_run
        self.evidence = Evidence(files, root)
        self.done = Repaired(root, dry_run=dry_run)

    def run(self) -> None:
        check = check_store(self.files, self.root, self.cold)
        self.done.before = check.report
        self._refuse(check)
        self.identity(check)
        if check.store is None:
            raise NotAStore(f"{self.root}: nothing in it tells the id of the store")
        for problem in check.report.problems:
            if problem.kind == "trailing" and not problem.topic:  # of a shard: see `inside`
                self.trim(problem)
        if self.catalog(check):
            check = self._again(check)
        if self._shards(check, _OUTSIDE):
            for found in self._shards(check, _OUTSIDE):
                self.outside(found, check.store or b"")
            check = self._again(check)
        if self.cold.roots and self._shards(check, _COLD):
            for found in self._shards(check, _COLD):
                with self.locked(found):
                    mend_stubs(self.files, found, check.store or b"", self.cold, self.evidence,
                               self.act, dry_run=self.dry_run)  # fmt: skip
            check = self._again(check)
        if self._any(check, _BY_RECOVERY):
            self.recover(check)
            check = self._again(check)
        for found in self._shards(check, _INSIDE):
            self.inside(found, check.store or b"")
        for found in self._shards(check, {"cursors"}):
            with self.locked(found):
                mend_cursors(self.files, found, check.store or b"", self.evidence, self.act,
                             dry_run=self.dry_run)  # fmt: skip
        for problem in check.report.problems:
            if problem.kind in _TO_SET_ASIDE and self.files.kind(problem.path):
                self.set_aside(problem.path, problem.kind, problem.reason, problem)
        if not self.dry_run:
            self.done.after = check_store(self.files, self.root, self.cold).report

    def act(self, action: Action) -> None:
        self.done.actions.append(action)

    def _again(self, check: Check) -> Check:
        if not self.dry_run:
            check = check_store(self.files, self.root, self.cold)
            self._refuse_unread(check.report.problems, check.shards)
        return check

    def _refuse(self, check: Check) -> None:
        """Nothing is touched when a part of the store must not be."""
        for problem in check.report.problems:
            if problem.kind == "newer":
                raise FormatTooNew(
                    f"{problem.path}: {problem.reason} is from a later Esker; nothing was touched. "
                    "Install a newer esker to repair this store."
                )
        self._refuse_unread(check.report.problems, check.shards)
        for found in check.shards:
            if found.holder is not None and any(p.kind != "counters" for p in found.problems):
                raise _busy(found, found.holder)

    def _refuse_unread(self, problems: Sequence[Problem], shards: Sequence[Inspection]) -> None:
        """What the system refuses to hand out may be whole, and is not to be declared lost."""
        folders = {found.folder for found in shards}
        unread = [
            (problem.path, problem.reason)
            for problem in problems
            if problem.kind == "unreadable" and problem.position is None
            and (problem.path in folders or self.files.kind(problem.path) == "file")
        ]  # fmt: skip
        for seen in (seen for found in shards for seen in found.segments):
            refused = sum(end - begin for begin, end, _ in seen.refused)
            if seen.header is None and refused and refused >= min(seen.size, PIECE):
                unread.append((seen.path, seen.refused[0][2]))
        for path, reason in unread:
            raise StorageError(
                f"{reason}; nothing was touched there, because what cannot be read cannot be kept "
                "either", path=path,
            )  # fmt: skip

    def _any(self, check: Check, kinds: set[str]) -> bool:
        return any(problem.kind in kinds for problem in check.report.problems)

    def _shards(self, check: Check, kinds: set[str]) -> list[Inspection]:
        return [
            found
            for found in check.shards
            if any(problem.kind in kinds for problem in found.problems)
        ]

    @contextmanager
    def locked(self, found: Inspection) -> Iterator[None]:
        """Be the writer of a shard for a while."""
        if self.dry_run:
            yield
            return
        path = join(found.folder, names.LOCK)
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() / 1e6, UTC)
        lock = self.files.lock(path, now.isoformat(timespec="seconds"))
        if isinstance(lock, Holder):
            raise _busy(found, lock)
        try:
            yield
        finally:
            lock.release()

    # -- identity and catalog --

    def identity(self, check: Check) -> None:
        problem = next((p for p in check.report.errors if p.kind == "identity"), None)
        if problem is None:
            return
        exact = one_bit_identity(self.files, problem.path)
        if exact is None and check.store is not None:
            born = [entry.created for entry in check.catalog.topics]
            exact = check.store, min(born, default=SYSTEM_CLOCK.now_us())
        if exact is None:
            return
        check.store = exact[0]
        there, kept = self.files.kind(problem.path), ""
        if not self.dry_run:
            if there == "file":
                kept = self.evidence.copy(problem.path, "identity")
            elif there:
                kept = self.evidence.move(problem.path, "identity")
            replace_file(self.files, problem.path, catalog_format.encode_identity(*exact))
        self.act(Action("identity", problem.path, problem.reason, kept))

    def trim(self, problem: Problem) -> None:
        kept = ""
        if not self.dry_run:
            kept = self.evidence.copy(problem.path, "trailing")
            file = self.files.open(problem.path, "r")
            try:
                data = file.read(0, problem.position or 0)
            finally:
                file.close()
            replace_file(self.files, problem.path, data)
        self.act(Action("trimmed", problem.path, problem.reason, kept, position=problem.position))

    def catalog(self, check: Check) -> bool:
        """Topics that are on disk only, and directories that are in the catalog only."""
        taken = {entry.name for entry in check.catalog.topics}
        adopted: list[TopicEntry] = []
        acted = False
        for problem in check.report.problems:
            if problem.kind == "orphan_topic":
                entry = next((e for e in check.orphans if problem.path.endswith(names.topic(e.id))),
                             None)  # fmt: skip
                if entry is None or entry.name in taken:
                    self.set_aside(problem.path, "topic", problem.reason, problem)
                else:
                    taken.add(entry.name)
                    adopted.append(keeping_all(entry))
                    again = f"topic {entry.name!r} is listed again"
                    if is_evicting(entry.options):
                        again += "; its caps and its ttl may be old ones and are off"
                    self.act(Action("catalog", problem.path, again))
                acted = True
            elif problem.kind == "missing_shard":
                self._make_dir(problem)
                acted = True
        if adopted and not self.dry_run:
            self._adopt(check, adopted)
        return acted

    def _make_dir(self, problem: Problem) -> None:
        if not self.dry_run:
            if self.files.kind(problem.path):
                self.evidence.move(problem.path, "stranger")
            for folder in (parent(problem.path), problem.path):
                self.files.make_dir(folder)
                self.files.sync_dir(parent(folder))
        self.act(
            Action("directory", problem.path, problem.reason, "", problem.topic, problem.shard)
        )

    def _adopt(self, check: Check, adopted: list[TopicEntry]) -> None:
        catalog = CatalogFile(self.files, self.root, check.store or b"")
        catalog.load()

        def edit(current: Catalog) -> Catalog:
            known = {entry.id for entry in current.topics}
            topics = (*current.topics, *(entry for entry in adopted if entry.id not in known))
            next_id = max([current.next_id - 1, *(entry.id for entry in topics)]) + 1
            return Catalog(next_id, topics, current.former)

        catalog.change(edit, "repair")

    def set_aside(self, path: str, why: str, reason: str, problem: Problem) -> None:
        kept = "" if self.dry_run else self.evidence.move(path, why)
        self.act(Action("set_aside", path, reason, kept, problem.topic, problem.shard))

    # -- before recovery --

    def outside(self, found: Inspection, store: bytes) -> None:
        """Headers and names, so that recovery knows every segment for what it is."""
        with self.locked(found):
            moved: list[tuple[Examined, str]] = []
            for problem in found.problems:
                seen = next((s for s in found.segments if s.path == problem.path), None)
                there = self.files.kind(problem.path)
                if problem.kind == "foreign" or (
                    problem.kind == "unreadable" and there not in ("file", "")
                ):
                    self.set_aside(problem.path, "foreign", problem.reason, problem)
                elif problem.kind == "misnamed" and seen is not None:
                    kept = "" if self.dry_run else self.evidence.move(problem.path, "misnamed")
                    moved.append((seen, kept))
                elif problem.kind == "header" and seen is not None:
                    self._restore(found, seen, store, problem)
            leaving = {seen.path for seen, _ in moved}
            for seen, kept in moved:
                self._rename(found, seen, kept, leaving)

    def _rename(self, found: Inspection, seen: Examined, kept: str, leaving: set[str]) -> None:
        """Back under the name that the header names, if that is free."""
        header = seen.header
        assert header is not None
        name = names.segment(header.segment, header.base, sealed=seen.name.sealed)
        path = join(found.folder, name)
        what = "renamed"
        if self.files.kind(path) and not (self.dry_run and path in leaving):
            what = "set_aside"
        elif not self.dry_run:
            source = self.files.open(kept, "r")
            try:
                mend.copy_file(self.files, source, path)
            finally:
                source.close()
            self.files.sync_dir(found.folder)
        reason = f"it was called {seen.path}"
        self.act(Action(what, path, reason, kept, found.entry.name, found.number))

    def _restore(self, found: Inspection, seen: Examined, store: bytes, problem: Problem) -> None:
        at = found.segments.index(seen)
        before = found.segments[at - 1] if at else None
        after = found.segments[at + 1] if at + 1 < len(found.segments) else None
        header = mend.restored_header(
            self.files, seen, found.entry, found.number, store, before, after
        )
        if header is None:
            reason = f"{problem.reason}, and no frame can be read"
            self.set_aside(seen.path, "header", reason, problem)
            return
        kept = ""
        if not self.dry_run:
            kept = self.evidence.copy(seen.path, "header")
            mend.replace_header(self.files, seen, header)
        self.act(
            Action("header", seen.path, problem.reason, kept, found.entry.name, found.number, 0)
        )

    # -- recovery --

    def recover(self, check: Check) -> None:
        """Open and close the store, with copies of what that will cut."""
        for problem in check.report.problems:
            if problem.kind == "torn_tail" and self.files.kind(problem.path) == "file":
                kept = "" if self.dry_run else self.evidence.copy(problem.path, "torn")
                self.act(Action("saved", problem.path, problem.reason, kept, problem.topic,
                                problem.shard, problem.position))  # fmt: skip
        if self.dry_run:
            self.act(Action("recovered", self.root, "the store would be opened and closed"))
            return
        cold = self.cold.root
        leases = {p.topic for p in check.report.problems if p.kind in ("leases", "torn_leases")}
        unset = {p.topic for p in check.report.problems if p.kind == "settings"}
        with open_store(self.root, files=self.files, background=False, cold=cold) as store:
            for topic in sorted(leases - unset):
                store.queue(topic).stats()  # reads them, and goes on in a new log
            for finding in store.recovery.findings:
                reason = f"{finding.label}: {finding.reason}"
                if finding.first is not None and finding.last is not None:
                    reason += f", offsets {finding.first}..{finding.last}"
                self.act(
                    Action("recovered", finding.path, reason, "", finding.topic, finding.shard,
                           finding.position)
                )  # fmt: skip

    # -- after recovery --

    def inside(self, found: Inspection, store: bytes) -> None:
        """Frames, footers, the sequence of segments, and what was deleted of them."""
        with self.locked(found):
            if not self.dry_run:  # nobody can have changed it between this look and the lock
                found = inspect_shard(
                    self.files, found.folder, found.entry, found.number, store, locked=True,
                    cold=self.cold,
                )  # fmt: skip
                self._refuse_unread(found.problems, [found])
            mend_deletions(self.files, found, store, self.evidence, self.act, dry_run=self.dry_run)
            mend_sequence(
                self.files, found, store, self.evidence, self.act, self.cold, dry_run=self.dry_run
            )


def _busy(found: Inspection, holder: Holder) -> WriterBusy:
    return WriterBusy(
        f"topic {found.entry.name!r} shard {found.number} needs a repair and is being written by "
        f"process {holder.pid or 'unknown'}; close it there first. Nothing was changed in it.",
        pid=holder.pid,
        since=holder.since,
    )
