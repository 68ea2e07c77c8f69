"""`esker tier` and `esker archive`: segments elsewhere, and as Parquet. Only for directories."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from esker.cli.failing import FAILED, Usage
from esker.cli.place import HERE, Place
from esker.cli.progress import Bar
from esker.cli.shown import USUAL, Flag, Shown, tell


def tier(
    topic: str, to: Literal["cold", "hot"], /, *,
    cold: str = "",
    before: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    shard: int | None = None,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Move sealed segments to the cold store, or bring them back. See docs/tiers.md.

    Parameters
    ----------
    topic
        Its name.
    to
        cold: to the cold store; hot: back to the store's directory.
    cold
        Where the cold store is: a directory, or a URL such as s3://bucket/folder.
    before
        Only segments that lie wholly before this place: an offset, @-7d.
    shard
        Only this shard.
    """
    place.directory("tier")
    if to == "cold" and not cold:
        raise Usage("where to? --cold DIR, or a URL such as --cold s3://bucket/folder")
    options: dict[str, Any] = {"cold": cold} if cold else {}
    with place.open("rw", handover=False, **options) as store:
        done = store.tier(topic, to, before, shard)
    tell(shown, done, str(done))
    return 0


def archive(
    topic: str, path: str | None = None, /, *,
    target_bytes: str = "128MiB",
    compact: bool = True,
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd",
    verify: Flag = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Write what is sealed, and not archived yet, as Parquet files. See docs/archive.md.

    Parameters
    ----------
    topic
        Its name.
    path
        The directory of the archive. Default: archive, in that of the store.
    target_bytes
        So much of the log goes into one file.
    compact
        Small files are put together.
    compression
        Of the Parquet files.
    verify
        Look at all files that are there first.
    """
    from esker.options import size_bytes

    place.directory("archive")
    with place.open() as store, Bar("archive") as bar:

        def told(progress: Any) -> None:
            bar.at(progress.done, progress.total)

        done = store[topic].archive(
            path, target_bytes=size_bytes(target_bytes, "target_bytes"), compact=compact,
            compression=compression, verify=verify, progress=told,
        )  # fmt: skip
    tell(shown, {"ok": done.ok, **msgspec.structs.asdict(done)}, str(done))
    return 0 if done.ok else FAILED
