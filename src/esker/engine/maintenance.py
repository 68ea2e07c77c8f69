"""What the background does, has to do and has done, for whoever asks: `store.maintenance()`.

The background keeps a diary: what it is at, since when, how much it has done, what failed last.
What waits is not kept anywhere a second time. It is counted when somebody asks, in the queues and
lists that the work itself goes by; so the numbers cannot drift from the truth.

    sealing      a rolled log becomes an immutable segment
    looking      at the catalog, and at every topic with caps, an age or a share in the budget
    evicting     segments of a shard go, see retention.py and budget.py
    rewriting    a sealed segment loses what was deleted of it, see rewriting.py
    moving       a sealed segment goes to the cold store, see mover.py; sweeping: what is left there
    removing     the directory of a deleted topic goes
    attaching    a batch made elsewhere becomes a part of shards that this process writes

These seven are what a pause holds back. Lingering buffers, syncs, setting offsets aside and rolling
logs go on: they are short, and writers rely on them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from esker.clock import Clock

if TYPE_CHECKING:
    from esker.engine.shard import Shard

MaintenanceState = Literal["running", "paused", "off", "failed"]


class Work(msgspec.Struct, frozen=True):
    """One piece of work, at which a thread is now."""

    what: str
    topic: str  # "" where it is about no topic, or about one that is deleted
    shard: int
    since_us: int  # microseconds since 1970, as timestamps of records are

    def __str__(self) -> str:
        return f"{_about(self.what, self.topic, self.shard)} since {_told(self.since_us)}"


class Failure(msgspec.Struct, frozen=True):
    """What went wrong in the background."""

    what: str
    topic: str
    shard: int
    when_us: int
    reason: str

    def __str__(self) -> str:
        about = _about(self.what, self.topic, self.shard)
        return f"{_told(self.when_us)}, {about}: {self.reason}"


class Waiting(msgspec.Struct, frozen=True):
    """What has to be done and is not begun."""

    logs: int  # rolled, to be sealed
    topics: int  # to be looked at, because the time for that has come
    directories: int  # of deleted topics, to be removed
    batches: int  # committed, and not yet attached everywhere, by this process or by others
    shards: int  # for which the next offsets are to be set aside

    def __str__(self) -> str:
        return (
            f"{self.logs} logs to seal, {self.topics} topics to look at, {self.directories} "
            f"directories to remove, {self.batches} batches to attach, {self.shards} shards to set "
            "offsets aside for"
        )


class Done(msgspec.Struct, frozen=True):
    """What the background has done since the store was opened."""

    sealed: int  # logs, but for those that were sealed by a writer, by closing or for a batch
    evicted_segments: int
    evicted_bytes: int
    removed: int  # topics
    attached: int  # batches
    errors: int

    def __str__(self) -> str:
        return (
            f"{self.sealed} logs sealed, {self.evicted_segments} segments of {self.evicted_bytes} "
            f"bytes evicted, {self.removed} topics removed, {self.attached} batches attached, "
            f"{self.errors} errors"
        )


class Budget(msgspec.Struct, frozen=True):
    """The budget of the store, and how much of it is used."""

    limit: int  # budget_bytes
    bytes: int  # that the segments of all topics take
    to_evict: int  # bytes that are to go, for the budget and for caps and ages before it
    above: int  # bytes that stay above the budget, because nothing more may be evicted
    unknown: int  # shards that cannot be read, and are not among these bytes

    def __str__(self) -> str:
        said = f"{self.bytes} of {self.limit} bytes, {self.to_evict} to be evicted"
        said += f", {self.above} stay above it" if self.above else ""
        return said + (f", {self.unknown} shards cannot be read" if self.unknown else "")


class Tiers(msgspec.Struct, frozen=True):
    """The cold store, and what was moved to it and from it since the store was opened."""

    cold: str  # "" if there is none: then nothing is moved
    topics: int  # with hot_segments or hot_bytes
    waiting: int  # segments that are to be moved
    moved_segments: int
    moved_bytes: int
    brought_segments: int  # back, by hand
    brought_bytes: int
    swept: int  # objects that nobody needed any more
    failures: int  # since something worked
    next_try: float  # seconds until the cold store is asked again, after a failure
    reason: str  # of the last failure

    def __str__(self) -> str:
        if not self.cold:
            return f"no cold store, so {self.topics} topics with bounds stay here as a whole"
        said = (
            f"{self.cold}, {self.waiting} segments to move, {self.moved_segments} of "
            f"{self.moved_bytes} bytes moved, {self.brought_segments} of {self.brought_bytes} "
            f"bytes brought back, {self.swept} swept"
        )
        if self.failures:
            again = f"next try in {self.next_try:.0f} s: {self.reason}"
            said += f"; failed {self.failures} times, {again}"
        return said


class Maintenance(msgspec.Struct, frozen=True):
    """The background of a store, at one moment."""

    state: MaintenanceState
    """`running`; `paused` on request; `off` without threads (then `store.tick()` does the work) and
    for who only reads; `failed` when a thread has ended by an error."""
    doing: tuple[Work, ...]
    waiting: Waiting
    next_look: float | None
    """Seconds until the next look at topics; None if no time is set for one."""
    done: Done
    last_error: Failure | None
    budget: Budget | None
    """None without `budget_bytes`."""
    tiers: Tiers | None = None
    """None without `cold` and without topics that have bounds."""

    def __str__(self) -> str:
        looks = "" if self.next_look is None else f", next look in {self.next_look:.1f} s"
        lines = [
            f"{self.state}{looks}",
            f"doing: {'; '.join(map(str, self.doing)) or 'nothing'}",
            f"waiting: {self.waiting}",
            f"done: {self.done}",
            f"last error: {self.last_error or 'none'}",
        ]
        if self.budget is not None:
            lines.append(f"budget: {self.budget}")
        if self.tiers is not None:
            lines.append(f"cold: {self.tiers}")
        return "\n  ".join(lines)


def _about(what: str, topic: str, shard: int) -> str:
    return f"{what} topic {topic!r} shard {shard}" if topic else what


def _told(moment_us: int) -> str:
    moment = datetime.fromtimestamp(moment_us / 1e6, UTC)
    return moment.isoformat(sep=" ", timespec="seconds")


class Diary:
    """What the background notes down while it works."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._doing: dict[object, Work] = {}
        self._done: Counter[str] = Counter()
        self._failure: Failure | None = None

    @contextmanager
    def at(self, what: str, shard: Shard | None = None) -> Iterator[None]:
        """Inside, this is being done."""
        page = object()
        work = Work(what, *_place(shard), self._clock.now_us())
        try:
            with self._lock:
                self._doing[page] = work
            yield
        finally:
            with self._lock:
                self._doing.pop(page, None)

    def did(self, what: str, amount: int = 1) -> None:
        """So much more is done; `what` is a field of `Done`."""
        with self._lock:
            self._done[what] += amount

    def count(self, what: str) -> int:
        """How much of it is done."""
        with self._lock:
            return self._done[what]

    def failed(self, what: str, problem: BaseException, shard: Shard | None = None) -> None:
        """It did not work. The text is kept, not the error: its traceback holds files open."""
        reason = str(problem) or type(problem).__name__
        failure = Failure(what, *_place(shard), self._clock.now_us(), reason)
        with self._lock:
            self._done["errors"] += 1
            self._failure = failure

    def read(self) -> tuple[tuple[Work, ...], Done, Failure | None]:
        """What is being done now, what was done, and what failed last."""
        with self._lock:
            done = Done(**{name: self._done[name] for name in Done.__struct_fields__})
            return tuple(self._doing.values()), done, self._failure


def _place(shard: Shard | None) -> tuple[str, int]:
    return (shard.entry.name, shard.number) if shard is not None else ("", 0)
