"""Working through a queue: leases are renewed while a handler runs; a lost one ends the work.

`Work` hands out jobs to any number of threads. One more thread renews the leases of all jobs that
are out, three times a lease, in one call. A renewal that finds that a job is somebody else's marks
it `lost`; so does a deadline that passes because renewals fail. A lost job is not acked: whoever
tries gets StaleLease, and the handler may look at `job.lost`, or call `job.check()`.

    with job:       leaving the block acks; an exception nacks with back-off; an interrupt releases
    no with:        coming for the next job acks the last one; leaving the loop with one in hand
                    nacks it, as nobody can tell why it was left
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from esker.engine.context import LOG
from esker.errors import EskerError, StaleLease, StoreClosed
from esker.queues.job import Job, give_up

if TYPE_CHECKING:
    from esker.queues.queue import Queue

RENEWALS: Final = 3  # in the time of one lease
WAIT_SECONDS: Final = 0.25  # that one claim waits, so that stopping does not take longer


class Work:
    """Jobs, one after the other, with leases that hold."""

    def __init__(
        self, queue: Queue, concurrency: int, lease: float | str | None, wait: float | None
    ) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._lease_us = queue.options.lease_us if lease is None else queue._lease(lease)
        self.lease = self._lease_us / 1e6  # seconds
        self._wait = wait
        self._clock = queue._context.clock
        self._room = threading.Condition()  # guards everything below
        self._out: set[Job] = set()  # claimed and not settled
        self._ahead: deque[Job] = deque()  # claimed, and nobody has come for them
        self._claiming = False
        self._stopped = threading.Event()
        self._renewer: threading.Thread | None = None
        self._loops = 0

    def __repr__(self) -> str:
        state = "ended" if self._stopped.is_set() else f"{len(self._out)} jobs out"
        return f"<esker work on queue {self._queue.name!r}, {state}>"

    # ---- handing out ---------------------------------------------------------------------

    def __iter__(self) -> Iterator[Job]:
        """The loop of one thread. When the last one is left, in whatever way, all is closed."""
        with self._room:
            self._loops += 1
        job: Job | None = None
        try:
            while (job := self._next()) is not None:
                yield job
                self._done_with(job)
        finally:
            if job is not None and not job.settled and not job.lost:
                give_up(job, None)  # the loop was left with it in hand
            with self._room:
                self._loops -= 1
                last = not self._loops
            if last:
                self.close()

    def _next(self) -> Job | None:
        deadline = None if self._wait is None else self._clock.monotonic() + self._wait
        while not self._stopped.is_set():
            job = self._take(deadline)
            if job is not None:
                return job
            if deadline is not None and self._clock.monotonic() >= deadline:
                break
        return None

    def _take(self, deadline: float | None) -> Job | None:
        """A job that is there, or that this thread claims for everybody."""
        with self._room:
            self._drop_settled()
            if self._ahead:
                return self._ahead.popleft()
            room = self._concurrency - len(self._out)
            if room <= 0 or self._claiming:
                self._room.wait(0.005)
                return None
            self._claiming = True
        found: list[Job] = []
        try:
            left = WAIT_SECONDS if deadline is None else deadline - self._clock.monotonic()
            patience = min(max(left, 0.0), WAIT_SECONDS)
            found = self._queue.claim(room, self._lease_us / 1e6, patience)
        except StoreClosed:
            self._stopped.set()
        finally:
            with self._room:
                self._claiming = False
                self._out.update(found)
                self._ahead.extend(found)
                self._room.notify_all()
        if not found:
            return None
        self._start()
        with self._room:
            return self._ahead.popleft() if self._ahead else None

    def _drop_settled(self) -> None:
        gone = [job for job in self._out if job.settled or job.lost]
        self._out.difference_update(gone)

    def _done_with(self, job: Job) -> None:
        """Whoever comes for the next job has done the last one, unless he said otherwise."""
        try:
            if not job.settled and not job.lost:
                job.ack()
        except StaleLease as problem:
            LOG.warning("%s", problem)
        with self._room:
            self._drop_settled()
            self._room.notify_all()

    def keep(self, jobs: Iterable[Job]) -> None:
        """Renew the leases of these, too."""
        with self._room:
            self._out.update(jobs)

    # ---- renewing ------------------------------------------------------------------------

    def _start(self) -> None:
        with self._room:
            if self._renewer is None and not self._stopped.is_set():
                self._renewer = threading.Thread(target=self._run, name="esker-renew", daemon=True)
                self._renewer.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._lease_us / 1e6 / RENEWALS):
            if not self.renew():
                return

    def renew(self) -> bool:
        """Extend every lease that is out. False when the store is closed."""
        with self._room:
            self._drop_settled()
            held = list(self._out)
        try:
            if held:
                self._queue.extend(held, self._lease_us / 1e6)
        except StaleLease as problem:  # they are marked; the others were extended
            LOG.warning("%s", problem)
        except StoreClosed:
            return False
        except EskerError as problem:
            LOG.warning("leases of queue %r are not renewed: %s", self._queue.name, problem)
        now = self._clock.monotonic()
        for job in held:
            if job.deadline <= now and not job.settled:
                job.lost = True
        return True

    # ---- stopping ------------------------------------------------------------------------

    def stop(self) -> None:
        """Hand out no more; those who wait for a job are told. From any thread, or a signal."""
        self._stopped.set()

    def close(self) -> None:
        """Stop, and give back what nobody has begun."""
        self.stop()
        with self._room:
            unused = [job for job in self._ahead if not job.settled]
            self._ahead.clear()
            self._room.notify_all()
        try:
            if unused:
                self._queue.release(unused)
        except EskerError as problem:
            LOG.warning("giving jobs back: %s", problem)
        renewer = self._renewer
        if renewer is not None and renewer is not threading.current_thread():
            renewer.join(5)

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def process(
    queue: Queue, handler: Callable[[Job], Any], workers: int, lease: float | str | None,
    wait: float | None, on_error: Callable[[Job, BaseException], None] | None,
) -> int:  # fmt: skip
    """Call a handler with every job; returns how many were acked."""
    work = Work(queue, workers, lease, wait)
    problems: list[BaseException] = []
    done = [0] * workers
    # not by joining: an interrupt there makes Python take the thread for one that has ended
    ended = [threading.Event() for _ in range(workers)]

    def run(place: int) -> None:
        try:
            for job in work:
                try:
                    handler(job)
                except Exception as problem:
                    if not job.settled:
                        give_up(job, problem)
                    if on_error is not None:
                        on_error(job, problem)
                    continue
                done[place] += _finish(job, on_error)
        except BaseException as problem:
            problems.append(problem)
            work.stop()
        finally:
            ended[place].set()

    threads = [
        threading.Thread(target=run, args=(place,), name=f"esker-work-{place}", daemon=True)
        for place in range(workers)
    ]
    try:
        for thread in threads:
            thread.start()
        for event in ended:
            event.wait()
    finally:
        work.stop()
        for event, thread in zip(ended, threads, strict=True):
            if thread.ident is not None:  # it was started
                event.wait()
                thread.join()
        work.close()
    for first in problems:
        raise first
    return sum(done)


def _finish(job: Job, on_error: Callable[[Job, BaseException], None] | None) -> int:
    """Ack a job whose handler has returned; 0 if its lease is lost."""
    if job.settled:
        return 1
    try:
        job.check()
        job.ack()
    except StaleLease as problem:
        if on_error is not None:
            on_error(job, problem)
        LOG.warning("%s", problem)
        return 0
    return 1
