"""Esker: an embedded, durable, segmented append-only log.

    import esker

    with esker.open("data") as store:
        store["orders"].append(b"hello")
        for record in store["orders"].read("earliest"):
            print(record.offset, record.value)

Names are imported when they are first used: a program that wants one exception, or the command line
that prints its help, does not wait for Arrow.
"""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from esker.engine.verbs import OPENERS
from esker.version import VERSION

if TYPE_CHECKING:
    from esker.aio import AsyncGroup, AsyncQueue, AsyncRoute, AsyncStore, AsyncTopic, aopen
    from esker.engine.archived import ArchivedTopic, open_archive
    from esker.engine.archiving import Archived
    from esker.engine.batch import SCHEMA, Batch
    from esker.engine.maintenance import Maintenance
    from esker.engine.once import Producer
    from esker.engine.progress import Progress
    from esker.engine.recovery import Finding, Recovery
    from esker.engine.retention import Eviction
    from esker.engine.slices import Slice
    from esker.engine.store import Store
    from esker.engine.store import open_store as open
    from esker.engine.tiering import Tiered
    from esker.engine.topic import BatchWriter, Topic
    from esker.errors import (
        AttachPending,
        BatchTooLarge,
        ColdUnavailable,
        CommitTimeout,
        Corruption,
        DataGap,
        DataLoss,
        DiskFull,
        EskerError,
        Fenced,
        Forbidden,
        FormatTooNew,
        GroupNotFound,
        GroupsFull,
        InvalidFilter,
        InvalidName,
        InvalidOption,
        InvalidPosition,
        InvalidRecord,
        JavaMissing,
        KeyReused,
        MemberBusy,
        NotAQueue,
        NotAStore,
        NotRemote,
        OffsetOutOfRange,
        PermissionRefused,
        Poisoned,
        ProducersFull,
        PySparkMissing,
        ReadOnlyDisk,
        ReadOnlyStore,
        RecordTooLarge,
        RouteNotFound,
        RouteRefused,
        SequenceExpired,
        SequenceGap,
        ServerFault,
        StaleLease,
        StopProcessing,
        StorageError,
        StoreClosed,
        StoreForked,
        Throttled,
        TooManyFiles,
        TopicExists,
        TopicFull,
        TopicNotEmpty,
        TopicNotFound,
        Unauthorized,
        Unavailable,
        UnsafePath,
        WouldBlock,
        WriterBusy,
    )
    from esker.groups.batch import GroupBatch
    from esker.groups.describe import GroupStatus
    from esker.groups.group import Group
    from esker.groups.lag import Lag
    from esker.groups.moves import Move
    from esker.groups.pattern import PatternGroup
    from esker.queues.dead import DeadJob, DeadLetters
    from esker.queues.job import Job
    from esker.queues.queue import Queue, QueueStats
    from esker.queues.work import Work
    from esker.records import Gap, Offset, Record, Span, Spans
    from esker.routes.route import Route
    from esker.routes.status import RouteStatus
    from esker.upkeep.backup import BackedUp, backup, restore
    from esker.upkeep.repair import repair
    from esker.upkeep.report import Action, Problem, Repaired, Verification
    from esker.upkeep.verify import verify

__version__ = VERSION

# Where each public name lives, when it is not an exception.
_HOMES = {
    "AsyncGroup": "esker.aio",
    "AsyncQueue": "esker.aio",
    "AsyncRoute": "esker.aio",
    "AsyncStore": "esker.aio",
    "AsyncTopic": "esker.aio",
    "aopen": "esker.aio",
    "Archived": "esker.engine.archiving",
    "ArchivedTopic": "esker.engine.archived",
    "open_archive": "esker.engine.archived",
    "Batch": "esker.engine.batch",
    "SCHEMA": "esker.engine.batch",
    "Progress": "esker.engine.progress",
    "Finding": "esker.engine.recovery",
    "Recovery": "esker.engine.recovery",
    "Producer": "esker.engine.once",
    "Eviction": "esker.engine.retention",
    "Maintenance": "esker.engine.maintenance",
    "BackedUp": "esker.upkeep.backup",
    "backup": "esker.upkeep.backup",
    "restore": "esker.upkeep.backup",
    "repair": "esker.upkeep.repair",
    "Action": "esker.upkeep.report",
    "Problem": "esker.upkeep.report",
    "Repaired": "esker.upkeep.report",
    "Verification": "esker.upkeep.report",
    "Slice": "esker.engine.slices",
    "Store": "esker.engine.store",
    "open": "esker.engine.store:open_store",
    "Tiered": "esker.engine.tiering",
    "BatchWriter": "esker.engine.topic",
    "Topic": "esker.engine.topic",
    "verify": "esker.upkeep.verify",
    "GroupBatch": "esker.groups.batch",
    "GroupStatus": "esker.groups.describe",
    "Group": "esker.groups.group",
    "Lag": "esker.groups.lag",
    "Move": "esker.groups.moves",
    "PatternGroup": "esker.groups.pattern",
    "DeadJob": "esker.queues.dead",
    "DeadLetters": "esker.queues.dead",
    "Job": "esker.queues.job",
    "Queue": "esker.queues.queue",
    "QueueStats": "esker.queues.queue",
    "Work": "esker.queues.work",
    "Route": "esker.routes.route",
    "RouteStatus": "esker.routes.status",
    "Gap": "esker.records",
    "Offset": "esker.records",
    "Record": "esker.records",
    "Span": "esker.records",
    "Spans": "esker.records",
}

__all__ = [
    "SCHEMA",
    "Action",
    "Archived",
    "ArchivedTopic",
    "AsyncGroup",
    "AsyncQueue",
    "AsyncRoute",
    "AsyncStore",
    "AsyncTopic",
    "AttachPending",
    "BackedUp",
    "Batch",
    "BatchTooLarge",
    "BatchWriter",
    "ColdUnavailable",
    "CommitTimeout",
    "Corruption",
    "DataGap",
    "DataLoss",
    "DeadJob",
    "DeadLetters",
    "DiskFull",
    "EskerError",
    "Eviction",
    "Fenced",
    "Finding",
    "Forbidden",
    "FormatTooNew",
    "Gap",
    "Group",
    "GroupBatch",
    "GroupNotFound",
    "GroupStatus",
    "GroupsFull",
    "InvalidFilter",
    "InvalidName",
    "InvalidOption",
    "InvalidPosition",
    "InvalidRecord",
    "JavaMissing",
    "Job",
    "KeyReused",
    "Lag",
    "Maintenance",
    "MemberBusy",
    "Move",
    "NotAQueue",
    "NotAStore",
    "NotRemote",
    "Offset",
    "OffsetOutOfRange",
    "PatternGroup",
    "PermissionRefused",
    "Poisoned",
    "Problem",
    "Producer",
    "ProducersFull",
    "Progress",
    "PySparkMissing",
    "Queue",
    "QueueStats",
    "ReadOnlyDisk",
    "ReadOnlyStore",
    "Record",
    "RecordTooLarge",
    "Recovery",
    "Repaired",
    "Route",
    "RouteNotFound",
    "RouteRefused",
    "RouteStatus",
    "SequenceExpired",
    "SequenceGap",
    "ServerFault",
    "Slice",
    "Span",
    "Spans",
    "StaleLease",
    "StopProcessing",
    "StorageError",
    "Store",
    "StoreClosed",
    "StoreForked",
    "Throttled",
    "Tiered",
    "TooManyFiles",
    "Topic",
    "TopicExists",
    "TopicFull",
    "TopicNotEmpty",
    "TopicNotFound",
    "Unauthorized",
    "Unavailable",
    "UnsafePath",
    "Verification",
    "Work",
    "WouldBlock",
    "WriterBusy",
    "aopen",
    "backup",
    "open",
    "open_archive",
    "repair",
    "restore",
    "verify",
]
OPENERS["group"] = lambda: import_module("esker.groups.group").open_group
OPENERS["groups"] = lambda: import_module("esker.groups.describe").groups_of
OPENERS["forget_group"] = lambda: import_module("esker.groups.describe").forget_group
OPENERS["route"] = lambda: import_module("esker.routes.route").open_route
OPENERS["routes"] = lambda: import_module("esker.routes.status").routes_of
OPENERS["run_routes"] = lambda: import_module("esker.routes.registry").run_routes
OPENERS["pattern"] = lambda: import_module("esker.groups.pattern").open_pattern

OPENERS["url"] = lambda: import_module("esker.client.store").open_url
OPENERS["queue"] = lambda: import_module("esker.queues.opening").open_queue

if not TYPE_CHECKING:

    def _with_kin(open_store: Any) -> Any:
        """`open`, which knows `kin+comet:///path` too: the directory of another log, to be read."""

        @wraps(open_store)
        def open(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, str) and path.startswith("kin+"):
                return import_module("esker.kin").open_url(path, *args, **options)
            return open_store(path, *args, **options)

        return open

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'esker' has no attribute {name!r}")
        home, _, original = _HOMES.get(name, "esker.errors").partition(":")
        value = getattr(import_module(home), original or name)
        globals()[name] = value = _with_kin(value) if name == "open" else value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
