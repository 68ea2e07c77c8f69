"""A second opinion on the bytes of a store, written from docs/format.md and from nothing else.

It imports nothing of Esker, so that no mistake of the engine can hide itself here. It reads the
files as they lie, in memory or in a directory, and says what they hold and what is wrong with them:

    judge(files)              what a crash may have left: what must be there after recovery, and the
                              problems that no crash explains
    judge(files, clean=True)  what a clean close has left: every deviation is a problem
    judge_clean(files)        the same, and raises AssertionError if there is one

`files` is a mapping of paths to bytes, a directory, or something with `contents()` such as a
simulated disk. Segments in a cold store are read too, if that is a directory: where the stubs say,
or in `cold`. The sections named in the comments are those of docs/format.md. What single files hold
is told by fsck_bytes.py, fsck_groups.py and fsck_queues.py.
"""

from __future__ import annotations

import os
import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import msgpack
from xxhash import xxh3_64_intdigest as xxh3
from xxhash import xxh3_128_hexdigest

from tests import fsck_groups, fsck_queues
from tests.fsck_bytes import (
    CLEAN,
    CONFIG,
    DATA,
    FOOTER,
    HOLE,
    SEGMENT,
    Flaw,
    Frame,
    Segment,
    catalog,
    chain,
    commit,
    counters,
    deletions,
    frame,
    identity,
    journal,
    losses,
    moved,
    once,
    place,
    routes,
    sealed,
    segment,
    staged,
    state,
    tag_index,
)

GAPS = {1: "lost unsynced tail", 2: "corrupt", 3: "state lost"}
N4, N8 = r"(\d{4}|[1-9]\d{4,})", r"(\d{8}|[1-9]\d{8,})"
NAMES = {
    "identity": r"esker\.store",
    "catalog": rf"catalog-{N8}",
    "routes": r"routes",
    "journal": rf"journal/{N8}\.journal",
    "slot": r"processes/(\d{4})\.lock",
    "lock": rf"catalog\.lock|recovery\.lock|staging/lock|journal/{N8}\.lock|topics/{N8}/{N4}/lock"
    rf"|routes\.lock|topics/{N8}/{N4}/offsets\.lock|topics/{N8}/members\.lock|topics/{N8}/members\.d/\d{{4}}",
    "mutex": rf"topics/{N8}/queue/lock|topics/{N8}/queue/{N4}/lock",
    "worker": rf"topics/{N8}/queue/workers/([0-9a-f]{{16}})",
    "settings": rf"topics/{N8}/queue/settings",
    "demand": rf"topics/{N8}/queue/demand",
    "leases": rf"topics/{N8}/queue/{N4}/leases-{N8}",
    "staged": rf"topics/{N8}/{N4}/([0-9a-f]{{32}}\.staged)",
    "commit": r"staging/([0-9a-f]{32})-(\d{20})\.commit",
    "segment": rf"topics/{N8}/{N4}/{N8}-(\d{{20}})\.(seg|log)",
    "deletions": rf"topics/{N8}/{N4}/deletions-{N8}",
    "tags": rf"topics/{N8}/{N4}/{N8}-(\d{{20}})\.tags",
    "once": rf"topics/{N8}/{N4}/once",
    "state": rf"topics/{N8}/{N4}/state",
    "counters": rf"topics/{N8}/{N4}/counters",
    "offsets": rf"topics/{N8}/{N4}/offsets",
    "members": rf"topics/{N8}/members",
    "quarantine": r"quarantine/.+",
    "spark": r"spark/.+",
    "archive": r"archive/.+",  # for other programs, see docs/archive.md
    "deleted": rf"topics/{N8}\.deleted/.+",
    "object": rf"/.+/[0-9a-f]{{32}}/{N8}/{N4}/.+\.seg-[0-9a-f]{{16}}-[0-9a-f]{{16}}(?:\.tmp)?",
    "temporary": r".+\.tmp",
}
FIRST = ("esker.store", "catalog.lock")  # what lies in the directory of every store
LINK = b"a link where a file should be"

Record = namedtuple("Record", "offset timestamp value key tag node headers")
Gap = namedtuple("Gap", "first last reason")
Problem = namedtuple("Problem", "path position what")
Shard = namedtuple("Shard", "records gaps end")
NAME = {kind: re.compile(text) for kind, text in NAMES.items()}
SEEN: dict[Any, Any] = {}  # what was said of shards, see `shard_once`


@lru_cache(8192)
def parsed(path: str) -> tuple[str, tuple[Any, ...]]:
    """§1: what a file is by its name, and the numbers in it."""
    for kind, pattern in NAME.items():
        found = pattern.fullmatch(path)
        if found:
            parts = [part for part in found.groups() if part is not None]
            return kind, tuple(int(part) if part.isdigit() else part for part in parts)
    return "stranger", ()


class Piece(NamedTuple):
    """A segment in its place: §5 of the bytes, and what its name says."""

    number: int
    base: int
    path: str
    size: int
    found: Segment | None
    flaws: Sequence[tuple[int, str]]
    link: int | None = None  # the chain hash in the footer of a sealed one

    @property
    def empty(self) -> bool:
        return self.found is None or not any(each.head.count for each in self.found.frames)


class Judge:
    """Everything about one store; `judge` is the way in."""

    def __init__(self, files: Mapping[str, bytes], clean: bool, pages: bool, fetch: Any) -> None:
        self.files = files
        self.fetch = fetch  # the bytes that lie in a cold store: root, key
        self.clean = clean
        self.pages = pages
        self.problems: list[Problem] = []  # what no crash explains
        self.torn: list[Problem] = []  # what a crash may leave
        self.shards: dict[tuple[str, int], Shard] = {}
        self.pending: dict[tuple[str, int], list[bytes]] = {}  # values that are to be attached
        self.leases: dict[tuple[int, int], list[list[Any]]] = {}  # by topic and shard
        self.topics: dict[int, dict[str, Any]] = {}
        self.cursors: dict[tuple[int, int, str], int] = {}  # of groups: topic, shard, name
        self.store = b""
        self.named: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in NAMES}
        self.below: dict[str, list[tuple[str, bytes]]] = {}  # paths and bytes, by folder
        self.fetched = False  # whether something was asked of a cold store
        for path in files:
            self.below.setdefault(path.rpartition("/")[0], []).append((path, files[path]))
            kind, numbers = parsed(path)
            if kind == "stranger" or (files[path] is LINK and kind != "quarantine"):
                self.problem(path, 0, "a stranger, or a link")
            else:
                self.named[kind].append((*numbers, path))
        for (path,) in self.named["temporary"]:  # §14
            if "/" in path and path.replace(".seg.tmp", ".log") not in files:
                self.crash(path, 0, "a temporary file that nobody will use again")
        if "esker.store" in files:
            self.store = self.parse(identity, "esker.store") or b""
            self.read()
        elif clean or self.named["catalog"]:
            self.problem("esker.store", 0, "the store has no identity")

    def problem(self, path: str, position: int, what: str) -> None:
        self.problems.append(Problem(path, position, what))

    def crash(self, path: str, position: int, what: str) -> None:
        """What a crash may leave, and a clean close may not."""
        (self.problems if self.clean else self.torn).append(Problem(path, position, what))

    def parse(self, how: Any, path: str) -> Any:
        try:
            return how(self.files[path])
        except Flaw as flaw:
            self.problem(path, flaw.position, flaw.what)
        except (ValueError, KeyError, TypeError) as flaw:
            self.problem(path, 0, f"{how.__name__}: {flaw!r}")
        return None

    def read(self) -> None:
        for generation, path in sorted(self.named["catalog"]):
            found = self.parse(catalog, path)
            if found:
                self.topics = found[2]
                if found[:2] != (generation, self.store):
                    self.problem(path, 8, "catalog of another generation or store")
        for topic, _ in self.named["deleted"]:  # §11
            self.topics = {key: entry for key, entry in self.topics.items() if key != topic}
        for *_, path in self.named["lock"]:
            if self.files[path] and self.files[path][:1] != b"{":
                self.problem(path, 0, "a lock that does not say who holds it")
        if "routes" in self.files and self.parse(routes, "routes") not in (None, self.store):
            self.problem("routes", 24, "routes of another store")
        for topic, shard, path in self.named["offsets"]:
            cursors, flaws = fsck_groups.offsets(self.files[path], self.store, topic, shard)
            self.cursors |= {(topic, shard, name): at for name, at in cursors.items()}
            for at, what in flaws:
                self.problem(path, at, what)
        redo = self.journals()
        shards: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        for kind in ("segment", "state", "counters"):
            for topic, shard, *rest in self.named[kind]:
                shards.setdefault((topic, shard), []).append((*rest,))
        catalogs = tuple(self.files[path] for *_, path in sorted(self.named["catalog"]))
        for key in sorted({*shards, *redo}):
            names = [name for name in shards.get(key, ()) if len(name) > 1]
            self.shard_once(catalogs, *key, names, redo.get(key, []))
        for writer, sequence, path in sorted(self.named["commit"]):
            found = self.parse(commit, path)
            if found:
                self.commit(path, writer, sequence, *found)
        self.queues()

    def queues(self) -> None:
        """§21: who holds which job."""
        logs = {(*key, path): self.files[path] for *key, path in self.named["leases"]}
        told = {(topic, path): self.files[path] for topic, path in self.named["settings"]}
        problems, torn, self.leases = fsck_queues.judge(self.store, logs, told)
        for each in problems:
            self.problem(*each)
        for each in torn:
            self.crash(*each)

    def commit(
        self, path: str, writer: str, sequence: int, number: int, store: bytes, told: dict[str, Any]
    ) -> None:
        """§15: what is committed, and still called .staged."""
        mark = xxh3_128_hexdigest(told["writer"].encode())
        if (number, store, mark) != (sequence, self.store, writer):
            self.problem(path, 8, "commit of another store, or under another's name")
        for ticket in told["tickets"]:
            topic, shard = ticket["topic"], ticket["shard"]
            place = f"topics/{topic:08d}/{shard:04d}/{ticket['file']}"
            if place in self.files and topic in self.topics:
                self.crash(place, 0, "committed, and not attached")
                values = self.parse(lambda data, ticket=ticket: staged(data, ticket), place)
                name = self.topics[topic]["name"]
                self.pending.setdefault((name, shard), []).extend(values or [])

    def journals(self) -> dict[tuple[int, int], list[Any]]:
        """§13: what is to be written again, by shard."""
        redo: dict[tuple[int, int], list[Any]] = {}
        for number, path in sorted(self.named["journal"]):
            self.crash(path, 0, "a journal")
            try:
                header, entries, flaws, durable = journal(self.files[path])
            except Flaw as flaw:
                self.crash(path, flaw.position, flaw.what)
                continue
            if (header.store, header.number) != (self.store, number):
                self.problem(path, 16, "journal of another store, or under another's name")
            for at, what in flaws:
                (self.problem if at < durable else self.crash)(path, at, what)
            torn = min((at for at, _ in flaws if at >= durable), default=len(self.files[path]))
            for at, entry, body in entries:
                if at < torn:
                    redo.setdefault((entry.topic, entry.shard), []).append((entry, body))
        return redo

    # -- one shard

    def shard_once(
        self, catalogs: tuple[bytes, ...], topic: int, shard: int, names: list[Any], redo: list[Any]
    ) -> None:
        """`shard`, or what it said of the very same bytes: most images differ in one shard."""
        below = tuple(self.below.get(f"topics/{topic:08d}/{shard:04d}", ()))
        how = (self.clean, self.pages, self.store, topic in self.topics)
        key = (how, catalogs, topic, shard, below, tuple(redo))
        known = SEEN.get(key)
        if known is None:
            outer = self.problems, self.torn, self.shards, self.fetched
            self.problems, self.torn, self.shards, self.fetched = [], [], {}, False
            self.shard(topic, shard, names, redo)
            known = (self.problems, self.torn, self.shards)
            if not self.fetched:  # bytes that lie elsewhere are not a part of the key
                if len(SEEN) > 2000:
                    SEEN.clear()
                SEEN[key] = known
            self.problems, self.torn, self.shards, self.fetched = outer
        self.problems += known[0]
        self.torn += known[1]
        self.shards |= known[2]

    def shard(self, topic: int, shard: int, names: list[Any], redo: list[Any]) -> None:
        where = f"topics/{topic:08d}/{shard:04d}"
        entry = self.topics.get(topic)
        if entry is None or shard >= entry["options"]["shards"]:
            self.crash(where, 0, "no catalog lists this shard")
            return
        mine = (self.store, topic, shard, entry["epoch"])
        plain = {**entry, "options": 0}  # which may have been altered since
        early = not names or entry["options"]["durability"] != "disk"  # its page may be unsynced
        page = self.state(where, mine, names, early)
        pieces, proven = self.pieces(where, mine, names, redo)
        if page and page.flags & CLEAN and page.segment:
            proven[page.segment] = max(proven.get(page.segment, 0), page.position)
        frontier = max(proven, default=0)
        earliest = page.earliest if page else 0
        while len(pieces) > 1 and pieces[1].base <= earliest:
            pieces = pieces[1:]  # deleted on request, whether the file is gone or not
        records: list[Record] = []
        gaps: list[Gap] = []
        number, before = 0, (0, 0, 0, 0)
        lost = False  # records whose times nobody knows any more
        for index, piece in enumerate(pieces):
            sure = self.clean or piece.number <= frontier
            say = self.problem if sure else self.crash
            found = piece.found
            if found is None:
                say(piece.path, *piece.flaws[0])
                continue
            others = [other for other in pieces[index + 1 :] if other.found]
            if piece.empty and others and others[0].number == piece.number:
                self.crash(piece.path, 0, "made way for a log behind a gap")
                continue
            header = found.header
            previous = tuple(header[12:16])  # end, chain, salt and high of the one before
            lost |= header.gap == 2
            if index == 0 and piece.number > 1 and previous[0] <= earliest:
                number, before = piece.number - 1, previous
            if piece.number != number + 1 or previous[0] != before[0]:
                say(piece.path, 80, f"segment {piece.number} does not follow {number}")
                if not sure and piece.empty:
                    continue
                if not sure:
                    break  # it would leave a hole
            elif previous[:3] != before[:3] or (
                previous[3] < before[3] if lost else previous[3] != before[3]
            ):
                self.problem(piece.path, 80, f"previous {previous}, but before it is {before}")
            kept = self.kept(piece, found, others[:1], proven.get(piece.number, 0), frontier)
            if not kept and not sure:
                break  # not even its CONFIG is there
            first = before[0]
            if piece.base < first or (header.gap in GAPS) != (piece.base > first):
                self.problem(piece.path, 12, f"gap {header.gap} from {first} to {piece.base}")
            if piece.base > first:
                gaps.append(Gap(first, piece.base - 1, GAPS.get(header.gap, "?")))
            high = before[3]
            for each in kept:
                first = piece.base + each.head.row
                if each.head.kind == DATA:
                    high = max(high, each.head.high)
                if each.flaw:
                    continue
                if each.head.kind == DATA:
                    records += [Record(first + i, *row) for i, row in enumerate(each.content)]
                elif each.head.kind == HOLE:
                    lost = True
                    if each.head.count:
                        gaps.append(Gap(first, first + each.head.count - 1, "corrupt"))
                elif each.head.kind == CONFIG and {**each.content, "options": 0} != plain:
                    self.problem(piece.path, 128, "CONFIG is not the catalog's entry")
            end = piece.base + max((each.head.row + each.head.count for each in kept), default=0)
            link = chain(kept) if piece.link is None else piece.link
            number, before = piece.number, (end, link, header.salt, high)
            self.index(mine, piece, header.salt, end, records)
        deleted = self.deleted(where, mine, page)
        if deleted and max(deleted) >= before[0]:
            self.problem(where, 0, f"offset {max(deleted)} is deleted, and the end is {before[0]}")
        self.marked(where, mine, records, before[0])
        records = [r for r in records if r.offset >= earliest and r.offset not in deleted]
        gaps = [Gap(max(g.first, earliest), g.last, g.reason) for g in gaps if g.last >= earliest]
        evicted = losses(page) if page else []
        gaps = [*(Gap(first, end - 1, "evicted") for first, end in evicted), *gaps]
        self.shards[entry["name"], shard] = Shard(records, gaps, before[0])
        self.agree(where, page, entry, pieces, before[0])

    def index(self, mine: Any, piece: Piece, salt: int, end: int, records: list[Record]) -> None:
        """§16: an index of tags says what a look at every tag says, or is no index."""
        for *key, path in self.named["tags"]:
            if (*key,) != (*mine[1:3], piece.number, piece.base):
                continue
            found = tag_index(self.files[path], piece.number, salt, end - piece.base)
            there: dict[str, list[int]] = {}
            for record in records:
                if record.offset >= piece.base and record.tag is not None:
                    there.setdefault(record.tag, []).append(record.offset - piece.base)
            if found is not None and piece.path.endswith(".seg") and found != there:
                self.problem(path, 64, "an index of other tags")

    def marked(self, where: str, mine: Any, records: list[Record], end: int) -> None:
        """§15: what is saved of keys and producers is what the records say."""
        path = f"{where}/once"
        if path not in self.files:
            return
        found = self.parse(once, path)
        if found is None:
            return
        header, saved = found
        if (header.store, header.topic, header.shard) != mine[:3]:
            self.problem(path, 16, "the keys of another shard")
        if header.upto > end:
            self.problem(path, 8, f"keys up to {header.upto}, and the end is {end}")
        there = {record.offset: dict(record.headers) for record in records}
        for offset, mark in saved:
            headers = there.get(offset)
            if not headers:  # evicted, or deleted and blank by now
                continue
            if msgpack.decode(headers.get("esker-once", b"\xc0")) != mark:
                self.problem(path, 64, f"{mark} is not at offset {offset}")

    def deleted(self, where: str, mine: Any, page: Any) -> frozenset[int]:
        """§16: the offsets that were deleted one by one. What no page names is a leftover."""
        place = (page.marks, page.marks_end) if page else (0, 0)
        for topic, shard, number, path in self.named["deletions"]:
            if (topic, shard) != mine[1:3]:
                continue
            if not page:  # the newest file, all of it
                place = max(place, (number, len(self.files[path])))
        number, length = place
        path = f"{where}/deletions-{number:08d}"
        if not number:
            return frozenset()
        if path not in self.files:
            self.problem(path, 0, "the file of deletions is missing")
            return frozenset()
        if len(self.files[path]) < length:
            self.problem(path, len(self.files[path]), "shorter than the page says")
        found = self.parse(lambda data: deletions(data[:length]), path)
        if not found:
            return frozenset()
        if not self.owns(found[0], number, mine):
            self.problem(path, 8, "the deletions of another shard")
        if found[3]:
            self.problem(path, *found[3])
        elif found[2] != length and len(self.files[path]) >= length:
            self.problem(path, length, "the page ends in the middle of a deletion")
        return found[1]

    def owns(self, header: Any, number: int, mine: Any) -> bool:
        return (header.store, header.topic, header.shard, header.number) == (*mine[:3], number)

    def pieces(self, where: str, mine: Any, names: list[Any], redo: list[Any]) -> Any:
        """The segments of a shard in order, logs with what the journal has; what is proven."""
        there = {name[:3]: (name[3], self.files[name[3]]) for name in names}
        proven: dict[int, int] = {number: 0 for number, _, kind in there if kind == "seg"}
        for number, base, kind in list(there):
            if kind == "log" and (number, base, "seg") in there:
                self.crash(there.pop((number, base, kind))[0], 0, "a log beside its sealed segment")
        for told, body in redo:
            self.redo(where, mine, there, proven, told, body)
        pieces = []
        for (number, base, kind), (path, data) in sorted(there.items()):
            found: Segment | None = None
            link: int | None = None
            flaws: Sequence[tuple[int, str]] = ()
            size = len(data)
            try:
                told = place(data)
                self.fetched |= told is not None
                whole = self.fetch(told["root"], told["key"]) if told else None
                if kind == "seg" and whole is not None:
                    found, link, flaws = moved(data, whole)
                    size = max(size, len(whole))
                elif kind == "seg":
                    found, link, flaws = sealed(data)
                    if told:
                        flaws = [(128, "what was moved is not where the stub says"), *flaws]
                else:
                    found = segment(data)
                    flaws = found.flaws
                    if told:
                        flaws = [(128, "a place in a log"), *flaws]
                if found.header[4:8] != mine:
                    found, flaws = None, [(16, "a segment of another shard")]
                elif found.header[8:10] != (number, base):
                    found, flaws = None, [(48, "a segment under another's name")]
            except Flaw as flaw:
                flaws = [(flaw.position, flaw.what)]
            pieces.append(Piece(number, base, path, size, found, flaws, link))
            synced = max((each.head.synced for each in found.frames), default=0) if found else 0
            if synced:
                proven[number] = max(proven.get(number, 0), synced)
        if any(piece.link is None for piece in pieces[:-1]):
            self.crash(where, 0, "a log that is not the last segment")
        return pieces, proven

    def redo(self, where: str, mine: Any, there: Any, proven: Any, entry: Any, body: bytes) -> None:
        """§13: write the bytes of an entry into the log they belong to."""
        number, position = entry.segment, entry.position
        key = max((key for key in there if key[0] == number), default=None)
        if key is None:
            if position or len(body) < 128:
                return  # of a segment that is no more
            base = SEGMENT.at(body).base
            key = (number, base, "log")
            there[key] = (f"{where}/{number:08d}-{base:020d}.log", b"")
        path, data = there[key]
        header = SEGMENT.at(data.ljust(128, b"\0"))
        ours = header.checksum == xxh3(data[:120]) and header[4:8] == mine
        if key[2] == "seg" or (
            position == 0 and ours and SEGMENT.at(body).created < header.created
        ):
            return
        if position and not (ours and frame(bytes(position) + body, position, header.salt)):
            return  # of another log that had this number
        if data[position : position + len(body)] != body:
            self.crash(path, position, "lacks what the journal has")
            data = data.ljust(position, b"\0")
            there[key] = (path, data[:position] + body + data[position + len(body) :])
        proven[number] = max(proven.get(number, 0), position + len(body))

    def kept(
        self, piece: Piece, found: Segment, after: list[Piece], proven: int, frontier: int
    ) -> tuple[Frame, ...]:
        """§9, §10: the frames that count: all below the watermark, then whole batches to a flaw."""
        told = None  # how many rows the next segment says that this one has
        for other in after:
            counts = self.clean or other.number <= frontier or not other.empty
            if other.found and other.number == piece.number + 1 and counts:
                told = other.found.header.previous_end - piece.base
        limit = proven
        if self.clean or piece.link is not None:
            limit = piece.size
        elif piece.number < frontier:
            body = [each for each in found.frames if each.head.kind != FOOTER and not each.flaw]
            ends = [each.end for each in body if each.head.row + each.head.count == told]
            limit = max([limit, *ends])
        for at, what in piece.flaws:
            (self.problem if at < limit else self.crash)(piece.path, at, what)
        end = min((at for at, _ in piece.flaws if at >= limit), default=found.end)
        kept = [each for each in found.frames if each.position < end and each.head.kind != FOOTER]
        while kept and kept[-1].head.flags:
            self.crash(piece.path, kept.pop().position, "an unfinished batch")
        while told is not None and kept and kept[-1].head.row + kept[-1].head.count > told:
            self.crash(piece.path, kept.pop().position, "behind the end that the next one names")
        for each, following in pairwise(kept):
            if each.head.flags and following.head.kind != DATA:
                self.problem(piece.path, following.position, "something else inside a batch")
        if piece.link is None and len(kept) < len(found.frames):
            self.crash(piece.path, end, "frames that do not count")
        if piece.link is None and found.end < piece.size:
            self.crash(piece.path, found.end, "something behind the last frame")
        return tuple(kept)

    def state(self, where: str, mine: tuple[Any, ...], segments: object, early: bool) -> Any:
        """§11: the state that counts."""
        path = f"{where}/state"
        page, flaws = state(self.files.get(path, b""))
        for at, what in flaws:
            self.crash(path, at, what)
        if page and (page.store, page.topic, page.shard, page.epoch) != mine:
            if early and not self.clean:  # what a deleted file left in its place
                self.crash(path, 16, "the state of another shard")
                return None
            self.problem(path, 16, "the state of another shard")
        if not page.flags & CLEAN if page else segments:
            self.crash(path, 0, "the shard was not closed")
        return page

    def agree(self, where: str, page: Any, entry: Any, pieces: list[Piece], end: int) -> None:
        """§11, §12: state and counters say the same as the segments."""
        path = f"{where}/state"
        durability = entry["options"]["durability"]
        if durability == "disk" and pieces and end > (page.ceiling if page else 0):
            self.problem(path, 32, f"offsets up to {end} were not set aside")
        if page and page.earliest > max(end, page.end):
            self.problem(path, 64, f"begins at {page.earliest} and ends at {end}")
        if durability == "ephemeral" and pieces:
            self.problem(where, 0, "segments of a topic that has none")
        if not self.clean or page is None:
            return
        log = pieces[-1] if pieces and pieces[-1].link is None else None
        if (page.segment, page.position) != ((log.number, log.size) if log else (0, 0)):
            self.problem(path, 40, f"the log ends at {page.segment}, {page.position}")
        if page.end != end and durability != "ephemeral":
            self.problem(path, 56, f"closed at {page.end}, and the segments end at {end}")
        if page.ceiling != page.end:
            self.problem(path, 32, f"closed at {page.end} with a ceiling of {page.ceiling}")
        path = f"{where}/counters"
        words, flaws = counters(self.files[path] if self.pages and path in self.files else b"")
        for at, what in flaws:
            self.problem(path, at, what)
        if words[105] > page.end or words[108] > words[105]:
            self.problem(path, 840, f"visible {words[105]}, durable {words[108]}")


def judge(files: Any, clean: bool = False, pages: bool = True, cold: str = "") -> Judge:
    """What the files of a store hold, and what is wrong with them.

    `cold` is the directory in which all lies that was moved, if it is not where the stubs say.
    Counters pages are never synced: after a power cut they may hold anything, until a writer opens
    their shard. `pages=False` leaves them out.
    """
    if hasattr(files, "contents"):
        files = files.contents()
    there = None if isinstance(files, (str, Path)) else files

    def fetch(root: str, key: str) -> bytes | None:
        path = f"{cold or root}/{key}"
        if there is not None:
            return there.get(path)
        return Path(path).read_bytes() if os.path.isfile(path) else None

    if there is None:
        files = in_directory(str(files))
    root = next((path.rpartition("/")[0] + "/" for path in files if path.endswith(FIRST)), "/")
    if root != "/":
        files = {path.removeprefix(root): data for path, data in files.items()}
    return Judge(files, clean, pages, fetch)


def in_directory(root: str) -> dict[str, bytes]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                data = file.read()
            found[os.path.relpath(path, root)] = LINK if os.path.islink(path) else data
    return found


def judge_clean(files: Any, pages: bool = True, cold: str = "") -> Judge:
    """The same for a store that was closed; raises AssertionError with all that is wrong."""
    found = judge(files, clean=True, pages=pages, cold=cold)
    assert not found.problems, "fsck:\n" + "\n".join(map(str, found.problems))
    return found
