"""Places in a topic that was deleted, and of whose name there is another one now.

A topic's *epoch* is a number that no other topic of its store has had or will have. Who keeps an
offset for later keeps the epoch with it, and says both when he comes back:

    topic.read(offset, epoch=epoch)

If it is another topic by now, the offset means nothing in it. He gets exactly one Gap for each
shard, with reason `recreated`: from his offset to where the old topic ended when it was deleted,
which is nothing at all if he had read everything; and then the new topic from its beginning.

Where a topic ended, the catalog remembers (format/catalog.py). If it does not, because many were
deleted since or the deletion was finished by another process, the gap goes up to the last offset
that there can be: `missed` is an upper bound, as always.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from esker.errors import InvalidOption
from esker.format.catalog import Catalog, TopicEntry
from esker.positions import EARLIEST, Position
from esker.records import Gap

RECREATED: Final = "recreated"
OFFSET_MAX: Final = (1 << 63) - 2
BEGINNING: Final = Position(EARLIEST)


def is_another(entry: TopicEntry, epoch: Any, begin: Position) -> bool:
    """Whether an offset was one of a topic that had this name before."""
    if epoch is None:
        return False
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 < epoch <= entry.id:
        raise InvalidOption(
            f"epoch={epoch!r}: topic {entry.name!r} has epoch {entry.id}, and those that had its "
            "name before had lower ones"
        )
    if begin.kind != "offset":
        raise InvalidOption("an epoch goes with an offset: other places are of the topic as it is")
    return bool(epoch != entry.id)


def missed(
    catalog: Catalog, name: str, epoch: int, offset: int, shards: Iterable[int]
) -> dict[int, Gap]:
    """What somebody has not read who was at an offset of a topic when it was deleted."""
    known = (each.ends for each in catalog.former if (each.id, each.name) == (epoch, name))
    ends = next(known, ())
    return {shard: missed_of(name, shard, offset, ends) for shard in shards}


def missed_of(name: str, shard: int, offset: int, ends: tuple[int, ...]) -> Gap:
    end = ends[shard] if shard < len(ends) else OFFSET_MAX + 1
    if ends and not offset and shard >= len(ends):
        end = 0  # it had no such shard, and nobody read in one
    return Gap(name, shard, offset, max(offset, end) - 1, RECREATED)
