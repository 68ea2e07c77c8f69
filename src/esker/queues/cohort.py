"""Claims that come together are served together, and evenly.

With `claim_jitter` a claim waits that long for others. In one process, those who come meanwhile
join it: one pass over the shards serves them all, and what it finds is dealt out in turn. Other
processes see in a shared page that we are waiting, and for how many jobs; whoever comes to the
shards first then takes his share of what is there, and leaves the rest to those who wait.

The page is advice. Two workers whose numbers fall on one slot, or a page that was damaged, make the
division less even, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from esker.engine.context import Context
from esker.format import names
from esker.queues.claiming import Want
from esker.queues.job import Job
from esker.storage.files import join

SLOTS: Final = 256
WORDS: Final = 4  # worker, jobs wanted, until when (microseconds, monotonic), nothing
_PAUSE: Final = threading.Event()  # never set: waiting for it is sleeping

Claim = Callable[[Want], list[Job]]


class Window:
    """Claims that are served in one pass."""

    def __init__(self, first: Want) -> None:
        self.wants = [first]
        self.done = threading.Event()
        self.dealt: list[list[Job]] = []
        self.problem: BaseException | None = None


class Cohort:
    """Those who claim at about the same time."""

    def __init__(self, context: Context, folder: str, jitter_us: int) -> None:
        self._context = context
        self._path = join(folder, names.DEMAND)
        self.jitter = jitter_us
        self._lock = threading.Lock()  # guards _window and _page
        self._window: Window | None = None
        self._page: Any = None
        self.ready: Callable[[], int] = lambda: 1 << 62  # set by the queue: jobs there may be

    def claim(self, want: Want, claim: Claim) -> list[Job]:
        """Claim with those who come meanwhile."""
        with self._lock:
            window = self._window
            if window is not None and window.wants[0][1:] == want[1:]:
                place = len(window.wants)
                window.wants.append(want)
            else:
                place, window = 0, Window(want)
                self._window = window
        if place:
            window.done.wait()
            if window.problem is not None:
                return claim(want)  # on its own
            return window.dealt[place]
        try:
            self.announce(want)
            _PAUSE.wait(self.jitter / 1e6)
        finally:
            with self._lock:
                if self._window is window:
                    self._window = None
        try:
            window.dealt = self.served(want, [each.most for each in window.wants], claim)
            return window.dealt[0]
        except BaseException as problem:
            window.problem = problem
            raise
        finally:
            window.done.set()

    def served(self, want: Want, wants: list[int], claim: Claim) -> list[list[Job]]:
        """One pass for claims that came together; what others wait for is left to them."""
        try:
            share = self._share(want.worker, sum(wants))
            return dealt(claim(want._replace(most=share)), wants)
        finally:
            self._withdraw(want.worker)

    def let_go(self) -> None:
        """As `close`, where nobody may be waited for."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Let go of the page."""
        with self._lock:
            self._page = None

    def _slot(self, worker: int) -> int:
        return worker % SLOTS * WORDS

    def announce(self, want: Want) -> None:
        """Let other processes see that we wait, and for how much."""
        with self._lock:
            if self._page is None:
                self._page = self._context.files.page(self._path, SLOTS * WORDS * 8, writable=True)
            page = self._page
        now = int(self._context.clock.monotonic() * 1e6)
        at = self._slot(want.worker)
        page[at + 1], page[at + 2] = want.most, now + 2 * self.jitter
        page[at] = want.worker

    def _withdraw(self, worker: int) -> None:
        at, page = self._slot(worker), self._page
        if page is not None and page[at] == worker:
            page[at] = 0

    def _share(self, worker: int, own: int) -> int:
        """How much of what is there we may take, with others waiting."""
        now, page = int(self._context.clock.monotonic() * 1e6), self._page
        slots = range(0, SLOTS * WORDS, WORDS) if page is not None else ()
        others = sum(
            min(page[at + 1], 1 << 20) for at in slots
            if page[at] not in (0, worker) and page[at + 2] > now
        )  # fmt: skip
        ready = self.ready() if others else own
        return own if ready >= own + others else max(1, -(-ready * own // (own + others)))


def dealt(jobs: list[Job], wants: list[int]) -> list[list[Job]]:
    """Jobs in turn to each, until he has what he wants."""
    hands: list[list[Job]] = [[] for _ in wants]
    rest = iter(jobs)
    hungry = [at for at, most in enumerate(wants) if most]
    while hungry:
        for at in list(hungry):
            job = next(rest, None)
            if job is None:
                return hands
            hands[at].append(job)
            if len(hands[at]) >= wants[at]:
                hungry.remove(at)
    return hands
