"""The routes that the console asks: numbers, segments, health, export, leases, filters."""

from __future__ import annotations

import base64
import csv
import http.client
import io
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pyarrow as pa
import pytest

import esker
from esker.server.access.keyfile import new, revoke
from esker.server.bodies import codec
from esker.server.run import serving
from esker.server.settings import Settings
from tests.console.conftest import House
from tests.server.conftest import Client
from tests.server.streams import Events


def test_the_overview_counts_what_is_there_and_what_ever_was(house: House) -> None:
    house.do("PUT", "/v1/topics/t", {"shards": 2})
    house.append("t", *({"value": str(n), "key": str(n)} for n in range(40)))
    house.do("PUT", "/v1/queues/jobs", {})
    house.do("DELETE", "/v1/topics/t/records?before=5&shard=0")
    told = house.do("GET", "/v1/overview")
    assert [each["topic"] for each in told["topics"]] == ["jobs", "t"]
    jobs, topic = told["topics"]
    assert (jobs["queue"], topic["queue"]) == (True, False)
    assert topic["appended"] == 40
    assert topic["count"] == 35
    assert topic["shards"] == 2
    assert topic["bytes"] > 0
    assert 0 <= told["now"] - topic["newest"] < 600_000_000
    assert told["server"]["requests"] > 3
    page = house.do("GET", "/v1/overview?limit=1")
    assert (page["next"], page["total"]) == ("jobs", 2)
    assert house.do("GET", "/v1/overview?limit=1&cursor=jobs")["topics"][0]["topic"] == "t"
    assert house.do("GET", "/v1/overview?prefix=x")["topics"] == []


def test_segments_are_told_by_tier_and_what_was_evicted_is_told_as_lost(house: House) -> None:
    first = house.evicted("t")
    told = house.do("GET", "/v1/topics/t/segments")
    (shard,) = told["shards"]
    (lost,) = shard["lost"]
    assert lost == {"first": 0, "last": shard["earliest"] - 1, "reason": "evicted"}
    assert shard["earliest"] == first
    assert sum(each["records"] for each in shard["segments"]) == 80 - first
    assert {each["tier"] for each in shard["segments"]} <= {"sealed", "log"}
    assert shard["segments"][0]["tier"] == "sealed"
    assert shard["segments"][0]["oldest"] > 0
    few = house.do("GET", "/v1/topics/t/segments?limit=1")["shards"][0]
    assert len(few["segments"]) == 1
    assert few["omitted"] == len(shard["segments"]) - 1


def test_the_store_tells_how_it_is_without_a_path_of_the_machine(
    house: House, tmp_path: Path
) -> None:
    house.append("t", "x")
    answer = house.client.get("/v1/store")
    told = answer.json()
    assert told["healthy"] is True
    assert told["recovery"]["clean"] is True
    assert told["maintenance"]["state"] == "running"
    assert told["free_bytes"] > 0
    assert told["bytes"] > 0
    assert str(tmp_path).encode() not in answer.body


def test_what_recovery_found_is_told(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        client.append("t", *map(str, range(50)))
        client.close()
    (log,) = (tmp_path / "data").rglob("0*/0*/*.log")
    log.write_bytes(log.read_bytes() + b"torn" * 5)
    for page in log.parent.glob("state*"):
        page.unlink()  # as if it had never been closed
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        told = client.get("/v1/store").json()["recovery"]
        client.close()
    assert told["clean"] is False
    assert told["findings"]
    for each in told["findings"]:
        assert each["means"]
        assert not each["file"].startswith("/")
        assert str(tmp_path) not in each["reason"]


# ---- filters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ('tag == "eu"', [0, 3, 6]), ('key == "k1"', [1, 5]), ('header.kind == "b"', [1, 3, 5, 7]),
        ("json.n > 5", [6, 7]), ('tag == "eu" and json.n > 1', [3, 6]), ("json.n > 100", []),
    ],
)  # fmt: skip
def test_a_read_gives_what_a_filter_wants(house: House, where: str, wanted: list[int]) -> None:
    house.append("t", *(
        {"value": {"n": n}, "key": f"k{n % 4}", "headers": {"kind": "ab"[n % 2]},
         **({"tag": "eu"} if n % 3 == 0 else {})}
        for n in range(8)
    ))  # fmt: skip
    answer = house.client.get("/v1/topics/t/records?" + _query(where=where)).json()
    assert [each["offset"] for each in answer["records"]] == wanted
    assert answer["next"] == 8
    assert answer["caught_up"] is True
    refusal = house.client.get("/v1/topics/t/records?" + _query(where="tags == 1"))
    assert (refusal.status, refusal.code) == (400, "invalid_filter")


def test_a_filter_that_wants_nothing_ends_and_says_where(house: House, monkeypatch: Any) -> None:
    house.append("t", *map(str, range(1000)))
    monkeypatch.setattr("esker.server.records.LOOKS", 300)
    told = house.client.get("/v1/topics/t/records?limit=100&" + _query(where='tag == "x"')).json()
    assert told["records"] == []
    assert 300 <= told["next"] < 1000
    assert told["caught_up"] is False


def test_a_stream_gives_what_a_filter_wants(house: House) -> None:
    house.append("t", {"value": {"n": 1}}, {"value": {"n": 2}})
    query = "topics=t&start=earliest&" + _query(where="json.n > 1")
    events = Events(house.url, f"/v1/watch?{query}")
    try:
        first = next(each for each in events if each.kind == "record")
        assert [each["offset"] for each in first.json()["records"]] == [1]
    finally:
        events.close()
    wrong = house.client.get("/v1/watch?topics=t&" + _query(where="nonsense"))
    assert (wrong.status, wrong.code) == (400, "invalid_filter")


def _query(**fields: str) -> str:
    return urlencode(fields)


# ---- export ----------------------------------------------------------------------------------

RECORDS = [
    {"value": "plain", "key": "k", "tag": "a,\"b\"\n", "node": "n", "headers": {"h": "1"}},
    {"base64": base64.b64encode(b"\xff\x00").decode(), "key_base64": "/w=="},
    {"value": "=1+1"}, {"value": ""},
]  # fmt: skip


def test_an_export_as_ndjson_can_be_appended_again(house: House) -> None:
    house.do("PUT", "/v1/topics/t", {"shards": 2})
    house.append("t", *RECORDS, *(f"{n}" for n in range(3000)))
    answer = house.client.get("/v1/topics/t/export")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="t.ndjson"'
    lines = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    assert len(lines) == 3004
    for line in lines:
        del line["offset"], line["shard"]
    body = b"\n".join(map(msgspec.json.encode, lines))
    made = house.client.call(
        "POST", "/v1/topics/u/records", body, {"Content-Type": "application/x-ndjson"}
    )
    assert made.json()["count"] == 3004
    again = [
        msgspec.json.decode(line)
        for line in house.client.get("/v1/topics/u/export").body.splitlines()
    ]
    for line in again:
        del line["offset"], line["shard"]
    assert again == lines


def test_an_export_as_csv_has_every_field_and_says_what_is_bytes(house: House) -> None:
    house.append("t", *RECORDS)
    answer = house.client.get("/v1/topics/t/export?format=csv")
    assert answer.headers["content-type"] == "text/csv"
    rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0]["tag"] == 'a,"b"\n'
    assert rows[0]["headers"] == '{"h":"1"}'
    assert (rows[1]["value"], rows[1]["base64"], rows[1]["key_base64"]) == ("", "/wA=", "/w==")
    assert rows[2]["value"] == "=1+1"
    assert rows[3]["timestamp"].startswith("20")


def test_an_export_as_arrow_is_a_stream_that_arrow_reads(house: House) -> None:
    house.append("t", *RECORDS, *map(str, range(2000)))
    answer = house.client.get("/v1/topics/t/export?format=arrow&start=1&stop=1000")
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.column("offset").to_pylist() == list(range(1, 1000))
    assert table.column("value")[0].as_py() == b"\xff\x00"


def test_an_export_takes_a_range_a_shard_and_a_filter(house: House) -> None:
    house.do("PUT", "/v1/topics/t", {"shards": 2})
    house.append("t", *({"value": {"n": n}, "key": str(n)} for n in range(100)))
    asked = _query(where="json.n >= 50", shard="1", start="2")
    lines = house.client.get("/v1/topics/t/export?" + asked).body.splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    assert found
    assert all(each["shard"] == 1 and each["offset"] >= 2 for each in found)
    assert all(msgspec.json.decode(each["value"])["n"] >= 50 for each in found)
    for wrong in ("shard=7", "start=nowhere", "format=exe", "where=x"):
        assert house.client.get(f"/v1/topics/t/export?{wrong}").status == 400, wrong
    assert house.client.get("/v1/topics/none/export").status == 404


@pytest.mark.parametrize("kind", ["ndjson", "csv", "arrow"])
def test_an_export_tells_what_is_missing_where_it_is_missing(house: House, kind: str) -> None:
    first = house.evicted("t")
    body = house.client.get(f"/v1/topics/t/export?start=0&format={kind}").body
    if kind == "ndjson":
        head = msgspec.json.decode(body.splitlines()[0])
        assert (head["gap"]["first"], head["gap"]["last"]) == (0, first - 1)
    elif kind == "csv":
        row = next(csv.DictReader(io.StringIO(body.decode())))
        assert row["offset"] == "0"
        assert f"0..{first - 1}" in row["gap"]
    else:
        reader = pa.ipc.open_stream(body)
        batch = reader.read_next_batch_with_custom_metadata()
        assert batch.batch.num_rows == 0
        told = msgspec.json.decode(batch.custom_metadata[b"esker.gap"])
        assert told["last"] == first - 1


def big(folder: Path) -> None:
    with esker.open(folder / "data") as store:
        store["big"].append_arrow(pa.table({"value": pa.array([b"x" * 200] * 200_000)}))


def test_an_export_whose_key_ends_is_cut_off_and_does_not_seem_whole(tmp_path: Path) -> None:
    big(tmp_path)
    keys = str(tmp_path / "keys")
    made, key = new(keys, ["read"])
    with serving(tmp_path / "data", Settings(port=0, keys=keys)) as server:
        where = urlsplit(server.url)
        wire = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        wire.request("GET", "/v1/topics/big/export", headers={"Authorization": f"Bearer {key}"})
        answer = wire.getresponse()
        assert answer.read(1_000)
        revoke(keys, made.id)
        other, deadline = Client(server), time.monotonic() + 30
        while other.get("/v1/access", Authorization=f"Bearer {key}").status == 200:
            assert time.monotonic() < deadline
        other.close()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        wire.close()


def test_nothing_more_is_read_for_a_client_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(tmp_path)
    made: list[int] = []
    lines_out = codec.lines_out

    def counted(records: Any) -> bytes:
        made.append(len(records))
        return lines_out(records)

    monkeypatch.setattr(codec, "lines_out", counted)
    with serving(tmp_path / "data", Settings(port=0)) as server:
        where = urlsplit(server.url)
        wire = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        wire.request("GET", "/v1/topics/big/export")
        wire.getresponse().read(1_000)
        wire.close()
        deadline = time.monotonic() + 30
        while server.app.under_way and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server.app.under_way
    assert 0 < sum(made) < 200_000


def test_a_socket_takes_a_filter_too(house: House) -> None:
    from websockets.sync.client import connect

    house.append("t", {"value": {"n": 1}}, {"value": {"n": 2}})
    with connect(house.url.replace("http", "ws") + "/v1/ws") as socket:
        asked = {"op": "subscribe", "topic": "t", "start": "earliest", "where": "json.n == 2"}
        socket.send(msgspec.json.encode(asked).decode())
        while (told := msgspec.json.decode(socket.recv(30)))["op"] != "record":
            pass
    assert [each["offset"] for each in told["records"]] == [1]


# ---- leases ----------------------------------------------------------------------------------


def test_jobs_that_somebody_holds_are_listed_and_can_be_taken_back(house: House) -> None:
    house.do("PUT", "/v1/queues/q", {"lease": "60s", "max_deliveries": 1})
    house.do(
        "POST", "/v1/queues/q/jobs", {"jobs": [{"value": "a"}, {"value": "b"}, {"value": "c"}]}
    )
    claimed = house.do("POST", "/v1/queues/q/claim", {"max": 3})["jobs"]
    told = house.do("GET", "/v1/queues/q/leases")
    assert told["count"] == 3
    assert [each["value"] for each in told["jobs"]] == ["a", "b", "c"]
    assert all(0 < each["seconds_left"] <= 60 and each["deliveries"] == 1 for each in told["jobs"])
    assert all("token" not in each for each in told["jobs"])
    place = [{"shard": each["shard"], "offset": each["offset"]} for each in claimed]
    assert house.do("POST", "/v1/queues/q/leases/release", {"jobs": [place[0]]})["done"] == 1
    nacked = house.do("POST", "/v1/queues/q/leases/nack", {"jobs": [place[1]], "reason": "stuck"})
    assert nacked["done"] == 1
    state = house.do("GET", "/v1/queues/q")
    assert (state["ready"], state["leased"]) == (1, 1)
    assert house.do("GET", "/v1/queues/q/dead")["jobs"][0]["reason"] == "stuck"
    late = house.client.call("POST", "/v1/queues/q/ack", {"jobs": [
        {key: claimed[0][key] for key in ("shard", "offset", "token")}
    ]})  # fmt: skip
    assert (late.status, late.code) == (409, "stale_lease")
    assert house.do("POST", "/v1/queues/q/leases/release", {"jobs": [place[0]]})["done"] == 0


def test_jobs_that_wait_are_listed_by_when_their_time_comes(house: House) -> None:
    house.do("PUT", "/v1/queues/q", {})
    for value, delay in (("late", "2h"), ("now", "0"), ("soon", "1h")):
        house.do("POST", "/v1/queues/q/jobs", {"jobs": [{"value": value}], "delay": delay})
    told = house.do("GET", "/v1/queues/q/delayed")  # before anybody has claimed
    assert (told["count"], [each["value"] for each in told["jobs"]]) == (2, ["soon", "late"])
    assert 3500 < told["jobs"][0]["seconds_left"] <= 3600
    (job,) = house.do("POST", "/v1/queues/q/claim", {"max": 9})["jobs"]
    failed = [{key: job[key] for key in ("shard", "offset", "token")}]
    house.do("POST", "/v1/queues/q/nack", {"jobs": failed, "delay": "90m"})
    told = house.do("GET", "/v1/queues/q/delayed?limit=2")  # and behind a claim, and a nack
    assert (told["count"], [each["value"] for each in told["jobs"]]) == (3, ["soon", "now"])
    assert house.do("GET", "/v1/queues/q")["delayed"] == 3
