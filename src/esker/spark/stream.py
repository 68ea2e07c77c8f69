"""`spark.readStream.format("esker")`: a topic as a stream of small batches.

Spark asks for an end, writes it to its checkpoint, and then has the rows between the last end and
this one read, once or again after a crash. An end is, as with Kafka, an offset for each shard:

    {"orders": {"0": 4711, "1": 4650}, "@from": {...}, "@topics": {"orders": 3}, "@lost": {...}}

What Spark does not write down is where the first batch began; so an end says by itself where its
shards begin that no end before it had: `@from`. That makes every batch the same whenever it is read
again: after a restart, `latest` may be somewhere else, and the batch is not. `@topics` has the
epochs of the topics: one that was deleted and made anew is another topic, and not a shorter one.
Then the stream fails, or goes on with the new one from its beginning; `@lost` has what the stream
had not read of the old one, as far as it went, and is told with that batch.

A stream may have an end (Kafka's has none). Where that is, is looked up when the stream starts: at
`latest` it ends where the topic ended then. An offset or a time that is still to come is waited
for. A stream at its end has no more batches; with trigger(availableNow=True) it stops.

Rows that a batch was planned with and that are not there any more are a loss, never a shorter
batch: see rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from esker.clock import SYSTEM_CLOCK
from esker.engine import epochs
from esker.records import Gap
from esker.spark import origins, plan
from esker.spark.origin import Seen, take_bytes, weight
from esker.spark.rows import lost
from esker.spark.shown import Shown
from esker.spark.tasks import Part, parts
from esker.spark.wanted import Wanted

FROM = "@from"
TOPICS = "@topics"
LOST = "@lost"
DELETED = "the topic was deleted"

Offsets = dict[str, dict[str, int]]


class EskerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Lives beside the driver; copies of it read in the workers."""

    def __init__(self, asked: Wanted, schema: StructType) -> None:
        self.asked = asked
        self.schema = schema
        self._initial: dict[str, Any] | None = None
        self._last_stop: dict[str, Any] | None = None  # of trigger(availableNow=True)
        self._waited_since: float | None = None
        self._ends: dict[tuple[str, int], int] | None = None  # as far as they are known
        self._shown: Shown | None = (
            Shown(asked.path, asked.group, asked.access) if asked.group else None
        )

    # -- offsets --

    def initialOffset(self) -> dict[str, Any]:
        """Where the stream begins; the same as long as this process lives."""
        if self._initial is None:
            topics = plan.find_topics(self.asked, missing_ok=bool(self.asked.pattern))
            begins = plan.resolve(self.asked.starting, topics)
            self._initial = _written(begins, topics)
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        topics = plan.find_topics(self.asked, missing_ok=True)
        missed = self._missed(start, topics)
        if self._shown is not None and not self._shown.begun:
            self._shown.show(_shards(start))
        whole, start = start, {name: told for name, told in start.items() if name not in missed}
        begins, ends = self._backlog(start, topics)
        if self.asked.has_end:
            ends = _clipped(ends, begins, self._available(topics))
        if self._last_stop is not None:
            ends = _clipped(ends, begins, self._last_stop)
        elif self._waits(begins, ends, limit):
            return whole
        ends = self._admitted(topics, begins, ends, limit)
        if ends == begins and not _new(start, begins):
            return whole
        told: dict[str, Any] = {
            topic: {str(number): offset for number, offset in shards.items()}
            for topic, shards in ends.items()
        }
        begin = _new(start, begins) or (start.get(FROM, {}) if whole == self._initial else {})
        if begin:
            told[FROM] = begin
        if missed:
            told[LOST] = missed
        told[TOPICS] = {**start.get(TOPICS, {}), **{each.topic: each.id for each in topics}}
        return told

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of each shard, so that Spark shows how far a stream is behind."""
        return self._available(plan.find_topics(self.asked, missing_ok=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        asked = self.asked
        if asked.max_offsets:
            return ReadMaxRows(asked.max_offsets)
        if asked.max_bytes:
            return ReadMaxBytes(asked.max_bytes)
        if asked.min_offsets:
            return ReadMinRows(asked.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All that is there now, in as many batches as the limits say, and then no more."""
        self._last_stop = self.reportLatestOffset()

    # -- rows --

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        topics = {each.topic: each for each in plan.find_topics(self.asked, missing_ok=True)}
        found: list[tuple[plan.Span, Seen]] = []
        gaps = [
            self._lost(Gap(topic, int(shard), first, last, epochs.RECREATED))
            for topic, shards in end.get(LOST, {}).items()
            for shard, (first, last) in shards.items()
        ]
        for topic, shards in _shards(end).items():
            number = end.get(TOPICS, {}).get(topic, 0)
            there = topics.get(topic)
            for shard, stop in shards.items():
                first = _begin(start, end, topic, shard)
                if first >= stop:
                    continue
                if there is None or there.id != number:
                    reason = DELETED if there is None else epochs.RECREATED
                    gaps.append(self._lost(Gap(topic, shard, first, stop - 1, reason)))
                    continue
                span = plan.Span(topic, number, shard, first, stop)
                found.append((span, there.views[shard]))
        return parts(self.asked, found, gaps=gaps)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Part):
            return iter(())
        return partition.task.rows(to_arrow_schema(self.schema, timezone="UTC"))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint is the memory of a stream; a group only shows it, if one was named."""
        if self._shown is not None:
            self._shown.show(_shards(end))

    def stop(self) -> None:
        """The process that reads the store ends with the stream."""
        if self._shown is not None:
            self._shown.close()

    # -- how far --

    def _backlog(
        self, start: dict[str, Any], topics: list[plan.Shards]
    ) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Where each shard stands, and where it ends. A new one begins at its first record."""
        begins: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        for each in topics:
            known = start.get(each.topic, {})
            begins[each.topic] = {
                number: known.get(str(number), view.earliest) for number, view in each.views.items()
            }
            ends[each.topic] = {
                number: max(view.visible, begins[each.topic][number])
                for number, view in each.views.items()
            }
        for topic, shards in _shards(start).items():  # of one that is gone: it stays where it was
            begins.setdefault(topic, shards)
            ends.setdefault(topic, shards)
        return begins, ends

    def _available(self, topics: list[plan.Shards]) -> Offsets:
        """How far each shard can be read by now: to its end, or to that of the stream."""
        bounds = self._bounds(topics) if self.asked.has_end else {}
        return {
            each.topic: {
                str(number): min(view.visible, bounds.get((each.topic, number), view.visible))
                for number, view in each.views.items()
            }
            for each in topics
        }

    def _bounds(self, topics: list[plan.Shards]) -> dict[tuple[str, int], int]:
        """Where the stream ends, for the shards in which that is known."""
        place = self.asked.ending
        first_look = self._ends is None
        if self._ends is None:
            plan.checked(place, topics)
            self._ends = {}
        for each in topics:
            for number, view in each.views.items():
                if (each.topic, number) in self._ends:
                    continue
                position = place.everywhere or place.each.get(each.topic, {}).get(number)
                if position is None:
                    plan.checked(place, topics)  # a shard that came later: says which
                elif position.kind == "offset":
                    self._ends[each.topic, number] = position.number
                elif position.kind == "time":
                    if (found := view.resolve(position)) < view.visible:
                        self._ends[each.topic, number] = found
                else:  # a place of the moment when the stream began; a later shard had none yet
                    here = view.resolve(position) if first_look else 0
                    self._ends[each.topic, number] = here
        return self._ends

    def _waits(
        self, begins: dict[str, dict[int, int]], ends: dict[str, dict[int, int]], limit: ReadLimit
    ) -> bool:
        """Whether there are too few records yet, and they have not waited long enough."""
        least = self.asked.min_offsets
        if isinstance(limit, ReadMinRows):
            least = max(least, limit.min_rows)
        there = _total(begins, ends)
        now = SYSTEM_CLOCK.monotonic()
        if not least or there >= least:
            self._waited_since = None
            return False
        if self._waited_since is None:
            self._waited_since = now
        if (now - self._waited_since) * 1e6 < self.asked.max_delay_us:
            return True
        self._waited_since = None
        return False

    def _admitted(
        self, topics: list[plan.Shards], begins: dict[str, dict[int, int]],
        ends: dict[str, dict[int, int]], limit: ReadLimit,
    ) -> dict[str, dict[int, int]]:  # fmt: skip
        """As much of the backlog as a batch may take, fairly over the shards."""
        rows, size = self.asked.max_offsets, self.asked.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if rows:
            ends = _fair(begins, ends, rows)
        if size:
            views = {(each.topic, n): view for each in topics for n, view in each.views.items()}
            ends = _by_bytes(begins, ends, size, views)
        return ends

    # -- what is not there any more --

    def _missed(self, start: dict[str, Any], topics: list[plan.Shards]) -> dict[str, Any]:
        """What the stream had not read of topics that were deleted and made anew."""
        origin = origins.at(self.asked)
        now = {each.topic: each.id for each in topics}
        found: dict[str, dict[str, list[int]]] = {}
        for topic, epoch in start.get(TOPICS, {}).items():
            if now.get(topic, epoch) == epoch:
                continue
            for shard, offset in start.get(topic, {}).items():
                number = int(shard)
                gap = self._lost(origin.missed(topic, epoch, offset, number))
                found.setdefault(topic, {})[shard] = [gap.first, gap.last]
        return found

    def _lost(self, gap: Gap) -> Gap:
        """A gap that is to be told; it is told at once if the stream is to fail of it."""
        if self.asked.on_loss == "fail":
            raise lost(origins.at(self.asked).shown, gap)
        return gap


def _written(begins: dict[str, dict[int, int]], topics: list[plan.Shards]) -> dict[str, Any]:
    told = {
        topic: {str(number): offset for number, offset in shards.items()}
        for topic, shards in begins.items()
    }
    return {**told, FROM: dict(told), TOPICS: {each.topic: each.id for each in topics}}


def _shards(offsets: dict[str, Any]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(number): offset for number, offset in shards.items()}
        for topic, shards in offsets.items()
        if topic not in (FROM, TOPICS, LOST)
    }


def _begin(start: dict[str, Any], end: dict[str, Any], topic: str, shard: int) -> int:
    """Where a shard's part of a batch begins: as the end says, else where the last one was."""
    number = str(shard)
    own: int | None = end.get(FROM, {}).get(topic, {}).get(number)
    if own is not None:
        return own
    known: int = start.get(topic, {}).get(number, 0)
    return known


def _new(start: dict[str, Any], begins: dict[str, dict[int, int]]) -> Offsets:
    """The shards that `start` does not have, and where they begin."""
    found: Offsets = {}
    for topic, shards in begins.items():
        for number, offset in shards.items():
            if str(number) not in start.get(topic, {}):
                found.setdefault(topic, {})[str(number)] = offset
    return found


def _total(begins: dict[str, dict[int, int]], ends: dict[str, dict[int, int]]) -> int:
    return sum(
        end - begins[topic][number]
        for topic, shards in ends.items()
        for number, end in shards.items()
    )


def _clipped(
    ends: dict[str, dict[int, int]], begins: dict[str, dict[int, int]], stop: dict[str, Any]
) -> dict[str, dict[int, int]]:
    return {
        topic: {
            number: max(begins[topic][number], min(end, stop.get(topic, {}).get(str(number), 0)))
            for number, end in shards.items()
        }
        for topic, shards in ends.items()
    }


def _fair(
    begins: dict[str, dict[int, int]], ends: dict[str, dict[int, int]], limit: int
) -> dict[str, dict[int, int]]:
    """So many offsets in all, shared out by how much each shard has waiting."""
    waiting = _total(begins, ends)
    if waiting <= limit:
        return ends
    found: dict[str, dict[int, int]] = {}
    left, behind = limit, waiting
    for topic, shards in ends.items():
        found[topic] = {}
        for number, end in shards.items():
            first = begins[topic][number]
            backlog = end - first
            share = -(-left * backlog // behind) if behind else 0
            share = min(backlog, share)
            found[topic][number] = first + share
            left -= share
            behind -= backlog
    return found


def _by_bytes(
    begins: dict[str, dict[int, int]], ends: dict[str, dict[int, int]], limit: int,
    views: dict[tuple[str, int], Seen],
) -> dict[str, dict[int, int]]:  # fmt: skip
    """About so many bytes in all, in whole frames, at least one of a shard that has any."""
    weights = {
        (topic, number): weight(views[topic, number], begins[topic][number], end)
        for topic, shards in ends.items()
        for number, end in shards.items()
        if (topic, number) in views
    }
    total = sum(weights.values())
    if total <= limit:
        return ends
    return {
        topic: {
            number: take_bytes(
                views[topic, number], begins[topic][number], end,
                limit * weights[topic, number] // total,
            ) if (topic, number) in views else end
            for number, end in shards.items()
        }
        for topic, shards in ends.items()
    }  # fmt: skip
