"""`esker.verify`: is everything there, and is it what was written?

    found = esker.verify("data")
    found.ok            no error; warnings are what a crash leaves and opening sets right
    found.problems      each with kind, severity, path, position, offsets, reason and advice
    print(found)

It opens no store, takes no lock, changes nothing, and works beside a living writer, whose active
log it checks up to what has been published. It never raises for damage: everything that is wrong is
an entry of the report, and the check goes on behind it. It raises `NotAStore` where there is no
store, and `FormatTooNew` where a later Esker wrote it.

Every file is looked at: identity, catalogs, journals, commits with what they name, and in each
shard the state page, the counters page, the file of deletions and all segments, frame by frame (see
`examine`). With deep=False only the headers of segments are read: that finds missing and exchanged
files and broken chains in little time, and no damage inside of frames.

Segments in a cold store are fetched, one by one, and looked at like the others; with deep=False it
is only asked whether they are there. A cold store that does not answer is told as `unreached`: that
is no damage, but the store is not ok either.

What a flipped bit can hide in, because nothing covers it: lock files (labels for people), the
counters page (counts, never data), and bits that are not used at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from os import PathLike

from esker.clock import SYSTEM_CLOCK
from esker.errors import FormatTooNew, NotAStore, StorageError
from esker.format import catalog as catalog_format
from esker.format import commit as commit_format
from esker.format import journal as journal_format
from esker.format import names
from esker.format import routes as routes_format
from esker.format import segment as segment_format
from esker.format import state as state_format
from esker.format.catalog import Catalog, TopicEntry
from esker.format.checksum import checksum, fingerprint
from esker.format.commit import Ticket
from esker.format.frame import padded
from esker.format.journal import Entry, JournalHeader
from esker.format.state import State
from esker.options import JOURNAL_BYTES_MIN, TopicOptions
from esker.storage.catalog import unfinished
from esker.storage.files import SYSTEM_FILES, Files, absolute, join
from esker.upkeep.inspection import Inspection, Look, config_of, inspect_shard
from esker.upkeep.leases import inspect_queue
from esker.upkeep.report import KINDS, Problem, Severity, Verification
from esker.upkeep.stubs import Cold

Progress = Callable[[int, int], None]

_IGNORED = {"lost+found"}  # of a file system whose root the store is


def verify(
    path: str | PathLike[str],
    *,
    files: Files = SYSTEM_FILES,
    deep: bool = True,
    progress: Progress | None = None,
    cold: str | PathLike[str] = "",
) -> Verification:
    """Check a store without opening or changing it; see this module's text.

    `progress` is called with the bytes checked so far and the bytes there are. `cold` says where
    segments lie that were moved, if they are not where they were put.
    """
    started = SYSTEM_CLOCK.monotonic()
    root = absolute(path)
    check = Check(files, root, deep, progress, cold=Cold(files, str(cold)))
    check.run()
    check.report.seconds = SYSTEM_CLOCK.monotonic() - started
    return check.report


def check_store(files: Files, root: str, cold: Cold) -> Check:
    """As `verify`, with everything that was learned on the way; for `repair`."""
    started = SYSTEM_CLOCK.monotonic()
    check = Check(files, root, True, None, cold=cold)
    check.run()
    check.report.seconds = SYSTEM_CLOCK.monotonic() - started
    return check


class Check:
    """One run over a store."""

    def __init__(
        self, files: Files, root: str, deep: bool, progress: Progress | None, *,
        look: Look | None = None, only: Collection[str] = (), cold: Cold | None = None,
    ) -> None:  # fmt: skip
        self.cold = cold or Cold(files)
        self.look = look  # who examines the segments; None: whoever runs this
        self.only = only  # names of topics; none: all of them
        self.files = files
        self.root = root
        self.deep = deep
        self.report = Verification(root, deep=deep)
        self.store: bytes | None = None  # the store's id
        self.catalog = Catalog()
        self.catalog_whole = True  # the newest generation can be read, or there is none to read
        self.shards: list[Inspection] = []
        self.orphans: list[TopicEntry] = []  # topics on disk that no catalog lists
        self.living = False  # whether somebody writes a journal
        self.redo: dict[tuple[int, int], int] = {}  # how far journals go, by topic and shard
        self._progress = progress
        self._done = 0
        self._total = 0

    def run(self) -> None:
        self.identity()
        if self._progress is not None:
            self._total = sum(self._sizes())
        self.catalogs()
        self.topics()
        self.journals()
        self.lost_ends()
        self.commits()
        self.routes()
        self.root_names()

    def say(
        self, kind: str, path: str, reason: str, position: int | None = None, *,
        severity: Severity | None = None,
    ) -> None:  # fmt: skip
        self.report.problems.append(
            Problem(kind, severity or KINDS[kind][0], path, reason, position=position)
        )

    def _advance(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def _sizes(self) -> Iterator[int]:
        for folder in shard_folders(self.files, self.root):
            for name in self.files.list(folder):
                if names.parse_segment(name) is not None:
                    yield self._size(join(folder, name))

    def _size(self, path: str) -> int:
        try:
            file = self.files.open(path, "r")
        except StorageError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _read(self, path: str, limit: int) -> bytes | None:
        """A small file's bytes; None, and a problem, when the OS refuses them."""
        try:
            file = self.files.open(path, "r")
            try:
                data = file.read(0, limit)
            finally:
                file.close()
        except StorageError as problem:
            self.say("unreadable", path, str(problem))
            return None
        self.report.files += 1
        self.report.bytes += len(data)
        return data

    # -- identity --

    def identity(self) -> None:
        files, root = self.files, self.root
        kind = files.kind(root)
        if kind == "link":
            kind = files.kind(join(root, "."))
        if kind != "dir":
            what = f"{root} is not a directory" if kind else f"there is no Esker store at {root}"
            raise NotAStore(f"{what}; give the directory of a store")
        path = join(root, names.IDENTITY)
        if not files.kind(path):
            if (half := unfinished(root)) is not None:  # and nobody may make it look like one
                raise half
            self.store = id_of_store(files, root)
            if self.store is None:
                raise NotAStore(f"there is no Esker store at {root}: it has no {names.IDENTITY}")
            self.say("identity", path, "the identity file is not there")
            return
        data = self._read(path, catalog_format.IDENTITY_SIZE + 1)
        found = catalog_format.decode_identity(data) if data is not None else "cannot be read"
        if isinstance(found, tuple):
            self.store = found[0]
            if len(data or b"") > catalog_format.IDENTITY_SIZE:
                self.say("trailing", path, "bytes behind its end", catalog_format.IDENTITY_SIZE)
            return
        if found.startswith("version"):
            raise FormatTooNew(
                f"{root} was written by a later Esker (store format {found}); nothing was "
                "touched. Install a newer esker to check it."
            )
        self.store = id_of_store(files, root)
        self.say("identity", path, found, 0)

    # -- catalogs --

    def catalogs(self) -> None:
        found = (names.parse_catalog(name) for name in self.files.list(self.root))
        generations = sorted((g for g in found if g is not None), reverse=True)
        chosen = 0
        for generation in generations:
            path = join(self.root, names.catalog(generation))
            reason = self._catalog(path, generation, chosen)
            if not reason:
                chosen = chosen or generation
            elif reason.startswith("version"):
                self.say("newer", path, f"catalog {reason}", 4)
            else:
                self.say("catalog", path, reason, 0, severity="warning" if chosen else "error")
        self.catalog_whole = not generations or chosen == generations[0]

    def _catalog(self, path: str, generation: int, chosen: int) -> str:
        data = self._read(path, catalog_format.CATALOG_BYTES_MAX)
        if data is None:
            return "it cannot be read"
        store = self.store
        if store is None:
            store = bytes(data[24:40])
        decoded = catalog_format.decode_catalog(data, store)
        if isinstance(decoded, str):
            return decoded
        catalog, written = decoded
        size = catalog_format.CATALOG_HEADER_SIZE + int.from_bytes(data[16:20], "little")
        if written != generation:
            return f"it is generation {written} by its own account"
        if not chosen:
            self.catalog = catalog
        if len(data) > size:
            self.say("trailing", path, "bytes behind its end", size)
        return ""

    # -- topics and shards --

    def topics(self) -> None:
        top = join(self.root, names.TOPICS)
        listed = {entry.id: entry for entry in self.catalog.topics}
        there: set[int] = set()
        for name in sorted(self.files.list(top)):
            number = names.parse_number(name)
            if names.parse_deleted(name) is not None:
                self.say("leftover", join(top, name), "a topic that was deleted")
                continue
            if number is None or self.files.kind(join(top, name)) != "dir":
                self.say("stranger", join(top, name), "not a topic's directory")
                continue
            there.add(number)
            if number not in listed:
                self._orphan(join(top, name), number)
        for entry in sorted(listed.values(), key=lambda entry: entry.id):
            if self.only and entry.name not in self.only:
                continue
            self.report.topics += 1
            self._topic(join(top, names.topic(entry.id)), entry)

    def _topic(self, folder: str, entry: TopicEntry) -> None:
        wanted = {names.shard(number): number for number in range(entry.options.shards)}
        for name in sorted(self.files.list(folder)):
            if name in (names.MEMBERS, names.MEMBERS_LOCK, names.MEMBER_LOCKS):
                continue  # who reads in groups: as old as the machine's last start
            if name == names.QUEUE and self.files.kind(join(folder, name)) == "dir":
                self._queue(join(folder, name), entry)
            elif name not in wanted or self.files.kind(join(folder, name)) != "dir":
                self.say("stranger", join(folder, name), "not a shard's directory")
        for name, number in wanted.items():
            path = join(folder, name)
            if self.files.kind(path) != "dir":
                self.report.problems.append(
                    Problem("missing_shard", "error", path, "the shard's directory is not there",
                            entry.name, number)
                )  # fmt: skip
                continue
            self._add(inspect_shard(self.files, path, entry, number, self.store, deep=self.deep,
                                    progress=self._advance, look=self.look,
                                    cold=self.cold))  # fmt: skip

    def _queue(self, folder: str, entry: TopicEntry) -> None:
        def seen(size: int) -> None:
            self.report.files += 1
            self.report.bytes += size

        for said in inspect_queue(self.files, folder, entry, self.store, seen):
            severity: Severity = "error" if said.error else "warning"
            self.report.problems.append(
                Problem(said.kind, severity, said.path, said.reason, entry.name, said.shard,
                        said.position)
            )  # fmt: skip

    def _add(self, found: Inspection) -> None:
        report = self.report
        self.shards.append(found)
        report.problems += found.problems
        report.gaps += found.gaps
        report.shards += 1
        report.files += found.files
        report.bytes += found.bytes
        report.segments += len(found.segments)
        report.frames += sum(seen.frames for seen in found.segments)
        report.records += sum(seen.readable for seen in found.segments)
        report.deleted += found.deleted
        if found.holder is not None and found.holder.pid not in report.writers:
            report.writers.append(found.holder.pid)

    def _orphan(self, folder: str, number: int) -> None:
        """A topic's directory that the catalog does not know."""
        shards = [names.parse_number(name) for name in self.files.list(folder)]
        entry, held = None, False
        for shard in sorted(shard for shard in shards if shard is not None):
            stand_in = TopicEntry(number, "", 1, 0, TopicOptions())
            path = join(folder, names.shard(shard))
            found = inspect_shard(
                self.files, path, stand_in, shard, self.store, deep=False, cold=self.cold
            )
            held = held or bool(found.segments)
            entry = entry or config_of(found)
        if entry is not None and entry.id == number:
            self.orphans.append(entry)
            self.say("orphan_topic", folder, f"topic {entry.name!r} is in no catalog")
            if not self.only or entry.name in self.only:
                self._topic(folder, entry)
        elif held:
            self.say("orphan_topic", folder, "segments of a topic that nothing names")
        else:
            self.say("leftover", folder, "directories of a topic that was not finished")

    # -- journals --

    def journals(self) -> None:
        folder = join(self.root, names.JOURNALS)
        for name in sorted(self.files.list(folder)):
            path = join(folder, name)
            number = names.parse_journal(name)
            if number is None:
                if not (name.endswith(".lock") and name.removesuffix(".lock").isdigit()):
                    self.say("stranger", path, "not a journal")
                continue
            live = self.files.holder(path.removesuffix(".journal") + ".lock") is not None
            self.living = self.living or live
            self._journal(path, live)

    def _journal(self, path: str, live: bool) -> None:
        try:
            data = self._read(path, 1 << 31)
        except StorageError:
            data = None
        if data is None or live:  # a living one changes while we look; recovery alone reads it
            return
        header = journal_format.decode_header(data[: journal_format.HEADER_SIZE])
        if isinstance(header, str):
            if header.startswith("version"):
                self.say("newer", path, f"journal {header}", 8)
            elif data.strip(b"\0"):
                self.say("journal", path, header, 0)
            else:
                self.say("torn_journal", path, "a journal that was being made")
            return
        if self.store is not None and header.store != self.store:
            self.say("journal", path, "a journal of another store", 16)
            return
        if header.mark == journal_format.DROPPED:
            self.say("leftover", path, "a journal that was being deleted")
            return
        if any(header.mark):
            self.say("torn_journal", path, "a mark that nobody writes", journal_format.MARK_AT)
        if len(data) < JOURNAL_BYTES_MIN:  # its size is set before its header is written
            self.say("journal", path, "the journal is shorter than any is made", len(data))
        self._entries(path, data, header)

    def _entries(self, path: str, data: bytes, header: JournalHeader) -> None:
        flaws: list[tuple[int, str]] = []
        position, durable, count = journal_format.HEADER_SIZE, 0, 0
        while position < len(data):
            entry = journal_entry(data, position, header.salt)
            if isinstance(entry, Entry):
                count += 1
                durable = max(durable, entry.synced)
                owner = (entry.topic, entry.shard)
                self.redo[owner] = max(self.redo.get(owner, 0), entry.next_offset)
                size = journal_format.ENTRY_SIZE + entry.size
                if any(data[position + size : position + padded(size)]):
                    self.say("padding", path, "padding that is not zero", position + size)
                position += padded(size)
                continue
            following = next_entry(data, position + 8, header.salt)
            if entry or following < len(data) or data[position:].strip(b"\0"):
                flaws.append((position, entry or "zeros where an entry should be"))
            position = following
        for position, reason in flaws:
            if position < durable:
                self.say("journal", path, reason, position)
            else:
                self.say("torn_journal", path, reason, position)
                break
        if count:
            self.say("pending_journal", path, f"{count} entries of a process that is gone")

    def lost_ends(self) -> None:
        """Records that were durable when the last writer died, and that no file has any more."""
        if self.living:  # its journal changes while we look
            return
        for found in self.shards:
            ends = [seen.next_offset for seen in found.segments[-1:]]
            end = max([0, *ends, self.redo.get((found.entry.id, found.number), 0)])
            kept = found.entry.options.durability != "ephemeral"
            idle = found.holder is None and not found.clean and not found.known_short
            if kept and idle and found.durable > end:
                found.say("missing_segment", found.folder, "the end of the log is not there", None,
                          end, found.durable - 1)  # fmt: skip
                self.report.problems.append(found.problems[-1])

    # -- batches made elsewhere --

    def commits(self) -> None:
        """Commits, and the staged segments they name; what nobody has committed is nothing yet."""
        folder = join(self.root, names.STAGING)
        for name in sorted(self.files.list(folder)):
            path, known = join(folder, name), names.parse_commit(name)
            if known is not None:
                self._commit(path, *known)
            elif name.endswith(names.TEMPORARY):
                self.say("leftover", path, "a commit that was being made")
            elif name != names.LOCK:
                self.say("stranger", path, "not a commit")

    def _commit(self, path: str, writer: str, sequence: int) -> None:
        data = self._read(path, commit_format.HEADER_SIZE + commit_format.BODY_BYTES_MAX)
        if data is None:
            return
        found = commit_format.decode(data, self.store or bytes(data[24:40]))
        if isinstance(found, str):
            kind = "newer" if found.startswith("version") else "commit"
            self.say(kind, path, found, 4 if kind == "newer" else 0)
            return
        if (fingerprint(found.writer), found.sequence) != (writer, sequence):
            self.say("commit", path, "it is another batch's by its own account", 8)
            return
        waiting = []
        for each in found.tickets:
            shard = join(names.topic(each.topic), names.shard(each.shard))
            place = join(self.root, names.TOPICS, shard, each.file)
            if self.files.kind(place):
                waiting.append(place)
                reason = self._staged(place, each)
                if reason:
                    self.say("commit", place, reason, 0)
        if waiting:
            about = f"{len(waiting)} segments of batch {sequence} of {found.writer!r}"
            self.say("pending_attach", path, about + " are to be attached")

    def _staged(self, path: str, ticket: Ticket) -> str:
        """What is wrong with a staged segment that was committed."""
        size, end = self._size(path), ticket.size - segment_format.TRAILER_SIZE
        if size != ticket.size:
            return f"a staged segment of {size} bytes, committed were {ticket.size}"
        if not self.deep:
            return ""
        data = self._read(path, size)
        same = data is None or checksum(data[segment_format.HEADER_SIZE : end]) == ticket.hash
        return "" if same else "a staged segment is not what was committed"

    def routes(self) -> None:
        """The file of routes, if there is one."""
        path = join(self.root, names.ROUTES)
        kind = self.files.kind(path)
        if kind not in ("", "file"):
            self.say("stranger", path, f"a {kind} where the routes should be")
        data = self._read(path, routes_format.BYTES_MAX) if kind == "file" else None
        if data is not None:
            found = routes_format.decode(data, self.store or bytes(data[24:40]))
            if isinstance(found, str):
                newer = found.startswith("version")
                self.say("newer" if newer else "routes", path, found, 4 if newer else 0)

    # -- the rest --

    def root_names(self) -> None:
        ours = {names.IDENTITY, names.CATALOG_LOCK, names.RECOVERY_LOCK, names.JOURNALS,
                names.TOPICS, names.QUARANTINE, names.STAGING, names.SPARK,
                names.PROCESSES, names.ROUTES, names.ROUTES_LOCK, names.ARCHIVE,
        } | _IGNORED  # fmt: skip
        for name in sorted(self.files.list(self.root)):
            path = join(self.root, name)
            if name in ours or name.startswith(".") or names.parse_catalog(name) is not None:
                continue
            if name.endswith(names.TEMPORARY):
                self.say("leftover", path, "a file that was being made")
            else:
                self.say("stranger", path, "not a file of Esker's")


def journal_entry(data: bytes, position: int, salt: int) -> Entry | str:
    """The entry at a position of a journal, or why there is none ("" for zeros)."""
    entry = journal_format.decode_entry(
        data[position : position + journal_format.ENTRY_SIZE], position, salt
    )
    if isinstance(entry, str):
        return entry
    begin = position + journal_format.ENTRY_SIZE
    body = data[begin : begin + entry.size]
    if len(body) < entry.size:
        return "the journal ends inside an entry"
    return entry if checksum(body, salt) == entry.body_checksum else "its bytes do not match"


def next_entry(data: bytes, position: int, salt: int) -> int:
    """Where the next whole entry begins; the journal's end when there is none."""
    found = data.find(journal_format.ENTRY_MAGIC, position)
    while found >= 0:
        if not found & 7 and isinstance(journal_entry(data, found, salt), Entry):
            return found
        found = data.find(journal_format.ENTRY_MAGIC, found + 1)
    return len(data)


def shard_folders(files: Files, root: str) -> Iterator[str]:
    """Every directory that could be a shard's."""
    top = join(root, names.TOPICS)
    for topic in sorted(files.list(top)):
        if names.parse_number(topic) is None or files.kind(join(top, topic)) != "dir":
            continue
        for shard in sorted(files.list(join(top, topic))):
            folder = join(top, topic, shard)
            if names.parse_number(shard) is not None and files.kind(folder) == "dir":
                yield folder


def id_of_store(files: Files, root: str) -> bytes | None:
    """The store's id as most of its files name it: segments, then state pages, then catalogs."""
    votes: Counter[bytes] = Counter()
    for folder in shard_folders(files, root):
        for name in files.list(folder):
            if names.parse_segment(name) is not None:
                header = segment_format.decode_header(_head(files, join(folder, name), 128))
                if not isinstance(header, str):
                    votes[header.store] += 1
            elif name == names.STATE:
                data = _head(files, join(folder, name), state_format.FILE_SIZE)
                for at in state_format.SLOT_POSITIONS:
                    slot = state_format.decode_slot(data[at : at + state_format.SLOT_SIZE])
                    if isinstance(slot, State):
                        votes[slot.store] += 1
    for name in files.list(root):
        if not votes and names.parse_catalog(name) is not None:
            data = _head(files, join(root, name), catalog_format.CATALOG_BYTES_MAX)
            if not isinstance(catalog_format.decode_catalog(data, bytes(data[24:40])), str):
                votes[bytes(data[24:40])] += 1
    return votes.most_common(1)[0][0] if votes else None


def one_bit_identity(files: Files, path: str) -> tuple[bytes, int] | None:
    """Store id and creation time of an identity file in which a single bit is wrong."""
    data = _head(files, path, catalog_format.IDENTITY_SIZE)
    for bit in range(len(data) * 8):
        tried = bytearray(data)
        tried[bit >> 3] ^= 1 << (bit & 7)
        found = catalog_format.decode_identity(bytes(tried))
        if isinstance(found, tuple):
            return found
    return None


def _head(files: Files, path: str, size: int) -> bytes:
    """The first bytes of a file; none when the OS refuses them."""
    try:
        file = files.open(path, "r")
        try:
            return file.read(0, size)
        finally:
            file.close()
    except StorageError:
        return b""
