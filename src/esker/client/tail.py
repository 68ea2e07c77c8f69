"""Following a topic on a server.

A tail holds one cursor a shard. `take` yields what is there. `wait` asks the server to answer when
there is more: for one shard the records come with the answer, for several it says which have some.
One such question takes `POLL_SECONDS` at the most, and closing the store ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from esker.client.bodies import Page
from esker.engine.reader import Consistency, Gaps
from esker.errors import DataGap, deleted
from esker.records import Gap

if TYPE_CHECKING:
    from esker.client.topic import RemoteTopic

POLL_SECONDS: Final = 20.0  # a server lets nobody wait longer than 30 s unless it is told


class RemoteTail:
    """Cursors into the shards of a topic."""

    blocking = True  # whoever waits for it holds a thread

    def __init__(
        self, topic: RemoteTopic, cursors: dict[int, int], epoch: int, gaps: Gaps,
        consistency: Consistency, skip_node: str | None, missed: dict[int, Gap],
    ) -> None:  # fmt: skip
        self.cursors = cursors
        self._topic = topic
        self._epoch = epoch
        self._gaps = gaps
        self._how: dict[str, Any] = {"consistency": consistency, "skip_node": skip_node}
        self._missed = missed
        self._found: dict[int, Page] = {}  # what came while somebody waited

    def __repr__(self) -> str:
        places = ", ".join(f"{shard}: {offset}" for shard, offset in self.cursors.items())
        return f"<esker tail of {self._topic.name!r} at {{{places}}}>"

    def take(self) -> Iterator[Any]:
        """Batches (and gaps) from the cursors to the end as it is now; the cursors move along."""
        for number in self.cursors:
            if number in self._missed:
                told = told_gap(self._missed[number], self._gaps)
                del self._missed[number]
                yield from told
            while True:
                page = self._found.pop(number, None) or self._page(number)
                for item in page.items:
                    if isinstance(item, Gap):
                        told = told_gap(item, self._gaps)
                        self.cursors[number] = item.last + 1
                        yield from told
                    elif item.next_offset > self.cursors[number]:
                        self.cursors[number] = item.next_offset
                        yield item
                before = min(page.earliest, page.end)
                self.cursors[number] = max(self.cursors[number], page.next, before)
                if not page.items or self.cursors[number] >= page.end:
                    break

    def _page(self, shard: int, wait: float = 0.0) -> Page:
        page = self._topic._page(self.cursors[shard], None, shard, wait=wait, **self._how)
        if page.epoch != self._epoch:
            raise deleted(self._topic.name)
        return page

    def wait(self, seconds: float) -> None:
        """Until there may be more, or the time is up."""
        seconds = min(seconds, POLL_SECONDS)
        if len(self.cursors) == 1:
            (number,) = self.cursors
            self._found[number] = self._page(number, seconds)
        else:
            self._topic._await(self.cursors, seconds)


def told_gap(gap: Gap, gaps: Gaps) -> list[Gap]:
    """A gap as the reader wants it: raised, handed out, or passed over."""
    if gaps == "raise":
        raise DataGap(gap)
    return [gap] if gaps == "yield" else []
