"""The segments of one shard, put in order again: holes, footers, empty segments, gaps, the state.

Walks the segments from the oldest to the newest and asks of each: is it whole, and does its header
name the one before it? What is not so is written anew. The walk carries what a header must say
about the segment before: where it ended, its salt, its chain hash, its largest timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from esker.format import names
from esker.format import segment as fmt
from esker.format import state as state_format
from esker.format.segment import SegmentHeader
from esker.format.state import State
from esker.storage.files import Files, join
from esker.upkeep import mend
from esker.upkeep.deletions import write_state
from esker.upkeep.examine import Examined, directory_flaw
from esker.upkeep.inspection import Inspection
from esker.upkeep.mend import Evidence
from esker.upkeep.report import Action
from esker.upkeep.stubs import Cold, bring_back


class Link(NamedTuple):
    """What the next header must say about the segments before it."""

    number: int
    end: int
    salt: int = 0
    chain: int = 0
    high: int = 0


def mend_sequence(
    files: Files, found: Inspection, store: bytes, evidence: Evidence,
    act: Callable[[Action], None], cold: Cold, *, dry_run: bool,
) -> None:  # fmt: skip
    """Put one shard in order. The caller holds its writer lock."""
    _Sequence(files, found, store, evidence, act, cold, dry_run).run()


class _Sequence:
    def __init__(
        self, files: Files, found: Inspection, store: bytes, evidence: Evidence,
        act: Callable[[Action], None], cold: Cold, dry_run: bool,
    ) -> None:  # fmt: skip
        self.cold = cold
        self.files = files
        self.found = found
        self.store = store
        self.evidence = evidence
        self._act = act
        self.dry_run = dry_run
        self.active: Examined | None = None  # the log at the end, when it stays one

    def run(self) -> None:
        if self.found.entry.options.durability == "ephemeral":  # it keeps no segments
            old = self.found.state
            self.state(Link(0, max(old.ceiling, old.end_offset) if old is not None else 0))
            return
        segments = [seen for seen in self.found.segments if seen.header is not None]
        link = self.beginning(segments)
        for index, seen in enumerate(segments):
            assert seen.header is not None
            if seen.base < link.end:
                self.overlap(seen, link)
                continue
            link = self.fill(link, seen.header)
            following = segments[index + 1] if index + 1 < len(segments) else None
            link = self.segment(seen, seen.header, following, link)
        link = self.ending(link)
        self.state(link)

    def act(
        self, what: str, path: str, reason: str, kept: str = "", position: int | None = None,
        first: int | None = None, last: int | None = None,
    ) -> None:  # fmt: skip
        if first is not None and last is not None and last < first:
            first = last = None
        found = self.found
        self._act(Action(what, path, reason, kept, found.entry.name, found.number, position, first,
                         last))  # fmt: skip

    # -- missing segments --

    def beginning(self, segments: list[Examined]) -> Link:
        """What the first segment follows: nothing, or segments that should be there."""
        state = self.found.state
        if not segments:
            earliest = state.earliest if state is not None else 0
            link = Link(0, earliest)
            if state is not None and state.clean and state.end_offset > earliest:
                link = self.placeholder(link, earliest)
            return link
        header = segments[0].header
        assert header is not None
        if state is not None and header.segment > 1 and header.previous_end > state.earliest:
            return self.placeholder(Link(header.segment - 2, state.earliest), state.earliest)
        return _before(header)

    def fill(self, link: Link, header: SegmentHeader) -> Link:
        """Empty segments for those that are missing before one, unless they were deleted."""
        state = self.found.state
        if state is not None and link.number + 1 < header.segment and header.base <= state.earliest:
            return _before(header)
        while link.number + 1 < header.segment:
            link = self.placeholder(link, link.end)
        return link

    def placeholder(self, link: Link, base: int) -> Link:
        found, entry = self.found, self.found.entry
        header = SegmentHeader(
            store=self.store, topic=entry.id, shard=found.number, epoch=entry.epoch,
            segment=link.number + 1, base=base, created=entry.created,
            salt=int.from_bytes(self.files.random(8), "little"), previous_end=link.end,
            previous_chain=link.chain, previous_salt=link.salt, previous_high=link.high,
            gap=fmt.GAP_CORRUPT if base > link.end else 0,
        )  # fmt: skip
        chain = 1
        if not self.dry_run:
            chain = mend.write_placeholder(self.files, found.folder, header, entry)
        self.act("placeholder", found.folder, f"segment {header.segment} is missing", "", None,
                 link.end, base - 1)  # fmt: skip
        return Link(header.segment, base, header.salt, chain, link.high)

    def overlap(self, seen: Examined, link: Link) -> None:
        kept = "" if self.dry_run else self.evidence.move(seen.path, "overlap")
        self.act("set_aside", seen.path, f"its offsets begin before {link.end}, where the segment "
                 "before it ends", kept)  # fmt: skip

    def ending(self, link: Link) -> Link:
        state = self.found.state
        if state is None or not state.clean or self.active is not None:
            return link
        if state.end_offset > link.end:
            return self.placeholder(link, state.end_offset)
        return link

    # -- one segment --

    def segment(
        self, seen: Examined, header: SegmentHeader, following: Examined | None, link: Link
    ) -> Link:
        chain = self.chain_of(seen, header, following)
        wanted = self.linked(seen, header, link)
        inside = "" if seen.stub else self.damage(seen)
        kept = ""
        if seen.stub:
            kept = self.stub(seen, header, wanted, chain)
        elif inside:
            kept = self.rewrite(seen, wanted, chain, inside)
        elif wanted != header:
            kept = self.relink(seen, wanted, chain)
        if not seen.name.sealed and not inside and following is None:
            self.active = seen
        if wanted != header:
            self.act("linked", seen.path, f"it now follows on offset {link.end}", kept, None,
                     link.end, seen.base - 1)  # fmt: skip
        return Link(seen.name.segment, seen.next_offset, wanted.salt, chain,
                    max(seen.high, wanted.previous_high))  # fmt: skip

    def chain_of(self, seen: Examined, header: SegmentHeader, following: Examined | None) -> int:
        """The chain hash. Merging and damage lose it; the footer and the next header keep it."""
        if seen.footer is not None:
            return seen.footer.chain
        after = following.header if following is not None else None
        if after is not None and after.previous_salt == header.salt and after.previous_chain:
            return after.previous_chain
        return seen.chain

    def linked(self, seen: Examined, header: SegmentHeader, link: Link) -> SegmentHeader:
        """The header as it must be, behind what is now before it."""
        unknown = header.previous_salt == 0 and header.segment > 1
        fits = (
            header.previous_end == link.end
            and (unknown or header.previous_salt == link.salt)
            and header.previous_chain in (0, link.chain)
            and header.previous_high >= link.high
            and (header.base == link.end or header.gap)
        )
        if fits:
            return header
        same_gap = header.previous_end == link.end and header.gap
        gap = 0 if header.base == link.end else header.gap if same_gap else fmt.GAP_CORRUPT
        return header._replace(
            previous_end=link.end, previous_salt=link.salt, previous_chain=link.chain,
            previous_high=max(header.previous_high, link.high), gap=gap,
        )  # fmt: skip

    def damage(self, seen: Examined) -> str:
        """Why the file must be written anew; "" when it need not."""
        for problem in self.found.problems:
            if problem.kind == "config" and problem.path == seen.path:
                seen.doubt_config(problem.reason)
        if seen.damage:
            return seen.damage[0].reason
        if seen.untidy:
            return "padding that is not zero"
        if seen.footer_flaw or directory_flaw(seen):
            return seen.footer_flaw or directory_flaw(seen)
        return "" if seen.hash_matches else "the file does not match its hash"

    def rewrite(self, seen: Examined, header: SegmentHeader, chain: int, reason: str) -> str:
        found, kept = self.found, ""
        if not self.dry_run:
            kept = self.evidence.copy(seen.path, "damaged")
            mend.write_anew(self.files, found.folder, seen, header, found.entry, chain)
            if not seen.name.sealed:
                self.files.unlink(seen.path)
                self.files.sync_dir(found.folder)
        holes = [flaw for flaw in seen.damage if flaw.rows]
        for flaw in holes:
            self.act("hole", seen.path, flaw.reason, kept, flaw.position, seen.base + flaw.first,
                     seen.base + flaw.last)  # fmt: skip
        if not holes:
            self.act("footer", seen.path, reason, kept)
        return kept

    def stub(self, seen: Examined, old: SegmentHeader, new: SegmentHeader, chain: int) -> str:
        """A segment in a cold store. It is touched only if it is damaged or gone there, or has to
        follow on another segment; a stub that does not say where it lies is left as it is."""
        lost = next((f for f in seen.cold if f.kind in ("object", "missing_object")), None)
        if seen.place is None or (lost is None and new == old):
            return ""
        kept = "" if self.dry_run else self.evidence.copy(seen.path, "cold")
        entry = self.found.entry
        holes = bring_back(self.files, seen, self.cold, new, entry, chain, dry_run=self.dry_run)
        reason = "it has to follow on another segment" if lost is None else lost.reason
        for flaw in holes:
            self.act("hole", seen.path, reason, kept, flaw.position, seen.base + flaw.first,
                     seen.base + flaw.last)  # fmt: skip
        if not holes:
            self.act("brought_back", seen.path, reason, kept)
        return kept

    def relink(self, seen: Examined, header: SegmentHeader, chain: int) -> str:
        if self.dry_run:
            return ""
        kept = self.evidence.copy(seen.path, "linked")
        if seen.name.sealed:
            mend.write_anew(self.files, self.found.folder, seen, header, self.found.entry, chain)
        else:
            mend.write_header(self.files, seen.path, header)
        return kept

    # -- the state --

    def state(self, link: Link) -> None:
        """The state page agrees with the files, as after a clean close."""
        found, old, log = self.found, self.found.state, self.active
        new = State(
            flags=state_format.CLEAN, generation=old.generation if old is not None else 0,
            topic=found.entry.id, shard=found.number, epoch=found.entry.epoch,
            ceiling=max(link.end, old.ceiling if old is not None else 0),
            segment=log.name.segment if log is not None else 0,
            end_position=log.size if log is not None else 0, end_offset=link.end,
            earliest=old.earliest if old is not None else 0,
            losses=old.losses if old is not None else (),
            marks=found.marked[0], marks_end=found.marked[1],
            boot=self.files.boot_id(), store=self.store,
        )  # fmt: skip
        wrong = next((p.reason for p in found.problems if p.kind == "state"), "")
        if not wrong and old is not None and _same_end(old, new):
            return
        path, kept = join(found.folder, names.STATE), ""
        if not self.dry_run:
            if self.files.kind(path) == "file":
                kept = self.evidence.copy(path, "state")
            write_state(self.files, found.folder, new)
        self.act("state", path, wrong or f"the log ends at offset {link.end}", kept)


def _same_end(old: State, new: State) -> bool:
    return old.clean and (old.segment, old.end_position, old.end_offset) == (
        new.segment, new.end_position, new.end_offset,
    )  # fmt: skip


def _before(header: SegmentHeader) -> Link:
    """The segment that another one says it follows."""
    return Link(header.segment - 1, header.previous_end, header.previous_salt,
                header.previous_chain, header.previous_high)  # fmt: skip
