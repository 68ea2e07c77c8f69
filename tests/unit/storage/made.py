"""Logs and sealed segments made by hand, on a file system in memory."""

from __future__ import annotations

from typing import Any

from esker.format import catalog
from esker.format.columns import Body, Columns, from_lists
from esker.format.segment import SegmentHeader
from esker.options import topic_options
from esker.storage.log import LogSegment
from esker.storage.maps import Maps
from esker.storage.memory import MemoryFiles
from esker.storage.sealed import SealedSegment

FOLDER = "/shard"
STORE = bytes(range(16))
NOW = 1_700_000_000_000_000
CONFIG = catalog.encode_config(catalog.TopicEntry(7, "orders", 1, NOW, topic_options()))


def disk() -> MemoryFiles:
    files = MemoryFiles()
    files.make_dir(FOLDER)
    return files


def log_on(files: Any, base: int = 100, segment: int = 1) -> LogSegment:
    header = SegmentHeader(STORE, 7, 0, 1, segment, base, NOW, salt=0x0123456789ABCDEF)
    return LogSegment.create(files, FOLDER, header, CONFIG)


def body(*values: bytes, at: int = NOW) -> Body:
    return from_lists(list(values), {}, at)


def filled(files: Any, frames: int = 4, size: int = 10) -> LogSegment:
    """Frames of two rows each, a second apart; row n holds the number n."""
    log = log_on(files)
    for n in range(frames):
        values = (b"%0*d" % (size, 2 * n), b"%0*d" % (size, 2 * n + 1))
        log.append([body(*values, at=NOW + n * 1_000_000)])
    return log


def sealed_on(files: Any, log: LogSegment, **how: Any) -> SealedSegment:
    """Sealed, and opened as another process would."""
    made = log.seal(files, **how)
    log.close()
    return SealedSegment(made.path, made.name).attach(Maps(files, 1 << 30))


def numbers(columns: Columns) -> list[int]:
    return [int(value[-9:]) for value in columns.values.to_pylist()]


def flip(files: MemoryFiles, path: str, position: int) -> None:
    files.files[path][position] ^= 0x10
