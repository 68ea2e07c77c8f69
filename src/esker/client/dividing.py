"""A shard on a server, for readers that share the work of reading it and account for every offset.

    divided     how a shard stands, and a range of it cut where frames begin, with about their bytes
    whole       all of a range: its batches, and a Gap for whatever is not there

What `engine/ranges.py` does beside the log is done here with two routes. A page says from where to
where it goes. What lies between and is neither a record nor a gap was deleted by its tag, and is
not missing; what was deleted before a position the server tells as a gap, if it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from esker.engine.batch import Batch
from esker.engine.epochs import RECREATED
from esker.engine.ranges import DELETED, Atom
from esker.errors import ServerFault, TopicNotFound
from esker.records import Gap

if TYPE_CHECKING:
    from esker.client.topic import RemoteTopic

_NOT_FOUND = 404


class Divided(msgspec.Struct):
    """How a shard stands, and a range of it in pieces; see the server's wire.Pieces."""

    epoch: int
    begin: int
    earliest: int
    end: int
    pieces: list[dict[str, int]]
    since: int | None = None
    before: int | None = None

    def atoms(self, first: int, end: int) -> list[Atom]:
        """[first, end) in order and without holes, whatever the server knows of it."""
        found = []
        for piece in self.pieces:
            upto = min(piece["end"], end)
            if first < upto:
                found.append(Atom(first, upto, piece["bytes"]))
                first = upto
        if first < end:
            found.append(Atom(first, end, 0))
        return found


def divided(topic: RemoteTopic, shard: int, **asked: Any) -> Divided:
    """Ask how a shard stands: `first`, `end`, `since`, `before`, `most`."""
    try:
        answer = topic._call("GET", "/pieces", {"shard": shard, **asked}, again=True)
    except ServerFault as problem:
        if problem.status != _NOT_FOUND:
            raise
        raise ServerFault(
            f"the server {topic._store.path} is of an older Esker, which cannot divide a topic "
            "among readers: install a newer one there",
            status=problem.status,
        ) from problem
    return msgspec.json.decode(answer.body, type=Divided)


def whole(
    topic: RemoteTopic, shard: int, first: int, end: int, epoch: int, why: str,
    columns: str | None = None,
) -> Iterator[Batch | Gap]:  # fmt: skip
    """Offsets [first, end) of a shard of a topic of that epoch; `why` is said of what is gone."""
    try:
        while first < end:
            page = topic._page(first, end, shard, gaps="all", columns=columns)
            if page.epoch != epoch:
                yield Gap(topic.name, shard, first, end - 1, RECREATED)
                return
            for item in page.items:
                if isinstance(item, Gap) and item.reason == DELETED:
                    item = msgspec.structs.replace(item, reason=why)
                yield item
            if page.next <= first:
                break
            first = page.next
    except TopicNotFound:  # deleted: whatever has not been read by now is missing
        pass
    if first < end:
        yield Gap(topic.name, shard, first, end - 1, why)
