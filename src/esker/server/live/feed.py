"""A shard that somebody watches, and what is done for it in the pool of threads.

Everything that touches the disk on the way from the log to the streams stands here: finding the
place that a client means, reading on, making frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from esker import positions
from esker.engine import epochs
from esker.engine.reader import Consistency, end_of, resolve
from esker.engine.store import Store
from esker.engine.topic import Topic
from esker.errors import InvalidOption, TopicNotFound
from esker.records import Gap
from esker.server.live import cursor, frames
from esker.server.live.cursor import Place, Places
from esker.server.live.frames import Lens, Made, Maker, Step

if TYPE_CHECKING:
    from esker.server.live.stream import Interest

FRESH_BYTES: Final = 64 << 10  # of a log


class Feed:
    """A shard that somebody watches."""

    __slots__ = (
        "_wake", "armed", "at", "consistency", "dirty", "draining", "live", "maker", "name",
        "number", "place", "seen", "shard", "topic", "users", "woken",
    )  # fmt: skip

    def __init__(
        self, wake: Callable[[Feed], None], spot: Spot, place: tuple[int, bool]
    ) -> None:  # fmt: skip
        topic = spot.topic
        assert topic is not None
        self.place = place
        self.number, strong = place
        self._wake = wake
        self.topic = topic
        self.name = topic.name
        self.consistency: Consistency = "strong" if strong else "eventual"
        self.shard = topic._shards[self.number]
        self.maker = Maker(topic.name, spot.epoch, self.number)
        self.at = spot.at  # all who are live have what is before it
        self.live: dict[Lens, dict[Interest, None]] = {}
        self.users = 0  # live or not
        self.armed = False  # the writer will wake it
        self.dirty = False
        self.draining = False
        self.woken = False  # by the writer, not by looking
        self.seen: tuple[object, int] = (None, 0)  # the log, and its end, when it was last read

    def release(self) -> None:
        """There is more: called by the writer, in his thread, once for each time it is armed."""
        self.armed = False
        self.woken = True
        self._wake(self)

    def arm(self) -> None:
        """Be woken by the next record."""
        if not self.armed:
            self.armed = True
            self.shard.add_waiter(self)

    def disarm(self) -> None:
        self.shard.drop_waiter(self)
        self.armed = False

    @property
    def polled(self) -> bool:
        """Whether it may move without a word: by another process, or because it became durable."""
        if self.consistency == "strong":
            return True
        return not self.shard.writing and self.shard.durability != "ephemeral"

    @property
    def fresh(self) -> bool:
        """Whether what is new was written just now, by this process, and is little.

        Then it is in memory, and read faster than another thread can be asked to.
        """
        log, (known, end) = self.shard.active, self.seen
        return (
            self.woken
            and log is not None
            and log is known
            and self.shard.writing
            and log.end - end <= FRESH_BYTES
        )

    @property
    def gone(self) -> bool:
        return self.topic._gone or self.shard.gone


# ---- in the pool of threads ------------------------------------------------------------------


class Spot(NamedTuple):
    """Where a shard is to be watched from."""

    topic: Topic | None  # None: there is none of that name, or it has no such shard
    name: str
    shard: int
    at: int
    gap: Gap | Place | None = None  # what was missed; the place, where there is no topic
    piece: str = ""  # of a cursor, until the gap has been told
    asked: int | None = None  # the shard that is wanted; None: all
    epoch: int = 0  # of the topic


def look(
    store: Store, name: str, start: str | int, shard: int | None, places: Places
) -> list[Spot] | None:
    """For each shard of a topic where to begin and what was missed; None if it is not there.

    A topic that is not the one that was known is watched from its beginning: also those shards that
    the former one did not have; of those that it has no more, the rest is told as missed.
    """
    positions.parse(start, store._context.clock.now_us())  # what is wrong is told now
    try:
        return _spots(store, store[name], start, shard, places) if name in store else None
    except TopicNotFound:  # deleted under our hands
        return None


def _spots(
    store: Store, topic: Topic, start: str | int, shard: int | None, places: Places
) -> list[Spot]:  # fmt: skip
    now, hashed = store._context.clock.now_us(), cursor.hash_of(topic.name)
    name, count, current = topic.name, topic.shards, topic.epoch
    if any(each.gone for each in topic._shards):  # it is listed for a moment yet
        raise TopicNotFound(f"topic {name!r} was deleted")
    known = {place.epoch for (each, _), place in places.items() if each == hashed}
    another = shard is None and known and current not in known
    asked = positions.parse("earliest" if another else start, now)
    if shard is not None and shard >= count:
        raise InvalidOption(f"shard={shard}: topic {name!r} has shards 0..{count - 1}")
    spots = []
    for number in range(count) if shard is None else (shard,):
        place = places.get((hashed, number))
        begin, epoch = asked, None
        if place is not None:
            begin = positions.parse(place.offset if place.epoch else "earliest", now)
            epoch = place.epoch or None
        begin, missed = topic._begin(begin, number, epoch)
        at, gap = resolve(topic._view(number), begin), missed.get(number)
        piece = cursor.piece(hashed, number, *place) if gap and place else ""
        spots.append(Spot(topic, name, number, at, gap, piece, shard, current))
    for (each, number), place in places.items():
        if each == hashed and shard is None and number >= count:
            piece, left = cursor.piece(hashed, number, *place), None
            if place.epoch not in (0, current):
                catalog = store._catalog.catalog
                left = epochs.missed(catalog, name, place.epoch, place.offset, [number])[number]
            spots.append(Spot(None, name, number, 0, left or place, piece, shard, current))
    return spots


def reading(feed: Feed, begin: int, stop: int | None, lens: Lens) -> tuple[Step, Made]:
    step = frames.read_on(feed.topic, feed.number, begin, stop, feed.consistency)
    return step, feed.maker.made(step, lens, begin)


def step_of(
    feed: Feed, begin: int, lenses: tuple[Lens, ...]
) -> tuple[Step, list[Made | Exception]] | Exception | None:
    """Read what is new, and make frames of it for everybody; an error is told, not raised.

    Other feeds have their turn together with this one, and others look through other lenses.
    """
    if not lenses:
        return None
    try:
        feed.woken = False
        feed.arm()  # first: what comes from now on wakes it again
        log = feed.shard.active
        feed.seen = (log, 0 if log is None else log.end)
        step = frames.read_on(feed.topic, feed.number, begin, None, feed.consistency)
    except Exception as problem:
        return problem
    return step, [_made(feed, step, lens, begin) for lens in lenses]


def _made(feed: Feed, step: Step, lens: Lens, begin: int) -> Made | Exception:
    try:
        return feed.maker.made(step, lens, begin)
    except Exception as problem:
        return problem


def has_more(feed: Feed) -> bool:
    try:
        return end_of(feed.topic._view(feed.number), feed.consistency) > feed.at
    except Exception:
        return True  # whoever reads it is told


def rules(given: Iterable[str]) -> list[tuple[str, float]]:
    """Priorities of topics as they are set: `pattern=number`."""
    found = []
    for text in given:
        pattern, equals, number = text.rpartition("=")
        try:
            found.append((pattern, float(number)))
        except ValueError:
            equals = ""
        if not equals or not pattern:
            raise InvalidOption(f"priorities: {text!r} is not of the form pattern=number")
    return found
