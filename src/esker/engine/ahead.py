"""Reading ahead in a cold store: the next segment is fetched while this one is read.

A reader that goes on in a segment that lies elsewhere, or comes to it from the one before, will
want the next one. One thread fetches it into the cache (storage/maps.py) meanwhile; whoever comes
to it then finds it there, or waits for the rest. One segment at a time, and only where the cache
has room for both. What fails is told to the reader, when it comes to it. The thread is started when
it is first needed, ends when it was idle for a while, and there is none with `background=False`.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from esker.errors import EskerError
from esker.storage.maps import Fetched
from esker.storage.sealed import SealedSegment
from esker.storage.segment import Segment

IDLE_SECONDS = 2.0
CLOSING_SECONDS = 0.2  # that closing waits for a cold store, which may never answer


class Ahead:
    """Fetches what readers will want next."""

    def __init__(self, cold: Fetched) -> None:
        self._cold = cold
        self._lock = threading.Lock()  # guards everything below
        self._next: SealedSegment | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def want(self, segment: Segment, following: Segment) -> None:
        """A segment is read from its beginning to its end: have the next one, if both are cold."""
        if not isinstance(segment, SealedSegment) or not isinstance(following, SealedSegment):
            return
        place = following.place if segment.cold else None
        if place is None or not self._cold.has_room_for(place):
            return
        with self._lock:
            if self._stopped:
                return
            self._next = following
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="esker-ahead", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake.wait(IDLE_SECONDS)
            with self._lock:
                segment, self._next = self._next, None
                self._wake.clear()
                if segment is None or self._stopped:
                    self._thread = None
                    return
            with suppress(EskerError):  # told to who reads it
                segment.inside()

    def stop(self) -> None:
        """Fetch nothing more; a fetching that is under way is not waited for."""
        with self._lock:
            self._stopped, self._next, thread = True, None, self._thread
            self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING_SECONDS)

    def let_go(self) -> None:
        """In a forked child: the thread is not in the child."""
        self._lock, self._stopped, self._thread = threading.Lock(), True, None
