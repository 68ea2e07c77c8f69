"""What the server tells of itself: metrics for Prometheus, readiness, the state of a topic."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import esker
from esker.engine.progress import Progress
from esker.errors import StorageError
from esker.server import gauges, metrics, probes
from esker.server.access import keyfile
from esker.server.app import App
from esker.server.http.faults import Fault
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.asgi import call
from tests.server.conftest import Client
from tests.server.streams import Events
from tests.server.test_watch import until


def families(client: Client) -> dict[str, Any]:
    answer = client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {each.name: each for each in text_string_to_metric_families(answer.body.decode())}


def test_metrics_are_what_prometheus_reads(server: Server, client: Client) -> None:
    client.call("PUT", "/v1/topics/wide", {"shards": 2})
    client.append("t", "a", "b", "c")
    with Events(server.url, "/v1/watch?topics=t&start=earliest") as events:
        events.values(3)
        found = families(client)
    streams = {each.labels["kind"]: each.value for each in found["esker_streams"].samples}
    assert streams == {"sse": 1, "websocket": 0}
    assert found["esker_streams_under_way"].samples[0].value == 1
    ends = {
        (each.labels["topic"], each.labels["shard"]): each.value
        for each in found["esker_topic_end_offset"].samples
    }
    assert ends == {("t", "0"): 3, ("wide", "0"): 0, ("wide", "1"): 0}
    (records,) = (
        each.value for each in found["esker_topic_records"].samples if each.labels["topic"] == "t"
    )
    assert records == 3
    assert found["esker_delivered_records"].samples[0].value == 3
    assert 0 <= found["esker_pressure_ratio"].samples[0].value <= 1
    assert len(found["esker_ready_topics"].samples) == 5
    assert found["esker_topics_truncated"].samples[0].value == 0
    assert found["esker_topics"].samples[0].value == 2
    for name, each in found.items():
        assert each.documentation
        assert each.type in ("gauge", "counter", "histogram")
        assert not name.endswith(("_ms", "_us", "_kb"))


def test_there_are_never_more_lines_than_a_bound(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "LINES_MAX", 3)
    for number in range(5):
        client.append(f"t{number}", "a")
    found = families(client)
    assert len(found["esker_topic_end_offset"].samples) == 3
    assert found["esker_topics_truncated"].samples[0].value == 2


def test_labels_are_escaped() -> None:
    text = metrics.Text()
    text.add("m", "gauge", "says", [({"x": 'a"b\\c\nd'}, 1.5)])
    (family,) = text_string_to_metric_families(text.encoded().decode())
    assert family.samples[0].labels == {"x": 'a"b\\c\nd'}
    assert family.samples[0].value == 1.5


def samples(found: dict[str, Any], name: str, *labels: str) -> dict[Any, float]:
    """The values of a metric, by some of their labels."""
    return {tuple(each.labels[label] for label in labels): each.value
            for each in found[name].samples}  # fmt: skip


def test_syncs_are_counted_by_how_long_they_took(client: Client) -> None:
    client.call("PUT", "/v1/topics/t", {"durability": "fsync"})
    before = families(client)["esker_sync_seconds"]
    for _ in range(5):
        client.append("t", "x")
    found = families(client)["esker_sync_seconds"]
    assert found.type == "histogram"

    def of(family: Any, what: str) -> list[float]:
        return [each.value for each in family.samples if each.name.endswith(what)]

    assert of(found, "_count")[0] - of(before, "_count")[0] >= 5
    assert of(found, "_sum")[0] > of(before, "_sum")[0]
    buckets = of(found, "_bucket")
    assert buckets == sorted(buckets)
    assert buckets[-1] == of(found, "_count")[0]
    assert [each.labels["le"] for each in found.samples if "le" in each.labels][-1] == "+Inf"


def test_groups_and_queues_tell_how_far_behind_they_are(client: Client) -> None:
    client.append("t", *"abcde")
    client.call("PUT", "/v1/topics/t/groups/g", {"start": "earliest"})
    client.call("PUT", "/v1/queues/q", {"max_deliveries": 1})
    jobs = [{"value": text} for text in "abcd"]
    client.call("POST", "/v1/queues/q/jobs", {"jobs": jobs[:2], "delay": "1h"})
    client.call("POST", "/v1/queues/q/jobs", {"jobs": jobs})
    given = client.call("POST", "/v1/queues/q/claim", {"max": 2}).json()["jobs"]
    told = {name: given[0][name] for name in ("shard", "offset", "token")}
    client.call("POST", "/v1/queues/q/nack", {"jobs": [told]})  # it had its one delivery
    until(lambda: samples(families(client), "esker_queue_jobs", "queue", "state")["q", "dead"])
    found = families(client)
    lag = samples(found, "esker_group_lag_records", "topic", "group")
    assert lag == {("t", "g"): 5}
    assert samples(found, "esker_group_lag_seconds", "group")[("g",)] > 0
    states = samples(found, "esker_queue_jobs", "state")
    assert states == {
        ("ready",): 2, ("leased",): 1, ("delayed",): 2, ("parked",): 0, ("dead",): 1,
    }  # fmt: skip
    assert found["esker_unreadable_topics"].samples[0].value == 0


def test_groups_and_queues_are_bounded_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.append("t", "a")
    for name in "abcd":
        client.call("PUT", f"/v1/topics/t/groups/{name}", {})
    for name in "wxyz":
        client.call("PUT", f"/v1/queues/{name}", {})
    monkeypatch.setattr(gauges, "LINES_MAX", 5)
    found = families(client)
    assert len(found["esker_group_lag_records"].samples) == 4
    monkeypatch.setattr(gauges, "LINES_MAX", 3)
    found = families(client)
    assert len(found["esker_group_lag_records"].samples) == 3
    assert found["esker_groups_truncated"].samples[0].value == 1
    assert len(samples(found, "esker_queue_jobs", "queue")) == 2  # of three topics that are shown
    assert found["esker_topics_truncated"].samples[0].value == 2


def test_what_is_hot_cold_and_evicted_is_told(tmp_path: Path) -> None:
    settings = Settings(port=0, cold=str(tmp_path / "cold"))
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        store = server.app.store._store
        store.create("t", segment_bytes="64KiB", hot_bytes="64KiB")
        for _ in range(40):
            store["t"].append_many([b"x" * 1_000] * 10)
        store.sync()
        until(lambda: samples(families(client), "esker_topic_cold_bytes", "topic")[("t",)] > 0)
        found = families(client)
        assert samples(found, "esker_topic_hot_bytes", "topic")[("t",)] > 0
        assert samples(found, "esker_topic_evicted_records", "topic")[("t",)] == 0
        client.call("PATCH", "/v1/topics/t", {"cap_records": 50})
        until(lambda: samples(families(client), "esker_topic_evicted_records", "topic")[("t",)] > 0)
        client.close()


# ---- readiness -------------------------------------------------------------------------------


def test_a_store_that_is_recovered_tells_how_far_it_is(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        store.create("t", shards=3)
        for number in range(20):
            store["t"].append(b"x", key=str(number).encode())
        store.flush()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")  # as a crash would leave it
    told: list[Progress] = []
    with esker.open(tmp_path / "copy", progress=told.append):
        pass
    assert [(each.done, each.total) for each in told] == [(n, 3) for n in (1, 2, 3)]
    app = App(None)
    for each, share in zip(told, (1 / 3, 2 / 3, 1.0), strict=True):
        app.recovering(each)
        with pytest.raises(Fault) as refused:
            _ = app.store
        assert refused.value.status == 503
        assert refused.value.detail == {"replay_progress": share, "shards": each.done, "of": 3}


def test_a_server_tells_of_itself_while_its_store_is_recovered() -> None:
    async def story() -> dict[str, float]:
        app = App(None)
        app.recovering(Progress("recovery", 1, 4, "shards", 0.0))
        assert (await call(app, "GET", "/v1/topics")).code == "not_ready"
        answer = await call(app, "GET", "/metrics")
        assert answer.status == 200
        found = text_string_to_metric_families(answer.body.decode())
        return {each.name: each.samples[0].value for each in found}

    told = asyncio.run(story())
    assert (told["esker_ready"], told["esker_replay_progress_ratio"]) == (0, 0.25)
    assert told["esker_http_requests"] == 2
    assert "esker_topics" not in told


def test_keys_that_could_not_be_read_again_are_seen_from_outside(tmp_path: Path) -> None:
    keys = tmp_path / "esker.keys"
    _, text = keyfile.new(keys, ["read", "admin"])
    good = keys.read_bytes()
    with serving(tmp_path / "data", Settings(port=0, keys=str(keys))) as server:
        client = Client(server)

        def stale() -> float:
            answer = client.get("/metrics", Authorization=f"Bearer {text}")
            parsed = text_string_to_metric_families(answer.body.decode())
            return {each.name: each for each in parsed}["esker_keys_stale"].samples[0].value

        assert client.get("/readyz").json()["warnings"] == []
        assert stale() == 0
        keys.write_bytes(good[:-10])
        until(lambda: client.get("/readyz").json()["warnings"])
        (warning,) = client.get("/readyz").json()["warnings"]
        assert "former keys stay in force" in warning
        assert str(tmp_path) not in warning
        assert stale() == 1  # and the key is good still
        keys.write_bytes(good)
        until(lambda: client.get("/readyz").json()["warnings"] == [])
        assert stale() == 0
        client.close()


def test_the_state_of_a_topic_has_its_priority(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, priorities=("low.*=-200",))) as server:
        client = Client(server)
        for name in ("low.a", "t"):
            client.append(name, "x")
        state = client.get("/v1/topics/low.a").json()
        assert (state["priority"], state["effective_priority"]) == (-200, -200)
        state = client.get("/v1/topics/t").json()
        assert (state["priority"], state["effective_priority"]) == (None, 0)
        with Events(server.url, "/v1/watch?topics=t"):
            assert client.get("/v1/topics/t").json()["effective_priority"] > 400
        client.close()


def test_every_stage_of_a_record_has_a_budget_and_is_measured(
    server: Server, client: Client
) -> None:
    client.append("t", "first")
    body = {"records": [{"value": "x"}]}
    with Events(server.url, "/v1/watch?topics=t") as events:
        events.next("caught-up")
        for _ in range(3):
            told = client.call("POST", "/v1/topics/t/records?performance=true", body).json()
            events.next("record")
        found = families(client)
    times = told["performance"]
    assert 0 < times["parse"] + times["append"] <= times["total"]
    budget = samples(found, "esker_stage_budget_seconds", "stage")
    counts = {
        (each.labels["stage"],): each.value
        for each in found["esker_stage_seconds"].samples
        if each.name.endswith("_count")
    }
    sums = {
        (each.labels["stage"],): each.value
        for each in found["esker_stage_seconds"].samples
        if each.name.endswith("_sum")
    }
    assert counts.keys() == sums.keys() == budget.keys()
    assert all(count >= 3 for count in counts.values()), counts
    assert all(each > 0 for each in sums.values()), sums
    assert all(each > 0 for each in budget.values())


def test_whoever_asks_whether_it_is_ready_is_told_of_a_disk_in_trouble(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", "a")
    assert client.get("/readyz").json() == {"status": "ready", "topics": 1, "warnings": []}
    monkeypatch.setattr(probes, "free_bytes", lambda path: 40_000)
    (warning,) = client.get("/readyz").json()["warnings"]
    assert "the disk is full, or all but: 39 KiB are left" in warning
    shard = server.app.store._store["t"]._shards[0]
    shard.poison = StorageError("a sync failed")
    told = client.get("/readyz").json()["warnings"]
    assert ["a sync failed" in each for each in told] == [True, False]
    shard.poison = None
