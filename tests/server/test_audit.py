"""The audit log and the logs of a server: what is told, and that no client can forge a line."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import esker
from esker.clock import SYSTEM_CLOCK
from esker.errors import Corruption
from esker.server.access import audit
from esker.server.access.audit import Audit
from esker.server.access.keyfile import new
from esker.server.access.keys import SCOPES
from esker.server.live import frames
from esker.server.logs import JsonLines, Lines, escaped, set_up
from esker.server.run import serving
from esker.server.settings import Settings
from esker.server.table import ROUTES
from tests.server.asgi import Socket, application, bearer, call
from tests.server.conftest import Client
from tests.server.streams import Events

HOSTILE = [
    "a\nb", "a\r\nInjected: x", "\x1b[2J\x1b[31m", "\x00", "\x7f", "\x85", "\u2028", "\u202e",
    '"}\n{"event": "forged"', "é", "\ud7ff", "💥", "x" * 10_000, "\\", "\\n", "\t",
]  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_client_sent_is_data_on_one_line(text: str) -> None:
    told = audit.line("forbidden", 1_800_000_000_000_000, {"topic": text, "n": 1, "no": ""})
    assert told.isascii()
    assert told.isprintable()
    assert len(told) < 4_000
    found = json.loads(told)
    assert found["topic"][:200] == text[:200]
    assert found.keys() == {"time", "event", "topic", "n"}
    assert found["time"] == "2027-01-15T08:00:00.000+00:00"


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", [Lines, JsonLines])
def test_a_line_of_the_log_is_one_line_of_plain_text(kind: Any, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        trace = sys.exc_info()
    record = logging.LogRecord("esker.server", logging.ERROR, "", 1, "said %s", (text,), trace)
    told = kind().format(record)
    first, *rest = told.split("\n")
    assert told.isascii()
    assert first.isprintable()
    if kind is JsonLines:
        assert rest == []
        assert json.loads(told)["message"] == f"said {text}"
        assert "Traceback" in json.loads(told)["trace"]
    else:
        assert escaped(text) in first
        assert all(each.startswith("    ") and each.isprintable() for each in rest)


def test_what_is_known_of_a_call_has_fields_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    secret = "esk_" + "0" * 12 + "_" + "a" * 64

    async def story() -> None:
        async with application(Settings(access_log=True)) as app:
            await call(app, "PUT", "/v1/topics/t", {}, query="performance=true")
            await call(app, "GET", f"/{secret}", headers={"host": "evil.example"})

    caplog.set_level(logging.INFO)
    asyncio.run(story())
    told = [
        json.loads(JsonLines().format(each))
        for each in caplog.records
        if each.name in ("esker.access", "esker.audit")
    ]
    assert "a" * 64 not in str(told)
    made, got, misdirected, _ = told
    assert (made["message"], made["event"], made["topic"]) == ("topics.create",) * 2 + ("t",)
    assert (got["path"], got["status"], got["method"]) == ("/v1/topics/{topic}", 201, "PUT")
    assert got["ms"] > 0
    assert got["message"].startswith("request=1 method=PUT path=/v1/topics/{topic} status=201")
    assert (misdirected["event"], misdirected["client"]) == ("misdirected", "127.0.0.1")


def test_a_secret_in_a_log_is_cut_out() -> None:
    secret = "esk_" + "0" * 12 + "_" + "a" * 64
    for kind in (Lines, JsonLines):
        record = logging.LogRecord("esker", logging.INFO, "", 1, "%s", (secret,), None)
        told = kind().format(record)
        assert "a" * 64 not in told
        assert "0" * 12 in told
    assert "a" * 64 not in audit.line("forbidden", 1, {"path": f"/{secret}"})


def test_the_log_is_set_up_as_asked() -> None:
    root, quiet = logging.getLogger(), logging.getLogger("uvicorn")
    before = (root.handlers[:], root.level, quiet.level)
    try:
        set_up(Settings(log="json", log_level="debug"))
        assert isinstance(root.handlers[0].formatter, JsonLines)
        assert (root.level, quiet.level) == (logging.DEBUG, logging.WARNING)
        set_up(Settings(log_level="error"))
        assert isinstance(root.handlers[0].formatter, Lines)
        assert (len(root.handlers), quiet.level) == (1, logging.ERROR)
    finally:
        root.handlers[:], root.level = before[0], before[1]
        quiet.setLevel(before[2])
        root.setLevel(before[1])


def test_what_is_refused_deleted_and_changed_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "keys")
    admin_key, admin = new(path, SCOPES)
    reader_key, reader = new(path, ["read"], ["t4"])
    settings = Settings(keys=path, audit=str(tmp_path / "audit.log"))

    async def story() -> None:
        async with application(settings) as app:
            mine = bearer(admin)
            await call(app, "PUT", "/v1/topics/t4", {}, mine)
            await call(app, "PATCH", "/v1/topics/t4", {"ttl": "7d"}, mine)
            await call(app, "DELETE", "/v1/topics/t4/records", headers=mine, query="before=latest")
            await call(app, "PUT", "/v1/topics/t4/groups/g", {}, mine)  # neither taken nor changed
            await call(app, "DELETE", "/v1/topics/t4/groups/g", headers=mine)
            await call(app, "DELETE", "/v1/topics/t4", headers=mine)
            await call(app, "GET", "/v1/topics", headers=mine)  # nothing to tell
            await call(app, "DELETE", "/v1/topics/t4", headers=bearer(reader))
            await call(app, "GET", "/v1/topics/t5", headers=bearer(reader))
            await call(app, "GET", "/v1/topics")
            await call(app, "GET", "/v1/topics", headers={"host": "evil.example"})
            await call(app, "DELETE", "/v1/topics/none", headers=mine)  # not found: not done

    asyncio.run(story())
    told = lines(tmp_path / "audit.log")
    assert [each["event"] for each in told] == [
        "topics.create", "topics.alter", "records.delete", "groups.forget", "topics.delete",
        "forbidden",
        "forbidden", "unauthorized", "misdirected",
    ]  # fmt: skip
    assert json.loads(told[1]["body"]) == {"ttl": "7d"}
    assert json.loads(told[2]["query"])["before"] == "latest"
    assert [each.get("key") for each in told[:7]] == [admin_key.id] * 5 + [reader_key.id] * 2
    assert told[6]["topic"] == "t5"
    assert all(each["request"] and each["client"] for each in told)


def test_damage_on_the_disk_is_told(tmp_path: Path) -> None:
    settings = Settings(audit=str(tmp_path / "audit.log"))

    async def broken(_: Any) -> Any:
        raise Corruption("a bit has turned", path="/secret/place")

    async def story() -> None:
        async with application(settings) as app:
            route = next(route for route in ROUTES if route.handler == "topics.state")
            app.handlers[route] = broken
            got = await call(app, "GET", "/v1/topics/t")
            assert got.code == "corruption"
            assert b"secret" not in got.body

    asyncio.run(story())
    (told,) = lines(tmp_path / "audit.log")
    assert (told["event"], told["topic"]) == ("corruption", "t")


def test_what_a_message_of_a_websocket_was_refused_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "keys")
    reader_key, reader = new(path, ["read"], ["t4"])
    settings = Settings(keys=path, audit=str(tmp_path / "audit.log"))
    messages = [
        {"op": "subscribe", "topics": ["t4", "t5"]},
        {"op": "publish", "topic": "t4", "records": [{"value": "x"}]},
        {"op": "subscribe", "topic": "t4"},  # there is none, which is no secret
        {"op": "ping"},
    ]

    async def story() -> None:
        async with application(settings) as app:
            socket = Socket(app, "/v1/ws", bearer(reader))
            await socket.opens()
            for message in messages:
                socket.heard.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})
            await socket.leave()  # when all of them were answered
            assert len(socket.said) == len(messages) + 2

    asyncio.run(story())
    told = lines(tmp_path / "audit.log")
    assert [(each["event"], each["op"], each["topic"]) for each in told] == [
        ("forbidden", "subscribe", "t4,t5"), ("forbidden", "publish", "t4"),
    ]  # fmt: skip
    assert {(each["key"], each["path"]) for each in told} == {(reader_key.id, "/v1/ws")}


def test_damage_that_a_stream_meets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise Corruption("a frame is damaged", path="/secret/place")

    settings = Settings(port=0, audit=str(tmp_path / "audit.log"))
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        client.append("t", "a")
        with Events(server.url, "/v1/watch?topics=t") as events:
            events.next("caught-up")
            monkeypatch.setattr(frames, "read_on", broken)
            client.append("t", "b")
            assert events.next("error").json()["code"] == "corruption"
        with Events(server.url, "/v1/watch?topics=t&start=earliest") as events:
            assert events.next("error").json()["code"] == "corruption"
        client.close()
    told = lines(tmp_path / "audit.log")
    assert {(each["event"], each["topic"]) for each in told} == {("corruption", "t")}
    assert len(told) >= 2


def test_damage_that_is_found_when_the_store_is_opened_is_told(tmp_path: Path) -> None:
    with esker.open(tmp_path / "data") as store:
        for name in ("hurt", "whole"):
            store[name].append("x", wait=True)
    (state, *_) = sorted((tmp_path / "data" / "topics").glob("*/*/state"))
    state.write_bytes(b"\xff" * state.stat().st_size)
    with serving(tmp_path / "data", Settings(port=0, audit=str(tmp_path / "audit.log"))):
        pass
    told = lines(tmp_path / "audit.log")
    assert [each["event"] for each in told] == ["damaged_state", "lost_tail"]
    assert {(each["topic"], each["shard"]) for each in told} == {("hurt", 0)}
    assert all(each["reason"] and each["file"] for each in told)
    with serving(tmp_path / "data", Settings(port=0, audit=str(tmp_path / "again.log"))):
        pass
    assert lines(tmp_path / "again.log") == [], "it is mended"


def test_the_file_never_grows_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "BYTES_MAX", 2_000)
    path = tmp_path / "audit.log"

    async def story() -> None:
        one = Audit(str(path), SYSTEM_CLOCK)
        for number in range(100):
            one.tell("forbidden", number=number)
            await asyncio.sleep(0.002)
        await one.close()

    asyncio.run(story())
    kept = [*lines(path.with_name("audit.log.1")), *lines(path)]
    assert [each["number"] for each in kept] == list(range(100 - len(kept), 100))
    assert path.stat().st_size <= 2_000
    assert {each.name for each in tmp_path.iterdir()} == {"audit.log", "audit.log.1"}
    asyncio.run(story())  # goes on behind what is there
    assert lines(path)[-1]["number"] == 99


def test_lines_that_are_too_many_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PENDING_MAX", 10)

    async def story() -> None:
        one = Audit(str(tmp_path / "audit.log"), SYSTEM_CLOCK)
        for number in range(50):
            one.tell("forbidden", number=number)
        await asyncio.sleep(0.1)
        one.tell("forbidden", number=50)
        await one.close()

    asyncio.run(story())
    told = lines(tmp_path / "audit.log")
    lost = sum(each["count"] for each in told if each["event"] == "audit_lines_lost")
    assert lost + sum(each["event"] == "forbidden" for each in told) == 51
    assert lost > 0


def test_lines_that_a_disk_refused_are_written_when_it_takes_some_again_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "PENDING_MAX", 30)

    async def story() -> None:
        one = Audit(str(tmp_path / "audit.log"), SYSTEM_CLOCK)
        kept = one._file
        one._file = Full()  # type: ignore[assignment]
        for number in range(50):
            one.tell("forbidden", number=number)
            await asyncio.sleep(0.002)
        one._file = kept
        one.tell("forbidden", number=50)
        await asyncio.sleep(0.05)
        one.tell("forbidden", number=51)
        await one.close()

    asyncio.run(story())
    told = lines(tmp_path / "audit.log")
    lost = [each["count"] for each in told if each["event"] == "audit_lines_lost"]
    assert [each["number"] for each in told if "number" in each] == [*range(30), 51]
    assert lost == [21]
    assert "the audit log cannot be written" in caplog.text


class Full:
    """A file on a disk that is full."""

    def write(self, at: int, pieces: Any) -> None:
        raise audit.StorageError("the disk is full")


def test_a_disk_that_takes_no_more_is_told_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        one = Audit(str(tmp_path / "audit.log"), SYSTEM_CLOCK)

        def full(data: bytes) -> None:
            raise audit.StorageError("the disk is full")

        monkeypatch.setattr(one, "_write", full)
        one.tell("forbidden")
        await asyncio.sleep(0.05)
        one.tell("forbidden")
        await one.close()

    asyncio.run(story())
    assert caplog.messages.count("the audit log cannot be written: the disk is full") >= 1


def test_without_a_file_it_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "esker.audit")

    async def story() -> None:
        async with application() as app:
            await call(app, "GET", "/v1/topics", headers={"host": "evil.example"})

    asyncio.run(story())
    assert json.loads(caplog.messages[0])["event"] == "misdirected"
