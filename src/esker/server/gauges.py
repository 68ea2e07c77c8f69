"""What the store knows of itself, for the metrics: ends, bytes, syncs, groups, queues.

Topics stand in the order of their names. There are at most `LINES_MAX` shards, and as many groups
and queues, that have lines of their own; how many topics, groups and queues are left out is told.
What cannot be read is counted, and does not keep the rest from being told.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from esker.engine.store import Store
from esker.engine.tally import Times, bytes_of
from esker.engine.topic import Topic
from esker.errors import EskerError, TopicNotFound
from esker.format import names
from esker.groups.describe import GroupStatus, groups_of
from esker.queues.opening import known_queue
from esker.queues.queue import QueueStats
from esker.storage.files import join

LINES_MAX: Final = 1_000  # of shards; of groups; of queues
Sample = tuple[dict[str, str], float] | tuple[dict[str, str], float, str]
Metric = tuple[str, str, str, Iterable[Sample]]

_COUNTED: Final = (
    ("commit_rounds", "esker_commit_rounds_total", "Rounds of group commit"),
    ("unflushed_bytes", "esker_unflushed_bytes", "Bytes that are not yet written"),
    ("mapped_bytes", "esker_mapped_bytes", "Bytes of segments that are mapped"),
    ("map_evictions", "esker_map_evictions_total", "Maps that were let go for others"),
    ("cold_bytes", "esker_cold_cache_bytes", "Bytes of cold segments that are in memory"),
    ("cold_fetches", "esker_cold_fetches_total", "Segments fetched from the cold store"),
    ("cold_hits", "esker_cold_hits_total", "Reads of cold segments that were in memory"),
    ("gaps_met", "esker_gaps_total", "Gaps that readers met"),
    ("topics", "esker_topics", "Topics"),
)
_OF_SHARD: Final = (
    ("esker_topic_end_offset", "gauge", "Behind the last record that readers see"),
    ("esker_topic_durable_offset", "gauge", "Behind the last record that survives a power cut"),
    ("esker_topic_earliest_offset", "gauge", "The first record that is there"),
    ("esker_topic_records_total", "counter", "Records appended, as the shard's page counts them"),
    ("esker_topic_bytes_total", "counter", "Bytes appended, as the shard's page counts them"),
    ("esker_topic_hot_bytes", "gauge", "Bytes of segments on the disk of the store"),
    ("esker_topic_cold_bytes", "gauge", "Bytes of segments in the cold store"),
    ("esker_topic_evicted_records_total", "counter", "Records that retention has removed"),
    ("esker_topic_evicted_bytes_total", "counter", "Bytes that retention has removed"),
)
_OF_QUEUE: Final = ("ready", "leased", "delayed", "parked", "dead")


def of_store(store: Store) -> list[Metric]:
    """Everything; touches the disk."""
    found = Found()
    topics = list(store)
    for name in topics:
        try:
            found.add(store[name])
        except TopicNotFound:  # deleted meanwhile
            found.shown += 1
        except EskerError:
            found.shown += 1
            found.failures += 1
    return [*_whole(store), *found.told(len(topics))]


def _whole(store: Store) -> list[Metric]:
    statistics = store.statistics()
    made: list[Metric] = [
        (name, "counter" if name.endswith("_total") else "gauge", says, [({}, statistics[key])])
        for key, name, says in _COUNTED
    ]
    times = store._context.committer.sync_times
    made.append(("esker_sync_seconds", "histogram", "How long a sync of the disk takes",
                 histogram(times)))  # fmt: skip
    recovery = store.recovery
    made += [
        ("esker_recovery_seconds", "gauge", "How long the store was recovered when it was opened",
         [({}, float(recovery.seconds))]),
        ("esker_recovery_findings", "gauge", "What was found and mended then",
         [({}, len(recovery.findings))]),
    ]  # fmt: skip
    return made


def histogram(times: Times, **labels: str) -> list[Sample]:
    """The lines of a histogram: what is up to each bound, the sum, the count."""
    counts = list(accumulate(times.counts))
    bounds = [*map(repr, times.bounds), "+Inf"]
    samples: list[Sample] = [
        ({**labels, "le": bound}, count, "_bucket")
        for bound, count in zip(bounds, counts, strict=True)
    ]
    return [*samples, (labels, times.seconds, "_sum"), (labels, counts[-1], "_count")]


class Found:
    """Lines of topics, groups and queues, as many as there may be."""

    def __init__(self) -> None:
        self.shown = 0  # topics that have lines, or need none
        self.failures = 0
        self._shards: list[list[Sample]] = [[] for _ in _OF_SHARD]
        self._groups: list[GroupStatus] = []
        self._queues: list[tuple[str, QueueStats]] = []
        self._left_out = {"groups": 0, "queues": 0}

    def add(self, topic: Topic) -> None:
        """A topic, its groups, and its jobs if it is a queue."""
        if len(self._shards[0]) + topic.shards > LINES_MAX:
            return
        for number in range(topic.shards):
            labels = {"topic": topic.name, "shard": str(number)}
            for column, value in zip(self._shards, _of_shard(topic, number), strict=True):
                column.append((labels, value))
        self.shown += 1
        groups = groups_of([topic])
        room = LINES_MAX - len(self._groups)
        self._groups += groups[:room]
        self._left_out["groups"] += len(groups[room:])
        if is_queue(topic):
            if len(self._queues) < LINES_MAX:
                self._queues.append((topic.name, known_queue(topic._store, topic.name).stats()))
            else:
                self._left_out["queues"] += 1

    def told(self, topics: int) -> list[Metric]:
        left_out = {"topics": topics - self.shown, **self._left_out}
        made: list[Metric] = [
            ("esker_topics_truncated", "gauge", "Topics without lines of their own",
             [({}, left_out["topics"])]),
            ("esker_groups_truncated", "gauge", "Groups of those topics without lines of their own",
             [({}, left_out["groups"])]),
            ("esker_queues_truncated", "gauge", "Queues of those topics without lines of their own",
             [({}, left_out["queues"])]),
            ("esker_unreadable_topics", "gauge", "Topics that could not be looked at just now",
             [({}, self.failures)]),
        ]  # fmt: skip
        made += [
            (name, kind, says, column)
            for (name, kind, says), column in zip(_OF_SHARD, self._shards, strict=True)
        ]
        of_groups = [({"topic": each.topic, "group": each.name}, each) for each in self._groups]
        made += [
            ("esker_group_lag_records", "gauge", "Records that a group has yet to be done with",
             [(labels, each.records) for labels, each in of_groups]),
            ("esker_group_lag_seconds", "gauge", "For how long the oldest of them has been there",
             [(labels, float(each.seconds)) for labels, each in of_groups]),
            ("esker_group_members", "gauge", "Members of a group",
             [(labels, len(each.pids)) for labels, each in of_groups]),
            ("esker_queue_jobs", "gauge", "Jobs of a queue, by their state",
             [({"queue": name, "state": state}, getattr(stats, state))
              for name, stats in self._queues for state in _OF_QUEUE]),
            ("esker_queue_oldest_seconds", "gauge", "The age of the oldest job that is not done",
             [({"queue": name}, float(stats.oldest_seconds or 0.0))
              for name, stats in self._queues]),
        ]  # fmt: skip
        return made


def _of_shard(topic: Topic, number: int) -> tuple[int, ...]:
    counters: dict[str, Any] = topic.counters(number)
    weight = bytes_of(topic._shards[number])
    return (
        topic.end(number), topic.durable(number), topic.earliest(number),
        counters.get("total_records", 0), counters.get("total_bytes", 0),
        weight.here, weight.all - weight.here,
        counters.get("records_deleted", 0), counters.get("bytes_reclaimed", 0),
    )  # fmt: skip


def is_queue(topic: Topic) -> bool:
    """Whether jobs of a topic are taken under leases."""
    context = topic._store._context
    folder = join(context.root, names.TOPICS, names.topic(topic._existing().id), names.QUEUE)
    return bool(context.files.kind(folder))
