"""Recovery: a directory, as a crash left it, into a state to go on from.

Read `recover_shard` from top to bottom; what it may decide is the table `CASES` in findings.py, one
label a decision, and tests/test_recovery.py has a test for each label. Three endings are never
blurred:

    clean      nothing to do
    torn       a crash left it: cut at the last whole batch, and reported
    corrupt    no crash can have left it: kept in place, reported, refused to whoever reads it

Rules. Damaged metadata never deletes data. What is not understood is moved to quarantine/, not
unlinked. Everything that is cut or refused is named with file, position, offsets and reason.
Recovering twice is the same as recovering once, and so is recovering after a recovery that crashed:
nothing is given up before what replaces it is durable, and the state page, which says that all is
well, is written last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple

from esker.engine import survey
from esker.engine.context import Context
from esker.engine.findings import CASES, Finding, Recovery, Say
from esker.engine.layout import (
    cut_cursors,
    is_clean,
    list_segments,
    require_dirs,
    shard_folder,
)
from esker.engine.progress import Teller
from esker.engine.quarantine import quarantine
from esker.engine.recatalog import recover_catalog
from esker.engine.removal import finish_removals
from esker.engine.replay import Replay, dismiss, gather, redo
from esker.errors import Corruption, StorageError
from esker.format import catalog as catalog_format
from esker.format import names
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.catalog import TopicEntry
from esker.format.segment import SegmentHeader
from esker.format.state import State
from esker.options import RESERVE_OFFSETS_MAX
from esker.storage.catalog import CatalogFile
from esker.storage.counters import Counters
from esker.storage.files import Files, Holder, base_name, join, require_dir, size_of
from esker.storage.log import LogSegment
from esker.storage.marks import newest
from esker.storage.marks import tidy as tidy_marks
from esker.storage.sealed import SealedSegment, file_hash_matches
from esker.storage.state import StateFile

__all__ = ["CASES", "Finding", "Recovery", "recover_catalog", "recover_store"]

_PIECE: Final = 1 << 22
STATE_LOST_JUMP: Final = RESERVE_OFFSETS_MAX * 2  # above every ceiling that can have been lost


# ---- the store -------------------------------------------------------------------------------


def recover_store(context: Context, catalog: CatalogFile) -> Recovery:
    """Recover every shard that needs it and that no living process writes."""
    started = context.clock.monotonic()
    report = Recovery()
    files, root = context.files, context.root
    recover_catalog(context, catalog, report)
    for name in (names.TOPICS, names.JOURNALS, names.STAGING, names.PROCESSES):
        require_dir(files, join(root, name))
    finish_removals(context, catalog)
    dead_possible = any(
        names.parse_journal(name) for name in files.list(join(root, names.JOURNALS))
    )
    if not dead_possible and not any(_unclean(context, catalog)):
        return report
    lock = files.lock(join(root, names.RECOVERY_LOCK), context.note, wait=True)
    try:
        _recover_all(context, catalog, report)
    finally:
        if not isinstance(lock, Holder):
            lock.release()
    report.seconds = context.clock.monotonic() - started
    return report


def _unclean(context: Context, catalog: CatalogFile) -> Iterator[tuple[TopicEntry, int]]:
    for entry in catalog.catalog.topics:
        for number in range(entry.options.shards):
            folder = shard_folder(context.root, entry.id, number)
            page = StateFile(context.files, folder)
            page.load()
            ephemeral = entry.options.durability == "ephemeral"
            whole = is_clean(context.files, folder, page.state, ephemeral=ephemeral)
            if page.state is None and whole:  # never written, or all of it is gone
                counters = Counters.open(context.files, folder, writable=False)
                whole = counters is None or not counters.proven(entry.id, number)
            if not whole or page.damage or not _ours(context, entry, number, page.state):
                yield entry, number


def _ours(context: Context, entry: TopicEntry, number: int, state: State | None) -> bool:
    """A state page may have been exchanged like any other file."""
    owner = (context.store, entry.id, number)
    return state is None or (state.store, state.topic, state.shard) == owner


def _recover_all(context: Context, catalog: CatalogFile, report: Recovery) -> None:
    files = context.files
    dead, replays = gather(context, report)
    wanted = {(entry.id, number) for entry, number in _unclean(context, catalog)} | set(replays)
    needed: set[str] = set()
    done: set[tuple[int, int]] = set()
    held: set[tuple[int, int]] = set()
    teller = Teller("recovery", "shards", context.progress, len(wanted), context.clock)
    for entry in catalog.catalog.topics:
        for number in range(entry.options.shards):
            if (entry.id, number) not in wanted:
                continue
            folder = shard_folder(context.root, entry.id, number)
            require_dirs(files, [folder])
            if not files.kind(folder):
                continue  # somebody has taken it away; readers are told
            lock = files.lock(join(folder, names.LOCK), context.note)
            if isinstance(lock, Holder):  # its writer recovers it, or has, before it goes on
                held.add((entry.id, number))
                continue
            try:
                mine = replays.get((entry.id, number), [])
                needed |= recover_shard(context, entry, number, mine, report)
                report.shards += 1
                teller.add(1)
                done.add((entry.id, number))
            finally:
                lock.release()
    for item in dead:
        owners = {(line.topic, line.shard) for line, _ in item.entries}
        if owners & held:
            reason = "it speaks of a shard that another process holds"
            report.findings.append(Finding("unrecovered", item.path, reason))
            continue
        orphans = {owner for owner in owners - done if not _was_deleted(catalog, owner[0], report)}
        dismiss(context, item, report, needed=item.path in needed, orphans=orphans)


def _was_deleted(catalog: CatalogFile, topic: int, report: Recovery) -> bool:
    """A number that was given out and is not in the catalog; if the catalog can be believed."""
    known = catalog.catalog
    given = topic < known.next_id and all(entry.id != topic for entry in known.topics)
    return given and "damaged_catalog" not in report.labels


# ---- one shard -------------------------------------------------------------------------------


class Logs(NamedTuple):
    """What is left of a shard's segments, in order and cut to their ends."""

    sealed: list[names.SegmentName]
    logs: list[LogSegment]
    end: int  # the offset behind the last record
    floor: int  # the offset behind every record that may be in a log that nobody can read


def recover_shard(
    context: Context, entry: TopicEntry, number: int, replays: list[Replay], report: Recovery
) -> set[str]:
    """Bring one shard in order. The caller holds its writer lock and the recovery lock.

    Returns the paths of the journals without which something would have been lost.
    """
    files, folder = context.files, shard_folder(context.root, entry.id, number)
    told = len(report.findings)

    def say(label: str, path: str, reason: str, position: int = 0,
            first: int | None = None, last: int | None = None) -> None:  # fmt: skip
        report.findings.append(
            Finding(label, path, reason, entry.name, number, position, first, last)
        )

    # 1. The state page: what was known to be durable, which offsets were set aside. Names first:
    #    nothing may be given up for the sake of a file whose name a power cut could take.
    files.sync_dir(folder)
    page = StateFile(files, folder)
    state = page.load()
    if not _ours(context, entry, number, state):
        # Before there are segments the page may never have been synced: then these are the bytes
        # of a deleted one, in whose place on the disk it stands.
        used = bool(list_segments(files, folder) or replays)
        state, page.damage = None, "the state of another shard" if used else ""
    if page.damage:
        say("damaged_state", join(folder, names.STATE), page.damage)
    counters = _counters(files, folder, say)
    if entry.options.durability == "ephemeral":
        following = max(state.ceiling, state.end_offset) if state is not None else 0
        following += STATE_LOST_JUMP if page.damage else 0
        _store(page, context, entry, number, state, None, following)
        return set()

    # 2. Files: what is a leftover, what is a stranger; what the journal has and a log lacks.
    _tidy(context, folder, say)
    config_bytes = len(catalog_format.encode_config(entry))
    owner = survey.Owner(context.store, entry.id, number, config_bytes)
    proven, needed = redo(files, folder, owner, replays, state, say)
    if state is not None and state.clean and state.segment:
        proven[state.segment] = max(proven.get(state.segment, 0), state.end_position)

    # 3. Logs: walk them all, decide about each; set aside, remove, cut.
    names_of_logs = [name for name in list_segments(files, folder) if not name.sealed]
    found = survey.look(files, folder, names_of_logs, owner)
    active: LogSegment | None = None
    try:
        left = _settle(context, folder, owner, found, proven, state, say)

        # 4. Where to go on: behind the end, or behind every offset that may have been issued.
        known = counters.proven(entry.id, number) if counters is not None else 0
        following, gap = _next_offset(context, entry, state, counters, left)
        if known > following:  # records were durable that no file has any more
            following, gap = known, segment_format.GAP_CORRUPT
        if following > left.end:
            reason = segment_format.GAP_REASONS[gap]
            say("lost_tail", folder, reason, 0, left.end, following - 1)

        _cut_cursors(files, folder, (context.store, entry.id, number), following, say)

        # 5. Seal all logs but the last, so that one log is left, as after a clean close.
        active = _leave_one(context, entry, number, folder, left, following, gap)

        # 6. Say that all is well.
        _store(page, context, entry, number, state, active, following)
    finally:
        survey.close(found)
        if active is not None:
            active.close()
    if counters is not None:
        segment, position = (active.number, active.end) if active is not None else (0, 0)
        counters.belongs_to(entry.id, number)
        counters.publish(following, segment, position, following)
        counters.add("recoveries")
        if all(finding.first is None for finding in report.findings[told:]):
            counters.add("recoveries_clean")  # no record was lost, or is damaged
        counters.add("segments_generation")
    return needed


def _counters(files: Files, folder: str, say: Say) -> Counters | None:
    try:
        counters = Counters.open(files, folder, writable=True)
    except StorageError:
        return None  # a full disk, say: counts are not worth failing for
    if counters is not None and counters.damaged:
        say("damaged_counters", join(folder, names.COUNTERS), "not a counters page")
    return counters


def _cut_cursors(
    files: Files, folder: str, owner: tuple[bytes, int, int], end: int, say: Say
) -> None:
    for slot in cut_cursors(files, folder, owner, end):
        about = f"group {slot.name!r} had acked what is lost"
        say("cursor_beyond_end", join(folder, names.OFFSETS), about, 0, end, slot.cursor - 1)


# -- files


def _tidy(context: Context, folder: str, say: Say) -> None:
    files = context.files
    ours = {names.STATE, names.COUNTERS, names.LOCK, names.OFFSETS, names.OFFSETS_LOCK, names.ONCE}
    for name in sorted(files.list(folder)):
        path = join(folder, name)
        if name.endswith(names.TEMPORARY) and _half_made(files, path):
            files.unlink(path)
            if ".seg" in name:
                say("unfinished_seal", path, "a half-made sealed segment")
            continue
        segment = names.parse_segment(name)
        index = names.parse_tags(name.removesuffix(names.TEMPORARY))
        if index is not None:  # half-made, or of a segment that is gone: it is made when needed
            sealed = join(folder, names.segment(*index[:2], sealed=True))
            if name.endswith(names.TEMPORARY) or not files.kind(sealed):
                files.unlink(path)
            continue
        if names.parse_staged(name) is not None or names.parse_deletions(name) is not None:
            continue  # of a batch that may yet be attached; what was deleted, see erasing.py
        if segment is None and name not in ours:
            say("stranger", path, "not a file of Esker's")
            quarantine(context, path, "stranger")
        elif segment is not None and segment.sealed:
            log = join(folder, names.segment(*segment[:2], sealed=False))
            if files.kind(log):
                _finish_seal(context, path, log, segment, say)


def _half_made(files: Files, path: str) -> bool:
    """Whether a temporary file is a copy of something that is still there."""
    whole = path.removesuffix(names.TEMPORARY)
    if base_name(whole) == names.ONCE:
        return files.kind(path) == "file"  # the log has all that it would have said
    there = (whole, whole.removesuffix(".seg") + ".log")
    return files.kind(path) == "file" and any(files.kind(name) for name in there)


def _finish_seal(
    context: Context, path: str, log: str, segment: names.SegmentName, say: Say
) -> None:
    """Both the log and the sealed file are there: the sealed one, if it is whole."""
    least = segment_format.HEADER_SIZE + segment_format.TRAILER_SIZE
    short = size_of(context.files, path) < least
    whole = not short and file_hash_matches(
        SealedSegment(path, segment).attach(context.maps).data()
    )
    context.maps.drop(path)
    if whole:
        say("unfinished_seal", log, "the sealed segment is complete, its log was still there")
        context.files.unlink(log)
    else:
        say("corrupt_sealed", path, "the sealed segment is damaged")
        quarantine(context, path, "sealed")


# -- logs


def _settle(
    context: Context, folder: str, owner: survey.Owner, found: list[survey.Found],
    proven: dict[int, int], state: State | None, say: Say,
) -> Logs:  # fmt: skip
    """Do what `survey.decide` says, and report it."""
    sealed = [name for name in list_segments(context.files, folder) if name.sealed]
    newest = sealed[-1].segment if sealed else 0
    start = state.earliest if state is not None else 0
    end = survey.sealed_end(context.maps, folder, sealed[-1], owner[:3]) if sealed else start
    plan = survey.decide(
        found, last_sealed=newest, sealed_end=end if sealed else None, start=start, proven=proven
    )
    floor = 0
    for log in plan.remove:
        say("unfinished_roll", log.path, log.flaw or "a new log without records")
        if log.blank or not log.flaw:
            context.files.unlink(log.path)
        else:
            quarantine(context, log.path, "log")
    for log in plan.broken:
        floor = max(floor, _behind(log, state))
        say("corrupt_header", log.path, log.flaw, 0, log.name.base, _behind(log, state) - 1)
        quarantine(context, log.path, "log")
    for log in reversed(plan.aside):
        last = _last_row(log)
        first = log.name.base if last is not None else None
        say("later_log_set_aside", log.path, "the log before it lost its tail", 0, first, last)
        quarantine(context, log.path, "log")
    logs = [_cut(kept, say) for kept in plan.keep]
    if logs and logs[-1].number > newest:
        end = logs[-1].base + logs[-1].next_row
    elif end is None:  # the last sealed segment cannot be read, or not its footer
        path = join(folder, names.segment(*sealed[-1][:2], sealed=True))
        end = max(sealed[-1].base, state.end_offset if state is not None else 0)
        with suppress(Corruption):
            rebuilt = SealedSegment(path, sealed[-1]).attach(context.maps, owner[:3])
            end = max(end, rebuilt.base + rebuilt.rows)
    _check_sequence(context, folder, owner, sealed, logs, start, end, state, say)
    return Logs(sealed, logs, end, floor)


def _behind(log: survey.Found, state: State | None) -> int:
    """The offset behind every record that can be in a log that nobody can read."""
    if state is not None and state.clean and state.segment == log.number:
        grown = max(0, log.size - state.end_position)
        return state.end_offset + grown // survey.ROW_BYTES_MIN
    return log.name.base + log.size // survey.ROW_BYTES_MIN


def _last_row(log: survey.Found) -> int | None:
    frames = log.seen.frames if log.seen is not None else []
    rows = max((header.first_row + header.count for _, header in frames), default=0)
    return log.name.base + rows - 1 if rows else None


def _cut(kept: survey.Kept, say: Say) -> LogSegment:
    """Cut a log to its end, and make sure that what is kept is on the disk.

    After a failed sync the kernel may hold pages that it believes to be written and that are not.
    So everything above the part that is proven durable is written once more: that makes the pages
    dirty again, and the sync below means what it says.
    """
    verdict, base, path = kept.verdict, kept.header.base, kept.log.path
    for flaw, low, high in kept.damage:
        first, last = (base + low, base + high) if high >= low else (None, None)
        say("corrupt_frame", path, flaw.reason, flaw.position, first, last)
    if verdict.torn is not None:
        rows = verdict.dropped
        first, last = (kept.end, kept.end + rows - 1) if rows else (None, None)
        sealing = kept.log.footed and not rows
        label = "unfinished_seal" if sealing else "torn_tail"
        say(label, path, verdict.torn.reason, verdict.end, first, last)
    log = LogSegment(kept.header, kept.log.file)
    log.adopt(verdict)
    log.damaged = bool(kept.damage)
    if kept.log.size > log.end and not log.damaged:
        log.file.truncate(log.end)
    position = kept.proven
    while position < log.end:
        data = log.file.read(position, min(_PIECE, log.end - position))
        if not data:
            break
        log.file.write(position, [data])
        position += len(data)
    log.sync(log.end)
    return log


def _check_sequence(
    context: Context, folder: str, owner: survey.Owner, sealed: list[names.SegmentName],
    logs: list[LogSegment], start: int, end: int, state: State | None, say: Say,
) -> None:  # fmt: skip
    """Every number from the first to the last must be there."""
    bases = {name.segment: name.base for name in sealed}
    bases |= {log.number: log.base for log in logs}
    numbers = sorted(bases)
    for before, after in pairwise(numbers):
        if after != before + 1 and not survey.deleted_before(bases[after], start):
            ends = [log.base + log.next_row for log in logs if log.number == before]
            ends += [
                survey.sealed_end(context.maps, folder, name, owner[:3]) or name.base
                for name in sealed
                if name.segment == before
            ]
            say("missing_segment", folder, f"segments {before + 1} to {after - 1} are not there",
                0, ends[0], bases[after] - 1)  # fmt: skip
    if numbers and numbers[0] > 1 and _begins(context, folder, owner, sealed, logs) > start:
        say("missing_segment", folder, f"segments up to {numbers[0] - 1} are not there",
            0, start, bases[numbers[0]] - 1)  # fmt: skip
    if state is not None and state.clean and state.segment > max([0, *numbers]):
        lost = (end, state.end_offset - 1) if state.end_offset > end else (None, None)
        say("missing_segment", folder, f"segment {state.segment} is not there", 0, *lost)


def _begins(
    context: Context, folder: str, owner: survey.Owner, sealed: list[names.SegmentName],
    logs: list[LogSegment],
) -> int:  # fmt: skip
    """The offset below which everything lay in segments before the first that is there.

    The base of that one, or less: a gap between the two is told by its header.
    """
    first = min([*(log.number for log in logs), *(name.segment for name in sealed)])
    for log in logs:
        if log.number == first:
            return log.header.previous_end
    path = join(folder, names.segment(*sealed[0][:2], sealed=True))
    with suppress(Corruption):
        return SealedSegment(path, sealed[0]).attach(context.maps, owner[:3]).header.previous_end
    return sealed[0].base


# -- offsets


def _next_offset(
    context: Context, entry: TopicEntry, state: State | None, counters: Counters | None, left: Logs
) -> tuple[int, int]:
    """Where the log goes on, and why it leaves a gap, should it leave one."""
    following, gap = _issued(context, entry, state, counters, left)
    if left.floor > max(following, left.end):
        return left.floor, segment_format.GAP_CORRUPT
    return max(following, left.end), gap


def _issued(
    context: Context, entry: TopicEntry, state: State | None, counters: Counters | None, left: Logs
) -> tuple[int, int]:
    """An offset below which all may have been issued; class disk issues what is not durable."""
    weak, end = entry.options.durability == "disk", left.end
    if state is None:
        # a state is durable before the first segment is made: without segments there was none
        lost = weak and (left.sealed or left.logs or left.floor)
        return (end + STATE_LOST_JUMP if lost else end), segment_format.GAP_STATE_LOST
    if weak and end > (state.end_offset if state.clean else state.ceiling):
        return end + STATE_LOST_JUMP, segment_format.GAP_STATE_LOST  # a newer state is lost
    if state.clean:
        return state.end_offset, segment_format.GAP_CORRUPT
    if not weak:
        return state.end_offset, segment_format.GAP_LOST_TAIL
    if state.boot != context.boot or not any(context.boot):
        return state.ceiling, segment_format.GAP_LOST_TAIL
    # The machine has not stopped, so nothing is missing, unless the disk failed and dropped pages:
    # then the counters page, which is never read from the disk again, knows what readers saw.
    seen = counters.visible if counters is not None else 0
    return max(state.end_offset, min(seen, state.ceiling)), segment_format.GAP_LOST_TAIL


def _leave_one(
    context: Context, entry: TopicEntry, number: int, folder: str, left: Logs, following: int,
    gap: int,
) -> LogSegment | None:  # fmt: skip
    """Seal what is to be sealed. Returns the log to go on with, if there is one."""
    files = context.files
    sealed, logs, end = list(left.sealed), list(left.logs), left.end
    newest = sealed[-1].segment if sealed else 0
    active = logs.pop() if logs else None
    if active is not None and (active.damaged or active.number < newest):
        logs.append(active)
        active = None
    empty: LogSegment | None = None
    if following > end and active is not None:
        if active.next_row:
            logs.append(active)
        else:
            empty = active  # it makes way for the one behind the gap, which takes its number
        active = None
    sealed += [log.seal(files, merging=False).name for log in logs]
    if following > end:
        before = max(sealed, default=None)
        active = _gap_log(context, entry, number, folder, before, empty, end, following, gap)
    if active is not None:
        active.sync(active.end)
    files.sync_dir(folder)
    if empty is not None:
        files.unlink(empty.path)
        files.sync_dir(folder)
    return active


def _gap_log(
    context: Context, entry: TopicEntry, number: int, folder: str,
    before: names.SegmentName | None, empty: LogSegment | None, end: int, following: int, gap: int,
) -> LogSegment:  # fmt: skip
    """A new log behind the gap. Its header remembers the gap for every reader to come."""
    segment, chain, salt, high = 1, 0, 0, 0
    if empty is not None:
        old = empty.header
        segment, end, gap = old.segment, old.previous_end, old.gap or gap
        chain, salt, high = old.previous_chain, old.previous_salt, old.previous_high
    elif before is not None:
        path = join(folder, names.segment(*before[:2], sealed=True))
        owner = (context.store, entry.id, number)
        last = SealedSegment(path, before).attach(context.maps, owner)
        segment = before.segment + 1
        with suppress(Corruption):
            chain, salt = last.footer.chain, last.header.salt
            high = max(last.header.previous_high, last.footer.max_timestamp)
    header = SegmentHeader(
        store=context.store, topic=entry.id, shard=number, epoch=entry.epoch, segment=segment,
        base=following, created=context.clock.now_us(),
        salt=int.from_bytes(context.files.random(8), "little"), previous_end=end,
        previous_chain=chain, previous_salt=salt, previous_high=high, gap=gap,
    )  # fmt: skip
    return LogSegment.create(context.files, folder, header, catalog_format.encode_config(entry))


def _store(
    page: StateFile, context: Context, entry: TopicEntry, number: int, old: State | None,
    active: LogSegment | None, following: int,
) -> None:  # fmt: skip
    """The ceiling is the end: a clean state promises that nothing above it was issued, and the
    next writer of a weak class sets offsets aside before it issues any."""
    marked, owner = (0, 0), (entry.id, number, context.store)
    folder = shard_folder(context.root, entry.id, number)
    if entry.options.durability != "ephemeral":  # what was deleted stays deleted
        known = (old.marks, old.marks_end) if old is not None else None
        marked = known or newest(context.files, folder)
    try:
        page.store(
            State(
                flags=state_format.CLEAN, generation=0, topic=entry.id, shard=number,
                epoch=entry.epoch, ceiling=following,
                segment=active.header.segment if active is not None else 0,
                end_position=active.end if active is not None else 0, end_offset=following,
                earliest=old.earliest if old is not None else 0,
                losses=old.losses if old is not None else (),
                boot=context.boot, store=context.store, marks=marked[0], marks_end=marked[1],
            )
        )  # fmt: skip
    finally:
        page.close()
    tidy_marks(context.files, folder, *marked, owner)
