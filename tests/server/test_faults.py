"""Errors say what was wrong, and what to do next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.server.asgi import application, call

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
