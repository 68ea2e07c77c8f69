"""How far behind a group is: records, seconds, and seconds until it has caught up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from esker.engine.batch import Batch
from esker.engine.reader import View, count_records, read_batches

if TYPE_CHECKING:
    from esker.engine.topic import Topic


class ShardLag(msgspec.Struct, frozen=True):
    """How far behind a group is in one shard."""

    shard: int
    cursor: int
    end: int
    records: int  # between them, without gaps and what was deleted
    seconds: float  # since the first of them was written; 0 if there is none


class Lag(msgspec.Struct, frozen=True):
    """How far behind a group is."""

    topic: str
    group: str
    shards: tuple[ShardLag, ...]
    eta_seconds: float | None = None
    """Until it has caught up, at the rate between the last two looks of this handle. 0: it has.
    None: it is not known yet, or it never will, for it falls behind."""

    @property
    def records(self) -> int:
        """How many records it is behind, over all shards."""
        return sum(each.records for each in self.shards)

    @property
    def seconds(self) -> float:
        """How long the oldest record that is not done with has been there."""
        return max((each.seconds for each in self.shards), default=0.0)

    def __str__(self) -> str:
        eta = "unknown" if self.eta_seconds is None else f"{self.eta_seconds:.0f} s"
        return (
            f"group {self.group!r} of {self.topic!r}: {self.records} records, "
            f"{self.seconds:.1f} s behind, caught up in: {eta}"
        )


class Rates:
    """Remembers the last look."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def told(self, lag: Lag, now: float) -> Lag:
        """The lag with an estimate, from how it has changed since the last look."""
        before, self._last = self._last, (now, lag.records)
        eta: float | None = 0.0 if not lag.records else None
        if lag.records and before is not None and now > before[0]:
            gained = (before[1] - lag.records) / (now - before[0])
            eta = lag.records / gained if gained > 0 else None
        return msgspec.structs.replace(lag, eta_seconds=eta)


def lag(topic: Topic, group: str, cursors: dict[int, int]) -> Lag:
    """How far these cursors are behind."""
    now = topic._store._context.clock.now_us()
    return Lag(
        topic.name, group,
        tuple(shard_lag(topic._view(number), cursor, now) for number, cursor in cursors.items()),
    )  # fmt: skip


def shard_lag(view: View, cursor: int, now_us: int) -> ShardLag:
    records = count_records(view, cursor, view.visible)
    seconds = 0.0
    if records:
        for item in read_batches(view, cursor, view.visible, max_records=1, gaps="yield"):
            if isinstance(item, Batch) and len(item):
                seconds = max(0.0, (now_us - (item.records()[0].timestamp or now_us)) / 1e6)
                break
    return ShardLag(view.number, cursor, view.visible, records, seconds)
