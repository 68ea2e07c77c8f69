"""A store and its topics, whose verbs are awaited; see the room's essay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from esker.aio.groups import AsyncGroup
from esker.aio.queues import AsyncQueue
from esker.aio.routes import AsyncRoute
from esker.aio.waiting import news
from esker.engine import intake
from esker.engine.batch import Batch
from esker.engine.committer import Ticket
from esker.engine.identity import Mode
from esker.engine.maintenance import Maintenance
from esker.engine.once import Producer
from esker.engine.reader import check_limit, check_timeout
from esker.engine.reading import wanted_of
from esker.engine.recovery import Recovery
from esker.engine.retention import Eviction
from esker.engine.shard import Shard
from esker.engine.slices import Slice
from esker.engine.store import Store, open_store
from esker.engine.tiering import Tier, Tiered
from esker.engine.topic import Topic
from esker.errors import CommitTimeout, WouldBlock, WriterBusy
from esker.groups.describe import GroupStatus
from esker.options import TopicOptions
from esker.records import Offset, Record, Span, Spans, Value
from esker.routes.status import RouteStatus

if TYPE_CHECKING:
    from esker.engine.archiving import Archived

T = TypeVar("T")
THREADS = 4
REMOTE_THREADS = 16  # for a store on a server: they wait for the network, not for a disk
WAITING_MAX = 512  # who follows a topic on a server holds a thread while he waits
_END: Any = object()


class _Opening:
    """What `aopen` returns: await it, or enter it."""

    def __init__(self, opening: Callable[[], Store], remote: bool) -> None:
        self._opening = opening
        self._remote = remote
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        pool = ThreadPoolExecutor(REMOTE_THREADS if self._remote else THREADS, "esker-aio")
        try:
            store = await asyncio.get_running_loop().run_in_executor(pool, self._opening)
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return AsyncStore(store, pool)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._store is not None:
            await self._store.close()


def aopen(path: str | PathLike[str], mode: Mode = "rw", **options: Any) -> _Opening:
    """As `esker.open`, for asyncio: `async with esker.aopen("data") as store`."""
    remote = isinstance(path, str) and "://" in path
    return _Opening(lambda: open_store(path, mode, **options), remote)


class AsyncStore:
    """A store whose verbs are awaited."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._topics: dict[str, AsyncTopic] = {}
        self._rounds = _Rounds(self)
        self._waiting: ThreadPoolExecutor | None = None
        # A store on a server has the verbs of one in a directory, and none of its insides.
        self._local = isinstance(store, Store)
        place: Any = store._context if self._local else store
        self._require_open: Callable[[], None] = place.require_open
        self._is_closed: Callable[[], bool] = lambda: place.closed
        self.under_way = 0  # calls in the pool of threads, or waiting for one of them

    def __repr__(self) -> str:
        return f"<async {self._store!r}>"

    def __getitem__(self, name: str) -> AsyncTopic:
        """As `store[name]`."""
        return self._open_already(name) or self._twin(self._store[name])

    async def _topic(self, name: str) -> AsyncTopic:
        """As `store[name]`, for who must not wait: a thread that makes a topic has all of them."""
        return self._open_already(name) or self._twin(await self._run(lambda: self._store[name]))

    def _open_already(self, name: str) -> AsyncTopic | None:
        topic = self._topics.get(name)
        return None if topic is None or topic._topic._gone else topic  # deleted, by whomever

    def _twin(self, topic: Topic) -> AsyncTopic:
        twin = self._topics.get(topic.name)
        if twin is None or twin._topic is not topic:
            twin = self._topics[topic.name] = AsyncTopic(self, topic)
        return twin

    async def create(self, name: str, *, exist_ok: bool = False, **options: Any) -> AsyncTopic:
        """As `Store.create`."""
        made = await self._run(lambda: self._store.create(name, exist_ok=exist_ok, **options))
        return self._twin(made)

    async def alter(self, name: str, **options: Any) -> AsyncTopic:
        """As `Store.alter`."""
        return self._twin(await self._run(lambda: self._store.alter(name, **options)))

    async def delete(self, name: str, *, missing_ok: bool = False, if_empty: bool = False) -> None:
        """As `Store.delete`."""
        how = {"missing_ok": missing_ok, "if_empty": if_empty}
        try:
            await self._run(lambda: self._store.delete(name, **how))
        finally:
            if self._open_already(name) is None:
                self._topics.pop(name, None)

    async def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        return await self._run(lambda: list(self._store))

    async def flush(self) -> None:
        """As `Store.flush`."""
        await self._run(self._store.flush)

    async def sync(self) -> None:
        """As `Store.sync`."""
        await self._run(self._store.sync)

    @property
    def recovery(self) -> Recovery:
        """As `Store.recovery`."""
        return self._store.recovery

    @property
    def path(self) -> str:
        """As `Store.path`."""
        return self._store.path

    async def maintenance(self) -> Maintenance:
        """As `Store.maintenance`."""
        return await self._run(self._store.maintenance)

    async def pause_maintenance(self) -> None:
        """As `Store.pause_maintenance`."""
        await self._run(self._store.pause_maintenance)

    async def resume_maintenance(self) -> None:
        """As `Store.resume_maintenance`."""
        await self._run(self._store.resume_maintenance)

    async def tier(
        self, name: str, to: Tier, before: Any = None, shard: int | None = None
    ) -> Tiered:
        """As `Store.tier`."""
        return await self._run(lambda: self._store.tier(name, to, before, shard))

    async def process_slot(self) -> int:
        """As `Store.process_slot`."""
        return await self._run(lambda: self._store.process_slot)

    async def processes(self) -> dict[int, int]:
        """As `Store.processes`."""
        return await self._run(self._store.processes)

    async def retention_plan(self) -> list[Eviction]:
        """As `Store.retention_plan`."""
        return await self._run(self._store.retention_plan)

    async def retain(self) -> list[Eviction]:
        """As `Store.retain`."""
        return await self._run(self._store.retain)

    def statistics(self) -> dict[str, int]:
        """As `Store.statistics`."""
        return self._store.statistics()

    async def group(
        self, name: str, pattern: str | Sequence[str], start: Any = "earliest", **how: Any
    ) -> AsyncGroup:
        """As `Store.group`."""
        made = await self._run(lambda: self._store.group(name, pattern, start, **how))
        return AsyncGroup(self, made)

    async def groups(self) -> list[GroupStatus]:
        """As `Store.groups`."""
        return await self._run(self._store.groups)

    async def queue(self, name: str, **options: Any) -> AsyncQueue:
        """As `Store.queue`."""
        return AsyncQueue(self, await self._run(lambda: self._store.queue(name, **options)))

    async def route(self, source: str = "", destination: str = "", **how: Any) -> AsyncRoute:
        """As `Store.route`."""
        made = await self._run(lambda: self._store.route(source, destination, **how))
        return AsyncRoute(self, made)

    async def routes(self) -> list[RouteStatus]:
        """As `Store.routes`."""
        return await self._run(self._store.routes)

    async def attach(
        self, writer: str, sequence: int, tickets: Iterable[Any], *, timeout: float = 30.0
    ) -> bool:
        """As `Store.attach`. `Store.stage` writes files: it is for a thread or a process."""
        given = list(tickets)
        return await self._run(lambda: self._store.attach(writer, sequence, given, timeout=timeout))

    async def attached(self, writer: str) -> int | None:
        """As `Store.attached`."""
        return await self._run(lambda: self._store.attached(writer))

    async def close(self) -> None:
        """Write and sync everything; waits for appends that are under way."""
        await self._rounds.idle()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, self._store.close)
        finally:
            await asyncio.to_thread(self._pool.shutdown)  # its threads end with the store
            if self._waiting is not None:
                await asyncio.to_thread(self._waiting.shutdown)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.close()

    async def _run(self, work: Callable[[], T]) -> T:
        self._require_open()
        self.under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self.under_way -= 1

    def _commit_window(self, seconds: float | None) -> None:
        """How long appends are collected before a sync, from now on; None: as the store was opened.

        For who knows that there is more to do than can be done: one sync then serves more appends,
        and each of them takes longer.
        """
        self._rounds.window = seconds or 0.0
        self._store._context.committer.window = seconds

    async def _hold(self, work: Callable[[], T]) -> T:
        """Something that waits long, in a thread that nobody else needs."""
        self._require_open()
        if self._waiting is None:
            self._waiting = ThreadPoolExecutor(WAITING_MAX, "esker-aio-wait")
        return await asyncio.get_running_loop().run_in_executor(self._waiting, work)

    async def _iterate(
        self, make: Callable[[], Iterator[T]], *, holding: bool = False
    ) -> AsyncIterator[T]:
        """An iterator whose every step may touch the disk, stepped in the pool.

        `holding`: or may take long, so that it is given a thread that nobody else needs.
        """
        step: Callable[[Callable[[], Any]], Awaitable[Any]] = self._hold if holding else self._run
        iterator: Iterator[T] | None = None

        def stepped() -> Any:
            nonlocal iterator
            if iterator is None:
                iterator = make()
            return next(iterator, _END)

        while (item := await step(stepped)) is not _END:
            yield item


_Fields = tuple[Any, Any, Any, Any, Any]  # key, tag, node, headers, timestamp
Committed = tuple[int, float, float]  # offset; seconds: held back by the window, synced
_Waiting = tuple[Ticket, asyncio.Future[Committed], float]


class _Rounds:
    """Collects appends that wait, and commits them together."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._collecting = False
        self.window = 0.0  # seconds to collect before each round

    def submit(self, ticket: Ticket) -> asyncio.Future[Committed]:
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        came = self._now() if self._collecting else 0.0  # else it is held from the beginning on
        self._waiting.append((ticket, future, came))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._drain())
        return future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                began = ended = 0.0
                if self.window:
                    began, self._collecting = self._now(), True
                    await asyncio.sleep(self.window)
                    ended, self._collecting = self._now(), False
                taken, self._waiting = self._waiting, []
                await self._commit(taken, began, ended)
        finally:
            self._running, self._collecting = None, False

    def _now(self) -> float:
        return self._store._store._context.clock.monotonic()

    async def _commit(self, taken: list[_Waiting], began: float, ended: float) -> None:
        committer = self._store._store._context.committer
        tickets = [ticket for ticket, _, _ in taken]
        synced = 0.0
        try:
            synced = await self._store._run(lambda: committer.run_round(tickets))
        except Exception as problem:
            for ticket in tickets:
                ticket.error = ticket.error or problem
        for ticket, future, came in taken:
            if future.done():
                continue  # its task was cancelled; the record is written all the same
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                held = ended - max(began, came) if ended else 0.0
                future.set_result((ticket.first, held, synced))

    async def idle(self) -> None:
        while self._running is not None:
            await asyncio.shield(self._running)


class AsyncTopic:
    """A topic whose verbs are awaited."""

    def __init__(self, store: AsyncStore, topic: Topic) -> None:
        self._store = store
        self._topic = topic
        self.name = topic.name

    def __repr__(self) -> str:
        return f"<async {self._topic!r}>"

    async def append(
        self, value: Value, key: bytes | str | None = None, tag: str | None = None,
        node: str | None = None, headers: dict[str, bytes] | None = None, timestamp: Any = None,
        wait: bool | float = False, idempotency_key: bytes | str | None = None,
    ) -> int:  # fmt: skip
        """As `Topic.append`. With wait, all tasks that wait share one commit."""
        topic = self._topic
        if idempotency_key is not None or not self._store._local:
            given = (value, key, tag, node, headers, timestamp, wait, idempotency_key)
            return await self._store._run(lambda: topic.append(*given))
        if wait is False:
            fields = (key, tag, node, headers, timestamp)
            if topic.ready:
                with contextlib.suppress(WouldBlock):
                    return topic.append_nowait(value, *fields)
            return await self._store._run(lambda: topic.append(value, *fields))
        fields = (key, tag, node, headers, timestamp)
        return (await self._append_timed(value, fields, wait))[0]

    async def _append_timed(self, value: Value, fields: _Fields, wait: bool | float) -> Committed:
        """Append one record and wait; how long it was held back, and how long it was synced."""
        topic = self._topic
        topic._store._context.require_writable()
        wait, extra = intake.wait_of(wait), intake.extra_of(*fields)
        made = topic._entry is not None
        limit = topic._limit() if made else await self._store._run(topic._limit)
        checked = intake.value_of(value, limit)
        if not made:
            await self._store._run(topic._created)
        shard = await self._shard_for(extra[0] if extra else None)
        ticket = Ticket(shard, [checked], {0: extra} if extra is not None else {})
        future = self._store._rounds.submit(ticket)
        try:
            told = await future if wait is True else await self._within(future, wait)
        except WriterBusy:  # handed over, or refused
            offset = await self._store._run(lambda: topic.append(value, *fields, wait=wait))
            return offset, 0.0, 0.0
        return told if topic.shards == 1 else (Offset(told[0], shard.number), *told[1:])

    async def _shard_for(self, key: bytes | None) -> Shard:
        topic = self._topic
        if key is not None or topic.ready:
            return topic._shard_for(key, looking=False)
        return await self._store._run(lambda: topic._shard_for(None))  # may take a free one

    @staticmethod
    async def _within(future: asyncio.Future[Committed], wait: float) -> Committed:
        try:
            return await asyncio.wait_for(asyncio.shield(future), float(wait))
        except TimeoutError:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise CommitTimeout(f"not committed within {wait} s; it may still be") from None

    async def append_many(
        self, records: Iterable[Any], wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> Span | Spans:  # fmt: skip
        """As `Topic.append_many`."""
        return await self._store._run(
            lambda: self._topic.append_many(records, wait, idempotency_key)
        )

    async def append_arrow(self, data: Any, wait: bool | float = False) -> Span | Spans:
        """As `Topic.append_arrow`."""
        return await self._store._run(lambda: self._topic.append_arrow(data, wait))

    def batch(
        self, wait: bool | float = False, idempotency_key: bytes | str | None = None
    ) -> AsyncBatch:
        """`async with topic.batch() as b: b.append(...)`: one atomic batch."""
        return AsyncBatch(self, wait, idempotency_key)

    def producer(self, name: str, shard: int | None = None) -> AsyncProducer:
        """As `Topic.producer`, with verbs that are awaited."""
        return AsyncProducer(self._store, self._topic.producer(name, shard))

    async def flush(self) -> None:
        """As `Topic.flush`."""
        await self._store._run(self._topic.flush)

    async def sync(self) -> None:
        """As `Topic.sync`."""
        await self._store._run(self._topic.sync)

    async def delete(
        self, before: Any = None, shard: int | None = None, *, tag: str | None = None,
        tag_prefix: str | None = None,
    ) -> int:  # fmt: skip
        """As `Topic.delete`."""
        return await self._store._run(
            lambda: self._topic.delete(before, shard, tag=tag, tag_prefix=tag_prefix)
        )

    async def archive(self, path: str | PathLike[str] | None = None, **how: Any) -> Archived:
        """As `Topic.archive`; `progress` is called in a thread of the store's pool."""
        return await self._store._run(lambda: self._topic.archive(path, **how))

    async def tier(self, to: Tier, before: Any = None, shard: int | None = None) -> Tiered:
        """As `Topic.tier`."""
        return await self._store._run(lambda: self._topic.tier(to, before, shard))

    async def reclaim(self, shard: int | None = None) -> int:
        """As `Topic.reclaim`."""
        return await self._store._run(lambda: self._topic.reclaim(shard))

    async def wait_durable(self, offset: int, shard: int = 0) -> None:
        """As `Topic.wait_durable`."""
        await self._store._run(lambda: self._topic.wait_durable(offset, shard))

    def batches(
        self, start: Any = "earliest", stop: Any = None, **how: Any
    ) -> AsyncIterator[Batch]:
        """As `Topic.batches`."""
        return self._store._iterate(lambda: self._topic.batches(start, stop, **how))

    def read(
        self, start: Any = "earliest", stop: Any = None, *, limit: int | None = None, **how: Any
    ) -> AsyncIterator[Record]:
        """As `Topic.read`."""
        check_limit(limit)
        return _records(lambda: self.batches(start, stop, **how), limit)

    def follow(
        self, start: Any = "latest", *, timeout: float | None = None, limit: int | None = None,
        **how: Any,
    ) -> AsyncIterator[Record]:  # fmt: skip
        """As `Topic.follow`."""
        check_limit(limit)
        check_timeout(timeout)
        return _records(lambda: self.follow_batches(start, timeout=timeout, **how), limit)

    def follow_batches(
        self, start: Any = "latest", *, timeout: float | None = None, **how: Any
    ) -> AsyncIterator[Batch]:
        """Batches as they come. Waits on the loop's side, so that no thread is held by a tail."""
        return self._follow(start, check_timeout(timeout), how)

    async def _follow(
        self, start: Any, timeout: float | None, how: dict[str, Any]
    ) -> AsyncIterator[Batch]:
        steps = await self._store._run(lambda: self._topic.tail(start, **how))
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not self._store._is_closed():
            moved = False
            async for batch in self._store._iterate(steps.take):
                moved = True
                yield batch
            if moved:
                deadline = None if timeout is None else loop.time() + timeout
                continue
            if deadline is not None and loop.time() >= deadline:
                return
            await news(self._store, steps, deadline)

    async def get(self, offset: int, shard: int = 0) -> Record:
        """As `Topic.get`."""
        return await self._store._run(lambda: self._topic.get(offset, shard))

    def slice(self, start: Any = None, stop: Any = None, **how: Any) -> Slice:
        """A lazy part of the topic. Reading it blocks: use `to_arrow` to have it off the loop."""
        return self._topic.slice(start, stop, **how)

    async def to_arrow(self, start: Any = None, stop: Any = None, **how: Any) -> Any:
        """The records as a pyarrow.Table."""
        return await self._store._run(lambda: self._topic.slice(start, stop, **how).to_arrow())

    async def options(self) -> TopicOptions:
        """As `Topic.options`."""
        return await self._store._run(lambda: self._topic.options)

    async def shards(self) -> int:
        """As `Topic.shards`."""
        return await self._store._run(lambda: self._topic.shards)

    async def shard_of(self, key: bytes | str) -> int:
        """As `Topic.shard_of`."""
        return await self._store._run(lambda: self._topic.shard_of(key))

    async def epoch(self) -> int:
        """As `Topic.epoch`."""
        return await self._store._run(lambda: self._topic.epoch)

    async def end(self, shard: int = 0) -> int:
        """As `Topic.end`."""
        return await self._store._run(lambda: self._topic.end(shard))

    async def earliest(self, shard: int = 0) -> int:
        """As `Topic.earliest`."""
        return await self._store._run(lambda: self._topic.earliest(shard))

    async def durable(self, shard: int = 0) -> int:
        """As `Topic.durable`."""
        return await self._store._run(lambda: self._topic.durable(shard))

    async def count(self) -> int:
        """How many records readers see."""
        return await self._store._run(lambda: len(self._topic))

    async def counters(self, shard: int = 0) -> dict[str, int]:
        """As `Topic.counters`."""
        return await self._store._run(lambda: self._topic.counters(shard))

    async def group(self, name: str, start: Any = "earliest", **how: Any) -> AsyncGroup:
        """As `Topic.group`."""
        made = await self._store._run(lambda: self._topic.group(name, start, **how))
        return AsyncGroup(self._store, made)

    async def groups(self) -> list[GroupStatus]:
        """As `Topic.groups`."""
        return await self._store._run(self._topic.groups)

    async def forget_group(self, name: str) -> None:
        """As `Topic.forget_group`."""
        await self._store._run(lambda: self._topic.forget_group(name))


async def _records(
    batches: Callable[[], AsyncIterator[Any]], limit: int | None
) -> AsyncIterator[Any]:
    left = limit
    if left == 0:
        return
    async for batch in batches():
        records, left = wanted_of(batch, left)
        for record in records:
            yield record
        if left == 0:
            return


class AsyncProducer:
    """A producer whose verbs are awaited."""

    def __init__(self, store: AsyncStore, producer: Producer) -> None:
        self._store = store
        self._producer = producer
        self.name = producer.name

    def __repr__(self) -> str:
        return f"<async {self._producer!r}>"

    async def last(self) -> int:
        """As `Producer.last`."""
        return await self._store._run(lambda: self._producer.last)

    async def append(self, value: Value, *args: Any, **fields: Any) -> int:
        """As `Producer.append`."""
        return await self._store._run(lambda: self._producer.append(value, *args, **fields))

    async def append_many(
        self, records: Any, *, sequence: int | None = None, wait: bool | float = False
    ) -> Span:
        """As `Producer.append_many`."""
        return await self._store._run(
            lambda: self._producer.append_many(records, sequence=sequence, wait=wait)
        )


class AsyncBatch:
    """Collects records for one atomic batch; written when the block ends."""

    def __init__(
        self, topic: AsyncTopic, wait: bool | float = False,
        idempotency_key: bytes | str | None = None,
    ) -> None:  # fmt: skip
        self._topic = topic
        self._batch = topic._topic.batch(wait, idempotency_key)
        self.span: Span | Spans | None = None

    def __repr__(self) -> str:
        return f"<async {self._batch!r}>"

    def append(self, value: Value, *args: Any, **fields: Any) -> None:
        """Add a record to the batch. Nothing is written yet."""
        self._batch.append(value, *args, **fields)

    def __len__(self) -> int:
        return len(self._batch)

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self._topic._store._run(lambda: self._batch.__exit__(kind, problem, trace))
        self.span = self._batch.span
