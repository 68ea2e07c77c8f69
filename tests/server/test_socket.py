"""The WebSocket, as the `websockets` client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import esker
from esker.server.access.keys import Principal
from esker.server.bodies.wire_live import TOPICS_MAX
from esker.server.live import frames
from esker.server.live.stream import SocketStream
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client
from tests.server.test_watch import until


class Socket:
    """A connection that speaks JSON."""

    def __init__(self, url: str, **how: Any) -> None:
        place = url.replace("http://", "ws://") + "/v1/ws"
        self.raw: ClientConnection = connect(place, compression=None, **how).__enter__()

    def say(self, op: str, **fields: Any) -> None:
        self.raw.send(msgspec.json.encode({"op": op, **fields}).decode())

    def hear(self, op: str = "") -> Any:
        while True:
            message = self.raw.recv(timeout=20)
            if isinstance(message, bytes):
                head, body = frames.unbinary(message)
                told = {**msgspec.json.decode(head), "body": body}
            else:
                told = msgspec.json.decode(message)
            if not op or told["op"] == op:
                return told

    def ask(self, op: str, **fields: Any) -> Any:
        """Say something, and hear the answer to it."""
        self.say(op, request_id="q", **fields)
        while True:
            told = self.hear()
            if told.get("request_id") == "q":
                return told

    def values(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += [each["value"] for each in self.hear("record")["records"]]
        return found


@pytest.fixture
def ws(server: Server) -> Iterator[Socket]:
    made = Socket(server.url)
    yield made
    made.raw.close()


def test_every_message_is_answered_with_its_request_id(ws: Socket) -> None:
    assert ws.ask("ping") == {"op": "pong", "request_id": "q"}
    ws.say("ping", request_id=7)
    assert ws.hear() == {"op": "pong", "request_id": 7}
    ws.say("ping")
    assert ws.hear() == {"op": "pong"}


def test_what_is_published_is_acked_and_comes_to_who_subscribed(ws: Socket) -> None:
    acked = ws.ask("publish", topic="t", records=[{"value": "a"}, {"value": {"b": 1}}])
    assert acked["op"] == "ack"
    assert (acked["topic"], acked["count"]) == ("t", 2)
    assert acked["spans"] == [{"shard": 0, "first": 0, "count": 2}]
    assert ws.ask("subscribe", topic="t", start="earliest", values="json")["topics"] == ["t"]
    assert ws.values(2) == ["a", {"b": 1}]
    assert ws.hear()["op"] == "caught_up"
    ws.say("publish", topic="t", records=[{"value": "c"}])
    assert ws.values(1) == ["c"]


def test_who_unsubscribes_gets_no_more(ws: Socket, client: Client) -> None:
    client.append("a", "1")
    client.append("b", "1")
    ws.ask("subscribe", topics=["a", "b"], start="earliest")
    assert ws.values(2) == ["1", "1"]
    assert ws.ask("unsubscribe", topic="a")["topics"] == ["a"]
    client.append("a", "2")
    client.append("b", "2")
    assert ws.hear("record")["topic"] == "b"
    assert ws.ask("ping")["op"] == "pong"
    assert ws.ask("subscribe", topic="a")["op"] == "subscribed"


def test_who_comes_back_goes_on_from_the_cursors_that_it_got(
    server: Server, client: Client
) -> None:
    client.call("PUT", "/v1/topics/wide", {"shards": 3})
    for number in range(12):
        body = {"records": [{"value": f"{number}", "key": f"{number}"}]}
        client.call("POST", "/v1/topics/wide/records", body)
    first = Socket(server.url)
    first.ask("subscribe", topic="wide", start="earliest")
    seen, cursors = [], {}
    while len(seen) < 12:
        told = first.hear("record")
        seen += [each["value"] for each in told["records"]]
        cursors[told["shard"]] = told["cursor"]
    first.raw.close()
    for number in range(12, 20):
        body = {"records": [{"value": f"{number}", "key": f"{number}"}]}
        client.call("POST", "/v1/topics/wide/records", body)
    again = Socket(server.url)
    again.ask("subscribe", topic="wide", cursors=list(cursors.values()))
    assert sorted(map(int, again.values(8))) == list(range(12, 20))
    again.raw.close()


def test_binary_messages_are_arrow_behind_a_head(ws: Socket, client: Client) -> None:
    batch = pa.table({"value": pa.array([b"\xff\x00", b"b"], pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_table(batch)
    body = sink.getvalue().to_pybytes()
    ws.raw.send(bytes(frames.binary({"op": "publish", "topic": "t", "request_id": 1}, body)))
    acked = ws.hear()
    assert (acked["op"], acked["count"], acked["request_id"]) == ("ack", 2, 1)
    ws.ask("subscribe", topic="t", start="earliest", format="arrow")
    told = ws.hear("record")
    assert (told["topic"], told["shard"], told["next"]) == ("t", 0, 2)
    table = pa.ipc.open_stream(told["body"]).read_all()
    assert table.schema == esker.SCHEMA
    assert table["value"].to_pylist() == [b"\xff\x00", b"b"]
    keyed = {"op": "publish", "topic": "k", "request_id": 2, "idempotency_key": "once"}
    spans = []
    for _ in range(2):
        ws.raw.send(bytes(frames.binary(keyed, body)))
        spans.append(ws.hear("ack")["spans"])
    assert spans == [[{"shard": 0, "first": 0, "count": 2}]] * 2
    assert len(client.get("/v1/topics/k/records").json()["records"]) == 2


def test_heads_of_any_length_are_told_from_text(ws: Socket, client: Client) -> None:
    """A length of 123 has the byte of a brace."""
    names = ["t" * size for size in range(1, 60)]
    for name in names:
        client.append(name, "x")
    ws.ask("subscribe", topics=names, start="earliest", format="arrow")
    assert {ws.hear("record")["topic"] for _ in names} == set(names)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("nonsense", "invalid_request"),
        ('{"op": "dance"}', "invalid_request"),
        ('{"op": "subscribe"}', "invalid_request"),
        ('{"op": "subscribe", "topic": "t", "starts": "x"}', "invalid_request"),
        ('{"op": "subscribe", "topic": "nowhere"}', "topic_not_found"),
        ('{"op": "subscribe", "topic": "t", "start": "@never"}', "invalid_position"),
        ('{"op": "subscribe", "topic": "t", "cursors": ["x"]}', "invalid_request"),
        ('{"op": "publish", "topic": "t"}', "invalid_request"),
        ('{"op": "publish", "topic": "t", "records": [{"vaule": 1}]}', "invalid_request"),
        ('{"op": "publish", "topic": "../t", "records": []}', "invalid_name"),
        ('{"op": "publish", "topic": "no", "records": [], "create": false}', "topic_not_found"),
        ("[" * 100_000, "invalid_request"),
        (b"", "invalid_request"),
        (b"\xff\xff\xff\xff{}", "invalid_request"),
        (b"\x0d\x00\x00\x00" + b'{"op":"ping"}', None),
        (b"\x1f\x00\x00\x00" + b'{"op":"subscribe","topic":"t"}x', "invalid_request"),
    ],
)
def test_a_message_that_makes_no_sense_is_an_error_and_not_the_end(
    ws: Socket, client: Client, message: Any, code: str | None
) -> None:
    client.append("t", "a")
    ws.raw.send(message)
    told = ws.hear()
    assert told.get("code") == code
    assert told["op"] == ("error" if code else "pong")
    assert ws.ask("ping")["op"] == "pong"


def test_what_is_wrong_with_a_subscription_is_told_in_place_of_the_answer(
    ws: Socket, client: Client
) -> None:
    client.append("t", "a")
    assert ws.ask("subscribe", topic="t", where="json.a >")["code"] == "invalid_filter"
    assert ws.ask("subscribe", topic="x*", lenient=True)["code"] == "invalid_name"
    told = ws.ask("subscrib", topic="t")["message"]
    assert told.endswith("there is: ping, publish, subscribe, unsubscribe")
    assert ws.ask("subscribe", topic="t", start="earliest")["op"] == "subscribed"
    assert ws.values(1) == ["a"]


@pytest.mark.parametrize("op", ["subscribe", "unsubscribe"])
def test_topic_and_topics_together_are_as_many_as_topics_alone(ws: Socket, op: str) -> None:
    names = [f"n{number}" for number in range(TOPICS_MAX)]
    how = {"lenient": True} if op == "subscribe" else {}
    refused = ws.ask(op, topic="one-more", topics=names, **how)
    assert (refused["op"], refused["code"]) == ("error", "invalid_request")
    assert "257 topics, `topic` among them; at most 256" in refused["message"]
    assert ws.ask(op, topics=[*names, "one-more"], **how)["code"] == "invalid_request"
    assert ws.ask(op, topic=names[-1], topics=names[:-1], **how)["op"] == f"{op}d"
    assert ws.ask("unsubscribe", topics=names)["op"] == "unsubscribed"
    assert ws.ask(op, topic=names[0], topics=names, **how)["op"] == f"{op}d", "it is one of them"


def test_a_shard_that_is_waited_for_comes_or_ends_the_connection(
    ws: Socket, client: Client
) -> None:
    assert ws.ask("subscribe", topic="wide", shard=2, lenient=True)["op"] == "subscribed"
    client.call("PUT", "/v1/topics/wide", {"shards": 4})
    assert ws.hear("caught_up")["shard"] == 2
    assert ws.ask("subscribe", topic="narrow", shard=2, lenient=True)["op"] == "subscribed"
    client.call("PUT", "/v1/topics/narrow", {})
    told = ws.hear()
    assert (told["op"], told["code"]) == ("error", "invalid_option")
    with pytest.raises(ConnectionClosed):
        ws.hear()


def test_subscribing_twice_is_an_error(ws: Socket, client: Client) -> None:
    client.append("t", "a")
    assert ws.ask("subscribe", topic="t")["op"] == "subscribed"
    assert ws.ask("subscribe", topic="t")["code"] == "invalid_request"


def test_pages_of_other_origins_and_wrong_hosts_get_no_socket(server: Server) -> None:
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        with pytest.raises(InvalidStatus) as caught:
            Socket(server.url, additional_headers=headers)
        assert caught.value.response.status_code == status
    port = server.url.rpartition(":")[2]
    place = f"ws://evil.example:{port}/v1/ws"
    with pytest.raises(InvalidStatus) as caught:
        connect(place, sock=create_connection(("127.0.0.1", int(port)))).__enter__()
    assert caught.value.response.status_code == 421
    assert msgspec.json.decode(caught.value.response.body)["error"]["code"] == "misdirected"
    same = Socket(server.url, additional_headers={"Origin": server.url})
    assert same.ask("ping")["op"] == "pong"
    same.raw.close()


def test_there_is_one_path_for_sockets_and_it_speaks_nothing_else(
    server: Server, client: Client
) -> None:
    for path in ("/v1/topics", "/nowhere"):
        with pytest.raises(InvalidStatus) as caught:
            connect(server.url.replace("http", "ws") + path).__enter__()
        assert caught.value.response.status_code == 404
    assert client.get("/v1/ws").status == 400


class Limited(Principal):
    """Who may read some topics and write others."""

    __slots__ = ("alive",)

    def may(self, scope: Any, name: str | None = None) -> bool:
        return scope in self.scopes and (name is None or name.startswith(self.prefixes))


def test_scopes_and_names_are_checked_for_each_message(server: Server, client: Client) -> None:
    for name in ("mine", "foreign"):
        client.append(name, "a")
    kept = server.app._principal
    reader = Limited("r", frozenset({"read"}), ("mine",))
    writer = Limited("w", frozenset({"write"}), ("mine",))
    reader.alive = writer.alive = True
    sockets = []
    for who in (reader, writer):
        server.app._principal = lambda *_, who=who: who  # type: ignore[method-assign]
        sockets.append(Socket(server.url))
    nobody = Limited("n", frozenset({"delete"}), ("mine",))
    server.app._principal = lambda *_: nobody  # type: ignore[method-assign]
    with pytest.raises(InvalidStatus) as caught:
        Socket(server.url)
    assert caught.value.response.status_code == 403
    headers = caught.value.response.headers
    assert int(headers["Esker-Request"], 16)
    assert headers["Server-Timing"].startswith("total;dur=")
    assert headers["X-Content-Type-Options"] == "nosniff"
    server.app._principal = kept  # type: ignore[method-assign]
    reads, writes = sockets
    records = [{"value": "x"}]
    assert reads.ask("subscribe", topic="mine")["op"] == "subscribed"
    assert reads.ask("subscribe", topics=["mine", "foreign"])["code"] == "forbidden"
    assert reads.ask("subscribe", topic="nowhere")["code"] == "forbidden"
    assert reads.ask("publish", topic="mine", records=records)["code"] == "forbidden"
    assert writes.ask("publish", topic="mine", records=records)["op"] == "ack"
    assert writes.ask("publish", topic="foreign", records=records)["code"] == "forbidden"
    assert writes.ask("subscribe", topic="mine")["code"] == "forbidden"
    began = time.monotonic()
    reader.alive = False
    assert reads.hear("error")["code"] == "unauthorized"
    with pytest.raises(ConnectionClosed):
        reads.hear()
    assert time.monotonic() - began < 2
    assert writes.ask("ping")["op"] == "pong"
    writes.raw.close()


def test_sockets_end_with_a_farewell_when_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        client.append("t", "a")
        client.close()
        sockets = [Socket(server.url) for _ in range(5)]
        for each in sockets:
            each.ask("subscribe", topic="t")
            each.hear("caught_up")
        began = time.monotonic()
    assert time.monotonic() - began < 3
    for each in sockets:
        assert each.hear()["op"] == "bye"
        with pytest.raises(ConnectionClosed):
            each.hear()


def test_who_is_gone_leaves_nothing_behind(server: Server, client: Client) -> None:
    client.append("t", "a")
    for _ in range(3):
        made = Socket(server.url)
        made.ask("subscribe", topic="t", start="earliest")
        made.raw.close()
    until(lambda: not server.app.hub.streams and not server.app.hub.feeds)


def test_what_comes_too_late_for_a_client_that_says_good_bye_is_no_failure() -> None:
    async def send(_: Any) -> None:
        raise RuntimeError("Unexpected ASGI message 'websocket.send', after 'websocket.close'")

    for data in (b"{}", frames.binary({}, b"")):
        stream = SocketStream(None, send, lambda: None)
        asyncio.run(stream.put(data))
        assert stream.gone


def test_a_fast_client_of_a_busy_topic_misses_nothing(server: Server, client: Client) -> None:
    made = Socket(server.url)
    client.append("t", "first")
    made.ask("subscribe", topic="t", start="earliest")
    for number in range(50):
        client.append("t", *(f"{number}.{each}" for each in range(100)))
    offsets: list[int] = []
    while len(offsets) < 5_001:
        offsets += [each["offset"] for each in made.hear("record")["records"]]
    assert offsets == list(range(5_001))
    made.raw.close()


def test_who_may_not_read_a_topic_may_not_watch_it_either(server: Server, client: Client) -> None:
    for name in ("mine", "foreign"):
        client.append(name, "a")
    kept = server.app._principal
    who = Limited("r", frozenset({"read"}), ("mine",))
    who.alive = True
    both = {"mine": {}, "foreign": {}}
    others = client.call("POST", "/v1/watch", {"topics": both}).json()["url"]
    server.app._principal = lambda *_: who  # type: ignore[method-assign]
    try:
        for topics in ("foreign", "mine,foreign", "mine, foreign", "mine,nowhere", ",foreign"):
            answer = client.get(f"/v1/watch?topics={topics.replace(' ', '%20')}")
            assert answer.status == 403, topics
        assert client.call("POST", "/v1/watch", {"topics": both}).status == 403
        assert client.get(others).status == 404  # it is for who made it
        mine = client.call("POST", "/v1/watch", {"topics": {"mine": {}}}).json()["url"]
        who.prefixes = ("nothing",)
        assert client.get(mine).status == 403  # what it may now, not what it might then
        assert client.get("/metrics").status == 403
    finally:
        server.app._principal = kept  # type: ignore[method-assign]


def test_streams_are_in_the_description(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path in ("/v1/watch", "/v1/watch/{id}", "/v1/ws", "/metrics"):
        assert "get" in paths[path]
    content = paths["/v1/watch"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["text/event-stream"]
    names = {each["name"] for each in paths["/v1/watch"]["get"]["parameters"]}
    assert {"topics", "start", "cursor", "lenient", "values"} <= names
