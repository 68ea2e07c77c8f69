"""How important a topic is.

    P = priority                       from -1000 to 1000, where somebody has set one
    P = 500 * 2^(-idle / 30 s)         where nobody has: what is being read is worth more; after
                                       five minutes without a reader it is worth nothing
    P + 100 for each second of waiting, at most 1000; after ten seconds a topic is in the top band
                                       whatever it was before

Bands and their weights, from the top: 750 and more, 500, 250, 0, and what is below zero.
"""

from __future__ import annotations

from typing import Final

LIMIT: Final = 1_000.0
RECENT: Final = 500.0
HALF_SECONDS: Final = 30.0
FORGOTTEN_SECONDS: Final = 300.0
AGEING: Final = 100.0  # for each second of waiting
TOP_SECONDS: Final = 10.0  # nobody waits longer for the top band

FLOORS: Final = (float("-inf"), 0.0, 250.0, 500.0, 750.0)  # of bands 0 to 4
WEIGHTS: Final = (1, 1, 2, 4, 8)
TOP: Final = len(FLOORS) - 1


def worth(priority: float | None, idle_seconds: float | None) -> float:
    """What a topic is worth before it waits; `idle_seconds` is None if nobody ever read it."""
    if priority is not None:
        return max(-LIMIT, min(LIMIT, priority))
    if idle_seconds is None or idle_seconds >= FORGOTTEN_SECONDS:
        return 0.0
    return RECENT * float(2.0 ** (-max(0.0, idle_seconds) / HALF_SECONDS))


def aged(base: float, waited_seconds: float) -> float:
    """What it is worth after waiting."""
    return base + min(LIMIT, AGEING * max(0.0, waited_seconds))


def band_of(value: float) -> int:
    """The band of a worth: 4 is the top."""
    return next(band for band in range(TOP, -1, -1) if value >= FLOORS[band])


def rises_after(base: float, band: int) -> float:
    """After how many seconds of waiting a topic leaves this band for a higher one."""
    if band >= TOP:
        return float("inf")
    return min(TOP_SECONDS, max(0.0, (FLOORS[band + 1] - base) / AGEING))


def band_after(base: float, waited_seconds: float) -> int:
    """The band of a topic that has waited so long."""
    return TOP if waited_seconds >= TOP_SECONDS else band_of(aged(base, waited_seconds))
