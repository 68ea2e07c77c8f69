"""WebSockets whose client takes nothing, or takes the protocol at its word."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from esker.server.access.gate import end
from esker.server.access.keys import Account
from esker.server.http.upgrade import FRAMES_MAX, Upgraded
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client
from tests.server.raw import HOST, connected

HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TEXT, MORE, CLOSE, PING, PONG = 1, 0, 8, 9, 10


def frame(kind: int, data: bytes, *, last: bool = True) -> bytes:
    """As a client sends it: masked, with a mask of zeros."""
    head = bytes([last << 7 | kind, 0x80 | min(len(data), 126)])
    if len(data) > 125:
        head += struct.pack(">H", len(data))
    return head + bytes(4) + data


def heard(sock: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """So many frames, or as many as come before the end."""
    found: list[tuple[int, bytes]] = []
    with sock.makefile("rb") as stream:
        while len(found) < count and (head := stream.read(2)):
            size = head[1]
            if size == 126:
                (size,) = struct.unpack(">H", stream.read(2))
            found.append((head[0] & 15, stream.read(size)))
    return found


@contextmanager
def upgraded(server: Server) -> Iterator[tuple[socket.socket, Upgraded]]:
    """A WebSocket, and the server's end of it."""
    with connected(server) as sock:
        sock.sendall(HANDSHAKE)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101 ")
        (mine,) = (each for each in connections(server) if isinstance(each, Upgraded))
        yield sock, mine


def connections(server: Server) -> set[Any]:
    return server._uvicorn.server_state.connections


def on_loop(server: Server, work: Callable[..., Any], *given: Any) -> None:
    """Do it where the server does everything, and wait for it."""
    done = threading.Event()
    assert server.loop is not None
    server.loop.call_soon_threadsafe(lambda: (work(*given), done.set()))
    assert done.wait(10)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stuffed(client: Client, sock: socket.socket, mine: Upgraded) -> None:
    """Have more sent than the connection takes."""
    for _ in range(8):
        client.append("t", *["x" * 100_000] * 40)
    ask = {"op": "subscribe", "topic": "t", "start": "earliest"}
    sock.sendall(frame(TEXT, json.dumps(ask).encode()))
    until(lambda: not mine.writable.is_set())


@pytest.mark.parametrize("how", ["its key ends", "it is sent away"])
def test_who_takes_nothing_is_cut_off_and_gives_up_his_place(
    how: str, server: Server, client: Client
) -> None:
    client.append("t", "first")
    with upgraded(server) as (sock, mine):
        stuffed(client, sock, mine)
        account: Account = server.app.gate.anybody.account
        (stream,) = server.app.hub.streams
        assert server.app.gate.streams == 1
        if how == "its key ends":
            on_loop(server, end, account)
        else:
            on_loop(server, stream.abort)
        until(lambda: server.app.gate.streams == 0 and mine not in connections(server))


def test_a_closed_connection_is_not_waited_for_without_an_end(
    server: Server, client: Client
) -> None:
    client.append("t", "first")
    with upgraded(server) as (sock, mine):
        stuffed(client, sock, mine)
        on_loop(server, mine.transport.close)  # as when it does not answer a ping
        until(lambda: server.app.gate.streams == 0 and mine not in connections(server))


def test_who_does_not_answer_pings_is_gone(tmp_path: Path) -> None:
    settings = Settings(port=0, heartbeat_seconds=0.2, stall_seconds=0.4)
    with serving(tmp_path / "data", settings) as server, upgraded(server) as (sock, mine):
        began = time.monotonic()
        ((kind, payload),) = heard(sock, 1)
        assert (kind, len(payload)) == (PING, 4)
        sock.sendall(frame(PONG, payload))
        ((kind, _),) = heard(sock, 1)
        assert kind == PING, "who answers is asked again"
        assert heard(sock, 9)[-1][0] == CLOSE
        assert 0.7 < time.monotonic() - began < 5
        until(lambda: server.app.gate.streams == 0 and mine not in connections(server))


def test_pings_are_answered_while_the_answers_are_taken(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0
    handle = Upgraded.handle_ping

    def counted(self: Upgraded) -> None:
        nonlocal seen
        handle(self)
        seen += 1

    monkeypatch.setattr(Upgraded, "handle_ping", counted)
    with upgraded(server) as (sock, mine):
        sock.sendall(frame(PING, b"one"))
        assert heard(sock, 1) == [(PONG, b"one")]
        on_loop(server, mine.pause_writing)
        sock.sendall(frame(PING, b"x" * 125) * 1_000)
        sock.sendall(frame(TEXT, b'{"op": "ping", "request_id": 1}'))
        until(lambda: seen == 1_001)
        assert mine.transport.get_write_buffer_size() == 0
        on_loop(server, mine.resume_writing)
        assert heard(sock, 1) == [(TEXT, b'{"op":"pong","request_id":1}')]


def test_the_bytes_of_a_message(tmp_path: Path) -> None:
    """At the limit and above it, in one frame and in many."""
    most = 1_000
    padded = b'{"op": "ping"%s}' % (b" " * (most - 14))
    with serving(tmp_path / "data", Settings(port=0, body_bytes=most)) as server:
        for over, pieces in ((0, 1), (1, 1), (0, 10), (1, 10)):
            data = padded + b" " * over
            assert len(data) == most + over
            step = -(-len(data) // pieces)
            parts = [data[at : at + step] for at in range(0, len(data), step)]
            with upgraded(server) as (sock, _):
                for number, part in enumerate(parts):
                    kind = MORE if number else TEXT
                    sock.sendall(frame(kind, part, last=number == len(parts) - 1))
                ((kind, said),) = heard(sock, 1)
                assert kind == (CLOSE if over else TEXT), (over, pieces)
                assert not over or said[:2] == struct.pack(">H", 1009)
            until(lambda: not any(isinstance(each, Upgraded) for each in connections(server)))


def test_nothing_is_decompressed(server: Server) -> None:
    """The extension is not agreed to, and a message that claims it ends the connection."""
    extension = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    with connected(server) as sock:
        sock.sendall(HANDSHAKE[:-2] + extension + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"extensions" not in answer.lower()
        squeezed = bytearray(frame(TEXT, zlib.compress(b'{"op":"ping"}' + b" " * 100)[2:-4]))
        squeezed[0] |= 0x40
        sock.sendall(squeezed)
        ((kind, said),) = heard(sock, 1)
        assert (kind, said[:2]) == (CLOSE, struct.pack(">H", 1002))


@pytest.mark.parametrize(
    "data",
    [
        frame(PING, b"x" * 126), frame(PING, b"x", last=False), frame(3, b""), frame(11, b""),
        frame(MORE, b"x"), frame(TEXT, b"x", last=False) + frame(TEXT, b"x"),
        frame(CLOSE, b"x"), frame(CLOSE, struct.pack(">H", 1005)), frame(TEXT, b"\xff"),
        b"\x81\x02{}", b"\xf1\x80\0\0\0\0", b"\x81\xff" + b"\xff" * 12,
        b"\x81\xff" + struct.pack(">Q", 1 << 62) + bytes(4),
    ],
)  # fmt: skip
def test_what_is_no_frame_ends_the_connection_and_nothing_else(data: bytes, client: Client) -> None:
    with upgraded(client.server) as (sock, _):
        sock.sendall(data)
        found = heard(sock, 2)
        assert [kind for kind, _ in found] == [CLOSE]
    assert client.get("/readyz").status == 200
    until(lambda: client.server.app.gate.streams == 0)


def test_a_message_comes_in_so_many_frames_and_no_more(server: Server) -> None:
    ping = b'{"op": "ping"}'
    for over in (0, 1):
        with upgraded(server) as (sock, _):
            few = [frame(TEXT, ping, last=False)]
            few += [frame(MORE, b"", last=False)] * (FRAMES_MAX - 2 + over)
            sock.sendall(b"".join(few) + frame(MORE, b""))
            ((kind, data),) = heard(sock, 1)
            if over:
                assert (kind, data[:2]) == (CLOSE, struct.pack(">H", 1009))
                assert heard(sock, 1) == [], "and that is all"
            else:
                assert (kind, data) == (TEXT, b'{"op":"pong"}')
        until(lambda: not any(isinstance(each, Upgraded) for each in connections(server)))
