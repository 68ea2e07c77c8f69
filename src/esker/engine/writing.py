"""Writing to a topic.

    append ── buffer ── (full, linger, sync) ──┐
    append_many, append_arrow, batch() ────────┴─ Shard._write ─ LogSegment.append ─ pwrite
    append(wait=True), class fsync ─ Committer.append ─ one round for all who wait

A lone `append` is the hottest path there is, so it takes no lock: see buffer.py for why that is
right. Everything else holds the lock of one shard at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock, get_ident
from types import TracebackType
from typing import Any

from esker import positions
from esker.engine import intake, once, processes
from esker.engine.buffer import CLOSED, Buffer
from esker.engine.erasing import check_match, erase
from esker.engine.handle import Handle
from esker.engine.intake import encode, encode_arrow
from esker.engine.reader import resolve
from esker.engine.removal import forget_before
from esker.engine.retention import refuse
from esker.engine.rewriting import reclaim
from esker.engine.shard import Shard
from esker.errors import (
    BatchTooLarge,
    CommitTimeout,
    EskerError,
    InvalidOption,
    OffsetOutOfRange,
    WouldBlock,
    WriterBusy,
)
from esker.format.columns import FEW, KEYS, Body, Columns, Extra, one, to_columns
from esker.format.frame import HEADER_SIZE
from esker.format.once import Mark, Place
from esker.options import BUFFER_BYTES, SMALL_RECORD_BYTES
from esker.records import Offset, Record, Span, Spans, Value

SHARED_FLUSHES = 16  # how long a buffer stays without an owner after two threads met in it


class _AtOnce:
    """Takes a lock if it is free, and says so if it is not."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise WouldBlock("the shard is being written; try again, or use append, which waits")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Writing(Handle):
    """Everything that appends."""

    def append(
        self,
        value: Value,
        key: bytes | str | None = None,
        tag: str | None = None,
        node: str | None = None,
        headers: dict[str, bytes] | None = None,
        timestamp: Any = None,
        wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> int:
        """Append one record and return its offset. Text is stored as UTF-8, a dict as JSON.

        The record is buffered and pending: it is written with the next full buffer, after the
        linger, by `sync`, by `close`. With wait=True (or a number of seconds) the call returns
        when the topic's commit class is met. A call that raises has not accepted the record.
        With an idempotency key it is written at once; a retry with the same key, within the
        topic's dedupe window, returns the first offset and appends nothing.
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
            and idempotency_key is None
        ):
            row = len(buffer)
            if row < buffer.limit:
                buffer.append(value)
                if self._buffer is buffer:
                    return buffer.base + row
                return self._append_late(buffer, value)
        if idempotency_key is not None:
            extra = (key, tag, node, headers, timestamp)
            return once.append(self, idempotency_key, value, extra, wait)
        return self._append(value, key, tag, node, headers, timestamp, wait)

    def _nothing_appended(self) -> Span:
        made = self._entry is not None or self._store._lookup(self.name) is not None
        return Span(0, self.end() if made else 0, 0)

    def append_nowait(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
    ) -> int:  # fmt: skip
        """As `append`, but raises WouldBlock instead of waiting for the disk or for a lock."""
        context = self._store._context
        context.require_writable()
        if context.gauge.over:
            raise WouldBlock(
                f"{context.gauge.bytes} bytes wait for the disk "
                f"(max_unflushed_bytes={context.gauge.limit}); try again, or use append: it waits"
            )
        value = intake.value_of(value, self._limit())
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        self._created()
        shard = self._shard_for(extra[0] if extra else None, looking=False)
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
        if context.closing or context.forked or context.read_only:
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
        try:
            if wait is not False or not context.options.linger_us:
                offset = self._commit_one(shard, value, extra, wait)
            else:
                offset = self._buffer_one(shard, value, extra)
        except WriterBusy as busy:
            if key is None and processes.have_another(self):
                return self._append(value, key, tag, node, headers, timestamp, wait)
            bodies = encode([value], {0: extra} if extra else {}, context.clock.now_us())
            offset = processes.handed_over(self, shard, bodies, wait, busy)
        return offset if len(self._shards) == 1 else Offset(offset, shard.number)

    def _shard_for(self, key: bytes | None, *, looking: bool = True) -> Shard:
        shards = self._shards
        if len(shards) == 1:
            return shards[0]
        if key is not None:
            return shards[intake.fnv1a(key) % len(shards)]
        shard = shards[self._turn % len(shards)]
        if shard.buffer is CLOSED:  # the last batch went there: the next shard's turn
            return processes.next_shard(self, looking)
        return shard

    def _buffer_one(
        self, shard: Shard, value: bytes, extra: Extra | None, *, waiting: bool = True
    ) -> int:
        """Put a record in the shard's buffer; flushes first when it is full."""
        me = get_ident()
        large = len(value) if len(value) > SMALL_RECORD_BYTES else 0
        if shard.refusing:  # everything counts, with its entries in the columns
            large = len(value) + 12
        if extra is not None:
            large += intake.size_of(extra)
        with shard.lock if waiting else _AtOnce(shard.lock):
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
            if shard.refusing:
                refuse(shard, 1, large)
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

    def _fresh_buffer(self, shard: Shard, me: int) -> Buffer:
        # the lock-free way in compares with SMALL_RECORD_BYTES only
        alone = len(self._shards) == 1 and self._limit() >= SMALL_RECORD_BYTES
        if shard.refusing:
            alone = False  # every record is held against the cap
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
        try:
            values, extras = shard._drain()
            buffer = shard._open_buffer(0)
            buffer.extend(values)
            buffer.extras, buffer.bytes, buffer.opened = extras, old.bytes, opened
            shard.context.background.linger(shard, buffer)
        except BaseException:
            shard._put_back(old)
            raise
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
            return self._write(shard, [one(value, now)], now)
        return self._write(shard, encode([value], extras, now), now)

    def _write(self, shard: Shard, bodies: list[Body], now: int) -> int:
        """Write bodies behind what is buffered; the commit class's sync is left to others.

        What is buffered gets the time `now` of this call, so that times do not fall.
        """
        try:
            with shard.lock:
                return self._write_behind(shard, bodies, now)
        finally:  # also when it failed: what was buffered may be written
            if shard.synced_later:
                shard.context.background.sync_soon(shard)

    def _write_behind(self, shard: Shard, bodies: list[Body], now: int) -> int:
        """The same for who holds the lock."""
        if shard.buffer is not CLOSED:
            shard._flush(now)
        if shard.refusing:
            refuse(shard, *_weight(bodies))
        return shard._write(bodies)

    def _append_elsewhere(
        self, shard: Shard, mark: Mark, bodies: once.Bodies, wait: bool | float, busy: WriterBusy
    ) -> Place:
        return processes.append_elsewhere(self, shard, mark, bodies, wait, busy)

    def _relieve(self, shard: Shard, wait: bool | float) -> None:
        """Too much waits for the disk: wait for it, here and now."""
        context = shard.context
        deadline = context.clock.monotonic() + float(wait) if wait and wait is not True else None
        began = context.clock.monotonic()
        context.committer.make_durable(context.shards)
        context.committer.waits.held += context.clock.monotonic() - began
        if deadline is not None and context.clock.monotonic() > deadline and context.gauge.over:
            raise CommitTimeout(f"the disk did not keep up within {wait} s; not accepted")

    def delete(
        self, before: Any = None, shard: int | None = None, *, tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> int:  # fmt: skip
        """Delete the records before a position, for good; returns how many they were.

        `before` is a position as everywhere: an offset, "@-7d", "latest" for all. It is taken as
        of now, in each shard by itself; an offset needs a shard when there are several. With `tag`
        or `tag_prefix` only the records go that carry that tag, or one that begins like that; then
        `before` may be left out, for all that are there now. Readers are not told of a gap. The
        call returns when the deletion is durable; space is given back later: what lies before a
        position by whole segments, what carries a tag when its segment is rewritten (`reclaim`).
        """
        context = self._store._context
        context.require_writable()
        match = check_match(tag, tag_prefix)
        if before is None and match is None:
            raise InvalidOption('delete what? Give a position ("latest" for all), or a tag')
        position = positions.parse("latest" if before is None else before, context.clock.now_us())
        count = self._existing().options.shards
        if position.kind == "offset" and shard is None and count > 1:
            raise InvalidOption(
                f"before={before!r}: topic {self.name!r} has {count} shards, each with offsets "
                "of its own; say which with shard=N, or give a time or latest"
            )
        self.sync()  # no crash may take the log back to before its beginning
        gone = 0
        for view in self._views(shard):
            at, end = self._shards[view.number], resolve(view, position)
            gone += forget_before(at, end) if match is None else erase(at, match, end)
        return gone

    def reclaim(self, shard: int | None = None) -> int:
        """Take the bytes of deleted records off the disk now; returns how many it gave back.

        The background does so by itself where at least half of a segment is deleted. This does it
        for every segment in which a deleted record takes room, and ends the log if there is one in
        it. What was deleted by position goes with whole segments, at the time of the deletion.
        """
        self._store._context.require_writable()
        self._existing()
        self.sync()
        return sum(reclaim(self._shards[view.number]) for view in self._views(shard))

    def append_many(
        self, records: Iterable[Any], wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> Span | Spans:  # fmt: skip
        """Append records (values or Record) as one atomic batch, written when this returns.

        Keys that belong to several shards spread the batch: then each shard's part is atomic,
        and the result is one Span a shard. A retry with the same idempotency key appends what is
        not there yet and returns the first offsets.
        """
        if idempotency_key is not None:
            spans = once.append_many(self, idempotency_key, records, wait)
            return _told(spans) if spans else self._nothing_appended()
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
                return self._append_columns([Columns(array, now)], wait, now, atomic=True)
        values, extras = intake.many(given, limit)
        self._created()
        if len(self._shards) == 1 or not any(extra[0] is not None for extra in extras.values()):
            shard = self._shard_for(None)
            bodies = encode(values, extras, now)
            return _told(self._append_bodies(shard, bodies, wait, now, atomic=True))
        columns = to_columns(values, extras, now)
        return self._append_columns([columns], wait, now, atomic=True)

    def append_arrow(self, data: Any, wait: bool | float = False) -> Span | Spans:
        """Append Arrow data: a column `value`, and any of key, tag, node, headers, timestamp.

        Nothing is done per record in Python. What fits in one segment is one atomic batch;
        larger tables are written in parts, each atomic.
        """
        context = self._store._context
        context.require_writable()
        batches, wait, limit = intake.arrow_batches(data), intake.wait_of(wait), self._limit()
        now = context.clock.now_us()
        columns = [intake.arrow_columns(batch, limit, now) for batch in batches if batch.num_rows]
        if not columns:
            return self._nothing_appended()
        self._created()
        return self._append_columns(columns, wait, now, atomic=False)

    def _append_columns(
        self, columns: list[Columns], wait: bool | float, now: int, *, atomic: bool
    ) -> Span | Spans:
        count = len(self._shards)
        if count == 1:
            bodies = [body for part in columns for body in encode_arrow(part)]
            return _told(self._append_bodies(self._shards[0], bodies, wait, now, atomic))
        keyless = any(part.keys is None or part.keys.null_count for part in columns)
        turn = self._shard_for(None).number if keyless else 0  # no shard is taken for nobody
        bodies_of: dict[int, list[Body]] = {}
        for part in columns:
            for number, rows in intake.by_shard(part, count, turn):
                bodies_of.setdefault(number, []).extend(encode_arrow(rows))
        for number, bodies in bodies_of.items():
            self._check_fits(bodies, atomic)
            self._refuse(self._shards[number], bodies)
        return _told(
            [
                span
                for number, bodies in sorted(bodies_of.items())
                for span in self._append_bodies(self._shards[number], bodies, wait, now, atomic)
            ]
        )

    def _refuse(self, shard: Shard, bodies: list[Body]) -> None:
        """All of a call is refused if a shard has no room for its part."""
        if shard.refusing:
            with shard.lock:
                refuse(shard, *_weight(bodies))

    def _check_fits(self, bodies: list[Body], atomic: bool) -> list[list[Body]]:
        """The bodies in groups that fit in one segment each."""
        options = self._created().options
        room = options.segment_bytes - 4096
        size = 0
        for body in bodies:
            size += body.size + HEADER_SIZE
        if size <= room:
            return [bodies]
        if atomic and size > options.max_record_bytes + 4096:
            raise BatchTooLarge(
                f"a batch of {size} bytes does not fit in one segment of "
                f"{options.segment_bytes}; append it in parts, or create the "
                "topic with a larger segment_bytes"
            )
        return _groups(bodies, room)

    def _append_bodies(
        self, shard: Shard, bodies: list[Body], wait: bool | float, now: int, atomic: bool
    ) -> list[Span]:
        """Write bodies in as few atomic groups as can be; one Span unless others came between."""
        groups = self._check_fits(bodies, atomic)
        if shard.context.gauge.over:
            self._relieve(shard, wait)
        self._refuse(shard, bodies)
        spans: list[Span] = []
        for group in groups:
            if spans and shard.context.gauge.over:
                self._relieve(shard, wait)
            try:
                first = self._write(shard, group, now)
            except WriterBusy as busy:
                keyed = any(body.bits & KEYS for body in bodies)
                if not keyed and not spans and processes.have_another(self):
                    other = processes.next_shard(self)
                    return self._append_bodies(other, bodies, wait, now, atomic)
                first = processes.handed_over(self, shard, group, wait, busy)
            count = sum(body.count for body in group)
            if spans and spans[-1].next == first:  # nobody came between
                first, count = spans[-1].first, spans.pop().count + count
            spans.append(Span(shard.number, first, count))
        if wait is not False and shard.durability == "fsync":
            self._settle([shard])
        return spans

    def batch(
        self, wait: bool | float = False, idempotency_key: bytes | str | None = None
    ) -> BatchWriter:
        """Collect records and append them as one atomic batch when the `with` block ends."""
        return BatchWriter(self, wait, idempotency_key)

    def producer(self, name: str, shard: int | None = None) -> once.Producer:
        """Somebody who numbers his batches, so that each of them is appended once."""
        return once.Producer(self, name, shard)

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
        problems: list[EskerError] = []
        for shard in self._shards:
            with shard.lock:
                try:
                    shard._flush()
                except EskerError as problem:
                    problems.append(problem)
        self._settle(self._shards)
        for first in problems:
            raise first

    def wait_durable(self, offset: int, shard: int = 0) -> None:
        """Wait until the record with this offset, appended before, survives power loss."""
        self._store._context.require_writable()
        writer = self._shards[shard] if 0 <= shard < len(self._shards) else None
        if writer is None:
            raise InvalidOption(
                f"shard={shard}: topic {self.name!r} has {len(self._shards)} shards"
            )
        if offset < self._view(shard).durable:
            return
        with writer.lock:
            writer._flush()
            if offset >= writer.next:
                if writer.synced_later:
                    writer.context.background.sync_soon(writer)
                raise OffsetOutOfRange(
                    f"offset {offset} was not appended; the next is {writer.next}"
                )
        self._settle([writer])

    def _settle(self, shards: list[Shard]) -> None:
        context = self._store._context
        began = context.clock.monotonic()
        problems = context.committer.make_durable(shard for shard in shards if shard.concerned)
        context.committer.waits.synced += context.clock.monotonic() - began
        for problem in problems.values():
            raise problem


def _groups(bodies: list[Body], room: int) -> list[list[Body]]:
    """Bodies in groups that fit in one segment each; a group is written as one atomic batch."""
    groups: list[list[Body]] = [[]]
    size = 0
    for body in bodies:
        if groups[-1] and size + body.size + HEADER_SIZE > room:
            groups.append([])
            size = 0
        groups[-1].append(body)
        size += body.size + HEADER_SIZE
    return groups


def _weight(bodies: list[Body]) -> tuple[int, int]:
    return sum(body.count for body in bodies), sum(body.size for body in bodies)


def _told(spans: list[Span]) -> Span | Spans:
    return spans[0] if len(spans) == 1 else Spans(spans)


class BatchWriter:
    """Collects records for one atomic batch. The span is in `.span` afterwards."""

    def __init__(
        self, topic: Writing, wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._wait = wait
        self._once = idempotency_key if idempotency_key is None else once.key_of(idempotency_key)
        self._records: list[Any] = []
        self.span: Span | Spans | None = None

    def append(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
    ) -> None:  # fmt: skip
        """Add a record to the batch. Nothing is written yet."""
        checked = intake.value_of(value, self._topic._limit())
        extra = intake.extra_of(key, tag, node, headers, timestamp)
        self._records.append(Record(checked, *extra) if extra is not None else checked)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        state = f"{len(self)} records" if self.span is None else f"written as {self.span!r}"
        return f"<esker batch for {self._topic.name!r}, {state}>"

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None and self._records:
            self.span = self._topic.append_many(self._records, self._wait, self._once)
        self._records = []
