"""What goes over the wire as JSON, in structs: bodies, queries and answers.

msgspec checks and decodes by them, and the OpenAPI document is made from them, so that the two
cannot differ. A field that is not listed is refused: a misspelt option is an error, not a default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from esker.options import TopicOptions
from esker.server.access.keys import Scope
from esker.server.bodies.codec import RecordOut, Values

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Shard = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=0, le=86_400 * 365)]
Time = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]  # microseconds since 1970
Position = Annotated[str, Meta(max_length=64)]
Start = Position | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # as JSON may have it
Text = Annotated[str, Meta(max_length=1_024)]
Where = Annotated[str, Meta(min_length=1, max_length=4_096)]


class Given(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client sends: nothing in it is passed over."""


class Nothing(Given):
    """No query."""


class Health(Struct):
    status: Literal["ok"]
    version: str
    uptime_seconds: float


class Ready(Struct):
    status: Literal["ready"]
    topics: int
    warnings: list[str] = []  # what does not keep it from working, and should be seen to


# ---- topics ----------------------------------------------------------------------------------


class _OptionsBase(Given):
    """Options of a topic, as the library's `create` takes them: sizes may be "10MB", times "7d"."""

    def given(self) -> dict[str, Any]:
        """Those that were given."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }


def _option_fields() -> list[tuple[str, Any, Any]]:
    """Every option that a topic has, under every name that the library takes for it."""
    found: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(TopicOptions):
        kind = (int | str) if field.type is int else field.type
        names = [field.name]
        if field.name.endswith("_us"):
            names.append(field.name.removesuffix("_us"))
            kind = int | float | str
        found += [(name, kind | None, None) for name in names]
    return found


Options: Any = msgspec.defstruct(
    "Options", _option_fields(), bases=(_OptionsBase,), kw_only=True, forbid_unknown_fields=True
)


class ListQuery(Given):
    prefix: Text = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    cursor: Text = ""


class ShardState(Struct):
    shard: int
    earliest: int
    end: int
    durable: int


class TopicState(Struct):
    topic: str
    epoch: int
    count: int
    shards: list[ShardState]
    options: dict[str, Any]
    priority: float | None = None  # as the settings have it; None: by how recently it was read
    effective_priority: float = 0.0  # what it is worth now, before it waits


class Created(Struct):
    topic: str
    created: bool
    epoch: int
    options: dict[str, Any]


class Topics(Struct, omit_defaults=True):
    topics: list[str]
    next: str | None = None


class DeleteTopicQuery(Given):
    missing_ok: bool = False
    if_empty: bool = False


class TopicDeleted(Struct):
    topic: str
    deleted: bool


# ---- records ---------------------------------------------------------------------------------


class AppendQuery(Given):
    wait: bool = True
    create: bool = True
    idempotency_key: Text | None = None
    shard: Shard | None = None  # of a producer
    producer: Text | None = None
    sequence: Count | None = None
    atomic: bool = False  # of Arrow: one batch, or none
    disable_backpressure: bool = False  # not refused by a server that is saturated
    returns: Literal["offsets", "none"] = msgspec.field(default="offsets", name="return")


class Append(Given):
    """The body of an append as JSON. Its records are decoded by codec.py."""

    records: msgspec.Raw
    idempotency_key: Text | None = None
    create: bool = True
    producer: Text | None = None
    sequence: Count | None = None


class ProducerQuery(Given):
    shard: Shard | None = None


class Span(Struct):
    shard: int
    first: int
    count: int


class Appended(Struct):
    topic: str
    count: int
    spans: list[Span]


class ReadQuery(Given):
    start: Position = "earliest"
    stop: Position | None = None
    shard: Shard | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 256
    max_bytes: Annotated[int, Meta(ge=1, le=8 << 20)] = 1 << 20
    wait: Seconds = 0.0
    values: Values = "text"
    headers: bool = True
    skip_node: Text | None = None
    gaps: Literal["tell", "raise", "all"] = "tell"  # all: what was deleted before a position, too
    consistency: Literal["eventual", "strong"] = "eventual"
    epoch: int | None = None
    columns: Text | None = None  # of Arrow, with commas; all of them if there is none
    tag: Text | None = None
    tag_prefix: Text | None = None
    where: Where | None = None


class StreamQuery(Struct, kw_only=True):
    """Of a durable stream; what else a client gives there is for others on the way."""

    offset: Annotated[str, Meta(max_length=64)] | None = None
    live: Literal["long-poll", "sse"] | None = None
    cursor: Annotated[str, Meta(max_length=64)] | None = None


class Page(Struct):
    topic: str
    shard: int
    records: list[RecordOut]
    gaps: list[dict[str, Any]]
    next: int
    end: int
    earliest: int
    epoch: int
    caught_up: bool


class DeleteQuery(Given):
    before: Position | None = None
    shard: Shard | None = None
    tag: Text | None = None
    tag_prefix: Text | None = None


class Deleted(Struct):
    topic: str
    deleted: int


# ---- keys ------------------------------------------------------------------------------------


class TicketAsk(Given):
    """For which topics, and what may be done with them."""

    topics: Annotated[list[Text], Meta(min_length=1, max_length=256)]
    scopes: tuple[Scope, ...] = ("read",)


class TicketGiven(Struct):
    ticket: str
    expires_seconds: float
    topics: list[str]
    scopes: list[str]


# ---- places ----------------------------------------------------------------------------------


class RangesQuery(Given):
    start: Position = "earliest"
    stop: Position | None = None
    shard: Shard | None = None
    consistency: Literal["eventual", "strong"] = "eventual"
    epoch: int | None = None


class Range(Struct):
    shard: int
    first: int
    end: int
    count: int


class Ranges(Struct):
    topic: str
    epoch: int
    ranges: list[Range]
    missed: list[dict[str, Any]]


class PiecesQuery(Given):
    shard: Shard = 0
    first: Count = 0
    end: Count | None = None
    since: Time | None = None
    before: Time | None = None
    most: Annotated[int, Meta(ge=1, le=10_000)] = 1_000


class Piece(Struct):
    end: int
    bytes: int


class Pieces(Struct):
    """How a shard stands, and a range of it cut where frames begin, for those who share the work.

    begin: before it all was deleted on request. since: the first offset at or after that time.
    before: an offset at and behind which nothing is from before that time.
    """

    topic: str
    epoch: int
    shard: int
    begin: int
    earliest: int
    end: int
    pieces: list[Piece]
    since: int | None = None
    before: int | None = None


class Tail(Given):
    """Where somebody is in each of some shards; more of them than would fit in a query."""

    cursors: Annotated[dict[Shard, Count], Meta(min_length=1, max_length=1_024)]
    wait: Seconds = 0.0


class Ends(Struct):
    topic: str
    ends: dict[str, int]


class SyncQuery(Given):
    durable: bool = True


class Synced(Struct):
    topic: str
    durable: bool


class CountersQuery(Given):
    shard: Shard = 0


class Counters(Struct):
    topic: str
    shard: int
    counters: dict[str, int]
