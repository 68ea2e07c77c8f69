"""Which directory a store is, that it is one, and the first file of a new one.

A directory that holds something else is never made a store, nor one whose identity is missing: who
lost that file has lost nothing yet. Nothing is made where everybody could exchange it.
"""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from typing import Literal

from esker.clock import Clock
from esker.errors import InvalidOption, NotAStore, StorageError, UnsafePath
from esker.format import names
from esker.storage import catalog as storage
from esker.storage.files import Files, absolute, join, parent, world_writable

Mode = Literal["rw", "r"]


def root_of(path: object) -> str:
    """The absolute path of a store's directory, from anything that names one."""
    if not isinstance(path, (str, PathLike)):
        raise InvalidOption(f"a store is opened by its path, not by {type(path).__name__}")
    text = path if isinstance(path, str) else path.__fspath__()
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidOption(f"{text!r} is not the path of a directory")
    return absolute(text)


def identity(files: Files, root: str, mode: Mode, clock: Clock) -> bytes:
    """The identity of the store there; of a new one, if it may be made."""
    kind = files.kind(root)
    if kind in ("file", "other"):
        raise NotAStore(f"{root} is not a directory; give the directory of a store")
    if kind == "link":
        kind = "dir" if files.kind(join(root, ".")) == "dir" else kind
    found = storage.load_identity(files, root) if kind == "dir" else None
    if found is not None:
        return found[0]
    if mode == "r":
        raise storage.unfinished(root) or NotAStore(
            f'there is no Esker store at {root}; open it with mode="rw" to make one'
        )
    there = [name for name in files.list(root) if not name.startswith(".")] if kind else []
    ours = {names.TOPICS, names.JOURNALS, names.CATALOG_LOCK, names.IDENTITY + names.TEMPORARY}
    folders = [name for name in (names.TOPICS, names.JOURNALS) if name in there]
    used, strange = any(files.list(join(root, name)) for name in folders), set(there) - ours
    if used or strange:  # or another process has made it a store since we looked
        found = storage.load_identity(files, root)
        if found is not None:
            return found[0]
        if (half := storage.unfinished(root)) is not None:
            raise half
    if used:
        raise NotAStore(
            f"{root} holds topics, but its identity, {names.IDENTITY}, is missing; nothing "
            f"was written. Restore that file, or run esker.repair({root!r})."
        )
    if strange:
        raise NotAStore(
            f"{root} holds other files ({', '.join(sorted(there)[:3])}…) and no Esker store; "
            "nothing was written. Give a new or empty directory."
        )
    if not kind:
        above = parent(root)
        if world_writable(above):
            raise UnsafePath(
                f"{above} can be written by everybody; an Esker store there could be exchanged. "
                "Choose another place, or set its sticky bit.", path=above,
            )  # fmt: skip
        make_dirs(files, root)
    else:
        with suppress(StorageError):  # who made it may have died before the name was synced
            files.sync_dir(parent(root))
    return storage.create_identity(files, root, clock.now_us())


def make_dirs(files: Files, path: str) -> None:
    """Make a directory and what is missing above it, durably."""
    above = parent(path)
    if above != path and not files.kind(above):
        make_dirs(files, above)
    files.make_dir(path)
    if files.kind(above):
        files.sync_dir(above)
