"""Durable Streams at /ds/{topic}: what its protocol promises, and what every route does."""

from __future__ import annotations

import asyncio
import http.client
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

import esker
from esker.records import Gap
from esker.server import records
from esker.server.access import keyfile
from esker.server.access.keys import SCOPES
from esker.server.durable_streams import append as durable
from esker.server.durable_streams import read as durable_read
from esker.server.durable_streams import state as durable_state
from esker.server.durable_streams.state import HEADER, Mark, Stream, load
from esker.server.http.faults import Fault
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.helpers import PATIENCE, HandClock, child, lasting_port
from tests.server.asgi import Keys, application, bearer, call
from tests.server.conftest import Answer, Client
from tests.server.test_kills import kill, start
from tests.suites import SEED, Tallies

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


def put(
    client: Client, name: str, kind: str = "text/plain", body: bytes = b"", **more: str
) -> Answer:
    headers = {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return client.call("PUT", f"/ds/{name}", body, headers)


def post(client: Client, name: str, body: bytes, kind: str = "text/plain", **more: str) -> Answer:
    headers = {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in more.items()}}
    return client.call("POST", f"/ds/{name}", body, headers)


def produce(
    client: Client, name: str, body: bytes, who: str, epoch: int, seq: int, **more: str
) -> Answer:
    return post(
        client,
        name,
        body,
        Producer_Id=who,
        Producer_Epoch=str(epoch),
        Producer_Seq=str(seq),
        **more,
    )


def get(client: Client, name: str, query: str = "", **headers: str) -> Answer:
    return client.call("GET", f"/ds/{name}{query}", None, headers)


def all_of(client: Client, name: str) -> bytes:
    """Page after page, from the beginning."""
    found, at = b"", "-1"
    while True:
        page = get(client, name, f"?offset={at}")
        assert page.status == 200
        found, at = found + page.body, page.headers["stream-next-offset"]
        if page.headers.get("stream-up-to-date") == "true":
            return found


class Events:
    """A stream of events, read as they come."""

    def __init__(self, server: Server, path: str, **headers: str) -> None:
        where = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        self._connection.request("GET", path, None, headers)
        self.answer = self._connection.getresponse()

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        kind, data = "", []
        for line in self.answer:
            text = line.rstrip(b"\n")
            if not text:
                yield kind, b"\n".join(data)
                kind, data = "", []
            elif text.startswith(b"event:"):
                kind = text[6:].strip().decode()
            elif text.startswith(b"data:"):
                data.append(text[6:] if text[5:6] == b" " else text[5:])

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def events(server: Server) -> Iterator[Any]:
    opened: list[Events] = []

    def make(path: str, **headers: str) -> Events:
        opened.append(Events(server, path, **headers))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


# ---- making, reading, deleting ---------------------------------------------------------------


def test_a_stream_is_made_once_appended_to_and_read(client: Client) -> None:
    made = put(client, "s", body=b"one ")
    assert made.status == 201
    assert made.headers["location"] == f"{client.url}/ds/s"
    assert made.headers["content-type"] == "text/plain"
    again = put(client, "s", "text/plain; charset=utf-8", b"ignored")
    assert (again.status, again.headers["stream-next-offset"]) == (
        200, made.headers["stream-next-offset"],
    )  # fmt: skip
    done = post(client, "s", b"two")
    assert (done.status, done.body) == (204, b"")
    assert done.headers["stream-next-offset"] > made.headers["stream-next-offset"]
    page = get(client, "s")
    assert (page.status, page.body) == (200, b"one two")
    assert page.headers["content-type"] == "text/plain"
    assert page.headers["stream-up-to-date"] == "true"
    assert page.headers["stream-next-offset"] == done.headers["stream-next-offset"]
    assert get(client, "s", f"?offset={made.headers['stream-next-offset']}").body == b"two"
    assert get(client, "s", "?offset=now").body == b""
    head = client.call("HEAD", "/ds/s")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["stream-next-offset"] == done.headers["stream-next-offset"]
    assert client.call("DELETE", "/ds/s").status == 204
    assert {get(client, "s").status, client.call("DELETE", "/ds/s").status} == {404}
    assert post(client, "s", b"x").status == 404


def test_another_configuration_is_a_conflict(client: Client) -> None:
    put(client, "s", Stream_TTL="60")
    for kind, more in (
        ("text/html", {"Stream_TTL": "60"}), ("text/plain", {"Stream_TTL": "61"}),
        ("text/plain", {}), ("text/plain", {"Stream_TTL": "60", "Stream_Closed": "true"}),
    ):  # fmt: skip
        answer = put(client, "s", kind, **more)
        assert (answer.status, answer.code) == (409, "stream_conflict"), (kind, more)
    assert post(client, "s", b"x", "text/html").status == 409
    assert get(client, "s").body == b""


@pytest.mark.parametrize(
    "headers",
    [
        {"Stream-TTL": "60", "Stream-Expires-At": "2099-01-01T00:00:00Z"}, {"Stream-TTL": "1.0"},
        {"Stream-TTL": "060"}, {"Stream-TTL": "+6"}, {"Stream-TTL": ""}, {"Stream-TTL": "9" * 30},
        {"Stream-Expires-At": "soon"},
        {"Stream-Expires-At": "2099-W01-1"}, {"Stream-Expires-At": ""}, {"Content-Type": "a/\xe9"},
        {"Stream-Expires-At": "2099-01-01T00:00:00,5Z"}, {"Content-Type": "nothing"},
        {"Content-Type": "a/b\x80"},
        {"Stream-Forked-From": "/ds/other"},
    ],
)  # fmt: skip
def test_what_makes_no_stream_is_refused_and_makes_none(
    client: Client, headers: dict[str, str]
) -> None:
    assert client.call("PUT", "/ds/s", b"", {**TEXT, **headers}).status == 400
    assert client.get("/v1/topics").json()["topics"] == []


@pytest.mark.parametrize(
    "query",
    ["?offset=", "?offset=1", "?offset=-2", "?offset=0000000001_000000000000001x", "?live=sse",
     "?live=long-poll", "?live=other&offset=-1", "?offset=-1&offset=now",
     "?offset=%D9%A00000000001_0000000000000001"],
)  # fmt: skip
def test_offsets_that_are_none_are_refused(client: Client, query: str) -> None:
    put(client, "s", body=b"x")
    assert get(client, "s", query).status == 400


def test_bytes_of_any_size_come_back_exactly_page_by_page(client: Client) -> None:
    put(client, "s", "application/octet-stream")
    pieces = [bytes(range(256)) * 12_000, b"\x80" * 1_500_000, b"", b"\xff\x00" * 300_000, b"end"]
    for piece in pieces:
        if piece:
            assert post(client, "s", piece, "application/octet-stream").status == 204
    first = get(client, "s")
    assert "stream-up-to-date" not in first.headers
    assert all_of(client, "s") == b"".join(pieces)


def test_a_page_is_not_sent_again_to_who_has_it(client: Client) -> None:
    put(client, "s", body=b"x")
    page = get(client, "s")
    tag = {"If-None-Match": page.headers["etag"]}
    assert (get(client, "s", **tag).status, get(client, "s", **tag).body) == (304, b"")
    post(client, "s", b"y")
    assert get(client, "s", **tag).status == 200
    grown = {"If-None-Match": get(client, "s").headers["etag"]}
    post(client, "s", b"", Stream_Closed="true")
    assert get(client, "s", **grown).status == 200, "that it is closed is news"


# ---- JSON ------------------------------------------------------------------------------------


def test_messages_keep_their_boundaries(client: Client) -> None:
    put(client, "j", "application/json", b'[{"a":1}]')
    for body in (b'{"b": 2}', b"[1, [2,3], null]", b' "x\\n" ', b"[[]]"):
        assert post(client, "j", body, "application/json").status == 204
    wanted: list[Any] = [{"a": 1}, {"b": 2}, 1, [2, 3], None, "x\n", []]
    assert get(client, "j").json() == wanted
    assert len(list(client.server.app.store._store["j"].read())) == len(wanted) + 1
    assert get(client, "j", "?offset=now").json() == []
    for bad in (b"[]", b"{", b"1 2", b"\xff", b'"\xff"', b"[1,]", b"nan", b"[" * 5000):
        answer = post(client, "j", bad, "application/json")
        assert answer.status == 400, bad
    assert get(client, "j").json() == wanted
    client.call("PUT", "/v1/topics/k", {"max_record_bytes": 4_096})
    large = b'"' + b"x" * 4_095 + b'"'
    for body, status in ((large, 413), (large[1:-1] + large[:1], 400), (large[1:], 400)):
        assert put(client, "k", "application/json", body).status == status
    assert put(client, "k", "application/json", large[:-2] + b'"').status == 201
    assert post(client, "k", large, "application/json").status == 413
    assert len(get(client, "k").json()) == 1


def test_what_others_put_into_a_stream_of_json_is_never_sent_as_json(client: Client) -> None:
    put(client, "j", "application/json", b"1")
    client.append("j", {"fine": True})
    assert get(client, "j").json() == [1, {"fine": True}]
    for value in ("no json", "2,3", "]", ""):
        put(client, "k", "application/json", b"1")
        client.call("POST", "/v1/topics/k/records", {"records": [{"value": value}]})
        assert (get(client, "k").status, get(client, "k").code) == (409, "not_a_stream"), value
        client.call("DELETE", "/ds/k")


# ---- closing ---------------------------------------------------------------------------------


def test_a_closed_stream_takes_no_more_and_says_so(client: Client) -> None:
    put(client, "s", body=b"a")
    done = post(client, "s", b"b", Stream_Closed="true")
    assert (done.status, done.headers["stream-closed"]) == (204, "true")
    tail = done.headers["stream-next-offset"]
    refused = post(client, "s", b"c")
    assert (refused.status, refused.code) == (409, "stream_closed")
    assert (refused.headers["stream-closed"], refused.headers["stream-next-offset"]) == (
        "true", tail,
    )  # fmt: skip
    assert client.call("POST", "/ds/s", b"", {"Stream-Closed": "true"}).status == 204
    page = get(client, "s")
    assert (page.body, page.headers["stream-closed"]) == (b"ab", "true")
    assert page.headers["stream-next-offset"] == tail
    began = time.monotonic()
    poll = get(client, "s", f"?offset={tail}&live=long-poll")
    assert (poll.status, poll.headers["stream-closed"]) == (204, "true")
    assert time.monotonic() - began < 5
    client.append("s", "behind the end")
    assert (get(client, "s").body, get(client, "s").headers["stream-next-offset"]) == (b"ab", tail)
    assert client.call("HEAD", "/ds/s").headers["stream-next-offset"] == tail


# ---- producers -------------------------------------------------------------------------------


def test_a_batch_of_a_producer_is_appended_once(client: Client) -> None:
    put(client, "s")
    assert produce(client, "s", b"a", "p", 0, 0).status == 200
    assert produce(client, "s", b"b", "p", 0, 1).status == 200
    for seq in (0, 1):
        again = produce(client, "s", b"other", "p", 0, seq)
        assert (again.status, again.headers["producer-seq"]) == (204, "1")
    gap = produce(client, "s", b"d", "p", 0, 3)
    assert (gap.status, gap.code) == (409, "sequence_gap")
    assert gap.headers["producer-expected-seq"] == "2"
    assert gap.headers["producer-received-seq"] == "3"
    assert produce(client, "s", b"c", "p", 1, 1).status == 400
    assert produce(client, "s", b"c", "p", 1, 0).status == 200
    stale = produce(client, "s", b"z", "p", 0, 2)
    assert (stale.status, stale.code) == (403, "stale_producer")
    assert stale.headers["producer-epoch"] == "1"
    assert produce(client, "s", b"x", "q", 0, 5).status == 409
    assert get(client, "s").body == b"abc"
    for headers in (
        {"Producer-Id": "p"}, {"Producer-Id": "", "Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Id": "p", "Producer-Epoch": "-1", "Producer-Seq": "0"},
        {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(2**53)},
        {"Producer-Id": "p" * 129, "Producer-Epoch": "0", "Producer-Seq": "0"},
    ):  # fmt: skip
        assert client.call("POST", "/ds/s", b"x", {**TEXT, **headers}).status == 400


def test_a_retry_of_the_close_is_the_close_and_nothing_else_is(client: Client) -> None:
    put(client, "s")
    for _ in range(2):
        done = produce(client, "s", b"last", "p", 0, 0, Stream_Closed="true")
        assert (done.status in (200, 204), done.headers["stream-closed"]) == (True, "true")
    assert produce(client, "s", b"x", "p", 0, 1).status == 409
    assert produce(client, "s", b"x", "q", 0, 0, Stream_Closed="true").status == 409
    assert get(client, "s").body == b"last"


def test_retries_that_come_at_once_are_one_append(server: Server) -> None:
    maker = Client(server)
    put(maker, "s")
    statuses: list[int] = []

    def send() -> None:
        mine = Client(server)
        for seq in range(20):
            answer = produce(mine, "s", b"%03d," % seq, "p", 0, seq)
            while answer.status == 409:  # another one is behind
                answer = produce(mine, "s", b"%03d," % seq, "p", 0, seq)
            statuses.append(answer.status)
        mine.close()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(statuses) == [200] * 20 + [204] * 60
    assert get(maker, "s").body == b"".join(b"%03d," % n for n in range(20))
    maker.close()


def test_writer_numbers_rise(client: Client) -> None:
    put(client, "s")
    for seq, status in (("b", 204), ("b", 409), ("a", 409), ("ba", 204), ("B", 409), ("c", 204)):
        assert post(client, "s", b".", Stream_Seq=seq).status == status, seq
    assert get(client, "s").body == b"..."


# ---- after a restart -------------------------------------------------------------------------


def test_all_that_a_stream_is_survives_the_server(tmp_path: Path) -> None:
    settings = Settings(port=0)
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        put(client, "s", "text/plain; charset=utf-8", Stream_Expires_At="2099-01-01T00:00:00Z")
        for seq in range(700):
            who = f"p{seq % 3}"
            produce(client, "s", b".", who, 0, seq // 3, Stream_Seq=f"{seq:04d}")
        put(client, "closed", body=b"x", Stream_Closed="true")
        put(client, "by", body=b"x")
        produce(client, "by", b"", "p", 4, 0, Stream_Closed="true")
        client.close()
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        head = client.call("HEAD", "/ds/s").headers
        assert head["content-type"] == "text/plain; charset=utf-8"
        assert head["stream-expires-at"] == "2099-01-01T00:00:00Z"
        assert produce(client, "s", b"again", "p0", 0, 233).status == 204
        assert produce(client, "s", b"again", "p1", 0, 235).status == 409
        assert post(client, "s", b"x", Stream_Seq="0699").status == 409
        assert produce(client, "s", b"!", "p2", 0, 233).status == 200
        assert get(client, "s").body == b"." * 700 + b"!"
        assert post(client, "closed", b"x").status == 409
        assert produce(client, "by", b"", "p", 4, 0, Stream_Closed="true").status == 204
        assert produce(client, "by", b"", "q", 4, 0, Stream_Closed="true").status == 409
        client.close()


def test_what_is_known_of_a_stream_is_what_its_log_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is read: at once, in small windows from behind, or as it grows."""
    monkeypatch.setattr(durable_state, "WINDOW", 3)
    monkeypatch.setattr(durable_state, "SNAPSHOT", 4)
    with esker.open(tmp_path / "data") as store:
        topic = store.create("s")
        grown = None
        writer = Stream(topic.epoch, Mark("text/plain", producers={}), 0)
        for n in range(60):
            sender = (f"p{n % 7}", n // 21, n)
            mark = writer.next_mark(sender, None) if n else Mark("text/plain", producers={})
            records = [esker.Record(b"v", headers={HEADER: msgspec.json.encode(mark)}), b"w"]
            offset = topic.append_many(records[: 1 + n % 2], wait=True).first
            writer.apply(offset, mark, 0)
            grown = load(topic, grown, 0)
            fresh = load(topic, None, 0)
            assert grown is not None
            assert fresh is not None
            for each in (grown, fresh):
                known = {name: found[:2] for name, found in each.producers.items()}
                assert known == {name: found[:2] for name, found in writer.producers.items()}
                assert each.upto == topic.end()
        assert load(store.create("plain"), None, 0) is None


def test_producers_are_bounded_and_idle_ones_make_room() -> None:
    stream = Stream(1, Mark("text/plain"), 0)
    for n in range(durable_state.PRODUCERS):
        assert not stream.is_repeated((f"p{n}", 0, 0), 1_000)
        stream.apply(n, Mark("text/plain", sender=(f"p{n}", 0, 0)), 1_000 + n)
    with pytest.raises(Fault) as refused:
        stream.is_repeated(("more", 0, 0), 2_000)
    assert refused.value.code == "producers_full"
    later = 1_000 + durable_state.FORGET_SECONDS
    assert not stream.is_repeated(("more", 0, 0), later)
    assert "p0" not in stream.producers
    full = msgspec.json.encode(
        Mark(
            "text/plain",
            producers={"\xff" * 124 + f"{n:04d}": (2**53, 2**53, 2**40) for n in range(500)},
        )
    )
    assert len(full) < 200 << 10, "a mark with all of them fits into the headers of a record"


# ---- live ------------------------------------------------------------------------------------


def test_who_waits_gets_what_comes_or_nothing_when_time_is_up(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put(client, "s", body=b"old")
    tail = made.headers["stream-next-offset"]
    assert get(client, "s", "?offset=-1&live=long-poll").body == b"old"
    other = Client(server)
    late = threading.Timer(0.3, lambda: post(other, "s", b"new"))
    late.start()
    poll = get(client, "s", "?offset=now&live=long-poll")
    assert (poll.status, poll.body) == (200, b"new")
    late.join()
    other.close()
    monkeypatch.setattr(durable_read, "POLL_SECONDS", 0.3)
    poll = get(client, "s", f"?offset={poll.headers['stream-next-offset']}&live=long-poll")
    assert (poll.status, poll.body, poll.headers["stream-up-to-date"]) == (204, b"", "true")
    cursor = poll.headers["stream-cursor"]
    again = get(client, "s", f"?offset={tail}&live=long-poll&cursor={cursor}")
    assert int(again.headers["stream-cursor"]) > int(cursor)


def test_who_waits_at_the_beginning_of_an_empty_stream_gets_what_comes(
    server: Server, client: Client
) -> None:
    put(client, "s")
    other = Client(server)
    late = threading.Timer(0.3, lambda: post(other, "s", b"first"))
    late.start()
    poll = get(client, "s", "?offset=-1&live=long-poll")
    late.join()
    other.close()
    assert (poll.status, poll.body) == (200, b"first")


def test_who_waits_is_told_of_the_end_and_of_the_deletion(server: Server, client: Client) -> None:
    for verb, status in (("close", 204), ("delete", 404)):
        put(client, "s", body=b"x")

        def end(verb: str = verb) -> None:
            mine = Client(server)
            if verb == "close":
                post(mine, "s", b"", Stream_Closed="true")
            else:
                mine.call("DELETE", "/ds/s")
            mine.close()

        late = threading.Timer(0.3, end)
        late.start()
        began = time.monotonic()
        poll = get(client, "s", "?offset=now&live=long-poll")
        late.join()
        assert (poll.status, time.monotonic() - began < 8) == (status, True)
        if verb == "close":
            assert poll.headers["stream-closed"] == "true"
            client.call("DELETE", "/ds/s")


HOSTILE = [
    "a\n\nevent: control\ndata: {}", "a\rb", "a\r\nb\r", "id: 7", " two  spaces", "\n", "data: x",
    "\u2028\u2029", "\x00", ":", "é" * 5,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/x-odd"])
def test_events_carry_data_and_where_one_is(client: Client, events: Any, kind: str) -> None:
    put(client, "s", kind)
    stream = events("/ds/s?offset=-1&live=sse")
    assert stream.answer.status == 200
    assert stream.answer.headers["content-type"] == "text/event-stream"
    binary = kind == "application/x-odd"
    assert stream.answer.headers.get("stream-sse-data-encoding") == ("base64" if binary else None)
    told = iter(stream)
    kind_of, control = next(told)
    assert (kind_of, msgspec.json.decode(control)["upToDate"]) == ("control", True)
    for text in HOSTILE:
        sent = msgspec.json.encode(text) if kind == "application/json" else text.encode()
        assert post(client, "s", sent, kind).status == 204
        name, data = next(told)
        assert name == "data"
        if kind == "application/json":
            assert msgspec.json.decode(data) == [text]
        elif binary:
            assert msgspec.json.decode(b'"' + data + b'"', type=bytes) == sent
        else:  # a break of a line is one, whichever it was
            assert data == re.sub(rb"\r\n|\r", b"\n", sent)
        name, control = next(told)
        at = msgspec.json.decode(control)["streamNextOffset"]
        assert (name, at) == ("control", client.call("HEAD", "/ds/s").headers["stream-next-offset"])
    post(client, "s", b"", kind, Stream_Closed="true")
    (name, control), *more = list(told)
    assert (name, more) == ("control", [])
    assert msgspec.json.decode(control) == {"streamNextOffset": at, "streamClosed": True}


def test_who_comes_back_to_a_stream_of_events_misses_nothing(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_read, "STREAM_SECONDS", 0.2)
    put(client, "s")
    done = threading.Event()

    def write() -> None:
        mine = Client(server)
        for n in range(150):
            post(mine, "s", b"%d," % n)
            time.sleep(0.002)
        post(mine, "s", b"", Stream_Closed="true")
        mine.close()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found, at, comes = b"", "-1", 0
    while True:
        stream = Events(server, f"/ds/s?offset={at}&live=sse")
        comes += 1
        last: dict[str, Any] = {}
        for name, data in stream:
            if name == "data":
                found += data
            else:
                last = msgspec.json.decode(data)
                at = last["streamNextOffset"]
        stream.close()
        if last.get("streamClosed"):
            break
    writer.join()
    assert found == b"".join(b"%d," % n for n in range(150))
    assert comes > 1


def test_a_stream_of_events_counts_as_one_and_leaves_nothing(
    server: Server, client: Client
) -> None:
    put(client, "s")
    streams = [Events(server, "/ds/s?offset=now&live=sse") for _ in range(3)]
    gate = server.app.gate
    assert gate.streams == 3
    for each in streams:
        each.close()
    until = time.monotonic() + 10
    while gate.streams and time.monotonic() < until:
        time.sleep(0.02)
    assert gate.streams == 0


def test_nothing_more_is_read_for_who_is_gone(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, kept = 0, durable_read._look

    async def look(*args: Any, **more: Any) -> Any:
        nonlocal looks
        looks += 1
        return await kept(*args, **more)

    monkeypatch.setattr(durable_read, "_look", look)
    put(client, "s", "application/octet-stream")
    for _ in range(40):
        post(client, "s", bytes(1 << 19), "application/octet-stream")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    where = urlsplit(server.url)
    line.connect((where.hostname, where.port))
    line.sendall(f"GET /ds/s?offset=-1&live=sse HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    assert line.recv(1024)
    before = -1
    while looks != before:  # until it takes no more
        before = looks
        time.sleep(0.3)
    assert 1 < looks < 20
    line.close()
    until = time.monotonic() + 10
    while server.app.gate.streams and time.monotonic() < until:
        time.sleep(0.02)
    assert server.app.gate.streams == 0
    assert looks <= before + 1


def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        put(client, "s")
        stream = Events(server, "/ds/s?offset=now&live=sse")
        next(iter(stream))
        client.close()
    assert b"streamClosed" not in stream.answer.read()
    stream.close()


# ---- what is gone ----------------------------------------------------------------------------


def test_an_offset_that_retention_took_is_gone(client: Client) -> None:
    client.call("PUT", "/v1/topics/s", {"segment_records": 10, "cap_records": 20})
    made = put(client, "s")
    assert made.status == 201, "a topic without records becomes a stream, with its options"
    old = made.headers["stream-next-offset"]
    for n in range(100):
        assert post(client, "s", b"%02d" % n).status == 204
    client.server.app.store._store.tick()
    gone = get(client, "s", f"?offset={old}")
    assert (gone.status, gone.code) == (410, "gap")
    assert gone.json()["error"]["detail"]["gap"]["first"] == 1
    for live in ("sse", "long-poll"):
        assert get(client, "s", f"?offset={old}&live={live}").status == 410
    left = get(client, "s", "?offset=-1")
    assert left.status == 200
    assert left.body.endswith(b"979899")
    assert len(left.body) <= 80
    assert client.call("HEAD", "/ds/s").headers["content-type"] == "text/plain"


def test_an_offset_of_a_stream_that_was_made_anew_is_gone(client: Client) -> None:
    put(client, "s", body=b"old")
    old = get(client, "s").headers["stream-next-offset"]
    client.call("DELETE", "/ds/s")
    put(client, "s", "application/json", b"[1]")
    assert get(client, "s").json() == [1]
    assert get(client, "s", f"?offset={old}").status == 410


def test_a_gap_further_on_is_told_and_passed(
    client: Client, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client, "s", body=b"a")
    gap, look = Gap("s", 0, 2, 5, "unclean"), records.look

    def holed(*given: Any) -> records.Found:
        found = look(*given)
        if found.items:
            found.items.append(gap)
        return found

    monkeypatch.setattr(records, "look", holed)
    page = get(client, "s")
    assert (page.status, page.body) == (200, b"a")
    (told,) = msgspec.json.decode(page.headers["esker-gaps"])
    assert (told["first"], told["last"], told["reason"]) == (2, 5, "unclean")
    stream = iter(events("/ds/s?offset=-1&live=sse"))
    assert next(stream) == ("data", b"a")
    assert msgspec.json.decode(next(stream)[1])["gaps"] == [told]


def test_what_was_deleted_before_a_position_is_passed(client: Client) -> None:
    put(client, "s", body=b"a")
    for text in (b"b", b"c"):
        post(client, "s", text)
    client.call("DELETE", "/v1/topics/s/records?before=3")
    page = get(client, "s")
    assert (page.status, page.body) == (200, b"c")


def test_a_topic_that_is_no_stream_stays_what_it_is(client: Client) -> None:
    client.append("plain", "x")
    client.call("PUT", "/v1/topics/wide", {"shards": 2})
    client.call("PUT", "/v1/queues/jobs", {})
    for name in ("plain", "wide", "jobs"):
        for method in ("GET", "HEAD", "POST", "DELETE"):
            answer = client.call(method, f"/ds/{name}", b"x" if method == "POST" else None, TEXT)
            assert answer.status == 409, (name, method)
        assert put(client, name).code == "stream_conflict"
    assert client.get("/v1/topics/plain/records").json()["records"][0]["value"] == "x"


def test_a_stream_whose_time_is_over_is_not_there(tmp_path: Path) -> None:
    clock = HandClock()

    async def story() -> None:
        async with application(path=tmp_path / "data", clock=clock) as app:

            async def ask(method: str, body: Any = None, **headers: str) -> int:
                given = {"content-type": "text/plain"} | {
                    name.replace("_", "-"): value for name, value in headers.items()
                }
                return (await call(app, method, "/ds/s", body, given)).status

            assert await ask("PUT", b"x", stream_ttl="10") == 201
            for method in ("GET", "POST", "GET"):  # each use gives it another ten seconds
                clock.forward(9)
                assert await ask(method, b"y" if method == "POST" else None) in (200, 204)
            clock.forward(9)
            assert await ask("HEAD") == 200
            clock.forward(2)
            assert await ask("HEAD") == 404
            assert "s" not in app.store._store
            assert await ask("PUT", b"x", stream_expires_at="2099-01-01T00:00:00+01:00") == 201
            clock.forward(100 * 365 * 86_400)
            assert await ask("POST", b"y") == 404
            assert await ask("PUT", b"new", stream_ttl="5") == 201

    asyncio.run(story())


# ---- as every other route --------------------------------------------------------------------


def test_keys_prefixes_and_their_end(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    writer = keys.make(["write"], ["mine:"])
    reader = keys.make(["read"], ["mine:"])
    settings = Settings(keys=keys.save())

    async def story() -> None:
        async with application(settings) as app:
            watching = asyncio.ensure_future(app.gate.watch())

            async def ask(
                method: str, name: str, key: str, body: Any = None, query: str = ""
            ) -> Any:
                given = {"content-type": "text/plain", **bearer(key)}
                return await call(app, method, f"/ds/{name}", body, given, query)

            assert (await ask("PUT", "mine:s", writer, b"x")).status == 201
            assert (await ask("POST", "mine:s", writer, b"y")).status == 204
            assert (await ask("GET", "mine:s", writer)).status == 403
            assert (await ask("GET", "mine:s", reader)).body == b"xy"
            for method, body in (("PUT", b"x"), ("POST", b"x"), ("DELETE", None)):
                assert (await ask(method, "mine:s", reader, body)).status == 403
                assert (await ask(method, "other:s", writer, body)).status == 403
            assert (await ask("DELETE", "mine:s", writer)).status == 403
            waits = [
                asyncio.ensure_future(ask("GET", "mine:s", reader, None, f"offset=now&live={live}"))
                for live in ("sse", "long-poll")
            ]
            await asyncio.sleep(0.3)
            assert app.gate.streams == 1
            keyfile.revoke(tmp_path / "keys", reader[4:16])
            done, _ = await asyncio.wait(waits, timeout=2.0)
            assert len(done) == 2
            assert app.gate.streams == 0
            assert waits[1].result().status == 401
            watching.cancel()

    asyncio.run(story())


def test_a_read_only_server_changes_no_stream(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        put(client, "s", body=b"x", Stream_TTL="0")
        put(client, "t", body=b"x")
        client.close()
    with serving(tmp_path / "data", Settings(port=0, read_only=True)) as server:
        client = Client(server)
        assert {put(client, "n").status, post(client, "t", b"y").status} == {403}
        assert client.call("DELETE", "/ds/t").status == 403
        assert get(client, "t").body == b"x"
        assert get(client, "s").status == 404
        client.close()
    with esker.open(tmp_path / "data", mode="r") as store:
        assert sorted(store) == ["s", "t"]


def test_what_a_stream_holds_is_no_page_of_the_server(client: Client) -> None:
    put(client, "s", "text/html", b"<script>alert(1)</script>")
    answers = [get(client, "s"), client.call("HEAD", "/ds/s"), get(client, "s", "?offset=now")]
    for answer in answers:
        assert answer.headers["content-type"] == "text/html"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_page_appends_by_a_form_or_from_elsewhere(client: Client) -> None:
    put(client, "s", "multipart/form-data")
    assert post(client, "s", b"x", "multipart/form-data").status == 415
    put(client, "t")
    for headers in (
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ):  # fmt: skip
        assert client.call("POST", "/ds/t", b"x", {**TEXT, **headers}).status in (403, 421)
    assert get(client, "t").body == b""


def test_a_mark_that_somebody_forged_splits_no_answer(client: Client) -> None:
    put(client, "s", body=b"x")
    for kind in (
        "text/plain\r\nevil: 1", "", "x" * 300, "text/plain\u2028", "text/pl\u0430in", "a/b\n",
    ):  # fmt: skip
        mark = msgspec.json.encode({"type": kind, "expires": "2000-01-01"})
        client.server.app.store._store["s"].append(b"y", headers={HEADER: mark}, wait=True)
    answer = get(client, "s")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain")
    assert "evil" not in answer.headers
    mark = msgspec.json.encode({"type": "text/plain", "expires": "2000-99"})
    client.server.app.store._store["s"].append(b"z", headers={HEADER: mark}, wait=True)
    assert get(client, "s").status == 200, "a time that is none is never over"


def test_who_may_only_write_ends_no_topic_by_a_mark(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    writer = bearer(keys.make(["write"], ["t"]))
    owner = bearer(keys.make(SCOPES))
    settings = Settings(keys=keys.save(), audit=str(tmp_path / "audit.log"))
    text = {"content-type": "text/plain"}

    async def story() -> None:
        async with application(settings) as app:

            async def forge(name: str, **life: Any) -> None:
                mark = msgspec.json.encode({"type": "text/plain", **life}).decode()
                body = {"records": [{"value": "x", "headers": {HEADER: mark}}]}
                assert (
                    await call(app, "POST", f"/v1/topics/{name}/records", body, writer)
                ).status == 200
                for method in ("GET", "POST", "HEAD"):
                    given = text | (writer if method == "POST" else owner)
                    assert (await call(app, method, f"/ds/{name}", b"y", given)).status < 300
                assert name in app.store._store

            await call(app, "PUT", "/v1/topics/t", {}, owner)
            await call(app, "POST", "/v1/topics/t/records", {"records": [{"value": "a"}]}, owner)
            await forge("t", ttl=0)
            await forge("t", expires="2000-01-01", seal="00" * 16)

            # a seal is for the topic that it was made for
            ends = {"stream-expires-at": "2001-01-01T00:00:00Z"}
            made = await call(app, "PUT", "/ds/t.short", b"x", text | writer | ends)
            assert made.status == 201
            first = next(iter(app.store._store["t.short"].read()))
            await forge("t", **msgspec.json.decode(first.headers[HEADER]))
            assert (await call(app, "HEAD", "/ds/t.short", headers=owner)).status == 404
            assert "t.short" not in app.store._store

            # a stream that ends is not kept by a mark, and a topic that was there not ended
            made = await call(app, "PUT", "/ds/t.long", b"x", text | writer | {"stream-ttl": "60"})
            assert made.status == 201
            await forge("t.long")
            head = await call(app, "HEAD", "/ds/t.long", headers=owner)
            assert head.headers["stream-ttl"] == "60"
            await call(app, "PUT", "/v1/topics/t.bare", {}, owner)
            for who, status in ((writer, 403), (owner, 201)):
                given = text | who | {"stream-ttl": "60"}
                assert (await call(app, "PUT", "/ds/t.bare", b"", given)).status == status

    asyncio.run(story())
    assert "stream_expired" in (tmp_path / "audit.log").read_text()


def test_limits_hold(tmp_path: Path) -> None:
    settings = Settings(port=0, topics=2, body_bytes=1_000, batch_records=10)
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        put(client, "a", "application/json")
        put(client, "b")
        refused = put(client, "c")
        assert (refused.status, refused.code) == (429, "throttled")
        assert post(client, "b", b"x" * 1_000).status == 204
        assert post(client, "b", b"x" * 1_001).status == 413
        assert (
            post(client, "a", b"[" + b",".join([b"1"] * 10) + b"]", "application/json").status
            == 204
        )
        assert (
            post(client, "a", b"[" + b",".join([b"1"] * 11) + b"]", "application/json").status
            == 400
        )
        twice = {**TEXT, "stream-closed": "true"}
        client._connection.putrequest("POST", "/ds/b")
        for name, value in (*twice.items(), ("Stream-Closed", "true"), ("Content-Length", "0")):
            client._connection.putheader(name, value)
        client._connection.endheaders()
        answer = client._connection.getresponse()
        assert answer.status == 400
        answer.read()
        client.close()


def test_names_of_streams_that_are_not_there_are_not_kept(client: Client) -> None:
    for n in range(50):
        assert get(client, f"no{n}").status == 404
        assert post(client, f"no{n}", b"x").status == 404
    assert client.server.app.durable._entries == {}


def test_handlers_are_all_of_the_protocol() -> None:
    assert set(durable.__all__) == {"append", "create", "delete", "read"}


# ---- kills -----------------------------------------------------------------------------------


class Sender(threading.Thread):
    """Appends numbered batches, and tries each until it is acknowledged."""

    def __init__(self, number: int, port: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.who, self.port, self.over = f"p{number}", port, over
        self.acked = 0
        self.problems: list[Any] = []

    def run(self) -> None:
        while not self.over.is_set():
            body = msgspec.json.encode([[self.who, self.acked, n] for n in range(3)])
            headers = {
                **JSON, "Producer-Id": self.who, "Producer-Epoch": "0",
                "Producer-Seq": str(self.acked),
            }  # fmt: skip
            status = self.send(body, headers)
            if status in (200, 204):
                self.acked += 1
            elif status not in (0, 503):
                self.problems.append(status)
                return

    def send(self, body: bytes, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("POST", "/ds/s", body, headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            time.sleep(0.01)
            return 0
        finally:
            connection.close()


def follow(port: int, found: list[Any], at: str) -> tuple[str, bool]:
    """What one connection gives; where it ended, and whether the stream did."""
    closed, batch = False, []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", f"/ds/s?offset={at}&live=sse")
        answer = connection.getresponse()
        if answer.status != 200:
            return at, False
        stream = object.__new__(Events)
        stream.answer = answer
        for name, data in stream:
            if name == "data":
                batch = msgspec.json.decode(data)
                continue
            control = msgspec.json.decode(data)
            at, closed = control["streamNextOffset"], control.get("streamClosed", False)
            found += batch
            batch = []
    except (OSError, http.client.HTTPException):
        time.sleep(0.01)
    finally:
        connection.close()
    return at, closed


@pytest.mark.crash
@pytest.mark.suite
@pytest.mark.timeout(300)
def test_batches_of_producers_are_there_once_however_often_the_server_is_killed(
    tmp_path: Path, tally: Tallies
) -> None:
    suite = tally("durable stream kills")
    dice, port, over = random.Random(SEED), lasting_port(), threading.Event()
    senders = [Sender(number, port, over) for number in range(3)]
    found: list[Any] = []

    def reading() -> None:
        at, closed = "-1", False
        while not closed:
            at, closed = follow(port, found, at)

    reader = threading.Thread(target=reading, daemon=True)
    code = "from tests.server.nursery import main; main()"
    with child(code, tmp_path / "data", port, tmp_path / "errors") as nursery:
        server = start(nursery)
        maker = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        maker.request("PUT", "/ds/s", b"", JSON)
        assert maker.getresponse().status == 201
        maker.close()
        for each in (*senders, reader):
            each.start()
        try:
            while suite.count < suite.floor:
                goal = sum(each.acked for each in senders) + dice.randint(0, 60)
                until = time.monotonic() + 2
                while sum(e.acked for e in senders) < goal and time.monotonic() < until:
                    time.sleep(0.002)
                assert not any(each.problems for each in senders)
                kill(server)
                server = start(nursery)
                suite.count += 1
            over.set()
            for each in senders:
                each.join(PATIENCE)
            assert senders[0].send(b"", {"Stream-Closed": "true"}) == 204
            reader.join(PATIENCE)
            assert not reader.is_alive()
        finally:
            over.set()
            kill(server)
    assert not any(each.problems for each in senders)
    assert "Traceback" not in (tmp_path / "errors").read_text()
    for each in senders:
        mine = [(seq, n) for who, seq, n in found if who == each.who]
        assert mine == [(seq, n) for seq in range(each.acked) for n in range(3)], "once, in order"
    suite.also["records"] = len(found)
    assert len(found) > 0
