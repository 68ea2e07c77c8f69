"""The saved table of keys and producers of a shard: one small file, replaced as a whole.

The log is the truth: every mark is on a record of it. The file saves who opens a shard from reading
all of the log, and remembers what was evicted since. One that is damaged is told of and made anew.
"""

from __future__ import annotations

from contextlib import suppress

from esker.errors import Corruption, FormatTooNew, StorageError
from esker.format import names
from esker.format import once as fmt
from esker.format.once import Owner, Saved
from esker.storage.files import Files, content_of, join, replace_file


def load(files: Files, folder: str, owner: Owner) -> Saved | None:
    """What was saved; None if nothing was. Raises Corruption for what is damaged."""
    path = join(folder, names.ONCE)
    if not files.kind(path):
        return None
    found = fmt.decode_saved(content_of(files, path, fmt.HEADER_SIZE + fmt.BODY_BYTES_MAX), owner)
    if isinstance(found, str):
        if found.startswith("version"):
            raise FormatTooNew(f"{path} was written by a later Esker ({found})")
        raise Corruption(found, path=path, position=0)
    return found


def save(files: Files, folder: str, owner: Owner, saved: Saved) -> None:
    """Save a table, durably."""
    path = join(folder, names.ONCE)
    try:
        replace_file(files, path, fmt.encode_saved(saved, owner))
    except StorageError:
        with suppress(StorageError):  # nobody will use it, and a clean store has no such file
            files.unlink(path + names.TEMPORARY)
        raise
