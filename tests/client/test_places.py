"""What the client needs of a server besides topics and records: positions, waiting, sync."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import esker
from esker.server import records as rooms
from esker.server.run import Server
from tests.helpers import Threads, wait_until


def test_positions_are_settled_in_each_shard_and_counted(store: Any) -> None:
    topic = store.create("t", shards=2)
    topic.append_many([esker.Record(b"%d" % n, key=b"%d" % n) for n in range(20)])
    topic.delete(3, shard=0)
    ranges = topic._settled("earliest", None, None)
    assert [(one["shard"], one["first"]) for one in ranges.ranges] == [(0, 3), (1, 0)]
    assert ranges.count == len(topic) == len(topic[:])
    (last,) = topic._settled(-1, None, 1).ranges
    assert (last["first"], last["count"]) == (topic.end(1) - 1, 1)


def test_a_wait_for_several_shards_ends_when_one_of_them_moves(store: Any) -> None:
    topic = store.create("t", shards=3)
    threads = Threads()
    found: list[Any] = []
    threads.start(lambda: found.extend(topic.follow("latest", limit=2)))
    wait_until(lambda: store._pool._waiting, "the follower to wait")
    for n in range(2):
        topic.append(b"%d" % n, key=b"%d" % n)
    threads.join()
    assert sorted(record.value for record in found) == [b"0", b"1"]


@pytest.mark.parametrize("cursors", [{}, {"x": 0}, {"0": -1}, {"9": 0}, {"0": "1"}, [], 7])
def test_cursors_that_are_none_are_refused(store: Any, cursors: Any) -> None:
    store.create("t", shards=3)
    with pytest.raises(esker.InvalidOption):
        store["t"]._call("POST", "/tail", None, {"cursors": cursors})


def test_a_topic_of_many_shards_is_followed(store: Any) -> None:
    topic = store.create("t", shards=1_000)
    topic.append(b"x", key=b"k")
    assert [record.value for record in topic.follow("latest", timeout=0.01)] == []
    topic.append(b"y", key=b"k")
    assert topic.end(topic.shard_of(b"k")) == 2


def test_a_reader_that_leaves_out_a_node_comes_to_the_end_all_the_same(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store["t"]
    topic.append_many([esker.Record(b"%d" % n, node="here") for n in range(100)])
    page = topic._page(0, None, 0, skip_node="here")
    assert (page.items, page.next) == ([], 100)
    looks: list[int] = []
    real = rooms.look

    def look(*args: Any) -> Any:
        looks.append(args[2])
        return real(*args)

    monkeypatch.setattr(rooms, "look", look)
    threads = Threads()
    found: list[Any] = []
    threads.start(lambda: found.extend(topic.follow("latest", limit=1, skip_node="here")))
    wait_until(lambda: store._pool._waiting, "the follower to wait")
    topic.append_many([esker.Record(b"own", node="here")] * 10)
    wait_until(lambda: looks and looks[-1] == 110, "the server to look behind them")
    topic.append(b"theirs", node="there")
    threads.join()
    assert [record.value for record in found] == [b"theirs"]
    assert len(looks) < 20, "what is left out woke it again and again"


def test_who_comes_back_to_a_topic_made_anew_is_told_over_http_too(store: Any) -> None:
    store["t"].append_many([b"a", b"b", b"c"])
    epoch = store["t"].epoch
    store.delete("t")
    store["t"].append(b"new")
    missed, new = store["t"].read(1, epoch=epoch, gaps="yield")
    assert (missed.first, missed.last, missed.reason) == (1, 2, "recreated")
    assert new.value == b"new"
    with pytest.raises(esker.DataGap):
        list(store["t"].read(1, epoch=epoch))
    page = store["t"]._call("GET", "/records", {"start": 1, "epoch": epoch}).json()
    assert [record["value"] for record in page["records"]] == ["new"]
    assert page["next"] == 1, "offsets of the old one are none of the new one"


def test_a_read_does_not_go_on_in_a_topic_that_was_made_anew(store: Any, server: Server) -> None:
    store["t"].append_many([b"%d" % n for n in range(20_000)])
    reading = store["t"].batches()
    next(reading)
    with esker.open(server.url) as other:
        other.delete("t")
        other["t"].append_many([b"%d" % n for n in range(20_000)])
    with pytest.raises(esker.TopicNotFound, match="was deleted"):
        list(reading)


def test_a_topic_that_another_client_made_anew_with_more_shards_is_known(
    store: Any, server: Server
) -> None:
    topic = store["t"]
    assert topic.append(b"x", key=b"k") == 0
    with esker.open(server.url) as other:
        other.delete("t")
        other.create("t", shards=4)
    offsets = [topic.append(b"%d" % n, key=b"%d" % n) for n in range(50)]
    found = {getattr(offset, "shard", 0) for offset in offsets}
    assert found == {0, 1, 2, 3}
    assert isinstance(offsets[-1], esker.Offset), "by now it knows"
    assert topic.get(0, shard=max(found)).shard == max(found) > 0
    assert len(list(topic.read(shard=max(found)))) > 0


def test_sync_makes_durable_what_was_appended(store: Any) -> None:
    topic = store["t"]
    topic.sync()
    assert "t" not in store, "a sync makes no topic"
    topic.append_many([b"a", b"b"])
    topic.flush()
    store.sync()
    assert topic.durable() == 2
    topic.wait_durable(1)
    with pytest.raises(esker.OffsetOutOfRange, match="the next is 2"):
        topic.wait_durable(2)


def test_a_large_table_is_sent_in_parts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr("esker.client.bodies.PART_BYTES", 10_000)
    sent: list[str] = []
    real = store._pool.call

    def call(method: str, path: str, *args: Any, **how: Any) -> Any:
        sent.append(method)
        return real(method, path, *args, **how)

    monkeypatch.setattr(store._pool, "call", call)
    table = pa.table({"value": [b"%05d" % n * 20 for n in range(1_000)]})
    assert store["t"].append_arrow(table) == esker.Span(0, 0, 1_000)
    assert sent.count("POST") >= 10
    assert store["t"][:].to_arrow().column("value").to_pylist() == table["value"].to_pylist()


def test_a_batch_over_the_servers_limit_is_refused_as_a_batch(store: Any) -> None:
    with pytest.raises(esker.BatchTooLarge):
        store["t"].append_many([b"x" * 1_000_000] * 9)
    with pytest.raises(esker.RecordTooLarge):
        store["t"].append(b"x" * 9_000_000)
    assert "t" not in store
    assert store["t"].append(b"y") == 0, "and the connection is of use"


def test_a_batch_is_one_or_none_over_http_too(store: Any) -> None:
    topic = store.create("t", segment_bytes="4KiB", max_record_bytes="1KiB")
    with pytest.raises(esker.BatchTooLarge):
        topic.append_many([b"x" * 100] * 100)
    assert len(topic) == 0
    mixed = [esker.Record(b"a", timestamp=7), esker.Record(b"b", headers={"h": b"\xff"}), b"c"]
    assert topic.append_many(mixed, idempotency_key="k") == esker.Span(0, 0, 3)
    assert topic.append_many(mixed, idempotency_key="k") == esker.Span(0, 0, 3)
    a, b, c = topic.read()
    assert (a.timestamp, dict(b.headers)["h"], c.value) == (7, b"\xff", b"c")
    assert b.timestamp > 7


def test_a_page_that_is_none_is_a_fault_of_the_server(store: Any) -> None:
    from esker.client.bodies import Page
    from esker.client.pool import Answer

    for headers, body in (({}, b""), ({"esker-next": "x"}, b""), (NEXT, b"no arrow")):
        with pytest.raises(esker.ServerFault, match="no page"):
            Page(Answer(200, headers, body), 0)


NEXT = {"esker-next": "0", "esker-end": "0", "esker-earliest": "0", "esker-epoch": "1"}


def test_the_routes_that_the_client_needs_are_described(server: Server, store: Any) -> None:
    document = msgspec.json.decode(store._pool.call("GET", "/openapi.json").body)
    for path in ("ranges", "tail", "sync", "counters", "producers/{producer}"):
        assert f"/v1/topics/{{topic}}/{path}" in document["paths"]
