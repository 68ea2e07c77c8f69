"""A second opinion on the bytes of a store, written from docs/format.md and from nothing else.

It imports nothing of Esker, so that no mistake of the engine can hide itself here. It reads the
files as they lie, in memory or in a directory, and says what they hold and what is wrong with them:

    judge(files)              what a crash may have left: what must be there after recovery, and the
                              problems that no crash explains
    judge(files, clean=True)  what a clean close has left: every deviation is a problem
    judge_clean(files)        the same, and raises AssertionError if there is one

`files` is a mapping of paths to bytes, a directory, or something with `contents()` such as a
simulated disk. Segments in a cold store are read too, if that is a directory: where the stubs say,
or in `cold`. The sections named in the comments are those of docs/format.md. Parsing is a pure
function of a file's bytes and is remembered: images of one store have most files in common.
"""

from __future__ import annotations

import json
import os
import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from struct import Struct, error, unpack, unpack_from
from typing import Any, NamedTuple

from msgspec import msgpack
from xxhash import xxh3_64_intdigest as xxh3
from xxhash import xxh3_128_hexdigest

from tests import fsck_groups, fsck_queues


class Layout:
    """Fields at fixed places: their struct format and their names."""

    def __init__(self, name: str, form: str, fields: str) -> None:
        self.struct = Struct("<" + form)
        self.make = namedtuple(name, fields)._make  # type: ignore[misc]
        self.size = self.struct.size

    def at(self, data: bytes, position: int = 0) -> Any:
        return self.make(self.struct.unpack_from(data, position))


IDENTITY = Layout("Identity", "8sHHI16sqQ", "magic version zero zeros store created checksum")
CATALOG = Layout(
    "Catalog", "4sHHQII16sQQQ",
    "magic version zero generation size zeros store body more checksum",
)  # fmt: skip
SEGMENT = Layout(
    "Header", "8sHHI16sQIIQqqQqQQqQQ",
    "magic version size gap store topic shard epoch number base created salt previous_end"
    " previous_chain previous_salt previous_high zeros checksum",
)  # fmt: skip
FRAME = Layout(
    "Head", "4sBBBBIIIIqqIIQQ",
    "magic version kind codec columns size raw_size count row low high synced flags body checksum",
)  # fmt: skip
SUMMARY = Layout("Summary", "QQQQqqQQ", "records frames end raw low high chain sections")
TRAILER = Layout("Trailer", "8sQQQ", "magic footer whole checksum")
STATE = Layout(
    "State", "4sHHQQIIqQQqqq16s16sQ352sQQ16sQ",
    "magic version flags generation topic shard epoch ceiling segment position end earliest evicted"
    " boot store losses lost marks marks_end zeros checksum",
)  # fmt: skip
JOURNAL = Layout(
    "Journal", "8sHH4s16sQQqQ", "magic version size mark store number salt created checksum"
)
ENTRY = Layout(
    "Entry", "4sIQIIQQqQQ",
    "magic size topic shard synced segment position after body checksum",
)  # fmt: skip
DELETIONS = Layout(
    "Deletions", "4sHHQQII16sQQ", "magic version zero number topic shard zeros store salt checksum"
)
ONCE = Layout(
    "Once", "4sHHQQII16sQQ", "magic version zero upto topic shard size store body checksum"
)
DATA, CONFIG, MARK, FOOTER, HOLE, DELETION, PLACE = 1, 2, 3, 4, 5, 6, 7
CLEAN = MORE = 1
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
TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
LINK = b"a link where a file should be"
CLASSES = {"fsync", "disk", "memory", "ephemeral"}

Record = namedtuple("Record", "offset timestamp value key tag node headers")
Gap = namedtuple("Gap", "first last reason")
Problem = namedtuple("Problem", "path position what")
Shard = namedtuple("Shard", "records gaps end")
Frame = namedtuple("Frame", "position end head flaw content")  # content: rows of DATA, else body
Segment = namedtuple("Segment", "header frames flaws end")  # zeros, a trailer or nothing follow


class Flaw(Exception):
    """Bytes are not as the format says."""

    def __init__(self, what: str, position: int = 0) -> None:
        super().__init__(what)
        self.what, self.position = what, position


def need(condition: object, what: str, position: int = 0) -> None:
    if not condition:
        raise Flaw(what, position)


def padded(size: int) -> int:
    return size + -size % 8


# ---- one file at a time ----------------------------------------------------------------------


@lru_cache(1024)
def identity(data: bytes) -> bytes:
    """§3: the store id."""
    need(len(data) == 48, "identity does not have 48 bytes")
    found = IDENTITY.at(data)
    need(found.checksum == xxh3(data[:40]), "identity checksum")
    need((found[:2], found[2:4]) == ((b"ESKERSTO", 1), (0, 0)), "identity header")
    return found.store


@lru_cache(1024)
def catalog(data: bytes) -> tuple[int, bytes, dict[int, dict[str, Any]]]:
    """§4: generation, store id, topics."""
    need(len(data) >= 64, "catalog is too short")
    head = CATALOG.at(data)
    need(head.checksum == xxh3(data[:56]), "catalog header checksum")
    need((head[:3], head.zeros, head.more) == ((b"ESKC", 1, 0), 0, 0), "catalog header")
    need(len(data) == 64 + head.size and head.body == xxh3(data[64:]), "catalog body", 64)
    told = json.loads(data[64:])
    topics = {topic["id"]: topic for topic in told["topics"]}
    names = {topic["name"] for topic in told["topics"]}
    need(len(topics) == len(names) == len(told["topics"]), "two topics with one id or name", 64)
    need(all(0 < topic < told["next_id"] for topic in topics), "next_id is not above all ids", 64)
    for former in told.get("former", ()):
        need(0 < former["id"] < told["next_id"], "next_id is not above a deleted one", 64)
        need(former["id"] not in topics, "a topic is listed and deleted", 64)
    for topic in topics.values():
        options = topic["options"]
        need(TOPIC.fullmatch(topic["name"]), f"topic name {topic['name']!r}", 64)
        need(1 <= options["shards"] <= 1024 and options["durability"] in CLASSES, "options", 64)
    return head.generation, head.store, topics


@lru_cache(1024)
def commit(data: bytes) -> tuple[int, bytes, dict[str, Any]]:
    """§15: sequence, store id, the batch."""
    need(len(data) >= 64, "commit is too short")
    head = CATALOG.at(data)
    need(head.checksum == xxh3(data[:56]), "commit header checksum")
    need((head[:3], head.zeros, head.more) == ((b"ESKB", 1, 0), 0, 0), "commit header")
    need(len(data) == 64 + head.size and head.body == xxh3(data[64:]), "commit body", 64)
    told = json.loads(data[64:])
    need(told["sequence"] == head.generation, "sequence", 64)
    return head.generation, head.store, told


def staged(data: bytes, ticket: dict[str, Any]) -> list[bytes]:
    """§15: the values of a staged segment, if it is what its ticket says."""
    need(len(data) == ticket["size"], "a staged segment of another size")
    need(xxh3(data[128:-32]) == ticket["hash"], "a staged segment with other bytes", 128)
    frames = walk(data[: ticket["footer"]], ticket["salt"])[0]
    found = [row[1] for each in frames if each.head.kind == DATA for row in each.content]
    need(len(found) == ticket["rows"], "a staged segment with other records", 128)
    return found


def losses(slot: Any) -> list[tuple[int, int]]:
    """§11: what was evicted, [first, end)."""
    return [unpack_from("<qq", slot.lost, 16 * n) for n in range(min(slot.losses, 22))]


@lru_cache(4096)
def state(data: bytes) -> tuple[Any, list[tuple[int, str]]]:
    """§11: the slot that counts, None if there is none, and what is wrong with the page."""
    flaws: list[tuple[int, str]] = []
    slots = []
    if data.strip(b"\0") and len(data) != 4608:
        flaws.append((0, "state page does not have 4608 bytes"))
    for at in (0, 4096):
        page = data[at : at + 512]
        if not page.strip(b"\0"):
            continue  # not written yet
        if len(page) < 512 or unpack_from("<Q", page, 504)[0] != xxh3(page[:504]):
            flaws.append((at, "state slot checksum"))
            continue
        slot = STATE.at(page)
        slots.append(slot)
        if slot[:2] != (b"ESKS", 1) or slot.flags > 1:
            flaws.append((at, "state slot header"))
        bounds = [-1, *(bound for loss in losses(slot) for bound in loss), slot.earliest + 1]
        if (
            slot.losses > 22
            or slot.lost[16 * slot.losses :].strip(b"\0")
            or any(before >= after for before, after in pairwise(bounds))
            or slot.evicted != max(bounds[-2], 0)
        ):
            flaws.append((at + 112, "losses of a state slot"))
        if slot.zeros.strip(b"\0") or bool(slot.marks) != bool(slot.marks_end):
            flaws.append((at + 472, "deletions of a state slot"))
    slots.sort(key=lambda slot: slot.generation)
    if len(slots) == 2 and slots[1].generation != slots[0].generation + 1:
        flaws.append((8, "state slots were not written in turn"))
    return (slots[-1] if slots else None), flaws


def once(data: bytes) -> tuple[Any, list[tuple[int, list[Any]]]]:
    """§15: header, and the offsets of batches with their marks."""
    need(len(data) >= 64, "table of keys is shorter than its header")
    header = ONCE.at(data)
    need(header.checksum == xxh3(data[:56]), "header checksum of a table of keys")
    need(
        (header.magic, header.version, header.zero) == (b"ESKO", 1, 0), "header of a table of keys"
    )
    need(header.size == len(data) - 64 and header.body == xxh3(data[64:]), "keys checksum")
    keys, numbers = msgpack.decode(data[64:])
    saved = [(offset, ["k", key, count]) for key, offset, count in keys]
    saved += [(offset, ["p", who, number, count]) for who, number, offset, count in numbers]
    need(all(0 <= at < at + mark[-1] <= header.upto for at, mark in saved), "places of keys", 64)
    for rows in (keys, numbers):
        need(rows == sorted(rows, key=lambda row: row[-2]), "keys that do not ascend", 64)
    return header, saved


@lru_cache(1024)
def deletions(data: bytes) -> tuple[Any, frozenset[int], int, tuple[int, str] | None]:
    """§16: header, the offsets that are deleted, the end of the last whole deletion, and a flaw."""
    need(len(data) >= 64, "file of deletions is shorter than its header")
    header = DELETIONS.at(data)
    need(header.checksum == xxh3(data[:56]), "deletions header checksum")
    need((header[:3], header.zeros) == ((b"ESKD", 1, 0), 0), "deletions header")
    offsets: set[int] = set()
    at, whole = 64, 0
    while at < len(data):
        found = frame(data, at, header.salt)
        if found is None or found.flaw or found.head.kind != DELETION:
            why = (found.flaw or "not a deletion") if found else "no frame of deletions"
            return header, frozenset(offsets), whole, (at, why)
        offsets |= found.content
        at = found.end
        whole = whole if found.head.flags else at
    return header, frozenset(offsets), whole, None


def bitmaps(body: bytes, head: Any) -> frozenset[int]:
    """§16: the offsets whose bits are set."""
    n = head.count
    need(n <= 32768 and len(body) == head.raw_size == 520 * n, "size of the bitmaps")
    numbers = unpack_from(f"<{n}q", body)
    bounds = (-1, *numbers, 2**50)
    need(all(before < after for before, after in pairwise(bounds)), "blocks that do not ascend")
    need((head.row, head.low, head.high, head.synced) == (0, 0, 0, 0), "DELETION")
    found: set[int] = set()
    for at, number in enumerate(numbers):
        bits = int.from_bytes(body[8 * n + 512 * at :][:512], "little")
        found.update(4096 * number + i for i in range(4096) if bits >> i & 1)
    return frozenset(found)


@lru_cache(4096)
def segment(data: bytes) -> Segment:
    """§5: the header of a segment and all its frames, whole or not."""
    need(len(data) >= 128, "segment is shorter than its header")
    header = SEGMENT.at(data)
    need(header.checksum == xxh3(data[:120]), "segment header checksum")
    need((header[:3], header.zeros) == ((b"ESKERSEG", 1, 128), 0), "segment header")
    return Segment(header, *walk(data, header.salt))


def walk(data: bytes, salt: int) -> tuple[tuple[Frame, ...], tuple[tuple[int, str], ...], int]:
    """§6, §9: every frame whose header verifies, what is wrong with or between them, the end."""
    frames: list[Frame] = []
    flaws: list[tuple[int, str]] = []
    at, row = 128, 0
    while not ends(data, at):
        found = frame(data, at, salt)
        if found is None:
            flaws.append((at, "no frame"))
            at, row = resync(data, at, salt), -1
            continue
        if found.flaw:
            flaws.append((at, found.flaw))
        elif row not in (-1, found.head.row):
            flaws.append((at, f"row {found.head.row} where {row} should be"))
        elif (found.head.kind == CONFIG) != (at == 128):
            flaws.append((at, "the first frame is not the only CONFIG"))
        elif found.head.kind == DELETION:
            flaws.append((at, "a deletion in a segment"))
        elif found.head.kind == PLACE and [each.head.kind for each in frames] not in ([], [CONFIG]):
            flaws.append((at, "a place behind other frames"))
        frames.append(found)
        at, row = found.end, found.head.row + found.head.count
        if found.head.kind == PLACE:
            row = -1  # what it had are elsewhere
        if found.head.kind == FOOTER:
            break
    return tuple(frames), tuple(flaws), at


def ends(data: bytes, at: int) -> bool:
    """Whether nothing but zeros follows."""
    return data[at : at + 8] == bytes(len(data[at : at + 8])) and not data[at:].strip(b"\0")


def resync(data: bytes, at: int, salt: int) -> int:
    """§9: the next position at which a frame verifies; the end if none does."""
    at = data.find(b"ESKF", at + 1)
    while at >= 0 and (at % 8 or not frame(data, at, salt)):
        at = data.find(b"ESKF", at + 1)
    return at if at >= 0 else len(data)


def frame(data: bytes, at: int, salt: int) -> Frame | None:
    """§6: the frame at a position; None if its header does not verify."""
    if len(data) < at + 64:
        return None
    head = FRAME.at(data, at)
    if head.magic != b"ESKF" or head.checksum != xxh3(data[at : at + 56], (salt + at) % 2**64):
        return None
    body = data[at + 64 : at + 64 + head.size]
    end = at + 64 + padded(head.size)
    content: Any = body
    flaw = ""
    try:
        need(head.version == 1 and 1 <= head.kind <= 7 and head.flags <= MORE, "frame header")
        need(head.codec == 1 or (head.codec == 0 and head.size == head.raw_size), "codec")
        need(end <= len(data), "the file ends inside a frame")
        need(head.body == (xxh3(body, salt) if body else 0), "frame body checksum")
        need(not data[at + 64 + head.size : end].strip(b"\0"), "frame padding")
        need(head.synced <= at, "a frame that was durable before it was written")
        if head.kind in (DATA, DELETION):
            raw = inflate(body, head.raw_size) if head.codec else body
            need(head.kind == DATA or not head.columns, "columns without data")
            content = rows(raw, head) if head.kind == DATA else bitmaps(raw, head)
        else:
            need(not (head.codec or head.columns or head.flags), "columns or flags without data")
        if head.kind == CONFIG:
            content = json.loads(body)
            need((head.count, head.row) == (0, 0), "CONFIG with rows")
        elif head.kind == MARK:
            need((head.size, head.count, head.synced) == (0, 0, at), "MARK")
        elif head.kind == HOLE:
            need(not body.strip(b"\0"), "HOLE")
        elif head.kind == PLACE:
            content = json.loads(body)
            kinds = {"root": str, "key": str, "size": int, "hash": int}
            need({name: type(value) for name, value in content.items()} == kinds, "PLACE")
            need((head.count, head.row, head.synced) == (0, 0, at), "PLACE with rows")
        elif head.kind == FOOTER:
            need(head.count == 0 and len(body) >= SUMMARY.size, "FOOTER")
    except Flaw as problem:
        flaw = problem.what
    except (ValueError, error, IndexError) as problem:
        flaw = f"frame body: {problem}"
    return Frame(at, end, head, flaw, content)


def inflate(body: bytes, size: int) -> bytes:
    import pyarrow as pa  # the standard library has no zstd

    try:
        raw: bytes = pa.decompress(body, size, "zstd", asbytes=True)  # to exactly this size
    except (pa.ArrowException, OSError) as problem:
        raise Flaw(f"zstd: {problem}") from None
    return raw


def rows(body: bytes, head: Any) -> list[tuple[Any, ...]]:
    """§7: timestamp, value, key, tag, node and headers of each record."""
    n, columns, at = head.count, head.columns, 0

    def take(size: int) -> bytes:
        nonlocal at
        start, at = at, padded(at + size)
        need(at <= len(body) and not body[start + size : at].strip(b"\0"), "length or padding")
        return body[start : start + size]

    def offsets(count: int) -> tuple[int, ...]:
        found = unpack(f"<{count + 1}i", take(4 * count + 4))
        need(found[0] == 0 and sorted(found) == list(found), "offsets that fall")
        return found

    def pieces(stops: tuple[int, ...]) -> list[bytes]:
        data = take(stops[-1])
        return [data[a:b] for a, b in pairwise(stops)]

    def optional() -> list[Any]:
        bits = int.from_bytes(take((n + 7) // 8), "little")
        need(bits >> n == 0, "validity behind the last row")
        return [item if bits >> i & 1 else None for i, item in enumerate(pieces(offsets(n)))]

    need(n > 0 and columns < 32, "a frame without records, or with unknown columns")
    values = offsets(n)
    times = unpack(f"<{n}q", take(8 * n)) if columns & 1 else (head.low,) * n
    need((min(times), max(times)) == (head.low, head.high), "smallest or largest timestamp")
    keys, tags, nodes = (optional() if columns & bit else [None] * n for bit in (2, 4, 8))
    headers: list[Any] = [()] * n
    if columns & 16:
        lists = offsets(n)
        names = [str(name, "utf-8") for name in pieces(offsets(lists[-1]))]
        pairs = list(zip(names, pieces(offsets(lists[-1])), strict=True))
        headers = [tuple(pairs[a:b]) for a, b in pairwise(lists)]
    texts = [[None if i is None else str(i, "utf-8") for i in column] for column in (tags, nodes)]
    found = list(zip(times, pieces(values), keys, *texts, headers, strict=True))
    need(at == len(body), "bytes behind the last buffer")
    return found


def chain(frames: Sequence[Frame]) -> int:
    """§5: the chain hash."""
    sums = [each.head.checksum.to_bytes(8, "little") for each in frames]
    return xxh3(b"".join(sums))


@lru_cache(4096)
def sealed(data: bytes) -> tuple[Segment, int, list[tuple[int, str]]]:
    """§5, §8: a sealed segment, its chain hash, and all that is wrong with it."""
    found = segment(data)
    flaws = list(found.flaws)
    if not found.frames or found.frames[-1].head.kind != FOOTER or found.frames[-1].flaw:
        return found, 0, [*flaws, (found.end, "no footer")]
    *frames, footer = found.frames
    if len(data) != found.end + 32:
        return found, 0, [*flaws, (found.end, "no trailer, or something behind it")]
    trailer = TRAILER.at(data, found.end)
    told, body = SUMMARY.at(footer.content), footer.content
    heads = [(each.position, each.head) for each in frames if each.head.kind == DATA]
    highs: list[int] = []
    for _, head in heads:
        highs.append(max([head.high, *highs[-1:]]))
    k = told.frames
    p = padded(4 * k)
    fits = len(body) == 64 + 2 * p + 16 * k
    columns: list[Any] = [
        list(unpack_from(f"<{k}{kind}", body, 64 + skip)) if fits else ()
        for kind, skip in (("I", 0), ("I", p), ("q", 2 * p), ("q", 2 * p + 8 * k))
    ]
    same = told.chain == chain(frames)  # else it was merged or mended, and tells of what was there
    hole = any(each.head.kind == HOLE for each in frames)
    merged = all(each.head.kind == CONFIG for each in frames[:1]) and all(
        (each.head.kind, each.head.synced, each.head.flags) == (DATA, each.position, 0)
        for each in frames[1:]
    )
    at, end = footer.position, found.end
    for right, position, what in (
        (trailer.magic == b"ESKEREND", end, "trailer"),
        (trailer.checksum == xxh3(data[-32:-8]), end, "trailer checksum"),
        (trailer.footer == at, end, "trailer points elsewhere"),
        (trailer.whole == xxh3(data[:-32]), end, "hash of the file"),
        (fits and told.sections == 0, at, "footer: size of the directory"),
        (told.records == footer.head.row, at, "footer: number of records"),
        (told.records == sum(each.head.count for each in frames), at, "footer: records"),
        (k == len(heads) and told.end == at, at, "footer: number of frames, or their end"),
        (told.low == min((head.low for _, head in heads), default=0), at, "footer: smallest time"),
        (told.high == max(highs, default=0), at, "footer: largest time"),
        (columns[0] == [position for position, _ in heads], at, "directory: positions"),
        (columns[1] == [head.row for _, head in heads], at, "directory: rows"),
        (columns[2] == [head.low for _, head in heads], at, "directory: smallest times"),
        (columns[3] == highs, at, "directory: largest times"),
        (same or merged or hole, at, "footer: chain hash"),
        (not same or told.raw == sum(h.raw_size for _, h in heads), at, "footer: bytes of bodies"),
    ):
        if not right:
            flaws.append((position, what))
    return found, told.chain, flaws


@lru_cache(1024)
def place(data: bytes) -> dict[str, Any] | None:
    """§8: what a stub says of where its segment lies; None of a whole segment, or a damaged one."""
    found = [each for each in segment(data).frames if each.head.kind != CONFIG]
    return found[0].content if found and found[0].head.kind == PLACE and not found[0].flaw else None


@lru_cache(1024)
def moved(data: bytes, whole: bytes) -> tuple[Segment, int, list[tuple[int, str]]]:
    """§8: a segment in a cold store, its chain hash, and all that is wrong with it or its stub."""
    stub, told = segment(data), place(data) or {}
    flaws = list(stub.flaws)
    *frames, footer = stub.frames
    if footer.head.kind != FOOTER or footer.flaw or len(data) != stub.end + 32:
        return stub, 0, [*flaws, (stub.end, "a stub without footer or trailer")]
    try:
        found, link, wrong = sealed(whole)
    except Flaw as flaw:
        return stub, 0, [*flaws, (flaw.position, flaw.what)]
    trailer, last = TRAILER.at(data, stub.end), found.frames[-1]
    head, end = found.header, stub.end
    kept = [each for each in frames if each.head.kind == CONFIG]
    name = f"{head.number:08d}-{head.base:020d}.seg-{told['hash']:016x}-"
    key = f"{head.store.hex()}/{head.topic:08d}/{head.shard:04d}/{name}"
    for right, position, what in (
        (len(frames) - len(kept) == 1, 128, "a stub with more than its place"),
        (trailer.magic == b"ESKEREND", end, "trailer of a stub"),
        (trailer.checksum == xxh3(data[-32:-8]), end, "trailer checksum of a stub"),
        (trailer.footer == footer.position, end, "trailer of a stub points elsewhere"),
        (trailer.whole == xxh3(data[:-32]), end, "hash of a stub"),
        (len(whole) == told["size"], 128, "a segment of another size was moved"),
        (whole[-16:-8] == told["hash"].to_bytes(8, "little"), 128, "another segment was moved"),
        (data[:128] == whole[:128], 0, "header of a stub"),
        (all(data[128 : e.end] == whole[128 : e.end] for e in kept), 128, "CONFIG of a stub"),
        (footer.content == last.content, footer.position, "footer of a stub"),
        (footer.head.row == last.head.row, footer.position, "records of a stub"),
        (told["key"][:-16] == key, 128, "a key that is not made of what it stands for"),
    ):
        if not right:
            flaws.append((position, what))
    return found, link, [*flaws, *wrong]


@lru_cache(1024)
def journal(data: bytes) -> tuple[Any, list[tuple[int, Any, bytes]], list[tuple[int, str]], int]:
    """§13: header, entries with their places and bytes, flaws, and up to where it was durable."""
    need(len(data) >= 64, "journal is shorter than its header")
    header = JOURNAL.at(data)
    need(header.checksum == xxh3(data[:12] + bytes(4) + data[16:56]), "journal header checksum")
    need(header[:3] == (b"ESKERJNL", 1, 64), "journal header")
    if header.mark == b"DROP":  # all that it says is in the segments
        return header, [], [], 0
    entries: list[tuple[int, Any, bytes]] = []
    flaws: list[tuple[int, str]] = []
    at, durable = 64, 0
    while not ends(data, at):
        found = journal_entry(data, at, header.salt)
        if found is None:
            flaws.append((at, "no journal entry"))
            at = data.find(b"ESKJ", at + 1)
            while at >= 0 and (at % 8 or not journal_entry(data, at, header.salt)):
                at = data.find(b"ESKJ", at + 1)
            if at < 0:
                break
            continue
        entries.append((at, *found))
        durable = max(durable, found[0].synced)
        at += 64 + padded(found[0].size)
    return header, entries, flaws, durable


def journal_entry(data: bytes, at: int, salt: int) -> tuple[Any, bytes] | None:
    if len(data) < at + 64:
        return None
    entry = ENTRY.at(data, at)
    if entry.magic != b"ESKJ" or entry.checksum != xxh3(data[at : at + 56], (salt + at) % 2**64):
        return None
    body = data[at + 64 : at + 64 + entry.size]
    padding = data[at + 64 + entry.size : at + 64 + padded(entry.size)]
    whole = len(body) == entry.size <= 1 << 20 and entry.body == xxh3(body, salt)
    return (entry, body) if whole and not padding.strip(b"\0") and entry.synced <= at else None


@lru_cache(4096)
def counters(data: bytes) -> tuple[tuple[int, ...], list[tuple[int, str]]]:
    """§12: the words of a counters page, and what is wrong with it."""
    if len(data) != 1024:
        return (0,) * 128, [(0, "counters page does not have 1024 bytes")] if data else []
    words = unpack("<128Q", data)
    flaws = []
    if any(words) and (words[0] != 1 or data[56:64] != b"ESKCOUNT"):
        flaws.append((0, "counters page header"))
    flaws += [
        (64 * line, "counters page has something in an empty line")
        for line in (9, 11, 12, 15)
        if any(words[8 * line : 8 * line + 8])
    ]
    if words[104] % 2:
        flaws.append((832, "counters page was left while it was being written"))
    return words, flaws


# ---- the store -------------------------------------------------------------------------------


NAME = {kind: re.compile(text) for kind, text in NAMES.items()}


@lru_cache(8192)
def parsed(path: str) -> tuple[str, tuple[Any, ...]]:
    """§1: what a file is by its name, and the numbers in it."""
    for kind, pattern in NAME.items():
        found = pattern.fullmatch(path)
        if found:
            parts = [part for part in found.groups() if part is not None]
            return kind, tuple(int(part) if part.isdigit() else part for part in parts)
    return "stranger", ()


def tag_index(data: bytes, number: int, salt: int, rows: int) -> dict[str, list[int]] | None:
    """§16: which rows carry which tag; None if nobody would believe it."""
    if len(data) < 64 or unpack_from("<Q", data, 56)[0] != xxh3(data[:56]):
        return None
    *known, tags, having, _, size, check = unpack_from("<4sHHQQIIIIQQ", data)
    if known != [b"ESKT", 1, 0, number, salt, rows] or check != xxh3(data[64:], salt):
        return None
    at, parts = 64, []
    for length in (4 * tags + 4, 4 * tags + 4, size, 4 * having):
        parts.append(data[at : at + length])
        at += -(-length // 8) * 8
    starts, ends = unpack(f"<{tags + 1}I", parts[0]), unpack(f"<{tags + 1}i", parts[1])
    found = unpack(f"<{having}I", parts[3])
    return {
        parts[2][ends[n] : ends[n + 1]].decode(): list(found[starts[n] : starts[n + 1]])
        for n in range(tags)
    }


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


def routes(data: bytes) -> Any:
    """§22: the store that routes belong to."""
    head = CATALOG.at(data.ljust(64, b"\0"))
    need(head[:3] == (b"ESKR", 1, 0) and head.checksum == xxh3(data[:56]), "header of the routes")
    need(len(data) == 64 + head.size and head.body == xxh3(data[64:]), "body of the routes", 64)
    return head.store


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
        for path in files:
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
        for key in sorted({*shards, *redo}):
            names = [name for name in shards.get(key, ()) if len(name) > 1]
            self.shard(*key, names, redo.get(key, []))
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
