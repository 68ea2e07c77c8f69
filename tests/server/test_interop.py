"""What others send as their documentation says: CloudEvents by their SDK, logs by an exporter."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cloudevents.core.bindings import http as binding
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as service
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import LogRecordExportResult, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource

import esker
from esker.engine.shard import Shard
from esker.scheduler.governor import Governor
from esker.server import otlp
from tests.server.conftest import Answer, Client
from tests.server.test_stages import ARROW, stream

RECORDS = "/v1/topics/t/records"
BATCH = "application/cloudevents-batch+json"
FORMAT = JSONFormat()
WHEN = datetime(2026, 11, 18, 4, 5, 6, 789_012, tzinfo=timezone(timedelta(hours=2)))


def events(client: Client) -> list[Any]:
    """What is read back, through the SDK."""
    answer = client.get(RECORDS, Accept=BATCH)
    assert (answer.status, answer.headers["content-type"]) == (200, BATCH), answer.body
    return [FORMAT.read(CloudEvent, msgspec.json.encode(each)) for each in answer.json()]


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    needed = {"id": "7", "source": "/sensors/7", "type": "com.example.seen", "time": WHEN}
    return CloudEvent({**needed, **attributes}, data)


def same(first: Any, second: Any) -> bool:
    one, two = first.get_attributes(), second.get_attributes()
    return {k: v for k, v in one.items() if v is not None} == two and (
        first.get_data() == second.get_data()
    )


CASES = {
    "json": event({"temperature": 21.5}, datacontenttype="application/json"),
    "json without a type": event({"temperature": 21.5}),
    "a kind of json": event({"a": [1]}, datacontenttype="application/problem+json"),
    "text": event("grüße", datacontenttype="text/plain"),
    "bytes": event(b"\xff\x00", datacontenttype="application/octet-stream"),
    "nothing": event(),
    "extensions": event(
        "x", datacontenttype="text/plain", subject="a b/ü", dataschema="http://example.com/s",
        partitionkey="k-1", traceparent='00-"%-01',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name != "bytes"])
def test_an_event_in_structured_mode_comes_back_as_it_went(client: Client, name: str) -> None:
    message = binding.to_structured_event(CASES[name])
    answer = client.call("POST", RECORDS, message.body, message.headers)
    assert answer.status == 200, answer.body
    (found,) = events(client)
    assert same(CASES[name], found)


@pytest.mark.parametrize("name", list(CASES))
def test_an_event_in_binary_mode_comes_back_as_it_went(client: Client, name: str) -> None:
    message = binding.to_binary_event(CASES[name])
    assert "ce-id" in message.headers
    answer = client.call("POST", RECORDS, message.body, message.headers)
    assert answer.status == 200, answer.body
    (found,) = events(client)
    assert same(CASES[name], found)


def test_a_batch_of_events_is_appended_as_one(client: Client) -> None:
    several = [event({"n": n}, id=str(n)) for n in range(3)]
    body = b"[" + b",".join(FORMAT.write(each) for each in several) + b"]"
    answer = client.call("POST", RECORDS, body, {"Content-Type": f"{BATCH}; charset=utf-8"})
    assert answer.json()["spans"] == [{"shard": 0, "first": 0, "count": 3}]
    assert [found.get_id() for found in events(client)] == ["0", "1", "2"]
    assert client.call("POST", RECORDS, b"[]", {"Content-Type": BATCH}).json()["count"] == 0
    bad = b"[" + FORMAT.write(several[0]) + b', {"id": "x"}]'
    assert client.call("POST", RECORDS, bad, {"Content-Type": BATCH}).code == "invalid_record"
    assert client.get("/v1/topics/t").json()["count"] == 3, "all or none"


def test_an_event_is_a_record_that_others_can_read(client: Client) -> None:
    message = binding.to_binary_event(CASES["extensions"])
    client.call("POST", RECORDS, message.body, message.headers)
    (record,) = client.get(RECORDS).json()["records"]
    assert (record["value"], record["tag"], record["key"]) == ("x", "com.example.seen", "k-1")
    assert record["timestamp"] == (WHEN - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )
    assert record["headers"] == {
        "ce-specversion": "1.0", "ce-id": "7", "ce-source": "/sensors/7", "ce-subject": "a b/ü",
        "ce-dataschema": "http://example.com/s", "ce-traceparent": '00-"%-01',
        "ce-time": "2026-11-18T04:05:06.789012+02:00", "content-type": "text/plain",
    }  # fmt: skip


def test_text_that_was_not_encoded_as_it_should_be_loses_nothing(client: Client) -> None:
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    odd = {"ce-latin": "ü", "ce-wrong": "%ff%20", "ce-utf": "ü".encode().decode("latin-1")}
    assert client.call("POST", RECORDS, b"x", {**event, **odd}).status == 200
    (record,) = client.get(RECORDS).json()["records"]
    found = [record["headers"][name] for name in ("ce-latin", "ce-wrong", "ce-utf")]
    assert found == ["ü", "%ff%20", "ü"]


def test_two_events_of_one_id_are_two_unless_a_key_says_otherwise(client: Client) -> None:
    message = binding.to_structured_event(CASES["json"])
    for _ in range(2):
        client.call("POST", RECORDS, message.body, message.headers)
    keyed = {**message.headers, "Idempotency-Key": "/sensors/7 7"}
    for _ in range(2):
        client.call("POST", RECORDS, message.body, keyed)
    assert len(events(client)) == 3


def test_records_that_were_no_events_are_read_as_some(client: Client) -> None:
    records = [
        {"value": {"a": 1}, "tag": "seen", "timestamp": 0, "key": "k"},
        {"value": "plain", "timestamp": 1 << 60}, {"base64": "/w==", "timestamp": 1},
    ]  # fmt: skip
    client.call("POST", RECORDS, {"records": records})
    first, second, third = client.get(RECORDS, Accept=BATCH).json()
    assert first == {
        "specversion": "1.0", "id": "0-0", "source": "/v1/topics/t", "type": "seen",
        "time": "1970-01-01T00:00:00Z", "partitionkey": "k", "data": {"a": 1},
    }  # fmt: skip
    assert (second["type"], base64.b64decode(second["data_base64"])) == ("esker.record", b"plain")
    assert "time" not in second, "CloudEvents have no such year"
    assert third["data_base64"] == "/w=="


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": ""}, "invalid_record"), ({"type": None}, "invalid_record"),
        ({"specversion": "0.3"}, "invalid_record"), ({"time": "soon"}, "invalid_record"),
        ({"time": "2026-13-01T00:00:00Z"}, "invalid_record"), ({"Upper": "x"}, "invalid_record"),
        ({"ext": {"a": 1}}, "invalid_record"), ({"ext": 1.5}, "invalid_record"),
        ({"data": 1, "data_base64": "AA=="}, "invalid_record"),
        ({"data_base64": "!"}, "invalid_record"), ({"data_base64": 7}, "invalid_record"),
        ({"source": ["s"]}, "invalid_record"), ({"time": "2026-11-18"}, "invalid_record"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused(client: Client, change: Any, code: str) -> None:
    good = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    body = msgspec.json.encode({**good, **change})
    answer = client.call("POST", RECORDS, body, {"Content-Type": "application/cloudevents+json"})
    assert (answer.status, answer.code) == (400, code), answer.body
    assert client.get("/v1/topics/t").status == 404


def test_only_an_event_may_have_any_content_type(client: Client) -> None:
    plain = client.call("POST", RECORDS, b"x", {"Content-Type": "text/plain"})
    assert plain.status == 415
    half = client.call("POST", RECORDS, b"x", {"Content-Type": "text/plain", "ce-id": "1"})
    assert half.status == 415
    empty = {"Content-Type": "text/plain", "ce-specversion": "1.0"}
    assert client.call("POST", RECORDS, b"x", empty).code == "invalid_record"
    assert client.call("POST", "/v1/queues/q/jobs", b"{}", empty).status == 415


# ---- OpenTelemetry ---------------------------------------------------------------------------


class Exporting:
    """A program that logs, with the exporter as it comes."""

    def __init__(self, url: str, **options: Any) -> None:
        self.results: list[Any] = []
        self.exporter = OTLPLogExporter(f"{url}/otlp/v1/logs", **options)
        export = self.exporter.export

        def noted(batch: Any) -> Any:
            self.results.append(export(batch))
            return self.results[-1]

        self.exporter.export = noted  # type: ignore[method-assign]
        self.provider = LoggerProvider(Resource.create({"service.name": "shop", "n": 3}))
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self.exporter))
        self.logger = logging.Logger("checkout")
        self.logger.addHandler(LoggingHandler(logger_provider=self.provider))


@pytest.fixture
def program(client: Client) -> Iterator[Any]:
    made: list[Exporting] = []

    def start(**options: Any) -> Exporting:
        made.append(Exporting(client.url, **options))
        return made[-1]

    yield start
    for each in made:
        each.provider.shutdown()


def logs(client: Client, topic: str = "otlp.logs") -> list[Any]:
    answer = client.get(f"/v1/topics/{topic}/records?values=json")
    assert answer.status == 200, answer.body
    found: list[Any] = answer.json()["records"]
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stock_exporter_sends_its_logs(client: Client, program: Any) -> None:
    running = program()
    running.logger.warning("paid %s", 12, extra={"order": "o-1", "items": ["a", "b"]})
    running.logger.error("lost")
    assert running.results == [LogRecordExportResult.SUCCESS] * 2
    first, second = logs(client)
    assert (first["key"], first["tag"], second["tag"]) == ("shop", "WARN", "ERROR")
    value = first["value"]
    assert value["body"] == "paid 12"
    assert (value["attributes"]["order"], value["attributes"]["items"]) == ("o-1", ["a", "b"])
    assert (value["resource"]["service.name"], value["resource"]["n"]) == ("shop", 3)
    assert (value["scope"]["name"], value["severity_number"]) == ("checkout", 13)
    assert abs(first["timestamp"] / 1e6 - datetime.now(UTC).timestamp()) < 60


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exporter_may_name_a_topic_and_may_not_compress(client: Client, program: Any) -> None:
    program(headers={"Esker-Topic": "logs.shop"}).logger.warning("x")
    assert len(logs(client, "logs.shop")) == 1
    squeezed = program(compression=Compression.Gzip)
    squeezed.logger.warning("x")
    assert squeezed.results == [LogRecordExportResult.FAILURE]
    body = client.call(
        "POST", "/otlp/v1/logs", b"{}",
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    )  # fmt: skip
    assert body.status == 415


def sent(client: Client, *records: Any, **more: Any) -> Answer:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    scopes = [{"scope": {"name": "s"}, "logRecords": list(records)}]
    body = {"resourceLogs": [{"resource": resource, "scopeLogs": scopes, **more}]}
    return client.call("POST", "/otlp/v1/logs", body)


def test_logs_as_json_are_taken_as_their_specification_has_them(client: Client) -> None:
    record = {
        "timeUnixNano": "1544712660300000123", "observedTimeUnixNano": 1544712660400000000,
        "severityNumber": 10, "severityText": "Information", "traceId": "5B8EFFF798038103",
        "spanId": "EEE19B7EC3C1B174", "body": {"stringValue": "Example"}, "unknownField": 1,
        "attributes": [
            {"key": "b", "value": {"boolValue": True}}, {"key": "i", "value": {"intValue": "10"}},
            {"key": "d", "value": {"doubleValue": 1.5}}, {"key": "n", "value": {}},
            {"key": "y", "value": {"bytesValue": "/w=="}},
            {"key": "a", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}},
            {"key": "m", "value": {"kvlistValue": {"values": [
                {"key": "k", "value": {"intValue": 3}}]}}},
        ],
    }  # fmt: skip
    answer = sent(client, record, {"severityNumber": 17}, {})
    assert (answer.status, answer.json()) == (200, {})
    first, second, third = logs(client)
    assert first["timestamp"] == 1544712660300000
    assert (first["tag"], second["tag"], third.get("tag")) == ("INFORMATION", "ERROR", None)
    assert first["value"] == {
        "body": "Example", "severity_text": "Information", "severity_number": 10,
        "trace_id": "5B8EFFF798038103", "span_id": "EEE19B7EC3C1B174",
        "observed_timestamp": 1544712660400000, "resource": {"service.name": "shop"},
        "scope": {"name": "s"},
        "attributes": {"b": True, "i": 10, "d": 1.5, "n": None, "y": "/w==", "a": ["x"],
                       "m": {"k": 3}},
    }  # fmt: skip


def test_what_is_too_large_is_refused_alone_and_told(client: Client) -> None:
    client.call("PUT", "/v1/topics/otlp.logs", {"max_record_bytes": 1000})
    big = {"body": {"stringValue": "x" * 2000}}
    answer = sent(client, {"body": {"stringValue": "a"}}, big, {"body": {"stringValue": "b"}})
    assert answer.status == 200
    told = answer.json()["partialSuccess"]
    assert told["rejectedLogRecords"] == "1"
    assert "at most 1000" in told["errorMessage"]
    assert [each["value"]["body"] for each in logs(client)] == ["a", "b"]
    request = service.ExportLogsServiceRequest()
    log = request.resource_logs.add().scope_logs.add().log_records.add()
    log.body.string_value = "x" * 2000
    answer = client.call(
        "POST", "/otlp/v1/logs", request.SerializeToString(),
        {"Content-Type": "application/x-protobuf"},
    )  # fmt: skip
    assert answer.headers["content-type"] == "application/x-protobuf"
    found = service.ExportLogsServiceResponse.FromString(answer.body)
    assert found.partial_success.rejected_log_records == 1


def test_what_is_no_export_of_logs_is_refused(client: Client) -> None:
    for body, media in (
        (b"{", "application/json"), (b"[]", "application/json"),
        (b'{"resourceLogs": [{"scopeLogs": 1}]}', "application/json"),
        (b"\xff\xff", "application/x-protobuf"),
    ):  # fmt: skip
        answer = client.call("POST", "/otlp/v1/logs", body, {"Content-Type": media})
        assert (answer.status, answer.code) == (400, "invalid_request"), body
    for record in ({"timeUnixNano": "soon"}, {"timeUnixNano": -1}, {"body": {"intValue": "x"}}):
        assert sent(client, record).code == "invalid_record"
    deep: Any = {"stringValue": "x"}
    for _ in range(200):
        deep = {"arrayValue": {"values": [deep]}}
    assert sent(client, {"body": deep}).code == "invalid_request"  # deeper than any JSON may be
    assert client.get("/v1/topics/otlp.logs").status == 404


def test_without_protobuf_an_exporter_is_told_to_send_json(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(otlp, "import_module", missing)
    answer = client.call(
        "POST", "/otlp/v1/logs", b"", {"Content-Type": "application/x-protobuf"}
    )  # fmt: skip
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    assert sent(client, {}).status == 200


# ---- how long it took ------------------------------------------------------------------------


def test_an_answer_says_how_long_it_took_when_asked(client: Client) -> None:
    answer = client.call("POST", f"{RECORDS}?performance=true", {"records": [{"value": "x"}]})
    told = answer.json()["performance"]
    assert told.keys() == {"parse", "append", "total"}
    header = dict(each.split(";dur=") for each in answer.headers["server-timing"].split(", "))
    assert {name: float(took) for name, took in header.items()} == told
    assert int(answer.headers["content-length"]) == len(answer.body)
    page = client.get(f"{RECORDS}?performance=true").json()
    assert page["performance"].keys() == {"read", "total"}
    assert "performance" not in client.get(RECORDS).json()
    assert "performance" not in client.get(f"{RECORDS}?performance=false").json()
    refused = client.get("/v1/topics/none?performance=true").json()
    assert "total" in refused["performance"]
    empty = client.call("POST", "/otlp/v1/logs?performance=true", {}).json()
    assert empty.keys() == {"performance"}
    assert client.get(f"{RECORDS}?performance=maybe").code == "invalid_request"
    assert client.get("/openapi.json?performance=true").json()["openapi"] == "3.1.0"


def performance(client: Client, path: str, body: Any, headers: Any = None) -> dict[str, float]:
    answer = client.call(
        "POST", f"{path}{'&' if '?' in path else '?'}performance=true", body, headers
    )
    assert answer.status == 200, answer.body
    told: dict[str, float] = answer.json()["performance"]
    return told


TIMED: dict[str, tuple[str, Any]] = {
    "one": (RECORDS, {"records": [{"value": "x"}]}),
    "many": (RECORDS, {"records": [{"value": "x"}] * 2}),
    "Arrow": (RECORDS, stream(b"x")),
    "a key": (f"{RECORDS}?idempotency_key=k", {"records": [{"value": "x"}]}),
    "a producer": (f"{RECORDS}?producer=p&sequence=0", {"records": [{"value": "x"}]}),
    "logs": ("/otlp/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]}),
}


@pytest.mark.parametrize(("path", "body"), TIMED.values(), ids=TIMED)
def test_an_append_says_how_long_it_waited_for_the_disk(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    headers = ARROW if isinstance(body, bytes) else {}
    headers = {**headers, "Esker-Topic": "t"} if "otlp" in path else headers
    client.call("PUT", "/v1/topics/t", {"durability": "fsync"})
    sync = Shard.sync_directly

    def slowly(*given: Any) -> None:
        time.sleep(0.2)
        sync(*given)

    monkeypatch.setattr(Shard, "sync_directly", slowly)
    told = performance(client, path, body, headers)
    assert "throttle" not in told
    assert 200 <= told["sync"] <= told["append"] <= told["total"]
    assert told["append"] - told["sync"] < 200
    if path.startswith(RECORDS):
        unasked = performance(client, f"{RECORDS}?wait=false", {"records": [{"value": "y"}]})
        assert "sync" not in unasked, "who does not wait for it is told nothing of it"


def test_an_append_says_how_long_a_wider_commit_window_held_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Governor, "commit_window", 0.2)
    rounds = client.server.app.store._rounds
    deadline = time.monotonic() + 10
    while not rounds.window and time.monotonic() < deadline:
        time.sleep(0.01)
    one = {"records": [{"value": "x"}]}
    client.call("POST", RECORDS, one)
    told = performance(client, RECORDS, one)
    assert 190 <= told["throttle"] <= told["append"], "the loop may wake a little early"
    assert told["append"] - told["throttle"] < 190
    assert "throttle" not in performance(client, RECORDS, {"records": [{"value": "x"}] * 2})


def test_an_append_is_held_for_what_is_left_of_the_window(tmp_path: Path) -> None:
    async def main() -> None:
        async with esker.aopen(tmp_path / "data") as store:
            topic = store["t"]
            await topic.append(b"a", wait=True)
            store._commit_window(0.2)
            nothing = (None,) * 5
            first = asyncio.ensure_future(topic._append_timed(b"b", nothing, True))
            await asyncio.sleep(0.15)
            (_, late, _), (_, whole, _) = (
                await topic._append_timed(b"c", nothing, True),
                await first,
            )
            assert 0 < late < 0.15 < 0.19 <= whole

    asyncio.run(main())


def test_an_append_says_how_long_too_much_unwritten_held_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"records": [{"value": "x"}] * 2}
    client.call("POST", RECORDS, body)
    context = client.server.app.store._store._context
    wrote = context.committer.make_durable

    def slowly(*given: Any) -> Any:
        time.sleep(0.05)
        return wrote(*given)

    monkeypatch.setattr(context.committer, "make_durable", slowly)
    monkeypatch.setattr(type(context.gauge), "over", True)
    told = performance(client, RECORDS, body)
    assert 50 <= told["throttle"] <= told["append"]
    assert "sync" not in told
