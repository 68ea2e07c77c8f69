"""Long polls where the server has not written yet, as behind a restart: they sleep, and wake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import esker
from esker.engine.follower import Follower
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Server]:
    with esker.open(tmp_path / "data") as store:
        store["t"].append_many([b"0", b"1"])
    with serving(tmp_path / "data", Settings(port=0)) as server:
        yield server


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose files were looked at."""
    found: list[str] = []
    refresh = Follower.refresh

    def counted(self: Follower) -> int:
        found.append(self.folder)
        return refresh(self)

    monkeypatch.setattr(Follower, "refresh", counted)
    return found


def asked(client: Client, how: str, wait: float) -> list[object]:
    """What a call that waits finds behind the records that are there."""
    if how == "tail":
        answer = client.call("POST", "/v1/topics/t/tail", {"cursors": {"0": 2}, "wait": wait})
        return [None] if answer.json()["ends"]["0"] > 2 else []
    if how == "poll":
        body = {"member": "m", "wait": wait}
        found = client.call("POST", "/v1/topics/t/groups/g/poll", body).json()["records"]
    else:
        found = client.get(f"/v1/topics/t/records?start=2&wait={wait}").json()["records"]
    return [each["value"] for each in found]


@pytest.mark.parametrize("how", ["read", "tail", "poll"])
def test_a_long_poll_sleeps_and_is_woken_by_the_first_append(
    how: str, restarted: Server, looks: list[str]
) -> None:
    path, body = "/v1/topics/t/records", {"records": [{"value": "new"}]}
    with closing(Client(restarted)) as client, closing(Client(restarted)) as other:
        client.call("PUT", "/v1/topics/t/groups/g", {"start": "latest"})
        asked(client, how, 0)
        looks.clear()
        assert asked(client, how, 1.0) == []
        assert len(looks) < 30
        later = threading.Timer(0.2, lambda: other.call("POST", path, body))
        later.start()
        assert len(asked(client, how, 20)) == 1
        later.join()


STREAM = {"Content-Type": "text/plain"}


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("POST", "/v1/topics/t/records", {"records": [{"value": "a"}]}, {}),
        ("POST", "/v1/topics/new/records", {"records": [{"value": "a"}]}, {}),
        ("PUT", "/ds/stream", b"a", STREAM),
    ],
)
def test_the_loop_does_not_wait_for_who_makes_a_topic(
    method: str, path: str, body: object, headers: dict[str, str], restarted: Server,
) -> None:  # fmt: skip
    made, asked = threading.Event(), threading.Event()
    store = restarted.app.store._store

    def make() -> None:
        with store._lock:  # as who makes one, while a slow disk syncs its directory
            asked.set()
            made.wait(10)

    def call() -> None:
        with closing(Client(restarted)) as client:
            client.call(method, path, body, headers)

    with closing(Client(restarted)) as client:
        maker, caller = threading.Thread(target=make), threading.Thread(target=call)
        lookup = store._lookup
        patched = pytest.MonkeyPatch()

        def known(name: str) -> object:
            """The call has come so far that it asks for a topic."""
            found = lookup(name)
            if not maker.is_alive() and not asked.is_set():
                maker.start()
                assert asked.wait(10)
            return found

        patched.setattr(store, "_lookup", known)
        caller.start()
        try:
            assert asked.wait(10)
            for _ in range(20):
                assert client.get("/healthz").status == 200
                time.sleep(0.01)
            assert not made.is_set()
            assert maker.is_alive(), "it was waited for"
        finally:
            made.set()
            patched.undo()
            caller.join()
            maker.join()


def test_the_server_keeps_nothing_of_topics_that_are_deleted(restarted: Server) -> None:
    app = restarted.app
    with closing(Client(restarted)) as client:
        for number in range(3):
            client.call("POST", f"/v1/topics/t{number}/records", {"records": [{"value": "a"}]})
            assert client.get(f"/v1/topics/t{number}").status == 200
            client.call("DELETE", f"/v1/topics/t{number}?missing_ok=true")
            client.call("PUT", f"/ds/s{number}", b"a", {**STREAM, "Stream-TTL": "1"})
        assert client.call("DELETE", "/v1/topics/t0?missing_ok=true").json()["deleted"] is False
        assert client.call("DELETE", "/v1/topics/t0").status == 404
        assert client.call("DELETE", "/ds/s0").status == 204
        time.sleep(1.1)
        for number in range(3):
            assert client.get(f"/ds/s{number}").status == 404
    kept = {*app.store._topics, *app.store._store._topics}
    for each in (app.hub, app.hub.ready):
        for value in vars(each).values():
            kept |= value.keys() if isinstance(value, dict) else set()
    assert not kept & {f"{kind}{number}" for kind in "ts" for number in range(3)}
