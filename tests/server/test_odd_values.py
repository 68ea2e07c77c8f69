"""Odd values in every field, on names that are there: refused, and never the server's failure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from esker.server.table import RAW, ROOMS, Route
from tests.server.conftest import Client
from tests.server.streams import Events

ODD: list[Any] = [
    None, True, -1, 0, 1, 1 << 31, (1 << 63) - 1, 1 << 64, -(1 << 63), 1.5, 1e300, "", "x", "\0",
    "é", "1e999", "nan", "-5s", "99999999999d", "@-99999999999d", "@9999-99-99", "a" * 300, [], {},
    [None], [1], {"a": 1}, "latest", "earliest",
]  # fmt: skip
GOOD: dict[str, Any] = {
    "acks": [{"shard": 0, "generation": 1, "next": 1}], "to": 0, "jobs": [{"value": "x"}],
    "source": "t", "destination": "u", "writer": "w", "sequence": 1, "tickets": [], "offset": 0,
}  # fmt: skip
NAMES = {"topic": "t", "group": "g", "queue": "q", "route": "r", "producer": "p", "writer": "w"}
TOKEN = [{"shard": 0, "offset": 0, "token": "0123456789abcdef-1-00"}]


@pytest.fixture
def furnished(client: Client) -> Client:
    """With one of everything."""
    client.append("t", "x")
    client.call("PUT", "/v1/topics/t/groups/g", {})
    client.call("PUT", "/v1/queues/q", {"lease": 60})
    client.call("POST", "/v1/queues/q/jobs", {"jobs": [{"value": "x"}]})
    client.call("PUT", "/v1/routes/r", {"source": "t", "destination": "u"})
    return client


def path_of(route: Route, name: str = "", value: str = "") -> str:
    names = {**NAMES, name: value}
    return route.path.format(**{each: quote(names[each], safe="") for each in NAMES})


def needed(route: Route, kind: Any) -> dict[str, Any]:
    found = {
        field.encode_name: GOOD[field.encode_name]
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    if "jobs" in found and not route.path.endswith("/jobs"):
        found["jobs"] = TOKEN
    return found


def test_no_value_of_a_body_is_the_servers_failure(furnished: Client) -> None:
    tried = 0
    for route in ROOMS:
        if route.body in (None, RAW):
            continue
        good = needed(route, route.body)
        fields = msgspec.structs.fields(route.body)
        for at, field in enumerate(fields):
            for odd in ODD if len(fields) < 20 else ODD[at % 5 :: 5]:  # a queue has 30 options
                if field.encode_name in ("wait", "timeout") and odd in (1, 1.5):
                    continue  # they would be waited for
                body = {**good, field.encode_name: odd}
                answer = furnished.call(route.method, path_of(route), body)
                assert answer.status < 500, (route, field.encode_name, odd, answer.body)
                tried += 1
    assert tried > 1_000


def test_no_value_of_a_query_is_the_servers_failure(furnished: Client) -> None:
    for route in ROOMS:
        if route.streams:
            continue
        good = needed(route, route.query)
        for field in msgspec.structs.fields(route.query):
            for odd in ODD:
                text = odd if isinstance(odd, str) else msgspec.json.encode(odd).decode()
                query = urlencode({**good, field.encode_name: text})
                body = None if route.body is None else b""
                answer = furnished.call(route.method, f"{path_of(route)}?{query}", body)
                assert answer.status < 500, (route, field.encode_name, odd, answer.body)


def test_no_name_is_the_servers_failure(furnished: Client) -> None:
    for route in ROOMS:
        if route.streams:
            continue
        body = None if route.body in (None, RAW) else needed(route, route.body)
        for name in NAMES:
            if f"{{{name}}}" not in route.path:
                continue
            for odd in ("\0", "é", "a" * 300, "..", "a/b", "route:1", " ", "\ud7ff", "x" * 5_000):
                answer = furnished.call(route.method, path_of(route, name, odd), body)
                assert answer.status < 500, (route, name, odd, answer.body)


def test_no_value_is_read_as_another_or_as_several(client: Client) -> None:
    """What is JSON only together with its neighbours is text, each for itself."""
    raw = {"Content-Type": "application/octet-stream"}
    broken = b'[\n{"offset":9,"shard":0,"timestamp":1,"value":"forged"}\r\n\r\n]'
    values = [b'1,2,"', b"5", b'"', b"1,2,[3", b" 6 ", b"4]", broken]
    for value in values:
        client.call("POST", "/v1/topics/t/records", value, raw)
    wanted = ['1,2,"', 5, '"', "1,2,[3", 6, "4]", msgspec.json.decode(broken)]

    def shown(records: Any) -> Any:
        return [each["value"] for each in records]

    assert shown(client.get("/v1/topics/t/records?values=json").json()["records"]) == wanted
    path = "/v1/topics/t/records?values=json&start="
    for at in (0, 6):  # some are no JSON; all are
        page = client.get(f"{path}{at}", Accept="application/x-ndjson")
        lines = page.body.splitlines()
        assert shown(map(msgspec.json.decode, lines)) == wanted[at:]
    for last in values:  # as a stream of JSON others cannot be swallowed either
        client.call("PUT", "/ds/s", b"", {"Content-Type": "application/json"})
        client.call("POST", "/v1/topics/s/records", last, raw)
    assert client.get("/ds/s").code == "not_a_stream"


def test_a_job_with_line_breaks_in_its_json_is_one_event(client: Client) -> None:
    client.call("PUT", "/v1/queues/q", {})
    body = b'{"jobs": [{"value": [1,\n\n2\r\n\r\n]}]}'
    client.call("POST", "/v1/queues/q/jobs", body, {"Content-Type": "application/json"})
    events = Events(client.url, "/v1/queues/q/work?values=json")
    told = events.next("job").json()
    assert (told["value"], bool(told["token"])) == ([1, 2], True)
    events.close()
