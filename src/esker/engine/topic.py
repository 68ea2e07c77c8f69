"""The object users hold: append, read, follow, archive."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from esker.engine.progress import Progress
from esker.engine.reading import Reading
from esker.engine.writing import BatchWriter, Writing

if TYPE_CHECKING:
    from esker.engine.archiving import Archived


class Topic(Writing, Reading):
    """A named log. Get one with `store["name"]` or `store.create("name", ...)`."""

    def archive(
        self, path: str | PathLike[str] | None = None, *, target_bytes: int = 128 << 20,
        compact: bool = True, compression: str = "zstd", verify: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> Archived:  # fmt: skip
        """Write what is sealed and not archived yet as Parquet files that any program can read.

        `path` is the archive's directory; `archive` in the store's if none is given. Each run goes
        on where the last one ended, by whomever it was made; an interrupted one is harmless. Small
        files are merged (`compact`). `target_bytes` of the log go into one file. `verify` looks at
        all files that are there first. Records in the log that is being written wait until it is
        sealed.

        A shard that cannot be read on is archived up to there, the others to their ends; then the
        error is raised.
        """
        from esker.engine.archiving import archive_topic  # Parquet is for those who use it

        return archive_topic(
            self, path, target_bytes=target_bytes, compact=compact, compression=compression,
            verify=verify, progress=progress,
        )  # fmt: skip


__all__ = ["BatchWriter", "Topic"]
