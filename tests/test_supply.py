"""What is installed with Esker, and what Esker installs: locked by hashes, and nothing stray."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
HASHED = re.compile(r"--hash=sha256:[0-9a-f]{64}(?: \\)?")


def unlocked(text: str) -> list[str]:
    """Lines of a lock that let anything in besides one version of known content."""
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    found = []
    for number, line in enumerate(lines):
        if line[0] != " ":
            pinned = re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[^ ]+( ;[^\\]*)? \\", line)
            follows = lines[number + 1 : number + 2]
            if not pinned or not follows or not HASHED.fullmatch(follows[0].strip()):
                found.append(line)
        elif not HASHED.fullmatch(line.strip()):
            found.append(line)
    return found


def test_every_dependency_is_locked_by_its_version_and_its_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert unlocked(text) == []
    assert text.count("==") > 50
    assert "--require-hashes -r requirements.lock" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    "line",
    ["x>=1", "x==1", "x==1 \\\n    --hash=md5:0", "x @ https://example.org/x.whl",
     "--index-url https://example.org", "-e .", "x==1 \\\ny==2 \\"],
)  # fmt: skip
def test_a_lock_that_lets_anything_in_is_seen(line: str) -> None:
    good = "a==1 \\\n    --hash=sha256:" + "0" * 64
    assert unlocked(f"{good}\n    # via b\n") == []
    assert unlocked(f"{good}\n{line}") != []


def test_a_wheel_holds_the_package_and_nothing_that_runs_by_itself() -> None:
    from hatchling.builders.wheel import WheelBuilder

    packed = [
        PurePosixPath(each.distribution_path)
        for each in WheelBuilder(str(ROOT)).recurse_included_files()
    ]
    assert len(packed) > 100
    assert {path.parts[0] for path in packed} == {"esker", "pyspark_esker"}
    kinds = {path.suffix for path in packed if "console" not in path.parts}
    assert kinds == {".py", ".typed", ".properties"}, "no .pth, no data, nothing compiled"
    console = {path.suffix for path in packed if "console" in path.parts}
    assert console <= {".py", ".js", ".mjs", ".css", ".svg", ".html", ".toml", ".LICENSE"}
    names = {path.name for path in packed}
    assert not names & {"conftest.py", "sitecustomize.py", "usercustomize.py"}
    assert not [path for path in packed if "tests" in path.parts or "__pycache__" in path.parts]


def test_the_package_builds_without_code_of_its_own() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert told["build-system"]["build-backend"] == "hatchling.build"
    assert "hooks" not in told["tool"]["hatch"].get("build", {})
    assert not (ROOT / "setup.py").exists()
