"""Every route, once. Routing, scopes, the OpenAPI document and the tests of access are made of it.

    method, path    names in braces are one segment of the path, percent-decoded once
    scope           what a key must be allowed; None for the few that anybody may ask
    names           where names of topics occur: each must begin with one of the key's prefixes
    query           what may follow the question mark, as a struct; anything else is refused
    body            what the body is, as a struct; RAW if the handler reads it itself
    media           the content types that the body may have
    reply           what comes back, as a struct, for the OpenAPI document
    offers          the content types that it may come back as
    appends         whether it adds records, which a server under pressure refuses

A handler is a coroutine `(call) -> Reply`. The table names it, so that this module imports none;
handlers.py knows them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from esker.server.access.keys import Scope
from esker.server.bodies import wire, wire_live, wire_overview
from esker.server.bodies import wire_rooms as rooms
from esker.server.bodies.codec import ARROW, BYTES, CSV, JSON, NDJSON

RAW: Final = "raw"
CLOUD_EVENT: Final = "application/cloudevents+json"
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
PROTOBUF: Final = "application/x-protobuf"
ANY: Final = (BYTES, JSON, "text/plain", "*/*")


class Place(NamedTuple):
    """Where a name of a topic stands. `field` may be a path into the body: "tickets[].topic"."""

    where: str  # path, query, body, header
    field: str
    scope: Scope | None = None  # the route's, if none is given


class Route(NamedTuple):
    """One thing that can be asked."""

    method: str
    path: str
    scope: Scope | None
    handler: str
    says: str
    names: tuple[Place, ...] = ()
    query: type[msgspec.Struct] = wire.Nothing
    body: Any = None
    media: tuple[str, ...] = (JSON,)
    reply: Any = None
    streams: bool = False  # an answer without an end: SSE, WebSocket
    limit: str = "body_bytes"  # the setting that says how long the body may be
    offers: tuple[str, ...] = (JSON,)  # the content types that the answer may have; none: no body
    live: bytes = b""  # what in the query makes it an answer without an end
    appends: bool = False  # it may be refused under pressure, before its body is read

    def is_stream(self, query: bytes) -> bool:
        """Whether the answer has no end."""
        return self.streams or (
            bool(self.live) and self.live in unquote_to_bytes(query).split(b"&")
        )

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


TOPIC: Final = (Place("path", "topic"),)
QUEUE: Final = (Place("path", "queue"),)
GROUP: Final = "/v1/topics/{topic}/groups/{group}"
JOBS: Final = "/v1/queues/{queue}"
STREAM: Final = "/ds/{topic}"

ROOMS: Final[tuple[Route, ...]] = (
    # groups
    Route("GET", "/v1/groups", "read", "groups.list_groups", "All groups, and how far behind",
          (Place("query", "topic"),), query=rooms.GroupsQuery, reply=rooms.Groups),
    Route("PUT", GROUP, "consume", "groups.create", "Make a group of readers", TOPIC,
          body=rooms.GroupIn, reply=rooms.GroupState),
    Route("GET", GROUP, "read", "groups.state", "Where a group is, and how far behind", TOPIC,
          reply=rooms.GroupState),
    Route("DELETE", GROUP, "consume", "groups.forget", "Forget a group", TOPIC,
          reply=rooms.Forgotten),
    Route("POST", GROUP + "/poll", "consume", "groups.poll", "Records for a member of a group",
          TOPIC, body=rooms.Poll, reply=rooms.Polled, offers=(JSON, ARROW)),
    Route("POST", GROUP + "/ack", "consume", "groups.ack", "What was delivered is done with", TOPIC,
          body=rooms.Acks, reply=rooms.Acked),
    Route("POST", GROUP + "/seek", "consume", "groups.seek", "Put a group somewhere else", TOPIC,
          body=rooms.Seek, reply=rooms.Moves),
    Route("POST", GROUP + "/leave", "consume", "groups.leave", "Give the shards of a member back",
          TOPIC, body=rooms.Leave, reply=rooms.Left),
    Route("POST", GROUP + "/pause", "consume", "groups.pause", "Deliver nothing for now", TOPIC,
          body=wire.Nothing, reply=rooms.Paused),
    Route("POST", GROUP + "/resume", "consume", "groups.resume", "Go on after a pause", TOPIC,
          body=wire.Nothing, reply=rooms.Paused),
    Route("GET", "/v1/topics/{topic}/producers/{producer}", "write", "groups.producer",
          "The last number that a producer used", TOPIC, query=wire.ProducerQuery,
          reply=rooms.ProducerState),
    # queues
    Route("PUT", JOBS, "admin", "queues.create", "Make a queue, or change its options",
          (*QUEUE, Place("body", "dead_letter")), body=rooms.QueueIn, reply=rooms.QueueMade),
    Route("GET", JOBS, "read", "queues.state", "How many jobs are where", QUEUE,
          reply=rooms.QueueState),
    Route("POST", JOBS + "/jobs", "write", "queues.put", "Add jobs", QUEUE, body=rooms.Jobs,
          reply=rooms.JobsPut, appends=True),
    Route("GET", JOBS + "/jobs", "read", "queues.peek", "The jobs that come next", QUEUE,
          query=rooms.PeekQuery, reply=rooms.Peeked),
    Route("POST", JOBS + "/claim", "consume", "queues.claim", "Take jobs under a lease", QUEUE,
          body=rooms.Claim, reply=rooms.Claimed),
    Route("POST", JOBS + "/ack", "consume", "queues.ack", "Jobs are done", QUEUE,
          body=rooms.Tokens, reply=rooms.Settled),
    Route("POST", JOBS + "/nack", "consume", "queues.nack", "Jobs failed", QUEUE, body=rooms.Nack,
          reply=rooms.Settled),
    Route("POST", JOBS + "/release", "consume", "queues.release", "Give jobs back untried", QUEUE,
          body=rooms.Tokens, reply=rooms.Settled),
    Route("POST", JOBS + "/extend", "consume", "queues.extend", "Hold jobs for longer", QUEUE,
          body=rooms.Extend, reply=rooms.Settled),
    Route("GET", JOBS + "/work", "consume", "work.work", "A stream of jobs", QUEUE,
          query=rooms.WorkQuery, streams=True),
    Route("GET", JOBS + "/dead", "read", "queues.dead", "Jobs that were given up", QUEUE,
          query=rooms.PeekQuery, reply=rooms.Dead),
    Route("POST", JOBS + "/dead/requeue", "consume", "queues.requeue", "Put dead jobs back", QUEUE,
          body=rooms.Chosen, reply=rooms.Counted),
    Route("POST", JOBS + "/dead/purge", "delete", "queues.purge_dead", "Throw dead jobs away",
          QUEUE, body=rooms.Chosen, reply=rooms.Counted),
    Route("POST", JOBS + "/purge", "delete", "queues.purge", "Throw all waiting jobs away", QUEUE,
          body=wire.Nothing, reply=rooms.Counted),
    Route("POST", JOBS + "/pause", "admin", "queues.pause", "Hand out nothing for now", QUEUE,
          body=wire.Nothing, reply=rooms.Paused),
    Route("POST", JOBS + "/resume", "admin", "queues.resume", "Hand out jobs again", QUEUE,
          body=wire.Nothing, reply=rooms.Paused),
    Route("GET", JOBS + "/history", "read", "queues.history", "What happened to a job", QUEUE,
          query=rooms.HistoryQuery, reply=rooms.History),
    Route("GET", JOBS + "/delayed", "read", "leased.delayed", "Jobs that wait for their time",
          QUEUE, query=wire_overview.LeasesQuery, reply=wire_overview.DelayedJobs),
    Route("GET", JOBS + "/leases", "read", "leased.leases", "Jobs that somebody holds", QUEUE,
          query=wire_overview.LeasesQuery, reply=wire_overview.Leases),
    Route("POST", JOBS + "/leases/release", "admin", "leased.release",
          "Take jobs from their holders, untried", QUEUE, body=wire_overview.TakeBack,
          reply=rooms.Settled),
    Route("POST", JOBS + "/leases/nack", "admin", "leased.nack",
          "Take jobs from their holders, as failed", QUEUE, body=wire_overview.TakeBackFailed,
          reply=rooms.Settled),
    # routes
    Route("GET", "/v1/routes", "read", "routes.list_routes", "All routes", reply=rooms.Routes),
    Route("PUT", "/v1/routes/{route}", "admin", "routes.define", "Forward from topic to topic",
          (Place("body", "source"), Place("body", "destination")), body=rooms.RouteIn,
          reply=rooms.RouteState),
    Route("GET", "/v1/routes/{route}", "read", "routes.state", "A route as it is now",
          reply=rooms.RouteState),
    Route("DELETE", "/v1/routes/{route}", "delete", "routes.delete", "Forget a route",
          reply=rooms.RouteDeleted),
    Route("POST", "/v1/routes/{route}/pause", "admin", "routes.pause", "Forward nothing for now",
          body=wire.Nothing, reply=rooms.Paused),
    Route("POST", "/v1/routes/{route}/resume", "admin", "routes.resume", "Go on after a pause",
          body=wire.Nothing, reply=rooms.Paused),
    Route("POST", "/v1/routes/{route}/seek", "admin", "routes.seek", "Go on from another place",
          body=rooms.Seek, reply=rooms.Moves),
    # batches made elsewhere
    Route("POST", "/v1/topics/{topic}/stages", "write", "stages.stage",
          "Write records beside the log", TOPIC, query=rooms.StageQuery, body=RAW, media=(ARROW,),
          reply=rooms.Staged, limit="stage_bytes", appends=True),
    Route("POST", "/v1/attach", "write", "stages.attach", "Make staged records a part of the log",
          (Place("body", "tickets[].topic"),), body=rooms.Attach, reply=rooms.Attached),
    Route("GET", "/v1/attached/{writer}", "write", "stages.attached",
          "The last batch that a writer attached", reply=rooms.LastAttached),
    Route("DELETE", "/v1/attached/{writer}", "write", "stages.forget",
          "Forget a writer that will not come back", reply=rooms.LastAttached),
    Route("DELETE", "/v1/stages", "write", "stages.discard", "Throw staged records away",
          (Place("body", "tickets[].topic"),), body=rooms.Discard, reply=rooms.Discarded),
    # Durable Streams
    Route("PUT", STREAM, "write", "durable.create", "Make a durable stream", TOPIC, body=RAW,
          media=ANY, offers=(), appends=True),
    Route("POST", STREAM, "write", "durable.append", "Append to a durable stream, or close it",
          TOPIC, body=RAW, media=ANY, offers=(), appends=True),
    Route("GET", STREAM, "read", "durable.read", "Read a durable stream; HEAD: where it ends",
          TOPIC, query=wire.StreamQuery, offers=ANY, live=b"live=sse"),
    Route("DELETE", STREAM, "delete", "durable.delete", "Delete a durable stream", TOPIC,
          offers=()),
    # OpenTelemetry
    Route("POST", "/otlp/v1/logs", "write", "otlp.logs", "Logs of OpenTelemetry",
          (Place("header", "esker-topic"),), body=RAW, media=(JSON, PROTOBUF),
          reply=rooms.Exported, appends=True),
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/healthz", None, "probes.health", "Whether the server runs", reply=wire.Health),
    Route("GET", "/readyz", None, "probes.ready", "Whether it takes calls", reply=wire.Ready),
    Route("GET", "/openapi.json", None, "probes.openapi", "This interface, described"),
    # the console
    Route("GET", "/", None, "page.page", "The console, for browsers", offers=("text/html",)),
    Route("GET", "/console/{file}", None, "page.file", "What the console loads",
          offers=("text/javascript", "text/css", "image/svg+xml")),
    # keys
    Route("GET", "/v1/access", "read", "looks.access", "Who asks, and what they may do",
          reply=wire_overview.Access),
    Route("POST", "/v1/tickets", "read", "access.ticket",
          "A ticket for one stream, for those who cannot send a key",
          (Place("body", "topics[]"),), body=wire.TicketAsk, reply=wire.TicketGiven),
    # topics
    Route("GET", "/v1/topics", "read", "topics.list_topics", "The topics, a page at a time",
          query=wire.ListQuery, reply=wire.Topics),
    Route("PUT", "/v1/topics/{topic}", "admin", "topics.create", "Create a topic", TOPIC,
          body=wire.Options, reply=wire.Created),
    Route("PATCH", "/v1/topics/{topic}", "admin", "topics.alter", "Change options of a topic",
          TOPIC, body=wire.Options, reply=wire.TopicState),
    Route("GET", "/v1/topics/{topic}", "read", "topics.state", "A topic as it is now", TOPIC,
          reply=wire.TopicState),
    Route("DELETE", "/v1/topics/{topic}", "delete", "topics.delete",
          "Delete a topic and everything in it", TOPIC, query=wire.DeleteTopicQuery,
          reply=wire.TopicDeleted),
    # records
    Route("POST", "/v1/topics/{topic}/records", "write", "records.append",
          "Append records, all or none", TOPIC, query=wire.AppendQuery, body=RAW,
          media=(JSON, NDJSON, ARROW, BYTES, CLOUD_EVENT, CLOUD_EVENTS), reply=wire.Appended,
          appends=True),
    Route("GET", "/v1/topics/{topic}/records", "read", "records.read",
          "Read records of a shard, and wait for more", TOPIC, query=wire.ReadQuery,
          reply=wire.Page, offers=(JSON, NDJSON, ARROW, CSV, CLOUD_EVENTS)),
    Route("DELETE", "/v1/topics/{topic}/records", "delete", "records.delete",
          "Delete records: before a position, by tag", TOPIC, query=wire.DeleteQuery,
          reply=wire.Deleted),
    # places, for clients that read shard by shard
    Route("GET", "/v1/topics/{topic}/ranges", "read", "places.ranges",
          "What two positions mean in each shard, and how many records lie between", TOPIC,
          query=wire.RangesQuery, reply=wire.Ranges),
    Route("GET", "/v1/topics/{topic}/pieces", "read", "places.pieces",
          "A range of a shard, cut where batches begin, for readers that share it", TOPIC,
          query=wire.PiecesQuery, reply=wire.Pieces),
    Route("POST", "/v1/topics/{topic}/tail", "read", "places.tail",
          "Wait until one of several shards has more", TOPIC, body=wire.Tail, reply=wire.Ends),
    Route("POST", "/v1/topics/{topic}/sync", "write", "places.sync",
          "Make what was appended durable", TOPIC, query=wire.SyncQuery, body=wire.Nothing,
          reply=wire.Synced),
    Route("GET", "/v1/topics/{topic}/counters", "read", "places.counters",
          "Every counter of a shard", TOPIC, query=wire.CountersQuery, reply=wire.Counters),
    # the store as a whole
    Route("GET", "/v1/overview", "read", "looks.overview", "The topics in numbers, by pages",
          query=wire.ListQuery, reply=wire_overview.Overview),
    Route("GET", "/v1/store", "read", "looks.store",
          "How the store is: recovery, background, pressure", reply=wire_overview.StoreState),
    Route("GET", "/v1/topics/{topic}/segments", "read", "looks.segments",
          "The files of a topic by tier and age; what was lost, what is to go", TOPIC,
          query=wire_overview.SegmentsQuery, reply=wire_overview.Segments),
    Route("GET", "/v1/topics/{topic}/export", "read", "export.export",
          "The records between two positions, as a file", TOPIC, query=wire_overview.ExportQuery,
          streams=True, offers=(NDJSON, "text/csv", ARROW)),
    *ROOMS,
    # live
    Route("GET", "/v1/watch", "read", "watch.watch", "Watch topics, as server-sent events",
          (Place("query", "names[]"),), query=wire_live.WatchQuery, streams=True),
    Route("POST", "/v1/watch", "read", "watch.make", "Say what to watch, if it is much",
          (Place("body", "topics{}"),), body=wire_live.Watch, reply=wire_live.Watching),
    Route("GET", "/v1/watch/{id}", "read", "watch.attach", "Watch what was said",
          query=wire_live.AttachQuery, streams=True),
    Route("GET", "/v1/ws", "read", "socket.plain", "Watch and append, over a WebSocket",
          streams=True),
    Route("GET", "/metrics", "read", "metrics.metrics", "How it goes, for Prometheus",
          offers=("text/plain",)),
)  # fmt: skip


class Table:
    """Finds a route by method and path."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self.routes = routes
        self._root: dict[str, Any] = {}
        for route in routes:
            self._enter(route)

    def _enter(self, route: Route) -> None:
        node = self._root
        for part in route.parts:
            node = node.setdefault("{}" if part.startswith("{") else part, {})
        methods = node.setdefault("/", {})
        if route.method in methods:
            raise ValueError(f"{route.method} {route.path} stands in the table twice")
        methods[route.method] = route

    def find(self, segments: list[str]) -> tuple[dict[str, Route], tuple[str, ...]]:
        """The routes of a path by their methods, and what stands for its names; none if unknown."""
        node: dict[str, Any] = self._root
        given: tuple[str, ...] = ()
        for segment in segments:
            below = node.get(segment)
            if below is None or segment in ("/", "{}"):
                below = node.get("{}")
                if below is None:
                    return {}, ()
                given = (*given, segment)
            node = below
        return node.get("/", {}), given


def params(route: Route, given: Sequence[str]) -> dict[str, str]:
    """What stands in the path for each of its names."""
    return dict(zip(_names_of(route.path), given, strict=True)) if given else {}


@cache
def _names_of(path: str) -> tuple[str, ...]:
    return tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))


def names_in(value: Any, path: str) -> Iterator[str]:
    """The names that stand at a path of a body: "source", "topics{}", "tickets[].topic"."""
    head, _, rest = path.partition(".")
    many = head.endswith("[]")
    keys = head.endswith("{}")
    found = getattr(value, head.rstrip("[]{}"), None)
    if found is None:
        return
    for each in found if many or keys else [found]:
        if rest:
            yield from names_in(each, rest)
        elif isinstance(each, str) and each:
            yield each
