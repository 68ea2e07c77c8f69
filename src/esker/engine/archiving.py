"""Archiving a topic: what is sealed and not archived yet, as Parquet files.

    look      how far the archive is, and how far segments are sealed: what lies between is cut
              into spans of about `target_bytes`, where frames begin
    write     one span after the other, checksums verified: a file for each day in it
    commit    the manifest names the new files: from here on they count, and before it they do not
    merge     small files of one shard and day become one, and the manifest says so

Layout, manifest and what is removed when are storage/archive.py. This module decides what is
written; `Run` is the way from manifest to manifest. Who does the work is another matter: `Hands`
are this process (`topic.archive`) or the workers of a Spark job, so that one may go on where the
other stopped.

A span that cannot be read (a damaged segment, say) ends its shard for this run; the others go on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine import ranges
from esker.engine.batch import Batch
from esker.engine.progress import Progress, Teller
from esker.engine.reader import View, check_count
from esker.errors import Corruption, DataLoss, EskerError, InvalidOption
from esker.format import archive as fmt
from esker.format import names
from esker.format.archive import ArchivedFile, ArchivedGap, Manifest
from esker.format.segment import Footer
from esker.records import Gap
from esker.storage.archive import COMPRESSIONS, SCHEMA, Archive, check_file, merge, write_days
from esker.storage.files import Files, join
from esker.storage.memory import MemoryFiles
from esker.storage.objects import files_at
from esker.storage.sealed import SealedSegment

if TYPE_CHECKING:
    from esker.engine.handle import Handle
    from esker.engine.reading import Reading

TARGET_BYTES: Final = 128 << 20
BATCH_BYTES: Final = 4 << 20
FILES_TO_CHECK: Final = 16  # at a time
DELETED: Final = "deleted before it was archived"


class Archived(msgspec.Struct, frozen=True):
    """What was archived, and what there is now."""

    topic: str
    archive: str
    rows: int  # of this run, as are the next four
    files: int
    bytes: int
    merged: int  # files that were put together
    gaps: list[ArchivedGap]
    ends: dict[int, int]  # where the archive of each shard ends
    total_files: int
    total_rows: int
    problems: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether `verify` found nothing wrong with the files that were there."""
        return not self.problems

    def __str__(self) -> str:
        there = f"{self.total_rows:,} records in {self.total_files:,} files in {self.archive}"
        if not self.rows and not self.merged and not self.gaps:
            said = f"{self.topic}: nothing to archive; {there}"
        else:
            said = (
                f"{self.topic}: archived {self.rows:,} records in {self.files:,} files "
                f"({self.bytes / 1e6:,.1f} MB), merged {self.merged:,} files, "
                f"{self.seconds:.1f} s; there are {there}"
            )
        lines = [said]
        lines += [
            f"  gap: shard {gap.shard}, offsets {gap.first} to {gap.last}: {gap.reason}"
            for gap in self.gaps
        ]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)


class Span(msgspec.Struct, frozen=True):
    """Offsets [first, end) of a shard that are to be archived."""

    shard: int
    first: int
    end: int


class Wrote(msgspec.Struct, frozen=True):
    """What became of a span, or of files that were to be merged."""

    files: list[ArchivedFile] = []
    gaps: list[ArchivedGap] = []
    deleted: int = 0  # records left out that had been deleted by tag
    problem: str = ""


class Hands(Protocol):
    """Who does the work. Answers come in the order of what was asked, a few at a time."""

    def write(self, spans: list[Span]) -> Iterator[list[Wrote]]: ...
    def merge(self, groups: list[list[ArchivedFile]]) -> Iterator[list[Wrote]]: ...
    def check(self, groups: list[list[ArchivedFile]]) -> Iterator[list[list[str]]]: ...


# ---- what is to be archived ------------------------------------------------------------------


def check_options(target_bytes: int, compression: str) -> None:
    check_count("target_bytes", target_bytes, 1)
    if compression not in COMPRESSIONS:
        raise InvalidOption(f"compression={compression!r}: one of {', '.join(COMPRESSIONS)}")


def sealed_end(view: View, first: int) -> int:
    """Behind the last record that lies in a sealed segment, with no log before it.

    What is sealed was synced before, so no crash takes back what is archived.
    """
    end = first
    for segment in view.segments:
        if not isinstance(segment, SealedSegment):
            break
        end = max(end, min(segment.base + segment.rows, view.visible))
    return end


def spans_of(manifest: Manifest, number: int, view: View, target_bytes: int) -> Iterator[Span]:
    """What is to be archived of a shard, cut where frames begin, in the order of offsets."""
    first = manifest.ends.get(number, _beginning(view))
    for begin, end in _cut(_atoms(view, first, sealed_end(view, first)), target_bytes):
        yield Span(number, begin, end)


def _beginning(view: View) -> int:
    """Where an archive begins. What was deleted before it is no loss; what was evicted is."""
    there = ranges.deleted_before(view)
    return min(there, view.losses[0][0]) if view.losses else there


def _atoms(view: View, first: int, end: int) -> list[ranges.Atom]:
    """The pieces of a range, weighed by what they take in memory: on the disk they are smaller."""
    found = ranges.atoms(view, first, end)
    inside = [
        each
        for each in view.segments
        if isinstance(each, SealedSegment) and each.base < end and each.base + each.rows > first
    ]
    if len(inside) > ranges.MANY_SEGMENTS:
        return found  # those are weighed by what a log may hold, before it is compressed
    bases = [each.base for each in inside]
    times = [_times(each.footer) for each in inside]
    return [
        atom._replace(weight=int(atom.weight * times[max(0, bisect_right(bases, atom.first) - 1)]))
        for atom in found
    ]


def _times(footer: Footer) -> float:
    """How many times larger frames are in memory."""
    stored = footer.data_end - footer.positions[0] if len(footer.positions) else 0
    return max(1.0, footer.value_bytes / stored) if stored else 1.0


def _cut(atoms: Sequence[ranges.Atom], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Atoms put together to spans of about so many bytes, all of about the same."""
    total = sum(atom.weight for atom in atoms)
    share = total / max(1, round(total / target_bytes)) if atoms else 0
    first, weight = atoms[0].first if atoms else 0, 0
    for index, atom in enumerate(atoms):
        weight += atom.weight
        if weight >= share * 0.99 or index + 1 == len(atoms):
            yield first, atom.end
            first, weight = atom.end, 0


# ---- a span ----------------------------------------------------------------------------------


def write_span(
    files: Files, folder: str, span: Span, items: Iterable[Batch | Gap], compression: str
) -> Wrote:
    """The files of a span. `items` leave no offset of it out, see `ranges.without_holes`."""
    gaps: list[ArchivedGap] = []
    made = write_days(files, folder, span.shard, _rows(items, gaps), compression)
    there = sum(file.rows for file in made) + sum(gap.last - gap.first + 1 for gap in gaps)
    return Wrote(made, gaps, span.end - span.first - there)


def _rows(items: Iterable[Batch | Gap], gaps: list[ArchivedGap]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, Gap):
            gaps.append(ArchivedGap(item.shard, item.first, item.last, item.reason))
        else:
            yield item.arrow.select(SCHEMA.names)


def confirm_deleted(wrote: Wrote, view: View) -> None:
    """What is called deleted was deleted: an archive must not say so of records that are there."""
    last = max((gap.last for gap in wrote.gaps if gap.reason == DELETED), default=-1)
    if last >= ranges.deleted_before(view):
        raise DataLoss(f"offsets up to {last} could not be read, and were not deleted; try again")


# ---- a run -----------------------------------------------------------------------------------


class Run:
    """One run, from manifest to manifest. The archive's lock must be held throughout."""

    def __init__(
        self, place: Archive, manifest: Manifest, hands: Hands,
        progress: Callable[[Progress], None] | None = None, clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self.place = place
        self.manifest = manifest
        self.hands = hands
        self.rows = self.files = self.bytes = self.merged = 0
        self.gaps: list[ArchivedGap] = []
        self.problems: list[str] = []
        self._progress = progress
        self._clock = clock
        self._began = clock.monotonic()

    def _teller(self, unit: str, total: int) -> Teller:
        return Teller("archive", unit, self._progress, total, self._clock)

    def verify(self) -> None:
        """Look at all files that are there."""
        files = list(self.manifest.files)
        teller = self._teller("files checked", len(files))
        groups = [files[at : at + FILES_TO_CHECK] for at in range(0, len(files), FILES_TO_CHECK)]
        for answers in self.hands.check(groups):
            self.problems += [wrong for answer in answers for wrong in answer]
            teller.add(min(len(answers) * FILES_TO_CHECK, teller.total - teller.done))

    def archive(self, spans: list[Span]) -> None:
        """Write spans, and commit what has been written as often as hands give an answer."""
        teller = self._teller("offsets", sum(span.end - span.first for span in spans))
        stuck: set[int] = set()
        left = iter(spans)
        for answers in self.hands.write(spans):
            manifest = self.manifest
            for wrote in answers:
                span = next(left)
                if wrote.problem:
                    self.problems.append(wrote.problem)
                    stuck.add(span.shard)
                if span.shard in stuck:
                    continue  # what a later span wrote waits for this one: swept, done again
                manifest = manifest.with_span(
                    span.shard, span.first, span.end, wrote.files, wrote.gaps, wrote.deleted
                )
                self.rows += sum(file.rows for file in wrote.files)
                self.files += len(wrote.files)
                self.bytes += sum(file.bytes for file in wrote.files)
                self.gaps += wrote.gaps
                teller.done += span.end - span.first
            if manifest is not self.manifest:
                self.manifest = self.place.commit(manifest)
            teller.add(0)
        self.place.sweep(self.manifest)

    def compact(self, target_bytes: int) -> None:
        """Put small files together."""
        groups = fmt.merges(self.manifest.files, target_bytes)
        teller = self._teller("files merged", sum(map(len, groups)))
        left = iter(groups)
        for answers in self.hands.merge(groups):
            done: list[tuple[Sequence[ArchivedFile], ArchivedFile]] = []
            for wrote in answers:
                group = next(left)
                if wrote.problem:
                    self.problems.append(wrote.problem)
                    continue
                done.append((group, wrote.files[0]))
                self.merged += len(group)
            if done:
                self.manifest = self.place.commit(self.manifest.with_merges(done))
            teller.add(sum(len(group) for group, _ in done))

    def result(self) -> Archived:
        files = self.manifest.files
        return Archived(
            topic=self.place.topic, archive=self.place.root, rows=self.rows, files=self.files,
            bytes=self.bytes, merged=self.merged, gaps=self.gaps, ends=self.manifest.ends,
            total_files=len(files), total_rows=sum(file.rows for file in files),
            problems=self.problems, seconds=self._clock.monotonic() - self._began,
        )  # fmt: skip


# ---- in this process -------------------------------------------------------------------------


def place_of(path: object, default: str, near: Files) -> tuple[Files, str]:
    """Where an archive is and the door to it, from anything that names it; None for the default."""
    if path is None:
        return near, default
    text = path.__fspath__() if isinstance(path, PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"{path!r} is not the path of a directory, nor a URL")
    return files_at(text, near)


def archive_topic(
    topic: Reading, path: object, *, target_bytes: int, compact: bool, compression: str,
    verify: bool, progress: Callable[[Progress], None] | None,
) -> Archived:  # fmt: skip
    """See `Topic.archive`."""
    check_options(target_bytes, compression)
    context = topic._store._context
    entry = topic._existing()
    files, root = place_of(path, join(context.root, names.ARCHIVE), context.files)
    _refuse(topic, root)
    place = Archive(files, root, topic.name)
    with place.held(context.note):
        hands = Own(topic, place, files, compression)
        manifest = place.begin(context.store.hex(), entry.id)
        run = Run(place, manifest, hands, progress, context.clock)
        if verify:
            run.verify()
        spans: list[Span] = []
        for view in topic._views(None):
            try:
                _refuse_older(manifest, view)
                spans += spans_of(manifest, view.number, view, target_bytes)
            except Corruption as problem:
                hands.errors.append(problem)
        run.archive(spans)
        if compact:
            run.compact(target_bytes)
    if hands.errors:
        raise hands.errors[0]
    return run.result()


def _refuse(topic: Handle, root: str) -> None:
    context = topic._store._context
    if isinstance(context.files, MemoryFiles) or topic.options.durability == "ephemeral":
        raise InvalidOption(
            f"topic {topic.name!r} is kept in memory, and only what is on the disk is archived; "
            "pyarrow.parquet.write_table(topic[:].to_arrow(), ...) writes what it has now"
        )
    if root == context.root:
        raise InvalidOption(
            f"{root} is the store itself; name another directory, or none for "
            f"{join(root, names.ARCHIVE)}"
        )


def _refuse_older(manifest: Manifest, view: View) -> None:
    """Refuse a log that ends before its archive does: its next records would be other ones."""
    end = manifest.ends.get(view.number, 0)
    if end > view.visible:
        raise Corruption(
            "the log ends before its archive does (restored from a backup?)", path=view.folder,
            first=view.visible, last=end - 1, reason="missing records",
        )  # fmt: skip


class Own:
    """This process, one thing after the other."""

    def __init__(self, topic: Reading, place: Archive, files: Files, compression: str) -> None:
        self.errors: list[EskerError] = []
        self._topic = topic
        self._place = place
        self._files = files
        self._compression = compression

    def write(self, spans: list[Span]) -> Iterator[list[Wrote]]:
        stuck: set[int] = set()
        for span in spans:
            if span.shard in stuck:
                yield [Wrote()]  # never looked at: see Run.archive
                continue
            try:
                wrote = self._write(span)
            except (Corruption, DataLoss) as problem:
                stuck.add(span.shard)
                wrote = self._told(problem)
            yield [wrote]

    def _write(self, span: Span) -> Wrote:
        topic = self._topic
        found = topic._whole(span.first, span.end, span.shard, BATCH_BYTES)
        items = ranges.without_holes(found, topic.name, *_bounds(span), DELETED)
        wrote = write_span(self._files, self._place.folder, span, items, self._compression)
        confirm_deleted(wrote, topic._view(span.shard))
        return wrote

    def merge(self, groups: list[list[ArchivedFile]]) -> Iterator[list[Wrote]]:
        for group in groups:
            try:
                wrote = Wrote([merge(self._files, self._place.folder, group, self._compression)])
            except Corruption as problem:
                wrote = self._told(problem)
            yield [wrote]

    def check(self, groups: list[list[ArchivedFile]]) -> Iterator[list[list[str]]]:
        for group in groups:
            for file in group:
                try:
                    check_file(self._files, self._place.folder, file)
                except Corruption as problem:
                    self._told(problem)
            yield [[]]

    def _told(self, problem: EskerError) -> Wrote:
        self.errors.append(problem)
        return Wrote(problem=str(problem))


def _bounds(span: Span) -> tuple[int, int, int]:
    return span.shard, span.first, span.end
