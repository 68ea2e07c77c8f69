"""What goes over the wire to who looks at a store as a whole: numbers, segments, health."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from esker.server.bodies.codec import RecordOut, Values
from esker.server.bodies.wire import Given, Position, Shard, Text, Where
from esker.server.bodies.wire_rooms import Duration, Place


class Access(Struct):
    """Who asks, and what they may do."""

    key: str  # its id; "" where nobody needs a key
    scopes: list[str]
    prefixes: list[str]  # none: all topics
    keys: bool  # whether the server asks for keys at all
    read_only: bool
    version: str


class TopicNumbers(Struct):
    """A topic in one line. `appended` only grows: two looks make a rate."""

    topic: str
    shards: int
    count: int
    appended: int
    bytes: int
    segments: int
    newest: int  # the timestamp of the youngest record; 0 if there is none
    queue: bool


class ServerNumbers(Struct):
    """How the server goes."""

    uptime_seconds: float
    requests: int
    failures: int
    streams: int
    delivered: int
    appends_under_way: int
    throttled: int
    pressure: float
    rung: int
    schedule_seconds: float


class Overview(Struct, omit_defaults=True):
    now: int
    total: int
    topics: list[TopicNumbers]
    next: str | None = None
    server: ServerNumbers | None = None  # for keys of all topics


# ---- segments --------------------------------------------------------------------------------


class SegmentsQuery(Given):
    shard: Shard | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class SegmentState(Struct):
    """A file of a shard: a log that is written, one that is sealed, one in a cold store."""

    base: int
    end: int
    records: int
    bytes: int
    tier: Literal["log", "sealed", "cold"]
    oldest: int
    newest: int


class Lost(Struct):
    """Offsets that are not there any more."""

    first: int
    last: int
    reason: str


class ShardSegments(Struct):
    shard: int
    earliest: int
    end: int
    durable: int
    segments: list[SegmentState]
    omitted: int  # older ones, which are not listed
    lost: list[Lost]
    deleted: int


class Going(Struct):
    """What retention is about to take."""

    topic: str
    shard: int
    first: int
    last: int
    segments: int
    bytes: int
    reason: str


class Segments(Struct):
    topic: str
    now: int
    shards: list[ShardSegments]
    going: list[Going]


# ---- the store -------------------------------------------------------------------------------


class Found(Struct):
    """Something that recovery saw and did."""

    label: str
    means: str
    topic: str
    shard: int
    file: str
    reason: str
    first: int | None
    last: int | None


class Recovered(Struct):
    clean: bool
    shards: int
    seconds: float
    findings: list[Found]


class Trouble(Struct):
    topic: str
    shard: int
    code: str


class Pressure(Struct):
    pressure: float
    rung: int
    schedule_seconds: float
    coalesce_seconds: float
    commit_window_seconds: float
    deferring: bool
    ready: list[int]  # dirty topics that wait, by band


class StoreState(Struct):
    version: str
    uptime_seconds: float
    now: int
    topics: int
    bytes: int
    free_bytes: int | None
    healthy: bool
    poisoned: list[Trouble]
    statistics: dict[str, int]
    pressure: Pressure
    maintenance: dict[str, Any]
    recovery: Recovered
    going: list[Going]


# ---- export, and leases ----------------------------------------------------------------------


class ExportQuery(Given):
    format: Literal["ndjson", "csv", "arrow"] = "ndjson"
    start: Position = "earliest"
    stop: Position | None = None
    shard: Shard | None = None
    tag: Text | None = None
    tag_prefix: Text | None = None
    where: Where | None = None


class LeasesQuery(Given):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    values: Values = "text"
    headers: bool = True


class LeaseOut(RecordOut, kw_only=True):
    """A job that somebody holds."""

    deliveries: int
    seconds_left: float
    pid: int


class Leases(Struct):
    queue: str
    count: int
    jobs: list[LeaseOut]


class DelayedOut(RecordOut, kw_only=True):
    """A job that waits for its time."""

    seconds_left: float


class DelayedJobs(Struct):
    queue: str
    count: int
    jobs: list[DelayedOut]


Places = Annotated[list[Place], Meta(min_length=1, max_length=10_000)]


class TakeBack(Given):
    """Jobs that are taken from whoever holds them."""

    jobs: Places


class TakeBackFailed(Given):
    jobs: Places
    delay: Duration = 0.0
    reason: Annotated[str, Meta(max_length=500)] = ""
