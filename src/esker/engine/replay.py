"""Journals of processes that died: what they say is written into the logs they speak of.

    gather     reads every dead journal, sorts its entries by shard, reports what is damaged
    redo       writes the entries of one shard into its logs
    dismiss    removes a journal that has been replayed, or sets it aside where it is damaged

An entry is physical ("these bytes belong at this position of that segment"), so replaying twice is
replaying once. A journal may also come back after it was deleted, when power is lost before the
deletion is durable; its entries are then either in the logs, word for word, or speak of logs that
are no more, and `redo` tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from esker.engine import survey
from esker.engine.context import Context
from esker.engine.findings import Finding, Recovery, Say
from esker.engine.layout import list_segments
from esker.engine.quarantine import quarantine
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.format.journal import Entry
from esker.format.segment import SegmentHeader
from esker.format.state import State
from esker.storage import journal
from esker.storage.files import File, Files, content_of, join


class Replay(NamedTuple):
    """A journal entry that has yet to be held against its segment."""

    entry: Entry
    data: bytes
    journal: str  # its path


Replays = dict[tuple[int, int], list[Replay]]
"""What has to be replayed, by topic and shard."""


def gather(context: Context, report: Recovery) -> tuple[list[journal.DeadJournal], Replays]:
    """Every journal that no living process owns, and its entries by shard."""
    folder = join(context.root, names.JOURNALS)
    dead = journal.dead_journals(context.files, folder, context.store)
    replays: Replays = {}
    for item in dead:
        for entry, data in item.entries:
            owner = (entry.topic, entry.shard)
            replays.setdefault(owner, []).append(Replay(entry, data, item.path))
        if item.torn is not None:
            position, reason = item.torn
            report.findings.append(Finding("torn_journal", item.path, reason, position=position))
        report.findings.extend(
            Finding("corrupt_journal", item.path, reason, position=position)
            for position, reason in item.corrupt
        )
    return dead, replays


def redo(
    files: Files, folder: str, owner: survey.Owner, replays: list[Replay], state: State | None,
    say: Say,
) -> tuple[dict[int, int], set[str]]:  # fmt: skip
    """Write journal entries into the logs they belong to; any number of times.

    Bytes that are there already are written again: after a failed sync the kernel may show pages
    that it never wrote, and the sync below would not write them either. Returns up to where each
    log is proven, and the journals that had something a log lacked.
    """
    if not replays:
        return {}, set()
    by_segment = {name.segment: name for name in list_segments(files, folder)}
    gone = _deleted(by_segment.values(), replays, state)
    touched: dict[str, File] = {}
    proven: dict[int, int] = {}
    needed: set[str] = set()
    try:
        for entry, data, path_of_journal in replays:
            name = by_segment.get(entry.segment)
            if name is None:
                header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
                if entry.position or entry.segment in gone or isinstance(header, str):
                    continue  # an older segment that has been deleted since
                name = names.SegmentName(header.segment, header.base, False)
                files.open(join(folder, names.segment(*name[:2], sealed=False)), "create").close()
                by_segment[entry.segment] = name
            if name.sealed:
                continue  # sealed after the entry was written: it has everything
            path = join(folder, names.segment(*name[:2], sealed=False))
            if path not in touched:
                touched[path] = files.open(path, "rw")
            file = touched[path]
            if not _belongs(file, name, owner, entry, data):
                continue
            if file.read(entry.position, entry.size) != data:
                say("redone", path, f"{entry.size} bytes from the journal", entry.position)
                needed.add(path_of_journal)
            file.write(entry.position, [data])
            end = entry.position + entry.size
            proven[entry.segment] = max(proven.get(entry.segment, 0), end)
        for file in touched.values():
            file.sync()
    finally:
        for file in touched.values():
            file.close()
    if touched:
        files.sync_dir(folder)
    return proven, needed


def _deleted(
    there: Iterable[names.SegmentName], replays: list[Replay], state: State | None
) -> set[int]:
    """The segments of which every record was deleted, as far as the journal can tell.

    An entry says how far its shard had come, not its segment; so a segment is also known to end
    where a later one begins that has records: one that was sealed, or is in the journal itself.
    """
    if state is None or not state.earliest:
        return set()
    reached: dict[int, int] = {}
    begins = [(name.segment, name.base) for name in there if name.sealed]
    for entry, data, _ in replays:
        reached[entry.segment] = max(reached.get(entry.segment, 0), entry.next_offset)
        header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
        if not entry.position and not isinstance(header, str):
            begins.append((header.segment, header.base))
    floor = state.earliest
    return {
        number
        for number, end in reached.items()
        if min([end, *(base for later, base in begins if later > number)]) <= floor
    }


def _belongs(
    file: File, name: names.SegmentName, owner: survey.Owner, entry: Entry, data: bytes
) -> bool:
    """Whether an entry speaks of this log, and not of one that had the same number before it."""
    there = segment_format.decode_header(file.read(0, segment_format.HEADER_SIZE))
    if isinstance(there, SegmentHeader) and survey.misplaced(there, name, owner):
        there = "left by another file in the same place of the disk"
    if entry.position == 0:
        header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
        if isinstance(header, str) or survey.misplaced(header, name, owner):
            return False
        return isinstance(there, str) or there.created <= header.created
    if isinstance(there, str):
        return False
    head = frame.decode_header(data[: frame.HEADER_SIZE], 0, entry.position, there.salt)
    return isinstance(head, frame.Header)


def dismiss(
    context: Context, dead: journal.DeadJournal, report: Recovery, *, needed: bool,
    orphans: set[tuple[int, int]],
) -> None:  # fmt: skip
    """All that a journal can tell is in the segments, durably: it is not needed any more."""
    unread = dead.torn is not None and dead.torn[0] == 0
    for topic, shard in sorted(orphans):
        reason = f"entries of topic {topic} shard {shard}, which is not there"
        report.findings.append(Finding("corrupt_journal", dead.path, reason))
    if dead.corrupt or orphans or (unread and _holds_anything(context.files, dead.path)):
        quarantine(context, dead.path, "journal")
        return
    if not needed and not unread:
        reason = f"{len(dead.entries)} entries of a process that is gone"
        report.findings.append(Finding("unfinished_checkpoint", dead.path, reason))
    journal.forget(context.files, dead)


def _holds_anything(files: Files, path: str) -> bool:
    return bool(content_of(files, path).strip(b"\0"))
