"""A server on a port of its own, and a client that says what it got."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from esker.server.run import Server, serving
from esker.server.settings import Settings

JSON = {"Content-Type": "application/json"}


class Answer:
    """A status, headers and a body."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json()["error"]["code"])


class Client:
    """Calls over one connection."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self.server = server
        where = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """A body that is no bytes is sent as JSON."""
        given = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = msgspec.json.encode(body)
            given = {**JSON, **given}
        self._connection.request(method, path, body, given)
        found = self._connection.getresponse()
        names = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, names, found.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, None, headers)

    def append(self, topic: str, *values: Any) -> Answer:
        records = [{"value": value} for value in values]
        return self.call("POST", f"/v1/topics/{topic}/records", {"records": records})

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def server(tmp_path: Any) -> Iterator[Server]:
    with serving(tmp_path / "data", Settings(port=0)) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()
