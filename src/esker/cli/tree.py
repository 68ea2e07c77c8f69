"""The tree of commands. A module is imported when a command of it is run, or asked for its help.

So `esker --help` imports nothing but this: neither Arrow nor a server. What stands here of each
command is its line in that list; its own module has the rest. A newcomer finds a verb in one guess:
`esker queue peek` is `peek` in queues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cyclopts import App, Group
from cyclopts.command_spec import CommandSpec

from esker.version import VERSION

_RECORDS: Final = Group("Records", sort_key=1)
_TOPICS: Final = Group("Topics", sort_key=2)
_READERS: Final = Group("Readers, jobs, routes", sort_key=3)
_UPKEEP: Final = Group("Looking after a store", sort_key=4)
_SERVER: Final = Group("Server and programs", sort_key=5)
_HELP: Final = Group("To begin with", sort_key=0)
_FLAGS: Final = Group("Flags", sort_key=9)


class _Later(CommandSpec):
    """A command that is imported when it is needed; its help is then its own docstring."""

    def resolve(self, parent_app: App) -> App:
        line, self.help = self.help, None
        try:
            return super().resolve(parent_app)
        finally:
            self.help = line


def _app(name: str, text: str, group: Group | None = None, alias: str | None = None) -> App:
    more: dict[str, Any] = {} if group is None else {"group": group}
    return App(
        name=name, help=text, alias=alias, version_flags=[], help_flags=["-h", "--help"],
        help_format="plaintext", **more,
    )  # fmt: skip


app: Final = App(
    name="esker",
    help="An embedded, durable, segmented append-only log. Which store: --data DIR or --url URL, "
    "ESKER_DATA or ESKER_URL; else ./data. See docs/cli.md.",
    version=f"esker {VERSION}",
    version_flags=["--version"],
    help_flags=["-h", "--help"],
    help_format="plaintext",
    result_action="return_value",
)
app["--help"].group = (_FLAGS,)
app["--version"].group = (_FLAGS,)

group: Final = _app("group", "Readers that share a topic and remember where they are.", _READERS)
queue: Final = _app("queue", "Jobs under leases: put, claim, ack, dead letters.", _READERS)
dead: Final = _app("dead", "Jobs that were given up.")
route: Final = _app("route", "Records that go from topic to topic by themselves.", _READERS)
retention: Final = _app("retention", "What caps, ages and budgets take away.", _UPKEEP)
keys: Final = _app("keys", "Keys for a server: who may do what.", _SERVER, alias="key")
config: Final = _app("config", "What is set, and by whom.", _SERVER)

_COMMANDS: Final = (
    (app, _HELP, "showing:demo", "demo", "See it work: a shop on this machine, and its crashes."),
    (app, _HELP, "showing:cheat", "cheat", "The commands that people need, to be copied."),
    (app, _HELP, "showing:completion", "completion", "Completion for bash, zsh or fish."),
    (app, _RECORDS, "append:append", "append", "Append records, durably."),
    (app, _RECORDS, "read:read", "read", "Print records."),
    (app, _RECORDS, "read:tail", "tail", "Print the last records; -f goes on with those to come."),
    (app, _RECORDS, "transfer:export", "export", "Write a topic to a file, or as another log."),
    (app, _RECORDS, "transfer:import_", "import", "Append a file, or copy another log."),
    (app, _RECORDS, "sql:sql", "sql", "Ask topics in SQL, with DuckDB."),
    (app, _TOPICS, "topics:ls", "ls", "List topics."),
    (app, _TOPICS, "topics:info", "info", "Show a topic: shards, offsets, options."),
    (app, _TOPICS, "topics:report", "report", "Everything at a glance: topics, groups, queues."),
    (app, _TOPICS, "topics:create", "create", "Create a topic."),
    (app, _TOPICS, "topics:alter", "alter", "Change options of a topic."),
    (app, _TOPICS, "topics:rm", "rm", "Delete topics, or records of one."),
    (app, _TOPICS, "top:top", "top", "Watch rates, lags and queues, live."),
    (group, None, "groups:ls", "ls", "List groups, and how far behind they are."),
    (group, None, "groups:info", "info", "Show a group, shard by shard."),
    (group, None, "groups:create", "create", "Make a group that begins somewhere."),
    (group, None, "groups:seek", "seek", "Put a group somewhere else."),
    (group, None, "groups:pause", "pause", "Deliver nothing until it is resumed."),
    (group, None, "groups:resume", "resume", "Go on after a pause."),
    (group, None, "groups:rm", "rm", "Forget a group."),
    (queue, None, "queues:stats", "stats", "How many jobs are where."),
    (queue, None, "queues:create", "create", "Make a queue, or change its options."),
    (queue, None, "queues:put", "put", "Add jobs."),
    (queue, None, "queues:peek", "peek", "Show the jobs that come next; claims none."),
    (queue, None, "queues:claim", "claim", "Claim jobs: print them, or run a command for each."),
    (queue, None, "queues:ack", "ack", "These jobs are done."),
    (queue, None, "queues:nack", "nack", "These jobs failed: try them again."),
    (queue, None, "queues:pause", "pause", "Hand out nothing until it is resumed."),
    (queue, None, "queues:resume", "resume", "Hand out jobs again."),
    (dead, None, "dead:ls", "ls", "Show jobs that were given up."),
    (dead, None, "dead:requeue", "requeue", "Put them back into their queue."),
    (dead, None, "dead:purge", "purge", "Throw them away."),
    (route, None, "routes:add", "add", "Forward from one topic to another one."),
    (route, None, "routes:ls", "ls", "List routes, whether they run, how far behind they are."),
    (route, None, "routes:seek", "seek", "Go on from another place."),
    (route, None, "routes:pause", "pause", "Forward nothing until it is resumed."),
    (route, None, "routes:resume", "resume", "Go on after a pause."),
    (route, None, "routes:rm", "rm", "Forget a route; what it forwarded stays."),
    (retention, None, "retaining:plan", "plan", "What would be evicted now; changes nothing."),
    (retention, None, "retaining:run", "run", "Evict it now."),
    (app, _UPKEEP, "moving:tier", "tier", "Move sealed segments to the cold store, or back."),
    (app, _UPKEEP, "moving:archive", "archive", "Write what is sealed as Parquet files."),
    (app, _UPKEEP, "checking:verify", "verify", "Check every byte; changes nothing."),
    (app, _UPKEEP, "checking:repair", "repair", "Make a damaged store whole; keeps the evidence."),
    (app, _UPKEEP, "checking:du", "du", "How much room each topic takes."),
    (app, _UPKEEP, "doctor:doctor", "doctor", "Look at machine and store; say what to do next."),
    (app, _UPKEEP, "copying:backup", "backup", "Copy a store, also while it is written."),
    (app, _UPKEEP, "copying:restore", "restore", "Make a store of a backup."),
    (app, _UPKEEP, "bench:bench", "bench", "How fast is this disk, by commit class?"),
    (app, _SERVER, "serve:serve", "serve", "The store over HTTP."),
    (keys, None, "keys:new", "new", "Make a key; it is shown once."),
    (keys, None, "keys:ls", "ls", "Show the keys, not their secrets."),
    (keys, None, "keys:revoke", "revoke", "End a key, at once; open streams of it are closed."),
    (keys, None, "keys:forget", "forget", "Take a key out of the file."),
    (config, None, "config:show", "show", "Every setting, its value and where it came from."),
    (app, _SERVER, "spark:spark", "spark", "Jobs over whole logs, run by Spark."),
)


def _grow() -> None:
    for parent, kind, target, name, text in _COMMANDS:
        # spark has a parser of its own, made of the jobs, which need PySpark
        more: dict[str, Any] = {"help_flags": []} if name == "spark" else {}
        later = _Later(f"esker.cli.{target}", name=name, app_kwargs=more, help=text, group=kind)
        parent._commands[name] = later
    queue.command(dead)
    for branch in (group, queue, route, retention, keys, config):
        app.command(branch)


_grow()


def known(chain: Sequence[str]) -> list[str]:
    """The names of the commands below one; imports none of them."""
    found = app
    for name in chain:
        below = found._commands.get(name)
        if not isinstance(below, App):
            return []
        found = below
    return sorted(name for name in found._commands if not name.startswith("-"))
