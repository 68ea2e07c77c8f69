"""One Spark session for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import esker.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what lies below this directory only."""
    item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that is quick to start. What a test changes, it does in `spark.newSession()`."""
    yield esker.spark.session("esker-tests", "local[2]", lean=True)
    esker.spark.shutdown()
