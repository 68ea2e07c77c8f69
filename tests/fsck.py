"""A second opinion on the bytes of a store, written from docs/format.md and from nothing else.

It imports nothing of Esker, so that no mistake of the engine can hide itself here. It reads the files
as they lie, in memory or in a directory, and says what they hold and what is wrong with them:

    judge(files)              what a crash may have left: what must be there after recovery, and the
                              problems that no crash explains
    judge(files, clean=True)  what a clean close has left: every deviation is a problem
    judge_clean(files)        the same, and raises AssertionError if there is one

`files` is a mapping of paths to bytes, a directory, or something with `contents()` (a simulated disk).
The sections named in the comments are those of docs/format.md. Parsing is a pure function of a
file's bytes and is remembered, because images of one store have most files in common.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from struct import Struct, error, unpack, unpack_from
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest as xxh3

IDENTITY = Struct("<8sHHI16sqQ")
CATALOG = Struct("<4sHHQII16sQQQ")
SEGMENT = Struct("<8sHHI16sQIIQqqQqQQqQQ")
FRAME = Struct("<4sBBBBIIIIqqIIQQ")
SUMMARY = Struct("<QQQQqqQQ")
TRAILER = Struct("<8sQQQ")
STATE = Struct("<4sHHQQIIqQQqqq16s16s392sQ")
JOURNAL = Struct("<8sHHI16sQQqQ")
ENTRY = Struct("<4sIQIIQQqQQ")
DATA, CONFIG, MARK, FOOTER, HOLE = 1, 2, 3, 4, 5
GAPS = {1: "lost unsynced tail", 2: "corrupt", 3: "state lost"}
WRAP = 2**64
NAMES = {
    "identity": r"esker\.store",
    "catalog": r"catalog-(\d{8,})",
    "journal": r"journal/(\d{8,})\.journal",
    "lock": r"catalog\.lock|recovery\.lock|journal/\d{8,}\.lock|topics/\d{8,}/\d{4,}/lock",
    "segment": r"topics/(\d{8,})/(\d{4,})/(\d{8,})-(\d{20})\.(seg|log)",
    "state": r"topics/(\d{8,})/(\d{4,})/state",
    "counters": r"topics/(\d{8,})/(\d{4,})/counters",
    "quarantine": r"quarantine/[^/]+",
    "temporary": r"(?:.*/)?[^/]+\.tmp",
}
NAME = re.compile("|".join(f"(?P<{kind}>{text})" for kind, text in NAMES.items()))
TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


FIRST = ("esker.store", "catalog.lock")  # what lies in the directory of every store


class Problem(NamedTuple):
    path: str
    position: int
    what: str


class Record(NamedTuple):
    offset: int
    timestamp: int
    value: bytes
    key: bytes | None
    tag: str | None
    node: str | None
    headers: tuple[tuple[str, bytes], ...]


class Gap(NamedTuple):
    first: int
    last: int
    reason: str


class Shard(NamedTuple):
    records: list[Record]
    gaps: list[Gap]
    end: int


class Frame(NamedTuple):
    position: int
    end: int
    kind: int
    codec: int
    columns: int
    raw_size: int
    count: int
    row: int
    low: int
    high: int
    synced: int
    more: bool
    checksum: bytes
    flaw: str
    content: Any  # rows of DATA, the body of others


class Segment(NamedTuple):
    created: int
    gap: int
    store: bytes
    topic: int
    shard: int
    epoch: int
    number: int
    base: int
    salt: int
    previous: tuple[int, int, int, int]  # end, chain, salt, high
    frames: tuple[Frame, ...]
    flaws: tuple[tuple[int, str], ...]
    end: int  # of the frames: zeros, a trailer or nothing follow


class State(NamedTuple):
    clean: bool
    generation: int
    topic: int
    shard: int
    epoch: int
    ceiling: int
    segment: int
    position: int
    end: int
    store: bytes


class Flaw(Exception):
    """Bytes are not as the format says."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(what)
        self.what, self.position = what, position


def need(condition: object, what: str, position: int = 0) -> None:
    if not condition:
        raise Flaw(what, position)


# ---- one file at a time ----------------------------------------------------------------------


@lru_cache(1024)
def identity(data: bytes) -> bytes:
    """§3: the store id."""
    need(len(data) == 48, "identity does not have 48 bytes")
    magic, version, zero, zeros, store, _, checksum = IDENTITY.unpack(data)
    need((magic, version, zero, zeros) == (b"ESKERSTO", 1, 0, 0), "identity header")
    need(checksum == xxh3(data[:40]), "identity checksum")
    return store


@lru_cache(1024)
def catalog(data: bytes) -> tuple[int, bytes, dict[int, dict[str, Any]]]:
    """§4: generation, store id, topics."""
    need(len(data) >= 64, "catalog is too short")
    magic, version, zero, generation, size, zeros, store, body, more, checksum = CATALOG.unpack(
        data[:64]
    )
    need((magic, version, zero, zeros, more) == (b"ESKC", 1, 0, 0, 0), "catalog header")
    need(checksum == xxh3(data[:56]), "catalog header checksum")
    need(len(data) == 64 + size, "catalog size")
    need(body == xxh3(data[64:]), "catalog body checksum")
    told = json.loads(data[64:])
    topics = {topic["id"]: topic for topic in told["topics"]}
    names = {topic["name"] for topic in told["topics"]}
    need(len(topics) == len(names) == len(told["topics"]), "two topics with one id or name")
    need(all(0 < topic < told["next_id"] for topic in topics), "next_id is not above all ids")
    for topic in topics.values():
        need(TOPIC.fullmatch(topic["name"]), f"topic name {topic['name']!r}")
        need(1 <= topic["options"]["shards"] <= 1024, "number of shards")
    return generation, store, topics


@lru_cache(4096)
def state(data: bytes) -> tuple[State | None, list[tuple[int, str]]]:
    """§11: what counts of a state page, and what is wrong with it."""
    flaws: list[tuple[int, str]] = []
    slots: list[State] = []
    if data.strip(b"\0") and len(data) != 4608:
        flaws.append((0, "state page does not have 4608 bytes"))
    for at in (0, 4096):
        page = data[at : at + 512]
        if not page.strip(b"\0"):
            continue  # not written yet
        if len(page) < 512 or unpack_from("<Q", page, 504)[0] != xxh3(page[:504]):
            flaws.append((at, "state slot checksum"))
            continue
        magic, version, flags, generation, topic, shard, epoch, ceiling, segment, position, end, \
            earliest, evicted, _, store, zeros, _ = STATE.unpack(page)  # fmt: skip
        if (magic, version, flags & ~1) != (b"ESKS", 1, 0) or zeros.strip(b"\0"):
            flaws.append((at, "state slot header"))
        if earliest or evicted:
            flaws.append((at, "state slot speaks of dropped records"))
        if generation % 2 != (at == 0):
            flaws.append((at, f"generation {generation} in the wrong slot"))
        slots.append(
            State(bool(flags & 1), generation, topic, shard, epoch, ceiling, segment, position,
                  end, store)
        )  # fmt: skip
    slots.sort(key=lambda slot: slot.generation)
    if len(slots) == 2 and slots[1].generation != slots[0].generation + 1:
        flaws.append((0, "state slots were not written in turn"))
    return (slots[-1] if slots else None), flaws


@lru_cache(4096)
def segment(data: bytes) -> Segment:
    """§5: the header of a segment and all its frames, whole or not."""
    need(len(data) >= 128, "segment is shorter than its header")
    magic, version, size, gap, store, topic, shard, epoch, number, base, created, salt, end, link, \
        before, high, zeros, checksum = SEGMENT.unpack(data[:128])  # fmt: skip
    need(magic == b"ESKERSEG" and checksum == xxh3(data[:120]), "segment header checksum")
    need((version, size, zeros) == (1, 128, 0), "segment header")
    return Segment(created, gap, store, topic, shard, epoch, number, base, salt,
                   (end, link, before, high), *walk(data, salt))  # fmt: skip


def walk(data: bytes, salt: int) -> tuple[Any, Any, int]:
    """§6, §9: every frame whose header verifies, in order, and what is wrong between them."""
    frames: list[Frame] = []
    flaws: list[tuple[int, str]] = []
    at, row = 128, 0
    while data[at:].strip(b"\0") if data[at : at + 8] == bytes(8) else at < len(data):
        found = frame(data, at, salt)
        if found is None:
            flaws.append((at, "no frame"))
            at = resync(data, at, salt)
            row = -1
            continue
        if found.flaw:
            flaws.append((at, found.flaw))
        elif row not in (-1, found.row):
            flaws.append((at, f"rows {found.row}, not {row}"))
        elif (found.kind == CONFIG) != (at == 128):
            flaws.append((at, "the first frame is not the only CONFIG"))
        frames.append(found)
        row = found.row + found.count
        at = found.end
        if found.kind == FOOTER:
            break
    return tuple(frames), tuple(flaws), at


def resync(data: bytes, at: int, salt: int) -> int:
    """§9: the next position at which a frame verifies; the end if none does."""
    at = data.find(b"ESKF", at + 1)
    while at >= 0:
        if at % 8 == 0 and frame(data, at, salt):
            return at
        at = data.find(b"ESKF", at + 1)
    return len(data)


def frame(data: bytes, at: int, salt: int) -> Frame | None:
    """§6: the frame at a position; None if its header does not verify."""
    head = data[at : at + 64]
    if len(head) < 64 or head[:4] != b"ESKF":
        return None
    _, version, kind, codec, columns, size, raw_size, count, row, low, high, synced, flags, \
        checksum, own = FRAME.unpack(head)  # fmt: skip
    if own != xxh3(head[:56], (salt + at) % WRAP):
        return None
    end = at + 64 + size + -size % 8
    body = data[at + 64 : at + 64 + size]
    content: Any = body
    flaw = ""
    try:
        need((version, flags & ~1) == (1, 0) and kind in range(1, 6), "frame header")
        need(codec in (0, 1) and (codec or size == raw_size), "codec")
        need(end <= len(data), "frame goes on behind the end of the file")
        need(checksum == (xxh3(body, salt) if size else 0), "frame body checksum")
        need(not data[at + 64 + size : end].strip(b"\0"), "frame padding")
        need(synced <= at, "synced is above the frame")
        need(kind == DATA or (codec, columns, flags) == (0, 0, 0), "flags of a frame without data")
        if kind == DATA:
            content = rows(inflate(body, raw_size) if codec else body, count, columns, low, high)
        elif kind == CONFIG:
            content = json.loads(body)
            need((count, row) == (0, 0), "CONFIG with rows")
        elif kind == MARK:
            need((size, count, synced) == (0, 0, at), "MARK")
        elif kind == HOLE:
            need(count and not body.strip(b"\0"), "HOLE")
    except Flaw as problem:
        flaw = problem.what
    except (ValueError, error, IndexError) as problem:
        flaw = f"frame body: {problem}"
    return Frame(at, end, kind, codec, columns, raw_size, count, row, low, high, synced,
                 bool(flags & 1), head[56:], flaw, content)  # fmt: skip


def inflate(body: bytes, size: int) -> bytes:
    import pyarrow as pa  # the standard library of 3.11 has no zstd

    try:
        raw: bytes = pa.decompress(body, size, "zstd", asbytes=True)
    except pa.ArrowException as problem:
        raise Flaw(f"zstd: {problem}") from None
    need(len(raw) == size, "raw_size")
    return raw


def rows(body: bytes, n: int, columns: int, low: int, high: int) -> list[tuple[Any, ...]]:
    """§7: timestamp, value, key, tag, node and headers of each record."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        start, end = at, at + size
        at = end + -end % 8
        need(at <= len(body) and not body[end:at].strip(b"\0"), "a buffer's length or padding")
        return body[start:end]

    def offsets(count: int) -> tuple[int, ...]:
        found = unpack(f"<{count + 1}i", take(4 * count + 4))
        need(found[0] == 0 and sorted(found) == list(found), "offsets that fall")
        return found

    def pieces(ends: tuple[int, ...], data: bytes) -> list[bytes]:
        return [data[a:b] for a, b in zip(ends, ends[1:], strict=False)]

    def optional() -> list[Any]:
        bits = int.from_bytes(take((n + 7) // 8), "little")
        need(bits >> n == 0, "validity behind the last row")
        ends = offsets(n)
        found = pieces(ends, take(ends[-1]))
        return [piece if bits >> i & 1 else None for i, piece in enumerate(found)]

    need(n > 0 and columns < 32, "a frame without records, or with unknown columns")
    values = offsets(n)
    times = unpack(f"<{n}q", take(8 * n)) if columns & 1 else (low,) * n
    need((min(times), max(times)) == (low, high), "smallest or largest timestamp")
    keys, tags, nodes = (optional() if columns & bit else [None] * n for bit in (2, 4, 8))
    headers: list[Any] = [()] * n
    if columns & 16:
        lists = offsets(n)
        ends = offsets(lists[-1])
        names = [str(name, "utf-8") for name in pieces(ends, take(ends[-1]))]
        ends = offsets(lists[-1])
        pairs = list(zip(names, pieces(ends, take(ends[-1])), strict=True))
        headers = [tuple(pairs[a:b]) for a, b in zip(lists, lists[1:], strict=False)]
    value = pieces(values, take(values[-1]))
    need(at == len(body), "bytes behind the last buffer")
    text = [[None if item is None else str(item, "utf-8") for item in c] for c in (tags, nodes)]
    return list(zip(times, value, keys, *text, headers, strict=True))


def chain(frames: tuple[Frame, ...]) -> int:
    """§5: the chain hash."""
    return xxh3(b"".join(each.checksum for each in frames if each.kind != FOOTER))


@lru_cache(4096)
def sealed(data: bytes) -> tuple[Segment, int, list[tuple[int, str]]]:
    """§5, §8: a sealed segment, its chain hash, and all that is wrong with footer and trailer."""
    found = segment(data)
    flaws = list(found.flaws)
    if not found.frames or found.frames[-1].kind != FOOTER or found.frames[-1].flaw:
        return found, 0, [*flaws, (found.end, "no footer")]
    footer, frames = found.frames[-1], found.frames[:-1]
    try:
        need(len(data) == found.end + 32, "bytes behind the trailer", found.end)
        magic, position, whole, checksum = TRAILER.unpack(data[found.end :])
        need(magic == b"ESKEREND" and checksum == xxh3(data[-32:-8]), "trailer", found.end)
        need(position == footer.position, "trailer points elsewhere", found.end)
        need(whole == xxh3(data[:-32]), "hash of the file", found.end)
    except Flaw as problem:
        flaws.append((problem.position, problem.what))
    body, at = footer.content, footer.position
    records, k, end, raw, low, high, told, sections = SUMMARY.unpack(body[:64])
    data_frames = [each for each in frames if each.kind == DATA]
    highs: list[int] = []
    for each in data_frames:
        highs.append(max([each.high, *highs[-1:]]))
    p = 4 * k + -4 * k % 8
    columns: list[tuple[int, ...]] = [
        unpack_from(f"<{k}{kind}", body, 64 + skip) if len(body) >= 64 + 2 * p + 16 * k else ()
        for kind, skip in (("I", 0), ("I", p), ("q", 2 * p), ("q", 2 * p + 8 * k))
    ]
    same = told == chain(frames)  # else it was merged, or has a hole, and tells of what was there
    merged = all(
        each.kind == CONFIG
        or (each.kind == DATA and each.synced == each.position and not each.more)
        for each in frames
    )
    for right, what in (
        (records == footer.row == sum(each.count for each in frames), "number of records"),
        (k == len(data_frames), "number of frames"),
        (end == at, "end of the data"),
        (not same or raw == sum(each.raw_size for each in data_frames), "bytes of all bodies"),
        (low == min((each.low for each in data_frames), default=0), "smallest timestamp"),
        (high == max((each.high for each in data_frames), default=0), "largest timestamp"),
        (sections == 0 and len(body) == 64 + 2 * p + 16 * k, "size of the directory"),
        (columns[0] == tuple(each.position for each in data_frames), "positions in the directory"),
        (columns[1] == tuple(each.row for each in data_frames), "rows in the directory"),
        (columns[2] == tuple(each.low for each in data_frames), "smallest timestamps"),
        (columns[3] == tuple(highs), "largest timestamps"),
        (same or merged or any(each.kind == HOLE for each in frames), "chain hash"),
    ):
        if not right:
            flaws.append((at, f"footer: {what}"))
    return found, told, flaws


@lru_cache(1024)
def journal(data: bytes) -> tuple[bytes, int, list[tuple[int, ...]], list[tuple[int, str]], int]:
    """§13: store id, journal id, entries, what is wrong, and up to where it was durable."""
    need(len(data) >= 64, "journal is shorter than its header")
    magic, version, size, zeros, store, number, salt, _, checksum = JOURNAL.unpack(data[:64])
    need(magic == b"ESKERJNL" and checksum == xxh3(data[:56]), "journal header checksum")
    need((version, size, zeros) == (1, 64, 0), "journal header")
    entries: list[Any] = []
    flaws = []
    at, durable = 64, 0
    while data[at:].strip(b"\0") if data[at : at + 8] == bytes(8) else at < len(data):
        head = data[at : at + 64]
        if (
            len(head) < 64
            or head[:4] != b"ESKJ"
            or unpack_from("<Q", head, 56)[0] != xxh3(head[:56], (salt + at) % WRAP)
        ):
            flaws.append((at, "no journal entry"))
            at += 8
            while at < len(data) and data[at : at + 4] != b"ESKJ":
                at += 8
            continue
        _, size, topic, shard, synced, number_, position, after, checksum, _ = ENTRY.unpack(head)
        end = at + 64 + size + -size % 8
        body = data[at + 64 : at + 64 + size]
        durable = max(durable, synced)
        if len(body) < size or checksum != xxh3(body, salt):
            flaws.append((at, "journal entry's bytes"))
        elif data[at + 64 + size : end].strip(b"\0") or synced > at or size > 1 << 20:
            flaws.append((at, "journal entry"))
        else:
            entries.append((at, topic, shard, number_, position, after, body))
        at = end
    return store, number, entries, flaws, durable


@lru_cache(4096)
def counters(data: bytes) -> tuple[tuple[int, ...], list[tuple[int, str]]]:
    """§12: the words of a counters page, and what is wrong with it."""
    if not data:
        return (0,) * 128, []
    if len(data) != 1024:
        return (0,) * 128, [(0, "counters page does not have 1024 bytes")]
    words = unpack("<128Q", data)
    flaws = []
    if any(words) and (words[0] != 1 or data[56:64] != b"ESKCOUNT"):
        flaws.append((0, "counters page header"))
    if any(any(words[8 * line : 8 * line + 8]) for line in (9, 11, 12, 15)):
        flaws.append((0, "counters page has something in an empty line"))
    if words[104] % 2:
        flaws.append((832, "counters page was left while it was being written"))
    return words, flaws


# ---- the store -------------------------------------------------------------------------------


@lru_cache(8192)
def parsed(path: str) -> tuple[str, tuple[Any, ...]]:
    """§1: what a file is by its name, and the numbers in it."""
    found = NAME.fullmatch(path)
    if not found:
        return "stranger", ()
    kind = next(name for name in NAMES if found[name] is not None)
    parts = [part for part in found.groups() if part is not None][1:]
    return kind, tuple(int(part) if part.isdigit() else part for part in parts)


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
        return self.found is None or not any(each.count for each in self.found.frames)


class Judge:
    """Everything about one store; `judge` is the way in."""

    def __init__(self, files: Mapping[str, bytes], clean: bool, pages: bool) -> None:
        self.files = files
        self.clean = clean
        self.pages = pages
        self.problems: list[Problem] = []  # what no crash explains
        self.torn: list[Problem] = []  # what a crash may leave
        self.shards: dict[tuple[str, int], Shard] = {}
        self.topics: dict[int, dict[str, Any]] = {}
        self.store = b""
        self.named: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in NAMES}
        for path in files:
            kind, numbers = parsed(path)
            if kind == "stranger":
                self.problem(path, 0, "a stranger")
            else:
                self.named[kind].append((*numbers, path))
        for (path,) in self.named["temporary"]:
            if "/" in path:  # §14: one of the store itself stays until it is made again
                self.crash(path, 0, "a temporary file")
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
        for (path,) in self.named["lock"]:
            if self.files[path] and self.files[path][:1] != b"{":
                self.problem(path, 0, "a lock that does not say who holds it")
        redo = self.journals()
        shards: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        for kind in ("segment", "state", "counters"):
            for topic, shard, *rest in self.named[kind]:
                shards.setdefault((topic, shard), []).append((*rest,))
        for key in sorted({*shards, *redo}):
            names = [name for name in shards.get(key, ()) if len(name) > 1]
            self.shard(*key, names, redo.get(key, []))

    def journals(self) -> dict[tuple[int, int], list[Any]]:
        """§13: what is to be written again, by shard."""
        redo: dict[tuple[int, int], list[Any]] = {}
        for number, path in sorted(self.named["journal"]):
            self.crash(path, 0, "a journal")
            try:
                store, told, entries, flaws, durable = journal(self.files[path])
            except Flaw as flaw:
                self.crash(path, flaw.position, flaw.what)
                continue
            if (store, told) != (self.store, number):
                self.problem(path, 16, "journal of another store, or under another's name")
            for at, what in flaws:
                (self.problem if at < durable else self.crash)(path, at, what)
            torn = min((at for at, _ in flaws if at >= durable), default=len(self.files[path]))
            for at, topic, shard, *rest in entries:
                if at < torn:
                    redo.setdefault((topic, shard), []).append(rest)
        return redo

    # -- one shard

    def shard(self, topic: int, shard: int, names: list[Any], redo: list[Any]) -> None:
        where = f"topics/{topic:08d}/{shard:04d}"
        entry = self.topics.get(topic)
        if entry is None or shard >= entry["options"]["shards"]:
            self.crash(where, 0, "no catalog lists this shard")
            return
        mine = (self.store, topic, shard, entry["epoch"])
        page = self.state(where, mine, names)
        pieces, proven = self.pieces(where, mine, names, redo)
        if page and page.clean and page.segment:
            proven[page.segment] = max(proven.get(page.segment, 0), page.position)
        frontier = max(proven, default=0)
        records: list[Record] = []
        gaps: list[Gap] = []
        number, before = 0, (0, 0, 0, 0)
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
            if piece.number != number + 1 or found.previous[0] != before[0]:
                say(piece.path, 80, f"segment {piece.number} does not follow {number}")
                if not sure and piece.empty:
                    continue
                if not sure:
                    break  # it would leave a hole
            elif found.previous != before:
                self.problem(piece.path, 80, f"{found.previous}, but before it is {before}")
            kept = self.kept(piece, found, others[:1], proven.get(piece.number, 0), frontier)
            if not kept and not sure:
                break  # not even its CONFIG is there
            first = before[0]
            if (found.gap in GAPS) != (piece.base > first) or (found.gap and piece.base <= first):
                self.problem(piece.path, 12, f"gap {found.gap} from {first} to {piece.base}")
            if piece.base > first:
                gaps.append(Gap(first, piece.base - 1, GAPS.get(found.gap, "?")))
            high = before[3]
            for each in kept:
                first = piece.base + each.row
                if each.kind == DATA and not each.flaw:
                    records += [Record(first + i, *row) for i, row in enumerate(each.content)]
                    high = max(high, each.high)
                elif each.kind == HOLE:
                    gaps.append(Gap(first, first + each.count - 1, "corrupt"))
                elif each.kind == CONFIG and not each.flaw and each.content != entry:
                    self.problem(piece.path, 128, "CONFIG is not the catalog's entry")
            end = piece.base + max((each.row + each.count for each in kept), default=0)
            link = chain(kept) if piece.link is None else piece.link
            number, before = piece.number, (end, link, found.salt, high)
        self.shards[entry["name"], shard] = Shard(records, gaps, before[0])
        self.agree(where, page, entry, pieces, before[0])

    def pieces(self, where: str, mine: Any, names: list[Any], redo: list[Any]) -> Any:
        """The segments of a shard in order, logs with what the journal has; what is proven."""
        there = {name[:3]: (name[3], self.files[name[3]]) for name in names}
        proven: dict[int, int] = {number: 0 for number, _, kind in there if kind == "seg"}
        for number, base, kind in list(there):
            if kind == "log" and (number, base, "seg") in there:
                self.crash(there.pop((number, base, kind))[0], 0, "a log beside its sealed segment")
        for number, position, _, body in redo:
            self.redo(where, mine, there, proven, number, position, body)
        pieces = []
        for (number, base, kind), (path, data) in sorted(there.items()):
            found: Segment | None = None
            link: int | None = None
            flaws: Sequence[tuple[int, str]] = ()
            try:
                if kind == "seg":
                    found, link, flaws = sealed(data)
                else:
                    found = segment(data)
                    flaws = found.flaws
                if (found.store, found.topic, found.shard, found.epoch) != mine:
                    found, flaws = None, [(16, "a segment of another shard")]
                elif (found.number, found.base) != (number, base):
                    found, flaws = None, [(48, "a segment under another's name")]
            except Flaw as flaw:
                flaws = [(flaw.position, flaw.what)]
            pieces.append(Piece(number, base, path, len(data), found, flaws, link))
            synced = max((each.synced for each in found.frames), default=0) if found else 0
            if synced:
                proven[number] = max(proven.get(number, 0), synced)
        if any(piece.link is None for piece in pieces[:-1]):
            self.crash(where, 0, "a log that is not the last segment")
        return pieces, proven

    def redo(
        self, where: str, mine: Any, there: Any, proven: Any, number: int, position: int, body: bytes
    ) -> None:  # fmt: skip
        """§13: write the bytes of an entry into the log they belong to."""
        key = next((key for key in sorted(there, reverse=True) if key[0] == number), None)
        if key is None:
            if position or len(body) < 128:
                return  # of a segment that is no more
            base = unpack_from("<q", body, 56)[0]
            key = (number, base, "log")
            there[key] = (f"{where}/{number:08d}-{base:020d}.log", b"")
        path, data = there[key]
        if key[2] == "seg":
            return
        try:
            header = segment(data[:128])
            ours = (header.store, header.topic, header.shard, header.epoch) == mine
        except Flaw:
            ours = False
        if position:
            if not ours or not frame(bytes(position) + body, position, header.salt):
                return  # of another log that had this number
        elif ours and segment(body).created < header.created:
            return
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
        if after and after[0].found and after[0].number == piece.number + 1:
            if self.clean or after[0].number <= frontier or not after[0].empty:
                told = after[0].found.previous[0] - piece.base
        limit = proven
        if self.clean or piece.link is not None:
            limit = piece.size
        elif piece.number < frontier:
            ends = [each.end for each in found.frames if each.row + each.count == told]
            limit = max([limit, *ends])
        for at, what in piece.flaws:
            (self.problem if at < limit else self.crash)(piece.path, at, what)
        end = min((at for at, _ in piece.flaws if at >= limit), default=found.end)
        kept = [each for each in found.frames if each.position < end and each.kind != FOOTER]
        while kept and kept[-1].more:
            self.crash(piece.path, kept.pop().position, "an unfinished batch")
        while told is not None and kept and kept[-1].row + kept[-1].count > told:
            self.crash(piece.path, kept.pop().position, "behind the end that the next one names")
        for each, following in zip(kept, kept[1:], strict=False):
            if each.more and following.kind != DATA:
                self.problem(piece.path, following.position, "something else inside a batch")
        if piece.link is None and len(kept) < len(found.frames):
            self.crash(piece.path, end, "frames that do not count")
        if piece.link is None and found.end < piece.size:
            self.crash(piece.path, found.end, "something behind the last frame")
        return tuple(kept)

    def state(self, where: str, mine: tuple[Any, ...], segments: object) -> State | None:
        """§11: the state that counts."""
        path = f"{where}/state"
        page, flaws = state(self.files.get(path, b""))
        for at, what in flaws:
            self.crash(path, at, what)
        if page and (page.store, page.topic, page.shard, page.epoch) != mine:
            self.problem(path, 16, "the state of another shard")
        if segments and not page or page and not page.clean:
            self.crash(path, 0, "the shard was not closed")
        return page

    def agree(
        self, where: str, page: State | None, entry: Any, pieces: list[Piece], end: int
    ) -> None:
        """§11, §12: state and counters say the same as the segments."""
        path = f"{where}/state"
        durability = entry["options"]["durability"]
        if durability == "disk" and pieces and end > (page.ceiling if page else 0):
            self.problem(path, 32, f"offsets up to {end} were not set aside")
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
        words, flaws = counters(self.files.get(path, b"") if self.pages else b"")
        for at, what in flaws:
            self.problem(path, at, what)
        if words[105] > page.end or words[108] > words[105]:
            self.problem(path, 840, f"visible {words[105]}, durable {words[108]}")


def judge(files: Any, clean: bool = False, pages: bool = True) -> Judge:
    """What the files of a store hold, and what is wrong with them.

    Counters pages are never synced: after a power cut they may hold anything, until a writer opens
    their shard. `pages=False` leaves them out.
    """
    if hasattr(files, "contents"):
        files = files.contents()
    if isinstance(files, (str, Path)):
        files = in_directory(str(files))
    root = next((path.rpartition("/")[0] + "/" for path in files if path.endswith(FIRST)), "/")
    if root != "/":
        files = {path.removeprefix(root): data for path, data in files.items()}
    return Judge(files, clean, pages)


def in_directory(root: str) -> dict[str, bytes]:
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def judge_clean(files: Any, pages: bool = True) -> Judge:
    """The same for a store that was closed; raises AssertionError with all that is wrong."""
    found = judge(files, clean=True, pages=pages)
    assert not found.problems, "fsck:\n" + "\n".join(map(str, found.problems))
    return found
