"""Groups over HTTP: what a member is given, gives back, and loses."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import esker
from esker.server import members
from esker.server.members import Members
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.helpers import HandClock
from tests.server.conftest import Answer, Client

ARROW = "application/vnd.apache.arrow.stream"
AT = "/v1/topics/t/groups/g"


def post(client: Client, verb: str, **body: Any) -> Answer:
    return client.call("POST", f"{AT}/{verb}", body)


def polled(client: Client, **body: Any) -> Any:
    answer = post(client, "poll", **body)
    assert answer.status == 200, answer.body
    return answer.json()


def back(batch: dict[str, Any]) -> dict[str, Any]:
    """What an ack of a batch says."""
    return {name: batch[name] for name in ("shard", "generation", "first", "next")}


def values(page: Any) -> list[str]:
    return [record["value"] for record in page["records"]]


@pytest.fixture
def group(client: Client) -> Client:
    client.append("t", *map(str, range(10)))
    assert client.call("PUT", AT, {}).status == 201
    return client


def test_a_group_is_made_once_and_begins_where_it_is_told(client: Client) -> None:
    client.append("t", "a", "b", "c")
    first = client.call("PUT", AT, {"start": -1})
    assert first.status == 201
    again = client.call("PUT", AT, {"start": "earliest"})
    assert (again.status, again.json()["shards"][0]["cursor"]) == (200, 2)
    assert values(polled(client)) == ["c"]
    assert client.call("PUT", "/v1/topics/none/groups/g", {}).code == "topic_not_found"
    assert client.call("PUT", AT, {"start": "sometimes"}).code == "invalid_position"


def test_what_is_not_acked_comes_again_and_what_is_acked_does_not(group: Client) -> None:
    page = polled(group, max_records=4)
    assert values(page) == ["0", "1", "2", "3"]
    assert values(polled(group, max_records=4)) == values(page), "an answer may be lost on its way"
    ahead = polled(group, max_records=4, ahead=True)
    assert values(ahead) == ["4", "5", "6", "7"]
    answer = post(group, "ack", acks=[back(page["batches"][0])])
    assert answer.json() == {
        "topic": "t", "group": "g", "acked": 1, "cursors": [{"shard": 0, "cursor": 4}],
    }  # fmt: skip
    assert values(polled(group)) == ["4", "5", "6", "7", "8", "9"]


def test_an_ack_out_of_order_counts_when_the_hole_is_filled(group: Client) -> None:
    one, two = (polled(group, max_records=3, ahead=True)["batches"][0] for _ in range(2))
    assert post(group, "ack", acks=[back(two)]).json()["cursors"] == [{"shard": 0, "cursor": 0}]
    assert post(group, "ack", acks=[back(one)]).json()["cursors"] == [{"shard": 0, "cursor": 6}]
    missing = {**back(two), "first": 6, "next": 9}
    answer = post(group, "ack", acks=[missing])
    assert (answer.status, answer.code) == (400, "invalid_option"), "it was never delivered"
    wrong = {**back(two), "first": 6, "next": 5}
    assert post(group, "ack", acks=[wrong]).code == "invalid_option"


def test_without_first_an_ack_is_of_all_that_was_delivered_before(group: Client) -> None:
    batch = polled(group)["batches"][0]
    ack = {"shard": 0, "generation": batch["generation"], "next": 7}
    answer = post(group, "ack", acks=[ack], sync=True)
    assert answer.json()["cursors"] == [{"shard": 0, "cursor": 7}]
    assert post(group, "ack", acks=[{**ack, "next": 3}]).status == 200, "it has counted already"
    assert values(polled(group)) == ["7", "8", "9"]


def test_a_poll_comes_as_arrow_with_what_an_ack_needs(group: Client) -> None:
    answer = group.call("POST", f"{AT}/poll", {}, {"Accept": ARROW})
    with pa.ipc.open_stream(answer.body) as reader:
        assert reader.read_all()["value"].to_pylist() == [b"%d" % n for n in range(10)]
    (batch,) = msgspec.json.decode(answer.headers["esker-batches"])
    assert post(group, "ack", acks=[back(batch)]).json()["cursors"][0]["cursor"] == 10


def test_who_waits_is_woken_by_a_record(group: Client) -> None:
    post(group, "ack", acks=[back(polled(group)["batches"][0])])
    other = Client(group.server)

    def later() -> None:
        time.sleep(0.2)
        other.append("t", "new")

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    assert values(polled(group, wait=20)) == ["new"]
    assert 0.1 < time.monotonic() - began < 5
    thread.join()
    other.close()
    assert post(group, "poll", wait=31).code == "invalid_request"


def test_a_seek_says_what_it_would_do_and_fences_what_was_delivered(group: Client) -> None:
    batch = polled(group)["batches"][0]
    dry = post(group, "seek", to=8, dry_run=True).json()
    assert dry == {
        "dry_run": True,
        "moves": [{"topic": "t", "shard": 0, "before": 0, "after": 8, "records": -8}],
    }
    assert group.get(AT).json()["shards"][0]["cursor"] == 0
    assert post(group, "seek", to=8).json()["moves"][0]["after"] == 8
    answer = post(group, "ack", acks=[back(batch)])
    assert (answer.status, answer.code) == (409, "fenced")
    detail = answer.json()["error"]["detail"]
    assert detail == {"shards": [{"shard": 0, "generation": batch["generation"]}], "acked": 0}
    assert values(polled(group)) == ["8", "9"]
    late = post(group, "ack", acks=[back(batch)])
    assert late.code == "fenced", "it was delivered under another generation"
    assert post(group, "seek", to="@-1h").status == 200
    assert len(values(polled(group))) == 10


def test_a_group_that_is_paused_delivers_nothing(group: Client) -> None:
    assert post(group, "pause").json() == {"paused": True}
    assert values(polled(group)) == []
    assert group.get(AT).json()["paused"] is True
    assert post(group, "resume").json() == {"paused": False}
    assert len(values(polled(group))) == 10


def test_lag_is_told_in_records_seconds_and_time_to_catch_up(group: Client) -> None:
    state = group.get(AT).json()
    assert (state["records"], state["members"], state["eta_seconds"]) == (10, 0, None)
    assert state["seconds"] >= 0
    batch = polled(group, max_records=4)["batches"][0]
    post(group, "ack", acks=[back(batch)], sync=True)
    state = group.get(AT).json()
    assert (state["records"], state["members"]) == (6, 1)
    assert state["eta_seconds"] > 0
    assert state["shards"][0]["owned"] is True
    (listed,) = group.get("/v1/groups").json()["groups"]
    assert (listed["topic"], listed["group"], listed["records"]) == ("t", "g", 6)
    assert group.get("/v1/groups?topic=none").code == "topic_not_found"
    assert group.get("/v1/groups?topic=t").json()["groups"][0]["group"] == "g"


def test_what_is_remembered_of_looks_is_bounded_however_many_look_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "RATES_MAX", 8)
    one, failures = Members(10, 60.0), []

    def look(mine: int) -> None:
        try:
            for number in range(3_000):
                one.rates(store, f"t{mine}", f"g{number}")
        except Exception as problem:
            failures.append(problem)

    kept = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with esker.open(":memory:") as store:
            threads = [threading.Thread(target=look, args=(mine,)) for mine in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            first = one.rates(store, "t", "g")
            assert one.rates(store, "t", "g") is first
    finally:
        sys.setswitchinterval(kept)
    assert not failures
    assert len(one._rates) == 8


def test_a_group_that_nobody_made_is_not_there(client: Client) -> None:
    client.append("t", "x")
    for verb, body in (
        ("poll", {}), ("seek", {"to": 0}), ("pause", {}), ("resume", {}),
        ("ack", {"acks": [{"shard": 0, "generation": 1, "next": 1}]}),
    ):  # fmt: skip
        assert post(client, verb, **body).code == "group_not_found", verb
    assert client.get(AT).code == "group_not_found"
    assert client.call("DELETE", AT).code == "group_not_found"
    assert client.get("/v1/groups").json() == {"groups": []}


def test_a_group_is_forgotten_when_nobody_reads_in_it(group: Client) -> None:
    polled(group)
    answer = group.call("DELETE", AT)
    assert (answer.status, answer.code) == (409, "member_busy")
    assert str(os.getpid()) not in answer.body.decode()  # the server's, where nobody can end it
    assert "leave" in answer.json()["error"]["message"]
    assert post(group, "leave").json() == {"left": True}
    assert post(group, "leave").json() == {"left": False}
    assert group.call("DELETE", AT).status == 200
    assert post(group, "poll").code == "group_not_found"


def test_members_share_the_shards_and_who_leaves_gives_them_back(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"shards": 4})
    records = [{"value": str(n), "key": f"k{n}"} for n in range(40)]
    client.call("POST", "/v1/topics/t/records", {"records": records})
    client.call("PUT", AT, {})
    for _ in range(3):  # a newcomer is seen with the next poll of the others
        for member in "ab":
            page = polled(client, member=member)
            if page["batches"]:
                acks = [back(each) for each in page["batches"]]
                assert post(client, "ack", member=member, acks=acks, sync=True).status == 200
    held = client.get(AT).json()
    assert (held["members"], held["records"]) == (2, 0)
    client.call("POST", "/v1/topics/t/records", {"records": records})
    a, b = (polled(client, member=member) for member in "ab")
    shards = [{batch["shard"] for batch in page["batches"]} for page in (a, b)]
    assert not shards[0] & shards[1]
    assert len(shards[0] | shards[1]) == 4
    post(client, "leave", member="a")
    deadline = time.monotonic() + 20
    found: set[str] = set()
    while len(found) < 40 and time.monotonic() < deadline:
        found |= set(values(polled(client, member="b")))
    assert found == {str(n) for n in range(40)}


def test_two_calls_at_once_of_one_member_are_told_apart(group: Client) -> None:
    post(group, "ack", acks=[back(polled(group)["batches"][0])])
    other = Client(group.server)
    thread = threading.Thread(target=lambda: polled(other, wait=1))
    thread.start()
    time.sleep(0.3)
    answer = post(group, "poll")
    assert (answer.status, answer.code) == (409, "member_busy")
    thread.join()
    other.close()
    assert post(group, "poll").status == 200


def test_a_client_that_goes_while_it_waits_leaves_its_member_free(group: Client) -> None:
    post(group, "ack", acks=[back(polled(group)["batches"][0])])
    other = Client(group.server)
    other._connection.request(
        "POST", f"{AT}/poll", b'{"wait": 20}', {"Content-Type": "application/json"}
    )
    time.sleep(0.2)
    other.close()
    deadline = time.monotonic() + 5
    while post(group, "poll").status == 409 and time.monotonic() < deadline:
        time.sleep(0.02)
    group.append("t", "new")
    assert values(polled(group, wait=5)) == ["new"]


# ---- the session -----------------------------------------------------------------------------


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def timed(tmp_path: Path, clock: HandClock) -> Iterator[Server]:
    settings = Settings(port=0, members=2, session_seconds=30.0)
    with serving(tmp_path / "data", settings, clock=clock) as server:
        yield server


def test_who_is_not_heard_of_for_its_session_loses_its_shards(
    timed: Server, clock: HandClock
) -> None:
    client = Client(timed)
    client.append("t", "a", "b")
    client.call("PUT", AT, {})
    batch = polled(client, member="gone")["batches"][0]
    assert values(polled(client, member="other")) == [], "there is one shard, and it is held"
    clock.forward(29)
    polled(client, member="other")
    assert len(timed.app.rooms.members) == 2
    clock.forward(2)
    assert values(polled(client, member="other")) == ["a", "b"]
    assert len(timed.app.rooms.members) == 1
    answer = post(client, "ack", member="gone", acks=[back(batch)])
    assert (answer.status, answer.code) == (409, "fenced")
    client.close()


def test_there_are_so_many_members_and_no_more(timed: Server, clock: HandClock) -> None:
    client = Client(timed)
    client.append("t", "a")
    client.call("PUT", AT, {})
    for member in "ab":
        polled(client, member=member)
    answer = post(client, "poll", member="c")
    assert (answer.status, answer.code) == (429, "throttled")
    assert answer.headers["retry-after"] == "30"
    clock.forward(31)
    assert post(client, "poll", member="c").status == 200
    assert post(client, "poll", member="c", session=5).code == "invalid_option"
    client.close()


def test_a_session_can_be_shorter_for_one_member(timed: Server, clock: HandClock) -> None:
    client = Client(timed)
    client.append("t", "a")
    client.call("PUT", AT, {})
    polled(client, member="short", session=2)
    clock.forward(3)
    assert values(polled(client, member="other")) == ["a"]
    client.close()


def test_what_was_evicted_is_told_as_a_gap(client: Client) -> None:
    client.call(
        "PUT",
        "/v1/topics/t",
        {"cap_records": 10, "segment_records": 5, "protect_unconsumed": False},
    )
    client.append("t", *map(str, range(5)))
    client.call("PUT", AT, {})
    for n in range(1, 6):
        client.append("t", *[str(n * 5 + each) for each in range(5)])
    client.server.app.store._store.retain()
    page = polled(client)
    (gap,) = page["gaps"]
    assert (gap["first"], gap["reason"]) == (0, "evicted")
    assert page["records"][0]["offset"] == gap["last"] + 1
    post(client, "ack", acks=[back(each) for each in page["batches"]], sync=True)
    assert client.get(AT).json()["records"] == 0


# ---- producers -------------------------------------------------------------------------------


def test_a_number_that_was_used_is_appended_once(client: Client) -> None:
    at, body = "/v1/topics/t/records", {"records": [{"value": "a"}, {"value": "b"}]}
    who = {"Esker-Producer": "sensor-7", "Esker-Sequence": "0"}
    first = client.call("POST", at, body, who).json()
    again = client.call("POST", at, body, who).json()
    assert first["spans"] == again["spans"]
    told = client.call("POST", at, {**body, "producer": "sensor-7", "sequence": 1})
    assert told.json()["spans"] == [{"shard": 0, "first": 2, "count": 2}]
    state = client.get("/v1/topics/t/producers/sensor-7").json()
    assert state == {"topic": "t", "producer": "sensor-7", "last": 1}
    assert client.get("/v1/topics/t/producers/other").json()["last"] == -1
    assert client.get("/v1/topics/none/producers/other").code == "topic_not_found"
    gap = client.call("POST", at, body, {**who, "Esker-Sequence": "5"})
    assert (gap.status, gap.code) == (409, "sequence_gap")
    assert gap.json()["error"]["detail"] == {"expected": 2}
    assert client.get("/v1/topics/t").json()["count"] == 4


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({"Esker-Producer": "p"}, {}),
        ({"Esker-Sequence": "1"}, {}),
        ({"Esker-Producer": "p", "Esker-Sequence": "-1"}, {}),
        ({"Esker-Producer": "p", "Esker-Sequence": "0"}, {"producer": "q", "sequence": 0}),
        ({"Esker-Producer": "p", "Esker-Sequence": "0", "Idempotency-Key": "k"}, {}),
        ({}, {"producer": "p"}),
    ],
)
def test_a_producer_that_is_not_whole_is_refused(
    client: Client, headers: dict[str, str], more: dict[str, Any]
) -> None:
    body = {"records": [{"value": "a"}], **more}
    answer = client.call("POST", "/v1/topics/t/records", body, headers)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert client.get("/v1/topics/t").status == 404
