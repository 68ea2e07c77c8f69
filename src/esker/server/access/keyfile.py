"""The file of keys: what `esker keys` writes and a server reads.

JSON, for nobody but its owner (0600); a server that finds it readable for others does not start.
It is replaced whole and atomically, under a lock, so that a server never reads half of it and two
that make keys at once lose none. A revoked key stays in the file, so that it can be seen that and
when it was revoked; forgetting it is a matter of `esker keys forget`.

There is no way to choose a secret oneself: what is not of the form of a generated key is no key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Final

import msgspec

from esker.clock import SYSTEM_CLOCK, Clock
from esker.errors import EskerError, InvalidOption, PermissionRefused, nearest
from esker.server.access.keys import ALL, SCOPES, Key, Scope, new_secret
from esker.storage import files as door
from esker.storage.files import SYSTEM_FILES

MOST: Final = 4 << 20  # bytes; some 15,000 keys
_ID: Final = re.compile(r"[0-9a-f]{12}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_NAME: Final = re.compile(r"[ -~]{0,80}")


class KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds."""

    version: int
    keys: list[Key]


def content(path: str | PathLike[str]) -> bytes:
    """The bytes of the file; refuses one that others may read."""
    where = door.real_path(path)
    if door.others_may_read(where):
        raise PermissionRefused(
            f"others may read or change the keys in {where}; run: chmod 600 {where}", path=where
        )
    return door.content_of(SYSTEM_FILES, where, MOST)


def keys_in(data: bytes) -> list[Key]:
    """The keys that the bytes of a file hold; refuses what no server should stand on."""
    try:
        found = msgspec.json.decode(data, type=KeyFile)
    except msgspec.MsgspecError as problem:
        raise InvalidOption(f"the file of keys cannot be understood: {problem}") from None
    if found.version != 1:
        raise InvalidOption(f"the file of keys has version {found.version}; this one knows 1")
    for key in found.keys:
        _check(key)
    if len({key.id for key in found.keys}) != len(found.keys):
        raise InvalidOption("the file of keys has an id twice")
    return found.keys


def _check(key: Key) -> None:
    if not _ID.fullmatch(key.id) or not _HASH.fullmatch(key.sha256):
        raise InvalidOption("the file of keys has one that `esker keys new` did not make")
    if not _NAME.fullmatch(key.name):
        raise InvalidOption(f"the name of key {key.id} is not plain text of up to 80 characters")
    if not key.prefixes:
        raise InvalidOption(f"key {key.id} is for no topics: give prefixes, or {ALL!r}")
    for prefix in key.prefixes:
        if prefix != ALL and not _PREFIX.fullmatch(prefix):
            raise InvalidOption(f"{prefix!r}: no name of a topic begins so")


def load(path: str | PathLike[str]) -> list[Key]:
    """All keys of a file, good or not."""
    return keys_in(content(path))


def new(
    path: str | PathLike[str], scopes: Iterable[str], prefixes: Iterable[str] = (), *,
    name: str = "", seconds: float | None = None, clock: Clock = SYSTEM_CLOCK,
) -> tuple[Key, str]:  # fmt: skip
    """Make a key, and the file if it is not there. Returns it, and what its owner is given."""
    id, text, hashed = new_secret()
    now = clock.now_us()
    if seconds is not None and seconds <= 0:
        raise InvalidOption("a key that has expired already is of no use")
    key = Key(
        id=id, sha256=hashed, name=name, scopes=_scopes(scopes),
        prefixes=tuple(prefixes) or (ALL,), created=now,
        expires=None if seconds is None else now + round(seconds * 1e6),
    )  # fmt: skip
    _check(key)
    _change(path, lambda keys: [*keys, key], make=True)
    return key, text


def _scopes(given: Iterable[str]) -> tuple[Scope, ...]:
    asked = set(given)
    for scope in asked.difference(SCOPES):
        raise InvalidOption(f"no scope {scope!r}; {nearest(scope, SCOPES)}")
    if not asked:
        raise InvalidOption(f"a key needs a scope: one or more of {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in asked)


def revoke(path: str | PathLike[str], id: str, clock: Clock = SYSTEM_CLOCK) -> Key:
    """End a key for good; no complaint if that was done before."""
    now = clock.now_us()

    def ended(key: Key) -> Key:
        return key if key.revoked is not None else msgspec.structs.replace(key, revoked=now)

    def change(keys: list[Key]) -> list[Key]:
        _known(keys, id)
        return [ended(key) if key.id == id else key for key in keys]

    return _known(_change(path, change), id)


def forget(path: str | PathLike[str], id: str) -> Key:
    """Take a key out of the file, whatever its state."""
    found: list[Key] = []

    def change(keys: list[Key]) -> list[Key]:
        found.append(_known(keys, id))
        return [key for key in keys if key.id != id]

    _change(path, change)
    return found[0]


def _known(keys: list[Key], id: str) -> Key:
    for key in keys:
        if key.id == id:
            return key
    shown = id if _ID.fullmatch(id) else "of this id"  # somebody may have pasted a whole key
    raise InvalidOption(f"there is no key {shown}; `esker keys ls` lists them")


def _change(
    path: str | PathLike[str], change: Callable[[list[Key]], list[Key]], *, make: bool = False
) -> list[Key]:
    where = door.real_path(path)
    lock = SYSTEM_FILES.lock(where + ".lock", "keys", wait=True)
    if isinstance(lock, door.Holder):  # cannot be: it waits
        raise EskerError(f"{where} is being changed by process {lock.pid}")
    try:
        keys = [] if make and not SYSTEM_FILES.kind(where) else load(where)
        keys = change(keys)
        data = msgspec.json.format(msgspec.json.encode(KeyFile(1, keys)), indent=1)
        door.replace_file(SYSTEM_FILES, where, data + b"\n")
    finally:
        lock.release()
    return keys
