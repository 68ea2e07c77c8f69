"""A clock that is moved by hand, so that lingering, ticking and ageing take no time to test."""

from __future__ import annotations

from datetime import UTC, datetime


class ManualClock:
    """Stands still until `forward` is called. Wall time and monotonic time move together."""

    def __init__(self, now_us: int = 1_800_000_000_000_000, monotonic: float = 1_000.0) -> None:
        self._now_us = now_us
        self._monotonic = monotonic

    def __repr__(self) -> str:
        now = datetime.fromtimestamp(self._now_us / 1e6, UTC)
        return f"<esker clock, stands at {now:%Y-%m-%d %H:%M:%S} UTC>"

    def now_us(self) -> int:
        """Microseconds since 1970, UTC, as this clock has it."""
        return self._now_us

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        return self._monotonic

    def forward(self, seconds: float) -> None:
        """Let time pass. The monotonic clock never goes back, so neither does this."""
        if seconds < 0:
            raise ValueError("time does not go back; use set_wall for a clock that was put back")
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def set_wall(self, now_us: int) -> None:
        """Set the wall clock, forward or back, as an operator or NTP may."""
        self._now_us = now_us
