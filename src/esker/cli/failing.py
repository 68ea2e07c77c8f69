"""How a command fails: exit codes, and errors as one line on stderr.

    0     done, and nothing is wrong
    1     it failed, or problems were found: `esker: code: message` on stderr
    2     the command line cannot be understood: `esker: usage: message`
    130   interrupted with Ctrl-C

A reader that stops early (`esker read … | head`) ends the command quietly, with 0. `esker doctor`
has codes of its own, those of Nagios: 0 all is well, 1 a warning, 2 a problem, 3 it could not look.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import ClassVar

from esker.errors import EskerError

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class Usage(EskerError):
    """A command line that makes no sense, though each part of it does."""

    code: ClassVar[str] = "usage"


def told(work: Callable[[], int]) -> int:
    """Run a command; whatever it raises becomes an exit code and one line."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        quiet()
        return DONE
    except SystemExit as ended:  # argparse, of `esker spark`; or rich, whose reader has gone
        quiet_end()
        return DONE if ended.code == FAILED else int(ended.code or 0)
    except KeyboardInterrupt:
        quiet_end()
        return INTERRUPTED
    except EskerError as problem:
        say(f"{problem.code}: {problem}")
        return USAGE if isinstance(problem, Usage) else FAILED


def quiet() -> None:
    """Nobody reads any more: close stdout here, so that Python does not try again and complain."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.close()


def quiet_end() -> None:
    """Write what is there, if somebody reads."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()


def say(text: str) -> None:
    """Talk: to stderr, so that stdout has data only."""
    with contextlib.suppress(OSError, ValueError):
        print(f"esker: {text}", file=sys.stderr, flush=True)
