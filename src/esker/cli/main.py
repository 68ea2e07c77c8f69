"""`esker`: arguments in, exit code out. See failing.py for the codes, tree.py for the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import CycloptsError, UnknownCommandError

from esker.cli.failing import USAGE, say, told
from esker.errors import nearest


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    return told(lambda: _run(given))


def _run(given: list[str]) -> int:
    from esker.cli.tree import app

    try:
        command, bound, _ = app.parse_args(
            given or ["--help"], exit_on_error=False, print_error=False
        )
    except CycloptsError as problem:
        return _refused(problem)
    done = command(*bound.args, **bound.kwargs)
    if getattr(command, "__name__", "") == "help_print" and not {"-h", "--help"} & set(given):
        return USAGE  # `esker`, `esker queue`: a command is missing
    return done if isinstance(done, int) else 0


def _refused(problem: CycloptsError) -> int:
    """A command line that cannot be understood: what, and what was perhaps meant."""
    from esker.cli.tree import known

    chain = list(problem.command_chain or ())
    if isinstance(problem, UnknownCommandError) and problem.unused_tokens:
        word = problem.unused_tokens[0]
        text = f"no command {word!r}; {nearest(word, known(chain))}"
        if word.startswith("-"):
            text = f"{word.partition('=')[0]} stands behind the command, as in `esker ls {word} …`."
    else:
        text = " ".join(str(problem).split())
    text = text if text.endswith(("?", "`")) else text.rstrip(".") + "."
    say(f"usage: {text} See `{' '.join(['esker', *chain])} --help`")
    return USAGE
