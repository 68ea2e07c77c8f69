"""Five commands to try next. Each works as pasted, from where the demo was started."""

from __future__ import annotations

import shlex
import shutil
import sys
from typing import Final

from esker.demo.goods import EMAILS, ORDERS
from esker.storage.files import absolute

# What it is for, and the command: {esker} is how it was called, {data} is the store.
NEXT: Final = (
    ("what is in there", "{esker} report --data {data}"),
    ("the last three orders of each shard", "{esker} read " + ORDERS + " -s -3 --data {data}"),
    ("the mail that nobody could send", "{esker} queue dead ls " + EMAILS + " --data {data}"),
    ("a record of your own", '{esker} append hello "a first record" --data {data}'),
    ("check every byte", "{esker} verify --data {data}"),
)
SERVE: Final = "{esker} serve {data}"


def next_steps(data: str) -> list[tuple[str, str]]:
    """The five, for this store."""
    return [(text, _filled(command, data)) for text, command in NEXT]


def serve_again(data: str) -> str:
    """How to have the server and its console back."""
    return _filled(SERVE, data)


def check_again(folder: str) -> str:
    """How to have everything counted again."""
    return f"{_program()} demo --check --dir {shlex.quote(shown(folder))}"


def shown(path: str) -> str:
    """A path as one would type it from here."""
    here = absolute(".") + "/"
    return path[len(here) :] if path.startswith(here) else path


def _filled(command: str, data: str) -> str:
    return command.format(esker=_program(), data=shlex.quote(shown(data)))


def _program() -> str:
    """The command `esker`, as it was called here."""
    called = sys.argv[0]
    if called.endswith("/esker") and shutil.which("esker") == absolute(called):
        return "esker"
    if called.endswith("/esker"):
        return shlex.quote(shown(absolute(called)))
    return f"{shlex.quote(sys.executable)} -m esker"
