"""One Spark session for all tests of this directory but those that start programs of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import esker
import esker.spark
from esker.spark import java
from esker.spark.session import _LEAN_JAVA, _Archive
from tests.helpers import dealt_with
from tests.spark.copying import Copier, digest, feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what lies below this directory only."""
    item.add_marker(pytest.mark.spark)
    needs = set(getattr(item, "fixturenames", ()))
    for lot, fixture in (("spark programs", "spark"), ("spark session", "classes")):
        if fixture in needs and dealt_with(item.nodeid) == lot:
            raise pytest.UsageError(f"{item.nodeid} needs {fixture!r}, which another worker has")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that is quick to start. What a test changes, it does in `spark.newSession()`."""
    yield esker.spark.session("esker-tests", "local[2]", lean=True)
    esker.spark.shutdown()


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory that holds the classes of a session which copied: others start sooner."""
    folder = tmp_path_factory.mktemp("classes")
    data, copy = folder / "data", folder / "copy"
    with esker.open(data) as store, Copier(folder, cache=folder, fast=True) as copier:
        store.create("t", shards=2)
        feed(store, 0, 500)
        copier.ready()
        copier.say("stream", data=data, copy=copy, topic="s", checkpoint=folder / "checkpoint")
        assert copier.answer() == {"failures": 0}
        copier.end()
    assert digest(copy, "s") == digest(data, "t")
    (archive,) = folder.glob("esker/*classes-*")
    yield folder
    archive.unlink()  # pytest keeps the directories of the last runs, and this is large


@pytest.fixture(scope="session")
def sooner(classes: Path) -> dict[str, str]:
    """Variables with which whatever starts a JVM of Spark's is done sooner, the same classes being
    at hand. The directory is a part of it: a JVM takes them only for jars that lie where they lay.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(classes))
        archive = _Archive.of(java.find(), lean=True)
    assert archive is not None
    assert not archive.is_new
    options = archive.option.replace('"', "")
    return {"XDG_CACHE_HOME": str(classes), "JAVA_TOOL_OPTIONS": f"{_LEAN_JAVA} {options}"}
