"""What a notebook shows of a store, a topic, a slice or a batch: a small table.

    _repr_html_ of a store      its topics
                of a topic      its last records
                of a slice      its first records; it stays unsettled
                of a batch      its first records

Rules: every byte of a user is escaped, and cut where it is long. Few rows are read, and nothing is
changed. What cannot be read (closed, deleted, damaged) is said in words, because a cell that shows
a value must not fail because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from html import escape
from itertools import islice
from typing import Any, Final

from esker.errors import EskerError
from esker.records import Gap, Record

ROWS: Final = 10
TOPICS: Final = 50
CELL: Final = 100  # characters
_RECORD: Final = ("offset", "shard", "time", "key", "value", "tag")


def _harmless(show: Callable[[Any], str]) -> Callable[[Any], str]:
    @wraps(show)
    def shown(thing: Any) -> str:
        try:
            return show(thing)
        except EskerError as problem:
            return f"<pre>{escape(repr(thing))}\n{escape(str(problem))}</pre>"

    return shown


@_harmless
def store_html(store: Any) -> str:
    """The topics of a store."""
    names = list(store)
    rows = (_topic_row(store[name]) for name in names[:TOPICS])
    head = repr(store)
    if len(names) > TOPICS:
        head += f"; the first {TOPICS}"
    return _table(head, ("topic", "shards", "durability", "records"), rows)


def _topic_row(topic: Any) -> tuple[Any, ...]:
    options = topic.options
    return topic.name, options.shards, options.durability, f"{len(topic):,}"


@_harmless
def topic_html(topic: Any) -> str:
    """The last records of a topic."""
    count = len(topic)
    found = list(topic.read(-ROWS, gaps="yield"))
    shown = f"{count:,} records" + (f", the last {ROWS} of each shard" if count > ROWS else "")
    return _records(f"{topic!r}, {shown}", found[: 5 * ROWS])


@_harmless
def slice_html(part: Any) -> str:
    """The first records of a slice, as it would be settled now."""
    ranges = part._ranges if part._ranges is not None else part._settle()
    count = part._count(ranges)
    batches = part._read(ranges)
    found = list(islice(_each(batches), ROWS))
    shown = f"{count:,} records" + (f", the first {ROWS}" if count > ROWS else "")
    return _records(f"{part!r}, {shown}", found)


@_harmless
def batch_html(batch: Any) -> str:
    """The first records of a batch."""
    shown = f"{len(batch):,} records" + (f", the first {ROWS}" if len(batch) > ROWS else "")
    return _records(f"{batch!r}, {shown}", batch.records()[:ROWS])


def _each(batches: Iterable[Any]) -> Iterator[Record | Gap]:
    for item in batches:
        if isinstance(item, Gap):
            yield item
        else:
            yield from item.records()


def _records(head: str, found: Iterable[Record | Gap]) -> str:
    def row(item: Record | Gap) -> tuple[Any, ...]:
        if isinstance(item, Gap):
            return item.first, item.shard, "", "", f"gap to {item.last}: {item.reason}", ""
        when = f"{item.time:%Y-%m-%d %H:%M:%S.%f}"
        return item.offset, item.shard, when, item.key, item.value, item.tag

    return _table(head, _RECORD, (row(item) for item in found))


def _table(head: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(head)}</caption>"
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(given: Any) -> str:
    if given is None:
        return ""
    if isinstance(given, bytes):
        start = given[: 4 * CELL].decode("utf-8", "replace")
        printable = "\ufffd" not in start[:-1] and all(
            letter.isprintable() or letter in "\n\t" for letter in start[:CELL]
        )
        given = start if printable else repr(given[:CELL])
    text = str(given)
    return escape(text if len(text) <= CELL else f"{text[:CELL]}…")
