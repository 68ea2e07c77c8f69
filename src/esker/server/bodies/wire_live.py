"""What goes over the wire about streams: queries, bodies, messages of the WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from esker.server.bodies.codec import Values
from esker.server.bodies.filtering import filter_of
from esker.server.bodies.wire import Given, Position, Shard, Start, Text, Where
from esker.server.live.frames import Form, Lens

TOPICS_MAX = 256
Cursor = Annotated[str, Meta(max_length=16_384)]
Names = Annotated[str, Meta(min_length=1, max_length=8_192)]


class View(Given, kw_only=True):
    """How records are shown."""

    values: Values = "text"
    headers: bool = True
    skip_node: Text | None = None
    tag: Text | None = None
    tag_prefix: Text | None = None
    where: Where | None = None
    consistency: Literal["eventual", "strong"] = "eventual"

    def lens(self, form: Form) -> Lens:
        filter_of(self.where)  # what is wrong with it is told now
        return Lens(
            form, self.values, self.headers, self.skip_node, self.tag, self.tag_prefix,
            self.where, self.consistency == "strong",
        )  # fmt: skip


class WatchQuery(View, kw_only=True):
    topics: Names
    start: Position = "latest"
    shard: Shard | None = None
    lenient: bool = False  # a topic that is not there is waited for
    cursor: Cursor | None = None  # as Last-Event-ID, for those who cannot set a header

    @property
    def names(self) -> list[str]:
        """The topics, each once."""
        return list(dict.fromkeys(name.strip() for name in self.topics.split(",")))


class WatchTopic(Given):
    start: Start = "latest"
    shard: Shard | None = None


class Watch(View, kw_only=True):
    topics: Annotated[dict[str, WatchTopic], Meta(min_length=1, max_length=TOPICS_MAX)]
    lenient: bool = False
    cursor: Cursor | None = None  # where a stream begins that says no place itself


class Watching(Struct):
    id: str
    url: str
    ttl_seconds: float


class AttachQuery(Given):
    cursor: Cursor | None = None


# ---- the WebSocket ---------------------------------------------------------------------------


class Ask(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="op"):
    """What a client says; `request_id` comes back with the answer."""

    request_id: str | int | None = None


class Asked(Struct):
    """As much of a message as is needed to answer that it makes no sense."""

    request_id: str | int | None = None


class Named(Ask):
    """What is about some topics: one, several, or both."""

    topic: Text | None = None
    topics: Annotated[list[Text], Meta(max_length=TOPICS_MAX)] = []

    def __post_init__(self) -> None:
        count = len(self.names)
        if count > TOPICS_MAX:
            raise ValueError(
                f"{count} topics, `topic` among them; at most {TOPICS_MAX} in one message"
            )

    @property
    def names(self) -> list[str]:
        """The topics, each once."""
        return list(dict.fromkeys([*self.topics, *([] if self.topic is None else [self.topic])]))


class Subscribe(Named, tag="subscribe"):
    start: Start = "latest"
    cursors: Annotated[list[Cursor], Meta(max_length=1_024)] = []
    shard: Shard | None = None
    lenient: bool = False
    format: Literal["json", "arrow"] = "json"
    values: Values = "text"
    headers: bool = True
    skip_node: Text | None = None
    tag: Text | None = None
    tag_prefix: Text | None = None
    where: Where | None = None
    consistency: Literal["eventual", "strong"] = "eventual"

    def lens(self) -> Lens:
        filter_of(self.where)
        return Lens(
            self.format, self.values, self.headers, self.skip_node, self.tag, self.tag_prefix,
            self.where, self.consistency == "strong",
        )  # fmt: skip


class Unsubscribe(Named, tag="unsubscribe"):
    pass


class Publish(Ask, tag="publish"):
    topic: Text
    records: msgspec.Raw = msgspec.Raw(b"")  # not in a binary message: they are behind it
    create: bool = True
    wait: bool = True
    idempotency_key: Text | None = None
    disable_backpressure: bool = False


class Ping(Ask, tag="ping"):
    pass


Message = Subscribe | Unsubscribe | Publish | Ping


class Answer(Struct, omit_defaults=True):
    """What comes back for a message."""

    op: str
    request_id: str | int | None = None
    topics: list[str] | None = None
    topic: str | None = None
    count: int | None = None
    spans: list[Any] | None = None
    code: str | None = None
    message: str | None = None
    detail: dict[str, Any] | None = None
