"""Where a shard's files are, and whether they were left in order."""

from __future__ import annotations

from esker.errors import StorageError
from esker.format import names
from esker.format.state import State
from esker.storage import scan
from esker.storage.files import Files, join
from esker.storage.log import LogSegment, open_log


def shard_folder(root: str, topic: int, number: int) -> str:
    return join(root, names.TOPICS, names.topic(topic), names.shard(number))


def list_segments(files: Files, folder: str) -> list[names.SegmentName]:
    """The segments in a shard's directory, by number. Strangers are left out."""
    found = (names.parse_segment(name) for name in files.list(folder))
    return sorted(name for name in found if name is not None)


def load_log(files: Files, folder: str, name: names.SegmentName) -> LogSegment:
    """Open a log that is known to be whole: headers are walked, bodies are not read."""
    path = join(folder, names.segment(name.segment, name.base, sealed=False))
    file, header = open_log(files, path)
    if isinstance(header, str):
        raise StorageError(f"{path}: {header}", path=path)
    log = LogSegment(header, file)
    seen = scan.walk(file, header.salt, log.end, bodies=False)
    log.adopt(scan.verdict(seen, seen.size))
    log.synced = log.in_file = log.end
    return log


def is_clean(files: Files, folder: str, state: State | None, *, ephemeral: bool) -> bool:
    """Whether a shard was left in order: its state says so and its files agree."""
    if ephemeral:
        return state is None or state.clean
    found = list_segments(files, folder)
    logs = [name for name in found if not name.sealed]
    if state is None:
        return not found
    if not state.clean or len(logs) > 1:
        return False
    if not logs:
        return state.segment == 0
    if logs[-1].segment != state.segment or found[-1] != logs[-1]:
        return False
    path = join(folder, names.segment(logs[-1].segment, logs[-1].base, sealed=False))
    return size_of(files, path) == state.end_position


def size_of(files: Files, path: str) -> int:
    """The size of a file in bytes."""
    file = files.open(path, "r")
    try:
        return file.size()
    finally:
        file.close()
