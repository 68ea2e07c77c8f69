"""An archive in an object store is an archive: against an S3 server on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

import esker
from esker.storage.objects import open_objects
from tests.objects import SECRET, Server, serving

TOPIC = "orders:eu"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[esker.Store]:
    with esker.open(tmp_path / "data", background=False) as opened:
        opened.create(TOPIC, segment_records=100)
        yield opened


def fill(store: esker.Store, count: int = 500) -> esker.Topic:
    topic = store[TOPIC]
    for first in range(0, count, 50):
        topic.append_many([b"%d" % n for n in range(first, first + 50)])
    store.tick()
    return topic


def test_it_holds_what_the_topic_holds_and_a_repeat_does_nothing(
    store: esker.Store, server: Server, request: pytest.FixtureRequest
) -> None:
    place = f"bucket/{request.node.name}"
    topic = fill(store)
    done = topic.archive(server.url(place), target_bytes=4096)
    assert done.archive == f"s3://{place}"
    history = esker.open_archive(server.url(place), TOPIC)
    assert [(r.offset, r.value) for r in history.read()] == [
        (r.offset, r.value) for r in topic.read(stop=done.ends[0])
    ]
    before = server.keys(place)
    again = topic.archive(server.url(place), target_bytes=4096)
    assert (again.rows, again.files) == (0, 0)
    assert server.keys(place) == before  # and no lock, nor anything half made
    assert all(key.endswith((".parquet", "_manifest.json")) for key in before)
    topic.append_many([b"later"] * 100)
    store.tick()
    more = topic.archive(server.url(place))
    assert (more.rows, more.ends[0]) == (100, done.ends[0] + 100)
    assert len(esker.open_archive(server.url(place), TOPIC)) == more.ends[0]


def test_other_programs_read_it_without_esker(
    store: esker.Store, server: Server, request: pytest.FixtureRequest
) -> None:
    place = f"bucket/{request.node.name}"
    done = fill(store).archive(server.url(place))
    table = pq.read_table(f"{place}/topic=orders%3Aeu", filesystem=server.system)
    assert sorted(table["offset"].to_pylist()) == list(range(done.ends[0]))
    assert "date" in table.column_names


def test_who_finds_nothing_is_told_and_no_secret_is(
    store: esker.Store, server: Server, request: pytest.FixtureRequest
) -> None:
    topic = fill(store)
    with pytest.raises(esker.EskerError) as nothing:
        esker.open_archive(server.url(f"bucket/{request.node.name}"), TOPIC)
    with pytest.raises(esker.StorageError, match="no such bucket") as missing:
        topic.archive(server.url("nowhere/at/all"))
    for told in (nothing, missing):
        assert SECRET not in str(told.value)
    assert f"s3://bucket/{request.node.name}" in str(nothing.value)
    assert topic.archive(server.url(f"bucket/{request.node.name}")).rows  # and nothing is spoilt


def test_what_was_exchanged_or_lost_there_is_named(
    store: esker.Store, server: Server, request: pytest.FixtureRequest
) -> None:
    place = f"bucket/{request.node.name}"
    fill(store).archive(server.url(place))
    key = next(key for key in server.keys(place) if key.endswith(".parquet"))
    whole = server.system.open_input_file(key).read()
    with server.system.open_output_stream(key) as out:
        out.write(whole[:-1] + b"?")
    history = esker.open_archive(server.url(place), TOPIC)
    with pytest.raises(esker.Corruption, match="is not what was archived"):
        list(history.read())
    server.system.delete_file(key)
    with pytest.raises(esker.Corruption, match="is missing: s3://bucket/"):
        list(history.read())


def test_one_archiver_at_a_time_and_a_dead_one_is_no_hindrance(
    store: esker.Store, server: Server, request: pytest.FixtureRequest
) -> None:
    place = f"bucket/{request.node.name}"
    url, topic = server.url(place), fill(store)
    files, root = open_objects(url)
    path = f"{root}/topic=orders%3Aeu/_lock"
    held = files.lock(path, "now")
    assert not isinstance(held, esker.storage.files.Holder)
    with pytest.raises(esker.WriterBusy, match=rf"If it is gone, delete {path}"):
        topic.archive(url)
    held.release()
    assert topic.archive(url).rows
    # by a process of another machine: nobody knows whether it lives
    label = {"pid": 1, "since": "long ago", "boot": "00" * 16, "token": "x"}
    with server.system.open_output_stream(path.removeprefix("s3://")) as out:
        out.write(msgspec.json.encode(label))
    with pytest.raises(esker.WriterBusy, match="process 1 is archiving"):
        topic.archive(url)
    server.system.delete_file(path.removeprefix("s3://"))
    # by one of this machine that was killed
    code = (
        "import os, sys\nfrom esker.storage.objects import open_objects\n"
        "files, root = open_objects(sys.argv[1])\n"
        "held = files.lock(root + '/topic=orders%3Aeu/_lock', 'now')\n"
        "os.kill(os.getpid(), 9)"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", code, url], env=paths, check=False)
    assert files.kind(path) == "file"
    assert topic.archive(url).rows == 0
    assert files.kind(path) == ""
