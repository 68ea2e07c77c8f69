"""Routes over HTTP: defined, seen, paused, moved, deleted; and refused with the reason."""

from __future__ import annotations

import time
from typing import Any

import pytest

from esker.server.access.keys import SCOPES, Principal, Scope
from tests.server.conftest import Answer, Client


def define(client: Client, name: str, source: str, destination: str, **how: Any) -> Answer:
    body = {"source": source, "destination": destination, **how}
    return client.call("PUT", f"/v1/routes/{name}", body)


def values(client: Client, topic: str, count: int) -> list[str]:
    """The values of a topic, as soon as there are so many."""
    deadline = time.monotonic() + 10
    while True:
        answer = client.get(f"/v1/topics/{topic}/records")
        found = [record["value"] for record in answer.json()["records"]]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def test_a_route_forwards_what_matches(client: Client) -> None:
    client.append("orders", '{"amount": 50}', '{"amount": 500}')
    made = define(client, "big", "orders", "payments", where="json.amount > 100")
    assert (made.status, made.json()["where"]) == (201, "json.amount > 100")
    assert values(client, "payments", 1) == ['{"amount": 500}']
    again = define(client, "big", "orders", "payments", where="json.amount > 100")
    assert again.status == 200
    deadline = time.monotonic() + 5
    while (state := client.get("/v1/routes/big").json())["records"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (state["source"], state["destination"], state["records"]) == ("orders", "payments", 0)
    assert (state["forwarded"], state["filtered"]) == (1, 1)
    assert [route["route"] for route in client.get("/v1/routes").json()["routes"]] == ["big"]


def test_a_route_that_would_go_in_a_circle_is_refused_with_the_circle(client: Client) -> None:
    client.append("a", "x")
    assert define(client, "ab", "a", "b").status == 201
    assert define(client, "bc", "b", "c").status == 201
    answer = define(client, "ca", "c", "a")
    assert (answer.status, answer.code) == (409, "route_refused")
    assert answer.json()["error"]["detail"] == {"circle": ["c", "a", "b", "c"]}
    second = define(client, "xb", "c", "b")
    assert (second.status, second.code) == (409, "route_refused")
    other = define(client, "ab", "a", "c")
    assert (other.status, other.code) == (409, "route_refused")
    assert "detail" not in other.json()["error"]
    assert define(client, "ca", "c", "a", allow_cycles=True, hops=2).status == 201
    for how, code in (
        ({"where": "json.amount >"}, "invalid_filter"), ({"hops": 0}, "invalid_request"),
        ({"start": "soon"}, "invalid_position"), ({"unknown": 1}, "invalid_request"),
    ):  # fmt: skip
        assert define(client, "bad", "a", "z", **how).code == code
    assert define(client, "bad", "none", "z").code == "topic_not_found"


def test_a_route_is_paused_moved_and_deleted(client: Client) -> None:
    client.append("a", "1", "2", "3")
    define(client, "ab", "a", "b")
    assert values(client, "b", 3) == ["1", "2", "3"]
    assert client.call("POST", "/v1/routes/ab/pause", {}).json() == {"paused": True}
    assert client.get("/v1/routes/ab").json()["state"] == "paused"
    client.append("a", "4")
    dry = client.call("POST", "/v1/routes/ab/seek", {"to": 2, "dry_run": True}).json()
    (move,) = dry["moves"]
    assert (move["topic"], move["after"]) == ("a", 2)
    assert client.call("POST", "/v1/routes/ab/seek", {"to": 2}).status == 200
    assert values(client, "b", 3) == ["1", "2", "3"]
    assert client.call("POST", "/v1/routes/ab/resume", {}).json() == {"paused": False}
    assert values(client, "b", 5) == ["1", "2", "3", "3", "4"], "back means again"
    assert client.call("DELETE", "/v1/routes/ab").json() == {"route": "ab", "deleted": True}
    assert client.get("/v1/routes").json() == {"routes": []}
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"),
    ):  # fmt: skip
        answer = client.call(method, f"/v1/routes/ab{path}", {} if method == "POST" else None)
        assert (answer.status, answer.code) == (404, "route_not_found")


def test_a_route_of_topics_that_are_not_ones_own_is_not_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Principal):
        def may(self, scope: Scope, name: str | None = None) -> bool:
            return name is None or name.startswith("mine")

    client.append("a", "1")
    client.append("mine.a", "1")
    define(client, "theirs", "a", "b")
    define(client, "half", "mine.a", "c")
    monkeypatch.setattr(
        client.server.app, "_principal", lambda *_: Mine("me", frozenset(SCOPES), ("mine",))
    )
    known, unknown = (
        client.call("POST", f"/v1/routes/{name}/pause", {}) for name in ("theirs", "nobody")
    )
    assert (known.status, unknown.status) == (404, 404)
    message = known.json()["error"]["message"].replace("theirs", "nobody")
    assert message == unknown.json()["error"]["message"]
    assert client.call("DELETE", "/v1/routes/half").status == 404
    assert client.get("/v1/routes").json() == {"routes": []}
    assert define(client, "x", "a", "mine.b").status == 403
    assert define(client, "x", "mine.a", "b").status == 403
    assert define(client, "x", "mine.a", "mine.b").status == 201
    taken = define(client, "theirs", "mine.a", "mine.c")
    assert (taken.status, taken.code) == (409, "route_refused")
    assert "'a'" not in taken.body.decode(), "the name is taken, and that is all"


def test_the_group_that_a_route_reads_as_is_left_alone(client: Client) -> None:
    client.append("a", "1")
    define(client, "ab", "a", "b")
    (group,) = client.get("/v1/groups?topic=a").json()["groups"]
    at = f"/v1/topics/a/groups/{group['group']}"
    assert client.get(at).status == 200
    for answer in (
        client.call("PUT", at, {}), client.call("DELETE", at),
        client.call("POST", f"{at}/poll", {}), client.call("POST", f"{at}/seek", {"to": 0}),
        client.call("POST", f"{at}/pause", {}),
    ):  # fmt: skip
        assert (answer.status, answer.code) == (403, "forbidden")
