"""What is published: a wheel and a source archive, the same bytes anywhere, and nothing stray."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from tools.lock import read

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INFO = f"esker-{PROJECT['version']}.dist-info"
VENDOR = tomllib.loads((ROOT / "src/esker/console/vendor/VENDOR.toml").read_text())["file"]


class Built(NamedTuple):
    wheel: Path
    source: Path


def build(root: Path, out: Path, umask: int, **environment: str) -> Built:
    """What hatchling makes of a tree, in an environment of its own."""
    known = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    ran = subprocess.run(
        command, cwd=root, env=known | environment, umask=umask, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, source)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """Built here, and from its own source archive in another place, time zone and mood."""
    folder = tmp_path_factory.mktemp("published")
    here = build(ROOT, folder / "here", 0o022, PYTHONHASHSEED="1", TZ="UTC")
    with tarfile.open(here.source) as archive:
        archive.extractall(folder / "there", filter="data")
    (there,) = (folder / "there").iterdir()
    for number, file in enumerate(sorted(there.rglob("*"))):
        if file.is_file():
            file.chmod(0o600)
            os.utime(file, (number, number * 86_400))
    environment = {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}
    return here, build(there, folder / "again", 0o077, **environment)


@pytest.fixture(scope="module")
def unpacked(twice: tuple[Built, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installer lays down: the files of a wheel as they are."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(twice[0].wheel) as archive:
        archive.extractall(folder)
    return folder


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def test_the_same_source_makes_the_same_bytes_anywhere(twice: tuple[Built, Built]) -> None:
    here, there = twice
    assert here.wheel.name == there.wheel.name == f"esker-{PROJECT['version']}-py3-none-any.whl"
    assert here.wheel.read_bytes() == there.wheel.read_bytes()
    assert here.source.name == there.source.name
    assert here.source.read_bytes() == there.source.read_bytes()


def test_the_record_of_a_wheel_is_that_of_its_files(twice: tuple[Built, Built]) -> None:
    held = members(twice[0].wheel)
    rows = list(csv.reader(io.StringIO(held[f"{INFO}/RECORD"].decode())))
    assert {name for name, _, _ in rows} == set(held)
    assert len(rows) == len(held)
    for name, told, size in rows:
        if name == f"{INFO}/RECORD":
            assert (told, size) == ("", "")
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).rstrip(b"=")
        assert (told, int(size)) == (f"sha256={digest.decode()}", len(held[name])), name


def test_nothing_in_a_wheel_is_stray_or_runs_by_itself(twice: tuple[Built, Built]) -> None:
    held = [PurePosixPath(name) for name in members(twice[0].wheel)]
    assert {path.parts[0] for path in held} == {"esker", "pyspark_esker", INFO}
    assert not [path for path in held if path.is_absolute() or ".." in path.parts]
    about = {path.relative_to(INFO).as_posix() for path in held if path.parts[0] == INFO}
    assert about == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt",
        "licenses/LICENSE", "sboms/esker.cdx.json",
    }  # fmt: skip
    code = [path for path in held if path.parts[0] != INFO]
    kinds = {path.suffix for path in code if path.parts[:2] != ("esker", "console")}
    assert kinds == {".py", ".typed", ".properties"}, "no .pth, no data, nothing compiled"
    assert not {path.name for path in held} & {
        "conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py",
    }  # fmt: skip
    assert not [path for path in held if {"tests", "__pycache__"} & set(path.parts)]
    with zipfile.ZipFile(twice[0].wheel) as archive:
        modes = {(each.external_attr >> 16) for each in archive.infolist()}
    assert modes <= {0o100644, 0o644}, "files, no links, nothing executable"


def test_a_wheel_holds_what_git_holds(twice: tuple[Built, Built]) -> None:
    """A file that somebody left lying in src/ would be published with the rest."""
    folders = ("src/esker", "src/pyspark_esker")
    ran = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode or not ran.stdout:
        pytest.skip("git does not know this tree")
    known = {name.removeprefix("src/") for name in ran.stdout.splitlines()}
    held = {name for name in members(twice[0].wheel) if not name.startswith(INFO)}
    assert held - known == set(), "in src/ but not in git: `git add` it, or remove it"
    assert {name for name in known - held if (ROOT / "src" / name).exists()} == set()


def test_a_wheel_says_what_the_project_says(unpacked: Path) -> None:
    (ours,) = distributions(path=[str(unpacked)])
    told = message_from_bytes((unpacked / INFO / "METADATA").read_bytes())
    assert (told["Name"], told["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert told["License-Expression"] == PROJECT["license"]
    assert told["Requires-Python"] == PROJECT["requires-python"]
    extras = PROJECT["optional-dependencies"]
    assert set(told.get_all("Provides-Extra", [])) == set(extras)
    required = [Requirement(text) for text in told.get_all("Requires-Dist", [])]
    always = {each.name for each in required if "extra ==" not in str(each.marker)}
    assert always == {Requirement(text).name for text in PROJECT["dependencies"]}
    assert not [each for each in required if each.url], "nothing from outside an index"
    wheel = message_from_bytes((unpacked / INFO / "WHEEL").read_bytes())
    assert (wheel["Root-Is-Purelib"], wheel["Tag"]) == ("true", "py3-none-any")
    points = ConfigParser()
    points.read_string((unpacked / INFO / "entry_points.txt").read_text())
    assert {group: dict(points[group]) for group in points.sections()} == {
        "console_scripts": PROJECT["scripts"],
        **PROJECT["entry-points"],
    }
    assert {each.value for each in ours.entry_points} == {
        "esker.cli.main:main",
        "esker.testing.plugin",
    }


def run(unpacked: Path, code: str) -> str:
    """What this code prints where the wheel is installed, and no other Esker."""
    told = f"import esker; assert esker.__file__.startswith({str(unpacked)!r}); {code}"
    ran = subprocess.run(
        [sys.executable, "-c", told], cwd=unpacked, env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_command_runs_from_the_wheel_alone(unpacked: Path) -> None:
    code = "import pyspark_esker; from esker.cli.main import main; main(['--version'])"
    assert PROJECT["version"] in run(unpacked, code)


def test_the_console_of_a_wheel_is_as_it_was_published(unpacked: Path) -> None:
    home = unpacked / "esker" / "console"
    for file in VENDOR:
        found = hashlib.sha256((home / "vendor" / file["name"]).read_bytes()).hexdigest()
        assert found == file["sha256"], file["name"]
        assert (home / "vendor" / file["licence_file"]).is_file()
    here = ROOT / "src" / "esker" / "console"
    for file in here.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert (home / file.relative_to(here)).read_bytes() == file.read_bytes()


def test_the_bill_of_materials_is_found_in_an_install(unpacked: Path) -> None:
    """By the lines of docs/security.md, which make a list of exact versions and hashes of it."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", text, re.S)
    locked = run(unpacked, f"exec({lines!r})")
    held = (unpacked / INFO / "sboms" / "esker.cdx.json").read_bytes()
    assert held == (ROOT / "esker.cdx.json").read_bytes()
    parts = json.loads(held)["components"]
    bundled = {file["name"] for part in parts for file in part.get("components", ())}
    assert bundled == {f"esker/console/vendor/{each['name']}" for each in VENDOR}
    pins = {pin.name: pin for pin in read()}
    assert locked.count("==") > len(PROJECT["dependencies"])
    for line in locked.splitlines():
        pin, *hashes = line.split(" --hash=sha256:")
        name = pin.partition("==")[0]
        assert pin == f"{name}=={pins[name].version}", "one version of each"
        assert hashes == pins[name].hashes
    assert {Requirement(text).name for text in PROJECT["dependencies"]} <= {
        line.partition("==")[0] for line in locked.splitlines()
    }


def test_a_source_archive_holds_what_it_takes_to_build_and_test(twice: tuple[Built, Built]) -> None:
    with tarfile.open(twice[0].source) as archive:
        entries = archive.getmembers()
        paths = [PurePosixPath(each.name) for each in entries]
    assert all(each.isfile() for each in entries), "no links"
    assert {path.parts[0] for path in paths} == {f"esker-{PROJECT['version']}"}
    within = [PurePosixPath(*path.parts[1:]) for path in paths]
    assert {path.parts[0] for path in within if len(path.parts) > 1} == {
        "src", "tests", "bench", "tools", "examples", "docs",
    }  # fmt: skip
    assert {path.name for path in within if len(path.parts) == 1} == {
        "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "LICENSE",
        "Makefile", "PKG-INFO", "pyproject.toml", "requirements.lock", "esker.cdx.json",
        "zensical.toml", ".gitignore",
    }  # fmt: skip
    assert not [path for path in within if path.suffix in {".pth", ".pyc", ".so", ".whl"}]
