"""`esker group …`: readers that share a topic. See docs/groups.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, counted, number, seconds, tell

if TYPE_CHECKING:
    from esker.engine.store import Store

ROW: Final = (
    Column("TOPIC", lambda row: row.topic, wide=True),
    Column("GROUP", lambda row: row.group, wide=True),
    Column("BEHIND", lambda row: number(row.records), right=True),
    Column("LAG", lambda row: seconds(row.seconds), right=True),
    Column("ETA", lambda row: seconds(row.eta_seconds), right=True),
    Column("MEMBERS", lambda row: number(row.members), right=True),
    Column("", lambda row: "paused" if row.paused else ""),
)
_SHARD: Final = (
    Column("SHARD", lambda row: str(row.shard), right=True),
    Column("CURSOR", lambda row: number(row.cursor), right=True),
    Column("END", lambda row: number(row.end), right=True),
    Column("BEHIND", lambda row: number(row.records), right=True),
    Column("LAG", lambda row: seconds(row.seconds), right=True),
    Column("ACKED", lambda row: number(row.acked), right=True),
    Column("", lambda row: "read now" if row.owned else "nobody reads"),
)
MOVE: Final = (
    Column("TOPIC", lambda row: row.topic, wide=True),
    Column("SHARD", lambda row: str(row.shard), right=True),
    Column("BEFORE", lambda row: number(row.before), right=True),
    Column("AFTER", lambda row: number(row.after), right=True),
    Column("RECORDS", lambda row: f"{row.records:+,}", right=True),
)


def called(group: str, routes: dict[str, str]) -> str:
    """The name of a group; with that of the route that reads in it, if one does."""
    return f"{group} ({routes[group]})" if group in routes else group


def columns(routes: dict[str, str]) -> tuple[Column, ...]:
    """Those of a list of groups, some of which are those of routes."""
    named = Column("GROUP", lambda row: called(row.group, routes), wide=True)
    return tuple(named if each is ROW[1] else each for each in ROW)


def ls(topic: str | None = None, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """List groups, and how far behind they are.

    Parameters
    ----------
    topic
        Only groups of this topic.
    """
    from esker.cli.look import group_states, routes_by_group

    with place.open() as store:
        rows = group_states(store, topic)
        routes = routes_by_group(store, rows)
    answer(shown, {"groups": rows}, rows, columns(routes), empty="no groups")
    return 0


def info(topic: str, group: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Show a group, shard by shard.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    """
    from esker.cli.look import group_state

    with place.open() as store:
        state = group_state(store, topic, group)
    if shown.form != "table":
        answer(shown, state, [state], ())
        return 0
    paused = ", paused" if state.paused else ""
    print(f"group {group!r} of {topic!r}: {counted(state.records, 'record')} behind, "
          f"{seconds(state.seconds)}, {counted(state.members, 'member')}{paused}")  # fmt: skip
    answer(shown, state, state.shards, _SHARD)
    return 0


def create(
    topic: str, group: str, /, *,
    start: Annotated[
        str, Parameter(name=["--start", "-s"], allow_leading_hyphen=True)
    ] = "earliest",
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Make a group that begins somewhere. One that is there stays where it is.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    start
        earliest, latest, 17, -100, @2026-11-15T10:00, @-15m.
    """
    from esker.cli.look import group_state

    with place.open("rw") as store:
        topic_there(store, topic)
        store[topic].group(group, start).close()
        state = group_state(store, topic, group)
    tell(shown, state, f"group {group!r} of {topic!r} is there, "
         f"{counted(state.records, 'record')} behind")  # fmt: skip
    return 0


def seek(
    topic: str, group: str, to: Annotated[str, Parameter(allow_leading_hyphen=True)], /, *,
    shard: int | None = None,
    dry_run: Flag = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Put a group somewhere else. Back means that records come again.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    to
        earliest, latest, 17, -100, @2026-11-15T10:00, @-15m.
    shard
        Only in this shard.
    dry_run
        Say what it would mean, and do nothing.
    """
    with place.open("rw") as store, existing(store, topic, group) as found:
        moves = found.seek(to, shard, dry_run=dry_run)
    answer(shown, {"dry_run": dry_run, "moves": moves}, moves, MOVE, empty="nothing moves")
    if dry_run and shown.form == "table":
        print("nothing was done: leave out --dry-run to do it")
    return 0


def pause(topic: str, group: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Deliver nothing to anybody until it is resumed; what was delivered can be acked.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    """
    with place.open("rw") as store, existing(store, topic, group) as found:
        found.pause()
    tell(shown, {"paused": True}, f"group {group!r} of {topic!r} is paused")
    return 0


def resume(topic: str, group: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Go on after a pause.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    """
    with place.open("rw") as store, existing(store, topic, group) as found:
        found.resume()
    tell(shown, {"paused": False}, f"group {group!r} of {topic!r} goes on")
    return 0


def rm(topic: str, group: str, /, *, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Forget a group; nobody may be reading in it.

    Parameters
    ----------
    topic
        The topic that it reads.
    group
        Its name.
    """
    with place.open("rw") as store:
        store[topic].forget_group(group)
    document = {"topic": topic, "group": group, "forgotten": True}
    tell(shown, document, f"group {group!r} of {topic!r} is forgotten")
    return 0


def existing(store: Store, topic: str, group: str) -> Any:
    """A handle of a group that is there: to look for one must not make it."""
    from esker.cli.look import group_state

    group_state(store, topic, group)
    return store[topic].group(group)


def topic_there(store: Store, topic: str) -> None:
    """Refuse to go on with a topic that is not there, with the nearest name."""
    from esker.cli.look import topic_state

    topic_state(store, topic)
