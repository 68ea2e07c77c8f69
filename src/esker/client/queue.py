"""A queue on a server: put, claim, settle.

A job in hand is what the server said of it, with the token that settles it. Which machine's clock
is right does not matter: a lease is told as seconds that are left, and counted from when the claim
was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from esker.client.group import SOMEBODY
from esker.client.pool import Answer, part
from esker.client.tail import POLL_SECONDS
from esker.client.texts import record_in, record_out
from esker.clock import SYSTEM_CLOCK, Clock
from esker.engine import intake
from esker.engine.reader import check_count, check_timeout
from esker.errors import DataGap, InvalidOption, NotAQueue, NotRemote, StaleLease, TopicNotFound
from esker.format.queue import QueueOptions
from esker.options import SEGMENT_BYTES_MAX, duration_us
from esker.queues.dead import DeadJob, Where
from esker.queues.fresh import Delayed
from esker.queues.history import Entry
from esker.queues.job import Job
from esker.queues.queue import AGAIN, CLAIM_MAX, Held, Queue, QueueStats
from esker.queues.work import Work, process
from esker.records import Record, Span, Value

if TYPE_CHECKING:
    from esker.client.store import RemoteStore
    from esker.client.topic import RemoteTopic

CALL_JOBS: Final = 10_000  # a server takes and gives no more at once
DEAD_SHOWN: Final = 1_000
SECONDS: Final = {"lease": "lease_us", "claim_jitter": "claim_jitter_us", "history": "history_us"}


class RemoteGrant:
    """What one claim gave to its caller."""

    __slots__ = ("deadline", "queue")

    def __init__(self, queue: RemoteQueue, deadline: float) -> None:
        self.queue = queue
        self.deadline = deadline


class RemoteJob(Job):
    """One record of a queue, held under a lease."""

    seal: str = ""
    rank: int = 0

    @property
    def token(self) -> str:
        """What fences it: no two claims ever have the same."""
        return self.seal

    @property
    def priority(self) -> int:
        """The priority that it was put with; higher ones go first."""
        return self.rank


class _Around:
    """What those who work through a queue ask of a store besides the queue."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock


class RemoteQueue:
    """A topic whose records are jobs. Get one with `store.queue("name", ...)`."""

    def __init__(self, store: RemoteStore, name: str, options: dict[str, Any]) -> None:
        self._store = store
        self.name = name
        self._path = f"/v1/queues/{part(name)}"
        self._context = _Around(SYSTEM_CLOCK)
        self.dead = RemoteDead(self)
        told: dict[str, Any] | None = None
        if not options:  # who may only work through it need not be allowed to make it
            try:
                told = self._call("GET", "", again=True).json()
            except (TopicNotFound, NotAQueue):
                told = None
        if told is None:
            store._require_writable()
            told = self._call("PUT", "", options, again=True).json()
        given = {
            SECONDS.get(each, each): round(value * 1e6) if each in SECONDS else value
            for each, value in told["options"].items()
        }
        self.options: QueueOptions = msgspec.convert(given, QueueOptions)

    def __repr__(self) -> str:
        return f"<esker queue {self.name!r} at {self._store.path}>"

    def __getattr__(self, name: str) -> Any:
        raise self._store._not_remote("Queue", name)

    def _call(self, method: str, path: str, body: Any = None, **how: Any) -> Answer:
        self._store.require_open()
        query = how.pop("query", None)
        return self._store._pool.call(method, self._path + path, query, body, **how)

    @property
    def topic(self) -> RemoteTopic:
        """The topic itself: it can be read, followed and deleted from like any other."""
        return self._store[self.name]

    # ---- putting -------------------------------------------------------------------------

    def put(
        self, value: Value, key: bytes | str | None = None, *, delay: float | str = 0,
        at: Any = None, priority: int = 0, tag: str | None = None,
        headers: dict[str, bytes] | None = None, wait: bool | float = True,
    ) -> Span:  # fmt: skip
        """Add a job; see `Queue.put`. The server always waits for the topic's commit class."""
        job = Record(value, key, tag, None, headers, None)  # type: ignore[arg-type]
        return self.put_many([job], delay=delay, at=at, priority=priority, wait=wait)[0]

    def put_many(
        self, jobs: Iterable[Value | Record], *, delay: float | str = 0, at: Any = None,
        priority: int = 0, wait: bool | float = True,
    ) -> list[Span]:  # fmt: skip
        """Add many jobs; those of one shard as one atomic batch."""
        self._store._require_writable()
        intake.wait_of(wait)
        waiting = duration_us(delay, "delay")
        if at is not None and waiting:
            raise InvalidOption("delay and at exclude each other: give one of them")
        if isinstance(priority, bool) or not isinstance(priority, int) \
                or not 0 <= priority < self.options.priorities:  # fmt: skip
            raise InvalidOption(
                f"priority={priority!r}: queue {self.name!r} has 0..{self.options.priorities - 1}; "
                "give store.queue(..., priorities=n) when it is made"
            )
        values, extras = intake.many(list(jobs), SEGMENT_BYTES_MAX)
        if not values:
            return []
        body: dict[str, Any] = {
            "jobs": [record_in(value, extras.get(row)) for row, value in enumerate(values)],
            "priority": priority,
        }
        if waiting:
            body["delay"] = waiting / 1e6
        if at is not None:
            body["at"] = intake.timestamp_of(at)
        spans = self._call("POST", "/jobs", body).json()["spans"]
        return [Span(one["shard"], one["first"], one["count"]) for one in spans]

    # ---- claiming and settling -----------------------------------------------------------

    def claim(
        self, max: int = 1, lease: float | str | None = None, wait: float | None = 0, *,
        gaps: Literal["raise", "skip"] = "raise",
    ) -> list[Job]:  # fmt: skip
        """Up to `max` jobs, ours until the lease ends; see `Queue.claim`."""
        self._store._require_writable()
        if isinstance(max, bool) or not isinstance(max, int) or not 0 < max <= CLAIM_MAX:
            raise InvalidOption(f"max={max!r}: a whole number, 1..{CLAIM_MAX}")
        if gaps not in ("raise", "skip"):
            raise InvalidOption(f'gaps={gaps!r}: one of "raise", "skip"')
        held = None if lease is None else self._lease(lease) / 1e6
        limit = check_timeout(wait)
        clock = self._context.clock
        deadline = None if limit is None else clock.monotonic() + limit
        while True:
            left = POLL_SECONDS if deadline is None else deadline - clock.monotonic()
            found = self._claim(min(max, CALL_JOBS), held, min(left, POLL_SECONDS), gaps)
            if found or (deadline is not None and clock.monotonic() >= deadline):
                return found

    def _claim(self, most: int, lease: float | None, wait: float, gaps: str) -> list[Job]:
        wait = wait if wait > 0 else 0.0
        body: dict[str, Any] = {"max": most, "wait": wait, "gaps": gaps}
        if lease is not None:
            body["lease"] = lease
        began = self._context.clock.monotonic()
        try:
            told = self._call("POST", "/claim", body, wait=wait).json()["jobs"]
        except DataGap as problem:
            raise DataGap(problem.gap, AGAIN) from None
        return [
            RemoteJob(
                record_out(one), RemoteGrant(self, began + one["lease_seconds"]),
                one["deliveries"], seal=one["token"], rank=one["priority"],
            )
            for one in told
        ]  # fmt: skip

    @staticmethod
    def _lease(lease: float | str) -> int:
        return Queue._lease(lease)

    def ack(self, jobs: Job | Sequence[Job]) -> None:
        """These are done, and never handed out again; see `Queue.ack`."""
        self._settle("ack", jobs, {})

    def nack(self, jobs: Job | Sequence[Job], delay: float | str = 0, reason: str = "") -> None:
        """These failed: hand them out again, not before `delay` has passed."""
        waiting = duration_us(delay, "delay") / 1e6
        self._settle("nack", jobs, {"delay": waiting, "reason": reason[:500]})

    def release(self, jobs: Job | Sequence[Job]) -> None:
        """Give these back untried: the delivery does not count."""
        self._settle("release", jobs, {})

    def extend(self, jobs: Job | Sequence[Job], lease: float | str | None = None) -> None:
        """Hold these for so long from now on."""
        held = self.options.lease_us / 1e6 if lease is None else self._lease(lease) / 1e6
        until = self._context.clock.monotonic() + held
        self._settle("extend", jobs, {"lease": held}, until)

    def job(self, shard: int, offset: int, token: str) -> Job:
        """A job that was claimed elsewhere, by its token; see `Queue.job`.

        Without a token it is whoever's it is: it can be released and nacked, by a key that has the
        scope admin.
        """
        check_count("shard", shard, 0)
        check_count("offset", offset, 0)
        record = Record(b"", offset=offset, shard=shard)
        return RemoteJob(record, RemoteGrant(self, 0.0), 0, seal=token)

    def _settle(
        self, verb: str, jobs: Job | Sequence[Job], more: dict[str, Any], until: float = 0.0
    ) -> None:
        self._store._require_writable()
        given = [jobs] if isinstance(jobs, Job) else list(jobs)
        lost: list[Job] = []
        problem: StaleLease | None = None
        if verb in ("release", "nack"):
            lost += self._take_back(verb, [job for job in given if not job.token], more)
            given = [job for job in given if job.token]
            if lost:
                problem = StaleLease(f"{len(lost)} jobs are held by nobody")
        for at in range(0, len(given), CALL_JOBS):
            some = given[at : at + CALL_JOBS]
            tokens = [
                {"shard": job.shard, "offset": job.offset, "token": job.token} for job in some
            ]
            refused: set[tuple[int, int]] = set()
            try:
                self._call("POST", f"/{verb}", {"jobs": tokens, **more})
            except StaleLease as told:
                problem = told
                refused = {(one["shard"], one["offset"]) for one in told.jobs}
            for job in some:
                if (job.shard, job.offset) in refused:
                    job.lost = True
                    lost.append(job)
                elif until:
                    job.extended = until
                else:
                    job.settled = True
        if problem is not None:
            problem.jobs = lost
            raise problem

    def _take_back(self, verb: str, jobs: list[Job], more: dict[str, Any]) -> list[Job]:
        """Settle jobs of others; one by one, or nobody would know which were not held."""
        lost: list[Job] = []
        for job in jobs:
            body = {"jobs": [{"shard": job.shard, "offset": job.offset}], **more}
            if self._call("POST", f"/leases/{verb}", body).json()["done"]:
                job.settled = True
            else:
                job.lost = True
                lost.append(job)
        return lost

    # ---- helpers for workers -------------------------------------------------------------

    def work(
        self, concurrency: int = 1, *, lease: float | str | None = None, wait: float | None = None
    ) -> Work:
        """Jobs one after the other, for as long as there are any; see `Queue.work`."""
        check_count("concurrency", concurrency, 1)
        return Work(self, concurrency, lease, check_timeout(wait))  # type: ignore[arg-type]

    def process(
        self, handler: Callable[[Job], Any], workers: int = 1, *,
        lease: float | str | None = None, wait: float | None = None,
        on_error: Callable[[Job, BaseException], None] | None = None,
    ) -> int:  # fmt: skip
        """Call `handler` with every job, in so many threads; see `Queue.process`."""
        check_count("workers", workers, 1)
        return process(self, handler, workers, lease, check_timeout(wait), on_error)  # type: ignore[arg-type]

    @staticmethod
    def backoff(deliveries: int) -> float:
        """Seconds that a job rests after so many deliveries that failed."""
        return Queue.backoff(deliveries)

    # ---- the whole queue -----------------------------------------------------------------

    def pause(self) -> None:
        """Hand out nothing until `resume`. What is held may be acked."""
        self._store._require_writable()
        self._call("POST", "/pause", {}, again=True)

    def resume(self) -> None:
        """Hand out jobs again."""
        self._store._require_writable()
        self._call("POST", "/resume", {}, again=True)

    def purge(self) -> int:
        """Throw away all that waits: ready, delayed and parked. Returns how many jobs that were."""
        self._store._require_writable()
        return int(self._call("POST", "/purge", {}).json()["count"])

    def stats(self) -> QueueStats:
        """How many jobs are where."""
        told = self._call("GET", "", again=True).json()
        return QueueStats(**{name: told[name] for name in QueueStats.__struct_fields__})

    def peek(self, limit: int = 10) -> list[Record]:
        """The jobs that would be handed out next, without handing them out; 1,000 at the most."""
        check_count("limit", limit, 1)
        query = {"limit": min(limit, DEAD_SHOWN)}
        told = self._call("GET", "/jobs", query=query, again=True).json()["jobs"]
        return [record_out(one) for one in told]

    def delayed(self) -> list[Delayed]:
        """The jobs that wait for their time, those first that are handed out first."""
        jobs = self._listed("delayed", "wait for their time")
        return [Delayed(one["shard"], one["offset"], one["seconds_left"]) for one in jobs]

    def leases(self) -> list[Held]:
        """Every job that somebody holds, and for how long; a token is nobody else's business."""
        return [
            Held(one["shard"], one["offset"], SOMEBODY, "", one["deliveries"], one["seconds_left"])
            for one in sorted(
                self._listed("leases", "are held"), key=lambda one: (one["shard"], one["offset"])
            )
        ]

    def _listed(self, which: str, what: str) -> list[dict[str, Any]]:
        """All of them, or none: never a part that looks like all."""
        query = {"limit": DEAD_SHOWN, "headers": "false"}
        told = self._call("GET", f"/{which}", query=query, again=True).json()
        if told["count"] > DEAD_SHOWN:
            raise NotRemote(
                f"{told['count']} jobs of {self.name!r} {what}; a server shows {DEAD_SHOWN}, and "
                "stats() counts them"
            )
        jobs: list[dict[str, Any]] = told["jobs"]
        return jobs

    def history(self, offset: int, shard: int = 0) -> list[Entry]:
        """What happened to a job, as far back as it is kept."""
        query = {"offset": offset, "shard": shard}
        told = self._call("GET", "/history", query=query, again=True).json()["entries"]
        return [
            Entry(one["when"], one["what"], 0, str(one.get("claim") or ""), one.get("reason", ""))
            for one in told
        ]


class RemoteDead:
    """The dead of a queue."""

    def __init__(self, queue: RemoteQueue) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return f"<esker dead letters of queue {self._queue.name!r}>"

    def _shown(self, limit: int) -> tuple[int, list[DeadJob]]:
        query = {"limit": min(limit, DEAD_SHOWN)}
        told = self._queue._call("GET", "/dead", query=query, again=True).json()
        jobs = [
            DeadJob(record_out(one), one["shard"], one["offset"], one["deliveries"], one["reason"])
            for one in told["jobs"]
        ]
        return told["count"], jobs

    def __len__(self) -> int:
        return self._shown(1)[0]

    def __iter__(self) -> Iterator[DeadJob]:
        count, jobs = self._shown(DEAD_SHOWN)
        if count > len(jobs):
            raise NotRemote(
                f"{count} jobs are dead, and a server shows the first {DEAD_SHOWN}: requeue or "
                "purge some, or look at them where the store is"
            )
        return iter(jobs)

    def peek(self, limit: int = 100) -> list[DeadJob]:
        """The first of them; 1,000 at the most."""
        check_count("limit", limit, 1)
        return self._shown(limit)[1]

    def requeue(
        self, jobs: DeadJob | Sequence[DeadJob] | None = None, *, where: Where | None = None
    ) -> int:
        """Put these back into the queue, or all, or those for which `where` is true."""
        return self._settle("requeue", jobs, where)

    def purge(
        self, jobs: DeadJob | Sequence[DeadJob] | None = None, *, where: Where | None = None
    ) -> int:
        """Throw these away, or all, or those for which `where` is true. Returns how many."""
        return self._settle("purge", jobs, where)

    def _settle(
        self, verb: str, jobs: DeadJob | Sequence[DeadJob] | None, where: Where | None
    ) -> int:
        self._queue._store._require_writable()
        if jobs is None and where is None:
            return self._post(verb, {"all": True})
        given = [jobs] if isinstance(jobs, DeadJob) else jobs
        chosen = [job for job in (self if given is None else given) if where is None or where(job)]
        total = 0
        for at in range(0, len(chosen), CALL_JOBS):
            places = [
                {"shard": job.shard, "offset": job.offset} for job in chosen[at : at + CALL_JOBS]
            ]
            total += self._post(verb, {"jobs": places})
        return total

    def _post(self, verb: str, body: dict[str, Any]) -> int:
        return int(self._queue._call("POST", f"/dead/{verb}", body).json()["count"])
