"""`esker ls`, `info`, `report`, `create`, `alter`, `rm`: topics as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from esker.cli.failing import Usage, say
from esker.cli.place import HERE, Place
from esker.cli.shown import USUAL, Column, Flag, Shown, answer, counted, number, seconds, size, tell
from esker.cli.topic_options import NO_TOPIC_FLAGS, TopicFlags, given
from esker.errors import TopicExists

_ROW = (
    Column("TOPIC", lambda row: row.topic, wide=True),
    Column("RECORDS", lambda row: number(row.records), right=True),
    Column("SIZE", lambda row: size(row.bytes), right=True),
    Column("SHARDS", lambda row: number(row.shards), right=True),
    Column("SEGMENTS", lambda row: number(row.segments), right=True),
    Column("CLASS", lambda row: row.durability),
    Column("", lambda row: "queue" if row.queue else ""),
)


def ls(
    prefix: str = "", /, *,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """List topics.

    Parameters
    ----------
    prefix
        Only topics whose names begin with this.
    """
    from esker.cli.look import topic_row

    with place.open() as store:
        rows = [topic_row(store, name) for name in store if name.startswith(prefix)]
        empty = f"no topics in {store.path}" + (f" begin with {prefix!r}" if prefix else "")
    answer(shown, {"topics": rows}, rows, _ROW, empty=empty)
    return 0


def info(
    topic: str | None = None, /, *,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Show a topic: shards, offsets, options. Without one, what there is in the store.

    Parameters
    ----------
    topic
        Its name.
    """
    if place.data is not None and place.data.startswith("kin+"):
        from esker.cli import kin

        return kin.info(place.data, shown)
    if topic is None:
        return _whole(place, shown)
    from esker.cli.look import topic_state

    with place.open() as store:
        state = topic_state(store, topic)
    if shown.form != "table":
        answer(shown, state, [state], ())
        return 0
    options = {name: value for name, value in state.options.items() if _is_set(name, value)}
    told = ", ".join(f"{name}={value}" for name, value in options.items())
    print(f"{state.topic}: {counted(state.count, 'record')}, epoch {state.epoch}")
    print(f"options: {told}")
    answer(shown, state, state.shards, (
        Column("SHARD", lambda row: str(row.shard), right=True),
        Column("EARLIEST", lambda row: number(row.earliest), right=True),
        Column("END", lambda row: number(row.end), right=True),
        Column("DURABLE", lambda row: number(row.durable), right=True),
    ))  # fmt: skip
    return 0


def _is_set(name: str, value: Any) -> bool:
    """Whether an option is worth a place on a line: those that differ, and the class."""
    import msgspec

    from esker.options import TopicOptions

    defaults = {field.name: field.default for field in msgspec.structs.fields(TopicOptions)}
    return name in ("shards", "durability") or defaults.get(name) != value


def _whole(place: Place, shown: Shown) -> int:
    """A store: where it is, its topics, and what recovery found."""
    from esker.cli.look import is_remote, topic_row

    with place.open() as store:
        rows = [topic_row(store, name) for name in store]
        recovery = [] if is_remote(store) else [str(each) for each in store.recovery.findings]
        document = {"path": store.path, "topics": rows, "recovery": recovery}
        where = store.path
    if shown.form != "table":
        answer(shown, document, [document], ())
        return 0
    records = sum(row.records for row in rows)
    room = size(sum(row.bytes for row in rows))
    print(f"{where}: {counted(len(rows), 'topic')}, {counted(records, 'record')}, {room}")
    for finding in recovery:
        print(f"recovery: {finding}")
    if rows:
        answer(shown, document, rows, _ROW)
    return 0


def report(*, place: Place = HERE, shown: Shown = USUAL) -> int:
    """Everything at a glance: topics, groups with their lag, queues, routes."""
    from esker.cli.look import group_states, queue_state, route_states, topic_row

    with place.open() as store:
        topics = [topic_row(store, name) for name in store]
        groups = group_states(store)
        queues = [queue_state(store, row.topic) for row in topics if row.queue]
        routes = route_states(store)
        where = store.path
    document = {"path": where, "topics": topics, "groups": groups, "queues": queues,
                "routes": routes}  # fmt: skip
    if shown.form != "table":
        answer(shown, document, [document], ())
        return 0
    from esker.cli import groups as of_groups
    from esker.cli import queues as of_queues
    from esker.cli import routes as of_routes

    print(where)
    answer(shown, None, topics, _ROW, empty="no topics")
    for rows, columns in (
        (groups, of_groups.columns({each.group: each.route for each in routes})),
        (queues, of_queues.ROW), (routes, of_routes.ROW),
    ):  # fmt: skip
        if rows:
            answer(shown, None, rows, columns)
    worst = max((each.seconds for each in groups), default=0.0)
    behind = sum(each.records for each in groups)
    dead = sum(each.dead for each in queues)
    records = counted(sum(row.records for row in topics), "record")
    print(
        f"{records}; groups are {counted(behind, 'record')} behind, {seconds(worst)} at the most; "
        f"{counted(dead, 'dead job')}"
    )
    return 0


def create(
    topic: str, /, *, exist_ok: Flag = False,
    options: TopicFlags = NO_TOPIC_FLAGS, place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Create a topic. The store is made if need be. See docs/options.md for the options.

    Parameters
    ----------
    topic
        Its name: letters, digits and . _ : -
    exist_ok
        No error if it is there with the same options.
    """
    from esker.cli.look import topic_state

    with place.open("rw", make=True) as store:
        try:
            store.create(topic, exist_ok=exist_ok, **given(asdict(options)))
        except TopicExists as problem:
            raise TopicExists(
                f"{str(problem).partition(';')[0]}; `esker alter` changes options, and --exist-ok "
                "takes one that has the same"
            ) from None
        state = topic_state(store, topic)
    document = {"topic": topic, "created": True, "epoch": state.epoch, "options": state.options}
    tell(shown, document, f"topic {topic!r} is there: {counted(len(state.shards), 'shard')}, "
         f"{state.options['durability']}")  # fmt: skip
    return 0


def alter(
    topic: str, /, *, options: TopicFlags = NO_TOPIC_FLAGS,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Change options of a topic; all but --shards and --durability.

    Parameters
    ----------
    topic
        Its name.
    """
    from esker.cli.look import topic_state

    wanted = given(asdict(options))
    if not wanted:
        raise Usage("which option? For instance: esker alter orders --ttl 7d")
    with place.open("rw") as store:
        store.alter(topic, **wanted)
        state = topic_state(store, topic)
    changed = ", ".join(f"{name}={value}" for name, value in wanted.items())
    tell(shown, state, f"topic {topic!r}: {changed}")
    return 0


def rm(
    topic: str, /, *topics: str,
    before: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    tag: str | None = None,
    tag_prefix: str | None = None,
    shard: int | None = None,
    missing_ok: Flag = False,
    yes: Annotated[
        bool, Parameter(name=["--yes", "-y"], negative="", show_default=False)
    ] = False,
    place: Place = HERE, shown: Shown = USUAL,
) -> int:  # fmt: skip
    """Delete topics with all that is in them, or records of one. For good.

    On a terminal it asks first; elsewhere it wants --yes.

    Parameters
    ----------
    topic
        Its name.
    topics
        More of them.
    before
        Only the records before this place: an offset, @2026-11-15, @-7d.
    tag
        Only the records with this tag.
    tag_prefix
        Only the records whose tags begin with this.
    shard
        Only this shard; with --before.
    missing_ok
        No error if there is no such topic.
    yes
        Do not ask.
    """
    names = [topic, *topics]
    some = before is not None or tag is not None or tag_prefix is not None
    if some and len(names) > 1:
        raise Usage("--before, --tag and --tag-prefix are for one topic at a time")
    with place.open("rw") as store:
        what = f"records of {topic!r}" if some else ", ".join(map(repr, names))
        _ask(f"delete {what} in {store.path} for good?", yes)
        if some:
            count = store[topic].delete(before, shard=shard, tag=tag, tag_prefix=tag_prefix)
            tell(shown, {"topic": topic, "deleted": count},
                 f"{counted(count, 'record')} of {topic!r} deleted")  # fmt: skip
            return 0
        for name in names:
            there = name in store
            store.delete(name, missing_ok=missing_ok)
            text = f"topic {name!r} deleted" if there else f"no topic {name!r}"
            tell(shown, {"topic": name, "deleted": there}, text)
    return 0


def _ask(question: str, yes: bool) -> None:
    """Ask before what cannot be undone."""
    import sys

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Usage(f"{question} Say --yes: nobody is there to be asked")
    print(f"esker: {question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("nothing was done")
        raise KeyboardInterrupt
