"""`esker route …`: records that go from topic to topic by themselves. See docs/routes.md.

Routes are run by whoever has the store open for writing: a server, or a program. This command
defines them, and does not run them.
"""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

from esker.cli.groups import MOVE
from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, number, seconds, tell

ROW: Final = (
    Column("ROUTE", lambda row: row.route, wide=True),
    Column("FROM", lambda row: row.source, wide=True),
    Column("TO", lambda row: row.destination, wide=True),
    Column("WHERE", lambda row: row.where, wide=True),
    Column("STATE", lambda row: row.state + (f": {row.reason}" if row.reason else ""), wide=True),
    Column("BEHIND", lambda row: number(row.records), right=True),
    Column("LAG", lambda row: seconds(row.seconds), right=True),
)


def add(
    source: str, destination: str, /, *,
    name: str | None = None,
    where: str = "",
    start: Annotated[
        str, Parameter(name=["--start", "-s"], allow_leading_hyphen=True)
    ] = "earliest",
    exactly_once: Flag = False,
    merge: Flag = False,
    allow_cycles: Flag = False,
    hops: int = 8,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Forward what is appended to one topic to another one, from now on.

    Parameters
    ----------
    source
        The topic that records come from.
    destination
        The topic that they go to.
    name
        What it is called. Default: SOURCE->DESTINATION.
    where
        Only records that match a filter. See docs/filters.md.
    start
        Where it begins: earliest, latest, 17, -100, @2026-11-15T10:00, @-15m.
    exactly_once
        No record arrives twice, also after a crash.
    merge
        The destination may have fewer shards.
    allow_cycles
        It may close a circle; --hops ends it.
    hops
        A record makes so many at the most.
    """
    from esker.cli.look import route_states

    with place.open("rw") as store:
        made = store.route(
            source, destination, where=where, name=name, start=start, exactly_once=exactly_once,
            merge=merge, allow_cycles=allow_cycles, hops=hops,
        )  # fmt: skip
        (state,) = [each for each in route_states(store) if each.route == made.name]
    tell(shown, state, f"route {state.route!r} is there; a server, or a program that has the store "
         "open for writing, runs it")  # fmt: skip
    return 0


def ls(*, place: Place = HERE, shown: Shown = USUAL) -> int:
    """List routes, whether they run, and how far behind they are."""
    from esker.cli.look import route_states

    with place.open() as store:
        rows = route_states(store)
    answer(shown, {"routes": rows}, rows, ROW, empty="no routes")
    return 0


def seek(
    route: str, to: Annotated[str, Parameter(allow_leading_hyphen=True)], /, *,
    shard: int | None = None,
    dry_run: Flag = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Go on from another place. Back means that records are forwarded again.

    Parameters
    ----------
    route
        Its name.
    to
        earliest, latest, 17, -100, @2026-11-15T10:00, @-15m.
    shard
        Only in this shard.
    dry_run
        Say what it would mean, and do nothing.
    """
    with place.open("rw") as store:
        moves = store.route(name=route).seek(to, shard, dry_run=dry_run)
    answer(shown, {"dry_run": dry_run, "moves": moves}, moves, MOVE, empty="nothing moves")
    return 0


def pause(route: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Forward nothing until it is resumed.

    Parameters
    ----------
    route
        Its name.
    """
    with place.open("rw") as store:
        store.route(name=route).pause()
    tell(shown, {"paused": True}, f"route {route!r} is paused")
    return 0


def resume(route: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Go on after a pause.

    Parameters
    ----------
    route
        Its name.
    """
    with place.open("rw") as store:
        store.route(name=route).resume()
    tell(shown, {"paused": False}, f"route {route!r} goes on")
    return 0


def rm(route: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Forget a route. What it forwarded stays.

    Parameters
    ----------
    route
        Its name.
    """
    with place.open("rw") as store:
        store.route(name=route).delete()
    tell(shown, {"route": route, "deleted": True}, f"route {route!r} is forgotten")
    return 0
