"""Topics that are watched and are not there: not yet, or not any more.

Whoever waits for a topic is in a set, and five times a second it is looked whether the topic is
there. Then he is sent what he asked for, from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from esker.engine.store import Store
from esker.errors import EskerError
from esker.server.http.faults import Fault
from esker.server.live import cursor
from esker.server.live.cursor import Places
from esker.server.live.feed import look
from esker.server.live.stream import SHARDS_MAX, Interest, Stream

if TYPE_CHECKING:
    from esker.server.live.hub import Hub


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
        app = self._hub.app
        waiting = {(each.stream, each.name): each for each in self._waiting}
        names = {name for _, name in waiting}
        there = await app.run(lambda store: {name for name in names if _stands(store, name)})
        for (stream, name), one in waiting.items():
            if name in there and one in self._waiting:
                try:
                    await self._found(one)
                except Exception as problem:
                    if app.stopping.is_set():
                        return
                    self._waiting.difference_update(_of(stream, name))
                    self._hub.fails([stream], problem, name)

    async def _found(self, one: Interest) -> None:
        """A stream that has this interest, and maybe others in the same topic, gets the topic."""
        stream, name, hashed = one.stream, one.name, cursor.hash_of(one.name)
        known: Places = {}
        for each in _of(stream, name):
            if each.feed is None and each.gap is not None and each.gap.epoch:
                known[hashed, each.shard] = each.gap
        spots = await self._hub.app.run(
            lambda store: look(store, name, "earliest", one.asked, known)
        )
        if spots is None or one not in self._waiting:
            return
        held = {each.shard: each for each in _of(stream, name)}
        fresh = [spot for spot in spots if spot.shard not in held]
        if len(stream.interests) + len(fresh) > SHARDS_MAX:
            raise Fault("invalid_request", f"a stream has at most {SHARDS_MAX} shards")
        for spot in spots:
            mine = held.get(spot.shard)
            if mine is None or mine.feed is not None:
                continue
            if mine.gap.epoch and mine.gap is not known.get((hashed, mine.shard)):
                continue  # it was lost meanwhile, and waits
            self._waiting.discard(mine)
            if spot.topic is None:
                self._hub.shrunk(mine, spot)
            else:
                mine.at, mine.gap, mine.piece = spot.at, spot.gap, mine.piece or spot.piece
                self._hub.attach(mine, spot)
        self._hub.watch(stream, fresh, one.lens)


def _of(stream: Stream, name: str) -> list[Interest]:
    return [each for each in stream.interests if each.name == name]


def _stands(store: Store, name: str) -> bool:
    try:
        return name in store
    except EskerError:
        return True  # whoever looks at it is told
