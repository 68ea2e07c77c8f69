"""A job, as a worker has it in hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from esker.errors import EskerError, InvalidOption, StaleLease
from esker.format.checksum import checksum
from esker.records import Record

if TYPE_CHECKING:
    from esker.queues.queue import Queue

NOT_BEFORE = "esker-not-before"  # a header: microseconds since 1970, when a job may be handed out
_TOKEN = re.compile(r"([0-9a-f]{16})-(\d{1,19})", re.ASCII)
DEAD = "esker-dead"  # a header of a dead letter: JSON that says where it comes from


class Grant:
    """What one claim gave to its caller: all its jobs share this."""

    __slots__ = ("deadline", "lane", "number", "queue", "worker")

    def __init__(self, queue: Queue, lane: int, worker: int, number: int, deadline: float) -> None:
        self.queue = queue
        self.lane = lane
        self.worker = worker
        self.number = number
        self.deadline = deadline


class Job(msgspec.Struct, eq=False):
    """One record of a queue, held under a lease.

        with job:                   leaving the block acks; an exception nacks, with back-off
            handle(job.value)

    Or by hand: `ack`, `nack`, `extend`, `release`. Each raises StaleLease if the lease is lost:
    then somebody else has the job, or is done with it, and nothing has happened.
    """

    record: Record
    grant: Any
    deliveries: int
    """How often it was handed out, this time included; what was released does not count."""
    settled: bool = False
    """Whether it was acked, nacked or released by this holder."""
    lost: bool = False
    """Whether the lease is known to be lost: stop working on it."""
    extended: float = 0.0

    @property
    def value(self) -> bytes:
        """What was put."""
        return self.record.value

    @property
    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.record.text

    def json(self) -> Any:
        """The value decoded as JSON."""
        return self.record.json()

    @property
    def key(self) -> bytes | None:
        """The key that it was put with."""
        return self.record.key

    @property
    def tag(self) -> str | None:
        """The tag that it was put with."""
        return self.record.tag

    @property
    def headers(self) -> Mapping[str, bytes] | None:
        """The headers that it was put with."""
        return self.record.headers

    @property
    def timestamp(self) -> int | None:
        """When it was put, in microseconds since 1970."""
        return self.record.timestamp

    @property
    def offset(self) -> int:
        """Its offset in its shard: with the shard, the name of the job for ever."""
        return self.record.offset

    @property
    def shard(self) -> int:
        """The shard of the topic that it lies in."""
        return self.record.shard

    @property
    def priority(self) -> int:
        """The priority that it was put with; higher ones go first."""
        queue: Queue = self.grant.queue
        return queue.priority_of(self.record.shard)

    @property
    def token(self) -> str:
        """What fences it: no two claims ever have the same."""
        return f"{self.grant.worker:016x}-{self.grant.number}"

    @property
    def deadline(self) -> float:
        """Until when it is ours, by the monotonic clock."""
        return self.extended or float(self.grant.deadline)

    def ack(self) -> None:
        """It is done, and never handed out again."""
        self.grant.queue.ack([self])

    def nack(self, delay: float | str = 0, reason: str = "") -> None:
        """It failed: hand it out again, not before `delay` has passed."""
        self.grant.queue.nack([self], delay, reason)

    def release(self) -> None:
        """Give it back untried: this delivery does not count."""
        self.grant.queue.release([self])

    def extend(self, lease: float | str | None = None) -> None:
        """Hold it for so long from now on; as long as the queue's leases are if nothing is said."""
        self.grant.queue.extend([self], lease)

    def check(self) -> None:
        """Raise StaleLease if the lease is known to be lost; for long handlers to call."""
        if self.lost:
            raise stale(self, "its lease was not renewed in time")

    def __repr__(self) -> str:
        return (
            f"<esker job {self.offset} of {self.grant.queue.name!r} shard {self.shard}, "
            f"delivery {self.deliveries}>"
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self.settled:
            return
        if kind is None:
            self.check()
            self.ack()
        elif issubclass(kind, Exception):
            give_up(self, problem)
        else:  # an interrupt is nobody's failure
            _quietly(self.release)


def give_up(job: Job, problem: BaseException | None) -> None:
    """Its handler failed: nack it with back-off; what failed stays the error to be told."""
    queue: Queue = job.grant.queue
    reason = f"{type(problem).__name__}: {problem}" if problem is not None else ""
    _quietly(lambda: job.nack(queue.backoff(job.deliveries), reason[:500]))


def _quietly(settle: Any) -> None:
    """If it cannot be given back now, its lease runs out."""
    try:
        settle()
    except EskerError as problem:
        from esker.engine.context import LOG

        LOG.warning("giving a job back: %s", problem)


def stale(job: Job, why: str) -> StaleLease:
    """What the holder of a lost lease is told."""
    queue: Queue = job.grant.queue
    return StaleLease(
        f"the lease {job.token} on job {job.offset} of queue {queue.name!r} shard {job.shard} is "
        f"lost: {why}. Nothing was done with it; claim again",
        jobs=[job],
    )


def parse_token(token: object) -> tuple[int, int]:
    """The worker and the number of its claim that a token names."""
    found = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if found is None:
        raise InvalidOption(f"token={token!r:.80}: not the token of a job; see job.token")
    return int(found[1], 16), int(found[2])


def key_hash(key: bytes | None) -> int:
    """63 bits that stand for a key, 0 for none. Two keys that share them only wait in one line."""
    return 0 if key is None else checksum(key) >> 1 or 1
