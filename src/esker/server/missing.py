"""Topics that are watched and are not there: not yet, or not any more.

Whoever waits for a topic is in a set, and five times a second it is looked whether the topic is
there. Then he is sent what he asked for, from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esker.engine.store import Store
from esker.errors import EskerError
from esker.server import cursor
from esker.server.cursor import Place, Places
from esker.server.feed import look
from esker.server.stream import Interest

if TYPE_CHECKING:
    from esker.server.hub import Hub


class Missing:
    """Those who wait for a topic."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: set[Interest] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, interest: Interest) -> None:
        """It waits from now on."""
        self._waiting.add(interest)

    def discard(self, interest: Interest) -> None:
        """It does not wait any more."""
        self._waiting.discard(interest)

    async def look(self) -> None:
        """Topics that were not there, and now are. One that cannot be read is told to who waits."""
        waiting = {each.name for each in self._waiting}
        app = self._hub.app
        found = await app.run(lambda store: [name for name in waiting if _stands(store, name)])
        for name in found:
            for interest in [each for each in self._waiting if each.name == name]:
                try:
                    await self._found(interest)
                except Exception as problem:
                    if app.stopping.is_set():
                        return
                    self._waiting.discard(interest)
                    self._hub.fails([interest.stream], problem, name)

    async def _found(self, interest: Interest) -> None:
        name, shard, place = interest.name, interest.shard, interest.gap
        known: Places = {}
        if place is not None and place.epoch:
            # what was dropped before it was sent has to be told as missing, too
            offset = min(place.offset, interest.at)
            known[cursor.hash_of(name), shard] = Place(place.epoch, offset)
        # all shards, if nobody knew how many it would have
        which = shard if known else None
        spots = await self._hub.app.run(lambda store: look(store, name, "earliest", which, known))
        if spots is None or interest not in self._waiting:
            return
        self._waiting.discard(interest)
        for at in spots:
            if at.shard == shard and at.topic is not None:
                interest.at, interest.gap = at.at, at.gap
                self._hub.attach(interest, at.topic)
        others = [each for each in spots if each.shard != shard]
        self._hub.watch(interest.stream, others, interest.lens)


def _stands(store: Store, name: str) -> bool:
    try:
        return name in store
    except EskerError:
        return True  # whoever looks at it is told
