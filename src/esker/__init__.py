"""Esker: an embedded, durable, segmented append-only log.

    import esker

    with esker.open("data") as store:
        store["orders"].append(b"hello")
        for record in store["orders"].read("earliest"):
            print(record.offset, record.value)
"""

from __future__ import annotations

from esker.aio import AsyncStore, AsyncTopic, aopen
from esker.engine.batch import SCHEMA, Batch
from esker.engine.recovery import Finding, Recovery
from esker.engine.slices import Slice
from esker.engine.store import Store
from esker.engine.store import open_store as open
from esker.engine.topic import BatchWriter, Topic
from esker.errors import (
    BatchTooLarge,
    CommitTimeout,
    Corruption,
    DataGap,
    DiskFull,
    EskerError,
    FormatTooNew,
    InvalidName,
    InvalidOption,
    InvalidPosition,
    InvalidRecord,
    NotAStore,
    OffsetOutOfRange,
    PermissionRefused,
    Poisoned,
    ReadOnlyDisk,
    ReadOnlyStore,
    RecordTooLarge,
    StorageError,
    StoreClosed,
    StoreForked,
    TooManyFiles,
    TopicExists,
    TopicNotFound,
    UnsafePath,
    WouldBlock,
    WriterBusy,
)
from esker.records import Gap, Offset, Record, Span, Spans

__version__ = "0.1.0"
