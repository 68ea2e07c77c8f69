"""The same store by its path and by the URL of a server, for tests that hold for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esker.server.run import serving
from esker.server.settings import Settings

BOTH = ("directory", "http")
both = pytest.mark.parametrize("kind", BOTH)


@contextmanager
def reached(path: Path | str, kind: str) -> Iterator[str]:
    """How a query names the store at a path."""
    if kind == "directory":
        yield str(path)
        return
    with serving(path, Settings(port=0)) as server:
        yield server.url
