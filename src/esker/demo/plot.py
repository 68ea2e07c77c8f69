"""Numbers as blocks of a terminal. Pure.

9,204 ┤      ▂▇▇▆▇
      │    ▂▇████▇      ▃▇▇
    0 ┤▁▃▇▇████████▁ ▁▃▇███
      └──────────────┬───────
       0 s           ✗ writer       12 s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


class Note(NamedTuple):
    """A mark below the axis: at which part of the width, and what it says."""

    part: float
    text: str


def bars(values: Sequence[float], height: int) -> list[str]:
    """Columns of blocks, the highest line first."""
    top = max(values, default=0.0) or 1.0
    eighths = [round(max(0.0, value) / top * height * 8) for value in values]
    return [
        "".join(_EIGHTHS[min(8, max(0, each - 8 * row))] for each in eighths)
        for row in range(height - 1, -1, -1)
    ]


def chart(values: Sequence[float], notes: Sequence[Note], seconds: float, height: int) -> list[str]:
    """Bars with their axes; the lines of the notes come last."""
    top = f"{max(values, default=0.0):,.0f}"
    left = max(len(top), 6)
    width = len(values)
    lines = []
    for number, line in enumerate(bars(values, height)):
        label, tick = ("", "│")
        if number == 0:
            label, tick = top, "┤"
        elif number == height - 1:
            label, tick = "0", "┤"
        lines.append(f"{label:>{left}} {tick}{line}")
    axis = ["─"] * width
    places = [min(width - 1, max(0, int(note.part * width))) for note in notes]
    for place in places:
        axis[place] = "┴"
    lines.append(" " * (left + 1) + "└" + "".join(axis))
    beneath = _beneath(places, [note.text for note in notes], width)
    lines += [" " * (left + 2) + line for line in beneath]
    end = f"{seconds:.0f} s"
    lines.append(" " * (left + 2) + "0 s" + end.rjust(max(0, width - 3)))
    return lines


def _beneath(places: Sequence[int], texts: Sequence[str], width: int) -> list[str]:
    """Texts below their places, on as few lines as they need."""
    lines: list[str] = []
    for place, text in sorted(zip(places, texts, strict=True)):
        place = max(0, min(place, width - len(text)))
        for number, line in enumerate(lines):
            if len(line) < place:
                lines[number] = line.ljust(place) + text
                break
        else:
            lines.append(" " * place + text)
    return lines
