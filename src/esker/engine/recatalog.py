"""Names and options of topics, found again where the catalog was damaged.

Every segment begins with a CONFIG frame, which holds its topic's entry of the catalog. So the list
of topics is in the catalog for speed and in the segments for good.
"""

from __future__ import annotations

from esker.engine.context import Context
from esker.engine.findings import Finding, Recovery
from esker.engine.layout import list_segments
from esker.engine.quarantine import quarantine
from esker.format import catalog as catalog_format
from esker.format import frame, names
from esker.format import segment as segment_format
from esker.format.catalog import Catalog, TopicEntry
from esker.storage.catalog import CatalogFile
from esker.storage.files import Files, join
from esker.storage.log import open_log


def recover_catalog(context: Context, catalog: CatalogFile, report: Recovery) -> None:
    """Names and options: the newest whole catalog, completed from the segments themselves."""
    catalog.settles = not context.read_only
    whole = catalog.load()
    for path, reason in catalog.damage:
        report.findings.append(Finding("damaged_catalog", path, reason))
    lost = not catalog.generation and not catalog.damage
    if whole and not catalog.damage and not lost:
        return
    known = {entry.id for entry in catalog.catalog.topics}
    found = [entry for entry in topics_on_disk(context) if entry.id not in known]
    if lost:  # a new store, or one whose catalog is gone
        if not found:
            return
        path = join(context.root, names.catalog(1))
        report.findings.append(Finding("damaged_catalog", path, "there is no catalog, but topics"))
    used = [
        names.parse_number(name) or names.parse_deleted(name) or 0
        for name in context.files.list(join(context.root, names.TOPICS))
    ]

    def complete(current: Catalog) -> Catalog:
        there = {entry.id for entry in current.topics}  # another process may have been faster
        merged = (*current.topics, *(entry for entry in found if entry.id not in there))
        return Catalog(max([current.next_id - 1, *used]) + 1, merged)

    if context.read_only:
        catalog.catalog = complete(catalog.catalog)
        return
    catalog.change(complete, context.note)
    for path, _ in catalog.damage:
        if context.files.kind(path):
            quarantine(context, path, "catalog")


def topics_on_disk(context: Context) -> list[TopicEntry]:
    """Topics as the CONFIG frames of their segments name them."""
    found: dict[int, TopicEntry] = {}
    files, top = context.files, join(context.root, names.TOPICS)
    for name in sorted(files.list(top)):
        topic_id = names.parse_number(name)
        if topic_id is None:
            continue
        for shard_name in sorted(files.list(join(top, name))):
            folder = join(top, name, shard_name)
            for segment in list_segments(files, folder):
                entry = read_config(
                    files, join(folder, names.segment(*segment[:2], sealed=segment.sealed))
                )
                if entry is not None and entry.id == topic_id:
                    found[topic_id] = entry  # the newest segment has the newest options
    return list(found.values())


def read_config(files: Files, path: str) -> TopicEntry | None:
    """The topic that a segment says it belongs to."""
    file, header = open_log(files, path, "r")
    try:
        if isinstance(header, str):
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
