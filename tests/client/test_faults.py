"""Errors of a server are the exceptions of the library, by their codes."""

from __future__ import annotations

import inspect
import socket
from typing import Any

import msgspec
import pytest

import esker
from esker import errors
from esker.client import faults, pool
from esker.client.address import parse
from esker.server.http.faults import STATUS, Fault, encode, fault_of

URL = "http://127.0.0.1:4117"
GAP = esker.Gap("t", 1, 3, 7, "evicted")
MADE: dict[str, esker.EskerError] = {
    "gap": esker.DataGap(GAP),
    "corruption": esker.Corruption("bad", path="/secret/place"),
    "cold_unavailable": esker.ColdUnavailable("away", root="/secret/place"),
    "sequence_gap": esker.SequenceGap("left out", expected=7),
    "writer_busy": esker.WriterBusy("busy", pid=42),
    "member_busy": esker.MemberBusy("busy", pid=43),
}


def _kinds() -> list[Any]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, esker.EskerError) and kind.code in STATUS
    ]


def told(problem: esker.EskerError) -> esker.EskerError:
    """An exception that went over the wire."""
    fault = fault_of(problem)
    headers = dict(fault.headers)
    return faults.exception(fault.status, headers, encode(fault, "1"), URL)


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_every_exception_that_a_server_tells_is_raised_as_itself(kind: Any) -> None:
    problem = MADE.get(kind.code) or kind("what happened")
    found = told(problem)
    assert type(found) is (esker.Unavailable if kind.code == "store_closed" else kind)
    assert "secret" not in str(found)
    for name in ("gap", "expected", "pid"):
        assert getattr(found, name, None) == getattr(problem, name, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unauthorized", esker.Unauthorized), ("forbidden", esker.Forbidden),
        ("misdirected", esker.Forbidden), ("throttled", esker.Throttled),
        ("invalid_request", esker.InvalidOption), ("payload_too_large", esker.BatchTooLarge),
        ("not_ready", esker.Unavailable), ("shutting_down", esker.Unavailable),
        ("internal", esker.ServerFault), ("not_found", esker.ServerFault),
        ("of a later version", esker.ServerFault),
    ],
)  # fmt: skip
def test_what_only_a_server_says_has_an_exception_too(code: str, kind: Any) -> None:
    found = faults.exception(STATUS.get(code, 500), {}, encode(Fault(code, "no"), "7"), URL)
    assert type(found) is kind
    if kind is esker.ServerFault:
        assert found.status == STATUS.get(code, 500)
        assert "request 7" in str(found)


def test_a_throttled_call_says_when_to_try_again() -> None:
    body = encode(Fault("throttled", "later"), "1")
    found = faults.exception(429, {"retry-after": "3"}, body, URL)
    assert isinstance(found, esker.Throttled)
    assert found.retry_after == 3.0
    odd = faults.exception(429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, body, URL)
    assert isinstance(odd, esker.Throttled)
    assert odd.retry_after == 1.0


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error": 7}', b"\xff"])
def test_an_answer_that_is_no_error_of_esker_is_a_fault_of_the_server(body: bytes) -> None:
    found = faults.exception(502, {}, body, URL)
    assert isinstance(found, esker.ServerFault)
    assert found.status == 502


def test_a_gap_over_the_wire_is_the_gap() -> None:
    found = told(esker.DataGap(GAP))
    assert isinstance(found, esker.DataGap)
    assert found.gap == GAP
    assert msgspec.to_builtins(found.gap) == msgspec.to_builtins(GAP)


def test_a_connection_to_oneself_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens, the kernel may give a client that very port to call from."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.connect(made.getsockname())
    port = made.getsockname()[1]
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: made)
    connection = pool._Connection(parse(f"http://127.0.0.1:{port}"), None)
    with pytest.raises(ConnectionRefusedError, match="nobody listens"):
        connection.connect()
    assert made.fileno() == -1
