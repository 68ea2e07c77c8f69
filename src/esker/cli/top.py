"""`esker top`: rates, lags and queues, live, until Ctrl-C. Over a URL as over a directory."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import msgspec

from esker.cli.failing import Usage
from esker.cli.groups import called
from esker.cli.place import HERE, Place
from esker.cli.shown import console, counted, fitting, number, safe, seconds, size
from esker.clock import SYSTEM_CLOCK

LEAST: Final = 0.2  # seconds between two looks
LEAST_ROWS: Final = 5  # of topics, however low the terminal is


class Seen(msgspec.Struct):
    """One look at a store."""

    when: float
    topics: list[Any]
    groups: list[Any]
    queues: list[Any]
    written: dict[str, tuple[int, int]]  # records and bytes, ever
    routes: dict[str, str]  # by the groups as which they read


def top(*, interval: float = 1.0, rounds: int | None = None, place: Place = HERE) -> int:
    """Watch rates, lags and queues, live. Ctrl-C ends it.

    Parameters
    ----------
    interval
        Seconds between two looks.
    rounds
        End after so many; elsewhere than on a terminal, one is printed.
    """
    if interval < LEAST:
        raise Usage(f"--interval {interval}: at least {LEAST} seconds")
    with place.open() as store:
        if not sys.stdout.isatty():
            _plain(store, interval, rounds or 1)
            return 0
        _live(store, interval, rounds)
    return 0


def _live(store: Any, interval: float, rounds: int | None) -> None:
    from rich.live import Live

    before, out = look(store), console()
    with Live(
        view(store.path, before, before, out.width, out.height), console=out, screen=True
    ) as live:
        left = rounds
        while left is None or left > 0:
            time.sleep(interval)
            now = look(store)
            live.update(view(store.path, before, now, out.width, out.height), refresh=True)
            before = now
            left = None if left is None else left - 1


def _plain(store: Any, interval: float, rounds: int) -> None:
    out = console()
    out.width = 100
    before = look(store)
    for _ in range(rounds):
        time.sleep(interval)
        now = look(store)
        out.print(view(store.path, before, now, out.width))
        before = now


def look(store: Any) -> Seen:
    """How things stand now."""
    from esker.cli.look import counters, group_states, queue_state, routes_by_group, topic_row

    rows = [topic_row(store, name) for name in store]
    written = {}
    for row in rows:
        found = counters(store, row.topic, row.shards)
        written[row.topic] = (found.get("total_records", 0), found.get("total_bytes", 0))
    queues = [queue_state(store, row.topic) for row in rows if row.queue]
    groups = group_states(store)
    routes = routes_by_group(store, groups)
    return Seen(SYSTEM_CLOCK.monotonic(), rows, groups, queues, written, routes)


def view(path: str, before: Seen, now: Seen, width: int, height: int = 0) -> Any:
    """Two looks as tables: how much there is, and how much came between them.

    Where there is not enough height for all topics, those to which most is written are shown.
    """
    from rich.console import Group
    from rich.text import Text

    length = max(now.when - before.when, 1e-9)

    def rate(topic: str, which: int) -> float:
        old = before.written.get(topic, (0, 0))[which]
        return max(0, now.written[topic][which] - old) / length

    parts: list[Any] = [
        Text(safe(f"esker top: {path}, {counted(len(now.topics), 'topic')}"), style="bold")
    ]
    topics = now.topics
    below = sum(len(some) + 2 for some in (now.groups, now.queues) if some)
    room = max(LEAST_ROWS, height - below - 4)
    if height and len(topics) > room:
        topics = sorted(topics, key=lambda each: -rate(each.topic, 0))[:room]
    parts.append(_table(
        ("TOPIC", "RECORDS", "SIZE", "RECORDS/S", "BYTES/S"),
        [(each.topic, number(each.records), size(each.bytes), number(rate(each.topic, 0)),
          size(int(rate(each.topic, 1)))) for each in topics], width,
    ))  # fmt: skip
    if len(topics) < len(now.topics):
        parts.append(Text(f" and {counted(len(now.topics) - len(topics), 'topic')} more", "dim"))
    if now.groups:
        parts.append(_table(
            ("GROUP", "TOPIC", "BEHIND", "LAG", "MEMBERS"),
            [(called(each.group, now.routes), each.topic, number(each.records),
              seconds(each.seconds), number(each.members)) for each in now.groups], width,
        ))  # fmt: skip
    if now.queues:
        parts.append(_table(
            ("QUEUE", "READY", "LEASED", "DELAYED", "DEAD", "OLDEST"),
            [(each.queue, number(each.ready), number(each.leased), number(each.delayed),
              number(each.dead), seconds(each.oldest_seconds)) for each in now.queues], width,
        ))  # fmt: skip
    return Group(*parts)


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False)
    cells = [[safe(cell) for cell in row] for row in rows]
    names = [title in ("TOPIC", "GROUP", "QUEUE") for title in titles]
    for title, name, fits in zip(
        titles, names, fitting([titles, *cells], names, width), strict=True
    ):
        made.add_column(
            title, justify="left" if name else "right", no_wrap=True, overflow="ellipsis",
            width=fits,
        )  # fmt: skip
    for row in cells:
        made.add_row(*map(Text, row))
    return made
