"""The rooms that everything stands on are tested whole.

Every branch of `format/` and `storage/` is taken by the unit tests of these rooms alone. A branch
that they cannot take is either dead, and goes, or is a case that nobody has thought through.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
ROOMS = "*/esker/format/*,*/esker/storage/*"
SETTINGS = """
[run]
branch = true
source_pkgs = esker.format,esker.storage
"""  # pyproject.toml has all rooms: those above these would be traced for nothing


@pytest.mark.slow
def test_the_unit_tests_take_every_branch_of_format_and_storage(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {
        "COVERAGE_FILE": str(tmp_path / "coverage"),
        "PYTHONPATH": f"{TOP / 'src'}{os.pathsep}{TOP}",
    }

    def run(*words: str) -> None:
        command = [sys.executable, "-m", *words]
        made = subprocess.run(
            command, cwd=TOP, env=environment, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout[-5000:] + made.stderr[-5000:]

    settings = tmp_path / "settings"
    settings.write_text(SETTINGS)
    run("coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q",
        "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=few", "tests/unit",
    )  # fmt: skip
    run("coverage", "report", f"--include={ROOMS}", "--fail-under=100")
