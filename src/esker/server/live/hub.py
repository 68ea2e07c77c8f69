"""Delivery: records go from the log to everybody who waits for them.

For each shard that somebody watches there is one `Feed`, with one place in the log. A writer wakes
it; its topic is dirty then, and waits in the ready set (scheduler/) for its turn. When that comes,
what is new is read and turned into frames, both once; then the frames are written to all who are
*live*, that is at the feed's place. So the cost of a record is that of reading it, and of one write
for each who wants it. Reading is for the pool of threads; of up to four shards that got a little
just now (`Feed.fresh`), which is still in memory, it is done on the loop, without asking a thread.

Who is not at the feed's place, because he has just come or could not take more for a while, reads
by himself from where he is, in a task of his own (`_pump`), until he is there and joins the others.
Of such reads only a few are done at once: they come from disk, and must not hold up the feeds.

    dirty -> ready set -> read and encode, once -> write to all who are live
                                                   no room: dropped, told, reads on by himself

Nothing is lost on the way: the feed's place moves when its frames are handed out, a client's when
its frame is written or queued, and back again when its queue is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from esker.aio.store import THREADS
from esker.errors import EskerError, TopicNotFound
from esker.records import Gap
from esker.routes.registry import Registry
from esker.scheduler.governor import RETRY_SECONDS, SAMPLE_SECONDS, Governor
from esker.scheduler.priority import band_of
from esker.scheduler.ready import ReadySet, Turn
from esker.server.http import faults
from esker.server.http.faults import Fault, throttled
from esker.server.live import cursor, frames
from esker.server.live.beats import Beats
from esker.server.live.cursor import Place, Places
from esker.server.live.feed import Feed, Spot, look, reading, rules, step_of
from esker.server.live.frames import Lens, Made, Maker, Step
from esker.server.live.latency import Stages
from esker.server.live.missing import Missing
from esker.server.live.stream import EventStream, Interest, Stream

if TYPE_CHECKING:
    from esker.server.app import App

LOG: Final = logging.getLogger("esker.server")
TOGETHER: Final = 16  # topics that are read in one go
FRESH: Final = 4  # shards with a few new records: they are read on the spot
READS: Final = 2  # of those who are not live, at once
PAUSE_SECONDS: Final = 0.005
UNFORESEEN: Final = "the server failed; its log says why"
DONE: Final = asyncio.CancelledError


class Hub:
    """All feeds and all streams of a server."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.governor = Governor(app.clock, THREADS)
        self.ready = ReadySet(app.clock, self.priority)
        self.streams: dict[Stream, None] = {}
        self.feeds: dict[str, dict[tuple[int, bool], Feed]] = {}  # by shard, and whether strong
        self.appends = 0  # under way
        self.counts = dict.fromkeys(
            ("records", "frames", "deliveries", "lagging", "drains", "refused", "bytes"), 0
        )
        self.stages = Stages()
        self._rules = rules(app.settings.priorities)
        self.missing = Missing(self)
        self.beats = Beats(self)
        self._slow: set[Stream] = set()  # those with a task
        self._spawned: set[asyncio.Task[None]] = set()
        self._work = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- start and stop ------------------------------------------------------------------

    def start(self) -> None:
        """Begin to deliver; on the loop."""
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            self._loop.create_task(each)
            for each in (self._drain(), self.beats.tick(), self.beats.poll())
        ]

    async def close(self) -> None:
        """End every stream, and stop."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.end(list(self.streams), "bye", {"reason": "the server stops"})
        for stream in list(self.streams):
            self.leave(stream)

    async def end(self, streams: Iterable[Stream], name: str, told: dict[str, Any]) -> None:
        """Tell them this, and no more."""
        ends = [stream.finish(frames.event(name, told, stream.form)) for stream in streams]
        await asyncio.gather(*ends, return_exceptions=True)

    # ---- priority and pressure -----------------------------------------------------------

    def priority(self, name: str) -> float | None:
        """What the settings say of a topic; None if nothing."""
        found = (number for pattern, number in self._rules if fnmatchcase(name, pattern))
        return next(found, None)

    def consumed(self, name: str) -> None:
        """Somebody reads this topic. Only of those that are watched it is worth knowing."""
        if name in self.feeds:
            self.ready.consumed(name)

    @contextlib.contextmanager
    def admitted(self, patient: bool = True) -> Iterator[None]:
        """An append, if there is room for one more; `patient` is False for who must not wait."""
        full = self.appends >= self.app.settings.append_queue
        if full and patient and self.governor.saturated:
            self.counts["refused"] += 1
            raise throttled(
                "append_queue", self.app.settings.append_queue, RETRY_SECONDS,
                "the server has more to do than it can; nothing was appended",
                retry_after_ms=RETRY_SECONDS * 1000,
            )  # fmt: skip
        self.appends += 1
        try:
            yield
        finally:
            self.appends -= 1

    def puts_off(self, name: str) -> bool:
        """Whether routes to this topic rest; a route counts one band less. From any thread."""
        return self.governor.deferring and band_of(self.ready.worth(name)) <= 1

    def pressed(self) -> None:
        """Do what the pressure asks for."""
        governor = self.governor
        self.ready.deferring = governor.deferring
        with contextlib.suppress(Fault):  # no store
            self.app.store._commit_window(governor.commit_window)
            for guest in self.app.store._store._context.guests:
                if isinstance(guest, Registry):
                    guest.puts_off = self.puts_off

    # ---- who comes and goes --------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """A client is there."""
        self.streams[stream] = None

    def leave(self, stream: Stream) -> None:
        """A client is gone."""
        if self.streams.pop(stream, self) is self:
            return
        stream.closed = True
        self._slow.discard(stream)
        for interest in list(stream.interests):
            self.unwatch(interest)
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()

    def watch(self, stream: Stream, spots: Iterable[Spot], lens: Lens) -> None:
        """Send a stream these, too; `find` has found them."""
        for spot in spots:
            interest = Interest(stream, spot.name, spot.shard, spot.at, lens, spot.gap, spot.asked)
            interest.piece = spot.piece
            stream.interests.append(interest)
            if spot.topic is None and spot.epoch:
                self.shrunk(interest, spot)
            elif spot.topic is None:
                self.missing.add(interest)
                if isinstance(spot.gap, Place) and spot.gap.epoch:  # he knew one that was here
                    maker = Maker(spot.name, spot.gap.epoch, spot.shard)
                    stream.enqueue(interest, maker.deleted(spot.at, lens.form))
            else:
                self.attach(interest, spot)
                self.consumed(spot.name)
        if len(stream.interests) > 1:
            for interest in stream.interests:
                if interest.feed is not None and not interest.piece:
                    interest.piece = interest.feed.maker.piece(interest.at)
        self._push(stream)

    def unwatch(self, interest: Interest) -> None:
        """Send a stream nothing more of this."""
        self._rest(interest)
        self.missing.discard(interest)
        stream = interest.stream
        if stream.queue is not None:
            for entry in [each for each in stream.queue if each[0] is interest]:
                stream.queue.remove(entry)
                stream.queued -= len(entry[1].body)
        if interest in stream.interests:
            stream.interests.remove(interest)
        feed, interest.feed = interest.feed, None
        if feed is not None:
            self._let_go(feed)

    def _let_go(self, feed: Feed) -> None:
        feed.users -= 1
        if feed.users:
            return
        feed.disarm()
        shards = self.feeds.get(feed.name, {})
        if shards.get(feed.place) is feed:
            del shards[feed.place]
            if not shards:
                del self.feeds[feed.name]
                self.ready.forget(feed.name)

    async def find(
        self, name: str, start: str | int, *, places: Places | None = None,
        lenient: bool = False, shard: int | None = None,
    ) -> list[Spot]:  # fmt: skip
        """Where a topic is to be watched from, for each of its shards."""
        known = places or {}
        found = await self.app.run(lambda store: look(store, name, start, shard, known))
        if found is not None:
            return found
        hashed = cursor.hash_of(name)
        left = {
            number: place for (each, number), place in known.items()
            if each == hashed and shard in (None, number)
        }  # fmt: skip
        if not left and not lenient:
            raise TopicNotFound(f"no topic {name!r}")
        return [
            Spot(
                None, name, number, place.offset, place, cursor.piece(hashed, number, *place), shard
            )
            for number, place in (left or {shard or 0: Place(0, 0)}).items()
        ]

    def attach(self, interest: Interest, spot: Spot) -> None:
        """It gets what is in the topic that was found."""
        topic, place = spot.topic, (interest.shard, interest.lens.strong)
        assert topic is not None
        if topic._gone:  # deleted since
            maker = Maker(spot.name, spot.epoch, interest.shard)
            interest.piece = interest.piece or maker.piece(interest.at)
            self._miss(interest, maker)
            return
        shards = self.feeds.setdefault(topic.name, {})
        feed = shards.get(place)
        if feed is not None and feed.topic is not topic:
            del shards[place]
            self.failed(feed, TopicNotFound("there is another one of its name"))
            feed = None
        if feed is None:
            feed = self.feeds.setdefault(topic.name, shards)[place] = Feed(self.wake, spot, place)
        feed.users += 1
        interest.feed = feed

    def shrunk(self, interest: Interest, spot: Spot) -> None:
        """The topic has no such shard any more. One that is made anew may have it again."""
        if isinstance(spot.gap, Gap):
            maker = Maker(spot.name, spot.epoch, spot.shard)
            interest.stream.enqueue(interest, maker.gap(spot.gap, interest.lens.form, 0, 0))
        interest.at, interest.gap, interest.piece = 0, Place(spot.epoch, 0), spot.piece

    # ---- feeds ---------------------------------------------------------------------------

    def wake(self, feed: Feed) -> None:
        """A feed has more; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.mark, feed)

    def mark(self, feed: Feed) -> None:
        """A feed has more; on the loop."""
        if feed.users:
            feed.dirty = True
            self.ready.mark(feed.name)
            self._work.set()

    async def _drain(self) -> None:
        """Serve the ready set, as long as there is one."""
        while True:
            await self._work.wait()
            self._work.clear()
            window = self.governor.coalesce
            if window:
                await asyncio.sleep(window)
            while turns := self._turns():
                for turn in turns:
                    if turn.began:  # those of the lowest band wait because they should
                        self.governor.waited(turn.waited - window)
                    self.stages.took("wake", turn.waited)
                try:
                    await self._serve(turns)
                except DONE:
                    raise
                except Exception:
                    if not self.app.stopping.is_set():
                        LOG.exception("delivery failed")
                    for turn in turns:
                        self.ready.served(turn, 1)

    def _turns(self) -> list[Turn]:
        turns: list[Turn] = []
        while len(turns) < TOGETHER and (turn := self.ready.next()) is not None:
            turns.append(turn)
        return turns

    async def _serve(self, turns: list[Turn]) -> None:
        for stream in [each for each in self._slow if each.full]:
            if any(interest.live for interest in stream.interests):
                self.lag(stream)  # before anything is made for it
        work: list[tuple[Feed, int, tuple[Lens, ...]]] = []
        for turn in turns:
            for feed in self.feeds.get(turn.topic, {}).values():
                if feed.dirty:
                    feed.dirty = False
                    feed.draining = True
                    lenses = tuple(lens for lens, live in feed.live.items() if live)
                    work.append((feed, feed.at, lenses))
        costs: dict[str, int] = {}
        monotonic = self.app.clock.monotonic
        began = monotonic()
        try:
            if len(work) <= FRESH and all(feed.fresh for feed, _, _ in work):
                done = [step_of(*each) for each in work]
            else:
                done = await self.app.run(lambda _: [step_of(*each) for each in work])
        finally:
            for feed, _, _ in work:
                feed.draining = False
        made_at = monotonic()
        self.stages.took("make", made_at - began)
        for (feed, begin, lenses), found in zip(work, done, strict=True):
            if not feed.users:  # let go while it was read, which has armed it again
                feed.disarm()
                continue
            if isinstance(found, Exception):
                self.failed(feed, found)
                continue
            if found is None:
                continue
            step, made = found
            costs[feed.name] = costs.get(feed.name, 0) + step.records
            self._deliver(feed, begin, step, dict(zip(lenses, made, strict=True)))
            if step.next < step.end:
                feed.dirty = True
        self.stages.took("write", monotonic() - made_at)
        self.counts["drains"] += len(turns)
        for turn in turns:
            feeds = self.feeds.get(turn.topic, {}).values()
            self.ready.served(turn, costs.get(turn.topic, 0), any(feed.dirty for feed in feeds))
        self.stir()

    def stir(self) -> None:
        """Whoever waits for his turn is served now, if he may be."""
        if len(self.ready):
            self._work.set()

    def _deliver(
        self, feed: Feed, begin: int, step: Step, made: dict[Lens, Made | Exception]
    ) -> None:
        """Hand out what was read. Everybody who is live is at `begin`, or ahead of it."""
        feed.at = step.next
        if step.records:
            self.counts["records"] += step.records
            self.ready.consumed(feed.name)
        for lens, live in list(feed.live.items()):
            seen = made.get(lens)
            if seen is None:  # came while it was read
                for interest in list(live):
                    if interest.at < step.next:
                        self._behind(interest)
                continue
            if isinstance(seen, Exception):
                self.fails({each.stream: None for each in live}, seen, feed.name)
                feed.live.pop(lens)  # it is not made for them again
                for interest in live:
                    interest.live = False
                continue
            given, chunk, records = seen
            written = 0
            for interest in list(live):
                stream = interest.stream
                if (
                    chunk
                    and interest.at == begin
                    and stream.task is None
                    and isinstance(stream, EventStream)
                    and stream.chunked
                    and len(stream.interests) == 1
                    and stream.open
                ):
                    stream.write_chunk(chunk)
                    interest.at = step.next
                    written += 1
                elif interest.at == begin:
                    self._offer(interest, seen, step.next)
                elif interest.at < step.next:
                    self._behind(interest)  # somewhere in between: he reads the rest himself
            self.counts["deliveries"] += written * records
            self.counts["frames"] += written * len(given)
            self.counts["bytes"] += written * len(chunk)

    def _offer(self, interest: Interest, seen: Made, at: int) -> None:
        stream = interest.stream
        if not stream.offer(interest, seen.frames):
            self.lag(stream)
            return
        interest.at = max(interest.at, at)
        self._count(seen)
        if stream.queue:
            self._push(stream)

    def _count(self, seen: Made) -> None:
        self.counts["frames"] += len(seen.frames)
        self.counts["deliveries"] += seen.records
        self.counts["bytes"] += sum(len(frame.whole) for frame in seen.frames)

    def lag(self, stream: Stream) -> None:
        """It does not keep up: forget what waits for it. It reads on by itself when it can."""
        stream.dropped += max(1, stream.drop())
        self.counts["lagging"] += 1
        for interest in stream.interests:
            interest.caught = False
            self._rest(interest)
        self._push(stream)

    def _behind(self, interest: Interest) -> None:
        self._rest(interest)
        self._push(interest.stream)

    def _rest(self, interest: Interest) -> None:
        """No longer live."""
        if interest.live and interest.feed is not None:
            live = interest.feed.live.get(interest.lens, {})
            live.pop(interest, None)
            if not live:
                interest.feed.live.pop(interest.lens, None)
        interest.live = False

    def failed(self, feed: Feed, problem: Exception) -> None:
        """It cannot be read, or its topic is no more."""
        users = [
            interest
            for stream in list(self.streams)
            for interest in list(stream.interests)
            if interest.feed is feed
        ]
        if isinstance(problem, TopicNotFound):
            for interest in users:
                self._lose(interest)
            return
        self.fails({each.stream: None for each in users}, problem, feed.name)

    def _lose(self, interest: Interest) -> None:
        """The topic was deleted. There may be another one of its name some day."""
        feed = interest.feed
        if feed is None:
            return
        self._rest(interest)
        interest.feed = None
        interest.caught = False
        self._let_go(feed)
        self._miss(interest, feed.maker)
        self._push(interest.stream)

    def _miss(self, interest: Interest, maker: Maker) -> None:
        stream, form, at = interest.stream, interest.lens.form, interest.at
        if isinstance(interest.gap, Gap):  # of the one before, of which it was not told yet
            stream.enqueue(interest, maker.gap(interest.gap, form, at, at))
        stream.enqueue(interest, maker.deleted(at, form))
        interest.gap = Place(maker.epoch, at)
        self.missing.add(interest)

    def fails(self, streams: Iterable[Stream], problem: Exception, name: str) -> None:
        """They cannot be sent what they want of this topic: they are told so, and end."""
        if isinstance(problem, EskerError | Fault):
            LOG.warning("watching %s: %s", name, problem)
        else:
            LOG.error("watching %s", name, exc_info=problem)
        self.spawn(self._broken(streams, problem, name))

    async def _broken(self, streams: Iterable[Stream], problem: Exception, name: str) -> None:
        if isinstance(problem, EskerError):
            problem = faults.fault_of(problem)
        fault = problem if isinstance(problem, Fault) else Fault("internal", UNFORESEEN)
        if fault.code in faults.DAMAGE:
            self.app.audit.tell(fault.code, topic=name)
        await self.end(streams, "error", {"code": fault.code, "message": fault.message})

    # ---- streams that are not live -------------------------------------------------------

    def _push(self, stream: Stream) -> None:
        """Something waits for this stream, or it is behind: see to it."""
        if stream.task is None and not stream.closed and self._loop is not None:
            self._slow.add(stream)
            stream.task = self._loop.create_task(self._pump(stream))

    async def _pump(self, stream: Stream) -> None:
        turn, name = 0, ""
        try:
            while not stream.gone:
                if stream.dropped:
                    told, stream.dropped = {"frames": stream.dropped}, 0
                    await stream.put_event(frames.event("lagging", told, stream.form))
                elif stream.queue:
                    interest, frame = stream.queue.popleft()
                    stream.queued -= len(frame.body)
                    await stream.put_frame(interest, frame)
                else:
                    behind = [
                        each for each in stream.interests if not each.live and each.feed is not None
                    ]
                    if not behind:
                        break
                    turn += 1
                    interest = behind[turn % len(behind)]
                    name, feed = interest.name, interest.feed
                    try:
                        await self._catch_up(interest)
                    except TopicNotFound as problem:
                        if interest.feed is feed is not None:
                            self.failed(feed, problem)
        except DONE:
            raise
        except OSError:
            pass  # the client is gone
        except EskerError as problem:
            if not stream.gone and not self.app.stopping.is_set():
                LOG.warning("a stream ends: %s", problem)
                await self._broken([stream], problem, name)
        except Exception as problem:
            if not stream.gone:
                LOG.exception("a stream ends")
                await self._broken([stream], problem, name)
        finally:
            stream.task = None
            self._slow.discard(stream)
        if stream.queue or any(
            not each.live and each.feed is not None for each in stream.interests
        ):
            await asyncio.sleep(SAMPLE_SECONDS)  # its topic was deleted, and the feed will notice
            self._push(stream)

    async def _catch_up(self, interest: Interest) -> None:
        """One step towards the others; joins them when it is there."""
        feed, stream, lens = interest.feed, interest.stream, interest.lens
        assert feed is not None
        if isinstance(interest.gap, Gap):
            gap, interest.gap = interest.gap, None
            frame = feed.maker.gap(gap, lens.form, interest.at, interest.at)
            stream.enqueue(interest, frame)
            return
        others = bool(feed.live) or feed.draining
        if others and interest.at >= feed.at:
            self._enter(interest, feed)
            return
        stop = feed.at if others else None
        begin = interest.at
        async with self._reads:
            step, made = await self.app.run(lambda _: reading(feed, begin, stop, lens))
        if interest.feed is not feed or interest.at != begin:
            return  # it has been moved meanwhile
        for frame in made.frames:
            interest.at = frame.next  # before it is written: it will be, or nothing ever
            await stream.put_frame(interest, frame)
            if interest.feed is not feed:
                return
        self._count(made)
        interest.at = max(interest.at, step.next)
        if stop is None and step.next >= step.end and not feed.live and not feed.draining:
            feed.at = min(interest.at, step.end)  # he may be waiting for an offset to come
            self._enter(interest, feed)
        elif step.next == begin:
            await asyncio.sleep(PAUSE_SECONDS)  # nothing new: the feed is about to move

    def _enter(self, interest: Interest, feed: Feed) -> None:
        """It is where the feed is: from now on it gets what the feed gets."""
        interest.live = True
        feed.live.setdefault(interest.lens, {})[interest] = None
        if not interest.caught:
            interest.caught = True
            frame = feed.maker.caught_up(interest.at, interest.lens.form)
            interest.stream.enqueue(interest, frame)
        if not feed.armed:
            self.mark(feed)  # what came meanwhile is read, and the writer will wake it

    # ---- tasks ---------------------------------------------------------------------------

    def spawn(self, work: Any) -> None:
        """Have this done by somebody else."""
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
