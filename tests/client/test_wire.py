"""The wire between client and server: lost answers, dead connections, keys, timeouts, closing."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import esker
from esker.client import pool
from esker.client.address import options, parse
from esker.client.tail import POLL_SECONDS
from esker.clock import SYSTEM_CLOCK
from esker.server.access.keyfile import new
from esker.server.access.keys import SCOPES
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.client.relay import Relay, answering, relaying
from tests.helpers import Threads, wait_until

# ---- addresses and options -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://127.0.0.1:4117", "127.0.0.1", 4117),
        ("http://logs.example/", "logs.example", 80),
        ("https://logs.example", "logs.example", 443),
        ("http://[::1]:4117", "::1", 4117),
    ],
)
def test_a_url_names_a_host_and_a_port(url: str, host: str, port: int) -> None:
    found = parse(url)
    assert (found.host, found.port, found.secure) == (host, port, url.startswith("https"))
    assert parse(found.url) == found


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host", "http://", "http://host:port", "http://host:99999", "http://host/v1",
        "http://host?key=x", "http://host#x", "http://a b", "http+unix://relative", "s3://bucket/x",
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(esker.InvalidOption):
        esker.open(url)


def test_a_url_holds_no_secret_and_none_is_told() -> None:
    for url in ("http://hidden@host", "http://me:hidden@host", "ftp://me:hidden@host"):
        with pytest.raises(esker.InvalidOption) as caught:
            esker.open(url)
        assert "hidden" not in str(caught.value)


def test_options_of_a_directory_are_refused_with_a_url() -> None:
    with pytest.raises(esker.InvalidOption, match="option of a store in a directory"):
        options({"background": False})
    with pytest.raises(esker.InvalidOption, match="option of a store in a directory"):
        options({"linger": "5ms"})
    with pytest.raises(esker.InvalidOption, match="did you mean 'timeout'"):
        options({"timeuot": 3})
    for bad in ({"retries": -1}, {"retries": True}, {"timeout": 0}, {"key": "a\nb"}, {"key": "ü"}):
        with pytest.raises(esker.InvalidOption):
            options(bad)


def test_the_key_goes_in_a_header_and_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relaying(server.url) as relay:
        with esker.open(relay.url, key="k-given"):
            pass
        monkeypatch.setenv("ESKER_KEY", "k-around")
        with esker.open(relay.url):
            pass
    asked = b"".join(relay.requests)
    assert asked.count(b"Authorization: Bearer k-given\r\n") == 1
    assert asked.count(b"Authorization: Bearer k-around\r\n") == 1
    assert b"User-Agent: esker/" in asked
    assert b"k-" not in asked.replace(b"Bearer k-given", b"").replace(b"Bearer k-around", b"")


# ---- what cannot be reached ------------------------------------------------------------------


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(esker.Unavailable) as caught:
        esker.open(f"http://127.0.0.1:{port}")
    assert caught.value.done is False
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nhello",
    ],
    ids=["a redirect", "another server", "a proxy"],
)
def test_what_is_no_server_of_esker_is_said_to_be_none(answer: bytes) -> None:
    with answering(answer) as (url, asked):
        with pytest.raises(esker.ServerFault):
            esker.open(url, key="secret")
        assert len(asked) == 1, "it went elsewhere, or again"


def test_an_answer_that_does_not_come_is_waited_for_so_long() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(esker.Unavailable, match=r"did not answer within 0\.1 s") as caught,
    ):
        esker.open(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)
    assert caught.value.done is None


def test_a_commit_that_takes_longer_than_the_caller_waits_is_a_timeout(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store["t"].append(b"x", wait=5)
    held = threading.Event()
    real = pool._Connection.getresponse

    def late(self: Any) -> Any:
        held.wait(0.05)
        self.sock.settimeout(0.001)
        raise TimeoutError

    monkeypatch.setattr(pool._Connection, "getresponse", late)
    with pytest.raises(esker.CommitTimeout):
        store["t"].append(b"y", wait=0.05)
    monkeypatch.setattr(pool._Connection, "getresponse", real)
    assert len(store["t"]) == 2, "it was committed all the same"


# ---- lost answers ----------------------------------------------------------------------------

APPENDS: list[Callable[[Any], Any]] = [
    lambda topic: topic.append(b"x"),
    lambda topic: topic.append(b"x", key=b"k", wait=True),
    lambda topic: topic.append_many([b"x", b"y"]),
    lambda topic: topic.append_many([esker.Record(b"x", tag="t"), b"y"]),
    lambda topic: topic.append_arrow(pa.table({"value": [b"x", b"y"]})),
]


@pytest.mark.parametrize("append", APPENDS)
def test_an_append_whose_answer_is_lost_is_not_sent_again(
    relay: Relay, append: Callable[[Any], Any]
) -> None:
    with esker.open(relay.url) as store:
        store["t"].append(b"first")
        before, relay.lose = len(store["t"]), 1
        with pytest.raises(esker.Unavailable, match="may have been done") as caught:
            append(store["t"])
        assert caught.value.done is None
        assert len(store["t"]) - before in (1, 2), "it was done, and once"


@pytest.mark.parametrize("append", APPENDS)
def test_with_retries_a_lost_answer_appends_nothing_twice(
    relay: Relay, append: Callable[[Any], Any]
) -> None:
    with esker.open(relay.url, retries=3) as store:
        store["t"].append(b"first")
        expected = append(store["t"])
        for lost in (1, 2, 3):
            before, relay.lose = store["t"].end(), lost
            span = append(store["t"])
            first = span if isinstance(span, int) else span.first
            count = 1 if isinstance(span, int) else span.count
            assert first == before
            assert store["t"].end() == before + count
            assert type(span) is type(expected)


def test_more_answers_are_lost_than_there_are_retries(relay: Relay) -> None:
    with esker.open(relay.url, retries=2) as store:
        store["t"].append(b"first")
        relay.lose = 4  # a connection that was idle may be dead: that is no retry
        with pytest.raises(esker.Unavailable):
            store["t"].append(b"x")
        assert len(store["t"]) == 2


def test_a_batch_with_a_key_of_its_own_is_sent_again(relay: Relay) -> None:
    with esker.open(relay.url, retries=1) as store:
        for _ in range(2):
            relay.lose = 1
            with store["t"].batch(idempotency_key="mine") as batch:
                batch.append(b"x")
                batch.append(b"y")
            assert batch.span == esker.Span(0, 0, 2)
        assert len(store["t"]) == 2
        with pytest.raises(esker.InvalidOption, match="a key is text"):
            store["t"].append(b"x", idempotency_key=b"\xff")


def test_a_topic_that_knows_no_keys_gets_none(relay: Relay) -> None:
    with esker.open(relay.url, retries=1) as store:
        topic = store.create("t", dedupe_records=0)
        assert topic.append(b"x") == 0
        with pytest.raises(esker.InvalidOption, match="knows no keys"):
            topic.append(b"x", idempotency_key="mine")
        relay.spare, relay.lose = 1, 1  # the refusal; the answer of the append without a key
        with pytest.raises(esker.Unavailable, match="may have been done"):
            topic.append(b"y")
        assert len(topic) == 2


def test_a_producer_goes_on_after_a_lost_answer(relay: Relay) -> None:
    with esker.open(relay.url, retries=2) as store:
        producer = store["t"].producer("p")
        assert producer.last == -1
        assert producer.append(b"a") == 0
        relay.lose = 1
        assert producer.append_many([b"b", b"c"]) == esker.Span(0, 1, 2)
        relay.lose = 2
        assert producer.append(b"d", sequence=2) == 3
        assert producer.append(b"d", sequence=2) == 3
        assert producer.last == 2
        with pytest.raises(esker.SequenceGap) as caught:
            producer.append(b"e", sequence=4)
        assert caught.value.expected == 3
        assert [record.value for record in store["t"].read()] == [b"a", b"b", b"c", b"d"]


def test_a_read_whose_answer_is_lost_is_asked_again(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store["t"].append_many([b"a", b"b"])
        relay.lose = 1
        assert [record.value for record in store["t"].read()] == [b"a", b"b"]


# ---- connections -----------------------------------------------------------------------------


def test_connections_are_kept_and_used_again(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        for n in range(20):
            store["t"].append(b"%d" % n)
        assert relay.connections == 1


def test_a_connection_that_died_while_idle_is_not_used(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store["t"].append(b"x")
        for n in range(1, 6):
            relay.cut()
            (idle,) = store._pool._idle  # type: ignore[attr-defined]
            wait_until(lambda idle=idle: not idle.is_usable(idle.idle_since), "the end to arrive")
            assert store["t"].append(b"x") == n, "and nothing was lost or appended twice"


def test_a_connection_that_was_idle_for_long_is_not_used(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esker.open(relay.url) as store:
        store["t"].append(b"x")
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
        store["t"].append(b"x")
        assert relay.connections >= 2


def test_a_request_that_was_not_sent_whole_is_sent_again(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with esker.open(relay.url) as store:
        store["t"].append(b"x")
        monkeypatch.setattr(pool._Connection, "is_usable", lambda *_: True)
        (idle,) = store._pool._idle  # type: ignore[attr-defined]
        idle.sock.shutdown(socket.SHUT_WR)  # as if the other side had reset it
        assert store["t"].append(b"y") == 1
        assert relay.connections == 2


def test_threads_do_not_wait_for_each_other(store: Any) -> None:
    topic, threads = store["t"], Threads()
    topic.append(b"first")
    came = threading.Event()

    def follow() -> None:
        for _ in topic.follow("latest", limit=1):
            came.set()

    threads.start(follow)
    wait_until(lambda: store._pool._waiting, "the follower to wait")
    assert [topic.append(b"%d" % n) for n in range(5)] == [1, 2, 3, 4, 5]
    assert came.wait(10)
    threads.join()


def test_a_forked_child_has_connections_of_its_own(relay: Relay) -> None:
    with esker.open(relay.url) as store:
        store["t"].append(b"x")
        pid = os.fork()
        if pid == 0:
            os._exit(0 if len(store["t"]) == 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert store["t"].append(b"y") == 1
        assert relay.connections == 2


def test_a_socket_in_the_file_system_serves_as_well(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(unix=str(tmp_path / "s"))) as server:
        assert server.url == f"http+unix://{tmp_path / 's'}"
        with esker.open(server.url) as store:
            assert store["t"].append_many([b"a", b"b"]).count == 2
            assert [record.value for record in store["t"].read()] == [b"a", b"b"]


def _certificate(folder: Path) -> Path:
    """A certificate for localhost that nobody has signed, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + made.public_bytes(pem)
    )
    return path


def test_over_tls_the_servers_certificate_must_be_trusted(server: Server, tmp_path: Path) -> None:
    path = _certificate(tmp_path)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(path)
    with relaying(server.url, theirs) as relay:
        with pytest.raises(esker.Unavailable, match=r"verify failed.*SSL_CERT_FILE") as caught:
            esker.open(relay.url, key="secret")
        assert caught.value.done is False
        assert relay.requests == [], "the key was sent to a stranger"
        with esker.open(relay.url, tls=ssl.create_default_context(cafile=path)) as store:
            assert store["t"].append_many([b"x"] * 1_000).count == 1_000
            assert len(list(store["t"].read())) == 1_000
            assert store["t"].append(b"y") == 1_000
        assert relay.connections == 2, "and connections are kept over TLS, too"
        with pytest.raises(esker.Unavailable, match="begins with https://"):
            esker.open(relay.url.replace("https://", "http://"))
    with pytest.raises(esker.Unavailable, match="begins with http://"):
        esker.open(server.url.replace("http://", "https://"))


def test_who_gives_no_key_is_told_how_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESKER_KEY", raising=False)
    _, text = new(tmp_path / "keys", SCOPES)
    with serving(tmp_path / "locked", Settings(port=0, keys=str(tmp_path / "keys"))) as server:
        with pytest.raises(esker.Unauthorized, match=r"give key=\.\.\., or set ESKER_KEY"):
            esker.open(server.url)
        with pytest.raises(esker.Unauthorized, match="not known"):
            esker.open(server.url, key=text[:-1])
        with esker.open(server.url, key=text) as store:
            assert list(store) == []


# ---- closing and stopping --------------------------------------------------------------------


def test_closing_ends_those_who_follow(server: Server) -> None:
    store: Any = esker.open(server.url)
    store["one"].append(b"x")
    store.create("four", shards=4)
    threads = Threads()
    for name in ("one", "four"):
        threads.start(lambda name=name: list(store[name].follow("latest")))
    wait_until(lambda: len(store._pool._waiting) == 2, "both to wait")
    began = SYSTEM_CLOCK.monotonic()
    store.close()
    threads.join()
    assert SYSTEM_CLOCK.monotonic() - began < POLL_SECONDS / 2, "they waited for an answer"
    store.close()
    for call in (lambda: store["one"], lambda: list(store), lambda: store.sync()):
        with pytest.raises(esker.StoreClosed):
            call()


def test_a_reader_writes_nothing(server: Server, store: Any) -> None:
    store["t"].append(b"x")
    with esker.open(server.url, mode="r") as reader:
        assert [record.value for record in reader["t"].read()] == [b"x"]
        for change in (
            lambda: reader["t"].append(b"x"),
            lambda: reader["t"].append_many([b"x"]),
            lambda: reader["t"].append_arrow(reader["t"][:]),
            lambda: reader["t"].producer("p").append(b"x"),
            lambda: reader["t"].delete("latest"),
            lambda: reader["t"].sync(),
            lambda: reader.create("new"),
            lambda: reader.alter("t", ttl="1d"),
            lambda: reader.delete("t"),
            lambda: reader.sync(),
        ):
            with pytest.raises(esker.ReadOnlyStore, match='mode="rw"'):
                change()
    assert len(store["t"]) == 1


def test_what_is_done_on_the_servers_machine_says_so(store: Any) -> None:
    with pytest.raises(esker.NotRemote, match="done where the store is"):
        store.maintenance()
    with pytest.raises(esker.NotRemote, match="done where the store is"):
        store["t"].archive()
    assert not hasattr(store, "tick")
    with pytest.raises(AttributeError, match="has no 'frobnicate'"):
        store.frobnicate()


def test_a_server_that_is_killed_and_comes_back_is_found_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        port = int(server.url.rpartition(":")[2])
        store = esker.open(server.url, retries=20)
        assert store["t"].append(b"a") == 0
    threads = Threads()
    found: list[int] = []
    threads.start(lambda: found.append(store["t"].append(b"b")))
    with serving(tmp_path / "data", Settings(port=port)):
        threads.join()
        assert found == [1]
        store.close()
