"""The object that users hold: put, claim, ack, and what goes with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from esker.engine import removal
from esker.engine.context import LOG
from esker.engine.findings import Finding
from esker.engine.intake import timestamp_of
from esker.engine.reader import check_count, check_timeout
from esker.errors import DataGap, EskerError, InvalidOption, Poisoned, WriterBusy
from esker.format import leases as fmt
from esker.format.leases import Event, runs_of
from esker.format.queue import QueueOptions
from esker.options import duration_us
from esker.queues import history
from esker.queues.claiming import (
    NOTHING,
    UNBOUNDED,
    Missing,
    Taken,
    Want,
    claim,
    given_up,
    not_before,
    read,
    weight,
)
from esker.queues.cohort import Cohort, dealt
from esker.queues.crew import LOOK_US, Crew
from esker.queues.dead import DeadLetters
from esker.queues.fresh import Delayed, Fresh, delayed
from esker.queues.job import NOT_BEFORE, Grant, Job, parse_token, stale
from esker.queues.lane import Lane
from esker.queues.leases import State
from esker.queues.moving import Mover
from esker.queues.putting import Putter
from esker.queues.work import Work, process
from esker.records import Gap, Record, Span, Value

if TYPE_CHECKING:
    from esker.engine.store import Store
    from esker.engine.topic import Topic

T = TypeVar("T")
CLAIM_MAX: Final = 100_000
AGAIN: Final = 'Claim again to go on behind it; gaps="skip" only counts it.'
POLL_SECONDS: Final = 0.005  # between looks at what other processes put or give back
FLOOR_US: Final = 1_000_000  # between looks whether whole segments are done
SWEEP_US: Final = 30_000_000  # between looks for locks of the dead
BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 300.0


class QueueStats(msgspec.Struct, frozen=True):
    """How a queue stands."""

    ready: int  # can be claimed now
    leased: int  # held by a worker
    delayed: int  # scheduled, or nacked with a delay
    parked: int  # wait for a job with the same key
    dead: int  # given up; see queue.dead
    moving: int  # on their way to the dead letters
    gone: int  # lost or deleted before anybody had them
    oldest_seconds: float | None  # age of the oldest job that is not done; None if there is none
    paused: bool

    @property
    def unfinished(self) -> int:
        """Jobs that somebody has yet to do."""
        return self.ready + self.leased + self.delayed + self.parked


class Held(msgspec.Struct, frozen=True):
    """A job that somebody holds."""

    shard: int
    offset: int
    pid: int
    token: str
    deliveries: int
    seconds_left: float


class Queue:
    """A topic whose records are jobs. Get one with `store.queue("name", ...)`."""

    def __init__(
        self, store: Store, topic: Topic, folder: str, options: QueueOptions, lanes: list[Lane]
    ) -> None:
        self._store = store
        self._context = store._context
        self.name = topic.name
        self.topic = topic
        self.options = options
        self._lanes = lanes
        self._fresh = [Fresh() for _ in lanes]
        per = len(lanes) // options.priorities
        self._order = [lanes[at : at + per] for at in range(len(lanes) - per, -1, -per)]
        self._per = per
        self._crew = Crew(self._context, folder)
        self._mover = Mover(store, self.name)
        self._putter = Putter(store, topic, per)
        self._cohort = Cohort(self._context, folder, options.claim_jitter_us)
        self._durable = topic.options.durability == "fsync"
        self._turn = 0
        self._bell = threading.Condition()  # rung when this process puts or gives back
        self._bells: set[Any] = set()  # of those who wait in another way: they are released
        self._next_look = self._next_floor = self._next_sweep = 0
        self._cohort.ready = self._ready
        self.dead = DeadLetters(self)

    def _adopt(self, options: QueueOptions) -> None:
        """These are its options from now on."""
        self.options = options
        self._cohort.jitter = options.claim_jitter_us
        for lane in self._lanes:
            lane.options = options

    def _ready(self) -> int:
        """About how many jobs there are to be claimed."""
        return sum(
            len(lane.state.loose) + max(0, self.topic.end(lane.number) - lane.state.cursor)
            for lane in self._lanes
        )

    def __repr__(self) -> str:
        shards = "1 shard" if len(self._lanes) == 1 else f"{len(self._lanes)} shards"
        return f"<esker queue {self.name!r}, {shards}>"

    @property
    def findings(self) -> list[Finding]:
        """What could not be read of its leases since it was opened; they are told once."""
        return [finding for lane in self._lanes for finding in lane.findings]

    def priority_of(self, shard: int) -> int:
        """The priority of a shard's jobs."""
        return shard // self._per

    # ---- putting -------------------------------------------------------------------------

    def put(
        self,
        value: Value,
        key: bytes | str | None = None,
        *,
        delay: float | str = 0,
        at: Any = None,
        priority: int = 0,
        tag: str | None = None,
        headers: dict[str, bytes] | None = None,
        wait: bool | float = True,
    ) -> Span:
        """Add a job. When this returns it is as safe as the topic's class promises.

        It is not handed out before `delay` has passed, or before the time `at` (a datetime, or
        microseconds since 1970). Jobs of a higher `priority` are handed out first. From a process
        that does not write its shard the job is handed over, and its offset is not known: -1.
        """
        job = Record(value, key, tag, None, self._headers(headers, delay, at), None)  # type: ignore[arg-type]
        return self.put_many([job], priority=priority, wait=wait)[0]

    def put_many(
        self, jobs: Iterable[Value | Record], *, delay: float | str = 0, at: Any = None,
        priority: int = 0, wait: bool | float = True,
    ) -> list[Span]:  # fmt: skip
        """Add many jobs; those of one shard as one atomic batch."""
        self._context.require_writable()
        if isinstance(priority, bool) or not isinstance(priority, int) \
                or not 0 <= priority < self.options.priorities:  # fmt: skip
            raise InvalidOption(
                f"priority={priority!r}: queue {self.name!r} has 0..{self.options.priorities - 1}; "
                "give store.queue(..., priorities=n) when it is made"
            )
        later = bool(delay) or at is not None
        records = []
        for job in jobs:
            record = job if isinstance(job, Record) else Record(job)  # type: ignore[arg-type]
            if later:
                headers = self._headers(record.headers, delay, at)
                record = msgspec.structs.replace(record, headers=headers)
            records.append(record)
        if not records:
            return []
        spans = self._putter.put(records, priority, wait)
        self._ring()
        return spans

    def _headers(self, headers: Any, delay: float | str, at: Any) -> Any:
        waiting = duration_us(delay, "delay")
        if at is not None and waiting:
            raise InvalidOption("delay and at exclude each other: give one of them")
        if at is None and not waiting:
            return headers
        when = timestamp_of(at) if at is not None else self._context.clock.now_us() + waiting
        return {**(headers or {}), NOT_BEFORE: b"%d" % (when or 0)}

    # ---- claiming ------------------------------------------------------------------------

    def claim(
        self, max: int = 1, lease: float | str | None = None, wait: float | None = 0, *,
        gaps: Literal["raise", "skip"] = "raise",
    ) -> list[Job]:  # fmt: skip
        """Up to `max` jobs, ours until the lease ends; what was given back comes first.

        Waits up to `wait` seconds for the first one (None: for ever). Jobs that were lost before
        anybody had them are told as DataGap, once, and then passed over; gaps="skip" only counts.
        """
        self._context.require_writable()
        self._check_max(max)
        if gaps not in ("raise", "skip"):
            raise InvalidOption(f'gaps={gaps!r}: one of "raise", "skip"')
        held = self.options.lease_us if lease is None else self._lease(lease)
        limit = check_timeout(wait)
        want = Want(max, self._crew.join(), self._crew.pid, held, gaps == "raise")
        if self._cohort.jitter:
            found = self._cohort.claim(want, self._claim)
        else:
            found = self._claim(want)
        if found or limit == 0:
            return found
        clock = self._context.clock
        deadline = None if limit is None else clock.monotonic() + limit
        while not found:
            left = POLL_SECONDS if deadline is None else deadline - clock.monotonic()
            if left <= 0:
                break
            with self._bell:
                self._bell.wait(min(left, POLL_SECONDS))
            self._context.require_writable()
            found = self._claim(want)
        return found

    def announce(self, max: int = 1) -> float:
        """Say to other processes that so many jobs will be claimed; how long to wait for company.

        For who collects claims himself and then calls `claim_together`; see `claim_jitter`.
        """
        self._context.require_writable()
        if not self._cohort.jitter:
            return 0.0
        self._cohort.announce(Want(max, self._crew.join(), self._crew.pid, 0))
        return self._cohort.jitter / 1e6

    def claim_together(
        self, wants: Sequence[int], lease: float | str | None = None, *,
        gaps: Literal["raise", "skip"] = "raise", most_bytes: int = UNBOUNDED,
    ) -> list[list[Job]]:  # fmt: skip
        """Serve claims that were collected in one pass: what there is, dealt out in turn.

        As many hands come back as there are wants, some of them empty. Never waits. All together
        are at most `most_bytes`, and one reading more.
        """
        self._context.require_writable()
        for most in wants:
            self._check_max(most)
        held = self.options.lease_us if lease is None else self._lease(lease)
        want = Want(
            sum(wants), self._crew.join(), self._crew.pid, held, gaps == "raise", most_bytes
        )
        if self._cohort.jitter:
            return self._cohort.served(want, list(wants), self._claim)
        return dealt(self._claim(want), list(wants))

    @staticmethod
    def _check_max(max: int) -> None:
        if isinstance(max, bool) or not isinstance(max, int) or not 0 < max <= CLAIM_MAX:
            raise InvalidOption(f"max={max!r}: a whole number, 1..{CLAIM_MAX}")

    def _claim(self, want: Want) -> list[Job]:
        now = int(self._context.clock.monotonic() * 1e6)
        look = now >= self._next_look
        found = self._claim_all(want, look)
        if not found and not look:
            found = self._claim_all(want, True)
        return found

    def _claim_all(self, want: Want, look: bool) -> list[Job]:
        if look:
            self._next_look = int(self._context.clock.monotonic() * 1e6) + LOOK_US
        found: list[Job] = []
        left, bytes_left = want.most, want.most_bytes
        self._turn += 1
        for lanes in self._order:
            count = len(lanes)
            for step in range(count):
                lane = lanes[(self._turn + step) % count] if count > 1 else lanes[0]
                some = want._replace(most=left, most_bytes=bytes_left)
                taken = self._claim_one(lane, some, look)
                left -= len(taken.records)
                if bytes_left < UNBOUNDED:
                    bytes_left -= sum(map(weight, taken.records))
                found += self._jobs(lane, want, taken)
                if taken.gaps:
                    self._told(taken.gaps, want, found)
                if taken.moving or lane.state.moving:
                    self._mover.run(lane)
                if left <= 0 or bytes_left <= 0:
                    return found
        return found

    def _claim_one(self, lane: Lane, want: Want, look: bool) -> Taken:
        with lane as state:
            if look and state.crew:
                dead = self._crew.dead(state.workers())
                if dead:
                    lane.commit([fmt.Died(worker) for worker in dead])
            taken = claim(lane, want, lambda: self._mover.attached(lane))
            while taken.more and not taken.records and not taken.gaps:
                taken = claim(lane, want, lambda: self._mover.attached(lane))
        if self.options.leases_durable and taken is not NOTHING:
            lane.settle()
        return taken

    def _jobs(self, lane: Lane, want: Want, taken: Taken) -> list[Job]:
        grant = Grant(self, lane.number, want.worker, taken.number, taken.until / 1e6)
        return list(map(Job, taken.records, repeat(grant), taken.deliveries))

    def _told(self, gaps: list[Gap], want: Want, found: list[Job]) -> None:
        self._context.gaps_met += len(gaps)
        for gap in gaps:
            LOG.warning("queue %r: %s", self.name, gap)
        if want.telling:
            if found:
                self.release(found)
            raise DataGap(gaps[0], AGAIN)

    @staticmethod
    def _lease(lease: float | str) -> int:
        held = duration_us(lease, "lease")
        if held < 1000:
            raise InvalidOption(f"lease={lease!r}: at least a millisecond")
        return held

    # ---- settling ------------------------------------------------------------------------

    def job(self, shard: int, offset: int, token: str) -> Job:
        """A job that was claimed elsewhere, by its token: to be acked, nacked, extended, released.

        Whether the token is good is found out then, as with every other job (StaleLease). The
        record is not read: of it only shard and offset are known.
        """
        check_count("offset", offset, 0)
        if type(shard) is not int or not 0 <= shard < len(self._lanes):
            raise InvalidOption(f"shard={shard!r}: queue {self.name!r} has {len(self._lanes)}")
        worker, number = parse_token(token)
        grant = Grant(self, shard, worker, number, 0.0)
        return Job(Record(b"", offset=offset, shard=shard), grant, 0)

    def ack(self, jobs: Job | Sequence[Job]) -> None:
        """These are done, and never handed out again.

        Jobs whose lease is lost raise StaleLease, which names them; the others are acked.
        """
        self._settle(jobs, lambda lane, number, worker, offsets: [
            fmt.Acked(number, worker, runs_of(offsets))
        ], durable=self._durable)  # fmt: skip

    def nack(self, jobs: Job | Sequence[Job], delay: float | str = 0, reason: str = "") -> None:
        """These failed: hand them out again, not before `delay` has passed.

        Those that were handed out `max_deliveries` times are given up instead.
        """
        waiting = duration_us(delay, "delay")
        ready = int(self._context.clock.monotonic() * 1e6) + waiting if waiting else 0
        most = self.options.max_deliveries

        def tell(lane: Lane, number: int, worker: int, offsets: list[int]) -> list[Event]:
            spent = [o for o in offsets if most and lane.state.deliveries(o) >= most]
            again = [o for o in offsets if o not in spent] if spent else offsets
            events: list[Event] = []
            if spent:
                events.append(given_up(lane, spent, lambda: self._mover.attached(lane), reason))
                lane.commit(events)  # on its own: two claims' jobs are two moves
                events = []
            if again:
                events.append(fmt.Nacked(number, worker, runs_of(again), ready, reason))
            return events

        self._settle(jobs, tell, durable=self.options.leases_durable)
        for lane in self._lanes:
            if lane.state.moving:
                self._mover.run(lane)
        self._ring()

    def release(self, jobs: Job | Sequence[Job]) -> None:
        """Give these back untried: ready at once, and this delivery does not count."""
        self._settle(jobs, lambda lane, number, worker, offsets: [
            fmt.Released(number, worker, runs_of(offsets))
        ], durable=self.options.leases_durable)  # fmt: skip
        self._ring()

    def extend(self, jobs: Job | Sequence[Job], lease: float | str | None = None) -> None:
        """Hold these for so long from now on."""
        held = self.options.lease_us if lease is None else self._lease(lease)
        until = int(self._context.clock.monotonic() * 1e6) + held
        self._settle(jobs, lambda lane, number, worker, offsets: [
            fmt.Extended(number, worker, until, runs_of(offsets))
        ], durable=self.options.leases_durable, until=until)  # fmt: skip

    def _settle(
        self, jobs: Job | Sequence[Job],
        tell: Callable[[Lane, int, int, list[int]], list[Event]], *, durable: bool, until: int = 0,
    ) -> None:  # fmt: skip
        self._context.require_writable()
        given = [jobs] if isinstance(jobs, Job) else list(jobs)
        lost: list[tuple[Job, str]] = []
        by_token: dict[tuple[int, int, int], list[Job]] = {}
        for job in given:
            if job.grant.queue is not self:
                raise InvalidOption(f"{job!r} is not a job of queue {self.name!r}")
            grant = job.grant
            by_token.setdefault((grant.lane, grant.number, grant.worker), []).append(job)
        for (at, number, worker), some in by_token.items():
            lane = self._lanes[at]
            with lane as state:
                good = [job for job in some if state.holds(job.record.offset, worker, number)]
                if len(good) < len(some):
                    lost += [(job, state.whereabouts(job.record.offset))
                             for job in some if job not in good]  # fmt: skip
                if good:
                    offsets = sorted({job.record.offset for job in good}) if len(good) > 1 \
                        else [good[0].record.offset]  # fmt: skip
                    events = tell(lane, number, worker, offsets)
                    if events:
                        lane.commit(events)
            for job in good:
                if until:
                    job.extended = until / 1e6
                else:
                    job.settled = True
            if durable:
                lane.settle()
        if lost:
            problem = stale(*lost[0])
            for job, _ in lost:
                job.lost = True
            problem.jobs = [job for job, _ in lost]
            raise problem

    # ---- helpers for workers -------------------------------------------------------------

    def work(
        self, concurrency: int = 1, *, lease: float | str | None = None,
        wait: float | None = None,
    ) -> Work:  # fmt: skip
        """Jobs one after the other, for as long as there are any; their leases are renewed.

            for job in queue.work(concurrency=4):
                with job:
                    handle(job.value)

        At most `concurrency` jobs are held at a time; several threads may share one `work`. Ends
        when nothing came for `wait` seconds (never, when None), or after `stop`.
        """
        check_count("concurrency", concurrency, 1)
        return Work(self, concurrency, lease, check_timeout(wait))

    def process(
        self, handler: Callable[[Job], Any], workers: int = 1, *,
        lease: float | str | None = None, wait: float | None = None,
        on_error: Callable[[Job, BaseException], None] | None = None,
    ) -> int:  # fmt: skip
        """Call `handler` with every job, in so many threads; returns how many were acked.

        A handler that raises has its job nacked with back-off; `on_error` is told. Returns when
        nothing came for `wait` seconds. After a KeyboardInterrupt handlers that run are waited for,
        and what was claimed and not begun is given back.
        """
        check_count("workers", workers, 1)
        return process(self, handler, workers, lease, check_timeout(wait), on_error)

    @staticmethod
    def backoff(deliveries: int) -> float:
        """Seconds that a job rests after so many deliveries that failed."""
        return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(deliveries - 1, 30))

    # ---- the whole queue -----------------------------------------------------------------

    def pause(self) -> None:
        """Hand out nothing, in any process, until `resume`. What is held may be acked."""
        self._pause(True)

    def resume(self) -> None:
        """Hand out jobs again."""
        self._pause(False)
        self._ring()

    def _pause(self, paused: bool) -> None:
        self._context.require_writable()
        for lane in self._lanes:
            with lane as state:
                if state.paused != paused:
                    lane.commit([fmt.Paused(paused)])
            lane.settle()

    def purge(self) -> int:
        """Throw away all that waits: ready, delayed and parked. Returns how many jobs that were."""
        self._context.require_writable()
        total = 0
        for lane in self._lanes:
            with lane as state:
                fresh = range(state.cursor, max(state.cursor, self.topic.end(lane.number)))
                kept = {*state.held, *state.heads.values()} - {
                    *state.loose, *state.resting, *state.later
                }  # fmt: skip
                waiting = {*state.loose, *state.resting, *state.later, *state.keys} - kept
                offsets = [*sorted(waiting), *fresh]
                if offsets:
                    lane.commit([fmt.Purged(runs_of(offsets))])
            lane.settle()
            total += len(offsets)
        return total

    def stats(self) -> QueueStats:
        """How many jobs are where."""
        clock = self._context.clock
        mono, wall = int(clock.monotonic() * 1e6), clock.now_us()
        total = dict.fromkeys(("ready", "leased", "delayed", "parked", "dead", "moving"), 0)
        gone, oldest, paused = 0, [], False
        for lane in self._lanes:
            counts, cursor, floor, lost, held_back = self._ask(
                lane, lambda state: (
                    state.counts(mono, wall), state.cursor, state.floor(), state.gone, state.paused
                ),
            )  # fmt: skip
            for name, amount in counts.items():
                total[name] += amount
            end = self.topic.end(lane.number)
            later = self._fresh[lane.number].waiting(lane, cursor, end, wall)
            total["ready"] += max(0, end - cursor - later)
            total["delayed"] += later
            gone += lost
            paused |= held_back
            found = read(lane, floor, end) if floor < end else iter(())
            first = next((some[0] for some in found if not isinstance(some, Missing)), None)
            if first is not None:
                oldest.append(first.timestamp or wall)
        total["dead"] += self.dead._elsewhere()
        age = max(0.0, (wall - min(oldest)) / 1e6) if oldest else None
        return QueueStats(**total, gone=gone, oldest_seconds=age, paused=paused)

    def _ask(self, lane: Lane, question: Callable[[State], T]) -> T:
        """What the state says, as it is now."""
        self._context.require_open()
        if self._context.read_only:
            return question(lane.look())
        with lane as state:
            return question(state)

    def peek(self, limit: int = 10) -> list[Record]:
        """The jobs that would be handed out next, without handing them out."""
        check_count("limit", limit, 1)
        return list(islice(self._next(limit), limit))

    def _next(self, limit: int) -> Iterator[Record]:
        """As `peek`, one by one, and perhaps more of them."""
        return (each for lanes in self._order for lane in lanes for each in self._peek(lane, limit))

    def _peek(self, lane: Lane, limit: int) -> Iterator[Record]:
        clock = self._context.clock
        mono, wall = int(clock.monotonic() * 1e6), clock.now_us()

        def due_now(state: State) -> tuple[list[int], int]:
            due = state.due(mono, wall, limit)
            state.put_back(due)
            return due, state.cursor

        due, cursor = self._ask(lane, due_now)
        for offset in due:
            for each in read(lane, offset, offset + 1):
                yield from () if isinstance(each, Missing) else each
        end = self.topic.end(lane.number)
        for each in read(lane, cursor, end) if cursor < end else ():
            if not isinstance(each, Missing):
                yield from (record for record in each if not_before(record) <= wall)

    def delayed(self) -> list[Delayed]:
        """The jobs that wait for their time, those first that are handed out first."""
        return delayed(self)

    def leases(self) -> list[Held]:
        """Every job that somebody holds: who, under which token, and for how long."""
        now = int(self._context.clock.monotonic() * 1e6)

        def held(shard: int, state: State) -> list[Held]:
            return [
                Held(shard, offset, lease.pid, f"{lease.worker:016x}-{lease.number}",
                     state.deliveries(offset), (lease.until - now) / 1e6)
                for offset, lease in sorted(state.held.items(), key=lambda pair: pair[0])
            ]  # fmt: skip

        return [
            each for lane in self._lanes for each in self._ask(lane, partial(held, lane.number))
        ]

    def history(self, offset: int, shard: int = 0) -> list[history.Entry]:
        """What happened to a job, as far back as it is kept: who held it when."""
        self._context.require_open()
        if not isinstance(shard, int) or not 0 <= shard < len(self._lanes):
            raise InvalidOption(f"shard={shard!r}: queue {self.name!r} has {len(self._lanes)}")
        lane = self._lanes[shard]
        if self._context.read_only:
            return history.entries(lane.log.history(), offset)
        with lane:
            return history.entries(lane.log.history(), offset)

    # ---- what the store asks of us (see engine/guests.py) --------------------------------

    def tend(self) -> None:
        """What is due in the background: syncs, copies, room that can be given back."""
        if self._context.read_only or self._context.forked:
            return
        if self.topic._gone:
            self._context.guests.remove(self)
            self.close()
            return
        now = int(self._context.clock.monotonic() * 1e6)
        for lane in self._lanes:
            if lane.dirty:
                try:
                    lane.settle()
                except Poisoned as problem:
                    LOG.warning("%s", problem)
        if now >= self._next_floor:
            self._next_floor = now + FLOOR_US
            for lane in self._lanes:
                if lane.poison is None:
                    self._look_after(lane)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_US
            self._crew.sweep()

    def _look_after(self, lane: Lane) -> None:
        """Make copies that others have left to be made; drop segments of which all is done."""
        with lane as state:
            floor = state.floor()
        self._mover.run(lane)
        shard = self.topic._shards[lane.number]
        segments = shard.segments
        if shard.writing and len(segments) > 1 and floor >= segments[1].base:
            with suppress(WriterBusy):
                removal.forget_before(shard, floor)

    def close(self) -> None:
        """Everything durable; our jobs may be claimed by others."""
        problems: list[EskerError] = []
        for lane in self._lanes:
            try:
                if lane.dirty and not self.topic._gone:
                    lane.settle()
            except EskerError as problem:
                problems.append(problem)
            lane.close()
        self._crew.leave()
        self._cohort.close()
        self._ring()
        for first in problems:
            raise first

    def let_go(self) -> None:
        """Give up all that is held; for the store, when it is closed or was forked."""
        for lane in self._lanes:
            lane.let_go()
        self._crew.let_go()
        self._cohort.let_go()
        self._bell = threading.Condition()

    def _ring(self) -> None:
        with self._bell:
            self._bell.notify_all()
        for bell in list(self._bells):
            with suppress(RuntimeError):  # its loop has ended
                bell.release()
