"""`esker spark NAME`: the jobs of esker.spark.jobs, from their signatures.

A parameter without a default is an argument, every other one an option; a size may have a unit, as
in `--target-bytes 64MiB`. How far a job is goes to stderr, what it did to stdout.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from esker.errors import InvalidOption

_OURS: Final = {"spark", "progress"}  # what the command gives by itself

Job = Callable[..., Any]


def spark(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Jobs over whole logs, run by Spark: esker spark --help lists them. See docs/jobs.md."""
    return run(arguments)


def run(argv: Sequence[str]) -> int:
    """`esker spark …`: parse, make a session, run one job, tell what it did."""
    import esker.spark

    esker.spark.require()
    from esker.spark.jobs import JOBS

    arguments = vars(parser(JOBS).parse_args(argv))
    job: Job = arguments.pop("job")
    as_json, quiet = arguments.pop("json"), arguments.pop("quiet")
    conf = dict(_pair(each) for each in arguments.pop("conf"))
    session = esker.spark.session("esker", arguments.pop("master"), conf)
    try:
        found = job(session, **arguments, progress=None if quiet else _tell)
    finally:
        esker.spark.shutdown()
    if as_json:
        print(msgspec.json.encode(msgspec.structs.asdict(found)).decode())
    else:
        print(found)
    return 0 if getattr(found, "ok", True) else 1


def _tell(progress: Any) -> None:
    end = "\r" if sys.stderr.isatty() and progress.done < progress.total else "\n"
    print(f"{progress}  ", file=sys.stderr, end=end, flush=True)


def parser(jobs: dict[str, Job]) -> argparse.ArgumentParser:
    """A parser with a command for each job."""
    whole = argparse.ArgumentParser(
        prog="esker spark", description="Jobs over whole logs, run by Spark. See docs/jobs.md."
    )
    commands = whole.add_subparsers(title="jobs", metavar="JOB", required=True)
    for name, job in jobs.items():
        _add(commands, name, job)
    return whole


def described(job: Job) -> dict[str, str]:
    """What a docstring says of each parameter, in lines that begin with its name."""
    found: dict[str, str] = {}
    last = ""
    for line in inspect.cleandoc(job.__doc__ or "").splitlines()[1:]:
        if match := re.fullmatch(r" {4}(\w+) {2,}(\S.*)", line):
            last = match[1]
            found[last] = match[2]
        elif last and re.match(r" {8}", line):
            found[last] += " " + line.strip()
        else:
            last = ""
    return found


def _add(commands: Any, name: str, job: Job) -> None:
    first = inspect.cleandoc(job.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    one = commands.add_parser(name, help=first.rstrip("."), description=first)
    one.set_defaults(job=job)
    told, kinds = described(job), typing.get_type_hints(job)
    for parameter in inspect.signature(job).parameters.values():
        if parameter.name not in _OURS:
            _add_parameter(one, parameter, kinds[parameter.name], told[parameter.name])
    one.add_argument("--json", action="store_true", help="print what was done as a JSON object")
    one.add_argument("--quiet", action="store_true", help="do not tell how far it is")
    one.add_argument("--master", help="where Spark runs (default: this machine, all cores)")
    one.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )


def _add_parameter(
    one: argparse.ArgumentParser, parameter: inspect.Parameter, kind: Any, text: str
) -> None:
    name = parameter.name
    text = text.replace("%", "%%")
    if parameter.default is inspect.Parameter.empty:
        one.add_argument(name, metavar=name.upper(), help=text)
        return
    option = "--" + name.replace("_", "-")
    if kind is bool:
        one.add_argument(
            option, action=argparse.BooleanOptionalAction, default=parameter.default, help=text
        )
        return
    plain = next(
        (each for each in (kind, *typing.get_args(kind)) if each in (int, float, str)), str
    )
    made = _size if plain is int and name.endswith("_bytes") else plain
    one.add_argument(option, type=made, default=parameter.default, help=text)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", text)
    if match is None or (match[3] and not match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; as in 64MiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " "))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidOption(f"--conf {text}: as in --conf spark.driver.memory=4g")
    return name, value
