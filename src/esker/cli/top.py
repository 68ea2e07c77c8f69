"""`esker top`: rates, lags and queues, live, until Ctrl-C. Over a URL as over a directory."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import msgspec

from esker.cli.failing import Usage
from esker.cli.groups import called
from esker.cli.place import HERE, Place
from esker.cli.shown import console, number, safe, seconds, size
from esker.clock import SYSTEM_CLOCK

LEAST: Final = 0.2  # seconds between two looks


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

    before = look(store)
    with Live(view(store.path, before, before), console=console(), screen=True) as live:
        left = rounds
        while left is None or left > 0:
            time.sleep(interval)
            now = look(store)
            live.update(view(store.path, before, now), refresh=True)
            before = now
            left = None if left is None else left - 1


def _plain(store: Any, interval: float, rounds: int) -> None:
    out = console()
    out.width = 100
    before = look(store)
    for _ in range(rounds):
        time.sleep(interval)
        now = look(store)
        out.print(view(store.path, before, now))
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


def view(path: str, before: Seen, now: Seen) -> Any:
    """Two looks as tables: how much there is, and how much came between them."""
    from rich.console import Group
    from rich.text import Text

    length = max(now.when - before.when, 1e-9)

    def rate(topic: str, which: int) -> float:
        old = before.written.get(topic, (0, 0))[which]
        return max(0, now.written[topic][which] - old) / length

    parts: list[Any] = [Text(safe(f"esker top: {path}, {len(now.topics)} topics"), style="bold")]
    parts.append(_table(
        ("TOPIC", "RECORDS", "SIZE", "RECORDS/S", "BYTES/S"),
        [(each.topic, number(each.records), size(each.bytes), number(rate(each.topic, 0)),
          size(int(rate(each.topic, 1)))) for each in now.topics],
    ))  # fmt: skip
    if now.groups:
        parts.append(_table(
            ("GROUP", "TOPIC", "BEHIND", "LAG", "MEMBERS"),
            [(called(each.group, now.routes), each.topic, number(each.records),
              seconds(each.seconds), number(each.members)) for each in now.groups],
        ))  # fmt: skip
    if now.queues:
        parts.append(_table(
            ("QUEUE", "READY", "LEASED", "DELAYED", "DEAD", "OLDEST"),
            [(each.queue, number(each.ready), number(each.leased), number(each.delayed),
              number(each.dead), seconds(each.oldest_seconds)) for each in now.queues],
        ))  # fmt: skip
    return Group(*parts)


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for at, title in enumerate(titles):
        made.add_column(title, justify="right" if at else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(safe(cell)) for cell in row))
    return made
