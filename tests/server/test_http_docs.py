"""docs/http.md: every route is in it, and every example runs as it is pasted."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from esker.server.table import ROUTES
from tests.server.conftest import Client

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
CURL = 'curl() { command curl -sS --fail-with-body --max-time 20 "$@"; }\nset -euo pipefail\n'


def test_every_route_is_described_and_nothing_else() -> None:
    told = set(re.findall(r"`(GET|PUT|POST|PATCH|DELETE) (/[^`?]*)`", PAGE))
    known = {(route.method, route.path) for route in ROUTES}
    assert told - known == set()
    assert known - told == set()


def test_every_scope_is_said_behind_its_route() -> None:
    for line in PAGE.splitlines():
        for route in ROUTES:
            place = line.find(f"`{route.method} {route.path}`")
            if place >= 0 and route.scope is not None:
                scope = re.search(r"\*(\w+)\*", line[place:])
                assert scope is not None, line
                assert scope[1] == route.scope, line


@pytest.mark.skipif(not all(map(shutil.which, ("bash", "curl", "jq"))), reason="needs curl and jq")
def test_every_example_runs_as_it_is_pasted(client: Client, tmp_path: Path) -> None:
    table = pa.table({"value": [b"staged"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "orders.arrow").write_bytes(sink.getvalue())
    examples = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    assert len(examples) >= 8
    for example in examples:
        script = CURL + example.replace("http://127.0.0.1:4117", client.url)
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
    named = {
        (route.method, route.path)
        for route in ROUTES
        if not re.search(_pattern(route.path), "\n".join(examples)) and not route.streams
    }
    assert named == set(), "a route without an example"


def _pattern(path: str) -> str:
    return "4117" + re.sub(r"\\{\w+\\}", r"[^/ '?]+", re.escape(path)) + r"(?=[ '?\n])"
