"""Records over HTTP: what is appended in one way is read in every other."""

from __future__ import annotations

import asyncio
import csv
import io
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest

from esker.aio.store import AsyncTopic
from esker.engine import reading
from esker.engine.topic import Topic
from esker.server.bodies import filtering
from esker.server.run import Server
from esker.server.table import ROUTES
from tests.server.asgi import Request, application
from tests.server.conftest import JSON, Client
from tests.server.streams import Events

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BYTES = "application/octet-stream"


def read(client: Client, topic: str, query: str = "") -> Any:
    answer = client.get(f"/v1/topics/{topic}/records{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def test_text_json_and_bytes_come_back_as_they_went(client: Client) -> None:
    answer = client.call(
        "POST", "/v1/topics/t/records",
        {"records": [
            {"value": "grüße", "key": "k", "tag": "a", "node": "n", "timestamp": 7,
             "headers": {"h": "x", "b": {"base64": "/wA="}}},
            {"value": {"b": 1, "a": [1.50]}},
            {"base64": "/wA=", "key_base64": "/w=="},
        ]},
    )  # fmt: skip
    assert answer.status == 200
    assert answer.json() == {
        "topic": "t", "count": 3, "spans": [{"shard": 0, "first": 0, "count": 3}],
    }  # fmt: skip
    page = read(client, "t")
    first, second, third = page["records"]
    assert first == {
        "offset": 0, "shard": 0, "timestamp": 7, "value": "grüße", "key": "k", "tag": "a",
        "node": "n", "headers": {"h": "x", "b": {"base64": "/wA="}},
    }  # fmt: skip
    assert second["value"] == '{"b":1,"a":[1.5]}'
    assert (third["base64"], third["key_base64"]) == ("/wA=", "/w==")
    assert "value" not in third
    assert "key" not in third
    assert (page["next"], page["end"], page["caught_up"]) == (3, 3, True)
    embedded = read(client, "t", "?values=json")["records"]
    assert embedded[1]["value"] == {"b": 1, "a": [1.5]}
    assert embedded[0]["value"] == "grüße"
    assert embedded[2]["base64"] == "/wA="


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"value":"a"}\r\n\r\n{"value":"b"}\r\n', 2),
        (b'\n\n{"value":"a"}\n{"value":"b"}', 2),
        (b"\n", 0),
        (b'{"value":"a"}\n\n{"value":"b"\n{"value":"c"}\n', "line 4: JSON is malformed"),
        (b'{"value":"a"}\n{"valu":"b"}\n', "unknown field `valu` - at `$[1]`"),
        (b'{"' + b"9" * 5_000 + b' (byte 9)":"a"}\n', "unknown field"),
        (b'[{"value":"a"}]\n', "Expected `object`, got `array` - at `$[0]`"),
        (b'{"value":"a"}\n{"value":"b","base64":"YQ=="}\n', "or `base64` - at `$[1]`"),
        (b'{"value":"a"}\n{"value":"b","headers":{"a":1}}\n', "got `int` - at `$[1]`"),
        (b'{"value":"a"}\n{"value":"b","tag":"' + b"t" * 300 + b'"}\n', "records[1]: a tag of 300"),
    ],
)
def test_lines_are_taken_as_they_come_and_a_bad_one_is_named_and_nothing_kept(
    client: Client, body: bytes, told: int | str
) -> None:
    answer = client.call("POST", "/v1/topics/t/records", body, {"Content-Type": NDJSON})
    if isinstance(told, int):
        assert answer.json()["count"] == told
        return
    assert answer.status == 400
    assert told in answer.json()["error"]["message"]
    assert client.get("/v1/topics/t").code == "topic_not_found"


def test_every_format_goes_in_and_comes_out(client: Client) -> None:
    lines = b'{"value": "a"}\n{"value": "b", "tag": "x"}\n'
    post = "/v1/topics/t/records"
    assert client.call("POST", post, lines, {"Content-Type": NDJSON}).json()["count"] == 2
    table = pa.table({"value": [b"c", b"d"], "key": [b"k", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    assert client.call("POST", post, body, {"Content-Type": ARROW}).json()["count"] == 2
    raw = {"Content-Type": BYTES, "Esker-Key": "k", "Esker-Tag": "t", "Esker-Header-H": "v"}
    assert client.call("POST", post, b"\xff\x00", raw).json()["count"] == 1
    records = read(client, "t")["records"]
    assert [each.get("value") for each in records] == ["a", "b", "c", "d", None]
    assert records[4]["headers"] == {"h": "v"}
    answer = client.get(post, Accept=NDJSON)
    assert [msgspec.json.decode(line) for line in answer.body.splitlines()] == records
    answer = client.get(post, Accept=ARROW)
    with pa.ipc.open_stream(answer.body) as reader:
        assert reader.read_all()["value"].to_pylist() == [b"a", b"b", b"c", b"d", b"\xff\x00"]
    assert answer.headers["esker-next"] == "5"


def test_pages_follow_each_other_without_gap_or_duplicate(client: Client) -> None:
    client.append("t", *[str(n) for n in range(1_000)])
    at, found = 0, []
    while True:
        page = read(client, "t", f"?start={at}&limit=77")
        found += [int(record["value"]) for record in page["records"]]
        at = page["next"]
        if page["caught_up"]:
            break
        assert len(page["records"]) == 77
    assert found == list(range(1_000))


def looks_while_waiting(client: Client, ask: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a call that waits in vain has its thread look again."""
    app, looks = client.server.app, []
    run = app.run

    def counted(work: Any) -> Any:
        looks.append(work)
        return run(work)

    monkeypatch.setattr(app, "run", counted)
    began = time.monotonic()
    ask()
    assert time.monotonic() - began > 0.4
    return len(looks)


def test_who_waits_before_a_stop_that_moves_sleeps_until_there_is_news(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind the stop is no news, although it is there."""
    client.append("t", *"abcdef")

    def ask() -> None:
        page = read(client, "t", "?start=2&stop=-4&wait=0.5")
        assert (page["records"], page["next"]) == ([], 2)

    assert looks_while_waiting(client, ask, monkeypatch) < 6


def test_who_waits_for_one_shard_is_not_woken_by_another_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.call("PUT", "/v1/topics/t", {"shards": 2})
    topic = client.server.app.store._store["t"]
    shards = {key: topic.append(b"old", key, wait=True).shard for key in "abcdefgh"}  # type: ignore[attr-defined]
    other = next(key for key, shard in shards.items() if shard == 1)
    end = list(shards.values()).count(0)
    later = threading.Timer(0.1, lambda: topic.append(b"new", other, wait=True))

    def ask() -> None:
        later.start()
        body = {"cursors": {"0": end}, "wait": 0.5}
        answer = client.call("POST", "/v1/topics/t/tail", body).json()
        assert answer["ends"] == {"0": end}

    assert looks_while_waiting(client, ask, monkeypatch) < 6
    later.join()
    assert read(client, "t", "?shard=1")["end"] == 9 - end


def test_who_waits_gets_the_record_when_it_comes(client: Client) -> None:
    client.append("t", "old")
    other = Client(client.server)

    def later() -> None:
        time.sleep(0.2)
        other.append("t", "new")

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    page = read(client, "t", "?start=1&wait=20")
    took = time.monotonic() - began
    thread.join()
    other.close()
    assert [record["value"] for record in page["records"]] == ["new"]
    assert 0.1 < took < 5
    assert read(client, "t", "?start=2&wait=0.1")["records"] == []
    began = time.monotonic()
    for query in ("?start=2&stop=2&wait=20", "?start=0&stop=2&wait=20&where=tag=='none'"):
        assert read(client, "t", query)["records"] == [], "nothing can come before its stop"
    assert time.monotonic() - began < 5


def test_a_retry_with_its_key_is_appended_once(client: Client) -> None:
    body = {"records": [{"value": "a"}, {"value": "b"}]}
    key = {"Idempotency-Key": "k-1"}
    first = client.call("POST", "/v1/topics/t/records", body, key).json()
    again = client.call("POST", "/v1/topics/t/records", body, key).json()
    assert first["spans"] == again["spans"]
    assert len(read(client, "t")["records"]) == 2
    both = client.call("POST", "/v1/topics/t/records?idempotency_key=other", body, key)
    assert (both.status, both.code) == (400, "invalid_request")


def test_a_batch_is_whole_or_not_at_all(client: Client) -> None:
    bad = [{"value": "fine"}, {"value": "x", "base64": "eA=="}]
    answer = client.call("POST", "/v1/topics/t/records", {"records": bad})
    assert (answer.status, answer.code) == (400, "invalid_record")
    assert client.get("/v1/topics/t").status == 404, "and no topic was made for it"
    answer = client.call("POST", "/v1/topics/t/records?create=false", {"records": [{"value": "x"}]})
    assert (answer.status, answer.code) == (404, "topic_not_found")


def test_what_was_deleted_or_evicted_is_told_as_it_is(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"cap_records": 10, "segment_records": 5})
    for n in range(6):
        client.append("t", *[str(n * 5 + each) for each in range(5)])
    client.server.app.store._store.retain()
    page = read(client, "t", "?start=0")
    (gap,) = page["gaps"]
    assert (gap["first"], gap["reason"]) == (0, "evicted")
    assert page["records"][0]["offset"] == gap["last"] + 1
    answer = client.get("/v1/topics/t/records?start=0&gaps=raise")
    assert (answer.status, answer.code) == (410, "gap")
    assert answer.json()["error"]["detail"]["gap"]["last"] == gap["last"]
    behind = f"start={gap['last'] + 1}, or read with gaps=tell"
    assert behind in answer.json()["error"]["message"]
    assert client.call("DELETE", "/v1/topics/t/records?before=28").status == 200
    page = read(client, "t", "?start=20")
    assert ([record["offset"] for record in page["records"]], page["gaps"]) == ([28, 29], [])


def test_who_comes_back_to_a_topic_made_anew_is_not_sent_past_its_records(client: Client) -> None:
    client.append("t", *"abcde")
    place = f"start=3&epoch={read(client, 't')['epoch']}&gaps=raise"
    client.call("DELETE", "/v1/topics/t")
    client.append("t", "new")
    answer = client.get(f"/v1/topics/t/records?{place}")
    assert (answer.status, answer.code) == (410, "gap")
    assert "Go on with start=earliest and no epoch" in answer.json()["error"]["message"]


@pytest.mark.parametrize("query", ["tag=gr\xf6\xdfe", "tag=%ff", "tag", "tag=a&"])
def test_a_query_that_is_none_is_told_how_it_is_written(server: Server, query: str) -> None:
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as wire:
        line = f"GET /v1/topics/t/records?{query} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n"
        wire.sendall(line.encode())
        told = wire.recv(65_536)
    assert b"400" in told.splitlines()[0]
    assert b"percent-encoded" in told


def test_shards_are_read_one_at_a_time(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"shards": 3})
    records = [{"value": str(n), "key": f"k{n}"} for n in range(30)]
    client.call("POST", "/v1/topics/t/records", {"records": records})
    answer = client.get("/v1/topics/t/records")
    assert (answer.status, answer.code) == (400, "invalid_option")
    found = [
        record["value"]
        for shard in range(3)
        for record in read(client, "t", f"?shard={shard}")["records"]
    ]
    assert sorted(map(int, found)) == list(range(30))
    assert client.get("/v1/topics/t/records?shard=3").code == "invalid_option"


def test_a_page_of_sealed_records_can_be_kept(client: Client) -> None:
    """It has an ETag and never changes; whoever has it is told that it is as it was."""
    client.call("PUT", "/v1/topics/t", {"segment_records": 10})
    for n in range(5):
        client.append("t", *[str(n * 10 + each) for each in range(10)])
    client.server.app.store._store.tick()
    path = "/v1/topics/t/records"
    for accept in ("application/json", NDJSON, ARROW):
        first = client.get(f"{path}?start=5&limit=10", Accept=accept)
        tag = first.headers["etag"]
        assert "immutable" in first.headers["cache-control"]
        client.append("t", "more")  # which a page before it does not show
        again = client.get(f"{path}?start=5&limit=10", Accept=accept, **{"If-None-Match": tag})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert "content-length" not in again.headers
        other = client.get(f"{path}?start=6&limit=10", Accept=accept, **{"If-None-Match": tag})
        assert (other.status, other.headers["etag"] != tag) == (200, True)
    for query in (
        "?start=45&limit=100", "?start=earliest&limit=5", "?limit=100", "?start=52",
        "?start=5&limit=10&stop=latest", "?start=5&limit=10&stop=-40", "?start=5&stop=@-0s",
    ):  # fmt: skip
        answer = client.get(path + query)
        assert ("etag" in answer.headers, answer.headers["cache-control"]) == (False, "no-store")
    client.call("DELETE", f"{path}?before=8")
    answer = client.get(f"{path}?start=5&limit=10", **{"If-None-Match": tag})
    assert (answer.status, answer.json()["records"][0]["offset"]) == (200, 8), (
        "unless it is deleted"
    )


def test_asking_for_what_is_not_there_leaves_nothing_behind(client: Client) -> None:
    store = client.server.app.store
    for n in range(50):
        assert client.get(f"/v1/topics/x{n}").status == 404
        assert client.get(f"/v1/topics/x{n}/records").status == 404
        body = {"records": [{"value": "x"}], "create": False}
        assert client.call("POST", f"/v1/topics/x{n}/records", body).status == 404
    assert client.get("/v1/topics/-x/records").code == "invalid_name"
    assert not any(name.startswith("x") for name in [*store._topics, *store._store._topics])


def test_no_route_keeps_anything_of_a_name_that_is_not_there() -> None:
    """Whoever may read could fill the memory otherwise, with names that he makes up."""
    left: list[str] = []

    async def story() -> None:
        async with application() as app:
            kept = app.store._store._topics
            for number, route in enumerate(ROUTES):
                name = f"none.{number}"
                got = await Request(route, name).send(app, {})
                if got.status >= 400 and name in kept and name not in app.store._store:
                    left.append(f"{route.method} {route.path}: {got.code}")

    asyncio.run(story())
    assert left == []


def test_a_topic_with_records_is_not_deleted_as_an_empty_one(client: Client) -> None:
    client.append("t", "x")
    refused = client.call("DELETE", "/v1/topics/t?if_empty=true")
    assert (refused.status, refused.code) == (409, "topic_not_empty")
    assert client.call("DELETE", "/v1/topics/t/records?before=latest").status == 200
    answer = client.call("DELETE", "/v1/topics/t?if_empty=true")
    assert (answer.status, answer.json()) == (200, {"topic": "t", "deleted": True})


@pytest.mark.parametrize(
    "asked",
    [
        ("GET", "/v1/topics/t/records?start=1&wait=20"),
        ("POST", "/v1/topics/t/tail", b'{"cursors": {"0": 1}, "wait": 20}', JSON),
    ],
)
def test_a_long_poll_ends_when_its_client_goes(client: Client, asked: Any) -> None:
    client.append("t", "x")
    state = client.server._uvicorn.server_state
    other = Client(client.server)
    other._connection.request(*asked)
    deadline = time.monotonic() + 5
    while not state.tasks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state.tasks
    other.close()
    while state.tasks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not state.tasks


def test_a_range_comes_in_pieces_that_together_are_all_of_it(client: Client) -> None:
    for _ in range(6):
        lines = b"\n".join(b'{"value": "%d"}' % n for n in range(50))
        headers = {"Content-Type": "application/x-ndjson"}
        assert client.call("POST", "/v1/topics/p/records", lines, headers).status == 200
    found = client.get("/v1/topics/p/pieces?first=20&end=270").json()
    assert (found["begin"], found["earliest"], found["end"]) == (0, 0, 300)
    assert [piece["end"] for piece in found["pieces"]] == [50, 100, 150, 200, 250, 270]
    assert all(piece["bytes"] > 0 for piece in found["pieces"])
    few = client.get("/v1/topics/p/pieces?most=2").json()["pieces"]
    assert len(few) <= 3
    assert few[-1]["end"] == 300
    times = client.get("/v1/topics/p/pieces?since=0&before=0").json()
    assert (times["since"], times["before"]) == (0, 0)
    assert client.get("/v1/topics/p/pieces?shard=1").code == "invalid_option"
    assert client.get("/v1/topics/p/pieces?end=null").code == "invalid_request"
    assert client.get("/v1/topics/none/pieces").code == "topic_not_found"


def test_columns_are_chosen_and_every_offset_is_accounted_for(client: Client) -> None:
    body = {"records": [{"value": "x", "key": "k", "tag": "t"}] * 10}
    client.call("POST", "/v1/topics/c/records", body)
    client.call("DELETE", "/v1/topics/c/records?before=4")
    path = "/v1/topics/c/records?start=1&columns=tag,key&gaps=all"
    answer = client.get(path, Accept="application/vnd.apache.arrow.stream")
    with pa.ipc.open_stream(answer.body) as reader:
        table = reader.read_all()
    assert table.schema.names == ["offset", "key", "tag"]
    assert table["offset"].to_pylist() == [*range(4, 10)]
    (gap,) = msgspec.json.decode(answer.headers["esker-gaps"])
    assert (gap["first"], gap["last"], gap["reason"]) == (1, 3, "deleted")
    told = client.get("/v1/topics/c/records?start=1", Accept="application/x-ndjson")
    assert "esker-gaps" not in told.headers, "who does not ask is not told of what was deleted"
    assert client.get("/v1/topics/c/records?columns=tag").code == "invalid_request"
    wrong = client.get(path.replace("tag", "tga"), Accept="application/vnd.apache.arrow.stream")
    assert (wrong.code, "'tag'" in wrong.json()["error"]["message"]) == ("invalid_option", True)


def test_who_wants_no_offsets_gets_none(client: Client) -> None:
    body = {"records": [{"value": "a"}, {"value": "b"}]}
    told = client.call("POST", "/v1/topics/t/records?return=none", body).json()
    assert (told["count"], told["spans"]) == (2, [])
    told = client.call("POST", "/v1/topics/t/records?return=offsets", body).json()
    assert told["spans"] == [{"shard": 0, "first": 2, "count": 2}]
    assert client.call("POST", "/v1/topics/t/records?return=all", body).status == 400


def test_a_page_that_is_at_hand_is_what_it_would_be_from_a_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", *map(str, range(50)))
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    paths = [f"/v1/topics/t/records?start={start}&limit=7" for start in (0, 20, 45, 50, 60)]
    app, asked = client.server.app, []
    run = app.run

    async def counted(work: Any) -> Any:
        asked.append(1)
        return await run(work)

    monkeypatch.setattr(app, "run", counted)

    def pages() -> list[Any]:
        names = ("esker-next", "esker-end", "etag")
        found = [client.get(path, **arrow) for path in paths]
        return [(each.status, each.body, [each.headers.get(n) for n in names]) for each in found]

    there = pages()
    assert len(asked) == 2  # those behind the end
    monkeypatch.setattr(reading, "HAND_LOG", -1)
    assert pages() == there
    assert len(asked) == 2 + len(paths)
    monkeypatch.undo()
    monkeypatch.setattr(app, "run", counted)
    asked.clear()
    client.get(paths[0])  # as JSON
    assert len(asked) == 1


def test_whatever_happened_to_a_topic_its_pages_are_the_same_at_hand(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["", *(f"&max_bytes={size}" for size in (1, 40)), "&stop=9", "&consistency=strong"]
    queries = [
        f"start={start}&limit={limit}{each}"
        for start in (0, 3, 24, 60) for limit in (1, 5, 1_000)
        for each in (*more, "&gaps=all", "&columns=value")
    ]  # fmt: skip

    def pages() -> list[Any]:
        names = ("esker-next", "esker-end", "esker-earliest", "esker-gaps", "etag")
        found = [client.get(f"/v1/topics/t/records?{each}", accept=ARROW) for each in queries]
        tables = [pa.ipc.open_stream(each.body).read_all().to_pydict() for each in found]
        told = [[each.headers.get(name) for name in names] for each in found]
        return list(zip(tables, told, strict=True))

    def the_same() -> None:
        client.call("POST", "/v1/topics/t/sync", {})  # or what is durable grows between two looks
        there = pages()
        with monkeypatch.context() as patched:
            patched.setattr(reading, "HAND_LOG", -1)
            assert pages() == there

    for n in range(20):
        values = [{"value": f"{n}-{m}" * (n % 7), "tag": f"t{m}"} for m in range(3)]
        client.call("POST", "/v1/topics/t/records", {"records": values})
    the_same()
    client.call("DELETE", "/v1/topics/t/records?before=5")
    the_same()
    client.call("DELETE", "/v1/topics/t/records?tag=t1")
    the_same()


def test_an_append_that_meets_the_end_of_its_topic_makes_the_next_one(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is what is appended to, and its first record makes it, also again."""
    deleted = 0
    for kind, name in ((AsyncTopic, "_append_timed"), (Topic, "append_many")):
        kept: Any = getattr(kind, name)

        def late(topic: Any, *given: Any, kept: Any = kept, **named: Any) -> Any:
            nonlocal deleted
            if deleted < 2:
                deleted += 1
                server.app.store._store.delete("t")
            return kept(topic, *given, **named)

        monkeypatch.setattr(kind, name, late)
    server.app.store._store["t"].append("a", wait=True)
    answer = client.append("t", "b")
    assert (answer.status, answer.json()["spans"][0]["first"]) == (200, 0)
    assert deleted == 2
    deleted = 1
    answer = client.call("POST", "/v1/topics/t/records?create=false", {"records": [{"value": "c"}]})
    assert (answer.status, answer.code) == (404, "topic_not_found")
    deleted = 1
    log = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "d"}}]}]}]}
    server.app.store._store["t"].append("a", wait=True)
    assert client.call("POST", "/otlp/v1/logs", log, {"Esker-Topic": "t"}).status == 200
    assert client.get("/v1/topics/t").json()["count"] == 1


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        ({"Content-Type": JSON["Content-Type"], "Esker-Key": "k"}, b'{"records": []}', "Esker-Key"),
        ({"Content-Type": NDJSON, "Esker-Tag": "k"}, b'{"value": 1}', "in each record"),
        ({"Content-Type": BYTES, "Esker-Keys": "k"}, b"x", "did you mean 'esker-key'?"),
        ({"Content-Type": BYTES, "Esker-Content-Language": "k"}, b"x", "esker-"),
    ],
)
def test_a_header_that_would_be_lost_is_refused(
    client: Client, headers: dict[str, str], body: bytes, told: str
) -> None:
    answer = client.call("POST", "/v1/topics/t/records", body, headers)
    assert answer.status == 400
    assert told in answer.json()["error"]["message"]
    assert client.get("/v1/topics/t").status == 404


# ---- by tag ------------------------------------------------------------------------------------

TAGS = [*("eu", "us", "eu-west", None, "eu", "")] * 2
BY_TAG = [
    ("tag=eu", lambda tag, n: tag == "eu"),
    ("tag_prefix=eu", lambda tag, n: (tag or "").startswith("eu")),
    ("tag=eu-west&tag_prefix=eu", lambda tag, n: tag == "eu-west"),
    ("tag=us&tag_prefix=eu", lambda tag, n: False),
    ("tag=eu&where=json.n>4", lambda tag, n: tag == "eu" and n > 4),
    ("tag_prefix=eu&where=json.n>4", lambda tag, n: (tag or "").startswith("eu") and n > 4),
    ("tag=&skip_node=x", lambda tag, n: tag == ""),
    ("tag_prefix=", lambda tag, n: tag is not None),
]


def tagged(client: Client, tags: list[str | None] = TAGS) -> None:
    """Records with these tags, and a batch without any."""
    records = [
        {"value": {"n": n}, **({} if tag is None else {"tag": tag})} for n, tag in enumerate(tags)
    ]
    client.call("POST", "/v1/topics/t/records", {"records": records})
    client.append("t", "untagged", "untagged")


def offsets(kind: str, body: bytes) -> list[int]:
    """Of the records in a page or a file."""
    if kind in (ARROW, "arrow"):
        return pa.ipc.open_stream(body).read_all()["offset"].to_pylist()  # type: ignore[no-any-return]
    if kind in ("text/csv", "csv"):
        return [int(row["offset"]) for row in csv.DictReader(io.StringIO(body.decode()))]
    if kind in (NDJSON, "ndjson"):
        return [msgspec.json.decode(line)["offset"] for line in body.splitlines()]
    return [record["offset"] for record in msgspec.json.decode(body)["records"]]


@pytest.mark.parametrize(("query", "wanted"), BY_TAG, ids=[query for query, _ in BY_TAG])
def test_a_read_an_export_and_a_watch_by_tag_give_the_same(
    client: Client, query: str, wanted: Any
) -> None:
    tagged(client)
    expected = [n for n, tag in enumerate(TAGS) if wanted(tag, n)]
    for accept in ("application/json", NDJSON, ARROW, "text/csv"):
        answer = client.get(f"/v1/topics/t/records?start=0&{query}", Accept=accept)
        assert answer.status == 200, answer.body
        assert offsets(accept, answer.body) == expected, accept
        if accept != "application/json":
            assert answer.headers["esker-next"] == "14"
    page = read(client, "t", f"?{query}")
    assert (page["next"], page["caught_up"]) == (14, True)
    asked = query.replace("&skip_node=x", "")
    for kind in ("ndjson", "arrow", "csv"):
        body = client.get(f"/v1/topics/t/export?format={kind}&{asked}").body
        assert offsets(kind, body) == expected, kind
    events = Events(client.server.url, f"/v1/watch?topics=t&start=earliest&{query}")
    seen: list[int] = []
    while (event := events.next()).kind != "caught-up":
        if event.kind == "record":
            seen += [record["offset"] for record in event.json()["records"]]
    events.close()
    assert seen == expected


def test_a_read_by_tag_that_finds_nothing_says_where_to_go_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", *map(str, range(1_000)))
    tagged(client)
    monkeypatch.setattr("esker.server.records.LOOKS", 300)
    first = read(client, "t", "?start=0&limit=1&tag=eu")
    assert (first["records"], first["next"], first["caught_up"]) == ([], 300, False)
    at, found = 300, []
    while True:
        page = read(client, "t", f"?start={at}&limit=1&tag=eu")
        assert page["next"] > at
        at = page["next"]
        found += [record["offset"] for record in page["records"]]
        if page["caught_up"]:
            break
    assert found == [1_000 + n for n, tag in enumerate(TAGS) if tag == "eu"]


def test_a_page_holds_as_many_as_its_limit_however_far_apart_they_are(client: Client) -> None:
    for _ in range(3):
        tagged(client, [*(["no"] * 399), "yes"] * 4)
    for query in ("tag=yes", "where=tag=='yes'"):
        at, found, sizes = 0, [], []
        while at < 4_806:
            page = read(client, "t", f"?start={at}&limit=5&{query}")
            sizes.append(len(page["records"]))
            found += [record["offset"] for record in page["records"]]
            at = page["next"]
        whole = read(client, "t", f"?{query}")
        assert found == [record["offset"] for record in whole["records"]]
        assert (len(found), sizes) == (12, [5, 5, 2])


def test_few_are_found_among_many_without_taking_these_one_by_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", *map(str, range(5_000)))
    taken: list[int] = []

    def matching(batch: Any, wanted: Any) -> Any:
        taken.append(len(batch))
        return filtering.matching(batch, wanted)

    monkeypatch.setattr("esker.server.records.matching", matching)
    assert read(client, "t", "?limit=1&tag=eu")["next"] == 5_000
    assert taken == [1_000] * 5


def test_who_waits_for_a_tag_is_not_woken_for_good_by_another_one(client: Client) -> None:
    tagged(client)
    other = Client(client.server)

    def later() -> None:
        for tag in ("us", "eu"):
            time.sleep(0.2)
            body = {"records": [{"value": tag, "tag": tag}]}
            other.call("POST", "/v1/topics/t/records", body)

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    page = read(client, "t", "?start=14&wait=20&tag=eu")
    took = time.monotonic() - began
    thread.join()
    other.close()
    assert ([record["value"] for record in page["records"]], page["next"]) == (["eu"], 16)
    assert 0.3 < took < 5
    empty = read(client, "t", "?start=5&wait=0.1&tag=none")
    assert (empty["records"], empty["next"]) == ([], 16)


def test_a_sealed_page_by_tag_can_be_kept_and_is_not_that_of_another_tag(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"segment_records": 6})
    for _ in range(3):
        tagged(client, ["eu", "us", "eu", "us"])
    client.server.app.store._store.tick()
    path = "/v1/topics/t/records?start=0&limit=2"
    for accept in ("application/json", NDJSON, ARROW):
        first = client.get(f"{path}&tag=eu", Accept=accept)
        assert "immutable" in first.headers["cache-control"]
        etag = {"If-None-Match": first.headers["etag"]}
        assert client.get(f"{path}&tag=eu", Accept=accept, **etag).status == 304
        for query in ("&tag=us", "&tag_prefix=u", ""):
            other = client.get(path + query, Accept=accept, **etag)
            assert (other.status, other.headers["etag"] != first.headers["etag"]) == (200, True)
    nothing = client.get(f"{path}&tag=none")
    assert "etag" not in nothing.headers, "what is not there may yet come"


@pytest.mark.parametrize("query", ["tag=" + "x" * 1_025, "tag_prefix=" + "x" * 1_025, "tags=eu"])
def test_what_no_tag_can_be_is_refused_as_a_watch_refuses_it(client: Client, query: str) -> None:
    tagged(client)
    told = client.get(f"/v1/watch?topics=t&{query}")
    assert (told.status, told.code) == (400, "invalid_request")
    for path in ("/v1/topics/t/records?", "/v1/topics/t/export?"):
        refused = client.get(path + query)
        assert refused.status == 400
        assert refused.json()["error"]["message"] == told.json()["error"]["message"]


def test_the_description_has_the_tags_of_reads_as_it_has_those_of_watches(client: Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]

    def told(path: str) -> list[Any]:
        found = paths[path]["get"]["parameters"]
        return [each for each in found if each["name"] in ("tag", "tag_prefix", "where")]

    assert len(told("/v1/watch")) == 3
    assert told("/v1/topics/{topic}/records") == told("/v1/watch")
    assert told("/v1/topics/{topic}/export") == told("/v1/watch")
