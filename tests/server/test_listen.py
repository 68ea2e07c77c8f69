"""Where a server listens, by which TLS, and how it stops with clients attached."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import socket
import ssl
import stat
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from esker.errors import InvalidOption
from esker.server.app import App
from esker.server.http.call import Call, Reply
from esker.server.run import Server, serving
from esker.server.settings import Settings
from tests.server.conftest import Client
from tests.server.raw import HOST, Heard, alive, answers, connected, listen, told
from tests.server.test_watch import until

GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
DAY = datetime.timedelta(days=1)


class Authority:
    """Makes certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.own = self._signed(name, self.key, ca=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self.own.public_bytes(serialization.Encoding.PEM))

    def _signed(self, name: str, key: Any, *, ca: bool = False, days: int = 30) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 40 * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if ca:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        about = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(about, critical=False).add_extension(own, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name: str, *, days: int = 30) -> tuple[str, str]:
        """A certificate and its key, in files of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(name, key, days=days)
        paths = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(paths[0]), str(paths[1])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@contextlib.contextmanager
def secured(path: Path, authority: Authority, **more: Any) -> Iterator[Server]:
    crt, key = authority.issue("server")
    given = Settings(port=0, tls_cert=crt, tls_key=key, **more)
    with serving(path / "data", given) as server:
        yield server


def believing(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


def ask(server: Server, context: ssl.SSLContext, data: bytes = GET) -> tuple[Heard, Any]:
    """One request over TLS, and the certificate that the server showed."""
    with context.wrap_socket(connected(server), server_hostname="localhost") as sock:
        sock.sendall(data)
        found = sock.recv(1 << 16)
        if not found:
            raise ConnectionResetError
        return answers(found)[0], sock.getpeercert(binary_form=True)


def test_tls_is_1_2_at_least_and_nothing_else_is_spoken(
    tmp_path: Path, authority: Authority
) -> None:
    with secured(tmp_path, authority) as server:
        assert server.url.startswith("https://")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = believing(authority)
            context.minimum_version = context.maximum_version = version
            assert ask(server, context)[0].status == 200
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings(action="ignore"):  # that this is deprecated
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = version
            with pytest.raises((ssl.SSLError, OSError), match=r"alert|protocol|reset|EOF"):
                ask(server, context)
        weak = believing(authority)
        weak.maximum_version = ssl.TLSVersion.TLSv1_2
        weak.set_ciphers("NULL:aNULL:eNULL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError):
            ask(server, weak)
        # Plain HTTP on the port of TLS, half a handshake, and junk: a close, and nothing said.
        for junk in (GET, b"\x16\x03\x01\x00\x05", b"\x00" * 1_000, b""):
            with connected(server) as sock:
                sock.sendall(junk)
                sock.shutdown(socket.SHUT_WR)
                heard = listen(sock)
            assert b"HTTP" not in heard
        assert ask(server, believing(authority))[0].status == 200


def test_a_certificate_of_somebody_else_is_not_believed(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority(tmp_path, "other")
    with secured(tmp_path, authority) as server:
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(server, believing(other))
        context = believing(authority)
        with (
            connected(server) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
            context.wrap_socket(plain, server_hostname="elsewhere"),
        ):
            pass


def test_with_an_authority_clients_need_a_certificate_of_it(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority(tmp_path, "other")
    with secured(tmp_path, authority, tls_ca=str(authority.path)) as server:
        known = believing(authority)
        known.load_cert_chain(*authority.issue("client"))
        assert ask(server, known)[0].status == 200
        expired = believing(authority)
        expired.load_cert_chain(*authority.issue("expired", days=-1))
        foreign = believing(authority)
        foreign.load_cert_chain(*other.issue("foreign"))
        for context in (believing(authority), foreign, expired):
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                ask(server, context)
        assert ask(server, known)[0].status == 200


def test_certificates_are_renewed_without_a_pause(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with secured(tmp_path, authority) as server:
        context = believing(authority)
        with context.wrap_socket(connected(server), server_hostname="localhost") as before:
            before.sendall(GET)
            assert answers(before.recv(1 << 16))[0].status == 200
            _, old = ask(server, context)
            authority.issue("server")
            assert ask(server, context)[1] == old, "not before it is told"
            renew(server)
            _, new = ask(server, context)
            assert new != old
            before.sendall(GET)  # who is connected stays so
            assert answers(before.recv(1 << 16))[0].status == 200
        authority.issue("server")
        assert server.loop is not None
        server.loop.call_soon_threadsafe(server.reload)  # what SIGHUP does
        until(lambda: ask(server, context)[1] != new)
        _, new = ask(server, context)
        Path(server.settings.tls_cert).write_text("no certificate")
        with pytest.raises(InvalidOption, match="tls_cert"):
            renew(server)
        assert ask(server, context)[1] == new, "what is no good is not taken"
        server.loop.call_soon_threadsafe(server.reload)
        until(lambda: "the certificates stay as they were" in caplog.text)
        assert ask(server, context)[1] == new


def renew(server: Server) -> None:
    assert server.loop is not None
    asyncio.run_coroutine_threadsafe(server.renew(), server.loop).result(10)


def test_what_tls_needs_is_checked_before_a_server_starts(
    tmp_path: Path, authority: Authority
) -> None:
    crt, key = authority.issue("server")
    _, other = authority.issue("other")
    (tmp_path / "junk").write_text("junk")
    for given, why in (
        ({"tls_cert": crt, "tls_key": other}, "tls_cert='.*crt' and tls_key='.*other"),
        ({"tls_cert": crt, "tls_key": str(tmp_path / "no")}, "^tls_key='.*no': there is no such"),
        ({"tls_cert": str(tmp_path / "junk"), "tls_key": key}, "tls_cert='.*junk'"),
        ({"tls_key": key}, "tls_cert"),
        ({"tls_cert": crt, "tls_key": key, "tls_ca": str(tmp_path / "junk")}, "^tls_ca='.*junk'"),
        ({"tls_ca": str(authority.path)}, "tls_"),
    ):
        with (
            pytest.raises(InvalidOption, match=why),
            serving(tmp_path / "data", Settings(port=0, **given)),
        ):
            pass


def test_who_never_finishes_a_handshake_is_let_go(tmp_path: Path, authority: Authority) -> None:
    with secured(tmp_path, authority, header_seconds=0.5) as server, connected(server) as sock:
        began = time.monotonic()
        sock.sendall(b"\x16\x03\x01")
        listen(sock)
        assert time.monotonic() - began < 5


def test_a_large_answer_comes_over_tls_as_it_is(tmp_path: Path, authority: Authority) -> None:
    with secured(tmp_path, authority) as server:
        where = urlsplit(server.url)
        connection = http.client.HTTPSConnection(
            "localhost", where.port, context=believing(authority), timeout=10
        )
        bytes_ = {"Content-Type": "application/octet-stream"}
        for n in range(6):
            connection.request("POST", "/v1/topics/t/records", bytes([n]) * 1_000_000, bytes_)
            assert connection.getresponse().read()
        arrow = {"Accept": "application/vnd.apache.arrow.stream"}
        connection.request("GET", "/v1/topics/t/records?max_bytes=8000000", headers=arrow)
        with pa.ipc.open_stream(connection.getresponse().read()) as reader:
            found = reader.read_all()["value"].to_pylist()
        assert found == [bytes([n]) * 1_000_000 for n in range(6)]
        connection.close()


# ---- sockets ---------------------------------------------------------------------------------


class Unix(http.client.HTTPConnection):
    """A connection to a socket in the file system."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def test_a_path_that_no_socket_can_have_is_told(tmp_path: Path) -> None:
    path = f"{tmp_path}/{'x' * 120}"
    with (
        pytest.raises(OSError, match="AF_UNIX path too long; choose another place"),
        serving(tmp_path / "data", Settings(unix=path)),
    ):
        pass


def test_a_unix_socket_is_for_its_owner_and_gone_at_the_end(fast: str) -> None:
    path = f"{fast}/esker.sock"
    for _ in range(2):
        with serving(f"{fast}/data", Settings(unix=path)) as server:
            assert server.url == f"http+unix://{path}"
            assert stat.S_IMODE(Path(path).lstat().st_mode) == 0o600
            connection = Unix(path)
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            assert (answer.status, msgspec.json.decode(answer.read())["status"]) == (200, "ok")
            connection.close()
            with (
                pytest.raises(InvalidOption, match="another server listens"),
                serving(f"{fast}/other", Settings(unix=path)),
            ):
                pass
        assert not Path(path).exists()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with serving(f"{fast}/data", Settings(unix=path)):
        pass  # what a dead server left is replaced
    Path(path).write_text("a file")
    with (
        pytest.raises(InvalidOption, match="there is a file"),
        serving(f"{fast}/data", Settings(unix=path)),
    ):
        pass
    assert Path(path).read_text() == "a file"


def test_an_address_that_is_taken_is_an_error(server: Server, tmp_path: Path) -> None:
    port = urlsplit(server.url).port or 0
    with pytest.raises(OSError, match="in use"), serving(tmp_path / "other", Settings(port=port)):
        pass


def test_answers_are_not_held_back(client: Client) -> None:
    alive(client)
    for connection in client.server._uvicorn.server_state.connections:
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# ---- the end ---------------------------------------------------------------------------------


def test_a_server_stops_in_time_with_clients_attached(tmp_path: Path) -> None:
    """Idle, waiting, half a request, not reading: none of them holds it, and each has an end."""
    heard: dict[str, bytes] = {}
    with serving(tmp_path / "data", Settings(port=0, grace=3.0)) as server:
        client = Client(server)
        for _ in range(8):
            client.call(
                "POST", "/v1/topics/t/records", b"x" * 900_000,
                {"Content-Type": "application/octet-stream"},
            )  # fmt: skip
        wait = b"GET /v1/topics/t/records?start=8&wait=30 HTTP/1.1\r\n" + HOST + b"\r\n"
        large = b"GET /v1/topics/t/records?max_bytes=8000000 HTTP/1.1\r\n" + HOST + b"\r\n"
        asked = {
            "idle": GET, "new": b"", "head": GET[:-2], "long poll": wait, "not reading": large,
            "body": b"POST /v1/topics/t/records HTTP/1.1\r\n" + HOST
            + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
        }  # fmt: skip
        socks = {name: connected(server) for name in asked}
        for name, data in asked.items():
            socks[name].sendall(data)
        assert answers(socks["idle"].recv(1 << 16))[0].status == 200
        time.sleep(0.3)
        began = time.monotonic()
    took = time.monotonic() - began
    assert took < 3.0 + 2.0
    for name, sock in socks.items():
        heard[name] = listen(sock)
        sock.close()
    client.close()
    assert heard["idle"] == heard["new"] == heard["head"] == b""
    (answer,) = answers(heard["long poll"])
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    (answer,) = answers(heard["body"])
    assert (answer.status, answer.code) == (503, "shutting_down")


@pytest.mark.parametrize("obedient", [True, False])
def test_streams_end_with_the_server(
    tmp_path: Path, obedient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that sees the end coming says its last words; one that does not is cut off in time."""
    with serving(tmp_path / "data", Settings(port=0, grace=1.0)) as server:
        app = server.app

        async def stream(call: Call) -> Reply:
            async def pieces() -> AsyncIterator[bytes]:
                while not (obedient and app.stopping.is_set()):
                    yield b"tick\n"
                    await asyncio.sleep(0.05)
                yield b"bye\n"

            return Reply(media="text/event-stream", stream=pieces())

        route = next(route for route in app.handlers if route.path == "/readyz")
        monkeypatch.setitem(app.handlers, route, stream)
        ask_ready = b"GET /readyz HTTP/1.1\r\n" + HOST + b"\r\n"
        socks = [connected(server) for _ in range(5)]
        for sock in socks:
            sock.sendall(ask_ready)
            heard = b""
            while b"tick" not in heard:
                heard += sock.recv(1 << 16)
                assert heard
        began = time.monotonic()
    took = time.monotonic() - began
    assert took < (1.0 if obedient else 3.0), took
    for sock in socks:
        heard = listen(sock)
        sock.close()
        assert heard.endswith(b"bye\n\r\n0\r\n\r\n") == obedient


def test_a_call_under_way_is_finished_before_the_end(tmp_path: Path) -> None:
    acked = []
    with serving(tmp_path / "data", Settings(port=0)) as server:
        clients = [Client(server) for _ in range(4)]

        def work(client: Client) -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                for n in range(10_000):
                    answer = client.append("t", str(n))
                    if answer.status != 200:
                        assert answer.code == "shutting_down"
                        return
                    acked.append(answer.json()["spans"][0]["first"])

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    assert len(acked) > 10
    with serving(tmp_path / "data", Settings(port=0)) as server:
        client = Client(server)
        assert client.get("/v1/topics/t").json()["shards"][0]["end"] >= max(acked) + 1
        client.close()


def test_a_stopped_server_takes_nobody_new(tmp_path: Path) -> None:
    with serving(tmp_path / "data", Settings(port=0)) as server:
        assert told(server, GET)[0].status == 200
        url = urlsplit(server.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.hostname, url.port or 0), timeout=5)


def test_a_websocket_opens_counts_and_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def echo(app: App, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await app._http(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})

    monkeypatch.setattr(App, "__call__", echo)
    ends = contextlib.ExitStack()
    with ends, serving(tmp_path / "data", Settings(port=0, grace=2.0, connections=2)) as server:
        where = urlsplit(server.url)
        url = f"ws://localhost:{where.port}/v1/ws"
        held = ends.enter_context(connect(url, sock=connected(server), proxy=None))
        held.send("hello")
        assert held.recv(5) == "HELLO"
        with connected(server) as second:
            second.sendall(GET)
            assert answers(second.recv(1 << 16))[0].status == 200
            (third,) = told(server, GET)
            assert (third.status, third.code) == (503, "too_many_connections")
        assert server.loop is not None
        began = time.monotonic()
        server.loop.call_soon_threadsafe(server.stop)
        with pytest.raises(ConnectionClosed):
            held.recv(5)
    assert time.monotonic() - began < 4
