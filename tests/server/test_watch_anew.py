"""Streams whose topics are deleted and made anew: nothing of either is left out unsaid."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from esker.errors import TopicNotFound
from esker.server.live import cursor, feed, hub
from esker.server.live.feed import look
from esker.server.live.frames import Lens, Maker
from esker.server.live.stream import EventStream, Interest
from esker.server.run import Server
from tests.server.conftest import Client
from tests.server.streams import Event
from tests.server.test_watch import on_loop, until, watch

__all__ = ["watch"]  # a fixture


def make(client: Client, topic: str, shards: int) -> None:
    assert client.call("PUT", f"/v1/topics/{topic}", {"shards": shards}).status == 201


def fill(client: Client, topic: str, count: int = 30) -> set[str]:
    """Records in all shards."""
    records = [{"value": f"{number}", "key": f"key {number}"} for number in range(count)]
    assert client.call("POST", f"/v1/topics/{topic}/records", {"records": records}).status == 200
    return {record["value"] for record in records}


def taken(events: Iterator[Event], count: int) -> set[str]:
    """So many values of a stream, and no more."""
    found: list[str] = []
    for event in events:
        if event.kind == "record":
            found += [each["value"] for each in event.json()["records"]]
        if len(found) >= count:
            break
    assert len(found) == count
    return set(found)


def test_a_topic_made_anew_with_more_shards_is_watched_in_all_of_them(
    client: Client, watch: Any
) -> None:
    make(client, "t", 1)
    events = watch("topics=t")
    events.next("caught-up")
    for shards in (3, 1, 4):
        client.call("DELETE", "/v1/topics/t")
        events.next("topic-deleted")
        make(client, "t", shards)
        told = fill(client, "t")
        assert taken(events, 30) == told


def test_a_shard_that_was_asked_for_stays_the_only_one(client: Client, watch: Any) -> None:
    make(client, "t", 1)
    events = watch("topics=t&shard=0")
    events.next("caught-up")
    client.call("DELETE", "/v1/topics/t")
    events.next("topic-deleted")
    make(client, "t", 3)
    fill(client, "t")
    client.call("POST", "/v1/topics/t/records?create=false", {"records": [{"value": "x"}]})
    events.next("gap")
    seen = [events.next().json() for _ in range(2)]
    assert {each["shard"] for each in seen} == {0}


@pytest.mark.parametrize("before", [0, 1])
def test_who_comes_back_gets_the_shards_that_the_former_topic_did_not_have(
    client: Client, watch: Any, before: int
) -> None:
    make(client, "other", 1)
    if before:
        make(client, "t", before)
    events = watch("topics=t,other&lenient=true")
    while events.next().json()["topic"] != "other":
        pass
    last = events.last
    events.close()
    if before:
        client.call("DELETE", "/v1/topics/t")
    make(client, "t", 3)
    told = fill(client, "t")
    assert taken(watch("topics=t,other&lenient=true", last), 30) == told


def test_a_gap_counts_as_told_when_it_was_told(client: Client, watch: Any) -> None:
    """A cursor of a stream of several topics does not go beyond a gap that is yet to come."""
    for name in ("a", "b"):
        make(client, name, 1)
        client.append(name, "x", "y")
    events = watch("topics=a,b&start=earliest")
    events.next()  # of one of them
    last = events.last
    events.close()
    for name in ("a", "b"):
        client.call("DELETE", f"/v1/topics/{name}")
        make(client, name, 1)
    gaps: dict[str, int] = {}
    for _ in range(2):  # cut off behind the first event, and back with its id
        events = watch("topics=a,b", last)
        told = events.next("gap").json()
        assert told["topic"] not in gaps
        gaps[told["topic"]] = told["missed"]
        last = events.last
        events.close()
    assert sorted(gaps.values()) == [0, 2]


def lost_in(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, then: Callable[[], None]
) -> None:
    """Have something done behind a call, once."""
    real, done = getattr(where, name), []

    def wrapped(*args: Any, **how: Any) -> Any:
        found = real(*args, **how)
        if found and not done:
            done.append(True)
            then()
        return found

    monkeypatch.setattr(where, name, wrapped)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_a_stream_begins_is_told_as_deleted(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    client.append("t", "old")
    if again:
        stays = watch("topics=t&lenient=true")
        stays.next("caught-up")

    def delete() -> None:
        server.app.store._store.delete("t")
        if again:
            server.app.store._store["t"].append(b"new", wait=True)

    lost_in(monkeypatch, hub, "look", delete)
    events = watch("topics=t&start=earliest")
    assert events.next().kind == "topic-deleted"
    client.append("t", "newer")
    gap = events.next("gap").json()
    assert (gap["reason"], gap["first"], gap["missed"]) == ("recreated", 0, 1)
    assert events.values(1 + again) == ["new", "newer"][1 - again :]
    assert server.app.failures == 0


def test_what_a_topic_lost_twice_is_told_twice(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted, made anew, and deleted again before the first gap was told."""
    store = server.app.store._store
    client.append("t", "1", "2", "3")
    events = watch("topics=t&start=1")
    assert events.values(2) == ["2", "3"]
    last = cursor.piece(cursor.hash_of("t"), 0, store["t"].epoch, 1)  # who saw one of them
    events.close()
    store.delete("t")
    client.append("t", "4")
    lost_in(monkeypatch, hub, "look", lambda: store.delete("t"))
    events = watch("topics=t", last)
    first = events.next().json()
    assert (first["reason"], first["first"], first["missed"]) == ("recreated", 1, 2)
    assert events.next().kind == "topic-deleted"
    client.append("t", "5")
    second = events.next("gap").json()
    assert (second["reason"], second["first"], second["missed"]) == ("recreated", 0, 1)
    assert events.values(1) == ["5"]


def test_nothing_overtakes_what_waits_when_another_topic_is_gone(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records came while a topic beside theirs was read, which was found to be deleted."""
    client.append("log", "0")
    client.append("gone", "x")
    events = watch("topics=log&start=earliest")
    assert events.values(1) == ["0"]
    events.close()
    reading, reads, real = threading.Event(), threading.Event(), feed.reading

    def slow(wanted: Any, *args: Any) -> Any:
        if wanted.name != "gone":
            return real(wanted, *args)
        reading.set()
        assert reads.wait(10)
        raise TopicNotFound("deleted meanwhile")

    monkeypatch.setattr(hub, "reading", slow)
    events = watch("topics=gone,log&start=earliest")
    assert reading.wait(10)
    until(lambda: on_loop(server, lambda: server.app.hub.feeds["log"][0, False].live))
    client.append("log", "1")
    until(lambda: on_loop(server, lambda: any(each.queue for each in server.app.hub.streams)))
    reads.set()
    for number in range(2, 12):
        client.append("log", str(number))
    assert events.values(12) == ["0", *(str(number) for number in range(1, 12))]


def test_what_waits_of_a_topic_that_is_gone_is_not_dropped() -> None:
    stream = EventStream(None, None)  # type: ignore[arg-type]
    gone, there = (Interest(stream, name, 0, 0, Lens()) for name in ("gone", "there"))
    records: Any = type("F", (), {"body": b"x", "begin": 0, "next": 1, "final": False})
    deleted = Maker("gone", 1, 0).deleted(1, "sse")
    for interest, frame in ((there, records), (gone, records), (gone, deleted), (gone, records)):
        stream.enqueue(interest, frame)
        interest.at = frame.next
    assert stream.drop() == 2
    assert stream.queue is not None
    assert list(stream.queue) == [(gone, records), (gone, deleted)]
    assert (gone.at, there.at) == (0, 0)


def test_a_topic_that_goes_while_it_is_looked_at_is_not_there(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = server.app.store._store
    client.append("t", "x")
    topic = store["t"]
    store.delete("t")
    with monkeypatch.context() as patched:
        patched.setattr(type(store), "__contains__", lambda *_: True)
        patched.setattr(type(store), "__getitem__", lambda *_: topic)
        found = look(store, "t", "earliest", None, {})
    assert found is None


def test_of_a_shard_that_is_no_more_the_rest_is_told_as_missing(client: Client, watch: Any) -> None:
    make(client, "t", 3)
    fill(client, "t")
    events = watch("topics=t&start=earliest")
    seen, last = len(events.next("record").json()["records"]), events.last
    events.close()
    client.call("DELETE", "/v1/topics/t")
    make(client, "t", 1)
    events = watch("topics=t", last)
    gaps = [events.next("gap").json() for _ in range(3)]
    assert sorted(each["shard"] for each in gaps) == [0, 1, 2]
    assert sum(each["missed"] for each in gaps) == 30 - seen
    last = events.last
    for comes in ("stays", "comes back"):
        if comes == "comes back":
            events.close()
            events = watch("topics=t", last)
        client.call("DELETE", "/v1/topics/t")
        assert events.next("topic-deleted").json()["shard"] == 0
        make(client, "t", 3)
        gaps = [events.next("gap").json() for _ in range(3)]
        assert {(each["first"], each["missed"]) for each in gaps} == {(0, 0)}
        told = fill(client, "t")
        assert taken(events, 30) == told
        client.call("DELETE", "/v1/topics/t")
        for _ in range(3):
            events.next("topic-deleted")
        make(client, "t", 1)
        assert sum(events.next("gap").json()["missed"] for _ in range(3)) == 0
        last = events.last


def test_a_shard_that_is_waited_for_comes_with_a_topic_that_has_it(
    client: Client, watch: Any
) -> None:
    events = watch("topics=t&shard=2&start=earliest&lenient=true")
    make(client, "t", 1)
    client.append("t", "x")
    client.call("DELETE", "/v1/topics/t")
    make(client, "t", 3)
    fill(client, "t")
    told = events.next("record").json()
    assert told["shard"] == 2
