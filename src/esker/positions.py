"""Where to start: one grammar for every interface.

    earliest        the first record that is still there
    latest          behind the last one
    N               the record with that offset
    -N              N records before the end
    @ISO-time       the first record at or after that time (naive times are UTC)
    @-15m           the first record of the last 15 minutes (us, ms, s, m, h, d, w)

A position is parsed here, without a log; `esker.engine.reader` turns it into an offset.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from esker.errors import InvalidPosition

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

UNIT_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_AGO = re.compile(r"-(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)", re.ASCII)
_NUMBER = re.compile(r"(-?)(\d{1,19})", re.ASCII)
OFFSET_MAX: Final = (1 << 63) - 1  # what is further on is never reached, either
_PLUS = re.compile(r"\d \d\d(:?\d\d)?$", re.ASCII)  # of a time zone: decoded, it is a space
_GRAMMAR = "a position is one of: earliest, latest, N, -N, @2026-11-15T10:00, @-15m"


class Position(NamedTuple):
    """A parsed starting point: `kind` is offset, back, time, earliest or latest."""

    kind: str
    number: int = 0


def parse(text: object, now_us: int) -> Position:
    """Parse a position given as text, int, datetime or None (None means earliest)."""
    match text:
        case None:
            return Position(EARLIEST)
        case bool():
            raise InvalidPosition(f"{text!r} is not a position; {_GRAMMAR}")
        case int():
            return _counted("offset", text) if text >= 0 else _counted("back", -text)
        case datetime():
            return Position("time", _micros(text))
        case str():
            return _parse_text(text.strip(), now_us)
        case _:
            raise InvalidPosition(f"{text!r} is not a position; {_GRAMMAR}")


def _parse_text(text: str, now_us: int) -> Position:
    if text in (EARLIEST, LATEST):
        return Position(text)
    number = _NUMBER.fullmatch(text)
    if number:
        return _counted("back" if number[1] else "offset", int(number[2]))
    if text.startswith("@"):
        ago = _AGO.fullmatch(text[1:])
        if ago:
            microseconds = float(ago[1]) * UNIT_US[ago[2]]
            return Position("time", now_us - int(min(microseconds, 1 << 62)))
        try:
            return Position("time", _micros(datetime.fromisoformat(text[1:])))
        except ValueError:
            pass
    lost = "; in a URL a + is written %2B" if _PLUS.search(text) else ""
    raise InvalidPosition(f"{text!r} is not a position; {_GRAMMAR}{lost}")


def _counted(kind: str, number: int) -> Position:
    return Position(kind, min(number, OFFSET_MAX))


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
