"""One shard, inspected: its segments one by one, how they hang together, and what its state says.

`inspect_shard` changes nothing and takes no lock. Beside a living writer it looks at what the
writer has published and no further; where a file vanishes under its eyes, because it was sealed,
it begins again. The rules of the format that tell a torn tail from corruption are applied here a
second time, independently of `recovery`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from esker.errors import StorageError
from esker.format import catalog as catalog_format
from esker.format import counters as counters_format
from esker.format import marks as marks_format
from esker.format import names
from esker.format import once as once_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.catalog import TopicEntry
from esker.format.segment import GAP_REASONS, SegmentHeader
from esker.format.state import State
from esker.records import Gap
from esker.storage.counters import Counters, Published
from esker.storage.files import Files, Holder, join, size_if_there
from esker.storage.marks import numbers
from esker.upkeep import deletions
from esker.upkeep.cursors import look_at_cursors
from esker.upkeep.deletions import Deletions
from esker.upkeep.examine import Examined, directory_flaw, examine
from esker.upkeep.report import KINDS, Problem, Severity
from esker.upkeep.stubs import Cold, judge_object, judge_stub, look_at_object

Look = Callable[[str, names.SegmentName, int | None, int | None], Examined | None]
"""Examines one segment, deeply: folder, name, and the limits that `examine` has. None: not now."""

ATTEMPTS: Final = 50
EVERYTHING: Final = 1 << 62  # a position above every other


class Vanished(Exception):
    """A file was listed and is gone."""


class Inspection:
    """What was found in one shard."""

    def __init__(self, folder: str, entry: TopicEntry, number: int) -> None:
        self.folder = folder
        self.entry = entry
        self.number = number
        self.problems: list[Problem] = []
        self.gaps: list[Gap] = []
        self.holder: Holder | None = None
        self.state: State | None = None
        self.clean = False  # closed cleanly, and the files agree
        self.durable = 0  # the end of what was durable, as the counters page gives it
        self.segments: list[Examined] = []
        self.marked = (0, 0)  # the file of deletions that counts, and how far
        self.deletions: Deletions | None = None  # what was found in it
        self.deleted = 0  # how many records of `segments` it deletes
        self.files = 0
        self.bytes = 0

    def say(
        self, kind: str, path: str, reason: str, position: int | None = None,
        first: int | None = None, last: int | None = None, *, severity: Severity | None = None,
    ) -> None:  # fmt: skip
        if first is not None and last is not None and last < first:
            first = last = None
        self.problems.append(
            Problem(kind, severity or KINDS[kind][0], path, reason, self.entry.name, self.number,
                    position, first, last)
        )  # fmt: skip

    @property
    def known_short(self) -> bool:
        """Whether it was said already that the last segment lacks records."""
        last = self.segments[-1].path if self.segments else ""
        return any(p.path == last and p.kind in ("frame", "truncated") for p in self.problems)

    @property
    def weak(self) -> bool:
        """Whether offsets are set aside before they are used; see format/state.py."""
        return self.entry.options.durability == "disk"


def inspect_shard(
    files: Files, folder: str, entry: TopicEntry, number: int, store: bytes | None, *,
    deep: bool = True, locked: bool = False, progress: Callable[[int], None] | None = None,
    look: Look | None = None, cold: Cold | None = None,
) -> Inspection:  # fmt: skip
    """Look at everything that one shard has on disk, and at what its stubs stand for.

    `locked`: the caller has its writer lock. `look` examines the segments, if somebody else is to
    do it; see upkeep/dealt.py. Where a file vanishes meanwhile, as a writer seals it or retention
    removes it, this begins again; sealed segments that were examined and are still there are not
    examined twice.
    """
    sealed: dict[names.SegmentName, Examined] = {}
    for attempt in range(ATTEMPTS):
        found = Inspection(folder, entry, number)
        try:
            _Inspector(files, found, store, deep, locked, look, cold or Cold(files), sealed).run()
        except Vanished as problem:
            if attempt + 1 == ATTEMPTS:
                found.say("unreadable", folder, str(problem))
                break
            continue
        break
    if progress is not None:
        progress(found.bytes)
    return found


_OURS = {
    names.STATE, names.COUNTERS, names.LOCK, names.OFFSETS, names.OFFSETS_LOCK, names.ONCE,
}  # fmt: skip


class _Inspector:
    """Fills an Inspection."""

    def __init__(
        self, files: Files, found: Inspection, store: bytes | None, deep: bool, locked: bool,
        look: Look | None, cold: Cold, sealed: dict[names.SegmentName, Examined],
    ) -> None:  # fmt: skip
        self.look = look or self._look
        self.sealed = sealed  # by an earlier attempt, or this one
        self.cold = cold
        self.files = files
        self.found = found
        self.folder = found.folder
        self.store = store
        self.deep = deep
        self.locked = locked
        self.published: Published | None = None

    def run(self) -> None:
        found = self.found
        if not self.locked:
            found.holder = self.files.holder(join(self.folder, names.LOCK))
        self.counters()
        look_at_cursors(self.files, found, self.store)
        self.state()
        self.keys()
        listed = self.listing()
        if found.entry.options.durability == "ephemeral":
            for name in listed:
                found.say("stranger", self.path(name), "a segment of a topic that keeps none")
            self.other_deletions(0, "stranger", "deletions of a topic that keeps none")
            return
        found.clean = found.holder is None and self.closed_cleanly(listed)
        for index, name in enumerate(listed):
            seen = self.examine(name, listed[index + 1] if index + 1 < len(listed) else None)
            if seen is not None:
                found.segments.append(seen)
        last_sealed = max((seen.name.segment for seen in found.segments if seen.name.sealed),
                          default=0)  # fmt: skip
        for index, seen in enumerate(found.segments):
            following = found.segments[index + 1] if index + 1 < len(found.segments) else None
            if seen.name.sealed and seen.footer is None:
                self.expect(seen, following)
            self.judge(seen, following, proven=self.proven(seen, last_sealed))
        self.sequence()
        self.deletions(used=bool(listed) or found.durable > 0)
        if found.holder is None:
            self.ending()

    def path(self, name: names.SegmentName) -> str:
        return join(self.folder, names.segment(name.segment, name.base, sealed=name.sealed))

    # -- what lies in the directory --

    def listing(self) -> list[names.SegmentName]:
        """Segments by number; everything else is named here."""
        found, live = self.found, self.found.holder is not None
        segments = []
        for name in sorted(self.files.list(self.folder)):
            path = join(self.folder, name)
            parsed = names.parse_segment(name)
            if parsed is not None:
                segments.append(parsed)
            elif name.endswith(names.TEMPORARY):
                if not live:
                    found.say("leftover", path, "a file that was being made")
            elif names.parse_staged(name) is not None:
                continue  # nobody reads it before it is attached
            elif names.parse_deletions(name) is not None:
                continue  # see `deletions`
            elif names.parse_tags(name) is not None:
                continue  # an index, which is made anew when it is not whole
            elif name not in _OURS:
                found.say("stranger", path, "not a file of Esker's")
        sealed = {(name.segment, name.base) for name in segments if name.sealed}
        kept = []
        for segment in sorted(segments):
            if not segment.sealed and segment[:2] in sealed:
                if not live:
                    found.say("leftover", self.path(segment), "a log that has been sealed")
                continue
            kept.append(segment)
        return kept

    def counters(self) -> None:
        found = self.found
        path = join(self.folder, names.COUNTERS)
        page = Counters.open(self.files, self.folder, writable=False)
        if page is not None:
            if found.holder is not None:
                self.published = page.published()
            else:
                found.durable = page.proven(found.entry.id, found.number)
            return
        if not self.files.kind(path):
            return
        try:
            fresh = not any(self._read(path, counters_format.PAGE_SIZE))
        except StorageError as problem:
            found.say("unreadable", path, str(problem))
            return
        if not fresh:
            found.say("counters", path, "not a counters page")

    def keys(self) -> None:
        """The keys of batches, as they were saved; the truth is in the log."""
        found = self.found
        path = join(self.folder, names.ONCE)
        if not self.files.kind(path):
            return
        try:
            data = self._read(path, once_format.HEADER_SIZE + once_format.BODY_BYTES_MAX)
        except StorageError as problem:
            found.say("unreadable", path, str(problem))
            return
        found.files += 1
        found.bytes += len(data)
        store = self.store or data[32:48]  # without an identity nobody can tell
        saved = once_format.decode_saved(data, (store, found.entry.id, found.number))
        if isinstance(saved, str):
            found.say("newer" if saved.startswith("version") else "keys", path, saved, 0)

    def state(self) -> None:
        found = self.found
        path = join(self.folder, names.STATE)
        if not self.files.kind(path):
            return
        try:
            data = self._read(path, state_format.FILE_SIZE + 1)
        except StorageError as problem:
            found.say("unreadable", path, str(problem))
            return
        found.files += 1
        found.bytes += len(data)
        whole: list[State] = []
        damaged, empty = [], []
        for position in state_format.SLOT_POSITIONS:
            slot = state_format.decode_slot(data[position : position + state_format.SLOT_SIZE])
            if isinstance(slot, State):
                whole.append(slot)
            elif slot.startswith("version"):
                found.say("newer", path, slot, position)
            elif slot:
                damaged.append((position, slot))
            else:
                empty.append(position)
        found.state = max(whole, key=lambda slot: slot.generation, default=None)
        for position, reason in damaged:
            severity: Severity = "warning" if whole else "error"
            found.say("state", path, reason, position, severity=severity)
        if found.state is not None and found.state.generation > 1:  # then both were written
            for position in empty:
                found.say("state", path, "an empty slot", position, severity="warning")
        if len(whole) == 2 and abs(whole[0].generation - whole[1].generation) != 1:
            found.say("state", path, "slots that were not written in turn", 8, severity="warning")
        self._state_belongs(path, data)

    def _state_belongs(self, path: str, data: bytes) -> None:
        found, state = self.found, self.found.state
        between = data[state_format.SLOT_SIZE : state_format.SLOT_POSITIONS[1]]
        if any(between) or len(data) > state_format.FILE_SIZE:
            found.say("state", path, "bytes that belong to no slot", state_format.SLOT_SIZE,
                      severity="warning")  # fmt: skip
        if state is None:
            return
        ours = (found.entry.id, found.number, self.store or state.store)
        if (state.topic, state.shard, state.store) != ours:
            found.say("foreign", path, "the state of another shard")
            found.state = None
        elif (state.clean or found.weak) and state.ceiling < state.end_offset:
            found.say("state", path, f"ceiling {state.ceiling} below end {state.end_offset}")

    def _read(self, path: str, size: int) -> bytes:
        file = self.files.open(path, "r")
        try:
            return file.read(0, size)
        finally:
            file.close()

    def closed_cleanly(self, listed: list[names.SegmentName]) -> bool:
        state = self.found.state
        logs = [name for name in listed if not name.sealed]
        if state is None:
            return not listed and not self.found.durable
        if not state.clean or len(logs) > 1:
            return False
        if not logs:
            return state.segment == 0
        if listed[-1] != logs[0] or logs[0].segment != state.segment:
            return False
        return size_if_there(self.files, self.path(logs[0])) == state.end_position

    # -- one segment --

    def examine(
        self, name: names.SegmentName, following: names.SegmentName | None
    ) -> Examined | None:
        limit = rows = None
        if self.found.holder is not None and not name.sealed:
            published = self.published
            if published is None or name.segment > published.segment:
                return None  # being made, or nobody tells how far it goes
            if name.segment == published.segment:
                limit = published.position
            elif following is not None:
                header = self._header(following)
                rows = header.previous_end - name.base if header is not None else None
        seen = self.sealed.get(name)
        try:
            if seen is None or size_if_there(self.files, self.path(name)) != seen.size:
                seen = self.look(self.folder, name, limit, rows)
        except StorageError as problem:
            if problem.errno == errno.ENOENT:
                raise Vanished(str(problem)) from problem
            self.found.say("unreadable", self.path(name), str(problem), None, name.base,
                           following.base - 1 if following is not None else None)  # fmt: skip
            return None
        if seen is None:
            return None
        if name.sealed:
            self.sealed[name] = seen
        self.found.files += 1
        self.found.bytes += min(seen.size, seen.size if limit is None else limit)
        self.found.bytes += seen.whole_size
        return seen

    def _look(
        self, folder: str, name: names.SegmentName, limit: int | None, rows: int | None
    ) -> Examined:
        seen = examine(self.files, folder, name, limit=limit, rows=rows, deep=self.deep)
        if seen.stub:
            look_at_object(seen, self.cold, deep=self.deep)
        return seen

    def _header(self, name: names.SegmentName) -> SegmentHeader | None:
        try:
            data = self._read(self.path(name), segment_format.HEADER_SIZE)
        except StorageError as problem:
            raise Vanished(str(problem)) from problem
        header = segment_format.decode_header(data)
        return None if isinstance(header, str) else header

    def proven(self, seen: Examined, last_sealed: int) -> int:
        """Below this position everything was once durable: damage there is corruption."""
        found, state = self.found, self.found.state
        if seen.name.sealed or seen.name.segment < last_sealed or found.holder is not None:
            return EVERYTHING
        closed = state is not None and state.clean and state.segment == seen.name.segment
        return max(seen.watermark, state.end_position if closed and state is not None else 0)

    def expect(self, seen: Examined, following: Examined | None) -> None:
        """A sealed segment without a footer: how many rows it had is known from what follows."""
        state, header = self.found.state, following.header if following is not None else None
        if seen.header is None:
            return
        end = seen.next_offset
        if header is not None and header.previous_salt == seen.header.salt:
            end = header.previous_end
        elif following is None and state is not None and state.clean and state.segment == 0:
            end = state.end_offset
        if not seen.stub:
            seen.expect(end - seen.base)
        else:  # no record is lost by that
            seen.rows = max(seen.rows, end - seen.base)

    def judge(self, seen: Examined, following: Examined | None, proven: int) -> None:
        found, before = self.found, len(self.found.problems)
        for start, end, reason in seen.refused:
            found.say("unreadable", seen.path, f"{reason} (up to byte {end})", start)
        if seen.header is None:
            self._no_header(seen, following)
            return
        self._belongs(seen, seen.header)
        if seen.stub:
            judge_stub(found, seen)
        else:
            self._frames(seen, proven)
        if seen.header.segment == seen.name.segment:
            self._config(seen)
        for position in seen.untidy:
            found.say("padding", seen.path, "padding that is not zero", position)
        if seen.footer_flaw:
            found.say("footer", seen.path, seen.footer_flaw, seen.footer_position or None)
        elif not seen.stub and not seen.damage and directory_flaw(seen):
            found.say("directory", seen.path, directory_flaw(seen), seen.footer_position)
        if not seen.hash_matches and len(found.problems) == before:
            found.say("file_hash", seen.path, "the file does not match its hash",
                      seen.size - segment_format.TRAILER_SIZE)  # fmt: skip
        judge_object(found, seen)
        base = seen.base
        for first, last in seen.holes:
            found.gaps.append(
                Gap(found.entry.name, found.number, base + first, base + last,
                    GAP_REASONS[segment_format.GAP_CORRUPT])
            )  # fmt: skip

    def _no_header(self, seen: Examined, following: Examined | None) -> None:
        found = self.found
        if seen.header_flaw.startswith("version"):
            found.say("newer", seen.path, f"segment {seen.header_flaw}", 8)
        elif not seen.name.sealed and not found.clean and _is_empty(self.files, seen):
            found.say("leftover", seen.path, "a new log without a header")
        else:
            last = following.base - 1 if following is not None else None
            if last is None and found.state is not None and found.state.clean:
                last = found.state.end_offset - 1
            found.say("header", seen.path, seen.header_flaw, 0, seen.base, last)

    def _belongs(self, seen: Examined, header: SegmentHeader) -> None:
        found = self.found
        ours = (self.store or header.store, found.entry.id, found.number)
        if (header.store, header.topic, header.shard) != ours:
            found.say("foreign", seen.path, "a segment of another store, topic or shard", 16)
        elif (header.segment, header.base) != seen.name[:2]:
            said = f"its header says segment {header.segment} from offset {header.base}"
            found.say("misnamed", seen.path, said, 48)

    def _frames(self, seen: Examined, proven: int) -> None:
        found, base = self.found, seen.base
        for flaw in seen.damage:
            if flaw.position < proven:
                found.say("frame", seen.path, flaw.reason, flaw.position,
                          base + flaw.first, base + flaw.last)  # fmt: skip
            else:
                found.say("torn_tail", seen.path, flaw.reason, flaw.position,
                          base + flaw.first, base + flaw.last)  # fmt: skip
                return  # what lies behind it goes with it
        if seen.unfinished >= 0 and found.holder is None:
            kind = "frame" if seen.unfinished < proven else "torn_tail"
            found.say(kind, seen.path, "a batch whose last frame is missing", seen.unfinished)
        closed = proven != EVERYTHING and found.state is not None and found.state.clean
        if closed and found.state is not None and seen.end < proven and not seen.flaws:
            found.say("truncated", seen.path, f"it was closed at byte {proven}", seen.end,
                      seen.next_offset, found.state.end_offset - 1)  # fmt: skip

    def _config(self, seen: Examined) -> None:
        found = self.found
        position = segment_format.HEADER_SIZE
        if any(flaw.position == position for flaw in seen.flaws):
            return  # said already
        if seen.config is None:
            if not any(flaw.position == position for flaw in seen.flaws) and not seen.holes:
                found.say("config", seen.path, "no CONFIG frame at its beginning", position)
            return
        entry = catalog_format.decode_config(seen.config)
        if isinstance(entry, str):
            found.say("config", seen.path, entry, position)
        elif (entry.id, entry.name) != (found.entry.id, found.entry.name):
            found.say("config", seen.path, f"it names topic {entry.name!r}", position)

    # -- the sequence of segments --

    def sequence(self) -> None:
        found = self.found
        segments = [seen for seen in found.segments if seen.header is not None]
        if found.segments:
            self._beginning(found.segments[0])
        for before, after in pairwise(found.segments):
            deleted = found.state.earliest if found.state is not None else 0
            if after.name.segment != before.name.segment + 1 and after.base > deleted:
                self._missing(before, after)
        for before, after in pairwise(segments):
            if after.name.segment == before.name.segment + 1:
                self._follows(before, after)

    def _beginning(self, first: Examined) -> None:
        state, header = self.found.state, first.header
        if header is None or state is None or header.segment == 1:
            if header is not None and header.segment == 1 and header.base > header.previous_end:
                self._gap(first, header)
            return
        if header.previous_end > state.earliest:
            self.found.say(
                "missing_segment", self.folder, f"segments before {header.segment} are not there",
                None, state.earliest, header.previous_end - 1,
            )  # fmt: skip

    def _missing(self, before: Examined, after: Examined) -> None:
        first, last = before.name.segment + 1, after.name.segment - 1
        which = f"segment {first} is" if first == last else f"segments {first} to {last} are"
        known = before.header is not None
        self.found.say(
            "missing_segment", self.folder, f"{which} not there", None,
            before.next_offset if known else None, after.base - 1 if known else None,
        )  # fmt: skip

    def _follows(self, before: Examined, after: Examined) -> None:
        """Hold a header against the segment that it says it follows."""
        found, header, last = self.found, after.header, before.header
        assert header is not None
        assert last is not None
        if header.previous_salt not in (0, last.salt):
            found.say("chain", after.path, "it follows another segment than the one before it", 96)
            return
        whole = before.footer is not None or not (before.flaws or before.name.sealed)
        end, said = before.next_offset, header.previous_end
        if said != end and before.header_flaw == "":
            self._ends_differ(before, after, end, said)
        elif whole and header.previous_chain not in (0, before.chain_hash):
            found.say("chain", after.path, "the segment before it is not the one it was", 88)
        if header.base < said or (header.base > said and not header.gap):
            found.say("chain", after.path, f"it begins at offset {header.base}, the segment before "
                      f"it ended at {said}, and no gap is named", 56)  # fmt: skip
        elif header.base > said:
            self._gap(after, header)
        if header.previous_high < before.high and not before.flaws:
            found.say("timestamps", after.path, "records before it are younger than it says", 104)

    def _gap(self, seen: Examined, header: SegmentHeader) -> None:
        found = self.found
        found.gaps.append(
            Gap(found.entry.name, found.number, header.previous_end, header.base - 1,
                GAP_REASONS.get(header.gap) or "lost")
        )  # fmt: skip

    def _ends_differ(self, before: Examined, after: Examined, end: int, said: int) -> None:
        found = self.found
        crashed = not before.name.sealed and not found.clean and found.holder is None
        if said > end:
            kind = "torn_tail" if crashed else "truncated"
            found.say(kind, before.path, f"the next segment says that it went on to {said}",
                      before.end, end, said - 1)  # fmt: skip
        else:
            kind = "torn_tail" if crashed else "chain"
            found.say(kind, after.path, f"it says that the segment before it ended at {said}", 80,
                      said, end - 1)  # fmt: skip

    # -- deletions --

    def deletions(self, used: bool) -> None:
        """The file of deletions that counts, if there is one, and those that do not.

        The state page says which; where the page is lost, recovery takes the newest, all of it.
        """
        found = self.found
        for _ in range(ATTEMPTS):
            state = found.state if found.holder is None else self._state_now()
            number, end = (state.marks, state.marks_end) if state is not None else (0, 0)
            if state is None and used:
                number = max(numbers(self.files, self.folder), default=0)
            said = self._one_file(number, None if state is None else end)
            if not said or found.holder is None or self._state_now() == state:
                break  # else it was replaced by another one under our eyes
        found.problems += said
        found.marked = (number, found.deletions.size if state is None and found.deletions else end)
        if found.deletions is not None:
            found.files += 1
            found.bytes += found.deletions.size
            found.deleted = deletions.count(found.deletions.blocks, found.segments)
        if found.holder is None:
            self.other_deletions(number, "leftover", "deletions that no state page names")

    def _one_file(self, number: int, end: int | None) -> list[Problem]:
        """What is wrong with a file of deletions."""
        found, said = self.found, Inspection(self.folder, self.found.entry, self.found.number)
        found.deletions = None
        if not number:
            return []
        path = join(self.folder, names.deletions(number))
        if not self.files.kind(path):
            said.say("deletions", path, "the file of deletions is missing")
            return said.problems
        owner = (found.entry.id, found.number, self._store_id())
        try:
            seen = found.deletions = deletions.look(self.files, self.folder, number, end, owner)
        except StorageError as problem:
            said.say("unreadable", path, str(problem))
            return said.problems
        for start, stop, reason in seen.refused:
            said.say("unreadable", path, f"{reason} (up to byte {stop})", start)
        if seen.newer:
            said.say("newer", path, f"deletions of {seen.newer}", 4)
        for position, reason in seen.flaws:
            said.say("deletions", path, reason, position)
        for position in seen.untidy:
            said.say("padding", path, "padding that is not zero", position)
        if end is not None and seen.size > end and found.holder is None:
            said.say("trailing", path, "bytes behind its end", end)
        return said.problems

    def _store_id(self) -> bytes:
        return self.store or (self.found.state.store if self.found.state is not None else b"")

    def _state_now(self) -> State | None:
        try:
            data = self._read(join(self.folder, names.STATE), state_format.FILE_SIZE)
        except StorageError:
            return None
        slots = (
            state_format.decode_slot(data[at : at + state_format.SLOT_SIZE])
            for at in state_format.SLOT_POSITIONS
        )
        whole = [slot for slot in slots if isinstance(slot, State)]
        return max(whole, key=lambda slot: slot.generation, default=None)

    def other_deletions(self, number: int, kind: str, reason: str) -> None:
        for other in numbers(self.files, self.folder):
            if other == number:
                continue
            path = join(self.folder, names.deletions(other))
            try:
                data = self._read(path, marks_format.HEADER_SIZE)
            except StorageError:
                data = b""
            header = marks_format.decode_header(data)
            if isinstance(header, str) and header.startswith("version"):
                self.found.say("newer", path, f"deletions of {header}", 4)
            else:
                self.found.say(kind, path, reason)

    # -- the end --

    def ending(self) -> None:
        """What the state says about the end, when nobody is writing."""
        found, state = self.found, self.found.state
        path = join(self.folder, names.STATE)
        there = found.segments
        if state is None:
            if not there and not found.clean:
                found.say("unclean", self.folder, "its last writer did not close it")
            elif there:
                # A crash leaves a log without a state page, but never neither of them, and no
                # file of deletions without one.
                lost = found.weak or there[-1].name.sealed or bool(found.marked[0])
                if lost and not any(problem.path == path for problem in found.problems):
                    found.say("state", path, "there is no state page")
                else:
                    found.say("unclean", self.folder, "its last writer did not close it")
            return
        if not found.clean:
            found.say("unclean", self.folder, "its last writer did not close it")
        if there and there[-1].header is None:
            return
        end = there[-1].next_offset if there else state.earliest
        if state.clean and end < state.end_offset and not found.known_short:
            found.say("missing_segment", self.folder, "the end of the log is not there", None, end,
                      state.end_offset - 1)  # fmt: skip
        elif found.clean and end > state.end_offset:
            found.say("state", path, f"it says {state.end_offset}, the log ends at {end}")
        elif found.weak and end > state.ceiling:
            found.say("state", path, f"offsets above the ceiling {state.ceiling} were used")


def _is_empty(files: Files, seen: Examined) -> bool:
    file = files.open(seen.path, "r")
    try:
        return not file.read(0, 4096).strip(b"\0")
    finally:
        file.close()


def config_of(found: Inspection) -> TopicEntry | None:
    """The topic as the newest CONFIG frame of a shard names it."""
    for seen in reversed(found.segments):
        if seen.config is not None:
            entry = catalog_format.decode_config(seen.config)
            if isinstance(entry, TopicEntry):
                return entry
    return None
