"""The object users hold: append, read, follow.

    append ── buffer ── (full, linger, sync) ──┐
    append_many, append_arrow, batch() ────────┴─ Shard._write ─ LogSegment.append ─ pwrite
    append(wait=True), class fsync ─ Committer.append ─ one round for all who wait

A lone `append` is the hottest path there is, so it takes no lock: see buffer.py for why that is
right. Everything else holds the lock of one shard at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Lock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from esker import positions
from esker.engine import intake
from esker.engine.batch import Batch
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.follower import Follower
from esker.engine.reader import (
    BATCH_BYTES,
    Consistency,
    Gaps,
    Range,
    View,
    check_consistency,
    check_count,
    check_gaps,
    check_limit,
    check_timeout,
    count_records,
    earliest_of,
    end_of,
    read_batches,
    read_one,
    resolve,
)
from esker.engine.shard import Shard, encode, encode_arrow
from esker.engine.slices import Slice
from esker.engine.tail import Tail
from esker.errors import (
    BatchTooLarge,
    CommitTimeout,
    InvalidOption,
    OffsetOutOfRange,
    TopicNotFound,
    WouldBlock,
    nearest,
)
from esker.format.catalog import TopicEntry
from esker.format.columns import FEW, Body, Columns, Extra, one, to_columns
from esker.options import BUFFER_BYTES, SMALL_RECORD_BYTES, TopicOptions
from esker.records import Gap, Offset, Record, Span, Spans

if TYPE_CHECKING:
    from esker.engine.store import Store

SHARED_FLUSHES = 16  # how long a buffer stays without an owner after two threads met in it


class Topic:
    """A named log. Get one with `store["name"]` or `store.create("name", ...)`."""

    def __init__(self, store: Store, name: str, entry: TopicEntry | None) -> None:
        self._store = store
        self.name = name
        self._entry: TopicEntry | None = None
        self._buffer: Buffer = CLOSED
        self._shards: list[Shard] = []
        self._followers: list[Follower] = []
        self._turn = 0
        self._shared = 0  # flushes left before a buffer may have an owner again
        self._lock = Lock()  # guards _entry, _shards, _followers
        if entry is not None:
            self._attach(entry)

    def __repr__(self) -> str:
        if self._entry is None:
            return f"<esker topic {self.name!r}, not yet created>"
        options = self._entry.options
        return f"<esker topic {self.name!r}, {options.shards} shards, {options.durability}>"

    def _attach(self, entry: TopicEntry) -> TopicEntry:
        context = self._store._context
        self._shards = [Shard(context, entry, n) for n in range(entry.options.shards)]
        self._followers = [Follower(context, entry, n) for n in range(entry.options.shards)]
        for shard in self._shards:
            shard.door = self
            context.shards.append(shard)
        self._entry = entry
        return entry

    def _created(self) -> TopicEntry:
        """The catalog's entry; the topic is created with default options if need be."""
        entry = self._entry
        if entry is None:
            with self._lock:
                entry = self._entry or self._attach(self._store._ensure(self.name))
        return entry

    def _existing(self) -> TopicEntry:
        """The catalog's entry; an error when there is none."""
        self._store._context.require_open()
        entry = self._entry
        if entry is not None:
            return entry
        with self._lock:
            known = self._entry or self._store._lookup(self.name)
            if known is None:
                raise TopicNotFound(
                    f"no topic {self.name!r} in {self._store.path}; "
                    f"{nearest(self.name, list(self._store))}. Appending would create it."
                )
            return known if known is self._entry else self._attach(known)

    @property
    def options(self) -> TopicOptions:
        """The topic's options, as the catalog has them."""
        return self._existing().options

    @property
    def shards(self) -> int:
        return self._existing().options.shards

    def shard_of(self, key: bytes | str) -> int:
        """The shard that records with this key go to."""
        checked = intake.key_of(key)
        assert checked is not None
        return intake.fnv1a(checked) % self.shards

    # ---- writing -------------------------------------------------------------------------

    def append(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        tag: str | None = None,
        node: str | None = None,
        headers: dict[str, bytes] | None = None,
        timestamp: Any = None,
        wait: bool | float = False,
    ) -> int:
        """Append one record and return its offset.

        The record is buffered and pending: it is written with the next full buffer, after the
        linger, by `sync`, by `close`. With wait=True (or a number of seconds) the call returns
        when the topic's commit class is met. A call that raises has not accepted the record.
        """
        buffer = self._buffer
        if (
            buffer.owner == get_ident()
            and type(value) is bytes
            and len(value) <= SMALL_RECORD_BYTES
            and key is None
            and tag is None
            and node is None
            and headers is None
            and timestamp is None
            and wait is False
        ):
            row = len(buffer)
            if row < buffer.limit:
                buffer.append(value)
                if self._buffer is buffer:
                    return buffer.base + row
                return self._append_late(buffer, value)
        return self._append(value, key, tag, node, headers, timestamp, wait)

    def _limit(self) -> int:
        """The largest value that this topic takes, also when it has yet to be made."""
        entry = self._entry
        return entry.options.max_record_bytes if entry else self._store._context_limit(self)

    def _nothing_appended(self) -> Span:
        made = self._entry is not None or self._store._lookup(self.name) is not None
        return Span(0, self.end() if made else 0, 0)

    def append_nowait(
        self, value: bytes | str, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
    ) -> int:  # fmt: skip
        """As `append`, but raises WouldBlock instead of waiting for the disk or for a lock."""
        context = self._store._context
        context.require_writable()
        if context.gauge.over:
            raise WouldBlock(
                f"{context.gauge.bytes} bytes wait for the disk "
                f"(max_unflushed_bytes={context.gauge.limit}); try again, or use append, which waits"
            )
        value = intake.value_of(value, self._limit())
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        self._created()
        shard = self._shard_for(extra[0] if extra else None)
        offset = self._buffer_one(shard, value, extra, waiting=False)
        return offset if len(self._shards) == 1 else Offset(offset, shard.number)

    @property
    def ready(self) -> bool:
        """Whether every shard is open for writing, so that `append_nowait` touches no file."""
        return bool(self._shards) and all(shard.writing for shard in self._shards)

    def _append_late(self, buffer: Buffer, value: bytes) -> int:
        """The buffer was drained while the record went in: find out which came first."""
        shard = self._shards[0]
        with shard.lock:
            row = len(buffer) - 1  # only its owner, this thread, appends to it
            if row < buffer.taken:
                return buffer.base + row
            buffer.pop()
        return self._append(value, None, None, None, None, None, False)

    def _append(
        self, value: Any, key: Any, tag: Any, node: Any, headers: Any, timestamp: Any,
        wait: bool | float,
    ) -> int:  # fmt: skip
        context = self._store._context
        if context.closed or context.forked or context.read_only:
            context.require_writable()
        if wait is not False and wait is not True:
            wait = intake.wait_of(wait)
        limit = self._limit()
        if type(value) is not bytes or len(value) > limit:
            value = intake.value_of(value, limit)  # before the topic is made, if it must be
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        if self._entry is None:
            self._created()
        shard = self._shard_for(extra[0] if extra else None)
        if context.gauge.over:
            self._relieve(shard, wait)
        if wait is not False or not context.options.linger_us:
            offset = self._commit_one(shard, value, extra, wait)
        else:
            offset = self._buffer_one(shard, value, extra)
        return offset if len(self._shards) == 1 else Offset(offset, shard.number)

    def _shard_for(self, key: bytes | None) -> Shard:
        shards = self._shards
        if len(shards) == 1:
            return shards[0]
        if key is not None:
            return shards[intake.fnv1a(key) % len(shards)]
        shard = shards[self._turn % len(shards)]
        if shard.buffer is CLOSED:  # the last batch went there: the next shard's turn
            self._turn += 1
            shard = shards[self._turn % len(shards)]
        return shard

    def _buffer_one(
        self, shard: Shard, value: bytes, extra: Extra | None, *, waiting: bool = True
    ) -> int:
        """Put a record in the shard's buffer; flushes first when it is full."""
        me = get_ident()
        large = len(value) if len(value) > SMALL_RECORD_BYTES else 0
        if extra is not None:
            large += intake.size_of(extra)
        if not shard.lock.acquire(blocking=waiting):
            raise WouldBlock("the shard is being written; try again, or use append, which waits")
        try:
            if shard.poison is not None:
                raise shard._poisoned()
            buffer = shard.buffer
            full = buffer is not CLOSED and (
                len(buffer) >= buffer.limit or buffer.bytes + large > BUFFER_BYTES
            )
            if full or shard.trouble is not None:
                if not waiting:
                    raise WouldBlock("the buffer is full; try again, or use append, which waits")
                shard._flush()
                shard.context.background.sync_soon(shard)
                buffer = shard.buffer
            if buffer is CLOSED:
                shard.open_for_writing()
                buffer = self._fresh_buffer(shard, me)
            elif buffer.owner not in (0, me):
                buffer = self._share(shard)
            row = len(buffer)
            if extra is not None:
                buffer.extras[row] = extra
            buffer.bytes += large
            buffer.append(value)
            return buffer.base + row
        finally:
            shard.lock.release()

    def _fresh_buffer(self, shard: Shard, me: int) -> Buffer:
        # the lock-free way in compares with SMALL_RECORD_BYTES only
        alone = len(self._shards) == 1 and self._limit() >= SMALL_RECORD_BYTES
        if self._shared:
            self._shared -= 1
            alone = False
        buffer = shard._open_buffer(me if alone else 0)
        if alone:
            self._buffer = buffer
        shard.context.background.linger(shard, buffer)
        return buffer

    def _share(self, shard: Shard) -> Buffer:
        """A second thread appends: from here on everybody takes the lock, for a while."""
        self._shared = SHARED_FLUSHES
        old = shard.buffer
        opened = old.opened
        values, extras = shard._drain()
        buffer = shard._open_buffer(0)
        buffer.extend(values)
        buffer.extras, buffer.bytes, buffer.opened = extras, old.bytes, opened
        shard.context.background.linger(shard, buffer)
        return buffer

    def _commit_one(
        self, shard: Shard, value: bytes, extra: Extra | None, wait: bool | float
    ) -> int:
        extras = {0: extra} if extra is not None else {}
        if shard.durability == "fsync" and wait is not False:
            timeout = None if wait is True else float(wait)
            return shard.context.committer.append(shard, [value], extras, timeout)
        now = shard.context.clock.now_us()
        if extra is None:
            return self._write(shard, [one(value, now)])
        return self._write(shard, encode([value], extras, now))

    def _write(self, shard: Shard, bodies: list[Body]) -> int:
        """Write bodies behind what is buffered; the commit class's sync is left to others."""
        with shard.lock:
            if shard.buffer is not CLOSED:
                shard._flush()
            first = shard._write(bodies)
        if shard.synced_later:
            shard.context.background.sync_soon(shard)
        return first

    def _relieve(self, shard: Shard, wait: bool | float) -> None:
        """Too much waits for the disk: wait for it, here and now."""
        context = shard.context
        deadline = context.clock.monotonic() + float(wait) if wait and wait is not True else None
        context.committer.make_durable(context.shards)
        if deadline is not None and context.clock.monotonic() > deadline and context.gauge.over:
            raise CommitTimeout(f"the disk did not keep up within {wait} s; not accepted")

    def append_many(self, records: Iterable[Any], wait: bool | float = False) -> Span | Spans:
        """Append records (bytes, text or Record) as one atomic batch, written when this returns.

        Keys that belong to several shards spread the batch: then each shard's part is atomic,
        and the result is one Span a shard.
        """
        context = self._store._context
        context.require_writable()
        given, wait, limit = intake.batch_of(records), intake.wait_of(wait), self._limit()
        if not given:
            return self._nothing_appended()
        now = context.clock.now_us()
        if len(given) > FEW:
            array = intake.plain_column(given, limit)
            if array is not None:
                self._created()
                return self._append_columns([Columns(array, now)], wait, atomic=True)
        values, extras = intake.many(given, limit)
        self._created()
        if len(self._shards) == 1 or not any(extra[0] for extra in extras.values()):
            shard = self._shard_for(None)
            return self._append_bodies(shard, encode(values, extras, now), wait, atomic=True)
        return self._append_columns([to_columns(values, extras, now)], wait, atomic=True)

    def append_arrow(self, data: Any, wait: bool | float = False) -> Span | Spans:
        """Append Arrow data: a column `value`, and any of key, tag, node, headers, timestamp.

        Nothing is done per record in Python. What fits in one segment is one atomic batch;
        larger tables are written in parts, each atomic.
        """
        context = self._store._context
        context.require_writable()
        batches, wait, limit = intake.arrow_batches(data), intake.wait_of(wait), self._limit()
        now = context.clock.now_us()
        columns = [
            intake.arrow_columns(batch, limit, now) for batch in batches if batch.num_rows
        ]
        if not columns:
            return self._nothing_appended()
        self._created()
        return self._append_columns(columns, wait, atomic=False)

    def _append_columns(
        self, columns: list[Columns], wait: bool | float, *, atomic: bool
    ) -> Span | Spans:
        count = len(self._shards)
        if count == 1:
            bodies = [body for part in columns for body in encode_arrow(part)]
            return self._append_bodies(self._shards[0], bodies, wait, atomic)
        turn = self._shard_for(None).number
        self._turn += 1
        bodies_of: dict[int, list[Body]] = {}
        for part in columns:
            for number, rows in intake.by_shard(part, count, turn):
                bodies_of.setdefault(number, []).extend(encode_arrow(rows))
        for bodies in bodies_of.values():
            self._check_fits(bodies, atomic)
        spans = [
            self._append_bodies(self._shards[number], bodies, wait, atomic)
            for number, bodies in sorted(bodies_of.items())
        ]
        return spans[0] if len(spans) == 1 else Spans(spans)

    def _check_fits(self, bodies: list[Body], atomic: bool) -> int:
        room = self._created().options.segment_bytes - 4096
        size = sum(body.size + 64 for body in bodies)
        if atomic and size > max(room, self._created().options.max_record_bytes + 4096):
            raise BatchTooLarge(
                f"a batch of {size} bytes does not fit in one segment of "
                f"{self._created().options.segment_bytes}; append it in parts, or create the "
                "topic with a larger segment_bytes"
            )
        return room

    def _append_bodies(
        self, shard: Shard, bodies: list[Body], wait: bool | float, atomic: bool
    ) -> Span:
        room = self._check_fits(bodies, atomic)
        if shard.context.gauge.over:
            self._relieve(shard, wait)
        first, total = -1, 0
        group: list[Body] = []
        size = 0
        for body in bodies:
            if group and size + body.size + 64 > room:
                at = self._write(shard, group)
                first = at if first < 0 else first
                group, size = [], 0
                if shard.context.gauge.over:
                    self._relieve(shard, wait)
            group.append(body)
            size += body.size + 64
            total += body.count
        at = self._write(shard, group)
        first = at if first < 0 else first
        if wait is not False and shard.durability == "fsync":
            self._settle([shard])
        return Span(shard.number, first, total)

    def batch(self) -> BatchWriter:
        """Collect records and append them as one atomic batch when the `with` block ends."""
        return BatchWriter(self)

    def flush(self) -> None:
        """Write what is buffered. Other processes can see it; power loss may still take it."""
        self._store._context.require_writable()
        for shard in self._shards:
            with shard.lock:
                wrote = shard._flush()
            if wrote and shard.synced_later:
                shard.context.background.sync_soon(shard)

    def sync(self) -> None:
        """Make everything appended so far durable; when this returns it survives power loss."""
        self._store._context.require_writable()
        for shard in self._shards:
            with shard.lock:
                shard._flush()
        self._settle(self._shards)

    def _settle(self, shards: list[Shard]) -> None:
        problems = self._store._context.committer.make_durable(
            shard for shard in shards if shard.writing
        )
        for problem in problems.values():
            raise problem

    # ---- reading -------------------------------------------------------------------------

    def _view(self, number: int) -> View:
        """The freshest view of a shard: our own writer's, or what another process published."""
        shard = self._shards[number]
        if shard.writing or shard.durability == "ephemeral":
            return shard
        follower = self._followers[number]
        follower.refresh()
        return follower

    def _known_view(self, number: int, offset: int) -> View:
        """A view that has this offset: what is visible once stays so, and need not be looked up."""
        self._existing()
        if type(number) is int and 0 <= number < len(self._followers):
            follower = self._followers[number]
            if 0 <= offset < follower.visible and not self._shards[number].writing:
                return follower
        return self._views(number)[0]

    def _views(self, shard: int | None) -> list[View]:
        count = self._existing().options.shards
        if shard is None:
            return [self._view(number) for number in range(count)]
        if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < count:
            raise InvalidOption(f"shard={shard}: topic {self.name!r} has shards 0..{count - 1}")
        return [self._view(shard)]

    def batches(
        self,
        start: Any = "earliest",
        stop: Any = None,
        *,
        shard: int | None = None,
        max_bytes: int = BATCH_BYTES,
        max_records: int = 0,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
    ) -> Iterator[Batch]:
        """The records from `start` to `stop` (or to the end as it is now), as Arrow batches.

        Each shard is read in turn; a position is taken in each shard by itself.
        """
        self._existing()
        now = self._store._context.clock.now_us()
        begin = positions.parse(start, now)
        finish = None if stop is None else positions.parse(stop, now)
        check_gaps(gaps)
        check_count("max_bytes", max_bytes, 1)
        check_count("max_records", max_records, 0)
        ranges = self._ranges(begin, finish, shard, consistency)
        return self._batches(ranges, max_bytes, max_records, gaps)

    def _ranges(
        self, begin: positions.Position, finish: positions.Position | None, shard: int | None,
        consistency: Consistency = "eventual",
    ) -> list[Range]:  # fmt: skip
        """What two positions mean in each shard, as things are now: shard, first offset, end."""
        check_consistency(consistency)
        ranges = []
        for view in self._views(shard):
            end = end_of(view, consistency)
            if finish is not None:
                end = min(end, resolve(view, finish))
            ranges.append(Range(view.number, resolve(view, begin), end))
        return ranges

    def _batches(
        self, ranges: list[Range], max_bytes: int, max_records: int, gaps: Gaps
    ) -> Iterator[Any]:
        for number, first, end in ranges:
            yield from read_batches(
                self._view(number), first, end,
                max_bytes=max_bytes, max_records=max_records, gaps=gaps,
            )  # fmt: skip

    def read(
        self,
        start: Any = "earliest",
        stop: Any = None,
        *,
        shard: int | None = None,
        limit: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
    ) -> Iterator[Record]:
        """The records from `start` to the end as it is now, one by one."""
        check_limit(limit)
        batches = self.batches(start, stop, shard=shard, gaps=gaps, consistency=consistency)
        return _records(batches, limit)

    def follow(
        self,
        start: Any = "latest",
        *,
        timeout: float | None = None,
        shard: int | None = None,
        limit: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
    ) -> Iterator[Record]:
        """The records from `start` on, and then those to come, as they come.

        Ends when nothing came for `timeout` seconds (never, when None), after `limit` records,
        or when the store is closed.
        """
        check_limit(limit)
        return _records(
            self.follow_batches(
                start, timeout=timeout, shard=shard, gaps=gaps, consistency=consistency
            ),
            limit,
        )

    def follow_batches(
        self,
        start: Any = "latest",
        *,
        timeout: float | None = None,
        shard: int | None = None,
        gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
    ) -> Iterator[Batch]:
        """As `follow`, by batches."""
        self._existing()
        timeout = check_timeout(timeout)
        return self._follow(self.tail(start, shard=shard, gaps=gaps, consistency=consistency), timeout)

    def tail(
        self, start: Any = "latest", *, shard: int | None = None, gaps: Gaps = "raise",
        consistency: Consistency = "eventual",
    ) -> Tail:  # fmt: skip
        """Cursors from `start` on, to be stepped by hand: `follow` without the waiting."""
        self._existing()
        begin = positions.parse(start, self._store._context.clock.now_us())
        check_gaps(gaps)
        check_consistency(consistency)
        cursors = {view.number: resolve(view, begin) for view in self._views(shard)}
        return Tail(cursors, self._shards, self._view, gaps, consistency)

    def _follow(self, tail: Tail, timeout: float | None) -> Iterator[Any]:
        context = self._store._context
        clock = context.clock
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not context.closed:
            moved = False
            for batch in tail.take():
                moved = True
                yield batch
            if moved:
                deadline = None if timeout is None else clock.monotonic() + timeout
                continue
            left = 3600.0 if deadline is None else deadline - clock.monotonic()
            if left <= 0:
                return
            tail.wait(left)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Slice: ...
    def __getitem__(self, place: int | slice) -> Record | Slice:
        """topic[n]: one record (negative from the end). topic[a:b]: a lazy slice."""
        if isinstance(place, slice):
            if place.step is not None:
                raise InvalidOption("a slice of a topic has no step")
            return self.slice(place.start, place.stop)
        return self.get(place)

    def slice(self, start: Any = None, stop: Any = None, *, shard: int | None = None,
              gaps: Gaps = "raise") -> Slice:  # fmt: skip
        """A lazy part of the topic, for iterating and for polars, pandas, duckdb and pyarrow."""
        self._existing()
        check_gaps(gaps)
        context = self._store._context
        for place in (start, stop):
            positions.parse(place, context.clock.now_us())

        def settle() -> list[Range]:
            context.require_open()
            now = context.clock.now_us()
            finish = None if stop is None else positions.parse(stop, now)
            return self._ranges(positions.parse(start, now), finish, shard)

        def read(ranges: list[Range]) -> Iterator[Batch | Gap]:
            return self._batches(ranges, BATCH_BYTES, 0, gaps)

        def count(ranges: list[Range]) -> int:
            return sum(count_records(self._view(number), a, b) for number, a, b in ranges)

        return Slice(settle, read, count, f"<slice {start!r}:{stop!r} of {self!r}>")

    def get(self, offset: int, shard: int = 0) -> Record:
        """The record with this offset; negative offsets count from the end."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidOption(f"an offset is a whole number, not {offset!r}")
        view = self._known_view(shard, offset)
        place = offset if offset >= 0 else view.visible + offset
        if not earliest_of(view) <= place < view.visible:
            raise OffsetOutOfRange(
                f"topic {self.name!r} shard {shard} has offsets {earliest_of(view)}.."
                f"{view.visible - 1}, not {offset}"
            )
        record = read_one(view, place)
        if record is not None:
            return record
        for batch in read_batches(view, place, place + 1, max_records=1):
            if isinstance(batch, Batch):
                return batch.records()[0]
        raise OffsetOutOfRange(f"offset {offset} is not there yet")

    # ---- state ---------------------------------------------------------------------------

    def end(self, shard: int = 0) -> int:
        """The offset behind the last record that readers see."""
        return self._views(shard)[0].visible

    def earliest(self, shard: int = 0) -> int:
        """The first offset that is still there."""
        return earliest_of(self._views(shard)[0])

    def durable(self, shard: int = 0) -> int:
        """The offset behind the last record that survives power loss."""
        return self._views(shard)[0].durable

    def __len__(self) -> int:
        """How many records readers see, over all shards."""
        return sum(view.visible - earliest_of(view) for view in self._views(None))

    def counters(self, shard: int = 0) -> dict[str, int]:
        """Every counter of a shard's page, also while another process writes it."""
        self._views(shard)
        page = self._shards[shard].counters or self._followers[shard]._page()
        return page.as_dict() if page is not None else {}


class BatchWriter:
    """Collects records for one atomic batch. The span is in `.span` afterwards."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._records: list[Any] = []
        self.span: Span | Spans | None = None

    def append(
        self, value: bytes | str, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
    ) -> None:  # fmt: skip
        """Add a record to the batch. Nothing is written yet."""
        checked = intake.value_of(value, self._topic._limit())
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        self._records.append(Record(checked, *extra) if extra is not None else checked)

    def __len__(self) -> int:
        return len(self._records)

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None and self._records:
            self.span = self._topic.append_many(self._records)
        self._records = []


def _records(batches: Iterator[Any], limit: int | None) -> Iterator[Any]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        if isinstance(batch, Gap):
            yield batch
            continue
        records = batch.records()
        if left is not None:
            records = records[:left]
            left -= len(records)
        yield from records
        if left == 0:
            return
