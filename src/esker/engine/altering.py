"""Changing the options of a topic that is there.

The catalog is replaced as a whole, so after any crash the topic has its old options or its new
ones. Whoever has the topic open in this process follows at once; a writer in another process within
seconds, when it next looks at the catalog. Segments keep, in the CONFIG frame that they begin with,
the options that they were begun with.

Two options stay as they are. Keys choose the shard, so another number of shards would send the
records of a key elsewhere, behind the backs of those who rely on their order. And the durability
says what every acknowledgement so far was worth. Both need a new topic.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from esker import options as opts
from esker.errors import EskerError, InvalidOption, TopicNotFound, nearest
from esker.format.catalog import Catalog, TopicEntry

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

FIXED: Final = {
    "shards": "the records of a key would go elsewhere",
    "durability": "it says what acknowledgements were worth",
}


def alter(store: Store, name: str, given: dict[str, Any]) -> TopicEntry:
    """Change options of a topic, durably."""
    opts.topic_name(name)
    for option, why in FIXED.items():
        if option in given:
            raise InvalidOption(
                f"{option} cannot be changed: {why}. Create another topic and copy the records"
            )
    if not given:
        raise InvalidOption("alter: say which options, such as ttl='7d'")

    def edit(catalog: Catalog) -> Catalog:
        known = next((entry for entry in catalog.topics if entry.name == name), None)
        if known is None:
            raise TopicNotFound(f"no topic {name!r} in {store.path}; {nearest(name, list(store))}")
        options = opts.topic_options(known.options, **given)
        altered = msgspec.structs.replace(known, options=options)
        topics = tuple(altered if entry is known else entry for entry in catalog.topics)
        return msgspec.structs.replace(catalog, topics=topics)

    store._catalog.change(edit, store._context.note)
    entry = store._catalog.find(name)
    assert entry is not None
    return entry


def follow(topic: Topic, entry: TopicEntry) -> None:
    """Let a handle have the options that the catalog has."""
    if topic._entry is None or topic._entry.id != entry.id or topic._entry == entry:
        return
    for shard in topic._shards:
        with shard.lock:
            with suppress(EskerError):  # it stays pending, and the next append says so
                shard._flush()  # so that nobody owns a buffer that was opened under other options
            shard.take_options(entry)
    for follower in topic._followers:
        follower.entry = entry
    topic._entry = entry


def difference(known: opts.TopicOptions, wanted: opts.TopicOptions) -> str:
    """Which options a topic has that are not those wanted, as text."""
    mine, theirs = msgspec.structs.asdict(known), msgspec.structs.asdict(wanted)
    changed = [f"{name}={mine[name]!r}" for name in mine if mine[name] != theirs[name]]
    return ", ".join(changed) or "the same options"
