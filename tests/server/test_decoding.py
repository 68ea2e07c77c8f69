"""Bodies on their way to records: what is counted before, and what is decoded in one go."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as service

from esker.errors import EskerError
from esker.records import Record
from esker.server import records
from esker.server.bodies import codec, wire
from esker.server.bodies.nesting import check_depth
from esker.server.http.call import AT_ONCE, decoded
from esker.server.http.faults import Fault
from esker.server.run import serving
from esker.server.settings import Settings
from tests.server.conftest import JSON, Client

EVENTS = {"Content-Type": "application/cloudevents-batch+json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
NDJSON = {"Content-Type": "application/x-ndjson"}
EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
RECORDS = "/v1/topics/t/records"
LOGS = "/otlp/v1/logs"


# ---- how many --------------------------------------------------------------------------------


def protobuf(count: int) -> bytes:
    """Logs in as many scopes."""
    request = service.ExportLogsServiceRequest()
    for number in range(count):
        log = request.resource_logs.add().scope_logs.add().log_records.add()
        log.time_unix_nano = number
    return bytes(request.SerializeToString())


def exported(count: int) -> Any:
    """Logs in two resources, in a scope of five and in scopes of one."""
    scopes = [{"logRecords": [{}]}] * (count - 5)
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [{}] * 5}]}, {"scopeLogs": scopes}]}


def test_records_of_others_count_as_any(tmp_path: Path) -> None:
    """CloudEvents, logs of OpenTelemetry, messages of durable streams."""
    odd: list[Any] = [None, 1.5, None, "", -7, [], {}, [[1, 2]], {"a": [1]}, True, "]"]
    odd[0] = msgspec.Raw(b"1" + b"0" * 5_000)
    with serving(tmp_path / "data", Settings(port=0, batch_records=10)) as server:
        client = Client(server)
        assert client.call("PUT", "/ds/d", b"", JSON).status == 201
        for count in (10, 11):
            mixed = b" ,\n".join(map(msgspec.json.encode, odd[:count]))
            cases: list[tuple[str, Any, dict[str, str]]] = [
                (RECORDS, [EVENT] * count, EVENTS), (LOGS, exported(count), JSON),
                (LOGS, protobuf(count), PROTOBUF), ("/ds/d", [9] * count, JSON),
                ("/ds/d", [{"a": [1, 2]}] * count, JSON),
                ("/ds/d", ['],"[', "{", "\U0001f600\\", *["x"] * (count - 3)], JSON),
                ("/ds/d", b" [ " + mixed + b" ] ", JSON),
            ]  # fmt: skip
            for path, body, headers in cases:
                data = body if isinstance(body, bytes) else msgspec.json.encode(body)
                answer = client.call("POST", path, data, headers)
                if count == 10:
                    assert answer.status < 300, (path, data, answer.body)
                else:
                    assert (answer.status, answer.code) == (400, "batch_too_large"), (path, data)
        wide = [{"a": list(range(100))}, "," * 100, [0] * 100]
        assert client.call("POST", "/ds/d", wide).status < 300, "commas within them do not count"
        found = client.get("/ds/d?offset=-1").body
        assert len(msgspec.json.decode(found, type=list[msgspec.Raw])) == 43
        one = [EVENT | {"data": [{}] * 100}]
        assert client.call("POST", RECORDS, msgspec.json.encode(one), EVENTS).status == 200
        client.close()


@pytest.mark.parametrize("body", [b'["\\x",' + b"0," * 20 + b"0]", b"[" + b"," * 20, b"[0" * 20])
def test_what_is_no_json_is_told_as_that_however_much_there_is_of_it(
    tmp_path: Path, body: bytes
) -> None:
    with serving(tmp_path / "data", Settings(port=0, batch_records=10)) as server:
        client = Client(server)
        client.call("PUT", "/ds/d", b"", JSON)
        assert client.call("POST", "/ds/d", body, JSON).code == "invalid_request"
        client.close()


def test_what_is_more_than_may_be_is_refused_before_it_is_made(client: Client) -> None:
    """Millions of small things in one body: neither time nor others' turns."""
    client.call("PUT", "/ds/d", b"", JSON)
    worst = [0.0]
    over = threading.Event()

    def ask() -> None:
        other = Client(client.server)
        while not over.is_set():
            began = time.monotonic()
            assert other.get("/healthz").status == 200
            worst[0] = max(worst[0], time.monotonic() - began)
        other.close()

    asking = threading.Thread(target=ask)
    asking.start()
    many = b"{}," * 1_000_000 + b"{}"
    try:
        for path, body, headers in (
            (LOGS, b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + many + b"]}]}]}", JSON),
            (LOGS, protobuf(200_000), PROTOBUF), (RECORDS, b"[" + many + b"]", EVENTS),
            ("/ds/d", b"[" + b"0," * 2_000_000 + b"0]", JSON), ("/ds/d", b"[" + many + b"]", JSON),
        ):  # fmt: skip
            began = time.monotonic()
            answer = client.call("POST", path, body, headers)
            assert (answer.status, answer.code) == (400, "batch_too_large"), path
            assert time.monotonic() - began < 1, path
    finally:
        over.set()
        asking.join()
    assert worst[0] < 0.5


def test_a_long_body_is_decoded_away_from_the_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    measure = check_depth

    def noted(data: bytes, limit: int) -> None:
        where.append(threading.current_thread().name)
        measure(data, limit)

    for module in ("records", "http.call"):
        monkeypatch.setattr(f"esker.server.{module}.check_depth", noted)
    long = {"value": {"a": "x" * AT_ONCE}}
    for path, body, headers in (
        (RECORDS, {"records": [long]}, JSON), (RECORDS, long, NDJSON), (LOGS, long, JSON),
        (RECORDS, [{**EVENT, "data": long}], EVENTS), ("/v1/queues/none/jobs", long, JSON),
    ):  # fmt: skip
        client.call("POST", path, msgspec.json.encode(body), headers)
    assert len(where) == 5
    loop = where[:]
    client.call("POST", RECORDS, {"records": [{"value": {}}]})
    assert where[-1] not in loop, "a short one is decoded on the spot"


def test_a_header_of_cloud_events_does_not_hide_how_deep_a_body_is(client: Client) -> None:
    deep = b"[" * 40 + b"]" * 40
    said = {"ce-specversion": "1.0"}
    for path, body, headers in (
        (RECORDS, b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":' + deep + b"}",
         {"Content-Type": "application/cloudevents+json"}),
        (LOGS, b'{"more":' + deep + b"}", JSON),
    ):  # fmt: skip
        answer = client.call("POST", path, body, {**headers, **said})
        assert answer.status == 400, path
        assert "32 levels" in answer.json()["error"]["message"], path


# ---- in one go -------------------------------------------------------------------------------


def in_steps(data: bytes, settings: Settings) -> tuple[Any, list[Any]]:
    """As it is decoded where it is not known what it holds."""
    check_depth(data, settings.json_depth)
    body = decoded(data, wire.Append)
    return body, codec.records_in(body.records, settings.batch_records)


def outcome(way: Any, data: bytes, settings: Settings) -> Any:
    try:
        body, found = way(data, settings)
    except (Fault, EskerError, UnicodeError) as problem:
        return type(problem), getattr(problem, "code", ""), str(problem)
    records = [each if isinstance(each, Record) else Record(each) for each in found]
    return records, body.idempotency_key, body.create, body.producer, body.sequence


def same(data: bytes, settings: Settings | None = None) -> Any:
    given = settings or Settings(batch_records=4, json_depth=5)
    found = outcome(records.json_in, data, given)
    assert found == outcome(in_steps, data, given), data
    return found


ODD = [
    b"", b"{}", b"[]", b"null", b"7", b'"x"', b"{", b'{"records":', b'{"records":[]}',
    b'{"records":[]} ', b'{"records":[]}x', b'{"records":null}', b'{"records":{}}',
    b'{"records":[1]}', b'{"records":[null]}', b'{"records":[{}]}', b'{"records":[{"value":1}]}',
    b'{"records":[{"value":null}]}', b'{"records":[{"value":"x"}]}',
    b'{"records":[{"value":"x"}],"more":1}', b'{"records":[{"value":"x","more":1}]}',
    b'{"records":[{"value":"x","value":"y"}]}', b'{"records":[{"value":"x","value":{}}]}',
    b'{"records":[{"value":"x"}],"records":[{"value":"y"}]}',
    b'{"records":[{"value":{}}],"records":[{"value":"y"}]}',
    b'{"records":[{"value":"y"}],"records":7}', b'{"records":[{"base64":"AA=="}]}',
    b'{"records":[{"value":"x","base64":"AA=="}]}', b'{"records":[{"value":"x","key":"k"}]}',
    b'{"records":[{"value":"x","key_base64":"/w=="}]}', b'{"records":[{"value":"x","key":7}]}',
    b'{"records":[{"value":"x","tag":"t","node":"n","timestamp":7}]}',
    b'{"records":[{"value":"x","timestamp":7.0}]}',
    b'{"records":[{"value":"x","timestamp":1e400}]}',
    b'{"records":[{"value":"x","timestamp":' + b"9" * 30 + b"}]}",
    b'{"records":[{"value":"x","timestamp":"7"}]}',
    b'{"records":[{"value":"x","headers":{"a":"b"}}]}',
    b'{"records":[{"value":"x","headers":null}]}', b'{"records":[{"value":"\\ud800"}]}',
    b'{"records":[{"value":"x","key":"\\ud800"}]}', b'{"records":[{"value":"\\u0000\\n\\"\\\\"}]}',
    b'{"records":[{"value":"\xff"}]}', b'{"records":[{"value":"x","key":"\xff"}]}',
    b'{"records":[{"\xff":"x"}]}', b'\xef\xbb\xbf{"records":[{"value":"x"}]}',
    b'{"records":[{"value":"x"}],"create":false,"idempotency_key":"k"}',
    b'{"records":[{"value":"x"}],"create":1}', b'{"records":[{"value":"x"}],"create":null}',
    b'{"records":[{"value":"x"}],"idempotency_key":"' + b"k" * 1_025 + b'"}',
    b'{"records":[{"value":"x"}],"producer":"p","sequence":3}',
    b'{"records":[{"value":"x"}],"sequence":-1}', b'{"records":[{"value":"x"}],"sequence":1.5}',
    b'{"create":"no","records":[{"value":1,"more":2}]}', b'{"records":[{"value":"x",}]}',
    b'{"records":[{"value":"x"},]}', b"{'records':[]}", b'{"records":[{"value":"a\nb"}]}',
    b'{"records":[{"value":"' + b"{" * 9 + b'"}]}', b'{"records":[{"value":"' + b"[" * 9 + b'"}]}',
    b'{"records":[{"value":"\\\\"},{"value":"{\\""}]}', b'{"records":[{"value":"\\x"}]}',
    b'{"records":' + b"[" * 9 + b"]" * 9 + b"}", b'{"records":[{"value":[[[1]]]}]}',
    b'{"records":[{"value":[[1]]}]}', b'{"records":[' + b"[" * 9, b'{"records":' + b"[" * 100_000,
    b'{"a":' * 100_000, b'{"records":[{"value":"x"}],"a":' + b"[" * 9 + b"]" * 9 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:60]))
def test_what_is_decoded_in_one_go_is_what_it_is_in_steps(data: bytes) -> None:
    for most, depth in ((4, 5), (1, 3), (10, 2), (10_000, 1), (10_000, 32)):
        same(data, Settings(batch_records=most, json_depth=depth))


@pytest.mark.parametrize("value", ['"x"', '"{{{"', "{}", "1", "[[]]"])
def test_the_number_of_records_is_the_same_in_both(value: str) -> None:
    for count in range(8):
        record = f'{{"value":{value}}}'
        found = same(f'{{"records":[{",".join([record] * count)}]}}'.encode())
        if count > 4:
            assert found[:2] == (Fault, "batch_too_large")
        else:
            assert len(found[0]) == count


_PIECES = st.sampled_from(
    ["[", "]", "{", "}", '"', ",", ":", "\\", " ", "0", "x", "null", "true", '"value"', '"key"',
     '"records"', '{"value":"x"}', '{"value":1}', ',{"value":"y","key":"k"}', '"timestamp":7',
     '"headers":{}', "\\u", "d800", "\u00e9", "\x00"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2))
def test_whatever_a_body_holds_both_ways_end_alike(
    pieces: list[str], most: int, depth: int, frame: int
) -> None:
    inner = "".join(pieces)
    body = (inner, f'{{"records":[{inner}]}}', f'{{"records":[{{"value":"x",{inner}}}]}}')[frame]
    same(body.encode(), Settings(batch_records=most, json_depth=depth))
