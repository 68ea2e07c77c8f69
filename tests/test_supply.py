"""What is installed with Esker, and what Esker installs: locked by hashes, and nothing stray."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import Pin, read

ROOT = Path(__file__).resolve().parents[1]
PINNED = re.compile(r"[a-z0-9][a-z0-9._-]*==[0-9][0-9a-z.+!]*( ; [^\\]+)? \\")
HASHED = re.compile(r"--hash=sha256:[0-9a-f]{64}(?: \\)?")


def unlocked(text: str) -> list[str]:
    """Lines of a lock that let anything in besides one version of known content."""
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    found = []
    for number, line in enumerate(lines):
        if line[0] != " ":
            pinned = PINNED.fullmatch(line)
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
     "--index-url https://example.org", "--extra-index-url https://example.org", "-f wheels",
     "-r other.txt", "-e .", "./x.whl", "x==1 \\\ny==2 \\",
     "x==1.* \\\n    --hash=sha256:" + "0" * 64, "x==1,<2 \\\n    --hash=sha256:" + "0" * 64],
)  # fmt: skip
def test_a_lock_that_lets_anything_in_is_seen(line: str) -> None:
    good = "a==1 \\\n    --hash=sha256:" + "0" * 64
    assert unlocked(f"{good}\n    # via b\n") == []
    assert unlocked(f"{good}\n{line}") != []


def unmet(project: dict[str, Any], pins: list[Pin]) -> list[str]:
    """What pyproject.toml requires anywhere, and no pin of the lock is."""
    asked = [
        *project["project"]["dependencies"],
        *project["build-system"]["requires"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
        *(each for group in project["dependency-groups"].values() for each in group),
    ]
    versions: dict[str, list[str]] = {"esker": [project["project"]["version"]]}
    for pin in pins:
        versions.setdefault(pin.name, []).append(pin.version)
    return [
        str(each)
        for each in map(Requirement, asked)
        if not any(
            each.specifier.contains(v) for v in versions.get(canonicalize_name(each.name), ())
        )
    ]


def test_the_lock_has_all_that_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert unmet(project, read()) == [], "run `make lock`"
    for name, place in (
        ("nobody-knows-this", project["project"]["dependencies"]),
        ("pyarrow>=999", project["project"]["optional-dependencies"]["sql"]),
        ("hatchling<1", project["build-system"]["requires"]),
        ("ruff==0.0.1", project["dependency-groups"]["dev"]),
    ):
        place.append(name)
        assert unmet(project, read()) == [name]
        place.remove(name)


def test_what_make_locks_is_every_group_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    locked = re.findall(r"--group (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert sorted(locked) == sorted(project["dependency-groups"])


def test_the_package_builds_without_code_of_its_own() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert told["build-system"]["build-backend"] == "hatchling.build"
    assert "hooks" not in told["tool"]["hatch"].get("build", {})
    assert not (ROOT / "setup.py").exists()
