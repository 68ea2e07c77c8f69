"""The end of a key, as the streams that it opened see it: it is told, and nobody is waited for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

import esker
from esker.server.access import keyfile
from esker.server.access.keys import SCOPES
from esker.server.run import serving
from esker.server.settings import Settings
from tests.server.streams import Events
from tests.server.test_load import stalled
from tests.server.test_socket import Socket
from tests.server.test_watch import on_loop, until


def test_streams_are_told_that_their_key_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, text = keyfile.new(path, SCOPES)
    said = {"Authorization": f"Bearer {text}"}
    with serving(tmp_path / "data", Settings(port=0, keys=str(path))) as server:
        with esker.open(server.url, key=text) as store:
            store.create("t")
            store.queue("q").put(b"a job")
        watching = Events(server.url, "/v1/watch?topics=t", **said)
        working = Events(server.url, "/v1/queues/q/work", **said)
        socket = Socket(server.url, additional_headers=said)
        socket.ask("subscribe", topic="t")
        watching.next("caught-up")
        working.next("job")
        keyfile.revoke(path, key.id)
        began = time.monotonic()
        for each in (watching, working):
            assert each.next("error").json()["code"] == "unauthorized"
            with pytest.raises(EOFError):
                each.next()
            each.close()
        assert socket.hear("error")["code"] == "unauthorized"
        with pytest.raises(ConnectionClosed) as closed:
            socket.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008, "and not 1012, which means: come back"
        assert time.monotonic() - began < 2


def test_a_client_that_takes_nothing_is_cut_off_when_its_key_ends(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key, text = keyfile.new(path, SCOPES)
    with (
        serving(tmp_path / "data", Settings(port=0, keys=str(path))) as server,
        esker.open(server.url, key=text) as store,
    ):
        store.create("t")
        lame = stalled(server, "topics=t&start=earliest", Authorization=f"Bearer {text}")
        hub, gate = server.app.hub, server.app.gate
        while not any(each.queue or each.waits for each in on_loop(server, lambda: [*hub.streams])):
            store["t"].append_many([b"x" * 10_000] * 50)
        keyfile.revoke(path, key.id)
        began = time.monotonic()
        until(lambda: gate.streams == 0 and server.app.under_way == 0)
        assert time.monotonic() - began < 2
        lame.close()
