"""Delivery under load: slow clients are contained, pressure costs latency and nothing else."""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esker.errors import InvalidOption
from esker.routes.registry import Registry
from esker.server.live.feed import rules
from esker.server.live.stream import (
    QUEUE_BYTES,
    SOCKET_MESSAGES,
    SSE_FRAMES,
    EventStream,
    Interest,
    SocketStream,
)
from esker.server.run import Server, serving
from esker.server.settings import Settings
from esker.server.table import ROUTES
from tests.server.conftest import Client
from tests.server.streams import Events
from tests.server.test_limits import resident
from tests.server.test_serve import Process, process
from tests.server.test_socket import Socket
from tests.server.test_watch import on_loop, until


def stalled(server: Server | Process, query: str, **headers: str) -> socket.socket:
    """A client that asks for a stream and never reads."""
    told = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return opened(server, f"GET /v1/watch?{query} HTTP/1.1\r\n{told}")


def opened(server: Server | Process, head: str) -> socket.socket:
    """A connection with little room for answers, on which this was asked."""
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, int(port)))
    made.sendall(f"{head}Host: {host}:{port}\r\n\r\n".encode())
    return made


def waiting(server: Server) -> int:
    return int(on_loop(server, lambda: sum(each.queued for each in server.app.hub.streams)))


def test_a_stalled_client_holds_no_more_than_its_bound_and_nobody_up(
    server: Server, client: Client
) -> None:
    client.append("t", "first")
    hub = server.app.hub
    lame = [stalled(server, "topics=t") for _ in range(5)]
    with Events(server.url, "/v1/watch?topics=t") as good:
        good.next("caught-up")
        until(lambda: len(hub.streams) == 6)
        for _ in range(60):
            client.append("t", *(["x" * 10_000] * 20))  # 12 MB in all
            assert len(good.values(20)) == 20
            assert waiting(server) <= 5 * (QUEUE_BYTES + (300 << 10))
        assert hub.counts["lagging"] >= 5
        until(lambda: waiting(server) == 0)
    for each in lame:
        each.close()
    until(lambda: not hub.streams)


@pytest.mark.slow
def test_many_stalled_clients_cost_little_memory_and_nobody_time(tmp_path: Path) -> None:
    """Two hundred streams of each kind that nobody reads, and 50,000 records for each of them."""
    count, hello = 200, msgspec.json.encode({"op": "subscribe", "topic": "t"})
    ws = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    ws += f"Sec-WebSocket-Key: {'A' * 22}==\r\n"
    with process(tmp_path, "--streams", 2 * count + 1) as server:
        pid = server.process.pid
        client = Client(server)  # type: ignore[arg-type]
        client.append("t", "first")
        lame = [stalled(server, "topics=t") for _ in range(count)]
        for _ in range(count):
            made = opened(server, f"GET /v1/ws HTTP/1.1\r\n{ws}")
            made.recv(4096)  # the handshake, and nothing after it
            made.sendall(bytes([0x81, 0x80 | len(hello), 0, 0, 0, 0]) + hello)
            lame.append(made)
        with Events(server.url, "/v1/watch?topics=t") as good:
            good.next("caught-up")
            until(lambda: measured(client, "esker_streams_under_way") == 2 * count + 1)
            before, slowest = resident(pid=pid), 0.0
            for _ in range(1_000):
                began = time.monotonic()
                client.append("t", *(["x" * 100] * 50))
                slowest = max(slowest, time.monotonic() - began)
                assert len(good.values(50)) == 50
            assert measured(client, "esker_lagging_total") >= 2 * count
            assert resident("VmHWM", pid) - before < 128 << 20  # records for all of them: 4 GB
            assert slowest < 2
        for each in lame:
            each.close()
        client.close()


def test_a_client_that_lagged_is_told_and_goes_on_without_a_gap(
    server: Server, client: Client
) -> None:
    client.append("t", "first")
    hub = server.app.hub
    lame = stalled(server, "topics=t")
    until(lambda: len(hub.streams) == 1 and all(s.task is None for s in hub.streams))
    sent = 1
    while not hub.counts["lagging"]:
        client.append("t", *(["x" * 10_000] * 20))
        sent += 20
        assert sent < 10_000
    client.append("t", "last")
    lame.settimeout(20)
    events = Events.__new__(Events)  # the same connection, read from now on
    events.last, events.retry, events.comments, events.socket = "", 0, [], lame
    events._file = lame.makefile("rb")
    while events._file.readline().strip():
        pass
    events._parsed = events._parse()
    offsets: list[int] = []
    kinds: list[str] = []
    while not offsets or offsets[-1] < sent:
        event = events.next()
        kinds.append(event.kind)
        if event.kind == "record":
            offsets += [each["offset"] for each in event.json()["records"]]
    assert "lagging" in kinds
    assert offsets == list(range(1, sent + 1))
    assert events.next().kind == "caught-up"
    client.append("t", "live again")
    assert events.values(1) == ["live again"]
    events.close()


@pytest.mark.slow
def test_a_socket_that_lags_is_told_and_goes_on_without_a_gap(
    server: Server, client: Client
) -> None:
    client.append("t", "first")
    hub = server.app.hub
    made = Socket(server.url, max_queue=1)
    made.ask("subscribe", topic="t", start="earliest")
    sent = 1
    while not hub.counts["lagging"]:
        client.append("t", *(["x" * 50_000] * 10))
        sent += 10
        assert sent < 10_000
        (stream,) = hub.streams
        assert len(stream.queue or ()) <= SOCKET_MESSAGES
    offsets: list[int] = []
    lagged = False
    while len(offsets) < sent:
        told = made.hear()
        lagged |= told["op"] == "lagging"
        if told["op"] == "record":
            offsets += [each["offset"] for each in told["records"]]
    assert lagged
    assert offsets == list(range(sent))
    made.raw.close()


def test_a_slow_client_of_many_topics_that_is_cut_off_again_and_again_misses_nothing(
    server: Server, client: Client
) -> None:
    """The cursor of every event is that of what was sent, also where others of its stream lag."""
    names, each, size = ("a", "b", "c"), 150, 20
    for name in names:
        client.append(name, "first")

    def write(name: str) -> None:
        writer = Client(server)
        for _ in range(each):
            writer.append(name, *(["x" * 2_000] * size))
        writer.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    seen: dict[str, list[int]] = {name: [] for name in names}
    last, choose = "", random.Random(3)
    total = len(names) * (each * size + 1)
    path = "/v1/watch?topics=a,b,c&start=earliest"
    while sum(map(len, seen.values())) < total:
        with Events(server.url, path, last, small=True) as events:
            time.sleep(choose.choice((0.0, 0.0, 0.3)))
            for _ in range(choose.choice((3, 20, 200))):
                event = events.next()
                last = event.id
                if event.kind == "record":
                    told = event.json()
                    seen[told["topic"]] += [each["offset"] for each in told["records"]]
                if sum(map(len, seen.values())) >= total:
                    break
    for thread in threads:
        thread.join()
    for offsets in seen.values():
        assert offsets == list(range(each * size + 1))


def test_a_queue_of_events_has_a_bound_in_frames_and_in_bytes() -> None:
    stream = EventStream(None, None)  # type: ignore[arg-type]
    assert stream.room == SSE_FRAMES == 1_024
    frame: Any = type("F", (), {"body": b"", "begin": 0, "next": 1})
    for _ in range(SSE_FRAMES):
        assert not stream.full
        stream.enqueue(None, frame)  # type: ignore[arg-type]
    assert stream.full
    large: Any = type("F", (), {"body": b"x" * QUEUE_BYTES, "begin": 0, "next": 1})
    stream = EventStream(None, None)  # type: ignore[arg-type]
    stream.enqueue(None, large)  # type: ignore[arg-type]
    assert stream.full


def test_a_client_that_takes_nothing_at_all_is_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, stall_seconds=1.0)) as server:
        client = Client(server)
        client.append("t", "first")
        lame = stalled(server, "topics=t&start=earliest")
        for _ in range(40):
            client.append("t", *(["x" * 10_000] * 20))
        until(lambda: not server.app.hub.streams)
        lame.close()
        client.close()


def test_a_client_that_takes_nothing_is_sent_away_also_when_nothing_more_comes(
    tmp_path: Path,
) -> None:
    """All that came was handed to the connection at once; then the topic is quiet."""
    with serving(tmp_path / "data", Settings(port=0, stall_seconds=1.0)) as server:
        hub = server.app.hub
        client = Client(server)
        client.append("t", "first")
        lame = stalled(server, "topics=t&headers=false")
        until(lambda: on_loop(server, lambda: [each.live for each in interests(server)] == [True]))

        def paused() -> bool:
            (stream,) = hub.streams
            return not stream.open and stream.task is None and not stream.queue

        while not on_loop(server, paused):  # each is taken at once, until one is too much
            client.append("t", "x" * 200_000)
            time.sleep(0.02)
        until(lambda: not hub.streams)
        lame.close()
        client.close()


def interests(server: Server) -> list[Interest]:
    return [each for stream in server.app.hub.streams for each in stream.interests]


def test_who_does_not_even_take_that_it_lags_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "data", Settings(port=0, stall_seconds=1.0)) as server:
        client = Client(server)
        client.append("t", "first")
        real = SocketStream.put

        async def put(stream: SocketStream, data: bytes) -> None:
            if b"lagging" in data:
                await asyncio.Event().wait()  # nobody reads
            await real(stream, data)

        monkeypatch.setattr(SocketStream, "put", put)
        ws = Socket(server.url)
        ws.say("subscribe", topic="t", start="earliest")
        until(lambda: any(each.live for each in interests(server)))
        on_loop(server, lambda: server.app.hub.lag(*server.app.hub.streams))
        until(lambda: not server.app.hub.streams)
        ws.raw.close()
        client.close()


def test_a_record_is_made_into_a_frame_once_for_all_who_look_alike(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", "first")
    opened = [Events(server.url, "/v1/watch?topics=t") for _ in range(10)]
    opened += [Events(server.url, "/v1/watch?topics=t&values=json") for _ in range(3)]
    for each in opened:
        each.next("caught-up")
    from esker.server.live.frames import Maker

    made: list[str] = []
    kept = Maker._record

    def counted(self: Any, batches: Any, lens: Any, *rest: Any) -> Any:
        made.append(lens.values)
        return kept(self, batches, lens, *rest)

    monkeypatch.setattr(Maker, "_record", counted)
    client.append("t", "one")
    for each in opened:
        assert each.values(1) in (["one"], [1])
        each.close()
    assert sorted(made) == ["json", "text"]


def test_nothing_is_made_for_who_has_no_room(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", "first")
    made = Socket(server.url)
    made.ask("subscribe", topic="t")
    made.hear("caught_up")
    hub = server.app.hub
    (stream,) = hub.streams
    feed = hub.feeds["t"][0, False]
    until(lambda: stream.task is None and feed.armed and not feed.dirty and not feed.draining)

    def fill() -> None:
        """Four messages wait, and the task that would send them does not come to it."""
        stream.task = hub._loop.create_future()  # type: ignore[union-attr,assignment]
        hub._slow.add(stream)
        frame = hub.feeds["t"][0, False].maker.caught_up(1, "json")
        for _ in range(SOCKET_MESSAGES):
            stream.enqueue(stream.interests[0], frame)

    on_loop(server, fill)
    lenses: list[Any] = []
    from esker.server.live import hub as module

    kept = module.step_of

    def seen(feed: Any, begin: int, given: Any) -> Any:
        lenses.append(given)
        return kept(feed, begin, given)

    monkeypatch.setattr(module, "step_of", seen)
    client.append("t", "second")
    until(lambda: lenses)
    assert set(lenses) == {()}
    assert hub.counts["lagging"] == 1

    def go_on() -> None:
        stream.task = None
        hub._push(stream)

    on_loop(server, go_on)
    assert made.values(1) == ["second"]
    made.raw.close()


# ---- pressure ---------------------------------------------------------------------------------


@pytest.fixture
def pressed(server: Server) -> Iterator[Any]:
    """Sets the pressure, whatever is measured."""
    governor = server.app.hub.governor
    kept = governor.sample

    def hold(pressure: float) -> None:
        def sample(ready: int, busy: float) -> float:
            governor.pressure = pressure
            governor._defer()
            return pressure

        governor.sample = sample  # type: ignore[method-assign]

    yield hold
    governor.sample = kept  # type: ignore[method-assign]


def test_a_saturated_server_refuses_appends_only_if_too_many_are_under_way(
    server: Server, client: Client, pressed: Any
) -> None:
    client.append("t", "a")
    hub = server.app.hub
    pressed(1.0)
    until(lambda: hub.governor.saturated)
    assert client.append("t", "b").status == 200  # nobody else appends
    hub.appends += server.app.settings.append_queue
    refused = client.append("t", "c")
    assert refused.status == 429
    assert refused.code == "throttled"
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["detail"] == {
        "limit": "append_queue", "max": 256, "retry_after_ms": 1000,
    }  # fmt: skip
    body = {"records": [{"value": "d"}]}
    path = "/v1/topics/t/records"
    assert client.call("POST", f"{path}?disable_backpressure=true", body).status == 200
    made = Socket(server.url)
    assert made.ask("publish", topic="t", records=[{"value": "e"}])["code"] == "throttled"
    made.raw.close()
    pressed(0.9)
    until(lambda: not hub.governor.saturated)
    assert client.append("t", "f").status == 200
    hub.appends -= server.app.settings.append_queue
    values = [each["value"] for each in client.get(path).json()["records"]]
    assert values == ["a", "b", "d", "f"]  # what was refused is not there
    assert hub.counts["refused"] == 2
    assert measured(client, "esker_throttled_total") == 2


def measured(client: Client, name: str) -> float:
    """What the metrics say."""
    lines = client.get("/metrics").body.decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_every_rung_of_the_ladder_is_seen_in_the_metrics(client: Client, pressed: Any) -> None:
    named = ("pressure_rung", "coalesce_seconds", "commit_window_seconds", "deferring")
    for pressure, seen in (
        (0.2, (0, 0, 0, 0)), (0.3, (1, 0.0025, 0, 0)), (0.5, (2, 0.0075, 0.00525, 0)),
        (0.9, (3, 0.0175, 0.00905, 1)), (0.7, (3, 0.0125, 0.00715, 1)),
        (0.95, (4, 0.01875, 0.009525, 1)), (0.5, (2, 0.0075, 0.00525, 0)), (0.0, (0, 0, 0, 0)),
    ):  # fmt: skip
        pressed(pressure)
        until(lambda at=pressure: measured(client, "esker_pressure_ratio") == at)
        until(lambda rung=seen[0]: measured(client, "esker_pressure_rung") == rung)
        assert [measured(client, f"esker_{name}") for name in named] == pytest.approx(seen)


def test_jobs_are_refused_under_pressure_as_all_appends_are(client: Client, pressed: Any) -> None:
    assert {route.handler for route in ROUTES if route.appends} == {
        "records.append", "queues.put", "stages.stage", "durable.create", "durable.append",
        "otlp.logs",
    }  # fmt: skip
    put = {"jobs": [{"value": "x"}]}
    assert client.call("PUT", "/v1/queues/q", {}).status == 201
    hub, most = client.server.app.hub, client.server.app.settings.append_queue
    pressed(1.0)
    until(lambda: hub.governor.saturated)
    assert client.call("POST", "/v1/queues/q/jobs", put).status == 200
    hub.appends += most
    refused = client.call("POST", "/v1/queues/q/jobs", put)
    assert (refused.status, refused.code) == (429, "throttled")
    assert client.call("POST", "/v1/queues/q/claim", {}).json()["jobs"], "what relieves it is not"
    hub.appends -= most
    assert hub.appends == 0
    assert client.get("/v1/queues/q").json()["unfinished"] == 1


def test_pressure_widens_the_commit_window_and_its_end_narrows_it(
    server: Server, client: Client, pressed: Any
) -> None:
    store = server.app.store
    committer = store._store._context.committer
    assert committer.window is None
    pressed(0.6)
    until(lambda: committer.window is not None)
    assert committer.window == pytest.approx(0.0005 + 0.0095 * 0.6)
    assert store._rounds.window == committer.window
    assert client.append("t", "a").status == 200
    pressed(0.1)
    until(lambda: committer.window is None)
    assert store._rounds.window == 0.0


def test_push_of_low_value_is_put_off_and_is_there_for_readers_all_the_while(
    tmp_path: Path,
) -> None:
    settings = Settings(port=0, priorities=("low*=-200", "high=900"))
    with serving(tmp_path / "data", settings) as server:
        client = Client(server)
        hub = server.app.hub
        for name in ("low", "high", "other"):
            client.append(name, "first")
        events = {
            name: Events(server.url, f"/v1/watch?topics={name}")
            for name in ("low", "high", "other")
        }
        for each in events.values():
            each.next("caught-up")
        governor = hub.governor

        def sample(ready: int, busy: float) -> float:
            governor.pressure = 0.9
            governor._defer()
            return 0.9

        governor.sample = sample  # type: ignore[method-assign]
        until(lambda: hub.ready.deferring)
        began = time.monotonic()
        for name in events:
            client.append(name, "second")
        assert events["high"].values(1) == ["second"]
        assert events["other"].values(1) == ["second"]
        assert time.monotonic() - began < 1.5
        assert hub.ready.sizes()[0] == 1
        page = client.get("/v1/topics/low/records").json()
        assert [each["value"] for each in page["records"]] == ["first", "second"]
        assert events["low"].values(1) == ["second"]  # it has risen out of its band
        assert time.monotonic() - began > 1.5
        client.append("low", "third")
        until(lambda: hub.ready.sizes()[0] == 1)
        governor.pressure = 0.0
        del governor.sample
        assert events["low"].values(1) == ["third"]
        for each in events.values():
            each.close()
        client.close()


def test_under_pressure_records_go_out_together(
    server: Server, client: Client, pressed: Any
) -> None:
    client.append("t", "first")
    pressed(0.79)
    until(lambda: server.app.hub.governor.pressure > 0.5)
    with Events(server.url, "/v1/watch?topics=t") as events:
        events.next("caught-up")
        threads = [threading.Thread(target=_append_some, args=(server, 20)) for _ in range(4)]
        for thread in threads:
            thread.start()
        count = frames = 0
        while count < 80:
            count += len(events.next("record").json()["records"])
            frames += 1
        for thread in threads:
            thread.join()
    assert frames < 60


def _append_some(server: Server, count: int) -> None:
    client = Client(server)
    for number in range(count):
        client.append("t", str(number))
    client.close()


def test_priorities_are_set_by_pattern_the_first_that_fits(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, priorities=("a.b=1", "a.*=-5"))) as server:
        hub = server.app.hub
        found = on_loop(server, lambda: [hub.priority(n) for n in ("a.b", "a.c", "x")])
        assert found == [1.0, -5.0, None]
    for wrong in ("a", "=5", "a=much"):
        with pytest.raises(InvalidOption):
            rules([wrong])


def test_real_load_raises_the_pressure_and_it_falls_again(server: Server) -> None:
    """Up the ladder and down again, as the metrics tell it; and every reader has every record."""
    client = Client(server)
    names = [f"t{n}" for n in range(40)]
    for name in names:
        client.append(name, "x")
    opened = [
        Events(server.url, "/v1/watch?topics=" + ",".join(names[n * 10 : n * 10 + 10]))
        for n in range(4)
    ]
    for each in opened:
        for _ in range(10):
            each.next("caught-up")
    stop = threading.Event()
    seen: dict[str, list[int]] = {name: [] for name in names}
    ended: set[str] = set()

    def write(number: int) -> None:
        writer = Client(server)
        while not stop.is_set():
            for name in names[number::4]:
                assert writer.append(name, *("y" * 100 for _ in range(50))).status == 200
        writer.close()

    def read(events: Events, wanted: int) -> None:
        mine: set[str] = set()
        while len(mine) < wanted:
            told = events.next("record").json()
            seen[told["topic"]] += [each["offset"] for each in told["records"]]
            if told["records"][-1]["value"] == "end":
                mine.add(told["topic"])
        ended.update(mine)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    readers = [threading.Thread(target=read, args=(each, 10)) for each in opened]
    for thread in (*writers, *readers):
        thread.start()
    until(lambda: measured(client, "esker_pressure_rung") >= 1, 30)
    time.sleep(1)
    stop.set()
    for thread in writers:
        thread.join()
    for name in names:
        client.append(name, "end")
    for thread in readers:
        thread.join(30)
    assert ended == set(names)
    for name in names:
        end = client.get(f"/v1/topics/{name}").json()["shards"][0]["end"]
        assert seen[name] == list(range(1, end)), name
    for each in opened:
        each.close()
    until(lambda: measured(client, "esker_pressure_rung") == 0)
    client.close()


# ---- latency ---------------------------------------------------------------------------------


def test_a_little_that_was_written_just_now_is_read_on_the_spot(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.append("t", "first")
    with Events(server.url, "/v1/watch?topics=t") as events:
        events.next("caught-up")
        client.append("t", "second")  # from here on it is known where the log ended
        assert events.values(1) == ["second"]
        feed = server.app.hub.feeds["t"][0, False]
        asked: list[int] = []
        run = server.app.run

        async def counted(work: Any) -> Any:
            asked.append(1)
            return await run(work)

        monkeypatch.setattr(server.app, "run", counted)
        until(lambda: feed.armed and not feed.dirty)
        for number in range(5):
            client.append("t", str(number))
            assert events.values(1) == [str(number)]
        assert not asked
        client.append("t", "x" * 100_000)
        assert events.values(1) == ["x" * 100_000]
        assert asked  # by a thread: it is too much for the loop


def test_from_write_to_delivery_takes_milliseconds(server: Server, client: Client) -> None:
    """Not a benchmark: that nothing on the way waits for a timer."""
    client.append("t", "first")
    took = []
    with Events(server.url, "/v1/watch?topics=t") as events:
        events.next("caught-up")
        for _ in range(30):
            began = time.monotonic()
            client.append("t", "x")
            events.next("record")
            took.append(time.monotonic() - began)
    assert statistics.median(took) < 0.05


def test_routes_to_topics_of_low_value_are_put_off_under_pressure(tmp_path: Path) -> None:
    settings = Settings(port=0, priorities=("low=-5", "high=900"))
    with serving(tmp_path / "data", settings) as server:
        client, hub = Client(server), server.app.hub
        client.append("source", "x")
        body = {"source": "source", "destination": "low"}
        assert client.call("PUT", "/v1/routes/a", body).status == 201
        assert not any(hub.puts_off(name) for name in ("low", "high", "nobody-reads"))
        on_loop(server, hub.pressed)
        (registry,) = (
            each for each in server.app.store._store._context.guests if isinstance(each, Registry)
        )
        assert registry.puts_off == hub.puts_off
        on_loop(server, lambda: setattr(hub.governor, "deferring", True))
        found = [hub.puts_off(name) for name in ("low", "high", "nobody-reads")]
        on_loop(server, lambda: setattr(hub.governor, "deferring", False))
        assert found == [True, False, True]
        client.close()
