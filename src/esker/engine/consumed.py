"""What groups have to do with how long records are kept.

    consumed=True              segments go that every group of the shard has acked as a whole
    protect_unconsumed=True    segments stay that a group has not acked as a whole, whatever caps,
                               ttl and the budget say ...
    force_after                ... until they are as old as this

The engine knows no groups; it reads their cursors in the shard's page, which is below it. Without
any group nothing is consumed and nothing is protected. A slot that is damaged may be a group that
has read nothing: then everything is protected.

Before anything is evicted that a group has acked, the page is synced. Otherwise a power cut could
take its cursor back to where the log does not begin any more, and it would be told of a loss that
was none.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from esker.engine.shard import Shard
from esker.errors import Corruption
from esker.format import names
from esker.format.offsets import Owner, Slot
from esker.storage.files import join, sync_file
from esker.storage.offsets import OffsetsFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from esker.engine.reader import View


class Readers(NamedTuple):
    """The groups of a shard."""

    groups: int
    lowest: int  # all below it is acked by every one of them
    acked: int  # records, by all of them together


def readers_of(view: View) -> Readers | None:
    """The groups of a shard; None without any."""
    files = view.files if isinstance(view, Shard) else view.context.files
    owner = Owner(view.context.store, view.entry.id, view.number)
    page = OffsetsFile(files, view.folder, owner, nullcontext())
    try:
        if not page.map(writable=False):
            return None
        slots = list(page.slots())
    except Corruption:
        return Readers(1, 0, 0)  # somebody's cursor, and nobody knows where it is
    if not slots:
        return None
    whole = [slot for slot in slots if isinstance(slot, Slot)]
    lowest = min((slot.cursor for slot in whole), default=0)
    return Readers(
        len(slots), lowest if len(whole) == len(slots) else 0, sum(slot.acks for slot in whole)
    )


def acked_segments(bases: Sequence[int], lowest: int) -> int:
    """How many segments, from the oldest on, lie wholly below an offset; never the last one."""
    count = 0
    while count + 1 < len(bases) and bases[count + 1] <= lowest:
        count += 1
    return count


def settle(shard: Shard) -> None:
    """Make the cursors of a shard durable, if it has any."""
    path = join(shard.folder, names.OFFSETS)
    if shard.files.kind(path):
        sync_file(shard.files, path)


def tell(shard: Shard) -> None:
    """Put what groups have done on the counters page."""
    readers = readers_of(shard) if shard.counters is not None else None
    if readers is not None and shard.counters is not None:
        shard.counters.set("groups", readers.groups)
        shard.counters.set("records_acked", readers.acked)
        shard.counters.set("max_reader_lag", max(0, shard.visible - readers.lowest))
