"""Arguments in, exit code out.

    0     done, and nothing is wrong
    1     problems were found, or the operation failed: `esker: code: message` on stderr
    2     the command line cannot be understood
    130   interrupted with Ctrl-C

A reader that stops early (`esker read … | head`) ends the command quietly.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Final

from esker import __version__
from esker.errors import EskerError

Run = Callable[[argparse.Namespace], int]

_COLD = "where segments lie that were moved, if not where they were put"
_KIN = "kin+KIND:///directory; KIND is rustlog, cursus, comet, topics or aof2"
_START = "where to start: earliest, latest, N, -N, @2026-11-15T10:00, @-15m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _APART[given[0]](given[1:]) if given and given[0] in _APART else _run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()  # here, so that the interpreter does not try again and complain
        return 0
    except KeyboardInterrupt:
        return 130
    except EskerError as problem:
        print(f"esker: {problem.code}: {problem}", file=sys.stderr)
        return 1


def _run(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    run: Run = arguments.run
    return run(arguments)


def _spark(argv: Sequence[str]) -> int:
    """Has a parser of its own, made of the jobs, which need PySpark."""
    from esker.cli import spark

    return spark.run(argv)


def _serve(argv: Sequence[str]) -> int:
    """Has a flag for each setting of the server, and the server is much to import."""
    from esker.cli import serve

    return serve.serve(argv)


def _key(argv: Sequence[str]) -> int:
    from esker.cli import serve

    return serve.key(argv)


# Commands with a parser of their own, so that `esker --help` need not know what they need.
_APART: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "spark": _spark, "serve": _serve, "key": _key,
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="esker", description="An embedded, durable, segmented append-only log."
    )
    parser.add_argument("--version", action="version", version=f"esker {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_info(commands)
    _add_append(commands)
    _add_read(commands)
    _add_verify(commands)
    _add_repair(commands)
    commands.add_parser("serve", help="the store over HTTP: esker serve --help")
    commands.add_parser("key", help="keys for a server: esker key --help")
    _add_import(commands)
    _add_export(commands)
    commands.add_parser("spark", help="jobs over whole logs, run by Spark: esker spark --help")
    return parser


Commands = argparse._SubParsersAction  # has no public name


def _add_demo(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo", help="a shop that is killed while it sells; nothing is lost"
    )
    parser.add_argument("--dir", default="esker-demo", help="where (default: ./esker-demo)")
    parser.add_argument("--keep", action="store_true", help="go on with what a former run left")
    parser.add_argument("--fast", action="store_true", help="over in seconds, without Spark")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="without Spark")
    parser.add_argument("--serve", action="store_true", help="leave the console up until Ctrl-C")
    parser.add_argument("--check", action="store_true", help="only count again what a run left")
    parser.set_defaults(run=_demo)


def _add_info(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("info", help="topics, shards, offsets, sizes, recovery findings")
    parser.add_argument("dir", metavar="DIR", help="the directory of a store")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_command("info"))


def _add_append(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("append", help="append records, durably")
    parser.add_argument("dir", metavar="DIR", help="the directory of a store; made if need be")
    parser.add_argument("topic", metavar="TOPIC", help="made by its first record")
    parser.add_argument("values", metavar="VALUE", nargs="*", help="none: the lines of stdin")
    parser.add_argument("-k", "--key", help="the key of all of them")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_command("append"))


def _add_read(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("read", help="print records, one a line")
    parser.add_argument("dir", metavar="DIR", help="the directory of a store")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("-s", "--start", default=None, help=_START)
    parser.add_argument("-n", "--limit", type=_count, default=None, help="at most so many")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, all fields")
    parser.set_defaults(run=_command("read"))


def _add_verify(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("verify", help="check every byte; changes nothing")
    parser.add_argument("dir", metavar="DIR", help=f"the directory of a store; or {_KIN}")
    parser.add_argument("--shallow", action="store_true", help="headers only, in little time")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--cold", metavar="WHERE", default="", help=_COLD)
    parser.set_defaults(run=_command("verify"))


def _add_repair(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("repair", help="make a damaged store whole; keeps the evidence")
    parser.add_argument("dir", metavar="DIR", help="the directory of a store")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--cold", metavar="WHERE", default="", help=_COLD)
    parser.set_defaults(run=_command("repair"))


def _add_import(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("import", help="copy another log to a topic; goes on if stopped")
    parser.add_argument("source", metavar="SOURCE", help=_KIN)
    parser.add_argument("dir", metavar="DIR", help="the directory of a store; made if need be")
    parser.add_argument("topic", metavar="TOPIC", help="made with as many shards, if need be")
    parser.add_argument("--from", dest="name", metavar="NAME", help="which topic of the source")
    parser.add_argument("--skip-gaps", action="store_true", help="go on behind what is missing")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_kin("import_"))


def _add_export(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("export", help="write a topic as another log would have")
    parser.add_argument("dir", metavar="DIR", help="the directory of a store")
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument("target", metavar="TARGET", help=_KIN)
    parser.add_argument("--drop", action="store_true", help="leave out what it has no place for")
    parser.add_argument("--shard", type=_count, default=None, help="only this one")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_kin("export"))


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{count} is negative")
    return count


def _command(name: str) -> Run:
    def run(arguments: argparse.Namespace) -> int:
        from esker.cli import commands

        found: Run = getattr(commands, name)
        return found(arguments)

    return run


def _kin(name: str) -> Run:
    def run(arguments: argparse.Namespace) -> int:
        from esker.cli import kin

        found: Run = getattr(kin, name)
        return found(arguments)

    return run


def _demo(arguments: argparse.Namespace) -> int:
    from esker.cli import demo

    return demo.run(arguments)
