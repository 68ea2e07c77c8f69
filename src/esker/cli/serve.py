"""`esker serve` and `esker key`: a server, and the keys that it asks for.

Every setting of the server is a flag, a variable of the environment and a name in a TOML file, in
this order; `esker serve --show-settings` shows each with where it came from.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from esker.clock import SYSTEM_CLOCK
from esker.errors import EskerError
from esker.options import duration_us
from esker.server import keyfile, settings
from esker.server.keys import SCOPES, Key
from esker.storage.files import SYSTEM_FILES

CONFIG: Final = "esker.toml"
KEYS: Final = "esker.keys"


# ---- the server ------------------------------------------------------------------------------


def serve(argv: Sequence[str]) -> int:
    """`esker serve …`: settle the settings, and serve until a signal."""
    parser = _serve_parser()
    flags = vars(parser.parse_args(argv))
    path, show, config = flags.pop("path"), flags.pop("show_settings"), flags.pop("config")
    config = config or os.environ.get("ESKER_CONFIG", "")
    if not config and SYSTEM_FILES.kind(CONFIG):
        config = CONFIG
    file = settings.file_settings(config) if config else {}
    settled, given = settings.settle(flags, os.environ, file, config)
    if show:
        print(settings.shown(given))
        return 0
    if path is None:
        parser.error("the directory of a store is missing")
    from esker.server import exposure, logs, run

    exposure.check_settings(settled)
    logs.set_up(settled)
    run.main(path, settled, lambda server: print(f"esker: {path} at {server.url}", flush=True))
    return 0


def _serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="esker serve",
        description="The store over HTTP. Each flag can be set as ESKER_NAME, too, or in a file.",
    )
    parser.add_argument("path", metavar="DIR", nargs="?", help="the directory of a store")
    parser.add_argument("--config", metavar="FILE", help=f"settings as TOML (default: {CONFIG})")
    parser.add_argument(
        "--show-settings", action="store_true", help="show them with their sources, and end"
    )
    for field in msgspec.structs.fields(settings.Settings):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
        else:
            shown = field.default if field.default != () else ""
            parser.add_argument(flag, metavar="X", help=f"(default: {shown})" if shown else None)
    return parser


# ---- keys ------------------------------------------------------------------------------------


def key(argv: Sequence[str]) -> int:
    """`esker key new|ls|revoke|forget`."""
    arguments = _key_parser().parse_args(argv)
    done: int = arguments.run(arguments)
    return done


def _key_parser() -> argparse.ArgumentParser:
    default = os.environ.get("ESKER_KEYS", KEYS)
    parser = argparse.ArgumentParser(
        prog="esker key", description="Keys for a server; it notices what is changed by itself."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key; it is shown once")
    new.add_argument("--scopes", default="read", help=f"some of {','.join(SCOPES)}, or all")
    new.add_argument(
        "--prefix", action="append", default=[], metavar="NAME",
        help="a topic and those below it; may be given again (default: all topics)",
    )  # fmt: skip
    new.add_argument("--name", default="", help="for whom it is")
    new.add_argument("--expires", metavar="TIME", help="for how long it is good: 30d, 12h")
    new.set_defaults(run=_new)
    ls = commands.add_parser("ls", help="show the keys, not their secrets")
    ls.set_defaults(run=_ls)
    for name, run, text in (
        ("revoke", _revoke, "end a key, at once; open streams of it are closed"),
        ("forget", _forget, "take a key out of the file"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("id", metavar="ID", help="as `esker key ls` shows it")
        one.set_defaults(run=run)
    for command in commands.choices.values():
        command.add_argument("--keys", default=default, help=f"the file (default: {default})")
        command.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _new(arguments: argparse.Namespace) -> int:
    scopes = SCOPES if arguments.scopes == "all" else arguments.scopes.split(",")
    seconds = None
    if arguments.expires is not None:
        seconds = duration_us(arguments.expires, "expires") / 1e6
    made, text = keyfile.new(
        arguments.keys, scopes, arguments.prefix, name=arguments.name, seconds=seconds
    )
    if arguments.json:
        print(msgspec.json.encode({**_told(made), "key": text}).decode())
    else:
        print(text)
        print(f"esker: {_line(made)}", file=sys.stderr)
        print("esker: this is the only time that it is shown", file=sys.stderr)
    return 0


def _ls(arguments: argparse.Namespace) -> int:
    keys = keyfile.load(arguments.keys)
    if arguments.json:
        print(msgspec.json.encode({"keys": [_told(each) for each in keys]}).decode())
    else:
        for each in keys:
            print(_line(each))
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    return _show(arguments, keyfile.revoke(arguments.keys, _id(arguments.id)))


def _forget(arguments: argparse.Namespace) -> int:
    return _show(arguments, keyfile.forget(arguments.keys, _id(arguments.id)))


def _show(arguments: argparse.Namespace, one: Key) -> int:
    print(msgspec.json.encode(_told(one)).decode() if arguments.json else _line(one))
    return 0


def _id(text: str) -> str:
    if text.startswith("esk_"):
        raise EskerError("give the id of the key, not the key: it is in your shell's history now")
    return text


def _told(key: Key) -> dict[str, Any]:
    now = SYSTEM_CLOCK.now_us()
    found: dict[str, Any] = {
        "id": key.id, "name": key.name, "state": key.state(now), "scopes": key.scopes,
        "prefixes": key.prefixes, "created": _when(key.created),
    }  # fmt: skip
    if key.expires is not None:
        found["expires"] = _when(key.expires)
    if key.revoked is not None:
        found["revoked"] = _when(key.revoked)
    return found


def _line(key: Key) -> str:
    told = _told(key)
    ends = f"  expires {told['expires']}" if "expires" in told else ""
    return (
        f"{key.id}  {told['state']:<7}  {','.join(key.scopes)}  {' '.join(key.prefixes)}  "
        f"created {told['created']}{ends}  {key.name}"
    ).rstrip()


def _when(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
