"""Reading forward: from an offset on, batch by batch, over segments and gaps.

`read_batches` is the one loop behind read, batches, follow and slices. It looks at a view (a
`Shard` of this process or a `Follower`), whose `segments` it takes anew for every batch, so that
rolling and sealing may go on beneath it. A segment that is evicted while somebody looks at it is no
error: the look is taken again, and finds the gap. What is missing is never stepped over in silence:
lost offsets come as a Gap, damaged ones as Corruption.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from esker.engine.batch import Batch, record_at
from esker.engine.context import Context
from esker.engine.follower import Follower
from esker.engine.sieve import Sieve, sift
from esker.errors import ColdUnavailable, Corruption, DataGap, InvalidOption, StorageError
from esker.format.catalog import TopicEntry
from esker.format.columns import Columns, timestamp_array
from esker.format.segment import GAP_CORRUPT, GAP_REASONS, SegmentHeader
from esker.format.state import Losses
from esker.options import WAIT_SECONDS_MAX
from esker.positions import EARLIEST, LATEST, Position
from esker.records import Gap, Record
from esker.storage.files import forget_pages
from esker.storage.hole import end_of_hole
from esker.storage.marks import Marks
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment

T = TypeVar("T")
Gaps = Literal["raise", "yield", "skip"]
Consistency = Literal["eventual", "strong"]
BATCH_BYTES: Final = 1 << 20
ALL: Final = Sieve()
# Not by `pa.array`, which imports pandas where there is one: it may take longer than all the rest.
NO_RECORDS: Final = Columns(pa.nulls(0, pa.binary()), 0)
NO_OFFSETS: Final = pa.nulls(0, pa.int64())
_CORRUPT: Final = GAP_REASONS[GAP_CORRUPT]


class Range(NamedTuple):
    """Offsets [first, end) of one shard."""

    shard: int
    first: int
    end: int


class View(Protocol):
    """A shard that can be read."""

    context: Context
    entry: TopicEntry
    number: int
    folder: str
    segments: tuple[Segment, ...]
    visible: int
    durable: int
    earliest: int
    losses: Losses  # what was evicted, all below `earliest`
    marks: Marks  # what was deleted one by one
    settled: bool  # `segments` is never older than `visible`: what it lacks is missing


def end_of(view: View, consistency: Consistency = "eventual") -> int:
    """The offset behind the last record that a reader may see."""
    if consistency == "strong":
        return min(view.visible, view.durable)
    return view.visible


def earliest_of(view: View) -> int:
    """The first offset that is there."""
    segments = view.segments
    kept = view.entry.options.durability != "ephemeral"
    if not segments:  # what a topic without files has forgotten is nowhere
        return view.earliest if kept else max(view.visible, view.earliest)
    others = segments[0].number > 1 or (kept and view.earliest > 0)  # were there before
    if others and segments[0].base > view.earliest:
        return view.earliest  # whoever reads there is told what became of them
    return max(segments[0].base, view.earliest)


def resolve(view: View, position: Position) -> int:
    """The offset that a position means for this shard."""
    match position.kind:
        case "offset":
            return position.number
        case "back":
            return find_back(view, position.number)
        case "time":
            return find_time(view, position.number)
        case kind if kind == LATEST:
            return view.visible
        case kind if kind == EARLIEST:
            return earliest_of(view)
    raise AssertionError(position)


def _steadily(view: View, look: Callable[[], T]) -> T:
    """Look at the segments of a view; again, if one of them was taken away meanwhile."""
    while True:
        segments = view.segments
        try:
            return look()
        except StorageError:
            if isinstance(view, Follower):
                view.refresh()
            if view.segments is segments:
                view.context.require_staying()
                raise


def find_back(view: View, records: int) -> int:
    """The offset so many records before the end; neither gaps nor what is deleted counts."""
    return _steadily(view, lambda: _find_back(view, records))


def _find_back(view: View, records: int) -> int:
    offset = view.visible
    for segment in reversed(view.segments):
        if records <= 0:
            break
        first = max(segment.base, view.earliest)
        stop = min(segment.base + segment.rows, view.visible)
        if first < stop:
            there = stop - first - view.marks.count(first, stop)
            offset = _back(view.marks, first, stop, records) if there >= records else first
            records -= there
    return max(offset, earliest_of(view))


def _back(marks: Marks, first: int, stop: int, records: int) -> int:
    """The offset in [first, stop) from which on so many records are there."""
    if not marks:
        return stop - records
    return bisect_right(
        range(first, stop), -records, key=lambda at: marks.count(at, stop) - (stop - at)
    ) + first - 1  # fmt: skip


def find_time(view: View, timestamp: int) -> int:
    """The first offset whose record is at or after a time; the end when there is none."""
    return _steadily(view, lambda: _find_time(view, timestamp))


def _find_time(view: View, timestamp: int) -> int:
    segments = view.segments
    # header i+1 knows the largest timestamp before it, so this is a binary search on headers
    least = max(0, bisect_right(segments, view.earliest, key=_base) - 1)  # those before are deleted
    at = bisect_left(segments, timestamp, least + 1, key=lambda s: s.header.previous_high) - 1 \
        if len(segments) > least + 1 else least  # fmt: skip
    for segment in segments[max(at, least) :]:
        rows = min(segment.rows, view.visible - segment.base)
        row = segment.find_time(timestamp, rows)
        if row < view.earliest - segment.base:  # deleted: look at those that are there
            row = _first_since(segment, timestamp, view.earliest - segment.base, rows)
        if row < rows:
            return segment.base + row
    return view.visible


def _first_since(segment: Segment, timestamp: int, row: int, stop: int) -> int:
    """The first row at or after a time, from `row` on; `stop` when there is none."""
    while row < stop:
        row, columns = segment.read(row, stop, BATCH_BYTES)
        for index, stamp in enumerate(timestamp_array(columns).to_pylist()):
            if stamp >= timestamp:
                return row + index
        row += columns.count
    return stop


def read_batches(
    view: View,
    start: int,
    stop: int,
    *,
    max_bytes: int = BATCH_BYTES,
    max_records: int = 0,
    gaps: Gaps = "raise",
    sieve: Sieve = ALL,
    whole: bool = False,
) -> Iterator[Batch | Gap]:
    """Batches of records [start, stop); a Gap where records were lost.

    With `whole` what is left out, and a gap that is skipped, comes as a batch without records: what
    is handed out then reaches from `start` to where this read ended, without a hole.
    """
    offset = start
    segments: tuple[Segment, ...] = ()
    at, behind = -1, 0  # the segment that holds `offset`, as far as is known, and where it ends
    before: Segment | None = None
    going_on = False  # not its first batch: then the next segment will be wanted, too
    while offset < stop:
        view.context.require_open()
        if offset < view.earliest:  # deleted on request, which is not a gap; or evicted
            earliest = view.earliest
            for first, end in view.losses:
                if offset < end and first < stop:
                    yield from _gap(
                        view, max(offset, first), min(end, stop) - 1, "evicted", gaps, whole
                    )
            offset = earliest
            continue
        if view.segments is not segments or offset >= behind:
            segments, behind = view.segments, 0
            at = bisect_right(segments, offset, key=_base) - 1
        if not segments and view.entry.options.durability != "ephemeral":
            if not view.settled:
                return  # published, but this list of segments is older: the next read sees it
            raise Corruption(
                "the log is missing, or a recovery has yet to write it", path=view.folder,
                first=offset, last=stop - 1, reason="missing records",
            )  # fmt: skip
        if at < 0:
            if _deleted(view, offset):  # since we looked where the shard begins
                continue
            first, reason = segments[0].base if segments else view.visible, "evicted"
            try:
                header = _header(segments[0], offset, first) if segments else None
            except StorageError:
                if not _deleted(view, offset):
                    raise
                continue
            if header is not None and header.previous_end < first:
                if offset < header.previous_end:  # evicted up to there; lost from there on
                    first = header.previous_end
                else:  # nothing that was there is missing
                    reason = GAP_REASONS.get(header.gap) or reason
            if header is not None and header.segment > 1 and offset < header.previous_end:
                raise Corruption(
                    f"segments before {header.segment} are missing", path=segments[0].path,
                    first=offset, last=first - 1, reason="missing segment",
                )  # fmt: skip
            yield from _gap(view, offset, min(first, stop) - 1, reason, gaps, whole)
            offset = first
            continue
        segment = segments[at]
        try:
            row, rows = offset - segment.base, segment.rows
        except StorageError:
            if not _deleted(view, offset):
                raise
            continue
        except Corruption as problem:  # nothing of it can be read: up to where the next begins
            end = segments[at + 1].base if at + 1 < len(segments) else stop
            raise _placed(problem, offset, end) from problem
        if row >= rows:
            if at + 1 >= len(segments):
                if view.settled:
                    raise Corruption(
                        "the end of the log is missing", path=segment.path,
                        first=offset, last=stop - 1, reason="missing records",
                    )  # fmt: skip
                return  # published, but this list of segments is older: the next read sees it
            following = segments[at + 1]
            try:
                reason = _reason(segment, following)
            except StorageError:
                if not _deleted(view, offset):
                    raise
                continue
            yield from _gap(view, offset, min(following.base, stop) - 1, reason, gaps, whole)
            offset = following.base
            continue
        if before is not None and before is not segment:
            try:
                _check_chain(before, segment)
                if isinstance(before, SealedSegment):
                    forget_pages(before.data())
            except StorageError:  # `before` may be gone, too: the next one is not held against it
                before = None
                continue
        if going_on and at + 1 < len(segments) and view.context.options.background:
            view.context.ahead.want(segment, segments[at + 1])
        before, going_on, behind = segment, True, segment.base + rows
        try:
            row, columns = segment.read(row, min(rows, stop - segment.base), max_bytes)
        except StorageError as problem:
            if not _deleted(view, offset):
                _tell_why(problem, view)
                raise
            continue
        except Corruption:
            view.context.require_staying()
            after = end_of_hole(segment, row)
            if after is None:
                raise
            offset = min(segment.base + after, stop)
            yield from _gap(view, segment.base + row, offset - 1, _CORRUPT, gaps, whole)
            continue
        keep = sieve.keep(columns, offset, view.marks)
        if keep is not None:
            end = offset + columns.count
            yield from _sifted(
                view.number, columns, offset, end, keep, max_bytes, max_records, whole
            )
            offset = end
            continue
        for piece in _pieces(columns, max_bytes, max_records):
            yield Batch(view.number, offset, piece)
            offset += piece.count


def _sifted(
    shard: int, columns: Columns, first: int, end: int, keep: Any,
    max_bytes: int, max_records: int, whole: bool,
) -> Iterator[Batch]:  # fmt: skip
    """The records of [first, end) that stay; each batch goes up to where the next one begins."""
    columns, offsets = sift(columns, first, keep)
    if not columns.count:
        if whole:
            yield Batch(shard, first, columns, offsets, end)
        return
    row = 0
    for piece in _pieces(columns, max_bytes, max_records):
        numbers = offsets.slice(row, piece.count)
        row += piece.count
        upto = offsets[row].as_py() if row < columns.count else end
        yield Batch(shard, first, piece, numbers, upto)
        first = upto


def _tell_why(problem: StorageError, view: View) -> None:
    """Say of which topic it is what a cold store does not give, and that files are being closed."""
    view.context.require_staying()
    if isinstance(problem, ColdUnavailable):
        problem.args = (f"topic {view.entry.name!r} shard {view.number}, {problem}",)


def _deleted(view: View, offset: int) -> bool:
    """Whether a record was deleted, or evicted, since the view was taken."""
    if isinstance(view, Follower):
        view.refresh()
    return offset < view.earliest


def read_one(view: View, offset: int) -> Record | None:
    """One record by its offset, which must be visible; None where only `read_batches` can tell."""
    segments = view.segments
    at = bisect_right(segments, offset, key=_base) - 1
    if at < 0 or (view.marks and offset in view.marks):
        return None
    segment = segments[at]
    row = offset - segment.base
    try:
        if row >= segment.rows:
            return None
        columns, place = segment.at(row)
    except StorageError as problem:
        if _deleted(view, offset):
            return None
        _tell_why(problem, view)
        raise
    except Corruption:
        view.context.require_staying()
        if end_of_hole(segment, row) is None:
            raise
        return None
    return record_at(columns, place, offset, view.number)


def count_records(view: View, first: int, end: int) -> int:
    """How many records are in [first, end), no gap and nothing deleted; reads no records."""
    return _steadily(view, lambda: _count_records(view, first, end))


def _count_records(view: View, first: int, end: int) -> int:
    first, marks, total = max(first, view.earliest), view.marks, 0
    for segment in view.segments[max(0, bisect_right(view.segments, first, key=_base) - 1) :]:
        if segment.base >= end:
            break
        low, high = max(first, segment.base), min(end, segment.base + segment.rows)
        if low < high:
            total += high - low - (marks.count(low, high) if marks else 0)
    return total


def _base(segment: Segment) -> int:
    return segment.base


def _header(segment: Segment, first: int, end: int) -> SegmentHeader:
    """The header of a segment that says what became of the offsets before it."""
    try:
        return segment.header
    except Corruption as problem:
        raise _placed(problem, first, end) from problem


def _placed(problem: Corruption, first: int, end: int) -> Corruption:
    """An error of a whole file, with the offsets [first, end) that it stands for."""
    return Corruption(
        problem.reason, path=problem.path, position=problem.position,
        first=first, last=max(first, end - 1),
    )  # fmt: skip


def _reason(segment: Segment, following: Segment) -> str:
    header = _header(following, segment.base + segment.rows, following.base)
    if following.number != segment.number + 1:
        raise Corruption(
            f"segments {segment.number + 1} to {following.number - 1} are missing",
            path=segment.path, position=0,
            first=segment.base + segment.rows, last=following.base - 1, reason="missing segment",
        )  # fmt: skip
    if header.previous_end != segment.base + segment.rows:
        raise Corruption(
            "a segment ends before the next one says it did", path=segment.path, position=0,
            first=segment.base + segment.rows, last=following.base - 1, reason="corrupt",
        )  # fmt: skip
    return GAP_REASONS.get(header.gap) or "lost"


def _check_chain(before: Segment, segment: Segment) -> None:
    header = segment.header
    if segment.number == before.number + 1 and header.previous_salt not in (0, before.header.salt):
        raise Corruption(
            "a segment does not follow the one before it (exchanged?)", path=segment.path,
            first=segment.base, last=segment.base + segment.rows - 1,
        )  # fmt: skip


def _gap(
    view: View, first: int, last: int, reason: str, gaps: Gaps, whole: bool
) -> Sequence[Gap | Batch]:
    if last < first:
        return ()
    told = told_gap(view.context, Gap(view.entry.name, view.number, first, last, reason), gaps)
    if told:
        return told
    return (Batch(view.number, first, NO_RECORDS, NO_OFFSETS, last + 1),) if whole else ()


def told_gap(context: Context, gap: Gap, gaps: Gaps) -> Sequence[Gap]:
    """A gap as the reader wants it: raised, handed out, or only counted."""
    if gaps == "raise":
        raise DataGap(gap)
    context.gaps_met += 1
    return (gap,) if gaps == "yield" else ()


def _pieces(columns: Columns, max_bytes: int, max_records: int) -> Iterator[Columns]:
    """Cut a batch to the caller's limits, exactly; at least one record each."""
    count = columns.count
    most = max_records or count
    if count <= most and columns.nbytes <= max_bytes:
        yield columns
        return
    offsets = columns.values.buffers()[1]
    view = memoryview(offsets).cast("i")[columns.values.offset :]
    row = 0
    while row < count:
        fits = bisect_right(view, view[row] + max_bytes, row + 1, count + 1) - 1
        stop = min(max(fits, row + 1), row + most, count)
        yield columns.slice(row, stop - row)
        row = stop


def check_consistency(consistency: str) -> None:
    if consistency not in ("eventual", "strong"):
        raise InvalidOption(f'consistency={consistency!r}: one of "eventual", "strong"')


def check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name}={value!r}: a whole number, at least {least}")


def check_limit(limit: int | None) -> None:
    if limit is not None:
        check_count("limit", limit, 0)


def check_timeout(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise InvalidOption(f"timeout={timeout!r}: a number of seconds, or None to wait for ever")
    return min(float(timeout), WAIT_SECONDS_MAX)


def check_gaps(gaps: str) -> Gaps:
    if gaps not in ("raise", "yield", "skip"):
        raise InvalidOption(f'gaps={gaps!r}: one of "raise", "yield", "skip"')
    return gaps  # type: ignore[return-value]
