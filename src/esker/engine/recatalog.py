"""Names and options of topics, found again where the catalog was damaged.

Every segment begins with a CONFIG frame, which holds its topic's entry of the catalog. So the list
of topics is in the catalog for speed and in the segments for good.
"""

from __future__ import annotations

from typing import Final

from esker.engine.context import Context
from esker.engine.findings import Finding, Recovery
from esker.engine.layout import list_segments
from esker.engine.quarantine import quarantine
from esker.errors import NotAStore
from esker.format import catalog as catalog_format
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.format.catalog import Catalog, TopicEntry, keeping_all
from esker.options import is_evicting
from esker.storage.catalog import CatalogFile
from esker.storage.files import Files, join
from esker.storage.log import open_log

OFF: Final = (
    "topic {0!r}: its caps and its ttl may be old ones and are off, so that nothing is evicted by "
    "mistake; set them with store.alter({0!r}, ...)"
)


def recover_catalog(context: Context, catalog: CatalogFile, report: Recovery) -> None:
    """Names and options: the newest whole catalog, completed from the segments themselves."""
    catalog.settles = not context.read_only
    whole = catalog.load()
    for path, reason in catalog.damage:
        report.findings.append(Finding("damaged_catalog", path, reason))
    used = [
        names.parse_number(name) or names.parse_deleted(name) or 0
        for name in context.files.list(join(context.root, names.TOPICS))
    ]
    if whole and not catalog.damage:
        # A new store, or one whose newest catalog is gone; or somebody is making a topic just now.
        if max(used, default=0) < catalog.catalog.next_id:
            return
        catalog.refresh()
        unlisted = [number for number in used if number >= catalog.catalog.next_id]
        written = [number for number in unlisted if _has_files(context, number)]
        if not written:
            return
        path = join(context.root, names.catalog(catalog.generation + 1))
        reason = f"there is no catalog that lists topic {written[0]}, but it has files"
        report.findings.append(Finding("damaged_catalog", path, reason))
        found = topics_on_disk(context, catalog.catalog.next_id)
    else:
        known = {entry.id for entry in catalog.catalog.topics}
        found = [entry for entry in topics_on_disk(context) if entry.id not in known]
    if used and not found and not catalog.generation:
        _refuse_another(context, catalog)

    def complete(current: Catalog) -> Catalog:
        there = {entry.id for entry in current.topics}  # another process may have been faster
        merged = (*current.topics, *(entry for entry in found if entry.id not in there))
        kept = tuple(keeping_all(entry) for entry in merged)
        return Catalog(max([current.next_id - 1, *used]) + 1, kept, current.former)

    if context.read_only:
        catalog.catalog = complete(catalog.catalog)
        return
    evicting = {
        entry.id for entry in (*catalog.catalog.topics, *found) if is_evicting(entry.options)
    }
    catalog.change(complete, context.note)
    for entry in catalog.catalog.topics:
        if entry.id in evicting:
            path = join(context.root, names.catalog(catalog.generation))
            report.findings.append(Finding("damaged_catalog", path, OFF.format(entry.name)))
    for path, _ in catalog.damage:
        if context.files.kind(path):
            quarantine(context, path, "catalog")


def _refuse_another(context: Context, catalog: CatalogFile) -> None:
    """Catalogs or segments name another store, and none names this one: the identity is wrong.

    Whoever went on would set every file aside, because it belongs to somebody else.
    """
    foreign = catalog.damage and all(why == catalog_format.FOREIGN for _, why in catalog.damage)
    if foreign or _stores(context) - {context.store}:
        path = join(context.root, names.IDENTITY)
        raise NotAStore(
            f"{path} is the identity of another store: catalogs and segments name a different one. "
            "Nothing was touched. Restore that file from a backup."
        )


def _stores(context: Context) -> set[bytes]:
    """The stores that segments say they belong to."""
    files, top = context.files, join(context.root, names.TOPICS)
    found = set()
    for name in files.list(top):
        if names.parse_number(name) is None:
            continue
        for shard_name in files.list(join(top, name)):
            folder = join(top, name, shard_name)
            for segment in list_segments(files, folder):
                path = join(folder, names.segment(*segment[:2], sealed=segment.sealed))
                file, header = open_log(files, path, "r")
                file.close()
                if not isinstance(header, str):
                    found.add(header.store)
    return found


def _has_files(context: Context, topic: int) -> bool:
    """A topic is listed before anything is written to it; until then its directories are empty."""
    folder = join(context.root, names.TOPICS, names.topic(topic))
    shards = context.files.list(folder)
    return any(context.files.list(join(folder, shard)) for shard in shards)


def topics_on_disk(context: Context, least: int = 1) -> list[TopicEntry]:
    """Topics from an id on, as the CONFIG frames of their segments name them."""
    found: dict[int, TopicEntry] = {}
    files, top = context.files, join(context.root, names.TOPICS)
    for name in sorted(files.list(top)):
        topic_id = names.parse_number(name)
        if topic_id is None or topic_id < least:
            continue
        for shard_name in sorted(files.list(join(top, name))):
            folder = join(top, name, shard_name)
            for segment in list_segments(files, folder):
                path = join(folder, names.segment(*segment[:2], sealed=segment.sealed))
                entry = read_config(files, path, context.store)
                if entry is not None and entry.id == topic_id:
                    found[topic_id] = entry  # the newest segment has the newest options
    return list(found.values())


def read_config(files: Files, path: str, store: bytes) -> TopicEntry | None:
    """The topic that a segment says it belongs to."""
    file, header = open_log(files, path, "r")
    try:
        if isinstance(header, str) or header.store != store:
            return None
        position = segment_format.HEADER_SIZE
        head = frame.decode_header(file.read(position, frame.HEADER_SIZE), 0, position, header.salt)
        if isinstance(head, frame.Damage) or head.kind != frame.CONFIG:
            return None
        body = file.read(position + frame.HEADER_SIZE, head.body_size)
        if frame.body_damage(head, body, header.salt) is not None:
            return None
        entry = catalog_format.decode_config(body)
        return None if isinstance(entry, str) else entry
    finally:
        file.close()
