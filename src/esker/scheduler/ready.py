"""The ready set: which dirty topic is drained next.

Topics stand in five bands. The bands are served by deficit round robin: on its turn each gets
credit by its weight, and goes on until the credit is spent, so that in the long run work is divided
by the weights among bands that have any. Within a band the oldest goes first. Whoever waits rises
(priority.py), and keeps the time since which he waits; after ten seconds he stands in the top band,
before all who came later. That bounds how long anybody can starve.

What a service costs is known when it is over: a band that took more than its credit owes the rest.
Debts are bounded, so that one large service does not shut a band out.

A topic that becomes dirty while it is being drained is noted once, and stands at the end of its
band when the drain is over.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from esker.clock import Clock
from esker.scheduler.priority import TOP, WEIGHTS, band_after, band_of, rises_after, worth

QUANTUM: Final = 256.0  # the credit of a weight of 1, in records
DEBT: Final = 16 * QUANTUM  # no band owes more


class Waiting:
    """A topic in the ready set."""

    __slots__ = ("band", "base", "since", "topic")

    def __init__(self, topic: str, since: float, base: float) -> None:
        self.topic = topic
        self.since = since
        self.base = base
        self.band = band_of(base)


class Turn(NamedTuple):
    """A topic whose turn it is, and how long it waited."""

    topic: str
    band: int  # in which it stands now
    began: int  # the band that it came in with
    waited: float


class ReadySet:
    """Dirty topics, each at most once."""

    def __init__(self, clock: Clock, priority: Callable[[str], float | None]) -> None:
        self._clock = clock
        self._priority = priority
        self._known: dict[str, Waiting] = {}  # those in the set
        self._served: dict[str, bool] = {}  # those being drained; True if dirty again
        self._bands: list[list[tuple[float, int, Waiting]]] = [[] for _ in WEIGHTS]
        self._sizes = [0] * len(WEIGHTS)
        self._rising: list[tuple[float, int, Waiting]] = []
        self._credit = [0.0] * len(WEIGHTS)
        self._turn = TOP
        self._credit[TOP] = WEIGHTS[TOP] * QUANTUM
        self._count = 0
        self._consumed: dict[str, float] = {}
        self.deferring = False  # nothing of the lowest band is served

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, topic: str) -> bool:
        return topic in self._known

    def sizes(self) -> list[int]:
        """How many topics wait in each band, from the lowest."""
        self._rise()
        return list(self._sizes)

    def consumed(self, topic: str) -> None:
        """Somebody reads this topic."""
        self._consumed[topic] = self._clock.monotonic()

    def worth(self, topic: str) -> float:
        """What a topic is worth now, if it does not wait."""
        last = self._consumed.get(topic)
        idle = None if last is None else self._clock.monotonic() - last
        return worth(self._priority(topic), idle)

    def mark(self, topic: str) -> bool:
        """It is dirty. False if that is known."""
        if topic in self._served:
            fresh, self._served[topic] = not self._served[topic], True
            return fresh
        if topic in self._known:
            return False
        now = self._clock.monotonic()
        waiting = self._known[topic] = Waiting(topic, now, self.worth(topic))
        self._enter(waiting)
        return True

    def forget(self, topic: str) -> None:
        """There is nothing more to know of it."""
        waiting = self._known.pop(topic, None)
        if waiting is not None:
            self._leave(waiting)
        self._served.pop(topic, None)
        self._consumed.pop(topic, None)

    def next(self) -> Turn | None:
        """Whose turn it is; he is to be told of by `served`. None if nobody may be served now."""
        self._rise()
        lowest = 1 if self.deferring else 0
        if not any(self._sizes[lowest:]):
            return None
        while True:
            band = self._turn
            if band < lowest or not self._sizes[band]:
                self._credit[band] = min(0.0, self._credit[band])  # credit is not saved up
            elif self._credit[band] > 0:
                return self._take(band)
            self._turn = band - 1 if band else TOP
            self._credit[self._turn] += WEIGHTS[self._turn] * QUANTUM

    def served(self, turn: Turn, cost: float, more: bool = False) -> None:
        """A drain is over: what it cost, in records, and whether the topic is dirty still."""
        owed = self._credit[turn.band] - max(1.0, cost)
        self._credit[turn.band] = max(-DEBT, owed)
        again = self._served.pop(turn.topic, None)
        if again is not None and (again or more):  # None: it was forgotten meanwhile
            self.mark(turn.topic)

    def rises_in(self) -> float | None:
        """In how many seconds somebody enters a higher band; None if nobody will."""
        while self._rising and self._rising[0][2].band < 0:
            heappop(self._rising)
        if not self._rising:
            return None
        return max(0.0, self._rising[0][0] - self._clock.monotonic())

    # ---- the heaps -----------------------------------------------------------------------

    def _enter(self, waiting: Waiting) -> None:
        self._count += 1
        heappush(self._bands[waiting.band], (waiting.since, self._count, waiting))
        self._sizes[waiting.band] += 1
        if waiting.band < TOP:
            due = waiting.since + rises_after(waiting.base, waiting.band)
            heappush(self._rising, (due, self._count, waiting))

    def _leave(self, waiting: Waiting) -> None:
        """What still stands of it in the heaps is passed over, and cleared away now and then."""
        self._sizes[waiting.band] -= 1
        if not self._sizes[waiting.band]:
            self._bands[waiting.band].clear()
        waiting.band = -1
        if len(self._rising) > 64 + 2 * len(self._known):
            self._rising = [each for each in self._rising if each[2].band >= 0]
            heapify(self._rising)

    def _rise(self) -> None:
        """Move up who has waited long enough."""
        now = self._clock.monotonic()
        while self._rising and self._rising[0][0] <= now:
            _, _, waiting = heappop(self._rising)
            if waiting.band < 0:
                continue
            # at the least one band: what is due is due, however the numbers were rounded
            band = max(waiting.band + 1, band_after(waiting.base, now - waiting.since))
            self._leave(waiting)
            waiting.band = band
            self._enter(waiting)

    def _take(self, band: int) -> Turn:
        heap = self._bands[band]
        while True:
            since, _, waiting = heappop(heap)
            if waiting.band == band and self._known.get(waiting.topic) is waiting:
                break
        del self._known[waiting.topic]
        self._leave(waiting)
        self._served[waiting.topic] = False
        waited = self._clock.monotonic() - since
        return Turn(waiting.topic, band, band_of(waiting.base), waited)
