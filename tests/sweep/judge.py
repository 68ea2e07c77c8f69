"""What may come out of a damaged store, and what may not.

`look` opens a damaged disk, reads every shard from its first offset to its end, going on behind
every error as the documentation says, and holds what it got against the truth. Three outcomes are
allowed:

    identical    every record is there, unchanged, and nothing else is
    told         records are missing, and the reader got a Gap or an error with file and offsets
    cut          records are missing from the end, none of them was proven to be durable, and the
                 report of the opening says that something was cut, or is not closed

A record that was deleted by tag must not be there: it stays deleted, or reading is refused because
what was deleted is not known. Nobody can tell only where both slots of the state page are lost, and
the page says what it said before the deletion, or the file of deletions is gone as well.

Everything else is a `Silent` (or a wrong, or a foreign) outcome and fails: a record that nobody
wrote, offsets that are stepped over, an end that comes early without a word, an exception that is
not Esker's, records missing that the damage did not touch, bytes of acknowledged records that were
on the disk before a writer opened it and are not afterwards.

What the damage touched is found by comparing bytes with those of the undamaged store, frame by
frame; nothing here asks the engine what is damaged.
"""

from __future__ import annotations

import gc
import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import esker
from esker.format import frame, names
from esker.format import journal as journal_format
from esker.format import marks as marks_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.state import State
from tests.helpers import abandon
from tests.sweep.shapes import COLD, ROOT, Frame, Platter, Shape, Shard, opened

SECONDS: Final = 2.0  # of computing, for one look
RESUMES: Final = 64
_CUTS: Final = frozenset(
    ("torn_tail", "later_log_set_aside", "unfinished_roll", "unfinished_seal", "lost_tail",
     "torn_journal", "corrupt_journal", "corrupt_header", "missing_segment", "unrecovered")
)  # fmt: skip

Outcome = Literal["identical", "told", "cut", "refused"]


class Hang(BaseException):
    """A look took too long. Not an Exception, so that nothing takes it for its own."""


class Got(NamedTuple):
    """What a reader got of one shard."""

    lost: set[int]  # offsets of the truth that did not come
    named: set[int]  # of these, those that a Gap or an error with offsets covers
    blind: list[esker.EskerError]  # errors without offsets: nothing behind them was read
    end: int
    back: set[int]  # offsets of deleted records that came all the same


def _bark(*_: Any) -> None:
    raise Hang(f"more than {SECONDS:.0f} s")


@contextmanager
def watchdog() -> Iterator[None]:
    """Ends every `look` that computes for more than two seconds.

    What other tests have left is not looked through for cycles meanwhile: in a long run that alone
    may take as long.
    """
    gc.collect()
    gc.freeze()
    before = signal.signal(signal.SIGVTALRM, _bark)
    logger = logging.getLogger("esker")
    logger.disabled = True  # it would tell of every finding, thousands of times
    try:
        yield
    finally:
        logger.disabled = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def look(of: Shape, disk: Platter, mode: Any) -> Outcome:
    """Open and read a damaged disk, once. Raises AssertionError for what must not be."""
    if signal.getsignal(signal.SIGVTALRM) is _bark:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    damaged = None if mode == "r" else {p: bytes(d) for p, d in disk.files.items()}
    changed = changes(of, disk)
    try:
        store = opened(disk, mode)
    except esker.EskerError as problem:
        _check_refusal(of, changed, problem)
        return "refused"
    outcome: Outcome = "identical"
    missing: set[int] = set()
    try:
        for shard in of.truth:
            got = read(of, store, shard)
            if got.back:
                assert deletions_forgotten(of, damaged or disk.files, shard), (
                    f"{shard}: {_span(got.back)} had been deleted"
                )
            if of.pending and not page_of(of, damaged or disk.files, shard):
                got = got._replace(lost=got.lost - of.pending)  # that deletion was finished
            if got.lost or got.blind:
                told = _check_loss(of, disk, damaged, changed, store, shard, got)
                outcome = "told" if outcome == "told" or told else "cut"
                missing |= got.lost
    finally:
        abandon(store)
    if damaged is not None and missing:
        check_evidence(of, damaged, disk)
    return outcome


def changes(of: Shape, disk: Platter) -> set[str]:
    """Paths whose bytes are not those of the undamaged store."""
    before, after = of.disk.files, disk.files
    found = {path for path in before if after.get(path) != before[path]}
    return found | (after.keys() - before.keys())


# ---- reading ---------------------------------------------------------------------------------


def read(of: Shape, store: esker.Store, shard: Shard) -> Got:
    """All of a shard, resumed behind every error that says where it ends."""
    name, number = shard
    truth, deleted = of.truth[shard], of.deleted.get(shard, {})
    absent = deleted.keys() | of.pending
    lost, named, blind, back = set(truth), set(), [], set()
    at = 0

    def over(offset: int) -> int:
        """The place that one gets to on the way to `offset`: over what was deleted, no further."""
        return next((o for o in range(at, offset) if o not in absent), max(at, offset))

    for _ in range(RESUMES):
        try:
            topic = store[name]
            for item in topic.batches(at, shard=number, gaps="yield"):
                if isinstance(item, esker.Gap):
                    at = over(item.first)
                    assert item.first <= at <= item.last, f"a gap {item}, expected at {at}"
                    named.update(offset for offset in lost if at <= offset <= item.last)
                    at = item.last + 1
                    continue
                at = over(item.first)
                assert item.first == at, f"{shard}: offset {item.first} where {at} should be"
                for record in item.records():
                    at = over(record.offset) if absent else at
                    known = truth.get(at) or deleted.get(at)
                    assert record == known, f"{shard}: a record that nobody wrote: {record}"
                    if at in deleted:
                        back.add(at)
                    lost.discard(at)
                    at += 1
            if lost:
                end = topic.end(shard=number)
                at = over(end)
                assert at >= end, f"{shard}: reading ended at {at}, the topic ends at {end}"
            return Got(lost, named & lost, blind, at, back)
        except esker.Corruption as problem:
            if problem.first is None or problem.last is None:
                blind.append(problem)
                break
            at = over(problem.first)
            _check_place(problem, at)
            named.update(offset for offset in lost if at <= offset <= problem.last)
            at = problem.last + 1
        except esker.ColdUnavailable as problem:
            first, last = _cold_place(problem)
            at = over(first)
            named.update(offset for offset in lost if at <= offset <= last)
            at = last + 1
        except esker.EskerError as problem:
            blind.append(problem)
            break
    else:
        raise AssertionError(f"{shard}: no end after {RESUMES} errors")
    return Got(lost, named & lost, blind, at, back)


def _check_place(problem: esker.Corruption, at: int) -> None:
    """An error says where it is, in its text and in its attributes, and where one can go on."""
    assert problem.first is not None
    assert problem.last is not None
    assert problem.first <= at <= problem.last, f"{problem}, when reading at {at}"
    where = f"{problem.path} at byte {problem.position} (offsets {problem.first}..{problem.last})"
    assert problem.path.startswith((ROOT, COLD)), f"does not say where: {problem}"
    assert where in str(problem), f"does not say where: {problem}"


def _cold_place(problem: esker.ColdUnavailable) -> tuple[int, int]:
    """What is missing in a cold store is named, too, and the offsets that it has."""
    said = re.search(r"offsets (\d+)\.\.(\d+)", str(problem))
    assert said, f"does not say where: {problem}"
    assert problem.path.startswith(COLD), f"does not say where: {problem}"
    return int(said[1]), int(said[2])


# ---- what may be lost ------------------------------------------------------------------------


def _check_loss(
    of: Shape, disk: Platter, damaged: dict[str, bytes] | None, changed: set[str],
    store: esker.Store, shard: Shard, got: Got,
) -> bool:  # fmt: skip
    """Whether a loss is told to its reader; fails if it must not be, or nobody says so."""
    now = damaged if damaged is not None else disk.files
    touched, cut = may_be_lost(of, now, changed, shard)
    silent = got.lost - got.named
    findings = [f for f in store.recovery.findings if f.label in _CUTS]
    about = [f for f in findings if (f.topic, f.shard) == shard or "/journal/" in f.path]
    if got.blind:
        if isinstance(got.blind[0], esker.TopicNotFound):
            if of.folders()[shard].rpartition("/")[0] not in disk.dirs:
                return True  # the directory of the whole topic: that is how one is deleted
            labels = {"damaged_catalog", "corrupt_journal"}.intersection(store.recovery.labels)
            assert labels, "a topic is gone without a word"
            whole = [item.path for item in of.frames[shard] if item.path not in changed]
            assert not whole, f"{shard} has segments, and is not there"
            return True
        for problem in got.blind:
            assert _names_a_place(of, problem, changed, shard), f"does not say where: {problem}"
        assert touched or cut is not None or _whole_file(of, disk, shard, changed), (
            f"{shard}: refused, without damage to its data: {got.blind[0]!r}"
        )
        return True
    allowed = touched if cut is None else touched | {o for o in got.lost if o >= cut}
    too_much = got.lost - allowed
    assert not too_much, f"{shard}: lost {_span(too_much)}, which the damage did not touch"
    if silent:
        assert cut is not None, f"{shard}: {_span(silent)} lost in silence"
        assert min(silent) >= cut, f"{shard}: {_span(silent)} lost in silence, durable below {cut}"
        assert about or _was_so_once(of, now, shard), (
            f"{shard}: {_span(silent)} cut off and not reported: {store.recovery}"
        )
    return not silent


def may_be_lost(
    of: Shape, now: Any, changed: set[str], shard: Shard
) -> tuple[set[int], int | None]:
    """Offsets whose bytes were touched, and from where on a tail may be cut (None: nowhere)."""
    touched: set[int] = set()
    frames, folder = of.frames[shard], of.folders()[shard]
    replaced = False
    for item in frames:
        if item.path.startswith(COLD):  # the whole of it is held against its hash, or not found
            stub = of.stub_of(item.path)
            if item.path in changed or stub in changed:
                touched.update(range(item.first, item.last + 1))
            replaced |= stub in changed and not _same_header(of, stub, now.get(stub))
        elif item.path in changed and not _intact(of, item, now.get(item.path)):
            touched.update(range(item.first, item.last + 1))
            replaced |= not _same_header(of, item.path, now.get(item.path))
    extra = changed - of.disk.files.keys()
    replaced |= any(p.startswith(folder) and p.endswith((".log", ".seg")) for p in extra)
    if replaced:  # what follows an exchanged segment cannot be believed either, and is named
        touched.update(o for item in frames for o in range(item.first, item.last + 1))
    cut: int | None = None
    if of.unclosed or f"{folder}/state" in changed:  # or nothing says any more that it was closed
        logs = [p for p in of.disk.files if p.startswith(folder) and p.endswith(".log")]
        for path in sorted(logs, reverse=True):
            data = now.get(path, b"")
            if path in changed:
                flaw = first_flaw(of, path, data)
                behind = [item.first for item in frames if (item.path, item.end) > (path, flaw)]
                cut = min([*behind, *([cut] if cut is not None else [])], default=None)
            if _same_header(of, path, data) and proven(bytes(data), of.salts[path]):
                break  # logs are synced in order: those before this one were durable as a whole
    journal = next((p for p in of.disk.files if p.endswith(".journal")), "")
    if journal in changed and not frames:  # all that there is of the shard is in the journal
        sure = journalled_below(of, journal, now.get(journal, b""), shard)
        touched = {offset for offset in of.truth[shard] if offset >= sure}
        cut = sure
    return touched, cut


def _was_so_once(of: Shape, now: Any, shard: Shard) -> bool:
    """The one thing that nobody can tell: that a store was further once, when all that said so is
    gone. A log or a journal that is not there, or is word for word what it was some time before, is
    noticed because the counters page has been further; so only where that is gone as well."""
    page = f"{of.folders()[shard]}/counters"
    if page in of.disk.files and now.get(page) == of.disk.files[page]:
        return False
    for path, before in of.disk.files.items():
        if not path.endswith(".journal") and not path.startswith(of.folders()[shard]):
            continue
        if path.endswith((".log", ".journal")) and now.get(path) != before:
            data = bytes(now.get(path, b""))[: len(before)]
            cut = path.endswith(".journal") and 0 < len(data) < len(before)
            return before.startswith(data.rstrip(b"\0")) and not cut
    return False


def page_of(of: Shape, now: Any, shard: Shard) -> State | None:
    """What the state page of a shard says, if it is one of this shard's."""
    data = bytes(now.get(f"{of.folders()[shard]}/state", b""))
    slots = (
        state_format.decode_slot(data[at : at + state_format.SLOT_SIZE])
        for at in state_format.SLOT_POSITIONS
    )
    whole = [slot for slot in slots if isinstance(slot, State)]
    newest = max(whole, key=lambda slot: slot.generation, default=None)
    mine = _store_of(of, shard)
    return newest if newest is not None and newest.store == mine else None


def _store_of(of: Shape, shard: Shard) -> bytes:
    return bytes(of.disk.files[f"{of.folders()[shard]}/state"][96:112])


def deletions_forgotten(of: Shape, now: Any, shard: Shard) -> bool:
    """Whether nothing that is left can tell what was deleted."""
    page, before = page_of(of, now, shard), page_of(of, of.disk.files, shard)
    assert before is not None
    folder = of.folders()[shard]
    if page is not None:
        path = f"{folder}/state"
        slots = [slice(at, at + state_format.SLOT_SIZE) for at in state_format.SLOT_POSITIONS]
        lost = all(now[path][slot] != of.disk.files[path][slot] for slot in slots)
        return lost and (page.marks, page.marks_end) != (before.marks, before.marks_end)
    left = [p for p in now if names.parse_deletions(p.removeprefix(f"{folder}/"))]
    return all(_whole_deletions(of, path, bytes(now[path])) for path in left)


def _whole_deletions(of: Shape, path: str, data: bytes) -> bool:
    """Whether a file of deletions ends early, and behind a frame: as it was some time before."""
    header = marks_format.decode_header(data[: marks_format.HEADER_SIZE])
    if isinstance(header, str) or not bytes(of.disk.files.get(path, b"")).startswith(data):
        return False
    found = list(marks_format.decode_frames(data, marks_format.HEADER_SIZE, header.salt))
    return bool(found) and not any(isinstance(item, marks_format.Flaw) for item in found)


def journalled_below(of: Shape, path: str, data: bytes, shard: Shard) -> int:
    """The offset behind all that a journal has of a shard before its first changed byte."""
    before = bytes(of.disk.files[path])
    changed = next(
        (at for at in range(len(before)) if before[at] != data[at : at + 1]), len(before)
    )
    header = journal_format.decode_header(before[: journal_format.HEADER_SIZE])
    assert not isinstance(header, str)
    topic = int(of.folders()[shard].split("/")[-2])
    at, sure = journal_format.HEADER_SIZE, 0
    while at < changed:
        entry = journal_format.decode_entry(before[at : at + 64], at, header.salt)
        if isinstance(entry, str):
            break
        at += journal_format.ENTRY_SIZE + frame.padded(entry.size)
        if at <= changed and entry.topic == topic:
            sure = max(sure, entry.next_offset)
    return sure


def first_flaw(of: Shape, path: str, data: bytes) -> int:
    """The first position of a log, at or above all that its frames prove, that has changed."""
    before = bytes(of.disk.files[path])
    # a header has the salt: without it no frame can be believed, and nothing is proven
    proof = proven(bytes(data), of.salts[path]) if _same_header(of, path, data) else 0
    for at in range(proof, max(len(before), len(data))):
        if before[at : at + 1] != data[at : at + 1]:
            return at
    return len(before)


def proven(data: bytes, salt: int) -> int:
    """Up to where some frame that is still there says that the log was durable."""
    found, at = 0, data.find(frame.MAGIC)
    while at >= 0:
        head = frame.decode_header(data, at, at, salt)
        if isinstance(head, frame.Header):
            found = max(found, head.synced)
        at = data.find(frame.MAGIC, at + 1)
    return found


def _intact(of: Shape, item: Frame, data: Any) -> bool:
    if data is None or not _same_header(of, item.path, data):
        return False
    place = slice(item.position, item.end)
    return bool(data[place] == of.disk.files[item.path][place])


def _same_header(of: Shape, path: str, data: Any) -> bool:
    size = segment_format.HEADER_SIZE
    return data is not None and data[:size] == of.disk.files[path][:size]


def _whole_file(of: Shape, disk: Platter, shard: Shard, changed: set[str]) -> bool:
    """Whether something was done to the files of the shard that is no matter of bytes."""
    folder = of.folders()[shard]
    return folder not in disk.dirs or any(path.startswith(folder) for path in changed)


def _names_a_place(of: Shape, problem: Any, changed: set[str], shard: Shard) -> bool:
    path = getattr(problem, "path", "")
    return bool(path) and (path in changed or path.startswith(of.folders()[shard]))


def _check_refusal(of: Shape, changed: set[str], problem: esker.EskerError) -> None:
    """A store may refuse to open when its identity is gone, or a file is no file."""
    text = str(problem)
    assert ROOT in text, f"does not say where: {text}"
    assert not isinstance(problem, esker.FormatTooNew), f"damage taken for a version: {text}"
    identity = f"{ROOT}/esker.store" in changed and isinstance(problem, esker.NotAStore)
    odd = isinstance(problem, esker.UnsafePath)
    assert identity or odd, f"the store does not open: {problem!r}"


def check_evidence(of: Shape, before: dict[str, bytes], disk: Platter) -> None:
    """Frames that were whole, and were not above a cut, are still on the disk, somewhere."""
    after = b"\0\0".join(bytes(data) for data in disk.files.values())
    there = b"\0\0".join(before.values())
    for shard, frames in of.frames.items():
        cut = may_be_lost(of, before, changes_of(of, before), shard)[1]
        for item in frames:
            kept = item.path not in before or _intact(of, item, before[item.path])
            if kept and item.body in there and (cut is None or item.first < cut):
                assert item.body in after, f"{shard}: the bytes of {item.first}..{item.last} gone"


def changes_of(of: Shape, files: dict[str, bytes]) -> set[str]:
    before = of.disk.files
    found = {path for path in before if files.get(path) != before[path]}
    return found | (files.keys() - before.keys())


def _span(offsets: set[int]) -> str:
    return f"{min(offsets)}..{max(offsets)} ({len(offsets)})"
