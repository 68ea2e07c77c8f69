"""Where a server starts and where it does not; whose calls it takes, and those of which pages."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from esker.errors import InvalidOption
from esker.server.access.keyfile import new
from esker.server.access.keys import SCOPES
from esker.server.http.exposure import check_place, check_settings, is_loopback
from esker.server.http.faults import Fault
from esker.server.run import Server, serving
from esker.server.settings import Settings
from esker.server.table import ROUTES, Route, Table
from tests.server.asgi import Got, Request, application, call
from tests.server.conftest import Client

# ---- where it listens --------------------------------------------------------------------------

MATRIX = list(itertools.product(("127.0.0.1", "0.0.0.0", "10.1.2.3"), *((False, True),) * 3))


@pytest.mark.parametrize(("host", "keys", "tls", "insecure"), MATRIX)
def test_an_address_that_others_can_reach_needs_keys_and_tls(
    tmp_path: Path, host: str, keys: bool, tls: bool, insecure: bool
) -> None:
    """24 ways to start. `insecure` stands for TLS and never for keys."""
    path = str(tmp_path / "keys")
    new(path, ["read"])
    settings = Settings(
        host=host, port=0, keys=path if keys else "", insecure=insecure,
        tls_cert="cert.pem" if tls else "", tls_key="key.pem" if tls else "",
    )  # fmt: skip
    starts = host == "127.0.0.1" or (keys and (tls or insecure))
    if starts:
        check_settings(settings)
    else:
        with pytest.raises(InvalidOption, match="others can reach"):
            Server(tmp_path / "data", settings)
        assert not (tmp_path / "data").exists()


def test_the_matrix_has_24_ways() -> None:
    assert len(set(MATRIX)) == 24


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("::ffff:127.0.0.1", True), ("", False), ("0.0.0.0", False), ("::", False),
        ("127.0.0.1.example.org", False), ("localhost.example.org", False), ("0", False),
        ("127.1", False), ("2130706433", False), ("::ffff:10.0.0.1", False), ("*", False),
        ("10.0.0.1", False), ("fe80::1", False), ("LOCALHOST", False),
    ],
)  # fmt: skip
def test_what_is_not_surely_loopback_is_not(host: str, own: bool) -> None:
    assert is_loopback(host) == own
    if not own:
        with pytest.raises(InvalidOption):
            check_settings(Settings(host=host))


@pytest.mark.parametrize("given", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_ca": "a"}])
def test_half_of_tls_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="tls_cert"):
        check_settings(Settings(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"origins": (text,)} for text in (
            "shop.example", "*", "https://*.shop.example", "https://shop.example/", "https://",
            "https://Shop.example", "https://u@shop.example", "https://shop.example?a",
        )
    ] + [{"hosts": (text,)} for text in ("http://a", "a:80", "::2", "*", "a/b")],
)  # fmt: skip
def test_names_that_nobody_can_have_are_refused(given: dict[str, Any]) -> None:
    """They would let nobody in, without a word."""
    with pytest.raises(InvalidOption, match=next(iter(given))):
        check_settings(Settings(**given))


def test_names_that_browsers_send_are_taken() -> None:
    origins = ("https://shop.example", "http://localhost:3000", "http://[::1]:80", "app://local")
    check_settings(Settings(origins=origins, hosts=("shop.example", "10.0.0.1", "[::2]", "Shop")))


def test_a_socket_in_the_file_system_is_of_this_machine() -> None:
    check_settings(Settings(unix="/run/esker.sock", host="0.0.0.0"))


# ---- which pages may call ----------------------------------------------------------------------

FOREIGN_HOSTS = [
    "evil.example", "evil.example:4117", "localhost.evil.example", "127.0.0.1.nip.example",
    "evil.example#localhost", "localhost@evil.example", "[::2]", "0.0.0.0", "", "localhost:4117:1",
    "localhost:²", "localhost/", " localhost", "127.0.0.2", "localhost.", "xlocalhost", "[::1",
    "::1", "localhost:999999", "127.0.0.1,evil.example",
]  # fmt: skip
FOREIGN_PAGES: list[dict[str, str]] = [
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "file://"},
    {"origin": "http://localhost:3000"}, {"origin": "http://localhost.evil.example"},
    {"origin": "http://127.0.0.1"}, {"origin": "chrome-extension://abc"},
    {"origin": "ftp://localhost"}, {"origin": "http://localhost, http://evil.example"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "Cross-Site"}, {"sec-fetch-site": "nonsense"}, {"sec-fetch-site": ""},
    {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
]  # fmt: skip
FORMS = [
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain",
    "text/plain; charset=utf-8", "TEXT/PLAIN", "text/plain;application/json", "",
    "application/json, text/plain", "application/jsonx",
]  # fmt: skip
CALLS = [
    ("GET", "/v1/topics/t/records"), ("GET", "/healthz"), ("GET", "/openapi.json"),
    ("POST", "/v1/topics/t/records"), ("PUT", "/v1/topics/t"), ("DELETE", "/v1/topics/t"),
    ("OPTIONS", "/v1/topics/t/records"), ("HEAD", "/v1/topics/t"),
]  # fmt: skip


async def pages() -> tuple[int, list[str]]:
    count, wrong = 0, []
    body = {"records": [{"value": "x"}]}
    streams = [("GET", Request(route, "t").path) for route in ROUTES if route.streams]
    async with application() as app:
        app.store._store.create("t")

        def judge(status: set[int], got: Got, what: Any) -> None:
            nonlocal count
            count += 1
            if got.status not in status or "access-control-allow-origin" in got.headers:
                wrong.append(f"{what}: {got.status}")

        for method, path in (*CALLS, *streams):
            given = body if method in ("POST", "PUT") else None
            for host in FOREIGN_HOSTS:
                got = await call(app, method, path, given, {"host": host})
                judge({421}, got, (method, path, host))
            for headers in FOREIGN_PAGES:
                got = await call(app, method, path, given, headers)
                judge({403}, got, (method, path, headers))
        for route in ROUTES:
            if route.method != "POST":
                continue
            for media in FORMS:
                if not media and route.body is None:
                    continue
                request = Request(route, "t")
                sent = {"content-type": media}
                if "*/*" in route.media and "form" not in media:
                    # plain text is taken there, but not from a page that does not say whose it is
                    simple = media.partition(";")[0].lower() in ("text/plain", "")
                    got = await request.send(app, {**sent, "user-agent": "Mozilla/5.0"})
                    judge({403} if simple else {409}, got, (route.path, media))
                    for headers in FOREIGN_PAGES:
                        got = await request.send(app, {**sent, **headers})
                        judge({403}, got, (route.path, media, headers))
                    continue
                got = await request.send(app, sent)
                judge({415}, got, (route.path, media))
        assert len(app.store._store["t"]) == 0
    return count, wrong


def test_no_foreign_page_gets_through() -> None:
    count, wrong = asyncio.run(pages())
    assert wrong == []
    assert count >= 60


def test_a_form_is_not_taken_even_where_there_is_nothing_to_say() -> None:
    press = Route("POST", "/v1/press", "admin", "probes.health", "Has no body")

    async def story() -> None:
        async with application(table=Table((*ROUTES, press))) as app:
            for media in FORMS[:5]:
                got = await call(app, "POST", "/v1/press", headers={"content-type": media})
                assert got.status == 415
            assert (await call(app, "POST", "/v1/press")).status == 200

    asyncio.run(story())


def test_who_names_no_host_is_told_so_and_who_names_another_which() -> None:
    with pytest.raises(Fault, match="Host is missing") as told:
        check_place({}, Settings())
    assert told.value.status == 400
    with pytest.raises(Fault, match=r"not called 'shop\.example:80'.*`hosts`") as told:
        check_place({"host": "shop.example:80"}, Settings())
    assert told.value.status == 421


@pytest.mark.parametrize("headers", [{"host": each} for each in FOREIGN_HOSTS] + FOREIGN_PAGES)
def test_a_websocket_is_held_to_the_same(headers: dict[str, str]) -> None:
    with pytest.raises(Fault) as told:
        check_place({"host": "localhost:4117", **headers}, Settings())
    assert told.value.code in ("misdirected", "forbidden")


@pytest.mark.parametrize(
    ("headers", "settings"),
    [
        ({"host": "localhost"}, {}), ({"host": "LocalHost:4117"}, {}), ({"host": "[::1]:4117"}, {}),
        ({"host": "127.0.0.1:4117", "origin": "http://127.0.0.1:4117"}, {}),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, {}),
        ({"host": "localhost", "sec-fetch-site": "none"}, {}),
        ({"host": "log.example"}, {"hosts": ("log.example",)}),
        ({"host": "10.1.2.3:4117"}, {"host": "10.1.2.3"}),
        ({"host": "[fd00::1]"}, {"host": "fd00::1"}),
        ({"host": "localhost", "origin": "https://app.example", "sec-fetch-site": "cross-site"},
         {"origins": ("https://app.example",)}),
    ],
)  # fmt: skip
def test_who_is_meant_gets_through(headers: dict[str, str], settings: dict[str, Any]) -> None:
    check_place(headers, Settings(**settings))


def test_with_tls_a_page_without_it_is_another() -> None:
    settings = Settings(tls_cert="c", tls_key="k")
    check_place({"host": "localhost", "origin": "https://localhost"}, settings)
    with pytest.raises(Fault):
        check_place({"host": "localhost", "origin": "http://localhost"}, settings)


def test_a_page_that_was_allowed_is_answered_and_no_other() -> None:
    async def story() -> None:
        async with application(Settings(origins=("https://app.example",))) as app:
            page = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
            asked = {
                **page, "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            }  # fmt: skip
            got = await call(app, "OPTIONS", "/v1/topics/t/records", headers=asked)
            assert got.status == 204
            assert got.headers["access-control-allow-origin"] == "https://app.example"
            assert "authorization" in got.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in got.headers
            got = await call(app, "GET", "/v1/topics", headers=page)
            assert (got.status, got.headers["vary"]) == (200, "origin")
            assert got.headers["access-control-allow-origin"] == "https://app.example"
            got = await call(app, "GET", "/v1/topics", headers={"origin": "https://b.example"})
            assert got.status == 403
            assert "access-control-allow-origin" not in got.headers

    asyncio.run(story())


def test_probes_can_need_a_key_too(tmp_path: Path) -> None:
    path = str(tmp_path / "keys")
    _, text = new(path, ["write"])

    async def story() -> None:
        async with application(Settings(keys=path, probe_auth=True)) as app:
            assert (await call(app, "GET", "/healthz")).status == 401
            key = {"authorization": f"Bearer {text}"}
            assert (await call(app, "GET", "/readyz", headers=key)).status == 200
            assert (await call(app, "GET", "/openapi.json")).status == 200

    asyncio.run(story())


def test_over_a_socket_it_is_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "keys")
    _, text = new(path, SCOPES, ["t4"])
    with serving(tmp_path / "data", Settings(port=0, keys=path)) as server:
        client = Client(server)
        key = {"Authorization": f"Bearer {text}"}
        assert client.get("/v1/topics").status == 401
        assert "Bearer" in client.get("/v1/topics").headers["www-authenticate"]
        assert client.get("/v1/topics", **key, Host="evil.example").status == 421
        assert client.get("/v1/topics", **key, Origin="http://evil.example").status == 403
        body = {"records": [{"value": "x"}]}
        assert client.call("POST", "/v1/topics/t4/records", body, key).status == 200
        assert client.call("POST", "/v1/topics/t42/records", body, key).status == 403
        listed = client.get("/v1/topics", Authorization=f"bearer {text}")
        assert listed.json() == {"topics": ["t4"]}
        client.close()
