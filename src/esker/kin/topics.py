"""topics: a shared WAL of frames of eleven types, segments `seg-*.data` + `.idx`. Little-endian.

    WAL frame        frame_len u32 (without itself), type u8, flags u8, topic_id u64, seq u64,
                     ts u64 (ms), node_len u16, tag_len u16, data_len u32, node, tag, data, XXH3-64
    segment frame    the same without type and topic_id: a segment is of one topic; behind the
                     checksum a byte may follow, D5 if the record is deleted
    .idx             offset u32, len u32, ts u64, flags u8, 3 bytes; 20 bytes a record, in order

    <root>/wal/[shard-NN/]wal-<16 digits>.log, topics/<8 hex digits>/seg-<first seq>.data, .idx

The checksum is over everything between frame_len and itself. In the WAL one that is wrong is where
the log ends; in a segment it is damage. A seq begins at 1; the offset here is one less.

What is read: segments, then the frames of the WAL that are in no segment, without what was deleted:
by the byte behind a frame of a segment, or by a control frame (topics_control). What is not: the
metadata snapshot, of which the layout is not documented, routers and leases. So a topic is called
by the hexadecimal number of its directory, unless the WAL still has the frame that tells its name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from esker.format.columns import Columns
from esker.kin import hops
from esker.kin.family import (
    Flaw,
    Kind,
    Part,
    Piece,
    SegmentWriter,
    Shards,
    check_sizes,
    make_dirs,
    must_be_new,
    read_if_there,
)
from esker.kin.topics_control import Dead, deletion_of, earliest_of, encode_name, name_of
from esker.storage.files import Files, join, replace_file

APPEND, TOPIC_CREATE, TOPIC_DELETE, DELETE, EVICT, MARK, CONFIG, HEAD = 1, 2, 3, 6, 7, 8, 9, 11
DELETED: Final = 0xD5  # behind a frame of a segment
TYPES: Final[dict[int, str]] = {
    1: "Append", 2: "TopicCreate", 3: "TopicDelete", 4: "RouterCreate", 5: "RouterDelete",
    6: "Delete", 7: "EvictWatermark", 8: "CheckpointMark", 9: "ConfigUpdate", 10: "Lease",
    11: "HeadWatermark",
}  # fmt: skip
HAS_TAG, HAS_NODE, DURABLE = 1, 2, 4
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_EVENTS: Final = 10_000
MAX_DATA: Final = (1 << 31) - (1 << 20)
_WAL: Final = struct.Struct("<IBBQQQHHI")
IDX: Final = struct.Struct("<IIQB3x")
_SUM: Final = struct.Struct("<Q")
_SEGMENT: Final = re.compile(r"seg-(\d{16})\.data")
_LOG: Final = re.compile(r"wal-(\d{16})\.log")
_TOPIC: Final = re.compile(r"[0-9A-F]{8,16}")
_NAMED: Final = pa.scalar(HAS_TAG | HAS_NODE, pa.uint8())
_TIME_MAX: Final = pa.scalar((1 << 63) // 1000 - 1, pa.uint64())


class Layout(NamedTuple):
    """Where the fields of a frame are."""

    flags: int
    seq: int
    size: int  # of the fixed part
    tail: int = 8  # the checksum, and what is behind it

    @property
    def least(self) -> int:
        """The smallest frame_len."""
        return self.size - 4 + self.tail


WAL: Final = Layout(5, 14, 38)
SEGMENT: Final = Layout(4, 5, 29)
FLAGGED: Final = SEGMENT._replace(tail=9)


def layout_of(data: memoryview) -> Layout:
    """Whether the frames of a segment have a byte behind them that tells if they are deleted."""
    if len(data) < SEGMENT.size:
        return SEGMENT
    length, nodes, tags, datas = struct.unpack_from("<I17xHHI", data)
    return FLAGGED if length == FLAGGED.least + nodes + tags + datas else SEGMENT


class Frame(NamedTuple):
    """One frame of the WAL."""

    type: int
    topic: int
    seq: int = 0
    ts: int = 0
    data: bytes = b""
    tag: bytes | None = None
    node: bytes | None = None
    durable: bool = False


# ---- bytes -----------------------------------------------------------------------------------


def frame(it: Frame) -> bytes:
    """One frame of the WAL, as bytes."""
    node, tag = it.node or b"", it.tag or b""
    flags = (it.tag is not None) | (it.node is not None) << 1 | it.durable << 2
    size = WAL.size - 4 + len(node) + len(tag) + len(it.data) + 8
    head = _WAL.pack(
        size, it.type, flags, it.topic, it.seq, it.ts, len(node), len(tag), len(it.data)
    )
    body = b"".join((head[4:], node, tag, it.data))
    return b"".join((head[:4], body, _SUM.pack(xxh3_64_intdigest(body))))


def frames(data: memoryview) -> tuple[list[Frame], int, str]:
    """All frames of a WAL, where its log ends, and why if not at the end of the file."""
    found: list[Frame] = []
    at, size = 0, len(data)
    while at + 4 <= size:
        (length,) = struct.unpack_from("<I", data, at)
        if not length:
            return found, at, ""  # made larger in advance
        if length < WAL.least or at + 4 + length > size:
            return found, at, "torn" if length >= WAL.least else f"a frame of {length} bytes"
        (_, kind, flags, topic, seq, ts, nodes, tags, datas) = _WAL.unpack_from(data, at)
        body, behind = at + WAL.size, at + 4 + length
        if WAL.least + nodes + tags + datas != length:
            return found, at, "lengths that do not add up"
        if xxh3_64_intdigest(data[at + 4 : behind - 8]) != _SUM.unpack_from(data, behind - 8)[0]:
            return found, at, "a checksum that is wrong"
        node, tag = (
            bytes(data[body : body + nodes]),
            bytes(data[body + nodes : body + nodes + tags]),
        )
        found.append(
            Frame(
                kind, topic, seq, ts, bytes(data[body + nodes + tags : behind - 8]),
                tag if flags & HAS_TAG else None, node if flags & HAS_NODE else None,
                bool(flags & DURABLE),
            )
        )  # fmt: skip
        at = behind
    return found, at, "torn" if at < size else ""


def encode(columns: Columns, first: int) -> tuple[memoryview, bytes]:
    """Records as frames of a segment, and their entries in the .idx from byte 0 on."""
    values, count = columns.values, len(columns.values)
    tags, nodes = (_binary(column, count) for column in (columns.tags, columns.nodes))
    flags = pc.add(
        pc.cast(pc.is_valid(tags), pa.uint8()),
        pc.multiply(pc.cast(pc.is_valid(nodes), pa.uint8()), pa.scalar(2, pa.uint8())),
    )
    tags, nodes = (pc.fill_null(column, b"") for column in (tags, nodes))
    stamps = columns.timestamps
    if isinstance(stamps, int):
        stamps = pa.array([stamps] * count, pa.int64())
    millis = pc.divide(stamps, 1000).view(pa.uint64())
    fields = [
        _fixed(flags, 1), _fixed(pa.arange(first + 1, first + 1 + count).view(pa.uint64()), 8),
        _fixed(millis, 8), _fixed(pc.cast(pc.binary_length(nodes), pa.uint16()), 2),
        _fixed(pc.cast(pc.binary_length(tags), pa.uint16()), 2), _fixed(hops.lengths(values), 4),
        nodes, tags, values,
    ]  # fmt: skip
    bodies = pc.binary_join_element_wise(*fields, pa.scalar(b"", pa.binary()))
    view = bytes(memoryview(bodies.buffers()[2]).cast("B"))
    places = memoryview(bodies.buffers()[1]).cast("i")[: count + 1].tolist()
    digests = [xxh3_64_intdigest(view[a:b]) for a, b in pairwise(places)]
    sums = pa.array(digests, pa.uint64())
    sizes = pc.add(hops.lengths(bodies), pa.scalar(8, pa.uint32()))
    data = hops.joined([_fixed(sizes, 4), bodies, _fixed(sums, 8)])
    entries = pc.binary_join_element_wise(
        _fixed(pa.array([at + 12 * row for row, at in enumerate(places[:-1])], pa.uint32()), 4),
        _fixed(pc.add(sizes, pa.scalar(4, pa.uint32())), 4), _fixed(millis, 8), _fixed(flags, 1),
        pa.scalar(bytes(3)), pa.scalar(b"", pa.binary()),
    )  # fmt: skip
    return data, bytes(memoryview(entries.buffers()[2])[: 20 * count])


def _binary(column: Any, count: int) -> Any:
    return pa.nulls(count, pa.binary()) if column is None else column.cast(pa.binary())


def _fixed(values: Any, width: int) -> Any:
    return hops.fixed(hops.packed(values, width, "<"), width, len(values))


def _sums(data: bytes, base: int, starts: Sequence[int], end: int, tail: int) -> Any:
    """The checksums of frames that lie in `data`, which begins at `base`, up to `end`."""
    skip, left, digest = 4 - base, -tail - base, xxh3_64_digest
    places = pairwise(chain(starts, (end,)))
    made = b"".join([digest(data[begin + skip : behind + left]) for begin, behind in places])
    return hops.unpacked(made, 8, ">")


class Decoded(NamedTuple):
    """A stretch of frames."""

    columns: Columns
    seqs: Any
    types: Any  # of WAL frames only
    topics: Any
    end: int
    problem: str
    alive: Any = None  # a mask, of segment frames that tell it


def decode(data: memoryview, at: int = 0, layout: Layout = SEGMENT) -> Decoded | None:
    """The frames of a stretch, up to the first that is not what was written; None: no frame."""
    size = len(data)
    found = hops.hop(data, at, size, "<", 4, 4, least=layout.least, zeros_end=True)
    problem = "torn" if found.torn else ""
    if found.wrong >= 0:
        problem = f"a frame of {found.wrong} bytes"
    count, end = len(found.starts), found.end
    if not count:
        return Decoded(_NOTHING, _NO_SEQS, None, None, end, problem) if problem else None
    begin = hops.integers(found.starts, at)
    fixed = 6 if layout is WAL else layout.seq  # from here on all fields are aligned
    bounds = [hops.plus(begin, step) for step in (fixed, layout.size)]
    head = hops.Heads(hops.Pieces(data, at, end, bounds).column(0), layout.size - fixed)

    def field(place: int, width: int) -> Any:
        return head.numbers(place - fixed, width)

    sizes = pc.subtract(hops.following(begin, end - at), hops.plus(begin, 4))  # as was hopped by
    node_len, tag_len, data_len = (
        field(layout.size - place, width).cast(pa.int64())
        for place, width in ((8, 2), (6, 2), (4, 4))
    )
    told = pc.add(pc.add(node_len, tag_len), pc.add(data_len, layout.least))
    good, why = _until(pc.equal(told, sizes.cast(pa.int64())), "lengths that do not add up")
    sums_at = hops.plus(begin, hops.plus(sizes, 4 - layout.tail))
    flags = hops.byte_at(data, at, end, hops.plus(begin, layout.flags))
    named = pc.any(pc.bit_wise_and(flags, _NAMED).cast(pa.bool_())).as_py()
    named = named or pc.max(pc.add(node_len, tag_len)).as_py() > 0
    if good:  # what is cut below, must be where it says that it is
        behind = end if good == count else found.starts[good]
        sums = _sums(bytes(data[at:behind]), at, found.starts[:good], behind, layout.tail)
        values_at = nodes_at = hops.plus(begin, layout.size)
        bounds = []
        if named:  # a node and a tag before each value, if only of no bytes
            tags_at = hops.plus(nodes_at, node_len.cast(pa.int32()))
            values_at = hops.plus(tags_at, tag_len.cast(pa.int32()))
            bounds = [nodes_at, tags_at]
        bounds += [values_at, sums_at, hops.plus(sums_at, 8)]
        body = hops.Pieces(data, at, behind, [bound.slice(0, good) for bound in bounds])
        stored = body.numbers(len(bounds) - 2, 8, "<")
        fine, wrong = _until(pc.equal(stored, sums), "a checksum that is wrong")
        if wrong:
            good, why = fine, wrong
    if not good:
        return Decoded(_NOTHING, _NO_SEQS, None, None, at, why)
    types: Any = None
    topics: Any = None
    alive: Any = None
    if layout is WAL:
        types, topics = hops.byte_at(data, at, end, hops.plus(begin, 4)), field(6, 8)
    flags = flags.slice(0, good)
    seqs, times = (field(layout.seq + more, 8).slice(0, good) for more in (0, 8))
    fits = pc.and_(pc.less_equal(seqs, hops.TOP), pc.less(times, _TIME_MAX))
    fine, wrong = _until(fits, "a number beyond all that is used")
    tags, nodes, row = _texts(body, flags, fine) if named else (None, None, fine)
    if row < fine:
        fine, wrong = row, "a tag or a node that is not text"
    if wrong:
        good, why = fine, wrong
    if good < count:
        problem, end = why, found.starts[good]
    columns = Columns(
        body.column(2 if named else 0).slice(0, good),
        pc.multiply(times.slice(0, good).view(pa.int64()), 1000),
        None,
        None if tags is None else tags.slice(0, good),
        None if nodes is None else nodes.slice(0, good),
    )
    if layout.tail > 8:
        marks = hops.byte_at(data, at, found.end, hops.plus(sums_at, 8).slice(0, good))
        alive = pc.not_equal(marks, DELETED)
    elif layout is WAL:
        types, topics = types.slice(0, good), topics.slice(0, good)
    kept = seqs.slice(0, good).view(pa.int64())
    return Decoded(columns, kept, types, topics, end, problem, alive)


_NOTHING: Final = Columns(pa.array([], pa.binary()), pa.array([], pa.int64()))
_NO_SEQS: Final = pa.array([], pa.int64())


def _until(fine: Any, problem: str) -> tuple[int, str]:
    """How many come before the first that is not fine, and the problem if there is such a one."""
    row = pc.index(fine, False).as_py()
    return (len(fine), "") if row < 0 else (row, problem)


def _texts(body: hops.Pieces, flags: Any, count: int) -> tuple[Any, Any, int]:
    """Tags and nodes as text, null where there is none; and the first row that is not text."""
    made: list[Any] = []
    least = count
    for kind, bit in ((1, HAS_TAG), (0, HAS_NODE)):
        mask = pc.not_equal(pc.bit_wise_and(flags, pa.scalar(bit, pa.uint8())), 0)
        if not pc.any(mask).as_py():
            made.append(None)
            continue
        column = pc.if_else(mask, body.column(kind).slice(0, len(mask)), None)
        try:
            made.append(column.cast(pa.string()))
        except pa.ArrowInvalid:
            for row, cell in enumerate(column.to_pylist()):
                if cell is not None and not _is_text(cell):
                    least = min(least, row)
                    break
            made.append(column.slice(0, least).cast(pa.string()))
    return made[0], made[1], least


def _is_text(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---- files -----------------------------------------------------------------------------------


class OfWal(NamedTuple):
    """That a part is a WAL, of which one topic is wanted."""

    topic: int
    behind: int  # offsets before this one are in segments
    dead: Dead | None = None


class Topics(Kind):
    """A data directory of topics."""

    name = "topics"
    carries = frozenset({"timestamp", "tag", "node"})
    max_record = MAX_DATA

    def survey(self, files: Files, root: str) -> dict[str, Shards]:
        logs = _look_at_wals(files, root)
        place = join(root, "topics")
        folders = {
            int(name, 16): name
            for name in sorted(files.list(place))
            if _TOPIC.fullmatch(name) and files.kind(join(place, name)) == "dir"
        }
        found: dict[str, Shards] = {}
        for topic in sorted({*folders, *logs.firsts}):
            if topic in logs.deleted:
                continue
            folder = join(place, folders.get(topic, ""))
            names = sorted(filter(_SEGMENT.fullmatch, files.list(folder))) if folders else []
            names = names if topic in folders else []
            dead = logs.dead.get(topic)
            parts = [Part(join(folder, name), int(name[4:20]) - 1, False, dead) for name in names]
            behind = _end_of_segments(files, parts)
            for first, path in sorted(logs.firsts.get(topic, [])):
                parts.append(Part(path, max(first, behind), False, OfWal(topic, behind, dead)))
            if parts:
                parts[-1] = parts[-1]._replace(last=True)
                found[logs.names.get(topic) or folders.get(topic) or f"{topic:08X}"] = {0: parts}
        return found

    def pieces(self, data: memoryview, part: Part, at: int, first: int) -> Iterator[Piece | Flaw]:
        if isinstance(part.extra, OfWal):
            yield from _of_wal(data, part, first)
            return
        layout = layout_of(data)
        while at < len(data):
            found = decode(data, at, layout)
            if found is None:
                return
            problem, count = found.problem, len(found.seqs)
            expected = pa.arange(first + 1, first + 1 + count)
            good, wrong = _until(pc.equal(found.seqs, expected), "a seq that does not follow")
            if good:
                behind = found.end if good == count else at
                alive = None if found.alive is None else found.alive.slice(0, good)
                columns, seqs = found.columns.slice(0, good), found.seqs.slice(0, good)
                yield _living(Piece(columns, first, behind), seqs, alive, part.extra)
                first += good
            if problem or wrong:
                torn = problem == "torn" and not wrong and part.last
                text = "the last frame is not whole" if torn else wrong or problem
                yield Flaw("torn" if torn else "corrupt", part.path, found.end, text)
                return
            at = found.end

    def seek(
        self, files: Files, part: Part, data: memoryview, first: int, offset: int
    ) -> tuple[int, int]:
        if isinstance(part.extra, OfWal):
            return 0, first
        index = read_if_there(files, index_path(part.path)) or b""
        number = min(offset - first, len(index) // IDX.size - 1)
        if number <= 0:
            return 0, first
        at, size, _, _ = IDX.unpack_from(index, number * IDX.size)
        if at + size > len(data) or size < SEGMENT.least + 4:
            return 0, first
        length, seq = struct.unpack_from("<IxQ", data, at)
        true = length + 4 == size and seq == first + number + 1
        return (at, first + number) if true else (0, first)

    def beside(self, files: Files, part: Part, data: memoryview) -> Iterator[Flaw]:
        if isinstance(part.extra, OfWal):
            return
        path = index_path(part.path)
        index = read_if_there(files, path)
        if index is None:
            yield Flaw("index", path, 0, "there is no index; it can be made from the segment")
            return
        true = build_index(data)
        if index != true:
            places = (
                n for n, pair in enumerate(zip(index, true, strict=False)) if len({*pair}) > 1
            )
            at = next(places, min(len(index), len(true)))
            yield Flaw("index", path, at // 20 * 20, "an entry that is not what the segment says")

    def around(self, files: Files, root: str) -> Iterator[Flaw]:
        for path in _wal_paths(files, root):
            data = memoryview(read_if_there(files, path) or b"")
            found, at, problem = frames(data)
            if problem:
                text = "the last frame is not whole" if problem == "torn" else problem
                yield Flaw("torn", path, at, f"{text}: the log ends here")
            unread = [it.type for it in found if not _is_understood(it)]
            for kind in sorted({*unread}):
                name = TYPES.get(kind, f"type {kind}")
                text = f"{unread.count(kind)} frames of {name}: what they say is left out"
                yield Flaw("unread", path, 0, text)
        for name in sorted(files.list(join(root, "meta"))):
            text = "a snapshot, of which the layout is not documented"
            yield Flaw("unread", join(root, "meta", name), 0, text)

    def writer(
        self, files: Files, root: str, topic: str, shard: int, **options: Any
    ) -> SegmentWriter:
        place = join(root, "topics")
        number = 1 + max((int(n, 16) for n in files.list(place) if _TOPIC.fullmatch(n)), default=0)
        folder = join(place, f"{number:08X}")
        must_be_new(files, folder)
        name = topic if options.get("shards", 1) == 1 else f"{topic}.{shard}"
        _name_topic(files, root, number, name)
        return _Writer(files, folder, options.get("segment_bytes", SEGMENT_BYTES), MAX_DATA)


def index_path(path: str) -> str:
    """The index of a segment."""
    return path.removesuffix(".data") + ".idx"


def build_index(data: memoryview) -> bytes:
    """The .idx of a segment, made anew from its frames."""
    entries, at = [], 0
    while at < len(data):
        found = hops.hop(data, at, len(data), "<", 4, 4, least=SEGMENT.least, zeros_end=True)
        for start in found.starts:
            length, flags, _, ts = struct.unpack_from("<IBQQ", data, start)
            entries.append(IDX.pack(start, length + 4, ts, flags))
        if found.end == at:
            break
        at = found.end
    return b"".join(entries)


def _is_understood(it: Frame) -> bool:
    """Whether a frame is a record, or says nothing about records that is left out here."""
    match it.type:
        case kind if kind in (TOPIC_CREATE, CONFIG):
            return name_of(it.data) is not None
        case kind if kind == DELETE:
            return deletion_of(it.data) is not None
        case kind if kind == EVICT:
            return earliest_of(it.data) is not None
    return it.type in (APPEND, TOPIC_DELETE, MARK, HEAD)


def _living(piece: Piece, seqs: Any, alive: Any, dead: Dead | None) -> Piece:
    """A piece without the records that are deleted."""
    if dead is not None:
        rest = dead.living(seqs, piece.columns.tags)
        alive = rest if alive is None else pc.and_(alive, rest)
    if alive is None or pc.all(alive).as_py():
        return piece
    offsets = pc.subtract(seqs.filter(alive), 1)
    first = offsets[0].as_py() if len(offsets) else piece.first
    columns = _filtered(piece.columns, alive)
    return Piece(columns, first, piece.position, offsets, piece.end)


def _filtered(columns: Columns, mask: Any) -> Columns:
    return Columns(*(None if column is None else column.filter(mask) for column in columns))


class _Logs(NamedTuple):
    names: dict[int, str]
    deleted: set[int]
    firsts: dict[int, list[tuple[int, str]]]  # by topic: first offset and file
    dead: dict[int, Dead]


def _wal_paths(files: Files, root: str) -> list[str]:
    place = join(root, "wal")
    folders = [place]
    shards = (name for name in sorted(files.list(place)) if re.fullmatch(r"shard-\d+", name))
    folders += [join(place, name) for name in shards]
    return [
        join(folder, name)
        for folder in folders
        for name in sorted(filter(_LOG.fullmatch, files.list(folder)))
    ]


def _look_at_wals(files: Files, root: str) -> _Logs:
    logs = _Logs({}, set(), {}, {})
    for path in _wal_paths(files, root):
        data = memoryview(read_if_there(files, path) or b"")
        at = 0
        while at < len(data) and (found := decode(data, at, WAL)) is not None:
            if found.types is not None:
                _note(logs, path, found)
            if found.problem:
                break
            at = found.end
    return logs


def _note(logs: _Logs, path: str, found: Decoded) -> None:
    appends = pc.equal(found.types, APPEND)
    table = pa.table([found.topics.filter(appends), found.seqs.filter(appends)], ["id", "seq"])
    for row in table.group_by("id").aggregate([("seq", "min")]).to_pylist():
        known = logs.firsts.setdefault(row["id"], [])
        if not known or known[-1][1] != path:
            known.append((row["seq_min"] - 1, path))
    for row in pc.indices_nonzero(pc.invert(appends)).to_pylist():
        topic, kind = found.topics[row].as_py(), found.types[row].as_py()
        body = found.columns.values[row].as_py()
        if kind in (TOPIC_CREATE, CONFIG):
            logs.deleted.discard(topic)
            if name := name_of(body):
                logs.names[topic] = name
        elif kind == TOPIC_DELETE:
            logs.deleted.add(topic)
            logs.firsts.pop(topic, None)
            logs.dead.pop(topic, None)
        elif kind == DELETE and (deletion := deletion_of(body)):
            logs.dead.setdefault(topic, Dead()).add(deletion)
        elif kind == EVICT and (earliest := earliest_of(body)):
            dead = logs.dead.setdefault(topic, Dead())
            dead.floor = max(dead.floor, earliest)


def _end_of_segments(files: Files, parts: list[Part]) -> int:
    """The offset behind the last segment, by its index, which has an entry for each record."""
    if not parts:
        return 0
    index = read_if_there(files, index_path(parts[-1].path))
    if index is None:
        index = build_index(memoryview(read_if_there(files, parts[-1].path) or b""))
    return parts[-1].first + len(index) // IDX.size


def _of_wal(data: memoryview, part: Part, first: int) -> Iterator[Piece]:
    """The frames of a topic in a WAL that are in no segment. Where it ends, it ends."""
    at = 0
    while at < len(data) and (found := decode(data, at, WAL)) is not None:
        if found.types is not None:
            wanted = pc.and_(
                pc.and_(pc.equal(found.types, APPEND), pc.equal(found.topics, part.extra.topic)),
                pc.greater(found.seqs, first),
            )
            seqs = found.seqs.filter(wanted)
            row = hops.is_rising(seqs)
            if row >= 0:
                seqs = seqs.slice(0, row)
            if len(seqs):
                columns = _filtered(found.columns, wanted).slice(0, len(seqs))
                begin, last = seqs[0].as_py() - 1, seqs[-1].as_py() - 1
                follows = last - begin == len(seqs) - 1
                offsets = None if follows else pc.subtract(seqs, 1)
                piece = Piece(columns, begin, found.end, offsets)
                yield _living(piece, seqs, None, part.extra.dead)
                first = last + 1
        if found.problem:
            return
        at = found.end


def _name_topic(files: Files, root: str, number: int, name: str) -> None:
    """Say in the WAL what a topic is called."""
    folder = join(root, "wal")
    make_dirs(files, folder)
    path = join(folder, f"wal-{0:016}.log")
    known = read_if_there(files, path) or b""
    created = frame(Frame(TOPIC_CREATE, number, data=encode_name(name), durable=True))
    replace_file(files, path, known + created)
    replace_file(files, join(folder, "CURRENT"), f"wal-{0:016}.log\n".encode())


class _Writer(SegmentWriter):
    overhead = SEGMENT.size + 8
    rows_max = SEGMENT_EVENTS

    def file_name(self, first: int, columns: Columns) -> str:
        self._entries: list[bytes] = []
        return f"seg-{first + 1:016}.data"

    def encode(self, columns: Columns, first: int) -> memoryview:
        check_sizes(columns, MAX_DATA, "topics")
        data, entries = encode(columns, first)
        if self.size:
            entries = b"".join(
                IDX.pack(at + self.size, size, ts, flags)
                for at, size, ts, flags in IDX.iter_unpack(entries)
            )
        self._entries.append(entries)
        return data

    def finish_file(self) -> None:
        replace_file(self._files, index_path(self.path), b"".join(self._entries))
