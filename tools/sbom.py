"""The bill of materials: `esker.cdx.json`, which lies in every wheel. `make sbom` writes it.

A CycloneDX document of what an install of Esker brings, made from three files:

    pyproject.toml      what is required, always or for an extra
    requirements.lock   which versions Esker is tested with, and what their files hash to
    vendor/VENDOR.toml  which files of others lie in the wheel itself, for the console

What requires what, and the licences, come from the metadata of the installed packages, which must
be those of the lock. No time and no chance goes in: the same files make the same document
everywhere. A version that only some Pythons get has no licence here, because no environment has
all of them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, NamedTuple

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import ROOT, Pin, read

DOCUMENT = ROOT / "esker.cdx.json"
VENDOR = ROOT / "src" / "esker" / "console" / "vendor" / "VENDOR.toml"

# Where Esker runs. Markers are asked about these, not about the machine that makes the document.
LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
}
PYTHONS = ("3.11.0", "3.11.9", "3.12.9", "3.13.9")

Json = dict[str, Any]
Edges = dict[str, set[str]]  # what requires what, by name


class Stale(Exception):
    """What is installed is not what the lock says, or the lock not what the project requires."""


class Source(NamedTuple):
    """What the document is made from."""

    project: Json  # the table `project` of pyproject.toml
    pins: list[Pin]
    vendored: list[Json]  # the tables `file` of VENDOR.toml

    def pins_of(self, name: str) -> list[Pin]:
        """The versions of a package that Linux gets: several, where Pythons get different ones."""
        found = [pin for pin in self.pins if pin.name == name]
        if not found:
            raise Stale(f"{name} is required and not in requirements.lock: run `make lock`")
        return [pin for pin in found if pin.marker is None or holds(pin.marker)]


def source() -> Source:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return Source(project, read(), tomllib.loads(VENDOR.read_text(encoding="utf-8"))["file"])


def holds(marker: Marker, extra: str = "") -> bool:
    """Whether a marker holds on Linux, with any Python that Esker supports."""
    return any(
        marker.evaluate(
            LINUX
            | {"python_full_version": version, "implementation_version": version}
            | {"python_version": version.rpartition(".")[0], "extra": extra}
        )
        for version in PYTHONS
    )


# --- what an install brings -------------------------------------------------------------------


def installed(source: Source, name: str) -> Distribution | None:
    """What is installed, in a version of the lock; None where Linux gets none."""
    pinned = [pin.version for pin in source.pins_of(name)]
    if not pinned:
        return None
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise Stale(f"{name} is not installed: run `make setup`") from None
    if found.version not in pinned:
        wanted = " or ".join(pinned)
        raise Stale(f"{name} is installed as {found.version}, locked as {wanted}: `make setup`")
    return found


def required(source: Source, texts: list[str]) -> tuple[set[str], Edges]:
    """The packages that these requirements name, and all that these bring in turn."""
    own = source.project["name"]
    edges: Edges = {}
    done: set[tuple[str, frozenset[str]]] = set()

    def add(requirement: Requirement, names: set[str]) -> None:
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name == own:  # an extra that is made of others
            for extra in extras:
                for text in source.project["optional-dependencies"][extra]:
                    add(Requirement(text), names)
            return
        names.add(name)
        if (name, extras) not in done:
            done.add((name, extras))
            needed = edges.setdefault(name, set())
            for each in _requirements(installed(source, name), extras):
                add(each, needed)

    direct: set[str] = set()
    for text in texts:
        add(Requirement(text), direct)
    return direct, edges


def _requirements(found: Distribution | None, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in (found and found.requires) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(holds(marker, extra) for extra in ("", *extras)):
            yield requirement


# --- the document -----------------------------------------------------------------------------


def purl(kind: str, name: str, version: str) -> str:
    """A package URL: the name of a package that the tools of all languages know."""
    return f"pkg:{kind}/{name.replace('@', '%40')}@{version}"


def licence(expression: str) -> list[Json]:
    return [{"expression": expression, "acknowledgement": "declared"}]


def licences(found: Distribution | None) -> list[Json]:
    """What a package declares: an expression of SPDX, or else the names that it uses."""
    if found is None:
        return []
    metadata = found.metadata
    told, *_ = metadata.get_all("License-Expression") or metadata.get_all("License") or [""]
    try:
        return licence(canonicalize_license_expression(told))
    except InvalidLicenseExpression:
        classifiers = metadata.get_all("Classifier") or []
        names = {each.split(" :: ")[-1] for each in classifiers if each.startswith("License ::")}
        names = names or {line for line in told.splitlines()[:1] if line}
        declared = {"acknowledgement": "declared"}
        return [{"license": {"name": name, **declared}} for name in sorted(names)]


def digest(sha256: str) -> Json:
    return {"alg": "SHA-256", "content": sha256}


def component(source: Source, pin: Pin, extras: list[str]) -> Json:
    """A package that an install brings, always or with one of these extras."""
    ref = purl("pypi", pin.name, pin.version)
    told = [{"name": "esker:extra", "value": extra} for extra in extras]
    told += [{"name": "esker:marker", "value": str(pin.marker)}] if pin.marker else []
    by_python = re.search(r"\bpython_", str(pin.marker))
    made: Json = {
        "type": "library",
        "bom-ref": ref,
        "name": pin.name,
        "version": pin.version,
        "scope": "optional" if extras else "required",
        "licenses": [] if by_python else licences(installed(source, pin.name)),
        "purl": ref,
        "externalReferences": [
            {
                "type": "distribution",
                "url": ref,
                "comment": "the files that were published, of which an install takes one",
                "hashes": [digest(each) for each in pin.hashes],
            }
        ],
        "properties": told,
    }
    return {key: value for key, value in made.items() if value}


def vendored(files: list[Json]) -> list[Json]:
    """The packages of which files lie in the wheel, each with these files."""
    packages: dict[str, Json] = {}
    for each in files:
        group, _, name = each["package"].rpartition("/")
        ref = purl("npm", each["package"], each["version"])
        package = packages.setdefault(
            ref,
            {
                "type": "library",
                "bom-ref": ref,
                **({"group": group} if group else {}),
                "name": name,
                "version": each["version"],
                "scope": "required",
                "licenses": licence(each["licence"]),
                "purl": ref,
                "components": [],
                "properties": [{"name": "esker:vendored", "value": "true"}],
            },
        )
        file = {"type": "file", "name": f"esker/console/vendor/{each['name']}"}
        package["components"].append({**file, "hashes": [digest(each["sha256"])]})
    return [packages[ref] for ref in sorted(packages)]


def document(source: Source) -> Json:
    project = source.project
    root = purl("pypi", project["name"], project["version"])
    ours = vendored(source.vendored)

    direct, edges = required(source, project["dependencies"])
    always = set(edges)
    with_extra: dict[str, list[str]] = {}
    for extra, texts in sorted(project["optional-dependencies"].items()):
        named, brought = required(source, texts)
        direct |= named
        for name, needed in brought.items():
            edges.setdefault(name, set()).update(needed)
            with_extra.setdefault(name, []).append(extra)

    def refs(names: set[str]) -> list[str]:
        return sorted(purl("pypi", p.name, p.version) for n in names for p in source.pins_of(n))

    pins = [pin for name in sorted(edges) for pin in source.pins_of(name)]
    made: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "pre-build"}],
            "component": {
                "type": "library",
                "bom-ref": root,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": licence(project["license"]),
                "purl": root,
            },
            "properties": [{"name": "cdx:reproducible", "value": "true"}],
        },
        "components": [
            component(source, pin, [] if pin.name in always else with_extra[pin.name])
            for pin in pins
        ]
        + ours,
        "dependencies": [
            {"ref": root, "dependsOn": [*(each["bom-ref"] for each in ours), *refs(direct)]},
            *(
                {"ref": purl("pypi", pin.name, pin.version), "dependsOn": refs(edges[pin.name])}
                for pin in pins
            ),
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(made, sort_keys=True))
    return {**made, "serialNumber": f"urn:uuid:{serial}"}  # of the content, not of chance


def text(source: Source) -> str:
    return json.dumps(document(source), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    try:
        made = text(source())
    except Stale as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    DOCUMENT.write_text(made, encoding="utf-8")
    print(f"sbom: {made.count('purl')} packages in {DOCUMENT.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
