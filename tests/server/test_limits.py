"""Every limit of the server, on both sides of its edge, and what is meant to get past them.

At the limit a request is taken, one more and it is refused, with the status that says so. Slow
clients are let go when their time is up, and cost nobody else anything. Bombs cost neither memory
nor time.
"""

from __future__ import annotations

import gzip
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from esker.server.app import QUERY_FIELDS
from esker.server.bodies import nesting
from esker.server.bodies.arrow_in import RECORDS_MAX
from esker.server.bodies.wire_live import TOPICS_MAX
from esker.server.http import connection
from esker.server.live.stream import SHARDS_MAX
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client
from tests.server.raw import HOST, Heard, alive, answers, connected, listen, told
from tests.server.streams import Events
from tests.server.test_socket import Socket

NDJSON = {"Content-Type": "application/x-ndjson"}
BYTES = {"Content-Type": "application/octet-stream"}
POST = b"POST /v1/topics/t/records HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


def once(server: Server, data: bytes) -> Heard:
    (answer,) = told(server, data, wait=0.2)
    return answer


def test_the_request_line(client: Client) -> None:
    most = client.server.settings.line_bytes
    for over in (0, 1):
        query = b"?prefix=" + b"a" * 1_000 + b"&cursor=" + b"%61" * 341
        fill = most + over - len(b"GET /v1/topics" + query + b" HTTP/1.1")
        path = b"/v1/topics" + query + b"#" + b"f" * (fill - 1)
        line = b"GET " + path + b" HTTP/1.1"
        assert len(line) == most + over
        answer = once(client.server, line + b"\r\n" + HOST + b"\r\n")
        assert answer.status == (431 if over else 200), answer.body
    assert answer.code == "headers_too_large"


def test_the_bytes_of_the_headers(client: Client) -> None:
    most = client.server.settings.header_bytes
    for over in (0, 1):
        fill = b"A: " + b"x" * (most + over - len(HOST) - len(b"A: \r\n")) + b"\r\n"
        assert len(HOST + fill) == most + over
        answer = once(client.server, b"GET /healthz HTTP/1.1\r\n" + HOST + fill + b"\r\n")
        assert answer.status == (431 if over else 200), answer.body
    assert answer.code == "headers_too_large"


def test_the_number_of_headers(client: Client) -> None:
    most = client.server.settings.header_count
    for over in (0, 1):
        many = b"A: b\r\n" * (most + over - 1)
        answer = once(client.server, b"GET /healthz HTTP/1.1\r\n" + HOST + many + b"\r\n")
        assert answer.status == (431 if over else 200), answer.body
    assert answer.code == "headers_too_large"


def test_the_head_as_a_whole_is_bounded_while_it_comes_in(client: Client) -> None:
    """Blanks and empty lines are in no header, and count all the same."""
    for endless in (b"GET /" + b"a" * (1 << 20), b"\r\n" * (1 << 19), b"GET / HTTP/1.1\r\nA:"
                    + b" " * (1 << 20), b"GET / HTTP/1.1\r\n" + b"B" * (1 << 20)):  # fmt: skip
        answer = once(client.server, endless)
        assert (answer.status, answer.code) == (431, "headers_too_large")


def test_the_bytes_of_a_body(tmp_path: Path) -> None:
    most = 100_000
    with serving(tmp_path / "data", Settings(port=0, body_bytes=most)) as server:
        client = Client(server)
        for over in (0, 1):
            body = b"x" * (most + over)
            answer = client.call("POST", "/v1/topics/t/records", body, BYTES)
            assert answer.status == (413 if over else 200), answer.body
            assert not over or answer.code == "payload_too_large"
            client.close()
            head = POST.replace(b"application/json", b"application/octet-stream")
            chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
            for at in range(0, len(body), 9_999):
                piece = body[at : at + 9_999]
                chunked += b"%x\r\n" % len(piece) + piece + b"\r\n"
            heard = once(server, chunked + b"0\r\n\r\n")
            assert heard.status == (413 if over else 200), heard.body
        # A length that lies: more is not read as this body, and less never becomes a record.
        assert once(server, head + b"Content-Length: 2\r\n\r\nabcdef").status == 200
        assert told(server, head + b"Content-Length: 20\r\n\r\nabc") == []
        # And it is said before anything of it is sent, if the client asks first.
        for length in (b"99999999", b"100001"):
            ask = head + b"Expect: 100-continue\r\nContent-Length: " + length + b"\r\n\r\n"
            assert once(server, ask).status == 413
        values = client.get("/v1/topics/t/records?max_bytes=8000000").json()["records"]
        assert [len(record["value"]) for record in values] == [most, most, 2]
        client.close()


def test_the_records_of_a_batch(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, batch_records=10)) as server:
        client = Client(server)
        for over in (0, 1):
            records = [{"value": str(n)} for n in range(10 + over)]
            lines = b"\n".join(map(msgspec.json.encode, records))
            path = "/v1/topics/t/records"
            for answer in (
                client.call("POST", path, {"records": records}),
                client.call("POST", path, lines, NDJSON),
                client.call("POST", path, lines.replace(b"\n", b" "), NDJSON),
            ):
                assert answer.status == (400 if over else 200), answer.body
                assert not over or answer.code == "batch_too_large"
        answer = client.call("POST", path, b"\n" * 99 + lines[: lines.rindex(b"\n")], NDJSON)
        assert answer.json()["count"] == 10, "lines without a record are none"
        client.close()


def test_the_number_of_topics(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, topics=3)) as server:
        client = Client(server)
        for n in range(2):
            assert client.call("PUT", f"/v1/topics/t{n}", {}).status == 201
        answer = client.call("PUT", "/v1/queues/q", {"dead_letter": "q.dead"})
        assert (answer.status, answer.json()["error"]["detail"]) == (
            429, {"limit": "topics", "max": 3},
        )  # fmt: skip
        assert client.call("PUT", "/v1/queues/t2", {}).status == 201
        answer = client.call("PUT", "/v1/topics/t3", {})
        assert (answer.status, answer.code) == (429, "throttled")
        assert client.call("PUT", "/v1/topics/t2", {}).status == 200
        client.close()


def test_the_topics_of_a_stream(server: Server, client: Client) -> None:
    for over in (0, 1):
        names = [f"n{number}" for number in range(TOPICS_MAX + over)]
        with Events(server.url, f"/v1/watch?lenient=true&topics={','.join(names)}") as events:
            assert events.status == (400 if over else 200), over
        body = {"lenient": True, "topics": {name: {} for name in names}}
        assert client.call("POST", "/v1/watch", body).status == (400 if over else 201)
        socket = Socket(server.url)
        told = socket.ask("subscribe", topics=names, lenient=True)
        assert told["op"] == ("error" if over else "subscribed"), told
        socket.raw.close()


def test_the_shards_of_a_stream(server: Server, client: Client) -> None:
    half = SHARDS_MAX // 2
    for name, shards in (("a", half), ("b", half), ("c", half + 1)):
        assert client.call("PUT", f"/v1/topics/{name}", {"shards": shards}).status == 201
    for topics, fits in (("a,b", True), ("a,c", False)):
        with Events(server.url, f"/v1/watch?topics={topics}") as events:
            assert events.status == (200 if fits else 400), topics
        socket = Socket(server.url)
        told = [socket.ask("subscribe", topic=name) for name in topics.split(",")]
        assert told[0]["op"] == "subscribed"
        assert told[1]["op"] == ("subscribed" if fits else "error"), "of a connection, however"
        socket.raw.close()


def test_the_names_in_a_query(client: Client) -> None:
    for count in (QUERY_FIELDS, QUERY_FIELDS + 1):
        query = "&".join(f"n{number}=1" for number in range(count))
        answer = client.get(f"/v1/topics?{query}")
        assert (answer.status, answer.code) == (400, "invalid_request")
        looked = "unknown field" in answer.json()["error"]["message"]
        assert looked == (count == QUERY_FIELDS), "one too many: none of them is looked at"


def test_the_bytes_of_a_staged_stream(tmp_path: Path) -> None:
    body = stream(pa.array([b"x" * 1_000] * 50))
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
    for over in (0, 1):
        settings = Settings(port=0, stage_bytes=len(body) - over)
        with serving(tmp_path / f"data{over}", settings) as server:
            client = Client(server)
            answer = client.call("POST", "/v1/topics/t/stages", body, kind)
            assert answer.status == (413 if over else 201), answer.body
            client.close()


def test_the_records_of_an_arrow_stream(client: Client) -> None:
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
    for over in (0, 1):
        body = stream(pa.array([b""] * (RECORDS_MAX + over)))
        answer = client.call("POST", "/v1/topics/t/records", body, kind)
        assert answer.status == (400 if over else 200), answer.body
        assert not over or answer.code == "batch_too_large"


def test_the_wait_of_a_long_poll(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, wait_seconds=0.2)) as server:
        client = Client(server)
        client.append("t", "x")
        assert client.get("/v1/topics/t/records?start=1&wait=0.2").status == 200
        answer = client.get("/v1/topics/t/records?start=1&wait=0.21")
        assert (answer.status, answer.code) == (400, "invalid_request")
        client.close()


def test_the_number_of_connections(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0, connections=5)) as server:
        held = [connected(server) for _ in range(5)]
        for sock in held:
            sock.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert answers(sock.recv(1 << 16))[0].status == 200
        for ask in (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", b""):
            (answer,) = told(server, ask)
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
        crowd = [connected(server) for _ in range(100)]  # those far above it are just closed
        time.sleep(0.1)
        heard = [listen(sock) for sock in crowd]
        assert {answers(each)[0].status for each in heard if each} == {503}
        assert b"" in heard
        for sock in [*held, *crowd]:
            sock.close()
        client = Client(server)
        for _ in range(100):  # their places are free again
            if client.get("/healthz").status == 200:
                break
            client.close()
            time.sleep(0.02)
        alive(client)
        client.close()


def slow(server: Server, data: bytes, pace: float = 0.03) -> tuple[bytes, float]:
    """Send a byte at a time for ever, and say what came back and when it was over."""
    with connected(server) as sock:
        began = time.monotonic()
        try:
            for byte in data:
                sock.sendall(bytes([byte]))
                sock.settimeout(pace)
                try:
                    found = sock.recv(1 << 16)
                except TimeoutError:
                    continue
                return found, time.monotonic() - began
        except OSError:
            return b"", time.monotonic() - began
        return listen(sock), time.monotonic() - began


@pytest.fixture
def impatient(tmp_path: Path) -> Any:
    given = Settings(port=0, header_seconds=0.4, body_seconds=0.8, idle_seconds=0.6)
    with serving(tmp_path / "data", given) as server:
        yield server


def test_headers_that_trickle_are_cut_off_in_time(impatient: Server) -> None:
    heard, took = slow(impatient, b"GET /healthz HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 60)
    (answer,) = answers(heard)
    assert (answer.status, answer.code) == (408, "request_timeout")
    assert 0.3 < took < 2
    with connected(impatient) as sock:  # silence from the beginning
        began = time.monotonic()
        assert listen(sock) == b""
        assert 0.3 < time.monotonic() - began < 2
    heard, took = slow(impatient, b"\r\n" * 500)  # which is nothing yet, in many pieces
    assert took < 2


def test_a_body_that_trickles_is_cut_off_in_time(impatient: Server) -> None:
    head = POST + b"Content-Length: 1000\r\n\r\n"
    for body in (
        head + b"x" * 1_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 99,
    ):
        with connected(impatient) as sock:
            sock.sendall(body[: len(head) - 10])
            began = time.monotonic()
            for byte in body[len(head) - 10 :]:
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    break
                time.sleep(0.02)
                if time.monotonic() - began > 1.2:
                    break
            (answer,) = answers(listen(sock))
            assert (answer.status, answer.code) == (408, "request_timeout")
            assert time.monotonic() - began < 3
    client = Client(impatient)
    assert client.get("/v1/topics/t").status == 404
    client.close()


def test_a_body_must_come_at_the_least_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RATE_AFTER", 0.3)
    given = Settings(port=0, body_seconds=20, body_rate=10_000, header_seconds=0.5)

    def send(server: Server, pieces: int, size: int) -> tuple[Heard, float]:
        head = POST.replace(b"application/json", b"application/octet-stream")
        with connected(server) as sock:
            sock.sendall(head + b"Content-Length: %d\r\n\r\n" % (pieces * size))
            began = time.monotonic()
            for _ in range(pieces):
                time.sleep(0.05)
                try:
                    sock.sendall(b"x" * size)
                except OSError:
                    break
            (answer,) = answers(listen(sock, quiet=1.0))
            return answer, time.monotonic() - began

    with serving(tmp_path / "data", given) as server:
        answer, took = send(server, 40, 50)  # 1,000 bytes a second
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert took < 5
        answer, _ = send(server, 20, 2_000)  # 40,000 bytes a second, for longer than the wait
        assert answer.status == 200, answer.body


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(impatient: Server) -> None:
    ask = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    with connected(impatient) as sock:
        for _ in range(4):
            sock.sendall(ask)
            assert answers(sock.recv(1 << 16))[0].status == 200
            time.sleep(0.3)
        began = time.monotonic()
        assert listen(sock) == b""
        assert time.monotonic() - began < 2
    client = Client(impatient)
    client.append("t", "x")
    began = time.monotonic()
    page = client.get("/v1/topics/t/records?start=1&wait=1.5").json()  # no deadline is for this
    assert page["records"] == []
    assert time.monotonic() - began > 1.4
    client.close()


def test_slow_clients_cost_others_nothing(tmp_path: Path) -> None:
    """Slowloris: five hundred connections that trickle, and one that works."""
    given = Settings(port=0, header_seconds=1.5, body_seconds=1.5)
    with serving(tmp_path / "data", given) as server:
        client = Client(server)
        client.append("t", "x")
        heads = [b"GET /healthz HTTP/1.1\r\n", POST + b"Content-Length: 1000\r\n\r\nx", b""]
        crowd = []
        for n in range(500):
            sock = connected(server)
            sock.sendall(heads[n % 3])
            crowd.append(sock)
        took = []
        began = time.monotonic()
        while time.monotonic() - began < 1.0:
            for sock in crowd[len(took) % 10 :: 10]:
                sock.sendall(b"x")
            before = time.monotonic()
            alive(client)
            took.append(time.monotonic() - before)
        assert sorted(took)[int(len(took) * 0.99)] < 0.25, "an answer waited for the slow ones"
        state = server._uvicorn.server_state
        deadline = time.monotonic() + 6
        while len(state.connections) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(state.connections) == 1, "each is gone when its time is up"
        assert not state.tasks
        for sock in crowd:
            sock.close()
        client.close()


def test_a_client_that_does_not_take_its_answer_is_let_go(tmp_path: Path) -> None:
    given = Settings(port=0, body_seconds=0.5, header_seconds=0.5, idle_seconds=60)
    with serving(tmp_path / "data", given) as server:
        client = Client(server)
        for _ in range(8):
            client.call("POST", "/v1/topics/t/records", b"x" * 900_000, BYTES)
        ask = b"GET /v1/topics/t/records?limit=8&max_bytes=8000000 HTTP/1.1\r\n" + HOST + b"\r\n"
        with connected(server) as sock:
            sock.setsockopt(1, 8, 4_096)  # SO_RCVBUF
            sock.sendall(ask)
            state = server._uvicorn.server_state
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline:
                time.sleep(0.05)
                if len(state.connections) == 1:
                    break
            assert len(state.connections) == 1, "a reader that does not read holds its answer"
        answer = client.get("/v1/topics/t/records?limit=8&max_bytes=8000000")
        assert len(answer.json()["records"]) == 8
        client.close()


def test_what_slow_clients_do_not_take_is_bounded_for_all_together(tmp_path: Path) -> None:
    most = 20 << 20
    with serving(tmp_path / "data", Settings(port=0, answer_bytes=most)) as server:
        client, app = Client(server), server.app
        for _ in range(8):
            client.call("POST", "/v1/topics/t/records", b"x" * 900_000, BYTES)
        page = "/v1/topics/t/records?limit=8&max_bytes=8000000"
        crowd = [connected(server) for _ in range(8)]
        try:
            for sock in crowd:
                sock.setsockopt(1, 8, 4_096)  # SO_RCVBUF
                sock.sendall(f"GET {page} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
            heads = [sock.recv(12)[-3:] for sock in crowd]  # the status is all that they take
            assert (b"200" in heads, b"429" in heads) == (True, True)
            assert 10 << 20 < app.untaken <= most
            refused = client.get(page)
            assert refused.json()["error"]["detail"] == {"limit": "answer_bytes", "max": most}
            assert refused.headers["retry-after"] == "1"
            assert client.append("t", "y").status == 200
            assert client.get("/v1/topics/t").status == 200
        finally:
            for sock in crowd:
                sock.close()
        for _ in range(100):
            if app.untaken == 0:
                break
            time.sleep(0.05)
        assert client.get(page).status == 200
        client.close()
        for _ in range(100):
            if app.untaken == 0:
                break
            time.sleep(0.05)
        assert app.untaken == 0, "what was taken, and what is gone, does not wait"


# ---- bombs -----------------------------------------------------------------------------------


def resident(which: str = "VmRSS", pid: int | str = "self") -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{which}:")[2].split()[0]) << 10


def stream(column: Any, compression: str | None = None, **more: Any) -> bytes:
    """A column of values, and others, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([column, *more.values()], names=["value", *more])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def test_arrow_of_every_plain_kind_is_taken(client: Client) -> None:
    arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
    texts = ["a", "bc", "a" * 40]
    kinds = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(),
             pa.string_view(), pa.dictionary(pa.int8(), pa.string())]  # fmt: skip
    for kind in kinds:
        body = stream(pa.array(texts).cast(kind))
        answer = client.call("POST", "/v1/topics/t/records", body, arrow)
        assert answer.status == 200, (kind, answer.body)
    records = client.get("/v1/topics/t/records").json()["records"]
    assert [record["value"] for record in records] == texts * len(kinds)
    pairs = [[("k", b"v"), ("l", b"w")], None, []]
    plain = pa.struct([("key", pa.string()), ("value", pa.binary())])
    short = pa.struct([("key", pa.dictionary(pa.int8(), pa.string())), ("value", pa.binary_view())])
    of_headers = [pa.list_(plain), pa.large_list(plain), pa.map_(pa.string(), pa.binary()),
                  pa.list_(short)]  # fmt: skip
    for kind in of_headers:
        mapped = pa.types.is_map(kind)
        cells = pa.array(
            [each and [pair if mapped else dict(zip(("key", "value"), pair, strict=True))
             for pair in each] for each in pairs], kind,
        )  # fmt: skip
        body = stream(pa.array(texts), headers=cells)
        answer = client.call("POST", "/v1/topics/h/records", body, arrow)
        assert answer.status == 200, (kind, answer.body)
    records = client.get("/v1/topics/h/records").json()["records"]
    assert [each.get("headers") for each in records] == [
        {"k": "v", "l": "w"}, None, None
    ] * len(of_headers)  # fmt: skip


def bombs() -> dict[str, tuple[dict[str, str], bytes]]:
    zeros = b'{"records":[{"value":"' + b"0" * (64 << 20) + b'"}]}'
    deflated = zlib.compress(zeros, 9)
    json = {"Content-Type": "application/json"}
    deep = b"[" * 100_000 + b"]" * 100_000
    arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
    once = pa.array([b"0" * 900_000])
    word = pa.DictionaryArray.from_arrays(pa.array([0] * 500_000, pa.int8()), once)
    views = pa.Array.from_buffers(
        pa.binary_view(), 200_000,
        [None, pa.py_buffer(struct.pack("<i4sii", 900_000, b"0000", 0, 0) * 200_000),
         pa.py_buffer(b"0" * 900_000)],
    )  # fmt: skip
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int32()), pa.array([b"x"]))
    letters = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int8()), once)
    pairs = pa.StructArray.from_arrays([letters.cast(pa.dictionary(pa.int8(), pa.string())),
                                        letters], ["key", "value"])  # fmt: skip
    one_each = pa.ListArray.from_arrays(pa.array(range(200_001), pa.int32()), pairs)
    fifty = pa.StructArray.from_arrays(
        [pa.array(["k"] * 50), pa.array([b"0" * 60_000] * 50)], ["key", "value"]
    )
    shared = pa.ListViewArray.from_arrays(
        pa.array([0] * 10_000, pa.int32()), pa.array([50] * 10_000, pa.int32()), fifty
    )
    bad = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(struct.pack("<iii", 0, 1 << 30, 1)), pa.py_buffer(b"x")]
    )
    return {
        "arrow, one word half a million times": (arrow, stream(word)),
        "arrow, one value in many views": (arrow, stream(views)),
        "arrow, one run of a thousand million": (arrow, stream(runs)),
        "arrow, nothing a thousand million times": (arrow, stream(pa.nulls(1 << 30))),
        "arrow, one header very many times": (
            arrow, stream(pa.array([b""] * 200_000), headers=one_each),
        ),
        "arrow, headers that many share": (
            arrow, stream(pa.array([b""] * 10_000), headers=shared),
        ),
        "arrow, thousands of columns": (
            arrow, stream(pa.array([b"x"]), **{f"c{n}": pa.array([b"x"]) for n in range(5_000)}),
        ),
        "arrow, offsets that point elsewhere": (arrow, stream(bad)),
        "arrow, a compressed dictionary": (arrow, stream(word, "lz4")),
        "gzip": ({**json, "Content-Encoding": "gzip"}, gzip.compress(zeros, 9)),
        "deflate": ({**json, "Content-Encoding": "deflate"}, deflated),
        "br": ({**json, "Content-Encoding": "br"}, deflated),
        "zstd": ({**json, "Content-Encoding": "zstd"}, bytes(pa.compress(zeros, "zstd"))),
        "arrow, compressed": (arrow, stream(pa.array([b"0" * 1_000_000] * 60), "zstd")),
        "nested arrays": (json, deep),
        "nested objects": (json, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "nested records": (json, b'{"records":' + deep + b"}"),
        "a nested value": (json, b'{"records":[{"value":' + deep + b"}]}"),
        "nested lines": (NDJSON, b'{"value":' + deep + b"}\n"),
        "an integer of a million digits": (json, b'{"records":' + b"9" * 1_000_000 + b"}"),
        "a timestamp of a million digits": (
            json, b'{"records":[{"value":"x","timestamp":' + b"9" * 1_000_000 + b"}]}",
        ),
        "1e400": (json, b'{"records":[{"value":"x","timestamp":1e400}]}'),
        "a million keys": (
            json, b'{"records":[{"value":"x","headers":{'
            + b",".join(b'"%d":"x"' % n for n in range(300_000)) + b"}}]}",
        ),
        "keys twice": (json, b"{" + b",".join([b'"records":[]'] * 300_000) + b',"x":1}'),
        "half a surrogate": (json, b'{"records":[{"value":"\\ud800"}]}'),
        "half a surrogate as key": (json, b'{"records":[{"value":"x","key":"\\udfff"}]}'),
        "a million empty records": (json, b'{"records":[' + b"{}," * 1_000_000 + b"{}]}"),
        "a million lines": (NDJSON, b"{}\n" * 1_000_000),
        "a million records in one line": (NDJSON, b"{}" * 1_000_000),
        "arrow of a forged size": (
            arrow, b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x00" * 1_000,
        ),
        "base64 of nothing": (json, b'{"records":[{"base64":"' + b"=" * 1_000_000 + b'"}]}'),
    }  # fmt: skip


def test_bombs_cost_neither_memory_nor_time(client: Client) -> None:
    """X9: under a second and 64 MiB each; what is refused is told as 4xx."""
    client.append("t", "x")
    made = bombs()
    for name, (headers, body) in made.items():
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident()
        began = time.monotonic()
        answer = client.call("POST", "/v1/topics/t/records", body, headers)
        took = time.monotonic() - began
        grown = resident("VmHWM") - before
        assert 400 <= answer.status < 500, (name, answer.status, answer.body)
        coded = "compressed" in name or "Content-Encoding" in headers
        assert coded <= (answer.status == 415), (name, answer.body)
        assert grown < 64 << 20, f"{name}: {grown >> 20} MiB"
        assert took < 1, f"{name}: {took:.2f} s"
        alive(client)
    assert len(made) >= 20


def message(tag: int, inner: bytes) -> bytes:
    """A message of protobuf within another one."""
    size, told = len(inner), bytearray()
    while size > 0x7F:
        told.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([tag << 3 | 2, *told, size]) + inner


def export(logs: bytes) -> bytes:
    return message(1, message(2, logs))


def test_events_and_exports_are_counted_before_they_are_decoded(client: Client) -> None:
    most = client.server.settings.batch_records
    batch = {"Content-Type": "application/cloudevents-batch+json"}
    event = b'{"specversion":"1.0","id":"1","source":"/","type":"t"}'
    json = {"Content-Type": "application/json"}
    proto = {"Content-Type": "application/x-protobuf"}
    records, otlp = "/v1/topics/t/records", "/otlp/v1/logs"
    around = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[', b"]}]}]}"

    def many(part: bytes, count: int) -> bytes:
        return b",".join([part] * count)

    log = message(2, message(6, message(1, b"k") + message(2, message(1, b"v"))))
    calls = [(records, batch, lambda n: b"[" + many(event, n) + b"]"),
             (otlp, json, lambda n: around[0] + many(b'{"body":{"a":1}}', n) + around[1]),
             (otlp, proto, lambda n: export(log * n))]  # fmt: skip
    for path, headers, made in calls:
        assert client.call("POST", path, made(most), headers).status == 200
        answer = client.call("POST", path, made(most + 1), headers)
        assert (answer.status, answer.code) == (400, "batch_too_large")
    million = 1_000_000
    pair = message(6, b"")
    bombs = [(records, batch, b"[" + many(b"{}", 2 * million) + b"]"),
             (otlp, json, around[0] + many(b"{}", 2 * million) + around[1]),
             (otlp, json, b'{"resourceLogs":[' + many(b"{}", 2 * million) + b"]}"),
             (otlp, proto, export(message(2, b"") * (3 * million))),
             (otlp, proto, export(message(2, pair * (3 * million)))),
             (otlp, proto, message(1, b"") * (3 * million)),
             (otlp, proto, export(message(2, message(5, message(5, pair * million)))))]  # fmt: skip
    for path, headers, body in bombs:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident()
        answer = client.call("POST", path, body, headers)
        assert (answer.status, answer.code) == (400, "batch_too_large"), body[:40]
        assert resident("VmHWM") - before < 80 << 20, body[:40]


def test_many_at_once_do_not_add_up(tmp_path: Path) -> None:
    """Bodies that are too long are refused by each connection for itself, before they are kept."""
    with serving(tmp_path / "data", Settings(port=0, body_bytes=1 << 20)) as server:
        Path("/proc/self/clear_refs").write_text("5")
        before = resident()

        def flood() -> None:
            with connected(server) as sock:
                head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
                try:
                    sock.sendall(head)
                    for _ in range(400):
                        sock.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                except OSError:
                    pass

        run(flood, 16)
        assert resident("VmHWM") - before < 96 << 20
        client = Client(server)
        alive(client)
        client.close()


def run(work: Callable[[], None], times: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def nested(levels: int, inside: str = "1") -> str:
    """JSON of so many levels; a string in it has brackets that do not count."""
    text = inside
    for level in range(levels):
        text = f"[{text}]" if level % 2 else f'{{"a\\\\":"]][[\\"[","b":{text}}}'
    return text


def test_the_depth_of_json(client: Client) -> None:
    most = client.server.settings.json_depth
    client.append("t", "x")
    json = {"Content-Type": "application/json"}
    event = '{"specversion":"1.0","id":"1","source":"/","type":"t","data":'
    for over in (0, 1):
        line = f'{{"value":{nested(most - 1 + over)}}}\n'
        bodies = {
            "a value": (json, f'{{"records":[{{"value":{nested(most - 3 + over)}}}]}}'),
            "a line": (NDJSON, '{"value":"x"}\n' * 40 + line),
            "an event": (
                {"Content-Type": "application/cloudevents+json"},
                f"{event}{nested(most - 1 + over)}}}",
            ),
        }
        for name, (headers, body) in bodies.items():
            answer = client.call("POST", "/v1/topics/t/records", body.encode(), headers)
            assert answer.status == (400 if over else 200), (name, over, answer.body)
            if over:
                assert "at most 32 levels" in answer.json()["error"]["message"]
    wide = '{"records":[{"value":%s}]}' % ("[" + ",".join(["[]"] * 1_000) + "]")
    assert client.call("POST", "/v1/topics/t/records", wide.encode(), json).status == 200
    texts = '{"records":[{"value":"%s"}]}' % ("[" * 1_000 + '\\"' + "{" * 1_000)
    assert client.call("POST", "/v1/topics/t/records", texts.encode(), json).status == 200


@pytest.mark.parametrize("levels", [1, 31, 32, 33, 34, 100])
def test_the_depth_is_measured_without_going_down(levels: int) -> None:
    for inside in ("1", '"]"', '"\\\\"', '{"x":["[[["]}', "[]"):
        more = {'{"x":["[[["]}': 2, "[]": 1}.get(inside, 0)
        data = nested(levels, inside).encode()
        assert nesting._deeper(data, 32) == (levels + more > 32), data
    assert nesting._deeper(b"[" * 33, 32)
    assert not nesting._deeper(b"[" * 32, 32)
    assert not nesting._deeper(b"]" * 100, 32)  # the decoder says what is wrong with it
