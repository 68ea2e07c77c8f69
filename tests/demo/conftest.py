"""One run of the demo, whole, which many tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.running import Shown, run


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A fast run that went well. Look at it and leave it as it is; `copied` is for changes."""
    folder = tmp_path_factory.mktemp("demo") / "here"
    done = run("--fast", "--dir", folder)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return Shown(folder, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder
