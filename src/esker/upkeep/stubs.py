"""Segments that lie in a cold store, looked at from outside, and their stubs made anew.

    Cold                      the cold stores of a store, asked no more often than needed
    look_at_object(...)       what a stub stands for: is it there, and is it what was moved?
    mend_stubs(...)           stubs that are damaged or gone, from the objects they stood for
    bring_back(...)           what can be read of a segment that is damaged there, written here

A cold store that does not answer is not damage, and not well either: it is told as `unreached`, and
nothing that may lie there is declared lost. One that answers, has something of this store and not
this, has lost it. A directory with nothing of this store in it may be one that is not mounted, and
counts as one that does not answer.

What is fetched is examined frame by frame with the code that examines files (examine.py); of the
door itself (storage/cold.py) only its four verbs are used.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from esker.errors import ColdUnavailable, StorageError
from esker.format import names
from esker.format import segment as fmt
from esker.format.catalog import TopicEntry
from esker.format.place import Place, stub_of
from esker.format.segment import SegmentHeader
from esker.storage.cold import ColdStore, cold_root, cold_store
from esker.storage.files import Files, join, replace_file
from esker.upkeep import mend
from esker.upkeep.examine import Directory, Examined, Flaw, Source, directory_flaw, examine_bytes
from esker.upkeep.mend import Evidence
from esker.upkeep.report import Action

if TYPE_CHECKING:
    from esker.upkeep.inspection import Inspection

PATIENCE: Final = 3  # so often a cold store is asked in vain; then it is taken for gone


class ColdFlaw(NamedTuple):
    """What is wrong with a stub, or with what it stands for."""

    kind: str  # of report.KINDS
    path: str
    reason: str
    position: int | None = None


class Answer(NamedTuple):
    """What a cold store said: bytes, or "unreached" or "missing_object", and why."""

    root: str
    data: Any = None
    kind: str = ""
    reason: str = ""


class Cold:
    """The cold stores that the stubs of a store name, or the one that has it all by now."""

    def __init__(self, files: Files, given: str = "") -> None:
        self._files = files
        self.root = cold_root(given) if given else ""
        self.roots: set[str] = {self.root} if given else set()  # all that were heard of
        self._stores: dict[str, ColdStore] = {}
        self._failed: dict[str, list[str]] = {}  # by root: why, as often as it was asked in vain
        self._listed: dict[tuple[str, str], frozenset[str]] = {}

    def get(self, place: Place) -> Answer:
        """The object that a stub names, from where all of it is now, else from where it was put."""
        answers = []
        for root in self._where(place):
            answer = self.fetch(root, place.key)
            if not answer.kind:
                return answer
            answers.append(answer)
        return self._worst(answers, place.key)

    def has(self, place: Place) -> Answer:
        """Whether an object is there, as far as a list tells."""
        answers = []
        prefix = place.key.rpartition("/")[0] + "/"
        for root in self._where(place):
            try:
                if place.key in self.keys(root, prefix):
                    return Answer(root)
                answers.append(Answer(root, None, "missing_object", "it is not there"))
            except ColdUnavailable as problem:
                answers.append(Answer(root, None, "unreached", str(problem)))
        return self._worst(answers, place.key)

    def _where(self, place: Place) -> list[str]:
        self.roots.add(place.root)
        return list(dict.fromkeys(root for root in (self.root, place.root) if root))

    def fetch(self, root: str, key: str) -> Answer:
        """An object, from one cold store."""
        try:
            return Answer(root, self._ask(root, lambda store: store.get(key)))
        except ColdUnavailable as problem:
            kind = "missing_object" if problem.missing else "unreached"
            return Answer(root, None, kind, str(problem))

    def keys(self, root: str, prefix: str) -> frozenset[str]:
        """The keys that begin like this, as they were when it was first asked."""
        if (root, prefix) not in self._listed:
            self._listed[root, prefix] = frozenset(
                self._ask(root, lambda store: store.list(prefix))
            )
        return self._listed[root, prefix]

    def _ask(self, root: str, what: Callable[[ColdStore], Any]) -> Any:
        failed = self._failed.setdefault(root, [])
        if len(failed) >= PATIENCE:  # each try may take long
            raise ColdUnavailable(failed[-1], root=root)
        if root not in self._stores:
            self._stores[root] = cold_store(self._files, root)
        try:
            got = what(self._stores[root])
        except ColdUnavailable as problem:
            if not problem.missing:
                failed.append(str(problem))
            raise
        failed.clear()
        return got

    def _worst(self, answers: list[Answer], key: str) -> Answer:
        """What to say when nobody has it: lost only where all answer, and something is there."""
        for answer in answers:
            if answer.kind == "unreached":
                return answer
        for answer in answers:
            try:
                if self.keys(answer.root, key.partition("/")[0] + "/"):
                    return answer
            except ColdUnavailable as problem:
                return Answer(answer.root, None, "unreached", str(problem))
        reason = f"nothing of this store lies in {answers[0].root}: is it the right place?"
        return Answer(answers[0].root, None, "unreached", reason)


# ---- one stub --------------------------------------------------------------------------------


def look_at_object(seen: Examined, cold: Cold, *, deep: bool) -> None:
    """Look at what a stub stands for, and take over from it what the stub cannot know."""
    footer, place = seen.footer, seen.place
    if footer is not None:
        seen.rows = footer.records
        seen.directory = Directory(
            array("Q", footer.positions), array("Q", footer.first_rows),
            array("q", footer.min_timestamps), array("q", footer.max_timestamps),
        )  # fmt: skip
    if place is None or seen.header is None:
        return
    wrong = _place_flaw(place, seen.header)
    if wrong:
        seen.cold.append(ColdFlaw("place", seen.path, wrong, seen.place_position))
        return
    answer = cold.get(place) if deep else cold.has(place)
    path = f"{answer.root}/{place.key}"
    if answer.kind:
        seen.cold.append(ColdFlaw(answer.kind, path, answer.reason))
    elif deep:
        _compare(seen, place, path, answer.data)


def _place_flaw(place: Place, header: SegmentHeader) -> str:
    """Why a place cannot be that of a segment."""
    name = names.SegmentName(header.segment, header.base, True)
    said = names.parse_cold(place.key)
    if said != (header.store.hex(), header.topic, header.shard, name):
        return f"it says that it lies under the key of something else: {place.key!r}"
    if place.key.split("-")[-2] != f"{place.hash:016x}" or place.key.endswith(names.TEMPORARY):
        return f"its key {place.key!r} is not that of what was moved"
    return ""


def _compare(seen: Examined, place: Place, path: str, data: Any) -> None:
    whole = examine_bytes(data, path, seen.name)
    seen.whole_size = whole.size
    wrong = object_flaw(whole)
    if not wrong and whole.header != seen.header:
        wrong = Flaw(0, 0, "it is another segment")
    if wrong:
        seen.cold.append(ColdFlaw("object", path, wrong.reason, wrong.position))
        return
    if (whole.size, whole.file_hash) != (place.size, place.hash):
        reason = f"the segment at {path} is whole, and not the one that was moved"
        seen.cold.append(ColdFlaw("place", seen.path, reason, seen.place_position))
    elif seen.config != whole.config and not seen.flaws:
        reason = f"its CONFIG frame is not that of the segment at {path}"
        seen.cold.append(ColdFlaw("place", seen.path, reason, fmt.HEADER_SIZE))
    elif seen.footer is not None and not _same_footer(seen, whole):
        reason = f"its footer is not that of the segment at {path}"
        seen.cold.append(ColdFlaw("place", seen.path, reason, seen.footer_position))
    seen.frames, seen.readable, seen.rows = whole.frames, whole.readable, whole.rows
    seen.raw_bytes, seen.holes, seen.directory = whole.raw_bytes, whole.holes, whole.directory
    seen.footer = whole.footer


def _same_footer(seen: Examined, whole: Examined) -> bool:
    assert seen.footer is not None
    assert whole.footer is not None
    return fmt.encode_footer(seen.footer) == fmt.encode_footer(whole.footer)


def object_flaw(whole: Examined) -> Flaw | None:
    """Why a segment in a cold store is not one that was moved there; None if it may be."""
    if whole.header is None:
        return Flaw(0, 0, whole.header_flaw)
    if whole.flaws:
        return whole.flaws[0]
    if whole.stub:
        return Flaw(0, 0, "it is a stub itself")
    if whole.footer is None or directory_flaw(whole):
        return Flaw(whole.footer_position, 0, whole.footer_flaw or directory_flaw(whole))
    if whole.unfinished >= 0:
        return Flaw(whole.unfinished, 0, "a batch whose last frame is missing")
    if whole.untidy:
        return Flaw(whole.untidy[0], 0, "padding that is not zero")
    return None if whole.hash_matches else Flaw(whole.size, 0, "it does not match its hash")


def judge_stub(found: Inspection, seen: Examined) -> None:
    """Say what is wrong with a stub itself."""
    base = seen.base
    for flaw in seen.flaws:
        found.say("place", seen.path, flaw.reason, flaw.position, base, seen.next_offset - 1)
    if seen.place is None and not seen.flaws:
        found.say("place", seen.path, "the frame that says where it lies is not there", None, base,
                  seen.next_offset - 1)  # fmt: skip


def judge_object(found: Inspection, seen: Examined) -> None:
    """Say what is wrong with what a stub stands for: none of its records can be read."""
    for flaw in seen.cold:
        found.say(flaw.kind, flaw.path, flaw.reason, flaw.position, seen.base,
                  seen.next_offset - 1)  # fmt: skip


# ---- stubs made anew -------------------------------------------------------------------------


class Found(NamedTuple):
    """A whole segment in a cold store, and where it is."""

    root: str
    key: str
    data: Any
    whole: Examined


def mend_stubs(
    files: Files, found: Inspection, store: bytes, cold: Cold, evidence: Evidence,
    act: Callable[[Action], None], *, dry_run: bool,
) -> None:  # fmt: skip
    """Stubs for segments that are damaged or gone here, and whole in the cold store.

    The caller holds the writer lock of the shard. Raises ColdUnavailable where a segment is missing
    that a cold store may have which does not answer: it is not to be declared lost.
    """
    work = _Stubs(files, found, store, cold, evidence, act, dry_run)
    for seen in found.segments:
        if seen.name.sealed and seen.header is not None and _hurt(found, seen):
            work.again(seen, seen.header)
    if any(problem.kind == "missing_segment" for problem in found.problems):
        work.missing()


def _hurt(found: Inspection, seen: Examined) -> bool:
    """Whether a file is a stub that is not in order, or a segment that has lost records."""
    kinds = {problem.kind for problem in found.problems if problem.path == seen.path}
    if seen.stub:
        return bool(kinds & {"place", "footer", "file_hash", "padding", "config"})
    return any(flaw.rows for flaw in seen.damage) or "truncated" in kinds


class _Stubs:
    def __init__(
        self, files: Files, found: Inspection, store: bytes, cold: Cold, evidence: Evidence,
        act: Callable[[Action], None], dry_run: bool,
    ) -> None:  # fmt: skip
        self.files = files
        self.found = found
        self.cold = cold
        self.evidence = evidence
        self._act = act
        self.dry_run = dry_run
        self.prefix = names.cold_prefix(store, found.entry.id, found.number)
        self.owner = (store, found.entry.id, found.number)

    def again(self, seen: Examined, header: SegmentHeader) -> None:
        """A stub in the place of one that is damaged, or of a segment that has lost records."""
        wanted = seen.place.hash if seen.place is not None else None
        best: Found | None = None
        for each in self._whole(seen.name):
            if each.whole.header is None or each.whole.header.salt != header.salt:
                continue
            if best is None or _rank(each, wanted) < _rank(best, wanted):
                best = each
        if best is None and not seen.stub and not seen.readable:
            self._refuse(self._silent())
        if best is not None:
            said = [p.reason for p in self.found.problems if p.path == seen.path]
            self._write(best, said[0])

    def missing(self) -> None:
        """Stubs for segments of which nothing is here, where their neighbours know of them."""
        silent = self._silent()
        headers = {
            seen.name.segment: seen.header
            for seen in self.found.segments
            if seen.header is not None
        }
        state = self.found.state
        earliest = state.earliest if state is not None else 0
        absent = {name for name, _, _ in self._keys() if name.segment not in headers}
        while True:
            fitting = [
                name
                for name in sorted(absent)
                if name.segment - 1 in headers or name.segment + 1 in headers
            ]
            absent -= set(fitting)
            for name in fitting:
                for each in self._whole(name):
                    header = each.whole.header
                    assert header is not None
                    past = name.base + each.whole.rows <= earliest
                    if not past and name.segment not in headers and _linked(header, headers):
                        headers[name.segment] = header
                        self._write(each, f"segment {name.segment} is missing")
            if not fitting:
                break
        if self._still_missing(headers):
            self._refuse(silent)

    def _refuse(self, silent: ColdUnavailable | None) -> None:
        """What may lie in a cold store that does not answer is not declared lost."""
        if silent is not None:
            raise ColdUnavailable(
                f"topic {self.found.entry.name!r} shard {self.found.number}: segments are missing "
                f"that may lie in a cold store which does not answer ({silent}); nothing was "
                "declared lost. Repair again when it answers", root=silent.root,
            ) from silent  # fmt: skip

    def _still_missing(self, headers: Iterable[int]) -> bool:
        numbers = sorted(headers)
        gap = bool(numbers) and numbers[-1] - numbers[0] + 1 != len(numbers)
        ends = any(
            problem.kind == "missing_segment" and problem.path == self.found.folder
            for problem in self.found.problems
        )
        return gap or (ends and len(numbers) == len(self.found.segments))

    def _silent(self) -> ColdUnavailable | None:
        """Why one of the cold stores cannot be asked."""
        for root in [self.cold.root] if self.cold.root else sorted(self.cold.roots):
            try:
                if not self.cold.keys(root, self.prefix.partition("/")[0] + "/"):
                    return ColdUnavailable(f"nothing of this store lies in {root}", root=root)
            except ColdUnavailable as problem:
                return problem
        return None

    def _keys(self) -> Iterator[tuple[names.SegmentName, str, str]]:
        """Segment, root and key of all that lies in cold stores for this shard."""
        for root in sorted(self.cold.roots):
            try:
                keys = self.cold.keys(root, self.prefix)
            except ColdUnavailable:
                continue
            for key in sorted(keys):
                said = names.parse_cold(key)
                if said is not None and not key.endswith(names.TEMPORARY):
                    yield said.segment, root, key

    def _whole(self, name: names.SegmentName) -> Iterator[Found]:
        """What lies in cold stores of one segment, and is whole and of this shard."""
        for other, root, key in self._keys():
            if other != name:
                continue
            answer = self.cold.fetch(root, key)
            if answer.kind:
                continue
            whole = examine_bytes(answer.data, f"{root}/{key}", name)
            header = whole.header
            if object_flaw(whole) is None and header is not None:
                owner = (header.store, header.topic, header.shard)
                if owner == self.owner and (header.segment, header.base) == name[:2]:
                    yield Found(root, key, answer.data, whole)

    def _write(self, each: Found, reason: str) -> None:
        name = each.whole.name
        path = join(self.found.folder, names.segment(name.segment, name.base, sealed=True))
        place = Place(each.root, each.key, each.whole.size, each.whole.file_hash)
        kept = ""
        if not self.dry_run:
            if self.files.kind(path):
                kept = self.evidence.copy(path, "stub")
            replace_file(self.files, path, stub_of(each.data, place))
        about = f"{reason}; it lies whole at {each.root}/{each.key}"
        entry = self.found.entry
        self._act(Action("stub", path, about, kept, entry.name, self.found.number))


def _rank(each: Found, wanted: int | None) -> tuple[bool, int, str]:
    """Rather what was moved; rather what was rewritten, without what had been deleted."""
    return (each.whole.file_hash != wanted, each.whole.size, each.key)


def _linked(header: SegmentHeader, headers: dict[int, SegmentHeader]) -> bool:
    """Whether a neighbour knows a segment, or it knows the neighbour."""
    after, before = headers.get(header.segment + 1), headers.get(header.segment - 1)
    known = after is not None and after.previous_salt == header.salt
    return known or (before is not None and header.previous_salt == before.salt)


# ---- segments brought back -------------------------------------------------------------------


def bring_back(
    files: Files, seen: Examined, cold: Cold, header: SegmentHeader, entry: TopicEntry, chain: int,
    *, dry_run: bool,
) -> list[Flaw]:  # fmt: skip
    """Write a segment here that lies in a cold store: with another header, with holes in place of
    what is damaged there, or as one hole if it is gone. Returns the holes."""
    assert seen.place is not None
    assert seen.header is not None
    answer = cold.get(seen.place)
    if answer.kind == "unreached":
        raise StorageError(
            f"this segment has to be written anew, and lies in a cold store that does not answer: "
            f"{answer.reason}. Repair again when it answers", path=seen.path,
        )  # fmt: skip
    if answer.kind:
        data, whole = _lost(seen, answer.reason)
    else:  # its own header may be damaged; the stub has it
        head = fmt.encode_header(seen.header)
        data = head + bytes(memoryview(answer.data)[fmt.HEADER_SIZE :])
        whole = examine_bytes(data, seen.path, seen.name)
        whole.expect(seen.rows)
    if not dry_run:
        source = Source.of(data)
        folder = seen.path.rpartition("/")[0]
        mend.write_anew(files, folder, whole, header, entry, chain, source)
    return [flaw for flaw in whole.damage if flaw.rows]


def _lost(seen: Examined, reason: str) -> tuple[bytes, Examined]:
    """A segment of which nothing is left but what its stub says."""
    assert seen.header is not None
    data = fmt.encode_header(seen.header)
    whole = Examined(seen.path, seen.name)
    whole.header, whole.footer, whole.size = seen.header, seen.footer, len(data)
    whole.rows = seen.rows
    whole.flaws = [Flaw(fmt.HEADER_SIZE, fmt.HEADER_SIZE, reason, 0, seen.rows - 1)]
    return data, whole
