"""The one clock.

Everything that needs the time is given a `Clock`. The system's is here; a test passes its own
and moves it by hand, so that ageing, lingering and ticking take no real time to test.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for waiting."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
