"""requirements.lock, read: which versions are pinned, where, and what their files hash to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9-]*)==(?P<version>[^ ]+)( ; (?P<marker>[^\\]+))? \\$")
_HASH = re.compile(r"^    --hash=sha256:(?P<hash>[0-9a-f]{64})(?: \\)?$")


class Pin(NamedTuple):
    name: str
    version: str
    marker: Marker | None
    hashes: list[
        str
    ]  # SHA-256 of each file that was published: one for each platform, and the source


def pins(text: str) -> list[Pin]:
    """Every pin of a lock; a project has several where Pythons need different versions of it."""
    found: list[Pin] = []
    for line in text.splitlines():
        if pin := _PIN.match(line):
            marker = pin["marker"]
            found.append(Pin(pin["name"], pin["version"], Marker(marker) if marker else None, []))
        elif hashed := _HASH.match(line):
            found[-1].hashes.append(hashed["hash"])
        elif line and not line.lstrip().startswith("#"):
            raise ValueError(f"requirements.lock: {line!r} pins nothing; run `make lock`")
    return found


def read() -> list[Pin]:
    return pins((ROOT / "requirements.lock").read_text(encoding="utf-8"))
