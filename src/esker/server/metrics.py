"""How it goes, as Prometheus reads it: text, base units, and never more lines than it can bear.

Topics are listed one by one up to a bound, in the order of their names; `esker_topics_truncated`
says how many are left out. What is counted for the whole server is always there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from esker.engine.store import Store
from esker.errors import EskerError
from esker.server.call import Call, Reply
from esker.server.faults import Fault
from esker.version import VERSION

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_MAX: Final = 1_000
BANDS: Final = ("0", "1", "2", "3", "4")
Sample = tuple[dict[str, str], float]


async def metrics(call: Call) -> Reply:
    """Everything that is counted."""
    if getattr(call.principal, "prefixes", ()) and not call.principal.may("admin"):
        raise Fault("forbidden", "the key is for some topics only; metrics tell of all")
    topics, left_out, store = await call.app.run(_of_store)
    text = Text()
    _server(text, call)
    _delivery(text, call)
    for name, says, value in store:
        text.add(name, "counter" if name.endswith("_total") else "gauge", says, [({}, value)])
    text.add("esker_topics_truncated", "gauge", "Topics without lines of their own",
             [({}, left_out)])  # fmt: skip
    for name, kind, says, samples in topics:
        text.add(name, kind, says, samples)
    return Reply(text.encoded(), media=MEDIA)


class Text:
    """Metrics in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, says: str, samples: Iterable[Sample]) -> None:
        """One metric, with a line for each of its label sets."""
        self._lines += (f"# HELP {name} {says}", f"# TYPE {name} {kind}")
        for labels, value in samples:
            told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            number = repr(value) if isinstance(value, float) else str(value)
            self._lines.append(f"{name}{{{told}}} {number}" if told else f"{name} {number}")

    def encoded(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _server(text: Text, call: Call) -> None:
    app = call.app
    text.add("esker_build_info", "gauge", "The version that runs", [({"version": VERSION}, 1)])
    text.add(
        "esker_uptime_seconds",
        "gauge",
        "Since the server was started",
        [({}, app.clock.monotonic() - app.began)],
    )
    text.add("esker_http_requests_total", "counter", "Requests", [({}, app.requests)])
    text.add(
        "esker_http_failures_total",
        "counter",
        "Requests that the server could not do",
        [({}, app.failures)],
    )
    text.add("esker_http_requests_under_way", "gauge", "Requests that are being done",
             [({}, app.under_way)])  # fmt: skip


def _delivery(text: Text, call: Call) -> None:
    hub = call.app.hub
    governor = hub.governor
    kinds: dict[str, int] = {"sse": 0, "websocket": 0}
    waiting = 0
    for stream in hub.streams:
        kinds["sse" if stream.form == "sse" else "websocket"] += 1
        waiting += stream.queued
    counts = hub.counts
    text.add(
        "esker_streams",
        "gauge",
        "Clients that watch",
        [({"kind": kind}, number) for kind, number in kinds.items()],
    )
    text.add(
        "esker_watches_made",
        "gauge",
        "Watches that were made and not yet forgotten",
        [({}, len(call.app.sessions))],
    )
    text.add("esker_stream_queue_bytes", "gauge", "What waits for clients", [({}, waiting)])
    text.add(
        "esker_feeds", "gauge", "Shards that are watched", [({}, sum(map(len, hub.feeds.values())))]
    )
    text.add(
        "esker_delivered_records_total",
        "counter",
        "Records sent to clients",
        [({}, counts["deliveries"])],
    )
    text.add(
        "esker_delivered_frames_total",
        "counter",
        "Events and messages sent to clients",
        [({}, counts["frames"])],
    )
    text.add(
        "esker_delivered_bytes_total", "counter", "Bytes sent to clients", [({}, counts["bytes"])]
    )
    text.add(
        "esker_drained_records_total",
        "counter",
        "Records read for all who watch",
        [({}, counts["records"])],
    )
    text.add("esker_drains_total", "counter", "Turns of dirty topics", [({}, counts["drains"])])
    text.add(
        "esker_lagging_total",
        "counter",
        "Times that a client did not keep up",
        [({}, counts["lagging"])],
    )
    text.add("esker_appends_under_way", "gauge", "Appends that are being done", [({}, hub.appends)])
    text.add(
        "esker_throttled_total",
        "counter",
        "Appends refused by a saturated server",
        [({}, counts["refused"])],
    )
    text.add(
        "esker_ready_topics",
        "gauge",
        "Dirty topics that wait for their turn, by band",
        [({"band": band}, size) for band, size in zip(BANDS, hub.ready.sizes(), strict=True)],
    )
    text.add(
        "esker_pressure_ratio", "gauge", "How hard pressed the server is", [({}, governor.pressure)]
    )
    text.add(
        "esker_pressure_rung", "gauge", "How high on the ladder, from 0 to 4", [({}, governor.rung)]
    )
    text.add(
        "esker_schedule_seconds",
        "gauge",
        "How long dirty topics wait, on average",
        [({}, governor.latency)],
    )
    text.add(
        "esker_coalesce_seconds",
        "gauge",
        "The window in which records go out together",
        [({}, governor.coalesce)],
    )
    text.add(
        "esker_commit_window_seconds",
        "gauge",
        "The widened commit window; 0 if it is not",
        [({}, governor.commit_window or 0.0)],
    )
    text.add("esker_deferring", "gauge", "Whether push of the lowest band rests",
             [({}, int(governor.deferring))])  # fmt: skip


_COUNTED: Final = (
    ("syncs", "esker_syncs_total", "Syncs of files"),
    ("commit_rounds", "esker_commit_rounds_total", "Rounds of group commit"),
    ("unflushed_bytes", "esker_unflushed_bytes", "Bytes that are not yet written"),
    ("mapped_bytes", "esker_mapped_bytes", "Bytes of segments that are mapped"),
    ("gaps_met", "esker_gaps_total", "Gaps that readers met"),
    ("topics", "esker_topics", "Topics"),
)
_OF_TOPIC: Final = (
    ("esker_topic_end_offset", "gauge", "Behind the last record that readers see"),
    ("esker_topic_earliest_offset", "gauge", "The first record that is there"),
    ("esker_topic_records_total", "counter", "Records appended, as the shard's page counts them"),
    ("esker_topic_bytes_total", "counter", "Bytes appended, as the shard's page counts them"),
)


def _of_store(store: Store) -> tuple[list[Any], int, list[tuple[str, str, int]]]:
    """What the store knows; touches the disk."""
    names = list(store)
    samples: list[list[Sample]] = [[] for _ in _OF_TOPIC]
    lines = 0
    shown = 0
    for name in names:
        try:
            found = _of_topic(store, name)
        except EskerError:
            shown += 1  # deleted meanwhile, or not to be read: the log says so
            continue
        if lines + len(found) > TOPICS_MAX:
            break
        shown += 1
        lines += len(found)
        for labels, numbers in found:
            for column, number in zip(samples, numbers, strict=True):
                column.append((labels, number))
    told = [(*metric, column) for metric, column in zip(_OF_TOPIC, samples, strict=True)]
    statistics = store.statistics()
    counted = [(name, says, statistics[key]) for key, name, says in _COUNTED]
    return told, len(names) - shown, counted


def _of_topic(store: Store, name: str) -> list[tuple[dict[str, str], tuple[int, ...]]]:
    topic = store[name]
    found: list[tuple[dict[str, str], tuple[int, ...]]] = []
    for shard in range(topic.shards):
        counters = topic.counters(shard)
        numbers = (
            topic.end(shard), topic.earliest(shard),
            counters.get("total_records", 0), counters.get("total_bytes", 0),
        )  # fmt: skip
        found.append(({"topic": name, "shard": str(shard)}, numbers))
    return found
