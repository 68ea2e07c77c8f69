"""Server-sent events: what a client sees, and that it misses nothing."""

from __future__ import annotations

import base64
import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.errors import Corruption
from esker.server.access import keyfile
from esker.server.access.keys import SCOPES, Principal
from esker.server.http.faults import Fault
from esker.server.live import cursor, feed, frames, missing
from esker.server.live import hub as hub_module
from esker.server.live.stream import SHARDS_MAX
from esker.server.live.watch import Sessions
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.helpers import HandClock
from tests.server.conftest import Client
from tests.server.streams import Events


@pytest.fixture
def watch(server: Server) -> Iterator[Any]:
    opened: list[Events] = []

    def make(query: str, last: str = "", **headers: str) -> Events:
        made = Events(server.url, f"/v1/watch?{query}", last, **headers)
        opened.append(made)
        return made

    yield make
    for each in opened:
        each.close()


def on_loop(server: Server, work: Any) -> Any:
    """Have something done on the server's loop."""
    done = threading.Event()
    found: list[Any] = []

    def call() -> None:
        found.append(work())
        done.set()

    loop = server.app.hub._loop
    assert loop is not None
    loop.call_soon_threadsafe(call)
    assert done.wait(10)
    return found[0]


def until(fact: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# ---- what comes -------------------------------------------------------------------------------


def test_records_come_as_they_are_appended(client: Client, watch: Any) -> None:
    client.append("orders", "before")
    events = watch("topics=orders")
    assert events.status == 200
    assert events.headers["content-type"] == "text/event-stream"
    assert events.headers["x-accel-buffering"] == "no"
    assert "no-store" in events.headers["cache-control"]
    caught = events.next()
    assert events.retry == 2000
    assert (caught.kind, caught.json()) == ("caught-up", {"topic": "orders", "shard": 0, "next": 1})
    client.append("orders", "a", "b")
    event = events.next()
    assert event.kind == "record"
    told = event.json()
    assert [each["value"] for each in told["records"]] == ["a", "b"]
    assert (told["topic"], told["shard"], told["next"], told["end"]) == ("orders", 0, 3, 3)
    assert event.id != caught.id


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", "0"), ("-3", "7"), ("4", "4"), ("latest", "new")]
)
def test_a_stream_begins_where_it_is_asked_to(
    client: Client, watch: Any, start: str, first: str
) -> None:
    client.append("orders", *map(str, range(10)))
    events = watch(f"topics=orders&start={start}")
    if start == "latest":
        events.next("caught-up")
    client.append("orders", "new")
    assert events.values(1)[0] == first


def test_who_waits_for_an_offset_to_come_holds_up_nobody(
    server: Server, client: Client, watch: Any
) -> None:
    client.append("t", "0")
    early = watch("topics=t&start=3")
    early.next("caught-up")
    other = watch("topics=t&start=earliest")
    assert other.values(1) == ["0"]
    other.next("caught-up")
    client.append("t", "1", "2", "3", "4")
    client.append("t", "5")
    assert other.values(5) == ["1", "2", "3", "4", "5"]
    assert early.values(3) == ["3", "4", "5"]
    until(lambda: all(stream.task is None for stream in server.app.hub.streams))


def test_the_past_comes_before_caught_up_and_the_present_after_it(
    client: Client, watch: Any
) -> None:
    client.append("orders", "old")
    events = watch("topics=orders&start=earliest")
    assert [events.next().kind for _ in range(2)] == ["record", "caught-up"]
    client.append("orders", "new")
    assert events.values(1) == ["new"]


def test_many_topics_and_shards_in_one_stream(client: Client, watch: Any) -> None:
    client.call("PUT", "/v1/topics/wide", {"shards": 3})
    client.append("a", "x")
    events = watch("topics=a,wide&start=earliest")
    for number in range(30):
        body = {"records": [{"value": str(number), "key": str(number)}]}
        client.call("POST", "/v1/topics/wide/records", body)
    client.append("a", "y")
    seen: dict[tuple[str, int], list[str]] = {}
    while sum(map(len, seen.values())) < 32:
        told = events.next("record").json()
        seen.setdefault((told["topic"], told["shard"]), []).extend(
            each["value"] for each in told["records"]
        )
    assert seen.pop(("a", 0)) == ["x", "y"]
    assert sorted(int(v) for each in seen.values() for v in each) == list(range(30))
    assert all([*map(int, each)] == sorted(map(int, each)) for each in seen.values())


def test_a_topic_that_is_not_there_is_told_before_the_stream_begins(watch: Any) -> None:
    events = watch("topics=nowhere")
    assert events.status == 404
    assert msgspec.json.decode(events.body)["error"]["code"] == "topic_not_found"


def test_a_lenient_stream_waits_for_a_topic(client: Client, watch: Any) -> None:
    events = watch("topics=later&lenient=true")
    client.append("later", "a")
    assert events.values(1) == ["a"]


def test_who_waits_for_a_topic_gets_all_its_shards(client: Client, watch: Any) -> None:
    events = watch("topics=later&lenient=true")
    client.call("PUT", "/v1/topics/later", {"shards": 3})
    for number in range(20):
        body = {"records": [{"value": str(number), "key": str(number)}]}
        client.call("POST", "/v1/topics/later/records", body)
    assert sorted(map(int, events.values(20))) == list(range(20))


def test_values_are_shown_as_asked_for(client: Client, watch: Any) -> None:
    client.call(
        "POST", "/v1/topics/t/records",
        {"records": [{"value": {"a": 1}, "tag": "x", "headers": {"h": "1"}},
                     {"value": "plain", "tag": "y", "node": "eu"}]},
    )  # fmt: skip
    shown = watch("topics=t&start=earliest&values=json").next("record").json()["records"]
    assert [each["value"] for each in shown] == [{"a": 1}, "plain"]
    shown = watch("topics=t&start=earliest&headers=false").next("record").json()["records"]
    assert "headers" not in shown[0]
    for query, wanted in [("tag=x", '{"a":1}'), ("tag_prefix=y", "plain"), ("skip_node=eu", "{"),
                          ("tag_prefix=x&skip_node=eu", "{")]:  # fmt: skip
        events = watch(f"topics=t&start=earliest&{query}")
        shown = events.next("record").json()["records"]
        assert len(shown) == 1
        assert shown[0]["value"].startswith(wanted)
        assert events.next().json()["next"] == 2


@pytest.mark.parametrize(
    "value",
    ["a\n\nevent: record\ndata: {}\n\n", "\r\nid: 7\r\n\r\n", "\u2028x\u2029", "data: \0"],
)
def test_no_value_can_be_an_event(client: Client, watch: Any, value: str) -> None:
    client.append("t", value)
    events = watch("topics=t&start=earliest")
    assert events.values(1) == [value]
    assert events.next().kind == "caught-up"


def test_line_breaks_between_parts_of_a_value_are_no_line_breaks_of_the_stream(
    client: Client, watch: Any
) -> None:
    text = b'{"a":\n\n1,\r\n"b": "x\\ny"}'
    path, kind = "/v1/topics/t/records", {"Content-Type": "application/octet-stream"}
    client.call("POST", path, text, kind)
    events = watch("topics=t&start=earliest&values=json")
    assert events.values(1) == [{"a": 1, "b": "x\ny"}]
    assert events.next().kind == "caught-up"


def test_records_that_others_write_come_too(server: Server, client: Client, watch: Any) -> None:
    """A shard that this process does not write is looked at, not waited for."""
    client.append("t", "a")
    events = watch("topics=t")
    events.next("caught-up")
    shard = next(iter(server.app.hub.feeds["t"].values())).shard
    shard.add_waiter = lambda waiter: None  # nobody wakes it
    feed = server.app.hub.feeds["t"][0, False]
    feed.disarm()
    type(feed).polled, kept = property(lambda self: True), type(feed).polled
    try:
        client.append("t", "b")
        assert events.values(1) == ["b"]
    finally:
        type(feed).polled = kept


# ---- coming back ------------------------------------------------------------------------------


def test_who_comes_back_gets_what_is_behind_the_last_event(client: Client, watch: Any) -> None:
    client.append("t", "a", "b")
    events = watch("topics=t&start=earliest")
    assert events.values(2) == ["a", "b"]
    last = events.last
    events.close()
    client.append("t", "c")
    assert watch("topics=t&start=earliest", last).values(1) == ["c"]
    assert watch(f"topics=t&start=earliest&cursor={last}").values(1) == ["c"]


def test_who_saw_nothing_yet_comes_back_to_the_same_place(client: Client, watch: Any) -> None:
    client.append("t", "old")
    events = watch("topics=t")
    events.next("caught-up")
    last = events.last
    assert last
    events.close()
    client.append("t", "while away")
    assert watch("topics=t", last).values(1) == ["while away"]


def test_resuming_again_and_again_under_writes_leaves_nothing_out_and_repeats_nothing(
    server: Server, client: Client
) -> None:
    """B49: over three topics, with connections cut at any point of any event."""
    names, each = ("a", "b", "c"), 400
    client.call("PUT", "/v1/topics/c", {"shards": 2})
    for name in names:
        client.append(name, "first")
    done = threading.Event()

    def write(name: str) -> None:
        writer = Client(server)
        for number in range(each):
            body = {"records": [{"value": f"{number}", "key": f"{number}"}]}
            assert writer.call("POST", f"/v1/topics/{name}/records", body).status == 200
        writer.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    seen: dict[tuple[str, int], list[int]] = {}
    last, choose, cuts = "", random.Random(7), 0
    total = len(names) * (each + 1)
    while sum(map(len, seen.values())) < total:
        with Events(server.url, "/v1/watch?topics=a,b,c&start=earliest", last) as events:
            for _ in range(choose.randrange(1, 40)):
                event = events.next()
                last = event.id
                if event.kind == "record":
                    told = event.json()
                    place = (told["topic"], told["shard"])
                    seen.setdefault(place, []).extend(r["offset"] for r in told["records"])
                if sum(map(len, seen.values())) >= total:
                    break
        cuts += 1
    for thread in threads:
        thread.join()
    done.set()
    assert cuts > 3
    for offsets in seen.values():
        assert offsets == list(range(len(offsets)))


def test_records_that_are_gone_are_told_as_a_gap(client: Client, watch: Any) -> None:
    client.call("PUT", "/v1/topics/t", {"cap_records": 10, "segment_bytes": 4096})
    client.append("t", "a")
    events = watch("topics=t&start=earliest")
    assert events.values(1) == ["a"]
    last = events.last
    events.close()
    for _ in range(30):
        client.append("t", *("x" * 200 for _ in range(20)))
    client.server.app.store._store.retain()
    events = watch("topics=t&start=earliest", last)
    gap = events.next().json()
    assert gap["first"] == 1
    assert gap["reason"] == "evicted"
    assert events.next("record").json()["records"][0]["offset"] == gap["last"] + 1


def test_a_topic_that_was_made_anew_is_a_gap_and_then_the_new_one(
    client: Client, watch: Any
) -> None:
    client.append("t", "a", "b", "c")
    events = watch("topics=t&start=earliest")
    events.values(3)
    last = cursor.places(events.last)
    back = watch("topics=t&start=0")
    (place,) = last.values()
    early = cursor.piece(cursor.hash_of("t"), 0, place.epoch, 1)
    back.close()
    client.call("DELETE", "/v1/topics/t")
    assert events.next("topic-deleted").json()["topic"] == "t"
    assert client.append("t", "new").status == 200
    for stream, missed in ((events, 0), (watch("topics=t", early), 2)):
        gap = stream.next("gap").json()
        assert (gap["reason"], gap["missed"]) == ("recreated", missed)
        assert stream.values(1) == ["new"]
        assert cursor.places(stream.last)[cursor.hash_of("t"), 0].epoch > place.epoch


def test_who_comes_back_to_a_topic_that_is_gone_waits_for_the_next_one(
    client: Client, watch: Any
) -> None:
    client.append("t", "a")
    events = watch("topics=t&start=earliest")
    events.values(1)
    last = events.last
    events.close()
    client.call("DELETE", "/v1/topics/t")
    back = watch("topics=t", last)
    assert back.status == 200
    told = back.next()
    assert (told.kind, told.json()) == ("topic-deleted", {"topic": "t", "shard": 0, "next": 1})
    client.append("t", "b")
    assert back.next().json()["reason"] == "recreated"
    assert back.values(1) == ["b"]


@pytest.mark.parametrize("last", ["x", "!!!!", "AAAA", "/wAA", "DAAA" * 3, "A" * 4000])
def test_a_cursor_that_is_none_is_refused(client: Client, watch: Any, last: str) -> None:
    client.append("t", "a")
    assert watch("topics=t", last).status == 400


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1), st.integers(0, 65_535), st.integers(0, (1 << 62)),
            st.integers(0, (1 << 63) - 1),
        ),
        unique_by=lambda each: each[:2],
    )
)  # fmt: skip
def test_a_cursor_says_what_was_put_into_it(given: list[tuple[str, int, int, int]]) -> None:
    text = "".join(cursor.piece(cursor.hash_of(n), s, e, o) for n, s, e, o in given)
    assert cursor.places(text) == {(cursor.hash_of(n), s): (e, o) for n, s, e, o in given}


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader_of_cursors(data: bytes) -> None:
    with contextlib.suppress(Fault):  # anything else is not caught
        cursor.places(base64.urlsafe_b64encode(data).decode())


# ---- what was asked for by POST ---------------------------------------------------------------


def test_a_watch_can_be_made_first_and_used_later(server: Server, client: Client) -> None:
    client.append("a", "1")
    client.append("b", "2")
    made = client.call(
        "POST", "/v1/watch", {"topics": {"a": {"start": "earliest"}, "b": {"start": "latest"}}}
    )
    assert made.status == 201
    with Events(server.url, made.json()["url"]) as events:
        assert events.values(1) == ["1"]
        client.append("b", "3")
        assert events.values(1) == ["3"]
        last = events.last
    client.append("a", "4")
    with Events(server.url, made.json()["url"], last) as events:
        assert events.values(1) == ["4"]


def test_as_much_as_may_be_watched_can_be_resumed() -> None:
    """After years: a shard's piece has a number of five bytes, and an offset of six."""
    longest = len(cursor.piece(cursor.hash_of("t"), 1_023, 1 << 34, 1 << 41))
    assert longest * SHARDS_MAX < Settings().header_bytes - 1_024


def test_a_watch_goes_on_with_a_new_one_when_its_server_has_forgotten_it(
    server: Server, client: Client
) -> None:
    names = [f"topic-{number}" for number in range(16)]
    for name in names:
        client.call("PUT", f"/v1/topics/{name}", {})
    client.append(names[0], "old")
    topics = {name: {"start": "earliest"} for name in names}
    made = client.call("POST", "/v1/watch", {"topics": topics}).json()
    with Events(server.url, made["url"]) as events:
        assert events.values(1) == ["old"]
        last = events.last
    client.append(names[0], "new")
    with Events(server.url, made["url"], last) as events:
        assert events.values(1) == ["new"]
    server.app.sessions = Sessions(server.app.clock)  # as a server that starts anew
    assert client.get(made["url"]).code == "not_found"
    made = client.call("POST", "/v1/watch", {"topics": topics, "cursor": last}).json()
    with Events(server.url, made["url"]) as events:
        assert events.values(1) == ["new"]
    answer = client.call("POST", "/v1/watch", {"topics": topics, "cursor": "none"})
    assert answer.code == "invalid_request"


def test_a_watch_is_refused_if_a_topic_is_missing_or_it_was_never_made(client: Client) -> None:
    assert client.call("POST", "/v1/watch", {"topics": {"nowhere": {}}}).status == 404
    assert client.call("POST", "/v1/watch", {"topics": {}}).status == 400
    assert client.get("/v1/watch/nothing").code == "not_found"
    assert client.call("POST", "/v1/watch", {"topics": {"x": {}}, "lenient": True}).status == 201
    for name in ("../x", "x" * 256, "x" * 1_000_000):  # what is kept is small, for it is kept
        answer = client.call("POST", "/v1/watch", {"topics": {name: {}}, "lenient": True})
        assert (answer.status, answer.code) == (400, "invalid_name")
        assert len(answer.body) < 1_000
    for names in ("..%2Fx", "x,", ",", "x*"):  # in a query, too: it would be waited for without end
        assert client.get(f"/v1/watch?topics={names}&lenient=true").code == "invalid_name"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"start": "soon"}, "invalid_position"),
        ({"start": "@2026-13-01"}, "invalid_position"),
        ({"start": 1 << 63}, "invalid_request"),
        ({"shard": 2}, "invalid_option"),
    ],
)
def test_what_a_stream_would_refuse_is_refused_when_its_watch_is_made(
    client: Client, how: dict[str, Any], code: str
) -> None:
    client.call("PUT", "/v1/topics/t", {"shards": 2})
    assert client.call("POST", "/v1/watch", {"topics": {"t": how}}).code == code
    if isinstance(how.get("start"), str):  # nobody waits, to begin at what is no place
        asked = {"topics": {"nowhere": how}, "lenient": True}
        assert client.call("POST", "/v1/watch", asked).code == code
        query = f"topics=nowhere&lenient=true&start={how['start']}"
        assert client.get(f"/v1/watch?{query}").code == code


def test_a_watch_of_a_topic_that_is_gone_is_made_anew_with_a_cursor_of_it(
    server: Server, client: Client, watch: Any
) -> None:
    client.append("t", "a")
    with watch("topics=t&start=earliest") as events:
        assert events.values(1) == ["a"]
        last = events.last
    client.call("DELETE", "/v1/topics/t")
    assert client.call("POST", "/v1/watch", {"topics": {"t": {}}}).code == "topic_not_found"
    made = client.call("POST", "/v1/watch", {"topics": {"t": {}}, "cursor": last})
    assert made.status == 201
    with Events(server.url, made.json()["url"]) as events:
        assert events.next().kind == "topic-deleted"


def test_who_waits_beyond_all_offsets_can_come_back(client: Client, watch: Any) -> None:
    client.append("t", "a")
    with watch("topics=t&start=9999999999999999999") as events:
        assert events.next().kind == "caught-up"
        last = events.last
    with watch("topics=t", last) as events:
        assert events.next().kind == "caught-up"


@pytest.mark.parametrize("start", [1, -1])
def test_a_start_in_json_may_be_a_number(server: Server, client: Client, start: int) -> None:
    client.append("t", "a", "b")
    made = client.call("POST", "/v1/watch", {"topics": {"t": {"start": start}}}).json()
    with Events(server.url, made["url"]) as events:
        assert events.values(1) == ["b"]


def test_a_watch_is_for_who_made_it_and_is_forgotten_after_a_while(
    server: Server, client: Client
) -> None:
    client.append("a", "1")
    clock = HandClock()
    sessions = server.app.sessions = Sessions(clock)
    name = client.call("POST", "/v1/watch", {"topics": {"a": {}}}).json()["id"]
    assert sessions.find(name, "")
    with pytest.raises(Fault, match="no such watch"):
        sessions.find(name, "somebody else")
    clock.forward(301)
    with pytest.raises(Fault, match="no such watch"):
        sessions.find(name, "")


def test_a_watch_is_kept_for_as_long_as_it_is_used_and_who_comes_back_finds_it(
    server: Server, client: Client
) -> None:
    client.append("a", "1")
    clock = HandClock()
    sessions = server.app.sessions = Sessions(clock)
    made = client.call("POST", "/v1/watch", {"topics": {"a": {"start": "earliest"}}}).json()
    with Events(server.url, made["url"]) as events:
        assert events.values(1) == ["1"]
        clock.forward(3600)
        other = client.call("POST", "/v1/watch", {"topics": {"a": {}}}).json()["id"]
        last = events.last
    until(lambda: not server.app.hub.streams)
    clock.forward(299)
    client.append("a", "2")
    with Events(server.url, made["url"], last) as events:
        assert events.values(1) == ["2"]
    until(lambda: not server.app.hub.streams)
    clock.forward(301)
    assert client.get(made["url"]).code == "not_found"
    sessions.add(sessions._known[other].session)
    assert len(sessions) == 1, "those that are over make room"


# ---- limits and ends --------------------------------------------------------------------------


def test_no_more_streams_are_taken_than_are_allowed(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, streams=2)) as server:
        client = Client(server)
        client.append("t", "a")
        with Events(server.url, "/v1/watch?topics=t") as one:
            one.next("caught-up")
            with Events(server.url, "/v1/watch?topics=t") as two:
                two.next("caught-up")
                with Events(server.url, "/v1/watch?topics=t") as three:
                    assert three.status == 429
                    assert "retry-after" in three.headers
                    error = msgspec.json.decode(three.body)["error"]
                    assert error["detail"] == {"limit": "streams", "max": 2}
        until(lambda: not server.app.hub.streams)
        with Events(server.url, "/v1/watch?topics=t") as again:
            assert again.status == 200
        client.close()


def test_who_is_gone_leaves_nothing(server: Server, client: Client, watch: Any) -> None:
    client.append("t", "a")
    hub = server.app.hub
    for _ in range(5):
        events = watch("topics=t&start=earliest")
        events.next("caught-up")
        events.close()
    until(lambda: not hub.streams and not hub.feeds)
    client.append("t", "b")
    assert len(hub.ready) == 0
    assert not hub._slow
    until(lambda: not server.app.store._store["t"]._shards[0].waiters)


@pytest.mark.parametrize("fails", [False, True])
def test_who_goes_while_his_topic_is_read_leaves_nothing(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    client.append("t", "a")
    hub, began, over = server.app.hub, threading.Event(), threading.Event()
    kept = hub_module.step_of

    def slow(*work: Any) -> Any:
        began.set()
        assert over.wait(10)
        found = kept(*work)
        return RuntimeError("a bug") if fails else found

    monkeypatch.setattr(hub_module, "FRESH", 0)  # so that it is not read on the loop
    events = watch("topics=t")
    events.next("caught-up")
    until(lambda: len(hub.ready) == 0 and not hub.ready._served)
    monkeypatch.setattr(hub_module, "step_of", slow)
    client.append("t", "b")
    assert began.wait(10)
    events.close()
    until(lambda: not hub.streams and not hub.feeds)
    drains = hub.counts["drains"]
    over.set()
    until(lambda: hub.counts["drains"] > drains)
    assert not hub.ready._consumed
    assert not server.app.store._store["t"]._shards[0].waiters
    assert len(hub.ready) == 0


def test_who_asks_for_more_on_the_same_connection_and_goes_leaves_nothing(tmp_path: Path) -> None:
    """Behind a second request nobody reads: that he is gone shows when he is written to."""
    with serving(tmp_path / "data", Settings(port=0, heartbeat_seconds=1)) as server:
        client = Client(server)
        client.append("t", "a")
        events = Events(server.url, "/v1/watch?topics=t")
        events.next("caught-up")
        host = server.url.removeprefix("http://")
        events.socket.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        time.sleep(0.1)
        events.close()
        until(lambda: not server.app.hub.streams and not server.app.hub.feeds)
        client.close()


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_log_that_cannot_be_read_ends_the_stream_with_an_error(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    client.append("t", "a")
    events = watch("topics=t")
    events.next("caught-up")

    def broken(*_: Any) -> Any:
        raise Corruption("a frame is damaged", path="/secret/place", first=0, last=1, reason="x")

    monkeypatch.setattr(frames, "read_on", broken)
    if start == "earliest":
        events = watch("topics=t&start=earliest")
    client.append("t", "b")
    told = events.next()
    assert (told.kind, told.json()["code"]) == ("error", "corruption")
    assert "secret" not in told.data
    with pytest.raises(EOFError):
        events.next()
    until(lambda: not server.app.hub.streams)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_failure_that_nobody_foresaw_ends_the_watchers_of_that_topic_only(
    client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch, start: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    client.append("bad", "a")
    client.append("good", "a")
    bad, good = watch("topics=bad"), watch("topics=good")
    bad.next("caught-up")
    good.next("caught-up")
    kept = frames.read_on

    def broken(topic: Any, *more: Any) -> Any:
        if topic.name == "bad":
            raise RuntimeError("a bug")
        return kept(topic, *more)

    monkeypatch.setattr(frames, "read_on", broken)
    if start == "earliest":
        bad = watch("topics=bad&start=earliest")
    client.call("POST", "/v1/topics/bad/records", {"records": [{"value": "b"}]})
    client.append("good", "b")
    told = bad.next()
    assert (told.kind, told.json()["code"]) == ("error", "internal")
    assert good.values(1) == ["b"]
    client.append("good", "c")
    assert good.values(1) == ["c"]
    assert "a bug" in caplog.text


def test_who_looks_in_a_way_that_fails_ends_and_the_others_of_the_topic_do_not(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", "a")
    bad, good = watch("topics=t&headers=false"), watch("topics=t")
    bad.next("caught-up")
    good.next("caught-up")
    kept = frames.Maker.made

    def broken(maker: Any, step: Any, lens: Any, begin: int) -> Any:
        if not lens.headers:
            raise RuntimeError("a bug")
        return kept(maker, step, lens, begin)

    monkeypatch.setattr(frames.Maker, "made", broken)
    client.append("t", "b")
    told = bad.next()
    assert (told.kind, told.json()["code"]) == ("error", "internal")
    assert good.values(1) == ["b"]
    client.append("t", "c")
    assert good.values(1) == ["c"]
    until(lambda: len(server.app.hub.streams) == 1)


def test_a_look_at_what_others_write_that_fails_is_not_the_last_one(
    server: Server, client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    client.append("t", "a")
    events = watch("topics=t&consistency=strong")
    events.next("caught-up")
    kept, looks = server.app.hub.beats._moved, 0

    async def fails(feeds: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("a bug")
        return await kept(feeds)

    monkeypatch.setattr(server.app.hub.beats, "_moved", fails)
    until(lambda: looks > 2)
    assert "a bug" in caplog.text


def test_a_shard_that_cannot_be_looked_at_keeps_no_other_from_it(
    client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("bad", "a")
    client.append("good", "a")
    bad, good = watch("topics=bad&consistency=strong"), watch("topics=good&consistency=strong")
    bad.next("caught-up")
    good.next("caught-up")
    kept_end, kept_read = feed.end_of, frames.read_on

    def end(view: Any, *more: Any) -> Any:
        if view.entry.name == "bad":
            raise RuntimeError("a bug")
        return kept_end(view, *more)

    def broken(topic: Any, *more: Any) -> Any:
        if topic.name == "bad":
            raise RuntimeError("a bug")
        return kept_read(topic, *more)

    monkeypatch.setattr(frames, "read_on", broken)
    monkeypatch.setattr(feed, "end_of", end)
    told = bad.next()
    assert (told.kind, told.json()["code"]) == ("error", "internal")
    client.append("good", "b")
    assert good.values(1) == ["b"]


@pytest.mark.parametrize("wanted", ["topics=later&shard=5&lenient=true", "posted"])
def test_who_waits_for_a_shard_gets_that_one_and_no_other(
    server: Server, client: Client, watch: Any, wanted: str
) -> None:
    if wanted == "posted":
        body = {"topics": {"later": {"shard": 5}}, "lenient": True}
        events = Events(server.url, client.call("POST", "/v1/watch", body).json()["url"])
    else:
        events = watch(wanted)
    with events:
        client.call("PUT", "/v1/topics/later", {"shards": 8})
        told = events.next("caught-up").json()
        assert told["shard"] == 5
        (stream,) = server.app.hub.streams
        assert [each.shard for each in stream.interests] == [5]
        keys = [str(number) for number in range(40)]
        client.call(
            "POST", "/v1/topics/later/records",
            {"records": [{"value": key, "key": key} for key in keys]},
        )  # fmt: skip
        mine = client.get("/v1/topics/later/records?start=earliest&shard=5").json()["records"]
        assert len(mine) > 1
        assert events.values(len(mine)) == [each["value"] for each in mine]
        last = events.last
    client.call("DELETE", "/v1/topics/later")
    back = watch("topics=later&shard=5", last)
    assert back.next().kind == "topic-deleted"
    client.call("PUT", "/v1/topics/later", {"shards": 6})
    assert back.next("caught-up").json()["shard"] == 5


def test_who_waits_for_a_shard_that_does_not_come_is_told(client: Client, watch: Any) -> None:
    events = watch("topics=later&lenient=true&shard=5")
    other = watch("topics=later&lenient=true")
    client.append("later", "a")
    told = events.next()
    assert (told.kind, told.json()["code"]) == ("error", "invalid_option")
    assert "shard=5" in told.json()["message"]
    with pytest.raises(EOFError):
        events.next()
    assert other.values(1) == ["a"]
    assert watch("topics=later&shard=5", other.last).status == 400


def test_a_topic_that_comes_anew_with_more_shards_or_fewer_is_watched_with_all_of_them(
    client: Client, watch: Any
) -> None:
    events = watch("topics=later&lenient=true")
    for shards in (2, 5, 1, 4):
        client.call("PUT", "/v1/topics/later", {"shards": shards})
        seen = [events.next("caught-up").json()["shard"] for _ in range(shards)]
        assert sorted(seen) == list(range(shards))
        client.call("DELETE", "/v1/topics/later")
        seen = [events.next("topic-deleted").json()["shard"] for _ in range(shards)]
        assert sorted(seen) == list(range(shards))


def test_a_topic_that_comes_with_more_shards_than_a_stream_takes_ends_it(
    client: Client, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("here", "a")
    monkeypatch.setattr(missing, "SHARDS_MAX", 4)
    fits = watch("topics=later&lenient=true")
    events = watch("topics=here,later&lenient=true")
    events.next("caught-up")
    client.call("PUT", "/v1/topics/later", {"shards": 4})
    told = events.next()
    assert (told.kind, told.json()["code"]) == ("error", "invalid_request")
    assert [fits.next().kind for _ in range(4)] == ["caught-up"] * 4


@pytest.mark.parametrize("unforeseen", [False, True])
def test_a_missing_topic_that_comes_and_cannot_be_read_ends_its_own_watchers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unforeseen: bool
) -> None:
    kept = missing.look

    def broken(store: Any, name: str, *more: Any) -> Any:
        if name == "bad" and name in store:
            raise RuntimeError("oh") if unforeseen else Corruption("damaged", path="/secret")
        return kept(store, name, *more)

    monkeypatch.setattr(missing, "look", broken)
    with serving(tmp_path / "data", Settings(port=0, heartbeat_seconds=1)) as server:
        client = Client(server)
        with (
            Events(server.url, "/v1/watch?topics=bad&lenient=true") as bad,
            Events(server.url, "/v1/watch?topics=good&lenient=true") as good,
        ):
            client.call("PUT", "/v1/topics/bad", {})
            told = bad.next()
            code = "internal" if unforeseen else "corruption"
            assert (told.kind, told.json()["code"]) == ("error", code)
            assert "secret" not in told.data
            client.append("good", "a")
            assert good.values(1) == ["a"]
            until(lambda: len(server.app.hub.streams) == 1)
        client.close()


def test_upkeep_that_fails_in_one_thing_goes_on_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "data", Settings(port=0, heartbeat_seconds=1)) as server:
        client = Client(server)
        client.append("t", "a")

        def fails() -> None:
            raise RuntimeError("no upkeep today")

        for name in ("_sample", "_find_gone"):
            monkeypatch.setattr(server.app.hub.beats, name, fails)
        monkeypatch.setattr(server.app.hub.missing, "look", fails)
        with (
            Events(server.url, "/v1/watch?topics=nowhere&lenient=true"),
            Events(server.url, "/v1/watch?topics=t") as idle,
        ):
            idle.next("caught-up")
            time.sleep(2.2)
            client.append("t", "b")
            idle.next("record")
            assert any(each.startswith("hb ") for each in idle.comments)
        client.close()
    assert "delivery failed" in caplog.text


def test_streams_end_with_a_farewell_when_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        client.append("t", "a")
        client.close()
        opened = [Events(server.url, "/v1/watch?topics=t") for _ in range(20)]
        for events in opened:
            events.next("caught-up")
        began = time.monotonic()
    assert time.monotonic() - began < 3
    for events in opened:
        assert events.next().kind == "bye"
        with pytest.raises(EOFError):
            events.next()
        events.close()


class Mortal(Principal):
    """Whose key may be revoked."""

    __slots__ = ("alive",)


def test_a_stream_ends_when_its_key_is_revoked(server: Server, client: Client, watch: Any) -> None:
    client.append("t", "a")
    who = Mortal("k", frozenset(SCOPES))
    who.alive = True
    kept = server.app._principal
    server.app._principal = lambda *_: who  # type: ignore[method-assign]
    events = watch("topics=t")
    server.app._principal = kept  # type: ignore[method-assign]
    other = watch("topics=t")
    events.next("caught-up")
    other.next("caught-up")
    began = time.monotonic()
    who.alive = False
    ended = events.next()
    assert (ended.kind, ended.json()["code"]) == ("error", "unauthorized")
    with pytest.raises(EOFError):
        events.next()
    assert time.monotonic() - began < 2
    client.append("t", "b")
    assert other.values(1) == ["b"]


def test_every_stream_of_a_key_that_was_revoked_is_told_so(tmp_path: Path) -> None:
    key, text = keyfile.new(tmp_path / "keys", SCOPES)
    with serving(tmp_path / "data", Settings(port=0, keys=str(tmp_path / "keys"))) as server:
        client, proof = Client(server), {"Authorization": f"Bearer {text}"}
        client.call("PUT", "/v1/topics/t", {}, proof)
        client.call("PUT", "/v1/queues/q", {}, proof)
        made = client.call("POST", "/v1/watch", {"topics": {"t": {}}}, proof).json()["id"]
        paths = ("/v1/watch?topics=t", f"/v1/watch/{made}", "/v1/queues/q/work")
        streams = [Events(server.url, path, **proof) for path in paths]
        keyfile.revoke(tmp_path / "keys", key.id)
        for stream in streams:
            assert stream.next("error").json()["code"] == "unauthorized"
            with pytest.raises(EOFError):
                stream.next()
            stream.close()
        client.close()


def test_an_idle_stream_gives_a_sign_of_life(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, heartbeat_seconds=1)) as server:
        client = Client(server)
        client.append("t", "a")
        with Events(server.url, "/v1/watch?topics=t") as events:
            events.next("caught-up")
            time.sleep(2.2)
            client.append("t", "b")
            events.next("record")
            assert events.comments
            assert events.comments[0].startswith("hb ")
        client.close()


def test_a_head_request_is_no_stream(server: Server, client: Client) -> None:
    client.append("t", "a")
    answer = client.call("HEAD", "/v1/watch?topics=t")
    assert answer.status == 405
    assert not server.app.hub.streams


def test_a_stream_is_not_sent_to_who_does_not_take_events(client: Client) -> None:
    client.append("t", "a")
    assert client.get("/v1/watch?topics=t", Accept="application/json").status == 406


# ---- only what is durable --------------------------------------------------------------------


def test_a_strong_watcher_is_sent_what_is_durable_and_no_more(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, sync_interval=3_600)) as server:
        client, hub = Client(server), server.app.hub
        client.call("PUT", "/v1/topics/t", {})
        query = "/v1/watch?topics=t&start=earliest"
        with (
            Events(server.url, query) as soon,
            Events(server.url, f"{query}&consistency=strong") as late,
        ):
            for each in (soon, late):
                each.next("caught-up")
            client.append("t", "a", "b")
            assert soon.values(2) == ["a", "b"]
            page = client.get("/v1/topics/t/records?consistency=strong").json()
            assert (page["records"], page["end"], page["caught_up"]) == ([], 0, True)
            feed = hub.feeds["t"][0, True]
            on_loop(server, lambda: hub.mark(feed))
            until(lambda: not feed.dirty and not feed.draining)
            assert feed.at == 0  # it was looked at, and not sent
            assert client.call("POST", "/v1/topics/t/sync", {}).status == 200
            told = late.next("record").json()
            assert [each["value"] for each in told["records"]] == ["a", "b"]
            assert (told["next"], told["end"]) == (2, 2)
            page = client.get("/v1/topics/t/records?consistency=strong").json()
            assert (len(page["records"]), page["end"], page["caught_up"]) == (2, 2, True)
        client.close()


def test_a_strong_long_poll_waits_until_it_is_durable(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, sync_interval=3_600)) as server:
        client, other = Client(server), Client(server)
        client.append("t", "a")
        found: list[Any] = []
        path = "/v1/topics/t/records?consistency=strong&wait=20"
        waiting = threading.Thread(target=lambda: found.append(other.get(path).json()))
        waiting.start()
        until(lambda: server.app.under_way)
        assert client.call("POST", "/v1/topics/t/sync", {}).status == 200
        waiting.join(30)
        (page,) = found
        assert [each["value"] for each in page["records"]] == ["a"]
        for each in (client, other):
            each.close()


# ---- HTTP/1.0 --------------------------------------------------------------------------------


def test_a_client_of_http_1_0_gets_events_without_chunks(server: Server, client: Client) -> None:
    client.append("t", "a")
    client.append("u", "b")
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        ask = "GET /v1/watch?topics=t,u&start=earliest HTTP/1.0"
        sock.sendall(f"{ask}\r\nHost: {host}:{port}\r\n\r\n".encode())
        heard = b""

        def hear(what: bytes) -> None:
            nonlocal heard
            while what not in heard:
                piece = sock.recv(65_536)
                assert piece, heard
                heard += piece

        for text in (b'"value":"a"', b'"value":"b"'):
            hear(text)
        while heard.count(b"event: caught-up") < 2:
            heard += sock.recv(65_536)
        client.append("t", "live")  # written straight to the connection
        hear(b'"value":"live"')
        head, _, body = heard.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body.startswith(b"retry: 2000\n\n")
        assert b"\r\n" not in body  # nor the length of any chunk
        on_loop(server, server.stop)
        hear(b"event: bye")
        assert sock.recv(65_536) == b""


def test_a_stalled_client_of_http_1_0_is_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, stall_seconds=0.5)) as server:
        client, hub = Client(server), server.app.hub
        client.append("t", "first")
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.connect((host, int(port)))
            ask = f"GET /v1/watch?topics=t HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n"
            sock.sendall(ask.encode())
            until(lambda: len(hub.streams) == 1)
            for _ in range(12):
                client.append("t", "x" * 900_000)
            until(lambda: not hub.streams, 30)
        client.close()
