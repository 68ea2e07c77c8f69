"""Appends, by whichever door they come in: measured alike, into a topic made for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from esker.aio.store import AsyncTopic
from esker.engine.topic import Topic
from esker.errors import TopicNotFound
from esker.server.run import Server
from tests.server.conftest import JSON, Client
from tests.server.test_socket import Socket
from tests.server.test_stages import ARROW, stream

RECORDS = "/v1/topics/t/records"
TEXT = {"records": [{"value": "x"}]}
LOGS = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]}
Append = Callable[[], None]


@pytest.fixture
def doors(server: Server, client: Client) -> Iterator[dict[str, Append]]:
    """Ways of appending a record to `t`."""
    socket = Socket(server.url)

    def post(path: str, body: Any, **headers: str) -> Append:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)

        def call() -> None:
            answer = client.call("POST", path, data, {**JSON, **headers})
            assert answer.status < 300, answer.body

        return call

    def publish() -> None:
        assert socket.ask("publish", topic="t", **TEXT)["op"] == "ack"

    keys, number = iter(range(10)), iter(range(10))

    def produce() -> None:
        post(f"{RECORDS}?producer=p&sequence={next(number)}", TEXT)()

    yield {
        "json": post(RECORDS, TEXT), "without waiting": post(f"{RECORDS}?wait=false", TEXT),
        "arrow": post(RECORDS, stream(b"x"), **ARROW),
        "a key": lambda: post(RECORDS, TEXT, **{"Idempotency-Key": str(next(keys))})(),
        "a producer": produce, "a socket": publish,
        "logs": post("/otlp/v1/logs", LOGS, **{"Esker-Topic": "t"}),
    }  # fmt: skip
    socket.raw.close()


def measured(server: Server) -> dict[str, int]:
    times = server.app.hub.stages.times
    return {stage: sum(times[stage].counts) for stage in ("parse", "append")}


def test_every_append_is_measured(server: Server, doors: dict[str, Append]) -> None:
    for name, append in doors.items():
        before = measured(server)
        append()
        assert measured(server) == {stage: n + 1 for stage, n in before.items()}, name


def test_records_of_a_durable_stream_are_measured(server: Server, client: Client) -> None:
    assert client.call("PUT", "/ds/d", b"", JSON).status == 201
    before = measured(server)["append"]
    answer = client.call("POST", "/ds/d", [1])
    assert measured(server)["append"] == before + 1
    assert "append;dur=" in answer.headers["server-timing"]


def test_a_record_alone_shares_its_commit_with_others_who_wait(
    doors: dict[str, Append], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[Any] = []
    alone = AsyncTopic._append_timed

    async def noted(self: AsyncTopic, value: Any, *given: Any) -> Any:
        shared.append(value)
        return await alone(self, value, *given)

    monkeypatch.setattr(AsyncTopic, "_append_timed", noted)
    for name, count in {"json": 1, "a socket": 1, "logs": 1, "a key": 0, "arrow": 0}.items():
        shared.clear()
        doors[name]()
        assert len(shared) == count, name


@pytest.mark.parametrize("door", ["json", "arrow", "a key", "a producer", "a socket", "logs"])
def test_a_topic_that_is_deleted_again_and_again_is_made_anew(
    door: str, doors: dict[str, Append], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times it is gone when its records come; they are the first of the fourth one."""
    gone = iter(range(3))

    def refuse(real: Any) -> Any:
        def append(*given: Any, **more: Any) -> Any:
            if next(gone, None) is not None:
                raise TopicNotFound("no topic 't'")
            return real(*given, **more)

        return append

    client.call("PUT", "/v1/topics/t", {})
    for kind, name in (
        (AsyncTopic, "_append_timed"), (Topic, "append_many"), (Topic, "append_arrow"),
        (Topic, "producer"),
    ):  # fmt: skip
        monkeypatch.setattr(kind, name, refuse(getattr(kind, name)))
    doors[door]()
    assert next(gone, None) is None
    assert client.get("/v1/topics/t").json()["count"] == 1
