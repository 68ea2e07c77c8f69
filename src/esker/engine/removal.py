"""What is deleted on request: a topic, or the records of a shard before an offset.

Both are one durable change that says what is gone. The files go afterwards, and whatever stops that
half-way, it is taken up again later.

    a topic             its directory is renamed to NNN.deleted, and that name synced: from here on
                        it is gone, also should the catalog be lost and made anew from the segments;
                        then the catalog is written without it; then its files are unlinked
    before an offset    the shard begins there from now on (floor.py)

A topic can be deleted only by who may write it: every shard is taken first, so a process that is
writing one of them is named, and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress

from esker.engine import floor, once
from esker.engine.context import Context
from esker.engine.reader import count_records, earliest_of
from esker.engine.shard import Shard
from esker.errors import StorageError, TopicNotEmpty
from esker.format import names
from esker.format.catalog import Catalog, TopicEntry
from esker.storage.catalog import CatalogFile
from esker.storage.files import Files, join

# ---- a topic ---------------------------------------------------------------------------------


def remove_topic(
    context: Context, catalog: CatalogFile, entry: TopicEntry, shards: Sequence[Shard], *,
    if_empty: bool = False,
) -> None:  # fmt: skip
    """Delete a topic with everything in it, also what was not yet written."""
    folder = join(context.root, names.TOPICS, names.topic(entry.id))
    if context.files.kind(folder):
        for shard in shards:
            with shard.lock:
                shard.open_for_writing()
    with ExitStack() as locks:
        for shard in shards:
            locks.enter_context(shard.lock)
        if if_empty:  # now that nobody else can append
            _require_empty(entry.name, shards)
        try:
            ends = tuple(shard.next for shard in shards) if context.files.kind(folder) else ()
            catalog.change(
                lambda known: _without(context, known, folder, {entry.id: ends}), context.note
            )
        finally:
            if not context.files.kind(folder):
                for shard in shards:
                    shard._vanish()
    for shard in shards:
        shard.wake()
    context.background.remove_soon(folder + names.DELETED)


def _require_empty(name: str, shards: Sequence[Shard]) -> None:
    for shard in shards:
        count = len(shard.buffer) + count_records(shard, earliest_of(shard), shard.next)
        if count:
            raise TopicNotEmpty(
                f"topic {name!r} holds {count} records in shard {shard.number}; nothing was deleted"
            )


def _without(
    context: Context, known: Catalog, folder: str, ends: dict[int, tuple[int, ...]]
) -> Catalog:
    files = context.files
    if files.kind(folder):
        files.rename(folder, folder + names.DELETED)
    files.sync_dir(join(context.root, names.TOPICS))
    return known.without(ends)


def finish_removals(context: Context, catalog: CatalogFile) -> None:
    """Go on with the deletions that a crash, or a full disk, interrupted."""
    top = join(context.root, names.TOPICS)
    left = {names.parse_deleted(name): name for name in context.files.list(top)}
    left.pop(None, None)
    if any(entry.id in left for entry in catalog.catalog.topics):
        context.files.sync_dir(top)  # who renamed it may have died before its name was synced
        unknown: dict[int, tuple[int, ...]] = {topic: () for topic in left if topic is not None}
        catalog.change(lambda known: known.without(unknown), context.note)
    for name in left.values():
        context.background.remove_soon(join(top, name))


def unlink_tree(files: Files, folder: str) -> None:
    """Remove a directory and all that is in it. What is left after an error goes another time.

    Of a link, and of what else is no directory, the name goes and nothing behind it.
    """
    if files.kind(folder) != "dir":
        with suppress(StorageError):
            files.unlink(folder)
        return
    for name in sorted(files.list(folder)):
        path = join(folder, name)
        if files.kind(path) == "dir":
            unlink_tree(files, path)
        else:
            with suppress(StorageError):  # another process may be at it too
                files.unlink(path)
    with suppress(StorageError):
        files.remove_dir(folder)


# ---- the records before an offset ------------------------------------------------------------


def forget_before(shard: Shard, before: int) -> int:
    """Delete the durable records below an offset; returns how many they were."""
    once.keep(shard)
    with shard.lock:
        shard.open_for_writing()
        shard.require_sound()
        before, first = min(before, shard.durable), earliest_of(shard)
        if before <= first:
            return 0
        gone = count_records(shard, first, before)
        floor.begin_at(shard, before)
        shard._count("records_deleted", gone)
        shard._publish_segments()
        segments = floor.take_forgotten(shard)
    floor.unlink(shard, segments)
    return gone
