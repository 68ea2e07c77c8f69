"""How many jobs each key has in hand, and that they are never more than `key_jobs`.

What a key claims is written down here, and is not crossed out when it is settled. So what stands
here is never too little, and costs an ack nothing. Only when a key seems to have no room is it
looked up in the queues which of these jobs it still holds. The truth is there alone: another
process may have taken a job back, a lease may have run out, or the topic be gone.

Room is set aside on the loop before a pass over a queue, with no pause between looking and
counting. So no number of claims at once gets past the limit. A lease that has run out does not
count, though its holder might still renew it; renewing it takes room anew (`renewing`).

Who needs no key is one key here, whose name is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from esker.errors import EskerError
from esker.queues.job import Grant, Job
from esker.queues.leases import State
from esker.server.http.faults import Fault, throttled

if TYPE_CHECKING:
    from esker.queues.queue import Queue
    from esker.server.app import App

LOOK_SECONDS: Final = 0.25  # between two looks for who waits until there is room

Place = tuple["Queue", int, int]  # queue, shard, offset


class Hand:
    """What one key has, or had."""

    __slots__ = ("aside", "jobs", "looked", "renewed", "until")

    def __init__(self) -> None:
        self.jobs: dict[Place, Grant] = {}
        self.aside = 0  # room for what is being claimed
        self.renewed = Counter[Place]()  # leases that are being renewed: not to be given up
        self.looked = 0.0  # when it was last found out which jobs are still held
        self.until = 0.0  # behind it all leases have run out


class Hands:
    """Those of all keys. Called on the loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hands: dict[str, Hand] = {}

    def room(self, key: str) -> int:
        """How many more jobs this key may have."""
        hand = self._hands.get(key)
        return self._most if hand is None else max(0, self._most - len(hand.jobs) - hand.aside)

    def full(self, key: str) -> bool:
        """Whether it has as many as it may, whatever becomes of the claims that are under way."""
        hand = self._hands.get(key)
        return self._most <= (0 if hand is None else len(hand.jobs))

    def refusal(self) -> Fault:
        """What a claim is told for which there is no room."""
        most = self._most
        told = f"this key has {most} jobs in hand, and gets no more: settle some of them"
        return throttled("key_jobs", most, 1, told)

    # ---- claiming ------------------------------------------------------------------------

    def shares(self, wants: Sequence[tuple[str, int]], now: float) -> list[int]:
        """How much each of these may claim, evenly where it is scarce; so much room is set aside.

        Each share is given back by `took`.
        """
        waiting: dict[str, int] = {}
        for key, _ in wants:
            waiting[key] = waiting.get(key, 0) + 1
        shares = [0] * len(wants)
        for most, at in sorted((most, at) for at, (_, most) in enumerate(wants)):
            key = wants[at][0]
            share = min(most, -(-self.room(key) // waiting[key]))
            waiting[key] -= 1
            if share:
                self._hand(key, now).aside += share
                shares[at] = share
        return shares

    def took(self, key: str, share: int, jobs: Sequence[Job]) -> None:
        """These came of what was set aside."""
        hand = self._hands.get(key)
        if hand is None:  # nothing was
            return
        hand.aside -= share
        if jobs:
            hand.jobs.update(
                {(job.grant.queue, job.grant.lane, job.record.offset): job.grant for job in jobs}
            )
            hand.until = max(hand.until, jobs[-1].deadline)

    def _hand(self, key: str, now: float) -> Hand:
        hand = self._hands.get(key)
        if hand is None:
            for name, each in list(self._hands.items()):  # of keys that nobody uses any more
                if each.until <= now and not each.aside and not each.renewed:
                    del self._hands[name]
            hand = self._hands[key] = Hand()
        return hand

    # ---- what is still held --------------------------------------------------------------

    def stale(self, key: str, now: float) -> bool:
        """Whether the last look is a while ago."""
        hand = self._hands.get(key)
        return hand is not None and now >= hand.looked + LOOK_SECONDS

    async def look(self, app: App, key: str, now: float) -> None:
        """Forget the jobs that this key does not hold any more."""
        hand = self._hands.get(key)
        if hand is None or not hand.jobs:
            return
        hand.looked = now
        known = dict(hand.jobs)
        for place, grant in await app.run(lambda _: _lost(known)):
            if hand.jobs.get(place) is grant and not hand.renewed[place]:
                del hand.jobs[place]

    # ---- renewing ------------------------------------------------------------------------

    @contextmanager
    def renewing(self, key: str, jobs: Sequence[Job], now: float) -> Iterator[list[Job]]:
        """For the renewal of leases: gives those that may be.

        The others ran out, and were forgotten; there is no room for them any more.
        """
        hand = self._hand(key, now)
        room, chosen, new = self.room(key), [], 0
        for job in jobs:
            known = hand.jobs.get(_place(job))
            counts = known is not None and _is_same(known, job.grant)
            if counts or new < room:
                chosen.append(job)
                new += not counts
        places = [_place(job) for job in chosen]
        hand.aside += new
        hand.renewed.update(places)
        done = chosen  # for all we know, should it be cancelled: a thread goes on with it
        try:
            yield chosen
            done = [job for job in chosen if job.extended]
        finally:
            hand.renewed.subtract(places)
            hand.renewed = +hand.renewed
            self.took(key, new, done)


def _place(job: Job) -> Place:
    return job.grant.queue, job.shard, job.offset


def _is_same(one: Grant, other: Grant) -> bool:
    return one.number == other.number and one.worker == other.worker


def _lost(known: dict[Place, Grant]) -> list[tuple[Place, Grant]]:
    """Those that are not held under these leases any more. In the store's pool of threads."""
    by_lane: dict[tuple[Queue, int], list[tuple[Place, Grant]]] = {}
    for place, grant in known.items():
        by_lane.setdefault(place[:2], []).append((place, grant))
    lost: list[tuple[Place, Grant]] = []
    for (queue, shard), jobs in by_lane.items():
        try:
            lost += queue._ask(queue._lanes[shard], partial(_not_held, queue, jobs))
        except EskerError:  # what cannot be looked up counts, unless it was deleted
            lost += jobs if queue.topic._gone else []
    return lost


def _not_held(
    queue: Queue, jobs: list[tuple[Place, Grant]], state: State
) -> list[tuple[Place, Grant]]:
    now = int(queue._context.clock.monotonic() * 1e6)
    held = [state.held.get(place[2]) for place, _ in jobs]
    return [
        job for job, lease in zip(jobs, held, strict=True)
        if lease is None or lease.until <= now or lease.number != job[1].number
        or lease.worker != job[1].worker
    ]  # fmt: skip
