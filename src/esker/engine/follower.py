"""One shard, as a process sees it that does not write it.

While a writer lives, its counters page says how far readers may look: segment, position, offset.
The follower hops over the headers that are new and reads the rest when asked. When no writer
lives, the files themselves are walked, and nothing is changed: what a recovery would cut is not
shown, and `store.recovery` says that one is due.

Reading never blocks a writer and is never blocked by one: sealing replaces files by renaming, and
a file that vanished between listing and opening is simply listed again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from esker.engine import survey
from esker.engine.context import Context
from esker.engine.layout import list_segments, shard_folder
from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format import names
from esker.format.catalog import TopicEntry
from esker.format.counters import WORD
from esker.format.segment import HEADER_SIZE, misplaced
from esker.format.state import Losses, State
from esker.storage import marks, scan
from esker.storage.counters import Counters, Published
from esker.storage.files import join, size_if_there
from esker.storage.log import LogSegment, open_log
from esker.storage.marks import Marks
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment
from esker.storage.state import StateFile

ATTEMPTS = 50
LOOKS = 3  # of them, before what was seen last has to do
PAUSE_SECONDS = 0.001
_PAUSE: Final = threading.Event()  # never set: waiting for it is a pause


class Unreadable:
    """A log that is there and cannot be read: who comes to it is told, others read around it."""

    def __init__(self, path: str, name: names.SegmentName, reason: str) -> None:
        self.path = path
        self.base, self.number = name.base, name.segment
        self._reason = reason

    def _refuse(self, *_: object) -> Any:
        raise Corruption(self._reason, path=self.path)

    header = rows = property(_refuse)
    read = at = find_time = _refuse


class Follower:
    """A read-only view of a shard, brought up to date by `refresh`."""

    def __init__(self, context: Context, entry: TopicEntry, number: int) -> None:
        self.context = context
        self.entry = entry
        self.number = number
        self.folder = shard_folder(context.root, entry.id, number)
        self.segments: tuple[Segment, ...] = ()
        self.visible = 0
        self.durable = 0
        self.earliest = 0
        self.losses: Losses = ()
        self.marks = Marks()
        self._marked = (0, 0)  # the file of deletions that `marks` is, and how much of it
        self.settled = False
        self._lock = threading.Lock()  # guards everything here
        self._counters: Counters | None = None
        self._seen: object = None
        self._replaced = 0  # how many sealed files had been replaced when we last looked
        self._floor = (-1, -1)  # what the page hinted at when we looked at the state
        self._known: dict[names.SegmentName, Segment] = {}

    def refresh(self) -> int:
        """Look what is there now; returns `visible`."""
        with self._lock:
            counters = self._page()
            for attempt in range(ATTEMPTS):
                if counters is None or not (self._alive() and self._same_boot(counters)):
                    break
                published = counters.published()
                if published is not None:
                    self._follow(published)
                    return self.visible
                # It is publishing, which is a matter of microseconds; unless it is held up there.
                if isinstance(self._seen, Published) and attempt >= LOOKS:
                    return self.visible  # the next look sees more
                _PAUSE.wait(PAUSE_SECONDS)
            self._inspect()
            return self.visible

    def forget(self) -> None:
        """Let go of everything. What a reader still holds stays open until it is done with it."""
        with self._lock:
            self.segments, self._known, self._counters, self._seen = (), {}, None, None

    def renew(self) -> None:
        """In a forked child: whoever was in here is not in the child."""
        self._lock = threading.Lock()

    def _page(self) -> Counters | None:
        if self._counters is None:
            self._counters = Counters.open(self.context.files, self.folder, writable=False)
        return self._counters

    def _same_boot(self, counters: Counters) -> bool:
        """A page from before the machine stopped tells of things that may be gone."""
        boot, words = self.context.boot, counters.words
        return bool(
            words[WORD["boot_high"]] == int.from_bytes(boot[:8], "big")
            and words[WORD["boot_low"]] == int.from_bytes(boot[8:], "big")
        )

    def _alive(self) -> bool:
        return self.context.files.holder(join(self.folder, names.LOCK)) is not None

    def _follow(self, published: Published) -> None:
        if published == self._seen:
            return
        if published.visible < self.visible:
            # of a writer that died, while the next one recovers: its files, at which we have looked
            # since, hold more than it had published
            return
        for attempt in range(ATTEMPTS):
            try:
                self._take(published)
                break
            except (StorageError, Corruption):
                # a segment was being sealed under our eyes; what is published now is newer
                if attempt + 1 == ATTEMPTS:
                    raise
                if attempt > 3:
                    _PAUSE.wait(PAUSE_SECONDS)
                newer = self._counters.published() if self._counters is not None else None
                published = newer or published
            except BaseException:  # interrupted: a log may have been taken in by half
                self._known, self._listing = {}, -1
                raise
        self._seen = published
        self.settled = False
        if self._hint() != self._floor:
            self._find_floor()
        # a writer that has only just taken over publishes, at first, what the dead one left there
        self.visible = max(self.visible, published.visible)
        self.durable = published.durable

    def _take(self, published: Published) -> None:
        known = self._known
        last = self.segments[-1] if self.segments else None
        same = isinstance(last, LogSegment) and last.number == published.segment
        if not same or self._listing != published.generation:
            known = self._list(published.segment)
        segments = tuple(known[name] for name in sorted(known))
        for index, segment in enumerate(segments):
            if not isinstance(segment, LogSegment):
                continue
            if segment.number == published.segment:
                segment.extend(published.position)
            elif index + 1 < len(segments):
                self._complete(segment, segments[index + 1])
        # other threads are reading: they are shown a list only when it is complete
        self._known, self.segments, self._listing = known, segments, published.generation

    _listing = -1

    def _complete(self, log: LogSegment, following: Segment) -> None:
        """A rolled log: all of it, as far as the next one says that it goes."""
        rows = following.header.previous_end - log.base
        if log.next_row >= rows:
            return
        seen = scan.walk(log.file, log.salt, log.end, bodies=False)
        for position, header in seen.frames:
            if header.first_row + header.count <= rows:
                log.extend(position + header.size)

    def _list(self, published: int | None) -> dict[names.SegmentName, Segment]:
        """The segments that are there; beside a writer, without a log that it is still making."""
        words = self._counters.words if self._counters is not None else None
        replaced = words[WORD["segments_replaced"]] if words is not None else 0
        forgetting = published is None or replaced != self._replaced
        found = self._names()
        sealed = {name.segment for name in found if name.sealed}
        known: dict[names.SegmentName, Segment] = {}
        for name in found:
            if not name.sealed and name.segment in sealed:
                continue
            if not name.sealed and published is not None and name.segment > published:
                continue
            if name == found[-1] and published is None and self._unfinished(name):
                continue
            writing = published is not None
            known[name] = (writing and self._known.get(name)) or self._open(name, writing=writing)
            if forgetting:
                self._forget_replaced(known[name])
        self._replaced = replaced
        return known

    def _forget_replaced(self, segment: Segment) -> None:
        """A sealed file may have been replaced: see rewriting.py and tiering.py."""
        if isinstance(segment, SealedSegment):
            segment.size = segment.local_size = 0  # not known any more
            self.context.maps.drop_replaced(segment.path)  # or its room would stay taken

    def _hint(self) -> tuple[int, int]:
        """The oldest offset, and a number that grows with every deletion and with every writer:
        hints that the state page has changed, also if its writer died before it could tell."""
        if self._counters is None:
            return 0, 0
        words = self._counters.words
        return words[WORD["oldest_offset"]], words[WORD["segments_generation"]]

    def _find_floor(self) -> State | None:
        """What was evicted or deleted since, as the state page has it."""
        hint = self._hint()  # before the page is read: what changes meanwhile is looked at again
        for attempt in range(ATTEMPTS):
            state = StateFile(self.context.files, self.folder).load()
            try:
                self._find_marks(state)
                break
            except StorageError:  # replaced by another file, and unlinked, under our eyes
                if attempt + 1 == ATTEMPTS:
                    raise
        if state is not None and state.earliest > self.earliest:
            self.losses = state.losses  # first: see Shard._begin
            self.earliest = state.earliest
        self._floor = hint
        return state

    def _look_again(self) -> None:
        """A sealed file was mapped: it may lack what was deleted since we looked at the page.

        Whoever blanks a record on disk has said before, on the page, that it is deleted. So a look
        at the page behind the mapping knows of all that the file may lack.
        """
        with self._lock:
            self._find_floor()

    def _find_marks(self, state: State | None) -> None:
        owner = (self.entry.id, self.number, self.context.store)
        if state is not None and (state.topic, state.shard, state.store) == owner:
            known = (state.marks, state.marks_end)
        else:  # as recovery has it: what was deleted stays deleted
            known = marks.newest(self.context.files, self.folder)
        if known == self._marked:
            return
        try:
            self.marks = marks.read_marks(self.context.files, self.folder, *known, owner)[0]
        except Corruption as problem:
            if StateFile(self.context.files, self.folder).load() != state:
                raise StorageError(
                    "the file of deletions was replaced", path=problem.path
                ) from problem
            self.marks = marks.UnknownMarks(problem)
        self._marked = known

    def _names(self) -> list[names.SegmentName]:
        found = list_segments(self.context.files, self.folder)
        if not found and not self.context.files.kind(self.folder):
            raise self.context.vanished(self.entry, self.folder)
        return found

    def _unfinished(self, name: names.SegmentName) -> bool:
        """A log whose writer died before its header was there; a recovery would remove it."""
        if name.sealed:
            return False
        file = self.context.files.open(
            join(self.folder, names.segment(*name[:2], sealed=False)), "r"
        )
        try:
            return not any(file.read(0, HEADER_SIZE))
        finally:
            file.close()

    def _open(self, name: names.SegmentName, *, writing: bool) -> Segment:
        path = join(self.folder, names.segment(*name[:2], sealed=name.sealed))
        owner = (self.context.store, self.entry.id, self.number)
        if name.sealed:
            sealed = SealedSegment(path, name).attach(self.context.maps, owner)
            sealed.looked = self._look_again
            return sealed
        file, header = open_log(self.context.files, path, "r")
        wrong = header if isinstance(header, str) else misplaced(header, *name[:2], owner)
        if isinstance(header, str) or wrong:
            file.close()
            if wrong.startswith("version"):
                raise FormatTooNew(f"{path} was written by a later Esker ({wrong})")
            if writing:
                raise Corruption(wrong, path=path)  # it may be in the making: look again
            return Unreadable(path, name, wrong)
        return LogSegment(header, file)

    def _inspect(self) -> None:
        """No writer lives: walk the logs, change nothing."""
        files = self.context.files
        found = self._names()
        sizes = []
        for name in found:
            if not name.sealed:
                log = join(self.folder, names.segment(*name[:2], sealed=False))
                sizes.append(size_if_there(files, log))  # it may be sealed in this moment
        fingerprint = (tuple(found), tuple(sizes), self._hint())
        if fingerprint == self._seen:
            return
        known = self._list(None)
        state = self._find_floor()
        kept: list[Segment] = []
        durable = 0  # what a later frame, or a clean close, proves to have been synced
        ordered = [known[name] for name in sorted(known)]
        clean = state.segment if state is not None and state.clean else 0
        whole_size = state.end_position if state is not None else 0  # of the log closed cleanly
        walks = {
            segment.number: scan.walk(
                segment.file, segment.salt, HEADER_SIZE,
                # a log that was closed is whole: who reads a body of it compares its checksum
                bodies=segment.number != clean or segment.file.size() != whole_size,
            )
            for segment in ordered
            if isinstance(segment, LogSegment)
        }  # fmt: skip
        synced = [number for number, seen in walks.items() if seen.watermark or number == clean]
        synced += [segment.number for segment in ordered if isinstance(segment, SealedSegment)]
        frontier = max(synced, default=0)  # all logs before it were durable, see survey.py
        for index, segment in enumerate(ordered):
            kept.append(segment)
            if not isinstance(segment, LogSegment):
                continue
            seen = walks[segment.number]
            proven = state.end_position if state is not None and segment.number == clean else 0
            if segment.number < frontier:
                proven = max(proven, survey.whole(seen, _rows_of(segment, ordered[index + 1 :])))
            verdict = scan.verdict(seen, proven)
            segment.adopt(verdict)
            durable = segment.base + _rows_below(verdict, max(seen.watermark, proven))
            if verdict.torn is not None and segment.number >= frontier:
                break
        self._known, self.segments = known, tuple(kept)
        end = state.end_offset if state is not None and state.clean else 0
        if self._counters is not None:
            end = max(end, self._counters.proven(self.entry.id, self.number))
        if kept:
            end = max(end, self._end_of(kept[-1], sizes[-1] if sizes else 0))
        self.visible = end
        whole = not kept or not isinstance(kept[-1], LogSegment)
        self.durable = end if whole else min(end, durable)
        self.settled = True
        self._seen = fingerprint
        self._listing = -1

    def _end_of(self, last: Segment, size: int) -> int:
        """The offset behind a segment, or behind all that can be in one that cannot be read."""
        try:
            return last.base + last.rows
        except Corruption:
            if not isinstance(last, Unreadable):
                size = len(self.context.maps.get(last.path).data)
            return last.base + max(1, size // survey.ROW_BYTES_MIN)


def _rows_of(segment: Segment, following: Sequence[Segment]) -> int | None:
    """How many rows a segment had, as the header behind it says."""
    if not following or following[0].number != segment.number + 1:
        return None
    with suppress(Corruption):
        return max(0, following[0].header.previous_end - segment.base)
    return None


def _rows_below(verdict: scan.Verdict, position: int) -> int:
    """How many rows lie in frames that end at or below a position."""
    below = [header for at, header in verdict.frames if at + header.size <= position]
    return max((header.first_row + header.count for header in below), default=0)
