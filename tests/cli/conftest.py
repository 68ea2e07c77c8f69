"""A store in a directory and the same one on a server, and the command line in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esker.cli.main import main
from esker.server.run import serving
from esker.server.settings import Settings


class Answer:
    """What a command left behind."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Answer]


class _Stdin(io.TextIOWrapper):
    pass


def run(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: Any, *arguments: object, stdin: bytes = b""
) -> Answer:
    """One command, in this process; stdout is no terminal."""
    monkeypatch.setattr(sys, "stdin", _Stdin(io.BytesIO(stdin)))
    capfdbinary.readouterr()
    code = main([str(each) for each in arguments])
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = capfdbinary.readouterr()
    return Answer(code, out, err.decode())


@pytest.fixture
def esker_(monkeypatch: pytest.MonkeyPatch, capfdbinary: Any, tmp_path: Path) -> Run:
    """The command as it is: no store is named for it."""
    for name in ("ESKER_DATA", "ESKER_URL", "ESKER_PROFILE", "ESKER_CONFIG", "ESKER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **how: run(monkeypatch, capfdbinary, *arguments, **how)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=["directory", "http"])
def cli(request: pytest.FixtureRequest, esker_: Run, data: Path) -> Iterator[Run]:
    """The command with a store: in a directory, and over HTTP."""
    if request.param == "directory":
        yield lambda *arguments, **how: esker_(*arguments, "--data", data, **how)
        return
    with serving(data, Settings(port=0)) as server:
        yield lambda *arguments, **how: esker_(*arguments, "--url", server.url, **how)
