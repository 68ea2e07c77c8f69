"""Runs the code of a page as a reader would paste it: from top to bottom, in an empty directory.

    ```python    in one interpreter, so that a name of one block is known in the next
    ```sh        in a shell; has to end with 0
    ```sh        that is a lone `esker serve …`: a second terminal, until the page ends

Blocks of other languages, and those without one, are to be looked at only. A server takes a port
that is free, and what follows talks to that one instead of 4117.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SECONDS = 110  # for a page; one that starts a JVM has more
SHELL = f'set -euo pipefail\nesker() {{ {shlex.quote(sys.executable)} -m esker "$@"; }}\n'
DRIVER = """
import pathlib, subprocess, sys, threading
names, servers, address = {"__name__": "__main__"}, [], "http://127.0.0.1:4117"
try:
    for kind, code in BLOCKS:
        code = code.replace("http://127.0.0.1:4117", address)
        if kind == "python":
            exec(compile(code, "<page>", "exec"), names)
        elif kind == "serve":
            words = [sys.executable, "-m", "esker", *code.split()[1:], "--port", "0"]
            log = open("server.log", "wb")
            servers.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True))
            log.close()
            address = servers[-1].stdout.readline().split()[-1]
            assert address.startswith("http://"), address
        else:
            sys.stdout.flush()
            subprocess.run(["bash", "-c", SHELL + code], check=True, timeout=60)
finally:
    for server in servers:
        server.terminate()
        server.wait(60)
        server.stdout.close()
"""


class Block(NamedTuple):
    """Code of a page: python, sh, or the start of a server."""

    kind: str
    code: str


def blocks(page: Path) -> list[Block]:
    """What is to be run of a page, in order."""
    found = re.findall(r"^```(python|sh)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [
        Block("serve" if re.fullmatch(r"esker serve [^\n]*\n", code) else kind, code)
        for kind, code in found
    ]


def run(
    page: Path, folder: Path, *words: str, env: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> str:  # fmt: skip
    """Run it, and return what it printed; fails if a block does.

    `words` are options of Python, as "-W", "error"; `env` comes on top of the environment.
    """
    program = folder / "page.py"
    told = [tuple(block) for block in blocks(page)]
    program.write_text(f"BLOCKS = {told!r}\nSHELL = {SHELL!r}\n{DRIVER}", encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, *words, str(program)],
        cwd=work, capture_output=True, text=True, timeout=seconds, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{page.name}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
