"""Every way Esker says no.

All exceptions descend from `EskerError` and carry a stable `.code`, so that a program can tell
them apart without reading prose. The text is for people: what happened, where, and what to do
next. Errors that stand for a familiar Python mistake also inherit from its exception
(`TopicNotFound` is a `KeyError`, `InvalidRecord` a `TypeError`), so ordinary handlers keep working.

An operation that raises has not happened: nothing was written, nothing was lost. Where that cannot
be promised the text says what may be there: `Poisoned` (a sync failed), `CommitTimeout` (the wait
ended, the commit goes on), and an error in the middle of a batch that several shards, or several
segments, had to share.
"""

from __future__ import annotations

import difflib
from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from esker.records import Gap


class EskerError(Exception):
    """The root of all of Esker's exceptions."""

    code: ClassVar[str] = "error"

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return str(self.args[0]) if self.args else self.code


# ---- the caller's mistakes ---------------------------------------------------------------


class InvalidOption(EskerError, ValueError):
    """An option that does not exist, or a value outside its limits."""

    code = "invalid_option"


class InvalidFilter(InvalidOption):
    """A filter that is not one; the text shows where, `.at` is the place."""

    code = "invalid_filter"

    def __init__(self, message: str, *, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


class InvalidPosition(EskerError, ValueError):
    """A starting point that is not one of: earliest, latest, N, -N, @time, @-duration."""

    code = "invalid_position"


class InvalidName(EskerError, ValueError):
    """A topic name outside ``[A-Za-z0-9][A-Za-z0-9._:-]*``, at most 255 characters."""

    code = "invalid_name"


class InvalidRecord(EskerError, TypeError):
    """A value, key, tag, node, header or timestamp of a type that cannot be stored."""

    code = "invalid_record"


class RecordTooLarge(EskerError, ValueError):
    """One record above `max_record_bytes`."""

    code = "record_too_large"


class BatchTooLarge(EskerError, ValueError):
    """An atomic batch that does not fit in one segment."""

    code = "batch_too_large"


class TopicNotFound(EskerError, KeyError):
    """No topic of that name; nothing is created by reading."""

    code = "topic_not_found"


def deleted(topic: str) -> TopicNotFound:
    """What whoever holds on to a deleted topic is told."""
    return TopicNotFound(f"topic {topic!r} was deleted; store[{topic!r}] is what is there now")


class TopicExists(EskerError):
    """`create` was asked for a topic that is there already, with other options."""

    code = "topic_exists"


class TopicNotEmpty(EskerError):
    """`delete(if_empty=True)` was asked for a topic that holds records; nothing was deleted."""

    code = "topic_not_empty"


class TopicFull(EskerError):
    """A topic with discard="reject" is at its cap; nothing was appended."""

    code = "topic_full"


class OffsetOutOfRange(EskerError, IndexError):
    """`topic[n]` outside of what the topic holds."""

    code = "offset_out_of_range"


class GroupNotFound(EskerError, KeyError):
    """No group of that name reads this topic."""

    code = "group_not_found"


class GroupsFull(EskerError):
    """A page of groups, or of their members, has no slot left."""

    code = "groups_full"


class RouteNotFound(EskerError, KeyError):
    """No route of that name."""

    code = "route_not_found"


class RouteRefused(EskerError):
    """A route that would go in a circle, give a topic a second source, or take a name in use.

    `.circle` names the topics that it would go through, if it is that.
    """

    code = "route_refused"

    def __init__(self, message: str, *, circle: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.circle = list(circle)


class StopProcessing(EskerError):
    """Raised by a handler: what it was given is done, and `process` is to end."""

    code = "stop_processing"


class NotAQueue(EskerError):
    """A topic that nobody has made a queue, and that may not be made one here."""

    code = "not_a_queue"


class StaleLease(EskerError):
    """Somebody else has the job, or it is done. `.jobs` are those with which nothing was done."""

    code = "stale_lease"

    def __init__(self, message: str, *, jobs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.jobs = list(jobs)


class KeyReused(EskerError, ValueError):
    """An idempotency key (or a sequence) stands for a batch of another size; nothing was done."""

    code = "key_reused"


class SequenceGap(EskerError):
    """A producer left out a number; `.expected` is the one to go on with. Nothing was appended."""

    code = "sequence_gap"

    def __init__(self, message: str, *, expected: int = 0) -> None:
        super().__init__(message)
        self.expected = expected


class SequenceExpired(EskerError):
    """Appended before, so long ago that its offsets are not kept; it was not appended again."""

    code = "sequence_expired"


class ProducersFull(EskerError):
    """A shard knows as many producers as it can; nothing was appended."""

    code = "producers_full"


# ---- the store's state -------------------------------------------------------------------


class AttachPending(EskerError):
    """A batch is committed, but a process that holds one of its shards has not attached it yet."""

    code = "attach_pending"


class StoreClosed(EskerError):
    """The store was closed; open it again."""

    code = "store_closed"


class StoreForked(EskerError):
    """This process is a fork of the one that opened the store; only the parent may write."""

    code = "store_forked"


class ReadOnlyStore(EskerError):
    """The store was opened with mode="r"."""

    code = "read_only"


class NotAStore(EskerError):
    """The path exists and holds something that is not an Esker store."""

    code = "not_a_store"


class FormatTooNew(EskerError):
    """Written by a later version of Esker; nothing was touched."""

    code = "format_too_new"


class WriterBusy(EskerError):
    """Another process (or another handle) is the writer of this shard."""

    code = "writer_busy"

    def __init__(self, message: str, *, pid: int = 0, since: str = "") -> None:
        super().__init__(message)
        self.pid = pid
        self.since = since


class Fenced(EskerError):
    """A shard of a group has another owner by now, or was moved by a seek; the ack did not count.

    Its records are delivered again, to whoever owns it.
    """

    code = "fenced"


class MemberBusy(EskerError):
    """A shard of a group is held by another member that lives; `.pid` says whose it is."""

    code = "member_busy"

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class WouldBlock(EskerError):
    """More than `max_unflushed_bytes` wait for the disk and the call may not wait."""

    code = "would_block"


class CommitTimeout(EskerError, TimeoutError):
    """The wait was limited and the limit passed; the record may still be committed later."""

    code = "timeout"


class Poisoned(EskerError):
    """A sync failed. What was not yet durable is in doubt; reopen the store to go on."""

    code = "poisoned"


# ---- the disk ----------------------------------------------------------------------------


class StorageError(EskerError, OSError):
    """The operating system refused a file operation."""

    code = "storage"

    def __init__(self, message: str, *, path: str = "", cause: OSError | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = cause.errno if cause is not None else None

    def __str__(self) -> str:
        return str(self.args[0])


class DiskFull(StorageError):
    """No space, or no quota, left."""

    code = "disk_full"


class ReadOnlyDisk(StorageError):
    """The file system is mounted read-only."""

    code = "read_only_disk"


class PermissionRefused(StorageError):
    """The files belong to somebody else."""

    code = "permission_refused"


class TooManyFiles(StorageError):
    """The process is out of file descriptors."""

    code = "too_many_files"


class UnsafePath(StorageError):
    """A symbolic link, a directory or a device where one of our files should be."""

    code = "unsafe_path"


class ColdUnavailable(StorageError):
    """A cold store does not answer, or does not have what was moved there; see `.missing`."""

    code = "cold_unavailable"

    def __init__(self, message: str, *, root: str, key: str = "", missing: bool = False) -> None:
        super().__init__(message, path=f"{root}/{key}" if key else root)
        self.root = root
        self.key = key
        self.missing = missing  # it answers, and says that there is no such thing


class Corruption(EskerError):
    """Bytes on disk are not what was written. Never returned as data, never passed over."""

    code = "corruption"
    ADVICE: ClassVar[str] = (
        "`esker.verify(path)` lists all damage; "
        "`esker.repair(path)` sets it aside and keeps the evidence."
    )

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int = 0,
        first: int | None = None,
        last: int | None = None,
        reason: str = "",
        advice: str = "",
    ) -> None:
        where = f"{path} at byte {position}"
        if first is not None and last is not None:
            where += f" (offsets {first}..{last})"
        super().__init__(f"{message}: {where}. {advice or self.ADVICE}")
        self.path = path
        self.position = position
        self.first = first
        self.last = last
        self.reason = reason or message


class DataGap(EskerError):
    """The reader came to offsets that were lost before it read them. `.gap` says which and why."""

    code = "gap"

    def __init__(self, gap: Gap, advice: str = "") -> None:
        going_on = f"Go on behind it with start={gap.last + 1}"
        if gap.reason == "recreated":  # its offsets are those of another topic
            going_on = 'Begin the new topic, with start="earliest" and without the epoch'
        going_on += ', or read with gaps="yield" (the Gap comes in its place) or gaps="skip".'
        super().__init__(f"{gap}. {advice or going_on}")
        self.gap = gap


# ---- a store on a server ----------------------------------------------------------------


class Unavailable(EskerError, ConnectionError):
    """A server cannot be reached, or went away before it answered; `.done` is what is known of it.

    False: the call was not done. None: perhaps it was; with an idempotency key it can be repeated.
    """

    code = "unavailable"

    def __init__(self, message: str, *, done: bool | None = False) -> None:
        super().__init__(message)
        self.done = done


class Unauthorized(EskerError, PermissionError):
    """The server wants a key, or does not know this one."""

    code = "unauthorized"


class Forbidden(EskerError, PermissionError):
    """The key is not for this: it lacks a scope, or is not for topics of that name."""

    code = "forbidden"


class Throttled(EskerError):
    """The server has enough to do; nothing was done. Try again in `.retry_after` seconds."""

    code = "throttled"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerFault(EskerError):
    """The server failed, or is not one that this client can talk to; `.status` is its answer's."""

    code = "server_fault"

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotRemote(EskerError, AttributeError):
    """What can be done with a directory alone: on the machine where the store is."""

    code = "not_remote"


# ---- Spark -------------------------------------------------------------------------------


class DataLoss(EskerError):
    """Records that a query was to read are not there: a gap, or deleted since it was planned."""

    code = "data_loss"


class PySparkMissing(EskerError, ImportError):
    """PySpark is not installed or too old, or Esker is not where Spark's workers look for it."""

    code = "pyspark_missing"


class JavaMissing(EskerError, RuntimeError):
    """There is no Java that Spark can be started with."""

    code = "java_missing"


COMPARED: Final = 400  # of many names those that stand near the word in their order: milliseconds
SHOWN: Final = 40


def nearest(word: str, known: Iterable[str]) -> str:
    """A "did you mean" for an error message, or the list of what there is."""
    choices = sorted(known)
    first = max(bisect(choices, word) - COMPARED // 2, 0) if len(choices) > COMPARED else 0
    close = difflib.get_close_matches(word, choices[first : first + COMPARED], n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(choices) - SHOWN} more" if len(choices) > SHOWN else ""
    return f"there is: {', '.join(choices[:SHOWN]) or 'none'}{more}"
