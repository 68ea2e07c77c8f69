"""`esker backup` and `esker restore`: a copy of a store, made beside its writer, and back.

Only for directories. What a backup holds, and how it is made, stands in upkeep/backup.py.
"""

from __future__ import annotations

from esker.cli.place import HERE, Place, Settled
from esker.cli.progress import Bar
from esker.cli.shown import USUAL, Shown, tell


def backup(
    target: str, /, *,
    base: str | None = None,
    check: bool = True,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Copy a store, also while it is written. It holds all that was durable when it began.

    A backup is a store: any command reads it, with --data. It has its name when it is complete.

    Parameters
    ----------
    target
        A directory that is not there yet.
    base
        An older backup of the same store: sealed segments that it has are linked, not copied.
    check
        Verify the copy, byte by byte, before it gets its name.
    """
    import esker

    with Bar("backup", "bytes") as bar:
        done = esker.backup(
            place.directory("backup"), target, base=base, check=check, progress=bar.at
        )
    tell(shown, done, str(done))
    return 0


def restore(
    source: str, /, *, check: bool = True, place: Place = HERE, shown: Shown = USUAL
) -> int:
    """Make a store of a backup, at --data; there must be nothing yet.

    Parameters
    ----------
    source
        The directory of the backup.
    check
        Verify the copy, byte by byte, before it gets its name.
    """
    import esker
    from esker.cli.failing import Usage

    found: Settled = place.settled()
    if found.source in ("the default", "the working directory is one"):
        raise Usage("say where to restore to: --data DIR")
    with Bar("restore", "bytes") as bar:
        done = esker.restore(source, place.directory("restore"), check=check, progress=bar.at)
    tell(shown, done, str(done))
    return 0
