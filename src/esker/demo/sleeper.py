"""A reader that falls asleep, and what it is told when it wakes up.

It reads the first clicks, and then no more. Meanwhile the topic grows over its cap, and segments
that it has not read are evicted: a plain reader, unlike a group, keeps nothing. When it goes on, it
gets a Gap with the exact offsets that are gone, and then the first click that is there.
"""

from __future__ import annotations

import esker
from esker.demo import DemoFailed, goods
from esker.demo.goods import CLICKS
from esker.demo.notes import Notes
from esker.records import Gap

SHARD = 0
FEW = 1_000  # clicks that it reads before it falls asleep


class Sleeper:
    """The reader, with its list."""

    def __init__(self, store: esker.Store, notes: Notes) -> None:
        self._topic = store[CLICKS]
        self._notes = notes
        self.last = -1

    def fall_asleep(self) -> None:
        """Read a few, and note the last one."""
        for record in self._topic.read("earliest", limit=FEW, shard=SHARD):
            self.last = record.offset
        self._notes.add("slept", SHARD, self.last)

    def missed_something(self) -> bool:
        """Whether what it would read next is gone."""
        return self._topic.earliest(SHARD) > self.last + 1

    def wake_up(self) -> Gap:
        """Go on, and note what comes first."""
        found = None
        for item in self._topic.batches(self.last + 1, shard=SHARD, gaps="yield"):
            if isinstance(item, Gap):
                found = item
                reason = item.reason.replace(" ", "_")
                self._notes.add("gap", item.shard, item.first, item.last, reason)
                continue
            said = goods.maker(item.values[0])
            name = f"{said.run}-{said.thread}-{said.number}" if said else "?"
            self._notes.add("woke", SHARD, item.first, name)
            break
        if found is None:
            raise DemoFailed("nothing was evicted under the reader that slept")
        return found
