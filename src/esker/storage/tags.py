"""The index of a segment's tags on disk: made when it is first needed, believed when it is whole.

Whoever never deletes by tag never has one. The first deletion makes an index for every sealed
segment there is, and later ones for those that were sealed since; from then on a deletion costs
what it deletes, and no longer what the topic holds.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from esker.errors import StorageError
from esker.format import names
from esker.format import tags as fmt
from esker.format.tags import TagIndex
from esker.storage.files import Files, join, parent, replace_file
from esker.storage.maps import Maps
from esker.storage.sealed import SealedSegment

READ_BYTES = 4 << 20


def path_of(segment: SealedSegment) -> str:
    return join(parent(segment.path), names.tags(segment.number, segment.base))


def known_index(files: Files, maps: Maps, segment: SealedSegment) -> TagIndex | None:
    """The index of a sealed segment that is there already, and can be believed."""
    path = path_of(segment)
    if files.kind(path) != "file":
        return None
    found = _load(maps, path, segment)
    if found is None:
        maps.drop(path)
        files.unlink(path)
    return found


def index_of(files: Files, maps: Maps, segment: SealedSegment) -> TagIndex:
    """The index of a sealed segment; it is made if there is none that can be believed."""
    found = known_index(files, maps, segment)
    if found is not None:
        return found
    path = path_of(segment)
    parts = fmt.encode(_tags(segment), segment.number, segment.header.salt)
    data = b"".join(parts)
    _write(files, path, data)
    made = fmt.decode(data, segment.number, segment.header.salt, segment.rows)
    assert made is not None
    return made


def drop_index(files: Files, maps: Maps, segment: SealedSegment) -> None:
    """Unlink the index of a segment, if it has one, for good: it is made again when it is needed.

    For a segment that is about to lack some of these tags: no crash brings back the old index.
    """
    path = path_of(segment)
    maps.drop(path)
    if files.kind(path):
        files.unlink(path)
        files.sync_dir(parent(path))


def _load(maps: Maps, path: str, segment: SealedSegment) -> TagIndex | None:
    try:
        data = maps.get(path).data
    except (StorageError, ValueError):  # cannot be read or mapped
        return None
    return fmt.decode(data, segment.number, segment.header.salt, segment.rows)


def _tags(segment: SealedSegment) -> pa.StringArray:
    """The tag of every row, null for those that have none."""
    chunks, row, rows = [], 0, segment.rows
    while row < rows:
        _, columns = segment.read(row, rows, READ_BYTES)
        none = columns.tags is None
        chunks.append(pa.nulls(columns.count, pa.string()) if none else columns.tags)
        row += columns.count
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


def _write(files: Files, path: str, data: bytes) -> None:
    """Beside the segment, if there is room: an index that is not there is made again."""
    with suppress(StorageError):
        replace_file(files, path, data)
