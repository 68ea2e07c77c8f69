"""The bytes of each file of a store, read from docs/format.md and from nothing else; see fsck.py.

One file at a time: a function takes its bytes and gives what they hold, or raises `Flaw`. It is
pure and is remembered, for images of one store have most files in common. The sections named in
the comments are those of docs/format.md.
"""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct, error, unpack, unpack_from
from typing import Any

from msgspec import msgpack
from xxhash import xxh3_64_intdigest as xxh3


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
TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
CLASSES = {"fsync", "disk", "memory", "ephemeral"}

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


def routes(data: bytes) -> Any:
    """§22: the store that routes belong to."""
    head = CATALOG.at(data.ljust(64, b"\0"))
    need(head[:3] == (b"ESKR", 1, 0) and head.checksum == xxh3(data[:56]), "header of the routes")
    need(len(data) == 64 + head.size and head.body == xxh3(data[64:]), "body of the routes", 64)
    return head.store
