"""The logs of a shard after a crash: what is there, and what is to become of each.

`look` opens and walks every log and changes nothing. `decide` sorts them, from plain values:

    keep      cut where its verdict says; what is damaged below that is reported
    aside     behind a log that lost its tail: keeping it would leave a hole
    remove    made by a roll that was not finished: holds nothing that was acknowledged
    broken    had a header and has none that can be believed: nobody can read it

One fact does most of the work. The logs of a shard are synced in order, each before the next. So
where anything proves that some log was synced (a later frame says so, the journal or the state
speaks of it, it was sealed), every log before it was durable as a whole, and whatever is wrong
with those is damage. That log is the *frontier*. Behind it nothing was acknowledged as durable:
what is wrong there is what a crash leaves, and everything behind the first loss goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.format.names import SegmentName
from esker.format.segment import SegmentHeader
from esker.storage import scan
from esker.storage.files import File, Files, join
from esker.storage.log import open_log
from esker.storage.maps import Maps
from esker.storage.scan import Flaw, Verdict, Walk
from esker.storage.sealed import SealedSegment

ROW_BYTES_MIN: Final = 4  # a record takes at least its entry in the array of value offsets
_PIECE: Final = 1 << 20


class Owner(NamedTuple):
    """Whose logs these should be."""

    store: bytes
    topic: int
    shard: int
    config_bytes: int  # of the CONFIG frame that a log begins with


class Found(NamedTuple):
    """A log as it lies there."""

    name: SegmentName
    path: str
    file: File
    size: int
    header: SegmentHeader | None
    seen: Walk | None  # None without a header
    flaw: str = ""  # why there is no header
    blank: bool = False  # too short for a record, or nothing but zeros
    damaged: bool = False  # the header was there once, so its loss is no crash's doing
    footed: bool = False  # a footer was being written: it was about to be sealed

    @property
    def number(self) -> int:
        return self.name.segment


class Kept(NamedTuple):
    """A log to go on with."""

    log: Found
    header: SegmentHeader
    verdict: Verdict
    damage: list[tuple[Flaw, int, int]]  # corruption, with the rows first..last it costs
    proven: int  # durable in the file itself up to here

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self.header.base + self.verdict.rows


class Plan(NamedTuple):
    """What is to become of every log."""

    keep: list[Kept]
    aside: list[Found]
    remove: list[Found]
    broken: list[Found]


# ---- looking ---------------------------------------------------------------------------------


def look(files: Files, folder: str, found: Sequence[SegmentName], owner: Owner) -> list[Found]:
    """Open and walk the logs. The caller closes their files."""
    logs: list[Found] = []
    try:
        logs += (_look(files, folder, name, owner) for name in found)
    except BaseException:
        close(logs)
        raise
    return logs


def close(logs: Sequence[Found]) -> None:
    for log in logs:
        log.file.close()


def _look(files: Files, folder: str, name: SegmentName, owner: Owner) -> Found:
    path = join(folder, names.segment(*name[:2], sealed=False))
    file, header = open_log(files, path)
    try:
        size = file.size()
        flaw = header if isinstance(header, str) else misplaced(header, name, owner)
        if flaw.startswith("version"):
            raise FormatTooNew(f"{path} was written by a later Esker ({flaw})")
        if isinstance(header, str) or flaw:
            least = segment_format.HEADER_SIZE + frame.HEADER_SIZE + owner.config_bytes
            blank = isinstance(header, str) and (size <= least or _zeros(file, size))
            first = file.read(0, segment_format.HEADER_SIZE)
            damaged = isinstance(header, str) and segment_format.was_header(first, *name[:2])
            return Found(name, path, file, size, None, None, flaw, blank, damaged)
        seen = scan.walk(file, header.salt, segment_format.HEADER_SIZE)
        short, footed = _without_footer(seen)
        return Found(name, path, file, size, header, short, footed=footed)
    except BaseException:
        file.close()
        raise


def misplaced(header: SegmentHeader, name: SegmentName, owner: Owner) -> str:
    """Why a good header is not that of the log it lies in."""
    return segment_format.misplaced(header, *name[:2], owner[:3])


def _zeros(file: File, size: int) -> bool:
    return not any(file.read(position, _PIECE).strip(b"\0") for position in range(0, size, _PIECE))


def _without_footer(seen: Walk) -> tuple[Walk, bool]:
    """A log that was being sealed ends where its footer begins."""
    for index, (position, header) in enumerate(seen.frames):
        if header.kind == frame.FOOTER:
            flaws = [flaw for flaw in seen.flaws if flaw.position < position]
            flaws.append(Flaw(position, seen.size, "a footer that was not finished"))
            return seen._replace(frames=seen.frames[:index], flaws=flaws, end=position), True
    return seen, False


def sealed_end(
    maps: Maps, folder: str, name: SegmentName, owner: segment_format.Owner
) -> int | None:
    """The offset behind a sealed segment; None when nobody knows, because its footer is damaged."""
    segment = SealedSegment(join(folder, names.segment(*name[:2], sealed=True)), name)
    with suppress(Corruption, FormatTooNew, StorageError):
        end = name.base + segment.attach(maps, owner).footer.records
        return None if segment.rebuilt else end
    return None


# ---- deciding --------------------------------------------------------------------------------


def decide(
    logs: Sequence[Found], *, last_sealed: int, sealed_end: int | None, start: int,
    proven: Mapping[int, int],
) -> Plan:  # fmt: skip
    """What is to become of each log, by number.

    `sealed_end` is the offset behind the sealed segments, None when nobody knows; `start` where a
    shard without any begins. `proven` has, by segment, positions that are durable for reasons
    outside of the file.
    """
    broken = [log for log in logs if log.header is None]
    whole = [log for log in logs if log.seen is not None]
    synced = (log.number for log in whole if log.seen is not None and log.seen.watermark)
    frontier = max([last_sealed, *proven, *synced], default=0)
    remove = [log for log in broken if log.number > frontier and not log.damaged]
    plan = Plan([], [], remove, [log for log in broken if log not in remove])

    number, end = last_sealed, sealed_end if last_sealed else start
    for index, log in enumerate(whole):
        header, following = log.header, whole[index + 1 :]
        assert header is not None
        if _is_empty(log) and any(later.number == log.number for later in following):
            plan.remove.append(log)  # made before the gap that its namesake begins behind
            continue
        if log.number > frontier and not _follows(header, number, end):
            if _is_empty(log):  # a roll that failed, after which the log before it went on
                plan.remove.append(log)
                continue
            if not deleted_before(header.base, start):
                plan.aside.extend(whole[index:])
                break
        kept = _keep(log, header, following, frontier, proven.get(log.number, 0))
        if not kept.verdict.frames and not kept.damage and log.number > frontier:
            plan.remove.append(log)  # not even its CONFIG frame is there
            plan.aside.extend(following)
            break
        plan.keep.append(kept)
        number, end = log.number, kept.end
    return plan


def deleted_before(base: int, start: int) -> bool:
    """Whether all that may be missing before a segment was deleted.

    Deletions of files are not synced. A power cut may undo the first and keep the second, so that
    among segments below the beginning of a shard any may be there.
    """
    return 0 < base <= start


def _is_empty(log: Found) -> bool:
    assert log.seen is not None
    return not any(header.count for _, header in log.seen.frames) and not any(
        flaw.header is not None and flaw.header.count for flaw in log.seen.flaws
    )


def _follows(header: SegmentHeader, number: int, end: int | None) -> bool:
    """Whether a log goes on where the segment before it ended."""
    if not number:
        return end is None or header.previous_end <= end
    return header.segment == number + 1 and end in (None, header.previous_end)


def _keep(
    log: Found, header: SegmentHeader, following: Sequence[Found], frontier: int, proven: int
) -> Kept:
    seen = log.seen
    assert seen is not None
    rows = None  # how many the next log says that this one had
    if following and following[0].number == log.number + 1:
        after = following[0].header
        assert after is not None
        told = after.previous_end >= header.base  # else it speaks of something else
        if told and (following[0].number <= frontier or not _is_empty(following[0])):
            rows = after.previous_end - header.base
    if log.number < frontier:
        proven = max(proven, whole(seen, rows))
    verdict = scan.verdict(seen, proven)
    if rows is not None:
        verdict = _not_beyond(verdict, rows)
    damage = [(flaw, *_rows(verdict, flaw)) for flaw in verdict.corrupt]
    if log.number < frontier and rows is not None and verdict.rows < rows:
        damage = [item for item in damage if item[1] < verdict.rows]  # the rest is told in one
        reason = "the log ends before the next one says it did"
        cut = Flaw(verdict.end, verdict.end, reason)
        verdict = verdict._replace(corrupt=[*verdict.corrupt, cut], torn=None)
        damage.append((cut, verdict.rows, rows - 1))
    return Kept(log, header, verdict, damage, min(seen.watermark, verdict.end))


def whole(seen: Walk, rows: int | None) -> int:
    """Up to where a log that was durable as a whole must be in order."""
    for position, header in reversed(seen.frames):
        if rows is not None and header.first_row + header.count == rows:
            return position + header.size
    if rows in (None, 0) and seen.flaws and seen.flaws[-1].zero:
        return seen.flaws[-1].position  # room that was taken ahead
    return seen.end if rows == 0 else seen.size


def _not_beyond(kept: Verdict, rows: int) -> Verdict:
    """The next log says where this one ended; anything behind that was never acknowledged."""
    if kept.rows <= rows:
        return kept
    frames = [item for item in kept.frames if item[1].first_row < rows or not item[1].count]
    while frames and frames[-1][1].first_row >= rows and rows:
        frames.pop()
    end = frames[-1][0] + frames[-1][1].size if frames else segment_format.HEADER_SIZE
    torn = Flaw(end, end, "frames behind the end that the next log names")
    return kept._replace(frames=frames, rows=rows, end=end, torn=torn, dropped=kept.rows - rows)


def _rows(kept: Verdict, flaw: Flaw) -> tuple[int, int]:
    """The rows first..last that a flaw costs; rows follow each other, so neighbours tell."""
    if flaw.header is not None:
        return flaw.header.first_row, flaw.header.first_row + flaw.header.count - 1
    before = [h for position, h in kept.frames if position < flaw.position]
    after = [h for position, h in kept.frames if position > flaw.position]
    first = before[-1].first_row + before[-1].count if before else 0
    return first, after[0].first_row - 1 if after else kept.rows - 1
