"""Numbers as pictures of a page. Pure: text comes out; colours are names of the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 860
LEFT: Final = 64
RIGHT: Final = 16
TOP: Final = 26


class Line(NamedTuple):
    """A mark across a chart."""

    at: float  # seconds
    text: str


def _round_top(value: float) -> float:
    """The next number above that a person would write on an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(str(int(value))) - 1)
    return next(
        step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value
    )


def area(
    values: Sequence[float], seconds: float, marks: Sequence[Line], name: str, height: int = 220,
    colour: str = "var(--one)",
) -> str:  # fmt: skip
    """Values over time as a filled curve, with marks across it."""
    top = _round_top(max(values, default=0.0))
    inner, floor = WIDTH - LEFT - RIGHT, height - 24
    tall = floor - TOP

    def x(part: float) -> float:
        return LEFT + inner * min(1.0, max(0.0, part))

    def y(value: float) -> float:
        return floor - tall * value / top

    count = max(1, len(values))
    points = " ".join(
        f"{x((number + 0.5) / count):.1f},{y(value):.1f}" for number, value in enumerate(values)
    )
    parts = [_head(name, height)]
    for step in range(5):
        value = top * step / 4
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}"/>'
            f'<text class="axis" x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f"{value:,.0f}</text>"
        )
    for step in range(6):
        at = seconds * step / 5
        parts.append(
            f'<text class="axis" x="{x(step / 5):.1f}" y="{height - 6}" text-anchor="middle">'
            f"{at:.0f} s</text>"
        )
    parts.append(
        f'<polygon points="{x(0):.1f},{floor} {points} {x(1):.1f},{floor}" fill="{colour}" '
        f'fill-opacity="0.18"/>'
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
        f'stroke-linejoin="round"/>'
    )
    parts += [_mark(x(mark.at / max(seconds, 1e-9)), mark.text, floor) for mark in marks]
    return "\n".join([*parts, "</svg>"])


def _mark(at: float, text: str, floor: int) -> str:
    anchor = "start" if at < WIDTH - 160 else "end"
    shift = 5 if anchor == "start" else -5
    return (
        f'<line class="kill" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 12}" y2="{floor}"/>'
        f'<text class="killed" x="{at + shift:.1f}" y="{TOP - 4}" text-anchor="{anchor}">'
        f"✗ {escape(text)}</text>"
    )


def rows(values: Sequence[tuple[str, str, float]], name: str) -> str:
    """Bars from left to right on a scale of powers of ten: group, label, value."""
    height = 22 * len(values) + 16
    least = min((value for _, _, value in values if value > 0), default=1.0)
    most = max((value for _, _, value in values), default=1.0)
    low = 10.0 ** max(0, len(str(int(least))) - 2)
    span = max(_log(most / low), 1e-9)
    parts = [_head(name, height)]
    groups = list(dict.fromkeys(group for group, _, _ in values))
    for number, (group, label, value) in enumerate(values):
        top = 8 + 22 * number
        wide = max(2.0, (WIDTH - 190 - 110) * _log(max(value, low) / low) / span)
        colour = f"var(--{('one', 'two', 'three')[groups.index(group) % 3]})"
        parts.append(
            f'<text class="axis" x="180" y="{top + 13}" text-anchor="end">{escape(group)}, '
            f"{escape(label)}</text>"
            f'<rect x="190" y="{top + 2}" width="{wide:.1f}" height="15" rx="3" fill="{colour}"/>'
            f'<text class="value" x="{190 + wide + 8:.1f}" y="{top + 14}">{value:,.0f}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _log(value: float) -> float:
    """How often ten is in it."""
    from math import log10

    return log10(value) if value > 0 else 0.0


def _head(name: str, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title>"
    )
