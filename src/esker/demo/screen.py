"""What one sees: on a terminal bars, colours and a plot that grows; elsewhere plain lines.

What has happened is said once, in a line, and stays. What is going on is shown below it, on a
terminal all the time, elsewhere every few seconds.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from esker.clock import SYSTEM_CLOCK
from esker.demo import plot
from esker.demo.goods import ORDERS
from esker.demo.meter import Meter, Sample, rates

PLAIN_SECONDS: Final = 2.0  # between two lines of what is going on
PLAIN_WAIT_SECONDS: Final = 5.0  # if there is nothing to be seen but that it takes its time
PLOT_WIDTH, PLOT_HEIGHT = 72, 8
LIVE_HEIGHT: Final = 5


class Screen:
    """Says and shows."""

    def __init__(self) -> None:
        reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal that knows no blocks gets question marks
        self.console = Console(highlight=False, soft_wrap=True)
        self.pretty = self.console.is_terminal
        self._live: Live | None = None
        self._next = 0.0

    # ---- what stays --------------------------------------------------------------------------

    def say(self, text: str = "", style: str = "", *, whole: bool = False) -> None:
        """A line. On a terminal it is wrapped below its beginning, unless it is to be pasted."""
        if self.pretty and not whole and len(text) > self.console.width:
            indent = len(text) - len(text.lstrip(" "))
            shown = Padding(Text(text.strip(), style=style), (0, 0, 0, indent))
            self.console.print(shown, soft_wrap=False)
        else:
            self.console.print(Text(text, style=style))

    def event(self, at: float, text: str, style: str = "") -> None:
        """Something has happened, so many seconds after the beginning."""
        if self.pretty:
            row = Table.grid(padding=(0, 2))
            row.add_column(justify="right", min_width=8, no_wrap=True)
            row.add_row(Text(f"{at:.1f} s", style="dim"), Text(text, style=style))
            self.console.print(row, soft_wrap=False)
        else:
            self.say(f"  {at:4.1f} s  {text}", style)

    def act(self, text: str) -> None:
        """Something begins."""
        self.console.print(Text(f"\n{text}", style="bold cyan"))

    def table(self, rows: list[tuple[str, ...]], right: str = "") -> None:
        """Rows, the first of which are names; `right` has an r for each column that is numbers."""
        grid = Table.grid(padding=(0, 2))
        for number in range(len(rows[0])):
            justify = "right" if right[number : number + 1] == "r" else "left"
            grid.add_column(justify=justify, no_wrap=not self.pretty)  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            grid.add_row(*(Text(cell, style="dim" if number == 0 else "") for cell in row))
        self.console.print(grid, soft_wrap=False, crop=False, overflow="ignore")

    def plot(self, meter: Meter, samples: list[Sample]) -> None:
        """Orders over time, with the kills."""
        for line in _plotted(meter, samples, self._width(), PLOT_HEIGHT):
            self.console.print(line)

    # ---- what is going on --------------------------------------------------------------------

    def show(self, meter: Meter, sample: Sample, part: float) -> None:
        """How the shop is doing; `part` of the time is over."""
        now = meter.since_the_beginning(sample)
        if self.pretty:
            plotted = _plotted(meter, meter.samples, self._width(), LIVE_HEIGHT)
            self._update(Group(_actors(meter, now, part), Text(""), *plotted))
        elif SYSTEM_CLOCK.monotonic() >= self._next:
            self._next = SYSTEM_CLOCK.monotonic() + PLAIN_SECONDS
            self.say(
                f"  {now.orders:,} orders ({meter.rate():,.0f}/s, p99 "
                f"{meter.percentile(0.99):.1f} ms), {now.paid:,} payments, {now.done:,} of "
                f"{now.put:,} mails sent, billing {max(0, now.orders - now.billed):,} behind"
            )

    def wait(self, text: str, part: float | None = None) -> None:
        """Something takes its time."""
        if self.pretty:
            row = Table.grid(padding=(0, 1))
            row.add_row(
                Spinner("dots"), Text(text),
                ProgressBar(1.0, part, 30, complete_style="cyan") if part is not None else Text(""),
            )  # fmt: skip
            self._update(row)
        elif SYSTEM_CLOCK.monotonic() >= self._next:
            self._next = SYSTEM_CLOCK.monotonic() + PLAIN_WAIT_SECONDS
            self.say(f"  {text}")

    def settle(self) -> None:
        """Nothing is going on: take it away."""
        self._next = 0.0
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()
            self._live = None

    def _update(self, what: RenderableType) -> None:
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        self._live.update(what, refresh=True)

    def _width(self) -> int:
        return max(20, min(PLOT_WIDTH, self.console.width - 12)) if self.pretty else PLOT_WIDTH


def _actors(meter: Meter, now: Sample, part: float) -> Table:
    """A line for each that works."""
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "left"):
        grid.add_column(justify=justify)
    behind = max(0, now.orders - now.billed)
    for name, done, total, count, text in (
        ("shop", part, 1.0, f"{now.orders:,}",
         f"orders   {meter.rate():,.0f}/s durable, p99 {meter.percentile(0.99):.1f} ms"),
        ("clicks", part, 1.0, f"{now.clicks:,}", "clicks   the oldest are evicted"),
        ("route", float(now.paid), max(1.0, now.orders * 2 / 3), f"{now.paid:,}",
         "payments   orders that are paid"),
        ("workers", float(now.done), max(1.0, float(now.put)), f"{now.done:,}",
         f"mails   of {now.put:,} jobs"),
        ("billing", float(now.billed), max(1.0, float(now.orders)), f"{now.billed:,}",
         f"billed   {behind:,} behind, on purpose"),
    ):  # fmt: skip
        bar = ProgressBar(total, min(done, total), 24, complete_style="cyan", finished_style="cyan")
        grid.add_row(Text(name, style="bold"), bar, count, Text(text, style="dim"))
    return grid


def _plotted(meter: Meter, samples: list[Sample], width: int, height: int) -> list[Text]:
    """The plot, in colours: bars green, what is below the axis red."""
    if len(samples) < 2:
        return []
    begin, end = samples[0].at, samples[-1].at
    span = max(end - begin, 1e-9)
    notes = [
        plot.Note((mark.at - begin) / span, f"✗ {mark.text}")
        for mark in meter.marks
        if mark.kind == "kill" and begin <= mark.at <= end
    ]
    lines = plot.chart(rates(samples, ORDERS, width), notes, span, height)
    styles = ["green"] * height + ["dim"] + ["red"] * (len(lines) - height - 2) + ["dim"]
    return [Text(line, style, no_wrap=True) for line, style in zip(lines, styles, strict=True)]
