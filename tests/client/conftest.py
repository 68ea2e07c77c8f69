"""A server, a store on it, and a wire between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import esker
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.client.relay import Relay, relaying


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data", Settings(port=0)) as made:
        yield made


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    with relaying(server.url) as made:
        yield made


@pytest.fixture
def store(server: Server) -> Iterator[esker.Store]:
    with esker.open(server.url) as opened:
        yield opened
