"""How the console is served: headers, caches, links from elsewhere; and read-only servers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from esker.console import OWN, VENDORED
from esker.server.access.keys import SCOPES
from esker.server.run import serving
from esker.server.settings import Settings
from esker.server.table import ROUTES
from tests.server.asgi import Keys, Request, application, bearer, call
from tests.server.conftest import Client

LINK = {
    "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document",
}  # fmt: skip


def test_the_page_says_what_a_browser_may_do_with_it(client: Client) -> None:
    page = client.get("/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    parts = page.headers["content-security-policy"].split(";")
    policy = dict(part.strip().partition(" ")[::2] for part in parts)
    assert policy["default-src"] == "'self'"
    assert re.fullmatch(r"'self' 'sha256-[A-Za-z0-9+/]{43}='", policy["script-src"])
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-cache"


def test_every_file_is_served_once_and_then_by_its_etag(client: Client) -> None:
    for name in (*OWN, *VENDORED):
        path = "/" if name == "index.html" else f"/console/{name}"
        first = client.get(path)
        assert first.status == 200, name
        assert first.headers["cache-control"] == "no-cache"
        again = client.get(path, **{"If-None-Match": first.headers["etag"]})
        assert again.status == 304
        assert again.body == b""
        assert client.call("HEAD", path).status == 200


@pytest.mark.parametrize(
    "name",
    ["index.html", "__init__.py", "VENDOR.toml", "preact.LICENSE", "..%2F__init__.py", "%00"],
)
def test_other_files_are_not_there(client: Client, name: str) -> None:
    assert client.get(f"/console/{name}").status == 404


def test_a_console_that_is_switched_off_is_not_there(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, console=False)) as server:
        client = Client(server)
        assert client.get("/").status == 404
        assert client.get("/console/app.js").status == 404
        assert client.get("/healthz").status == 200
        client.close()


def test_a_link_of_another_site_leads_to_the_page_and_to_nothing_else(client: Client) -> None:
    assert client.get("/", **LINK).status == 200
    assert client.get("/v1/topics", **LINK).status == 403
    assert client.get("/console/app.js", **LINK).status == 403
    for changed in ({"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Mode": "cors"},
                    {"Origin": "http://evil.example"}, {"Host": "evil.example"}):  # fmt: skip
        assert client.get("/", **{**LINK, **changed}).status in (403, 421), changed


async def refused_by_a_read_only_server(folder: Path) -> tuple[list[str], int]:
    keys = Keys(folder / "keys")
    key = keys.make(SCOPES)
    wrong, count = [], 0
    async with application(Settings(keys=keys.save(), read_only=True)) as app:
        app.store._store.create("t")
        for route in ROUTES:
            got = await Request(route, "t").send(app, bearer(key))
            count += 1
            changes = route.scope not in (None, "read")
            if (got.code == "read_only") != changes:
                wrong.append(f"{route.method} {route.path}: {got.status} {got.code}")
        told = await call(app, "GET", "/v1/access", headers=bearer(key))
        assert b'"read_only":true' in told.body
        assert b'"scopes":["read"]' in told.body
        assert "payments" not in app.store._store
    return wrong, count


def test_a_read_only_server_refuses_whatever_changes_something(tmp_path: Path) -> None:
    wrong, count = asyncio.run(refused_by_a_read_only_server(tmp_path))
    assert wrong == []
    assert count == len(ROUTES)


def test_a_socket_of_a_read_only_server_publishes_nothing(tmp_path: Path) -> None:
    from websockets.sync.client import connect

    with serving(tmp_path / "data", Settings(port=0, read_only=True)) as server:
        with connect(server.url.replace("http", "ws") + "/v1/ws") as socket:
            socket.send('{"op": "publish", "topic": "t", "records": [{"value": "x"}]}')
            assert '"forbidden"' in str(socket.recv())
        client = Client(server)
        assert client.get("/v1/topics").json()["topics"] == []
        client.close()
