"""Runs the tests of one mutant after the other, each in a child forked from a warm process.

A program of its own, because libraries take longer to import than most mutants to die, and because
the process that runs the zoo has imported the healthy source. This one never imports Esker: each
child does, from a copy of the source in which one file is the mutant's while it runs. What is
compiled of the others is kept beside the copy. Lines of JSON on standard input and output say

    what to do      tests: their ids; scratch: a folder for them; output: a file
    what came out   pytest's code, or minus the signal that ended the child

Codes of pytest: 0, all passed; 1, some failed; others, the tests did not run.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = (  # pandas: pyarrow imports it as soon as an array is made of Python's values
    "concurrent.futures.thread", "cyclopts", "hypothesis", "mmap", "msgspec", "pandas", "pdb",
    "pyarrow", "pyarrow.compute", "pyarrow.csv", "pytest", "rich.console", "tarfile", "tomllib",
    "uvicorn", "uvicorn.protocols.http.httptools_impl", "xxhash",
)  # fmt: skip
PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")
SECONDS = 60  # for one test
PYTEST = (
    "-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--timeout", str(SECONDS),
)  # fmt: skip
MISUSED = 98  # a code that pytest does not have


class Keeper:
    """The warm process, as seen from outside. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._source = folder / "source"
        self._runs = 0
        shutil.copytree(
            ROOT / "src", self._source, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zoo.keeper", str(folder)],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, mutated: dict[str, str], tests: tuple[str, ...]) -> tuple[int, str]:
        """Pytest's code and output for these tests, with these texts as files of the source."""
        self._runs += 1
        healthy, bred = ROOT / "src" / "esker", self._source / "esker"
        for file, text in mutated.items():
            (bred / file).write_text(text)
            # a time of its own, or what was compiled of another mutant might be taken for it
            os.utime(bred / file, (self._runs, self._runs))
        try:
            output = self._folder / "output"
            code = self._ask(tests, self._folder / "scratch", output)
            return code, output.read_text(errors="replace")
        finally:
            for file in mutated:
                shutil.copy2(healthy / file, bred / file)

    def _ask(self, tests: tuple[str, ...], scratch: Path, output: Path) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = {"tests": tests, "scratch": str(scratch), "output": str(output)}
        print(json.dumps(words), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the keeper is dead"
        return int(json.loads(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _run(words: dict[str, Any], source: str) -> NoReturn:
    """The child's part: all that the tests print goes to a file."""
    import pytest

    gc.unfreeze = lambda: None  # what was frozen stays so: this process ends at once
    code = MISUSED
    try:
        output = os.open(words["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        arguments = [*PYTEST, "--basetemp", words["scratch"], *words["tests"]]
        code = int(pytest.main(arguments, [sys.modules[name] for name in PLUGINS]))
        used = getattr(sys.modules.get("esker"), "__file__", "")
        if code in (0, 1) and not used.startswith(source):
            print(f"the tests ran with {used}")
            code = MISUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int) -> int:
    """How it ended; nothing that it started is left."""
    deadline, pause = time.monotonic() + 2 * SECONDS, 0.001
    while True:
        known, status = os.waitpid(child, os.WNOHANG)
        if known or time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        if known:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def main(folder: str) -> None:
    for name in (*LIBRARIES, *PLUGINS):
        __import__(name)
    assert "esker" not in sys.modules
    source = str(Path(folder, "source"))
    sys.path.insert(0, source)
    sys.pycache_prefix, sys.dont_write_bytecode = str(Path(folder, "compiled")), False
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ |= {  # for the tests, and for the processes that they start
        "ESKER_SCALE": "0.02", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    gc.collect()
    gc.freeze()  # no child looks through all this for cycles, and copies it by looking
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            _run(json.loads(line), source)
        with suppress(OSError):  # whoever comes first
            os.setpgid(child, child)
        print(_ended(child), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
