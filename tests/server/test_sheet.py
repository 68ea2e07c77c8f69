"""Records as CSV: pages and exports are the same lines."""

from __future__ import annotations

import csv
import io
from datetime import datetime

from tests.server.conftest import Client


def read(body: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(body.decode(), newline="")))


def test_records_can_be_had_as_csv(client: Client) -> None:
    given = [
        {"value": 'a,"b"\nc', "key": "k", "tag": "eu", "node": "n", "timestamp": 5},
        {"value": ""}, {"base64": "/wA="}, {"value": "ü", "key_base64": "/w=="},
    ]  # fmt: skip
    client.call("POST", "/v1/topics/t/records", {"records": given})
    answer = client.get("/v1/topics/t/records", Accept="text/csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["esker-next"] == "4"
    rows = read(answer.body)
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["value"] for row in rows] == ['a,"b"\nc', "", "", "ü"]
    assert [row["base64"] for row in rows] == ["", "", "/wA=", ""]
    assert [row["key"] for row in rows] == ["k", "", "", ""]
    assert [row["key_base64"] for row in rows] == ["", "", "", "/w=="]
    assert (rows[0]["tag"], rows[0]["node"]) == ("eu", "n")
    assert rows[0]["timestamp"] == "1970-01-01 00:00:00.000005Z"
    empty = client.get("/v1/topics/t/records?start=4", Accept="text/csv").body.decode()
    assert len(empty.splitlines()) == 1  # the head


def test_a_page_as_csv_is_what_an_export_is(client: Client) -> None:
    """The same columns, with headers and gaps, and times that no calendar has."""
    given = [
        {"value": "a", "tag": "x", "headers": {"h": "1"}}, {"value": "b", "timestamp": 1 << 61},
        {"value": "c", "key": "k", "timestamp": -(1 << 61)},
    ]  # fmt: skip
    client.call("POST", "/v1/topics/t/records", {"records": given})
    query = "start=0&stop=3"
    page = client.get(f"/v1/topics/t/records?{query}", Accept="text/csv").body
    assert page == client.get(f"/v1/topics/t/export?format=csv&{query}").body
    rows = read(page)
    assert list(rows[0]) == [
        "shard", "offset", "timestamp", "key", "key_base64", "tag", "node", "headers", "value",
        "base64", "gap",
    ]  # fmt: skip
    assert rows[0]["headers"] == '{"h":"1"}'
    times = [row["timestamp"] for row in rows]
    assert times[1:] == [str(1 << 61), str(-(1 << 61))]
    assert datetime.fromisoformat(times[0]).year > 2020
    bare = client.get(f"/v1/topics/t/records?{query}&headers=false", Accept="text/csv").body
    assert [row["headers"] for row in read(bare)] == [""] * 3


def test_a_page_as_csv_says_what_is_missing(client: Client) -> None:
    client.append("t", "a", "b")
    client.call("DELETE", "/v1/topics/t/records?before=1")
    answer = client.get("/v1/topics/t/records?start=0&gaps=all", Accept="text/csv")
    gap, left = read(answer.body)
    assert (gap["offset"], gap["value"], left["offset"], left["gap"]) == ("0", "", "1", "")
    assert "deleted" in gap["gap"]
    assert "deleted" in answer.headers["esker-gaps"]
