"""Sealed segments in an object store: against an S3 server on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.engine import tiering
from tests.objects import KEY, SECRET, Server, serving

pytestmark = pytest.mark.damages  # the second reader of tests/fsck.py knows no object stores
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def place(server: Server, tmp_path: Path) -> str:
    """A URL of this test alone."""
    return server.url(f"bucket/{tmp_path.name}")


def opened(folder: Path, place: str, mode: Any = "rw", **options: Any) -> esker.Store:
    return esker.open(folder / "data", mode, cold=place, background=False, **options)


def filled(store: esker.Store, count: int = 50) -> esker.Topic:
    """A topic of so many records, ten of them in a segment."""
    topic = store.create("t", segment_records=10)
    for first in range(0, count, 10):
        numbers = range(first, first + 10)
        topic.append_many([esker.Record(b"%300d" % n, tag=f"t{n % 3}") for n in numbers])
    topic.sync()
    store.tick()
    return topic


def values(topic: esker.Topic) -> list[int]:
    return [int(record.value) for record in topic.read()]


def below(server: Server, place: str) -> list[str]:
    path = place.partition("@")[2].partition("?")[0]
    return server.keys(path)


def test_what_was_moved_reads_as_before_and_comes_back(
    tmp_path: Path, server: Server, place: str
) -> None:
    with opened(tmp_path, place) as store:
        topic = filled(store)
        before = {path.name: path.read_bytes() for path in (tmp_path / "data").rglob("*.seg")}
        done = store.tier("t", "cold")
        assert (done.segments, done.bytes) == (4, sum(map(len, before.values())))
        assert len(below(server, place)) == 4
        assert values(topic) == list(range(50))
        assert topic.delete(tag="t1") == 17
        assert values(topic) == [n for n in range(50) if n % 3 != 1]
        assert esker.verify(tmp_path / "data", cold=place).ok
        assert store.tier("t", "hot").segments == 4
        assert below(server, place) == []
    after = {path.name: path.read_bytes() for path in (tmp_path / "data").rglob("*.seg")}
    assert after == before


def test_bounds_are_kept_and_what_is_evicted_goes_there_too(
    tmp_path: Path, server: Server, place: str
) -> None:
    with opened(tmp_path, place) as store:
        topic = filled(store, 60)
        store.alter("t", hot_segments=1)
        store.tick()
        assert len(below(server, place)) == 4
        store.alter("t", cap_records=25)
        store.tick()
        store.tick()  # who evicts leaves it to the sweep
        assert topic.earliest() == 30
        assert len(below(server, place)) == 1
        assert next(topic.read(5, gaps="yield")) == esker.Gap("t", 0, 5, 29, "evicted")
        assert values(topic) == list(range(30, 60))
        store.delete("t")
        store.tick()
        store.tick()
        assert below(server, place) == []


def test_no_secret_is_written_down_or_told_and_the_environment_has_it_then(
    tmp_path: Path, server: Server, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, place) as store:
        filled(store)
        store.tier("t", "cold")
        assert SECRET not in str(store.maintenance())
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with esker.open(tmp_path / "data", "r") as store:
        assert values(store["t"]) == list(range(50)), "where the stubs say"


def test_a_server_that_is_gone_is_told_and_costs_nothing_but_what_lies_there(
    tmp_path: Path,
) -> None:
    with serving() as server:
        place = server.url("bucket/gone")
        with opened(tmp_path, place) as store:
            filled(store)
            store.tier("t", "cold", before=20)
    patient = f"{place}&connect_timeout=1&request_timeout=1"
    with opened(tmp_path, patient) as store:
        topic = store["t"]
        with pytest.raises(esker.ColdUnavailable, match="topic 't' shard 0") as problem:
            next(topic.read(0))
        assert SECRET not in str(problem.value)
        assert [int(record.value) for record in topic.read(20)] == list(range(20, 50))
        assert topic.append(b"50", wait=True) == 50
        with pytest.raises(esker.ColdUnavailable):
            store.tier("t", "cold")
        assert [int(record.value) for record in topic.read(20)] == list(range(20, 51))


def test_what_lies_there_is_not_believed(tmp_path: Path, server: Server, place: str) -> None:
    with opened(tmp_path, place) as store:
        filled(store)
        store.tier("t", "cold", before=20)
    first, second = below(server, place)
    with server.system.open_input_file(second) as file:
        other = file.read()
    with server.system.open_output_stream(first) as out:
        out.write(other)
    server.system.delete_file(second)
    with opened(tmp_path, place) as store:
        with pytest.raises(esker.Corruption, match=r"hash|bytes were fetched") as wrong:
            next(store["t"].read(0))
        assert (wrong.value.first, wrong.value.last) == (0, 9)
        with pytest.raises(esker.ColdUnavailable) as missing:
            next(store["t"].read(10))
        assert missing.value.missing
        assert [int(record.value) for record in store["t"].read(20)] == list(range(20, 50))


def _killed_in_the_midst(folder: str, place: str, call: str) -> None:
    import os

    from esker.storage.cold import ColdObjects

    real = getattr(ColdObjects, call)

    def dies(self: Any, *arguments: Any) -> Any:
        real(self, *arguments)
        os._exit(9)

    setattr(ColdObjects, call, dies)
    with opened(Path(folder), place) as store:
        store.tier("t", "cold")


@pytest.mark.crash
@pytest.mark.parametrize("call", ["put", "get"])
def test_a_death_in_the_midst_of_a_move_leaves_the_segment_and_an_orphan_that_goes(
    tmp_path: Path, server: Server, place: str, call: str
) -> None:
    with opened(tmp_path, place) as store:
        filled(store)
    child = multiprocessing.get_context("spawn").Process(
        target=_killed_in_the_midst, args=(str(tmp_path), place, call)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 9
    assert len(below(server, place)) == 1
    with opened(tmp_path, place) as store:
        assert values(store["t"]) == list(range(50))
        store["t"].append(b"50", wait=True)
        assert tiering.sweep(store["t"]._shards[0]) == 1
        assert below(server, place) == []
        assert store.tier("t", "cold").segments == 5
        assert values(store["t"]) == list(range(51))
