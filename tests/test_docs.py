"""What the documents say is so: code runs, options and errors are all there, links lead."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esker import errors, options
from esker.options import StoreOptions, TopicOptions

ROOT = Path(__file__).resolve().parents[1]
OUR_OWN = ("docs", "bench")
PAGES = sorted([*ROOT.glob("*.md"), *(p for name in OUR_OWN for p in (ROOT / name).rglob("*.md"))])
OPTIONS = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
SHORT = {field: name for name, field in options._TIMES.items()}


def _where(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=_where)
def test_the_code_of_every_page_is_python(page: Path) -> None:
    for code in blocks(page):
        ast.parse(code)


def test_the_code_of_the_readme_runs_as_pasted(tmp_path: Path) -> None:
    code = "\n".join(blocks(ROOT / "README.md"))
    assert "esker.open" in code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tea" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("page", PAGES, ids=_where)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} leads to {target}"


@pytest.mark.parametrize("page", PAGES, ids=_where)
def test_targets_of_make_that_pages_name_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z]+)", text) + re.findall(r"^make ([a-z]+)", text, re.M)
    assert set(named) <= targets


def row(name: str) -> list[str]:
    found = re.search(rf"^\| `{name}` \|(.*)\|$", OPTIONS, re.M)
    assert found, f"docs/options.md has no row for {name}"
    return [cell.strip() for cell in found[1].split("|")]


FIELDS = [(kind, name) for kind in (StoreOptions, TopicOptions) for name in kind.__struct_fields__]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_every_option_is_documented_with_unit_default_range_and_consequence(
    kind: type[msgspec.Struct], name: str
) -> None:
    unit, default, span, consequence = row(SHORT.get(name, name))
    assert default == told(name, getattr(kind(), name))
    assert len(consequence) > 20
    if name in SHORT:
        assert unit == "time"
    if name in options._SIZES:
        assert unit == "size"
    if name in options._RANGES:
        low, high = options._RANGES[name]
        if name in SHORT:
            assert (low, high, span) == (0, options.TIME_US_MAX, "0 – 100 years")
        else:
            as_told = [size(n) if name in options._SIZES else str(n) for n in (low, high)]
            assert span == " – ".join(as_told)


def test_no_option_is_documented_that_is_not_there() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", OPTIONS, re.M)
    assert sorted(documented) == sorted(SHORT.get(name, name) for _, name in FIELDS)


def told(name: str, default: Any) -> str:
    if name == "journals":
        return "cores, at most 8"
    if name in SHORT:
        return f"{default // 1000} ms" if default else "0 s"
    if name in options._SIZES:
        return size(default)
    return str(default)


def size(number: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024 or unit == "PiB":
            return f"{number} {unit}" if number else "0"
        number //= 1024
    raise AssertionError(number)


def test_limits_are_documented_as_they_are() -> None:
    for number in (
        options.NAME_MAX, options.KEY_BYTES_MAX, options.TAG_BYTES_MAX, options.NODE_BYTES_MAX,
        options.HEADERS_MAX, options.HEADERS_BYTES_MAX,
    ):  # fmt: skip
        assert f" {number:,} " in OPTIONS or f" {number:,}, " in OPTIONS


@pytest.mark.parametrize(
    "kind",
    [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.EskerError)],
    ids=lambda kind: kind.__name__,
)
def test_every_error_is_explained(kind: type[errors.EskerError]) -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    assert re.search(rf"\b{kind.__name__}\b", text)


def test_tests_that_are_named_as_proof_are_there() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 20
    for path, name in named:
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert f"def {name}(" in source, f"{path} has no {name}"


def test_the_lineage_has_a_row_for_every_feature_and_counts_them_right() -> None:
    """54 of Comet, 30 of RustLog, 109 of topics, 44 of AOF2, 14 of cursus, each once."""
    text = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([CRTAK])(\d+) \|.*\| ([a-z ]+) \|$", text, re.M)
    for letter, count in {"C": 54, "R": 30, "T": 109, "A": 44, "K": 14}.items():
        assert [int(number) for kind, number, _ in rows if kind == letter] == [*range(1, count + 1)]
    states = [state for _, _, state in rows]
    told = re.search(r"Of (\d+) features (\d+) are done, (\d+) are here in part, (\d+) come", text)
    assert told is not None
    assert [int(number) for number in told.groups()] == [
        len(rows), *(states.count(state) for state in ("done", "here in part", "later"))
    ]  # fmt: skip


def test_every_row_of_the_lineage_names_a_test_or_says_why_there_is_none() -> None:
    """That what it names exists, tests/test_tidy.py checks."""
    text = (ROOT / "docs" / "lineage.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([CRTAK]\d+) \|[^|]*\| ([^|]*) \| (.*) \| ([a-z ]+) \|$", text, re.M)
    assert len(rows) == 251
    bare = [name for name, _, told, state in rows if "::" not in told and state == "done"]
    assert bare == ["K13"]  # Windows: there is nothing to test
    assert [name for name, where, _, state in rows if where == "–" and state == "done"] == ["C35"]
