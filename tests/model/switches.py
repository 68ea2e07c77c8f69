"""The same engine with its optimisations switched off.

A `Switches` is a set of attributes of the engine's modules and classes, swapped while one side of
the model test is at work and put back behind it, so that both kinds of engine live in one process
and do the same steps in turn.

    AS_SHIPPED      nothing is changed
    PLAIN_READS     no mapping (files are read), no cache of decoded frames or verified checksums,
                    no binary search (every directory is scanned, and a sealed one is made by
                    walking the frames), no short cut for few records, no append without a lock.
                    What is written must be the same to the byte.
    ALL_OFF         besides: no buffer (every append is written), no company at commit, no journal,
                    no merging at sealing or at reading, no room taken ahead, no short cut for plain
                    lists
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from esker.engine import committer, context, erasing, intake, page, reader, sealing, shard, writing
from esker.engine.committer import Committer, Ticket
from esker.engine.writing import Writing
from esker.format import checksum, columns, frame
from esker.format import segment as fmt
from esker.format.segment import Footer
from esker.storage import hole, log, marks, merge, scan, sealed, segment
from esker.storage.files import Files
from esker.storage.log import LogSegment
from esker.storage.maps import Fetched, Mapping
from esker.storage.sealed import Inside, SealedSegment
from esker.storage.segment import Directory

Setting = tuple[Any, str, Any]


class Switches:
    """Attributes to be swapped; entered and left around every step of a side."""

    def __init__(self, name: str, settings: Sequence[Setting] = (), **options: Any) -> None:
        self.name = name
        self.options = options  # for esker.open
        self._settings = settings
        self._before: list[Setting] = []

    def __enter__(self) -> None:
        self._before = [(owner, name, getattr(owner, name)) for owner, name, _ in self._settings]
        for owner, name, value in self._settings:
            setattr(owner, name, value)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for owner, name, value in self._before:
            setattr(owner, name, value)


class NoMaps:
    """In the place of `Maps`: reads the whole file, every time."""

    bytes = made = remade = dropped = hits = 0

    def __init__(self, files: Files, limit_bytes: int, cold: Fetched | None = None) -> None:
        self._files = files
        self.cold = cold or Fetched(files, 0)

    def get(self, path: str) -> Mapping:
        file = self._files.open(path, "r")
        try:
            return Mapping(file.read(0, file.size()))
        finally:
            file.close()

    def drop(self, path: str) -> None: ...
    def drop_replaced(self, path: str) -> None: ...
    def clear(self) -> None: ...
    def renew(self) -> None: ...


def _scan(before: Callable[[Any, Any], bool]) -> Callable[..., int]:
    """In the place of a binary search: looks at one after the other."""

    def search(
        items: Any, wanted: Any, lo: int = 0, hi: int | None = None, *, key: Any = None
    ) -> int:
        end = len(items) if hi is None else hi
        for at in range(lo, end):
            if not before(items[at] if key is None else key(items[at]), wanted):
                return at
        return max(lo, end)

    return search


_left = _scan(lambda item, wanted: item < wanted)
_right = _scan(lambda item, wanted: item <= wanted)
_read_footer = sealed.read_footer


def _walked_footer(data: Any, salt: int) -> Footer | str:
    """The footer, its directory made from the frames themselves; both must say the same."""
    footer = _read_footer(data, salt)
    if isinstance(footer, str):
        return footer
    seen = scan.walk(sealed.MappedFile(data), salt, fmt.HEADER_SIZE)
    directory = Directory()
    for position, header in seen.frames:
        if header.kind == frame.DATA:
            directory.add(position, header.first_row, header.min_timestamp, header.max_timestamp)
    found = (directory.positions, directory.first_rows, directory.min_timestamps,
             directory.max_timestamps)  # fmt: skip
    assert found == tuple(map(list, footer[6:])), "the directory is not that of the frames"
    return Footer(*footer[:6], *found)


def _forgetful(at: Any) -> Any:
    def forget_and_look(self: LogSegment, row: int) -> Any:
        self._decoded = (-1, None)
        return at(self, row)

    return forget_and_look


def _distrustful(look: Any) -> Any:
    def verify_again(self: SealedSegment, data: Any, at: int, position: int, inside: Inside) -> Any:
        inside.verified[at] = 0
        return look(self, data, at, position, inside)

    return verify_again


def _by_arrow(value: bytes, now_us: int) -> columns.Body:
    return columns.from_arrow(columns.to_columns([value], {}, now_us))


def _with_lock(
    self: Writing, value: Any, key: Any = None, tag: Any = None, node: Any = None,
    headers: Any = None, timestamp: Any = None, wait: bool | float = False,
) -> int:  # fmt: skip
    return self._append(value, key, tag, node, headers, timestamp, wait)


def _alone(self: Committer, shard: Any, values: Any, extras: Any, timeout: Any) -> int:
    ticket = Ticket(shard, values, extras)
    self.run_round([ticket])
    if ticket.error is not None:
        raise ticket.error
    return ticket.first


def _in_place(seal: Any) -> Any:
    def never_merging(self: LogSegment, files: Files, how: Any = segment.NO_COMPRESSION, **_: Any):  # type: ignore[no-untyped-def]
        return seal(self, files, how, merging=False)

    return never_merging


_READS: Final[Sequence[Setting]] = (
    (context, "Maps", NoMaps),
    (shard, "Maps", NoMaps),
    (LogSegment, "at", _forgetful(LogSegment.at)),
    (SealedSegment, "_frame", _distrustful(SealedSegment._frame)),
    (sealed, "read_footer", _walked_footer),
    (sealed, "bisect_left", _left),
    (sealed, "bisect_right", _right),
    (log, "bisect_left", _left),
    (log, "bisect_right", _right),
    (hole, "bisect_right", _right),
    (reader, "bisect_left", _left),
    (reader, "bisect_right", _right),
    (sealed, "FRAME_JOIN_BELOW", 0),
    (merge, "_FEW", 0),
    (writing, "one", _by_arrow),
    (Writing, "append", _with_lock),
    (intake, "_fnv1a_known", checksum.fnv1a),
)
_FEW: Final[Setting] = (columns, "FEW", 0)
_WRITES: Final[Sequence[Setting]] = (
    (writing, "FEW", 0),
    (committer, "JOURNAL_DIRTY_SHARDS", 1 << 30),
    (Committer, "append", _alone),
    (LogSegment, "seal", _in_place(LogSegment.seal)),
    (LogSegment, "allocate_ahead", lambda self, size, limit, early: None),
    (log, "FRAME_BYTES_TARGET", 0),
    (segment, "FRAME_JOIN_BELOW", 0),
)

AS_SHIPPED: Final = Switches("as shipped")
PLAIN_READS: Final = Switches("plain reads", (*_READS, _FEW))
ALL_OFF: Final = Switches("all off", (*_READS, _FEW, *_WRITES), linger=0)

# Boundaries that lie thousands of records away are brought near: both sides get these limits. Few
# records are then no longer always one frame, so that the short cut for them shows in the bytes.
SMALL_PLAIN_READS: Final = Switches("plain reads", _READS)
SMALL: Final[Sequence[Setting]] = (
    (columns, "FEW", 4),
    (writing, "FEW", 4),
    (shard, "BUFFER_RECORDS", 12),
    (writing, "BUFFER_BYTES", 9000),  # more than the largest record here
    (writing, "SMALL_RECORD_BYTES", 64),
    (shard, "FRAMES_PER_CLEAN_LOG", 6),
    (page, "RESERVE_OFFSETS", 16),
    (page, "RESERVE_OFFSETS_MAX", 64),
    (sealing, "ROLLED_MAX", 2),
    (sealed, "DECODED_MAX", 2),
    (committer, "JOURNAL_DIRTY_SHARDS", 1),
    (committer, "JOURNAL_ENTRY_BYTES_MAX", 2048),
    (segment, "FRAME_BYTES_TARGET", 512),
    (segment.split, "__defaults__", (512,)),
    (log, "FRAME_BYTES_TARGET", 512),
    (log, "ALLOCATE_FROM", 0),
    (log, "FRAME_MERGE_BELOW", 256),
    (log, "FRAME_JOIN_BELOW", 256),
    (segment, "FRAME_JOIN_BELOW", 256),
    (sealed, "FRAME_JOIN_BELOW", 256),
    (marks, "REWRITE_BYTES", 0),
    (erasing, "SCAN_BYTES", 512),
    (scan, "_GLANCE", 64),
    (scan, "_WINDOW", 256),
)
