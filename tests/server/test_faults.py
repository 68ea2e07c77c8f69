"""Errors say what was wrong, and what to do next."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import esker
from esker import errors
from esker.server import routes
from esker.server.http import faults
from tests.server.asgi import application, call
from tests.server.conftest import Client

OFF_LINE = {"archive", "archiving", "archived", "store", "identity", "opening"}  # asked by nobody

EVENT = {"specversion": "1.0", "id": "1", "source": "/a", "type": "b"}


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("PUT", "/v1/topics/a", {"segmnt_records": 1}, "did you mean 'segment_records'?"),
        ("PUT", "/v1/queues/q", {"leese": 1}, "did you mean 'lease'?"),
        ("GET", "/v1/topics/a/records?strat=1", None, "did you mean 'start'?"),
        ("GET", "/v1/topics/a?bogus=1", None, "unknown field `bogus`"),
        ("POST", "/v1/watch", {"topics": {"a": {"strat": 1}}}, "`strat` - at `$.topics[...]`"),
        ("GET", "/v1/topics/a/records?values=jsn", None, "did you mean 'json'?"),
        ("PUT", "/v1/topics/a", {"durability": "x"}, "is: disk, ephemeral, fsync, memory"),
        ("POST", "/v1/topics/a/records", {"records": [{"value": 1}, {}]}, "- at `$[1]`"),
        ("POST", "/v1/topics/a/records", {"records": [{"base64": "YQ"}]}, "64 - at `$[0]`"),
        ("POST", "/v1/topics/a/records:events", [EVENT, {**EVENT, "id": ""}], "id - at `$[1]`"),
        ("POST", "/v1/topics/a/records", {"x": "y" * 9_000_000}, "8388608 bytes (body_bytes)"),
        ("GET", "/v1/topics/there/records?start=@2026-11-15T10:00+01:00", None, "written %2B"),
        ("GET", "/v1/topics/nope/records", None, "there is no topic 'nope'"),
        ("GET", "/v1/watch?topics=there,nope", None, "there is no topic 'nope'"),
        ("PUT", "/v1/routes/r", {"source": "nope", "destination": "there"}, "no topic 'nope'"),
    ],
)
def test_what_is_wrong_is_named(method: str, path: str, body: Any, told: str) -> None:
    async def story() -> None:
        async with application() as app:
            await call(app, "PUT", "/v1/topics/there", {})
            where, _, query = path.partition("?")
            where, mark, _ = where.partition(":events")
            media = {"content-type": "application/cloudevents-batch+json"} if mark else None
            got = await call(app, method, where, body, media, query)
            assert 400 <= got.status < 500
            assert told in got.body.decode()
            assert "there" not in got.body.decode().replace("there is", "")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/topics", "GET, HEAD"),
        ("HEAD", "/v1/watch", "GET, POST"),  # a stream has no end that could be left out
        ("POST", "/v1/topics/t", "DELETE, GET, HEAD, PATCH, PUT"),
        ("HEAD", "/v1/attach", "POST"),
    ],
)
def test_what_a_path_takes_is_told(method: str, path: str, allowed: str) -> None:
    async def story() -> None:
        async with application() as app:
            got = await call(app, method, path)
            assert (got.status, got.headers["allow"]) == (405, allowed)

    asyncio.run(story())


def test_no_error_that_a_client_is_told_names_a_file() -> None:
    """What names one has a code whose words are not told; a topic that is absent has its own."""
    known: Any = vars(errors)
    looked = 0
    for room in ("engine", "groups", "queues", "routes", "storage", "scheduler", "format"):
        for file in sorted((Path(esker.__file__).parent / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                kind = node.exc if isinstance(node, ast.Raise) else None
                if not isinstance(kind, ast.Call) or not isinstance(kind.func, ast.Name):
                    continue
                code = getattr(known.get(kind.func.id), "code", "")
                if code not in faults.STATUS or code in {*faults.PRIVATE, "topic_not_found"}:
                    continue
                looked += 1
                for part in (each for arg in kind.args for each in ast.walk(arg)):
                    if isinstance(part, ast.FormattedValue) and file.stem not in OFF_LINE:
                        told = ast.unparse(part.value)
                        assert not told.endswith(("path", "folder", "root")), f"{file}: {told}"
    assert looked > 100


def test_a_route_that_stands_still_does_not_tell_where_the_store_lies(client: Client) -> None:
    client.append("a", "x")
    client.call("PUT", "/v1/routes/r", {"source": "a", "destination": "b"})
    app = client.server.app
    path = app.store.path
    (status,) = app.store._store.routes()
    stopped = msgspec.structs.replace(
        status, state="stopped", reason=f"cannot write {path}/topics/1/log: no space"
    )
    assert routes._told(stopped, path).reason == "cannot write ./topics/1/log: no space"
