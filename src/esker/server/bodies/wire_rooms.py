"""What goes over the wire of groups, queues, routes and staged batches; see wire.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from esker.format.queue import QueueOptions
from esker.server.bodies.codec import RecordOut, Values
from esker.server.bodies.wire import (
    Count,
    Given,
    Options,
    Seconds,
    Shard,
    Span,
    Start,
    Text,
    _OptionsBase,
)

Member = Annotated[str, Meta(min_length=1, max_length=128)]
Duration = float | Annotated[str, Meta(max_length=32)]
RECORDS = {"type": "array", "items": {"$ref": "#/components/schemas/RecordIn"}}
Many = Annotated[int, Meta(ge=1, le=10_000)]


# ---- groups ----------------------------------------------------------------------------------


class GroupIn(Given):
    """Where a group begins, if it is new."""

    start: Start = "earliest"


class GroupShard(Struct):
    shard: int
    cursor: int
    end: int
    records: int
    seconds: float
    generation: int
    acked: int
    paused: bool
    owned: bool


class GroupState(Struct):
    """A group, and how far behind it is."""

    topic: str
    group: str
    records: int
    seconds: float
    eta_seconds: float | None
    members: int
    paused: bool
    shards: list[GroupShard]


class GroupsQuery(Given):
    topic: Text | None = None


class Groups(Struct):
    groups: list[GroupState]


class Poll(Given):
    member: Member = "default"
    max_records: Many = 256
    max_bytes: Annotated[int, Meta(ge=1, le=8 << 20)] = 1 << 20
    wait: Seconds = 0.0
    ahead: bool = False  # go on behind what was delivered, whether it was acked or not
    session: Annotated[float, Meta(ge=1, le=3_600)] | None = None
    values: Values = "text"
    headers: bool = True


class GroupBatch(Struct):
    """What was delivered of one shard: give `shard`, `generation`, `first` and `next` back."""

    shard: int
    generation: int
    first: int
    next: int
    count: int


class Polled(Struct):
    topic: str
    group: str
    member: str
    batches: list[GroupBatch]
    records: list[RecordOut]
    gaps: list[dict[str, Any]]


class Ack(Given):
    shard: Shard
    generation: Count
    next: Count
    first: Count | None = None  # from the group's cursor on, if it is not given


class Acks(Given):
    acks: Annotated[list[Ack], Meta(min_length=1, max_length=10_000)]
    member: Member = "default"
    sync: bool = False  # whether the acks survive power loss when this answers


class Cursor(Struct):
    shard: int
    cursor: int


class Acked(Struct):
    topic: str
    group: str
    acked: int
    cursors: list[Cursor]


class Seek(Given):
    to: Start
    shard: Shard | None = None
    dry_run: bool = False


class Move(Struct):
    topic: str
    shard: int
    before: int
    after: int
    records: int


class Moves(Struct):
    dry_run: bool
    moves: list[Move]


class Leave(Given):
    member: Member = "default"


class Left(Struct):
    left: bool


class Forgotten(Struct):
    topic: str
    group: str
    forgotten: bool


class ProducerState(Struct):
    topic: str
    producer: str
    last: int


# ---- queues ----------------------------------------------------------------------------------


def _queue_fields() -> list[tuple[str, Any, Any]]:
    """Every option of a queue as the library takes it, and those of its topic."""
    found: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(QueueOptions):
        kind: Any = field.type
        name = field.name
        if name.endswith("_us"):
            name, kind = name.removesuffix("_us"), int | float | str
        elif name.endswith("_bytes"):
            kind = int | str
        found.append((name, kind | None, None))
    known = {name for name, _, _ in found}
    return found + [
        (field.name, field.type, None)
        for field in msgspec.structs.fields(Options)
        if field.name not in known
    ]


QueueIn: Any = msgspec.defstruct(
    "QueueIn", _queue_fields(), bases=(_OptionsBase,), kw_only=True, forbid_unknown_fields=True
)


class QueueState(Struct):
    """How a queue stands."""

    queue: str
    ready: int
    leased: int
    delayed: int
    parked: int
    dead: int
    moving: int
    gone: int
    unfinished: int
    oldest_seconds: float | None
    paused: bool
    options: dict[str, Any]


class QueueMade(Struct):
    queue: str
    created: bool
    options: dict[str, Any]


class Jobs(Given):
    """Jobs to put: records as those of an append. Delay, time and priority are for all of them."""

    jobs: Annotated[msgspec.Raw, Meta(extra_json_schema=RECORDS)]
    delay: Duration = 0.0
    at: Annotated[int, Meta(ge=0, le=1 << 61)] | None = None
    priority: Annotated[int, Meta(ge=0, le=63)] = 0


class JobsPut(Struct):
    queue: str
    count: int
    spans: list[Span]


class Claim(Given):
    max: Many = 1
    lease: Duration | None = None
    wait: Seconds = 0.0
    gaps: Literal["raise", "skip"] = "raise"
    values: Values = "text"
    headers: bool = True


class JobOut(RecordOut, kw_only=True):
    """A job in hand: a record, and the token that settles it."""

    token: str
    deliveries: int
    priority: int
    lease_seconds: float


class Claimed(Struct):
    queue: str
    jobs: list[JobOut]


class JobToken(Given):
    shard: Shard
    offset: Count
    token: Annotated[str, Meta(max_length=128)]


TokenList = Annotated[list[JobToken], Meta(min_length=1, max_length=10_000)]


class Tokens(Given):
    jobs: TokenList


class Nack(Given):
    jobs: TokenList
    delay: Duration = 0.0
    reason: Annotated[str, Meta(max_length=500)] = ""


class Extend(Given):
    jobs: TokenList
    lease: Duration | None = None


class Settled(Struct):
    queue: str
    done: int


class PeekQuery(Given):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    values: Values = "text"
    headers: bool = True


class Peeked(Struct):
    queue: str
    jobs: list[RecordOut]


class DeadOut(RecordOut, kw_only=True):
    """A job that was given up, where it lies now."""

    deliveries: int
    reason: str


class Dead(Struct):
    queue: str
    count: int
    jobs: list[DeadOut]


class Place(Given):
    shard: Shard
    offset: Count


class Chosen(Given):
    """Which of the dead: these, all, or those that match everything that is given."""

    jobs: Annotated[list[Place], Meta(min_length=1, max_length=10_000)] | None = None
    all: bool = False
    tag: Text | None = None
    key: Text | None = None
    reason: Text | None = None  # a part of it


class Counted(Struct):
    queue: str
    count: int


class Paused(Struct):
    paused: bool


class HistoryQuery(Given):
    offset: Count
    shard: Shard = 0


class HistoryEntry(Struct, omit_defaults=True):
    when: int
    what: str
    claim: int = 0
    reason: str = ""


class History(Struct):
    queue: str
    shard: int
    offset: int
    entries: list[HistoryEntry]


class WorkQuery(Given):
    max: Annotated[int, Meta(ge=1, le=1_000)] = 1
    lease: Annotated[str, Meta(max_length=32)] | None = None
    values: Values = "text"
    headers: bool = True


# ---- routes ----------------------------------------------------------------------------------


class RouteIn(Given):
    source: Text
    destination: Text
    where: Annotated[str, Meta(max_length=16_384)] = ""
    start: Start = "earliest"
    exactly_once: bool = False
    merge: bool = False
    allow_cycles: bool = False
    hops: Annotated[int, Meta(ge=1, le=1_000)] = 8


class RouteState(Struct):
    """A route, as it is now."""

    route: str
    group: str  # as which it reads its source
    source: str
    destination: str
    where: str
    exactly_once: bool
    state: Literal["running", "waiting", "paused", "stopped"]
    reason: str
    records: int
    seconds: float
    forwarded: int
    filtered: int
    missed: int
    looped: int


class Routes(Struct):
    routes: list[RouteState]


class RouteDeleted(Struct):
    route: str
    deleted: bool


# ---- batches made elsewhere ------------------------------------------------------------------


class StageQuery(Given):
    shard: Shard = 0


class Ticket(Given):
    """A staged segment. `seal` is for the server, and only as it came."""

    topic: Text
    shard: Shard
    rows: Count
    bytes: Count
    seal: Annotated[str, Meta(max_length=1_024)]


Tickets = Annotated[list[Ticket], Meta(max_length=10_000)]


class Staged(Struct):
    topic: str
    rows: int
    tickets: list[Ticket]


class Attach(Given):
    writer: Annotated[str, Meta(min_length=1, max_length=1_024)]
    sequence: Annotated[int, Meta(ge=0, lt=1 << 62)]
    tickets: Tickets
    timeout: Annotated[float, Meta(ge=0, le=300)] = 30.0


class Attached(Struct):
    writer: str
    sequence: int
    committed: bool


class LastAttached(Struct):
    writer: str
    sequence: int | None


class Discard(Given):
    tickets: Tickets


class Discarded(Struct):
    discarded: int


# ---- OpenTelemetry ---------------------------------------------------------------------------


class Exported(Struct):
    """What OTLP answers: nothing, or how many were refused and why."""

    partialSuccess: dict[str, Any] | None = None
