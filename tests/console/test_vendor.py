"""What the console loads: its own files, and others' as they were published, all from here."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from esker import console
from esker.console import OWN, VENDORED, asset, import_map_hash

HOME = Path(console.__file__).parent
VENDOR = HOME / "vendor"
TOLD = tomllib.loads((VENDOR / "VENDOR.toml").read_text())["file"]
# Where a script, a style or a page would load something from.
LOADS = re.compile(
    r"""(?:\bimport\s*\(?|\bfrom|\bsrc=|\bhref=|url\(|@import|fetch\(|EventSource\(|Worker\()\s*
    ["'`]?\s*((?:https?:)?//[^\s"'`)]+)""",
    re.X,
)
NAMESPACES = ("http://www.w3.org/",)  # names, which nobody loads


def test_vendored_files_are_as_they_were_published() -> None:
    assert {each["name"] for each in TOLD} == set(VENDORED)
    for each in TOLD:
        found = hashlib.sha256((VENDOR / each["name"]).read_bytes()).hexdigest()
        assert found == each["sha256"], each["name"]
        assert each["version"]
        assert each["licence"] in {"MIT", "Apache-2.0"}
        assert len((VENDOR / each["licence_file"]).read_text()) > 500


def test_nothing_else_lies_in_the_console() -> None:
    licences = {each["licence_file"] for each in TOLD}
    kept = {each.name for each in VENDOR.iterdir()}
    assert kept == {*VENDORED, *licences, "VENDOR.toml"}
    here = {each.name for each in HOME.iterdir() if each.is_file()}
    assert here == {*OWN, "__init__.py"}


def test_the_wheel_has_all_of_it() -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = str(Path(__file__).resolve().parents[2])
    packed = {each.distribution_path for each in WheelBuilder(root).recurse_included_files()}
    licences = {each["licence_file"] for each in TOLD}
    wanted = {f"esker/console/{name}" for name in OWN}
    wanted |= {f"esker/console/vendor/{name}" for name in (*VENDORED, *licences, "VENDOR.toml")}
    assert wanted - packed == set()
    assert not [path for path in packed if "shots" in path]


@pytest.mark.parametrize("name", [*OWN, *VENDORED])
def test_no_file_loads_anything_from_elsewhere(name: str) -> None:
    found = asset(name)
    assert found is not None
    text = found.body.decode()
    assert LOADS.findall(text) == []
    if name in OWN:
        addresses = re.findall(r"https?://[^\s\"'`)]+", text)
        assert [each for each in addresses if not each.startswith(NAMESPACES)] == []


def test_the_check_would_see_such_a_load() -> None:
    for text in (
        'import x from "https://cdn.example/x.js"', "@import url(//fonts.example/a.css)",
        '<script src="//cdn.example/x.js">', "fetch(`https://a.example/`)",
    ):  # fmt: skip
        assert LOADS.search(text), text


@pytest.mark.parametrize("name", [name for name in OWN if name.endswith(".js")])
def test_no_module_turns_text_into_markup(name: str) -> None:
    found = asset(name)
    assert found is not None
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                 "new Function", "localStorage.setItem(KEY"):  # fmt: skip
        assert word not in found.body.decode(), word


def test_the_page_has_one_script_of_its_own_and_it_is_the_hashed_one() -> None:
    page = asset("index.html")
    assert page is not None
    text = page.body.decode()
    inline = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", text, re.S)
    assert len(inline) == 1
    assert "imports" in inline[0]
    assert import_map_hash().startswith("sha256-")
    assert "<style" not in text
    assert not re.search(r"\s(?:style|on\w+)=", text)
    assert asset("../__init__.py") is None
    assert asset("vendor/preact.mjs") is None
