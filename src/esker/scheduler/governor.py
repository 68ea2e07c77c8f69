"""How hard pressed the server is, and what it does about it.

Every 100 ms a sample is taken of three things, each from 0 to 1:

    depth      dirty topics that wait, of 16 for each worker
    latency    how long they waited for their turn (an average that forgets), of twice 5 ms
    busy       how much of the pool of threads is at work

The *pressure* is 0.4 depth + 0.4 latency + 0.2 busy, smoothed. No single one of them makes a
saturated server: a pool that is busy and serves everybody in time is only busy.

The ladder. A higher pressure never takes a lower rung:

    above 0.2    coalesce: records that come within a window of up to 20 ms go out together
    above 0.4    the commit window widens: 0.5 ms to 10 ms, so that one sync serves more appends
    above 0.8    for a second: push of topics of the lowest band rests, until below 0.6
    0.95         saturated: appends that find the queue full are refused (429), with Retry-After
"""

from __future__ import annotations

from typing import Final

from esker.clock import Clock

SAMPLE_SECONDS: Final = 0.1
TARGET_SECONDS: Final = 0.005
DEPTH_EACH: Final = 16
FORGETS: Final = 0.3  # of what was, at each sample
SMOOTH: Final = 0.5

COALESCE_ABOVE: Final = 0.2
COALESCE_SECONDS: Final = 0.020
COMMIT_ABOVE: Final = 0.4
COMMIT_SECONDS: Final = (0.0005, 0.010)
DEFER_ABOVE: Final = 0.8
DEFER_BELOW: Final = 0.6
DEFER_SECONDS: Final = 1.0
SATURATED: Final = 0.95
RETRY_SECONDS: Final = 1


class Governor:
    """The pressure, and the rungs that follow from it."""

    def __init__(self, clock: Clock, workers: int) -> None:
        self._clock = clock
        self._workers = max(1, workers)
        self._waits = 0.0
        self._waited = 0
        self._high_since: float | None = None
        self.latency = 0.0  # seconds
        self.pressure = 0.0
        self.deferring = False
        self.samples = 0

    def waited(self, seconds: float) -> None:
        """A topic waited so long for its turn."""
        self._waits += max(0.0, seconds)
        self._waited += 1

    def sample(self, ready: int, busy: float) -> float:
        """Look: so many topics wait, and this share of the pool is at work."""
        recent = self._waits / self._waited if self._waited else 0.0
        self._waits, self._waited = 0.0, 0
        self.latency += FORGETS * (recent - self.latency)
        depth = _share(ready / (DEPTH_EACH * self._workers))
        late = _share(self.latency / (2 * TARGET_SECONDS))
        now = 0.4 * depth + 0.4 * late + 0.2 * _share(busy)
        self.pressure = _share(self.pressure + SMOOTH * (now - self.pressure))
        self.samples += 1
        self._defer()
        return self.pressure

    def _defer(self) -> None:
        now = self._clock.monotonic()
        if self.pressure <= DEFER_ABOVE:
            self._high_since = None
        elif self._high_since is None:
            self._high_since = now
        if self._high_since is not None and now - self._high_since >= DEFER_SECONDS:
            self.deferring = True
        if self.pressure < DEFER_BELOW:
            self.deferring = False

    @property
    def coalesce(self) -> float:
        """For how many seconds records are collected before they go out."""
        return coalesce_at(self.pressure)

    @property
    def commit_window(self) -> float | None:
        """For how many seconds appends are collected before a sync; None: as the store has it."""
        return commit_at(self.pressure)

    @property
    def saturated(self) -> bool:
        """Whether there is more to do than can be done."""
        return self.pressure >= SATURATED

    @property
    def rung(self) -> int:
        """How high on the ladder: 0 is the ground, 4 is saturation."""
        if self.saturated:
            return 4
        if self.deferring:
            return 3
        return (self.pressure > COALESCE_ABOVE) + (self.pressure > COMMIT_ABOVE)


def coalesce_at(pressure: float) -> float:
    """The window of coalescing at a pressure."""
    if pressure <= COALESCE_ABOVE:
        return 0.0
    return COALESCE_SECONDS * (pressure - COALESCE_ABOVE) / (1 - COALESCE_ABOVE)


def commit_at(pressure: float) -> float | None:
    """The commit window at a pressure."""
    if pressure <= COMMIT_ABOVE:
        return None
    low, high = COMMIT_SECONDS
    return low + (high - low) * pressure


def _share(value: float) -> float:
    return max(0.0, min(1.0, value))
