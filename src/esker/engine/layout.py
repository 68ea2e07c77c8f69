"""Where a shard's files are, and whether they were left in order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache

from esker.engine.context import LOG
from esker.errors import Corruption, StorageError
from esker.format import names, offsets
from esker.format.offsets import Slot
from esker.format.segment import Owner, misplaced
from esker.format.state import State
from esker.storage import scan
from esker.storage.files import Files, join, parent, require_dir, size_of
from esker.storage.log import LogSegment, open_log
from esker.storage.maps import Maps
from esker.storage.offsets import OffsetsFile
from esker.storage.sealed import SealedSegment, sizes_of


@lru_cache(1024)  # asked for again and again while a store is opened
def shard_folder(root: str, topic: int, number: int) -> str:
    return join(root, names.TOPICS, names.topic(topic), names.shard(number))


def require_dirs(files: Files, folders: Sequence[str]) -> None:
    """Shards of a topic, and the topic, are written to in their places, and not through a link."""
    require_dir(files, parent(folders[0]))
    for folder in folders:
        require_dir(files, folder)


def list_segments(files: Files, folder: str) -> list[names.SegmentName]:
    """The segments in a shard's directory, by number. Strangers are left out."""
    found = (names.parse_segment(name) for name in files.list(folder))
    return sorted(name for name in found if name is not None)


def load_log(files: Files, folder: str, name: names.SegmentName, owner: Owner) -> LogSegment:
    """Open a log that is known to be whole: headers are walked, bodies are not read."""
    path = join(folder, names.segment(name.segment, name.base, sealed=False))
    file, header = open_log(files, path)
    wrong = header if isinstance(header, str) else misplaced(header, *name[:2], owner)
    if isinstance(header, str) or wrong:
        file.close()
        raise StorageError(f"{path}: {wrong}", path=path)
    log = LogSegment(header, file)
    seen = scan.walk(file, header.salt, log.end, bodies=False)
    log.adopt(scan.verdict(seen, seen.size))
    log.synced = log.in_file = log.end
    return log


def load_sealed(
    files: Files, folder: str, found: list[names.SegmentName], maps: Maps, owner: Owner
) -> list[SealedSegment]:
    """The sealed segments among those that were found. Nothing is read of them but their sizes,
    which of one that lies elsewhere its stub tells."""
    made = []
    for name in found:
        if name.sealed:
            path = join(folder, names.segment(*name[:2], sealed=True))
            made.append(SealedSegment(path, name).attach(maps, owner))
            made[-1].size, made[-1].local_size = sizes_of(files, path)
    return made


def cut_cursors(files: Files, folder: str, owner: Owner, end: int) -> list[Slot]:
    """Put groups that are behind the end of a shard back to it; returns where they were.

    Done before anybody writes there: a group would miss what comes in the place of what is lost.
    """
    page = OffsetsFile(files, folder, offsets.Owner(*owner), nullcontext())
    try:
        beyond = page.cut(end)
    except Corruption:
        return []  # who opens such a group is told
    finally:
        page.close()
    for slot in beyond:
        LOG.warning("%s: group %r was at %d, and the shard ends at %d: it goes on there",
                    page.path, slot.name, slot.cursor, end)  # fmt: skip
    return beyond


def follows(before: LogSegment | SealedSegment | None, base: int, gap: int) -> dict[str, int]:
    """The fields of a header by which a segment that begins at `base` follows the one before it."""
    if before is None:
        end, chain, salt, high, number = base, 0, 0, 0, 0
    elif isinstance(before, LogSegment):
        end, number = before.base + before.next_row, before.number
        chain, salt, high = before.chain, before.salt, before.high
    else:
        end, number = before.base + before.footer.records, before.number
        chain, salt = before.footer.chain, before.header.salt
        high = max(before.header.previous_high, before.footer.max_timestamp)
    return {
        "segment": number + 1, "previous_end": end, "previous_chain": chain, "previous_salt": salt,
        "previous_high": high, "gap": gap if end != base else 0,
    }  # fmt: skip


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
    if not logs:  # a segment that was attached since, by one who died before he said so?
        return state.segment == 0 and (not found or found[-1].base < state.end_offset)
    if logs[-1].segment != state.segment or found[-1] != logs[-1]:
        return False
    path = join(folder, names.segment(logs[-1].segment, logs[-1].base, sealed=False))
    return size_of(files, path) == state.end_position
