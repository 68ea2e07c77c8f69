"""How it goes, as Prometheus reads it: text, base units, and never more lines than it can bear.

What is counted for the whole server is always there. Topics, groups and queues are listed one by
one up to a bound (gauges.py). While the store is recovered the server is told of all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from esker.server import gauges
from esker.server.gauges import Sample
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault
from esker.server.live.latency import BUDGET
from esker.version import VERSION

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
BANDS: Final = ("0", "1", "2", "3", "4")

_OF_HUB: Final = (
    ("queued", "esker_stream_queue_bytes", "What waits for clients"),
    ("feeds", "esker_feeds", "Shards that are watched"),
    ("deliveries", "esker_delivered_records_total", "Records sent to clients"),
    ("frames", "esker_delivered_frames_total", "Events and messages sent to clients"),
    ("bytes", "esker_delivered_bytes_total", "Bytes sent to clients"),
    ("records", "esker_drained_records_total", "Records read for all who watch"),
    ("drains", "esker_drains_total", "Turns of dirty topics"),
    ("lagging", "esker_lagging_total", "Times that a client did not keep up"),
    ("appends", "esker_appends_under_way", "Appends that are being done"),
    ("refused", "esker_throttled_total", "Appends refused by a saturated server"),
    ("pressure", "esker_pressure_ratio", "How hard pressed the server is"),
    ("rung", "esker_pressure_rung", "How high on the ladder, from 0 to 4"),
    ("latency", "esker_schedule_seconds", "How long dirty topics wait, on average"),
    ("coalesce", "esker_coalesce_seconds", "The window in which records go out together"),
    ("commit_window", "esker_commit_window_seconds", "The widened commit window; 0 if it is not"),
    ("deferring", "esker_deferring", "Whether push of the lowest band rests"),
)


async def metrics(call: Call) -> Reply:
    """Everything that is counted."""
    if getattr(call.principal, "prefixes", ()) and not call.principal.may("admin"):
        raise Fault("forbidden", "the key is for some topics only; metrics tell of all")
    text = Text()
    store = await call.app.run(gauges.of_store) if call.app.opened else []
    _server(text, call)
    _delivery(text, call)
    for metric in store:
        text.add(*metric)
    return Reply(text.encoded(), media=MEDIA)


class Text:
    """Metrics in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, says: str, samples: Iterable[Sample]) -> None:
        """One metric, with a line for each of its label sets."""
        self._lines += (f"# HELP {name} {says}", f"# TYPE {name} {kind}")
        for labels, value, *more in samples:
            told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            number = repr(value) if isinstance(value, float) else str(value)
            line = name + (more[0] if more else "")
            self._lines.append(f"{line}{{{told}}} {number}" if told else f"{line} {number}")

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
    text.add("esker_ready", "gauge", "Whether the store is open and calls are taken",
             [({}, int(app.opened))])  # fmt: skip
    text.add("esker_replay_progress_ratio", "gauge", "How far the store is recovered",
             [({}, 1.0 if app.opened else app.replayed["replay_progress"])])  # fmt: skip
    text.add("esker_http_requests_total", "counter", "Requests", [({}, app.requests)])
    text.add(
        "esker_http_failures_total",
        "counter",
        "Requests that the server could not do",
        [({}, app.failures)],
    )
    text.add("esker_keys_stale", "gauge", "Whether the keys in force are not those of their file",
             [({}, int(bool(app.gate.warning)))])  # fmt: skip
    text.add("esker_http_requests_under_way", "gauge", "Requests that are being done",
             [({}, app.under_way)])  # fmt: skip
    text.add("esker_streams_under_way", "gauge", "Streams of any kind, as their limit counts them",
             [({}, app.gate.streams)])  # fmt: skip


def _delivery(text: Text, call: Call) -> None:
    hub = call.app.hub
    kinds = {"sse": 0, "websocket": 0}
    for stream in hub.streams:
        kinds["sse" if stream.form == "sse" else "websocket"] += 1
    text.add("esker_streams", "gauge", "Clients that watch",
             [({"kind": kind}, number) for kind, number in kinds.items()])  # fmt: skip
    text.add("esker_watches_made", "gauge", "Watches that were made and not yet forgotten",
             [({}, len(call.app.sessions))])  # fmt: skip
    governor = hub.governor
    values = {
        **hub.counts, "feeds": sum(map(len, hub.feeds.values())), "appends": hub.appends,
        "queued": sum(stream.queued for stream in hub.streams), "pressure": governor.pressure,
        "rung": governor.rung, "latency": governor.latency, "coalesce": governor.coalesce,
        "commit_window": governor.commit_window or 0.0, "deferring": int(governor.deferring),
    }  # fmt: skip
    for key, name, says in _OF_HUB:
        kind = "counter" if name.endswith("_total") else "gauge"
        text.add(name, kind, says, [({}, values[key])])
    sizes = zip(BANDS, hub.ready.sizes(), strict=True)
    text.add("esker_ready_topics", "gauge", "Dirty topics that wait for their turn, by band",
             [({"band": band}, size) for band, size in sizes])  # fmt: skip
    text.add(
        "esker_stage_seconds",
        "histogram",
        "How long a record takes through each stage on its way to those who watch",
        [line for stage, times in hub.stages.times.items()
         for line in gauges.histogram(times, stage=stage)],
    )  # fmt: skip
    text.add("esker_stage_budget_seconds", "gauge", "What each stage may take",
             [({"stage": stage}, seconds) for stage, seconds in BUDGET.items()])  # fmt: skip
