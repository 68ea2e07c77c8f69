"""A refused request leaves nothing behind: no topic, and no handle of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from websockets.sync.client import connect

from esker.server import staging
from tests.server.conftest import Client
from tests.server.test_stages import ARROW, stage, stream, written

LONG = "k" * 70_000


def names(client: Client) -> set[str]:
    """The topics there are, and those of which the server keeps a handle."""
    store = client.server.app.store
    return {*client.get("/v1/topics").json()["topics"], *store._topics, *store._store._topics}


def table(**columns: Any) -> bytes:
    return written(pa.table(columns))


def runs() -> Any:
    return pa.RunEndEncodedArray.from_arrays(pa.array([1]), pa.array([b"a"]))


COLUMNS = {
    "no value": table(tag=["x"]),
    "a column of another name": table(value=[b"a"], colour=["red"]),
    "a null": table(value=[b"a", None]),
    "numbers": table(value=[1]),
    "a key too long": table(value=[b"a"], key=[LONG]),
    "a tag too long": table(value=[b"a"], tag=[LONG]),
    "headers that are none": table(value=[b"a"], headers=[1]),
    "a timestamp that is none": table(value=[b"a"], timestamp=["noon"]),
    "two values": written(pa.Table.from_arrays([pa.array([b"a"])] * 2, ["value", "value"])),
}


@pytest.mark.parametrize("body", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("query", ["", "?atomic=true", "?producer=p&sequence=0"])
def test_refused_arrow_makes_no_topic(client: Client, body: bytes, query: str) -> None:
    assert client.call("POST", f"/v1/topics/new/records{query}", body, ARROW).status == 400
    assert names(client) == set()


@pytest.mark.parametrize(
    ("body", "shard"),
    [
        *((body, 0) for body in COLUMNS.values()), (table(value=[{"a": 1}]), 0),
        (table(value=runs()), 0), (stream(b"a")[:-9], 0), (b"nothing", 0), (stream(b"a"), 1),
    ],
)  # fmt: skip
def test_a_refused_stage_makes_no_topic(client: Client, body: bytes, shard: int) -> None:
    assert stage(client, "new", body, shard).status == 400
    assert names(client) == set()


def test_a_stage_too_long_when_written_out_makes_no_topic(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WRITTEN_MAX", 1_000)
    assert stage(client, "new", stream(bytes(2_000))).status == 413
    assert names(client) == set()


def test_a_stage_that_is_refused_behind_its_first_piece_leaves_an_empty_topic(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have staged records for it meanwhile, so nobody takes it away."""
    monkeypatch.setattr(staging, "PIECE_BYTES", 100)
    rows = pa.table({"value": [bytes(200), None]})
    assert stage(client, "new", written(rows, rows=1)).status == 400
    assert client.get("/v1/topics/new").json()["count"] == 0


ROUTES = {
    "a filter": {"where": "json.amount >"}, "a position": {"start": "noon"},
    "an offset of several shards": {"source": "wide", "start": 3}, "no source": {"source": "none"},
    "hops": {"hops": 0}, "a class": {"source": "loose", "exactly_once": True},
    "a field": {"colour": "red"},
}  # fmt: skip


@pytest.mark.parametrize("how", ROUTES.values(), ids=ROUTES)
def test_a_refused_route_makes_no_topic(client: Client, how: dict[str, Any]) -> None:
    client.append("source", "a")
    client.call("PUT", "/v1/topics/wide", {"shards": 2})
    client.call("PUT", "/v1/topics/loose", {"durability": "memory"})
    body = {"source": "source", "destination": "new", **how}
    assert client.call("PUT", "/v1/routes/r", body).status in (400, 404)
    assert names(client) == {"source", "wide", "loose"}
    assert client.get("/v1/routes").json() == {"routes": []}


def test_a_route_whose_name_is_taken_makes_no_topic(client: Client) -> None:
    client.append("source", "a")
    first = {"source": "source", "destination": "there"}
    assert client.call("PUT", "/v1/routes/r", first).status == 201
    answer = client.call("PUT", "/v1/routes/r", {**first, "destination": "new"})
    assert (answer.status, answer.code) == (409, "route_refused")
    assert names(client) == {"source", "there"}
    again = client.call("PUT", "/v1/routes/r", {**first, "start": "noon"})
    assert again.status == 200, "where it began is asked for no more"


RECORDS: dict[str, tuple[str, Any]] = {
    "a key": ("", {"key": LONG}), "a tag": ("", {"tag": LONG}), "a node": ("", {"node": LONG}),
    "headers": ("", {"headers": {str(n): "" for n in range(100)}}),
    "a time": ("", {"timestamp": 1 << 62}),
    "an idempotency key": ("?idempotency_key=", {}), "a producer": ("?producer=&sequence=0", {}),
    "the shard of a producer": ("?producer=p&sequence=0&shard=1", {}),
    "a number that is not the first": ("?producer=p&sequence=1", {}),
    "a record of a producer": ("?producer=p&sequence=0", {"tag": LONG}),
}  # fmt: skip


@pytest.mark.parametrize(("query", "record"), RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_append_makes_no_topic(
    client: Client, query: str, record: dict[str, Any], count: int
) -> None:
    body = {"records": [{"value": "a", **record}] * count}
    answer = client.call("POST", f"/v1/topics/new/records{query}", body)
    assert answer.status in (400, 409)
    assert names(client) == set()


def test_refused_logs_make_no_topic(client: Client) -> None:
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": LONG}}]}
    scopes = [{"logRecords": [{"body": {"stringValue": "a"}}]}]
    body = {"resourceLogs": [{"resource": service, "scopeLogs": scopes}]}
    assert client.call("POST", "/otlp/v1/logs", body).status == 400
    assert names(client) == set()


@pytest.mark.parametrize("record", [{"tag": LONG}, {"timestamp": 1 << 62}, {"base64": "%"}])
def test_a_refused_message_makes_no_topic(client: Client, record: dict[str, Any]) -> None:
    given = record if "base64" in record else {"value": "a", **record}
    message = {"op": "publish", "request_id": 1, "topic": "new", "records": [given]}
    with connect(client.url.replace("http", "ws") + "/v1/ws") as socket:
        socket.send(msgspec.json.encode(message).decode())
        while "request_id" not in (told := msgspec.json.decode(socket.recv())):
            pass
        assert told["op"] == "error"
    assert names(client) == set()


def test_a_queue_whose_dead_letters_have_no_place_is_not_made(client: Client) -> None:
    client.call("PUT", "/v1/topics/loose", {"durability": "ephemeral"})
    client.call("PUT", "/v1/queues/there", {})
    client.append("plain", "a")
    for name in ("new", "there", "plain"):
        answer = client.call("PUT", f"/v1/queues/{name}", {"dead_letter": "loose"})
        assert (answer.status, answer.code) == (400, "invalid_option")
    assert names(client) == {"loose", "there", "plain"}
    assert client.get("/v1/queues/there").json()["options"]["dead_letter"] == ""
    assert client.get("/v1/queues/plain").code == "not_a_queue"
