"""What the table of routes does not say of them, because no code needs it.

The codes of errors that a handler's own work may have, what bodies that a handler reads by itself
look like, the headers of requests and answers, and examples: for the OpenAPI document alone. A
route that is not listed has the errors that every route has.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from esker.server.bodies.codec import JSON, RecordIn


class Records(Struct, forbid_unknown_fields=True):
    """Records to append, all or none."""

    records: Annotated[list[RecordIn], Meta(max_length=10_000)]
    idempotency_key: Annotated[str, Meta(max_length=1_024)] | None = None
    create: bool = True
    producer: Annotated[str, Meta(max_length=1_024)] | None = None
    sequence: Annotated[int, Meta(ge=0)] | None = None


class Event(Struct):
    """A CloudEvent, version 1.0. Extensions are further attributes."""

    specversion: Annotated[str, Meta(pattern=r"^1\.0$")]
    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    type: Annotated[str, Meta(min_length=1)]
    data: Any = None


# The bodies of routes that read them by themselves, by the kind of content.
BODIES: Final[dict[str, dict[str, Any]]] = {
    "records.append": {
        JSON: Records,
        "application/cloudevents+json": Event,
        "application/cloudevents-batch+json": list[Event],
    },
}
# Errors besides those that follow from the table.
_WRITES: Final = ("writer_busy", "poisoned", "storage", "disk_full")
_READS: Final = ("corruption", "cold_unavailable")
_TOPIC: Final = ("topic_not_found",)
_GROUP: Final = ("topic_not_found", "group_not_found")
_QUEUE: Final = ("topic_not_found", "not_a_queue")
_ROUTE: Final = ("route_not_found",)
_PLACE: Final = ("topic_not_found", "invalid_position", "invalid_option")
_RECORDS: Final = ("invalid_record", "record_too_large", "batch_too_large", "topic_full")
_BY_HANDLER: Final[dict[str, tuple[str, ...]]] = {
    "topics.create": ("invalid_option", "topic_exists", "disk_full"),
    "topics.alter": ("invalid_option", "topic_not_found", "topic_full"),
    "topics.state": _TOPIC,
    "topics.delete": ("topic_not_found", "topic_not_empty", "writer_busy"),
    "records.append": (
        *_TOPIC, *_RECORDS, "invalid_option", "key_reused", "sequence_gap", "sequence_expired",
        "producers_full", "would_block", *_WRITES,
    ),
    "records.read": (*_PLACE, "invalid_filter", "gap", "offset_out_of_range", *_READS),
    "records.delete": (*_PLACE, *_WRITES),
    "places.ranges": _PLACE,
    "places.pieces": (*_PLACE, *_READS),
    "places.tail": _PLACE,
    "places.sync": (*_TOPIC, *_WRITES),
    "places.counters": ("topic_not_found", "invalid_option"),
    "looks.segments": ("topic_not_found", "invalid_option"),
    "export.export": (*_PLACE, "invalid_filter", *_READS),
    "groups.list_groups": _TOPIC,
    "groups.create": ("topic_not_found", "invalid_position", "groups_full", "invalid_option"),
    "groups.state": _GROUP,
    "groups.forget": (*_GROUP, "member_busy"),
    "groups.poll": (*_GROUP, "member_busy", "groups_full", "invalid_option", *_READS),
    "groups.ack": (*_GROUP, "fenced", "invalid_option"),
    "groups.seek": (*_GROUP, "invalid_position", "invalid_option"),
    "groups.leave": _GROUP,
    "groups.pause": _GROUP,
    "groups.resume": _GROUP,
    "groups.producer": ("topic_not_found", "invalid_option"),
    "queues.create": ("invalid_option", "topic_exists", *_WRITES),
    "queues.state": _QUEUE,
    "queues.put": (*_QUEUE, *_RECORDS, "invalid_option", "would_block", *_WRITES),
    "queues.peek": (*_QUEUE, *_READS),
    "queues.claim": (*_QUEUE, "gap", "invalid_option", *_READS),
    **{
        f"queues.{verb}": (*_QUEUE, "stale_lease", "invalid_option")
        for verb in ("ack", "nack", "release", "extend")
    },
    "work.work": (*_QUEUE, "invalid_option"),
    "queues.dead": (*_QUEUE, *_READS),
    "queues.requeue": (*_QUEUE, "invalid_option", *_WRITES),
    "queues.purge_dead": (*_QUEUE, "invalid_option"),
    "queues.purge": _QUEUE,
    "queues.pause": _QUEUE,
    "queues.resume": _QUEUE,
    "queues.history": (*_QUEUE, "invalid_option"),
    "leased.delayed": _QUEUE,
    "leased.leases": _QUEUE,
    "leased.release": _QUEUE,
    "leased.nack": (*_QUEUE, "invalid_option"),
    "routes.define": (
        "topic_not_found", "route_not_found", "invalid_filter", "invalid_position",
        "invalid_option", "route_refused",
    ),
    "routes.state": _ROUTE,
    "routes.delete": (*_ROUTE, "member_busy"),
    "routes.pause": _ROUTE,
    "routes.resume": _ROUTE,
    "routes.seek": (*_ROUTE, "topic_not_found", "invalid_position", "invalid_option"),
    "stages.stage": (*_TOPIC, *_RECORDS, "invalid_option", "storage", "disk_full"),
    "stages.attach": (*_TOPIC, "invalid_option", "attach_pending", "corruption", *_WRITES),
    "stages.discard": ("invalid_option",),
    "durable.create": ("stream_conflict", "batch_too_large", "topic_full", *_WRITES),
    "durable.append": (
        *_TOPIC, "not_a_stream", "stream_conflict", "stream_closed", "stale_producer",
        "sequence_gap", "producers_full", "batch_too_large", "topic_full", "would_block", *_WRITES,
    ),
    "durable.read": (*_TOPIC, "not_a_stream", "gap", *_READS),
    "durable.delete": (*_TOPIC, "not_a_stream", "writer_busy"),
    "otlp.logs": (*_RECORDS, "would_block", *_WRITES),
    "watch.watch": (*_PLACE, "invalid_filter", "not_acceptable"),
    "watch.make": (*_PLACE, "invalid_filter"),
    "watch.attach": (*_PLACE, "not_acceptable"),
}  # fmt: skip
CODES: Final = {name: tuple(dict.fromkeys(told)) for name, told in _BY_HANDLER.items()}
# Headers that a request may have.
HEADERS: Final[dict[str, dict[str, str]]] = {
    "records.append": {
        "Idempotency-Key": "a retry with the same key is appended once",
        "Esker-Key": "the key of a record whose value is the body",
        "Esker-Tag": "its tag",
        "Esker-Node": "the node that it comes from",
        "Esker-Producer": "who numbers his batches, so that each is appended once",
        "Esker-Sequence": "the number of this one: 0, 1, 2, none left out",
    },
    "otlp.logs": {"Esker-Topic": "where the logs go, if not to otlp.logs"},
    "watch.watch": {"Last-Event-ID": "the id of the last event: it goes on behind that"},
    "watch.attach": {"Last-Event-ID": "the id of the last event: it goes on behind that"},
    "durable.create": {
        "Stream-TTL": "seconds; a stream that nobody uses for so long is gone",
        "Stream-Expires-At": "when it is gone, as in RFC 3339",
        "Stream-Closed": "true: nothing will be appended to it",
    },
    "durable.append": {
        "Stream-Closed": "true: nothing will be appended any more",
        "Stream-Seq": "above that of the last append, as text",
        "Producer-Id": "who appends; with Producer-Epoch and Producer-Seq a batch is there once",
        "Producer-Epoch": "of a producer that begins anew, one more",
        "Producer-Seq": "0, 1, 2 ... in each epoch",
    },
    **{
        handler: {"If-None-Match": "the ETag of what is there already"}
        for handler in ("records.read", "page.page", "page.file", "durable.read")
    },
}
# Headers that a successful answer has.
_NEXT: Final = {
    "Esker-Next": "the offset to go on with",
    "Esker-End": "behind the last record",
    "Esker-Earliest": "the first record that is there",
    "Esker-Epoch": "which topic of this name it is",
    "Esker-Gaps": "offsets that are not there any more, as JSON; only if there are any",
}
ANSWERED: Final[dict[str, dict[str, str]]] = {
    "records.read": {
        **_NEXT,
        "ETag": "of a page that lies in sealed segments",
        "Cache-Control": "of such a page, how long it may be kept; no-store of others",
        "Vary": "accept, of such a page",
    },
    "export.export": {"Content-Disposition": "the name of the file"},
    **{page: {"ETag": "of what the file holds"} for page in ("page.page", "page.file")},
    "groups.poll": {
        "Esker-Batches": "of Arrow: the batches, as JSON has them",
        "Esker-Gaps": _NEXT["Esker-Gaps"],
    },
    "durable.read": {
        "Stream-Next-Offset": "the offset to go on with",
        "Stream-Up-To-Date": "true: that was all there is",
        "Stream-Closed": "true: nothing will be appended any more",
        "Stream-Cursor": "of a live read: to be given back as cursor",
        "ETag": "of what was read",
        "Esker-Gaps": _NEXT["Esker-Gaps"],
    },
    "durable.append": {"Stream-Next-Offset": "behind what was appended"},
}
# Content types of answers that follow from that of the body, and not from Accept.
ALSO: Final[dict[str, tuple[str, ...]]] = {"otlp.logs": ("application/x-protobuf",)}
# Statuses without an error, besides 200.
STATUSES: Final[dict[str, dict[str, str]]] = {
    **{
        handler: {"201": "it was created"}
        for handler in (
            "topics.create", "groups.create", "queues.create", "routes.define", "stages.stage",
            "access.ticket", "watch.make", "durable.create",
        )
    },
    **{
        handler: {"304": "it is as it was"}
        for handler in ("records.read", "page.page", "page.file")
    },
    "durable.append": {"204": "it is there"},
    "durable.read": {"204": "nothing came", "304": "it is as it was"},
    "durable.delete": {"204": "it is deleted"},
}  # fmt: skip
# What is no answer of HTTP any more.
UPGRADES: Final = {"socket.plain": "a WebSocket: messages of JSON or, with Arrow behind, binary"}
EXAMPLES: Final[dict[str, Any]] = {
    "Records": {"records": [{"value": "hello", "key": "user-7", "tag": "greeting"}]},
    "Options": {"ttl": "7d", "durability": "fsync"},
    "Event": {
        "specversion": "1.0",
        "id": "1",
        "source": "/shop",
        "type": "order",
        "data": {"n": 1},
    },
}
