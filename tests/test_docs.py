"""What the documents say is so: code runs, options and errors are all there, links lead."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import esker
from esker import errors, options
from esker.options import StoreOptions, TopicOptions
from tests import pages

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


TOOLS = all(map(shutil.which, ("bash", "curl")))
RUN = {  # pages whose code runs as it is pasted, and something that they print
    "README.md": "tea",
    "docs/tutorial.md": "honey",
    "docs/operations.md": "clean: nothing to recover",
    "docs/howto/telemetry.md": "shipped 10000 left 0",
    "docs/howto/queue.md": "photo-4.jpg, try 1: not a picture",
    "docs/howto/events.md": "1 events deleted",
    "docs/howto/files.md": "third",
}


def test_every_page_for_those_who_come_with_a_job_is_run() -> None:
    howtos = {_where(page) for page in (ROOT / "docs" / "howto").glob("*.md")}
    spark = {"docs/howto/spark.md"}  # tests/spark/test_examples.py runs it
    assert howtos == {name for name in RUN if "howto" in name} | spark


@pytest.mark.skipif(not TOOLS, reason="needs bash and curl")
@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs_as_pasted(name: str, tmp_path: Path) -> None:
    assert len(pages.blocks(ROOT / name)) >= 2
    assert RUN[name] in pages.run(ROOT / name, tmp_path, "-W", "error")


def test_a_page_with_a_mistake_in_any_of_its_blocks_is_found(tmp_path: Path) -> None:
    for number, text in enumerate(
        ("```python\nx = 1\n```\n```python\nassert x == 2\n```\n", "```sh\nfalse\ntrue\n```\n")
    ):
        (folder := tmp_path / str(number)).mkdir()
        (folder / "page.md").write_text(text)
        with pytest.raises(AssertionError, match=r"page\.md"):
            pages.run(folder / "page.md", folder)


@pytest.mark.parametrize("page", PAGES, ids=_where)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} leads to {target}"


def _nav(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part)
            for page in _nav(each)]  # fmt: skip


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert sorted(_nav(site["nav"])) == sorted(there)
    assert site["theme"]["font"] is False, "fonts would be loaded from elsewhere"


@pytest.mark.slow
def test_the_site_builds_and_all_its_links_and_anchors_lead_somewhere(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    site = tmp_path / "site"
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:[^\"'\s>]+)", text
        )
        loaded += re.findall(r"<link[^>]*\shref=[\"']?(https?:[^\"'\s>]+)", text)
        assert loaded == [], f"{page.name} loads from elsewhere"
    assert "Append one record and return its offset" in (
        site / "reference" / "store.html"
    ).read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")
    )
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.M))
    assert "esker.errors" in shown, "all exceptions"
    for name in esker.__all__:
        public = getattr(esker, name)
        if isinstance(public, type) and issubclass(public, errors.EskerError):
            continue
        place = f"{getattr(public, '__module__', '')}.{getattr(public, '__name__', name)}"
        known = place in shown or any(each.endswith(f".{name}") for each in shown)
        assert known, f"{name} is in no page of docs/reference"


def test_every_code_of_an_error_is_explained() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    for name in esker.__all__:
        kind = getattr(esker, name)
        if isinstance(kind, type) and issubclass(kind, errors.EskerError) and name != "EskerError":
            assert f"`{kind.code}`" in text, name


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
