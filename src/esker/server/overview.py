"""The store as a whole, for who looks at it: who asks, all topics in numbers, segments, health.

All of it is read from what the store has at hand: names, headers and footers of files, never a
record. An overview is a page of topics; what a key is not for is neither listed nor counted. Health
tells of all topics, so a key for some of them needs the scope `admin` for it, as for metrics.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec

from esker.engine import retention
from esker.engine.findings import CASES, Recovery
from esker.engine.reader import View, earliest_of
from esker.engine.retention import Eviction, whole_size
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import EskerError, TopicNotFound
from esker.server.bodies import wire_overview as wire
from esker.server.bodies.wire import ListQuery
from esker.server.gauges import is_queue
from esker.server.http.call import Call, Reply
from esker.server.http.faults import Fault
from esker.server.records import chosen_shard, known
from esker.storage.files import free_bytes
from esker.storage.log import LogSegment
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment, time_range
from esker.version import VERSION

LOST: Final = "evicted"
HOLE: Final = "missing"
GOING_MAX: Final = 1_000


async def access(call: Call) -> Reply:
    """Who asks, and what they may do."""
    principal, settings = call.principal, call.app.settings
    return Reply(
        wire.Access(
            principal.id, sorted(principal.scopes), sorted(principal.prefixes),
            bool(settings.keys), settings.read_only, VERSION,
        )
    )  # fmt: skip


# ---- all topics ------------------------------------------------------------------------------


async def overview(call: Call) -> Reply:
    """A page of topics in numbers, and how the server goes."""
    query: ListQuery = call.query
    may = call.principal.may

    def look(store: Store) -> tuple[list[wire.TopicNumbers], str | None, int]:
        listed = [name for name in store if name.startswith(query.prefix) and may("read", name)]
        wanted = [name for name in listed if name > query.cursor]
        page = wanted[: query.limit]
        found = []
        for name in page:
            with suppress(TopicNotFound):  # deleted meanwhile
                found.append(_numbers(store, store[name]))
        return found, page[-1] if len(wanted) > len(page) else None, len(listed)

    topics, more, total = await call.app.run(look)
    server = _server(call) if call.principal.everywhere else None
    return Reply(wire.Overview(call.app.clock.now_us(), total, topics, more, server))


def _numbers(store: Store, topic: Topic) -> wire.TopicNumbers:
    views = topic._views(None)
    segments = [segment for view in views for segment in view.segments]
    newest = max((_newest(view) for view in views), default=0)
    size = sum(whole_size(view, segment) for view in views for segment in view.segments)
    return wire.TopicNumbers(
        topic.name, len(views), len(topic), sum(view.visible for view in views), size,
        len(segments), newest, is_queue(topic),
    )  # fmt: skip


def _newest(view: View) -> int:
    for segment in reversed(view.segments):
        with suppress(EskerError):  # one that cannot be read is told elsewhere
            high = _times(segment)[1]
            if high:
                return high
    return 0


def _server(call: Call) -> wire.ServerNumbers:
    app, hub = call.app, call.app.hub
    return wire.ServerNumbers(
        app.clock.monotonic() - app.began, app.requests, app.failures, len(hub.streams),
        hub.counts["deliveries"], hub.appends, hub.counts["refused"], hub.governor.pressure,
        hub.governor.rung, hub.governor.latency,
    )  # fmt: skip


# ---- one topic -------------------------------------------------------------------------------


async def segments(call: Call) -> Reply:
    """The files of a topic by tier and age, what was lost, and what is to go."""
    query: wire.SegmentsQuery = call.query
    name = call.params["topic"]

    def look(store: Store) -> wire.Segments:
        topic = known(store, name)
        number = None if query.shard is None else chosen_shard(topic, query.shard)
        views = topic._views(number)
        now = store._context.clock.now_us()
        going = [_going(each) for view in views if (each := retention.plan(view, now))]
        return wire.Segments(name, now, [_shard_of(view, query.limit) for view in views], going)

    return Reply(await call.app.run(look))


def _shard_of(view: View, limit: int) -> wire.ShardSegments:
    there, end = view.segments, view.visible
    ends = [*(segment.base for segment in there[1:]), end][: len(there)]  # there may be none
    shown = list(zip(there, ends, strict=True))[-limit:]
    lost = [wire.Lost(first, behind - 1, LOST) for first, behind in view.losses]
    found: list[wire.SegmentState] = []
    for segment, behind in shown:
        told = _segment(view, segment, behind)
        found.append(told)
        if told.base + told.records < behind:
            lost.append(wire.Lost(told.base + told.records, behind - 1, HOLE))
    first = earliest_of(view)
    return wire.ShardSegments(
        view.number, first, end, view.durable, found, len(there) - len(shown), lost,
        view.marks.count(first, end) if view.marks else 0,
    )  # fmt: skip


def _segment(view: View, segment: Segment, behind: int) -> wire.SegmentState:
    """A segment that cannot be read is told with its name's offsets and without its times."""
    tier: Any = "log" if isinstance(segment, LogSegment) else "sealed"
    try:
        low, high = _times(segment)
        records = min(segment.rows, behind - segment.base)
        if isinstance(segment, SealedSegment) and segment.place is not None:
            tier = "cold"
    except EskerError:
        low = high = 0
        records = behind - segment.base
    size = whole_size(view, segment)
    return wire.SegmentState(segment.base, behind, records, size, tier, low, high)


def _times(segment: Segment) -> tuple[int, int]:
    if isinstance(segment, SealedSegment):
        return segment.footer.min_timestamp, segment.footer.max_timestamp
    if isinstance(segment, LogSegment):
        return time_range(segment.directory)
    return 0, 0


def _going(each: Eviction) -> wire.Going:
    return wire.Going(**msgspec.structs.asdict(each))


# ---- health ----------------------------------------------------------------------------------


async def store(call: Call) -> Reply:
    """How the store is: what recovery found, what the background does, how hard pressed it is."""
    if call.principal.prefixes and not call.principal.may("admin"):
        raise Fault("forbidden", "the key is for some topics only; this tells of all")
    app = call.app

    def look(store: Store) -> wire.StoreState:
        poisoned = [
            wire.Trouble(topic.name, shard.number, shard.poison.code)
            for topic in list(store._topics.values())
            for shard in topic._shards
            if shard.poison is not None
        ]
        going = [_going(each) for each in store.retention_plan()[:GOING_MAX]]
        maintenance = msgspec.to_builtins(store.maintenance())
        return wire.StoreState(
            VERSION, app.clock.monotonic() - app.began, app.clock.now_us(), len(store),
            _size(store), free_bytes(store.path), not poisoned and maintenance["state"] != "failed",
            poisoned, store.statistics(), _pressure(call), maintenance,
            _recovered(store.recovery, store.path), going,
        )  # fmt: skip

    return Reply(await app.run(look))


def _size(store: Store) -> int:
    size = 0
    for name in store:
        with suppress(EskerError):  # deleted meanwhile, or not to be read
            for view in store[name]._views(None):
                size += sum(whole_size(view, segment) for segment in view.segments)
    return size


def _pressure(call: Call) -> wire.Pressure:
    governor = call.app.hub.governor
    return wire.Pressure(
        governor.pressure, governor.rung, governor.latency, governor.coalesce,
        governor.commit_window or 0.0, bool(governor.deferring), list(call.app.hub.ready.sizes()),
    )  # fmt: skip


def _recovered(report: Recovery, root: str) -> wire.Recovered:
    found = [
        wire.Found(
            each.label, CASES[each.label], each.topic, each.shard,
            each.path.removeprefix(root).lstrip("/"), each.reason.replace(root, "."),
            each.first, each.last,
        )
        for each in report.findings
    ]  # fmt: skip
    return wire.Recovered(report.clean, report.shards, report.seconds, found)
