"""`esker verify`, `esker repair`, `esker du`: what lies on the disk. Only for directories."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from esker.cli.failing import FAILED, Usage
from esker.cli.place import HERE, Place, Settled, is_store, missing
from esker.cli.progress import Bar
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, number, size, tell

_Cold = Annotated[
    str, Parameter(help="Where segments lie that were moved, if not where they were.")
]


def directory(path: str | None, place: Place, verb: str) -> str:
    """The directory that a command is about: its argument, or what names a store everywhere."""
    if path is not None and any((place.data, place.url, place.profile)):
        raise Usage("the directory is given twice: as an argument, and by an option")
    return place.directory(verb) if path is None else path


def verify(
    path: str | None = None, /, *,
    shallow: Flag = False,
    cold: _Cold = "",
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Check every byte of a store, also while it is written. Changes nothing.

    Exit code 1 if something is wrong. See docs/repair.md.

    Parameters
    ----------
    path
        The directory of the store; the same as --data. Or kin+KIND:///directory, of another log.
    shallow
        Headers only, in little time.
    """
    import esker

    root = directory(path, place, "verify")
    if root.startswith("kin+"):
        from esker.cli import kin

        return kin.verify(root, shown)
    with Bar("verify", "bytes") as bar:
        found = esker.verify(root, deep=not shallow, cold=cold, progress=bar.at)
    problems = [
        msgspec.structs.asdict(problem) | {"advice": problem.advice} for problem in found.problems
    ]
    document = {"ok": found.ok, **msgspec.structs.asdict(found), "problems": problems}
    tell(shown, document, str(found))
    return 0 if found.ok else FAILED


def repair(
    path: str | None = None, /, *,
    dry_run: Flag = False,
    cold: _Cold = "",
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Make a damaged store whole again; what it replaces is kept in quarantine/.

    Exit code 1 if something is left that is wrong. See docs/repair.md.

    Parameters
    ----------
    path
        The directory of the store; the same as --data.
    dry_run
        Say what would be done, and do nothing.
    """
    import esker

    done = esker.repair(directory(path, place, "repair"), dry_run=dry_run, cold=cold)
    tell(shown, {"ok": done.ok, "lost": done.lost, **msgspec.structs.asdict(done)}, str(done))
    return 0 if done.ok else FAILED


# ---- du --------------------------------------------------------------------------------------


class Room(msgspec.Struct):
    """How much room a topic takes."""

    topic: str
    segments: int = 0
    bytes: int = 0  # here, of all its files
    cold_segments: int = 0
    cold_bytes: int = 0  # in a cold store


_ROOM: Final = (
    Column("TOPIC", lambda row: row.topic, wide=True),
    Column("SEGMENTS", lambda row: number(row.segments), right=True),
    Column("HERE", lambda row: size(row.bytes), right=True),
    Column("COLD SEGMENTS", lambda row: number(row.cold_segments), right=True),
    Column("COLD", lambda row: size(row.cold_bytes) if row.cold_bytes else "-", right=True),
)


def du(path: str | None = None, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """How much room each topic takes, here and in a cold store; journals and the rest as (…).

    Parameters
    ----------
    path
        The directory of the store; the same as --data.
    """
    root = directory(path, place, "du")
    if not is_store(root):
        raise missing(Settled("data", root, "--data"))
    rows = sorted(rooms(root), key=lambda row: -row.bytes)
    total = sum(row.bytes for row in rows)
    document = {"path": root, "bytes": total, "topics": rows}
    answer(shown, document, rows, _ROOM, empty="nothing")
    if shown.form == "table":
        print(f"{size(total)} in {root}")
    return 0


def rooms(root: str) -> list[Room]:
    """The room of each topic, and of what belongs to none of them."""
    from esker.format import names
    from esker.storage.catalog import CatalogFile, load_identity
    from esker.storage.files import SYSTEM_FILES, absolute, join

    root = absolute(root)
    identity = load_identity(SYSTEM_FILES, root)
    called: dict[str, str] = {}
    if identity is not None:
        catalog = CatalogFile(SYSTEM_FILES, root, identity[0])
        catalog.load()
        called = {names.topic(entry.id): entry.name for entry in catalog.catalog.topics}
    found = []
    for name in SYSTEM_FILES.list(root):
        if name == names.TOPICS:
            for each in SYSTEM_FILES.list(join(root, name)):
                room = Room(called.get(each, f"({each})"))
                _measure(join(root, name, each), room)
                found.append(room)
        elif SYSTEM_FILES.kind(join(root, name)) == "dir":
            room = Room(f"({name})")
            _measure(join(root, name), room)
            if room.bytes:
                found.append(room)
    return found


def _measure(path: str, room: Room) -> None:
    """Add up what lies below a directory. What goes away meanwhile takes no room."""
    from esker.errors import StorageError
    from esker.format import names
    from esker.storage.files import SYSTEM_FILES, base_name, join, size_if_there
    from esker.storage.sealed import sizes_of

    if SYSTEM_FILES.kind(path) == "dir":
        for name in SYSTEM_FILES.list(path):
            _measure(join(path, name), room)
        return
    segment: Any = names.parse_segment(base_name(path))
    if segment is None:
        room.bytes += max(0, size_if_there(SYSTEM_FILES, path))
        return
    try:
        whole, local = sizes_of(SYSTEM_FILES, path)
    except StorageError:
        return
    room.segments += 1
    room.bytes += local
    if whole != local:
        room.cold_segments += 1
        room.cold_bytes += whole
