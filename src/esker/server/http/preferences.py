"""What a client would rather have: `Accept` and `If-None-Match`, as RFC 9110 has them.

Caches and proxies rewrite both: a proxy that compresses makes a tag weak (`W/"…"`), a cache asks
for several tags at once, and libraries say with `q` what they take if need be.
"""

from __future__ import annotations

from collections.abc import Sequence


def preferred(accept: str, offered: Sequence[str]) -> str | None:
    """The offered media type that is wanted most; None if none of them is.

    Of those wanted alike it is the one that is named first, and what nobody named comes last.
    """
    if accept in offered:
        return accept
    if accept.strip() in ("", "*/*"):
        return offered[0]
    ranges = [_range(part) for part in accept.split(",")]
    best, chosen = (0.0, 0), None
    for media in offered:
        fits = [
            (_closeness(wanted, media), quality, -place)
            for place, (wanted, quality) in enumerate(ranges)
        ]
        closest, quality, place = max(fits)
        if closest and quality and (chosen is None or (quality, place) > best):
            best, chosen = (quality, place), media
    return chosen


def _range(part: str) -> tuple[str, float]:
    """A media range and how much it is wanted, from 0 to 1."""
    media, *parameters = (each.strip().lower() for each in part.split(";"))
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return media, min(1.0, max(0.0, float(value)))
            except ValueError:
                break  # as if it were not there
    return media, 1.0


def _closeness(wanted: str, media: str) -> int:
    """How closely a range names a type: 3 by its name, 0 not at all."""
    if wanted == media:
        return 3
    if wanted.endswith("/*") and wanted != "*/*":
        return 2 if media.startswith(wanted[:-1]) else 0
    return 1 if wanted in ("*/*", "*") else 0


def is_known(if_none_match: str | None, tag: str) -> bool:
    """Whether a client has what is under this tag; weak or not makes no difference here."""
    if if_none_match is None:
        return False
    known = [each.strip().removeprefix("W/") for each in if_none_match.split(",")]
    return tag in known or known == ["*"]
