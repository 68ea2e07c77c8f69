"""Recovery: a directory, as a crash left it, into a state to go on from.

Read `recover_shard` from top to bottom; what it may decide is the table `CASES`, one label a
decision, and tests/test_recovery.py has a test for each label. Three endings are never blurred:

    clean      nothing to do
    torn       a crash left it: cut at the last whole batch, and reported
    corrupt    no crash can have left it: kept in place, reported, refused to whoever reads it

Rules. Damaged metadata never deletes data. What is not understood is moved to quarantine/, not
unlinked. Everything that is cut or refused is named with file, position, offsets and reason.
Recovering twice is the same as recovering once, and so is recovering after a recovery that crashed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from esker.engine.context import Context
from esker.engine.shard import is_clean, list_segments, shard_folder
from esker.errors import Corruption, FormatTooNew
from esker.format import catalog as catalog_format
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.catalog import Catalog, TopicEntry
from esker.format.journal import Entry
from esker.format.segment import SegmentHeader
from esker.format.state import State
from esker.options import RESERVE_OFFSETS
from esker.storage import journal, scan
from esker.storage import segment as storage
from esker.storage.catalog import CatalogFile
from esker.storage.counters import Counters
from esker.storage.files import Files, Holder, base_name, join
from esker.storage.segment import LogSegment, SealedSegment
from esker.storage.state import StateFile

CASES: Final[dict[str, str]] = {
    "torn_tail": "a log ends inside a batch: cut at the last whole one",
    "torn_journal": "a journal ends inside an entry: entries before it are replayed",
    "redone": "a segment lacked bytes that the journal had: written again",
    "corrupt_frame": "damage below what was durable: left in place, readers are refused",
    "corrupt_header": "a log whose header cannot be read: moved to quarantine",
    "corrupt_journal": "a journal is damaged below what was durable: the rest is replayed",
    "corrupt_sealed": "a sealed segment cannot be read but its log is there: the log is used",
    "missing_segment": "a segment is missing between others: readers are refused there",
    "lost_tail": "offsets were issued whose records the machine lost: a gap, never issued again",
    "later_log_set_aside": "a log behind a lost tail: moved to quarantine, so that no hole remains",
    "unfinished_seal": "a crash during sealing: finished, or done again",
    "unfinished_roll": "a crash while a new log was made: the empty log is removed",
    "unfinished_checkpoint": "a journal whose entries are all in their segments: dropped",
    "damaged_state": "a shard's state page cannot be read: rebuilt from its segments",
    "damaged_counters": "a counters page cannot be read: counts from zero",
    "damaged_catalog": "a catalog generation cannot be read: the one before it, or the segments",
    "stranger": "a file that is not ours: moved to quarantine",
    "unrecovered": "left for the next writer: another process holds it, or the store is read-only",
}  # fmt: skip

STATE_LOST_JUMP: Final = RESERVE_OFFSETS * 128  # above every ceiling that can have been lost


class Finding(msgspec.Struct, frozen=True):
    """One thing that recovery saw and did."""

    label: str
    path: str
    reason: str
    topic: str = ""
    shard: int = 0
    position: int = 0
    first: int | None = None  # offsets concerned, where there are any
    last: int | None = None

    def __str__(self) -> str:
        where = f"{self.path} at byte {self.position}" if self.position else self.path
        offsets = f", offsets {self.first}..{self.last}" if self.first is not None else ""
        owner = f"topic {self.topic!r} shard {self.shard}: " if self.topic else ""
        return f"{self.label}: {owner}{self.reason}; {CASES[self.label]} ({where}{offsets})"


class Recovery(msgspec.Struct):
    """What was found when the store was opened, in order. Empty after a clean close."""

    findings: list[Finding] = []
    shards: int = 0  # how many had to be recovered
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def labels(self) -> list[str]:
        return [finding.label for finding in self.findings]

    def __str__(self) -> str:
        if self.clean:
            return "clean: nothing to recover"
        head = f"{len(self.findings)} findings in {self.shards} shards, {self.seconds:.3f} s"
        return "\n".join([head, *(f"  {finding}" for finding in self.findings)])


class Say(Protocol):
    """Adds a finding about the shard at hand."""

    def __call__(
        self, label: str, path: str, reason: str, position: int = 0,
        first: int | None = None, last: int | None = None,
    ) -> None: ...  # fmt: skip


# ---- the store -------------------------------------------------------------------------------


def recover_store(context: Context, catalog: CatalogFile) -> Recovery:
    """Recover every shard that needs it and that no living process writes."""
    started = context.clock.monotonic()
    report = Recovery()
    files, root = context.files, context.root
    recover_catalog(context, catalog, report)
    dead_possible = any(names.parse_journal(name) for name in files.list(join(root, names.JOURNALS)))
    unclean = list(_unclean(context, catalog))
    if not unclean and not dead_possible:
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
            state = StateFile(context.files, folder)
            ephemeral = entry.options.durability == "ephemeral"
            state.load()
            whole = is_clean(context.files, folder, state.state, ephemeral=ephemeral)
            if not whole or state.damage:
                yield entry, number


def _recover_all(context: Context, catalog: CatalogFile, report: Recovery) -> None:
    files = context.files
    dead = journal.dead_journals(files, join(context.root, names.JOURNALS), context.store)
    redo: dict[tuple[int, int], list[tuple[Entry, bytes]]] = {}
    for item in dead:
        for logged, data in item.entries:
            redo.setdefault((logged.topic, logged.shard), []).append((logged, data))
        if item.torn is not None:
            report.findings.append(
                Finding("torn_journal", item.path, item.torn[1], position=item.torn[0])
            )
        report.findings.extend(
            Finding("corrupt_journal", item.path, reason, position=position)
            for position, reason in item.corrupt
        )
    wanted = {(entry.id, number) for entry, number in _unclean(context, catalog)} | set(redo)
    for entry in catalog.catalog.topics:
        for number in range(entry.options.shards):
            if (entry.id, number) not in wanted:
                continue
            folder = shard_folder(context.root, entry.id, number)
            lock = files.lock(join(folder, names.LOCK), context.note)
            if isinstance(lock, Holder):
                continue  # its writer recovered it, under the lock we hold now, before it went on
            try:
                recover_shard(context, entry, number, redo.get((entry.id, number), []), report)
                report.shards += 1
            finally:
                lock.release()
    for item in dead:
        if item.corrupt or (item.torn is not None and item.torn[0] == 0 and not item.entries):
            quarantine(context, item.path, "journal")
        else:
            if not any(finding.label == "redone" for finding in report.findings):
                report.findings.append(
                    Finding("unfinished_checkpoint", item.path,
                            f"{len(item.entries)} entries of a process that is gone")
                )  # fmt: skip
            journal.forget(files, item)


def recover_catalog(context: Context, catalog: CatalogFile, report: Recovery) -> None:
    """Names and options: the newest whole catalog, completed from the segments themselves."""
    whole = catalog.load()
    for path, reason in catalog.damage:
        report.findings.append(Finding("damaged_catalog", path, reason))
    if whole and not catalog.damage:
        return
    known = {entry.id for entry in catalog.catalog.topics}
    found = [entry for entry in topics_on_disk(context) if entry.id not in known]
    if context.read_only:
        merged = (*catalog.catalog.topics, *found)
        catalog.catalog = Catalog(max([0, *(e.id for e in merged)]) + 1, merged)
        return

    def complete(current: Catalog) -> Catalog:
        merged = (*current.topics, *found)
        next_id = max([current.next_id - 1, *(entry.id for entry in merged)]) + 1
        return Catalog(next_id, merged)

    catalog.change(complete, context.note)
    if catalog.generation in catalog.generations():
        for path, _ in catalog.damage:
            if context.files.kind(path):
                quarantine(context, path, "catalog")


def topics_on_disk(context: Context) -> list[TopicEntry]:
    """Topics as the CONFIG frames of their segments name them."""
    found: dict[int, TopicEntry] = {}
    files, top = context.files, join(context.root, names.TOPICS)
    for name in sorted(files.list(top)):
        topic_id = names.parse_number(name)
        if topic_id is None:
            continue
        for shard_name in sorted(files.list(join(top, name))):
            folder = join(top, name, shard_name)
            for segment in list_segments(files, folder):
                entry = read_config(
                    files, join(folder, names.segment(*segment[:2], sealed=segment.sealed))
                )
                if entry is not None and entry.id == topic_id:
                    found[topic_id] = entry  # the newest segment has the newest options
    return list(found.values())


def read_config(files: Files, path: str) -> TopicEntry | None:
    """The topic that a segment says it belongs to."""
    file, header = storage.open_log(files, path, "r")
    try:
        if isinstance(header, str):
            return None
        position = segment_format.HEADER_SIZE
        head = frame.decode_header(
            file.read(position, frame.HEADER_SIZE), 0, position, header.salt
        )
        if isinstance(head, frame.Damage) or head.kind != frame.CONFIG:
            return None
        body = file.read(position + frame.HEADER_SIZE, head.body_size)
        if frame.body_damage(head, body, header.salt) is not None:
            return None
        entry = catalog_format.decode_config(body)
        return None if isinstance(entry, str) else entry
    finally:
        file.close()


# ---- one shard -------------------------------------------------------------------------------


def recover_shard(
    context: Context, entry: TopicEntry, number: int, redo: list[tuple[Entry, bytes]],
    report: Recovery,
) -> None:  # fmt: skip
    """Bring one shard in order. The caller holds its writer lock and the recovery lock."""
    files, folder = context.files, shard_folder(context.root, entry.id, number)

    def say(label: str, path: str, reason: str, position: int = 0,
            first: int | None = None, last: int | None = None) -> None:  # fmt: skip
        report.findings.append(
            Finding(label, path, reason, entry.name, number, position, first, last)
        )

    # 1. The state page, and the machine's boot: did the machine stop, or only the process?
    page = StateFile(files, folder)
    state = page.load()
    if page.damage:
        say("damaged_state", join(folder, names.STATE), page.damage)
    same_boot = state is not None and state.boot == context.boot and any(context.boot)
    counters = Counters.open(files, folder, writable=True)
    if counters is not None and counters.damaged:
        say("damaged_counters", join(folder, names.COUNTERS), "not a counters page")
    if entry.options.durability == "ephemeral":
        if state is not None:
            _store(page, context, entry, number, state, None, max(state.ceiling, state.end_offset))
        return

    # 2. Files: what is ours, what is a leftover, what is a stranger.
    _tidy(context, folder, say)
    _redo(files, folder, redo, say)
    sealed = [name for name in list_segments(files, folder) if name.sealed]

    # 3. Logs, oldest first: walk, cut, and stop at the first that lost its tail.
    logs = _logs(context, folder, state, same_boot, say)

    # 4. Segments that should be there and are not.
    end = _check_sequence(files, folder, sealed, logs, state, say)

    # 5. Where to go on: behind the end, or behind every offset that may have been issued.
    following, gap = _next_offset(entry, state, bool(page.damage), same_boot, end)
    if following > end:
        say("lost_tail", folder, segment_format.GAP_REASONS[gap], 0, end, following - 1)

    # 6. Seal all logs but the last, so that one log is left, as after a clean close.
    while logs and (len(logs) > 1 or logs[0].damaged or following > end):
        log = logs.pop(0)
        if log.next_row == 0 and not log.damaged and not logs and following > end:
            _remove_log(files, log)
            continue
        made = log.seal(files, merging=False)
        sealed.append(made.name)
        log.close()
    active = logs[0] if logs else None
    if following > end:
        active = _gap_log(context, entry, number, folder, sealed, end, following, gap)
    if active is not None:
        active.sync(active.end)
    files.sync_dir(folder)

    # 7. Say that all is well.
    _store(page, context, entry, number, state, active, following)
    if counters is not None:
        counters.add("recoveries")
        counters.publish(
            following, active.header.segment if active else 0, active.end if active else 0,
            following,
        )  # fmt: skip
        counters.add("segments_generation")
    if active is not None:
        active.close()


def _tidy(context: Context, folder: str, say: Say) -> None:
    files = context.files
    ours = {names.STATE, names.COUNTERS, names.LOCK}
    for name in sorted(files.list(folder)):
        path = join(folder, name)
        if name.endswith(names.TEMPORARY) and files.kind(path) == "file":
            files.unlink(path)
            if ".seg" in name:
                say("unfinished_seal", path, "a half-made sealed segment")
            continue
        segment = names.parse_segment(name)
        if segment is None and name not in ours:
            say("stranger", path, "not a file of Esker's")
            quarantine(context, path, "stranger")
        elif segment is not None and segment.sealed:
            log = join(folder, names.segment(*segment[:2], sealed=False))
            if files.kind(log):
                _finish_seal(context, path, log, segment, say)


def _finish_seal(
    context: Context, path: str, log: str, segment: names.SegmentName, say: Say
) -> None:
    """Both the log and the sealed file are there: the sealed one, if it is whole."""
    try:
        data = SealedSegment(path, segment).attach(context.maps).data()
        whole = storage.file_hash_matches(data)
    except (Corruption, FormatTooNew, OSError):
        whole = False
    context.maps.drop(path)
    if whole:
        say("unfinished_seal", log, "the sealed segment is complete, its log was still there")
        context.files.unlink(log)
    else:
        say("corrupt_sealed", path, "the sealed segment is damaged")
        quarantine(context, path, "sealed")


def _redo(files: Files, folder: str, redo: list[tuple[Entry, bytes]], say: Say) -> None:
    """Write journal entries into the logs they belong to. Idempotent."""
    by_segment = {name.segment: name for name in list_segments(files, folder)}
    for entry, data in redo:
        name = by_segment.get(entry.segment)
        if name is not None and name.sealed:
            continue  # sealed after the entry was written: it has everything
        if name is None:
            header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
            if entry.position != 0 or isinstance(header, str):
                continue  # an older segment that has been dropped since
            name = names.SegmentName(header.segment, header.base, False)
            files.open(join(folder, names.segment(*name[:2], sealed=False)), "create").close()
            by_segment[entry.segment] = name
        path = join(folder, names.segment(*name[:2], sealed=False))
        file = files.open(path, "rw")
        try:
            if file.read(entry.position, entry.size) != data:
                file.write(entry.position, [data])
                say("redone", path, f"{entry.size} bytes from the journal", entry.position)
            file.sync()
        finally:
            file.close()
    if redo:
        files.sync_dir(folder)


def _logs(
    context: Context, folder: str, state: State | None, same_boot: bool, say: Say
) -> list[LogSegment]:
    files = context.files
    found = list_segments(files, folder)
    last_sealed = max((name.segment for name in found if name.sealed), default=0)
    pending = [name for name in found if not name.sealed]
    headers = {name: _header(files, folder, name) for name in pending}
    logs: list[LogSegment] = []
    for index, name in enumerate(pending):
        path = join(folder, names.segment(*name[:2], sealed=False))
        header = headers[name]
        if isinstance(header, str):
            _bad_header(context, path, header, state, name, say)
            continue
        file, _ = storage.open_log(files, path)
        log = LogSegment(header, file)
        seen = _without_footer(scan.walk(file, header.salt, log.end))
        proven = 0
        if state is not None and state.segment == name.segment:
            proven = state.end_position if state.clean else 0
        if name.segment < last_sealed:
            proven = seen.size
        kept = scan.verdict(seen, proven)
        base = header.base
        follower = next(
            (h for n in pending[index + 1 :] if not isinstance(h := headers[n], str)), None
        )
        if follower is not None:
            kept = _not_beyond(kept, follower.previous_end - base)
        for flaw in kept.corrupt:
            first, last = _flaw_rows(kept, flaw)
            say("corrupt_frame", path, flaw.reason, flaw.position, base + first, base + last)
        if kept.torn is not None:
            rows = kept.dropped
            say("torn_tail", path, kept.torn.reason, kept.end,
                base + kept.rows if rows else None, base + kept.rows + rows - 1 if rows else None)  # fmt: skip
        log.adopt(kept)
        _settle(log, seen.watermark if same_boot else log.end, kept)
        logs.append(log)
        if follower is not None and base + kept.rows < follower.previous_end and not kept.corrupt:
            for later in pending[index + 1 :]:
                lost = join(folder, names.segment(*later[:2], sealed=False))
                say("later_log_set_aside", lost, "the log before it lost its tail", 0, later.base)
                quarantine(context, lost, "log")
            break
    return logs


def _header(files: Files, folder: str, name: names.SegmentName) -> SegmentHeader | str:
    file, header = storage.open_log(files, join(folder, names.segment(*name[:2], sealed=False)), "r")
    file.close()
    if isinstance(header, str):
        if header.startswith("version"):
            raise FormatTooNew(f"{file.path} was written by a later Esker ({header})")
        return header
    if (header.segment, header.base) != name[:2]:
        return "a segment under another segment's name"
    return header


def _bad_header(
    context: Context, path: str, reason: str, state: State | None, name: names.SegmentName, say: Say
) -> None:
    file = context.files.open(path, "r")
    try:
        empty = not file.read(0, 4096).strip(b"\0")
    finally:
        file.close()
    known = state is not None and state.clean and state.segment == name.segment
    if empty and not known:
        say("unfinished_roll", path, "a new log without a header")
        context.files.unlink(path)
    else:
        say("corrupt_header", path, reason)
        quarantine(context, path, "log")


def _without_footer(seen: scan.Walk) -> scan.Walk:
    """A log that was being sealed ends where its footer begins."""
    for index, (position, header) in enumerate(seen.frames):
        if header.kind == frame.FOOTER:
            return seen._replace(
                frames=seen.frames[:index],
                flaws=[flaw for flaw in seen.flaws if flaw.position < position]
                + [scan.Flaw(position, seen.size, "a footer that was not finished")],
                end=position,
            )
    return seen


def _not_beyond(kept: scan.Verdict, rows: int) -> scan.Verdict:
    """The next log says where this one ended; anything behind that was never acknowledged."""
    if kept.rows <= rows:
        return kept
    frames = [item for item in kept.frames if item[1].first_row < rows or not item[1].count]
    while frames and frames[-1][1].first_row >= rows:
        frames.pop()
    end = frames[-1][0] + frames[-1][1].size if frames else segment_format.HEADER_SIZE
    torn = scan.Flaw(end, end, "frames behind the end that the next log names")
    return kept._replace(frames=frames, rows=rows, end=end, torn=torn, dropped=kept.rows - rows)


def _flaw_rows(kept: scan.Verdict, flaw: scan.Flaw) -> tuple[int, int]:
    if flaw.header is not None:
        return flaw.header.first_row, flaw.header.first_row + flaw.header.count - 1
    before = [h for position, h in kept.frames if position < flaw.position]
    after = [h for position, h in kept.frames if position > flaw.position]
    first = before[-1].first_row + before[-1].count if before else 0
    last = after[0].first_row - 1 if after else max(first, kept.rows - 1)
    return first, last


def _settle(log: LogSegment, proven: int, kept: scan.Verdict) -> None:
    """Cut the log to its end, and make sure that what is kept is on the disk.

    After a failed sync the kernel may hold pages that it believes to be written and that are not.
    So where the machine has not restarted, everything above the proven part is written once more:
    that makes the pages dirty again, and the sync below means what it says.
    """
    if log.file.size() > log.end and not kept.corrupt:
        log.file.truncate(log.end)
    position = min(proven, log.end)
    while position < log.end:
        data = log.file.read(position, min(1 << 22, log.end - position))
        if not data:
            break
        log.file.write(position, [data])
        position += len(data)
    log.sync(log.end)


def _check_sequence(
    files: Files, folder: str, sealed: list[names.SegmentName], logs: list[LogSegment],
    state: State | None, say: Say,
) -> int:  # fmt: skip
    """Every number from the first to the last must be there. Returns the end offset."""
    numbers = [name.segment for name in sealed] + [log.header.segment for log in logs]
    bases = {name.segment: name.base for name in sealed}
    bases |= {log.header.segment: log.header.base for log in logs}
    for before, after in zip(numbers, numbers[1:], strict=False):
        if after != before + 1:
            say("missing_segment", folder, f"segments {before + 1} to {after - 1} are not there",
                0, None, None)  # fmt: skip
    if logs:
        return logs[-1].header.base + logs[-1].next_row
    if sealed:
        return _sealed_end(files, folder, sealed[-1], state)
    return state.earliest if state is not None and state.clean else 0


def _sealed_end(
    files: Files, folder: str, name: names.SegmentName, state: State | None
) -> int:
    path = join(folder, names.segment(*name[:2], sealed=True))
    file = files.open(path, "r")
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    header = segment_format.decode_header(data[: segment_format.HEADER_SIZE])
    footer = "" if isinstance(header, str) else storage.read_footer(data, header.salt)
    if isinstance(footer, str):
        return max(name.base, state.end_offset if state is not None else 0)
    return name.base + footer.records


def _next_offset(
    entry: TopicEntry, state: State | None, damaged: bool, same_boot: bool, end: int
) -> tuple[int, int]:
    weak = entry.options.durability == "disk"
    if state is None:
        if weak and (damaged or end > 0):
            return end + STATE_LOST_JUMP, segment_format.GAP_STATE_LOST
        return end, 0
    if state.clean:
        return max(end, state.end_offset), segment_format.GAP_CORRUPT
    if weak and not same_boot:
        return max(end, state.ceiling), segment_format.GAP_LOST_TAIL
    return max(end, state.end_offset), segment_format.GAP_LOST_TAIL


def _remove_log(files: Files, log: LogSegment) -> None:
    log.close()
    files.unlink(log.path)


def _gap_log(
    context: Context, entry: TopicEntry, number: int, folder: str,
    sealed: list[names.SegmentName], end: int, following: int, gap: int,
) -> LogSegment:  # fmt: skip
    """A new log behind the gap. Its header remembers the gap for every reader to come."""
    chain = salt = high = 0
    segment = 1
    if sealed:
        last = SealedSegment(
            join(folder, names.segment(*sealed[-1][:2], sealed=True)), sealed[-1]
        ).attach(context.maps)
        segment = sealed[-1].segment + 1
        try:
            chain, salt = last.footer.chain, last.header.salt
            high = max(last.header.previous_high, last.footer.max_timestamp)
        except Corruption:
            pass
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
    page.store(
        State(
            flags=state_format.CLEAN, generation=0, topic=entry.id, shard=number,
            epoch=entry.epoch, ceiling=max(following, old.ceiling if old is not None else 0),
            segment=active.header.segment if active is not None else 0,
            end_position=active.end if active is not None else 0, end_offset=following,
            earliest=old.earliest if old is not None else 0,
            evicted=old.evicted if old is not None else 0,
            boot=context.boot, store=context.store,
        )
    )  # fmt: skip
    page.close()


def quarantine(context: Context, path: str, why: str) -> str:
    """Move something out of the way without deleting it."""
    files = context.files
    folder = join(context.root, names.QUARANTINE)
    files.make_dir(folder)
    inside = path[len(context.root) :].strip("/").replace("/", "-") or base_name(path)
    target = join(folder, f"{inside}.{why}")
    serial = 1
    while files.kind(target):
        serial += 1
        target = join(folder, f"{inside}.{why}.{serial}")
    files.rename(path, target)
    files.sync_dir(folder)
    files.sync_dir(path.rpartition("/")[0])
    return target
