"""The object users hold: append, read, follow, archive, move."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from esker import positions
from esker.engine.progress import Progress
from esker.engine.reader import resolve
from esker.engine.reading import Reading
from esker.engine.tiering import Tier, Tiered, check_tier, tier
from esker.engine.verbs import TopicVerbs
from esker.engine.writing import BatchWriter, Writing
from esker.errors import InvalidOption

if TYPE_CHECKING:
    from esker.engine.archiving import Archived


class Topic(Writing, Reading, TopicVerbs):
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

    def tier(self, to: Tier, before: Any = None, shard: int | None = None) -> Tiered:
        """Move sealed segments to the cold store, or bring them back, now; says how many.

        `before` is a position as everywhere: segments that lie wholly before it are moved; without
        it, all that are sealed. What was brought back by hand stays until the store is closed. An
        error leaves every segment in the one place or the other, and what was done is done.
        """
        context = self._store._context
        context.require_writable()
        check_tier(to, context.cold)
        entry = self._existing()
        position = positions.parse("latest" if before is None else before, context.clock.now_us())
        if position.kind == "offset" and shard is None and entry.options.shards > 1:
            raise InvalidOption(
                f"before={before!r}: topic {self.name!r} has {entry.options.shards} shards, each "
                "with offsets of its own; say which with shard=N, or give a time or latest"
            )
        self.flush()
        views = self._views(shard)
        done = [tier(self._shards[each.number], to, resolve(each, position)) for each in views]
        return Tiered(self.name, to, sum(n for n, _ in done), sum(size for _, size in done))


__all__ = ["BatchWriter", "Topic"]
