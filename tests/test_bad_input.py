"""Wrong types and values, a closed store, a second writer: told by name, before any effect."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import esker
from esker import errors
from tests.helpers import (
    FORTY,
    child,
    data_of,
    forty,
    snapshot,
)

# ---- wrong types and values ------------------------------------------------------------------

LONE_SURROGATE = "\ud800"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": None}, r"a value is bytes, text, or a dict \(stored as JSON\), not NoneType"),
        ({"value": 5}, "not int; encode it first"),
        ({"value": 1.5}, "not float"),
        ({"value": ["x"]}, "not list; use append_many for several records"),
        ({"value": ("x", "k")}, r"not tuple; .* Record\(value, key=...\)"),
        ({"value": {"a": b"x"}}, "stored as JSON, and this one cannot be: .*bytes"),
        ({"value": {"a": float("nan")}}, "Out of range float values|not JSON compliant"),
        ({"value": {("a", 1): 2}}, "keys must be str"),
        ({"value": {"a": LONE_SURROGATE}}, "valid Unicode"),
        ({"value": LONE_SURROGATE}, "valid Unicode"),
        ({"key": 5}, "a key is bytes or text, not int"),
        ({"key": ["k"]}, "a key is bytes or text, not list"),
        ({"key": LONE_SURROGATE}, "valid Unicode"),
        ({"tag": b"t"}, "a tag is text, not bytes"),
        ({"tag": 5}, "a tag is text, not int"),
        ({"tag": LONE_SURROGATE}, "valid Unicode"),
        ({"node": b"n"}, "a node is text, not bytes"),
        ({"node": LONE_SURROGATE}, "valid Unicode"),
        ({"headers": [("a", b"b")]}, "headers are a dict of text to bytes, not list"),
        ({"headers": "h"}, "headers are a dict"),
        ({"headers": {1: b"x"}}, "a header's name is text, not int"),
        ({"headers": {b"a": b"x"}}, "a header's name is text, not bytes"),
        ({"headers": {"a": 5}}, "header 'a' is bytes or text, not int"),
        ({"headers": {"a": None}}, "header 'a' is bytes or text, not NoneType"),
        ({"headers": {LONE_SURROGATE: b"x"}}, "valid Unicode"),
        ({"headers": {"a": LONE_SURROGATE}}, "valid Unicode"),
        ({"timestamp": "now"}, "microseconds since 1970 or a datetime, not str"),
        ({"timestamp": 1.5}, "not float"),
        ({"timestamp": True}, "not bool"),
        ({"timestamp": 1 << 63}, "out of range"),
    ],
)
def test_a_record_of_wrong_types_is_refused(path: Path, fields: dict[str, Any], told: str) -> None:
    fields = {"value": b"x", **fields}
    with esker.open(path, background=False) as store:
        for topic in (store["t"], store["new"]):
            for attempt in (
                lambda topic=topic: topic.append(**fields),
                lambda topic=topic: topic.append(**fields, wait=True),
                lambda topic=topic: topic.append_nowait(**fields),
                lambda topic=topic: topic.append_many([b"good", esker.Record(**fields)]),
                lambda topic=topic: topic.append_many([b"good"] * 20 + [esker.Record(**fields)]),
                lambda topic=topic: topic.batch().append(**fields),
            ):
                with pytest.raises(esker.InvalidRecord, match=told):
                    attempt()
        assert list(store) == ["t"]
    assert forty(path) == FORTY


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"value": b"x" * 1001}, "1001 bytes is above max_record_bytes=1000; .*split the record"),
        ({"value": "ü" * 501}, "1002 bytes is above"),
        ({"key": b"k" * 65_537}, "a key of 65537 bytes; at most 65536"),
        ({"key": memoryview(bytes(131_074)).cast("H")}, "a key of 131074 bytes"),
        ({"tag": "t" * 257}, "a tag of 257 bytes; at most 256"),
        ({"tag": "ü" * 129}, "a tag of 258 bytes"),
        ({"node": "n" * 129}, "a node of 129 bytes; at most 128"),
        ({"headers": {str(n): b"" for n in range(65)}}, "65 headers; at most 64"),
        ({"headers": {"h": b"x" * (256 << 10)}}, "bytes of headers; at most 262144"),
    ],
)
def test_an_oversized_record_is_refused(path: Path, fields: dict[str, Any], told: str) -> None:
    fields = {"value": b"x", **fields}
    with esker.open(path, background=False) as store:
        topic = store.create("small", max_record_bytes=1000)
        for attempt in (
            lambda: topic.append(**fields),
            lambda: topic.append(**fields, wait=True),
            lambda: topic.append_nowait(**fields),
            lambda: topic.append_many([b"good", esker.Record(**fields)]),
            lambda: topic.batch().append(**fields),
        ):
            with pytest.raises(esker.RecordTooLarge, match=told):
                attempt()
        topic.flush()
        assert len(topic) == 0


@pytest.mark.parametrize("given", ["text", b"bytes", bytearray(b"x"), 5, None, {"a": b"b"},
                                   esker.Record(b"x")])  # fmt: skip
def test_a_lone_value_is_not_a_batch(store: esker.Store, given: Any) -> None:
    with pytest.raises(esker.InvalidRecord, match="append_many takes a list of records"):
        store["t"].append_many(given)
    assert list(store) == []


@pytest.mark.parametrize("wait", [None, "yes", -1, float("nan"), [], b"1"])
def test_a_wait_is_yes_no_or_seconds(store: esker.Store, wait: Any) -> None:
    store.create("fsync", durability="fsync")
    for name in ("fsync", "new"):
        for attempt in (
            lambda name=name: store[name].append(b"x", wait=wait),
            lambda name=name: store[name].append_many([b"x"], wait=wait),
            lambda name=name: store[name].append_arrow(pa.array([b"x"]), wait=wait),
        ):
            with pytest.raises(esker.InvalidOption, match="wait="):
                attempt()
    assert list(store) == ["fsync"]
    assert len(store["fsync"]) == 0


def test_a_wait_of_an_age_is_a_wait_for_ever(store: esker.Store) -> None:
    topic = store.create("t", durability="fsync")
    for wait in (1e300, float("inf"), 10**30):
        topic.append(b"x", wait=wait)
    assert len(list(topic.follow(0, timeout=1e300, limit=3))) == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda topic: topic.read(limit=-1),
        lambda topic: topic.read(limit="5"),
        lambda topic: topic.read(limit=1.5),
        lambda topic: topic.read(gaps="hide"),
        lambda topic: topic.read(consistency="certain"),
        lambda topic: topic.batches(max_bytes=0),
        lambda topic: topic.batches(max_bytes="1MiB"),
        lambda topic: topic.batches(max_records=-1),
        lambda topic: topic.batches(max_records=None),
        lambda topic: topic.batches(gaps=None),
        lambda topic: topic.follow(timeout="5"),
        lambda topic: topic.follow(timeout=-1),
        lambda topic: topic.follow(timeout=float("nan")),
        lambda topic: topic.follow(limit=-5),
        lambda topic: topic.follow(gaps=5),
        lambda topic: topic.follow(consistency=None),
        lambda topic: topic.follow_batches(timeout=[]),
        lambda topic: topic.slice(gaps="x"),
        lambda topic: topic["5"],
        lambda topic: topic[1.5],
        lambda topic: topic[True],
        lambda topic: topic[None],
        lambda topic: topic.get(0, shard="x"),
    ],
)
def test_a_wrong_argument_of_reading_is_told_at_once(store: esker.Store, call: Any) -> None:
    store["t"].append(b"x", wait=True)
    with pytest.raises(esker.InvalidOption):
        call(store["t"])


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "../etc", "..", ".hidden", "-a", "ä", "a\n", "a\0b", "x" * 256,
     5, None, b"a", ["a"], 1.5, True],
)  # fmt: skip
def test_a_name_that_could_mean_trouble_is_refused(store: esker.Store, name: Any) -> None:
    before = snapshot(Path(store.path))
    for attempt in (
        lambda: store[name],
        lambda: store.create(name),
        lambda: store.create(name, exist_ok=True),
    ):
        with pytest.raises(esker.InvalidName):
            attempt()
    assert name not in store
    assert snapshot(Path(store.path)) == before


def test_of_many_names_the_nearest_is_looked_for_among_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server of many topics is asked for one that is not there: that must not cost a second."""
    names = [f"user:{number:06}" for number in range(100_000)]
    really, compared = difflib.get_close_matches, []

    def close(word: str, choices: list[str], **given: Any) -> list[str]:
        compared.append(len(choices))
        return really(word, choices, **given)

    monkeypatch.setattr(difflib, "get_close_matches", close)
    assert errors.nearest("user:054321x", names) == "did you mean 'user:054321'?"
    assert errors.nearest("zebra", names).endswith("user:000039 and 99960 more")
    assert compared == [errors.COMPARED, errors.COMPARED // 2]


def test_the_longest_name_is_taken(store: esker.Store) -> None:
    store["x" * 255].append(b"x")
    assert list(store) == ["x" * 255]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lingr": 1}, "unknown option 'lingr'; did you mean 'linger'"),
        ({"sync_intervall": 1}, "did you mean 'sync_interval'"),
        ({"max_unflushed": 1}, "did you mean 'max_unflushed_bytes'"),
        ({"shards": 4}, "unknown option 'shards'"),
        ({"zzzzz": 1}, "there is: .*background.*linger"),
        ({"linger": "soon"}, "a duration such as"),
        ({"linger": -1}, "seconds, or text"),
        ({"linger": float("nan")}, "linger="),
        ({"linger": float("inf")}, "linger="),
        ({"linger": "9" * 400}, "too large"),
        ({"linger": "200000d"}, "must lie in"),
        ({"linger": True}, "seconds, or text"),
        ({"linger_us": "20ms"}, "a whole number"),
        ({"linger_us": -1}, "must lie in"),
        ({"journals": 0}, r"must lie in 1\.\.64"),
        ({"journals": 2.0}, "a whole number"),
        ({"journal_bytes": "1KiB"}, "must lie in"),
        ({"journal_bytes": "many"}, "a size such as"),
        ({"max_unflushed_bytes": None}, "a whole number"),
        ({"mapped_bytes": "9" * 400}, "too large"),
        ({"background": "no"}, "True or False"),
        ({"mode": "w"}, '"rw" or "r"'),
        ({"mode": None}, '"rw" or "r"'),
    ],
)
def test_a_wrong_option_of_a_store_is_told(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(esker.InvalidOption, match=told):
        esker.open(tmp_path / "data", **given)
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shard": 4}, "unknown option 'shard'; did you mean 'shards'"),
        ({"ttl": "7d", "ttl_us": 5}, "ttl and ttl_us are one option"),
        ({"durabilty": "fsync"}, "did you mean 'durability'"),
        ({"segment_size": 1}, "did you mean 'segment_"),
        ({"shards": 0}, r"must lie in 1\.\.1024"),
        ({"shards": 1025}, r"must lie in 1\.\.1024"),
        ({"shards": "4"}, "a whole number"),
        ({"shards": True}, "a whole number"),
        ({"durability": "sync"}, "one of fsync, disk, memory, ephemeral"),
        ({"durability": ["fsync"]}, "one of fsync"),
        ({"compression": "gzip"}, "one of none, zstd"),
        ({"compress_at": "night"}, "one of seal, commit"),
        ({"compression_level": 0}, "must lie in 1..22"),
        ({"segment_bytes": "1KiB"}, "must lie in"),
        ({"segment_bytes": "2GiB"}, "must lie in"),
        ({"segment_bytes": -5}, "must lie in"),
        ({"segment_bytes": 1e6}, "a whole number"),
        ({"segment_records": -1}, "must lie in"),
        ({"segment_age": "old"}, "a duration such as"),
        ({"max_record_bytes": 0}, "must lie in"),
        ({"max_record_bytes": "64MiB"}, "at most half of segment_bytes"),
        ({"compress_min_bytes": -1}, "must lie in"),
    ],
)
def test_a_wrong_option_of_a_topic_is_told(
    store: esker.Store, given: dict[str, Any], told: str
) -> None:
    before = snapshot(Path(store.path))
    with pytest.raises(esker.InvalidOption, match=told):
        store.create("t", **given)
    assert snapshot(Path(store.path)) == before


def test_a_key_is_needed_to_know_a_shard(store: esker.Store) -> None:
    store["t"].append(b"x")
    with pytest.raises(esker.InvalidRecord):
        store["t"].shard_of(None)  # type: ignore[arg-type]
    with pytest.raises(esker.InvalidRecord):
        store["t"].shard_of(5)  # type: ignore[arg-type]


# ---- a closed store --------------------------------------------------------------------------


def test_a_closed_store_says_so_whatever_is_asked(path: Path) -> None:
    store = esker.open(path)
    topic, part, fresh = store["t"], store["t"][:], store["new"]
    following, reading = topic.follow(0), topic.read()
    assert next(reading).value == FORTY[0]
    store.close()
    before = snapshot(path)
    for attempt in (
        lambda: store["t"],
        lambda: store.create("x"),
        lambda: list(store),
        lambda: len(store),
        lambda: "t" in store,
        store.sync,
        store.flush,
        store.__enter__,
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", wait=True),
        lambda: topic.append_nowait(b"x"),
        lambda: topic.append_many([b"x"]),
        lambda: topic.append_many([]),
        lambda: topic.append_arrow(pa.array([b"x"])),
        lambda: fresh.append(b"x"),
        topic.flush,
        topic.sync,
        topic.read,
        topic.batches,
        topic.follow,
        lambda: topic[0],
        lambda: topic[:],
        lambda: list(part),
        lambda: part.to_arrow(),
        lambda: len(topic),
        topic.end,
        topic.counters,
    ):
        with pytest.raises(esker.StoreClosed, match=f"{path}.*open it again"):
            attempt()
    assert list(following) == []
    assert repr(store) == f"<esker store {path} (closed), 1 topic>"
    assert snapshot(path) == before


# ---- a second writer -------------------------------------------------------------------------

WRITER = """
    import os, sys
    import esker
    with esker.open(sys.argv[1]) as store:
        store["t"].append(b"mine", wait=True)
        print(os.getpid())
        sys.stdin.readline()
"""


def test_a_second_writer_is_told_who_the_first_is(path: Path) -> None:
    with child(WRITER, path) as first:
        pid = int(first.line())
        before = data_of(path)
        with esker.open(path) as second:
            for attempt in (
                lambda: second["t"].append(b"x"),
                lambda: second["t"].append(b"x", wait=True),
                lambda: second["t"].append_many([b"x"]),
                lambda: second["t"].append_arrow(pa.array([b"x"])),
            ):
                with pytest.raises(esker.WriterBusy) as caught:
                    attempt()
                told = str(caught.value)
                assert caught.value.pid == pid == first.pid
                assert f"process {pid}" in told
                assert caught.value.since
                assert caught.value.since in told
                assert 'mode="r"' in told
            assert second["t"].end() == 41, "reading works beside it"
        assert data_of(path) == before
        first.say()
        first.end()
    with esker.open(path) as third:
        assert third["t"].append(b"x", wait=True) == 41


def test_a_second_handle_in_the_same_process_is_no_writer_either(path: Path) -> None:
    with esker.open(path) as first, esker.open(path) as second:
        first["t"].append(b"mine", wait=True)
        with pytest.raises(esker.WriterBusy) as caught:
            second["t"].append(b"x", wait=True)
        assert caught.value.pid == os.getpid()
        second["other"].append(b"another topic is free", wait=True)
    assert forty(path) == [*FORTY, b"mine"]
